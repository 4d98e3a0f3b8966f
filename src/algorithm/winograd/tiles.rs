//! The split of a phase's positions and taps into tiles.

use crate::geometry::{Axes, AxisPhases, Phase};
use crate::kernel::{CYCLIC_RESULTS, MOST_TAPS, points_of_tile};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;

/// The layout of tiles on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lattice {
    /// The distance of a tile's results. None where each position is a tile of its own.
    pub(crate) gap: Option<usize>,
    /// The results of a tile of several taps.
    pub(crate) results: usize,
}

impl Lattice {
    /// Chooses the distance of taps as the distance of results, if it is the same for all taps and
    /// the grid has room for two results.
    pub(crate) fn of(axis: &AxisPhases, results: usize) -> Lattice {
        let gaps = axis.phases.iter().flat_map(|phase| {
            let pairs = phase.taps.windows(2);
            pairs.map(|pair| pair[0].shift.abs_diff(pair[1].shift) as usize)
        });
        let gap = gaps.dedup().exactly_one().ok();
        Lattice { gap: gap.filter(|gap| axis.in_step == 1 && (1..axis.grid).contains(gap)), results }
    }

    /// The number of positions after which the layout repeats.
    pub(crate) fn period(self) -> usize {
        self.gap.map_or(1, |gap| self.results * gap)
    }

    /// Returns the distance between results if a phase with this many taps has tiles of several
    /// results.
    pub(crate) fn pairs(self, taps: usize) -> Option<usize> {
        self.gap.filter(|_| taps > 1)
    }

    /// Returns the first positions of the tiles of a phase with this many taps.
    ///
    /// `positions` begin with a period. The assignment of positions to tiles does not depend on the
    /// split of the axis.
    pub(crate) fn origins(self, taps: usize, positions: Range<usize>) -> impl Iterator<Item = usize> {
        let gap = self.pairs(taps);
        positions.filter(move |at| gap.is_none_or(|gap| (at / gap).is_multiple_of(self.results)))
    }

    /// The number of tiles among the first `len` positions.
    pub(crate) fn count(self, taps: usize, len: usize) -> usize {
        self.pairs(taps).map_or(len, |gap| {
            let period = self.results * gap;
            len / period * gap + (len % period).min(gap)
        })
    }

    /// Splits the taps of a phase, by ascending shift, into runs of one, two or three adjacent
    /// taps. Returns, per length, the first taps of its runs.
    pub(crate) fn runs(self, taps: usize) -> Vec<(usize, Vec<usize>)> {
        if self.pairs(taps).is_none() {
            return if taps == 0 { vec![] } else { vec![(1, (0..taps).collect())] };
        }
        let twos = if self.results == CYCLIC_RESULTS { 0 } else { [0, 2, 1][taps % MOST_TAPS] };
        let begin = taps - 2 * twos;
        let threes = (0..begin).step_by(MOST_TAPS).collect::<Vec<_>>();
        let twos = (begin..taps).step_by(2).collect::<Vec<_>>();
        [(MOST_TAPS, threes), (2, twos)].into_iter().filter(|(_, runs)| !runs.is_empty()).collect()
    }
}

/// The taps of a phase that tiles of one size read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// Taps of a tile along rows and columns.
    pub(crate) taps: (usize, usize),
    /// The results of a tile along an axis of several taps.
    pub(crate) results: usize,
    pub(crate) tap_blocks: Vec<TapBlock>,
}

impl Term {
    /// Products of a tile per tap block and pair of channels.
    pub(crate) fn points(&self) -> usize {
        points_of_tile(self.taps, self.results)
    }
}

/// The taps of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapBlock {
    /// The offset of its first tap in a channel's input tiles.
    pub(crate) offset: usize,
    /// The indices of its taps in the phase, row by row.
    pub(crate) taps: Vec<usize>,
}

/// Returns the terms of a phase. `offsets` are those of its taps in a channel's input tiles.
pub(crate) fn terms_of(phases: &[&Phase], lattices: [Lattice; 2], offsets: &[usize]) -> Vec<Term> {
    let [outer @ .., y, x] = phases else { unreachable!("axes end in rows and columns") };
    let outer: usize = outer.iter().map(|phase| phase.taps.len()).product();
    // Shifts rise or fall with the kernel index.
    let index = |phase: &Phase, at: usize| {
        let falls = phase.taps.first().map(|tap| tap.shift) > phase.taps.last().map(|tap| tap.shift);
        if falls { phase.taps.len() - 1 - at } else { at }
    };
    let flat = |o: usize, ky: usize, kx: usize| (o * y.taps.len() + index(y, ky)) * x.taps.len() + index(x, kx);
    let (rows, columns) = (lattices[0].runs(y.taps.len()), lattices[1].runs(x.taps.len()));
    rows.iter()
        .cartesian_product(&columns)
        .map(|((rows, of_rows), (columns, of_columns))| {
            let tap_block = |((o, ky), kx): ((usize, &usize), &usize)| TapBlock {
                offset: offsets[flat(o, *ky, *kx)],
                taps: (*ky..ky + rows).cartesian_product(*kx..kx + columns).map(|(ky, kx)| flat(o, ky, kx)).collect(),
            };
            let blocks = (0..outer).cartesian_product(of_rows).cartesian_product(of_columns);
            Term { taps: (*rows, *columns), results: lattices[0].results, tap_blocks: blocks.map(tap_block).collect() }
        })
        .filter(|term| !term.tap_blocks.is_empty())
        .collect()
}

/// The work of a tile of a phase.
pub(crate) struct Work {
    /// Taps along rows and columns.
    pub(crate) taps: (usize, usize),
    /// Products per pair of channels.
    pub(crate) products: usize,
    /// Points whose sums are transformed to results.
    pub(crate) points: usize,
    /// Positions whose results a tile computes.
    pub(crate) results: usize,
}

impl Work {
    /// The work of each phase of rows and columns, with the taps of all outer axes.
    pub(crate) fn of(axes: &Axes, lattices: [Lattice; 2]) -> Vec<Work> {
        let (outer, y, x) = axes.parts();
        let outer: usize = outer.iter().map(AxisPhases::taps).product();
        let results = |lattice: Lattice, taps| if lattice.pairs(taps).is_some() { lattice.results } else { 1 };
        let counts = |axis: &AxisPhases| axis.phases.iter().map(|phase| phase.taps.len()).collect::<Vec<_>>();
        let of_phase = |(rows, columns): (usize, usize)| {
            let (mut products, mut points) = (0, 0);
            for ((y, of_y), (x, of_x)) in lattices[0].runs(rows).iter().cartesian_product(&lattices[1].runs(columns)) {
                let of_tile = points_of_tile((*y, *x), lattices[0].results);
                products += of_tile * of_y.len() * of_x.len();
                points += of_tile;
            }
            Work {
                taps: (rows, columns),
                products: outer * products,
                points,
                results: results(lattices[0], rows) * results(lattices[1], columns),
            }
        };
        counts(y).into_iter().cartesian_product(counts(x)).map(of_phase).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::WINOGRAD_RESULTS;
    use crate::spec::{Axis, Direction};

    fn axis(kernel: usize, stride: usize, dilation: usize, direction: Direction) -> AxisPhases {
        let axis = Axis { input: 20, output: 18, kernel, stride, dilation, pad_begin: 1 };
        AxisPhases::new(&axis, direction)
    }

    fn lattice(gap: Option<usize>) -> Lattice {
        Lattice { gap, results: WINOGRAD_RESULTS }
    }

    #[test]
    fn runs_have_each_tap_once() {
        for taps in 0..20 {
            for lattice in [lattice(None), lattice(Some(1)), lattice(Some(3))] {
                let runs = lattice.runs(taps);
                let all =
                    runs.iter().flat_map(|(len, begins)| begins.iter().flat_map(move |begin| *begin..begin + len));
                assert_eq!(all.collect::<Vec<_>>(), (0..taps).collect::<Vec<_>>());
                let alone = lattice.pairs(taps).is_none();
                assert!(runs.iter().all(|(len, _)| (*len == 1) == alone && *len <= MOST_TAPS));
            }
        }
    }

    #[test]
    fn each_position_is_a_result_of_one_tile() {
        let sizes = (1..5).cartesian_product(1..45).cartesian_product([WINOGRAD_RESULTS, CYCLIC_RESULTS]);
        for ((gap, len), count) in sizes {
            let lattice = Lattice { gap: Some(gap), results: count };
            let results = lattice.origins(2, 0..len).flat_map(|at| (0..count).map(move |i| at + i * gap));
            let results = results.filter(|at| *at < len);
            assert_eq!(
                results.sorted().collect::<Vec<_>>(),
                (0..len).collect::<Vec<_>>(),
                "{count} results, {gap} apart"
            );
            assert_eq!(lattice.count(2, len), lattice.origins(2, 0..len).count());
        }
    }

    #[test]
    fn results_are_as_far_apart_as_taps() {
        use Direction::{Forward, Transposed};
        let lattice = |kernel, stride, dilation, direction| {
            Lattice::of(&axis(kernel, stride, dilation, direction), WINOGRAD_RESULTS).gap
        };
        assert_eq!(lattice(3, 1, 1, Forward), Some(1));
        assert_eq!(lattice(3, 1, 4, Forward), Some(4));
        assert_eq!(lattice(3, 2, 1, Forward), None);
        assert_eq!(lattice(4, 2, 1, Transposed), Some(1));
        assert_eq!(lattice(5, 2, 3, Transposed), Some(3));
        assert_eq!(lattice(3, 1, 1, Transposed), Some(1));
        // There is one tap per phase, or taps too far apart for a grid of 18.
        assert_eq!(lattice(2, 2, 1, Transposed), None);
        assert_eq!(lattice(2, 1, 18, Transposed), None);
    }

    #[test]
    fn terms_have_each_tap_of_a_phase_once() {
        let directions = [Direction::Transposed, Direction::Forward];
        for (direction, kernel) in directions.into_iter().cartesian_product(2..9) {
            let axes = [axis(2, 1, 1, direction), axis(kernel, 1, 2, direction), axis(9 - kernel, 1, 1, direction)];
            let phases: Vec<&Phase> = axes.iter().map(|axis| &axis.phases[0]).collect();
            let lattices = [&axes[1], &axes[2]].map(|axis| Lattice::of(axis, WINOGRAD_RESULTS));
            let count = phases.iter().map(|phase| phase.taps.len()).product::<usize>();
            // The distances are large, so that an offset identifies its tap.
            let shift = |at: usize, phase: usize| phases[phase].taps[at].shift;
            let (rows, columns) = (phases[1].taps.len(), phases[2].taps.len());
            let offset = |tap: usize| {
                let (outer, row, column) = (tap / (rows * columns), tap / columns % rows, tap % columns);
                (outer * 10_000) as i64 + 100 * (shift(row, 1) + 40) + shift(column, 2) + 40
            };
            let offsets: Vec<usize> = (0..count).map(|tap| offset(tap) as usize).collect();
            let terms = terms_of(&phases, lattices, &offsets);
            let taps =
                terms.iter().flat_map(|term| &term.tap_blocks).flat_map(|tap_block| tap_block.taps.iter().copied());
            assert_eq!(taps.sorted().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            for term in &terms {
                let gap = |axis: usize| lattices[axis].gap.unwrap_or(0);
                for tap_block in &term.tap_blocks {
                    assert_eq!(tap_block.taps.len(), term.taps.0 * term.taps.1);
                    for (i, tap) in tap_block.taps.iter().enumerate() {
                        let (row, column) = (i / term.taps.1, i % term.taps.1);
                        assert_eq!(offsets[*tap], tap_block.offset + 100 * row * gap(0) + column * gap(1));
                    }
                }
            }
        }
    }
}
