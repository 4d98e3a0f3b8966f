//! The taps of each phase: how many there are, and where they are in a block's input and in the filter.

use crate::geometry::{self, Axes, AxisPhases};
use crate::layout::input_tile::InputTiles;
use crate::memory::reserved;
use crate::spec::Problem;
use tract_core::internal::TractResult;
use tract_core::internal::tract_itertools::Itertools;

/// Above this many phases, or for strides that leave most of them empty, the tables outgrow their use.
const MOST_PHASES: usize = 4096;

/// Above this many taps, the same: a kernel may be no more than a shape in a model file when it is planned for, and planning
/// looks at each tap some hundred times.
const MOST_TAPS: usize = 1 << 16;

/// How many taps come before those of each phase, in the order that filters are packed in (residues of all axes, outermost first);
/// one more entry has their total.
pub(crate) fn taps_before(axes: &Axes) -> Vec<usize> {
    let taps = |(axis, residue): (&AxisPhases, usize)| {
        axis.phases.iter().find(|p| p.residue == residue).map_or(0, |p| p.taps.len())
    };
    let counts = axes
        .iter()
        .map(|a| 0..a.out_step)
        .multi_cartesian_product()
        .map(|residues| axes.iter().zip(residues).map(taps).product::<usize>());
    std::iter::once(0)
        .chain(counts.scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }))
        .collect()
}

/// Why a problem's phases and their taps can't be enumerated, if they can't.
pub(crate) fn too_many_phases(problem: &Problem) -> Option<String> {
    let taps = problem.axes.iter().fold(1usize, |n, a| n.saturating_mul(a.kernel));
    if taps > MOST_TAPS {
        return Some(format!("{taps} taps are too many to enumerate"));
    }
    let compact = problem.axes.iter().all(|a| AxisPhases::is_compact(a, problem.direction));
    let phases = problem.axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.stride)).unwrap_or(usize::MAX);
    (!compact || phases > MOST_PHASES).then(|| format!("{phases} phases are too many to enumerate"))
}

/// One phase of a row of outputs: which taps, and where its weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Offsets of the taps in a channel's input tiles.
    pub taps: Vec<usize>,
    /// Where its weights begin in a panel, in units of the panel's height.
    pub weights: usize,
}

/// The taps of all phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapTable {
    /// How a block's input is laid out.
    pub input_tiles: InputTiles,
    /// Over all axes, outermost first.
    pub phases: Vec<Phase>,
    /// Weights of all phases, in units of a panel's height.
    pub weights: usize,
}

impl TapTable {
    /// For blocks that input tiles lay out, whose cells have `cell` elements, or that are read in place. Each tap has `channels` weights.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn new(
        axes: &Axes,
        input_tiles: InputTiles,
        in_place: bool,
        cell: usize,
        channels: usize,
    ) -> TractResult<TapTable> {
        let before = taps_before(axes);
        let offset = |shifts: &[i64]| if in_place { 0 } else { cell * input_tiles.tap(shifts) };
        let phase_of = |picked: &[&geometry::Phase]| -> TractResult<Phase> {
            let mut taps = reserved("taps", picked.iter().map(|p| p.taps.len()).product())?;
            let shifts = picked.iter().map(|p| p.taps.iter().map(|t| t.shift)).multi_cartesian_product();
            taps.extend(shifts.map(|shifts| offset(&shifts)));
            let at = axes.iter().zip(picked).fold(0, |at, (a, p)| at * a.out_step + p.residue);
            Ok(Phase { taps, weights: channels * before[at] })
        };
        let mut phases = reserved("phases", axes.iter().map(|a| a.phases.len()).product())?;
        for picked in axes.iter().map(|a| &a.phases).multi_cartesian_product() {
            phases.push(phase_of(&picked)?);
        }
        Ok(TapTable { phases, weights: before.last().map_or(0, |end| end * channels), input_tiles })
    }
}
