//! Sums of shifted planes whose rows are as wide as those of the results: the inner loop of
//! depthwise convolutions of small images.
//!
//! With equal widths, the distance between a result and the element that a tap reads for it is
//! constant over the plane. Vectors can therefore run over row ends. Masks exclude the lanes whose
//! row or column a tap's shift moves out of the plane.

use crate::kernel::bounds::{Bounds, clamp_all};
use crate::kernel::extent::product;
use crate::simd::vector::Vector;

/// The taps of a plane, and the elements that they read.
#[derive(Clone, Debug)]
pub(crate) struct PlaneTaps {
    /// Elements of the source.
    elements: usize,
    /// Number of results.
    results: usize,
    /// Lanes per vector.
    lanes: usize,
    /// The offset of each tap, added to the index of a result.
    offsets: Vec<isize>,
    /// Per vector of results and per tap, the lanes whose element is inside the plane.
    masks: Vec<u16>,
}

impl PlaneTaps {
    /// Builds the masks of a plane with `rows` rows of source, `results` rows of results, and
    /// `width` columns of both.
    ///
    /// Each tap is the number of rows and columns that it reads after a result's own.
    pub fn new(lanes: usize, rows: usize, results: usize, width: usize, taps: &[(i64, i64)]) -> PlaneTaps {
        let (elements, len) = (product([rows, width]), product([results, width]));
        let vectors = len.div_ceil(lanes);
        let mut masks = vec![0; product([vectors, taps.len()])];
        for (t, (down, along)) in taps.iter().enumerate() {
            let inside = |shift: i64, input: usize, count: usize| {
                let begin = (-shift).clamp(0, count as i64);
                begin as usize..(input as i64 - shift).clamp(begin, count as i64) as usize
            };
            let columns = inside(*along, width, width);
            for row in inside(*down, rows, results) {
                let (mut at, end) = (row * width + columns.start, row * width + columns.end);
                while at < end {
                    let first = at % lanes;
                    let count = (lanes - first).min(end - at);
                    masks[at / lanes * taps.len() + t] |= (((1u32 << count) - 1) << first) as u16;
                    at += count;
                }
            }
        }
        PlaneTaps {
            elements,
            results: len,
            lanes,
            // May wrap if a shift is so large that all masks are empty.
            offsets: taps.iter().map(|(y, x)| y.wrapping_mul(width as i64).wrapping_add(*x) as isize).collect(),
            masks,
        }
    }

    /// Whether the slices have the lengths that these taps were built for.
    pub(crate) fn fit<T>(&self, lanes: usize, source: &[T], weights: &[T], to: &[T]) -> bool {
        let Self { elements, results, .. } = *self;
        lanes == self.lanes && (source.len(), weights.len(), to.len()) == (elements, self.offsets.len(), results)
    }
}

/// `to[i] = bias + Σ weight[t]·source[i + offset[t]]` for each result `i`, over the taps that read
/// inside the plane for it, clamped to the bounds.
///
/// # Safety
/// The CPU has `V`'s instruction set, `V` has masked loads, and the taps fit: see
/// [`PlaneTaps::fit`].
#[inline(always)]
pub(crate) unsafe fn sum_of_plane<V: Vector>(
    taps: &PlaneTaps,
    source: &[V::Lane],
    weights: &[V::Lane],
    bias_and_bounds: (V::Lane, Option<Bounds<V::Lane>>),
    to: &mut [V::Lane],
) {
    // A constant: other vectors have no code for planes.
    if !V::MASKS {
        return;
    }
    let vectors = to.len().div_ceil(V::LANES);
    let mut at = 0;
    while at < vectors {
        // Accumulator blocks of about the same number of vectors.
        let count = (vectors - at).div_ceil((vectors - at).div_ceil(8));
        // SAFETY: this function's contract.
        unsafe {
            match count {
                1 => sums::<V, 1>(taps, source, weights, bias_and_bounds, at, to),
                2 => sums::<V, 2>(taps, source, weights, bias_and_bounds, at, to),
                3 => sums::<V, 3>(taps, source, weights, bias_and_bounds, at, to),
                4 => sums::<V, 4>(taps, source, weights, bias_and_bounds, at, to),
                5 => sums::<V, 5>(taps, source, weights, bias_and_bounds, at, to),
                6 => sums::<V, 6>(taps, source, weights, bias_and_bounds, at, to),
                7 => sums::<V, 7>(taps, source, weights, bias_and_bounds, at, to),
                _ => sums::<V, 8>(taps, source, weights, bias_and_bounds, at, to),
            }
        }
        at += count;
    }
}

/// Computes vectors `at..at + U`.
///
/// # Safety
/// As [`sum_of_plane`]. There are `at + U` vectors.
#[inline(always)]
unsafe fn sums<V: Vector, const U: usize>(
    taps: &PlaneTaps,
    source: &[V::Lane],
    weights: &[V::Lane],
    bias_and_bounds: (V::Lane, Option<Bounds<V::Lane>>),
    at: usize,
    to: &mut [V::Lane],
) {
    let count = taps.offsets.len();
    // SAFETY: a mask bit is set only if the result's row and column, moved by the tap's shift, are
    // in the plane. The source is that plane by this function's contract. A whole vector is stored
    // only if at least a vector of results is left.
    unsafe {
        let masks = taps.masks.as_ptr().add(at * count);
        let (bias, bounds) = bias_and_bounds;
        let mut sums = [V::splat(bias); U];
        for t in 0..count {
            let weight = V::splat(*weights.get_unchecked(t));
            let from = source.as_ptr().wrapping_offset(*taps.offsets.get_unchecked(t)).wrapping_add(at * V::LANES);
            for (u, sums) in sums.iter_mut().enumerate() {
                let x = V::load_some(from.wrapping_add(u * V::LANES), *masks.add(u * count + t));
                *sums = sums.mul_add(x, weight);
            }
        }
        for (u, sums) in clamp_all(sums, bounds).into_iter().enumerate() {
            let begin = (at + u) * V::LANES;
            let left = to.len() - begin;
            let to = to.as_mut_ptr().add(begin);
            if left < V::LANES { sums.store_first(left, to) } else { sums.store(to) }
        }
    }
}
