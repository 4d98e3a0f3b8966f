//! Each phase as a small dense convolution over the shared grid. Weights are the scalars, positions
//! the lanes.
//!
//! The input of a block of grid rows is copied into [`InputTiles`]. It is read in place if all taps
//! have shift zero. Each phase then is
//! `out[channel][position] = Σ weight · input_tile[position + tap]`.
//! The phases of an output row are interleaved when they are stored.
//!
//! Input without shifts may also be copied in the order in which register tiles read it. A tile reads a vector or two of
//! every channel, which are in as many pages of memory otherwise.
//!
//! Many input channels may be read or copied some at a time, in passes. The sums of the channels before
//! are kept in a buffer, and results are stored after the last pass.
//!
//! `propose.rs` chooses the register tile, the way to read the input and the blocks. `run.rs` computes.

mod propose;
mod run;

use crate::algorithm::{Algorithm, Operands, Query};
use crate::element::Element;
use crate::geometry::Axes;
use crate::kernel::Dispatch;
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::input_tile::InputTiles;
use crate::layout::taps::TapTable;
use crate::output::partition::{Block, Partition};
use crate::output::task::{bytes_of_tasks, run_tasks};
use crate::simd::isa::Isa;
use crate::simd::vector::MOST_LANES;
use crate::spec::Problem;
use run::Prepared;
use tract_core::internal::*;

/// Bytes of results that are buffered before they are stored.
const CHUNK_BYTES: usize = 24 * 1024;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectPositions {
    /// Output channels per register tile.
    pub mr: usize,
    /// Output channels of the last panel's tile.
    pub last_mr: usize,
    /// Groups per group batch, whose input and results are transposed together. More than one if
    /// channels are last and groups are narrow.
    pub batched_groups: usize,
    /// Vectors of positions per register tile.
    pub nv: usize,
    /// How register tiles read the input.
    pub reads: Reads,
    /// Whether input that is read in place is prefetched before the tiles, as the caches do not
    /// hold it.
    pub prefetch: bool,
    /// Input channels that are summed over all tiles of a chunk before the next channels: long runs of
    /// few planes are read in place, or a block with many rows is copied. None if each tile sums all of them.
    pub pass: Option<usize>,
    /// Whether tiles write output rows themselves, with phases interleaved in registers.
    pub rows: bool,
    /// Tiles whose results are stored together, so that the output is written in long runs.
    pub chunk_tiles: usize,
    /// Whether all panels pass over a tile's input before the next tile.
    pub tile_major: bool,
    /// Grid rows per block.
    pub block_rows: usize,
    /// Grid columns per block.
    pub block_columns: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Axes,
}

/// A way in which register tiles read the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reads {
    /// From the tensor.
    InPlace,
    /// From input tiles with one copy per column shift, so that their rows have no gaps.
    CopyPerShift,
    /// From input tiles whose rows are padded.
    PaddedRows,
    /// From a copy in the order in which they read: `[tile][channel][position]`. For taps without shifts.
    TileOrder,
}

impl Reads {
    fn in_place(self) -> bool {
        self == Reads::InPlace
    }

    /// Whether the input tiles have one copy per column shift.
    fn copy_per_shift(self) -> bool {
        self != Reads::PaddedRows
    }
}

/// The name of the way in which the input is read and the output is stored.
fn variant(reads: Reads, in_passes: bool, rows: bool) -> &'static str {
    match (reads, rows) {
        (Reads::InPlace, _) if in_passes => "in place, in passes",
        (Reads::CopyPerShift, _) if in_passes => "copy per shift, in passes",
        (Reads::PaddedRows, _) if in_passes => "padded rows, in passes",
        (Reads::InPlace, true) => "in place, rows from registers",
        (Reads::InPlace, false) => "in place, buffered",
        (Reads::CopyPerShift, true) => "copy per shift, rows from registers",
        (Reads::CopyPerShift, false) => "copy per shift, buffered",
        (Reads::TileOrder, true) => "tile order, rows from registers",
        (Reads::TileOrder, false) => "tile order, buffered",
        (Reads::PaddedRows, true) => "padded rows, rows from registers",
        (Reads::PaddedRows, false) => "padded rows, buffered",
    }
}

impl Algorithm for DirectPositions {
    type Tables = TapTable;

    const READS_PARTS: bool = true;

    fn propose(query: &Query) -> Result<DirectPositions, String> {
        propose::cheapest(query)
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn variant(&self) -> &'static str {
        variant(self.reads, self.pass.is_some(), self.rows)
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let together = self.pass.unwrap_or(problem.group_in.saturating_mul(self.batched_groups));
        let copy = match self.reads {
            Reads::InPlace => 0,
            Reads::TileOrder => {
                // Each grid row begins with a tile.
                let columns = self.block_columns.saturating_add(self.nv * MOST_LANES);
                [together, self.block_rows, columns, element].into_iter().fold(1, usize::saturating_mul)
            }
            Reads::CopyPerShift | Reads::PaddedRows => self.input_tiles().working_bytes(together, element),
        };
        let sums = if self.keeps_sums() { self.sums(problem).saturating_mul(element) } else { 0 };
        let blocks = y.grid.div_ceil(self.block_rows) * x.grid.div_ceil(self.block_columns);
        [copy, sums, bytes_of_tasks(problem, &self.axes, blocks), 2 * CHUNK_BYTES]
            .into_iter()
            .fold(0, usize::saturating_add)
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Phases { mr: self.mr, last_mr: self.last_mr }
    }

    fn explain(&self) -> String {
        let source = match self.reads {
            Reads::InPlace if self.prefetch => "in place, prefetched",
            Reads::InPlace => "in place",
            Reads::CopyPerShift => "in a copy per column shift",
            Reads::PaddedRows => "in padded rows",
            Reads::TileOrder => "in a copy in the order of tiles",
        };
        let passes = self.pass.map_or(String::new(), |channels| format!(", in passes of {channels} channels"));
        let store = if self.rows { "from registers" } else { "through a buffer" };
        let groups =
            if self.batched_groups > 1 { format!(" of {} groups", self.batched_groups) } else { String::new() };
        format!(
            "tiles of {}x{}, rows stored {store}, input read {source}{passes}, blocks of {}x{} positions{groups}",
            self.mr, self.nv, self.block_rows, self.block_columns
        )
    }

    fn tables(&self, problem: &Problem, _lanes: usize) -> TractResult<TapTable> {
        let unshifted = matches!(self.reads, Reads::InPlace | Reads::TileOrder);
        TapTable::new(&self.axes, self.input_tiles(), unshifted, 1, problem.group_in)
    }

    fn run<E: Element>(
        &self,
        tables: &TapTable,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands, tables)?;
        let block = Block {
            rows: self.block_rows,
            columns: self.block_columns,
            // A block keeps the positions of a few tiles.
            least: 4 * self.nv * kernels.lanes,
            panel: self.mr,
            step: self.nv * kernels.lanes,
            row_step: 1,
            cost: self.cost,
        };
        let partition = Partition::for_threads(problem, &self.axes, &block);
        run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| prepared.run_task(task, scratch))
    }
}

impl DirectPositions {
    /// Whether the sums of a block are kept until the last of several passes over copies of the input.
    fn keeps_sums(&self) -> bool {
        self.pass.is_some() && !self.reads.in_place()
    }

    /// The input tiles of a block.
    fn input_tiles(&self) -> InputTiles {
        InputTiles::new(&self.axes, self.block_rows, self.block_columns, self.reads.copy_per_shift())
    }

    /// The most elements of such sums.
    fn sums(&self, problem: &Problem) -> usize {
        let height = self.mr.max(self.last_mr);
        let positions = (self.chunk_tiles * self.nv).saturating_mul(MOST_LANES);
        let panels = problem.group_out.div_ceil(self.mr);
        [panels, height, self.axes.phases(), positions].into_iter().fold(1, usize::saturating_mul)
    }
}

/// Returns the number of rows whose tiles run together, and the number of runs per row.
///
/// There are several runs only for a single row. A run has `chunk` positions, or up to twice as
/// many.
fn row_runs(chunk: usize, columns: usize, lanes: usize) -> (usize, usize) {
    match chunk / columns.next_multiple_of(lanes) {
        0 | 1 => (1, (columns / chunk).max(1)),
        rows => (rows, 1),
    }
}
