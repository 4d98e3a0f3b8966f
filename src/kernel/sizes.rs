//! What planning looks at of a set of kernels.

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
    pub(crate) row_tiles: [Vec<(usize, usize)>; 3],
    /// `(positions, nv)` of every channel tile.
    pub channel_tiles: Vec<(usize, usize)>,
}

impl KernelSizes {
    /// `(mr, nv)` of every tile that interleaves that many phases; none where phases are not interleaved in registers.
    pub fn row_tiles(&self, phases: usize) -> &[(usize, usize)] {
        match phases {
            1 | 2 | 4 => &self.row_tiles[phases.ilog2() as usize],
            _ => &[],
        }
    }
}
