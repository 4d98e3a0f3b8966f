//! The copy into input tiles, seen from the input: the pixels to which runs of input positions go.
//!
//! For copies that convert pixels on the way.

use crate::layout::input_tile::{CopyPlan, InputTiles, Inside, Part};
use crate::memory::reserved;
use std::ops::Range;
use tract_core::internal::TractResult;

/// Equidistant positions of a run, and the consecutive pixels to which they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopySegment {
    /// Index of the first pixel within a plane's input tiles.
    pub to: usize,
    /// Index of the first position within the run.
    pub from: usize,
    /// Distance between the positions of consecutive pixels.
    pub step: usize,
    pub count: usize,
}

/// The copy of a plane of rows and columns into its input tiles.
///
/// It is the same for every channel and for every plane that is inside the input.
pub(crate) struct CopySegments {
    /// Runs of a plane's positions, row by row, each with the range of its copy segments in `all`.
    pub runs: Vec<(Range<usize>, Range<usize>)>,
    pub all: Vec<CopySegment>,
    /// Per plane that is inside the input, its offset in the input and the index of its first
    /// pixel.
    pub planes: Vec<(usize, usize)>,
    /// The pixels outside the input, over all planes.
    pub outside: Vec<Range<usize>>,
}

impl InputTiles {
    /// Splits the copy of a block into runs of at most `most` positions.
    ///
    /// The runs hold all positions that the block needs. Adjacent rows share a run only if the gap
    /// between them is shorter than a row.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn segments(&self, copy_plan: &CopyPlan, most: usize) -> TractResult<CopySegments> {
        let (classes, width) = (self.columns.firsts.len(), self.columns.input);
        let per_plane = self.rows.firsts.len() * classes;
        let parts = copy_plan.parts.get(..per_plane).unwrap_or(&[]);
        let mut segments =
            CopySegments { runs: vec![], all: vec![], planes: vec![], outside: self.outside(copy_plan)? };
        let planes = copy_plan.parts.chunks(per_plane.max(1)).enumerate();
        let begin = |(at, parts): (usize, &[Part])| {
            let base = parts.iter().find_map(|part| part.base)?;
            Some((base, at * per_plane * self.input_tile))
        };
        segments.planes = planes.filter_map(begin).collect();

        let rows_of = |inside: &Inside| {
            let (first, step) = (inside.from, self.rows.in_step);
            (0..inside.pixels.len()).map(move |at| first + at * step)
        };
        let count: usize = parts.iter().map(|part| part.rows.pixels.len()).sum();
        let mut rows = reserved("rows", count)?;
        rows.extend(parts.chunks(classes.max(1)).flat_map(|parts| rows_of(&parts[0].rows)));
        rows.sort_unstable();
        let spans = parts.iter().take(classes).map(|part| &part.columns).filter(|inside| !inside.pixels.is_empty());
        let spans = spans.map(|inside| inside.from..inside.position(inside.pixels.end - 1, self.columns.in_step) + 1);
        let Some(span) = spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { return Ok(segments) };
        let mut wholes: Vec<Range<usize>> = reserved("rows", rows.len())?;
        for row in rows {
            let positions = row * width + span.start..row * width + span.end;
            match wholes.last_mut() {
                Some(last) if last.end + width == positions.end && 2 * span.len() > width => last.end = positions.end,
                _ => wholes.push(positions),
            }
        }
        // Lists that grew would move, and threads would wait for each other in the allocator.
        let runs = wholes.iter().map(|whole| whole.len().div_ceil(most)).sum();
        segments.runs = reserved("copied runs", runs)?;
        // A row belongs to one row class. It has a segment per column class, and as many more in each run that it is in.
        segments.all = reserved("copied runs", count + runs * classes)?;
        let room = segments.all.capacity();
        for whole in wholes {
            for begin in whole.clone().step_by(most) {
                let run = begin..whole.end.min(begin.saturating_add(most));
                let first = segments.all.len();
                self.add_segments(parts, &run, &mut segments.all);
                segments.runs.push((run, first..segments.all.len()));
            }
        }
        debug_assert_eq!(segments.all.capacity(), room, "the list grew");
        Ok(segments)
    }

    /// Adds the copy segments of a run. `parts` are those of a plane.
    fn add_segments(&self, parts: &[Part], run: &Range<usize>, to: &mut Vec<CopySegment>) {
        let (classes, width, step) = (self.columns.firsts.len(), self.columns.input, self.columns.in_step);
        for row in run.start / width..run.end.div_ceil(width) {
            let first = row * width;
            let columns = run.start.max(first) - first..run.end.min(first + width) - first;
            for (class, parts) in parts.chunks(classes).enumerate() {
                let Some(tile_row) = parts[0].rows.pixel(row, self.rows.in_step) else { continue };
                for (at, part) in parts.iter().enumerate() {
                    let pixels = part.columns.between(&columns, step);
                    if pixels.is_empty() {
                        continue;
                    }
                    let segment = CopySegment {
                        to: (class * classes + at) * self.input_tile + tile_row * self.pitch + pixels.start,
                        from: first + part.columns.position(pixels.start, step) - run.start,
                        step,
                        count: pixels.len(),
                    };
                    match to.last_mut() {
                        // Rows without gaps continue the previous segment.
                        Some(last)
                            if step == 1
                                && last.from + last.count == segment.from
                                && last.to + last.count == segment.to =>
                        {
                            last.count += segment.count
                        }
                        _ => to.push(segment),
                    }
                }
            }
        }
    }

    /// The pixels of a block's rows that are outside the input.
    fn outside(&self, copy_plan: &CopyPlan) -> TractResult<Vec<Range<usize>>> {
        let mut outside: Vec<Range<usize>> = reserved("padding", copy_plan.parts.len() * (copy_plan.count + 1))?;
        let mut add = |pixels: Range<usize>| match outside.last_mut() {
            Some(last) if last.end == pixels.start => last.end = pixels.end,
            _ if pixels.is_empty() => {}
            _ => outside.push(pixels),
        };
        for (at, part) in copy_plan.parts.iter().enumerate() {
            let rows = if part.base.is_some() { part.rows.pixels.clone() } else { 0..0 };
            for row in 0..copy_plan.count {
                let begin = at * self.input_tile + row * self.pitch;
                let inside = if rows.contains(&row) { part.columns.pixels.clone() } else { 0..0 };
                add(begin..begin + inside.start);
                add(begin + inside.end..begin + copy_plan.width);
            }
        }
        Ok(outside)
    }
}

impl Inside {
    /// The input index of a pixel.
    fn position(&self, pixel: usize, step: usize) -> usize {
        self.from + (pixel - self.pixels.start) * step
    }

    /// The pixel to which an input index is copied.
    fn pixel(&self, position: usize, step: usize) -> Option<usize> {
        let at = position.checked_sub(self.from).filter(|at| at.is_multiple_of(step))? / step;
        (at < self.pixels.len()).then_some(self.pixels.start + at)
    }

    /// The pixels to which a range of input indices is copied.
    fn between(&self, positions: &Range<usize>, step: usize) -> Range<usize> {
        let pixel = |position: usize| {
            self.pixels.start + position.saturating_sub(self.from).div_ceil(step).min(self.pixels.len())
        };
        pixel(positions.start)..pixel(positions.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Axes, AxisPhases};
    use crate::kernel::Dispatch;
    use crate::simd::isa::Isa;
    use crate::spec::{Axis, Direction};
    use tract_core::internal::tract_itertools::{Itertools, iproduct};

    /// Copy segments and zeros make the same input tiles as copying row by row, for any length of
    /// runs, and for blocks with fewer columns than the input tiles have.
    #[test]
    fn copy_segments_fill_input_tiles() -> TractResult<()> {
        let kernels = <f32 as Dispatch>::kernels(Isa::Portable);
        let forward = |input: usize, kernel: usize, stride: usize, dilation: usize, pad: i64| {
            let output = (input + 2 * pad as usize - (kernel - 1) * dilation - 1) / stride + 1;
            let axis = Axis { input, output, kernel, stride, dilation, pad_begin: pad };
            AxisPhases::new(&axis, Direction::Forward)
        };
        let transposed = |input: usize, kernel: usize, stride: usize, pad: i64| {
            let output = (input - 1) * stride + kernel - 2 * pad as usize;
            let axis = Axis { input, output, kernel, stride, dilation: 1, pad_begin: pad };
            AxisPhases::new(&axis, Direction::Transposed)
        };
        let variants = |input: usize| {
            vec![
                forward(input, 1, 1, 1, 0),
                forward(input, 3, 1, 1, 1),
                forward(input, 3, 2, 1, 1),
                forward(input, 2, 3, 2, 1),
                forward(input, 1, 2, 1, 0),
                transposed(input, 4, 2, 1),
            ]
        };
        let mut compared = 0;
        for (z, y, x) in iproduct!([transposed(2, 3, 2, 1), forward(3, 3, 1, 1, 1)], variants(5), variants(9)) {
            let axes = [z, y, x];
            let [_, y, x] = &axes;
            let (input, grid) = ([axes[0].input, y.input, x.input], (y.grid, x.grid));
            let strides = [input[1] * input[2], input[2], 1];
            // Every pixel of the input is nonzero.
            let source: Vec<f32> = (1..=input.iter().product()).map(|at| at as f32).collect();
            let halves = |size: usize| [size, size.div_ceil(2)];
            let blocks = iproduct!([false, true], halves(grid.0), halves(grid.1), 0..axes[0].grid);
            for (copy_per_shift, rows, columns, at) in blocks {
                let input_tiles = InputTiles::new(&Axes::of(&axes), rows, grid.1, copy_per_shift);
                let block = grid.0 - rows..grid.0;
                let copy_plan = input_tiles.copy_plan(&strides, &[at], block, 0..columns)?;
                let mut want = vec![f32::NAN; input_tiles.channel_stride];
                input_tiles.fill_pixels(kernels, &copy_plan, &source, 1, &mut want);
                let width = columns + input_tiles.pitch - grid.1;
                let written = input_tiles.count() * (rows + input_tiles.rows.extra) * width;
                for most in [1, 7, usize::MAX] {
                    let segments = input_tiles.segments(&copy_plan, most)?;
                    let mut got = vec![f32::NAN; input_tiles.channel_stride];
                    segments.outside.iter().for_each(|pixels| got[pixels.clone()].fill(0.0));
                    for ((base, first), (run, copied)) in segments.planes.iter().cartesian_product(&segments.runs) {
                        assert!(run.len() <= most);
                        for segment in &segments.all[copied.clone()] {
                            for i in 0..segment.count {
                                let position = segment.from + i * segment.step;
                                assert!(position < run.len());
                                let to = &mut got[first + segment.to + i];
                                assert!(to.is_nan(), "a pixel is written twice");
                                *to = source[base + run.start + position];
                            }
                        }
                    }
                    // Only the pixels that the block needs are written.
                    assert_eq!(got.iter().filter(|pixel| !pixel.is_nan()).count(), written);
                    let same = got.iter().zip(&want).all(|(got, want)| got == want || got.is_nan());
                    assert!(
                        same,
                        "{axes:?} copy_per_shift={copy_per_shift} rows={rows} columns={columns} at={at} most={most}: \
                        {got:?}, not {want:?}"
                    );
                    compared += 1;
                }
            }
        }
        assert!(compared > 1000, "{compared}");
        Ok(())
    }
}
