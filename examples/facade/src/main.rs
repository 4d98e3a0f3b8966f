//! Uses tract-deconv through the `tract` crate, whose ONNX loader has no register of operators. The
//! transform `deconv` replaces tract's own deconvolutions.
//!
//! `cargo run --release -p facade [model.onnx]`
//!
//! The model must have one input. In its shape, 1 stands for a symbol named `batch`, and 32 for any
//! other symbol.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tract::prelude::*;
use tract_deconv as _; // a crate that is never named is not linked, and its transforms are missing

/// The model that runs if none is named.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/vocoder/model.onnx");

/// A transform by its name, and one as JSON with options: the reference strategy, without fusion.
const TRANSFORMS: [&str; 2] = ["deconv", r#"{"name": "deconv", "strategy": "reference", "fusion": false}"#];

fn main() -> Result<()> {
    compare(&std::env::args_os().nth(1).map_or(PathBuf::from(MODEL), PathBuf::from))
}

/// Runs a model as tract does, and with each transform.
fn compare(file: &Path) -> Result<()> {
    let load = || tract::onnx()?.load(file)?.into_model();

    let model = load()?;
    let shape = shape(&model)?;
    let input: Vec<f32> = (0..shape.iter().product()).map(|at| ((at * 31 % 97) as f32 - 48.0) / 48.0).collect();
    let input = Tensor::from_slice(&shape, &input)?;
    let (stock, took) = run(model, &input)?;
    println!("{shape:?}, tract's own: {took}");
    for transform in TRANSFORMS {
        let mut model = load()?;
        model.transform(transform)?;
        let (ours, took) = run(model, &input)?;
        let difference = difference(&stock, &ours)?;
        println!("{shape:?}, {transform}: {took}, off by {difference:.1e} of the scale");
        ensure!(difference <= 1e-4, "the transform changed the numbers");
    }
    Ok(())
}

/// Returns the first input's shape, with numbers for symbols.
fn shape(model: &Model) -> Result<Vec<usize>> {
    let fact = model.input_fact(0)?;
    (0..fact.rank()?)
        .map(|axis| {
            let dim = fact.dim(axis)?;
            let known = dim.to_int64().ok().and_then(|size| usize::try_from(size).ok());
            Ok(known.unwrap_or(if dim.to_string() == "batch" { 1 } else { 32 }))
        })
        .collect()
}

/// Returns the first output and the median time of a run.
fn run(model: Model, input: &Tensor) -> Result<(Tensor, String)> {
    let runnable = model.into_runnable()?;
    let output = runnable.run([input.clone()])?.into_iter().next().context("no output")?;
    let mut times = (0..9)
        .map(|_| {
            let start = Instant::now();
            runnable.run([input.clone()]).map(|_| start.elapsed())
        })
        .collect::<Result<Vec<_>>>()?;
    times.sort();
    Ok((output, format!("{:.2?}", times[times.len() / 2])))
}

/// Returns the largest difference, relative to the largest value.
fn difference(expected: &Tensor, found: &Tensor) -> Result<f32> {
    let (shape, expected) = (expected.shape()?, expected.as_slice::<f32>()?);
    ensure!(shape == found.shape()?, "shape={:?}, {shape:?} is expected", found.shape()?);
    let scale = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let errors =
        expected.iter().zip(found.as_slice::<f32>()?).map(|(expected, found)| (expected - found).abs() / scale);
    // a NaN counts as the largest difference
    Ok(errors.fold(0.0, |most, error| if error <= most { most } else { error }))
}

#[test]
fn transforms_keep_the_numbers() -> Result<()> {
    compare(Path::new(MODEL))
}
