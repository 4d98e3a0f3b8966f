//! Passes over a tensor between layers: element-wise steps, and the largest values of windows. Planes are shared by threads as layers' work is.

use super::parallel;
use crate::element::{Compute, Element};
use crate::kernel::{Kernels, refill};
use crate::spec::DataFormat;
use crate::tail::{Bound, Tail};
use tract_core::internal::*;

/// Elements that are copied and changed while they are in L1.
const AT_ONCE: usize = 2048;

/// Estimated cost, in vector multiply-adds, of two elements that are read and written.
const TWO_ELEMENTS: u64 = 5;

/// Tasks for each thread.
const TASKS: usize = 4;

/// Element-wise steps on a tensor: one image after the other, each of so many channels.
pub(crate) struct ElementWise<'a, E: Element> {
    pub kernels: &'static Kernels<E::Compute>,
    pub data_format: DataFormat,
    pub channels: usize,
    /// Positions of an image.
    pub positions: usize,
    /// Of each image.
    pub steps: Vec<Vec<Bound<'a, E>>>,
    /// What is changed, where that is not `to` itself.
    pub from: Option<&'a [E]>,
}

impl<E: Element> ElementWise<'_, E> {
    /// Writes all of `to`.
    pub fn run(&self, to: &mut [E]) -> TractResult<()> {
        // runs that stay together: of one channel, or whole cells
        let unit = match self.data_format {
            DataFormat::Ncx => self.positions,
            DataFormat::Nxc => self.channels,
        };
        if to.is_empty() {
            return Ok(());
        }
        let cost = to.len() as u64 / 2 * TWO_ELEMENTS;
        let of_image = self.channels * self.positions;
        let mut tasks: Vec<(usize, &mut [E])> = vec![];
        for (n, image) in to.chunks_mut(of_image).enumerate() {
            let units = (of_image / unit).div_ceil(TASKS * super::threads(cost)) * unit;
            tasks.extend(image.chunks_mut(units).enumerate().map(|(i, part)| (n * of_image + i * units, part)));
        }
        parallel(&mut tasks, cost, |(first, part)| {
            let steps = &self.steps[*first / of_image];
            let tail = Tail { steps, kernels: self.kernels };
            match self.data_format {
                DataFormat::Ncx => {
                    for (i, plane) in part.chunks_mut(unit).enumerate() {
                        let at = *first + i * unit;
                        let tail = tail.of(at / unit % self.channels);
                        self.change(at, AT_ONCE, plane, |at, run| tail.apply(at, 1, run));
                    }
                }
                DataFormat::Nxc => {
                    let (everywhere, placed) = tail.split();
                    let cells = (AT_ONCE / unit).max(1) * unit;
                    self.change(*first, cells, part, |at, run| {
                        everywhere.apply(run);
                        if !placed.is_empty() {
                            for (i, cell) in run.chunks_mut(unit).enumerate() {
                                placed.apply_cell(0, at + i * unit, cell);
                            }
                        }
                    });
                }
            }
            Ok(())
        })
    }

    /// Changes a run by pieces; `at` is the index of its first element.
    fn change(&self, at: usize, piece: usize, to: &mut [E], each: impl Fn(usize, &mut [E::Compute])) {
        let mut wide = vec![];
        for (i, to) in to.chunks_mut(piece).enumerate() {
            let at = at + i * piece;
            if let Some(from) = self.from {
                to.copy_from_slice(&from[at..at + to.len()]);
            }
            match E::as_compute_mut(to) {
                Some(run) => each(at, run),
                None => {
                    wide.resize(to.len(), E::Compute::ZERO);
                    E::widen_slice(to, &mut wide);
                    each(at, &mut wide);
                    E::narrow_slice(&wide, to);
                }
            }
        }
    }
}

/// Windows along an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolAxis {
    /// Sizes of the input and of the output.
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Positions before the input that windows begin at.
    pub pad: usize,
}

impl PoolAxis {
    /// The taps of the window of an output position that meet the input, as input positions.
    fn taps(&self, output: usize) -> impl Iterator<Item = usize> {
        let PoolAxis { input, pad, .. } = *self;
        let begin = output * self.stride;
        let taps = (0..self.kernel).map(move |k| begin + k * self.dilation);
        taps.filter_map(move |at| at.checked_sub(pad).filter(|at| *at < input))
    }
}

/// The largest values of windows of each plane, channels first. `axes` are those of a plane, outermost first. What is not a number is no value, and a window of
/// none has the least number.
pub(crate) fn max_pool<T: Compute>(
    kernels: &'static Kernels<T>,
    axes: &[PoolAxis],
    from: &[T],
    to: &mut [T],
) -> TractResult<()> {
    let [read, written]: [usize; 2] = [axes.iter().map(|a| a.input).product(), axes.iter().map(|a| a.output).product()];
    if to.is_empty() {
        return Ok(());
    }
    let planes = to.len() / written;
    ensure!(planes * read <= from.len(), "input: length={}, {} are needed", from.len(), planes * read);
    let cost = (from.len() as u64 / 2).saturating_mul(TWO_ELEMENTS);
    let of_task = planes.div_ceil(TASKS * super::threads(cost));
    let mut tasks: Vec<_> = to.chunks_mut(of_task * written).enumerate().collect();
    parallel(&mut tasks, cost, |(task, part)| {
        let mut rows = vec![vec![]; axes.len().saturating_sub(1)];
        for (i, to) in part.chunks_mut(written).enumerate() {
            pooled(kernels, axes, &from[(*task * of_task + i) * read..][..read], to, &mut rows)?;
        }
        Ok(())
    })
}

/// One plane; `rows` has room of its own for each axis but the last.
fn pooled<T: Compute>(
    kernels: &Kernels<T>,
    axes: &[PoolAxis],
    from: &[T],
    to: &mut [T],
    rows: &mut [Vec<T>],
) -> TractResult<()> {
    let ([axis, inner @ ..], [row, rows @ ..]) = (axes, rows) else {
        if let [axis] = axes {
            of_row(kernels, axis, from, to);
        }
        return Ok(());
    };
    let (read, written) = (from.len() / axis.input.max(1), to.len() / axis.output);
    for (output, to) in to.chunks_mut(written).enumerate() {
        refill("pooled row", row, read, T::LEAST)?;
        axis.taps(output).for_each(|at| kernels.larger(&from[at * read..][..read], 1, row));
        pooled(kernels, inner, row, to, rows)?;
    }
    Ok(())
}

/// Windows along a row.
fn of_row<T: Compute>(kernels: &Kernels<T>, axis: &PoolAxis, from: &[T], to: &mut [T]) {
    let PoolAxis { input, output, stride, pad, .. } = *axis;
    to.fill(T::LEAST);
    for k in 0..axis.kernel {
        let tap = k * axis.dilation;
        // 0 <= o·stride + tap - pad < input
        let begin = pad.saturating_sub(tap).div_ceil(stride);
        let end = (input + pad).saturating_sub(tap).div_ceil(stride).min(output);
        if begin < end {
            kernels.larger(&from[begin * stride + tap - pad..], stride, &mut to[begin..end]);
        }
    }
}
