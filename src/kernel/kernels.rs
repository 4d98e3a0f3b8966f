//! The kernels of one instruction set and compute type, behind functions that check their
//! contracts.

use crate::activation::Activation;
use crate::compute::Compute;
use crate::kernel::bounds::Bounds;
use crate::kernel::col2im_row::{Col2imRows, Col2imRun};
use crate::kernel::depthwise_pixels::{PixelSums, Spaced};
use crate::kernel::depthwise_plane::PlaneTaps;
use crate::kernel::depthwise_taps::{MOST_PHASES, WeightedTap};
use crate::kernel::depthwise_window::{Edges, MOST_COLUMNS, Results, Window};
use crate::kernel::extent::{product, reach, rounded_up};
use crate::kernel::fourier::FOURIER_VALUES;
use crate::kernel::gemm_tile::{ChannelTile, PositionTile, RowTile};
use crate::kernel::normalise::Normalisation;
use crate::kernel::pad_copy::{Rows, SplitRows};
use crate::kernel::pool::{self, PoolAxis};
use crate::kernel::resample::TwoTaps;
use crate::kernel::tile_transforms::{TileKind, TileTransforms};
use crate::kernel::transpose::{MOST_STEP, PixelStarts};
use crate::kernel::winograd::MOST_TAPS;

type AccumulateRows<T> = unsafe fn(rows: &Col2imRows<T>, biases: &[T], to: &mut [&mut [T]]);
type Strided<T> = unsafe fn(from: &[T], step: usize, to: &mut [T]);
type Interleave<T> = unsafe fn(&[&[T]], &mut [T]);
type AddPixels<T> = unsafe fn(from: &[T], size: (usize, usize), step: usize, bounds: Option<Bounds<T>>, to: &mut [T]);
type ActivatePixels<T> = unsafe fn(Activation, size: (usize, usize), step: usize, run: &mut [T]);
type NormaliseColumns<T> = unsafe fn(of: Normalisation<T>, from: &[T], stride: usize, to: &mut [&mut [T]]);
type ClampPixels<T> = unsafe fn(Bounds<T>, size: (usize, usize), step: usize, run: &mut [T]);
type PixelsToRows<T> = unsafe fn(
    from: &[T],
    starts: &[usize],
    to: &mut [&mut [T]],
    first: usize,
    bounds: Option<Bounds<T>>,
    streamed: bool,
);
type CopyPixels<T> = unsafe fn(
    from: &[T],
    from_step: usize,
    size: (usize, usize),
    to: (&mut [T], usize),
    bounds: Option<Bounds<T>>,
    streamed: bool,
);
type PoolPlane<T> = unsafe fn(axes: [&PoolAxis; 2], from: &[T], to: &mut [T], row: &mut [T]);
type SumOfPixels<T> = unsafe fn(sums: &PixelSums<T>, to: &mut [T]);
type RowsToPixels<T> = unsafe fn(from: &[T], from_step: usize, size: (usize, usize), to: &mut [T], to_step: usize);
type SumOfWindow<T> = unsafe fn(window: &Window<T>, results: &Results, to: &mut [T]);
type SumOfPlane<T> =
    unsafe fn(taps: &PlaneTaps, source: &[T], weights: &[T], bias_and_bounds: (T, Option<Bounds<T>>), to: &mut [T]);
type SumOfTaps<T> =
    unsafe fn(source: &[T], phases: &[Vec<WeightedTap<T>>], bias_and_bounds: (T, Option<Bounds<T>>), to: &mut [T]);

/// The numbers of tap rows with a window kernel, which reads each row of the source once.
pub(crate) const WINDOW_ROWS: [usize; 4] = [1, 3, 5, 7];

/// The transforms of tiles that take fewer products than sums tap by tap.
pub(super) struct Transforms<T: 'static> {
    /// By taps along rows, then along columns.
    pub two_results: [[TileTransforms<T>; MOST_TAPS]; MOST_TAPS],
    /// Of two taps along columns, along rows, and along both.
    pub three_results: [TileTransforms<T>; 3],
    pub cyclic: TileTransforms<T>,
    /// For the numbers of values in [`FOURIER_VALUES`].
    pub fourier: [TileTransforms<T>; FOURIER_VALUES.len()],
}

/// All kernels of one instruction set for one compute type.
///
/// A reference to one is proof that the CPU has the instruction set.
pub(crate) struct Kernels<T: 'static> {
    /// Lanes per vector.
    pub lanes: usize,
    /// Whether there are masked loads, which sums over planes need.
    pub masks: bool,
    /// Whether there are loads of some lanes, which windows need whose vectors read beyond the edges of rows.
    pub loads_parts: bool,
    /// Number of vector registers.
    pub(super) registers: usize,
    /// Whether there are instructions for lane gathers.
    pub permutes_lanes: bool,
    /// By ascending `mr`, then `nv`. For each `mr`, every `nv` up to its largest is present.
    pub position_tiles: &'static [PositionTile<T>],
    /// For one, two and four phases, each by ascending `mr`, then `nv`. For each `mr`, every `nv`
    /// up to its largest is present.
    pub row_tiles: [&'static [RowTile<T>]; 3],
    /// By ascending number of positions, then `nv`.
    pub channel_tiles: &'static [ChannelTile<T>],
    /// None for types whose sums are no operands of products.
    pub(super) transforms: Option<Transforms<T>>,
    pub(super) pixels_to_rows: PixelsToRows<T>,
    pub(super) rows_to_pixels: RowsToPixels<T>,
    pub(super) copy_pixels: CopyPixels<T>,
    pub(super) indexed_rows_to_pixels: unsafe fn(from: &[T], starts: &[usize], count: usize, to: &mut [T], step: usize),
    /// For two, four, eight and sixteen rows.
    pub(super) interleave: [Interleave<T>; 4],
    /// For steps of two, of up to four, and of up to eight.
    pub(super) strided: [Strided<T>; 3],
    pub(super) padded_rows: unsafe fn(from: &[T], rows: &Rows, to: &mut [T], pitch: usize),
    pub(super) split_rows: unsafe fn(from: &[T], rows: &SplitRows, to: [&mut [T]; 2], pitch: usize),
    /// For one phase, for two, for up to four, and for up to eight.
    pub(super) sum_of_taps: [SumOfTaps<T>; 4],
    /// For the numbers of tap rows in [`WINDOW_ROWS`].
    pub(super) sum_of_window: [SumOfWindow<T>; WINDOW_ROWS.len()],
    /// For steps of one, and any number of tap rows above one.
    pub(super) sum_of_row_pairs: SumOfWindow<T>,
    pub(super) sum_of_plane: SumOfPlane<T>,
    pub(super) sum_of_pixels: [SumOfPixels<T>; 2],
    pub(super) add: AddPixels<T>,
    pub(super) clamp_pixels: ClampPixels<T>,
    pub(super) affine: unsafe fn(T, T, &mut [T]),
    pub(super) leak: unsafe fn(T, &mut [T]),
    /// The largest values of windows, and their sums.
    pub(super) pool_plane: [PoolPlane<T>; 2],
    pub(super) softmax: unsafe fn(log: bool, from: &[T], stride: usize, to: &mut [&mut [T]]),
    pub(super) normalise_columns: NormaliseColumns<T>,
    pub(super) normalise_row: unsafe fn(of: Normalisation<T>, from: &[T], to: &mut [T]),
    pub(super) blend: unsafe fn(from: [&[T]; 2], weights: [T; 2], to: &mut [T]),
    pub(super) resample_row: unsafe fn(from: &[T], taps: &[TwoTaps<T>], to: &mut [T]),
    /// For one, two and four phases, of which the last may be missing.
    pub(super) accumulate_rows: [AccumulateRows<T>; 3],
    pub(super) activate: ActivatePixels<T>,
}

impl<T: Compute> Kernels<T> {
    /// The position tile of exactly `mr` × `nv`.
    pub fn position_tile(&self, mr: usize, nv: usize) -> Option<&'static PositionTile<T>> {
        self.position_tiles.iter().find(|t| (t.mr(), t.nv()) == (mr, nv))
    }

    /// The row tiles for a number of phases. Empty if phases are not interleaved in registers.
    pub fn row_tiles(&self, phases: usize) -> &'static [RowTile<T>] {
        match phases {
            1 | 2 | 4 => self.row_tiles[phases.ilog2() as usize],
            _ => &[],
        }
    }

    /// The transforms of a kind of tiles.
    ///
    /// # Panics
    /// The type has no transforms, or there are no such tiles. Two results are of one to three taps along each axis, and three of
    /// two along one axis or both. A Fourier tile has 16 or 32 values and at most as many taps.
    pub fn tile_transforms(&self, kind: TileKind) -> TileTransforms<T> {
        let Some(transforms) = &self.transforms else { panic!("tiles of elements of several integers") };
        match kind {
            TileKind::Winograd { results: 2, rows, columns } => transforms.two_results[rows - 1][columns - 1],
            TileKind::Winograd { rows, columns, .. } => match (rows, columns) {
                (1, 2) => transforms.three_results[0],
                (2, 1) => transforms.three_results[1],
                (2, 2) => transforms.three_results[2],
                _ => panic!("three results of {rows}x{columns} taps"),
            },
            TileKind::Cyclic => transforms.cyclic,
            TileKind::Fourier { values, taps } => {
                assert!((1..=values).contains(&taps));
                let at = FOURIER_VALUES.iter().position(|of| *of == values).expect("one of the numbers of values");
                TileTransforms { kind, ..transforms.fourier[at] }
            }
        }
    }

    /// `to[j][first + i] = from[starts[i] + j]`, clamped to the bounds, for at least as many starts as
    /// lanes and at most as many rows as lanes.
    ///
    /// With `streamed`, aligned vectors are stored past the caches.
    ///
    /// # Panics
    /// A slice is shorter than the range that is read or written, or the number of starts or rows
    /// is not allowed.
    pub fn pixels_to_rows(
        &self,
        from: &[T],
        starts: PixelStarts,
        to: &mut [&mut [T]],
        first: usize,
        bounds: Option<Bounds<T>>,
        streamed: bool,
    ) {
        assert!(starts.largest().is_none_or(|start| reach([(start, 1), (self.lanes, 1)]) <= from.len()));
        let starts = starts.as_slice();
        assert!(starts.len() >= self.lanes && to.len() <= self.lanes);
        assert!(to.iter().all(|row| row.len().checked_sub(first).is_some_and(|room| starts.len() <= room)));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.pixels_to_rows)(from, starts, to, first, bounds, streamed) }
    }

    /// `to[r·to_step + c] = from[c·from_step + r]`. Columns after the last one, up to a whole
    /// vector, are overwritten with unspecified values.
    ///
    /// # Panics
    /// `from` has less than a vector for a column, or a slice is shorter than the range that is
    /// read or written.
    pub fn rows_to_pixels(
        &self,
        from: &[T],
        from_step: usize,
        (rows, columns): (usize, usize),
        to: &mut [T],
        to_step: usize,
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(reach([(columns - 1, from_step), (rows.max(self.lanes), 1)]) <= from.len());
        assert!(reach([(rows - 1, to_step), (rounded_up(columns, self.lanes), 1)]) <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.rows_to_pixels)(from, from_step, (rows, columns), to, to_step) }
    }

    /// `to[i·to_step + j] = from[i·from_step + j]`, clamped to the bounds, for `count` pixels `i` of `size`
    /// elements, which do not overlap.
    ///
    /// Elements between the pixels keep their values. With `streamed`, pixels of aligned whole
    /// vectors are stored past the caches.
    ///
    /// # Panics
    /// A slice is too short, or a step is smaller than a pixel.
    pub fn copy_pixels(
        &self,
        from: &[T],
        from_step: usize,
        (count, size): (usize, usize),
        (to, to_step): (&mut [T], usize),
        bounds: Option<Bounds<T>>,
        streamed: bool,
    ) {
        if !(has_pixels((count, size), from_step, from.len()) && has_pixels((count, size), to_step, to.len())) {
            return;
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The rest of the
        // contract is asserted by `has_pixels`.
        unsafe { (self.copy_pixels)(from, from_step, (count, size), (to, to_step), bounds, streamed) }
    }

    /// `to[i·step + j] = from[starts[j] + i]` for `count` positions `i` and at most as many starts
    /// as lanes.
    ///
    /// Elements between the pixels keep their values.
    ///
    /// # Panics
    /// After some start, `from` has fewer than `count` elements rounded up to whole vectors, or
    /// `to` is too short.
    pub fn indexed_rows_to_pixels(&self, from: &[T], starts: &[usize], count: usize, to: &mut [T], step: usize) {
        let (Some(last), Some(furthest)) = (count.checked_sub(1), starts.iter().max()) else { return };
        assert!(starts.len() <= self.lanes);
        assert!(reach([(*furthest, 1), (rounded_up(count, self.lanes), 1)]) <= from.len());
        assert!(reach([(last, step), (starts.len(), 1)]) <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.indexed_rows_to_pixels)(from, starts, count, to, step) }
    }

    /// `to[i·S + r] = from[r][i]` for any number `S` of rows.
    ///
    /// # Panics
    /// A row has fewer than `to.len() / S` elements, or `S` does not divide the length of `to`.
    pub fn interleave(&self, from: &[&[T]], to: &mut [T]) {
        let step = from.len();
        assert!(to.len().is_multiple_of(step) && from.iter().all(|row| to.len() / step <= row.len()));
        match step {
            1 => to.copy_from_slice(&from[0][..to.len()]),
            // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion
            // above is the rest of the contract.
            2..=16 => unsafe { self.interleave[step.next_power_of_two().ilog2() as usize - 1](from, to) },
            _ => {
                for (r, row) in from.iter().enumerate() {
                    for (to, from) in to.iter_mut().skip(r).step_by(step).zip(*row) {
                        *to = *from;
                    }
                }
            }
        }
    }

    /// `to[i] = from[i·step]`.
    ///
    /// # Panics
    /// `from` is too short.
    pub fn strided(&self, from: &[T], step: usize, to: &mut [T]) {
        assert!(to.is_empty() || reach([(to.len() - 1, step), (1, 1)]) <= from.len());
        match step {
            1 => to.copy_from_slice(&from[..to.len()]),
            // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion above is the rest of
            // the contract.
            2..=MOST_STEP => unsafe { self.strided[step.next_power_of_two().ilog2() as usize - 1](from, step, to) },
            _ => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from),
        }
    }

    /// `to[r·pitch + before + i] = from[r·step + i]` for each row `r`. All other elements of `to`'s
    /// rows are zero.
    ///
    /// # Panics
    /// `from` is shorter than its rows, `to` is not exactly as long as its rows, or a row is
    /// shorter than the elements written to it.
    pub fn padded_rows(&self, from: &[T], rows: &Rows, to: &mut [T], pitch: usize) {
        let Some(last) = rows.count.checked_sub(1) else { return };
        assert!(reach([(last, rows.step), (rows.width, 1)]) <= from.len() && product([rows.count, pitch]) == to.len());
        assert!(reach([(rows.before, 1), (rows.width, 1)]) <= pitch);
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.padded_rows)(from, rows, to, pitch) }
    }

    /// `to[s][r·pitch + before[s] + i] = from[r·step + 2·i + s]` for `s` in `0..2` and each row
    /// `r`. All other elements of `to`'s rows are zero.
    ///
    /// # Panics
    /// `from` is shorter than its rows, a slice of `to` is not exactly as long as its rows, or a
    /// row is shorter than the elements written to it.
    pub fn split_rows(&self, from: &[T], rows: &SplitRows, to: [&mut [T]; 2], pitch: usize) {
        let Some(last) = rows.count.checked_sub(1) else { return };
        for (s, to) in to.iter().enumerate() {
            assert!(reach([(rows.before[s], 1), (rows.widths[s], 1)]) <= pitch);
            assert!(product([rows.count, pitch]) == to.len());
        }
        if rows.widths == [0, 0] {
            // Nothing is read, so the source is not checked.
            return to.into_iter().for_each(|to| to.fill(T::ZERO));
        }
        for (s, width) in rows.widths.into_iter().enumerate() {
            assert!(width == 0 || reach([(last, rows.step), (width - 1, 2), (s, 1)]) < from.len());
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { (self.split_rows)(from, rows, to, pitch) }
    }

    /// `to[i·S + j] = bias + Σ weight·source[i + offset]` over the taps of phase `j`, for each `i`
    /// in `0..to.len() / S` and any number `S` of phases, clamped to the bounds.
    ///
    /// # Panics
    /// An offset plus the number of positions, rounded up to whole vectors, is beyond the source's
    /// end.
    pub fn sum_of_taps(
        &self,
        source: &[T],
        phases: &[Vec<WeightedTap<T>>],
        (bias, bounds): (T, Option<Bounds<T>>),
        to: &mut [T],
    ) {
        let count = to.len() / phases.len();
        assert!(to.len().is_multiple_of(phases.len()));
        let furthest = phases.iter().flatten().map(|t| t.offset).max();
        assert!(
            furthest.is_none_or(|offset| { reach([(offset, 1), (rounded_up(count, self.lanes), 1)]) <= source.len() })
        );
        match phases.len() {
            s if s <= MOST_PHASES && (s.is_power_of_two() || s.next_power_of_two() <= self.lanes) => {
                // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are the
                // rest of the contract.
                unsafe { self.sum_of_taps[s.next_power_of_two().ilog2() as usize](source, phases, (bias, bounds), to) }
            }
            s => {
                // Chunks that fit the stack, each a whole number of vectors.
                let mut row = [bias; 256];
                for (chunk, to) in to.chunks_mut(s * row.len()).enumerate() {
                    let row = &mut row[..to.len() / s];
                    for (j, taps) in phases.iter().enumerate() {
                        let source = source.get(chunk * 256..).unwrap_or(&[]);
                        // SAFETY: as above, with one phase. The source still has all elements after
                        // the chunk.
                        unsafe { self.sum_of_taps[0](source, std::slice::from_ref(taps), (bias, bounds), row) };
                        to.iter_mut().skip(j).step_by(s).zip(&*row).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
    }

    /// `to[r·step + i] = bias + Σ weight[k][c]·source[(r·down + k)·pitch + columns[c] + i·every]`
    /// for each row `r` of results and each `i` in `0..width`.
    ///
    /// The window's steps are `(down, every)`. Elements between rows keep their values. Results are
    /// clamped to the window's bounds.
    ///
    /// # Panics
    /// - The number of tap rows is not in [`WINDOW_ROWS`], or there is no kernel for the steps.
    /// - For some row and tap, the source has fewer than `every · max(width, lanes)` elements.
    /// - `to` does not hold all rows.
    /// - With [`Edges`]: the source does not hold the existing elements, or there are several tap rows of more than
    ///   [`MOST_COLUMNS`] tap columns, or one tap row and not all rows exist.
    /// - With [`Edges`], several tap rows, and without loads of some lanes: the steps are two, there are several tap
    ///   columns, or vectors read columns that do not exist.
    pub fn sum_of_window(&self, window: &Window<T>, results: &Results, to: &mut [T]) {
        let Some(last) = results.rows.checked_sub(1) else { return };
        let (taps, columns) = (window.weights.len(), window.columns.len().max(1));
        let rows = taps.div_ceil(columns).max(1);
        assert!(rows * window.columns.len() == taps && results.step >= results.width);
        let (down, every) = window.steps;
        assert!((1..=2).contains(&every) && down == if rows == 1 { 1 } else { every });
        assert!(reach([(last, results.step), (results.width, 1)]) <= to.len());
        let below = reach([(last, down), (rows, 1)]);
        let furthest = window.columns.iter().max().map_or(0, |column| *column);
        let across = reach([(furthest, 1), (every, results.width.max(self.lanes))]);
        // Whether no vector reads a column that does not exist, which pairs of rows require.
        let mut keeps_columns = window.edges.is_none();
        if let Some(Edges { first, rows: (begin, end), column, width }) = window.edges {
            assert!(end <= below && if rows == 1 { (begin, end) == (0, below) } else { columns <= MOST_COLUMNS });
            // indices before the source are negative
            assert!(across.saturating_add(column.unsigned_abs()) <= isize::MAX as usize);
            keeps_columns = columns == 1 && down == 1 && column >= 0 && column as usize + across <= width;
            assert!(self.loads_parts || rows == 1 || keeps_columns);
            if begin < end {
                let row =
                    |at: usize| (at as i128).saturating_mul(window.pitch as i128) + first as i128 - column as i128;
                assert!(row(begin) >= 0 && row(end - 1).saturating_add(width as i128) <= window.source.len() as i128);
            }
        } else if !window.columns.is_empty() {
            assert!(reach([(below - 1, window.pitch), (across, 1)]) <= window.source.len());
        }
        let kernel = WINDOW_ROWS.iter().position(|of| *of == rows);
        let Some(kernel) = kernel else { panic!("no kernel has {rows} rows of taps") };
        // Few registers hold only one vector for each of seven rows of sums, and a single column has few
        // products between its loads.
        let few_sums = rows == 7 && self.registers <= 16 || rows > 1 && window.columns.len() == 1;
        let in_pairs = few_sums && down == 1 && keeps_columns && !self.masks;
        let kernel = if in_pairs { self.sum_of_row_pairs } else { self.sum_of_window[kernel] };
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract. Without loads of some lanes, of several tap rows only single columns with steps of
        // one have edges, and they are summed in pairs.
        unsafe { kernel(window, results, to) }
    }

    /// `to[i] = bias + Σ weight[t]·source[i + offset[t]]` for each result `i`, over the taps that
    /// read inside the source for it, clamped to the bounds.
    ///
    /// # Panics
    /// There are no masked loads, the taps were made for another number of lanes, or a slice does not
    /// have the length that they were made for.
    pub fn sum_of_plane(
        &self,
        taps: &PlaneTaps,
        source: &[T],
        weights: &[T],
        bias_and_bounds: (T, Option<Bounds<T>>),
        to: &mut [T],
    ) {
        assert!(self.masks && taps.fit(self.lanes, source, weights, to));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion above
        // is the rest of the contract.
        unsafe { (self.sum_of_plane)(taps, source, weights, bias_and_bounds, to) }
    }

    /// `to[t + c] = bias[c] + Σ weight[c]·source[f + offset + c]` over the taps, for all positions of `sums` and every
    /// channel `c`, clamped to the bounds of `sums`. A position begins at `f` in the source and at `t` in the results.
    ///
    /// With [`LaneGather`](crate::kernel::LaneGather), the sum is also over the input channels of
    /// the group of `c`. A tap then has one weight for each of them.
    ///
    /// # Panics
    /// The weights, the bias or the elements read for a position are not whole vectors, `to` is too
    /// short, or the lane gathers were made for another number of lanes or channels.
    pub fn sum_of_pixels(&self, sums: &PixelSums<T>, to: &mut [T]) {
        let [rows, positions] = sums.positions;
        if rows.count == 0 || positions.count == 0 || sums.channels == 0 {
            return;
        }
        let reach_by = |steps: fn(&Spaced) -> usize, pixel: usize| {
            reach([(rows.count - 1, steps(&rows)), (positions.count - 1, steps(&positions)), (pixel, 1)])
        };
        let (weights, pixel_reach) = sums.reach(self.lanes);
        assert!(sums.taps.fit(sums.source, reach_by(|spaced| spaced.from, pixel_reach), sums.weights, weights));
        assert!(sums.bias.len() >= rounded_up(sums.channels, self.lanes));
        assert!(reach_by(|spaced| spaced.to, sums.channels) <= to.len());
        assert!(sums.gather.is_none_or(|gather| gather.fit(self.lanes, sums.channels)));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
        // are the rest of the contract.
        unsafe { self.sum_of_pixels[usize::from(sums.gather.is_some())](sums, to) }
    }

    /// `to[i] += from[i]`.
    pub fn add(&self, from: &[T], to: &mut [T]) {
        let len = from.len().min(to.len());
        self.add_pixels(from, (1, len), len, None, to)
    }

    /// Adds `count` pixels of `size` elements, `step` apart in both slices, and applies bounds to the sums.
    ///
    /// Elements between the pixels keep their values.
    ///
    /// # Panics
    /// A slice is too short, or the step is smaller than a pixel.
    pub fn add_pixels(&self, from: &[T], size: (usize, usize), step: usize, bounds: Option<Bounds<T>>, to: &mut [T]) {
        if !has_pixels(size, step, from.len().min(to.len())) {
            return;
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        unsafe { (self.add)(from, size, step, bounds, to) }
    }

    /// Applies bounds to `count` pixels of `size` elements, `step` apart.
    ///
    /// Elements between the pixels keep their values.
    ///
    /// # Panics
    /// The slice is too short, or the step is smaller than a pixel.
    pub fn clamp_pixels(&self, bounds: Bounds<T>, size: (usize, usize), step: usize, run: &mut [T]) {
        if !has_pixels(size, step, run.len()) {
            return;
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        unsafe { (self.clamp_pixels)(bounds, size, step, run) }
    }

    /// `run[i] = factor·run[i] + term`.
    pub fn affine(&self, factor: T, term: T, run: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        unsafe { (self.affine)(factor, term, run) }
    }

    /// `run[i]` if it is not negative, else `slope·run[i]`.
    pub fn leak(&self, slope: T, run: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        unsafe { (self.leak)(slope, run) }
    }

    /// Pools the axes, given outermost first: the sum of each window if `sum`, else its largest value.
    /// For each axis but the last, `rows` has room for the inner axes of one position.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn pool(&self, sum: bool, axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        let plane = |axes: [&PoolAxis; 2], from: &[T], to: &mut [T], row: &mut [T]| unsafe {
            self.pool_plane[usize::from(sum)](axes, from, to, row)
        };
        pool::pool(&plane, axes, from, to, rows)
    }

    /// The softmax of each column, or its logarithm if `log`. Value `r` of column `c` is
    /// `from[r·stride + c]`, and its result is written to `to[r][c]`. Does nothing to integers.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn softmax(&self, log: bool, from: &[T], stride: usize, to: &mut [&mut [T]]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.softmax)(log, from, stride, to) }
    }

    /// Normalises each column. Value `r` of column `c` is `from[r·stride + c]`, and its result is written
    /// to `to[r][c]`. Not for integers.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn normalise_columns(&self, of: Normalisation<T>, from: &[T], stride: usize, to: &mut [&mut [T]]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.normalise_columns)(of, from, stride, to) }
    }

    /// Normalises a row. Not for integers.
    pub fn normalise_row(&self, of: Normalisation<T>, from: &[T], to: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.normalise_row)(of, from, to) }
    }

    /// `to[i] = weights[0]·from[0][i] + weights[1]·from[1][i]`.
    pub fn blend(&self, from: [&[T]; 2], weights: [T; 2], to: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.blend)(from, weights, to) }
    }

    /// `to[i]` is the sum of the two values of `from` that `taps[i]` names.
    ///
    /// # Panics
    /// A position is outside of `from`.
    pub fn resample_row(&self, from: &[T], taps: &[TwoTaps<T>], to: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.resample_row)(from, taps, to) }
    }

    /// Whether [`Kernels::accumulate_rows`] takes so many phases.
    pub fn accumulates(&self, phases: usize) -> bool {
        let interleaved = phases.next_power_of_two();
        interleaved <= 4 && (phases == interleaved || interleaved <= self.lanes)
    }

    /// `to[c][i·P + p] = biases[c] + Σ from[c·pitch + base + run.from + i - run.to.start]` over all bases and, for
    /// each, over the runs of phase `p` of `P` whose range contains `i`.
    ///
    /// # Panics
    /// A run ends outside of the products, there is not a row for each bias, or these kernels do not take so many
    /// phases.
    pub fn accumulate_rows(&self, rows: &Col2imRows<T>, biases: &[T], to: &mut [&mut [T]]) {
        let (furthest, phases) = (*rows.bases.iter().max().unwrap_or(&0), rows.phases.len());
        assert!(phases > 0 && self.accumulates(phases) && biases.len() == to.len());
        let Some(last) = to.len().checked_sub(1) else { return };
        let fits = |run: &Col2imRun| {
            reach([(last, rows.pitch), (furthest, 1), (run.from, 1), (run.to.len(), 1)]) <= rows.from.len()
        };
        assert!(rows.phases.iter().flatten().all(fits));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are the rest of the
        // contract.
        unsafe { self.accumulate_rows[phases.next_power_of_two().ilog2() as usize](rows, biases, to) }
    }

    /// Applies an element-wise function to a run.
    pub fn activate(&self, activation: Activation, run: &mut [T]) {
        self.activate_pixels(activation, (1, run.len()), run.len(), run)
    }

    /// Applies an element-wise function to `count` pixels of `size` elements, `step` apart.
    ///
    /// Elements between the pixels keep their values.
    ///
    /// # Panics
    /// The slice is too short, or the step is smaller than a pixel.
    pub fn activate_pixels(&self, activation: Activation, size: (usize, usize), step: usize, run: &mut [T]) {
        if !has_pixels(size, step, run.len()) {
            return;
        }
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        unsafe { (self.activate)(activation, size, step, run) }
    }
}

/// Returns whether there are pixels: `count` of `size` elements, `step` apart.
///
/// # Panics
/// A slice of `len` elements does not hold them, or they overlap.
fn has_pixels((count, size): (usize, usize), step: usize, len: usize) -> bool {
    let Some(last) = count.checked_sub(1).filter(|_| size > 0) else { return false };
    assert!(size <= step && reach([(last, step), (size, 1)]) <= len);
    true
}
