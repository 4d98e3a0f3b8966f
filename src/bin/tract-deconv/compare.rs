//! Compares outputs with references.

use crate::inputs::times;
use tract_core::internal::*;

/// The default tolerance of an f32 or f64 output, as a fraction of its largest magnitude.
const TOLERANCE: f64 = 1e-4;
/// The default tolerance of an f16 output. The type's own rounding is 5e-4.
const TOLERANCE_F16: f64 = 1e-2;

/// The least magnitude that errors are measured against.
///
/// An output that is nearly zero everywhere, such as a saturated sigmoid, holds little but the
/// rounding errors of earlier operators.
const LEAST_SCALE: f64 = 1e-2;

/// The difference of one output from its reference.
#[derive(Clone, Debug)]
pub struct Difference {
    pub name: String,
    /// The worst absolute error.
    pub absolute: f64,
    /// The worst absolute error over the reference's largest magnitude.
    pub relative: f64,
    /// The largest magnitude of the reference.
    pub scale: f64,
    /// The allowed error, as a fraction of the scale, or of [`LEAST_SCALE`] if that is larger.
    pub tolerance: f64,
    /// The reason why they can't be compared at all.
    pub mismatch: Option<String>,
}

impl Difference {
    pub fn passes(&self) -> bool {
        self.mismatch.is_none() && self.absolute <= self.tolerance * self.scale.max(LEAST_SCALE)
    }

    /// Returns the error as a fraction of the allowed error. More than 1 fails.
    pub fn severity(&self) -> f64 {
        match self.passes() {
            true if self.absolute == 0.0 => 0.0,
            true => self.absolute / (self.tolerance * self.scale.max(LEAST_SCALE)),
            false => 1.0 + self.relative,
        }
    }
}

/// Compares an output with its reference. A NaN equals a NaN, and an infinity an equal infinity.
pub fn compare(name: &str, got: &Tensor, reference: &Tensor, tolerance: Option<f64>) -> TractResult<Difference> {
    let exact = !reference.datum_type().is_float();
    let tolerance = match reference.datum_type() {
        _ if exact => 0.0,
        DatumType::F16 => tolerance.unwrap_or(TOLERANCE_F16),
        _ => tolerance.unwrap_or(TOLERANCE),
    };
    let mut difference =
        Difference { name: name.into(), absolute: 0.0, relative: 0.0, scale: 0.0, tolerance, mismatch: None };
    if got.datum_type() != reference.datum_type() || got.shape() != reference.shape() {
        let of = |tensor: &Tensor| format!("{} {:?}", times(tensor.shape()), tensor.datum_type());
        difference.mismatch = Some(format!("got {}, the reference is {}", of(got), of(reference)));
        return Ok(difference);
    }
    let (got64, reference64) = (got.cast_to::<f64>()?, reference.cast_to::<f64>()?);
    let (got64, reference64) = (got64.try_as_plain_ram()?, reference64.try_as_plain_ram()?);
    for (a, b) in got64.as_slice::<f64>()?.iter().zip(reference64.as_slice::<f64>()?) {
        if b.is_finite() {
            difference.scale = difference.scale.max(b.abs());
        }
        let same = a == b || (a.is_nan() && b.is_nan());
        let error = if same { 0.0 } else { (a - b).abs() };
        difference.absolute = difference.absolute.max(if error.is_nan() { f64::INFINITY } else { error });
    }
    // different 64-bit integers may round to the same f64
    if exact && difference.absolute == 0.0 && got != reference {
        difference.absolute = 1.0;
    }
    difference.relative = if difference.absolute == 0.0 { 0.0 } else { difference.absolute / difference.scale };
    Ok(difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(got: Tensor, reference: Tensor) -> Difference {
        compare("y", &got, &reference, None).unwrap()
    }

    #[test]
    fn errors_are_measured_on_the_outputs_scale() {
        let difference = relative(tensor1(&[0.001f32, 10.0]), tensor1(&[0.0f32, 10.0]));
        assert!((difference.relative - 1e-4).abs() < 1e-9, "{difference:?}");
        assert!(relative(tensor1(&[0.0009f32, 10.0]), tensor1(&[0.0f32, 10.0])).passes());
        assert!(!relative(tensor1(&[0.0011f32, 10.0]), tensor1(&[0.0f32, 10.0])).passes());
        assert!(!relative(tensor1(&[0.1f32]), tensor1(&[0.0f32])).passes());
        assert!(relative(tensor1(&[0.0f32]), tensor1(&[0.0f32])).passes());
    }

    #[test]
    fn outputs_near_zero_are_given_a_floor() {
        let reference = || tensor1(&[1e-6f32, 0.0]);
        assert!(relative(tensor1(&[5e-7f32, 0.0]), reference()).passes());
        assert!(!relative(tensor1(&[1e-5f32, 0.0]), reference()).passes());
        assert!(!compare("y", &tensor1(&[5e-7f32, 0.0]), &reference(), Some(0.0)).unwrap().passes());
    }

    #[test]
    fn not_a_number_never_passes_for_one() {
        assert!(!relative(tensor1(&[f32::NAN]), tensor1(&[1.0f32])).passes());
        assert!(!relative(tensor1(&[1.0f32]), tensor1(&[f32::NAN])).passes());
        assert!(relative(tensor1(&[f32::NAN, 1.0]), tensor1(&[f32::NAN, 1.0])).passes());
        assert!(!relative(tensor1(&[f32::INFINITY]), tensor1(&[f32::NEG_INFINITY])).passes());
    }

    #[test]
    fn integers_are_equal_or_wrong() {
        assert!(!relative(tensor1(&[i64::MAX]), tensor1(&[i64::MAX - 1])).passes());
        assert!(!compare("y", &tensor1(&[100i32]), &tensor1(&[101i32]), Some(0.5)).unwrap().passes());
        assert!(relative(tensor1(&[true]), tensor1(&[true])).passes());
    }

    #[test]
    fn shape_and_type_count() {
        assert!(!relative(tensor1(&[1f32]), tensor2(&[[1f32]])).passes());
        assert!(!relative(tensor1(&[1f32]), tensor1(&[1f64])).passes());
    }
}
