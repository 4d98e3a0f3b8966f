//! The algorithms, one a file. None knows of ONNX, and none holds unsafe code.

pub mod amx;
pub mod col2im;
pub mod depthwise_pixels;
pub mod depthwise_rows;
pub mod direct_channels;
pub mod direct_positions;
pub mod gemv;
pub mod overlap_add;
pub(crate) mod pointwise;
pub(crate) mod reference;
pub mod winograd;

use crate::element::Element;
use crate::output::epilogue::Tail;

/// What every strategy reads besides the filter.
pub(crate) struct Operands<'a, E: Element> {
    /// In the problem's input shape.
    pub input: &'a [E],
    /// One value per output channel, over all groups.
    pub bias: Option<&'a [E]>,
    /// What is applied to the sums before they are stored.
    pub tail: Tail<'a, E>,
}
