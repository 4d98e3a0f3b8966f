//! Col2im rows: output rows that are sums of shifted runs of products.

use crate::kernel::transpose::Present;
use crate::simd::vector::{Vector, interleave};
use std::ops::Range;

/// A run of source elements that is added to a range of a phase of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Col2imRun {
    /// Index of the run's first element, relative to a base.
    pub from: usize,
    pub to: Range<usize>,
}

/// The products that are summed into one row of each channel.
#[derive(Clone, Copy)]
pub(crate) struct Col2imRows<'a, T> {
    /// The products.
    pub from: &'a [T],
    /// Elements between the products of adjacent channels.
    pub pitch: usize,
    /// The bases in a channel's products. All runs are added for each of them.
    pub bases: &'a [usize],
    /// The runs of each phase. The results of the phases alternate in a row.
    pub phases: &'a [Vec<Col2imRun>],
}

/// `to[c][i·P + p] = biases[c] + Σ from[c·pitch + base + run.from + i - run.to.start]` over all bases and, for each,
/// over the runs of phase `p` of `P` whose range contains `i`.
///
/// Vectors are summed in registers. Sums in memory would wait for each other's stores, as runs begin only a few
/// elements apart.
///
/// # Safety
/// The CPU has `V`'s instruction set. There is a row for each bias. For each row and base, `from` holds the elements of
/// each run. `S` is the number of phases, or the next power of two if `V` has as many lanes.
#[inline(always)]
pub(crate) unsafe fn accumulate_rows<V: Vector, const S: usize>(
    rows: &Col2imRows<V::Lane>,
    biases: &[V::Lane],
    to: &mut [&mut [V::Lane]],
) {
    let phases = rows.phases.len();
    let present = Present::new::<V>(S, phases);
    for (channel, (to, bias)) in to.iter_mut().zip(biases).enumerate() {
        let from = rows.from.as_ptr().wrapping_add(channel.wrapping_mul(rows.pitch));
        let results = to.len().div_ceil(phases);
        for at in (0..results).step_by(V::LANES) {
            // The last vector overlaps the one before, so that it is stored whole.
            let at = at.min(results.saturating_sub(V::LANES));
            // SAFETY: this function's contract. Only the lanes within a run's range are read, and no more is written
            // than `to` has room for.
            unsafe {
                let mut sums = [V::splat(*bias); S];
                for (sum, runs) in sums.iter_mut().zip(rows.phases) {
                    *sum = sum_of_runs(*sum, from, rows.bases, runs, at);
                }
                present.store(interleave(sums), &mut to[at * phases..]);
            }
        }
    }
}

/// The sums of a phase of a row, from result `at` on.
///
/// # Safety
/// As [`accumulate_rows`]. `from` points to a channel's products.
#[inline(always)]
unsafe fn sum_of_runs<V: Vector>(
    mut sum: V,
    from: *const V::Lane,
    bases: &[usize],
    runs: &[Col2imRun],
    at: usize,
) -> V {
    let lane = |position: usize| position.saturating_sub(at).min(V::LANES);
    for run in runs {
        let lanes = lane(run.to.start)..lane(run.to.end);
        let from = from.wrapping_add(run.from + at).wrapping_sub(run.to.start);
        // SAFETY: this function's contract: only the lanes within the run's range are read.
        unsafe {
            if lanes.len() == V::LANES {
                for base in bases {
                    sum = sum.plus(V::load(from.wrapping_add(*base)));
                }
            } else if !lanes.is_empty() {
                let some = (1u32 << lanes.end) - (1u32 << lanes.start);
                for base in bases {
                    sum = sum.plus(V::load_some(from.wrapping_add(*base), some as u16));
                }
            }
        }
    }
    sum
}
