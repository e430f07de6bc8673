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
    screen: vt100::Parser,
    /// Whether a progress bar was ever on the screen.
    saw_bar: bool,
}

impl Terminal {
    pub(crate) fn start(command: &mut Command, columns: u16) -> Terminal {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
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
            ws_row: ROWS,
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
            screen: vt100::Parser::new(ROWS, columns, 0),
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
            self.check();
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
        let want = format!("{banner} Hi\n{piped}>");
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
