//! The kernels compiled for each instruction set and compute type, and the tile sizes of each.

use crate::activation::Activation;
use crate::compute::{Compute, Pair, Quad};
use crate::kernel::bounds::Bounds;
use crate::kernel::col2im_row::{Col2imRows, accumulate_rows};
use crate::kernel::cyclic::{transform_cyclic_data, transform_cyclic_filter, transform_cyclic_products};
use crate::kernel::depthwise_pixels::{PixelSums, sum_of_pixels};
use crate::kernel::depthwise_plane::{PlaneTaps, sum_of_plane};
use crate::kernel::depthwise_taps::{WeightedTap, sum_of_taps};
use crate::kernel::depthwise_window::{Results, Window, row_pairs, window};
use crate::kernel::elementwise;
use crate::kernel::fourier::{Fourier, transform_fourier_data, transform_fourier_filter, transform_fourier_products};
use crate::kernel::gemm_tile::{
    ChainedEntry, Chains, ChannelTile, LISTED_POSITIONS, ListedEntry, ListedPixels, PhaseOperand, PositionTile,
    RowTile, StridedRuns, TilePositions, chained_channel_tile, channel_tile, listed_channel_tile, position_tile,
    room_for_chains, room_for_two_chains, row_tile, sums_phases_together,
};
use crate::kernel::kernels::{Kernels, Transforms};
use crate::kernel::normalise::{self, Normalisation};
use crate::kernel::pad_copy::{Rows, SplitRows, padded_rows, split_rows};
use crate::kernel::pool::{PoolAxis, pool_plane};
use crate::kernel::resample::{self, TwoTaps};
use crate::kernel::softmax;
use crate::kernel::tile_data::{PointStrides, TileData};
use crate::kernel::tile_transforms::{TileKind, TileTransforms, TransformData};
use crate::kernel::transpose;
use crate::kernel::winograd::{offsets_of, taps_of, transform_data, transform_filter, transform_products};
use crate::simd::vector::*;

/// Defines the static [`Kernels`] of a vector type. `$feature` are the attributes that its
/// functions are compiled with.
macro_rules! kernels {
    ($name:ident, $vector:ty, $lane:ty, [$(#[$feature:meta])*], tiles $tiles:ident, row_tiles $row_tiles:ident, channel_tiles $channel_tiles:ident, windows $windows:ident, pixels $pixels:literal, transforms $transforms:ident) => {
        pub(super) mod $name {
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
                bounds: Option<Bounds<$lane>>,
            ) {
                // SAFETY: only called through a tile: see `RowTile::run`.
                unsafe { row_tile::<$vector, S, MR, NV>(phases, source, bias, channels, runs, bounds) }
            }

            $(#[$feature])*
            unsafe fn channel<const P: usize, const NV: usize>(
                panel: &[$lane],
                source: &crate::kernel::gemm_tile::Source<$lane>,
                start_and_bounds: (crate::kernel::gemm_tile::Start<$lane>, Option<Bounds<$lane>>),
                out: &mut [$lane],
                positions: TilePositions,
            ) {
                // SAFETY: only called through a tile: see `ChannelTile::run`.
                unsafe { channel_tile::<$vector, P, NV>(panel, source, start_and_bounds, out, positions) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn chained<const P: usize, const NV: usize>(
                panel: &[$lane],
                source: &crate::kernel::gemm_tile::Source<$lane>,
                chains: &Chains,
                start: crate::kernel::gemm_tile::Start<$lane>,
                out: &mut [$lane],
                positions: TilePositions,
            ) {
                // SAFETY: only called through a tile: see `ChannelTile::run_chains`.
                unsafe { chained_channel_tile::<$vector, P, NV>(panel, source, chains, start, out, positions) }
            }

            $(#[$feature])*
            unsafe fn listed<const P: usize, const NV: usize>(
                panel: &[$lane],
                pixels: &ListedPixels<$lane>,
                start_and_bounds: (crate::kernel::gemm_tile::Start<$lane>, Option<Bounds<$lane>>),
                out: &mut [$lane],
                out_stride: usize,
            ) {
                // SAFETY: only called through a tile: see `ChannelTile::run_listed`.
                unsafe { listed_channel_tile::<$vector, P, NV>(panel, pixels, start_and_bounds, out, out_stride) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn data<const RY: usize, const RX: usize>(
                data: &TileData<$lane>,
                to: &mut [$lane],
                strides: PointStrides,
            ) {
                // SAFETY: only called by `TileTransforms::data`, which checks the contract.
                unsafe { transform_data::<$vector, RY, RX>(data, to, strides) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn filter<const RY: usize, const RX: usize>(taps: &[&[$lane]], to: &mut [$lane], point: usize) {
                // SAFETY: only called by `TileTransforms::filter`, which checks the contract.
                unsafe { transform_filter::<$vector, RY, RX>(taps, to, point) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn products<const RY: usize, const RX: usize>(
                products: &[$lane],
                strides: PointStrides,
                start: crate::kernel::gemm_tile::Start<$lane>,
                channels: usize,
                offsets: (&[usize], usize),
                to: &mut [$lane],
            ) -> bool {
                // SAFETY: only called by `TileTransforms::products`, which checks the contract.
                unsafe { transform_products::<$vector, RY, RX>(products, strides, start, channels, offsets, to) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn cyclic_data(data: &TileData<$lane>, to: &mut [$lane], strides: PointStrides) {
                // SAFETY: only called by `TileTransforms::data`, which checks the contract.
                unsafe { transform_cyclic_data::<$vector>(data, to, strides) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn cyclic_filter(taps: &[&[$lane]], to: &mut [$lane], point: usize) {
                // SAFETY: only called by `TileTransforms::filter`, which checks the contract.
                unsafe { transform_cyclic_filter::<$vector>(taps, to, point) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn cyclic_products(
                products: &[$lane],
                strides: PointStrides,
                start: crate::kernel::gemm_tile::Start<$lane>,
                channels: usize,
                offsets: (&[usize], usize),
                to: &mut [$lane],
            ) -> bool {
                // SAFETY: only called by `TileTransforms::products`, which checks the contract.
                unsafe { transform_cyclic_products::<$vector>(products, strides, start, channels, offsets, to) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn fourier_data<const VALUES: usize, const BINS: usize>(
                data: &TileData<$lane>,
                to: &mut [$lane],
                strides: PointStrides,
            ) where
                [$vector; VALUES]: Fourier<$vector, BINS>,
            {
                // SAFETY: only called by `TileTransforms::data`, which checks the contract.
                unsafe { transform_fourier_data::<$vector, VALUES, BINS>(data, to, strides) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn fourier_filter<const VALUES: usize, const BINS: usize>(
                taps: &[&[$lane]],
                to: &mut [$lane],
                point: usize,
            ) where
                [$vector; VALUES]: Fourier<$vector, BINS>,
            {
                // SAFETY: only called by `TileTransforms::filter`, which checks the contract.
                unsafe { transform_fourier_filter::<$vector, VALUES, BINS>(taps, to, point) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            $(#[$feature])*
            unsafe fn fourier_products<const VALUES: usize, const BINS: usize>(
                products: &[$lane],
                strides: PointStrides,
                start: crate::kernel::gemm_tile::Start<$lane>,
                channels: usize,
                offsets: (&[usize], usize),
                to: &mut [$lane],
            ) -> bool
            where
                [$vector; VALUES]: Fourier<$vector, BINS>,
            {
                // SAFETY: only called by `TileTransforms::products`, which checks the contract. Its
                // kind has at most `VALUES` results.
                unsafe {
                    transform_fourier_products::<$vector, VALUES, BINS>(products, strides, start, channels, offsets, to)
                }
            }

            $(#[$feature])*
            unsafe fn pixels_to_rows(
                from: &[$lane],
                starts: &[usize],
                to: &mut [&mut [$lane]],
                first: usize,
                bounds: Option<Bounds<$lane>>,
                streamed: bool,
            ) {
                // SAFETY: only called by `Kernels::pixels_to_rows`, which checks the contract.
                unsafe { transpose::pixels_to_rows::<$vector, LANES>(from, starts, to, first, bounds, streamed) }
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
                to: (&mut [$lane], usize),
                bounds: Option<Bounds<$lane>>,
                streamed: bool,
            ) {
                // SAFETY: only called by `Kernels::copy_pixels`, which checks the contract.
                unsafe { transpose::copy_pixels::<$vector>(from, from_step, size, to, bounds, streamed) }
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
            unsafe fn strided<const S: usize>(from: &[$lane], step: usize, to: &mut [$lane]) {
                // SAFETY: only called by `Kernels::strided`, which checks the contract.
                unsafe { transpose::strided::<$vector, S>(from, step, to) }
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
                (bias, bounds): ($lane, Option<Bounds<$lane>>),
                to: &mut [$lane],
            ) {
                // SAFETY: only called by `Kernels::sum_of_taps`, which checks the contract.
                unsafe { sum_of_taps::<$vector, S, U>(source, phases, (bias, bounds), to) }
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
            unsafe fn of_row_pairs<const U: usize>(of: &Window<$lane>, results: &Results, to: &mut [$lane]) {
                // SAFETY: only called by `Kernels::sum_of_window`, which checks the contract.
                unsafe { row_pairs::<$vector, U>(of, results, to) }
            }

            $(#[$feature])*
            unsafe fn plane(
                taps: &PlaneTaps,
                source: &[$lane],
                weights: &[$lane],
                bias_and_bounds: ($lane, Option<Bounds<$lane>>),
                to: &mut [$lane],
            ) {
                // SAFETY: only called by `Kernels::sum_of_plane`, which checks the contract.
                unsafe { sum_of_plane::<$vector>(taps, source, weights, bias_and_bounds, to) }
            }

            $(#[$feature])*
            unsafe fn pixel_sums<const GATHERED: bool>(sums: &PixelSums<$lane>, to: &mut [$lane]) {
                // SAFETY: only called by `Kernels::sum_of_pixels`, which checks the contract.
                unsafe { sum_of_pixels::<$vector, $pixels, GATHERED>(sums, to) }
            }

            $(#[$feature])*
            unsafe fn add(
                from: &[$lane],
                size: (usize, usize),
                step: usize,
                bounds: Option<Bounds<$lane>>,
                to: &mut [$lane],
            ) {
                elementwise::add_pixels(from, size, step, bounds, to)
            }

            $(#[$feature])*
            unsafe fn clamp_pixels(bounds: Bounds<$lane>, size: (usize, usize), step: usize, run: &mut [$lane]) {
                elementwise::clamp_pixels(bounds, size, step, run)
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
            unsafe fn pooled<const SUM: bool>(axes: [&PoolAxis; 2], from: &[$lane], to: &mut [$lane], row: &mut [$lane]) {
                pool_plane::<$lane, SUM>(axes, from, to, row)
            }

            $(#[$feature])*
            unsafe fn softmax(log: bool, from: &[$lane], stride: usize, to: &mut [&mut [$lane]]) {
                softmax::softmax::<$lane, { <$vector as Vector>::FUSES }>(log, from, stride, to)
            }

            $(#[$feature])*
            unsafe fn normalise_columns(of: Normalisation<$lane>, from: &[$lane], stride: usize, to: &mut [&mut [$lane]]) {
                normalise::normalise_columns(of, from, stride, to)
            }

            $(#[$feature])*
            unsafe fn normalise_row(of: Normalisation<$lane>, from: &[$lane], to: &mut [$lane]) {
                normalise::normalise_row(of, from, to)
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
            unsafe fn accumulated_rows<const S: usize>(rows: &Col2imRows<$lane>, biases: &[$lane], to: &mut [&mut [$lane]]) {
                // SAFETY: only called by `Kernels::accumulate_rows`, which checks the contract.
                unsafe { accumulate_rows::<$vector, S>(rows, biases, to) }
            }

            $(#[$feature])*
            unsafe fn activate(activation: Activation, size: (usize, usize), step: usize, run: &mut [$lane]) {
                <$lane as Compute>::activate::<{ <$vector as Vector>::FUSES }>(activation, size, step, run)
            }

            const LANES: usize = <$vector as Vector>::LANES;
            const _: () = assert!(LANES.is_power_of_two() && LANES <= MOST_LANES);

            const fn position_of<const MR: usize, const NV: usize>() -> PositionTile<$lane> {
                // SAFETY: the entry has this size. The tile is reachable only through `KERNELS`,
                // which are only handed out if the CPU has the instruction set.
                unsafe { PositionTile::new(MR, NV, NV * LANES, position::<MR, NV>) }
            }

            #[allow(dead_code, reason = "some types have no row tiles")]
            const fn row_of<const S: usize, const MR: usize, const NV: usize>() -> RowTile<$lane> {
                let (two_chains, together) =
                    (room_for_two_chains::<$vector>(MR, NV), sums_phases_together::<$vector>(S, MR, NV));
                // SAFETY: as in `position_of`.
                unsafe { RowTile::new(S, (MR, NV), NV * LANES, (two_chains, together), row::<S, MR, NV>) }
            }

            const fn listed_of<const P: usize, const NV: usize>() -> Option<ListedEntry<$lane>> {
                let [few, some, many] = LISTED_POSITIONS;
                if P == few || P == some || P == many { Some(listed::<P, NV>) } else { None }
            }

            const fn chained_of<const P: usize, const NV: usize>() -> Option<ChainedEntry<$lane>> {
                if room_for_chains::<$vector>(P, NV) { transforms_if!($transforms, chained::<P, NV>) } else { None }
            }

            const fn channel_of<const P: usize, const NV: usize>() -> ChannelTile<$lane> {
                // SAFETY: as in `position_of`.
                unsafe { ChannelTile::new(P, NV, NV * LANES, channel::<P, NV>, chained_of::<P, NV>(), listed_of::<P, NV>()) }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            /// `RY` and `RX` are the axes of a tile. Axes of as many points have the same data.
            const fn winograd_of<const RY: usize, const RX: usize>(
                data: TransformData<$lane>,
            ) -> TileTransforms<$lane> {
                TileTransforms {
                    kind: TileKind::Winograd {
                        results: offsets_of(RY, RX),
                        rows: taps_of(RY),
                        columns: taps_of(RX),
                    },
                    lanes: LANES,
                    data,
                    filter: filter::<RY, RX>,
                    products: products::<RY, RX>,
                }
            }

            #[allow(dead_code, reason = "some types have no transforms")]
            const fn fourier_of<const VALUES: usize, const BINS: usize>() -> TileTransforms<$lane>
            where
                [$vector; VALUES]: Fourier<$vector, BINS>,
            {
                TileTransforms {
                    kind: TileKind::Fourier { values: VALUES, taps: VALUES },
                    lanes: LANES,
                    data: fourier_data::<VALUES, BINS>,
                    filter: fourier_filter::<VALUES, BINS>,
                    products: fourier_products::<VALUES, BINS>,
                }
            }

            pub(crate) static KERNELS: Kernels<$lane> = Kernels {
                lanes: LANES,
                masks: <$vector>::MASKS,
                loads_parts: <$vector>::LOADS_PARTS,
                registers: <$vector>::REGISTERS,
                permutes_lanes: <$vector>::PERMUTES_LANES,
                position_tiles: $tiles!(position_of),
                row_tiles: [$row_tiles!(row_of, 1), $row_tiles!(row_of, 2), $row_tiles!(row_of, 4)],
                channel_tiles: $channel_tiles!(channel_of),
                transforms: transforms_if!($transforms, Transforms {
                    two_results: [
                        [winograd_of::<0, 0>(data::<0, 0>), winograd_of::<0, 1>(data::<0, 1>), winograd_of::<0, 2>(data::<0, 2>)],
                        [winograd_of::<1, 0>(data::<1, 0>), winograd_of::<1, 1>(data::<1, 1>), winograd_of::<1, 2>(data::<1, 2>)],
                        [winograd_of::<2, 0>(data::<2, 0>), winograd_of::<2, 1>(data::<2, 1>), winograd_of::<2, 2>(data::<2, 2>)],
                    ],
                    three_results: [
                        winograd_of::<0, 3>(data::<0, 2>),
                        winograd_of::<3, 0>(data::<2, 0>),
                        winograd_of::<3, 3>(data::<2, 2>),
                    ],
                    cyclic: TileTransforms {
                        kind: TileKind::Cyclic,
                        lanes: LANES,
                        data: cyclic_data,
                        filter: cyclic_filter,
                        products: cyclic_products,
                    },
                    fourier: [fourier_of::<16, 9>(), fourier_of::<32, 17>()],
                }),
                pixels_to_rows,
                rows_to_pixels,
                copy_pixels,
                indexed_rows_to_pixels,
                interleave: [interleaved::<2>, interleaved::<4>, interleaved::<8>, interleaved::<16>],
                strided: [strided::<2>, strided::<4>, strided::<8>],
                padded_rows: padded,
                split_rows: split,
                sum_of_taps: [taps::<1, 8>, taps::<2, 4>, taps::<4, 2>, taps::<8, 2>],
                sum_of_window: $windows!(of_window),
                // Of 16 registers, two rows of six vectors leave four for an element and two weights.
                sum_of_row_pairs: of_row_pairs::<{ if $pixels < 6 { $pixels } else { 6 } }>,
                sum_of_plane: plane,
                sum_of_pixels: [pixel_sums::<false>, pixel_sums::<true>],
                add,
                clamp_pixels,
                affine,
                leak,
                pool_plane: [pooled::<false>, pooled::<true>],
                softmax,
                normalise_columns,
                normalise_row,
                blend,
                resample_row,
                accumulate_rows: [accumulated_rows::<1>, accumulated_rows::<2>, accumulated_rows::<4>],
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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

/// With 16 registers: at most 12 accumulators. Not 4×3, as its three vectors and one scalar leave
/// no register free, and the compiler then keeps an accumulator in memory.
#[allow(unused_macros, reason = "some targets have other vectors")]
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

/// With 15 registers, as many as V8 has left on x86-64: at most 8 accumulators with several vectors,
/// as a product takes a register of its own before it is added, and V8 keeps accumulators in memory
/// where it runs short. `tools/wasm/vectors/vectors.sh` times such tiles alone.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
macro_rules! tiles_of_15_registers {
    ($of:ident) => {
        table!(
            $of,
            (1, 1)(1, 2)(1, 3)(1, 4)(1, 5)(1, 6)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(4, 1)(4, 2)(6, 1)(8, 1)(12, 1)
        )
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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

/// The sums of one phase fill the registers. Phases are summed one after the other, and finished sums wait in memory.
#[allow(unused_macros, reason = "some targets have other vectors")]
macro_rules! row_tiles_of_16_registers {
    ($of:ident, 1) => {
        table!(
            $of,
            1,
            (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(3, 3)(4, 1)(4, 2)(6, 1)(6, 2)(8, 1)(12, 1)
        )
    };
    ($of:ident, 2) => {
        table!($of, 2, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(3, 1)(3, 2)(4, 1)(4, 2)(6, 1)(6, 2))
    };
    ($of:ident, 4) => {
        table!($of, 4, (1, 1)(1, 2)(1, 3)(2, 1)(2, 2)(3, 1)(3, 2)(4, 1)(4, 2)(6, 1)(6, 2))
    };
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
macro_rules! row_tiles_of_15_registers {
    ($of:ident, 1) => {
        table!($of, 1, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(4, 1)(4, 2)(6, 1)(8, 1)(12, 1))
    };
    ($of:ident, 2) => {
        table!($of, 2, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(3, 1)(4, 1)(6, 1))
    };
    ($of:ident, 4) => {
        table!($of, 4, (1, 1)(1, 2)(2, 1)(3, 1))
    };
}

/// Of f64, which few models have, and of 8-bit integers: enough for each number of output channels,
/// to keep the program small.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
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

/// The transforms of a type that has them, or none.
macro_rules! transforms_if {
    (with, $transforms:expr) => {
        Some($transforms)
    };
    (without, $transforms:expr) => {
        None
    };
}

/// Of the types and instruction sets of which the speed hardly matters.
macro_rules! no_row_tiles {
    ($of:ident, $phases:literal) => {
        &[]
    };
}

/// Vectors that are computed together, per number of tap rows.
macro_rules! windows {
    ($of:ident, $($rows:literal by $vectors:literal),+) => { [$($of::<$rows, $vectors>),+] };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! windows_of_32_registers {
    ($of:ident) => {
        windows!($of, 1 by 4, 3 by 4, 5 by 4, 7 by 3)
    };
}

#[allow(unused_macros, reason = "some targets have other vectors")]
macro_rules! windows_of_16_registers {
    ($of:ident) => {
        windows!($of, 1 by 4, 3 by 3, 5 by 2, 7 by 1)
    };
}

/// Of f64 and of 8-bit integers, as [`few_row_tiles`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
macro_rules! few_windows {
    ($of:ident) => {
        windows!($of, 1 by 2, 3 by 2, 5 by 2, 7 by 1)
    };
}

/// Of portable kernels.
macro_rules! single_windows {
    ($of:ident) => {
        windows!($of, 1 by 1, 3 by 1, 5 by 1, 7 by 1)
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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

#[allow(unused_macros, reason = "some targets have other vectors")]
macro_rules! channel_tiles_of_16_registers {
    ($of:ident) => {
        table!($of, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(4, 1)(4, 2)(6, 1)(6, 2))
    };
}

/// Of portable kernels: those of f32 where the target has vectors, so that only tests and CPUs of before 2013 run them,
/// and those of types that few models have.
macro_rules! few_tiles {
    ($of:ident) => {
        table!($of, (1, 1)(1, 2)(2, 1)(2, 2)(4, 1)(4, 2)(6, 1)(8, 1))
    };
}

/// As [`few_tiles`]. The tile of four vectors is that of matrix-vector products.
macro_rules! few_channel_tiles {
    ($of:ident) => {
        table!($of, (1, 1)(1, 2)(1, 4)(2, 1)(2, 2)(4, 1)(4, 2)(6, 1)(8, 1))
    };
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
macro_rules! channel_tiles_of_15_registers {
    ($of:ident) => {
        table!($of, (1, 1)(1, 2)(1, 3)(1, 4)(2, 1)(2, 2)(2, 3)(2, 4)(3, 1)(3, 2)(4, 1)(4, 2)(6, 1)(8, 1))
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
kernels!(portable_f32, Lanes<f32, 4>, f32, [], tiles few_tiles, row_tiles no_row_tiles, channel_tiles few_channel_tiles, windows single_windows, pixels 2, transforms with);
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    all(target_arch = "wasm32", target_feature = "simd128")
)))]
kernels!(portable_f32, Lanes<f32, 4>, f32, [], tiles tiles_of_16_registers, row_tiles row_tiles_of_16_registers, channel_tiles channel_tiles_of_16_registers, windows windows_of_16_registers, pixels 8, transforms with);
kernels!(portable_f64, Lanes<f64, 2>, f64, [], tiles few_tiles, row_tiles no_row_tiles, channel_tiles few_channel_tiles, windows single_windows, pixels 2, transforms with);
kernels!(portable_i64, Lanes<i64, 2>, i64, [], tiles few_tiles, row_tiles no_row_tiles, channel_tiles few_channel_tiles, windows single_windows, pixels 2, transforms without);

#[cfg(target_arch = "x86_64")]
kernels!(avx2_f32, F32x8, f32, [#[target_feature(enable = "avx2,fma,f16c")]], tiles tiles_of_16_registers, row_tiles row_tiles_of_16_registers, channel_tiles channel_tiles_of_16_registers, windows windows_of_16_registers, pixels 8, transforms with);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_f64, F64x4, f64, [#[target_feature(enable = "avx2,fma,f16c")]], tiles tiles_of_16_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_16_registers, windows few_windows, pixels 4, transforms with);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f32, F32x16, f32, [#[target_feature(enable = "avx512f,avx2,fma,f16c")]], tiles tiles_of_32_registers, row_tiles row_tiles_of_32_registers, channel_tiles channel_tiles_of_32_registers, windows windows_of_32_registers, pixels 8, transforms with);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f64, F64x8, f64, [#[target_feature(enable = "avx512f,avx2,fma,f16c")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows few_windows, pixels 4, transforms with);

#[cfg(target_arch = "aarch64")]
kernels!(neon_f32, F32x4, f32, [#[target_feature(enable = "neon")]], tiles tiles_of_32_registers, row_tiles row_tiles_of_32_registers, channel_tiles channel_tiles_of_32_registers, windows windows_of_32_registers, pixels 8, transforms with);
#[cfg(target_arch = "aarch64")]
kernels!(neon_f64, F64x2, f64, [#[target_feature(enable = "neon")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows few_windows, pixels 4, transforms with);

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
kernels!(simd128_f32, F32x4, f32, [], tiles tiles_of_15_registers, row_tiles row_tiles_of_15_registers, channel_tiles channel_tiles_of_15_registers, windows windows_of_16_registers, pixels 8, transforms with);
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
kernels!(simd128_f64, F64x2, f64, [], tiles tiles_of_15_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_15_registers, windows few_windows, pixels 4, transforms with);

kernels!(portable_pair, Lanes<Pair, 4>, Pair, [], tiles few_tiles, row_tiles no_row_tiles, channel_tiles few_channel_tiles, windows single_windows, pixels 2, transforms without);
kernels!(portable_quad, Lanes<Quad, 4>, Quad, [], tiles few_tiles, row_tiles no_row_tiles, channel_tiles few_channel_tiles, windows single_windows, pixels 2, transforms without);

#[cfg(target_arch = "x86_64")]
kernels!(avx2_pair, Pair8, Pair, [#[target_feature(enable = "avx2,fma,f16c")]], tiles tiles_of_16_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_16_registers, windows few_windows, pixels 4, transforms without);
#[cfg(target_arch = "x86_64")]
kernels!(avx_vnni_quad, Quad8, Quad, [#[target_feature(enable = "avxvnni,avx2,fma,f16c")]], tiles tiles_of_16_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_16_registers, windows few_windows, pixels 4, transforms without);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_vnni_pair, Pair16, Pair, [#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows few_windows, pixels 4, transforms without);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_vnni_quad, Quad16, Quad, [#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows few_windows, pixels 4, transforms without);

#[cfg(target_arch = "aarch64")]
kernels!(neon_pair, Pair4, Pair, [#[target_feature(enable = "neon")]], tiles tiles_of_32_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_32_registers, windows few_windows, pixels 4, transforms without);

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
kernels!(simd128_pair, Pair4, Pair, [], tiles tiles_of_15_registers, row_tiles few_row_tiles, channel_tiles channel_tiles_of_15_registers, windows few_windows, pixels 4, transforms without);
