//! Specs from a few numbers.

use tract_core::internal::*;
use tract_deconv::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};

/// Returns a channels-first spec without padding, with one stride for all axes. `channels` holds
/// the input channels, the output channels and the groups.
pub fn unpadded(direction: Direction, channels: (usize, usize, usize), kernel: &[usize], stride: usize) -> DeconvSpec {
    let (in_channels, out_channels, group) = channels;
    let rank = kernel.len();
    DeconvSpec {
        direction,
        data_format: DataFormat::Ncx,
        filter_format: if direction == Direction::Forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
        in_channels,
        out_channels,
        group,
        kernel: kernel.into(),
        strides: tvec!(stride; rank),
        dilations: tvec!(1; rank),
        padding: Padding::zero(rank),
        output_padding: tvec!(0; rank),
    }
}
