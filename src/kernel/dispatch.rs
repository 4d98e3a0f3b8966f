//! The choice of the kernels of an instruction set and compute type.

use crate::compute::{Compute, F64, Grouped, INTEGERS, Pair, QUANTISED, Quad};
use crate::kernel::RowTile;
use crate::kernel::instances::*;
use crate::kernel::kernels::Kernels;
use crate::kernel::matrix;
use crate::kernel::matrix::{MatrixKernels, PlaneKernels};
use crate::kernel::sizes::KernelSizes;
use crate::memory::scratch::{self, Scratch};
use crate::precision::Precision;
use crate::simd::isa::Isa;
use tract_core::internal::DatumType;

/// Whether the kernels without vectors are in a program whose target always has those of simd128 or NEON.
#[cfg(any(
    all(target_arch = "wasm32", target_feature = "simd128"),
    all(target_arch = "aarch64", target_feature = "neon")
))]
const PORTABLE: bool = cfg!(feature = "portable");

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

    /// The kernels of matrix products of limbs, if the CPU has them and they exist for this type.
    fn matrix_kernels(_isa: Isa) -> Option<&'static MatrixKernels<Self>> {
        None
    }

    /// The kernels of matrix products of planes, if the CPU has them and they exist for this type.
    fn plane_kernels(_isa: Isa) -> Option<&'static PlaneKernels<Self>> {
        None
    }

    /// The kernels that split weights into limbs of a precision, if this CPU has any that multiply them.
    fn kernels_of_limbs(_precision: Precision) -> Option<&'static MatrixKernels<Self>> {
        Self::matrix_kernels(Isa::Amx)
    }

    /// Returns how many limbs hold weights in matrix products. None if those can't multiply them.
    fn limbs_needed(_precision: Precision, _weights: &[Self]) -> Option<usize> {
        None
    }

    /// Lends scratch memory.
    fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch<Self>) -> R) -> R;
}

impl Dispatch for f32 {
    scratch_of_type!(f32, F32);

    fn kernels(isa: Isa) -> &'static Kernels<f32> {
        compiled_f32(isa.available_or_portable())
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_f32(isa))
    }

    fn matrix_kernels(isa: Isa) -> Option<&'static MatrixKernels<f32>> {
        if isa == Isa::Amx { matrix::kernels_of_f32() } else { matrix::rounded_kernels(isa) }
    }

    fn plane_kernels(isa: Isa) -> Option<&'static PlaneKernels<f32>> {
        if isa == Isa::Amx { matrix::plane_kernels_of_f32() } else { matrix::rounded_plane_kernels(isa) }
    }

    fn kernels_of_limbs(precision: Precision) -> Option<&'static MatrixKernels<f32>> {
        // Those of vectors first, as they don't request tile registers.
        let of_vectors =
            Isa::ALL.iter().filter(|_| precision == Precision::Bf16).find_map(|isa| matrix::rounded_kernels(*isa));
        of_vectors.or_else(matrix::kernels_of_f32)
    }

    fn limbs_needed(precision: Precision, weights: &[f32]) -> Option<usize> {
        matrix::limbs_needed(precision, weights)
    }
}

impl Dispatch for f64 {
    scratch_of_type!(f64, F64);

    fn kernels(isa: Isa) -> &'static Kernels<f64> {
        compiled_f64(isa.available_or_portable())
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
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        _ if !PORTABLE => &neon_f32::KERNELS,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        isa if isa == Isa::Simd128 || !PORTABLE => &simd128_f32::KERNELS,
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
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        _ if !PORTABLE => &neon_f64::KERNELS,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        isa if isa == Isa::Simd128 || !PORTABLE => &simd128_f64::KERNELS,
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

impl Dispatch for Pair {
    scratch_of_type!(Pair, PAIR);

    fn kernels(isa: Isa) -> &'static Kernels<Pair> {
        compiled_pair(if Grouped::Pairs.is_available(isa) { isa } else { Isa::Portable })
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_pair(isa))
    }
}

impl Dispatch for Quad {
    scratch_of_type!(Quad, QUAD);

    fn kernels(isa: Isa) -> &'static Kernels<Quad> {
        if Grouped::Quads.is_available(isa) { compiled_quad(isa) } else { &portable_quad::KERNELS }
    }

    fn matrix_kernels(isa: Isa) -> Option<&'static MatrixKernels<Quad>> {
        if isa == Isa::Amx { matrix::kernels_of_quads() } else { None }
    }

    fn limbs_needed(_precision: Precision, _weights: &[Quad]) -> Option<usize> {
        Some(1)
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_quad(isa))
    }
}

/// See [`compiled_f32`].
fn compiled_pair(isa: Isa) -> &'static Kernels<Pair> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => &avx512_vnni_pair::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_pair::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_pair::KERNELS,
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        _ if !PORTABLE => &neon_pair::KERNELS,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        isa if isa == Isa::Simd128 || !PORTABLE => &simd128_pair::KERNELS,
        _ => &portable_pair::KERNELS,
    }
}

/// See [`compiled_f32`].
fn compiled_quad(isa: Isa) -> &'static Kernels<Quad> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => &avx512_vnni_quad::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx_vnni_quad::KERNELS,
        _ => &portable_quad::KERNELS,
    }
}

/// Whether the CPU has instructions that multiply four bytes by four bytes and add the products, for
/// the vectors of an instruction set.
fn has_vnni(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni"),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => is_x86_feature_detected!("avxvnni"),
        _ => false,
    }
}

impl Grouped {
    /// Whether this CPU has the kernels for such elements that plans for an instruction set use.
    ///
    /// CPUs that have AVX-512 without VNNI use pairs of AVX2.
    pub fn is_available(self, isa: Isa) -> bool {
        isa.is_available()
            && match (self, isa) {
                (Grouped::Pairs, Isa::Avx512 | Isa::Amx) => has_vnni(isa),
                (Grouped::Pairs, _) => true,
                (Grouped::Quads, Isa::Portable) => true,
                (Grouped::Quads, _) => has_vnni(isa),
            }
    }

    /// Whether such elements are faster than smaller ones, if the kernels for them are available.
    pub fn pays(self, isa: Isa) -> bool {
        self == Grouped::Pairs || has_vnni(isa)
    }
}

impl KernelSizes {
    /// The kernel sizes for the compute type of `datum_type`, or for elements of several integers.
    pub fn new(datum_type: DatumType, grouped: Option<Grouped>, isa: Isa) -> KernelSizes {
        match (grouped, datum_type) {
            (Some(Grouped::Pairs), _) if QUANTISED => Pair::sizes(isa),
            (Some(Grouped::Quads), _) if QUANTISED => Quad::sizes(isa),
            (None, DatumType::F64) if F64 => f64::sizes(isa),
            (None, datum_type) if INTEGERS && !datum_type.is_float() => i64::sizes(isa),
            // plans for types that this build lacks are refused
            _ => f32::sizes(isa),
        }
    }

    pub(crate) fn of<T: Compute>(kernels: &Kernels<T>) -> KernelSizes {
        let row_tiles = [1, 2, 4].map(|phases| kernels.row_tiles(phases).iter());
        let size = |tile: &RowTile<T>| (tile.mr(), tile.nv());
        KernelSizes {
            lanes: kernels.lanes,
            masks: kernels.masks,
            loads_parts: kernels.loads_parts,
            permutes_lanes: kernels.permutes_lanes,
            position_tiles: kernels.position_tiles.iter().map(|t| (t.mr(), t.nv())).collect(),
            row_tiles_together: row_tiles
                .clone()
                .map(|tiles| tiles.filter(|tile| tile.sums_phases_together()).map(size).collect()),
            row_tiles: row_tiles.map(|tiles| tiles.map(size).collect()),
            channel_tiles: kernels.channel_tiles.iter().map(|t| (t.positions(), t.nv())).collect(),
            chained_tiles: {
                let chained = kernels.channel_tiles.iter().filter(|tile| tile.adds_chains());
                chained.map(|t| (t.positions(), t.nv())).collect()
            },
        }
    }
}
