//! Sums of shifted rows: the inner loop of depthwise deconvolutions.

use crate::simd::vector::{Vector, interleave, store_run};

/// A tap of a phase: `weight` times the source at `offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedTap<T> {
    /// What to add to the index of a position.
    pub offset: usize,
    /// The weight.
    pub weight: T,
}

/// `to[i·S + j] = bias + Σ weight·source[i + offset]` over the taps of phase `j`, for each `i` in `0..to.len() / S`. `U` vectors of positions are
/// made side by side: `S·U` sums that don't wait for each other.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are `S` phases, a power of two up to eight; for every tap,
/// `offset + to.len()/S` rounded up to whole vectors is within `source`.
#[inline(always)]
pub(crate) unsafe fn sum_of_taps<V: Vector, const S: usize, const U: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias: V::Lane,
    to: &mut [V::Lane],
) {
    let count = to.len() / S;
    // SAFETY: this function's contract is that of the parts, and positions run to `count` rounded up to whole vectors; the last run is stored
    // as far as `to` goes.
    unsafe {
        let at = groups::<V, S, U>(source, phases, bias, 0, to);
        let at = groups::<V, S, 2>(source, phases, bias, at, to);
        let at = groups::<V, S, 1>(source, phases, bias, at, to);
        if at < count {
            let [run] = sums::<V, S, 1>(source, phases, bias, at);
            store_run(interleave(run), &mut to[at * S..]);
        }
    }
}

/// From position `at` on, as many whole groups of `U` vectors as there are; the position behind them.
///
/// # Safety
/// As [`sum_of_taps`].
#[inline(always)]
unsafe fn groups<V: Vector, const S: usize, const U: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias: V::Lane,
    mut at: usize,
    to: &mut [V::Lane],
) -> usize {
    let count = to.len() / S;
    while at + U * V::LANES <= count {
        // SAFETY: these positions are within `to` and, by this function's contract, what they read is within the source.
        unsafe {
            let runs: [[V; S]; U] = sums::<V, S, U>(source, phases, bias, at);
            for (u, run) in runs.into_iter().enumerate() {
                for (v, lanes) in interleave(run).into_iter().enumerate() {
                    lanes.store(to.as_mut_ptr().add((at + u * V::LANES) * S + v * V::LANES));
                }
            }
        }
        at += U * V::LANES;
    }
    at
}

/// # Safety
/// As [`sum_of_taps`], for positions `at..at + U·LANES`.
#[inline(always)]
unsafe fn sums<V: Vector, const S: usize, const U: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias: V::Lane,
    at: usize,
) -> [[V; S]; U] {
    // SAFETY: by this function's contract there are `S` phases and the loads are within `source`.
    unsafe {
        let mut acc = [[V::splat(bias); S]; U];
        for j in 0..S {
            for tap in phases.get_unchecked(j) {
                let weight = V::splat(tap.weight);
                for (u, acc) in acc.iter_mut().enumerate() {
                    let x = V::load(source.as_ptr().add(at + tap.offset + u * V::LANES));
                    acc[j] = acc[j].mul_add(weight, x);
                }
            }
        }
        acc
    }
}
