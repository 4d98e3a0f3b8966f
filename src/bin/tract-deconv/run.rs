//! `tract-deconv run`: runs a model once with the plugin, and prints, writes and compares its
//! outputs.

use crate::args::{Engine, RunArgs};
use crate::arrays::{Arrays, read_npz, write_npz};
use crate::compare::{Difference, compare};
use crate::failure::{check_writable, say};
use crate::inputs::{resolve, times};
use crate::model::{ModelFile, parse, prepare_open_or_fixed, run, set_threads};
use crate::report;
use crate::watch::Watch;
use tract_core::internal::*;

pub fn main(args: &RunArgs) -> TractResult<()> {
    if let Some(path) = &args.output {
        check_writable(path)?;
    }
    set_threads(&args.model)?;
    let file = ModelFile::find(&args.model.model, &args.model.plugin)?;
    let check = args.check.as_deref().map(|path| Ok::<_, TractError>((path, read_npz(path)?))).transpose()?;
    let parsed = parse(Engine::Plugin, &file, &args.model.sizes)?;
    let inputs = resolve(&parsed.inputs, &args.model, &file, check.as_ref().map(|(path, arrays)| (*path, arrays)))?;
    for note in &inputs.notes {
        say(note)?;
    }
    let watch = Watch::start("preparing and running the model");
    let (ready, note) = prepare_open_or_fixed(&file, &mut args.model.sizes.clone(), &inputs.symbols, &inputs.tensors)?;
    for note in note.iter() {
        say(format!("note: {note}"))?;
    }
    let outputs = run(&ready.runnable, &inputs.tensors)?;
    drop(watch);
    let names = ready.output_names();
    say(format!("\n{}\n", summary(&names, &outputs)?))?;
    if let Some(path) = &args.output {
        let mut arrays: Arrays = parsed
            .inputs
            .iter()
            .zip(&inputs.tensors)
            .map(|(i, tensor)| (format!("in__{}", i.name), tensor.clone()))
            .collect();
        arrays.extend(names.iter().zip(&outputs).map(|(name, tensor)| (format!("out__{name}"), tensor.clone())));
        write_npz(path, &arrays)?;
        say(format!("written: {}", path.display()))?;
    }
    if let Some((path, arrays)) = &check {
        let differences = against(arrays, &names, &outputs, args.tolerance)?;
        say(format!("{}\n", report::differences(&differences)))?;
        ensure!(
            differences.iter().all(Difference::passes),
            "check against {}: {}",
            path.display(),
            report::worst(&differences)
        );
    }
    Ok(())
}

/// Compares every output with its `out__NAME` array. A missing array counts as a mismatch.
pub fn against(
    arrays: &Arrays,
    names: &[String],
    outputs: &[Arc<Tensor>],
    tolerance: Option<f64>,
) -> TractResult<Vec<Difference>> {
    let compare_one = |(name, output): (&String, &Arc<Tensor>)| {
        let key = format!("out__{name}");
        match arrays.iter().find(|(name, _)| *name == key) {
            Some((_, reference)) => compare(name, output, reference, tolerance),
            None => Ok(Difference {
                name: name.clone(),
                absolute: f64::NAN,
                relative: f64::NAN,
                scale: f64::NAN,
                tolerance: 0.0,
                mismatch: Some(format!("no array {key}")),
            }),
        }
    };
    names.iter().zip(outputs).map(compare_one).collect()
}

fn summary(names: &[String], outputs: &[Arc<Tensor>]) -> TractResult<comfy_table::Table> {
    let mut table = report::table(&["output", "shape", "type", "min", "mean", "max"], 3);
    for (name, output) in names.iter().zip(outputs) {
        let mut row = vec![name.clone(), times(output.shape()), format!("{:?}", output.datum_type())];
        match output.cast_to::<f64>() {
            Ok(values) if values.len() > 0 => {
                let view = values.try_as_plain_ram()?;
                let values = view.as_slice::<f64>()?;
                let min = values.iter().copied().fold(f64::INFINITY, f64::min);
                let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                row.extend([min, mean, max].map(|x| format!("{x:.4}")));
            }
            _ => row.extend(["-", "-", "-"].map(String::from)),
        }
        table.add_row(row);
    }
    Ok(table)
}
