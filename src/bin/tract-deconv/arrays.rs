//! Tensors in npy and npz files, of every type that tract's ONNX models have.
//!
//! `ndarray-npy` knows the format; [`Element`] adds f16, and reads no more memory than the file holds, whatever shape
//! its header claims.

use ndarray_npy::{
    NpzReader, NpzWriter, ReadDataError, ReadNpyError, ReadNpyExt, ReadNpzError, ReadableElement, WritableElement,
    WriteDataError,
};
use py_literal::Value as PyValue;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use tract_core::internal::tract_ndarray::{ArrayD, IxDyn, OwnedRepr};
use tract_core::internal::*;

/// Named tensors, in file order.
pub type Arrays = Vec<(String, Arc<Tensor>)>;

/// A scalar as numpy stores it.
trait Scalar: Datum + Copy {
    /// Kind and size, as in numpy's type strings, without the byte order.
    const CODE: &'static str;
    /// From `size_of::<Self>()` little-endian bytes.
    fn decode(bytes: &[u8]) -> Option<Self>;
    fn encode(self, to: &mut Vec<u8>);
}

macro_rules! scalar {
    ($($t:ty: $code:literal),* $(,)?) => { $(impl Scalar for $t {
        const CODE: &'static str = $code;
        fn decode(bytes: &[u8]) -> Option<Self> {
            Some(<$t>::from_le_bytes(bytes.try_into().ok()?))
        }
        fn encode(self, to: &mut Vec<u8>) {
            to.extend_from_slice(&self.to_le_bytes());
        }
    })* };
}

scalar!(
    f32: "f4", f64: "f8", f16: "f2", i8: "i1", i16: "i2", i32: "i4", i64: "i8", u8: "u1", u16: "u2", u32: "u4", u64: "u8",
);

impl Scalar for bool {
    const CODE: &'static str = "b1";
    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
    fn encode(self, to: &mut Vec<u8>) {
        to.push(self as u8);
    }
}

/// One function of a kind for each type that has a [`Scalar`].
macro_rules! of_each_scalar {
    ($f:ident) => {
        [
            $f::<f32>, $f::<f64>, $f::<f16>, $f::<i64>, $f::<i32>, $f::<i16>, $f::<i8>, $f::<u64>, $f::<u32>,
            $f::<u16>, $f::<u8>, $f::<bool>,
        ]
    };
}

#[derive(Clone, Copy)]
struct Element<T>(T);

impl<T: Scalar> ReadableElement for Element<T> {
    fn read_to_end_exact_vec<R: Read>(reader: R, descriptor: &PyValue, len: usize) -> Result<Vec<Self>, ReadDataError> {
        let wrong = || ReadDataError::WrongDescriptor(descriptor.clone());
        let PyValue::String(text) = descriptor else { return Err(wrong()) };
        let (order, code) = text.split_at_checked(1).ok_or_else(wrong)?;
        if code != T::CODE {
            return Err(wrong());
        }
        let size = size_of::<T>();
        let total = len.checked_mul(size).ok_or(ReadDataError::MissingData)?;
        let mut bytes = vec![];
        reader.take(total as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() != total {
            return Err(if bytes.len() < total { ReadDataError::MissingData } else { ReadDataError::ExtraBytes(1) });
        }
        if order == ">" {
            bytes.chunks_exact_mut(size).for_each(|scalar| scalar.reverse());
        }
        let scalars = bytes.chunks_exact(size).map(|scalar| T::decode(scalar).map(Element));
        scalars.collect::<Option<Vec<_>>>().ok_or_else(|| ReadDataError::ParseData("a value is no boolean".into()))
    }
}

impl<T: Scalar> WritableElement for Element<T> {
    fn type_descriptor() -> PyValue {
        let order = if size_of::<T>() == 1 { '|' } else { '<' };
        PyValue::String(format!("{order}{}", T::CODE))
    }

    fn write<W: Write>(&self, writer: W) -> Result<(), WriteDataError> {
        Self::write_slice(std::slice::from_ref(self), writer)
    }

    fn write_slice<W: Write>(slice: &[Self], mut writer: W) -> Result<(), WriteDataError> {
        let mut bytes = Vec::with_capacity(size_of_val(slice));
        slice.iter().for_each(|element| element.0.encode(&mut bytes));
        Ok(writer.write_all(&bytes)?)
    }
}

/// In standard layout, whatever the file's.
fn tensor<T: Scalar>(array: ArrayD<Element<T>>) -> Arc<Tensor> {
    array.as_standard_layout().mapv(|element| element.0).into_tensor().into_arc_tensor()
}

fn unknown_type(descriptor: &PyValue) -> anyhow::Error {
    format_err!("type: descr={descriptor}, only floats of 16 to 64 bits, integers and booleans are read")
}

type Npz = NpzReader<BufReader<File>>;

/// Reads a whole npz file.
pub fn read_npz(path: &Path) -> TractResult<Arrays> {
    let read = || -> TractResult<Arrays> {
        let mut npz = NpzReader::new(BufReader::new(File::open(path)?))?;
        let names = npz.names()?;
        let array = |name: &String| {
            let tensor = read_member(&mut npz, name).with_context(|| format!("array {name}"))?;
            Ok((name.clone(), tensor))
        };
        names.iter().map(array).collect()
    };
    read().with_context(|| format!("reading {}", path.display()))
}

fn read_member(npz: &mut Npz, name: &str) -> TractResult<Arc<Tensor>> {
    fn attempt<T: Scalar>(npz: &mut Npz, name: &str) -> Result<Arc<Tensor>, ReadNpzError> {
        Ok(tensor(npz.by_name::<OwnedRepr<Element<T>>, IxDyn>(name)?))
    }
    let mut unknown = PyValue::None;
    for attempt in of_each_scalar!(attempt) {
        match attempt(npz, name) {
            Err(ReadNpzError::Npy(ReadNpyError::WrongDescriptor(found))) => unknown = found,
            done => return Ok(done?),
        }
    }
    Err(unknown_type(&unknown))
}

/// Reads an npy file.
pub fn read_npy(path: &Path) -> TractResult<Arc<Tensor>> {
    fn attempt<T: Scalar>(path: &Path) -> Result<Arc<Tensor>, ReadNpyError> {
        Ok(tensor(ArrayD::<Element<T>>::read_npy(BufReader::new(File::open(path)?))?))
    }
    let read = || -> TractResult<Arc<Tensor>> {
        let mut unknown = PyValue::None;
        for attempt in of_each_scalar!(attempt) {
            match attempt(path) {
                Err(ReadNpyError::WrongDescriptor(found)) => unknown = found,
                done => return Ok(done?),
            }
        }
        Err(unknown_type(&unknown))
    };
    read().with_context(|| format!("reading {}", path.display()))
}

/// Writes an npz file, uncompressed.
pub fn write_npz(path: &Path, arrays: &[(String, Arc<Tensor>)]) -> TractResult<()> {
    let write = || -> TractResult<()> {
        let mut npz = NpzWriter::new(File::create(path)?);
        for (name, tensor) in arrays {
            add_member(&mut npz, name, tensor).with_context(|| format!("array {name}"))?;
        }
        npz.finish()?;
        Ok(())
    };
    write().with_context(|| format!("writing {}", path.display()))
}

fn add_member(npz: &mut NpzWriter<File>, name: &str, tensor: &Tensor) -> TractResult<()> {
    /// Whether the tensor was of this type.
    fn attempt<T: Scalar>(npz: &mut NpzWriter<File>, name: &str, tensor: &Tensor) -> TractResult<bool> {
        if tensor.datum_type() != T::datum_type() {
            return Ok(false);
        }
        npz.add_array(name, &tensor.to_plain_array_view::<T>()?.mapv(Element))?;
        Ok(true)
    }
    for attempt in of_each_scalar!(attempt) {
        if attempt(npz, name, tensor)? {
            return Ok(());
        }
    }
    bail!("type: datum_type={:?}, npz files hold floats, integers and booleans", tensor.datum_type())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.npz");
        let mut arrays: Arrays = vec![];
        fn add<T: Scalar>(arrays: &mut Arrays) {
            let ramp = tensor1(&[0i32, 1, 1, 0, 1, 0]).cast_to::<T>().unwrap().into_owned();
            arrays.push((format!("in__{}", T::CODE), ramp.into_shape(&[2, 3, 1]).unwrap().into_arc_tensor()));
            arrays.push((
                format!("{}_scalar", T::CODE),
                Tensor::zero_dt(T::datum_type(), &[]).unwrap().into_arc_tensor(),
            ));
            arrays.push((
                format!("{}_empty", T::CODE),
                Tensor::zero_dt(T::datum_type(), &[0, 3]).unwrap().into_arc_tensor(),
            ));
        }
        of_each_scalar!(add).iter().for_each(|add| add(&mut arrays));
        write_npz(&path, &arrays).unwrap();
        assert_eq!(read_npz(&path).unwrap(), arrays);
    }

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend_from_slice(&(header.len() as u16).to_le_bytes());
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(data);
        file
    }

    fn read(header: &str, data: &[u8]) -> TractResult<Arc<Tensor>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("x.npy");
        std::fs::write(&path, npy(header, data))?;
        read_npy(&path)
    }

    #[test]
    fn byte_order_and_axis_order_are_followed() {
        let big = read("{'descr': '>i2', 'fortran_order': False, 'shape': (2,), }\n", &[0, 1, 0, 2]).unwrap();
        assert_eq!(*big, tensor1(&[1i16, 2]));
        let fortran = read("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2), }\n", &[1, 2, 3, 4]).unwrap();
        assert_eq!(*fortran, tensor2(&[[1u8, 3], [2, 4]]));
    }

    #[test]
    fn a_header_that_claims_too_much_is_an_error() {
        let huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }\n";
        assert!(read(huge, &[0; 8]).is_err());
        assert!(read("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", &[0; 8]).is_err());
        assert!(read("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }\n", &[7]).is_err());
        let text =
            format!("{:#}", read("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }\n", &[0; 8]).unwrap_err());
        assert!(text.contains("<c8"), "{text}");
    }
}
