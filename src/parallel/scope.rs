//! Work on borrowed data that other threads may help with. A scope of an executor waits for every thread that it asked, until the last has woken; here, who comes
//! when the work is done finds the door closed and nothing to touch.

use std::any::Any;
use std::cell::Cell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Thread, current, park};
use std::time::{Duration, Instant};

/// How long the calling thread keeps awake for helpers that are not through. Being woken takes most of that.
const AWAKE: Duration = Duration::from_micros(100);

/// Set once nobody may come in; below it is the number of those who are inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

type Work = dyn Fn(usize) + Sync;

struct Door {
    state: AtomicUsize,
    /// Not to be touched but by those who are inside.
    work: *const Work,
    owner: Thread,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: what `work` points to is `Sync`, and is there as long as anybody is inside: see `with_helpers`. All else is of types that may be shared.
unsafe impl Send for Door {}
// SAFETY: as above.
unsafe impl Sync for Door {}

impl Door {
    fn new(work: *const Work) -> Door {
        Door { state: AtomicUsize::new(0), work, owner: current(), panicked: Mutex::new(None) }
    }

    /// Does the work of a helper, if the door is open.
    fn help(&self, helper: usize) {
        let enter = |state: usize| (state & CLOSED == 0).then_some(state + 1);
        if self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
            return;
        }
        // SAFETY: the owner is in `with_helpers` until everybody who came in has left, and its caller's borrow is alive as long.
        let work = unsafe { &*self.work };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(helper))) {
            self.panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        // a clone, as the owner may be gone right after
        let owner = self.owner.clone();
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            owner.unpark();
        }
    }
}

/// Closes the door and waits for those inside, also where the owner's own work panicked.
struct Closing<'a>(&'a Door);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_or(CLOSED, Ordering::Relaxed);
        let begin = Instant::now();
        while self.0.state.load(Ordering::Acquire) != CLOSED {
            if begin.elapsed() < AWAKE { spin_loop() } else { park() }
        }
    }
}

/// What a helper is to do. A box of an executor's for each is all that is allocated: more small blocks that stay between large outputs cost a model fresh pages.
pub(super) struct Job {
    door: Arc<Door>,
    helper: usize,
}

impl Job {
    /// Does it, if that is not too late.
    pub fn run(self) {
        self.door.help(self.helper);
    }
}

/// Runs `work(0)` on the calling thread, and `work(1)` to `work(helpers)` on those that `ask` hands a job to and that begin it before the calling thread is through. What
/// one of them panics with, the caller does.
pub(super) fn with_helpers(helpers: usize, ask: impl Fn(Job), work: &(dyn Fn(usize) + Sync)) {
    thread_local!(static LAST: Cell<Option<Arc<Door>>> = const { Cell::new(None) });
    // SAFETY: only the lifetime changes. The pointer is followed by those inside only, and this function ends, by return or panic, when the door is closed and nobody is.
    let work: *const Work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Work>(work) };
    // the last one again, unless somebody may still come to it
    let mut door = LAST.take().unwrap_or_else(|| Arc::new(Door::new(work)));
    match Arc::get_mut(&mut door) {
        Some(door) => (door.work, door.state) = (work, AtomicUsize::new(0)),
        None => door = Arc::new(Door::new(work)),
    }
    {
        let closing = Closing(&door);
        (1..=helpers).for_each(|helper| ask(Job { door: Arc::clone(&door), helper }));
        // SAFETY: this function's own borrow.
        unsafe { (*work)(0) };
        drop(closing);
    }
    let panicked = door.panicked.lock().unwrap_or_else(PoisonError::into_inner).take();
    LAST.set(Some(door));
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn start(job: Job) {
        drop(std::thread::spawn(|| job.run()))
    }

    #[test]
    fn who_comes_in_time_helps() {
        let (all, helped) = (Barrier::new(3), AtomicUsize::new(0));
        let work = |who: usize| {
            all.wait();
            helped.fetch_add(1 << (8 * who), Ordering::Relaxed);
        };
        with_helpers(2, start, &work);
        assert_eq!(helped.into_inner(), 0x01_01_01);
    }

    #[test]
    fn who_comes_late_touches_nothing() {
        let (jobs, done) = (Mutex::new(vec![]), AtomicUsize::new(0));
        let ask = |job| jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        let work = |who: usize| {
            done.fetch_add(1 + who, Ordering::Relaxed);
        };
        with_helpers(3, ask, &work);
        let jobs = jobs.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(jobs.len(), 3);
        jobs.into_iter().for_each(Job::run);
        assert_eq!(done.into_inner(), 1);
    }

    #[test]
    fn a_helpers_panic_is_the_owners() {
        let both = Barrier::new(2);
        let work = |who: usize| {
            both.wait();
            assert_eq!(who, 0, "a helper's");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| with_helpers(1, start, &work))).is_err());
    }

    #[test]
    fn those_inside_are_waited_for_where_the_owner_panics() {
        let (both, left) = (Barrier::new(2), AtomicUsize::new(0));
        let work = |who: usize| {
            both.wait();
            assert_ne!(who, 0, "the owner's");
            std::thread::sleep(Duration::from_millis(20));
            left.fetch_add(1, Ordering::Relaxed);
        };
        assert!(catch_unwind(AssertUnwindSafe(|| with_helpers(1, start, &work))).is_err());
        assert_eq!(left.into_inner(), 1);
    }
}
