//! Output tensors that are written whole, so never zero-filled.

use tract_core::internal::*;

/// A tensor for a strategy to overwrite entirely.
///
/// # Errors
/// When the size overflows or the memory can't be had.
pub(crate) fn uninitialized_output(dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    // SAFETY: every strategy writes each element of its output (the property suite poisons outputs to show it), and
    // any bit pattern is a valid value of the number types that reach this.
    unsafe { Tensor::uninitialized_dt(dt, shape) }
}
