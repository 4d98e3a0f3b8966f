//! Transposition by squares of as many vectors as a vector has lanes.

use super::vector::{Vector, covering, interleave};

/// `to[j][i] = from[starts[i] + j]`: a run of cells, `LANES` elements each, becomes rows. Rows that are not there are dropped.
///
/// # Safety
/// The CPU has `V`'s instruction set; there are at least `LANES` starts, from each of which `from` holds `LANES` elements; each of the rows, at
/// most `LANES`, holds an element for each start.
#[inline(always)]
pub(super) unsafe fn cells_to_rows<V: Vector, const LANES: usize>(
    from: &[V::Lane],
    starts: &[usize],
    to: &mut [&mut [V::Lane]],
) {
    for at in covering(starts.len(), LANES) {
        // SAFETY: squares end where the starts do; the rest is this function's contract.
        unsafe {
            // the interleaving of as many runs as a run is long is their transpose
            let columns: [V; LANES] =
                interleave(std::array::from_fn(|i| V::load(from.as_ptr().add(*starts.get_unchecked(at + i)))));
            match <&mut [&mut [V::Lane]; LANES]>::try_from(&mut *to) {
                // a number that the compiler knows: the columns stay in registers
                Ok(to) => to.iter_mut().zip(columns).for_each(|(row, column)| column.store(row.as_mut_ptr().add(at))),
                Err(_) => to.iter_mut().zip(columns).for_each(|(row, column)| column.store(row.as_mut_ptr().add(at))),
            }
        }
    }
}

/// `to[r·to_step + c] = from[c·from_step + r]` for `rows` × `columns`. Columns behind the last, up to a whole vector, get what the last one has.
///
/// # Safety
/// The CPU has `V`'s instruction set; there are at least `LANES` rows, and a column; `from` holds what is read; `to` holds whole vectors of columns
/// for each row.
#[inline(always)]
pub(super) unsafe fn rows_to_cells<V: Vector, const LANES: usize>(
    from: &[V::Lane],
    from_step: usize,
    (rows, columns): (usize, usize),
    to: &mut [V::Lane],
    to_step: usize,
) {
    for c in (0..columns).step_by(LANES) {
        for r in covering(rows, LANES) {
            // SAFETY: squares end where the rows do, and columns are clamped to the last; the rest is this function's contract.
            unsafe {
                let square: [V; LANES] = interleave(std::array::from_fn(|i| {
                    V::load(from.as_ptr().add((c + i).min(columns - 1) * from_step + r))
                }));
                for (j, cell) in square.into_iter().enumerate() {
                    cell.store(to.as_mut_ptr().add((r + j) * to_step + c));
                }
            }
        }
    }
}

/// `to[i·step + j] = from[starts[j] + i]` for `count` positions `i`: rows become cells, `step` elements apart. What is between cells stays.
///
/// # Safety
/// The CPU has `V`'s instruction set; there are one to `LANES` starts, from each of which `from` holds `count` elements rounded up to whole vectors;
/// `to` holds as many elements as there are starts from each cell on.
#[inline(always)]
pub(super) unsafe fn rows_to_placed_cells<V: Vector, const LANES: usize>(
    from: &[V::Lane],
    starts: &[usize],
    count: usize,
    to: &mut [V::Lane],
    step: usize,
) {
    for p in (0..count).step_by(LANES) {
        // SAFETY: whole vectors are read by this function's contract; of a cell, as many elements are written as there are starts.
        unsafe {
            let cells: [V; LANES] = interleave(std::array::from_fn(|j| {
                V::load(from.as_ptr().add(*starts.get_unchecked(j.min(starts.len() - 1)) + p))
            }));
            for (i, cell) in cells.into_iter().enumerate().take(count - p) {
                let to = to.as_mut_ptr().add((p + i) * step);
                if starts.len() == LANES { cell.store(to) } else { cell.store_first(starts.len(), to) }
            }
        }
    }
}
