//! What the OpenVINO and oneDNN dialects refuse, at load, while typing, or at run: errors that name node and attribute.
//!
//! ONNX's own refusals are in `gaps.rs`, and in the conformance cases.

mod common;

use common::proto::{Model, Node, sizes};
use common::random::Random;
use common::run::{Stage, guarded, load, refused, run};
use tract_core::internal::*;
use tract_onnx::pb::ModelProto;

const NAME: &str = "upsample7";

/// A node of an OpenVINO operator with its filter constant.
fn openvino(op: &str, attributes: impl FnOnce(Node) -> Node, x: &Tensor, w: &Tensor) -> ModelProto {
    Model::of_node(attributes(Node::new(op).domain("org.openvinotoolkit").named(NAME)), x, w)
}

/// Load, optimisation or run gives an error that holds the node's name and these words.
#[track_caller]
fn refuses(proto: &ModelProto, x: &Tensor, words: &[&str]) {
    for stage in Stage::ALL {
        for word in [NAME].iter().chain(words) {
            let result = guarded(|| run(stage.of(load(proto)?)?, std::slice::from_ref(x)));
            refused(result, &[word]).unwrap_or_else(|e| panic!("{stage:?}, {words:?}: {e}"));
        }
    }
}

#[test]
fn what_openvino_refuses() {
    let mut random = Random(23);
    let x = random.tensor(DatumType::F32, &[1, 4, 5, 6]);
    let w = random.tensor(DatumType::F32, &[2, 2, 3, 3, 3]);
    let lists: [(&str, &[i64]); 10] = [
        ("strides", &[0, 1]),
        ("strides", &[1, -1]),
        ("strides", &[2]),
        ("dilations", &[1, 0]),
        ("dilations", &[1, 1, 1]),
        ("pads_begin", &[1]),
        ("pads_end", &[1, 1, 1]),
        ("output_padding", &[0, -1]),
        ("output_padding", &[1]),
        ("output_padding", &[1 << 40, 0]),
    ];
    for (name, values) in lists {
        let joined: Vec<String> = values.iter().map(|v| v.to_string()).collect();
        let ints = openvino("GroupConvolutionBackpropData", |node| node.ints(name, values), &x, &w);
        refuses(&ints, &x, &[name, &joined[0]]);
        let commas = openvino("GroupConvolutionBackpropData", |node| node.comma_string(name, values), &x, &w);
        refuses(&commas, &x, &[name, &joined[0]]);
    }
    for text in ["2;2", "2,x", "2,,2", "2.0,2.0", "99999999999999999999,1"] {
        let proto = openvino("GroupConvolutionBackpropData", |node| node.string("strides", text), &x, &w);
        refuses(&proto, &x, &["strides", text]);
    }
    let proto = openvino("GroupConvolutionBackpropData", |node| node.int("strides", 2), &x, &w);
    refuses(&proto, &x, &["strides"]);
    let proto = openvino("GroupConvolutionBackpropData", |node| node.string("auto_pad", "same"), &x, &w);
    refuses(&proto, &x, &["auto_pad", "same"]);
    let pads = |node: Node| node.ints("pads_begin", &[9, 9]).ints("pads_end", &[9, 9]);
    refuses(&openvino("GroupConvolutionBackpropData", pads, &x, &w), &x, &["output size"]);
    // channels, ranks
    let three = random.tensor(DatumType::F32, &[3, 2, 3, 3, 3]);
    refuses(&openvino("GroupConvolutionBackpropData", |n| n, &x, &three), &x, &["channels"]);
    refuses(&openvino("ConvolutionBackpropData", |n| n, &x, &w), &x, &["rank"]);
    let four = random.tensor(DatumType::F32, &[4, 3, 3, 3]);
    refuses(&openvino("GroupConvolutionBackpropData", |n| n, &x, &four), &x, &["rank"]);
    refuses(&openvino("GroupConvolution", |n| n, &x, &four), &x, &["rank"]);
    let large = random.tensor(DatumType::F32, &[2, 3, 2, 9, 9]);
    refuses(&openvino("GroupConvolution", |n| n, &x, &large), &x, &["kernel"]);
    let spatial = random.tensor(DatumType::F32, &[1, 2, 2, 2, 2, 2]);
    let six = random.tensor(DatumType::F32, &[2, 2, 1, 1, 1, 1]);
    refuses(&openvino("Convolution", |n| n, &spatial, &six), &spatial, &["rank"]);
}

#[test]
fn what_openvino_refuses_of_an_output_shape() {
    let mut random = Random(29);
    let x = random.tensor(DatumType::F32, &[1, 4, 5, 6]);
    let w = random.tensor(DatumType::F32, &[2, 2, 3, 3, 3]);
    let lengths: [&[i64]; 5] = [&[9], &[9, 9, 9], &[0, 9], &[9, -1], &[1 << 40, 9]];
    for constant in [true, false] {
        for values in lengths {
            let node = Node::new("GroupConvolutionBackpropData").named(NAME).inputs(&["x", "w", "size"]).output("y");
            let mut model = Model::opset(11).input("x", x.datum_type(), &sizes(x.shape())).initializer("w", &w);
            let size = tensor1(values);
            let mut inputs = vec![x.clone()];
            if constant {
                model = model.initializer("size", &size);
            } else {
                model = model.input("size", size.datum_type(), &sizes(size.shape()));
                inputs.push(size);
            }
            let proto = model.node(node).output("y").build();
            for stage in Stage::ALL {
                let result = guarded(|| run(stage.of(load(&proto)?)?, &inputs));
                refused(result, &["output_shape"]).unwrap_or_else(|e| panic!("{stage:?}, {values:?}: {e}"));
            }
        }
    }
    // not integers
    let node = Node::new("GroupConvolutionBackpropData").named(NAME).inputs(&["x", "w", "size"]).output("y");
    let model = Model::opset(11).input("x", x.datum_type(), &sizes(x.shape())).initializer("w", &w);
    let model = model.initializer("size", &tensor1(&[9f32, 9.])).node(node).output("y");
    refuses(&model.build(), &x, &["output_shape"]);
}

#[test]
fn what_onednn_refuses() {
    let mut random = Random(31);
    let x = random.tensor(DatumType::F32, &[1, 5, 6, 4]);
    let w = random.tensor(DatumType::F32, &[3, 3, 4, 2]);
    let proto = |attributes: &dyn Fn(Node) -> Node, x: &Tensor, w: &Tensor| {
        Model::of_node(attributes(Node::new("ConvTranspose").domain("onednn").named(NAME)), x, w)
    };
    let lists: [(&str, &[i64]); 9] = [
        ("strides", &[0, 1]),
        ("strides", &[2]),
        ("dilations", &[1, 0]),
        ("dilations", &[1, 1, 1]),
        ("pads_begin", &[-1, 0]),
        ("pads_begin", &[1]),
        ("pads_end", &[0, -2]),
        ("output_padding", &[0, -1]),
        ("output_shape", &[9, 9]),
    ];
    for (name, values) in lists {
        refuses(&proto(&|node| node.ints(name, values), &x, &w), &x, &[name]);
    }
    for (name, value) in [
        ("auto_pad", "same"),
        ("data_format", "NCHW"),
        ("filter_format", "OIHW"),
        ("weights_format", "IXO"),
        ("strides", "2,2"),
        ("groups", "2"),
    ] {
        refuses(&proto(&|node| node.string(name, value), &x, &w), &x, &[name]);
    }
    for groups in [0, -2, 3] {
        refuses(&proto(&|node| node.int("groups", groups), &x, &w), &x, &["group", &groups.to_string()]);
    }
    let contradiction = |node: Node| node.string("filter_format", "XIO").string("weights_format", "OIX");
    refuses(&proto(&contradiction, &x, &w), &x, &["weights_format"]);
    refuses(&proto(&|node| node.ints("pads_begin", &[9, 9]), &x, &w), &x, &["output size"]);
    for dt in [DatumType::F64, DatumType::I8, DatumType::I32] {
        let (x, w) = (random.tensor(dt, x.shape()), random.tensor(dt, w.shape()));
        refuses(&proto(&|node| node, &x, &w), &x, &["type"]);
    }
    // a fourth input, for an output shape that the operator does not have
    let node = Node::new("ConvTranspose").domain("onednn").named(NAME).inputs(&["x", "w", "", "size"]).output("y");
    let model = Model::opset(11).input("x", x.datum_type(), &sizes(x.shape())).initializer("w", &w);
    let model = model.initializer("size", &tensor1(&[7i64, 8])).node(node).output("y");
    refuses(&model.build(), &x, &["inputs"]);
}
