//! How a caller hands something to a worker that spins: a slot of one worker, whose state says whose turn it is. Nobody waits for a lock here.

use super::sync::{AtomicUsize, Mutex, Ordering, yield_now};
use std::sync::PoisonError;

/// No worker is here.
const IDLE: usize = 0;
/// The worker is awake, and does something else.
const BUSY: usize = 1;
/// The worker looks at its mailbox again and again.
const SPINNING: usize = 2;
/// A caller has chosen this worker, and is about to fill the mailbox.
const CHOSEN: usize = 3;
/// There is something for the worker.
const FULL: usize = 4;

/// The slot of one worker, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Mailbox<T> {
    state: AtomicUsize,
    /// Never contended: where the state is `CHOSEN` it is that caller's, where it is `FULL` the worker's, and nobody's otherwise.
    content: Mutex<Option<T>>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox { state: AtomicUsize::new(IDLE), content: Mutex::new(None) }
    }

    /// Hands something to the worker, if it spins. What nobody takes comes back.
    pub(crate) fn hand_over(&self, content: T) -> Option<T> {
        if self.state.load(Ordering::Relaxed) != SPINNING || !self.changes(SPINNING, CHOSEN) {
            return Some(content);
        }
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = Some(content);
        self.state.store(FULL, Ordering::Release);
        None
    }

    /// Makes this the slot of the calling worker, which is awake from here on, if it is nobody's.
    pub(crate) fn occupy(&self) -> Option<Occupied<'_, T>> {
        self.changes(IDLE, BUSY).then_some(Occupied(self))
    }

    fn changes(&self, from: usize, to: usize) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// A worker's side of its mailbox, until it is dropped.
pub(crate) struct Occupied<'a, T>(&'a Mailbox<T>);

impl<T> Occupied<'_, T> {
    /// From here on something may be handed over.
    pub(crate) fn open(&self) {
        self.0.state.store(SPINNING, Ordering::Release);
    }

    /// What was handed over, if anything was. The mailbox is closed then.
    pub(crate) fn look(&self) -> Option<T> {
        if self.0.state.load(Ordering::Acquire) != FULL {
            return None;
        }
        let content = self.0.content.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.state.store(BUSY, Ordering::Relaxed);
        content
    }

    /// From here on nothing can be handed over. What already was is returned.
    pub(crate) fn close(&self) -> Option<T> {
        if self.0.changes(SPINNING, BUSY) {
            return None;
        }
        // a caller that has chosen this worker fills the mailbox in a few instructions, unless it is interrupted between them
        while self.0.state.load(Ordering::Acquire) == CHOSEN {
            yield_now();
        }
        self.look()
    }
}

impl<T> Drop for Occupied<'_, T> {
    fn drop(&mut self) {
        drop(self.close());
        self.0.state.store(IDLE, Ordering::Release);
    }
}
