//! Sums of weighted pixels, for groups of few channels. Lanes are output channels, so that strides
//! leave no lane empty.
//!
//! Channels-last data is read and written in its own layout, all channels of a row together. If a
//! group has one channel in and out, a vector of output channels reads the same vector of input
//! channels. Otherwise its lanes are gathered, once per input channel of a group.
//!
//! Channels-first data must have one input channel per group. It goes through register transposes on
//! load and on store, some vectors of output channels at a time. The input of a group is read once per
//! output channel, so that a vector of output channels reads one vector.

use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::geometry::{Axes, AxisPhases, OuterTap, Tap};
use crate::kernel::KernelSizes;
use crate::kernel::{Dispatch, Kernels, LaneGather, PixelStarts, PixelSums, PixelTap, PixelTaps, Spaced};
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::taps::taps_before;
use crate::memory::{Aligned, Scratch};
use crate::output::partition::Partition;
use crate::output::task::{Task, bytes_of_tasks, phases_inside, run_tasks};
use crate::output::task_output::{IndexedRun, STAGED_ELEMENTS, STAGING_BYTES};
use crate::parallel::tasks;
use crate::ranges::{blocks_of, unflatten};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// The divisor of L2 for the input of a block. The rest is for its output.
const SHARE_OF_INPUT: usize = 4;

/// Bytes of results that are computed before they are stored, for channels-first and channels-last
/// data.
///
/// Channels-first results stay in L1. Channels-last results are usually computed in place, and with
/// this many rows, few of the pixels that are read belong to the halo.
const RESULT_BYTES: [usize; 2] = [16 * 1024, 256 * 1024];

/// Bytes of a row's pixels that are read for adjacent rows before the next pixels, so that they
/// stay in L1.
const BYTES_BELOW: usize = 8 * 1024;

/// The fewest positions per part of a row. They share the loads of weights.
const LEAST_POSITIONS: usize = 8;

/// Pixels that are transposed together.
const PIXELS_AT_ONCE: usize = 4096;

/// Bytes of channels-first input that are transposed together if a plane is smaller. They stay in
/// L1 together with their results.
const TRANSPOSED_BYTES: usize = 16 * 1024;

/// The most products per sum with gathered lanes, as the sum is one chain.
const LONGEST_SUM: usize = 128;

/// The most taps. There is a list of the taps inside the input for every distinct position near a
/// border.
const MOST_TAPS: usize = 256;

/// The most entries in the list of lane gathers. There is one per vector of output channels and
/// input channel of a group.
const MOST_READS: usize = 4096;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepthwisePixels {
    /// Output channels per vector.
    pub width: usize,
    /// Groups that are computed together. Channels-last data has all groups together.
    /// Channels-first data has the groups of a vector of output channels, or of several vectors if planes are small.
    pub batched_groups: usize,
    /// Elements of the pixels that these groups read and write. Channels-first pixels have an element per output
    /// channel, channels-last ones an element per channel.
    pub depths: (usize, usize),
    /// Grid rows per block.
    pub block_rows: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    /// Whether the data is channels-last.
    channels_last: bool,
    axes: Axes,
    /// The lane gathers, unless a group has one channel in and out.
    gather: Option<LaneGather>,
}

/// The most taps of the rows that a layer keeps between runs. Each has two indices.
const MOST_KEPT_TAPS: usize = 8192;

/// The most grid positions of the outer axes of such a layer.
const MOST_KEPT_POSITIONS: usize = 1024;

impl Algorithm for DepthwisePixels {
    type Tables = Table;

    fn propose(query: &Query) -> Result<DepthwisePixels, String> {
        let &Query { problem, datum_type, machine, .. } = query;
        let KernelSizes { lanes, permutes_lanes: by_permutation, .. } = query.sizes;
        let of_group = || format!("groups of {} to {} channels", problem.group_in, problem.group_out);
        if problem.group_in > 1 && problem.data_format == DataFormat::Ncx {
            return Err(format!("channels-first {}, only one input channel is possible", of_group()));
        }
        let gathered = problem.data_format == DataFormat::Nxc && (problem.group_in, problem.group_out) != (1, 1);
        if gathered && problem.group_out >= lanes {
            return Err(format!("{} fill a vector by themselves", of_group()));
        }
        let reads = problem.group.saturating_mul(problem.group_out).div_ceil(lanes).saturating_mul(problem.group_in);
        if gathered && reads > MOST_READS {
            return Err(format!("{reads} lane gathers are too many to list"));
        }
        let list = gathered.then(|| LaneGather::new(lanes, problem.group, problem.group_in, problem.group_out));
        if let Some(None) = list {
            return Err(format!("{}, of which an output vector reads more than one input vector", of_group()));
        }
        let axes = query.axes()?;
        let taps = problem.axes.iter().fold(1usize, |taps, axis| taps.saturating_mul(axis.kernel));
        if taps > MOST_TAPS {
            return Err(format!("{taps} taps are too many to list for each position near a border"));
        }
        let channels = problem.group * problem.group_out;
        if channels < lanes / 2 {
            return Err(format!("{channels} channels leave most lanes of a vector empty"));
        }
        let width = lanes;
        query.forced(|layout| (*layout == FilterLayout::Pixels { width }).then_some(()))?;
        let chain = problem.group_in.saturating_mul(axes.most_taps());
        if gathered && chain > LONGEST_SUM {
            return Err(format!("{chain} products are too many to sum in one chain"));
        }
        let positions = |size: fn(&AxisPhases) -> usize| axes.iter().map(size).product::<usize>();
        let (input, output) = (positions(|axis| axis.input), positions(|axis| axis.output));
        let out_steps = positions(|axis| axis.out_step);
        let (batched_groups, depths) = match problem.data_format {
            DataFormat::Nxc => (problem.group, (problem.group * problem.group_in, channels)),
            DataFormat::Ncx => {
                let unit = groups_of_vectors(problem, lanes);
                let of_unit = unit * problem.group_out;
                let planes = input.max(output).saturating_mul(of_unit * query.element).max(1);
                let units = (TRANSPOSED_BYTES / planes).clamp(1, problem.group.div_ceil(unit));
                (unit * units, (of_unit * units, of_unit * units))
            }
        };
        let mut plan = DepthwisePixels {
            width,
            batched_groups,
            depths,
            block_rows: 1,
            cost: 0,
            channels_last: problem.data_format == DataFormat::Nxc,
            axes: axes.clone(),
            gather: list.flatten(),
        };
        let budget = machine.l2 / SHARE_OF_INPUT / query.element;
        let (one, two) = (plan.window(1), plan.window(2));
        let per_row = two.saturating_sub(one).max(1);
        let grid = plan.axes.rows().grid;
        plan.block_rows = (1 + budget.saturating_sub(one) / per_row).min(grid);
        let row = plan.axes.last().map_or(0, |x| x.input.max(x.output)).saturating_mul(lanes * query.element);
        let spilled = if row > machine.l2 / 4 { cost::SPILLED } else { Cost::ZERO };
        let copied = match problem.data_format {
            DataFormat::Ncx if problem.group_out > 1 => cost::INTO_PIXELS + cost::REPEATED + spilled,
            DataFormat::Ncx => cost::INTO_PIXELS + spilled,
            DataFormat::Nxc => Cost::ZERO,
        };
        let all_taps = taps;
        // Taps outside of the input are not listed.
        let inside: f64 = plan.axes.iter().map(AxisPhases::share_inside).product();
        let taps = (all_taps.div_ceil(out_steps) as f64 * inside).ceil() as usize;
        let shared = plan.axes.last().is_some_and(|x| {
            let adjacent = |taps: &[Tap]| taps[0].shift.abs_diff(taps[1].shift) == x.in_step as u64;
            x.phases.iter().all(|phase| phase.taps.len() > 1 && phase.taps.windows(2).all(adjacent))
        });
        let summed = match gathered {
            true => cost::gathered_pixels(output, taps.saturating_mul(problem.group_in), shared, by_permutation),
            false => cost::pixels(problem.data_format, output, taps, shared, &machine.rates),
        };
        let runs = plan.axes.last().map_or(0, |x| (output / x.output.max(1)).saturating_mul(x.out_step));
        let runs = cost::RUN_OF_PIXELS * runs;
        let of_taps = match gathered {
            true => cost::CHANNELS,
            false => cost::TAP_OF_PIXELS * all_taps * inside,
        };
        let (edges, beyond) = match (plan.axes.last(), problem.data_format) {
            (None, _) | (_, DataFormat::Nxc) => (Cost::ZERO, Cost::ZERO),
            (Some(x), DataFormat::Ncx) => {
                let border_tap = Cost::new(machine.rates.border_tap);
                let edges = border_tap.times(&[output / x.output.max(1), x.near_ends(), taps]);
                (edges, cost::beyond_cache(problem, datum_type, machine) * machine.rates.pixel_traffic)
            }
        };
        // The rates of layers with one output channel per group were fitted with each pixel copied once.
        let of_copies = match problem.group_out {
            1 => copied * input,
            _ => copied * plan.copied_pixels(input),
        };
        let vectors = (of_taps + of_copies + summed + spilled * output) * channels.div_ceil(lanes) + runs + edges;
        plan.cost = (vectors * problem.batch + beyond).rounded();
        Ok(plan)
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn variant(&self) -> &'static str {
        match (&self.gather, self.depths.0 > self.width) {
            (Some(_), _) => "pixels, lanes gathered",
            (None, _) if self.channels_last => "pixels, lanes loaded",
            (None, true) => "transposed pixels of several vectors",
            (None, false) => "transposed pixels of one vector",
        }
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        // A register transpose may overrun the last pixel by a vector of pixels.
        let beyond = if problem.data_format == DataFormat::Ncx { self.width } else { 0 };
        let pixels = x.output.saturating_mul(self.stored_rows(problem) * y.out_step).saturating_add(beyond);
        let results = pixels.saturating_mul(self.depths.1);
        let window = self.window(self.block_rows);
        // Channels-first windows are copied twice.
        let elements = window.saturating_mul(2).saturating_add(results);
        let blocks = y.grid.div_ceil(self.block_rows);
        elements
            .saturating_mul(element)
            .saturating_add(bytes_of_tasks(problem, &self.axes, blocks))
            .saturating_add(STAGING_BYTES)
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Pixels { width: self.width }
    }

    fn explain(&self) -> String {
        format!("{} rows of {} channels at a time", self.block_rows, self.depths.1)
    }

    fn tables(&self, problem: &Problem, _lanes: usize) -> TractResult<Table> {
        let (outer_axes, _, x) = self.axes.parts();
        let (image, channel, spatial) = crate::layout::input_strides(problem, self.axes.len());
        let mut table = Table {
            weights_of: taps_before(&self.axes),
            strides: (image, channel, spatial),
            outer: vec![],
            rows: vec![],
        };
        let positions = outer_axes.iter().fold(1usize, |all, axis| all.saturating_mul(axis.grid));
        // A volume whose channels are last is read in place, where offsets are others.
        if !outer_axes.is_empty() && (self.channels_last || positions > MOST_KEPT_POSITIONS) {
            return Ok(table);
        }
        let columns = Columns { grid: 0..x.grid, output: 0..x.output, input: 0..x.input };
        let mut kept_taps = 0;
        let mut lists: Vec<Vec<(usize, OuterTaps)>> = vec![];
        let (mut outer, mut kept) = (vec![], vec![]);
        for at in 0..positions {
            let at = unflatten(at, outer_axes.iter().map(|axis| axis.grid));
            let phases = phases_inside(outer_axes, &at);
            let (slices, taps) = self.outer_taps(&at, &phases);
            let taps: Vec<(usize, OuterTaps)> = phases.iter().copied().zip(taps).collect();
            let list = match lists.iter().position(|list| *list == taps) {
                Some(list) => list,
                None => {
                    let slice = self.outer_slice(slices.len());
                    let offset_of = |rank: usize| rank * slice;
                    let rows =
                        self.rows_of(problem, &table.weights_of, &taps, &columns, x.input * self.depths.0, offset_of);
                    let runs = rows.iter().flatten().flat_map(|rows| &rows.pixel_runs);
                    kept_taps += runs.map(|run| run.taps.len()).sum::<usize>();
                    if kept_taps > MOST_KEPT_TAPS {
                        return Ok(table);
                    }
                    lists.push(taps);
                    kept.push(rows);
                    lists.len() - 1
                }
            };
            outer.push((slices, list));
        }
        (table.outer, table.rows) = (outer, kept);
        Ok(table)
    }

    fn run<E: Element>(
        &self,
        table: &Table,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, table, problem, kernels, filter, operands)?;
        let (outer, y, x) = self.axes.parts();
        let wanted = tasks(self.cost).div_ceil(problem.batch.max(1));
        let unit = match problem.data_format {
            DataFormat::Nxc => problem.group,
            DataFormat::Ncx => groups_of_vectors(problem, self.width),
        };
        let units = problem.group.div_ceil(unit);
        let groups = blocks_of(problem.group, units.div_ceil(wanted.min(units)) * unit);
        let outer: usize = outer.iter().map(|axis| axis.grid).product();
        let parts = wanted.div_ceil((groups.len() * outer).max(1));
        // Only single rows are split by columns, so that the input of a task is contiguous.
        let (rows, columns) = if (y.output, y.input) == (1, 1) { (1, parts) } else { (parts, 1) };
        let partition = Partition {
            groups,
            channels: blocks_of(problem.group_out, problem.group_out),
            rows: blocks_of(y.grid, y.grid.div_ceil(rows)),
            columns: blocks_of(x.grid, x.grid.div_ceil(columns)),
        };
        run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| prepared.run(task, scratch))
    }
}

impl DepthwisePixels {
    /// Grid rows whose results are stored together.
    fn stored_rows(&self, problem: &Problem) -> usize {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let row = x.output.saturating_mul(self.depths.1).saturating_mul(y.out_step * size_of::<f32>());
        (RESULT_BYTES[usize::from(problem.data_format == DataFormat::Nxc)] / row).clamp(1, self.block_rows)
    }

    /// The most elements of the input that a block of grid rows reads.
    fn window(&self, rows: usize) -> usize {
        let (outer, y, x) = self.axes.parts();
        let shifts = y.shifts();
        let reach = shifts.last().zip(shifts.first()).map_or(0, |(last, first)| last.abs_diff(*first) as usize);
        let rows = ((rows - 1).saturating_mul(y.in_step)).saturating_add(reach + 1).min(y.input);
        let slices = outer.iter().map(|axis| axis.shifts().len().min(axis.input)).product::<usize>();
        slices.saturating_mul(rows).saturating_mul(x.input).saturating_mul(self.depths.0)
    }

    /// The pixels that all blocks copy, of an input of so many. Each block copies the rows that it reads, and a position of
    /// the outer axes the slices that it reads.
    fn copied_pixels(&self, input: usize) -> f64 {
        let (outer, y, _) = self.axes.parts();
        let blocks = y.grid.div_ceil(self.block_rows);
        let of_block = self.window(y.grid.div_ceil(blocks.max(1))) / self.depths.0.max(1);
        let inside: f64 = outer.iter().map(|axis| axis.grid as f64 * axis.share_inside()).product();
        (blocks.saturating_mul(of_block) as f64 * inside).max(input as f64)
    }

    /// The elements of a slice of the outer axes in the copy of a block that holds so many slices.
    fn outer_slice(&self, slices: usize) -> usize {
        self.window(self.block_rows) / slices.max(1)
    }

    /// Returns the taps of the outer axes that are inside the input at a grid position, for some phases.
    ///
    /// The first list has the slices of the input that these taps read, in ascending order.
    fn outer_taps(&self, at: &[usize], phases: &[usize]) -> (TVec<usize>, Vec<OuterTaps>) {
        let taps: Vec<Vec<OuterTap>> = phases.iter().map(|phase| self.axes.outer_taps(at, *phase)).collect();
        let slices: TVec<usize> = taps.iter().flatten().map(|tap| tap.slice).sorted_unstable().dedup().collect();
        let rank = |tap: &OuterTap| (tap.index, slices.partition_point(|other| *other < tap.slice));
        let taps = taps.iter().map(|taps| taps.iter().map(rank).collect()).collect();
        (slices, taps)
    }

    /// Returns the grid rows of each phase of the outer axes, with its taps, and of each phase of the row axis.
    fn rows_of(
        &self,
        problem: &Problem,
        weights_of: &[usize],
        outer: &[(usize, OuterTaps)],
        columns: &Columns,
        row_stride: usize,
        offset_of: impl Fn(usize) -> usize,
    ) -> Vec<Vec<Rows>> {
        let y = self.axes.rows();
        let phases = outer.iter().cartesian_product(0..y.out_step);
        let rows = |((phase, taps), ry): (&(usize, OuterTaps), usize)| {
            let phases = (phase * y.out_step + ry, ry);
            self.rows(problem, weights_of, phases, taps, columns, row_stride, &offset_of)
        };
        phases.map(rows).collect()
    }

    /// Returns the grid rows of a phase of the outer axes and the row axis, grouped by their taps.
    #[expect(clippy::too_many_arguments, reason = "the sizes of a task and of the layer")]
    fn rows(
        &self,
        problem: &Problem,
        weights_of: &[usize],
        (phase, ry): (usize, usize),
        outer: &[(usize, usize)],
        columns: &Columns,
        row_stride: usize,
        offset_of: impl Fn(usize) -> usize,
    ) -> Vec<Rows> {
        let depth = self.depths.0;
        let weights_per_tap = self.width * problem.group_in;
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let phase_runs: Vec<_> = (0..x.out_step).map(|rx| runs(x, rx)).collect();
        let phases = unflatten(phase, self.axes[..self.axes.len() - 1].iter().map(|axis| axis.out_step));
        let pixel_run =
            |rx: usize, (grid, x_taps, x_least): &(Range<usize>, Vec<Inside>, i64), y_taps: &[Inside], y_least| {
                let residues =
                    self.axes.iter().zip(phases.iter().chain([&rx])).map(|(axis, p)| axis.phases[*p].residue);
                let steps = self.axes.iter().map(|axis| axis.out_step);
                let first = weights_of[residues.zip(steps).fold(0, |at, (residue, step)| at * step + residue)];
                let (row_taps, column_taps) = (y.phases[ry].taps.len(), x.phases[rx].taps.len());
                let mut taps = Vec::with_capacity(outer.len() * y_taps.len() * x_taps.len());
                for (o, slice) in outer {
                    for (i, dy) in y_taps {
                        for (j, dx) in x_taps {
                            let (dy, dx) = ((dy - y_least) as usize, (dx - x_least) as usize);
                            taps.push(PixelTap {
                                offset: offset_of(*slice) + dy * row_stride + dx * depth,
                                weights: (first + (o * row_taps + i) * column_taps + j) * weights_per_tap,
                            });
                        }
                    }
                }
                let begin = grid.start.max(columns.grid.start);
                let column = begin * x.out_step + rx;
                let end = (grid.end * x.out_step).min(columns.output.end);
                let source = (begin * x.in_step) as i64 + x_least - columns.input.start as i64;
                PixelRun {
                    column: column - columns.output.start,
                    count: end.saturating_sub(column).div_ceil(x.out_step),
                    source: if taps.is_empty() { 0 } else { source as usize * depth },
                    taps: PixelTaps::new(taps, x.in_step * depth),
                }
            };
        let row = |(grid, y_taps, y_least): (Range<usize>, Vec<Inside>, i64)| Rows {
            grid,
            first: (!outer.is_empty() && !y_taps.is_empty()).then_some(y_least),
            pixel_runs: phase_runs
                .iter()
                .enumerate()
                .flat_map(|(rx, runs)| runs.iter().map(move |run| (rx, run)))
                .map(|(rx, run)| pixel_run(rx, run, &y_taps, y_least))
                .filter(|pixel_run| pixel_run.count > 0)
                .collect(),
        };
        runs(y, ry).into_iter().map(row).collect()
    }
}

/// What all runs of a layer read.
pub(crate) struct Table {
    /// Per phase, in the order of residues, the number of taps before its own.
    weights_of: Vec<usize>,
    /// Strides of the input: image, channel, spatial axes (at least two).
    strides: (usize, usize, Vec<usize>),
    /// For tasks of whole rows, per grid position of the outer axes, the slices that it reads, and the index of its
    /// rows. Empty if these are not kept, as there are more than [`MOST_KEPT_TAPS`].
    outer: Vec<(TVec<usize>, usize)>,
    /// Grid rows by outer phase inside the output, then by row phase. Most outer positions have the same.
    rows: Vec<Vec<Vec<Rows>>>,
}

/// The taps of a phase of the outer axes that are inside the input: the index in the phase, and the index of the slice
/// among those that are read.
type OuterTaps = Vec<(usize, usize)>;

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a DepthwisePixels,
    table: &'a Table,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    weights: &'a [E::Compute],
    bias: Vec<E::Compute>,
    operands: &'a Operands<'a, E>,
}

/// Grid rows of one phase with the same taps inside the input, and their computation.
struct Rows {
    grid: Range<usize>,
    /// The first input row that grid row zero would read. None if no tap is inside the input.
    first: Option<i64>,
    pixel_runs: Vec<PixelRun>,
}

/// Output pixels of a row with the same taps inside the input, for one column phase.
struct PixelRun {
    /// The column of the first pixel, relative to the task.
    column: usize,
    /// The number of pixels. They are as far apart as there are column phases.
    count: usize,
    /// The offset in the input row of the pixel that the first output pixel reads, in elements.
    source: usize,
    /// The taps, with offsets relative to `source`.
    taps: PixelTaps,
}

/// The columns of a task.
struct Columns {
    /// Columns of the grid.
    grid: Range<usize>,
    /// Columns of the output.
    output: Range<usize>,
    /// Columns of the source, which is the input or a copy.
    input: Range<usize>,
}

/// A tap inside the input: its index in its phase, and its shift.
type Inside = (usize, i64);

/// Returns the runs of grid positions with the same taps inside the input, each with these taps and
/// their least shift.
fn runs(axis: &AxisPhases, phase: usize) -> Vec<(Range<usize>, Vec<Inside>, i64)> {
    let shift = |at: usize| axis.phases[phase].taps[at].shift;
    let run = |(grid, taps): (Range<usize>, Range<usize>)| {
        let taps: Vec<Inside> = taps.map(|at| (at, shift(at))).collect();
        let least = taps.iter().map(|(_, shift)| *shift).min().unwrap_or(0);
        (grid, taps, least)
    };
    axis.runs(phase).into_iter().map(run).collect()
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a DepthwisePixels,
        table: &'a Table,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &'a Operands<'a, E>,
    ) -> TractResult<Self> {
        let channels = problem.group * problem.group_out;
        let mut bias = vec![E::Compute::ZERO; channels.next_multiple_of(plan.width)];
        if let Some(values) = operands.bias {
            E::widen_slice(values, &mut bias[..channels]);
        }
        Ok(Prepared { plan, table, problem, kernels, weights: filter.data::<E::Compute>()?, bias, operands })
    }

    /// Computes a task's output.
    fn run(&self, task: &mut Task<E>, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (plan, lanes) = (self.plan, self.kernels.lanes);
        let (outer_axes, y, x) = plan.axes.parts();
        let last = self.problem.data_format == DataFormat::Nxc;
        let image = &self.operands.input.whole()?[task.n * self.table.strides.0..];
        let [.., row, column] = *self.table.strides.2 else { return Ok(()) };
        let slice_stride = y.input * row;

        // Pixels are read in whole vectors.
        let reach = plan.gather.as_ref().map_or(plan.depths.0.next_multiple_of(lanes), LaneGather::reach);
        let in_place = E::as_compute(image).filter(|_| last && reach <= plan.depths.0);
        let row_stride = if in_place.is_some() { row } else { x.input * plan.depths.0 };
        let whole = in_place.is_some() || task.columns.len() == x.grid;
        let columns = Columns {
            grid: task.columns.clone(),
            output: task.output.columns.clone(),
            input: if whole { 0..x.input } else { window_of(x, &task.columns) },
        };
        let outer_at = outer_axes.iter().zip(&task.outer).fold(0, |at, (axis, u)| at * axis.grid + u);
        let kept = self.table.outer.get(outer_at).filter(|_| task.columns.len() == x.grid);
        let listed: (TVec<usize>, Vec<Vec<Rows>>);
        let (outer_slices, rows) = match kept {
            Some((slices, list)) => (slices, &self.table.rows[*list]),
            None => {
                let (slices, taps) = plan.outer_taps(&task.outer, &task.output.outer_phases);
                let taps: Vec<_> = task.output.outer_phases.iter().copied().zip(taps).collect();
                let outer_slice = plan.outer_slice(slices.len());
                let offset_of =
                    |rank: usize| if in_place.is_some() { slices[rank] * slice_stride } else { rank * outer_slice };
                let rows = plan.rows_of(self.problem, &self.table.weights_of, &taps, &columns, row_stride, offset_of);
                listed = (slices, rows);
                (&listed.0, &listed.1)
            }
        };
        let outer_slice = plan.outer_slice(outer_slices.len());
        let row_plan = RowPlan { rows, row_stride, width: columns.output.len() };
        let starts: Vec<usize> = match self.problem.data_format {
            DataFormat::Nxc => vec![],
            DataFormat::Ncx => {
                let stored = PIXELS_AT_ONCE.min(plan.stored_rows(self.problem) * y.out_step * x.output);
                (0..stored + lanes).map(|pixel| pixel * plan.depths.1).collect()
            }
        };

        for first in task.groups.clone().step_by(plan.batched_groups) {
            let groups = first..(first + plan.batched_groups).min(task.groups.end);
            let channels = groups.start * self.problem.group_out..groups.end * self.problem.group_out;
            let width = if last { plan.depths.1 } else { channels.len().next_multiple_of(lanes) };
            for block in blocks(&task.rows, plan.block_rows) {
                let (window, data) = match in_place {
                    Some(data) => (0..y.input, data),
                    None => {
                        let window = window_of(y, &block);
                        let data = scratch.block.of(outer_slice * outer_slices.len() + lanes)?;
                        // Some tasks have no tap inside the input.
                        let read = !window.is_empty() && !columns.input.is_empty();
                        for (to, slice) in data.chunks_mut(outer_slice.max(1)).zip(outer_slices).filter(|_| read) {
                            let at = window.start * row + columns.input.start * column;
                            let source = &image[first * self.table.strides.1 + slice * slice_stride + at..];
                            let pixels = window.len() * columns.input.len();
                            self.fill(source, channels.len(), pixels, &mut scratch.ragged, to)?;
                        }
                        (window, &*data)
                    }
                };
                for outer in 0..task.output.outer_phases.len() {
                    for grid in blocks(&block, plan.stored_rows(self.problem)) {
                        let sums = |to: &mut [E::Compute]| {
                            let channels = (channels.start, width);
                            self.sum(&row_plan, outer, grid.clone(), (data, window.start), channels, to);
                        };
                        let output_rows = y.outputs(&grid);
                        match self.problem.data_format {
                            DataFormat::Nxc => self.store_last(task, outer, output_rows, sums, &mut scratch.tile)?,
                            DataFormat::Ncx => {
                                let results =
                                    scratch.tile.of((output_rows.len() * row_plan.width + lanes) * plan.depths.1)?;
                                sums(results);
                                let staging = scratch.ragged.of(lanes * STAGED_ELEMENTS)?;
                                self.store_first(
                                    task,
                                    outer,
                                    output_rows,
                                    channels.clone(),
                                    (results, PixelStarts::new(&starts)),
                                    staging,
                                );
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes channels-last results by whole output rows, in place if the element type allows.
    fn store_last(
        &self,
        task: &mut Task<E>,
        outer: usize,
        rows: Range<usize>,
        sums: impl Fn(&mut [E::Compute]),
        buffer: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let depth = self.plan.depths.1;
        let at = task.output.index(0, outer, rows.start, task.output.columns.start);
        let (uniform, varying) = self.operands.epilogue.split_bounds().1.split();
        let finished = |results: &mut [E::Compute]| {
            sums(results);
            uniform.apply(results);
            varying.apply_pixels(0, at, (results.len() / depth, depth), depth, results);
        };
        let to = task.output.pixels_of_rows(outer, rows);
        if let Some(to) = E::as_compute_mut(to) {
            finished(to);
            return Ok(());
        }
        let results = buffer.of(to.len())?;
        finished(results);
        E::narrow_slice(results, to);
        Ok(())
    }

    /// Stores channels-first results by register transposes, a vector of channels at a time.
    fn store_first(
        &self,
        task: &mut Task<E>,
        outer: usize,
        rows: Range<usize>,
        channels: Range<usize>,
        (results, starts): (&mut [E::Compute], PixelStarts),
        staging: &mut [E::Compute],
    ) {
        let (lanes, width) = (self.kernels.lanes, task.output.columns.len());
        let (uniform, varying) = self.operands.epilogue.split_bounds().1.split();
        let (count, depth) = (rows.len() * width, self.plan.depths.1);
        uniform.apply(&mut results[..count * depth]);
        let first = task.output.plane_index(rows.start, task.output.columns.start);
        for vector in blocks(&channels, lanes) {
            let task_channel = vector.start - task.groups.start * self.problem.group_out;
            let task_channels = task_channel..task_channel + vector.len();
            for at in (0..count).step_by(PIXELS_AT_ONCE) {
                let run = IndexedRun { elements: first + at..first + count.min(at + PIXELS_AT_ONCE), first: 0 };
                let (results, epilogue) =
                    (&results[at * depth + vector.start - channels.start..], (None, varying, vector.start));
                task.output.write_transposed(
                    self.kernels,
                    task_channels.clone(),
                    outer,
                    &[run],
                    results,
                    starts,
                    epilogue,
                    staging,
                );
            }
        }
    }

    /// Copies consecutive pixels of the groups of some output channels. The elements of a pixel become adjacent.
    fn fill(
        &self,
        source: &[E],
        channels: usize,
        pixels: usize,
        copies: &mut Aligned<E::Compute>,
        to: &mut [E::Compute],
    ) -> TractResult<()> {
        let depth = self.plan.depths.0;
        if self.problem.data_format == DataFormat::Nxc {
            E::widen_slice(&source[..pixels * depth], &mut to[..pixels * depth]);
            return Ok(());
        }
        crate::layout::planes_to_pixels(
            self.kernels,
            (source, self.table.strides.1, self.problem.group_out),
            (pixels, channels),
            (to, depth),
            copies,
        )
    }

    /// Computes all output rows of a range of grid rows into `to`.
    ///
    /// `data` begins with input row `first_row`. `first` is the first of `channels` channels.
    fn sum(
        &self,
        row_plan: &RowPlan,
        outer: usize,
        grid: Range<usize>,
        (data, first_row): (&[E::Compute], usize),
        (first, channels): (usize, usize),
        to: &mut [E::Compute],
    ) {
        let (from, depth) = self.plan.depths;
        let (y, x) = (self.plan.axes.rows(), self.plan.axes.columns());
        let each = self.table.weights_of.last().map_or(0, |taps| taps * self.problem.group_in);
        let (weights, bias) = (&self.weights[first * each..], &self.bias[first..]);
        let (bounds, _) = self.operands.epilogue.split_bounds();
        let (in_row, out_row) = (y.in_step * row_plan.row_stride, y.out_step * row_plan.width * depth);
        let (in_column, out_column) = (x.in_step * from, x.out_step * depth);
        for ry in 0..y.out_step {
            // The last grid row may lack some phases.
            let end = grid.end.min((y.output + y.out_step - 1 - ry) / y.out_step);
            for run in &row_plan.rows[outer * y.out_step + ry] {
                let (begin, end) = (grid.start.max(run.grid.start), end.min(run.grid.end));
                if begin >= end {
                    continue;
                }
                let row = run.first.map_or(0, |first| (begin * y.in_step) as i64 + first - first_row as i64);
                let source = &data[row as usize * row_plan.row_stride..];
                let to = &mut to[((begin - grid.start) * y.out_step + ry) * row_plan.width * depth..];
                for pixel_run in &run.pixel_runs {
                    let (source, to) = (&source[pixel_run.source..], &mut to[pixel_run.column * depth..]);
                    let rows = Spaced { count: end - begin, from: in_row, to: out_row };
                    let columns = Spaced { count: pixel_run.count, from: in_column, to: out_column };
                    // The inner loop is the longer one.
                    let (few, many) = if columns.count < rows.count { (columns, rows) } else { (rows, columns) };
                    let (taps, gather) = (&pixel_run.taps, self.plan.gather.as_ref());
                    let below = (BYTES_BELOW / size_of::<E::Compute>() / many.from).max(LEAST_POSITIONS);
                    let part = if few.count > 1 { many.count.div_ceil(many.count.div_ceil(below)) } else { many.count };
                    for begin in (0..many.count).step_by(part) {
                        let source = if taps.is_empty() { source } else { &source[begin * many.from..] };
                        let positions = [few, Spaced { count: part.min(many.count - begin), ..many }];
                        let operands =
                            PixelSums { source, positions, taps, weights, each, bias, bounds, channels, gather };
                        self.kernels.sum_of_pixels(&operands, &mut to[begin * many.to..]);
                    }
                }
            }
        }
    }
}

/// The computation of a task's rows, and their strides.
struct RowPlan<'a> {
    /// By outer phase of the task, then by row phase.
    rows: &'a [Vec<Rows>],
    row_stride: usize,
    /// Columns of the task's output.
    width: usize,
}

fn blocks(range: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(size).map(move |begin| begin..(begin + size).min(end))
}

/// Returns the fewest groups whose output channels are whole vectors.
fn groups_of_vectors(problem: &Problem, lanes: usize) -> usize {
    // The number of lanes is a power of two.
    lanes >> problem.group_out.trailing_zeros().min(lanes.trailing_zeros())
}

/// Returns the input positions that a range of grid positions of an axis reads.
fn window_of(axis: &AxisPhases, grid: &Range<usize>) -> Range<usize> {
    let shifts = axis.shifts();
    let at = |u: usize, shift: Option<&i64>| {
        ((u * axis.in_step) as i64 + shift.copied().unwrap_or(0)).clamp(0, axis.input as i64) as usize
    };
    let begin = at(grid.start, shifts.first());
    begin..at(grid.end - 1, shifts.last().map(|shift| shift + 1).as_ref()).max(begin)
}
