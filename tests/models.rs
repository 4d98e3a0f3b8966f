//! Whole models against the outputs of onnxruntime.
//!
//! `models/` must exist. The models of `../shared/models`, or of the folder that
//! `TRACT_DECONV_MODELS` names, are optional. Without that folder their tests count as ignored.

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use ndarray_npy::NpzReader;
use prost::Message;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tract_deconv::{WithConv, WithDeconv};
use tract_onnx::Onnx;
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;

/// The largest accepted difference, relative to the largest expected value of the tensor.
const TOLERANCE: f32 = 1e-4;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = trials("own", &here("models"));
    let public = public_models();
    match &public {
        Some(models) => trials.extend(self::trials("public", models)),
        None => trials.push(Trial::test("public", || absent("models")).with_ignored_flag(true)),
    }
    let detector = public.map(|models| models.join("ppocr_v3_det")).filter(|folder| folder.is_dir());
    let is_absent = detector.is_none();
    let inner = move || match &detector {
        Some(folder) => inner_tensors_match_stock_tract(folder).map_err(|e| format!("{e:#}").into()),
        None => absent("ppocr_v3_det"),
    };
    trials
        .push(Trial::test("inner_tensors_of_the_text_detector_match_stock_tract", inner).with_ignored_flag(is_absent));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn absent(what: &str) -> Result<(), Failed> {
    Err(format!("{what}: see TRACT_DECONV_MODELS").into())
}

/// Compares inner tensors, as this model's final sigmoid saturates on random input and would hide
/// differences.
fn inner_tensors_match_stock_tract(folder: &Path) -> Result<()> {
    let proto = ModelProto::decode(&*std::fs::read(folder.join("model.onnx"))?)?;
    let graph = proto.graph.context("model without graph")?;
    let of = |ops: &[&str]| -> Vec<&str> {
        graph.node.iter().filter(|node| ops.contains(&&*node.op_type)).map(|node| &*node.output[0]).collect()
    };
    let (deconvolutions, convolutions) = (of(&["ConvTranspose"]), of(&["ConvTranspose", "Conv"]));
    ensure!((deconvolutions.len(), convolutions.len()) == (2, 74), "{deconvolutions:?}, {convolutions:?}");
    let sigmoid = graph.node.iter().find(|node| node.output[0] == graph.output[0].name);
    let last = vec![&*sigmoid.context("unwired output")?.input[0]];
    let io = Io::read(folder)?;
    let inner = |onnx: Onnx, names: &[&str]| -> Result<TVec<TValue>> {
        let mut model = onnx.model_for_path(folder.join("model.onnx"))?;
        model.select_outputs_by_name(names)?;
        io.set_shapes(&mut model, Shapes::Stored)?;
        let inputs = io.inputs(&model)?;
        model.into_optimized()?.into_runnable()?.run(inputs)
    };
    // The output of each layer, which then folds nothing after it, and the last layer with all that
    // folds.
    for names in [convolutions, last] {
        let stock = inner(tract_onnx::onnx(), &names)?;
        for (what, onnx) in [("deconv", onnx()), ("deconv and conv", onnx().with_conv())] {
            for ((name, ours), stock) in names.iter().zip(&inner(onnx, &names)?).zip(&stock) {
                let worst = compare(ours, stock, magnitude(stock)?).with_context(|| format!("{name}, {what}"))?;
                println!("{name}, {what}: off by {worst:.1e} of the scale");
            }
        }
    }
    Ok(())
}

fn onnx() -> Onnx {
    tract_onnx::onnx().with_deconv()
}

fn here(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

fn public_models() -> Option<PathBuf> {
    if let Some(models) = std::env::var_os("TRACT_DECONV_MODELS") {
        return Some(models.into());
    }
    Some(here("../shared/models")).filter(|models| models.is_dir())
}

/// The part of the input shapes that is known when a model is analysed.
#[derive(Clone, Copy, Debug)]
enum Shapes {
    /// As in the file, including symbols.
    File,
    /// The first axis as in the file, the other axes as in the stored inputs.
    FileBatch,
    /// All axes as in the stored inputs.
    Stored,
}

/// A model whose symbols tract can't analyse, and the node at which it fails, which is not a
/// deconvolution.
///
/// tract can't prove that two branches that were halved and doubled have equal sizes.
const BEYOND_TRACT: (&str, &str) = ("ppocr_v3_det", "\"p2o.Concat.0\" InferenceConcat");

/// Returns a test for each model of a folder.
fn trials(which: &str, models: &Path) -> Vec<Trial> {
    let entries = std::fs::read_dir(models).unwrap_or_else(|e| panic!("{}: {e}", models.display()));
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|folder| folder.join("model.onnx").is_file()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "{} holds no model", models.display());
    let trial = |folder: PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().to_string();
        Trial::test(format!("{which}::{name}"), move || check_all(&folder))
    };
    folders.into_iter().map(trial).collect()
}

/// Checks a model with each kind of shapes, decluttered and optimised.
fn check_all(folder: &Path) -> Result<(), Failed> {
    let mut failures = vec![];
    for shapes in [Shapes::File, Shapes::FileBatch, Shapes::Stored] {
        for (optimised, conv) in [(false, false), (false, true), (true, false), (true, true)] {
            let form = if optimised { "optimised" } else { "decluttered" };
            let also = if conv { ", with conv" } else { "" };
            let what = format!("{shapes:?} shapes, {form}{also}");
            let beyond_tract = matches!(shapes, Shapes::File) && folder.ends_with(BEYOND_TRACT.0);
            match check(folder, shapes, optimised, conv).map_err(|e| format!("{e:#}")) {
                Ok(_) if beyond_tract => failures.push(format!("{what}: tract can analyse it by now")),
                Ok(worst) => println!("{what}: off by {worst:.1e} of the scale"),
                Err(e) if beyond_tract && e.contains(BEYOND_TRACT.1) => {}
                Err(e) => failures.push(format!("{what}: {e}")),
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Runs one model on its stored inputs and returns the largest relative error of its outputs.
fn check(folder: &Path, shapes: Shapes, optimised: bool, conv: bool) -> Result<f32> {
    let io = Io::read(folder)?;
    let onnx = if conv { onnx().with_conv() } else { onnx() };
    let mut model = onnx.model_for_path(folder.join("model.onnx"))?;
    io.set_shapes(&mut model, shapes)?;
    let inputs = io.inputs(&model)?;
    let expected = io.outputs(&model)?;
    let model = if optimised { model.into_optimized()? } else { model.into_typed()?.into_decluttered()? };
    let ops: Vec<_> = model.nodes().iter().map(|node| node.op.name()).collect();
    let ours = |op: &str| op.ends_with("GroupedDeconv") || op == "OptFourier";
    ensure!(ops.iter().any(|op| ours(op)), "none of our deconvolutions among {ops:?}");
    ensure!(!ops.iter().any(|op| op.starts_with("Deconv")), "tract's own deconvolution among {ops:?}");
    ensure!(!conv || !ops.iter().any(|op| op == "Conv" || op == "Im2col"), "tract's own convolution among {ops:?}");
    let outputs = model.into_runnable()?.run(inputs)?;
    ensure!(!expected.is_empty() && expected.len() == outputs.len(), "lost an output");
    let mut worst = 0f32;
    for ((name, expected, scale), output) in expected.iter().zip(&outputs) {
        worst = worst.max(compare(output, expected, *scale).with_context(|| name.clone())?);
    }
    Ok(worst)
}

/// Returns the largest absolute value.
fn magnitude(tensor: &Tensor) -> Result<f32> {
    Ok(tensor.to_plain_array_view::<f32>()?.iter().fold(0f32, |max, v| max.max(v.abs())))
}

/// Returns the largest difference relative to `scale`.
fn compare(found: &Tensor, expected: &Tensor, scale: f32) -> Result<f32> {
    ensure!(found.shape() == expected.shape(), "shape {:?}, expected {:?}", found.shape(), expected.shape());
    ensure!(scale > 0.0 && scale.is_finite(), "expected values have scale {scale}");
    let expected = expected.to_plain_array_view::<f32>()?;
    // A NaN must win over every number.
    let worst = found
        .to_plain_array_view::<f32>()?
        .iter()
        .zip(expected)
        .map(|(f, e)| (f - e).abs() / scale)
        .fold(0f32, |max, error| if error <= max { max } else { error });
    ensure!(worst <= TOLERANCE, "off by {worst:.1e} of the scale {scale}");
    Ok(worst)
}

/// A model's `io.npz`, with arrays `in__NAME` and `out__NAME`.
struct Io(HashMap<String, Tensor>);

impl Io {
    fn read(folder: &Path) -> Result<Io> {
        let file = folder.join("io.npz");
        let mut npz = NpzReader::new(File::open(&file).with_context(|| file.display().to_string())?)?;
        let mut tensors = HashMap::new();
        for name in npz.names()? {
            let array: tract_ndarray::ArrayD<f32> = npz.by_name(&name).with_context(|| name.clone())?;
            tensors.insert(name.trim_end_matches(".npy").to_string(), array.into_tensor());
        }
        Ok(Io(tensors))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.0.get(name).with_context(|| format!("io.npz has no {name}"))
    }

    fn inputs(&self, model: &InferenceModel) -> Result<TVec<TValue>> {
        let names = model.input_outlets()?.iter().map(|input| &model.node(input.node).name);
        names.map(|name| Ok(self.tensor(&format!("in__{name}"))?.clone().into())).collect()
    }

    /// Returns name, value and scale of each output. A sigmoid's scale is 1, even if it saturates
    /// at 0.
    fn outputs(&self, model: &InferenceModel) -> Result<Vec<(String, &Tensor, f32)>> {
        let mut outputs = vec![];
        for &outlet in model.output_outlets()? {
            let name = model.outlet_label(outlet).context("unnamed output")?;
            let value = self.tensor(&format!("out__{name}"))?;
            let sigmoid = model.node(outlet.node).op.name() == "Sigmoid";
            let scale = if sigmoid { 1.0 } else { magnitude(value)? };
            outputs.push((name.to_string(), value, scale));
        }
        Ok(outputs)
    }

    fn set_shapes(&self, model: &mut InferenceModel, shapes: Shapes) -> Result<()> {
        for (ix, input) in self.inputs(model)?.iter().enumerate() {
            let mut shape: TVec<TDim> = input.shape().iter().map(|&size| size.to_dim()).collect();
            match shapes {
                Shapes::File => continue,
                Shapes::FileBatch => {
                    let batch = model.input_fact(ix)?.shape.dim(0).and_then(|dim| dim.concretize());
                    shape[0] = batch.context("no first axis in the file")?;
                }
                Shapes::Stored => {}
            }
            model.set_input_fact(ix, InferenceFact::dt_shape(input.datum_type(), shape))?;
        }
        Ok(())
    }
}
