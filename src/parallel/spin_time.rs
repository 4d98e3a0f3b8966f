//! The time that threads spin for more work.

use crate::knobs::TRACT_DECONV_SPIN_US;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The default spin time of a worker. A much shorter one misses the next layer of models with small
/// layers. A longer one gains nothing.
pub(super) const SPIN: Duration = Duration::from_micros(200);

/// The argument of [`set_spin_time`], in nanoseconds.
static SPIN_NANOS: AtomicU64 = AtomicU64::new(NOT_SET);

const NOT_SET: u64 = u64::MAX;

/// Sets how long a worker thread that has helped with a layer spins for the next one before it
/// returns to its executor.
///
/// It applies to the whole process, from the next wait on. With zero, no thread spins. Without the Cargo
/// feature `threads` it has no effect.
/// With `None`, the knob [`TRACT_DECONV_SPIN_US`] decides, or 200 us if it is not set.
///
/// A thread that runs a model spins for helpers that have not finished their part: for at most 100
/// us, and never longer than this time.
pub fn set_spin_time(time: Option<Duration>) {
    let nanos = time.map_or(NOT_SET, |time| u64::try_from(time.as_nanos()).unwrap_or(NOT_SET).min(NOT_SET - 1));
    SPIN_NANOS.store(nanos, Ordering::Relaxed);
}

/// Returns how long a worker thread that has helped with a layer spins: see [`set_spin_time`].
pub fn spin_time() -> Duration {
    static KNOB: OnceLock<Duration> = OnceLock::new();
    match SPIN_NANOS.load(Ordering::Relaxed) {
        NOT_SET => {
            *KNOB.get_or_init(|| TRACT_DECONV_SPIN_US.get().map_or(SPIN, |micros| Duration::from_micros(micros as u64)))
        }
        nanos => Duration::from_nanos(nanos),
    }
}
