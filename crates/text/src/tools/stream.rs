//! `CallStream`: the arguments of tool calls while their text arrives.

use super::calls::{FUNCTION, FUNCTION_END, OfferedTools, PARAMETER, PARAMETER_END, is_name_char};
use super::literal_copy::{LiteralCopy, Progress};
use super::{CallPiece, ToolCall, ToolPart, partial_suffix};

/// Follows the text of calls in JSON, XML or literals, and gives the arguments of calls of offered tools as they come.
///
/// A call is begun when its name and the beginning of its arguments are there. From then on it is a call, whatever follows. Calls that
/// state their arguments before their name are left to the parser of the whole text.
pub(super) struct CallStream {
    form: Form,
    /// The text that is not read yet.
    held: String,
    /// The calls so far; the last one may go on.
    calls: Vec<ToolCall>,
    /// Whether the last call goes on.
    open: bool,
}

enum Form {
    /// Before the first character that is no blank.
    Unknown,
    /// Before the arguments of a call: an object with its name.
    JsonHead,
    /// In the arguments of a call.
    JsonArguments(JsonCopy),
    /// Before a function or its first parameter.
    XmlHead,
    /// Between the parameters of a function.
    XmlBetween { first: bool },
    /// In the value of a parameter: whether it is a string, and whether the beginning of the value was read.
    XmlValue {
        key: String,
        text: bool,
        begun: bool,
    },
    /// Before the arguments of a call that Gemma writes: `call:NAME{`.
    GemmaHead,
    /// Before the arguments of a call that Python writes: `NAME(`.
    PythonHead,
    /// In arguments that Gemma or Python writes.
    Literals { copy: LiteralCopy, gemma: bool },
    /// In what is not streamed.
    Other,
}

/// The beginning of a call that Gemma writes.
const GEMMA_CALL: &str = "call:";

impl CallStream {
    pub(super) fn new() -> CallStream {
        CallStream {
            form: Form::Unknown,
            held: String::new(),
            calls: vec![],
            open: false,
        }
    }

    /// Whether the text stands in a string of a call's JSON arguments.
    pub(super) fn in_json_string(&self) -> bool {
        matches!(&self.form, Form::JsonArguments(copy) if copy.in_string)
    }

    /// Whether a call was begun.
    pub(super) fn has_begun(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Appends a character of the calls. Adds what it says of them to `out`.
    pub(super) fn push(&mut self, c: char, tools: &OfferedTools, out: &mut Vec<ToolPart>) {
        self.held.push(c);
        while self.step(tools, out) {}
    }

    /// Ends the text. Returns the number of calls that were streamed, and the text after them.
    pub(super) fn finish(
        mut self,
        tools: &OfferedTools,
        out: &mut Vec<ToolPart>,
    ) -> (usize, String) {
        // Values without an end go to the next mark or to the end of the text.
        while let Form::XmlValue { key, text, begun } = &self.form {
            let value = match begun {
                true => &self.held[..],
                false => self.held.strip_prefix('\n').unwrap_or(&self.held),
            };
            let (value, rest) = value.split_at(next_mark(value).unwrap_or(value.len()));
            let value = value.strip_suffix('\n').unwrap_or(value);
            let piece = match (text, begun) {
                (true, true) => escaped(value) + "\"",
                _ => {
                    let name = self.calls.last().map_or("", |call| &call.name);
                    tools.value(name, key, value).to_string()
                }
            };
            self.held = rest.to_owned();
            self.add(&piece, out);
            self.form = Form::XmlBetween { first: false };
            while self.step(tools, out) {}
        }
        if self.open {
            let rest = match &self.form {
                Form::JsonArguments(_) | Form::Literals { .. } => "",
                Form::XmlBetween { first: true } => "{}",
                _ => "}",
            };
            self.add(rest, out);
            self.end(out);
            if !matches!(self.form, Form::Literals { .. }) {
                self.held.clear();
            }
        }
        (self.calls.len(), self.held)
    }

    /// Reads what is certain of the text that is held. Returns whether more may be.
    fn step(&mut self, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        match &mut self.form {
            Form::Unknown => match self.held.trim_start().chars().next() {
                None => false,
                Some('{') => self.go_on(Form::JsonHead),
                Some('<') => self.go_on(Form::XmlHead),
                Some(_) => self.list_or_literals(),
            },
            Form::JsonHead => self.json_head(tools, out),
            Form::JsonArguments(copy) => {
                let (mut text, mut read, mut ended) = (String::new(), 0, false);
                for (at, c) in self.held.char_indices() {
                    ended = copy.push(c, &mut text);
                    read = at + c.len_utf8();
                    if ended {
                        break;
                    }
                }
                self.held.drain(..read);
                self.add(&text, out);
                if ended {
                    self.end(out);
                }
                ended && self.go_on(Form::JsonHead)
            }
            Form::XmlHead => self.xml_head(tools, out),
            Form::XmlBetween { first } => {
                let first = *first;
                self.xml_between(first, tools, out)
            }
            Form::XmlValue { .. } => self.xml_value(tools, out),
            Form::GemmaHead => self.gemma_head(tools, out),
            Form::PythonHead => self.python_head(tools, out),
            Form::Literals { copy, gemma } => {
                let gemma = *gemma;
                let mut piece = String::new();
                let progress = copy.read(&mut self.held, &mut piece);
                self.add(&piece, out);
                self.ended_literals(progress, gemma, out)
            }
            Form::Other => false,
        }
    }

    /// Learns the form of a text that begins with a list, a name or `call:`.
    fn list_or_literals(&mut self) -> bool {
        let begun = self.held.trim_start();
        let form = match begun.strip_prefix('[').map(str::trim_start) {
            Some("") => return false,
            Some(item) if item.starts_with('{') => Form::JsonHead,
            Some(_) => Form::PythonHead,
            None if begun.starts_with(GEMMA_CALL) => Form::GemmaHead,
            None if GEMMA_CALL.starts_with(begun) => return false,
            None => Form::PythonHead,
        };
        self.go_on(form)
    }

    fn gemma_head(&mut self, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        let begun = self.held.trim_start_matches([',', ' ', '\n', '\r', '\t']);
        let Some(head) = begun.strip_prefix(GEMMA_CALL) else {
            if !GEMMA_CALL.starts_with(begun) {
                self.form = Form::Other;
            }
            return false;
        };
        let Some((name, arguments)) = head.split_once('{') else {
            return false;
        };
        let (name, arguments) = (name.trim().to_owned(), arguments.to_owned());
        self.begin_literals(&name, arguments, true, tools, out)
    }

    fn python_head(&mut self, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        let between = ['[', ']', ',', ';', ' ', '\n', '\r', '\t'];
        let begun = self.held.trim_start_matches(between);
        let (name, arguments) = match begun.split_once('(') {
            Some((name, arguments)) => (name, Some(arguments.to_owned())),
            None => (begun, None),
        };
        if !name.chars().all(is_name_char) {
            self.form = Form::Other;
            return false;
        }
        let Some(arguments) = arguments else {
            return false;
        };
        let name = name.to_owned();
        self.begin_literals(&name, arguments, false, tools, out)
    }

    /// Begins a call with arguments that Gemma or Python writes, if its tool was offered and its first key is there.
    fn begin_literals(
        &mut self,
        name: &str,
        mut arguments: String,
        gemma: bool,
        tools: &OfferedTools,
        out: &mut Vec<ToolPart>,
    ) -> bool {
        let mut copy = match gemma {
            true => LiteralCopy::map(),
            false => LiteralCopy::keywords(),
        };
        let mut begun = "{".to_owned();
        let progress = copy.read(&mut arguments, &mut begun);
        if begun.len() == 1 && progress == Progress::Partial {
            return false;
        }
        if !tools.has(name) || begun.len() == 1 {
            self.form = Form::Other;
            return false;
        }
        self.held = arguments;
        self.begin(name, out);
        self.add(&begun, out);
        self.form = Form::Literals { copy, gemma };
        self.ended_literals(progress, gemma, out)
    }

    /// Goes on behind a call's literals if they have ended.
    fn ended_literals(&mut self, progress: Progress, gemma: bool, out: &mut Vec<ToolPart>) -> bool {
        let ended = progress == Progress::Ended;
        if ended {
            self.end(out);
            self.form = match gemma {
                true => Form::GemmaHead,
                false => Form::PythonHead,
            };
        }
        ended
    }

    fn go_on(&mut self, form: Form) -> bool {
        self.form = form;
        true
    }

    fn begin(&mut self, name: &str, out: &mut Vec<ToolPart>) {
        self.calls.push(ToolCall {
            name: name.to_owned(),
            arguments: String::new(),
        });
        self.open = true;
        out.push(ToolPart::Piece(CallPiece {
            name: Some(name.to_owned()),
            arguments: String::new(),
        }));
    }

    /// Ends the open call.
    fn end(&mut self, out: &mut Vec<ToolPart>) {
        self.open = false;
        out.extend(self.calls.last().cloned().map(ToolPart::Call));
    }

    fn add(&mut self, text: &str, out: &mut Vec<ToolPart>) {
        let Some(call) = self.calls.last_mut().filter(|_| !text.is_empty()) else {
            return;
        };
        call.arguments.push_str(text);
        match out.last_mut() {
            Some(ToolPart::Piece(last)) => last.arguments.push_str(text),
            _ => out.push(ToolPart::Piece(CallPiece {
                name: None,
                arguments: text.to_owned(),
            })),
        }
    }

    fn json_head(&mut self, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        // What ends a call, and what stands between calls.
        let between = match self.has_begun() {
            true => &['}', ']', ',', ';', '[', ' ', '\n', '\r', '\t'][..],
            false => &['[', ' ', '\n', '\r', '\t'][..],
        };
        match read_head(self.held.trim_start_matches(between)) {
            Head::Partial => false,
            Head::Other => {
                self.form = Form::Other;
                false
            }
            Head::Whole { name, arguments } if tools.has(&name) => {
                let at = self.held.len() - arguments;
                self.held.drain(..at);
                self.begin(&name, out);
                self.go_on(Form::JsonArguments(JsonCopy::default()))
            }
            Head::Whole { .. } => {
                self.form = Form::Other;
                false
            }
        }
    }

    fn xml_head(&mut self, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        let begun = self.held.trim_start();
        let Some(rest) = begun.strip_prefix(FUNCTION) else {
            if !FUNCTION.starts_with(begun) {
                self.form = Form::Other;
            }
            return false;
        };
        let Some((name, body)) = rest.split_once('>') else {
            return false;
        };
        let name = name.trim().trim_matches('"').to_owned();
        let body = body.trim_start();
        let is_beginning = |mark: &&str| mark.starts_with(body);
        if body.starts_with(PARAMETER) || body.starts_with(FUNCTION_END) {
            if !tools.has(&name) {
                self.form = Form::Other;
                return false;
            }
            self.held = body.to_owned();
            self.begin(&name, out);
            return self.go_on(Form::XmlBetween { first: true });
        }
        // A function may have its arguments as JSON.
        if ![PARAMETER, FUNCTION_END].iter().any(is_beginning) {
            self.form = Form::Other;
        }
        false
    }

    fn xml_between(&mut self, first: bool, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        let begun = self.held.trim_start();
        if let Some(rest) = begun.strip_prefix(FUNCTION_END) {
            self.held = rest.to_owned();
            self.add(if first { "{}" } else { "}" }, out);
            self.end(out);
            return self.go_on(Form::XmlHead);
        }
        let Some((key, rest)) = begun
            .strip_prefix(PARAMETER)
            .and_then(|rest| rest.split_once('>'))
        else {
            return false;
        };
        let key = key.trim().trim_matches('"').to_owned();
        self.held = rest.to_owned();
        let quoted = serde_json::Value::from(&*key);
        let begin = if first { "{" } else { "," };
        self.add(&format!("{begin}{quoted}:"), out);
        let name = self.calls.last().map_or("", |call| &call.name);
        let text = tools.is_text(name, &key);
        self.go_on(Form::XmlValue {
            key,
            text,
            begun: false,
        })
    }

    fn xml_value(&mut self, tools: &OfferedTools, out: &mut Vec<ToolPart>) -> bool {
        let Form::XmlValue { key, text, begun } = &mut self.form else {
            return false;
        };
        let (text, fresh) = (*text, !*begun);
        // A line end before and after a value does not belong to it.
        if fresh && self.held == "\n" {
            return false;
        }
        let value = match fresh {
            true => self.held.strip_prefix('\n').unwrap_or(&self.held),
            false => &self.held,
        };
        let skipped = self.held.len() - value.len();
        let (certain, ended) = certain_value(value);
        let Some(rest) = ended else {
            if !text || certain == 0 {
                return false;
            }
            *begun = true;
            let piece = escaped(&value[..certain]);
            self.held.drain(..skipped + certain);
            let piece = if fresh { format!("\"{piece}") } else { piece };
            self.add(&piece, out);
            return false;
        };
        let piece = match text {
            true => {
                let begin = if fresh { "\"" } else { "" };
                format!("{begin}{}\"", escaped(&value[..certain]))
            }
            false => {
                let name = self.calls.last().map_or("", |call| &call.name);
                tools.value(name, key, &value[..certain]).to_string()
            }
        };
        self.held = value[rest..].to_owned();
        self.add(&piece, out);
        self.go_on(Form::XmlBetween { first: false })
    }
}

/// The number of bytes that certainly belong to a value, and where the text after its end begins, if it has ended. A value may hold the
/// end's text: the end is followed by a parameter or the function's end.
fn certain_value(text: &str) -> (usize, Option<usize>) {
    let cut = |at: usize| at - usize::from(text[..at].ends_with('\n'));
    // Without an end of its own, a value goes to the next mark.
    let mark = next_mark(text);
    for (at, end) in text.match_indices(PARAMETER_END) {
        let after = text[at + end.len()..].trim_start();
        if after.starts_with(PARAMETER) || after.starts_with(FUNCTION_END) {
            return (cut(at), Some(text.len() - after.len()));
        }
        if PARAMETER.starts_with(after) || FUNCTION_END.starts_with(after) {
            return (cut(at).min(mark.map_or(at, cut)), None);
        }
    }
    let partial = [PARAMETER_END, PARAMETER, FUNCTION_END].map(|mark| partial_suffix(text, mark));
    let partial = partial.into_iter().max().unwrap_or(0);
    (cut(mark.unwrap_or(text.len() - partial)), None)
}

/// Where the first mark that follows a value begins.
fn next_mark(text: &str) -> Option<usize> {
    let marks = [PARAMETER, FUNCTION_END].map(|mark| text.find(mark));
    marks.into_iter().flatten().min()
}

/// A text as it stands within a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The beginning of a call in JSON.
enum Head {
    /// It may become one.
    Partial,
    /// The call's name, and the length of the text from its arguments on.
    Whole {
        name: String,
        arguments: usize,
    },
    Other,
}

/// Reads `{"name": NAME, "arguments": {`, up to the last brace.
fn read_head(text: &str) -> Head {
    let mut rest = text;
    let mut name = None;
    for expected in ["{", "\"name\"", ":", "NAME", ",", "KEY", ":", "{"] {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Head::Partial;
        }
        let len = match expected {
            "NAME" | "KEY" => match string_len(rest) {
                Ok(len) => len,
                Err(head) => return head,
            },
            mark if rest.starts_with(mark) => mark.len(),
            mark if mark.starts_with(rest) => return Head::Partial,
            _ => return Head::Other,
        };
        let (token, after) = rest.split_at(len);
        match expected {
            "NAME" => match serde_json::from_str::<String>(token) {
                Ok(found) => name = Some(found),
                Err(_) => return Head::Other,
            },
            "KEY" if !["\"arguments\"", "\"parameters\""].contains(&token) => return Head::Other,
            "{" if name.is_some() => {
                return Head::Whole {
                    name: name.unwrap_or_default(),
                    arguments: rest.len(),
                };
            }
            _ => {}
        }
        rest = after;
    }
    Head::Other
}

/// The length of the JSON string that a text begins with.
fn string_len(text: &str) -> Result<usize, Head> {
    let mut chars = text.char_indices();
    if chars.next().is_none_or(|(_, c)| c != '"') {
        return Err(Head::Other);
    }
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok(at + 1),
            '\\' => _ = chars.next(),
            _ => {}
        }
    }
    Err(Head::Partial)
}

/// Copies a JSON object without the blanks between its parts.
#[derive(Default)]
struct JsonCopy {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonCopy {
    /// Appends a character. Returns whether it ends the object.
    fn push(&mut self, c: char, out: &mut String) -> bool {
        if self.in_string {
            let is_escape = !self.escaped && c == '\\';
            self.in_string = self.escaped || c != '"';
            self.escaped = is_escape;
            match c.is_control() {
                // Models write line ends as they are.
                true => out.push_str(&escaped(c.encode_utf8(&mut [0; 4]))),
                false => out.push(c),
            }
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            ' ' | '\n' | '\r' | '\t' => return false,
            _ => {}
        }
        out.push(c);
        self.depth == 0
    }
}
