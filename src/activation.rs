//! Element-wise functions of results: branch-free loops over slices, which the compiler vectorises
//! for each instruction set.
//!
//! Bounds are applied by comparisons that keep NaN. The standard library's `max` and `min` would
//! drop it.

use std::hash::{Hash, Hasher};
use std::ops::{Add, Mul};

/// An element-wise function that a strategy applies to each run of results.
///
/// For all finite arguments, each value is within [`Activation::ULPS`] units in the last place of
/// its type, or within [`Activation::ERROR`], of the exact value, whichever allows more. f16 is
/// computed in f32 and rounded once. [`Activation::Gate`] rounds its product and its sum as they
/// are written.
///
/// NaN, the infinities and the sign of zero give the same results as onnxruntime's operators. NaN
/// stays NaN. Sigmoid and the hyperbolic tangent have their limits. Functions that multiply `x` by
/// a vanishing factor make NaN of minus infinity. Relu and Clip keep minus zero.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, value)`: Relu with zero, the lower half of Clip.
    Max(f32),
    /// `min(x, value)`: the upper half of Clip.
    Min(f32),
    /// `x` if it is positive, else `alpha·x`.
    LeakyRelu(f32),
    /// `x` if it is not negative, else `alpha·(exp(x) - 1)`.
    Elu(f32),
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x · clamp(x/6 + 1/2, 0, 1)`.
    HardSwish,
    /// `x · clamp(scale·x + shift, low, high)`, with `low <= high`: HardSwish as exporters
    /// decompose it, and similar functions.
    Gate {
        /// The value by which `x` is multiplied inside the clamp.
        scale: f32,
        /// The value added to that product.
        shift: f32,
        /// The least factor.
        low: f32,
        /// The largest factor.
        high: f32,
    },
    /// `x · sigmoid(x)`.
    Silu,
    /// `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    GeluTanh,
}

impl Activation {
    /// The largest error of a value in units in the last place: see [`Activation`].
    pub const ULPS: f64 = 4.0;
    /// The largest absolute error of a value, if that allows more: see [`Activation`].
    pub const ERROR: f64 = 1e-7;

    /// The least and the largest value, if the function is a maximum or a minimum and nothing else.
    ///
    /// A bound that is NaN bounds nothing.
    pub(crate) fn bounds(self) -> Option<[f32; 2]> {
        let [low, high] = match self {
            Activation::Max(low) => [low, f32::INFINITY],
            Activation::Min(high) => [f32::NEG_INFINITY, high],
            _ => return None,
        };
        Some([if low.is_nan() { f32::NEG_INFINITY } else { low }, if high.is_nan() { f32::INFINITY } else { high }])
    }

    /// A key for comparison and hashing, in which parameters count by their bits.
    fn key(self) -> (std::mem::Discriminant<Activation>, [u32; 4]) {
        let parameters = match self {
            Activation::Max(v) | Activation::Min(v) | Activation::LeakyRelu(v) | Activation::Elu(v) => {
                [v, 0.0, 0.0, 0.0]
            }
            Activation::Gate { scale, shift, low, high } => [scale, shift, low, high],
            _ => [0.0; 4],
        };
        (std::mem::discriminant(&self), parameters.map(f32::to_bits))
    }
}

impl PartialEq for Activation {
    fn eq(&self, other: &Activation) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Activation {}

impl Hash for Activation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state)
    }
}

/// Values that are computed together: as many as the widest vector has lanes.
const BLOCK: usize = 16;

/// A type in which activations are computed.
///
/// `FUSED` tells whether the instruction set has a fused multiply-add. Without one, the standard
/// library's `mul_add` is a slow call.
pub(crate) trait Real: Copy + Default + PartialOrd + Add<Output = Self> + Mul<Output = Self> {
    /// One sixth.
    const SIXTH: Self;
    /// Whether the functions below are free of calls, so that they are vectorised.
    const VECTORISED: bool;

    /// A parameter in this type.
    fn of(value: f32) -> Self;
    /// `exp(self)`. In f32, zero stands for results below the least normal number.
    fn exp<const FUSED: bool>(self) -> Self;
    /// `self` if it is not negative, else `alpha·(exp(self) - 1)`.
    fn elu<const FUSED: bool>(self, alpha: Self) -> Self;
    /// `1 / (1 + exp(-self))`.
    fn sigmoid<const FUSED: bool>(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh<const FUSED: bool>(self) -> Self;
    /// `self · sigmoid(self)`.
    fn silu<const FUSED: bool>(self) -> Self;
    /// `self` times the normal distribution function.
    fn gelu<const FUSED: bool>(self) -> Self;
    /// The approximation of [`Real::gelu`] by a hyperbolic tangent.
    fn gelu_tanh<const FUSED: bool>(self) -> Self;
}

/// `low` if `x` is less, else `x`.
#[inline(always)]
pub(crate) fn at_least<T: PartialOrd>(x: T, low: T) -> T {
    if low > x { low } else { x }
}

/// `high` if `x` is more, else `x`.
#[inline(always)]
pub(crate) fn at_most<T: PartialOrd>(x: T, high: T) -> T {
    if high < x { high } else { x }
}

/// Applies an activation to `count` runs of `size` values, `step` apart.
#[inline(always)]
pub(crate) fn activate<T: Real, const FUSED: bool>(
    activation: Activation,
    (count, size): (usize, usize),
    step: usize,
    values: &mut [T],
) {
    let runs = values.chunks_mut(step).take(count).map(|run| &mut run[..size]);
    match activation {
        Activation::Max(_) | Activation::Min(_) => {
            // Two comparisons, as a single one becomes a masked store, which is slower.
            let [low, high] = activation.bounds().unwrap_or([f32::NEG_INFINITY, f32::INFINITY]).map(T::of);
            each(runs, |x| at_most(at_least(x, low), high))
        }
        Activation::LeakyRelu(alpha) => {
            let (alpha, zero, one) = (T::of(alpha), T::of(0.0), T::of(1.0));
            // A choice between factors: for a choice between results, compilers emit masked stores.
            each(runs, |x| x * if x < zero { alpha } else { one })
        }
        Activation::HardSwish => {
            let [zero, three, six] = [0.0, 3.0, 6.0].map(T::of);
            each(runs, |x| x * (at_most(at_least(x + three, zero), six) * T::SIXTH))
        }
        Activation::Gate { scale, shift, low, high } => {
            let [scale, shift, low, high] = [scale, shift, low, high].map(T::of);
            each(runs, |x| x * at_most(at_least(x * scale + shift, low), high))
        }
        Activation::Elu(alpha) => {
            let alpha = T::of(alpha);
            each_in_blocks(runs, |x| x.elu::<FUSED>(alpha))
        }
        Activation::Sigmoid => each_in_blocks(runs, T::sigmoid::<FUSED>),
        Activation::Tanh => each_in_blocks(runs, T::tanh::<FUSED>),
        Activation::Silu => each_in_blocks(runs, T::silu::<FUSED>),
        Activation::Gelu => each_in_blocks(runs, T::gelu::<FUSED>),
        Activation::GeluTanh => each_in_blocks(runs, T::gelu_tanh::<FUSED>),
    }
}

/// Replaces each value by its exponential.
#[inline(always)]
pub(crate) fn exponentials<T: Real, const FUSED: bool>(run: &mut [T]) {
    each_in_blocks(std::iter::once(run), T::exp::<FUSED>)
}

/// Applies a function to each value of runs.
#[inline(always)]
fn each<'a, T: Real + 'a>(runs: impl Iterator<Item = &'a mut [T]>, function: impl Fn(T) -> T) {
    runs.for_each(|run| run.iter_mut().for_each(|x| *x = function(*x)))
}

/// As [`each`], in blocks of fixed size: functions of many steps are vectorised only so.
#[inline(always)]
fn each_in_blocks<'a, T: Real + 'a>(runs: impl Iterator<Item = &'a mut [T]>, function: impl Fn(T) -> T) {
    if !T::VECTORISED {
        return each(runs, function);
    }
    for run in runs {
        let (blocks, rest) = run.as_chunks_mut::<BLOCK>();
        for block in blocks {
            block.iter_mut().for_each(|x| *x = function(*x));
        }
        if !rest.is_empty() {
            let mut block = [T::default(); BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            block.iter_mut().for_each(|x| *x = function(*x));
            rest.copy_from_slice(&block[..rest.len()]);
        }
    }
}

#[inline(always)]
fn mul_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `c[0] + c[1]·x + …`.
#[inline(always)]
fn polynomial<const FUSED: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    c.into_iter().rev().reduce(|sum, c| mul_add::<FUSED>(sum, x, c)).unwrap_or(0.0)
}

/// Adding `1.5·2^23 + 127` rounds a number to an integer `k`. The lowest bits of the sum are `k + 127`, which is
/// the exponent of `2^k` as f32 stores it.
const ROUNDED: f32 = 12_583_039.0;

/// `2^k` for such a sum of `k`: zero for -127, infinite for 128. `k` must be in that range.
#[inline(always)]
fn power(shifted: f32) -> f32 {
    f32::from_bits(shifted.to_bits() << 23)
}

/// `2^k` and `exp(r) - 1`, where `y = k·ln 2 + r` and `k` is the integer nearest to `y / ln 2`. `y`
/// must be in -88 to 88.9.
///
/// The power is 0 for `k = -127` and infinite for `k = 128`. That range of `y` therefore covers the
/// exponential's whole range.
#[inline(always)]
fn exp_parts<const FUSED: bool>(y: f32) -> (f32, f32) {
    // ln 2 as a number of nine bits, whose product with k is exact, and the remainder
    const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
    // (exp(r) - 1 - r - r²/2) / r³ for |r| <= ln(2)/2.
    // The coefficients minimise the largest error relative to exp(r) - 1, which is 1.5e-8.
    // They were fitted by least squares on 400 Chebyshev points, whose weights were repeatedly
    // multiplied by the errors (Lawson's algorithm), then rounded to f32.
    const CUBIC: [f32; 4] = [0.166_665_5, 0.041_666_854, 0.008_366_041, 0.001_389_822_7];
    let shifted = mul_add::<FUSED>(y, std::f32::consts::LOG2_E, ROUNDED);
    let k = shifted - ROUNDED;
    let r = mul_add::<FUSED>(k, -LN_2[1], mul_add::<FUSED>(k, -LN_2[0], y));
    let quadratic = mul_add::<FUSED>(polynomial::<FUSED, 4>(r, CUBIC), r, 0.5);
    (power(shifted), mul_add::<FUSED>(r * r, quadratic, r))
}

/// The exponential: zero from about -87.7 on, infinite from about 88.4 on.
#[inline(always)]
fn exp<const FUSED: bool>(y: f32) -> f32 {
    let (power, less_one) = exp_parts::<FUSED>(at_most(at_least(y, -88.0), 88.9));
    power * (1.0 + less_one)
}

/// `2^r` for `|r| <= 1/2`.
#[inline(always)]
fn exp2_of_fraction<const FUSED: bool>(r: f32) -> f32 {
    // (2^r - 1) / r, fitted like the coefficients of `exp_parts`
    const QUINTIC: [f32; 6] =
        [std::f32::consts::LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_5, 0.000_153_533_6];
    mul_add::<FUSED>(polynomial::<FUSED, 6>(r, QUINTIC), r, 1.0)
}

/// `2^y` for `y` from -127.4 to 0: zero below -126.5.
#[inline(always)]
fn exp2<const FUSED: bool>(y: f32) -> f32 {
    let shifted = y + ROUNDED;
    let r = y - (shifted - ROUNDED);
    power(shifted) * exp2_of_fraction::<FUSED>(r)
}

/// `1 + exp(-y)`: 1 from about 87.7 on, infinite below about -88.4.
///
/// The exponent `-y / ln 2` is rounded, so that the relative error of `exp(-y)` grows with `|y|`. Sigmoids can do with
/// less: for `y > 0` the sum is near one, and for `y < 0` the quotient by the sum falls faster than the error grows.
#[inline(always)]
fn one_plus_exp_of_minus<const FUSED: bool>(y: f32) -> f32 {
    let y = at_least(at_most(y, 88.0), -88.9);
    let shifted = mul_add::<FUSED>(y, -std::f32::consts::LOG2_E, ROUNDED);
    let r = mul_add::<FUSED>(y, -std::f32::consts::LOG2_E, ROUNDED - shifted);
    mul_add::<FUSED>(power(shifted), exp2_of_fraction::<FUSED>(r), 1.0)
}

impl Real for f32 {
    const SIXTH: f32 = 1.0 / 6.0;
    const VECTORISED: bool = true;

    #[inline(always)]
    fn of(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn exp<const FUSED: bool>(self) -> f32 {
        exp::<FUSED>(self)
    }

    #[inline(always)]
    fn elu<const FUSED: bool>(self, alpha: f32) -> f32 {
        let (power, less_one) = exp_parts::<FUSED>(at_most(at_least(self, -88.0), 0.0));
        let e = mul_add::<FUSED>(power, less_one, power - 1.0);
        if self < 0.0 { alpha * e } else { self }
    }

    #[inline(always)]
    fn sigmoid<const FUSED: bool>(self) -> f32 {
        1.0 / one_plus_exp_of_minus::<FUSED>(self)
    }

    #[inline(always)]
    fn tanh<const FUSED: bool>(self) -> f32 {
        // tanh |x| = -e / (2 + e) with e = exp(-2|x|) - 1, which is as accurate for small x as for
        // large ones
        let (power, less_one) = exp_parts::<FUSED>(at_least(-2.0 * self.abs(), -40.0));
        let e = mul_add::<FUSED>(power, less_one, power - 1.0);
        (-e / (2.0 + e)).copysign(self)
    }

    #[inline(always)]
    fn silu<const FUSED: bool>(self) -> f32 {
        self / one_plus_exp_of_minus::<FUSED>(self)
    }

    #[inline(always)]
    fn gelu<const FUSED: bool>(self) -> f32 {
        // log2 Φ(-a) for 0 <= a <= 13.0, fitted like the coefficients of `exp_parts`. The fit
        // minimises the error of a·Φ(-a), which is at most 3e-8, and the relative error near zero.
        // Beyond 13.0 the power is zero.
        const LOGARITHM: [f32; 10] = [
            -1.0,
            -1.151_118_2,
            -0.459_109_16,
            -0.052_770_108,
            0.007_430_806_3,
            -0.000_399_949_87,
            -8.476_907e-5,
            2.008_484_4e-5,
            -1.605_119_9e-6,
            4.496_997e-8,
        ];
        let outside = exp2::<FUSED>(polynomial::<FUSED, 10>(at_most(self.abs(), 13.0), LOGARITHM));
        self * if self > 0.0 { 1.0 - outside } else { outside }
    }

    #[inline(always)]
    fn gelu_tanh<const FUSED: bool>(self) -> f32 {
        // (1 + tanh(y/2)) / 2 = 1 / (1 + exp(-y)) with y = √(8/π)·(x + 0.044715·x³)
        const Y: [f32; 2] = [1.595_769, 0.071_354_814];
        self / one_plus_exp_of_minus::<FUSED>(self * mul_add::<FUSED>(self * self, Y[1], Y[0]))
    }
}

impl Real for f64 {
    const SIXTH: f64 = 1.0 / 6.0;
    const VECTORISED: bool = false;

    #[inline(always)]
    fn of(value: f32) -> f64 {
        value as f64
    }

    fn exp<const FUSED: bool>(self) -> f64 {
        f64::exp(self)
    }

    fn elu<const FUSED: bool>(self, alpha: f64) -> f64 {
        if self < 0.0 { alpha * self.exp_m1() } else { self }
    }

    fn sigmoid<const FUSED: bool>(self) -> f64 {
        1.0 / (1.0 + (-self).exp())
    }

    fn tanh<const FUSED: bool>(self) -> f64 {
        f64::tanh(self)
    }

    fn silu<const FUSED: bool>(self) -> f64 {
        self / (1.0 + (-self).exp())
    }

    fn gelu<const FUSED: bool>(self) -> f64 {
        0.5 * self * libm::erfc(-self * std::f64::consts::FRAC_1_SQRT_2)
    }

    fn gelu_tanh<const FUSED: bool>(self) -> f64 {
        let y = (8.0 / std::f64::consts::PI).sqrt() * self * (1.0 + 0.044_715 * self * self);
        self / (1.0 + (-y).exp())
    }
}
