//! The spec that NNEF's tests start from, and the convolutions that NNEF's own `deconv` and `conv`
//! express.

use tract_core::internal::*;
use tract_deconv::{DataFormat, DeconvSpec, Direction, FilterFormat, GroupedDeconv, Padding, Side};

/// Two spatial axes, with four input channels and six output channels in two groups.
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

/// Returns whether NNEF's own fragments express a convolution.
///
/// It must compute floats, have channels first, and allow fusion. A transposed one needs explicit
/// pads. It may have an output padding if all sizes are known and no size is negative without it. A
/// forward one needs explicit pads or SAME_UPPER, or SAME_LOWER if all sizes are known.
pub fn is_standard(op: &GroupedDeconv, data: &TypedFact) -> bool {
    let spec = &op.spec;
    let concrete = data.shape.is_concrete();
    let sayable = match &spec.padding {
        Padding::Explicit { begin, end } => begin.iter().chain(end).all(|pad| *pad >= 0),
        Padding::SameForward { extra } => concrete || *extra == Side::End,
        Padding::OutputShape { .. } => false,
    };
    let sized = spec.output_padding.iter().all(|padding| *padding == 0)
        || data.shape.as_concrete().is_some_and(|shape| not_negative(spec, &shape[spec.data_format.x_axis()..]));
    spec.data_format == DataFormat::Ncx && op.fusion && sayable && sized && data.datum_type.is_float()
}

/// Returns whether no size is negative without the output padding.
fn not_negative(spec: &DeconvSpec, input: &[usize]) -> bool {
    let Padding::Explicit { begin, end } = &spec.padding else { return false };
    (0..spec.rank()).all(|ax| {
        let extent = (spec.kernel[ax] - 1) * spec.dilations[ax] + 1;
        ((input[ax] - 1) * spec.strides[ax] + extent) as i64 - begin[ax] - end[ax] >= 0
    })
}
