//! Matrix products in tile registers (AMX): of f32, and of bytes, whose sums are exact. Products of f32 rounded to bf16
//! also in vectors.
//!
//! For f32, the unit multiplies bf16, which has 8 significant bits, and adds in f32. An f32 has 24
//! significant bits, so it is exactly the sum of three bf16 limbs: high, middle and low.
//!
//! Two numbers have nine products of limbs. Six of them are computed. The other three add up to at
//! most `2^-24` of the whole product, which is no more than the rounding to f32, and usually far
//! less. Small products are summed before the large ones. The errors of sums are therefore no
//! larger than those of f32 multiply-adds.
//!
//! Fewer limbs do where the numbers have fewer bits. A number whose value is a bf16 has one limb that is
//! not zero, and an f16 at most two. Products with limbs that are zero are left out, which changes no
//! bit of a sum. [`Limbs`] has the numbers of limbs.
//!
//! Numbers can also be rounded first. Those rounded to bf16 have one limb, and one product is computed
//! in place of six. The unit multiplies infinity and NaN of bf16 as IEEE 754 does. Those rounded to f16
//! have two limbs, and three products are computed: that of the two low limbs is at most `2^-16` of the
//! whole.
//!
//! The exact way does not work at the ends of f32's range: the unit takes subnormals for zero, and the limbs
//! of infinity include NaN. [`is_regular`] tells for which numbers this makes no difference. Others
//! must not be multiplied here.
//!
//! Some CPUs without tile registers multiply pairs of bf16 in vectors ([`dots`]), at twice the rate of f32. That pays for
//! numbers rounded to bf16 only, which have a single limb.
//!
//! The unit also multiplies four bytes of data by four of weights, and adds in `i32`. A [`Quad`] holds them,
//! and is a single limb.

mod limbs;
mod planes;

pub(super) use limbs::limbs_needed;
pub(crate) use limbs::{LIMBS, Limbs, is_regular};
pub(super) use planes::plane_kernels_of_f32;
pub(crate) use planes::rounded_plane_kernels;
pub(crate) use planes::{LIMBS_OF_PAIR, PAIRS_OF_STEP, PlaneKernels, transpose_sides};

use crate::compute::{Compute, Quad, Working};
use crate::kernel::bounds::Bounds;
use crate::kernel::extent::{product, reach, rounded_up};
use crate::kernel::gemm_tile::Start;
use crate::precision::Precision;
use crate::simd::bf16;
use crate::simd::isa::Isa;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::tile_registers;

/// Positions, and output channels, of a tile register.
pub(crate) const SIDE: usize = 16;

/// Bytes of a row of a tile register: one limb of a position's channels in a step.
pub(crate) const ROW_BYTES: usize = 64;

/// Input channels that one step multiplies: 32 of f32, or 16 [`Quad`]s.
pub(crate) const fn depth<T: Working>() -> usize {
    ROW_BYTES / size_of::<T::Limb>()
}

/// One limb of a step's weights for [`SIDE`] output channels. Of f32, it is
/// `[pair of input channels][output channel][channel of the pair]`, of quads `[input channel][output channel]`.
pub(crate) const fn weights_of_side<T: Working>() -> usize {
    SIDE * depth::<T>()
}

/// One step: [`depth`] channels of a tap.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MatrixStep {
    /// The offset added to a position's index in the source.
    pub offset: usize,
    /// The index of its weights, which are `[limb][side]` of [`weights_of_side`].
    pub weights: usize,
}

/// The operand that is read in place: limbs of pixels of [`depth`] channels, or of pairs of planes.
#[derive(Clone, Copy)]
pub(crate) struct LimbSource<'a, T: Working> {
    /// The limbs of many numbers: first the high limbs of all, then the middle ones, then the low
    /// ones.
    pub data: &'a [T::Limb],
    /// Index of the first position's high limb at offset zero.
    pub base: usize,
    /// Elements between the rows of a tile: [`depth`] between positions, any number between pairs of planes.
    pub step: usize,
    /// Elements from a limb of a number to its next limb.
    pub limb_stride: usize,
    /// The limbs of pixels and of weights.
    pub limbs: Limbs,
    /// The steps that are summed.
    pub steps: &'a [MatrixStep],
}

impl<T: Working> LimbSource<'_, T> {
    /// One past the largest index that `positions` positions reach.
    fn reach(&self, positions: usize) -> usize {
        let furthest = self.steps.iter().map(|step| step.offset).max().unwrap_or(0);
        reach([
            (self.base, 1),
            (furthest, 1),
            (positions.max(1) - 1, self.step),
            (self.limbs.source - 1, self.limb_stride),
            (depth::<T>(), 1),
        ])
    }
}

/// The most positions that are multiplied together. The source must have a multiple of this many
/// positions per run.
pub(crate) const POSITIONS_AT_ONCE: usize = 2 * SIDE;

type Split<T> = unsafe fn(
    from: &[T],
    from_step: usize,
    size: (usize, usize),
    to: &mut [<T as Working>::Limb],
    limb_stride: usize,
    limbs: Limbs,
) -> u32;
type Join<T> = fn(weights: &[<T as Working>::Limb], sides: usize, limbs: usize, to: &mut [T]);
type SplitWeights<T> = unsafe fn(from: &[T], sides: usize, limbs: usize, to: &mut [<T as Working>::Limb]);
type Round<T> = fn(precision: Precision, numbers: &mut [T]);
type Multiply<T> = unsafe fn(
    weights: &[<T as Working>::Limb],
    sides: usize,
    source: &LimbSource<T>,
    count: usize,
    start_and_bounds: (Start<T>, Option<Bounds<T>>),
    out: &mut [T],
    out_stride: usize,
);

/// The kernels that use tile registers, or vectors that multiply pairs of bf16.
///
/// A reference to one is proof that the CPU has them and that this process may use them.
pub(crate) struct MatrixKernels<T: Working> {
    are_legal: fn(Limbs) -> bool,
    split: Split<T>,
    split_weights: SplitWeights<T>,
    join: Join<T>,
    round: Round<T>,
    multiply: Multiply<T>,
}

impl<T: Compute> MatrixKernels<T> {
    /// Splits `count` pixels of up to [`depth`] channels, `from_step` apart, into limbs, and
    /// returns the bits of the largest magnitude, after rounding. That is zero for quads, and may be
    /// for numbers rounded to bf16.
    ///
    /// Numbers have no more bits than the limbs hold. Limbs are `limb_stride` elements apart and
    /// pixels are [`depth`] elements apart. Missing channels are zero.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn split(
        &self,
        from: &[T],
        from_step: usize,
        (count, channels): (usize, usize),
        to: &mut [T::Limb],
        limb_stride: usize,
        limbs: Limbs,
    ) -> u32 {
        let (Some(last), depth) = (count.checked_sub(1), depth::<T>()) else { return 0 };
        assert!((1..=depth).contains(&channels) && reach([(last, from_step), (channels, 1)]) <= from.len());
        assert!((self.are_legal)(limbs) && product([count, depth]) <= limb_stride);
        assert!(reach([(limbs.source - 1, limb_stride), (count, depth)]) <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split)(from, from_step, (count, channels), to, limb_stride, limbs) }
    }

    /// Splits the weights of a step, `[input channel][output channel]` for up to [`depth`] input
    /// channels, into limbs, `[limb][side]` of [`weights_of_side`]. Missing channels are zero.
    ///
    /// # Panics
    /// A slice is too short, or there are more channels or limbs.
    pub fn split_weights(&self, from: &[T], sides: usize, limbs: usize, to: &mut [T::Limb]) {
        assert!((1..=2).contains(&sides) && from.len().is_multiple_of(sides * SIDE));
        assert!((1..=LIMBS).contains(&limbs));
        let of_side = weights_of_side::<T>();
        assert!(from.len() <= sides * of_side && limbs * sides * of_side <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split_weights)(from, sides, limbs, to) }
    }

    /// Joins the limbs of a tap's weights,
    /// `[block of input channels][limb][side]` of [`weights_of_side`], to numbers,
    /// `[input channel][output channel]`.
    ///
    /// # Panics
    /// There are fewer weights than elements in `to`.
    pub fn join(&self, weights: &[T::Limb], sides: usize, limbs: usize, to: &mut [T]) {
        (self.join)(weights, sides, limbs, to)
    }

    /// Rounds numbers, as [`Precision::rounded`] does.
    pub fn round(&self, precision: Precision, numbers: &mut [T]) {
        (self.round)(precision, numbers)
    }

    /// `out[p·out_stride + m] (+)= Σ a(p, s, c)·b(s, c, m)` for `count` positions and
    /// `sides · SIDE` output channels, over steps `s` and their channels `c`, clamped to the bounds.
    ///
    /// There are one or two sides. The source has whole tiles of [`POSITIONS_AT_ONCE`] positions.
    ///
    /// # Panics
    /// A slice is shorter than the range that is read or written.
    pub fn multiply(
        &self,
        (weights, sides): (&[T::Limb], usize),
        source: &LimbSource<T>,
        count: usize,
        (start, bounds): (Start<T>, Option<Bounds<T>>),
        out: &mut [T],
        out_stride: usize,
    ) {
        let Some(last) = count.checked_sub(1) else { return };
        assert!((1..=2).contains(&sides));
        assert!((self.are_legal)(source.limbs) && source.step == depth::<T>());
        let limbs_per_step = source.limbs.weights * sides * weights_of_side::<T>();
        assert!(source.steps.iter().all(|step| reach([(step.weights, 1), (limbs_per_step, 1)]) <= weights.len()));
        assert!(source.reach(rounded_up(count, POSITIONS_AT_ONCE)) <= source.data.len());
        assert!(reach([(last, out_stride), (sides, SIDE)]) <= out.len());
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= sides * SIDE);
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.multiply)(weights, sides, source, count, (start, bounds), out, out_stride) }
    }
}

/// Whether this CPU has matrix products of operands in a precision: those of tile registers, or of vectors that multiply
/// pairs of bf16.
pub(crate) fn has_matrix_products(precision: Precision) -> bool {
    let of_vectors = || Isa::ALL.iter().any(|isa| bf16::is_available(*isa));
    Isa::Amx.is_available() || precision == Precision::Bf16 && of_vectors()
}

/// The kernels of tile registers for f32, if there are any. This requests tile registers for the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn kernels_of_f32() -> Option<&'static MatrixKernels<f32>> {
    static OF_F32: MatrixKernels<f32> = MatrixKernels {
        are_legal: Limbs::are_legal,
        split: split::split,
        split_weights: split::split_weights,
        join: limbs::join,
        round: limbs::round,
        multiply: amx::multiply,
    };
    tile_registers::are_permitted().then_some(&OF_F32)
}

/// The kernels of tile registers for quads, if there are any. This requests tile registers for the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn kernels_of_quads() -> Option<&'static MatrixKernels<Quad>> {
    static OF_QUADS: MatrixKernels<Quad> = MatrixKernels {
        are_legal: Limbs::are_of_bytes,
        split: quads::split,
        split_weights: quads::split_weights,
        join: quads::join,
        round: |_, _| {},
        multiply: amx::multiply_quads,
    };
    tile_registers::are_permitted().then_some(&OF_QUADS)
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn kernels_of_f32() -> Option<&'static MatrixKernels<f32>> {
    None
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn kernels_of_quads() -> Option<&'static MatrixKernels<Quad>> {
    None
}

/// The kernels of an instruction set's vectors for numbers rounded to bf16, if this CPU has any.
pub(crate) fn rounded_kernels(isa: Isa) -> Option<&'static MatrixKernels<f32>> {
    #[cfg(target_arch = "x86_64")]
    static AVX512: MatrixKernels<f32> = MatrixKernels {
        are_legal: Limbs::are_rounded,
        split: split::split,
        split_weights: split::split_weights,
        join: limbs::join,
        round: limbs::round,
        multiply: dots::avx512::multiply,
    };
    #[cfg(target_arch = "aarch64")]
    static NEON: MatrixKernels<f32> = MatrixKernels {
        are_legal: Limbs::are_rounded,
        split: rounded::split,
        split_weights: rounded::split_weights,
        join: limbs::join,
        round: limbs::round,
        multiply: dots::neon::multiply,
    };
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if bf16::is_available(isa) => Some(&AVX512),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if bf16::is_available(isa) => Some(&NEON),
        _ => None,
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod dots;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod quads;
#[cfg(target_arch = "aarch64")]
mod rounded;
#[cfg(target_arch = "x86_64")]
mod split;

#[cfg(test)]
mod tests;
