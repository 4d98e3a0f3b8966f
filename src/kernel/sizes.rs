//! The properties of a set of kernels that planning uses.

/// The most positions per channel tile whose pointers fit in registers.
pub(crate) const MOST_POSITIONS: usize = 8;

/// The kernel sizes for one element type and one instruction set. The CPU need not have the
/// instruction set.
pub(crate) struct KernelSizes {
    /// Lanes per vector.
    pub lanes: usize,
    /// Whether there are masked loads.
    pub masks: bool,
    /// Whether there are loads of some lanes, which may be slower than others.
    pub loads_parts: bool,
    /// Whether there are instructions for lane gathers.
    pub permutes_lanes: bool,
    /// `(mr, nv)` of every position tile.
    pub position_tiles: Vec<(usize, usize)>,
    /// `(mr, nv)` of every row tile that interleaves one, two or four phases.
    pub(crate) row_tiles: [Vec<(usize, usize)>; 3],
    /// As `row_tiles`, of the tiles that sum phases of equally many taps together.
    pub(crate) row_tiles_together: [Vec<(usize, usize)>; 3],
    /// `(positions, nv)` of every channel tile.
    pub channel_tiles: Vec<(usize, usize)>,
    /// As `channel_tiles`, of the tiles that add chains in registers.
    pub chained_tiles: Vec<(usize, usize)>,
}

impl KernelSizes {
    /// `(mr, nv)` of every row tile that interleaves `phases` phases. Empty if phases are not
    /// interleaved in registers.
    pub fn row_tiles(&self, phases: usize) -> &[(usize, usize)] {
        of_phases(&self.row_tiles, phases)
    }

    /// Whether the row tile that interleaves `phases` phases of equally many taps sums them together.
    pub fn sums_phases_together(&self, phases: usize, tile: (usize, usize)) -> bool {
        of_phases(&self.row_tiles_together, phases).contains(&tile)
    }
}

fn of_phases(tiles: &[Vec<(usize, usize)>; 3], phases: usize) -> &[(usize, usize)] {
    match phases {
        1 | 2 | 4 => &tiles[phases.ilog2() as usize],
        _ => &[],
    }
}
