//! Working memory that is kept between runs.

use super::fill;
use super::reserved;
use crate::compute::{Pair, Quad, Working};
use realfft::num_complex::Complex;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tract_core::internal::*;

/// The working memory of tasks. It is kept between runs, so that in steady state only outputs are
/// allocated.
#[derive(Default)]
pub(crate) struct Scratch<T: Working> {
    /// A block of input.
    pub block: Aligned<T>,
    /// Results of register tiles.
    pub tile: Aligned<T>,
    /// A copy of a tile's input, padded for reads past its end.
    pub ragged: Aligned<T>,
    /// Limbs of a block of input, for matrix products.
    pub limbs: Aligned<T::Limb>,
    /// Limbs of weights.
    pub weights: Aligned<T::Limb>,
    /// A row that is finished before it is stored.
    pub row: Aligned<T>,
    /// A transformed block of input, transformed weights, and their products.
    pub transformed: [Aligned<T>; 3],
}

/// The scratch memory of tasks that compute in `f32`.
pub(crate) static F32: ScratchPool<f32> = ScratchPool::new();
/// The scratch memory of tasks that compute in `f64`.
pub(crate) static F64: ScratchPool<f64> = ScratchPool::new();
/// The scratch memory of tasks that compute spectra.
pub(crate) static SPECTRA: ScratchPool<Complex<f32>> = ScratchPool::new();
/// The scratch memory of tasks that compute in `i64`.
pub(crate) static I64: ScratchPool<i64> = ScratchPool::new();
/// The scratch memory of tasks that compute in pairs of integers.
pub(crate) static PAIR: ScratchPool<Pair> = ScratchPool::new();
/// The scratch memory of tasks that compute in quads of integers.
pub(crate) static QUAD: ScratchPool<Quad> = ScratchPool::new();

/// Frees the scratch memory that no task uses.
pub(super) fn release() {
    F32.release();
    F64.release();
    SPECTRA.release();
    I64.release();
    PAIR.release();
    QUAD.release();
}

/// A pool of scratch memory. An entry is empty while a task uses its memory.
///
/// There are as many entries as there have been concurrent tasks. These are fewer than the threads
/// that have run tasks.
pub(crate) struct ScratchPool<T: Working>(Mutex<Vec<Option<Box<Scratch<T>>>>>);

impl<T: Working> ScratchPool<T> {
    /// An empty pool.
    pub const fn new() -> Self {
        ScratchPool(Mutex::new(vec![]))
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Option<Box<Scratch<T>>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends scratch memory, preferably that which this thread used last, as it is in its core's
    /// cache.
    pub fn lend<R>(&self, use_it: impl FnOnce(&mut Scratch<T>) -> R) -> R
    where
        Scratch<T>: Default,
    {
        thread_local!(static LAST: Cell<usize> = const { Cell::new(0) });
        let (entry, mut scratch) = self.take(LAST.get());
        LAST.set(entry);
        scratch.forget();
        let result = use_it(&mut scratch);
        self.entries()[entry] = Some(scratch);
        result
    }

    /// Takes the preferred entry's memory, or that of another entry, or new memory. Returns it with
    /// its entry's index.
    fn take(&self, preferred: usize) -> (usize, Box<Scratch<T>>)
    where
        Scratch<T>: Default,
    {
        let mut entries = self.entries();
        if let Some(scratch) = entries.get_mut(preferred).and_then(Option::take) {
            return (preferred, scratch);
        }
        let other = entries.iter_mut().enumerate().find_map(|(entry, scratch)| Some((entry, scratch.take()?)));
        other.unwrap_or_else(|| {
            entries.push(None);
            (entries.len() - 1, Box::default())
        })
    }

    /// Frees the memory that no task uses.
    fn release(&self)
    where
        Scratch<T>: Default,
    {
        // The entries stay, as running tasks will return their memory to them.
        self.entries().iter_mut().flatten().for_each(|scratch| **scratch = Scratch::default());
    }
}

/// A buffer whose slices begin on a cache line, as accesses that straddle lines cost twice.
#[derive(Default)]
pub(crate) struct Aligned<T>(Vec<T>);

impl<T: Working> Scratch<T> {
    /// In test mode, erases the data of earlier tasks.
    fn forget(&mut self) {
        let Scratch { block, tile, ragged, limbs, weights, row, transformed } = self;
        let [input, filter, products] = transformed;
        [block, tile, ragged, row, input, filter, products].into_iter().for_each(|memory| fill::forget(&mut memory.0));
        [limbs, weights].into_iter().for_each(|memory| fill::forget(&mut memory.0));
    }
}

impl<T: Working> Aligned<T> {
    /// `len` elements with unspecified values.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn of(&mut self, len: usize) -> TractResult<&mut [T]> {
        let slack = 64 / size_of::<T>();
        let whole = len.saturating_add(slack);
        if self.0.len() < whole {
            // Freed first: its contents are not needed, and the longer buffer may reuse its memory.
            self.0 = vec![];
            self.0 = reserved("working memory", whole)?;
            self.0.resize(whole, fill::new_element());
        }
        let begin = self.0.as_ptr().align_offset(64).min(slack);
        Ok(&mut self.0[begin..begin + len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "it has no threads")]
    fn as_much_is_kept_as_is_used_at_once() {
        let pool = ScratchPool::<f32>::new();
        let block = |scratch: &mut Scratch<f32>| scratch.block.0.len();
        let grown = pool.lend(|scratch| {
            pool.lend(|other| assert_eq!(block(other), 0));
            assert!(scratch.block.of(100).is_ok());
            block(scratch)
        });
        // a thread that had no memory before
        let lent = std::thread::scope(|scope| scope.spawn(|| pool.lend(|scratch| block(scratch))).join());
        assert_eq!(lent.ok(), Some(grown));
        assert_eq!(pool.entries().len(), 2);
    }

    #[test]
    fn what_is_in_use_is_not_freed() {
        let pool = ScratchPool::<f32>::new();
        let grow = |scratch: &mut Scratch<f32>| assert!(scratch.block.of(100).is_ok());
        pool.lend(|outer| {
            grow(outer);
            pool.lend(grow);
            pool.release();
            assert!(outer.block.0.len() >= 100);
        });
        let lens: Vec<usize> = pool.entries().iter().flatten().map(|scratch| scratch.block.0.len()).collect();
        assert!(lens[0] >= 100 && lens[1] == 0, "{lens:?}");
        pool.release();
        pool.lend(|scratch| assert_eq!(scratch.block.0.len(), 0));
    }

    #[test]
    fn a_thread_finds_its_own_again() {
        let pool = ScratchPool::<f32>::new();
        let inner = pool.lend(|_| pool.lend(|inner| std::ptr::from_mut(inner).addr()));
        // The outer memory was lent first, but the inner one is the thread's last.
        assert_eq!(pool.lend(|scratch| std::ptr::from_mut(scratch).addr()), inner);
    }
}
