//! Ranges split into blocks and runs, and flat indices over several axes.

use std::ops::Range;

/// Returns `ceil(a / b)` for any sign of `a` and positive `b`.
pub(crate) fn ceil_div(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + (a.rem_euclid(b) != 0) as i64
}

/// Splits `0..len` into blocks of `size`; the last block may be shorter.
pub(crate) fn blocks_of(len: usize, size: usize) -> Vec<Range<usize>> {
    (0..len).step_by(size.max(1)).map(|begin| begin..(begin + size).min(len)).collect()
}

/// Splits `0..len` into `count` blocks whose sizes differ by at most one.
pub(crate) fn even_blocks(len: usize, count: usize) -> Vec<Range<usize>> {
    let count = count.clamp(1, len.max(1));
    // u128: the product of a length and a count may overflow usize
    let at = |i: usize| (len as u128 * i as u128 / count as u128) as usize;
    (0..count).map(|i| at(i)..at(i + 1)).collect()
}

/// Splits `all` into as few parts as possible, of at most `most` and nearly equal size. Returns the
/// size of a part.
pub(crate) fn even_part(all: usize, most: usize) -> usize {
    let all = all.max(1);
    all.div_ceil(all.div_ceil(most.clamp(1, all)))
}

/// A run of grid positions of one row, within a flat range.
pub(crate) struct FlatRun {
    /// Row of the block.
    pub row: usize,
    /// First column of the block.
    pub column: usize,
    /// Number of columns.
    pub len: usize,
    /// Distance from the start of the flat range.
    pub at: usize,
}

/// The runs of a range of the flat index `row·pitch + column`, restricted to `columns`.
///
/// The other columns have no output or belong to another accumulator block.
pub(crate) fn flat_runs(flat: Range<usize>, pitch: usize, columns: Range<usize>) -> impl Iterator<Item = FlatRun> {
    let rows = flat.start / pitch..flat.end.div_ceil(pitch);
    rows.filter_map(move |row| {
        let begin = flat.start.max(row * pitch + columns.start);
        let end = flat.end.min(row * pitch + columns.end);
        (begin < end).then(|| FlatRun { row, column: begin - row * pitch, len: end - begin, at: begin - flat.start })
    })
}

/// Converts a flat index over axes of the given sizes, outermost first, to one index per axis.
pub(crate) fn unflatten(mut flat: usize, sizes: impl DoubleEndedIterator<Item = usize>) -> Vec<usize> {
    let mut at: Vec<usize> = sizes
        .rev()
        .map(|size| {
            let i = flat % size;
            flat /= size;
            i
        })
        .collect();
    at.reverse();
    at
}
