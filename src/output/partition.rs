//! The output partition: disjoint slices of the output, per task, so that tasks may run on any
//! thread.

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

/// Splits the groups into parts for the threads.
///
/// There is a single part for a single thread, and for channels-last data, where a pixel holds all
/// groups.
pub(crate) fn group_parts(problem: &Problem, threads: usize) -> Vec<Range<usize>> {
    let parts = match (problem.data_format, threads) {
        (DataFormat::Nxc, _) | (_, 1) => 1,
        _ => (4 * threads).div_ceil(problem.batch.max(1)).min(problem.group),
    };
    blocks_of(problem.group, problem.group.div_ceil(parts))
}

/// Elements of a channel that are finished and narrowed together.
pub(crate) const STAGED_ELEMENTS: usize = 256;

/// The most bytes of a staging buffer: this many elements for each lane.
pub(crate) const STAGING_BYTES: usize = STAGED_ELEMENTS * 16 * size_of::<f64>();

/// The output size in bytes from which stores bypass the caches.
///
/// An ordinary store reads the line into the cache first. On such outputs the line is evicted again
/// before anything reads it.
const STREAMED_FROM: usize = 32 << 20;

/// The plane size, in elements, up to which several threads would write only short runs of a plane.
const SMALL_PLANE: usize = 4096;

/// The number of (output channel, tap) pairs from which a second copy of the input, or a second
/// split into limbs, costs little compared to the rest of the work.
const WORTH_A_COPY: usize = 256;

/// The smallest block of positions worth a thread of its own, if neither channels nor groups can be
/// split among threads.
const LEAST_POSITIONS: usize = 16;

/// The most rows that a register tile writes.
pub(crate) const MOST_ROWS: usize = 16;

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
        let groups = crate::output::partition::group_parts(problem, threads);
        let images = problem.batch * groups.len() * outer;
        let (needed, wanted) = match threads {
            1 => (1, 1),
            _ => (threads.div_ceil(images.max(1)), (2 * threads).div_ceil(images.max(1))),
        };
        // Rounds down to a number of blocks that divides evenly among the threads.
        let shared = |blocks: usize| if blocks > threads { blocks / threads * threads } else { blocks };
        let (mut rows, mut columns, mut parts) = (y.grid.div_ceil(block.rows), x.grid.div_ceil(block.columns), 1);
        if rows * columns < wanted {
            let prefer_channels = prefer_channels(problem);
            let shares_channels =
                groups.iter().all(|g| g.len() == 1) && (problem.data_format == DataFormat::Ncx || prefer_channels);
            if !(shares_channels && prefer_channels && problem.group_out / block.panel >= threads) {
                // If a thread would have no block, allow smaller blocks than are otherwise worthwhile.
                // Allow the smallest if channels can't be split.
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
                // Each part copies the block's input for itself.
                parts = threads.div_ceil((rows * columns * images).max(1));
            }
        }
        // With few tasks, make their number a multiple of the threads.
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
    fn splits_pixels(&self, problem: &Problem) -> bool {
        problem.data_format == DataFormat::Nxc && self.channels.len() > 1
    }
}

/// Whether threads should split the channels rather than the positions.
///
/// If channels are split, each part reads all of the input. If positions are split, each block
/// reads all weights. Splitting channels is faster in two cases: if an output channel has no more
/// output elements than weights, and if blocks of a plane would be short runs between those of
/// other threads.
fn prefer_channels(problem: &Problem) -> bool {
    let over_axes = |size: fn(&Axis) -> usize| problem.axes.iter().map(size).fold(1, usize::saturating_mul);
    let (outputs, taps) = (over_axes(|axis| axis.output), over_axes(|axis| axis.kernel));
    let short_runs = problem.data_format == DataFormat::Ncx && outputs <= SMALL_PLANE;
    outputs.saturating_mul(problem.batch) <= taps.saturating_mul(problem.group_in)
        || short_runs && taps.saturating_mul(problem.group_out) >= WORTH_A_COPY
}

/// A run of grid positions of one row, within a flat range.
pub(crate) struct FlatRun {
    /// Row of the block.
    pub row: usize,
    /// First column of the block.
    pub column: usize,
    /// Number of columns.
    pub len: usize,
    /// Distance from the start of the flat range.
    pub at: usize,
}

/// The runs of a range of the flat index `row·pitch + column`, restricted to `columns`.
///
/// The other columns have no output or belong to another accumulator block.
pub(crate) fn flat_runs(flat: Range<usize>, pitch: usize, columns: Range<usize>) -> impl Iterator<Item = FlatRun> {
    let rows = flat.start / pitch..flat.end.div_ceil(pitch);
    rows.filter_map(move |row| {
        let begin = flat.start.max(row * pitch + columns.start);
        let end = flat.end.min(row * pitch + columns.end);
        (begin < end).then(|| FlatRun { row, column: begin - row * pitch, len: end - begin, at: begin - flat.start })
    })
}

/// The part of the output that one task computes and writes.
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

/// The output slices that a task writes.
pub(crate) struct TaskOutput<'a, E> {
    /// Channels first: per group and channel of the task, per outer phase inside the output, the
    /// task's rows.
    /// Channels last: per outer phase, the task's rows.
    /// Channels last, if other tasks have other channels of the same pixels: per outer phase, each
    /// pixel.
    slices: Slices<'a, E>,
    /// The task's channels, if each pixel is a slice of its own.
    pixel_channels: Option<Range<usize>>,
    /// The outer phases (flat indices over all outer axes) that are inside the output at the task's
    /// outer position, ascending.
    pub outer_phases: Vec<usize>,
    /// Output rows.
    pub rows: Range<usize>,
    /// Output columns.
    pub columns: Range<usize>,
    /// Elements between columns: one (NCX) or all channels (NXC).
    step: usize,
    /// Whether whole vectors are stored past the caches.
    streamed: bool,
}

/// Slices of the output, in memory order.
enum Slices<'a, E> {
    /// Slices at any offsets.
    Listed(Vec<Slice<'a, E>>),
    /// Contiguous slices with this many elements each, if a task has all elements of its channels.
    /// A list would take noticeable time to build.
    Even(Slice<'a, E>, usize),
}

impl<E> Slices<'_, E> {
    /// The output index of a slice's first element.
    fn at(&self, index: usize) -> usize {
        match self {
            Slices::Listed(list) => list[index].at,
            Slices::Even(all, len) => all.at + index * len,
        }
    }

    fn elements(&mut self, index: usize) -> &mut [E] {
        match self {
            Slices::Listed(list) => list[index].elements,
            Slices::Even(all, len) => &mut all.elements[index * *len..][..*len],
        }
    }

    /// Of each `step` slices of a range, the elements of the one with index `first`.
    fn every(&mut self, range: Range<usize>, step: usize, first: usize) -> impl Iterator<Item = &mut [E]> {
        match self {
            Slices::Listed(list) => {
                Either::Left(list[range].chunks_exact_mut(step).map(move |slices| &mut *slices[first].elements))
            }
            Slices::Even(all, len) => {
                let len = *len;
                let elements = &mut all.elements[range.start * len..range.end * len];
                Either::Right(
                    elements
                        .chunks_exact_mut((step * len).max(1))
                        .map(move |elements| &mut elements[first * len..][..len]),
                )
            }
        }
    }
}

/// Consecutive elements of the output.
struct Slice<'a, E> {
    /// The output index of the first element.
    at: usize,
    elements: &'a mut [E],
}

/// The part of the output that no task has taken yet, in memory order.
struct Rest<'a, E> {
    elements: &'a mut [E],
    taken: usize,
}

impl<'a, E> Rest<'a, E> {
    fn of(output: &'a mut [E]) -> Self {
        Rest { elements: output, taken: 0 }
    }

    /// Takes the next elements.
    ///
    /// # Errors
    /// The output has fewer elements left.
    fn take(&mut self, len: usize) -> TractResult<Slice<'a, E>> {
        let left = self.elements.len();
        let parts = std::mem::take(&mut self.elements).split_at_mut_checked(len);
        let (elements, rest) = parts
            .with_context(|| format!("output partition: elements={len} from {} on, {left} are left", self.taken))?;
        let at = self.taken;
        (self.elements, self.taken) = (rest, at + len);
        Ok(Slice { at, elements })
    }

    /// Checks that no elements are left. The output is uninitialized memory, which the tasks must
    /// write completely.
    ///
    /// # Errors
    /// Some elements are left.
    fn finish(self) -> TractResult<()> {
        let Rest { elements, taken } = self;
        ensure!(elements.is_empty(), "output partition: elements={taken}, the output has {} more", elements.len());
        Ok(())
    }
}

/// Bytes of the task list if a grid of rows and columns is split into `blocks` blocks.
pub(crate) fn bytes_of_tasks(problem: &Problem, axes: &Axes, blocks: usize) -> usize {
    let outer = axes.outer();
    let images = problem.batch.saturating_mul(blocks);
    let tasks = outer.iter().map(|axis| axis.grid).fold(images, usize::saturating_mul);
    let channels = if problem.data_format == DataFormat::Nxc { 1 } else { problem.group * problem.group_out };
    let slices = outer.iter().map(|axis| axis.output).fold(images.saturating_mul(channels), usize::saturating_mul);
    // Each task has two more lists: its position and its phases.
    let of_tasks = tasks.saturating_mul(size_of::<Task<f32>>() + 2 * 64);
    of_tasks.saturating_add(slices.saturating_mul(size_of::<Slice<f32>>()))
}

/// Runs `work` on every task of a partition, each with scratch memory. `cost` is the estimate for
/// all tasks.
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

/// Partitions the output into tasks, so that each element belongs to exactly one.
///
/// `axes` are all spatial axes, outermost first, at least two.
///
/// # Errors
/// The partition does not cover the output exactly, or the list's memory can't be allocated.
fn tasks<'a, E: Element>(
    problem: &Problem,
    axes: &Axes,
    partition: &Partition,
    output: &'a mut [E],
) -> TractResult<Vec<Task<'a, E>>> {
    let (outer_axes, y, x) = axes.parts();
    let interleaved = problem.data_format == DataFormat::Nxc;
    let step = if interleaved { problem.group * problem.group_out } else { 1 };
    let splits_pixels = partition.splits_pixels(problem);
    let streamed = size_of_val(output) >= STREAMED_FROM;
    let row_blocks: Vec<Range<usize>> = partition.rows.iter().map(|r| y.outputs(r)).collect();
    let column_blocks: Vec<Range<usize>> = partition.columns.iter().map(|c| x.outputs(c)).collect();
    let groups = &partition.groups;
    let outer_grid: usize = outer_axes.iter().map(|a| a.grid).product();

    let even = outer_grid == 1 && partition.rows.len() * partition.columns.len() == 1 && !splits_pixels;
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
                    for (rows, output_rows) in partition.rows.iter().zip(&row_blocks) {
                        for (columns, output_columns) in partition.columns.iter().zip(&column_blocks) {
                            let slices = match (interleaved, splits_pixels) {
                                (false, _) => group.len() * channels.len(),
                                (true, false) => 1,
                                (true, true) => output_rows.len() * output_columns.len(),
                            };
                            let slices = match even {
                                true => {
                                    let len = output_rows.len() * output_columns.len() * step;
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
                                    pixel_channels: splits_pixels.then(|| channels.clone()),
                                    outer_phases: outer_phases.clone(),
                                    rows: output_rows.clone(),
                                    columns: output_columns.clone(),
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

/// Walks the output in memory order and hands each run of elements to its task.
///
/// A task's slices are ordered by channel (NCX), then by outer output position, then by pixel if
/// other tasks have other channels of it (NXC). The outer output positions of one grid position
/// come in the order of their phases.
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
    let grid_index = |output: usize| {
        let output = unflatten(output, outer_axes.iter().map(|a| a.output));
        let axes = outer_axes.iter().zip(&output);
        axes.fold(0, |at, (axis, output)| at * axis.grid + output / axis.out_step)
    };
    let grid_indices: Vec<usize> = (0..outer_axes.iter().map(|a| a.output).product()).map(grid_index).collect();
    let tasks_per_part = (outer_axes.iter().map(|a| a.grid).product::<usize>() * blocks.len()).max(1);
    let parts = partition.channels.iter().map(|channels| channels.len());
    if partition.splits_pixels(problem) {
        for tasks in tasks.chunks_mut(partition.channels.len() * tasks_per_part) {
            for outer in &grid_indices {
                for (block, pixels) in (outer * blocks.len()..).zip(&blocks) {
                    for (_, (part, len)) in (0..*pixels).cartesian_product(parts.clone().enumerate()) {
                        give(&mut tasks[part * tasks_per_part + block], len)?;
                    }
                }
            }
        }
        return Ok(());
    }
    let parts = (0..problem.batch).cartesian_product(&partition.groups).cartesian_product(parts);
    for (((_, group), part), tasks) in parts.zip(tasks.chunks_mut(tasks_per_part)) {
        let (planes, step) = match problem.data_format {
            DataFormat::Ncx => (group.len() * part, 1),
            DataFormat::Nxc => (1, problem.group * problem.group_out),
        };
        for (_, outer) in (0..planes).cartesian_product(&grid_indices) {
            for (pixels, task) in blocks.iter().zip(&mut tasks[outer * blocks.len()..]) {
                give(task, pixels * step)?;
            }
        }
    }
    Ok(())
}

impl<E> Task<'_, E> {
    /// The channel index that [`TaskOutput`] expects for output channel `channel` of group `g`.
    pub fn channel(&self, problem: &Problem, g: usize, channel: usize) -> usize {
        match problem.data_format {
            DataFormat::Ncx => (g - self.groups.start) * self.channels.len() + channel - self.channels.start,
            DataFormat::Nxc => g * problem.group_out + channel,
        }
    }

    /// Plans the copy into input tiles of the task's positions. `strides` are those of the spatial
    /// axes.
    ///
    /// # Errors
    /// As [`InputTiles::copy_plan`].
    pub fn copy_plan(&self, input_tiles: &InputTiles, strides: &[usize]) -> TractResult<CopyPlan> {
        self.copy_plan_with(input_tiles, strides, 0)
    }

    /// As [`Task::copy_plan`], with the input of `behind` more grid rows.
    ///
    /// # Errors
    /// As [`InputTiles::copy_plan`].
    pub fn copy_plan_with(&self, input_tiles: &InputTiles, strides: &[usize], behind: usize) -> TractResult<CopyPlan> {
        let rows = self.rows.start..self.rows.end + behind;
        input_tiles.copy_plan(strides, &self.outer, rows, self.columns.clone())
    }

    /// The offset of the task's first grid position in an input with the same grid, given the
    /// strides of the spatial axes.
    pub fn offset(&self, spatial: &[usize]) -> usize {
        let at = self.outer.iter().chain([&self.rows.start, &self.columns.start]);
        at.zip(spatial).map(|(at, stride)| at * stride).sum()
    }
}

/// The flat indices of the outer phases that are inside the output at an outer grid position,
/// ascending.
fn phases_inside(axes: &[AxisPhases], at: &[usize]) -> Vec<usize> {
    axes.iter().zip(at).fold(vec![0], |flat, (axis, u)| {
        let inside = axis.phases_inside(*u);
        flat.iter().flat_map(|f| inside.clone().map(move |r| f * axis.out_step + r)).collect()
    })
}

/// Converts a flat index over axes of the given sizes, outermost first, to one index per axis.
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

/// Consecutive elements of a task (see [`TaskOutput::plane_index`]) and their offset in a list.
pub(crate) struct IndexedRun {
    /// The elements.
    pub elements: Range<usize>,
    /// The list index of the first element's entry. The other entries follow it.
    pub first: usize,
}

/// Pixels of a row that are written together.
struct PixelRun {
    /// The output index of the first pixel's first channel.
    first: usize,
    /// Elements from one pixel to the next.
    step: usize,
    /// The number of pixels inside the task's output.
    count: usize,
}

impl<E: Element> TaskOutput<'_, E> {
    /// Writes a run of one output row: the interleaved `phases`, which have equal lengths.
    ///
    /// The run begins at column `column` of row `row`. Elements outside the task's output are
    /// dropped.
    /// `channel` counts the task's own channels (NCX) or all output channels (NXC): see
    /// [`Task::channel`]. `outer` indexes [`TaskOutput::outer_phases`].
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
        let elements = self.elements_from(channel, outer, row, column);
        if step == 1
            && inside == len
            && let Some(to) = E::as_compute_mut(&mut elements[..len])
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

    /// Writes adjacent channels of `count` pixels (NXC): columns `column`, `column + step`, … of
    /// row `row`.
    ///
    /// Their values are in `from`, pixels `width` elements apart. Pixels outside the task's output
    /// are dropped.
    pub fn write_pixels(
        &mut self,
        kernels: &Kernels<E::Compute>,
        position: (usize, usize, usize),
        step: usize,
        channels: Range<usize>,
        (from, width, count): (&mut [E::Compute], usize, usize),
        epilogue: Epilogue<E>,
    ) {
        let (size, streamed) = (channels.len(), self.streamed && epilogue.is_empty());
        let Some(run) = self.pixel_run(position, step, channels.start, count) else { return };
        let finish = |pixel: &mut [E::Compute], i: usize| {
            epilogue.apply_pixel(channels.start, run.first + i * run.step, pixel);
        };
        if let Some(to) = self.in_place(position, channels.start) {
            kernels.copy_pixels(from, width, (run.count, size), to, run.step, streamed);
            if !epilogue.is_empty() {
                (0..run.count).for_each(|i| finish(&mut to[i * run.step..][..size], i));
            }
            return;
        }
        let (outer, row, column) = position;
        for (i, pixel) in from.chunks_mut(width).enumerate().take(run.count) {
            finish(&mut pixel[..size], i);
            let to = self.elements_from(channels.start, outer, row, column + i * step);
            E::narrow_slice(&pixel[..size], &mut to[..size]);
        }
    }

    /// Writes adjacent channels of `count` pixels (NXC): columns `column`, `column + step`, … of
    /// row `row`.
    ///
    /// The values of channel `j` begin at `from[starts[j]]`. `from` must have room for a vector
    /// after the last one. Pixels outside the task's output are dropped.
    #[expect(clippy::too_many_arguments)]
    pub fn write_rows(
        &mut self,
        kernels: &Kernels<E::Compute>,
        position: (usize, usize, usize),
        step: usize,
        first_channel: usize,
        (from, starts, count): (&[E::Compute], &[usize], usize),
        epilogue: Epilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let Some(run) = self.pixel_run(position, step, first_channel, count) else { return Ok(()) };
        let (outer, row, column) = position;
        for (m, starts) in starts.chunks(kernels.lanes).enumerate() {
            let (channel, size) = (first_channel + m * kernels.lanes, starts.len());
            let finish = |pixel: &mut [E::Compute], i: usize| {
                if !epilogue.is_empty() {
                    epilogue.apply_pixel(channel, run.first + channel - first_channel + i * run.step, pixel);
                }
            };
            if let Some(to) = self.in_place(position, channel) {
                kernels.indexed_rows_to_pixels(from, starts, run.count, to, run.step);
                if !epilogue.is_empty() {
                    (0..run.count).for_each(|i| finish(&mut to[i * run.step..][..size], i));
                }
                continue;
            }
            let scratch = scratch.of(run.count * size)?;
            kernels.indexed_rows_to_pixels(from, starts, run.count, scratch, size);
            for (i, pixel) in scratch.chunks_mut(size).enumerate() {
                finish(pixel, i);
                let to = self.elements_from(channel, outer, row, column + i * step);
                E::narrow_slice(pixel, &mut to[..size]);
            }
        }
        Ok(())
    }

    /// Writes a run of whole pixels (NXC), from column `column` of row `row` on.
    ///
    /// `rows` holds one slice per channel and column of a group of adjacent columns, channels
    /// innermost. Pixels outside the task's output are dropped.
    pub fn write_whole_pixels(
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
        let at = self.plane_index(row, column) * step;
        let (first, elements) = (self.slices.at(outer), self.slices.elements(outer));
        let finished = |to: &mut [E::Compute]| {
            let (whole, rest) = to.split_at_mut(len / size * size);
            kernels.interleave(rows, whole);
            rest.iter_mut().zip(rows).for_each(|(to, row)| *to = row[len / size]);
            if !epilogue.is_empty() {
                to.chunks_mut(step)
                    .enumerate()
                    .for_each(|(i, pixel)| epilogue.apply_pixel(0, first + at + i * step, pixel));
            }
        };
        let to = &mut elements[at..at + len];
        if let Some(to) = E::as_compute_mut(to) {
            finished(to);
            return Ok(());
        }
        let scratch = scratch.of(len)?;
        finished(scratch);
        E::narrow_slice(scratch, to);
        Ok(())
    }

    /// The destination of `count` pixels (NXC) from a channel on: columns `column`,
    /// `column + step`, … of row `row`.
    ///
    /// `None` if all of them are outside the task's output.
    fn pixel_run(
        &self,
        (outer, row, column): (usize, usize, usize),
        step: usize,
        first_channel: usize,
        count: usize,
    ) -> Option<PixelRun> {
        let left = self.columns.end.checked_sub(column).filter(|left| *left > 0)?;
        let first = self.index(first_channel, outer, row, column);
        Some(PixelRun { first, step: step * self.step, count: count.min(left.div_ceil(step)) })
    }

    /// The output from a channel of a pixel on (NXC), if compute elements may be written there
    /// directly and the task's pixels are contiguous.
    fn in_place(&mut self, (outer, row, column): (usize, usize, usize), channel: usize) -> Option<&mut [E::Compute]> {
        if self.pixel_channels.is_some() {
            None
        } else {
            E::as_compute_mut(self.elements_from(channel, outer, row, column))
        }
    }

    /// The rest of a slice from a channel of a pixel on. The arguments are those of
    /// [`TaskOutput::write`].
    fn elements_from(&mut self, channel: usize, outer: usize, row: usize, column: usize) -> &mut [E] {
        let (slice, at) = self.find(channel, outer, row, column);
        &mut self.slices.elements(slice)[at..]
    }

    /// Writes consecutive elements of one channel. The arguments are those of
    /// [`TaskOutput::write`].
    pub fn put(&mut self, channel: usize, outer: usize, row: usize, column: usize, values: &[E::Compute]) {
        if self.pixel_channels.is_some() {
            for (i, from) in values.iter().enumerate() {
                self.elements_from(channel, outer, row, column + i)[0] = E::narrow(*from);
            }
            return;
        }
        let step = self.step;
        let to = self.elements_from(channel, outer, row, column);
        if step == 1 {
            E::narrow_slice(values, &mut to[..values.len()]);
        } else {
            to.iter_mut().step_by(step).zip(values).for_each(|(to, from)| *to = E::narrow(*from));
        }
    }

    /// The slice of an element and its index in that slice. The arguments are those of
    /// [`TaskOutput::write`].
    fn find(&self, channel: usize, outer: usize, row: usize, column: usize) -> (usize, usize) {
        let index = self.plane_index(row, column);
        match (&self.pixel_channels, self.step) {
            (Some(channels), _) => (outer * self.rows.len() * self.columns.len() + index, channel - channels.start),
            (None, 1) => (channel * self.outer_phases.len() + outer, index),
            (None, step) => (outer, index * step + channel),
        }
    }

    /// The output index of an element. The arguments are those of [`TaskOutput::write`].
    pub fn index(&self, channel: usize, outer: usize, row: usize, column: usize) -> usize {
        let (slice, at) = self.find(channel, outer, row, column);
        self.slices.at(slice) + at
    }

    /// Elements between columns of a row in the output.
    pub fn stride(&self) -> usize {
        self.step
    }

    /// The index of a pixel within the task's rows and columns, which are contiguous.
    pub fn plane_index(&self, row: usize, column: usize) -> usize {
        (row - self.rows.start) * self.columns.len() + column - self.columns.start
    }

    /// Consecutive elements (see [`TaskOutput::plane_index`]) of consecutive channels (NCX).
    /// `channels` counts the task's own.
    fn segments(
        &mut self,
        channels: Range<usize>,
        outer: usize,
        elements: Range<usize>,
    ) -> impl Iterator<Item = &mut [E]> {
        let count = self.outer_phases.len();
        let slices = self.slices.every(channels.start * count..channels.end * count, count, outer);
        slices.map(move |slice| &mut slice[elements.clone()])
    }

    /// Writes runs of elements of consecutive channels (NCX), at most as many channels as a vector
    /// has lanes.
    ///
    /// The channels of a pixel are adjacent in `from`, from the offset in `starts` on. `starts` has
    /// one more vector of entries after the last run's.
    /// `channel` is the output's index of the first channel. Runs shorter than a register
    /// transpose, and runs of another element type, are staged in `rows`, which has
    /// [`STAGED_ELEMENTS`] elements per lane.
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
        let offset = |lane: usize| self.slices.at(slice(lane));
        let offsets: SmallVec<[usize; 16]> =
            if epilogue.is_empty() { SmallVec::new() } else { (0..channels.len()).map(offset).collect() };
        let finish = |lane: usize, index: usize, results: &mut [E::Compute]| {
            if let Some(offset) = offsets.get(lane) {
                epilogue.of(channel + lane).apply(offset + index, 1, results);
            }
        };
        let whole = |run: &IndexedRun| run.elements.len() >= lanes;
        // Collect the planes once for all runs: this takes as long as a few register transposes.
        let mut in_place = SmallVec::<[&mut [E::Compute]; 16]>::new();
        let all = 0..self.rows.len() * self.columns.len();
        let stored = runs.iter().any(whole)
            && self
                .segments(channels.clone(), outer, all)
                .all(|plane| E::as_compute_mut(plane).map(|plane| in_place.push(plane)).is_some());
        if stored {
            for IndexedRun { elements, first } in runs.iter().filter(|run| whole(run)) {
                kernels.pixels_to_rows(
                    from,
                    &starts[*first..first + elements.len()],
                    &mut in_place,
                    elements.start,
                    streamed,
                );
                for (lane, plane) in in_place.iter_mut().enumerate().take(offsets.len()) {
                    finish(lane, elements.start, &mut plane[elements.clone()]);
                }
            }
        }
        drop(in_place);
        for IndexedRun { elements, first } in runs.iter().filter(|run| !(stored && whole(run))) {
            for at in (0..elements.len()).step_by(STAGED_ELEMENTS) {
                let count = STAGED_ELEMENTS.min(elements.len() - at);
                let mut rows = rows.chunks_mut(STAGED_ELEMENTS).take(channels.len()).collect::<SmallVec<[_; 16]>>();
                kernels.pixels_to_rows(from, &starts[first + at..first + at + count.max(lanes)], &mut rows, 0, false);
                let begin = elements.start + at;
                let segments = self.segments(channels.clone(), outer, begin..begin + count);
                for (lane, (to, from)) in segments.zip(rows).enumerate() {
                    finish(lane, begin, &mut from[..count]);
                    E::narrow_slice(&from[..count], to);
                }
            }
        }
    }

    /// All channels of consecutive output rows (NXC), for a task that has whole rows.
    pub fn pixels_of_rows(&mut self, outer: usize, rows: Range<usize>) -> &mut [E] {
        let len = self.columns.len() * self.step;
        &mut self.slices.elements(outer)[(rows.start - self.rows.start) * len..][..rows.len() * len]
    }

    /// Whole output rows of one channel as one slice. `None` if the data format is channels-last or
    /// the task does not have whole rows.
    pub fn whole_rows(&mut self, width: usize, channel: usize, outer: usize, rows: Range<usize>) -> Option<&mut [E]> {
        if self.step != 1 || self.columns != (0..width) {
            return None;
        }
        let elements = self.slices.elements(channel * self.outer_phases.len() + outer);
        Some(&mut elements[(rows.start - self.rows.start) * width..(rows.end - self.rows.start) * width])
    }

    /// Writes one whole output row of one channel. `row` counts the output's rows.
    pub fn write_row(&mut self, channel: usize, outer: usize, row: usize, values: &[E::Compute]) {
        self.put(channel, outer, row, self.columns.start, values);
    }

    /// Collects consecutive elements (see [`TaskOutput::plane_index`]) of consecutive channels, to
    /// be written in place.
    ///
    /// `slices` must be empty on entry. It is an argument because it is large to move.
    /// Returns whether this was possible. The data format or the element type may forbid it.
    pub fn channel_elements<'s>(
        &'s mut self,
        channels: Range<usize>,
        outer: usize,
        elements: Range<usize>,
        slices: &mut SmallVec<[&'s mut [E::Compute]; MOST_ROWS]>,
    ) -> bool {
        let of_rows = self.step == 1;
        for elements in self.segments(channels, outer, elements) {
            match E::as_compute_mut(elements) {
                Some(elements) if of_rows => slices.push(elements),
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

    /// Partitions with a single block, with blocks of rows, and with parts of the channels.
    fn partitions(problem: &Problem, axes: &Axes) -> Vec<Partition> {
        let (_, y, x) = axes.parts();
        let whole = Partition {
            rows: even_blocks(y.grid, 1),
            columns: even_blocks(x.grid, 1),
            groups: even_blocks(problem.group, 1),
            channels: even_blocks(problem.group_out, 1),
        };
        let (rows, columns) = (crate::layout::even_blocks(y.grid, y.grid), crate::layout::even_blocks(x.grid, 2));
        let mut partitions = vec![Partition { rows, columns, ..whole.clone() }];
        if problem.data_format == DataFormat::Ncx {
            let groups = (0..problem.group).map(|g| g..g + 1).collect();
            partitions.push(Partition { groups, channels: vec![0..1, 1..4], ..whole.clone() });
        }
        partitions.push(whole);
        partitions
    }

    #[test]
    fn a_partition_is_all_of_the_output() -> TractResult<()> {
        for (rank, data_format) in (1..=3).flat_map(|rank| [DataFormat::Ncx, DataFormat::Nxc].map(|of| (rank, of))) {
            let mut problem = problem(data_format, rank);
            for group in [2, 1] {
                problem.group = group;
                let axes = Axes::new(&problem);
                let len: usize = problem.output_shape().iter().product();
                let mut partitions = partitions(&problem, &axes);
                if group == 1 {
                    // parts of the channels of each pixel
                    let parts = Partition { channels: vec![0..1, 1..4], ..partitions[0].clone() };
                    partitions.push(parts);
                }
                for partition in partitions {
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
    fn a_partition_without_a_row_is_refused() {
        let problem = problem(DataFormat::Ncx, 2);
        let axes = Axes::new(&problem);
        let mut output = vec![0f32; problem.output_shape().iter().product()];
        let mut partition = partitions(&problem, &axes).remove(0);
        partition.rows.pop();
        let error = tasks(&problem, &axes, &partition, &mut output).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.starts_with("output partition: elements=")));
    }
}
