//! Layers of 8-bit integers beside the same layers in f32, on one thread, in alternating rounds:
//! `cargo bench --bench integers -- 40`, where 40 is the number of rounds.
//!
//! Each row has the median time in f32 under the planner's choice and under tap-by-tap sums, that of the
//! integer sums of `u8` without and with a zero point, and of `i8` channels last, and that from `u8` to
//! `u8`: `bytes` as models run it, and `passes` with sums in memory that a second pass rescales. A name as
//! an argument selects rows, `--only bytes,passes` columns, and `--strategy matrix_pixels` forces a strategy on integers.

mod common;

use common::seeded;
use std::time::Instant;
use tract_core::internal::*;
use tract_deconv::internals::{DataZeroPoint, IntegerSums, Output, Quantisation, Scale, Scaling, with_elements_of};
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Dialect, Layer, PackedFilter, Plan, PlanOptions, QuantisedDeconv, Strategy};

/// Name, direction, channels in and out and groups, kernel and stride and padding, input size.
type Row = (&'static str, Direction, [usize; 3], [usize; 3], usize);

const LAYERS: [Row; 19] = [
    ("64>64 k3 @56", Direction::Forward, [64, 64, 1], [3, 1, 1], 56),
    ("128>128 k1 @28", Direction::Forward, [128, 128, 1], [1, 1, 0], 28),
    ("256>256 k3 @14", Direction::Forward, [256, 256, 1], [3, 1, 1], 14),
    ("320>1280 k1 @7", Direction::Forward, [320, 1280, 1], [1, 1, 0], 7),
    ("64>384 k1 @14", Direction::Forward, [64, 384, 1], [1, 1, 0], 14),
    ("192>32 k1 @28", Direction::Forward, [192, 32, 1], [1, 1, 0], 28),
    ("64>256 k1 @56", Direction::Forward, [64, 256, 1], [1, 1, 0], 56),
    ("512>512 k3 @7", Direction::Forward, [512, 512, 1], [3, 1, 1], 7),
    ("3>64 k7 s2 @224", Direction::Forward, [3, 64, 1], [7, 2, 3], 224),
    ("128 depthwise k3 @56", Direction::Forward, [128, 128, 128], [3, 1, 1], 56),
    ("32 depthwise k3 @112", Direction::Forward, [32, 32, 32], [3, 1, 1], 112),
    ("256 depthwise k3 @28", Direction::Forward, [256, 256, 256], [3, 1, 1], 28),
    ("512 depthwise k3 @14", Direction::Forward, [512, 512, 512], [3, 1, 1], 14),
    ("96 depthwise k7 @56", Direction::Forward, [96, 96, 96], [7, 1, 3], 56),
    ("144 depthwise k5 s2 @56", Direction::Forward, [144, 144, 144], [5, 2, 2], 56),
    ("128 depthwise k3 s2 @56", Direction::Forward, [128, 128, 128], [3, 2, 1], 56),
    ("64>32 k4 s2 @56 transposed", Direction::Transposed, [64, 32, 1], [4, 2, 1], 56),
    ("128>64 k2 s2 @56 transposed", Direction::Transposed, [128, 64, 1], [2, 2, 0], 56),
    ("64 depthwise k4 s2 @56 transposed", Direction::Transposed, [64, 64, 64], [4, 2, 1], 56),
];

fn spec_of(direction: Direction, channels: [usize; 3], geometry: [usize; 3], data_format: DataFormat) -> DeconvSpec {
    let ([inputs, outputs, group], [kernel, stride, pad]) = (channels, geometry);
    DeconvSpec {
        direction,
        data_format,
        filter_format: if direction == Direction::Forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
        in_channels: inputs,
        out_channels: outputs,
        group,
        kernel: tvec!(kernel; 2),
        strides: tvec!(stride; 2),
        dilations: tvec!(1; 2),
        padding: Padding::Explicit { begin: tvec!(pad as i64; 2), end: tvec!(pad as i64; 2) },
        output_padding: tvec!(0; 2),
    }
}

fn bytes(shape: &[usize], datum_type: DatumType) -> TractResult<Tensor> {
    let mut tensor = seeded(shape, 3)?;
    tensor.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?.iter_mut().for_each(|x| *x = (*x * 127.0).abs().round());
    Ok(tensor.cast_to_dt(datum_type)?.into_owned())
}

/// Returns a run of a layer from bytes to bytes.
fn from_bytes_to_bytes(
    spec: &DeconvSpec,
    filter: &Tensor,
    x: &Tensor,
    options: PlanOptions,
) -> TractResult<Run<'static>> {
    let scaling = Scaling::of_scales(Scale::new("x", 0.02)?, &vec![Scale::new("w", 0.01)?; spec.out_channels])?;
    let bias = tensor1(&vec![100i32; spec.out_channels]).into_arc_tensor();
    let to = Quantisation::new("y", Scale::new("y", 0.37)?, 128, DatumType::U8)?;
    let output = Output::Quantised(scaling.with_integer_bias(bias).with_limits(-20.0, 1e9), to);
    let op = QuantisedDeconv::new(spec.clone(), Dialect::Onnx, DataZeroPoint::Const(113), tvec!(0), output, options)?;
    let mut model = TypedModel::default();
    let source = model.add_source("x", DatumType::U8.fact(x.shape()))?;
    let filter = model.add_const("filter", filter.cast_to::<i8>()?.into_owned().into_arc_tensor())?;
    let y = model.wire_node("layer", op, &[source, filter])?;
    model.select_output_outlets(&y)?;
    let (model, x) = (model.into_optimized()?.into_runnable()?, x.clone().into_tvalue());
    Ok(Box::new(move || Ok(model.run(tvec!(x.clone()))?.remove(0).into_tensor())))
}

type Run<'a> = Box<dyn Fn() -> TractResult<Tensor> + 'a>;

fn main() -> TractResult<()> {
    let rounds: usize = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(20);
    let mut wanted: Vec<String> =
        std::env::args().skip(1).filter(|a| a != "--bench" && a.parse::<usize>().is_err()).collect();
    let mut word = |name: &str| {
        let at = wanted.iter().position(|a| a == name)?;
        Some(wanted.drain(at..(at + 2).min(wanted.len())).nth(1).unwrap_or_default())
    };
    let only = word("--only");
    let forced = word("--strategy").map(|name| Strategy::from_name(&name)).transpose()?;
    let of_integers = forced.map_or(PlanOptions::default(), |strategy| PlanOptions::default().with_strategy(strategy));
    for (name, direction, channels, geometry, size) in LAYERS {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part)) {
            continue;
        }
        let mut runs: Vec<(&str, Run)> = vec![];
        let of = |data_format| spec_of(direction, channels, geometry, data_format);
        let (ncx, nxc) = (of(DataFormat::Ncx), of(DataFormat::Nxc));
        let w = seeded(&ncx.filter_shape(), 5)?;
        let mut integers = w.clone();
        integers.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?.iter_mut().for_each(|w| *w = (*w * 127.0).round());
        let integers = integers.cast_to::<i16>()?.into_owned();
        let w = w.into_arc_tensor();
        let direct = PlanOptions::default().with_isa(tract_deconv::Isa::Avx512);
        let direct = |strategy| direct.clone().with_strategy(strategy);
        let shape = ncx.data_format.shape(1, channels[0], [size; 2]);
        for (name, options) in [
            ("f32", PlanOptions::default()),
            ("by channels", direct(Strategy::DirectChannels)),
            ("by positions", direct(Strategy::DirectPositions)),
        ] {
            let Ok(plan) = Plan::new(&ncx, &shape, None, DatumType::F32, &options) else { continue };
            eprintln!("{name}: {plan}");
            let filter = PackedFilter::pack(&ncx, &plan.filter_layout(), &w)?;
            let (layer, x) = (Layer::new(plan), seeded(&shape, 3)?);
            runs.push((name, Box::new(move || layer.run(&x, &filter, None))));
        }
        let sums = IntegerSums::new(&ncx, &integers, &of_integers)?;
        let x = bytes(&shape, DatumType::U8)?;
        eprintln!("integers: {}", sums.plan(&DatumType::U8.fact(&shape), false)?.unwrap_or_default());
        if let Some(quads) = with_elements_of(4, of_integers.clone()) {
            runs.push(("passes", from_bytes_to_bytes(&ncx, &integers, &x, quads)?));
        }
        runs.push(("bytes", from_bytes_to_bytes(&ncx, &integers, &x, of_integers.clone())?));
        let (zero, x_zero) = (sums.clone(), x.clone());
        runs.push(("u8", Box::new(move || zero.run(&x_zero, 0, None))));
        runs.push(("u8-zp", Box::new(move || sums.run(&x, 113, None))));
        let last = IntegerSums::new(&nxc, &integers, &of_integers)?;
        let x = bytes(&nxc.data_format.shape(1, channels[0], [size; 2]), DatumType::I8)?;
        runs.push(("nxc", Box::new(move || last.run(&x, -128, None))));
        runs.retain(|(name, _)| only.as_ref().is_none_or(|only| only.split(',').any(|of| of == *name)));
        let mut times: Vec<Vec<f64>> = vec![vec![]; runs.len()];
        for (_, run) in &runs {
            run()?;
        }
        for _ in 0..rounds {
            for ((_, run), times) in runs.iter().zip(&mut times) {
                run()?;
                let repeats = 5;
                let begin = Instant::now();
                for _ in 0..repeats {
                    run()?;
                }
                times.push(begin.elapsed().as_secs_f64() * 1e6 / repeats as f64);
            }
        }
        let medians = runs.iter().zip(&mut times).map(|((name, _), times)| {
            times.sort_by(f64::total_cmp);
            format!("{name} {:.0}", times[times.len() / 2])
        });
        println!("{name}: {} us", medians.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}
