//! A chat in a pseudo-terminal: keys, lines typed ahead, signals, questions and colours.

use crate::support::*;
use crate::terminal::Terminal;
use kvark::snapshot::Snapshot;
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

const ANSWERS: [&str; 6] = ["--temp", "0", "-n", "4", "-b", "64"];
/// Answers that only a signal ends.
const ENDLESS: [&str; 5] = ["--context-shift", "--temp", "0", "--logit-bias", "2:-inf"];
const CTRL_C: &[u8] = &[3];
const CTRL_D: &[u8] = &[4];
const UP: &[u8] = b"\x1b[A";
const CUT: &str = "[the answer was cut after 4 tokens";

impl Terminal {
    fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.controller.write_all(keys.as_ref()).unwrap();
    }

    #[track_caller]
    fn wait(&mut self, what: &str, done: impl Fn(&vt100::Screen) -> bool) {
        assert!(self.read_until(done), "{what}:\n{}", self.contents());
    }

    /// Waits until a text is on the screen.
    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        self.wait(text, |screen| screen.contents().contains(text));
    }

    /// Waits until the last line is a prompt without anything typed, below the lines that end with `text`.
    #[track_caller]
    fn wait_for_prompt_after(&mut self, text: &str) {
        self.wait(text, |screen| {
            let contents = screen.contents();
            let end = contents.trim_end();
            let (above, prompt) = end.rsplit_once('\n').unwrap_or(("", end));
            prompt.ends_with('>') && above.ends_with(text)
        });
    }

    /// Waits for the end and returns the exit code.
    fn code(&mut self) -> Option<i32> {
        self.read_until(|_| false);
        self.child.wait().unwrap().code()
    }

    fn kill(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// The command with the terminal as its controlling terminal, as a shell would start it: Ctrl-C and the end of the terminal
/// send signals.
fn controlled(command: &Command) -> Command {
    let mut outer = Command::new("setsid");
    outer.arg("--ctty").arg(command.get_program());
    outer.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

fn start(command: &Command, columns: u16, rows: u16) -> Terminal {
    Terminal::start_sized(&mut controlled(command), columns, rows)
}

fn begin(command: &Command) -> Terminal {
    let mut terminal = start(command, 120, 60);
    terminal.wait_for_prompt_after("/help lists the commands");
    terminal
}

#[test]
fn a_line_that_ctrl_c_clears_does_not_count_towards_leaving() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let mut terminal = begin(&folder.command(&[&["chat", &*tiny], &ANSWERS[..]].concat()));
    for text in ["one", "two", "three"] {
        terminal.press(text);
        terminal.wait_for(&format!("> {text}"));
        terminal.press(CTRL_C);
        terminal.wait_for_prompt_after(&format!("> {text}"));
    }
    // One in an empty line, a cleared line, and one in an empty line are not two in a row.
    terminal.press(CTRL_C);
    terminal.wait_for_prompt_after("(Ctrl-C again or Ctrl-D to leave)");
    terminal.press("four");
    terminal.wait_for("> four");
    terminal.press(CTRL_C);
    terminal.wait_for_prompt_after("> four");
    terminal.press(CTRL_C);
    terminal.wait_for_prompt_after("(Ctrl-C again or Ctrl-D to leave)");
    // An answer between two does not count either.
    terminal.press("Hi\r");
    terminal.wait_for_prompt_after("changes the limit]");
    terminal.press(CTRL_C);
    terminal.wait("a second note", |screen| {
        let end = screen.contents().replace("> \n", ">\n");
        end.trim_end()
            .ends_with("limit]\n>\n(Ctrl-C again or Ctrl-D to leave)\n>")
    });
    // Keys that come together with Ctrl-C are not lost.
    terminal.press(b"five\x03/branches\r");
    terminal.wait_for("* main         1 turn, ");
    terminal.wait_for_prompt_after(" tokens");
    terminal.press([CTRL_C, CTRL_C].concat());
    assert_eq!(terminal.code(), Some(130));
}

/// Whether an answer fills the screen. Answers of [`ENDLESS`] have neither spaces nor line ends.
fn answers_at_length(screen: &vt100::Screen) -> bool {
    let (rows, columns) = screen.size();
    let last = |row: u16| screen.cell(row, columns - 1);
    (0..rows - 1).all(|row| last(row).is_some_and(|cell| cell.has_contents()))
}

#[test]
fn ctrl_c_twice_in_an_answer_only_stops_it() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny, "-p", "Hi"], &ENDLESS[..]].concat();
    let mut terminal = start(&folder.command(&args), 40, 12);
    for _ in 0..3 {
        terminal.wait("an answer", answers_at_length);
        terminal.press([CTRL_C, CTRL_C].concat());
        terminal.press("/clear\r");
        terminal.wait_for_prompt_after("[the conversation was cleared]");
        terminal.press("Hi\r");
    }
    terminal.wait("an answer", answers_at_length);
    terminal.press(CTRL_C);
    terminal.press(CTRL_D);
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn lines_that_are_pasted_are_all_answered() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny, "-c", "200"], &ANSWERS[..]].concat();
    let said = ["Hi", "ab", "cd", "e f"];
    let piped = folder.run_with_input(&args, &said.join("\n")).ok();
    for end in ["\r", "\n"] {
        let mut terminal = begin(&folder.command(&args));
        terminal.press(said.map(|line| format!("{line}{end}")).concat());
        terminal.wait("all answers", |screen| {
            screen.contents().matches(CUT).count() == said.len()
        });
        let shown = terminal.contents();
        let mut rest = &*shown;
        for (line, answer) in said.iter().zip(piped.lines()) {
            let turn = format!("> {line}\n{answer}\n{CUT}");
            let at = rest
                .find(&turn)
                .unwrap_or_else(|| panic!("{turn}:\n{shown}"));
            rest = &rest[at + turn.len()..];
        }
        terminal.press(CTRL_D);
        assert_eq!(terminal.code(), Some(0));
    }
}

#[test]
fn lines_typed_while_the_model_answers_wait_for_the_prompt() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.md");
    let args = [&["chat", &*tiny, "-p", "Hi", "--quiet"], &ENDLESS[..]].concat();
    // So wide that the line editor does not draw a long line again for each character.
    let mut terminal = start(&folder.command(&args), 5000, 6);
    let row_begins = |screen: &vt100::Screen, text: &str| {
        let (row, _) = screen.cursor_position();
        (0..).zip(text.chars()).all(|(column, c)| {
            let cell = screen.cell(row, column);
            cell.is_some_and(|cell| cell.contents() == c.to_string())
        })
    };
    let answers = |screen: &vt100::Screen| {
        let (_, column) = screen.cursor_position();
        column > 20 && !row_begins(screen, ">")
    };
    terminal.wait("an answer", answers);
    // Longer than the 4,096 bytes that a terminal holds of a line that it edits itself.
    let long = format!("/{}", "x".repeat(4200));
    terminal.press(format!("{long}\rab\r"));
    // Ctrl-C would wait behind them: a terminal holds that many bytes in all before it looks at the next one.
    terminal.kill(Signal::INT);
    terminal.wait("the second line", |screen| row_begins(screen, "> ab"));
    terminal.wait("the next answer", answers);
    // Ctrl-D waits its turn too.
    terminal.press(format!("/export {}\r", file.display()));
    terminal.press(CTRL_D);
    terminal.press(CTRL_C);
    assert_eq!(terminal.code(), Some(0));
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("## You\n\nab\n"), "{text}");
    let typed = fs::read_to_string(folder.path("home/history")).unwrap();
    assert!(typed.lines().any(|line| line == long), "{typed}");
}

/// The messages in a snapshot.
fn saved(file: &str) -> String {
    let snapshot = Snapshot::open(file.as_ref()).unwrap();
    String::from_utf8(snapshot.notes().to_vec()).unwrap()
}

/// Whether the process that runs the tests ignores a signal, as it does under `nohup`.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

#[test]
fn a_signal_ends_a_chat_as_ctrl_d_does() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let cache = ["--prompt-cache", file];
    // The chat inherits the signals that this process ignores.
    let signals = [(Signal::TERM, 143), (Signal::HUP, 129)];
    for (signal, code) in signals
        .into_iter()
        .filter(|(signal, _)| !is_ignored(*signal))
    {
        // While it waits for a line: the last command has been saved.
        let _ = fs::remove_file(file);
        let args = [&["chat", &*tiny], &ANSWERS[..], &cache].concat();
        let mut terminal = begin(&folder.command(&args));
        terminal.press("Hi\rsecond\r/rewind\r");
        terminal.wait_for_prompt_after("[turns left: 1]");
        terminal.kill(signal);
        assert_eq!(terminal.code(), Some(code));
        let notes = saved(file);
        assert!(
            notes.contains("\"Hi\"") && !notes.contains("second"),
            "{notes}"
        );
        let modes = tcgetattr(&terminal.controller).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ICANON | LocalModes::ECHO),
            "{modes:?}"
        );

        // In the middle of an answer: what there is of it is saved.
        let _ = fs::remove_file(file);
        let args = [&["chat", &*tiny, "-p", "Hi"], &ENDLESS[..], &cache].concat();
        let mut terminal = start(&folder.command(&args), 40, 12);
        terminal.wait("an answer", answers_at_length);
        terminal.kill(signal);
        assert_eq!(terminal.code(), Some(code));
        let notes = saved(file);
        assert!(notes.contains("\"role\":\"assistant\""), "{notes}");
        let modes = tcgetattr(&terminal.controller).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ICANON | LocalModes::ECHO),
            "{modes:?}"
        );

        // In a pipe.
        let _ = fs::remove_file(file);
        let mut command = folder.command(&args);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        stdout.read_to_end(&mut vec![]).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(saved(file).contains("\"role\":\"assistant\""));
    }
}

#[test]
fn a_terminal_that_is_closed_loses_nothing() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    let args = [&["chat", &*tiny, "-p", "Hi"], &ENDLESS[..]].concat();
    let args = [&args[..], &["--prompt-cache", file]].concat();
    let mut terminal = start(&folder.command(&args), 40, 12);
    terminal.wait("an answer", answers_at_length);
    let Terminal {
        mut child,
        controller,
        ..
    } = terminal;
    drop(controller);
    child.wait().unwrap();
    assert!(saved(file).contains("\"role\":\"assistant\""));
}

#[test]
fn up_brings_back_a_message_of_several_lines() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny], &ANSWERS[..]].concat();
    let mut terminal = begin(&folder.command(&args));
    terminal.press("\"\"\"ab\r");
    terminal.wait_for("\n. ");
    terminal.press("cd\"\"\"\r");
    terminal.wait_for(CUT);
    terminal.press(UP);
    terminal.wait_for("]\n> \"\"\"ab\ncd\"\"\"");
    terminal.press("\r");
    terminal.wait("an answer", |screen| {
        screen.contents().matches(CUT).count() == 2
    });
    terminal.press("/history\r");
    terminal.wait("both turns", |screen| {
        let contents = screen.contents();
        let (_, shown) = contents.split_once("> /history\n").unwrap_or_default();
        shown.matches("> \"\"\"ab\n. cd\"\"\"\n").count() == 2
    });
    terminal.press(CTRL_D);
    assert_eq!(terminal.code(), Some(0));
    // Another chat has it too.
    let mut terminal = begin(&folder.command(&args));
    terminal.press([UP, UP].concat());
    terminal.wait_for("> \"\"\"ab\ncd\"\"\"");
    terminal.press(CTRL_C);
    terminal.wait_for_prompt_after("cd\"\"\"");
    terminal.press(CTRL_D);
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_snapshot_is_replaced_after_a_yes() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny], &ANSWERS[..]].concat();
    let file = folder.path("talk.kv");
    let file = file.to_str().unwrap();
    folder
        .run_with_input(&args, &format!("Hi\n/save {file}\n"))
        .ok();
    let before = fs::read(file).unwrap();
    let mut terminal = begin(&folder.command(&args));
    terminal.press("ab\r");
    terminal.wait_for(CUT);
    let save = format!("/save {file}\r");
    for no in ["n\r", "\r", "\x03"] {
        terminal.press(&save);
        terminal.wait("a question", |screen| {
            let end = screen.contents();
            let asked = "talk.kv holds a conversation of 1 turn: replace it? [y/N]";
            end.replace('\n', "").trim_end().ends_with(asked)
        });
        terminal.press(no);
        terminal.wait_for_prompt_after("[nothing was written]");
        assert_eq!(fs::read(file).unwrap(), before);
        terminal.press("\x0c");
        terminal.wait("a clear screen", |screen| {
            screen.contents().trim_end() == ">"
        });
    }
    // A line that is no answer is not lost.
    terminal.press(format!("{save}/branches\r"));
    terminal.wait_for("* main         1 turn, ");
    assert_eq!(fs::read(file).unwrap(), before);
    terminal.press(format!("{save}y\r"));
    terminal.wait_for("tokens saved]");
    assert!(saved(file).contains("\"ab\""));
    terminal.press(CTRL_D);
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn the_prompt_names_the_branch_if_there_are_several() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny], &ANSWERS[..]].concat();
    let mut terminal = begin(&folder.command(&args));
    for (command, prompt) in [
        ("/fork idea", "idea>"),
        ("/switch main", "main>"),
        ("/keep", ">"),
    ] {
        terminal.press(format!("{command}\r"));
        terminal.wait(prompt, |screen| {
            let contents = screen.contents();
            let mut rows = contents.trim_end().lines().rev();
            rows.next() == Some(prompt) && rows.nth(1).is_some_and(|row| row.ends_with(command))
        });
    }
    terminal.press(CTRL_D);
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn what_is_typed_answered_and_noted_has_its_colour() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny], &ANSWERS[..]].concat();
    let answer = folder.run_with_input(&args, "Hi\n").ok();
    let typed = vt100::Color::Default;
    let colours = [vt100::Color::Idx(2), vt100::Color::Idx(12)];
    for (variable, [answered, noted]) in [("", colours), ("1", [typed, typed])] {
        let mut command = folder.command(&args);
        if !variable.is_empty() {
            command.env("NO_COLOR", variable);
        }
        let mut terminal = begin(&command);
        terminal.press("Hi\r");
        terminal.wait_for(CUT);
        terminal.press("/fork\r/switch main\r");
        terminal.wait("the turn again", |screen| {
            screen.contents().matches("> Hi").count() == 2
        });
        terminal.press(CTRL_D);
        assert_eq!(terminal.code(), Some(0));
        let screen = terminal.screen.screen();
        let mut found = [0; 3];
        for (at, row) in (0..).zip(screen.rows(0, 120)) {
            let (which, expect) = match () {
                () if row.trim_end() == answer.trim_end() => (0, answered),
                () if row.starts_with('[') || row.contains("lists the commands") => (1, noted),
                () if row.contains('>') => (2, typed),
                () => continue,
            };
            found[which] += 1;
            let colour = screen.cell(at, 0).unwrap().fgcolor();
            assert_eq!(colour, expect, "{row}");
        }
        assert_eq!(found, [2, 4, 5], "{}", terminal.contents());
    }
}

#[test]
fn a_quiet_chat_shows_only_what_is_said() {
    let folder = Folder::new();
    let tiny = folder.file("tiny.gguf", model());
    let args = [&["chat", &*tiny, "--quiet"], &ANSWERS[..]].concat();
    let answer = folder.run_with_input(&args, "Hi\n").ok();
    let mut terminal = start(&folder.command(&args), 40, 12);
    terminal.wait_for(">");
    terminal.press("Hi\r");
    terminal.wait_for_prompt_after(answer.trim_end());
    let want = format!("> Hi\n{answer}>");
    assert_eq!(terminal.contents().trim_end(), want);
    assert!(!terminal.saw_bar);
    terminal.press(CTRL_D);
    assert_eq!(terminal.code(), Some(0));
}
