//! Settings of the process: which strategy and which instruction set plans may use.

use crate::kernel::Isa;
use crate::plan::{PlanOptions, Strategy};
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
    "Only this instruction set in deconvolutions: portable, neon, avx2 or avx512. Planning fails where the CPU lacks it."
);

/// The instruction set of a name.
///
/// # Errors
/// An unknown name; the message lists the known ones.
pub(crate) fn isa_from_name(name: &str) -> TractResult<Isa> {
    Isa::ALL.into_iter().find(|isa| isa.name() == name).with_context(|| {
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
    Ok(options)
}

fn set(knob: &tract_core::knobs::Knob<Option<String>>) -> Option<String> {
    knob.get().map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty())
}
