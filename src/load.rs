//! Loads models with bf16 tensors, for which tract has no type.

use crate::frontend::WithDeconv;
use crate::memory;
use std::io::Read;
use std::path::{Path, PathBuf};
use tract_hir::internal::*;
use tract_onnx::data_resolver;
use tract_onnx::model::Onnx;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto,
    type_proto,
};

/// The source of a model.
pub enum Source<'a> {
    /// A file. External data is read from its folder.
    Path(PathBuf),
    /// The bytes of a file, without external data.
    Reader(Box<dyn Read + 'a>),
    /// A decoded file, without external data.
    Proto(Box<ModelProto>),
}

impl<'a> Source<'a> {
    /// Returns a source that reads the bytes of a file.
    pub fn reader(reader: impl Read + 'a) -> Source<'a> {
        Source::Reader(Box::new(reader))
    }
}

impl From<&Path> for Source<'_> {
    fn from(path: &Path) -> Self {
        Source::Path(path.into())
    }
}

impl From<PathBuf> for Source<'_> {
    fn from(path: PathBuf) -> Self {
        Source::Path(path)
    }
}

impl From<&PathBuf> for Source<'_> {
    fn from(path: &PathBuf) -> Self {
        Source::Path(path.clone())
    }
}

impl From<&str> for Source<'_> {
    fn from(path: &str) -> Self {
        Source::Path(path.into())
    }
}

impl From<&String> for Source<'_> {
    fn from(path: &String) -> Self {
        Source::Path(path.into())
    }
}

impl<'a> From<&'a mut dyn Read> for Source<'a> {
    fn from(reader: &'a mut dyn Read) -> Self {
        Source::Reader(Box::new(reader))
    }
}

impl From<ModelProto> for Source<'_> {
    fn from(proto: ModelProto) -> Self {
        Source::Proto(Box::new(proto))
    }
}

/// Loads a model with [`WithDeconv`] and converts its bf16 tensors to f32.
///
/// bf16 inputs become f32 inputs. Everything is computed in f32, and no result is rounded to bf16.
/// One warning in the log says so. A model without bf16 loads as with [`WithDeconv`] alone.
///
/// # Errors
/// A file that can not be read, or that tract or this crate refuses.
pub fn load<'a>(source: impl Into<Source<'a>>) -> TractResult<InferenceModel> {
    load_with(&tract_onnx::onnx().with_deconv(), source)
}

/// Loads a model as [`load`] does, with the operators of any framework, such as
/// `onnx().with_deconv().with_conv()`.
///
/// # Errors
/// As [`load`].
pub fn load_with<'a>(onnx: &Onnx, source: impl Into<Source<'a>>) -> TractResult<InferenceModel> {
    let (mut proto, folder) = match source.into() {
        Source::Path(path) => {
            let proto = onnx.proto_model_for_path(&path).with_context(|| format!("model: path={}", path.display()))?;
            (proto, path.parent().map(|folder| folder.to_path_buf()))
        }
        Source::Reader(mut reader) => (onnx.proto_model_for_read(&mut reader)?, None),
        Source::Proto(proto) => (*proto, None),
    };
    widen_bf16(&mut proto, folder.as_deref())?;
    let folder = folder
        .map(|folder| folder.to_str().map(|s| s.to_string()).context("model: the folder's name is not utf-8"))
        .transpose()?;
    let parsed = onnx.parse(&proto, folder.as_deref())?;
    ensure!(parsed.unresolved_inputs.is_empty(), "model: inputs {:?} come from nowhere", parsed.unresolved_inputs);
    Ok(parsed.model)
}

/// Converts every bf16 tensor of a model to f32, and logs a warning.
///
/// Initialisers, inputs, outputs, inner values, attributes and casts to bf16 are converted, in
/// nested graphs and functions too. External data is read from `folder`.
///
/// Returns the number of tensors and attributes that it changed.
///
/// # Errors
/// Tensor data that is missing or of the wrong length.
pub fn widen_bf16(proto: &mut ModelProto, folder: Option<&Path>) -> TractResult<usize> {
    let mut widening = Widening { folder, changed: 0 };
    if let Some(graph) = &mut proto.graph {
        widening.graph(graph)?;
    }
    for function in &mut proto.functions {
        widening.function(function)?;
    }
    if widening.changed > 0 {
        log::warn!(
            "the model has {} bf16 tensors and types, which tract lacks: they are f32 from here on",
            widening.changed
        );
    }
    Ok(widening.changed)
}

const BF16: i32 = DataType::Bfloat16 as i32;
const F32: i32 = DataType::Float as i32;

/// The attributes of ONNX's own operators whose value is an element type.
const TYPE_ATTRIBUTES: [&str; 7] =
    ["to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"];

struct Widening<'a> {
    folder: Option<&'a Path>,
    changed: usize,
}

impl Widening<'_> {
    fn graph(&mut self, graph: &mut GraphProto) -> TractResult<()> {
        for tensor in &mut graph.initializer {
            self.tensor(tensor)?;
        }
        for sparse in &mut graph.sparse_initializer {
            if let Some(values) = &mut sparse.values {
                self.tensor(values)?;
            }
        }
        let infos = [&mut graph.input, &mut graph.output, &mut graph.value_info];
        for info in infos.into_iter().flatten() {
            self.info(info);
        }
        graph.node.iter_mut().try_for_each(|node| self.node(node))
    }

    fn function(&mut self, function: &mut FunctionProto) -> TractResult<()> {
        function.node.iter_mut().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &mut NodeProto) -> TractResult<()> {
        let standard = matches!(&*node.domain, "" | "ai.onnx");
        for attribute in &mut node.attribute {
            if standard && TYPE_ATTRIBUTES.contains(&&*attribute.name) && attribute.i == BF16 as i64 {
                attribute.i = F32 as i64;
                self.changed += 1;
            }
            self.attribute(attribute).with_context(|| format!("node: name={}", node.name))?;
        }
        Ok(())
    }

    fn attribute(&mut self, attribute: &mut AttributeProto) -> TractResult<()> {
        for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors) {
            self.tensor(tensor)?;
        }
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            self.graph(graph)?;
        }
        Ok(())
    }

    fn info(&mut self, info: &mut ValueInfoProto) {
        if let Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), .. }) = &mut info.r#type
            && tensor.elem_type == BF16
        {
            tensor.elem_type = F32;
            self.changed += 1;
        }
    }

    fn tensor(&mut self, tensor: &mut TensorProto) -> TractResult<()> {
        if tensor.data_type != BF16 {
            return Ok(());
        }
        let name = tensor.name.clone();
        let values = self.values(tensor).with_context(|| format!("tensor: name={name}"))?;
        let len = tensor
            .dims
            .iter()
            .try_fold(1usize, |len, dim| len.checked_mul(usize::try_from(*dim).ok()?))
            .with_context(|| format!("tensor: name={name}, the shape {:?} is not one", tensor.dims))?;
        ensure!(values.len() == len, "tensor: name={name}, {} values for the shape {:?}", values.len(), tensor.dims);
        tensor.data_type = F32;
        tensor.data_location = None;
        tensor.external_data.clear();
        tensor.raw_data = Default::default();
        tensor.int32_data.clear();
        tensor.float_data = values;
        self.changed += 1;
        Ok(())
    }

    fn values(&self, tensor: &TensorProto) -> TractResult<Vec<f32>> {
        let external = tensor.data_location == Some(DataLocation::External as i32);
        if external && tensor.raw_data.is_empty() {
            return from_bytes(&self.external(tensor)?);
        }
        if !tensor.raw_data.is_empty() {
            return from_bytes(&tensor.raw_data);
        }
        let mut values = memory::reserved("data", tensor.int32_data.len())?;
        for bits in &tensor.int32_data {
            values.push(widen(u16::try_from(*bits).ok().context("data: a value is not of 16 bits")?));
        }
        Ok(values)
    }

    /// Reads the external data of a tensor.
    fn external(&self, tensor: &TensorProto) -> TractResult<Vec<u8>> {
        let folder = self.folder.context("external data: the model's folder is not known")?;
        let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value);
        let number = |key: &str| {
            entry(key)
                .map(|value| value.parse::<usize>().with_context(|| format!("external data: {key}={value}")))
                .transpose()
        };
        let location = entry("location").context("external data: location is missing")?;
        let inside = Path::new(location)
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
        ensure!(inside, "external data: location={location}, it must be inside the model's folder");
        // links must not lead out of the folder either; tract checks this for the other types
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = folder.canonicalize().context("external data: the model's folder")?;
        let file = folder.join(location);
        let file = file.canonicalize().with_context(|| format!("external data: location={location}"))?;
        ensure!(file.starts_with(&folder), "external data: location={location}, it must be inside the model's folder");
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        // the resolver does not check for room: reserve it first
        let present = usize::try_from(file.metadata()?.len())?.saturating_sub(offset);
        let mut bytes = memory::reserved("external data", length.unwrap_or(present).min(present))?;
        data_resolver::default().read_bytes_from_path(&mut bytes, &file, offset, length)?;
        Ok(bytes)
    }
}

fn from_bytes(bytes: &[u8]) -> TractResult<Vec<f32>> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    ensure!(rest.is_empty(), "data: bytes={}, two per value are needed", bytes.len());
    memory::collected("data", pairs.iter().map(|pair| widen(u16::from_le_bytes(*pair))))
}

/// A bf16 is the upper half of an f32.
fn widen(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{attribute, info, int, model, node, one, x3};

    fn narrow(values: &[f32]) -> Vec<u16> {
        values.iter().map(|v| (v.to_bits() >> 16) as u16).collect()
    }

    /// A ConvTranspose of x and the filter `0 1 2` in bf16, then a Cast to bf16.
    fn bf16(filter: impl Fn(&mut TensorProto, Vec<u16>)) -> ModelProto {
        let mut proto = one(&[]);
        let graph = proto.graph.as_mut().unwrap();
        graph.input[0] = info("x", DataType::Bfloat16, &["1", "1", "3"]);
        graph.output[0] = info("y", DataType::Bfloat16, &["1", "1", "5"]);
        let w = &mut graph.initializer[0];
        w.data_type = BF16;
        w.float_data.clear();
        filter(w, narrow(&[0., 1., 2.]));
        graph.node[0].output[0] = "z".into();
        graph.node.push(NodeProto { name: "cast".into(), ..node("", "Cast", &["z"], &[int("to", BF16 as i64)]) });
        proto
    }

    fn check(source: Source) -> TractResult<()> {
        let model = load(source)?.into_optimized()?;
        assert_eq!(model.input_fact(0)?.datum_type, f32::datum_type());
        let y = model.into_runnable()?.run(tvec!(x3().into_tvalue()))?.remove(0);
        assert_eq!(*y, tensor3(&[[[0f32, 0., 1., 4., 4.]]]));
        Ok(())
    }

    #[test]
    fn bf16_in_int32_data() -> TractResult<()> {
        check(bf16(|w, bits| w.int32_data = bits.iter().map(|b| *b as i32).collect()).into())
    }

    #[test]
    fn bf16_in_raw_data_through_a_reader() -> TractResult<()> {
        let proto = bf16(|w, bits| w.raw_data = bits.iter().flat_map(|b| b.to_le_bytes()).collect());
        let bytes = prost::Message::encode_to_vec(&proto);
        check(Source::reader(&*bytes))
    }

    #[test]
    #[cfg(not(target_family = "wasm"))] // it has no folder for temporary files
    fn bf16_in_external_data_beside_the_model() -> TractResult<()> {
        use tract_onnx::pb::StringStringEntryProto;
        let folder = tempfile::tempdir()?;
        let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
        let write = |location: &str| -> TractResult<PathBuf> {
            let proto = bf16(|w, bits| {
                let bytes: Vec<u8> = [7, 7].into_iter().chain(bits.iter().flat_map(|b| b.to_le_bytes())).collect();
                std::fs::write(folder.path().join("weights.bin"), bytes).unwrap();
                w.data_location = Some(DataLocation::External as i32);
                w.external_data = vec![entry("location", location), entry("offset", "2"), entry("length", "6")];
            });
            let path = folder.path().join("model.onnx");
            std::fs::write(&path, prost::Message::encode_to_vec(&proto))?;
            Ok(path)
        };
        check(write("weights.bin")?.into())?;
        let error = format!("{:#}", load(write("../weights.bin")?).expect_err("outside the folder"));
        assert!(error.contains("location=../weights.bin"), "{error}");
        Ok(())
    }

    #[test]
    fn nested_graphs_and_constants_are_widened() -> TractResult<()> {
        let mut constant = attribute("value");
        constant.r#type = tract_onnx::pb::attribute_proto::AttributeType::Tensor as i32;
        constant.t = Some(TensorProto {
            data_type: BF16,
            int32_data: narrow(&[1.5]).iter().map(|b| *b as i32).collect(),
            ..TensorProto::default()
        });
        let mut body = attribute("body");
        body.g = Some(GraphProto { node: vec![node("", "Constant", &[], &[constant])], ..GraphProto::default() });
        let mut proto = model(vec![], vec![], vec![node("", "If", &["c"], &[body])]);
        assert_eq!(widen_bf16(&mut proto, None)?, 1);
        let inner = proto.graph.unwrap().node[0].attribute[0].g.clone().unwrap();
        let tensor = inner.node[0].attribute[0].t.clone().unwrap();
        assert_eq!((tensor.data_type, &*tensor.float_data), (F32, &[1.5][..]));
        Ok(())
    }

    #[test]
    fn wrong_data_is_refused() {
        let mut short = bf16(|w, bits| w.int32_data = bits[1..].iter().map(|b| *b as i32).collect());
        let error = format!("{:#}", widen_bf16(&mut short, None).expect_err("two values for three"));
        assert!(error.contains("tensor: name=w, 2 values for the shape [1, 1, 3]"), "{error}");
        let mut odd = bf16(|w, _| w.raw_data = vec![0; 5]);
        assert!(widen_bf16(&mut odd, None).is_err());
    }
}
