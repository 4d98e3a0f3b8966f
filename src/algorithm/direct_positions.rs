//! Each phase as a small dense convolution over the shared grid. Weights are the scalars, positions
//! the lanes.
//!
//! The input of a block of grid rows is copied into [`InputTiles`]. It is read in place if all taps
//! have shift zero. Each phase then is
//! `out[channel][position] = Σ weight · input_tile[position + tap]`.
//! The phases of an output row are interleaved when they are stored.
//!
//! Many input channels may be read or copied some at a time, in passes. The sums of the channels before
//! are kept in a buffer, and results are stored after the last pass.

use crate::algorithm::chains::{channels_per_chain, longest_chain};
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost, InPlace};
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{Bounds, Dispatch, Kernels, PhaseOperand, PositionTile, RowTile, Source, Start, StridedRuns};
use crate::layout::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::layout::input::Input;
use crate::layout::input_tile::{CopyPlan, GridBlocks, InputTiles};
use crate::layout::taps::{Phase, TapTable};
use crate::memory::{Aligned, Scratch};
use crate::output::epilogue::Epilogue;
use crate::output::partition::{Block, Partition};
use crate::output::task::{Task, bytes_of_tasks, run_tasks};
use crate::output::task_output::MOST_ROWS;
use crate::ranges::flat_runs;
use crate::simd::isa::Isa;
use crate::simd::vector::{MOST_LANES, PREFETCHES};
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// The number of pairs from which a sum has two chains, whose taps alternate. This applies to tiles
/// that write rows themselves and support it.
const FEWEST_IN_TWO_CHAINS: usize = 32;

/// Bytes of a tile's input that stay in L1 while all panels pass over it.
const L1_SHARE: usize = 20 * 1024;

/// The fewest rows of a tile that leave time to prefetch the next tile's vectors of all channels.
const FEWEST_TO_PREFETCH: usize = 6;

/// The fewest positions of a block that is read in place. Shorter rows would be stored in short
/// runs.
const FEWEST_IN_PLACE: usize = 128;

/// The fewest positions of a block that several panels read in passes. L2 must hold their channels.
const FEWEST_IN_PASSES: usize = 1024;

/// The positions of a block that a single panel reads in passes. It reads them once, so L2 need not hold them.
const READ_ONCE: usize = 4096;

/// Input channels that are copied together in passes, so that a block has many rows and few of them are its halo.
const COPIED_IN_PASSES: usize = 32;

/// The divisor of L2 for the sums of a block, which stay there between such passes.
const SHARE_OF_SUMS: usize = 4;

/// The output size in bytes from which results are buffered. On outputs beyond the caches, short
/// runs to many rows cost more than a buffer.
const LONG_RUNS_FROM: usize = 32 << 20;

/// Bytes of results that are buffered before they are stored.
const CHUNK_BYTES: usize = 24 * 1024;

/// The number of channels from which channels-last results go through register transposes. Fewer
/// channels are stored element by element, which is faster for them.
const FEWEST_TRANSPOSED: usize = 4;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectPositions {
    /// Output channels per register tile.
    pub mr: usize,
    /// Output channels of the last panel's tile.
    pub last_mr: usize,
    /// Groups per group batch, whose input and results are transposed together. More than one if
    /// channels are last and groups are narrow.
    pub batched_groups: usize,
    /// Vectors of positions per register tile.
    pub nv: usize,
    /// Whether the input tiles have one copy per column shift, so that their rows have no gaps.
    pub copy_per_shift: bool,
    /// Whether the input is read in place.
    pub direct: bool,
    /// Whether input that is read in place is prefetched before the tiles, as the caches do not
    /// hold it.
    pub prefetch: bool,
    /// Input channels that are summed over all tiles of a chunk before the next channels: long runs of
    /// few planes are read in place, or a block with many rows is copied. None if each tile sums all of them.
    pub pass: Option<usize>,
    /// Whether tiles write output rows themselves, with phases interleaved in registers.
    pub rows: bool,
    /// Tiles whose results are stored together, so that the output is written in long runs.
    pub chunk_tiles: usize,
    /// Whether all panels pass over a tile's input before the next tile.
    pub tile_major: bool,
    /// Grid rows per block.
    pub block_rows: usize,
    /// Grid columns per block.
    pub block_columns: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Axes,
}

/// The name of the way in which the input is read and the output is stored.
fn variant(in_place: bool, in_passes: bool, copy_per_shift: bool, rows: bool) -> &'static str {
    match (in_place, copy_per_shift, rows) {
        (true, _, _) if in_passes => "in place, in passes",
        (false, true, _) if in_passes => "copy per shift, in passes",
        (false, false, _) if in_passes => "padded rows, in passes",
        (true, _, true) => "in place, rows from registers",
        (true, _, false) => "in place, buffered",
        (false, true, true) => "copy per shift, rows from registers",
        (false, true, false) => "copy per shift, buffered",
        (false, false, true) => "padded rows, rows from registers",
        (false, false, false) => "padded rows, buffered",
    }
}

impl Algorithm for DirectPositions {
    type Tables = TapTable;

    const READS_PARTS: bool = true;

    fn propose(query: &Query) -> Result<DirectPositions, String> {
        let &Query { problem, datum_type, machine, .. } = query;
        let axes = query.axes()?;
        let forced = query.forced(|layout| match layout {
            FilterLayout::Phases { mr, last_mr } => Some((*mr, *last_mr)),
            _ => None,
        })?;
        let shapes = &query.sizes;
        let (lanes, tiles) = (shapes.lanes, &shapes.position_tiles);
        let (y, x) = (axes.rows(), axes.columns());
        let taps = axes.taps();
        let depth = problem.group_in * taps;
        let widest = axes.most_taps();

        let phases = axes.phases();
        let row_tiles = shapes.row_tiles(x.out_step);
        let same_element = query.has_same_element();
        let cached = problem.output_shape().iter().product::<usize>() * datum_type.size_of() < LONG_RUNS_FROM;
        let unshifted = problem.data_format == DataFormat::Ncx && same_element && axes.are_unshifted();
        let readable_in_place = unshifted && !query.in_parts;
        let element = query.element;
        // Groups per batch. With more than one, a panel must hold all output channels of a group.
        let batched_groups = match problem.data_format {
            DataFormat::Ncx => 1,
            DataFormat::Nxc => lanes.div_ceil(problem.group_in.min(problem.group_out).max(1)).min(problem.group),
        };

        let sources = [
            (true, true, true, 1),
            (true, false, true, 1),
            (false, true, true, 1),
            (false, true, false, 1),
            (false, false, true, 1),
            (false, false, false, 1),
            (false, false, true, batched_groups),
            (false, false, false, batched_groups),
        ];
        let bytes = query.input_bytes();
        let mut best: Option<DirectPositions> = None;
        for (in_place, in_passes, copy_per_shift, batched_groups) in sources.into_iter().unique() {
            // Taps without shifts all read the same copy.
            if in_place && !readable_in_place || unshifted && !copy_per_shift {
                continue;
            }
            let prefetches = in_place && PREFETCHES && machine.prefetch_pays;
            let passes_pay = match in_place {
                true => prefetches && bytes > machine.l2,
                false => problem.data_format == DataFormat::Ncx && problem.group_in > COPIED_IN_PASSES,
            };
            if in_passes && !passes_pay {
                continue;
            }
            let together = match in_passes && !in_place {
                true => COPIED_IN_PASSES,
                false => problem.group_in * batched_groups,
            };
            let waits = match problem.group_in {
                1 => cost::beyond_cache(problem, datum_type, machine),
                _ => {
                    let costs = if prefetches { cost::BEYOND_IN_PLACE } else { cost::BEYOND_BY_PLANES };
                    cost::beyond_caches(problem, datum_type, costs, lanes, machine)
                }
            };
            // The input tiles of a block take at most half of L2, as the weights stream through the
            // rest.
            let budget = machine.l2 / 2 / element / together.max(1);
            let read_once = in_passes && in_place && budget < FEWEST_IN_PASSES;
            let budget = if read_once { READ_ONCE } else { budget };
            let block = match in_place {
                true if y.grid == 1 && y.output == 1 => (1, budget.max(FEWEST_IN_PLACE).min(x.grid)),
                true => (y.grid.min((budget / x.grid).max(1)), x.grid),
                false => GridBlocks::within(axes, copy_per_shift, budget),
            };
            let GridBlocks {
                rows: block_rows,
                columns: block_columns,
                positions: flat,
                count: blocks,
                input_tiles: laid_out,
            } = GridBlocks::even(axes, block, copy_per_shift, in_place);
            let copied = match in_place {
                true => Cost::ZERO,
                false => {
                    let copying = cost::copied(problem.data_format, problem.group_in * batched_groups);
                    // Every third position or fewer, from beyond L2. Set by hand, by three layers of
                    // `benches/record/2026-11-29-passes`.
                    let gathered = match in_passes && bytes > machine.l2 {
                        true => cost::strided(x.in_step.saturating_sub(1), lanes),
                        false => Cost::ZERO,
                    };
                    let copying = copying + gathered;
                    let filled = cost::filled(&laid_out, problem.group_in, lanes, copying);
                    // A run of each plane, which the next blocks do not read again.
                    let far = unshifted && bytes > machine.l2;
                    let waited = if far { cost::FAR_RUN.times(&[problem.group_in, block_rows]) } else { Cost::ZERO };
                    let selects = problem.group_in == 1 && x.in_step > 1 && laid_out.count() == 1;
                    let selected = Cost::new(machine.rates.strided_row) * block_rows;
                    waited + if selects { filled + selected } else { filled }
                }
            };
            // The taps of a row that read the same values at neighbouring positions.
            let shared = (x.most_taps() / laid_out.column_count()).max(1);
            let chain = widest * problem.group_in;
            let parts = chain.div_ceil(longest_chain(chain, widest));
            let writes_rows = problem.data_format == DataFormat::Ncx && cached && !in_passes;
            let buffered = tiles.iter().map(|(mr, nv)| (*mr, *nv, false, &tiles[..]));
            let direct = row_tiles.iter().filter(|_| writes_rows).map(|(mr, nv)| (*mr, *nv, true, row_tiles));
            for (mr, nv, rows, family) in buffered.chain(direct) {
                let remainder = problem.group_out % mr;
                let last_mr = family.iter().map(|t| t.0).filter(|h| *h >= remainder).min().unwrap_or(mr);
                if forced.is_some_and(|f| f != (mr, last_mr)) || (batched_groups > 1 && mr < problem.group_out) {
                    continue;
                }
                if query.leaves_out(variant(in_place, in_passes, copy_per_shift, rows)) {
                    continue;
                }
                // The lines that a tile reads and those that it prefetches are in L1 together.
                let pass = if in_place { L1_SHARE / (2 * nv * lanes * element) } else { COPIED_IN_PASSES };
                let pass = in_passes.then_some(pass);
                let panels = problem.group_out.div_ceil(mr);
                if pass.is_some_and(|pass| pass >= problem.group_in) || read_once && panels > 1 {
                    continue;
                }
                // The sums of all panels and phases of a block, until the last pass.
                let kept = in_passes && !in_place;
                let sums = [panels, mr, phases, flat.next_multiple_of(lanes), element];
                if kept && sums.into_iter().fold(1, usize::saturating_mul) > machine.l2 / SHARE_OF_SUMS {
                    continue;
                }
                let parts = parts.max(problem.group_in.div_ceil(pass.unwrap_or(problem.group_in)));
                let chain_bytes = pass.map_or(chain, |pass| pass * widest).saturating_mul(nv * lanes * element);
                let resident = chain_bytes <= L1_SHARE;
                let tile_major = resident && !(rows && problem.group_out > machine.rates.planes_at_once as usize);
                let passes = match tile_major {
                    true => 1,
                    false => panels.saturating_mul(if rows { phases / x.out_step } else { phases }),
                };
                let read = match in_place {
                    true if in_passes => {
                        let reads = panels.saturating_mul(phases / x.out_step);
                        cost::in_passes(reads, lanes * element, machine).times(&[flat / lanes, problem.group_in])
                    }
                    true => {
                        let reading =
                            InPlace { bytes, passes, panels, tile: (mr, nv), run_bytes: nv * lanes * element };
                        reading.vector(problem, machine).times(&[flat / lanes, problem.group_in])
                    }
                    false => Cost::ZERO,
                };
                // Half of L2 is the input's. Weights of a panel that exceed the other half are evicted from
                // tile to tile.
                let evicted = !tile_major && chain.saturating_mul(mr * element) > machine.l2 / 2;
                let weights =
                    |m: usize| if evicted { machine.rates.far_weights * m as f64 / lanes as f64 } else { 0.0 };
                let tile_cost =
                    |m: usize, n: usize| cost::tile(m, n, lanes * element, resident, machine) + Cost::new(weights(m));
                // Tiles that write rows end where rows end. Other tiles run over row ends.
                let (runs, vectors) =
                    if rows { (block_rows, block_columns.div_ceil(lanes)) } else { (1, flat.div_ceil(lanes)) };
                let (whole, rest) = (vectors / nv, vectors % nv);
                let row_cost = |m: usize| {
                    let last = if rest > 0 { tile_cost(m, rest) } else { Cost::ZERO };
                    (tile_cost(m, nv) * whole + last) * runs
                };
                let last = if remainder > 0 { row_cost(last_mr) } else { Cost::ZERO };
                let multiplied = row_cost(mr) * (problem.group_out / mr) + last;
                let unfinished = cost::SUMMED * parts.saturating_sub(1);
                let partly = cost::partly_stored(problem, element, [mr, nv * lanes * element], machine);
                let row_store = Cost::new(machine.rates.row_store) + partly;
                let store = match rows {
                    true if same_element => row_store,
                    true => row_store + cost::NARROWED,
                    false => cost::buffered(problem.data_format, mr.min(problem.group_out) * batched_groups),
                };
                let stored = (store + unfinished).times(&[runs, vectors, problem.group_out, phases]);
                let chunk_tiles = match (chunk_tiles(mr * batched_groups, nv * lanes, x, element), rows && tile_major) {
                    (stored, false) => stored,
                    (stored, true) => stored.min(L1_SHARE / (chain_bytes / shared).max(1)).max(1),
                };
                let chunk_tiles = if kept { flat.div_ceil(nv * lanes) } else { chunk_tiles };
                let rows_stored = match (rows, problem.data_format) {
                    (true, _) => {
                        let (at_once, runs_per_row) = row_runs(chunk_tiles * nv * lanes, block_columns, lanes);
                        let calls = [block_rows.div_ceil(at_once), runs_per_row, panels, phases / x.out_step]
                            .into_iter()
                            .fold(1, usize::saturating_mul);
                        Cost::new(machine.rates.row_tile_call) * calls
                    }
                    (false, DataFormat::Ncx) => cost::BUFFERED_ROW.times(&[block_rows, problem.group_out, phases]),
                    _ => Cost::ZERO,
                };
                let block = multiplied * depth + copied + read + stored + rows_stored + cost::BLOCK;
                let cost = block.times(&[blocks, problem.group, problem.batch]);
                let cost = (cost + waits).rounded();
                if best.as_ref().is_none_or(|b| cost < b.cost) {
                    best = Some(DirectPositions {
                        mr,
                        last_mr,
                        batched_groups,
                        nv,
                        copy_per_shift,
                        direct: in_place,
                        prefetch: prefetches && bytes > machine.l2 && (in_passes || mr >= FEWEST_TO_PREFETCH),
                        pass,
                        rows,
                        chunk_tiles,
                        tile_major,
                        block_rows,
                        block_columns,
                        cost,
                        axes: axes.clone(),
                    });
                }
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn variant(&self) -> &'static str {
        variant(self.direct, self.pass.is_some(), self.copy_per_shift, self.rows)
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let input_tiles = if self.direct {
            0
        } else {
            let input_tiles = InputTiles::new(&self.axes, self.block_rows, self.block_columns, self.copy_per_shift);
            let together = self.pass.unwrap_or(problem.group_in.saturating_mul(self.batched_groups));
            input_tiles.working_bytes(together, element)
        };
        let sums = if self.keeps_sums() { self.sums(problem).saturating_mul(element) } else { 0 };
        let blocks = y.grid.div_ceil(self.block_rows) * x.grid.div_ceil(self.block_columns);
        [input_tiles, sums, bytes_of_tasks(problem, &self.axes, blocks), 2 * CHUNK_BYTES]
            .into_iter()
            .fold(0, usize::saturating_add)
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Phases { mr: self.mr, last_mr: self.last_mr }
    }

    fn explain(&self) -> String {
        let source = match (self.direct, self.copy_per_shift) {
            (true, _) if self.prefetch => "in place, prefetched",
            (true, _) => "in place",
            (_, true) => "in a copy per column shift",
            _ => "in padded rows",
        };
        let passes = self.pass.map_or(String::new(), |channels| format!(", in passes of {channels} channels"));
        let store = if self.rows { "from registers" } else { "through a buffer" };
        let groups =
            if self.batched_groups > 1 { format!(" of {} groups", self.batched_groups) } else { String::new() };
        format!(
            "tiles of {}x{}, rows stored {store}, input read {source}{passes}, blocks of {}x{} positions{groups}",
            self.mr, self.nv, self.block_rows, self.block_columns
        )
    }

    fn tables(&self, problem: &Problem, _lanes: usize) -> TractResult<TapTable> {
        let input_tiles = InputTiles::new(&self.axes, self.block_rows, self.block_columns, self.copy_per_shift);
        TapTable::new(&self.axes, input_tiles, self.direct, 1, problem.group_in)
    }

    fn run<E: Element>(
        &self,
        tables: &TapTable,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands, tables)?;
        let block = Block {
            rows: self.block_rows,
            columns: self.block_columns,
            // A block keeps the positions of a few tiles.
            least: 4 * self.nv * kernels.lanes,
            panel: self.mr,
            step: self.nv * kernels.lanes,
            cost: self.cost,
        };
        let partition = Partition::for_threads(problem, &self.axes, &block);
        run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| {
            let copied = !self.direct;
            let copy_plan =
                copied.then(|| task.copy_plan(&prepared.taps.input_tiles, &prepared.strides.2)).transpose()?;
            let groups = task.groups.clone();
            groups.clone().step_by(self.batched_groups).try_for_each(|g| {
                let batch = g..groups.end.min(g + self.batched_groups);
                prepared.run_groups(task, batch, copy_plan.as_ref(), scratch)
            })
        })
    }
}

impl DirectPositions {
    /// Whether the sums of a block are kept until the last of several passes over copies of the input.
    fn keeps_sums(&self) -> bool {
        self.pass.is_some() && !self.direct
    }

    /// The most elements of such sums.
    fn sums(&self, problem: &Problem) -> usize {
        let height = self.mr.max(self.last_mr);
        let positions = (self.chunk_tiles * self.nv).saturating_mul(MOST_LANES);
        let panels = problem.group_out.div_ceil(self.mr);
        [panels, height, self.axes.phases(), positions].into_iter().fold(1, usize::saturating_mul)
    }
}

/// The number of tiles whose results fit in L1 together.
fn chunk_tiles(mr: usize, positions: usize, x: &AxisPhases, element: usize) -> usize {
    (CHUNK_BYTES / (mr * x.out_step * positions * element)).max(1)
}

/// Returns the number of rows whose tiles run together, and the number of runs per row.
///
/// There are several runs only for a single row. A run has `chunk` positions, or up to twice as
/// many.
fn row_runs(chunk: usize, columns: usize, lanes: usize) -> (usize, usize) {
    match chunk / columns.next_multiple_of(lanes) {
        0 | 1 => (1, (columns / chunk).max(1)),
        rows => (rows, 1),
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a DirectPositions,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    taps: &'a TapTable,
    /// Phases of an output row.
    columns: usize,
    /// Row and column phases per outer phase.
    per_outer: usize,
    /// The panels of a group.
    panels: Vec<Panel<E::Compute>>,
    weights: &'a [E::Compute],
    group_weights: usize,
    /// The bias of each group, padded to panel heights.
    bias: Vec<E::Compute>,
    input: Input<'a, E>,
    epilogue: Epilogue<'a, E>,
    /// Elements per output channel.
    plane: usize,
    /// Strides of the input: image, channel, spatial axes (at least two).
    strides: (usize, usize, Vec<usize>),
}

/// Scratch memory, without the input tiles.
struct Buffers<'a, T> {
    tile: &'a mut Aligned<T>,
    ragged: &'a mut Aligned<T>,
    row: &'a mut Aligned<T>,
}

struct Panel<T: 'static> {
    first_channel: usize,
    height: usize,
    weights: usize,
    tiles: Vec<&'static PositionTile<T>>,
    row_tiles: Vec<&'static RowTile<T>>,
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a DirectPositions,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
        taps: &'a TapTable,
    ) -> TractResult<Self> {
        let axes = &plan.axes;
        let columns = axes.columns().out_step;
        let per_outer = axes.rows().out_step * columns;
        let mut at = 0;
        let panels: Vec<Panel<E::Compute>> = panel_heights(problem.group_out, plan.mr, plan.last_mr)
            .map(|(first_channel, height)| {
                let weights = at;
                at += height * taps.weights;
                let find = |nv| kernels.position_tile(height, nv).context("kernel: a tile of the plan is missing");
                let find_row = |nv| {
                    let tiles = kernels.row_tiles(columns).iter();
                    tiles
                        .clone()
                        .find(|t| (t.mr(), t.nv()) == (height, nv))
                        .context("kernel: a tile of the plan is missing")
                };
                let (tiles, row_tiles) = match plan.rows {
                    true => (vec![], (1..=plan.nv).map(find_row).collect::<TractResult<_>>()?),
                    false => ((1..=plan.nv).map(find).collect::<TractResult<_>>()?, vec![]),
                };
                Ok(Panel { first_channel, height, weights, tiles, row_tiles })
            })
            .collect::<TractResult<_>>()?;
        let padded: usize = panels.iter().map(|p| p.height).sum();
        Ok(Prepared {
            plan,
            problem,
            kernels,
            taps,
            columns,
            per_outer,
            panels,
            weights: filter.data::<E::Compute>()?,
            group_weights: at,
            bias: crate::layout::padded_bias(problem, operands.bias, padded),
            input: operands.input,
            epilogue: operands.epilogue,
            plane: problem.axes.iter().map(|a| a.output).product(),
            strides: crate::layout::input_strides(problem, axes.len()),
        })
    }

    /// Computes all output channels of a group batch.
    fn run_groups(
        &self,
        task: &mut Task<E>,
        groups: Range<usize>,
        copy_plan: Option<&CopyPlan>,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let all = self.problem.group_in;
        let pass = self.plan.pass.filter(|_| self.plan.keeps_sums()).unwrap_or(all);
        (0..all)
            .step_by(pass)
            .try_for_each(|first| self.run_pass(task, groups.clone(), first..all.min(first + pass), copy_plan, scratch))
    }

    /// Computes the sums over some input channels of each group of a batch. After the last ones, results are stored.
    fn run_pass(
        &self,
        task: &mut Task<E>,
        groups: Range<usize>,
        summed: Range<usize>,
        copy_plan: Option<&CopyPlan>,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let (plan, problem) = (self.plan, self.problem);
        let lanes = self.kernels.lanes;
        let inputs = groups.len() * summed.len();
        let first = task.n * self.strides.0 + groups.start * problem.group_in * self.strides.1;
        let tile_positions = plan.nv * lanes;
        let pitch;
        let block = &mut scratch.block;
        let mut source = if let Some(copy_plan) = copy_plan {
            pitch = self.taps.input_tiles.pitch;
            // A register transpose may overrun the last row of a plane.
            let stride =
                self.taps.input_tiles.channel_stride + if problem.data_format == DataFormat::Nxc { lanes } else { 0 };
            // Tiles may overrun the last position. The elements that they read there are never
            // stored, but must exist.
            let data = block.of(inputs * stride + tile_positions)?;
            let source = self.input.channels(task.n, groups.start * problem.group_in + summed.start, inputs);
            match problem.data_format {
                DataFormat::Ncx => {
                    for (channel, plane) in data.chunks_mut(stride).take(inputs).enumerate() {
                        let (source, _) = source.from(channel);
                        self.taps.input_tiles.fill(self.kernels, copy_plan, source, plane, &mut scratch.ragged)?;
                    }
                }
                DataFormat::Nxc => {
                    let to = (&mut data[..inputs * stride], stride);
                    self.taps.input_tiles.fill_planes(
                        self.kernels,
                        copy_plan,
                        source.from(0).0,
                        inputs,
                        to,
                        &mut scratch.ragged,
                    )?;
                }
            }
            Source { data, base: 0, channel_stride: stride, channels: summed.len(), taps: &[], prefetch: false }
        } else {
            let flat = E::as_compute(self.input.whole()?).context("element: computed in another type")?;
            pitch = plan.axes.columns().grid;
            let base = first + task.offset(&self.strides.2);
            Source {
                data: flat,
                base,
                channel_stride: self.strides.1,
                channels: problem.group_in,
                taps: &[],
                prefetch: false,
            }
        };
        let origin = source.base;
        let flat = (task.rows.len() - 1) * pitch + task.columns.len();
        let chunk = if plan.keeps_sums() { flat } else { plan.chunk_tiles * tile_positions };
        let (rows_at_once, per_row) = row_runs(chunk, task.columns.len(), lanes);
        let visits = match plan.rows {
            true => task.rows.len().div_ceil(rows_at_once) * per_row,
            false => flat.div_ceil(chunk),
        };
        let panels: Vec<usize> =
            (0..self.panels.len()).filter(|p| task.channels.contains(&self.panels[*p].first_channel)).collect();
        let mut buffers = Buffers { tile: &mut scratch.tile, ragged: &mut scratch.ragged, row: &mut scratch.row };
        let mut visit = |panel: usize, tile: usize| {
            // The first panel's pass brings the input into the caches for the other panels.
            source.prefetch = plan.prefetch && panels.first() == Some(&panel);
            let panel = &self.panels[panel];
            if plan.rows {
                let (row, column) = (tile / per_row * rows_at_once, tile % per_row * chunk);
                let rows = row..task.rows.len().min(row + rows_at_once);
                // The last run takes the remainder, so that no run is short.
                let is_last = tile % per_row + 1 == per_row;
                let columns = column..if is_last { task.columns.len() } else { column + chunk };
                source.base = origin + row * pitch + column;
                self.run_row_tiles(task, groups.start, panel, &source, (rows, columns, pitch), &mut buffers)
            } else {
                let position = tile * chunk;
                source.base = origin + position;
                let offsets = (position, chunk.min(flat - position), pitch);
                self.run_chunk(task, groups.clone(), panel, (&source, summed.clone()), offsets, &mut buffers)
            }
        };
        if plan.tile_major {
            (0..visits).try_for_each(|tile| panels.iter().try_for_each(|panel| visit(*panel, tile)))
        } else {
            panels.iter().try_for_each(|panel| (0..visits).try_for_each(|tile| visit(*panel, tile)))
        }
    }

    /// Returns a source that contains the whole tile.
    ///
    /// If the input is read in place, the last tile may reach past its end. In this case the source
    /// is a padded copy.
    fn readable<'s>(
        &self,
        source: &Source<'s, E::Compute>,
        positions: usize,
        count: usize,
        ragged: &'s mut Aligned<E::Compute>,
    ) -> TractResult<Source<'s, E::Compute>> {
        let reach = source.base + (source.channels - 1) * source.channel_stride + positions;
        if !self.plan.direct || reach <= source.data.len() {
            return Ok(*source);
        }
        let copy = ragged.of(source.channels * positions)?;
        for (ci, row) in copy.chunks_mut(positions).enumerate() {
            let from = source.base + ci * source.channel_stride;
            row[..count].copy_from_slice(&source.data[from..from + count]);
            row[count..].fill(E::Compute::ZERO);
        }
        Ok(Source { data: copy, base: 0, channel_stride: positions, ..*source })
    }

    /// Computes all phases of one panel over some columns of some grid rows, and writes them to the
    /// output without a buffer. Grid rows are `pitch` positions apart in the source.
    fn run_row_tiles(
        &self,
        task: &mut Task<E>,
        g: usize,
        panel: &Panel<E::Compute>,
        source: &Source<E::Compute>,
        (rows, columns, pitch): (Range<usize>, Range<usize>, usize),
        buffers: &mut Buffers<E::Compute>,
    ) -> TractResult<()> {
        let axes = &self.plan.axes;
        let (y, x) = (axes.rows(), axes.columns());
        let (bounds, epilogue) = self.epilogue.split_bounds();
        let bias_at = g * (self.bias.len() / self.problem.group) + panel.first_channel;
        let bias = &self.bias[bias_at..bias_at + panel.height];
        let weights = &self.weights[g * self.group_weights + panel.weights..];
        let channels = panel.height.min(task.channels.end - panel.first_channel);
        let first_channel = task.channel(self.problem, g, panel.first_channel);
        let from = task.columns.start + columns.start;
        let outputs = x.outputs(&(from..from + columns.len()));
        for o in 0..task.output.outer_phases.len() {
            let first = task.output.outer_phases[o] * self.per_outer;
            for (ry, phases) in self.taps.phases[first..first + self.per_outer].chunks(self.columns).enumerate() {
                let output_row = |row: usize| (task.rows.start + row) * y.out_step + ry;
                // The rows inside the output.
                let count = rows.clone().take_while(|row| output_row(*row) < task.output.rows.end).count();
                if count == 0 {
                    break;
                }
                let mut operands = [PhaseOperand { panel: &[][..], taps: &[], chain: 1, two_chains: false }; 4];
                for (operand, phase) in operands.iter_mut().zip(phases) {
                    *operand = operand_of(panel, weights, phase, source.channels);
                }
                let tiles = RowTiles { panel, operands: &operands[..self.columns], bias, bounds };
                let (first_element, step) = (
                    task.output.plane_index(output_row(rows.start), outputs.start),
                    y.out_step * task.output.columns.len(),
                );
                let at = task.output.index(first_channel, o, output_row(rows.start), outputs.start);
                let mut finish = |slices: &mut SmallVec<[&mut [E::Compute]; MOST_ROWS]>, runs: StridedRuns| {
                    self.run_tiles(&tiles, source, slices, &runs, buffers.ragged)?;
                    if !epilogue.is_empty() {
                        let first = g * self.problem.group_out + panel.first_channel;
                        for (m, slice) in slices.iter_mut().enumerate() {
                            let size = (runs.count, outputs.len());
                            epilogue.apply_runs(first + m, at + m * self.plane, size, (runs.step, step), slice);
                        }
                    }
                    TractResult::Ok(())
                };
                let task_channels = first_channel..first_channel + channels;
                let runs = StridedRuns { elements: 0..outputs.len(), count, step, pitch };
                let all = first_element..first_element + (count - 1) * step + outputs.len();
                let mut in_place = SmallVec::new();
                if task.output.channel_elements(task_channels, o, all, &mut in_place) {
                    finish(&mut in_place, runs)?;
                    continue;
                }
                drop(in_place);
                let elements_per_channel = count * outputs.len();
                let staging = buffers.tile.of(channels * elements_per_channel)?;
                let mut slices = staging.chunks_exact_mut(elements_per_channel.max(1)).collect();
                finish(&mut slices, StridedRuns { step: outputs.len(), ..runs })?;
                for (m, slice) in slices.iter().enumerate() {
                    for (run, values) in slice.chunks(outputs.len().max(1)).enumerate() {
                        let row = output_row(rows.start + run);
                        task.output.put(first_channel + m, o, row, outputs.start, values);
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes the sums of all runs: the whole tiles of each run, then the remainders.
    fn run_tiles(
        &self,
        RowTiles { panel, operands, bias, bounds }: &RowTiles<E::Compute>,
        source: &Source<E::Compute>,
        slices: &mut [&mut [E::Compute]],
        runs: &StridedRuns,
        ragged: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let lanes = self.kernels.lanes;
        let positions = runs.elements.len().div_ceil(self.columns);
        let whole = positions / (self.plan.nv * lanes) * self.plan.nv * lanes;
        let outputs = runs.elements.len().min(whole * self.columns);
        if whole > 0 {
            let runs = StridedRuns { elements: 0..outputs, ..*runs };
            panel.row_tiles[self.plan.nv - 1].run(operands, source, bias, slices, &runs, *bounds);
        }
        if whole == positions {
            return Ok(());
        }
        let tile = panel.row_tiles[(positions - whole).div_ceil(lanes) - 1];
        // The last tile ends at the last position. If there are enough positions, it computes some
        // of them again.
        let first = positions.checked_sub(tile.positions()).unwrap_or(whole);
        let outputs = first * self.columns;
        let source = Source { base: source.base + first, ..*source };
        // The last runs may reach past the end of an input that is read in place.
        let reach = source.base + (source.channels - 1) * source.channel_stride + tile.positions();
        let inside = match self.plan.direct {
            true => (0..runs.count).take_while(|run| reach + run * runs.pitch <= source.data.len()).count(),
            false => runs.count,
        };
        let left = StridedRuns { elements: outputs..runs.elements.len(), count: inside, ..*runs };
        tile.run(operands, &source, bias, slices, &left, *bounds);
        for run in inside..runs.count {
            let source = Source { base: source.base + run * runs.pitch, ..source };
            let source = self.readable(&source, tile.positions(), positions - first, ragged)?;
            let at = run * runs.step;
            let left = StridedRuns { elements: at + outputs..at + runs.elements.len(), count: 1, ..*runs };
            tile.run(operands, &source, bias, slices, &left, *bounds);
        }
        Ok(())
    }

    /// Computes all phases of one panel per group over `count` flat positions from `position` on,
    /// and stores them through a buffer.
    fn run_chunk(
        &self,
        task: &mut Task<E>,
        groups: Range<usize>,
        panel: &Panel<E::Compute>,
        (source, summed): (&Source<E::Compute>, Range<usize>),
        (position, count, pitch): (usize, usize, usize),
        buffers: &mut Buffers<E::Compute>,
    ) -> TractResult<()> {
        let (problem, plan) = (self.problem, self.plan);
        let axes = &plan.axes;
        let (y, x) = (axes.rows(), axes.columns());
        let stride = count.next_multiple_of(self.kernels.lanes);
        let group_stride = panel.height * stride;
        let phase_stride = groups.len() * group_stride;
        // Sums that are kept between passes have a part for each panel and row phase.
        let kept = plan.keeps_sums();
        let row_phases = task.output.outer_phases.len() * y.out_step;
        let part = self.columns * groups.len() * plan.mr * stride;
        let parts = if kept { self.panels.len() * row_phases } else { 1 };
        let first_part = if kept { panel.first_channel / plan.mr * row_phases } else { 0 };
        // A register transpose may overrun the last row.
        let sums = buffers.tile.of(parts * part + self.kernels.lanes)?;
        let channels = panel.height.min(task.channels.end - panel.first_channel);
        let tile_positions = plan.nv * self.kernels.lanes;
        let last = (stride - 1) / tile_positions * tile_positions;
        let last_source = Source { base: source.base + last, ..*source };
        let last_source = self.readable(&last_source, stride - last, count - last, buffers.ragged)?;
        // Groups are adjacent in the output. In the buffer, their panels are padded.
        let row = |at: usize| at / channels * group_stride + at % channels * stride;
        let rows: SmallVec<[usize; 64]> = (0..groups.len() * channels).map(row).collect();
        let pass = plan.pass.filter(|_| !kept).unwrap_or(source.channels);
        let transposes = rows.len() >= FEWEST_TRANSPOSED || self.interleaves_pixels(rows.len());

        for o in 0..task.output.outer_phases.len() {
            let first = task.output.outer_phases[o] * self.per_outer;
            for (ry, phases) in self.taps.phases[first..first + self.per_outer].chunks(self.columns).enumerate() {
                let at = if kept { (first_part + o * y.out_step + ry) * part } else { 0 };
                let out = &mut sums[at..][..self.columns * phase_stride + self.kernels.lanes];
                let tiles = groups.clone().cartesian_product((0..stride).step_by(tile_positions));
                for (first, (g, at)) in (0..source.channels).step_by(pass).cartesian_product(tiles) {
                    let tile = panel.tiles[((stride - at) / self.kernels.lanes).min(plan.nv) - 1];
                    let bias = g * (self.bias.len() / problem.group) + panel.first_channel;
                    let bias = &self.bias[bias..bias + panel.height];
                    let weights = &self.weights[g * self.group_weights + panel.weights..];
                    let group_offset = (g - groups.start) * problem.group_in * source.channel_stride;
                    let source = match at == last {
                        true => Source { base: last_source.base + group_offset, ..last_source },
                        false => Source { base: source.base + group_offset + at, ..*source },
                    };
                    for (phase, out) in phases.iter().zip(out.chunks_mut(phase_stride)) {
                        let weights = &weights[phase.weights * panel.height..];
                        let out = &mut out[(g - groups.start) * group_stride + at..];
                        let channels = first..source.channels.min(first + pass);
                        run_chains(tile, weights, &source, (&phase.taps, channels, summed.start), bias, out, stride);
                    }
                }
                if summed.end < problem.group_in {
                    continue;
                }
                if problem.data_format == DataFormat::Nxc && transposes {
                    let offsets = (groups.start * problem.group_out + panel.first_channel, o, ry);
                    let (uniform, varying) = self.epilogue.split();
                    uniform.apply(out);
                    let epilogue = (varying, &mut *buffers.row);
                    self.store_pixels(task, offsets, &rows, (position, count, pitch), (out, phase_stride), epilogue)?;
                    continue;
                }
                let mut rows: TVec<&[E::Compute]> = tvec!();
                for run in flat_runs(position..position + count, pitch, 0..task.columns.len()) {
                    let output_row = (task.rows.start + run.row) * y.out_step + ry;
                    if output_row >= task.output.rows.end {
                        break;
                    }
                    let first = (task.columns.start + run.column) * x.out_step;
                    for (g, m) in groups.clone().cartesian_product(0..channels) {
                        rows.clear();
                        for rx in 0..self.columns {
                            let at = rx * phase_stride + (g - groups.start) * group_stride + m * stride + run.at;
                            rows.push(&out[at..at + run.len]);
                        }
                        let channel = task.channel(problem, g, panel.first_channel + m);
                        let epilogue = self.epilogue.of(g * problem.group_out + panel.first_channel + m);
                        task.output.write(self.kernels, channel, o, output_row, first, &rows, epilogue, buffers.row)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the phases of a row form runs without gaps in channels-last data, and few enough
    /// channels per pixel that one interleaving stores them.
    fn interleaves_pixels(&self, channels: usize) -> bool {
        channels == self.problem.group * self.problem.group_out && (2..=16).contains(&(channels * self.columns))
    }

    /// Stores rows of positions as pixels, by register transposes or by interleaving. `rows` are
    /// the rows' offsets in `out`.
    fn store_pixels(
        &self,
        task: &mut Task<E>,
        (channel, outer, phase_row): (usize, usize, usize),
        rows: &[usize],
        (position, count, pitch): (usize, usize, usize),
        (out, phase_stride): (&[E::Compute], usize),
        (epilogue, buffer): (Epilogue<E>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        let axes = &self.plan.axes;
        let (y, x) = (axes.rows(), axes.columns());
        let whole = self.interleaves_pixels(rows.len());
        for run in flat_runs(position..position + count, pitch, 0..task.columns.len()) {
            let row = (task.rows.start + run.row) * y.out_step + phase_row;
            if row >= task.output.rows.end {
                break;
            }
            let first = (task.columns.start + run.column) * x.out_step;
            if whole {
                let row_starts = |rx: usize| rows.iter().map(move |at| rx * phase_stride + at + run.at);
                // An array, as a growing list would take noticeable time.
                let mut interleaved: [&[E::Compute]; 16] = [&[]; 16];
                for (to, at) in interleaved.iter_mut().zip((0..self.columns).flat_map(row_starts)) {
                    *to = &out[at..at + run.len];
                }
                let interleaved = &interleaved[..rows.len() * self.columns];
                task.output.write_whole_pixels(self.kernels, (outer, row, first), interleaved, epilogue, buffer)?;
                continue;
            }
            for rx in 0..self.columns {
                let offsets = (outer, row, first + rx);
                let from = (&out[rx * phase_stride + run.at..], rows, run.len);
                task.output.write_rows(self.kernels, offsets, x.out_step, channel, from, epilogue, buffer)?;
            }
        }
        Ok(())
    }
}

/// The operands that all tiles of a panel share.
struct RowTiles<'a, T: 'static> {
    panel: &'a Panel<T>,
    operands: &'a [PhaseOperand<'a, T>],
    bias: &'a [T],
    bounds: Option<Bounds<T>>,
}

/// Returns a phase's weights in a panel, and the chains of its sum. The chains do not depend on
/// where a row is split.
fn operand_of<'a, T: Compute>(
    panel: &Panel<T>,
    weights: &'a [T],
    phase: &'a Phase,
    channels: usize,
) -> PhaseOperand<'a, T> {
    let taps = &phase.taps[..];
    let chain = channels_per_chain(channels, taps.len());
    let two_chains = panel.row_tiles.last().is_some_and(|widest| widest.two_chains())
        && chain >= channels
        && channels * taps.len() >= FEWEST_IN_TWO_CHAINS;
    PhaseOperand { panel: &weights[phase.weights * panel.height..], taps, chain, two_chains }
}

/// Computes one phase of a tile over some channels of a source, in chains of bounded length. The source begins with
/// channel `first` of its group. The sums of the channels before are in `out`.
fn run_chains<T: Compute>(
    tile: &PositionTile<T>,
    weights: &[T],
    source: &Source<T>,
    (taps, channels, first): (&[usize], Range<usize>, usize),
    bias: &[T],
    out: &mut [T],
    stride: usize,
) {
    // Without taps, a result is its bias.
    let channels = match (taps.is_empty(), first + channels.start) {
        (false, _) => channels,
        (true, 0) => 0..1,
        (true, _) => 0..0,
    };
    let per_chain = channels_per_chain(source.channels, taps.len());
    for from in channels.clone().step_by(per_chain) {
        let part = Source {
            base: source.base + from * source.channel_stride,
            channels: per_chain.min(channels.end - from),
            taps,
            ..*source
        };
        let start = if first + from == 0 { Start::Bias(bias) } else { Start::Add };
        tile.run(&weights[(first + from) * taps.len() * tile.mr()..], &part, start, out, stride);
    }
}
