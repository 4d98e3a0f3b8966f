//! Values less their mean, divided by the root of the mean of their squares.

use crate::compute::Compute;

/// Columns that are computed together. Their sums stay in L1.
const COLUMNS: usize = 128;

/// Sums of a row that are added up side by side.
const SUMS: usize = 64;

/// Values that are added up before their sum is added to that of the others. The error of a sum then
/// grows with the number of such blocks.
const BLOCK: usize = 64;

/// What is computed of each column or row `x`: `(x − mean) / √(mean of (x − mean)² + epsilon)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normalisation<T> {
    /// If false, the mean that is taken off is zero.
    pub centred: bool,
    pub epsilon: T,
}

impl<T: Compute> Normalisation<T> {
    /// The factor of the differences from the mean, from the mean of their squares.
    #[inline(always)]
    fn factor(&self, squares: T) -> T {
        squares.plus(self.epsilon).reciprocal_root()
    }
}

#[inline(always)]
fn times<T: Compute>(a: T, b: T) -> T {
    T::ZERO.mul_add(a, b)
}

/// Normalises each column.
///
/// Value `r` of column `c` is `from[r·stride + c]`. Its result is written to `to[r][c]`. The
/// rows of `to` have the same length.
#[inline(always)]
pub(crate) fn normalise_columns<T: Compute>(
    normalisation: Normalisation<T>,
    from: &[T],
    stride: usize,
    to: &mut [&mut [T]],
) {
    let columns = to.first().map_or(0, |row| row.len());
    let share = T::of_count(to.len()).reciprocal();
    for first in (0..columns).step_by(COLUMNS) {
        let count = COLUMNS.min(columns - first);
        let (mut mean, mut factor, mut block) = ([T::ZERO; COLUMNS], [T::ZERO; COLUMNS], [T::ZERO; COLUMNS]);
        let (mean, factor, block) = (&mut mean[..count], &mut factor[..count], &mut block[..count]);
        let row = |r: usize| &from[r * stride + first..][..count];
        let blocks = || (0..to.len()).step_by(BLOCK).map(|start| start..to.len().min(start + BLOCK));
        if normalisation.centred {
            for rows in blocks() {
                block.fill(T::ZERO);
                for r in rows {
                    block.iter_mut().zip(row(r)).for_each(|(sum, x)| *sum = sum.plus(*x));
                }
                mean.iter_mut().zip(&*block).for_each(|(mean, sum)| *mean = mean.plus(*sum));
            }
            mean.iter_mut().for_each(|mean| *mean = times(*mean, share));
        }
        for rows in blocks() {
            block.fill(T::ZERO);
            for r in rows {
                for ((sum, x), mean) in block.iter_mut().zip(row(r)).zip(&*mean) {
                    let difference = x.minus(*mean);
                    *sum = sum.mul_add(difference, difference);
                }
            }
            factor.iter_mut().zip(&*block).for_each(|(factor, sum)| *factor = factor.plus(*sum));
        }
        factor.iter_mut().for_each(|factor| *factor = normalisation.factor(times(*factor, share)));
        for (r, to) in to.iter_mut().enumerate() {
            let to = to[first..][..count].iter_mut();
            for (((to, x), mean), factor) in to.zip(row(r)).zip(&*mean).zip(&*factor) {
                *to = times(x.minus(*mean), *factor);
            }
        }
    }
}

/// Normalises a row. Both have the same length.
#[inline(always)]
pub(crate) fn normalise_row<T: Compute>(normalisation: Normalisation<T>, from: &[T], to: &mut [T]) {
    let share = T::of_count(from.len()).reciprocal();
    let mean = if normalisation.centred { times(sum(from, |sum, x| sum.plus(x)), share) } else { T::ZERO };
    let squares = sum(from, |sum, x| {
        let difference = x.minus(mean);
        sum.mul_add(difference, difference)
    });
    let factor = normalisation.factor(times(squares, share));
    to.iter_mut().zip(from).for_each(|(to, x)| *to = times(x.minus(mean), factor));
}

/// Adds up a row by `add`, which adds something of a value to a sum.
#[inline(always)]
fn sum<T: Compute>(row: &[T], add: impl Fn(T, T) -> T) -> T {
    let mut total = T::ZERO;
    for block in row.chunks(BLOCK * SUMS) {
        let (chunks, rest) = block.as_chunks::<SUMS>();
        let mut sums = [T::ZERO; SUMS];
        for chunk in chunks {
            sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum = add(*sum, *x));
        }
        sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum = add(*sum, *x));
        total = total.plus(halved(sums));
    }
    total
}

/// Adds up sums in pairs.
#[inline(always)]
fn halved<T: Compute>(mut sums: [T; SUMS]) -> T {
    let mut width = SUMS / 2;
    while width > 0 {
        let (low, high) = sums.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low = low.plus(*high));
        width /= 2;
    }
    sums[0]
}
