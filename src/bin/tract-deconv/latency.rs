//! Times engines in turns, and summarises lists of times.

use crate::model::execute;
use crate::watch::Watch;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr, stdout};
use std::time::{Duration, Instant};
use tract_core::internal::*;

/// The least rounds, whatever the time limit.
const FEWEST_ROUNDS: usize = 5;
/// The most rounds, whatever the time limit.
const MOST_ROUNDS: usize = 100_000;
/// The warm-up before anything is recorded, as a fraction of the time limit.
const WARM_UP: f64 = 0.1;

/// Runs the engines in turns, and returns each one's times in milliseconds, one per round.
pub fn alternate(
    engines: &[&Arc<TypedRunnableModel>],
    inputs: &[Arc<Tensor>],
    seconds: f64,
) -> TractResult<Vec<Vec<f64>>> {
    let _watch = bar_is_hidden().then(|| Watch::start(format!("timing for {} s", seconds * (1.0 + WARM_UP))));
    let bar = progress((seconds * (1.0 + WARM_UP) * 1e3) as u64);
    let begin = Instant::now();
    let mut samples = vec![vec![]; engines.len()];
    rounds(engines, inputs, seconds * WARM_UP, 1, &begin, &bar, &mut vec![vec![]; engines.len()])?;
    rounds(engines, inputs, seconds, FEWEST_ROUNDS, &begin, &bar, &mut samples)?;
    bar.finish_and_clear();
    Ok(samples)
}

fn rounds(
    engines: &[&Arc<TypedRunnableModel>],
    inputs: &[Arc<Tensor>],
    seconds: f64,
    fewest: usize,
    begin: &Instant,
    bar: &ProgressBar,
    samples: &mut [Vec<f64>],
) -> TractResult<()> {
    let limit = Duration::from_secs_f64(seconds);
    let start = Instant::now();
    for round in 0..MOST_ROUNDS {
        if round >= fewest && start.elapsed() >= limit {
            break;
        }
        for turn in 0..engines.len() {
            // another engine begins in each round, so that none always follows the other
            let engine = (turn + round) % engines.len();
            let from = Instant::now();
            let outputs = execute(engines[engine], inputs)?;
            samples[engine].push(from.elapsed().as_secs_f64() * 1e3);
            drop(outputs);
        }
        bar.set_position(begin.elapsed().as_millis() as u64);
    }
    Ok(())
}

fn bar_is_hidden() -> bool {
    !(stdout().is_terminal() && stderr().is_terminal())
}

/// Returns a progress bar, which is hidden unless both standard streams are terminals.
fn progress(milliseconds: u64) -> ProgressBar {
    if bar_is_hidden() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(milliseconds);
    if let Ok(style) = ProgressStyle::with_template("timing {wide_bar} {percent}%") {
        bar.set_style(style);
    }
    bar
}

/// Statistics of one engine's times, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub runs: usize,
    pub min: f64,
    pub p25: f64,
    pub median: f64,
    pub p75: f64,
    pub p95: f64,
}

impl Summary {
    /// Returns the statistics of samples, or `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |p: f64| quantile(&sorted, p);
        Some(Summary {
            runs: sorted.len(),
            min: *sorted.first()?,
            p25: at(0.25)?,
            median: at(0.5)?,
            p75: at(0.75)?,
            p95: at(0.95)?,
        })
    }

    /// Returns the distance between the quartiles over the median.
    pub fn spread(&self) -> f64 {
        (self.p75 - self.p25) / self.median
    }
}

/// Returns a quantile, by linear interpolation between the two nearest ranks.
pub fn quantile(sorted: &[f64], p: f64) -> Option<f64> {
    let place = p * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[5.0], 0.95), Some(5.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_summary_is_in_order() {
        let summary = Summary::of(&[3.0, 1.0, 2.0, 10.0, 4.0]).unwrap();
        assert_eq!((summary.runs, summary.min, summary.median), (5, 1.0, 3.0));
        assert!((summary.p95 - 8.8).abs() < 1e-12);
        assert!((summary.spread() - 2.0 / 3.0).abs() < 1e-12);
    }
}
