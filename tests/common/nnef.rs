//! What NNEF's own `deconv` can say.

use tract_core::internal::*;
use tract_deconv::{DataFormat, Direction, GroupedDeconv, Padding};

/// A transposed convolution of floats, channels first, under explicit pads; with an output padding where sizes are known.
pub fn is_standard(op: &GroupedDeconv, data: &TypedFact) -> bool {
    let spec = &op.spec;
    let explicit = match &spec.padding {
        Padding::Explicit { begin, end } => begin.iter().chain(end).all(|pad| *pad >= 0),
        _ => false,
    };
    let sized = data.shape.is_concrete() || spec.output_padding.iter().all(|padding| *padding == 0);
    let plain = spec.direction == Direction::Transposed && spec.data_format == DataFormat::Ncx && op.fusion;
    plain && explicit && sized && data.datum_type.is_float()
}
