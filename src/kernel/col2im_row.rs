//! Rows that are sums of runs of elements.

use crate::simd::vector::Vector;
use std::ops::Range;

/// Neighbouring elements that are added to neighbouring ones of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Col2imRun {
    /// The first of them, from a base on.
    pub from: usize,
    pub to: Range<usize>,
}

/// `to[i] = bias + Σ from[base + run.from + i - run.to.start]` over bases, and for each over the runs to whose range `i` belongs. A vector of the row is summed in
/// a register: sums in memory, of runs that begin a few elements from each other, would wait for each other's stores.
///
/// # Safety
/// The CPU has `V`'s instruction set; the elements of each run are in `from` for each base, and ranges end within `to`.
#[inline(always)]
pub(crate) unsafe fn gather<V: Vector>(
    from: &[V::Lane],
    bases: &[usize],
    runs: &[Col2imRun],
    bias: V::Lane,
    to: &mut [V::Lane],
) {
    for at in (0..to.len()).step_by(V::LANES) {
        let lane = |position: usize| position.saturating_sub(at).min(V::LANES);
        // SAFETY: of a run, the lanes that are read are those within its range; of a row's last vector, those are written that it has.
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
