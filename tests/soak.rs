//! Endless runs over changing shapes. Memory stays constant, plans are dropped, and no thread or
//! file handle leaks.
//!
//! The counting allocator is global, so there is one test at a time.

mod common;

use common::decoder::{decoder, picture};
use common::random::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicIsize, Ordering};
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};

static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call is forwarded to the system's allocator with unchanged arguments. Counting does
// not touch the blocks.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`, and the block came from the
        // system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The resources of the process.
#[derive(Clone, Copy, Debug)]
struct Held {
    live: isize,
    /// Resident bytes, threads and open files, on Linux.
    system: Option<(usize, usize, usize)>,
}

impl Held {
    fn now() -> TractResult<Held> {
        let system = cfg!(target_os = "linux").then(of_system).transpose()?;
        Ok(Held { live: LIVE.load(Ordering::Relaxed), system })
    }
}

fn of_system() -> TractResult<(usize, usize, usize)> {
    let entries = |folder: &str| std::fs::read_dir(folder).map(Iterator::count);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS is missing")?;
    let kilobytes: usize = resident.trim().trim_end_matches("kB").trim().parse()?;
    Ok((kilobytes << 10, entries("/proc/self/task")?, entries("/proc/self/fd")?))
}

fn soak(runs: usize) -> TractResult<()> {
    let runnable = decoder()?;
    let mut state = runnable.spawn()?;
    let executors = [Executor::SingleThread, Executor::multithread(2)];
    let mut random = Random(17);
    let mut elements = 0;
    let mut run = |count: usize, elements: &mut usize| -> TractResult<()> {
        for i in 0..count {
            let (n, h, w) = (1 + random.below(2), 1 + random.below(12), 1 + random.below(12));
            let executor = executors[i % executors.len()].clone();
            // Some runs use a thread that then ends and frees its scratch memory.
            let y = match i % 100 {
                0 => std::thread::scope(|scope| scope.spawn(|| runnable.run(tvec!(picture(n, h, w)))).join())
                    .map_err(|_| format_err!("a thread panicked"))?,
                _ => multithread_tract_scope(executor, || state.run(tvec!(picture(n, h, w)))),
            }?;
            *elements += y[0].len();
        }
        Ok(())
    };
    // The same seventeen shapes with the largest one last leave caches and scratch memory in the
    // same state at every call.
    let settle = || -> TractResult<Held> {
        for executor in &executors {
            for h in (1..=12).rev().chain(8..=12) {
                multithread_tract_scope(executor.clone(), || runnable.run(tvec!(picture(2, h, 12))))?;
            }
        }
        Held::now()
    };
    run(runs / 10, &mut elements)?;
    let before = settle()?;
    run(runs - runs / 10, &mut elements)?;
    let after = settle()?;
    let _ = writeln!(std::io::stderr(), "soak: {runs} runs, {elements} elements; {before:?}, then {after:?}");
    // Which thread has which scratch memory is up to who helped, and it is larger for tile registers.
    ensure!(after.live <= before.live + (512 << 10), "{} bytes are kept", after.live - before.live);
    if let Some((before, after)) = before.system.zip(after.system) {
        ensure!(after.0 <= before.0 + (16 << 20), "{} bytes more are resident", after.0 - before.0);
        ensure!(after.1 <= before.1, "{} threads are left", after.1 - before.1);
        ensure!(after.2 <= before.2, "{} open files are left", after.2 - before.2);
    }
    Ok(())
}

#[test]
fn three_thousand_runs() -> TractResult<()> {
    soak(3000)
}

#[test]
#[ignore = "minutes: .ci/run long does it, in release"]
fn a_hundred_thousand_runs() -> TractResult<()> {
    soak(100_000)
}
