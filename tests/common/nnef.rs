//! The spec that NNEF's tests start from, and what NNEF's own `deconv` can say.

use tract_core::internal::*;
use tract_deconv::{DataFormat, DeconvSpec, Direction, FilterFormat, GroupedDeconv, Padding};

/// Two axes, four channels to six in two groups.
pub fn plain() -> DeconvSpec {
    DeconvSpec {
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::Iox,
        in_channels: 4,
        out_channels: 6,
        group: 2,
        kernel: tvec!(3, 2),
        strides: tvec!(2, 3),
        dilations: tvec!(2, 1),
        padding: Padding::zero(2),
        output_padding: tvec!(0, 0),
    }
}

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
