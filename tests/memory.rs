//! The memory that loading and running take.
//!
//! There is no column buffer, no bias as large as the output, and only one copy of the weights.
//! Kept blocks of outputs are bounded, and freed with the model.
//!
//! The counting allocator is global, so there is one test.

mod common;

use common::probe::Probe;
use common::run::load;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use tract_core::internal::*;
use tract_deconv::memory::{DEFAULT_POOL_BYTES, idle_bytes, release, set_pool_bytes};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is forwarded to the system's allocator with unchanged arguments. Counting does
// not touch the blocks.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`, and the block came from the
        // system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work`. Returns the bytes that stay allocated and the peak, both relative to the state
/// before.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    let above = |counter: &AtomicUsize| counter.load(Ordering::Relaxed).saturating_sub(before);
    (result, above(&LIVE), above(&PEAK))
}

const MIB: usize = 1 << 20;

/// The allowance besides output and weights.
///
/// It covers the scratch of a strategy, which is half of the largest L2 that plans are made for and
/// some more, and the overhead of a loaded model.
const SLACK: usize = 10 * MIB;

#[test]
fn loading_and_running() -> TractResult<()> {
    for (what, x, w, group, strides) in [
        // The column buffer would be 16·16·16·64·64 f32, 64 MiB. The output is 1.2 MiB.
        ("dense k16 s2", [1, 32, 64, 64], [32, 16, 16, 16], 1, [2, 2]),
        // The column buffer would be 4·3·3 · 32·128·128 f32, 72 MiB. The output is 8 MiB.
        ("grouped k6 s2", [1, 32, 128, 128], [32, 2, 6, 6], 16, [2, 2]),
        // The output is 51 MiB, and a bias of its size would be as large again.
        ("k2 s2 @640²", [1, 8, 640, 640], [8, 8, 2, 2], 1, [2, 2]),
        // The weights are 32 MiB.
        ("wide", [1, 1024, 2, 2], [1024, 512, 4, 4], 1, [2, 2]),
    ] {
        for bias in [false, true] {
            let mut probe = Probe::new(&x, &w).ints("strides", &strides);
            if group > 1 {
                probe = probe.group(group);
            }
            if bias {
                probe = probe.bias(w[1] * group);
            }
            let weights = probe.w.len() * 4;
            let output: usize = w[1]
                * group
                * 4
                * (0..2).map(|ax| strides[ax] as usize * (x[2 + ax] - 1) + w[2 + ax]).product::<usize>();
            let (model, kept, _) = measured(|| load(&probe.proto())?.into_optimized());
            let model = model?;
            let plan = model.into_runnable()?;
            let inputs = tvec!(probe.x.clone().into_tvalue());
            let (first, after, peak) = measured(|| plan.run(inputs.clone()));
            let first = first?;
            let (second, _, again) = measured(|| plan.run(inputs));
            let second = second?;
            ensure!(second[0] == first[0], "{what}: the second run differs from the first");
            ensure!(idle_bytes() == 0, "{what}: {} bytes are idle while both outputs are in use", idle_bytes());
            let mib = |bytes: usize| bytes as f64 / MIB as f64;
            let _ = writeln!(
                std::io::stderr(),
                "memory: {what}, bias {bias}: weights {:.1} MiB, model {:.1}; output {:.1}, run {:.1} at most, then {:.1}",
                mib(weights),
                mib(kept),
                mib(output),
                mib(peak),
                mib(again)
            );
            // Packed weights may be padded to whole tiles.
            ensure!(
                kept <= weights + weights / 4 + SLACK,
                "{what}: the model keeps {kept} bytes for {weights} of weights"
            );
            ensure!(peak <= output + SLACK, "{what}: a run takes {peak} bytes for an output of {output}");
            ensure!(again <= output + SLACK, "{what}: the next run takes {again} bytes for an output of {output}");
            ensure!(after <= output + SLACK, "{what}: {after} bytes are kept after a run with an output of {output}");
            drop((first, second));
            ensure!(idle_bytes() == 2 * output, "{what}: {} bytes are idle, outputs have {output}", idle_bytes());
            let (third, _, peak) = measured(|| plan.run(tvec!(probe.x.clone().into_tvalue())));
            ensure!(peak <= probe.x.len() * 4 + MIB, "{what}: a run into a block that is there takes {peak} bytes");
            drop(third?);
            let (_, freed) = (drop(plan), idle_bytes());
            ensure!(freed == 0, "{what}: {freed} bytes are idle without a model");
        }
    }
    changing_shapes()
}

/// Blocks for shapes that do not recur are freed. Memory is bounded by a few outputs, and always by
/// the pool's size.
fn changing_shapes() -> TractResult<()> {
    let dims = [1.into(), 8.into(), "H".into(), "W".into()];
    let probe = Probe::new(&[1, 8, 4, 4], &[8, 8, 2, 2]).ints("strides", &[2, 2]).dims(&dims);
    let plan = load(&probe.proto())?.into_optimized()?.into_runnable()?;
    let run = |side: usize| plan.run(tvec!(probe.clone().with_x(&[1, 8, side, side]).x.into_tvalue()));
    let largest = 8 * 4 * (2 * 400) * (2 * 400);
    for (pool, bound) in [(DEFAULT_POOL_BYTES, 4 * largest), (2 * largest, 2 * largest), (0, 0)] {
        set_pool_bytes(pool);
        let mut most = 0;
        for side in 200..400 {
            drop(run(side)?);
            most = most.max(idle_bytes());
        }
        let _ = writeln!(std::io::stderr(), "memory: 200 shapes with a pool of {pool}: {most} bytes idle at most");
        ensure!(most <= bound.min(pool), "with a pool of {pool}, {most} bytes are idle");
    }
    set_pool_bytes(DEFAULT_POOL_BYTES);
    for side in (20..40).chain([20; 100]) {
        drop(run(side)?);
    }
    release();
    ensure!(idle_bytes() == 0);
    Ok(())
}
