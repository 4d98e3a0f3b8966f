//! Instruction sets that kernels are instantiated for.

use std::fmt;

/// An instruction set. As part of a plan it is only a name: the kernels check for themselves that the CPU has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust on arrays, whatever the target's baseline makes of it.
    Portable,
    /// 128-bit vectors of aarch64.
    Neon,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// The same, and tile registers for products of matrices, on Linux.
    Amx,
}

impl Isa {
    /// Every instruction set, best last.
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f") && Isa::Avx2.is_available(),
            Isa::Amx => Isa::Avx512.is_available() && super::matrix::is_available(),
            _ => false,
        }
    }

    /// Whether this build has kernels for it, whatever CPU it runs on: those of other architectures are left out.
    pub fn is_compiled(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            Isa::Avx2 | Isa::Avx512 => cfg!(target_arch = "x86_64"),
            Isa::Amx => cfg!(all(target_arch = "x86_64", target_os = "linux")),
        }
    }

    /// The best one this CPU has.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// Its name, as used by the knob `TRACT_DECONV_ISA` and in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
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
