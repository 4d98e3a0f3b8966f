//! Settings of the process: which strategy, which instruction set and how much memory plans may use.

use crate::algorithm::Strategy;
use crate::plan::PlanOptions;
use crate::simd::isa::Isa;
use tract_core::internal::*;

tract_core::declare_knob!(
    scopable TRACT_DECONV_STRATEGY,
    Option<String>,
    None,
    "Only this deconvolution strategy, by the name that `explain` shows. Planning fails where it declines."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_ISA,
    Option<String>,
    None,
    "Only this instruction set in deconvolutions: portable, neon, avx2, avx512 or amx. Planning fails where the CPU lacks it."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_MEMORY_LIMIT,
    Option<String>,
    None,
    "Most bytes of a deconvolution's output, and of the working memory that a thread takes for it: 16 GiB if unset. A \
     model that needs more is refused."
);

tract_core::declare_knob!(
    TRACT_DECONV_SHARE_FROM,
    Option<usize>,
    None,
    "Estimated cost, as `explain` has it, from which on the threads of tract's executor share a layer; measured if unset. \
     Read once a process, unless `set_share_from` was called; what is no number counts as unset."
);

tract_core::declare_knob!(
    TRACT_DECONV_SPIN_US,
    Option<usize>,
    None,
    "Microseconds for which a thread that has helped with a layer spins, waiting for the next one: 200 if unset, and with 0 \
     no thread spins. Read once a process, unless `set_spin_time` was called; what is no number counts as unset."
);

tract_core::declare_knob!(
    TRACT_DECONV_POOL_BYTES,
    Option<usize>,
    None,
    "Most bytes of blocks that are kept for outputs of deconvolutions to come: 256 MiB if unset, and 0 keeps none. Read once \
     a process; what is no number counts as unset."
);

/// The instruction set of a name.
///
/// # Errors
/// An unknown name; the message lists the known ones.
pub(crate) fn isa_from_name(name: &str) -> TractResult<Isa> {
    Isa::ALL.iter().copied().find(|isa| isa.name() == name).with_context(|| {
        let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
        format!("isa: isa={name}, the known ones are {}", known.join(", "))
    })
}

/// The given options; what they leave open is taken from the knobs.
///
/// # Errors
/// A knob with an unknown name for a value.
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
        options.isa = Some(isa_from_name(&name).context("knob: TRACT_DECONV_ISA")?);
    }
    if options.memory_limit.is_none()
        && let Some(bytes) = set(&TRACT_DECONV_MEMORY_LIMIT)
    {
        let limit = bytes.parse().ok().with_context(|| format!("memory limit: bytes={bytes}, a number is needed"));
        options.memory_limit = Some(limit.context("knob: TRACT_DECONV_MEMORY_LIMIT")?);
    }
    Ok(options)
}

fn set(knob: &tract_core::knobs::Knob<Option<String>>) -> Option<String> {
    knob.get().map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_core::knobs::KnobScope;

    #[test]
    fn knobs_fill_what_options_leave_open() -> TractResult<()> {
        let scope = KnobScope::new([
            ("TRACT_DECONV_STRATEGY", "Reference"),
            ("TRACT_DECONV_ISA", "portable"),
            ("TRACT_DECONV_MEMORY_LIMIT", "4096"),
        ])?;
        let open = scope.enter(|| complete(&PlanOptions::default()))?;
        assert_eq!((open.strategy, open.isa), (Some(Strategy::Reference), Some(Isa::Portable)));
        assert_eq!(open.memory_limit, Some(4096));
        let taken = PlanOptions { isa: Some(Isa::Avx2), ..PlanOptions::default() };
        assert_eq!(scope.enter(|| complete(&taken))?.isa, Some(Isa::Avx2));
        Ok(())
    }

    #[test]
    fn a_bad_value_is_an_error() -> TractResult<()> {
        for (knob, expected) in [
            ("TRACT_DECONV_STRATEGY", "strategy=fastest, the known ones are"),
            ("TRACT_DECONV_ISA", "isa=fastest, the known ones are portable, neon, avx2, avx512"),
            ("TRACT_DECONV_MEMORY_LIMIT", "memory limit: bytes=fastest, a number is needed"),
        ] {
            let scope = KnobScope::new([(knob, "fastest")])?;
            let error = format!("{:#}", scope.enter(|| complete(&PlanOptions::default())).expect_err(expected));
            assert!(error.contains(expected) && error.contains(knob), "{error}");
        }
        Ok(())
    }
}
