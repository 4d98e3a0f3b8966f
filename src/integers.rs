//! Integers: all widths are computed as signed 64-bit integers.
//!
//! Arithmetic is modulo 2⁶⁴, and results are stored modulo their own width. This is exact whenever
//! the true result fits the type, and wraps in two's complement otherwise. It never saturates and
//! never uses floating point.
//!
//! Operands and results are converted as whole tensors, not as they are read and written. This
//! costs a copy of each, of up to eight times its bytes, which counts as the plan's working memory.
//! In return, no strategy is instantiated for the other integer types.

use crate::compute::Grouped;
use crate::element::ELEMENT_TYPES;
use crate::memory::mapped_output;
use std::borrow::Cow;
use tract_core::internal::tract_num_traits::AsPrimitive;
use tract_core::internal::*;

/// The type to which operands are converted while a plan runs on them. The output is computed in it
/// too.
pub(crate) fn computed_as(datum_type: DatumType) -> DatumType {
    match ELEMENT_TYPES.contains(&datum_type) && !datum_type.is_float() {
        true => DatumType::I64,
        false => datum_type,
    }
}

/// As [`computed_as`]. Tensors of elements of several integers stay what they are.
pub(crate) fn computed_as_grouped(datum_type: DatumType, grouped: Option<Grouped>) -> DatumType {
    if grouped.is_some() { DatumType::I32 } else { computed_as(datum_type) }
}

/// Converts a tensor from a type of integers to 64-bit integers, or the reverse. `what` begins the
/// message of an error.
///
/// # Errors
/// The memory can't be allocated, or there is no conversion between the types.
pub(crate) fn converted<'a>(what: &str, from: &'a Tensor, to: DatumType) -> TractResult<Cow<'a, Tensor>> {
    if from.datum_type() == to {
        return Ok(Cow::Borrowed(from));
    }
    macro_rules! copy {
        ($($narrow:ident $datum_type:ident),*) => {
            match (from.datum_type(), to) {
                $(
                    (DatumType::$datum_type, DatumType::I64) => mapped_output(what, from, |x: $narrow| AsPrimitive::<i64>::as_(x))?,
                    (DatumType::I64, DatumType::$datum_type) => mapped_output(what, from, |x: i64| AsPrimitive::<$narrow>::as_(x))?,
                )*
                (other, _) => bail!("{what}: datum_type={other:?}, {to:?} is needed"),
            }
        };
    }
    Ok(Cow::Owned(copy!(i8 I8, u8 U8, i16 I16, u16 U16, i32 I32, u32 U32, u64 U64)))
}

/// As [`converted`], but consumes the tensor.
///
/// # Errors
/// As [`converted`].
pub(crate) fn convert(what: &str, from: Tensor, to: DatumType) -> TractResult<Tensor> {
    match converted(what, &from, to)? {
        Cow::Owned(converted) => Ok(converted),
        Cow::Borrowed(_) => Ok(from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_wrap() -> TractResult<()> {
        let wide = tensor1(&[-1i64, 300, i64::MIN, 1 << 40]);
        for (to, expected) in [
            (DatumType::U8, tensor1(&[255u8, 44, 0, 0])),
            (DatumType::I16, tensor1(&[-1i16, 300, 0, 0])),
            (DatumType::U64, tensor1(&[u64::MAX, 300, 1 << 63, 1 << 40])),
            (DatumType::I64, wide.clone()),
        ] {
            assert_eq!(convert("output", wide.clone(), to)?, expected);
        }
        Ok(())
    }

    #[test]
    fn operands_keep_their_bits() -> TractResult<()> {
        for (from, expected) in [
            (tensor1(&[-128i8, 127]), tensor1(&[-128i64, 127])),
            (tensor1(&[u32::MAX, 0]), tensor1(&[(1i64 << 32) - 1, 0])),
            (tensor1(&[u64::MAX, 1]), tensor1(&[-1i64, 1])),
        ] {
            assert_eq!(*converted("input", &from, computed_as(from.datum_type()))?, expected);
        }
        Ok(())
    }

    #[test]
    fn floats_stay() {
        assert_eq!(computed_as(DatumType::F16), DatumType::F16);
        let error = converted("input", &tensor1(&[1f32]), DatumType::I64).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("input: datum_type=F32, I64 is needed"));
    }
}
