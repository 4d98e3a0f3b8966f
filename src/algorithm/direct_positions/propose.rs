//! The choice of a register tile, of a way to read the input, and of blocks of the grid.

use super::{CHUNK_BYTES, DirectPositions, Reads, row_runs, variant};
use crate::algorithm::Query;
use crate::algorithm::chains::longest_chain;
use crate::estimate::cost::{self, Cost, InPlace};
use crate::geometry::Axes;
use crate::layout::filter::FilterLayout;
use crate::layout::input_tile::GridBlocks;
use crate::ranges::even_part;
use crate::simd::vector::PREFETCHES;
use crate::spec::DataFormat;
use tract_core::internal::tract_itertools::Itertools;

/// Bytes of a tile's input that stay in L1 while all panels pass over it.
const L1_SHARE: usize = 20 * 1024;

/// The fewest rows of a tile that leave time to prefetch the next tile's vectors of all channels.
const FEWEST_TO_PREFETCH: usize = 6;

/// The fewest positions of a block that is read in place. Shorter rows would be stored in short
/// runs.
const FEWEST_IN_PLACE: usize = 128;

/// The fewest positions of a block that is copied in the order of tiles.
const FEWEST_IN_TILE_ORDER: usize = 32;

/// The fewest results per position of the grid for which that pays. One or two panels read the input in place as fast.
const FEWEST_RESULTS_IN_TILE_ORDER: usize = 17;

/// The fewest positions of a block that several panels read in passes. L2 must hold their channels.
const FEWEST_IN_PASSES: usize = 1024;

/// The positions of a block that a single panel reads in passes. It reads them once, so L2 need not hold them.
const READ_ONCE: usize = 4096;

/// Input channels that are copied together in passes, so that a block has many rows and few of them are its halo.
const COPIED_IN_PASSES: usize = 32;

/// The divisor of L2 for the sums of a block, which stay there between such passes.
const SHARE_OF_SUMS: usize = 4;

/// The (channel, tap) pairs of a sum from which a tile waits for its multiply-adds.
const FEWEST_THAT_WAIT: usize = 8;

/// The output size in bytes from which results are buffered. On outputs beyond the caches, short
/// runs to many rows cost more than a buffer.
const LONG_RUNS_FROM: usize = 32 << 20;

/// Returns the cheapest plan of all ways to read the input and all register tiles, the first of several.
///
/// # Errors
/// The phases are too many, or the filter is packed for another algorithm or for a tile that no kernel has.
pub(super) fn cheapest(query: &Query) -> Result<DirectPositions, String> {
    let axes = query.axes()?;
    let forced = query.forced(|layout| match layout {
        FilterLayout::Phases { mr, last_mr } => Some((*mr, *last_mr)),
        _ => None,
    })?;
    let mut best: Option<DirectPositions> = None;
    for reading in Way::all(query).into_iter().filter_map(|way| Reading::new(query, axes, way)) {
        for tile in reading.tiles(forced) {
            let cheaper = reading.plan(&tile, best.as_ref().map(|best| best.cost));
            best = cheaper.or(best);
        }
    }
    best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
}

/// A way to read the input. The fields are those of [`DirectPositions`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Way {
    reads: Reads,
    in_passes: bool,
    batched_groups: usize,
}

impl Way {
    /// All ways. On a tie, the earlier one is taken.
    fn all(query: &Query) -> Vec<Way> {
        let problem = query.problem;
        // With more than one group, a panel must hold all output channels of each.
        let batched = match problem.data_format {
            DataFormat::Ncx => 1,
            DataFormat::Nxc => {
                let narrowest = problem.group_in.min(problem.group_out).max(1);
                query.sizes.lanes.div_ceil(narrowest).min(problem.group)
            }
        };
        let copy = Way { reads: Reads::CopyPerShift, in_passes: false, batched_groups: 1 };
        let in_place = Way { reads: Reads::InPlace, ..copy };
        let tile_order = Way { reads: Reads::TileOrder, ..copy };
        let rows = Way { reads: Reads::PaddedRows, ..copy };
        let ways = [
            Way { in_passes: true, ..in_place },
            in_place,
            Way { in_passes: true, ..copy },
            copy,
            tile_order,
            Way { in_passes: true, ..rows },
            rows,
            Way { in_passes: true, batched_groups: batched, ..rows },
            Way { batched_groups: batched, ..rows },
        ];
        ways.into_iter().unique().collect()
    }
}

/// A register tile, of `mr` output channels by `nv` vectors of positions. That of the last panel has `last_mr` channels.
struct Tile {
    mr: usize,
    last_mr: usize,
    nv: usize,
    /// Whether it writes output rows itself.
    rows: bool,
}

/// What a tile's inner loops read, and how often.
struct Loops {
    /// Input channels per pass.
    pass: Option<usize>,
    /// Panels of output channels.
    panels: usize,
    /// Whether L1 holds what a tile reads of the input.
    resident: bool,
    tile_major: bool,
    /// Bytes of the input that a tile reads.
    chain_bytes: usize,
}

/// A way to read the input, with the blocks of the grid and what does not depend on the register tile.
struct Reading<'a> {
    query: &'a Query<'a>,
    axes: &'a Axes,
    way: Way,
    /// Whether tiles that read in place may prefetch.
    prefetches: bool,
    /// Whether a block exceeds L2, so that a single panel may read it.
    read_once: bool,
    blocks: GridBlocks,
    /// The cost of copying the input of a block.
    copied: Cost,
    /// Positive for a layer whose data exceed the caches.
    waits: Cost,
}

impl<'a> Reading<'a> {
    /// Returns none if the input can't be read in this way, or if another way is as fast.
    fn new(query: &'a Query, axes: &'a Axes, way: Way) -> Option<Reading<'a>> {
        let &Query { problem, datum_type, machine, element, .. } = query;
        let Way { reads, in_passes, batched_groups } = way;
        let (in_place, copy_per_shift) = (reads.in_place(), reads.copy_per_shift());
        let unshifted = is_unshifted(query, axes);
        // Taps without shifts all read the same copy.
        if in_place && (!unshifted || query.in_parts) || unshifted && !copy_per_shift {
            return None;
        }
        let tile_order = reads == Reads::TileOrder;
        let prefetches = in_place && PREFETCHES && machine.prefetch_pays;
        let passes_pay = match in_place {
            true => prefetches && query.input_bytes() > machine.l2,
            false => problem.data_format == DataFormat::Ncx && problem.group_in > COPIED_IN_PASSES,
        };
        if in_passes && !passes_pay {
            return None;
        }
        let together = match in_passes && !in_place {
            true => COPIED_IN_PASSES,
            false => problem.group_in * batched_groups,
        };
        // The input tiles of a block take at most half of L2, as the weights stream through the rest.
        let budget = machine.l2 / 2 / element / together.max(1);
        let read_once = in_passes && in_place && budget < FEWEST_IN_PASSES;
        let budget = if read_once { READ_ONCE } else { budget };
        let (y, x) = (axes.rows(), axes.columns());
        let single_row = (y.grid, y.output) == (1, 1);
        if tile_order {
            let results = problem.group_out.saturating_mul(axes.phases());
            // A block of several rows has whole ones.
            let too_wide = !single_row && x.grid > 2 * budget;
            if !unshifted || too_wide || results < FEWEST_RESULTS_IN_TILE_ORDER {
                return None;
            }
        }
        let block = match reads {
            Reads::InPlace if single_row => (1, budget.max(FEWEST_IN_PLACE).min(x.grid)),
            Reads::TileOrder if single_row => (1, budget.max(FEWEST_IN_TILE_ORDER).min(x.grid)),
            Reads::InPlace | Reads::TileOrder => (y.grid.min((budget / x.grid).max(1)), x.grid),
            Reads::CopyPerShift | Reads::PaddedRows => GridBlocks::within(axes, copy_per_shift, budget),
        };
        let blocks = match single_row && tile_order {
            true => {
                let whole_tiles = even_part(x.grid, block.1).next_multiple_of(2 * query.sizes.lanes);
                GridBlocks::of(axes, (1, whole_tiles.min(x.grid)), copy_per_shift, in_place)
            }
            false => GridBlocks::even(axes, block, copy_per_shift, in_place),
        };
        let copied = if in_place { Cost::ZERO } else { copied(query, axes, way, &blocks) };
        let waits = match problem.group_in {
            1 => cost::beyond_cache(problem, datum_type, machine),
            _ => {
                let costs = if prefetches { cost::BEYOND_IN_PLACE } else { cost::BEYOND_BY_PLANES };
                cost::beyond_caches(problem, datum_type, costs, query.sizes.lanes, machine)
            }
        };
        Some(Reading { query, axes, way, prefetches, read_once, blocks, copied, waits })
    }

    /// Whether the sums of a block are kept between passes.
    fn keeps_sums(&self) -> bool {
        self.way.in_passes && !self.way.reads.in_place()
    }

    /// The register tiles that the kernels have for the layer, or those of them for which the filter is packed.
    fn tiles(&self, packed: Option<(usize, usize)>) -> impl Iterator<Item = Tile> {
        let &Query { problem, datum_type, ref sizes, .. } = self.query;
        let cached = problem.output_shape().iter().product::<usize>() * datum_type.size_of() < LONG_RUNS_FROM;
        let writes_rows = problem.data_format == DataFormat::Ncx && cached && !self.way.in_passes;
        let row_tiles = if writes_rows { sizes.row_tiles(self.axes.columns().out_step) } else { &[] };
        let of_family = move |family: &'a [(usize, usize)], rows| {
            let tile = move |&(mr, nv): &(usize, usize)| {
                let remainder = problem.group_out % mr;
                let mut heights = family.iter().map(|tile| tile.0).filter(|height| *height >= remainder);
                let last_mr = match packed {
                    // The filter may be packed for the other family, whose least height may be a larger one.
                    Some((of_panels, of_last)) => heights.find(|height| (mr, *height) == (of_panels, of_last))?,
                    None => heights.min().unwrap_or(mr),
                };
                Some(Tile { mr, last_mr, nv, rows })
            };
            family.iter().filter_map(tile)
        };
        of_family(&sizes.position_tiles, false).chain(of_family(row_tiles, true))
    }

    /// Returns the plan with a register tile, if it costs less than `least`. None if the tile does not go with this way.
    fn plan(&self, tile: &Tile, least: Option<u64>) -> Option<DirectPositions> {
        let Query { problem, .. } = self.query;
        let Way { reads, in_passes, batched_groups } = self.way;
        let &Tile { mr, last_mr, nv, rows } = tile;
        if batched_groups > 1 && mr < problem.group_out {
            return None;
        }
        if self.query.leaves_out(variant(reads, in_passes, rows)) {
            return None;
        }
        let loops = self.loops(tile)?;
        let chunk_tiles = self.chunk_tiles(tile, &loops);
        let block = self.multiplied(tile, &loops)
            + self.copied
            + self.read(tile, &loops)
            + self.stored(tile, &loops, chunk_tiles)
            + cost::BLOCK;
        let cost = (block.times(&[self.blocks.count, problem.group, problem.batch]) + self.waits).rounded();
        if least.is_some_and(|least| cost >= least) {
            return None;
        }
        let far = self.query.input_bytes() > self.query.machine.l2;
        Some(DirectPositions {
            mr,
            last_mr,
            batched_groups,
            nv,
            reads,
            prefetch: self.prefetches && far && (in_passes || mr >= FEWEST_TO_PREFETCH),
            pass: loops.pass,
            rows,
            chunk_tiles,
            tile_major: loops.tile_major,
            block_rows: self.blocks.rows,
            block_columns: self.blocks.columns,
            cost,
            axes: self.axes.clone(),
        })
    }

    /// Returns none if passes do not go with the tile.
    fn loops(&self, tile: &Tile) -> Option<Loops> {
        let &Query { problem, machine, element, ref sizes, .. } = self.query;
        let vectors_bytes = tile.nv * sizes.lanes * element;
        // The lines that a tile reads and those that it prefetches are in L1 together.
        let pass = if self.way.reads.in_place() { L1_SHARE / (2 * vectors_bytes) } else { COPIED_IN_PASSES };
        let pass = self.way.in_passes.then_some(pass);
        let panels = problem.group_out.div_ceil(tile.mr);
        if pass.is_some_and(|pass| pass >= problem.group_in) || self.read_once && panels > 1 {
            return None;
        }
        // The sums of all panels and phases of a block, until the last pass.
        let positions = self.blocks.positions.next_multiple_of(sizes.lanes);
        let sums = [panels, tile.mr, self.axes.phases(), positions, element];
        if self.keeps_sums() && sums.into_iter().fold(1, usize::saturating_mul) > machine.l2 / SHARE_OF_SUMS {
            return None;
        }
        let chain_bytes = (self.axes.most_taps() * pass.unwrap_or(problem.group_in)).saturating_mul(vectors_bytes);
        let resident = chain_bytes <= L1_SHARE;
        let tile_major = resident && !(tile.rows && problem.group_out > machine.rates.planes_at_once as usize);
        Some(Loops { pass, panels, resident, tile_major, chain_bytes })
    }

    /// Tiles whose results are stored together.
    fn chunk_tiles(&self, tile: &Tile, loops: &Loops) -> usize {
        let Query { sizes, element, .. } = self.query;
        let positions = tile.nv * sizes.lanes;
        if self.keeps_sums() {
            return self.blocks.positions.div_ceil(positions);
        }
        let x = self.axes.columns();
        let height = tile.mr * self.way.batched_groups;
        let stored = (CHUNK_BYTES / (height * x.out_step * positions * element)).max(1);
        if !(tile.rows && loops.tile_major) {
            return stored;
        }
        // The taps of a row that read the same values at neighbouring positions.
        let shared = (x.most_taps() / self.blocks.input_tiles.column_count()).max(1);
        stored.min(L1_SHARE / (loops.chain_bytes / shared).max(1)).max(1)
    }

    /// The runs of a block without a row end, and the vectors of each. Tiles that write rows end where rows end.
    fn runs(&self, tile: &Tile) -> (usize, usize) {
        let lanes = self.query.sizes.lanes;
        match tile.rows {
            true => (self.blocks.rows, self.blocks.columns.div_ceil(lanes)),
            false => (1, self.blocks.positions.div_ceil(lanes)),
        }
    }

    /// The cost of all products of a block.
    fn multiplied(&self, tile: &Tile, loops: &Loops) -> Cost {
        let &Query { problem, machine, element, ref sizes, .. } = self.query;
        let lanes = sizes.lanes;
        let chain = self.axes.most_taps() * problem.group_in;
        // Half of L2 is the input's. Weights of a panel that exceed the other half are evicted from
        // tile to tile.
        let evicted = !loops.tile_major && chain.saturating_mul(tile.mr * element) > machine.l2 / 2;
        let weights = |m: usize| if evicted { machine.rates.far_weights * m as f64 / lanes as f64 } else { 0.0 };
        let share = if self.way.reads == Reads::TileOrder { machine.rates.in_tile_order } else { 1.0 };
        let x = self.axes.columns();
        // A sum of few products hardly waits: the next tile's are begun.
        let alike = x.phases.iter().map(|phase| phase.taps.len()).all_equal()
            && self.axes.most_taps() * problem.group_in >= FEWEST_THAT_WAIT;
        let tile_cost = |m: usize, n: usize| {
            let together = tile.rows && alike && sizes.sums_phases_together(x.out_step, (m, n));
            let phases = if together { x.out_step } else { 1 };
            cost::tile_of_phases(phases, (m, n), lanes * element, loops.resident, machine) * share
                + Cost::new(weights(m))
        };
        let (runs, vectors) = self.runs(tile);
        let (whole, rest) = (vectors / tile.nv, vectors % tile.nv);
        let row_cost = |m: usize| {
            let last = if rest > 0 { tile_cost(m, rest) } else { Cost::ZERO };
            (tile_cost(m, tile.nv) * whole + last) * runs
        };
        let last = if problem.group_out.is_multiple_of(tile.mr) { Cost::ZERO } else { row_cost(tile.last_mr) };
        (row_cost(tile.mr) * (problem.group_out / tile.mr) + last) * (problem.group_in * self.axes.taps())
    }

    /// The cost of reading a block in place, beyond that of its products.
    fn read(&self, tile: &Tile, loops: &Loops) -> Cost {
        if !self.way.reads.in_place() {
            return Cost::ZERO;
        }
        let &Query { problem, machine, element, ref sizes, .. } = self.query;
        let (phases, panels) = (self.axes.phases(), loops.panels);
        let row_phases = phases / self.axes.columns().out_step;
        let bytes = self.query.input_bytes();
        let vector = if self.way.in_passes {
            cost::in_passes(panels.saturating_mul(row_phases), sizes.lanes * element, machine)
        } else {
            let passes = match loops.tile_major {
                true => 1,
                false => panels.saturating_mul(if tile.rows { row_phases } else { phases }),
            };
            let run_bytes = tile.nv * sizes.lanes * element;
            InPlace { bytes, passes, panels, tile: (tile.mr, tile.nv), run_bytes }.vector(problem, machine)
        };
        let misses = match loops.pass.unwrap_or(problem.group_in) > cost::planes_in_tlb(problem, bytes) {
            true => Cost::new(machine.rates.tlb_miss).times(&[panels, row_phases]) / tile.nv,
            false => Cost::ZERO,
        };
        (vector + misses).times(&[self.blocks.positions / sizes.lanes, problem.group_in])
    }

    /// The cost of storing the results of a block.
    fn stored(&self, tile: &Tile, loops: &Loops, chunk_tiles: usize) -> Cost {
        let &Query { problem, machine, element, ref sizes, .. } = self.query;
        let &Tile { mr, nv, rows, .. } = tile;
        let lanes = sizes.lanes;
        let (phases, x) = (self.axes.phases(), self.axes.columns());
        let store = match rows {
            true => {
                let partly = cost::partly_stored(problem, element, [mr, nv * lanes * element], machine);
                let narrowed = if self.query.has_same_element() { Cost::ZERO } else { cost::NARROWED };
                Cost::new(machine.rates.row_store) + partly + narrowed
            }
            false => cost::buffered(problem.data_format, mr.min(problem.group_out) * self.way.batched_groups),
        };
        let chain = self.axes.most_taps() * problem.group_in;
        let chains = chain.div_ceil(longest_chain(chain, self.axes.most_taps()));
        let passes = problem.group_in.div_ceil(loops.pass.unwrap_or(problem.group_in));
        let unfinished = cost::SUMMED * (chains.max(passes) - 1);
        let (runs, vectors) = self.runs(tile);
        let vectors = (store + unfinished).times(&[runs, vectors, problem.group_out, phases]);
        let GridBlocks { rows: block_rows, columns: block_columns, .. } = self.blocks;
        let row_setup = match (rows, problem.data_format) {
            (true, _) => {
                let (at_once, runs_per_row) = row_runs(chunk_tiles * nv * lanes, block_columns, lanes);
                let calls = [block_rows.div_ceil(at_once), runs_per_row, loops.panels, phases / x.out_step];
                Cost::new(machine.rates.row_tile_call).times(&calls)
            }
            (false, DataFormat::Ncx) => cost::BUFFERED_ROW.times(&[block_rows, problem.group_out, phases]),
            _ => Cost::ZERO,
        };
        vectors + row_setup
    }
}

/// Whether all taps read the positions of the grid as they are in the tensor.
fn is_unshifted(query: &Query, axes: &Axes) -> bool {
    query.problem.data_format == DataFormat::Ncx && query.has_same_element() && axes.are_unshifted()
}

/// The cost of copying the input of a block.
fn copied(query: &Query, axes: &Axes, way: Way, blocks: &GridBlocks) -> Cost {
    let &Query { problem, machine, ref sizes, .. } = query;
    let (x, lanes) = (axes.columns(), sizes.lanes);
    if way.reads == Reads::TileOrder {
        let vector = cost::copied_to_tiles(query.input_bytes(), machine);
        return vector.times(&[blocks.positions.div_ceil(lanes), problem.group_in]);
    }
    let far = query.input_bytes() > machine.l2;
    // Every third position or fewer, from beyond L2. Set by hand, by three layers of
    // `benches/record/2026-11-29-passes`.
    let gathered = match way.in_passes && far {
        true => cost::strided(x.in_step.saturating_sub(1), lanes),
        false => Cost::ZERO,
    };
    let copying = cost::copied(problem.data_format, problem.group_in * way.batched_groups) + gathered;
    let filled = cost::filled(&blocks.input_tiles, problem.group_in, lanes, copying);
    // A run of each plane, which the next blocks do not read again.
    let waited = match is_unshifted(query, axes) && far {
        true => cost::FAR_RUN.times(&[problem.group_in, blocks.rows]),
        false => Cost::ZERO,
    };
    let selects = problem.group_in == 1 && x.in_step > 1 && blocks.input_tiles.count() == 1;
    let selected = if selects { Cost::new(machine.rates.strided_row) * blocks.rows } else { Cost::ZERO };
    waited + filled + selected
}
