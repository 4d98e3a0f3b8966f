//! Layers under every kind of tiles that takes them, with weights transformed in the filter and in
//! each run, beside the other strategies: `cargo bench --bench tiles`. Further words:
//!
//! - a part of a layer's name, such as `56x56` or `k11`: only layers that have it;
//! - `--isa avx512`: with another instruction set;
//! - `threads=2`: with so many threads.
//!
//! The plans of a layer take turns. The least time of the turns is printed, and the estimate's share
//! of it. A star marks the planner's choice.

mod common;

use common::{Layer, Ready, compare};
use std::time::{Duration, Instant};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{FilterLayout, Isa, Machine, PlanOptions, Strategy};

/// Input and output channels, and the input's sizes.
type Square = (usize, usize, [usize; 2]);

const THREE_BY_THREE: [Square; 11] = [
    (16, 16, [224, 224]),
    (32, 32, [256, 256]),
    (64, 64, [112, 112]),
    (64, 64, [56, 56]),
    (128, 128, [56, 56]),
    (128, 128, [28, 28]),
    (256, 256, [56, 56]),
    (256, 256, [32, 32]),
    (256, 256, [14, 14]),
    (512, 512, [7, 7]),
    (256, 160, [40, 40]),
];

/// Channels, positions, taps and dilation.
const ONE_AXIS: [[usize; 4]; 14] = [
    [512, 200, 11, 1],
    [256, 800, 11, 1],
    [256, 800, 7, 1],
    [256, 800, 3, 5],
    [128, 6400, 11, 1],
    [128, 6400, 7, 3],
    [128, 6400, 3, 1],
    [64, 12800, 11, 5],
    [64, 12800, 7, 1],
    [64, 12800, 3, 1],
    [32, 25600, 11, 1],
    [32, 25600, 7, 1],
    [32, 25600, 3, 1],
    [192, 400, 5, 1],
];

/// Channels, sizes, kernel, and the direction, of stride 2.
const STRIDED: [(Square, usize, Direction); 13] = [
    ((64, 32, [56, 56]), 4, Direction::Transposed),
    ((96, 192, [40, 40]), 4, Direction::Transposed),
    ((256, 256, [16, 16]), 4, Direction::Transposed),
    ((256, 128, [32, 32]), 4, Direction::Transposed),
    ((32, 16, [128, 128]), 4, Direction::Transposed),
    ((128, 64, [64, 64]), 3, Direction::Transposed),
    ((256, 160, [32, 42]), 3, Direction::Transposed),
    ((64, 64, [40, 40]), 5, Direction::Transposed),
    ((64, 32, [56, 56]), 6, Direction::Transposed),
    ((16, 384, [224, 224]), 3, Direction::Forward),
    ((64, 128, [56, 56]), 3, Direction::Forward),
    ((128, 256, [28, 28]), 3, Direction::Forward),
    ((64, 192, [40, 40]), 5, Direction::Forward),
];

fn layers() -> TractResult<Vec<(String, Layer)>> {
    let layer = |(inputs, outputs): (usize, usize), size: &[usize], kernel, stride, dilation, direction| {
        let reach = (kernel - 1) * dilation;
        let (begin, end): (i64, i64) = match stride {
            1 => ((reach / 2) as i64, (reach - reach / 2) as i64),
            _ => (((kernel - 1) / 2) as i64, ((kernel - 1) / 2) as i64),
        };
        let rank = size.len();
        let spec = DeconvSpec {
            direction,
            data_format: DataFormat::Ncx,
            filter_format: if direction == Direction::Forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: inputs,
            out_channels: outputs,
            group: 1,
            kernel: tvec!(kernel; rank),
            strides: tvec!(stride; rank),
            dilations: tvec!(dilation; rank),
            padding: Padding::Explicit { begin: tvec!(begin; rank), end: tvec!(end; rank) },
            output_padding: tvec!(0; rank),
        };
        let name =
            format!("{direction:?} {inputs}-{outputs} {} k{kernel} s{stride} d{dilation}", size.iter().join("x"));
        Ok((name, Layer::new(spec, &[&[1, inputs], size].concat())?))
    };
    let forward = Direction::Forward;
    let squares =
        THREE_BY_THREE.iter().map(|(inputs, outputs, size)| layer((*inputs, *outputs), size, 3, 1, 1, forward));
    let lines = ONE_AXIS
        .iter()
        .map(|[channels, len, taps, dilation]| layer((*channels, *channels), &[*len], *taps, 1, *dilation, forward));
    let strided = STRIDED.iter().map(|((inputs, outputs, size), kernel, direction)| {
        layer((*inputs, *outputs), size, *kernel, 2, 1, *direction)
    });
    squares.chain(lines).chain(strided).collect()
}

fn main() -> TractResult<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1));
    let isa = after("--isa").map(|name| Isa::from_name(name)).transpose()?;
    let threads = words.iter().find_map(|word| word.strip_prefix("threads=")).map_or(Ok(1), str::parse)?;
    let flags = [after("--isa").map_or("", |name| name)];
    let wanted = |word: &&String| !word.starts_with("--") && !word.contains('=') && !flags.contains(&word.as_str());
    let wanted: Vec<&String> = words.iter().filter(wanted).collect();
    let options = PlanOptions::default().with_isa(isa);
    let rate = Machine::with_isa(isa.unwrap_or_else(Isa::best)).rates().get("fma_per_ns").unwrap_or(1.0);
    for (name, layer) in layers()? {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let mut outcome = Ok(());
        match threads {
            1 => measure(&name, &layer, &options, rate)?,
            _ => multithread_tract_scope(Executor::multithread(threads), || {
                outcome = measure(&name, &layer, &options, rate);
            }),
        }
        outcome?;
    }
    Ok(())
}

/// All plans of a layer, with their names.
fn plans(layer: &Layer, options: &PlanOptions) -> TractResult<Vec<(String, Ready)>> {
    let mut plans = vec![];
    for strategy in Strategy::ALL.iter().copied().filter(|of| ![Strategy::Reference, Strategy::Winograd].contains(of)) {
        if let Ok(ready) = layer.plan(&options.clone().with_strategy(strategy)) {
            plans.push((format!("{strategy} {}", ready.plan.variant()), ready));
        }
    }
    let ways = [("in run", 0), ("in filter", usize::MAX)];
    let of = |left_out: &[&'static str], bytes: usize| {
        let mut options = options.clone().with_strategy(Strategy::Winograd).with_transformed_bytes(bytes);
        options.left_out = left_out.to_vec();
        layer.plan(&options).ok()
    };
    let mut variants = vec![];
    while let Some(ready) = of(&variants, 0) {
        variants.push(ready.plan.variant());
    }
    for variant in &variants {
        let others: Vec<&str> = variants.iter().copied().filter(|other| other != variant).collect();
        for (way, bytes) in ways {
            let Some(ready) = of(&others, bytes) else { continue };
            if matches!(ready.plan.filter_layout(), FilterLayout::Tiles { .. }) == (bytes > 0) {
                plans.push((format!("{variant}, {way}"), ready));
            }
        }
    }
    Ok(plans)
}

fn measure(name: &str, layer: &Layer, options: &PlanOptions, rate: f64) -> TractResult<()> {
    let chosen = layer.plan(options)?.plan;
    let mut plans = plans(layer, options)?;
    plans.retain(|(_, ready)| ready.plan.cost().zip(chosen.cost()).is_some_and(|(cost, least)| cost < 4 * least));
    let expected = layer.run(&plans[0].1)?;
    for (what, ready) in &plans {
        compare(&format!("{name}, {what}"), &layer.run(ready)?, &expected)?;
    }
    let mut times = vec![vec![]; plans.len()];
    let begin = Instant::now();
    while times[0].len() < 5 || begin.elapsed() < Duration::from_millis(700) && times[0].len() < 60 {
        for ((_, ready), times) in plans.iter().zip(&mut times) {
            drop(layer.run(ready)?);
            let begin = Instant::now();
            let output = layer.run(ready)?;
            times.push(begin.elapsed().as_secs_f64());
            drop(output);
        }
    }
    println!("{name}");
    for ((what, ready), times) in plans.iter().zip(&times) {
        let least = times.iter().copied().fold(f64::MAX, f64::min);
        let estimate = ready.plan.cost().unwrap_or(0) as f64 / rate / 1e9 / least;
        let same = (ready.plan.strategy(), ready.plan.variant(), ready.plan.filter_layout());
        let star = if same == (chosen.strategy(), chosen.variant(), chosen.filter_layout()) { "*" } else { " " };
        println!("  {star} {what:<40} {:>9.1} us, estimate {estimate:.2}", least * 1e6);
    }
    Ok(())
}
