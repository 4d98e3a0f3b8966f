//! Seeded random tensors.

use tract_core::internal::tract_ndarray::ArrayD;
use tract_core::internal::*;

/// SplitMix64, which gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number within `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()).take(len.div_ceil(8)).flatten().take(len).collect()
    }

    /// Returns a number within `-1.0..1.0` that uses all bits of the mantissa.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Returns floats within -1..1, or integers over the whole range of the type.
    pub fn tensor(&mut self, dt: DatumType, shape: &[usize]) -> Tensor {
        macro_rules! integers {
            ($t:ty) => {
                ArrayD::from_shape_simple_fn(shape, || self.next() as $t).into()
            };
        }
        match dt {
            DatumType::F16 => ArrayD::from_shape_simple_fn(shape, || f16::from_f64(self.unit())).into(),
            DatumType::F32 => ArrayD::from_shape_simple_fn(shape, || self.unit() as f32).into(),
            DatumType::F64 => ArrayD::from_shape_simple_fn(shape, || self.unit()).into(),
            DatumType::I8 => integers!(i8),
            DatumType::U8 => integers!(u8),
            DatumType::I16 => integers!(i16),
            DatumType::U16 => integers!(u16),
            DatumType::I32 => integers!(i32),
            DatumType::U32 => integers!(u32),
            DatumType::I64 => integers!(i64),
            DatumType::U64 => integers!(u64),
            other => panic!("no test needs {other:?}"),
        }
    }

    /// Returns integers within -4..=4 (0..=4 for unsigned types) in any element type. Sums of
    /// products stay exact.
    pub fn small_integers(&mut self, dt: DatumType, shape: &[usize]) -> Tensor {
        let values = ArrayD::from_shape_simple_fn(shape, || {
            let value = self.below(9) as i64 - 4;
            if dt.is_unsigned() { value.abs() } else { value }
        });
        Tensor::from(values).cast_to_dt(dt).expect("a number type").into_owned()
    }
}
