//! The worker threads of an executor, as far as they help this crate's layers. Between layers that are shared, an executor's threads go to sleep, and waking
//! them takes as long as a small layer does. A thread that has helped spins for a while instead, and meanwhile does what else its executor has to do.

use super::mailbox::{Mailbox, Occupied};
use super::scope::Job;
use super::sync::{Deadline, LOOKS};
use crate::knobs::TRACT_DECONV_SPIN_US;
use rayon::ThreadPool;
use std::cell::{Cell, RefCell};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tract_core::prelude::multithread::{Executor, current_tract_executor};

/// How long a worker spins, where nobody says otherwise. With a quarter of it a vocoder whose layers take 30 us gains nothing (0.55 ms, 0.49 with this), with more than
/// twice as much no more.
const SPIN: Duration = Duration::from_micros(200);

/// Longest time that the calling thread spins for helpers that are not through. Being woken takes most of that.
pub(super) const OWNER_SPIN: Duration = Duration::from_micros(100);

/// What [`set_spin_time`] was called with, in nanoseconds.
static SPIN_NANOS: AtomicU64 = AtomicU64::new(NOT_SET);

const NOT_SET: u64 = u64::MAX;

/// Workers that spin, of all executors.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// Sets how long a worker thread that has helped with a layer spins, waiting for the next one, before it goes back to its executor, and that no thread spins with
/// zero. It holds for the whole process and from the next wait on. With `None`, the knob [`TRACT_DECONV_SPIN_US`] decides, and 200 us where it is not set.
///
/// A thread that calls a model spins for half as long as its workers may by default, 100 us, and never longer than this, for those that have not finished their part.
pub fn set_spin_time(time: Option<Duration>) {
    let nanos = time.map_or(NOT_SET, |time| u64::try_from(time.as_nanos()).unwrap_or(NOT_SET).min(NOT_SET - 1));
    SPIN_NANOS.store(nanos, Ordering::Relaxed);
}

/// How long a worker thread that has helped with a layer spins: see [`set_spin_time`].
pub fn spin_time() -> Duration {
    static KNOB: OnceLock<Duration> = OnceLock::new();
    match SPIN_NANOS.load(Ordering::Relaxed) {
        NOT_SET => {
            *KNOB.get_or_init(|| TRACT_DECONV_SPIN_US.get().map_or(SPIN, |micros| Duration::from_micros(micros as u64)))
        }
        nanos => Duration::from_nanos(nanos),
    }
}

/// The same, but nothing where a spinning thread keeps from running whom it waits for: on one core, and where there is no clock.
fn useful_spin() -> Duration {
    if most_spinning() == 0 || cfg!(target_family = "wasm") { Duration::ZERO } else { spin_time() }
}

/// How long the calling thread spins for its helpers.
pub(super) fn owner_spin() -> Duration {
    useful_spin().min(OWNER_SPIN)
}

/// Most workers that spin at once: with the calling thread, as many as cores that this process may use.
pub(super) fn most_spinning() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1))
}

/// The threads of an executor that has several kinds of them.
#[derive(Clone)]
pub(super) enum Pool {
    Own(Arc<ThreadPool>),
    /// rayon's global pool, or the pool whose thread asks.
    Global,
}

impl Pool {
    /// Of tract's current executor, if that has threads.
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
    /// As long as this is there, no other pool has the same address. None for the global one.
    pool: Option<Weak<ThreadPool>>,
    mailboxes: Box<[Mailbox<Job>]>,
    /// Workers that spin, or do something else meanwhile.
    awake: AtomicUsize,
}

impl Workers {
    /// Those of a pool. A thread that uses the same executor as last time, as nearly all do, takes no lock to find them.
    pub(super) fn of(pool: &Pool) -> Arc<Workers> {
        thread_local!(static LAST: RefCell<Option<Arc<Workers>>> = const { RefCell::new(None) });
        LAST.with_borrow_mut(|last| match last {
            Some(workers) if workers.is_of(pool) => Arc::clone(workers),
            _ => Arc::clone(last.insert(Workers::find(pool))),
        })
    }

    /// Looks among those of all executors, and leaves out those whose executor is gone.
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
            awake: AtomicUsize::new(0),
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

    /// How many are awake: they helped not long ago, or were called.
    pub(super) fn awake(&self) -> usize {
        self.awake.load(Ordering::Relaxed)
    }

    /// Wakes a thread of the pool up to spin for layers to come.
    pub(super) fn call(self: &Arc<Self>, pool: &Pool) {
        if useful_spin().is_zero() {
            return;
        }
        let workers = Arc::clone(self);
        pool.spawn(move || workers.work(None));
    }

    /// Hands over jobs, each to a worker that spins if there is one left, and to a thread that the pool wakes up otherwise. The same workers get the same jobs of each
    /// layer, as far as they spin.
    pub(super) fn asker(self: &Arc<Self>, pool: &Pool) -> impl FnMut(Job) {
        let mut next = if self.awake() > 0 { 0 } else { self.mailboxes.len() };
        move |mut job| {
            while let Some(mailbox) = self.mailboxes.get(next) {
                next += 1;
                match mailbox.hand_over(job) {
                    None => return,
                    Some(back) => job = back,
                }
            }
            let workers = Arc::clone(self);
            pool.spawn(move || workers.work(Some(job)));
        }
    }

    /// Runs a job, if there is one yet, and those that come soon after.
    fn work(&self, job: Option<Job>) {
        // set while the thread waits: what it does meanwhile may be a job, too, after which it is to go on waiting where it was
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

    /// Waits for a job. The mailbox is closed while the thread does something else, which may take long, or need the very helper that would be asked for meanwhile.
    fn wait(&self) -> Option<Job> {
        let spin = useful_spin();
        if spin.is_zero() {
            return None;
        }
        let _permit = Counted::below(&SPINNING, most_spinning())?;
        let mailbox = self.occupy()?;
        let _awake = Counted::below(&self.awake, usize::MAX)?;
        let deadline = Deadline::after(spin);
        while !deadline.has_passed() {
            mailbox.open();
            for _ in 0..LOOKS {
                if let Some(job) = mailbox.look() {
                    return Some(job);
                }
                spin_loop();
            }
            if let Some(job) = mailbox.close() {
                return Some(job);
            }
            // what tract's operators share, then who else needs this core
            rayon::yield_now();
            std::thread::yield_now();
        }
        None
    }

    /// A mailbox that no other thread has: the one of the thread's number in its pool, unless threads of another pool help, too.
    fn occupy(&self) -> Option<Occupied<'_, Job>> {
        let own = rayon::current_thread_index().unwrap_or(0).min(self.mailboxes.len());
        let (before, after) = self.mailboxes.split_at(own);
        after.iter().chain(before).find_map(Mailbox::occupy)
    }
}

/// One more in a count, until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    /// If fewer than so many are.
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
