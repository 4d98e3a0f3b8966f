//! A convolution with concrete sizes: what the planner and the strategies compute.

use crate::formats::DataFormat;
use crate::ranges::ceil_div;
use tract_core::internal::*;

/// The direction of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Each input position contributes to `stride`-spaced output positions (ConvTranspose,
    /// backprop-data).
    Transposed,
    /// Each output position reads `stride`-spaced input positions (ordinary convolution).
    Forward,
}

/// One spatial axis with concrete sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// The input size.
    pub input: usize,
    /// The output size.
    pub output: usize,
    /// The kernel size.
    pub kernel: usize,
    /// The stride.
    pub stride: usize,
    /// The dilation.
    pub dilation: usize,
    /// The positions cropped (transposed) or added (forward) before the first one. May be negative.
    pub pad_begin: i64,
}

/// A spec resolved for one input shape. It has all that the planner and the strategies need.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Transposed or forward.
    pub direction: Direction,
    /// The layout of input and output.
    pub data_format: DataFormat,
    /// The batch size, which may be zero.
    pub batch: usize,
    /// The number of groups.
    pub group: usize,
    /// The input channels per group.
    pub group_in: usize,
    /// The output channels per group.
    pub group_out: usize,
    /// The spatial axes, outermost first.
    pub axes: TVec<Axis>,
}

impl Problem {
    /// Returns the input shape in the problem's data format.
    pub fn input_shape(&self) -> TVec<usize> {
        let spatial = self.axes.iter().map(|a| a.input);
        self.data_format.shape(self.batch, self.group * self.group_in, spatial)
    }

    /// Returns the output shape in the problem's data format.
    pub fn output_shape(&self) -> TVec<usize> {
        let spatial = self.axes.iter().map(|a| a.output);
        self.data_format.shape(self.batch, self.group * self.group_out, spatial)
    }

    /// Returns the same arithmetic on fewer axes.
    ///
    /// Axes of one position and one tap are dropped, and neighbouring pointwise axes are merged.
    /// Input, filter and output hold the same elements in the same order.
    pub fn folded(&self) -> Problem {
        let mut axes: TVec<Axis> = tvec!();
        for axis in &self.axes {
            match axes.last_mut() {
                Some(_) if axis.is_single(self.direction) => {}
                Some(last) if last.is_single(self.direction) => *last = axis.clone(),
                Some(last) if last.is_pointwise() && axis.is_pointwise() => {
                    last.input *= axis.input;
                    last.output *= axis.output;
                }
                _ => axes.push(axis.clone()),
            }
        }
        Problem { axes, ..self.clone() }
    }

    /// Returns the size of the output in bytes, for an element type.
    pub fn output_bytes(&self, datum_type: DatumType) -> usize {
        // No overflow: a problem's tensors hold at most `MAX_ELEMENTS`.
        self.output_shape().iter().product::<usize>() * datum_type.size_of()
    }

    /// Returns the number of multiply-adds that affect the output.
    ///
    /// For a transposed convolution their result lies inside the output. For a forward one their
    /// operand lies inside the input.
    pub fn multiply_adds(&self) -> u64 {
        let per_axis = self.axes.iter().map(|a| a.useful_pairs(self.direction));
        let channels = [self.batch, self.group, self.group_in, self.group_out].map(|n| n as u64);
        channels.into_iter().chain(per_axis).fold(1u64, u64::saturating_mul)
    }
}

impl Axis {
    /// Returns whether each output position reads the input position of the same index and no
    /// other.
    fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.pad_begin) == (1, 1, 0) && self.input == self.output
    }

    /// Returns whether the axis has one position on each side, and one tap that joins them.
    fn is_single(&self, direction: Direction) -> bool {
        // The taps of a transposed axis are in the order of its phases, one per step of the stride.
        let one_phase = self.stride == 1 || direction == Direction::Forward;
        (self.input, self.output, self.kernel, self.pad_begin) == (1, 1, 1, 0) && one_phase
    }

    /// Returns the number of pairs of a position and a tap that contribute to the output.
    fn useful_pairs(&self, direction: Direction) -> u64 {
        // The pair (i, k) refers to position i·s + k·d - p of the other side. It counts if that
        // lies within the other side's size.
        let (from, to) = match direction {
            Direction::Transposed => (self.input as i64, self.output as i64),
            Direction::Forward => (self.output as i64, self.input as i64),
        };
        let s = self.stride as i64;
        (0..self.kernel as i64)
            .map(|k| {
                let base = k * self.dilation as i64 - self.pad_begin;
                let first = ceil_div(-base, s).max(0);
                let last = ceil_div(to - base, s).min(from);
                (last - first).max(0) as u64
            })
            .fold(0, u64::saturating_add)
    }
}
