//! The orders of the axes of data and filters.

use tract_core::internal::*;

/// The position of the channel axis in an activation tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataFormat {
    /// `[N, C, X..]`, channels before the spatial axes.
    Ncx,
    /// `[N, X.., C]`, channels last.
    Nxc,
}

impl DataFormat {
    /// Returns the index of the channel axis in a tensor of `rank` axes.
    pub fn c_axis(self, rank: usize) -> usize {
        match self {
            DataFormat::Ncx => 1,
            DataFormat::Nxc => rank - 1,
        }
    }

    /// Returns the index of the first spatial axis.
    pub fn x_axis(self) -> usize {
        match self {
            DataFormat::Ncx => 2,
            DataFormat::Nxc => 1,
        }
    }

    /// Returns the shape of a tensor from batch size, channels and spatial sizes.
    pub fn shape<D: Clone>(self, n: D, c: D, spatial: impl IntoIterator<Item = D>) -> TVec<D> {
        let mut shape = tvec!(n);
        match self {
            DataFormat::Ncx => {
                shape.push(c);
                shape.extend(spatial);
            }
            DataFormat::Nxc => {
                shape.extend(spatial);
                shape.push(c);
            }
        }
        shape
    }
}

/// The order of the filter's axes. `I` and `O` are the channels, `X` the kernel's spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterFormat {
    /// `[Cin, Cout/group, K..]`: ONNX ConvTranspose, and OpenVINO's backprop filters once their
    /// group and input axes are merged.
    Iox,
    /// `[Cout/group, Cin, K..]`: oneDNN Graph's OIX.
    Oix,
    /// `[K.., Cin, Cout/group]`: oneDNN Graph's XIO.
    Xio,
    /// `[K.., Cout/group, Cin]`: oneDNN Graph's XOI.
    Xoi,
    /// `[Cout, Cin/group, K..]`, with the output channels ordered by group: ordinary (forward)
    /// convolutions.
    GroupedOix,
}

impl FilterFormat {
    /// Returns `(input axis, output axis, first kernel axis)` for a filter with `spatial` kernel
    /// axes.
    pub(crate) fn axes(self, spatial: usize) -> (usize, usize, usize) {
        match self {
            FilterFormat::Iox => (0, 1, 2),
            FilterFormat::Oix | FilterFormat::GroupedOix => (1, 0, 2),
            FilterFormat::Xio => (spatial, spatial + 1, 0),
            FilterFormat::Xoi => (spatial + 1, spatial, 0),
        }
    }

    /// Returns `(input axis, output axis, first kernel axis)` for a filter of rank two or more.
    pub(crate) fn axes_of(self, filter_rank: usize) -> (usize, usize, usize) {
        self.axes(filter_rank - 2)
    }

    /// Returns the kernel's spatial shape, from a filter shape of rank two or more.
    pub fn kernel<D: Clone>(self, filter: &[D]) -> TVec<D> {
        let spatial = filter.len() - 2;
        let (_, _, x) = self.axes(spatial);
        filter[x..x + spatial].iter().cloned().collect()
    }

    /// Returns `(in_channels, out_channels)` over all groups, for a filter shape of rank two or
    /// more.
    ///
    /// Returns `None` if a product overflows.
    pub fn channels(self, filter: &[usize], group: usize) -> Option<(usize, usize)> {
        let (i, o, _) = self.axes(filter.len() - 2);
        match self {
            FilterFormat::GroupedOix => Some((filter[i].checked_mul(group)?, filter[o])),
            _ => Some((filter[i], filter[o].checked_mul(group)?)),
        }
    }

    /// Returns the filter's shape for some channels (over all groups) and a kernel.
    pub fn shape(self, in_channels: usize, out_channels: usize, group: usize, kernel: &[usize]) -> TVec<usize> {
        let (i, o, x) = self.axes(kernel.len());
        let mut shape = tvec!(0; kernel.len() + 2);
        shape[x..x + kernel.len()].copy_from_slice(kernel);
        (shape[i], shape[o]) = match self {
            FilterFormat::GroupedOix => (in_channels / group, out_channels),
            _ => (in_channels, out_channels / group),
        };
        shape
    }
}

/// Element strides of a filter viewed as `[group][in channel][out channel][kernel..]`, with
/// channels numbered within the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterStrides {
    /// The stride between groups.
    pub group: usize,
    /// The stride between input channels of a group.
    pub input: usize,
    /// The stride between output channels of a group.
    pub output: usize,
    /// The strides of the kernel's spatial axes.
    pub kernel: TVec<usize>,
}
