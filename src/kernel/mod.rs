//! SIMD micro-kernels.

mod activation;
mod cells;
mod extent;
mod gather;
#[cfg(all(test, target_os = "linux"))]
mod guarded;
mod halves;
mod isa;
mod matrix;
mod padded;
mod plane;
mod pool;
mod rows;
mod set;
mod sizes;
mod squares;
mod taps;
mod tile;
mod vector;
mod window;
mod winograd;

pub(crate) use activation::activate;
pub(crate) use cells::{CellTap, CellTaps, Cells, Picks};
pub(crate) use gather::GatheredRun;
pub(crate) use halves::{narrow, widen};
pub use isa::Isa;
pub(crate) use matrix::{
    DEPTH, MatrixKernels, MatrixStep, PARTS, POSITIONS_AT_ONCE, PartSource, SIDE, WEIGHTS_OF_SIDE, is_regular,
};
pub(crate) use padded::{Rows, SplitRows};
pub(crate) use plane::PlaneTaps;
pub(crate) use pool::PoolAxis;
pub(crate) use set::{Dispatch, Kernels, WINDOW_ROWS};
pub(crate) use sizes::KernelSizes;
pub(crate) use taps::WeightedTap;
pub(crate) use tile::{CellRuns, ChannelTile, PhaseOperand, PositionTile, RowTile, Source, Start};
pub(crate) use vector::FETCHES;
pub(crate) use window::{Edges, MOST_COLUMNS, Results, Window};
pub(crate) use winograd::{MOST_RESULTS, MOST_TAPS, PointStrides, TileData, points_of};
