//! The types in which sums are computed.

use crate::activation::{Activation, activate, at_least, at_most, exponentials};
use realfft::num_complex::Complex;
use std::fmt;
use tract_core::internal::{Datum, DatumType};

/// Whether f16, f64, the integers' 64-bit sums and sums of several integers are in this build.
///
/// What is behind a constant that is false is not compiled, so that it adds nothing to a program's size.
pub(crate) const F16: bool = cfg!(feature = "f16");
pub(crate) const F64: bool = cfg!(feature = "f64");
pub(crate) const INTEGERS: bool = cfg!(feature = "integers");
pub(crate) const QUANTISED: bool = cfg!(feature = "quantised");

/// The byte with which floats are filled: all bytes `0xff` are NaN in any size.
pub(crate) const NAN: u8 = 0xff;

/// The byte with which integers are filled.
pub(crate) const NOISE: u8 = 0xa5;

/// The element types of working memory.
pub(crate) trait Working: Copy + Default + 'static {
    /// A value that stands out in results: NaN for floats, noise for integers.
    const POISON: Self;

    /// What tile registers multiply in place of such values, or any type if they multiply none.
    type Limb: Working + Datum;
}

impl Working for f32 {
    const POISON: f32 = f32::from_bits(u32::from_ne_bytes([NAN; 4]));
    type Limb = u16;
}

impl Working for Complex<f32> {
    const POISON: Complex<f32> = Complex::new(f32::POISON, f32::POISON);
    type Limb = u16;
}

impl Working for f64 {
    const POISON: f64 = f64::from_bits(u64::from_ne_bytes([NAN; 8]));
    type Limb = u16;
}

impl Working for i64 {
    const POISON: i64 = i64::from_ne_bytes([NOISE; 8]);
    type Limb = u16;
}

/// bf16: the upper halves of floats.
impl Working for u16 {
    const POISON: u16 = u16::from_ne_bytes([NAN; 2]);
    type Limb = u16;
}

/// A type in which sums and products are computed.
pub(crate) trait Compute: Working + Send + Sync + PartialEq + std::fmt::Debug {
    /// The additive identity.
    const ZERO: Self;

    /// The maximum of an empty window, as in onnxruntime's max pooling.
    const LEAST: Self;

    /// One half. It does not exist for integers, so kernels that use it must not run on them.
    const HALF: Self;

    /// `self + a·b`. Integers wrap modulo their width.
    ///
    /// In a product of data and a weight, the data come first: the operands of [`Quad`] differ.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// `self + other`. Integers wrap modulo their width.
    fn plus(self, other: Self) -> Self;

    /// `self - other`. Integers wrap modulo their width.
    fn minus(self, other: Self) -> Self;

    /// The larger value. If one is NaN, the other.
    fn larger(self, other: Self) -> Self;

    /// `low` if the value is less, else `high` if it is more, for `low <= high`. NaN stays NaN.
    fn clamped(self, low: Self, high: Self) -> Self;

    /// Applies an element-wise function to `count` runs of `size` values, `step` apart.
    ///
    /// It is compiled for the caller's instruction set. `FUSED` tells whether that has a fused
    /// multiply-add.
    /// Does nothing to integers: activations on integers are not folded.
    fn activate<const FUSED: bool>(activation: Activation, size: (usize, usize), step: usize, values: &mut [Self]);

    /// `self` if it is not negative, else `self·slope`.
    fn leak(self, slope: Self) -> Self;

    /// Replaces each value by its exponential. As [`Compute::activate`].
    fn exponentials<const FUSED: bool>(run: &mut [Self]);

    /// Converts a number of elements.
    fn of_count(count: usize) -> Self;

    /// Rounds a constant to this type. Zero for integers, so kernels that use it must not run on
    /// them.
    fn of_constant(value: f64) -> Self;

    /// The natural logarithm. Zero for integers.
    fn logarithm(self) -> Self;

    /// `1 / self`. Zero for integers.
    fn reciprocal(self) -> Self;

    /// `1 / √self`. Zero for integers.
    fn reciprocal_root(self) -> Self;
}

macro_rules! float_compute {
    ($($t:ty, $least:expr);*) => {$(
        impl Compute for $t {
            const ZERO: Self = 0.0;
            const LEAST: Self = $least;
            const HALF: Self = 0.5;

            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                self + a * b
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn clamped(self, low: Self, high: Self) -> Self {
                at_most(at_least(self, low), high)
            }

            #[inline(always)]
            fn activate<const FUSED: bool>(
                activation: Activation,
                size: (usize, usize),
                step: usize,
                values: &mut [Self],
            ) {
                activate::<$t, FUSED>(activation, size, step, values)
            }

            #[inline(always)]
            fn leak(self, slope: Self) -> Self {
                // A choice between factors: for a choice between results, compilers emit masked
                // stores, which are slower.
                self * if self < 0.0 { slope } else { 1.0 }
            }

            #[inline(always)]
            fn exponentials<const FUSED: bool>(run: &mut [Self]) {
                exponentials::<$t, FUSED>(run)
            }

            fn of_count(count: usize) -> Self {
                count as Self
            }

            #[inline(always)]
            fn of_constant(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn logarithm(self) -> Self {
                self.ln()
            }

            #[inline(always)]
            fn reciprocal(self) -> Self {
                self.recip()
            }

            #[inline(always)]
            fn reciprocal_root(self) -> Self {
                self.sqrt().recip()
            }
        }
    )*};
}
float_compute!(f32, f32::MIN; f64, f64::NEG_INFINITY);

/// Implements [`Compute`] for integers, given how they are made and unmade, and their products.
macro_rules! integer_compute {
    ($t:ident of $whole:ty: $of:expr, $bits:expr, |$a:ident, $b:ident| $product:expr) => {
        impl Compute for $t {
            const ZERO: Self = $of(0);
            const LEAST: Self = $of(<$whole>::MIN);
            const HALF: Self = $of(0);

            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                let ($a, $b) = ($bits(a), $bits(b));
                $of($bits(self).wrapping_add($product))
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $of($bits(self).wrapping_add($bits(other)))
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                $of($bits(self).wrapping_sub($bits(other)))
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                $of($bits(self).max($bits(other)))
            }

            #[inline(always)]
            fn clamped(self, low: Self, high: Self) -> Self {
                $of($bits(self).max($bits(low)).min($bits(high)))
            }

            #[inline(always)]
            fn activate<const FUSED: bool>(
                _activation: Activation,
                _size: (usize, usize),
                _step: usize,
                _values: &mut [Self],
            ) {
            }

            fn leak(self, _slope: Self) -> Self {
                self
            }

            fn exponentials<const FUSED: bool>(_run: &mut [Self]) {}

            fn of_constant(_value: f64) -> Self {
                Self::ZERO
            }

            fn of_count(count: usize) -> Self {
                $of(count as $whole)
            }

            fn logarithm(self) -> Self {
                Self::ZERO
            }

            fn reciprocal(self) -> Self {
                Self::ZERO
            }

            fn reciprocal_root(self) -> Self {
                Self::ZERO
            }
        }
    };
}
integer_compute!(i64 of i64: std::convert::identity, std::convert::identity, |a, b| a.wrapping_mul(b));
integer_compute!(Pair of i32: Pair, Pair::bits, |a, b| {
    let low = |bits: i32| i32::from(bits as i16);
    (low(a) * low(b)).wrapping_add((a >> 16) * (b >> 16))
});
integer_compute!(Quad of i32: Quad, Quad::bits, |a, b| {
    let (data, weights) = (a.to_le_bytes(), b.to_le_bytes());
    data.iter().zip(weights).map(|(x, w)| i32::from(*x) * i32::from(w as i8)).sum::<i32>()
});

/// How many integers of 8 bits, of adjacent input channels, one element of 32 bits holds.
///
/// A product of elements of data and filter is the sum of the products of their integers. It is
/// added to a sum of 32 bits, which has the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Grouped {
    /// Elements are [`Pair`]s.
    Pairs,
    /// Elements are [`Quad`]s.
    Quads,
}

impl Grouped {
    /// The number of integers per element.
    pub fn count(self) -> usize {
        match self {
            Grouped::Pairs => 2,
            Grouped::Quads => 4,
        }
    }
}

/// Two `i16`, the first one in the lower half of the bits, or a sum of their products.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(transparent)]
pub(crate) struct Pair(i32);

/// Four bytes, the first one in the lowest bits, or a sum of their products.
///
/// Data are `u8`, weights `i8`. Data come first in [`Compute::mul_add`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(transparent)]
pub(crate) struct Quad(i32);

/// A type of elements of 32 bits that hold several integers.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Group: Compute {
    /// The bits, or the sum.
    fn bits(self) -> i32;
}

impl Pair {
    /// The element that holds two integers.
    #[inline(always)]
    pub const fn of([low, high]: [i16; 2]) -> Pair {
        Pair((low as i32 & 0xffff) | (high as i32) << 16)
    }
}

impl Quad {
    /// The element that holds four bytes.
    #[inline(always)]
    pub const fn of(bytes: [u8; 4]) -> Quad {
        Quad(i32::from_le_bytes(bytes))
    }

    /// Flips bits of each byte.
    #[inline(always)]
    pub const fn flipped(self, bits: [u8; 4]) -> Quad {
        Quad(self.0 ^ i32::from_le_bytes(bits))
    }
}

macro_rules! groups {
    ($($t:ident $what:literal),*) => {$(
        impl $t {
            /// The bits, or the sum.
            #[inline(always)]
            pub const fn bits(self) -> i32 {
                self.0
            }
        }

        #[cfg(target_arch = "x86_64")]
        impl Group for $t {
            #[inline(always)]
            fn bits(self) -> i32 {
                self.0
            }
        }

        impl Working for $t {
            const POISON: $t = $t(i32::from_ne_bytes([NOISE; 4]));
            type Limb = $t;
        }

        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        /// Tensors of such elements have the type `i32`, which has the same size and alignment.
        impl Datum for $t {
            fn name() -> &'static str {
                $what
            }

            fn datum_type() -> DatumType {
                DatumType::I32
            }

            fn is<D: Datum>() -> bool {
                D::datum_type() == DatumType::I32
            }
        }
    )*};
}
groups!(Pair "pair of i16", Quad "four of u8 or i8");
