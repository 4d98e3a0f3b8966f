//! Products whose rows are output channels, and whose columns are positions of planes.
//!
//! The weights are the first operand of a product, so a side of them is `[output channel][input channel]`. The data
//! are the second one, so a step reads rows of pairs of input channels: channels-first planes, of which two and two are
//! interleaved. Neither the data nor the results are transposed.

use super::*;

/// Limbs of one position of a pair of planes.
pub(crate) const LIMBS_OF_PAIR: usize = 2;

/// Rows of a step: pairs of planes.
pub(crate) const PAIRS_OF_STEP: usize = depth::<f32>() / LIMBS_OF_PAIR;

type Split<T> = unsafe fn(
    from: [&[T]; 2],
    next: [&[T]; 2],
    to: &mut [<T as Working>::Limb],
    limb_stride: usize,
    limbs: Limbs,
) -> u32;
type Multiply<T> = unsafe fn(
    weights: &[<T as Working>::Limb],
    source: &LimbSource<T>,
    start_and_bounds: (Start<T>, Option<Bounds<T>>),
    rows: &mut [&mut [T]],
);

/// The kernels that multiply planes in tile registers, or in vectors that multiply pairs of bf16.
///
/// A reference to one is proof that the CPU has them and that this process may use them.
pub(crate) struct PlaneKernels<T: Working> {
    are_legal: fn(Limbs) -> bool,
    split: Split<T>,
    multiply: Multiply<T>,
}

impl<T: Compute> PlaneKernels<T> {
    /// Splits a pair of planes into limbs, `[limb][position][plane of the pair]`, and returns the bits of the largest
    /// magnitude, after rounding, or zero if numbers are rounded to bf16. Limbs are `limb_stride` elements apart.
    ///
    /// The second plane may be missing: if it is empty, its limbs are zero. `next` is the pair that is split after this
    /// one, which is prefetched.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn split(&self, from: [&[T]; 2], next: [&[T]; 2], to: &mut [T::Limb], limb_stride: usize, limbs: Limbs) -> u32 {
        let count = from[0].len();
        assert!(from[1].is_empty() || from[1].len() == count);
        assert!((self.are_legal)(limbs) && product([count, LIMBS_OF_PAIR]) <= limb_stride);
        assert!(reach([(limbs.source - 1, limb_stride), (count, LIMBS_OF_PAIR)]) <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split)(from, next, to, limb_stride, limbs) }
    }

    /// `rows[m][p] (+)= Σ w(s, m, c)·b(s, c, p)` for up to two sides of rows, which are output channels, and their
    /// positions `p`, over steps `s` and their channels `c`, clamped to the bounds.
    ///
    /// The source has [`PAIRS_OF_STEP`] rows for each step, `step` elements apart, and as many positions of them as a
    /// multiple of [`POSITIONS_AT_ONCE`]. The weights of a step are `[limb][side][output channel][input channel]`.
    ///
    /// # Panics
    /// A slice is shorter than the range that is read, or rows differ in their lengths.
    pub fn multiply(
        &self,
        weights: &[T::Limb],
        source: &LimbSource<T>,
        (start, bounds): (Start<T>, Option<Bounds<T>>),
        rows: &mut [&mut [T]],
    ) {
        let Some(count) = rows.first().map(|row| row.len()) else { return };
        let channels = rows.len();
        assert!(channels <= 2 * SIDE && rows.iter().all(|row| row.len() == count) && (self.are_legal)(source.limbs));
        let limbs_per_step = source.limbs.weights * channels.div_ceil(SIDE) * weights_of_side::<T>();
        assert!(source.steps.iter().all(|step| reach([(step.weights, 1), (limbs_per_step, 1)]) <= weights.len()));
        assert!(source.reach_of_planes(rounded_up(count, POSITIONS_AT_ONCE)) <= source.data.len());
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= channels);
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.multiply)(weights, source, (start, bounds), rows) }
    }
}

impl<T: Working> LimbSource<'_, T> {
    /// One past the largest index that `positions` positions of planes reach.
    fn reach_of_planes(&self, positions: usize) -> usize {
        let furthest = self.steps.iter().map(|step| step.offset).max().unwrap_or(0);
        reach([
            (self.base, 1),
            (furthest, 1),
            (PAIRS_OF_STEP - 1, self.step),
            (self.limbs.source - 1, self.limb_stride),
            (positions, LIMBS_OF_PAIR),
        ])
    }
}

/// Changes the sides of some weights from `[pair of input channels][output channel][channel of the pair]` to
/// `[output channel][input channel]`, or back.
pub(crate) fn transpose_sides<T: Copy>(weights: &mut [T]) {
    for side in weights.chunks_exact_mut(PAIRS_OF_STEP * SIDE * LIMBS_OF_PAIR) {
        for row in 0..SIDE {
            for column in 0..row {
                for i in 0..LIMBS_OF_PAIR {
                    let at = |row: usize, column: usize| (row * SIDE + column) * LIMBS_OF_PAIR + i;
                    side.swap(at(row, column), at(column, row));
                }
            }
        }
    }
}

/// The kernels of tile registers for f32, if there are any. This requests tile registers for the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn plane_kernels_of_f32() -> Option<&'static PlaneKernels<f32>> {
    static OF_F32: PlaneKernels<f32> =
        PlaneKernels { are_legal: Limbs::are_legal, split: split::split_planes, multiply: amx::multiply_planes };
    tile_registers::are_permitted().then_some(&OF_F32)
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn plane_kernels_of_f32() -> Option<&'static PlaneKernels<f32>> {
    None
}

/// The kernels of an instruction set's vectors for numbers rounded to bf16, if this CPU has any.
pub(crate) fn rounded_plane_kernels(isa: Isa) -> Option<&'static PlaneKernels<f32>> {
    #[cfg(target_arch = "x86_64")]
    static AVX512: PlaneKernels<f32> = PlaneKernels {
        are_legal: Limbs::are_rounded,
        split: split::split_planes,
        multiply: dots::avx512::multiply_planes,
    };
    #[cfg(target_arch = "aarch64")]
    static NEON: PlaneKernels<f32> = PlaneKernels {
        are_legal: Limbs::are_rounded,
        split: rounded::split_planes,
        multiply: dots::neon::multiply_planes,
    };
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if bf16::is_available(isa) => Some(&AVX512),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if bf16::is_available(isa) => Some(&NEON),
        _ => None,
    }
}
