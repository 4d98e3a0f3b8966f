//! What of a set of kernels planning looks at.

use crate::element::Compute;
use crate::kernel::{Dispatch, Isa, Kernels};
use tract_core::internal::*;

/// The sizes of the kernels for one element type, on one instruction set.
pub(super) struct Shapes {
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

impl Shapes {
    /// Those of the type that sums of `datum_type` are made in.
    pub fn new(datum_type: DatumType, isa: Isa) -> Shapes {
        match datum_type {
            DatumType::F32 | DatumType::F16 => Shapes::of(f32::kernels(isa)),
            DatumType::F64 => Shapes::of(f64::kernels(isa)),
            _ => Shapes::of(i64::kernels(isa)),
        }
    }

    fn of<T: Compute>(kernels: &Kernels<T>) -> Shapes {
        Shapes {
            lanes: kernels.lanes,
            masks: kernels.masks,
            picks: kernels.picks,
            position_tiles: kernels.position_tiles.iter().map(|t| (t.mr, t.nv)).collect(),
            row_tiles: [1, 2, 4].map(|phases| kernels.row_tiles(phases).iter().map(|t| (t.mr, t.nv)).collect()),
            channel_tiles: kernels.channel_tiles.iter().map(|t| (t.positions, t.nv)).collect(),
        }
    }

    /// `(mr, nv)` of every tile that interleaves so many phases; none where phases are not interleaved in registers.
    pub fn row_tiles(&self, phases: usize) -> &[(usize, usize)] {
        match phases {
            1 | 2 | 4 => &self.row_tiles[phases.ilog2() as usize],
            _ => &[],
        }
    }
}
