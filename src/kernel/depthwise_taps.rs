//! Sums of shifted rows: the inner loop of depthwise deconvolutions.

use crate::kernel::bounds::{Bounds, clamp_all};
use crate::simd::vector::{Vector, interleave, store_run};

/// A tap of a phase: `weight` times the source at `offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedTap<T> {
    /// The offset added to a position's index.
    pub offset: usize,
    /// The weight.
    pub weight: T,
}

/// `to[i·S + j] = bias + Σ weight·source[i + offset]` over the taps of phase `j`, for each `i` in
/// `0..to.len() / S`, clamped to the bounds.
///
/// `U` vectors of positions are computed together: `S·U` sums that do not depend on each other.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are `S` phases, a power of two up to eight. For every
/// tap, `offset + to.len()/S` rounded up to whole vectors is within `source`.
#[inline(always)]
pub(crate) unsafe fn sum_of_taps<V: Vector, const S: usize, const U: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias_and_bounds: (V::Lane, Option<Bounds<V::Lane>>),
    to: &mut [V::Lane],
) {
    let count = to.len() / S;
    // SAFETY: this function's contract is that of the calls, whose positions stay below `count`
    // rounded up to whole vectors. The last run is stored only as far as `to` goes.
    unsafe {
        let at = groups::<V, S, U>(source, phases, bias_and_bounds, 0, to);
        let at = groups::<V, S, 2>(source, phases, bias_and_bounds, at, to);
        let at = groups::<V, S, 1>(source, phases, bias_and_bounds, at, to);
        if at < count {
            let [run] = sums::<V, S, 1>(source, phases, bias_and_bounds, at);
            store_run(interleave(run), &mut to[at * S..]);
        }
    }
}

/// Computes whole groups of `U` vectors from position `at` on, and returns the position after them.
///
/// # Safety
/// As [`sum_of_taps`].
#[inline(always)]
unsafe fn groups<V: Vector, const S: usize, const U: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias_and_bounds: (V::Lane, Option<Bounds<V::Lane>>),
    mut at: usize,
    to: &mut [V::Lane],
) -> usize {
    let count = to.len() / S;
    while at + U * V::LANES <= count {
        // SAFETY: these positions are within `to`. By this function's contract, the source holds
        // all that they read.
        unsafe {
            let runs: [[V; S]; U] = sums::<V, S, U>(source, phases, bias_and_bounds, at);
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
    bias_and_bounds: (V::Lane, Option<Bounds<V::Lane>>),
    at: usize,
) -> [[V; S]; U] {
    // SAFETY: by this function's contract there are `S` phases and the loads are within `source`.
    unsafe {
        let (bias, bounds) = bias_and_bounds;
        let mut acc = [[V::splat(bias); S]; U];
        for j in 0..S {
            for tap in phases.get_unchecked(j) {
                let weight = V::splat(tap.weight);
                for (u, acc) in acc.iter_mut().enumerate() {
                    let x = V::load(source.as_ptr().add(at + tap.offset + u * V::LANES));
                    acc[j] = acc[j].mul_add(x, weight);
                }
            }
        }
        for acc in &mut acc {
            *acc = clamp_all(*acc, bounds);
        }
        acc
    }
}
