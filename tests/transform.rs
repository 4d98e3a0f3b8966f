//! The transform `deconv` replaces tract's own deconvolutions in any typed model, with unchanged
//! results.

mod common;

use common::case::{self, Case, Dialect, Expect, Wiring};
use common::oracle::FromTensor;
use common::probe::{Probe, axis};
use common::proto::{Dim, Model, Node, sizes};
use common::random::Random;
use common::run::{Failure, Stage, guarded, load_stock, run};
use std::io::Write;
use tract_core::internal::*;
use tract_core::ops::cnn::Deconv;
use tract_core::transform::get_transform;
use tract_core::transform::get_transform_with_params;
use tract_deconv::Isa;
use tract_deconv::{Activation, GroupedDeconv, OptGroupedDeconv, Step, Strategy, explain, left_to_tract};

fn transformed(mut model: TypedModel) -> TractResult<TypedModel> {
    get_transform("deconv")?.context("the transform is registered")?.transform(&mut model)?;
    Ok(model)
}

fn count<O: tract_core::ops::Op>(model: &TypedModel) -> usize {
    model.nodes.iter().filter(|node| node.op_is::<O>()).count()
}

fn probes() -> Vec<Probe> {
    let plain = || Probe::new(&[2, 4, 5, 6], &[4, 2, 3, 3]);
    vec![
        plain(),
        plain().bias(2),
        plain().ints("strides", &[2, 3]).ints("pads", &[1, 0, 2, 1]).bias(2),
        plain().group(2).bias(4).ints("dilations", &[2, 1]),
        Probe::new(&[1, 6, 7], &[6, 1, 4]).group(6).ints("strides", &[2]),
        Probe::new(&[1, 2, 3, 2, 4], &[2, 3, 2, 2, 2]).ints("strides", &[2, 2, 2]).bias(3),
        plain().ints("strides", &[2, 2]).string("auto_pad", "SAME_UPPER"),
        plain().ints("strides", &[2, 2]).string("auto_pad", "SAME_LOWER"),
        // Of any size, as tract accepts it.
        plain().ints("strides", &[2, 2]).ints("output_padding", &[5, 3]).bias(2),
        plain().run_time_weights().bias(2),
        Probe::typed(DatumType::F64, &[2, 4, 5], &[4, 2, 3]).bias(2),
    ]
}

#[test]
fn the_plugins_op_with_the_same_numbers() -> TractResult<()> {
    for probe in probes() {
        for before in [Stage::Typed, Stage::Decluttered] {
            let stock = before.of(load_stock(&probe.proto())?)?;
            assert_eq!((count::<Deconv>(&stock), count::<GroupedDeconv>(&stock)), (1, 0), "{probe:?}");
            let ours = transformed(stock.clone())?;
            assert_eq!((count::<Deconv>(&ours), count::<GroupedDeconv>(&ours)), (0, 1), "{probe:?}");
            let want = run(stock, &probe.inputs())?.remove(0);
            for after in Stage::ALL {
                let got = run(after.of(ours.clone())?, &probe.inputs())?.remove(0);
                want.close_enough(&got, true).with_context(|| format!("{before:?}, {after:?}: {probe:?}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn symbols_stay() -> TractResult<()> {
    let dims: [Dim; 4] = ["N".into(), 4.into(), "H".into(), "W".into()];
    let probe = Probe::new(&[2, 4, 5, 6], &[4, 3, 3, 3]).ints("strides", &[2, 2]).bias(3).dims(&dims);
    let stock = load_stock(&probe.proto())?;
    let fact = stock.output_fact(0)?.clone();
    let ours = transformed(stock)?;
    assert_eq!(ours.output_fact(0)?.shape, fact.shape);
    for stage in Stage::ALL {
        let got = run(stage.of(ours.clone())?, &probe.inputs())?.remove(0);
        let expected = probe.expected(&[axis(2, 1, 0, 11), axis(2, 1, 0, 13)]);
        expected.check(&got).map_err(|e| format_err!("{stage:?}: {e}"))?;
    }
    Ok(())
}

/// Returns a deconvolution and an activation, as stock tract loads them, and an input.
fn with_activation() -> TractResult<(TypedModel, Tensor)> {
    let mut random = Random(5);
    let x = random.tensor(DatumType::F32, &[1, 4, 6, 7]);
    let proto = Model::opset(13)
        .input("x", DatumType::F32, &sizes(x.shape()))
        .initializer("w", &random.tensor(DatumType::F32, &[4, 5, 3, 3]))
        .node(Node::new("ConvTranspose").named("up").inputs(&["x", "w"]).ints("strides", &[2, 2]).output("u"))
        .node(Node::new("Relu").named("relu").inputs(&["u"]).output("y"))
        .output("y")
        .build();
    Ok((load_stock(&proto)?.into_decluttered()?, x))
}

/// Applies the transform by name and JSON, as the `tract` crate does.
fn with_options(mut model: TypedModel, json: serde_json::Value) -> TractResult<TypedModel> {
    let mut options = <dyn erased_serde::Deserializer>::erase(json);
    let transform = get_transform_with_params("deconv", &mut options)?.context("the transform is registered")?;
    transform.transform(&mut model)?;
    model.declutter()?;
    Ok(model)
}

#[test]
fn options_force_strategy_and_instruction_set() -> TractResult<()> {
    let (stock, x) = with_activation()?;
    let want = run(stock.clone(), std::slice::from_ref(&x))?.remove(0);
    for (name, strategy) in [("reference", Strategy::Reference), ("col2im", Strategy::Col2im)] {
        let json = serde_json::json!({"strategy": name, "isa": "portable"});
        let ours = with_options(stock.clone(), json)?;
        for stage in Stage::ALL {
            let model = stage.of(ours.clone())?;
            let explained = explain(&model, &SymbolValues::default())?;
            let [only] = &*explained else { bail!("{stage:?}: {model}") };
            let plan = &only.concrete.as_ref().context("the shape is known")?.plan;
            assert_eq!((plan.strategy(), plan.isa()), (strategy, Isa::Portable), "{stage:?}");
            want.close_enough(&run(model, std::slice::from_ref(&x))?[0], true)?;
        }
    }
    Ok(())
}

#[test]
fn an_option_turns_fusion_off() -> TractResult<()> {
    let (stock, x) = with_activation()?;
    let want = run(stock.clone(), std::slice::from_ref(&x))?.remove(0);
    for (json, tail) in [
        (serde_json::json!({}), &[Step::Activation(Activation::Max(0.0))][..]),
        (serde_json::json!({"fusion": true}), &[Step::Activation(Activation::Max(0.0))]),
        (serde_json::json!({"fusion": false}), &[]),
    ] {
        let model = with_options(stock.clone(), json.clone())?.into_optimized()?;
        let op = model.nodes.iter().find_map(|node| node.op_as::<OptGroupedDeconv>()).context("the op is there")?;
        assert_eq!(op.epilogue, tail, "{json}");
        // The source, the deconvolution, and the activation if it is not folded.
        assert_eq!(model.nodes.len(), 3 - tail.len() + count::<tract_core::ops::konst::Const>(&model), "{model}");
        want.close_enough(&run(model, std::slice::from_ref(&x))?[0], true)?;
    }
    Ok(())
}

#[test]
fn bad_options_are_refused() -> TractResult<()> {
    let (stock, _) = with_activation()?;
    for (json, words) in [
        (serde_json::json!({"strategy": "fastest"}), "strategy=fastest, the known ones are"),
        (serde_json::json!({"isa": "fastest"}), "isa=fastest, the known ones are"),
        (serde_json::json!({"fusion": "no"}), "expected a boolean"),
        (serde_json::json!({"fuse": false}), "unknown field `fuse`"),
    ] {
        let result = guarded(|| with_options(stock.clone(), json.clone()));
        common::run::refused(result, &[words]).map_err(|e| format_err!("{json}: {e}"))?;
    }
    Ok(())
}

#[test]
fn a_model_without_deconvolutions_is_left_alone() -> TractResult<()> {
    let node = Node::new("Relu").inputs(&["x"]).output("y");
    let proto = Model::opset(11).input("x", f32::datum_type(), &sizes(&[2, 3])).node(node).output("y").build();
    let stock = load_stock(&proto)?;
    let before = stock.to_string();
    assert_eq!(transformed(stock)?.to_string(), before);
    Ok(())
}

/// The transform keeps stock tract's results for the ONNX cases, right or wrong.
///
/// The cases are those committed and those of the conformance folder, if there is one.
#[test]
fn the_conformance_cases_keep_stock_numbers() {
    let mut files = case::own_files();
    files.extend(case::folder().iter().flat_map(|folder| case::files_of(folder)));
    let (mut same, mut refused_by_stock, mut left_alone, mut failures) = (0, 0, 0, vec![]);
    for (ix, case) in files
        .iter()
        .flat_map(|file| Case::read(file).expect("a file of cases"))
        .filter(|case| case.dialect == Dialect::Onnx)
        .enumerate()
    {
        let (proto, inputs) = case.model(Wiring::ALL[ix % Wiring::ALL.len()], 1);
        let stock = guarded(|| {
            let model = load_stock(&proto)?;
            Ok((model.clone(), run(model, &inputs)?.remove(0)))
        });
        let Ok((stock, want)) = stock else {
            refused_by_stock += 1;
            continue;
        };
        let ours = guarded(|| {
            let model = transformed(stock)?;
            // Without overflow checks, stock tract runs strides of zero, and output paddings below
            // zero, which wrap around.
            let reasons = left_to_tract(&model)?.into_iter().map(|left| left.reason);
            let refused = |reason: &String| reason.starts_with("output_padding: ") || reason.starts_with("strides: ");
            let left: Vec<bool> = reasons.map(|reason| reason.as_ref().is_some_and(refused)).collect();
            ensure!(left.iter().all(|refused| *refused), "a Deconv is left");
            Ok((run(model.into_optimized()?, &inputs)?.remove(0), !left.is_empty()))
        });
        if matches!(case.expect, Expect::Reject { .. }) {
            // Stock tract accepts ill-formed nodes. Ours may refuse them but must not panic.
            if let Err(Failure::Panic(e)) = ours {
                failures.push(format!("{}: {e}", case.id));
            }
            continue;
        }
        match ours {
            Ok((_, true)) if !cfg!(debug_assertions) => left_alone += 1,
            Ok((got, false)) if near(&got, &want, case.tolerance) => same += 1,
            Ok((got, _)) => failures.push(format!("{}: {got:?} for {want:?}", case.id)),
            Err(Failure::Error(e)) | Err(Failure::Panic(e)) => failures.push(format!("{}: {e}", case.id)),
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "transform: {same} onnx cases keep stock tract's numbers, {refused_by_stock} don't run there, {left_alone} have a node that stays tract's"
    );
    assert!(failures.is_empty(), "{} cases changed:\n{}", failures.len(), failures.join("\n"));
    assert!(same > 50, "only {same} cases ran");
}

/// Compares results. Cases without a tolerance are small integers, exact in every type.
fn near(got: &Tensor, want: &Tensor, tolerance: Option<f64>) -> bool {
    let values = |tensor: &Tensor| f64::from_tensor(tensor);
    let (tolerance, got_values, want_values) = (tolerance.unwrap_or(0.0), values(got), values(want));
    got.datum_type() == want.datum_type()
        && got.shape() == want.shape()
        && got_values.iter().zip(&want_values).all(|(g, w)| (g - w).abs() <= tolerance * (1.0 + w.abs()))
}
