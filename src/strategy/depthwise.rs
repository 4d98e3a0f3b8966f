//! One input channel a group: sums of shifted rows, each output row written as it is computed.

use super::phases::{axes_of, too_many_phases};
use super::pieces::{Cut, Task, bytes_of_tasks, run_tasks};
use super::sheets::Sheets;
use super::{Operands, Scratch, blocks_of, cost, even_blocks, group_parts, threads};
use crate::element::{Compute, Element};
use crate::filter::{FilterLayout, PackedFilter};
use crate::geometry::{AxisPhases, Phase};
use crate::kernel::{Dispatch, Isa, Kernels, WeightedTap, refill};
use crate::spec::{DataFormat, Problem};
use crate::tail::ChannelTail;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// Bytes of a channel's sheets that are worked on at a time: they stay in L2. A quarter of it, which stays in L1, was 1.1 to 1.6 times slower (Zen 4).
const SHEET_BYTES: usize = 64 * 1024;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepthwisePlan {
    /// Whether output rows follow each other without gaps, so that a block of rows is one run.
    pub flat: bool,
    /// Grid rows of a block.
    pub block_rows: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Vec<AxisPhases>,
}

impl DepthwisePlan {
    /// Decides, or says why not.
    pub(crate) fn propose(
        problem: &Problem,
        datum_type: DatumType,
        isa: Isa,
        layout: Option<&FilterLayout>,
    ) -> Result<DepthwisePlan, String> {
        if problem.group_in != 1 {
            return Err(format!("{} input channels a group, not one", problem.group_in));
        }
        if problem.data_format != DataFormat::Ncx {
            return Err("rows of a channel are not contiguous in NXC".to_string());
        }
        if let Some(reason) = too_many_phases(problem) {
            return Err(reason);
        }
        if layout.is_some_and(|l| *l != Self::layout()) {
            return Err(format!("the filter is packed for {layout:?}"));
        }
        let axes = axes_of(problem);
        let (y, x) = (&axes[axes.len() - 2], &axes[axes.len() - 1]);
        let flat = y.out_step == 1 && x.output == x.out_step * x.grid;
        let fixed = Sheets::new(&axes, 1, x.grid, flat).channel_stride;
        let per_row = Sheets::new(&axes, 2, x.grid, flat).channel_stride.saturating_sub(fixed).max(1);
        let block_rows = (1 + (SHEET_BYTES / 4).saturating_sub(fixed) / per_row).min(y.grid);
        let (lanes, _) = super::phases::shapes(datum_type, isa);
        let positions = |size: fn(&AxisPhases) -> usize| axes.iter().map(size).product::<usize>();
        let taps = positions(|axis| axis.phases.iter().map(|phase| phase.taps.len()).sum());
        let phases = positions(|axis| axis.out_step);
        let rows = positions(|axis| axis.output) / x.output.max(1);
        // rows that follow each other are summed as one
        let vectors = match flat {
            true => positions(|axis| axis.output).div_ceil(lanes),
            false => rows.saturating_mul(x.grid.div_ceil(lanes)).saturating_mul(x.out_step),
        };
        let sheets = Sheets::new(&axes, y.grid, x.grid, flat);
        let copied = match flat && x.in_step == 1 && y.in_step == 1 && x.grid == x.input {
            true => 4 * sheets.channel_stride / lanes,
            false => sheets.channel_stride / sheets.pitch * cost::COPIED_ROW + 2 * sheets.channel_stride / lanes,
        };
        let of_rows = if flat { 0 } else { rows.saturating_mul(cost::ROW) };
        let channel = cost::shifted(vectors, taps.div_ceil(phases), phases).saturating_add(of_rows);
        let group = channel.saturating_mul(problem.group_out).saturating_add(copied).saturating_add(cost::CHANNEL);
        let cost = (group as u64).saturating_mul((problem.group * problem.batch) as u64);
        Ok(DepthwisePlan { flat, block_rows, cost, axes })
    }

    /// Bytes that a run takes on one thread, besides operands and output.
    pub(crate) fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let x = &self.axes[self.axes.len() - 1];
        let sheets = Sheets::new(&self.axes, self.block_rows, x.grid, self.flat).bytes(1, element);
        sheets.saturating_add(bytes_of_tasks(problem, &self.axes, 1))
    }

    /// That of panels of one channel.
    pub fn layout() -> FilterLayout {
        FilterLayout::Phases { mr: 1, tail_mr: 1 }
    }

    /// Writes the whole output.
    pub(crate) fn run<E: Element>(
        &self,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let prepared = Prepared::new(self, problem, kernels, filter, operands)?;
        let (y, x) = (&self.axes[self.axes.len() - 2], &self.axes[self.axes.len() - 1]);
        let groups = group_parts(problem, threads(self.cost));
        // few groups: their output channels are shared out, each part copies the input for itself
        let parts = if threads(self.cost) > groups.len() * problem.batch && groups.iter().all(|g| g.len() == 1) {
            threads(self.cost)
        } else {
            1
        };
        let cut = Cut {
            groups,
            channels: even_blocks(problem.group_out, parts),
            rows: blocks_of(y.grid, y.grid),
            columns: blocks_of(x.grid, x.grid),
        };
        run_tasks(problem, &self.axes, &cut, self.cost, output, |task, scratch| {
            task.groups.clone().try_for_each(|g| prepared.run_group(task, g, scratch))
        })
    }
}

/// Everything that tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a DepthwisePlan,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    sheets: Sheets,
    /// For each phase of outer and row axes, for each column phase: `(offset in the sheets, index in a channel's weights)` of its taps.
    rows: Vec<Vec<Vec<(usize, usize)>>>,
    weights: &'a [E::Compute],
    operands: &'a Operands<'a, E>,
    input_strides: TVec<usize>,
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a DepthwisePlan,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &'a Operands<'a, E>,
    ) -> TractResult<Self> {
        let axes = &plan.axes;
        let sheets = Sheets::new(axes, plan.block_rows, axes[axes.len() - 1].grid, plan.flat);
        let weights_of = super::phases::weights_of(axes);
        let taps_of = |picked: &[&Phase]| -> Vec<(usize, usize)> {
            let first = weights_of[axes.iter().zip(picked).fold(0, |at, (a, p)| at * a.out_step + p.residue)];
            picked
                .iter()
                .map(|p| p.taps.iter().map(|t| t.shift))
                .multi_cartesian_product()
                .enumerate()
                .map(|(i, shifts)| (sheets.tap(&shifts), first + i))
                .collect()
        };
        let all: Vec<Vec<(usize, usize)>> =
            axes.iter().map(|a| &a.phases).multi_cartesian_product().map(|picked| taps_of(&picked)).collect();
        let rows = all.chunks(axes[axes.len() - 1].out_step).map(|row| row.to_vec()).collect();
        Ok(Prepared {
            plan,
            problem,
            kernels,
            rows,
            sheets,
            weights: filter.data::<E::Compute>()?,
            operands,
            input_strides: super::strides_of(&problem.input_shape()),
        })
    }

    /// All output channels of one group.
    fn run_group(&self, task: &mut Task<E>, g: usize, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (axes, problem) = (&self.plan.axes, self.problem);
        let (y, x) = (&axes[axes.len() - 2], &axes[axes.len() - 1]);
        let taps: usize = self.weights.len() / (problem.group * problem.group_out);
        let input = &self.operands.input[task.n * self.input_strides[0] + g * self.input_strides[1]..];
        let mut spatial = self.input_strides[2..].to_vec();
        if spatial.len() < 2 {
            spatial.insert(0, 0);
        }
        let mut phases: Vec<Vec<WeightedTap<E::Compute>>> = vec![vec![]; x.out_step];
        for rows in blocks_of(y.grid, self.plan.block_rows) {
            // runs are read in whole vectors: what lies past the last position is never stored, but must exist
            let sheets = scratch.block.of(self.sheets.channel_stride + self.kernels.lanes)?;
            self.sheets.fill(self.kernels, input, &spatial, &task.outer, rows.clone(), 0..x.grid, sheets);
            for channel in task.channels.clone() {
                let output_channel = g * problem.group_out + channel;
                let weights = &self.weights[output_channel * taps..];
                let bias = self.operands.bias.map_or(E::Compute::ZERO, |b| b[output_channel].widen());
                let slot = task.channel(problem, g, channel);
                let tail = self.operands.tail.of(output_channel);
                for outer in 0..task.pieces.outer_phases.len() {
                    for ry in 0..y.out_step {
                        let row = &self.rows[task.pieces.outer_phases[outer] * y.out_step + ry];
                        for (phase, taps) in phases.iter_mut().zip(row) {
                            phase.clear();
                            phase.extend(taps.iter().map(|t| WeightedTap { offset: t.0, weight: weights[t.1] }));
                        }
                        if self.plan.flat {
                            let at = task.pieces.index(slot, outer, rows.start, 0);
                            if let Some(to) = task.pieces.whole_rows(x.output, slot, outer, rows.clone()) {
                                self.run_cells(sheets, &phases, bias, (tail, at), to, &mut scratch.row)?;
                                continue;
                            }
                        }
                        for u in rows.clone() {
                            let cell = u * y.out_step + ry;
                            if cell >= y.output {
                                break;
                            }
                            let source = &sheets[(u - rows.start) * self.sheets.pitch..];
                            let place = (slot, outer, cell);
                            self.run_row(task, source, &phases, bias, place, tail, &mut scratch.row)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Consecutive cells, the first of which has index `at` in the output.
    fn run_cells(
        &self,
        source: &[E::Compute],
        phases: &[Vec<WeightedTap<E::Compute>>],
        bias: E::Compute,
        (tail, at): (ChannelTail<E>, usize),
        to: &mut [E],
        row: &mut Vec<E::Compute>,
    ) -> TractResult<()> {
        if let Some(to) = E::as_compute_mut(to) {
            self.kernels.sum_of_taps(source, phases, bias, to);
            tail.apply(at, 1, to);
            return Ok(());
        }
        refill("working memory", row, to.len(), E::Compute::ZERO)?;
        self.kernels.sum_of_taps(source, phases, bias, row);
        tail.apply(at, 1, row);
        E::narrow_slice(row, to);
        Ok(())
    }

    #[expect(clippy::too_many_arguments)]
    fn run_row(
        &self,
        task: &mut Task<E>,
        source: &[E::Compute],
        phases: &[Vec<WeightedTap<E::Compute>>],
        bias: E::Compute,
        (slot, outer, cell): (usize, usize, usize),
        tail: ChannelTail<E>,
        row: &mut Vec<E::Compute>,
    ) -> TractResult<()> {
        let x = &self.plan.axes[self.plan.axes.len() - 1];
        let whole = x.output == x.grid * x.out_step;
        let at = task.pieces.index(slot, outer, cell, 0);
        if whole && let Some(to) = task.pieces.whole_rows(x.output, slot, outer, cell..cell + 1) {
            return self.run_cells(source, phases, bias, (tail, at), to, row);
        }
        refill("working memory", row, x.grid * x.out_step, E::Compute::ZERO)?;
        self.kernels.sum_of_taps(source, phases, bias, row);
        let row = &mut row[..x.output];
        tail.apply(at, 1, row);
        task.pieces.write_row(slot, outer, cell, row);
        Ok(())
    }
}
