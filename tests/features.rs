//! What a build lacks without its default features, beside what it has with them: `.ci/run` runs it with
//! `--no-default-features` too.

mod common;

use common::probe::{Probe, axis};
use common::proto::{Model, Node, sizes};
use common::quantised::integers;
use common::run::{guarded, load, load_stock, refused, run};
use tract_core::internal::*;
use tract_core::transform::get_transform;
use tract_deconv::{GroupedDeconv, OptFourier, QuantisedDeconv, left_to_tract};

const TYPES: [(DatumType, bool, &str); 2] =
    [(DatumType::F16, cfg!(feature = "f16"), "f16"), (DatumType::F64, cfg!(feature = "f64"), "f64")];

fn has<O: tract_core::ops::Op>(model: &TypedModel) -> bool {
    model.nodes().iter().any(|node| node.op_is::<O>())
}

fn probe(dt: DatumType) -> Probe {
    Probe::typed(dt, &[1, 2, 5], &[2, 3, 3]).ints("strides", &[2]).bias(3)
}

#[test]
fn f32_runs() {
    probe(DatumType::F32).gives(&[axis(2, 1, 0, 11)]);
}

#[test]
fn a_layer_of_another_type_runs_or_names_the_feature() -> Result<(), String> {
    for (dt, built, feature) in TYPES {
        if built {
            probe(dt).gives(&[axis(2, 1, 0, 11)]);
        } else {
            refused(guarded(|| load(&probe(dt).proto())), &[&format!("this build lacks the Cargo feature {feature}")])?;
        }
    }
    Ok(())
}

#[test]
fn a_typed_layer_of_another_type_stays_tracts() -> TractResult<()> {
    for (dt, built, feature) in TYPES {
        let stock = load_stock(&probe(dt).proto())?;
        let mut model = stock.clone();
        get_transform("deconv")?.context("the transform is registered")?.transform(&mut model)?;
        ensure!(has::<GroupedDeconv>(&model) == built, "{dt:?}");
        let left = left_to_tract(&stock)?;
        ensure!(built || left[0].reason.as_ref().is_some_and(|reason| reason.contains(feature)), "{left:?}");
        run(model.into_optimized()?, &probe(dt).inputs())?;
    }
    Ok(())
}

#[test]
fn quantised_layers_run_here_or_in_tract() -> TractResult<()> {
    let byte = |value| integers(DatumType::U8, &[], &[value]);
    let x = integers(DatumType::U8, &[1, 1, 4], &[1, 2, 3, 4]);
    let model = Model::opset(13)
        .input("x", u8::datum_type(), &sizes(x.shape()))
        .initializer("one", &tensor0(1f32))
        .initializer("zero", &byte(0))
        .initializer("w", &integers(DatumType::U8, &[1, 1, 2], &[1, 10]))
        .node(Node::new("QLinearConv").inputs(&["x", "one", "zero", "w", "one", "zero", "one", "zero"]).output("y"))
        .output("y")
        .build();
    let model = load(&model)?;
    ensure!(has::<QuantisedDeconv>(&model) == cfg!(feature = "quantised"));
    let y = run(model.into_optimized()?, &[x])?.remove(0);
    ensure!(*y == integers(DatumType::U8, &[1, 1, 3], &[21, 32, 43]), "{y:?}");
    Ok(())
}

#[test]
fn transforms_are_fast_or_layers() -> TractResult<()> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/istft/model.onnx");
    let proto = tract_onnx::onnx().proto_model_for_path(folder)?;
    let model = load(&proto)?.into_optimized()?;
    ensure!(has::<OptFourier>(&model) == cfg!(feature = "fourier"));
    Ok(())
}
