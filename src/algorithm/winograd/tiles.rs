//! The split of a layer's positions and taps into tiles.
//!
//! Along an axis with tiles of several results, the taps of a phase are split into blocks of
//! adjacent taps. Each block reads a tile of data. The data are transformed once for all blocks
//! that read them:
//!
//! - The tiles of all phases begin at the same data. The results of a phase whose taps read later
//!   data begin as many positions before those of the first phase ([`Lattice::lead`]).
//! - Along an axis whose positions are tiles of their own, the data of a tap are those of another
//!   tap some positions further on ([`AxisBlock::ahead`]).
//! - A block with fewer taps than its tile has zeros for the last ones. Points whose weights are
//!   thereby zero are not multiplied.
//! - The last tiles along an axis may be short. Points whose data are thereby zero are not multiplied ([`TileOrder`]).

use crate::estimate::cost::{self, Cost};
use crate::geometry::{Axes, AxisPhases, Phase};
use crate::kernel::{CYCLIC_RESULTS, FOURIER_VALUES, MOST_TAPS, SHORT_RESULTS, TileKind};
use crate::layout::input_tile::AxisTiles;
use crate::layout::tile_weights::{TermTaps, TileTaps};
use std::collections::HashMap;
use std::ops::Range;
use tract_core::internal::TVec;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;

/// The kind of tiles that a plan has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiling {
    /// Two results along each axis of two or three taps, or three results of two taps.
    Winograd { results: usize },
    /// Four results of three taps along both axes.
    Cyclic,
    /// The results along one axis that a Fourier transform of `values` values has for `taps` taps.
    Fourier { values: usize, taps: usize },
}

impl Tiling {
    /// Chooses the taps of a Fourier tile for the phases of an axis: as many as make the fewest
    /// products. Returns none for phases of one tap.
    pub(crate) fn fourier(axis: &AxisPhases, values: usize) -> Option<Tiling> {
        let most = most_adjacent(axis);
        if most < 2 {
            return None;
        }
        let products = |taps: &usize| most.div_ceil(*taps) as f64 / (values - taps + 1) as f64;
        // The same number of tiles, with as few taps as possible.
        let even = |taps: usize| most.div_ceil(most.div_ceil(taps));
        let taps = (2..=most.min(values / 2 + 1)).map(even).min_by(|a, b| products(a).total_cmp(&products(b)))?;
        Some(Tiling::Fourier { values, taps })
    }

    /// Returns the kinds of tiles that axes can have, and their layouts on rows and columns.
    pub(crate) fn of(axes: &Axes, local_accuracy: bool) -> Vec<(Tiling, [Lattice; 2])> {
        let (_, y, x) = axes.parts();
        let both = |tiling: Tiling| (tiling, [Lattice::of(y, tiling), Lattice::of(x, tiling)]);
        let any = |(_, of): &(Tiling, [Lattice; 2])| of.iter().any(|lattice| lattice.gap.is_some());
        let winograd = Some(both(Tiling::Winograd { results: 2 })).filter(any);
        if local_accuracy {
            return winograd.into_iter().collect();
        }
        let most = [y, x].map(most_adjacent);
        // More taps have fewer products, and smaller errors, in other tiles.
        let threes =
            Some(both(Tiling::Winograd { results: 3 })).filter(|of| any(of) && most.iter().all(|most| *most <= 2));
        let cyclic = Some(both(Tiling::Cyclic)).filter(|(_, of)| {
            of.iter().all(|lattice| lattice.gap.is_some()) && most.iter().all(|most| *most >= MOST_TAPS)
        });
        let fourier = FOURIER_VALUES.into_iter().cartesian_product([0, 1]).filter_map(|(values, axis)| {
            let tiling = Tiling::fourier([y, x][axis], values)?;
            let mut lattices = [y, x].map(|axis| Lattice::alone(axis, tiling));
            lattices[axis] = Lattice::of([y, x][axis], tiling);
            lattices[axis].gap.is_some().then_some((tiling, lattices))
        });
        winograd.into_iter().chain(threes).chain(cyclic).chain(fourier).collect()
    }

    /// Results of a tile along an axis.
    fn results(self) -> usize {
        match self {
            Tiling::Winograd { results } => results,
            Tiling::Cyclic => CYCLIC_RESULTS,
            Tiling::Fourier { values, taps } => values - taps + 1,
        }
    }

    /// The most taps of a tile along an axis.
    fn taps(self) -> usize {
        match self {
            Tiling::Winograd { results: 3 } => 2,
            Tiling::Winograd { .. } | Tiling::Cyclic => MOST_TAPS,
            Tiling::Fourier { taps, .. } => taps,
        }
    }

    /// The kind of a tile of so many taps along rows and columns.
    fn kind(self, (rows, columns): (usize, usize)) -> TileKind {
        match self {
            Tiling::Winograd { results } => TileKind::Winograd { results, rows, columns },
            Tiling::Cyclic => TileKind::Cyclic,
            Tiling::Fourier { values, taps } => TileKind::Fourier { values, taps },
        }
    }

    /// Returns whether the last tile along an axis can be [short](SHORT_RESULTS).
    fn can_be_short(self) -> bool {
        self.kind((self.taps(), self.taps())).can_be_short()
    }

    /// Returns whether results of a tile depend on data that none of their taps read.
    pub(crate) fn mixes_results(self) -> bool {
        self != Tiling::Winograd { results: 2 }
    }

    /// The cost of a vector of a tile's results, per product of the tile.
    pub(crate) fn cost_of_results(self) -> Cost {
        if self == (Tiling::Winograd { results: 3 }) { cost::THREE_FROM_PRODUCTS } else { cost::FROM_PRODUCTS }
    }

    /// What the planner and `explain` call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tiling::Winograd { results: 3 } => "tiles of 3x3 results",
            Tiling::Winograd { .. } => "tiles of 2x2 results",
            Tiling::Cyclic => "cyclic tiles of 4x4 results",
            Tiling::Fourier { values, .. } if values == FOURIER_VALUES[0] => "Fourier tiles of 16 values",
            Tiling::Fourier { .. } => "Fourier tiles of 32 values",
        }
    }
}

/// The taps of a phase whose shifts are whole steps apart: their indices, by ascending shift.
fn classes(axis: &AxisPhases, phase: &Phase) -> Vec<Vec<usize>> {
    let by_shift = (0..phase.taps.len()).sorted_by_key(|tap| phase.taps[*tap].shift);
    let class = |tap: usize| phase.taps[tap].shift.rem_euclid(axis.in_step as i64);
    by_shift.into_group_map_by(|tap| class(*tap)).into_iter().sorted().map(|(_, taps)| taps).collect()
}

/// The most taps of a phase whose shifts are whole steps apart.
fn most_adjacent(axis: &AxisPhases) -> usize {
    axis.phases.iter().flat_map(|phase| classes(axis, phase)).map(|taps| taps.len()).max().unwrap_or(0)
}

/// The layout of tiles on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lattice {
    /// The distance of a tile's results. None where each position is a tile of its own.
    pub(crate) gap: Option<usize>,
    /// The results for which a tile has offsets.
    pub(crate) results: usize,
    /// Positions after the last tap of a position that the tiles of an accumulator block read.
    pub(crate) overhang: usize,
    /// The most positions that the results of a phase begin before their tile.
    pub(crate) lead: usize,
    /// Where each position is a tile of its own: positions after the last one whose data taps read.
    pub(crate) beyond: usize,
    /// The least shift of all phases, if their tiles begin at the same data.
    least: Option<i64>,
    tiling: Tiling,
}

/// Adjacent taps of a phase that one tile has along an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AxisBlock {
    /// The shift of a tap that reads the first value of a tile `lead` positions before the tile's.
    shift: i64,
    /// See [`Lattice::lead`].
    lead: usize,
    /// Positions from a tile to the one whose data the taps read.
    ahead: usize,
    /// The indices of its taps in the phase, by ascending shift.
    taps: TVec<usize>,
}

impl Lattice {
    /// Chooses the distance of taps as the distance of results, if it is the same for all taps and
    /// the grid has room for two results.
    pub(crate) fn of(axis: &AxisPhases, tiling: Tiling) -> Lattice {
        let step = axis.in_step;
        let shift = |phase: &Phase, tap: usize| phase.taps[tap].shift;
        let all: Vec<(&Phase, Vec<Vec<usize>>)> =
            axis.phases.iter().map(|phase| (phase, classes(axis, phase))).collect();
        let gaps = all.iter().flat_map(|(phase, classes)| {
            let pairs = classes.iter().flat_map(|taps| taps.windows(2));
            pairs.map(|pair| (shift(phase, pair[1]) - shift(phase, pair[0])) as usize / step)
        });
        let gap = gaps.dedup().exactly_one().ok();
        // Tiles of two results are of the taps that a phase has, which differ from class to class.
        let gap = gap.filter(|gap| (step == 1 || tiling.mixes_results()) && (1..axis.grid).contains(gap));
        let Some(gap) = gap else { return Lattice::alone(axis, tiling) };
        let mut lattice =
            Lattice { gap: Some(gap), results: tiling.results(), overhang: 0, lead: 0, beyond: 0, least: None, tiling };
        if !tiling.mixes_results() {
            return lattice;
        }
        // The phases of a forward layer are one.
        let least = all.iter().flat_map(|(phase, _)| phase.taps.iter().map(|tap| tap.shift)).min();
        lattice.least = least.filter(|_| axis.out_step > 1);
        let with_taps = || axis.phases.iter().filter(|phase| !phase.taps.is_empty());
        lattice.lead = with_taps().map(|phase| lattice.lead_of(phase)).max().unwrap_or(0);
        let of_tile = tiling.taps();
        let last = all.iter().flat_map(|(_, classes)| classes).map(|taps| (taps.len() - 1) / of_tile * of_tile).max();
        let read = lattice.lead + (last.unwrap_or(0) + of_tile + lattice.results - 2) * gap;
        lattice.overhang = read.saturating_sub(AxisTiles::shared(axis).extra);
        lattice
    }

    /// The layout on an axis whose positions are in different tiles.
    pub(crate) fn alone(axis: &AxisPhases, tiling: Tiling) -> Lattice {
        // Taps that are far apart read the data of few others.
        let beyond = Some(AxisTiles::shared(axis).extra).filter(|extra| *extra < most_adjacent(axis)).unwrap_or(0);
        // The results of a Fourier tile are along one axis.
        let results = if matches!(tiling, Tiling::Fourier { .. }) { 1 } else { tiling.results() };
        Lattice { gap: None, results, overhang: 0, lead: 0, beyond, least: None, tiling }
    }

    /// The number of positions after which the layout repeats.
    pub(crate) fn period(self) -> usize {
        self.gap.map_or(1, |gap| self.results * gap)
    }

    /// Whether a phase with this many taps has tiles of several results.
    fn has_several(self, taps: usize) -> bool {
        let fewest = if self.tiling.mixes_results() { 1 } else { 2 };
        self.gap.is_some() && taps >= fewest
    }

    /// The positions that the results of a phase begin before their tile.
    pub(crate) fn lead_of(self, phase: &Phase) -> usize {
        let first = phase.taps.iter().map(|tap| tap.shift).min();
        self.least.zip(first).map_or(0, |(least, first)| (first - least) as usize)
    }

    /// Returns the first positions of tiles, of several results or of one, that have the results of
    /// all phases at `positions`.
    ///
    /// `positions` begin with a period. The assignment of positions to tiles does not depend on the
    /// split of the axis.
    pub(crate) fn origins(self, several: bool, positions: Range<usize>) -> impl Iterator<Item = usize> {
        let gap = self.gap.filter(|_| several);
        let end = positions.end + if gap.is_some() { self.lead } else { 0 };
        let (period, adjacent) = gap.map_or((1, 1), |gap| (self.results * gap, gap));
        debug_assert!(positions.start.is_multiple_of(period));
        (positions.start..end).step_by(period).flat_map(move |first| first..(first + adjacent).min(end))
    }

    /// The number of tiles that have results at the first `len` positions, of phases whose results
    /// begin at most `lead` positions before their tile.
    pub(crate) fn count(self, several: bool, lead: usize, len: usize) -> usize {
        self.gap.filter(|_| several).map_or(len, |gap| {
            let (len, period) = (len + lead, self.results * gap);
            len / period * gap + (len % period).min(gap)
        })
    }

    /// Whether the last of the tiles that have results at the last `len` positions of an axis is [short](SHORT_RESULTS).
    pub(crate) fn is_last_short(self, several: bool, len: usize) -> bool {
        self.can_stand_apart(several) && (1..=SHORT_RESULTS).contains(&((len + self.lead) % self.results))
    }

    /// Whether a phase whose results begin `lead` positions before their tile has none in the last of the tiles that have
    /// results at `len` positions.
    pub(crate) fn skips_last(self, several: bool, lead: usize, len: usize) -> bool {
        self.can_stand_apart(several) && self.count(true, lead, len) < self.count(true, self.lead, len)
    }

    /// Whether the last tile may stand apart from the others: see [`TileOrder`].
    fn can_stand_apart(self, several: bool) -> bool {
        several && self.gap == Some(1) && self.tiling.can_be_short()
    }

    /// Splits the taps of a phase into blocks of adjacent ones. Returns, per length of a block's
    /// tile, its blocks. There may be fewer taps than that.
    fn blocks(self, axis: &AxisPhases, phase: &Phase) -> Vec<(usize, Vec<AxisBlock>)> {
        let (classes, lead) = (classes(axis, phase), self.lead_of(phase));
        if classes.is_empty() {
            return vec![];
        }
        let block = |taps: &[usize]| AxisBlock { shift: phase.taps[taps[0]].shift, lead, ahead: 0, taps: taps.into() };
        if self.gap.is_none() {
            let input_tiles = AxisTiles::shared(axis);
            let alone = |tap: &usize| {
                let of = block(&[*tap]);
                let (shift, ahead) = if self.beyond > 0 { input_tiles.place(of.shift) } else { (of.shift, 0) };
                AxisBlock { shift, ahead, ..of }
            };
            return vec![(1, classes.iter().flatten().map(alone).collect())];
        }
        if self.tiling.mixes_results() {
            let of_tile = self.tiling.taps();
            return vec![(of_tile, classes.iter().flat_map(|taps| taps.chunks(of_tile)).map(block).collect())];
        }
        let [taps] = &classes[..] else { unreachable!("tiles of two results have one class") };
        if taps.len() == 1 {
            return vec![(1, vec![block(taps)])];
        }
        let (threes, twos) = taps.split_at(taps.len() - 2 * [0, 2, 1][taps.len() % MOST_TAPS]);
        [(MOST_TAPS, threes), (2, twos)]
            .into_iter()
            .map(|(len, taps)| (len, taps.chunks(len).map(block).collect()))
            .filter(|(_, blocks): &(usize, Vec<AxisBlock>)| !blocks.is_empty())
            .collect()
    }
}

/// The order of the tiles of an accumulator block: row by row, or column by column.
///
/// The last row of tiles, and the last column, stand apart if not all points or phases need them. First come the tiles of
/// such a row but its last, then the inner ones, then those of such a column, and last the one in the corner. Either is
/// thus next to the inner ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileOrder {
    /// Rows and columns of tiles.
    counts: [usize; 2],
    /// Whether the last row and the last column stand apart.
    apart: [bool; 2],
    /// Whether tiles of the last row and of the last column are short.
    short: [bool; 2],
    by_columns: bool,
}

/// Tiles that follow each other: rows and columns of them, and whether they are short along rows and columns.
pub(crate) type TileSection = ([Range<usize>; 2], (bool, bool));

impl TileOrder {
    /// The order of the tiles that have results at positions of a grid, along axes of several results or of one. With
    /// `beyond`, further tiles follow whose data are read.
    pub(crate) fn new(
        lattices: [Lattice; 2],
        several: [bool; 2],
        positions: [&Range<usize>; 2],
        grid: [usize; 2],
        beyond: bool,
    ) -> TileOrder {
        let of = |axis: usize| {
            let (lattice, several, at) = (lattices[axis], several[axis], positions[axis]);
            let count = lattice.count(several, lattice.lead, at.len()) + if beyond { lattice.beyond } else { 0 };
            let short = at.end == grid[axis] && lattice.is_last_short(several, at.len());
            (count, short, short || lattice.skips_last(several, 0, at.len()))
        };
        let [rows, columns] = [of(0), of(1)];
        let ordered = lattices.iter().all(|lattice| lattice.beyond == 0);
        TileOrder {
            counts: [rows.0, columns.0],
            apart: [rows.2 && ordered, columns.2 && ordered],
            short: [rows.1 && ordered, columns.1 && ordered],
            by_columns: lists_columns(lattices),
        }
    }

    /// Tiles per position of the axis by which they are listed.
    pub(crate) fn inner(self) -> usize {
        self.counts[usize::from(!self.by_columns)]
    }

    /// The sections of tiles that stand apart, in order. They may be empty.
    pub(crate) fn sections(self) -> [TileSection; 4] {
        let inner = [0, 1].map(|axis: usize| self.counts[axis] - usize::from(self.apart[axis]).min(self.counts[axis]));
        let of_axis = |axis: usize, last: bool| if last { inner[axis]..self.counts[axis] } else { 0..inner[axis] };
        [(true, false), (false, false), (false, true), (true, true)].map(|(row, column)| {
            ([of_axis(0, row), of_axis(1, column)], (row && self.short[0], column && self.short[1]))
        })
    }

    /// The row and column of each tile of a section, in order.
    pub(crate) fn places(self, (section, _): &TileSection) -> impl Iterator<Item = [usize; 2]> + use<> {
        let ([rows, columns], by_columns) = (section.clone(), self.by_columns);
        let (outer, inner) = if by_columns { (columns, rows) } else { (rows, columns) };
        let place = move |(outer, inner)| if by_columns { [inner, outer] } else { [outer, inner] };
        outer.cartesian_product(inner).map(place)
    }

    /// The tiles whose data differ from zero at a point that is zero in tiles that are short along rows, or along columns.
    pub(crate) fn multiplied(self, zero_if_short: (bool, bool)) -> Range<usize> {
        let of_sections = self.sections().map(|([rows, columns], _)| rows.len() * columns.len());
        let [last_row, inner, last_column, corner] = of_sections;
        match (zero_if_short.0 && self.short[0], zero_if_short.1 && self.short[1]) {
            (false, false) => 0..last_row + inner + last_column + corner,
            (true, false) => last_row..last_row + inner + last_column,
            (false, true) => 0..last_row + inner,
            (true, true) => last_row..last_row + inner,
        }
    }
}

/// Whether tiles are listed column by column. Otherwise they are listed row by row.
///
/// Tiles that only other phases multiply, or whose data only other tiles read, are the last ones.
pub(crate) fn lists_columns(lattices: [Lattice; 2]) -> bool {
    lattices[1].beyond > 0
}

/// Data that are transformed in tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TileInput {
    /// A kind of tiles that has its points.
    pub(crate) kind: TileKind,
    /// Whether tiles have several results along rows and columns.
    pub(crate) several: [bool; 2],
    /// The shifts of a tap that reads the first value of a tile `lead` positions before the tile's.
    pub(crate) shifts: TVec<i64>,
    /// Positions along rows and columns.
    pub(crate) lead: [usize; 2],
}

impl TileInput {
    /// Equal for inputs that are the same data.
    fn identity(&self) -> TileIdentity {
        let lead = std::iter::repeat_n(0, self.shifts.len() - 2).chain(self.lead);
        let first = self.shifts.iter().zip(lead).map(|(shift, lead)| shift - lead as i64).collect();
        (self.kind, self.several, first)
    }
}

/// See [`TileInput::identity`].
type TileIdentity = (TileKind, [bool; 2], TVec<i64>);

/// The taps of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapBlock {
    /// The index of its data in [`TileTable::data`].
    pub(crate) data: usize,
    /// Positions along rows and columns from a tile to the one whose data it reads.
    pub(crate) ahead: [usize; 2],
    /// The indices of its taps in the phase, row by row. None for a weight of zero.
    pub(crate) taps: TileTaps,
}

/// The taps of a phase that tiles of one kind read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// The kind of the tiles.
    pub(crate) kind: TileKind,
    pub(crate) tap_blocks: Vec<TapBlock>,
    pub(crate) points: Vec<TermPoint>,
}

/// A point of the tiles of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TermPoint {
    /// The runs of tap blocks whose weights may differ from zero. The points of a term take less than 4 KiB.
    pub(crate) runs: SmallVec<[Range<usize>; 2]>,
    /// The tap blocks of all runs.
    pub(crate) blocks: usize,
    /// See [`TileKind::zero_if_short`].
    pub(crate) zero_if_short: (bool, bool),
}

impl Term {
    /// Products per pair of channels.
    pub(crate) fn products(&self) -> usize {
        self.points.iter().map(|point| point.blocks).sum()
    }
}

/// The tiles of all phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TileTable {
    pub(crate) data: Vec<TileInput>,
    pub(crate) phases: Vec<TilePhase>,
}

/// The tiles of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TilePhase {
    /// Whether tiles have several results along rows and columns.
    pub(crate) several: [bool; 2],
    /// Positions that the results begin before their tile along rows and columns.
    pub(crate) lead: [usize; 2],
    pub(crate) terms: Vec<Term>,
    /// Its index among the phases of a packed filter.
    pub(crate) of_filter: usize,
}

impl TileTable {
    pub(crate) fn new(axes: &Axes, lattices: [Lattice; 2]) -> TileTable {
        let (mut table, mut known) = (TileTable { data: vec![], phases: vec![] }, HashMap::new());
        for phases in axes.iter().map(|axis| &axis.phases).multi_cartesian_product() {
            let phase = table.phase(axes, &phases, lattices, &mut known);
            table.phases.push(phase);
        }
        table
    }

    /// Builds the tiles of a phase. `known` are the indices of data in the table.
    fn phase(
        &mut self,
        axes: &Axes,
        phases: &[&Phase],
        lattices: [Lattice; 2],
        known: &mut HashMap<TileIdentity, usize>,
    ) -> TilePhase {
        let ([outer @ .., y, x], (_, y_axis, x_axis)) = (phases, axes.parts()) else {
            unreachable!("axes end in rows and columns")
        };
        let several = [(y, lattices[0]), (x, lattices[1])].map(|(of, lattice)| lattice.has_several(of.taps.len()));
        let lead = [lattices[0].lead_of(y), lattices[1].lead_of(x)];
        let outer: Vec<TVec<i64>> = if outer.is_empty() {
            vec![TVec::new()]
        } else {
            let taps = outer.iter().map(|phase| phase.taps.iter().map(|tap| tap.shift));
            taps.multi_cartesian_product().map(TVec::from_vec).collect()
        };
        let (rows, columns) = (lattices[0].blocks(y_axis, y), lattices[1].blocks(x_axis, x));
        let mut terms = vec![];
        for ((of_rows, rows), (of_columns, columns)) in rows.iter().cartesian_product(&columns) {
            let kind = lattices[0].tiling.kind((*of_rows, *of_columns));
            let places = outer.iter().enumerate().cartesian_product(rows).cartesian_product(columns);
            let mut used = vec![];
            let mut tap_block = |(((o, outer), row), column): (((usize, &TVec<i64>), &AxisBlock), &AxisBlock)| {
                let shifts = outer.iter().copied().chain([row.shift, column.shift]).collect();
                let data = TileInput { kind, several, shifts, lead: [row.lead, column.lead] };
                let at = *known.entry(data.identity()).or_insert(self.data.len());
                if at == self.data.len() {
                    self.data.push(data);
                }
                let all = (0..*of_rows).cartesian_product(0..*of_columns);
                let tap = |(ky, kx): (usize, usize)| {
                    let (ky, kx) = row.taps.get(ky).zip(column.taps.get(kx))?;
                    Some((o * y.taps.len() + ky) * x.taps.len() + kx)
                };
                used.push((row.taps.len(), column.taps.len()));
                TapBlock { data: at, ahead: [row.ahead, column.ahead], taps: all.map(tap).collect() }
            };
            let tap_blocks: Vec<TapBlock> = places.map(&mut tap_block).collect();
            if !tap_blocks.is_empty() {
                let point = |point: usize| {
                    let runs = runs_of(used.iter().map(|taps| kind.uses(point, *taps)));
                    let blocks = runs.iter().map(|run| run.len()).sum();
                    TermPoint { runs, blocks, zero_if_short: kind.zero_if_short(point) }
                };
                terms.push(Term { kind, tap_blocks, points: (0..kind.points()).map(point).collect() });
            }
        }
        let residues = axes.iter().zip(phases).map(|(axis, phase)| (axis.out_step, phase.residue));
        let of_filter = residues.fold(0, |at, (step, residue)| at * step + residue);
        TilePhase { several, lead, terms, of_filter }
    }

    /// The taps of all phases, in the order of a packed filter. `pass_of` returns the input channels of a pass, for a number
    /// of tap blocks.
    pub(crate) fn weights(&self, axes: &Axes, pass_of: impl Fn(usize) -> usize) -> Vec<Vec<TermTaps>> {
        let mut weights = vec![vec![]; axes.iter().map(|axis| axis.out_step).product()];
        let taps = |term: &Term| {
            let blocks: Vec<TileTaps> = term.tap_blocks.iter().map(|block| block.taps.clone()).collect();
            let pass = pass_of(blocks.len());
            TermTaps { kind: term.kind, blocks, pass }
        };
        for phase in &self.phases {
            weights[phase.of_filter] = phase.terms.iter().map(taps).collect();
        }
        weights
    }
}

/// The ranges of indices at which `is` is true.
fn runs_of(is: impl Iterator<Item = bool>) -> SmallVec<[Range<usize>; 2]> {
    let mut runs: SmallVec<[Range<usize>; 2]> = SmallVec::new();
    for (at, _) in is.enumerate().filter(|(_, is)| *is) {
        match runs.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Axis, Direction};

    fn axis(kernel: usize, stride: usize, dilation: usize, direction: Direction) -> AxisPhases {
        let axis = Axis { input: 20, output: 18, kernel, stride, dilation, pad_begin: 1 };
        AxisPhases::new(&axis, direction)
    }

    const TWO: Tiling = Tiling::Winograd { results: 2 };
    const THREE: Tiling = Tiling::Winograd { results: 3 };
    const FOURIER: Tiling = Tiling::Fourier { values: 16, taps: 5 };
    const ALL: [Tiling; 4] = [TWO, THREE, Tiling::Cyclic, FOURIER];

    /// Axes of both directions, with their kernels, strides and dilations.
    fn all_axes() -> impl Iterator<Item = AxisPhases> {
        let directions = [Direction::Forward, Direction::Transposed];
        let sizes = directions.into_iter().cartesian_product(1..9).cartesian_product(1..4).cartesian_product(1..4);
        sizes.map(|(((direction, kernel), stride), dilation)| axis(kernel, stride, dilation, direction))
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
    fn fewest_taps_inside_are_those_of_the_poorest_result() {
        let sizes = (1..6).cartesian_product(1..12).cartesian_product(-3..4i64);
        let kernels = (1..6).cartesian_product(1..4).cartesian_product(1..4);
        let directions = [Direction::Forward, Direction::Transposed];
        for ((((input, output), pad_begin), ((kernel, stride), dilation)), direction) in
            sizes.cartesian_product(kernels).cartesian_product(directions)
        {
            let axis = AxisPhases::new(&Axis { input, output, kernel, stride, dilation, pad_begin }, direction);
            let phases = |at: usize| axis.phases_inside(at).map(move |phase| (at, phase));
            let several = (0..axis.grid).flat_map(phases).filter(|(_, phase)| axis.phases[*phase].taps.len() > 1);
            let inside = several.map(|(at, phase)| axis.taps_inside(phase, &(at..at + 1)).len().max(1));
            assert_eq!(axis.fewest_taps_inside(), inside.min(), "{axis:?}");
        }
    }

    #[test]
    fn each_position_is_a_result_of_one_tile() {
        let sizes = (1..5).cartesian_product(1..45).cartesian_product(ALL).cartesian_product(0..7);
        for (((gap, len), tiling), lead) in sizes {
            let results = tiling.results();
            let lattice = Lattice { gap: Some(gap), results, overhang: 0, lead, beyond: 0, least: None, tiling };
            for of_phase in 0..=lead {
                let positions = lattice.origins(true, 0..len).flat_map(|at| (0..results).map(move |i| at + i * gap));
                let positions = positions.filter_map(|at| at.checked_sub(of_phase)).filter(|at| *at < len);
                assert_eq!(
                    positions.sorted().collect::<Vec<_>>(),
                    (0..len).collect::<Vec<_>>(),
                    "{results} results, {gap} apart, {of_phase} before their tile"
                );
            }
            assert_eq!(lattice.count(true, lead, len), lattice.origins(true, 0..len).count());
            assert_eq!(lattice.origins(false, 3..9).collect::<Vec<_>>(), (3..9).collect::<Vec<_>>());
        }
    }

    /// Each tile is numbered once, and those that a point multiplies follow each other.
    #[test]
    fn tiles_of_the_last_row_and_column_stand_apart() {
        let lens = (1..14).cartesian_product(1..14).cartesian_product([[0, 0], [1, 0], [1, 2]]);
        for (((rows, columns), leads), tiling) in lens.cartesian_product([TWO, THREE, Tiling::Cyclic]) {
            let results = tiling.results();
            let lattice = |lead| Lattice { gap: Some(1), results, overhang: 0, lead, beyond: 0, least: None, tiling };
            let (lattices, positions) = (leads.map(lattice), [&(0..rows), &(0..columns)]);
            let taps = tiling.taps();
            let kind = tiling.kind((taps, taps));
            for grid in [[rows, columns], [rows + 1, columns], [rows, columns + 1]] {
                let order = TileOrder::new(lattices, [true; 2], positions, grid, false);
                let short = |axis: usize| {
                    positions[axis].end == grid[axis] && lattices[axis].is_last_short(true, positions[axis].len())
                };
                let counts = [0, 1].map(|axis: usize| lattices[axis].count(true, leads[axis], positions[axis].len()));
                let places: Vec<([usize; 2], (bool, bool))> = order
                    .sections()
                    .iter()
                    .flat_map(|section| order.places(section).map(|place| (place, section.1)))
                    .collect();
                let all = (0..counts[0]).cartesian_product(0..counts[1]).map(|(row, column)| [row, column]);
                assert_eq!(
                    places.iter().map(|(place, _)| *place).sorted().collect::<Vec<_>>(),
                    all.collect::<Vec<_>>()
                );
                for ([row, column], of) in &places {
                    let last = (row + 1 == counts[0], column + 1 == counts[1]);
                    assert_eq!(*of, (last.0 && short(0), last.1 && short(1)), "{order:?}");
                }
                for point in 0..kind.points() {
                    let zero = kind.zero_if_short(point);
                    let differs = |(_, short): &(_, (bool, bool))| !(short.0 && zero.0 || short.1 && zero.1);
                    let at = places.iter().positions(differs).collect::<Vec<_>>();
                    assert_eq!(order.multiplied(zero).collect::<Vec<_>>(), at, "{order:?}, point {point}");
                }
            }
        }
    }

    /// A short tile has all results that are left of the grid.
    #[test]
    fn short_tiles_have_the_last_results() {
        for (grid, tiling) in (1..40).cartesian_product([THREE, Tiling::Cyclic]) {
            let results = tiling.results();
            let lattice = Lattice { gap: Some(1), results, overhang: 0, lead: 0, beyond: 0, least: None, tiling };
            let left = grid - lattice.origins(true, 0..grid).last().unwrap_or(0);
            assert_eq!(lattice.is_last_short(true, grid), left <= SHORT_RESULTS);
        }
    }

    #[test]
    fn results_are_as_far_apart_as_taps() {
        use Direction::{Forward, Transposed};
        let gap = |kernel, stride, dilation, direction, tiling| {
            Lattice::of(&axis(kernel, stride, dilation, direction), tiling).gap
        };
        for tiling in ALL {
            assert_eq!(gap(3, 1, 1, Forward, tiling), Some(1));
            assert_eq!(gap(3, 1, 4, Forward, tiling), Some(4));
            assert_eq!(gap(4, 2, 1, Transposed, tiling), Some(1));
            assert_eq!(gap(5, 2, 3, Transposed, tiling), Some(3));
            assert_eq!(gap(3, 1, 1, Transposed, tiling), Some(1));
            // There is one tap per phase, or taps too far apart for a grid of 18.
            assert_eq!(gap(2, 2, 1, Transposed, tiling), None);
            assert_eq!(gap(2, 1, 18, Transposed, tiling), None);
            // Every second tap reads every second input.
            let strided = |gap| if tiling == TWO { None } else { Some(gap) };
            assert_eq!(gap(3, 2, 1, Forward, tiling), strided(1));
            assert_eq!(gap(3, 2, 2, Forward, tiling), strided(1));
            assert_eq!(gap(5, 2, 3, Forward, tiling), strided(3));
        }
    }

    /// The values that a block's taps read are those that its tile has for them.
    #[test]
    fn blocks_have_each_tap_where_its_tile_reads_it() {
        for (axis, tiling) in all_axes().cartesian_product(ALL) {
            let lattice = Lattice::of(&axis, tiling);
            for phase in &axis.phases {
                let blocks = lattice.blocks(&axis, phase);
                let all = || blocks.iter().flat_map(|(len, blocks)| blocks.iter().map(move |block| (*len, block)));
                let taps = all().flat_map(|(_, block)| block.taps.iter().copied()).sorted();
                assert_eq!(taps.collect::<Vec<_>>(), (0..phase.taps.len()).collect::<Vec<_>>());
                for (len, block) in all() {
                    assert!(block.taps.len() <= len && axis.shifts().contains(&block.shift), "{block:?}");
                    assert_eq!(block.lead, lattice.lead_of(phase));
                    assert!(block.lead <= lattice.lead && block.ahead <= lattice.beyond);
                    for (i, tap) in block.taps.iter().enumerate() {
                        let after = (block.ahead + i * lattice.gap.unwrap_or(0)) * axis.in_step;
                        assert_eq!(phase.taps[*tap].shift, block.shift + after as i64, "{axis:?} {block:?}");
                    }
                }
            }
        }
    }

    /// The last tile of a phase reads no further than the input tiles reach.
    #[test]
    fn tiles_read_what_a_block_has() {
        for (axis, tiling) in all_axes().cartesian_product(ALL).filter(|(_, tiling)| tiling.mixes_results()) {
            let lattice = Lattice::of(&axis, tiling);
            let Some(gap) = lattice.gap else { continue };
            let last = lattice.origins(true, 0..axis.grid).last().unwrap_or(0);
            for (len, block) in axis
                .phases
                .iter()
                .flat_map(|phase| lattice.blocks(&axis, phase))
                .flat_map(|(len, blocks)| blocks.into_iter().map(move |block| (len, block)))
            {
                let (_, offset) = AxisTiles::shared(&axis).place(block.shift);
                let read = last + offset + (len + lattice.results - 2) * gap - block.lead;
                assert!(
                    read < axis.grid + AxisTiles::shared(&axis).extra + lattice.overhang,
                    "{axis:?} {lattice:?} {block:?}"
                );
            }
        }
    }

    #[test]
    fn data_are_transformed_once() {
        use Direction::{Forward, Transposed};
        let table = |of: [AxisPhases; 2], tiling: Tiling, fourier: Option<usize>| {
            let mut lattices = [&of[0], &of[1]].map(|axis| Lattice::of(axis, tiling));
            if let Some(axis) = fourier {
                lattices[1 - axis] = Lattice::alone(&of[1 - axis], tiling);
            }
            TileTable::new(&Axes::of(&of), lattices)
        };
        let products = |table: &TileTable| {
            let terms = table.phases.iter().flat_map(|phase| &phase.terms);
            (table.data.len(), terms.map(Term::products).sum::<usize>())
        };
        let square = |kernel, stride, direction| [(); 2].map(|()| axis(kernel, stride, 1, direction));
        // four phases of 2x2 taps, and 2x2, 2x1, 1x2 and 1x1 taps
        assert_eq!(products(&table(square(4, 2, Transposed), THREE, None)), (1, 4 * 16));
        assert_eq!(products(&table(square(3, 2, Transposed), THREE, None)), (1, 7 * 7));
        // the four classes of a forward layer
        assert_eq!(products(&table(square(3, 2, Forward), THREE, None)), (4, 7 * 7));
        // four phases of 3x3, 3x2, 2x3 and 2x2 taps
        assert_eq!(products(&table(square(5, 2, Transposed), Tiling::Cyclic, None)), (1, 46 + 39 + 39 + 33));
        assert_eq!(products(&table(square(5, 2, Forward), Tiling::Cyclic, None)), (4, 46 + 39 + 39 + 33));
        // five rows, or five columns, of five taps
        let five = || square(5, 1, Forward);
        assert_eq!(products(&table(five(), FOURIER, Some(1))), (1, 5 * FOURIER.kind((1, 5)).points()));
        assert_eq!(products(&table(five(), FOURIER, Some(0))), (1, 5 * FOURIER.kind((5, 1)).points()));
    }

    #[test]
    fn terms_have_each_tap_of_a_phase_once() {
        let axes = all_axes().step_by(7).collect::<Vec<_>>();
        for ((y, x), tiling) in axes.iter().cartesian_product(&axes).cartesian_product(ALL) {
            let all = [axis(2, 1, 1, Direction::Forward), y.clone(), x.clone()];
            let mut lattices = [y, x].map(|axis| Lattice::of(axis, tiling));
            if tiling == FOURIER {
                lattices[0] = Lattice::alone(y, tiling);
            }
            if tiling == Tiling::Cyclic && lattices.iter().any(|lattice| lattice.gap.is_none()) {
                continue;
            }
            let table = TileTable::new(&Axes::of(&all), lattices);
            for (phase, of) in y.phases.iter().cartesian_product(&x.phases).zip(&table.phases) {
                let blocks = || of.terms.iter().flat_map(|term| &term.tap_blocks);
                let taps = blocks().flat_map(|block| block.taps.iter().flatten().copied()).sorted();
                let count = 2 * phase.0.taps.len() * phase.1.taps.len();
                assert_eq!(taps.collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
                assert!(blocks().all(|block| block.data < table.data.len()));
            }
        }
    }
}
