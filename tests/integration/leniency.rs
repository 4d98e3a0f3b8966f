//! Older forms of operators, which tract's importer refuses and [`WithLeniency`] reads.
//!
//! The values are those of ONNX's definition in f64. Coordinates are f32 in tract, hence the tolerance.

use crate::common::beside::layer_then;
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::run;
use tract_core::internal::tract_ndarray::{ArrayD, Axis, IxDyn};
use tract_core::internal::*;
use tract_deconv::{GroupedDeconv, OptResize, WithConv, WithLeniency};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

fn lenient(proto: &ModelProto) -> TractResult<TypedModel> {
    tract_onnx::onnx().with_conv().with_leniency().model_for_proto_model(proto)?.into_typed()?.into_decluttered()
}

fn refused(proto: &ModelProto, words: &str) {
    let error = format!("{:?}", lenient(proto).expect_err("it has to be refused"));
    assert!(error.contains(words), "{error}");
}

/// Returns Upsample of an opset after `from`.
fn upsample(opset: i64, model: Model, from: &str, mode: &str, scales: &[f32]) -> Model {
    let node = Node::new("Upsample").named("up").output("up").string("mode", mode);
    if opset < 9 {
        return model.node(node.inputs(&[from]).floats("scales", scales)).output("up");
    }
    model.initializer("scales", &tensor1(scales)).node(node.inputs(&[from, "scales"])).output("up")
}

/// Interpolates along one axis: output `i` stands at `i / scale` of the input.
fn upsampled_axis(x: &ArrayD<f64>, axis: usize, scale: f32, linear: bool) -> ArrayD<f64> {
    let len = x.shape()[axis];
    let axis = Axis(axis);
    let mut shape = x.shape().to_vec();
    shape[axis.0] = (len as f32 * scale) as usize;
    let mut found = ArrayD::zeros(IxDyn(&shape));
    for i in 0..shape[axis.0] {
        let at = i as f64 / f64::from(scale);
        let before = (at.floor() as usize).min(len - 1);
        let share = if linear { at - before as f64 } else { 0.0 };
        let value =
            &x.index_axis(axis, before) * (1.0 - share) + &x.index_axis(axis, (before + 1).min(len - 1)) * share;
        found.index_axis_mut(axis, i).assign(&value);
    }
    found
}

fn upsampled(x: &Tensor, scales: &[f32], linear: bool) -> Tensor {
    let mut x = x.cast_to::<f64>().unwrap().to_plain_array_view::<f64>().unwrap().to_owned();
    for (axis, scale) in scales.iter().enumerate() {
        x = upsampled_axis(&x, axis, *scale, linear);
    }
    x.into_tensor()
}

#[test]
fn upsample_is_read_from_opset_7_on() -> TractResult<()> {
    let shape = [2, 3, 5, 4];
    let x = Random(3).tensor(DatumType::F32, &shape);
    for opset in [7, 8, 9, 10] {
        for scales in [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 3.0, 1.0], [1.0, 1.0, 1.5, 2.5], [1.0; 4]] {
            for mode in ["nearest", "linear"] {
                let model = Model::opset(opset).input("x", DatumType::F32, &sizes(&shape));
                let proto = upsample(opset, model, "x", mode, &scales).build();
                let expected = upsampled(&x, &scales, mode == "linear");
                let found = run(lenient(&proto)?.into_optimized()?, std::slice::from_ref(&x))?.remove(0);
                let what = || format!("{mode} {scales:?} in opset {opset}");
                found
                    .close_enough(&*expected.cast_to_dt(DatumType::F32)?, Approximation::Approximate)
                    .with_context(what)?;
            }
        }
    }
    Ok(())
}

/// Where a layer is beside it, the plugin computes it, with open sizes.
#[test]
fn upsample_beside_a_layer_is_the_plugins() -> TractResult<()> {
    for opset in [7, 9] {
        let dims = [Dim::from("N"), Dim::from(3), Dim::from("H"), Dim::from("W")];
        let scales = [1.0, 1.0, 2.0, 2.0];
        let tail = |model, from: &str| (upsample(opset, model, from, "linear", &scales), "up".to_string());
        let proto = layer_then(opset, DatumType::F32, &dims, 3, tail);
        let optimised = lenient(&proto)?.into_optimized()?;
        assert_eq!(optimised.nodes().iter().filter(|node| node.op_is::<OptResize>()).count(), 1, "{optimised}");
    }
    Ok(())
}

#[test]
fn squeeze_without_axes_drops_all_axes_of_size_1() -> TractResult<()> {
    for opset in [7, 11, 12, 13] {
        for shape in [&[1, 3, 1, 5][..], &[2, 3], &[1, 1]] {
            let node = Node::new("Squeeze").named("s").inputs(&["x"]).output("s");
            let proto = Model::opset(opset).input("x", DatumType::F32, &sizes(shape)).node(node).output("s").build();
            let x = Random(4).tensor(DatumType::F32, shape);
            let found = run(lenient(&proto)?, std::slice::from_ref(&x))?.remove(0);
            let expected: Vec<usize> = shape.iter().copied().filter(|size| *size != 1).collect();
            assert_eq!(found.shape(), expected);
            assert_eq!(found.as_bytes(), x.as_bytes());
        }
    }
    Ok(())
}

/// What tract reads by itself stays as it is, and the layers of the model are the plugin's.
#[test]
fn squeeze_with_axes_is_tracts() -> TractResult<()> {
    let dims = sizes(&[1, 3, 5, 1]);
    let tail = |model: Model, from: &str| {
        (model.node(Node::new("Squeeze").named("s").inputs(&[from]).output("s").ints("axes", &[3])), "s".to_string())
    };
    let model = lenient(&layer_then(11, DatumType::F32, &dims, 3, tail))?;
    assert_eq!(model.nodes().iter().filter(|node| node.op_is::<GroupedDeconv>()).count(), 1, "{model}");
    assert_eq!(model.output_fact(0)?.shape.as_concrete(), Some(&[1, 3, 5][..]));
    Ok(())
}

#[test]
fn what_upsample_can_not_mean_is_refused() {
    let of = |mode: &str, scales: &[f32]| {
        let model = Model::opset(7).input("x", DatumType::F32, &sizes(&[1, 3, 5, 4]));
        upsample(7, model, "x", mode, scales).build()
    };
    refused(&of("cubic", &[1.0; 4]), "upsample: mode=cubic, nearest or linear is needed");
    refused(&of("bicycle", &[1.0; 4]), "bicycle");
    refused(&of("nearest", &[1.0, 1.0, 0.5, 1.0]), "each is within 1 and 65536");
    refused(&of("nearest", &[1.0, 1.0, f32::NAN, 1.0]), "each is within 1 and 65536");
    refused(&of("nearest", &[1.0, 1.0, 1e30, 1.0]), "each is within 1 and 65536");
    refused(&of("nearest", &[1.0, 2.0]), "up");
}
