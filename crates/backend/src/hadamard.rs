//! The Hadamard transform of rows that are stored rotated.

/// The largest block: a group of an encoded row. Larger ones mix large elements into groups that have none: the loss of heads of 256 elements
/// was up to four times as high with them (`docs/benchmarks/cache.md`).
const MAX_BLOCK: usize = 32;

/// Transforms a row in place, in blocks of the largest power of two that divides its length, 32 elements at most. The transform is its own
/// inverse up to rounding, and keeps dot products of two rows that it is applied to.
pub fn hadamard(row: &mut [f32]) {
    let block = (1 << row.len().trailing_zeros()).min(MAX_BLOCK);
    if row.is_empty() || block == 1 {
        return;
    }
    let scale = 1.0 / (block as f32).sqrt();
    for block in row.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block.len() {
            for pair in block.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        block.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::TestRng;

    #[test]
    fn the_transform_is_its_own_inverse_and_keeps_products() {
        let mut noise = TestRng::new(4);
        for dim in [1, 2, 7, 12, 64, 80, 96, 128, 256] {
            let [a, b] = [noise.units(dim), noise.units(dim)];
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
            let (mut ta, mut tb) = (a.clone(), b.clone());
            hadamard(&mut ta);
            hadamard(&mut tb);
            assert!((dot(&a, &b) - dot(&ta, &tb)).abs() < 1e-4, "{dim}");
            hadamard(&mut ta);
            assert!(
                a.iter().zip(&ta).all(|(x, y)| (x - y).abs() < 1e-5),
                "{dim}"
            );
        }
        let mut spike = vec![0.0; 64];
        spike[3] = 8.0;
        hadamard(&mut spike);
        let (own, other) = spike.split_at(MAX_BLOCK);
        let height = 8.0 / (MAX_BLOCK as f32).sqrt();
        assert!(
            own.iter().all(|x| (x.abs() - height).abs() < 1e-6),
            "a large element is spread"
        );
        assert!(other.iter().all(|x| *x == 0.0), "within its block");
    }
}
