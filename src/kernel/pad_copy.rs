//! Copies of rows with zeros around them. For short rows, a call to `memcpy` per row would cost
//! more than the copy.

use crate::compute::Compute;
use crate::simd::vector::{Vector, covering};

/// Rows to copy, and the zeros around each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Number of rows.
    pub count: usize,
    /// Elements per row.
    pub width: usize,
    /// Elements from the start of a row to that of the next.
    pub step: usize,
    /// Zeros before each row. The rest of the written row is filled with zeros too.
    pub before: usize,
}

/// Rows whose even and odd elements are split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitRows {
    /// Number of rows.
    pub count: usize,
    /// Elements from the start of a row to that of the next.
    pub step: usize,
    /// Even and odd elements per row.
    pub widths: [usize; 2],
    /// Zeros before the even and the odd elements. The rest of the written row is filled with zeros
    /// too.
    pub before: [usize; 2],
}

/// `to[r·pitch + before + i] = from[r·step + i]` for each row `r`. All other elements of `to`'s
/// rows are zero.
///
/// # Safety
/// The CPU has `V`'s instruction set. `from` holds all rows. `to` is `count` rows of `pitch`
/// elements. `before + width` is at most `pitch`.
#[inline(always)]
pub(crate) unsafe fn padded_rows<V: Vector>(from: &[V::Lane], rows: &Rows, to: &mut [V::Lane], pitch: usize) {
    let Rows { count, width, step, before } = *rows;
    for r in 0..count {
        // SAFETY: by this function's contract both rows are within their slices.
        // A row of at least one vector is read and written in vectors within the row.
        // A shorter row is copied as one vector only if that vector is within both slices. It may
        // overwrite later elements of `to`, all of which are written afterwards.
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

/// `to[s][r·pitch + before[s] + i] = from[r·step + 2·i + s]` for `s` in `0..2` and each row `r`.
/// All other elements of `to`'s rows are zero.
///
/// # Safety
/// The CPU has `V`'s instruction set. `from` holds all elements that are read. Each slice of `to`
/// is `count` rows of `pitch` elements. `before[s] + widths[s]` is at most `pitch`.
#[inline(always)]
pub(crate) unsafe fn split_rows<V: Vector>(from: &[V::Lane], rows: &SplitRows, to: [&mut [V::Lane]; 2], pitch: usize) {
    let SplitRows { count, step, widths, before } = *rows;
    let lens = [to[0].len(), to[1].len()];
    let to = to.map(|to| to.as_mut_ptr());
    let both = widths[0].min(widths[1]);
    for r in 0..count {
        // SAFETY: by this function's contract all rows are within their slices. Two whole vectors
        // are read at a time: within the row if it has a vector of both even and odd elements, else
        // only if they are within `from`. In the first case they are stored within the rows. In the
        // second case they are stored only if each is within `to`. It may overwrite later elements
        // of `to`, all of which are written afterwards.
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
            // This becomes a call to `memset`, which costs more than the stores above.
            _ => (0..count).for_each(|i| to.add(i).write(T::ZERO)),
        }
    }
}
