//! The command in a pseudo-terminal: the screen during a run and at its end.

use crate::support::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};

const COLUMNS: [u16; 4] = [60, 80, 100, 200];
const ROWS: u16 = 24;

/// A command that runs in a terminal, and the terminal's screen.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    pub(crate) controller: File,
    pub(crate) screen: vt100::Parser,
    /// Whether a progress bar was ever on the screen.
    pub(crate) saw_bar: bool,
}

impl Terminal {
    pub(crate) fn start(command: &mut Command, columns: u16) -> Terminal {
        Terminal::start_sized(command, columns, ROWS)
    }

    pub(crate) fn start_sized(command: &mut Command, columns: u16, rows: u16) -> Terminal {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, vec![]).unwrap();
        let mut options = File::options();
        let user = options
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&user, size).unwrap();
        let child = command
            .env("TERM", "xterm")
            .stdin(user.try_clone().unwrap())
            .stdout(user.try_clone().unwrap())
            .stderr(user)
            .spawn()
            .unwrap();
        // `Command` keeps the other end of the terminal open until it is reused.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        Terminal {
            child,
            controller: controller.into(),
            screen: vt100::Parser::new(rows, columns, 0),
            saw_bar: false,
        }
    }

    /// Reads the command's output until `done` returns true; returns false if the command has ended.
    pub(crate) fn read_until(&mut self, done: impl Fn(&vt100::Screen) -> bool) -> bool {
        let mut byte = [0];
        while !done(self.screen.screen()) {
            // The end is an error on Linux.
            if !matches!(self.controller.read(&mut byte), Ok(1)) {
                return false;
            }
            self.screen.process(&byte);
            // A bar is drawn up to its bracket, or as a whole.
            if matches!(byte, [b']' | b'\r']) {
                self.check();
            }
        }
        true
    }

    /// Checks that a progress bar has a line of its own and fits on it.
    fn check(&mut self) {
        let screen = self.screen.screen();
        let (_, columns) = screen.size();
        let rows: Vec<String> = screen.rows(0, columns).collect();
        for (at, row) in (0..).zip(&rows) {
            let Some(column) = row.find("prompt [") else {
                continue;
            };
            self.saw_bar = true;
            assert_eq!(column, 0, "{columns} columns: {rows:?}");
            assert!(!screen.row_wrapped(at), "{columns} columns: {rows:?}");
        }
    }

    pub(crate) fn contents(&self) -> String {
        self.screen.screen().contents()
    }
}

#[test]
fn a_prompt_is_shown_once_and_its_bar_leaves_nothing() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let prompt = "The capital of France is";
    for columns in COLUMNS {
        for more in [&[][..], &["--no-display-prompt"], &["--chat"]] {
            let args = [
                "run", &tiny, "-p", prompt, "-n", "8", "-b", "4", "--temp", "0",
            ];
            let args = [&args[..], more].concat();
            let piped = folder.run(&args).ok();
            let mut terminal = Terminal::start(&mut folder.command(&args), columns);
            terminal.read_until(|_| false);
            assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
            let (text, statistics) = terminal.contents().split_once("\n[prompt ").map_or_else(
                || panic!("{columns} columns: {:?}", terminal.contents()),
                |(text, rest)| (text.to_owned(), rest.to_owned()),
            );
            assert_eq!(format!("{text}\n"), piped, "{columns} columns");
            assert_eq!(statistics.lines().count(), 1, "{statistics}");
            assert!(statistics.contains("generated"), "{statistics}");
            assert!(terminal.saw_bar, "{columns} columns");
        }
    }
}

#[test]
fn answers_of_a_chat_stand_alone() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = ["chat", &tiny, "-n", "4", "-b", "4", "--temp", "0"];
    let piped = folder.run_with_input(&args, "Hi\n").ok();
    for columns in COLUMNS {
        let mut terminal = Terminal::start(&mut folder.command(&args), columns);
        let waits = |screen: &vt100::Screen| {
            let (row, column) = screen.cursor_position();
            let rows: Vec<String> = screen.rows(0, 2).collect();
            column == 2 && rows[usize::from(row)].starts_with('>')
        };
        assert!(terminal.read_until(waits), "{}", terminal.contents());
        // The name of the file, not the one inside of it.
        let banner = "tiny, context of 64 tokens; /help lists the commands\n>";
        assert_eq!(terminal.contents().trim_end(), banner);
        terminal.controller.write_all(b"Hi\r").unwrap();
        let answered = |screen: &vt100::Screen| {
            screen.contents().contains("\n> ") && {
                let (row, _) = screen.cursor_position();
                row > 2 && waits(screen)
            }
        };
        assert!(terminal.read_until(answered), "{}", terminal.contents());
        let cut =
            "[the answer was cut after 4 tokens (--predict); /set predict N changes the limit]";
        let want = format!("{banner} Hi\n{piped}{cut}\n>");
        assert_eq!(terminal.contents().trim_end(), want, "{columns} columns");
        assert!(terminal.saw_bar, "{columns} columns");
        // Ctrl-D.
        terminal.controller.write_all(&[4]).unwrap();
        terminal.read_until(|_| false);
        assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn ctrl_c_twice_leaves_a_chat_with_code_130() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let mut terminal = Terminal::start(&mut folder.command(&["chat", &tiny]), 80);
    assert!(terminal.read_until(|screen| screen.contents().contains("commands\n>")));
    terminal.controller.write_all(&[3]).unwrap();
    assert!(
        terminal.read_until(|screen| screen.contents().contains("again or Ctrl-D to leave)\n>"))
    );
    terminal.controller.write_all(&[3]).unwrap();
    terminal.read_until(|_| false);
    assert_eq!(terminal.child.wait().unwrap().code(), Some(130));
}

/// Whether the chat waits for a line in this row or below.
fn waits_below(row: u16) -> impl Fn(&vt100::Screen) -> bool {
    move |screen| {
        let (at, column) = screen.cursor_position();
        let rows: Vec<String> = screen.rows(0, 2).collect();
        at >= row && column == 2 && rows[usize::from(at)].starts_with('>')
    }
}

#[test]
fn tab_completes_commands_branches_options_and_files() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    std::fs::create_dir(folder.path("saved")).unwrap();
    folder.file("saved/evening.kv", "");
    let mut command = folder.command(&["chat", &tiny, "-n", "1"]);
    let mut terminal = Terminal::start(command.current_dir(folder.path("")), 80);
    assert!(terminal.read_until(waits_below(0)));
    let cases: [(&[u8], &str); 6] = [
        (b"/bran\t", "> /branches"),
        (b"/fork weekend\r", "[now in weekend]"),
        (b"/switch m\t", "> /switch main"),
        (b"/drop wee\t", "> /drop weekend"),
        (b"/set temp\t", "> /set temp"),
        (b"/load sa\tev\t", "> /load saved/evening.kv"),
    ];
    let waits = |screen: &vt100::Screen| {
        let (row, column) = screen.cursor_position();
        let row = screen.rows(0, 80).nth(row.into()).unwrap();
        row.trim_end().ends_with('>') && usize::from(column) == row.trim_end().len() + 1
    };
    for (keys, shown) in cases {
        terminal.controller.write_all(keys).unwrap();
        let found = terminal.read_until(|screen| screen.contents().contains(shown));
        assert!(found, "{shown}: {}", terminal.contents());
        // Ctrl-U clears the line.
        terminal.controller.write_all(&[21]).unwrap();
        assert!(terminal.read_until(waits));
    }
    terminal.controller.write_all(&[4]).unwrap();
    terminal.read_until(|_| false);
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_message_is_typed_in_several_lines_and_edited() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = ["chat", &tiny, "-n", "4", "--temp", "0"];
    let piped = |text: &str| {
        let output = folder.run_with_input(&args, text).ok();
        output.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = piped("\"\"\"ab\ncd\"\"\"\n");
    let edited = piped("Hi yes\n");
    let mut terminal = Terminal::start(&mut folder.command(&args), 80);
    assert!(terminal.read_until(waits_below(0)));
    terminal.controller.write_all(b"\"\"\"ab\r").unwrap();
    assert!(terminal.read_until(|screen| screen.contents().contains("\n. ")));
    terminal.controller.write_all(b"cd\"\"\"\r").unwrap();
    assert!(terminal.read_until(waits_below(4)));
    let shown = format!("> \"\"\"ab\n. cd\"\"\"\n{}\n[the answer was cut ", lines[0]);
    assert!(
        terminal.contents().contains(&shown),
        "{}",
        terminal.contents()
    );
    // Ctrl-C drops what was begun; the chat goes on.
    let (row, _) = terminal.screen.screen().cursor_position();
    terminal.controller.write_all(b"\"\"\"gone\r").unwrap();
    assert!(terminal.read_until(|screen| screen.contents().contains("gone\n. ")));
    terminal.controller.write_all(&[3]).unwrap();
    assert!(terminal.read_until(waits_below(row + 2)));

    terminal.controller.write_all(b"/clear\r").unwrap();
    assert!(terminal.read_until(waits_below(row + 4)));
    terminal.controller.write_all(b"Hi\r").unwrap();
    assert!(terminal.read_until(waits_below(row + 7)));
    // The last message stands in the line again, with the cursor at its end.
    terminal.controller.write_all(b"/edit\r").unwrap();
    assert!(terminal.read_until(|screen| screen.contents().contains("/edit\n> Hi")));
    let (row, _) = terminal.screen.screen().cursor_position();
    terminal.controller.write_all(b" yes\r").unwrap();
    assert!(
        terminal.read_until(waits_below(row + 3)),
        "{}",
        terminal.contents()
    );
    let shown = format!("> Hi yes\n{}\n[the answer was cut ", edited[0]);
    assert!(
        terminal.contents().contains(&shown),
        "{}",
        terminal.contents()
    );
    terminal.controller.write_all(&[4]).unwrap();
    terminal.read_until(|_| false);
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
}

#[test]
fn words_of_an_answer_are_not_broken_at_the_edge() {
    let Some(model) = crate::real::model() else {
        return;
    };
    let folder = Folder::new();
    let question = "Describe the sea in three sentences.";
    let args = ["chat", &model, "--temp", "0", "-p", question];
    let piped = folder.run(&args).ok();
    for columns in [24, 40, 77] {
        let mut terminal = Terminal::start(&mut folder.command(&args), columns);
        assert!(terminal.read_until(waits_below(1)));
        let screen = terminal.screen.screen();
        let rows: Vec<String> = screen.rows(0, columns).collect();
        let last = rows.iter().position(|row| row.starts_with('>')).unwrap();
        let first = rows
            .iter()
            .position(|row| row.contains("commands"))
            .unwrap()
            + 1;
        for (at, row) in rows[first..last].iter().enumerate() {
            assert!(!screen.row_wrapped((first + at) as u16), "{row:?}");
        }
        // The words are those of the piped answer, and no row has room for the first word of the next one.
        let words: Vec<&str> = rows[first..last]
            .iter()
            .flat_map(|row| row.split_whitespace())
            .collect();
        assert_eq!(
            words,
            piped.split_whitespace().collect::<Vec<_>>(),
            "{columns} columns"
        );
        let one_paragraph = !piped.trim_end().contains('\n');
        for two in rows[first..last].windows(2).filter(|_| one_paragraph) {
            let next = two[1].split(' ').next().unwrap().chars().count();
            assert!(
                two[0].chars().count() + 1 + next > columns.into(),
                "{two:?}"
            );
        }
        terminal.controller.write_all(&[4]).unwrap();
        terminal.read_until(|_| false);
        assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_command_without_anything_to_do_opens_a_chat() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    std::fs::create_dir_all(folder.path("config/kvark")).unwrap();
    folder.file("config/kvark/config.toml", format!("model = {tiny:?}\n"));
    for args in [
        &[][..],
        &["run"],
        &["run", &tiny, "-c", "64"],
        &["run", "--chat", "-m", &tiny],
    ] {
        let mut terminal = Terminal::start(&mut folder.command(args), 100);
        let is_open =
            |screen: &vt100::Screen| screen.contents().contains("/help lists the commands");
        assert!(
            terminal.read_until(is_open),
            "{args:?}: {}",
            terminal.contents()
        );
        // Ctrl-D, when the line editor waits.
        assert!(
            terminal.read_until(|screen| screen.contents().contains("> ")),
            "{args:?}"
        );
        terminal.controller.write_all(&[4]).unwrap();
        terminal.read_until(|_| false);
        assert!(terminal.child.wait().unwrap().success(), "{args:?}");
    }
    // With JSON asked for, there is nobody to talk to.
    let mut terminal = Terminal::start(&mut folder.command(&["run", &tiny, "--json"]), 100);
    terminal.read_until(|_| false);
    assert!(
        terminal.contents().contains("no prompt"),
        "{}",
        terminal.contents()
    );
    assert_eq!(terminal.child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_list_breaks_its_lines_between_words() {
    let folder = Folder::new();
    for columns in [80, 120] {
        let mut terminal = Terminal::start(&mut folder.command(&["list"]), columns);
        terminal.read_until(|_| false);
        assert!(terminal.child.wait().unwrap().success());
        let screen = terminal.screen.screen();
        let rows: Vec<String> = screen.rows(0, columns).collect();
        for row in 0..ROWS {
            assert!(!screen.row_wrapped(row), "{columns} columns: {rows:?}");
        }
        assert!(
            rows.iter().any(|row| row.ends_with("not fetched")),
            "{rows:?}"
        );
    }
}
