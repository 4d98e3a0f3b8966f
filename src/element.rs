//! Element types: what is stored, and what it is computed in.

use crate::kernel::{Dispatch, activate};
use crate::memory::Working;
use crate::output::epilogue::Activation;
use tract_core::internal::*;

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

/// A type that tensors hold while a plan runs on them: see [`integers`](crate::integers) for those that are none.
pub(crate) trait Element: Datum + Copy + Default + Send + Sync {
    /// The type that sums are computed in.
    type Compute: Dispatch + Datum;

    /// To the compute type, exactly.
    fn widen(self) -> Self::Compute;

    /// From the compute type, rounded to nearest.
    fn narrow(value: Self::Compute) -> Self;

    /// Widens a slice into another of the same length.
    fn widen_slice(from: &[Self], to: &mut [Self::Compute]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }

    /// Narrows a slice into another of the same length.
    fn narrow_slice(from: &[Self::Compute], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::narrow(*from);
        }
    }

    /// The slice seen as compute elements, where the two types are one.
    fn as_compute(_slice: &[Self]) -> Option<&[Self::Compute]> {
        None
    }

    /// The slice seen as compute elements, where the two types are one.
    fn as_compute_mut(_slice: &mut [Self]) -> Option<&mut [Self::Compute]> {
        None
    }
}

macro_rules! same_element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Compute = $t;

            #[inline(always)]
            fn widen(self) -> $t {
                self
            }

            #[inline(always)]
            fn narrow(value: $t) -> $t {
                value
            }

            fn widen_slice(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from)
            }

            fn narrow_slice(from: &[$t], to: &mut [$t]) {
                to.copy_from_slice(from)
            }

            fn as_compute(slice: &[$t]) -> Option<&[$t]> {
                Some(slice)
            }

            fn as_compute_mut(slice: &mut [$t]) -> Option<&mut [$t]> {
                Some(slice)
            }
        }
    )*};
}
same_element!(f32, f64, i64);

impl Element for f16 {
    type Compute = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        f16::from_f32(value)
    }

    fn widen_slice(from: &[f16], to: &mut [f32]) {
        crate::kernel::widen(from, to)
    }

    fn narrow_slice(from: &[f32], to: &mut [f16]) {
        crate::kernel::narrow(from, to)
    }
}

/// Bytes of an element of the type that sums are made in.
pub(crate) fn compute_bytes(datum_type: DatumType) -> usize {
    if matches!(datum_type, DatumType::F32 | DatumType::F16) { 4 } else { 8 }
}

/// The element types that a deconvolution can run on.
pub(crate) const ELEMENT_TYPES: [DatumType; 11] = [
    DatumType::F32,
    DatumType::F16,
    DatumType::F64,
    DatumType::I8,
    DatumType::U8,
    DatumType::I16,
    DatumType::U16,
    DatumType::I32,
    DatumType::U32,
    DatumType::I64,
    DatumType::U64,
];

/// Calls `$body` with `$E` bound to the [`Element`] type of a datum type that [`computed_as`](crate::integers::computed_as) gives; an error for any other.
macro_rules! dispatch_element {
    ($dt:expr, $E:ident => $body:expr) => {{
        use tract_core::internal::{DatumType, bail, f16};
        match $dt {
            DatumType::F32 => {
                type $E = f32;
                $body
            }
            DatumType::F16 => {
                type $E = f16;
                $body
            }
            DatumType::F64 => {
                type $E = f64;
                $body
            }
            DatumType::I64 => {
                type $E = i64;
                $body
            }
            other => bail!(
                "input: datum_type={other:?}, a deconvolution runs on floats of 16, 32, 64 bits and integers of 8 to 64"
            ),
        }
    }};
}
pub(crate) use dispatch_element;
