//! Models of a layer and other ops around it.

use super::proto::{Dim, Model, Node};
use tract_core::internal::*;
use tract_onnx::pb::ModelProto;

/// Returns a depthwise convolution that multiplies `x` by one, then the nodes that `tail` adds.
///
/// `tail` takes the name of its input and returns that of the output.
pub fn layer_then(
    opset: i64,
    dt: DatumType,
    shape: &[Dim],
    channels: usize,
    tail: impl FnOnce(Model, &str) -> (Model, String),
) -> ModelProto {
    let ones = Tensor::from_shape(&[channels], &vec![1f32; channels]).expect("as many as channels");
    let mut w = ones.cast_to_dt(dt).expect("a float type").into_owned();
    w.set_shape(&[&[channels], &*vec![1; shape.len() - 1]].concat()).expect("the same number of values");
    let model = Model::opset(opset)
        .input("x", dt, shape)
        .initializer("w", &w)
        .node(Node::new("Conv").named("c").inputs(&["x", "w"]).output("c").int("group", channels as i64));
    let (model, last) = tail(model, "c");
    model.output(&last).build()
}
