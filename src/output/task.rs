//! Tasks: disjoint slices of the output, so that tasks may run on any thread.

use crate::element::Element;
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::Dispatch;
use crate::layout::input_tile::{CopyPlan, InputTiles};
use crate::memory::{Scratch, reserved};
use crate::output::partition::Partition;
use crate::output::task_output::{Slice, Slices, TaskOutput};
use crate::ranges::unflatten;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// The output size in bytes from which stores bypass the caches.
///
/// An ordinary store reads the line into the cache first. On such outputs the line is evicted again
/// before anything reads it.
const STREAMED_FROM: usize = 32 << 20;

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
        self.copy_plan_with(input_tiles, strides, (0, 0))
    }

    /// As [`Task::copy_plan`], with the input of some more grid rows and columns behind.
    ///
    /// # Errors
    /// As [`InputTiles::copy_plan`].
    pub fn copy_plan_with(
        &self,
        input_tiles: &InputTiles,
        strides: &[usize],
        behind: (usize, usize),
    ) -> TractResult<CopyPlan> {
        let (rows, columns) =
            (self.rows.start..self.rows.end + behind.0, self.columns.start..self.columns.end + behind.1);
        input_tiles.copy_plan(strides, &self.outer, rows, columns)
    }

    /// The offset of the task's first grid position in an input with the same grid, given the
    /// strides of the spatial axes.
    pub fn offset(&self, spatial: &[usize]) -> usize {
        let at = self.outer.iter().chain([&self.rows.start, &self.columns.start]);
        at.zip(spatial).map(|(at, stride)| at * stride).sum()
    }
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
    crate::parallel::parallel(&mut tasks, cost, &|task| E::Compute::with_scratch(|scratch| work(task, scratch)))
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
        distribute(problem, outer_axes, partition, (&row_blocks, &column_blocks), &mut rest, &mut tasks)?;
    }
    rest.finish()?;
    Ok(tasks)
}

/// Walks the output in memory order and gives each run of elements to its task.
///
/// A task's slices are ordered by channel (NCX), then by outer output position, then by pixel if
/// other tasks have other channels of it (NXC). The outer output positions of one grid position
/// come in the order of their phases.
fn distribute<'a, E>(
    problem: &Problem,
    outer_axes: &[AxisPhases],
    partition: &Partition,
    (row_blocks, column_blocks): (&[Range<usize>], &[Range<usize>]),
    rest: &mut Rest<'a, E>,
    tasks: &mut [Task<'a, E>],
) -> TractResult<()> {
    let mut assign = |task: &mut Task<'a, E>, len: usize| {
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
                        assign(&mut tasks[part * tasks_per_part + block], len)?;
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
                assign(task, pixels * step)?;
            }
        }
    }
    Ok(())
}

/// The flat indices of the outer phases that are inside the output at an outer grid position,
/// ascending.
pub(crate) fn phases_inside(axes: &[AxisPhases], at: &[usize]) -> Vec<usize> {
    axes.iter().zip(at).fold(vec![0], |flat, (axis, u)| {
        let inside = axis.phases_inside(*u);
        flat.iter().flat_map(|f| inside.clone().map(move |r| f * axis.out_step + r)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::even_blocks;
    use crate::spec::{Axis, Direction};

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
        let (rows, columns) = (even_blocks(y.grid, y.grid), even_blocks(x.grid, 2));
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
