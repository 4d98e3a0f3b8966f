//! Input tiles: windows of the input, laid out so that every tap is a constant offset.
//!
//! An *input tile* is a buffer for one channel. It holds the input that a class of taps reads for a
//! block of grid positions. It is made of rows of equal pitch. Its pixels outside the input are
//! zero.
//!
//! Taps whose shifts differ by whole steps may share an input tile, which then has a few extra rows
//! or columns. All other taps have an input tile of their own.
//!
//! In the flat index `row·pitch + column` of an input tile, a tap's pixel is a constant offset away
//! from that of another tap. A register tile may therefore run over row ends.

mod segments;

use crate::compute::Compute;
use crate::element::Element;
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{Kernels, Rows, SplitRows};
use crate::layout::input::Channels;
use crate::memory::{Aligned, reserved};
use crate::simd::vector::prefetch_all;
use crate::spec::DataFormat;
pub(crate) use segments::CopySegment;
use std::collections::HashMap;
use std::ops::Range;
use tract_core::internal::*;

/// The most elements of a channel that are prefetched while the channel before is copied. The CPU's own prefetching loads
/// the rest of longer runs.
const PREFETCHED: usize = 1024;

/// The sharing of input tiles among the taps of one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AxisTiles {
    /// Per class, the input index of its first pixel at grid position zero.
    firsts: Vec<i64>,
    /// Pixels that a class needs beyond those of the block.
    pub extra: usize,
    /// Per distinct shift, `(shift, class, pixels after the class's first one)`.
    shifts: Vec<(i64, usize, usize)>,
    in_step: usize,
    input: usize,
}

impl AxisTiles {
    /// One class per shift.
    fn one_per_shift(axis: &AxisPhases) -> AxisTiles {
        let shifts = axis.shifts();
        AxisTiles {
            extra: 0,
            shifts: shifts.iter().enumerate().map(|(class, s)| (*s, class, 0)).collect(),
            firsts: shifts,
            in_step: axis.in_step,
            input: axis.input,
        }
    }

    /// One class per set of shifts that are whole steps apart.
    pub fn shared(axis: &AxisPhases) -> AxisTiles {
        let step = axis.in_step as i64;
        let mut input_tiles =
            AxisTiles { firsts: vec![], extra: 0, shifts: vec![], in_step: axis.in_step, input: axis.input };
        let mut classes = HashMap::new();
        for shift in axis.shifts() {
            // Shifts are ascending, so the first of a class is its smallest.
            let class = *classes.entry(shift.rem_euclid(step)).or_insert_with(|| {
                input_tiles.firsts.push(shift);
                input_tiles.firsts.len() - 1
            });
            let offset = ((shift - input_tiles.firsts[class]) / step) as usize;
            input_tiles.extra = input_tiles.extra.max(offset);
            input_tiles.shifts.push((shift, class, offset));
        }
        input_tiles
    }

    /// The smallest shift of a shift's class, and the pixels from its pixel to that of the shift.
    pub fn place(&self, shift: i64) -> (i64, usize) {
        let (class, offset) = self.find(shift);
        (self.firsts[class], offset)
    }

    fn find(&self, shift: i64) -> (usize, usize) {
        let at = self.shifts.partition_point(|s| s.0 < shift);
        (self.shifts[at].1, self.shifts[at].2)
    }

    /// The first `count` pixels of a class that are inside the input, for a block at grid position
    /// `begin`.
    fn inside(&self, class: usize, begin: usize, count: usize) -> Inside {
        let (step, count) = (self.in_step as i64, count as i64);
        let first = begin as i64 * step + self.firsts[class];
        let begin = crate::ranges::ceil_div(-first, step).clamp(0, count);
        let end = crate::ranges::ceil_div(self.input as i64 - first, step).clamp(begin, count);
        Inside {
            pixels: begin as usize..end as usize,
            from: if begin < end { (first + begin * step) as usize } else { 0 },
        }
    }

    /// The input positions from the first to the last one (inclusive) that any class needs for
    /// `count` pixels.
    fn span(&self, count: usize) -> usize {
        // All shifts ascend, but those of one class need not be adjacent.
        let (least, most) =
            self.firsts.iter().fold((i64::MAX, i64::MIN), |(a, b), first| (a.min(*first), b.max(*first)));
        let spread = most.saturating_sub(least).max(0) as usize;
        count.saturating_sub(1).saturating_mul(self.in_step).saturating_add(spread).saturating_add(1).min(self.input)
    }

    /// The input index of a class's first pixel for a block at grid position `begin`, if it is
    /// inside the input.
    fn index(&self, class: usize, begin: usize) -> Option<usize> {
        let at = begin as i64 * self.in_step as i64 + self.firsts[class];
        (0..self.input as i64).contains(&at).then_some(at as usize)
    }
}

/// The layout of one channel's input tiles, for blocks of at most `rows` × `columns` grid positions
/// at one outer position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputTiles {
    outer: Vec<AxisTiles>,
    rows: AxisTiles,
    columns: AxisTiles,
    /// Elements from a row to the next.
    pub pitch: usize,
    input_tile: usize,
    /// Elements from a channel to the next.
    pub channel_stride: usize,
    /// Rows and columns of pixels from a grid position to the next.
    pub steps: (usize, usize),
}

impl InputTiles {
    /// Lays out the input tiles of a block.
    ///
    /// `axes` are all spatial axes, outermost first. The last two are rows and columns.
    /// With `copy_per_shift`, each column shift has its own input tile. Rows then have no extra
    /// pixels, and the pitch is the block's width.
    ///
    /// Sizes saturate, because a dilation can spread a few taps over more pixels than usize can
    /// count. [`InputTiles::working_bytes`] reports such sizes.
    pub fn new(axes: &Axes, rows: usize, columns: usize, copy_per_shift: bool) -> InputTiles {
        let (outer, y, x) = axes.parts();
        let outer: Vec<AxisTiles> = outer.iter().map(AxisTiles::one_per_shift).collect();
        let y = AxisTiles::shared(y);
        let x = if copy_per_shift { AxisTiles::one_per_shift(x) } else { AxisTiles::shared(x) };
        let pitch = columns + x.extra;
        let input_tile = (rows + y.extra).saturating_mul(pitch);
        let counts = outer.iter().chain([&y, &x]).map(|axis| axis.firsts.len());
        let pixels = counts.fold(input_tile, usize::saturating_mul);
        // Whole cache lines, but never a multiple of a page: then neighbouring channels do not
        // compete for the same cache sets.
        let mut channel_stride = pixels.checked_next_multiple_of(16).unwrap_or(usize::MAX);
        if channel_stride.is_multiple_of(512) {
            channel_stride = channel_stride.saturating_add(16);
        }
        InputTiles { outer, rows: y, columns: x, pitch, input_tile, channel_stride, steps: (1, 1) }
    }

    /// As [`InputTiles::new`], with adjacent rows and columns of the input in one input tile, whatever the strides are. Each
    /// position has all pixels up to those of the next.
    pub fn unsplit(axes: &Axes, rows: usize, columns: usize) -> InputTiles {
        let (_, y, x) = axes.parts();
        let steps = (y.in_step, x.in_step);
        let outer = axes.len() - 2;
        let dense = axes.map(|at, axis| match at < outer {
            true => axis.clone(),
            false => AxisPhases { in_step: 1, ..axis.clone() },
        });
        let (rows, columns) = (rows.saturating_mul(steps.0), columns.saturating_mul(steps.1));
        InputTiles { steps, ..InputTiles::new(&dense, rows, columns, false) }
    }

    /// Input tiles per channel.
    pub fn count(&self) -> usize {
        self.outer.iter().chain([&self.rows, &self.columns]).map(|axis| axis.firsts.len()).product()
    }

    /// Input tiles per channel that the taps of a row read.
    pub fn column_count(&self) -> usize {
        self.columns.firsts.len()
    }

    /// Elements of the input tiles of `channels` channels.
    pub fn elements(&self, channels: usize) -> usize {
        self.channel_stride.saturating_mul(channels)
    }

    /// Bytes of the input tiles of `channels` channels, including the working memory of the copy.
    ///
    /// The working memory is the copy plan and one channel's input widened to the compute type,
    /// which is only needed if the input has another type.
    pub fn working_bytes(&self, channels: usize, element: usize) -> usize {
        let rows = self.rows.span(self.input_tile / self.pitch);
        let widened =
            rows.saturating_sub(1).saturating_mul(self.columns.input).saturating_add(self.columns.span(self.pitch));
        let parts = (self.channel_stride / self.input_tile.max(1)).saturating_mul(size_of::<Part>());
        self.elements(channels).saturating_add(widened).saturating_mul(element).saturating_add(parts)
    }

    /// Input positions from the first to the last one that a block needs, over all planes of rows
    /// and columns.
    pub fn positions_read(&self) -> usize {
        let planes: usize = self.outer.iter().map(|axis| axis.firsts.len()).product();
        let rows = self.rows.span(self.input_tile / self.pitch);
        planes.saturating_mul(rows).saturating_mul(self.columns.span(self.pitch))
    }

    /// The offset of a tap, which has one shift per axis.
    pub fn tap(&self, shifts: &[i64]) -> usize {
        let (outer, [y, x]) = shifts.split_at(shifts.len() - 2) else { unreachable!("as many shifts as axes") };
        let class =
            self.outer.iter().zip(outer).fold(0, |at, (axis, shift)| at * axis.firsts.len() + axis.find(*shift).0);
        let (y_class, y_offset) = self.rows.find(*y);
        let (x_class, x_offset) = self.columns.find(*x);
        let input_tile = (class * self.rows.firsts.len() + y_class) * self.columns.firsts.len() + x_class;
        input_tile * self.input_tile + y_offset * self.pitch + x_offset
    }

    /// Plans the copy of a block's input into its input tiles. `strides` are those of the spatial
    /// axes.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn copy_plan(
        &self,
        strides: &[usize],
        outer_at: &[usize],
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> TractResult<CopyPlan> {
        let pixels = |positions: Range<usize>, step: usize| positions.start * step..positions.end * step;
        let (rows, columns) = (pixels(rows, self.steps.0), pixels(columns, self.steps.1));
        let (outer_strides, [row_stride, column_stride]) = strides.split_at(strides.len() - 2) else {
            unreachable!("axes end in rows and columns")
        };
        let (count, width) = (rows.len() + self.rows.extra, (columns.len() + self.columns.extra).min(self.pitch));
        let row_classes: Vec<Inside> =
            (0..self.rows.firsts.len()).map(|class| self.rows.inside(class, rows.start, count)).collect();
        let column_classes: Vec<Inside> =
            (0..self.columns.firsts.len()).map(|class| self.columns.inside(class, columns.start, width)).collect();
        let classes: usize = self.outer.iter().map(|o| o.firsts.len()).product();
        let mut parts = reserved("working memory", classes * row_classes.len() * column_classes.len())?;
        for class in 0..classes {
            let mut base = Some(0);
            let mut left = class;
            for ((axis, stride), at) in self.outer.iter().zip(outer_strides).zip(outer_at).rev() {
                let index = axis.index(left % axis.firsts.len(), *at);
                left /= axis.firsts.len();
                base = base.zip(index).map(|(base, index)| base + index * stride);
            }
            for rows in &row_classes {
                parts.extend(column_classes.iter().map(|columns| Part {
                    base: base.filter(|_| !rows.pixels.is_empty() && !columns.pixels.is_empty()),
                    rows: rows.clone(),
                    columns: columns.clone(),
                }));
            }
        }
        let whole = width == self.pitch && self.columns.input == self.pitch;
        let unit = *column_stride == 1 && (self.rows.in_step, self.columns.in_step) == (1, 1);
        Ok(CopyPlan {
            parts,
            count,
            width,
            row_stride: *row_stride,
            column_stride: *column_stride,
            channel: strides[0] * self.outer.first().unwrap_or(&self.rows).input,
            shifted: whole && unit && *row_stride == self.pitch,
            split: if *column_stride == 1 && self.columns.in_step == 2 { first_of(&column_classes) } else { None },
        })
    }

    /// Copies the input of one channel into its input tiles.
    ///
    /// The channel's elements are contiguous in the input, and `source` begins with its first
    /// element.
    /// `wide` is working memory for elements of another type than the input tiles'.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn fill<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        copy_plan: &CopyPlan,
        source: &[E],
        to: &mut [E::Compute],
        wide: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let per_plane = self.rows.firsts.len() * self.columns.firsts.len();
        let input_tiles = to.chunks_mut((per_plane * self.input_tile).max(1));
        for (parts, input_tiles) in copy_plan.parts.chunks(per_plane.max(1)).zip(input_tiles) {
            let read = self.read_by(copy_plan, parts);
            // The CPU's own prefetching does not follow from plane to plane.
            let next = copy_plan.channel + read.start;
            prefetch_all(source.get(next..next + read.len().min(PREFETCHED)).unwrap_or_default());
            let read = match E::as_compute(&source[read.clone()]) {
                Some(plane) => (plane, read.start),
                None => {
                    let plane = wide.of(read.len())?;
                    E::widen_slice(&source[read.clone()], plane);
                    (&*plane, read.start)
                }
            };
            self.fill_plane(kernels, copy_plan, parts, read, input_tiles);
        }
        Ok(())
    }

    /// Copies into the input tiles of one plane of rows and columns.
    ///
    /// `plane` holds all elements that are read. Its first one has index `at` in the channel.
    fn fill_plane<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        copy_plan: &CopyPlan,
        parts: &[Part],
        (plane, at): (&[T], usize),
        input_tiles: &mut [T],
    ) {
        let columns = self.columns.firsts.len();
        let from = |parts: &[Part]| {
            let read = self.read_by(copy_plan, parts);
            &plane[read.start - at..read.end - at]
        };
        for (parts, input_tiles) in parts.chunks(columns).zip(input_tiles.chunks_mut(columns * self.input_tile)) {
            let mut input_tiles = input_tiles
                .chunks_mut(self.input_tile)
                .map(|input_tile| &mut input_tile[..copy_plan.count * self.pitch]);
            if let ([a, b], Some(first), Some(_)) = (parts, copy_plan.split, parts[0].base)
                && let Some(both) = input_tiles.next().zip(input_tiles.next())
            {
                self.fill_split(kernels, copy_plan, first, [a, b], from(parts), both.into());
                continue;
            }
            for (part, input_tile) in parts.iter().zip(input_tiles) {
                if part.base.is_none() {
                    input_tile.fill(T::ZERO);
                    continue;
                }
                let source = from(std::slice::from_ref(part));
                if copy_plan.shifted {
                    self.fill_shifted(part, source, input_tile);
                } else if self.columns.in_step == 1 {
                    self.fill_rows(kernels, copy_plan, part, source, input_tile);
                } else {
                    let copy = |from: &[_], to: &mut [_]| kernels.strided(from, self.columns.in_step, to);
                    self.fill_stepped(copy_plan, part, source, 1, input_tile, copy);
                }
            }
        }
    }

    /// As [`InputTiles::fill`], for pixels of `depth` adjacent channels, both in the input and in
    /// the input tiles.
    pub fn fill_pixels<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        copy_plan: &CopyPlan,
        source: &[E],
        depth: usize,
        to: &mut [E::Compute],
    ) {
        for (part, input_tile) in copy_plan.parts.iter().zip(to.chunks_mut((self.input_tile * depth).max(1))) {
            let input_tile = &mut input_tile[..copy_plan.count * self.pitch * depth];
            let Some(base) = part.base else {
                input_tile.fill(E::Compute::ZERO);
                continue;
            };
            let first = base + part.rows.from * copy_plan.row_stride + part.columns.from * copy_plan.column_stride;
            let stride = self.columns.in_step * copy_plan.column_stride;
            let copy = |from: &[E], to: &mut [_]| copy(kernels, from, stride, depth, to);
            self.fill_stepped(copy_plan, part, &source[first..], depth, input_tile, copy);
        }
    }

    /// Copies some channels of channels-first input into input tiles with pixels of `depth`
    /// elements.
    ///
    /// `depth` is a multiple of the vector length.
    /// `planes` and `wide` are working memory.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn fill_transposed<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        copy_plan: &CopyPlan,
        source: &Channels<E>,
        (to, depth): (&mut [E::Compute], usize),
        (planes, wide): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        let (lanes, size) = (kernels.lanes, self.channel_stride);
        if E::as_compute(source.from(0).0).is_some() && self.rows_fill_vectors(copy_plan, lanes) {
            return self.fill_transposing(kernels, copy_plan, source, (to, depth), planes);
        }
        let planes = planes.of(lanes * size)?;
        for c in (0..source.count).step_by(lanes) {
            for (ci, plane) in (c..source.count).zip(planes.chunks_mut(size)) {
                self.fill(kernels, copy_plan, source.from(ci).0, plane, wide)?;
            }
            crate::layout::transposed(kernels, planes, size, (size, lanes), &mut to[c..], depth);
        }
        Ok(())
    }

    /// Whether transposing whole vectors of each row reads little beyond the row.
    ///
    /// This needs rows without gaps in the input, whose length, rounded up to vectors, hardly
    /// exceeds the pitch.
    fn rows_fill_vectors(&self, copy_plan: &CopyPlan, lanes: usize) -> bool {
        let of_part = |part: &Part| part.columns.pixels.len().next_multiple_of(lanes) <= self.pitch + lanes / 4;
        (self.columns.in_step, copy_plan.column_stride) == (1, 1) && copy_plan.parts.iter().all(of_part)
    }

    /// As [`InputTiles::fill_transposed`], but transposes rows directly from the input.
    fn fill_transposing<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        copy_plan: &CopyPlan,
        source: &Channels<E>,
        (to, depth): (&mut [E::Compute], usize),
        joint: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let lanes = kernels.lanes;
        let from = |channel| {
            let (from, together) = source.from(channel);
            let from = E::as_compute(from).context("element: computed in another type")?;
            TractResult::Ok((from, together))
        };
        for (part, input_tile) in copy_plan.parts.iter().zip(to.chunks_mut((self.input_tile * depth).max(1))) {
            let input_tile = &mut input_tile[..copy_plan.count * self.pitch * depth];
            let Some(base) = part.base else {
                input_tile.fill(E::Compute::ZERO);
                continue;
            };
            let (begin, end) = (part.columns.pixels.start * depth, part.columns.pixels.end * depth);
            let first = base + part.rows.from * copy_plan.row_stride + part.columns.from;
            let inside = part.rows_inside(self.pitch * depth, input_tile);
            for row in inside.chunks_mut(self.pitch * depth) {
                row[..begin].fill(E::Compute::ZERO);
                row[end..copy_plan.width * depth].fill(E::Compute::ZERO);
            }
            for c in (0..source.count).step_by(lanes) {
                let (pixels, count) = (part.columns.pixels.len(), lanes.min(source.count - c));
                let (planes, together) = from(c)?;
                let next = if together > lanes { &planes[lanes * source.stride()..] } else { &[] };
                for (j, row) in inside.chunks_mut(self.pitch * depth).enumerate() {
                    let (at, to) = (first + j * self.rows.in_step * copy_plan.row_stride, &mut row[begin + c..]);
                    for plane in next.chunks(source.stride().max(1)).take(lanes) {
                        prefetch_all(plane.get(at..at + pixels).unwrap_or_default());
                    }
                    if together >= count {
                        crate::layout::transposed(kernels, &planes[at..], source.stride(), (pixels, count), to, depth);
                        continue;
                    }
                    // The channels of the vector are in several tensors.
                    let joint = joint.of(count * pixels)?;
                    for (c, joint) in (c..).zip(joint.chunks_mut(pixels.max(1))) {
                        joint.copy_from_slice(&from(c)?.0[at..][..pixels]);
                    }
                    crate::layout::transposed(kernels, joint, pixels, (pixels, count), to, depth);
                }
            }
        }
        Ok(())
    }

    /// Copies some channels of either data format into input tiles with pixels of `depth` elements.
    ///
    /// Channels-last pixels keep their order.
    /// All other arguments are those of [`InputTiles::fill_transposed`].
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn fill_deep<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        copy_plan: &CopyPlan,
        data_format: DataFormat,
        source: &Channels<E>,
        (to, depth): (&mut [E::Compute], usize),
        working: (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        match data_format {
            DataFormat::Nxc => {
                self.fill_pixels(kernels, copy_plan, source.from(0).0, depth, to);
                Ok(())
            }
            DataFormat::Ncx => self.fill_transposed(kernels, copy_plan, source, (to, depth), working),
        }
    }

    /// Copies row by row with `copy`, which copies pixels of `depth` elements. `source` begins with
    /// the first pixel.
    fn fill_stepped<S, T: Compute>(
        &self,
        copy_plan: &CopyPlan,
        part: &Part,
        source: &[S],
        depth: usize,
        input_tile: &mut [T],
        copy: impl Fn(&[S], &mut [T]),
    ) {
        let (begin, end) = (part.columns.pixels.start * depth, part.columns.pixels.end * depth);
        // Products of steps that no second row or column takes may be huge.
        let row_step = self.rows.in_step.saturating_mul(copy_plan.row_stride);
        let column_step = self.columns.in_step.saturating_mul(copy_plan.column_stride);
        let rows = part.rows_inside(self.pitch * depth, input_tile);
        // The steps go on from row to row, as where the columns are split into whole kernels.
        let is_one_run = row_step == column_step.saturating_mul(self.pitch);
        if is_one_run && part.columns.pixels == (0..self.pitch) {
            return copy(source, rows);
        }
        for (j, row) in rows.chunks_mut(self.pitch * depth).enumerate() {
            clear(&mut row[..begin]);
            clear(&mut row[end..copy_plan.width * depth]);
            copy(&source[j * row_step..], &mut row[begin..end]);
        }
    }

    /// The range from the first to the last element that some parts read of a channel with
    /// contiguous elements.
    fn read_by(&self, copy_plan: &CopyPlan, parts: &[Part]) -> Range<usize> {
        let of_part = |part: &Part| {
            let first = part.base? + part.rows.from * copy_plan.row_stride + part.columns.from;
            let rows = (part.rows.pixels.len() - 1) * self.rows.in_step * copy_plan.row_stride;
            Some(first..first + rows + (part.columns.pixels.len() - 1) * self.columns.in_step + 1)
        };
        let all = parts.iter().filter_map(of_part);
        all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// As [`InputTiles::fill`], for `channels` adjacent channels of channels-last input.
    ///
    /// Each channel's input tiles are in a plane of their own, `stride` elements apart.
    /// Each plane needs room for one vector after its input tiles.
    /// `pixels` is working memory.
    pub fn fill_planes<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        copy_plan: &CopyPlan,
        source: &[E],
        channels: usize,
        (to, stride): (&mut [E::Compute], usize),
        pixels: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let step = self.columns.in_step * copy_plan.column_stride;
        for (index, part) in copy_plan.parts.iter().enumerate() {
            let input_tile = index * self.input_tile..index * self.input_tile + copy_plan.count * self.pitch;
            let Some(base) = part.base else {
                to.chunks_mut(stride).take(channels).for_each(|plane| plane[input_tile.clone()].fill(E::Compute::ZERO));
                continue;
            };
            let (rows, columns) = (&part.rows, &part.columns);
            for (j, row) in rows.pixels.clone().enumerate() {
                let size = (channels, columns.pixels.len());
                let at = base + columns.from * copy_plan.column_stride;
                let source = &source[at + (rows.from + j * self.rows.in_step) * copy_plan.row_stride..];
                let to = &mut to[input_tile.start + row * self.pitch + columns.pixels.start..];
                if let Some(source) = E::as_compute(source) {
                    crate::layout::transposed(kernels, source, step, size, to, stride);
                } else {
                    let pixels = pixels.of(size.0 * size.1)?;
                    copy(kernels, source, step, channels, pixels);
                    crate::layout::transposed(kernels, pixels, channels, size, to, stride);
                }
            }
            // Zeros come last, as whole vectors were written beyond the ends of rows.
            for plane in to.chunks_mut(stride).take(channels) {
                for row in part.rows_inside(self.pitch, &mut plane[input_tile.clone()]).chunks_mut(self.pitch) {
                    clear(&mut row[..columns.pixels.start]);
                    clear(&mut row[columns.pixels.end..copy_plan.width]);
                }
            }
        }
        Ok(())
    }

    /// Copies into the input tiles of two column classes: the even and the odd columns of the
    /// input.
    fn fill_split<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        copy_plan: &CopyPlan,
        first: usize,
        parts: [&Part; 2],
        source: &[T],
        input_tiles: [&mut [T]; 2],
    ) {
        let [a, b] = input_tiles;
        let (a, b) = (parts[0].rows_inside(self.pitch, a), parts[1].rows_inside(self.pitch, b));
        let to = if first == 0 { [a, b] } else { [b, a] };
        let [even, odd] = [first, 1 - first].map(|class| &parts[class].columns);
        let step = self.rows.in_step * copy_plan.row_stride;
        let (count, pitch) = self.rows_at_once(copy_plan, parts[0]);
        let rows = SplitRows {
            count,
            step,
            widths: [even.pixels.len(), odd.pixels.len()],
            before: [even.pixels.start, odd.pixels.start],
        };
        let [a, b] = to.map(|to| to.chunks_mut(count * self.pitch));
        for (j, (a, b)) in a.zip(b).enumerate() {
            let to = [a, b].map(|to| &mut to[..count * pitch]);
            kernels.split_rows(&source[j * step..], &rows, to, pitch);
        }
    }

    /// Copies into the input tile of a column class without gaps in the input.
    fn fill_rows<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        copy_plan: &CopyPlan,
        part: &Part,
        source: &[T],
        input_tile: &mut [T],
    ) {
        let step = self.rows.in_step * copy_plan.row_stride;
        let (count, pitch) = self.rows_at_once(copy_plan, part);
        let rows = Rows { count, width: part.columns.pixels.len(), step, before: part.columns.pixels.start };
        for (j, to) in part.rows_inside(self.pitch, input_tile).chunks_mut(count * self.pitch).enumerate() {
            kernels.padded_rows(&source[j * step..], &rows, &mut to[..count * pitch], pitch);
        }
    }

    /// Rows of a part that a kernel copies at once, and the pixels that it writes of each.
    ///
    /// These are all rows if the block needs all pixels of each.
    fn rows_at_once(&self, copy_plan: &CopyPlan, part: &Part) -> (usize, usize) {
        if copy_plan.width == self.pitch { (part.rows.pixels.len(), self.pitch) } else { (1, copy_plan.width) }
    }

    /// Copies rows as wide as the input in one shifted copy, then clears the pixels that wrapped
    /// around row ends.
    fn fill_shifted<T: Compute>(&self, part: &Part, source: &[T], input_tile: &mut [T]) {
        let Range { start, end } = part.columns.pixels;
        let inside = part.rows_inside(self.pitch, input_tile);
        inside[start..start + source.len()].copy_from_slice(source);
        for row in inside.chunks_mut(self.pitch) {
            clear(&mut row[..start]);
            clear(&mut row[end..]);
        }
    }
}

/// The split of a grid of rows and columns into blocks.
pub(crate) struct GridBlocks {
    /// Grid rows per block.
    pub rows: usize,
    /// Grid columns per block.
    pub columns: usize,
    /// Positions per block, including the padding between its rows.
    pub positions: usize,
    /// Blocks over all outer positions.
    pub count: usize,
    /// The input tiles of a block.
    pub input_tiles: InputTiles,
}

impl GridBlocks {
    /// Rows and columns of the largest block whose input tiles have at most `pixels` pixels per
    /// channel.
    ///
    /// A block has at least one row, and at least 256 columns or all of them, even if that exceeds
    /// `pixels`. Columns are only split if the grid has a single row.
    pub fn within(axes: &Axes, copy_per_shift: bool, pixels: usize) -> (usize, usize) {
        let (_, y, x) = axes.parts();
        let size = |rows, columns| InputTiles::new(axes, rows, columns, copy_per_shift).channel_stride;
        if y.grid == 1 && y.output == 1 {
            let some = 64.min(x.grid);
            let per_column = size(1, some).div_ceil(some).max(1);
            return (1, (pixels / per_column).max(256).min(x.grid));
        }
        let fixed = size(1, x.grid);
        let per_row = size(2, x.grid).saturating_sub(fixed).max(1);
        ((1 + pixels.saturating_sub(fixed) / per_row).min(y.grid), x.grid)
    }

    /// Splits the grid into blocks of nearly equal size, as many as blocks of `rows` × `columns`
    /// would be.
    ///
    /// Blocks that are read directly from the input have rows of the grid's own width.
    pub fn even(axes: &Axes, (rows, columns): (usize, usize), copy_per_shift: bool, in_place: bool) -> GridBlocks {
        let (_, y, x) = axes.parts();
        let even = (y.grid.div_ceil(y.grid.div_ceil(rows)), x.grid.div_ceil(x.grid.div_ceil(columns)));
        GridBlocks::of(axes, even, copy_per_shift, in_place)
    }

    /// Splits the grid into blocks of `rows` × `columns`, of which the last ones may be smaller.
    pub fn of(axes: &Axes, (rows, columns): (usize, usize), copy_per_shift: bool, in_place: bool) -> GridBlocks {
        let (outer, y, x) = axes.parts();
        let input_tiles = InputTiles::new(axes, rows, columns, copy_per_shift);
        let pitch = if in_place { x.grid } else { input_tiles.pitch };
        let outer: usize = outer.iter().map(|a| a.grid).product();
        GridBlocks {
            rows,
            columns,
            // A dilation can make the pitch larger than usize can count.
            positions: (rows - 1).saturating_mul(pitch).saturating_add(columns),
            count: outer * y.grid.div_ceil(rows) * x.grid.div_ceil(columns),
            input_tiles,
        }
    }
}

/// The copy of a block's input into its input tiles. It is the same for every channel.
pub(crate) struct CopyPlan {
    /// One part per input tile.
    parts: Vec<Part>,
    /// Rows per input tile.
    count: usize,
    /// Pixels per row that the block needs. Those from there to the pitch are not written.
    width: usize,
    row_stride: usize,
    column_stride: usize,
    /// Elements from a channel to the next, if those of a channel are contiguous.
    channel: usize,
    /// Whether input tiles are shifted copies of the input.
    shifted: bool,
    /// Set if two column classes are the even and the odd columns of the input: the class with the
    /// first column.
    split: Option<usize>,
}

/// The part of the input that goes into one input tile.
struct Part {
    /// The offset in the input of the block's outer position. None if the input tile is all zeros.
    base: Option<usize>,
    rows: Inside,
    columns: Inside,
}

impl Part {
    /// The rows of an input tile that are inside the input. Fills the other rows with zeros.
    fn rows_inside<'s, T: Compute>(&self, pitch: usize, input_tile: &'s mut [T]) -> &'s mut [T] {
        let Range { start, end } = self.rows.pixels;
        clear(&mut input_tile[..start * pitch]);
        clear(&mut input_tile[end * pitch..]);
        &mut input_tile[start * pitch..end * pitch]
    }
}

/// The class with the first column, if two column classes interleave and share all columns between
/// them.
fn first_of(columns: &[Inside]) -> Option<usize> {
    let [a, b] = columns else { return None };
    let first = usize::from(b.from < a.from);
    let adjacent = columns[first].from + 1 == columns[1 - first].from;
    (adjacent && !a.pixels.is_empty() && !b.pixels.is_empty()).then_some(first)
}

/// The pixels along an axis that are inside the input.
#[derive(Clone)]
struct Inside {
    pixels: Range<usize>,
    /// The input index of the first pixel.
    from: usize,
}

/// Fills with zeros. Most rows have at most three, for which a call to `fill` would cost more than
/// the stores.
fn clear<T: Compute>(elements: &mut [T]) {
    match elements {
        [] => {}
        [a] => *a = T::ZERO,
        [a, b] => (*a, *b) = (T::ZERO, T::ZERO),
        [a, b, c] => (*a, *b, *c) = (T::ZERO, T::ZERO, T::ZERO),
        more => more.fill(T::ZERO),
    }
}

/// Copies pixels of `depth` elements that are `stride` apart in `from`.
fn copy<E: Element>(kernels: &Kernels<E::Compute>, from: &[E], stride: usize, depth: usize, to: &mut [E::Compute]) {
    if stride == depth {
        E::widen_slice(&from[..to.len()], to);
    } else if depth == 1 {
        widen_strided(kernels, from, stride, to);
    } else if let Some(from) = E::as_compute(from) {
        kernels.copy_pixels(from, stride, (to.len() / depth, depth), (to, depth), None, false);
    } else {
        for (to, from) in to.chunks_mut(depth).zip(from.chunks(stride)) {
            E::widen_slice(&from[..depth], to);
        }
    }
}

/// `to[i] = from[i·step]`.
fn widen_strided<E: Element>(kernels: &Kernels<E::Compute>, from: &[E], step: usize, to: &mut [E::Compute]) {
    if let Some(from) = E::as_compute(from) {
        return kernels.strided(from, step, to);
    }
    // Widens chunks that fit the stack. With a large step, most widened elements would be unused.
    let mut wide = [E::Compute::ZERO; 256];
    if step > 8 {
        return to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = from.widen());
    }
    let chunk = wide.len() / step;
    for (to, from) in to.chunks_mut(chunk).zip(from.chunks(chunk * step)) {
        let wide = &mut wide[..from.len().min(chunk * step)];
        E::widen_slice(from, wide);
        kernels.strided(wide, step, to);
    }
}
