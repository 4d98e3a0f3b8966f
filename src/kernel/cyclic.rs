//! Cyclic tiles: four, seven or eight results of three taps along both axes.
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
//! sum. Of seven and eight results, the cosines and sines of the roots are involved. `R` values
//! along an axis are real: the first correction, those at 1 and at -1 if that is a root, and the last
//! correction. `C` complex ones follow, one for each pair of conjugate roots.
//!
//! In two dimensions, `R·R` values are real. `2·R·C` are complex along one axis. Those that are
//! complex along both axes are two complex numbers each for data and filter: `rr-ii + i(ri+ir)` and
//! `rr+ii + i(ir-ri)`. A complex product `(a+ib)(c+id)` is three real ones: `c(a+b)`, `a(d-c)` and
//! `b(c+d)`. That makes `R·R + 6·R·C + 6·C·C` products:
//!
//! | results | `R` | `C` | products | per result |
//! |---|---|---|---|---|
//! | 4×4 | 4 | 1 | 46 | 2.9 |
//! | 7×7 | 3 | 3 | 117 | 2.4 |
//! | 8×8 | 4 | 3 | 142 | 2.2 |
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
use std::f64::consts::FRAC_1_SQRT_2;

/// The numbers of results along an axis.
pub(crate) const CYCLIC_RESULTS: [usize; 3] = [4, 7, 8];

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

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn constant<V: Vector>(value: f64) -> V {
    // SAFETY: this function's contract.
    unsafe { V::splat(V::Lane::of_constant(value)) }
}

impl<V: Vector> CyclicAxis<V, 8, 10> for Roots<8> {
    #[inline(always)]
    unsafe fn data(d: [V; 10]) -> [V; 10] {
        // SAFETY: this function's contract.
        unsafe {
            let (root, less) = (constant(FRAC_1_SQRT_2), constant(-FRAC_1_SQRT_2));
            let even = [d[8].plus(d[4]), d[1].plus(d[5]), d[2].plus(d[6]), d[3].plus(d[7])];
            let odd = [d[8].minus(d[4]), d[1].minus(d[5]), d[2].minus(d[6]), d[3].minus(d[7])];
            let (s, t) = (even[0].plus(even[2]), even[1].plus(even[3]));
            let (u, v) = (odd[1].minus(odd[3]), odd[1].plus(odd[3]));
            let minus = V::splat(V::Lane::ZERO).minus(odd[2]);
            [
                d[0].minus(d[8]),
                s.plus(t),
                s.minus(t),
                d[9].minus(d[1]),
                odd[0].mul_add(u, root),
                odd[2].mul_add(v, root),
                even[0].minus(even[2]),
                even[1].minus(even[3]),
                odd[0].mul_add(u, less),
                minus.mul_add(v, root),
            ]
        }
    }

    #[inline(always)]
    unsafe fn filter(g: [V; MOST_TAPS]) -> [V; 10] {
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let (eighth, quarter) = (constant(0.125), constant(0.25));
            let (root, less) = (constant(FRAC_1_SQRT_2 / 4.0), constant(-FRAC_1_SQRT_2 / 4.0));
            let (s, t) = (times(g[0].plus(g[2]), eighth), times(g[1], eighth));
            let (first, last) = (times(g[0], quarter), times(g[2], quarter));
            [
                g[0],
                s.plus(t),
                s.minus(t),
                g[2],
                first.mul_add(g[1], root),
                zero.minus(last).mul_add(g[1], less),
                times(g[0].minus(g[2]), quarter),
                zero.minus(times(g[1], quarter)),
                first.mul_add(g[1], less),
                last.mul_add(g[1], less),
            ]
        }
    }

    #[inline(always)]
    unsafe fn results(m: [V; 10]) -> [V; 8] {
        // SAFETY: this function's contract.
        unsafe {
            let (root, less) = (constant(FRAC_1_SQRT_2), constant(-FRAC_1_SQRT_2));
            let (s, t) = (m[1].plus(m[2]), m[1].minus(m[2]));
            let even = [s.plus(m[6]), t.plus(m[7]), s.minus(m[6]), t.minus(m[7])];
            let (u, v) = (m[4].minus(m[8]), m[5].plus(m[9]));
            let odd = [m[4].plus(m[8]), u.plus(v), m[5].minus(m[9]), v.minus(u)];
            [
                even[0].plus(odd[0]).plus(m[0]),
                even[1].mul_add(odd[1], root),
                even[2].plus(odd[2]),
                even[3].mul_add(odd[3], root),
                even[0].minus(odd[0]),
                even[1].mul_add(odd[1], less),
                even[2].minus(odd[2]),
                even[3].mul_add(odd[3], less).plus(m[3]),
            ]
        }
    }
}

/// The cosines and the sines of one, two and three sevenths of a turn.
const COSINES: [f64; 3] = [0.623_489_801_858_733_5, -0.222_520_933_956_314_4, -0.900_968_867_902_419_1];
const SINES: [f64; 3] = [0.781_831_482_468_029_8, 0.974_927_912_181_823_6, 0.433_883_739_117_558_1];

/// The cosine and the sine of `k` sevenths of a turn, times a factor.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn seventh<V: Vector>(k: usize, factor: f64) -> (V, V) {
    let at = [6, 0, 1, 2, 2, 1, 0][k % 7];
    let (cosine, sine) = if at == 6 { (1.0, 0.0) } else { (COSINES[at], SINES[at]) };
    let sine = if k % 7 > 3 { -sine } else { sine };
    // SAFETY: this function's contract.
    unsafe { (constant(factor * cosine), constant(factor * sine)) }
}

impl<V: Vector> CyclicAxis<V, 7, 9> for Roots<7> {
    #[inline(always)]
    unsafe fn data(d: [V; 9]) -> [V; 9] {
        // SAFETY: this function's contract.
        unsafe {
            let plus = [d[1].plus(d[6]), d[2].plus(d[5]), d[3].plus(d[4])];
            let minus = [d[1].minus(d[6]), d[2].minus(d[5]), d[3].minus(d[4])];
            let whole = d[7].plus(plus[0]).plus(plus[1].plus(plus[2]));
            let mut values = [d[0].minus(d[7]), whole, d[8].minus(d[1]), whole, whole, whole, whole, whole, whole];
            for k in 1..4 {
                let (mut re, mut im) = (d[7], V::splat(V::Lane::ZERO));
                for n in (1..4).rev() {
                    let (cosine, sine) = seventh(k * n, 1.0);
                    re = re.mul_add(plus[n - 1], cosine);
                    im = im.mul_add(minus[n - 1], sine);
                }
                (values[1 + 2 * k], values[2 + 2 * k]) = (re, im);
            }
            values
        }
    }

    #[inline(always)]
    unsafe fn filter(g: [V; MOST_TAPS]) -> [V; 9] {
        // SAFETY: this function's contract.
        unsafe {
            let whole = times(g[0].plus(g[2]).plus(g[1]), constant(1.0 / 7.0));
            let first = times(g[0], constant(2.0 / 7.0));
            let mut values = [g[0], whole, g[2], whole, whole, whole, whole, whole, whole];
            for k in 1..4 {
                let (of_one, of_two) = (seventh::<V>(k, 2.0 / 7.0), seventh::<V>(2 * k, 2.0 / 7.0));
                // conjugated
                let im = times(g[2], of_two.1).mul_add(g[1], of_one.1);
                values[1 + 2 * k] = first.mul_add(g[2], of_two.0).mul_add(g[1], of_one.0);
                values[2 + 2 * k] = V::splat(V::Lane::ZERO).minus(im);
            }
            values
        }
    }

    #[inline(always)]
    unsafe fn results(m: [V; 9]) -> [V; 7] {
        // SAFETY: this function's contract.
        unsafe {
            let whole = m[1].plus(m[3]).plus(m[5].plus(m[7])).plus(m[0]);
            let mut results = [whole; 7];
            for n in 1..4 {
                let (mut even, mut odd) = (m[1], V::splat(V::Lane::ZERO));
                for k in (1..4).rev() {
                    let (cosine, sine) = seventh(k * n, 1.0);
                    even = even.mul_add(m[1 + 2 * k], cosine);
                    odd = odd.mul_add(m[2 + 2 * k], sine);
                }
                (results[n], results[7 - n]) = (even.plus(odd), even.minus(odd));
            }
            results[6] = results[6].plus(m[2]);
            results
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_are_those_of_their_angles() {
        for (k, (cosine, sine)) in (1..).zip(COSINES.into_iter().zip(SINES)) {
            let angle = std::f64::consts::TAU * k as f64 / 7.0;
            assert!((cosine - angle.cos()).abs() < 1e-15 && (sine - angle.sin()).abs() < 1e-15, "{k}");
        }
    }

    #[test]
    fn points_are_those_of_the_table() {
        assert_eq!(CYCLIC_RESULTS.map(cyclic_points), [46, 117, 142]);
    }
}
