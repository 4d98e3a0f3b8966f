//! Sharing work among the threads of tract's current executor, and deciding whether that is
//! worthwhile.
//!
//! The calling thread does not wait for other threads to wake up. It begins at once, and threads
//! that join it take tasks too. It does not wait for a thread that wakes up when no task is left.
//! Sharing work therefore costs hardly any time, however long waking threads takes.

#[forbid(unsafe_code)]
mod mailbox;
#[forbid(unsafe_code)]
mod queue;
mod scope;
#[forbid(unsafe_code)]
mod sync;
#[cfg(all(test, not(target_family = "wasm")))] // a module has no threads
#[forbid(unsafe_code)]
mod tests;
#[forbid(unsafe_code)]
mod workers;

use crate::estimate::machine::Machine;
use crate::knobs::TRACT_DECONV_SHARE_FROM;
use queue::Queue;
use scope::{Scope, share_work};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tract_core::internal::*;
use workers::{Pool, Workers};
pub use workers::{set_spin_time, spin_time};

/// The argument of [`set_share_from`].
static SHARE_FROM: AtomicU64 = AtomicU64::new(NOT_SET);

const NOT_SET: u64 = u64::MAX;

/// Sets the estimated cost from which on the threads of tract's executor share a layer.
///
/// The cost is that shown by [`explain`](crate::explain()). With `u64::MAX` every layer stays on
/// the calling thread.
/// It applies to the whole process, from the next run on.
/// With `None`, the knob [`TRACT_DECONV_SHARE_FROM`] decides, or a measured default if it is not
/// set.
pub fn set_share_from(cost: Option<u64>) {
    SHARE_FROM.store(cost.map_or(NOT_SET, |cost| cost.min(NOT_SET - 1)), Ordering::Relaxed);
}

/// The cost from which on work is shared, if [`set_share_from`] or [`TRACT_DECONV_SHARE_FROM`] sets
/// it. It applies whether or not a worker spins.
fn set() -> Option<u64> {
    static SET: OnceLock<Option<u64>> = OnceLock::new();
    match SHARE_FROM.load(Ordering::Relaxed) {
        NOT_SET => *SET.get_or_init(|| TRACT_DECONV_SHARE_FROM.get().map(|cost| cost as u64)),
        cost => Some(cost),
    }
}

/// Returns the number of threads that share work of an estimated cost.
///
/// These are all threads of tract's current executor, or the calling thread and the spinning
/// workers, or one thread, in order of falling cost. [`TRACT_DECONV_SHARE_FROM`] replaces the
/// limits between them.
pub fn threads(cost: u64) -> usize {
    threads_on(Machine::current(), cost)
}

fn threads_on(machine: &Machine, cost: u64) -> usize {
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

/// Runs every task, on tract's current executor if the work is worth it. After an error, tasks that
/// have not begun are skipped.
///
/// `run` is called through a pointer, so that sharing is compiled once per type of task, not per closure.
pub(crate) fn parallel<T: Send>(
    tasks: &mut [T],
    cost: u64,
    run: &(dyn Fn(&mut T) -> TractResult<()> + Sync),
) -> TractResult<()> {
    let threads = if tasks.len() < 2 { 1 } else { threads(cost) };
    if threads == 1 {
        return tasks.iter_mut().try_for_each(run);
    }
    share(tasks, threads, run)
}

/// Runs every task, on `threads` threads including the calling one.
///
/// Each thread has a run of tasks of its own. When it has finished them, it takes the last ones of
/// other threads. The data that a thread reads are then mostly those it accessed in the previous
/// layer or run, and are in its own cache.
fn share<T: Send>(
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
