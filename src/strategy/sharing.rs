//! Whether work is worth sharing out to other threads.
//!
//! What that costs is the system's: two threads wake one after the other, which took 60 to 80 us on one virtual machine, where layers of 100 us lost by it; on another they gained. So it is
//! measured, once a process, the first time that the answer depends on it.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tract_linalg::multithread::par_chunks_mut;

/// Estimated cost, in vector multiply-adds, below which work is never shared, about 45 us: layers of 40 us gained nothing from a second thread where threads
/// wake fast, those of 100 took 0.65 to 0.8 of the time (Zen 4).
pub(super) const LEAST_SHARED: u64 = 5 << 15;

/// From here on, about 350 us, work is always shared.
const MOST: u64 = 5 << 18;

/// Work that is worth sharing, as a multiple of what sharing costs: what is twice as long takes two threads as long as one.
const WORTH: f64 = 2.2;

/// Vector multiply-adds a nanosecond, as far as the estimates go.
const SLOTS_A_NANOSECOND: f64 = 4.0;

/// Times that sharing two items is measured, how long threads are left alone before each, so that they go to sleep as between two layers, and how long an item
/// takes: all of it is about 2 ms.
const ROUNDS: usize = 7;
const PAUSE: Duration = Duration::from_micros(200);
const ITEM: Duration = Duration::from_micros(40);

/// The estimated cost from which on work is shared; [`UNKNOWN`] until it is measured.
static WORTH_SHARING: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = 0;

/// Whether work of an estimated cost is worth sharing on tract's current executor, which has several threads.
pub(super) fn worth_sharing(cost: u64) -> bool {
    match cost {
        ..LEAST_SHARED => false,
        LEAST_SHARED..MOST => cost >= from_when_on(),
        MOST.. => true,
    }
}

/// Never waits for another thread that measures, which may wait for this one.
fn from_when_on() -> u64 {
    let claimed = WORTH_SHARING.compare_exchange(UNKNOWN, LEAST_SHARED, Ordering::Relaxed, Ordering::Relaxed);
    if let Err(known) = claimed {
        return known;
    }
    let slots = nanoseconds_to_share() * SLOTS_A_NANOSECOND * WORTH;
    let from = (slots as u64).clamp(LEAST_SHARED, MOST);
    WORTH_SHARING.store(from, Ordering::Relaxed);
    from
}

/// The median of what sharing two items adds to the time of one.
fn nanoseconds_to_share() -> f64 {
    let mut times: [Duration; ROUNDS] = std::array::from_fn(|_| {
        wait(PAUSE);
        let begin = Instant::now();
        let item = |_, items: &mut [Duration]| {
            items.iter().for_each(|time| wait(*time));
            Ok(())
        };
        // what can't fail
        par_chunks_mut(&mut [ITEM; 2], 1, usize::MAX, item).ok();
        begin.elapsed().saturating_sub(ITEM)
    });
    times.sort_unstable();
    times[ROUNDS / 2].as_nanos() as f64
}

/// Keeps the core busy.
fn wait(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        spin_loop();
    }
}
