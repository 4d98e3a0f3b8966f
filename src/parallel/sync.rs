//! What the late-joining scope and the mailbox synchronise with. `tests/loom.rs` compiles both files with the model checker's types in its place.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex};
pub(super) use std::thread::{Thread, current, park, yield_now};
use std::time::{Duration, Instant};

/// How often a spinning thread looks before it yields its core: some microseconds.
pub(super) const LOOKS: usize = 128;

/// The end of a span of time that began when this was made.
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// An empty span has passed at once, and needs no clock: not every platform has one.
    pub(super) fn after(span: Duration) -> Deadline {
        Deadline((!span.is_zero()).then(|| Instant::now() + span))
    }

    pub(super) fn has_passed(&self) -> bool {
        self.0.is_none_or(|end| Instant::now() >= end)
    }
}
