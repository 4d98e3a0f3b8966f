//! `src/parallel/` without the rest of the crate, so that Miri and ThreadSanitizer finish in
//! minutes.
//!
//! It has the module's own source files and unit tests on real threads, and further tests of the
//! late-joining scope and the mailbox alone.
//!
//! - `RUSTFLAGS=-Zsanitizer=thread cargo +nightly test --lib -Zbuild-std --target x86_64-unknown-linux-gnu`
//! - `MIRIFLAGS=-Zmiri-many-seeds=0..16 cargo +nightly miri test --lib -- --skip parallel::`, which
//!   skips tests that use rayon, as Miri can't run it.
#![cfg(test)]

extern crate self as tract_core;

// The entry point for layers is not used here.
#[expect(dead_code)]
#[path = "../../src/parallel/mod.rs"]
mod parallel;

#[path = "../../src/parallel/mailbox.rs"]
mod mailbox;
#[path = "../../src/parallel/scope.rs"]
mod scope;
#[path = "../../src/parallel/sync.rs"]
mod sync;

/// The machine, as far as this module uses it.
mod estimate {
    pub mod machine {
        pub struct Rates {
            pub fma_per_ns: f64,
            pub share_ns: f64,
            pub share_spinning_ns: f64,
        }

        pub struct Machine {
            pub rates: Rates,
        }

        impl Machine {
            pub const ZEN4: Machine =
                Machine { rates: Rates { fma_per_ns: 4.0, share_ns: 34_000.0, share_spinning_ns: 5_000.0 } };

            pub fn current() -> &'static Machine {
                &Machine::ZEN4
            }

            pub fn nanoseconds(&self, cost: u64) -> f64 {
                cost as f64 / self.rates.fma_per_ns
            }
        }
    }
}

/// The texts are checked by the crate itself.
mod testing {
    pub fn assert_documented(_file: &str, _words: &str) {}
}

/// Knobs that are never set.
mod knobs {
    pub struct Knob;

    impl Knob {
        pub fn get(&self) -> Option<usize> {
            None
        }
    }

    pub static TRACT_DECONV_SPIN_US: Knob = Knob;
    pub static TRACT_DECONV_SHARE_FROM: Knob = Knob;
}

mod internal {
    pub use anyhow::{Context as _, Error as TractError, Result as TractResult, bail, ensure};
}

/// A copy of tract's executors.
mod prelude {
    pub mod multithread {
        use rayon::{ThreadPool, ThreadPoolBuilder};
        use std::cell::RefCell;
        use std::sync::Arc;

        #[derive(Clone)]
        pub enum Executor {
            SingleThread,
            MultiThread(Arc<ThreadPool>),
            RayonGlobal,
        }

        impl Executor {
            pub fn multithread(threads: usize) -> Executor {
                let pool = ThreadPoolBuilder::new().num_threads(threads).build();
                Executor::MultiThread(Arc::new(pool.expect("threads can be had")))
            }
        }

        thread_local!(static CURRENT: RefCell<Executor> = const { RefCell::new(Executor::SingleThread) });

        pub fn current_tract_executor() -> Executor {
            CURRENT.with_borrow(Clone::clone)
        }

        pub fn multithread_tract_scope<R>(executor: Executor, run: impl FnOnce() -> R) -> R {
            let before = CURRENT.replace(executor);
            let result = run();
            CURRENT.set(before);
            result
        }
    }
}

use mailbox::Mailbox;
use scope::{Job, share_work};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{scope as threads, spawn, yield_now};
use std::time::Duration;

const ROUNDS: usize = if cfg!(miri) { 3 } else { 2000 };
const SPINS: [Duration; 2] = [Duration::ZERO, Duration::from_micros(100)];

/// Checks that each part is done at most once. Each thread has its own part.
///
/// All parts are read without a lock once the scope is over. A helper that is still inside would
/// race with that.
fn parts_are_done_once(parts: &mut [usize], helpers: usize, share: impl FnOnce(&(dyn Fn(usize) + Sync))) {
    struct Parts(*mut usize);
    // SAFETY: each thread accesses only its own part.
    unsafe impl Sync for Parts {}
    impl Parts {
        fn do_part(&self, thread: usize) {
            // SAFETY: `thread` is at most the number of helpers, so it is an index of `parts`. Each
            // thread has its own index. The work runs only while the scope's borrow of the parts is
            // alive.
            unsafe { *self.0.add(thread) += 1 }
        }
    }
    let raw = Parts(parts.as_mut_ptr());
    share(&|thread| raw.do_part(thread));
    assert!(parts[0] == 1 && parts[1..=helpers].iter().all(|part| *part <= 1), "{parts:?}");
    parts.fill(usize::MAX);
}

#[test]
fn helpers_join_or_are_late() {
    for spin in SPINS {
        let mut kept = None;
        for _ in 0..ROUNDS {
            let mut started = vec![];
            parts_are_done_once(&mut [0; 4], 3, |work| {
                let send = |job: Job| started.push(spawn(|| job.run()));
                share_work(&mut kept, 3, spin, send, &work);
            });
            started.into_iter().for_each(|thread| thread.join().expect("it ends"));
        }
    }
}

#[test]
fn panics_are_the_owners() {
    for panicking in 0..2 {
        let all = Barrier::new(2);
        let mut started = vec![];
        let send = |job: Job| started.push(spawn(|| job.run()));
        let work = |thread: usize| {
            all.wait();
            assert_ne!(thread, panicking, "wanted");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| share_work(&mut None, 1, SPINS[1], send, &work))).is_err());
        started.into_iter().for_each(|thread| thread.join().expect("it ends"));
    }
}

#[test]
fn what_is_handed_over_arrives_once() {
    let mailbox = Mailbox::new();
    let (callers, over) = (AtomicUsize::new(2), AtomicBool::new(false));
    let (got, back) = threads(|scope| {
        let worker = scope.spawn(|| {
            let mut got = vec![];
            while !over.load(Ordering::Acquire) {
                let Some(occupied) = mailbox.occupy() else { continue };
                occupied.open();
                got.extend(occupied.look());
                yield_now();
                got.extend(occupied.close());
            }
            got
        });
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                let (mailbox, callers, over) = (&mailbox, &callers, &over);
                scope.spawn(move || {
                    let numbers = (0..ROUNDS).map(|i| Box::new(2 * i + caller));
                    let back: Vec<_> = numbers.filter_map(|number| mailbox.hand_over(number)).collect();
                    if callers.fetch_sub(1, Ordering::AcqRel) == 1 {
                        over.store(true, Ordering::Release);
                    }
                    back
                })
            })
            .collect();
        let back: Vec<_> = callers.into_iter().flat_map(|caller| caller.join().expect("it ends")).collect();
        (worker.join().expect("it ends"), back)
    });
    let mut all: Vec<usize> = got.into_iter().chain(back).map(|number| *number).collect();
    all.sort();
    assert_eq!(all, (0..2 * ROUNDS).collect::<Vec<_>>());
}

#[test]
fn workers_get_jobs_of_scopes_from_their_mailboxes() {
    let mailboxes = [Mailbox::<Job>::new(), Mailbox::new()];
    let over = AtomicBool::new(false);
    threads(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let Some(occupied) = mailboxes.iter().find_map(Mailbox::occupy) else { continue };
                    occupied.open();
                    let job = (0..3).find_map(|_| {
                        yield_now();
                        occupied.look()
                    });
                    let job = job.or_else(|| occupied.close());
                    drop(occupied);
                    if let Some(job) = job {
                        job.run();
                    }
                }
            });
        }
        let (late, jobs) = channel::<Job>();
        let latecomer = scope.spawn(move || jobs.into_iter().for_each(Job::run));
        let mut kept = None;
        for round in 0..ROUNDS {
            parts_are_done_once(&mut [0; 3], 2, |work| {
                let send = |job| {
                    if let Some(job) = mailboxes.iter().try_fold(job, |job, mailbox| mailbox.hand_over(job)) {
                        late.send(job).expect("the latecomer is there");
                    }
                };
                share_work(&mut kept, 2, SPINS[round % 2], send, &work);
            });
        }
        drop(late);
        over.store(true, Ordering::Relaxed);
        latecomer.join().expect("it ends");
    });
}
