//! Register tiles: the inner loops of every dense strategy.
//!
//! Both kinds compute `out[m][n] (+)= Σ_c Σ_t a(c, t, m) · b(c, t, n)` over channels `c` and taps
//! `t`. One operand is a packed panel, which is read in order. The other is read in place through
//! one offset per tap, so that shifts need no copy:
//! - [`PositionTile`]: lanes are positions; the panel holds weights (scalars), the source is an
//!   activation plane.
//! - [`ChannelTile`]: lanes are output channels; the panel holds weights (vectors), the source
//!   gives scalars.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use crate::compute::Compute;
use crate::kernel::bounds::{Bounds, clamp_all};
use crate::kernel::extent::{product, reach};
use crate::kernel::pixel_lists::PixelLists;
use crate::simd::vector::{PREFETCHES, Vector, interleave, prefetch, store_run};
use std::ops::Range;

/// The initial value of a tile's sums.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a, T> {
    /// One value per output channel of the tile.
    Bias(&'a [T]),
    /// The contents of `out`. The tile's own sum is computed separately and added once, so that
    /// long sums are split.
    Add,
}

/// The operand that is read in place.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Index of the tile's first position in the first channel, at offset zero.
    pub base: usize,
    /// Elements between channels.
    pub channel_stride: usize,
    /// Number of channels.
    pub channels: usize,
    /// The index offset of each tap.
    pub taps: &'a [usize],
    /// Whether tiles prefetch the next tile's positions while they sum a single tap.
    ///
    /// Without this, the CPU's prefetcher does not load such short runs of many planes.
    pub prefetch: bool,
}

impl<T> Source<'_, T> {
    /// Returns the source of at most `channels` channels from channel `from` on.
    fn part(&self, from: usize, channels: usize) -> Self {
        let base = self.base + from * self.channel_stride;
        Source { base, channels: channels.min(self.channels - from), ..*self }
    }

    /// One past the largest index that is read if each (channel, tap) reads `width` elements. Zero
    /// if nothing is read.
    fn reach(&self, width: usize) -> usize {
        match (self.taps.iter().max(), self.channels) {
            (Some(tap), 1..) => {
                reach([(self.base, 1), (self.channels - 1, self.channel_stride), (*tap, 1), (width, 1)])
            }
            _ => 0,
        }
    }
}

type PositionEntry<T> = unsafe fn(panel: &[T], source: &Source<T>, start: Start<T>, out: &mut [T], out_stride: usize);

/// A tile of `mr` output channels × `nv` vectors of positions.
///
/// A value of this type is proof that the CPU has its instruction set.
#[derive(Clone, Copy)]
pub(crate) struct PositionTile<T: 'static> {
    mr: usize,
    nv: usize,
    positions: usize,
    entry: PositionEntry<T>,
}

impl<T> PositionTile<T> {
    /// # Safety
    /// `entry` is [`position_tile`] of `mr` × `nv` vectors, which are `positions` positions. It is
    /// only called if the CPU has its instruction set.
    pub(crate) const unsafe fn new(mr: usize, nv: usize, positions: usize, entry: PositionEntry<T>) -> Self {
        PositionTile { mr, nv, positions, entry }
    }

    /// Output channels.
    pub fn mr(&self) -> usize {
        self.mr
    }

    /// Vectors of positions.
    pub fn nv(&self) -> usize {
        self.nv
    }

    /// All positions: `nv` × lanes.
    #[cfg(all(test, target_os = "linux"))]
    pub fn positions(&self) -> usize {
        self.positions
    }
}

impl<T: Compute> PositionTile<T> {
    /// Computes a tile. `panel` is `[channel][tap][mr]`. `out` receives `mr` rows of `positions`
    /// elements, `out_stride` apart.
    ///
    /// # Panics
    /// A slice is shorter than the range that the tile reads or writes.
    #[inline]
    pub fn run(&self, panel: &[T], source: &Source<T>, start: Start<T>, out: &mut [T], out_stride: usize) {
        assert!(panel.len() >= product([source.channels, source.taps.len(), self.mr]));
        assert!(source.data.len() >= source.reach(self.positions));
        assert!(out.len() >= reach([(self.mr - 1, out_stride), (self.positions, 1)]));
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= self.mr);
        }
        // SAFETY: this tile exists only if the CPU has the instruction set. The assertions above
        // are the entry's contract.
        unsafe { (self.entry)(panel, source, start, out, out_stride) }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. `panel` holds `channels·taps·MR` elements. `source` holds all
/// that it reaches with `NV·LANES` elements per tap. `out` holds `MR` rows of `NV·LANES` elements.
/// A bias holds `MR` values.
#[inline(always)]
pub(crate) unsafe fn position_tile<V: Vector, const MR: usize, const NV: usize>(
    panel: &[V::Lane],
    source: &Source<V::Lane>,
    start: Start<V::Lane>,
    out: &mut [V::Lane],
    out_stride: usize,
) {
    // SAFETY: by this function's contract, the panel holds the `channels·taps·MR` elements that are
    // read in order, all reads of the source are within its reach, and the rows of `out` are within
    // `out`.
    unsafe {
        let mut acc = match start {
            Start::Bias(bias) => {
                let mut acc = [[V::splat(V::Lane::ZERO); NV]; MR];
                for m in 0..MR {
                    let b = V::splat(*bias.get_unchecked(m));
                    for v in 0..NV {
                        acc[m][v] = b;
                    }
                }
                acc
            }
            Start::Add => [[V::splat(V::Lane::ZERO); NV]; MR],
        };
        acc = accumulate(acc, panel.as_ptr(), source, (source.taps, false), (NV - 1) * V::LANES);
        let out = out.as_mut_ptr();
        for m in 0..MR {
            for v in 0..NV {
                let to = out.add(m * out_stride + v * V::LANES);
                match start {
                    Start::Bias(_) => acc[m][v].store(to),
                    Start::Add => V::load(to).plus(acc[m][v]).store(to),
                }
            }
        }
    }
}

/// Adds all (channel, tap) products of a source, with the given taps, to the accumulators and
/// returns them.
///
/// Accumulators are passed by value: behind a reference, the compiler keeps them in memory from
/// channel to channel. If `two_chains` and the registers suffice, every second tap uses other
/// accumulators, which halves the length of the dependency chains. The vectors of positions are
/// adjacent, except that the last one begins at position `last`.
///
/// # Safety
/// The CPU has `V`'s instruction set. `a` has `channels·taps·MR` readable elements. The source
/// holds all that it reaches with `NV·LANES` elements per tap. `last` is at most `(NV - 1)·LANES`.
#[inline(always)]
unsafe fn accumulate<V: Vector, const MR: usize, const NV: usize>(
    mut acc: [[V; NV]; MR],
    mut a: *const V::Lane,
    source: &Source<V::Lane>,
    (taps, two_chains): (&[usize], bool),
    last: usize,
) -> [[V; NV]; MR] {
    let mut channel = source.data.as_ptr().wrapping_add(source.base);
    // SAFETY: this function's contract.
    unsafe {
        if let [tap] = taps {
            channel = channel.wrapping_add(*tap);
            if PREFETCHES && source.prefetch {
                for _ in 0..source.channels {
                    // A vector may straddle two cache lines. Its first line has been fetched
                    // already, so fetch that of its last lane.
                    for v in NV..2 * NV {
                        prefetch(channel.wrapping_add((v + 1) * V::LANES - 1));
                    }
                    step::<V, MR, NV>(&mut acc, a, channel, last);
                    a = a.wrapping_add(MR);
                    channel = channel.wrapping_add(source.channel_stride);
                }
            } else {
                for _ in 0..source.channels {
                    step::<V, MR, NV>(&mut acc, a, channel, last);
                    a = a.wrapping_add(MR);
                    channel = channel.wrapping_add(source.channel_stride);
                }
            }
        } else if two_chains && room_for_two_chains::<V>(MR, NV) {
            let mut others = [[V::splat(V::Lane::ZERO); NV]; MR];
            let (pairs, rest) = taps.as_chunks::<2>();
            for _ in 0..source.channels {
                for [tap, next] in pairs {
                    step::<V, MR, NV>(&mut acc, a, channel.wrapping_add(*tap), last);
                    step::<V, MR, NV>(&mut others, a.wrapping_add(MR), channel.wrapping_add(*next), last);
                    a = a.wrapping_add(2 * MR);
                }
                if let [tap] = rest {
                    step::<V, MR, NV>(&mut acc, a, channel.wrapping_add(*tap), last);
                    a = a.wrapping_add(MR);
                }
                channel = channel.wrapping_add(source.channel_stride);
            }
            acc = plus_all(acc, others);
        } else {
            for _ in 0..source.channels {
                for tap in taps {
                    step::<V, MR, NV>(&mut acc, a, channel.wrapping_add(*tap), last);
                    a = a.wrapping_add(MR);
                }
                channel = channel.wrapping_add(source.channel_stride);
            }
        }
    }
    acc
}

/// Whether the registers hold twice this many accumulators and four operands.
pub(crate) const fn room_for_two_chains<V: Vector>(mr: usize, nv: usize) -> bool {
    2 * mr * nv + 4 <= V::REGISTERS
}

/// The most sums of a tile whose multiply-adds clearly wait for each other. On most CPUs, eight are begun before the
/// first one is finished.
const FEW_SUMS: usize = 4;

/// Whether a tile sums its phases together: the sums of one phase are few, and the registers hold those of all of them
/// and four operands.
pub(crate) const fn sums_phases_together<V: Vector>(phases: usize, mr: usize, nv: usize) -> bool {
    phases > 1 && mr * nv <= FEW_SUMS && phases * mr * nv + 4 <= V::REGISTERS
}

/// One (channel, tap): `NV` vectors of positions times `MR` scalars.
///
/// # Safety
/// The CPU has `V`'s instruction set. `a` has `MR` readable elements and `b` has `NV·LANES`. `last`
/// is at most `(NV - 1)·LANES`.
#[inline(always)]
unsafe fn step<V: Vector, const MR: usize, const NV: usize>(
    acc: &mut [[V; NV]; MR],
    a: *const V::Lane,
    b: *const V::Lane,
    last: usize,
) {
    // SAFETY: this function's contract.
    unsafe { multiply(acc, a, loaded(b, last)) }
}

/// # Safety
/// That of [`step`] for `b` and `last`.
#[inline(always)]
unsafe fn loaded<V: Vector, const NV: usize>(b: *const V::Lane, last: usize) -> [V; NV] {
    // SAFETY: this function's contract.
    filled(|v| unsafe { V::load(b.add(if v + 1 == NV { last } else { v * V::LANES })) })
}

/// As [`step`], with the positions in registers.
///
/// # Safety
/// That of [`step`] for `a`.
#[inline(always)]
unsafe fn multiply<V: Vector, const MR: usize, const NV: usize>(
    acc: &mut [[V; NV]; MR],
    a: *const V::Lane,
    b: [V; NV],
) {
    // SAFETY: this function's contract.
    unsafe {
        let by_lanes = if V::BY_LANES { MR / V::LANES * V::LANES } else { 0 };
        for m in (0..by_lanes).step_by(V::LANES) {
            V::mul_add_by_lanes(&mut acc[m..m + V::LANES], &b, V::load(a.add(m)));
        }
        for m in by_lanes..MR {
            let w = V::splat(*a.add(m));
            for v in 0..NV {
                acc[m][v] = acc[m][v].mul_add(b[v], w);
            }
        }
    }
}

/// The weights and taps of one of the phases that a [`RowTile`] interleaves.
#[derive(Clone, Copy)]
pub(crate) struct PhaseOperand<'a, T> {
    /// `[channel][tap][mr]`.
    pub panel: &'a [T],
    /// The offset of each tap from the source's index.
    pub taps: &'a [usize],
    /// The most input channels whose products form one chain. Longer sums are computed in parts.
    pub chain: usize,
    /// Whether a sum that is not computed in parts uses two chains for alternating taps. Only tiles
    /// with [`RowTile::two_chains`] do so.
    pub two_chains: bool,
}

/// The output elements that row tiles write per output channel: runs of equal length.
#[derive(Clone, Debug)]
pub(crate) struct StridedRuns {
    /// The range of the first run in the channel's slice.
    pub elements: Range<usize>,
    /// Number of runs.
    pub count: usize,
    /// Output elements from the start of a run to that of the next.
    pub step: usize,
    /// Elements from a run to the next in the source.
    pub pitch: usize,
    /// Elements from a tile to the next in the source: the tile's positions, if those of a run are adjacent there.
    pub tile_step: usize,
}

type RowEntry<T> = unsafe fn(
    phases: &[PhaseOperand<T>],
    source: &Source<T>,
    bias: &[T],
    channels: &mut [&mut [T]],
    runs: &StridedRuns,
    bounds: Option<Bounds<T>>,
);

/// A tile of `mr` output channels × `nv` vectors of positions for each of `phases` phases.
///
/// The phases are interleaved in registers and stored directly to output rows.
///
/// A value of this type is proof that the CPU has its instruction set.
#[derive(Clone, Copy)]
pub(crate) struct RowTile<T: 'static> {
    phases: usize,
    mr: usize,
    nv: usize,
    positions: usize,
    two_chains: bool,
    together: bool,
    entry: RowEntry<T>,
}

impl<T> RowTile<T> {
    /// # Safety
    /// `entry` is [`row_tile`] of `phases` phases and `mr` × `nv` vectors, which are `positions`
    /// positions. It is only called if the CPU has its instruction set.
    pub(crate) const unsafe fn new(
        phases: usize,
        (mr, nv): (usize, usize),
        positions: usize,
        (two_chains, together): (bool, bool),
        entry: RowEntry<T>,
    ) -> Self {
        RowTile { phases, mr, nv, positions, two_chains, together, entry }
    }

    /// Phases.
    #[cfg(all(test, target_os = "linux"))]
    pub fn phases(&self) -> usize {
        self.phases
    }

    /// Output channels.
    pub fn mr(&self) -> usize {
        self.mr
    }

    /// Vectors of positions.
    pub fn nv(&self) -> usize {
        self.nv
    }

    /// All positions: `nv` × lanes.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Whether it can compute sums in two chains. If so, tiles with fewer vectors can too.
    pub fn two_chains(&self) -> bool {
        self.two_chains
    }

    /// Whether it sums phases of equally many taps together. If so, tiles with fewer vectors do too.
    pub fn sums_phases_together(&self) -> bool {
        self.together
    }
}

impl<T: Compute> RowTile<T> {
    /// Computes runs of output elements of `channels`, which are at most `mr` slices.
    ///
    /// Each run is computed in whole tiles, then in one tile for the remainder, which computes and
    /// drops the elements beyond the run.
    /// The source's base is the position of the first output element. The source's own taps are
    /// ignored. Results are clamped to the bounds.
    ///
    /// # Panics
    /// A slice is shorter than the range that the tiles read, or the runs are not within the
    /// channels.
    #[inline]
    pub fn run(
        &self,
        phases: &[PhaseOperand<T>],
        source: &Source<T>,
        bias: &[T],
        channels: &mut [&mut [T]],
        runs: &StridedRuns,
        bounds: Option<Bounds<T>>,
    ) {
        if runs.count == 0 || runs.elements.is_empty() {
            return;
        }
        assert!(phases.len() == self.phases && bias.len() >= self.mr && channels.len() <= self.mr);
        let tiles = runs.elements.len().div_ceil(self.phases).div_ceil(self.positions);
        let furthest = reach([(runs.count - 1, runs.pitch), (tiles - 1, runs.tile_step), (self.positions, 1)]);
        for phase in phases {
            assert!(phase.chain > 0 && phase.panel.len() >= product([source.channels, phase.taps.len(), self.mr]));
            let source = Source { taps: phase.taps, ..*source };
            assert!(source.data.len() >= source.reach(furthest));
        }
        let end = reach([(runs.count - 1, runs.step), (runs.elements.end, 1)]);
        assert!(channels.iter().all(|channel| end <= channel.len()));
        // SAFETY: this tile exists only if the CPU has the instruction set. The assertions above
        // are the entry's contract.
        unsafe { (self.entry)(phases, source, bias, channels, runs, bounds) }
    }
}

/// Adds the sum of a phase to the accumulators, in as many chains as the phase asks for, and
/// returns them.
///
/// # Safety
/// That of [`accumulate`], for the phase's panel and taps.
#[inline(always)]
unsafe fn add_phase<V: Vector, const MR: usize, const NV: usize>(
    mut acc: [[V; NV]; MR],
    phase: &PhaseOperand<V::Lane>,
    source: &Source<V::Lane>,
    last: usize,
) -> [[V; NV]; MR] {
    let panel = phase.panel.as_ptr();
    // SAFETY: this function's contract. Each part of the source's channels uses the weights of the
    // same channels of the panel.
    unsafe {
        if source.channels <= phase.chain {
            return accumulate(acc, panel, source, (phase.taps, phase.two_chains), last);
        }
        for from in (0..source.channels).step_by(phase.chain) {
            let panel = panel.wrapping_add(from * phase.taps.len() * MR);
            let zeros = [[V::splat(V::Lane::ZERO); NV]; MR];
            let part = source.part(from, phase.chain);
            acc = plus_all(acc, accumulate(zeros, panel, &part, (phase.taps, false), last));
        }
    }
    acc
}

/// Phases that are summed together.
struct PhasesTogether<'a, T, const S: usize> {
    /// They have equally many taps, and chains of as many channels.
    operands: &'a [PhaseOperand<'a, T>; S],
    have_same_taps: bool,
}

/// Returns the phases, if their sums may be computed together.
fn phases_together<'a, T, const S: usize>(operands: &'a [PhaseOperand<'a, T>]) -> Option<PhasesTogether<'a, T, S>> {
    let operands: &[_; S] = operands.first_chunk()?;
    let first = &operands[0];
    let is_alike =
        |of: &PhaseOperand<T>| (of.taps.len(), of.chain, of.two_chains) == (first.taps.len(), first.chain, false);
    let have_same_taps = operands.iter().all(|of| of.taps == first.taps);
    operands.iter().all(is_alike).then_some(PhasesTogether { operands, have_same_taps })
}

/// As [`add_phase`] for each of several phases, with the same sums. The multiply-adds of the phases alternate, so that
/// they do not wait for each other.
///
/// # Safety
/// That of [`accumulate`], for each phase's panel and taps.
#[inline(always)]
unsafe fn add_phases<V: Vector, const S: usize, const MR: usize, const NV: usize>(
    mut acc: [[[V; NV]; MR]; S],
    phases: &PhasesTogether<V::Lane, S>,
    source: &Source<V::Lane>,
    last: usize,
) -> [[[V; NV]; MR]; S] {
    let chain = phases.operands[0].chain;
    // SAFETY: this function's contract. Each part of the source's channels uses the weights of the same channels.
    unsafe {
        if source.channels <= chain {
            return accumulate_phases(acc, phases, 0, source, last);
        }
        for from in (0..source.channels).step_by(chain) {
            let zeros = [[[V::splat(V::Lane::ZERO); NV]; MR]; S];
            let sums = accumulate_phases(zeros, phases, from, &source.part(from, chain), last);
            for s in 0..S {
                acc[s] = plus_all(acc[s], sums[s]);
            }
        }
    }
    acc
}

/// Adds all (channel, tap) products of a source to the accumulators of each phase, and returns them. The source begins
/// with channel `first` of the panels.
///
/// # Safety
/// That of [`add_phases`].
#[inline(always)]
unsafe fn accumulate_phases<V: Vector, const S: usize, const MR: usize, const NV: usize>(
    mut acc: [[[V; NV]; MR]; S],
    phases: &PhasesTogether<V::Lane, S>,
    first: usize,
    source: &Source<V::Lane>,
    last: usize,
) -> [[[V; NV]; MR]; S] {
    let operands = phases.operands;
    let taps = operands[0].taps;
    let mut channel = source.data.as_ptr().wrapping_add(source.base);
    let mut at = first * taps.len() * MR;
    if phases.have_same_taps {
        for _ in 0..source.channels {
            for tap in taps {
                // SAFETY: this function's contract.
                unsafe {
                    let positions: [V; NV] = loaded(channel.wrapping_add(*tap), last);
                    for s in 0..S {
                        multiply(&mut acc[s], operands[s].panel.as_ptr().wrapping_add(at), positions);
                    }
                }
                at += MR;
            }
            channel = channel.wrapping_add(source.channel_stride);
        }
        return acc;
    }
    for _ in 0..source.channels {
        for tap in 0..taps.len() {
            for s in 0..S {
                // SAFETY: this function's contract: each phase has this tap, and weights for it.
                unsafe {
                    let tap = *operands[s].taps.get_unchecked(tap);
                    let weights = operands[s].panel.as_ptr().wrapping_add(at);
                    step::<V, MR, NV>(&mut acc[s], weights, channel.wrapping_add(tap), last);
                }
            }
            at += MR;
        }
        channel = channel.wrapping_add(source.channel_stride);
    }
    acc
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn plus_all<V: Vector, const MR: usize, const NV: usize>(a: [[V; NV]; MR], b: [[V; NV]; MR]) -> [[V; NV]; MR] {
    // SAFETY: this function's contract.
    filled(|m| filled(|v| unsafe { a[m][v].plus(b[m][v]) }))
}

/// # Safety
/// The CPU has `V`'s instruction set. There are `S` phases, and `S` is a power of two up to four.
/// The phases' panels hold `channels·taps·MR` elements.
/// For each tap of each phase, `source` holds all positions of the whole tiles of `NV·LANES` that
/// cover each run, `pitch` elements from run to run and `tile_step` from tile to tile.
/// A bias holds `MR` values. There are at most `MR` channels, and each holds all runs.
#[inline(always)]
pub(crate) unsafe fn row_tile<V: Vector, const S: usize, const MR: usize, const NV: usize>(
    phases: &[PhaseOperand<V::Lane>],
    source: &Source<V::Lane>,
    bias: &[V::Lane],
    channels: &mut [&mut [V::Lane]],
    runs: &StridedRuns,
    bounds: Option<Bounds<V::Lane>>,
) {
    let whole = S * NV * V::LANES;
    let together = const { sums_phases_together::<V>(S, MR, NV) };
    let together = if together { phases_together(phases) } else { None };
    for i in 0..runs.count {
        let elements = runs.elements.start + i * runs.step..runs.elements.end + i * runs.step;
        let mut source = Source { base: source.base + i * runs.pitch, ..*source };
        let mut at = elements.start;
        while at < elements.end {
            // The last vector ends where the run does. If the remainder is not whole vectors, the
            // last vector overlaps the one before.
            let left = elements.end - at;
            let last = left.div_ceil(S).saturating_sub(V::LANES).min((NV - 1) * V::LANES);
            // SAFETY: panels, source and bias by this function's contract. All stores end at or
            // before the end of the run.
            unsafe {
                let mut acc = [[[V::splat(V::Lane::ZERO); NV]; MR]; S];
                for s in 0..S {
                    for m in 0..MR {
                        let bias = V::splat(*bias.get_unchecked(m));
                        for v in 0..NV {
                            acc[s][m][v] = bias;
                        }
                    }
                }
                let elements = at..elements.end;
                if let Some(phases) = &together {
                    acc = add_phases(acc, phases, &source, last);
                    for s in 0..S {
                        acc[s] = filled(|m| clamp_all(acc[s][m], bounds));
                    }
                    store_tile(acc, channels, (elements, runs.step), last);
                } else {
                    for s in 0..S {
                        acc[s] = add_phase(acc[s], phases.get_unchecked(s), &source, last);
                        for m in 0..MR {
                            acc[s][m] = clamp_all(acc[s][m], bounds);
                        }
                    }
                    store_tile(acc, channels, (elements, runs.step), last);
                }
            }
            at += whole;
            source.base += runs.tile_step;
        }
    }
}

/// Stores the sums of a tile, with phases interleaved, to a range of each channel. The last vector of each phase begins
/// at position `last`.
///
/// If the range has room for all sums of several phases, the lines `ahead` elements later are prefetched. The rows of a
/// phase are not adjacent, so the CPU's prefetcher does not foresee them.
///
/// # Safety
/// The CPU has `V`'s instruction set. The range is within each channel. `last` is at most `(NV - 1)·LANES`, and that if
/// the range has room for all sums.
#[inline(always)]
unsafe fn store_tile<V: Vector, const S: usize, const MR: usize, const NV: usize>(
    acc: [[[V; NV]; MR]; S],
    channels: &mut [&mut [V::Lane]],
    (elements, ahead): (Range<usize>, usize),
    last: usize,
) {
    // SAFETY: this function's contract. All stores end at or before the end of the range.
    unsafe {
        if elements.len() >= S * NV * V::LANES {
            for m in 0..MR {
                if m < channels.len() {
                    let to = channels.get_unchecked_mut(m).as_mut_ptr().add(elements.start);
                    for v in 0..NV {
                        let run: [V; S] = interleave(filled(|s| acc[s][m][v]));
                        for s in 0..S {
                            let to = to.add((v * S + s) * V::LANES);
                            run[s].store(to);
                            if S > 1 {
                                prefetch(to.wrapping_add(ahead));
                            }
                        }
                    }
                }
            }
            return;
        }
        // A copy in memory, as it is indexed by a variable channel.
        let rest = acc;
        for (m, channel) in channels.iter_mut().enumerate().take(MR) {
            let to = &mut channel[elements.clone()];
            for v in 0..NV {
                let run: [V; S] = interleave(filled(|s| rest[s][m][v]));
                let at = if v + 1 == NV { last * S } else { v * V::LANES * S };
                let at = at.min(to.len());
                store_run(run, &mut to[at..]);
            }
        }
    }
}

/// Pixels that a tile reads through a list.
#[derive(Clone, Copy)]
pub(crate) struct ListedPixels<'a, T> {
    /// The pixels. The channels of each are adjacent.
    pub data: &'a [T],
    /// The index of the first channel of the pixel at offset zero.
    pub base: usize,
    /// Number of channels.
    pub channels: usize,
    /// The offsets of the pixels.
    pub lists: &'a PixelLists,
    /// The index of the list that is read.
    pub list: usize,
}

/// The numbers of positions for which there are tiles that read pixels through lists.
pub(crate) const LISTED_POSITIONS: [usize; 3] = [4, 6, 8];

pub(super) type ListedEntry<T> = unsafe fn(
    panel: &[T],
    pixels: &ListedPixels<T>,
    start_and_bounds: (Start<T>, Option<Bounds<T>>),
    out: &mut [T],
    out_stride: usize,
);

type ChannelEntry<T> = unsafe fn(
    panel: &[T],
    source: &Source<T>,
    start_and_bounds: (Start<T>, Option<Bounds<T>>),
    out: &mut [T],
    positions: TilePositions,
);

/// The positions of tiles that follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TilePositions {
    /// The number of tiles.
    pub tiles: usize,
    /// Elements between positions in the source.
    pub stride: usize,
    /// Elements between positions in the output.
    pub out_stride: usize,
}

/// The parts of a tile's sums.
#[derive(Clone, Copy)]
pub(crate) struct Chains<'a> {
    /// The index in the panel of each tap's weights, `[channel][nv·lanes]`.
    pub weights: &'a [usize],
    /// The most taps whose products are summed in one chain.
    pub taps: usize,
    /// The most channels of each of these taps.
    pub channels: usize,
}

pub(super) type ChainedEntry<T> = unsafe fn(
    panel: &[T],
    source: &Source<T>,
    chains: &Chains,
    start: Start<T>,
    out: &mut [T],
    positions: TilePositions,
);

/// A tile of `positions` × `nv` vectors of output channels.
///
/// A value of this type is proof that the CPU has its instruction set.
#[derive(Clone, Copy)]
pub(crate) struct ChannelTile<T: 'static> {
    positions: usize,
    nv: usize,
    channels: usize,
    entry: ChannelEntry<T>,
    chained: Option<ChainedEntry<T>>,
    listed: Option<ListedEntry<T>>,
}

impl<T> ChannelTile<T> {
    /// # Safety
    /// `entry` is [`channel_tile`] of `positions` positions and `nv` vectors, which are `channels`
    /// channels, `chained` is [`chained_channel_tile`] and `listed` is [`listed_channel_tile`] of the same size. They
    /// are only called if the CPU has their instruction set.
    pub(crate) const unsafe fn new(
        positions: usize,
        nv: usize,
        channels: usize,
        entry: ChannelEntry<T>,
        chained: Option<ChainedEntry<T>>,
        listed: Option<ListedEntry<T>>,
    ) -> Self {
        ChannelTile { positions, nv, channels, entry, chained, listed }
    }

    /// Positions.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Vectors of output channels.
    pub fn nv(&self) -> usize {
        self.nv
    }

    /// All output channels: `nv` × lanes.
    pub fn channels(&self) -> usize {
        self.channels
    }
}

/// Splits positions among tiles, the largest of which come first. Returns each tile with its first position and the
/// number of such tiles.
pub(crate) fn split_positions<'t, T: 'static>(
    positions: usize,
    tiles: impl IntoIterator<Item = &'t ChannelTile<T>>,
) -> impl Iterator<Item = (&'t ChannelTile<T>, usize, usize)> {
    let mut at = 0;
    tiles.into_iter().filter_map(move |tile| {
        let (first, count) = (at, (positions - at) / tile.positions());
        at += count * tile.positions();
        (count > 0).then_some((tile, first, count))
    })
}

impl<T: Compute> ChannelTile<T> {
    /// Computes tiles that follow each other. `panel` is `[tap][channel][nv·lanes]`.
    ///
    /// Position `p`, counted from the first tile's first one, is read `p · stride` elements after the source's base.
    /// `out` receives a row of `channels` elements per position, `out_stride` apart, clamped to the bounds.
    ///
    /// # Panics
    /// A slice is shorter than the range that the tiles read or write.
    #[inline]
    pub fn run(
        &self,
        panel: &[T],
        source: &Source<T>,
        (start, bounds): (Start<T>, Option<Bounds<T>>),
        out: &mut [T],
        positions: TilePositions,
    ) {
        let TilePositions { tiles, stride, out_stride } = positions;
        let Some(last) = product([self.positions, tiles]).checked_sub(1) else { return };
        assert!(panel.len() >= product([source.channels, source.taps.len(), self.channels]));
        assert!(source.data.len() >= source.reach(reach([(last, stride), (1, 1)])));
        assert!(out.len() >= reach([(last, out_stride), (self.channels, 1)]));
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= self.channels);
        }
        // SAFETY: this tile exists only if the CPU has the instruction set. The assertions above
        // are the entry's contract.
        unsafe { (self.entry)(panel, source, (start, bounds), out, positions) }
    }

    /// Whether [`run_chains`](Self::run_chains) adds chains in registers. Otherwise they are added in memory.
    pub fn adds_chains(&self) -> bool {
        self.chained.is_some()
    }

    /// As [`run`](Self::run) of adjacent channels, but the sums of each chain are computed separately and added to those
    /// before. The panel has the weights of each tap where the chains say. Those of the taps of a chain are adjacent.
    ///
    /// # Panics
    /// As [`run`](Self::run), channels or the weights of a chain are not adjacent, or the chains are of other taps.
    #[inline]
    pub fn run_chains(
        &self,
        panel: &[T],
        source: &Source<T>,
        chains: &Chains,
        mut start: Start<T>,
        out: &mut [T],
        positions: TilePositions,
    ) {
        let &Chains { weights, taps, channels } = chains;
        assert!(source.channel_stride == 1 && source.taps.len() == weights.len() && taps > 0 && channels > 0);
        let of_tap = product([source.channels, self.channels]);
        if let Some(entry) = self.chained {
            let TilePositions { tiles, stride, out_stride } = positions;
            let Some(last) = product([self.positions, tiles]).checked_sub(1) else { return };
            assert!(weights.iter().all(|at| panel.len() >= reach([(*at, 1), (of_tap, 1)])));
            assert!(source.data.len() >= source.reach(reach([(last, stride), (1, 1)])));
            assert!(out.len() >= reach([(last, out_stride), (self.channels, 1)]));
            if let Start::Bias(bias) = start {
                assert!(bias.len() >= self.channels);
            }
            // SAFETY: this tile exists only if the CPU has the instruction set. The assertions above
            // are the entry's contract.
            return unsafe { entry(panel, source, chains, start, out, positions) };
        }
        if weights.is_empty() || of_tap == 0 {
            return self.run(panel, source, (start, None), out, positions);
        }
        for (of_taps, weights) in source.taps.chunks(taps).zip(weights.chunks(taps)) {
            assert!(taps == 1 || channels >= source.channels && weights.windows(2).all(|of| of[0] + of_tap == of[1]));
            for from in (0..source.channels).step_by(channels) {
                let (base, channels) = (source.base + from, channels.min(source.channels - from));
                let source = Source { base, channels, taps: of_taps, ..*source };
                self.run(&panel[weights[0] + from * self.channels..], &source, (start, None), out, positions);
                start = Start::Add;
            }
        }
    }

    /// Computes a tile whose positions read the pixels of a list. `panel` is
    /// `[tap][channel][nv·lanes]`, with the taps that the list counts.
    ///
    /// `out` receives `positions` rows of `channels` elements, `out_stride` apart, clamped to the bounds.
    ///
    /// # Panics
    /// A slice is shorter than the range that the tile reads or writes, the list is of another
    /// number of positions, or the number of positions is not in [`LISTED_POSITIONS`].
    #[inline]
    pub fn run_listed(
        &self,
        panel: &[T],
        pixels: &ListedPixels<T>,
        (start, bounds): (Start<T>, Option<Bounds<T>>),
        out: &mut [T],
        out_stride: usize,
    ) {
        let Some(entry) = self.listed else { panic!("no tile of {} positions reads lists", self.positions) };
        assert!(pixels.lists.positions() == self.positions);
        assert!(panel.len() >= product([pixels.channels, pixels.lists.taps(pixels.list), self.channels]));
        let furthest = [(pixels.base, 1), (pixels.lists.furthest(), 1), (pixels.channels, 1)];
        assert!(pixels.data.len() >= reach(furthest));
        assert!(out.len() >= reach([(self.positions - 1, out_stride), (self.channels, 1)]));
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= self.channels);
        }
        // SAFETY: this tile exists only if the CPU has the instruction set. The assertions above
        // are the entry's contract.
        unsafe { entry(panel, pixels, (start, bounds), out, out_stride) }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. `panel` holds `channels·taps·NV·LANES` elements. `source`
/// holds all that it reaches with the strides of up to `P·tiles - 1` positions added. `out` holds `P·tiles` rows
/// of `NV·LANES` elements. A bias holds `NV·LANES` values.
#[inline(always)]
pub(crate) unsafe fn channel_tile<V: Vector, const P: usize, const NV: usize>(
    panel: &[V::Lane],
    source: &Source<V::Lane>,
    (start, bounds): (Start<V::Lane>, Option<Bounds<V::Lane>>),
    out: &mut [V::Lane],
    TilePositions { tiles, stride, out_stride }: TilePositions,
) {
    let mut first = source.data.as_ptr().wrapping_add(source.base);
    let mut to = out.as_mut_ptr();
    for _ in 0..tiles {
        // SAFETY: by this function's contract, the panel holds the `channels·taps·NV·LANES` elements
        // that are read in order, every scalar read is within the source's reach, and the rows that are
        // stored are within `out`.
        unsafe {
            let mut acc = channel_sums::<V, P, NV>(start);
            let mut b = panel.as_ptr();
            let rows: [*const V::Lane; P] = separate(filled(|p| first.wrapping_add(p * stride)));
            if source.channels == 1 {
                // A single loop over the taps: with one channel, a loop nest would need setup per tap.
                for tap in source.taps {
                    acc = channel_step(acc, b, &rows, *tap);
                    b = b.wrapping_add(NV * V::LANES);
                }
            } else {
                // Taps are the outer loop: one index then serves all positions of the inner loop, which
                // leaves registers for the pointers.
                for tap in source.taps {
                    let mut at = *tap;
                    for _ in 0..source.channels {
                        acc = channel_step(acc, b, &rows, at);
                        b = b.wrapping_add(NV * V::LANES);
                        at += source.channel_stride;
                    }
                }
            }
            store_channel_sums(acc, (start, bounds), to, out_stride);
        }
        first = first.wrapping_add(P * stride);
        to = to.wrapping_add(P * out_stride);
    }
}

/// Whether a tile [adds chains](ChannelTile::adds_chains): the registers hold its sums twice, and the weights of a step.
///
/// Of sixteen registers, or beside four vectors of weights, too few sums would be left to keep the CPU's multipliers
/// busy. Other architectures were not measured.
pub(crate) const fn room_for_chains<V: Vector>(positions: usize, nv: usize) -> bool {
    cfg!(target_arch = "x86_64") && V::REGISTERS >= 32 && nv < 4 && (2 * positions + 1) * nv <= V::REGISTERS
}

/// # Safety
/// The CPU has `V`'s instruction set. The channels of `source` are adjacent. It holds all that it reaches with the strides
/// of up to `P·tiles - 1` positions added. `chains` have as many indices as it has taps, from each of which `panel` holds
/// `channels·NV·LANES` elements, and are of one tap and one channel or more. `out` holds `P·tiles` rows of `NV·LANES`
/// elements. A bias holds `NV·LANES` values.
#[inline(always)]
pub(crate) unsafe fn chained_channel_tile<V: Vector, const P: usize, const NV: usize>(
    panel: &[V::Lane],
    source: &Source<V::Lane>,
    chains: &Chains,
    start: Start<V::Lane>,
    out: &mut [V::Lane],
    TilePositions { tiles, stride, out_stride }: TilePositions,
) {
    let mut first = source.data.as_ptr().wrapping_add(source.base);
    let mut to = out.as_mut_ptr();
    for _ in 0..tiles {
        // SAFETY: by this function's contract, the panel holds the `channels·NV·LANES` elements of each tap that are
        // read in order, every scalar read is within the source's reach, and the rows that are loaded and stored are
        // within `out`.
        unsafe {
            let mut sums: [[V; NV]; P] = match start {
                Start::Bias(_) => channel_sums(start),
                Start::Add => filled(|p| filled(|v| V::load(to.wrapping_add(p * out_stride + v * V::LANES)))),
            };
            let rows: [*const V::Lane; P] = separate(filled(|p| first.wrapping_add(p * stride)));
            let mut taps = 0;
            while taps < source.taps.len() {
                let end = (taps + chains.taps).min(source.taps.len());
                let mut from = 0;
                while from < source.channels {
                    let channels = chains.channels.min(source.channels - from);
                    let mut acc = channel_sums::<V, P, NV>(Start::Add);
                    for tap in taps..end {
                        let mut b = panel.as_ptr().add(*chains.weights.get_unchecked(tap) + from * NV * V::LANES);
                        let at = *source.taps.get_unchecked(tap) + from;
                        for at in at..at + channels {
                            acc = channel_step(acc, b, &rows, at);
                            b = b.wrapping_add(NV * V::LANES);
                        }
                    }
                    from += channels;
                    for p in 0..P {
                        for v in 0..NV {
                            sums[p][v] = sums[p][v].plus(acc[p][v]);
                        }
                    }
                }
                taps = end;
            }
            for p in 0..P {
                for v in 0..NV {
                    sums[p][v].store(to.wrapping_add(p * out_stride + v * V::LANES));
                }
            }
        }
        first = first.wrapping_add(P * stride);
        to = to.wrapping_add(P * out_stride);
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. `panel` holds the taps of the pixels' list, each of
/// `channels·NV·LANES` elements. The list is of `P` positions. `data` holds `channels` elements after
/// each of its offsets from `base`. `out` holds `P` rows of `NV·LANES` elements. A bias holds
/// `NV·LANES` values.
#[inline(always)]
pub(crate) unsafe fn listed_channel_tile<V: Vector, const P: usize, const NV: usize>(
    panel: &[V::Lane],
    pixels: &ListedPixels<V::Lane>,
    (start, bounds): (Start<V::Lane>, Option<Bounds<V::Lane>>),
    out: &mut [V::Lane],
    out_stride: usize,
) {
    let first = pixels.data.as_ptr().wrapping_add(pixels.base);
    // SAFETY: by this function's contract, the panel holds each listed tap, every scalar read is
    // within the pixels' data, and the rows of `out` are within `out`.
    unsafe {
        let mut acc = channel_sums::<V, P, NV>(start);
        for entry in pixels.lists.list(pixels.list).chunks_exact(1 + P) {
            let mut b = panel.as_ptr().wrapping_add(entry[0] as usize * pixels.channels * NV * V::LANES);
            let rows: [*const V::Lane; P] = filled(|p| first.wrapping_add(entry[1 + p] as usize));
            for at in 0..pixels.channels {
                acc = channel_step(acc, b, &rows, at);
                b = b.wrapping_add(NV * V::LANES);
            }
        }
        store_channel_sums(acc, (start, bounds), out.as_mut_ptr(), out_stride);
    }
}

/// The pointers, whose distances the compiler then does not know.
///
/// If it knows that they are evenly spaced, it advances each of them by itself in a loop over channels, which takes a fifth
/// more instructions than one index for all. Those that x86-64 has no registers for are then stored at each step, too.
#[inline(always)]
fn separate<T, const N: usize>(pointers: [*const T; N]) -> [*const T; N] {
    if cfg!(target_arch = "x86_64") { std::hint::black_box(pointers) } else { pointers }
}

/// `N` values, each of its index. `std::array::from_fn` compiles to ten times as much code before it is optimised, and there are
/// thousands of these.
#[inline(always)]
fn filled<T: Copy, const N: usize>(of: impl Fn(usize) -> T) -> [T; N] {
    const { assert!(N > 0) };
    let mut all = [of(0); N];
    for i in 1..N {
        all[i] = of(i);
    }
    all
}

/// The sums that a tile of channels begins with.
///
/// # Safety
/// The CPU has `V`'s instruction set. A bias holds `NV·LANES` values.
#[inline(always)]
unsafe fn channel_sums<V: Vector, const P: usize, const NV: usize>(start: Start<V::Lane>) -> [[V; NV]; P] {
    // SAFETY: this function's contract.
    unsafe {
        match start {
            Start::Bias(bias) => {
                let bias: [V; NV] = filled(|v| V::load(bias.as_ptr().add(v * V::LANES)));
                [bias; P]
            }
            Start::Add => [[V::splat(V::Lane::ZERO); NV]; P],
        }
    }
}

/// Stores the sums of a tile of channels, or adds them to `out`. What is stored is clamped to the bounds.
///
/// # Safety
/// The CPU has `V`'s instruction set. `P` rows of `NV·LANES` elements, `out_stride` apart, are valid from
/// `out` on.
#[inline(always)]
unsafe fn store_channel_sums<V: Vector, const P: usize, const NV: usize>(
    mut acc: [[V; NV]; P],
    (start, bounds): (Start<V::Lane>, Option<Bounds<V::Lane>>),
    out: *mut V::Lane,
    out_stride: usize,
) {
    // SAFETY: this function's contract.
    unsafe {
        if let Start::Add = start {
            for p in 0..P {
                for v in 0..NV {
                    acc[p][v] = V::load(out.add(p * out_stride + v * V::LANES)).plus(acc[p][v]);
                }
            }
        }
        for p in 0..P {
            acc[p] = clamp_all(acc[p], bounds);
        }
        for p in 0..P {
            for v in 0..NV {
                acc[p][v].store(out.add(p * out_stride + v * V::LANES));
            }
        }
    }
}

/// One (channel, tap): `NV` vectors of weights times one scalar per position.
///
/// # Safety
/// The CPU has `V`'s instruction set. `b` has `NV` readable vectors. Each row has an element at
/// `at`.
#[inline(always)]
unsafe fn channel_step<V: Vector, const P: usize, const NV: usize>(
    mut acc: [[V; NV]; P],
    b: *const V::Lane,
    rows: &[*const V::Lane; P],
    at: usize,
) -> [[V; NV]; P] {
    // SAFETY: this function's contract.
    unsafe {
        let w: [V; NV] = filled(|v| V::load(b.add(v * V::LANES)));
        for p in 0..P {
            let x = V::splat(*rows[p].wrapping_add(at));
            for v in 0..NV {
                acc[p][v] = acc[p][v].mul_add(x, w[v]);
            }
        }
    }
    acc
}
