//! Minimal filtering: tiles of several results that take fewer products than results times taps.
//!
//! # Tiles of two results (Winograd)
//!
//! Two adjacent results of two taps take three products instead of four. Two adjacent results of
//! three taps take four instead of six.
//!
//! For data `d`, taps `g` and products `m`, the transforms follow from polynomial multiplication at
//! the points 0, 1 and infinity (two taps), and also -1 (three taps):
//!
//! | taps | data | filter | results |
//! |---|---|---|---|
//! | 2 | `d0-d1, d1, d2-d1` | `g0, g0+g1, g1` | `m0+m1, m1+m2` |
//! | 3 | `d0-d2, d1+d2, d2-d1, d1-d3` | `g0, (g0+g1+g2)/2, (g0-g1+g2)/2, g2` | `m0+m1+m2, m1-m2-m3` |
//!
//! Each result depends only on the data that its own taps read. Its error scales with those data,
//! and non-finite values do not spread to other results.
//!
//! A tile of rows and columns is transformed along both axes. Along an axis of one tap, it has one
//! result of one product.
//!
//! Tiles of four results are in `cyclic.rs`.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use super::extent::reach;
use crate::compute::Compute;
use crate::kernel::gemm_tile::Start;
use crate::simd::vector::{MOST_LANES, Vector};

/// The most taps of a tile along an axis.
pub(crate) const MOST_TAPS: usize = 3;

/// The results of a Winograd tile along an axis.
pub(crate) const WINOGRAD_RESULTS: usize = 2;

/// The results of a cyclic tile along an axis.
pub(crate) const CYCLIC_RESULTS: usize = 4;

/// The products of a cyclic tile.
pub(super) const CYCLIC_POINTS: usize = 46;

/// The most points of a Winograd tile along an axis.
const MOST_POINTS: usize = MOST_TAPS + WINOGRAD_RESULTS - 1;

/// Values along an axis of a transformed cyclic tile. Also the number of inputs that it reads.
pub(super) const CYCLIC_VALUES: usize = MOST_TAPS + CYCLIC_RESULTS - 1;

/// Results along an axis of a Winograd tile with `taps` taps.
pub(crate) const fn results_of(taps: usize) -> usize {
    if taps < WINOGRAD_RESULTS { taps } else { WINOGRAD_RESULTS }
}

/// Products along an axis of such a tile. Also the number of inputs that it reads.
pub(crate) const fn points_of(taps: usize) -> usize {
    taps + results_of(taps) - 1
}

/// Products of a tile of so many taps along rows and columns, and of `results` along an axis with
/// several taps.
pub(crate) const fn points_of_tile(taps: (usize, usize), results: usize) -> usize {
    if results == CYCLIC_RESULTS { CYCLIC_POINTS } else { points_of(taps.0) * points_of(taps.1) }
}

/// The data that tiles read: pixels of channels.
#[derive(Clone, Copy)]
pub(crate) struct TileData<'a, T> {
    pub pixels: &'a [T],
    /// Per tile, the index of its first pixel's first channel.
    pub starts: &'a [usize],
    /// Elements from a pixel to the next along the rows and the columns of a tile.
    pub steps: (usize, usize),
    /// Channels, a multiple of the lanes.
    pub channels: usize,
}

/// The layout of transformed data and of products: `[point][tile][channel]`.
#[derive(Clone, Copy)]
pub(crate) struct PointStrides {
    /// Elements between points.
    pub point: usize,
    /// Elements between tiles.
    pub tile: usize,
}

pub(crate) type TransformData<T> = unsafe fn(data: &TileData<T>, to: &mut [T], strides: PointStrides);
pub(crate) type TransformFilter<T> = unsafe fn(taps: &[&[T]], to: &mut [T], point: usize);
pub(crate) type TransformProducts<T> = unsafe fn(
    products: &[T],
    strides: PointStrides,
    start: Start<T>,
    channels: usize,
    offsets: &[usize],
    to: &mut [T],
) -> bool;

/// The transforms of tiles of `rows` × `columns` taps.
///
/// A value of this type is proof that the CPU has its instruction set.
#[derive(Clone, Copy)]
pub(crate) struct TileTransforms<T: 'static> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The results along an axis with several taps.
    pub(crate) results: usize,
    pub(crate) lanes: usize,
    pub(crate) data: TransformData<T>,
    pub(crate) filter: TransformFilter<T>,
    pub(crate) products: TransformProducts<T>,
}

impl<T: Compute> TileTransforms<T> {
    /// Products per tile.
    fn points(&self) -> usize {
        points_of_tile((self.rows, self.columns), self.results)
    }

    /// Pixels along an axis of so many taps that a tile reads besides the first.
    fn further(&self, taps: usize) -> usize {
        if self.results == CYCLIC_RESULTS { CYCLIC_VALUES - 1 } else { points_of(taps) - 1 }
    }

    /// One past the last element of transformed data or products whose last tile is `last`.
    fn written(&self, last: usize, strides: PointStrides, channels: usize) -> usize {
        reach([(self.points() - 1, strides.point), (last, strides.tile), (channels, 1)])
    }

    /// Transforms the data of some tiles.
    ///
    /// # Panics
    /// The channels are not whole vectors, or a slice is shorter than the range that is read or
    /// written.
    pub fn data(&self, data: &TileData<T>, to: &mut [T], strides: PointStrides) {
        let (Some(last), Some(furthest)) = (data.starts.len().checked_sub(1), data.starts.iter().max()) else { return };
        let (down, along) = (self.further(self.rows), self.further(self.columns));
        let read = reach([(*furthest, 1), (down, data.steps.0), (along, data.steps.1), (data.channels, 1)]);
        assert!(data.channels.is_multiple_of(self.lanes) && read <= data.pixels.len());
        assert!(self.written(last, strides, data.channels) <= to.len());
        // SAFETY: these transforms exist only if the CPU has the instruction set. The assertions
        // above are the rest of the contract.
        unsafe { (self.data)(data, to, strides) }
    }

    /// Transforms weights element by element.
    ///
    /// `taps` are those of the rows and columns of a tile, with equally many weights each. `to`
    /// receives `point` elements per point; the last point may have fewer.
    ///
    /// # Panics
    /// The number of taps is not that of the tile, the weights are not whole vectors, or `to` is
    /// too short.
    pub fn filter(&self, taps: &[&[T]], to: &mut [T], point: usize) {
        let len = taps.first().map_or(0, |tap| tap.len());
        assert!(taps.len() == self.rows * self.columns && taps.iter().all(|tap| tap.len() == len));
        assert!(len.is_multiple_of(self.lanes) && reach([(self.points() - 1, point), (len, 1)]) <= to.len());
        // SAFETY: these transforms exist only if the CPU has the instruction set. The assertions
        // above are the rest of the contract.
        unsafe { (self.filter)(taps, to, point) }
    }

    /// Computes results from products and returns whether all of them are finite.
    ///
    /// The results of a tile are written at its `offsets`, row by row, `results` to a row and rows
    /// to a tile. A tile with fewer results along an axis uses the first ones.
    ///
    /// # Panics
    /// The channels are not whole vectors, or a slice is shorter than the range that is read or
    /// written.
    pub fn products(
        &self,
        products: &[T],
        strides: PointStrides,
        start: Start<T>,
        channels: usize,
        offsets: &[usize],
        to: &mut [T],
    ) -> bool {
        let of_tile = self.results * self.results;
        assert!(offsets.len().is_multiple_of(of_tile));
        let (Some(last), Some(furthest)) = ((offsets.len() / of_tile).checked_sub(1), offsets.iter().max()) else {
            return true;
        };
        assert!(channels.is_multiple_of(self.lanes) && reach([(*furthest, 1), (channels, 1)]) <= to.len());
        assert!(self.written(last, strides, channels) <= products.len());
        if let Start::Bias(bias) = start {
            assert!(bias.len() >= channels);
        }
        // SAFETY: these transforms exist only if the CPU has the instruction set. The assertions
        // above are the rest of the contract.
        unsafe { (self.products)(products, strides, start, channels, offsets, to) }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. The assertions of `TileTransforms::data` hold.
#[inline(always)]
pub(crate) unsafe fn transform_data<V: Vector, const RY: usize, const RX: usize>(
    data: &TileData<V::Lane>,
    to: &mut [V::Lane],
    strides: PointStrides,
) {
    let (rows, columns) = (points_of(RY), points_of(RX));
    for (tile, start) in data.starts.iter().enumerate() {
        for c in (0..data.channels).step_by(V::LANES) {
            let from = data.pixels.as_ptr().wrapping_add(start + c);
            let to = to.as_mut_ptr().wrapping_add(tile * strides.tile + c);
            // SAFETY: this function's contract.
            unsafe {
                let mut d = [[V::splat(V::Lane::ZERO); MOST_POINTS]; MOST_POINTS];
                for i in 0..rows {
                    for j in 0..columns {
                        d[i][j] = V::load(from.wrapping_add(i * data.steps.0 + j * data.steps.1));
                    }
                    d[i] = of_data::<V, RX>(d[i]);
                }
                for j in 0..columns {
                    let column = of_data::<V, RY>(std::array::from_fn(|i| d[i][j]));
                    for i in 0..rows {
                        column[i].store(to.wrapping_add((i * columns + j) * strides.point));
                    }
                }
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. The assertions of `TileTransforms::filter` hold.
#[inline(always)]
pub(crate) unsafe fn transform_filter<V: Vector, const RY: usize, const RX: usize>(
    taps: &[&[V::Lane]],
    to: &mut [V::Lane],
    point: usize,
) {
    let (rows, columns) = (points_of(RY), points_of(RX));
    let len = taps.first().map_or(0, |tap| tap.len());
    for at in (0..len).step_by(V::LANES) {
        let to = to.as_mut_ptr().wrapping_add(at);
        // SAFETY: this function's contract.
        unsafe {
            let mut g = [[V::splat(V::Lane::ZERO); MOST_POINTS]; MOST_POINTS];
            for i in 0..RY {
                for j in 0..RX {
                    g[i][j] = V::load(taps.get_unchecked(i * RX + j).as_ptr().wrapping_add(at));
                }
                g[i] = of_filter::<V, RX>(g[i]);
            }
            for j in 0..columns {
                let column = of_filter::<V, RY>(std::array::from_fn(|i| g[i][j]));
                for i in 0..rows {
                    column[i].store(to.wrapping_add((i * columns + j) * point));
                }
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set. The assertions of `TileTransforms::products` hold.
#[inline(always)]
pub(crate) unsafe fn transform_products<V: Vector, const RY: usize, const RX: usize>(
    products: &[V::Lane],
    strides: PointStrides,
    start: Start<V::Lane>,
    channels: usize,
    offsets: &[usize],
    to: &mut [V::Lane],
) -> bool {
    let (rows, columns) = (points_of(RY), points_of(RX));
    let mut finite = true;
    for c in (0..channels).step_by(V::LANES) {
        // SAFETY: this function's contract.
        unsafe {
            let zero = V::splat(V::Lane::ZERO);
            let bias = match start {
                Start::Bias(bias) => V::load(bias.as_ptr().wrapping_add(c)),
                Start::Add => zero,
            };
            // A finite result times zero is zero. Any other is NaN.
            let mut zeros = zero;
            for (tile, offsets) in offsets.as_chunks::<{ WINOGRAD_RESULTS * WINOGRAD_RESULTS }>().0.iter().enumerate() {
                let from = products.as_ptr().wrapping_add(tile * strides.tile + c);
                let mut m = [[zero; MOST_POINTS]; MOST_POINTS];
                for i in 0..rows {
                    for j in 0..columns {
                        m[i][j] = V::load(from.wrapping_add((i * columns + j) * strides.point));
                    }
                    m[i] = of_products::<V, RX>(m[i]);
                }
                for j in 0..results_of(RX) {
                    let column = of_products::<V, RY>(std::array::from_fn(|i| m[i][j]));
                    for i in 0..results_of(RY) {
                        let to = to.as_mut_ptr().wrapping_add(offsets[i * WINOGRAD_RESULTS + j] + c);
                        let result = match start {
                            Start::Bias(_) => bias.plus(column[i]),
                            Start::Add => V::load(to).plus(column[i]),
                        };
                        zeros = zeros.mul_add(result, zero);
                        result.store(to);
                    }
                }
            }
            finite &= is_zero(zeros);
        }
    }
    finite
}

/// Whether all lanes are zero.
///
/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn is_zero<V: Vector>(vector: V) -> bool {
    const { assert!(V::LANES <= MOST_LANES) }
    let mut lanes = [V::Lane::ZERO; MOST_LANES];
    // SAFETY: this function's contract, and the array has room for all lanes.
    unsafe { vector.store(lanes.as_mut_ptr()) };
    lanes == [V::Lane::ZERO; MOST_LANES]
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn of_data<V: Vector, const R: usize>(d: [V; MOST_POINTS]) -> [V; MOST_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        match R {
            1 => d,
            2 => [d[0].minus(d[1]), d[1], d[2].minus(d[1]), d[3]],
            _ => [d[0].minus(d[2]), d[1].plus(d[2]), d[2].minus(d[1]), d[1].minus(d[3])],
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn of_filter<V: Vector, const R: usize>(g: [V; MOST_POINTS]) -> [V; MOST_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        match R {
            1 => g,
            2 => [g[0], g[0].plus(g[1]), g[1], g[2]],
            _ => {
                let (zero, half) = (V::splat(V::Lane::ZERO), V::splat(V::Lane::HALF));
                let even = g[0].plus(g[2]);
                [g[0], zero.mul_add(even.plus(g[1]), half), zero.mul_add(even.minus(g[1]), half), g[2]]
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set.
#[inline(always)]
unsafe fn of_products<V: Vector, const R: usize>(m: [V; MOST_POINTS]) -> [V; MOST_POINTS] {
    // SAFETY: this function's contract.
    unsafe {
        match R {
            1 => m,
            2 => [m[0].plus(m[1]), m[1].plus(m[2]), m[2], m[3]],
            _ => [m[0].plus(m[1]).plus(m[2]), m[1].minus(m[2]).minus(m[3]), m[2], m[3]],
        }
    }
}
