//! The boxes that remain when those that overlap better ones are left out.

use crate::Value;
use crate::ops::ArgSort;

/// For each class of each batch, takes the boxes in the order of their scores and leaves out those that overlap a taken one.
///
/// `boxes [batches, n, 4]`, `scores [batches, classes, n]` → i64 `[taken, 3]`: batch, class and box. Of equal scores, the first box is
/// taken first.
#[derive(Clone, Debug, PartialEq)]
pub struct NonMaxSuppression {
    /// The most boxes of a class.
    pub most: usize,
    /// A box is left out if its intersection with a taken one, divided by their union, is greater.
    pub overlap: f32,
    /// Boxes of scores that are not greater are left out.
    pub score: Option<f32>,
    /// Whether a box is its centre, width and height, instead of two opposite corners (y, x, y, x).
    pub centred: bool,
}

impl NonMaxSuppression {
    pub(super) fn evaluate(&self, boxes: &Value, scores: &Value) -> Result<Value, String> {
        let ([batches, count, 4], [same, classes, scored]) = (&boxes.shape[..], &scores.shape[..])
        else {
            return Err("takes boxes [batches, n, 4] and scores [batches, classes, n]".into());
        };
        if batches != same || count != scored {
            return Err(format!(
                "has boxes {:?} for scores {:?}",
                boxes.shape, scores.shape
            ));
        }
        let (Some(corners), Some(scores)) = (boxes.as_f32(), scores.as_f32()) else {
            return Err("takes boxes and scores of type f32".into());
        };
        let corners: Vec<Corners> = corners
            .as_chunks()
            .0
            .iter()
            .map(|numbers| Corners::new(*numbers, self.centred))
            .collect();
        let mut rows = vec![];
        for class in 0..batches * classes {
            let batch = class / classes;
            let boxes = &corners[batch * count..][..*count];
            let scores = &scores[class * count..][..*count];
            for taken in self.taken(boxes, scores) {
                rows.extend([batch as i64, (class % classes) as i64, taken as i64]);
            }
        }
        Ok(Value::i64([rows.len() / 3, 3], rows))
    }

    /// The boxes of one class that remain, best first.
    fn taken(&self, boxes: &[Corners], scores: &[f32]) -> Vec<usize> {
        // A score of NaN is greater than no threshold.
        let passes = |at: &usize| match self.score {
            Some(least) => scores[*at] > least,
            None => !scores[*at].is_nan(),
        };
        let mut order: Vec<usize> = (0..boxes.len()).filter(passes).collect();
        order.sort_by(|a, b| ArgSort::order(&scores[*b], &scores[*a]));
        let mut taken: Vec<usize> = vec![];
        for at in order {
            if taken.len() >= self.most {
                break;
            }
            let hidden = |other: &usize| boxes[at].overlap(&boxes[*other]) > self.overlap;
            if !taken.iter().any(hidden) {
                taken.push(at);
            }
        }
        taken
    }
}

/// A box by its least and greatest coordinates.
struct Corners {
    least: [f32; 2],
    greatest: [f32; 2],
}

impl Corners {
    fn new([a, b, c, d]: [f32; 4], centred: bool) -> Corners {
        let [a, b, c, d] = match centred {
            true => [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0],
            false => [a, b, c, d],
        };
        Corners {
            least: [a.min(c), b.min(d)],
            greatest: [a.max(c), b.max(d)],
        }
    }

    fn area(&self) -> f32 {
        (self.greatest[0] - self.least[0]) * (self.greatest[1] - self.least[1])
    }

    /// Intersection divided by union; 0 if either box is empty.
    fn overlap(&self, other: &Corners) -> f32 {
        let common = |axis: usize| {
            let end = self.greatest[axis].min(other.greatest[axis]);
            (end - self.least[axis].max(other.least[axis])).max(0.0)
        };
        let (shared, own, others) = (common(0) * common(1), self.area(), other.area());
        let union = own + others - shared;
        match own > 0.0 && others > 0.0 && union > 0.0 {
            true => shared / union,
            false => 0.0,
        }
    }
}
