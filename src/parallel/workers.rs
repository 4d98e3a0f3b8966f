//! Helpers that keep awake: between layers that are shared, an executor's threads go to sleep, and waking them takes as long as a small layer does. A thread that has helped
//! waits a while for the next layer instead, and meanwhile does what else its executor has to do.

use super::scope::Job;
use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tract_core::prelude::multithread::Executor;

/// How long a helper waits for another layer. With a quarter of it a vocoder whose layers take 30 us gains nothing (0.55 ms, 0.49 with this), with more than twice as much no more.
const PATIENCE: Duration = Duration::from_micros(200);

/// Looks into the letterbox between looks at the clock and at what else there is to do.
const LOOKS: usize = 128;

/// Those who wait, of all executors.
static WAITING: Mutex<Vec<Waiting>> = Mutex::new(vec![]);

/// The executors of those who wait, or do something else meanwhile.
static AWAKE: Mutex<Vec<usize>> = Mutex::new(vec![]);

/// One who waits.
struct Waiting {
    /// Which executor the thread is of. It holds on to it, so that the address is nobody else's.
    pool: usize,
    letterbox: Arc<Letterbox>,
}

/// Where one who was taken off the list finds what to do.
#[derive(Default)]
struct Letterbox {
    full: AtomicBool,
    job: Mutex<Option<Job>>,
}

impl Letterbox {
    fn put(&self, job: Job) {
        *self.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        self.full.store(true, Ordering::Release);
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    fn take(&self) -> Option<Job> {
        self.full.store(false, Ordering::Relaxed);
        self.job.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn waiting() -> MutexGuard<'static, Vec<Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn awake() -> MutexGuard<'static, Vec<usize>> {
    AWAKE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many threads of an executor are awake: they helped not long ago, or were called.
pub(super) fn helpers(executor: &Executor) -> usize {
    let Executor::MultiThread(pool) = executor else { return 0 };
    let of_pool = Arc::as_ptr(pool).addr();
    awake().iter().filter(|pool| **pool == of_pool).count()
}

/// Has a thread of the executor wake up and wait for layers to come.
pub(super) fn call(executor: &Executor) {
    let Executor::MultiThread(pool) = executor else { return };
    let executor = executor.clone();
    pool.spawn(move || work(None, &executor));
}

/// Most threads that wait at once: with the calling one, as many as cores that this process may use.
fn most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1))
}

/// Hands a job to a thread of the executor, one that waits if there is any.
pub(super) fn ask(executor: &Executor, job: Job) {
    let Executor::MultiThread(pool) = executor else { return };
    let of_pool = Arc::as_ptr(pool).addr();
    let mut list = waiting();
    if let Some(place) = list.iter().rposition(|waiting| waiting.pool == of_pool) {
        let Waiting { letterbox, .. } = list.swap_remove(place);
        drop(list);
        return letterbox.put(job);
    }
    drop(list);
    let executor = executor.clone();
    pool.spawn(move || work(Some(job), &executor));
}

/// Runs a job, if there is one yet, and those that come soon after.
fn work(job: Option<Job>, executor: &Executor) {
    // set while the thread waits: what it does meanwhile may be a job, too, after which it is to go on waiting where it was
    thread_local!(static WAITS: Cell<bool> = const { Cell::new(false) });
    if let Some(job) = job {
        job.run();
    }
    if WAITS.replace(true) {
        return;
    }
    while let Some(job) = next(executor) {
        job.run();
    }
    WAITS.set(false);
}

/// One of an executor's threads that are awake.
struct Awake(usize);

impl Awake {
    fn of(pool: usize) -> Awake {
        awake().push(pool);
        Awake(pool)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        let mut awake = awake();
        if let Some(place) = awake.iter().position(|pool| *pool == self.0) {
            awake.swap_remove(place);
        }
    }
}

/// Waits for another job. Nobody is on the list while it does something else, which may take long, or need the very help that would be asked for meanwhile.
fn next(executor: &Executor) -> Option<Job> {
    let Executor::MultiThread(pool) = executor else { return None };
    let letterbox = Arc::new(Letterbox::default());
    let _awake = Awake::of(Arc::as_ptr(pool).addr());
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        {
            let mut list = waiting();
            if list.len() >= most() {
                return None;
            }
            list.push(Waiting { pool: Arc::as_ptr(pool).addr(), letterbox: Arc::clone(&letterbox) });
        }
        for _ in 0..LOOKS {
            if letterbox.is_full() {
                return letterbox.take();
            }
            spin_loop();
        }
        let place = |list: &[Waiting]| list.iter().position(|waiting| Arc::ptr_eq(&waiting.letterbox, &letterbox));
        let mut list = waiting();
        let Some(place) = place(&list) else {
            drop(list);
            // somebody took it off the list, and is about to put a job in
            while !letterbox.is_full() {
                std::thread::yield_now();
            }
            return letterbox.take();
        };
        list.swap_remove(place);
        drop(list);
        // what tract's operators share, then who else needs this core
        pool.yield_now();
        std::thread::yield_now();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::scope::with_helpers;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread::sleep;

    /// Work that three threads do together, or never end.
    fn together(executor: &Executor) {
        let (all, done) = (Barrier::new(3), AtomicUsize::new(0));
        let work = |who: usize| {
            all.wait();
            done.fetch_add(1 << (8 * who), Ordering::Relaxed);
        };
        with_helpers(2, |job| ask(executor, job), &work);
        assert_eq!(done.into_inner(), 0x01_01_01);
    }

    fn waiting_of(executor: &Executor) -> usize {
        let Executor::MultiThread(pool) = executor else { return 0 };
        waiting().iter().filter(|waiting| waiting.pool == Arc::as_ptr(pool).addr()).count()
    }

    #[test]
    fn helpers_are_found_awake_or_asleep() {
        let executor = Executor::multithread(2);
        for pause in [0, 1, 50, 150, 190, 200, 210, 250, 1000] {
            for _ in 0..200 {
                together(&executor);
                // while they wait, as they give up, and after
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(pause) {
                    spin_loop();
                }
            }
        }
    }

    #[test]
    fn nobody_waits_for_long() {
        let executor = Executor::multithread(2);
        together(&executor);
        assert!(waiting_of(&executor) <= most());
        let begin = Instant::now();
        while waiting_of(&executor) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "still there");
            sleep(PATIENCE);
        }
        let Executor::MultiThread(pool) = executor else { return };
        // whoever waited held on to the executor, and let go
        while Arc::strong_count(&pool) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(60), "still held");
            sleep(PATIENCE);
        }
    }

    #[test]
    fn several_models_share_an_executor() {
        let executor = Executor::multithread(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let done = AtomicUsize::new(0);
                        let work = |_: usize| {
                            done.fetch_add(1, Ordering::Relaxed);
                        };
                        with_helpers(2, |job| ask(&executor, job), &work);
                        assert!((1..=3).contains(&done.into_inner()));
                    }
                });
            }
        });
    }

    #[test]
    fn who_is_called_waits() {
        let executor = Executor::multithread(2);
        assert_eq!(helpers(&executor), 0);
        // where there is no other core, nobody waits
        if most() == 0 {
            println!("awake: skipped, there is one core");
            return;
        }
        let begin = Instant::now();
        while helpers(&executor) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody came");
            call(&executor);
            sleep(PATIENCE / 20);
        }
        while helpers(&executor) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "still there");
            sleep(PATIENCE);
        }
    }

    #[test]
    fn who_waits_does_what_else_there_is() {
        let executor = Executor::multithread(2);
        let Executor::MultiThread(pool) = &executor else { return };
        for _ in 0..100 {
            together(&executor);
            let (a, b) = (AtomicUsize::new(0), AtomicUsize::new(0));
            pool.install(|| {
                pool.join(|| a.fetch_add(1, Ordering::Relaxed), || b.fetch_add(1, Ordering::Relaxed));
            });
            assert_eq!((a.into_inner(), b.into_inner()), (1, 1));
        }
    }
}
