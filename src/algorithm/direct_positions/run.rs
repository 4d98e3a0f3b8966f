//! The run of a plan: blocks of input are copied, register tiles multiply them, and results are stored.

use super::{DirectPositions, Reads, row_runs};
use crate::algorithm::Operands;
use crate::algorithm::chains::channels_per_chain;
use crate::compute::Compute;
use crate::element::Element;
use crate::kernel::{Bounds, Kernels, PhaseOperand, PositionTile, RowTile, Source, Start, StridedRuns};
use crate::layout::filter::{PackedFilter, panel_heights};
use crate::layout::input::Input;
use crate::layout::input_tile::CopyPlan;
use crate::layout::taps::{Phase, TapTable};
use crate::layout::to_tiles;
use crate::memory::{Aligned, Scratch};
use crate::output::epilogue::Epilogue;
use crate::output::task::Task;
use crate::output::task_output::MOST_ROWS;
use crate::ranges::flat_runs;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// The number of pairs from which a sum has two chains, whose taps alternate. This applies to tiles
/// that write rows themselves and support it.
const FEWEST_IN_TWO_CHAINS: usize = 32;

/// The number of channels from which channels-last results go through register transposes. Fewer
/// channels are stored element by element, which is faster for them.
const FEWEST_TRANSPOSED: usize = 4;

/// Register tiles whose positions are copied together from each plane.
const TILES_AT_ONCE: usize = 8;

/// The data that all tasks share.
pub(super) struct Prepared<'a, E: Element> {
    plan: &'a DirectPositions,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    taps: &'a TapTable,
    /// Phases of an output row.
    columns: usize,
    /// Row and column phases per outer phase.
    per_outer: usize,
    /// The panels of a group.
    panels: Vec<Panel<E::Compute>>,
    weights: &'a [E::Compute],
    group_weights: usize,
    /// The bias of each group, padded to panel heights.
    bias: Vec<E::Compute>,
    input: Input<'a, E>,
    epilogue: Epilogue<'a, E>,
    /// Elements per output channel.
    plane: usize,
    /// Strides of the input: image, channel, spatial axes (at least two).
    strides: (usize, usize, Vec<usize>),
}

/// A block of input, as register tiles read it.
#[derive(Clone, Copy)]
struct BlockInput<'a, T> {
    /// The base is that of the block's first position.
    source: Source<'a, T>,
    /// Positions from a grid row to the next.
    pitch: usize,
    /// Elements from a register tile to the next, per position.
    per_position: usize,
}

impl<'a, T> BlockInput<'a, T> {
    /// Returns the source at a position. With several elements per position, it is a register tile's first one.
    fn at(&self, position: usize) -> Source<'a, T> {
        Source { base: self.source.base + position * self.per_position, ..self.source }
    }
}

/// Scratch memory, without the input tiles.
struct Buffers<'a, T> {
    tile: &'a mut Aligned<T>,
    ragged: &'a mut Aligned<T>,
    row: &'a mut Aligned<T>,
}

struct Panel<T: 'static> {
    first_channel: usize,
    height: usize,
    weights: usize,
    tiles: Vec<&'static PositionTile<T>>,
    row_tiles: Vec<&'static RowTile<T>>,
}

impl<'a, E: Element> Prepared<'a, E> {
    pub(super) fn new(
        plan: &'a DirectPositions,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
        taps: &'a TapTable,
    ) -> TractResult<Self> {
        let axes = &plan.axes;
        let columns = axes.columns().out_step;
        let per_outer = axes.rows().out_step * columns;
        let mut at = 0;
        let panels: Vec<Panel<E::Compute>> = panel_heights(problem.group_out, plan.mr, plan.last_mr)
            .map(|(first_channel, height)| {
                let weights = at;
                at += height * taps.weights;
                let find = |nv| kernels.position_tile(height, nv).context("kernel: a tile of the plan is missing");
                let find_row = |nv| {
                    let tiles = kernels.row_tiles(columns).iter();
                    tiles
                        .clone()
                        .find(|t| (t.mr(), t.nv()) == (height, nv))
                        .context("kernel: a tile of the plan is missing")
                };
                let (tiles, row_tiles) = match plan.rows {
                    true => (vec![], (1..=plan.nv).map(find_row).collect::<TractResult<_>>()?),
                    false => ((1..=plan.nv).map(find).collect::<TractResult<_>>()?, vec![]),
                };
                Ok(Panel { first_channel, height, weights, tiles, row_tiles })
            })
            .collect::<TractResult<_>>()?;
        let padded: usize = panels.iter().map(|p| p.height).sum();
        Ok(Prepared {
            plan,
            problem,
            kernels,
            taps,
            columns,
            per_outer,
            panels,
            weights: filter.data::<E::Compute>()?,
            group_weights: at,
            bias: crate::layout::padded_bias(problem, operands.bias, padded),
            input: operands.input,
            epilogue: operands.epilogue,
            plane: problem.axes.iter().map(|a| a.output).product(),
            strides: crate::layout::input_strides(problem, axes.len()),
        })
    }

    /// Computes all output channels of the groups of a task.
    pub(super) fn run_task(&self, task: &mut Task<E>, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (plan, all) = (self.plan, self.problem.group_in);
        let fills = matches!(plan.reads, Reads::CopyPerShift | Reads::PaddedRows);
        let copy_plan = fills.then(|| task.copy_plan(&self.taps.input_tiles, &self.strides.2)).transpose()?;
        let pass = plan.pass.filter(|_| plan.keeps_sums()).unwrap_or(all);
        let groups = task.groups.clone();
        for g in groups.clone().step_by(plan.batched_groups) {
            let batch = g..groups.end.min(g + plan.batched_groups);
            for first in (0..all).step_by(pass) {
                self.run_pass(task, batch.clone(), first..all.min(first + pass), copy_plan.as_ref(), scratch)?;
            }
        }
        Ok(())
    }

    /// Computes the sums over some input channels of each group of a batch. After the last ones, results are stored.
    fn run_pass(
        &self,
        task: &mut Task<E>,
        groups: Range<usize>,
        summed: Range<usize>,
        copy_plan: Option<&CopyPlan>,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let plan = self.plan;
        let lanes = self.kernels.lanes;
        let tile_positions = plan.nv * lanes;
        let mut input = match copy_plan {
            Some(copy_plan) => {
                self.copy(task.n, &groups, &summed, copy_plan, &mut scratch.block, &mut scratch.ragged)?
            }
            None if plan.reads == Reads::TileOrder => self.copy_to_tiles(task, groups.start, &mut scratch.block)?,
            None => self.in_place(task, groups.start)?,
        };
        let flat = (task.rows.len() - 1) * input.pitch + task.columns.len();
        let chunk = if plan.keeps_sums() { flat } else { plan.chunk_tiles * tile_positions };
        let (rows_at_once, per_row) = row_runs(chunk, task.columns.len(), lanes);
        let visits = match plan.rows {
            true => task.rows.len().div_ceil(rows_at_once) * per_row,
            false => flat.div_ceil(chunk),
        };
        let panels: Vec<usize> =
            (0..self.panels.len()).filter(|p| task.channels.contains(&self.panels[*p].first_channel)).collect();
        let mut buffers = Buffers { tile: &mut scratch.tile, ragged: &mut scratch.ragged, row: &mut scratch.row };
        let mut visit = |panel: usize, tile: usize| {
            // The first panel's pass brings the input into the caches for the other panels.
            input.source.prefetch = plan.prefetch && panels.first() == Some(&panel);
            let panel = &self.panels[panel];
            if plan.rows {
                let (row, column) = (tile / per_row * rows_at_once, tile % per_row * chunk);
                let rows = row..task.rows.len().min(row + rows_at_once);
                // The last run takes the remainder, so that no run is short.
                let is_last = tile % per_row + 1 == per_row;
                let columns = column..if is_last { task.columns.len() } else { column + chunk };
                self.run_row_tiles(task, groups.start, panel, &input, (rows, columns), &mut buffers)
            } else {
                let position = tile * chunk;
                let positions = position..flat.min(position + chunk);
                self.run_chunk(task, groups.clone(), panel, (&input, summed.clone()), positions, &mut buffers)
            }
        };
        if plan.tile_major {
            (0..visits).try_for_each(|tile| panels.iter().try_for_each(|panel| visit(*panel, tile)))
        } else {
            panels.iter().try_for_each(|panel| (0..visits).try_for_each(|tile| visit(*panel, tile)))
        }
    }

    /// Returns the input of a task as it is.
    fn in_place(&self, task: &Task<E>, group: usize) -> TractResult<BlockInput<'_, E::Compute>> {
        let data = E::as_compute(self.input.whole()?).context("element: computed in another type")?;
        let channels = self.problem.group_in;
        let first = task.n * self.strides.0 + group * channels * self.strides.1;
        let base = first + task.offset(&self.strides.2);
        let source = Source { data, base, channel_stride: self.strides.1, channels, taps: &[], prefetch: false };
        Ok(BlockInput { source, pitch: self.plan.axes.columns().grid, per_position: 1 })
    }

    /// Copies some input channels of each group of a batch into the input tiles of a block.
    fn copy<'s>(
        &self,
        image: usize,
        groups: &Range<usize>,
        summed: &Range<usize>,
        copy_plan: &CopyPlan,
        block: &'s mut Aligned<E::Compute>,
        ragged: &mut Aligned<E::Compute>,
    ) -> TractResult<BlockInput<'s, E::Compute>> {
        let (kernels, input_tiles) = (self.kernels, &self.taps.input_tiles);
        let nxc = self.problem.data_format == DataFormat::Nxc;
        let inputs = groups.len() * summed.len();
        // A register transpose may overrun the last row of a plane.
        let stride = input_tiles.channel_stride + if nxc { kernels.lanes } else { 0 };
        // Tiles may overrun the last position. The elements that they read there are never
        // stored, but must exist.
        let data = block.of(inputs * stride + self.plan.nv * kernels.lanes)?;
        let source = self.input.channels(image, groups.start * self.problem.group_in + summed.start, inputs);
        if nxc {
            let to = (&mut data[..inputs * stride], stride);
            input_tiles.fill_planes(kernels, copy_plan, source.from(0).0, inputs, to, ragged)?;
        } else {
            for (channel, plane) in data.chunks_mut(stride).take(inputs).enumerate() {
                input_tiles.fill(kernels, copy_plan, source.from(channel).0, plane, ragged)?;
            }
        }
        let channels = summed.len();
        let source = Source { data, base: 0, channel_stride: stride, channels, taps: &[], prefetch: false };
        Ok(BlockInput { source, pitch: input_tiles.pitch, per_position: 1 })
    }

    /// Copies the input of a block in the order in which register tiles read it. Grid rows begin with a tile if tiles write
    /// output rows, and follow each other without gaps otherwise.
    fn copy_to_tiles<'s>(
        &self,
        task: &Task<E>,
        group: usize,
        block: &'s mut Aligned<E::Compute>,
    ) -> TractResult<BlockInput<'s, E::Compute>> {
        let (kernels, channels, grid) = (self.kernels, self.problem.group_in, self.plan.axes.columns().grid);
        let tile = self.plan.nv * kernels.lanes;
        let (rows, length, pitch) = match self.plan.rows {
            true => (task.rows.len(), task.columns.len(), task.columns.len().next_multiple_of(tile)),
            false => (1, (task.rows.len() - 1) * grid + task.columns.len(), grid),
        };
        let positions = (rows - 1) * pitch + length.next_multiple_of(tile);
        let data = block.of(positions * channels)?;
        let input = self.input.channels(task.n, group * channels, channels);
        let first = task.offset(&self.strides.2);
        // A few lines of each plane at a time are fetched sooner than a single one, and written before L1 has to drop any.
        let at_once = TILES_AT_ONCE * tile;
        for (row, at) in (0..rows).cartesian_product((0..length).step_by(at_once)) {
            let from = first + row * grid + at;
            let from = from..from + at_once.min(length - at);
            for channel in 0..channels {
                let plane = E::as_compute(input.from(channel).0).context("element: computed in another type")?;
                let to = (row * pitch + at) * channels + channel * tile;
                to_tiles(kernels, &plane[from.clone()], tile, &mut data[to..], channels * tile);
            }
        }
        let source = Source { data, base: 0, channel_stride: tile, channels, taps: &[], prefetch: false };
        Ok(BlockInput { source, pitch, per_position: channels })
    }

    /// Returns a source that contains the whole tile.
    ///
    /// If the input is read in place, the last tile may reach past its end. In this case the source
    /// is a padded copy.
    fn readable<'s>(
        &self,
        source: &Source<'s, E::Compute>,
        positions: usize,
        count: usize,
        ragged: &'s mut Aligned<E::Compute>,
    ) -> TractResult<Source<'s, E::Compute>> {
        let reach = source.base + (source.channels - 1) * source.channel_stride + positions;
        if !self.plan.reads.in_place() || reach <= source.data.len() {
            return Ok(*source);
        }
        let copy = ragged.of(source.channels * positions)?;
        for (ci, row) in copy.chunks_mut(positions).enumerate() {
            let from = source.base + ci * source.channel_stride;
            row[..count].copy_from_slice(&source.data[from..from + count]);
            row[count..].fill(E::Compute::ZERO);
        }
        Ok(Source { data: copy, base: 0, channel_stride: positions, ..*source })
    }

    /// Computes all phases of one panel over some columns of some grid rows, and writes them to the
    /// output without a buffer.
    fn run_row_tiles(
        &self,
        task: &mut Task<E>,
        g: usize,
        panel: &Panel<E::Compute>,
        input: &BlockInput<E::Compute>,
        (rows, columns): (Range<usize>, Range<usize>),
        buffers: &mut Buffers<E::Compute>,
    ) -> TractResult<()> {
        let axes = &self.plan.axes;
        let tile_positions = self.plan.nv * self.kernels.lanes;
        let (y, x) = (axes.rows(), axes.columns());
        let (bounds, epilogue) = self.epilogue.split_bounds();
        let bias_at = g * (self.bias.len() / self.problem.group) + panel.first_channel;
        let bias = &self.bias[bias_at..bias_at + panel.height];
        let weights = &self.weights[g * self.group_weights + panel.weights..];
        let channels = panel.height.min(task.channels.end - panel.first_channel);
        let first_channel = task.channel(self.problem, g, panel.first_channel);
        let from = task.columns.start + columns.start;
        let outputs = x.outputs(&(from..from + columns.len()));
        for o in 0..task.output.outer_phases.len() {
            let first = task.output.outer_phases[o] * self.per_outer;
            for (ry, phases) in self.taps.phases[first..first + self.per_outer].chunks(self.columns).enumerate() {
                let output_row = |row: usize| (task.rows.start + row) * y.out_step + ry;
                // The rows inside the output.
                let count = rows.clone().take_while(|row| output_row(*row) < task.output.rows.end).count();
                if count == 0 {
                    break;
                }
                let mut operands = [PhaseOperand { panel: &[][..], taps: &[], chain: 1, two_chains: false }; 4];
                for (operand, phase) in operands.iter_mut().zip(phases) {
                    *operand = operand_of(panel, weights, (phase, phases), input.source.channels);
                }
                let tiles = RowTiles { panel, operands: &operands[..self.columns], bias, bounds };
                let (first_element, step) = (
                    task.output.plane_index(output_row(rows.start), outputs.start),
                    y.out_step * task.output.columns.len(),
                );
                let at = task.output.index(first_channel, o, output_row(rows.start), outputs.start);
                let mut finish = |slices: &mut SmallVec<[&mut [E::Compute]; MOST_ROWS]>, runs: StridedRuns| {
                    let source = input.at(rows.start * input.pitch + columns.start);
                    self.run_tiles(&tiles, &source, input.per_position, slices, &runs, buffers.ragged)?;
                    if !epilogue.is_empty() {
                        let first = g * self.problem.group_out + panel.first_channel;
                        for (m, slice) in slices.iter_mut().enumerate() {
                            let size = (runs.count, outputs.len());
                            epilogue.apply_runs(first + m, at + m * self.plane, size, (runs.step, step), slice);
                        }
                    }
                    TractResult::Ok(())
                };
                let task_channels = first_channel..first_channel + channels;
                let (pitch, tile_step) = (input.pitch * input.per_position, tile_positions * input.per_position);
                let runs = StridedRuns { elements: 0..outputs.len(), count, step, pitch, tile_step };
                let all = first_element..first_element + (count - 1) * step + outputs.len();
                let mut in_place = SmallVec::new();
                if task.output.channel_elements(task_channels, o, all, &mut in_place) {
                    finish(&mut in_place, runs)?;
                    continue;
                }
                drop(in_place);
                let elements_per_channel = count * outputs.len();
                let staging = buffers.tile.of(channels * elements_per_channel)?;
                let mut slices = staging.chunks_exact_mut(elements_per_channel.max(1)).collect();
                finish(&mut slices, StridedRuns { step: outputs.len(), ..runs })?;
                for (m, slice) in slices.iter().enumerate() {
                    for (run, values) in slice.chunks(outputs.len().max(1)).enumerate() {
                        let row = output_row(rows.start + run);
                        task.output.put(first_channel + m, o, row, outputs.start, values);
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes the sums of all runs: the whole tiles of each run, then the remainders. Tiles are `per_position` elements
    /// per position apart in the source.
    fn run_tiles(
        &self,
        RowTiles { panel, operands, bias, bounds }: &RowTiles<E::Compute>,
        source: &Source<E::Compute>,
        per_position: usize,
        slices: &mut [&mut [E::Compute]],
        runs: &StridedRuns,
        ragged: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let lanes = self.kernels.lanes;
        let positions = runs.elements.len().div_ceil(self.columns);
        let whole = positions / (self.plan.nv * lanes) * self.plan.nv * lanes;
        let outputs = runs.elements.len().min(whole * self.columns);
        if whole > 0 {
            let runs = StridedRuns { elements: 0..outputs, ..*runs };
            panel.row_tiles[self.plan.nv - 1].run(operands, source, bias, slices, &runs, *bounds);
        }
        if whole == positions {
            return Ok(());
        }
        let tile = panel.row_tiles[(positions - whole).div_ceil(lanes) - 1];
        // The last tile ends at the last position. If there are enough positions, it computes some
        // of them again. In the order of tiles, it begins where a tile does.
        let again = positions.checked_sub(tile.positions()).filter(|_| self.plan.reads != Reads::TileOrder);
        let first = again.unwrap_or(whole);
        let outputs = first * self.columns;
        let source = Source { base: source.base + first * per_position, ..*source };
        // The last runs may reach past the end of an input that is read in place.
        let reach = source.base + (source.channels - 1) * source.channel_stride + tile.positions();
        let inside = match self.plan.reads.in_place() {
            true => (0..runs.count).take_while(|run| reach + run * runs.pitch <= source.data.len()).count(),
            false => runs.count,
        };
        let left = StridedRuns { elements: outputs..runs.elements.len(), count: inside, ..*runs };
        tile.run(operands, &source, bias, slices, &left, *bounds);
        for run in inside..runs.count {
            let source = Source { base: source.base + run * runs.pitch, ..source };
            let source = self.readable(&source, tile.positions(), positions - first, ragged)?;
            let at = run * runs.step;
            let left = StridedRuns { elements: at + outputs..at + runs.elements.len(), count: 1, ..*runs };
            tile.run(operands, &source, bias, slices, &left, *bounds);
        }
        Ok(())
    }

    /// Computes all phases of one panel per group over `count` flat positions from `position` on,
    /// and stores them through a buffer.
    fn run_chunk(
        &self,
        task: &mut Task<E>,
        groups: Range<usize>,
        panel: &Panel<E::Compute>,
        (input, summed): (&BlockInput<E::Compute>, Range<usize>),
        positions: Range<usize>,
        buffers: &mut Buffers<E::Compute>,
    ) -> TractResult<()> {
        let (problem, plan) = (self.problem, self.plan);
        let axes = &plan.axes;
        let (y, x) = (axes.rows(), axes.columns());
        let (position, count, pitch) = (positions.start, positions.len(), input.pitch);
        let source = input.at(position);
        let stride = count.next_multiple_of(self.kernels.lanes);
        let group_stride = panel.height * stride;
        let phase_stride = groups.len() * group_stride;
        // Sums that are kept between passes have a part for each panel and row phase.
        let kept = plan.keeps_sums();
        let row_phases = task.output.outer_phases.len() * y.out_step;
        let part = self.columns * groups.len() * plan.mr * stride;
        let parts = if kept { self.panels.len() * row_phases } else { 1 };
        let first_part = if kept { panel.first_channel / plan.mr * row_phases } else { 0 };
        // A register transpose may overrun the last row.
        let sums = buffers.tile.of(parts * part + self.kernels.lanes)?;
        let channels = panel.height.min(task.channels.end - panel.first_channel);
        let tile_positions = plan.nv * self.kernels.lanes;
        let last = (stride - 1) / tile_positions * tile_positions;
        let last_source = input.at(position + last);
        let last_source = self.readable(&last_source, stride - last, count - last, buffers.ragged)?;
        // Groups are adjacent in the output. In the buffer, their panels are padded.
        let row = |at: usize| at / channels * group_stride + at % channels * stride;
        let rows: SmallVec<[usize; 64]> = (0..groups.len() * channels).map(row).collect();
        let pass = plan.pass.filter(|_| !kept).unwrap_or(source.channels);
        let transposes = rows.len() >= FEWEST_TRANSPOSED || self.interleaves_pixels(rows.len());

        for o in 0..task.output.outer_phases.len() {
            let first = task.output.outer_phases[o] * self.per_outer;
            for (ry, phases) in self.taps.phases[first..first + self.per_outer].chunks(self.columns).enumerate() {
                let at = if kept { (first_part + o * y.out_step + ry) * part } else { 0 };
                let out = &mut sums[at..][..self.columns * phase_stride + self.kernels.lanes];
                let tiles = groups.clone().cartesian_product((0..stride).step_by(tile_positions));
                for (first, (g, at)) in (0..source.channels).step_by(pass).cartesian_product(tiles) {
                    let tile = panel.tiles[((stride - at) / self.kernels.lanes).min(plan.nv) - 1];
                    let bias = g * (self.bias.len() / problem.group) + panel.first_channel;
                    let bias = &self.bias[bias..bias + panel.height];
                    let weights = &self.weights[g * self.group_weights + panel.weights..];
                    let group_offset = (g - groups.start) * problem.group_in * source.channel_stride;
                    let source = match at == last {
                        true => Source { base: last_source.base + group_offset, ..last_source },
                        false => Source { base: input.at(position + at).base + group_offset, ..source },
                    };
                    for (phase, out) in phases.iter().zip(out.chunks_mut(phase_stride)) {
                        let weights = &weights[phase.weights * panel.height..];
                        let out = &mut out[(g - groups.start) * group_stride + at..];
                        let channels = first..source.channels.min(first + pass);
                        run_chains(tile, weights, &source, (&phase.taps, channels, summed.start), bias, out, stride);
                    }
                }
                if summed.end < problem.group_in {
                    continue;
                }
                if problem.data_format == DataFormat::Nxc && transposes {
                    let offsets = (groups.start * problem.group_out + panel.first_channel, o, ry);
                    let (uniform, varying) = self.epilogue.split();
                    uniform.apply(out);
                    let epilogue = (varying, &mut *buffers.row);
                    self.store_pixels(task, offsets, &rows, (position, count, pitch), (out, phase_stride), epilogue)?;
                    continue;
                }
                let mut rows: TVec<&[E::Compute]> = tvec!();
                for run in flat_runs(positions.clone(), pitch, 0..task.columns.len()) {
                    let output_row = (task.rows.start + run.row) * y.out_step + ry;
                    if output_row >= task.output.rows.end {
                        break;
                    }
                    let first = (task.columns.start + run.column) * x.out_step;
                    for (g, m) in groups.clone().cartesian_product(0..channels) {
                        rows.clear();
                        for rx in 0..self.columns {
                            let at = rx * phase_stride + (g - groups.start) * group_stride + m * stride + run.at;
                            rows.push(&out[at..at + run.len]);
                        }
                        let channel = task.channel(problem, g, panel.first_channel + m);
                        let epilogue = self.epilogue.of(g * problem.group_out + panel.first_channel + m);
                        task.output.write(self.kernels, channel, o, output_row, first, &rows, epilogue, buffers.row)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the phases of a row form runs without gaps in channels-last data, and few enough
    /// channels per pixel that one interleaving stores them.
    fn interleaves_pixels(&self, channels: usize) -> bool {
        channels == self.problem.group * self.problem.group_out && (2..=16).contains(&(channels * self.columns))
    }

    /// Stores rows of positions as pixels, by register transposes or by interleaving. `rows` are
    /// the rows' offsets in `out`.
    fn store_pixels(
        &self,
        task: &mut Task<E>,
        (channel, outer, phase_row): (usize, usize, usize),
        rows: &[usize],
        (position, count, pitch): (usize, usize, usize),
        (out, phase_stride): (&[E::Compute], usize),
        (epilogue, buffer): (Epilogue<E>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        let axes = &self.plan.axes;
        let (y, x) = (axes.rows(), axes.columns());
        let whole = self.interleaves_pixels(rows.len());
        for run in flat_runs(position..position + count, pitch, 0..task.columns.len()) {
            let row = (task.rows.start + run.row) * y.out_step + phase_row;
            if row >= task.output.rows.end {
                break;
            }
            let first = (task.columns.start + run.column) * x.out_step;
            if whole {
                let row_starts = |rx: usize| rows.iter().map(move |at| rx * phase_stride + at + run.at);
                // An array, as a growing list would take noticeable time.
                let mut interleaved: [&[E::Compute]; 16] = [&[]; 16];
                for (to, at) in interleaved.iter_mut().zip((0..self.columns).flat_map(row_starts)) {
                    *to = &out[at..at + run.len];
                }
                let interleaved = &interleaved[..rows.len() * self.columns];
                task.output.write_whole_pixels(self.kernels, (outer, row, first), interleaved, epilogue, buffer)?;
                continue;
            }
            for rx in 0..self.columns {
                let offsets = (outer, row, first + rx);
                let from = (&out[rx * phase_stride + run.at..], rows, run.len);
                task.output.write_rows(self.kernels, offsets, x.out_step, channel, from, epilogue, buffer)?;
            }
        }
        Ok(())
    }
}

/// The operands that all tiles of a panel share.
struct RowTiles<'a, T: 'static> {
    panel: &'a Panel<T>,
    operands: &'a [PhaseOperand<'a, T>],
    bias: &'a [T],
    bounds: Option<Bounds<T>>,
}

/// Returns the weights in a panel of one of the phases of a row, and the chains of its sum. The chains do not depend on
/// where a row is split.
fn operand_of<'a, T: Compute>(
    panel: &Panel<T>,
    weights: &'a [T],
    (phase, all): (&'a Phase, &[Phase]),
    channels: usize,
) -> PhaseOperand<'a, T> {
    let taps = &phase.taps[..];
    let chain = channels_per_chain(channels, taps.len());
    let two_chains = panel.row_tiles.last().is_some_and(|widest| {
        let together = widest.sums_phases_together() && all.iter().all(|other| other.taps.len() == taps.len());
        widest.two_chains() && !together
    });
    let two_chains = two_chains && chain >= channels && channels * taps.len() >= FEWEST_IN_TWO_CHAINS;
    PhaseOperand { panel: &weights[phase.weights * panel.height..], taps, chain, two_chains }
}

/// Computes one phase of a tile over some channels of a source, in chains of bounded length. The source begins with
/// channel `first` of its group. The sums of the channels before are in `out`.
fn run_chains<T: Compute>(
    tile: &PositionTile<T>,
    weights: &[T],
    source: &Source<T>,
    (taps, channels, first): (&[usize], Range<usize>, usize),
    bias: &[T],
    out: &mut [T],
    stride: usize,
) {
    // Without taps, a result is its bias.
    let channels = match (taps.is_empty(), first + channels.start) {
        (false, _) => channels,
        (true, 0) => 0..1,
        (true, _) => 0..0,
    };
    let per_chain = channels_per_chain(source.channels, taps.len());
    for from in channels.clone().step_by(per_chain) {
        let part = Source {
            base: source.base + from * source.channel_stride,
            channels: per_chain.min(channels.end - from),
            taps,
            ..*source
        };
        let start = if first + from == 0 { Start::Bias(bias) } else { Start::Add };
        tile.run(&weights[(first + from) * taps.len() * tile.mr()..], &part, start, out, stride);
    }
}
