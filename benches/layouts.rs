//! Channels-last data against channels-first data on each workload:
//! `cargo bench --bench layouts -- unet`, or `-- threads=2` for two threads.
//!
//! The two results are compared before they are timed. Rounds alternate between the layouts. The
//! output has the medians and the ratio of the rounds' medians.

mod common;

use common::{Layer, Ready, compare, workloads};
use std::time::{Duration, Instant};
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::PlanOptions;
use tract_deconv::spec::DataFormat;

const ROUNDS: usize = 7;
/// The time of a round per layout.
const ROUND: Duration = Duration::from_millis(60);

fn main() -> TractResult<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (options, wanted): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.starts_with("threads="));
    let threads: usize = options.first().map_or(Ok(1), |word| word["threads=".len()..].parse())?;
    if threads == 1 {
        return measure(&wanted);
    }
    let mut outcome = Ok(());
    multithread_tract_scope(Executor::multithread(threads), || outcome = measure(&wanted));
    outcome
}

fn measure(wanted: &[&String]) -> TractResult<()> {
    println!("{:36} {:>11} {:>11} {:>9}", "microseconds", "NCX", "NXC", "NCX / NXC");
    let mut worst: Option<(f64, String)> = None;
    for workload in workloads()? {
        let spec = workload.spec();
        if spec.data_format == DataFormat::Nxc
            || !wanted.is_empty() && !wanted.iter().any(|part| workload.name.contains(*part))
        {
            continue;
        }
        let last = spec.kernel.len() + 1;
        let channels_first = Layer::new(spec.clone(), &workload.input_shape())?;
        let mut channels_last = Layer::new(spec, &workload.input_shape())?;
        channels_last.spec.data_format = DataFormat::Nxc;
        channels_last.input = channels_last.input.move_axis(1, last)?;
        let ready = [channels_first.plan(&PlanOptions::default())?, channels_last.plan(&PlanOptions::default())?];
        compare(&workload.name, &channels_last.run(&ready[1])?.move_axis(last, 1)?, &channels_first.run(&ready[0])?)?;
        let mut medians = [vec![], vec![]];
        for round in 0..ROUNDS {
            for at in [round % 2, 1 - round % 2] {
                medians[at].push(median_time([&channels_first, &channels_last][at], &ready[at])?);
            }
        }
        let quotient = median(medians[0].iter().zip(&medians[1]).map(|(ncx, nxc)| ncx / nxc).collect());
        let [ncx, nxc] = medians.map(median);
        println!("{:36} {ncx:11.1} {nxc:11.1} {quotient:9.3}", workload.name);
        if worst.as_ref().is_none_or(|(least, _)| quotient < *least) {
            worst = Some((quotient, workload.name));
        }
    }
    if let Some((quotient, name)) = worst {
        println!("worst: {name}, {quotient:.3}");
    }
    Ok(())
}

/// Returns the median time of the runs of one round, of which there are at least three, in
/// microseconds.
fn median_time(layer: &Layer, ready: &Ready) -> TractResult<f64> {
    let (begin, mut times) = (Instant::now(), vec![]);
    while times.len() < 3 || begin.elapsed() < ROUND {
        let run = Instant::now();
        layer.run(ready)?;
        times.push(run.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
