//! Products of numbers rounded to bf16, in vectors that multiply pairs of bf16 and add in f32.
//!
//! Operands have the order that tile registers read: see [`MatrixKernels`] and [`PlaneKernels`]. The products of
//! all steps are summed before the bias, or what the output has, is added.

use super::*;
use crate::kernel::bounds::clamp_all;
use crate::ranges::even_part;
use crate::simd::bf16::Bf16Dots;
use crate::simd::vector::Vector;

/// Elements of one row of a tile: the [`depth`] channels of a position, or of an output channel's weights.
const ROW: usize = depth::<f32>();

/// Elements of a pair of channels.
const PAIR: usize = 2;

/// Calls `$body` with a constant `$N` of the value of `$size`, which is one of the list.
macro_rules! with_constant {
    ($size:expr, $N:ident of $($n:literal)+ => $body:expr) => {
        match $size {
            $($n => {
                const $N: usize = $n;
                $body
            })+
            _ => unreachable!("a tile of another size"),
        }
    };
}

/// Defines the kernels of a vector type: a module with `multiply` and `multiply_planes`, compiled with a feature.
///
/// Tiles of pixels have up to `$most` positions and `$vectors` vectors of output channels, those of planes as many
/// output channels and vectors of positions. `$size` lists all numbers up to `$most`.
macro_rules! dots {
    ($name:ident, $vector:ty, $feature:literal, $vectors:literal, [$most:literal: $($size:literal)+]) => {
        pub(super) mod $name {
            use super::*;

            /// Output channels of a tile of pixels, and positions of one of planes.
            const WIDTH: usize = $vectors * <$vector as Vector>::LANES;

            /// # Safety
            /// The assertions of [`MatrixKernels::multiply`] hold, and numbers are rounded to bf16. The CPU has
            /// products of pairs of bf16.
            #[target_feature(enable = $feature)]
            pub unsafe fn multiply(
                weights: &[u16],
                sides: usize,
                source: &LimbSource<f32>,
                count: usize,
                (start, bounds): (Start<f32>, Option<Bounds<f32>>),
                out: &mut [f32],
                out_stride: usize,
            ) {
                let most = even_part(count, $most);
                for first in (0..count).step_by(most) {
                    for channel in (0..sides * SIDE).step_by(WIDTH) {
                        let one_side = sides * SIDE - channel < WIDTH;
                        // SAFETY: the positions and channels exist, by this function's contract.
                        unsafe {
                            let from = source.data.as_ptr().add(source.base + first * ROW);
                            let to = out.as_mut_ptr().add(first * out_stride + channel);
                            let weights = weights.as_ptr().add(of_channel::<$vector>(channel));
                            let start = match start {
                                Start::Add => Start::Add,
                                Start::Bias(bias) => Start::Bias(&bias[channel..]),
                            };
                            let tile = (from, weights, source.steps, (start, bounds), to, out_stride);
                            with_constant!(most.min(count - first), N of $($size)+ => match one_side {
                                true => pixel_tile::<$vector, N, { vectors_of_side::<$vector>() }>(tile),
                                false => pixel_tile::<$vector, N, $vectors>(tile),
                            })
                        }
                    }
                }
            }

            /// # Safety
            /// The assertions of [`PlaneKernels::multiply`] hold, and numbers are rounded to bf16. The CPU has
            /// products of pairs of bf16.
            #[target_feature(enable = $feature)]
            pub unsafe fn multiply_planes(
                weights: &[u16],
                source: &LimbSource<f32>,
                (start, bounds): (Start<f32>, Option<Bounds<f32>>),
                rows: &mut [&mut [f32]],
            ) {
                let (count, most) = (rows[0].len(), even_part(rows.len(), $most));
                for first in (0..count).step_by(WIDTH) {
                    for (tile, rows) in rows.chunks_mut(most).enumerate() {
                        // SAFETY: the positions and channels exist, by this function's contract.
                        unsafe {
                            let from = source.data.as_ptr().add(source.base + first * LIMBS_OF_PAIR);
                            let weights = weights.as_ptr().add(tile * most * ROW);
                            let start = match start {
                                Start::Add => Start::Add,
                                Start::Bias(bias) => Start::Bias(&bias[tile * most..]),
                            };
                            let tile = (from, weights, source, (start, bounds), first);
                            let vectors = (count - first).min(WIDTH).div_ceil(<$vector as Vector>::LANES);
                            with_constant!(rows.len(), N of $($size)+ => match vectors {
                                1 => plane_tile::<$vector, N, 1>(tile, rows),
                                _ => plane_tile::<$vector, N, $vectors>(tile, rows),
                            })
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::F32x16;
#[cfg(target_arch = "x86_64")]
dots!(avx512, F32x16, "avx512f,avx512bw,avx512bf16", 2, [14: 1 2 3 4 5 6 7 8 9 10 11 12 13 14]);

#[cfg(target_arch = "aarch64")]
use crate::simd::vector::F32x4;
#[cfg(target_arch = "aarch64")]
dots!(neon, F32x4, "neon,bf16", 4, [6: 1 2 3 4 5 6]);

/// Vectors of a side of channels.
const fn vectors_of_side<V: Vector>() -> usize {
    SIDE / V::LANES
}

/// The index of the weights of an output channel, a multiple of [`Vector::LANES`], in those of a step.
fn of_channel<V: Vector>(channel: usize) -> usize {
    channel / SIDE * weights_of_side::<f32>() + channel % SIDE * PAIR
}

/// The first position's pixel, the weights, the steps, where sums begin, the bounds, where results are written, and
/// the elements from a position to the next.
type PixelTile<'a> = (*const u16, *const u16, &'a [MatrixStep], (Start<'a, f32>, Option<Bounds<f32>>), *mut f32, usize);

/// Sums `P` positions of `NV` vectors of output channels.
///
/// # Safety
/// As [`MatrixKernels::multiply`], for these positions and channels. The CPU has the instructions.
#[inline(always)]
unsafe fn pixel_tile<V: Bf16Dots, const P: usize, const NV: usize>(
    (from, weights, steps, (start, bounds), to, stride): PixelTile,
) {
    // SAFETY: this function's contract.
    unsafe {
        let mut sums = [[V::splat(0.0); NV]; P];
        for step in steps {
            let (mut x, mut w) = (from.add(step.offset), weights.add(step.weights));
            for _ in 0..ROW / PAIR {
                let mut of_pair = [V::load_pairs(w); NV];
                for (v, of_pair) in of_pair.iter_mut().enumerate().skip(1) {
                    *of_pair = V::load_pairs(w.add(of_channel::<V>(v * V::LANES)));
                }
                for (p, sums) in sums.iter_mut().enumerate() {
                    let data = V::splat_pair(x.add(p * ROW));
                    for (sum, weights) in sums.iter_mut().zip(of_pair) {
                        *sum = sum.dot(data, weights);
                    }
                }
                (x, w) = (x.add(PAIR), w.add(SIDE * PAIR));
            }
        }
        for (p, sums) in sums.into_iter().enumerate() {
            let mut results = sums;
            for (v, result) in results.iter_mut().enumerate() {
                let before = match start {
                    Start::Add => V::load(to.add(p * stride + v * V::LANES)),
                    Start::Bias(bias) => V::load(bias.as_ptr().add(v * V::LANES)),
                };
                *result = before.plus(*result);
            }
            for (v, result) in clamp_all(results, bounds).into_iter().enumerate() {
                result.store(to.add(p * stride + v * V::LANES));
            }
        }
    }
}

/// The first position's pairs, the weights of the first output channel, the source, where sums begin, the bounds, and
/// the first position.
type PlaneTile<'a> = (*const u16, *const u16, &'a LimbSource<'a, f32>, (Start<'a, f32>, Option<Bounds<f32>>), usize);

/// Sums `R` output channels, the rows, of up to `NV` vectors of positions.
///
/// # Safety
/// As [`PlaneKernels::multiply`], for these positions and channels. There are `R` rows, and positions from the first one on.
/// The CPU has the instructions.
#[inline(always)]
unsafe fn plane_tile<V: Bf16Dots, const R: usize, const NV: usize>(
    (from, weights, source, (start, bounds), first): PlaneTile,
    rows: &mut [&mut [f32]],
) {
    // SAFETY: this function's contract. No more of a row is read and written than it has.
    unsafe {
        let left = rows[0].len() - first;
        let lanes_of = |v: usize| left.saturating_sub(v * V::LANES).min(V::LANES);
        let mut sums = [[V::splat(0.0); NV]; R];
        for step in source.steps {
            let (mut x, mut w) = (from.add(step.offset), weights.add(step.weights));
            for _ in 0..PAIRS_OF_STEP {
                let mut data = [V::load_pairs(x); NV];
                for (v, data) in data.iter_mut().enumerate().skip(1) {
                    *data = V::load_pairs(x.add(v * V::LANES * LIMBS_OF_PAIR));
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let weights = V::splat_pair(w.add(m * ROW));
                    for (sum, data) in sums.iter_mut().zip(data) {
                        *sum = sum.dot(data, weights);
                    }
                }
                // The next step may be the last row of the source.
                (x, w) = (x.wrapping_add(source.step), w.add(PAIR));
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            let to = rows[m].as_mut_ptr().add(first);
            let mut results = sums;
            for (v, result) in results.iter_mut().enumerate() {
                let lanes = ((1u32 << lanes_of(v)) - 1) as u16;
                let before = match start {
                    Start::Add => V::load_some(to.wrapping_add(v * V::LANES), lanes),
                    Start::Bias(bias) => V::splat(bias[m]),
                };
                *result = before.plus(*result);
            }
            for (v, result) in clamp_all(results, bounds).into_iter().enumerate() {
                match lanes_of(v) {
                    0 => {}
                    lanes if lanes == V::LANES => result.store(to.add(v * V::LANES)),
                    lanes => result.store_first(lanes, to.add(v * V::LANES)),
                }
            }
        }
    }
}
