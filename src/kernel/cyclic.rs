//! Cyclic tiles: four results of three taps along both axes.
//!
//! Four adjacent results of three taps are a cyclic correlation of `d4, d1, d2, d3` with the taps,
//! and two corrections: `(d0-d4)·g0` in the first result and `(d5-d1)·g2` in the last. The cyclic
//! correlation is a product of Fourier transforms at the points 1, -1 and i. With `s = d2+d4` and
//! `t = d1+d3`:
//!
//! | | values: two corrections, 1, -1, and the real and imaginary part at i |
//! |---|---|
//! | data | `d0-d4, s+t, s-t, d5-d1, d4-d2, d1-d3` |
//! | filter | `g0, (g0+g2+g1)/4, (g0+g2-g1)/4, g2, (g0-g2)/2, -g1/2` |
//! | results of products `m0, m1, m2, m3, re, im` | `m1+m2+re+m0, m1-m2+im, m1+m2-re, m1-m2-im+m3` |
//!
//! Only additions and powers of two are involved, which keeps the errors near those of a direct
//! sum. In two dimensions, 16 values are real. 8 are complex along one axis. Those that are complex
//! along both axes are two complex numbers each for data and filter: `rr-ii + i(ri+ir)` and `rr+ii
//! + i(ir-ri)`. A complex product `(a+ib)(c+id)` is three real ones: `c(a+b)`, `a(d-c)` and
//! `b(c+d)`. That makes 16 + 8·3 + 2·3 = 46 products for 16 results of 9 taps.
//!
//! A short tile has two of the four results. It reads `d0, d1, d2, d1, d2, d3`, so that the values at i are zero, and its
//! results are the first and the last.
//!
//! Every result depends on all data of its tile. Its error scales with the largest of them, and
//! non-finite values spread over the tile.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use crate::compute::Compute;
use crate::kernel::gemm_tile::Start;
use crate::kernel::tile_data::{PointStrides, TileData, distances, is_zero};
use crate::kernel::winograd::MOST_TAPS;
use crate::simd::vector::Vector;

/// The results along an axis.
pub(crate) const CYCLIC_RESULTS: usize = 4;

/// The products of a tile.
pub(super) const CYCLIC_POINTS: usize = 46;

/// Values along an axis of a transformed tile. Also the number of inputs that it reads.
pub(super) const CYCLIC_VALUES: usize = MOST_TAPS + CYCLIC_RESULTS - 1;

/// The values that a short tile reads along an axis.
const SHORT_READS: [usize; CYCLIC_VALUES] = [0, 1, 2, 1, 2, 3];

/// The three real numbers whose products with those of [`complex_filter`] make a complex product.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn complex_data<V: Vector>(re: V, im: V) -> [V; 3] {
    // SAFETY: this function's contract.
    unsafe { [re.plus(im), re, im] }
}

/// See [`complex_data`].
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn complex_filter<V: Vector>(re: V, im: V) -> [V; 3] {
    // SAFETY: this function's contract.
    unsafe { [re, im.minus(re), re.plus(im)] }
}

/// The real and imaginary part of a complex product.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn complex_product<V: Vector>(m: [V; 3]) -> [V; 2] {
    // SAFETY: this function's contract.
    unsafe { [m[0].minus(m[2]), m[0].plus(m[1])] }
}

/// The real values of a cyclic tile along an axis. A complex one follows.
const REAL: usize = CYCLIC_VALUES - 2;

/// Whether the weights of a point can differ from zero, where the third tap along rows, or along
/// columns, may be missing. It alone makes the values at [`LAST_TAP`].
pub(super) const fn cyclic_point_is_used(point: usize, (rows, columns): (bool, bool)) -> bool {
    let (along, down, both) = (REAL * REAL, REAL * (REAL + 3), REAL * (REAL + 6));
    if point < along {
        (rows || point / REAL != LAST_TAP) && (columns || point % REAL != LAST_TAP)
    } else if point < down {
        rows || (point - along) / 3 != LAST_TAP
    } else {
        columns || point >= both || (point - down) / 3 != LAST_TAP
    }
}

/// Whether a point is of values that are complex along rows, and along columns. Those of short tiles are zero.
pub(super) const fn is_complex(point: usize) -> (bool, bool) {
    let (along, down, both) = (REAL * REAL, REAL * (REAL + 3), REAL * (REAL + 6));
    (point >= down, point >= along && (point < down || point >= both))
}

/// The value of a cyclic tile's filter, along an axis, that is the last tap.
const LAST_TAP: usize = 3;

/// The points of the data of a tile, or of its filter, from the values along both axes.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn cyclic_points<V: Vector, const FILTER: bool>(t: &[[V; CYCLIC_VALUES]; CYCLIC_VALUES]) -> [V; CYCLIC_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        let (zero, half) = (V::splat(V::Lane::ZERO), V::splat(V::Lane::HALF));
        let complex = |re: V, im: V| if FILTER { complex_filter(re, im) } else { complex_data(re, im) };
        // the inverse of the values that are complex along both axes halves them
        let halved = |value: V| if FILTER { zero.mul_add(value, half) } else { value };
        let mut points = [zero; CYCLIC_POINTS];
        for i in 0..REAL {
            for j in 0..REAL {
                points[i * REAL + j] = t[i][j];
            }
            let (along, down) = (complex(t[i][REAL], t[i][REAL + 1]), complex(t[REAL][i], t[REAL + 1][i]));
            for p in 0..3 {
                points[REAL * REAL + 3 * i + p] = along[p];
                points[REAL * (REAL + 3) + 3 * i + p] = down[p];
            }
        }
        let ([rr, ri], [ir, ii]) = ([t[REAL][REAL], t[REAL][REAL + 1]], [t[REAL + 1][REAL], t[REAL + 1][REAL + 1]]);
        let same = complex(halved(rr.minus(ii)), halved(ri.plus(ir)));
        let opposite = complex(halved(rr.plus(ii)), halved(ir.minus(ri)));
        for p in 0..3 {
            points[CYCLIC_POINTS - 6 + p] = same[p];
            points[CYCLIC_POINTS - 3 + p] = opposite[p];
        }
        points
    }
}

/// # Safety
/// As [`transform_data`](crate::kernel::winograd::transform_data).
#[inline(always)]
pub(crate) unsafe fn transform_cyclic_data<V: Vector>(
    data: &TileData<V::Lane>,
    to: &mut [V::Lane],
    strides: PointStrides,
) {
    let down = distances(data.steps.0, data.short.0, SHORT_READS);
    let along = distances(data.steps.1, data.short.1, SHORT_READS);
    for (tile, start) in data.starts.iter().enumerate() {
        for c in (0..data.channels).step_by(V::LANES) {
            let from = data.pixels.as_ptr().wrapping_add(start + c);
            let to = to.as_mut_ptr().wrapping_add(tile * strides.tile + c);
            // SAFETY: this function's contract.
            unsafe {
                let mut d = [[V::splat(V::Lane::ZERO); CYCLIC_VALUES]; CYCLIC_VALUES];
                for i in 0..CYCLIC_VALUES {
                    for j in 0..CYCLIC_VALUES {
                        d[i][j] = V::load(from.wrapping_add(down[i] + along[j]));
                    }
                    d[i] = cyclic_data(d[i]);
                }
                for j in 0..CYCLIC_VALUES {
                    let column = cyclic_data(std::array::from_fn(|i| d[i][j]));
                    for i in 0..CYCLIC_VALUES {
                        d[i][j] = column[i];
                    }
                }
                let points = cyclic_points::<V, false>(&d);
                for p in 0..CYCLIC_POINTS {
                    points[p].store(to.wrapping_add(p * strides.point));
                }
            }
        }
    }
}

/// # Safety
/// As [`transform_filter`](crate::kernel::winograd::transform_filter).
#[inline(always)]
pub(crate) unsafe fn transform_cyclic_filter<V: Vector>(taps: &[&[V::Lane]], to: &mut [V::Lane], point: usize) {
    let len = taps.first().map_or(0, |tap| tap.len());
    for at in (0..len).step_by(V::LANES) {
        let to = to.as_mut_ptr().wrapping_add(at);
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let mut rows = [[zero; CYCLIC_VALUES]; MOST_TAPS];
            for i in 0..MOST_TAPS {
                let row =
                    std::array::from_fn(|j| V::load(taps.get_unchecked(i * MOST_TAPS + j).as_ptr().wrapping_add(at)));
                rows[i] = cyclic_filter(row);
            }
            let mut g = [[zero; CYCLIC_VALUES]; CYCLIC_VALUES];
            for j in 0..CYCLIC_VALUES {
                let column = cyclic_filter(std::array::from_fn(|i| rows[i][j]));
                for i in 0..CYCLIC_VALUES {
                    g[i][j] = column[i];
                }
            }
            let points = cyclic_points::<V, true>(&g);
            for p in 0..CYCLIC_POINTS {
                points[p].store(to.wrapping_add(p * point));
            }
        }
    }
}

/// # Safety
/// As [`transform_products`](crate::kernel::winograd::transform_products).
#[inline(always)]
pub(crate) unsafe fn transform_cyclic_products<V: Vector>(
    products: &[V::Lane],
    strides: PointStrides,
    start: Start<V::Lane>,
    channels: usize,
    (offsets, _): (&[usize], usize),
    to: &mut [V::Lane],
) -> bool {
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
            for (tile, offsets) in offsets.as_chunks::<{ CYCLIC_RESULTS * CYCLIC_RESULTS }>().0.iter().enumerate() {
                let from = products.as_ptr().wrapping_add(tile * strides.tile + c);
                let point = |p: usize| V::load(from.wrapping_add(p * strides.point));
                let three = |p: usize| [point(p), point(p + 1), point(p + 2)];
                let mut m = [[zero; CYCLIC_VALUES]; CYCLIC_VALUES];
                for i in 0..REAL {
                    for j in 0..REAL {
                        m[i][j] = point(i * REAL + j);
                    }
                    let along = complex_product(three(REAL * REAL + 3 * i));
                    let down = complex_product(three(REAL * (REAL + 3) + 3 * i));
                    for p in 0..2 {
                        m[i][REAL + p] = along[p];
                        m[REAL + p][i] = down[p];
                    }
                }
                let same = complex_product(three(CYCLIC_POINTS - 6));
                let opposite = complex_product(three(CYCLIC_POINTS - 3));
                m[REAL][REAL] = same[0].plus(opposite[0]);
                m[REAL + 1][REAL + 1] = opposite[0].minus(same[0]);
                m[REAL + 1][REAL] = same[1].plus(opposite[1]);
                m[REAL][REAL + 1] = same[1].minus(opposite[1]);
                let mut rows = [[zero; CYCLIC_RESULTS]; CYCLIC_VALUES];
                for i in 0..CYCLIC_VALUES {
                    rows[i] = cyclic_results(m[i]);
                }
                for j in 0..CYCLIC_RESULTS {
                    let column = cyclic_results(std::array::from_fn(|i| rows[i][j]));
                    for i in 0..CYCLIC_RESULTS {
                        let to = to.as_mut_ptr().wrapping_add(offsets[i * CYCLIC_RESULTS + j] + c);
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
unsafe fn cyclic_data<V: Vector>(d: [V; CYCLIC_VALUES]) -> [V; CYCLIC_VALUES] {
    // SAFETY: this function's contract.
    unsafe {
        let (s, t) = (d[2].plus(d[4]), d[1].plus(d[3]));
        [d[0].minus(d[4]), s.plus(t), s.minus(t), d[5].minus(d[1]), d[4].minus(d[2]), d[1].minus(d[3])]
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn cyclic_filter<V: Vector>(g: [V; MOST_TAPS]) -> [V; CYCLIC_VALUES] {
    // SAFETY: this function's contract.
    unsafe {
        let (zero, half) = (V::splat(V::Lane::ZERO), V::splat(V::Lane::HALF));
        let halved = |value: V| zero.mul_add(value, half);
        let (even, odd) = (halved(halved(g[0].plus(g[2]))), halved(halved(g[1])));
        [g[0], even.plus(odd), even.minus(odd), g[2], halved(g[0].minus(g[2])), zero.minus(halved(g[1]))]
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn cyclic_results<V: Vector>(m: [V; CYCLIC_VALUES]) -> [V; CYCLIC_RESULTS] {
    // SAFETY: this function's contract.
    unsafe {
        let (s, t) = (m[1].plus(m[2]), m[1].minus(m[2]));
        [s.plus(m[4]).plus(m[0]), t.plus(m[5]), s.minus(m[4]), t.minus(m[5]).plus(m[3])]
    }
}
