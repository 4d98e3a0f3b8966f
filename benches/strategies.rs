//! Every strategy that accepts a workload, on one thread:
//! `cargo bench --bench strategies -- dcgan`.
//!
//! Each result is compared with the definition's before it is timed. For the largest workloads that
//! takes longer than timing.

mod common;

use common::{Layer, compare, workloads};
use criterion::{Criterion, Throughput};
use std::time::Duration;
use tract_core::internal::*;
use tract_deconv::{PlanOptions, Strategy};

fn main() -> TractResult<()> {
    // The definition is slow, so it is computed only if one of the compared strategies is selected.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for workload in workloads()? {
        if !wanted.is_empty() && !wanted.iter().any(|part| workload.name.contains(part)) {
            continue;
        }
        let layer = Layer::new(workload.spec(), &workload.input_shape())?;
        let forced = |strategy| PlanOptions::default().with_strategy(strategy);
        let mut expected = None;
        let mut group = criterion.benchmark_group(&workload.name);
        group.throughput(Throughput::Elements(workload.useful_flops));
        for strategy in Strategy::ALL.iter().copied().filter(|s| *s != Strategy::Reference) {
            let ready = match layer.plan(&forced(strategy)) {
                Ok(ready) => ready,
                Err(reason) => {
                    eprintln!("{}: {reason}", workload.name);
                    continue;
                }
            };
            let expected = match &expected {
                Some(tensor) => tensor,
                None => expected.insert(layer.run(&layer.plan(&forced(Strategy::Reference))?)?),
            };
            compare(&format!("{} by {strategy}", workload.name), &layer.run(&ready)?, expected)?;
            group.bench_function(strategy.name(), |bencher| bencher.iter(|| layer.run(&ready)));
        }
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}
