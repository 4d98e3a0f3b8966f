//! Cyclic tiles: four results of three taps along both axes. The code holds for other numbers.
//!
//! `M` adjacent results of three taps are a cyclic correlation of `dM, d1, .., d(M-1)` with the taps,
//! and two corrections: `(d0-dM)·g0` in the first result and `(d(M+1)-d1)·g2` in the last. The cyclic
//! correlation is a product of Fourier transforms at the `M`-th roots of unity. Of four results, these
//! are the points 1, -1 and i. With `s = d2+d4` and `t = d1+d3`:
//!
//! | | values: two corrections, 1, -1, and the real and imaginary part at i |
//! |---|---|
//! | data | `d0-d4, s+t, s-t, d5-d1, d4-d2, d1-d3` |
//! | filter | `g0, (g0+g2+g1)/4, (g0+g2-g1)/4, g2, (g0-g2)/2, -g1/2` |
//! | results of products `m0, m1, m2, m3, re, im` | `m1+m2+re+m0, m1-m2+im, m1+m2-re, m1-m2-im+m3` |
//!
//! Only additions and powers of two are involved, which keeps the errors near those of a direct
//! sum. `R` values along an axis are real: the first correction, those at 1 and at -1 if that is a root, and the last
//! correction. `C` complex ones follow, one for each pair of conjugate roots.
//!
//! In two dimensions, `R·R` values are real. `2·R·C` are complex along one axis. Those that are
//! complex along both axes are two complex numbers each for data and filter: `rr-ii + i(ri+ir)` and
//! `rr+ii + i(ir-ri)`. A complex product `(a+ib)(c+id)` is three real ones: `c(a+b)`, `a(d-c)` and
//! `b(c+d)`. That makes `R·R + 6·R·C + 6·C·C` products: 46 for 16 results of 9 taps.
//!
//! Every result depends on all data of its tile. Its error scales with the largest of them, and
//! non-finite values spread over the tile.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use crate::compute::Compute;
use crate::kernel::gemm_tile::Start;
use crate::kernel::tile_data::{PointStrides, TileData, is_zero};
use crate::kernel::winograd::MOST_TAPS;
use crate::simd::vector::Vector;

/// The numbers of results along an axis.
pub(crate) const CYCLIC_RESULTS: [usize; 1] = [4];

/// The real and the complex values along an axis of a tile.
const fn real_and_complex(results: usize) -> (usize, usize) {
    // Both corrections, and the roots 1 and, of an even number of results, -1.
    let real = if results.is_multiple_of(2) { 4 } else { 3 };
    (real, (results + 2 - real) / 2)
}

/// The products of a tile.
pub(super) const fn cyclic_points(results: usize) -> usize {
    let (real, complex) = real_and_complex(results);
    real * real + 6 * complex * (real + complex)
}

/// Values along an axis of a transformed tile. Also the number of inputs that it reads.
pub(super) const fn cyclic_values(results: usize) -> usize {
    results + MOST_TAPS - 1
}

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

/// Whether the weights of a point can differ from zero, where the third tap along rows, or along
/// columns, may be missing. It alone makes the last real value.
pub(super) const fn cyclic_point_is_used(results: usize, point: usize, (rows, columns): (bool, bool)) -> bool {
    let (real, complex) = real_and_complex(results);
    let last_tap = real - 1;
    let (along, down, both) = (real * real, real * (real + 3 * complex), real * (real + 6 * complex));
    if point < along {
        (rows || point / real != last_tap) && (columns || point % real != last_tap)
    } else if point < down {
        rows || (point - along) / (3 * complex) != last_tap
    } else {
        columns || point >= both || (point - down) / 3 % real != last_tap
    }
}

/// The transforms of a tile of so many results along an axis.
pub(super) trait CyclicAxis<V, const RESULTS: usize, const VALUES: usize> {
    /// # Safety
    /// The CPU has `V`'s instruction set.
    unsafe fn data(d: [V; VALUES]) -> [V; VALUES];

    /// # Safety
    /// The CPU has `V`'s instruction set.
    unsafe fn filter(g: [V; MOST_TAPS]) -> [V; VALUES];

    /// # Safety
    /// The CPU has `V`'s instruction set.
    unsafe fn results(m: [V; VALUES]) -> [V; RESULTS];
}

/// The roots of unity, as many as a tile has results along an axis.
pub(super) struct Roots<const RESULTS: usize>;

/// Stores the points of the data of a tile, or of its filter, from the values along both axes.
///
/// # Safety
/// The CPU has `V`'s instruction set. `to` has room for a vector at each multiple of `stride`.
#[inline(always)]
unsafe fn store_points<V: Vector, const FILTER: bool, const RESULTS: usize, const VALUES: usize>(
    t: &[[V; VALUES]; VALUES],
    to: *mut V::Lane,
    stride: usize,
) {
    let (real, complex) = const { real_and_complex(RESULTS) };
    let (along, down, both) = (real * real, real * (real + 3 * complex), real * (real + 6 * complex));
    // SAFETY: this function's contract.
    unsafe {
        for i in 0..real {
            for j in 0..real {
                t[i][j].store(to.wrapping_add((i * real + j) * stride));
            }
            for k in 0..complex {
                let (re, im) = (real + 2 * k, real + 2 * k + 1);
                let point = to.wrapping_add((along + 3 * (i * complex + k)) * stride);
                store_complex::<V, FILTER>(t[i][re], t[i][im], point, stride);
                let point = to.wrapping_add((down + 3 * (k * real + i)) * stride);
                store_complex::<V, FILTER>(t[re][i], t[im][i], point, stride);
            }
        }
        for k in 0..complex {
            for l in 0..complex {
                let (row, column) = (real + 2 * k, real + 2 * l);
                let ([rr, ri], [ir, ii]) =
                    ([t[row][column], t[row][column + 1]], [t[row + 1][column], t[row + 1][column + 1]]);
                let point = to.wrapping_add((both + 6 * (k * complex + l)) * stride);
                // the inverse of the values that are complex along both axes halves them
                let same = (halved::<V, FILTER>(rr.minus(ii)), halved::<V, FILTER>(ri.plus(ir)));
                store_complex::<V, FILTER>(same.0, same.1, point, stride);
                let opposite = (halved::<V, FILTER>(rr.plus(ii)), halved::<V, FILTER>(ir.minus(ri)));
                store_complex::<V, FILTER>(opposite.0, opposite.1, point.wrapping_add(3 * stride), stride);
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn halved<V: Vector, const FILTER: bool>(value: V) -> V {
    // SAFETY: this function's contract.
    unsafe { if FILTER { times(value, V::splat(V::Lane::HALF)) } else { value } }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn times<V: Vector>(value: V, factor: V) -> V {
    // SAFETY: this function's contract.
    unsafe { V::splat(V::Lane::ZERO).mul_add(value, factor) }
}

/// Stores the three points of a complex number.
///
/// # Safety
/// As [`store_points`].
#[inline(always)]
unsafe fn store_complex<V: Vector, const FILTER: bool>(re: V, im: V, to: *mut V::Lane, stride: usize) {
    // SAFETY: this function's contract.
    unsafe {
        let three = if FILTER { complex_filter(re, im) } else { complex_data(re, im) };
        for p in 0..3 {
            three[p].store(to.wrapping_add(p * stride));
        }
    }
}

/// # Safety
/// As [`transform_data`](crate::kernel::winograd::transform_data).
#[inline(always)]
pub(crate) unsafe fn transform_cyclic_data<V: Vector, const RESULTS: usize, const VALUES: usize>(
    data: &TileData<V::Lane>,
    to: &mut [V::Lane],
    strides: PointStrides,
) where
    Roots<RESULTS>: CyclicAxis<V, RESULTS, VALUES>,
{
    for (tile, start) in data.starts.iter().enumerate() {
        for c in (0..data.channels).step_by(V::LANES) {
            let from = data.pixels.as_ptr().wrapping_add(start + c);
            let to = to.as_mut_ptr().wrapping_add(tile * strides.tile + c);
            // SAFETY: this function's contract.
            unsafe {
                let mut d = [[V::splat(V::Lane::ZERO); VALUES]; VALUES];
                for i in 0..VALUES {
                    for j in 0..VALUES {
                        d[i][j] = V::load(from.wrapping_add(i * data.steps.0 + j * data.steps.1));
                    }
                    d[i] = Roots::<RESULTS>::data(d[i]);
                }
                for j in 0..VALUES {
                    let column = Roots::<RESULTS>::data(std::array::from_fn(|i| d[i][j]));
                    for i in 0..VALUES {
                        d[i][j] = column[i];
                    }
                }
                store_points::<V, false, RESULTS, VALUES>(&d, to, strides.point);
            }
        }
    }
}

/// # Safety
/// As [`transform_filter`](crate::kernel::winograd::transform_filter).
#[inline(always)]
pub(crate) unsafe fn transform_cyclic_filter<V: Vector, const RESULTS: usize, const VALUES: usize>(
    taps: &[&[V::Lane]],
    to: &mut [V::Lane],
    point: usize,
) where
    Roots<RESULTS>: CyclicAxis<V, RESULTS, VALUES>,
{
    let len = taps.first().map_or(0, |tap| tap.len());
    for at in (0..len).step_by(V::LANES) {
        let to = to.as_mut_ptr().wrapping_add(at);
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let mut rows = [[zero; VALUES]; MOST_TAPS];
            for i in 0..MOST_TAPS {
                let row =
                    std::array::from_fn(|j| V::load(taps.get_unchecked(i * MOST_TAPS + j).as_ptr().wrapping_add(at)));
                rows[i] = Roots::<RESULTS>::filter(row);
            }
            let mut g = [[zero; VALUES]; VALUES];
            for j in 0..VALUES {
                let column = Roots::<RESULTS>::filter(std::array::from_fn(|i| rows[i][j]));
                for i in 0..VALUES {
                    g[i][j] = column[i];
                }
            }
            store_points::<V, true, RESULTS, VALUES>(&g, to, point);
        }
    }
}

/// # Safety
/// As [`transform_products`](crate::kernel::winograd::transform_products).
#[inline(always)]
pub(crate) unsafe fn transform_cyclic_products<V: Vector, const RESULTS: usize, const VALUES: usize>(
    products: &[V::Lane],
    strides: PointStrides,
    start: Start<V::Lane>,
    channels: usize,
    (offsets, _): (&[usize], usize),
    to: &mut [V::Lane],
) -> bool
where
    Roots<RESULTS>: CyclicAxis<V, RESULTS, VALUES>,
{
    let (real, complex) = const { real_and_complex(RESULTS) };
    let (along, down, both) = (real * real, real * (real + 3 * complex), real * (real + 6 * complex));
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
            for (tile, offsets) in offsets.chunks_exact(RESULTS * RESULTS).enumerate() {
                let from = products.as_ptr().wrapping_add(tile * strides.tile + c);
                let mut rows = [[zero; RESULTS]; VALUES];
                for i in 0..real {
                    let mut m = [zero; VALUES];
                    for j in 0..real {
                        m[j] = V::load(from.wrapping_add((i * real + j) * strides.point));
                    }
                    for k in 0..complex {
                        let point = along + 3 * (i * complex + k);
                        [m[real + 2 * k], m[real + 2 * k + 1]] = load_product(from, point, strides.point);
                    }
                    rows[i] = Roots::<RESULTS>::results(m);
                }
                for k in 0..complex {
                    let (mut re, mut im) = ([zero; VALUES], [zero; VALUES]);
                    for i in 0..real {
                        [re[i], im[i]] = load_product(from, down + 3 * (k * real + i), strides.point);
                    }
                    for l in 0..complex {
                        let point = both + 6 * (k * complex + l);
                        let same = load_product::<V>(from, point, strides.point);
                        let opposite = load_product::<V>(from, point + 3, strides.point);
                        re[real + 2 * l] = same[0].plus(opposite[0]);
                        im[real + 2 * l + 1] = opposite[0].minus(same[0]);
                        im[real + 2 * l] = same[1].plus(opposite[1]);
                        re[real + 2 * l + 1] = same[1].minus(opposite[1]);
                    }
                    rows[real + 2 * k] = Roots::<RESULTS>::results(re);
                    rows[real + 2 * k + 1] = Roots::<RESULTS>::results(im);
                }
                for j in 0..RESULTS {
                    let column = Roots::<RESULTS>::results(std::array::from_fn(|i| rows[i][j]));
                    for i in 0..RESULTS {
                        let to = to.as_mut_ptr().wrapping_add(offsets[i * RESULTS + j] + c);
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

/// Loads the three real products of a complex one and returns its real and imaginary part.
///
/// # Safety
/// The CPU has `V`'s instruction set. A vector is readable at three points from `point` on.
#[inline(always)]
unsafe fn load_product<V: Vector>(from: *const V::Lane, point: usize, stride: usize) -> [V; 2] {
    // SAFETY: this function's contract.
    unsafe {
        let from = from.wrapping_add(point * stride);
        complex_product([V::load(from), V::load(from.wrapping_add(stride)), V::load(from.wrapping_add(2 * stride))])
    }
}

impl<V: Vector> CyclicAxis<V, 4, 6> for Roots<4> {
    #[inline(always)]
    unsafe fn data(d: [V; 6]) -> [V; 6] {
        // SAFETY: this function's contract.
        unsafe {
            let (s, t) = (d[2].plus(d[4]), d[1].plus(d[3]));
            [d[0].minus(d[4]), s.plus(t), s.minus(t), d[5].minus(d[1]), d[4].minus(d[2]), d[1].minus(d[3])]
        }
    }

    #[inline(always)]
    unsafe fn filter(g: [V; MOST_TAPS]) -> [V; 6] {
        // SAFETY: this function's contract.
        unsafe {
            let (zero, half) = (V::splat(V::Lane::ZERO), V::splat(V::Lane::HALF));
            let (even, odd) = (times(times(g[0].plus(g[2]), half), half), times(times(g[1], half), half));
            let (re, im) = (times(g[0].minus(g[2]), half), zero.minus(times(g[1], half)));
            [g[0], even.plus(odd), even.minus(odd), g[2], re, im]
        }
    }

    #[inline(always)]
    unsafe fn results(m: [V; 6]) -> [V; 4] {
        // SAFETY: this function's contract.
        unsafe {
            let (s, t) = (m[1].plus(m[2]), m[1].minus(m[2]));
            [s.plus(m[4]).plus(m[0]), t.plus(m[5]), s.minus(m[4]), t.minus(m[5]).plus(m[3])]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_those_of_the_table() {
        assert_eq!([4, 6, 7, 8].map(cyclic_points), [46, 88, 117, 142]);
    }
}
