//! `Scene`: a drawing as a list of shapes, independent of the file format.

/// Red, green and blue.
pub(crate) type Color = [u8; 3];

/// Shapes on a white page; later shapes cover earlier ones.
pub(crate) struct Scene {
    pub(crate) width: f32,
    pub(crate) height: f32,
    pub(crate) shapes: Vec<Shape>,
}

pub(crate) enum Shape {
    Rect {
        x: f32,
        y: f32,
        width: f32,
        height: f32,
        fill: Color,
        /// Tooltip, in formats that have one.
        title: Option<String>,
    },
    /// `y` is the base line; `x` is the start, middle or end of the text, depending on the anchor.
    Text {
        x: f32,
        y: f32,
        size: f32,
        fill: Color,
        anchor: Anchor,
        text: String,
    },
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Scene {
    pub(crate) fn new(width: f32, height: f32) -> Scene {
        Scene {
            width,
            height,
            shapes: vec![],
        }
    }

    pub(crate) fn rect(&mut self, [x, y, width, height]: [f32; 4], fill: Color) {
        self.titled([x, y, width, height], fill, None);
    }

    pub(crate) fn titled(
        &mut self,
        [x, y, width, height]: [f32; 4],
        fill: Color,
        title: Option<String>,
    ) {
        self.shapes.push(Shape::Rect {
            x,
            y,
            width,
            height,
            fill,
            title,
        });
    }

    pub(crate) fn text(
        &mut self,
        [x, y]: [f32; 2],
        size: f32,
        fill: Color,
        anchor: Anchor,
        text: impl Into<String>,
    ) {
        self.shapes.push(Shape::Text {
            x,
            y,
            size,
            fill,
            anchor,
            text: text.into(),
        });
    }
}

/// Estimated width of a text.
pub(crate) fn text_width(text: &str, size: f32) -> f32 {
    text.chars().count() as f32 * size * 0.6
}
