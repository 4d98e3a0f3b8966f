//! The element types of tensors, and the type that each is computed in.

use crate::compute::{F16, F64, Grouped, INTEGERS, Pair, Quad};
use crate::kernel::Dispatch;
use tract_core::internal::*;

/// A type that tensors have while a plan runs on them. See [`integers`](crate::integers) for types
/// that are converted first.
pub(crate) trait Element: Datum + Copy + Default + Send + Sync {
    /// The type in which sums are computed.
    type Compute: Dispatch + Datum;

    /// Converts to the compute type, exactly.
    fn widen(self) -> Self::Compute;

    /// Converts from the compute type, rounded to nearest.
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

    /// The slice as compute elements, if the two types are the same.
    fn as_compute(_slice: &[Self]) -> Option<&[Self::Compute]> {
        None
    }

    /// The slice as compute elements, if the two types are the same.
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
same_element!(f32, f64, i64, Pair, Quad);

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

/// The size of an element of the compute type, in bytes.
pub(crate) fn compute_bytes(datum_type: DatumType, grouped: Option<Grouped>) -> usize {
    if grouped.is_some() || matches!(datum_type, DatumType::F32 | DatumType::F16) { 4 } else { 8 }
}

/// Returns whether this build computes tensors of a type, or else the error that names the feature.
pub(crate) fn check_built(what: &str, datum_type: DatumType) -> TractResult<()> {
    let (built, feature) = match datum_type {
        DatumType::F32 => (true, ""),
        DatumType::F16 => (F16, "f16"),
        DatumType::F64 => (F64, "f64"),
        _ => (INTEGERS, "integers"),
    };
    ensure!(built, "{what}: datum_type={datum_type:?}, this build lacks the Cargo feature {feature}");
    Ok(())
}

/// Returns whether a type is one of the floats that this build computes.
pub(crate) fn is_float(datum_type: DatumType) -> bool {
    matches!(datum_type, DatumType::F16 | DatumType::F32 | DatumType::F64) && check_built("", datum_type).is_ok()
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

/// Calls `$body` with `$E` bound to the [`Element`] type of a datum type returned by
/// [`computed_as`](crate::integers::computed_as). An error for any other datum type.
macro_rules! dispatch_element {
    ($dt:expr, $E:ident => $body:expr) => {{
        use tract_core::internal::{DatumType, bail, f16};
        match $dt {
            DatumType::F32 => {
                type $E = f32;
                $body
            }
            DatumType::F16 if crate::compute::F16 => {
                type $E = f16;
                $body
            }
            DatumType::F64 if crate::compute::F64 => {
                type $E = f64;
                $body
            }
            DatumType::I64 if crate::compute::INTEGERS => {
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

/// As [`dispatch_element`], or with the type of elements of several integers.
macro_rules! dispatch_grouped {
    ($grouped:expr, $dt:expr, $E:ident => $body:expr) => {{
        use crate::compute::{Grouped, Pair, Quad};
        match $grouped {
            Some(Grouped::Pairs) if crate::compute::QUANTISED => {
                type $E = Pair;
                $body
            }
            Some(Grouped::Quads) if crate::compute::QUANTISED => {
                type $E = Quad;
                $body
            }
            _ => dispatch_element!($dt, $E => $body),
        }
    }};
}
pub(crate) use dispatch_grouped;
