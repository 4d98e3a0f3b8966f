//! What follows a deconvolution folds into it when a model is optimised: the graph shows it, and the numbers are those of the decluttered
//! model, in which nothing is folded.

mod common;

use common::oracle::tolerance;
use common::proto::{Dim, Model, Node, sizes};
use common::random::Random;
use common::run::{Stage, load, run};
use tract_core::internal::*;
use tract_deconv::{Activation, OptGroupedDeconv};

const CHANNELS: usize = 6;

/// A deconvolution and the nodes behind it; `tail` takes the name of what it reads and gives the name of its result.
fn model(dt: DatumType, bias: bool, tail: impl FnOnce(Model, &str) -> (Model, String)) -> tract_onnx::pb::ModelProto {
    let mut random = Random(7);
    let mut inputs = vec!["x", "w"];
    let mut model = Model::opset(13)
        .input("x", dt, &[Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(7)])
        .initializer("w", &random.tensor(dt, &[4, CHANNELS, 3, 4]));
    if bias {
        model = model.initializer("b", &random.tensor(dt, &[CHANNELS]));
        inputs.push("b");
    }
    let node = Node::new("ConvTranspose").named("up").inputs(&inputs).ints("strides", &[2, 2]).output("up.out");
    let (model, last) = tail(model.node(node), "up.out");
    model.output(&last).build()
}

/// A node of one input behind `from`, its result named after it.
fn unary(op: &str, change: impl FnOnce(Node) -> Node) -> impl FnOnce(Model, &str) -> (Model, String) {
    let op = op.to_string();
    move |model, from| {
        let out = format!("{from}.{op}");
        (model.node(change(Node::new(&op).inputs(&[from])).output(&out)), out)
    }
}

/// A node of `from` and a constant.
fn binary(op: &str, constant: Tensor, constant_first: bool) -> impl FnOnce(Model, &str) -> (Model, String) {
    let op = op.to_string();
    move |model, from| {
        let (out, name) = (format!("{from}.{op}"), format!("{from}.{op}.constant"));
        let inputs = if constant_first { [&*name, from] } else { [from, &*name] };
        (model.initializer(&name, &constant).node(Node::new(&op).inputs(&inputs).output(&out)), out)
    }
}

fn batch_norm(model: Model, from: &str) -> (Model, String) {
    let mut random = Random(11);
    let mut positive = |shift: f32| {
        let t = random.tensor(DatumType::F32, &[CHANNELS]);
        tensor1(
            &t.try_as_plain_ram()
                .unwrap()
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|v| v.abs() + shift)
                .collect::<Vec<_>>(),
        )
    };
    let (scale, shift, mean, variance) = (positive(0.5), positive(0.0), positive(0.0), positive(0.5));
    let node = Node::new("BatchNormalization").inputs(&[from, "scale", "shift", "mean", "var"]).output("bn");
    let model = model.initializer("scale", &scale).initializer("shift", &shift);
    (model.initializer("mean", &mean).initializer("var", &variance).node(node), "bn".into())
}

/// The optimised deconvolutions and the number of other nodes that compute.
fn optimised(proto: &tract_onnx::pb::ModelProto) -> TractResult<(Vec<OptGroupedDeconv>, usize, TypedModel)> {
    let model = Stage::Optimised.of(load(proto)?)?;
    let ours: Vec<OptGroupedDeconv> =
        model.nodes.iter().filter_map(|n| n.op_as::<OptGroupedDeconv>()).cloned().collect();
    let passive = ["Source", "Const", "OptGroupedDeconv"];
    let others = model.nodes.iter().filter(|n| !passive.contains(&&*n.op.name())).count();
    Ok((ours, others, model))
}

/// Decluttered and optimised numbers agree.
fn same_numbers(proto: &tract_onnx::pb::ModelProto, dt: DatumType) -> TractResult<()> {
    for shape in [[1, 4, 5, 7], [3, 4, 40, 7]] {
        let x = Random(3).tensor(dt, &shape);
        let plain = run(Stage::Decluttered.of(load(proto)?)?, std::slice::from_ref(&x))?;
        let fused = run(Stage::Optimised.of(load(proto)?)?, &[x])?;
        for (plain, fused) in plain.iter().zip(&fused) {
            assert_eq!(plain.shape(), fused.shape());
            let (a, b) = (plain.cast_to::<f64>()?, fused.cast_to::<f64>()?);
            let (a, b) = (a.try_as_plain_ram()?, b.try_as_plain_ram()?);
            for (a, b) in a.as_slice::<f64>()?.iter().zip(b.as_slice::<f64>()?) {
                // unfused, each step rounds to the type, and what lies in between may be larger than the result (HardSwish)
                let allowed = 4.0 * tolerance(dt, 4 * 12 + 4, 64.0, a.abs().max(1.0));
                assert!((a - b).abs() <= allowed, "{a} unfused, {b} fused, {allowed} allowed");
            }
        }
    }
    Ok(())
}

/// Everything behind the deconvolution folds into it.
fn folds(dt: DatumType, proto: tract_onnx::pb::ModelProto, tail: &[Activation]) -> TractResult<()> {
    let (ours, others, model) = optimised(&proto)?;
    assert_eq!((ours.len(), others), (1, 0), "{model}");
    assert_eq!(ours[0].tail, tail);
    same_numbers(&proto, dt)
}

#[test]
fn activations_run_inside_the_store() -> TractResult<()> {
    for dt in [DatumType::F32, DatumType::F16] {
        let unary_model = |op: &str, change: fn(Node) -> Node| model(dt, true, unary(op, change));
        folds(dt, unary_model("Relu", |n| n), &[Activation::Max(0.0)])?;
        folds(dt, unary_model("LeakyRelu", |n| n.float("alpha", 0.125)), &[Activation::LeakyRelu(0.125)])?;
        folds(dt, unary_model("Sigmoid", |n| n), &[Activation::Sigmoid])?;
        folds(dt, unary_model("Tanh", |n| n), &[Activation::Tanh])?;
        folds(dt, unary_model("HardSwish", |n| n), &[Activation::HardSwish])?;
    }
    let clip = model(DatumType::F32, false, |model, from| {
        let model = model.initializer("low", &tensor0(0f32)).initializer("high", &tensor0(6f32));
        (model.node(Node::new("Clip").inputs(&[from, "low", "high"]).output("clipped")), "clipped".into())
    });
    folds(DatumType::F32, clip, &[Activation::Max(0.0), Activation::Min(6.0)])
}

#[test]
fn affine_steps_fold_into_weights_and_bias() -> TractResult<()> {
    for bias in [false, true] {
        folds(DatumType::F32, model(DatumType::F32, bias, batch_norm), &[])?;
        for (op, first) in
            [("Mul", false), ("Mul", true), ("Add", false), ("Sub", false), ("Sub", true), ("Div", false)]
        {
            let per_channel = Random(5).tensor(DatumType::F32, &[1, CHANNELS, 1, 1]);
            folds(DatumType::F32, model(DatumType::F32, bias, binary(op, per_channel, first)), &[])?;
            folds(DatumType::F32, model(DatumType::F32, bias, binary(op, tensor0(1.5f32), first)), &[])?;
        }
        let both = model(DatumType::F32, bias, |model, from| {
            let (model, from) = batch_norm(model, from);
            unary("Relu", |n| n)(model, &from)
        });
        folds(DatumType::F32, both, &[Activation::Max(0.0)])?;
    }
    Ok(())
}

#[test]
fn a_value_that_is_read_elsewhere_is_kept() -> TractResult<()> {
    // as an output of the model
    let proto = model(DatumType::F32, true, |model, from| {
        let (model, out) = unary("Relu", |n| n)(model, from);
        (model.output(from), out)
    });
    let (ours, others, _) = optimised(&proto)?;
    assert_eq!((ours[0].tail.len(), others), (0, 1));
    same_numbers(&proto, DatumType::F32)?;
    // by a second node
    let proto = model(DatumType::F32, true, |model, from| {
        let (model, relu) = unary("Relu", |n| n)(model, from);
        let (model, tanh) = unary("Tanh", |n| n)(model, from);
        (model.node(Node::new("Add").inputs(&[&relu, &tanh]).output("sum")), "sum".into())
    });
    let (ours, others, _) = optimised(&proto)?;
    assert!(ours[0].tail.is_empty() && others >= 3, "{others} other nodes");
    same_numbers(&proto, DatumType::F32)
}

#[test]
fn what_is_not_per_channel_stays_outside() -> TractResult<()> {
    let constant = Random(9).tensor(DatumType::F32, &[1, 1, 1, 16]);
    let proto = model(DatumType::F32, true, binary("Mul", constant, false));
    let (ours, others, _) = optimised(&proto)?;
    assert_eq!((ours[0].tail.len(), others), (0, 1));
    same_numbers(&proto, DatumType::F32)
}

#[test]
fn every_strategy_applies_the_tail() -> TractResult<()> {
    // input, filter, strides, group
    let cases = [
        (vec![2, 3, 9, 10], vec![3, 1, 3, 3], [2, 2], 3),
        (vec![2, 5, 1, 1], vec![5, 4, 4, 4], [1, 1], 1),
        (vec![1, 32, 9, 20], vec![32, 1, 9, 9], [4, 4], 1),
        (vec![1, 6, 33, 40], vec![6, 9, 2, 2], [2, 2], 1),
        (vec![1, 80, 9, 10], vec![80, 9, 4, 4], [2, 2], 1),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (x, w, strides, group) in cases {
        let x = Random(1).tensor(DatumType::F32, &x);
        let proto = Model::opset(13)
            .input("x", DatumType::F32, &sizes(x.shape()))
            .initializer("w", &Random(2).tensor(DatumType::F32, &w))
            .node(
                Node::new("ConvTranspose")
                    .inputs(&["x", "w"])
                    .ints("strides", &strides)
                    .int("group", group)
                    .output("up"),
            )
            .node(Node::new("LeakyRelu").inputs(&["up"]).float("alpha", 0.25).output("y"))
            .output("y")
            .build();
        let (ours, others, _) = optimised(&proto)?;
        assert_eq!((ours[0].tail.len(), others), (1, 0));
        seen.insert(format!("{:?}", ours[0].filter_layout()));
        let plain = run(Stage::Decluttered.of(load(&proto)?)?, std::slice::from_ref(&x))?.remove(0);
        let fused = run(Stage::Optimised.of(load(&proto)?)?, &[x])?.remove(0);
        plain.close_enough(&fused, true)?;
    }
    assert!(seen.len() >= 4, "layouts: {seen:?}");
    Ok(())
}
