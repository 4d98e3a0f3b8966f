//! Each phase as a small dense convolution over the shared grid, with fewer products than (tap,
//! position) pairs.
//!
//! Adjacent taps and positions are multiplied in transformed tiles (`src/kernel/tile_transforms.rs`):
//!
//! - Winograd tiles of two results along each axis. More than three taps are split into blocks of
//!   two and three.
//! - Winograd tiles of three results, if there are at most two adjacent taps along each axis.
//! - Cyclic tiles of four results, in blocks of up to three taps along both axes.
//! - Fourier tiles along one axis. The taps of other axes are blocks of their own.
//!
//! The planner chooses by the numbers of products and the cost of transforms. Tiles of a layer with strides read pixels that
//! are as far apart. The last tiles along an axis are short if few results are left (`src/kernel/tile_data.rs`).
//!
//! Per accumulator block, tiles of the input are transformed, with input channels as lanes: once for
//! all phases, and for all taps of an axis without tiles (`tiles.rs`). Then,
//! per panel of output channels, the weights are transformed, and all tiles are multiplied point by
//! point. The products use the kernels and the filter layout of
//! [`direct_channels`](crate::algorithm::direct_channels).
//!
//! Non-finite sums are computed again tap by tap, as an infinity in a transformed tile may become
//! NaN.

mod estimate;
mod tiles;

use crate::algorithm::blocked::{Blocked, GroupedInput, last_width};
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost;
use crate::estimate::machine::Machine;
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{
    Chains, ChannelTile, Dispatch, Kernels, PointStrides, Source, Start, TileData, TileKind, TilePositions,
    short_result, split_positions,
};
use crate::layout::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::layout::input_tile::{CopyPlan, GridBlocks, InputTiles};
use crate::layout::panels::{Panel, PanelShape, Panels};
use crate::layout::taps::TapTable;
use crate::layout::tile_weights::{TermTaps, TileWeights};
use crate::memory::{self, Aligned, Scratch, reserved};
use crate::output::blocks::{AccumulatorShape, AccumulatorTable, Accumulators, PhaseSums};
use crate::output::task::Task;
use crate::ranges::even_part;
use crate::simd::isa::Isa;
use crate::simd::vector::prefetch_all;
use crate::spec::{DataFormat, Problem};
use estimate::{Estimate, Size, tiles_of_phase};
use std::ops::Range;
use tiles::{Lattice, TapBlock, TermPoint, TileInput, TileOrder, TilePhase, TileTable, Tiling, lists_columns};
use tract_core::internal::*;

/// The fewest input channels that were measured.
const FEWEST_CHANNELS: usize = 8;

/// The fewest products inside the input, along an axis with several taps, of any result. With fewer, cancellation in the
/// tiles dominates the rounding error of the sum.
const FEWEST_PRODUCTS: usize = 16;

/// The most (input channel, tap block) pairs whose products are summed in one chain. A result is
/// made of several sums and has the errors of all of them, so chains are short.
const LONGEST_CHAIN: usize = 48;

/// As [`LONGEST_CHAIN`], for Fourier tiles. A pure tone, whose transform has one large value, errs
/// more than with direct sums if chains are longer.
const LONGEST_FOURIER_CHAIN: usize = 32;

/// The most chains whose weights are transformed together. With several, their sums are added in
/// registers or in L1. With few, the weights of a point stay in L1 from tile to tile.
const MOST_CHAINS_OF_PASS: usize = 4;

/// As [`MOST_CHAINS_OF_PASS`], of several tap blocks, if their sums are added in L1.
const CHAINS_OF_SEVERAL_BLOCKS: usize = 2;

/// Register tiles whose products are computed by one call, if weights of the next point are prefetched before each call or
/// chains are added in memory. Otherwise one call computes all.
const TILES_AT_ONCE: usize = 4;

/// The approximate fewest tiles per accumulator block. With fewer, the transformation of the
/// weights would serve too few tiles. Accumulator blocks have more tiles if their part of L2 holds them.
const FEWEST_TILES: usize = 48;

/// As [`FEWEST_TILES`], if the results of some phases begin before their tile. Such phases multiply one more row of tiles
/// per accumulator block.
const FEWEST_TILES_OF_PHASES: usize = 160;

/// The approximate fewest positions per task.
const FEWEST_POSITIONS_OF_TASK: usize = 128;

/// The parts of L2, one of which is for the transformed tiles of an accumulator block. Their products, the
/// weights and the pixels that are read need the others.
const PARTS_OF_L2: usize = 3;

/// The most bytes of the transformed tiles of an accumulator block, as a multiple of L2.
/// Accumulator blocks of layers with many taps have fewer tiles.
const MOST_OF_L2: usize = 4;

/// A filter keeps transformed weights only if the layer's estimate falls below this share of the estimate
/// with weights transformed in each run. Less of a gain is not worth the memory.
const WORTH_THE_MEMORY: f64 = 0.97;

/// The most positions per accumulator block. Layers of few channels would gain nothing from more.
const MOST_POSITIONS: usize = 4096;

/// The pixels of a block, per position of an accumulator block, if a grid has a single row. It has
/// room for the pixels that taps read beyond a block.
const PIXELS_OF_POSITION: usize = 2;

/// The longest period, in positions, after which tiles repeat. An accumulator block has whole
/// periods, and dilation makes them long.
const LONGEST_PERIOD: usize = 1024;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Winograd {
    /// Blocks and panels.
    pub blocked: Blocked,
    /// Tiles per register tile.
    pub tiles: usize,
    /// Input channels per chunk of the filter.
    pub chunk: usize,
    /// Whether the sums of several chains are added in registers.
    in_registers: bool,
    /// Rows and columns of an accumulator block.
    pub window: (usize, usize),
    /// The kind of tiles.
    tiling: Tiling,
    /// The layouts of tiles on rows and columns.
    lattices: [Lattice; 2],
    /// The weights that are transformed when the filter is packed, and their bytes. Otherwise every
    /// run transforms them.
    transformed: Option<Box<(TileWeights, usize)>>,
    /// Whether these weights are prefetched.
    prefetches: bool,
}

/// The tables of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    accumulators: AccumulatorTable,
    tiles: TileTable,
    /// The offsets of the tiles' data in a channel's input tiles.
    offsets: Vec<usize>,
    /// The taps of each term of each phase.
    weights: Vec<Vec<TermTaps>>,
    /// Where the filter has the transformed weights, if it does.
    transformed: Option<TransformedTable>,
}

/// Where a filter has transformed weights. Panels have one of two widths.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TransformedTable {
    /// Elements per group.
    of_group: usize,
    /// Elements per panel but the last.
    of_panel: usize,
    /// Elements of a panel before each term of each phase, for both widths.
    before: [Vec<Vec<usize>>; 2],
}

impl TransformedTable {
    fn new(plan: &Winograd, tiles: &TileTable, weights: &TileWeights, problem: &Problem, lanes: usize) -> Self {
        let Blocked { width, last_width, .. } = plan.blocked;
        let channels = problem.group_in;
        let of_terms = |of: &TilePhase, width: usize| {
            let before = |term| weights.before((of.of_filter, term), channels, width, lanes);
            (0..of.terms.len()).map(before).collect()
        };
        let before = [width, last_width].map(|width| tiles.phases.iter().map(|of| of_terms(of, width)).collect());
        let panels = panel_heights(problem.group_out, width, last_width).map(|(_, width)| width);
        TransformedTable {
            of_group: weights.of_panels(channels, panels, lanes),
            of_panel: weights.of_panel(channels, width, lanes),
            before,
        }
    }

    /// The index of the weights of a term in a filter.
    fn first<T>(&self, plan: &Winograd, g: usize, of: &PhaseSums<T>, term: usize) -> usize {
        let width = usize::from(of.panel.width != plan.blocked.width);
        g * self.of_group + of.panel.index * self.of_panel + self.before[width][of.phase][term]
    }
}

impl Table {
    fn new(plan: &Winograd, problem: &Problem, shape: &AccumulatorShape, lanes: usize) -> TractResult<Table> {
        let (axes, input_tiles) = (&plan.blocked.axes, plan.input_tiles());
        let tiles = TileTable::new(axes, plan.lattices);
        let (down, along) = (input_tiles.steps.0 * input_tiles.pitch, input_tiles.steps.1);
        let offset = |of: &TileInput| input_tiles.tap(&of.shifts) - of.lead[0] * down - of.lead[1] * along;
        let offsets = tiles.data.iter().map(offset).collect();
        let taps = TapTable::new(axes, input_tiles, false, 1, problem.group_in)?;
        let of_filter =
            tiles.weights(axes, |tap_blocks| pass(problem, (plan.tiling, plan.in_registers), plan.chunk, tap_blocks));
        let weights = tiles.phases.iter().map(|of| of_filter[of.of_filter].clone()).collect();
        let transformed = plan.transformed.as_ref();
        let transformed = transformed.map(|of| TransformedTable::new(plan, &tiles, &of.0, problem, lanes));
        let accumulators = AccumulatorTable::new(problem, axes, shape, lanes, taps)?;
        Ok(Table { accumulators, tiles, offsets, weights, transformed })
    }
}

/// The split of a grid into blocks and accumulator blocks.
struct GridSplit {
    block: (usize, usize),
    /// Rows and columns of an accumulator block.
    window: (usize, usize),
}

impl GridSplit {
    fn of(
        axes: &Axes,
        lattices: [Lattice; 2],
        tiles: &TileTable,
        channel_bytes: usize,
        machine: &Machine,
    ) -> GridSplit {
        let (_, y, x) = axes.parts();
        let [of_rows, of_columns] = lattices.map(Lattice::period);
        let results_of = |several: [bool; 2]| {
            let of_axis =
                lattices.iter().zip(several).filter(|(_, several)| *several).map(|(lattice, _)| lattice.results);
            of_axis.product::<usize>()
        };
        let bytes_of = |of: &TileInput| (of.kind.points() * channel_bytes) as f64 / results_of(of.several) as f64;
        let of_position: f64 = tiles.data.iter().map(bytes_of).sum();
        let within = |bytes: usize| (bytes as f64 / of_position.max(1.0)) as usize;
        let results = results_of(lattices.map(|lattice| lattice.gap.is_some()));
        let tiles = if lattices.iter().any(|lattice| lattice.lead > 0) { FEWEST_TILES_OF_PHASES } else { FEWEST_TILES };
        let fewest = (tiles * results).min(within(MOST_OF_L2 * machine.l2)).min(MOST_POSITIONS);
        let positions = within(machine.l2 / PARTS_OF_L2).clamp(fewest, MOST_POSITIONS);
        // The pixels of a single row are split into blocks: they are not to be smaller than
        // accumulator blocks.
        let least = if y.grid == 1 { positions * PIXELS_OF_POSITION } else { 0 };
        let (rows, columns) = GridBlocks::within(axes, false, (machine.l2 / channel_bytes).max(least));
        let in_parts =
            |grid: usize, parts: usize, period: usize| grid.div_ceil(parts).next_multiple_of(period).min(grid);
        let even = |grid: usize, size: usize, period: usize| {
            in_parts(grid, grid.div_ceil(size.next_multiple_of(period)), period)
        };
        let block = (even(y.grid, rows, of_rows), even(x.grid, columns, of_columns));
        let rows = (positions / block.1 / of_rows * of_rows).clamp(of_rows, block.0.max(of_rows));
        // The nearest number of parts, as tiles of several phases are not whole at either end.
        let near =
            |grid: usize, size: usize, period: usize| in_parts(grid, ((grid + size / 2) / size.max(1)).max(1), period);
        let rows = near(block.0, rows, of_rows);
        GridSplit { block, window: (rows, near(block.1, positions / rows, of_columns)) }
    }
}

/// Elements per pixel of the transformed input: an odd number of vectors.
fn channels_of(problem: &Problem, lanes: usize) -> usize {
    (problem.group_in.div_ceil(lanes) | 1) * lanes
}

/// The most products of a chain.
fn longest_chain(tiling: Tiling) -> usize {
    if matches!(tiling, Tiling::Fourier { .. }) { LONGEST_FOURIER_CHAIN } else { LONGEST_CHAIN }
}

/// The input channels of a chain of a term of so many tap blocks. A chain has one tap block, or several if all its input
/// channels have few products.
fn chain(problem: &Problem, tiling: Tiling, tap_blocks: usize) -> usize {
    let longest = longest_chain(tiling);
    even_part(problem.group_in, (MOST_CHAINS_OF_PASS * longest / tap_blocks.max(1)).clamp(1, longest))
}

/// The tap blocks of a chain of so many input channels. The weights of those of different runs are not adjacent.
fn blocks_of_chain(tiling: Tiling, chain: usize, point: &TermPoint) -> usize {
    if point.runs.len() > 1 { 1 } else { even_part(point.blocks, longest_chain(tiling) / chain.max(1)) }
}

/// The input channels of a term of so many tap blocks whose weights are transformed together: those of some chains.
fn pass(problem: &Problem, (tiling, in_registers): (Tiling, bool), chunk: usize, tap_blocks: usize) -> usize {
    let chain = chain(problem, tiling, tap_blocks);
    let chains = if tap_blocks == 1 || in_registers { MOST_CHAINS_OF_PASS } else { CHAINS_OF_SEVERAL_BLOCKS };
    let pass = (chains * longest_chain(tiling) / tap_blocks.max(1) / chain).max(1) * chain;
    // The weights of a chunk are adjacent.
    if chunk < pass { pass / chunk * chunk } else { pass }
}

impl Algorithm for Winograd {
    type Tables = Table;

    const READS_PARTS: bool = true;

    fn propose(query: &Query) -> Result<Winograd, String> {
        let &Query { problem, datum_type, machine, .. } = query;
        if !datum_type.is_float() {
            return Err("its transforms halve weights, which integers do not allow".to_string());
        }
        let axes = query.axes()?;
        let forced = query.forced(|layout| match layout {
            FilterLayout::Chunks { width, last_width, chunk } => Some((*width, *last_width, *chunk)),
            _ => None,
        })?;
        let (lanes, tiles) = (query.sizes.lanes, &query.sizes.channel_tiles);
        // With fewer output channels, most of a vector of weights would be zeros.
        if problem.group_in < FEWEST_CHANNELS || 2 * problem.group_out < lanes {
            let (inputs, outputs) = (problem.group_in, problem.group_out);
            return Err(format!("groups of {inputs} to {outputs} channels are too small"));
        }
        let few = axes.iter().filter(|_| problem.group_in < FEWEST_PRODUCTS).filter_map(AxisPhases::fewest_taps_inside);
        if let Some(inside) = few.min().filter(|inside| inside * problem.group_in < FEWEST_PRODUCTS) {
            let inputs = problem.group_in;
            return Err(format!(
                "some results have {inside} taps of {inputs} channels inside the input, too few products"
            ));
        }
        let (outer, y, x) = axes.parts();
        let candidates = Tiling::of(axes, query.local_accuracy);
        if candidates.is_empty() {
            return Err("no axis has several positions and adjacent taps".to_string());
        }
        let period = |lattices: [Lattice; 2]| lattices.map(Lattice::period).into_iter().fold(1, usize::saturating_mul);
        let shortest = candidates.iter().map(|(_, lattices)| period(*lattices)).min().unwrap_or(0);
        if shortest > LONGEST_PERIOD {
            return Err(format!("dilation is too large, as tiles repeat only after {shortest} positions"));
        }
        let element = query.element;
        let mut best: Option<Winograd> = None;
        let mut declined = "no kernel has the tile that the filter is packed for".to_string();
        for (tiling, lattices) in candidates {
            if query.leaves_out(tiling.name()) || period(lattices) > LONGEST_PERIOD {
                continue;
            }
            let table = TileTable::new(axes, lattices);
            // A chain of one input channel would be too long, and its sums slow to add up.
            let blocks_of = table.phases.iter().flat_map(|of| &of.terms).map(|term| term.tap_blocks.len());
            if let Some(blocks) = blocks_of.max().filter(|blocks| *blocks > longest_chain(tiling)) {
                declined = format!("{blocks} blocks of taps, a chain has at most {}", longest_chain(tiling));
                continue;
            }
            let GridSplit { block, window } =
                GridSplit::of(axes, lattices, &table, channels_of(problem, lanes) * element, machine);
            let blocks = GridBlocks::even(axes, block, false, false);
            let input_tiles = InputTiles::unsplit(axes, blocks.rows, blocks.columns);
            let outer: usize = outer.iter().map(|axis| axis.grid).product();
            let phases = axes.phases();
            let copied = cost::filled(&input_tiles, problem.group_in, lanes, cost::copied(DataFormat::Ncx, 1));
            let store = cost::store_of_channels(problem, datum_type, machine);
            let chunk = forced.map_or(problem.group_in, |f| f.2);
            let weights = [false, true].map(|in_registers| {
                let pass = |tap_blocks| pass(problem, (tiling, in_registers), chunk, tap_blocks);
                TileWeights::new(query.isa, table.weights(axes, pass))
            });
            let beyond = cost::beyond_caches(problem, datum_type, cost::BEYOND_BY_PIXELS, lanes, machine);
            for (positions, nv) in tiles.iter().copied().filter(|(positions, nv)| positions * nv >= 6) {
                let width = nv * lanes;
                let last_width = last_width(problem.group_out, width, lanes);
                if forced.is_some_and(|f| (f.0, f.1) != (width, last_width)) {
                    continue;
                }
                let in_registers = query.sizes.chained_tiles.contains(&(1, nv));
                let weights = &weights[usize::from(in_registers)];
                let register_tile = (positions, nv);
                let last_nv = last_width / lanes;
                let estimate =
                    Estimate { query, table: &table, tiling, lattices, chunk, register_tile, last_nv, in_registers };
                let panel_widths = panel_heights(problem.group_out, width, last_width).map(|(_, width)| width);
                let of_group = weights.of_panels(problem.group_in, panel_widths, lanes).saturating_mul(element);
                let bytes = of_group.saturating_mul(problem.group);
                let ways: &[bool] = match query.layout {
                    None if bytes <= query.transformed_bytes => &[false, true],
                    Some(FilterLayout::Tiles { tiles, .. }) if tiles == weights => &[true],
                    _ => &[false],
                };
                for &in_filter in ways {
                    let multiplied = estimate.of_grid([y.grid, x.grid], window, in_filter.then_some(bytes));
                    let vectors_out = estimate.vectors_out();
                    let stored = store.times(&[y.grid, x.grid, vectors_out, phases]);
                    let image = (multiplied + stored) * outer + copied * blocks.count;
                    let cost = (image.times(&[problem.group, problem.batch]) + beyond).rounded();
                    let is_worth = |less: u64| match in_filter && ways.len() > 1 {
                        true => (cost as f64) < less as f64 * WORTH_THE_MEMORY,
                        false => cost < less,
                    };
                    if best.as_ref().is_none_or(|best| is_worth(best.blocked.cost)) {
                        best = Some(Winograd {
                            blocked: Blocked {
                                width,
                                last_width,
                                rows: block.0,
                                columns: block.1,
                                copy_per_shift: false,
                                overhang: (lattices[0].overhang, lattices[1].overhang),
                                cost,
                                axes: axes.clone(),
                            },
                            tiles: positions,
                            chunk,
                            in_registers,
                            window,
                            tiling,
                            lattices,
                            transformed: in_filter.then(|| Box::new((weights.clone(), bytes))),
                            // The other half of L2 holds the data of an accumulator block.
                            prefetches: in_filter && bytes > machine.l2 / 2,
                        });
                    }
                }
            }
        }
        best.ok_or(declined)
    }

    fn cost(&self) -> Option<u64> {
        Some(self.blocked.cost)
    }

    fn variant(&self) -> &'static str {
        self.tiling.name()
    }

    fn mixes_results(&self) -> bool {
        self.tiling.mixes_results()
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let Blocked { width, ref axes, .. } = self.blocked;
        let input_tiles = self.input_tiles();
        // Pixels have an odd number of whole vectors and are made from a vector of planes.
        let channels = problem.group_in.saturating_add(4 * width);
        let block = input_tiles
            .working_bytes(channels, element)
            .saturating_add(self.slack(&input_tiles).saturating_mul(channels * element));
        let table = TileTable::new(axes, self.lattices);
        let of_data =
            |of: &TileInput| tiles_of_data(self.lattices, of.several, self.window).saturating_mul(of.kind.points());
        let data = table.data.iter().map(of_data).fold(0, usize::saturating_add).saturating_mul(channels);
        let size = [self.window.0, self.window.1].map(|len| Size { len, is_last: false, count: 1 });
        let terms = || table.phases.iter().flat_map(|of| of.terms.iter().map(move |term| (of, term)));
        let points = terms().map(|(of, term)| {
            tiles_of_phase(self.lattices, of, size, (false, false)).saturating_mul(term.kind.points())
        });
        // See [`pass`].
        let weights = terms().map(|(_, term)| term.kind.points() * MOST_CHAINS_OF_PASS * LONGEST_CHAIN);
        let weights = weights.max().filter(|_| self.transformed.is_none()).unwrap_or(0);
        let points = points.max().unwrap_or(0);
        data.saturating_add(points.saturating_add(weights).saturating_mul(width))
            .saturating_mul(element)
            .saturating_add(block)
            .saturating_add(self.blocked.working_bytes(problem, self.shape().most, element))
    }

    fn filter_layout(&self) -> FilterLayout {
        let (Blocked { width, last_width, .. }, chunk) = (&self.blocked, self.chunk);
        let (width, last_width) = (*width, *last_width);
        match &self.transformed {
            Some(of) => FilterLayout::Tiles { width, last_width, chunk, tiles: of.0.clone() },
            None => FilterLayout::Chunks { width, last_width, chunk },
        }
    }

    fn explain(&self) -> String {
        let weights = match &self.transformed {
            Some(of) => format!("weights transformed in the filter, {} bytes", of.1),
            None => "weights transformed in each run".to_string(),
        };
        let of_taps = match self.tiling {
            Tiling::Fourier { taps, .. } if self.lattices[0].gap.is_some() => format!(" for {taps} taps down columns"),
            Tiling::Fourier { taps, .. } => format!(" for {taps} taps along rows"),
            Tiling::Winograd { .. } | Tiling::Cyclic => String::new(),
        };
        format!(
            "{}{of_taps}, {weights}, products of {}x{}, accumulator blocks of {}x{} positions, blocks of {}x{} positions",
            self.variant(),
            self.tiles,
            self.blocked.width,
            self.window.0,
            self.window.1,
            self.blocked.rows,
            self.blocked.columns
        )
    }

    fn tables(&self, problem: &Problem, lanes: usize) -> TractResult<Table> {
        Table::new(self, problem, &self.shape(), lanes)
    }

    fn run<E: Element>(
        &self,
        tables: &Table,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands, tables)?;
        let [rows, columns] = self.lattices.map(Lattice::period);
        let partition = self.blocked.partition(problem, FEWEST_POSITIONS_OF_TASK, [rows, 1]).in_steps([rows, columns]);
        let tiles = Some(&prepared.table.accumulators.taps.input_tiles);
        self.blocked.run(problem, &partition, (&prepared.input, tiles), output, |task, g, copy_plan, scratch| {
            prepared.run_group(task, g, copy_plan.context("winograd: a task without a copy plan")?, scratch)
        })
    }
}

/// The tiles of an accumulator block of `window` rows and columns whose data are transformed.
fn tiles_of_data(lattices: [Lattice; 2], several: [bool; 2], window: (usize, usize)) -> usize {
    let of_axis = |axis: usize, len: usize| {
        let lattice: Lattice = lattices[axis];
        lattice.count(several[axis], lattice.lead, len) + lattice.beyond
    };
    of_axis(0, window.0).saturating_mul(of_axis(1, window.1))
}

impl Winograd {
    /// The input tiles of a block.
    fn input_tiles(&self) -> InputTiles {
        let Blocked { rows, columns, overhang, ref axes, .. } = self.blocked;
        InputTiles::unsplit(axes, rows + overhang.0, columns + overhang.1)
    }

    fn shape(&self) -> AccumulatorShape {
        let columns = self.blocked.axes.columns();
        AccumulatorShape {
            width: self.blocked.width,
            positions: self.tiles,
            most: if self.window.0 == 1 { self.window.1 } else { self.window.0 * columns.grid },
            by_row: true,
            window: Some(self.window),
            passes: None,
            panels_first: true,
            in_output: false,
        }
    }

    /// Pixels after the input tiles of a block. The last tiles may have results outside the block.
    fn slack(&self, input_tiles: &InputTiles) -> usize {
        if self.tiling.mixes_results() {
            return 0;
        }
        let [rows, columns] = self.lattices.map(|lattice| (lattice.results - 1) * lattice.gap.unwrap_or(0));
        rows.saturating_mul(input_tiles.pitch).saturating_add(columns)
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a Winograd,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    table: &'a Table,
    panels: Panels<'a, E>,
    /// The weights that were transformed when the filter was packed.
    transformed: Option<(&'a TransformedTable, &'a [E::Compute])>,
    /// Zeros, as many as a tap has weights in a pass.
    zeros: Vec<E::Compute>,
    input: GroupedInput<'a, E>,
    accumulators: Accumulators<'a, E>,
}

/// The input of a block, as pixels of channels.
#[derive(Clone, Copy)]
struct Pixels<'a, T> {
    data: &'a [T],
    /// Elements per pixel.
    size: usize,
    /// Pixels per row.
    pitch: usize,
    /// Rows and columns of pixels from a position of the grid to the next.
    steps: (usize, usize),
}

impl<T> Pixels<'_, T> {
    /// Elements from a position of the grid to the next along rows and columns.
    fn strides(&self) -> [usize; 2] {
        [self.steps.0 * self.pitch * self.size, self.steps.1 * self.size]
    }
}

/// Positions of the grid: those of an accumulator block.
#[derive(Clone)]
struct Window {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The tiles of an accumulator block that have results along the same axes.
struct Tiles {
    order: TileOrder,
    /// The tiles that points multiply, by whether they are zero in tiles that are short along rows and columns.
    multiplied: [Range<usize>; 4],
    /// The index of each tile's first pixel in the block's input.
    starts: Vec<usize>,
}

/// How the products of a point are computed.
struct Calls<T: 'static> {
    /// Whether there are several chains.
    several: bool,
    /// Tap blocks and input channels of a chain.
    chains: (usize, usize),
    /// The register tiles: see [`split_positions`].
    tiles: TVec<(&'static ChannelTile<T>, usize, usize)>,
}

/// What the products of a point are made of.
struct PointOperands<'a, T> {
    weights: &'a [T],
    /// The index of the weights of each tap block, `[input channel][output channel]`.
    weights_of: &'a [usize],
    /// The weights of the next point, which are prefetched part by part. Empty if none are.
    ahead: &'a [T],
    /// The transformed data.
    data: &'a [T],
    /// The index of the first tile in the data of a tap block.
    first: usize,
    /// The index of the data of each tap block.
    data_of: &'a [usize],
    /// Input channels.
    channels: usize,
    start: Start<'a, T>,
}

impl<T: Compute> Calls<T> {
    /// Multiplies the tiles `multiplied` of a point, by calls for at most `at_once` register tiles. `strides` are the
    /// elements between tiles in the data and in the products.
    fn run(
        &self,
        of: &PointOperands<T>,
        (multiplied, at_once): (Range<usize>, usize),
        strides: (usize, usize),
        products: &mut [T],
    ) {
        let chains = Chains { weights: of.weights_of, taps: self.chains.0, channels: self.chains.1 };
        for &(tile, before, tiles) in &self.tiles {
            let mut some = 0;
            while some < tiles {
                let (at, tiles) = (before + some * tile.positions(), at_once.min(tiles - some));
                if !of.ahead.is_empty() {
                    let part = |at: usize| of.ahead.len() * at / multiplied.len();
                    prefetch_all(&of.ahead[part(at)..part(at + tiles * tile.positions())]);
                }
                some += tiles;
                let at = multiplied.start + at;
                let positions = TilePositions { tiles, stride: strides.0, out_stride: strides.1 };
                let source = Source {
                    data: of.data,
                    base: of.first + at * strides.0,
                    channel_stride: 1,
                    channels: of.channels,
                    taps: of.data_of,
                    prefetch: false,
                };
                let to = &mut products[at * strides.1..];
                if self.several {
                    tile.run_chains(of.weights, &source, &chains, of.start, to, positions);
                } else {
                    tile.run(&of.weights[of.weights_of[0]..], &source, (of.start, None), to, positions);
                }
            }
        }
    }
}

/// Where the results of a phase's tiles go.
struct Results {
    /// The first tile that has results of the phase. Others follow it.
    first: usize,
    /// The index of each tile's results among the accumulator block's sums. Results outside the accumulator block go
    /// after its sums.
    offsets: Vec<usize>,
}

/// What the phases of an accumulator block share, as far as it has been computed.
struct Transformed {
    /// By whether they have several results along rows and columns.
    tiles: [Option<Tiles>; 4],
    /// The offset of each data's transformed tiles.
    data: Vec<Option<usize>>,
    /// Whether all data of each phase are transformed.
    is_complete: Vec<bool>,
    /// Elements of transformed tiles.
    used: usize,
    /// Per phase. They serve all accumulator blocks of a size.
    results: Vec<Option<Results>>,
    /// The size of an accumulator block, and whether it has the last rows and columns of the grid.
    size: ([usize; 2], [bool; 2]),
}

impl Transformed {
    fn new(tiles: &TileTable) -> Transformed {
        Transformed {
            tiles: [const { None }; 4],
            data: vec![None; tiles.data.len()],
            is_complete: vec![false; tiles.phases.len()],
            used: 0,
            results: tiles.phases.iter().map(|_| None).collect(),
            size: ([0, 0], [false, false]),
        }
    }

    /// Begins with another accumulator block, of a grid of so many rows and columns.
    fn begin(&mut self, window: &Window, grid: [usize; 2]) {
        self.tiles = [const { None }; 4];
        self.data.fill(None);
        self.is_complete.fill(false);
        self.used = 0;
        let positions = [&window.rows, &window.columns];
        let is_last = [0, 1].map(|axis: usize| positions[axis].end == grid[axis]);
        let size = (positions.map(|of| of.len()), is_last);
        if self.size != size {
            self.size = size;
            self.results.iter_mut().for_each(|results| *results = None);
        }
    }
}

/// The index of what depends on a property of rows and of columns.
fn index_of([rows, columns]: [bool; 2]) -> usize {
    2 * usize::from(rows) + usize::from(columns)
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a Winograd,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
        tables: &'a Table,
    ) -> TractResult<Self> {
        let axes = &plan.blocked.axes;
        let shape = plan.shape();
        let panels = PanelShape {
            widths: (plan.blocked.width, plan.blocked.last_width),
            positions: plan.tiles,
            weights: tables.accumulators.taps.weights,
        };
        let transformed = tables.transformed.as_ref();
        let transformed =
            transformed.map(|of| TractResult::Ok((of, filter.transformed::<E::Compute>()?))).transpose()?;
        Ok(Prepared {
            transformed,
            plan,
            problem,
            kernels,
            table: tables,
            panels: Panels::new(problem, kernels, panels, filter, operands.bias)?,
            zeros: memory::zeros("weights of zero", plan.blocked.width * MOST_CHAINS_OF_PASS * LONGEST_CHAIN)?,
            input: GroupedInput::new(problem, axes, operands.input),
            accumulators: Accumulators::new(problem, axes, kernels, shape, &tables.accumulators, operands.epilogue),
        })
    }

    fn run_group(
        &self,
        task: &mut Task<E>,
        g: usize,
        copy_plan: &CopyPlan,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let (plan, lanes) = (self.plan, self.kernels.lanes);
        let input_tiles = &self.table.accumulators.taps.input_tiles;
        let Scratch { block, tile, ragged, transformed: [data, weights, products], .. } = scratch;
        let size = match self.problem.data_format {
            // An odd number of vectors, as pixels a power of two apart would compete for the same
            // cache sets.
            DataFormat::Ncx => self.channels(),
            DataFormat::Nxc => self.problem.group_in,
        };
        let inside = size * input_tiles.channel_stride;
        let pixels = block.of(inside + size * plan.slack(input_tiles) + lanes)?;
        let (source, to) = (self.input.of(task, g), (&mut pixels[..inside], size));
        self.input.fill_pixels((self.kernels, input_tiles), copy_plan, &source, to, (ragged, tile))?;
        let pixels = Pixels { data: pixels, size, pitch: input_tiles.pitch, steps: input_tiles.steps };
        let origin = (task.rows.start, task.columns.start);
        let pitch = task.columns.len();
        let first_panel = self.panels.within(task.channels.clone()).next().map(|panel| panel.index);
        let first_phase = task.output.outer_phases.first().map(|outer| outer * self.phases_per_outer());
        let first = (first_panel, first_phase);
        // Allocates for all data at once, as growing the buffer would lose its contents.
        let of_data = |of: &TileInput| {
            let tiles = tiles_of_data(plan.lattices, of.several, plan.window);
            self.strides(of.kind, tiles, self.channels()).1
        };
        let data = data.of(self.table.tiles.data.iter().map(of_data).sum())?;
        let mut transformed = Transformed::new(&self.table.tiles);
        let panels = self.panels.within(task.channels.clone());
        self.accumulators.run(task, (g, pitch), panels, (tile, ragged), |of, sums| {
            let window = window_of(&of, origin, pitch);
            if let Some(window) = window.as_ref().filter(|_| (Some(of.panel.index), Some(of.phase)) == first) {
                transformed.begin(window, self.grid());
            }
            if let Some(window) = window {
                self.transform(of.phase, &window, (origin, pitch, pixels), (&mut transformed, data))?;
            }
            if !self.multiply(g, &of, &transformed, data, (weights, products), sums)? {
                self.repair(g, &of, pitch, pixels, sums);
            }
            Ok(())
        })
    }

    /// See [`channels_of`].
    fn channels(&self) -> usize {
        channels_of(self.problem, self.kernels.lanes)
    }

    /// The layout of so many transformed tiles of `size` elements per point, and all of their elements.
    ///
    /// Distances are odd numbers of vectors, as the points of a tile would otherwise compete for the
    /// same cache sets.
    fn strides(&self, kind: TileKind, tiles: usize, size: usize) -> (PointStrides, usize) {
        let odd = |elements: usize| ((elements / self.kernels.lanes) | 1) * self.kernels.lanes;
        let point = odd(tiles * size);
        (PointStrides { point, tile: size }, kind.points() * point)
    }

    /// Rows and columns.
    fn grid(&self) -> [usize; 2] {
        let (_, y, x) = self.plan.blocked.axes.parts();
        [y.grid, x.grid]
    }

    /// Phases of rows and columns.
    fn phases_per_outer(&self) -> usize {
        let (_, y, x) = self.plan.blocked.axes.parts();
        y.out_step * x.out_step
    }

    /// Returns the tiles of an accumulator block of a block that begins at `origin`.
    fn tiles(
        &self,
        several: [bool; 2],
        window: &Window,
        (origin, pixels): ((usize, usize), Pixels<E::Compute>),
    ) -> TractResult<Tiles> {
        let [y, x] = self.plan.lattices;
        let rows = y.origins(several[0], window.rows.start..window.rows.end + y.beyond);
        let columns = x.origins(several[1], window.columns.start..window.columns.end + x.beyond);
        let [down, along] = pixels.strides();
        let rows: Vec<usize> = rows.map(|row| (row - origin.0) * down).collect();
        let columns: Vec<usize> = columns.map(|column| (column - origin.1) * along).collect();
        let order = self.order(several, window, true);
        let mut starts = reserved("winograd tiles", rows.len() * columns.len())?;
        let sections = order.sections();
        let places = sections.iter().flat_map(|section| order.places(section));
        starts.extend(places.map(|[row, column]| rows[row] + columns[column]));
        let zero = [(false, false), (false, true), (true, false), (true, true)];
        Ok(Tiles { order, multiplied: zero.map(|zero| order.multiplied(zero)), starts })
    }

    /// See [`TileOrder::new`].
    fn order(&self, several: [bool; 2], window: &Window, beyond: bool) -> TileOrder {
        let positions = [&window.rows, &window.columns];
        TileOrder::new(self.plan.lattices, several, positions, self.grid(), beyond)
    }

    /// Returns where the results of a phase's tiles go.
    fn results(&self, phase: usize, window: &Window, pitch: usize) -> TractResult<Results> {
        let (plan, of) = (self.plan, &self.table.tiles.phases[phase]);
        let width = plan.blocked.width;
        let outside = plan.shape().most * width;
        // Along an axis, the offset of each result of each tile, of whole tiles or of short ones. That of results outside
        // the accumulator block is `outside`.
        let along = |axis: usize, positions: &Range<usize>, step: usize, short: bool| -> TractResult<Vec<usize>> {
            let (lattice, lead, several) = (plan.lattices[axis], of.lead[axis], of.several[axis]);
            let gap = lattice.gap.filter(|_| several);
            let tiles = lattice.count(several, lattice.lead, positions.len());
            let mut offsets = reserved("winograd tiles", tiles * lattice.results)?;
            let place = |i: usize| if short { short_result(i, lattice.results) } else { Some(i) };
            let ahead = |i: usize| if i == 0 { Some(0) } else { Some(i * gap?) };
            for origin in lattice.origins(several, positions.clone()) {
                let position = |ahead: usize| (origin + ahead).checked_sub(lead).filter(|at| positions.contains(at));
                let offset = |at: usize| (at - positions.start) * step;
                let offset = |i: usize| place(i).and_then(ahead).and_then(position).map_or(outside, offset);
                offsets.extend((0..lattice.results).map(offset));
            }
            Ok(offsets)
        };
        let both = |axis: usize, positions: &Range<usize>, step: usize| -> TractResult<[Vec<usize>; 2]> {
            Ok([along(axis, positions, step, false)?, along(axis, positions, step, true)?])
        };
        let (rows, columns) = (both(0, &window.rows, pitch * width)?, both(1, &window.columns, width)?);
        let [of_row, of_column] = plan.lattices.map(|lattice| lattice.results);
        let order = self.order(of.several, window, false);
        let of_tile = of_row * of_column;
        let mut offsets = reserved("winograd tiles", rows[0].len() * columns[0].len())?;
        for section in &order.sections() {
            let (rows, columns) = (&rows[usize::from(section.1.0)], &columns[usize::from(section.1.1)]);
            for [row, column] in order.places(section) {
                let columns = &columns[column * of_column..][..of_column];
                for row in &rows[row * of_row..][..of_row] {
                    offsets.extend(columns.iter().map(|column| (row + column).min(outside)));
                }
            }
        }
        // The first tiles, or the last ones, may be ones that only other phases have results in.
        let has_results = |tile: &[usize]| tile.iter().any(|offset| *offset < outside);
        let first = offsets.chunks(of_tile).position(has_results).unwrap_or(0);
        let end = offsets.chunks(of_tile).rposition(has_results).map_or(first, |last| last + 1);
        offsets.truncate(end * of_tile);
        offsets.drain(..first * of_tile);
        Ok(Results { first, offsets })
    }

    /// Transforms what a phase reads of an accumulator block, unless another phase has read it.
    fn transform(
        &self,
        phase: usize,
        window: &Window,
        (origin, pitch, pixels): ((usize, usize), usize, Pixels<E::Compute>),
        (transformed, to): (&mut Transformed, &mut [E::Compute]),
    ) -> TractResult<()> {
        let of_phase = &self.table.tiles.phases[phase];
        if transformed.is_complete[phase] || of_phase.terms.is_empty() {
            return Ok(());
        }
        transformed.is_complete[phase] = true;
        if transformed.results[phase].is_none() {
            transformed.results[phase] = Some(self.results(phase, window, pitch)?);
        }
        let index = index_of(of_phase.several);
        let tiles = match &mut transformed.tiles[index] {
            Some(tiles) => &*tiles,
            none => none.insert(self.tiles(of_phase.several, window, (origin, pixels))?),
        };
        let lanes = self.kernels.lanes;
        let [down, along] = pixels.strides();
        let [rows, columns] = self.plan.lattices.map(|lattice| lattice.gap.unwrap_or(0));
        let (down, along) = (rows * down, columns * along);
        for block in of_phase.terms.iter().flat_map(|term| &term.tap_blocks) {
            if transformed.data[block.data].is_some() {
                continue;
            }
            let kind = self.table.tiles.data[block.data].kind;
            // A Fourier tile has one axis. The other one's step is zero.
            let steps = if matches!(kind, TileKind::Fourier { .. }) { (0, down + along) } else { (down, along) };
            let (strides, len) = self.strides(kind, tiles.starts.len(), self.channels());
            let mut first = 0;
            for ([rows, columns], short) in tiles.order.sections() {
                let data = TileData {
                    pixels: &pixels.data[self.table.offsets[block.data] * pixels.size..],
                    starts: &tiles.starts[first..first + rows.len() * columns.len()],
                    steps,
                    channels: self.problem.group_in.next_multiple_of(lanes),
                    short,
                };
                let to = &mut to[transformed.used + first * strides.tile..];
                self.kernels.tile_transforms(kind).data(&data, to, strides);
                first += data.starts.len();
            }
            transformed.data[block.data] = Some(transformed.used);
            transformed.used += len;
        }
        Ok(())
    }

    /// Computes the sums of a phase over an accumulator block. Returns whether all of them are
    /// finite.
    fn multiply(
        &self,
        g: usize,
        of: &PhaseSums<E::Compute>,
        transformed: &Transformed,
        data: &[E::Compute],
        (weights, products): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
        sums: &mut [E::Compute],
    ) -> TractResult<bool> {
        let (plan, problem, lanes) = (self.plan, self.problem, self.kernels.lanes);
        let width = of.panel.width;
        let bias = self.panels.bias(g, of.panel);
        let of_phase = &self.table.tiles.phases[of.phase];
        let tiles = transformed.tiles[index_of(of_phase.several)].as_ref();
        let Some((Results { first, offsets }, tiles)) = transformed.results[of.phase].as_ref().zip(tiles) else {
            for run in of.runs {
                let pixels = sums[run.at..].chunks_mut(plan.blocked.width).take(run.positions.len());
                pixels.for_each(|sums| sums[..width].copy_from_slice(bias));
            }
            return Ok(true);
        };
        let mut finite = true;
        let mut start = Start::Bias(bias);
        for (at_term, (term, taps)) in of_phase.terms.iter().zip(&self.table.weights[of.phase]).enumerate() {
            let in_filter = self.transformed.map(|(at, filter)| &filter[at.first(plan, g, of, at_term)..]);
            let transforms = self.kernels.tile_transforms(term.kind);
            let points = term.kind.points();
            let count = offsets.len() / term.kind.offsets();
            let (of_data, _) = self.strides(term.kind, tiles.starts.len(), self.channels());
            let step = tiles.order.inner() * of_data.tile;
            let offset = |block: &TapBlock| {
                let outer = block.ahead[usize::from(lists_columns(self.plan.lattices))];
                transformed.data[block.data].map(|begin| begin + outer * step).context("winograd: data of no phase")
            };
            let tap_blocks: TVec<usize> = term.tap_blocks.iter().map(offset).collect::<TractResult<_>>()?;
            let (of_products, len) = self.strides(term.kind, count, width);
            let products = products.of(len)?;
            for from in (0..problem.group_in).step_by(taps.pass) {
                let pass = from..(from + taps.pass).min(problem.group_in);
                let of_point = taps.of_point(pass.len(), width, lanes);
                let of_pass = in_filter.map(|filter| &filter[taps.before(from, width, lanes)..]);
                let weights = match of_pass {
                    Some(filter) => filter,
                    None => {
                        let weights = weights.of(points * of_point)?;
                        let chunk_of = |channel| self.chunk(g, of, channel);
                        taps.transform(&transforms, &pass, width, chunk_of, &self.zeros, (weights, of_point));
                        weights
                    }
                };
                // Where the weights of each block of taps are.
                let weights_of: TVec<usize> = (0..tap_blocks.len()).map(|block| block * pass.len() * width).collect();
                let mut calls = None;
                for (at, point) in term.points.iter().enumerate() {
                    let runs = &point.runs;
                    // The next weights, which are prefetched part by part.
                    let prefetched = of_pass.filter(|_| plan.prefetches);
                    let ahead = prefetched.map_or(&[][..], |filter| &filter[(at + 1) * of_point..]);
                    let ahead = &ahead[..of_point.min(ahead.len())];
                    let weights = &weights[at * of_point..][..of_point];
                    let products = &mut products[at * of_products.point..];
                    // The tiles that are multiplied, of those of the phase. The products of others are zero.
                    let multiplied = &tiles.multiplied[index_of(point.zero_if_short.into())];
                    let multiplied = match runs.is_empty() {
                        true => 0..0,
                        false => {
                            multiplied.start.saturating_sub(*first)..multiplied.end.saturating_sub(*first).min(count)
                        }
                    };
                    if from == 0 && multiplied.len() < count {
                        let tiles = (0..multiplied.start.min(count)).chain(multiplied.end..count);
                        tiles.for_each(|tile| products[tile * of_products.tile..][..width].fill(E::Compute::ZERO));
                    }
                    if multiplied.is_empty() {
                        continue;
                    }
                    let joined: [TVec<usize>; 2];
                    let (data_of, weights_of) = if let [run] = &runs[..] {
                        (&tap_blocks[run.clone()], &weights_of[run.clone()])
                    } else {
                        let of_runs = |of: &[usize]| runs.iter().flat_map(|run| &of[run.clone()]).copied().collect();
                        joined = [of_runs(&tap_blocks), of_runs(&weights_of)];
                        (&joined[0][..], &joined[1][..])
                    };
                    // Most points have the same chains and register tiles.
                    let key = (multiplied.len(), point.blocks, runs.len());
                    if calls.as_ref().is_none_or(|(of, _)| *of != key) {
                        calls =
                            Some((key, self.calls(of.panel, multiplied.len(), point, (pass.len(), tap_blocks.len()))));
                    }
                    let Some((_, calls)) = &calls else { continue };
                    let operands = PointOperands {
                        weights,
                        weights_of,
                        ahead,
                        data,
                        first: at * of_data.point + pass.start + first * of_data.tile,
                        data_of,
                        channels: pass.len(),
                        start: if from == 0 { Start::Bias(&self.zeros) } else { Start::Add },
                    };
                    // Sums that are added in memory are to be in L1 still.
                    let one_call = ahead.is_empty() && (plan.in_registers || !calls.several);
                    let at_once = if one_call { count } else { TILES_AT_ONCE };
                    calls.run(&operands, (multiplied, at_once), (of_data.tile, of_products.tile), products);
                }
            }
            finite &= transforms.products(products, of_products, start, width, offsets, sums);
            start = Start::Add;
        }
        Ok(finite)
    }

    /// Returns how the products of a point are computed, for some tiles and the channels of a pass, of a term of so many tap
    /// blocks.
    fn calls(
        &self,
        panel: Panel,
        tiles: usize,
        point: &TermPoint,
        (channels, tap_blocks): (usize, usize),
    ) -> Calls<E::Compute> {
        let plan = self.plan;
        let of_channels = chain(self.problem, plan.tiling, tap_blocks);
        let of_blocks = blocks_of_chain(plan.tiling, of_channels, point);
        let several = point.blocks > of_blocks || channels > of_channels;
        let of_panel = self.panels.tiles(panel).iter().copied();
        let of_panel = of_panel.filter(|tile| !(several && plan.in_registers) || tile.adds_chains());
        Calls { several, chains: (of_blocks, of_channels), tiles: split_positions(tiles, of_panel).collect() }
    }

    /// Returns the chunk of an input channel, and its weights in a phase of a panel:
    /// `[tap][input channel][output channel]`.
    fn chunk(&self, g: usize, of: &PhaseSums<E::Compute>, channel: usize) -> (Range<usize>, &[E::Compute]) {
        let (phase, width) = (&self.table.accumulators.taps.phases[of.phase], of.panel.width);
        let first = channel / self.plan.chunk * self.plan.chunk;
        let weights = self.panels.weights(g, of.panel, phase.weights);
        let chunk = first..(first + self.plan.chunk).min(self.problem.group_in);
        (chunk, &weights[first * phase.taps.len() * width..])
    }

    /// Computes non-finite sums again, tap by tap. The accumulator block's rows are `pitch`
    /// positions apart.
    fn repair(
        &self,
        g: usize,
        of: &PhaseSums<E::Compute>,
        pitch: usize,
        pixels: Pixels<E::Compute>,
        sums: &mut [E::Compute],
    ) {
        let (plan, width) = (self.plan, of.panel.width);
        let phase = &self.table.accumulators.taps.phases[of.phase];
        let Some(tile) = self.panels.tiles(of.panel).last() else { return };
        let zero = E::Compute::ZERO;
        for (run, i) in of.runs.iter().flat_map(|run| (0..run.positions.len()).map(move |i| (run, i))) {
            let sums = &mut sums[run.at + i * plan.blocked.width..][..width];
            if sums.iter().all(|sum| zero.mul_add(*sum, zero) == zero) {
                continue;
            }
            let at = run.positions.start + i;
            let [down, along] = pixels.strides();
            let position = at / pitch * down + at % pitch * along;
            sums.copy_from_slice(self.panels.bias(g, of.panel));
            for from in (0..self.problem.group_in).step_by(plan.chunk) {
                let (chunk, weights) = self.chunk(g, of, from);
                let of_tap = chunk.len() * width;
                for (tap, weights) in phase.taps.iter().zip(weights.chunks(of_tap)) {
                    let base = position + tap * pixels.size + from;
                    let source = Source {
                        data: pixels.data,
                        base,
                        channel_stride: 1,
                        channels: chunk.len(),
                        taps: &[0],
                        prefetch: false,
                    };
                    let positions = TilePositions { tiles: 1, stride: pixels.size, out_stride: width };
                    tile.run(weights, &source, (Start::Add, None), sums, positions);
                }
            }
        }
    }
}

/// The positions of an accumulator block, of a block that begins at `origin` and whose rows are
/// `pitch` positions apart.
fn window_of<T>(of: &PhaseSums<T>, origin: (usize, usize), pitch: usize) -> Option<Window> {
    let (first, last) = (of.runs.first()?.positions.clone(), of.runs.last()?.positions.clone());
    let column = origin.1 + first.start % pitch;
    let rows = origin.0 + first.start / pitch..origin.0 + last.start / pitch + 1;
    Some(Window { rows, columns: column..column + first.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_documented;

    #[test]
    fn the_fewest_channels_are_documented() {
        for file in ["src/lib.rs", "docs/limits.md"] {
            assert_documented(
                file,
                &format!("dense layers of {FEWEST_CHANNELS} and more input channels per group run in"),
            );
        }
    }
}
