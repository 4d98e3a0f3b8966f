//! The kernels of one instruction set and compute type.

use crate::activation::Activation;
use crate::compute::Compute;
use crate::kernel::amx;
use crate::kernel::amx::MatrixKernels;
use crate::kernel::col2im_row::{Col2imRun, accumulate_row};
use crate::kernel::depthwise_pixels::{PixelSums, sum_of_pixels};
use crate::kernel::depthwise_plane::{PlaneTaps, sum_of_plane};
use crate::kernel::depthwise_taps::{WeightedTap, sum_of_taps};
use crate::kernel::depthwise_window::{Edges, MOST_COLUMNS, Results, Window, window};
use crate::kernel::elementwise;
use crate::kernel::extent::{product, reach, rounded_up};
use crate::kernel::gemm_tile::{
    ChannelTile, PhaseOperand, PositionTile, RowTile, StridedRuns, channel_tile, position_tile, room_for_halves,
    row_tile,
};
use crate::kernel::pad_copy::{Rows, SplitRows, padded_rows, split_rows};
use crate::kernel::pool::{PoolAxis, pool};
use crate::kernel::resample::{self, TwoTaps};
use crate::kernel::sizes::KernelSizes;
use crate::kernel::softmax;
use crate::kernel::transpose;
use crate::kernel::winograd::{
    CYCLIC_RESULTS, MOST_TAPS, PointStrides, TileData, TileTransforms, WINOGRAD_RESULTS, transform_cyclic_data,
    transform_cyclic_filter, transform_cyclic_products, transform_data, transform_filter, transform_products,
};
use crate::memory::scratch::{self, Scratch};
use crate::simd::isa::Isa;
use crate::simd::vector::*;
use tract_core::internal::DatumType;

type AccumulateRow<T> = unsafe fn(from: &[T], bases: &[usize], runs: &[Col2imRun], bias: T, to: &mut [T]);
type Interleave<T> = unsafe fn(&[&[T]], &mut [T]);
type PixelsToRows<T> = unsafe fn(from: &[T], starts: &[usize], to: &mut [&mut [T]], first: usize, streamed: bool);
type CopyPixels<T> =
    unsafe fn(from: &[T], from_step: usize, size: (usize, usize), to: &mut [T], to_step: usize, streamed: bool);
type Pool<T> = unsafe fn(axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]);
type SumOfPixels<T> = unsafe fn(sums: &PixelSums<T>, to: &mut [T], to_step: usize, count: usize);
type RowsToPixels<T> = unsafe fn(from: &[T], from_step: usize, size: (usize, usize), to: &mut [T], to_step: usize);
type SumOfWindow<T> = unsafe fn(window: &Window<T>, results: &Results, to: &mut [T]);
type SumOfPlane<T> = unsafe fn(taps: &PlaneTaps, source: &[T], weights: &[T], bias: T, to: &mut [T]);
type SumOfTaps<T> = unsafe fn(source: &[T], phases: &[Vec<WeightedTap<T>>], bias: T, to: &mut [T]);

/// The numbers of tap rows with a window kernel, which reads each row of the source once.
pub(crate) const WINDOW_ROWS: [usize; 4] = [1, 3, 5, 7];

/// All kernels of one instruction set for one compute type.
///
/// A reference to one is proof that the CPU has the instruction set.
pub(crate) struct Kernels<T: 'static> {
    /// Lanes per vector.
    pub lanes: usize,
    /// Whether windows with edges are as fast as those without. This needs masked loads.
    pub masks: bool,
    /// Whether there are instructions for lane gathers.
    pub permutes_lanes: bool,
    /// By ascending `mr`, then `nv`. For each `mr`, every `nv` up to its largest is present.
    pub position_tiles: &'static [PositionTile<T>],
    /// For one, two and four phases, each by ascending `mr`, then `nv`. For each `mr`, every `nv`
    /// up to its largest is present.
    pub row_tiles: [&'static [RowTile<T>]; 3],
    /// By ascending number of positions, then `nv`.
    pub channel_tiles: &'static [ChannelTile<T>],
    /// By taps along rows, then along columns.
    tile_transforms: [[TileTransforms<T>; MOST_TAPS]; MOST_TAPS],
    cyclic_transforms: TileTransforms<T>,
    pixels_to_rows: PixelsToRows<T>,
    rows_to_pixels: RowsToPixels<T>,
    copy_pixels: CopyPixels<T>,
    indexed_rows_to_pixels: unsafe fn(from: &[T], starts: &[usize], count: usize, to: &mut [T], step: usize),
    /// For two, four, eight and sixteen rows.
    interleave: [Interleave<T>; 4],
    strided2: unsafe fn(&[T], &mut [T]),
    padded_rows: unsafe fn(from: &[T], rows: &Rows, to: &mut [T], pitch: usize),
    split_rows: unsafe fn(from: &[T], rows: &SplitRows, to: [&mut [T]; 2], pitch: usize),
    /// For one, two, four and eight phases.
    sum_of_taps: [SumOfTaps<T>; 4],
    /// For the numbers of tap rows in [`WINDOW_ROWS`].
    sum_of_window: [SumOfWindow<T>; WINDOW_ROWS.len()],
    sum_of_plane: SumOfPlane<T>,
    sum_of_pixels: [SumOfPixels<T>; 2],
    add: unsafe fn(&[T], &mut [T]),
    affine: unsafe fn(T, T, &mut [T]),
    leak: unsafe fn(T, &mut [T]),
    pool: Pool<T>,
    softmax: unsafe fn(log: bool, from: &[T], stride: usize, to: &mut [&mut [T]]),
    blend: unsafe fn(from: [&[T]; 2], weights: [T; 2], to: &mut [T]),
    resample_row: unsafe fn(from: &[T], taps: &[TwoTaps<T>], to: &mut [T]),
    accumulate_row: AccumulateRow<T>,
    activate: unsafe fn(Activation, &mut [T]),
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

    /// The transforms of tiles of `rows` × `columns` taps, one to three each, and of `results` along an axis
    /// of several taps: [`WINOGRAD_RESULTS`], or [`CYCLIC_RESULTS`] for three taps along both axes.
    pub fn tile_transforms(&self, (rows, columns): (usize, usize), results: usize) -> &TileTransforms<T> {
        match results {
            CYCLIC_RESULTS => &self.cyclic_transforms,
            _ => &self.tile_transforms[rows - 1][columns - 1],
        }
    }

    /// `to[j][first + i] = from[starts[i] + j]`, for at least as many starts as lanes and at most
    /// as many rows as lanes.
    ///
    /// With `streamed`, aligned vectors are stored past the caches.
    ///
    /// # Panics
    /// A slice is shorter than the range that is read or written, or the number of starts or rows
    /// is not allowed.
    pub fn pixels_to_rows(&self, from: &[T], starts: &[usize], to: &mut [&mut [T]], first: usize, streamed: bool) {
        assert!(starts.len() >= self.lanes && to.len() <= self.lanes);
        assert!(starts.iter().max().is_none_or(|start| reach([(*start, 1), (self.lanes, 1)]) <= from.len()));
        assert!(to.iter().all(|row| row.len().checked_sub(first).is_some_and(|room| starts.len() <= room)));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { (self.pixels_to_rows)(from, starts, to, first, streamed) }
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
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { (self.rows_to_pixels)(from, from_step, (rows, columns), to, to_step) }
    }

    /// `to[i·to_step + j] = from[i·from_step + j]` for `count` pixels `i` of `size` elements, which
    /// do not overlap.
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
        to: &mut [T],
        to_step: usize,
        streamed: bool,
    ) {
        let Some(last) = count.checked_sub(1).filter(|_| size > 0) else { return };
        assert!(size <= from_step && size <= to_step);
        let fits = |step: usize, len: usize| reach([(last, step), (size, 1)]) <= len;
        assert!(fits(from_step, from.len()) && fits(to_step, to.len()));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { (self.copy_pixels)(from, from_step, (count, size), to, to_step, streamed) }
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
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
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
            // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion above
            // is the rest of the contract.
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
        match step {
            1 => to.copy_from_slice(&from[..to.len()]),
            // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
            // safe.
            2 => unsafe { (self.strided2)(from, to) },
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
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
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
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { (self.split_rows)(from, rows, to, pitch) }
    }

    /// `to[i·S + j] = bias + Σ weight·source[i + offset]` over the taps of phase `j`, for each `i`
    /// in `0..to.len() / S` and any number `S` of phases.
    ///
    /// # Panics
    /// An offset plus the number of positions, rounded up to whole vectors, is beyond the source's
    /// end.
    pub fn sum_of_taps(&self, source: &[T], phases: &[Vec<WeightedTap<T>>], bias: T, to: &mut [T]) {
        let count = to.len() / phases.len();
        assert!(to.len().is_multiple_of(phases.len()));
        let furthest = phases.iter().flatten().map(|t| t.offset).max();
        assert!(
            furthest.is_none_or(|offset| { reach([(offset, 1), (rounded_up(count, self.lanes), 1)]) <= source.len() })
        );
        match phases.len() {
            // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above
            // are the rest of the contract.
            s @ (1 | 2 | 4 | 8) => unsafe { self.sum_of_taps[s.ilog2() as usize](source, phases, bias, to) },
            s => {
                // Chunks that fit the stack, each a whole number of vectors.
                let mut row = [bias; 256];
                for (piece, to) in to.chunks_mut(s * row.len()).enumerate() {
                    let row = &mut row[..to.len() / s];
                    for (j, taps) in phases.iter().enumerate() {
                        let source = source.get(piece * 256..).unwrap_or(&[]);
                        // SAFETY: as above, with one phase. The source still has all elements after the
                        // chunk.
                        unsafe { self.sum_of_taps[0](source, std::slice::from_ref(taps), bias, row) };
                        to.iter_mut().skip(j).step_by(s).zip(&*row).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
    }

    /// `to[r·step + i] = bias + Σ weight[k][c]·source[(r·down + k)·pitch + columns[c] + i·every]`
    /// for each row `r` of results and each `i` in `0..width`.
    ///
    /// The window's steps are `(down, every)`. Elements between rows keep their values.
    ///
    /// # Panics
    /// - The number of tap rows is not in [`WINDOW_ROWS`], or there is no kernel for the steps.
    /// - For some row and tap, the source has fewer than `every · max(width, lanes)` elements.
    /// - `to` does not hold all rows.
    /// - With [`Edges`]: there is one tap row, there are more than [`MOST_COLUMNS`] tap columns, or
    ///   the source does not hold the existing elements.
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
        if let Some(Edges { first, rows: (begin, end), column, width }) = window.edges {
            assert!(rows > 1 && window.columns.len() <= MOST_COLUMNS && end <= below);
            // indices before the source are negative
            assert!(across.saturating_add(column.unsigned_abs()) <= isize::MAX as usize);
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
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { self.sum_of_window[kernel](window, results, to) }
    }

    /// `to[i] = bias + Σ weight[t]·source[i + offset[t]]` for each result `i`, over the taps that
    /// read inside the source for it.
    ///
    /// # Panics
    /// The taps were made for another number of lanes, or a slice does not have the length that
    /// they were made for.
    pub fn sum_of_plane(&self, taps: &PlaneTaps, source: &[T], weights: &[T], bias: T, to: &mut [T]) {
        assert!(taps.fit(self.lanes, source, weights, to));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion above is
        // the rest of the contract.
        unsafe { (self.sum_of_plane)(taps, source, weights, bias, to) }
    }

    /// `to[p·to_step + c] = bias[c] + Σ weight[c]·source[p·step + offset + c]` over the taps, for
    /// `count` positions `p` and every channel `c`.
    ///
    /// With [`LaneGather`](crate::kernel::LaneGather), the sum is also over the input channels of
    /// the group of `c`. A tap then has one weight for each of them.
    ///
    /// # Panics
    /// The weights, the bias or the elements read for a position are not whole vectors, `to` is too
    /// short, or the lane gathers were made for another number of lanes or channels.
    pub fn sum_of_pixels(&self, sums: &PixelSums<T>, to: &mut [T], to_step: usize, count: usize) {
        if count == 0 || sums.channels == 0 {
            return;
        }
        let (weights, pixel_reach) = sums.reach(self.lanes);
        let read = reach([(count - 1, sums.step), (pixel_reach, 1)]);
        assert!(sums.taps.fit(sums.source, read, sums.weights, weights));
        assert!(sums.bias.len() >= rounded_up(sums.channels, self.lanes));
        assert!(reach([(count - 1, to_step), (sums.channels, 1)]) <= to.len());
        assert!(sums.gather.is_none_or(|gather| gather.fit(self.lanes, sums.channels)));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { self.sum_of_pixels[usize::from(sums.gather.is_some())](sums, to, to_step, count) }
    }

    /// `to[i] += from[i]`.
    pub fn add(&self, from: &[T], to: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.add)(from, to) }
    }

    /// `run[i] = factor·run[i] + term`.
    pub fn affine(&self, factor: T, term: T, run: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.affine)(factor, term, run) }
    }

    /// `run[i]` if it is not negative, else `slope·run[i]`.
    pub fn leak(&self, slope: T, run: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.leak)(slope, run) }
    }

    /// Pools a plane: the largest value of each window. For each axis but the last, `rows` has room
    /// for the inner axes of one position.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn pool(&self, axes: &[PoolAxis], from: &[T], to: &mut [T], rows: &mut [&mut [T]]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.pool)(axes, from, to, rows) }
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

    /// `to[i] = bias + Σ from[base + run.from + i - run.to.start]` over all bases and, for each,
    /// over the runs whose range contains `i`.
    ///
    /// # Panics
    /// A run ends outside of a slice.
    pub fn accumulate_row(&self, from: &[T], bases: &[usize], runs: &[Col2imRun], bias: T, to: &mut [T]) {
        let furthest = bases.iter().max().unwrap_or(&0);
        let fits = |run: &Col2imRun| {
            reach([(*furthest, 1), (run.from, 1), (run.to.len(), 1)]) <= from.len() && run.to.end <= to.len()
        };
        assert!(runs.iter().all(fits));
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion above is
        // the rest of the contract.
        unsafe { (self.accumulate_row)(from, bases, runs, bias, to) }
    }

    /// Applies an element-wise function to a run.
    pub fn activate(&self, activation: Activation, run: &mut [T]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.activate)(activation, run) }
    }
}

/// Defines the static [`Kernels`] of a vector type. `$feature` are the attributes that its
/// functions are compiled with.
macro_rules! kernels {
    ($name:ident, $vector:ty, $lane:ty, [$(#[$feature:meta])*], tiles $tiles:ident, row_tiles $row_tiles:ident, channel_tiles $channel_tiles:ident, windows $windows:tt) => {
        mod $name {
            use super::*;

            $(#[$feature])*
            unsafe fn position<const MR: usize, const NV: usize>(
                panel: &[$lane],
                source: &crate::kernel::gemm_tile::Source<$lane>,
                start: crate::kernel::gemm_tile::Start<$lane>,
                out: &mut [$lane],
                out_stride: usize,
            ) {
                // SAFETY: only called through a tile: see `PositionTile::run`.
                unsafe { position_tile::<$vector, MR, NV>(panel, source, start, out, out_stride) }
            }

            #[allow(dead_code, reason = "some types have no row tiles")]
            $(#[$feature])*
            unsafe fn row<const S: usize, const MR: usize, const NV: usize>(
                phases: &[PhaseOperand<$lane>],
                source: &crate::kernel::gemm_tile::Source<$lane>,
                bias: &[$lane],
                channels: &mut [&mut [$lane]],
                runs: &StridedRuns,
            ) {
                // SAFETY: only called through a tile: see `RowTile::run`.
                unsafe { row_tile::<$vector, S, MR, NV>(phases, source, bias, channels, runs) }
            }

            $(#[$feature])*
            unsafe fn channel<const P: usize, const NV: usize>(
                panel: &[$lane],
                source: &crate::kernel::gemm_tile::Source<$lane>,
                position_stride: usize,
                start: crate::kernel::gemm_tile::Start<$lane>,
                out: &mut [$lane],
                out_stride: usize,
            ) {
                // SAFETY: only called through a tile: see `ChannelTile::run`.
                unsafe { channel_tile::<$vector, P, NV>(panel, source, position_stride, start, out, out_stride) }
            }

            $(#[$feature])*
            unsafe fn data<const RY: usize, const RX: usize>(
                data: &TileData<$lane>,
                to: &mut [$lane],
                strides: PointStrides,
            ) {
                // SAFETY: only called by `TileTransforms::data`, which checks the contract.
                unsafe { transform_data::<$vector, RY, RX>(data, to, strides) }
            }

            $(#[$feature])*
            unsafe fn filter<const RY: usize, const RX: usize>(taps: &[&[$lane]], to: &mut [$lane], point: usize) {
                // SAFETY: only called by `TileTransforms::filter`, which checks the contract.
                unsafe { transform_filter::<$vector, RY, RX>(taps, to, point) }
            }

            $(#[$feature])*
            unsafe fn products<const RY: usize, const RX: usize>(
                products: &[$lane],
                strides: PointStrides,
                start: crate::kernel::gemm_tile::Start<$lane>,
                channels: usize,
                places: &[usize],
                to: &mut [$lane],
            ) -> bool {
                // SAFETY: only called by `TileTransforms::products`, which checks the contract.
                unsafe { transform_products::<$vector, RY, RX>(products, strides, start, channels, places, to) }
            }

            $(#[$feature])*
            unsafe fn cyclic_data(data: &TileData<$lane>, to: &mut [$lane], strides: PointStrides) {
                // SAFETY: only called by `TileTransforms::data`, which checks the contract.
                unsafe { transform_cyclic_data::<$vector>(data, to, strides) }
            }

            $(#[$feature])*
            unsafe fn cyclic_filter(taps: &[&[$lane]], to: &mut [$lane], point: usize) {
                // SAFETY: only called by `TileTransforms::filter`, which checks the contract.
                unsafe { transform_cyclic_filter::<$vector>(taps, to, point) }
            }

            $(#[$feature])*
            unsafe fn cyclic_products(
                products: &[$lane],
                strides: PointStrides,
                start: crate::kernel::gemm_tile::Start<$lane>,
                channels: usize,
                places: &[usize],
                to: &mut [$lane],
            ) -> bool {
                // SAFETY: only called by `TileTransforms::products`, which checks the contract.
                unsafe { transform_cyclic_products::<$vector>(products, strides, start, channels, places, to) }
            }

            $(#[$feature])*
            unsafe fn pixels_to_rows(
                from: &[$lane],
                starts: &[usize],
                to: &mut [&mut [$lane]],
                first: usize,
                streamed: bool,
            ) {
                // SAFETY: only called by `Kernels::pixels_to_rows`, which checks the contract.
                unsafe { transpose::pixels_to_rows::<$vector, LANES>(from, starts, to, first, streamed) }
            }

            $(#[$feature])*
            unsafe fn rows_to_pixels(
                from: &[$lane],
                from_step: usize,
                size: (usize, usize),
                to: &mut [$lane],
                to_step: usize,
            ) {
                // SAFETY: only called by `Kernels::rows_to_pixels`, which checks the contract.
                unsafe { transpose::rows_to_pixels::<$vector, LANES>(from, from_step, size, to, to_step) }
            }

            $(#[$feature])*
            unsafe fn copy_pixels(
                from: &[$lane],
                from_step: usize,
                size: (usize, usize),
                to: &mut [$lane],
                to_step: usize,
                streamed: bool,
            ) {
                // SAFETY: only called by `Kernels::copy_pixels`, which checks the contract.
                unsafe { transpose::copy_pixels::<$vector>(from, from_step, size, to, to_step, streamed) }
            }

            $(#[$feature])*
            unsafe fn indexed_rows_to_pixels(
                from: &[$lane],
                starts: &[usize],
                count: usize,
                to: &mut [$lane],
                step: usize,
            ) {
                // SAFETY: only called by `Kernels::indexed_rows_to_pixels`, which checks the
                // contract.
                unsafe { transpose::indexed_rows_to_pixels::<$vector, LANES>(from, starts, count, to, step) }
            }

            $(#[$feature])*
            unsafe fn interleaved<const S: usize>(from: &[&[$lane]], to: &mut [$lane]) {
                // SAFETY: only called by `Kernels::interleave`, which checks the contract.
                unsafe { transpose::interleaved::<$vector, S>(from, to) }
            }

            $(#[$feature])*
            unsafe fn strided2(from: &[$lane], to: &mut [$lane]) {
                elementwise::strided::<$lane, 2>(from, to)
            }

            $(#[$feature])*
            unsafe fn padded(from: &[$lane], rows: &Rows, to: &mut [$lane], pitch: usize) {
                // SAFETY: only called by `Kernels::padded_rows`, which checks the contract.
                unsafe { padded_rows::<$vector>(from, rows, to, pitch) }
            }

            $(#[$feature])*
            unsafe fn split(from: &[$lane], rows: &SplitRows, to: [&mut [$lane]; 2], pitch: usize) {
                // SAFETY: only called by `Kernels::split_rows`, which checks the contract.
                unsafe { split_rows::<$vector>(from, rows, to, pitch) }
            }

            $(#[$feature])*
            unsafe fn taps<const S: usize, const U: usize>(
                source: &[$lane],
                phases: &[Vec<WeightedTap<$lane>>],
                bias: $lane,
                to: &mut [$lane],
            ) {
                // SAFETY: only called by `Kernels::sum_of_taps`, which checks the contract.
                unsafe { sum_of_taps::<$vector, S, U>(source, phases, bias, to) }
            }

            $(#[$feature])*
            unsafe fn of_window<const K: usize, const U: usize>(
                of: &Window<$lane>,
                results: &Results,
                to: &mut [$lane],
            ) {
                // SAFETY: only called by `Kernels::sum_of_window`, which checks the contract.
                unsafe { window::<$vector, K, U>(of, results, to) }
            }

            $(#[$feature])*
            unsafe fn plane(taps: &PlaneTaps, source: &[$lane], weights: &[$lane], bias: $lane, to: &mut [$lane]) {
                // SAFETY: only called by `Kernels::sum_of_plane`, which checks the contract.
                unsafe { sum_of_plane::<$vector>(taps, source, weights, bias, to) }
            }

            $(#[$feature])*
            unsafe fn pixel_sums<const GATHERED: bool>(sums: &PixelSums<$lane>, to: &mut [$lane], to_step: usize, count: usize) {
                // SAFETY: only called by `Kernels::sum_of_pixels`, which checks the contract.
                unsafe { sum_of_pixels::<$vector, GATHERED>(sums, to, to_step, count) }
            }

            $(#[$feature])*
            unsafe fn add(from: &[$lane], to: &mut [$lane]) {
                elementwise::add(from, to)
            }

            $(#[$feature])*
            unsafe fn affine(factor: $lane, term: $lane, run: &mut [$lane]) {
                elementwise::affine(factor, term, run)
            }

            $(#[$feature])*
            unsafe fn leak(slope: $lane, run: &mut [$lane]) {
                elementwise::leak(slope, run)
            }

            $(#[$feature])*
            unsafe fn pooled(axes: &[PoolAxis], from: &[$lane], to: &mut [$lane], rows: &mut [&mut [$lane]]) {
                pool(axes, from, to, rows)
            }

            $(#[$feature])*
            unsafe fn softmax(log: bool, from: &[$lane], stride: usize, to: &mut [&mut [$lane]]) {
                softmax::softmax::<$lane, { <$vector as Vector>::FUSES }>(log, from, stride, to)
            }

            $(#[$feature])*
            unsafe fn blend(from: [&[$lane]; 2], weights: [$lane; 2], to: &mut [$lane]) {
                resample::blend(from, weights, to)
            }

            $(#[$feature])*
            unsafe fn resample_row(from: &[$lane], taps: &[TwoTaps<$lane>], to: &mut [$lane]) {
                resample::resample_row(from, taps, to)
            }

            $(#[$feature])*
            unsafe fn accumulated_row(from: &[$lane], bases: &[usize], runs: &[Col2imRun], bias: $lane, to: &mut [$lane]) {
                // SAFETY: only called by `Kernels::accumulate_row`, which checks the contract.
                unsafe { accumulate_row::<$vector>(from, bases, runs, bias, to) }
            }

            $(#[$feature])*
            unsafe fn activate(activation: Activation, run: &mut [$lane]) {
                <$lane as Compute>::activate::<{ <$vector as Vector>::FUSES }>(activation, run)
            }

            const LANES: usize = <$vector as Vector>::LANES;
            const _: () = assert!(LANES.is_power_of_two() && LANES <= MOST_LANES);

            const fn position_of<const MR: usize, const NV: usize>() -> PositionTile<$lane> {
                // SAFETY: the entry has this size. The tile is reachable only through `KERNELS`, which
                // are only handed out if the CPU has the instruction set.
                unsafe { PositionTile::new(MR, NV, NV * LANES, position::<MR, NV>) }
            }

            #[allow(dead_code, reason = "some types have no row tiles")]
            const fn row_of<const S: usize, const MR: usize, const NV: usize>() -> RowTile<$lane> {
                let halves = room_for_halves::<$vector>(MR, NV);
                // SAFETY: as in `position_of`.
                unsafe { RowTile::new(S, (MR, NV), NV * LANES, halves, row::<S, MR, NV>) }
            }

            const fn channel_of<const P: usize, const NV: usize>() -> ChannelTile<$lane> {
                // SAFETY: as in `position_of`.
                unsafe { ChannelTile::new(P, NV, NV * LANES, channel::<P, NV>) }
            }

            const fn transforms_of<const RY: usize, const RX: usize>() -> TileTransforms<$lane> {
                TileTransforms {
                    rows: RY,
                    columns: RX,
                    results: WINOGRAD_RESULTS,
                    lanes: LANES,
                    data: data::<RY, RX>,
                    filter: filter::<RY, RX>,
                    products: products::<RY, RX>,
                }
            }

            pub(crate) static KERNELS: Kernels<$lane> = Kernels {
                lanes: LANES,
                masks: <$vector>::MASKS,
                permutes_lanes: <$vector>::PERMUTES_LANES,
                position_tiles: $tiles!(position_of),
                row_tiles: [$row_tiles!(row_of, 1), $row_tiles!(row_of, 2), $row_tiles!(row_of, 4)],
                channel_tiles: $channel_tiles!(channel_of),
                tile_transforms: [
                    [transforms_of::<1, 1>(), transforms_of::<1, 2>(), transforms_of::<1, 3>()],
                    [transforms_of::<2, 1>(), transforms_of::<2, 2>(), transforms_of::<2, 3>()],
                    [transforms_of::<3, 1>(), transforms_of::<3, 2>(), transforms_of::<3, 3>()],
                ],
                cyclic_transforms: TileTransforms {
                    rows: MOST_TAPS,
                    columns: MOST_TAPS,
                    results: CYCLIC_RESULTS,
                    lanes: LANES,
                    data: cyclic_data,
                    filter: cyclic_filter,
                    products: cyclic_products,
                },
                pixels_to_rows,
                rows_to_pixels,
                copy_pixels,
                indexed_rows_to_pixels,
                interleave: [interleaved::<2>, interleaved::<4>, interleaved::<8>, interleaved::<16>],
                strided2,
                padded_rows: padded,
                split_rows: split,
                sum_of_taps: [taps::<1, 8>, taps::<2, 4>, taps::<4, 2>, taps::<8, 2>],
                sum_of_window: windows_of!(of_window, $windows),
                sum_of_plane: plane,
                sum_of_pixels: [pixel_sums::<false>, pixel_sums::<true>],
                add,
                affine,
                leak,
                pool: pooled,
                softmax,
                blend,
                resample_row,
                accumulate_row: accumulated_row,
                activate,
            };
        }
    };
}

macro_rules! table {
    ($of:ident, $phases:literal, $(($a:literal, $b:literal))*) => { &[$($of::<$phases, $a, $b>()),*] };
    ($of:ident, $(($a:literal, $b:literal))*) => { &[$($of::<$a, $b>()),*] };
}

/// With 32 registers: at most 24 accumulators. The other registers hold operands.
macro_rules! tiles_of_32_registers {
    ($of:ident) => {
        table!(
            $of,
            (1, 1)(1, 2)(1, 3)(1, 4)(1, 5)(1, 6)(2, 1)(2, 2)(2, 3)(2, 4)(2, 5)(2, 6)(3, 1)(3, 2)(3, 3)(3, 4)(3, 5)(
                3, 6
            )(4, 1)(4, 2)(4, 3)(4, 4)(4, 5)(4, 6)(6, 1)(6, 2)(6, 3)(6, 4)(8, 1)(8, 2)(8, 3)(12, 1)(12, 2)(16, 1)(
                24, 1
            )
        )
    };
}

/// With 16 registers: at most 12 accumulators. Not 4×3, as its three vectors and one scalar leave no register free, and the
/// compiler then keeps an accumulator in memory.
macro_rules! tiles_of_16_registers {
    ($of:ident) => {
        table!(
            $of,
            (1, 1)(1, 2)(1, 3)(1, 4)(1, 5)(1, 6)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(3, 3)(4, 1)(4, 2)(6, 1)(6, 2)(
                8, 1
            )(12, 1)
        )
    };
}

macro_rules! row_tiles_of_32_registers {
    ($of:ident, 1) => {
        table!(
            $of,
            1,
            (1, 1)(1, 2)(1, 3)(1, 4)(1, 5)(1, 6)(2, 1)(2, 2)(2, 3)(2, 4)(2, 5)(2, 6)(3, 1)(3, 2)(3, 3)(3, 4)(3, 5)(
                3, 6
            )(4, 1)(4, 2)(4, 3)(4, 4)(4, 5)(4, 6)(6, 1)(6, 2)(6, 3)(6, 4)(8, 1)(8, 2)(8, 3)(12, 1)(12, 2)
        )
    };
    ($of:ident, 2) => {
        table!(
            $of,
            2,
            (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(3, 3)(3, 4)(4, 1)(4, 2)(4, 3)(6, 1)(6, 2)(
                8, 1
            )(12, 1)
        )
    };
    ($of:ident, 4) => {
        table!($of, 4, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(3, 1)(3, 2)(4, 1)(6, 1))
    };
}

macro_rules! row_tiles_of_16_registers {
    ($of:ident, 1) => {
        table!(
            $of,
            1,
            (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(3, 3)(4, 1)(4, 2)(6, 1)(6, 2)(8, 1)(12, 1)
        )
    };
    ($of:ident, 2) => {
        table!($of, 2, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(3, 1)(3, 2)(4, 1)(6, 1))
    };
    ($of:ident, 4) => {
        table!($of, 4, (1, 1)(1, 2)(1, 3)(2, 1)(3, 1))
    };
}

/// Of f64, which few models have: enough for each number of output channels, to keep the program small.
macro_rules! few_row_tiles {
    ($of:ident, 1) => {
        table!($of, 1, (1, 1)(1, 2)(2, 1)(2, 2)(4, 1)(4, 2)(8, 1))
    };
    ($of:ident, 2) => {
        table!($of, 2, (1, 1)(2, 1)(4, 1))
    };
    ($of:ident, 4) => {
        table!($of, 4, (1, 1)(2, 1))
    };
}

/// Of the types and instruction sets of which the speed hardly matters.
macro_rules! no_row_tiles {
    ($of:ident, $phases:literal) => {
        &[]
    };
}

macro_rules! windows_of {
    ($of:ident, [$($rows:literal by $vectors:literal),+]) => { [$($of::<$rows, $vectors>),+] };
}

macro_rules! channel_tiles_of_32_registers {
    ($of:ident) => {
        table!(
            $of,
            (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(4, 1)(4, 2)(4, 3)(4, 4)(6, 1)(6, 2)(6, 3)(6, 4)(7, 1)(
                7, 2
            )(7, 3)(8, 1)(8, 2)(8, 3)(12, 1)(12, 2)(14, 2)
        )
    };
}

macro_rules! channel_tiles_of_16_registers {
    ($of:ident) => {
        table!($of, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(4, 1)(4, 2)(6, 1)(6, 2))
    };
}

kernels!(portable_f32, Lanes<f32, 4>, f32, [], tiles tiles_of_16_registers, row_tiles row_tiles_of_16_registers, channel_tiles channel_tiles_of_16_registers, windows [1 by 4, 3 by 3, 5 by 2, 7 by 1]);
kernels!(portable_f64, Lanes<f64, 2>, f64, [], tiles tiles_of_16_registers, row_tiles no_row_tiles, channel_tiles channel_tiles_of_16_registers, windows [1 by 1, 3 by 1, 5 by 1, 7 by 1]);
kernels!(portable_i64, Lanes<i64, 2>, i64, [], tiles tiles_of_16_registers, row_tiles no_row_tiles, channel_tiles channel_tiles_of_16_registers, windows [1 by 1, 3 by 1, 5 by 1, 7 by 1]);

#[cfg(target_arch = "x86_64")]
kernels!(avx2_f32, F32x8, f32, [#[target_feature(enable = "avx2,fma,f16c")]], tiles tiles_of_16_registers, row_tiles row_tiles_of_16_registers, channel_tiles channel_tiles_of_16_registers, windows [1 by 4, 3 by 3, 5 by 2, 7 by 1]);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_f64, F64x4, f64, [#[target_feature(enable = "avx2,fma,f16c")]], tiles tiles_of_16_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_16_registers, windows [1 by 4, 3 by 3, 5 by 2, 7 by 1]);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f32, F32x16, f32, [#[target_feature(enable = "avx512f,avx2,fma,f16c")]], tiles tiles_of_32_registers, row_tiles row_tiles_of_32_registers, channel_tiles channel_tiles_of_32_registers, windows [1 by 4, 3 by 4, 5 by 4, 7 by 3]);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f64, F64x8, f64, [#[target_feature(enable = "avx512f,avx2,fma,f16c")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows [1 by 4, 3 by 4, 5 by 4, 7 by 3]);

#[cfg(target_arch = "aarch64")]
kernels!(neon_f32, F32x4, f32, [#[target_feature(enable = "neon")]], tiles tiles_of_32_registers, row_tiles row_tiles_of_32_registers, channel_tiles channel_tiles_of_32_registers, windows [1 by 4, 3 by 4, 5 by 4, 7 by 3]);
#[cfg(target_arch = "aarch64")]
kernels!(neon_f64, F64x2, f64, [#[target_feature(enable = "neon")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows [1 by 4, 3 by 4, 5 by 4, 7 by 3]);

/// Scratch memory of one type, lent for the duration of a task.
macro_rules! scratch_of_type {
    ($t:ty, $pool:ident) => {
        fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch<$t>) -> R) -> R {
            scratch::$pool.lend(use_it)
        }
    };
}

/// Compute types that have kernels.
pub(crate) trait Dispatch: Compute {
    /// The kernels of an instruction set, or the portable ones if the CPU lacks it or it has no
    /// kernels for this type.
    fn kernels(isa: Isa) -> &'static Kernels<Self>;

    /// The sizes of the kernels compiled for an instruction set, whether or not the CPU has it, or
    /// those of the portable ones if there are none.
    fn sizes(isa: Isa) -> KernelSizes;

    /// The kernels that use tile registers, if the CPU has them and they exist for this type.
    fn matrix_kernels(_isa: Isa) -> Option<&'static MatrixKernels<Self>> {
        None
    }

    /// Lends scratch memory.
    fn with_scratch<R>(use_it: impl FnOnce(&mut Scratch<Self>) -> R) -> R;
}

impl Dispatch for f32 {
    scratch_of_type!(f32, F32);

    fn kernels(isa: Isa) -> &'static Kernels<f32> {
        if isa.is_available() { compiled_f32(isa) } else { &portable_f32::KERNELS }
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_f32(isa))
    }

    fn matrix_kernels(isa: Isa) -> Option<&'static MatrixKernels<f32>> {
        if isa == Isa::Amx { amx::kernels() } else { None }
    }
}

impl Dispatch for f64 {
    scratch_of_type!(f64, F64);

    fn kernels(isa: Isa) -> &'static Kernels<f64> {
        if isa.is_available() { compiled_f64(isa) } else { &portable_f64::KERNELS }
    }

    fn sizes(isa: Isa) -> KernelSizes {
        KernelSizes::of(compiled_f64(isa))
    }
}

/// The kernels of an instruction set that the CPU may lack.
///
/// They may only be inspected here. They must not be handed out, because a reference to them is
/// proof that the CPU has the instruction set.
fn compiled_f32(isa: Isa) -> &'static Kernels<f32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => &avx512_f32::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_f32::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_f32::KERNELS,
        _ => &portable_f32::KERNELS,
    }
}

/// See [`compiled_f32`].
fn compiled_f64(isa: Isa) -> &'static Kernels<f64> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => &avx512_f64::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_f64::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_f64::KERNELS,
        _ => &portable_f64::KERNELS,
    }
}

impl Dispatch for i64 {
    scratch_of_type!(i64, I64);

    fn kernels(_isa: Isa) -> &'static Kernels<i64> {
        &portable_i64::KERNELS
    }

    fn sizes(_isa: Isa) -> KernelSizes {
        KernelSizes::of(&portable_i64::KERNELS)
    }
}

impl KernelSizes {
    /// The kernel sizes for the compute type of `datum_type`.
    pub fn new(datum_type: DatumType, isa: Isa) -> KernelSizes {
        match datum_type {
            DatumType::F32 | DatumType::F16 => f32::sizes(isa),
            DatumType::F64 => f64::sizes(isa),
            _ => i64::sizes(isa),
        }
    }

    pub(crate) fn of<T: Compute>(kernels: &Kernels<T>) -> KernelSizes {
        KernelSizes {
            lanes: kernels.lanes,
            masks: kernels.masks,
            permutes_lanes: kernels.permutes_lanes,
            position_tiles: kernels.position_tiles.iter().map(|t| (t.mr(), t.nv())).collect(),
            row_tiles: [1, 2, 4].map(|phases| kernels.row_tiles(phases).iter().map(|t| (t.mr(), t.nv())).collect()),
            channel_tiles: kernels.channel_tiles.iter().map(|t| (t.positions(), t.nv())).collect(),
        }
    }
}
