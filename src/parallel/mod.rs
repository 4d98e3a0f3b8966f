//! Sharing work out to the threads of tract's current executor, and whether it is worth that.
//!
//! The calling thread does not wait for other threads to wake up. It begins at once, and threads that join it take tasks, too. A thread that wakes up when no task is
//! left is not waited for, so work that is shared takes hardly longer than on one thread, however long waking up takes.

#[forbid(unsafe_code)]
mod mailbox;
#[forbid(unsafe_code)]
mod queue;
mod scope;
#[forbid(unsafe_code)]
mod sync;
#[cfg(test)]
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

/// What [`set_share_from`] was called with.
static SHARE_FROM: AtomicU64 = AtomicU64::new(NOT_SET);

const NOT_SET: u64 = u64::MAX;

/// Sets the estimated cost, as [`explain`](crate::explain()) has it, from which on the threads of tract's executor share a
/// layer. With `u64::MAX` every layer stays on the calling thread. It holds for the whole process and from the next run on.
/// With `None`, the knob [`TRACT_DECONV_SHARE_FROM`] decides, and what was measured where it is not set.
pub fn set_share_from(cost: Option<u64>) {
    SHARE_FROM.store(cost.map_or(NOT_SET, |cost| cost.min(NOT_SET - 1)), Ordering::Relaxed);
}

/// The cost from which on work is shared, whether a worker spins or not, if [`set_share_from`] or
/// [`TRACT_DECONV_SHARE_FROM`] says so.
fn set() -> Option<u64> {
    static SET: OnceLock<Option<u64>> = OnceLock::new();
    match SHARE_FROM.load(Ordering::Relaxed) {
        NOT_SET => *SET.get_or_init(|| TRACT_DECONV_SHARE_FROM.get().map(|cost| cost as u64)),
        cost => Some(cost),
    }
}

/// Number of threads that work of an estimated cost is shared out to: those of tract's current executor, or the calling one and the workers that are awake, or one
/// where it is not worth more, unless [`TRACT_DECONV_SHARE_FROM`] decides.
pub fn threads(cost: u64) -> usize {
    let machine = Machine::current();
    let time = machine.nanoseconds(cost);
    let is_below = |least: f64| set().map_or(time < least, |least| cost < least);
    // small work does not ask for the executor
    if is_below(machine.rates.share_awake_ns) {
        return 1;
    }
    match Pool::current() {
        None => 1,
        Some(pool) if is_below(machine.rates.share_ns) => 1 + awake(&pool),
        Some(pool) => pool.threads(),
    }
}

/// Workers that are awake. Where none is, but work of this kind comes again and again, one is called for what will come.
fn awake(pool: &Pool) -> usize {
    /// Longest pause between such work.
    const PAUSE: Duration = Duration::from_micros(50);
    /// How often it was asked for before, by one or two questions each.
    const OFTEN: usize = 8;
    thread_local!(static ASKED: Cell<Option<(Instant, usize)>> = const { Cell::new(None) });
    let workers = Workers::of(pool);
    let awake = workers.awake();
    if awake > 0 {
        ASKED.set(None);
        return awake;
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

/// Runs every task, on tract's current executor where the work is worth it. After an error, tasks that nobody has begun are left.
pub(crate) fn parallel<T: Send>(
    tasks: &mut [T],
    cost: u64,
    run: impl Fn(&mut T) -> TractResult<()> + Sync + Send,
) -> TractResult<()> {
    let threads = if tasks.len() < 2 { 1 } else { threads(cost) };
    if threads == 1 {
        return tasks.iter_mut().try_for_each(run);
    }
    share(tasks, threads, run)
}

/// Runs every task, on the calling thread and helpers, so many in all. Each has a run of tasks of its own and takes the last ones of others when it is through: what a
/// thread reads is then mostly what it read or wrote before, in the layer before or in the run before, and in its own cache.
fn share<T: Send>(
    tasks: &mut [T],
    threads: usize,
    run: impl Fn(&mut T) -> TractResult<()> + Sync + Send,
) -> TractResult<()> {
    thread_local!(static KEPT: Cell<Option<Arc<Scope>>> = const { Cell::new(None) });
    let Some(pool) = Pool::current() else { return tasks.iter_mut().try_for_each(run) };
    let helpers = (threads - 1).min(tasks.len().saturating_sub(1));
    let queue = Queue::new(tasks, helpers + 1);
    let workers = Workers::of(&pool);
    let mut kept = KEPT.take();
    let work = |thread| queue.work(thread, &run);
    share_work(&mut kept, helpers, workers::owner_spin(), workers.asker(&pool), &work);
    KEPT.set(kept);
    queue.outcome()
}
