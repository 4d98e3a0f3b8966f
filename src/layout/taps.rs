//! The taps of each phase: their number, and their offsets in a block's input and in the filter.

use crate::geometry::{self, Axes, AxisPhases};
use crate::layout::input_tile::InputTiles;
use crate::memory::reserved;
use crate::spec::Problem;
use tract_core::internal::TractResult;
use tract_core::internal::tract_itertools::Itertools;

/// The most phases for which tables are built.
///
/// Beyond this, or if the strides leave most phases empty, the tables cost more than they save.
const MOST_PHASES: usize = 4096;

/// The most taps for which tables are built.
///
/// A model file can declare any kernel shape, and planning visits each tap about a hundred times.
const MOST_TAPS: usize = 1 << 16;

/// The number of taps before each phase, in the order of packed filters (residues of all axes,
/// outermost first).
///
/// One more entry holds the total.
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

/// The reason why a problem's phases and taps can't be enumerated, if they can't.
pub(crate) fn too_many_phases(problem: &Problem) -> Option<String> {
    let taps = problem.axes.iter().fold(1usize, |n, a| n.saturating_mul(a.kernel));
    if taps > MOST_TAPS {
        return Some(format!("{taps} taps are too many to enumerate"));
    }
    let compact = problem.axes.iter().all(|a| AxisPhases::is_compact(a, problem.direction));
    let phases = problem.axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.stride)).unwrap_or(usize::MAX);
    (!compact || phases > MOST_PHASES).then(|| format!("{phases} phases are too many to enumerate"))
}

/// One phase of an output row: its taps and the offset of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Offsets of the taps in a channel's input tiles.
    pub taps: Vec<usize>,
    /// The offset of its weights in a panel, in units of the panel's height.
    pub weights: usize,
}

/// The taps of all phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TapTable {
    /// The layout of a block's input.
    pub input_tiles: InputTiles,
    /// The phases over all axes, outermost first.
    pub phases: Vec<Phase>,
    /// Weights of all phases, in units of a panel's height.
    pub weights: usize,
}

impl TapTable {
    /// Builds the table for blocks that are read from input tiles, or directly from the input if
    /// `in_place`.
    ///
    /// `depth` is the number of elements per input tile pixel. `channels` is the number of weights
    /// per tap.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn new(
        axes: &Axes,
        input_tiles: InputTiles,
        in_place: bool,
        depth: usize,
        channels: usize,
    ) -> TractResult<TapTable> {
        let before = taps_before(axes);
        let offset = |shifts: &[i64]| if in_place { 0 } else { depth * input_tiles.tap(shifts) };
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
