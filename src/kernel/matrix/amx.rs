//! The instructions of tile registers, and the vector instructions around them.

use super::*;
use crate::kernel::bounds::clamp_all;
use crate::simd::vector::{F32x16, Quad16, Vector};
use std::arch::asm;
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
        let positions = positions as u8;
        Shapes::of_rows([positions, positions, positions, positions, positions, positions, SIDE as u8, SIDE as u8])
    }

    /// Shapes in which the rows of sums and of weights are output channels: those of two sides, or of one.
    fn of_channels([first, second]: [usize; 2]) -> Shapes {
        let (first, side) = (first as u8, SIDE as u8);
        let second = if second == 0 { first } else { second as u8 };
        Shapes::of_rows([first, second, first, second, side, side, first, second])
    }

    /// Shapes of so many rows of 64 bytes each.
    fn of_rows(of_tiles: [u8; 8]) -> Shapes {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        row_bytes[..8].fill(64);
        rows[..8].copy_from_slice(&of_tiles);
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

/// Four tiles of sums of 32 bits: `[position side][channel side][position][channel]`.
///
/// With one side of channels, there are two sums per element, which must be added.
#[repr(C, align(64))]
struct Sums(MaybeUninit<[u32; 4 * SIDE * SIDE]>);

/// # Safety
/// The assertions of [`MatrixKernels::multiply`] hold. The CPU has tile registers, and the
/// process may use them.
#[target_feature(enable = "avx512f")]
pub unsafe fn multiply(
    weights: &[u16],
    sides: usize,
    source: &LimbSource<f32>,
    count: usize,
    start_and_bounds: (Start<f32>, Option<Bounds<f32>>),
    out: &mut [f32],
    out_stride: usize,
) {
    // SAFETY: this function's contract. The tiles are those of the sides.
    unsafe {
        match sides {
            2 => multiply_sides::<F32x16, 2>(
                (weights, four_tiles(source.limbs)),
                source,
                count,
                start_and_bounds,
                out,
                out_stride,
            ),
            _ => multiply_sides::<F32x16, 1>(
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

/// Sums two tile registers of positions, so many limbs apart, times one or two of channels, over all steps of a
/// source.
type Tiles<T> = unsafe fn(
    from: *const <T as Working>::Limb,
    distance: usize,
    source: &LimbSource<T>,
    weights: &[<T as Working>::Limb],
    sums: &mut Sums,
);

/// # Safety
/// As [`multiply`]. The tiles have as many sides of channels. Vectors are those of AVX-512 and have [`SIDE`] lanes of
/// 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_sides<V: Vector, const SIDES: usize>(
    (weights, tiles): (&[<V::Lane as Working>::Limb], Tiles<V::Lane>),
    source: &LimbSource<V::Lane>,
    count: usize,
    start_and_bounds: (Start<V::Lane>, Option<Bounds<V::Lane>>),
    out: &mut [V::Lane],
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
            tiles(from, rows * source.step, source, weights, &mut sums[turn % 2]);
            if let Some((turn, first)) = made.replace((turn, first)) {
                let to = out.as_mut_ptr().add(first * out_stride);
                finish::<V, SIDES>(&sums[turn % 2], rows, 2 * rows, start_and_bounds, to, out_stride);
            }
        }
        drop(configured);
        if let Some((turn, first)) = made {
            let to = out.as_mut_ptr().add(first * out_stride);
            finish::<V, SIDES>(&sums[turn % 2], rows, count - first, start_and_bounds, to, out_stride);
        }
    }
}

/// Adds sums to the bias or to the contents of the output, and clamps the results to the bounds.
///
/// # Safety
/// `sums` are those of tiles of `rows` rows, all written, and are of the type of the lanes. From `to` on, `positions`
/// positions can be written, `stride` apart, each with `SIDES · SIDE` elements. Vectors are those of AVX-512 and have
/// [`SIDE`] lanes of 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn finish<V: Vector, const SIDES: usize>(
    sums: &Sums,
    rows: usize,
    positions: usize,
    (start, bounds): (Start<V::Lane>, Option<Bounds<V::Lane>>),
    to: *mut V::Lane,
    stride: usize,
) {
    const { assert!(V::LANES == SIDE && size_of::<V::Lane>() == size_of::<u32>()) }
    let sums = sums.0.as_ptr().cast::<V::Lane>();
    // SAFETY: this function's contract. A bias has `SIDES · SIDE` values.
    unsafe {
        let mut values = [V::splat(V::Lane::ZERO); SIDES];
        if let Start::Bias(bias) = start {
            for (side, value) in values.iter_mut().enumerate() {
                *value = V::load(bias.as_ptr().add(side * SIDE));
            }
        }
        for half in 0..2 {
            let first = half * rows;
            for p in first..positions.min(first + rows) {
                for (side, value) in values.iter().enumerate() {
                    // Two sides have one tile each. A single side has two tiles.
                    let tile = half * 2 + if SIDES == 2 { side } else { 0 };
                    let mut sum = V::load(sums.add((tile * SIDE + p - first) * SIDE));
                    if SIDES == 1 {
                        sum = sum.plus(V::load(sums.add(((tile + 1) * SIDE + p - first) * SIDE)));
                    }
                    let to = to.add(p * stride + side * SIDE);
                    let before = if let Start::Add = start { V::load(to) } else { *value };
                    let [result] = clamp_all([before.plus(sum)], bounds);
                    result.store(to);
                }
            }
        }
    }
}

/// # Safety
/// The assertions of [`PlaneKernels::multiply`] hold, and there is a row. The CPU has tile registers, and the process may
/// use them.
#[target_feature(enable = "avx512f")]
pub unsafe fn multiply_planes(
    weights: &[u16],
    source: &LimbSource<f32>,
    start_and_bounds: (Start<f32>, Option<Bounds<f32>>),
    rows: &mut [&mut [f32]],
) {
    let first_side = rows.len().min(SIDE);
    let of_sides = [first_side, rows.len() - first_side];
    let two_sides = of_sides[1] > 0;
    // SAFETY: this function's contract. The tiles are those of the sides.
    unsafe {
        let tiles = if two_sides { four_tiles_of_planes(source.limbs) } else { two_tiles_of_planes(source.limbs) };
        let shapes = Shapes::of_channels(of_sides);
        // As in `multiply_sides`.
        let mut sums = [const { Sums(MaybeUninit::uninit()) }; 2];
        let mut made = None;
        let configured = Configured::new(&shapes);
        for (turn, first) in (0..rows[0].len()).step_by(POSITIONS_AT_ONCE).enumerate() {
            let from = source.data.as_ptr().add(source.base + first * LIMBS_OF_PAIR);
            tiles(from, SIDE * LIMBS_OF_PAIR, source, weights, &mut sums[turn % 2]);
            if let Some((turn, first)) = made.replace((turn, first)) {
                finish_planes(&sums[turn % 2], two_sides, start_and_bounds, rows, first);
            }
        }
        drop(configured);
        if let Some((turn, first)) = made {
            finish_planes(&sums[turn % 2], two_sides, start_and_bounds, rows, first);
        }
    }
}

/// As [`finish`], for sums whose rows are output channels, from a position on.
///
/// # Safety
/// `sums` are all written: those of up to two sides of rows. A bias has a value of each row. Rows have equal lengths.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn finish_planes(
    sums: &Sums,
    two_sides: bool,
    (start, bounds): (Start<f32>, Option<Bounds<f32>>),
    rows: &mut [&mut [f32]],
    first: usize,
) {
    let sums = sums.0.as_ptr().cast::<f32>();
    for (channel, row) in rows.iter_mut().enumerate() {
        let (side, at) = (channel / SIDE, channel % SIDE);
        for half in 0..2 {
            let Some(left) = row.len().checked_sub(first + half * SIDE).filter(|left| *left > 0) else { break };
            let (count, tile) = (left.min(SIDE), 2 * half + side);
            // SAFETY: this function's contract. No more is loaded and stored than the row has.
            unsafe {
                let to = row.as_mut_ptr().add(first + half * SIDE);
                let mut sum = F32x16::load(sums.add((tile * SIDE + at) * SIDE));
                if !two_sides {
                    sum = sum.plus(F32x16::load(sums.add(((tile + 1) * SIDE + at) * SIDE)));
                }
                let before = match start {
                    Start::Add => F32x16::load_some(to, u16::MAX >> (SIDE - count)),
                    Start::Bias(bias) => F32x16::splat(bias[channel]),
                };
                let [result] = clamp_all([before.plus(sum)], bounds);
                if count == SIDE { result.store(to) } else { result.store_first(count, to) }
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

/// Adds the product of a tile of positions and one of weights to a sum. The rows of the sum are positions, or
/// output channels.
macro_rules! product {
    (positions, $product:tt, $sum:tt, $position:tt, $weight:tt) => {
        concat!($product, " ", $sum, ", ", $position, ", ", $weight, "\n")
    };
    (channels, $product:tt, $sum:tt, $position:tt, $weight:tt) => {
        concat!($product, " ", $sum, ", ", $weight, ", ", $position, "\n")
    };
}

/// Finds the weights of the next step, or those of the first one if there is none.
macro_rules! find_next_weights {
    () => {
        concat!(
            "lea {next}, [{at} + 16]\n cmp {next}, {end}\n cmove {next}, {begin}\n",
            "mov {next}, [{next} + 8]\n lea {next}, [{weights} + 2*{next}]\n",
        )
    };
}

/// Prefetches a limb of the weights of the next step, for one side of channels or two.
macro_rules! prefetch_weights {
    (1, $limb:tt) => {
        prefetch_weights!($limb, "1024": 0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960)
    };
    (2, $limb:tt) => {
        concat!(
            prefetch_weights!($limb, "2048": 0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960),
            prefetch_weights!($limb, "2048": 1024 1088 1152 1216 1280 1344 1408 1472),
            prefetch_weights!($limb, "2048": 1536 1600 1664 1728 1792 1856 1920 1984),
        )
    };
    ($limb:tt, $bytes:literal: $($line:literal)+) => {
        concat!($("prefetcht0 [{next} + ", $bytes, "*", $limb, " + ", $line, "]\n",)+)
    };
}

/// Multiplies positions by weights. With one side of channels there are only two sums, which
/// would wait for each other, so alternating products have sums of their own.
macro_rules! products {
    ($rows:tt, $sides:tt, $turn:tt) => {
        products!($rows, $sides, $turn, "tdpbf16ps")
    };
    ($rows:tt, 2, $turn:tt, $product:tt) => {
        concat!(
            product!($rows, $product, "tmm0", "tmm4", "tmm6"),
            product!($rows, $product, "tmm1", "tmm4", "tmm7"),
            product!($rows, $product, "tmm2", "tmm5", "tmm6"),
            product!($rows, $product, "tmm3", "tmm5", "tmm7"),
        )
    };
    ($rows:tt, 1, even, $product:tt) => {
        concat!(product!($rows, $product, "tmm0", "tmm4", "tmm6"), product!($rows, $product, "tmm2", "tmm5", "tmm6"),)
    };
    ($rows:tt, 1, odd, $product:tt) => {
        concat!(product!($rows, $product, "tmm1", "tmm4", "tmm6"), product!($rows, $product, "tmm3", "tmm5", "tmm6"),)
    };
}

/// Moves to the next higher limb of positions.
macro_rules! higher_limb {
    () => {
        "sub {x}, {limb_bytes}\n sub {y}, {limb_bytes}\n"
    };
}

/// Finds the positions and the weights of a step. Limbs have so many bytes.
macro_rules! find_step {
    ($bytes:tt) => {
        concat!(
            "mov {x}, [{at}]\n mov {w}, [{at} + 8]\n",
            "lea {w}, [{weights} + ",
            $bytes,
            "*{w}]\n lea {x}, [{from} + ",
            $bytes,
            "*{x}]\n lea {y}, [{x} + {side}]\n",
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
    ($rows:tt, $sides:tt) => {
        concat!(
            "lea {x}, [{x} + 2*{limb_bytes}]\n lea {y}, [{y} + 2*{limb_bytes}]\n",
            load_positions!(),
            load_weights!($sides, 0),
            products!($rows, $sides, even),
            higher_limb!(),
            load_positions!(),
            products!($rows, $sides, odd),
        )
    };
}

/// As [`lowest_of_three`], for two limbs of positions.
macro_rules! lowest_of_two {
    ($rows:tt, $sides:tt) => {
        concat!(
            "add {x}, {limb_bytes}\n add {y}, {limb_bytes}\n",
            load_positions!(),
            load_weights!($sides, 0),
            products!($rows, $sides, odd),
        )
    };
}

/// The products of the second limb of weights, after those of the first one.
macro_rules! second_of_weights {
    ($rows:tt, $sides:tt) => {
        concat!(
            load_weights!($sides, 1),
            products!($rows, $sides, even),
            higher_limb!(),
            load_positions!(),
            products!($rows, $sides, odd),
        )
    };
}

/// Sums the large products of all steps: those of two high limbs.
macro_rules! large_products {
    ($rows:tt, $sides:tt) => {
        concat!(
            "mov {at}, {begin}\n 3:\n",
            find_step!("2"),
            load_positions!(),
            load_weights!($sides, 0),
            products!($rows, $sides, odd),
            next_step!("jne 3b"),
        )
    };
}

/// Sums the small products of all steps, then the large ones.
macro_rules! small_then_large {
    ($rows:tt, $sides:tt, $($small:expr),+) => {
        concat!("mov {at}, {begin}\n 2:\n", find_step!("2"), $($small),+, next_step!("jne 2b"), large_products!($rows, $sides))
    };
}

/// Sums the products of all steps that have one product each. With one side of channels, steps take
/// turns between the sums. The instruction is one of limbs of so many bytes.
macro_rules! single_products {
    ($rows:tt, 2, $product:tt, $bytes:tt) => {
        concat!(
            "mov {at}, {begin}\n 3:\n",
            find_step!($bytes),
            // Products begin before all tiles of their step are loaded.
            "tileloadd tmm6, [{w} + {line}]\n tileloadd tmm4, [{x} + {row}]\n",
            product!($rows, $product, "tmm0", "tmm4", "tmm6"),
            "tileloadd tmm5, [{y} + {row}]\n",
            product!($rows, $product, "tmm2", "tmm5", "tmm6"),
            "tileloadd tmm7, [{w} + {line} + 1024]\n",
            product!($rows, $product, "tmm1", "tmm4", "tmm7"),
            product!($rows, $product, "tmm3", "tmm5", "tmm7"),
            next_step!("jne 3b"),
        )
    };
    ($rows:tt, 1, $product:tt, $bytes:tt) => {
        concat!(
            "mov {at}, {begin}\n 3:\n",
            find_step!($bytes),
            load_positions!(),
            load_weights!(1, 0),
            products!($rows, 1, even, $product),
            next_step!("je 4f"),
            find_step!($bytes),
            load_positions!(),
            load_weights!(1, 0),
            products!($rows, 1, odd, $product),
            next_step!("jne 3b"),
            "4:\n",
        )
    };
}

/// A function that sums tiles of products of a type by a list of instructions.
macro_rules! tile_sums {
    ($t:ty, $template:expr) => {{
        const LIMB_BYTES: usize = size_of::<<$t as Working>::Limb>();
        /// # Safety
        /// The CPU has tile registers, which are [`Configured`] for these operands. From `from` on, the source
        /// has two tiles, `distance` limbs apart, of each step. `weights` has the limbs and sides of each step.
        unsafe fn sum(
            from: *const <$t as Working>::Limb,
            distance: usize,
            source: &LimbSource<$t>,
            weights: &[<$t as Working>::Limb],
            sums: &mut Sums,
        ) {
            if source.steps.is_empty() {
                sums.0.write([0; 4 * SIDE * SIDE]);
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
                    // Not all lists read more than one limb, or prefetch.
                    "/* {limb_bytes} {next} */",
                    next = out(reg) _,
                    at = out(reg) _, x = out(reg) _, y = out(reg) _, w = out(reg) _,
                    weights = in(reg) weights.as_ptr(),
                    begin = in(reg) steps.start, end = in(reg) steps.end,
                    from = in(reg) from,
                    side = in(reg) distance * LIMB_BYTES,
                    row = in(reg) source.step * LIMB_BYTES,
                    limb_bytes = in(reg) source.limb_stride * LIMB_BYTES,
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
    ($(#[$doc:meta])* $name:ident, $rows:tt, $sides:tt) => {
        $(#[$doc])*
        fn $name(limbs: Limbs) -> Tiles<f32> {
            match (limbs.precision, limbs.source, limbs.weights) {
                (Precision::Bf16, ..) => tile_sums!(f32, single_products!($rows, $sides, "tdpbf16ps", "2")),
                (_, 2, 1) => tile_sums!(f32, small_then_large!($rows, $sides, lowest_of_two!($rows, $sides))),
                (Precision::F16, ..) => tile_sums!(f32, small_then_large!(
                    $rows,
                    $sides,
                    lowest_of_two!($rows, $sides),
                    load_weights!($sides, 1),
                    higher_limb!(),
                    load_positions!(),
                    products!($rows, $sides, even)
                )),
                (_, 2, _) => tile_sums!(f32, small_then_large!(
                    $rows,
                    $sides,
                    lowest_of_two!($rows, $sides),
                    second_of_weights!($rows, $sides)
                )),
                (_, _, 1) => tile_sums!(f32, small_then_large!($rows, $sides, lowest_of_three!($rows, $sides))),
                (_, _, 2) => tile_sums!(f32, small_then_large!(
                    $rows,
                    $sides,
                    lowest_of_three!($rows, $sides),
                    second_of_weights!($rows, $sides)
                )),
                _ => tile_sums!(f32, small_then_large!(
                    $rows,
                    $sides,
                    // Weights from beyond L2 arrive while the products of this step are computed.
                    find_next_weights!(),
                    lowest_of_three!($rows, $sides),
                    prefetch_weights!($sides, 0),
                    second_of_weights!($rows, $sides),
                    prefetch_weights!($sides, 1),
                    load_weights!($sides, 2),
                    products!($rows, $sides, even),
                    prefetch_weights!($sides, 2)
                )),
            }
        }
    };
}

tiles! {
    /// The tiles for two sides of channels.
    four_tiles, positions, 2
}
tiles! {
    /// The tiles for one side of channels.
    two_tiles, positions, 1
}
tiles! {
    /// The tiles for two sides of channels, which are the rows of sums.
    four_tiles_of_planes, channels, 2
}
tiles! {
    /// The tiles for one side of channels, which are the rows of sums.
    two_tiles_of_planes, channels, 1
}

/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f")]
pub unsafe fn multiply_quads(
    weights: &[Quad],
    sides: usize,
    source: &LimbSource<Quad>,
    count: usize,
    start_and_bounds: (Start<Quad>, Option<Bounds<Quad>>),
    out: &mut [Quad],
    out_stride: usize,
) {
    // SAFETY: this function's contract. The tiles are those of the sides.
    unsafe {
        match sides {
            2 => {
                let tiles = tile_sums!(Quad, single_products!(positions, 2, "tdpbusd", "4"));
                multiply_sides::<Quad16, 2>((weights, tiles), source, count, start_and_bounds, out, out_stride)
            }
            _ => {
                let tiles = tile_sums!(Quad, single_products!(positions, 1, "tdpbusd", "4"));
                multiply_sides::<Quad16, 1>((weights, tiles), source, count, start_and_bounds, out, out_stride)
            }
        }
    }
}
