//! The taps of a phase as a window that moves down the rows of an input tile, see [`Kernels::sum_of_window`].

use crate::compute::Compute;
use crate::geometry::{AxisPhases, Phase};
use crate::kernel::{Edges, Kernels, MOST_COLUMNS, Results, WINDOW_ROWS, Window};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;

/// The taps of a phase, in rows that a window moves over.
pub(crate) struct WindowTaps {
    /// The offsets of one row's taps.
    columns: Vec<usize>,
    /// For each row of taps, where the weights of its columns are among a channel's.
    weights: Vec<usize>,
    /// Whether they follow each other.
    in_order: bool,
    /// Elements from what a row of taps reads to what the next one does.
    of_taps: usize,
    /// Elements from what a row of results reads to what the next one does.
    of_results: usize,
    /// How far apart results are that read the same rows of the source.
    interleaved: usize,
    /// Rows of the source from one of those to the next, and columns of it from a result to the next.
    steps: (usize, usize),
    /// Where the input itself is read, what of it exists: for each of the interleaved windows.
    edges: Vec<Edges>,
}

/// Whether windows can read the input itself: several rows of taps as far apart, and few columns.
pub(crate) fn reads_in_place(y: &AxisPhases, x: &AxisPhases) -> bool {
    let step = y.in_step;
    let moves = |phase: &Phase| {
        let rows = phase.taps.len();
        rows > 1 && WINDOW_ROWS.contains(&rows) && spread(phase, (step, step)).is_some()
    };
    (1..=2).contains(&step)
        && x.in_step == step
        && y.phases.iter().all(moves)
        && x.phases.iter().all(|phase| phase.taps.len() <= MOST_COLUMNS)
}

/// How far apart the rows that a phase's taps read are, where that is the same for all and a window can move over them.
fn spread(of_rows: &Phase, steps: (usize, usize)) -> Option<i64> {
    let shifts = of_rows.taps.iter().map(|tap| tap.shift).sorted();
    let spread = shifts.tuple_windows().map(|(a, b)| b - a).dedup().exactly_one().ok()?;
    (steps == (1, 1) || (steps == (2, 2) && spread == 1)).then_some(spread)
}

impl WindowTaps {
    /// `taps` are the `(offset in the input_tiles, index in a channel's weights)` of a phase, by its taps on the outer axes, then on the row axis (those of
    /// `of_rows`), then on the column axis (`columns`). `pitch` is that of the input tiles, `steps` their rows and columns from a grid position to the next.
    pub fn new(
        taps: &[(usize, usize)],
        of_rows: &Phase,
        columns: usize,
        pitch: usize,
        steps: (usize, usize),
    ) -> WindowTaps {
        let shift = |i: usize| of_rows.taps[i].shift;
        let rows: Vec<usize> = (0..of_rows.taps.len()).sorted_by_key(|i| shift(*i)).collect();
        let row = |of: usize| {
            let of_outer = taps.chunks(rows.len() * columns);
            of_outer.flat_map(move |taps| &taps[of * columns..(of + 1) * columns])
        };
        // one input tile has what all rows of taps read, as far apart as they are
        let moves = |spread: &i64| {
            let first = || row(rows[0]).map(|tap| tap.0);
            let far = |k: usize| k * *spread as usize * pitch;
            rows.iter().enumerate().all(|(k, of)| row(*of).zip(first()).all(|(tap, first)| tap.0 == first + far(k)))
        };
        let (columns, weights, apart) = match spread(of_rows, steps).filter(moves) {
            Some(spread) if WINDOW_ROWS.contains(&rows.len()) => {
                let weights = rows.iter().flat_map(|of| row(*of)).map(|tap| tap.1).collect();
                (row(rows[0]).map(|tap| tap.0).collect(), weights, spread as usize)
            }
            _ => (taps.iter().map(|tap| tap.0).collect(), taps.iter().map(|tap| tap.1).collect::<Vec<_>>(), steps.0),
        };
        let in_order = weights.windows(2).all(|pair| pair[1] == pair[0] + 1);
        WindowTaps {
            columns,
            weights,
            in_order,
            of_taps: apart * pitch,
            of_results: steps.0 * pitch,
            interleaved: (apart / steps.0).max(1),
            steps: ((steps.0 / apart).max(1), steps.1),
            edges: vec![],
        }
    }

    /// As [`WindowTaps::new`], for the taps of one phase of each axis that read the input, where [`reads_in_place`] says that they can. The first has the
    /// weight of index `first`; there are `results` rows of results.
    pub fn in_place(
        (y, of_rows): (&AxisPhases, &Phase),
        (x, of_columns): (&AxisPhases, &Phase),
        first: usize,
        results: usize,
    ) -> WindowTaps {
        let least = |phase: &Phase| phase.taps.iter().map(|tap| tap.shift).min().unwrap_or(0);
        // row and column that the first row and column of results read by the lowest taps: negative in the padding
        let lowest = (least(of_rows), least(of_columns));
        let taps = of_rows.taps.iter().cartesian_product(&of_columns.taps).enumerate().map(|(i, (row, column))| {
            let offset = (row.shift - lowest.0) * x.input as i64 + column.shift - lowest.1;
            (offset as usize, first + i)
        });
        let taps: Vec<_> = taps.collect();
        let mut window = WindowTaps::new(&taps, of_rows, of_columns.taps.len(), x.input, (y.in_step, x.in_step));
        let edges =
            (0..window.interleaved.min(results)).map(|first| window.edges(y.input, x.input, lowest, first, results));
        window.edges = edges.collect();
        window
    }

    /// What of a plane exists amid what window `first` of the interleaved ones reads for all of so many rows of results.
    fn edges(&self, height: usize, width: usize, lowest: (i64, i64), first: usize, results: usize) -> Edges {
        let spread = (self.of_taps / width) as i64;
        let row = lowest.0 + (first * self.of_results / width) as i64;
        let rows = (results - first).div_ceil(self.interleaved);
        let read = ((rows - 1) * self.steps.0 + self.weights.len() / self.columns.len()) as i64;
        let begin = crate::spec::ceil_div(-row, spread).clamp(0, read);
        let end = crate::spec::ceil_div(height as i64 - row, spread).clamp(begin, read);
        Edges {
            first: (row * width as i64 + lowest.1) as isize,
            rows: (begin as usize, end as usize),
            column: lowest.1 as isize,
            width,
        }
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
        for first in 0..self.interleaved.min(results.rows) {
            let rows = match self.interleaved {
                1 => results.rows,
                of => (results.rows - first).div_ceil(of),
            };
            let edges = self.edges.get(first).copied();
            let source = if edges.is_some() { source } else { &source[first * self.of_results..] };
            let Self { of_taps: pitch, steps, ref columns, .. } = *self;
            let window = Window { source, pitch, steps, columns, weights, bias, edges };
            let of_window = Results { rows, width: results.width, step: self.interleaved * results.step };
            kernels.sum_of_window(&window, &of_window, &mut to[first * results.step..]);
        }
    }
}
