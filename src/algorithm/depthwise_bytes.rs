//! Convolutions of bytes with one input channel per group, whose results are bytes.
//!
//! It is not in the list of algorithms: their results have the type of their data's sums. A block of
//! rows of a channel is copied with its padding, which holds the zero point. So the sum of
//! `(x − zero point)·w` is that of `x·w` less the same term for all results of a phase.

use crate::compute::Quad;
use crate::geometry::{Axes, AxisPhases, Phase};
use crate::kernel::{BYTE_STEPS, ByteKernels, ByteRows, ByteScales, ByteSums};
use crate::layout::taps::too_many_phases;
use crate::memory::reserved;
use crate::parallel::{parallel, threads};
use crate::ranges::{blocks_of, even_blocks};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, DeconvSpec, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// Bytes of a copy that stay in the caches.
const COPY_BYTES: usize = 64 * 1024;

/// The most positions that taps of an axis may reach over, for each tap.
const MOST_REACH: usize = 8;

/// Adjacent taps that one product of a vector has.
const QUAD: usize = 4;

/// Rows shorter than this share of a vector are computed together, padding included.
const SHORT: f64 = 0.7;

/// The estimated cost of a vector of results without its products, in vector multiply-adds.
const SCALED: u64 = 30;

/// Tasks per thread.
const TASKS: usize = 4;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DepthwiseBytes {
    axes: Axes,
    isa: Isa,
    /// Grid rows per block.
    block_rows: usize,
    /// Bytes per row of the copy.
    pitch: usize,
    /// Whether all results of a block are computed as one row of the copy.
    whole: bool,
    cost: u64,
}

/// The weights of a layer. They depend on the spec only.
#[derive(Debug)]
pub(crate) struct ByteFilter {
    /// For each output channel and residue, the weights of its taps in the order of [`quads`].
    weights: Vec<Quad>,
    /// For each output channel and residue, the sum of its weights.
    totals: Vec<i32>,
    /// For each output channel, the sum of the magnitudes of its weights.
    magnitudes: Vec<i64>,
    /// The first weights of each residue within a channel, and the number of weights of a channel.
    firsts: Vec<usize>,
}

/// Bytes of a channel, and how they are read.
#[derive(Clone, Copy)]
pub(crate) struct ByteData<'a> {
    pub from: &'a [u8],
    /// The bits that are flipped, so that all are `u8`.
    pub flip: u8,
    /// The zero point, flipped.
    pub zero_point: u8,
}

/// The first plane of a task, its block of rows, and the rows of its planes in the output.
type RowTask<'a> = (usize, &'a [Range<usize>], &'a mut [u8]);

/// Adjacent taps of an axis.
struct AxisQuad {
    /// The shift of the first one.
    shift: i64,
    /// Their indices in the kernel.
    taps: [Option<usize>; QUAD],
}

/// The taps of a phase of the innermost axis, by ascending shift.
fn quads(phase: &Phase) -> Vec<AxisQuad> {
    let mut quads: Vec<AxisQuad> = vec![];
    for tap in phase.taps.iter().sorted_by_key(|tap| tap.shift) {
        match quads.last_mut().filter(|quad| tap.shift < quad.shift + QUAD as i64) {
            Some(quad) => quad.taps[(tap.shift - quad.shift) as usize] = Some(tap.k),
            None => quads.push(AxisQuad { shift: tap.shift, taps: [Some(tap.k), None, None, None] }),
        }
    }
    quads
}

/// The least shift of an axis, and the positions from it to the largest one.
fn shifts(axis: &AxisPhases) -> (i64, usize) {
    let shifts = || axis.phases.iter().flat_map(|phase| phase.taps.iter().map(|tap| tap.shift));
    let (least, most) = (shifts().min().unwrap_or(0), shifts().max().unwrap_or(0));
    (least, (most - least) as usize)
}

/// The rows of the copy of a block: those with the same residue of the row step follow each other.
fn copied_rows(axis: &AxisPhases, rows: usize) -> usize {
    rows + shifts(axis).1 / axis.in_step
}

impl DepthwiseBytes {
    /// Decides on the parameters for a problem.
    ///
    /// # Errors
    /// The reason why it declines.
    pub fn propose(problem: &Problem, isa: Isa) -> Result<DepthwiseBytes, String> {
        if problem.group_in != 1 {
            return Err(format!("{} input channels per group, not one", problem.group_in));
        }
        if problem.data_format != DataFormat::Ncx || problem.axes.len() > 2 {
            return Err("channels-last data, or three axes".to_string());
        }
        if let Some(reason) = too_many_phases(problem) {
            return Err(reason);
        }
        let axes = Axes::new(problem);
        let (y, x) = (axes.rows(), axes.columns());
        if !BYTE_STEPS.contains(&x.in_step) {
            return Err(format!("a stride of {} along rows", x.in_step));
        }
        // Copies of sparse taps would have many bytes that nothing reads.
        if [y, x].iter().any(|axis| shifts(axis).1 > MOST_REACH * axis.most_taps().max(1)) {
            return Err("taps far apart".to_string());
        }
        let kernels = ByteKernels::of(isa);
        let width = (x.grid - 1) * x.in_step + shifts(x).1 + 1;
        let pitch = width.next_multiple_of(x.in_step);
        let per_row = pitch.saturating_mul(y.in_step);
        let fixed = per_row.saturating_mul(copied_rows(y, 0));
        let block_rows = (COPY_BYTES.saturating_sub(fixed) / per_row).clamp(1, y.grid);
        let vectors = x.grid.div_ceil(kernels.results);
        let whole = (pitch / x.in_step) as f64 <= SHORT * (vectors * kernels.results) as f64;
        let products: usize = x.phases.iter().map(|phase| quads(phase).len()).sum::<usize>() * y.taps();
        let vectors = (y.grid * vectors) as u64;
        let scaled = SCALED * (x.out_step * y.out_step) as u64;
        let planes = (problem.batch * problem.group * problem.group_out) as u64;
        let cost = vectors.saturating_mul(scaled + 4 * products as u64).saturating_mul(planes);
        Ok(DepthwiseBytes { isa, block_rows, pitch, whole, cost, axes })
    }

    /// The decision in words.
    pub fn explain(&self) -> String {
        let how = if self.whole { "several rows" } else { "a row" };
        format!("depthwise_bytes on {}, {how} at a time", self.isa)
    }

    /// Bytes of working memory per thread.
    pub fn working_bytes(&self) -> usize {
        let (copy, results) = self.sizes(self.block_rows);
        copy.saturating_add(results.saturating_mul(self.axes.columns().out_step))
    }

    /// The bytes of a block's copy, and of the results of one of its phases in a row.
    fn sizes(&self, rows: usize) -> (usize, usize) {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let kernels = ByteKernels::of(self.isa);
        let results = if self.whole { rows * (self.pitch / x.in_step) } else { rows * x.grid };
        let copied = copied_rows(y, rows).saturating_mul(self.pitch).saturating_mul(y.in_step);
        // Vectors read beyond the last row.
        (copied.saturating_add((kernels.results + QUAD) * x.in_step + self.pitch + QUAD), results)
    }

    /// Packs a filter, in the spec's format. `weight` returns a value that fits `i8`.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn pack(&self, spec: &DeconvSpec, weight: impl Fn(usize) -> i32) -> TractResult<ByteFilter> {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let strides = spec.filter_strides();
        let of_kernel = |ax: usize| {
            let missing = 2 - strides.kernel.len();
            ax.checked_sub(missing).map_or(0, |ax| strides.kernel[ax])
        };
        fn by_residue(axis: &AxisPhases) -> impl Iterator<Item = &Phase> {
            axis.phases.iter().sorted_by_key(|phase| phase.residue)
        }
        // The kernel indices of each residue's weights.
        let residues: Vec<Vec<[Option<usize>; QUAD]>> = by_residue(y)
            .cartesian_product(by_residue(x).collect::<Vec<_>>())
            .map(|(rows, columns)| {
                let quads = quads(columns);
                let at = |row: usize, column: usize| row * of_kernel(0) + column * of_kernel(1);
                let rows = rows.taps.iter().map(|tap| tap.k);
                rows.cartesian_product(&quads).map(|(row, quad)| quad.taps.map(|k| k.map(|k| at(row, k)))).collect()
            })
            .collect();
        let per_channel: usize = residues.iter().map(Vec::len).sum();
        let channels = spec.out_channels;
        let mut weights = reserved("filter", channels.saturating_mul(per_channel))?;
        let mut totals = reserved("filter", channels.saturating_mul(residues.len()))?;
        let mut magnitudes = reserved("filter", channels)?;
        for (g, o) in (0..spec.group).cartesian_product(0..spec.group_out()) {
            let base = g * strides.group + o * strides.output;
            let mut magnitude = 0;
            for residue in &residues {
                let first = weights.len();
                for quad in residue {
                    weights.push(Quad::of(quad.map(|at| at.map_or(0, |at| weight(base + at) as u8))));
                }
                let each = || weights[first..].iter().flat_map(|quad: &Quad| quad.bits().to_le_bytes());
                totals.push(each().map(|weight| i32::from(weight as i8)).sum());
                magnitude += each().map(|weight| i64::from((weight as i8).unsigned_abs())).sum::<i64>();
            }
            magnitudes.push(magnitude);
        }
        let mut firsts = vec![0];
        firsts.extend(residues.iter().scan(0, |sum, residue| {
            *sum += residue.len();
            Some(*sum)
        }));
        Ok(ByteFilter { weights, totals, magnitudes, firsts })
    }

    /// Writes the whole output. There is one scale per output channel.
    ///
    /// # Errors
    /// Slices of other sizes than the problem's, or failure to allocate memory.
    pub fn run(
        &self,
        problem: &Problem,
        filter: &ByteFilter,
        scales: &ByteScales,
        data: ByteData,
        to: &mut [u8],
    ) -> TractResult<()> {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let channels = problem.group * problem.group_out;
        let planes = problem.batch * channels;
        let (input, output) = (y.input * x.input, y.output * x.output);
        ensure!(
            (data.from.len(), to.len(), scales.channels())
                == (problem.batch * problem.group * input, planes * output, channels)
                && filter.magnitudes.len() == channels,
            "output: bytes={}, input of {} bytes, {} scales, they are not those of the plan",
            to.len(),
            data.from.len(),
            scales.channels()
        );
        if to.is_empty() {
            return Ok(());
        }
        // Tasks of whole planes, or of blocks of rows.
        let split = planes < threads(self.cost) || self.block_rows < y.grid;
        let rows = match split {
            true => self.block_rows.min(y.grid.div_ceil(threads(self.cost).div_ceil(planes).max(1))).max(1),
            false => y.grid,
        };
        let blocks: Vec<Range<usize>> = blocks_of(y.grid, rows);
        let phases = self.phases();
        let mut tasks: Vec<RowTask> = vec![];
        if let [_] = blocks[..] {
            let mut rest = to;
            for planes in even_blocks(planes, (TASKS * threads(self.cost)).min(planes)) {
                let (first, left) = rest.split_at_mut(planes.len() * output);
                tasks.push((planes.start, &blocks, first));
                rest = left;
            }
        } else {
            for (plane, mut rest) in to.chunks_mut(output).enumerate() {
                for block in blocks.chunks(1) {
                    let (first, left) = rest.split_at_mut(y.outputs(&block[0]).len() * x.output);
                    tasks.push((plane, block, first));
                    rest = left;
                }
            }
        }
        parallel(&mut tasks, self.cost, &|(first, block, to)| {
            let rows = &block[0];
            let mut work = Work::new(self, rows.clone(), &phases, data)?;
            for (at, to) in to.chunks_mut(y.outputs(rows).len() * x.output).enumerate() {
                let (image, channel) = ((*first + at) / channels, (*first + at) % channels);
                let plane = image * problem.group + channel / problem.group_out;
                work.copy(&data.from[plane * input..][..input]);
                work.run(filter, channel, scales, to);
            }
            Ok(())
        })
    }

    /// The phases of rows, and of columns within them.
    fn phases(&self) -> Vec<ByteRowPhase> {
        let (y, x) = (self.axes.rows(), self.axes.columns());
        let (least_y, least_x) = (shifts(y).0, shifts(x).0);
        let of = |rows: &Phase, columns: &Phase| {
            // The rows of a copy, as residue and index, and the columns.
            let rows = rows.taps.iter().map(|tap| {
                let row = (tap.shift - least_y) as usize;
                (row % y.in_step, row / y.in_step)
            });
            let columns: Vec<usize> = quads(columns).iter().map(|quad| (quad.shift - least_x) as usize).collect();
            rows.cartesian_product(columns)
                .map(|((residue, row), column)| (residue, row * self.pitch + column))
                .collect()
        };
        y.phases
            .iter()
            .map(|rows| {
                let columns = x.phases.iter();
                columns.map(|columns| (rows.residue * x.out_step + columns.residue, of(rows, columns))).collect()
            })
            .collect()
    }
}

/// For each phase of a row: its residue, and for each of its [`quads`] the residue of its row and the
/// offset from there.
type ByteRowPhase = Vec<(usize, Vec<(usize, usize)>)>;

/// The memory of a task, for blocks of the same rows.
struct Work<'a> {
    plan: &'a DepthwiseBytes,
    kernels: ByteKernels,
    rows: Range<usize>,
    data: ByteData<'a>,
    copy: Vec<u8>,
    /// Results of each phase of a row. Empty if they are written in place.
    results: Vec<Vec<u8>>,
    /// For each phase of rows and of columns: its residue, and its offsets in the copy.
    phases: Vec<Vec<(usize, Vec<usize>)>>,
}

impl<'a> Work<'a> {
    fn new(
        plan: &'a DepthwiseBytes,
        rows: Range<usize>,
        phases: &[ByteRowPhase],
        data: ByteData<'a>,
    ) -> TractResult<Work<'a>> {
        let (y, x) = (plan.axes.rows(), plan.axes.columns());
        let (size, of_phase) = plan.sizes(rows.len());
        let mut copy = reserved("working memory", size)?;
        copy.resize(size, data.zero_point);
        let in_place = !plan.whole && x.out_step == 1;
        let mut results = vec![];
        for _ in 0..if in_place { 0 } else { x.out_step } {
            let mut of: Vec<u8> = reserved("working memory", of_phase)?;
            of.resize(of_phase, 0);
            results.push(of);
        }
        let of_residue = copied_rows(y, rows.len()) * plan.pitch;
        let at = |(residue, offset): &(usize, usize)| residue * of_residue + offset;
        let phases = phases
            .iter()
            .map(|row| row.iter().map(|(residue, offsets)| (*residue, offsets.iter().map(at).collect())).collect())
            .collect();
        Ok(Work { plan, kernels: ByteKernels::of(plan.isa), rows, data, copy, results, phases })
    }

    /// Copies the rows that a block of a plane reads. Padding stays what it is.
    fn copy(&mut self, plane: &[u8]) {
        let DepthwiseBytes { axes, pitch, .. } = self.plan;
        let (y, x) = (axes.rows(), axes.columns());
        let (least_y, least_x) = (shifts(y).0, shifts(x).0);
        let of_residue = copied_rows(y, self.rows.len());
        let columns = (-least_x).max(0) as usize;
        let first_column = least_x.max(0) as usize;
        let len = x.input.saturating_sub(first_column).min(pitch.saturating_sub(columns));
        if len == 0 {
            return;
        }
        let step = y.in_step as i64;
        for residue in 0..y.in_step {
            // The input row of the residue's first one, and the ones inside.
            let first = (self.rows.start * y.in_step + residue) as i64 + least_y;
            let begin = crate::ranges::ceil_div(-first, step).clamp(0, of_residue as i64);
            let end = crate::ranges::ceil_div(y.input as i64 - first, step).clamp(begin, of_residue as i64);
            if begin == end {
                continue;
            }
            let from = &plane[(first + begin * step) as usize * x.input + first_column..];
            let to = &mut self.copy[(residue * of_residue + begin as usize) * pitch + columns..];
            let rows = ByteRows { count: (end - begin) as usize, len, steps: [y.in_step * x.input, *pitch] };
            self.kernels.copy(from, self.data.flip, rows, to);
        }
    }

    /// Computes the results of a channel from the copy.
    fn run(&mut self, filter: &ByteFilter, channel: usize, scales: &ByteScales, to: &mut [u8]) {
        let Work { plan: DepthwiseBytes { axes, pitch, whole, .. }, kernels, rows, data, copy, results, phases } = self;
        let (y, x) = (axes.rows(), axes.columns());
        let (weights, totals) = filter.of(channel);
        let row = y.out_step * x.output;
        for (phase, phases) in phases.iter().enumerate() {
            let Some(left) = (y.output - rows.start * y.out_step).checked_sub(phase) else { break };
            let count = left.div_ceil(y.out_step).min(rows.len());
            if count == 0 {
                break;
            }
            let to = &mut to[phase * x.output..];
            let each = |(residue, offsets): &(usize, Vec<usize>), rows: ByteRows, to: &mut [u8]| {
                let weights = &weights[filter.firsts[*residue]..filter.firsts[residue + 1]];
                let start = -totals[*residue] * i32::from(data.zero_point);
                kernels.sums(&ByteSums { offsets, weights, start, step: x.in_step, scales, channel }, copy, rows, to);
            };
            if results.is_empty() {
                each(&phases[0], ByteRows { count, len: x.grid, steps: [*pitch, row] }, to);
                continue;
            }
            // Results of a phase from one row to the next.
            let (rows, next) = match whole {
                true => {
                    let next = pitch / x.in_step;
                    (ByteRows { count: 1, len: (count - 1) * next + x.grid, steps: [0, 0] }, next)
                }
                false => (ByteRows { count, len: x.grid, steps: [*pitch, x.grid] }, x.grid),
            };
            phases.iter().zip(results.iter_mut()).for_each(|(phase, results)| each(phase, rows, results));
            if let [results] = &results[..] {
                kernels.copy(results, 0, ByteRows { count, len: x.output, steps: [next, row] }, to);
                continue;
            }
            for (at, to) in to.chunks_mut(row).enumerate().take(count) {
                let from: SmallVec<[&[u8]; 4]> = results.iter().map(|results| &results[at * next..]).collect();
                kernels.interleave(&from, &mut to[..x.output]);
            }
        }
    }
}

impl ByteFilter {
    /// The largest magnitude of a sum of a channel.
    pub fn largest_sum(&self, channel: usize) -> f64 {
        self.magnitudes[channel] as f64 * 255.0
    }

    /// The weights of a channel, and their sums by residue.
    fn of(&self, channel: usize) -> (&[Quad], &[i32]) {
        let residues = self.firsts.len() - 1;
        let count = self.firsts[residues];
        (&self.weights[channel * count..][..count], &self.totals[channel * residues..][..residues])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{ChannelScale, Narrowing};
    use crate::spec::{Direction, FilterFormat, Padding};

    struct Random(u64);

    impl Random {
        fn below(&mut self, most: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % most
        }
    }

    /// Draws a layer with sizes around those of vectors.
    fn draw(random: &mut Random) -> Option<(DeconvSpec, Problem)> {
        let direction = [Direction::Forward, Direction::Transposed][random.below(2)];
        let (rank, group, out) = (1 + random.below(2), 1 + random.below(4), 1 + random.below(2));
        let mut list =
            |values: &[usize]| -> TVec<usize> { (0..rank).map(|_| values[random.below(values.len())]).collect() };
        let (kernel, strides, dilations) =
            (list(&[1, 2, 3, 4, 5, 7, 9]), list(&[1, 1, 2, 2, 3, 4]), list(&[1, 1, 2, 3]));
        let mut sizes = list(&[1, 3, 9, 14]);
        let last = rank - 1;
        sizes[last] = [1, 5, 15, 16, 28, 33, 63, 64, 65, 130, 200][random.below(11)];
        let mut pads = || (0..rank).map(|_| random.below(8) as i64 - 2).collect();
        let (begin, end) = (pads(), pads());
        let spec = DeconvSpec {
            direction,
            data_format: DataFormat::Ncx,
            filter_format: if direction == Direction::Forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: group,
            out_channels: group * out,
            group,
            kernel,
            strides,
            dilations,
            padding: Padding::Explicit { begin, end },
            output_padding: tvec!(0; rank),
        };
        let mut shape = tvec!(1 + random.below(2), group);
        shape.extend(sizes);
        let problem = spec.problem(&shape, None).ok()?;
        (!problem.output_shape().contains(&0)).then_some((spec, problem))
    }

    /// The sums of `(x − zero point)·w`, in the order of the output.
    fn sums(spec: &DeconvSpec, problem: &Problem, x: &[i32], w: &[i32]) -> Vec<i64> {
        let (strides, shape) = (spec.filter_strides(), problem.output_shape());
        let input: Vec<usize> = problem.axes.iter().map(|axis| axis.input).collect();
        let outputs = shape.iter().map(|size| 0..*size).multi_cartesian_product();
        let sum = |at: Vec<usize>| {
            let (n, channel, at) = (at[0], at[1], &at[2..]);
            let (g, o) = (channel / problem.group_out, channel % problem.group_out);
            let taps = spec.kernel.iter().map(|size| 0..*size).multi_cartesian_product();
            let product = |tap: Vec<usize>| {
                let mut from = n * problem.group + g;
                for (ax, axis) in problem.axes.iter().enumerate() {
                    let (o, tap) = (at[ax] as i64, (tap[ax] * axis.dilation) as i64);
                    let i = match spec.direction {
                        Direction::Forward => o * axis.stride as i64 + tap - axis.pad_begin,
                        Direction::Transposed => {
                            let i = o + axis.pad_begin - tap;
                            if i.rem_euclid(axis.stride as i64) == 0 { i / axis.stride as i64 } else { -1 }
                        }
                    };
                    if !(0..input[ax] as i64).contains(&i) {
                        return 0;
                    }
                    from = from * input[ax] + i as usize;
                }
                let k: usize = tap.iter().zip(&strides.kernel).map(|(k, stride)| k * stride).sum();
                i64::from(x[from]) * i64::from(w[g * strides.group + o * strides.output + k])
            };
            taps.map(product).sum()
        };
        outputs.map(sum).collect()
    }

    #[test]
    fn results_are_those_of_the_definition() -> TractResult<()> {
        let mut random = Random(1);
        let (mut taken, mut steps) = (0, vec![]);
        for _ in 0..120 {
            let Some((spec, problem)) = draw(&mut random) else { continue };
            let (mut bytes, mut weights) = (vec![], vec![]);
            bytes.resize_with(problem.input_shape().iter().product(), || random.below(256) as u8);
            weights.resize_with(spec.filter_shape().iter().product(), || random.below(256) as i32 - 128);
            let (signed_x, signed_y) = (random.below(2) == 0, random.below(2) == 0);
            let range = |signed: bool| if signed { (-128, 127) } else { (0, 255) };
            let value = |byte: u8| if signed_x { i32::from(byte as i8) } else { i32::from(byte) };
            let zero_point = random.below(256) as u8;
            let differences: Vec<i32> = bytes.iter().map(|byte| value(*byte) - value(zero_point)).collect();
            let want = sums(&spec, &problem, &differences, &weights);
            let (low, high) = range(signed_y);
            let (low, high) = (low + random.below(2) as i32 * 70, high);
            let to_zero = low + random.below(100) as i32;
            let limits = (f64::from(low - to_zero), f64::from(high - to_zero));
            let narrowing = Narrowing { limits, zero_point: to_zero };
            // Scales whose results have many ties, usual ones, and ones that vectors do not compute.
            let factors = [0.5, 0.25, 1.0 / 256.0, 0.0037, 1e-3, -0.01, 1e9, 0.0];
            let mut scale = |_| ChannelScale {
                before: random.below(1000) as f64 - 500.0,
                factor: factors[random.below(factors.len())],
                term: [0.0, 0.5, -3.25][random.below(3)],
            };
            let scales: Vec<ChannelScale> = (0..spec.out_channels).map(&mut scale).collect();
            let plane: usize = problem.axes.iter().map(|axis| axis.output).product();
            let want = want.iter().enumerate().map(|(at, sum)| {
                let ChannelScale { before, factor, term } = scales[at / plane % spec.out_channels];
                let real = (*sum as f64 + before) * factor + term;
                real.clamp(limits.0, limits.1).round_ties_even() as i32 + to_zero
            });
            let want: Vec<i32> = want.collect();
            for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
                let Ok(plan) = DepthwiseBytes::propose(&problem, isa) else { continue };
                let small = DepthwiseBytes { block_rows: 2.min(plan.block_rows), ..plan.clone() };
                let other = DepthwiseBytes { whole: !plan.whole, ..plan.clone() };
                for plan in [plan, small, other] {
                    let filter = plan.pack(&spec, |at| weights[at])?;
                    let most = |c| filter.largest_sum(c);
                    let scales = ByteScales::new(scales.clone(), narrowing, signed_y, None, most)?;
                    let mut found = vec![0xa5; want.len()];
                    let flip = if signed_x { 0x80 } else { 0 };
                    let data = ByteData { from: &bytes, flip, zero_point: zero_point ^ flip };
                    plan.run(&problem, &filter, &scales, data, &mut found)?;
                    let found =
                        found.iter().map(|byte| if signed_y { i32::from(*byte as i8) } else { i32::from(*byte) });
                    assert!(found.eq(want.iter().copied()), "{plan:?} {problem:?}");
                }
                taken += 1;
                steps.push((problem.direction, plan_steps(&problem)));
            }
        }
        for direction in [Direction::Forward, Direction::Transposed] {
            for step in [1, 2, 4] {
                assert!(steps.contains(&(direction, step)), "{direction:?} {step}");
            }
        }
        assert!(taken > 60, "{taken}");
        Ok(())
    }

    fn plan_steps(problem: &Problem) -> usize {
        problem.axes.last().map_or(1, |axis| axis.stride)
    }

    #[test]
    fn other_layers_are_declined() {
        let mut random = Random(3);
        let (_, problem) = std::iter::repeat_with(|| draw(&mut random)).flatten().next().expect("a layer");
        let dense = Problem { group_in: 2, ..problem.clone() };
        let last = Problem { data_format: DataFormat::Nxc, ..problem.clone() };
        let mut far = problem;
        far.axes[0].dilation = 100;
        far.axes[0].kernel = 3;
        for problem in [dense, last, far] {
            assert!(DepthwiseBytes::propose(&problem, Isa::Portable).is_err(), "{problem:?}");
        }
    }
}
