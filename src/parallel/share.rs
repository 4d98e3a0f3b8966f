//! Sharing tasks among the threads of tract's current executor.

use super::queue::Queue;
use super::scope::{Scope, share_work};
use super::workers::{self, Pool, Workers};
use super::{NOT_SET, SHARE_FROM};
use crate::estimate::machine::Machine;
use crate::knobs::TRACT_DECONV_SHARE_FROM;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tract_core::internal::*;

/// The cost from which on work is shared, if [`set_share_from`](super::set_share_from) or
/// [`TRACT_DECONV_SHARE_FROM`] sets it. It applies whether or not a worker spins.
fn set() -> Option<u64> {
    static SET: OnceLock<Option<u64>> = OnceLock::new();
    match SHARE_FROM.load(Ordering::Relaxed) {
        NOT_SET => *SET.get_or_init(|| TRACT_DECONV_SHARE_FROM.get().map(|cost| cost as u64)),
        cost => Some(cost),
    }
}

/// As [`threads`](super::threads).
pub(super) fn threads(cost: u64) -> usize {
    threads_on(Machine::current(), cost)
}

pub(super) fn threads_on(machine: &Machine, cost: u64) -> usize {
    let time = machine.nanoseconds(cost);
    let is_below = |least: f64| set().map_or(time < least, |least| cost < least);
    // Small work does not query the executor.
    if is_below(machine.rates.share_spinning_ns) {
        return 1;
    }
    match Pool::current() {
        None => 1,
        Some(pool) if is_below(machine.rates.share_ns) => 1 + spinning_workers(&pool),
        Some(pool) => pool.threads(),
    }
}

/// As [`tasks`](super::tasks).
pub(super) fn tasks(cost: u64) -> usize {
    /// The time that a task should take at least.
    const LEAST_NS: f64 = 8000.0;
    const MOST_PER_THREAD: usize = 4;
    match threads(cost) {
        1 => 1,
        threads => {
            ((Machine::current().nanoseconds(cost) / LEAST_NS) as usize).clamp(threads, MOST_PER_THREAD * threads)
        }
    }
}

/// The number of spinning workers. If there is none but such work recurs often, one is called for
/// future work.
fn spinning_workers(pool: &Pool) -> usize {
    /// The longest pause between such work.
    const PAUSE: Duration = Duration::from_micros(50);
    /// The number of earlier queries that count as often. Each work makes one or two.
    const OFTEN: usize = 8;
    thread_local!(static ASKED: Cell<Option<(Instant, usize)>> = const { Cell::new(None) });
    let workers = Workers::of(pool);
    let spinning = workers.spinning();
    if spinning > 0 {
        ASKED.set(None);
        return spinning;
    }
    let now = Instant::now();
    let before = ASKED.get().filter(|(last, _)| now.duration_since(*last) < PAUSE).map_or(0, |(_, before)| before);
    if before >= OFTEN {
        ASKED.set(None);
        workers.call(pool);
    } else {
        ASKED.set(Some((now, before + 1)));
    }
    0
}

/// Runs every task, on `threads` threads including the calling one.
///
/// Each thread has a run of tasks of its own. When it has finished them, it takes the last ones of
/// other threads. The data that a thread reads are then mostly those it accessed in the previous
/// layer or run, and are in its own cache.
pub(super) fn share<T: Send>(
    tasks: &mut [T],
    threads: usize,
    run: &(dyn Fn(&mut T) -> TractResult<()> + Sync),
) -> TractResult<()> {
    thread_local!(static KEPT: Cell<Option<Arc<Scope>>> = const { Cell::new(None) });
    let Some(pool) = Pool::current() else { return tasks.iter_mut().try_for_each(run) };
    let helpers = (threads - 1).min(tasks.len().saturating_sub(1));
    let queue = Queue::new(tasks, helpers + 1);
    let workers = Workers::of(&pool);
    let mut kept = KEPT.take();
    let work = |thread| queue.work(thread, run);
    share_work(&mut kept, helpers, workers::owner_spin(), workers.sender(&pool), &work);
    KEPT.set(kept);
    queue.outcome()
}
