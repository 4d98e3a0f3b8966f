//! Environment variables that set how convolutions are planned and run.
//!
//! [`Options`](crate::Options) sets the same in code, and takes precedence.

tract_core::declare_knob!(
    scopable TRACT_DECONV_STRATEGY,
    Option<String>,
    None,
    "Name of the only convolution strategy to use, as `explain` prints it. Planning fails where it declines."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_ISA,
    Option<String>,
    None,
    "The only instruction set to use in convolutions: portable, simd128, neon, avx2, avx512 or amx. Planning fails where the \
     CPU lacks it."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_MACHINE,
    Option<String>,
    None,
    "Plan by this machine's rates and cache sizes instead of those of the CPU at hand: zen3, zen4, sapphire_rapids, \
     granite_rapids, emerald_rapids, xeon, cortex_a55, neoverse_n1, wasm or generic. The instruction set stays this CPU's."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_LOCAL_ACCURACY,
    Option<String>,
    None,
    "With 1, the error of a result depends on the inputs of its own taps only: dense layers take no tiles of more than two \
     results along an axis."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_TRANSFORMED_BYTES,
    Option<String>,
    None,
    "Most bytes of a filter's weights that are transformed when it is packed, for layers in tiles of fewer products. 32 MiB \
     if unset. Every run transforms the weights of larger filters again."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_PRECISION,
    Option<String>,
    None,
    "What the operands of products in f32 and f16 layers are rounded to: exact (if unset), bf16 or f16. Layers without \
     kernels for it stay exact, and `explain` says why."
);

tract_core::declare_knob!(
    scopable TRACT_DECONV_EXACT_NODES,
    Option<String>,
    None,
    "Patterns of the names of nodes that stay exact whatever the precision, with commas between them. An asterisk stands for \
     any characters. Read where a node is loaded or transformed."
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
    "Most bytes of a convolution's output, and of the working memory that a thread takes for it. 16 GiB if unset. A \
     model that needs more is refused."
);

tract_core::declare_knob!(
    TRACT_DECONV_SHARE_FROM,
    Option<usize>,
    None,
    "Least estimated cost, as `explain` prints it, of a layer that the threads of tract's executor share. This crate \
     decides if unset. Read once per process, unless `set_share_from` was called. A value that is not a number counts \
     as unset."
);

tract_core::declare_knob!(
    TRACT_DECONV_SPIN_US,
    Option<usize>,
    None,
    "How many microseconds a thread that has helped with a layer spins for the next one. 200 if unset; with 0 no \
     thread spins. Read once per process, unless `set_spin_time` was called. A value that is not a number counts as unset."
);

tract_core::declare_knob!(
    TRACT_DECONV_POOL_BYTES,
    Option<usize>,
    None,
    "Most bytes of unused blocks that the pool keeps for later outputs of convolutions. 256 MiB if unset; 0 keeps \
     none. Read once per process. A value that is not a number counts as unset."
);
