//! The output cut into disjoint pieces, one task's worth each, so that tasks may run on any thread.

use crate::element::Element;
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{Dispatch, Kernels};
use crate::layout::blocks_of;
use crate::layout::even_blocks;
use crate::layout::input_tile::{CopyPlan, InputTiles};
use crate::memory::reserved;
use crate::memory::{Aligned, Scratch};
use crate::output::epilogue::{ChannelEpilogue, Epilogue};
use crate::spec::{Axis, DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::{Either, Itertools};
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// Groups in as many parts as the threads want; all in one for a single thread, and in NXC, where a cell has them all.
pub(crate) fn group_parts(problem: &Problem, threads: usize) -> Vec<Range<usize>> {
    let parts = match (problem.data_format, threads) {
        (DataFormat::Nxc, _) | (_, 1) => 1,
        _ => (4 * threads).div_ceil(problem.batch.max(1)).min(problem.group),
    };
    blocks_of(problem.group, problem.group.div_ceil(parts))
}

/// Cells of a channel that are finished and narrowed together.
pub(crate) const STAGED_CELLS: usize = 256;

/// Bytes that they take, at most.
pub(crate) const STAGING_BYTES: usize = STAGED_CELLS * 16 * size_of::<f64>();

/// Outputs from so many bytes on are written past the caches: each line would be read into them before it is written, and be out again before it is read
/// (0.77 to 0.95 of the time on 42 to 134 MB; from 8 MB on nothing either way).
const STREAMED_FROM: usize = 32 << 20;

/// Cells of a plane of which several threads write short runs.
const SMALL_PLANE: usize = 4096;

/// (Output channel, tap) pairs from which on making parts, or a copy, of the input a second time is a small share of the work.
const WORTH_A_COPY: usize = 256;

/// Positions of a block that two threads had rather share than leave to one where neither channels nor groups can be shared.
const LEAST_POSITIONS: usize = 16;

/// Rows that register tiles write at once, at most.
pub(crate) const MOST_ROWS: usize = 16;

/// How the grid is cut. All lists are in memory order of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Grid rows of each block.
    pub rows: Vec<Range<usize>>,
    /// Grid columns of each block; more than one block only where there is a single grid row or where rows are one block each.
    pub columns: Vec<Range<usize>>,
    /// Groups of each part; a single part in NXC.
    pub groups: Vec<Range<usize>>,
    /// Output channels (of one group) of each part; a single part wherever a part has several groups.
    pub channels: Vec<Range<usize>>,
}

/// What a cut should look like, in grid positions.
pub(crate) struct Block {
    /// Rows of a block: for one thread, and at most.
    pub rows: usize,
    /// Columns of a block.
    pub columns: usize,
    /// Positions that a block should keep when more threads want smaller ones.
    pub least: usize,
    /// Output channels that are computed together.
    pub panel: usize,
    /// The estimated cost of everything.
    pub cost: u64,
}

impl Partition {
    /// Blocks for the current number of threads. More threads get smaller blocks, and where there are too few, parts of the output channels.
    pub fn for_threads(problem: &Problem, axes: &Axes, block: &Block) -> Partition {
        let (outer, y, x) = axes.parts();
        let outer: usize = outer.iter().map(|a| a.grid).product();
        let threads = crate::parallel::threads(block.cost);
        let groups = crate::output::partition::group_parts(problem, threads);
        let images = problem.batch * groups.len() * outer;
        let (needed, wanted) = match threads {
            1 => (1, 1),
            _ => (threads.div_ceil(images.max(1)), (2 * threads).div_ceil(images.max(1))),
        };
        // a number that threads share evenly
        let shared = |blocks: usize| if blocks > threads { blocks / threads * threads } else { blocks };
        let (mut rows, mut columns, mut parts) = (y.grid.div_ceil(block.rows), x.grid.div_ceil(block.columns), 1);
        if rows * columns < wanted {
            let prefer_channels = prefer_channels(problem);
            let shares_channels =
                groups.iter().all(|g| g.len() == 1) && (problem.data_format == DataFormat::Ncx || prefer_channels);
            if !(shares_channels && prefer_channels && problem.group_out / block.panel >= threads) {
                // smaller blocks than pay otherwise, where a thread would have none; where channels aren't shared, as small as can be
                let least = match (shares_channels, y.grid) {
                    (true, 1) => block.least,
                    (true, _) => block.least / 2,
                    (false, _) => LEAST_POSITIONS.min(block.least / 2),
                };
                let fit = |positions: usize| match y.grid {
                    1 => shared(x.grid / positions),
                    rows => shared(rows / positions.div_ceil(x.grid).max(1)),
                };
                let blocks = wanted.min(fit(block.least)).max(needed.min(fit(least)));
                if y.grid > 1 {
                    rows = rows.max(blocks);
                } else if y.output == 1 {
                    columns = columns.max(blocks);
                }
            }
            if rows * columns * images < threads && shares_channels {
                // each part copies the block's input for itself
                parts = threads.div_ceil((rows * columns * images).max(1));
            }
        }
        // of few tasks, none is left over
        if (threads..8 * threads).contains(&(rows * columns * images)) && !images.is_multiple_of(threads) {
            if y.grid > 1 {
                rows = rows.next_multiple_of(threads).min(y.grid);
            } else if y.output == 1 {
                columns = columns.next_multiple_of(threads).min(x.grid);
            }
        }
        let panels = problem.group_out.div_ceil(block.panel);
        let channels = even_blocks(panels, parts)
            .into_iter()
            .map(|p| p.start * block.panel..(p.end * block.panel).min(problem.group_out))
            .collect();
        Partition { rows: even_blocks(y.grid, rows), columns: even_blocks(x.grid, columns), groups, channels }
    }

    /// The same with blocks that begin at multiples of a number of rows and of columns. None is larger than the largest was, rounded up to such a multiple.
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

    /// Whether several tasks write channels of the same cells, so that no two cells of a task follow each other in the output.
    fn is_by_cell(&self, problem: &Problem) -> bool {
        problem.data_format == DataFormat::Nxc && self.channels.len() > 1
    }
}

/// Whether threads had rather share the channels, each part reading all of the input, than the positions, each block reading all weights. They had where an
/// output channel has no more cells than weights (two threads: 0.77 of the time on 256 to 256 channels of 14×14, 3×3 taps; 0.87 on 32×24, 4×4 taps, stride 2),
/// and where blocks of a plane would be short runs between those of other threads (0.67 on 128 to 512 channels of 28×28).
fn prefer_channels(problem: &Problem) -> bool {
    let over_axes = |size: fn(&Axis) -> usize| problem.axes.iter().map(size).fold(1, usize::saturating_mul);
    let (cells, taps) = (over_axes(|axis| axis.output), over_axes(|axis| axis.kernel));
    let short_runs = problem.data_format == DataFormat::Ncx && cells <= SMALL_PLANE;
    cells.saturating_mul(problem.batch) <= taps.saturating_mul(problem.group_in)
        || short_runs && taps.saturating_mul(problem.group_out) >= WORTH_A_COPY
}

/// A run of grid positions of one row, within a flat range.
pub(crate) struct FlatRun {
    /// Row of the block.
    pub row: usize,
    /// First column of the block.
    pub column: usize,
    /// Columns.
    pub len: usize,
    /// Distance from the flat range's begin.
    pub at: usize,
}

/// The runs of a range of the flat index `row·pitch + column`, of `columns` alone: elsewhere is no output, or another accumulator block's.
pub(crate) fn flat_runs(flat: Range<usize>, pitch: usize, columns: Range<usize>) -> impl Iterator<Item = FlatRun> {
    let rows = flat.start / pitch..flat.end.div_ceil(pitch);
    rows.filter_map(move |row| {
        let begin = flat.start.max(row * pitch + columns.start);
        let end = flat.end.min(row * pitch + columns.end);
        (begin < end).then(|| FlatRun { row, column: begin - row * pitch, len: end - begin, at: begin - flat.start })
    })
}

/// What one task computes and writes.
pub(crate) struct Task<'a, E> {
    /// Image of the batch.
    pub n: usize,
    /// Groups.
    pub groups: Range<usize>,
    /// Output channels of each group.
    pub channels: Range<usize>,
    /// Grid position on the outer axes.
    pub outer: Vec<usize>,
    /// Grid rows.
    pub rows: Range<usize>,
    /// Grid columns.
    pub columns: Range<usize>,
    pub output: TaskOutput<'a, E>,
}

/// The slices that a task writes.
pub(crate) struct TaskOutput<'a, E> {
    /// Per group and channel of the task (NCX) or once (NXC): per outer phase inside the output, the rows of the task. In NXC, where other tasks have other
    /// channels of the same cells: per outer phase, each cell.
    slices: Slices<'a, E>,
    /// The task's channels, where each cell is a slice.
    by_cell: Option<Range<usize>>,
    /// The outer phases (flat index over all outer axes) whose cell exists at the task's outer position, ascending.
    pub outer_phases: Vec<usize>,
    /// Output rows.
    pub rows: Range<usize>,
    /// Output columns.
    pub columns: Range<usize>,
    /// Elements between columns: one (NCX) or all channels (NXC).
    step: usize,
    /// Whether whole vectors are written past the caches.
    streamed: bool,
}

/// Parts of the output, in its order.
enum Slices<'a, E> {
    /// Anywhere.
    Listed(Vec<Slice<'a, E>>),
    /// One behind the other, of so many elements each, where a task has all of its channels' cells: a list of some hundred took a tenth of a layer's time.
    Even(Slice<'a, E>, usize),
}

impl<E> Slices<'_, E> {
    /// The index of the first cell of one.
    fn at(&self, index: usize) -> usize {
        match self {
            Slices::Listed(list) => list[index].at,
            Slices::Even(all, len) => all.at + index * len,
        }
    }

    fn cells(&mut self, index: usize) -> &mut [E] {
        match self {
            Slices::Listed(list) => list[index].cells,
            Slices::Even(all, len) => &mut all.cells[index * *len..][..*len],
        }
    }

    /// The cells of each `step`th, from `range.start + first` on.
    fn every(&mut self, range: Range<usize>, step: usize, first: usize) -> impl Iterator<Item = &mut [E]> {
        match self {
            Slices::Listed(list) => {
                Either::Left(list[range].chunks_exact_mut(step).map(move |slices| &mut *slices[first].cells))
            }
            Slices::Even(all, len) => {
                let len = *len;
                let cells = &mut all.cells[range.start * len..range.end * len];
                Either::Right(
                    cells.chunks_exact_mut((step * len).max(1)).map(move |cells| &mut cells[first * len..][..len]),
                )
            }
        }
    }
}

/// Consecutive cells of the output.
struct Slice<'a, E> {
    /// The index of the first.
    at: usize,
    cells: &'a mut [E],
}

/// What of the output no task has yet, in its order.
struct Rest<'a, E> {
    cells: &'a mut [E],
    taken: usize,
}

impl<'a, E> Rest<'a, E> {
    fn of(output: &'a mut [E]) -> Self {
        Rest { cells: output, taken: 0 }
    }

    /// The next elements.
    ///
    /// # Errors
    /// When the output has fewer.
    fn take(&mut self, len: usize) -> TractResult<Slice<'a, E>> {
        let left = self.cells.len();
        let parts = std::mem::take(&mut self.cells).split_at_mut_checked(len);
        let (cells, rest) = parts
            .with_context(|| format!("output partition: elements={len} from {} on, {left} are left", self.taken))?;
        let at = self.taken;
        (self.cells, self.taken) = (rest, at + len);
        Ok(Slice { at, cells })
    }

    /// Refuses a partition that leaves elements to no task: an output is new memory, all of which tasks have to write.
    ///
    /// # Errors
    /// When elements are left.
    fn finish(self) -> TractResult<()> {
        let Rest { cells, taken } = self;
        ensure!(cells.is_empty(), "output partition: elements={taken}, the output has {} more", cells.len());
        Ok(())
    }
}

/// Bytes that the list of tasks takes where a grid of rows and columns is cut into so many blocks.
pub(crate) fn bytes_of_tasks(problem: &Problem, axes: &Axes, blocks: usize) -> usize {
    let outer = axes.outer();
    let images = problem.batch.saturating_mul(blocks);
    let tasks = outer.iter().map(|axis| axis.grid).fold(images, usize::saturating_mul);
    let channels = if problem.data_format == DataFormat::Nxc { 1 } else { problem.group * problem.group_out };
    let slices = outer.iter().map(|axis| axis.output).fold(images.saturating_mul(channels), usize::saturating_mul);
    // a task has two more lists, of its position and of its phases
    let of_tasks = tasks.saturating_mul(size_of::<Task<f32>>() + 2 * 64);
    of_tasks.saturating_add(slices.saturating_mul(size_of::<Slice<f32>>()))
}

/// Runs `work` on every task of a cut, each with scratch memory. `cost` is the estimate for all of them.
pub(crate) fn run_tasks<E: Element>(
    problem: &Problem,
    axes: &Axes,
    partition: &Partition,
    cost: u64,
    output: &mut [E],
    work: impl Fn(&mut Task<E>, &mut Scratch<E::Compute>) -> TractResult<()> + Sync + Send,
) -> TractResult<()> {
    let mut tasks = tasks(problem, axes, partition, output)?;
    crate::parallel::parallel(&mut tasks, cost, |task| E::Compute::with_scratch(|scratch| work(task, scratch)))
}

/// Cuts the output into tasks, each element into one. `axes` are all spatial axes, outermost first, at least two.
///
/// # Errors
/// When the parts are not the whole output, or the memory of the list can't be had.
fn tasks<'a, E: Element>(
    problem: &Problem,
    axes: &Axes,
    partition: &Partition,
    output: &'a mut [E],
) -> TractResult<Vec<Task<'a, E>>> {
    let (outer_axes, y, x) = axes.parts();
    let interleaved = problem.data_format == DataFormat::Nxc;
    let step = if interleaved { problem.group * problem.group_out } else { 1 };
    let by_cell = partition.is_by_cell(problem);
    let streamed = size_of_val(output) >= STREAMED_FROM;
    let row_blocks: Vec<Range<usize>> = partition.rows.iter().map(|r| y.cells(r)).collect();
    let column_blocks: Vec<Range<usize>> = partition.columns.iter().map(|c| x.cells(c)).collect();
    let groups = &partition.groups;
    let outer_grid: usize = outer_axes.iter().map(|a| a.grid).product();

    let even = outer_grid == 1 && partition.rows.len() * partition.columns.len() == 1 && !by_cell;
    let mut tasks = reserved(
        "tasks",
        problem.batch
            * groups.len()
            * partition.channels.len()
            * outer_grid
            * partition.rows.len()
            * partition.columns.len(),
    )?;
    let mut rest = Rest::of(output);
    for n in 0..problem.batch {
        for group in groups {
            for channels in &partition.channels {
                for at in 0..outer_grid {
                    let outer = unflatten(at, outer_axes.iter().map(|a| a.grid));
                    let outer_phases = phases_inside(outer_axes, &outer);
                    for (rows, row_cells) in partition.rows.iter().zip(&row_blocks) {
                        for (columns, column_cells) in partition.columns.iter().zip(&column_blocks) {
                            let slices = match (interleaved, by_cell) {
                                (false, _) => group.len() * channels.len(),
                                (true, false) => 1,
                                (true, true) => row_cells.len() * column_cells.len(),
                            };
                            let slices = match even {
                                true => {
                                    let len = row_cells.len() * column_cells.len() * step;
                                    Slices::Even(rest.take(outer_phases.len() * slices * len)?, len)
                                }
                                false => Slices::Listed(reserved("tasks", outer_phases.len() * slices)?),
                            };
                            tasks.push(Task {
                                n,
                                groups: group.clone(),
                                channels: channels.clone(),
                                outer: outer.clone(),
                                rows: rows.clone(),
                                columns: columns.clone(),
                                output: TaskOutput {
                                    slices,
                                    by_cell: by_cell.then(|| channels.clone()),
                                    outer_phases: outer_phases.clone(),
                                    rows: row_cells.clone(),
                                    columns: column_cells.clone(),
                                    step,
                                    streamed,
                                },
                            });
                        }
                    }
                }
            }
        }
    }

    if !even {
        hand_out(problem, outer_axes, partition, (&row_blocks, &column_blocks), &mut rest, &mut tasks)?;
    }
    rest.finish()?;
    Ok(tasks)
}

/// Walks the output in memory order and hands each run of cells to its task. A task gets its slices by channel (NCX), then by outer cell, then by cell if other
/// tasks have other channels of it (NXC). The outer cells of one grid position come in the order of their phases.
fn hand_out<'a, E>(
    problem: &Problem,
    outer_axes: &[AxisPhases],
    partition: &Partition,
    (row_blocks, column_blocks): (&[Range<usize>], &[Range<usize>]),
    rest: &mut Rest<'a, E>,
    tasks: &mut [Task<'a, E>],
) -> TractResult<()> {
    let mut give = |task: &mut Task<'a, E>, len: usize| {
        let slice = rest.take(len)?;
        if let Slices::Listed(list) = &mut task.output.slices {
            list.push(slice);
        }
        TractResult::Ok(())
    };
    let in_block = |(rows, columns): (&Range<usize>, &Range<usize>)| rows.len() * columns.len();
    let blocks: Vec<usize> = row_blocks.iter().cartesian_product(column_blocks).map(in_block).collect();
    let place = |cell: usize| {
        let cell = unflatten(cell, outer_axes.iter().map(|a| a.output));
        let axes = outer_axes.iter().zip(&cell);
        axes.fold(0, |at, (axis, cell)| at * axis.grid + cell / axis.out_step)
    };
    let places: Vec<usize> = (0..outer_axes.iter().map(|a| a.output).product()).map(place).collect();
    let of_part = (outer_axes.iter().map(|a| a.grid).product::<usize>() * blocks.len()).max(1);
    let parts = partition.channels.iter().map(|channels| channels.len());
    if partition.is_by_cell(problem) {
        for tasks in tasks.chunks_mut(partition.channels.len() * of_part) {
            for place in &places {
                for (block, cells) in (place * blocks.len()..).zip(&blocks) {
                    for (_, (part, len)) in (0..*cells).cartesian_product(parts.clone().enumerate()) {
                        give(&mut tasks[part * of_part + block], len)?;
                    }
                }
            }
        }
        return Ok(());
    }
    let parts = (0..problem.batch).cartesian_product(&partition.groups).cartesian_product(parts);
    for (((_, group), part), tasks) in parts.zip(tasks.chunks_mut(of_part)) {
        let (planes, step) = match problem.data_format {
            DataFormat::Ncx => (group.len() * part, 1),
            DataFormat::Nxc => (1, problem.group * problem.group_out),
        };
        for (_, place) in (0..planes).cartesian_product(&places) {
            for (cells, task) in blocks.iter().zip(&mut tasks[place * blocks.len()..]) {
                give(task, cells * step)?;
            }
        }
    }
    Ok(())
}

impl<E> Task<'_, E> {
    /// The index that [`TaskOutput`] wants for output channel `channel` of group `g`.
    pub fn channel(&self, problem: &Problem, g: usize, channel: usize) -> usize {
        match problem.data_format {
            DataFormat::Ncx => (g - self.groups.start) * self.channels.len() + channel - self.channels.start,
            DataFormat::Nxc => g * problem.group_out + channel,
        }
    }

    /// What of the input goes where in input tiles of the task's positions; `strides` are those of the spatial axes.
    ///
    /// # Errors
    /// As [`InputTiles::copy_plan`].
    pub fn copy_plan(&self, input_tiles: &InputTiles, strides: &[usize]) -> TractResult<CopyPlan> {
        input_tiles.copy_plan(strides, &self.outer, self.rows.clone(), self.columns.clone())
    }

    /// Where the task's first grid position is in an input that shares the grid, given the strides of the spatial axes.
    pub fn offset(&self, spatial: &[usize]) -> usize {
        let at = self.outer.iter().chain([&self.rows.start, &self.columns.start]);
        at.zip(spatial).map(|(at, stride)| at * stride).sum()
    }
}

/// The flat indices of the outer phases whose cell exists at an outer grid position, ascending.
fn phases_inside(axes: &[AxisPhases], at: &[usize]) -> Vec<usize> {
    axes.iter().zip(at).fold(vec![0], |flat, (axis, u)| {
        let inside = axis.phases_inside(*u);
        flat.iter().flat_map(|f| inside.clone().map(move |r| f * axis.out_step + r)).collect()
    })
}

/// A flat index over axes of the given sizes, outermost first, as one index per axis.
pub(crate) fn unflatten(mut flat: usize, sizes: impl DoubleEndedIterator<Item = usize>) -> Vec<usize> {
    let mut at: Vec<usize> = sizes
        .rev()
        .map(|size| {
            let i = flat % size;
            flat /= size;
            i
        })
        .collect();
    at.reverse();
    at
}

/// Consecutive cells of a piece (see [`TaskOutput::cell`]), and where in a list those are that tell of them.
pub(crate) struct IndexedRun {
    /// The cells.
    pub cells: Range<usize>,
    /// Where in the list the first one is; the others follow.
    pub first: usize,
}

/// Cells of a row that are written together.
struct Places {
    /// Where the first one's first channel is in the output.
    first: usize,
    /// Elements from a cell to the next.
    step: usize,
    /// How many of them are inside the piece.
    count: usize,
}

impl<E: Element> TaskOutput<'_, E> {
    /// Writes a run of one output row: the interleaving of `phases` (equal lengths), whose first cell is column `column` of row `row`. Cells outside
    /// the piece are dropped. `channel` counts the task's own (NCX) or all of the output (NXC), see [`Task::channel`]; `outer` indexes
    /// [`TaskOutput::outer_phases`].
    #[expect(clippy::too_many_arguments)]
    pub fn write(
        &mut self,
        kernels: &Kernels<E::Compute>,
        channel: usize,
        outer: usize,
        row: usize,
        column: usize,
        phases: &[&[E::Compute]],
        epilogue: ChannelEpilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let len = phases.len() * phases[0].len();
        let inside = len.min(self.columns.end - column);
        let (first, step) = (self.index(channel, outer, row, column), self.step);
        let cells = self.cells_at(channel, outer, row, column);
        if step == 1
            && inside == len
            && let Some(to) = E::as_compute_mut(&mut cells[..len])
        {
            kernels.interleave(phases, to);
            epilogue.apply(first, 1, to);
            return Ok(());
        }
        let scratch = scratch.of(len)?;
        kernels.interleave(phases, scratch);
        let run = &mut scratch[..inside];
        epilogue.apply(first, step, run);
        self.put(channel, outer, row, column, run);
        Ok(())
    }

    /// Writes `count` cells of neighbouring channels in NXC: columns `column`, `column + step`, … of row `row`. They are in `from`, `width` elements apart.
    /// Cells outside the piece are dropped.
    pub fn write_cells(
        &mut self,
        kernels: &Kernels<E::Compute>,
        place: (usize, usize, usize),
        step: usize,
        channels: Range<usize>,
        (from, width, count): (&mut [E::Compute], usize, usize),
        epilogue: Epilogue<E>,
    ) {
        let (size, streamed) = (channels.len(), self.streamed && epilogue.is_empty());
        let Some(places) = self.places(place, step, channels.start, count) else { return };
        let finish = |cell: &mut [E::Compute], i: usize| {
            epilogue.apply_cell(channels.start, places.first + i * places.step, cell);
        };
        if let Some(to) = self.in_place(place, channels.start) {
            kernels.placed_cells(from, width, (places.count, size), to, places.step, streamed);
            if !epilogue.is_empty() {
                (0..places.count).for_each(|i| finish(&mut to[i * places.step..][..size], i));
            }
            return;
        }
        let (outer, row, column) = place;
        for (i, cell) in from.chunks_mut(width).enumerate().take(places.count) {
            finish(&mut cell[..size], i);
            let to = self.cells_at(channels.start, outer, row, column + i * step);
            E::narrow_slice(&cell[..size], &mut to[..size]);
        }
    }

    /// Writes `count` cells of neighbouring channels in NXC: columns `column`, `column + step`, … of row `row`. The elements of channel `j` of them are
    /// in `from`, from `starts[j]` on, with room for a vector behind the last. Cells outside the piece are dropped.
    #[expect(clippy::too_many_arguments)]
    pub fn write_rows(
        &mut self,
        kernels: &Kernels<E::Compute>,
        place: (usize, usize, usize),
        step: usize,
        first_channel: usize,
        (from, starts, count): (&[E::Compute], &[usize], usize),
        epilogue: Epilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let Some(places) = self.places(place, step, first_channel, count) else { return Ok(()) };
        let (outer, row, column) = place;
        for (m, starts) in starts.chunks(kernels.lanes).enumerate() {
            let (channel, size) = (first_channel + m * kernels.lanes, starts.len());
            let finish = |cell: &mut [E::Compute], i: usize| {
                if !epilogue.is_empty() {
                    epilogue.apply_cell(channel, places.first + channel - first_channel + i * places.step, cell);
                }
            };
            if let Some(to) = self.in_place(place, channel) {
                kernels.rows_to_placed_cells(from, starts, places.count, to, places.step);
                if !epilogue.is_empty() {
                    (0..places.count).for_each(|i| finish(&mut to[i * places.step..][..size], i));
                }
                continue;
            }
            let scratch = scratch.of(places.count * size)?;
            kernels.rows_to_placed_cells(from, starts, places.count, scratch, size);
            for (i, cell) in scratch.chunks_mut(size).enumerate() {
                finish(cell, i);
                let to = self.cells_at(channel, outer, row, column + i * step);
                E::narrow_slice(cell, &mut to[..size]);
            }
        }
        Ok(())
    }

    /// Writes a run of whole cells in NXC, from column `column` of row `row` on: `rows` are those of all channels of each of neighbouring columns. Cells
    /// outside the piece are dropped.
    pub fn write_whole_cells(
        &mut self,
        kernels: &Kernels<E::Compute>,
        (outer, row, column): (usize, usize, usize),
        rows: &[&[E::Compute]],
        epilogue: Epilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        if column >= self.columns.end {
            return Ok(());
        }
        let (step, size) = (self.step, rows.len());
        let len = (size * rows[0].len()).min((self.columns.end - column) * step);
        let at = self.cell(row, column) * step;
        let (first, cells) = (self.slices.at(outer), self.slices.cells(outer));
        let finished = |to: &mut [E::Compute]| {
            let (whole, rest) = to.split_at_mut(len / size * size);
            kernels.interleave(rows, whole);
            rest.iter_mut().zip(rows).for_each(|(to, row)| *to = row[len / size]);
            if !epilogue.is_empty() {
                to.chunks_mut(step)
                    .enumerate()
                    .for_each(|(i, cell)| epilogue.apply_cell(0, first + at + i * step, cell));
            }
        };
        let to = &mut cells[at..at + len];
        if let Some(to) = E::as_compute_mut(to) {
            finished(to);
            return Ok(());
        }
        let scratch = scratch.of(len)?;
        finished(scratch);
        E::narrow_slice(scratch, to);
        Ok(())
    }

    /// Where `count` cells go in NXC, from a channel of theirs on: columns `column`, `column + step`, … of row `row`. `None` where all are outside the piece.
    fn places(
        &self,
        (outer, row, column): (usize, usize, usize),
        step: usize,
        first_channel: usize,
        count: usize,
    ) -> Option<Places> {
        let left = self.columns.end.checked_sub(column).filter(|left| *left > 0)?;
        let first = self.index(first_channel, outer, row, column);
        Some(Places { first, step: step * self.step, count: count.min(left.div_ceil(step)) })
    }

    /// The output from a channel of a cell on (NXC), where sums may be written there and cells follow each other.
    fn in_place(&mut self, (outer, row, column): (usize, usize, usize), channel: usize) -> Option<&mut [E::Compute]> {
        if self.by_cell.is_some() { None } else { E::as_compute_mut(self.cells_at(channel, outer, row, column)) }
    }

    /// A slice from a channel of a cell on; the arguments are those of [`TaskOutput::write`].
    fn cells_at(&mut self, channel: usize, outer: usize, row: usize, column: usize) -> &mut [E] {
        let (slice, at) = self.find(channel, outer, row, column);
        &mut self.slices.cells(slice)[at..]
    }

    /// Writes consecutive cells of one channel; the arguments are those of [`TaskOutput::write`].
    pub fn put(&mut self, channel: usize, outer: usize, row: usize, column: usize, cells: &[E::Compute]) {
        if self.by_cell.is_some() {
            for (i, from) in cells.iter().enumerate() {
                self.cells_at(channel, outer, row, column + i)[0] = E::narrow(*from);
            }
            return;
        }
        let step = self.step;
        let to = self.cells_at(channel, outer, row, column);
        if step == 1 {
            E::narrow_slice(cells, &mut to[..cells.len()]);
        } else {
            to.iter_mut().step_by(step).zip(cells).for_each(|(to, from)| *to = E::narrow(*from));
        }
    }

    /// The slice of a cell, and its index there; the arguments are those of [`TaskOutput::write`].
    fn find(&self, channel: usize, outer: usize, row: usize, column: usize) -> (usize, usize) {
        let cell = self.cell(row, column);
        match (&self.by_cell, self.step) {
            (Some(channels), _) => (outer * self.rows.len() * self.columns.len() + cell, channel - channels.start),
            (None, 1) => (channel * self.outer_phases.len() + outer, cell),
            (None, step) => (outer, cell * step + channel),
        }
    }

    /// The index of a cell in the output; the arguments are those of [`TaskOutput::write`].
    pub fn index(&self, channel: usize, outer: usize, row: usize, column: usize) -> usize {
        let (slice, at) = self.find(channel, outer, row, column);
        self.slices.at(slice) + at
    }

    /// Elements between cells of a row in the output.
    pub fn stride(&self) -> usize {
        self.step
    }

    /// The place of a cell among the piece's own of one channel: rows follow each other.
    pub fn cell(&self, row: usize, column: usize) -> usize {
        (row - self.rows.start) * self.columns.len() + column - self.columns.start
    }

    /// Consecutive cells (see [`TaskOutput::cell`]) of consecutive channels (NCX), `channels` counting the task's own.
    fn segments(
        &mut self,
        channels: Range<usize>,
        outer: usize,
        cells: Range<usize>,
    ) -> impl Iterator<Item = &mut [E]> {
        let count = self.outer_phases.len();
        let slices = self.slices.every(channels.start * count..channels.end * count, count, outer);
        slices.map(move |slice| &mut slice[cells.clone()])
    }

    /// Writes runs of cells of at most a vector of consecutive channels (NCX): those of the cell that `starts` tells of are side by side in `from`, from there
    /// on. `starts` goes on for a vector behind the last run's last cell. `channel` is the first one's number in the output; runs that are less than a square,
    /// or of another element type, go by way of `rows`, [`STAGED_CELLS`] for each lane.
    #[expect(clippy::too_many_arguments)]
    pub fn write_transposed(
        &mut self,
        kernels: &Kernels<E::Compute>,
        channels: Range<usize>,
        outer: usize,
        runs: &[IndexedRun],
        from: &[E::Compute],
        starts: &[usize],
        (epilogue, channel): (Epilogue<E>, usize),
        rows: &mut [E::Compute],
    ) {
        let (lanes, streamed) = (kernels.lanes, self.streamed && epilogue.is_empty());
        let slice = |lane: usize| (channels.start + lane) * self.outer_phases.len() + outer;
        let place = |lane: usize| self.slices.at(slice(lane));
        let places: SmallVec<[usize; 16]> =
            if epilogue.is_empty() { SmallVec::new() } else { (0..channels.len()).map(place).collect() };
        let finish = |lane: usize, cell: usize, results: &mut [E::Compute]| {
            if let Some(place) = places.get(lane) {
                epilogue.of(channel + lane).apply(place + cell, 1, results);
            }
        };
        let whole = |run: &IndexedRun| run.cells.len() >= lanes;
        // rows are gathered once for all runs: that takes as long as a few squares
        let mut in_place = SmallVec::<[&mut [E::Compute]; 16]>::new();
        let all = 0..self.rows.len() * self.columns.len();
        let stored = runs.iter().any(whole)
            && self
                .segments(channels.clone(), outer, all)
                .all(|plane| E::as_compute_mut(plane).map(|plane| in_place.push(plane)).is_some());
        if stored {
            for IndexedRun { cells, first } in runs.iter().filter(|run| whole(run)) {
                kernels.cells_to_rows(from, &starts[*first..first + cells.len()], &mut in_place, cells.start, streamed);
                for (lane, plane) in in_place.iter_mut().enumerate().take(places.len()) {
                    finish(lane, cells.start, &mut plane[cells.clone()]);
                }
            }
        }
        drop(in_place);
        for IndexedRun { cells, first } in runs.iter().filter(|run| !(stored && whole(run))) {
            for at in (0..cells.len()).step_by(STAGED_CELLS) {
                let count = STAGED_CELLS.min(cells.len() - at);
                let mut rows = rows.chunks_mut(STAGED_CELLS).take(channels.len()).collect::<SmallVec<[_; 16]>>();
                kernels.cells_to_rows(from, &starts[first + at..first + at + count.max(lanes)], &mut rows, 0, false);
                let cell = cells.start + at;
                let segments = self.segments(channels.clone(), outer, cell..cell + count);
                for (lane, (to, from)) in segments.zip(rows).enumerate() {
                    finish(lane, cell, &mut from[..count]);
                    E::narrow_slice(&from[..count], to);
                }
            }
        }
    }

    /// All channels of consecutive output rows (NXC), of a task that has whole rows.
    pub fn cells_of_rows(&mut self, outer: usize, rows: Range<usize>) -> &mut [E] {
        let len = self.columns.len() * self.step;
        &mut self.slices.cells(outer)[(rows.start - self.rows.start) * len..][..rows.len() * len]
    }

    /// Whole output rows of one channel as one slice; `None` where the layout forbids, or where the task does not have whole rows.
    pub fn whole_rows(&mut self, width: usize, channel: usize, outer: usize, rows: Range<usize>) -> Option<&mut [E]> {
        if self.step != 1 || self.columns != (0..width) {
            return None;
        }
        let cells = self.slices.cells(channel * self.outer_phases.len() + outer);
        Some(&mut cells[(rows.start - self.rows.start) * width..(rows.end - self.rows.start) * width])
    }

    /// Writes one whole output row of one channel, `row` being the output's.
    pub fn write_row(&mut self, channel: usize, outer: usize, row: usize, cells: &[E::Compute]) {
        self.put(channel, outer, row, self.columns.start, cells);
    }

    /// Collects consecutive cells (see [`TaskOutput::cell`]) of consecutive channels, as slices of compute elements to be written in place, in `slices`, which was empty: it
    /// is large to move. Whether that was possible: the layout or the element type may forbid it.
    pub fn channel_cells<'s>(
        &'s mut self,
        channels: Range<usize>,
        outer: usize,
        cells: Range<usize>,
        slices: &mut SmallVec<[&'s mut [E::Compute]; MOST_ROWS]>,
    ) -> bool {
        let of_rows = self.step == 1;
        for cells in self.segments(channels, outer, cells) {
            match E::as_compute_mut(cells) {
                Some(cells) if of_rows => slices.push(cells),
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Direction;

    fn problem(data_format: DataFormat, rank: usize) -> Problem {
        let axis = Axis { input: 5, kernel: 3, stride: 2, dilation: 1, pad_begin: 1, output: 9 };
        let direction = Direction::Transposed;
        Problem { direction, data_format, batch: 2, group: 2, group_in: 3, group_out: 4, axes: tvec!(axis; rank) }
    }

    /// Everything at once, in blocks of rows, and in parts of the channels.
    fn cuts(problem: &Problem, axes: &Axes) -> Vec<Partition> {
        let (_, y, x) = axes.parts();
        let whole = Partition {
            rows: even_blocks(y.grid, 1),
            columns: even_blocks(x.grid, 1),
            groups: even_blocks(problem.group, 1),
            channels: even_blocks(problem.group_out, 1),
        };
        let (rows, columns) = (crate::layout::even_blocks(y.grid, y.grid), crate::layout::even_blocks(x.grid, 2));
        let mut cuts = vec![Partition { rows, columns, ..whole.clone() }];
        if problem.data_format == DataFormat::Ncx {
            let groups = (0..problem.group).map(|g| g..g + 1).collect();
            cuts.push(Partition { groups, channels: vec![0..1, 1..4], ..whole.clone() });
        }
        cuts.push(whole);
        cuts
    }

    #[test]
    fn a_partition_is_all_of_the_output() -> TractResult<()> {
        for (rank, data_format) in (1..=3).flat_map(|rank| [DataFormat::Ncx, DataFormat::Nxc].map(|of| (rank, of))) {
            let mut problem = problem(data_format, rank);
            for group in [2, 1] {
                problem.group = group;
                let axes = Axes::new(&problem);
                let len: usize = problem.output_shape().iter().product();
                let mut cuts = cuts(&problem, &axes);
                if group == 1 {
                    // parts of the channels of each cell
                    let parts = Partition { channels: vec![0..1, 1..4], ..cuts[0].clone() };
                    cuts.push(parts);
                }
                for partition in cuts {
                    let mut output = vec![0f32; len + 1];
                    assert!(!tasks(&problem, &axes, &partition, &mut output[..len])?.is_empty());
                    let short = tasks(&problem, &axes, &partition, &mut output[..len - 1]).err().map(|e| e.to_string());
                    assert!(short.is_some_and(|e| e.starts_with("output partition: elements=")), "{partition:?}");
                    let long = tasks(&problem, &axes, &partition, &mut output[..]).err().map(|e| e.to_string());
                    let words = format!("output partition: elements={len}, the output has 1 more");
                    assert_eq!(long, Some(words), "{partition:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_cut_without_a_row_is_refused() {
        let problem = problem(DataFormat::Ncx, 2);
        let axes = Axes::new(&problem);
        let mut output = vec![0f32; problem.output_shape().iter().product()];
        let mut partition = cuts(&problem, &axes).remove(0);
        partition.rows.pop();
        let error = tasks(&problem, &axes, &partition, &mut output).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.starts_with("output partition: elements=")));
    }
}
