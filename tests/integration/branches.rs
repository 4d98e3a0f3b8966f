//! Conditions whose branches hold layers: the optimised graph, the results of both branches, and
//! what a run leaves behind.

use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, load_stock, run};
use std::sync::Barrier;
use tract_core::internal::*;
use tract_core::ops::logic::IfThenElse;
use tract_core::ops::scan::{OptScan, Scan};
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_core::transform::get_transform;
use tract_deconv::internals::threads;
use tract_deconv::{
    GroupedDeconv, If, OptGroupedDeconv, OptIf, Options, WithConv, WithDeconv, WithDeconvOptions, explain,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

const CHANNELS: usize = 3;

/// Loads with everything of this crate but what `fusion: false` leaves to tract.
fn load_unfused(proto: &ModelProto) -> TractResult<TypedModel> {
    let onnx = tract_onnx::onnx().with_deconv().with_conv();
    onnx.with_deconv_options(&Options::default().with_fusion(false))?.model_for_proto_model(proto)?.into_typed()
}

/// Returns the operators of a model, in order.
fn ops(model: &TypedModel) -> TractResult<Vec<String>> {
    Ok(model.eval_order()?.iter().map(|id| model.node(*id).op.name().to_string()).collect())
}

fn count<O: Op>(model: &TypedModel) -> usize {
    model.nodes.iter().filter(|node| node.op_is::<O>()).count()
}

/// Returns a layer over one axis that keeps its size.
fn layer(operator: &str, name: &str, input: &str, weights: &str) -> Node {
    Node::new(operator).named(name).inputs(&[input, weights]).ints("pads", &[1, 1]).output(name)
}

/// Returns the weights of a layer.
fn weights(seed: u64) -> Tensor {
    Random(seed).tensor(DatumType::F32, &[CHANNELS, CHANNELS, 3])
}

/// Returns data for layers of one axis.
fn data(seed: u64, batch: usize, size: usize) -> Tensor {
    Random(seed).tensor(DatumType::F32, &[batch, CHANNELS, size])
}

/// Returns a condition called `either` over the condition `c`.
fn either(then: Model, otherwise: Model) -> Node {
    Node::new("If").named("either").inputs(&["c"]).graph("then_branch", then).graph("else_branch", otherwise)
}

/// Returns a model with a condition `c`, data `x`, and weights `v` and `w` outside of the branches.
fn outer(batch: Dim, size: Dim) -> Model {
    Model::opset(13)
        .input("c", DatumType::Bool, &[])
        .input("x", DatumType::F32, &[batch, CHANNELS.into(), size])
        .initializer("v", &weights(1))
        .initializer("w", &weights(2))
}

/// Returns a model whose branches are a convolution and an activation, and a deconvolution between
/// two activations. A layer of the outer graph follows.
fn model(batch: Dim, size: Dim) -> ModelProto {
    let then = Model::opset(13)
        .node(layer("Conv", "down", "x", "v"))
        .node(Node::new("Relu").named("relu").inputs(&["down"]).output("then"))
        .output("then");
    let otherwise = Model::opset(13)
        .node(Node::new("Sigmoid").named("before").inputs(&["x"]).output("before"))
        .node(layer("ConvTranspose", "up", "before", "w"))
        .node(Node::new("Tanh").named("tanh").inputs(&["up"]).output("otherwise"))
        .output("otherwise");
    let branches = either(then, otherwise).output("chosen");
    outer(batch, size).node(branches).node(layer("Conv", "last", "chosen", "w")).output("last").build()
}

/// Checks that a model gives the same with fusion and without, and as stock tract does, in both
/// branches and at every stage.
fn same_in_both_branches(what: &str, proto: &ModelProto, x: &[Tensor]) -> TractResult<()> {
    for condition in [true, false] {
        let inputs: Vec<Tensor> = std::iter::once(tensor0(condition)).chain(x.iter().cloned()).collect();
        let stock = run(load_stock(proto)?, &inputs)?;
        let unfused = run(load_unfused(proto)?.into_optimized()?, &inputs)?;
        for stage in Stage::ALL {
            let found = run(stage.of(load(proto)?)?, &inputs)?;
            for expected in [&stock, &unfused] {
                ensure!(found.len() == expected.len(), "{what}: {} outputs", found.len());
                for (found, expected) in found.iter().zip(expected) {
                    expected.close_enough(found, true).with_context(|| format!("{what}, {stage:?}, {condition}"))?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn branches_are_optimised_with_the_model() -> TractResult<()> {
    let proto = model(2.into(), 9.into());
    let typed = load(&proto)?;
    assert_eq!((count::<If>(&typed), count::<IfThenElse>(&typed)), (1, 0), "{typed}");
    let decluttered = typed.into_decluttered()?;
    let of_decluttered = decluttered.node_by_name("either")?;
    // The weights have moved into the branches.
    assert_eq!(of_decluttered.inputs.len(), 2, "{decluttered}");
    let optimised = decluttered.into_optimized()?;
    assert_eq!(ops(&optimised)?, ["Source", "Source", "OptIf", "OptGroupedDeconv"]);
    // The layers have folded what stands beside them, and have plans.
    let explained = explain(&optimised, &SymbolValues::default())?;
    let names: Vec<&str> = explained.iter().map(|layer| &*layer.name).collect();
    assert_eq!(names, ["either/then/down", "either/else/up", "last"]);
    assert_eq!([0, 1].map(|ix| explained[ix].epilogue.len()), [1, 1]);
    assert!(explained.iter().all(|layer| layer.concrete.is_some()), "{explained:?}");
    // Optimising twice changes nothing.
    assert_eq!(ops(&optimised.clone().into_optimized()?)?, ops(&optimised)?);
    Ok(())
}

/// A condition that has no types yet has the name that it has in tract, and gives the same.
#[test]
fn untyped_conditions_are_named_and_run() -> TractResult<()> {
    let proto = model(2.into(), 9.into());
    let [stock, ours] = [tract_onnx::onnx(), tract_onnx::onnx().with_deconv()];
    let (stock, ours) = (stock.model_for_proto_model(&proto)?, ours.model_for_proto_model(&proto)?);
    let (of_tract, node) = (stock.node_by_name("either")?, ours.node_by_name("either")?);
    assert_eq!(node.op.name(), of_tract.op.name());
    for condition in [true, false] {
        let value = |input: &OutletId| match &*ours.node(input.node).name {
            "c" => tensor0(condition).into_tvalue(),
            "x" => data(3, 2, 9).into_tvalue(),
            "v" => weights(1).into_tvalue(),
            "w" => weights(2).into_tvalue(),
            name => panic!("another input: {name}"),
        };
        let inputs: TVec<TValue> = node.inputs.iter().map(value).collect();
        let expected = of_tract.op.eval(&EvalContext::out_of_plan(), inputs.clone())?;
        let found = node.op.eval(&EvalContext::out_of_plan(), inputs.clone())?;
        let alone = node.op.eval_out_of_plan(inputs)?.context("it needs no plan")?;
        for found in [found, alone] {
            assert_eq!(found.len(), 1);
            found[0].close_enough(&expected[0], true)?;
        }
    }
    Ok(())
}

#[test]
fn without_fusion_the_condition_is_left_to_tract() -> TractResult<()> {
    let proto = model(2.into(), 9.into());
    for stage in Stage::ALL {
        let model = stage.of(load_unfused(&proto)?)?;
        let ours = count::<If>(&model) + count::<OptIf>(&model);
        assert_eq!((ours, count::<IfThenElse>(&model)), (0, 1), "{stage:?}: {model}");
    }
    let mut model = load_stock(&proto)?;
    let mut options = <dyn erased_serde::Deserializer>::erase(serde_json::json!({ "fusion": false }));
    let transform = tract_core::transform::get_transform_with_params("conv", &mut options)?.context("registered")?;
    transform.transform(&mut model)?;
    assert_eq!((count::<If>(&model), count::<IfThenElse>(&model)), (0, 1), "{model}");
    Ok(())
}

#[test]
fn both_branches_give_what_they_give_without_fusion() -> TractResult<()> {
    let x = data(3, 2, 9);
    same_in_both_branches("known sizes", &model(2.into(), 9.into()), std::slice::from_ref(&x))?;
    same_in_both_branches("open sizes", &model("N".into(), "T".into()), &[x])
}

/// The state of one model runs both branches in turns, at several sizes.
#[test]
fn one_state_runs_both_branches_at_many_sizes() -> TractResult<()> {
    let proto = model("N".into(), "T".into());
    let ours = load(&proto)?.into_optimized()?.into_runnable()?;
    let stock = load_stock(&proto)?.into_runnable()?;
    let mut state = ours.spawn()?;
    for turn in 0..24 {
        let (batch, size) = (1 + turn % 3, 1 + turn * 7 % 13);
        let inputs = tvec!(tensor0(turn % 5 < 2).into_tvalue(), data(turn as u64, batch, size).into_tvalue());
        let found = state.run(inputs.clone())?;
        stock.run(inputs)?[0].close_enough(&found[0], true).with_context(|| format!("turn {turn}"))?;
        // A copy of a state goes on alone.
        state = state.clone();
    }
    Ok(())
}

#[test]
fn many_threads_run_one_model_at_once() -> TractResult<()> {
    const THREADS: usize = 6;
    let proto = model("N".into(), "T".into());
    let ours = load(&proto)?.into_optimized()?.into_runnable()?;
    let stock = load_stock(&proto)?.into_runnable()?;
    let inputs = |turn: usize| {
        let x = data(turn as u64, 1 + turn % 2, 2 + turn % 9);
        tvec!(tensor0(turn.is_multiple_of(3)).into_tvalue(), x.into_tvalue())
    };
    let expected = (0..18).map(|turn| Ok(stock.run(inputs(turn))?.remove(0))).collect::<TractResult<Vec<_>>>()?;
    let together = Barrier::new(THREADS);
    let run_all = |thread: usize| -> TractResult<()> {
        let mut kept = ours.spawn()?;
        together.wait();
        for i in 0..expected.len() {
            let turn = (i * 5 + thread) % expected.len();
            let found = if i.is_multiple_of(2) { kept.run(inputs(turn))? } else { ours.run(inputs(turn))? };
            expected[turn].close_enough(&found[0], true).with_context(|| format!("{thread}, {turn}"))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run_all(thread))).collect();
        running.into_iter().try_for_each(|thread| thread.join().map_err(|_| format_err!("a thread panicked"))?)
    })
}

/// An op that does nothing but check how many threads layers around it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CountsThreads(usize);

impl Op for CountsThreads {
    fn name(&self) -> StaticName {
        "CountsThreads".into()
    }

    op_as_typed_op!();
}

impl EvalOp for CountsThreads {
    not_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        ensure!(threads(u64::MAX) == self.0, "{} threads, {} are expected", threads(u64::MAX), self.0);
        Ok(inputs)
    }
}

impl TypedOp for CountsThreads {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    as_op!();
}

#[test]
fn branches_run_on_the_threads_of_the_model() -> TractResult<()> {
    for expected in [1, 3] {
        let mut model = load_stock(&model(1.into(), 5.into()))?;
        let either = model.nodes.iter_mut().find_map(|node| node.op_as_mut::<IfThenElse>()).context("a condition")?;
        let body = &mut either.then_body;
        let counted = body.wire_node("counted", CountsThreads(expected), &body.outputs.clone())?;
        body.select_output_outlets(&counted)?;
        get_transform("conv")?.context("registered")?.transform(&mut model)?;
        let executor = if expected == 1 { Executor::SingleThread } else { Executor::multithread(expected) };
        let model = model.into_optimized()?;
        assert_eq!(count::<OptIf>(&model), 1);
        let inputs = || tvec!(tensor0(true).into_tvalue(), data(1, 1, 5).into_tvalue());
        let runnable = model.clone().into_runnable()?;
        multithread_tract_scope(executor.clone(), || runnable.run(inputs()))?;
        let options = RunOptions { executor: Some(executor), ..RunOptions::default() };
        model.into_runnable_with_options(&options)?.run(inputs())?;
    }
    Ok(())
}

/// Conditions in branches, several outputs, outputs that are inputs or constants, and an output that
/// nothing reads.
#[test]
fn nested_conditions_and_outputs_of_every_kind() -> TractResult<()> {
    let inner = |name: &str, weights: &str| {
        let output = format!("{name}.out");
        Model::opset(13)
            .node(layer("Conv", name, "x", weights))
            .node(Node::new("Relu").named(&format!("{name}.relu")).inputs(&[name]).output(&output))
            .output(&output)
    };
    let one = Random(5).tensor(DatumType::F32, &[1, CHANNELS, 4]);
    let two = Random(6).tensor(DatumType::F32, &[1, CHANNELS, 4]);
    let nested = Node::new("If")
        .named("inner")
        .inputs(&["d"])
        .graph("then_branch", inner("a", "v"))
        .graph("else_branch", inner("b", "w"))
        .output("nested");
    let then = Model::opset(13)
        .initializer("one", &one)
        .node(nested)
        .node(Node::new("Identity").named("same").inputs(&["x"]).output("same"))
        .output("nested")
        .output("same")
        .output("one");
    let otherwise = Model::opset(13)
        .initializer("two", &two)
        .node(Node::new("Tanh").named("tanh").inputs(&["x"]).output("tanh"))
        .node(Node::new("Neg").named("neg").inputs(&["x"]).output("neg"))
        .output("tanh")
        .output("neg")
        .output("two");
    let proto = Model::opset(13)
        .input("c", DatumType::Bool, &[])
        .input("d", DatumType::Bool, &[])
        .input("x", DatumType::F32, &sizes(&[1, CHANNELS, 4]))
        .initializer("v", &weights(1))
        .initializer("w", &weights(2))
        .node(either(then, otherwise).outputs(&["p", "q", "r"]))
        .node(Node::new("Neg").named("negated").inputs(&["r"]).output("negated"))
        .output("p")
        .output("negated")
        .build();
    let (x, w) = (data(4, 1, 4), [weights(1), weights(2)]);
    let layers = w.map(|w| -> TractResult<TypedModel> {
        load(
            &Model::opset(13)
                .input("x", DatumType::F32, &sizes(x.shape()))
                .initializer("w", &w)
                .node(layer("Conv", "y", "x", "w"))
                .node(Node::new("Relu").inputs(&["y"]).output("z"))
                .output("z")
                .build(),
        )
    });
    let [a, b] = layers.map(|model| run(model?, std::slice::from_ref(&x)).map(|mut out| out.remove(0)));
    let (a, b) = (a?, b?);
    let tanh = x.to_plain_array_view::<f32>()?.mapv(f32::tanh).into_tensor().into_arc_tensor();
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        if stage == Stage::Optimised {
            let mut names: Vec<String> =
                explain(&model, &SymbolValues::default())?.into_iter().map(|e| e.name).collect();
            names.sort();
            assert_eq!(names, ["either/then/inner/else/b", "either/then/inner/then/a"]);
        }
        for (c, d, first, constant) in
            [(true, true, &a, &one), (true, false, &b, &one), (false, true, &tanh, &two), (false, false, &tanh, &two)]
        {
            let found = run(model.clone(), &[tensor0(c), tensor0(d), x.clone()])?;
            first.close_enough(&found[0], true).with_context(|| format!("{stage:?}, {c}, {d}"))?;
            let negated = constant.to_plain_array_view::<f32>()?.mapv(|v| -v).into_tensor();
            negated.close_enough(&found[1], false).with_context(|| format!("{stage:?}, {c}, {d}"))?;
        }
    }
    Ok(())
}

/// tract names both after the operator, which it then refuses.
#[test]
fn two_conditions_in_one_graph() -> TractResult<()> {
    let branches = |name: &str, input: &str| {
        let named = |part: &str| format!("{name}.{part}");
        let then = Model::opset(13).node(layer("Conv", &named("then"), input, "v")).output(&named("then"));
        let otherwise = Model::opset(13).node(layer("Conv", &named("else"), input, "w")).output(&named("else"));
        either(then, otherwise).named(name).output(name)
    };
    let proto = outer(1.into(), 6.into()).node(branches("first", "x")).node(branches("second", "first"));
    let proto = proto.output("second").build();
    assert!(load_stock(&proto).is_err(), "tract loads it by now");
    load_unfused(&proto)?.into_optimized()?;
    let x = data(7, 1, 6);
    let expected = |weights: &Tensor| -> TractResult<Arc<Tensor>> {
        let model = Model::opset(13).input("x", DatumType::F32, &sizes(x.shape())).initializer("w", weights);
        let model = model.node(layer("Conv", "a", "x", "w")).node(layer("Conv", "b", "a", "w")).output("b").build();
        Ok(run(load_stock(&model)?, std::slice::from_ref(&x))?.remove(0))
    };
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        for (condition, weights) in [(true, weights(1)), (false, weights(2))] {
            let found = run(model.clone(), &[tensor0(condition), x.clone()])?;
            expected(&weights)?.close_enough(&found[0], true).with_context(|| format!("{stage:?}, {condition}"))?;
        }
    }
    Ok(())
}

/// Without the input `c`, the condition is a constant.
#[test]
fn a_known_condition_leaves_one_branch() -> TractResult<()> {
    for condition in [true, false] {
        let mut model = load(&model(1.into(), 5.into()))?;
        let c = model.node_by_name("c")?.id;
        model.nodes[c].op = Box::new(tract_core::ops::konst::Const::new(tensor0(condition).into_arc_tensor())?);
        model.inputs.remove(0);
        let model = model.into_optimized()?;
        assert_eq!(
            (count::<OptIf>(&model), count::<If>(&model), count::<OptGroupedDeconv>(&model)),
            (0, 0, 2),
            "{model}"
        );
        let x = data(1, 1, 5);
        let found = run(model, std::slice::from_ref(&x))?;
        let expected = run(load_stock(&self::model(1.into(), 5.into()))?, &[tensor0(condition), x])?;
        expected[0].close_enough(&found[0], true)?;
    }
    Ok(())
}

#[test]
fn the_transforms_take_conditions_of_models_that_tract_has_loaded() -> TractResult<()> {
    let proto = model("N".into(), "T".into());
    for early in [true, false] {
        let mut model = load_stock(&proto)?;
        if !early {
            model = model.into_decluttered()?;
        }
        for name in ["deconv", "conv"] {
            get_transform(name)?.context("registered")?.transform(&mut model)?;
        }
        let model = model.into_optimized()?;
        assert_eq!(ops(&model)?, ["Source", "Source", "OptIf", "OptGroupedDeconv"], "{model}");
        for condition in [true, false] {
            let inputs = [tensor0(condition), data(8, 2, 7)];
            run(load_stock(&proto)?, &inputs)?[0].close_enough(&run(model.clone(), &inputs)?[0], true)?;
        }
    }
    // Only transposed layers are this crate's, and only one branch holds one.
    let mut model = load_stock(&proto)?;
    get_transform("deconv")?.context("registered")?.transform(&mut model)?;
    assert_eq!((count::<If>(&model), count::<GroupedDeconv>(&model)), (1, 0), "{model}");
    Ok(())
}

#[test]
fn conditions_go_back_to_tract() -> TractResult<()> {
    let proto = model(2.into(), 5.into());
    for stage in [Stage::Typed, Stage::Decluttered] {
        let mut model = stage.of(load(&proto)?)?;
        get_transform("to_tract")?.context("registered")?.transform(&mut model)?;
        assert_eq!((count::<If>(&model), count::<IfThenElse>(&model)), (0, 1), "{stage:?}: {model}");
        for condition in [true, false] {
            let inputs = [tensor0(condition), data(9, 2, 5)];
            run(load_stock(&proto)?, &inputs)?[0].close_enough(&run(model.clone(), &inputs)?[0], true)?;
        }
    }
    Ok(())
}

/// Symbols of the outer graph reach the branches, before optimising and after it.
#[test]
fn symbols_are_substituted_in_the_branches() -> TractResult<()> {
    let proto = model("N".into(), "T".into());
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        let subs = HashMap::from([(model.symbols.sym("N"), 2.to_dim()), (model.symbols.sym("T"), 7.to_dim())]);
        let fixed = model.set_symbols(&subs)?;
        assert_eq!(fixed.output_fact(0)?.shape.as_concrete(), Some(&[2, CHANNELS, 7][..]), "{stage:?}");
        let explained = explain(&fixed, &SymbolValues::default())?;
        assert!(
            explained.len() == 3 && explained.iter().all(|layer| layer.concrete.is_some()),
            "{stage:?}: {explained:?}"
        );
        let optimised = fixed.into_optimized()?;
        for condition in [true, false] {
            let inputs = [tensor0(condition), data(9, 2, 7)];
            run(load_stock(&proto)?, &inputs)?[0].close_enough(&run(optimised.clone(), &inputs)?[0], true)?;
        }
    }
    Ok(())
}

/// Returns a model with a loop in a branch, which adds up the rows of `x` from zero on.
fn with_a_loop() -> ModelProto {
    let row = sizes(&[1, CHANNELS, 4]);
    let body = Model::opset(13)
        .input("sum", DatumType::F32, &row)
        .input("row", DatumType::F32, &row)
        .node(layer("Conv", "turned", "row", "w"))
        .node(Node::new("Relu").named("relu").inputs(&["turned"]).output("positive"))
        .node(Node::new("Add").named("add").inputs(&["sum", "positive"]).output("next"))
        .output("next");
    let scan = Node::new("Scan").named("scan").inputs(&["start", "x"]).outputs(&["total"]).graph("body", body);
    let zeros = Tensor::zero::<f32>(&[1, CHANNELS, 4]).expect("a tensor");
    let then = Model::opset(13).initializer("start", &zeros).node(scan.int("num_scan_inputs", 1)).output("total");
    let otherwise = Model::opset(13).initializer("none", &zeros).output("none");
    Model::opset(13)
        .input("c", DatumType::Bool, &[])
        .input("x", DatumType::F32, &sizes(&[3, 1, CHANNELS, 4]))
        .initializer("w", &weights(2))
        .node(either(then, otherwise).output("y"))
        .output("y")
        .build()
}

/// tract plans a branch at every run, so that its loops start anew.
#[test]
fn loops_in_branches_start_anew_at_each_run() -> TractResult<()> {
    let proto = with_a_loop();
    let x = Random(3).tensor(DatumType::F32, &[3, 1, CHANNELS, 4]);
    let expected = run(load_stock(&proto)?, &[tensor0(true), x.clone()])?;
    let model = load(&proto)?.into_optimized()?;
    assert_eq!(count::<OptIf>(&model), 1, "{model}");
    let mut state = model.into_runnable()?.spawn()?;
    for turn in 0..4 {
        let found = state.run(tvec!(tensor0(turn != 1).into_tvalue(), x.clone().into_tvalue()))?;
        if turn == 1 {
            assert_eq!(*found[0], Tensor::zero::<f32>(&[1, CHANNELS, 4])?);
        } else {
            expected[0].close_enough(&found[0], true).with_context(|| format!("turn {turn}"))?;
        }
    }
    Ok(())
}

/// The body of a loop gets what a whole model gets, also when the loop was decluttered before the
/// transform.
#[test]
fn bodies_of_loops_are_decluttered_after_a_transform() -> TractResult<()> {
    let row = sizes(&[1, CHANNELS, 4]);
    let body = Model::opset(13)
        .input("sum", DatumType::F32, &sizes(&[1, CHANNELS, 6]))
        .input("row", DatumType::F32, &row)
        .node(Node::new("Pad").named("pad").inputs(&["row", "pads"]).output("padded"))
        .node(layer("Conv", "turned", "padded", "w"))
        .node(Node::new("Add").named("add").inputs(&["sum", "turned"]).output("next"))
        .output("next");
    let scan = Node::new("Scan").named("scan").inputs(&["start", "x"]).outputs(&["total"]).graph("body", body);
    let proto = Model::opset(13)
        .input("start", DatumType::F32, &sizes(&[1, CHANNELS, 6]))
        .input("x", DatumType::F32, &sizes(&[3, 1, CHANNELS, 4]))
        .initializer("w", &weights(2))
        .initializer("pads", &tensor1(&[0i64, 0, 1, 0, 0, 1]))
        .node(scan.int("num_scan_inputs", 1))
        .output("total")
        .build();
    let mut model = load_stock(&proto)?.into_decluttered()?;
    get_transform("conv")?.context("registered")?.transform(&mut model)?;
    let model = model.into_decluttered()?;
    let scan = model.nodes.iter().find_map(|node| node.op_as::<Scan>()).context("a loop")?;
    assert!(!ops(&scan.body)?.contains(&"Pad".to_string()), "{}", scan.body);
    let optimised = model.into_optimized()?;
    let scan = optimised.nodes.iter().find_map(|node| node.op_as::<OptScan>()).context("a loop")?;
    assert_eq!(count::<OptGroupedDeconv>(scan.plan.model()), 1, "{}", scan.plan.model());
    Ok(())
}

/// A condition in the body of a loop.
#[test]
fn a_condition_in_a_loop() -> TractResult<()> {
    let row = sizes(&[1, CHANNELS, 4]);
    let then = Model::opset(13).node(layer("Conv", "a", "row", "v")).output("a");
    let otherwise = Model::opset(13).node(layer("ConvTranspose", "b", "row", "w")).output("b");
    let body = Model::opset(13)
        .input("sum", DatumType::F32, &row)
        .input("c", DatumType::Bool, &[])
        .input("row", DatumType::F32, &row)
        .node(either(then, otherwise).output("turned"))
        .node(Node::new("Add").named("add").inputs(&["sum", "turned"]).output("next"))
        .output("next");
    let scan = Node::new("Scan").named("scan").inputs(&["start", "cs", "x"]).outputs(&["total"]).graph("body", body);
    let proto = Model::opset(13)
        .input("start", DatumType::F32, &row)
        .input("cs", DatumType::Bool, &sizes(&[3]))
        .input("x", DatumType::F32, &sizes(&[3, 1, CHANNELS, 4]))
        .initializer("v", &weights(1))
        .initializer("w", &weights(2))
        .node(scan.int("num_scan_inputs", 2))
        .output("total")
        .build();
    let inputs = [data(1, 1, 4), tensor1(&[true, false, true]), Random(3).tensor(DatumType::F32, &[3, 1, CHANNELS, 4])];
    let expected = run(load_stock(&proto)?, &inputs)?;
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        let mut names: Vec<String> = explain(&model, &SymbolValues::default())?.into_iter().map(|e| e.name).collect();
        names.sort();
        assert_eq!(names, ["scan/either/else/b", "scan/either/then/a"], "{stage:?}");
        if let Some(scan) = model.nodes.iter().find_map(|node| node.op_as::<OptScan>()) {
            assert_eq!(count::<OptIf>(scan.plan.model()), 1, "{}", scan.plan.model());
        }
        expected[0].close_enough(&run(model, &inputs)?[0], true).with_context(|| format!("{stage:?}"))?;
    }
    Ok(())
}

/// Returns a graph of random steps from `x` on, with conditions inside conditions. tract takes one
/// condition per graph.
fn random_branch(random: &mut Random, path: &str, depth: usize) -> Model {
    let mut graph = Model::opset(13);
    let mut last = "x".to_string();
    let mut conditions = 0;
    for step in 0..1 + random.below(4) {
        let name = format!("{path}.{step}");
        let own = format!("{name}.weights");
        graph = match random.below(8) {
            0 | 1 if depth > 0 && conditions == 0 => {
                conditions += 1;
                let condition = ["c", "d"][random.below(2)];
                let [then, otherwise] =
                    ["t", "e"].map(|side| random_branch(random, &format!("{name}.{side}"), depth - 1));
                let branches =
                    either(then, otherwise).named(&name).inputs(&[condition]).output(&format!("{name}.chosen"));
                let sum = Node::new("Add").named(&format!("{name}.sum")).inputs(&[&last, &format!("{name}.chosen")]);
                graph.node(branches).node(sum.output(&name))
            }
            0..=2 => graph.node(layer("Conv", &name, &last, "v")),
            3 => graph.initializer(&own, &weights(random.next())).node(layer("Conv", &name, &last, &own)),
            4 => graph.node(layer("ConvTranspose", &name, &last, "w")),
            5 => graph.node(Node::new("Relu").named(&name).inputs(&[&last]).output(&name)),
            6 => graph.node(Node::new("Add").named(&name).inputs(&[&last, "x"]).output(&name)),
            _ => graph.node(Node::new("Tanh").named(&name).inputs(&[&last]).output(&name)),
        };
        last = name;
    }
    graph.output(&last)
}

/// Random conditions with layers in random places give what stock tract and the unfused model give.
#[test]
fn random_branches_give_what_they_give_in_tract() -> TractResult<()> {
    let mut with_layers = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let [then, otherwise] = ["t", "e"].map(|side| random_branch(&mut random, side, 2));
        let shape: [Dim; 3] = if seed % 2 == 0 {
            ["N".into(), CHANNELS.into(), "T".into()]
        } else {
            [2.into(), CHANNELS.into(), 7.into()]
        };
        let proto = Model::opset(13)
            .input("c", DatumType::Bool, &[])
            .input("d", DatumType::Bool, &[])
            .input("x", DatumType::F32, &shape)
            .initializer("v", &weights(1))
            .initializer("w", &weights(2))
            .node(either(then, otherwise).output("y"))
            .output("y")
            .build();
        let stock = load_stock(&proto)?.into_runnable()?;
        let unfused = load_unfused(&proto)?.into_optimized()?.into_runnable()?;
        let ours = load(&proto)?.into_optimized()?;
        with_layers += count::<OptIf>(&ours);
        let mut state = ours.into_runnable()?.spawn()?;
        for (turn, (c, d)) in [(true, true), (false, true), (true, false), (false, false)].into_iter().enumerate() {
            let size = if seed % 2 == 0 { 3 + turn } else { 7 };
            let inputs = || tvec!(tensor0(c).into(), tensor0(d).into(), data(seed, 2, size).into());
            let found = state.run(inputs())?;
            for expected in [stock.run(inputs())?, unfused.run(inputs())?] {
                expected[0].close_enough(&found[0], true).with_context(|| format!("seed {seed}, {c}, {d}"))?;
            }
        }
    }
    ensure!(with_layers >= 45, "{with_layers} of 60 models hold layers");
    Ok(())
}

/// A run that fails in a branch leaves nothing behind that the next run meets.
#[test]
fn a_failed_run_leaves_a_usable_state() -> TractResult<()> {
    let then = Model::opset(13)
        .node(layer("Conv", "a", "x", "v"))
        .node(Node::new("Add").named("sum").inputs(&["a", "z"]).output("s"))
        .output("s");
    let otherwise = Model::opset(13).node(layer("Conv", "b", "x", "w")).output("b");
    let shape: [Dim; 3] = ["N".into(), CHANNELS.into(), "T".into()];
    let proto = outer("N".into(), "T".into()).input("z", DatumType::F32, &shape);
    let proto = proto.node(either(then, otherwise).output("y")).output("y").build();
    let mut state = load(&proto)?.into_optimized()?.into_runnable()?.spawn()?;
    let stock = load_stock(&proto)?.into_runnable()?;
    for turn in 0..6 {
        let size = 3 + turn;
        let x = data(turn as u64, 1, size);
        let z = if turn % 2 == 1 { data(1, 2, size + 1) } else { data(2, 1, size) };
        let inputs = tvec!(tensor0(true).into_tvalue(), x.into_tvalue(), z.into_tvalue());
        let found = state.run(inputs.clone());
        if turn % 2 == 1 {
            assert!(found.is_err(), "turn {turn}");
            state.reset_turn()?;
        } else {
            stock.run(inputs)?[0].close_enough(&found?[0], true).with_context(|| format!("turn {turn}"))?;
        }
    }
    Ok(())
}

/// A condition beside a layer is planned once too, whatever its branches hold.
#[test]
fn conditions_beside_layers_are_planned_once() -> TractResult<()> {
    let branch =
        |operator: &str| Model::opset(13).node(Node::new(operator).inputs(&["a"]).output(operator)).output(operator);
    let model = |layer: Node| {
        let branches = either(branch("Tanh"), branch("Sigmoid")).output("chosen");
        outer("N".into(), 5.into()).node(layer).node(branches).output("chosen").build()
    };
    let proto = model(layer("Conv", "a", "x", "v"));
    let optimised = load(&proto)?.into_optimized()?;
    assert_eq!((count::<OptIf>(&optimised), count::<IfThenElse>(&optimised)), (1, 0), "{optimised}");
    same_in_both_branches("beside", &proto, &[data(1, 2, 5)])?;
    // Without a layer it stays tract's.
    let alone = load(&model(Node::new("Neg").inputs(&["x"]).output("a")))?.into_optimized()?;
    assert_eq!((count::<OptIf>(&alone), count::<IfThenElse>(&alone)), (0, 1), "{alone}");
    Ok(())
}

/// Symbols that only a value outside of the branch determines: the branch broadcasts to a shape that
/// is computed from the other input.
#[test]
fn a_branch_knows_symbols_of_the_outer_graph() -> TractResult<()> {
    let then = Model::opset(13)
        .node(layer("Conv", "a", "x", "v"))
        .node(Node::new("Expand").named("expand").inputs(&["a", "shape"]).output("wide"))
        .output("wide");
    let otherwise = Model::opset(13)
        .node(layer("Conv", "b", "x", "w"))
        .node(Node::new("Expand").named("expand2").inputs(&["b", "shape"]).output("wide2"))
        .output("wide2");
    let proto = outer(1.into(), 5.into())
        .input("z", DatumType::F32, &["M".into(), CHANNELS.into(), 5.into()])
        .node(Node::new("Shape").named("shape").inputs(&["z"]).output("shape"))
        .node(either(then, otherwise).output("y"))
        .output("y")
        .build();
    for condition in [true, false] {
        let weights = weights(if condition { 1 } else { 2 });
        let x = data(1, 1, 5);
        let single = Model::opset(13).input("x", DatumType::F32, &sizes(x.shape())).initializer("w", &weights);
        let single = single.node(layer("Conv", "y", "x", "w")).output("y").build();
        let single = run(load_stock(&single)?, std::slice::from_ref(&x))?.remove(0);
        let expected = Tensor::stack_tensors(0, &vec![single; 4])?;
        for stage in Stage::ALL {
            let found = run(stage.of(load(&proto)?)?, &[tensor0(condition), x.clone(), data(2, 4, 5)])?;
            expected.close_enough(&found[0], true).with_context(|| format!("{stage:?}, {condition}"))?;
        }
    }
    Ok(())
}

/// tract has no form for conditions in NNEF.
#[cfg(feature = "nnef")]
#[test]
fn a_dump_to_nnef_names_the_condition() -> TractResult<()> {
    let nnef = tract_nnef::nnef().with_deconv();
    let model = load(&model(1.into(), 5.into()))?.into_decluttered()?;
    let error = format!("{:#}", nnef.write_to_tar(&model, vec![]).expect_err("there is no form for it"));
    assert!(error.contains("either") && error.contains("If"), "{error}");
    Ok(())
}
