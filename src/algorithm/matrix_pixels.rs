//! Each phase as a small dense convolution over the shared grid, in matrix products: positions ×
//! input channels by input channels × output channels.
//!
//! The input of a block is copied into pixels of input channels and split into the
//! [limbs](crate::kernel::MatrixKernels) that tile registers multiply, or vectors if there is one limb of
//! bf16. Every tap then is a constant offset. Accumulator blocks are stored as in
//! [`direct_channels`](crate::algorithm::direct_channels).
//!
//! Limbs are not exact for some numbers: infinities, NaN, and those at the ends of f32's range.
//! Blocks of such numbers are summed by the vector kernels of `direct_channels`. So is every block
//! if the filter has such numbers. Numbers rounded to bf16 are single limbs, and need no such care.
//! Nor do elements of four bytes, whose products and sums are exact.

use crate::algorithm::blocked::{Blocked, GroupedInput, last_width, sums_in_output};
use crate::algorithm::chains::{MATRIX_STEPS, longest_chain};
use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::{Grouped, Quad, Working};
use crate::element::Element;
use crate::estimate::cost::{self, Cost, MatrixUnit};
use crate::estimate::machine::Machine;
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{
    ChannelTile, Dispatch, Kernels, LIMBS, LimbSource, Limbs, MatrixKernels, MatrixStep, POSITIONS_AT_ONCE, ROW_BYTES,
    SIDE, Source, Start, TilePositions, depth, has_matrix_products, is_regular, split_positions, weights_of_side,
};
use crate::layout::filter::{FilterLayout, PackedFilter, panel_heights};
use crate::layout::input_tile::{CopyPlan, CopySegment, GridBlocks};
use crate::layout::panels::Panel;
use crate::layout::taps::TapTable;
use crate::memory::{Aligned, Scratch};
use crate::output::blocks::{AccumulatorShape, AccumulatorTable, Accumulators, PhaseSums, Run};
use crate::output::task::Task;
use crate::precision::Precision;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// Output channels per panel: two sides of a matrix product.
const WIDTH: usize = 2 * SIDE;

/// The number of positions of a block up to which filters are kept in limbs. With few positions, it
/// takes long to split the weights again for each accumulator block.
const FEW_POSITIONS: usize = 256;

/// The divisor of L2 for the sums of an accumulator block.
const SHARE_OF_SUMS: usize = 16;

/// Positions that are transposed together before they are split into limbs. They stay in L1.
const TRANSPOSED_POSITIONS: usize = 64;

/// Bytes of channels-last pixels that are split together, in one pass per block of channels. They
/// stay in L1.
const BYTES_IN_PLACE: usize = 1 << 15;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixPixels {
    /// Blocks and panels. Panels have 32 output channels, except the last one.
    pub blocked: Blocked,
    /// What operands are rounded to.
    pub precision: Precision,
    /// Input channels of a step: elements of four bytes, or floats, of which there are twice as many.
    pub depth: usize,
    /// Whether the filter is kept in limbs. Otherwise the weights of a pass are split for each
    /// accumulator block. Exact limbs take one and a half times as many bytes as the filter, others
    /// no more than it does.
    pub in_limbs: bool,
    /// Input channels. A filter that is not kept in limbs has all of them in one chunk.
    pub chunk: usize,
    /// Whether runs of positions end at the end of each grid row. Otherwise they run over the
    /// padding between rows.
    pub by_row: bool,
    /// Positions per accumulator block.
    pub acc_block: usize,
    /// Whether channels-last results are summed in the output, where tasks have whole pixels.
    pub in_output: bool,
}

impl Algorithm for MatrixPixels {
    type Tables = AccumulatorTable;

    const READS_PARTS: bool = true;

    fn is_available_in(precision: Precision) -> bool {
        has_matrix_products(precision)
    }

    fn propose(query: &Query) -> Result<MatrixPixels, String> {
        let &Query { problem, datum_type, machine, precision, grouped, .. } = query;
        let unit = query.matrix_unit()?;
        let depth = match grouped {
            Some(Grouped::Quads) => depth::<Quad>(),
            Some(Grouped::Pairs) => return Err("tile registers multiply no integers of 16 bits".to_string()),
            None if matches!(datum_type, DatumType::F32 | DatumType::F16) => depth::<f32>(),
            None => {
                return Err(format!("tile registers sum in f32, which is not the accumulation type of {datum_type:?}"));
            }
        };
        let axes = query.axes()?;
        let last = last_width(problem.group_out, WIDTH, SIDE);
        let in_limbs = query.forced(|layout| match *layout {
            FilterLayout::Limbs { width: WIDTH, last_width, precision: packed, of_planes: false } => {
                ((last_width, packed) == (last, precision)).then_some(true)
            }
            FilterLayout::Chunks { width: WIDTH, last_width, chunk } => {
                ((last_width, chunk, precision) == (last, problem.group_in, Precision::Exact)).then_some(false)
            }
            _ => None,
        })?;
        let pixels = problem.data_format == DataFormat::Nxc && query.has_same_element();
        let plans = [false, true].map(|copy_per_shift| {
            MatrixPixels::with_input_tiles(
                problem,
                axes.clone(),
                (unit, machine),
                (precision, depth, in_limbs, pixels),
                copy_per_shift,
            )
        });
        let [together, copy_per_shift] = plans;
        Ok(if copy_per_shift.blocked.cost < together.blocked.cost { copy_per_shift } else { together })
    }

    fn cost(&self) -> Option<u64> {
        Some(self.blocked.cost)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let input_tiles = self.blocked.input_tiles();
        // The buffers of the vector kernels: whole pixels, the planes that they are transposed
        // from, and the weights of a phase.
        let pixels = input_tiles.working_bytes(problem.group_in.saturating_add(2 * self.depth), element);
        let joined = self.weights_of_phase(problem).saturating_mul(WIDTH * element);
        let weights = joined.saturating_add(MATRIX_STEPS * LIMBS * WIDTH * ROW_BYTES);
        let bytes_per_block =
            input_tiles.channel_stride.saturating_add(POSITIONS_AT_ONCE).saturating_mul(LIMBS * ROW_BYTES);
        let limbs = bytes_per_block.saturating_mul(problem.group_in.div_ceil(self.depth));
        let staging = 2 * TRANSPOSED_POSITIONS * self.depth * element;
        let shared = self.blocked.working_bytes(problem, self.acc_block, element);
        [pixels, weights, limbs, staging, shared].into_iter().fold(0, usize::saturating_add)
    }

    fn filter_layout(&self) -> FilterLayout {
        match self.in_limbs {
            true => {
                let last_width = self.blocked.last_width;
                FilterLayout::Limbs { width: WIDTH, last_width, precision: self.precision, of_planes: false }
            }
            false => FilterLayout::Chunks { width: WIDTH, last_width: self.blocked.last_width, chunk: self.chunk },
        }
    }

    fn explain(&self) -> String {
        let runs = if self.by_row { "within rows" } else { "across rows" };
        let bytes = self.depth == depth::<Quad>();
        let numbers = if bytes { "four bytes at a time" } else { Limbs::explained(self.precision) };
        let sums = if self.in_output { ", summed in the output" } else { "" };
        format!("{numbers}, runs {runs}, blocks of {}x{} positions{sums}", self.blocked.rows, self.blocked.columns)
    }

    fn tables(&self, problem: &Problem, lanes: usize) -> TractResult<AccumulatorTable> {
        let (axes, input_tiles) = (&self.blocked.axes, self.blocked.input_tiles());
        AccumulatorTable::new(problem, axes, &self.shape(), lanes, TapTable::new(axes, input_tiles, false, 1, 1)?)
    }

    fn run<E: Element>(
        &self,
        tables: &AccumulatorTable,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let prepared = Prepared::new(self, problem, isa, filter, operands, tables)?;
        let partition =
            self.blocked.partition(problem, self.least_of_task() * POSITIONS_AT_ONCE, [1, POSITIONS_AT_ONCE]);
        let tiles = Some(&prepared.taps.input_tiles);
        self.blocked.run(problem, &partition, (&prepared.input, tiles), output, |task, g, copy_plan, scratch| {
            prepared.run_group(task, g, copy_plan.context("matrix_pixels: a task without a copy plan")?, scratch)
        })
    }
}

impl MatrixPixels {
    /// The least positions of a task, in register tiles. Each task splits weights that are not kept in limbs.
    fn least_of_task(&self) -> usize {
        if self.in_limbs { 4 } else { 8 }
    }

    /// The split of blocks into accumulator blocks.
    fn shape(&self) -> AccumulatorShape {
        AccumulatorShape {
            width: WIDTH,
            positions: POSITIONS_AT_ONCE,
            most: self.acc_block,
            by_row: self.by_row,
            window: None,
            passes: None,
            panels_first: true,
            in_output: self.in_output,
        }
    }

    /// Decides on everything except the layout of the input tiles. `pixels` tells whether results are stored as
    /// pixels of the type of the sums.
    fn with_input_tiles(
        problem: &Problem,
        axes: Axes,
        (unit, machine): (MatrixUnit, &Machine),
        (precision, depth, in_limbs, pixels): (Precision, usize, Option<bool>, bool),
        copy_per_shift: bool,
    ) -> MatrixPixels {
        let (outer, y, x) = axes.parts();
        let blocks_of_channels = problem.group_in.div_ceil(depth);
        let bytes = depth == self::depth::<Quad>();
        // Those of f32, of which some may turn out to be zero.
        let source = Limbs::of_type(precision, if bytes { DatumType::I32 } else { DatumType::F32 });
        let limbs = Limbs { precision, source, weights: source };
        // The limbs of a block's input take at most half of L2.
        let budget = machine.l2 / 2 / (source * ROW_BYTES) / blocks_of_channels.max(1);
        let blocks = GridBlocks::even(&axes, GridBlocks::within(&axes, copy_per_shift, budget), copy_per_shift, false);
        let flat = blocks.positions;

        let taps = axes.taps();
        let phases = axes.phases();
        let steps = taps.saturating_mul(blocks_of_channels);
        let passes = phases + steps / MATRIX_STEPS;
        let run_cost = |len: usize| unit.sums(len, limbs.products(), (steps, passes), machine);
        let outer_share: f64 = outer.iter().map(AxisPhases::share_inside).product();
        let rows = run_cost(blocks.columns) * blocks.rows * y.share_inside();
        let whole = run_cost(flat);
        let sides = problem.group_out.div_ceil(SIDE);
        let multiplied = whole.min(rows) * outer_share * unit.share_of_pixels(problem.group_out);
        let in_output =
            pixels && sums_in_output(problem, WIDTH, (axes.most_taps() * blocks_of_channels).div_ceil(MATRIX_STEPS));
        let unbuffered =
            in_output && problem.group_out.is_multiple_of(WIDTH) && (axes.most_taps() == 1 || rows < whole);
        let stored = match unbuffered {
            true => Cost::ZERO,
            false => cost::store_of_channels(problem, DatumType::F32, machine).times(&[flat, sides, phases]),
        };
        let stored =
            stored + cost::interleaved_rows(problem.data_format, &axes, [blocks.rows, problem.group_out], machine);
        let transposed = match problem.data_format {
            DataFormat::Ncx => cost::INTO_BLOCK * blocks.input_tiles.positions_read(),
            DataFormat::Nxc => Cost::ZERO,
        };
        let copied = (cost::split(source) * blocks.input_tiles.channel_stride + transposed)
            * blocks_of_channels
            * (depth / SIDE);
        let sums = machine.l2 / SHARE_OF_SUMS / size_of::<f32>();
        let acc_block = (sums / (x.out_step * WIDTH)).min(flat).div_ceil(POSITIONS_AT_ONCE).max(1) * POSITIONS_AT_ONCE;
        let in_limbs = in_limbs.unwrap_or(bytes || precision != Precision::Exact || flat <= FEW_POSITIONS);
        let per_side =
            if in_limbs { cost::streamed_limbs(source) } else { cost::SPLIT_WEIGHTS * flat.div_ceil(acc_block) };
        let filter = steps.saturating_mul(sides).saturating_mul(source * SIDE * ROW_BYTES);
        let again = if blocks.count > 1 && filter > machine.l2 { cost::STREAMED_AGAIN } else { Cost::ZERO };
        let streamed = (per_side + again).times(&[steps, sides]);
        let block = multiplied + stored + copied + streamed;
        MatrixPixels {
            blocked: Blocked {
                width: WIDTH,
                last_width: last_width(problem.group_out, WIDTH, SIDE),
                rows: blocks.rows,
                columns: blocks.columns,
                copy_per_shift,
                overhang: (0, 0),
                cost: block.times(&[blocks.count, problem.group, problem.batch]).rounded(),
                axes,
            },
            precision,
            depth,
            in_limbs,
            chunk: problem.group_in,
            by_row: rows < whole,
            acc_block,
            in_output,
        }
    }

    /// The (channel, tap) pairs of the phase with the most taps.
    fn weights_of_phase(&self, problem: &Problem) -> usize {
        self.blocked.axes.iter().map(AxisPhases::most_taps).fold(problem.group_in, usize::saturating_mul)
    }
}

/// The elements of the filter.
#[derive(Clone, Copy)]
enum Weights<'a, T: Working> {
    /// Limbs, ready to be multiplied.
    Limbs(&'a [T::Limb]),
    Whole(&'a [T]),
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    matrix: &'static MatrixKernels<E::Compute>,
    /// The taps. Offsets count pixels, weights count taps.
    taps: &'a TapTable,
    /// Blocks of input channels.
    blocks: usize,
    panels: Vec<Panel>,
    /// Output channels of a group, padded to panels.
    padded: usize,
    weights: Weights<'a, E::Compute>,
    /// The limbs of both operands. None if they don't hold the weights.
    limbs: Option<Limbs>,
    precision: Precision,
    /// The bias of each group, padded to panel widths.
    bias: Vec<E::Compute>,
    input: GroupedInput<'a, E>,
    accumulators: Accumulators<'a, E>,
}

impl<'a, E: Element> Prepared<'a, E> {
    /// Input channels of a step.
    const DEPTH: usize = depth::<E::Compute>();

    fn new(
        plan: &'a MatrixPixels,
        problem: &'a Problem,
        isa: Isa,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
        tables: &'a AccumulatorTable,
    ) -> TractResult<Self> {
        let axes = &plan.blocked.axes;
        let kernels = E::Compute::kernels(isa);
        let panels: Vec<_> = panel_heights(problem.group_out, WIDTH, plan.blocked.last_width)
            .enumerate()
            .map(|(index, (first_channel, width))| Panel { index, first_channel, width })
            .collect();
        let padded = panels.iter().map(|panel| panel.width).sum();
        let source = Limbs::of_type(plan.precision, E::datum_type());
        Ok(Prepared {
            problem,
            kernels,
            matrix: E::Compute::matrix_kernels(isa).context("kernel: there are no matrix products")?,
            taps: &tables.taps,
            blocks: problem.group_in.div_ceil(Self::DEPTH),
            panels,
            padded,
            weights: match filter.limbs::<E::Compute>() {
                Some(limbs) => Weights::Limbs(limbs),
                None => Weights::Whole(filter.data()?),
            },
            limbs: filter.limbs_needed().map(|weights| Limbs { precision: plan.precision, source, weights }),
            precision: plan.precision,
            bias: crate::layout::padded_bias(problem, operands.bias, padded),
            input: GroupedInput::new(problem, axes, operands.input),
            accumulators: Accumulators::new(problem, axes, kernels, plan.shape(), tables, operands.epilogue),
        })
    }

    fn run_group(
        &self,
        task: &mut Task<E>,
        g: usize,
        copy_plan: &CopyPlan,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let pitch = self.taps.input_tiles.pitch;
        let channels = task.channels.clone();
        let panels = self.panels.iter().copied().filter(|p| channels.contains(&p.first_channel));
        let filled = match self.limbs {
            Some(limbs) => self.fill_limbs(task, g, copy_plan, limbs, scratch)?.map(|stride| (limbs, stride)),
            None => None,
        };
        let Scratch { tile, ragged, limbs: of_input, weights, block, row, .. } = scratch;
        if let Some((limbs, limb_stride)) = filled {
            let data = of_input.of(limbs.source * limb_stride * self.blocks)?;
            let weights = weights.of(MATRIX_STEPS * limbs.weights * WIDTH * Self::DEPTH)?;
            let mut steps = vec![];
            return self.accumulators.run(task, (g, pitch), panels, (tile, ragged), |of, sums| {
                self.multiply(g, &of, (data, limb_stride, limbs), (weights, &mut steps), sums);
                Ok(())
            });
        }
        let group = self.input.of(task, g);
        let pixel = match self.problem.data_format {
            DataFormat::Ncx => self.problem.group_in.next_multiple_of(self.kernels.lanes),
            DataFormat::Nxc => self.problem.group_in,
        };
        let data = block.of(pixel * self.taps.input_tiles.channel_stride)?;
        let tiles = (self.kernels, &self.taps.input_tiles);
        self.input.fill_pixels(tiles, copy_plan, &group, (&mut *data, pixel), (ragged, tile))?;
        self.matrix.round(self.precision, data);
        self.accumulators.run(task, (g, pitch), panels, (tile, ragged), |of, sums| {
            let weights = self.whole_weights(g, &of, row)?;
            of.runs.iter().for_each(|run| self.sum(g, &of, run, (weights, data, pixel), &mut sums[run.at..]));
            Ok(())
        })
    }

    /// Splits the part of a group that a task reads into limbs.
    ///
    /// Per block of channels, the result holds the high limbs of all pixels, then the middle ones,
    /// then the low ones. Returns the number of elements from a pixel's limb to its next limb, or
    /// None if the numbers are not regular.
    fn fill_limbs(
        &self,
        task: &Task<E>,
        g: usize,
        copy_plan: &CopyPlan,
        limbs: Limbs,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<Option<usize>> {
        let (problem, kernels) = (self.problem, self.kernels);
        let GroupedInput { channel: stride, spatial, .. } = &self.input;
        let group = self.input.of(task, g);
        let limb_stride = (self.taps.input_tiles.channel_stride + POSITIONS_AT_ONCE) * Self::DEPTH;
        let data = scratch.limbs.of(limbs.source * limb_stride * self.blocks)?;
        // Channels-last pixels are read in place.
        let (in_place, column) = (problem.data_format == DataFormat::Nxc, spatial[spatial.len() - 1]);
        let at_once = match in_place && E::as_compute(group.from(0).0).is_some() {
            true => (BYTES_IN_PLACE / size_of::<E>() / column.max(1)).max(1),
            false => TRANSPOSED_POSITIONS,
        };
        let segments = self.taps.input_tiles.segments(copy_plan, at_once)?;
        let staging = scratch.ragged.of(TRANSPOSED_POSITIONS * Self::DEPTH)?;
        let wide = scratch.tile.of(TRANSPOSED_POSITIONS * Self::DEPTH)?;
        for to in data.chunks_mut(limb_stride) {
            segments
                .outside
                .iter()
                .for_each(|pixels| to[pixels.start * Self::DEPTH..pixels.end * Self::DEPTH].fill(Default::default()));
        }
        let pairs: Vec<_> = segments.planes.iter().cartesian_product(&segments.runs).collect();
        // All channels of a run of pixels are split while the run is in L1. Planes are read as
        // streams instead.
        let together = if in_place { 1 } else { pairs.len().max(1) };
        let mut most = 0;
        let blocks = || (0..problem.group_in).step_by(Self::DEPTH).enumerate();
        for (pairs, (at, c)) in pairs.chunks(together).cartesian_product(blocks()) {
            let to = &mut data[at * limbs.source * limb_stride..][..limbs.source * limb_stride];
            let channels = Self::DEPTH.min(problem.group_in - c);
            let (tensor, together) = group.from(c);
            let input = E::as_compute(tensor).filter(|_| together >= channels);
            for ((base, pixels), (run, copied)) in pairs {
                let at = base + run.start * column;
                let (from, step) = match (in_place, input) {
                    (true, Some(input)) => (&input[at..], column),
                    (true, None) => {
                        for (pixel, to) in
                            tensor[at..].chunks(column).zip(staging.chunks_mut(Self::DEPTH)).take(run.len())
                        {
                            E::widen_slice(&pixel[..channels], &mut to[..channels]);
                        }
                        (&*staging, Self::DEPTH)
                    }
                    (false, input) => {
                        let (planes, step) = match input {
                            Some(input) => (&input[at..], *stride),
                            None => {
                                for (i, to) in wide.chunks_mut(TRANSPOSED_POSITIONS).take(channels).enumerate() {
                                    let (plane, _) = group.from(c + i);
                                    E::widen_slice(&plane[at..][..run.len()], &mut to[..run.len()]);
                                }
                                (&*wide, TRANSPOSED_POSITIONS)
                            }
                        };
                        crate::layout::transposed(kernels, planes, step, (run.len(), channels), staging, Self::DEPTH);
                        (&*staging, Self::DEPTH)
                    }
                };
                for CopySegment { to: pixel, from: position, step: every, count } in &segments.all[copied.clone()] {
                    let to = &mut to[(pixels + pixel) * Self::DEPTH..];
                    let pixels = (*count, channels);
                    let from = &from[position * step..];
                    most = most.max(self.matrix.split(from, every * step, pixels, to, limb_stride, limbs));
                }
            }
        }
        // Whatever is rounded to bf16 is a limb.
        Ok((limbs.precision == Precision::Bf16 || is_regular(most)).then_some(limb_stride))
    }

    /// The bias of a panel.
    fn bias_of(&self, g: usize, panel: Panel) -> &[E::Compute] {
        &self.bias[g * self.padded + panel.first_channel..][..panel.width]
    }

    /// Returns the offset of the weights of a phase of a panel, in units of the elements per output
    /// channel and tap.
    fn before(&self, g: usize, of: &PhaseSums<E::Compute>) -> usize {
        (g * self.padded + of.panel.first_channel) * self.taps.weights
            + self.taps.phases[of.phase].weights * of.panel.width
    }

    /// Returns the weights of a phase of a panel, `[tap][input channel][output channel]`. If the
    /// filter is kept in limbs, joins them.
    fn whole_weights<'w>(
        &'w self,
        g: usize,
        of: &PhaseSums<E::Compute>,
        joined: &'w mut Aligned<E::Compute>,
    ) -> TractResult<&'w [E::Compute]> {
        let weights_per_tap = self.problem.group_in * of.panel.width;
        let len = self.taps.phases[of.phase].taps.len() * weights_per_tap;
        match self.weights {
            Weights::Whole(weights) => Ok(&weights[self.before(g, of) * self.problem.group_in..][..len]),
            Weights::Limbs(limbs) => {
                let joined = joined.of(len)?;
                let count = self.limbs.map_or(LIMBS, |limbs| limbs.weights);
                let limbs_per_channel = self.blocks * count * Self::DEPTH;
                let limbs = limbs[self.before(g, of) * limbs_per_channel..].chunks(limbs_per_channel * of.panel.width);
                for (from, to) in limbs.zip(joined.chunks_mut(weights_per_tap)) {
                    self.matrix.join(from, of.panel.width / SIDE, count, to);
                }
                Ok(joined)
            }
        }
    }

    /// Computes the sums of a phase in matrix products.
    fn multiply(
        &self,
        g: usize,
        of: &PhaseSums<E::Compute>,
        (data, limb_stride, limbs): (&[<E::Compute as Working>::Limb], usize, Limbs),
        (split, steps): (&mut [<E::Compute as Working>::Limb], &mut Vec<MatrixStep>),
        sums: &mut [E::Compute],
    ) {
        let (phase, panel, channels) = (&self.taps.phases[of.phase], of.panel, self.problem.group_in);
        let sides = panel.width / SIDE;
        let limbs_per_step = limbs.weights * sides * weights_of_side::<E::Compute>();
        let mut start = Start::Bias(self.bias_of(g, panel));
        // A pass has all taps of some channels, whose pixels then stay in L1. Passes begin at the
        // same channels and taps for every range, so that results are bitwise equal.
        let at_once = (MATRIX_STEPS / phase.taps.len().max(1)).max(1);
        for first in (0..self.blocks).step_by(at_once) {
            let blocks = first..(first + at_once).min(self.blocks);
            for tap in (0..phase.taps.len().max(1)).step_by(MATRIX_STEPS) {
                let pass = tap..tap + MATRIX_STEPS;
                let inside = |run: &Run| run.taps.start.max(pass.start)..run.taps.end.min(pass.end);
                let read = of.runs.iter().map(inside).filter(|taps| !taps.is_empty());
                let read = read.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
                // The limbs of the weights, the distances from a tap and from a block to the next
                // in steps, and the first tap and block.
                let (weights, (tap_stride, block_stride), from) = match self.weights {
                    Weights::Limbs(packed) => {
                        let weights = &packed[self.before(g, of) * self.blocks * limbs.weights * Self::DEPTH..];
                        (weights, (self.blocks, 1), (0, 0))
                    }
                    Weights::Whole(weights) => {
                        let weights = &weights[self.before(g, of) * channels..];
                        let pairs = blocks.clone().cartesian_product(read.clone());
                        for ((block, tap), to) in pairs.zip(split.chunks_mut(limbs_per_step)) {
                            let c = block * Self::DEPTH..channels.min((block + 1) * Self::DEPTH);
                            let [begin, end] = [c.start, c.end].map(|c| (tap * channels + c) * panel.width);
                            self.matrix.split_weights(&weights[begin..end], sides, limbs.weights, to);
                        }
                        (&*split, (1, read.len()), (read.start, blocks.start))
                    }
                };
                for run in of.runs {
                    let taps = inside(run);
                    if taps.is_empty() && matches!(start, Start::Add) {
                        continue;
                    }
                    steps.clear();
                    for block in blocks.clone() {
                        steps.extend(taps.clone().map(|tap| MatrixStep {
                            offset: phase.taps[tap] * Self::DEPTH + block * limbs.source * limb_stride,
                            weights: ((tap - from.0) * tap_stride + (block - from.1) * block_stride) * limbs_per_step,
                        }));
                    }
                    let base = run.positions.start * Self::DEPTH;
                    let source = LimbSource { data, base, step: Self::DEPTH, limb_stride, limbs, steps };
                    let last = run.taps.is_empty() || (blocks.end == self.blocks && run.taps.end <= pass.end);
                    let start_and_bounds = (start, of.bounds.filter(|_| last));
                    let sums = &mut sums[run.at..];
                    self.matrix.multiply(
                        (weights, sides),
                        &source,
                        run.positions.len(),
                        start_and_bounds,
                        sums,
                        of.stride,
                    );
                }
                start = Start::Add;
            }
        }
    }

    /// Computes the sums of a run with vector kernels.
    fn sum(
        &self,
        g: usize,
        of: &PhaseSums<E::Compute>,
        run: &Run,
        (weights, data, pixel): (&[E::Compute], &[E::Compute], usize),
        sums: &mut [E::Compute],
    ) {
        let (phase, panel, all) = (&self.taps.phases[of.phase], of.panel, self.problem.group_in);
        let of_width = |tile: &&ChannelTile<E::Compute>| tile.channels() == panel.width;
        let chunk = longest_chain(all, 1);
        let mut start = Start::Bias(self.bias_of(g, panel));
        let taps = if run.taps.is_empty() { 0..1 } else { run.taps.clone() };
        for tap in taps.clone() {
            for from in (0..all).step_by(chunk) {
                let channels = chunk.min(all - from);
                let bounds = of.bounds.filter(|_| tap + 1 == taps.end && from + channels == all);
                let weights = weights.get((tap * all + from) * panel.width..).unwrap_or(&[]);
                let offset = phase.taps.get(tap).filter(|_| !run.taps.is_empty()).map(|tap| tap * pixel);
                let tiles = self.kernels.channel_tiles.iter().rev().filter(of_width);
                for (tile, first, tiles) in split_positions(run.positions.len(), tiles) {
                    let source = Source {
                        data,
                        base: (run.positions.start + first) * pixel + from,
                        channel_stride: 1,
                        channels,
                        taps: offset.as_slice(),
                        prefetch: false,
                    };
                    let positions = TilePositions { tiles, stride: pixel, out_stride: of.stride };
                    tile.run(weights, &source, (start, bounds), &mut sums[first * of.stride..], positions);
                }
                start = Start::Add;
            }
        }
    }
}
