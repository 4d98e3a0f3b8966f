//! Outputs in blocks of the pool. Models must give the same bits as with ordinary tensors, however
//! tract uses the outputs.
//!
//! The pool is global, so the tests run one at a time.

mod common;

use common::probe::Probe;
use common::proto::{Dim, Model, Node, sizes};
use common::random::Random;
use common::run::{Stage, load, run};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tract_core::internal::*;
use tract_deconv::memory::{DEFAULT_POOL_BYTES, idle_bytes, release, set_pool_bytes};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits for the other tests, then makes the pool empty and sets its default size.
fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    set_pool_bytes(DEFAULT_POOL_BYTES);
    release();
    guard
}

/// Returns a layer from 8 to 6 channels that doubles each spatial size.
fn probe() -> Probe {
    Probe::new(&[1, 8, 24, 24], &[8, 6, 4, 4]).ints("strides", &[2, 2]).ints("pads", &[1, 1, 1, 1])
}

/// The size of its output in bytes.
const OUTPUT: usize = 6 * 48 * 48 * 4;

/// Checks that a model gives the same bits without the pool and twice with it.
fn same_bits(model: &TypedModel, inputs: &[Tensor]) -> TractResult<()> {
    set_pool_bytes(0);
    let expected = run(model.clone(), inputs)?;
    ensure!(idle_bytes() == 0);
    set_pool_bytes(DEFAULT_POOL_BYTES);
    let runnable = model.clone().into_runnable()?;
    for turn in 0..3 {
        let inputs = inputs.iter().map(|input| input.clone().into_tvalue()).collect();
        let got = runnable.run(inputs)?;
        ensure!(got.iter().zip(&expected).all(|(got, expected)| **got == **expected), "turn {turn}");
        drop(got);
        ensure!(idle_bytes() > 0, "turn {turn}: no output was in the pool");
    }
    Ok(())
}

/// Returns a layer followed by other nodes, of which the last one computes `z`.
fn behind(nodes: Vec<Node>) -> TractResult<(Model, Vec<Tensor>)> {
    let probe = probe();
    let model = Model::opset(13).input("x", DatumType::F32, &sizes(probe.x.shape())).initializer("w", &probe.w);
    let model = nodes.into_iter().fold(model.node(probe.node.clone()), Model::node);
    Ok((model.output("z"), probe.inputs()))
}

#[test]
fn what_reads_an_output_reads_the_same() -> TractResult<()> {
    let _alone = alone();
    let to = |op: &str| Node::new(op).inputs(&["y"]).output("z");
    for (what, nodes) in [
        ("in place", vec![to("Sin")]),
        ("twice", vec![Node::new("Sin").inputs(&["y"]).output("s"), Node::new("Mul").inputs(&["y", "s"]).output("z")]),
        ("a transpose", vec![to("Transpose").ints("perm", &[0, 2, 3, 1])]),
        ("several axes", vec![to("Transpose").ints("perm", &[3, 1, 2, 0])]),
        ("a copy of a part", vec![to("Split").int("axis", 1)]),
        ("joined", vec![Node::new("Concat").inputs(&["y", "y"]).output("z").int("axis", 2)]),
        ("another shape", vec![to("Flatten")]),
        ("a sum", vec![to("ReduceSum").int("keepdims", 0)]),
        ("softmax", vec![to("Softmax").int("axis", 1)]),
        ("a cast", vec![to("Cast").int("to", 11)]),
        ("averaged", vec![to("GlobalAveragePool")]),
    ] {
        let (mut model, inputs) = behind(nodes)?;
        if what == "a copy of a part" {
            model = behind(vec![Node::new("Split").inputs(&["y"]).outputs(&["z", "rest"]).int("axis", 1)])?.0;
        }
        let proto = model.build();
        for stage in Stage::ALL {
            same_bits(&stage.of(load(&proto)?)?, &inputs).with_context(|| format!("{what}, {stage:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn symbolic_shapes() -> TractResult<()> {
    let _alone = alone();
    let dims = ["N".into(), 8.into(), "H".into(), Dim::from("W")];
    for stage in Stage::ALL {
        let model = stage.of(load(&probe().dims(&dims).proto())?)?;
        for shape in [[1, 8, 24, 24], [2, 8, 9, 30], [1, 8, 24, 24]] {
            same_bits(&model, &[probe().with_x(&shape).x]).with_context(|| format!("{stage:?}, {shape:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn in_the_body_of_a_scan() -> TractResult<()> {
    let _alone = alone();
    let probe = probe();
    let sum = Tensor::zero::<f32>(&[1, 6, 48, 48])?;
    let xs = Random(3).tensor(DatumType::F32, &[3, 1, 8, 24, 24]);
    let body = Model::opset(13)
        .input("sum", DatumType::F32, &sizes(sum.shape()))
        .input("x", DatumType::F32, &sizes(probe.x.shape()))
        .initializer("w", &probe.w)
        .node(probe.node.clone().named("up"))
        .node(Node::new("Add").inputs(&["sum", "y"]).output("next"))
        .node(Node::new("Identity").inputs(&["y"]).output("each"))
        .output("next")
        .output("each");
    let scan = Node::new("Scan").named("scan").inputs(&["start", "xs"]).outputs(&["total", "ys"]);
    let proto = Model::opset(13)
        .input("start", DatumType::F32, &sizes(sum.shape()))
        .input("xs", DatumType::F32, &sizes(xs.shape()))
        .node(scan.graph("body", body).int("num_scan_inputs", 1))
        .output("ys")
        .output("total")
        .build();
    for stage in Stage::ALL {
        same_bits(&stage.of(load(&proto)?)?, &[sum.clone(), xs.clone()]).with_context(|| format!("{stage:?}"))?;
    }
    Ok(())
}

/// Returns a layer whose operands are constants and whose output is added to an input.
fn folded() -> TractResult<(TypedModel, Tensor)> {
    let probe = probe();
    let other = Random(5).tensor(DatumType::F32, &[1, 6, 48, 48]);
    let proto = Model::opset(13)
        .input("other", DatumType::F32, &sizes(other.shape()))
        .initializer("x", &probe.x)
        .initializer("w", &probe.w)
        .node(probe.node.clone())
        .node(Node::new("Add").inputs(&["other", "y"]).output("z"))
        .output("z")
        .build();
    Ok((load(&proto)?, other))
}

#[test]
fn constants_that_a_layer_computed_leave_the_pool() -> TractResult<()> {
    let _alone = alone();
    let (model, other) = folded()?;
    let expected = run(model.clone(), std::slice::from_ref(&other))?;
    let model = model.into_decluttered()?;
    let consts: Vec<Arc<Tensor>> = model
        .nodes
        .iter()
        .filter_map(|node| Some(Arc::clone(node.op_as::<tract_core::ops::konst::Const>()?.val())))
        .collect();
    ensure!(consts.iter().any(|tensor| tensor.shape() == [1, 6, 48, 48]), "not folded: {model}");
    ensure!(consts.iter().all(|tensor| tensor.has_plain_ram_storage()));
    ensure!(run(model.into_optimized()?, &[other])? == expected);
    Ok(())
}

#[cfg(feature = "nnef")]
#[test]
fn constants_that_a_layer_computed_are_dumped() -> TractResult<()> {
    use tract_deconv::WithDeconv;
    use tract_nnef::prelude::Framework;
    let _alone = alone();
    let (model, other) = folded()?;
    let model = model.into_decluttered()?;
    let nnef = tract_nnef::nnef().with_deconv();
    let tar = nnef.write_to_tar(&model, vec![])?;
    let again = nnef.model_for_read(&mut &*tar)?;
    ensure!(run(again, std::slice::from_ref(&other))? == run(model, &[other])?);
    Ok(())
}

#[cfg(feature = "pulse")]
#[test]
fn in_pulses() -> TractResult<()> {
    use tract_pulse::model::{PulsedModel, PulsedModelExt};
    let _alone = alone();
    let mut dims = sizes(&[1, 8, 24, 24]);
    dims[2] = Dim::from("S");
    // The second layer keeps rows between pulses.
    let second = Random(9).tensor(DatumType::F32, &[5, 6, 3, 3]);
    let proto = Model::opset(13)
        .input("x", DatumType::F32, &dims)
        .initializer("w", &probe().w)
        .initializer("v", &second)
        .node(probe().node)
        .node(Node::new("Conv").inputs(&["y", "v"]).output("z"))
        .output("z")
        .build();
    let model = load(&proto)?.into_decluttered()?;
    let symbol = model.symbols.sym("S");
    let pulsed = PulsedModel::new(&model, symbol, &8.to_dim())?.into_typed()?.into_optimized()?;
    let pulse = |at: u64| Random(at).tensor(DatumType::F32, &[1, 8, 8, 24]);
    let pulses = |bytes: usize| -> TractResult<Vec<TValue>> {
        set_pool_bytes(bytes);
        let mut state = pulsed.clone().into_runnable()?.spawn()?;
        (0..6).map(|at| Ok(state.run(tvec!(pulse(at).into_tvalue()))?.remove(0))).collect()
    };
    let expected = pulses(0)?;
    ensure!(pulses(DEFAULT_POOL_BYTES)? == expected);
    ensure!(idle_bytes() == 0 || idle_bytes() <= DEFAULT_POOL_BYTES);
    Ok(())
}

#[test]
fn several_threads() -> TractResult<()> {
    let _alone = alone();
    let model = load(&probe().proto())?.into_optimized()?;
    let inputs: Vec<Tensor> = (0..4).map(|seed| Random(seed).tensor(DatumType::F32, probe().x.shape())).collect();
    let runnable = model.into_runnable()?;
    let expected: Vec<Tensor> = inputs
        .iter()
        .map(|x| Ok(runnable.run(tvec!(x.clone().into_tvalue()))?.remove(0).into_tensor()))
        .collect::<TractResult<_>>()?;
    let work = |at: usize| -> TractResult<()> {
        let mut held = vec![];
        for turn in 0..40 {
            held.push(runnable.run(tvec!(inputs[at].clone().into_tvalue()))?.remove(0));
            ensure!(held.iter().all(|got| **got == expected[at]), "thread {at}, turn {turn}");
            held.truncate(turn % 3);
            if turn % 16 == 15 {
                release();
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|at| scope.spawn(move || work(at))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| format_err!("a panic"))?)
    })
}

#[test]
fn it_is_released() -> TractResult<()> {
    let _alone = alone();
    let runnable = load(&probe().proto())?.into_optimized()?.into_runnable()?;
    let output = || runnable.run(tvec!(probe().x.into_tvalue()));
    drop(output()?);
    ensure!(idle_bytes() == OUTPUT, "{}", idle_bytes());
    // On request.
    release();
    ensure!(idle_bytes() == 0);
    drop((output()?, output()?));
    ensure!(idle_bytes() == 2 * OUTPUT, "{}", idle_bytes());
    // Down to a limit.
    set_pool_bytes(2 * OUTPUT - 1);
    ensure!(idle_bytes() == OUTPUT, "{}", idle_bytes());
    set_pool_bytes(OUTPUT - 1);
    ensure!(idle_bytes() == 0);
    drop(output()?);
    ensure!(idle_bytes() == 0);
    // With the last model. An output may outlive it.
    set_pool_bytes(DEFAULT_POOL_BYTES);
    let late = output()?;
    drop(output()?);
    ensure!(idle_bytes() == OUTPUT);
    drop(runnable);
    ensure!(idle_bytes() == 0);
    let bytes = late[0].as_bytes().to_vec();
    drop(late);
    ensure!(idle_bytes() == 0 && bytes.len() == OUTPUT);
    Ok(())
}
