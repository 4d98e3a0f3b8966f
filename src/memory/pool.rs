//! The blocks that outputs are made in, kept for the next output of the same size.
//!
//! An output of a layer is a tensor whose storage gives its block back when the tensor is dropped, on whatever thread. To
//! tract it is a plain tensor in RAM. The next output takes the block with its pages.
//!
//! A block has exactly the size of its output, and so is found by size alone. It cannot be larger: the length of tract's
//! `Blob` is what a copy of the tensor copies, and the size that the allocator is told when the block is freed.

use super::{alignment_of, scratch};
use crate::knobs::TRACT_DECONV_POOL_BYTES;
use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tract_core::internal::*;

/// How many bytes the pool holds for outputs to come, unless told otherwise.
pub const DEFAULT_POOL_BYTES: usize = 256 << 20;

/// The smallest output that takes a block of the pool. A smaller one lies in a page that holds other things too, and the
/// allocator gives and takes it as fast as the pool would.
pub(super) const SMALLEST: usize = 4 << 10;

/// How many blocks lie idle at most, so that a search among them stays short.
const MOST_IDLE: usize = 512;

/// A block is freed once more plans were made since it came back than this part of those that there are. A layer keeps the
/// plans of 16 shapes, so that where shapes change, blocks of the last two wait. Where they do not, no plans are made.
const PART_OF_PLANS: u64 = 8;

/// The pool that all models share.
pub(super) static POOL: Pool = Pool::new();

/// Blocks that nothing uses, those that came back first in front.
pub(super) struct Pool(Mutex<State>);

struct State {
    idle: VecDeque<Idle>,
    /// The bytes of all idle blocks.
    bytes: usize,
    /// How many bytes may be idle, where a program has said so.
    limit: Option<usize>,
    /// How many plans there are. Without one, nothing is kept.
    users: u64,
    /// How many plans were made for shapes that had none.
    planned: u64,
}

struct Idle {
    block: Blob,
    /// [`State::planned`] when it came back.
    since: u64,
}

impl State {
    fn limit(&self) -> usize {
        static OF_KNOB: OnceLock<usize> = OnceLock::new();
        let of_knob = || *OF_KNOB.get_or_init(|| TRACT_DECONV_POOL_BYTES.get().unwrap_or(DEFAULT_POOL_BYTES));
        self.limit.unwrap_or_else(of_knob)
    }

    fn keeps(&self, bytes: usize) -> bool {
        self.users > 0 && (SMALLEST..=self.limit()).contains(&bytes)
    }

    fn is_full(&self) -> bool {
        self.bytes > self.limit() || self.idle.len() > MOST_IDLE
    }
}

/// Where an output is made.
pub(super) enum Place {
    /// In a block that an earlier one left.
    Kept(Blob),
    /// In a new block, which will be kept.
    New,
    /// Outside of the pool.
    Ordinary,
}

impl Pool {
    pub const fn new() -> Pool {
        Pool(Mutex::new(State { idle: VecDeque::new(), bytes: 0, limit: None, users: 0, planned: 0 }))
    }

    /// The state. While it is locked, no block is allocated or freed, and nothing panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where an output of a layout is made. Of several idle blocks, that which came back last is most likely in a cache.
    pub fn place(&self, layout: Layout) -> Place {
        if layout.size() < SMALLEST {
            return Place::Ordinary;
        }
        let mut state = self.lock();
        if !state.keeps(layout.size()) {
            return Place::Ordinary;
        }
        let at = state.idle.iter().rposition(|idle| *idle.block.layout() == layout);
        match at.and_then(|at| state.idle.remove(at)) {
            Some(idle) => {
                state.bytes -= layout.size();
                Place::Kept(idle.block)
            }
            None => Place::New,
        }
    }

    /// Keeps a block, or frees it.
    fn put(&self, block: Blob) {
        let layout = *block.layout();
        let mut state = self.lock();
        if layout.align() != alignment_of(layout.size())
            || !state.keeps(layout.size())
            || state.idle.try_reserve(1).is_err()
        {
            drop(state);
            return drop(block);
        }
        let since = state.planned;
        state.idle.push_back(Idle { block, since });
        state.bytes += layout.size();
        let full = state.is_full();
        drop(state);
        if full {
            self.free_while(State::is_full);
        }
    }

    /// Frees the blocks that came back first, one by one, as long as something holds.
    fn free_while(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let mut state = self.lock();
            if !holds(&state) {
                return;
            }
            let Some(first) = state.idle.pop_front() else { return };
            state.bytes -= first.block.len();
            drop(state);
            drop(first);
        }
    }

    /// Frees the idle blocks.
    pub fn release(&self) {
        let mut state = self.lock();
        state.bytes = 0;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    /// Sets how many bytes may be idle.
    pub fn set_limit(&self, bytes: usize) {
        self.lock().limit = Some(bytes);
        self.free_while(State::is_full);
    }

    /// How many bytes are idle.
    pub fn idle_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// A plan was made for a shape that had none.
    pub fn planned(&self) {
        let oldest = {
            let mut state = self.lock();
            state.planned += 1;
            state.planned.saturating_sub(state.users / PART_OF_PLANS)
        };
        // they are in the order in which they came back
        self.free_while(|state| state.idle.front().is_some_and(|idle| idle.since < oldest));
    }

    fn enter(&self) {
        self.lock().users += 1;
    }

    /// Whether that was the last user. Then no block is idle any more.
    fn leave(&self) -> bool {
        let last = {
            let mut state = self.lock();
            state.users -= 1;
            state.users == 0
        };
        if last {
            self.release();
        }
        last
    }
}

/// What keeps the blocks: when the last one is dropped, those that are idle are freed, and the working memory as well.
///
/// Says nothing of what holds it: any two are equal.
pub(crate) struct PoolUser(&'static Pool);

impl PoolUser {
    /// One more.
    pub fn new() -> PoolUser {
        PoolUser::of(&POOL)
    }

    fn of(pool: &'static Pool) -> PoolUser {
        pool.enter();
        PoolUser(pool)
    }
}

impl Clone for PoolUser {
    fn clone(&self) -> PoolUser {
        PoolUser::of(self.0)
    }
}

impl Drop for PoolUser {
    fn drop(&mut self) {
        if self.0.leave() {
            scratch::release();
        }
    }
}

impl fmt::Debug for PoolUser {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("PoolUser")
    }
}

impl PartialEq for PoolUser {
    fn eq(&self, _other: &PoolUser) -> bool {
        true
    }
}

impl Eq for PoolUser {}

/// The storage of an output: a block that goes back to the pool with the tensor.
pub(super) struct Pooled {
    /// Nothing once the block has left for good.
    block: Option<PlainStorage>,
    pool: &'static Pool,
}

impl Pooled {
    pub fn new(block: Blob, pool: &'static Pool) -> Pooled {
        Pooled { block: Some(block.into()), pool }
    }

    fn bytes(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| block.as_bytes())
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // may be another than the pool gave: who has the tensor may exchange it
        if let Some(block) = self.block.take() {
            self.pool.put(block.into_blob());
        }
    }
}

impl TensorStorage for Pooled {
    fn byte_len(&self) -> usize {
        self.bytes().len()
    }

    fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    fn deep_clone(&self) -> Box<dyn TensorStorage> {
        Box::new(self.block.clone().unwrap_or_default())
    }

    fn as_plain_ram(&self) -> Option<&PlainStorage> {
        self.block.as_ref()
    }

    fn as_plain_ram_mut(&mut self) -> Option<&mut PlainStorage> {
        self.block.as_mut()
    }

    fn into_plain_ram(mut self: Box<Self>) -> Option<PlainStorage> {
        self.block.take()
    }

    fn dyn_hash(&self, state: &mut dyn Hasher) {
        // as tract's plain storage, to which it is equal
        state.write_u8(0);
        state.write(self.bytes());
    }

    fn exotic_fact(&self, _shape: &[usize]) -> TractResult<Option<Box<dyn ExoticFact>>> {
        Ok(None)
    }

    fn is_exotic(&self) -> bool {
        false
    }
}

impl PartialEq for Pooled {
    fn eq(&self, other: &Pooled) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Pooled {}

impl fmt::Debug for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Pooled({} bytes)", self.byte_len())
    }
}

impl fmt::Display for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool of the test's own, with a limit.
    fn pool(limit: usize) -> &'static Pool {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
        pool.set_limit(limit);
        pool
    }

    fn layout(bytes: usize) -> TractResult<Layout> {
        Ok(Layout::from_size_align(bytes, 64)?)
    }

    /// An output of bytes, as layers make them.
    fn output(pool: &'static Pool, bytes: usize) -> TractResult<Tensor> {
        // SAFETY: zeros are written below.
        let fresh = |layout| unsafe { Blob::for_layout(layout) };
        let block = match pool.place(layout(bytes)?) {
            Place::Kept(block) => block,
            Place::New | Place::Ordinary => fresh(layout(bytes)?),
        };
        let mut tensor = Tensor::from_storage(u8::datum_type(), &[bytes], Pooled::new(block, pool));
        tensor.as_bytes_mut().fill(0);
        Ok(tensor)
    }

    fn address(tensor: &Tensor) -> usize {
        tensor.as_bytes().as_ptr().addr()
    }

    #[test]
    fn an_output_takes_the_block_of_an_earlier_one() -> TractResult<()> {
        let pool = pool(1 << 20);
        let _user = PoolUser::of(pool);
        let [first, other] = [output(pool, 8192)?, output(pool, 4096)?];
        let at = [address(&first), address(&other)];
        drop([first, other]);
        assert_eq!(pool.idle_bytes(), 8192 + 4096);
        assert_eq!([address(&output(pool, 8192)?), address(&output(pool, 4096)?)], at);
        let both = [output(pool, 8192)?, output(pool, 8192)?];
        assert_eq!(address(&both[0]), at[0]);
        assert_ne!(address(&both[1]), at[0]);
        assert_eq!(pool.idle_bytes(), 4096);
        Ok(())
    }

    #[test]
    fn idle_blocks_are_bounded() -> TractResult<()> {
        let pool = pool(3 * 8192);
        let _user = PoolUser::of(pool);
        let outputs = (0..5).map(|_| output(pool, 8192)).collect::<TractResult<Vec<_>>>()?;
        let kept: Vec<usize> = outputs[2..].iter().map(address).collect();
        outputs.into_iter().for_each(drop);
        assert_eq!(pool.idle_bytes(), 3 * 8192);
        // those that came back last
        let idle: Vec<usize> = pool.lock().idle.iter().map(|idle| idle.block.as_ptr().addr()).collect();
        assert_eq!(idle, kept);
        // one above the bound is freed, and costs none of those that are there
        drop(output(pool, 3 * 8192 + 1)?);
        assert_eq!(pool.idle_bytes(), 3 * 8192);
        pool.set_limit(8192);
        assert_eq!(pool.idle_bytes(), 8192);
        pool.set_limit(0);
        drop(output(pool, 8192)?);
        assert_eq!(pool.idle_bytes(), 0);
        Ok(())
    }

    #[test]
    fn small_ones_and_many_are_not_kept() -> TractResult<()> {
        let pool = pool(usize::MAX);
        let _user = PoolUser::of(pool);
        drop(output(pool, SMALLEST - 1)?);
        assert_eq!(pool.idle_bytes(), 0);
        let outputs = (0..MOST_IDLE + 9).map(|_| output(pool, SMALLEST)).collect::<TractResult<Vec<_>>>()?;
        drop(outputs);
        assert_eq!(pool.lock().idle.len(), MOST_IDLE);
        assert_eq!(pool.idle_bytes(), MOST_IDLE * SMALLEST);
        Ok(())
    }

    #[test]
    fn nothing_is_kept_without_a_user() -> TractResult<()> {
        let pool = pool(1 << 20);
        drop(output(pool, 8192)?);
        assert_eq!(pool.idle_bytes(), 0);
        let user = PoolUser::of(pool);
        let other = user.clone();
        let late = output(pool, 4096)?;
        drop(output(pool, 8192)?);
        drop(user);
        assert_eq!(pool.idle_bytes(), 8192);
        drop(other);
        assert_eq!(pool.idle_bytes(), 0);
        // one that outlives the model
        drop(late);
        assert_eq!(pool.idle_bytes(), 0);
        Ok(())
    }

    #[test]
    fn blocks_of_earlier_shapes_are_freed() -> TractResult<()> {
        let pool = pool(1 << 20);
        const SHAPES: u64 = 3;
        let _users = vec![PoolUser::of(pool); (SHAPES * PART_OF_PLANS) as usize];
        drop(output(pool, 8192)?);
        for _ in 0..SHAPES {
            pool.planned();
            // is taken again and again
            drop(output(pool, 4096)?);
        }
        assert_eq!(pool.idle_bytes(), 8192 + 4096);
        pool.planned();
        assert_eq!(pool.idle_bytes(), 4096);
        Ok(())
    }

    #[test]
    fn to_tract_it_is_a_plain_tensor() -> TractResult<()> {
        let pool = pool(1 << 20);
        let _user = PoolUser::of(pool);
        let mut tensor = output(pool, 8192)?;
        let mut plain = Tensor::zero::<u8>(&[8192])?;
        assert!(tensor.is_plain() && tensor.is_plain_ram() && tensor.in_ram() && !tensor.is_exotic());
        assert_eq!(tensor, plain);
        assert_eq!(plain, tensor);
        assert!(tensor.exotic_fact()?.is_none());
        // in place
        let at = address(&tensor);
        tensor.try_as_plain_ram_mut()?.as_slice_mut::<u8>()?[3] = 7;
        assert_ne!(tensor, plain);
        plain.as_bytes_mut()[3] = 7;
        assert_eq!(tensor, plain);
        assert_eq!(address(&tensor), at);
        // copies are tract's own
        assert!(tensor.clone().has_plain_ram_storage());
        assert!(tensor.slice(0, 2, 5)?.has_plain_ram_storage());
        assert_eq!(tensor.slice(0, 2, 5)?, plain.slice(0, 2, 5)?);
        // other shapes of the same block
        tensor.set_shape(&[2, 4096])?;
        plain.set_shape(&[2, 4096])?;
        assert_eq!(tensor.moved_axis(0, 1)?, plain.moved_axis(0, 1)?);
        assert_eq!(address(&tensor), at);
        // and one that leaves for good
        let left = tensor.into_plain_ram()?;
        assert_eq!((address(&left), left.has_plain_ram_storage()), (at, true));
        assert_eq!(left, plain);
        drop(left);
        assert_eq!(pool.idle_bytes(), 0);
        Ok(())
    }

    #[test]
    fn equal_tensors_have_equal_hashes() -> TractResult<()> {
        use std::hash::{DefaultHasher, Hash};
        let pool = pool(1 << 20);
        let hash = |tensor: &Tensor| {
            let mut hasher = DefaultHasher::new();
            tensor.hash(&mut hasher);
            hasher.finish()
        };
        // SAFETY: zeros are written below.
        let mut plain = unsafe { Tensor::uninitialized_aligned::<u8>(&[8192], 64)? };
        plain.as_bytes_mut().fill(0);
        assert_eq!(hash(&output(pool, 8192)?), hash(&plain));
        Ok(())
    }

    #[test]
    fn a_block_may_be_exchanged() -> TractResult<()> {
        let pool = pool(1 << 20);
        let _user = PoolUser::of(pool);
        let mut tensor = output(pool, 8192)?;
        if let Some(storage) = tensor.as_plain_ram_storage_mut() {
            *storage = Blob::from_bytes(&[1; 5000])?.into();
        }
        drop(tensor);
        // of another alignment, which no output would take
        assert_eq!(pool.idle_bytes(), 0);
        Ok(())
    }

    #[test]
    fn threads_share_it() -> TractResult<()> {
        let pool = pool(1 << 20);
        let _user = PoolUser::of(pool);
        let work = |seed: usize| -> TractResult<()> {
            let mut held: Vec<Tensor> = vec![];
            for turn in 0..500 {
                let mut tensor = output(pool, 4096 * (1 + (seed + turn) % 5))?;
                tensor.as_bytes_mut().fill(seed as u8);
                held.push(tensor);
                if turn % 7 == seed % 7 {
                    let correct = |tensor: &Tensor| tensor.as_bytes().iter().all(|byte| *byte == seed as u8);
                    ensure!(held.iter().all(correct), "another thread wrote to a block in use");
                    held.clear();
                    pool.planned();
                }
                if turn % 100 == 99 {
                    pool.release();
                }
            }
            // some are dropped elsewhere
            std::thread::spawn(|| drop(held)).join().map_err(|_| format_err!("a panic"))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..5).map(|seed| scope.spawn(move || work(seed))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| format_err!("a panic"))?)
        })?;
        let state = pool.lock();
        assert_eq!(state.bytes, state.idle.iter().map(|idle| idle.block.len()).sum::<usize>());
        assert!(!state.is_full());
        Ok(())
    }
}
