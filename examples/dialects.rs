//! Puts an OpenVINO node and a oneDNN node into an ONNX graph, explains them, and runs the graph:
//! `cargo run --example dialects`.
//!
//! The graph repeats every pixel of a picture four times on both axes, twice in each node.

use anyhow::{Result, ensure};
use tract_deconv::{WithDeconv, explain};
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension::Value};
use tract_onnx::pb::{self, AttributeProto, NodeProto};
use tract_onnx::prelude::*;

const COLOURS: usize = 3;

pub fn main() -> Result<()> {
    let typed = tract_onnx::onnx().with_deconv().model_for_proto_model(&graph())?.into_typed()?;

    let sizes = ["height", "width"].map(|name| typed.symbols.sym(name));
    let values = SymbolValues::default().with(&sizes[0], 4).with(&sizes[1], 5);
    for explanation in explain(&typed, &values)? {
        println!("{explanation}\n");
    }

    let model = typed.into_optimized()?.into_runnable()?;
    let picture =
        tract_ndarray::Array4::from_shape_fn((1, COLOURS, 4, 5), |(_, c, y, x)| (100 * c + 10 * y + x) as f32);
    let larger = model.run(tvec!(picture.clone().into_tvalue()))?.remove(0);
    let pixels = larger.to_plain_array_view::<f32>()?;
    ensure!(pixels.shape() == [1, 16, 20, COLOURS], "shape={:?}", pixels.shape());
    let repeated = |((_, c, y, x), pixel): ((usize, usize, usize, usize), &f32)| {
        (0..4).all(|row| (0..4).all(|column| pixels[[0, 4 * y + row, 4 * x + column, c]] == *pixel))
    };
    ensure!(picture.indexed_iter().all(repeated), "the picture is not the one that came in");
    println!("{:?} became {:?}", picture.shape(), pixels.shape());
    Ok(())
}

/// Returns a graph from a picture `[1, colours, height, width]` to one
/// `[1, 4·height, 4·width, colours]`.
pub fn graph() -> pb::ModelProto {
    let ones = |name: &str, dims: &[usize]| pb::TensorProto {
        name: name.into(),
        dims: dims.iter().map(|d| *d as i64).collect(),
        data_type: DataType::Float as i32,
        float_data: vec![1.0; dims.iter().product()],
        ..Default::default()
    };
    // one group per colour
    let openvino = NodeProto {
        // this domain makes it OpenVINO's, and so do `ai.intel.openvino` and none
        domain: "org.openvinotoolkit".into(),
        op_type: "GroupConvolutionBackpropData".into(),
        // strings as in OpenVINO's XML; lists of integers are accepted too
        attribute: vec![
            text("strides", "2,2"),
            text("dilations", "1,1"),
            text("pads_begin", "0,0"),
            text("pads_end", "0,0"),
        ],
        ..wired("twice", &["picture", "openvino.filter"])
    };
    let channels_last = NodeProto {
        op_type: "Transpose".into(),
        attribute: vec![ints("perm", &[0, 2, 3, 1])],
        ..wired("channels_last", &["twice"])
    };
    let onednn = NodeProto {
        // this domain makes it oneDNN's; without a domain, an operator of this name is ONNX's
        domain: "onednn".into(),
        op_type: "ConvTranspose".into(),
        attribute: vec![
            ints("strides", &[2, 2]),
            ints("dilations", &[1, 1]),
            ints("pads_begin", &[0, 0]),
            ints("pads_end", &[0, 0]),
            AttributeProto { r#type: AttributeType::Int as i32, i: COLOURS as i64, ..named("groups") },
            text("data_format", "NXC"),
            text("filter_format", "XIO"),
        ],
        ..wired("four_times", &["channels_last", "onednn.filter"])
    };
    let import = |domain: &str, version| pb::OperatorSetIdProto { domain: domain.into(), version };
    pb::ModelProto {
        ir_version: 8,
        opset_import: vec![import("", 13), import("org.openvinotoolkit", 1), import("onednn", 1)],
        graph: Some(pb::GraphProto {
            name: "two dialects".into(),
            input: vec![picture()],
            // [groups, inputs per group, outputs per group, height, width] and
            // [height, width, inputs, outputs per group]
            initializer: vec![
                ones("openvino.filter", &[COLOURS, 1, 1, 2, 2]),
                ones("onednn.filter", &[2, 2, COLOURS, 1]),
            ],
            node: vec![openvino, channels_last, onednn],
            output: vec![pb::ValueInfoProto { name: "four_times".into(), ..Default::default() }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn picture() -> pb::ValueInfoProto {
    let size = |size: usize| Value::DimValue(size as i64);
    let symbol = |name: &str| Value::DimParam(name.into());
    let dims = [size(1), size(COLOURS), symbol("height"), symbol("width")];
    let dim = dims.map(|value| Dimension { value: Some(value), ..Default::default() });
    let tensor = pb::type_proto::Tensor {
        elem_type: DataType::Float as i32,
        shape: Some(pb::TensorShapeProto { dim: dim.into() }),
    };
    let value = pb::type_proto::Value::TensorType(tensor);
    pb::ValueInfoProto {
        name: "picture".into(),
        r#type: Some(pb::TypeProto { value: Some(value), ..Default::default() }),
        ..Default::default()
    }
}

/// Returns a node whose output has its name.
fn wired(name: &str, inputs: &[&str]) -> NodeProto {
    NodeProto {
        name: name.into(),
        input: inputs.iter().map(|input| input.to_string()).collect(),
        output: vec![name.into()],
        ..Default::default()
    }
}

fn named(name: &str) -> AttributeProto {
    AttributeProto { name: name.into(), ..Default::default() }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { r#type: AttributeType::Ints as i32, ints: values.to_vec(), ..named(name) }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { r#type: AttributeType::String as i32, s: value.into(), ..named(name) }
}
