//! Dense layers in each precision beside the exact ones, in turns, on one thread:
//! `cargo bench --bench precision -- 2 conv`, with the seconds per layer and a part of its name.
//!
//! Errors are the largest ones, over the largest value of the exact result.

use std::time::{Duration, Instant};
use tract_core::internal::*;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Layer, PackedFilter, Plan, PlanOptions, Precision};

/// A layer's channels, kernel, stride, pads and positions along an axis.
type Row = (&'static str, Direction, [usize; 2], usize, usize, i64, usize);

const ROWS: [Row; 9] = [
    ("conv 64 to 64, 3x3, 56", Direction::Forward, [64, 64], 3, 1, 1, 56),
    ("conv 256 to 256, 3x3, 28", Direction::Forward, [256, 256], 3, 1, 1, 28),
    ("conv 128 to 128, 3x3 by 2, 56", Direction::Forward, [128, 128], 3, 2, 1, 56),
    ("conv 512 to 512, 1x1, 14", Direction::Forward, [512, 512], 1, 1, 0, 14),
    ("conv 256 to 64, 1x1, 56", Direction::Forward, [256, 64], 1, 1, 0, 56),
    ("conv 512 to 512, 3x3, 7", Direction::Forward, [512, 512], 3, 1, 1, 7),
    ("deconv 128 to 64, 4x4 by 2, 56", Direction::Transposed, [128, 64], 4, 2, 1, 56),
    ("deconv 256 to 128, 2x2 by 2, 56", Direction::Transposed, [256, 128], 2, 2, 0, 56),
    ("deconv 512 to 256, 4x4 by 2, 8", Direction::Transposed, [512, 256], 4, 2, 1, 8),
];

/// A layer that is ready to run.
struct Ready {
    layer: Layer,
    filter: PackedFilter,
    times: Vec<f64>,
}

fn normal(shape: &[usize], seed: u64) -> TractResult<Tensor> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let values = (0..shape.iter().product()).map(|_| (0..6).map(|_| uniform()).sum::<f32>() - 3.0);
    Tensor::from_shape(shape, &values.collect::<Vec<f32>>())
}

fn main() -> TractResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let seconds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1.0);
    let wanted = |name: &str| {
        arguments.iter().filter(|word| word.parse::<f64>().is_err()).all(|word| name.contains(word.as_str()))
    };
    println!("layer | filter | exact | bf16 | f16: milliseconds, times faster than exact, error");
    for (name, direction, [inputs, outputs], kernel, stride, pads, size) in ROWS.into_iter().filter(|row| wanted(row.0))
    {
        let spec = DeconvSpec {
            direction,
            data_format: DataFormat::Ncx,
            filter_format: if direction == Direction::Forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: inputs,
            out_channels: outputs,
            group: 1,
            kernel: tvec!(kernel; 2),
            strides: tvec!(stride; 2),
            dilations: tvec!(1; 2),
            padding: Padding::Explicit { begin: tvec!(pads; 2), end: tvec!(pads; 2) },
            output_padding: tvec!(0; 2),
        };
        let x = normal(&[1, inputs, size, size], 3)?;
        let weights = normal(&spec.filter_shape(), 5)?;
        let of_bf16 = weights.try_as_plain_ram()?.as_slice::<f32>()?.iter().map(|w| Precision::Bf16.rounded(*w));
        let of_bf16 = Tensor::from_shape(&spec.filter_shape(), &of_bf16.collect::<Vec<f32>>())?;
        let mut all = vec![];
        for (filter, precision) in [
            (&weights, Precision::Exact),
            (&weights, Precision::Bf16),
            (&weights, Precision::F16),
            (&of_bf16, Precision::Exact),
        ] {
            let options = PlanOptions::default().with_precision(precision);
            let plan = Plan::new(&spec, x.shape(), None, DatumType::F32, &options)?;
            let filter = PackedFilter::pack(&spec, &plan.filter_layout(), &filter.clone().into_arc_tensor())?;
            all.push(Ready { layer: Layer::new(plan), filter, times: vec![] });
        }
        let begin = Instant::now();
        let mut turn = 0;
        while turn < 5 || begin.elapsed() < Duration::from_secs_f64(seconds) {
            for at in 0..all.len() {
                let count = all.len();
                let ready = &mut all[(at + turn) % count];
                let begin = Instant::now();
                drop(ready.layer.run(&x, &ready.filter, None)?);
                ready.times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            turn += 1;
        }
        // The fastest tenth: other processes disturb the rest.
        let typical = |ready: &Ready| {
            let mut times = ready.times.clone();
            times.sort_by(f64::total_cmp);
            times[times.len() / 10]
        };
        let answer = |ready: &Ready| -> TractResult<Vec<f32>> {
            let answer = ready.layer.run(&x, &ready.filter, None)?;
            Ok(answer.try_as_plain_ram()?.as_slice::<f32>()?.to_vec())
        };
        let exact = answer(&all[0])?;
        let largest = exact.iter().fold(0f32, |most, value| most.max(value.abs()));
        let mut cells = vec![];
        for (ready, what) in all.iter().zip(["exact", "bf16", "f16", "exact, weights of bf16"]) {
            let off = answer(ready)?.iter().zip(&exact).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            let (time, plan) = (typical(ready), ready.layer.plan());
            let strategy =
                if plan.precision().name() == "exact" { format!(" {}", plan.strategy()) } else { String::new() };
            let error = if what.starts_with("exact") { String::new() } else { format!(" {:.1e}", off / largest) };
            cells.push(format!("{what}{strategy} {time:.3} ms {:.2}x{error}", typical(&all[0]) / time));
        }
        println!("{name} | {} MB | {}", all[0].filter.bytes() >> 20, cells.join(" | "));
    }
    Ok(())
}
