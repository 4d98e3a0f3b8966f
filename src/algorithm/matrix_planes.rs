//! Layers of one phase and channels-first data, in matrix products: output channels × planes by planes × positions. The
//! planes are those that the taps read of each input channel.
//!
//! Planes are interleaved two and two, and split into the [limbs](crate::kernel::PlaneKernels) that tile registers
//! multiply, or vectors if there is one limb of bf16. Sums are rows of positions, as the output has them. So neither the input nor the results are transposed,
//! as [`matrix_pixels`](crate::algorithm::matrix_pixels) does with channels-first data. That reads each pixel for all taps, which is faster
//! for several taps of many channels. Here the taps of few channels fill the rows of a step together.
//!
//! Blocks of numbers that limbs are not exact for are summed by vector kernels, as are those of a filter with such
//! numbers: see `matrix_pixels`.

use crate::algorithm::blocked::{Blocked, GroupedInput, last_width};
use crate::algorithm::chains::{MATRIX_STEPS, longest_chain};
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Working;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::kernel::{
    Bounds, Dispatch, Kernels, LIMBS, LIMBS_OF_PAIR, LimbSource, Limbs, MatrixKernels, MatrixStep, PAIRS_OF_STEP,
    POSITIONS_AT_ONCE, PlaneKernels, ROW_BYTES, SIDE, Source, Start, depth, has_matrix_products, is_regular,
    transpose_sides, weights_of_side,
};
use crate::layout::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::layout::input::Channels;
use crate::layout::input_tile::{CopyPlan, GridBlocks};
use crate::layout::panels::Panel;
use crate::layout::taps::TapTable;
use crate::memory::{Aligned, Scratch};
use crate::output::epilogue::Epilogue;
use crate::output::task::Task;
use crate::precision::Precision;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// Output channels per panel: two sides of a matrix product.
const WIDTH: usize = 2 * SIDE;

/// The most positions whose input is split together.
const MOST_POSITIONS: usize = 12 * POSITIONS_AT_ONCE;

/// The divisor of L2 for the limbs of such positions.
const SHARE_OF_LIMBS: usize = 4;

/// Output channels that vector kernels sum together, of [`POSITIONS_AT_ONCE`] positions.
const SUMMED_CHANNELS: usize = 8;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixPlanes {
    /// Blocks and panels. Panels have 32 output channels, except the last one.
    pub blocked: Blocked,
    /// What operands are rounded to.
    pub precision: Precision,
    /// Whether limbs are made of the input itself. Otherwise they are made of copies of its planes, in which a
    /// tap's positions follow each other.
    pub in_place: bool,
    /// Positions whose input is split together, for all output channels.
    pub positions: usize,
}

impl Algorithm for MatrixPlanes {
    type Tables = TapTable;

    const READS_PARTS: bool = true;

    fn is_available_in(precision: Precision) -> bool {
        has_matrix_products(precision)
    }

    fn propose(query: &Query) -> Result<MatrixPlanes, String> {
        let &Query { problem, datum_type, machine, precision, grouped, .. } = query;
        let unit = query.matrix_unit()?;
        if grouped.is_some() || !matches!(datum_type, DatumType::F32 | DatumType::F16) {
            return Err(format!("planes of {datum_type:?} are not split into limbs"));
        }
        if problem.data_format == DataFormat::Nxc {
            return Err("the data is channels-last".to_string());
        }
        let axes = query.axes()?;
        if axes.phases() != 1 || axes.taps() == 0 {
            return Err(format!("taps={}, phases={}, taps of one phase are needed", axes.taps(), axes.phases()));
        }
        let last = last_width(problem.group_out, WIDTH, SIDE);
        query.forced(|layout| match *layout {
            FilterLayout::Limbs { width: WIDTH, last_width, precision: packed, of_planes: true } => {
                ((last_width, packed) == (last, precision)).then_some(())
            }
            _ => None,
        })?;
        let in_place = query.has_same_element() && axes.are_unshifted();
        let planes = planes(problem);
        let steps = planes.div_ceil(depth::<f32>());
        let source = Limbs::of_type(precision, DatumType::F32);
        // Those of f32, of which some may turn out to be zero.
        let limbs = Limbs { precision, source, weights: source };
        let bytes_per_position = (steps * source * ROW_BYTES).max(1);
        let most = machine.l2 / SHARE_OF_LIMBS / bytes_per_position / POSITIONS_AT_ONCE * POSITIONS_AT_ONCE;
        let positions = most.clamp(POSITIONS_AT_ONCE, MOST_POSITIONS);
        // The copies of a block take at most half of L2.
        let block = match in_place {
            true => (axes.rows().grid, axes.columns().grid),
            false => GridBlocks::within(axes, true, machine.l2 / 2 / size_of::<f32>() / problem.group_in.max(1)),
        };
        let blocks = GridBlocks::even(axes, block, true, in_place);
        // Tiles with fewer rows, which are output channels, take less time.
        let panels = unit.share_of_planes(problem.group_out);
        let passes = steps.div_ceil(MATRIX_STEPS);
        let multiplied = unit.sums(blocks.positions, limbs.products(), (steps, passes), machine) * panels;
        let vectors = blocks.positions.div_ceil(SIDE);
        let copying = cost::copied(problem.data_format, problem.group_in) + cost::strided(axes.columns().in_step, SIDE);
        let filled = match in_place {
            true => Cost::ZERO,
            false => cost::filled(&blocks.input_tiles, problem.group_in, SIDE, copying),
        };
        let split = cost::split(source).times(&[vectors, planes]);
        let sides = problem.group_out.div_ceil(SIDE);
        let filter = steps.saturating_mul(sides).saturating_mul(source * SIDE * ROW_BYTES);
        let again = if filter > machine.l2 { cost::STREAMED_AGAIN } else { Cost::ZERO };
        let parts = blocks.positions.div_ceil(positions);
        let streamed = cost::streamed_limbs(source).times(&[steps, sides]) + again.times(&[parts - 1, steps, sides]);
        let block = multiplied + filled + split + streamed + cost::BLOCK;
        let beyond = if in_place { cost::BEYOND_IN_PLACE } else { cost::BEYOND_BY_PLANES };
        let waits = cost::beyond_caches(problem, datum_type, beyond, SIDE, machine);
        Ok(MatrixPlanes {
            blocked: Blocked {
                width: WIDTH,
                last_width: last,
                rows: blocks.rows,
                columns: blocks.columns,
                copy_per_shift: true,
                overhang: (0, 0),
                cost: (block.times(&[blocks.count, problem.group, problem.batch]) + waits).rounded(),
                axes: axes.clone(),
            },
            precision,
            in_place,
            positions,
        })
    }

    fn cost(&self) -> Option<u64> {
        Some(self.blocked.cost)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let planes = planes(problem);
        let steps = planes.div_ceil(depth::<f32>());
        let limbs = (self.positions * LIMBS * ROW_BYTES).saturating_mul(steps);
        let copies =
            if self.in_place { 0 } else { self.blocked.input_tiles().working_bytes(problem.group_in, element) };
        // For vector kernels: the positions that are summed together, and the weights of a panel with their limbs.
        let whole = planes.saturating_mul((self.positions + 2 * WIDTH) * element);
        let whole = whole.saturating_add(steps.saturating_mul(LIMBS * WIDTH * ROW_BYTES));
        let shared = self.blocked.working_bytes(problem, self.positions, element);
        [limbs, copies, whole, shared].into_iter().fold(0, usize::saturating_add)
    }

    fn filter_layout(&self) -> FilterLayout {
        let last_width = self.blocked.last_width;
        FilterLayout::Limbs { width: WIDTH, last_width, precision: self.precision, of_planes: true }
    }

    fn explain(&self) -> String {
        let numbers = Limbs::explained(self.precision);
        let source = if self.in_place { "in place" } else { "in copies of its planes" };
        format!("{numbers}, input read {source}, {} positions at a time", self.positions)
    }

    fn tables(&self, _problem: &Problem, _lanes: usize) -> TractResult<TapTable> {
        TapTable::new(&self.blocked.axes, self.blocked.input_tiles(), false, 1, 1)
    }

    fn run<E: Element>(
        &self,
        taps: &TapTable,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let prepared = Prepared::new(self, problem, isa, filter, operands, taps)?;
        let partition = self.blocked.partition(problem, 4 * POSITIONS_AT_ONCE, [1, POSITIONS_AT_ONCE]);
        let tiles = (!self.in_place).then_some(&taps.input_tiles);
        self.blocked.run(problem, &partition, (&prepared.input, tiles), output, |task, g, copy_plan, scratch| {
            prepared.run_group(task, g, copy_plan, scratch)
        })
    }
}

/// The planes of a group whose products are summed: those of each tap and input channel.
fn planes(problem: &Problem) -> usize {
    problem.axes.iter().map(|axis| axis.kernel).fold(problem.group_in, usize::saturating_mul)
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a MatrixPlanes,
    problem: &'a Problem,
    /// Elements per output channel.
    plane: usize,
    kernels: &'static Kernels<E::Compute>,
    planes: &'static PlaneKernels<E::Compute>,
    matrix: &'static MatrixKernels<E::Compute>,
    /// The taps. Offsets count positions.
    taps: &'a TapTable,
    /// Planes whose products are summed.
    all: usize,
    /// Steps of matrix products: blocks of planes.
    steps: usize,
    panels: Vec<Panel>,
    /// Output channels of a group, padded to panels.
    padded: usize,
    filter: &'a PackedFilter,
    /// The limbs of both operands. None if they don't hold the weights.
    limbs: Option<Limbs>,
    /// The bias of each group, padded to panel widths.
    bias: Vec<E::Compute>,
    input: GroupedInput<'a, E>,
    epilogue: Epilogue<'a, E>,
}

/// The planes of a group that a task reads, tap by tap: of the input itself, or copies.
enum Planes<'a, E: Element> {
    /// The channels, and the index of the task's first position. There is one tap.
    Input(Channels<'a, E>, usize),
    /// Copies of the channels, the elements from one to the next, their number, and the taps' offsets.
    Copies(&'a [E::Compute], usize, usize, &'a [usize]),
}

impl<'a, E: Element> Planes<'a, E> {
    /// Some positions of a plane.
    ///
    /// # Errors
    /// The input's elements are of another type than sums.
    fn of(&self, index: usize, positions: &Range<usize>) -> TractResult<&'a [E::Compute]> {
        match self {
            Planes::Input(channels, first) => {
                let plane = E::as_compute(channels.from(index).0).context("element: computed in another type")?;
                Ok(&plane[first + positions.start..first + positions.end])
            }
            Planes::Copies(copies, stride, channels, taps) => {
                Ok(&copies[index % channels * stride + taps[index / channels]..][positions.clone()])
            }
        }
    }
}

/// Working memory of sums with vector kernels: positions of all planes, weights, and their limbs.
struct Whole<'a, T: Working> {
    block: &'a mut Aligned<T>,
    weights: &'a mut Aligned<T>,
    limbs: &'a mut Aligned<T::Limb>,
}

impl<'a, E: Element> Prepared<'a, E> {
    /// Input channels of a step.
    const DEPTH: usize = depth::<E::Compute>();

    fn new(
        plan: &'a MatrixPlanes,
        problem: &'a Problem,
        isa: Isa,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
        taps: &'a TapTable,
    ) -> TractResult<Self> {
        let panels: Vec<Panel> = panel_heights(problem.group_out, WIDTH, plan.blocked.last_width)
            .enumerate()
            .map(|(index, (first_channel, width))| Panel { index, first_channel, width })
            .collect();
        let padded = panels.iter().map(|panel| panel.width).sum();
        let source = Limbs::of_type(plan.precision, E::datum_type());
        let all = self::planes(problem);
        Ok(Prepared {
            plan,
            problem,
            plane: problem.axes.iter().map(|axis| axis.output).product(),
            kernels: <E::Compute as Dispatch>::kernels(isa),
            planes: E::Compute::plane_kernels(isa).context("kernel: there are no matrix products")?,
            matrix: E::Compute::matrix_kernels(isa).context("kernel: there are no matrix products")?,
            taps,
            all,
            steps: all.div_ceil(Self::DEPTH),
            panels,
            padded,
            filter,
            limbs: filter.limbs_needed().map(|weights| Limbs { precision: plan.precision, source, weights }),
            bias: crate::layout::padded_bias(problem, operands.bias, padded),
            input: GroupedInput::new(problem, &plan.blocked.axes, operands.input),
            epilogue: operands.epilogue,
        })
    }

    /// Computes all output channels of a group. Without a copy plan, the input is read in place.
    fn run_group(
        &self,
        task: &mut Task<E>,
        g: usize,
        copy_plan: Option<&CopyPlan>,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let Scratch { tile, ragged, limbs: of_input, weights: limbs, block, row, transformed: [weights, ..], .. } =
            scratch;
        let (count, channels) = (self.problem.group_in, self.input.of(task, g));
        let planes = match copy_plan {
            None => Planes::Input(channels, task.offset(&self.input.spatial)),
            Some(copy_plan) => {
                let input_tiles = &self.taps.input_tiles;
                let stride = input_tiles.channel_stride;
                let copies = row.of(count * stride)?;
                for (channel, to) in copies.chunks_mut(stride).enumerate() {
                    input_tiles.fill(self.kernels, copy_plan, channels.from(channel).0, to, ragged)?;
                }
                let phase = self.taps.phases.first().context("matrix_planes: a layer without taps")?;
                Planes::Copies(copies, stride, count, &phase.taps)
            }
        };
        let mut whole = Whole { block, weights, limbs };
        // A tap's positions follow each other in its planes, and the results in the output.
        let (rows, columns) = (task.rows.len(), task.columns.len());
        ensure!(
            rows == 1 || columns == self.plan.blocked.columns,
            "matrix_planes: rows={rows} of {columns} columns, a part of a row or whole rows are needed"
        );
        let positions = rows * columns;
        let (bounds, epilogue) = self.epilogue.split_bounds();
        for position in (0..positions).step_by(self.plan.positions) {
            let elements = position..positions.min(position + self.plan.positions);
            let split = match self.limbs {
                Some(limbs) => self.split(&planes, &elements, limbs, of_input)?.map(|data| (data, limbs)),
                None => None,
            };
            for panel in self.panels.iter().filter(|panel| task.channels.contains(&panel.first_channel)) {
                let channels = panel.width.min(task.channels.end - panel.first_channel);
                let first = task.channel(self.problem, g, panel.first_channel);
                let task_channels = first..first + channels;
                for o in 0..task.output.outer_phases.len() {
                    let at = task.output.index(first, o, task.rows.start, task.columns.start) + position;
                    let mut finish = |rows: &mut [&mut [E::Compute]]| -> TractResult<()> {
                        match split {
                            Some(source) => self.multiply((g, *panel), source, bounds, rows)?,
                            None => self.sum((g, *panel), (&planes, &elements), bounds, rows, &mut whole)?,
                        }
                        if !epilogue.is_empty() {
                            for (m, row) in rows.iter_mut().enumerate() {
                                let channel = g * self.problem.group_out + panel.first_channel + m;
                                epilogue.of(channel).apply(at + m * self.plane, 1, row);
                            }
                        }
                        Ok(())
                    };
                    let mut rows = SmallVec::<[&mut [E::Compute]; WIDTH]>::new();
                    if task.output.channel_elements(task_channels.clone(), o, elements.clone(), &mut rows) {
                        finish(&mut rows)?;
                        continue;
                    }
                    drop(rows);
                    let mut rows = SmallVec::<[&mut [E::Compute]; WIDTH]>::new();
                    rows.extend(tile.of(channels * elements.len())?.chunks_mut(elements.len()));
                    finish(&mut rows)?;
                    for (channel, row) in task_channels.clone().zip(&rows) {
                        task.output.put_from(channel, o, position, row);
                    }
                }
            }
        }
        Ok(())
    }

    /// Splits some positions of all planes into limbs, `[limb][pair of planes][position][plane of the pair]`. None if
    /// the numbers are not regular.
    fn split<'s>(
        &self,
        planes: &Planes<E>,
        positions: &Range<usize>,
        limbs: Limbs,
        of_input: &'s mut Aligned<<E::Compute as Working>::Limb>,
    ) -> TractResult<Option<&'s [<E::Compute as Working>::Limb]>> {
        let (all, row) = (self.all, self.row());
        let limb_stride = self.limb_stride();
        let data = of_input.of(limbs.source * limb_stride)?;
        let mut most = 0;
        let plane = |index: usize| if index < all { planes.of(index, positions) } else { Ok(&[][..]) };
        let mut next = [plane(0)?, plane(1)?];
        for (pair, to) in (0..all.div_ceil(2)).zip((0..).step_by(row)) {
            let from = std::mem::replace(&mut next, [plane(2 * pair + 2)?, plane(2 * pair + 3)?]);
            most = most.max(self.planes.split(from, next, &mut data[to..], limb_stride, limbs));
        }
        // The products of zero and what was in missing pairs may be NaN.
        for limb in data.chunks_mut(limb_stride) {
            limb[all.div_ceil(2) * row..].fill(Default::default());
        }
        // Whatever is rounded to bf16 is a limb.
        let are_exact = limbs.precision == Precision::Bf16 || is_regular(most);
        Ok(are_exact.then_some(data))
    }

    /// Elements from one limb of a pair of planes to the next pair.
    fn row(&self) -> usize {
        self.plan.positions * LIMBS_OF_PAIR
    }

    /// Elements from one limb of all pairs to the next limb.
    fn limb_stride(&self) -> usize {
        self.steps * PAIRS_OF_STEP * self.row()
    }

    /// The bias of a panel.
    fn bias_of(&self, (g, panel): (usize, Panel)) -> &[E::Compute] {
        &self.bias[g * self.padded + panel.first_channel..][..panel.width]
    }

    /// Computes the sums of a panel in matrix products, and clamps them.
    fn multiply(
        &self,
        (g, panel): (usize, Panel),
        (data, limbs): (&[<E::Compute as Working>::Limb], Limbs),
        bounds: Option<Bounds<E::Compute>>,
        rows: &mut [&mut [E::Compute]],
    ) -> TractResult<()> {
        let weights = self.filter.limbs::<E::Compute>().context("filter: it is not split into limbs")?;
        let before = (g * self.padded + panel.first_channel) * self.steps * limbs.weights * Self::DEPTH;
        let limbs_per_step = limbs.weights * panel.width / SIDE * weights_of_side::<E::Compute>();
        let (row, limb_stride) = (self.row(), self.limb_stride());
        let step_of = |step: usize| MatrixStep { offset: step * PAIRS_OF_STEP * row, weights: step * limbs_per_step };
        let mut start = Start::Bias(self.bias_of((g, panel)));
        // The sums of a pass stay in registers.
        for first in (0..self.steps).step_by(MATRIX_STEPS) {
            let end = self.steps.min(first + MATRIX_STEPS);
            let steps: [MatrixStep; MATRIX_STEPS] = std::array::from_fn(|i| step_of(first + i));
            let source = LimbSource { data, base: 0, step: row, limb_stride, limbs, steps: &steps[..end - first] };
            let bounds = bounds.filter(|_| end == self.steps);
            self.planes.multiply(&weights[before..], &source, (start, bounds), rows);
            start = Start::Add;
        }
        Ok(())
    }

    /// As [`Prepared::multiply`], of some positions of planes with vector kernels.
    fn sum(
        &self,
        (g, panel): (usize, Panel),
        (planes, positions): (&Planes<E>, &Range<usize>),
        bounds: Option<Bounds<E::Compute>>,
        rows: &mut [&mut [E::Compute]],
        Whole { block, weights, limbs }: &mut Whole<E::Compute>,
    ) -> TractResult<()> {
        let (all, plane) = (self.all, self.plan.positions);
        let data = block.of(all * plane)?;
        for (index, to) in data.chunks_mut(plane).enumerate() {
            to[..positions.len()].copy_from_slice(planes.of(index, positions)?);
        }
        self.matrix.round(self.plan.precision, data);
        let working = weights.of(2 * all * WIDTH + SUMMED_CHANNELS * POSITIONS_AT_ONCE)?;
        let (of_panel, working) = working.split_at_mut(all * WIDTH);
        let (of_tile, sums) = working.split_at_mut(all * WIDTH);
        let of_panel = &mut of_panel[..all * panel.width];
        self.weights_of((g, panel), of_panel, limbs)?;
        let vectors = POSITIONS_AT_ONCE / self.kernels.lanes;
        let tile = self.kernels.position_tile(SUMMED_CHANNELS, vectors).context("kernel: a tile is missing")?;
        let chain = longest_chain(all, 1);
        for (first, rows) in (0..panel.width).step_by(SUMMED_CHANNELS).zip(rows.chunks_mut(SUMMED_CHANNELS)) {
            for (from, to) in of_panel.chunks(panel.width).zip(of_tile.chunks_mut(SUMMED_CHANNELS)) {
                to.copy_from_slice(&from[first..first + SUMMED_CHANNELS]);
            }
            for at in (0..positions.len()).step_by(POSITIONS_AT_ONCE) {
                let mut start = Start::Bias(&self.bias_of((g, panel))[first..]);
                for from in (0..all).step_by(chain) {
                    let channels = chain.min(all - from);
                    let base = from * plane + at;
                    let source = Source { data, base, channel_stride: plane, channels, taps: &[0], prefetch: false };
                    tile.run(&of_tile[from * SUMMED_CHANNELS..], &source, start, sums, POSITIONS_AT_ONCE);
                    start = Start::Add;
                }
                for (row, sums) in rows.iter_mut().zip(sums.chunks(POSITIONS_AT_ONCE)) {
                    let to = &mut row[at..];
                    let count = to.len().min(POSITIONS_AT_ONCE);
                    to[..count].copy_from_slice(&sums[..count]);
                }
            }
            if let Some(bounds) = bounds {
                rows.iter_mut().for_each(|row| self.kernels.clamp_pixels(bounds, (1, row.len()), row.len(), row));
            }
        }
        Ok(())
    }

    /// The weights of a panel, `[tap][input channel][output channel]`.
    fn weights_of(
        &self,
        (g, panel): (usize, Panel),
        to: &mut [E::Compute],
        sides: &mut Aligned<<E::Compute as Working>::Limb>,
    ) -> TractResult<()> {
        let before = g * self.padded + panel.first_channel;
        match (self.limbs, self.filter.limbs::<E::Compute>()) {
            (Some(limbs), Some(data)) => {
                let limbs_per_channel = self.steps * limbs.weights * Self::DEPTH;
                let sides = sides.of(limbs_per_channel * panel.width)?;
                sides.copy_from_slice(&data[before * limbs_per_channel..][..sides.len()]);
                transpose_sides(sides);
                self.matrix.join(sides, panel.width / SIDE, limbs.weights, to);
            }
            _ => {
                let weights = &self.filter.data::<E::Compute>()?[before * self.all..];
                to.copy_from_slice(&weights[..to.len()]);
            }
        }
        Ok(())
    }
}
