//! Single limbs of numbers rounded to bf16, in loops that the compiler makes vectors of.

use super::*;

/// See [`MatrixKernels::split`]. The largest magnitude is not looked for, as none matters after rounding to bf16.
pub(super) fn split(
    from: &[f32],
    from_step: usize,
    (count, channels): (usize, usize),
    to: &mut [u16],
    _limb_stride: usize,
    _limbs: Limbs,
) -> u32 {
    for (pixel, to) in to.chunks_exact_mut(depth::<f32>()).take(count).enumerate() {
        let (inside, missing) = to.split_at_mut(channels);
        inside.iter_mut().zip(&from[pixel * from_step..]).for_each(|(to, number)| *to = rounded(*number));
        missing.fill(0);
    }
    0
}

/// See [`PlaneKernels::split`] and [`split`].
pub(super) fn split_planes(
    [even, odd]: [&[f32]; 2],
    _next: [&[f32]; 2],
    to: &mut [u16],
    _limb_stride: usize,
    _limbs: Limbs,
) -> u32 {
    let to = to.as_chunks_mut::<LIMBS_OF_PAIR>().0;
    match odd.is_empty() {
        true => to.iter_mut().zip(even).for_each(|(to, number)| *to = [rounded(*number), 0]),
        false => {
            let numbers = even.iter().zip(odd);
            to.iter_mut().zip(numbers).for_each(|(to, (even, odd))| *to = [rounded(*even), rounded(*odd)]);
        }
    }
    0
}

/// See [`MatrixKernels::split_weights`]. The weights are rounded.
pub(super) fn split_weights(from: &[f32], sides: usize, _limbs: usize, to: &mut [u16]) {
    let (width, of_side) = (sides * SIDE, weights_of_side::<f32>());
    to[..sides * of_side].fill(0);
    for (channel, weights) in from.chunks_exact(width).enumerate() {
        for (m, weight) in weights.iter().enumerate() {
            let pair = (channel / LIMBS_OF_PAIR * SIDE + m % SIDE) * LIMBS_OF_PAIR;
            to[m / SIDE * of_side + pair + channel % LIMBS_OF_PAIR] = rounded(*weight);
        }
    }
}

/// The bf16 nearest to a number.
#[inline(always)]
fn rounded(number: f32) -> u16 {
    (Precision::Bf16.rounded(number).to_bits() >> 16) as u16
}
