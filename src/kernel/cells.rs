//! Weighted sums of cells whose channels are side by side: the inner loop of depthwise deconvolutions of channels-last data.

use super::vector::Vector;

/// A tap of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CellTap {
    /// What to add to the index of a position's first channel.
    pub offset: usize,
    /// Where the tap's weights begin, one a channel.
    pub weights: usize,
}

/// The taps of a run of positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellTaps {
    taps: Vec<CellTap>,
    furthest: CellTap,
}

impl CellTaps {
    /// Taps in any order.
    pub fn new(taps: Vec<CellTap>) -> CellTaps {
        let furthest = CellTap {
            offset: taps.iter().map(|tap| tap.offset).max().unwrap_or(0),
            weights: taps.iter().map(|tap| tap.weights).max().unwrap_or(0),
        };
        CellTaps { taps, furthest }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    /// Whether every tap, `reach` elements from its offset and `width` weights from its weights, is within the slices.
    pub(super) fn fit<T>(&self, source: &[T], reach: usize, weights: &[T], width: usize) -> bool {
        let CellTap { offset, weights: first } = self.furthest;
        self.is_empty() || (offset + reach <= source.len() && first + width <= weights.len())
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
    pub taps: &'a CellTaps,
    /// The weights of all taps.
    pub weights: &'a [T],
    /// One value a channel, padded to whole vectors.
    pub bias: &'a [T],
    /// Channels.
    pub channels: usize,
}

/// `to[p·to_step + c] = bias[c] + Σ weight[c]·source[p·step + offset + c]`, for `count` positions `p` and every channel `c`.
///
/// # Safety
/// The CPU has `V`'s instruction set. For every tap, the weights hold the channels rounded up to whole vectors, and so does the source from
/// each position; so does the bias; `to` holds the channels from each position.
#[inline(always)]
pub(super) unsafe fn sum_of_cells<V: Vector>(cells: &Cells<V::Lane>, to: &mut [V::Lane], to_step: usize, count: usize) {
    // SAFETY: this function's contract.
    unsafe {
        // positions that one pass makes share the loads of weights
        let mut p = 0;
        while p + 8 <= count {
            run::<V, 8>(cells, p, to, to_step);
            p += 8;
        }
        if p + 4 <= count {
            run::<V, 4>(cells, p, to, to_step);
            p += 4;
        }
        if p + 2 <= count {
            run::<V, 2>(cells, p, to, to_step);
            p += 2;
        }
        if p < count {
            run::<V, 1>(cells, p, to, to_step);
        }
    }
}

/// # Safety
/// As [`sum_of_cells`], for positions `first..first + P`.
#[inline(always)]
unsafe fn run<V: Vector, const P: usize>(cells: &Cells<V::Lane>, first: usize, to: &mut [V::Lane], to_step: usize) {
    // SAFETY: loads are of whole vectors within source, weights and bias by this function's contract; of a vector, what is
    // channels is stored.
    unsafe {
        let source = cells.source.as_ptr().add(first * cells.step);
        for c in (0..cells.channels).step_by(V::LANES) {
            let mut acc = [V::load(cells.bias.as_ptr().add(c)); P];
            for tap in &cells.taps.taps {
                let weight = V::load(cells.weights.as_ptr().add(tap.weights + c));
                for (p, acc) in acc.iter_mut().enumerate() {
                    *acc = acc.mul_add(weight, V::load(source.add(p * cells.step + tap.offset + c)));
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
