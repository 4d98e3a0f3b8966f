//! Tiles: results that are computed together, by fewer products than results times taps.
//!
//! The data of a tile and its taps are transformed to points. Each point of the data is multiplied
//! by that of the taps. The results are computed from the products.

use crate::compute::Compute;
use crate::kernel::cyclic::{CYCLIC_POINTS, CYCLIC_RESULTS, CYCLIC_VALUES, cyclic_point_is_used, is_complex};
use crate::kernel::extent::reach;
use crate::kernel::fourier::fourier_points;
use crate::kernel::gemm_tile::Start;
use crate::kernel::tile_data::{PointStrides, SHORT_RESULTS, TileData};
use crate::kernel::winograd::{MOST_TAPS, ZERO_IF_SHORT, axis_of, points_of};

/// The kinds of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TileKind {
    /// Two or three results along axes of several taps, one along an axis of one: `winograd.rs`.
    Winograd {
        /// Results along axes of several taps. Three are of at most two taps.
        results: usize,
        /// Taps along rows.
        rows: usize,
        /// Taps along columns.
        columns: usize,
    },
    /// Four results of three taps along both axes: `cyclic.rs`.
    Cyclic,
    /// The results along one axis that a Fourier transform of 16 or 32 values has: `fourier.rs`.
    Fourier {
        /// Values that a tile reads.
        values: usize,
        /// The most taps.
        taps: usize,
    },
}

impl TileKind {
    /// Products per tile.
    pub const fn points(self) -> usize {
        match self {
            TileKind::Winograd { .. } => {
                let (rows, columns) = self.reads();
                rows * columns
            }
            TileKind::Cyclic => CYCLIC_POINTS,
            TileKind::Fourier { values, .. } => fourier_points(values),
        }
    }

    /// Pixels along rows and columns that a tile reads. A Fourier tile's axis is that of columns.
    pub const fn reads(self) -> (usize, usize) {
        match self {
            TileKind::Winograd { results, rows, columns } => {
                (points_of(axis_of(rows, results)), points_of(axis_of(columns, results)))
            }
            TileKind::Cyclic => (CYCLIC_VALUES, CYCLIC_VALUES),
            TileKind::Fourier { values, .. } => (1, values),
        }
    }

    /// As [`reads`](Self::reads), of tiles that are short along rows or columns: see [`SHORT_RESULTS`].
    pub(super) fn reads_if_short(self, short: (bool, bool)) -> (usize, usize) {
        let (reads, taps) = (self.reads(), self.taps());
        let of_axis = |short: bool, reads: usize, taps: usize| match taps {
            1 => 1,
            _ if short => taps + SHORT_RESULTS - 1,
            _ => reads,
        };
        match self {
            TileKind::Fourier { .. } => reads,
            _ => (of_axis(short.0, reads.0, taps.0), of_axis(short.1, reads.1, taps.1)),
        }
    }

    /// Whether tiles can be [short](SHORT_RESULTS).
    pub const fn can_be_short(self) -> bool {
        matches!(self, TileKind::Winograd { results: 3, .. } | TileKind::Cyclic)
    }

    /// Whether the data of a point are zero in a tile that is [short](SHORT_RESULTS) along rows, and along columns.
    pub fn zero_if_short(self, point: usize) -> (bool, bool) {
        match self {
            TileKind::Winograd { results: 3, .. } => {
                let (_, columns) = self.reads();
                (point / columns == ZERO_IF_SHORT, point % columns == ZERO_IF_SHORT)
            }
            TileKind::Cyclic => is_complex(point),
            TileKind::Winograd { .. } | TileKind::Fourier { .. } => (false, false),
        }
    }

    /// Taps along rows and columns. A Fourier tile's axis is that of columns.
    pub const fn taps(self) -> (usize, usize) {
        match self {
            TileKind::Winograd { rows, columns, .. } => (rows, columns),
            TileKind::Cyclic => (MOST_TAPS, MOST_TAPS),
            TileKind::Fourier { taps, .. } => (1, taps),
        }
    }

    /// Whether the weights of a point can differ from zero if the last taps are zero and only the
    /// first `rows` and `columns` are not.
    pub fn uses(self, point: usize, (rows, columns): (usize, usize)) -> bool {
        match self {
            // The last point of an axis of several is that of its last tap.
            TileKind::Winograd { .. } => {
                let (of_rows, of_columns) = self.reads();
                let used = |taps: usize, of: usize, point: usize, points: usize| taps == of || point + 1 < points;
                used(rows, self.taps().0, point / of_columns, of_rows)
                    && used(columns, self.taps().1, point % of_columns, of_columns)
            }
            TileKind::Cyclic => cyclic_point_is_used(point, (rows == MOST_TAPS, columns == MOST_TAPS)),
            TileKind::Fourier { .. } => true,
        }
    }

    /// Offsets of results per tile. Along an axis of one tap, a Winograd tile ignores all but the
    /// first.
    pub const fn offsets(self) -> usize {
        match self {
            TileKind::Winograd { results, .. } => results * results,
            TileKind::Cyclic => CYCLIC_RESULTS * CYCLIC_RESULTS,
            TileKind::Fourier { values, taps } => values - taps + 1,
        }
    }

    /// Whether a tile can have this many taps.
    fn has_taps(self, taps: usize) -> bool {
        match self {
            TileKind::Winograd { rows, columns, .. } => taps == rows * columns,
            TileKind::Cyclic => taps == MOST_TAPS * MOST_TAPS,
            TileKind::Fourier { taps: most, .. } => (1..=most).contains(&taps),
        }
    }
}

pub(crate) type TransformData<T> = unsafe fn(data: &TileData<T>, to: &mut [T], strides: PointStrides);
pub(crate) type TransformFilter<T> = unsafe fn(taps: &[&[T]], to: &mut [T], point: usize);
pub(crate) type TransformProducts<T> = unsafe fn(
    products: &[T],
    strides: PointStrides,
    start: Start<T>,
    channels: usize,
    offsets: (&[usize], usize),
    to: &mut [T],
) -> bool;

/// The transforms of a kind of tiles.
///
/// A value of this type is proof that the CPU has its instruction set.
#[derive(Clone, Copy)]
pub(crate) struct TileTransforms<T: 'static> {
    pub(super) kind: TileKind,
    pub(super) lanes: usize,
    pub(super) data: TransformData<T>,
    pub(super) filter: TransformFilter<T>,
    pub(super) products: TransformProducts<T>,
}

impl<T: Compute> TileTransforms<T> {
    /// One past the last element of transformed data or products whose last tile is `last`.
    fn written(&self, last: usize, strides: PointStrides, channels: usize) -> usize {
        reach([(self.kind.points() - 1, strides.point), (last, strides.tile), (channels, 1)])
    }

    /// Transforms the data of some tiles.
    ///
    /// # Panics
    /// The channels are not whole vectors, a slice is shorter than the range that is read or
    /// written, or tiles are short that can't be.
    pub fn data(&self, data: &TileData<T>, to: &mut [T], strides: PointStrides) {
        let (Some(last), Some(furthest)) = (data.starts.len().checked_sub(1), data.starts.iter().max()) else { return };
        assert!(self.kind.can_be_short() || data.short == (false, false));
        let (down, along) = self.kind.reads_if_short(data.short);
        let read = reach([(*furthest, 1), (down - 1, data.steps.0), (along - 1, data.steps.1), (data.channels, 1)]);
        assert!(data.channels.is_multiple_of(self.lanes) && read <= data.pixels.len());
        assert!(self.written(last, strides, data.channels) <= to.len());
        // SAFETY: these transforms exist only if the CPU has the instruction set. The assertions
        // above are the rest of the contract.
        unsafe { (self.data)(data, to, strides) }
    }

    /// Transforms weights element by element.
    ///
    /// `taps` are those of the rows and columns of a tile, with equally many weights each. A Fourier
    /// tile may have fewer than its most. `to` receives `point` elements per point; the last point
    /// may have fewer.
    ///
    /// # Panics
    /// The number of taps is not that of the tile, the weights are not whole vectors, or `to` is
    /// too short.
    pub fn filter(&self, taps: &[&[T]], to: &mut [T], point: usize) {
        let len = taps.first().map_or(0, |tap| tap.len());
        assert!(self.kind.has_taps(taps.len()) && taps.iter().all(|tap| tap.len() == len));
        assert!(len.is_multiple_of(self.lanes) && reach([(self.kind.points() - 1, point), (len, 1)]) <= to.len());
        // SAFETY: these transforms exist only if the CPU has the instruction set. The assertions
        // above are the rest of the contract.
        unsafe { (self.filter)(taps, to, point) }
    }

    /// Computes results from products and returns whether all of them are finite.
    ///
    /// The results of a tile are written at its `offsets`, row by row. There are
    /// [`TileKind::offsets`] of them per tile. Those of a short tile are where
    /// [`short_result`](super::tile_data::short_result) says.
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
        let of_tile = self.kind.offsets();
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
        unsafe { (self.products)(products, strides, start, channels, (offsets, of_tile), to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Dispatch, FOURIER_VALUES};
    use crate::simd::isa::Isa;
    use tract_core::internal::tract_itertools::Itertools;

    /// Points without use are those whose weights are zero if the last taps are.
    #[test]
    fn unused_points_have_weights_of_zero() {
        let kernels = <f32 as Dispatch>::kernels(Isa::Portable);
        let three = |rows, columns| TileKind::Winograd { results: 3, rows, columns };
        let kinds = [three(1, 2), three(2, 1), three(2, 2), TileKind::Cyclic];
        let fourier = FOURIER_VALUES.map(|values| TileKind::Fourier { values, taps: 5 });
        for kind in kinds.into_iter().chain(fourier) {
            let (rows, columns) = kind.taps();
            for used in (1..=rows).cartesian_product(1..=columns) {
                let of_tap = |(row, column): (usize, usize)| {
                    let used = row < used.0 && column < used.1;
                    // Numbers whose sums and differences are not zero.
                    vec![if used { 1.0 + (3 * row + column) as f32 / 64.0 } else { 0.0 }; kernels.lanes]
                };
                let taps: Vec<Vec<f32>> = (0..rows).cartesian_product(0..columns).map(of_tap).collect();
                let taps: Vec<&[f32]> = taps.iter().map(|tap| &tap[..]).collect();
                let mut to = vec![f32::NAN; kind.points() * kernels.lanes];
                kernels.tile_transforms(kind).filter(&taps, &mut to, kernels.lanes);
                for (point, weights) in to.chunks(kernels.lanes).enumerate() {
                    assert!(kind.uses(point, used) || weights[0] == 0.0, "{kind:?}, {used:?}, point {point}");
                }
            }
            let unused = |used| (0..kind.points()).filter(|point| !kind.uses(*point, used)).count();
            assert_eq!(unused((rows, columns)), 0);
            assert_eq!(unused((1, 1)) > 0, !matches!(kind, TileKind::Fourier { .. }));
        }
    }
}
