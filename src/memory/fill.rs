//! New memory that holds what shows in results, where a test asks for that: an element that nobody writes is no number then, and not the right
//! answer that an earlier run left in the same block.

use std::sync::atomic::{AtomicBool, Ordering};
use tract_core::internal::*;

/// Unit tests have it always.
static FILLED: AtomicBool = AtomicBool::new(cfg!(test));

/// What the bytes of floats are filled with: NaN, whatever their size.
const NAN: u8 = 0xff;

/// What those of integers are filled with.
const NOISE: u8 = 0xa5;

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

/// Types that working memory is made of.
pub(crate) trait Working: Copy + Default + 'static {
    /// What no result is made of.
    const NOTHING: Self;
}

impl Working for f32 {
    const NOTHING: f32 = f32::from_bits(u32::from_ne_bytes([NAN; 4]));
}

impl Working for f64 {
    const NOTHING: f64 = f64::from_bits(u64::from_ne_bytes([NAN; 8]));
}

impl Working for i64 {
    const NOTHING: i64 = i64::from_ne_bytes([NOISE; 8]);
}

/// The upper halves of floats.
impl Working for u16 {
    const NOTHING: u16 = u16::from_ne_bytes([NAN; 2]);
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
