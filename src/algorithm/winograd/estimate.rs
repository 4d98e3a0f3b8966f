//! The estimated cost of accumulator blocks.

use super::tiles::{Lattice, Term, TileInput, TilePhase, TileTable, Tiling, lists_columns};
use super::{blocks_of_chain, chain, channels_of, pass, tiles_of_data};
use crate::algorithm::Query;
use crate::estimate::cost::{self, Cost};
use tract_core::internal::TVec;
use tract_core::internal::tract_itertools::Itertools;

/// The size of accumulator blocks along an axis.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub len: usize,
    /// Whether they have the last positions of the axis.
    pub is_last: bool,
    pub count: usize,
}

/// The sizes of the blocks of at most `len` positions that an axis of `grid` positions is split into: all but the last
/// one, and the last one.
fn sizes(grid: usize, len: usize) -> [Size; 2] {
    let count = grid.div_ceil(len).max(1) - 1;
    [Size { len, is_last: false, count }, Size { len: grid - count * len, is_last: true, count: 1 }]
}

/// The tiles of an accumulator block that a phase has results in, and whose data differ from zero at a point that is
/// zero in tiles that are short along rows, or along columns.
pub(super) fn tiles_of_phase(
    lattices: [Lattice; 2],
    of: &TilePhase,
    size: [Size; 2],
    zero_if_short: (bool, bool),
) -> usize {
    let by_columns = lists_columns(lattices);
    let of_axis = |axis: usize, is_outer: bool, is_zero: bool| {
        let (lattice, lead, several) = (lattices[axis], of.lead[axis], of.several[axis]);
        let Size { len, is_last, .. } = size[axis];
        let skips_last = lattice.skips_last(several, lead, len);
        let is_short = is_last && !skips_last && lattice.is_last_short(several, len);
        let lead = if is_outer || skips_last { lead } else { lattice.lead };
        lattice.count(several, lead, len) - usize::from(is_short && is_zero)
    };
    let rows = of_axis(0, !by_columns, zero_if_short.0);
    rows.saturating_mul(of_axis(1, by_columns, zero_if_short.1))
}

/// What the cost of accumulator blocks depends on.
pub(super) struct Estimate<'a> {
    pub query: &'a Query<'a>,
    pub table: &'a TileTable,
    pub tiling: Tiling,
    pub lattices: [Lattice; 2],
    /// Input channels per chunk of the filter.
    pub chunk: usize,
    /// Positions, and vectors of output channels, of a register tile. A panel has as many vectors.
    pub register_tile: (usize, usize),
    /// Vectors of output channels of the last panel.
    pub last_nv: usize,
    /// Whether the sums of several chains are added in registers.
    pub in_registers: bool,
}

impl Estimate<'_> {
    /// The cost of all accumulator blocks of a grid of rows and columns, of at most `window` rows and columns each.
    /// `transformed` are the bytes of the weights that the filter has transformed, if it has.
    pub fn of_grid(&self, grid: [usize; 2], window: (usize, usize), transformed: Option<usize>) -> Cost {
        let sizes = sizes(grid[0], window.0).into_iter().cartesian_product(sizes(grid[1], window.1));
        let sizes = sizes.filter(|(rows, columns)| rows.count * columns.count > 0);
        sizes.map(|(rows, columns)| self.of_block([rows, columns], transformed) * (rows.count * columns.count)).sum()
    }

    /// Vectors of output channels.
    pub fn vectors_out(&self) -> usize {
        (self.panels() - 1) * self.register_tile.1 + self.last_nv
    }

    fn panels(&self) -> usize {
        self.query.problem.group_out.div_ceil(self.register_tile.1 * self.query.sizes.lanes)
    }

    fn of_block(&self, size: [Size; 2], transformed: Option<usize>) -> Cost {
        let terms = self.table.phases.iter().flat_map(|of| of.terms.iter().map(move |term| (of, term)));
        terms.map(|(of, term)| self.of_term(of, term, size, transformed)).sum::<Cost>() + self.of_data(size)
    }

    /// Transforming the data of an accumulator block.
    fn of_data(&self, [rows, columns]: [Size; 2]) -> Cost {
        let &Query { problem, machine, ref sizes, .. } = self.query;
        let size = (rows.len, columns.len);
        let transformed = |of: &TileInput| tiles_of_data(self.lattices, of.several, size) * of.kind.points();
        let transformed: usize = self.table.data.iter().map(transformed).sum();
        cost::TRANSFORMED.times(&[transformed, problem.group_in.div_ceil(sizes.lanes)]) * machine.rates.transforms
    }

    /// The products of a term, and all that is done to its weights and results.
    fn of_term(&self, of: &TilePhase, term: &Term, size: [Size; 2], transformed: Option<usize>) -> Cost {
        let &Query { problem, machine, element, ref sizes, .. } = self.query;
        let (vector_bytes, points, tap_blocks) = (sizes.lanes * element, term.kind.points(), term.tap_blocks.len());
        let (panels, vectors_out) = (self.panels(), self.vectors_out());
        let tiles = tiles_of_phase(self.lattices, of, size, (false, false));
        let of_pass = pass(problem, (self.tiling, self.in_registers), self.chunk, tap_blocks);
        let of_pixel = [channels_of(problem, sizes.lanes) * element, of_pass * element];
        let pixels = tiles.saturating_mul(term.products());
        let read_again = cost::read_in_passes(pixels, of_pixel, vector_bytes, machine) * panels;
        let of_weight = match transformed {
            Some(bytes) => cost::streamed_tiles(bytes, tiles, machine),
            None => cost::TRANSFORMED_WEIGHTS * machine.rates.transforms,
        };
        let weights = of_weight.times(&[problem.group_in, vectors_out, tap_blocks, points]);
        let of_chain = chain(problem, self.tiling, tap_blocks);
        let blocks_of_chain = |point| blocks_of_chain(self.tiling, of_chain, point);
        let chains = term.points.iter().map(|point| point.blocks.div_ceil(blocks_of_chain(point)));
        let chains = chains.sum::<usize>() * problem.group_in.div_ceil(of_chain);
        let passes = problem.group_in.div_ceil(of_pass);
        let sums = match self.in_registers {
            true => cost::SUMMED.times(&[points, passes]) + cost::ADDED_IN_REGISTERS * chains,
            false => cost::SUMMED * chains,
        };
        let set_up = cost::POINT.times(&[points, passes, panels]);
        let result = self.tiling.cost_of_results() * points * machine.rates.transforms + sums;
        let multiplied = self.multiplied(of, term, size) * problem.group_in;
        multiplied + weights + result.times(&[tiles, vectors_out]) + read_again + set_up
    }

    /// The products of a term with one input channel.
    fn multiplied(&self, of: &TilePhase, term: &Term, size: [Size; 2]) -> Cost {
        // The points have one of four numbers of tiles. Per number, the products of a tile.
        let mut alike: TVec<(usize, usize)> = TVec::new();
        for point in &term.points {
            let tiles = tiles_of_phase(self.lattices, of, size, point.zero_if_short);
            match alike.iter_mut().find(|(of, _)| *of == tiles) {
                Some((_, products)) => *products += point.blocks,
                None => alike.push((tiles, point.blocks)),
            }
        }
        alike.into_iter().map(|(tiles, products)| self.of_run(tiles) * products).sum()
    }

    /// The products of so many tiles at one point, with one input channel of one tap block.
    fn of_run(&self, tiles: usize) -> Cost {
        let &Query { machine, element, ref sizes, .. } = self.query;
        let (positions, nv) = self.register_tile;
        let of = |nv| cost::run(tiles, positions, nv, &sizes.channel_tiles, sizes.lanes * element, machine);
        of(nv) * (self.panels() - 1) + of(self.last_nv)
    }
}
