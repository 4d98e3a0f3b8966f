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
//! This does not hold at the ends of f32's range: the unit takes subnormals for zero, and the limbs
//! of infinity include NaN. [`is_regular`] tells for which numbers this makes no difference. Others
//! must not be multiplied here.

use crate::compute::Compute;
use crate::kernel::extent::{product, reach, rounded_up};
use crate::kernel::gemm_tile::Start;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::tile_registers;

/// Positions, and output channels, of a tile register.
pub(crate) const SIDE: usize = 16;

/// Input channels that one step multiplies.
pub(crate) const DEPTH: usize = 32;

/// Limbs of a number.
pub(crate) const LIMBS: usize = 3;

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
        let bits = rest.to_bits();
        // ties away from zero
        let limb = ((bits + if i < LIMBS - 1 { 0x8000 } else { 0 }) >> 16) as u16;
        rest -= from_limb(limb);
        limb
    })
}

/// The value of a limb.
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
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
            (LIMBS - 1, self.limb_stride),
            (DEPTH, 1),
        ])
    }
}

/// The most positions that are multiplied together. The source must have a multiple of this many
/// positions per run.
pub(crate) const POSITIONS_AT_ONCE: usize = 2 * SIDE;

type Split<T> =
    unsafe fn(from: &[T], from_step: usize, size: (usize, usize), to: &mut [u16], limb_stride: usize) -> u32;
type Join<T> = fn(weights: &[u16], sides: usize, to: &mut [T]);
type SplitWeights<T> = unsafe fn(from: &[T], sides: usize, to: &mut [u16]);
type Multiply<T> = unsafe fn(
    weights: &[u16],
    sides: usize,
    source: &LimbSource,
    count: usize,
    start: Start<T>,
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
    multiply: Multiply<T>,
}

impl<T: Compute> MatrixKernels<T> {
    /// Splits `count` pixels of up to [`DEPTH`] channels, `from_step` apart, into limbs, and
    /// returns the bits of the largest magnitude.
    ///
    /// Limbs are `limb_stride` elements apart and pixels are [`DEPTH`] elements apart. Missing
    /// channels are zero.
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
    ) -> u32 {
        let Some(last) = count.checked_sub(1) else { return 0 };
        assert!((1..=DEPTH).contains(&channels) && reach([(last, from_step), (channels, 1)]) <= from.len());
        assert!(
            product([count, DEPTH]) <= limb_stride && reach([(LIMBS - 1, limb_stride), (count, DEPTH)]) <= to.len()
        );
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split)(from, from_step, (count, channels), to, limb_stride) }
    }

    /// Splits the weights of a step, `[input channel][output channel]` for up to [`DEPTH`] input
    /// channels, into limbs, `[limb][side][WEIGHTS_OF_SIDE]`. Missing channels are zero.
    ///
    /// # Panics
    /// A slice is too short, or there are more channels.
    pub fn split_weights(&self, from: &[T], sides: usize, to: &mut [u16]) {
        assert!((1..=2).contains(&sides) && from.len().is_multiple_of(sides * SIDE));
        assert!(from.len() <= DEPTH * sides * SIDE && LIMBS * sides * WEIGHTS_OF_SIDE <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split_weights)(from, sides, to) }
    }

    /// Joins the limbs of a tap's weights,
    /// `[block of input channels][limb][side][WEIGHTS_OF_SIDE]`, to numbers,
    /// `[input channel][output channel]`.
    ///
    /// # Panics
    /// There are fewer weights than elements in `to`.
    pub fn join(&self, weights: &[u16], sides: usize, to: &mut [T]) {
        (self.join)(weights, sides, to)
    }

    /// `out[p·out_stride + m] (+)= Σ a(p, s, c)·b(s, c, m)` for `count` positions and
    /// `sides · SIDE` output channels, over steps `s` and their channels `c`.
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
        start: Start<T>,
        out: &mut [T],
        out_stride: usize,
    ) {
        let Some(last) = count.checked_sub(1) else { return };
        assert!((1..=2).contains(&sides));
        let limbs_per_step = LIMBS * sides * WEIGHTS_OF_SIDE;
        assert!(source.steps.iter().all(|step| reach([(step.weights, 1), (limbs_per_step, 1)]) <= weights.len()));
        assert!(source.reach(rounded_up(count, POSITIONS_AT_ONCE)) <= source.data.len());
        assert!(reach([(last, out_stride), (sides, SIDE)]) <= out.len());
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= sides * SIDE);
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.multiply)(weights, sides, source, count, start, out, out_stride) }
    }
}

/// The kernels for f32, if there are any. This requests tile registers for the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn kernels() -> Option<&'static MatrixKernels<f32>> {
    static KERNELS: MatrixKernels<f32> = MatrixKernels {
        split: instructions::split,
        split_weights: instructions::split_weights,
        join,
        multiply: instructions::multiply,
    };
    tile_registers::are_permitted().then_some(&KERNELS)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn join(weights: &[u16], sides: usize, to: &mut [f32]) {
    let (width, limb_len) = (sides * SIDE, sides * WEIGHTS_OF_SIDE);
    for (block, to) in weights.chunks(LIMBS * limb_len).zip(to.chunks_mut(DEPTH * width)) {
        for (c, row) in to.chunks_mut(width).enumerate() {
            for (m, to) in row.iter_mut().enumerate() {
                let at = m / SIDE * WEIGHTS_OF_SIDE + (c / 2 * SIDE + m % SIDE) * 2 + c % 2;
                // Small limbs first, so that the sum is exact.
                *to = (0..LIMBS).rev().map(|p| from_limb(block[p * limb_len + at])).sum::<f32>();
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
                let rest =
                    [_mm512_maskz_loadu_ps(masks[0], from), _mm512_maskz_loadu_ps(masks[1], from.wrapping_add(SIDE))];
                for x in rest {
                    most = _mm512_max_epu32(most, _mm512_and_si512(magnitude, _mm512_castps_si512(x)));
                }
                for [low, high] in halves_of(rest) {
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
    pub unsafe fn split_weights(from: &[f32], sides: usize, to: &mut [u16]) {
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
                for (limb, [low, high]) in halves_of(rest).into_iter().enumerate() {
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

    /// The limbs of two vectors of numbers, in the upper half of each lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn halves_of(numbers: [__m512; 2]) -> [[__m512i; 2]; LIMBS] {
        let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000u32 as i32));
        // No closures, as the compiler does not always inline them.
        let mut limbs = [[_mm512_setzero_si512(); 2]; LIMBS];
        for (i, number) in numbers.into_iter().enumerate() {
            let mut rest = number;
            for limb in limbs.iter_mut().take(LIMBS - 1) {
                limb[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half), upper);
                rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(limb[i]));
            }
            // The remainder has no more bits than a limb, up to an error below 2^-133.
            limbs[LIMBS - 1][i] = _mm512_castps_si512(rest);
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
        start: Start<f32>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        // SAFETY: this function's contract.
        unsafe {
            match sides {
                2 => multiply_sides::<2>(weights, source, count, start, out, out_stride),
                _ => multiply_sides::<1>(weights, source, count, start, out, out_stride),
            }
        }
    }

    /// # Safety
    /// As [`multiply`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply_sides<const SIDES: usize>(
        weights: &[u16],
        source: &LimbSource,
        count: usize,
        start: Start<f32>,
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
                match SIDES {
                    2 => four_tiles(from, rows, source, weights, &mut sums[turn % 2]),
                    _ => two_tiles(from, rows, source, weights, &mut sums[turn % 2]),
                }
                if let Some((turn, first)) = made.replace((turn, first)) {
                    let to = out.as_mut_ptr().add(first * out_stride);
                    finish::<SIDES>(&sums[turn % 2], rows, 2 * rows, start, to, out_stride);
                }
            }
            drop(configured);
            if let Some((turn, first)) = made {
                let to = out.as_mut_ptr().add(first * out_stride);
                finish::<SIDES>(&sums[turn % 2], rows, count - first, start, to, out_stride);
            }
        }
    }

    /// Adds sums to the bias or to the contents of the output.
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
        start: Start<f32>,
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
                        _mm512_storeu_ps(to, _mm512_add_ps(before, sum));
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

    /// Sums two tile registers of positions times one or two of channels, over all steps of a
    /// source.
    ///
    /// The small products come first: all but those of two high limbs. The large ones follow.
    macro_rules! tiles {
        ($(#[$doc:meta])* $name:ident, $sides:tt) => {
            $(#[$doc])*
            #[inline(always)]
            unsafe fn $name(from: *const u16, rows: usize, source: &LimbSource, weights: &[u16], sums: &mut Sums) {
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
                        "mov {at}, {begin}",
                        "2:",
                        "mov {x}, [{at}]",
                        "mov {w}, [{at} + 8]",
                        "lea {w}, [{weights} + 2*{w}]",
                        "lea {x}, [{from} + 2*{x}]",
                        "lea {y}, [{x} + {side}]",
                        "lea {x}, [{x} + 2*{limb_bytes}]", "lea {y}, [{y} + 2*{limb_bytes}]",
                        load_positions!(), load_weights!($sides, 0), products!($sides, even),
                        "sub {x}, {limb_bytes}", "sub {y}, {limb_bytes}",
                        load_positions!(), products!($sides, odd),
                        load_weights!($sides, 1), products!($sides, even),
                        "sub {x}, {limb_bytes}", "sub {y}, {limb_bytes}",
                        load_positions!(), products!($sides, odd),
                        load_weights!($sides, 2), products!($sides, even),
                        "add {at}, 16",
                        "cmp {at}, {end}",
                        "jne 2b",
                        "mov {at}, {begin}",
                        "3:",
                        "mov {x}, [{at}]",
                        "mov {w}, [{at} + 8]",
                        "lea {w}, [{weights} + 2*{w}]",
                        "lea {x}, [{from} + 2*{x}]",
                        "lea {y}, [{x} + {side}]",
                        load_positions!(),
                        load_weights!($sides, 0), products!($sides, odd),
                        "add {at}, 16",
                        "cmp {at}, {end}",
                        "jne 3b",
                        "tilestored [{sums} + {line}], tmm0",
                        "tilestored [{sums} + {line} + 1024], tmm1",
                        "tilestored [{sums} + {line} + 2048], tmm2",
                        "tilestored [{sums} + {line} + 3072], tmm3",
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
        };
    }

    tiles! {
        /// # Safety
        /// The CPU has tile registers, which are [`Configured`] with shapes of `rows` rows. From
        /// `from` on, the source has `2 · rows` positions. `weights` has two sides per step.
        four_tiles, 2
    }
    tiles! {
        /// # Safety
        /// As [`four_tiles`], for one side of channels.
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
    fn packed(weights: &[f32], sides: usize) -> Vec<u16> {
        let limbs_per_step = LIMBS * sides * WEIGHTS_OF_SIDE;
        let mut packed = vec![0; weights.len() / (DEPTH * sides * SIDE) * limbs_per_step];
        for (i, w) in weights.iter().enumerate() {
            let (m, c, step) = (i % (sides * SIDE), i / (sides * SIDE) % DEPTH, i / (sides * SIDE * DEPTH));
            for (p, limb) in limbs_of(*w).into_iter().enumerate() {
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

    /// Operands end or begin at inaccessible memory. Results are compared with sums in f64, and
    /// their errors with those of a chain of f32 multiply-adds.
    #[test]
    #[ignore = "needs tile registers: .ci/run runs it where there are some"]
    #[cfg(target_os = "linux")]
    fn products_are_right_and_stay_inside() {
        use crate::kernel::guard_page_tests::{Guarded, Side};
        let kernels = kernels().expect("a cpu with tile registers");
        let counts = [1, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE - 1, 2 * SIDE, 2 * SIDE + 1, 5 * SIDE + 3];
        let mut errors = [0f64; 2];
        for (i, count) in counts.into_iter().enumerate() {
            for (side, sides, steps) in
                [Side::Before, Side::After].into_iter().flat_map(|s| [(s, 1, 0), (s, 1, 3), (s, 2, 1), (s, 2, 9)])
            {
                // Taps are one position apart. There are enough pixels for all positions of the
                // last tile.
                let pixels = count.next_multiple_of(POSITIONS_AT_ONCE) + steps.max(1) - 1;
                let channels = if i % 2 == 0 { DEPTH } else { DEPTH - 1 - i };
                let x = Guarded::new(side, &numbers(pixels * channels, i as u32 + 1));
                let limb_stride = pixels * DEPTH;
                let mut limbs = Guarded::new(side, &vec![0xffffu16; LIMBS * limb_stride]);
                let most = kernels.split(&x, channels, (pixels, channels), &mut limbs, limb_stride);
                assert_eq!(f32::from_bits(most), x.iter().fold(0f32, |most, x| most.max(x.abs())));
                for (pixel, from) in x.chunks(channels).enumerate() {
                    for c in 0..DEPTH {
                        let expected = limbs_of(from.get(c).copied().unwrap_or(0.0));
                        let got: [u16; LIMBS] = std::array::from_fn(|p| limbs[p * limb_stride + pixel * DEPTH + c]);
                        assert_eq!(got, expected, "pixel {pixel}, channel {c}");
                    }
                }
                let width = sides * SIDE;
                let w = numbers(steps * DEPTH * width, 77);
                let expected = packed(&w, sides);
                let mut weights = Guarded::new(side, &vec![0xffffu16; expected.len()]);
                for (s, to) in weights.chunks_mut(LIMBS * sides * WEIGHTS_OF_SIDE).enumerate() {
                    // The source's missing channels have no products.
                    let from = &w[s * DEPTH * width..(s * DEPTH + channels) * width];
                    kernels.split_weights(&Guarded::new(side, from), sides, to);
                    let whole: Vec<f32> =
                        from.iter().copied().chain(std::iter::repeat(0.0)).take(DEPTH * width).collect();
                    assert_eq!(to, packed(&whole, sides));
                    let mut joined = vec![0.0; whole.len()];
                    kernels.join(to, sides, &mut joined);
                    assert!(joined.iter().zip(&whole).all(|(joined, w)| (joined - w).abs() < 2f32.powi(-133)));
                }
                let bias = Guarded::new(side, &numbers(width, 5));
                let step_of = |s: usize| MatrixStep { offset: s * DEPTH, weights: s * LIMBS * sides * WEIGHTS_OF_SIDE };
                let list: Vec<MatrixStep> = (0..steps).map(step_of).collect();
                let source = LimbSource { data: &limbs, base: 0, step: DEPTH, limb_stride, steps: &list };
                for (stride, add) in [(width, false), (width + 5, true)] {
                    let before = numbers((count - 1) * stride + width, 6);
                    let mut out = Guarded::new(side, &before);
                    let start = if add { Start::Add } else { Start::Bias(&bias) };
                    kernels.multiply((&weights, sides), &source, count, start, &mut out, stride);
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
                        // If all numbers are tiny, allow for less than the rounding error of other
                        // sums.
                        let all = all.max(1e-20);
                        let error = (*got as f64 - sum).abs() / all;
                        assert!(error < 1.5e-7, "{got} for {sum}, {count} positions, {sides} sides, {steps} steps");
                        errors[0] = errors[0].max(error);
                        errors[1] = errors[1].max((chain as f64 - sum).abs() / all);
                    }
                }
            }
        }
        assert!(errors[0] < errors[1], "errors of {errors:?}: limbs are to be no worse than f32");
        let _ = writeln!(std::io::stderr(), "products of matrices: error {:.1e}, of f32 {:.1e}", errors[0], errors[1]);
    }
}
