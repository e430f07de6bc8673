//! Allocations whose failure the caller reports, marked for an allocator that ends the process otherwise.

use std::cell::Cell;

thread_local! {
    static IS_FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Runs an allocation, such as a `try_reserve`, whose failure the caller handles.
pub fn fallible<T>(allocate: impl FnOnce() -> T) -> T {
    let outer = IS_FALLIBLE.replace(true);
    let result = allocate();
    IS_FALLIBLE.set(outer);
    result
}

/// Whether this thread is in a call of [`fallible`].
pub fn is_fallible() -> bool {
    IS_FALLIBLE.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_may_be_nested() {
        let inside = fallible(|| (fallible(is_fallible), is_fallible()));
        assert_eq!((inside, is_fallible()), ((true, true), false));
    }
}
