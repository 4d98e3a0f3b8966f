//! Sharing work out to the threads of tract's current executor, and whether it is worth that.
//!
//! The calling thread does not wait for others to wake: it begins, and who comes takes tasks too. But it does not end before all have come that were asked for,
//! as they hold on to the tasks, so work that is shared takes as long as waking does at least: tens of microseconds. How many is the system's, so it is measured,
//! once a process, the first time that the answer depends on it.

use crate::knobs::TRACT_DECONV_SHARE_FROM;
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, current_tract_executor};
use tract_linalg::multithread::par_chunks_mut;

/// Estimated cost, in vector multiply-adds, below which work is never shared, about 30 us.
pub(super) const LEAST_SHARED: u64 = 7 << 14;

/// From here on, about 350 us, work is always shared.
const MOST: u64 = 5 << 18;

/// Work that is worth sharing, as a multiple of what it takes until another thread has come.
const WORTH: f64 = 1.3;

/// Vector multiply-adds a nanosecond, as far as the estimates go.
const SLOTS_A_NANOSECOND: f64 = 4.0;

/// Times that asking for a thread is measured, and how long threads are left alone before each, so that they go to sleep as between two layers: all of it is
/// about 2 ms.
const ROUNDS: usize = 7;
const PAUSE: Duration = Duration::from_micros(200);

/// The estimated cost from which on work is shared; [`UNKNOWN`] until it is measured.
static WORTH_SHARING: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = 0;

/// Number of threads that work of an estimated cost is shared out to: those of tract's current executor, or one where it is not worth more, unless
/// [`TRACT_DECONV_SHARE_FROM`] decides.
pub(crate) fn threads(cost: u64) -> usize {
    static SET: OnceLock<Option<u64>> = OnceLock::new();
    let set = *SET.get_or_init(|| TRACT_DECONV_SHARE_FROM.get().map(|cost| cost as u64));
    // small work does not ask for the executor
    if cost < set.unwrap_or(LEAST_SHARED) {
        return 1;
    }
    let all = match current_tract_executor() {
        Executor::SingleThread => 1,
        #[cfg(feature = "multithread")]
        Executor::MultiThread(pool) => pool.current_num_threads(),
        #[allow(unreachable_patterns)]
        _ => std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    if all > 1 && (set.is_some() || cost >= MOST || cost >= from_when_on()) { all } else { 1 }
}

/// Runs every task, on tract's current executor where the work is worth it. After an error, tasks that nobody has begun are left.
pub(crate) fn parallel<T: Send>(
    tasks: &mut [T],
    cost: u64,
    run: impl Fn(&mut T) -> TractResult<()> + Sync + Send,
) -> TractResult<()> {
    if tasks.len() < 2 || threads(cost) == 1 {
        return tasks.iter_mut().try_for_each(run);
    }
    share(tasks, run)
}

/// Runs every task, on the calling thread and others that come. Each has a run of tasks of its own and takes the last ones of others when it is through: what a
/// thread reads is then mostly what it read or wrote before, in the layer before or in the run before, and in its own cache.
fn share<T: Send>(tasks: &mut [T], run: impl Fn(&mut T) -> TractResult<()> + Sync + Send) -> TractResult<()> {
    match current_tract_executor() {
        #[cfg(feature = "multithread")]
        Executor::MultiThread(pool) => {
            let others = (pool.current_num_threads() - 1).min(tasks.len().saturating_sub(1));
            let queue = super::queue::Queue::new(tasks, others + 1);
            pool.in_place_scope(|scope| {
                let (queue, run) = (&queue, &run);
                (1..=others).for_each(|thread| scope.spawn(move |_| queue.work(thread, run)));
                queue.work(0, run);
                queue.wait_for(others + 1);
            });
            queue.outcome()
        }
        _ => par_chunks_mut(tasks, 1, usize::MAX, |_, chunk| chunk.iter_mut().try_for_each(&run)),
    }
}

/// Never waits for another thread that measures, which may wait for this one.
fn from_when_on() -> u64 {
    let claimed = WORTH_SHARING.compare_exchange(UNKNOWN, LEAST_SHARED, Ordering::Relaxed, Ordering::Relaxed);
    if let Err(known) = claimed {
        return known;
    }
    let slots = nanoseconds_to_share() * SLOTS_A_NANOSECOND * WORTH;
    let from = (slots as u64).clamp(LEAST_SHARED, MOST);
    WORTH_SHARING.store(from, Ordering::Relaxed);
    from
}

/// The median of what sharing nothing takes.
fn nanoseconds_to_share() -> f64 {
    let mut times: [Duration; ROUNDS] = std::array::from_fn(|_| {
        keep_busy(PAUSE);
        let begin = Instant::now();
        // what can't fail
        share(&mut [(); 2], |_| Ok(())).ok();
        begin.elapsed()
    });
    times.sort_unstable();
    times[ROUNDS / 2].as_nanos() as f64
}

/// Keeps the core busy.
fn keep_busy(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        spin_loop();
    }
}

#[cfg(all(test, feature = "multithread"))]
mod tests {
    use super::*;
    use tract_core::prelude::multithread::multithread_tract_scope;

    /// On executors of as many threads as tasks have, fewer and more.
    fn on_executors(check: impl Fn(usize) -> TractResult<()>) -> TractResult<()> {
        for threads in [1, 2, 5] {
            multithread_tract_scope(Executor::multithread(threads), || check(threads))?;
        }
        multithread_tract_scope(Executor::SingleThread, || check(1))
    }

    #[test]
    fn every_task_is_run_once() -> TractResult<()> {
        on_executors(|threads| {
            for count in [0, 1, 2, 3, 100] {
                let mut tasks = vec![0; count];
                let once = |task: &mut i32| {
                    *task += 1;
                    Ok(())
                };
                share(&mut tasks, once)?;
                ensure!(tasks == vec![1; count], "{count} tasks on {threads} threads: {tasks:?}");
            }
            Ok(())
        })
    }

    #[test]
    fn an_error_ends_it() -> TractResult<()> {
        on_executors(|threads| {
            let mut tasks: Vec<(usize, bool)> = (0..100).map(|i| (i, false)).collect();
            let failing = |(i, run): &mut (usize, bool)| {
                *run = true;
                ensure!(*i != 10, "task {i}");
                Ok(())
            };
            let error = share(&mut tasks, failing).expect_err("one fails");
            ensure!(format!("{error}") == "task 10");
            let begun = tasks.iter().filter(|(_, run)| *run).count();
            // others may run all while the error is made
            let most = if threads == 1 { 11 } else { 100 };
            ensure!((11..=most).contains(&begun), "{begun} tasks were begun on {threads} threads");
            Ok(())
        })
    }

    #[test]
    fn a_panic_is_the_callers() {
        let panics = || share(&mut [0; 10], |_| panic!("a task's"));
        let caught = std::panic::catch_unwind(|| multithread_tract_scope(Executor::multithread(3), panics));
        assert!(caught.is_err());
    }

    #[test]
    fn little_work_is_not_shared() {
        let threads_for = |cost| multithread_tract_scope(Executor::multithread(3), || threads(cost));
        assert_eq!([threads_for(LEAST_SHARED - 1), threads_for(MOST)], [1, 3]);
    }
}
