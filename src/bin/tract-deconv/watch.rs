//! Reports the progress of long work.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time before the first line.
const FIRST: Duration = Duration::from_secs(1);
/// The time between lines.
const PERIOD: Duration = Duration::from_secs(10);

/// Reports on the standard error that work is still going on, until it is dropped.
pub struct Watch {
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    /// Starts to watch work of this name.
    pub fn start(what: impl Into<String>) -> Watch {
        Watch::with(what.into(), FIRST, PERIOD, |line| {
            // the standard error may be closed
            let _ = writeln!(std::io::stderr(), "{line}");
        })
    }

    fn with(what: String, first: Duration, period: Duration, mut tell: impl FnMut(String) + Send + 'static) -> Watch {
        let (end, ended) = channel();
        let start = Instant::now();
        let watch = move || {
            let mut wait = first;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                tell(format!("{what}: {:.0} s so far", start.elapsed().as_secs_f64()));
                wait = period;
            }
        };
        // if no thread can be had, there are no lines
        Watch { running: std::thread::Builder::new().spawn(watch).ok().map(|thread| (end, thread)) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn lines(first: Duration, until: usize) -> Vec<String> {
        let lines = Arc::new(Mutex::new(vec![]));
        let told = Arc::clone(&lines);
        let watch = Watch::with("work".into(), first, Duration::from_millis(1), move |line| {
            told.lock().unwrap().push(line);
        });
        while lines.lock().unwrap().len() < until {
            std::thread::yield_now();
        }
        drop(watch);
        Arc::try_unwrap(lines).expect("the thread has ended").into_inner().unwrap()
    }

    #[test]
    fn long_work_is_told_again_and_again_and_short_work_never() {
        let long = lines(Duration::ZERO, 3);
        assert!(long.len() >= 3 && long.iter().all(|line| line == "work: 0 s so far"), "{long:?}");
        assert!(lines(Duration::from_secs(3600), 0).is_empty());
    }
}
