//! Each phase as a small dense convolution over the shared grid, with fewer products than (tap,
//! position) pairs.
//!
//! Adjacent taps and positions are multiplied in transformed tiles (`src/kernel/tile_transforms.rs`):
//!
//! - Winograd tiles of two results along each axis. More than three taps are split into blocks of
//!   two and three.
//! - Cyclic tiles of four results, if both axes have multiples of three taps.
//! - Fourier tiles along one axis. The taps of other axes are blocks of their own.
//!
//! The planner chooses by the numbers of products and the cost of transforms.
//!
//! Per accumulator block, tiles of the input are transformed, with input channels as lanes. Then,
//! per panel of output channels, the weights are transformed, and all tiles are multiplied point by
//! point. The products use the kernels and the filter layout of
//! [`direct_channels`](crate::algorithm::direct_channels).
//!
//! Non-finite sums are computed again tap by tap, as an infinity in a transformed tile may become
//! NaN.

mod tiles;

use crate::algorithm::blocked::{Blocked, GroupedInput, last_width};
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::estimate::machine::Machine;
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{Dispatch, FOURIER_VALUES, Kernels, MOST_TAPS, PointStrides, Source, Start, TileData, TileKind};
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::input_tile::{CopyPlan, GridBlocks, InputTiles};
use crate::layout::panels::{PanelShape, Panels};
use crate::layout::taps::TapTable;
use crate::memory::{Aligned, Scratch, reserve};
use crate::output::blocks::{AccumulatorShape, AccumulatorTable, Accumulators, PhaseSums};
use crate::output::task::Task;
use crate::ranges::even_part;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tiles::{Lattice, Term, Tiling, Work, terms_of};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// The fewest input channels. With few channels, cancellation in the tiles dominates the rounding
/// error of the sum, and there is little to gain.
const FEWEST_CHANNELS: usize = 16;

/// The most (input channel, tap block) pairs whose products are summed in one chain. A result is
/// made of several sums and has the errors of all of them, so chains are short.
const LONGEST_CHAIN: usize = 48;

/// As [`LONGEST_CHAIN`], for Fourier tiles. A pure tone, whose transform has one large value, errs
/// more than with direct sums if chains are longer.
const LONGEST_FOURIER_CHAIN: usize = 32;

/// Chains whose weights are transformed together. With several, their sums are added while they are
/// in L1. With few, the weights of a point stay in L1 from tile to tile.
const CHAINS_OF_PASS: usize = 2;

/// The approximate fewest tiles per accumulator block. With fewer, the transformation of the
/// weights would serve too few tiles. Accumulator blocks have more tiles if L2 holds them.
const FEWEST_TILES: usize = 128;

/// The most bytes of the transformed tiles of an accumulator block, as a multiple of L2.
/// Accumulator blocks of layers with many taps have fewer tiles.
const MOST_OF_L2: usize = 4;

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
    /// Rows and columns of an accumulator block.
    pub window: (usize, usize),
    /// The kind of tiles.
    tiling: Tiling,
    /// The layouts of tiles on rows and columns.
    lattices: [Lattice; 2],
}

/// The tables of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    accumulators: AccumulatorTable,
    /// The terms of each phase.
    terms: Vec<Vec<Term>>,
}

impl Table {
    fn new(plan: &Winograd, problem: &Problem, shape: &AccumulatorShape, lanes: usize) -> TractResult<Table> {
        let (axes, input_tiles) = (&plan.blocked.axes, plan.blocked.input_tiles());
        let taps = TapTable::new(axes, input_tiles, false, 1, problem.group_in)?;
        let phases = axes.iter().map(|axis| &axis.phases).multi_cartesian_product();
        let terms = phases.zip(&taps.phases).map(|(phases, of)| terms_of(&phases, plan.lattices, &of.taps)).collect();
        Ok(Table { accumulators: AccumulatorTable::new(problem, axes, shape, lanes, taps)?, terms })
    }
}

/// The split of a grid into blocks and accumulator blocks.
struct GridSplit {
    block: (usize, usize),
    /// Rows and columns of an accumulator block.
    window: (usize, usize),
}

impl GridSplit {
    fn of(axes: &Axes, lattices: [Lattice; 2], work: &[Work], channel_bytes: usize, machine: &Machine) -> GridSplit {
        let (_, y, x) = axes.parts();
        let [of_rows, of_columns] = lattices.map(Lattice::period);
        let of_position: f64 =
            work.iter().map(|of| of.products as f64 * channel_bytes as f64 / of.results as f64).sum();
        let within = |bytes: usize| (bytes as f64 / of_position.max(1.0)) as usize;
        let results = lattices[0].results * lattices[1].results;
        let fewest = (FEWEST_TILES * results).min(within(MOST_OF_L2 * machine.l2));
        let positions = within(machine.l2).clamp(fewest, MOST_POSITIONS);
        // The pixels of a single row are split into blocks: they are not to be smaller than
        // accumulator blocks.
        let least = if y.grid == 1 { positions * PIXELS_OF_POSITION } else { 0 };
        let (rows, columns) = GridBlocks::within(axes, false, (machine.l2 / channel_bytes).max(least));
        let even = |grid: usize, size: usize, period: usize| {
            let parts = grid.div_ceil(size.next_multiple_of(period));
            grid.div_ceil(parts).next_multiple_of(period).min(grid)
        };
        let block = (even(y.grid, rows, of_rows), even(x.grid, columns, of_columns));
        let rows = (positions / block.1 / of_rows * of_rows).clamp(of_rows, block.0.max(of_rows)).min(block.0);
        GridSplit { block, window: (rows, even(block.1, (positions / rows).max(1), of_columns)) }
    }
}

/// Elements per pixel of the transformed input: an odd number of vectors.
fn channels_of(problem: &Problem, lanes: usize) -> usize {
    (problem.group_in.div_ceil(lanes) | 1) * lanes
}

/// Input channels per chain for this many tap blocks.
fn chain(problem: &Problem, tiling: Tiling, tap_blocks: usize) -> usize {
    let longest = if matches!(tiling, Tiling::Fourier { .. }) { LONGEST_FOURIER_CHAIN } else { LONGEST_CHAIN };
    even_part(problem.group_in, longest / tap_blocks.clamp(1, longest))
}

impl Algorithm for Winograd {
    type Tables = Table;

    fn propose(query: &Query) -> Result<Winograd, String> {
        let &Query { problem, datum_type, isa, machine, .. } = query;
        if !datum_type.is_float() {
            return Err("its transforms halve weights, which integers do not allow".to_string());
        }
        if matches!(datum_type, DatumType::F32 | DatumType::F16) && isa == Isa::Amx {
            return Err(format!("the tile registers of {isa} are as fast, and more exact"));
        }
        let axes = query.axes()?;
        let forced = query.forced(|layout| match layout {
            FilterLayout::Chunks { width, last_width, chunk } => Some((*width, *last_width, *chunk)),
            _ => None,
        })?;
        let (lanes, tiles) = (query.sizes.lanes, &query.sizes.channel_tiles);
        if problem.group_in < FEWEST_CHANNELS || problem.group_out < lanes {
            let (inputs, outputs) = (problem.group_in, problem.group_out);
            return Err(format!("groups of {inputs} to {outputs} channels are too small"));
        }
        let (outer, y, x) = axes.parts();
        let candidates = tilings(axes, query.local_accuracy);
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
        for (tiling, lattices) in candidates {
            if query.leaves_out(tiling.name()) || period(lattices) > LONGEST_PERIOD {
                continue;
            }
            let work = Work::of(axes, lattices);
            let GridSplit { block, window } =
                GridSplit::of(axes, lattices, &work, channels_of(problem, lanes) * element, machine);
            let blocks = GridBlocks::even(axes, block, false, false);

            let outer: usize = outer.iter().map(|axis| axis.grid).product();
            let accumulators = y.grid.div_ceil(window.0).saturating_mul(x.grid.div_ceil(window.1));
            let phases = axes.phases();
            let vectors_in = problem.group_in.div_ceil(lanes);
            let copied = cost::filled(&blocks.input_tiles, problem.group_in, lanes, cost::copied(DataFormat::Ncx, 1));
            let store = cost::store_of_channels(problem, datum_type, machine);
            let tiles_of = |of: &Work| lattices[0].count(of.taps.0, window.0) * lattices[1].count(of.taps.1, window.1);
            let windows: Vec<(usize, &Work)> = work.iter().map(|of| (tiles_of(of), of)).collect();
            let beyond = cost::beyond_caches(problem, datum_type, cost::BEYOND_BY_PIXELS, lanes, machine);
            for (positions, nv) in tiles.iter().copied().filter(|(positions, nv)| positions * nv >= 6) {
                let width = nv * lanes;
                let last_width = last_width(problem.group_out, width, lanes);
                if forced.is_some_and(|f| (f.0, f.1) != (width, last_width)) {
                    continue;
                }
                let panels = problem.group_out.div_ceil(width);
                let vectors_out = (panels - 1) * nv + last_width / lanes;
                let of_run = |tiles_of_run: usize| {
                    let of = |nv: usize| cost::run(tiles_of_run, positions, nv, tiles, lanes * element, machine);
                    of(nv) * (panels - 1) + of(last_width / lanes)
                };
                let of_acc_block = |(tiles, of): &(usize, &Work)| {
                    let pixels = tiles.saturating_mul(of.products);
                    let of_pass = CHAINS_OF_PASS * chain(problem, tiling, of.products / of.points.max(1));
                    let bytes = [channels_of(problem, lanes) * element, of_pass * element];
                    let read_again = cost::read_in_passes(pixels, bytes, lanes * element, machine) * panels;
                    let multiplied = of_run(*tiles) * problem.group_in;
                    let weights = cost::TRANSFORMED_WEIGHTS.times(&[problem.group_in, vectors_out]);
                    let data = cost::TRANSFORMED.times(&[*tiles, vectors_in]);
                    let chains = of.products.saturating_mul(problem.group_in) / LONGEST_CHAIN;
                    let result = cost::FROM_PRODUCTS * of.points * machine.rates.transforms + cost::SUMMED * chains;
                    (multiplied + (weights + data) * machine.rates.transforms) * of.products
                        + result.times(&[*tiles, vectors_out])
                        + read_again
                };
                let multiplied = windows.iter().map(of_acc_block).sum::<Cost>() * accumulators;
                let stored = store.times(&[y.grid, x.grid, vectors_out, phases]);
                let image = (multiplied + stored) * outer + copied * blocks.count;
                let cost = (image.times(&[problem.group, problem.batch]) + beyond).rounded();
                if best.as_ref().is_none_or(|b| cost < b.blocked.cost) {
                    let chunk = forced.map_or(problem.group_in, |f| f.2);
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
                        window,
                        tiling,
                        lattices,
                    });
                }
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
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
        let input_tiles = self.blocked.input_tiles();
        // Pixels have an odd number of whole vectors and are made from a vector of planes.
        let channels = problem.group_in.saturating_add(4 * width);
        let block = input_tiles
            .working_bytes(channels, element)
            .saturating_add(self.slack(&input_tiles).saturating_mul(channels * element));
        let work = Work::of(axes, self.lattices);
        let tiles = |of: &Work| self.most_tiles(of.taps);
        let phases: usize = axes.outer().iter().map(|axis| axis.out_step).product();
        let data = work.iter().map(|of| tiles(of).saturating_mul(of.products)).fold(0, usize::saturating_add);
        let data = data.saturating_mul(phases).saturating_mul(channels);
        let points = work.iter().map(|of| tiles(of).saturating_mul(of.points)).max().unwrap_or(0);
        // See [`Self::passes`].
        let weights = work.iter().map(|of| of.products.max(of.points * LONGEST_CHAIN)).max().unwrap_or(0);
        let weights = weights.saturating_mul(CHAINS_OF_PASS);
        data.saturating_add(points.saturating_add(weights).saturating_mul(width))
            .saturating_mul(element)
            .saturating_add(block)
            .saturating_add(self.blocked.working_bytes(problem, self.shape().most, element))
    }

    fn filter_layout(&self) -> FilterLayout {
        let Blocked { width, last_width, .. } = self.blocked;
        FilterLayout::Chunks { width, last_width, chunk: self.chunk }
    }

    fn explain(&self) -> String {
        format!(
            "{}, products of {}x{}, accumulator blocks of {}x{} positions, blocks of {}x{} positions",
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
        let partition = self.blocked.partition(problem, FEWEST_TILES).in_steps(self.lattices.map(Lattice::period));
        let tiles = Some(&prepared.table.accumulators.taps.input_tiles);
        self.blocked.run(problem, &partition, (&prepared.input, tiles), output, |task, g, copy_plan, scratch| {
            prepared.run_group(task, g, copy_plan.context("winograd: a task without a copy plan")?, scratch)
        })
    }
}

/// Returns the kinds of tiles that the phases of an axis can have, and their layouts on rows and
/// columns.
fn tilings(axes: &Axes, local_accuracy: bool) -> Vec<(Tiling, [Lattice; 2])> {
    let (_, y, x) = axes.parts();
    let both = |tiling: Tiling| (tiling, [Lattice::of(y, tiling), Lattice::of(x, tiling)]);
    let winograd = Some(both(Tiling::Winograd)).filter(|(_, of)| of.iter().any(|lattice| lattice.gap.is_some()));
    if local_accuracy {
        return winograd.into_iter().collect();
    }
    let threes = |axis: &AxisPhases| axis.phases.iter().all(|phase| phase.taps.len().is_multiple_of(MOST_TAPS));
    let cyclic = Some(both(Tiling::Cyclic))
        .filter(|(_, of)| of.iter().all(|lattice| lattice.gap.is_some()) && [y, x].into_iter().all(threes));
    let fourier = FOURIER_VALUES.into_iter().cartesian_product([0, 1]).filter_map(|(values, axis)| {
        let tiling = Tiling::fourier([y, x][axis], values)?;
        let mut lattices = [Lattice::alone(tiling); 2];
        lattices[axis] = Lattice::of([y, x][axis], tiling);
        lattices[axis].gap.is_some().then_some((tiling, lattices))
    });
    winograd.into_iter().chain(cyclic).chain(fourier).collect()
}

impl Winograd {
    fn shape(&self) -> AccumulatorShape {
        let columns = self.blocked.axes.columns();
        AccumulatorShape {
            width: self.blocked.width,
            positions: self.tiles,
            most: if self.window.0 == 1 { self.window.1 } else { self.window.0 * columns.grid },
            by_row: true,
            window: Some(self.window),
            panels_first: true,
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

    /// The most tiles per accumulator block for a phase with this many taps along rows and columns.
    fn most_tiles(&self, taps: (usize, usize)) -> usize {
        self.lattices[0].count(taps.0, self.window.0) * self.lattices[1].count(taps.1, self.window.1)
    }

    /// Returns the input channels per chain for this many tap blocks, and the input channels whose
    /// weights are transformed together.
    fn passes(&self, problem: &Problem, tap_blocks: usize) -> (usize, usize) {
        let chain = chain(problem, self.tiling, tap_blocks);
        let pass = chain * CHAINS_OF_PASS;
        // The weights of a chunk are adjacent.
        (chain, if self.chunk < pass { pass / self.chunk * self.chunk } else { pass })
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a Winograd,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    table: &'a Table,
    panels: Panels<'a, E>,
    /// Zeros, as many as a panel is wide.
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
}

/// The offsets of the tiles of one phase of an accumulator block.
#[derive(Default)]
struct Tiles {
    /// The index of each tile's first pixel in the block's input.
    starts: Vec<usize>,
    /// The indices of each tile's results among the accumulator block's sums. Results outside the
    /// accumulator block go after its sums.
    results: Vec<usize>,
    /// The offset of each term's transformed data.
    data: Vec<usize>,
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
        Ok(Prepared {
            plan,
            problem,
            kernels,
            table: tables,
            panels: Panels::new(problem, kernels, panels, filter, operands.bias)?,
            zeros: vec![E::Compute::ZERO; plan.blocked.width],
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
        let (first, to) = (self.input.first(task, g), (&mut pixels[..inside], size));
        self.input.fill_pixels((self.kernels, input_tiles), copy_plan, first, to, (ragged, tile))?;
        let pixels = Pixels { data: pixels, size, pitch: input_tiles.pitch };
        let (rows, columns) = (task.rows.clone(), task.columns.clone());
        let pitch = columns.len();
        let first_panel = self.panels.within(task.channels.clone()).next().map(|panel| panel.index);
        let mut of_phases: Vec<Option<Tiles>> = vec![];
        of_phases.resize_with(self.table.terms.len(), || None);
        // Allocates for all phases at once, as growing the buffer would lose its contents.
        let of_phase = |(phase, terms): (usize, &Vec<Term>)| {
            let tiles = plan.most_tiles(self.taps_of(phase));
            terms.iter().map(|term| term.kind.points() * self.point_stride(term, tiles)).sum::<usize>()
        };
        let all: usize = self.table.terms.iter().enumerate().map(of_phase).sum();
        let data = data.of(all)?;
        let mut used = 0;
        let panels = self.panels.within(task.channels.clone());
        self.accumulators.run(task, (g, pitch), panels, (tile, ragged), |of, sums| {
            if of_phases[of.phase].is_some() && Some(of.panel.index) == first_panel {
                // This is another accumulator block.
                of_phases.fill_with(|| None);
                used = 0;
            }
            let tiles = match &mut of_phases[of.phase] {
                Some(tiles) => tiles,
                none => {
                    let mut tiles = self.tiles(&of, &rows, &columns, pixels)?;
                    for term in &self.table.terms[of.phase] {
                        tiles.data.push(used);
                        used += term.kind.points() * self.point_stride(term, tiles.starts.len());
                    }
                    self.transform(of.phase, &tiles, pixels, data);
                    none.insert(tiles)
                }
            };
            if !self.multiply(g, &of, tiles, data, (weights, products), sums)? {
                self.repair(g, &of, pitch, pixels, sums);
            }
            Ok(())
        })
    }

    /// See [`channels_of`].
    fn channels(&self) -> usize {
        channels_of(self.problem, self.kernels.lanes)
    }

    /// Elements between the transformed tiles of a term.
    fn tile_stride(&self, term: &Term) -> usize {
        let lanes = self.kernels.lanes;
        ((term.tap_blocks.len() * self.channels() / lanes) | 1) * lanes
    }

    /// Elements between the points of so many transformed tiles of a term. An odd number of vectors,
    /// as the points of a tile would otherwise compete for the same cache sets.
    fn point_stride(&self, term: &Term, tiles: usize) -> usize {
        let lanes = self.kernels.lanes;
        ((tiles * self.tile_stride(term) / lanes) | 1) * lanes
    }

    /// The taps of a phase along rows and columns.
    fn taps_of(&self, phase: usize) -> (usize, usize) {
        let (_, y, x) = self.plan.blocked.axes.parts();
        let (row, column) = (phase / x.out_step % y.out_step, phase % x.out_step);
        (y.phases[row].taps.len(), x.phases[column].taps.len())
    }

    /// Returns the offsets of the tiles of a phase of an accumulator block. The block begins at
    /// `rows` and `columns` of the grid.
    fn tiles(
        &self,
        of: &PhaseSums,
        rows: &Range<usize>,
        columns: &Range<usize>,
        pixels: Pixels<E::Compute>,
    ) -> TractResult<Tiles> {
        let (plan, pitch, taps) = (self.plan, columns.len(), self.taps_of(of.phase));
        let (Some(begin), Some(end)) = (of.runs.first(), of.runs.last()) else { return Ok(Tiles::default()) };
        // The accumulator block's positions in the grid.
        let first = (rows.start + begin.positions.start / pitch, columns.start + begin.positions.start % pitch);
        let end = (rows.start + end.positions.start / pitch + 1, first.1 + begin.positions.len());
        let gaps = (plan.lattices[0].pairs(taps.0), plan.lattices[1].pairs(taps.1));
        let outside = plan.shape().most * plan.blocked.width;
        // The offset of the i-th result along an axis, if the accumulator block has it.
        let along = |at: usize, gap: Option<usize>, i: usize, (begin, end): (usize, usize), step: usize| {
            let at = if i == 0 { at } else { at + i * gap? };
            (at < end).then(|| (at - begin) * step)
        };
        let width = plan.blocked.width;
        let mut tiles = Tiles::default();
        reserve("winograd tiles", &mut tiles.starts, plan.most_tiles(taps))?;
        let [of_rows, of_columns] = plan.lattices.map(|lattice| lattice.results);
        reserve("winograd tiles", &mut tiles.results, plan.most_tiles(taps) * of_rows * of_columns)?;
        let [mut in_rows, mut in_columns]: [TVec<Option<usize>>; 2] = [tvec![], tvec![]];
        for row in plan.lattices[0].origins(taps.0, first.0..end.0) {
            in_rows.clear();
            in_rows.extend((0..of_rows).map(|i| along(row, gaps.0, i, (first.0, end.0), pitch * width)));
            for column in plan.lattices[1].origins(taps.1, first.1..end.1) {
                let at = (row - rows.start) * pixels.pitch + column - columns.start;
                tiles.starts.push(at * pixels.size);
                in_columns.clear();
                in_columns.extend((0..of_columns).map(|j| along(column, gaps.1, j, (first.1, end.1), width)));
                for row in &in_rows {
                    let of_row = in_columns.iter().map(|column| Some((*row)? + (*column)?));
                    tiles.results.extend(of_row.map(|offset| offset.unwrap_or(outside)));
                }
            }
        }
        Ok(tiles)
    }

    /// Transforms the input of an accumulator block's tiles, for each term of a phase.
    fn transform(&self, phase: usize, tiles: &Tiles, pixels: Pixels<E::Compute>, to: &mut [E::Compute]) {
        let lanes = self.kernels.lanes;
        let steps = self.plan.lattices.map(|lattice| lattice.gap.unwrap_or(0) * pixels.size);
        let (down, along) = (steps[0] * pixels.pitch, steps[1]);
        for (term, begin) in self.table.terms[phase].iter().zip(&tiles.data) {
            let tile = self.tile_stride(term);
            let strides = PointStrides { point: self.point_stride(term, tiles.starts.len()), tile };
            for (block, at) in term.tap_blocks.iter().zip((*begin..).step_by(self.channels())) {
                // A Fourier tile has one axis. The other one's step is zero.
                let steps =
                    if matches!(term.kind, TileKind::Fourier { .. }) { (0, down + along) } else { (down, along) };
                let data = TileData {
                    pixels: &pixels.data[block.offset * pixels.size..],
                    starts: &tiles.starts,
                    steps,
                    channels: self.problem.group_in.next_multiple_of(lanes),
                };
                self.kernels.tile_transforms(term.kind).data(&data, &mut to[at..], strides);
            }
        }
    }

    /// Computes the sums of a phase over an accumulator block. Returns whether all of them are
    /// finite.
    fn multiply(
        &self,
        g: usize,
        of: &PhaseSums,
        tiles: &Tiles,
        data: &[E::Compute],
        (weights, products): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
        sums: &mut [E::Compute],
    ) -> TractResult<bool> {
        let (plan, problem) = (self.plan, self.problem);
        let (width, count) = (of.panel.width, tiles.starts.len());
        let bias = self.panels.bias(g, of.panel);
        let terms = &self.table.terms[of.phase];
        if terms.is_empty() {
            for run in of.runs {
                let pixels = sums[run.at..].chunks_mut(plan.blocked.width).take(run.positions.len());
                pixels.for_each(|sums| sums[..width].copy_from_slice(bias));
            }
            return Ok(true);
        }
        let mut finite = true;
        let mut start = Start::Bias(bias);
        for (term, begin) in terms.iter().zip(&tiles.data) {
            let transforms = self.kernels.tile_transforms(term.kind);
            let points = term.kind.points();
            let (tile_stride, point_stride) = (self.tile_stride(term), self.point_stride(term, count));
            let tap_blocks: TVec<usize> = (0..term.tap_blocks.len()).map(|block| block * self.channels()).collect();
            let lanes = self.kernels.lanes;
            let of_products = ((count * width / lanes) | 1) * lanes;
            let products = products.of(points * of_products)?;
            let (of_chain, of_pass) = plan.passes(problem, tap_blocks.len());
            for from in (0..problem.group_in).step_by(of_pass) {
                let pass = from..(from + of_pass).min(problem.group_in);
                // One more vector, as points a power of two apart would compete for the same cache
                // sets.
                let of_point = tap_blocks.len() * pass.len() * width + self.kernels.lanes;
                let weights = weights.of(points * of_point)?;
                let chains: TVec<(usize, Range<usize>)> = (pass.clone().step_by(of_chain))
                    .map(|chain| (tap_blocks.len() * (chain - from) * width, chain..(chain + of_chain).min(pass.end)))
                    .collect();
                for (at, chain) in &chains {
                    self.transform_weights(g, of, term, chain.clone(), (&mut weights[*at..], of_point));
                }
                for point in 0..points {
                    let weights = &weights[point * of_point..][..of_point];
                    let mut at = 0;
                    for tile in self.panels.tiles(of.panel) {
                        while at + tile.positions() <= count {
                            let to = &mut products[point * of_products + at * width..];
                            for (weight, chain) in &chains {
                                let base = begin + point * point_stride + at * tile_stride + chain.start;
                                let channels = chain.len();
                                let source = Source {
                                    data,
                                    base,
                                    channel_stride: 1,
                                    channels,
                                    taps: &tap_blocks,
                                    prefetch: false,
                                };
                                let sum = if chain.start == 0 { Start::Bias(&self.zeros) } else { Start::Add };
                                tile.run(&weights[*weight..], &source, tile_stride, sum, to, width);
                            }
                            at += tile.positions();
                        }
                    }
                }
            }
            let strides = PointStrides { point: of_products, tile: width };
            finite &= transforms.products(products, strides, start, width, &tiles.results, sums);
            start = Start::Add;
        }
        Ok(finite)
    }

    /// Transforms the weights of a term for some input channels:
    /// `[point][tap block][input channel][output channel]`.
    fn transform_weights(
        &self,
        g: usize,
        of: &PhaseSums,
        term: &Term,
        pass: Range<usize>,
        (to, of_point): (&mut [E::Compute], usize),
    ) {
        let width = of.panel.width;
        let transforms = self.kernels.tile_transforms(term.kind);
        let mut from = pass.start;
        while from < pass.end {
            let (chunk, weights) = self.chunk(g, of, from);
            let end = pass.end.min(chunk.end);
            for (block, at) in term.tap_blocks.iter().zip((from - pass.start..).step_by(pass.len())) {
                let tap = |tap: &usize| {
                    let first = tap * chunk.len() + from - chunk.start;
                    &weights[first * width..(first + end - from) * width]
                };
                let taps: SmallVec<[&[E::Compute]; MOST_TAPS * MOST_TAPS]> = block.taps.iter().map(tap).collect();
                transforms.filter(&taps, &mut to[at * width..], of_point);
            }
            from = end;
        }
    }

    /// Returns the chunk of an input channel, and its weights in a phase of a panel:
    /// `[tap][input channel][output channel]`.
    fn chunk(&self, g: usize, of: &PhaseSums, channel: usize) -> (Range<usize>, &[E::Compute]) {
        let (phase, width) = (&self.table.accumulators.taps.phases[of.phase], of.panel.width);
        let first = channel / self.plan.chunk * self.plan.chunk;
        let weights = self.panels.weights(g, of.panel, phase.weights);
        let chunk = first..(first + self.plan.chunk).min(self.problem.group_in);
        (chunk, &weights[first * phase.taps.len() * width..])
    }

    /// Computes non-finite sums again, tap by tap. The accumulator block's rows are `pitch`
    /// positions apart.
    fn repair(&self, g: usize, of: &PhaseSums, pitch: usize, pixels: Pixels<E::Compute>, sums: &mut [E::Compute]) {
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
            let position = (at / pitch * pixels.pitch + at % pitch) * pixels.size;
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
                    tile.run(weights, &source, pixels.size, Start::Add, sums, width);
                }
            }
        }
    }
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
