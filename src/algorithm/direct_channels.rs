//! Each phase as a small dense convolution over the shared grid. Inputs are the scalars, output
//! channels the lanes.
//!
//! [`direct_positions`](crate::algorithm::direct_positions) keeps a block of input in the cache and
//! streams weights. This algorithm keeps a chunk of a panel's weights and streams positions, one
//! accumulator block after the other.

use crate::algorithm::blocked::{Blocked, GroupedInput, OVERRUN, fill_vectors, last_width, sums_in_output};
use crate::algorithm::chains::longest_chain;
use crate::algorithm::{Algorithm, Operands, Query};
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::geometry::AxisPhases;
use crate::kernel::{Dispatch, Kernels, MOST_POSITIONS, Source, Start, TilePositions, split_positions};
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::input_tile::{CopyPlan, GridBlocks};
use crate::layout::panels::{PanelShape, Panels};
use crate::layout::taps::TapTable;
use crate::memory::Scratch;
use crate::output::blocks::{AccumulatorShape, AccumulatorTable, Accumulators, Passes, PhaseSums, Run};
use crate::output::task::Task;
use crate::ranges::even_part;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use tract_core::internal::*;

/// The divisor of L2 for the sums of an accumulator block. Longer accumulator blocks reuse a chunk
/// of weights more often and write longer runs, which pays even beyond L1.
const SHARE_OF_SUMS: usize = 16;

/// The divisor of L2 for the weights that are read again for each accumulator block, if the block has whole pixels.
const SHARE_OF_WEIGHTS: usize = 4;

/// The fewest pixels of such a block.
const FEWEST_AT_ONCE: usize = 64;

/// The multiply-adds per input element from which it is worthwhile to transpose the input. In a
/// transposed copy, the scalars of adjacent channels share a cache line.
const TRANSPOSING_PAYS: usize = 2048;

/// The most input channels per pass over planes in place. L1 holds a panel's weights for them, and a line of each plane.
const MOST_IN_PLACE: usize = 128;

/// The divisor of L2 for the sums of several panels, which stay there from pass to pass.
const SHARE_OF_ALL_SUMS: usize = 2;

/// The fewest positions of an accumulator block whose panels sum in passes.
const FEWEST_IN_PASSES: usize = 128;

/// The number of input channels from which it is worthwhile to transpose an input that could be
/// read in place.
const FEWEST_TO_TRANSPOSE_IN_PLACE: usize = 256;

/// The same for a transposed copy, in which the channels of a position are adjacent. Longer tiles
/// are faster there, but slower if channels are a plane apart.
const MOST_PIXELS: usize = 14;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectChannels {
    /// Blocks and panels.
    pub blocked: Blocked,
    /// Positions per register tile.
    pub positions: usize,
    /// Input channels per pass.
    pub chunk: usize,
    /// The most taps per pass. Channels × taps of a pass is the longest accumulation chain.
    pub taps: usize,
    /// Whether the input is read in place.
    pub direct: bool,
    /// Whether channels-first input is copied to pixels, whose channels are adjacent.
    pub transposed: bool,
    /// Whether tiles end at the end of each grid row and skip the taps that miss the input there.
    /// Otherwise they run over the padding between rows.
    pub by_row: bool,
    /// Positions per accumulator block.
    pub acc_block: usize,
    /// Whether channels-last results are summed in the output, where tasks have whole pixels.
    pub in_output: bool,
    /// Whether all panels of some pixels are computed before the next pixels.
    pub panels_first: bool,
    /// The passes in which panels sum a block that L2 does not hold.
    pub passes: Option<Passes>,
}

/// Returns the passes for `panels` panels with so many `sums` per position each, over a block of `flat` positions that is read in
/// place, `chunk` input channels at a time. None if L2 holds the block's input, or has no room for the sums of several panels.
fn passes_of_panels(query: &Query, flat: usize, (panels, sums): (usize, usize), chunk: usize) -> Option<Passes> {
    let &Query { problem, machine, element, .. } = query;
    let beyond = flat.saturating_mul(problem.group_in).saturating_mul(element) > machine.l2 / 2;
    let most = machine.l2 / SHARE_OF_ALL_SUMS / element / FEWEST_IN_PASSES / sums;
    let together = panels.div_ceil(panels.div_ceil(most.max(1)));
    (beyond && chunk < problem.group_in && together > 1).then_some(Passes { channels: chunk, panels: together })
}

impl Algorithm for DirectChannels {
    type Tables = AccumulatorTable;

    const READS_PARTS: bool = true;

    fn propose(query: &Query) -> Result<DirectChannels, String> {
        let &Query { problem, datum_type, machine, .. } = query;
        let axes = query.axes()?;
        let forced = query.forced(|layout| match layout {
            FilterLayout::Chunks { width, last_width, chunk } => Some((*width, *last_width, *chunk)),
            _ => None,
        })?;
        let (lanes, tiles) = (query.sizes.lanes, &query.sizes.channel_tiles);
        // If the filter of fewer channels is packed already, this is the only algorithm that reads it at every size.
        if forced.is_none() && !fill_vectors(problem, lanes) {
            return Err(format!("{} output channels per group leave lanes of a vector empty", problem.group_out));
        }
        let (outer, y, x) = axes.parts();
        let taps = axes.taps();
        let widest = axes.most_taps();
        let phases = axes.phases();
        let depth = problem.group_in * taps;
        let element = query.element;
        let in_place = query.has_same_element() && axes.are_unshifted() && !query.in_parts;
        let fewest = if in_place { FEWEST_TO_TRANSPOSE_IN_PLACE } else { lanes };
        let transposed = problem.data_format == DataFormat::Ncx
            && problem.group_in >= fewest
            && problem.group_out.saturating_mul(taps) >= TRANSPOSING_PAYS;
        let direct = in_place && !transposed;
        // The input of a block takes at most half of L2.
        let pixels = problem.data_format == DataFormat::Nxc && query.has_same_element();
        let budget = machine.l2 / 2 / element / problem.group_in.max(1);
        let block = if !direct {
            GridBlocks::within(axes, false, budget)
        } else if y.grid == 1 && y.output == 1 {
            (1, budget.max(256).min(x.grid))
        } else {
            ((budget / x.grid).clamp(1, y.grid), x.grid)
        };
        let blocks = GridBlocks::even(axes, block, false, direct);
        let flat = blocks.positions;
        let part = longest_chain(problem.group_in.saturating_mul(widest), widest);
        // All taps of some channels. If the channels of a position are adjacent, as many channels
        // as possible instead, so that tiles read longer runs.
        let chunk = match forced {
            Some((_, _, chunk)) => chunk,
            None if transposed => even_part(problem.group_in, part),
            None => even_part(problem.group_in, part / widest.max(1)),
        };
        let under = even_part(widest, part / chunk.max(1));
        let passes = problem.group_in.div_ceil(chunk.max(1)) * widest.div_ceil(under);
        // More planes in turn would miss L1 or the TLB. These shorter passes are not in the estimate: loading and storing
        // their sums took no longer than the misses.
        let input_bytes = query.input_bytes();
        let chunk = match (forced, direct, problem.data_format) {
            (None, true, DataFormat::Ncx) => {
                even_part(problem.group_in, chunk.min(MOST_IN_PLACE).min(cost::planes_in_tlb(problem, input_bytes)))
            }
            _ => chunk,
        };
        let vectors = problem.group_out.div_ceil(lanes);
        let summed = cost::SUMMED.times(&[flat, vectors, phases, passes]);
        let stored = cost::store_of_channels(problem, datum_type, machine).times(&[flat, vectors, phases]);
        let stored =
            stored + cost::interleaved_rows(problem.data_format, axes, [blocks.rows, problem.group_out], machine);
        let copied = match direct {
            true => Cost::ZERO,
            false => cost::filled(&blocks.input_tiles, problem.group_in, lanes, cost::copied(DataFormat::Ncx, 1)),
        };
        let weights = problem.group_out.saturating_mul(depth);
        let far = weights.saturating_mul(problem.group).saturating_mul(element) > machine.l2;
        let loaded_again = match far {
            true => Cost::new(machine.rates.far_weights).times(&[weights / lanes, blocks.count - 1]) / blocks.count,
            false => Cost::ZERO,
        };
        let beyond = cost::beyond_caches(problem, datum_type, cost::BEYOND_BY_PIXELS, lanes, machine);
        let outer_share: f64 = outer.iter().map(AxisPhases::share_inside).product();
        let row_share = y.share_inside();

        let most = if transposed { MOST_PIXELS } else { MOST_POSITIONS };
        let mut best: Option<DirectChannels> = None;
        for (positions, nv) in tiles.iter().copied().filter(|(positions, nv)| positions * nv >= 6 && *positions <= most)
        {
            let width = nv * lanes;
            let last_width = last_width(problem.group_out, width, lanes);
            if forced.is_some_and(|f| f != (width, last_width, chunk)) {
                continue;
            }
            let panels = problem.group_out.div_ceil(width);
            let run_cost = |len: usize| {
                let last = cost::run(len, positions, last_width / lanes, tiles, lanes * element, machine);
                cost::run(len, positions, nv, tiles, lanes * element, machine) * (panels - 1) + last
            };
            let in_output = pixels && sums_in_output(problem, width, passes);
            let stored_if = |buffered: bool| if buffered { stored } else { Cost::ZERO };
            // Padded rows have gaps between them.
            let unbuffered = in_output && problem.group_out.is_multiple_of(width);
            let rows =
                run_cost(blocks.columns) * blocks.rows * row_share * depth * outer_share + stored_if(!unbuffered);
            let whole = run_cost(flat) * depth * outer_share + stored_if(!(unbuffered && direct));
            let waited = match (direct, problem.data_format) {
                (true, DataFormat::Ncx) => {
                    let far = cost::far_pixels(problem, input_bytes, machine);
                    cost::evicted_lines(problem, input_bytes, panels, positions * element, machine).max(far)
                }
                _ => Cost::ZERO,
            };
            let read = waited.times(&[flat / lanes, problem.group_in]);
            let block = whole.min(rows) + summed + copied + read + loaded_again;
            let cost = (block.times(&[blocks.count, problem.group, problem.batch]) + beyond).rounded();
            let all_in_passes = match direct && problem.data_format == DataFormat::Ncx {
                true => passes_of_panels(query, flat, (panels, width * x.out_step), chunk),
                false => None,
            };
            // Whole pixels are stored, and read, once. The weights of all panels are read for each of their blocks.
            let panels_first =
                in_output && panels > 1 && weights.saturating_mul(element) <= machine.l2 / SHARE_OF_WEIGHTS;
            let sums = machine.l2 / SHARE_OF_SUMS / element;
            let at_once = match (panels_first, all_in_passes) {
                (true, _) => (sums / (x.out_step * problem.group_out)).max(FEWEST_AT_ONCE),
                (_, Some(of)) => machine.l2 / SHARE_OF_ALL_SUMS / element / (x.out_step * of.panels * width),
                (false, None) => sums / (x.out_step * width),
            };
            if best.as_ref().is_none_or(|b| cost < b.blocked.cost) {
                best = Some(DirectChannels {
                    blocked: Blocked {
                        width,
                        last_width,
                        rows: blocks.rows,
                        columns: blocks.columns,
                        copy_per_shift: false,
                        overhang: (0, 0),
                        cost,
                        axes: axes.clone(),
                    },
                    positions,
                    chunk,
                    taps: under,
                    direct,
                    transposed,
                    by_row: rows < whole,
                    in_output,
                    panels_first,
                    passes: all_in_passes,
                    acc_block: at_once.min(flat).div_ceil(positions).max(1) * positions,
                });
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
    }

    fn cost(&self) -> Option<u64> {
        Some(self.blocked.cost)
    }

    fn variant(&self) -> &'static str {
        match (self.direct, self.transposed) {
            (true, _) => "pixels in place",
            (_, true) => "transposed copy",
            _ => "padded copy",
        }
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let Blocked { width, .. } = self.blocked;
        // A pixel of a transposed copy has an odd number of whole vectors, and it is made from a
        // vector of planes. A panel has at least one vector.
        let channels = problem.group_in.saturating_add(if self.transposed { 3 * width } else { 0 });
        let block = if self.direct { 0 } else { self.blocked.input_tiles().working_bytes(channels, element) };
        let positions = match self.passes {
            // Register tiles may overrun the last position of each panel.
            Some(Passes { panels, .. }) => (self.acc_block + OVERRUN).saturating_mul(panels),
            None => self.acc_block,
        };
        block.saturating_add(self.blocked.working_bytes(problem, positions, element))
    }

    fn filter_layout(&self) -> FilterLayout {
        let Blocked { width, last_width, .. } = self.blocked;
        FilterLayout::Chunks { width, last_width, chunk: self.chunk }
    }

    fn explain(&self) -> String {
        let source = match (self.direct, self.transposed) {
            (true, _) => "in place",
            (_, true) => "in a transposed copy",
            _ => "in padded rows",
        };
        let runs = if self.by_row { "within rows" } else { "across rows" };
        let sums = match (self.in_output, self.panels_first, self.passes) {
            (true, true, _) => ", summed in the output, all channels of a pixel together".to_string(),
            (true, false, _) => ", summed in the output".to_string(),
            (false, _, Some(Passes { panels, .. })) => format!(", each pass for {panels} panels before the next"),
            (false, _, None) => String::new(),
        };
        format!(
            "tiles of {}x{}, passes of {}x{} (input channels x taps), input read {source}, runs {runs}, blocks of {}x{} positions{sums}",
            self.positions, self.blocked.width, self.chunk, self.taps, self.blocked.rows, self.blocked.columns
        )
    }

    fn tables(&self, problem: &Problem, lanes: usize) -> TractResult<AccumulatorTable> {
        let (axes, input_tiles) = (&self.blocked.axes, self.blocked.input_tiles());
        let taps =
            TapTable::new(axes, input_tiles, self.direct, self.pixel_channels(problem, lanes), problem.group_in)?;
        AccumulatorTable::new(problem, axes, &self.shape(), lanes, taps)
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
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands, tables)?;
        let partition = self.blocked.partition(problem, 8 * self.positions, [1, self.positions]);
        let tiles = (!self.direct).then_some(&prepared.taps.input_tiles);
        self.blocked.run(problem, &partition, (&prepared.input, tiles), output, |task, g, copy_plan, scratch| {
            prepared.run_group(task, g, copy_plan, scratch)
        })
    }
}

impl DirectChannels {
    /// The split of blocks into accumulator blocks.
    fn shape(&self) -> AccumulatorShape {
        AccumulatorShape {
            width: self.blocked.width,
            positions: self.positions,
            most: self.acc_block,
            by_row: self.by_row,
            window: None,
            panels_first: self.panels_first,
            passes: self.passes,
            in_output: self.in_output,
        }
    }

    /// Adjacent channels per position of the input tiles.
    fn pixel_channels(&self, problem: &Problem, lanes: usize) -> usize {
        match problem.data_format {
            // An odd number of vectors, as pixels a power of two apart would compete for the same
            // cache sets.
            DataFormat::Ncx if self.transposed => (problem.group_in.div_ceil(lanes) | 1) * lanes,
            DataFormat::Ncx => 1,
            DataFormat::Nxc => problem.group_in,
        }
    }
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a DirectChannels,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    taps: &'a TapTable,
    /// Adjacent channels per position of the input tiles.
    pixel_channels: usize,
    panels: Panels<'a, E>,
    input: GroupedInput<'a, E>,
    accumulators: Accumulators<'a, E>,
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a DirectChannels,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &Operands<'a, E>,
        tables: &'a AccumulatorTable,
    ) -> TractResult<Self> {
        let axes = &plan.blocked.axes;
        let pixel_channels = plan.pixel_channels(problem, kernels.lanes);
        let panels = PanelShape {
            widths: (plan.blocked.width, plan.blocked.last_width),
            positions: plan.positions,
            weights: tables.taps.weights,
        };
        Ok(Prepared {
            plan,
            problem,
            kernels,
            taps: &tables.taps,
            pixel_channels,
            panels: Panels::new(problem, kernels, panels, filter, operands.bias)?,
            input: GroupedInput::new(problem, axes, operands.input),
            accumulators: Accumulators::new(problem, axes, kernels, plan.shape(), tables, operands.epilogue),
        })
    }

    fn run_group(
        &self,
        task: &mut Task<E>,
        g: usize,
        copy_plan: Option<&CopyPlan>,
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let (plan, problem) = (self.plan, self.problem);
        let x = plan.blocked.axes.columns();
        let group = self.input.of(task, g);
        let spatial = &self.input.spatial;
        let (source, pitch, step) = if let Some(copy_plan) = copy_plan {
            let stride = self.taps.input_tiles.channel_stride;
            let data = scratch.block.of(problem.group_in.next_multiple_of(self.pixel_channels) * stride)?;
            if problem.data_format == DataFormat::Ncx && self.pixel_channels == 1 {
                let mut fill = |(ci, to): (usize, &mut [E::Compute])| {
                    let (from, _) = group.from(ci);
                    self.taps.input_tiles.fill(self.kernels, copy_plan, from, to, &mut scratch.tile)
                };
                data.chunks_mut(stride).enumerate().try_for_each(&mut fill)?
            } else {
                let (to, working) = ((&mut *data, self.pixel_channels), (&mut scratch.ragged, &mut scratch.tile));
                self.input.fill_pixels((self.kernels, &self.taps.input_tiles), copy_plan, &group, to, working)?;
            }
            let channel_stride = if self.pixel_channels == 1 { stride } else { 1 };
            let source =
                Source { data, base: 0, channel_stride, channels: problem.group_in, taps: &[][..], prefetch: false };
            (source, self.taps.input_tiles.pitch, self.pixel_channels)
        } else {
            let data = E::as_compute(self.input.data.whole()?).context("element: computed in another type")?;
            let step = spatial[spatial.len() - 1];
            let base = self.input.first(task, g) + task.offset(spatial);
            let source = Source {
                data,
                base,
                channel_stride: self.input.channel,
                channels: problem.group_in,
                taps: &[][..],
                prefetch: false,
            };
            (source, x.grid, step)
        };
        let panels = self.panels.within(task.channels.clone());
        self.accumulators.run(task, (g, pitch), panels, (&mut scratch.tile, &mut scratch.ragged), |of, sums| {
            of.runs.iter().for_each(|run| self.sum(g, &of, run, &source, step, &mut sums[run.at..]));
            Ok(())
        })
    }

    /// Computes one phase of one panel over a run of a block's positions, for a range of its taps.
    fn sum(
        &self,
        g: usize,
        of: &PhaseSums<E::Compute>,
        Run { taps, positions: run, .. }: &Run,
        source: &Source<E::Compute>,
        step: usize,
        sums: &mut [E::Compute],
    ) {
        let (plan, phase, width) = (self.plan, &self.taps.phases[of.phase], of.panel.width);
        let mut start = match of.channels.start {
            0 => Start::Bias(self.panels.bias(g, of.panel)),
            _ => Start::Add,
        };
        let weights = self.panels.weights(g, of.panel, phase.weights);
        let all = if taps.is_empty() { 1 } else { source.channels };
        for from in (of.channels.start..of.channels.end.min(all)).step_by(plan.chunk) {
            let channels = plan.chunk.min(source.channels - from);
            // The layout within a chunk is `[tap][channel][width]`.
            let weights = &weights[from * phase.taps.len() * width..];
            let base = source.base + from * source.channel_stride;
            // Passes begin at the same taps for every range, so that results are bitwise equal.
            let end_of_pass = |tap: usize| taps.end.min((tap / plan.taps + 1) * plan.taps);
            // So does the chain that the bias begins: where the first taps are left out, it has none.
            let begins_later = from == 0 && taps.start >= plan.taps;
            let last_channels = from + plan.chunk >= all;
            let (mut tap, mut end) = (taps.start, if begins_later { taps.start } else { end_of_pass(taps.start) });
            loop {
                let pass = Source { base, channels, taps: &phase.taps[tap..end], ..*source };
                let weights = &weights[tap * channels * width..];
                let bounds = of.bounds.filter(|_| last_channels && end >= taps.end);
                let tiles = self.panels.tiles(of.panel).iter().copied();
                for (tile, first, tiles) in split_positions(run.len(), tiles) {
                    let source = Source { base: pass.base + (run.start + first) * step, ..pass };
                    let positions = TilePositions { tiles, stride: step, out_stride: of.stride };
                    tile.run(weights, &source, (start, bounds), &mut sums[first * of.stride..], positions);
                }
                start = Start::Add;
                tap = end;
                if tap >= taps.end {
                    break;
                }
                end = end_of_pass(tap);
            }
        }
    }
}
