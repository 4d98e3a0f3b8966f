//! The output partition: the blocks of positions, and the parts of groups and channels, that tasks
//! compute.

use crate::geometry::Axes;
use crate::ranges::{blocks_of, even_blocks};
use crate::spec::{Axis, DataFormat, Problem};
use std::ops::Range;

/// Splits the groups into parts for the threads. Each part has so many `tasks` already, as one per image.
///
/// There is a single part for a single thread, and for channels-last data, where a pixel holds all
/// groups.
pub(crate) fn group_parts(problem: &Problem, threads: usize, tasks: usize) -> Vec<Range<usize>> {
    let parts = match (problem.data_format, threads) {
        (DataFormat::Nxc, _) | (_, 1) => 1,
        _ => (4 * threads).div_ceil(tasks.max(1)).min(problem.group),
    };
    blocks_of(problem.group, problem.group.div_ceil(parts))
}

/// The plane size, in elements, up to which several threads would write only short runs of a plane.
const SMALL_PLANE: usize = 4096;

/// The number of (output channel, tap) pairs from which a second copy of the input, or a second
/// split into limbs, costs little compared to the rest of the work.
const WORTH_A_COPY: usize = 256;

/// The number of output elements of a channel from which reading all weights once more costs less than threads that
/// wait for one with more panels.
const WORTH_WEIGHTS: usize = 128;

/// The smallest block of positions worth a thread of its own, if neither channels nor groups can be
/// split among threads.
const LEAST_POSITIONS: usize = 16;

/// The partition of the grid. All lists are in memory order of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Grid rows of each block.
    pub rows: Vec<Range<usize>>,
    /// Grid columns of each block. There is more than one block only if the grid has a single row
    /// or if each row is a block of its own.
    pub columns: Vec<Range<usize>>,
    /// Groups of each part. A single part for channels-last data.
    pub groups: Vec<Range<usize>>,
    /// Output channels (of one group) of each part. A single part if a part has several groups.
    pub channels: Vec<Range<usize>>,
}

/// The desired block of a partition, in grid positions.
pub(crate) struct Block {
    /// Rows per block: the number for one thread, and the maximum for several.
    pub rows: usize,
    /// Columns per block.
    pub columns: usize,
    /// The positions that a block should keep even if more threads would need smaller blocks.
    pub least: usize,
    /// Output channels that are computed together.
    pub panel: usize,
    /// Columns that are computed together. If threads split a single row, their blocks begin at multiples of it.
    pub step: usize,
    /// Rows that are computed together. Threads get no more blocks of rows than there are such steps.
    pub row_step: usize,
    /// The estimated cost of the whole layer.
    pub cost: u64,
}

impl Partition {
    /// The partition for the current number of threads.
    ///
    /// More threads get smaller blocks. If there are still too few blocks, the output channels are
    /// split too.
    pub fn for_threads(problem: &Problem, axes: &Axes, block: &Block) -> Partition {
        let (outer, y, x) = axes.parts();
        let outer: usize = outer.iter().map(|a| a.grid).product();
        let threads = crate::parallel::threads(block.cost);
        let groups = group_parts(problem, threads, problem.batch);
        let images = problem.batch * groups.len() * outer;
        let (needed, wanted) = match threads {
            1 => (1, 1),
            _ => (threads.div_ceil(images.max(1)), (2 * threads).div_ceil(images.max(1))),
        };
        // Rounds down to a number of blocks that divides evenly among the threads.
        let shared = |blocks: usize| if blocks > threads { blocks / threads * threads } else { blocks };
        let panels = problem.group_out.div_ceil(block.panel);
        let row_steps = y.grid.div_ceil(block.row_step.max(1));
        let (mut rows, mut columns, mut parts) = (y.grid.div_ceil(block.rows), x.grid.div_ceil(block.columns), 1);
        if rows * columns < wanted {
            let prefer_channels = prefer_channels(problem, panels, threads);
            let shares_channels = panels > 1
                && groups.iter().all(|g| g.len() == 1)
                && (problem.data_format == DataFormat::Ncx || prefer_channels);
            if !(shares_channels && prefer_channels && problem.group_out / block.panel >= threads) {
                // If a thread would have no block, allow smaller blocks than are otherwise
                // worthwhile. Allow the smallest if channels can't be split.
                let least = match (shares_channels, y.grid) {
                    (true, 1) => block.least,
                    (true, _) => block.least / 2,
                    (false, _) => LEAST_POSITIONS.min(block.least / 2),
                };
                let fit = |positions: usize| match y.grid {
                    1 => shared(x.grid / positions),
                    rows => shared((rows / positions.div_ceil(x.grid).max(1)).min(row_steps)),
                };
                let blocks = wanted.min(fit(block.least)).max(needed.min(fit(least)));
                if y.grid > 1 {
                    rows = rows.max(blocks);
                } else if y.output == 1 {
                    columns = columns.max(blocks);
                }
            }
            if rows * columns * images < threads && shares_channels {
                // Each part copies the block's input for itself.
                parts = threads.div_ceil((rows * columns * images).max(1));
            }
        }
        // With few tasks, make their number a multiple of the threads.
        if (threads..8 * threads).contains(&(rows * columns * images)) && !images.is_multiple_of(threads) {
            if y.grid > 1 {
                rows = rows.next_multiple_of(threads).min(row_steps.max(rows));
            } else if y.output == 1 {
                columns = columns.next_multiple_of(threads).min(x.grid);
            }
        }
        let channels = even_blocks(panels, parts)
            .into_iter()
            .map(|p| p.start * block.panel..(p.end * block.panel).min(problem.group_out))
            .collect();
        let steps = even_blocks(x.grid.div_ceil(block.step), columns).into_iter();
        let in_steps: Vec<_> =
            steps.map(|steps| steps.start * block.step..(steps.end * block.step).min(x.grid)).collect();
        let columns = match in_steps.iter().all(|columns| columns.len() <= block.columns) {
            true => in_steps,
            false => even_blocks(x.grid, columns),
        };
        Partition { rows: even_blocks(y.grid, rows), columns, groups, channels }
    }

    /// The same partition with blocks that begin at multiples of `rows` and `columns`.
    ///
    /// No block exceeds the largest original block, rounded up to such a multiple.
    pub fn in_steps(mut self, [rows, columns]: [usize; 2]) -> Partition {
        for (blocks, step) in [(&mut self.rows, rows), (&mut self.columns, columns)] {
            let end = blocks.last().map_or(0, |block| block.end);
            for block in blocks.iter_mut() {
                *block = block.start.next_multiple_of(step).min(end)..block.end.next_multiple_of(step).min(end);
            }
            blocks.retain(|block| !block.is_empty());
        }
        self
    }

    /// Whether several tasks write channels of the same pixels, so that a task's pixels are not
    /// contiguous in the output.
    pub fn splits_pixels(&self, problem: &Problem) -> bool {
        problem.data_format == DataFormat::Nxc && self.channels.len() > 1
    }
}

/// Whether threads should split the channels rather than the positions.
///
/// If channels are split, each part reads all of the input. If positions are split, each block
/// reads all weights. Splitting channels is faster in two cases: if an output channel has no more
/// output elements than weights, and if blocks of a plane would be short runs between those of
/// other threads. In either case the busiest thread must not have many more panels than its share, unless the
/// outputs are too few to pay for reading the weights again.
fn prefer_channels(problem: &Problem, panels: usize, threads: usize) -> bool {
    let over_axes = |size: fn(&Axis) -> usize| problem.axes.iter().map(size).fold(1, usize::saturating_mul);
    let (plane, taps) = (over_axes(|axis| axis.output), over_axes(|axis| axis.kernel));
    let outputs = plane.saturating_mul(problem.batch);
    // The panels of the busiest thread are at most `(n + 1)/n` of its share.
    let are_even = |n: usize| n * panels.next_multiple_of(threads) <= (n + 1) * panels;
    if outputs <= taps.saturating_mul(problem.group_in) {
        return outputs < WORTH_WEIGHTS || are_even(8);
    }
    let short_runs = problem.data_format == DataFormat::Ncx && plane <= SMALL_PLANE;
    short_runs && taps.saturating_mul(problem.group_out) >= WORTH_A_COPY && are_even(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Direction;
    use std::sync::OnceLock;
    use tract_core::internal::tvec;
    use tract_core::prelude::multithread::{Executor, multithread_tract_scope};

    /// The partition of a forward layer for one thread or two. Register tiles have 32 columns and 32 output channels.
    fn partition(threads: usize, group_out: usize, axes: &[Axis]) -> Partition {
        partition_in_steps(threads, group_out, axes, 1)
    }

    /// As [`partition`], with so many rows computed together.
    fn partition_in_steps(threads: usize, group_out: usize, axes: &[Axis], row_step: usize) -> Partition {
        let (direction, data_format) = (Direction::Forward, DataFormat::Ncx);
        let problem =
            Problem { direction, data_format, batch: 1, group: 1, group_in: 64, group_out, axes: axes.into() };
        let axes = Axes::new(&problem);
        let (rows, columns) = (axes.rows().grid, axes.columns().grid);
        let block = Block { rows, columns, least: 64, panel: 32, step: 32, row_step, cost: u64::MAX };
        static POOL: OnceLock<Executor> = OnceLock::new();
        let executor = match threads {
            1 => Executor::SingleThread,
            _ => POOL.get_or_init(|| Executor::multithread(2)).clone(),
        };
        multithread_tract_scope(executor, || Partition::for_threads(&problem, &axes, &block))
    }

    fn axis(input: usize, kernel: usize) -> Axis {
        Axis { input, kernel, stride: 1, dilation: 1, pad_begin: kernel as i64 / 2, output: input }
    }

    #[test]
    fn blocks_of_a_row_are_whole_register_tiles() {
        let row = tvec![axis(1, 1), axis(676, 1)];
        assert_eq!(partition(1, 64, &row).columns, even_blocks(676, 1));
        assert_eq!(partition(2, 64, &row).columns, [0..160, 160..352, 352..512, 512..676]);
    }

    #[test]
    fn threads_get_as_many_panels() {
        let plane = tvec![axis(24, 3), axis(32, 3)];
        let channels_and_rows = |group_out: usize| {
            let Partition { channels, rows, .. } = partition(2, group_out, &plane);
            (channels.len(), rows.len())
        };
        assert_eq!(channels_and_rows(128), (2, 1));
        // of three panels, one thread would have two
        assert_eq!(channels_and_rows(96), (1, 4));
        assert_eq!(channels_and_rows(160), (2, 1));
    }

    #[test]
    fn a_single_panel_is_split_by_positions() {
        let Partition { channels, rows, .. } = partition(2, 32, &[axis(10, 3), axis(6, 3)]);
        assert_eq!((channels.len(), rows.len()), (1, 2));
    }

    #[test]
    fn channels_are_split_if_rows_are_computed_together() {
        let plane = tvec![axis(80, 3), axis(80, 3)];
        let channels_and_rows = |row_step: usize| {
            let Partition { channels, rows, .. } = partition_in_steps(2, 192, &plane, row_step);
            (channels.len(), rows.len())
        };
        assert_eq!(channels_and_rows(1), (1, 4));
        assert_eq!(channels_and_rows(28), (1, 2));
        assert_eq!(channels_and_rows(112), (2, 1));
    }

    #[test]
    fn few_outputs_share_weights_however_many_panels_there_are() {
        // 64·9 weights per output channel, which are more than its outputs
        let channels_and_rows = |group_out: usize, size: usize| {
            let Partition { channels, rows, .. } = partition(2, group_out, &[axis(size, 3), axis(size, 3)]);
            (channels.len(), rows.len())
        };
        assert_eq!(channels_and_rows(128, 16), (2, 1));
        assert_eq!(channels_and_rows(96, 16), (1, 4));
        assert_eq!(channels_and_rows(160, 16), (1, 4));
        assert_eq!(channels_and_rows(160, 8), (2, 1));
    }
}
