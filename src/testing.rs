//! Small models for unit tests, and a check of numbers in texts.

use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use crate::{WithConv, WithDeconv};
use tract_hir::internal::*;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};

pub(crate) fn attribute(name: &str) -> AttributeProto {
    AttributeProto { name: name.into(), ..AttributeProto::default() }
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { r#type: AttributeType::Ints as i32, ints: values.to_vec(), ..attribute(name) }
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { r#type: AttributeType::Int as i32, i: value, ..attribute(name) }
}

pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { r#type: AttributeType::String as i32, s: value.as_bytes().to_vec(), ..attribute(name) }
}

pub(crate) fn node(domain: &str, op_type: &str, inputs: &[&str], attributes: &[AttributeProto]) -> NodeProto {
    NodeProto {
        name: "node".into(),
        domain: domain.into(),
        op_type: op_type.into(),
        input: inputs.iter().map(|i| i.to_string()).collect(),
        output: vec!["y".into()],
        attribute: attributes.to_vec(),
        ..NodeProto::default()
    }
}

pub(crate) fn info(name: &str, elem_type: DataType, shape: &[&str]) -> ValueInfoProto {
    let dim = shape
        .iter()
        .map(|d| Dimension {
            value: Some(match d.parse() {
                Ok(size) => dimension::Value::DimValue(size),
                Err(_) => dimension::Value::DimParam(d.to_string()),
            }),
            ..Dimension::default()
        })
        .collect();
    let tensor = type_proto::Tensor { elem_type: elem_type as i32, shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

/// A transposed 3×3 convolution of stride 2, and the shape of a square input of one image.
pub(crate) fn spec_2d(size: usize, in_channels: usize, out_channels: usize) -> (DeconvSpec, TVec<usize>) {
    let spec = DeconvSpec {
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::Iox,
        in_channels,
        out_channels,
        group: 1,
        kernel: tvec!(3, 3),
        strides: tvec!(2, 2),
        dilations: tvec!(1, 1),
        padding: Padding::Explicit { begin: tvec!(1, 1), end: tvec!(1, 1) },
        output_padding: tvec!(0, 0),
    };
    (spec, tvec!(1, in_channels, size, size))
}

/// Returns a tensor of a shape with the values `0, 1, 2, ..`.
pub(crate) fn counting(name: &str, shape: &[i64]) -> TensorProto {
    let len: i64 = shape.iter().product();
    TensorProto {
        name: name.into(),
        dims: shape.to_vec(),
        data_type: DataType::Float as i32,
        float_data: (0..len).map(|v| v as f32).collect(),
        ..TensorProto::default()
    }
}

pub(crate) fn i64s(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub(crate) fn model(inputs: Vec<ValueInfoProto>, initializer: Vec<TensorProto>, node: Vec<NodeProto>) -> ModelProto {
    ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto { domain: "".into(), version: 11 }],
        graph: Some(GraphProto {
            name: "graph".into(),
            input: inputs,
            initializer,
            node,
            output: vec![ValueInfoProto { name: "y".into(), ..ValueInfoProto::default() }],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

pub(crate) fn load(proto: &ModelProto) -> TractResult<TypedModel> {
    tract_onnx::onnx().with_deconv().with_conv().model_for_proto_model(proto)?.into_typed()?.into_decluttered()
}

/// Loads and runs a model, decluttered and optimised, and checks that both give the same result.
pub(crate) fn run(proto: &ModelProto, inputs: &[Tensor]) -> TractResult<Tensor> {
    let inputs: TVec<TValue> = inputs.iter().map(|t| t.clone().into_tvalue()).collect();
    let model = load(proto)?;
    let plain = model.clone().into_runnable()?.run(inputs.clone())?.remove(0);
    let optimised = model.into_optimized()?.into_runnable()?.run(inputs)?.remove(0);
    plain.close_enough(&optimised, true)?;
    Ok(plain.into_tensor())
}

pub(crate) fn refusal(proto: &ModelProto, inputs: &[Tensor]) -> String {
    format!("{:#}", run(proto, inputs).expect_err("must be refused"))
}

/// Returns a ConvTranspose of X [1, 1, 3] and W [1, 1, 3], both counting from zero.
pub(crate) fn one(attributes: &[AttributeProto]) -> ModelProto {
    model(
        vec![info("x", DataType::Float, &["1", "1", "3"])],
        vec![counting("w", &[1, 1, 3])],
        vec![node("", "ConvTranspose", &["x", "w"], attributes)],
    )
}

pub(crate) fn x3() -> Tensor {
    tensor3(&[[[0f32, 1., 2.]]])
}

/// Checks that a text of the repository has some words, however its lines are broken.
///
/// The published crate lacks some texts, whose words are then not checked.
pub(crate) fn assert_documented(file: &str, words: &str) {
    let Ok(text) = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file)) else { return };
    let text: Vec<&str> = text.lines().flat_map(|line| line.trim_start_matches("//!").split_whitespace()).collect();
    assert!(text.join(" ").contains(words), "{file} does not say: {words}");
}
