//! The instruction sets for which kernels are instantiated.

use crate::simd::tile_registers;
use std::fmt;
use tract_core::internal::*;

/// An instruction set.
///
/// In a plan it is only a name: the kernels check for themselves that the CPU has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust on arrays, compiled for the target's baseline.
    Portable,
    /// 128-bit vectors of WebAssembly, in a module that is built for them.
    Simd128,
    /// 128-bit vectors of aarch64.
    Neon,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// As [`Isa::Avx512`], with tile registers for matrix products. Linux only.
    Amx,
}

impl Isa {
    /// Every instruction set, best last.
    pub const ALL: &[Isa] = &[Isa::Portable, Isa::Simd128, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// Whether this CPU has it and the system lets programs use it.
    ///
    /// A WebAssembly module can't ask: an engine without [`Isa::Simd128`] refuses to load a module
    /// that was built for it.
    ///
    /// For [`Isa::Amx`] a process must also request permission. This happens when a plan uses it,
    /// not here.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Simd128 => self.is_compiled(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f") && Isa::Avx2.is_available(),
            Isa::Amx => Isa::Avx512.is_available() && tile_registers::are_available(),
            _ => false,
        }
    }

    /// Whether this build has kernels for it, whatever CPU it runs on. Kernels of other
    /// architectures are not compiled.
    pub fn is_compiled(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Simd128 => cfg!(all(target_arch = "wasm32", target_feature = "simd128")),
            Isa::Neon => cfg!(target_arch = "aarch64"),
            Isa::Avx2 | Isa::Avx512 => cfg!(target_arch = "x86_64"),
            Isa::Amx => cfg!(all(target_arch = "x86_64", target_os = "linux")),
        }
    }

    /// The instruction set, or the portable one if this CPU lacks it.
    pub(crate) fn available_or_portable(self) -> Isa {
        if self.is_available() { self } else { Isa::Portable }
    }

    /// The best one that this CPU has.
    pub fn best() -> Isa {
        Isa::ALL.iter().copied().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// The instruction set of a plan: the wanted one, or else the best one.
    ///
    /// If that is [`Isa::Amx`], this requests tile registers from the system, for the whole
    /// process.
    ///
    /// # Errors
    /// The CPU lacks the wanted one, or the system refuses it.
    pub(crate) fn of_plan(wanted: Option<Isa>) -> TractResult<Isa> {
        match wanted.unwrap_or_else(Isa::best) {
            Isa::Amx if Isa::Amx.is_available() && !tile_registers::are_permitted() => {
                ensure!(wanted.is_none(), "isa: isa=amx, the system refuses its tile registers to this process");
                Ok(Isa::Avx512)
            }
            isa => {
                ensure!(isa.is_available(), "isa: isa={isa}, this cpu does not have it");
                Ok(isa)
            }
        }
    }

    /// The instruction set with the given name.
    ///
    /// # Errors
    /// An unknown name. The message lists the known ones.
    pub fn from_name(name: &str) -> TractResult<Isa> {
        Isa::ALL.iter().copied().find(|isa| isa.name() == name).with_context(|| {
            let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
            format!("isa: isa={name}, the known ones are {}", known.join(", "))
        })
    }

    /// Its name, as used by the knob `TRACT_DECONV_ISA` and in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Simd128 => "simd128",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}
