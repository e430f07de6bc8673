//! The picture of a conversation in `docs/chat.svg`: the screen of a terminal in which the default model answered.
//! `KVARK_UPDATE=1` draws it again.

use crate::support::Folder;
use crate::terminal::Terminal;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

const COLUMNS: u16 = 84;
const ROWS: u16 = 48;
const PICTURE: &str = "../../docs/chat.svg";
/// The command and what is typed.
const COMMAND: [&str; 3] = ["chat", "--temp", "0"];
const MESSAGES: [&str; 7] = [
    "Write a haiku about the sea.",
    "/fork storm",
    "Now with a storm.",
    "/switch main",
    "Now at night.",
    "/branches",
    "/cache",
];

#[test]
fn the_picture_shows_this_command() {
    let Some(model) = crate::real::model() else {
        return;
    };
    let folder = Folder::new();
    folder.link_default_model(&model);
    let mut terminal = Terminal::start_sized(&mut folder.command(&COMMAND), COLUMNS, ROWS);
    // The last row is a prompt, below the message.
    let asks = |screen: &vt100::Screen, message: &str| {
        let contents = screen.contents();
        let (above, last) = contents.trim_end().rsplit_once('\n').unwrap_or_default();
        last.ends_with('>') && above.contains(message)
    };
    let mut said = "/help lists the commands".to_owned();
    for message in MESSAGES {
        let asked = terminal.read_until(|screen| asks(screen, &said));
        assert!(asked, "{}", terminal.contents());
        write!(terminal.controller, "{message}\r").unwrap();
        said = format!("> {message}\n");
    }
    let asked = terminal.read_until(|screen| asks(screen, &said));
    assert!(asked, "{}", terminal.contents());
    let picture = draw(terminal.screen.screen());
    // Ctrl-D.
    terminal.controller.write_all(&[4]).unwrap();
    terminal.read_until(|_| false);
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
    if std::env::var_os("KVARK_UPDATE").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&path, &picture).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed.replace("\r\n", "\n") == picture,
        "docs/chat.svg is not what this command shows; `KVARK_UPDATE=1 cargo test --release --package kvark-cli \
         picture` draws it again. The screen:\n{}",
        terminal.contents()
    );
}

/// Width and height of a character, and the space around the text.
const CELL: (f32, f32) = (8.4, 18.0);
const MARGIN: f32 = 16.0;
const BAR: f32 = 30.0;

/// The screen as an SVG: a window with the shell's line above the rows that have text.
fn draw(screen: &vt100::Screen) -> String {
    let rows: Vec<String> = screen.rows(0, COLUMNS).collect();
    // The last prompt is not a part of the picture.
    let is_prompt = |row: &String| row.trim_end().ends_with('>');
    let used = rows.iter().rposition(is_prompt).unwrap();
    let width = 2.0 * MARGIN + CELL.0 * f32::from(COLUMNS);
    let height = BAR + 2.0 * MARGIN + CELL.1 * (used + 1) as f32;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace\" \
         font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n\
         <g fill=\"#3c414c\"><circle cx=\"20\" cy=\"18\" r=\"6\"/><circle cx=\"40\" cy=\"18\" r=\"6\"/><circle \
         cx=\"60\" cy=\"18\" r=\"6\"/></g>\n"
    );
    let mut line = |at: usize, text: &str, fill: &str| {
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
        let (x, y) = (MARGIN, BAR + MARGIN + CELL.1 * at as f32 + 10.0);
        let length = CELL.0 * text.chars().count() as f32;
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\" textLength=\"{length:.1}\" \
             xml:space=\"preserve\">{escaped}</text>"
        );
    };
    line(0, &format!("$ kvark {}", COMMAND.join(" ")), "#ffffff");
    for (at, row) in (0..).zip(&rows[..used]) {
        let row = row.trim_end();
        let fill = match screen.cell(at, 0).unwrap().fgcolor() {
            vt100::Color::Default => "#ffffff",
            vt100::Color::Idx(2) => "#a5d6a7",
            vt100::Color::Idx(12) => "#8fa3bf",
            other => panic!("{other:?} is not a colour of a chat: {row}"),
        };
        if !row.is_empty() {
            line(usize::from(at) + 1, row, fill);
        }
    }
    out + "</svg>\n"
}
