//! The taps of a phase as a window that moves down the rows of an input tile: see
//! [`Kernels::sum_of_window`].

use crate::compute::Compute;
use crate::geometry::{AxisPhases, Phase};
use crate::kernel::{Bounds, Edges, KernelSizes, Kernels, MOST_COLUMNS, Results, WINDOW_ROWS, Window};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;

/// The taps of a phase, grouped in rows so that a window can move over them.
pub(crate) struct WindowTaps {
    /// The offsets of the taps of one row.
    columns: Vec<usize>,
    /// Indices of the weights within a channel's weights, row by row.
    weights: Vec<usize>,
    /// Whether the weights are contiguous.
    in_order: bool,
    /// The offset in the source from one row of taps to the next.
    tap_pitch: usize,
    /// The offset in the source from one row of results to the next.
    result_pitch: usize,
    /// The number of interleaved windows.
    ///
    /// Window `i` computes the rows of results `i`, `i + interleaved`, and so on. These read the
    /// same rows of the source.
    interleaved: usize,
    /// Steps in the source within one window: rows from a row of results to the next, and columns
    /// from a result to the next.
    steps: (usize, usize),
    /// The part of each window that lies inside the input, if windows read the input itself. One
    /// entry per interleaved window.
    edges: Vec<Edges>,
}

/// Bytes of a plane that windows read well with loads of parts that are slower than others. Strips of rows of a larger one
/// are copied: the copy streams.
const SMALL_PLANE_BYTES: usize = 16 << 10;

/// The rows and columns of adjacent taps whose weights stay in registers.
const SQUARE: usize = 3;

/// Whether windows can read the input itself.
///
/// A single row of taps must read the row of its results, so that all its rows exist. Several rows of taps must be equally
/// spaced and have few columns. Without masked loads, these need a single column, whose vectors do not leave the rows, or a
/// small plane, adjacent taps, and loads of parts of vectors.
pub(crate) fn reads_in_place(y: &AxisPhases, x: &AxisPhases, sizes: &KernelSizes) -> bool {
    let step = y.in_step;
    let own_row = |phase: &Phase| phase.taps.iter().map(|tap| tap.shift).eq([0]);
    if (step, y.out_step) == (1, 1) && y.input == y.output && y.phases.iter().all(own_row) {
        return (1..=2).contains(&x.in_step);
    }
    let keeps_rows = step == 1 && x.input == x.output && x.input >= sizes.lanes;
    let is_column = own_row;
    let moves = |phase: &Phase| {
        let rows = phase.taps.len();
        rows > 1 && WINDOW_ROWS.contains(&rows) && spread(phase, (step, step)).is_some()
    };
    let is_adjacent = |phase: &Phase| phase.taps.len() == SQUARE && spread(phase, (1, 1)) == Some(1);
    let are_squares = y.phases.iter().chain(&x.phases).all(is_adjacent);
    let is_small = y.input.saturating_mul(x.input) <= SMALL_PLANE_BYTES / size_of::<f32>();
    let loads_parts = sizes.loads_parts && are_squares && is_small;
    (1..=2).contains(&step)
        && x.in_step == step
        && y.phases.iter().all(moves)
        && x.phases.iter().all(|phase| phase.taps.len() <= MOST_COLUMNS)
        && (sizes.masks || loads_parts || keeps_rows && x.phases.iter().all(is_column))
}

/// The distance between the rows that a phase's taps read.
///
/// None if the rows are not equally spaced, or if a window can't move by such a distance.
fn spread(of_rows: &Phase, steps: (usize, usize)) -> Option<i64> {
    let shifts = of_rows.taps.iter().map(|tap| tap.shift).sorted();
    let spread = shifts.tuple_windows().map(|(a, b)| b - a).dedup().exactly_one().ok()?;
    (steps == (1, 1) || (steps == (2, 2) && spread == 1)).then_some(spread)
}

impl WindowTaps {
    /// Builds the window of a phase's taps in input tiles.
    ///
    /// `taps` holds `(offset in the input tiles, index in a channel's weights)`. Its order is outer
    /// axes, then the row axis (the taps of `of_rows`), then the column axis (`columns` taps).
    /// `pitch` is the pitch of the input tiles. `steps` are the rows and columns from a grid
    /// position to the next.
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
        // A window can move only if one input tile holds the source of all rows of taps, at equal
        // distances.
        let moves = |spread: &i64| {
            let first = || row(rows[0]).map(|tap| tap.0);
            let far = |k: usize| k * *spread as usize * pitch;
            rows.iter().enumerate().all(|(k, of)| row(*of).zip(first()).all(|(tap, first)| tap.0 == first + far(k)))
        };
        let (columns, weights, spread) = match spread(of_rows, steps).filter(moves) {
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
            tap_pitch: spread * pitch,
            result_pitch: steps.0 * pitch,
            interleaved: (spread / steps.0).max(1),
            steps: ((steps.0 / spread).max(1), steps.1),
            edges: vec![],
        }
    }

    /// Builds the window of one phase per axis whose taps read the input itself, where
    /// [`reads_in_place`] allows it.
    ///
    /// `first` is the weight index of the first tap. `results` is the number of rows of results.
    pub fn in_place(
        (y, of_rows): (&AxisPhases, &Phase),
        (x, of_columns): (&AxisPhases, &Phase),
        first: usize,
        results: usize,
    ) -> WindowTaps {
        let least = |phase: &Phase| phase.taps.iter().map(|tap| tap.shift).min().unwrap_or(0);
        // Row and column that the lowest taps read for the first result. Negative in the padding.
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

    /// The part of a plane that one of the interleaved windows, `first`, reads for its share of
    /// `results` rows.
    fn edges(&self, height: usize, width: usize, lowest: (i64, i64), first: usize, results: usize) -> Edges {
        let spread = (self.tap_pitch / width) as i64;
        let row = lowest.0 + (first * self.result_pitch / width) as i64;
        let rows = (results - first).div_ceil(self.interleaved);
        let read = ((rows - 1) * self.steps.0 + self.weights.len() / self.columns.len()) as i64;
        let begin = crate::ranges::ceil_div(-row, spread).clamp(0, read);
        let end = crate::ranges::ceil_div(height as i64 - row, spread).clamp(begin, read);
        Edges {
            first: (row * width as i64 + lowest.1) as isize,
            rows: (begin as usize, end as usize),
            column: lowest.1 as isize,
            width,
        }
    }

    /// Computes the sums of all rows of results, clamped to the bounds. `weights` are all weights of a channel.
    pub fn sum<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        source: &[T],
        weights: &[T],
        (bias, bounds): (T, Option<Bounds<T>>),
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
            let source = if edges.is_some() { source } else { &source[first * self.result_pitch..] };
            let Self { tap_pitch: pitch, steps, ref columns, .. } = *self;
            let window = Window { source, pitch, steps, columns, weights, bias, bounds, edges };
            let of_window = Results { rows, width: results.width, step: self.interleaved * results.step };
            kernels.sum_of_window(&window, &of_window, &mut to[first * results.step..]);
        }
    }
}
