//! Types that sums are computed in.

use crate::activation::{Activation, activate};

/// What the bytes of floats are filled with: NaN, whatever their size.
pub(crate) const NAN: u8 = 0xff;

/// What those of integers are filled with.
pub(crate) const NOISE: u8 = 0xa5;

/// Types that working memory is made of.
pub(crate) trait Working: Copy + Default + 'static {
    /// What no result is made of.
    const NOTHING: Self;
}

impl Working for f32 {
    const NOTHING: f32 = f32::from_bits(u32::from_ne_bytes([NAN; 4]));
}

impl Working for f64 {
    const NOTHING: f64 = f64::from_bits(u64::from_ne_bytes([NAN; 8]));
}

impl Working for i64 {
    const NOTHING: i64 = i64::from_ne_bytes([NOISE; 8]);
}

/// The upper halves of floats.
impl Working for u16 {
    const NOTHING: u16 = u16::from_ne_bytes([NAN; 2]);
}

/// A type that sums and products are computed in.
pub(crate) trait Compute: Working + Send + Sync + PartialEq + std::fmt::Debug {
    /// The additive identity.
    const ZERO: Self;

    /// The maximum of no values, as max pooling in onnxruntime has it.
    const LEAST: Self;

    /// One half, which integers do not have: what halves is not for them.
    const HALF: Self;

    /// `self + a·b`. Integers wrap modulo their width.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// `self + other`. Integers wrap modulo their width.
    fn plus(self, other: Self) -> Self;

    /// `self - other`. Integers wrap modulo their width.
    fn minus(self, other: Self) -> Self;

    /// The larger one; a number where the other is none.
    fn larger(self, other: Self) -> Self;

    /// Applies an element-wise function to a run, compiled for the caller's instruction set, which has a fused multiply-add or not. Integers have none: what
    /// uses one on them is not folded.
    fn activate<const FUSED: bool>(activation: Activation, run: &mut [Self]);

    /// `self` where it is not negative, `self·slope` elsewhere.
    fn leak(self, slope: Self) -> Self;
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
            fn activate<const FUSED: bool>(activation: Activation, run: &mut [Self]) {
                activate::<$t, FUSED>(activation, run)
            }

            #[inline(always)]
            fn leak(self, slope: Self) -> Self {
                // a choice of factors: of one of results compilers make stores under a mask, which take twice as long
                self * if self < 0.0 { slope } else { 1.0 }
            }
        }
    )*};
}
float_compute!(f32, f32::MIN; f64, f64::NEG_INFINITY);

impl Compute for i64 {
    const ZERO: Self = 0;
    const LEAST: Self = i64::MIN;
    const HALF: Self = 0;

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.max(other)
    }

    #[inline(always)]
    fn activate<const FUSED: bool>(_activation: Activation, _run: &mut [Self]) {}

    fn leak(self, _slope: Self) -> Self {
        self
    }
}
