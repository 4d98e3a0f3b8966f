//! The synchronisation primitives of the late-joining scope and the mailbox.
//!
//! `tests/loom.rs` compiles both files with the model checker's types in their place.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex};
pub(super) use std::thread::{Thread, current, park, yield_now};
use std::time::{Duration, Instant};

/// How often a spinning thread checks before it yields its core. This takes some microseconds.
pub(super) const LOOKS: usize = 128;

/// The end of a time span that begins when this is created.
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// An empty span has already passed and needs no clock, which not every platform has.
    pub(super) fn after(span: Duration) -> Deadline {
        Deadline((!span.is_zero()).then(|| Instant::now() + span))
    }

    pub(super) fn has_passed(&self) -> bool {
        self.0.is_none_or(|end| Instant::now() >= end)
    }
}
