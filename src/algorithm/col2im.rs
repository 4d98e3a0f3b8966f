//! One matrix product for all taps, whose results are accumulated into output rows.
//!
//! This suits few output channels and many taps. The products of a few input rows, one per (output
//! channel, tap), are kept in a ring that stays in L2. There is no column buffer of the input's
//! size. The input is not shifted before the product. It is read in place from L2. A larger one is
//! copied in the order in which the register tiles read it.
//!
//! With three axes or more, all products are computed before any is added, as the rows that one output
//! row needs are far apart. This is for volumes whose products fit in a part of the last-level cache.

use crate::algorithm::chains::longest_chain;
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::geometry::{Axes, OuterTap, Tap};
use crate::kernel::{Col2imRows, Col2imRun, Dispatch, Kernels, PositionTile, Source, Start};
use crate::layout::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::layout::{to_tiles, transposed};
use crate::memory::{Aligned, Scratch, refill};
use crate::output::partition::{Partition, group_parts};
use crate::output::task::{Task, bytes_of_tasks, run_tasks};
use crate::parallel::{parallel, threads};
use crate::ranges::{blocks_of, even_blocks};
use crate::simd::isa::Isa;
use crate::simd::vector::MOST_LANES;
use crate::spec::{DataFormat, Direction, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// The rows of a block, as a multiple of its halo, from which threads share rows rather than channels if they copy the input.
const WORTH_A_HALO: usize = 4;

/// The most rows that are interleaved when they are stored.
const MOST_INTERLEAVED: usize = 16;

/// Positions that are copied together from a plane that L2 does not hold. The first one is waited for.
const LONG_RUN: usize = 256;

/// Tiles of the positions whose products are computed together. With more of them, less of the last one is empty, but
/// L1 does not hold their products.
const MOST_TILES: usize = 6;

/// The part of the last-level cache that all products of a volume may take.
const SHARE_OF_L3: usize = 4;

/// The most products per position, so that L2 holds those of some rows of usual widths.
const MOST_PRODUCTS: usize = 2048;

/// Channels whose rows are summed by one call.
const CHANNELS_TOGETHER: usize = 16;

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
    /// Whether all products are kept. Otherwise a ring keeps those of some rows.
    pub keeps_all: bool,
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
        if problem.axes.len() < 2 {
            return Err("one spatial axis, not two or more".to_string());
        }
        let axes = query.axes()?;
        let keeps_all = problem.axes.len() > 2;
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
        let (lanes, tiles) = (query.sizes.lanes, &query.sizes.position_tiles);
        let element = query.element;
        let (x, all_rows) = (axes.columns(), input_rows(axes));
        let row_products = products.saturating_mul(x.input).saturating_mul(element);
        let kept_products = match keeps_all {
            true => {
                let positions = all_rows.saturating_mul(x.input).saturating_add(2 * lanes);
                let matrices = problem.batch.saturating_mul(problem.group);
                positions.saturating_mul(products).saturating_mul(matrices).saturating_mul(element)
            }
            false => row_products.saturating_mul(slots(axes, 1)),
        };
        if keeps_all {
            let most = machine.l2.max(machine.l3 / SHARE_OF_L3);
            if kept_products > most {
                return Err(format!("{kept_products} bytes of products, more than {most}"));
            }
        } else if products > MOST_PRODUCTS {
            return Err(format!("{products} products per position are too many for the ring"));
        }
        let row_bytes = x.input.saturating_mul(problem.group_in).saturating_mul(element);
        let bytes = all_rows.saturating_mul(row_bytes);
        let far = bytes > machine.l2;
        let same_element = query.has_same_element();
        let copied = far || !same_element || problem.data_format == DataFormat::Nxc;
        let store = match problem.data_format {
            DataFormat::Ncx => cost::accumulated_store(x.out_step),
            DataFormat::Nxc => cost::SCATTERED,
        };
        let output_rows: usize = axes.iter().rev().skip(1).map(|axis| axis.output).product();
        let accumulated = cost::ACCUMULATED + cost::accumulated_far(kept_products, machine);
        let summed = accumulated.times(&[products, all_rows, x.input.div_ceil(lanes)])
            + store.times(&[problem.group_out, phases, all_rows, x.input.div_ceil(lanes)])
            + cost::ACCUMULATED_ROW.times(&[output_rows, problem.group_out]);
        let per_vector = match (problem.data_format, copied) {
            (DataFormat::Nxc, _) => cost::copied(DataFormat::Nxc, problem.group_in),
            (DataFormat::Ncx, true) => cost::INTO_TILES,
            (DataFormat::Ncx, false) => Cost::ZERO,
        };
        let per_run = if far { cost::FAR_RUN } else { Cost::ZERO };
        // Each chunk reads all weights again.
        let weights = products.saturating_mul(problem.group_in);
        let weights = match weights.saturating_mul(element) > machine.l2 {
            true => Cost::new(machine.rates.far_weights) * (weights / lanes),
            false => Cost::ZERO,
        };
        let mut best: Option<Col2im> = None;
        for &(mr, nv) in tiles {
            let remainder = products % mr;
            let last_mr = tiles.iter().map(|t| t.0).filter(|h| *h >= remainder).min().unwrap_or(mr);
            if forced.is_some_and(|f| f != (mr, last_mr)) {
                continue;
            }
            let tile_cost = |m: usize, n: usize| cost::tile(m, n, lanes * element, false, machine);
            let multiplied = |rows: usize| {
                let vectors = (rows * x.input).div_ceil(lanes);
                let row_cost = |m: usize| {
                    let last = if vectors % nv > 0 { tile_cost(m, vectors % nv) } else { Cost::ZERO };
                    tile_cost(m, nv) * (vectors / nv) + last
                };
                let last = if remainder > 0 { row_cost(last_mr) } else { Cost::ZERO };
                let panels = row_cost(mr) * (products / mr) + last;
                let copying = per_vector.times(&[vectors, problem.group_in]) + per_run * problem.group_in;
                panels * problem.group_in + copying + weights
            };
            let all_multiplied = |chunk_rows: usize| {
                let rest = all_rows % chunk_rows;
                let last = if rest > 0 { multiplied(rest) } else { Cost::ZERO };
                multiplied(chunk_rows) * (all_rows / chunk_rows) + last
            };
            // Rows that fill whole tiles, or that are copied in long runs. The ring and the copy fit in half of L2 each.
            let of_ring = if keeps_all { 0 } else { row_products };
            let fits = (machine.l2 / 2 / of_ring.max(row_bytes)).clamp(1, all_rows);
            let chunk_rows = if far {
                LONG_RUN.div_ceil(x.input).min(fits)
            } else {
                let least = |best: (Cost, usize), rows: usize| {
                    let cost = all_multiplied(rows);
                    if cost < best.0 { (cost, rows) } else { best }
                };
                let most = (MOST_TILES * nv * lanes).div_ceil(x.input).min(fits);
                (2..=most).fold((all_multiplied(1), 1), least).1
            };
            let group = all_multiplied(chunk_rows) + summed + cost::ACCUMULATED_GROUP;
            let cost = group.times(&[problem.group, problem.batch]).rounded();
            if best.as_ref().is_none_or(|b| cost < b.cost) {
                best = Some(Col2im { mr, last_mr, nv, chunk_rows, keeps_all, copied, cost, axes: axes.clone() });
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn layout_is_for_all_sizes(&self, _query: &Query) -> bool {
        // L2 holds all products of small inputs only, and no other algorithm reads this layout.
        !self.keeps_all
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let x = self.axes.columns();
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        // Whole vectors and panels are written, so sizes are rounded up.
        let slot = self.chunk_rows.saturating_mul(x.input).saturating_add(64);
        let rows = match self.keeps_all {
            // There are at most as many parts as chunks, and the last part may have a row less than the others.
            true => {
                let matrices = problem.batch.saturating_mul(problem.group);
                self.chunks().saturating_mul(slot.saturating_add(x.input)).saturating_mul(matrices)
            }
            false => slots(&self.axes, self.chunk_rows).saturating_mul(slot),
        };
        let ring = (problem.group_out * taps + self.mr).saturating_mul(rows);
        // The phases of one channel, or of few channels together.
        let accumulated = x.grid.saturating_mul(x.out_step.max(MOST_INTERLEAVED));
        let copied = slot.saturating_add(self.nv * MOST_LANES);
        let block = copied.saturating_mul(problem.group_in);
        let working = ring.saturating_add(accumulated).saturating_add(block).saturating_mul(element);
        working.saturating_add(bytes_of_tasks(problem, &self.axes, 1))
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Columns { mr: self.mr, last_mr: self.last_mr }
    }

    fn explain(&self) -> String {
        let source = if self.copied { "copied in the order of tiles" } else { "read in place" };
        let kept = if self.keeps_all { ", all products kept" } else { "" };
        format!("tiles of {}x{}, input {source}, {} rows at a time{kept}", self.mr, self.nv, self.chunk_rows)
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
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let threads = threads(self.cost);
        // If all products are kept, threads compute them by parts of the rows of an image and group.
        let row_parts = threads.div_ceil((problem.batch * problem.group).max(1)).min(self.chunks());
        let prepared = Prepared::new(self, problem, kernels, filter, operands, row_parts)?;
        let groups = group_parts(problem, threads, problem.batch);
        let wanted = if threads == 1 { 1 } else { threads.div_ceil((problem.batch * groups.len()).max(1)) };
        // Each part of the channels copies the input again, and each block of rows computes the
        // products of its halo again, so use no more of them than the threads need.
        let few_copies = self.copied && y.grid >= WORTH_A_HALO * wanted * halo(&self.axes).max(1);
        // The work of the thread that has most of it, in rows of channels.
        let by_rows = (y.grid.div_ceil(wanted) + halo(&self.axes)).saturating_mul(problem.group_out);
        let by_channels = problem.group_out.div_ceil(wanted).saturating_mul(y.grid);
        let shares_rows = few_copies || by_rows < by_channels;
        let parts = match problem.data_format {
            DataFormat::Ncx if !self.keeps_all && !shares_rows && groups.iter().all(|groups| groups.len() == 1) => {
                wanted.min(problem.group_out)
            }
            _ => 1,
        };
        let blocks = if self.keeps_all { 1 } else { wanted.div_ceil(parts) };
        let partition = Partition {
            groups,
            channels: even_blocks(problem.group_out, parts),
            rows: blocks_of(y.grid, y.grid.div_ceil(blocks)),
            columns: blocks_of(x.grid, x.grid),
        };
        if self.keeps_all {
            return E::Compute::with_scratch(|scratch| {
                let all = scratch.tile.of(problem.batch * problem.group * prepared.all_parts())?;
                prepared.multiply_all(all)?;
                let all = &*all;
                run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| {
                    task.groups.clone().try_for_each(|g| prepared.add_group(task, g, all, scratch))
                })
            });
        }
        run_tasks(problem, &self.axes, &partition, self.cost, output, |task, scratch| {
            task.groups.clone().try_for_each(|g| prepared.run_group(task, g, scratch))
        })
    }
}

impl Col2im {
    /// Elements of the products of `chunk_rows` input rows with one weight.
    fn slot(&self, lanes: usize) -> usize {
        let positions = self.chunk_rows * self.axes.columns().input;
        // If all products are kept, rows follow each other, and a chunk overwrites what the one before wrote beyond
        // its end.
        if self.keeps_all { positions } else { positions.next_multiple_of(lanes) }
    }

    /// The number of chunks of `chunk_rows` input rows.
    fn chunks(&self) -> usize {
        input_rows(&self.axes).div_ceil(self.chunk_rows)
    }

    /// Elements between the products of adjacent weights: of a ring, or of so many rows if all products are kept.
    fn pitch(&self, rows: usize, lanes: usize) -> usize {
        if self.keeps_all {
            rows * self.axes.columns().input + lanes
        } else {
            slots(&self.axes, self.chunk_rows) * self.slot(lanes)
        }
    }
}

/// The slots of a ring of `chunk_rows` rows each. They hold the rows that the taps of one grid row span, for any chunk
/// offset.
fn slots(axes: &Axes, chunk_rows: usize) -> usize {
    (halo(axes) + chunk_rows).div_ceil(chunk_rows) + 1
}

/// The input rows that a block of grid rows reads beyond as many input rows.
fn halo(axes: &Axes) -> usize {
    let shifts = axes.rows().shifts();
    (shifts[shifts.len() - 1] - shifts[0]) as usize
}

/// The input's rows, over all axes but the last.
fn input_rows(axes: &Axes) -> usize {
    axes.iter().rev().skip(1).fold(1, |rows, axis| rows.saturating_mul(axis.input))
}

struct Panel<T: 'static> {
    first: usize,
    weights: usize,
    tiles: Vec<&'static PositionTile<T>>,
}

impl<T> Panel<T> {
    /// Its products, with those that it is padded by.
    fn height(&self) -> usize {
        self.tiles[0].mr()
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a Col2im,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    panels: Vec<Panel<E::Compute>>,
    /// Products, padded to whole panels.
    products: usize,
    /// Input rows of a part, if all products are kept.
    part_rows: usize,
    /// Elements between the products of adjacent weights.
    pitch: usize,
    weights: &'a [E::Compute],
    operands: &'a Operands<'a, E>,
    zeros: Vec<E::Compute>,
    /// Per phase of a row, the products that its taps add, relative to a channel, kernel row and
    /// input row.
    accumulated: Vec<Vec<Col2imRun>>,
    /// Strides of the input: image, channel, row, column.
    strides: [usize; 4],
}

/// One row of results per column phase, before they are interleaved. Empty if sums are stored directly.
struct Rows<T> {
    rows: Vec<Vec<T>>,
    /// The number of channels whose rows are there. They are adjacent within a phase.
    together: usize,
}

/// The products of the most recent input rows, or of all of them.
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
        row_parts: usize,
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
        let x = plan.axes.columns();
        let part_rows = input_rows(&plan.axes).div_ceil(row_parts);
        let pitch = plan.pitch(part_rows, kernels.lanes);
        let accumulated = |tap: &Tap| {
            let to = x.inside(tap.shift);
            // A position inside the input is never before the first column.
            let from = usize::try_from(to.start as i64 + tap.shift).ok().filter(|_| !to.is_empty())?;
            Some(Col2imRun { from: tap.k * pitch + from, to })
        };
        let accumulated = x.phases.iter().map(|phase| phase.taps.iter().filter_map(accumulated).collect()).collect();
        let input = crate::layout::strides_of(&problem.input_shape());
        let (c, x) = (problem.data_format.c_axis(input.len()), problem.data_format.x_axis());
        let x = x + problem.axes.len() - 2;
        Ok(Prepared {
            plan,
            problem,
            kernels,
            products: at / problem.group_in,
            part_rows,
            pitch,
            panels,
            weights: filter.data::<E::Compute>()?,
            operands,
            zeros: vec![E::Compute::ZERO; plan.mr.max(plan.last_mr)],
            accumulated,
            strides: [input[0], input[c], input[x], input[x + 1]],
        })
    }

    /// The panels that have some of these products.
    fn panels_of(&self, products: Range<usize>) -> &[Panel<E::Compute>] {
        let begin = self.panels.partition_point(|panel| panel.first + panel.height() <= products.start);
        let end = self.panels.partition_point(|panel| panel.first < products.end);
        &self.panels[begin..end]
    }

    /// Computes one group of a block of grid rows.
    fn run_group(&self, task: &mut Task<E>, g: usize, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let y = self.plan.axes.rows();
        let chunk_rows = self.plan.chunk_rows;
        let shifts = y.shifts();
        let (lowest, highest) = (shifts[0], shifts[shifts.len() - 1]);
        let data = scratch.tile.of(self.products * self.pitch)?;
        let mut ring = self.ring(data);
        // Chunks of input rows are numbered from the first row that the block reads.
        let first_row = (task.rows.start as i64 + lowest).clamp(0, y.input as i64) as usize;
        let mut made = first_row;
        let taps = self.problem.axes.iter().map(|axis| axis.kernel).product::<usize>();
        let panels = self.panels_of(task.channels.start * taps..task.channels.end * taps);
        let last_row = (task.rows.end as i64 + highest).clamp(first_row as i64, y.input as i64) as usize;
        let width = self.plan.axes.columns().input;
        let mut rows = self.rows(task)?;
        for u in task.rows.clone() {
            let needed = (u as i64 + highest + 1).clamp(first_row as i64, y.input as i64) as usize;
            while made < needed {
                let chunk = made..(made + chunk_rows).min(last_row);
                self.multiply(
                    (task.n, g),
                    panels,
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
                let of_row = |tap: &Tap| {
                    let at = usize::try_from(u as i64 + tap.shift).ok().filter(|at| *at < y.input)? - first_row;
                    let offset = at / chunk_rows % ring.slots * ring.slot + at % chunk_rows * width;
                    Some(tap.k * self.problem.axes[1].kernel * ring.pitch + offset)
                };
                let taps: TVec<usize> = phase.taps.iter().filter_map(of_row).collect();
                self.add_row(task, g, (0, output_row), (ring.data, &taps), &mut rows, &mut scratch.row)?;
            }
        }
        Ok(())
    }

    /// Adds all products of a group that belong to a task's results.
    ///
    /// `all` are those of all images and groups, one after the other.
    fn add_group(
        &self,
        task: &mut Task<E>,
        g: usize,
        all: &[E::Compute],
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let axes = &self.plan.axes;
        let (outer_axes, y, x) = axes.parts();
        let size = self.all_parts();
        let data = &all[(task.n * self.problem.group + g) * size..][..size];
        let (height, width) =
            (self.problem.axes[outer_axes.len()].kernel, self.problem.axes[outer_axes.len() + 1].kernel);
        let mut rows = self.rows(task)?;
        for outer in 0..task.output.outer_phases.len() {
            let outer_taps = axes.outer_taps(&task.outer, task.output.outer_phases[outer]);
            for (u, (ry, phase)) in task.rows.clone().cartesian_product(y.phases.iter().enumerate()) {
                let output_row = u * y.out_step + ry;
                if output_row >= y.output {
                    continue;
                }
                let of_row = |(outer, tap): (&OuterTap, &Tap)| {
                    let at = usize::try_from(u as i64 + tap.shift).ok().filter(|at| *at < y.input)?;
                    let (k, row) = (outer.k * height + tap.k, outer.slice * y.input + at);
                    let (part, row) = (row / self.part_rows, row % self.part_rows);
                    Some(part * self.products * self.pitch + k * width * self.pitch + row * x.input)
                };
                let taps: TVec<usize> = outer_taps.iter().cartesian_product(&phase.taps).filter_map(of_row).collect();
                self.add_row(task, g, (outer, output_row), (data, &taps), &mut rows, &mut scratch.row)?;
            }
        }
        Ok(())
    }

    /// Buffers for a task's rows. Empty if sums are interleaved in registers and stored directly.
    ///
    /// The channels of a pixel are stored together if channels are last and few.
    fn rows(&self, task: &Task<E>) -> TractResult<Rows<E::Compute>> {
        let (x, channels) = (self.plan.axes.columns(), task.channels.len());
        let directly = self.problem.data_format == DataFormat::Ncx && E::as_compute(&[]).is_some();
        if directly && self.kernels.accumulates(x.out_step) {
            return Ok(Rows { rows: vec![], together: 1 });
        }
        let last = self.problem.data_format == DataFormat::Nxc && self.problem.group == 1;
        let interleaved = last && (2..=MOST_INTERLEAVED).contains(&(channels * x.out_step));
        let together = if interleaved { channels } else { 1 };
        let mut rows: Vec<Vec<E::Compute>> = vec![vec![]; x.out_step * together];
        rows.iter_mut().try_for_each(|row| refill("working memory", row, x.grid, E::Compute::ZERO))?;
        Ok(Rows { rows, together })
    }

    /// Adds the products of an output row of all of a task's channels, and stores the sums.
    ///
    /// `taps` are the offsets of the products of a channel's first column in a row, one per tap of the other axes.
    fn add_row(
        &self,
        task: &mut Task<E>,
        g: usize,
        at: (usize, usize),
        (data, taps): (&[E::Compute], &[usize]),
        rows: &mut Rows<E::Compute>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let pitch = self.problem.axes.iter().map(|axis| axis.kernel).product::<usize>() * self.pitch;
        let products = Col2imRows { from: data, pitch, bases: taps, phases: &self.accumulated };
        match rows.rows.is_empty() {
            true => self.store_sums(task, g, at, products),
            false => self.store_through(task, g, at, products, rows, scratch),
        }
    }

    /// The initial sum of a channel of a group.
    fn bias(&self, g: usize, channel: usize) -> E::Compute {
        self.operands.bias.map_or(E::Compute::ZERO, |bias| bias[g * self.problem.group_out + channel].widen())
    }

    /// Sums an output row of all of a task's channels in registers, and stores it directly.
    fn store_sums(
        &self,
        task: &mut Task<E>,
        g: usize,
        (outer, row): (usize, usize),
        products: Col2imRows<E::Compute>,
    ) -> TractResult<()> {
        let columns = task.output.columns.clone();
        let begin = task.output.plane_index(row, columns.start);
        for from in task.channels.clone().step_by(CHANNELS_TOGETHER) {
            let channels = from..task.channels.end.min(from + CHANNELS_TOGETHER);
            let first = task.channel(self.problem, g, from);
            let of_task = first..first + channels.len();
            let biases: SmallVec<[_; CHANNELS_TOGETHER]> = channels.map(|channel| self.bias(g, channel)).collect();
            let indices: SmallVec<[_; CHANNELS_TOGETHER]> = match self.operands.epilogue.is_empty() {
                true => SmallVec::new(),
                false => of_task.clone().map(|channel| task.output.index(channel, outer, row, columns.start)).collect(),
            };
            let mut to = SmallVec::<[&mut [E::Compute]; CHANNELS_TOGETHER]>::new();
            let in_place = task.output.channel_elements(of_task, outer, begin..begin + columns.len(), &mut to);
            ensure!(in_place, "output: sums of another element type can't be stored directly");
            let from_channel = Col2imRows { from: &products.from[from * products.pitch..], ..products };
            self.kernels.accumulate_rows(&from_channel, &biases, &mut to);
            for (channel, (index, to)) in indices.into_iter().zip(to).enumerate() {
                self.operands.epilogue.of(g * self.problem.group_out + from + channel).apply(index, 1, to);
            }
        }
        Ok(())
    }

    /// Sums the phases of an output row of all of a task's channels in buffers, and stores them.
    fn store_through(
        &self,
        task: &mut Task<E>,
        g: usize,
        (outer, output_row): (usize, usize),
        products: Col2imRows<E::Compute>,
        Rows { rows, together }: &mut Rows<E::Compute>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        for channel in task.channels.clone() {
            let of_channel = rows.iter_mut().skip(channel % *together).step_by(*together);
            let from = &products.from[channel * products.pitch..];
            for (row, runs) in of_channel.zip(products.phases) {
                let products = Col2imRows { from, phases: std::slice::from_ref(runs), ..products };
                self.kernels.accumulate_rows(&products, &[self.bias(g, channel)], &mut [row]);
            }
            if *together > 1 {
                continue;
            }
            let columns: TVec<&[E::Compute]> = rows.iter().map(|r| &r[..]).collect();
            let task_channel = task.channel(self.problem, g, channel);
            task.output.write(
                self.kernels,
                task_channel,
                outer,
                output_row,
                0,
                &columns,
                self.operands.epilogue.of(g * self.problem.group_out + channel),
                scratch,
            )?;
        }
        if *together > 1 {
            let (uniform, varying) = self.operands.epilogue.split();
            rows.iter_mut().for_each(|row| uniform.apply(row));
            let rows: TVec<&[E::Compute]> = rows.iter().map(|r| &r[..]).collect();
            task.output.write_whole_pixels(self.kernels, (outer, output_row, 0), &rows, varying, scratch)?;
        }
        Ok(())
    }

    /// Elements of all products of an image and group: `[part of the input rows][product][row of the part][column]`.
    fn all_parts(&self) -> usize {
        input_rows(&self.plan.axes).div_ceil(self.part_rows) * self.products * self.pitch
    }

    /// A ring in a slice of `[product][slot]`.
    fn ring<'r>(&self, data: &'r mut [E::Compute]) -> Ring<'r, E::Compute> {
        let slots = match self.plan.keeps_all {
            true => self.part_rows.div_ceil(self.plan.chunk_rows),
            false => slots(&self.plan.axes, self.plan.chunk_rows),
        };
        Ring { data, pitch: self.pitch, slot: self.plan.slot(self.kernels.lanes), slots }
    }

    /// Computes the products of all images and groups, one after the other. Threads share them by parts of the rows.
    fn multiply_all(&self, all: &mut [E::Compute]) -> TractResult<()> {
        let (rows, chunk_rows) = (input_rows(&self.plan.axes), self.plan.chunk_rows);
        let matrices = all.chunks_mut(self.all_parts()).enumerate();
        let mut parts: Vec<_> = matrices
            .flat_map(|(matrix, all)| {
                let firsts = (0..rows).step_by(self.part_rows);
                firsts.zip(all.chunks_mut(self.products * self.pitch)).map(move |(first, part)| (matrix, first, part))
            })
            .collect();
        parallel(&mut parts, self.plan.cost, &|(matrix, first, part)| {
            E::Compute::with_scratch(|scratch| {
                let mut ring = self.ring(part);
                let end = rows.min(*first + self.part_rows);
                for (chunk, from) in (*first..end).step_by(chunk_rows).enumerate() {
                    let at = (*matrix / self.problem.group, *matrix % self.problem.group);
                    let working = (&mut scratch.block, &mut scratch.ragged);
                    let rows = from..(from + chunk_rows).min(end);
                    self.multiply(at, &self.panels, rows, chunk, &mut ring, working)?;
                }
                Ok(())
            })
        })
    }

    /// Computes the products of a chunk of input rows of one image and group, and of some panels, into a slot of the
    /// ring.
    fn multiply(
        &self,
        (n, g): (usize, usize),
        panels: &[Panel<E::Compute>],
        rows: Range<usize>,
        chunk: usize,
        ring: &mut Ring<E::Compute>,
        (block, pixels): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        let (channels, lanes) = (self.problem.group_in, self.kernels.lanes);
        let count = rows.len() * self.plan.axes.columns().input;
        let (padded, per_tile) = (count.next_multiple_of(lanes), self.plan.nv * lanes);
        let first = n * self.strides[0] + g * channels * self.strides[1] + rows.start * self.strides[2];
        let input = self.operands.input.whole()?;
        // The last tile may reach past the input's end.
        let reach = first + (channels - 1) * self.strides[1] + padded;
        let in_place = E::as_compute(input).filter(|_| !self.plan.copied && reach <= input.len());
        let data = match in_place {
            Some(data) => data,
            None => {
                let data = block.of(channels * count.next_multiple_of(per_tile))?;
                self.copy(&input[first..], count, data, pixels)?;
                data
            }
        };
        let weights = &self.weights[g * self.products * channels..];
        let slot = chunk % ring.slots * ring.slot;
        let longest = longest_chain(channels, 1);
        // All panels read a tile's part of a chain's channels while L1 holds it.
        for at in (0..padded).step_by(per_tile) {
            let nv = ((padded - at) / lanes).min(self.plan.nv);
            let (base, channel_stride) = match in_place {
                Some(_) => (first + at, self.strides[1]),
                None => (at * channels, per_tile),
            };
            for from in (0..channels).step_by(longest) {
                let source = Source {
                    data,
                    base: base + from * channel_stride,
                    channel_stride,
                    channels: longest.min(channels - from),
                    taps: &[0],
                    prefetch: false,
                };
                for panel in panels {
                    let tile = panel.tiles[nv - 1];
                    let out = &mut ring.data[panel.first * ring.pitch + slot + at..];
                    let start = if from == 0 { Start::Bias(&self.zeros) } else { Start::Add };
                    tile.run(&weights[panel.weights + from * tile.mr()..], &source, start, out, ring.pitch);
                }
            }
        }
        Ok(())
    }

    /// Copies the first `count` positions of a group, in the order in which register tiles read
    /// them: `[tile][channel][position]`.
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
        let (channels, kernels) = (self.problem.group_in, self.kernels);
        let per_tile = self.plan.nv * kernels.lanes;
        let tile = per_tile * channels;
        if self.problem.data_format == DataFormat::Ncx {
            for ci in 0..channels {
                let from = &from[ci * self.strides[1]..][..count];
                let to = &mut to[ci * per_tile..];
                match E::as_compute(from) {
                    Some(from) => to_tiles(kernels, from, per_tile, to, tile),
                    None => {
                        for (from, to) in from.chunks(per_tile).zip(to.chunks_mut(tile)) {
                            let (to, rest) = to[..per_tile].split_at_mut(from.len());
                            E::widen_slice(from, to);
                            rest.fill(E::Compute::ZERO);
                        }
                    }
                }
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
        for (first, to) in (0..count).step_by(per_tile).zip(to.chunks_mut(tile)) {
            let positions = per_tile.min(count - first);
            transposed(kernels, &from[first * step..], step, (channels, positions), to, per_tile);
        }
        Ok(())
    }
}
