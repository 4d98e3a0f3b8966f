//! Tensors from npy arrays of whichever type a model's inputs and outputs have.

use tract_core::internal::tract_ndarray::ArrayD;
use tract_core::internal::{Datum, IntoTensor, Tensor};

pub fn from_array<T: Datum>(array: ArrayD<T>) -> Tensor {
    array.into_tensor()
}

/// Evaluates an expression that reads an array of an inferred type, as each type in turn, until one
/// succeeds. The error is the last one.
macro_rules! read_of_any_type {
    ($read:expr) => {
        Err(())
            .or_else(|()| $read.map(crate::npy::from_array::<f32>))
            .or_else(|_| $read.map(crate::npy::from_array::<i64>))
            .or_else(|_| $read.map(crate::npy::from_array::<i32>))
            .or_else(|_| $read.map(crate::npy::from_array::<bool>))
            .or_else(|_| $read.map(crate::npy::from_array::<u8>))
            .or_else(|_| $read.map(crate::npy::from_array::<i8>))
    };
}
pub(crate) use read_of_any_type;
