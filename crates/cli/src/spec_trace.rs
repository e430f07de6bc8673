//! The page of `--spec-trace`: the tree of every round, with what was accepted.

use kvark::Model;
use kvark::speculative::{RoundTrace, SpecStats};
use std::fmt::Write;

/// The height of a line of a tree, in pixels.
const LINE: usize = 22;
/// The width of a level of a tree, in pixels.
const LEVEL: usize = 132;

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:2em;max-width:90em;background:#fff;color:#222}\
h1{font-size:1.3em}section{border-top:1px solid #ddd;padding:.6em 0}h2{font-size:1em;margin:.2em 0;font-weight:600}\
svg{display:block;overflow:visible}text{font:12px ui-monospace,monospace}.no{fill:#a33}.yes{fill:#176b2c;font-weight:700}\
path{fill:none;stroke:#ccc}path.yes{stroke:#176b2c;stroke-width:2}small{color:#666}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}.yes{fill:#6c6}.no{fill:#d88}path{stroke:#555}path.yes{stroke:#6c6}section{border-color:#444}}";

/// The page.
pub(crate) fn page(model: &Model, stats: &SpecStats) -> String {
    let mean = stats.mean_accepted_length().unwrap_or(0.0);
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Speculation</title><style>{STYLE}</style>\
         <h1>{} rounds, {} of {} candidates accepted, {mean:.2} tokens a round</h1>\
         <p>A round is one forward of the model. Green nodes were accepted, red ones were not; a number is the estimate that a \
         node is accepted if its parent is. The token after the arrow is the model's own next one.</p>",
        stats.rounds, stats.accepted, stats.drafted
    );
    for (index, round) in stats.trace.iter().enumerate() {
        write_round(&mut page, model, index, round);
    }
    page.push_str("</html>\n");
    page
}

fn write_round(page: &mut String, model: &Model, index: usize, round: &RoundTrace) {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    _ = write!(
        page,
        "<section><h2>Round {}: {} + {} <small>{} · proposed in {:.2} ms, verified in {:.2} ms</small></h2>",
        index + 1,
        round.accepted.len() - 1,
        escape(&format!("→ {}", token_text(model, round.bonus))),
        round.proposer.unwrap_or("plain"),
        ms(round.propose_time),
        ms(round.verify_time),
    );
    let places = places(&round.parents);
    let width = (1 + places.iter().map(|place| place.0).max().unwrap_or(0)) * LEVEL;
    let height = (1 + places.iter().map(|place| place.1).max().unwrap_or(0)) * LINE;
    _ = write!(page, "<svg width={width} height={height}>");
    for (node, &(level, line)) in places.iter().enumerate() {
        let class = match round.accepted.contains(&(node as u32)) {
            true => "yes",
            false => "no",
        };
        let (x, y) = (level * LEVEL, line * LINE + LINE / 2);
        if let Some(parent) = round.parents[node] {
            let from = places[parent as usize].1 * LINE + LINE / 2;
            _ = write!(
                page,
                "<path class={class} d=\"M{} {from} C{} {from} {} {y} {} {y}\"/>",
                x - LEVEL + 88,
                x - 30,
                x - 30,
                x - 4,
            );
        }
        let text = escape(&token_text(model, round.tokens[node]));
        let estimate = match node {
            0 => String::new(),
            _ => format!(" {:.2}", round.probabilities[node]),
        };
        _ = write!(
            page,
            "<text class={class} x={x} y={}>{text}{estimate}</text>",
            y + 4
        );
    }
    page.push_str("</svg></section>");
}

/// The level and the line of every node: a first child is on the line of its parent.
fn places(parents: &[Option<u32>]) -> Vec<(usize, usize)> {
    let mut places: Vec<(usize, usize)> = vec![];
    let mut lines = 0;
    let mut has_child = vec![false; parents.len()];
    for parent in parents {
        places.push(match parent {
            None => (0, 0),
            Some(parent) => {
                let (level, line) = places[*parent as usize];
                let first = !std::mem::replace(&mut has_child[*parent as usize], true);
                let line = match first {
                    true => line,
                    false => {
                        lines += 1;
                        lines
                    }
                };
                (level + 1, line)
            }
        });
    }
    places
}

/// The text of a token, shortened, with visible spaces.
fn token_text(model: &Model, token: u32) -> String {
    let text = match model.tokenizer() {
        Ok(tokenizer) => tokenizer.decode(&[token], true),
        Err(_) => token.to_string(),
    };
    let text = text.replace(' ', "·").replace('\n', "⏎");
    match text.char_indices().nth(9) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_children_stay_on_their_parents_line() {
        let parents = [None, Some(0), Some(1), Some(0), Some(3), Some(1)];
        let expected = [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (2, 2)];
        assert_eq!(places(&parents), expected);
    }

    #[test]
    fn text_of_a_model_cannot_change_the_page() {
        assert_eq!(escape("<b>&"), "&lt;b&gt;&amp;");
    }
}
