//! Matrix products of f32 in tile registers (AMX).
//!
//! The unit multiplies bf16, which has 8 significant bits, and adds in f32. An f32 has 24
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

use crate::compute::Compute;
use crate::kernel::bounds::Bounds;
use crate::kernel::extent::{product, reach, rounded_up};
use crate::kernel::gemm_tile::Start;
use crate::precision::Precision;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::tile_registers;

/// Positions, and output channels, of a tile register.
pub(crate) const SIDE: usize = 16;

/// Input channels that one step multiplies.
pub(crate) const DEPTH: usize = 32;

/// The most limbs of a number.
pub(crate) const LIMBS: usize = 3;

/// The limbs that numbers are split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limbs {
    /// What the numbers of the source are rounded to first. Weights are rounded before they come here.
    pub precision: Precision,
    /// Limbs of the source's numbers: see [`Limbs::of_bits`].
    pub source: usize,
    /// Limbs of the weights: as many as those of the source, or fewer if the others are zero.
    pub weights: usize,
}

impl Limbs {
    /// The limbs of numbers with `bits` significant bits, or fewer after rounding.
    pub const fn of_bits(precision: Precision, bits: u32) -> usize {
        match precision {
            Precision::Bf16 => 1,
            Precision::F16 => 2,
            Precision::Exact if bits <= 11 => 2,
            Precision::Exact => LIMBS,
        }
    }

    /// The largest sum of the indices of two limbs that are multiplied.
    const fn order(self) -> usize {
        match self.precision {
            Precision::Exact => LIMBS - 1,
            Precision::F16 => 1,
            Precision::Bf16 => 0,
        }
    }

    /// The number of products per product of two numbers.
    pub fn products(self) -> usize {
        (0..self.source.min(self.order() + 1)).map(|i| self.weights.min(self.order() + 1 - i)).sum()
    }

    /// Whether there are kernels for them.
    fn are_legal(self) -> bool {
        let most = self.order() + 1;
        (most.min(2)..=most).contains(&self.source) && (1..=self.source).contains(&self.weights)
    }
}

/// Elements of one limb of a step's weights for [`SIDE`] output channels:
/// `[pair of input channels][output channel][channel of the pair]`.
pub(crate) const WEIGHTS_OF_SIDE: usize = SIDE * DEPTH;

/// The limbs of a [regular](is_regular) number, high to low.
///
/// Each limb is the remainder rounded to nearest, except that the last one is truncated. Their sum
/// is the number, up to an error below `2^-133`.
#[cfg(test)]
fn limbs_of(number: f32) -> [u16; LIMBS] {
    let mut rest = number;
    std::array::from_fn(|i| {
        let limb = if i < LIMBS - 1 { high_limb(rest) } else { (rest.to_bits() >> 16) as u16 };
        rest -= from_limb(limb);
        limb
    })
}

/// Returns how many limbs hold numbers, high ones first, so that the others are zero. The numbers are
/// rounded to a precision. None if tile registers can't multiply them.
pub(crate) fn limbs_needed(precision: Precision, numbers: &[f32]) -> Option<usize> {
    if precision == Precision::Bf16 {
        return Some(1);
    }
    let most = numbers.iter().fold(0, |most, number| most.max(number.abs().to_bits()));
    if !is_regular(most) {
        return None;
    }
    let is_limb = |number: f32| number.to_bits() & 0xffff == 0;
    let remainder = |number: f32| number - from_limb(high_limb(number));
    // Most filters have three, which the first numbers tell.
    Some(match numbers {
        _ if numbers.iter().all(|number| is_limb(*number)) => 1,
        _ if numbers.iter().all(|number| is_limb(remainder(*number))) => 2,
        _ => LIMBS,
    })
}

/// A number rounded to the nearest limb, with ties away from zero.
fn high_limb(number: f32) -> u16 {
    ((number.to_bits() + 0x8000) >> 16) as u16
}

/// The value of a limb.
fn from_limb(limb: u16) -> f32 {
    f32::from_bits((limb as u32) << 16)
}

/// Whether products of numbers up to a magnitude have at most f32's rounding error of the largest.
/// `bits` are those of the largest magnitude. Zero is regular.
///
/// For regular magnitudes, neither the products nor their sums reach infinity, and the loss to
/// subnormals is below `2^-40` of them.
pub(crate) fn is_regular(bits: u32) -> bool {
    const LEAST: u32 = (127 - 40) << 23;
    const MOST: u32 = (127 + 50) << 23;
    bits == 0 || (LEAST..=MOST).contains(&bits)
}

/// One step: [`DEPTH`] channels of a tap.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MatrixStep {
    /// The offset added to a position's index in the source.
    pub offset: usize,
    /// The index of its weights, which are `[limb][side][WEIGHTS_OF_SIDE]`.
    pub weights: usize,
}

/// The operand that is read in place: limbs of pixels of [`DEPTH`] channels.
#[derive(Clone, Copy)]
pub(crate) struct LimbSource<'a> {
    /// The limbs of many pixels: first the high limbs of all, then the middle ones, then the low
    /// ones.
    pub data: &'a [u16],
    /// Index of the first position's high limb at offset zero.
    pub base: usize,
    /// Elements between positions.
    pub step: usize,
    /// Elements from a limb of a pixel to its next limb.
    pub limb_stride: usize,
    /// The limbs of pixels and of weights.
    pub limbs: Limbs,
    /// The steps that are summed.
    pub steps: &'a [MatrixStep],
}

impl LimbSource<'_> {
    /// One past the largest index that `positions` positions reach.
    fn reach(&self, positions: usize) -> usize {
        let furthest = self.steps.iter().map(|step| step.offset).max().unwrap_or(0);
        reach([
            (self.base, 1),
            (furthest, 1),
            (positions.max(1) - 1, self.step),
            (self.limbs.source - 1, self.limb_stride),
            (DEPTH, 1),
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
    to: &mut [u16],
    limb_stride: usize,
    limbs: Limbs,
) -> u32;
type Join<T> = fn(weights: &[u16], sides: usize, limbs: usize, to: &mut [T]);
type SplitWeights<T> = unsafe fn(from: &[T], sides: usize, limbs: usize, to: &mut [u16]);
type Round<T> = fn(precision: Precision, numbers: &mut [T]);
type Multiply<T> = unsafe fn(
    weights: &[u16],
    sides: usize,
    source: &LimbSource,
    count: usize,
    start_and_bounds: (Start<T>, Option<Bounds<T>>),
    out: &mut [T],
    out_stride: usize,
);

/// The kernels that use tile registers.
///
/// A reference to one is proof that the CPU has tile registers and that this process may use them.
pub(crate) struct MatrixKernels<T: 'static> {
    split: Split<T>,
    split_weights: SplitWeights<T>,
    join: Join<T>,
    round: Round<T>,
    multiply: Multiply<T>,
}

impl<T: Compute> MatrixKernels<T> {
    /// Splits `count` pixels of up to [`DEPTH`] channels, `from_step` apart, into limbs, and
    /// returns the bits of the largest magnitude, after rounding.
    ///
    /// Numbers have no more bits than the limbs hold. Limbs are `limb_stride` elements apart and
    /// pixels are [`DEPTH`] elements apart. Missing channels are zero.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn split(
        &self,
        from: &[T],
        from_step: usize,
        (count, channels): (usize, usize),
        to: &mut [u16],
        limb_stride: usize,
        limbs: Limbs,
    ) -> u32 {
        let Some(last) = count.checked_sub(1) else { return 0 };
        assert!((1..=DEPTH).contains(&channels) && reach([(last, from_step), (channels, 1)]) <= from.len());
        assert!(limbs.are_legal() && product([count, DEPTH]) <= limb_stride);
        assert!(reach([(limbs.source - 1, limb_stride), (count, DEPTH)]) <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split)(from, from_step, (count, channels), to, limb_stride, limbs) }
    }

    /// Splits the weights of a step, `[input channel][output channel]` for up to [`DEPTH`] input
    /// channels, into limbs, `[limb][side][WEIGHTS_OF_SIDE]`. Missing channels are zero.
    ///
    /// # Panics
    /// A slice is too short, or there are more channels or limbs.
    pub fn split_weights(&self, from: &[T], sides: usize, limbs: usize, to: &mut [u16]) {
        assert!((1..=2).contains(&sides) && from.len().is_multiple_of(sides * SIDE));
        assert!((1..=LIMBS).contains(&limbs));
        assert!(from.len() <= DEPTH * sides * SIDE && limbs * sides * WEIGHTS_OF_SIDE <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split_weights)(from, sides, limbs, to) }
    }

    /// Joins the limbs of a tap's weights,
    /// `[block of input channels][limb][side][WEIGHTS_OF_SIDE]`, to numbers,
    /// `[input channel][output channel]`.
    ///
    /// # Panics
    /// There are fewer weights than elements in `to`.
    pub fn join(&self, weights: &[u16], sides: usize, limbs: usize, to: &mut [T]) {
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
        (weights, sides): (&[u16], usize),
        source: &LimbSource,
        count: usize,
        (start, bounds): (Start<T>, Option<Bounds<T>>),
        out: &mut [T],
        out_stride: usize,
    ) {
        let Some(last) = count.checked_sub(1) else { return };
        assert!((1..=2).contains(&sides));
        assert!(source.limbs.are_legal());
        let limbs_per_step = source.limbs.weights * sides * WEIGHTS_OF_SIDE;
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

/// The kernels for f32, if there are any. This requests tile registers for the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn kernels() -> Option<&'static MatrixKernels<f32>> {
    static KERNELS: MatrixKernels<f32> = MatrixKernels {
        split: instructions::split,
        split_weights: instructions::split_weights,
        join,
        round,
        multiply: instructions::multiply,
    };
    tile_registers::are_permitted().then_some(&KERNELS)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn round(precision: Precision, numbers: &mut [f32]) {
    if precision == Precision::Exact {
        return;
    }
    numbers.iter_mut().for_each(|number| *number = precision.rounded(*number));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn join(weights: &[u16], sides: usize, limbs: usize, to: &mut [f32]) {
    let (width, limb_len) = (sides * SIDE, sides * WEIGHTS_OF_SIDE);
    for (block, to) in weights.chunks(limbs * limb_len).zip(to.chunks_mut(DEPTH * width)) {
        for (c, row) in to.chunks_mut(width).enumerate() {
            for (m, to) in row.iter_mut().enumerate() {
                let at = m / SIDE * WEIGHTS_OF_SIDE + (c / 2 * SIDE + m % SIDE) * 2 + c % 2;
                // Small limbs first, so that the sum is exact.
                *to = (0..limbs).rev().map(|p| from_limb(block[p * limb_len + at])).sum::<f32>();
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn kernels() -> Option<&'static MatrixKernels<f32>> {
    None
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions {
    use super::*;
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::marker::PhantomData;
    use std::mem::MaybeUninit;

    /// The shapes of the eight tile registers, as `ldtilecfg` reads them: rows of 64 bytes.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    impl Shapes {
        /// Shapes in which the tiles of sums and of positions have `positions` rows.
        fn new(positions: usize) -> Shapes {
            let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
            row_bytes[..8].fill(64);
            rows[..6].fill(positions as u8);
            rows[6..8].fill(SIDE as u8);
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
        }
    }

    /// Configured tile registers, which are released on drop. Released registers make thread
    /// switches cheap.
    ///
    /// It is not `Send`, as the registers belong to its thread.
    struct Configured(PhantomData<*const ()>);

    impl Configured {
        /// Configures the tile registers and sets them to zero.
        ///
        /// # Safety
        /// The CPU has tile registers, and the process may use them. No other `Configured` exists
        /// on this thread.
        #[inline(always)]
        unsafe fn new(shapes: &Shapes) -> Configured {
            // SAFETY: the shapes are legal, and are read in place. The compiler neither allocates
            // tile registers nor knows their configuration, so whatever it compiles between this
            // and the release leaves both unchanged.
            unsafe {
                asm!(
                    "ldtilecfg [{}]", in(reg) shapes,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
            Configured(PhantomData)
        }
    }

    impl Drop for Configured {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: the CPU has tile registers, as `new` was called. Their contents are no longer
            // needed.
            unsafe {
                asm!(
                    "tilerelease",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, nomem, preserves_flags),
                );
            }
        }
    }

    /// Elements from the pixel being split to the pixel being prefetched, which may be beyond the
    /// last. This is about a page, as the CPU's own prefetching stops at page ends.
    const AHEAD: usize = 1024;

    /// # Safety
    /// The assertions of [`MatrixKernels::split`] hold. The CPU has AVX-512 with words.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn split(
        from: &[f32],
        from_step: usize,
        size: (usize, usize),
        to: &mut [u16],
        limb_stride: usize,
        limbs: Limbs,
    ) -> u32 {
        // SAFETY: this function's contract. No more limbs are written than the source has.
        unsafe {
            match (limbs.precision, limbs.source) {
                (Precision::Bf16, _) => split_as::<BF16, 1>(from, from_step, size, to, limb_stride),
                (Precision::F16, _) => split_as::<F16, 2>(from, from_step, size, to, limb_stride),
                (Precision::Exact, 2) => split_as::<EXACT, 2>(from, from_step, size, to, limb_stride),
                (Precision::Exact, _) => split_as::<EXACT, LIMBS>(from, from_step, size, to, limb_stride),
            }
        }
    }

    // What numbers are rounded to.
    const EXACT: u8 = 0;
    const BF16: u8 = 1;
    const F16: u8 = 2;

    /// # Safety
    /// As [`split`], for `COUNT` limbs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn split_as<const PRECISION: u8, const COUNT: usize>(
        from: &[f32],
        from_step: usize,
        (count, channels): (usize, usize),
        to: &mut [u16],
        limb_stride: usize,
    ) -> u32 {
        let some = |lanes: usize| if lanes >= SIDE { u16::MAX } else { (1u16 << lanes) - 1 };
        let masks = [some(channels), some(channels.saturating_sub(SIDE))];
        let magnitude = _mm512_set1_epi32(i32::MAX);
        let odd: [u16; DEPTH] = std::array::from_fn(|i| 2 * i as u16 + 1);
        // SAFETY: the array is a whole vector.
        let upper_halves = unsafe { _mm512_loadu_si512(odd.as_ptr().cast()) };
        let mut most = _mm512_setzero_si512();
        let ahead = from_step.max(AHEAD / from_step.max(1) * from_step);
        for i in 0..count {
            let from = from.as_ptr().wrapping_add(i * from_step);
            let mut to = to.as_mut_ptr().wrapping_add(i * DEPTH);
            for side in [0, SIDE] {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).wrapping_add(side).cast());
            }
            // SAFETY: the masks exclude the channels that a pixel does not have. `to` has room for
            // each limb of each pixel.
            unsafe {
                let mut rest =
                    [_mm512_maskz_loadu_ps(masks[0], from), _mm512_maskz_loadu_ps(masks[1], from.wrapping_add(SIDE))];
                for x in &mut rest {
                    *x = rounded::<PRECISION>(*x);
                }
                for x in rest {
                    most = _mm512_max_epu32(most, _mm512_and_si512(magnitude, _mm512_castps_si512(x)));
                }
                for [low, high] in halves_of::<COUNT>(rest) {
                    // The upper half of every lane, first of one vector, then of the other.
                    _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(low, upper_halves, high));
                    to = to.wrapping_add(limb_stride);
                }
            }
        }
        _mm512_reduce_max_epu32(most)
    }

    /// # Safety
    /// The assertions of [`MatrixKernels::split_weights`] hold. The CPU has AVX-512 with words.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn split_weights(from: &[f32], sides: usize, limbs: usize, to: &mut [u16]) {
        // SAFETY: this function's contract.
        unsafe {
            match limbs {
                1 => split_weights_as::<1>(from, sides, to),
                2 => split_weights_as::<2>(from, sides, to),
                _ => split_weights_as::<LIMBS>(from, sides, to),
            }
        }
    }

    /// # Safety
    /// As [`split_weights`], for `COUNT` limbs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn split_weights_as<const COUNT: usize>(from: &[f32], sides: usize, to: &mut [u16]) {
        let (width, channels) = (sides * SIDE, from.len() / (sides * SIDE));
        let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
        let load = |c: usize, m: usize| match c < channels {
            // SAFETY: a vector of an existing channel.
            true => unsafe { _mm512_loadu_ps(from.as_ptr().add(c * width + m)) },
            false => _mm512_setzero_ps(),
        };
        for pair in 0..DEPTH / 2 {
            for side in 0..sides {
                let rest = [load(2 * pair, side * SIDE), load(2 * pair + 1, side * SIDE)];
                for (limb, [low, high]) in halves_of::<COUNT>(rest).into_iter().enumerate() {
                    // Clear the lower half, as it belongs to the pair's other channel. It is not
                    // zero in the last limb of numbers below 2^-110.
                    let high = _mm512_and_si512(high, upper);
                    let both = _mm512_or_si512(_mm512_srli_epi32::<16>(low), high);
                    let at = (limb * sides + side) * WEIGHTS_OF_SIDE + pair * 2 * SIDE;
                    // SAFETY: a pair of channels of one limb and side, which `to` holds.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(at).cast(), both) };
                }
            }
        }
    }

    /// Rounds numbers, as [`Precision::rounded`] does. After rounding to bf16, only the upper halves of
    /// lanes count.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn rounded<const PRECISION: u8>(numbers: __m512) -> __m512 {
        match PRECISION {
            BF16 => {
                let bits = _mm512_castps_si512(numbers);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                // The most significant bit of a NaN's fraction keeps it from becoming infinity.
                let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
                _mm512_castsi512_ps(_mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x0040_0000)))
            }
            F16 => _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers)),
            _ => numbers,
        }
    }

    /// The limbs of two vectors of numbers, in the upper half of each lane.
    ///
    /// The numbers have no more bits than `COUNT` limbs.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn halves_of<const COUNT: usize>(numbers: [__m512; 2]) -> [[__m512i; 2]; COUNT] {
        let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000u32 as i32));
        // No closures, as the compiler does not always inline them.
        let mut limbs = [[_mm512_setzero_si512(); 2]; COUNT];
        for (i, number) in numbers.into_iter().enumerate() {
            let mut rest = number;
            for limb in limbs.iter_mut().take(COUNT - 1) {
                limb[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half), upper);
                rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(limb[i]));
            }
            // The remainder has no more bits than a limb, up to an error below 2^-133.
            limbs[COUNT - 1][i] = _mm512_castps_si512(rest);
        }
        limbs
    }

    /// Four tiles of sums: `[position side][channel side][position][channel]`.
    ///
    /// With one side of channels, there are two sums per element, which must be added.
    #[repr(C, align(64))]
    struct Sums(MaybeUninit<[f32; 4 * SIDE * SIDE]>);

    /// # Safety
    /// The assertions of [`MatrixKernels::multiply`] hold. The CPU has tile registers, and the
    /// process may use them.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn multiply(
        weights: &[u16],
        sides: usize,
        source: &LimbSource,
        count: usize,
        start_and_bounds: (Start<f32>, Option<Bounds<f32>>),
        out: &mut [f32],
        out_stride: usize,
    ) {
        // SAFETY: this function's contract. The tiles are those of the sides.
        unsafe {
            match sides {
                2 => multiply_sides::<2>(
                    (weights, four_tiles(source.limbs)),
                    source,
                    count,
                    start_and_bounds,
                    out,
                    out_stride,
                ),
                _ => multiply_sides::<1>(
                    (weights, two_tiles(source.limbs)),
                    source,
                    count,
                    start_and_bounds,
                    out,
                    out_stride,
                ),
            }
        }
    }

    /// Sums two tile registers of positions times one or two of channels, over all steps of a source.
    type Tiles = unsafe fn(from: *const u16, rows: usize, source: &LimbSource, weights: &[u16], sums: &mut Sums);

    /// # Safety
    /// As [`multiply`]. The tiles have as many sides of channels.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply_sides<const SIDES: usize>(
        (weights, tiles): (&[u16], Tiles),
        source: &LimbSource,
        count: usize,
        start_and_bounds: (Start<f32>, Option<Bounds<f32>>),
        out: &mut [f32],
        out_stride: usize,
    ) {
        // Tiles have equal numbers of positions, as tiles with fewer rows take less time.
        let rows = count.div_ceil(2 * count.div_ceil(POSITIONS_AT_ONCE));
        let shapes = Shapes::new(rows);
        // Sums are finished while the next ones are computed, so that vector instructions do not
        // wait for tile registers.
        let mut sums = [const { Sums(MaybeUninit::uninit()) }; 2];
        let mut made = None;
        // SAFETY: the shapes are legal. By this function's contract, the source holds the positions
        // that are multiplied, and `out` those that are written. Sums are written before they are
        // read.
        unsafe {
            let configured = Configured::new(&shapes);
            for (turn, first) in (0..count).step_by(2 * rows).enumerate() {
                let from = source.data.as_ptr().add(source.base + first * source.step);
                tiles(from, rows, source, weights, &mut sums[turn % 2]);
                if let Some((turn, first)) = made.replace((turn, first)) {
                    let to = out.as_mut_ptr().add(first * out_stride);
                    finish::<SIDES>(&sums[turn % 2], rows, 2 * rows, start_and_bounds, to, out_stride);
                }
            }
            drop(configured);
            if let Some((turn, first)) = made {
                let to = out.as_mut_ptr().add(first * out_stride);
                finish::<SIDES>(&sums[turn % 2], rows, count - first, start_and_bounds, to, out_stride);
            }
        }
    }

    /// Adds sums to the bias or to the contents of the output, and clamps the results to the bounds.
    ///
    /// # Safety
    /// `sums` are those of tiles of `rows` rows, all written. From `to` on, `positions` positions
    /// can be written, `stride` apart, each with `SIDES · SIDE` elements.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn finish<const SIDES: usize>(
        sums: &Sums,
        rows: usize,
        positions: usize,
        (start, bounds): (Start<f32>, Option<Bounds<f32>>),
        to: *mut f32,
        stride: usize,
    ) {
        let sums = sums.0.as_ptr().cast::<f32>();
        // SAFETY: this function's contract. A bias has `SIDES · SIDE` values.
        unsafe {
            let mut values = [_mm512_setzero_ps(); SIDES];
            if let Start::Bias(bias) = start {
                for (side, value) in values.iter_mut().enumerate() {
                    *value = _mm512_loadu_ps(bias.as_ptr().add(side * SIDE));
                }
            }
            let bounds = bounds.map(|Bounds { low, high }| [_mm512_set1_ps(low), _mm512_set1_ps(high)]);
            for half in 0..2 {
                let first = half * rows;
                for p in first..positions.min(first + rows) {
                    for (side, value) in values.iter().enumerate() {
                        // Two sides have one tile each. A single side has two tiles.
                        let tile = half * 2 + if SIDES == 2 { side } else { 0 };
                        let mut sum = _mm512_load_ps(sums.add((tile * SIDE + p - first) * SIDE));
                        if SIDES == 1 {
                            sum = _mm512_add_ps(sum, _mm512_load_ps(sums.add(((tile + 1) * SIDE + p - first) * SIDE)));
                        }
                        let to = to.add(p * stride + side * SIDE);
                        let before = if let Start::Add = start { _mm512_loadu_ps(to) } else { *value };
                        let mut result = _mm512_add_ps(before, sum);
                        if let Some([low, high]) = bounds {
                            result = _mm512_min_ps(high, _mm512_max_ps(low, result));
                        }
                        _mm512_storeu_ps(to, result);
                    }
                }
            }
        }
    }

    // Registers: sums are in tmm0 to tmm3, positions in tmm4 and tmm5, weights in tmm6 and tmm7.
    // `{x}` and `{y}` point to the two sides of positions.

    macro_rules! load_positions {
        () => {
            "tileloadd tmm4, [{x} + {row}]\n tileloadd tmm5, [{y} + {row}]\n"
        };
    }

    macro_rules! load_weights {
        (2, $limb:tt) => {
            concat!(
                "tileloadd tmm6, [{w} + {line} + 2048*",
                $limb,
                "]\n tileloadd tmm7, [{w} + {line} + 2048*",
                $limb,
                " + 1024]\n"
            )
        };
        (1, $limb:tt) => {
            concat!("tileloadd tmm6, [{w} + {line} + 1024*", $limb, "]\n")
        };
    }

    /// Multiplies positions by weights. With one side of channels there are only two sums, which
    /// would wait for each other, so alternating products have sums of their own.
    macro_rules! products {
        (2, $turn:tt) => {
            "tdpbf16ps tmm0, tmm4, tmm6\n tdpbf16ps tmm1, tmm4, tmm7\n tdpbf16ps tmm2, tmm5, tmm6\n tdpbf16ps tmm3, tmm5, tmm7\n"
        };
        (1, even) => {
            "tdpbf16ps tmm0, tmm4, tmm6\n tdpbf16ps tmm2, tmm5, tmm6\n"
        };
        (1, odd) => {
            "tdpbf16ps tmm1, tmm4, tmm6\n tdpbf16ps tmm3, tmm5, tmm6\n"
        };
    }

    /// Moves to the next higher limb of positions.
    macro_rules! higher_limb {
        () => {
            "sub {x}, {limb_bytes}\n sub {y}, {limb_bytes}\n"
        };
    }

    /// Finds the positions and the weights of a step.
    macro_rules! find_step {
        () => {
            concat!(
                "mov {x}, [{at}]\n mov {w}, [{at} + 8]\n",
                "lea {w}, [{weights} + 2*{w}]\n lea {x}, [{from} + 2*{x}]\n lea {y}, [{x} + {side}]\n",
            )
        };
    }

    /// Goes to the next step, or on if there is none.
    macro_rules! next_step {
        ($jump:literal) => {
            concat!("add {at}, 16\n cmp {at}, {end}\n ", $jump, "\n")
        };
    }

    /// The beginning of a step's small products: those of the lowest limb of positions with high limbs
    /// of weights.
    macro_rules! lowest_of_three {
        ($sides:tt) => {
            concat!(
                "lea {x}, [{x} + 2*{limb_bytes}]\n lea {y}, [{y} + 2*{limb_bytes}]\n",
                load_positions!(),
                load_weights!($sides, 0),
                products!($sides, even),
                higher_limb!(),
                load_positions!(),
                products!($sides, odd),
            )
        };
    }

    /// As [`lowest_of_three`], for two limbs of positions.
    macro_rules! lowest_of_two {
        ($sides:tt) => {
            concat!(
                "add {x}, {limb_bytes}\n add {y}, {limb_bytes}\n",
                load_positions!(),
                load_weights!($sides, 0),
                products!($sides, odd),
            )
        };
    }

    /// The products of the second limb of weights, after those of the first one.
    macro_rules! second_of_weights {
        ($sides:tt) => {
            concat!(
                load_weights!($sides, 1),
                products!($sides, even),
                higher_limb!(),
                load_positions!(),
                products!($sides, odd),
            )
        };
    }

    /// Sums the large products of all steps: those of two high limbs.
    macro_rules! large_products {
        ($sides:tt) => {
            concat!(
                "mov {at}, {begin}\n 3:\n",
                find_step!(),
                load_positions!(),
                load_weights!($sides, 0),
                products!($sides, odd),
                next_step!("jne 3b"),
            )
        };
    }

    /// Sums the small products of all steps, then the large ones.
    macro_rules! small_then_large {
        ($sides:tt, $($small:expr),+) => {
            concat!("mov {at}, {begin}\n 2:\n", find_step!(), $($small),+, next_step!("jne 2b"), large_products!($sides))
        };
    }

    /// Sums the products of all steps that have one product each. With one side of channels, steps take
    /// turns between the sums.
    macro_rules! single_products {
        (2) => {
            concat!(
                "mov {at}, {begin}\n 3:\n",
                find_step!(),
                // Products begin before all tiles of their step are loaded.
                "tileloadd tmm6, [{w} + {line}]\n tileloadd tmm4, [{x} + {row}]\n",
                "tdpbf16ps tmm0, tmm4, tmm6\n tileloadd tmm5, [{y} + {row}]\n",
                "tdpbf16ps tmm2, tmm5, tmm6\n tileloadd tmm7, [{w} + {line} + 1024]\n",
                "tdpbf16ps tmm1, tmm4, tmm7\n tdpbf16ps tmm3, tmm5, tmm7\n",
                next_step!("jne 3b"),
            )
        };
        (1) => {
            concat!(
                "mov {at}, {begin}\n 3:\n",
                find_step!(),
                load_positions!(),
                load_weights!(1, 0),
                products!(1, even),
                next_step!("je 4f"),
                find_step!(),
                load_positions!(),
                load_weights!(1, 0),
                products!(1, odd),
                next_step!("jne 3b"),
                "4:\n",
            )
        };
    }

    /// A function that sums tiles by a list of instructions.
    macro_rules! tile_sums {
        ($template:expr) => {{
            /// # Safety
            /// The CPU has tile registers, which are [`Configured`] with shapes of `rows` rows. From
            /// `from` on, the source has `2 · rows` positions. `weights` has the limbs and sides of each
            /// step.
            unsafe fn sum(from: *const u16, rows: usize, source: &LimbSource, weights: &[u16], sums: &mut Sums) {
                if source.steps.is_empty() {
                    sums.0.write([0.0; 4 * SIDE * SIDE]);
                    return;
                }
                let steps = source.steps.as_ptr_range();
                // SAFETY: by this function's contract, the tiles are loaded from within the source
                // and the weights. `sums` has room for all four tiles that are stored.
                unsafe {
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        $template,
                        "tilestored [{sums} + {line}], tmm0",
                        "tilestored [{sums} + {line} + 1024], tmm1",
                        "tilestored [{sums} + {line} + 2048], tmm2",
                        "tilestored [{sums} + {line} + 3072], tmm3",
                        // Not all lists read more than one limb.
                        "/* {limb_bytes} */",
                        at = out(reg) _, x = out(reg) _, y = out(reg) _, w = out(reg) _,
                        weights = in(reg) weights.as_ptr(),
                        begin = in(reg) steps.start, end = in(reg) steps.end,
                        from = in(reg) from,
                        side = in(reg) source.step * (2 * rows),
                        row = in(reg) source.step * 2,
                        limb_bytes = in(reg) source.limb_stride * 2,
                        line = in(reg) 64usize,
                        sums = in(reg) sums.0.as_mut_ptr(),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
            sum
        }};
    }

    /// [`Tiles`] of one or two sides of channels, by the limbs of positions and of weights.
    ///
    /// A product of two limbs goes to the same sums, in the same order, whatever the numbers of limbs.
    /// Sums in which some products are zero therefore have the same bits without these products.
    macro_rules! tiles {
        ($(#[$doc:meta])* $name:ident, $sides:tt) => {
            $(#[$doc])*
            fn $name(limbs: Limbs) -> Tiles {
                match (limbs.precision, limbs.source, limbs.weights) {
                    (Precision::Bf16, ..) => tile_sums!(single_products!($sides)),
                    (_, 2, 1) => tile_sums!(small_then_large!($sides, lowest_of_two!($sides))),
                    (Precision::F16, ..) => tile_sums!(small_then_large!(
                        $sides,
                        lowest_of_two!($sides),
                        load_weights!($sides, 1),
                        higher_limb!(),
                        load_positions!(),
                        products!($sides, even)
                    )),
                    (_, 2, _) => tile_sums!(small_then_large!(
                        $sides,
                        lowest_of_two!($sides),
                        second_of_weights!($sides)
                    )),
                    (_, _, 1) => tile_sums!(small_then_large!($sides, lowest_of_three!($sides))),
                    (_, _, 2) => tile_sums!(small_then_large!(
                        $sides,
                        lowest_of_three!($sides),
                        second_of_weights!($sides)
                    )),
                    _ => tile_sums!(small_then_large!(
                        $sides,
                        lowest_of_three!($sides),
                        second_of_weights!($sides),
                        load_weights!($sides, 2),
                        products!($sides, even)
                    )),
                }
            }
        };
    }

    tiles! {
        /// The tiles for two sides of channels.
        four_tiles, 2
    }
    tiles! {
        /// The tiles for one side of channels.
        two_tiles, 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use std::io::Write;

    #[test]
    fn limbs_add_up_to_the_number() {
        let mut bits = 0x1234_5678u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Magnitudes whose low limb is a normal bf16.
            let number = f32::from_bits(bits & 0x807f_ffff | (((bits >> 9) & 0x7f) + 64) << 23);
            let limbs = limbs_of(number).map(from_limb);
            assert_eq!(limbs[2] + limbs[1] + limbs[0], number);
            assert!(limbs[1].abs() <= limbs[0].abs() / 256.0 && limbs[2].abs() <= limbs[1].abs() / 256.0);
        }
        assert_eq!(limbs_of(0.0), [0; LIMBS]);
        assert_eq!(limbs_of(-1.0).map(from_limb), [-1.0, 0.0, 0.0]);
    }

    #[test]
    fn regular_numbers_are_far_from_both_ends() {
        let magnitudes = [0.0, 1e-10, 1.0, 1e15, 1e-30, f32::MIN_POSITIVE / 2.0, 1e30, f32::INFINITY, f32::NAN];
        let regular = magnitudes.map(|x| is_regular(x.to_bits()));
        assert_eq!(regular, [true, true, true, true, false, false, false, false, false]);
    }

    #[cfg(target_os = "linux")]
    fn numbers(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        // Some tiny numbers, whose limbs can't hold every bit.
        (0..len).map(|i| if i % 7 == 3 { next() * 2f32.powi(-100 - (i % 47) as i32) } else { next() }).collect()
    }

    /// Packs `[step][channel][output channel]` for the kernels.
    #[cfg(target_os = "linux")]
    fn packed(weights: &[f32], sides: usize, limbs: usize) -> Vec<u16> {
        let limbs_per_step = limbs * sides * WEIGHTS_OF_SIDE;
        let mut packed = vec![0; weights.len() / (DEPTH * sides * SIDE) * limbs_per_step];
        for (i, w) in weights.iter().enumerate() {
            let (m, c, step) = (i % (sides * SIDE), i / (sides * SIDE) % DEPTH, i / (sides * SIDE * DEPTH));
            for (p, limb) in limbs_of(*w).into_iter().take(limbs).enumerate() {
                let side = step * limbs_per_step + (p * sides + m / SIDE) * WEIGHTS_OF_SIDE;
                packed[side + (c / 2 * SIDE + m % SIDE) * 2 + c % 2] = limb;
            }
        }
        packed
    }

    /// Checks, as far as a test can, that nothing in this process requests tile registers if there
    /// are none or if no caller wants them.
    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn nobody_asks_for_tile_registers_in_vain() {
        use crate::kernel::Dispatch;
        use crate::simd::isa::Isa;
        let before = tile_registers::has_asked();
        let isa = Isa::best();
        assert!(Isa::ALL.iter().copied().filter(|isa| *isa != Isa::Amx).all(|isa| f32::matrix_kernels(isa).is_none()));
        for vectors in Isa::ALL.iter().copied().filter(|isa| *isa != Isa::Amx && isa.is_available()) {
            assert_eq!(Isa::of_plan(Some(vectors)).ok(), Some(vectors));
        }
        if isa != Isa::Amx {
            // A caller that wants them gets none, and does not request them either.
            assert!(kernels().is_none() && Isa::of_plan(Some(Isa::Amx)).is_err());
            assert_eq!(Isa::of_plan(None).ok(), Some(isa));
            assert!(!tile_registers::has_asked());
        } else if !before {
            let _ = writeln!(std::io::stderr(), "tile registers: asked for: {}", tile_registers::has_asked());
        }
    }

    /// How numbers are split, and the bits that numbers of source and weights have.
    #[cfg(target_os = "linux")]
    const WAYS: [(Limbs, [Precision; 2]); 7] = {
        use Precision::{Bf16, Exact, F16};
        const fn limbs(precision: Precision, source: usize, weights: usize) -> Limbs {
            Limbs { precision, source, weights }
        }
        [
            (limbs(Exact, 3, 3), [Exact, Exact]),
            (limbs(Exact, 3, 2), [Exact, F16]),
            (limbs(Exact, 3, 1), [Exact, Bf16]),
            (limbs(Exact, 2, 2), [F16, F16]),
            (limbs(Exact, 2, 1), [F16, Bf16]),
            (limbs(F16, 2, 2), [Exact, F16]),
            (limbs(Bf16, 1, 1), [Exact, Bf16]),
        ]
    };

    #[test]
    #[cfg(target_os = "linux")]
    fn products_are_counted() {
        assert_eq!(WAYS.map(|way| way.0.products()), [6, 5, 3, 4, 2, 3, 1]);
        assert!(WAYS.iter().all(|(limbs, _)| limbs.are_legal()));
        assert!(!Limbs { precision: Precision::Bf16, source: 2, weights: 1 }.are_legal());
    }

    /// Operands end or begin at inaccessible memory. Results are compared with sums in f64, and
    /// their errors with those of a chain of f32 multiply-adds of the rounded numbers.
    #[test]
    #[ignore = "needs tile registers: .ci/run runs it where there are some"]
    #[cfg(target_os = "linux")]
    fn products_are_right_and_stay_inside() {
        for (limbs, of) in WAYS {
            products_of_limbs_are_right_and_stay_inside(limbs, of);
        }
    }

    #[cfg(target_os = "linux")]
    fn products_of_limbs_are_right_and_stay_inside(limbs: Limbs, of: [Precision; 2]) {
        use crate::kernel::guard_page_tests::{Guarded, Side};
        let kernels = kernels().expect("a cpu with tile registers");
        let counts = [1, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE - 1, 2 * SIDE, 2 * SIDE + 1, 5 * SIDE + 3];
        let mut errors = [0f64; 2];
        let rounded = |of: Precision, len, seed| {
            let mut numbers = numbers(len, seed);
            kernels.round(of, &mut numbers);
            numbers
        };
        for (i, count) in counts.into_iter().enumerate() {
            for (side, sides, steps) in [Side::Before, Side::After]
                .into_iter()
                .flat_map(|s| [(s, 1, 0), (s, 1, 3), (s, 1, 4), (s, 2, 1), (s, 2, 9)])
            {
                // Taps are one position apart. There are enough pixels for all positions of the
                // last tile.
                let pixels = count.next_multiple_of(POSITIONS_AT_ONCE) + steps.max(1) - 1;
                let channels = if i % 2 == 0 { DEPTH } else { DEPTH - 1 - i };
                let mut x = Guarded::new(side, &rounded(of[0], pixels * channels, i as u32 + 1));
                let limb_stride = pixels * DEPTH;
                let mut data = Guarded::new(side, &vec![0xffffu16; limbs.source * limb_stride]);
                let most = kernels.split(&x, channels, (pixels, channels), &mut data, limb_stride, limbs);
                x.iter_mut().for_each(|x| *x = limbs.precision.rounded(*x));
                let expected = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                assert!(limbs.precision == Precision::Bf16 || f32::from_bits(most) == expected);
                for (pixel, from) in x.chunks(channels).enumerate() {
                    for c in 0..DEPTH {
                        let expected = limbs_of(from.get(c).copied().unwrap_or(0.0));
                        let got: Vec<u16> =
                            (0..limbs.source).map(|p| data[p * limb_stride + pixel * DEPTH + c]).collect();
                        assert_eq!(got, expected[..limbs.source], "pixel {pixel}, channel {c}");
                    }
                }
                let width = sides * SIDE;
                let w = rounded(of[1], steps * DEPTH * width, 77);
                let mut weights = Guarded::new(side, &vec![0xffffu16; steps * limbs.weights * sides * WEIGHTS_OF_SIDE]);
                for (s, to) in weights.chunks_mut(limbs.weights * sides * WEIGHTS_OF_SIDE).enumerate() {
                    // The source's missing channels have no products.
                    let from = &w[s * DEPTH * width..(s * DEPTH + channels) * width];
                    kernels.split_weights(&Guarded::new(side, from), sides, limbs.weights, to);
                    let whole: Vec<f32> =
                        from.iter().copied().chain(std::iter::repeat(0.0)).take(DEPTH * width).collect();
                    assert_eq!(to, packed(&whole, sides, limbs.weights));
                    let mut joined = vec![0.0; whole.len()];
                    kernels.join(to, sides, limbs.weights, &mut joined);
                    assert!(joined.iter().zip(&whole).all(|(joined, w)| (joined - w).abs() < 2f32.powi(-133)));
                }
                let bias = Guarded::new(side, &numbers(width, 5));
                let step_of =
                    |s: usize| MatrixStep { offset: s * DEPTH, weights: s * limbs.weights * sides * WEIGHTS_OF_SIDE };
                let list: Vec<MatrixStep> = (0..steps).map(step_of).collect();
                let source = LimbSource { data: &data, base: 0, step: DEPTH, limb_stride, limbs, steps: &list };
                let clamped = Some(Bounds { low: -1.0, high: 2.0 });
                for (stride, add, bounds) in [(width, false, None), (width + 5, true, None), (width, true, clamped)] {
                    let before = numbers((count - 1) * stride + width, 6);
                    let mut out = Guarded::new(side, &before);
                    let start = if add { Start::Add } else { Start::Bias(&bias) };
                    kernels.multiply((&weights, sides), &source, count, (start, bounds), &mut out, stride);
                    for (at, got) in out.iter().enumerate() {
                        let (p, m) = (at / stride, at % stride);
                        if m >= width {
                            assert_eq!(*got, before[at], "between rows");
                            continue;
                        }
                        let begin = if add { before[at] } else { bias[m] };
                        let (mut sum, mut all, mut chain) = (begin as f64, begin.abs() as f64, begin);
                        for (s, c) in (0..steps).flat_map(|s| (0..channels).map(move |c| (s, c))) {
                            let (a, b) = (x[(p + s) * channels + c], w[(s * DEPTH + c) * width + m]);
                            sum += a as f64 * b as f64;
                            all += (a as f64 * b as f64).abs();
                            chain = a.mul_add(b, chain);
                        }
                        if let Some(bounds) = bounds {
                            (sum, chain) = (sum.clamp(bounds.low.into(), bounds.high.into()), bounds.clamp(chain));
                        }
                        // If all numbers are tiny, allow for less than the rounding error of other
                        // sums.
                        let all = all.max(1e-20);
                        let error = (*got as f64 - sum).abs() / all;
                        // The product of two low limbs of f16.
                        let left_out = if limbs.precision == Precision::F16 { 2f64.powi(-16) } else { 0.0 };
                        assert!(
                            error < 1.5e-7 + left_out,
                            "{got} for {sum}, {count} positions, {sides} sides, {steps} steps, {limbs:?}"
                        );
                        errors[0] = errors[0].max(error);
                        errors[1] = errors[1].max((chain as f64 - sum).abs() / all);
                    }
                }
            }
        }
        let exact = limbs.precision != Precision::F16;
        assert!(!exact || errors[0] < errors[1], "errors of {errors:?}: limbs are to be no worse than f32");
        let _ = writeln!(std::io::stderr(), "products of {limbs:?}: error {:.1e}, of f32 {:.1e}", errors[0], errors[1]);
    }

    /// Numbers with fewer bits give the same bits in fewer products.
    #[test]
    #[ignore = "needs tile registers: .ci/run runs it where there are some"]
    #[cfg(target_os = "linux")]
    fn products_that_are_zero_change_no_bit() {
        let kernels = kernels().expect("a cpu with tile registers");
        let whole = Limbs { precision: Precision::Exact, source: LIMBS, weights: LIMBS };
        let fewer = WAYS.into_iter().filter(|(limbs, _)| limbs.precision == Precision::Exact && *limbs != whole);
        for ((limbs, of), (sides, steps, count)) in
            fewer.flat_map(|way| [(1, 3, 5usize), (1, 40, 64), (2, 1, 17), (2, 40, 70)].map(|size| (way, size)))
        {
            let (pixels, width) = (count.next_multiple_of(POSITIONS_AT_ONCE) + steps, sides * SIDE);
            let (mut x, mut w) = (numbers(pixels * DEPTH, 3), numbers(steps * DEPTH * width, 7));
            kernels.round(of[0], &mut x);
            kernels.round(of[1], &mut w);
            assert!(limbs_needed(Precision::Exact, &w) == Some(limbs.weights));
            let bias = numbers(width, 5);
            let sums = |limbs: Limbs| {
                let stride = pixels * DEPTH;
                let mut data = vec![0; limbs.source * stride];
                kernels.split(&x, DEPTH, (pixels, DEPTH), &mut data, stride, limbs);
                let per_step = limbs.weights * sides * WEIGHTS_OF_SIDE;
                let mut weights = vec![0; steps * per_step];
                for (from, to) in w.chunks(DEPTH * width).zip(weights.chunks_mut(per_step)) {
                    kernels.split_weights(from, sides, limbs.weights, to);
                }
                let steps: Vec<MatrixStep> =
                    (0..steps).map(|s| MatrixStep { offset: s * DEPTH, weights: s * per_step }).collect();
                let source =
                    LimbSource { data: &data, base: 0, step: DEPTH, limb_stride: stride, limbs, steps: &steps };
                let mut out = vec![0f32; count * width];
                kernels.multiply((&weights, sides), &source, count, (Start::Bias(&bias), None), &mut out, width);
                out.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            assert_eq!(sums(limbs), sums(whole), "{limbs:?}, {sides} sides, {steps} steps");
        }
    }

    /// Infinity, NaN, ties, numbers beyond the range and subnormals, rounded in vectors.
    #[test]
    #[ignore = "needs tile registers: .ci/run runs it where there are some"]
    #[cfg(target_os = "linux")]
    fn vectors_round_as_numbers_do() {
        let kernels = kernels().expect("a cpu with tile registers");
        let mut bits = 0x1234_5678u32;
        let ends =
            [0x7f80_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0x7f7f_ffff, 0x3f80_8000, 0x3f81_8000, 1, 0x8000];
        let any = std::iter::repeat_with(|| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bits
        });
        let numbers: Vec<f32> = ends.into_iter().chain(any).take(DEPTH * 64).map(f32::from_bits).collect();
        let mut to = vec![0u16; numbers.len()];
        let bf16 = Limbs { precision: Precision::Bf16, source: 1, weights: 1 };
        kernels.split(&numbers, DEPTH, (64, DEPTH), &mut to, DEPTH * 64, bf16);
        for (number, got) in numbers.iter().zip(&to) {
            let expected = Precision::Bf16.rounded(*number);
            assert_eq!(*got, (expected.to_bits() >> 16) as u16, "{:x}", number.to_bits());
        }
        // Numbers of f16's range are regular, so that their limbs add up to them.
        let f16 = Limbs { precision: Precision::F16, source: 2, weights: 2 };
        let mut small: Vec<f32> = numbers.iter().map(|number| f32::from_bits(number.to_bits() % 0x4780_0000)).collect();
        small[1] = 65_520.0;
        let mut to = vec![0u16; 2 * numbers.len()];
        let most = kernels.split(&small, DEPTH, (64, DEPTH), &mut to, DEPTH * 64, f16);
        assert!(most == f32::INFINITY.to_bits(), "65520 and more become infinity");
        for (i, number) in small.iter().enumerate() {
            let expected = Precision::F16.rounded(*number);
            if expected.is_finite() {
                assert_eq!(from_limb(to[numbers.len() + i]) + from_limb(to[i]), expected, "{number:e}");
            }
        }
    }
}
