//! One runnable on many threads, and results whose bits do not depend on the threads. See
//! "Determinism" in the crate's documentation.

mod common;

use common::decoder::{decoder, picture};
use common::random::Random;
use common::spec::unpadded as spec;
use std::io::Write;
use std::sync::Barrier;
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::PackedFilter;
use tract_deconv::Step;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction};
use tract_deconv::{Plan, PlanOptions, Strategy};

/// Returns more shapes than an op keeps plans for. Some are small, and some are large enough for
/// several threads.
fn shapes() -> Vec<(usize, usize, usize)> {
    (0..30).map(|i| (1 + i % 2, 1 + i * 5 % 19, if i % 7 == 0 { 24 } else { 1 + i * 3 % 11 })).collect()
}

/// Returns the calling thread alone, pools whose sizes partition work differently, and rayon's
/// global pool.
fn executors() -> Vec<(String, Executor)> {
    let mut executors = vec![
        ("the calling thread".to_string(), Executor::SingleThread),
        ("the global pool".to_string(), Executor::RayonGlobal),
    ];
    for threads in [2, 3, 5] {
        executors.push((format!("{threads} threads"), Executor::multithread(threads)));
    }
    executors
}

#[test]
fn one_runnable_on_many_threads() -> TractResult<()> {
    const THREADS: usize = 8;
    let runnable = decoder()?;
    let shapes = shapes();
    let alone: Vec<TValue> = shapes
        .iter()
        .map(|&(n, h, w)| {
            let run = || runnable.run(tvec!(picture(n, h, w)));
            Ok(multithread_tract_scope(Executor::SingleThread, run)?.remove(0))
        })
        .collect::<TractResult<_>>()?;
    let executors = executors();
    let together = Barrier::new(THREADS);
    let run_all = |thread: usize| -> TractResult<usize> {
        let mut state = runnable.spawn()?;
        together.wait();
        let mut runs = 0;
        for round in 0..3 {
            for i in 0..shapes.len() {
                // Every thread has another shape, and sometimes two threads have the same one.
                let at = (i * (1 + 2 * (thread % 4)) + thread * 4 + round) % shapes.len();
                let (n, h, w) = shapes[at];
                // The executor changes from run to run.
                let (who, executor) = &executors[(i + thread) % executors.len()];
                let y = multithread_tract_scope(executor.clone(), || state.run(tvec!(picture(n, h, w))))?.remove(0);
                ensure!(y.as_bytes() == alone[at].as_bytes(), "{n}x{h}x{w} on {who}: other bits than alone");
                runs += 1;
            }
        }
        Ok(runs)
    };
    let runs: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run_all(thread))).collect();
        threads.into_iter().map(|t| t.join().map_err(|_| format_err!("a thread panicked"))?).sum::<TractResult<usize>>()
    })?;
    let _ = writeln!(std::io::stderr(), "threads: {runs} runs of {} shapes on {THREADS} threads", shapes.len());
    ensure!(runs == THREADS * 3 * shapes.len());
    Ok(())
}

#[test]
fn a_model_loaded_again_gives_the_same_bits() -> TractResult<()> {
    let (first, second) = (decoder()?, decoder()?);
    for (n, h, w) in shapes() {
        let [a, b, c] = [&first, &second, &first].map(|runnable| runnable.run(tvec!(picture(n, h, w))));
        let (a, b, c) = (a?.remove(0), b?.remove(0), c?.remove(0));
        ensure!(a.as_bytes() == b.as_bytes() && a.as_bytes() == c.as_bytes(), "{n}x{h}x{w}");
    }
    Ok(())
}

/// Returns problems large enough for several threads, at least one for each strategy.
fn problems() -> Vec<(DeconvSpec, usize, Vec<usize>)> {
    use Direction::{Forward, Transposed};
    vec![
        (spec(Transposed, (32, 32, 32), &[3, 3], 2), 1, vec![140, 133]),
        (spec(Transposed, (400, 140, 1), &[4, 4], 1), 11, vec![1, 1]),
        (spec(Transposed, (24, 3, 1), &[9, 9], 4), 1, vec![61, 57]),
        (spec(Transposed, (40, 37, 1), &[4, 4], 2), 1, vec![27, 29]),
        // Sums in two accumulation chains, and sums longer than a chain.
        (spec(Transposed, (64, 64, 8), &[4, 4], 2), 1, vec![61, 57]),
        (spec(Transposed, (300, 20, 1), &[3, 3], 2), 1, vec![9, 11]),
        (spec(Transposed, (64, 48, 1), &[16], 8), 1, vec![107]),
        (spec(Transposed, (16, 17, 1), &[3, 3, 3], 2), 1, vec![9, 8, 12]),
        (spec(Transposed, (36, 34, 2), &[2, 2], 2), 2, vec![31, 33]),
        (spec(Forward, (24, 33, 1), &[3, 3], 1), 1, vec![30, 29]),
        // Single taps, of the input itself and of copies.
        (spec(Forward, (70, 50, 1), &[1, 1], 1), 2, vec![67, 60]),
        (spec(Forward, (130, 70, 1), &[1, 1], 2), 1, vec![61, 75]),
        // Several accumulator blocks of transformed tiles.
        (spec(Forward, (70, 33, 1), &[3, 3], 1), 1, vec![67, 60]),
        (spec(Transposed, (130, 2, 1), &[64], 16), 1, vec![301]),
        (spec(Transposed, (33, 33, 33), &[7], 2), 1, vec![40003]),
        (spec(Forward, (32, 32, 8), &[5], 3), 1, vec![100_007]),
        // Threads share the channels, in whole panels and a partial one.
        (spec(Transposed, (900, 300, 1), &[4, 4], 2), 1, vec![3, 3]),
        (spec(Transposed, (500, 170, 1), &[3, 3, 3], 2), 1, vec![2, 3, 2]),
    ]
}

#[test]
fn plans_give_the_same_bits_on_any_number_of_threads() -> TractResult<()> {
    let executors = executors();
    let mut compared = [0; Strategy::ALL.len()];
    for (spec, batch, spatial) in problems() {
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let input = data_format.shape(batch, spec.in_channels, spatial.iter().copied());
            let mut random = Random(9);
            // Threads share tensors of f16 as those of f32.
            let of_f16 = (f16::datum_type(), Isa::best());
            let of_f32 = Isa::ALL.iter().map(|isa| (f32::datum_type(), *isa));
            for (dt, isa) in of_f32.chain([of_f16]) {
                let x = random.tensor(dt, &input);
                let w = random.tensor(dt, &spec.filter_shape()).into_arc_tensor();
                let bias = random.tensor(dt, &[spec.out_channels]);
                // One step depends on the channel, the other on the element.
                let slopes = random.tensor(f32::datum_type(), &[spec.out_channels]).into_arc_tensor();
                let tail = [Step::PRelu(slopes), Step::Add];
                for strategy in Strategy::ALL.iter().copied() {
                    let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
                    let Ok(plan) = Plan::new(&spec, &input, None, dt, &options) else { continue };
                    if plan.strategy() == Strategy::Reference {
                        continue;
                    }
                    // Far above the cost that is always shared, `LEAST_SHARED` in
                    // src/parallel/mod.rs.
                    let cost = plan.cost().context("every strategy but the reference has a cost")?;
                    if cost < 5 << 18 {
                        continue;
                    }
                    let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &w)?;
                    let residual = random.tensor(dt, &plan.problem().output_shape());
                    let run =
                        || Layer::new(plan.clone()).run_with_epilogue(&x, &packed, Some(&bias), &tail, &[&residual]);
                    let alone = multithread_tract_scope(Executor::SingleThread, run)?;
                    for (who, executor) in &executors {
                        let y = multithread_tract_scope(executor.clone(), run)?;
                        ensure!(y.as_bytes() == alone.as_bytes(), "{plan}, {input:?} on {who}: other bits than alone");
                        compared[strategy as usize] += 1;
                    }
                }
            }
        }
    }
    for strategy in Strategy::ALL.iter().copied().filter(|strategy| *strategy != Strategy::Reference) {
        let count = compared[strategy as usize];
        let _ = writeln!(std::io::stderr(), "threads: {strategy} compared {count} times");
        ensure!(count > 0 || !strategy.is_available(), "{strategy} was never worth threads");
    }
    Ok(())
}
