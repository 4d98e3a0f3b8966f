//! Each phase as a small dense convolution over the shared grid: inputs are the scalars, output channels the lanes.
//!
//! Where [`phases`](super::phases) keeps a block of input and streams weights, this keeps a chunk of a panel's weights in L1 and
//! streams positions. Channels-last results are stored as they come, channels-first ones through transposed squares.

use super::phases::{Phase, axes_of, phases_of, too_many_phases};
use super::pieces::{Block, Cut, Task, bytes_of_tasks, flat_runs, tasks};
use super::sheets::Sheets;
use super::{Operands, Scratch, parallel};
use crate::element::{Compute, Element};
use crate::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::geometry::AxisPhases;
use crate::kernel::{ChannelTile, Dispatch, Isa, Kernels, Source, Start};
use crate::machine::Machine;
use crate::spec::{DataFormat, Problem};
use crate::tail::Activation;
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// Bytes of a panel's weights that stay in L1 while all positions of a block pass by.
const L1_SHARE: usize = 20 * 1024;

/// Positions that are transposed together, about.
const TRANSPOSED: usize = 128;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelsPlan {
    /// Output channels of a panel.
    pub width: usize,
    /// Output channels of the last panel.
    pub tail_width: usize,
    /// Positions of a register tile.
    pub positions: usize,
    /// Input channels whose weights stay in L1.
    pub chunk: usize,
    /// Whether the input is read in place.
    pub direct: bool,
    /// Whether tiles end where grid rows end, or run over the padding between them.
    pub by_row: bool,
    /// Grid rows of a block.
    pub block_rows: usize,
    /// Grid columns of a block.
    pub block_columns: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Vec<AxisPhases>,
}

impl ChannelsPlan {
    /// Decides, or says why not.
    pub(crate) fn propose(
        problem: &Problem,
        datum_type: DatumType,
        isa: Isa,
        layout: Option<&FilterLayout>,
        machine: &Machine,
    ) -> Result<ChannelsPlan, String> {
        if let Some(reason) = too_many_phases(problem) {
            return Err(reason);
        }
        let forced = match layout {
            None => None,
            Some(FilterLayout::Chunks { width, tail_width, chunk }) => Some((*width, *tail_width, *chunk)),
            Some(other) => return Err(format!("the filter is packed for {other:?}")),
        };
        let (lanes, tiles) = shapes(datum_type, isa);
        let sizes: Vec<usize> = tiles.iter().map(|t| t.0).unique().sorted_unstable_by(|a, b| b.cmp(a)).collect();
        if problem.group_out < lanes {
            return Err(format!("{} output channels a group leave lanes of a vector empty", problem.group_out));
        }
        let axes = axes_of(problem);
        let (y, x) = (&axes[axes.len() - 2], &axes[axes.len() - 1]);
        let taps: usize = axes.iter().map(|a| a.phases.iter().map(|p| p.taps.len()).sum::<usize>()).product();
        let widest = axes.iter().map(|a| a.phases.iter().map(|p| p.taps.len()).max().unwrap_or(0)).product::<usize>();
        let phases: usize = axes.iter().map(|a| a.out_step).product();
        let depth = problem.group_in * taps;
        let element = if matches!(datum_type, DatumType::F16 | DatumType::F32) { 4 } else { 8 };
        let direct = matches!(datum_type, DatumType::F32 | DatumType::F64)
            && axes.iter().all(|a| a.in_step == 1 && a.shifts() == [0] && a.grid == a.input);

        let mut best: Option<ChannelsPlan> = None;
        for (positions, nv) in tiles.into_iter().filter(|(positions, nv)| positions * nv >= 6) {
            let width = nv * lanes;
            let tail_width = (problem.group_out % width).next_multiple_of(lanes);
            let tail_width = if tail_width == 0 { width } else { tail_width };
            let chunk = (L1_SHARE / element / (width * widest.max(1))).clamp(1, problem.group_in.max(1));
            if forced.is_some_and(|f| f != (width, tail_width, chunk)) {
                continue;
            }
            let sheets = |rows, columns| Sheets::new(&axes, rows, columns, false);
            // of L2, sheets take at most half, and so do the sums of one panel and one row of phases
            let sums = x.out_step * width;
            let budget = machine.l2 / 2 / element;
            let least = positions.max(lanes);
            let (block_rows, block_columns) = if y.grid == 1 && y.output == 1 {
                let per_column = problem.group_in * sheets(1, 64.min(x.grid)).channel_stride.div_ceil(64.min(x.grid));
                let columns = budget / if direct { sums } else { sums.max(per_column) };
                (1, columns.max(least).min(x.grid))
            } else {
                let fixed = sheets(1, x.grid).channel_stride;
                let per_row = sheets(2, x.grid).channel_stride.saturating_sub(fixed).max(1);
                let of_sheets = 1 + (budget / problem.group_in.max(1)).saturating_sub(fixed) / per_row;
                let of_sums = budget / (sums * x.grid);
                (if direct { of_sums } else { of_sums.min(of_sheets) }.clamp(1, y.grid), x.grid)
            };
            let block_rows = y.grid.div_ceil(y.grid.div_ceil(block_rows));
            let laid_out = sheets(block_rows, block_columns);
            let pitch = if direct { x.grid } else { laid_out.pitch };
            let flat = (block_rows - 1) * pitch + block_columns;
            let blocks = axes[..axes.len() - 2].iter().map(|a| a.grid).product::<usize>()
                * y.grid.div_ceil(block_rows)
                * x.grid.div_ceil(block_columns);
            let chunks = problem.group_in.div_ceil(chunk);
            let vectors = problem.group_out.div_ceil(lanes);
            let panels = problem.group_out.div_ceil(width);
            let run_cost = |len: usize| {
                (panels - 1).saturating_mul(run_cost(len, positions, nv, &sizes))
                    + run_cost(len, positions, tail_width / lanes, &sizes)
            };
            let (whole, rows) = (run_cost(flat), block_rows.saturating_mul(run_cost(block_columns)));
            // a load and a store for each vector of sums and chunk; then what storing takes
            let summed = (flat * vectors).saturating_mul(phases * chunks);
            let stored =
                (flat * vectors * phases).saturating_mul(if problem.data_format == DataFormat::Nxc { 3 } else { 24 });
            let copied = if direct { 0 } else { laid_out.bytes(problem.group_in, 1) / 2 / lanes * 5 };
            let block = whole.min(rows).saturating_mul(depth).saturating_add(summed);
            let block = block.saturating_add(stored).saturating_add(copied) as u64;
            let cost = block.saturating_mul((blocks * problem.group * problem.batch) as u64);
            if best.as_ref().is_none_or(|b| cost < b.cost) {
                best = Some(ChannelsPlan {
                    width,
                    tail_width,
                    positions,
                    chunk,
                    direct,
                    by_row: rows < whole,
                    block_rows,
                    block_columns,
                    cost,
                    axes: axes.clone(),
                });
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
    }

    /// Bytes that a run takes on one thread, besides operands and output.
    pub(crate) fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let (y, x) = (&self.axes[self.axes.len() - 2], &self.axes[self.axes.len() - 1]);
        let sheets = Sheets::new(&self.axes, self.block_rows, self.block_columns, false);
        let block = if self.direct { 0 } else { sheets.bytes(problem.group_in, element) };
        let positions = self.block_rows.saturating_mul(sheets.pitch).saturating_add(64);
        let per_position = x.out_step * self.width * element;
        let sums = positions.saturating_mul(per_position);
        let transposed = (2 * TRANSPOSED).saturating_mul(per_position);
        let blocks = y.grid.div_ceil(self.block_rows) * x.grid.div_ceil(self.block_columns);
        let working = block.saturating_add(sums).saturating_add(transposed);
        working.saturating_add(bytes_of_tasks(problem, &self.axes, blocks))
    }

    /// The layout of the filter.
    pub fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Chunks { width: self.width, tail_width: self.tail_width, chunk: self.chunk }
    }

    /// Writes the whole output.
    pub(crate) fn run<E: Element>(
        &self,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands)?;
        let block =
            Block { rows: self.block_rows, columns: self.block_columns, least: 8 * self.positions, panel: self.width };
        let cut = Cut::for_threads(problem, &self.axes, &block);
        let mut tasks = tasks(problem, &self.axes, &cut, output)?;
        parallel(&mut tasks, problem.multiply_adds(), |task| prepared.run(task))
    }
}

/// Lanes and the `(positions, nv)` of the tiles whose positions' pointers fit in registers.
fn shapes(datum_type: DatumType, isa: Isa) -> (usize, Vec<(usize, usize)>) {
    fn of<T: Compute>(kernels: &Kernels<T>) -> (usize, Vec<(usize, usize)>) {
        let tiles = kernels.channel_tiles.iter().map(|t| (t.positions, t.nv));
        (kernels.lanes, tiles.filter(|t| t.0 <= 8).collect())
    }
    match datum_type {
        DatumType::F32 | DatumType::F16 => of(f32::kernels(isa)),
        DatumType::F64 => of(f64::kernels(isa)),
        _ => of(i64::kernels(isa)),
    }
}

/// Estimated slots of one (channel, tap) of a run of positions, in tiles of `most` positions and smaller ones for what is left; `sizes` are the tiles'
/// positions, largest first.
fn run_cost(mut len: usize, most: usize, nv: usize, sizes: &[usize]) -> usize {
    let mut cost = 0;
    for positions in sizes.iter().copied().filter(|size| *size <= most) {
        cost += len / positions * ((positions * nv).max(positions + nv).max(8) + 1);
        len %= positions;
    }
    cost
}

struct Panel<T: 'static> {
    first_channel: usize,
    width: usize,
    weights: usize,
    /// The tile of the plan, then smaller ones for the positions that are left.
    tiles: Vec<&'static ChannelTile<T>>,
}

/// Everything that tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a ChannelsPlan,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    sheets: Sheets,
    /// Channels side by side in a cell of the sheets.
    cell: usize,
    /// Over all axes, outermost first.
    phases: Vec<Phase>,
    panels: Vec<Panel<E::Compute>>,
    weights: &'a [E::Compute],
    group_weights: usize,
    /// Padded to panel widths, per group.
    bias: Vec<E::Compute>,
    input: &'a [E],
    tail: &'a [Activation],
    /// Strides of the input: image, channel, spatial axes (at least two).
    strides: (usize, usize, Vec<usize>),
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a ChannelsPlan,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
    ) -> TractResult<Self> {
        let axes = &plan.axes;
        let sheets = Sheets::new(axes, plan.block_rows, plan.block_columns, false);
        let cell = match problem.data_format {
            DataFormat::Ncx => 1,
            DataFormat::Nxc => problem.group_in,
        };
        let offset = |shifts: &[i64]| if plan.direct { 0 } else { cell * sheets.tap(shifts) };
        let (phases, depth) = phases_of(axes, problem.group_in, offset);
        let mut at = 0;
        let panels: Vec<Panel<E::Compute>> = panel_heights(problem.group_out, plan.width, plan.tail_width)
            .map(|(first_channel, width)| {
                let weights = at;
                at += width * depth;
                let nv = width / kernels.lanes;
                let mut tiles: Vec<_> =
                    kernels.channel_tiles.iter().filter(|t| t.nv == nv && t.positions <= plan.positions).collect();
                tiles.reverse();
                ensure!(tiles.last().is_some_and(|t| t.positions == 1), "kernel: a tile of the plan is missing");
                Ok(Panel { first_channel, width, weights, tiles })
            })
            .collect::<TractResult<_>>()?;
        let padded: usize = panels.iter().map(|p| p.width).sum();
        Ok(Prepared {
            plan,
            problem,
            kernels,
            sheets,
            cell,
            phases,
            panels,
            weights: filter.data::<E::Compute>()?,
            group_weights: at,
            bias: super::padded_bias(problem, operands.bias, padded),
            input: operands.input,
            tail: operands.tail,
            strides: super::input_strides(problem, axes.len()),
        })
    }

    fn run(&self, task: &mut Task<E>) -> TractResult<()> {
        E::Compute::with_scratch(|scratch| {
            for g in task.groups.clone() {
                self.run_group(task, g, scratch)?;
            }
            Ok(())
        })
    }

    fn run_group(&self, task: &mut Task<E>, g: usize, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (plan, problem) = (self.plan, self.problem);
        let (y, x) = (&plan.axes[plan.axes.len() - 2], &plan.axes[plan.axes.len() - 1]);
        let first = task.n * self.strides.0 + g * problem.group_in * self.strides.1;
        let spatial = &self.strides.2;
        let (source, pitch, step) = if plan.direct {
            let data = E::as_compute(self.input).context("element: computed in another type")?;
            let step = spatial[spatial.len() - 1];
            let at = task.outer.iter().chain([&task.rows.start, &task.columns.start]).zip(spatial);
            let base = first + at.map(|(at, stride)| at * stride).sum::<usize>();
            let source =
                Source { data, base, channel_stride: self.strides.1, channels: problem.group_in, taps: &[][..] };
            (source, x.grid, step)
        } else {
            let stride = self.sheets.channel_stride;
            let data = scratch.block.of(problem.group_in * stride)?;
            let parts = data.chunks_mut((stride * self.cell).max(1)).enumerate();
            for (part, to) in parts {
                self.sheets.fill_cells(
                    &self.input[first + part * self.cell * self.strides.1..],
                    spatial,
                    self.cell,
                    &task.outer,
                    task.rows.clone(),
                    task.columns.clone(),
                    to,
                );
            }
            let channel_stride = if self.cell == 1 { stride } else { 1 };
            let source = Source { data, base: 0, channel_stride, channels: problem.group_in, taps: &[][..] };
            (source, self.sheets.pitch, self.cell)
        };
        let flat = (task.rows.len() - 1) * pitch + task.columns.len();
        // squares that are transposed may run over the last position
        let padded = flat + self.kernels.lanes;
        let (columns, per_outer) = (x.out_step, y.out_step * x.out_step);
        let (count, len) = if plan.by_row { (task.rows.len(), task.columns.len()) } else { (1, flat) };
        let runs = (0..count).map(|row| row * pitch..row * pitch + len);
        let channels = task.channels.clone();
        for panel in self.panels.iter().filter(|p| channels.contains(&p.first_channel)) {
            for o in 0..task.pieces.outer_phases.len() {
                let first = task.pieces.outer_phases[o] * per_outer;
                for (ry, phases) in self.phases[first..first + per_outer].chunks(columns).enumerate() {
                    let sums = scratch.tile.of(columns * padded * panel.width)?;
                    for (phase, sums) in phases.iter().zip(sums.chunks_mut(padded * panel.width)) {
                        self.sum(g, panel, phase, &source, step, runs.clone(), sums);
                    }
                    crate::tail::apply(self.tail, sums);
                    let sums = &*sums;
                    match problem.data_format {
                        DataFormat::Nxc => self.store_cells(task, (g, o, ry), panel, (flat, padded, pitch), sums),
                        DataFormat::Ncx => {
                            let buffers = (&mut scratch.ragged, &mut scratch.row);
                            self.store_rows(task, (g, o, ry), panel, (flat, padded, pitch), sums, buffers)?
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// One phase of one panel over runs of a block's positions.
    #[expect(clippy::too_many_arguments)]
    fn sum(
        &self,
        g: usize,
        panel: &Panel<E::Compute>,
        phase: &Phase,
        source: &Source<E::Compute>,
        step: usize,
        runs: impl Iterator<Item = Range<usize>> + Clone,
        sums: &mut [E::Compute],
    ) {
        let bias = g * (self.bias.len() / self.problem.group) + panel.first_channel;
        let mut start = Start::Bias(&self.bias[bias..bias + panel.width]);
        let weights = &self.weights[g * self.group_weights + panel.weights + phase.weights * panel.width..];
        let channels = if phase.taps.is_empty() { 1 } else { source.channels };
        for from in (0..channels).step_by(self.plan.chunk) {
            let weights = &weights[from * phase.taps.len() * panel.width..];
            let chunk = Source {
                base: source.base + from * source.channel_stride,
                channels: self.plan.chunk.min(source.channels - from),
                taps: &phase.taps,
                ..*source
            };
            for run in runs.clone() {
                let mut position = run.start;
                for tile in &panel.tiles {
                    while position + tile.positions <= run.end {
                        let source = Source { base: chunk.base + position * step, ..chunk };
                        tile.run(weights, &source, step, start, &mut sums[position * panel.width..], panel.width);
                        position += tile.positions;
                    }
                }
            }
            start = Start::Add;
        }
    }

    /// Channels last: a cell's channels are contiguous, in the sums as in the output.
    fn store_cells(
        &self,
        task: &mut Task<E>,
        (g, o, ry): (usize, usize, usize),
        panel: &Panel<E::Compute>,
        (flat, padded, pitch): (usize, usize, usize),
        sums: &[E::Compute],
    ) {
        let (y, x) = (&self.plan.axes[self.plan.axes.len() - 2], &self.plan.axes[self.plan.axes.len() - 1]);
        let channel = g * self.problem.group_out + panel.first_channel;
        let present = panel.width.min(self.problem.group_out - panel.first_channel);
        for run in flat_runs(0..flat, pitch, task.columns.len()) {
            let cell = (task.rows.start + run.row) * y.out_step + ry;
            if cell >= task.pieces.rows.end {
                break;
            }
            let first = (task.columns.start + run.column) * x.out_step;
            for (rx, sums) in sums.chunks(padded * panel.width).enumerate() {
                let cells = sums[run.at * panel.width..].chunks(panel.width).take(run.len);
                task.pieces.write_cells(o, cell, first + rx, x.out_step, channel..channel + present, cells);
            }
        }
    }

    /// Channels first: sums are transposed, then the phases of a row are interleaved.
    fn store_rows(
        &self,
        task: &mut Task<E>,
        (g, o, ry): (usize, usize, usize),
        panel: &Panel<E::Compute>,
        (flat, padded, pitch): (usize, usize, usize),
        sums: &[E::Compute],
        (transposed, row): (&mut crate::kernel::Aligned<E::Compute>, &mut Vec<E::Compute>),
    ) -> TractResult<()> {
        let (y, x) = (&self.plan.axes[self.plan.axes.len() - 2], &self.plan.axes[self.plan.axes.len() - 1]);
        let lanes = self.kernels.lanes;
        let channels = panel.width.min(task.channels.end - panel.first_channel);
        let chunk = if pitch < TRANSPOSED { TRANSPOSED / pitch * pitch } else { TRANSPOSED };
        for begin in (0..flat).step_by(chunk) {
            let end = (begin + chunk).min(flat);
            let stride = (end - begin).next_multiple_of(lanes);
            let transposed = transposed.of(x.out_step * panel.width * stride)?;
            for (sums, to) in sums.chunks(padded * panel.width).zip(transposed.chunks_mut(panel.width * stride)) {
                for p in (0..end - begin).step_by(lanes) {
                    for m in (0..panel.width).step_by(lanes) {
                        let from = &sums[(begin + p) * panel.width + m..];
                        self.kernels.transpose(from, panel.width, &mut to[m * stride + p..], stride);
                    }
                }
            }
            let mut rows: TVec<&[E::Compute]> = tvec!();
            for run in flat_runs(begin..end, pitch, task.columns.len()) {
                let cell = (task.rows.start + run.row) * y.out_step + ry;
                if cell >= task.pieces.rows.end {
                    break;
                }
                let first = (task.columns.start + run.column) * x.out_step;
                for m in 0..channels {
                    rows.clear();
                    for rx in 0..x.out_step {
                        let at = (rx * panel.width + m) * stride + run.at;
                        rows.push(&transposed[at..at + run.len]);
                    }
                    let channel = task.channel(self.problem, g, panel.first_channel + m);
                    task.pieces.write(self.kernels, channel, o, cell, first, &rows, &[], row)?;
                }
            }
        }
        Ok(())
    }
}
