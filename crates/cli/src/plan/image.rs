//! Draws a scene as PNG: rectangles and a bitmap font, in the colours of a palette.

use super::font;
use super::scene::{Anchor, Color, Scene, Shape};
use anyhow::Result;

/// Pixels per unit of the scene.
const SCALE: f32 = 2.0;

pub(super) fn png(scene: &Scene) -> Result<Vec<u8>> {
    let mut canvas = Canvas::new(scene);
    scene.shapes.iter().for_each(|shape| canvas.draw(shape));
    canvas.encode()
}

/// Pixels as indices into a list of colours.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    /// The palette: at most 256 colours, the first one is the background.
    colors: Vec<Color>,
}

impl Canvas {
    fn new(scene: &Scene) -> Canvas {
        let (width, height) = (pixel(scene.width), pixel(scene.height));
        Canvas {
            width,
            height,
            pixels: vec![0; width * height],
            colors: vec![[255; 3]],
        }
    }

    /// The index of a colour in the palette; of the nearest one once the palette is full.
    fn color(&mut self, color: Color) -> u8 {
        if let Some(i) = self.colors.iter().position(|c| *c == color) {
            return i as u8;
        }
        if self.colors.len() < 256 {
            self.colors.push(color);
            return (self.colors.len() - 1) as u8;
        }
        let distance = |c: &Color| -> u32 {
            let sides = c.iter().zip(&color);
            sides.map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum()
        };
        let nearest = self
            .colors
            .iter()
            .enumerate()
            .min_by_key(|(_, c)| distance(c));
        nearest.map_or(0, |(i, _)| i as u8)
    }

    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Rect {
                x,
                y,
                width,
                height,
                fill,
                ..
            } => {
                let color = self.color(*fill);
                let (left, top) = (pixel(*x), pixel(*y));
                // A shape is at least one pixel wide and high.
                let right = pixel(x + width).max(left + 1);
                let bottom = pixel(y + height).max(top + 1);
                self.fill(left..right, top..bottom, color);
            }
            Shape::Text {
                x,
                y,
                size,
                fill,
                anchor,
                text,
            } => {
                let color = self.color(*fill);
                let dot = ((size * SCALE / 10.0).round() as usize).max(1);
                let width = text.chars().count() * font::ADVANCE * dot;
                let left = match anchor {
                    Anchor::Start => pixel(*x),
                    Anchor::Middle => pixel(*x).saturating_sub(width / 2),
                    Anchor::End => pixel(*x).saturating_sub(width),
                };
                let top = pixel(*y).saturating_sub(font::BASE * dot);
                for (i, c) in text.chars().enumerate() {
                    self.glyph(left + i * font::ADVANCE * dot, top, dot, c, color);
                }
            }
        }
    }

    fn glyph(&mut self, left: usize, top: usize, dot: usize, c: char, color: u8) {
        for (row, bits) in font::rows(c).into_iter().enumerate() {
            for column in (0..font::WIDTH).filter(|i| bits >> (font::WIDTH - 1 - i) & 1 == 1) {
                let (x, y) = (left + column * dot, top + row * dot);
                self.fill(x..x + dot, y..y + dot, color);
            }
        }
    }

    fn fill(&mut self, x: std::ops::Range<usize>, y: std::ops::Range<usize>, color: u8) {
        let (left, right) = (x.start.min(self.width), x.end.min(self.width));
        for line in y.start.min(self.height)..y.end.min(self.height) {
            self.pixels[line * self.width..][left..right].fill(color);
        }
    }

    /// The canvas as a PNG file with a palette.
    fn encode(&self) -> Result<Vec<u8>> {
        let mut out = vec![];
        let mut encoder = png::Encoder::new(&mut out, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_palette(self.colors.concat());
        // Lines of a drawing are mostly equal to the line above.
        encoder.set_filter(png::Filter::Up);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(out)
    }
}

fn pixel(x: f32) -> usize {
    (x * SCALE).round().max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_read_back_as_it_was_drawn() {
        let mut canvas = Canvas {
            width: 5,
            height: 4,
            pixels: vec![0; 20],
            colors: vec![[255; 3]],
        };
        let red = canvas.color([200, 0, 10]);
        canvas.fill(1..3, 2..9, red);
        let file = canvas.encode().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, canvas.pixels);
        let palette = reader.info().palette.as_deref().unwrap();
        assert_eq!(palette, [255, 255, 255, 200, 0, 10]);
    }
}
