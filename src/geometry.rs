//! Phases: a transposed convolution as small dense convolutions over one shared grid.
//!
//! Let `q = o + pad_begin` be the uncropped position of output `o`. A tap reaches it when `q = s·i + k·d`. Write
//! `q = s·v + r` with the residue `r` in `0..s`: then `k·d ≡ r (mod s)`, and with `m = (k·d - r)/s` the input index is
//! `i = v - m`. So the taps of a residue do not depend on padding or sizes: these only choose the range of `v`, and an
//! output row is the interleaving of its residues, trimmed at both ends.
//!
//! `v` runs from `floor(p/s)` (that of `o = 0`) to `floor((out-1+p)/s)`; `u = v - floor(p/s)` numbers the grid from zero.
//!
//! A forward convolution is the case of one residue, whose grid is the output and whose input index is `u·s + (k·d - p)`.

use crate::spec::{Axis, Direction};

/// A tap of one axis: kernel index `k` reads input `u·in_step + shift` at grid position `u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap {
    /// Index in the kernel.
    pub k: usize,
    /// Input index at grid position zero.
    pub shift: i64,
}

/// The phases of one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisPhases {
    /// Number of grid positions.
    pub grid: usize,
    /// Input cells between neighbouring grid positions: one, or a forward convolution's stride.
    pub in_step: usize,
    /// Output cells between neighbouring grid positions: the number of residues.
    pub out_step: usize,
    /// Output index of residue zero at grid position zero, within `-out_step < origin <= 0`.
    pub origin: i64,
    /// For each residue its taps, by ascending kernel index. An empty list means that only the bias lands there.
    pub residues: Vec<Vec<Tap>>,
    /// Input size.
    pub input: usize,
    /// Output size.
    pub output: usize,
}

impl AxisPhases {
    /// The phases of an axis. Residues are enumerated whole, so the stride should be moderate: see [`AxisPhases::is_compact`].
    pub fn new(axis: &Axis, direction: Direction) -> AxisPhases {
        let (s, d, p) = (axis.stride as i64, axis.dilation as i64, axis.pad_begin);
        let (input, output) = (axis.input, axis.output);
        match direction {
            Direction::Forward => AxisPhases {
                grid: output,
                in_step: axis.stride,
                out_step: 1,
                origin: 0,
                residues: vec![(0..axis.kernel).map(|k| Tap { k, shift: k as i64 * d - p }).collect()],
                input,
                output,
            },
            Direction::Transposed => {
                let first = p.div_euclid(s);
                let last = (output as i64 - 1 + p).div_euclid(s);
                let mut residues = vec![vec![]; axis.stride];
                for k in 0..axis.kernel {
                    let kd = k as i64 * d;
                    residues[(kd % s) as usize].push(Tap { k, shift: first - kd / s });
                }
                AxisPhases {
                    grid: (last - first + 1) as usize,
                    in_step: 1,
                    out_step: axis.stride,
                    origin: s * first - p,
                    residues,
                    input,
                    output,
                }
            }
        }
    }

    /// Whether the residues of an axis are few enough to be enumerated.
    pub fn is_compact(axis: &Axis, direction: Direction) -> bool {
        direction == Direction::Forward || axis.stride <= 64.max(axis.output.min(1024))
    }

    /// A stand-in for an axis that is not there: one cell in, one tap, one cell out.
    pub fn unit() -> AxisPhases {
        let axis = Axis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad_begin: 0 };
        AxisPhases::new(&axis, Direction::Transposed)
    }

    /// Every distinct shift, ascending.
    pub fn shifts(&self) -> Vec<i64> {
        let mut shifts: Vec<i64> = self.residues.iter().flatten().map(|t| t.shift).collect();
        shifts.sort_unstable();
        shifts.dedup();
        shifts
    }

    /// The residues of grid position `u` whose output cell exists: those in `out_step·u + origin + r` within the output.
    pub fn residues_inside(&self, u: usize) -> std::ops::Range<usize> {
        let base = self.out_step as i64 * u as i64 + self.origin;
        let begin = (-base).clamp(0, self.out_step as i64);
        let end = (self.output as i64 - base).clamp(begin, self.out_step as i64);
        begin as usize..end as usize
    }

    /// The grid positions whose input under `shift` exists, as a range within `0..grid`.
    pub fn inside(&self, shift: i64) -> std::ops::Range<usize> {
        let step = self.in_step as i64;
        let begin = crate::spec::ceil_div(-shift, step).clamp(0, self.grid as i64);
        let end = crate::spec::ceil_div(self.input as i64 - shift, step).clamp(begin, self.grid as i64);
        begin as usize..end as usize
    }
}
