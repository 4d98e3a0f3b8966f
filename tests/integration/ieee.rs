//! NaN and infinity in data, filter and bias must affect sums as in IEEE 754, on every strategy.
//!
//! There is one exception. Padding is multiplied as zeros, so a weight that is not finite may give
//! NaN in more elements of its own output channel.

use crate::common::MATRIX_PRODUCTS;
use crate::common::oracle::{FromTensor, answer};
use crate::common::random::Random;
use std::collections::BTreeSet;
use std::io::Write;
use tract_core::internal::*;
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::PackedFilter;
use tract_deconv::Precision;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Activation, Plan, PlanOptions, Step, Strategy};

fn specs() -> Vec<(DeconvSpec, Vec<usize>)> {
    let transposed = |channels: (usize, usize, usize), kernel: &[usize], stride: usize, spatial: &[usize]| {
        let rank = kernel.len();
        let spec = DeconvSpec {
            direction: Direction::Transposed,
            data_format: DataFormat::Ncx,
            filter_format: FilterFormat::Iox,
            in_channels: channels.0,
            out_channels: channels.1,
            group: channels.2,
            kernel: kernel.into(),
            strides: tvec!(stride; rank),
            dilations: tvec!(1; rank),
            padding: Padding::Explicit { begin: tvec!(1; rank), end: tvec!(0; rank) },
            output_padding: tvec!(1; rank),
        };
        (spec, spatial.to_vec())
    };
    let forward = |(spec, spatial): (DeconvSpec, Vec<usize>)| {
        let output_padding = tvec!(0; spatial.len());
        let filter_format = FilterFormat::GroupedOix;
        (DeconvSpec { direction: Direction::Forward, filter_format, output_padding, ..spec }, spatial)
    };
    vec![
        transposed((6, 6, 6), &[3, 3], 2, &[7, 9]),
        transposed((5, 19, 1), &[4, 4], 1, &[1, 1]),
        transposed((7, 3, 1), &[5, 5], 2, &[9, 11]),
        transposed((5, 35, 1), &[4, 4], 2, &[6, 19]),
        transposed((4, 34, 2), &[2, 2], 2, &[5, 5]),
        // Few channels per group.
        transposed((8, 32, 4), &[4, 4], 2, &[5, 6]),
        transposed((16, 32, 8), &[3, 3], 2, &[5, 6]),
        transposed((3, 18, 1), &[16], 8, &[21]),
        transposed((2, 17, 1), &[2, 3, 2], 2, &[3, 4, 3]),
        forward(transposed((6, 34, 2), &[3, 3], 1, &[8, 17])),
        // More positions than those for which filters are kept as bf16 limbs.
        forward(transposed((3, 18, 1), &[2, 2], 1, &[15, 19])),
        forward(transposed((4, 4, 4), &[3], 2, &[40])),
        // Transformed tiles, with the taps split into twos and threes.
        transposed((16, 18, 1), &[4, 5], 2, &[5, 6]),
        forward(transposed((17, 16, 1), &[3, 7], 1, &[6, 9])),
        // Single taps, of padded planes.
        forward(transposed((5, 35, 1), &[1, 1], 1, &[6, 9])),
    ]
}

/// Every strategy in every precision. The operands of these tests are exact in all of them.
fn strategies() -> impl Iterator<Item = (Strategy, Precision)> {
    Strategy::ALL.iter().flat_map(|strategy| Precision::ALL.iter().map(|precision| (*strategy, *precision)))
}

/// The operand in which a value that is not finite is put.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Data,
    Filter,
    Bias,
}

const VALUES: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Returns the tensor with one element replaced.
fn spoiled(tensor: &Tensor, at: usize, value: f64) -> TractResult<Tensor> {
    let dt = tensor.datum_type();
    let mut wide = tensor.cast_to::<f64>()?.into_owned();
    wide.try_as_plain_ram_mut()?.as_slice_mut::<f64>()?[at] = value;
    Ok(wide.cast_to_dt(dt)?.into_owned())
}

#[test]
fn what_is_not_finite_passes_through() -> TractResult<()> {
    let mut ran = [0; Strategy::ALL.len()];
    let mut rounded = [0; Precision::ALL.len()];
    let mut outside = 0;
    let mut random = Random(23);
    for (spec, spatial) in specs() {
        for (data_format, dt) in [DataFormat::Ncx, DataFormat::Nxc]
            .into_iter()
            .flat_map(|format| [DatumType::F32, DatumType::F16, DatumType::F64].map(|dt| (format, dt)))
        {
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let input = data_format.shape(1, spec.in_channels, spatial.iter().copied());
            let operands = [&*input, &*spec.filter_shape(), &[spec.out_channels]].map(|shape| {
                // No zeros, as zero times infinity is NaN.
                let values = random.small_integers(dt, shape).cast_to::<f64>()?.into_owned();
                let values: Vec<f64> = values.try_as_plain_ram()?.as_slice::<f64>()?.iter().map(|v| v + 0.5).collect();
                Ok(Tensor::from_shape(shape, &values)?.cast_to_dt(dt)?.into_owned())
            });
            let [x, w, bias]: [TractResult<Tensor>; 3] = operands;
            let (x, w, bias) = (x?, w?, bias?);
            for (place, value) in
                [Place::Data, Place::Filter, Place::Bias].into_iter().flat_map(|place| VALUES.map(|v| (place, v)))
            {
                let mut spoil = |tensor: &Tensor, here: Place| {
                    if here == place { spoiled(tensor, random.below(tensor.len()), value) } else { Ok(tensor.clone()) }
                };
                let (x, w) = (spoil(&x, Place::Data)?, spoil(&w, Place::Filter)?.into_arc_tensor());
                let bias = spoil(&bias, Place::Bias)?;
                let expected = answer::<f64>(&spec, &x, &w, Some(&bias), None).y;
                for isa in Isa::ALL.iter().copied() {
                    for (strategy, precision) in strategies() {
                        let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
                        let options = options.with_precision(precision);
                        let Ok(plan) = Plan::new(&spec, &input, None, dt, &options) else { continue };
                        if plan.precision() != precision {
                            continue;
                        }
                        let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &w)?;
                        let layer = Layer::new(plan.clone());
                        let y = f64::from_tensor(&layer.run(&x, &packed, Some(&bias))?);
                        let steps = [Activation::Max(-2.0), Activation::Min(3.0)].map(Step::Activation);
                        let clamped = layer.run_with_epilogue(&x, &packed, Some(&bias), &steps, &[])?;
                        for (y, clamped) in y.iter().zip(&f64::from_tensor(&clamped)) {
                            // The bounds of NaN are NaN.
                            let same = *clamped == y.clamp(-2.0, 3.0) || (y.is_nan() && clamped.is_nan());
                            ensure!(same, "{value} in {place:?}, {plan}: {y} was clamped to {clamped}: {spec:?}");
                            outside += usize::from(clamped != y && !y.is_nan());
                        }
                        let mut spread = BTreeSet::new();
                        for ((at, want), got) in expected.indexed_iter().zip(&y) {
                            let same = got == want || (got.is_nan() && want.is_nan());
                            if !same && place == Place::Filter && got.is_nan() {
                                spread.insert(at[data_format.c_axis(input.len())]);
                                continue;
                            }
                            ensure!(same, "{value} in {place:?}, {plan}: {got} for {want} at {at:?}: {spec:?}");
                        }
                        ensure!(
                            spread.len() <= 1,
                            "{value} in {place:?}, {plan}: NaN in channels {spread:?}: {spec:?}"
                        );
                        ran[strategy as usize] += 1;
                        rounded[precision as usize] += 1;
                    }
                }
            }
        }
    }
    for (strategy, ran) in Strategy::ALL.iter().copied().zip(ran) {
        let _ = writeln!(std::io::stderr(), "ieee: {strategy} ran {ran} times");
        ensure!(ran > 0 || !strategy.is_available(), "{strategy} declined every problem");
    }
    ensure!(outside > 0, "no result was outside of the bounds");
    ensure!(!Isa::Amx.is_available() || rounded.iter().all(|ran| *ran > 0), "{rounded:?} runs in each precision");
    Ok(())
}

/// Numbers scaled by powers of two, which is exact in the range of f32, so sums stay as exact as
/// before.
#[test]
fn numbers_near_the_ends_of_the_range() -> TractResult<()> {
    let mut random = Random(29);
    let mut ran = [0; Strategy::ALL.len()];
    for (spec, spatial) in specs() {
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let input = data_format.shape(1, spec.in_channels, spatial.iter().copied());
            let x = random.small_integers(DatumType::F32, &input);
            let w = random.small_integers(DatumType::F32, &spec.filter_shape());
            let expected = answer::<f64>(&spec, &x, &w, None, None).y;
            for (of_x, of_w) in
                [(-60, -40), (-120, 0), (-120, 60), (0, -120), (100, -120), (100, 0), (60, 50), (0, 115)]
            {
                let scaled = |tensor: &Tensor, exponent: i32| -> TractResult<Tensor> {
                    let scale = 2f32.powi(exponent);
                    let values = tensor.try_as_plain_ram()?.as_slice::<f32>()?.iter().map(|v| v * scale);
                    Tensor::from_shape(tensor.shape(), &values.collect::<Vec<f32>>())
                };
                let (x, w) = (scaled(&x, of_x)?, scaled(&w, of_w)?.into_arc_tensor());
                for (isa, (strategy, precision)) in
                    Isa::ALL.iter().copied().flat_map(|isa| strategies().map(move |each| (isa, each)))
                {
                    let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
                    let options = options.with_precision(precision);
                    let Ok(plan) = Plan::new(&spec, &input, None, DatumType::F32, &options) else { continue };
                    // f16 has another range.
                    if plan.precision() != precision || precision == Precision::F16 {
                        continue;
                    }
                    let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &w)?;
                    let y = f64::from_tensor(&Layer::new(plan.clone()).run(&x, &packed, None)?);
                    ran[strategy as usize] += 1;
                    let back = 2f64.powi(-of_x - of_w);
                    for (want, got) in expected.iter().zip(&y) {
                        let got = got * back;
                        ensure!(got == *want, "2^{of_x} times 2^{of_w}, {plan}: {got} for {want}: {spec:?}");
                    }
                }
            }
        }
    }
    for (strategy, ran) in Strategy::ALL.iter().copied().zip(ran) {
        let _ = writeln!(std::io::stderr(), "ends of the range: {strategy} ran {ran} times");
        ensure!(ran > 0 || !strategy.is_available(), "{strategy} declined every problem");
    }
    Ok(())
}

/// A number too small to change a sum must not change it, down to the smallest magnitude.
#[test]
fn tiny_numbers_among_others() -> TractResult<()> {
    let mut random = Random(31);
    let mut ran = [0; Strategy::ALL.len()];
    for (spec, spatial) in specs() {
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let input = data_format.shape(1, spec.in_channels, spatial.iter().copied());
            // One number in three. It replaces a zero of the operands of the exact result.
            let mut with_tiny = |shape: &[usize]| -> TractResult<[Tensor; 2]> {
                let plain = random.small_integers(DatumType::F32, shape);
                let mut values = plain.try_as_plain_ram()?.as_slice::<f32>()?.to_vec();
                let mut with = values.clone();
                for (value, with) in values.iter_mut().zip(&mut with) {
                    if random.below(3) == 0 {
                        *value = 0.0;
                        *with = random.unit() as f32 * 2f32.powi(-70 - random.below(80) as i32);
                    }
                }
                Ok([Tensor::from_shape(shape, &values)?, Tensor::from_shape(shape, &with)?])
            };
            let ([x, tiny_x], [w, tiny_w]) = (with_tiny(&input)?, with_tiny(&spec.filter_shape())?);
            let expected = answer::<f64>(&spec, &x, &w, None, None).y;
            let tiny_w = tiny_w.into_arc_tensor();
            for (isa, strategy) in Isa::ALL.iter().copied().flat_map(|isa| Strategy::ALL.iter().map(move |s| (isa, *s)))
            {
                let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
                let Ok(plan) = Plan::new(&spec, &input, None, DatumType::F32, &options) else { continue };
                let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &tiny_w)?;
                let y = f64::from_tensor(&Layer::new(plan.clone()).run(&tiny_x, &packed, None)?);
                ran[strategy as usize] += 1;
                for (want, got) in expected.iter().zip(&y) {
                    // The errors are products of tiny numbers and small integers, of which a sum
                    // has a few hundred at most.
                    ensure!((got - want).abs() < 1e-16, "{plan}: {got} for {want}: {spec:?}");
                }
            }
        }
    }
    for (strategy, ran) in Strategy::ALL.iter().copied().zip(ran) {
        let _ = writeln!(std::io::stderr(), "tiny numbers: {strategy} ran {ran} times");
        ensure!(ran > 0 || !strategy.is_available(), "{strategy} declined every problem");
    }
    Ok(())
}

/// Operands that rounding changes give what the rounded ones give, to the bit: ties, numbers beyond the
/// range, infinity, NaN and subnormals.
///
/// On tile registers, an operand of bf16 below `2^-126` counts as zero, and so does such a sum.
#[test]
fn rounded_operands() -> TractResult<()> {
    let (mut ran, mut nans) = (0, [0; 2]);
    let numbers = |shape: &[usize], scale: i32, seed: u64| -> TractResult<Tensor> {
        let mut random = Random(seed);
        let ends = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65_519.0, 65_520.0, -7e4, f32::MAX, 1e-39, -3e-8, 0.0];
        let values = (0..shape.iter().product()).map(|_| match random.below(500) {
            at if at < ends.len() => ends[at],
            at if at < 100 => 1.0 + random.below(1 << 9) as f32 / (1 << 9) as f32,
            _ => random.unit() as f32 * 2f32.powi(scale),
        });
        Tensor::from_shape(shape, &values.collect::<Vec<f32>>())
    };
    for (spec, spatial) in specs() {
        for (data_format, scale) in
            [DataFormat::Ncx, DataFormat::Nxc].into_iter().flat_map(|format| [0, 14, -20, -120].map(|s| (format, s)))
        {
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let input = data_format.shape(1, spec.in_channels, spatial.iter().copied());
            let (x, w) = (numbers(&input, scale, 3)?, numbers(&spec.filter_shape(), 0, 5)?);
            for (strategy, precision) in tract_itertools::iproduct!(MATRIX_PRODUCTS, [Precision::Bf16, Precision::F16])
            {
                let options = PlanOptions::default().with_strategy(strategy).with_precision(precision);
                let Ok(plan) = Plan::new(&spec, &input, None, DatumType::F32, &options) else { continue };
                ensure!(plan.precision() == precision, "{plan}");
                let run = |x: &Tensor, w: &Tensor| -> TractResult<Tensor> {
                    let filter = PackedFilter::pack(&spec, &plan.filter_layout(), &w.clone().into_arc_tensor())?;
                    Layer::new(plan.clone()).run(x, &filter, None)
                };
                let rounded = |tensor: &Tensor| -> TractResult<Tensor> {
                    let values = tensor.try_as_plain_ram()?.as_slice::<f32>()?.iter().map(|v| precision.rounded(*v));
                    Tensor::from_shape(tensor.shape(), &values.collect::<Vec<f32>>())
                };
                let (got, want) = (run(&x, &w)?, run(&rounded(&x)?, &rounded(&w)?)?);
                let (got, want) = (got.try_as_plain_ram()?, want.try_as_plain_ram()?);
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                let pairs = got.as_slice::<f32>()?.iter().zip(want.as_slice::<f32>()?);
                ensure!(pairs.clone().all(same), "{plan}: {spec:?}");
                pairs.for_each(|(a, _)| nans[usize::from(a.is_nan())] += 1);
                ran += 1;
            }
        }
    }
    let both = ran > 0 && nans.iter().all(|count| *count > 0);
    let rounds = Strategy::MatrixPixels.is_available_in(Precision::Bf16);
    ensure!(both || !rounds, "{ran} layers were rounded, to {nans:?} numbers and NaN");
    Ok(())
}

/// Tiny operands are rounded or lost within the bounds that the documentation states.
#[test]
fn tiny_rounded_operands() -> TractResult<()> {
    let (spec, spatial) = specs().into_iter().nth(9).context("a dense layer")?;
    let input = spec.data_format.shape(1, spec.in_channels, spatial.iter().copied());
    let mut random = Random(41);
    let products = spec.group_in() * spec.kernel.iter().product::<usize>();
    let precisions = [(Precision::Bf16, 2f64.powi(-126)), (Precision::F16, 2f64.powi(-25))];
    for (precision, lost) in precisions.into_iter().filter(|of| Strategy::MatrixPixels.is_available_in(of.0)) {
        for exponent in [-10, -14, -20, -24, -26, -60, -120, -126, -130, -149] {
            let x: Vec<f32> = (0..input.iter().product()).map(|_| random.unit() as f32 * 2f32.powi(exponent)).collect();
            let x = Tensor::from_shape(&input, &x)?;
            // The filter has no rounding error of its own.
            let w = random.small_integers(DatumType::F32, &spec.filter_shape());
            let expected = answer::<f64>(&spec, &x, &w, None, None);
            let options = PlanOptions::default().with_strategy(Strategy::MatrixPixels).with_precision(precision);
            let plan = Plan::new(&spec, &input, None, DatumType::F32, &options)?;
            let filter = PackedFilter::pack(&spec, &plan.filter_layout(), &w.into_arc_tensor())?;
            let y = f64::from_tensor(&Layer::new(plan.clone()).run(&x, &filter, None)?);
            let unit = if precision == Precision::Bf16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
            for ((want, got), magnitude) in expected.y.iter().zip(&y).zip(&expected.magnitude) {
                // Weights are 4 at most.
                let allowed = unit * 1.01 * magnitude + 4.0 * lost * (products + 1) as f64;
                ensure!((got - want).abs() <= allowed, "2^{exponent}, {plan}: {got} for {want}, {allowed} is allowed");
            }
        }
    }
    Ok(())
}

/// Subnormal constants count as zero in every strategy but the definition.
#[test]
fn subnormal_weights_are_zero() -> TractResult<()> {
    let mut random = Random(37);
    for (spec, spatial) in specs() {
        let input = spec.data_format.shape(1, spec.in_channels, spatial.iter().copied());
        let x = random.small_integers(DatumType::F32, &input);
        let w: Vec<f32> = (0..spec.filter_shape().iter().product())
            .map(|_| f32::from_bits(random.below(0x80_0000) as u32 | (random.below(2) as u32) << 31))
            .collect();
        let w = Tensor::from_shape(&spec.filter_shape(), &w)?.into_arc_tensor();
        for (isa, strategy) in Isa::ALL.iter().copied().flat_map(|isa| Strategy::ALL.iter().map(move |s| (isa, *s))) {
            let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
            let Ok(plan) = Plan::new(&spec, &input, None, DatumType::F32, &options) else { continue };
            let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &w)?;
            let y = f64::from_tensor(&Layer::new(plan.clone()).run(&x, &packed, None)?);
            let zero = strategy == Strategy::Reference || y.iter().all(|y| *y == 0.0);
            ensure!(zero && y.iter().all(|y| y.abs() < 1e-30), "{plan}: {spec:?}");
        }
    }
    Ok(())
}
