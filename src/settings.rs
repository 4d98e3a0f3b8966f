//! Completes a program's planning options from the knobs.

use crate::algorithm::Strategy;
use crate::estimate::machine::Machine;
use crate::knobs::{
    TRACT_DECONV_EXACT_NODES, TRACT_DECONV_ISA, TRACT_DECONV_LOCAL_ACCURACY, TRACT_DECONV_MACHINE,
    TRACT_DECONV_MEMORY_LIMIT, TRACT_DECONV_PRECISION, TRACT_DECONV_STRATEGY, TRACT_DECONV_TRANSFORMED_BYTES,
    TRACT_DECONV_TUNING, TRACT_DECONV_TUNING_FILE,
};
use crate::plan::{PlanOptions, Tuning};
use crate::precision::{self, Precision};
use crate::simd::isa::Isa;
use tract_core::internal::*;

/// Returns the options, with those that are `None` taken from the knobs.
///
/// # Errors
/// A knob whose value is an unknown name, or no number.
pub(crate) fn complete(options: &PlanOptions) -> TractResult<PlanOptions> {
    let mut options = options.clone();
    if options.strategy.is_none()
        && let Some(name) = set(&TRACT_DECONV_STRATEGY)
    {
        options.strategy = Some(Strategy::from_name(&name).context("knob: TRACT_DECONV_STRATEGY")?);
    }
    if options.isa.is_none()
        && let Some(name) = set(&TRACT_DECONV_ISA)
    {
        options.isa = Some(Isa::from_name(&name).context("knob: TRACT_DECONV_ISA")?);
    }
    if options.machine.is_none()
        && let Some(name) = set(&TRACT_DECONV_MACHINE)
    {
        let row = Machine::from_name(&name).context("knob: TRACT_DECONV_MACHINE")?;
        options.machine = Some(row.with_instruction_set(Isa::of_plan(options.isa)?));
    }
    if let Some(value) = set(&TRACT_DECONV_LOCAL_ACCURACY) {
        let known = match value.as_str() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        let wanted = known.with_context(|| format!("local accuracy: value={value}, 0 or 1 is needed"));
        options.local_accuracy |= wanted.context("knob: TRACT_DECONV_LOCAL_ACCURACY")?;
    }
    if options.transformed_bytes.is_none()
        && let Some(bytes) = set(&TRACT_DECONV_TRANSFORMED_BYTES)
    {
        let most = bytes.parse().ok().with_context(|| format!("transformed bytes: bytes={bytes}, a number is needed"));
        options.transformed_bytes = Some(most.context("knob: TRACT_DECONV_TRANSFORMED_BYTES")?);
    }
    if options.precision.is_none()
        && let Some(name) = set(&TRACT_DECONV_PRECISION)
    {
        options.precision = Some(Precision::from_name(&name).context("knob: TRACT_DECONV_PRECISION")?);
    }
    if options.tuning.is_none()
        && let Some(name) = set(&TRACT_DECONV_TUNING)
    {
        options.tuning = Some(Tuning::from_name(&name).context("knob: TRACT_DECONV_TUNING")?);
    }
    if options.tuning_file.is_none() {
        let path = TRACT_DECONV_TUNING_FILE.get().filter(|path| !path.is_empty());
        options.tuning_file = path.map(Into::into);
    }
    if options.memory_limit.is_none()
        && let Some(bytes) = set(&TRACT_DECONV_MEMORY_LIMIT)
    {
        let limit = bytes.parse().ok().with_context(|| format!("memory limit: bytes={bytes}, a number is needed"));
        options.memory_limit = Some(limit.context("knob: TRACT_DECONV_MEMORY_LIMIT")?);
    }
    Ok(options)
}

/// Returns the options of a node, completed as [`complete`] does. The node stays exact if one of the
/// patterns or of those in the knob has its name.
///
/// # Errors
/// As [`complete`].
pub(crate) fn complete_for(options: &PlanOptions, patterns: &[String], name: &str) -> TractResult<PlanOptions> {
    let more = TRACT_DECONV_EXACT_NODES.get().unwrap_or_default();
    let more = more.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
    let kept = patterns.iter().map(String::as_str).chain(more).find(|pattern| precision::matches(pattern, name));
    Ok(PlanOptions { kept_exact_by: kept.map(String::from), ..complete(options)? })
}

/// The trimmed value of a knob in lower case, if it is set and not empty.
fn set(knob: &tract_core::knobs::Knob<Option<String>>) -> Option<String> {
    knob.get().map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tract_core::knobs::KnobScope;

    #[test]
    fn knobs_fill_what_options_leave_open() -> TractResult<()> {
        let scope = KnobScope::new([
            ("TRACT_DECONV_STRATEGY", "Reference"),
            ("TRACT_DECONV_ISA", "portable"),
            ("TRACT_DECONV_MACHINE", "Zen4"),
            ("TRACT_DECONV_LOCAL_ACCURACY", "1"),
            ("TRACT_DECONV_TRANSFORMED_BYTES", "4097"),
            ("TRACT_DECONV_PRECISION", "BF16"),
            ("TRACT_DECONV_TUNING", "measured"),
            ("TRACT_DECONV_TUNING_FILE", "/Choices of Layers"),
            ("TRACT_DECONV_MEMORY_LIMIT", "4096"),
        ])?;
        let open = scope.enter(|| complete(&PlanOptions::default()))?;
        assert_eq!((open.strategy, open.isa), (Some(Strategy::Reference), Some(Isa::Portable)));
        assert_eq!(open.machine, Some(Machine::ZEN4.with_instruction_set(Isa::Portable)));
        assert!(open.local_accuracy && !complete(&PlanOptions::default())?.local_accuracy);
        assert_eq!(open.precision, Some(Precision::Bf16));
        let exact = PlanOptions::default().with_precision(Precision::Exact);
        assert_eq!(scope.enter(|| complete(&exact))?.precision, Some(Precision::Exact));
        assert_eq!(open.tuning, Some(Tuning::Measured));
        assert_eq!(open.tuning_file.as_deref(), Some(Path::new("/Choices of Layers")));
        assert_eq!((open.memory_limit, open.transformed_bytes), (Some(4096), Some(4097)));
        let best = Isa::best();
        let taken = PlanOptions { isa: Some(best), ..PlanOptions::default() };
        assert_eq!(scope.enter(|| complete(&taken))?.isa, Some(best));
        Ok(())
    }

    #[test]
    fn nodes_stay_exact_by_name() -> TractResult<()> {
        let scope = KnobScope::new([("TRACT_DECONV_EXACT_NODES", "head*, ,last")])?;
        let options = PlanOptions::default().with_precision(Precision::Bf16);
        let kept = |name: &str| complete_for(&options, &["stem".to_string()], name).map(|kept| kept.kept_exact_by);
        for (name, pattern) in [("stem", Some("stem")), ("head.1", Some("head*")), ("last", Some("last")), ("", None)] {
            assert_eq!(scope.enter(|| kept(name))?.as_deref(), pattern, "{name}");
        }
        assert_eq!(kept("last")?, None, "outside of the knob's scope");
        Ok(())
    }

    #[test]
    fn a_bad_value_is_an_error() -> TractResult<()> {
        for (knob, expected) in [
            ("TRACT_DECONV_STRATEGY", "strategy=fastest, the known ones are"),
            ("TRACT_DECONV_ISA", "isa=fastest, the known ones are portable, simd128, neon, avx2, avx512"),
            (
                "TRACT_DECONV_MACHINE",
                "machine=fastest, the known ones are zen3, zen4, sapphire_rapids, granite_rapids, emerald_rapids, xeon, \
                 cortex_a55, neoverse_n1, wasm, generic",
            ),
            ("TRACT_DECONV_LOCAL_ACCURACY", "local accuracy: value=fastest, 0 or 1 is needed"),
            ("TRACT_DECONV_PRECISION", "precision=fastest, the known ones are exact, bf16, f16"),
            ("TRACT_DECONV_TUNING", "tuning=fastest, the known ones are estimated, measured"),
            ("TRACT_DECONV_MEMORY_LIMIT", "memory limit: bytes=fastest, a number is needed"),
            ("TRACT_DECONV_TRANSFORMED_BYTES", "transformed bytes: bytes=fastest, a number is needed"),
        ] {
            let scope = KnobScope::new([(knob, "fastest")])?;
            let error = format!("{:#}", scope.enter(|| complete(&PlanOptions::default())).expect_err(expected));
            assert!(error.contains(expected) && error.contains(knob), "{error}");
        }
        Ok(())
    }
}
