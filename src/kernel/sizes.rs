//! What planning looks at of a set of kernels.

use crate::element::Compute;
use crate::kernel::dispatch::{Dispatch, Kernels};
use crate::simd::isa::Isa;
use tract_core::internal::*;

/// The sizes of the kernels for one element type, on one instruction set, which the CPU need not have.
pub(crate) struct KernelSizes {
    /// Elements of a vector.
    pub lanes: usize,
    /// Whether loads can leave out lanes at no cost.
    pub masks: bool,
    /// Whether lanes are picked by instructions of their own.
    pub picks: bool,
    /// `(mr, nv)` of every position tile.
    pub position_tiles: Vec<(usize, usize)>,
    /// `(mr, nv)` of every tile that interleaves one, two or four phases.
    row_tiles: [Vec<(usize, usize)>; 3],
    /// `(positions, nv)` of every channel tile.
    pub channel_tiles: Vec<(usize, usize)>,
}

impl KernelSizes {
    /// Those of the type that sums of `datum_type` are made in.
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
            picks: kernels.picks,
            position_tiles: kernels.position_tiles.iter().map(|t| (t.mr(), t.nv())).collect(),
            row_tiles: [1, 2, 4].map(|phases| kernels.row_tiles(phases).iter().map(|t| (t.mr(), t.nv())).collect()),
            channel_tiles: kernels.channel_tiles.iter().map(|t| (t.positions(), t.nv())).collect(),
        }
    }

    /// `(mr, nv)` of every tile that interleaves that many phases; none where phases are not interleaved in registers.
    pub fn row_tiles(&self, phases: usize) -> &[(usize, usize)] {
        match phases {
            1 | 2 | 4 => &self.row_tiles[phases.ilog2() as usize],
            _ => &[],
        }
    }
}
