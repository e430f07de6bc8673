//! A scene as SVG.

use super::scene::{Anchor, Color, Scene, Shape};
use std::fmt::Write;

pub(crate) fn text(scene: &Scene) -> String {
    let Scene { width, height, .. } = scene;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, monospace\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for shape in &scene.shapes {
        // Writing to a string does not fail.
        let _ = match shape {
            Shape::Rect {
                x,
                y,
                width,
                height,
                fill,
                title,
            } => {
                let open = format!(
                    "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{}\"",
                    hex(*fill)
                );
                match title {
                    Some(title) => {
                        writeln!(out, "{open}><title>{}</title></rect>", escaped(title))
                    }
                    None => writeln!(out, "{open}/>"),
                }
            }
            Shape::Text {
                x,
                y,
                size,
                fill,
                anchor,
                text,
            } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                writeln!(
                    out,
                    "<text x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{}\">{}</text>",
                    hex(*fill),
                    escaped(text)
                )
            }
        };
    }
    out + "</svg>\n"
}

fn hex([r, g, b]: Color) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Escapes a text. Names come from model files, which are not trusted.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_text() {
        let mut scene = Scene::new(10.0, 10.0);
        scene.text(
            [1.0, 2.0],
            9.0,
            [1, 2, 3],
            Anchor::Start,
            "</text><script>\u{7}\"&",
        );
        let text = text(&scene);
        assert!(
            text.contains(">&lt;/text&gt;&lt;script&gt; &quot;&amp;</text>"),
            "{text}"
        );
    }
}
