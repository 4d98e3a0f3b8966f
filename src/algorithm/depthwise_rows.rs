//! Sums of shifted rows, for one input channel per group. Rows are written as they are computed.
//!
//! If an output row has one phase, a window moves down the rows ([`Kernels::sum_of_window`]). In
//! small planes whose rows keep their width, vectors may run over row ends instead
//! ([`Kernels::sum_of_plane`]). If an output row has several phases, each is summed over
//! consecutive positions, and they are interleaved in registers ([`Kernels::sum_of_taps`]).

use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::geometry::{Axes, AxisPhases, Phase};
use crate::kernel::KernelSizes;
use crate::kernel::{Bounds, Dispatch, Kernels, PlaneTaps, Results, WeightedTap};
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::input_tile::{CopyPlan, InputTiles};
use crate::layout::taps::taps_before;
use crate::layout::window::{WindowTaps, reads_in_place};
use crate::memory::{Aligned, Scratch};
use crate::output::epilogue::ChannelEpilogue;
use crate::output::partition::{Partition, group_parts};
use crate::output::task::{Task, bytes_of_tasks, run_tasks};
use crate::parallel::threads;
use crate::ranges::{blocks_of, even_blocks};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// Bytes of a channel's input tiles that are processed together. They stay in L2.
const INPUT_TILE_BYTES: usize = 64 * 1024;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepthwiseRows {
    /// The way to sum a channel's results.
    pub variant: Variant,
    /// Grid rows per block.
    pub block_rows: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Axes,
    /// The axes as laid out in the input tiles.
    laid_out: Axes,
}

/// The ways to sum a channel's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Rows of several phases, row by row.
    Rows,
    /// Rows of several phases that follow each other without gaps, a block of rows at a time.
    Runs,
    /// Rows of one phase, by a window that moves down the rows of a copy.
    Windows,
    /// Rows of one phase, by a window that moves down the rows of the input.
    WindowsInPlace,
    /// All rows of the input at once.
    Planes,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Rows => "rows",
            Variant::Runs => "runs of rows",
            Variant::Windows => "windows",
            Variant::WindowsInPlace => "windows in place",
            Variant::Planes => "planes",
        }
    }

    /// Whether each output row has one phase.
    fn has_one_phase(self) -> bool {
        matches!(self, Variant::Windows | Variant::WindowsInPlace | Variant::Planes)
    }

    /// Whether the input is read in place.
    fn is_in_place(self) -> bool {
        matches!(self, Variant::WindowsInPlace | Variant::Planes)
    }
}

/// Bytes of masks that stay in L1 together with the planes.
const MASK_BYTES: usize = 8 * 1024;

/// The largest input step that the window kernels apply when they load. For larger steps, the input
/// tiles are split by step instead.
const DENSE_STEP: usize = 2;

/// The input tiles for blocks of `rows` grid rows. `laid_out` are the axes without the steps that
/// the kernels apply.
fn input_tiles_of(axes: &Axes, laid_out: &Axes, rows: usize, flat: bool) -> InputTiles {
    let (row_step, column_step) = steps(axes, laid_out);
    let columns = axes.columns().grid;
    InputTiles::new(laid_out, (rows - 1) * row_step + 1, (columns - 1) * column_step + 1, flat)
}

/// Returns the rows and columns of the input tiles from one grid position to the next.
fn steps(axes: &Axes, laid_out: &Axes) -> (usize, usize) {
    let step = |from_last: usize| {
        let axis = axes.len() - from_last;
        axes[axis].in_step / laid_out[axis].in_step
    };
    (step(2), step(1))
}

impl Algorithm for DepthwiseRows {
    type Tables = ();

    const READS_PARTS: bool = true;

    fn propose(query: &Query) -> Result<DepthwiseRows, String> {
        let &Query { problem, datum_type, machine, .. } = query;
        if problem.group_in != 1 {
            return Err(format!("{} input channels per group, not one", problem.group_in));
        }
        if query.grouped.is_some() && problem.group_out >= query.sizes.lanes {
            // Its elements hold several channels, or few taps are left.
            return Err(format!(
                "{} output channels of elements of several integers, a dense layer",
                problem.group_out
            ));
        }
        if problem.data_format != DataFormat::Ncx {
            return Err("the rows of a channel are not contiguous in channels-last data".to_string());
        }
        let axes = query.axes()?;
        query.forced(|layout| (*layout == FilterLayout::Phases { mr: 1, last_mr: 1 }).then_some(()))?;
        let (y, x) = (axes.rows(), axes.columns());
        let windows = x.out_step == 1;
        let KernelSizes { lanes, masks, .. } = query.sizes;
        let flat = !windows && y.out_step == 1 && x.output == x.out_step * x.grid;
        let dense = |at: usize, axis: &AxisPhases| {
            let is_dense = windows && at + 2 >= axes.len() && axis.in_step <= DENSE_STEP;
            AxisPhases { in_step: if is_dense { 1 } else { axis.in_step }, ..axis.clone() }
        };
        let laid_out = axes.map(dense);
        let input_tiles = |rows| input_tiles_of(axes, &laid_out, rows, flat);
        let fixed = input_tiles(1).channel_stride;
        let per_row = input_tiles(2).channel_stride.saturating_sub(fixed).max(1);
        let block_rows = (1 + (INPUT_TILE_BYTES / 4).saturating_sub(fixed) / per_row).min(y.grid);
        let positions = |size: fn(&AxisPhases) -> usize| axes.iter().map(size).product::<usize>();
        let taps = positions(|axis| axis.phases.iter().map(|phase| phase.taps.len()).sum());
        let phases = positions(|axis| axis.out_step);
        let rows = positions(|axis| axis.output) / x.output.max(1);
        // Rows that follow each other are summed as one.
        let vectors = match flat {
            true => positions(|axis| axis.output).div_ceil(lanes),
            false => rows.saturating_mul(x.grid.div_ceil(lanes)).saturating_mul(x.out_step),
        };
        let summed = cost::Rows { rows: if flat { 0 } else { rows }, vectors, taps: taps.div_ceil(phases) };
        let several = y.phases.iter().any(|phase| phase.taps.len() > 1);
        let outer = axes.outer().iter().map(|axis| axis.grid).product::<usize>();
        let step = laid_out.columns().in_step;
        let copied = cost::copied_rows(&input_tiles(y.grid), lanes, windows, step) * outer;
        let of_channels = |channel: Cost| channel * problem.group_out;
        let rates = &machine.rates;
        let copying = |channel: Cost| of_channels(channel) + copied;
        let mut variants = match (windows, flat) {
            (true, _) => vec![(Variant::Windows, copying(summed.by_window(x.in_step, several, rates)))],
            (_, true) => vec![(Variant::Runs, copying(summed.interleaved(x.out_step, rates)))],
            (_, false) => vec![(Variant::Rows, copying(summed.interleaved(x.out_step, rates)))],
        };
        // The variants that read the input in place skip the padding, so they need no padded copy.
        if windows && axes.len() == 2 {
            if reads_in_place(y, x, &query.sizes) {
                // With several rows of taps and a step of two, deinterleaving the rows of a copy gains nothing.
                variants.retain(|_| !masks || !several || x.in_step != 2);
                let channel = match several {
                    true => summed.by_window_in_place(x.in_step, rates),
                    false => summed.by_row_in_place(x.in_step, x.near_ends().div_ceil(lanes), rates),
                };
                variants.push((Variant::WindowsInPlace, of_channels(channel)));
            }
            let vectors = (y.output * x.output).div_ceil(lanes);
            let keeps_rows = [y, x].iter().all(|axis| (axis.in_step, axis.out_step) == (1, 1)) && x.input == x.output;
            if masks && keeps_rows && vectors.saturating_mul(taps) <= MASK_BYTES / size_of::<u16>() {
                variants
                    .push((Variant::Planes, of_channels(cost::Rows { vectors, ..summed }.by_plane(several, rates))));
            }
        }
        variants.retain(|(variant, _)| !query.leaves_out(variant.name()));
        // While a copy waits for memory, nothing is summed.
        if query.input_bytes() > machine.l2 && variants.iter().any(|v| v.0 == Variant::WindowsInPlace) {
            variants.retain(|(variant, _)| *variant != Variant::Windows);
        }
        let cheapest = variants.into_iter().min_by(|a, b| a.1.total_order(b.1));
        let (variant, group) = cheapest.ok_or("every variant is left out")?;
        let block_rows = if variant.is_in_place() { y.grid } else { block_rows };
        let moved = cost::beyond_cache(problem, datum_type, machine) + cost::LISTED_ROWS;
        let cost = (group.times(&[problem.group, problem.batch]) + moved).rounded();
        Ok(DepthwiseRows { variant, block_rows, cost, axes: axes.clone(), laid_out })
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn variant(&self) -> &'static str {
        self.variant.name()
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let input_tiles = match self.variant.is_in_place() {
            // Elements of a narrower type are widened.
            true => self.axes.iter().fold(element, |bytes, axis| bytes.saturating_mul(axis.input)),
            false => input_tiles_of(&self.axes, &self.laid_out, self.block_rows, self.variant == Variant::Runs)
                .working_bytes(1, element),
        };
        input_tiles.saturating_add(bytes_of_tasks(problem, &self.axes, 1)).saturating_add(MASK_BYTES)
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Phases { mr: 1, last_mr: 1 }
    }

    fn explain(&self) -> String {
        match self.variant {
            Variant::Planes => "all rows of the input at once, in place",
            Variant::WindowsInPlace => "a window moving down the rows of the input in place",
            Variant::Windows => "a window moving down the rows",
            Variant::Runs => "blocks of rows at a time",
            Variant::Rows => "rows at a time",
        }
        .to_string()
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
        let prepared = Prepared::new(self, problem, kernels, filter, operands)?;
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let to_share = self.cost.saturating_mul(cost::MOVED);
        let outer: usize = self.axes.outer().iter().map(|axis| axis.grid).product();
        let tasks = problem.batch.saturating_mul(outer);
        let groups = group_parts(problem, threads(to_share), tasks);
        // If there are few groups, their output channels are split. Each part copies the input for
        // itself.
        let parts = if threads(to_share) > groups.len() * tasks && groups.iter().all(|g| g.len() == 1) {
            threads(to_share)
        } else {
            1
        };
        let partition = Partition {
            groups,
            channels: even_blocks(problem.group_out, parts),
            rows: blocks_of(y.grid, y.grid),
            columns: blocks_of(x.grid, x.grid),
        };
        run_tasks(problem, &self.axes, &partition, to_share, output, |task, scratch| {
            let mut phases = prepared.empty_phases();
            for rows in &prepared.blocks {
                let copied = !self.variant.is_in_place();
                let copy_plan = copied.then(|| prepared.copy_plan(&task.outer, rows)).transpose()?;
                let block = (rows, copy_plan.as_ref());
                task.groups.clone().try_for_each(|g| prepared.run_group(task, g, block, &mut phases, scratch))?;
            }
            Ok(())
        })
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a DepthwiseRows,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    input_tiles: InputTiles,
    /// Rows and columns of the input tiles from one grid position to the next.
    steps: (usize, usize),
    /// Per phase of outer and row axes, per column phase, its taps: the offset in the input tiles
    /// and the index in a channel's weights.
    rows: Vec<Vec<Vec<(usize, usize)>>>,
    /// Per phase of outer and row axes, the taps of its window. Empty in other variants.
    windows: Vec<WindowTaps>,
    /// The taps, if all rows are summed at once.
    planes: Option<PlaneTaps>,
    weights: &'a [E::Compute],
    /// Weights per output channel.
    taps: usize,
    operands: &'a Operands<'a, E>,
    /// Strides of the input: image, channel, spatial axes (at least two).
    strides: (usize, usize, Vec<usize>),
    /// Blocks of grid rows that are processed together.
    blocks: Vec<Range<usize>>,
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a DepthwiseRows,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &'a Operands<'a, E>,
    ) -> TractResult<Self> {
        let axes = &plan.axes;
        let input_tiles = input_tiles_of(axes, &plan.laid_out, plan.block_rows, plan.variant == Variant::Runs);
        let steps = steps(axes, &plan.laid_out);
        let weights_of = taps_before(axes);
        let taps_of = |phases_of_axes: &[&Phase]| -> Vec<(usize, usize)> {
            let first = weights_of[axes.iter().zip(phases_of_axes).fold(0, |at, (a, p)| at * a.out_step + p.residue)];
            phases_of_axes
                .iter()
                .map(|p| p.taps.iter().map(|t| t.shift))
                .multi_cartesian_product()
                .enumerate()
                .map(|(i, shifts)| (input_tiles.tap(&shifts), first + i))
                .collect()
        };
        let phases_of_axes = || axes.iter().map(|a| &a.phases).multi_cartesian_product();
        let by_window = matches!(plan.variant, Variant::Windows | Variant::WindowsInPlace);
        let windows = phases_of_axes().filter(|_| by_window).enumerate().map(|(i, phases_of_axes)| {
            let [.., y, x] = phases_of_axes[..] else { unreachable!("axes end in rows and columns") };
            if plan.variant == Variant::WindowsInPlace {
                let first = weights_of[y.residue * axes[1].out_step + x.residue];
                let results = axes[0].output.saturating_sub(i).div_ceil(axes[0].out_step);
                return WindowTaps::in_place((&axes[0], y), (&axes[1], x), first, results);
            }
            WindowTaps::new(&taps_of(&phases_of_axes), y, x.taps.len(), input_tiles.pitch, steps)
        });
        let windows = windows.collect();
        let all: Vec<Vec<(usize, usize)>> = phases_of_axes()
            .filter(|_| !plan.variant.has_one_phase())
            .map(|phases_of_axes| taps_of(&phases_of_axes))
            .collect();
        let rows = all.chunks(axes.columns().out_step).map(|row| row.to_vec()).collect();
        let planes = match (plan.variant, &axes[..]) {
            (Variant::Planes, [y, x]) => {
                let shifts = |axis: &'a AxisPhases| axis.phases[0].taps.iter().map(|tap| tap.shift);
                let taps = shifts(y).cartesian_product(shifts(x).collect_vec()).collect_vec();
                Some(PlaneTaps::new(kernels.lanes, y.input, y.output, x.output, &taps))
            }
            _ => None,
        };
        let weights = filter.data::<E::Compute>()?;
        Ok(Prepared {
            plan,
            problem,
            kernels,
            rows,
            windows,
            planes,
            input_tiles,
            steps,
            weights,
            taps: weights.len() / (problem.group * problem.group_out),
            operands,
            strides: crate::layout::input_strides(problem, axes.len()),
            blocks: blocks_of(axes.rows().grid, plan.block_rows),
        })
    }

    /// Plans the copy of the input for a block of grid rows.
    fn copy_plan(&self, outer: &[usize], rows: &Range<usize>) -> TractResult<CopyPlan> {
        let (row_step, column_step) = self.steps;
        let columns = (self.plan.axes.columns().grid - 1) * column_step + 1;
        let rows = rows.start * row_step..(rows.end - 1) * row_step + 1;
        self.input_tiles.copy_plan(&self.strides.2, outer, rows, 0..columns)
    }

    /// Empty lists for the taps of each row phase and column phase.
    fn empty_phases(&self) -> Vec<Vec<Vec<WeightedTap<E::Compute>>>> {
        let (y, x) = (self.plan.axes.rows(), self.plan.axes.columns());
        (0..y.out_step).map(|_| (0..x.out_step).map(|_| vec![]).collect()).collect()
    }

    /// Computes a block of grid rows for all output channels of one group.
    fn run_group(
        &self,
        task: &mut Task<E>,
        g: usize,
        (rows, copy_plan): (&Range<usize>, Option<&CopyPlan>),
        phases: &mut [Vec<Vec<WeightedTap<E::Compute>>>],
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let (axes, problem) = (&self.plan.axes, self.problem);
        let (y, x) = (axes.rows(), axes.columns());
        let taps = self.taps;
        let (input, _) = self.operands.input.channels(task.n, g, 1).from(0);
        let (block, scratch_row) = (&mut scratch.block, &mut scratch.row);
        let source = match copy_plan {
            Some(copy_plan) => {
                // Runs are read in whole vectors. The elements past the last position are never
                // stored, but must exist.
                let input_tiles = block.of(self.input_tiles.channel_stride + self.steps.1 * self.kernels.lanes)?;
                self.input_tiles.fill(self.kernels, copy_plan, input, input_tiles, &mut scratch.ragged)?;
                input_tiles
            }
            None => {
                let plane = &input[..y.input * x.input];
                match E::as_compute(plane) {
                    Some(plane) => plane,
                    None => {
                        let wide = block.of(plane.len())?;
                        E::widen_slice(plane, wide);
                        wide
                    }
                }
            }
        };
        for channel in task.channels.clone() {
            let output_channel = g * problem.group_out + channel;
            let weights = &self.weights[output_channel * taps..];
            let bias = self.operands.bias.map_or(E::Compute::ZERO, |b| b[output_channel].widen());
            let task_channel = task.channel(problem, g, channel);
            let (bounds, epilogue) = self.operands.epilogue.split_bounds();
            let (bias_and_bounds, epilogue) = ((bias, bounds), epilogue.of(output_channel));
            for outer in 0..task.output.outer_phases.len() {
                if self.plan.variant.has_one_phase() {
                    let output_rows = (task_channel, outer, rows.clone());
                    self.run_rows(task, source, &weights[..taps], bias_and_bounds, output_rows, epilogue, scratch_row)?;
                    continue;
                }
                let rows_of_taps = &self.rows[task.output.outer_phases[outer] * y.out_step..];
                for (phases, row) in phases.iter_mut().zip(rows_of_taps) {
                    for (phase, taps) in phases.iter_mut().zip(row) {
                        phase.clear();
                        phase.extend(taps.iter().map(|t| WeightedTap { offset: t.0, weight: weights[t.1] }));
                    }
                }
                if self.plan.variant == Variant::Runs {
                    let at = task.output.index(task_channel, outer, rows.start, 0);
                    if let Some(to) = task.output.whole_rows(x.output, task_channel, outer, rows.clone()) {
                        self.run_elements(source, &phases[0], bias_and_bounds, (epilogue, at), to, scratch_row)?;
                        continue;
                    }
                }
                let end = (rows.end * y.out_step).min(y.output);
                for row in rows.start * y.out_step..end {
                    let source = &source[(row / y.out_step - rows.start) * self.input_tiles.pitch..];
                    let output_row = (task_channel, outer, row);
                    self.run_row(
                        task,
                        source,
                        &phases[row % y.out_step],
                        bias_and_bounds,
                        output_row,
                        epilogue,
                        scratch_row,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Computes all output rows of a channel for a range of grid rows.
    #[expect(clippy::too_many_arguments)]
    fn run_rows(
        &self,
        task: &mut Task<E>,
        source: &[E::Compute],
        weights: &[E::Compute],
        bias_and_bounds: (E::Compute, Option<Bounds<E::Compute>>),
        (task_channel, outer, rows): (usize, usize, Range<usize>),
        epilogue: ChannelEpilogue<E>,
        buffer: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let (y, x) = (self.plan.axes.rows(), self.plan.axes.columns());
        let windows = self.windows.iter().skip(task.output.outer_phases[outer] * y.out_step).take(y.out_step);
        let output_rows = y.outputs(&rows);
        let at = task.output.index(task_channel, outer, output_rows.start, 0);
        let to = task
            .output
            .whole_rows(x.output, task_channel, outer, output_rows.clone())
            .context("task: not of whole rows")?;
        let results = |to: &mut [E::Compute]| {
            if let Some(planes) = &self.planes {
                self.kernels.sum_of_plane(planes, source, weights, bias_and_bounds, to);
            }
            for (ry, taps) in windows.clone().enumerate().take(output_rows.len()) {
                let rows = (output_rows.len() - ry).div_ceil(y.out_step);
                let results = Results { rows, width: x.output, step: y.out_step * x.output };
                taps.sum(self.kernels, source, weights, bias_and_bounds, &results, &mut to[ry * x.output..]);
            }
            epilogue.apply(at, 1, to);
        };
        if let Some(to) = E::as_compute_mut(to) {
            results(to);
            return Ok(());
        }
        let buffer = buffer.of(to.len())?;
        results(buffer);
        E::narrow_slice(buffer, to);
        Ok(())
    }

    /// Computes consecutive elements, the first of which has index `at` in the output.
    fn run_elements(
        &self,
        source: &[E::Compute],
        phases: &[Vec<WeightedTap<E::Compute>>],
        bias_and_bounds: (E::Compute, Option<Bounds<E::Compute>>),
        (epilogue, at): (ChannelEpilogue<E>, usize),
        to: &mut [E],
        row: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        if let Some(to) = E::as_compute_mut(to) {
            self.kernels.sum_of_taps(source, phases, bias_and_bounds, to);
            epilogue.apply(at, 1, to);
            return Ok(());
        }
        let row = row.of(to.len())?;
        self.kernels.sum_of_taps(source, phases, bias_and_bounds, row);
        epilogue.apply(at, 1, row);
        E::narrow_slice(row, to);
        Ok(())
    }

    #[expect(clippy::too_many_arguments)]
    fn run_row(
        &self,
        task: &mut Task<E>,
        source: &[E::Compute],
        phases: &[Vec<WeightedTap<E::Compute>>],
        bias_and_bounds: (E::Compute, Option<Bounds<E::Compute>>),
        (task_channel, outer, output_row): (usize, usize, usize),
        epilogue: ChannelEpilogue<E>,
        row: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let x = self.plan.axes.columns();
        let whole = x.output == x.grid * x.out_step;
        let at = task.output.index(task_channel, outer, output_row, 0);
        if whole && let Some(to) = task.output.whole_rows(x.output, task_channel, outer, output_row..output_row + 1) {
            return self.run_elements(source, phases, bias_and_bounds, (epilogue, at), to, row);
        }
        let row = row.of(x.grid * x.out_step)?;
        self.kernels.sum_of_taps(source, phases, bias_and_bounds, row);
        let row = &mut row[..x.output];
        epilogue.apply(at, 1, row);
        task.output.write_row(task_channel, outer, output_row, row);
        Ok(())
    }
}
