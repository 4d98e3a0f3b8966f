//! The late-joining scope and the mailbox under the model checker loom.
//!
//! Their own source files are compiled with loom's types instead of the standard library's. Loom
//! then runs every order of their steps that the memory model allows, up to a number of
//! preemptions. `LOOM_MAX_PREEMPTIONS=4 cargo test --release --test loom -- --nocapture` raises
//! that number.

/// The mailbox with a worker that yields to the caller it waits for, so that loom runs the other
/// threads first.
#[path = "."]
mod waiting {
    #[path = "../src/parallel/mailbox.rs"]
    pub mod mailbox;

    mod sync {
        pub use crate::stand_in::{AtomicUsize, Mutex, Ordering};
        pub use loom::thread::yield_now;
    }
}

/// The scope with an owner whose yield does nothing, so that it finds its helpers in any state.
///
/// With loom's own `yield_now` the helpers would always have finished, and the owner would never
/// sleep.
#[path = "."]
mod joining {
    #[path = "../src/parallel/scope.rs"]
    pub mod scope;

    mod sync {
        pub use crate::stand_in::{AtomicUsize, Deadline, Mutex, Ordering};
        pub use loom::sync::Arc;
        pub use loom::thread::{Thread, current, park};

        pub const LOOKS: usize = 1;

        pub fn spin_loop() {}

        pub fn yield_now() {}
    }
}

/// The types that src/parallel/sync.rs provides in the crate.
mod stand_in {
    use loom::cell::{MutPtr, UnsafeCell};
    pub use loom::sync::atomic::{AtomicUsize, Ordering};
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::LockResult;
    use std::time::Duration;

    /// A mutex that does not lock.
    ///
    /// Loom fails if two threads access the value at once or without an order. The scope's states
    /// must provide that order, as the real locks only satisfy the compiler.
    pub struct Mutex<T>(UnsafeCell<T>);

    // SAFETY: loom checks each access.
    unsafe impl<T: Send> Sync for Mutex<T> {}

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(UnsafeCell::new(value))
        }

        pub fn lock(&self) -> LockResult<Guard<T>> {
            Ok(Guard(self.0.get_mut()))
        }
    }

    pub struct Guard<T>(MutPtr<T>);

    impl<T> Deref for Guard<T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: loom fails if another thread accesses the value at the same time.
            unsafe { self.0.deref() }
        }
    }

    impl<T> DerefMut for Guard<T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as in `deref`.
            unsafe { self.0.deref() }
        }
    }

    /// A deadline that passes at the second check, so that a thread spins once and then sleeps.
    pub struct Deadline(Cell<bool>);

    impl Deadline {
        pub fn after(span: Duration) -> Deadline {
            Deadline(Cell::new(span.is_zero()))
        }

        pub fn has_passed(&self) -> bool {
            self.0.replace(true)
        }
    }
}

use joining::scope::{Job, share_work};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::{JoinHandle, spawn, yield_now};
use std::io::Write;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};
use std::time::Duration;
use waiting::mailbox::Mailbox;

const SPIN: Duration = Duration::from_micros(1);

/// Runs a model in every order of its steps, up to `preemptions` preemptions unless the environment
/// sets the number.
fn check(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    static EXECUTIONS: [Count; 16] = [const { Count::new(0) }; 16];
    static NEXT: Count = Count::new(0);
    let executions = &EXECUTIONS[NEXT.fetch_add(1, Relaxed)];
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    let bound = builder.preemption_bound;
    builder.check(move || {
        executions.fetch_add(1, Relaxed);
        model();
    });
    let count = executions.load(Relaxed);
    let _ = writeln!(std::io::stderr(), "loom: {name}: {count} executions, up to {bound:?} preemptions");
    assert!(count > 1, "{name}: nothing happened in another order");
}

/// Data that a scope's work borrows, with one part per thread.
///
/// Loom fails if two accesses are not ordered, including the owner's last one.
struct Parts(Vec<UnsafeCell<usize>>);

// SAFETY: each thread accesses only its own part, which loom checks.
unsafe impl Sync for Parts {}

impl Parts {
    fn new(threads: usize) -> Parts {
        Parts((0..threads).map(|_| UnsafeCell::new(0)).collect())
    }

    fn do_part(&self, thread: usize) {
        self.0[thread].with_mut(|part| unsafe { *part += 1 });
    }

    /// Returns how often each part was done.
    fn done(&self) -> Vec<usize> {
        self.0.iter().map(|part| part.with_mut(|part| unsafe { std::mem::replace(&mut *part, usize::MAX) })).collect()
    }
}

/// Shares work with helpers on new threads, which may join late.
fn share_with(helpers: usize, spin: Duration) {
    let mut threads: Vec<JoinHandle<()>> = vec![];
    let parts = Parts::new(1 + helpers);
    let send = |job: Job| threads.push(spawn(|| job.run()));
    share_work(&mut None, helpers, spin, send, &|thread| parts.do_part(thread));
    // Loom fails here if a helper still uses the pointer, or did its part without being ordered
    // before the owner.
    let done = parts.done();
    assert!(done[0] == 1 && done[1..].iter().all(|part| *part <= 1), "{done:?}");
    drop(parts);
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

#[test]
fn one_helper_joins_or_is_late() {
    check("a scope of one helper", 3, || share_with(1, SPIN));
}

#[test]
fn an_owner_that_does_not_spin_is_woken() {
    check("a scope whose owner sleeps", 3, || share_with(1, Duration::ZERO));
}

#[test]
fn two_helpers_join_or_are_late() {
    check("a scope of two helpers", 2, || share_with(2, Duration::ZERO));
}

#[test]
fn a_job_of_a_scope_that_is_over_is_nothing_to_the_next_one() {
    check("two scopes one after the other", 2, || {
        let mut threads: Vec<JoinHandle<()>> = vec![];
        let mut kept = None;
        for _ in 0..2 {
            let parts = Parts::new(2);
            let send = |job: Job| threads.push(spawn(|| job.run()));
            share_work(&mut kept, 1, Duration::ZERO, send, &|thread| parts.do_part(thread));
            let done = parts.done();
            assert!(done[0] == 1 && done[1] <= 1, "{done:?}");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
}

/// A worker that opens its mailbox `rounds` times. Returns what it received.
fn worker(mailbox: &Mailbox<usize>, rounds: usize) -> Vec<usize> {
    let mut got = vec![];
    let occupied = mailbox.occupy().expect("nobody else does");
    for _ in 0..rounds {
        occupied.open();
        got.extend(occupied.look().or_else(|| occupied.close()));
    }
    got
}

/// Runs callers with one number each and one worker. Each number must come back or arrive exactly
/// once.
fn callers(count: usize, rounds: usize) {
    let mailbox = Arc::new(Mailbox::new());
    let callers: Vec<_> = (0..count)
        .map(|caller| {
            let mailbox = Arc::clone(&mailbox);
            spawn(move || mailbox.hand_over(caller))
        })
        .collect();
    let mut all = worker(&mailbox, rounds);
    assert!(all.len() <= rounds);
    all.extend(callers.into_iter().filter_map(|caller| caller.join().expect("it ends")));
    all.sort();
    assert_eq!(all, (0..count).collect::<Vec<_>>());
    // The worker is gone.
    assert!(!mailbox.is_used());
    assert_eq!(mailbox.hand_over(9), Some(9));
}

#[test]
fn a_number_arrives_or_comes_back() {
    check("a mailbox and one caller", 3, || callers(1, 2));
}

#[test]
fn one_of_two_callers_is_served_at_a_time() {
    check("a mailbox and two callers", 2, || callers(2, 2));
}

#[test]
fn two_workers_never_have_the_same_mailbox() {
    check("a mailbox and two workers", 3, || {
        let mailbox = Arc::new(Mailbox::<usize>::new());
        let inside = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (mailbox, inside) = (Arc::clone(&mailbox), Arc::clone(&inside));
                spawn(move || {
                    if let Some(occupied) = mailbox.occupy() {
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(occupied);
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().expect("it ends"));
    });
}

#[test]
fn a_worker_gets_a_scopes_job_from_its_mailbox() {
    check("a scope, a mailbox and a worker", 2, || {
        let mailbox = Arc::new(Mailbox::<Job>::new());
        let worker = {
            let mailbox = Arc::clone(&mailbox);
            spawn(move || {
                let Some(occupied) = mailbox.occupy() else { return };
                occupied.open();
                yield_now();
                if let Some(job) = occupied.close() {
                    drop(occupied);
                    job.run();
                }
            })
        };
        let parts = Parts::new(2);
        // A job that does not find the worker is dropped, as nobody needs to help.
        let send = |job: Job| drop(mailbox.hand_over(job));
        share_work(&mut None, 1, Duration::ZERO, send, &|thread| parts.do_part(thread));
        let done = parts.done();
        assert!(done[0] == 1 && done[1] <= 1, "{done:?}");
        worker.join().expect("it ends");
    });
}
