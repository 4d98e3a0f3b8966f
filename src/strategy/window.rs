//! The taps of a phase as a window that moves down the rows of a sheet, see [`Kernels::sum_of_window`].

use crate::element::Compute;
use crate::geometry::Phase;
use crate::kernel::{Kernels, Results, WINDOW_ROWS, Window};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;

/// The taps of a phase, in rows that a window moves over.
pub(super) struct WindowTaps {
    /// The offsets of one row's taps.
    columns: Vec<usize>,
    /// For each row of taps, where the weights of its columns are among a channel's.
    weights: Vec<usize>,
    /// Whether they follow each other.
    in_order: bool,
    /// Elements from what a row of taps reads to what the next one does, and from what a row of results reads to what the next one does.
    pitches: (usize, usize),
    /// Columns of the sheets from a grid position to the next.
    every: usize,
}

impl WindowTaps {
    /// `taps` are the `(offset in the sheets, index in a channel's weights)` of a phase, by its taps on the outer axes, then on the row axis (those of
    /// `of_rows`), then on the column axis (`columns`). `pitch` is that of the sheets, `steps` their rows and columns from a grid position to the next.
    pub fn new(
        taps: &[(usize, usize)],
        of_rows: &Phase,
        columns: usize,
        pitch: usize,
        steps: (usize, usize),
    ) -> WindowTaps {
        let shift = |i: usize| of_rows.taps[i].shift;
        let rows: Vec<usize> = (0..of_rows.taps.len()).sorted_by_key(|i| shift(*i)).collect();
        let spread = rows.iter().tuple_windows().map(|(a, b)| shift(*b) - shift(*a)).dedup().exactly_one();
        let spread = spread.ok().filter(|spread| steps == (1, 1) || (steps == (2, 2) && *spread == 1));
        let row = |of: usize| {
            let of_outer = taps.chunks(rows.len() * columns);
            of_outer.flat_map(move |taps| &taps[of * columns..(of + 1) * columns])
        };
        // one sheet has what all rows of taps read, as far apart as they are
        let moves = |spread: &i64| {
            let first = || row(rows[0]).map(|tap| tap.0);
            let far = |k: usize| k * *spread as usize * pitch;
            rows.iter().enumerate().all(|(k, of)| row(*of).zip(first()).all(|(tap, first)| tap.0 == first + far(k)))
        };
        let (columns, weights, apart) = match spread.filter(moves) {
            Some(spread) if WINDOW_ROWS.contains(&rows.len()) => {
                let weights = rows.iter().flat_map(|of| row(*of)).map(|tap| tap.1).collect();
                (row(rows[0]).map(|tap| tap.0).collect(), weights, spread as usize)
            }
            _ => (taps.iter().map(|tap| tap.0).collect(), taps.iter().map(|tap| tap.1).collect::<Vec<_>>(), steps.0),
        };
        let in_order = weights.windows(2).all(|pair| pair[1] == pair[0] + 1);
        WindowTaps { columns, weights, in_order, pitches: (apart * pitch, steps.0 * pitch), every: steps.1 }
    }

    /// The sums of all rows of results; `weights` are all of a channel's.
    pub fn sum<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        source: &[T],
        weights: &[T],
        bias: T,
        results: &Results,
        to: &mut [T],
    ) {
        let mut sorted: SmallVec<[T; 64]> = SmallVec::new();
        let weights = match (self.in_order, self.weights.first()) {
            (true, Some(first)) => &weights[*first..first + self.weights.len()],
            _ => {
                sorted.extend(self.weights.iter().map(|at| weights[*at]));
                &sorted
            }
        };
        let (of_taps, of_results) = self.pitches;
        // results that read the same rows of the source are so far apart
        let interleaved = (of_taps / of_results).max(1);
        let steps = ((of_results / of_taps).max(1), self.every);
        for first in 0..interleaved.min(results.rows) {
            let source = &source[first * of_results..];
            let window = Window { source, pitch: of_taps, steps, columns: &self.columns, weights, bias };
            let rows = (results.rows - first).div_ceil(interleaved);
            let of_window = Results { rows, width: results.width, step: interleaved * results.step };
            kernels.sum_of_window(&window, &of_window, &mut to[first * results.step..]);
        }
    }
}
