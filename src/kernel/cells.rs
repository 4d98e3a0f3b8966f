//! Weighted sums of cells whose channels are side by side: the inner loop of depthwise deconvolutions of channels-last data.

use super::vector::Vector;
use crate::element::Compute;

/// A tap of a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellTap {
    /// What to add to the index of a position's first channel.
    pub offset: usize,
    /// Where the tap's weights begin, one a channel.
    pub weights: usize,
}

/// What a run of positions is computed from.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'a, T> {
    /// The elements.
    pub source: &'a [T],
    /// Elements from a position to the next.
    pub step: usize,
    /// The taps.
    pub taps: &'a [CellTap],
    /// The weights of all taps.
    pub weights: &'a [T],
    /// One value a channel, padded to whole vectors.
    pub bias: &'a [T],
    /// Channels.
    pub channels: usize,
}

/// Positions that one pass makes, in registers: they share the loads of weights.
const UNROLL: usize = 4;

/// `to[p·to_step + c] = bias[c] + Σ weight[c]·source[p·step + offset + c]`, for `count` positions `p` and every channel `c`.
///
/// # Safety
/// The CPU has `V`'s instruction set. For every tap, the weights hold the channels rounded up to whole vectors, and so does the source from
/// each position; so does the bias; `to` holds the channels from each position.
#[inline(always)]
pub(super) unsafe fn sum_of_cells<V: Vector>(cells: &Cells<V::Lane>, to: &mut [V::Lane], to_step: usize, count: usize) {
    // SAFETY: this function's contract.
    unsafe {
        let mut p = 0;
        while p + UNROLL <= count {
            run::<V, UNROLL>(cells, p, to, to_step);
            p += UNROLL;
        }
        while p < count {
            run::<V, 1>(cells, p, to, to_step);
            p += 1;
        }
    }
}

/// # Safety
/// As [`sum_of_cells`], for positions `first..first + P`.
#[inline(always)]
unsafe fn run<V: Vector, const P: usize>(cells: &Cells<V::Lane>, first: usize, to: &mut [V::Lane], to_step: usize) {
    // SAFETY: loads are of whole vectors within source, weights and bias by this function's contract; a vector is stored where all of it is
    // channels, the last one goes through `last`.
    unsafe {
        let source = cells.source.as_ptr().add(first * cells.step);
        for c in (0..cells.channels).step_by(V::LANES) {
            let mut acc = [V::load(cells.bias.as_ptr().add(c)); P];
            for tap in cells.taps {
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
                    let mut last = [V::Lane::ZERO; 16];
                    acc.store(last.as_mut_ptr());
                    let to = &mut to[at..at + cells.channels - c];
                    to.copy_from_slice(&last[..to.len()]);
                }
            }
        }
    }
}
