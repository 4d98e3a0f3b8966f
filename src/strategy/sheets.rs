//! Windows of the input, laid out so that every tap is one constant offset.
//!
//! A *sheet* holds, for one channel, what a class of taps reads for a block of grid positions: rows of equal pitch, cells outside
//! the input zero. Taps whose shifts differ by whole steps may share a sheet with a few extra rows or columns; the others
//! have a sheet of their own. In the flat index `row·pitch + column` of a sheet, the same position of another tap is then a
//! constant away, and a register tile may run over row ends.

use crate::element::{Compute, Element};
use crate::geometry::AxisPhases;
use crate::kernel::Kernels;
use std::collections::HashMap;
use std::ops::Range;

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

    /// The input index of cell `j` of a class for a block that begins at grid position `begin`, if it exists.
    fn index(&self, class: usize, begin: usize, j: usize) -> Option<usize> {
        let at = (begin + j) as i64 * self.in_step as i64 + self.firsts[class];
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
    /// cells than can be counted, which [`Sheets::bytes`] tells.
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

    /// Bytes of the sheets of some channels.
    pub fn bytes(&self, channels: usize, element: usize) -> usize {
        self.channel_stride.saturating_mul(channels).saturating_mul(element)
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

    /// Writes the sheets of one channel for a block. `source` is the channel's first element, `strides` those of the spatial axes.
    #[expect(clippy::too_many_arguments)]
    pub fn fill<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        source: &[E],
        strides: &[usize],
        outer_at: &[usize],
        rows: Range<usize>,
        columns: Range<usize>,
        to: &mut [E::Compute],
    ) {
        self.fill_cells(kernels, source, strides, 1, outer_at, rows, columns, to);
    }

    /// As [`Sheets::fill`], for cells that hold `depth` channels side by side, in the input as in the sheets.
    #[expect(clippy::too_many_arguments)]
    pub fn fill_cells<E: Element>(
        &self,
        kernels: &Kernels<E::Compute>,
        source: &[E],
        strides: &[usize],
        depth: usize,
        outer_at: &[usize],
        rows: Range<usize>,
        columns: Range<usize>,
        to: &mut [E::Compute],
    ) {
        let (outer_strides, [row_stride, column_stride]) = strides.split_at(strides.len() - 2) else { return };
        let mut sheets = to.chunks_mut((self.sheet * depth).max(1));
        let classes: usize = self.outer.iter().map(|o| o.firsts.len()).product();
        for class in 0..classes {
            let mut base = Some(0);
            let mut left = class;
            for ((axis, stride), at) in self.outer.iter().zip(outer_strides).zip(outer_at).rev() {
                let index = axis.index(left % axis.firsts.len(), *at, 0);
                left /= axis.firsts.len();
                base = base.zip(index).map(|(base, index)| base + index * stride);
            }
            for y_class in 0..self.rows.firsts.len() {
                for x_class in 0..self.columns.firsts.len() {
                    let Some(sheet) = sheets.next() else { return };
                    let whole_rows = depth == 1 && columns.len() == self.pitch && self.columns.input == self.pitch;
                    if whole_rows
                        && (*row_stride, *column_stride, self.rows.in_step, self.columns.in_step)
                            == (self.pitch, 1, 1, 1)
                        && let Some(base) = base
                    {
                        self.fill_shifted(y_class, x_class, &source[base..], rows.clone(), sheet);
                        continue;
                    }
                    let inside = self.inside(x_class, self.pitch, columns.start);
                    let from = inside.from * column_stride;
                    for j in 0..rows.len() + self.rows.extra {
                        let row = &mut sheet[j * self.pitch * depth..(j + 1) * self.pitch * depth];
                        match base.zip(self.rows.index(y_class, rows.start, j)) {
                            None => row.fill(E::Compute::ZERO),
                            Some((base, i)) => {
                                let (begin, end) = (inside.cells.start * depth, inside.cells.end * depth);
                                clear(&mut row[..begin]);
                                clear(&mut row[end..]);
                                if begin < end {
                                    let source = &source[base + i * row_stride + from..];
                                    let stride = self.columns.in_step * column_stride;
                                    copy(kernels, source, stride, depth, &mut row[begin..end]);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// What a row of column class `class` holds, seen from grid column `begin`.
    fn inside(&self, class: usize, cells: usize, begin: usize) -> InsideRow {
        let axis = &self.columns;
        let (step, cells) = (axis.in_step as i64, cells as i64);
        let first = begin as i64 * step + axis.firsts[class];
        let begin = crate::spec::ceil_div(-first, step).clamp(0, cells);
        let end = crate::spec::ceil_div(axis.input as i64 - first, step).clamp(begin, cells);
        InsideRow {
            cells: begin as usize..end as usize,
            from: if begin < end { (first + begin * step) as usize } else { 0 },
        }
    }

    /// Rows of the input's own width: one shifted copy, in which the cells that wrapped around a row's end are then cleared.
    fn fill_shifted<E: Element>(
        &self,
        y_class: usize,
        x_class: usize,
        source: &[E],
        rows: Range<usize>,
        sheet: &mut [E::Compute],
    ) {
        let pitch = self.pitch as i64;
        let first_row = rows.start as i64 + self.rows.firsts[y_class];
        let count = (rows.len() + self.rows.extra) as i64;
        let begin = (-first_row).clamp(0, count);
        let end = (self.rows.input as i64 - first_row).clamp(begin, count);
        let shift = self.columns.firsts[x_class];
        let sheet = &mut sheet[..(count * pitch) as usize];
        sheet[..(begin * pitch) as usize].fill(E::Compute::ZERO);
        sheet[(end * pitch) as usize..].fill(E::Compute::ZERO);
        let inside = &mut sheet[(begin * pitch) as usize..(end * pitch) as usize];
        if inside.is_empty() || shift.abs() >= pitch {
            return inside.fill(E::Compute::ZERO);
        }
        // cell c of `inside` comes from c + from of the source's plane
        let from = (first_row + begin) * pitch + shift;
        let plane = self.rows.input as i64 * pitch;
        let copy_begin = (-from).clamp(0, inside.len() as i64);
        let copy_end = (plane - from).clamp(copy_begin, inside.len() as i64);
        E::widen_slice(
            &source[(from + copy_begin) as usize..(from + copy_end) as usize],
            &mut inside[copy_begin as usize..copy_end as usize],
        );
        let wrapped = if shift < 0 { 0..-shift } else { pitch - shift..pitch };
        for row in inside.chunks_mut(self.pitch) {
            row[wrapped.start as usize..wrapped.end as usize].fill(E::Compute::ZERO);
        }
    }
}

/// The part of a row that is inside the input.
struct InsideRow {
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
