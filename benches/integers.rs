//! Layers of 8-bit integers beside the same layers in f32, on one thread, in alternating rounds:
//! `cargo bench --bench integers -- 40`, where 40 is the number of rounds.
//!
//! Each row has the median time in f32 under the planner's choice and under tap-by-tap sums, and that
//! of the integer sums of `u8` without and with a zero point, and of `i8` channels last.

mod common;

use common::seeded;
use std::time::Instant;
use tract_core::internal::*;
use tract_deconv::internals::IntegerSums;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Layer, PackedFilter, Plan, PlanOptions, Strategy};

/// Name, direction, channels in and out and groups, kernel and stride and padding, input size.
type Row = (&'static str, Direction, [usize; 3], [usize; 3], usize);

const LAYERS: [Row; 9] = [
    ("64>64 k3 @56", Direction::Forward, [64, 64, 1], [3, 1, 1], 56),
    ("128>128 k1 @28", Direction::Forward, [128, 128, 1], [1, 1, 0], 28),
    ("256>256 k3 @14", Direction::Forward, [256, 256, 1], [3, 1, 1], 14),
    ("3>64 k7 s2 @224", Direction::Forward, [3, 64, 1], [7, 2, 3], 224),
    ("128 depthwise k3 @56", Direction::Forward, [128, 128, 128], [3, 1, 1], 56),
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

type Run<'a> = Box<dyn Fn() -> TractResult<Tensor> + 'a>;

fn main() -> TractResult<()> {
    let rounds: usize = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(20);
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|a| !a.starts_with('-') && a.parse::<usize>().is_err()).collect();
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
        let sums = IntegerSums::new(&ncx, &integers, &PlanOptions::default())?;
        let x = bytes(&shape, DatumType::U8)?;
        eprintln!(
            "integers: {}",
            sums.plan(&DatumType::U8.fact(&shape))?.unwrap_or_default().lines().next().unwrap_or("")
        );
        let (zero, x_zero) = (sums.clone(), x.clone());
        runs.push(("u8", Box::new(move || zero.run(&x_zero, 0, None))));
        runs.push(("u8-zp", Box::new(move || sums.run(&x, 113, None))));
        let last = IntegerSums::new(&nxc, &integers, &PlanOptions::default())?;
        let x = bytes(&nxc.data_format.shape(1, channels[0], [size; 2]), DatumType::I8)?;
        runs.push(("nxc", Box::new(move || last.run(&x, -128, None))));
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
