//! Latency of the project's models, with stock tract and with the plugin:
//! `cargo bench --bench latency -- vocoder`.
//!
//! Results are compared with those stored next to each model before anything is timed.

mod common;

use common::compare;
use criterion::Criterion;
use ndarray_npy::NpzReader;
use std::fs::File;
use std::path::Path;
use tract_core::internal::*;
use tract_deconv::WithDeconv;
use tract_onnx::prelude::tract_ndarray::{IxDyn, OwnedRepr};
use tract_onnx::prelude::*;

/// Returns the arrays of `io.npz` whose names begin with `prefix`, in its order, or `None` if one
/// of them is not f32.
fn arrays(npz: &mut NpzReader<File>, prefix: &str) -> TractResult<Option<TVec<Tensor>>> {
    let names = npz.names()?.into_iter().filter(|name| name.starts_with(prefix));
    let names: Vec<String> = names.collect();
    Ok(names.iter().map(|name| npz.by_name::<OwnedRepr<f32>, IxDyn>(name).ok().map(|a| a.into_tensor())).collect())
}

fn main() -> TractResult<()> {
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    let models = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models"));
    for entry in std::fs::read_dir(models)? {
        let folder = entry?.path();
        let (Ok(io), model) = (File::open(folder.join("io.npz")), folder.join("model.onnx")) else { continue };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut npz = NpzReader::new(io)?;
        let (Some(inputs), Some(expected)) = (arrays(&mut npz, "in__")?, arrays(&mut npz, "out__")?) else {
            eprintln!("{name}: skipped, not all of its inputs and outputs are f32");
            continue;
        };
        let inputs: TVec<TValue> = inputs.into_iter().map(|tensor| tensor.into_tvalue()).collect();
        let mut group = criterion.benchmark_group(&name);
        for (engine, loader) in [("stock", onnx()), ("plugin", onnx().with_deconv())] {
            let runnable = loader.model_for_path(&model)?.into_optimized()?.into_runnable()?;
            let outputs = runnable.run(inputs.clone())?;
            ensure!(
                outputs.len() == expected.len(),
                "{name}: outputs={}, {} are stored",
                outputs.len(),
                expected.len()
            );
            for (got, want) in outputs.iter().zip(&expected) {
                compare(&format!("{name} by {engine}"), got, want)?;
            }
            group.bench_function(engine, |bencher| bencher.iter(|| runnable.run(inputs.clone())));
        }
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}
