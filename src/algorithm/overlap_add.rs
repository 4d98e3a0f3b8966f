//! The products of each input position, for all taps, are added to the output where they overlap.
//!
//! This suits few output channels and long kernels on one axis. Lanes are (output channel, tap)
//! pairs, so short signals fill them as well as long ones. Each output element sums its products in
//! the order of the input positions, independently of the output partition.

use crate::algorithm::chains::longest_chain;
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost;
use crate::geometry::Axes;
use crate::kernel::{Dispatch, Kernels, MOST_POSITIONS, Source, Start, TilePositions, split_positions};
use crate::layout::filter::{FilterLayout, PackedFilter};

use crate::memory::Scratch;
use crate::output::partition::{Block, Partition};
use crate::output::task::{Task, bytes_of_tasks, run_tasks};
use crate::ranges::ceil_div;
use crate::simd::isa::Isa;
use crate::spec::{Axis, Direction, Problem};
use std::ops::Range;
use tract_core::internal::*;

/// The most vectors of columns per register tile.
const VECTORS: usize = 4;

/// The divisor of L2 for the products of a block.
const SHARE_OF_PRODUCTS: usize = 4;

/// The products of the smallest worthwhile block may take this many times L2.
const MOST_OF_L2: usize = 4;

/// The least ratio of a block's positions to its halo, the positions outside the block that reach
/// into it. Each block computes the products of its halo again.
const LEAST_OF_HALOS: usize = 8;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapAdd {
    /// Columns per panel. A column is an (output channel, tap) pair.
    pub width: usize,
    /// Grid positions per block.
    pub block: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Axes,
}

impl Algorithm for OverlapAdd {
    type Tables = ();

    fn propose(query: &Query) -> Result<OverlapAdd, String> {
        let &Query { problem, machine, .. } = query;
        if problem.direction == Direction::Forward {
            return Err("a forward convolution has no overlapping products".to_string());
        }
        let [axis] = &*problem.axes else { return Err(format!("{} spatial axes, not one", problem.axes.len())) };
        if axis.dilation != 1 {
            return Err("dilated taps".to_string());
        }
        let axes = query.axes()?;
        let (lanes, channel_tiles) = (query.sizes.lanes, &query.sizes.channel_tiles);
        let columns = problem.group_out.saturating_mul(axis.kernel);
        let vectors = columns.div_ceil(lanes).min(VECTORS);
        let width = vectors * lanes;
        query.forced(|layout| (*layout == FilterLayout::Vectors { width }).then_some(()))?;
        let columns = columns.next_multiple_of(width);
        let grid = axes[1].grid;
        let halo = axis.kernel.div_ceil(axis.stride);
        let fits = machine.l2 / SHARE_OF_PRODUCTS / query.element / columns;
        let block = fits.max(LEAST_OF_HALOS * halo);
        // This depends on the filter alone, so that a filter packed for one shape serves every
        // other shape.
        if block.saturating_mul(columns) > MOST_OF_L2 * machine.l2 / query.element {
            return Err(format!("blocks of {block} positions with {columns} products each exceed L2"));
        }
        let block = block.clamp(1, grid.max(1));
        let positions = axis.input.saturating_add(halo.saturating_mul(grid.div_ceil(block)));
        let tile = channel_tiles.iter().filter(|t| t.1 == vectors && t.0 <= MOST_POSITIONS).map(|t| t.0).max();
        let tile = tile.ok_or("no kernel has tiles of this many columns")?;
        let multiplications = [positions.div_ceil(tile), columns / width, problem.group_in];
        let multiplied = cost::tile(tile, vectors, 0, true, machine).times(&multiplications);
        let added = cost::ADDED_RUN + cost::ADDED * axis.kernel.div_ceil(lanes);
        let group = multiplied + added.times(&[positions, problem.group_out]) + cost::OVERLAPPING_GROUP;
        let cost = group.times(&[problem.group, problem.batch]).rounded();
        Ok(OverlapAdd { width, block, cost, axes: axes.clone() })
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let axis = &problem.axes[0];
        let columns = problem.group_out.saturating_mul(axis.kernel).next_multiple_of(self.width);
        let positions = self.block.saturating_add(axis.kernel.div_ceil(axis.stride) + 1);
        let row = self.block.saturating_mul(axis.stride);
        let elements = positions.saturating_mul(columns.saturating_add(problem.group_in)).saturating_add(row);
        let blocks = self.axes[1].grid.div_ceil(self.block);
        elements.saturating_mul(element).saturating_add(bytes_of_tasks(problem, &self.axes, blocks))
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Vectors { width: self.width }
    }

    fn explain(&self) -> String {
        format!("{} grid positions at a time", self.block)
    }

    fn tables(&self, _problem: &Problem, _lanes: usize) -> TractResult<()> {
        Ok(())
    }

    fn run<E: Element>(
        &self,
        _tables: &(),
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let axis = &problem.axes[0];
        let halo = axis.kernel.div_ceil(axis.stride);
        let block = Block {
            rows: 1,
            columns: self.block,
            least: LEAST_OF_HALOS * halo,
            panel: problem.group_out,
            step: 1,
            row_step: 1,
            cost: self.cost,
        };
        let partition = Partition::for_threads(problem, &self.axes, &block);
        let prepared = Prepared {
            plan: self,
            problem,
            axis,
            kernels,
            weights: filter.data::<E::Compute>()?,
            operands,
            strides: crate::layout::input_strides(problem, self.axes.len()),
            zeros: vec![E::Compute::ZERO; self.width],
        };
        run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| {
            task.groups.clone().try_for_each(|g| prepared.run_group(task, g, scratch))
        })
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a OverlapAdd,
    problem: &'a Problem,
    axis: &'a Axis,
    kernels: &'static Kernels<E::Compute>,
    weights: &'a [E::Compute],
    operands: &'a Operands<'a, E>,
    /// Strides of the input: image, channel, spatial axes.
    strides: (usize, usize, Vec<usize>),
    zeros: Vec<E::Compute>,
}

impl<E: Element> Prepared<'_, E> {
    fn run_group(&self, task: &mut Task<E>, g: usize, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (problem, axis) = (self.problem, self.axis);
        let outputs = task.output.columns.clone();
        let positions = self.positions(&outputs);
        let taps = axis.kernel;
        let pitch = (problem.group_out * taps).next_multiple_of(self.plan.width);
        let sums = scratch.tile.of(positions.len() * pitch)?;
        self.multiply(task.n, g, positions.clone(), sums, &mut scratch.block)?;
        for co in 0..problem.group_out {
            let channel = g * problem.group_out + co;
            let bias = self.operands.bias.map_or(E::Compute::ZERO, |b| b[channel].widen());
            let row = scratch.row.of(outputs.len())?;
            row.fill(bias);
            for (position, products) in positions.clone().zip(sums.chunks(pitch)) {
                // The first tap's output index, relative to the first output element of the task.
                let at = (position * axis.stride) as i64 - axis.pad_begin - outputs.start as i64;
                let begin = (-at).clamp(0, taps as i64);
                let end = (outputs.len() as i64 - at).clamp(begin, taps as i64);
                let products = &products[co * taps..][begin as usize..end as usize];
                if !products.is_empty() {
                    self.kernels.add(products, &mut row[(at + begin) as usize..][..products.len()]);
                }
            }
            let task_channel = task.channel(problem, g, co);
            let first = task.output.index(task_channel, 0, 0, outputs.start);
            self.operands.epilogue.of(channel).apply(first, task.output.stride(), row);
            task.output.write_row(task_channel, 0, 0, row);
        }
        Ok(())
    }

    /// The input positions that reach a range of output elements.
    fn positions(&self, outputs: &Range<usize>) -> Range<usize> {
        let Axis { input, stride, kernel, pad_begin, .. } = *self.axis;
        let (stride, size) = (stride as i64, input as i64);
        // `position·stride - pad_begin + kernel` exceeds the first output index, and
        // `position·stride - pad_begin` is at most the last.
        let begin = ceil_div(outputs.start as i64 + pad_begin - kernel as i64 + 1, stride).clamp(0, size);
        let end = ceil_div(outputs.end as i64 + pad_begin, stride).clamp(begin, size);
        begin as usize..end as usize
    }

    /// Computes the products of some positions, `[position][column]`.
    fn multiply(
        &self,
        n: usize,
        g: usize,
        positions: Range<usize>,
        sums: &mut [E::Compute],
        copies: &mut crate::memory::Aligned<E::Compute>,
    ) -> TractResult<()> {
        if positions.is_empty() {
            return Ok(());
        }
        let (width, channels) = (self.plan.width, self.problem.group_in);
        let [.., step] = *self.strides.2 else { return Ok(()) };
        let first = n * self.strides.0 + g * channels * self.strides.1 + positions.start * step;
        let input = &self.operands.input.whole()?[first..];
        let (data, channel_stride, step) = match E::as_compute(input) {
            Some(data) => (data, self.strides.1, step),
            None => {
                let count = positions.len();
                let data = copies.of(count * channels)?;
                for (c, to) in data.chunks_mut(count.max(1)).enumerate() {
                    if step == 1 {
                        E::widen_slice(&input[c * self.strides.1..][..count], to);
                    } else {
                        let from = input[c * self.strides.1..].iter().step_by(step);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
                    }
                }
                (&*data, count, 1)
            }
        };
        let pitch = (self.problem.group_out * self.axis.kernel).next_multiple_of(width);
        let panels = pitch / width;
        let tiles: Vec<_> = {
            let vectors = width / self.kernels.lanes;
            let fit =
                self.kernels.channel_tiles.iter().filter(|t| t.nv() == vectors && t.positions() <= MOST_POSITIONS);
            fit.rev().collect()
        };
        ensure!(tiles.last().is_some_and(|t| t.positions() == 1), "kernel: a tile of the plan is missing");
        for panel in 0..panels {
            let weights = &self.weights[(g * panels + panel) * channels * width..][..channels * width];
            let mut start = Start::Bias(&self.zeros);
            let longest = longest_chain(channels, 1);
            for from in (0..channels).step_by(longest) {
                let part = longest.min(channels - from);
                for (tile, first, tiles) in split_positions(positions.len(), tiles.iter().copied()) {
                    let base = first * step + from * channel_stride;
                    let source = Source { data, base, channel_stride, channels: part, taps: &[0], prefetch: false };
                    let to = &mut sums[first * pitch + panel * width..];
                    let positions = TilePositions { tiles, stride: step, out_stride: pitch };
                    tile.run(&weights[from * width..], &source, (start, None), to, positions);
                }
                start = Start::Add;
            }
        }
        Ok(())
    }
}
