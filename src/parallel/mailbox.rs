//! A mailbox hands a value from a caller to a spinning worker.
//!
//! Each worker has one. Its state tells whose turn it is. Neither side waits for a lock.

use super::sync::{AtomicUsize, Mutex, Ordering, yield_now};
use std::sync::PoisonError;

/// No worker uses this mailbox.
const IDLE: usize = 0;
/// The worker is running something else.
const BUSY: usize = 1;
/// The worker spins on its mailbox.
const SPINNING: usize = 2;
/// A caller has chosen this worker and is about to fill the mailbox.
const CHOSEN: usize = 3;
/// The mailbox holds a value for the worker.
const FULL: usize = 4;

/// The mailbox of one worker, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Mailbox<T> {
    state: AtomicUsize,
    /// Never contended: it belongs to the caller while the state is `CHOSEN`, to the worker while
    /// it is `FULL`, and to no thread otherwise.
    content: Mutex<Option<T>>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox { state: AtomicUsize::new(IDLE), content: Mutex::new(None) }
    }

    /// Hands a value to the worker if it spins. Otherwise returns the value.
    pub(crate) fn hand_over(&self, content: T) -> Option<T> {
        if self.state.load(Ordering::Relaxed) != SPINNING || !self.changes(SPINNING, CHOSEN) {
            return Some(content);
        }
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = Some(content);
        self.state.store(FULL, Ordering::Release);
        None
    }

    /// Whether a worker uses this mailbox.
    pub(crate) fn is_used(&self) -> bool {
        self.state.load(Ordering::Relaxed) != IDLE
    }

    /// Makes this the mailbox of the calling worker, if it is free. It is closed at first.
    pub(crate) fn occupy(&self) -> Option<Occupied<'_, T>> {
        self.changes(IDLE, BUSY).then_some(Occupied(self))
    }

    fn changes(&self, from: usize, to: usize) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// A worker's side of its mailbox, which is free again on drop.
pub(crate) struct Occupied<'a, T>(&'a Mailbox<T>);

impl<T> Occupied<'_, T> {
    /// Opens the mailbox: from now on a value may be handed over.
    pub(crate) fn open(&self) {
        self.0.state.store(SPINNING, Ordering::Release);
    }

    /// Takes the value if one was handed over. The mailbox is then closed.
    pub(crate) fn look(&self) -> Option<T> {
        if self.0.state.load(Ordering::Acquire) != FULL {
            return None;
        }
        let content = self.0.content.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.state.store(BUSY, Ordering::Relaxed);
        content
    }

    /// Closes the mailbox, so that no value can be handed over any more. Returns the value if one
    /// already was.
    pub(crate) fn close(&self) -> Option<T> {
        if self.0.changes(SPINNING, BUSY) {
            return None;
        }
        // A caller that has chosen this worker fills the mailbox within a few instructions, unless
        // it is preempted.
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
