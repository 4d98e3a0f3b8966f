//! Conformance cases: reading them from JSON, making one-node models of them, and comparing
//! results.

use super::oracle::FromTensor;
use super::proto::{Dim, Model, Node, sizes};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use tract_core::internal::tract_ndarray::ArrayD;
use tract_core::internal::*;
use tract_onnx::pb::ModelProto;

/// The files of cases that `tools/conformance_cases.py` writes.
pub fn own_files() -> Vec<PathBuf> {
    files_of(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data").as_ref())
}

/// Returns the files of cases in a folder, of which there must be at least one.
pub fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "json"));
    files.sort();
    assert!(!files.is_empty(), "no file of cases in {}", folder.display());
    files
}

/// Returns the folder of conformance cases that other runtimes computed, if there is one.
///
/// `TRACT_DECONV_CONFORMANCE` names it. By default it is next to the checkout.
pub fn folder() -> Option<PathBuf> {
    let beside = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/conformance"));
    let folder = match std::env::var_os("TRACT_DECONV_CONFORMANCE") {
        Some(named) => {
            let folder = PathBuf::from(named);
            assert!(folder.is_dir(), "TRACT_DECONV_CONFORMANCE: folder={}, it does not exist", folder.display());
            folder
        }
        None => beside(),
    };
    let cases = folder.join("cases");
    [cases, folder].into_iter().find(|f| f.is_dir())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    Onnx,
    OpenVino,
    OneDnn,
}

/// The expected result of a case.
#[derive(Clone, Debug)]
pub enum Expect {
    Values(ArrayD<f64>),
    Digest {
        shape: Vec<usize>,
        sum: i64,
        weighted_sum: i64,
        first: Vec<i64>,
    },
    /// The case must fail. The error must contain one of the names, if there are any.
    Reject {
        names: Vec<String>,
        why: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Case {
    pub id: String,
    pub dialect: Dialect,
    pub op: String,
    pub opset: i64,
    pub attributes: Map<String, Value>,
    pub x: Tensor,
    pub w: Tensor,
    pub b: Option<Tensor>,
    pub output_shape: Option<Vec<i64>>,
    pub output_shape_at_run_time: bool,
    pub tolerance: Option<f64>,
    pub expect: Expect,
}

/// The roles of filter, bias and shapes in the model of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Filter and bias are initialisers, and the input's shape is known.
    Constant,
    /// Filter and bias are graph inputs.
    Inputs,
    /// Filter and bias are initialisers, and batch and spatial sizes are symbols.
    Symbolic,
}

impl Wiring {
    pub const ALL: [Wiring; 3] = [Wiring::Constant, Wiring::Inputs, Wiring::Symbolic];
}

impl Case {
    /// Reads the cases of a file.
    pub fn read(file: &Path) -> Result<Vec<Case>, String> {
        let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
        let json: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let cases = json["cases"].as_array().ok_or("no list of cases")?;
        cases.iter().map(|case| Case::parse(case).ok_or_else(|| format!("can't read {}", case["id"]))).collect()
    }

    fn parse(case: &Value) -> Option<Case> {
        let dialect = match case["dialect"].as_str()? {
            "onnx" => Dialect::Onnx,
            "openvino" => Dialect::OpenVino,
            "onednn" => Dialect::OneDnn,
            _ => return None,
        };
        let optional = |key: &str| case.get(key).filter(|value| !value.is_null());
        let b = match optional("b") {
            Some(b) => Some(tensor(b)?),
            None => None,
        };
        let output_shape = match optional("output_shape") {
            Some(shape) => Some(integers(shape)?),
            None => None,
        };
        let expect = if case.get("expect").and_then(Value::as_str) == Some("reject") {
            let names = case["names"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_string);
            Expect::Reject { names: names.collect(), why: case["why"].as_str().map(str::to_string) }
        } else if let Some(digest) = optional("y_digest") {
            Expect::Digest {
                shape: shape(digest)?,
                sum: digest["sum"].as_i64()?,
                weighted_sum: digest["wsum"].as_i64()?,
                first: integers(&digest["first16"])?,
            }
        } else {
            let y = &case["y"];
            let values = y["data"].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?;
            Expect::Values(ArrayD::from_shape_vec(shape(y)?, values).ok()?)
        };
        Some(Case {
            id: case["id"].as_str()?.into(),
            dialect,
            op: case["op"].as_str()?.into(),
            opset: case["opset"].as_i64().unwrap_or(11),
            attributes: case["attrs"].as_object()?.clone(),
            x: tensor(&case["x"])?,
            w: tensor(&case["w"])?,
            b,
            output_shape,
            output_shape_at_run_time: case["output_shape_input"].as_str() == Some("runtime"),
            tolerance: case["tol"].as_f64(),
            expect,
        })
    }

    /// Returns the model and its inputs. `variant` selects one of several equivalent spellings.
    pub fn model(&self, wiring: Wiring, variant: usize) -> (ModelProto, Vec<Tensor>) {
        let mut node = Node::new(&self.op).named("deconvolution").output("y");
        node = node.domain(match self.dialect {
            Dialect::Onnx => ["", "ai.onnx"][variant % 2],
            Dialect::OpenVino => ["org.openvinotoolkit", "ai.intel.openvino", ""][variant % 3],
            Dialect::OneDnn => "onednn",
        });
        let commas = self.dialect == Dialect::OpenVino && (variant / 3).is_multiple_of(2);
        for (name, value) in &self.attributes {
            node = match value {
                Value::Array(_) => {
                    let values = integers(value).expect("a list of integers");
                    if commas { node.comma_string(name, &values) } else { node.ints(name, &values) }
                }
                Value::String(text) => self.string_attribute(node, name, text, variant),
                other => node.int(name, other.as_i64().expect("an integer")),
            };
        }
        if self.dialect == Dialect::OpenVino && variant.is_multiple_of(5) {
            node = node.string("version", "opset1");
        }

        let mut inputs = vec![self.x.clone()];
        let x_shape: Vec<Dim> = match wiring {
            Wiring::Symbolic => {
                let channels = if self.data_format_is_nxc() { self.x.rank() - 1 } else { 1 };
                let dim = |(ax, size): (usize, &usize)| {
                    if ax == channels { Dim::Size(*size) } else { Dim::Symbol(format!("D{ax}")) }
                };
                self.x.shape().iter().enumerate().map(dim).collect()
            }
            _ => sizes(self.x.shape()),
        };
        let mut model = Model::opset(self.opset).input("x", self.x.datum_type(), &x_shape);
        let mut add = |mut model: Model, name: &str, tensor: &Tensor, constant: bool| {
            if constant {
                model = model.initializer(name, tensor);
            } else {
                model = model.input(name, tensor.datum_type(), &sizes(tensor.shape()));
                inputs.push(tensor.clone());
            }
            model
        };
        node = node.input("x").input("w");
        model = add(model, "w", &self.w, wiring != Wiring::Inputs);
        if let Some(b) = &self.b {
            node = node.input("b");
            model = add(model, "b", b, wiring != Wiring::Inputs);
        } else if self.dialect != Dialect::OpenVino && variant.is_multiple_of(4) {
            node = node.input("");
        }
        if let Some(shape) = &self.output_shape {
            let types = [DatumType::I64, DatumType::I32, DatumType::U64, DatumType::I16, DatumType::U8];
            let shape = tensor1(shape).cast_to_dt(types[variant % types.len()]).expect("integers").into_owned();
            node = node.input("output_shape");
            model = add(model, "output_shape", &shape, !self.output_shape_at_run_time);
        }
        (model.node(node).output("y").build(), inputs)
    }

    fn data_format_is_nxc(&self) -> bool {
        self.attributes.get("data_format").and_then(Value::as_str) == Some("NXC")
    }

    fn string_attribute(&self, node: Node, name: &str, text: &str, variant: usize) -> Node {
        match (self.dialect, name, text) {
            (Dialect::OpenVino | Dialect::OneDnn, "auto_pad", _) if variant.is_multiple_of(2) => {
                node.string(name, &text.to_uppercase())
            }
            (Dialect::OpenVino | Dialect::OneDnn, "auto_pad", _) => node.string(name, &text.to_lowercase()),
            // These are the defaults, so they are left out.
            (Dialect::OneDnn, "data_format", "NXC") | (Dialect::OneDnn, "filter_format", "XIO")
                if variant.is_multiple_of(3) =>
            {
                node
            }
            // The later name of the attribute.
            (Dialect::OneDnn, "filter_format", "XOI" | "IOX") if variant.is_multiple_of(2) => {
                node.string("weights_format", text)
            }
            _ => node.string(name, text),
        }
    }

    /// Compares a result. All numbers of a case without tolerance are small integers, exact in
    /// every type.
    pub fn check(&self, got: &Tensor) -> Result<(), String> {
        if got.datum_type() != self.x.datum_type() {
            return Err(format!("element type {:?} for {:?}", got.datum_type(), self.x.datum_type()));
        }
        let values = f64::from_tensor(got);
        match &self.expect {
            Expect::Reject { .. } => Err("it was accepted, an error was expected".into()),
            Expect::Values(want) => {
                if got.shape() != want.shape() {
                    return Err(format!("shape {:?}, {:?} was expected", got.shape(), want.shape()));
                }
                for (at, (got, want)) in values.iter().zip(want).enumerate() {
                    let allowed = self.tolerance.map_or(0.0, |tolerance| tolerance * (1.0 + want.abs()));
                    if (got - want).abs() > allowed || got.is_nan() {
                        return Err(format!("element {at}: {got} for {want}"));
                    }
                }
                Ok(())
            }
            Expect::Digest { shape, sum, weighted_sum, first } => {
                if got.shape() != shape {
                    return Err(format!("shape {:?}, {shape:?} was expected", got.shape()));
                }
                if values.iter().any(|v| v.fract() != 0.0) {
                    return Err("values that are no integers".into());
                }
                let values: Vec<i64> = values.iter().map(|v| *v as i64).collect();
                let begin = &values[..first.len().min(values.len())];
                let weighted: i64 = values.iter().enumerate().map(|(i, v)| v * (i as i64 % 97 + 1)).sum();
                if begin != first || values.iter().sum::<i64>() != *sum || weighted != *weighted_sum {
                    return Err(format!("another digest: {begin:?}.. for {first:?}.."));
                }
                Ok(())
            }
        }
    }
}

fn integers(value: &Value) -> Option<Vec<i64>> {
    value.as_array()?.iter().map(Value::as_i64).collect()
}

fn shape(value: &Value) -> Option<Vec<usize>> {
    Some(integers(&value["shape"])?.into_iter().map(|d| d as usize).collect())
}

fn tensor(value: &Value) -> Option<Tensor> {
    let dt = match value["dtype"].as_str()? {
        "f16" => DatumType::F16,
        "f32" => DatumType::F32,
        "f64" => DatumType::F64,
        "i8" => DatumType::I8,
        "u8" => DatumType::U8,
        "i16" => DatumType::I16,
        "u16" => DatumType::U16,
        "i32" => DatumType::I32,
        "u32" => DatumType::U32,
        "i64" => DatumType::I64,
        "u64" => DatumType::U64,
        _ => return None,
    };
    let shape = shape(value)?;
    let values: Tensor = if let Some(seed) = value.get("seed") {
        let mut state = seed.as_u64()?;
        let next = || {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            (state >> 16) as i64 % 9 - 4
        };
        ArrayD::from_shape_simple_fn(shape, next).into()
    } else if dt.is_float() {
        let values = value["data"].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?;
        ArrayD::from_shape_vec(shape, values).ok()?.into()
    } else {
        ArrayD::from_shape_vec(shape, integers(&value["data"])?).ok()?.into()
    };
    Some(values.cast_to_dt(dt).ok()?.into_owned())
}
