//! `tract-deconv explain`: prints each convolution's spec, cost and plan.

use crate::args::{Engine, ExplainArgs};
use crate::failure::{guarded, say};
use crate::inputs::{named, symbol_values};
use crate::model::{ModelFile, Parsed, fixed_note, parse};
use crate::report::{bytes, count};
use std::fmt::Write;
use tract_core::internal::*;
use tract_core::ops::cnn::Deconv;
use tract_deconv::{Explanation, GroupedDeconv, LeftToTract, Precision, QuantisedDeconv};
use tract_hir::infer::{InferenceModel, InferenceModelExt};

pub fn main(args: &ExplainArgs) -> TractResult<()> {
    let file = ModelFile::find(&args.model, &args.plugin)?;
    let mut sizes = args.sizes.clone();
    let mut parsed = parse(Engine::Plugin, &file, &sizes)?;
    let (symbols, shapes, note) = symbol_values(&parsed.inputs, &file)?;
    if let Some(note) = note {
        say(note)?;
    }
    if !shapes.is_empty() {
        sizes.input_shapes.extend(shapes);
        parsed = parse(Engine::Plugin, &file, &sizes)?;
    }
    let Parsed { model, inputs, .. } = parsed;
    // before the model is consumed, which holds the symbols' names
    let values = named(&inputs, &symbols);
    // explain the optimised model, as optimising fixes the layout of a packed filter
    let explained = |model: InferenceModel, symbols: &SymbolValues| {
        guarded(|| {
            let typed = model.into_typed()?;
            let left = tract_deconv::left_to_tract(&typed)?;
            Ok((left, tract_deconv::explain(&typed.into_optimized()?, symbols)?))
        })
    };
    let (left, explanations) = explained(model, &symbols)
        .or_else(|why| {
            let fixed = parse(Engine::Plugin, &file, &sizes.and_set(&values))?;
            let explained = explained(fixed.model, &SymbolValues::default()).map_err(|_| why)?;
            say(fixed_note(&values))?;
            Ok::<_, TractError>(explained)
        })
        .with_context(|| format!("explaining {}", file.onnx.display()))?;
    if explanations.is_empty() {
        say(format!("{} has no deconvolution", file.onnx.display()))?;
    }
    for explanation in &explanations {
        say(text(explanation))?;
    }
    for node in left.iter().filter_map(|node| Some((node, node.reason.as_ref()?))) {
        let (LeftToTract { name, operator, .. }, reason) = node;
        say(format!("{name} ({operator})\n  left to tract: {reason}"))?;
    }
    match left.iter().filter(|node| node.reason.is_none()).count() {
        0 => Ok(()),
        count => say(format!("{count} forward convolutions are left to tract, --conv takes them")),
    }
}

fn text(of: &Explanation) -> String {
    let shape = |dims: &[TDim]| dims.iter().map(|dim| dim.to_string()).collect::<Vec<_>>().join("×");
    let mut text = format!("{} ({})", of.name, of.dialect);
    let mut line = |label: &str, value: String| {
        // writing to a string can't fail
        let _ = write!(text, "\n  {label:<9} {value}");
    };
    match &of.spec {
        Some(spec) => line("spec", spec.to_string()),
        None => line("spec", "a filter whose sizes are known at run time only".into()),
    }
    line("shapes", format!("{} → {} {:?}", shape(&of.input), shape(&of.output), of.datum_type));
    match &of.fourier {
        Some(Ok(points)) => {
            line("strategy", format!("a Fourier transform of {points} points per frame"));
            line("precision", Precision::Exact.name().into());
            return text;
        }
        Some(Err(reason)) => line("note", format!("no Fourier transform: {reason}")),
        None => {}
    }
    if let Some(quantised) = &of.quantised {
        line("quantised", format!("to {}", quantised.output));
        if let Some(plan) = &quantised.plan {
            for (ix, found) in plan.lines().enumerate() {
                line(if ix == 0 { "strategy" } else { "declined" }, found.trim_start().into());
            }
            return text;
        }
    }
    match &of.concrete {
        None if of.spec.is_none() => line("strategy", "chosen at run time, once per shape of input and filter".into()),
        None => line("strategy", "chosen at run time, once per shape".into()),
        Some(known) => {
            let (input, filter, output) = (known.input_bytes, known.filter_bytes, known.output_bytes);
            line("work", format!("{} multiply-adds", count(known.multiply_adds)));
            line("bytes", format!("{} in, {} of filter, {} out", bytes(input), bytes(filter), bytes(output)));
            line("strategy", known.plan.to_string());
            if let Some(better) = &known.without_packed_filter {
                line("packing", better.clone());
            }
            let reason = known.plan.exact_because().map(|reason| format!(": {reason}")).unwrap_or_default();
            line("precision", format!("{}{reason}", known.plan.precision().name()));
            for (strategy, reason) in known.plan.declined() {
                line("declined", format!("{strategy}: {reason}"));
            }
        }
    }
    text
}

/// Returns whether a node is tract's deconvolution or a convolution of this crate, before code
/// generation.
pub fn is_deconvolution(node: &TypedNode) -> bool {
    node.op_is::<Deconv>() || node.op_is::<GroupedDeconv>() || node.op_is::<QuantisedDeconv>()
}
