//! NaN and infinity in data, filter and bias must affect sums as in IEEE 754, on every strategy.
//!
//! There is one exception. Padding is multiplied as zeros, so a weight that is not finite may give
//! NaN in more elements of its own output channel.

mod common;

use common::oracle::{FromTensor, answer};
use common::random::Random;
use std::collections::BTreeSet;
use std::io::Write;
use tract_core::internal::*;
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::PackedFilter;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Plan, PlanOptions, Strategy};

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
    ]
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
                    for strategy in Strategy::ALL.iter().copied() {
                        let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
                        let Ok(plan) = Plan::new(&spec, &input, None, dt, &options) else { continue };
                        let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &w)?;
                        let y = f64::from_tensor(&Layer::new(plan.clone()).run(&x, &packed, Some(&bias))?);
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
                    }
                }
            }
        }
    }
    for (strategy, ran) in Strategy::ALL.iter().copied().zip(ran) {
        let _ = writeln!(std::io::stderr(), "ieee: {strategy} ran {ran} times");
        ensure!(ran > 0 || !strategy.is_available(), "{strategy} declined every problem");
    }
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
                for (isa, strategy) in
                    Isa::ALL.iter().copied().flat_map(|isa| Strategy::ALL.iter().map(move |s| (isa, *s)))
                {
                    let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
                    let Ok(plan) = Plan::new(&spec, &input, None, DatumType::F32, &options) else { continue };
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
