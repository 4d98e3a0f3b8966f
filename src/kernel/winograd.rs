//! Tiles of two or three results along each axis of several taps (Winograd's minimal filtering).
//!
//! Two adjacent results of two taps take three products instead of four. Two adjacent results of
//! three taps, or three of two, take four instead of six.
//!
//! For data `d`, taps `g` and products `m`, the transforms follow from polynomial multiplication at
//! the points 0, 1 and infinity (three products), and also -1 (four):
//!
//! | taps | data | filter | results |
//! |---|---|---|---|
//! | 2 | `d0-d1, d1, d2-d1` | `g0, g0+g1, g1` | `m0+m1, m1+m2` |
//! | 3 | `d0-d2, d1+d2, d2-d1, d1-d3` | `g0, (g0+g1+g2)/2, (g0-g1+g2)/2, g2` | `m0+m1+m2, m1-m2-m3` |
//! | 2 | as above | `g0, (g0+g1)/2, (g0-g1)/2, g1` | `m0+m1+m2, m1-m2, m1+m2-m3` |
//!
//! Each of two results depends only on the data that its own taps read. Its error scales with those
//! data, and non-finite values do not spread to other results. Of three results, the first and the
//! last depend on one more value.
//!
//! A short tile has two of the three results. It reads `d0, d1, d1, d2`, so that the value at -1 is zero, and its results
//! are the first and the third.
//!
//! A tile of rows and columns is transformed along both axes. Along an axis of one tap, it has one
//! result of one product.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use crate::compute::Compute;
use crate::kernel::gemm_tile::Start;
use crate::kernel::tile_data::{PointStrides, TileData, distances, is_zero};
use crate::simd::vector::Vector;

/// The most taps along an axis.
pub(crate) const MOST_TAPS: usize = 3;

/// The most points along an axis.
const MOST_POINTS: usize = 4;

/// The values that a short tile of three results reads along an axis.
const SHORT_READS: [usize; MOST_POINTS] = [0, 1, 1, 2];

/// The point of a tile of three results along an axis that is zero if the tile is short.
pub(super) const ZERO_IF_SHORT: usize = 2;

/// A tile's taps and results along an axis. The transforms below are generic over their index here.
const AXES: [(usize, usize); 4] = [(1, 1), (2, 2), (3, 2), (2, 3)];

/// The index in [`AXES`] of an axis of `taps` taps, of a tile of `results` results along axes of
/// several taps.
pub(super) const fn axis_of(taps: usize, results: usize) -> usize {
    if taps == 2 && results == 3 { 3 } else { taps - 1 }
}

pub(super) const fn taps_of(axis: usize) -> usize {
    AXES[axis].0
}

const fn results_of(axis: usize) -> usize {
    AXES[axis].1
}

/// Products along an axis. Also the number of inputs that a tile reads.
pub(super) const fn points_of(axis: usize) -> usize {
    taps_of(axis) + results_of(axis) - 1
}

/// The offsets along each axis that a tile has for its results.
pub(super) const fn offsets_of(rows: usize, columns: usize) -> usize {
    if results_of(rows) == 3 || results_of(columns) == 3 { 3 } else { 2 }
}

/// # Safety
/// The CPU has `V`'s instruction set. The assertions of `TileTransforms::data` hold.
#[inline(always)]
pub(crate) unsafe fn transform_data<V: Vector, const RY: usize, const RX: usize>(
    data: &TileData<V::Lane>,
    to: &mut [V::Lane],
    strides: PointStrides,
) {
    let (rows, columns) = (points_of(RY), points_of(RX));
    let down = distances(data.steps.0, data.short.0, SHORT_READS);
    let along = distances(data.steps.1, data.short.1, SHORT_READS);
    for (tile, start) in data.starts.iter().enumerate() {
        for c in (0..data.channels).step_by(V::LANES) {
            let from = data.pixels.as_ptr().wrapping_add(start + c);
            let to = to.as_mut_ptr().wrapping_add(tile * strides.tile + c);
            // SAFETY: this function's contract.
            unsafe {
                let mut d = [[V::splat(V::Lane::ZERO); MOST_POINTS]; MOST_POINTS];
                for i in 0..rows {
                    for j in 0..columns {
                        d[i][j] = V::load(from.wrapping_add(down[i] + along[j]));
                    }
                    d[i] = of_data::<V, RX>(d[i]);
                }
                for j in 0..columns {
                    let column = of_data::<V, RY>(std::array::from_fn(|i| d[i][j]));
                    for i in 0..rows {
                        column[i].store(to.wrapping_add((i * columns + j) * strides.point));
                    }
                }
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. The assertions of `TileTransforms::filter` hold.
#[inline(always)]
pub(crate) unsafe fn transform_filter<V: Vector, const RY: usize, const RX: usize>(
    taps: &[&[V::Lane]],
    to: &mut [V::Lane],
    point: usize,
) {
    let (rows, columns) = (points_of(RY), points_of(RX));
    let len = taps.first().map_or(0, |tap| tap.len());
    for at in (0..len).step_by(V::LANES) {
        let to = to.as_mut_ptr().wrapping_add(at);
        // SAFETY: this function's contract.
        unsafe {
            let mut g = [[V::splat(V::Lane::ZERO); MOST_POINTS]; MOST_POINTS];
            for i in 0..taps_of(RY) {
                for j in 0..taps_of(RX) {
                    g[i][j] = V::load(taps.get_unchecked(i * taps_of(RX) + j).as_ptr().wrapping_add(at));
                }
                g[i] = of_filter::<V, RX>(g[i]);
            }
            for j in 0..columns {
                let column = of_filter::<V, RY>(std::array::from_fn(|i| g[i][j]));
                for i in 0..rows {
                    column[i].store(to.wrapping_add((i * columns + j) * point));
                }
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. The assertions of `TileTransforms::products` hold.
#[inline(always)]
pub(crate) unsafe fn transform_products<V: Vector, const RY: usize, const RX: usize>(
    products: &[V::Lane],
    strides: PointStrides,
    start: Start<V::Lane>,
    channels: usize,
    (offsets, _): (&[usize], usize),
    to: &mut [V::Lane],
) -> bool {
    let (rows, columns, pitch) = (points_of(RY), points_of(RX), offsets_of(RY, RX));
    let mut finite = true;
    for c in (0..channels).step_by(V::LANES) {
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let bias = match start {
                Start::Bias(bias) => V::load(bias.as_ptr().wrapping_add(c)),
                Start::Add => zero,
            };
            // A finite result times zero is zero. Any other is NaN.
            let mut zeros = zero;
            for (tile, offsets) in offsets.chunks_exact(pitch * pitch).enumerate() {
                let from = products.as_ptr().wrapping_add(tile * strides.tile + c);
                let mut m = [[zero; MOST_POINTS]; MOST_POINTS];
                for i in 0..rows {
                    for j in 0..columns {
                        m[i][j] = V::load(from.wrapping_add((i * columns + j) * strides.point));
                    }
                    m[i] = of_products::<V, RX>(m[i]);
                }
                for j in 0..results_of(RX) {
                    let column = of_products::<V, RY>(std::array::from_fn(|i| m[i][j]));
                    for i in 0..results_of(RY) {
                        let to = to.as_mut_ptr().wrapping_add(offsets.get_unchecked(i * pitch + j) + c);
                        let result = match start {
                            Start::Bias(_) => bias.plus(column[i]),
                            Start::Add => V::load(to).plus(column[i]),
                        };
                        zeros = zeros.mul_add(result, zero);
                        result.store(to);
                    }
                }
            }
            finite &= is_zero(zeros);
        }
    }
    finite
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn of_data<V: Vector, const R: usize>(d: [V; MOST_POINTS]) -> [V; MOST_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        match AXES[R] {
            (1, _) => d,
            (2, 2) => [d[0].minus(d[1]), d[1], d[2].minus(d[1]), d[3]],
            _ => [d[0].minus(d[2]), d[1].plus(d[2]), d[2].minus(d[1]), d[1].minus(d[3])],
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn of_filter<V: Vector, const R: usize>(g: [V; MOST_POINTS]) -> [V; MOST_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        let (zero, half) = (V::splat(V::Lane::ZERO), V::splat(V::Lane::HALF));
        let halved = |value: V| zero.mul_add(value, half);
        match AXES[R] {
            (1, _) => g,
            (2, 2) => [g[0], g[0].plus(g[1]), g[1], g[2]],
            (2, _) => [g[0], halved(g[0].plus(g[1])), halved(g[0].minus(g[1])), g[1]],
            _ => {
                let even = g[0].plus(g[2]);
                [g[0], halved(even.plus(g[1])), halved(even.minus(g[1])), g[2]]
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn of_products<V: Vector, const R: usize>(m: [V; MOST_POINTS]) -> [V; MOST_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        match AXES[R] {
            (1, _) => m,
            (2, 2) => [m[0].plus(m[1]), m[1].plus(m[2]), m[2], m[3]],
            (2, _) => {
                let even = m[1].plus(m[2]);
                [m[0].plus(even), m[1].minus(m[2]), even.minus(m[3]), m[3]]
            }
            _ => [m[0].plus(m[1]).plus(m[2]), m[1].minus(m[2]).minus(m[3]), m[2], m[3]],
        }
    }
}
