//! Copies of rows with zeros around them: what a call of `memcpy` for each short row costs more than the row does.

use crate::compute::Compute;
use crate::simd::vector::{Vector, covering};

/// Rows to copy, and the zeros around each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// How many.
    pub count: usize,
    /// Elements of one.
    pub width: usize,
    /// Elements from the begin of one to that of the next.
    pub step: usize,
    /// Zeros before each; those behind it fill the row that is written.
    pub before: usize,
}

/// Rows to split, their even elements from the odd ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitRows {
    /// How many.
    pub count: usize,
    /// Elements from the begin of one to that of the next.
    pub step: usize,
    /// Even and odd elements of one.
    pub widths: [usize; 2],
    /// Zeros before them; those behind them fill the row that is written.
    pub before: [usize; 2],
}

/// `to[r·pitch + before + i] = from[r·step + i]` for each row `r`, all else of `to`'s rows zero.
///
/// # Safety
/// The CPU has `V`'s instruction set. `from` holds all rows, `to` is as many of `pitch` elements; `before + width` is at most `pitch`.
#[inline(always)]
pub(crate) unsafe fn padded_rows<V: Vector>(from: &[V::Lane], rows: &Rows, to: &mut [V::Lane], pitch: usize) {
    let Rows { count, width, step, before } = *rows;
    for r in 0..count {
        // SAFETY: by this function's contract both rows are within their slices. Vectors are read where all of them is in the slice, and written
        // within the row, or, where rows are shorter than one, where all of it is within `to`: what that overwrites is still to be written.
        unsafe {
            let source = from.as_ptr().add(r * step);
            let row = to.as_mut_ptr().add(r * pitch);
            zero(row, before);
            let target = row.add(before);
            if width >= V::LANES {
                for i in covering(width, V::LANES) {
                    V::load(source.add(i)).store(target.add(i));
                }
            } else if r * step + V::LANES <= from.len() && r * pitch + before + V::LANES <= to.len() {
                V::load(source).store(target);
            } else {
                for i in 0..width {
                    target.add(i).write(*source.add(i));
                }
            }
            zero(target.add(width), pitch - before - width);
        }
    }
}

/// `to[s][r·pitch + before[s] + i] = from[r·step + 2·i + s]` for `s` zero and one and each row `r`, all else of the rows of `to` zero.
///
/// # Safety
/// The CPU has `V`'s instruction set. `from` holds all that is read, each of `to` is as many rows of `pitch` elements; what is written to a row fits it.
#[inline(always)]
pub(crate) unsafe fn split_rows<V: Vector>(from: &[V::Lane], rows: &SplitRows, to: [&mut [V::Lane]; 2], pitch: usize) {
    let SplitRows { count, step, widths, before } = *rows;
    let lens = [to[0].len(), to[1].len()];
    let to = to.map(|to| to.as_mut_ptr());
    let both = widths[0].min(widths[1]);
    for r in 0..count {
        // SAFETY: by this function's contract all rows are within their slices. Vectors are made of two whole ones: that the row holds, as many even as odd
        // elements, or, where rows are shorter than one, that the slice holds. Those are written where all of them is within `to`: what that overwrites is
        // still to be written.
        unsafe {
            let source = from.as_ptr().add(r * step);
            let targets = [0, 1].map(|s| to[s].add(r * pitch + before[s]));
            let mut split = 0;
            if both >= V::LANES {
                for i in covering(both, V::LANES) {
                    let halves = V::load(source.add(2 * i)).unzip(V::load(source.add(2 * i + V::LANES)));
                    for s in 0..2 {
                        halves[s].store(targets[s].add(i));
                    }
                }
                split = both;
            } else if r * step + 2 * V::LANES <= from.len()
                && (0..2).all(|s| widths[s] <= V::LANES && r * pitch + before[s] + V::LANES <= lens[s])
            {
                let halves = V::load(source).unzip(V::load(source.add(V::LANES)));
                for s in 0..2 {
                    halves[s].store(targets[s]);
                }
                split = V::LANES;
            }
            for s in 0..2 {
                zero(to[s].add(r * pitch), before[s]);
                for i in split..widths[s] {
                    targets[s].add(i).write(*source.add(2 * i + s));
                }
                zero(targets[s].add(widths[s]), pitch - before[s] - widths[s]);
            }
        }
    }
}

/// # Safety
/// `count` elements are writable.
#[inline(always)]
unsafe fn zero<T: Compute>(to: *mut T, count: usize) {
    // SAFETY: this function's contract.
    unsafe {
        match count {
            0 => {}
            1 => to.write(T::ZERO),
            2 => to.cast::<[T; 2]>().write([T::ZERO; 2]),
            // a call of `memset`, which for fewer costs more than they do
            _ => (0..count).for_each(|i| to.add(i).write(T::ZERO)),
        }
    }
}
