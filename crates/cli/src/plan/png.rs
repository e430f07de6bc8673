//! A scene as PNG: rectangles and a bitmap font, in colours from a list, compressed as runs.
//!
//! Every line is stored as its difference from the one above, so a drawing is mostly zeros, and runs of zeros are all
//! that the compressor looks for.

use super::font;
use super::scene::{Anchor, Color, Scene, Shape};

/// Pixels per unit of the scene.
const SCALE: f32 = 2.0;

pub(super) fn image(scene: &Scene) -> Vec<u8> {
    let mut canvas = Canvas::new(scene);
    scene.shapes.iter().for_each(|shape| canvas.draw(shape));
    canvas.encode()
}

/// Pixels as indices into a list of colours.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    /// At most 256; the first is the page.
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

    /// The index of a colour; the nearest once the list is full.
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
                // What is there is at least a pixel.
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

    fn encode(&self) -> Vec<u8> {
        let mut header = vec![];
        header.extend((self.width as u32).to_be_bytes());
        header.extend((self.height as u32).to_be_bytes());
        // Eight bits, indexed, deflate, filters, not interlaced.
        header.extend([8, 3, 0, 0, 0]);
        let mut lines = Vec::with_capacity(self.pixels.len() + self.height);
        for y in 0..self.height {
            // Filter 2: the difference from the line above.
            lines.push(2);
            let line = &self.pixels[y * self.width..][..self.width];
            let above = y
                .checked_sub(1)
                .map(|y| &self.pixels[y * self.width..][..self.width]);
            match above {
                Some(above) => {
                    lines.extend(line.iter().zip(above).map(|(a, b)| a.wrapping_sub(*b)));
                }
                None => lines.extend(line),
            }
        }
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        chunk(&mut out, b"IHDR", &header);
        chunk(&mut out, b"PLTE", &self.colors.concat());
        chunk(&mut out, b"IDAT", &zlib(&lines));
        chunk(&mut out, b"IEND", &[]);
        out
    }
}

fn pixel(x: f32) -> usize {
    (x * SCALE).round().max(0.0) as usize
}

fn chunk(out: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    out.extend((data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend(name);
    out.extend(data);
    let crc = crc32(&out[start..]);
    out.extend(crc.to_be_bytes());
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

fn adler32(data: &[u8]) -> u32 {
    let (a, b) = data.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// One block with the fixed codes; a run is its first byte and copies of the byte before.
fn zlib(data: &[u8]) -> Vec<u8> {
    let mut bits = Bits {
        out: vec![0x78, 0x01],
        held: 0,
        count: 0,
    };
    bits.push(0b011, 3);
    let mut rest = data;
    while let Some(&byte) = rest.first() {
        let run = rest.iter().take_while(|b| **b == byte).count();
        bits.symbol(u32::from(byte));
        let mut copies = run - 1;
        while copies > 0 {
            // Lengths whose codes need no further bits.
            let (symbol, length) = match copies {
                258.. => (285, 258),
                10.. => (264, 10),
                3.. => (254 + copies as u32, copies),
                _ => (u32::from(byte), 1),
            };
            bits.symbol(symbol);
            if length > 1 {
                // Distance one.
                bits.push(0, 5);
            }
            copies -= length;
        }
        rest = &rest[run..];
    }
    bits.symbol(256);
    let mut out = bits.finish();
    out.extend(adler32(data).to_be_bytes());
    out
}

/// A stream of bits, the lowest first.
struct Bits {
    out: Vec<u8>,
    held: u32,
    count: u32,
}

impl Bits {
    fn push(&mut self, bits: u32, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// A literal, a length or the end, in deflate's fixed code, whose bits come highest first.
    fn symbol(&mut self, symbol: u32) {
        let (code, len) = match symbol {
            0..144 => (0x30 + symbol, 8),
            144..256 => (0x190 + symbol - 144, 9),
            256..280 => (symbol - 256, 7),
            _ => (0xC0 + symbol - 280, 8),
        };
        self.push(code.reverse_bits() >> (32 - len), len);
    }

    fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_standard_ones() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    }

    #[test]
    fn a_small_run_is_what_zlib_reads() {
        // Decoded by hand: 'a', a copy of four, 'b', the end.
        let bytes = zlib(b"aaaaab");
        assert_eq!(bytes[..2], [0x78, 0x01]);
        let bits: Vec<u8> = bytes[2..bytes.len() - 4]
            .iter()
            .flat_map(|byte| (0..8).map(move |i| byte >> i & 1))
            .collect();
        let text: String = bits.iter().map(u8::to_string).collect();
        let expected = "110" // last block, fixed codes (lowest bit first)
            .to_owned()
            + "10010001" // 'a' = 0x30 + 97
            + "0000010" // length 4 = 258
            + "00000" // distance 1
            + "10010010" // 'b'
            + "0000000"; // end
        assert!(text.starts_with(&expected), "{text}");
    }
}
