//! Builds ONNX graphs node by node.

use std::collections::BTreeSet;
use tract_onnx::pb::{self, attribute_proto::AttributeType, tensor_proto::DataType, tensor_shape_proto as shape};

/// A graph under construction. Every node has one output, named like the node itself.
#[derive(Default)]
pub struct Graph(pb::GraphProto);

impl Graph {
    pub fn new(name: &str) -> Graph {
        Graph(pb::GraphProto { name: name.into(), ..Default::default() })
    }

    /// Declares an f32 input. `dims` is a list of sizes and symbols: `"batch 3 height width"`.
    pub fn input(&mut self, name: &str, dims: &str) -> String {
        self.0.input.push(f32_value(name, dims));
        name.into()
    }

    /// Declares the f32 result of a node as an output.
    pub fn output(&mut self, name: &str, dims: &str) {
        self.0.output.push(f32_value(name, dims));
    }

    pub fn f32s(&mut self, name: &str, dims: &[usize], values: Vec<f32>) -> String {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "{name}: values do not fill dims");
        let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.initializer(name, dims, DataType::Float, raw)
    }

    pub fn i64s(&mut self, name: &str, values: &[i64]) -> String {
        let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.initializer(name, &[values.len()], DataType::Int64, raw)
    }

    fn initializer(&mut self, name: &str, dims: &[usize], dtype: DataType, raw: Vec<u8>) -> String {
        self.0.initializer.push(pb::TensorProto {
            name: name.into(),
            dims: dims.iter().map(|&d| d as i64).collect(),
            data_type: dtype as i32,
            raw_data: raw,
            ..Default::default()
        });
        name.into()
    }

    pub fn node(&mut self, name: &str, op_type: &str, inputs: &[&str], attribute: Vec<pb::AttributeProto>) -> String {
        self.node_of("", name, op_type, inputs, attribute)
    }

    /// Adds a node of another domain than ONNX's.
    pub fn node_of(
        &mut self,
        domain: &str,
        name: &str,
        op_type: &str,
        inputs: &[&str],
        attribute: Vec<pb::AttributeProto>,
    ) -> String {
        self.0.node.push(pb::NodeProto {
            name: name.into(),
            domain: domain.into(),
            op_type: op_type.into(),
            input: inputs.iter().map(|i| i.to_string()).collect(),
            output: vec![name.into()],
            attribute,
            ..Default::default()
        });
        name.into()
    }

    pub fn into_model(self, ir_version: i64, opset: i64, doc: &str) -> pb::ModelProto {
        let import = |domain: &str, version| pb::OperatorSetIdProto { domain: domain.into(), version };
        let domains: BTreeSet<&str> = self.0.node.iter().map(|node| &*node.domain).filter(|d| !d.is_empty()).collect();
        let others = domains.into_iter().map(|domain| import(domain, 1));
        pb::ModelProto {
            ir_version,
            opset_import: std::iter::once(import("", opset)).chain(others).collect(),
            producer_name: "tract-deconv make_models".into(),
            doc_string: doc.into(),
            graph: Some(self.0),
            ..Default::default()
        }
    }
}

fn f32_value(name: &str, dims: &str) -> pb::ValueInfoProto {
    let dim = dims
        .split_whitespace()
        .map(|token| {
            let value = match token.parse() {
                Ok(size) => shape::dimension::Value::DimValue(size),
                Err(_) => shape::dimension::Value::DimParam(token.into()),
            };
            shape::Dimension { value: Some(value), ..Default::default() }
        })
        .collect();
    let tensor =
        pb::type_proto::Tensor { elem_type: DataType::Float as i32, shape: Some(pb::TensorShapeProto { dim }) };
    pb::ValueInfoProto {
        name: name.into(),
        r#type: Some(pb::TypeProto { value: Some(pb::type_proto::Value::TensorType(tensor)), ..Default::default() }),
        ..Default::default()
    }
}

pub fn int(name: &str, i: i64) -> pb::AttributeProto {
    pb::AttributeProto { i, ..attribute(name, AttributeType::Int) }
}

pub fn ints(name: &str, ints: &[i64]) -> pb::AttributeProto {
    pb::AttributeProto { ints: ints.to_vec(), ..attribute(name, AttributeType::Ints) }
}

pub fn float(name: &str, f: f32) -> pb::AttributeProto {
    pb::AttributeProto { f, ..attribute(name, AttributeType::Float) }
}

pub fn string(name: &str, s: &str) -> pb::AttributeProto {
    pb::AttributeProto { s: s.into(), ..attribute(name, AttributeType::String) }
}

fn attribute(name: &str, r#type: AttributeType) -> pb::AttributeProto {
    pb::AttributeProto { name: name.into(), r#type: r#type as i32, ..Default::default() }
}
