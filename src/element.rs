//! Element types: what is stored, and what it is computed in.

use crate::kernel::Dispatch;
use crate::memory::Working;
use crate::tail::Activation;
use std::sync::OnceLock;
use tract_core::internal::*;
use tract_linalg::element_wise::ElementWise;
use tract_linalg::routines::Func;

/// A type that sums and products are computed in.
pub(crate) trait Compute: Working + Send + Sync + PartialEq + std::fmt::Debug {
    /// The additive identity.
    const ZERO: Self;

    /// The least number that is finite.
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

    /// Applies an element-wise function to a run, compiled for the caller's instruction set. Integers have none: what uses one on them is not folded.
    fn activate(activation: Activation, run: &mut [Self]);

    /// `self` where it is not negative, `self·slope` elsewhere.
    fn leak(self, slope: Self) -> Self;
}

/// The vectorised functions that tract itself uses for f32.
fn of_linalg(func: Func, kernel: &'static OnceLock<Option<Box<dyn ElementWise<f32>>>>, run: &mut [f32]) -> bool {
    kernel.get_or_init(|| func.ew_f32().ok()).as_ref().is_some_and(|kernel| kernel.run(run).is_ok())
}

static SIGMOID: OnceLock<Option<Box<dyn ElementWise<f32>>>> = OnceLock::new();
static TANH: OnceLock<Option<Box<dyn ElementWise<f32>>>> = OnceLock::new();
static ERF: OnceLock<Option<Box<dyn ElementWise<f32>>>> = OnceLock::new();
static GELU_TANH: OnceLock<Option<Box<dyn ElementWise<f32>>>> = OnceLock::new();

fn sigmoid_f32(run: &mut [f32]) {
    if !of_linalg(Func::Sigmoid, &SIGMOID, run) {
        run.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    }
}

fn tanh_f32(run: &mut [f32]) {
    if !of_linalg(Func::Tanh, &TANH, run) {
        run.iter_mut().for_each(|x| *x = x.tanh());
    }
}

fn erf_f32(run: &mut [f32]) {
    if !of_linalg(Func::Erf, &ERF, run) {
        run.iter_mut().for_each(|x| *x = libm::erff(*x));
    }
}

fn gelu_tanh_f32(run: &mut [f32]) {
    if !of_linalg(Func::Gelu, &GELU_TANH, run) {
        run.iter_mut().for_each(|x| *x = gelu_tanh(*x as f64) as f32);
    }
}

fn gelu_tanh_f64(run: &mut [f64]) {
    run.iter_mut().for_each(|x| *x = gelu_tanh(*x));
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

fn sigmoid_f64(run: &mut [f64]) {
    run.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
}

fn tanh_f64(run: &mut [f64]) {
    run.iter_mut().for_each(|x| *x = x.tanh());
}

fn erf_f64(run: &mut [f64]) {
    run.iter_mut().for_each(|x| *x = libm::erf(*x));
}

/// Multiplies each value by what `gate` makes of it.
fn gated<T: Compute + std::ops::MulAssign>(run: &mut [T], gate: impl Fn(&mut [T])) {
    // in pieces that fit the stack: the argument is needed once more
    let mut factors = [T::ZERO; 256];
    for piece in run.chunks_mut(factors.len()) {
        let factors = &mut factors[..piece.len()];
        factors.copy_from_slice(piece);
        gate(factors);
        piece.iter_mut().zip(factors).for_each(|(x, factor)| *x *= *factor);
    }
}

macro_rules! float_compute {
    ($($t:ty, $sigmoid:ident, $tanh:ident, $erf:ident, $gelu_tanh:ident);*) => {$(
        impl Compute for $t {
            const ZERO: Self = 0.0;
            const LEAST: Self = <$t>::MIN;
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
            fn activate(activation: Activation, run: &mut [Self]) {
                let each = run.iter_mut();
                match activation {
                    Activation::Max(low) => each.for_each(|x| *x = x.max(low as $t)),
                    Activation::Min(high) => each.for_each(|x| *x = x.min(high as $t)),
                    Activation::LeakyRelu(alpha) => {
                        each.for_each(|x| *x = x.leak(alpha as $t))
                    }
                    Activation::Sigmoid => $sigmoid(run),
                    Activation::Tanh => $tanh(run),
                    Activation::HardSwish => each.for_each(|x| *x *= (*x / 6.0 + 0.5).clamp(0.0, 1.0)),
                    Activation::Gate { scale, shift, low, high } => {
                        let [scale, shift, low, high] = [scale, shift, low, high].map(|v| v as $t);
                        each.for_each(|x| *x *= (*x * scale + shift).max(low).min(high))
                    }
                    Activation::Silu => gated(run, $sigmoid),
                    Activation::Gelu => gated(run, |gate| {
                        gate.iter_mut().for_each(|x| *x *= std::f64::consts::FRAC_1_SQRT_2 as $t);
                        $erf(gate);
                        gate.iter_mut().for_each(|x| *x = 0.5 * *x + 0.5);
                    }),
                    Activation::GeluTanh => $gelu_tanh(run),
                }
            }

            #[inline(always)]
            fn leak(self, slope: Self) -> Self {
                // a choice of factors: of one of results compilers make stores under a mask, which take twice as long
                self * if self < 0.0 { slope } else { 1.0 }
            }
        }
    )*};
}
float_compute!(f32, sigmoid_f32, tanh_f32, erf_f32, gelu_tanh_f32; f64, sigmoid_f64, tanh_f64, erf_f64, gelu_tanh_f64);

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
    fn activate(_activation: Activation, _run: &mut [Self]) {}

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
