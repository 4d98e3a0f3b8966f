//! Spinning workers: the threads of an executor that help with this crate's layers.
//!
//! An executor's threads sleep between shared layers, and waking one takes as long as a small layer
//! does. A thread that has helped therefore spins for a while. Meanwhile it also runs other tasks
//! of its executor.

use super::mailbox::{Mailbox, Occupied};
use super::scope::Job;
use super::spin_time::spin_time;
use super::sync::{Deadline, LOOKS};
use rayon::ThreadPool;
use std::cell::{Cell, RefCell};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tract_core::prelude::multithread::{Executor, current_tract_executor};

/// The longest time for which the calling thread spins for helpers that have not finished. Being
/// woken takes most of that time.
pub(super) const OWNER_SPIN: Duration = Duration::from_micros(100);

/// How often a mailbox is tried that a worker uses. This takes less than a microsecond.
const LOOKS_FOR_WORKER: usize = 8;

/// Spinning workers of all executors.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// As [`spin_time`], but zero if a spinning thread would keep the threads it waits for from
/// running: on one core, and on platforms without a clock.
fn useful_spin() -> Duration {
    if most_spinning() == 0 || cfg!(target_family = "wasm") { Duration::ZERO } else { spin_time() }
}

/// The time for which the calling thread spins for its helpers.
pub(super) fn owner_spin() -> Duration {
    useful_spin().min(OWNER_SPIN)
}

/// The most workers that spin at the same time. With the calling thread, they are as many as the
/// cores available to this process.
pub(super) fn most_spinning() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let others = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
        // Unit tests need a worker that spins, on one core too.
        if cfg!(test) { others.max(1) } else { others }
    })
}

/// The threads of a multithreaded executor.
#[derive(Clone)]
pub(super) enum Pool {
    Own(Arc<ThreadPool>),
    /// rayon's global pool, or the pool that the current thread belongs to.
    Global,
}

impl Pool {
    /// The pool of tract's current executor, if it has threads.
    pub(super) fn current() -> Option<Pool> {
        Pool::of(current_tract_executor())
    }

    fn of(executor: Executor) -> Option<Pool> {
        match executor {
            Executor::SingleThread => None,
            Executor::MultiThread(pool) => Some(Pool::Own(pool)),
            Executor::RayonGlobal => Some(Pool::Global),
        }
    }

    pub(super) fn threads(&self) -> usize {
        match self {
            Pool::Own(pool) => pool.current_num_threads(),
            Pool::Global => rayon::current_num_threads(),
        }
    }

    fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        match self {
            Pool::Own(pool) => pool.spawn(task),
            Pool::Global => rayon::spawn(task),
        }
    }
}

/// The workers of one executor.
pub(super) struct Workers {
    /// Identifies the pool: while this reference exists, no other pool has the same address. None
    /// for the global pool.
    pool: Option<Weak<ThreadPool>>,
    mailboxes: Box<[Mailbox<Job>]>,
    /// Spinning workers, including those that run another task of their executor meanwhile.
    spinning: AtomicUsize,
}

impl Workers {
    /// The workers of a pool. A thread that uses the same executor as before, as nearly all do,
    /// takes no lock.
    pub(super) fn of(pool: &Pool) -> Arc<Workers> {
        thread_local!(static LAST: RefCell<Option<Arc<Workers>>> = const { RefCell::new(None) });
        LAST.with_borrow_mut(|last| match last {
            Some(workers) if workers.is_of(pool) => Arc::clone(workers),
            _ => Arc::clone(last.insert(Workers::find(pool))),
        })
    }

    /// Finds the workers of a pool among those of all executors, and removes those whose executor
    /// is gone.
    fn find(pool: &Pool) -> Arc<Workers> {
        static ALL: Mutex<Vec<Arc<Workers>>> = Mutex::new(vec![]);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|workers| workers.pool.as_ref().is_none_or(|pool| pool.strong_count() > 0));
        if let Some(workers) = all.iter().find(|workers| workers.is_of(pool)) {
            return Arc::clone(workers);
        }
        let workers = Arc::new(Workers {
            pool: match pool {
                Pool::Own(pool) => Some(Arc::downgrade(pool)),
                Pool::Global => None,
            },
            mailboxes: (0..pool.threads()).map(|_| Mailbox::new()).collect(),
            spinning: AtomicUsize::new(0),
        });
        all.push(Arc::clone(&workers));
        workers
    }

    fn is_of(&self, pool: &Pool) -> bool {
        match (&self.pool, pool) {
            (Some(own), Pool::Own(pool)) => std::ptr::eq(own.as_ptr(), Arc::as_ptr(pool)),
            (None, Pool::Global) => true,
            _ => false,
        }
    }

    /// The number of spinning workers: those that have helped recently or were called.
    pub(super) fn spinning(&self) -> usize {
        self.spinning.load(Ordering::Relaxed)
    }

    /// Wakes a thread of the pool, which then spins for future layers.
    pub(super) fn call(self: &Arc<Self>, pool: &Pool) {
        if useful_spin().is_zero() {
            return;
        }
        let workers = Arc::clone(self);
        pool.spawn(move || workers.work(None));
    }

    /// Hands over jobs, each to a spinning worker if there is one left, else to a thread that the
    /// pool wakes.
    ///
    /// As long as they spin, the same workers get the same jobs of each layer.
    pub(super) fn sender(self: &Arc<Self>, pool: &Pool) -> impl FnMut(Job) {
        let mut next = if self.spinning() > 0 { 0 } else { self.mailboxes.len() };
        move |mut job| {
            while let Some(mailbox) = self.mailboxes.get(next) {
                next += 1;
                // A worker that looks for other tasks opens its mailbox again at once, and waking another thread takes
                // longer.
                for _ in 0..LOOKS_FOR_WORKER {
                    match mailbox.hand_over(job) {
                        None => return,
                        Some(back) => job = back,
                    }
                    if !mailbox.is_used() {
                        break;
                    }
                    spin_loop();
                }
            }
            let workers = Arc::clone(self);
            pool.spawn(move || workers.work(Some(job)));
        }
    }

    /// Runs a job, if there is one already, and the jobs that follow soon after.
    fn work(&self, job: Option<Job>) {
        // True while this thread waits. The other tasks that it runs meanwhile may include a job,
        // after which it must continue the outer wait.
        thread_local!(static WAITS: Cell<bool> = const { Cell::new(false) });
        if let Some(job) = job {
            job.run();
        }
        if WAITS.replace(true) {
            return;
        }
        while let Some(job) = self.wait() {
            job.run();
        }
        WAITS.set(false);
    }

    /// Waits for a job.
    ///
    /// The mailbox is closed while the thread runs another task. That task may take long, or may
    /// itself need the helper that would be asked meanwhile.
    fn wait(&self) -> Option<Job> {
        let spin = useful_spin();
        if spin.is_zero() {
            return None;
        }
        let _permit = Counted::below(&SPINNING, most_spinning())?;
        let mailbox = self.occupy()?;
        let _spinning = Counted::below(&self.spinning, usize::MAX)?;
        let deadline = Deadline::after(spin);
        while !deadline.has_passed() {
            mailbox.open();
            for _ in 0..LOOKS {
                if let Some(job) = mailbox.look() {
                    return Some(job);
                }
                spin_loop();
            }
            // Other threads that need this core. The mailbox stays open, as a caller does not wait for a job that
            // has not begun.
            std::thread::yield_now();
            if let Some(job) = mailbox.close() {
                return Some(job);
            }
            // Tasks of tract's operators.
            rayon::yield_now();
        }
        None
    }

    /// Occupies a free mailbox: that of this thread's index in its pool, unless threads of another
    /// pool help too.
    fn occupy(&self) -> Option<Occupied<'_, Job>> {
        let own = rayon::current_thread_index().unwrap_or(0).min(self.mailboxes.len());
        let (before, after) = self.mailboxes.split_at(own);
        after.iter().chain(before).find_map(Mailbox::occupy)
    }
}

/// An increment of a counter, undone on drop.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    /// Increments the counter if it is below `most`.
    fn below(count: &AtomicUsize, most: usize) -> Option<Counted<'_>> {
        let more = |now: usize| (now < most).then_some(now + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Counted(count))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
