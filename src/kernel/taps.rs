//! Sums of shifted rows: the inner loop of depthwise deconvolutions.

use super::vector::{Vector, interleave};
use crate::element::Compute;

/// A tap of a phase: `weight` times the source at `offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedTap<T> {
    /// What to add to the index of a position.
    pub offset: usize,
    /// The weight.
    pub weight: T,
}

/// Positions that one pass of the loop makes per phase, in registers.
const UNROLL: usize = 2;

/// `to[i·S + j] = bias + Σ weight·source[i + offset]` over the taps of phase `j`, for each `i` in `0..to.len() / S`.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are `S` phases, a power of two up to eight; for every tap,
/// `offset + to.len()/S` rounded up to whole vectors is within `source`.
#[inline(always)]
pub(super) unsafe fn sum_of_taps<V: Vector, const S: usize>(
    source: &[V::Lane],
    phases: &[Vec<WeightedTap<V::Lane>>],
    bias: V::Lane,
    to: &mut [V::Lane],
) {
    let count = to.len() / S;
    // SAFETY: positions run to `count` rounded up to whole vectors, within the source by this function's contract; whole groups are stored to `to`
    // only while they fit, the last one goes through `last`.
    unsafe {
        let mut at = 0;
        while at + UNROLL * V::LANES <= count {
            let runs: [[V; S]; UNROLL] = sums::<V, S, UNROLL>(source, phases, bias, at);
            for (u, run) in runs.into_iter().enumerate() {
                for (v, lanes) in interleave(run).into_iter().enumerate() {
                    lanes.store(to.as_mut_ptr().add((at + u * V::LANES) * S + v * V::LANES));
                }
            }
            at += UNROLL * V::LANES;
        }
        while at < count {
            let [run] = sums::<V, S, 1>(source, phases, bias, at);
            let run = interleave(run);
            if at + V::LANES <= count {
                for (v, lanes) in run.into_iter().enumerate() {
                    lanes.store(to.as_mut_ptr().add(at * S + v * V::LANES));
                }
            } else {
                let mut last = [V::Lane::ZERO; 8 * 16];
                for (v, lanes) in run.into_iter().enumerate() {
                    lanes.store(last[v * V::LANES..].as_mut_ptr());
                }
                let rest = &mut to[at * S..];
                rest.copy_from_slice(&last[..rest.len()]);
            }
            at += V::LANES;
        }
    }
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
