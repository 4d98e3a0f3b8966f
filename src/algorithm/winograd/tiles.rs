//! The split of a phase's positions and taps into tiles.

use crate::geometry::{Axes, AxisPhases, Phase};
use crate::kernel::{CYCLIC_RESULTS, FOURIER_VALUES, MOST_TAPS, TileKind, WINOGRAD_RESULTS};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;

/// The kind of tiles that a plan has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiling {
    /// Two results along each axis of several taps.
    Winograd,
    /// Four results of three taps along both axes.
    Cyclic,
    /// The results along one axis that a Fourier transform of `values` values has for `taps` taps.
    Fourier { values: usize, taps: usize },
}

impl Tiling {
    /// Chooses the taps of a Fourier tile for the phases of an axis: as many as make the fewest
    /// products. Returns none for phases of one tap.
    pub(crate) fn fourier(axis: &AxisPhases, values: usize) -> Option<Tiling> {
        let most = axis.phases.iter().map(|phase| phase.taps.len()).max().filter(|most| *most > 1)?;
        let products = |taps: &usize| most.div_ceil(*taps) as f64 / (values - taps + 1) as f64;
        // The same number of tiles, with as few taps as possible.
        let even = |taps: usize| most.div_ceil(most.div_ceil(taps));
        let taps = (2..=most.min(values / 2 + 1)).map(even).min_by(|a, b| products(a).total_cmp(&products(b)))?;
        Some(Tiling::Fourier { values, taps })
    }

    /// Results of a tile along an axis.
    fn results(self) -> usize {
        match self {
            Tiling::Winograd => WINOGRAD_RESULTS,
            Tiling::Cyclic => CYCLIC_RESULTS,
            Tiling::Fourier { values, taps } => values - taps + 1,
        }
    }

    /// The kind of a tile of so many taps along rows and columns.
    fn kind(self, (rows, columns): (usize, usize)) -> TileKind {
        match self {
            Tiling::Winograd => TileKind::Winograd { rows, columns },
            Tiling::Cyclic => TileKind::Cyclic,
            Tiling::Fourier { values, taps } => TileKind::Fourier { values, taps },
        }
    }

    /// Returns whether all results of a tile depend on all that it reads. In other tiles, a result
    /// depends on its own taps only.
    pub(crate) fn mixes_results(self) -> bool {
        self != Tiling::Winograd
    }

    /// What the planner and `explain` call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tiling::Winograd => "tiles of 2x2 results",
            Tiling::Cyclic => "cyclic tiles of 4x4 results",
            Tiling::Fourier { values, .. } if values == FOURIER_VALUES[0] => "Fourier tiles of 16 values",
            Tiling::Fourier { .. } => "Fourier tiles of 32 values",
        }
    }
}

/// The layout of tiles on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lattice {
    /// The distance of a tile's results. None where each position is a tile of its own.
    pub(crate) gap: Option<usize>,
    /// The results of a tile of several taps.
    pub(crate) results: usize,
    /// Positions after the last tap of a position that the tiles of an accumulator block read.
    pub(crate) overhang: usize,
    tiling: Tiling,
}

impl Lattice {
    /// Chooses the distance of taps as the distance of results, if it is the same for all taps and
    /// the grid has room for two results.
    pub(crate) fn of(axis: &AxisPhases, tiling: Tiling) -> Lattice {
        let gaps = axis.phases.iter().flat_map(|phase| {
            let pairs = phase.taps.windows(2);
            pairs.map(|pair| pair[0].shift.abs_diff(pair[1].shift) as usize)
        });
        let gap = gaps.dedup().exactly_one().ok();
        let gap = gap.filter(|gap| axis.in_step == 1 && (1..axis.grid).contains(gap));
        let results = tiling.results();
        let added = |taps: usize| match tiling {
            Tiling::Winograd => 0,
            Tiling::Cyclic => results - 1,
            // The last taps of a phase may be fewer than those of a tile.
            Tiling::Fourier { taps: of_tile, .. } => results - 1 + taps.next_multiple_of(of_tile) - taps,
        };
        let overhang = axis.phases.iter().map(|phase| added(phase.taps.len())).max().unwrap_or(0) * gap.unwrap_or(0);
        Lattice { gap, results, overhang, tiling }
    }

    /// The layout on an axis whose positions are in different tiles.
    pub(crate) fn alone(tiling: Tiling) -> Lattice {
        Lattice { gap: None, results: 1, overhang: 0, tiling }
    }

    /// The number of positions after which the layout repeats.
    pub(crate) fn period(self) -> usize {
        self.gap.map_or(1, |gap| self.results * gap)
    }

    /// Returns the distance between results if a phase with this many taps has tiles of several
    /// results.
    pub(crate) fn pairs(self, taps: usize) -> Option<usize> {
        let fewest = if matches!(self.tiling, Tiling::Fourier { .. }) { 1 } else { 2 };
        self.gap.filter(|_| taps >= fewest)
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

    /// Splits the taps of a phase, by ascending shift, into runs of adjacent taps: of those of a
    /// Fourier tile, or of one, two or three. Returns, per length, the first taps of its runs. A
    /// Fourier tile's last run may be shorter.
    pub(crate) fn runs(self, taps: usize) -> Vec<(usize, Vec<usize>)> {
        if self.pairs(taps).is_none() {
            return if taps == 0 { vec![] } else { vec![(1, (0..taps).collect())] };
        }
        if let Tiling::Fourier { taps: of_tile, .. } = self.tiling {
            return vec![(of_tile, (0..taps).step_by(of_tile).collect())];
        }
        let twos = if self.tiling == Tiling::Cyclic { 0 } else { [0, 2, 1][taps % MOST_TAPS] };
        let begin = taps - 2 * twos;
        let threes = (0..begin).step_by(MOST_TAPS).collect::<Vec<_>>();
        let twos = (begin..taps).step_by(2).collect::<Vec<_>>();
        [(MOST_TAPS, threes), (2, twos)].into_iter().filter(|(_, runs)| !runs.is_empty()).collect()
    }
}

/// The taps of a phase that tiles of one size read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// The kind of the tiles.
    pub(crate) kind: TileKind,
    pub(crate) tap_blocks: Vec<TapBlock>,
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
                taps: (*ky..(ky + rows).min(y.taps.len()))
                    .cartesian_product(*kx..(kx + columns).min(x.taps.len()))
                    .map(|(ky, kx)| flat(o, ky, kx))
                    .collect(),
            };
            let blocks = (0..outer).cartesian_product(of_rows).cartesian_product(of_columns);
            let kind = lattices[0].tiling.kind((*rows, *columns));
            Term { kind, tap_blocks: blocks.map(tap_block).collect() }
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
                let of_tile = lattices[0].tiling.kind((*y, *x)).points();
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
    use crate::spec::{Axis, Direction};

    fn axis(kernel: usize, stride: usize, dilation: usize, direction: Direction) -> AxisPhases {
        let axis = Axis { input: 20, output: 18, kernel, stride, dilation, pad_begin: 1 };
        AxisPhases::new(&axis, direction)
    }

    const FOURIER: Tiling = Tiling::Fourier { values: 16, taps: 5 };

    fn lattice(gap: Option<usize>, tiling: Tiling) -> Lattice {
        Lattice { gap, results: tiling.results(), overhang: 0, tiling }
    }

    #[test]
    fn runs_have_each_tap_once() {
        for (taps, tiling) in (0..20).cartesian_product([Tiling::Winograd, FOURIER]) {
            for lattice in [None, Some(1), Some(3)].map(|gap| lattice(gap, tiling)) {
                let runs = lattice.runs(taps);
                let all = runs
                    .iter()
                    .flat_map(|(len, begins)| begins.iter().flat_map(move |begin| *begin..(begin + len).min(taps)));
                assert_eq!(all.collect::<Vec<_>>(), (0..taps).collect::<Vec<_>>());
                let alone = lattice.pairs(taps).is_none();
                let most = if tiling == FOURIER { 5 } else { MOST_TAPS };
                assert!(runs.iter().all(|(len, _)| (*len == 1) == alone && *len <= most));
            }
        }
    }

    #[test]
    fn fourier_tiles_have_the_taps_of_fewest_products() {
        let tiling = |taps: usize, values: usize| {
            let axis = Axis { input: 400, output: 300, kernel: taps, stride: 1, dilation: 1, pad_begin: 1 };
            Tiling::fourier(&AxisPhases::new(&axis, Direction::Forward), values)
        };
        let fourier = |values: usize, taps: usize| Some(Tiling::Fourier { values, taps });
        assert_eq!(tiling(1, 16), None);
        assert_eq!(tiling(3, 16), fourier(16, 3));
        assert_eq!(tiling(11, 32), fourier(32, 11));
        // 12 taps: once 12 and 5 results, or twice 6 and 11 results, each 23 products
        assert_eq!(tiling(12, 16), fourier(16, 6));
        assert_eq!(tiling(13, 16), fourier(16, 7));
        // 96 taps: 6 times 16 and 17 results
        assert_eq!(tiling(96, 32), fourier(32, 16));
    }

    #[test]
    fn each_position_is_a_result_of_one_tile() {
        let tilings = [Tiling::Winograd, Tiling::Cyclic, FOURIER];
        let sizes = (1..5).cartesian_product(1..45).cartesian_product(tilings);
        for ((gap, len), tiling) in sizes {
            let lattice = lattice(Some(gap), tiling);
            let count = lattice.results;
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
            Lattice::of(&axis(kernel, stride, dilation, direction), Tiling::Winograd).gap
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
        let tilings = [Tiling::Winograd, FOURIER];
        for ((direction, kernel), tiling) in directions.into_iter().cartesian_product(2..9).cartesian_product(tilings) {
            let axes = [axis(2, 1, 1, direction), axis(kernel, 1, 2, direction), axis(9 - kernel, 1, 1, direction)];
            let phases: Vec<&Phase> = axes.iter().map(|axis| &axis.phases[0]).collect();
            let mut lattices = [&axes[1], &axes[2]].map(|axis| Lattice::of(axis, tiling));
            if tiling == FOURIER {
                lattices[0] = Lattice::alone(tiling);
            }
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
                    let columns = match term.kind {
                        TileKind::Winograd { rows, columns } => {
                            assert_eq!(tap_block.taps.len(), rows * columns);
                            columns
                        }
                        TileKind::Cyclic => MOST_TAPS,
                        TileKind::Fourier { taps, .. } => {
                            assert!((1..=taps).contains(&tap_block.taps.len()));
                            taps
                        }
                    };
                    for (i, tap) in tap_block.taps.iter().enumerate() {
                        let (row, column) = (i / columns, i % columns);
                        assert_eq!(offsets[*tap], tap_block.offset + 100 * row * gap(0) + column * gap(1));
                    }
                }
            }
        }
    }
}
