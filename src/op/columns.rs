//! Work on columns of a tensor that are independent of each other, by threads.

use crate::compute::Compute;
use crate::element::Element;
use crate::memory::{self, collected, reserved, zeros};
use crate::parallel::{parallel, threads};
use tract_core::internal::*;

/// Columns that are copied together where values are converted or transposed.
const COLUMNS: usize = 64;

/// Tasks per thread.
const TASKS: usize = 4;

/// Returns a tensor of the shape and type of `input`, all of which `write` writes.
///
/// # Safety
/// `write` reads no element of its second argument before it has written it, and has written all of them where it
/// does not fail.
///
/// # Errors
/// The memory can't be allocated, or `write` fails.
#[expect(unsafe_code, reason = "an output is written once, not cleared before")]
pub(super) unsafe fn output<E: Element>(
    what: &'static str,
    input: &Tensor,
    write: impl FnOnce(&[E], &mut [E]) -> TractResult<()>,
) -> TractResult<Tensor> {
    // SAFETY: this function's contract. The type is a number's, as there is an `Element` for it. Where
    // `write` fails, the tensor is dropped without a read.
    let mut output = unsafe { memory::output_tensor(what, input.datum_type(), input.shape())? };
    let from = input.try_as_plain_ram()?;
    let mut view = output.try_as_plain_ram_mut()?;
    write(from.as_slice::<E>()?, view.as_slice_mut::<E>()?)?;
    Ok(output)
}

/// A tensor seen as planes of `length` rows of `inner` values, and what is computed of columns.
pub(super) struct Columns<F> {
    /// What begins the message of an error.
    pub what: &'static str,
    pub length: usize,
    pub inner: usize,
    /// The cost of four elements, in vector multiply-adds.
    pub cost_of_four: u64,
    /// Computes columns: value `r` of column `c` is `from[r·stride + c]`, and its result is `to[r][c]`.
    pub compute: F,
}

/// Columns of one plane.
struct Part<'a, E> {
    /// The index of the first value.
    first: usize,
    rows: Vec<&'a mut [E]>,
}

impl<F> Columns<F> {
    /// Returns how many columns are copied together. None are if they can be read in place.
    fn copied<E: Element>(&self, values: usize) -> usize {
        let in_place = self.inner > 1 && E::as_compute(&[]).is_some();
        let columns = if self.inner == 1 { values / self.length.max(1) } else { self.inner };
        if in_place { 0 } else { columns.min(COLUMNS) }
    }

    /// Returns the bytes that a thread needs for copies and for its tasks' lists of rows.
    pub fn working_bytes<E: Element>(&self, values: usize) -> usize {
        let copies = 2 * self.copied::<E>(values) * size_of::<E::Compute>();
        // A plane is divided among at most twice as many tasks as there are to be. A running task
        // has two lists.
        let lists = (2 * TASKS + 1) * size_of::<&mut [E]>();
        self.length.saturating_mul(copies + lists)
    }

    /// Writes all of `to`.
    pub fn run<E: Element>(&self, from: &[E], to: &mut [E]) -> TractResult<()>
    where
        F: Fn(&[E::Compute], usize, &mut [&mut [E::Compute]]) + Sync + Send,
    {
        if to.is_empty() {
            return Ok(());
        }
        let plane = self.length * self.inner;
        let cost = to.len() as u64 / 4 * self.cost_of_four;
        let (planes, parts) = (to.len() / plane, TASKS * threads(cost));
        let copied = self.copied::<E>(to.len());
        if self.inner == 1 || planes >= parts {
            let values = planes.div_ceil(parts) * plane;
            let mut tasks: Vec<_> = to.chunks_mut(values).enumerate().collect();
            return parallel(&mut tasks, cost, &|(task, to)| {
                let from = &from[*task * values..][..to.len()];
                let mut copies = Copies::new(self.what, self.length, copied)?;
                if self.inner == 1 {
                    return self.contiguous(from, to, &mut copies);
                }
                from.chunks(plane).zip(to.chunks_mut(plane)).try_for_each(|(from, to)| {
                    self.strided(from, &mut collected(self.what, to.chunks_mut(self.inner))?, &mut copies)
                })
            });
        }
        let columns = self.inner.div_ceil(parts.div_ceil(planes)).next_multiple_of(COLUMNS);
        let mut tasks = vec![];
        for (p, to) in to.chunks_mut(plane).enumerate() {
            let part = |i| Ok(Part { first: p * plane + i * columns, rows: reserved(self.what, self.length)? });
            let mut parts = (0..self.inner.div_ceil(columns)).map(part).collect::<TractResult<Vec<Part<E>>>>()?;
            for row in to.chunks_mut(self.inner) {
                parts.iter_mut().zip(row.chunks_mut(columns)).for_each(|(part, row)| part.rows.push(row));
            }
            tasks.extend(parts);
        }
        parallel(&mut tasks, cost, &|part| {
            self.strided(&from[part.first..], &mut part.rows, &mut Copies::new(self.what, self.length, copied)?)
        })
    }

    /// Computes columns that are contiguous in memory, after each other.
    fn contiguous<E: Element>(&self, from: &[E], to: &mut [E], copies: &mut Copies<E::Compute>) -> TractResult<()>
    where
        F: Fn(&[E::Compute], usize, &mut [&mut [E::Compute]]),
    {
        let length = self.length;
        for (from, to) in from.chunks(length * copies.columns).zip(to.chunks_mut(length * copies.columns)) {
            copies.compute(
                self,
                from.len() / length,
                |r, row| row.iter_mut().enumerate().for_each(|(c, x)| *x = from[c * length + r].widen()),
                |r, row| row.iter().enumerate().for_each(|(c, x)| to[c * length + r] = E::narrow(*x)),
            )?;
        }
        Ok(())
    }

    /// Computes columns whose values are `inner` apart.
    fn strided<E: Element>(&self, from: &[E], rows: &mut [&mut [E]], copies: &mut Copies<E::Compute>) -> TractResult<()>
    where
        F: Fn(&[E::Compute], usize, &mut [&mut [E::Compute]]),
    {
        if let Some(from) = E::as_compute(from) {
            let mut to: Vec<&mut [E::Compute]> = reserved(self.what, rows.len())?;
            to.extend(rows.iter_mut().filter_map(|row| E::as_compute_mut(row)));
            (self.compute)(from, self.inner, &mut to);
            return Ok(());
        }
        let width = rows.first().map_or(0, |row| row.len());
        for first in (0..width).step_by(copies.columns) {
            let columns = copies.columns.min(width - first);
            copies.compute(
                self,
                columns,
                |r, row| E::widen_slice(&from[r * self.inner + first..][..columns], row),
                |r, row| E::narrow_slice(row, &mut rows[r][first..][..columns]),
            )?;
        }
        Ok(())
    }
}

/// Some columns, before and after.
struct Copies<T: Compute> {
    columns: usize,
    from: Vec<T>,
    to: Vec<T>,
}

impl<T: Compute> Copies<T> {
    fn new(what: &'static str, length: usize, columns: usize) -> TractResult<Copies<T>> {
        let values = length.checked_mul(columns).with_context(|| format!("{what}: its axis is too long"))?;
        Ok(Copies { columns, from: zeros(what, values)?, to: zeros(what, values)? })
    }

    /// Computes `columns` columns. `read` fills a row of values, and `write` takes a row of results.
    fn compute<F: Fn(&[T], usize, &mut [&mut [T]])>(
        &mut self,
        of: &Columns<F>,
        columns: usize,
        read: impl Fn(usize, &mut [T]),
        mut write: impl FnMut(usize, &[T]),
    ) -> TractResult<()> {
        let values = of.length * columns;
        self.from[..values].chunks_mut(columns).enumerate().for_each(|(r, row)| read(r, row));
        let mut rows: Vec<&mut [T]> = collected(of.what, self.to[..values].chunks_mut(columns))?;
        (of.compute)(&self.from[..values], columns, &mut rows);
        rows.iter().enumerate().for_each(|(r, row)| write(r, row));
        Ok(())
    }
}
