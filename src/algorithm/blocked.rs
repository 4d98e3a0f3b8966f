//! The common parts of the algorithms that use accumulator blocks.
//!
//! They split the grid into blocks and the output channels into panels. Each task copies its part
//! of the input.

use crate::element::Element;
use crate::geometry::Axes;
use crate::kernel::Kernels;
use crate::layout::input::{Channels, Input};
use crate::layout::input_strides;
use crate::layout::input_tile::{CopyPlan, InputTiles};
use crate::memory::{Aligned, Scratch};
use crate::output::partition::{Block, Partition};
use crate::output::task::{Task, bytes_of_tasks, run_tasks};
use crate::output::task_output::STAGING_BYTES;
use crate::spec::{DataFormat, Problem};
use tract_core::internal::*;

/// The split of a layer for one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Output channels per panel.
    pub width: usize,
    /// Output channels of the last panel.
    pub last_width: usize,
    /// Grid rows per block.
    pub rows: usize,
    /// Grid columns per block.
    pub columns: usize,
    /// Whether the input tiles have one copy per column shift, so that their rows have no gaps.
    pub copy_per_shift: bool,
    /// Rows and columns of input behind those of a block that the block's tiles read besides.
    pub overhang: (usize, usize),
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    /// The phases of all spatial axes.
    pub(crate) axes: Axes,
}

/// The most positions that register tiles and transposes write beyond the last one.
pub(crate) const OVERRUN: usize = 64;

/// Whether the output channels of a group fill a vector.
pub(crate) fn fill_vectors(problem: &Problem, lanes: usize) -> bool {
    problem.group_out >= lanes
}

/// Whether panels of `width` channels can sum in the output, if that holds pixels of their type: each sum is
/// finished in one pass, or a panel has all channels of a pixel.
pub(crate) fn sums_in_output(problem: &Problem, width: usize, passes: usize) -> bool {
    passes == 1 || problem.group_out * problem.group == width
}

impl Blocked {
    /// The input tiles of a block.
    pub(crate) fn input_tiles(&self) -> InputTiles {
        let (rows, columns) = (self.rows + self.overhang.0, self.columns + self.overhang.1);
        InputTiles::new(&self.axes, rows, columns, self.copy_per_shift)
    }

    /// Bytes of the task list, of an accumulator block of some positions, and of its staging
    /// buffer.
    pub(crate) fn working_bytes(&self, problem: &Problem, positions: usize, element: usize) -> usize {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        // One sum and one index per pixel. Register tiles may overrun the last position.
        let sums =
            positions.saturating_add(OVERRUN).saturating_mul(x.out_step * (self.width * element + size_of::<usize>()));
        let blocks = y.grid.div_ceil(self.rows) * x.grid.div_ceil(self.columns);
        sums.saturating_add(STAGING_BYTES).saturating_add(bytes_of_tasks(problem, &self.axes, blocks))
    }

    /// The tasks for the current number of threads. Blocks of fewer than `least` positions are not
    /// worthwhile. `row_step` rows are computed together, and `step` columns.
    pub(crate) fn partition(&self, problem: &Problem, least: usize, [row_step, step]: [usize; 2]) -> Partition {
        let Blocked { rows, columns, cost, width: panel, .. } = *self;
        Partition::for_threads(problem, &self.axes, &Block { rows, columns, least, panel, step, row_step, cost })
    }

    /// Runs `work` on every group of every task.
    ///
    /// If tasks copy their `input` into `tiles`, `work` receives the copy plan of the task.
    pub(crate) fn run<E: Element>(
        &self,
        problem: &Problem,
        partition: &Partition,
        (input, tiles): (&GroupedInput<E>, Option<&InputTiles>),
        output: &mut [E],
        work: impl Fn(&mut Task<E>, usize, Option<&CopyPlan>, &mut Scratch<E::Compute>) -> TractResult<()> + Sync + Send,
    ) -> TractResult<()> {
        run_tasks(problem, &self.axes, partition, self.cost, output, |task, scratch| {
            let copy_plan = tiles.map(|tiles| task.copy_plan_with(tiles, &input.spatial, self.overhang)).transpose()?;
            task.groups.clone().try_for_each(|g| work(task, g, copy_plan.as_ref(), scratch))
        })
    }
}

/// The width of the last panel of some channels, in whole vectors.
pub(crate) fn last_width(channels: usize, width: usize, lanes: usize) -> usize {
    match channels % width {
        0 => width,
        remainder => remainder.next_multiple_of(lanes),
    }
}

/// The input of a layer, with the strides that tasks use to read a group.
pub(crate) struct GroupedInput<'a, E: Element> {
    /// The whole input.
    pub data: Input<'a, E>,
    /// Elements between channels.
    pub channel: usize,
    /// Elements between positions along each spatial axis. There are at least two axes.
    pub spatial: Vec<usize>,
    /// Elements between images.
    image: usize,
    /// Input channels per group.
    channels: usize,
    data_format: DataFormat,
}

impl<'a, E: Element> GroupedInput<'a, E> {
    pub fn new(problem: &Problem, axes: &Axes, data: Input<'a, E>) -> GroupedInput<'a, E> {
        let (image, channel, spatial) = input_strides(problem, axes.len());
        GroupedInput { data, channel, spatial, image, channels: problem.group_in, data_format: problem.data_format }
    }

    /// The channels of a group in the image of a task.
    pub fn of(&self, task: &Task<E>, g: usize) -> Channels<'a, E> {
        self.data.channels(task.n, g * self.channels, self.channels)
    }

    /// The index of a group's first element in the image of a task, if the input is in one tensor.
    pub fn first(&self, task: &Task<E>, g: usize) -> usize {
        task.n * self.image + g * self.channels * self.channel
    }

    /// Copies the part of a group that a task reads into input tiles of pixels with `size`
    /// elements. `source` is the group: see [`GroupedInput::of`].
    ///
    /// # Errors
    /// Failure to allocate working memory.
    pub fn fill_pixels(
        &self,
        (kernels, tiles): (&'static Kernels<E::Compute>, &InputTiles),
        copy_plan: &CopyPlan,
        source: &Channels<E>,
        (to, size): (&mut [E::Compute], usize),
        working: (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        tiles.fill_deep(kernels, copy_plan, self.data_format, source, (to, size), working)
    }
}
