//! The late-joining scope: work on borrowed data that other threads may join while the calling thread does its part. An executor's own scope waits until every
//! thread that it asked has woken up. This one closes when the calling thread is through, and waits for those threads only that have joined until then. A thread
//! that comes later finds the scope closed and touches nothing of the borrowed data.

use super::sync::{Arc, AtomicUsize, Deadline, LOOKS, Mutex, Ordering, Thread, current, park, spin_loop, yield_now};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::Duration;

/// This bit of the state is set once nobody may join any more. The bits below it count the threads that are inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A borrowed closure without its type and its lifetime.
#[derive(Clone, Copy)]
struct Work {
    closure: *const (),
    call: unsafe fn(*const (), usize),
}

impl Work {
    fn new<F: Fn(usize) + Sync>(closure: &F) -> Work {
        Work { closure: std::ptr::from_ref(closure).cast(), call: call::<F> }
    }
}

/// # Safety
/// `closure` points to an `F` that is alive.
unsafe fn call<F: Fn(usize) + Sync>(closure: *const (), thread: usize) {
    // SAFETY: this function's contract.
    let closure = unsafe { &*closure.cast::<F>() };
    closure(thread);
}

/// What the calling thread and its helpers share.
pub(crate) struct Scope {
    state: AtomicUsize,
    /// Only threads inside follow its pointer.
    work: Work,
    owner: Thread,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `Work` alone keeps the compiler from deriving this. Its pointer is to a closure that is `Sync`, and is followed only while that is borrowed: see `share_work`.
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
            // SAFETY: this thread is inside, so `share_work` has not ended, and its caller's closure is alive.
            unsafe { (self.work.call)(self.work.closure, helper) }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        // from here on the closure may be gone. The scope, and with it the owner's handle, is alive: the job holds on to it
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            self.owner.unpark();
        }
    }

    /// Nobody may join any more, and nobody is inside.
    fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }
}

/// Closes the scope and waits for the threads inside, also where the owner's own part panicked.
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
        // a helper may need this very core
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

/// A helper's part, which another thread may do. An executor's box around it is all that is allocated for a helper.
pub(crate) struct Job {
    scope: Arc<Scope>,
    helper: usize,
}

impl Job {
    /// Does it, if the scope is still open.
    pub(crate) fn run(self) {
        self.scope.join(self.helper);
    }
}

/// Runs `work(0)` on the calling thread, and `work(1)` to `work(helpers)` on the threads that `ask` hands their jobs to, as far as these begin before the calling thread
/// is through. If one of them panics, so does the caller. The caller spins for `spin` at most until the helpers are through, then sleeps.
///
/// `kept` is a scope that this thread used before, or none: it is used again if no job of it is left.
pub(crate) fn share_work<F: Fn(usize) + Sync>(
    kept: &mut Option<Arc<Scope>>,
    helpers: usize,
    spin: Duration,
    ask: impl FnMut(Job),
    work: &F,
) {
    let erased = Work::new(work);
    let mut scope = kept.take().unwrap_or_else(|| Arc::new(Scope::new(erased)));
    match Arc::get_mut(&mut scope) {
        Some(scope) => (scope.work, scope.state, scope.owner) = (erased, AtomicUsize::new(0), current()),
        None => scope = Arc::new(Scope::new(erased)),
    }
    {
        // from the first job on until this is dropped, by return or panic, the closure is borrowed: helpers follow the pointer to it inside only
        let closing = Closing { scope: &scope, spin };
        (1..=helpers).map(|helper| Job { scope: Arc::clone(&scope), helper }).for_each(ask);
        work(0);
        drop(closing);
    }
    let panicked = scope.panicked.lock().unwrap_or_else(PoisonError::into_inner).take();
    *kept = Some(scope);
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}
