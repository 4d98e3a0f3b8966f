//! Accumulator blocks: runs of a block's positions that are summed and stored together.
//!
//! The lanes of the sums are output channels. Channels-last results are stored in that order.
//! Channels-first results go through register transposes, which also interleave the phases of a
//! row.

use crate::element::Element;
use crate::geometry::Axes;
use crate::kernel::{Bounds, Kernels, PixelStarts};
use crate::layout::panels::Panel;
use crate::layout::taps::TapTable;
use crate::memory::Aligned;
use crate::memory::{self, reserved};
use crate::output::epilogue::{Epilogue, UniformSteps};
use crate::output::task::Task;
use crate::output::task_output::{IndexedRun, STAGED_ELEMENTS};
use crate::ranges::{blocks_of, flat_runs, unflatten};
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// The bytes of results that are finished together in the output. They are still in L1.
const FINISHED_BYTES: usize = 16 * 1024;

/// Passes over some input channels each. Several panels sum those of a pass before the next pass, so that the block's input
/// is read from beyond the caches once for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    /// Input channels of a pass.
    pub channels: usize,
    /// Panels whose sums are kept from pass to pass.
    pub panels: usize,
}

/// The split of a block's positions into accumulator blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccumulatorShape {
    /// Output channels per panel. Also the distance between the sums of adjacent positions, in
    /// elements.
    pub width: usize,
    /// Positions of a register tile. Accumulator blocks that hold part of a row are multiples of
    /// it.
    pub positions: usize,
    /// The most positions per accumulator block.
    pub most: usize,
    /// Whether runs of positions end at the end of each grid row. Otherwise they run over the
    /// padding between rows.
    pub by_row: bool,
    /// Rows and columns of an accumulator block whose adjacent rows are summed together.
    ///
    /// The rows of such a block span at most `most` positions, including the gaps between them.
    pub window: Option<(usize, usize)>,
    /// Whether the loop over panels is the inner one.
    ///
    /// If so, all panels are computed for one accumulator block before the next. Otherwise all
    /// accumulator blocks are computed for one panel before the next.
    pub panels_first: bool,
    /// The passes in which sums are taken. None if all input channels are summed at once.
    pub passes: Option<Passes>,
    /// Whether sums may be taken in the output instead of a buffer, at another distance than
    /// [`AccumulatorShape::width`]. That pays if each is written once, or has its neighbours beside it.
    pub in_output: bool,
}

impl AccumulatorShape {
    /// Elements of the sums of a phase. A register transpose may read past the last position of an
    /// accumulator block.
    fn phase_stride(&self, lanes: usize) -> usize {
        (self.most + lanes) * self.width
    }

    /// Splits a block of rows and columns into accumulator blocks.
    fn accumulators(&self, rows: usize, columns: usize, pitch: usize) -> Vec<AccumulatorBlock> {
        if let Some((block_rows, block_columns)) = self.window {
            let blocks = blocks_of(rows, block_rows).into_iter();
            let blocks = blocks.cartesian_product(blocks_of(columns, block_columns));
            return blocks
                .map(|(rows, columns)| AccumulatorBlock {
                    flat: rows.start * pitch + columns.start..(rows.end - 1) * pitch + columns.end,
                    columns,
                })
                .collect();
        }
        let whole = |flat| AccumulatorBlock { flat, columns: 0..columns };
        self.flat_blocks(rows, columns, pitch).into_iter().map(whole).collect()
    }

    /// Splits the flat positions of a block of rows and columns.
    fn flat_blocks(&self, rows: usize, columns: usize, pitch: usize) -> Vec<Range<usize>> {
        if !self.by_row {
            return blocks_of((rows - 1) * pitch + columns, self.most);
        }
        let part = columns.div_ceil(columns.div_ceil(self.most)).next_multiple_of(self.positions).min(self.most);
        if part < columns {
            let of_row = |row: usize| {
                let parts = blocks_of(columns, part).into_iter();
                parts.map(move |part| row * pitch + part.start..row * pitch + part.end)
            };
            return (0..rows).flat_map(of_row).collect();
        }
        let groups = blocks_of(rows, (self.most / pitch).max(1)).into_iter();
        groups.map(|rows| rows.start * pitch..(rows.end - 1) * pitch + columns).collect()
    }
}

/// Some positions of a block.
#[derive(Clone, Debug)]
struct AccumulatorBlock {
    /// From the first to the last flat position.
    flat: Range<usize>,
    /// The columns that it has of each of its rows.
    columns: Range<usize>,
}

/// The tables of taps and sums that accumulator blocks use, independent of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccumulatorTable {
    pub taps: TapTable,
    /// Per pixel of an output row of an accumulator block, the offset of its sums, as the phases
    /// interleave. Empty for channels-last output.
    sum_offsets: Vec<usize>,
}

impl AccumulatorTable {
    /// Builds the tables. `axes` are all spatial axes, outermost first. `lanes` is the length of
    /// the vectors that store the results.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn new(
        problem: &Problem,
        axes: &Axes,
        shape: &AccumulatorShape,
        lanes: usize,
        taps: TapTable,
    ) -> TractResult<AccumulatorTable> {
        let (columns, stride) = (axes.columns().out_step, shape.phase_stride(lanes));
        let phases_of = |at: usize| (0..columns).map(move |phase| phase * stride + at * shape.width);
        let mut sum_offsets = vec![];
        if problem.data_format == DataFormat::Ncx {
            sum_offsets = reserved("offsets of sums", (shape.most + lanes) * columns)?;
            sum_offsets.extend((0..shape.most + lanes).flat_map(phases_of));
        }
        Ok(AccumulatorTable { taps, sum_offsets })
    }
}

/// The sums computed by one call: one phase of one panel over one accumulator block.
pub(crate) struct PhaseSums<'r, T> {
    pub panel: Panel,
    /// The input channels to sum. Those before them are summed already.
    pub channels: Range<usize>,
    /// The phase's index over all axes, outermost first.
    pub phase: usize,
    pub runs: &'r [Run],
    /// Elements between the sums of adjacent positions.
    pub stride: usize,
    /// The bounds that the sums must be clamped to. None if they are clamped when they are stored.
    pub bounds: Option<Bounds<T>>,
}

/// Consecutive positions.
#[derive(Clone)]
pub(crate) struct Run {
    /// The phase's taps that read inside the input somewhere in the run.
    pub taps: Range<usize>,
    /// Flat positions of the block.
    pub positions: Range<usize>,
    /// The offset of the run's sums within those of the accumulator block's phase, in elements.
    pub at: usize,
}

/// The runs of a phase whose sums are taken in the output.
struct RunsInOutput {
    runs: TVec<Run>,
    /// Row and column of the first one's first pixel.
    origin: (usize, usize),
}

/// The data that all tasks share.
pub(crate) struct Accumulators<'a, E: Element> {
    problem: &'a Problem,
    axes: &'a Axes,
    kernels: &'static Kernels<E::Compute>,
    shape: AccumulatorShape,
    table: &'a AccumulatorTable,
    /// The bounds of results: the first step.
    bounds: Option<Bounds<E::Compute>>,
    /// The steps applied to all sums at once, and the steps applied when results are stored.
    epilogue: (UniformSteps<'a, E>, Epilogue<'a, E>),
}

impl<'a, E: Element> Accumulators<'a, E> {
    /// Collects the shared data. `axes` are all spatial axes, outermost first, at least two.
    pub fn new(
        problem: &'a Problem,
        axes: &'a Axes,
        kernels: &'static Kernels<E::Compute>,
        shape: AccumulatorShape,
        table: &'a AccumulatorTable,
        epilogue: Epilogue<'a, E>,
    ) -> Accumulators<'a, E> {
        let (bounds, epilogue) = epilogue.split_bounds();
        Accumulators { problem, axes, kernels, shape, table, bounds, epilogue: epilogue.split() }
    }

    /// Computes and stores the sums of some panels of group `g` over all positions of a task, whose
    /// rows are `pitch` positions apart.
    ///
    /// `sum` writes the sums of a phase's runs, or adds those of further input channels: one panel width per
    /// position, [`PhaseSums::stride`] elements apart.
    /// `tile` and `ragged` are working memory.
    ///
    /// # Errors
    /// Failure to allocate memory, and the errors of `sum`.
    pub fn run(
        &self,
        task: &mut Task<E>,
        (g, pitch): (usize, usize),
        panels: impl Iterator<Item = Panel>,
        (tile, ragged): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
        mut sum: impl FnMut(PhaseSums<E::Compute>, &mut [E::Compute]) -> TractResult<()>,
    ) -> TractResult<()> {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let columns = x.out_step;
        let per_outer = y.out_step * columns;
        let accumulators = self.shape.accumulators(task.rows.len(), task.columns.len(), pitch);
        let phase_stride = self.shape.phase_stride(self.kernels.lanes);
        let mut starts = vec![];
        let mut listed = vec![];
        let panels: TVec<Panel> = panels.collect();
        let group_in = self.problem.group_in;
        let Passes { channels: pass, panels: at_once } =
            self.shape.passes.unwrap_or(Passes { channels: group_in, panels: 1 });
        let sets = panels.len().div_ceil(at_once);
        // Steps that read further tensors read whole pixels of them, which are adjacent.
        let finished_together = self.shape.panels_first && panels.iter().all(|panel| is_whole(task, *panel));
        let (outer, inner) =
            if self.shape.panels_first { (accumulators.len(), sets) } else { (sets, accumulators.len()) };
        for i in 0..outer {
            for j in 0..inner {
                let (set, acc_block) =
                    if self.shape.panels_first { (j, &accumulators[i]) } else { (i, &accumulators[j]) };
                let set = &panels[set * at_once..panels.len().min((set + 1) * at_once)];
                // Runs do not depend on the panel. With a single accumulator block they are
                // therefore computed only once.
                if (i, j) == (0, 0) || (accumulators.len() > 1 && (j == 0 || !self.shape.panels_first)) {
                    listed = self.runs_of(task, acc_block, pitch);
                }
                for o in 0..task.output.outer_phases.len() {
                    for ry in 0..y.out_step {
                        let first_phase = task.output.outer_phases[o] * per_outer + ry * columns;
                        let runs_of_phases = &listed[o * per_outer + ry * columns..][..columns];
                        let destination =
                            Destination { g, outer: o, phase_row: ry, acc_block: acc_block.clone(), pitch };
                        if let &[panel] = set
                            && let Some(phases) = self.runs_in_output(task, &destination, panel, runs_of_phases)
                        {
                            let channels = panel.first_channel..panel.first_channel + panel.width;
                            let finished = match finished_together {
                                true if j + 1 < inner => None,
                                true => Some(panels[0].first_channel..channels.end),
                                false => Some(channels),
                            };
                            for (rx, runs) in phases.into_iter().enumerate() {
                                let of = (panel, first_phase + rx);
                                self.sum_in_output(task, &destination, of, runs, finished.clone(), &mut sum)?;
                            }
                            continue;
                        }
                        let of_panel = columns * phase_stride;
                        let sums = tile.of(set.len() * of_panel)?;
                        for from in (0..group_in).step_by(pass.max(1)) {
                            for (&panel, sums) in set.iter().zip(sums.chunks_mut(of_panel)) {
                                for (rx, (sums, runs)) in sums.chunks_mut(phase_stride).zip(runs_of_phases).enumerate()
                                {
                                    let channels = from..group_in.min(from + pass);
                                    let (phase, stride) = (first_phase + rx, self.shape.width);
                                    sum(PhaseSums { panel, channels, phase, runs, stride, bounds: None }, sums)?;
                                }
                            }
                        }
                        // Runs are the same for all phases of a row.
                        let Some(runs) = runs_of_phases.first() else { continue };
                        for (&panel, sums) in set.iter().zip(sums.chunks_mut(of_panel)) {
                            self.finish(task, &destination, panel, (sums, runs), (ragged, &mut starts))?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies the steps to the sums of a panel and stores them. `runs` are those of one phase.
    fn finish(
        &self,
        task: &mut Task<E>,
        destination: &Destination,
        panel: Panel,
        (sums, runs): (&mut [E::Compute], &[Run]),
        (ragged, starts): (&mut Aligned<E::Compute>, &mut Vec<usize>),
    ) -> TractResult<()> {
        if self.shape.window.is_some() {
            // The gaps between the rows of a window may be larger than the rows, so skip them.
            for sums in sums.chunks_mut(self.shape.phase_stride(self.kernels.lanes)) {
                for Run { at, positions, .. } in runs {
                    self.epilogue.0.apply(&mut sums[*at..][..positions.len() * self.shape.width]);
                }
            }
        } else {
            self.epilogue.0.apply(sums);
        }
        match self.problem.data_format {
            DataFormat::Nxc => {
                self.store_pixels(task, destination, panel, sums);
                Ok(())
            }
            DataFormat::Ncx => {
                let staging = ragged.of(self.kernels.lanes * STAGED_ELEMENTS)?;
                self.store_rows(task, destination, panel, sums, (staging, starts))
            }
        }
    }

    /// The runs of an accumulator block, per output phase of the task. They are the same for all
    /// panels.
    fn runs_of(&self, task: &Task<E>, acc_block: &AccumulatorBlock, pitch: usize) -> Vec<Vec<Run>> {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let per_outer = y.out_step * x.out_step;
        let first = acc_block.flat.start;
        let by_row = self.shape.by_row.then(|| flat_runs(acc_block.flat.clone(), pitch, acc_block.columns.clone()));
        let positions: Vec<Range<usize>> = match by_row {
            Some(runs) => runs.map(|run| first + run.at..first + run.at + run.len).collect(),
            None => vec![acc_block.flat.clone()],
        };
        let run = |phase: usize, run: &Range<usize>| {
            let rows = run.start / pitch..run.end.div_ceil(pitch);
            let rows = task.rows.start + rows.start..task.rows.start + rows.end;
            let taps = self.taps_inside(phase, &task.outer, rows);
            Run { taps, positions: run.clone(), at: (run.start - first) * self.shape.width }
        };
        let phases = task.output.outer_phases.iter().flat_map(|o| o * per_outer..(o + 1) * per_outer);
        phases.map(|phase| positions.iter().map(|positions| run(phase, positions)).collect()).collect()
    }

    /// The range of a phase's taps that read inside the input somewhere on grid rows `rows` at an
    /// outer position. It may include other taps.
    fn taps_inside(&self, phase: usize, outer: &[usize], rows: Range<usize>) -> Range<usize> {
        let axes = self.axes;
        let Some((x, others)) = axes.split_last() else { return 0..0 };
        let at = outer.iter().map(|at| *at..at + 1).chain([rows]);
        let picked = unflatten(phase, axes.iter().map(|a| a.out_step));
        // first and last of a product of ranges, as flat indices
        let (mut begin, mut last) = (0, 0);
        for ((axis, at), phase) in others.iter().zip(at).zip(&picked) {
            let (inside, count) = (axis.taps_inside(*phase, &at), axis.phases[*phase].taps.len());
            if inside.is_empty() {
                return 0..0;
            }
            (begin, last) = (begin * count + inside.start, last * count + inside.end - 1);
        }
        let count = x.phases[picked[axes.len() - 1]].taps.len();
        begin * count..(last + 1) * count
    }

    /// Returns the runs of each phase of columns where they stand in the output, if all sums of the panel can be
    /// taken there.
    fn runs_in_output(
        &self,
        task: &Task<E>,
        destination: &Destination,
        panel: Panel,
        listed: &[Vec<Run>],
    ) -> Option<TVec<RunsInOutput>> {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let (output, pitch) = (&task.output, destination.pitch);
        let whole = is_whole(task, panel);
        if !self.shape.in_output || self.problem.data_format != DataFormat::Nxc || !whole || !output.takes_sums() {
            return None;
        }
        // The pixels of a run that goes on in the next row are evenly spaced if rows have no gaps.
        let without_gaps = y.out_step == 1 && pitch * x.out_step == output.columns.len();
        let pixel = |flat: usize, rx: usize| {
            let row = (task.rows.start + flat / pitch) * y.out_step + destination.phase_row;
            let column = (task.columns.start + flat % pitch) * x.out_step + rx;
            (output.rows.contains(&row) && output.columns.contains(&column)).then_some((row, column))
        };
        let phase = |(rx, listed): (usize, &Vec<Run>)| {
            let origin = pixel(listed.first()?.positions.start, rx)?;
            let run = |run: &Run| {
                let (first, last) = (pixel(run.positions.start, rx)?, pixel(run.positions.end - 1, rx)?);
                let pixels = output.plane_index(first.0, first.1) - output.plane_index(origin.0, origin.1);
                let even = without_gaps || first.0 == last.0;
                even.then(|| Run { at: pixels * output.stride(), ..run.clone() })
            };
            Some(RunsInOutput { runs: listed.iter().map(run).collect::<Option<_>>()?, origin })
        };
        listed.iter().enumerate().map(phase).collect()
    }

    /// Computes the sums of a phase in the output, and applies the epilogue to the results of the `finished` output
    /// channels of the group.
    fn sum_in_output(
        &self,
        task: &mut Task<E>,
        destination: &Destination,
        (panel, phase): (Panel, usize),
        RunsInOutput { runs, origin }: RunsInOutput,
        finished: Option<Range<usize>>,
        sum: &mut impl FnMut(PhaseSums<E::Compute>, &mut [E::Compute]) -> TractResult<()>,
    ) -> TractResult<()> {
        let stride = self.axes.columns().out_step * task.output.stride();
        let (bounds, (uniform, varying)) = (self.bounds, self.epilogue);
        let finished = finished.filter(|_| !uniform.is_empty() || !varying.is_empty());
        let channels = finished.clone().unwrap_or(panel.first_channel..panel.first_channel + panel.width);
        let channel = destination.g * self.problem.group_out + channels.start;
        let position = (destination.outer, origin.0, origin.1);
        let first = task.output.index(channel, position.0, position.1, position.2);
        let results = task.output.in_place(position, channel).context("output: computed in another type")?;
        let of_panel = panel.first_channel - channels.start;
        let all = 0..self.problem.group_in;
        if finished.is_none() {
            let of = PhaseSums { panel, channels: all, phase, runs: &runs, stride, bounds };
            return sum(of, &mut results[of_panel..]);
        }
        let most =
            (FINISHED_BYTES / size_of::<E::Compute>() / channels.len()).max(1).next_multiple_of(self.shape.positions);
        let parts = runs.iter().flat_map(|run| {
            blocks_of(run.positions.len(), most).into_iter().map(|part| Run {
                positions: run.positions.start + part.start..run.positions.start + part.end,
                at: run.at + part.start * stride,
                ..run.clone()
            })
        });
        for run in parts {
            let runs = std::slice::from_ref(&run);
            let of = PhaseSums { panel, channels: all.clone(), phase, runs, stride, bounds };
            sum(of, &mut results[of_panel..])?;
            let (size, results) = ((run.positions.len(), channels.len()), &mut results[run.at..]);
            uniform.apply_pixels(size, stride, results);
            varying.apply_pixels(channel, first + run.at, size, stride, results);
        }
        Ok(())
    }

    /// Stores channels-last results: a pixel's channels are contiguous both in the sums and in the
    /// output.
    fn store_pixels(&self, task: &mut Task<E>, destination: &Destination, panel: Panel, sums: &mut [E::Compute]) {
        let (axes, width) = (self.axes, self.shape.width);
        let (y, x) = (axes.rows(), axes.columns());
        let channel = destination.g * self.problem.group_out + panel.first_channel;
        let present = panel.width.min(task.channels.end - panel.first_channel);
        for run in
            flat_runs(destination.acc_block.flat.clone(), destination.pitch, destination.acc_block.columns.clone())
        {
            let row = (task.rows.start + run.row) * y.out_step + destination.phase_row;
            if row >= task.output.rows.end {
                break;
            }
            let first = (task.columns.start + run.column) * x.out_step;
            let phase_stride = sums.len() / x.out_step;
            for (rx, sums) in sums.chunks_mut(phase_stride).enumerate() {
                let position = (destination.outer, row, first + rx);
                let pixels = (&mut sums[run.at * width..], width, run.len);
                let channels = channel..channel + present;
                let epilogue = (self.bounds, self.epilogue.1);
                task.output.write_pixels(self.kernels, position, x.out_step, channels, pixels, epilogue);
            }
        }
    }

    /// Stores channels-first results by register transposes of pixels × channels. Rows that are
    /// adjacent in the output form one run.
    fn store_rows(
        &self,
        task: &mut Task<E>,
        destination: &Destination,
        panel: Panel,
        sums: &[E::Compute],
        (staging, starts): (&mut [E::Compute], &mut Vec<usize>),
    ) -> TractResult<()> {
        let axes = self.axes;
        let (y, x) = (axes.rows(), axes.columns());
        starts.clear();
        let elements = destination.acc_block.flat.len() * x.out_step;
        memory::reserve("offsets of sums", starts, elements + self.kernels.lanes)?;
        let mut runs = SmallVec::<[IndexedRun; 4]>::new();
        for run in
            flat_runs(destination.acc_block.flat.clone(), destination.pitch, destination.acc_block.columns.clone())
        {
            let row = (task.rows.start + run.row) * y.out_step + destination.phase_row;
            if row >= task.output.rows.end {
                break;
            }
            let first = (task.columns.start + run.column) * x.out_step;
            let count = (run.len * x.out_step).min(task.output.columns.end - first);
            let index = task.output.plane_index(row, first);
            match runs.last_mut() {
                Some(last) if last.elements.end == index => last.elements.end += count,
                _ => {
                    runs.try_reserve(1).ok().context("runs: the memory for their list can not be allocated")?;
                    runs.push(IndexedRun { elements: index..index + count, first: starts.len() });
                }
            }
            starts.extend_from_slice(&self.table.sum_offsets[run.at * x.out_step..][..count]);
        }
        let lanes = self.kernels.lanes;
        let channels = panel.width.min(task.channels.end - panel.first_channel);
        let task_channel = task.channel(self.problem, destination.g, panel.first_channel);
        let last = starts.last().map_or(0, |start| *start);
        starts.resize(starts.len() + lanes, last);
        let starts = PixelStarts::new(starts);
        for m in (0..channels).step_by(lanes) {
            let task_channels = task_channel + m..task_channel + channels.min(m + lanes);
            let channel = destination.g * self.problem.group_out + panel.first_channel + m;
            let epilogue = (self.bounds, self.epilogue.1, channel);
            task.output.write_transposed(
                self.kernels,
                task_channels,
                destination.outer,
                &runs,
                &sums[m..],
                starts,
                epilogue,
                staging,
            );
        }
        Ok(())
    }
}

/// Whether all channels of a panel are channels of the task.
fn is_whole<E>(task: &Task<E>, panel: Panel) -> bool {
    panel.width <= task.channels.end - panel.first_channel
}

/// The destination of an accumulator block's sums.
struct Destination {
    g: usize,
    /// Index of the outer phase.
    outer: usize,
    /// Phase of the row axis.
    phase_row: usize,
    acc_block: AccumulatorBlock,
    pitch: usize,
}
