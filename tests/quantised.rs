//! Quantised convolutions: what loads, in which op, with which numbers.

mod common;

use common::run::{Stage, load, run};
use std::path::{Path, PathBuf};
use tract_core::internal::*;
use tract_deconv::{OptQuantisedDeconv, QuantisedDeconv};
use tract_onnx::prelude::Framework;

fn is_quantised(model: &TypedModel) -> bool {
    model.nodes().iter().any(|node| node.op_is::<QuantisedDeconv>() || node.op_is::<OptQuantisedDeconv>())
}

/// Returns the stored cases of a folder, if it is there.
fn shared() -> Option<Vec<PathBuf>> {
    // The shared models are optional.
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/quantised");
    let folder = std::env::var_os("TRACT_DECONV_QUANTISED").map_or_else(beside, PathBuf::from);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "onnx"));
    files.sort();
    Some(files)
}

fn tensors(file: &Path) -> TractResult<HashMap<String, Tensor>> {
    use ndarray_npy::NpzReader;
    let mut npz = NpzReader::new(std::fs::File::open(file)?)?;
    let mut tensors = HashMap::new();
    for name in npz.names()? {
        macro_rules! read {
            ($($t:ty),*) => {
                $(if let Ok(array) = npz.by_name::<tract_ndarray::OwnedRepr<$t>, tract_ndarray::IxDyn>(&name) {
                    tensors.insert(name.trim_end_matches(".npy").to_string(), array.into_tensor());
                    continue;
                })*
            };
        }
        read!(f32, u8, i8, i32, f64, i64);
        bail!("{name}: a type that no case has");
    }
    Ok(tensors)
}

/// Compares results: floats within 2e-5 of the largest, integers exactly.
fn compare(found: &Tensor, expected: &Tensor) -> TractResult<()> {
    ensure!(found.shape() == expected.shape(), "{:?} for {:?}", found.shape(), expected.shape());
    let tolerance = if found.datum_type().is_float() { 2e-5 } else { 0.0 };
    let (found, expected) = (found.cast_to::<f64>()?, expected.cast_to::<f64>()?);
    let (found, expected) = (found.try_as_plain_ram()?, expected.try_as_plain_ram()?);
    let pairs = found.as_slice::<f64>()?.iter().zip(expected.as_slice::<f64>()?);
    let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let largest = expected.as_slice::<f64>()?.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    let allowed = tolerance * largest;
    ensure!(most <= allowed, "{most} apart, where {largest} is the largest");
    Ok(())
}

#[test]
fn the_shared_nodes_give_their_values_in_the_quantised_op() -> TractResult<()> {
    let Some(files) = shared() else { return Ok(()) };
    let mut wrong = vec![];
    for file in &files {
        let name = file.file_stem().unwrap().to_string_lossy().to_string();
        for stage in Stage::ALL {
            let check = || -> TractResult<()> {
                let tensors = tensors(&file.with_extension("npz"))?;
                let proto = tract_onnx::onnx().proto_model_for_path(file)?;
                let names: Vec<String> = proto.graph.as_ref().unwrap().input.iter().map(|i| i.name.clone()).collect();
                let inputs: Vec<Tensor> = names.iter().map(|name| tensors[name].clone()).collect();
                let model = stage.of(load(&proto)?)?;
                let names: Vec<StaticName> = model.nodes().iter().map(|node| node.op.name()).collect();
                ensure!(is_quantised(&model) != name.starts_with("weight"), "ops: {names:?}");
                let found = run(model, &inputs)?.remove(0);
                ensure!(found.datum_type() == tensors["expected"].datum_type(), "{:?}", found.datum_type());
                compare(&found, &tensors["expected"])
            };
            if let Err(error) = check() {
                wrong.push(format!("{name} {stage:?}: {error:#}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
