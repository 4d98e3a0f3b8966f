//! One matrix product for all taps, whose results are accumulated into output rows.
//!
//! This suits few output channels and many taps. The products of a few input rows, one per (output
//! channel, tap), are kept in a ring that stays in L2. There is no column buffer of the input's
//! size. The input is not shifted before the product. It is read in place from L2. A larger one is
//! copied in the order in which the register tiles read it.

use crate::algorithm::chains::longest_chain;
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::geometry::{Axes, AxisPhases, Tap};
use crate::kernel::{Col2imRun, Dispatch, Kernels, PositionTile, Source, Start};
use crate::layout::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::ranges::{blocks_of, even_blocks};

use crate::memory::refill;
use crate::memory::{Aligned, Scratch};
use crate::output::partition::{Partition, group_parts};
use crate::output::task::{Task, bytes_of_tasks, run_tasks};
use crate::parallel::threads;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Direction, Problem};
use std::ops::Range;
use tract_core::internal::*;

/// The most rows that are interleaved when they are stored.
const MOST_INTERLEAVED: usize = 16;

/// Positions that are copied together from a plane that L2 does not hold. The first one is waited for.
const LONG_RUN: usize = 256;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Col2im {
    /// Products (output channel × tap) per register tile.
    pub mr: usize,
    /// Products of the last panel's tile.
    pub last_mr: usize,
    /// Vectors of positions per register tile.
    pub nv: usize,
    /// Input rows per matrix product.
    pub chunk_rows: usize,
    /// Whether the input is copied in the order in which register tiles read it. Otherwise it is
    /// read in place.
    pub copied: bool,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Axes,
}

impl Algorithm for Col2im {
    type Tables = ();

    fn propose(query: &Query) -> Result<Col2im, String> {
        let &Query { problem, machine, .. } = query;
        if problem.direction == Direction::Forward {
            return Err("a forward convolution has no overlapping products".to_string());
        }
        if problem.axes.len() != 2 {
            return Err(format!("{} spatial axes, not two", problem.axes.len()));
        }
        let axes = query.axes()?;
        let forced = query.forced(|layout| match layout {
            FilterLayout::Columns { mr, last_mr } => Some((*mr, *last_mr)),
            _ => None,
        })?;
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        let phases: usize = problem.axes.iter().map(|a| a.stride).product();
        if problem.group_in == 1 {
            return Err("one input channel per group needs no matrix product".to_string());
        }
        let products = problem.group_out * taps;
        if products > 1024 {
            return Err(format!("{products} products per position are too many for the ring"));
        }
        let (lanes, tiles) = (query.sizes.lanes, &query.sizes.position_tiles);
        let [y, x] = &problem.axes[..] else { return Err("two axes are needed".to_string()) };
        let element = query.element;
        let row_bytes = x.input.saturating_mul(problem.group_in).saturating_mul(element);
        let far = y.input.saturating_mul(row_bytes) > machine.l2;
        let same_element = query.has_same_element();
        let copied = far || !same_element || problem.data_format == DataFormat::Nxc;
        let mut best: Option<Col2im> = None;
        for &(mr, nv) in tiles {
            let remainder = products % mr;
            let last_mr = tiles.iter().map(|t| t.0).filter(|h| *h >= remainder).min().unwrap_or(mr);
            if forced.is_some_and(|f| f != (mr, last_mr)) {
                continue;
            }
            // Enough rows to fill a tile, or to copy long runs, if the ring and the copy still fit in
            // half of L2 each.
            let fits = machine.l2 / 2 / products.saturating_mul(x.input).saturating_mul(element).max(row_bytes);
            let positions = if far { LONG_RUN } else { nv * lanes };
            let chunk_rows = positions.div_ceil(x.input).clamp(1, fits.clamp(1, y.input));
            let vectors = (chunk_rows * x.input).div_ceil(lanes);
            let tile_cost = |m: usize, n: usize| cost::tile(m, n, lanes * element, false, machine);
            let row_cost = |m: usize| {
                let last = if vectors % nv > 0 { tile_cost(m, vectors % nv) } else { Cost::ZERO };
                tile_cost(m, nv) * (vectors / nv) + last
            };
            let last = if remainder > 0 { row_cost(last_mr) } else { Cost::ZERO };
            let panels = row_cost(mr) * (products / mr) + last;
            let accumulated = cost::ACCUMULATED.times(&[products, vectors]);
            let store = match problem.data_format {
                DataFormat::Ncx => cost::accumulated_store(axes[1].out_step),
                DataFormat::Nxc => cost::SCATTERED,
            };
            let stored = store.times(&[vectors, problem.group_out, phases]);
            let per_vector = match (problem.data_format, copied) {
                (DataFormat::Nxc, _) => cost::copied(DataFormat::Nxc, problem.group_in),
                (DataFormat::Ncx, true) => cost::INTO_TILES,
                (DataFormat::Ncx, false) => Cost::ZERO,
            };
            let per_run = if far { cost::FAR_RUN } else { Cost::ZERO };
            let copying = per_vector.times(&[vectors, problem.group_in]) + per_run * problem.group_in;
            let rows = cost::ACCUMULATED_ROW.times(&[axes[0].output, problem.group_out]);
            let chunk = panels * problem.group_in + accumulated + stored + copying;
            let group = chunk * y.input.div_ceil(chunk_rows) + rows;
            let cost = group.times(&[problem.group, problem.batch]).rounded();
            if best.as_ref().is_none_or(|b| cost < b.cost) {
                best = Some(Col2im { mr, last_mr, nv, chunk_rows, copied, cost, axes: axes.clone() });
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let (y, x) = (&self.axes[0], &self.axes[1]);
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        // Whole vectors and panels are written, so sizes are rounded up.
        let slot = self.chunk_rows.saturating_mul(x.input).saturating_add(64);
        let rows = slots(y, self.chunk_rows).saturating_mul(slot);
        let ring = (problem.group_out * taps + self.mr).saturating_mul(rows);
        // The phases of one channel, or of few channels together.
        let accumulated = x.grid.saturating_mul(x.out_step.max(MOST_INTERLEAVED));
        let block = slot.saturating_mul(problem.group_in);
        let working = ring.saturating_add(accumulated).saturating_add(block).saturating_mul(element);
        working.saturating_add(bytes_of_tasks(problem, &self.axes, 1))
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Columns { mr: self.mr, last_mr: self.last_mr }
    }

    fn explain(&self) -> String {
        let source = if self.copied { "copied in the order of tiles" } else { "read in place" };
        format!("tiles of {}x{}, input {source}, {} rows at a time", self.mr, self.nv, self.chunk_rows)
    }

    fn tables(&self, _problem: &Problem, _lanes: usize) -> TractResult<()> {
        Ok(())
    }

    fn run<E: Element>(
        &self,
        _tables: &(),
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands)?;
        let (y, x) = (&self.axes[0], &self.axes[1]);
        let threads = threads(self.cost);
        let groups = group_parts(problem, threads);
        let wanted = if threads == 1 { 1 } else { threads.div_ceil((problem.batch * groups.len()).max(1)) };
        // Each part of the channels copies the input again, and each block of rows computes the
        // products of its halo again, so use no more of them than the threads need.
        let parts = match problem.data_format {
            DataFormat::Ncx if groups.iter().all(|groups| groups.len() == 1) => wanted.min(problem.group_out),
            _ => 1,
        };
        let blocks = wanted.div_ceil(parts);
        let partition = Partition {
            groups,
            channels: even_blocks(problem.group_out, parts),
            rows: blocks_of(y.grid, y.grid.div_ceil(blocks)),
            columns: blocks_of(x.grid, x.grid),
        };
        run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| {
            task.groups.clone().try_for_each(|g| prepared.run_group(task, g, scratch))
        })
    }
}

impl Col2im {
    /// Elements of the products of `chunk_rows` input rows with one weight.
    fn slot(&self, lanes: usize) -> usize {
        (self.chunk_rows * self.axes[1].input).next_multiple_of(lanes)
    }

    /// Elements of the ring between the products of adjacent weights.
    fn ring_pitch(&self, lanes: usize) -> usize {
        slots(&self.axes[0], self.chunk_rows) * self.slot(lanes)
    }
}

/// The slots of `chunk_rows` input rows that the ring needs.
///
/// They hold the rows that the taps of one grid row span, for any chunk offset.
fn slots(y: &AxisPhases, chunk_rows: usize) -> usize {
    let shifts = y.shifts();
    let span = (shifts[shifts.len() - 1] - shifts[0]) as usize + 1;
    (span + chunk_rows - 1).div_ceil(chunk_rows) + 1
}

struct Panel<T: 'static> {
    first: usize,
    weights: usize,
    tiles: Vec<&'static PositionTile<T>>,
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a Col2im,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    panels: Vec<Panel<E::Compute>>,
    /// Products, padded to whole panels.
    products: usize,
    weights: &'a [E::Compute],
    operands: &'a Operands<'a, E>,
    zeros: Vec<E::Compute>,
    /// Per phase of a row, the products that its taps add, relative to a channel, kernel row and
    /// input row.
    accumulated: Vec<Vec<Col2imRun>>,
    /// Strides of the input: image, channel, row, column.
    strides: [usize; 4],
}

/// The products of the most recent input rows.
struct Ring<'a, T> {
    data: &'a mut [T],
    /// Elements between products.
    pitch: usize,
    /// Elements per slot of `chunk_rows` rows.
    slot: usize,
    slots: usize,
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a Col2im,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &'a Operands<'a, E>,
    ) -> TractResult<Self> {
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        let mut at = 0;
        let panels = panel_heights(problem.group_out * taps, plan.mr, plan.last_mr)
            .map(|(first, height)| {
                let weights = at;
                at += height * problem.group_in;
                let tiles = (1..=plan.nv)
                    .map(|nv| kernels.position_tile(height, nv).context("kernel: a tile of the plan is missing"))
                    .collect::<TractResult<Vec<_>>>()?;
                Ok(Panel { first, weights, tiles })
            })
            .collect::<TractResult<Vec<_>>>()?;
        let x = &plan.axes[1];
        let pitch = plan.ring_pitch(kernels.lanes);
        let accumulated = |tap: &Tap| {
            let to = x.inside(tap.shift);
            // A position inside the input is never before the first column.
            let from = usize::try_from(to.start as i64 + tap.shift).ok().filter(|_| !to.is_empty())?;
            Some(Col2imRun { from: tap.k * pitch + from, to })
        };
        let accumulated = x.phases.iter().map(|phase| phase.taps.iter().filter_map(accumulated).collect()).collect();
        let input = crate::layout::strides_of(&problem.input_shape());
        let (c, x) = (problem.data_format.c_axis(4), problem.data_format.x_axis());
        Ok(Prepared {
            plan,
            problem,
            kernels,
            products: at / problem.group_in,
            panels,
            weights: filter.data::<E::Compute>()?,
            operands,
            zeros: vec![E::Compute::ZERO; plan.mr.max(plan.last_mr)],
            accumulated,
            strides: [input[0], input[c], input[x], input[x + 1]],
        })
    }

    /// Computes one group of a block of grid rows.
    fn run_group(&self, task: &mut Task<E>, g: usize, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (y, x) = (&self.plan.axes[0], &self.plan.axes[1]);
        let lanes = self.kernels.lanes;
        let chunk_rows = self.plan.chunk_rows;
        let shifts = y.shifts();
        let (lowest, highest) = (shifts[0], shifts[shifts.len() - 1]);
        let slot = self.plan.slot(lanes);
        let slots = slots(y, chunk_rows);
        let pitch = self.plan.ring_pitch(lanes);
        let data = scratch.tile.of(self.products * pitch)?;
        let mut ring = Ring { data, pitch, slot, slots };
        // Chunks of input rows are numbered from the first row that the block reads.
        let first_row = (task.rows.start as i64 + lowest).clamp(0, y.input as i64) as usize;
        let mut made = first_row;
        // The channels of a pixel are stored together if channels are last and few. They are
        // adjacent within a phase.
        let channels = task.channels.clone();
        let last = self.problem.data_format == DataFormat::Nxc && self.problem.group == 1;
        let interleaved = last && (2..=MOST_INTERLEAVED).contains(&(channels.len() * x.out_step));
        let together = if interleaved { channels.len() } else { 1 };
        let mut rows: Vec<Vec<E::Compute>> = vec![vec![]; x.out_step * together];
        rows.iter_mut().try_for_each(|row| refill("working memory", row, x.grid, E::Compute::ZERO))?;
        for u in task.rows.clone() {
            let needed = (u as i64 + highest + 1).clamp(first_row as i64, y.input as i64) as usize;
            while made < needed {
                let chunk = made..(made + chunk_rows).min(y.input);
                self.multiply(
                    task.n,
                    (g, task.channels.clone()),
                    chunk.clone(),
                    (made - first_row) / chunk_rows,
                    &mut ring,
                    (&mut scratch.block, &mut scratch.ragged),
                )?;
                made = chunk.end;
            }
            for (ry, phase) in y.phases.iter().enumerate() {
                let output_row = u * y.out_step + ry;
                if output_row >= y.output {
                    break;
                }
                let [height, width] = [0, 1].map(|axis| self.problem.axes[axis].kernel);
                let of_row = |tap: &Tap| {
                    let at = usize::try_from(u as i64 + tap.shift).ok().filter(|at| *at < y.input)? - first_row;
                    let offset = at / chunk_rows % ring.slots * ring.slot + at % chunk_rows * x.input;
                    Some(tap.k * width * ring.pitch + offset)
                };
                let taps: TVec<usize> = phase.taps.iter().filter_map(of_row).collect();
                for channel in channels.clone() {
                    let bias = self
                        .operands
                        .bias
                        .map_or(E::Compute::ZERO, |b| b[g * self.problem.group_out + channel].widen());
                    let of_channel = rows.iter_mut().skip(channel % together).step_by(together);
                    for (row, accumulated) in of_channel.zip(&self.accumulated) {
                        self.kernels.accumulate_row(
                            &ring.data[channel * height * width * ring.pitch..],
                            &taps,
                            accumulated,
                            bias,
                            row,
                        );
                    }
                    if together > 1 {
                        continue;
                    }
                    let columns: TVec<&[E::Compute]> = rows.iter().map(|r| &r[..]).collect();
                    let task_channel = task.channel(self.problem, g, channel);
                    task.output.write(
                        self.kernels,
                        task_channel,
                        0,
                        output_row,
                        0,
                        &columns,
                        self.operands.epilogue.of(g * self.problem.group_out + channel),
                        &mut scratch.row,
                    )?;
                }
                if together > 1 {
                    let (uniform, varying) = self.operands.epilogue.split();
                    rows.iter_mut().for_each(|row| uniform.apply(row));
                    let rows: TVec<&[E::Compute]> = rows.iter().map(|r| &r[..]).collect();
                    task.output.write_whole_pixels(
                        self.kernels,
                        (0, output_row, 0),
                        &rows,
                        varying,
                        &mut scratch.row,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Computes the products of a chunk of input rows and some output channels into a slot of the
    /// ring.
    fn multiply(
        &self,
        n: usize,
        (g, outputs): (usize, Range<usize>),
        rows: Range<usize>,
        chunk: usize,
        ring: &mut Ring<E::Compute>,
        (block, pixels): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        let (channels, lanes) = (self.problem.group_in, self.kernels.lanes);
        let count = rows.len() * self.problem.axes[1].input;
        let padded = count.next_multiple_of(lanes);
        let first = n * self.strides[0] + g * channels * self.strides[1] + rows.start * self.strides[2];
        let input = self.operands.input.whole()?;
        // The last tile may reach past the input's end.
        let reach = first + (channels - 1) * self.strides[1] + padded;
        let in_place = E::as_compute(input).filter(|_| !self.plan.copied && reach <= input.len());
        let data = match in_place {
            Some(data) => data,
            None => {
                let data = block.of(channels * padded)?;
                self.copy(&input[first..], count, data, pixels)?;
                data
            }
        };
        let weights = &self.weights[g * self.products * channels..];
        let slot = chunk % ring.slots * ring.slot;
        let longest = longest_chain(channels, 1);
        let taps: usize = self.problem.axes.iter().map(|axis| axis.kernel).product();
        let products = outputs.start * taps..outputs.end * taps;
        let is_needed = |panel: &&Panel<E::Compute>| {
            panel.first < products.end && panel.first + panel.tiles[0].mr() > products.start
        };
        for panel in self.panels.iter().filter(is_needed) {
            for at in (0..padded).step_by(self.plan.nv * lanes) {
                let tile = panel.tiles[((padded - at) / lanes).min(self.plan.nv) - 1];
                let (base, channel_stride) = match in_place {
                    Some(_) => (first + at, self.strides[1]),
                    None => (at * channels, tile.nv() * lanes),
                };
                let out = &mut ring.data[panel.first * ring.pitch + slot + at..];
                let mut start = Start::Bias(&self.zeros);
                for from in (0..channels).step_by(longest) {
                    let source = Source {
                        data,
                        base: base + from * channel_stride,
                        channel_stride,
                        channels: longest.min(channels - from),
                        taps: &[0],
                        prefetch: false,
                    };
                    tile.run(&weights[panel.weights + from * tile.mr()..], &source, start, out, ring.pitch);
                    start = Start::Add;
                }
            }
        }
        Ok(())
    }

    /// Copies the first `count` positions of a group, in the order in which register tiles read
    /// them: `[tile][channel][position]`. The last tile has as many whole vectors as it needs.
    ///
    /// A tile reads a vector or two of every channel. In the input, these are in as many pages of
    /// memory as there are channels.
    fn copy(
        &self,
        from: &[E],
        count: usize,
        to: &mut [E::Compute],
        pixels: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let (channels, lanes) = (self.problem.group_in, self.kernels.lanes);
        let per_tile = self.plan.nv * lanes;
        let whole = count / per_tile;
        let (tiles, last) = to.split_at_mut(whole * per_tile * channels);
        let width = last.len() / channels;
        if self.problem.data_format == DataFormat::Ncx {
            for ci in 0..channels {
                let from = &from[ci * self.strides[1]..][..count];
                let (from, rest) = from.split_at(whole * per_tile);
                match E::as_compute(from) {
                    Some(from) if whole > 0 => {
                        let to = (&mut tiles[ci * per_tile..], per_tile * channels);
                        self.kernels.copy_pixels(from, per_tile, (whole, per_tile), to, None, false);
                    }
                    _ => {
                        let tiles = tiles.chunks_mut(per_tile).skip(ci).step_by(channels);
                        tiles.zip(from.chunks(per_tile)).for_each(|(to, from)| E::widen_slice(from, to));
                    }
                }
                let to = &mut last[ci * width..][..width];
                E::widen_slice(rest, &mut to[..rest.len()]);
                to[rest.len()..].fill(E::Compute::ZERO);
            }
            return Ok(());
        }
        let (from, step) = match E::as_compute(from) {
            Some(from) => (from, self.strides[3]),
            None => {
                let pixels = pixels.of(channels * count)?;
                for (to, from) in pixels.chunks_mut(channels).zip(from.chunks(self.strides[3])) {
                    E::widen_slice(&from[..channels], to);
                }
                (&*pixels, channels)
            }
        };
        let tiles = tiles.chunks_mut((per_tile * channels).max(1)).map(|to| (to, per_tile, per_tile));
        let last = (!last.is_empty()).then_some((last, width, count - whole * per_tile));
        for (at, (to, width, positions)) in tiles.chain(last).enumerate() {
            let from = &from[at * per_tile * step..];
            crate::layout::transposed(self.kernels, from, step, (channels, positions), to, width);
        }
        Ok(())
    }
}
