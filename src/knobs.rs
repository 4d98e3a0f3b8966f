//! Settings of the process: which strategy, which instruction set and how much memory plans may use.

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
    scopable TRACT_DECONV_MACHINE,
    Option<String>,
    None,
    "Plan by this machine's rates and cache sizes instead of those of the CPU at hand: zen4, sapphire_rapids or generic. The \
     instruction set stays this CPU's."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_TUNING,
    Option<String>,
    None,
    "How plans are chosen: estimated (if unset), or measured, which times the cheapest candidates of each layer."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_TUNING_FILE,
    Option<String>,
    None,
    "The file that measured choices are read from and written to, so that later processes plan the same. Without it they \
     last as long as the process."
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
