//! Sharing work among the threads of tract's current executor, and deciding whether that is
//! worthwhile.
//!
//! The calling thread does not wait for other threads to wake up. It begins at once, and threads
//! that join it take tasks too. It does not wait for a thread that wakes up when no task is left.
//! Sharing work therefore costs hardly any time, however long waking threads takes.

#[cfg(feature = "threads")]
#[forbid(unsafe_code)]
mod mailbox;
#[cfg(feature = "threads")]
#[forbid(unsafe_code)]
mod queue;
#[cfg(feature = "threads")]
mod scope;
#[cfg(feature = "threads")]
#[forbid(unsafe_code)]
mod share;
#[forbid(unsafe_code)]
mod spin_time;
#[cfg(feature = "threads")]
#[forbid(unsafe_code)]
mod sync;
#[cfg(all(test, feature = "threads", not(target_family = "wasm")))] // a module has no threads
#[forbid(unsafe_code)]
mod tests;
#[cfg(feature = "threads")]
#[forbid(unsafe_code)]
mod workers;

/// What a build without threads does instead.
#[cfg(not(feature = "threads"))]
mod share {
    use tract_core::internal::TractResult;

    pub(super) fn threads(_cost: u64) -> usize {
        1
    }

    pub(super) fn tasks(_cost: u64) -> usize {
        1
    }

    pub(super) fn share<T>(
        tasks: &mut [T],
        _threads: usize,
        run: &(dyn Fn(&mut T) -> TractResult<()> + Sync),
    ) -> TractResult<()> {
        tasks.iter_mut().try_for_each(run)
    }
}

pub use spin_time::{set_spin_time, spin_time};
use std::sync::atomic::{AtomicU64, Ordering};
use tract_core::internal::*;

/// The argument of [`set_share_from`].
static SHARE_FROM: AtomicU64 = AtomicU64::new(NOT_SET);

const NOT_SET: u64 = u64::MAX;

/// Sets the estimated cost from which on the threads of tract's executor share a layer.
///
/// The cost is that shown by [`explain`](crate::explain()). With `u64::MAX` every layer stays on
/// the calling thread.
/// It applies to the whole process, from the next run on. Without the Cargo feature `threads` it has no effect.
/// With `None`, the knob `TRACT_DECONV_SHARE_FROM` decides, or a measured default if it is not set.
pub fn set_share_from(cost: Option<u64>) {
    SHARE_FROM.store(cost.map_or(NOT_SET, |cost| cost.min(NOT_SET - 1)), Ordering::Relaxed);
}

/// Returns the number of threads that share work of an estimated cost.
///
/// These are all threads of tract's current executor, or the calling thread and the spinning
/// workers, or one thread, in order of falling cost. `TRACT_DECONV_SHARE_FROM` replaces the
/// limits between them. Without the feature `threads` it is one thread.
pub fn threads(cost: u64) -> usize {
    share::threads(cost)
}

/// Returns the number of tasks for work of an estimated cost: one if one thread does it.
///
/// Several threads get up to four each, so that they end at the same time. The tasks of little work are fewer, as each
/// takes time to set up.
pub(crate) fn tasks(cost: u64) -> usize {
    share::tasks(cost)
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
    share::share(tasks, threads, run)
}
