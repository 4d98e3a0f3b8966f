//! Reads and writes tensors in npy and npz files, of every type that tract's ONNX models have.
//!
//! `ndarray-npy` knows the format, and [`Element`] adds f16. A header is compared with the file's
//! size, and both with limits, before anything is inflated.

use ndarray_npy::{
    NpzWriter, ReadDataError, ReadNpyError, ReadNpyExt, ReadableElement, WritableElement, WriteDataError,
};
use py_literal::Value as PyValue;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use tract_core::internal::tract_ndarray::ArrayD;
use tract_core::internal::*;
use zip::ZipArchive;

/// Named tensors, in file order.
pub type Arrays = Vec<(String, Arc<Tensor>)>;

/// A scalar as numpy stores it.
trait Scalar: Datum + Copy {
    /// The kind and size in numpy's type strings, without the byte order.
    const CODE: &'static str;
    /// Decodes `size_of::<Self>()` little-endian bytes.
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

/// Instantiates a function for each [`Scalar`] type.
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

/// Converts an array of any layout to a tensor in standard layout.
fn tensor<T: Scalar>(array: ArrayD<Element<T>>) -> Arc<Tensor> {
    array.as_standard_layout().mapv(|element| element.0).into_tensor().into_arc_tensor()
}

fn unknown_type(descriptor: &PyValue) -> anyhow::Error {
    format_err!("type: descr={descriptor}, only floats of 16 to 64 bits, integers and booleans are read")
}

/// The most bytes of all inflated arrays of an archive, and of an array by itself.
const MOST_BYTES: u64 = 4 << 30;
/// The most bytes of an npy header, which is numpy's limit.
const MOST_HEADER: usize = 10_000;
/// The deepest nesting of brackets in a header.
const DEEPEST_HEADER: usize = 8;

/// Reads a whole npz file.
pub fn read_npz(path: &Path) -> TractResult<Arrays> {
    let read = || -> TractResult<Arrays> {
        let mut zip = ZipArchive::new(BufReader::new(File::open(path)?))?;
        // check the total size before anything is inflated
        let mut names = vec![];
        let mut total = 0u64;
        for ix in 0..zip.len() {
            let entry = zip.by_index(ix)?;
            let name = entry.name();
            let array = name.strip_suffix(".npy").with_context(|| format!("entry {name}: it is no npy file"))?;
            names.push(array.to_string());
            total = total.saturating_add(entry.size());
        }
        check_bytes(total)?;
        let array = |(ix, name): (usize, String)| {
            let entry = zip.by_index(ix)?;
            let size = entry.size();
            let tensor = read_array(entry, size).with_context(|| format!("array {name}"))?;
            Ok((name, tensor))
        };
        names.into_iter().enumerate().map(array).collect()
    };
    read().with_context(|| format!("reading {}", path.display()))
}

/// Reads an npy file.
pub fn read_npy(path: &Path) -> TractResult<Arc<Tensor>> {
    let read = || -> TractResult<Arc<Tensor>> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        read_array(BufReader::new(file), size)
    };
    read().with_context(|| format!("reading {}", path.display()))
}

fn check_bytes(bytes: u64) -> TractResult<()> {
    ensure!(bytes <= MOST_BYTES, "arrays: bytes={bytes}, more than the limit of {MOST_BYTES}");
    Ok(())
}

/// Reads an array from a file of a declared `size`, and never more bytes than its header asks for.
fn read_array(mut file: impl Read, size: u64) -> TractResult<Arc<Tensor>> {
    fn attempt<T: Scalar>(code: &str, file: &[u8]) -> Option<Result<Arc<Tensor>, ReadNpyError>> {
        (code == T::CODE).then(|| Ok(tensor(ArrayD::<Element<T>>::read_npy(file)?)))
    }
    let mut bytes = header(&mut file)?;
    let declared = Declared::parse(&bytes)?;
    let total = declared.bytes.saturating_add(bytes.len() as u64);
    ensure!(size == total, "file: bytes={size}, its header makes them {total}");
    check_bytes(total)?;
    let data = usize::try_from(declared.bytes)?;
    bytes.try_reserve_exact(data).with_context(|| format!("file: bytes={size}, no memory holds them"))?;
    // the size that an archive declares may be false
    file.take(declared.bytes).read_to_end(&mut bytes)?;
    let tensor = of_each_scalar!(attempt).into_iter().find_map(|attempt| attempt(&declared.code, &bytes));
    Ok(tensor.with_context(|| unknown_type(&declared.descriptor))??)
}

/// Reads an npy file up to its data.
fn header(file: &mut impl Read) -> TractResult<Vec<u8>> {
    const MAGIC: &[u8] = b"\x93NUMPY";
    let mut bytes = vec![0; MAGIC.len() + 2];
    file.read_exact(&mut bytes).context("file: it is too short for an npy file")?;
    ensure!(bytes.starts_with(MAGIC), "file: it is no npy file");
    let digits = if bytes[MAGIC.len()] == 1 { 2 } else { 4 };
    let mut length = [0; 4];
    file.read_exact(&mut length[..digits]).context("header: its length is missing")?;
    bytes.extend_from_slice(&length[..digits]);
    let length = u32::from_le_bytes(length) as usize;
    ensure!(length <= MOST_HEADER, "header: bytes={length}, more than the limit of {MOST_HEADER}");
    let prefix = bytes.len();
    bytes.resize(prefix + length, 0);
    file.read_exact(&mut bytes[prefix..]).context("header: it ends too early")?;
    Ok(bytes)
}

/// The type and size of the data that a header declares.
struct Declared {
    descriptor: PyValue,
    /// The kind and size of a scalar, without the byte order.
    code: String,
    bytes: u64,
}

impl Declared {
    fn parse(header: &[u8]) -> TractResult<Declared> {
        let start = header.iter().position(|byte| *byte == b'{').context("header: it holds no dictionary")?;
        let text = std::str::from_utf8(&header[start..]).context("header: it is no text")?;
        let mut depth = 0usize;
        for byte in text.bytes() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            ensure!(depth <= DEEPEST_HEADER, "header: brackets are nested more than {DEEPEST_HEADER} deep");
        }
        let value: PyValue = text.trim_end().parse().context("header: it is no dictionary")?;
        let PyValue::Dict(entries) = &value else { bail!("header: it is no dictionary") };
        let entry = |name: &str| {
            let found = entries.iter().find(|(key, _)| matches!(key, PyValue::String(key) if key == name));
            found.map(|(_, value)| value).with_context(|| format!("header: {name} is missing"))
        };
        let descriptor = entry("descr")?;
        let code = match descriptor {
            PyValue::String(text) => text.get(1..).unwrap_or_default(),
            _ => "",
        };
        fn size<T: Scalar>(code: &str) -> Option<u64> {
            (code == T::CODE).then_some(size_of::<T>() as u64)
        }
        let scalar = of_each_scalar!(size).into_iter().find_map(|size| size(code));
        let scalar = scalar.with_context(|| unknown_type(descriptor))?;
        let (PyValue::Tuple(shape) | PyValue::List(shape)) = entry("shape")? else {
            bail!("header: shape={}, a tuple is needed", entry("shape")?)
        };
        // one empty axis makes the array empty, and the product of the others may overflow
        let dims: Option<Vec<u64>> = shape.iter().map(|dim| dim.to_string().parse().ok()).collect();
        let dims =
            dims.with_context(|| format!("header: shape={}, sizes are needed", PyValue::Tuple(shape.clone())))?;
        let bytes =
            if dims.contains(&0) { 0 } else { dims.iter().fold(scalar, |bytes, dim| bytes.saturating_mul(*dim)) };
        Ok(Declared { descriptor: descriptor.clone(), code: code.to_string(), bytes })
    }
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
    /// Adds the tensor if it has this type, and returns whether it does.
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
    fn archive(entries: &[(&str, &[u8])]) -> TractResult<Arrays> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("x.npz");
        let mut zip = zip::ZipWriter::new(File::create(&path)?);
        for (name, data) in entries {
            zip.start_file(*name, zip::write::SimpleFileOptions::default())?;
            zip.write_all(data)?;
        }
        zip.finish()?;
        read_npz(&path)
    }

    #[test]
    fn what_inflates_beyond_its_header_is_refused_before_it_does() {
        let one = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", &[0; 4]);
        assert_eq!(*archive(&[("x.npy", &one)]).unwrap()[0].1, tensor1(&[0f32]));
        let zeros = vec![0; 1 << 20];
        let bomb = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", &zeros);
        let long = [&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..], &zeros].concat();
        let deep = npy(&format!("{{'descr': '<f4', 'shape': {}}}", "(".repeat(5000)), &[]);
        for (name, data, words) in [
            ("x.npy", &bomb, "its header makes them"),
            ("x.npy", &long, "header: bytes=4294967295, more than the limit of 10000"),
            ("x.npy", &deep, "nested more than 8 deep"),
            ("inner.zip", &one, "entry inner.zip: it is no npy file"),
            ("x.npy", &b"PK\x03\x04, and more".to_vec(), "file: it is no npy file"),
            ("x.npy", &one[..5].to_vec(), "too short"),
        ] {
            let error = format!("{:#}", archive(&[(name, data)]).expect_err(words));
            assert!(error.contains(words), "{error}");
        }
        assert!(check_bytes(MOST_BYTES).is_ok() && check_bytes(MOST_BYTES + 1).is_err());
    }
}
