//! Sharing work out to the threads of tract's current executor, and whether it is worth that.
//!
//! The calling thread does not wait for others to wake: it begins, and who comes takes tasks too. Who comes when nothing is left is not waited for either, so
//! work that is shared takes hardly longer than on one thread, whatever waking takes.

#[cfg(feature = "multithread")]
#[forbid(unsafe_code)]
mod queue;
#[cfg(feature = "multithread")]
mod scope;
#[cfg(feature = "multithread")]
#[forbid(unsafe_code)]
mod workers;

#[cfg(feature = "multithread")]
use crate::kernel::Isa;
use crate::knobs::TRACT_DECONV_SHARE_FROM;
#[cfg(feature = "multithread")]
use scope::with_helpers;
#[cfg(feature = "multithread")]
use std::cell::Cell;
use std::sync::OnceLock;
#[cfg(feature = "multithread")]
use std::time::{Duration, Instant};
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, current_tract_executor};
use tract_linalg::multithread::par_chunks_mut;

/// Estimated cost, in vector multiply-adds, below which work is never shared, about 34 us: asking for a thread takes some, and one that comes late is waited for while
/// it runs a task. With 29 us a model of three such layers took 1.5 times as long on two threads; with 40 us, one of many took 1.3 times as long, as threads that
/// are not asked for go to sleep.
const LEAST_SHARED: u64 = 135_000;

/// The same where a thread is awake, about 5 us: it is asked within a microsecond. On a Zen 4 a vocoder took .37 ms for .56 on two threads, small U-Nets and generators
/// .8 of their time. With tile registers layers as small gained nothing (a Xeon), and nothing else was measured.
#[cfg(feature = "multithread")]
fn least_shared_awake() -> u64 {
    static LEAST: OnceLock<u64> = OnceLock::new();
    *LEAST.get_or_init(|| if matches!(Isa::best(), Isa::Avx2 | Isa::Avx512) { 20_000 } else { LEAST_SHARED })
}

/// The cost from which on work is shared, whoever is awake, if [`TRACT_DECONV_SHARE_FROM`] says so.
fn set() -> Option<u64> {
    static SET: OnceLock<Option<u64>> = OnceLock::new();
    *SET.get_or_init(|| TRACT_DECONV_SHARE_FROM.get().map(|cost| cost as u64))
}

/// Number of threads that work of an estimated cost is shared out to: those of tract's current executor, or those that are awake, or one where it is not worth more,
/// unless [`TRACT_DECONV_SHARE_FROM`] decides.
pub(crate) fn threads(cost: u64) -> usize {
    #[cfg(feature = "multithread")]
    let least = set().unwrap_or(least_shared_awake());
    #[cfg(not(feature = "multithread"))]
    let least = set().unwrap_or(LEAST_SHARED);
    // small work does not ask for the executor
    if cost < least {
        return 1;
    }
    match current_tract_executor() {
        Executor::SingleThread => 1,
        #[cfg(feature = "multithread")]
        executor @ Executor::MultiThread(_) if cost < set().unwrap_or(LEAST_SHARED) => 1 + awake(&executor),
        #[cfg(feature = "multithread")]
        Executor::MultiThread(pool) => pool.current_num_threads(),
        #[allow(unreachable_patterns)]
        _ => std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

/// Threads that are awake. Where nobody is, but work of this kind comes again and again, somebody is called for what will come.
#[cfg(feature = "multithread")]
fn awake(executor: &Executor) -> usize {
    /// Longest pause between such work.
    const PAUSE: Duration = Duration::from_micros(50);
    /// How often it was asked for before, by one or two questions each.
    const OFTEN: usize = 8;
    thread_local!(static ASKED: Cell<Option<(Instant, usize)>> = const { Cell::new(None) });
    let helpers = workers::helpers(executor);
    if helpers > 0 {
        ASKED.set(None);
        return helpers;
    }
    let now = Instant::now();
    let before = ASKED.get().filter(|(last, _)| now.duration_since(*last) < PAUSE).map_or(0, |(_, before)| before);
    if before >= OFTEN {
        ASKED.set(None);
        workers::call(executor);
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

/// Runs every task, on the calling thread and others that come, so many in all. Each has a run of tasks of its own and takes the last ones of others when it is through: what a
/// thread reads is then mostly what it read or wrote before, in the layer before or in the run before, and in its own cache.
fn share<T: Send>(
    tasks: &mut [T],
    #[cfg_attr(not(feature = "multithread"), expect(unused_variables))] threads: usize,
    run: impl Fn(&mut T) -> TractResult<()> + Sync + Send,
) -> TractResult<()> {
    match &current_tract_executor() {
        #[cfg(feature = "multithread")]
        executor @ Executor::MultiThread(_) => {
            let others = (threads - 1).min(tasks.len().saturating_sub(1));
            let queue = queue::Queue::new(tasks, others + 1);
            with_helpers(others, |job| workers::ask(executor, job), &|thread| queue.work(thread, &run));
            queue.outcome()
        }
        _ => par_chunks_mut(tasks, 1, usize::MAX, |_, chunk| chunk.iter_mut().try_for_each(&run)),
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
                share(&mut tasks, threads, once)?;
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
            let error = share(&mut tasks, threads, failing).expect_err("one fails");
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
        let panics = || share(&mut [0; 10], 3, |_| panic!("a task's"));
        let caught = std::panic::catch_unwind(|| multithread_tract_scope(Executor::multithread(3), panics));
        assert!(caught.is_err());
    }

    #[test]
    fn somebody_is_called_for_small_work_that_comes_again_and_again() {
        if least_shared_awake() == LEAST_SHARED || std::thread::available_parallelism().map_or(1, |n| n.get()) == 1 {
            println!("sharing: skipped, small work is not shared here");
            return;
        }
        multithread_tract_scope(Executor::multithread(2), || {
            let begin = Instant::now();
            assert_eq!(threads(least_shared_awake()), 1);
            while threads(least_shared_awake()) == 1 {
                assert!(begin.elapsed() < Duration::from_secs(60), "nobody came");
            }
            assert_eq!(threads(least_shared_awake() - 1), 1);
        });
    }

    #[test]
    fn little_work_is_not_shared() {
        let threads_for = |cost| multithread_tract_scope(Executor::multithread(3), || threads(cost));
        assert_eq!([threads_for(LEAST_SHARED - 1), threads_for(LEAST_SHARED)], [1, 3]);
    }
}
