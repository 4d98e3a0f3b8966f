//! New memory that holds what shows in results, where a test asks for that: an element that nobody writes is no number then, and not the right
//! answer that an earlier run left in the same block.

use crate::compute::{NAN, NOISE, Working};
use std::sync::atomic::{AtomicBool, Ordering};
use tract_core::internal::*;

/// Unit tests have it always.
static FILLED: AtomicBool = AtomicBool::new(cfg!(test));

/// For tests: whether outputs, and working memory that a task gets, are filled before: floats with NaN, integers with bytes of `0xA5`.
pub fn fill_new_memory(on: bool) {
    FILLED.store(on, Ordering::Relaxed);
}

fn is_filled() -> bool {
    FILLED.load(Ordering::Relaxed)
}

/// Fills the bytes of a new tensor, if a test asks for it.
pub(super) fn fill(dt: DatumType, bytes: &mut [u8]) {
    if is_filled() {
        bytes.fill(if dt.is_float() { NAN } else { NOISE });
    }
}

/// What new elements of working memory are.
pub(super) fn new_element<T: Working>() -> T {
    if is_filled() { T::NOTHING } else { T::default() }
}

/// Fills working memory that a task gets, if a test asks for it.
pub(super) fn forget<T: Working>(memory: &mut [T]) {
    if is_filled() {
        memory.fill(T::NOTHING);
    }
}
