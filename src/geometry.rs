//! Phases: a transposed convolution as small dense convolutions over one shared grid.
//!
//! Write an output position as `o = s·u + j`, with grid position `u` and phase `j` in `0..s`. A tap
//! `k` contributes input `i` to it if `s·i + k·d - p = s·u + j`, that is if `k·d ≡ j + p (mod s)`,
//! at `i = u + (j + p - k·d)/s`. So a phase is a dense convolution with constant shifts and with
//! the taps of one residue `(j + p) mod s`. An output row is the interleaving of its phases.
//!
//! The taps of a residue depend only on kernel, stride and dilation. Padding and sizes only
//! determine the residue of each phase, and the shifts. A filter can therefore be packed once for
//! all input shapes.
//!
//! A forward convolution is the case of one phase. Its grid is the output, and its input index is
//! `u·s + (k·d - p)`.

use crate::ranges::unflatten;
use crate::spec::{Axis, Direction, Problem};
use std::ops::Deref;
use std::sync::Arc;
use tract_core::internal::tract_itertools::Itertools;

/// A tap of one axis: kernel index `k` reads input `u·in_step + shift` at grid position `u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap {
    /// Index in the kernel.
    pub k: usize,
    /// Input index at grid position zero.
    pub shift: i64,
}

/// The output positions `out_step·u + j` of one axis, for all `u`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The residue of its taps' positions `k·dilation` modulo the stride.
    pub residue: usize,
    /// Its taps by ascending kernel index. Without taps, the outputs of the phase are the bias
    /// alone.
    pub taps: Vec<Tap>,
}

/// The phases of all spatial axes, outermost first.
///
/// There are always rows and columns: a missing row axis has size one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(Arc<[AxisPhases]>);

impl Axes {
    /// Builds the phases of a problem's axes.
    pub fn new(problem: &Problem) -> Axes {
        let missing = 2usize.saturating_sub(problem.axes.len());
        let axes = problem.axes.iter().map(|axis| AxisPhases::new(axis, problem.direction));
        Axes(std::iter::repeat_with(AxisPhases::unit).take(missing).chain(axes).collect())
    }

    /// Axes that a test makes up, at least two.
    #[cfg(test)]
    pub(crate) fn of(axes: &[AxisPhases]) -> Axes {
        Axes(axes.into())
    }

    /// The same axes, each changed by `change`, which also gets the axis's index.
    pub(crate) fn map(&self, change: impl Fn(usize, &AxisPhases) -> AxisPhases) -> Axes {
        Axes(self.0.iter().enumerate().map(|(at, axis)| change(at, axis)).collect())
    }

    /// All axes but rows and columns.
    pub fn outer(&self) -> &[AxisPhases] {
        &self.0[..self.0.len() - 2]
    }

    /// The axis before the innermost one.
    pub fn rows(&self) -> &AxisPhases {
        &self.0[self.0.len() - 2]
    }

    /// The innermost axis.
    pub fn columns(&self) -> &AxisPhases {
        &self.0[self.0.len() - 1]
    }

    /// The number of phases over all axes.
    pub fn phases(&self) -> usize {
        self.iter().map(|axis| axis.out_step).product()
    }

    /// The number of taps of all phases.
    pub fn taps(&self) -> usize {
        self.iter().map(AxisPhases::taps).product()
    }

    /// The number of taps of the phase that has the most.
    pub fn most_taps(&self) -> usize {
        self.iter().map(AxisPhases::most_taps).product()
    }

    /// Whether every tap reads the input position with the index of the grid position.
    pub fn are_unshifted(&self) -> bool {
        self.iter().all(|axis| axis.in_step == 1 && axis.shifts() == [0] && axis.grid == axis.input)
    }

    /// The taps of a phase of the outer axes that read inside the input at grid position `at`.
    pub(crate) fn outer_taps(&self, at: &[usize], phase: usize) -> Vec<OuterTap> {
        let outer = self.outer();
        let phases = unflatten(phase, outer.iter().map(|axis| axis.out_step));
        outer.iter().zip(at).zip(phases).fold(vec![OuterTap::default()], |all, ((axis, u), phase)| {
            let (taps, kernel) = (&axis.phases[phase].taps, axis.taps());
            let next = |of: &OuterTap, (index, tap): (usize, &Tap)| {
                let at = usize::try_from((u * axis.in_step) as i64 + tap.shift).ok().filter(|at| *at < axis.input)?;
                Some(OuterTap {
                    index: of.index * taps.len() + index,
                    k: of.k * kernel + tap.k,
                    slice: of.slice * axis.input + at,
                })
            };
            all.iter().flat_map(|of| taps.iter().enumerate().filter_map(move |tap| next(of, tap))).collect()
        })
    }

    /// Outer axes, rows and columns.
    pub fn parts(&self) -> (&[AxisPhases], &AxisPhases, &AxisPhases) {
        (self.outer(), self.rows(), self.columns())
    }
}

impl Deref for Axes {
    type Target = [AxisPhases];

    fn deref(&self) -> &[AxisPhases] {
        &self.0
    }
}

/// A tap of all outer axes together. The indices are flat, the outermost axis first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OuterTap {
    /// Index among the taps of its phase.
    pub index: usize,
    /// Index in the kernel.
    pub k: usize,
    /// Index of the input position that it reads.
    pub slice: usize,
}

/// The phases of one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisPhases {
    /// Number of grid positions.
    pub grid: usize,
    /// Input positions between adjacent grid positions: one, or a forward convolution's stride.
    pub in_step: usize,
    /// Output positions between adjacent grid positions: the number of phases.
    pub out_step: usize,
    /// The phases, in order of their output positions at grid position zero.
    pub phases: Vec<Phase>,
    /// Input size.
    pub input: usize,
    /// Output size.
    pub output: usize,
}

impl AxisPhases {
    /// Builds the phases of an axis. All are enumerated, so the stride should be moderate: see
    /// [`AxisPhases::is_compact`].
    pub fn new(axis: &Axis, direction: Direction) -> AxisPhases {
        let (s, d, p) = (axis.stride as i64, axis.dilation as i64, axis.pad_begin);
        let (input, output) = (axis.input, axis.output);
        match direction {
            Direction::Forward => {
                let taps = (0..axis.kernel).map(|k| Tap { k, shift: k as i64 * d - p }).collect();
                AxisPhases {
                    grid: output,
                    in_step: axis.stride,
                    out_step: 1,
                    phases: vec![Phase { residue: 0, taps }],
                    input,
                    output,
                }
            }
            Direction::Transposed => {
                let mut by_residue = vec![vec![]; axis.stride];
                for k in 0..axis.kernel {
                    by_residue[(k as i64 * d % s) as usize].push(k);
                }
                let phase = |j: i64| {
                    let residue = (j + p).rem_euclid(s) as usize;
                    let taps = &by_residue[residue];
                    // Exact, as the numerator's terms have the same residue modulo the stride.
                    Phase {
                        residue,
                        taps: taps.iter().map(|k| Tap { k: *k, shift: (j + p - *k as i64 * d) / s }).collect(),
                    }
                };
                AxisPhases {
                    grid: output.div_ceil(axis.stride),
                    in_step: 1,
                    out_step: axis.stride,
                    phases: (0..s).map(phase).collect(),
                    input,
                    output,
                }
            }
        }
    }

    /// Whether the phases of an axis are few enough to be enumerated.
    ///
    /// It depends on the stride only, so that a filter packed by phases serves every input shape.
    pub fn is_compact(axis: &Axis, direction: Direction) -> bool {
        direction == Direction::Forward || axis.stride <= 1024
    }

    /// A stand-in for a missing axis: one input position, one tap, one output position.
    pub fn unit() -> AxisPhases {
        let axis = Axis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad_begin: 0 };
        AxisPhases::new(&axis, Direction::Transposed)
    }

    /// Every distinct shift, ascending.
    pub fn shifts(&self) -> Vec<i64> {
        let mut shifts: Vec<i64> = self.phases.iter().flat_map(|p| &p.taps).map(|t| t.shift).collect();
        shifts.sort_unstable();
        shifts.dedup();
        shifts
    }

    /// The phases whose output position exists at grid position `u`: all, except at the last
    /// position.
    pub fn phases_inside(&self, u: usize) -> std::ops::Range<usize> {
        0..self.out_step.min(self.output - self.out_step * u)
    }

    /// The output positions of a range of grid positions.
    pub fn outputs(&self, grid: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        let at = |u: usize| (u * self.out_step).min(self.output);
        at(grid.start)..at(grid.end)
    }

    /// The taps of a phase that read inside the input at some position of `grid`.
    ///
    /// They are a range, as shifts rise or fall with the kernel index.
    pub fn taps_inside(&self, phase: usize, grid: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        let taps = &self.phases[phase].taps;
        let reads = |tap: &Tap| {
            let inside = self.inside(tap.shift);
            inside.start.max(grid.start) < inside.end.min(grid.end)
        };
        let begin = taps.iter().position(reads).unwrap_or(0);
        begin..taps.iter().rposition(reads).map_or(begin, |last| last + 1)
    }

    /// The number of taps of all phases.
    pub fn taps(&self) -> usize {
        self.phases.iter().map(|phase| phase.taps.len()).sum()
    }

    /// The number of taps of the phase that has the most.
    pub fn most_taps(&self) -> usize {
        self.phases.iter().map(|phase| phase.taps.len()).max().unwrap_or(0)
    }

    /// The fewest taps that read inside the input at a result of a phase with several taps. `None`
    /// where no phase has several. A result that reads nothing counts as one that reads a single tap.
    pub fn fewest_taps_inside(&self) -> Option<usize> {
        let several = self.phases.iter().enumerate().filter(|(_, phase)| phase.taps.len() > 1);
        let fewest = several.filter_map(|(at, phase)| {
            let positions = self.output.saturating_sub(at).div_ceil(self.out_step);
            // The count of taps inside changes where the range of a tap begins or ends.
            let inside = phase.taps.iter().map(|tap| self.inside(tap.shift));
            let changes = inside.flat_map(|range| [(range.start, 1), (range.end, -1)]).chain([(0, 0)]);
            let at_position = changes
                .filter(|(position, _)| *position < positions)
                .sorted()
                .coalesce(|a, b| if a.0 == b.0 { Ok((a.0, a.1 + b.1)) } else { Err((a, b)) });
            let counts = at_position.scan(0, |count, (_, change): (usize, isize)| {
                *count += change;
                Some(*count as usize)
            });
            counts.min()
        });
        fewest.min().map(|taps| taps.max(1))
    }

    /// Splits the grid into runs of positions with the same taps inside the input. Each run is
    /// returned with those taps of phase `phase`, as a range.
    pub fn runs(&self, phase: usize) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
        let inside = self.phases[phase].taps.iter().map(|tap| self.inside(tap.shift));
        let mut bounds: Vec<usize> = inside.flat_map(|grid| [grid.start, grid.end]).chain([0, self.grid]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let run = |bounds: &[usize]| {
            let grid = bounds[0]..bounds[1];
            (grid.clone(), self.taps_inside(phase, &grid))
        };
        bounds.windows(2).map(run).collect()
    }

    /// The grid positions at which a tap with this shift reads inside the input, as a range within
    /// `0..grid`.
    pub fn inside(&self, shift: i64) -> std::ops::Range<usize> {
        let step = self.in_step as i64;
        let begin = crate::ranges::ceil_div(-shift, step).clamp(0, self.grid as i64);
        let end = crate::ranges::ceil_div(self.input as i64 - shift, step).clamp(begin, self.grid as i64);
        begin as usize..end as usize
    }

    /// The fraction of all (grid position, tap) pairs that read inside the input.
    pub fn share_inside(&self) -> f64 {
        let taps: Vec<_> = self.phases.iter().flat_map(|p| &p.taps).collect();
        let inside: usize = taps.iter().map(|t| self.inside(t.shift).len()).sum();
        inside as f64 / (self.grid * taps.len()).max(1) as f64
    }

    /// The number of grid positions, over all phases, at which some tap reads outside the input.
    pub fn near_ends(&self) -> usize {
        let of_phase = |phase: &Phase| {
            let inside = phase.taps.iter().map(|tap| self.inside(tap.shift));
            let all = inside.reduce(|a, b| a.start.max(b.start)..a.end.min(b.end)).unwrap_or(0..self.grid);
            self.grid - all.len()
        };
        self.phases.iter().map(of_phase).sum()
    }
}
