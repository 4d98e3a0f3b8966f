//! The late-joining scope: work on borrowed data that other threads may join while the calling
//! thread does its part.
//!
//! An executor's own scope waits until every thread that it asked has woken up. This one closes
//! when the calling thread has finished, and waits only for threads that have joined by then. A
//! thread that comes later finds the scope closed and does not access the borrowed data.

use super::sync::{Arc, AtomicUsize, Deadline, LOOKS, Mutex, Ordering, Thread, current, park, spin_loop, yield_now};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::Duration;

/// The bit of the state that is set once no thread may join any more. The lower bits count the
/// threads inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A borrowed closure without its lifetime: a pointer to a [`Closure`].
#[derive(Clone, Copy)]
struct Work(*const ());

type Closure<'a> = &'a (dyn Fn(usize) + Sync);

impl Work {
    fn new(closure: &Closure) -> Work {
        Work(std::ptr::from_ref(closure).cast())
    }

    /// # Safety
    /// The closure that this was made from, and the reference to it, are alive.
    unsafe fn call(self, thread: usize) {
        // SAFETY: this function's contract.
        let closure: Closure = unsafe { *self.0.cast() };
        closure(thread);
    }
}

/// The state that the calling thread and its helpers share.
pub(crate) struct Scope {
    state: AtomicUsize,
    /// Only threads inside the scope dereference its pointer.
    work: Work,
    owner: Thread,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: only `Work` prevents the automatic implementation. Its pointer is to a `Sync` closure,
// and is only dereferenced while that closure is borrowed: see `share_work`.
unsafe impl Send for Scope {}
// SAFETY: as above.
unsafe impl Sync for Scope {}

impl Scope {
    fn new(work: Work) -> Scope {
        Scope { state: AtomicUsize::new(0), work, owner: current(), panicked: Mutex::new(None) }
    }

    /// Does a helper's part, if the scope is open.
    fn join(&self, helper: usize) {
        let enter = |state: usize| (state & CLOSED == 0).then_some(state + 1);
        if self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
            return;
        }
        let work = || {
            // SAFETY: this thread is inside the scope, so `share_work` has not returned. Its argument
            // `work` and the closure that it refers to are alive.
            unsafe { self.work.call(helper) }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        // From here on the closure may be gone. The scope, and with it the owner's handle, is still
        // alive, as the job holds a reference to it.
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            self.owner.unpark();
        }
    }

    /// Whether the scope is closed and no thread is inside.
    fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }
}

/// Closes the scope on drop and waits for the threads inside, even if the owner's own part
/// panicked.
struct Closing<'a> {
    scope: &'a Scope,
    spin: Duration,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.scope.state.fetch_or(CLOSED, Ordering::Relaxed);
        if self.scope.is_over() {
            return;
        }
        // A helper may need this core.
        yield_now();
        let deadline = Deadline::after(self.spin);
        while !deadline.has_passed() {
            for _ in 0..LOOKS {
                if self.scope.is_over() {
                    return;
                }
                spin_loop();
            }
            yield_now();
        }
        while !self.scope.is_over() {
            park();
        }
    }
}

/// A helper's part, which another thread may do. The executor's box around it is the only
/// allocation per helper.
pub(crate) struct Job {
    scope: Arc<Scope>,
    helper: usize,
}

impl Job {
    /// Does the helper's part, if the scope is still open.
    pub(crate) fn run(self) {
        self.scope.join(self.helper);
    }
}

/// Runs `work(0)` on the calling thread, and `work(1)` to `work(helpers)` on the threads to which
/// `send` hands their jobs.
///
/// Jobs that have not begun when the calling thread has finished are skipped.
/// If any part panics, so does the caller.
/// The caller spins for at most `spin` until the helpers have finished, then sleeps.
///
/// `kept` is a scope that this thread used before, or none. It is reused if none of its jobs is
/// left.
pub(crate) fn share_work(
    kept: &mut Option<Arc<Scope>>,
    helpers: usize,
    spin: Duration,
    send: impl FnMut(Job),
    work: &(dyn Fn(usize) + Sync),
) {
    let erased = Work::new(&work);
    let mut scope = kept.take().unwrap_or_else(|| Arc::new(Scope::new(erased)));
    match Arc::get_mut(&mut scope) {
        Some(scope) => (scope.work, scope.state, scope.owner) = (erased, AtomicUsize::new(0), current()),
        None => scope = Arc::new(Scope::new(erased)),
    }
    {
        // The closure is borrowed from the first job until `closing` is dropped, by return or
        // panic. Helpers dereference the pointer to it only inside the scope.
        let closing = Closing { scope: &scope, spin };
        (1..=helpers).map(|helper| Job { scope: Arc::clone(&scope), helper }).for_each(send);
        work(0);
        drop(closing);
    }
    let panicked = scope.panicked.lock().unwrap_or_else(PoisonError::into_inner).take();
    *kept = Some(scope);
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}
