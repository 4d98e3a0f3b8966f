//! The part of the output that a task writes, and the ways to write it.

use crate::element::Element;
use crate::kernel::{Bounds, Kernels, PixelStarts};
use crate::memory::Aligned;
use crate::output::epilogue::{ChannelEpilogue, Epilogue};
use std::ops::Range;
use tract_core::internal::TractResult;
use tract_core::internal::tract_itertools::Either;
use tract_core::internal::tract_smallvec::{Array, SmallVec};

/// Elements of a channel that are finished and narrowed together.
pub(crate) const STAGED_ELEMENTS: usize = 256;

/// The most bytes of a staging buffer: this many elements for each lane.
pub(crate) const STAGING_BYTES: usize = STAGED_ELEMENTS * 16 * size_of::<f64>();

/// The most rows that a register tile writes.
pub(crate) const MOST_ROWS: usize = 16;

/// The output slices that a task writes.
pub(crate) struct TaskOutput<'a, E> {
    /// Channels first: per group and channel of the task, per outer phase inside the output, the
    /// task's rows.
    /// Channels last: per outer phase, the task's rows.
    /// Channels last, if other tasks have other channels of the same pixels: per outer phase, each
    /// pixel.
    pub(super) slices: Slices<'a, E>,
    /// The task's channels, if each pixel is a slice of its own.
    pub(super) pixel_channels: Option<Range<usize>>,
    /// The outer phases (flat indices over all outer axes) that are inside the output at the task's
    /// outer position, ascending.
    pub outer_phases: Vec<usize>,
    /// Output rows.
    pub rows: Range<usize>,
    /// Output columns.
    pub columns: Range<usize>,
    /// Elements between columns: one (NCX) or all channels (NXC).
    pub(super) step: usize,
    /// Whether whole vectors are stored past the caches.
    pub(super) streamed: bool,
}

/// Slices of the output, in memory order.
pub(super) enum Slices<'a, E> {
    /// Slices at any offsets.
    Listed(Vec<Slice<'a, E>>),
    /// Contiguous slices with this many elements each, if a task has all elements of its channels.
    /// A list would take noticeable time to build.
    Even(Slice<'a, E>, usize),
}

impl<E> Slices<'_, E> {
    /// The output index of a slice's first element.
    fn at(&self, index: usize) -> usize {
        match self {
            Slices::Listed(list) => list[index].at,
            Slices::Even(all, len) => all.at + index * len,
        }
    }

    fn elements(&mut self, index: usize) -> &mut [E] {
        match self {
            Slices::Listed(list) => list[index].elements,
            Slices::Even(all, len) => &mut all.elements[index * *len..][..*len],
        }
    }

    /// Of each `step` slices of a range, the elements of the one with index `first`.
    fn every(&mut self, range: Range<usize>, step: usize, first: usize) -> impl Iterator<Item = &mut [E]> {
        match self {
            Slices::Listed(list) => {
                Either::Left(list[range].chunks_exact_mut(step).map(move |slices| &mut *slices[first].elements))
            }
            Slices::Even(all, len) => {
                let len = *len;
                let elements = &mut all.elements[range.start * len..range.end * len];
                Either::Right(
                    elements
                        .chunks_exact_mut((step * len).max(1))
                        .map(move |elements| &mut elements[first * len..][..len]),
                )
            }
        }
    }
}

/// Consecutive elements of the output.
pub(super) struct Slice<'a, E> {
    /// The output index of the first element.
    pub(super) at: usize,
    pub(super) elements: &'a mut [E],
}

/// Consecutive elements of a task (see [`TaskOutput::plane_index`]) and their offset in a list.
pub(crate) struct IndexedRun {
    /// The elements.
    pub elements: Range<usize>,
    /// The list index of the first element's entry. The other entries follow it.
    pub first: usize,
}

/// Pixels of a row that are written together.
struct PixelRun {
    /// The output index of the first pixel's first channel.
    first: usize,
    /// Elements from one pixel to the next.
    step: usize,
    /// The number of pixels inside the task's output.
    count: usize,
}

impl<E: Element> TaskOutput<'_, E> {
    /// Writes a run of one output row: the interleaved `phases`, which have equal lengths.
    ///
    /// The run begins at column `column` of row `row`. Elements outside the task's output are
    /// dropped. `channel` counts the task's own channels (NCX) or all output channels (NXC): see
    /// [`Task::channel`](crate::output::task::Task::channel). `outer` indexes
    /// [`TaskOutput::outer_phases`].
    #[expect(clippy::too_many_arguments)]
    pub fn write(
        &mut self,
        kernels: &Kernels<E::Compute>,
        channel: usize,
        outer: usize,
        row: usize,
        column: usize,
        phases: &[&[E::Compute]],
        epilogue: ChannelEpilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let len = phases.len() * phases[0].len();
        let inside = len.min(self.columns.end - column);
        let (first, step) = (self.index(channel, outer, row, column), self.step);
        let elements = self.elements_from(channel, outer, row, column);
        if step == 1
            && inside == len
            && let Some(to) = E::as_compute_mut(&mut elements[..len])
        {
            kernels.interleave(phases, to);
            epilogue.apply(first, 1, to);
            return Ok(());
        }
        let scratch = scratch.of(len)?;
        kernels.interleave(phases, scratch);
        let run = &mut scratch[..inside];
        epilogue.apply(first, step, run);
        self.put(channel, outer, row, column, run);
        Ok(())
    }

    /// Writes adjacent channels of `count` pixels (NXC): columns `column`, `column + step`, … of
    /// row `row`.
    ///
    /// Their values are in `from`, pixels `width` elements apart. They are clamped to the bounds before
    /// the epilogue is applied. Pixels outside the task's output are dropped.
    pub fn write_pixels(
        &mut self,
        kernels: &Kernels<E::Compute>,
        position: (usize, usize, usize),
        step: usize,
        channels: Range<usize>,
        (from, width, count): (&mut [E::Compute], usize, usize),
        (bounds, epilogue): (Option<Bounds<E::Compute>>, Epilogue<E>),
    ) {
        let (size, streamed) = (channels.len(), self.streamed && epilogue.is_empty());
        let Some(run) = self.pixel_run(position, step, channels.start, count) else { return };
        if let Some(to) = self.in_place(position, channels.start) {
            kernels.copy_pixels(from, width, (run.count, size), (to, run.step), bounds, streamed);
            epilogue.apply_pixels(channels.start, run.first, (run.count, size), run.step, to);
            return;
        }
        let (outer, row, column) = position;
        for (i, pixel) in from.chunks_mut(width).enumerate().take(run.count) {
            if let Some(bounds) = bounds {
                kernels.clamp_pixels(bounds, (1, size), size, pixel);
            }
            epilogue.apply_pixels(channels.start, run.first + i * run.step, (1, size), size, pixel);
            let to = self.elements_from(channels.start, outer, row, column + i * step);
            E::narrow_slice(&pixel[..size], &mut to[..size]);
        }
    }

    /// Writes adjacent channels of `count` pixels (NXC): columns `column`, `column + step`, … of
    /// row `row`.
    ///
    /// The values of channel `j` begin at `from[starts[j]]`. `from` must have room for a vector
    /// after the last one. Pixels outside the task's output are dropped.
    #[expect(clippy::too_many_arguments)]
    pub fn write_rows(
        &mut self,
        kernels: &Kernels<E::Compute>,
        position: (usize, usize, usize),
        step: usize,
        first_channel: usize,
        (from, starts, count): (&[E::Compute], &[usize], usize),
        epilogue: Epilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let Some(run) = self.pixel_run(position, step, first_channel, count) else { return Ok(()) };
        let (outer, row, column) = position;
        for (m, starts) in starts.chunks(kernels.lanes).enumerate() {
            let (channel, size) = (first_channel + m * kernels.lanes, starts.len());
            let first = run.first + channel - first_channel;
            if let Some(to) = self.in_place(position, channel) {
                kernels.indexed_rows_to_pixels(from, starts, run.count, to, run.step);
                epilogue.apply_pixels(channel, first, (run.count, size), run.step, to);
                continue;
            }
            let scratch = scratch.of(run.count * size)?;
            kernels.indexed_rows_to_pixels(from, starts, run.count, scratch, size);
            for (i, pixel) in scratch.chunks_mut(size).enumerate() {
                epilogue.apply_pixels(channel, first + i * run.step, (1, size), size, pixel);
                let to = self.elements_from(channel, outer, row, column + i * step);
                E::narrow_slice(pixel, &mut to[..size]);
            }
        }
        Ok(())
    }

    /// Writes a run of whole pixels (NXC), from column `column` of row `row` on.
    ///
    /// `rows` holds one slice per channel and column of a group of adjacent columns, channels
    /// innermost. Pixels outside the task's output are dropped.
    pub fn write_whole_pixels(
        &mut self,
        kernels: &Kernels<E::Compute>,
        (outer, row, column): (usize, usize, usize),
        rows: &[&[E::Compute]],
        epilogue: Epilogue<E>,
        scratch: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        if column >= self.columns.end {
            return Ok(());
        }
        let (step, size) = (self.step, rows.len());
        let len = (size * rows[0].len()).min((self.columns.end - column) * step);
        let at = self.plane_index(row, column) * step;
        let (first, elements) = (self.slices.at(outer), self.slices.elements(outer));
        let finished = |to: &mut [E::Compute]| {
            let (whole, rest) = to.split_at_mut(len / size * size);
            kernels.interleave(rows, whole);
            rest.iter_mut().zip(rows).for_each(|(to, row)| *to = row[len / size]);
            epilogue.apply_pixels(0, first + at, (to.len() / step, step), step, to);
        };
        let to = &mut elements[at..at + len];
        if let Some(to) = E::as_compute_mut(to) {
            finished(to);
            return Ok(());
        }
        let scratch = scratch.of(len)?;
        finished(scratch);
        E::narrow_slice(scratch, to);
        Ok(())
    }

    /// The destination of `count` pixels (NXC) from a channel on: columns `column`,
    /// `column + step`, … of row `row`.
    ///
    /// `None` if all of them are outside the task's output.
    fn pixel_run(
        &self,
        (outer, row, column): (usize, usize, usize),
        step: usize,
        first_channel: usize,
        count: usize,
    ) -> Option<PixelRun> {
        let left = self.columns.end.checked_sub(column).filter(|left| *left > 0)?;
        let first = self.index(first_channel, outer, row, column);
        Some(PixelRun { first, step: step * self.step, count: count.min(left.div_ceil(step)) })
    }

    /// The output from a channel of a pixel on (NXC), if compute elements may be written there
    /// directly and the task's pixels are contiguous.
    pub fn in_place(
        &mut self,
        (outer, row, column): (usize, usize, usize),
        channel: usize,
    ) -> Option<&mut [E::Compute]> {
        if self.pixel_channels.is_some() {
            None
        } else {
            E::as_compute_mut(self.elements_from(channel, outer, row, column))
        }
    }

    /// Whether sums may be taken in the output (NXC): as for [`TaskOutput::in_place`], and results are not stored
    /// past the caches.
    pub fn takes_sums(&self) -> bool {
        !self.streamed && self.pixel_channels.is_none() && E::as_compute(&[]).is_some()
    }

    /// The rest of a slice from a channel of a pixel on. The arguments are those of
    /// [`TaskOutput::write`].
    fn elements_from(&mut self, channel: usize, outer: usize, row: usize, column: usize) -> &mut [E] {
        let (slice, at) = self.find(channel, outer, row, column);
        &mut self.slices.elements(slice)[at..]
    }

    /// Writes consecutive elements of one channel. The arguments are those of
    /// [`TaskOutput::write`].
    pub fn put(&mut self, channel: usize, outer: usize, row: usize, column: usize, values: &[E::Compute]) {
        if self.pixel_channels.is_some() {
            for (i, from) in values.iter().enumerate() {
                self.elements_from(channel, outer, row, column + i)[0] = E::narrow(*from);
            }
            return;
        }
        let step = self.step;
        let to = self.elements_from(channel, outer, row, column);
        if step == 1 {
            E::narrow_slice(values, &mut to[..values.len()]);
        } else {
            to.iter_mut().step_by(step).zip(values).for_each(|(to, from)| *to = E::narrow(*from));
        }
    }

    /// Writes consecutive elements of one channel (NCX), from the one with an index on: see
    /// [`TaskOutput::plane_index`]. `channel` counts the task's own.
    pub fn put_from(&mut self, channel: usize, outer: usize, index: usize, values: &[E::Compute]) {
        let plane = self.slices.elements(channel * self.outer_phases.len() + outer);
        E::narrow_slice(values, &mut plane[index..index + values.len()]);
    }

    /// The slice of an element and its index in that slice. The arguments are those of
    /// [`TaskOutput::write`].
    fn find(&self, channel: usize, outer: usize, row: usize, column: usize) -> (usize, usize) {
        let index = self.plane_index(row, column);
        match (&self.pixel_channels, self.step) {
            (Some(channels), _) => (outer * self.rows.len() * self.columns.len() + index, channel - channels.start),
            (None, 1) => (channel * self.outer_phases.len() + outer, index),
            (None, step) => (outer, index * step + channel),
        }
    }

    /// The output index of an element. The arguments are those of [`TaskOutput::write`].
    pub fn index(&self, channel: usize, outer: usize, row: usize, column: usize) -> usize {
        let (slice, at) = self.find(channel, outer, row, column);
        self.slices.at(slice) + at
    }

    /// Elements between columns of a row in the output.
    pub fn stride(&self) -> usize {
        self.step
    }

    /// The index of a pixel within the task's rows and columns, which are contiguous.
    pub fn plane_index(&self, row: usize, column: usize) -> usize {
        (row - self.rows.start) * self.columns.len() + column - self.columns.start
    }

    /// Consecutive elements (see [`TaskOutput::plane_index`]) of consecutive channels (NCX).
    /// `channels` counts the task's own.
    fn segments(
        &mut self,
        channels: Range<usize>,
        outer: usize,
        elements: Range<usize>,
    ) -> impl Iterator<Item = &mut [E]> {
        let count = self.outer_phases.len();
        let slices = self.slices.every(channels.start * count..channels.end * count, count, outer);
        slices.map(move |slice| &mut slice[elements.clone()])
    }

    /// Writes runs of elements of consecutive channels (NCX), at most as many channels as a vector
    /// has lanes.
    ///
    /// The channels of a pixel are adjacent in `from`, from the offset in `starts` on. `starts` has
    /// one more vector of entries after the last run's.
    /// `channel` is the output's index of the first channel. Runs shorter than a register
    /// transpose, and runs of another element type, are staged in `rows`, which has
    /// [`STAGED_ELEMENTS`] elements per lane. Results are clamped to the bounds before the epilogue is
    /// applied.
    #[expect(clippy::too_many_arguments)]
    pub fn write_transposed(
        &mut self,
        kernels: &Kernels<E::Compute>,
        channels: Range<usize>,
        outer: usize,
        runs: &[IndexedRun],
        from: &[E::Compute],
        starts: PixelStarts,
        (bounds, epilogue, channel): (Option<Bounds<E::Compute>>, Epilogue<E>, usize),
        rows: &mut [E::Compute],
    ) {
        let (lanes, streamed) = (kernels.lanes, self.streamed && epilogue.is_empty());
        let slice = |lane: usize| (channels.start + lane) * self.outer_phases.len() + outer;
        let offset = |lane: usize| self.slices.at(slice(lane));
        let offsets: SmallVec<[usize; 16]> =
            if epilogue.is_empty() { SmallVec::new() } else { (0..channels.len()).map(offset).collect() };
        let finish = |lane: usize, index: usize, results: &mut [E::Compute]| {
            if let Some(offset) = offsets.get(lane) {
                epilogue.of(channel + lane).apply(offset + index, 1, results);
            }
        };
        let whole = |run: &IndexedRun| run.elements.len() >= lanes;
        // Collect the planes once for all runs: this takes as long as a few register transposes.
        let mut in_place = SmallVec::<[&mut [E::Compute]; 16]>::new();
        let all = 0..self.rows.len() * self.columns.len();
        let stored = runs.iter().any(whole)
            && self
                .segments(channels.clone(), outer, all)
                .all(|plane| E::as_compute_mut(plane).map(|plane| in_place.push(plane)).is_some());
        if stored {
            for IndexedRun { elements, first } in runs.iter().filter(|run| whole(run)) {
                kernels.pixels_to_rows(
                    from,
                    starts.of(*first..first + elements.len()),
                    &mut in_place,
                    elements.start,
                    bounds,
                    streamed,
                );
                for (lane, plane) in in_place.iter_mut().enumerate().take(offsets.len()) {
                    finish(lane, elements.start, &mut plane[elements.clone()]);
                }
            }
        }
        drop(in_place);
        for IndexedRun { elements, first } in runs.iter().filter(|run| !(stored && whole(run))) {
            for at in (0..elements.len()).step_by(STAGED_ELEMENTS) {
                let count = STAGED_ELEMENTS.min(elements.len() - at);
                let mut rows = rows.chunks_mut(STAGED_ELEMENTS).take(channels.len()).collect::<SmallVec<[_; 16]>>();
                kernels.pixels_to_rows(
                    from,
                    starts.of(first + at..first + at + count.max(lanes)),
                    &mut rows,
                    0,
                    bounds,
                    false,
                );
                let begin = elements.start + at;
                let segments = self.segments(channels.clone(), outer, begin..begin + count);
                for (lane, (to, from)) in segments.zip(rows).enumerate() {
                    finish(lane, begin, &mut from[..count]);
                    E::narrow_slice(&from[..count], to);
                }
            }
        }
    }

    /// All channels of consecutive output rows (NXC), for a task that has whole rows.
    pub fn pixels_of_rows(&mut self, outer: usize, rows: Range<usize>) -> &mut [E] {
        let len = self.columns.len() * self.step;
        &mut self.slices.elements(outer)[(rows.start - self.rows.start) * len..][..rows.len() * len]
    }

    /// Whole output rows of one channel as one slice. `None` if the data format is channels-last or
    /// the task does not have whole rows.
    pub fn whole_rows(&mut self, width: usize, channel: usize, outer: usize, rows: Range<usize>) -> Option<&mut [E]> {
        if self.step != 1 || self.columns != (0..width) {
            return None;
        }
        let elements = self.slices.elements(channel * self.outer_phases.len() + outer);
        Some(&mut elements[(rows.start - self.rows.start) * width..(rows.end - self.rows.start) * width])
    }

    /// Writes one whole output row of one channel. `row` counts the output's rows.
    pub fn write_row(&mut self, channel: usize, outer: usize, row: usize, values: &[E::Compute]) {
        self.put(channel, outer, row, self.columns.start, values);
    }

    /// Collects consecutive elements (see [`TaskOutput::plane_index`]) of consecutive channels, to
    /// be written in place.
    ///
    /// `slices` must be empty on entry. It is an argument because it is large to move.
    /// Returns whether this was possible. The data format or the element type may forbid it.
    pub fn channel_elements<'s, A: Array<Item = &'s mut [E::Compute]>>(
        &'s mut self,
        channels: Range<usize>,
        outer: usize,
        elements: Range<usize>,
        slices: &mut SmallVec<A>,
    ) -> bool {
        let of_rows = self.step == 1;
        for elements in self.segments(channels, outer, elements) {
            match E::as_compute_mut(elements) {
                Some(elements) if of_rows => slices.push(elements),
                _ => return false,
            }
        }
        true
    }
}
