//! The cases of the conformance folder, computed by other runtimes: each becomes a model, is loaded and run.
//!
//! `TRACT_DECONV_CONFORMANCE` names the folder; without it, `../shared/conformance` is taken. Where neither is there, the
//! test says so and checks nothing.

mod common;

use common::case::{self, Case, Dialect, Expect, Wiring};
use common::run::{Stage, guarded, load, refused, run};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tract_core::internal::*;

/// Past the capture of `print!`: what was and was not checked is part of the run's record.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[derive(Default)]
struct Count {
    passed: usize,
    failed: usize,
}

#[test]
fn every_case() {
    let Some(folder) = case::folder() else {
        return say(
            "conformance: the folder of cases is absent (see TRACT_DECONV_CONFORMANCE), so nothing was checked",
        );
    };
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no case file in {}", folder.display());
    let mut cases = vec![];
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().to_string();
        let read = Case::read(file).unwrap_or_else(|e| panic!("{name}: {e}"));
        cases.extend(read.into_iter().map(|case| (name.clone(), case)));
    }

    let counts: Mutex<BTreeMap<(&str, Dialect), Count>> = Mutex::default();
    let failures: Mutex<BTreeMap<usize, String>> = Mutex::default();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some((ix, (file, case))) = {
                    let ix = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(ix).map(|case| (ix, case))
                } {
                    let wrong = check(case, ix);
                    let mut counts = counts.lock().expect("no other thread panicked");
                    let count = counts.entry((file, case.dialect)).or_default();
                    if wrong.is_empty() {
                        count.passed += 1;
                    } else {
                        count.failed += 1;
                        let line = format!("{file} {}: {}", case.id, wrong.join("\n    "));
                        failures.lock().expect("no other thread panicked").insert(ix, line);
                    }
                }
            });
        }
    });

    let mut table = String::new();
    let (mut passed, mut failed) = (0, 0);
    for ((file, dialect), Count { passed: right, failed: wrong }) in &*counts.lock().expect("the threads are done") {
        let dialect = format!("{dialect:?}").to_lowercase();
        let _ = writeln!(table, "  {file:<30} {dialect:<9} {right:>4} passed {wrong:>4} failed");
        (passed, failed) = (passed + right, failed + wrong);
    }
    say("conformance cases, each constant, with run-time weights, and symbolic; typed, decluttered and optimised:");
    say(&format!("{table}  all: {passed} passed, {failed} failed"));
    assert_eq!(passed + failed, cases.len(), "every case is counted");
    let failures = failures.into_inner().expect("the threads are done");
    if !failures.is_empty() {
        let lines: Vec<String> = failures.into_values().collect();
        panic!("{} cases failed:\n{}", lines.len(), lines.join("\n"));
    }
}

/// What is wrong with a case, in each wiring and stage.
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
                (Expect::Reject { why }, result) => refused(result, &words(&case.id, why.as_deref())),
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

/// The output fact that tract computed ahead must be what came out, wherever the shape could be known.
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

/// What the error of a case to be rejected must name.
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
