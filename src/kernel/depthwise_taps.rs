//! Sums of shifted rows: the inner loop of depthwise deconvolutions.

use crate::kernel::bounds::{Bounds, clamp_all};
use crate::kernel::transpose::Present;
use crate::simd::vector::{Vector, interleave};

/// The most phases of [`sum_of_taps`].
pub(crate) const MOST_PHASES: usize = 8;

/// A tap of a phase: `weight` times the source at `offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedTap<T> {
    /// The offset added to a position's index.
    pub offset: usize,
    /// The weight.
    pub weight: T,
}

/// `to[i·n + j] = bias + Σ weight·source[i + offset]` over the taps of phase `j` of `n`, for each `i` in
/// `0..to.len() / n`, clamped to the bounds.
///
/// `U` vectors of positions are computed together: `S·U` sums that do not depend on each other. Sums of
/// phases that are missing to `S` are interleaved with the others, and dropped.
///
/// # Safety
/// The CPU has `V`'s instruction set. `S` is a power of two up to eight. The number of phases is more than `S / 2` and
/// at most `S`. If it is less than `S`, a vector has `S` lanes at least. For every tap, `offset` plus the number of
/// positions, rounded up to whole vectors, is within `source`.
#[inline(always)]
pub(crate) unsafe fn sum_of_taps<V: Vector, const S: usize, const U: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias_and_bounds: (V::Lane, Option<Bounds<V::Lane>>),
    to: &mut [V::Lane],
) {
    let (all, count) = (phases.len(), to.len() / phases.len());
    // SAFETY: this function's contract is that of the calls, whose positions stay below `count`
    // rounded up to whole vectors. The last run is stored only as far as `to` goes.
    unsafe {
        let present = Present::new::<V>(S, all);
        let at = groups::<V, S, U>(source, phases, bias_and_bounds, &present, 0, to);
        let at = groups::<V, S, 2>(source, phases, bias_and_bounds, &present, at, to);
        let at = groups::<V, S, 1>(source, phases, bias_and_bounds, &present, at, to);
        if at < count {
            let [run] = sums::<V, S, 1>(source, phases, bias_and_bounds, at);
            present.store(interleave(run), &mut to[at * all..]);
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
    present: &Present,
    mut at: usize,
    to: &mut [V::Lane],
) -> usize {
    let (all, count) = (phases.len(), to.len() / phases.len());
    while at + U * V::LANES <= count {
        // SAFETY: these positions are within `to`. By this function's contract, the source holds
        // all that they read. Elements that a store overwrites are written afterwards, as positions ascend.
        unsafe {
            let runs: [[V; S]; U] = sums::<V, S, U>(source, phases, bias_and_bounds, at);
            for (u, run) in runs.into_iter().enumerate() {
                let (run, first) = (interleave(run), (at + u * V::LANES) * all);
                if !present.all {
                    present.store(run, &mut to[first..]);
                    continue;
                }
                for (v, lanes) in run.into_iter().enumerate() {
                    lanes.store(to.as_mut_ptr().add(first + v * V::LANES));
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
    // SAFETY: by this function's contract there are at most `S` phases, and the loads are within `source`.
    unsafe {
        let (bias, bounds) = bias_and_bounds;
        let mut acc = [[V::splat(bias); S]; U];
        // Not over the phases: a constant number of sums stays in registers.
        for j in 0..S {
            let Some(taps) = phases.get(j) else { continue };
            for tap in taps {
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
