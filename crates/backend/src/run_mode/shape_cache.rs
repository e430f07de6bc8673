//! `ShapeCache`: what was made for the last few input shapes.

/// The most entries of a cache: a full prefill chunk and a few odd lengths.
const MAX_ENTRIES: usize = 8;

/// Values by the shapes of inputs, the most recently used first. For steps and graphs whose sizes have no descriptor.
#[derive(Debug)]
pub struct ShapeCache<T>(Vec<(Vec<Vec<usize>>, T)>);

impl<T> Default for ShapeCache<T> {
    fn default() -> ShapeCache<T> {
        ShapeCache(vec![])
    }
}

impl<T> ShapeCache<T> {
    /// The value of these shapes, which is made if it is not there, and whether it was made. The least recently used value goes when there are too many.
    pub fn get_or_make<E>(
        &mut self,
        shapes: &[&[usize]],
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(&mut T, bool), E> {
        let found = self.0.iter().position(|(known, _)| known == shapes);
        match found {
            Some(i) => self.0[..=i].rotate_right(1),
            None => {
                let value = make()?;
                self.0.truncate(MAX_ENTRIES - 1);
                let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
                self.0.insert(0, (shapes, value));
            }
        }
        Ok((&mut self.0[0].1, found.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut cache = ShapeCache::default();
        let mut made = 0;
        let mut get = |cache: &mut ShapeCache<usize>, n: usize| {
            let value = cache.get_or_make(&[&[n]], || {
                made += 1;
                Ok::<_, ()>(made)
            });
            *value.unwrap().0
        };
        for n in 0..8 {
            assert_eq!(get(&mut cache, n), n + 1);
        }
        assert_eq!(get(&mut cache, 0), 1, "used again");
        assert_eq!(get(&mut cache, 8), 9, "the place of 1");
        assert_eq!((get(&mut cache, 0), get(&mut cache, 1)), (1, 10));
    }
}
