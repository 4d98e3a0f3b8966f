//! Conformance cases of all dialects. Each case becomes a model, which is loaded and run.
//!
//! The cases of `tests/data` are committed, with the definition's results
//! (`tools/conformance_cases.py`). The cases of the folder that `TRACT_DECONV_CONFORMANCE` names,
//! by default `../shared/conformance`, have the results of other runtimes. If there is no such
//! folder, their test counts as ignored.

mod common;

use common::case::{self, Case, Dialect, Expect, Wiring};
use common::run::{Stage, guarded, load, refused, run};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use tract_core::internal::*;

fn main() -> ExitCode {
    tract_deconv::internals::fill_new_memory(true);
    let arguments = Arguments::from_args();
    let own = read(&case::own_files());
    let mut trials = vec![];
    let cases: Vec<Case> = own.values().flatten().cloned().collect();
    trials.push(Trial::test("the_readme_s_table_is_covered", move || the_readme_s_table_is_covered(&cases)));
    trials.extend(own.into_iter().map(|(name, cases)| trial(format!("own::{name}"), cases)));
    match case::folder() {
        Some(folder) => {
            let cases = read(&case::files_of(&folder));
            trials.extend(cases.into_iter().map(|(name, cases)| trial(format!("of_other_runtimes::{name}"), cases)));
        }
        None => {
            let absent = || Err("no folder of cases: see TRACT_DECONV_CONFORMANCE".into());
            trials.push(Trial::test("of_other_runtimes", absent).with_ignored_flag(true));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the cases of some files, by file and dialect.
fn read(files: &[impl AsRef<Path>]) -> BTreeMap<String, Vec<Case>> {
    let mut cases: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for file in files.iter().map(AsRef::as_ref) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        for case in Case::read(file).unwrap_or_else(|e| panic!("{name}: {e}")) {
            let dialect = format!("{:?}", case.dialect).to_lowercase();
            cases.entry(format!("{name}::{dialect}")).or_default().push(case);
        }
    }
    cases
}

fn trial(name: String, cases: Vec<Case>) -> Trial {
    Trial::test(name, move || {
        let wrong = |(ix, case)| Some((case, check(case, ix))).filter(|(_, wrong)| !wrong.is_empty());
        let failed: Vec<(&Case, Vec<String>)> = cases.iter().enumerate().filter_map(wrong).collect();
        eprintln!("{} passed, {} failed", cases.len() - failed.len(), failed.len());
        let lines: Vec<String> =
            failed.iter().map(|(case, wrong)| format!("{}: {}", case.id, wrong.join("\n    "))).collect();
        if lines.is_empty() { Ok(()) } else { Err(lines.join("\n").into()) }
    })
}

/// Returns the failures of a case, over all wirings and stages.
fn check(case: &Case, variant: usize) -> Vec<String> {
    let mut wrong = vec![];
    for wiring in Wiring::ALL {
        for stage in Stage::ALL {
            let (proto, inputs) = case.model(wiring, variant);
            let result = guarded(|| {
                let model = stage.of(load(&proto)?)?;
                let fact = model.output_fact(0)?.clone();
                Ok((fact, symbols(&model, case), run(model, &inputs)?.remove(0)))
            });
            let verdict = match (&case.expect, result) {
                (Expect::Reject { names, why }, result) => {
                    let words = words(&case.id, why.as_deref()).into_iter().chain(names.iter().map(String::as_str));
                    refused(result, &words.collect::<Vec<_>>())
                }
                (_, Err(failure)) => Err(failure.to_string()),
                (_, Ok((fact, symbols, got))) => {
                    case.check(&got).and_then(|()| fact_holds(case, &fact, &symbols, &got))
                }
            };
            if let Err(message) = verdict {
                wrong.push(format!("{wiring:?} {stage:?}: {message}"));
            }
        }
    }
    wrong
}

fn symbols(model: &TypedModel, case: &Case) -> SymbolValues {
    let mut values = SymbolValues::default();
    for (ax, size) in case.x.shape().iter().enumerate() {
        if let Some(symbol) = model.symbols.get(&format!("D{ax}")) {
            values.set(&symbol, *size as i64);
        }
    }
    values
}

/// Checks that the output fact that tract inferred agrees with the result, as far as the shape was
/// known.
fn fact_holds(case: &Case, fact: &TypedFact, symbols: &SymbolValues, got: &Tensor) -> Result<(), String> {
    if fact.datum_type != got.datum_type() || fact.rank() != got.rank() {
        return Err(format!("the fact {fact:?} for a result {got:?}"));
    }
    for (ax, (dim, size)) in fact.shape.iter().zip(got.shape()).enumerate() {
        let known = dim.eval(symbols).to_usize().ok();
        let may_be_unknown = case.output_shape_at_run_time && ax >= 2;
        if known != Some(*size) && !(known.is_none() && may_be_unknown) {
            return Err(format!("axis {ax} of the output fact is {dim}, {size} came out"));
        }
    }
    Ok(())
}

/// Returns the words of which the error of a refused case must contain one.
fn words(id: &str, why: Option<&str>) -> Vec<&'static str> {
    match (id, why) {
        ("ort_ConvTranspose_InvalidKernelShape", _) => vec!["kernel_shape"],
        ("ort_ConvTranspose_InvalidBiasShape_1" | "ort_ConvTranspose_InvalidBiasShape_2", _) => vec!["bias"],
        ("ort_OutputPaddingExceedsStride" | "ort_InvalidOutputPaddingSize", _) => vec!["output_padding"],
        ("ort_ZeroStride", _) => vec!["strides"],
        ("ort_ZeroDilation", _) => vec!["dilations"],
        ("ort_InvalidInputRank2", _) => vec!["rank"],
        (_, Some("output size < 1")) => vec!["pads"],
        (_, Some("kernel larger than padded input")) => vec!["kernel"],
        _ => vec![],
    }
}

/// Returns the row of the README's table that determines the output's size and the side of the odd
/// position.
fn row(case: &Case) -> (&'static str, &'static str) {
    let auto_pad = auto_pad(case);
    let asks = asks_for_a_size(case);
    match (case.dialect, is_forward(case)) {
        (Dialect::Onnx, _) => (
            "ONNX",
            match (asks, &*auto_pad) {
                (true, "SAME_UPPER") => "`output_shape` with SAME_UPPER",
                (true, _) => "`output_shape` with anything else",
                (false, "SAME_UPPER" | "SAME_LOWER") => "SAME_UPPER, SAME_LOWER",
                (false, "VALID") => "VALID",
                _ => "pads",
            },
        ),
        (Dialect::OpenVino, false) => (
            "OpenVINO, transposed",
            match (asks, &*auto_pad) {
                (true, "SAME_UPPER") => "`output_shape` with same_upper",
                (true, _) => "`output_shape` with anything else",
                (false, "EXPLICIT") => "explicit pads",
                _ => "same or valid",
            },
        ),
        (Dialect::OpenVino, true) => (
            "OpenVINO, forward",
            match &*auto_pad {
                "SAME_UPPER" | "SAME_LOWER" => "same_upper, same_lower",
                _ => "explicit pads or valid",
            },
        ),
        (Dialect::OneDnn, _) => (
            "oneDNN",
            match &*auto_pad {
                "SAME_UPPER" | "SAME_LOWER" => "SAME_UPPER, SAME_LOWER",
                "VALID" => "VALID",
                _ => "pads",
            },
        ),
    }
}

fn auto_pad(case: &Case) -> String {
    case.attributes.get("auto_pad").and_then(|value| value.as_str()).unwrap_or_default().to_uppercase()
}

fn asks_for_a_size(case: &Case) -> bool {
    case.output_shape.is_some() || case.attributes.contains_key("output_shape")
}

fn is_forward(case: &Case) -> bool {
    !case.op.ends_with("BackpropData") && case.dialect == Dialect::OpenVino
}

fn list(case: &Case, name: &str, default: usize) -> Vec<usize> {
    let sizes = |value: &serde_json::Value| value.as_array()?.iter().map(|v| v.as_u64().map(|v| v as usize)).collect();
    case.attributes.get(name).and_then(sizes).unwrap_or_else(|| vec![default; case.x.rank() - 2])
}

/// Returns whether an odd number of positions is cropped on some axis, or padded for a forward
/// operator. The two sides then differ.
fn has_an_odd_element(case: &Case) -> bool {
    let Expect::Values(y) = &case.expect else { return false };
    let rank = case.x.rank() - 2;
    let first = |format: &str| if format == "NXC" { 1 } else { 2 };
    let text = |name: &str| case.attributes.get(name).and_then(|value| value.as_str()).unwrap_or_default();
    let x = first(text("data_format"));
    let k = if text("filter_format").starts_with('X') { 0 } else { case.w.rank() - rank };
    let (strides, dilations) = (list(case, "strides", 1), list(case, "dilations", 1));
    let paddings = list(case, "output_padding", 0);
    let same = auto_pad(case).starts_with("SAME");
    (0..rank).any(|ax| {
        let (size, out, stride) = (case.x.shape()[x + ax], y.shape()[x + ax], strides[ax]);
        let reach = (case.w.shape()[k + ax] - 1) * dilations[ax] + 1;
        let cut = match case.dialect {
            Dialect::OneDnn => reach.saturating_sub(stride),
            _ if is_forward(case) => ((out - 1) * stride + reach).saturating_sub(size),
            _ => (stride * (size - 1) + reach + paddings[ax]).saturating_sub(out),
        };
        (same || asks_for_a_size(case)) && cut % 2 == 1
    })
}

/// Checks that the cases cover the README's table.
///
/// Every row must have cases with each word that it names, and with odd positions if it tells their
/// side. Each dialect must have all other variations that make a difference.
fn the_readme_s_table_is_covered(cases: &[Case]) -> Result<(), Failed> {
    let readme = include_str!("../README.md");
    let (_, table) = readme.split_once("| operator | padding | output size | odd element |").ok_or("no table")?;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let (mut operator, mut missing, mut seen) = (String::new(), vec![], 0);
    for line in rows {
        let columns: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [named, padding, _, odd] = columns[..] else { return Err(format!("other columns: {line}").into()) };
        if !named.is_empty() {
            operator = named.to_string();
        }
        let of_row: Vec<&Case> = cases.iter().filter(|case| row(case) == (&operator, padding)).collect();
        seen += of_row.len();
        if of_row.len() < 5 {
            missing.push(format!("{operator}, {padding}: {} cases", of_row.len()));
        }
        let words: Vec<String> = padding
            .split(", ")
            .filter(|word| word.contains("same_") || word.contains("SAME_"))
            .map(str::to_uppercase)
            .collect();
        for word in words.iter().filter(|_| odd.contains(',')) {
            if !of_row.iter().any(|case| auto_pad(case) == *word && has_an_odd_element(case)) {
                missing.push(format!("{operator}, {padding}: no odd element with {word}"));
            }
        }
        if !odd.is_empty() && !of_row.iter().any(|case| has_an_odd_element(case)) {
            missing.push(format!("{operator}, {padding}: no odd element"));
        }
    }
    if seen != cases.len() {
        missing.push(format!("the table has rows for {seen} of {} cases", cases.len()));
    }
    for dialect in [Dialect::Onnx, Dialect::OpenVino, Dialect::OneDnn] {
        let mut need = |what: &str, holds: &dyn Fn(&Case) -> bool| {
            if !cases.iter().any(|case| case.dialect == dialect && holds(case)) {
                missing.push(format!("{dialect:?}: {what}"));
            }
        };
        let accepted = |case: &Case| !matches!(case.expect, Expect::Reject { .. });
        for (name, above) in [("strides", 1), ("dilations", 1), ("output_padding", 0)] {
            need(name, &|case| accepted(case) && list(case, name, 0).iter().any(|v| *v > above));
        }
        need("refusals", &|case| !accepted(case));
        for rank in 1..=3 {
            need(&format!("{rank} spatial axes"), &|case| accepted(case) && case.x.rank() == rank + 2);
        }
        let types: &[DatumType] = match dialect {
            Dialect::Onnx => &[f16::datum_type(), f32::datum_type(), f64::datum_type()],
            Dialect::OneDnn => &[f16::datum_type(), f32::datum_type()],
            Dialect::OpenVino => {
                use DatumType::*;
                &[F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64]
            }
        };
        for datum_type in types {
            need(&format!("{datum_type:?}"), &|case| accepted(case) && case.x.datum_type() == *datum_type);
        }
        match dialect {
            Dialect::Onnx => {
                need("groups", &|case| {
                    accepted(case) && case.attributes.get("group").and_then(|g| g.as_i64()) > Some(1)
                });
                for opset in [1, 11, 22] {
                    need(&format!("opset {opset}"), &|case| accepted(case) && case.opset == opset);
                }
            }
            Dialect::OpenVino => {
                for op in ["GroupConvolutionBackpropData", "GroupConvolution"] {
                    need(&format!("{op} with groups"), &|case| {
                        accepted(case) && case.op == op && case.w.shape()[0] > 1
                    });
                }
                for op in ["ConvolutionBackpropData", "Convolution"] {
                    need(op, &|case| accepted(case) && case.op == op);
                }
                need("an output shape at run time", &|case| accepted(case) && case.output_shape_at_run_time);
            }
            Dialect::OneDnn => {
                for filter in ["XIO", "OIX", "XOI", "IOX"] {
                    for data in ["NCX", "NXC"] {
                        need(&format!("{filter} on {data} with groups"), &|case| {
                            let is = |name: &str, word: &str| case.attributes.get(name).is_some_and(|v| v == word);
                            let groups = case.attributes.get("groups").and_then(|g| g.as_i64());
                            accepted(case) && is("filter_format", filter) && is("data_format", data) && groups > Some(1)
                        });
                    }
                }
            }
        }
        if dialect != Dialect::OpenVino {
            need("a bias", &|case| accepted(case) && case.b.is_some());
            need("no bias", &|case| accepted(case) && case.b.is_none());
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n").into()) }
}
