//! A matrix-vector product for a single input position. It streams the weights once, in storage
//! order.
//!
//! Each (output channel, kernel position) pair is a column. Lanes are columns.

use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::kernel::{Dispatch, Kernels, Source, Start, TilePositions};
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::strides_of;
use crate::memory::zeros;
use crate::parallel::parallel;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Direction, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// Vectors of columns per register tile.
const VECTORS: usize = 4;

/// The longest accumulation chain. It is short because weights come from memory, and the time to
/// finish a sum is hidden behind their loads.
const CHAIN: usize = 32;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gemv {
    /// Columns per panel.
    pub width: usize,
    /// Whether the weights exceed L2.
    pub streamed: bool,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
}

impl Algorithm for Gemv {
    type Tables = ();

    fn propose(query: &Query) -> Result<Gemv, String> {
        let &Query { problem, machine, .. } = query;
        let pointwise = problem.axes.iter().all(|a| (a.kernel, a.output) == (1, 1));
        if problem.direction == Direction::Forward && !pointwise {
            return Err("a forward convolution of more than one position or tap".to_string());
        }
        if problem.axes.iter().any(|a| a.input != 1) {
            return Err("more than one input position".to_string());
        }
        let width = VECTORS * query.sizes.lanes;
        query.forced(|layout| (*layout == FilterLayout::Vectors { width }).then_some(()))?;
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        let weights = (problem.group_out * taps).div_ceil(width).saturating_mul(VECTORS * problem.group_in);
        let bytes = weights.saturating_mul(problem.group).saturating_mul(query.sizes.lanes * query.element);
        let streamed = bytes > machine.l2;
        let load = if streamed { cost::STREAMED } else { 1 };
        let group = Cost::new(1.0).times(&[weights, problem.batch.max(load)]) + cost::PRODUCT;
        Ok(Gemv { width, streamed, cost: (group * problem.group).rounded() })
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        let sums = (problem.group_out * taps).next_multiple_of(self.width).saturating_mul(problem.group);
        let input = problem.group * problem.group_in;
        let offsets = taps.saturating_mul(size_of::<Option<usize>>());
        let stored = taps.saturating_mul(2 * problem.group_out + self.width);
        let elements = sums.saturating_add(input).saturating_mul(problem.batch).saturating_add(stored);
        elements.saturating_mul(element).saturating_add(offsets)
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Vectors { width: self.width }
    }

    fn explain(&self) -> String {
        format!("{} columns at a time", self.width)
    }

    fn tables(&self, _problem: &Problem, _lanes: usize) -> TractResult<()> {
        Ok(())
    }

    fn run<E: Element>(
        &self,
        _tables: &(),
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let weights = filter.data::<E::Compute>()?;
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        let columns = problem.group_out * taps;
        let (width, channels, batch) = (self.width, problem.group_in, problem.batch);
        let panels = columns.div_ceil(width);
        let whole = operands.input.whole()?;
        let mut input = zeros("working memory", whole.len())?;
        E::widen_slice(whole, &mut input);
        // [group][panel][image][column]
        let mut sums = zeros("working memory", problem.group * panels * batch * width)?;
        let per_image = problem.group * channels;
        let mut tasks: Vec<(usize, &mut [E::Compute])> = sums.chunks_mut((batch * width).max(1)).enumerate().collect();
        let waited = if self.streamed { cost::WAITED } else { 1 };
        parallel(&mut tasks, self.cost.saturating_mul(waited), &|(index, sums)| {
            let g = *index / panels;
            let panel = &weights[*index * channels * width..(*index + 1) * channels * width];
            let mut n = 0;
            while n < batch {
                let tile = kernels
                    .channel_tiles
                    .iter()
                    .filter(|t| t.nv() == VECTORS && t.positions() <= batch - n)
                    .max_by_key(|t| t.positions())
                    .context("kernel: a tile of the plan is missing")?;
                for from in (0..channels).step_by(CHAIN) {
                    let source = Source {
                        data: &input,
                        base: n * per_image + g * channels + from,
                        channel_stride: 1,
                        channels: CHAIN.min(channels - from),
                        taps: &[0],
                        prefetch: false,
                    };
                    let positions = TilePositions { tiles: 1, stride: per_image, out_stride: width };
                    let sums = &mut sums[n * width..];
                    tile.run(&panel[from * width..], &source, (Start::Add, None), sums, positions);
                }
                n += tile.positions();
            }
            Ok(())
        })?;
        self.scatter(problem, kernels, operands, &sums, taps, output)
    }
}

impl Gemv {
    /// The sums of a range of a group's columns for an image, as slices of up to one panel.
    fn columns<'s, T>(
        &self,
        problem: &Problem,
        sums: &'s [T],
        (n, g): (usize, usize),
        range: Range<usize>,
    ) -> impl Iterator<Item = &'s [T]> {
        let taps: usize = problem.axes.iter().map(|a| a.kernel).product();
        let panels = (problem.group_out * taps).div_ceil(self.width);
        let (width, batch) = (self.width, problem.batch);
        (range.start / width..range.end.div_ceil(width)).map(move |panel| {
            let from = ((g * panels + panel) * batch + n) * width;
            let part =
                range.start.max(panel * width) - panel * width..range.end.min((panel + 1) * width) - panel * width;
            &sums[from + part.start..from + part.end]
        })
    }

    /// Stores all columns of each group together.
    ///
    /// Every output position must have exactly one kernel position. Channels-first outputs must
    /// also have them in the same order.
    fn store<E: Element>(
        &self,
        problem: &Problem,
        kernels: &Kernels<E::Compute>,
        operands: &Operands<E>,
        sums: &[E::Compute],
        offsets: &[Option<usize>],
        output: &mut [E],
    ) -> TractResult<()> {
        let (taps, channels) = (offsets.len(), problem.group_out);
        let (uniform, varying) = operands.epilogue.split();
        let width = channels.next_multiple_of(kernels.lanes);
        let mut by_channel = zeros("working memory", channels * taps)?;
        let last = problem.data_format == DataFormat::Nxc;
        let mut by_position = zeros("working memory", if last { taps * width } else { 0 })?;
        let per_image = output.len() / problem.batch;
        for (n, g) in (0..problem.batch).cartesian_product(0..problem.group) {
            let (first, at) = (g * channels, n * per_image);
            let mut rest = &mut by_channel[..];
            for part in self.columns(problem, sums, (n, g), 0..channels * taps) {
                let (to, behind) = rest.split_at_mut(part.len());
                to.copy_from_slice(part);
                rest = behind;
            }
            if let Some(bias) = operands.bias {
                for (row, bias) in by_channel.chunks_mut(taps).zip(&bias[first..]) {
                    let bias = bias.widen();
                    row.iter_mut().for_each(|value| *value = value.plus(bias));
                }
            }
            uniform.apply(&mut by_channel);
            if last {
                crate::layout::transposed(kernels, &by_channel, taps, (taps, channels), &mut by_position, width);
                for (offset, values) in offsets.iter().zip(by_position.chunks_mut(width)) {
                    let Some(offset) = offset else { continue };
                    let (at, values) = (at + offset + first, &mut values[..channels]);
                    varying.apply_pixels(first, at, (1, values.len()), values.len(), values);
                    E::narrow_slice(values, &mut output[at..at + channels]);
                }
            } else {
                let at = at + first * taps;
                if !varying.is_empty() {
                    for (channel, row) in by_channel.chunks_mut(taps).enumerate() {
                        varying.of(first + channel).apply(at + channel * taps, 1, row);
                    }
                }
                E::narrow_slice(&by_channel, &mut output[at..at + channels * taps]);
            }
        }
        Ok(())
    }

    /// Stores each column at the output position of its kernel position. Output positions without a
    /// kernel position receive the bias.
    fn scatter<E: Element>(
        &self,
        problem: &Problem,
        kernels: &Kernels<E::Compute>,
        operands: &Operands<E>,
        sums: &[E::Compute],
        taps: usize,
        output: &mut [E],
    ) -> TractResult<()> {
        let strides = strides_of(&problem.output_shape());
        let (c, x) = (problem.data_format.c_axis(strides.len()), problem.data_format.x_axis());
        // Per kernel position, the offset of its output position in a channel's plane.
        let offsets: Vec<Option<usize>> = problem
            .axes
            .iter()
            .map(|a| 0..a.kernel)
            .multi_cartesian_product()
            .map(|kernel| {
                kernel.iter().zip(&problem.axes).zip(&strides[x..]).try_fold(0, |offset, ((k, axis), stride)| {
                    let index = *k as i64 * axis.dilation as i64 - axis.pad_begin;
                    (0..axis.output as i64).contains(&index).then(|| offset + index as usize * stride)
                })
            })
            .collect();
        let plane: usize = problem.axes.iter().map(|a| a.output).product();
        let (uniform, varying) = operands.epilogue.split();
        let position_stride = strides[x + problem.axes.len() - 1];
        let mut values: Vec<E::Compute> = vec![];
        let filled = offsets.iter().flatten().count() == plane;
        let in_order = filled && offsets.iter().enumerate().all(|(k, offset)| *offset == Some(k));
        if in_order || (filled && problem.data_format == DataFormat::Nxc) {
            return self.store(problem, kernels, operands, sums, &offsets, output);
        }
        for n in 0..problem.batch {
            for channel in 0..problem.group * problem.group_out {
                let (g, co) = (channel / problem.group_out, channel % problem.group_out);
                let bias = operands.bias.map_or(E::Compute::ZERO, |b| b[channel].widen());
                let first = n * strides[0] + channel * strides[c];
                let output = &mut output[first..];
                let epilogue = varying.of(channel);
                let result = |offset: usize, value: E::Compute| {
                    let mut value = [value];
                    epilogue.apply(first + offset, 1, &mut value);
                    E::narrow(value[0])
                };
                // The results of one channel in kernel order, then the result of output positions
                // without a kernel position.
                values.clear();
                for part in self.columns(problem, sums, (n, g), co * taps..(co + 1) * taps) {
                    values.extend_from_slice(part);
                }
                values.iter_mut().for_each(|value| *value = value.plus(bias));
                values.push(bias);
                uniform.apply(&mut values);
                if !filled {
                    let empty = output.iter_mut().enumerate().step_by(position_stride).take(plane);
                    empty.for_each(|(offset, to)| *to = result(offset, values[taps]));
                }
                for (offset, value) in offsets.iter().zip(&values) {
                    if let Some(offset) = offset {
                        output[*offset] = result(*offset, *value);
                    }
                }
            }
        }
        Ok(())
    }
}
