//! One channel in and out a group, channels last: lanes are channels, and a cell's products need no broadcast.

use super::phases::{axes_of, phases_of, too_many_phases};
use super::pieces::{Cut, Task, bytes_of_tasks, run_tasks};
use super::sheets::Sheets;
use super::{Operands, Scratch, blocks_of, threads};
use crate::element::{Compute, Element};
use crate::filter::{FilterLayout, PackedFilter};
use crate::geometry::AxisPhases;
use crate::kernel::{CellTap, Cells, Dispatch, Isa, Kernels};
use crate::machine::Machine;
use crate::spec::{DataFormat, Problem};
use tract_core::internal::*;

/// The share of L2 that a block's input takes: its output goes through the rest.
const SHARE_OF_INPUT: usize = 4;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellsPlan {
    /// Weights of a tap: the channels, rounded up to whole vectors.
    pub width: usize,
    /// Grid rows of a block.
    pub block_rows: usize,
    axes: Vec<AxisPhases>,
}

impl CellsPlan {
    /// Decides, or says why not.
    pub(crate) fn propose(
        problem: &Problem,
        datum_type: DatumType,
        isa: Isa,
        layout: Option<&FilterLayout>,
        machine: &Machine,
    ) -> Result<CellsPlan, String> {
        if problem.data_format != DataFormat::Nxc {
            return Err("channels of a cell are not contiguous in NCX".to_string());
        }
        if (problem.group_in, problem.group_out) != (1, 1) {
            return Err(format!("{} to {} channels a group, not one to one", problem.group_in, problem.group_out));
        }
        if let Some(reason) = too_many_phases(problem) {
            return Err(reason);
        }
        let (lanes, _) = super::phases::shapes(datum_type, isa);
        if problem.group < lanes / 2 {
            return Err(format!("{} channels leave most lanes of a vector empty", problem.group));
        }
        let width = problem.group.next_multiple_of(lanes);
        if layout.is_some_and(|l| *l != FilterLayout::Cells { width }) {
            return Err(format!("the filter is packed for {layout:?}"));
        }
        let axes = axes_of(problem);
        let (y, x) = (&axes[axes.len() - 2], &axes[axes.len() - 1]);
        let budget = machine.l2 / SHARE_OF_INPUT / super::compute_bytes(datum_type) / problem.group;
        let fixed = Sheets::new(&axes, 1, x.grid, false).channel_stride;
        let per_row = Sheets::new(&axes, 2, x.grid, false).channel_stride.saturating_sub(fixed).max(1);
        let block_rows = (1 + budget.saturating_sub(fixed) / per_row).min(y.grid);
        Ok(CellsPlan { width, block_rows, axes })
    }

    /// Bytes that a run takes on one thread, besides operands and output.
    pub(crate) fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let x = &self.axes[self.axes.len() - 1];
        let sheets = Sheets::new(&self.axes, self.block_rows, x.grid, false).bytes(problem.group, element);
        let row = x.output.saturating_mul(problem.group).saturating_mul(element);
        sheets.saturating_add(row).saturating_add(bytes_of_tasks(problem, &self.axes, 1))
    }

    /// The layout of the filter.
    pub fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Cells { width: self.width }
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
        let parts = if threads() == 1 { 1 } else { (4 * threads()).div_ceil(problem.batch.max(1)) };
        let cut = Cut {
            groups: blocks_of(problem.group, problem.group),
            channels: blocks_of(1, 1),
            rows: blocks_of(y.grid, y.grid.div_ceil(parts)),
            columns: blocks_of(x.grid, x.grid),
        };
        run_tasks(problem, &self.axes, &cut, output, |task, scratch| prepared.run(task, scratch))
    }
}

/// Everything that tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a CellsPlan,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    sheets: Sheets,
    /// The taps of every phase, those of the last axis innermost.
    phases: Vec<Vec<CellTap>>,
    weights: &'a [E::Compute],
    bias: Vec<E::Compute>,
    operands: &'a Operands<'a, E>,
    /// Strides of the input: image, channel, spatial axes (at least two).
    strides: (usize, usize, Vec<usize>),
}

impl<'a, E: Element> Prepared<'a, E> {
    fn new(
        plan: &'a CellsPlan,
        problem: &'a Problem,
        kernels: &'static Kernels<E::Compute>,
        filter: &'a PackedFilter,
        operands: &'a Operands<'a, E>,
    ) -> TractResult<Self> {
        let axes = &plan.axes;
        let sheets = Sheets::new(axes, plan.block_rows, axes[axes.len() - 1].grid, false);
        let (phases, _) = phases_of(axes, 1, |shifts| problem.group * sheets.tap(shifts));
        let of_phase = |phase: super::phases::Phase| {
            let taps = phase.taps.into_iter().enumerate();
            taps.map(|(i, offset)| CellTap { offset, weights: (phase.weights + i) * plan.width }).collect()
        };
        let mut bias = vec![E::Compute::ZERO; plan.width];
        if let Some(values) = operands.bias {
            E::widen_slice(values, &mut bias[..problem.group]);
        }
        Ok(Prepared {
            plan,
            problem,
            kernels,
            phases: phases.into_iter().map(of_phase).collect(),
            sheets,
            weights: filter.data::<E::Compute>()?,
            bias,
            operands,
            strides: super::input_strides(problem, axes.len()),
        })
    }

    fn run(&self, task: &mut Task<E>, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let (axes, channels) = (&self.plan.axes, self.problem.group);
        let (y, x) = (&axes[axes.len() - 2], &axes[axes.len() - 1]);
        let input = &self.operands.input[task.n * self.strides.0..];
        let per_outer = y.out_step * x.out_step;
        for from in task.rows.clone().step_by(self.plan.block_rows) {
            let rows = from..(from + self.plan.block_rows).min(task.rows.end);
            // cells are read in whole vectors: what lies past the last channel is never stored, but must exist
            let sheets = scratch.block.of(self.sheets.channel_stride * channels + self.kernels.lanes)?;
            let columns = 0..x.grid;
            self.sheets.fill_cells(input, &self.strides.2, channels, &task.outer, rows.clone(), columns, sheets);
            for outer in 0..task.pieces.outer_phases.len() {
                let first = task.pieces.outer_phases[outer] * per_outer;
                for cell in y.cells(&rows) {
                    let (u, ry) = (cell / y.out_step, cell % y.out_step);
                    let phases = &self.phases[first + ry * x.out_step..][..x.out_step];
                    let source = &sheets[(u - rows.start) * self.sheets.pitch * channels..];
                    let at = task.pieces.index(0, outer, cell, 0);
                    let to = task.pieces.cells_of_row(outer, cell);
                    if let Some(to) = E::as_compute_mut(to) {
                        self.run_row(phases, source, at, to);
                    } else {
                        let row = scratch.tile.of(to.len())?;
                        self.run_row(phases, source, at, row);
                        E::narrow_slice(row, to);
                    }
                }
            }
        }
        Ok(())
    }

    /// One row of cells, the first of which has index `at` in the output.
    fn run_row(&self, phases: &[Vec<CellTap>], source: &[E::Compute], at: usize, to: &mut [E::Compute]) {
        let channels = self.problem.group;
        let columns = to.len() / channels;
        for (rx, taps) in phases.iter().enumerate().take(columns) {
            let cells = Cells { source, step: channels, taps, weights: self.weights, bias: &self.bias, channels };
            let count = (columns - rx).div_ceil(phases.len());
            self.kernels.sum_of_cells(&cells, &mut to[rx * channels..], phases.len() * channels, count);
        }
        let (everywhere, placed) = self.operands.tail.split();
        everywhere.apply(to);
        if !placed.is_empty() {
            for (p, cell) in to.chunks_mut(channels).enumerate() {
                placed.apply_cell(0, at + p * channels, cell);
            }
        }
    }
}
