//! Windows of the input, laid out so that every tap is one constant offset.
//!
//! A *sheet* holds, for one channel, what a class of taps reads for a block of grid positions: rows of equal pitch, cells outside
//! the input zero. Taps whose shifts differ by whole steps may share a sheet with a few extra rows or columns; the others
//! have a sheet of their own. In the flat index `row·pitch + column` of a sheet, the same position of another tap is then a
//! constant away, and a register tile may run over row ends.

mod segments;

use crate::element::{Compute, Element};
use crate::geometry::AxisPhases;
use crate::kernel::{Kernels, Rows, SplitRows};
use crate::memory::{Aligned, reserved};
use crate::spec::DataFormat;
pub(crate) use segments::Landing;
use std::collections::HashMap;
use std::ops::Range;
use tract_core::internal::*;

/// How the taps of one axis share sheets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AxisSheets {
    /// For each class, the input index of its first cell at grid position zero.
    firsts: Vec<i64>,
    /// Cells that a class needs beyond those of the block.
    extra: usize,
    /// For each distinct shift `(shift, class, cells from the class's first)`.
    shifts: Vec<(i64, usize, usize)>,
    in_step: usize,
    input: usize,
}

impl AxisSheets {
    /// One class for each shift.
    fn apart(axis: &AxisPhases) -> AxisSheets {
        let shifts = axis.shifts();
        AxisSheets {
            extra: 0,
            shifts: shifts.iter().enumerate().map(|(class, s)| (*s, class, 0)).collect(),
            firsts: shifts,
            in_step: axis.in_step,
            input: axis.input,
        }
    }

    /// One class for the shifts that are whole steps apart.
    fn shared(axis: &AxisPhases) -> AxisSheets {
        let step = axis.in_step as i64;
        let mut sheets =
            AxisSheets { firsts: vec![], extra: 0, shifts: vec![], in_step: axis.in_step, input: axis.input };
        let mut classes = HashMap::new();
        for shift in axis.shifts() {
            // ascending, so the first of a class is its smallest
            let class = *classes.entry(shift.rem_euclid(step)).or_insert_with(|| {
                sheets.firsts.push(shift);
                sheets.firsts.len() - 1
            });
            let offset = ((shift - sheets.firsts[class]) / step) as usize;
            sheets.extra = sheets.extra.max(offset);
            sheets.shifts.push((shift, class, offset));
        }
        sheets
    }

    fn find(&self, shift: i64) -> (usize, usize) {
        let at = self.shifts.partition_point(|s| s.0 < shift);
        (self.shifts[at].1, self.shifts[at].2)
    }

    /// Which of the first `count` cells of a class are inside the input, for a block that begins at grid position `begin`.
    fn inside(&self, class: usize, begin: usize, count: usize) -> Inside {
        let (step, count) = (self.in_step as i64, count as i64);
        let first = begin as i64 * step + self.firsts[class];
        let begin = crate::spec::ceil_div(-first, step).clamp(0, count);
        let end = crate::spec::ceil_div(self.input as i64 - first, step).clamp(begin, count);
        Inside {
            cells: begin as usize..end as usize,
            from: if begin < end { (first + begin * step) as usize } else { 0 },
        }
    }

    /// Elements of the input between the first and the last that some class needs for `count` cells, both included.
    fn span(&self, count: usize) -> usize {
        // shifts ascend, but those of a class need not follow each other
        let (least, most) =
            self.firsts.iter().fold((i64::MAX, i64::MIN), |(a, b), first| (a.min(*first), b.max(*first)));
        let spread = most.saturating_sub(least).max(0) as usize;
        count.saturating_sub(1).saturating_mul(self.in_step).saturating_add(spread).saturating_add(1).min(self.input)
    }

    /// The input index of the first cell of a class for a block that begins at grid position `begin`, if it exists.
    fn index(&self, class: usize, begin: usize) -> Option<usize> {
        let at = begin as i64 * self.in_step as i64 + self.firsts[class];
        (0..self.input as i64).contains(&at).then_some(at as usize)
    }
}

/// The layout of the sheets of one channel, for blocks of at most `rows` × `columns` grid positions at one outer position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sheets {
    outer: Vec<AxisSheets>,
    rows: AxisSheets,
    columns: AxisSheets,
    /// Elements between rows.
    pub pitch: usize,
    sheet: usize,
    /// Elements between channels.
    pub channel_stride: usize,
}

impl Sheets {
    /// `axes` are all spatial axes, outermost first; the last two are rows and columns. With `apart`, each column shift has its own sheet, so that rows
    /// have no extra cells and the pitch is the block's width. Sizes saturate: a dilation can spread few taps over more
    /// cells than can be counted, which [`Sheets::working_bytes`] tells.
    pub fn new(axes: &[AxisPhases], rows: usize, columns: usize, apart: bool) -> Sheets {
        let (outer, [y, x]) = axes.split_at(axes.len() - 2) else { unreachable!("axes end in rows and columns") };
        let outer: Vec<AxisSheets> = outer.iter().map(AxisSheets::apart).collect();
        let y = AxisSheets::shared(y);
        let x = if apart { AxisSheets::apart(x) } else { AxisSheets::shared(x) };
        let pitch = columns + x.extra;
        let sheet = (rows + y.extra).saturating_mul(pitch);
        let counts = outer.iter().chain([&y, &x]).map(|axis| axis.firsts.len());
        let cells = counts.fold(sheet, usize::saturating_mul);
        // whole cache lines, and never a multiple of a page: neighbouring channels must not fight for the same cache sets
        let mut channel_stride = cells.checked_next_multiple_of(16).unwrap_or(usize::MAX);
        if channel_stride.is_multiple_of(512) {
            channel_stride = channel_stride.saturating_add(16);
        }
        Sheets { outer, rows: y, columns: x, pitch, sheet, channel_stride }
    }

    /// Sheets of a channel.
    pub fn count(&self) -> usize {
        self.outer.iter().chain([&self.rows, &self.columns]).map(|axis| axis.firsts.len()).product()
    }

    /// Elements of the sheets of some channels.
    pub fn elements(&self, channels: usize) -> usize {
        self.channel_stride.saturating_mul(channels)
    }

    /// Bytes of the sheets of some channels and of what fills them: the description, and, where the input has elements of another type, the widened part
    /// of a channel.
    pub fn working_bytes(&self, channels: usize, element: usize) -> usize {
        let rows = self.rows.span(self.sheet / self.pitch);
        let widened =
            rows.saturating_sub(1).saturating_mul(self.columns.input).saturating_add(self.columns.span(self.pitch));
        let parts = (self.channel_stride / self.sheet.max(1)).saturating_mul(size_of::<Part>());
        self.elements(channels).saturating_add(widened).saturating_mul(element).saturating_add(parts)
    }

    /// Positions of the input that are between the first and the last that a block needs, of all planes of rows and columns.
    pub fn positions_read(&self) -> usize {
        let planes: usize = self.outer.iter().map(|axis| axis.firsts.len()).product();
        let rows = self.rows.span(self.sheet / self.pitch);
        planes.saturating_mul(rows).saturating_mul(self.columns.span(self.pitch))
    }

    /// The offset of a tap: one shift per axis.
    pub fn tap(&self, shifts: &[i64]) -> usize {
        let (outer, [y, x]) = shifts.split_at(shifts.len() - 2) else { unreachable!("as many shifts as axes") };
        let class =
            self.outer.iter().zip(outer).fold(0, |at, (axis, shift)| at * axis.firsts.len() + axis.find(*shift).0);
        let (y_class, y_offset) = self.rows.find(*y);
        let (x_class, x_offset) = self.columns.find(*x);
        let sheet = (class * self.rows.firsts.len() + y_class) * self.columns.firsts.len() + x_class;
        sheet * self.sheet + y_offset * self.pitch + x_offset
    }

    /// What of the input goes where for a block: `strides` are those of the spatial axes.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn filling(
        &self,
        strides: &[usize],
        outer_at: &[usize],
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> TractResult<Filling> {
        let (outer_strides, [row_stride, column_stride]) = strides.split_at(strides.len() - 2) else {
            unreachable!("axes end in rows and columns")
        };
        let count = rows.len() + self.rows.extra;
        let of_rows: Vec<Inside> =
            (0..self.rows.firsts.len()).map(|class| self.rows.inside(class, rows.start, count)).collect();
        let of_columns: Vec<Inside> =
            (0..self.columns.firsts.len()).map(|class| self.columns.inside(class, columns.start, self.pitch)).collect();
        let classes: usize = self.outer.iter().map(|o| o.firsts.len()).product();
        let mut parts = reserved("working memory", classes * of_rows.len() * of_columns.len())?;
        for class in 0..classes {
            let mut base = Some(0);
            let mut left = class;
            for ((axis, stride), at) in self.outer.iter().zip(outer_strides).zip(outer_at).rev() {
                let index = axis.index(left % axis.firsts.len(), *at);
                left /= axis.firsts.len();
                base = base.zip(index).map(|(base, index)| base + index * stride);
            }
            for rows in &of_rows {
                parts.extend(of_columns.iter().map(|columns| Part {
                    base: base.filter(|_| !rows.cells.is_empty() && !columns.cells.is_empty()),
                    rows: rows.clone(),
                    columns: columns.clone(),
                }));
            }
        }
        let whole = columns.len() == self.pitch && self.columns.input == self.pitch;
        let unit = *column_stride == 1 && (self.rows.in_step, self.columns.in_step) == (1, 1);
        Ok(Filling {
            parts,
            count,
            row_stride: *row_stride,
            column_stride: *column_stride,
            shifted: whole && unit && *row_stride == self.pitch,
            split: if *column_stride == 1 && self.columns.in_step == 2 { first_of(&of_columns) } else { None },
        })
    }

    /// Writes the sheets of one channel, whose elements follow each other in the input; `source` begins with the first. `wide` is working memory for
    /// elements of another type than sheets have.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn fill<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        filling: &Filling,
        source: &[E],
        to: &mut [E::Compute],
        wide: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let per_plane = self.rows.firsts.len() * self.columns.firsts.len();
        let sheets = to.chunks_mut((per_plane * self.sheet).max(1));
        for (parts, sheets) in filling.parts.chunks(per_plane.max(1)).zip(sheets) {
            let read = self.read_by(filling, parts);
            let read = match E::as_compute(&source[read.clone()]) {
                Some(plane) => (plane, read.start),
                None => {
                    let plane = wide.of(read.len())?;
                    E::widen_slice(&source[read.clone()], plane);
                    (&*plane, read.start)
                }
            };
            self.fill_plane(kernels, filling, parts, read, sheets);
        }
        Ok(())
    }

    /// The sheets of one plane of rows and columns, of which an element of the channel and all that is read from there on is given.
    fn fill_plane<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        filling: &Filling,
        parts: &[Part],
        (plane, at): (&[T], usize),
        sheets: &mut [T],
    ) {
        let columns = self.columns.firsts.len();
        let from = |parts: &[Part]| {
            let read = self.read_by(filling, parts);
            &plane[read.start - at..read.end - at]
        };
        for (parts, sheets) in parts.chunks(columns).zip(sheets.chunks_mut(columns * self.sheet)) {
            let mut sheets = sheets.chunks_mut(self.sheet).map(|sheet| &mut sheet[..filling.count * self.pitch]);
            if let ([a, b], Some(first), Some(_)) = (parts, filling.split, parts[0].base)
                && let Some(both) = sheets.next().zip(sheets.next())
            {
                self.fill_split(kernels, filling, first, [a, b], from(parts), both.into());
                continue;
            }
            for (part, sheet) in parts.iter().zip(sheets) {
                if part.base.is_none() {
                    sheet.fill(T::ZERO);
                    continue;
                }
                let source = from(std::slice::from_ref(part));
                if filling.shifted {
                    self.fill_shifted(part, source, sheet);
                } else if self.columns.in_step == 1 {
                    self.fill_rows(kernels, filling, part, source, sheet);
                } else {
                    let copy = |from: &[_], to: &mut [_]| kernels.strided(from, self.columns.in_step, to);
                    self.fill_stepped(filling, part, source, 1, sheet, copy);
                }
            }
        }
    }

    /// As [`Sheets::fill`], for cells that hold `depth` channels side by side, in the input as in the sheets.
    pub fn fill_cells<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        filling: &Filling,
        source: &[E],
        depth: usize,
        to: &mut [E::Compute],
    ) {
        for (part, sheet) in filling.parts.iter().zip(to.chunks_mut((self.sheet * depth).max(1))) {
            let sheet = &mut sheet[..filling.count * self.pitch * depth];
            let Some(base) = part.base else {
                sheet.fill(E::Compute::ZERO);
                continue;
            };
            let first = base + part.rows.from * filling.row_stride + part.columns.from * filling.column_stride;
            let stride = self.columns.in_step * filling.column_stride;
            let copy = |from: &[E], to: &mut [_]| copy(kernels, from, stride, depth, to);
            self.fill_stepped(filling, part, &source[first..], depth, sheet, copy);
        }
    }

    /// Writes the sheets of some channels of channels-first input, `stride` elements apart from the first in `source`, as cells of `cell` elements, whole vectors. `planes` and
    /// `wide` are working memory.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn fill_transposed<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        filling: &Filling,
        (source, stride, channels): (&[E], usize, usize),
        (to, cell): (&mut [E::Compute], usize),
        (planes, wide): (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        let (lanes, size) = (kernels.lanes, self.channel_stride);
        if let Some(source) = E::as_compute(source).filter(|_| self.rows_make_squares(filling, lanes)) {
            self.fill_squares(kernels, filling, (source, stride, channels), (to, cell));
            return Ok(());
        }
        let planes = planes.of(lanes * size)?;
        for c in (0..channels).step_by(lanes) {
            for (ci, plane) in (c..channels).zip(planes.chunks_mut(size)) {
                self.fill(kernels, filling, &source[ci * stride..], plane, wide)?;
            }
            crate::layout::transposed(kernels, planes, size, (size, lanes), &mut to[c..], cell);
        }
        Ok(())
    }

    /// Whether rows are read without gaps, and hardly longer in whole vectors than with what is around them.
    fn rows_make_squares(&self, filling: &Filling, lanes: usize) -> bool {
        let of_part = |part: &Part| part.columns.cells.len().next_multiple_of(lanes) <= self.pitch + lanes / 4;
        (self.columns.in_step, filling.column_stride) == (1, 1) && filling.parts.iter().all(of_part)
    }

    /// As [`Sheets::fill_transposed`], row by row from where they are.
    fn fill_squares<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        filling: &Filling,
        (source, stride, channels): (&[T], usize, usize),
        (to, cell): (&mut [T], usize),
    ) {
        for (part, sheet) in filling.parts.iter().zip(to.chunks_mut((self.sheet * cell).max(1))) {
            let sheet = &mut sheet[..filling.count * self.pitch * cell];
            let Some(base) = part.base else {
                sheet.fill(T::ZERO);
                continue;
            };
            let (begin, end) = (part.columns.cells.start * cell, part.columns.cells.end * cell);
            let first = base + part.rows.from * filling.row_stride + part.columns.from;
            let inside = part.rows_inside(self.pitch * cell, sheet);
            for row in inside.chunks_mut(self.pitch * cell) {
                row[..begin].fill(T::ZERO);
                row[end..].fill(T::ZERO);
            }
            for c in (0..channels).step_by(kernels.lanes) {
                let size = (part.columns.cells.len(), kernels.lanes.min(channels - c));
                for (j, row) in inside.chunks_mut(self.pitch * cell).enumerate() {
                    let from = &source[c * stride + first + j * self.rows.in_step * filling.row_stride..];
                    crate::layout::transposed(kernels, from, stride, size, &mut row[begin + c..], cell);
                }
            }
        }
    }

    /// Writes the sheets of some channels as cells of `cell` elements, from either layout: channels-first input has its planes `stride` elements apart, channels-last
    /// cells stay as they are. The rest is as for [`Sheets::fill_transposed`].
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn fill_deep<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        filling: &Filling,
        data_format: DataFormat,
        (source, stride, channels): (&[E], usize, usize),
        (to, cell): (&mut [E::Compute], usize),
        working: (&mut Aligned<E::Compute>, &mut Aligned<E::Compute>),
    ) -> TractResult<()> {
        match data_format {
            DataFormat::Nxc => {
                self.fill_cells(kernels, filling, source, cell, to);
                Ok(())
            }
            DataFormat::Ncx => self.fill_transposed(kernels, filling, (source, stride, channels), (to, cell), working),
        }
    }

    /// Row by row, by a function that copies cells of `depth` elements; `source` begins with the first cell.
    fn fill_stepped<S, T: Compute>(
        &self,
        filling: &Filling,
        part: &Part,
        source: &[S],
        depth: usize,
        sheet: &mut [T],
        copy: impl Fn(&[S], &mut [T]),
    ) {
        let (begin, end) = (part.columns.cells.start * depth, part.columns.cells.end * depth);
        let rows = part.rows_inside(self.pitch * depth, sheet).chunks_mut(self.pitch * depth);
        for (j, row) in rows.enumerate() {
            clear(&mut row[..begin]);
            clear(&mut row[end..]);
            copy(&source[j * self.rows.in_step * filling.row_stride..], &mut row[begin..end]);
        }
    }

    /// From the first to the last element that some parts read of a channel that has its elements side by side.
    fn read_by(&self, filling: &Filling, parts: &[Part]) -> Range<usize> {
        let of_part = |part: &Part| {
            let first = part.base? + part.rows.from * filling.row_stride + part.columns.from;
            let rows = (part.rows.cells.len() - 1) * self.rows.in_step * filling.row_stride;
            Some(first..first + rows + (part.columns.cells.len() - 1) * self.columns.in_step + 1)
        };
        let all = parts.iter().filter_map(of_part);
        all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// As [`Sheets::fill`], for `channels` that are side by side in the input: each has its sheets in a plane of its own, `stride` elements apart. Planes
    /// have room for a vector behind the sheets. `cells` is working memory.
    pub fn fill_planes<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        filling: &Filling,
        source: &[E],
        channels: usize,
        (to, stride): (&mut [E::Compute], usize),
        cells: &mut Aligned<E::Compute>,
    ) -> TractResult<()> {
        let step = self.columns.in_step * filling.column_stride;
        for (index, part) in filling.parts.iter().enumerate() {
            let sheet = index * self.sheet..index * self.sheet + filling.count * self.pitch;
            let Some(base) = part.base else {
                to.chunks_mut(stride).take(channels).for_each(|plane| plane[sheet.clone()].fill(E::Compute::ZERO));
                continue;
            };
            let (rows, columns) = (&part.rows, &part.columns);
            for (j, row) in rows.cells.clone().enumerate() {
                let size = (channels, columns.cells.len());
                let at = base + columns.from * filling.column_stride;
                let source = &source[at + (rows.from + j * self.rows.in_step) * filling.row_stride..];
                let to = &mut to[sheet.start + row * self.pitch + columns.cells.start..];
                if let Some(source) = E::as_compute(source) {
                    crate::layout::transposed(kernels, source, step, size, to, stride);
                } else {
                    let cells = cells.of(size.0 * size.1)?;
                    copy(kernels, source, step, channels, cells);
                    crate::layout::transposed(kernels, cells, channels, size, to, stride);
                }
            }
            // last: rows were written in whole vectors
            for plane in to.chunks_mut(stride).take(channels) {
                for row in part.rows_inside(self.pitch, &mut plane[sheet.clone()]).chunks_mut(self.pitch) {
                    clear(&mut row[..columns.cells.start]);
                    clear(&mut row[columns.cells.end..]);
                }
            }
        }
        Ok(())
    }

    /// The sheets of two column classes that are the even and the odd columns of the input.
    fn fill_split<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        filling: &Filling,
        first: usize,
        parts: [&Part; 2],
        source: &[T],
        sheets: [&mut [T]; 2],
    ) {
        let [a, b] = sheets;
        let (a, b) = (parts[0].rows_inside(self.pitch, a), parts[1].rows_inside(self.pitch, b));
        let to = if first == 0 { [a, b] } else { [b, a] };
        let [even, odd] = [first, 1 - first].map(|class| &parts[class].columns);
        let rows = SplitRows {
            count: parts[0].rows.cells.len(),
            step: self.rows.in_step * filling.row_stride,
            widths: [even.cells.len(), odd.cells.len()],
            before: [even.cells.start, odd.cells.start],
        };
        kernels.split_rows(source, &rows, to, self.pitch);
    }

    /// The sheet of a column class that has no gaps in the input.
    fn fill_rows<T: Compute>(
        &self,
        kernels: &Kernels<T>,
        filling: &Filling,
        part: &Part,
        source: &[T],
        sheet: &mut [T],
    ) {
        let rows = Rows {
            count: part.rows.cells.len(),
            width: part.columns.cells.len(),
            step: self.rows.in_step * filling.row_stride,
            before: part.columns.cells.start,
        };
        kernels.padded_rows(source, &rows, part.rows_inside(self.pitch, sheet), self.pitch);
    }

    /// Rows of the input's own width: one shifted copy, in which the cells that wrapped around a row's end are then cleared.
    fn fill_shifted<T: Compute>(&self, part: &Part, source: &[T], sheet: &mut [T]) {
        let Range { start, end } = part.columns.cells;
        let inside = part.rows_inside(self.pitch, sheet);
        inside[start..start + source.len()].copy_from_slice(source);
        for row in inside.chunks_mut(self.pitch) {
            clear(&mut row[..start]);
            clear(&mut row[end..]);
        }
    }
}

/// How a grid of rows and columns is cut into blocks.
pub(crate) struct GridBlocks {
    /// Grid rows of a block.
    pub rows: usize,
    /// Grid columns of a block.
    pub columns: usize,
    /// Positions of a block, the padding between its rows included.
    pub positions: usize,
    /// Blocks, over all outer positions.
    pub count: usize,
    /// The sheets of a block.
    pub sheets: Sheets,
}

impl GridBlocks {
    /// Rows and columns of blocks of which a channel's sheets have at most so many cells, where that is possible. A single row is cut, several are not.
    pub fn within(axes: &[AxisPhases], apart: bool, cells: usize) -> (usize, usize) {
        let [.., y, x] = axes else { unreachable!("axes end in rows and columns") };
        let size = |rows, columns| Sheets::new(axes, rows, columns, apart).channel_stride;
        if y.grid == 1 && y.output == 1 {
            let some = 64.min(x.grid);
            let per_column = size(1, some).div_ceil(some).max(1);
            return (1, (cells / per_column).max(256).min(x.grid));
        }
        let fixed = size(1, x.grid);
        let per_row = size(2, x.grid).saturating_sub(fixed).max(1);
        ((1 + cells.saturating_sub(fixed) / per_row).min(y.grid), x.grid)
    }

    /// As many blocks as of so many rows and columns, all about as large. Positions of blocks that are read in place have the input's rows.
    pub fn even(axes: &[AxisPhases], (rows, columns): (usize, usize), apart: bool, in_place: bool) -> GridBlocks {
        let [outer @ .., y, x] = axes else { unreachable!("axes end in rows and columns") };
        let rows = y.grid.div_ceil(y.grid.div_ceil(rows));
        let columns = x.grid.div_ceil(x.grid.div_ceil(columns));
        let sheets = Sheets::new(axes, rows, columns, apart);
        let pitch = if in_place { x.grid } else { sheets.pitch };
        let outer: usize = outer.iter().map(|a| a.grid).product();
        GridBlocks {
            rows,
            columns,
            // a dilation can make the pitch larger than can be counted
            positions: (rows - 1).saturating_mul(pitch).saturating_add(columns),
            count: outer * y.grid.div_ceil(rows) * x.grid.div_ceil(columns),
            sheets,
        }
    }
}

/// What of the input goes where in the sheets of a block: the same for every channel.
pub(crate) struct Filling {
    /// One a sheet.
    parts: Vec<Part>,
    /// Rows of a sheet.
    count: usize,
    row_stride: usize,
    column_stride: usize,
    /// Whether sheets are shifted copies of the input.
    shifted: bool,
    /// Where the columns of two classes are the even and the odd ones of the input, which of them has the first.
    split: Option<usize>,
}

/// What of the input goes to a sheet.
struct Part {
    /// Where the input is at the block's outer position; none for a sheet of zeros.
    base: Option<usize>,
    rows: Inside,
    columns: Inside,
}

impl Part {
    /// The rows of a sheet that are inside the input; the others get zeros.
    fn rows_inside<'s, T: Compute>(&self, pitch: usize, sheet: &'s mut [T]) -> &'s mut [T] {
        let Range { start, end } = self.rows.cells;
        clear(&mut sheet[..start * pitch]);
        clear(&mut sheet[end * pitch..]);
        &mut sheet[start * pitch..end * pitch]
    }
}

/// Which of two column classes has the first of the input's columns that they share, if they share all.
fn first_of(columns: &[Inside]) -> Option<usize> {
    let [a, b] = columns else { return None };
    let first = usize::from(b.from < a.from);
    let adjacent = columns[first].from + 1 == columns[1 - first].from;
    (adjacent && !a.cells.is_empty() && !b.cells.is_empty()).then_some(first)
}

/// The cells of an axis that are inside the input.
#[derive(Clone)]
struct Inside {
    cells: Range<usize>,
    /// The input index of the first cell.
    from: usize,
}

/// Zeros; most rows have few, which cost less than a call does.
fn clear<T: Compute>(cells: &mut [T]) {
    match cells {
        [] => {}
        [a] => *a = T::ZERO,
        [a, b] => (*a, *b) = (T::ZERO, T::ZERO),
        [a, b, c] => (*a, *b, *c) = (T::ZERO, T::ZERO, T::ZERO),
        more => more.fill(T::ZERO),
    }
}

/// Cells of `depth` elements, `stride` apart in `from`.
fn copy<E: Element>(kernels: &Kernels<E::Compute>, from: &[E], stride: usize, depth: usize, to: &mut [E::Compute]) {
    if stride == depth {
        E::widen_slice(&from[..to.len()], to);
    } else if depth == 1 {
        widen_strided(kernels, from, stride, to);
    } else if let Some(from) = E::as_compute(from) {
        kernels.placed_cells(from, stride, (to.len() / depth, depth), to, depth, false);
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
    // in pieces that fit the stack; far strides would widen mostly what is not read
    let mut wide = [E::Compute::ZERO; 256];
    if step > 8 {
        return to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = from.widen());
    }
    let piece = wide.len() / step;
    for (to, from) in to.chunks_mut(piece).zip(from.chunks(piece * step)) {
        let wide = &mut wide[..from.len().min(piece * step)];
        E::widen_slice(from, wide);
        kernels.strided(wide, step, to);
    }
}
