//! Weighted sums of pixels: the inner loop of channels-last depthwise deconvolutions.
//!
//! The same loop serves deconvolutions of narrow groups. The channels of a pixel are adjacent.

use crate::kernel::bounds::{Bounds, clamp_all};
use crate::kernel::extent;
use crate::simd::vector::{MOST_LANES, Vector};

/// A tap of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PixelTap {
    /// The offset added to the index of a position's first channel.
    pub offset: usize,
    /// The offset of the tap's weights within those of a vector of output channels. There is one
    /// vector per input channel of a group.
    pub weights: usize,
}

/// The taps of a run of positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PixelTaps {
    /// In order of offset.
    taps: Vec<PixelTap>,
    furthest: PixelTap,
    /// The taps grouped into runs whose offsets are `step` apart, for positions that are `step`
    /// apart.
    ///
    /// Each entry is the number of taps of a run, at most [`LONGEST_TAP_RUN`]. Empty if all entries
    /// would be one.
    run_lengths: Vec<usize>,
    step: usize,
}

/// The most taps that share the elements they read.
const LONGEST_TAP_RUN: usize = 3;

impl PixelTaps {
    /// Collects taps in any order, for positions that are usually `step` apart in the source.
    pub fn new(mut taps: Vec<PixelTap>, step: usize) -> PixelTaps {
        taps.sort_unstable_by_key(|tap| tap.offset);
        let runs = taps.chunk_by(|tap, next| next.offset - tap.offset == step);
        let parts = |len: usize| (0..len).step_by(LONGEST_TAP_RUN).map(move |at| LONGEST_TAP_RUN.min(len - at));
        let mut run_lengths: Vec<usize> = runs.flat_map(|run| parts(run.len())).collect();
        if run_lengths.iter().all(|count| *count == 1) {
            run_lengths.clear();
        }
        let furthest = PixelTap {
            offset: taps.iter().map(|tap| tap.offset).max().unwrap_or(0),
            weights: taps.iter().map(|tap| tap.weights).max().unwrap_or(0),
        };
        PixelTaps { taps, furthest, run_lengths, step }
    }

    /// The number of taps.
    pub fn len(&self) -> usize {
        self.taps.len()
    }

    /// Whether there are no taps.
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Whether every tap is within the slices, if it reads `reach` elements from its offset on and
    /// `width` weights from its first weight on.
    pub(crate) fn fit<T>(&self, source: &[T], reach: usize, weights: &[T], width: usize) -> bool {
        let PixelTap { offset, weights: first } = self.furthest;
        let ends = [(offset, reach, source.len()), (first, width, weights.len())];
        self.is_empty() || ends.into_iter().all(|(at, len, end)| extent::reach([(at, 1), (len, 1)]) <= end)
    }
}

/// The elements of a pixel that one vector of output channels reads for one input channel of its
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    /// The first of a vector of input channels.
    first: usize,
    /// The index in that vector of each lane's input channel.
    lanes: [u32; MOST_LANES],
}

/// Lane gathers for groups of several channels: the input channels of the output channels, per
/// vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneGather {
    /// Per vector of output channels, one entry per input channel of a group.
    reads: Vec<Read>,
    /// Input channels per group.
    inputs: usize,
    /// Lanes per vector.
    lanes: usize,
    reach: usize,
}

impl LaneGather {
    /// Builds the lane gathers for groups of `inputs` to `outputs` channels.
    ///
    /// `None` if, within a vector of output channels, the same input channel of all groups spans
    /// more elements than a vector has.
    pub fn new(lanes: usize, groups: usize, inputs: usize, outputs: usize) -> Option<LaneGather> {
        // Vectors end where the pixel does, if the pixel has at least a vector.
        let last = groups.checked_mul(inputs)?.saturating_sub(lanes);
        let channels = groups.checked_mul(outputs)?;
        let mut reads = vec![];
        for begin in (0..channels).step_by(lanes) {
            let group = |lane: usize| (begin + lane).min(channels - 1) / outputs;
            let (from, to) = (group(0), group(lanes - 1));
            for input in 0..inputs {
                // Begin at a multiple of the lanes, if the vector then still reaches: such loads
                // seldom cross cache lines.
                let (nearest, furthest) = (from * inputs + input, to * inputs + input);
                let even = nearest / lanes * lanes;
                let first = if furthest - even < lanes { even } else { nearest }.min(last);
                if furthest - first >= lanes {
                    return None;
                }
                let wanted = |lane: usize| (group(lane.min(lanes - 1)) * inputs + input - first) as u32;
                reads.push(Read { first, lanes: std::array::from_fn(wanted) });
            }
        }
        let reach = reads.iter().map(|read| read.first + lanes).max()?;
        Some(LaneGather { reads, inputs, lanes, reach })
    }

    /// Elements that are read from a pixel's first channel on.
    pub fn reach(&self) -> usize {
        self.reach
    }

    /// Whether these are for vectors of `lanes` lanes and for `channels` output channels.
    pub(crate) fn fit(&self, lanes: usize, channels: usize) -> bool {
        self.lanes == lanes && self.reads.len() == extent::product([channels.div_ceil(lanes), self.inputs])
    }
}

/// Evenly spaced positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spaced {
    /// Number of positions.
    pub count: usize,
    /// Elements of the source from a position to the next.
    pub from: usize,
    /// Elements of the results from a position to the next.
    pub to: usize,
}

/// The operands of rows of positions.
#[derive(Clone, Copy)]
pub(crate) struct PixelSums<'a, T> {
    /// The elements.
    pub source: &'a [T],
    /// The rows, and the positions of each row.
    pub positions: [Spaced; 2],
    /// The taps.
    pub taps: &'a PixelTaps,
    /// The weights of all taps, one vector of output channels after the other.
    pub weights: &'a [T],
    /// Weights per output channel.
    pub each: usize,
    /// One value per channel, padded to whole vectors.
    pub bias: &'a [T],
    /// The bounds of results.
    pub bounds: Option<Bounds<T>>,
    /// Output channels.
    pub channels: usize,
    /// The lane gathers, if a group has more than one channel in or out.
    pub gather: Option<&'a LaneGather>,
}

impl<T> PixelSums<'_, T> {
    /// The extents of the weights and of the elements that the last vector of output channels reads
    /// for a tap, from the tap's own first ones on.
    pub(crate) fn reach(&self, lanes: usize) -> (usize, usize) {
        let width = extent::rounded_up(self.channels, lanes);
        let (inputs, reach) = self.gather.map_or((1, width), |gather| (gather.inputs, gather.reach));
        (extent::reach([(width - lanes, self.each), (inputs, lanes)]), reach)
    }
}

/// `to[t + c] = bias[c] + Σ weight[c]·source[f + offset + c]`, for every channel `c`, where positions begin at `f` in the
/// source and at `t` in the results.
///
/// If `GATHERED`, a tap has weights for every input channel of a group, and `c` reads the input
/// channels of its group. At most `MOST` positions of a row, up to eight, are computed together.
///
/// # Safety
/// The CPU has `V`'s instruction set.
/// For every vector of channels and every tap, the weights hold one vector or, if `GATHERED`, one
/// per input channel of a group.
/// For every tap and position, the source holds the channels rounded up to whole vectors or, if
/// `GATHERED`, all elements that the lane gathers read.
/// The bias holds the channels rounded up to whole vectors. `to` holds the channels of each
/// position.
/// If `GATHERED`, there are lane gathers for vectors of `V` and for this many channels.
#[inline(always)]
pub(crate) unsafe fn sum_of_pixels<V: Vector, const MOST: usize, const GATHERED: bool>(
    sums: &PixelSums<V::Lane>,
    to: &mut [V::Lane],
) {
    let [rows, Spaced { count, from, to: step }] = sums.positions;
    // The positions of one pass share the loads of weights.
    let passes = count.div_ceil(MOST);
    for row in 0..rows.count {
        // Without taps, nothing of the source exists or is read.
        let source = sums.source.as_ptr().wrapping_add(row * rows.from);
        for pass in 0..passes {
            let (p, end) = (count * pass / passes, count * (pass + 1) / passes);
            let source = source.wrapping_add(p * from);
            // SAFETY: this function's contract.
            unsafe {
                let to = to.as_mut_ptr().add(row * rows.to + p * step);
                match end - p {
                    1 => run::<V, 1, GATHERED>(sums, source, to),
                    2 if MOST > 2 => run::<V, 2, GATHERED>(sums, source, to),
                    3 if MOST > 3 => run::<V, 3, GATHERED>(sums, source, to),
                    4 if MOST > 4 => run::<V, 4, GATHERED>(sums, source, to),
                    5 if MOST > 5 => run::<V, 5, GATHERED>(sums, source, to),
                    6 if MOST > 6 => run::<V, 6, GATHERED>(sums, source, to),
                    7 if MOST > 7 => run::<V, 7, GATHERED>(sums, source, to),
                    _ => run::<V, MOST, GATHERED>(sums, source, to),
                }
            }
        }
    }
}

/// # Safety
/// As [`sum_of_pixels`], for `P` positions of a row, of which the first reads from `source` on and writes from `to` on.
#[inline(always)]
unsafe fn run<V: Vector, const P: usize, const GATHERED: bool>(
    sums: &PixelSums<V::Lane>,
    source: *const V::Lane,
    to: *mut V::Lane,
) {
    let [_, Spaced { from, to: to_step, .. }] = sums.positions;
    for c in (0..sums.channels).step_by(V::LANES) {
        // SAFETY: the bias is padded to whole vectors. Taps are added one by one, or together if
        // they are as far apart as positions are. Of the last vector, only lanes that are channels
        // are stored.
        unsafe {
            let mut acc = [V::load(sums.bias.as_ptr().add(c)); P];
            let PixelTaps { taps, run_lengths, step, .. } = sums.taps;
            if run_lengths.is_empty() || *step != from {
                for tap in taps {
                    acc = add::<V, P, 1, GATHERED>(acc, sums, source, [tap], c);
                }
            } else {
                let mut at = 0;
                for count in run_lengths {
                    acc = match &taps[at..at + count] {
                        [tap] => add::<V, P, 1, GATHERED>(acc, sums, source, [tap], c),
                        [tap, next] => add::<V, P, 2, GATHERED>(acc, sums, source, [tap, next], c),
                        [tap, next, last] => {
                            add::<V, P, LONGEST_TAP_RUN, GATHERED>(acc, sums, source, [tap, next, last], c)
                        }
                        _ => acc,
                    };
                    at += count;
                }
            }
            for (p, acc) in clamp_all(acc, sums.bounds).into_iter().enumerate() {
                let to = to.add(p * to_step + c);
                if c + V::LANES <= sums.channels {
                    acc.store(to);
                } else {
                    acc.store_first(sums.channels - c, to);
                }
            }
        }
    }
}

/// Adds the products of `K` taps to the sums of channels from `c` on at `P` positions, and returns
/// the sums.
///
/// Each tap reads one position further than the one before, so that each load (and lane gather)
/// serves all of them.
///
/// # Safety
/// As [`sum_of_pixels`], for positions from `source` on. `c` is less than the number of channels
/// and a multiple of the lanes.
#[inline(always)]
unsafe fn add<V: Vector, const P: usize, const K: usize, const GATHERED: bool>(
    mut acc: [V; P],
    sums: &PixelSums<V::Lane>,
    source: *const V::Lane,
    taps: [&PixelTap; K],
    c: usize,
) -> [V; P] {
    let (inputs, reads): (usize, &[Read]) = match sums.gather {
        Some(gather) if GATHERED => (gather.inputs, &gather.reads),
        _ => (1, &[]),
    };
    // SAFETY: by this function's contract, the loads are whole vectors within source and weights.
    // The taps are one position apart, so position `q` of the first tap is position `q - k` of tap
    // `k`. There is an entry in `reads` for each vector of channels and each input.
    unsafe {
        let (source, step) = (source.add(taps[0].offset), sums.positions[1].from);
        for input in 0..inputs {
            let at = c * sums.each + input * V::LANES;
            let weights: [V; K] = std::array::from_fn(|k| V::load(sums.weights.as_ptr().add(taps[k].weights + at)));
            for q in 0..P + K - 1 {
                let pixel = if GATHERED {
                    let read = reads.get_unchecked(c / V::LANES * inputs + input);
                    V::load(source.add(q * step + read.first)).permute_lanes(read.lanes.as_ptr())
                } else {
                    V::load(source.add(q * step + c))
                };
                for (k, weight) in weights.iter().enumerate() {
                    if (k..k + P).contains(&q) {
                        acc[q - k] = acc[q - k].mul_add(pixel, *weight);
                    }
                }
            }
        }
    }
    acc
}
