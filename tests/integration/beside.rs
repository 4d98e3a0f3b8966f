//! Ops of tract's beside layers that this crate computes: softmax, resizing and transpositions.
//!
//! The optimised graph must hold this crate's op where it is expected. The numbers are compared with
//! the definition in f64 (softmax), and with tract's own op, whose coordinates are those of ONNX
//! (resizing).

use crate::common::beside::layer_then;
use crate::common::oracle::FromTensor;
use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use tract_core::internal::*;
use tract_core::ops::change_axes::AxisOp;
use tract_core::ops::nn::resize::{NearestUpsample, Resize};
use tract_core::ops::nn::{Softmax, SoftmaxKind};
use tract_core::transform::get_transform;
use tract_deconv::{OptReduce, OptResize, OptSoftmax, OptTranspose, WithConv, WithDeconvOptions};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

fn model(
    dt: DatumType,
    shape: &[Dim],
    channels: usize,
    tail: impl FnOnce(Model, &str) -> (Model, String),
) -> ModelProto {
    layer_then(13, dt, shape, channels, tail)
}

fn softmax(op: &'static str, axis: i64) -> impl FnOnce(Model, &str) -> (Model, String) {
    move |model, from| (model.node(Node::new(op).named("s").inputs(&[from]).output("s").int("axis", axis)), "s".into())
}

/// Returns the softmax over an axis, or its logarithm, in f64.
fn definition(log: bool, x: &Tensor, axis: usize) -> Tensor {
    let x = x.cast_to::<f64>().unwrap().into_owned();
    let mut x = x.to_plain_array_view::<f64>().unwrap().to_owned();
    for mut lane in x.lanes_mut(tract_ndarray::Axis(axis)) {
        let largest = lane.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let nan = lane.iter().any(|x| x.is_nan()) || largest == f64::INFINITY;
        let sum: f64 = lane.iter().map(|x| (x - largest).exp()).sum();
        let value = |x: f64| if log { x - largest - sum.ln() } else { (x - largest).exp() / sum };
        lane.mapv_inplace(|x| if nan { f64::NAN } else { value(x) });
    }
    x.into_tensor()
}

fn close(expected: &Tensor, found: &Tensor, tolerance: f64) {
    assert_eq!(expected.shape(), found.shape());
    let (a, b) = (expected.cast_to::<f64>().unwrap(), found.cast_to::<f64>().unwrap());
    let (a, b) = (a.try_as_plain_ram().unwrap(), b.try_as_plain_ram().unwrap());
    for (i, (a, b)) in a.as_slice::<f64>().unwrap().iter().zip(b.as_slice::<f64>().unwrap()).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan();
        assert!(same || (a - b).abs() <= tolerance * a.abs().max(1.0), "{a} expected, {b} found at {i}");
    }
}

/// Optimises a model with open sizes, counts an op, and runs it.
fn with_ours<O: tract_core::ops::Op>(proto: &ModelProto, count: usize, x: &Tensor) -> TractResult<Arc<Tensor>> {
    let model = Stage::Optimised.of(load(proto)?)?;
    let count_of = |is: fn(&TypedNode) -> bool| model.nodes().iter().filter(|node| is(node)).count();
    assert_eq!(count_of(|node| node.op_is::<O>()), count, "{model}");
    // The logarithm of a softmax is part of it.
    assert_eq!(count_of(|node| &*node.op.name() == "Ln"), 0, "{model}");
    Ok(run(model, std::slice::from_ref(x))?.remove(0))
}

fn tolerance(dt: DatumType) -> f64 {
    match dt {
        DatumType::F16 => 1e-3,
        DatumType::F64 => 1e-14,
        _ => 2e-6,
    }
}

#[test]
fn softmax_over_channels_and_rows() -> TractResult<()> {
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64] {
        for (op, log) in [("Softmax", false), ("LogSoftmax", true)] {
            for channels in [1, 3, 40] {
                for axis in [1, 2] {
                    let dims = [Dim::from("N"), Dim::from(channels), Dim::from("H"), Dim::from("W")];
                    let proto = model(dt, &dims, channels, softmax(op, axis));
                    for shape in
                        [[1, channels, 1, 1], [2, channels, 5, 7], [1, channels, 9, 130], [3, channels, 40, 33]]
                    {
                        let x = Random(5).tensor(dt, &shape);
                        let found = with_ours::<OptSoftmax>(&proto, 1, &x)?;
                        close(&definition(log, &x, axis as usize), &found, tolerance(dt));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Short contiguous rows are taken, long ones are left to tract.
#[test]
fn softmax_over_the_last_axis() -> TractResult<()> {
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64] {
        for (width, ours) in [(1, true), (2, true), (31, true), (32, false)] {
            let dims = [Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(width)];
            let proto = model(dt, &dims, 4, softmax("Softmax", 3));
            for height in [1, 70] {
                let x = Random(5).tensor(dt, &[2, 4, height, width]);
                let found = with_ours::<OptSoftmax>(&proto, ours as usize, &x)?;
                close(&definition(false, &x, 3), &found, tolerance(dt));
            }
        }
    }
    Ok(())
}

#[test]
fn softmax_of_values_that_are_not_finite() -> TractResult<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let columns =
        [[0.0, 0.0, 0.0], [-inf, 0.0, 1.0], [inf, 0.0, 1.0], [nan, 0.0, 1.0], [0.0, nan, 1.0], [-1e38, 1e38, 0.0]];
    let x = tract_ndarray::Array3::from_shape_fn((1, 3, columns.len()), |(_, c, at)| columns[at][c]).into_tensor();
    let dims = [Dim::from("N"), Dim::from(3), Dim::from("T")];
    for (op, log) in [("Softmax", false), ("LogSoftmax", true)] {
        let found = with_ours::<OptSoftmax>(&model(DatumType::F32, &dims, 3, softmax(op, 1)), 1, &x)?;
        close(&definition(log, &x, 1), &found, 2e-6);
    }
    Ok(())
}

#[test]
fn an_empty_softmax_is_empty() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(3), Dim::from("T")];
    let proto = model(DatumType::F32, &dims, 3, softmax("Softmax", 1));
    let x = Tensor::zero::<f32>(&[1, 3, 0])?;
    assert_eq!(with_ours::<OptSoftmax>(&proto, 1, &x)?.shape(), [1, 3, 0]);
    Ok(())
}

fn resize(
    mode: &'static str,
    coordinates: &'static str,
    scales: Vec<f32>,
) -> impl FnOnce(Model, &str) -> (Model, String) {
    move |model, from| {
        let node = Node::new("Resize").named("r").inputs(&[from, "", "scales"]).output("r").string("mode", mode);
        let node = node.string("coordinate_transformation_mode", coordinates);
        let node = if mode == "nearest" { node.string("nearest_mode", "floor") } else { node };
        (model.initializer("scales", &tensor1(&scales)).node(node), "r".into())
    }
}

fn reduction(op: &'static str, axes: &'static [i64]) -> impl FnOnce(Model, &str) -> (Model, String) {
    move |model, from| {
        let node = Node::new(op).named("r").inputs(&[from]).output("r");
        let (model, node) = match op {
            "ReduceSum" => (model.initializer("axes", &tensor1(axes)), node.input("axes")),
            "ReduceMean" => (model, node.ints("axes", axes)),
            _ => unreachable!("reductions of other tests"),
        };
        (model.node(node), "r".into())
    }
}

#[test]
fn sums_over_axes() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(3), Dim::from("H"), Dim::from("W")];
    for dt in [DatumType::F32, DatumType::F64] {
        for op in ["ReduceSum", "ReduceMean"] {
            for (axes, ours) in [(&[1][..], 1), (&[1, 2], 1), (&[2, 3], 1), (&[2], 1), (&[3], 0)] {
                let proto = model(dt, &dims, 3, reduction(op, axes));
                for shape in [[1, 3, 1, 1], [2, 3, 5, 7], [1, 3, 9, 600], [3, 3, 400, 33]] {
                    let x = Random(5).tensor(dt, &shape);
                    let found = with_ours::<OptReduce>(&proto, ours, &x)?;
                    let mut sum = x.cast_to::<f64>()?.to_plain_array_view::<f64>()?.to_owned();
                    for axis in axes {
                        let axis = tract_ndarray::Axis(*axis as usize);
                        sum = sum.sum_axis(axis).insert_axis(axis);
                    }
                    let terms = x.len() / sum.len();
                    if op == "ReduceMean" {
                        sum /= terms as f64;
                    }
                    close(&sum.into_tensor(), &found, tolerance(dt) * (terms as f64).sqrt());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn positions_of_extremes() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(5), Dim::from("H"), Dim::from("W")];
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64] {
        for (op, sign) in [("ArgMax", 1.0), ("ArgMin", -1.0)] {
            for axis in [1, 2, 3] {
                for last in [0, 1] {
                    let tail = |model: Model, from: &str| {
                        let node = Node::new(op).named("r").inputs(&[from]).output("r").int("axis", axis);
                        (model.node(node.int("select_last_index", last)), "r".to_string())
                    };
                    let proto = model(dt, &dims, 5, tail);
                    for shape in [[1, 5, 1, 1], [2, 5, 4, 7], [1, 5, 20, 300]] {
                        // Few different values, so that some are equal.
                        let x = Random(5).tensor(DatumType::F32, &shape);
                        let x = x.to_plain_array_view::<f32>()?.mapv(|x| (3.0 * x).round());
                        let expected = x.map_axis(tract_ndarray::Axis(axis as usize), |lane| {
                            let better = |a: f32, b: f32| sign * a > sign * b || last == 1 && a == b;
                            (0..lane.len()).fold(0, |best, i| if better(lane[i], lane[best]) { i } else { best }) as i64
                        });
                        let expected = expected.insert_axis(tract_ndarray::Axis(axis as usize)).into_tensor();
                        let x = x.into_tensor().cast_to_dt(dt)?.into_owned();
                        assert_eq!(expected, *with_ours::<OptReduce>(&proto, 1, &x)?);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Compares with the same model run by tract's own op, which `fusion` turned off leaves in place.
fn resizes_as_tract(proto: &ModelProto, x: &Tensor) -> TractResult<()> {
    let found = with_ours::<OptResize>(proto, 1, x)?;
    let plain = plain(proto)?;
    let theirs = |node: &&TypedNode| node.op_is::<Resize>() || node.op_is::<NearestUpsample>();
    assert_eq!(plain.nodes().iter().filter(theirs).count(), 1, "{plain}");
    let expected = run(plain, std::slice::from_ref(x))?.remove(0);
    close(&expected, &found, 1e-6);
    Ok(())
}

#[test]
fn axes_are_resized_as_by_tract() -> TractResult<()> {
    let scales = [[2.0, 2.0], [2.5, 1.0], [1.0, 3.0], [1.0, 2.0], [4.0, 1.0], [0.5, 0.7], [1.5, 3.3]];
    for mode in ["linear", "nearest"] {
        for coordinates in ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"] {
            for scales in scales {
                for shape in [[1, 3, 1, 1], [2, 3, 5, 7], [1, 3, 21, 40]] {
                    let output = [2, 3].map(|ax| shape[ax] as f32 * scales[ax - 2]);
                    if output.iter().any(|size| *size < 1.0) {
                        continue;
                    }
                    let tail = resize(mode, coordinates, vec![1.0, 1.0, scales[0], scales[1]]);
                    let proto = model(DatumType::F32, &shape.map(Dim::from), 3, tail);
                    resizes_as_tract(&proto, &Random(9).tensor(DatumType::F32, &shape))
                        .with_context(|| format!("{mode} {coordinates} {scales:?} of {shape:?}"))?;
                }
            }
        }
    }
    Ok(())
}

/// One axis, three, and channels last, with few and with many channels.
#[test]
fn other_axes_are_resized_as_by_tract() -> TractResult<()> {
    for mode in ["linear", "nearest"] {
        let line =
            model(DatumType::F32, &[2, 3, 50].map(Dim::from), 3, resize(mode, "half_pixel", vec![1.0, 1.0, 2.4]));
        resizes_as_tract(&line, &Random(9).tensor(DatumType::F32, &[2, 3, 50]))?;
        let scales = vec![1.0, 1.0, 2.0, 1.5, 3.0];
        let volume = model(DatumType::F32, &[1, 2, 4, 6, 5].map(Dim::from), 2, resize(mode, "half_pixel", scales));
        resizes_as_tract(&volume, &Random(9).tensor(DatumType::F32, &[1, 2, 4, 6, 5]))?;
        for channels in [3, 24] {
            let tail = |model: Model, from: &str| {
                let turned = Node::new("Transpose").named("t").inputs(&[from]).output("t").ints("perm", &[0, 2, 3, 1]);
                resize(mode, "half_pixel", vec![1.0, 2.0, 1.5, 1.0])(model.node(turned), "t")
            };
            let shape = [2, channels, 6, 8];
            let proto = model(DatumType::F32, &shape.map(Dim::from), channels, tail);
            resizes_as_tract(&proto, &Random(9).tensor(DatumType::F32, &shape))?;
        }
    }
    Ok(())
}

/// Values of weight zero are not read.
#[test]
fn infinities_stay_where_they_are() -> TractResult<()> {
    let shape = [1, 1, 3, 3];
    let proto =
        model(DatumType::F32, &shape.map(Dim::from), 1, resize("linear", "align_corners", vec![1.0, 1.0, 2.0, 2.0]));
    let mut x = Random(9).tensor(DatumType::F32, &shape);
    x.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?[4] = f32::INFINITY;
    resizes_as_tract(&proto, &x)
}

#[test]
fn sizes_open_until_the_run() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(2), Dim::from("H"), Dim::from("W")];
    let proto = model(DatumType::F32, &dims, 2, resize("linear", "half_pixel", vec![1.0, 1.0, 2.0, 3.0]));
    for shape in [[1, 2, 1, 1], [2, 2, 30, 17]] {
        resizes_as_tract(&proto, &Random(9).tensor(DatumType::F32, &shape))?;
    }
    Ok(())
}

fn transposed(model: Model, from: &str) -> (Model, String) {
    (model.node(Node::new("Transpose").named("t").inputs(&[from]).output("t").ints("perm", &[0, 2, 3, 1])), "t".into())
}

/// Returns the numbers of transpositions by this crate and by tract in an optimised model.
fn moves(model: &TypedModel) -> (usize, usize) {
    let count_of = |is: fn(&TypedNode) -> bool| model.nodes().iter().filter(|node| is(node)).count();
    let theirs = |node: &TypedNode| matches!(node.op_as::<AxisOp>(), Some(AxisOp::Move(..)));
    (count_of(|node| node.op_is::<OptTranspose>()), count_of(theirs))
}

#[test]
fn transpositions_around_a_layer() -> TractResult<()> {
    // Of the sizes, 4 KiB are the least.
    for (shape, dims, ours) in [
        ([1, 4, 16, 16], [1, 4, 16, 16].map(Dim::from), true),
        ([1, 4, 16, 15], [1, 4, 16, 15].map(Dim::from), false),
        ([1, 4, 16, 15], ["N".into(), Dim::from(4), "H".into(), "W".into()], true),
    ] {
        let proto = model(DatumType::F32, &dims, 4, transposed);
        let optimised = Stage::Optimised.of(load(&proto)?)?;
        assert_eq!(moves(&optimised), (ours as usize, !ours as usize), "{optimised}");
        let output = optimised.node(optimised.output_outlets()?[0].node);
        let plain = plain(&proto)?;
        assert_eq!(output.name, plain.node(plain.output_outlets()?[0].node).name);
        let x = Random(9).tensor(DatumType::F32, &shape);
        assert_eq!(*run(optimised, std::slice::from_ref(&x))?[0], x.permute_axes(&[0, 2, 3, 1])?);
    }
    // Positions of extremes are integers.
    let proto = model(DatumType::F32, &[1, 30, 8, 80].map(Dim::from), 30, |model, from| {
        let node = Node::new("ArgMax").named("a").inputs(&[from]).output("a").int("axis", 1).int("keepdims", 0);
        let turned = Node::new("Transpose").named("t").inputs(&["a"]).output("t").ints("perm", &[0, 2, 1]);
        (model.node(node).node(turned), "t".into())
    });
    assert_eq!(moves(&Stage::Optimised.of(load(&proto)?)?), (1, 0));
    let [ours, theirs] = ours_and_theirs(&proto, &Random(9).tensor(DatumType::F32, &[1, 30, 8, 80]))?;
    assert_eq!(ours, theirs);
    Ok(())
}

/// Behind a resizing, an axis moves before it, if that makes the tensor larger.
#[test]
fn a_transposition_moves_before_a_resizing() -> TractResult<()> {
    let open = ["N".into(), Dim::from(5), "H".into(), "W".into()];
    let known = [2, 5, 9, 8].map(Dim::from);
    let halved: &[f32] = &[1.0, 1.0, 1.5, 0.5];
    for mode in ["linear", "nearest"] {
        for (dims, scales, moved) in [
            (&open, &[1.0, 1.0, 2.0, 3.0][..], true),
            (&known, &[1.0, 1.0, 1.5, 2.5], true),
            (&known, &[1.0, 1.0, 3.0, 0.5], true),
            (&known, halved, false),
        ] {
            let proto = model(DatumType::F32, dims, 5, |model, from| {
                let (model, from) = resize(mode, "half_pixel", scales.to_vec())(model, from);
                transposed(model, &from)
            });
            let optimised = Stage::Optimised.of(load(&proto)?)?;
            let output = optimised.node(optimised.output_outlets()?[0].node);
            assert_eq!(output.op_is::<OptResize>(), moved, "{mode} {scales:?}: {optimised}");
            assert_eq!(moves(&optimised).0 + moves(&optimised).1, 1, "{optimised}");
            let x = Random(9).tensor(DatumType::F32, &[2, 5, 9, 8]);
            let [ours, theirs] = ours_and_theirs(&proto, &x)?;
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
            assert!(ours.len() == theirs.len() && ours.iter().zip(&theirs).all(close), "{mode} {scales:?}");
        }
    }
    // Something else reads what is resized.
    let proto = model(DatumType::F32, &known, 5, |model, from| {
        let (model, from) = resize("linear", "half_pixel", vec![1.0, 1.0, 2.0, 2.0])(model, from);
        let (model, last) = transposed(model, &from);
        (model.output(&from), last)
    });
    let optimised = Stage::Optimised.of(load(&proto)?)?;
    let outputs: Vec<bool> =
        optimised.output_outlets()?.iter().map(|outlet| optimised.node(outlet.node).op_is::<OptResize>()).collect();
    assert_eq!((outputs, moves(&optimised)), (vec![true, false], (1, 0)), "{optimised}");
    Ok(())
}

/// Optimises a model without fusion.
fn plain(proto: &ModelProto) -> TractResult<TypedModel> {
    let options = tract_deconv::Options::default().with_fusion(false);
    let onnx = tract_onnx::onnx().with_deconv_options(&options)?.with_conv();
    onnx.model_for_proto_model(proto)?.into_typed()?.into_optimized()
}

/// Runs a model with fusion, and without it, so that tract's own ops compute it.
fn ours_and_theirs(proto: &ModelProto, x: &Tensor) -> TractResult<[Vec<f64>; 2]> {
    let all = |fusion| -> TractResult<Vec<f64>> {
        let options = tract_deconv::Options::default().with_fusion(fusion);
        let onnx = tract_onnx::onnx().with_deconv_options(&options)?.with_conv();
        let y = run(onnx.model_for_proto_model(proto)?.into_typed()?.into_optimized()?, std::slice::from_ref(x))?;
        Ok(f64::from_tensor(&y[0]).into_iter().collect())
    };
    Ok([all(true)?, all(false)?])
}

/// tract begins its search with the least finite number.
#[test]
fn extremes_that_tract_gets_wrong() -> TractResult<()> {
    let (inf, least) = (f32::INFINITY, f32::MIN);
    let dims = [Dim::from("N"), Dim::from(3), Dim::from("T")];
    let x = tract_ndarray::arr3(&[[[-inf, -inf, 1.0], [-inf, least, 1.0], [-inf, -inf, 0.0]]]);
    for (op, sign, values, positions) in
        [("Max", 1.0, [-inf, least, 1.0], [0.0, 1.0, 0.0]), ("Min", -1.0, [inf, -least, -1.0], [0.0, 1.0, 0.0])]
    {
        let x = x.mapv(|x| sign * x).into_tensor();
        let of = |op: String, node: fn(Node) -> Node| {
            let tail = |model: Model, from: &str| {
                (model.node(node(Node::new(&op).named("r").inputs(&[from]).output("r"))), "r".to_string())
            };
            ours_and_theirs(&model(DatumType::F32, &dims, 3, tail), &x)
        };
        let [ours, theirs] = of(format!("Reduce{op}"), |node| node.ints("axes", &[1]))?;
        assert_eq!(ours, values.map(f64::from));
        assert_eq!(theirs, [sign * least, sign * least, sign].map(f64::from), "tract is right about Reduce{op}");
        let [ours, theirs] = of(format!("Arg{op}"), |node| node.int("axis", 1))?;
        assert_eq!(ours, positions);
        assert_eq!(theirs, [0.0; 3], "tract is right about Arg{op}");
    }
    Ok(())
}

#[test]
fn logarithms_that_tract_gets_wrong() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(2), Dim::from("T")];
    let proto = model(DatumType::F32, &dims, 2, softmax("LogSoftmax", 1));
    let [ours, theirs] = ours_and_theirs(&proto, &tract_ndarray::arr3(&[[[0f32], [200.0]]]).into_tensor())?;
    assert_eq!((ours, theirs), (vec![-200.0, 0.0], vec![f64::NEG_INFINITY, 0.0]));
    Ok(())
}

/// A softmax that is a logarithm already, which models in NNEF have.
#[test]
fn the_logarithm_of_a_logarithm() -> TractResult<()> {
    let dims = [Dim::from("N"), Dim::from(2), Dim::from("T")];
    let mut model = load(&model(DatumType::F32, &dims, 2, |model, from| (model, from.to_string())))?;
    let op = Softmax { axes: tvec!(1), quant_output_dt: None, kind: SoftmaxKind::LogSoftmax };
    let outputs = model.output_outlets()?.to_vec();
    let wires = model.wire_node("s", op, &outputs)?;
    let wires = model.wire_node("l", tract_core::ops::math::ln(), &wires)?;
    model.select_output_outlets(&wires)?;
    let model = model.into_optimized()?;
    assert!(model.nodes().iter().any(|node| node.op_is::<OptSoftmax>()), "{model}");
    let y = run(model, &[tract_ndarray::arr3(&[[[1f32], [2.0]]]).into_tensor()])?;
    assert!(f64::from_tensor(&y[0]).iter().all(|y| y.is_nan()), "{y:?}");
    Ok(())
}

#[test]
fn no_fusion_leaves_them_to_tract() -> TractResult<()> {
    let dims = [Dim::from(1), Dim::from(3), Dim::from(8), Dim::from(8)];
    let model = plain(&model(DatumType::F32, &dims, 3, softmax("Softmax", 1)))?;
    assert!(model.nodes().iter().any(|node| node.op_is::<Softmax>()), "{model}");
    let model = plain(&self::model(DatumType::F32, &[1, 3, 80, 80].map(Dim::from), 3, transposed))?;
    assert_eq!(moves(&model), (0, 1), "{model}");
    Ok(())
}

/// The model's input itself is transposed, and nothing computes it.
#[test]
fn a_transposed_input_is_read() -> TractResult<()> {
    let x = Random(5).tensor(f32::datum_type(), &[1, 8, 20, 30]);
    let w = Random(6).tensor(f32::datum_type(), &[8, 8, 3, 1]);
    let proto = Model::opset(13)
        .input("x", x.datum_type(), &crate::common::proto::sizes(x.shape()))
        .initializer("w", &w)
        .node(Node::new("Transpose").named("t").inputs(&["x"]).output("t").ints("perm", &[0, 1, 3, 2]))
        .node(Node::new("Conv").named("c").inputs(&["t", "w"]).output("c"))
        .output("c")
        .build();
    let found = with_ours::<OptTranspose>(&proto, 1, &x)?;
    let expected = run(crate::common::run::load_stock(&proto)?, &[x])?;
    close(&expected[0], &found, 1e-5);
    Ok(())
}

/// A model that tract turns to f16 has f16 scales, which tract's own op does not read.
#[test]
fn scales_are_read_in_f16() -> TractResult<()> {
    let shape: Vec<Dim> = [1, 3, 6, 7].into_iter().map(Dim::Size).collect();
    let proto = model(DatumType::F32, &shape, 3, resize("linear", "half_pixel", vec![1.0, 1.0, 2.0, 1.5]));
    let mut half = load(&proto)?;
    get_transform("f32_to_f16")?.context("tract has the transform")?.transform(&mut half)?;
    let half = half.into_optimized()?;
    assert!(half.nodes().iter().any(|node| node.op_is::<OptResize>()), "{half}");
    let x = Random(5).tensor(DatumType::F32, &[1, 3, 6, 7]);
    let found = run(half, &[x.cast_to::<f16>()?.into_owned()])?.remove(0);
    let expected = with_ours::<OptResize>(&proto, 1, &x)?;
    assert_eq!(found.datum_type(), DatumType::F16);
    close(&expected, &found, 1e-2);
    Ok(())
}
