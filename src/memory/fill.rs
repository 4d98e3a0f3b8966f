//! A test mode in which new memory is filled with values that show up in results.
//!
//! An element that no task writes is then NaN or noise. Without this it could be the right result
//! that an earlier run left in the same block.

use crate::compute::{NAN, NOISE, Working};
use std::sync::atomic::{AtomicBool, Ordering};
use tract_core::internal::*;

/// Always on in unit tests.
static FILLED: AtomicBool = AtomicBool::new(cfg!(test));

/// For tests: sets whether outputs, and the working memory of tasks, are filled before use. Floats
/// are filled with NaN, integers with bytes of `0xA5`.
pub fn fill_new_memory(on: bool) {
    FILLED.store(on, Ordering::Relaxed);
}

fn is_filled() -> bool {
    FILLED.load(Ordering::Relaxed)
}

/// Fills the bytes of a new tensor in test mode.
pub(super) fn fill(dt: DatumType, bytes: &mut [u8]) {
    if is_filled() {
        bytes.fill(if dt.is_float() { NAN } else { NOISE });
    }
}

/// The value of new elements of working memory.
pub(super) fn new_element<T: Working>() -> T {
    if is_filled() { T::POISON } else { T::default() }
}

/// Fills a task's working memory in test mode.
pub(super) fn forget<T: Working>(memory: &mut [T]) {
    if is_filled() {
        memory.fill(T::POISON);
    }
}
