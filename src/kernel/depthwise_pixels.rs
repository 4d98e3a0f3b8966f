//! Weighted sums of cells whose channels are side by side: the inner loop of depthwise deconvolutions, and of those of narrow groups, of channels-last
//! data.

use crate::kernel::extent;
use crate::simd::vector::{MOST_LANES, Vector};

/// A tap of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PixelTap {
    /// What to add to the index of a position's first channel.
    pub offset: usize,
    /// Where the tap's weights begin among those of a vector of output channels: a vector for each input channel of a group.
    pub weights: usize,
}

/// The taps of a run of positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PixelTaps {
    /// By offset.
    taps: Vec<PixelTap>,
    furthest: PixelTap,
    /// How many taps are each as far from the one before as positions are from each other, in parts of at most [`MOST_BESIDE`], for positions `step` apart;
    /// empty where all such numbers are one.
    beside: Vec<usize>,
    step: usize,
}

/// The most taps that share what they read.
const MOST_BESIDE: usize = 3;

impl PixelTaps {
    /// Taps in any order, most often for positions that are `step` apart in the source.
    pub fn new(mut taps: Vec<PixelTap>, step: usize) -> PixelTaps {
        taps.sort_unstable_by_key(|tap| tap.offset);
        let runs = taps.chunk_by(|tap, next| next.offset - tap.offset == step);
        let parts = |len: usize| (0..len).step_by(MOST_BESIDE).map(move |at| MOST_BESIDE.min(len - at));
        let mut beside: Vec<usize> = runs.flat_map(|run| parts(run.len())).collect();
        if beside.iter().all(|count| *count == 1) {
            beside.clear();
        }
        let furthest = PixelTap {
            offset: taps.iter().map(|tap| tap.offset).max().unwrap_or(0),
            weights: taps.iter().map(|tap| tap.weights).max().unwrap_or(0),
        };
        PixelTaps { taps, furthest, beside, step }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Whether every tap, `reach` elements from its offset and `width` weights from where its weights begin, is within the slices.
    pub(crate) fn fit<T>(&self, source: &[T], reach: usize, weights: &[T], width: usize) -> bool {
        let PixelTap { offset, weights: first } = self.furthest;
        let ends = [(offset, reach, source.len()), (first, width, weights.len())];
        self.is_empty() || ends.into_iter().all(|(at, len, end)| extent::reach([(at, 1), (len, 1)]) <= end)
    }
}

/// The most positions of a pass.
const MOST_POSITIONS: usize = 8;

/// What one vector of output channels reads of a cell for one input channel of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    /// The first of a vector of input channels.
    first: usize,
    /// Which of them each lane wants.
    lanes: [u32; MOST_LANES],
}

/// Where groups have several channels: which input channels the output channels are made of, a vector at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picks {
    /// For each vector of output channels, one for each input channel of a group.
    reads: Vec<Read>,
    /// Input channels of a group.
    inputs: usize,
    /// Lanes of a vector.
    lanes: usize,
    reach: usize,
}

impl Picks {
    /// For groups of `inputs` to `outputs` channels. `None` where the same input channel of the groups of a vector lies further apart than a vector reaches.
    pub fn new(lanes: usize, groups: usize, inputs: usize, outputs: usize) -> Option<Picks> {
        // vectors end where the cell does, if it has one
        let last = groups.checked_mul(inputs)?.saturating_sub(lanes);
        let channels = groups.checked_mul(outputs)?;
        let mut reads = vec![];
        for begin in (0..channels).step_by(lanes) {
            let group = |lane: usize| (begin + lane).min(channels - 1) / outputs;
            let (from, to) = (group(0), group(lanes - 1));
            for input in 0..inputs {
                // from where a vector would begin anyway, if that reaches: such reads seldom cross cache lines
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
        Some(Picks { reads, inputs, lanes, reach })
    }

    /// Elements that are read from the first channel of a cell on.
    pub fn reach(&self) -> usize {
        self.reach
    }

    /// Whether they are for vectors of so many lanes, and so many output channels.
    pub(crate) fn fit(&self, lanes: usize, channels: usize) -> bool {
        self.lanes == lanes && self.reads.len() == extent::product([channels.div_ceil(lanes), self.inputs])
    }
}

/// What a run of positions is computed from.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'a, T> {
    /// The elements.
    pub source: &'a [T],
    /// Elements from a position to the next.
    pub step: usize,
    /// The taps.
    pub taps: &'a PixelTaps,
    /// The weights of all taps, a vector of output channels after the other.
    pub weights: &'a [T],
    /// How many of them an output channel has.
    pub each: usize,
    /// One value a channel, padded to whole vectors.
    pub bias: &'a [T],
    /// Output channels.
    pub channels: usize,
    /// Where a group has not one channel in and out: what each output channel reads.
    pub picks: Option<&'a Picks>,
}

impl<T> Cells<'_, T> {
    /// How far the weights and the elements reach that the last vector of output channels reads for a tap, from where those of the tap begin.
    pub(crate) fn reach(&self, lanes: usize) -> (usize, usize) {
        let width = extent::rounded_up(self.channels, lanes);
        let (inputs, reach) = self.picks.map_or((1, width), |picks| (picks.inputs, picks.reach));
        (extent::reach([(width - lanes, self.each), (inputs, lanes)]), reach)
    }
}

/// `to[p·to_step + c] = bias[c] + Σ weight[c]·source[p·step + offset + c]`, for `count` positions `p` and every channel `c`. If `PICKED`, a tap has weights for
/// every input channel of a group, and `c` reads those of its group.
///
/// # Safety
/// The CPU has `V`'s instruction set. The weights hold, for every vector of channels and tap, one vector, or if `PICKED`, one for each input channel of a group;
/// for every tap, the source holds the channels from each position, rounded up to whole vectors, or if `PICKED`, as much as is read; so much does the
/// bias, and `to` the channels from each position. If `PICKED`, there are picks for vectors of `V` and so many channels.
#[inline(always)]
pub(crate) unsafe fn sum_of_pixels<V: Vector, const PICKED: bool>(
    cells: &Cells<V::Lane>,
    to: &mut [V::Lane],
    to_step: usize,
    count: usize,
) {
    // SAFETY: this function's contract.
    unsafe {
        // positions that one pass makes share the loads of weights
        let passes = count.div_ceil(MOST_POSITIONS);
        for pass in 0..passes {
            let (p, end) = (count * pass / passes, count * (pass + 1) / passes);
            match end - p {
                1 => run::<V, 1, PICKED>(cells, p, to, to_step),
                2 => run::<V, 2, PICKED>(cells, p, to, to_step),
                3 => run::<V, 3, PICKED>(cells, p, to, to_step),
                4 => run::<V, 4, PICKED>(cells, p, to, to_step),
                5 => run::<V, 5, PICKED>(cells, p, to, to_step),
                6 => run::<V, 6, PICKED>(cells, p, to, to_step),
                7 => run::<V, 7, PICKED>(cells, p, to, to_step),
                _ => run::<V, MOST_POSITIONS, PICKED>(cells, p, to, to_step),
            }
        }
    }
}

/// # Safety
/// As [`sum_of_pixels`], for positions `first..first + P`.
#[inline(always)]
unsafe fn run<V: Vector, const P: usize, const PICKED: bool>(
    cells: &Cells<V::Lane>,
    first: usize,
    to: &mut [V::Lane],
    to_step: usize,
) {
    let source = cells.source.as_ptr().wrapping_add(first * cells.step);
    for c in (0..cells.channels).step_by(V::LANES) {
        // SAFETY: the bias is padded to whole vectors; taps are one by one or as far apart as positions; of a vector, what is channels is stored.
        unsafe {
            let mut acc = [V::load(cells.bias.as_ptr().add(c)); P];
            let PixelTaps { taps, beside, step, .. } = cells.taps;
            if beside.is_empty() || *step != cells.step {
                for tap in taps {
                    acc = add::<V, P, 1, PICKED>(acc, cells, source, [tap], c);
                }
            } else {
                let mut at = 0;
                for count in beside {
                    acc = match &taps[at..at + count] {
                        [tap] => add::<V, P, 1, PICKED>(acc, cells, source, [tap], c),
                        [tap, next] => add::<V, P, 2, PICKED>(acc, cells, source, [tap, next], c),
                        [tap, next, last] => add::<V, P, MOST_BESIDE, PICKED>(acc, cells, source, [tap, next, last], c),
                        _ => acc,
                    };
                    at += count;
                }
            }
            for (p, acc) in acc.into_iter().enumerate() {
                let at = (first + p) * to_step + c;
                if c + V::LANES <= cells.channels {
                    acc.store(to.as_mut_ptr().add(at));
                } else {
                    acc.store_first(cells.channels - c, to.as_mut_ptr().add(at));
                }
            }
        }
    }
}

/// Sums of channels from `c` on at `P` positions, with those of `K` taps added, each of which is a position further than the one before: what is read, and
/// picked, serves them all.
///
/// # Safety
/// As [`sum_of_pixels`], for positions from `source` on; `c` is less than the channels, and a whole number of vectors.
#[inline(always)]
unsafe fn add<V: Vector, const P: usize, const K: usize, const PICKED: bool>(
    mut acc: [V; P],
    cells: &Cells<V::Lane>,
    source: *const V::Lane,
    taps: [&PixelTap; K],
    c: usize,
) -> [V; P] {
    let (inputs, reads): (usize, &[Read]) = match cells.picks {
        Some(picks) if PICKED => (picks.inputs, &picks.reads),
        _ => (1, &[]),
    };
    // SAFETY: loads are of whole vectors within source and weights by this function's contract: position `q` of a tap is position `q - k` of the one that is
    // `k` further; there are reads for each vector of channels and each input.
    unsafe {
        let source = source.add(taps[0].offset);
        for input in 0..inputs {
            let at = c * cells.each + input * V::LANES;
            let weights: [V; K] = std::array::from_fn(|k| V::load(cells.weights.as_ptr().add(taps[k].weights + at)));
            for q in 0..P + K - 1 {
                let cell = if PICKED {
                    let read = reads.get_unchecked(c / V::LANES * inputs + input);
                    V::load(source.add(q * cells.step + read.first)).pick(read.lanes.as_ptr())
                } else {
                    V::load(source.add(q * cells.step + c))
                };
                for (k, weight) in weights.iter().enumerate() {
                    if (k..k + P).contains(&q) {
                        acc[q - k] = acc[q - k].mul_add(*weight, cell);
                    }
                }
            }
        }
    }
    acc
}
