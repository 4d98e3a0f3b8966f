//! Col2im rows: output rows that are sums of shifted runs.

use crate::simd::vector::Vector;
use std::ops::Range;

/// A run of source elements that is added to a range of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Col2imRun {
    /// Index of the run's first element, relative to a base.
    pub from: usize,
    pub to: Range<usize>,
}

/// `to[i] = bias + Σ from[base + run.from + i - run.to.start]` over all bases and, for each, over
/// the runs whose range contains `i`.
///
/// A vector of the row is summed in a register. Sums in memory would wait for each other's stores,
/// as runs begin only a few elements apart.
///
/// # Safety
/// The CPU has `V`'s instruction set. For each base, `from` holds the elements of each run. Ranges
/// end within `to`.
#[inline(always)]
pub(crate) unsafe fn accumulate_row<V: Vector>(
    from: &[V::Lane],
    bases: &[usize],
    runs: &[Col2imRun],
    bias: V::Lane,
    to: &mut [V::Lane],
) {
    for at in (0..to.len()).step_by(V::LANES) {
        let lane = |position: usize| position.saturating_sub(at).min(V::LANES);
        // SAFETY: only the lanes within a run's range are read, and `from` holds those. In the
        // row's last vector, only the lanes within `to` are written.
        unsafe {
            let mut sum = V::splat(bias);
            for base in bases {
                for run in runs {
                    let lanes = lane(run.to.start)..lane(run.to.end);
                    let from = from.as_ptr().wrapping_add(base + run.from + at).wrapping_sub(run.to.start);
                    if lanes.len() == V::LANES {
                        sum = sum.plus(V::load(from));
                    } else if !lanes.is_empty() {
                        let some = (1u32 << lanes.end) - (1u32 << lanes.start);
                        sum = sum.plus(V::load_some(from, some as u16));
                    }
                }
            }
            let to = &mut to[at..];
            if to.len() >= V::LANES { sum.store(to.as_mut_ptr()) } else { sum.store_first(to.len(), to.as_mut_ptr()) }
        }
    }
}
