//! SIMD micro-kernels.

mod bounds;
mod byte_sums;
mod col2im_row;
mod cyclic;
mod depthwise_pixels;
mod depthwise_plane;
mod depthwise_taps;
mod depthwise_window;
mod dispatch;
mod elementwise;
mod extent;
mod f16_convert;
mod fourier;
mod gemm_tile;
mod grouping;
#[cfg(all(test, target_os = "linux"))]
mod guard_page_tests;
mod instances;
mod kernels;
mod matrix;
mod normalise;
mod pad_copy;
mod pixel_lists;
mod pool;
mod quantise;
mod resample;
mod rescale;
mod sizes;
mod softmax;
mod tile_data;
mod tile_transforms;
mod transpose;
mod winograd;

pub(crate) use bounds::Bounds;
pub(crate) use byte_sums::{BYTE_STEPS, ByteKernels, ByteRows, ByteSums, SumsOfBytes};
pub(crate) use col2im_row::{Col2imRows, Col2imRun};
pub(crate) use cyclic::CYCLIC_RESULTS;
pub(crate) use depthwise_pixels::{LaneGather, PixelSums, PixelTap, PixelTaps, Spaced};
pub(crate) use depthwise_plane::PlaneTaps;
pub(crate) use depthwise_taps::{MOST_PHASES, WeightedTap};
pub(crate) use depthwise_window::{Edges, FEW_TAPS, MOST_COLUMNS, Results, Window};
pub(crate) use dispatch::Dispatch;
pub(crate) use f16_convert::{narrow, widen};
pub(crate) use fourier::FOURIER_VALUES;
pub(crate) use gemm_tile::{
    Chains, ChannelTile, LISTED_POSITIONS, ListedPixels, PhaseOperand, PositionTile, RowTile, Source, Start,
    StridedRuns, TilePositions, split_positions,
};
pub(crate) use grouping::{Bytes, Grouping, GroupingKernels};
pub(crate) use kernels::{Kernels, WINDOW_ROWS};
pub(crate) use matrix::{
    LIMBS, LIMBS_OF_PAIR, LimbSource, Limbs, MatrixKernels, MatrixStep, PAIRS_OF_STEP, POSITIONS_AT_ONCE, PlaneKernels,
    ROW_BYTES, SIDE, depth, has_matrix_products, is_regular, transpose_sides, weights_of_side,
};
pub(crate) use normalise::Normalisation;
pub(crate) use pad_copy::{Rows, SplitRows};
pub(crate) use pixel_lists::PixelLists;
pub(crate) use pool::PoolAxis;
pub(crate) use quantise::{Division, extremes, quantise};
pub(crate) use resample::TwoTaps;
pub(crate) use rescale::{AddedBytes, AddedIntegers, ByteScales, ChannelScale, Narrowed, Narrowing, Rescaling};
pub(crate) use sizes::{KernelSizes, MOST_POSITIONS};
pub(crate) use tile_data::{PointStrides, SHORT_RESULTS, TileData, short_result};
pub(crate) use tile_transforms::{TileKind, TileTransforms};
pub(crate) use transpose::PixelStarts;
pub(crate) use winograd::MOST_TAPS;
