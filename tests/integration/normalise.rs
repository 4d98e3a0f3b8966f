//! Normalisations beside layers: one op computes what tract computes as four operators or more.
//!
//! The optimised graph must hold this crate's op where it is expected. The numbers are compared with the
//! definition in f64.

use crate::common::beside::layer_then;
use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use std::ops::Range;
use tract_core::internal::*;
use tract_core::ops::nn::RmsNorm;
use tract_deconv::{OptNormalise, Options, WithConv, WithDeconvOptions};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

const EPSILON: f32 = 1e-3;

/// Returns `(x − m) / √(v + epsilon)` over axes in f64, with `m` zero unless `centred`.
fn definition(x: &Tensor, axes: Range<usize>, centred: bool) -> Tensor {
    let shape = x.shape().to_vec();
    let x = x.cast_to::<f64>().unwrap().into_owned();
    let mut values = x.to_plain_array_view::<f64>().unwrap().iter().copied().collect::<Vec<f64>>();
    let [length, inner] = [&shape[axes.clone()], &shape[axes.end..]].map(|sizes| sizes.iter().product::<usize>());
    for plane in values.chunks_mut((length * inner).max(1)) {
        for column in 0..inner {
            let at = |r: usize| r * inner + column;
            let mean = |of: &dyn Fn(usize) -> f64| (0..length).map(of).sum::<f64>() / length as f64;
            let m = if centred { mean(&|r| plane[at(r)]) } else { 0.0 };
            let v = mean(&|r| (plane[at(r)] - m).powi(2));
            (0..length).for_each(|r| plane[at(r)] = (plane[at(r)] - m) / (v + f64::from(EPSILON)).sqrt());
        }
    }
    Tensor::from_shape(&shape, &values).unwrap()
}

fn close(expected: &Tensor, found: &Tensor, tolerance: f64) {
    assert_eq!(expected.shape(), found.shape());
    let (a, b) = (expected.cast_to::<f64>().unwrap(), found.cast_to::<f64>().unwrap());
    let (a, b) = (a.try_as_plain_ram().unwrap(), b.try_as_plain_ram().unwrap());
    for (i, (a, b)) in a.as_slice::<f64>().unwrap().iter().zip(b.as_slice::<f64>().unwrap()).enumerate() {
        let same = a.is_nan() && b.is_nan();
        assert!(same || (a - b).abs() <= tolerance * a.abs().max(1.0), "{a} expected, {b} found at {i}");
    }
}

fn tolerance(dt: DatumType) -> f64 {
    match dt {
        DatumType::F16 => 2e-3,
        DatumType::F64 => 1e-13,
        _ => 3e-6,
    }
}

/// Optimises a model, counts the op, and runs it.
fn with_ours(proto: &ModelProto, count: usize, x: &Tensor) -> TractResult<Arc<Tensor>> {
    let model = Stage::Optimised.of(load(proto)?)?;
    assert_eq!(model.nodes().iter().filter(|node| node.op_is::<OptNormalise>()).count(), count, "{model}");
    Ok(run(model, std::slice::from_ref(x))?.remove(0))
}

fn constant(model: Model, name: &str, dt: DatumType, values: &[f32]) -> Model {
    model.initializer(name, &tensor1(values).cast_to_dt(dt).unwrap())
}

/// InstanceNormalization: over all axes behind the channels.
fn instance(dt: DatumType, channels: usize) -> impl FnOnce(Model, &str) -> (Model, String) {
    move |model, from| {
        let model = constant(model, "g", dt, &vec![1.0; channels]);
        let model = constant(model, "b", dt, &vec![0.0; channels]);
        let node = Node::new("InstanceNormalization").named("n").inputs(&[from, "g", "b"]).output("n");
        (model.node(node.float("epsilon", EPSILON)), "n".into())
    }
}

/// The normalisation spelled out, over axes.
fn spelled(
    dt: DatumType,
    axes: Vec<i64>,
    centred: bool,
    root: &'static str,
) -> impl FnOnce(Model, &str) -> (Model, String) {
    move |mut model, from| {
        model = constant(model, "e", dt, &[EPSILON]);
        let mut differences = from.to_string();
        if centred {
            model = model
                .node(Node::new("ReduceMean").named("m").inputs(&[from]).output("m").ints("axes", &axes))
                .node(Node::new("Sub").named("d").inputs(&[from, "m"]).output("d"));
            differences = "d".into();
        }
        model = model
            .node(Node::new("Mul").named("p").inputs(&[&differences, &differences]).output("p"))
            .node(Node::new("ReduceMean").named("v").inputs(&["p"]).output("v").ints("axes", &axes))
            .node(Node::new("Add").named("a").inputs(&["v", "e"]).output("a"))
            .node(Node::new("Sqrt").named("s").inputs(&["a"]).output("s"));
        let last = match root {
            "divide" => Node::new("Div").inputs(&[&differences, "s"]),
            _ => {
                model = model.node(Node::new("Reciprocal").named("r").inputs(&["s"]).output("r"));
                Node::new("Mul").inputs(&["r", &differences])
            }
        };
        (model.node(last.named("n").output("n")), "n".into())
    }
}

#[test]
fn instances_are_normalised() -> TractResult<()> {
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64] {
        for shape in [[1, 3, 2, 1], [2, 3, 5, 7], [1, 3, 9, 130], [3, 3, 70, 65]] {
            let proto = layer_then(13, dt, &shape.map(Dim::from), 3, instance(dt, 3));
            let x = Random(5).tensor(dt, &shape);
            close(&definition(&x, 2..4, true), &*with_ours(&proto, 1, &x)?, tolerance(dt));
        }
    }
    Ok(())
}

#[test]
fn axes_are_normalised_as_spelled_out() -> TractResult<()> {
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64] {
        for (axes, root) in [(1..2, "divide"), (1..2, "times"), (2..4, "divide"), (1..4, "times"), (2..3, "divide")] {
            for shape in [[1, 3, 2, 1], [2, 3, 5, 7], [1, 3, 9, 130], [2, 3, 70, 65]] {
                let of = axes.clone().map(|axis| axis as i64).collect();
                let proto = layer_then(13, dt, &shape.map(Dim::from), 3, spelled(dt, of, true, root));
                let x = Random(6).tensor(dt, &shape);
                let found = with_ours(&proto, 1, &x).with_context(|| format!("{dt:?} {axes:?} {root} {shape:?}"))?;
                close(&definition(&x, axes.clone(), true), &found, tolerance(dt));
            }
        }
    }
    Ok(())
}

/// The number of channels is known where positions are not.
#[test]
fn channels_are_normalised_with_open_sizes() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(40), Dim::from("H"), Dim::from("W")];
    for centred in [true, false] {
        let proto = layer_then(13, DatumType::F32, &dims, 40, spelled(DatumType::F32, vec![1], centred, "divide"));
        for shape in [[1, 40, 1, 1], [2, 40, 5, 7], [1, 40, 1, 700], [0, 40, 3, 3]] {
            let x = Random(7).tensor(DatumType::F32, &shape);
            close(&definition(&x, 1..2, centred), &*with_ours(&proto, 1, &x)?, 3e-6);
        }
    }
    Ok(())
}

/// Sums are taken in blocks: a mean far from zero costs few bits.
#[test]
fn means_far_from_zero() -> TractResult<()> {
    for (shape, axes) in [([1, 3, 300, 300], 2..4), ([1, 300, 30, 30], 1..2)] {
        let of = axes.clone().map(|axis| axis as i64).collect();
        let tail = spelled(DatumType::F32, of, true, "divide");
        let proto = layer_then(13, DatumType::F32, &shape.map(Dim::from), shape[1], tail);
        let x = Random(8).tensor(DatumType::F32, &shape);
        let x = x.to_plain_array_view::<f32>()?.mapv(|x| x + 100.0).into_tensor();
        close(&definition(&x, axes, true), &*with_ours(&proto, 1, &x)?, 1e-4);
    }
    Ok(())
}

#[test]
fn infinities_and_nan_spread_over_their_axes_only() -> TractResult<()> {
    let columns = [[1.0, 2.0, 4.0], [1.0, f32::NAN, 2.0], [1.0, f32::INFINITY, 2.0], [3.0, 3.0, 3.0]];
    let x = tract_ndarray::Array3::from_shape_fn((1, 3, columns.len()), |(_, c, at)| columns[at][c]).into_tensor();
    let dims = [Dim::from("N"), Dim::from(3), Dim::from("T")];
    for centred in [true, false] {
        let proto = layer_then(13, DatumType::F32, &dims, 3, spelled(DatumType::F32, vec![1], centred, "divide"));
        close(&definition(&x, 1..2, centred), &*with_ours(&proto, 1, &x)?, 3e-6);
    }
    Ok(())
}

/// Differences that something else reads, another divisor, and contiguous rows without a mean.
#[test]
fn others_stay_tracts() -> TractResult<()> {
    let shape = [1, 3, 8, 8];
    let x = Random(9).tensor(DatumType::F32, &shape);
    let read_twice = |model: Model, from: &str| {
        let (model, last) = spelled(DatumType::F32, vec![1], true, "divide")(model, from);
        (model.node(Node::new("Add").named("t").inputs(&["d", &last]).output("t")), "t".to_string())
    };
    with_ours(&layer_then(13, DatumType::F32, &shape.map(Dim::from), 3, read_twice), 0, &x)?;
    let other_mean = |model: Model, from: &str| {
        let model = constant(model, "half", DatumType::F32, &[0.5]);
        let sum = Node::new("ReduceSum").named("sum").inputs(&[from, "axes"]).output("sum");
        let model = model.initializer("axes", &tensor1(&[1i64])).node(sum);
        let model = model.node(Node::new("Mul").named("m").inputs(&["sum", "half"]).output("m"));
        let model = model.node(Node::new("Sub").named("c0").inputs(&[from, "m"]).output("c0"));
        spelled(DatumType::F32, vec![3], false, "divide")(model, "c0")
    };
    with_ours(&layer_then(13, DatumType::F32, &shape.map(Dim::from), 3, other_mean), 0, &x)?;
    let options = Options::default().with_fusion(false);
    let proto =
        layer_then(13, DatumType::F32, &shape.map(Dim::from), 3, spelled(DatumType::F32, vec![1], true, "divide"));
    let plain = tract_onnx::onnx().with_conv().with_deconv_options(&options)?.model_for_proto_model(&proto)?;
    let plain = plain.into_typed()?.into_optimized()?;
    assert!(plain.nodes().iter().any(|node| node.op_is::<RmsNorm>()), "{plain}");
    Ok(())
}
