use super::limbs::{from_limb, limbs_of};
use super::*;
#[cfg(target_os = "linux")]
use std::io::Write;

/// Input channels of a step of f32.
#[cfg(target_os = "linux")]
const DEPTH: usize = depth::<f32>();

/// Elements of one limb of the weights of such a step, for a side.
#[cfg(target_os = "linux")]
const WEIGHTS_OF_SIDE: usize = weights_of_side::<f32>();

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
    let before = tile_registers::has_asked();
    let isa = Isa::best();
    for isa in Isa::ALL.iter().copied().filter(|isa| *isa != Isa::Amx) {
        assert_eq!(f32::matrix_kernels(isa).is_some(), bf16::is_available(isa));
        assert_eq!(f32::plane_kernels(isa).is_some(), bf16::is_available(isa));
    }
    if has_matrix_products(Precision::Bf16) && !Isa::Amx.is_available() {
        assert!(f32::kernels_of_limbs(Precision::Bf16).is_some());
    }
    for vectors in Isa::ALL.iter().copied().filter(|isa| *isa != Isa::Amx && isa.is_available()) {
        assert_eq!(Isa::of_plan(Some(vectors)).ok(), Some(vectors));
    }
    if isa != Isa::Amx {
        // A caller that wants them gets none, and does not request them either.
        assert!(kernels_of_f32().is_none() && Isa::of_plan(Some(Isa::Amx)).is_err());
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
    let kernels = kernels_of_f32().expect("a cpu with tile registers");
    for (limbs, of) in WAYS {
        products_of_limbs_are_right_and_stay_inside(kernels, limbs, of);
    }
}

/// Whether sums of products of bf16 are rounded to odd: to a neighbour that need not be the nearest.
#[cfg(target_os = "linux")]
const ROUNDS_TO_ODD: bool = cfg!(target_arch = "aarch64");

/// The largest error of a sum, over the sum of its products' magnitudes.
#[cfg(target_os = "linux")]
const MOST_ERROR: f64 = if ROUNDS_TO_ODD { 3e-7 } else { 1.5e-7 };

/// The way of numbers rounded to bf16.
#[cfg(target_os = "linux")]
const ROUNDED: (Limbs, [Precision; 2]) = WAYS[6];

/// As [`products_are_right_and_stay_inside`], in vectors that multiply pairs of bf16.
#[test]
#[cfg(target_os = "linux")]
fn products_in_vectors_are_right_and_stay_inside() {
    let (limbs, of) = ROUNDED;
    for isa in Isa::ALL.iter().copied().filter(|isa| bf16::is_available(*isa)) {
        let kernels = rounded_kernels(isa).expect("kernels");
        assert!(WAYS.iter().all(|(other, _)| (kernels.are_legal)(*other) == (*other == limbs)));
        products_of_limbs_are_right_and_stay_inside(kernels, limbs, of);
        for channels in [1, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE - 1, 2 * SIDE] {
            let planes = rounded_plane_kernels(isa).expect("kernels");
            products_of_planes_of_limbs((kernels, planes), limbs, of, channels);
        }
    }
}

#[cfg(target_os = "linux")]
fn products_of_limbs_are_right_and_stay_inside(kernels: &MatrixKernels<f32>, limbs: Limbs, of: [Precision; 2]) {
    use crate::kernel::guard_page_tests::{Guarded, Side};
    // Those of tile registers, and of tiles of up to 14 and up to 6 positions.
    let counts = [1, 6, 7, 13, 14, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE - 1, 2 * SIDE, 2 * SIDE + 1, 5 * SIDE + 3];
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
                    let got: Vec<u16> = (0..limbs.source).map(|p| data[p * limb_stride + pixel * DEPTH + c]).collect();
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
                let whole: Vec<f32> = from.iter().copied().chain(std::iter::repeat(0.0)).take(DEPTH * width).collect();
                assert_eq!(to, packed(&whole, sides, limbs.weights));
                let mut joined = vec![0.0; whole.len()];
                kernels.join(to, sides, limbs.weights, &mut joined);
                assert!(joined.iter().zip(&whole).all(|(joined, w)| (joined - w).abs() < 2f32.powi(-133)));
            }
            let bias = Guarded::new(side, &numbers(width, 5));
            let step_of =
                |s: usize| MatrixStep { offset: s * DEPTH, weights: s * limbs.weights * sides * WEIGHTS_OF_SIDE };
            let list: Vec<MatrixStep> = (0..steps).map(step_of).collect();
            let source: LimbSource<f32> =
                LimbSource { data: &data, base: 0, step: DEPTH, limb_stride, limbs, steps: &list };
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
                        error < MOST_ERROR + left_out,
                        "{got} for {sum}, {count} positions, {sides} sides, {steps} steps, {limbs:?}"
                    );
                    errors[0] = errors[0].max(error);
                    errors[1] = errors[1].max((chain as f64 - sum).abs() / all);
                }
            }
        }
    }
    let exact = limbs.precision != Precision::F16 && !ROUNDS_TO_ODD;
    assert!(!exact || errors[0] <= errors[1], "errors of {errors:?}: limbs are to be no worse than f32");
    let _ = writeln!(std::io::stderr(), "products of {limbs:?}: error {:.1e}, of f32 {:.1e}", errors[0], errors[1]);
}

/// As [`products_are_right_and_stay_inside`], of planes.
#[test]
#[ignore = "needs tile registers: .ci/run runs it where there are some"]
#[cfg(target_os = "linux")]
fn products_of_planes_are_right_and_stay_inside() {
    let kernels =
        (kernels_of_f32().expect("a cpu with tile registers"), plane_kernels_of_f32().expect("tile registers"));
    for (limbs, of) in WAYS {
        for channels in [1, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE - 1, 2 * SIDE] {
            products_of_planes_of_limbs(kernels, limbs, of, channels);
        }
    }
}

#[cfg(target_os = "linux")]
fn products_of_planes_of_limbs(
    (pixels, planes): (&MatrixKernels<f32>, &PlaneKernels<f32>),
    limbs: Limbs,
    of: [Precision; 2],
    channels: usize,
) {
    use crate::kernel::guard_page_tests::{Guarded, Side};
    let rounded = |of: Precision, len, seed| {
        let mut numbers = numbers(len, seed);
        pixels.round(of, &mut numbers);
        numbers
    };
    let (sides, width) = (channels.div_ceil(SIDE), channels.next_multiple_of(SIDE));
    for (side, (count, inputs, steps)) in [Side::Before, Side::After].into_iter().flat_map(|side| {
        [(1, DEPTH, 1), (SIDE + 1, DEPTH - 1, 3), (2 * SIDE, 2, 0), (5 * SIDE, 1, 4)].map(|case| (side, case))
    }) {
        // Taps are one position apart, and there are enough positions for the last tile of the last one.
        let whole = count.next_multiple_of(POSITIONS_AT_ONCE);
        let positions = whole + steps.max(1) - 1;
        let x = rounded(of[0], inputs * positions, 3);
        let row = positions * LIMBS_OF_PAIR;
        let limb_stride = PAIRS_OF_STEP * row;
        let mut data = Guarded::new(side, &vec![0u16; limbs.source * limb_stride]);
        let mut most = 0;
        for (pair, of_pair) in x.chunks(2 * positions).enumerate() {
            let plane = |i: usize| of_pair.get(i * positions..(i + 1) * positions).unwrap_or(&[]);
            let (even, odd) = (Guarded::new(side, plane(0)), Guarded::new(side, plane(1)));
            let mut to = Guarded::new(side, &vec![0xffffu16; limbs.source * row]);
            most = most.max(planes.split([&even, &odd], [&odd, &[]], &mut to, row, limbs));
            for (limb, from) in to.chunks(row).enumerate() {
                data[limb * limb_stride + pair * row..][..row].copy_from_slice(from);
                for (at, got) in from.iter().enumerate() {
                    let number = plane(at % 2).get(at / 2).map_or(0.0, |number| limbs.precision.rounded(*number));
                    assert_eq!(*got, limbs_of(number)[limb], "pair {pair}, limb {limb}, element {at}");
                }
            }
        }
        let expected = x.iter().fold(0f32, |most, x| most.max(limbs.precision.rounded(*x).abs()));
        assert!(limbs.precision == Precision::Bf16 || f32::from_bits(most) == expected);
        let w = rounded(of[1], steps * inputs * width, 77);
        let per_step = limbs.weights * sides * WEIGHTS_OF_SIDE;
        let mut weights = Guarded::new(side, &vec![0u16; steps * per_step]);
        for (from, to) in w.chunks(inputs * width).zip(weights.chunks_mut(per_step)) {
            pixels.split_weights(from, sides, limbs.weights, to);
            let before = to.to_vec();
            transpose_sides(to);
            let (channel, input) = (width - 1, inputs - 1);
            let at = (channel / SIDE) * WEIGHTS_OF_SIDE + channel % SIDE * DEPTH + input;
            assert_eq!(to[at], limbs_of(from[input * width + channel])[0], "[output channel][input channel]");
            let mut back = to.to_vec();
            transpose_sides(&mut back);
            assert_eq!(back, before);
        }
        let bias = Guarded::new(side, &numbers(channels, 5));
        let list: Vec<MatrixStep> =
            (0..steps).map(|s| MatrixStep { offset: s * LIMBS_OF_PAIR, weights: s * per_step }).collect();
        let source = LimbSource { data: &data, base: 0, step: row, limb_stride, limbs, steps: &list };
        let clamped = Some(Bounds { low: -1.0, high: 2.0 });
        for (add, bounds) in [(false, None), (true, None), (true, clamped)] {
            let before = numbers(channels * count, 6);
            let mut out: Vec<_> = before.chunks(count).map(|row| Guarded::new(side, row)).collect();
            let start = if add { Start::Add } else { Start::Bias(&bias) };
            let mut rows: Vec<&mut [f32]> = out.iter_mut().map(|row| &mut row[..]).collect();
            planes.multiply(&weights, &source, (start, bounds), &mut rows);
            for (at, got) in out.iter().flat_map(|row| row.iter()).enumerate() {
                let (m, p) = (at / count, at % count);
                let begin = if add { before[at] } else { bias[m] };
                let (mut sum, mut all) = (begin as f64, begin.abs() as f64);
                for (s, c) in (0..steps).flat_map(|s| (0..inputs).map(move |c| (s, c))) {
                    let number = limbs.precision.rounded(x[c * positions + p + s]);
                    let product = f64::from(number) * f64::from(w[(s * inputs + c) * width + m]);
                    sum += product;
                    all += product.abs();
                }
                if let Some(bounds) = bounds {
                    sum = sum.clamp(bounds.low.into(), bounds.high.into());
                }
                let error = (*got as f64 - sum).abs() / all.max(1e-20);
                let left_out = if limbs.precision == Precision::F16 { 2f64.powi(-16) } else { 0.0 };
                assert!(
                    error < MOST_ERROR + left_out,
                    "{got} for {sum}: {channels} channels, {count} positions, {steps} steps of {inputs}, {limbs:?}"
                );
            }
        }
    }
}

/// Numbers with fewer bits give the same bits in fewer products.
#[test]
#[ignore = "needs tile registers: .ci/run runs it where there are some"]
#[cfg(target_os = "linux")]
fn products_that_are_zero_change_no_bit() {
    let kernels = kernels_of_f32().expect("a cpu with tile registers");
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
            let source = LimbSource { data: &data, base: 0, step: DEPTH, limb_stride: stride, limbs, steps: &steps };
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
    let kernels = kernels_of_f32().expect("a cpu with tile registers");
    let numbers = numbers_of_all_kinds();
    assert_rounds_to_bf16(kernels, &numbers);
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

/// As [`vectors_round_as_numbers_do`], to bf16, for vectors that multiply it.
#[test]
#[cfg(target_os = "linux")]
fn vectors_of_bf16_round_as_numbers_do() {
    let numbers = numbers_of_all_kinds();
    for kernels in Isa::ALL.iter().filter_map(|isa| rounded_kernels(*isa)) {
        assert_rounds_to_bf16(kernels, &numbers);
    }
}

#[cfg(target_os = "linux")]
fn numbers_of_all_kinds() -> Vec<f32> {
    let mut bits = 0x1234_5678u32;
    let ends = [0x7f80_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0x7f7f_ffff, 0x3f80_8000, 0x3f81_8000, 1, 0x8000];
    let any = std::iter::repeat_with(|| {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bits
    });
    ends.into_iter().chain(any).take(DEPTH * 64).map(f32::from_bits).collect()
}

#[cfg(target_os = "linux")]
fn assert_rounds_to_bf16(kernels: &MatrixKernels<f32>, numbers: &[f32]) {
    let mut to = vec![0u16; numbers.len()];
    let (pixels, (limbs, _)) = (numbers.len() / DEPTH, ROUNDED);
    kernels.split(numbers, DEPTH, (pixels, DEPTH), &mut to, numbers.len(), limbs);
    for (number, got) in numbers.iter().zip(&to) {
        let expected = Precision::Bf16.rounded(*number);
        assert_eq!(*got, (expected.to_bits() >> 16) as u16, "{:x}", number.to_bits());
    }
}

/// Quads end or begin at inaccessible memory. All bytes occur, and sums are exact.
#[test]
#[ignore = "needs tile registers: .ci/run runs it where there are some"]
#[cfg(target_os = "linux")]
fn products_of_bytes_are_exact_and_stay_inside() {
    use crate::kernel::guard_page_tests::{Guarded, Side};
    const DEPTH: usize = depth::<Quad>();
    const OF_SIDE: usize = weights_of_side::<Quad>();
    let kernels = kernels_of_quads().expect("a cpu with tile registers");
    let limbs = Limbs { precision: Precision::Exact, source: 1, weights: 1 };
    let quads = |len: usize, seed: u32| -> Vec<Quad> {
        let mut bits = seed;
        let mut next = || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // The high bits are the random ones.
            [8, 12, 16, 24].map(|shift| (bits >> shift) as u8)
        };
        let ends = [[255; 4], [128; 4], [127; 4], [0; 4]];
        (0..len).map(|i| Quad::of(if i % 5 == 0 { ends[i / 5 % 4] } else { next() })).collect()
    };
    let counts = [1, SIDE - 1, SIDE, SIDE + 1, 2 * SIDE, 2 * SIDE + 1, 5 * SIDE + 3];
    for (i, count) in counts.into_iter().enumerate() {
        let cases = [(1, 0), (1, 3), (1, 4), (2, 1), (2, 9)];
        for (side, (sides, steps)) in [Side::Before, Side::After].into_iter().flat_map(|s| cases.map(|case| (s, case)))
        {
            // Taps are one position apart.
            let pixels = count.next_multiple_of(POSITIONS_AT_ONCE) + steps.max(1) - 1;
            let (channels, width) = (if i % 2 == 0 { DEPTH } else { DEPTH - 1 - i }, sides * SIDE);
            let x = Guarded::new(side, &quads(pixels * channels, i as u32 + 1));
            let noise = Quad::of([0xa5; 4]);
            let mut data = Guarded::new(side, &vec![noise; pixels * DEPTH]);
            assert_eq!(kernels.split(&x, channels, (pixels, channels), &mut data, pixels * DEPTH, limbs), 0);
            let w = quads(steps * channels * width, 77);
            let mut weights = Guarded::new(side, &vec![noise; steps * sides * OF_SIDE]);
            for (from, to) in w.chunks(channels * width).zip(weights.chunks_mut(sides * OF_SIDE)) {
                kernels.split_weights(&Guarded::new(side, from), sides, 1, to);
                let mut joined = vec![noise; DEPTH * width];
                kernels.join(to, sides, 1, &mut joined);
                assert!(joined.starts_with(from) && joined[from.len()..].iter().all(|quad| *quad == Quad::ZERO));
            }
            let bias = Guarded::new(side, &quads(width, 5));
            let list: Vec<MatrixStep> =
                (0..steps).map(|s| MatrixStep { offset: s * DEPTH, weights: s * sides * OF_SIDE }).collect();
            let source: LimbSource<Quad> =
                LimbSource { data: &data, base: 0, step: DEPTH, limb_stride: pixels * DEPTH, limbs, steps: &list };
            for (stride, add) in [(width, false), (width + 5, true)] {
                let before = quads((count - 1) * stride + width, 6);
                let mut out = Guarded::new(side, &before);
                let start = if add { Start::Add } else { Start::Bias(&bias) };
                kernels.multiply((&weights, sides), &source, count, (start, None), &mut out, stride);
                for (at, got) in out.iter().enumerate() {
                    let (p, m) = (at / stride, at % stride);
                    if m >= width {
                        assert_eq!(*got, before[at], "between rows");
                        continue;
                    }
                    let mut sum = if add { before[at] } else { bias[m] };
                    for (s, c) in (0..steps).flat_map(|s| (0..channels).map(move |c| (s, c))) {
                        sum = sum.mul_add(x[(p + s) * channels + c], w[(s * channels + c) * width + m]);
                    }
                    assert_eq!(*got, sum, "{count} positions, {sides} sides, {steps} steps, result {at}");
                }
            }
        }
    }
}
