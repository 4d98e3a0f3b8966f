//! Folding of neighbouring nodes into a deconvolution when a model is optimised.
//!
//! The graph must show the folding. The results must be those of the model as loaded, in which
//! nothing is folded.

use crate::common::oracle::tolerance;
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use tract_core::internal::*;
use tract_core::ops::source::TypedSource;
use tract_deconv::{Activation, BetweenLayers, OptGroupedDeconv, Pass, Step};

const CHANNELS: usize = 6;

/// Returns a deconvolution followed by other nodes. `tail` takes the name of its input and returns
/// that of its result.
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

/// A node of one input after `from`, whose result is named after it.
fn unary(op: &str, change: impl FnOnce(Node) -> Node) -> impl FnOnce(Model, &str) -> (Model, String) {
    let op = op.to_string();
    move |model, from| {
        let out = format!("{from}.{op}");
        (model.node(change(Node::new(&op).named(&out).inputs(&[from])).output(&out)), out)
    }
}

/// A node of `from` and a constant.
fn binary(op: &str, constant: Tensor, constant_first: bool) -> impl FnOnce(Model, &str) -> (Model, String) {
    let op = op.to_string();
    move |model, from| {
        let (out, name) = (format!("{from}.{op}"), format!("{from}.{op}.constant"));
        let inputs = if constant_first { [&*name, from] } else { [from, &*name] };
        (model.initializer(&name, &constant).node(Node::new(&op).named(&out).inputs(&inputs).output(&out)), out)
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

/// Returns the optimised deconvolutions, the number of other nodes that compute, and the model.
fn optimised(proto: &tract_onnx::pb::ModelProto) -> TractResult<(Vec<OptGroupedDeconv>, usize, TypedModel)> {
    let model = Stage::Optimised.of(load(proto)?)?;
    let ours: Vec<OptGroupedDeconv> =
        model.nodes.iter().filter_map(|n| n.op_as::<OptGroupedDeconv>()).cloned().collect();
    let passive = ["Source", "Const", "OptGroupedDeconv"];
    let others = model.nodes.iter().filter(|n| !passive.contains(&&*n.op.name())).count();
    Ok((ours, others, model))
}

/// Checks that the model gives the same numbers as loaded and optimised. Its input has 4 channels
/// and 7 columns.
fn same_numbers(proto: &tract_onnx::pb::ModelProto, dt: DatumType) -> TractResult<()> {
    for shape in [[1, 4, 5, 7], [3, 4, 40, 7]] {
        same_numbers_for(proto, dt, &shape)?;
    }
    Ok(())
}

fn same_numbers_for(proto: &tract_onnx::pb::ModelProto, dt: DatumType, shape: &[usize]) -> TractResult<()> {
    let x = Random(3).tensor(dt, shape);
    let plain = run(Stage::Typed.of(load(proto)?)?, std::slice::from_ref(&x))?;
    let fused = run(Stage::Optimised.of(load(proto)?)?, &[x])?;
    for (plain, fused) in plain.iter().zip(&fused) {
        assert_eq!(plain.shape(), fused.shape());
        let (a, b) = (plain.cast_to::<f64>()?, fused.cast_to::<f64>()?);
        let (a, b) = (a.try_as_plain_ram()?, b.try_as_plain_ram()?);
        for (a, b) in a.as_slice::<f64>()?.iter().zip(b.as_slice::<f64>()?) {
            // Unfused, each step rounds to the type, and intermediate values may exceed the result
            // (HardSwish).
            let roundings = if dt == DatumType::F16 { 8.0 } else { 4.0 };
            let allowed = roundings * tolerance(dt, 4 * 12 + 4, 64.0, a.abs().max(1.0));
            assert!((a - b).abs() <= allowed, "{a} unfused, {b} fused, {allowed} allowed");
        }
    }
    Ok(())
}

fn activations(of: &[Activation]) -> Vec<Step> {
    of.iter().map(|activation| Step::Activation(*activation)).collect()
}

/// Checks that all nodes after the deconvolution fold into it.
fn folds(dt: DatumType, proto: tract_onnx::pb::ModelProto, tail: &[Step]) -> TractResult<()> {
    let (ours, others, model) = optimised(&proto)?;
    assert_eq!((ours.len(), others), (1, 0), "{model}");
    assert_eq!(ours[0].epilogue, tail);
    same_numbers(&proto, dt)
}

/// Checks that all nodes fold, into steps of these names.
fn folds_into(dt: DatumType, proto: tract_onnx::pb::ModelProto, tail: &[&str]) -> TractResult<()> {
    let (ours, others, model) = optimised(&proto)?;
    assert_eq!((ours.len(), others), (1, 0), "{model}");
    assert_eq!(names(&ours[0].epilogue), tail);
    same_numbers(&proto, dt)
}

fn names(tail: &[Step]) -> Vec<String> {
    tail.iter().map(|step| step.to_string()).collect()
}

#[test]
fn activations_run_inside_the_store() -> TractResult<()> {
    for dt in [DatumType::F32, DatumType::F16] {
        let one = |op: &str, change: fn(Node) -> Node, activation| {
            folds(dt, model(dt, true, unary(op, change)), &activations(&[activation]))
        };
        one("Relu", |n| n, Activation::Max(0.0))?;
        one("LeakyRelu", |n| n.float("alpha", 0.125), Activation::LeakyRelu(0.125))?;
        one("Elu", |n| n, Activation::Elu(1.0))?;
        one("Elu", |n| n.float("alpha", 0.25), Activation::Elu(0.25))?;
        one("Sigmoid", |n| n, Activation::Sigmoid)?;
        one("Tanh", |n| n, Activation::Tanh)?;
        one("HardSwish", |n| n, Activation::HardSwish)?;
        one("Swish", |n| n, Activation::Silu)?;
        one("Gelu", |n| n, Activation::Gelu)?;
        one("Gelu", |n| n.string("approximate", "tanh"), Activation::GeluTanh)?;
    }
    let clip = model(DatumType::F32, false, |model, from| {
        let model = model.initializer("low", &tensor0(0f32)).initializer("high", &tensor0(6f32));
        (model.node(Node::new("Clip").inputs(&[from, "low", "high"]).output("clipped")), "clipped".into())
    });
    folds(DatumType::F32, clip, &activations(&[Activation::Max(0.0), Activation::Min(6.0)]))
}

/// A node of two values after a deconvolution.
fn join(model: Model, op: &str, inputs: [&str; 2]) -> (Model, String) {
    let out = format!("{}.{op}", inputs.join("."));
    (model.node(Node::new(op).named(&out).inputs(&inputs).output(&out)), out)
}

#[test]
fn activations_that_exporters_spell_out() -> TractResult<()> {
    let dt = DatumType::F32;
    let silu = model(dt, true, |model, from| {
        let (model, gate) = unary("Sigmoid", |n| n)(model, from);
        join(model, "Mul", [from, &gate])
    });
    folds(dt, silu, &activations(&[Activation::Silu]))?;
    let gelu = model(dt, true, |model, from| {
        let (model, scaled) = binary("Mul", tensor0(std::f32::consts::FRAC_1_SQRT_2), false)(model, from);
        let (model, erf) = unary("Erf", |n| n)(model, &scaled);
        let (model, gate) = binary("Add", tensor0(1f32), false)(model, &erf);
        let (model, product) = join(model, "Mul", [from, &gate]);
        binary("Mul", tensor0(0.5f32), false)(model, &product)
    });
    folds(dt, gelu, &activations(&[Activation::Gelu]))?;
    for (dt, scaled_first) in [(DatumType::F32, false), (DatumType::F32, true), (DatumType::F16, false)] {
        let sixth = || binary("Div", tensor0(6f32).cast_to_dt(dt).unwrap().into_owned(), false);
        let hard_swish = model(dt, true, |model, from| {
            let (model, moved) = binary("Add", tensor0(3f32).cast_to_dt(dt).unwrap().into_owned(), false)(model, from);
            let (model, clipped) = clip(model, dt, &moved, [0.0, 6.0]);
            let (model, gate) = if scaled_first { sixth()(model, &clipped) } else { (model, clipped) };
            let (model, product) = join(model, "Mul", [from, &gate]);
            if scaled_first { (model, product) } else { sixth()(model, &product) }
        });
        // tract multiplies by a sixth rounded to the type.
        folds_into(
            dt,
            hard_swish,
            &[if dt == DatumType::F16 {
                "Gate { scale: 0.16662598, shift: 0.49987793, low: 0.0, high: 0.99975586 }"
            } else {
                "Gate { scale: 0.16666667, shift: 0.5, low: 0.0, high: 1.0 }"
            }],
        )?;
    }
    // Other steps that compose to a clamp, including crossed bounds and a negative factor.
    let kin = model(dt, true, |model, from| {
        let (model, mirrored) = binary("Sub", tensor0(0.25f32), true)(model, from);
        let (model, clipped) = clip(model, dt, &mirrored, [0.5, -0.5]);
        let (model, halved) = binary("Mul", tensor0(-0.5f32), false)(model, &clipped);
        join(model, "Mul", [&halved, from])
    });
    folds_into(dt, kin, &["Gate { scale: 0.5, shift: -0.125, low: 0.25, high: 0.25 }"])?;
    // Crossed bounds, the upper one first.
    let crossed = model(dt, true, |model, from| {
        let (model, least) = binary("Min", tensor0(-0.5f32), false)(model, from);
        let (model, clipped) = binary("Max", tensor0(0.5f32), false)(model, &least);
        join(model, "Mul", [from, &clipped])
    });
    folds_into(dt, crossed, &["Gate { scale: 1.0, shift: 0.0, low: 0.5, high: 0.5 }"])?;
    // A term after the bounds moves both.
    let moved = model(dt, true, |model, from| {
        let (model, clipped) = clip(model, dt, from, [0.0, 6.0]);
        let (model, moved) = binary("Add", tensor0(1f32), false)(model, &clipped);
        join(model, "Mul", [from, &moved])
    });
    folds_into(dt, moved, &["Gate { scale: 1.0, shift: 1.0, low: 1.0, high: 7.0 }"])?;
    // A negative factor exchanges the bounds.
    let mirrored = model(dt, true, |model, from| {
        let (model, clipped) = clip(model, dt, from, [0.0, 6.0]);
        let (model, halved) = binary("Mul", tensor0(-0.5f32), false)(model, &clipped);
        join(model, "Mul", [from, &halved])
    });
    folds_into(dt, mirrored, &["Gate { scale: -0.5, shift: 0.0, low: -3.0, high: 0.0 }"])?;
    // A gate has one factor for all channels.
    let scaled = model(dt, true, |model, from| {
        let (model, clipped) = clip(model, dt, from, [0.0, 6.0]);
        let (model, product) = join(model, "Mul", [from, &clipped]);
        binary("Mul", Random(5).tensor(dt, &[CHANNELS, 1, 1]), false)(model, &product)
    });
    folds_into(dt, scaled, &["Gate { scale: 1.0, shift: 0.0, low: 0.0, high: 6.0 }", "Affine"])?;
    // The first two steps go into weights and bias.
    let hard_sigmoid = model(dt, true, unary("HardSigmoid", |n| n.float("alpha", 0.25)));
    folds(dt, hard_sigmoid, &activations(&[Activation::Min(1.0), Activation::Max(0.0)]))
}

/// A Clip between constants.
fn clip(model: Model, dt: DatumType, from: &str, bounds: [f32; 2]) -> (Model, String) {
    let (out, names) = (format!("{from}.Clip"), [format!("{from}.low"), format!("{from}.high")]);
    let [low, high] = bounds.map(|bound| tensor0(bound).cast_to_dt(dt).unwrap().into_owned());
    let model = model.initializer(&names[0], &low).initializer(&names[1], &high);
    (model.node(Node::new("Clip").named(&out).inputs(&[from, &names[0], &names[1]]).output(&out)), out)
}

#[test]
fn a_gate_that_is_read_elsewhere_stays_outside() -> TractResult<()> {
    let dt = DatumType::F32;
    let gate = |model: Model, from: &str| {
        let (model, moved) = binary("Add", tensor0(3f32), false)(model, from);
        clip(model, dt, &moved, [0.0, 6.0])
    };
    // The gate's factor is read twice, multiplies another value, or differs between channels.
    let twice = model(dt, true, |model, from| {
        let (model, clipped) = gate(model, from);
        let (model, product) = join(model, "Mul", [from, &clipped]);
        join(model, "Add", [&product, &clipped])
    });
    let other = model(dt, true, |model, from| {
        let (model, clipped) = gate(model, from);
        let (model, tanh) = unary("Tanh", |n| n)(model, from);
        join(model, "Mul", [&tanh, &clipped])
    });
    let per_channel = model(dt, true, |model, from| {
        let (model, moved) = binary("Add", Random(5).tensor(dt, &[CHANNELS, 1, 1]), false)(model, from);
        let (model, clipped) = clip(model, dt, &moved, [0.0, 6.0]);
        join(model, "Mul", [from, &clipped])
    });
    let scaled = model(dt, true, |model, from| {
        let (model, clipped) = gate(model, from);
        let (model, scaled) = binary("Mul", Random(5).tensor(dt, &[CHANNELS, 1, 1]), false)(model, &clipped);
        join(model, "Mul", [from, &scaled])
    });
    // The factor is an output of the model, or is added instead.
    let needed = model(dt, true, |model, from| {
        let (model, clipped) = gate(model, from);
        let (model, product) = join(model, "Mul", [from, &clipped]);
        (model.output(&clipped), product)
    });
    let added = model(dt, true, |model, from| {
        let (model, clipped) = gate(model, from);
        join(model, "Add", [from, &clipped])
    });
    for proto in [twice, other, per_channel, scaled, needed, added] {
        let (ours, others, model) = optimised(&proto)?;
        assert!(ours[0].epilogue.is_empty() && others > 0, "{model}");
        same_numbers(&proto, dt)?;
    }
    Ok(())
}

/// Infinite bounds would be no numbers if the factor moved into the gate.
#[test]
fn a_gate_takes_no_infinite_factor() -> TractResult<()> {
    let dt = DatumType::F32;
    let proto = model(dt, true, |model, from| {
        let (model, clipped) = clip(model, dt, from, [0.0, 6.0]);
        let (model, product) = join(model, "Mul", [from, &clipped]);
        binary("Mul", tensor0(f32::INFINITY), false)(model, &product)
    });
    let (ours, others, optimised) = optimised(&proto)?;
    assert_eq!(others, 0, "{optimised}");
    assert_eq!(names(&ours[0].epilogue), ["Gate { scale: 1.0, shift: 0.0, low: 0.0, high: 6.0 }", "Affine"]);
    Ok(())
}

/// Nor does such a factor become part of it before the product.
#[test]
fn a_gate_has_no_infinite_factor() -> TractResult<()> {
    let dt = DatumType::F32;
    let proto = model(dt, true, |model, from| {
        let (model, clipped) = clip(model, dt, from, [0.0, 6.0]);
        let (model, scaled) = binary("Mul", tensor0(f32::INFINITY), false)(model, &clipped);
        join(model, "Mul", [from, &scaled])
    });
    let (ours, others, optimised) = optimised(&proto)?;
    assert!(ours[0].epilogue.is_empty() && others > 0, "{optimised}");
    Ok(())
}

/// `if tested < 0 then slopes * from else from`, as a file may spell PRelu.
fn spelled_prelu(model: Model, from: &str, tested: &str) -> (Model, String) {
    let (model, scaled) = binary("Mul", Random(5).tensor(DatumType::F32, &[CHANNELS, 1, 1]), false)(model, from);
    let (model, negative) = binary("Greater", tensor0(0f32), true)(model, tested);
    let where_node = Node::new("Where").inputs(&[&negative, &scaled, from]).output("chosen");
    (model.node(where_node), "chosen".into())
}

#[test]
fn a_choice_that_is_no_prelu_stays_outside() -> TractResult<()> {
    let dt = DatumType::F32;
    folds_into(dt, model(dt, true, |model, from| spelled_prelu(model, from, from)), &["PRelu"])?;
    // The scaled value is an output of the model, too.
    let read = model(dt, true, |model, from| {
        let (model, chosen) = spelled_prelu(model, from, from);
        (model.output(&format!("{from}.Mul")), chosen)
    });
    // The value is compared with one, or the other half of the values is scaled.
    let choice = |first: bool, bound: f32| {
        model(dt, true, |model, from| {
            let (model, scaled) = binary("Mul", Random(5).tensor(dt, &[CHANNELS, 1, 1]), false)(model, from);
            let (model, tested) = binary("Greater", tensor0(bound), first)(model, from);
            (model.node(Node::new("Where").inputs(&[&tested, &scaled, from]).output("chosen")), "chosen".into())
        })
    };
    // The sign of another value decides.
    let other = model(dt, true, |model, from| {
        let (model, mirrored) = unary("Neg", |n| n)(model, from);
        spelled_prelu(model, from, &mirrored)
    });
    for (proto, left) in [(read, 3), (other, 4), (choice(true, 1.0), 3), (choice(false, 0.0), 3)] {
        let (ours, others, optimised) = optimised(&proto)?;
        assert_eq!((ours[0].epilogue.len(), others), (0, left), "{optimised}");
        same_numbers(&proto, dt)?;
    }
    Ok(())
}

#[test]
fn prelu_runs_inside_the_store() -> TractResult<()> {
    for dt in [DatumType::F32, DatumType::F16, DatumType::F64] {
        let slopes = Random(5).tensor(dt, &[CHANNELS, 1, 1]);
        folds_into(dt, model(dt, true, binary("PRelu", slopes, false)), &["PRelu"])?;
        let same = tensor1(&[0.125f32]).cast_to_dt(dt)?.into_owned();
        folds(dt, model(dt, true, binary("PRelu", same, false)), &activations(&[Activation::LeakyRelu(0.125)]))?;
    }
    // Slopes that are not per channel, and a value that has another reader.
    let dt = DatumType::F32;
    let proto = model(dt, true, binary("PRelu", Random(5).tensor(dt, &[1, 1, 16]), false));
    let (ours, others, _) = optimised(&proto)?;
    assert_eq!((ours[0].epilogue.len(), others), (0, 3));
    same_numbers(&proto, dt)?;
    let proto = model(dt, true, |model, from| {
        let (model, prelu) = binary("PRelu", Random(5).tensor(dt, &[CHANNELS, 1, 1]), false)(model, from);
        join(model, "Mul", [&prelu, from])
    });
    let (ours, others, _) = optimised(&proto)?;
    assert_eq!((ours[0].epilogue.len(), others), (0, 4));
    same_numbers(&proto, dt)
}

/// A deconvolution that keeps its input's shape.
fn keeps_shape(model: Model, dt: DatumType, from: &str, name: &str) -> (Model, String) {
    let (weights, out) = (format!("{name}.w"), format!("{name}.out"));
    let node =
        Node::new("ConvTranspose").named(name).inputs(&[from, &weights]).ints("pads", &[1, 1, 1, 1]).output(&out);
    (model.initializer(&weights, &Random(name.len() as u64).tensor(dt, &[4, 4, 3, 3])).node(node), out)
}

/// Returns blocks of deconvolutions that keep the shape of `x`. `tail` takes the names of the input
/// and of the first result.
fn residual_model(
    dt: DatumType,
    tail: impl FnOnce(Model, &str, &str) -> (Model, String),
) -> tract_onnx::pb::ModelProto {
    let model = Model::opset(13).input("x", dt, &[Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(7)]);
    let (model, first) = keeps_shape(model, dt, "x", "first");
    let (model, last) = tail(model, "x", &first);
    model.output(&last).build()
}

#[test]
fn a_residual_is_added_inside_the_store() -> TractResult<()> {
    for dt in [DatumType::F32, DatumType::F16, DatumType::F64] {
        let add_then_relu = residual_model(dt, |model, x, first| {
            let (model, sum) = join(model, "Add", [x, first]);
            unary("Relu", |n| n)(model, &sum)
        });
        folds_into(dt, add_then_relu, &["Add", "Max(0.0)"])?;
        let relu_then_add = residual_model(dt, |model, x, first| {
            let (model, relu) = unary("Relu", |n| n)(model, first);
            join(model, "Add", [&relu, x])
        });
        folds_into(dt, relu_then_add, &["Max(0.0)", "Add"])?;
    }
    let dt = DatumType::F32;
    // Two residuals with a factor in between. It must not fold into the weights, as it scales the
    // first residual too.
    let proto = residual_model(dt, |model, x, first| {
        let (model, sum) = join(model, "Add", [first, x]);
        let (model, scaled) = binary("Mul", Random(5).tensor(dt, &[1, 4, 1, 1]), false)(model, &sum);
        let (model, shifted) = binary("Add", Random(6).tensor(dt, &[1, 4, 1, 1]), false)(model, &scaled);
        join(model, "Add", [&shifted, x])
    });
    folds_into(dt, proto, &["Add", "Affine", "Add"])?;
    // Of two deconvolutions, one adds the other's result.
    let proto = residual_model(dt, |model, x, first| {
        let (model, second) = keeps_shape(model, dt, x, "second");
        let (model, second) = unary("Relu", |n| n)(model, &second);
        join(model, "Add", [first, &second])
    });
    let (ours, others, model) = optimised(&proto)?;
    let mut tails: Vec<_> = ours.iter().map(|op| names(&op.epilogue)).collect();
    tails.sort();
    assert_eq!((tails, others), (vec![vec!["Add".to_string()], vec!["Max(0.0)".into()]], 0), "{model}");
    same_numbers(&proto, dt)
}

#[test]
fn what_is_no_residual_stays_outside() -> TractResult<()> {
    let dt = DatumType::F32;
    // A value added to itself, a value of another shape, and a sum whose first operand is also an
    // output.
    let twice = residual_model(dt, |model, _, first| join(model, "Add", [first, first]));
    let broadcast = residual_model(dt, |model, x, first| {
        let mean = Node::new("ReduceMean").inputs(&[x]).ints("axes", &[2, 3]).int("keepdims", 1).output("mean");
        join(model.node(mean), "Add", [first, "mean"])
    });
    let needed = residual_model(dt, |model, x, first| join(model.output(first), "Add", [first, x]));
    for proto in [twice, broadcast, needed] {
        let (ours, others, model) = optimised(&proto)?;
        assert!(ours[0].epilogue.is_empty() && others > 0, "{model}");
        same_numbers(&proto, dt)?;
    }
    Ok(())
}

/// The steps compute floats.
#[test]
fn a_residual_of_integers_stays_outside() -> TractResult<()> {
    let dt = DatumType::I32;
    let model = Model::opset(13)
        .input("x", dt, &[Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(7)])
        .initializer("w", &Random(7).small_integers(dt, &[4, 4, 3, 3]));
    let same_size = Node::new("ConvolutionBackpropData").domain("org.openvinotoolkit").ints("strides", &[1, 1]);
    let same_size = same_size.ints("pads_begin", &[1, 1]).ints("pads_end", &[1, 1]).inputs(&["x", "w"]).output("up");
    let (model, sum) = join(model.node(same_size), "Add", ["up", "x"]);
    let proto = model.output(&sum).build();
    let (ours, others, optimised) = optimised(&proto)?;
    assert_eq!((ours[0].epilogue.len(), others), (0, 1), "{optimised}");
    let x = Random(3).small_integers(dt, &[2, 4, 5, 7]);
    let plain = run(load(&proto)?, std::slice::from_ref(&x))?;
    assert_eq!(run(optimised, &[x])?, plain);
    Ok(())
}

#[test]
fn a_residual_of_an_unforeseen_shape_is_an_error() -> TractResult<()> {
    let proto = residual_model(DatumType::F32, |model, x, first| join(model, "Add", [first, x]));
    let (ours, _, _) = optimised(&proto)?;
    let tensor = |shape: &[usize]| Random(1).tensor(DatumType::F32, shape).into_tvalue();
    let context = EvalContext::out_of_plan();
    let error = ours[0].eval(&context, tvec!(tensor(&[1, 4, 5, 7]), tensor(&[1, 4, 6, 7]))).expect_err("other rows");
    assert_eq!(format!("{error:#}"), "residual: shape=[1, 4, 6, 7], the output's is [1, 4, 5, 7]");
    let error = ours[0].eval(&context, tvec!(tensor(&[1, 4, 5, 7]))).expect_err("there is none");
    assert_eq!(format!("{error:#}"), "residual: count=0, the steps add 1");
    Ok(())
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
        let moved = model(DatumType::F32, bias, |model, from| {
            let each = |seed| Random(seed).tensor(DatumType::F32, &[1, CHANNELS, 1, 1]);
            let (model, from) = binary("Add", each(5), false)(model, from);
            binary("Mul", each(6), false)(model, &from)
        });
        folds(DatumType::F32, moved, &[])?;
        let both = model(DatumType::F32, bias, |model, from| {
            let (model, from) = batch_norm(model, from);
            unary("Relu", |n| n)(model, &from)
        });
        folds(DatumType::F32, both, &activations(&[Activation::Max(0.0)]))?;
    }
    Ok(())
}

#[test]
fn affine_steps_fold_into_the_weights_of_each_group() -> TractResult<()> {
    let dt = DatumType::F32;
    let model = Model::opset(13)
        .input("x", dt, &[Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(7)])
        .initializer("w", &Random(7).tensor(dt, &[4, CHANNELS / 2, 3, 4]))
        .node(Node::new("ConvTranspose").inputs(&["x", "w"]).int("group", 2).output("up"));
    let (model, last) = binary("Mul", Random(5).tensor(dt, &[1, CHANNELS, 1, 1]), false)(model, "up");
    folds(dt, model.output(&last).build(), &[])
}

#[test]
fn affine_steps_that_weights_can_not_take_run_inside_the_store() -> TractResult<()> {
    // Half floats would be rounded once more.
    let f16 = DatumType::F16;
    let mul = |constant: Tensor| binary("Mul", constant, false);
    let norm = model(f16, true, |model, from| {
        let (model, from) = mul(Random(5).tensor(f16, &[1, CHANNELS, 1, 1]))(model, from);
        binary("Add", Random(6).tensor(f16, &[1, CHANNELS, 1, 1]), false)(model, &from)
    });
    folds_into(f16, norm, &["Affine"])?;
    // After an activation.
    let behind = model(DatumType::F32, true, |model, from| {
        let (model, from) = unary("Relu", |n| n)(model, from);
        batch_norm(model, &from)
    });
    folds_into(DatumType::F32, behind, &["Max(0.0)", "Affine"])?;
    // After a bias that is an input of the model.
    let dt = DatumType::F32;
    let model = Model::opset(13)
        .input("x", dt, &[Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(7)])
        .input("b", dt, &sizes(&[CHANNELS]))
        .initializer("w", &Random(7).tensor(dt, &[4, CHANNELS, 3, 4]))
        .node(Node::new("ConvTranspose").inputs(&["x", "w", "b"]).output("up"));
    let (model, last) = mul(Random(5).tensor(dt, &[1, CHANNELS, 1, 1]))(model, "up");
    let proto = model.output(&last).build();
    let (ours, others, optimised) = optimised(&proto)?;
    assert_eq!((names(&ours[0].epilogue), others), (vec!["Affine".to_string()], 0));
    let inputs = [Random(1).tensor(dt, &[2, 4, 5, 7]), Random(2).tensor(dt, &[CHANNELS])];
    run(load(&proto)?, &inputs)?[0].close_enough(&run(optimised, &inputs)?[0], true)
}

/// Returns a model in which `before` computes the input of a convolution of OpenVINO's or ONNX's.
/// `before` takes the model and the name of an input of four channels.
fn preceded(
    node: Node,
    filter: &[usize],
    before: impl FnOnce(Model, &str) -> (Model, String),
) -> tract_onnx::pb::ModelProto {
    let dt = DatumType::F32;
    let model = Model::opset(13)
        .input("x", dt, &[Dim::from("N"), Dim::from(4), Dim::from("H"), Dim::from(7)])
        .initializer("w", &Random(7).tensor(dt, filter));
    let (model, last) = before(model, "x");
    model.node(node.inputs(&[&last, "w"]).output("y")).output("y").build()
}

fn norm_of_input(model: Model, from: &str) -> (Model, String) {
    let (model, from) = binary("Mul", Random(5).tensor(DatumType::F32, &[1, 4, 1, 1]), false)(model, from);
    binary("Sub", Random(6).tensor(DatumType::F32, &[1, 4, 1, 1]), false)(model, &from)
}

fn forward(pads: &[i64]) -> Node {
    let node =
        Node::new("Convolution").domain("org.openvinotoolkit").ints("strides", &[2, 1]).ints("dilations", &[1, 1]);
    node.ints("pads_begin", pads).ints("pads_end", &[0, 0])
}

#[test]
fn what_precedes_folds_into_weights_and_bias() -> TractResult<()> {
    let transposed = || Node::new("ConvTranspose").ints("strides", &[2, 2]).ints("pads", &[1, 0, 1, 1]);
    let point = || Node::new("ConvTranspose").ints("pads", &[1, 0, 1, 1]);
    let per_channel = || Random(5).tensor(DatumType::F32, &[1, 4, 1, 1]);
    // The number of nodes that remain besides ours.
    let cases = [
        (preceded(transposed(), &[4, 6, 3, 4], binary("Mul", per_channel(), false)), 0),
        (preceded(transposed().int("group", 2), &[4, 6, 3, 4], binary("Div", per_channel(), false)), 0),
        (preceded(transposed(), &[4, 6, 3, 4], binary("Mul", tensor0(0.25f32), true)), 0),
        // The added term reaches some positions through one tap and others through two.
        (preceded(transposed(), &[4, 6, 3, 4], binary("Add", per_channel(), false)), 1),
        (preceded(transposed(), &[4, 6, 3, 4], norm_of_input), 2),
        (preceded(point(), &[4, 6, 1, 1], norm_of_input), 0),
        (preceded(forward(&[0, 0]), &[6, 4, 3, 2], norm_of_input), 0),
        (preceded(forward(&[-1, 0]), &[6, 4, 3, 2], norm_of_input), 0),
        (preceded(forward(&[0, 1]), &[6, 4, 3, 2], norm_of_input), 2),
    ];
    for (ix, (proto, left)) in cases.into_iter().enumerate() {
        let (_, others, model) = optimised(&proto)?;
        assert_eq!(others, left, "case {ix}: {model}");
        same_numbers(&proto, DatumType::F32).with_context(|| format!("case {ix}"))?;
    }
    Ok(())
}

#[test]
fn what_precedes_and_changes_the_shape_is_kept() -> TractResult<()> {
    let proto = preceded(Node::new("ConvTranspose"), &[4, 6, 3, 4], |model, from| {
        let mean = Node::new("ReduceMean").inputs(&[from]).ints("axes", &[1]).int("keepdims", 1).output("mean");
        binary("Mul", Random(5).tensor(DatumType::F32, &[1, 4, 1, 1]), false)(model.node(mean), "mean")
    });
    same_numbers(&proto, DatumType::F32)
}

#[test]
fn what_precedes_and_is_read_elsewhere_is_kept() -> TractResult<()> {
    let proto = preceded(Node::new("ConvTranspose"), &[4, 6, 3, 4], |model, from| {
        let (model, scaled) = binary("Mul", Random(5).tensor(DatumType::F32, &[1, 4, 1, 1]), false)(model, from);
        (model.output(&scaled), scaled)
    });
    let (_, others, model) = optimised(&proto)?;
    assert_eq!(others, 1);
    let layer = model.nodes.iter().find(|node| node.op_is::<OptGroupedDeconv>()).context("a layer")?;
    assert!(!model.node(layer.inputs[0].node).op_is::<TypedSource>(), "it reads the scaled value: {model}");
    same_numbers(&proto, DatumType::F32)
}

#[test]
fn a_value_that_is_read_elsewhere_is_kept() -> TractResult<()> {
    // As an output of the model.
    let proto = model(DatumType::F32, true, |model, from| {
        let (model, out) = unary("Relu", |n| n)(model, from);
        (model.output(from), out)
    });
    let (ours, others, _) = optimised(&proto)?;
    assert_eq!((ours[0].epilogue.len(), others), (0, 1));
    same_numbers(&proto, DatumType::F32)?;
    // By a second node.
    let proto = model(DatumType::F32, true, |model, from| {
        let (model, relu) = unary("Relu", |n| n)(model, from);
        let (model, tanh) = unary("Tanh", |n| n)(model, from);
        (model.node(Node::new("Add").inputs(&[&relu, &tanh]).output("sum")), "sum".into())
    });
    let (ours, others, _) = optimised(&proto)?;
    assert!(ours[0].epilogue.is_empty() && others >= 3, "{others} other nodes");
    same_numbers(&proto, DatumType::F32)
}

#[test]
fn what_is_not_per_channel_stays_outside() -> TractResult<()> {
    // A bound is one for all channels, and powers are no factors.
    let powers = tensor1(&[2f32, 4.0, 2.0, 4.0, 2.0, 4.0]).into_shape(&[1, CHANNELS, 1, 1])?;
    let random = |shape: &[usize]| Random(9).tensor(DatumType::F32, shape);
    for (op, constant) in [("Mul", random(&[1, 1, 1, 16])), ("Max", random(&[1, CHANNELS, 1, 1])), ("Pow", powers)] {
        let proto = model(DatumType::F32, true, binary(op, constant, false));
        let (ours, others, _) = optimised(&proto)?;
        assert_eq!((ours[0].epilogue.len(), others), (0, 1), "{op}");
        same_numbers(&proto, DatumType::F32)?;
    }
    Ok(())
}

#[test]
fn every_strategy_applies_the_tail() -> TractResult<()> {
    // Input, filter, strides, groups.
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
        assert_eq!((ours[0].epilogue.len(), others), (1, 0));
        seen.insert(format!("{:?}", ours[0].filter_layout()));
        let plain = run(load(&proto)?, std::slice::from_ref(&x))?.remove(0);
        let fused = run(Stage::Optimised.of(load(&proto)?)?, &[x])?.remove(0);
        plain.close_enough(&fused, true)?;
    }
    assert!(seen.len() >= 4, "layouts: {seen:?}");
    Ok(())
}

/// Returns a model in which `head` computes the input of a deconvolution `up` from four channels of
/// the model's first input.
///
/// `head` returns the name of the value that the deconvolution reads, and the names of the model's
/// other outputs.
fn headed(
    dt: DatumType,
    spatial: &[usize],
    head: impl FnOnce(Model) -> (Model, String, Vec<String>),
) -> tract_onnx::pb::ModelProto {
    let dims: Vec<Dim> =
        [Dim::from("N"), Dim::from(4)].into_iter().chain(spatial.iter().map(|d| Dim::from(*d))).collect();
    let (model, last, others) = head(Model::opset(13).input("x", dt, &dims));
    let kernel: Vec<usize> = [4, 3].into_iter().chain(spatial.iter().map(|_| 2)).collect();
    let node = Node::new("ConvTranspose").named("up").inputs(&[&last, "w"]).output("y");
    let model = model.initializer("w", &Random(8).tensor(dt, &kernel)).node(node).output("y");
    others.iter().fold(model, |model, name| model.output(name)).build()
}

/// Checks that all nodes but the deconvolution become one op of these passes, for one image and for
/// several.
fn between(
    dt: DatumType,
    spatial: &[usize],
    proto: &tract_onnx::pb::ModelProto,
    passes: &[&[&str]],
) -> TractResult<()> {
    let (_, others, model) = optimised(proto)?;
    let found: Vec<&BetweenLayers> = model.nodes.iter().filter_map(|node| node.op_as::<BetweenLayers>()).collect();
    let names: Vec<Vec<String>> =
        found.iter().map(|op| op.passes().iter().map(|pass| pass.to_string()).collect()).collect();
    assert_eq!(names, passes, "{model}");
    assert_eq!(others, found.len(), "{model}");
    for n in [1, 3] {
        same_numbers_for(proto, dt, &[&[n, 4], spatial].concat())?;
    }
    Ok(())
}

#[test]
fn what_stands_before_and_folds_into_no_weights_is_one_op() -> TractResult<()> {
    for dt in [DatumType::F32, DatumType::F16, DatumType::F64] {
        for spatial in [&[9, 17][..], &[50], &[3, 4, 5], &[64, 80]] {
            // tract's LeakyRelu does not support f64.
            let (op, pass) = if dt == DatumType::F64 { ("Tanh", "Tanh") } else { ("LeakyRelu", "LeakyRelu(0.01)") };
            let head = headed(dt, spatial, |model| {
                let (model, out) = unary(op, |n| n)(model, "x");
                (model, out, vec![])
            });
            between(dt, spatial, &head, &[&[pass]])?;
        }
        // A normalisation that can't fold into the weights because of padding, and the steps after
        // it.
        let each = |seed| Random(seed).tensor(dt, &[4, 1, 1]);
        let normalised = headed(dt, &[9, 17], |model| {
            let (model, scaled) = binary("Mul", each(3), false)(model, "x");
            let (model, moved) = binary("Add", each(4), true)(model, &scaled);
            let (model, out) = unary("Relu", |n| n)(model, &moved);
            (model, out, vec![])
        });
        between(dt, &[9, 17], &normalised, &[&["Affine", "Affine", "Max(0.0)"]])?;
    }
    Ok(())
}

/// Computes factors per channel, from the channels' means.
fn squeezed(model: Model, from: &str) -> (Model, String) {
    let (model, mean) = unary("GlobalAveragePool", |n| n)(model, from);
    unary("Tanh", |n| n)(model, &mean)
}

#[test]
fn channels_are_scaled_and_sums_are_made_between_layers() -> TractResult<()> {
    let count = |proto: &tract_onnx::pb::ModelProto| -> TractResult<Vec<String>> {
        let (_, _, model) = optimised(proto)?;
        let ops = model.nodes.iter().filter_map(|node| node.op_as::<BetweenLayers>());
        Ok(ops.flat_map(|op| op.passes().iter().map(|pass| pass.to_string())).collect())
    };
    for dt in [DatumType::F32, DatumType::F16, DatumType::F64] {
        let excited = headed(dt, &[9, 17], |model| {
            let (model, factors) = squeezed(model, "x");
            let (model, out) = join(model, "Mul", ["x", &factors]);
            (model, out, vec![])
        });
        let with_itself = headed(dt, &[9, 17], |model| {
            let (model, factors) = squeezed(model, "x");
            let (model, scaled) = join(model, "Mul", ["x", &factors]);
            let (model, out) = join(model, "Add", ["x", &scaled]);
            // The value has another reader.
            (model, out.clone(), vec![out])
        });
        for (proto, passes) in [(&excited, &["Scale"][..]), (&with_itself, &["Scale", "Add"])] {
            assert_eq!(count(proto)?, passes);
            for n in [1, 3] {
                same_numbers_for(proto, dt, &[n, 4, 9, 17])?;
            }
        }
    }
    // If the operand that is not constant has another reader, the search stops there. It must not
    // follow the constant instead, whichever operand that is.
    for constant_first in [false, true] {
        let moved = headed(DatumType::F32, &[9, 17], |model| {
            let (model, tanh) = unary("Tanh", |n| n)(model, "x");
            let (model, out) =
                binary("Add", Random(5).tensor(DatumType::F32, &[4, 1, 1]), constant_first)(model, &tanh);
            (model, out, vec![tanh])
        });
        assert_eq!(count(&moved)?, ["Affine"]);
        same_numbers_for(&moved, DatumType::F32, &[2, 4, 9, 17])?;
    }
    // One of the values has another reader, so its node is kept.
    let read = headed(DatumType::F32, &[9, 17], |model| {
        let (model, out) = unary("LeakyRelu", |n| n)(model, "x");
        let (model, last) = unary("Tanh", |n| n)(model, &out);
        (model, last, vec![out])
    });
    assert_eq!(count(&read)?, ["Tanh"]);
    same_numbers_for(&read, DatumType::F32, &[2, 4, 9, 17])
}

#[test]
fn windows_are_pooled_between_layers() -> TractResult<()> {
    type Change = fn(Node) -> Node;
    let pools: [(&[usize], Change); 8] = [
        (&[20, 34], |n| n.ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2])),
        (&[21, 33], |n| n.ints("kernel_shape", &[3, 3]).ints("strides", &[2, 2]).ints("pads", &[1, 1, 1, 1])),
        (&[21, 33], |n| n.ints("kernel_shape", &[3, 2]).ints("strides", &[1, 3]).ints("pads", &[0, 1, 2, 0])),
        (&[20, 34], |n| n.ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2]).int("ceil_mode", 1)),
        (&[20, 33], |n| n.ints("kernel_shape", &[3, 3]).ints("strides", &[2, 2]).int("ceil_mode", 1)),
        (&[20, 33], |n| n.ints("kernel_shape", &[3, 3]).ints("dilations", &[2, 3])),
        (&[77], |n| n.ints("kernel_shape", &[5]).ints("strides", &[2]).string("auto_pad", "SAME_UPPER")),
        (&[6, 8, 10], |n| n.ints("kernel_shape", &[2, 2, 2]).ints("strides", &[2, 2, 2])),
    ];
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64] {
        for (spatial, change) in pools {
            let proto = headed(dt, spatial, |model| {
                let (model, out) = unary("MaxPool", change)(model, "x");
                (model, out, vec![])
            });
            let (_, _, model) = optimised(&proto)?;
            let pass = model.nodes.iter().find_map(|node| node.op_as::<BetweenLayers>());
            assert!(matches!(pass.map(|op| op.passes()), Some([Pass::MaxPool(_)])), "{model}");
            for n in [1, 3] {
                same_numbers_for(&proto, dt, &[&[n, 4], spatial].concat())?;
            }
            for count_include_pad in [0, 1] {
                let proto = headed(dt, spatial, |model| {
                    let change = |node| change(node).int("count_include_pad", count_include_pad);
                    let (model, out) = unary("AveragePool", change)(model, "x");
                    (model, out, vec![])
                });
                let (_, _, model) = optimised(&proto)?;
                let pass = model.nodes.iter().find_map(|node| node.op_as::<BetweenLayers>());
                assert!(matches!(pass.map(|op| op.passes()), Some([Pass::SumPool(_)])), "{model}");
                for n in [1, 3] {
                    same_numbers_for(&proto, dt, &[&[n, 4], spatial].concat())?;
                }
            }
        }
    }
    // Steps before and after the pool, with two readers.
    let dt = DatumType::F32;
    let proto = headed(dt, &[20, 34], |model| {
        let (model, tanh) = unary("Tanh", |n| n)(model, "x");
        let (model, pooled) = unary("MaxPool", pools[0].1)(model, &tanh);
        let (model, out) = unary("LeakyRelu", |n| n.float("alpha", 0.25))(model, &pooled);
        (model, out.clone(), vec![out])
    });
    between(dt, &[20, 34], &proto, &[&["Tanh", "MaxPool [2, 2]", "LeakyRelu(0.25)"]])
}

#[test]
fn what_stands_before_a_concatenation_or_an_upsampling_is_found() -> TractResult<()> {
    let dt = DatumType::F32;
    let proto = Model::opset(13)
        .input("x", dt, &[Dim::from("N"), Dim::from(2), Dim::from(9), Dim::from(17)])
        .initializer("scales", &tensor1(&[1f32, 1.0, 2.0, 2.0]))
        .initializer("w", &Random(8).tensor(dt, &[4, 3, 2, 2]))
        .node(Node::new("LeakyRelu").named("leaky").inputs(&["x"]).float("alpha", 0.25).output("a"))
        .node(Node::new("Tanh").named("tanh").inputs(&["x"]).output("b"))
        .node(Node::new("Concat").named("both").inputs(&["a", "b"]).int("axis", 1).output("c"))
        .node(
            Node::new("Resize")
                .named("larger")
                .inputs(&["c", "", "scales"])
                .string("mode", "nearest")
                .string("nearest_mode", "floor")
                .string("coordinate_transformation_mode", "asymmetric")
                .output("d"),
        )
        .node(Node::new("ConvTranspose").named("up").inputs(&["d", "w"]).output("y"))
        .output("y")
        .build();
    let (_, _, model) = optimised(&proto)?;
    assert_eq!(model.nodes.iter().filter(|node| node.op_is::<BetweenLayers>()).count(), 2, "{model}");
    for n in [1, 2] {
        same_numbers_for(&proto, dt, &[n, 2, 9, 17])?;
    }
    Ok(())
}

/// Passes shared by several threads give the same bits as on one thread.
#[test]
fn threads_share_passes() -> TractResult<()> {
    use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
    let dt = DatumType::F32;
    let proto = headed(dt, &[150, 200], |model| {
        let (model, factors) = squeezed(model, "x");
        let (model, scaled) = join(model, "Mul", ["x", &factors]);
        let (model, sum) = join(model, "Add", ["x", &scaled]);
        let (model, out) = unary("MaxPool", |n| n.ints("kernel_shape", &[3, 3]).ints("strides", &[2, 2]))(model, &sum);
        (model, out, vec![])
    });
    let (_, _, optimised) = optimised(&proto)?;
    assert!(optimised.nodes.iter().any(|node| node.op_as::<BetweenLayers>().is_some_and(|op| op.passes().len() == 3)));
    let x = Random(3).tensor(dt, &[2, 4, 150, 200]);
    let model = Stage::Optimised.of(load(&proto)?)?;
    let alone = run(model.clone(), std::slice::from_ref(&x))?;
    for threads in [2, 3, 5] {
        let shared =
            multithread_tract_scope(Executor::multithread(threads), || run(model.clone(), std::slice::from_ref(&x)))?;
        assert!(alone == shared, "{threads} threads");
    }
    Ok(())
}
