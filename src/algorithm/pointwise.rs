//! Passes over a tensor between layers: element-wise steps and pooling.
//!
//! Threads share the planes of a tensor in the same way as the work of layers.

use crate::compute::Compute;
use crate::element::Element;
use crate::kernel::{Kernels, PoolAxis};
use crate::memory::zeros;
use crate::output::epilogue::{Bound, Epilogue};
use crate::parallel::parallel;
use crate::spec::DataFormat;
use tract_core::internal::*;

/// Elements that are copied and changed together. They stay in L1.
const AT_ONCE: usize = 2048;

/// Estimated cost of reading and writing two elements, in vector multiply-adds.
const TWO_ELEMENTS: u64 = 5;

/// Tasks per thread.
const TASKS: usize = 4;

/// Element-wise steps on a tensor of consecutive images with `channels` channels each.
pub(crate) struct ElementWise<'a, E: Element> {
    pub kernels: &'static Kernels<E::Compute>,
    pub data_format: DataFormat,
    pub channels: usize,
    /// Positions per image.
    pub positions: usize,
    /// The steps of each image.
    pub steps: Vec<Vec<Bound<'a, E>>>,
    /// The source of the values. None if `to` itself is changed.
    pub from: Option<&'a [E]>,
}

impl<E: Element> ElementWise<'_, E> {
    /// Writes all of `to`.
    pub fn run(&self, to: &mut [E]) -> TractResult<()> {
        // Elements that must stay in one task: a plane of one channel, or a whole pixel.
        let unit = match self.data_format {
            DataFormat::Ncx => self.positions,
            DataFormat::Nxc => self.channels,
        };
        if to.is_empty() {
            return Ok(());
        }
        let cost = to.len() as u64 / 2 * TWO_ELEMENTS;
        let elements_per_image = self.channels * self.positions;
        let mut tasks: Vec<(usize, &mut [E])> = vec![];
        for (n, image) in to.chunks_mut(elements_per_image).enumerate() {
            let units = (elements_per_image / unit).div_ceil(TASKS * crate::parallel::threads(cost)) * unit;
            tasks.extend(
                image.chunks_mut(units).enumerate().map(|(i, part)| (n * elements_per_image + i * units, part)),
            );
        }
        parallel(&mut tasks, cost, &|(first, part)| {
            let steps = &self.steps[*first / elements_per_image];
            let epilogue = Epilogue { steps, kernels: self.kernels };
            match self.data_format {
                DataFormat::Ncx => {
                    for (i, plane) in part.chunks_mut(unit).enumerate() {
                        let at = *first + i * unit;
                        let epilogue = epilogue.of(at / unit % self.channels);
                        self.change(at, AT_ONCE, plane, |at, run| epilogue.apply(at, 1, run));
                    }
                }
                DataFormat::Nxc => {
                    let (uniform, varying) = epilogue.split();
                    let pixels = (AT_ONCE / unit).max(1) * unit;
                    self.change(*first, pixels, part, |at, run| {
                        uniform.apply(run);
                        varying.apply_pixels(0, at, (run.len() / unit, unit), unit, run);
                    });
                }
            }
            Ok(())
        })
    }

    /// Changes a run of elements, `at_once` at a time. `at` is the index of its first element.
    fn change(&self, at: usize, at_once: usize, to: &mut [E], each: impl Fn(usize, &mut [E::Compute])) {
        let mut wide = vec![];
        for (i, to) in to.chunks_mut(at_once).enumerate() {
            let at = at + i * at_once;
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

/// Writes the maxima of the windows of each plane, or, with `factors`, their sums times the factor
/// of each. Data is channels-first.
///
/// `axes` are the axes of a plane, outermost first.
pub(crate) fn pool<E: Element>(
    kernels: &'static Kernels<E::Compute>,
    axes: &[PoolAxis],
    factors: Option<&[E::Compute]>,
    from: &[E],
    to: &mut [E],
) -> TractResult<()> {
    // The axes of no plane at all may have more positions than can be counted.
    if to.is_empty() {
        return Ok(());
    }
    let [read, written]: [usize; 2] = [axes.iter().map(|a| a.input).product(), axes.iter().map(|a| a.output).product()];
    let planes = to.len() / written.max(1);
    ensure!(to.len() == planes * written, "output: length={}, whole planes of {written} are needed", to.len());
    ensure!(planes * read <= from.len(), "input: length={}, {} are needed", from.len(), planes * read);
    let cost = (from.len() as u64 / 2).saturating_mul(TWO_ELEMENTS);
    let planes_per_task = planes.div_ceil(TASKS * crate::parallel::threads(cost));
    let mut tasks: Vec<_> = to.chunks_mut(planes_per_task * written).enumerate().collect();
    parallel(&mut tasks, cost, &|(task, part)| {
        let inner = |ax: usize| axes[ax + 1..].iter().map(|axis| axis.input).product();
        let mut rows = (0..axes.len() - 1).map(|ax| zeros("pooled row", inner(ax))).collect::<TractResult<Vec<_>>>()?;
        let mut rows: Vec<&mut [E::Compute]> = rows.iter_mut().map(|row| &mut row[..]).collect();
        let mut pooled = |from: &[E::Compute], to: &mut [E::Compute]| {
            kernels.pool(factors.is_some(), axes, from, to, &mut rows);
            if let Some(factors) = factors {
                to.iter_mut().zip(factors).for_each(|(to, factor)| *to = E::Compute::ZERO.mul_add(*to, *factor));
            }
        };
        // A plane and its results, if they are widened.
        let widened = |len: usize| zeros("widened plane", if E::as_compute(from).is_some() { 0 } else { len });
        let (mut wide, mut results) = (widened(read)?, widened(written)?);
        for (i, to) in part.chunks_mut(written).enumerate() {
            let from = &from[(*task * planes_per_task + i) * read..][..read];
            match (E::as_compute(from), E::as_compute_mut(to)) {
                (Some(from), Some(to)) => pooled(from, to),
                _ => {
                    E::widen_slice(from, &mut wide);
                    pooled(&wide, &mut results);
                    E::narrow_slice(&results, to);
                }
            }
        }
        Ok(())
    })
}
