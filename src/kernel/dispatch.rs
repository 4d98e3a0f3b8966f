//! The choice of the kernels of an instruction set and compute type.

use crate::compute::Compute;
use crate::kernel::amx;
use crate::kernel::amx::MatrixKernels;
use crate::kernel::instances::*;
use crate::kernel::kernels::Kernels;
use crate::kernel::sizes::KernelSizes;
use crate::memory::scratch::{self, Scratch};
use crate::simd::isa::Isa;
use tract_core::internal::DatumType;

/// Scratch memory of one type, lent for the duration of a task.
macro_rules! scratch_of_type {
    ($t:ty, $pool:ident) => {
        fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch<$t>) -> R) -> R {
            scratch::$pool.lend(use_it)
        }
    };
}

/// Compute types that have kernels.
pub(crate) trait Dispatch: Compute {
    /// The kernels of an instruction set, or the portable ones if the CPU lacks it or it has no
    /// kernels for this type.
    fn kernels(isa: Isa) -> &'static Kernels<Self>;

    /// The sizes of the kernels compiled for an instruction set, whether or not the CPU has it, or
    /// those of the portable ones if there are none.
    fn sizes(isa: Isa) -> KernelSizes;

    /// The kernels that use tile registers, if the CPU has them and they exist for this type.
    fn matrix_kernels(_isa: Isa) -> Option<&'static MatrixKernels<Self>> {
        None
    }

    /// Lends scratch memory.
    fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch<Self>) -> R) -> R;
}

impl Dispatch for f32 {
    scratch_of_type!(f32, F32);

    fn kernels(isa: Isa) -> &'static Kernels<f32> {
        if isa.is_available() { compiled_f32(isa) } else { &portable_f32::KERNELS }
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_f32(isa))
    }

    fn matrix_kernels(isa: Isa) -> Option<&'static MatrixKernels<f32>> {
        if isa == Isa::Amx { amx::kernels() } else { None }
    }
}

impl Dispatch for f64 {
    scratch_of_type!(f64, F64);

    fn kernels(isa: Isa) -> &'static Kernels<f64> {
        if isa.is_available() { compiled_f64(isa) } else { &portable_f64::KERNELS }
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_f64(isa))
    }
}

/// The kernels of an instruction set that the CPU may lack.
///
/// They may only be inspected here. They must not be handed out, because a reference to them is
/// proof that the CPU has the instruction set.
fn compiled_f32(isa: Isa) -> &'static Kernels<f32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => &avx512_f32::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_f32::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_f32::KERNELS,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Isa::Simd128 => &simd128_f32::KERNELS,
        _ => &portable_f32::KERNELS,
    }
}

/// See [`compiled_f32`].
fn compiled_f64(isa: Isa) -> &'static Kernels<f64> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => &avx512_f64::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_f64::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_f64::KERNELS,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Isa::Simd128 => &simd128_f64::KERNELS,
        _ => &portable_f64::KERNELS,
    }
}

impl Dispatch for i64 {
    scratch_of_type!(i64, I64);

    fn kernels(_isa: Isa) -> &'static Kernels<i64> {
        &portable_i64::KERNELS
    }

    fn sizes(_isa: Isa) -> KernelSizes {
        KernelSizes::of(&portable_i64::KERNELS)
    }
}

impl KernelSizes {
    /// The kernel sizes for the compute type of `datum_type`.
    pub fn new(datum_type: DatumType, isa: Isa) -> KernelSizes {
        match datum_type {
            DatumType::F32 | DatumType::F16 => f32::sizes(isa),
            DatumType::F64 => f64::sizes(isa),
            _ => i64::sizes(isa),
        }
    }

    pub(crate) fn of<T: Compute>(kernels: &Kernels<T>) -> KernelSizes {
        KernelSizes {
            lanes: kernels.lanes,
            masks: kernels.masks,
            permutes_lanes: kernels.permutes_lanes,
            position_tiles: kernels.position_tiles.iter().map(|t| (t.mr(), t.nv())).collect(),
            row_tiles: [1, 2, 4].map(|phases| kernels.row_tiles(phases).iter().map(|t| (t.mr(), t.nv())).collect()),
            channel_tiles: kernels.channel_tiles.iter().map(|t| (t.positions(), t.nv())).collect(),
        }
    }
}
