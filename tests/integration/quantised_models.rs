//! The project's models in 8 bits, against the outputs of onnxruntime and against the models in f32.
//!
//! `tools/quantise_models.py` made the models of `tests/data/quantised/`.

use crate::io::{Io, magnitude};
#[allow(dead_code)]
use anyhow::{Context, Result, ensure};
use prost::Message;
use std::path::{Path, PathBuf};
use tract_core::internal::*;
use tract_deconv::{
    GroupedDeconv, OptGroupedDeconv, OptQuantisedDeconv, QuantisedDeconv, WithConv, WithDeconv, left_to_tract,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceFact, InferenceModelExt};

/// A quantised model, and what is known of it.
struct Case {
    /// The folder below `tests/data/quantised/`.
    name: &'static str,
    /// The folder below `models/`.
    twin: &'static str,
    /// The quantised layers, and those that stay in f32: onnxruntime's tools give transposed layers no
    /// dynamic form.
    layers: [usize; 2],
    /// Upper bounds of the error against f32: the largest difference relative to the largest value, and
    /// the root mean square relative to that of the values. The README of the folder has the measured
    /// errors.
    errors: [f64; 2],
}

const CASES: [Case; 6] = [
    Case { name: "dcgan_small", twin: "dcgan_small", layers: [4, 0], errors: [0.025, 0.02] },
    Case { name: "denoiser", twin: "denoiser", layers: [12, 0], errors: [0.2, 0.03] },
    Case { name: "unet_symbolic", twin: "unet_symbolic", layers: [11, 0], errors: [0.04, 0.04] },
    Case { name: "unet_symbolic_dynamic", twin: "unet_symbolic", layers: [8, 3], errors: [0.035, 0.035] },
    Case { name: "upscale4", twin: "upscale4", layers: [1, 0], errors: [0.012, 0.02] },
    Case { name: "vocoder", twin: "vocoder", layers: [18, 0], errors: [0.08, 0.065] },
];

/// The largest share of an output's elements that may differ from onnxruntime's, and by how much of the
/// largest value.
///
/// Sums in f32, as onnxruntime has them, round values near a tie to the neighbouring integer: some 1 of
/// 30 000 in a layer. Layers behind it spread the step, and quantising at run time does most. No element
/// of these models differs on x86-64, and 3 % by 1 % in the worst model seen. Elements within 1e-5 of the
/// largest value count as equal, as activations and layers in f32 round otherwise on other machines.
const MOST_APART: f64 = 0.05;
const FURTHEST: f64 = 0.02;
const EQUAL: f64 = 1e-5;

fn below(folder: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name)
}

fn count<O: Op>(model: &TypedModel) -> usize {
    model.nodes().iter().filter(|node| node.op_is::<O>()).count()
}

/// A model with its stored inputs and outputs.
struct Loaded {
    model: TypedModel,
    inputs: TVec<TValue>,
    expected: Vec<(String, Tensor)>,
}

impl Loaded {
    /// Loads a model with the shapes of its stored inputs, or those of the file.
    fn new(onnx: tract_onnx::Onnx, folder: &Path, fixed: bool) -> Result<Loaded> {
        let io = Io::read(folder)?;
        let mut model = onnx.with_ignore_value_info(fixed).model_for_path(folder.join("model.onnx"))?;
        let inputs = io.inputs(&model)?;
        for (ix, input) in inputs.iter().enumerate().filter(|_| fixed) {
            model.set_input_fact(ix, InferenceFact::dt_shape(input.datum_type(), input.shape()))?;
        }
        let expected = io.outputs(&model)?.into_iter().map(|(name, value, _)| (name, value.clone())).collect();
        Ok(Loaded { model: model.into_typed()?, inputs, expected })
    }
}

/// How far two tensors are apart.
struct Difference {
    /// The share of elements that are not equal.
    share: f64,
    /// The largest difference relative to the largest expected value.
    most: f64,
    /// The root mean square relative to that of the expected values.
    rms: f64,
}

impl Difference {
    fn of(found: &Tensor, expected: &Tensor) -> Result<Difference> {
        ensure!(found.shape() == expected.shape(), "shape {:?}, {:?} is expected", found.shape(), expected.shape());
        ensure!(found.datum_type() == expected.datum_type(), "{:?}", found.datum_type());
        let scale = magnitude(expected)? as f64;
        let (found, expected) = (found.cast_to::<f64>()?, expected.cast_to::<f64>()?);
        let (found, expected) = (found.to_plain_array_view::<f64>()?, expected.to_plain_array_view::<f64>()?);
        ensure!(scale > 0.0 && found.iter().all(|value| value.is_finite()), "no finite values");
        let apart = || found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / scale);
        let squares = apart().map(|d| d * d).sum::<f64>() / expected.iter().map(|e| (e / scale).powi(2)).sum::<f64>();
        Ok(Difference {
            share: apart().filter(|d| *d > EQUAL).count() as f64 / found.len() as f64,
            most: apart().fold(0.0, f64::max),
            rms: squares.sqrt(),
        })
    }
}

/// Runs a case with both switches at each stage, and passes each output with the expected one.
fn for_each_output(case: &Case, check: impl Fn(&str, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
    for fixed in [false, true] {
        // tract runs slices of symbolic sizes once they are decluttered.
        let first = if fixed { 0 } else { 1 };
        for stage in &["typed", "decluttered", "optimised"][first..] {
            let onnx = tract_onnx::onnx().with_deconv().with_conv();
            let Loaded { model, inputs, expected } =
                Loaded::new(onnx, &below("tests/data/quantised", case.name), fixed)?;
            let model = match *stage {
                "typed" => model,
                "decluttered" => model.into_decluttered()?,
                _ => model.into_optimized()?,
            };
            let layers = match *stage {
                "optimised" => [count::<OptQuantisedDeconv>(&model), count::<OptGroupedDeconv>(&model)],
                _ => [count::<QuantisedDeconv>(&model), count::<GroupedDeconv>(&model)],
            };
            ensure!(layers == case.layers, "{stage}: {layers:?} layers: {model}");
            ensure!(left_to_tract(&model)?.is_empty(), "{stage}: {:?}", left_to_tract(&model)?);
            let found = model.into_runnable()?.run(inputs)?;
            ensure!(!found.is_empty() && found.len() == expected.len(), "{stage}: lost an output");
            for (found, (name, expected)) in found.iter().zip(&expected) {
                let what =
                    format!("{} {stage}, {} shapes, {name}", case.name, if fixed { "fixed" } else { "the file's" });
                check(&what, found, expected).with_context(|| what.clone())?;
            }
        }
    }
    Ok(())
}

#[test]
fn outputs_are_those_of_onnxruntime() -> Result<()> {
    for case in &CASES {
        for_each_output(case, |what, found, expected| {
            let Difference { share, most, .. } = Difference::of(found, expected)?;
            println!("{what}: {:.2} % differ, by at most {most:.1e}", 100.0 * share);
            ensure!(share <= MOST_APART && most <= FURTHEST, "{share} differ, by at most {most}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn errors_against_f32_are_those_of_8_bits() -> Result<()> {
    for case in &CASES {
        let onnx = tract_onnx::onnx().with_deconv().with_conv();
        let twin = Loaded::new(onnx, &below("models", case.twin), true)?;
        let quantised = Loaded::new(tract_onnx::onnx(), &below("tests/data/quantised", case.name), true)?;
        ensure!(twin.inputs == quantised.inputs, "{}: other inputs", case.name);
        for_each_output(case, |what, found, _| {
            let name = what.rsplit(' ').next().unwrap_or_default();
            let (_, exact) = twin.expected.iter().find(|(of, _)| of == name).context("no such output in f32")?;
            let Difference { most, rms, .. } = Difference::of(found, exact)?;
            println!("{what}: at most {most:.1e} from f32, root mean square {rms:.1e}");
            // 8 bits can't be closer than this: the model in f32 would have run.
            ensure!(most > 1e-3 && most <= case.errors[0] && rms <= case.errors[1], "at most {most}, {rms} in all");
            Ok(())
        })?;
    }
    Ok(())
}

/// The script and the tests know the same models.
#[test]
fn every_stored_model_is_tested() -> Result<()> {
    let mut stored = vec![];
    for entry in std::fs::read_dir(below("tests/data", "quantised"))? {
        let folder = entry?.path();
        if folder.is_dir() {
            let proto = ModelProto::decode(&*std::fs::read(folder.join("model.onnx"))?)?;
            let graph = proto.graph.context("model without graph")?;
            let of = |op: &[&str]| graph.node.iter().filter(|node| op.contains(&&*node.op_type)).count();
            let name = folder.file_name().context("a name")?.to_string_lossy().to_string();
            stored.push((name, of(&["Conv", "ConvTranspose", "ConvInteger"])));
        }
    }
    stored.sort();
    let known: Vec<_> = CASES.iter().map(|case| (case.name.to_string(), case.layers.iter().sum::<usize>())).collect();
    ensure!(stored == known, "{stored:?}");
    Ok(())
}
