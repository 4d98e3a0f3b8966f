//! The algorithms, one a file. None knows of ONNX, and none holds unsafe code.

pub(crate) mod reference;

/// What every strategy reads besides the filter.
pub(crate) struct Operands<'a, E> {
    /// In the problem's input shape.
    pub input: &'a [E],
    /// One value per output channel, over all groups.
    pub bias: Option<&'a [E]>,
}
