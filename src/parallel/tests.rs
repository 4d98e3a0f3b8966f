//! Tests of this module's real threads. `tests/loom.rs` checks its two small parts in every order
//! of their steps.

use super::scope::{Job, share_work};
use super::share::{share, threads_on};
use super::spin_time::SPIN;
use super::workers::{self, OWNER_SPIN, Pool, Workers};
use super::*;
use crate::estimate::machine::Machine;
use crate::testing::assert_documented;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};

/// A timeout longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Serialises the tests that set the spin time, which is global, and those that watch spinning
/// workers.
fn spin_time_is_mine() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the spin time until it is dropped.
struct SpinTime;

impl SpinTime {
    fn of(time: Duration) -> SpinTime {
        set_spin_time(Some(time));
        SpinTime
    }
}

impl Drop for SpinTime {
    fn drop(&mut self) {
        set_spin_time(None);
    }
}

/// Returns a new pool.
fn pool_of(threads: usize) -> TractResult<Pool> {
    multithread_tract_scope(Executor::multithread(threads), Pool::current).context("an executor with threads")
}

/// Returns every kind of executor that tract has. A new variant of the enum fails to compile here.
fn executors() -> Vec<(&'static str, Executor)> {
    let mut executors = vec![Executor::SingleThread, Executor::RayonGlobal];
    executors.extend([1, 2, 5].map(Executor::multithread));
    let named = |executor| match executor {
        Executor::SingleThread => ("the calling thread", executor),
        Executor::MultiThread(_) => ("a pool", executor),
        Executor::RayonGlobal => ("the global pool", executor),
    };
    executors.into_iter().map(named).collect()
}

/// Runs `check` on every kind of executor, and passes it the number of threads.
fn on_executors(check: impl Fn(usize) -> TractResult<()>) -> TractResult<()> {
    for (name, executor) in executors() {
        multithread_tract_scope(executor, || {
            let threads = Pool::current().map_or(1, |pool| pool.threads());
            check(threads).with_context(|| format!("on {name} of {threads} threads"))
        })?;
    }
    Ok(())
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
            share(&mut tasks, threads, &once)?;
            ensure!(tasks == vec![1; count], "{count} tasks: {tasks:?}");
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
        let error = share(&mut tasks, threads, &failing).expect_err("one fails");
        ensure!(format!("{error}") == "task 10");
        let begun = tasks.iter().filter(|(_, run)| *run).count();
        // Other threads may run all tasks while the error is made.
        let most = if threads == 1 { 11 } else { 100 };
        ensure!((11..=most).contains(&begun), "{begun} tasks were begun");
        Ok(())
    })
}

#[test]
fn a_panic_is_the_callers() {
    for (name, executor) in executors() {
        let panics = || share(&mut [0; 10], 3, &|_| panic!("a task's"));
        let caught = catch_unwind(AssertUnwindSafe(|| multithread_tract_scope(executor, panics)));
        assert!(caught.is_err(), "on {name}");
    }
}

/// A machine on which spinning threads get smaller work than threads that sleep.
const MACHINE: Machine = Machine::ZEN4;

/// The lowest estimate that is shared with threads that sleep.
fn least_shared() -> u64 {
    least(MACHINE.rates.share_ns)
}

/// The lowest estimate that is shared with threads that spin.
fn share_spinning_ns() -> u64 {
    least(MACHINE.rates.share_spinning_ns)
}

/// The lowest estimate that takes as long.
fn least(ns: f64) -> u64 {
    let about = (ns * MACHINE.rates.fma_per_ns) as u64;
    (about.saturating_sub(1)..).find(|cost| MACHINE.nanoseconds(*cost) >= ns).unwrap_or(about)
}

#[test]
fn work_is_shared_out_to_as_many_threads_as_an_executor_has() {
    for (name, executor) in executors() {
        let wanted = match &executor {
            Executor::SingleThread => 1,
            Executor::MultiThread(pool) => pool.current_num_threads(),
            Executor::RayonGlobal => rayon::current_num_threads(),
        };
        let threads = multithread_tract_scope(executor, || threads_on(&MACHINE, least_shared()));
        assert_eq!(threads, wanted, "on {name}");
    }
}

#[test]
fn little_work_is_not_shared() {
    for (name, executor) in executors() {
        let threads = multithread_tract_scope(executor, || threads_on(&MACHINE, least_shared() - 1));
        assert_eq!(threads, 1, "on {name}");
    }
}

#[test]
fn a_worker_is_called_for_small_work_that_comes_again_and_again() {
    let _turn = spin_time_is_mine();
    assert!(share_spinning_ns() < least_shared() && workers::most_spinning() > 0);
    for executor in [Executor::multithread(2), Executor::RayonGlobal] {
        multithread_tract_scope(executor, || {
            let begin = Instant::now();
            assert_eq!(threads_on(&MACHINE, share_spinning_ns()), 1);
            while threads_on(&MACHINE, share_spinning_ns()) == 1 {
                assert!(begin.elapsed() < LONG, "no worker came");
            }
            assert_eq!(threads_on(&MACHINE, share_spinning_ns() - 1), 1);
        });
    }
}

/// Runs `work` on this thread and on two helpers, whose jobs `send` takes.
fn with_two(send: impl FnMut(Job), work: &(impl Fn(usize) + Sync)) {
    share_work(&mut None, 2, OWNER_SPIN, send, work);
}

/// Runs a job on a new thread.
fn start(job: Job) {
    drop(spawn(|| job.run()))
}

/// Runs work that needs three threads at once. It never ends with fewer.
fn together(send: impl FnMut(Job)) {
    let (all, done) = (Barrier::new(3), AtomicUsize::new(0));
    let work = |thread: usize| {
        all.wait();
        done.fetch_add(1 << (8 * thread), Ordering::Relaxed);
    };
    with_two(send, &work);
    assert_eq!(done.into_inner(), 0x01_01_01);
}

#[test]
fn a_thread_that_joins_in_time_helps() {
    together(start);
}

#[test]
fn a_thread_that_comes_late_touches_nothing() {
    let (mut jobs, done) = (vec![], AtomicUsize::new(0));
    let work = |thread: usize| {
        done.fetch_add(1 + thread, Ordering::Relaxed);
    };
    with_two(|job| jobs.push(job), &work);
    assert_eq!(jobs.len(), 2);
    jobs.into_iter().for_each(Job::run);
    assert_eq!(done.into_inner(), 1);
}

#[test]
fn a_helpers_panic_is_the_owners() {
    let all = Barrier::new(3);
    let work = |thread: usize| {
        all.wait();
        assert_eq!(thread, 0, "a helper's");
    };
    assert!(catch_unwind(AssertUnwindSafe(|| with_two(start, &work))).is_err());
}

#[test]
fn helpers_inside_are_waited_for_where_the_owner_panics() {
    // A time longer than the owner spins, and none at all.
    for spin in [OWNER_SPIN, Duration::ZERO] {
        let (both, left) = (Barrier::new(2), AtomicUsize::new(0));
        let work = |thread: usize| {
            both.wait();
            assert_ne!(thread, 0, "the owner's");
            sleep(Duration::from_millis(20));
            left.fetch_add(1, Ordering::Relaxed);
        };
        let shared = || share_work(&mut None, 1, spin, start, &work);
        assert!(catch_unwind(AssertUnwindSafe(shared)).is_err());
        assert_eq!(left.into_inner(), 1);
    }
}

#[test]
fn a_scope_is_used_again_unless_a_job_of_it_is_left() {
    let (mut kept, mut late) = (None, vec![]);
    share_work(&mut kept, 1, OWNER_SPIN, |job| late.push(job), &|_| {});
    let first = kept.as_ref().map(Arc::as_ptr);
    share_work(&mut kept, 1, OWNER_SPIN, drop, &|_| {});
    let second = kept.as_ref().map(Arc::as_ptr);
    share_work(&mut kept, 1, OWNER_SPIN, drop, &|_| {});
    assert!(first != second && second == kept.as_ref().map(Arc::as_ptr));
    late.into_iter().for_each(Job::run);
}

#[test]
fn helpers_are_found_spinning_or_asleep() -> TractResult<()> {
    let pool = pool_of(2)?;
    let workers = Workers::of(&pool);
    for pause in [0, 1, 50, 150, 190, 200, 210, 250, 1000] {
        for _ in 0..if cfg!(miri) { 2 } else { 200 } {
            together(workers.sender(&pool));
            // The pauses are shorter than the spin time, about as long, and longer.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(pause) {
                spin_loop();
            }
        }
    }
    Ok(())
}

/// Waits until no worker is spinning.
fn wait_for_all(workers: &Workers) {
    let begin = Instant::now();
    while workers.spinning() > 0 {
        assert!(begin.elapsed() < LONG, "still there");
        sleep(Duration::from_micros(100));
    }
}

#[test]
fn no_worker_spins_for_long() -> TractResult<()> {
    let _turn = spin_time_is_mine();
    let pool = pool_of(2)?;
    let workers = Workers::of(&pool);
    together(workers.sender(&pool));
    assert!(workers.spinning() <= workers::most_spinning());
    wait_for_all(&workers);
    let Pool::Own(pool) = pool else { bail!("a pool of its own") };
    // The workers must release the executor. Once it is dropped, its workers are forgotten.
    let begin = Instant::now();
    while Arc::strong_count(&pool) > 1 {
        ensure!(begin.elapsed() < LONG, "still held");
        sleep(Duration::from_micros(100));
    }
    drop(pool);
    Workers::of(&pool_of(1)?);
    // This thread's cached workers are now those of the other pool.
    let begin = Instant::now();
    while Arc::strong_count(&workers) > 1 {
        ensure!(begin.elapsed() < LONG, "still listed");
        sleep(Duration::from_micros(100));
    }
    Ok(())
}

#[test]
fn no_worker_spins_where_the_host_says_so() -> TractResult<()> {
    let _turn = spin_time_is_mine();
    let _none = SpinTime::of(Duration::ZERO);
    assert_eq!((spin_time(), workers::owner_spin()), (Duration::ZERO, Duration::ZERO));
    let pool = pool_of(2)?;
    let workers = Workers::of(&pool);
    for _ in 0..50 {
        together(workers.sender(&pool));
        assert_eq!(workers.spinning(), 0);
        workers.call(&pool);
        assert_eq!(workers.spinning(), 0);
    }
    Ok(())
}

#[test]
fn a_worker_spins_as_long_as_the_host_says() -> TractResult<()> {
    let _turn = spin_time_is_mine();
    let time = Duration::from_millis(30);
    let _longer = SpinTime::of(time);
    assert!(workers::owner_spin() <= OWNER_SPIN);
    let pool = pool_of(1)?;
    let workers = Workers::of(&pool);
    let begin = Instant::now();
    // Other tests' workers may use up all that may spin at the moment.
    let came = loop {
        let before = Instant::now();
        workers.call(&pool);
        while workers.spinning() == 0 && before.elapsed() < time {
            sleep(Duration::from_micros(100));
        }
        if workers.spinning() > 0 {
            break before;
        }
        ensure!(begin.elapsed() < LONG, "no worker came");
    };
    wait_for_all(&workers);
    ensure!(came.elapsed() >= time, "it left after {:?}", came.elapsed());
    Ok(())
}

#[test]
fn executors_have_workers_of_their_own() -> TractResult<()> {
    let (a, b) = (pool_of(1)?, pool_of(1)?);
    for _ in 0..2 {
        assert!(Arc::ptr_eq(&Workers::of(&a), &Workers::of(&a)));
        assert!(!Arc::ptr_eq(&Workers::of(&a), &Workers::of(&b)));
        assert!(!Arc::ptr_eq(&Workers::of(&a), &Workers::of(&Pool::Global)));
    }
    // A helper of one executor is neither counted nor requested for the other.
    let _turn = spin_time_is_mine();
    let _longer = SpinTime::of(Duration::from_millis(5));
    Workers::of(&a).call(&a);
    assert_eq!(Workers::of(&b).spinning(), 0);
    Ok(())
}

#[test]
fn several_models_share_an_executor() -> TractResult<()> {
    for pool in [pool_of(3)?, Pool::Global] {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 5 } else { 300 } {
                        let done = AtomicUsize::new(0);
                        let work = |_: usize| {
                            done.fetch_add(1, Ordering::Relaxed);
                        };
                        with_two(Workers::of(&pool).sender(&pool), &work);
                        assert!((1..=3).contains(&done.into_inner()));
                    }
                });
            }
        });
    }
    Ok(())
}

#[test]
fn a_worker_that_waits_does_what_else_there_is() -> TractResult<()> {
    let executor = Executor::multithread(2);
    let pool = multithread_tract_scope(executor.clone(), Pool::current).context("an executor with threads")?;
    let Executor::MultiThread(rayon) = &executor else { bail!("a pool") };
    for _ in 0..if cfg!(miri) { 3 } else { 100 } {
        together(Workers::of(&pool).sender(&pool));
        let (a, b) = (AtomicUsize::new(0), AtomicUsize::new(0));
        rayon.install(|| {
            rayon.join(|| a.fetch_add(1, Ordering::Relaxed), || b.fetch_add(1, Ordering::Relaxed));
        });
        assert_eq!((a.into_inner(), b.into_inner()), (1, 1));
    }
    Ok(())
}

#[test]
fn spin_times_are_documented() {
    let (helper, owner) = (SPIN.as_micros(), OWNER_SPIN.as_micros());
    assert_documented("src/lib.rs", &format!("spins for the next layer, {helper} us at most."));
    assert_documented("src/lib.rs", &format!("It yields its core, then spins for {owner} us at most"));
    assert_documented("docs/knobs.md", &format!("| `spin_us` | `TRACT_DECONV_SPIN_US` | {helper} |"));
}
