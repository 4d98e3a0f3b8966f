//! The blocks of outputs, kept for later outputs of the same size.
//!
//! The next output reuses a block and its mapped pages.
//!
//! A block has exactly the size of its output, so blocks are found by size alone. It cannot be
//! larger: the length of tract's `Blob` is both the number of bytes that a copy of the tensor
//! copies and the size that the allocator is told when the block is freed.

use super::{alignment_of, scratch};
use crate::knobs::TRACT_DECONV_POOL_BYTES;
use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tract_core::internal::*;

/// The default limit of idle bytes in the pool.
pub const DEFAULT_POOL_BYTES: usize = 256 << 20;

/// The smallest output that uses the pool.
///
/// A smaller one shares its page with other data, and the allocator is as fast as the pool.
pub(super) const SMALLEST: usize = 4 << 10;

/// The most idle blocks. The limit keeps searches short.
const MOST_IDLE: usize = 512;

/// The age limit of idle blocks, as a divisor of the number of plans: a block is freed once more
/// than that fraction of all plans were made anew since it was returned.
///
/// A layer keeps the plans of 16 shapes. If shapes change, the blocks of the last two shapes
/// therefore stay idle. If they do not, no plans are made.
const PART_OF_PLANS: u64 = 8;

/// The pool that all models share.
pub(super) static POOL: Pool = Pool::new();

/// The idle blocks, those returned first in front.
pub(super) struct Pool(Mutex<State>);

struct State {
    idle: VecDeque<Idle>,
    /// The bytes of all idle blocks.
    bytes: usize,
    /// The most idle bytes, if the program has set a limit.
    limit: Option<usize>,
    /// The number of existing plans. Without any, no block is kept.
    users: u64,
    /// The number of plans that were made for new shapes.
    planned: u64,
}

struct Idle {
    block: Blob,
    /// [`State::planned`] when the block was returned.
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

/// The source of an output's memory.
pub(super) enum BlockSource {
    /// An idle block of an earlier output.
    Reused(Blob),
    /// A new block, which will be kept.
    New,
    /// Outside of the pool.
    Unpooled,
}

impl Pool {
    pub const fn new() -> Pool {
        Pool(Mutex::new(State { idle: VecDeque::new(), bytes: 0, limit: None, users: 0, planned: 0 }))
    }

    /// Locks the state. While it is locked, no block is allocated or freed, and no code panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the source of an output with the given layout. Of several idle blocks, the one
    /// returned last is most likely in a cache.
    pub fn source(&self, layout: Layout) -> BlockSource {
        if layout.size() < SMALLEST {
            return BlockSource::Unpooled;
        }
        let mut state = self.lock();
        if !state.keeps(layout.size()) {
            return BlockSource::Unpooled;
        }
        let at = state.idle.iter().rposition(|idle| *idle.block.layout() == layout);
        match at.and_then(|at| state.idle.remove(at)) {
            Some(idle) => {
                state.bytes -= layout.size();
                BlockSource::Reused(idle.block)
            }
            None => BlockSource::New,
        }
    }

    /// Keeps a block, or frees it.
    pub(super) fn put(&self, block: Blob) {
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

    /// Frees idle blocks one by one, those returned first before others, while a condition holds.
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

    /// Frees all idle blocks.
    pub fn release(&self) {
        let mut state = self.lock();
        state.bytes = 0;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    /// Sets the most idle bytes.
    pub fn set_limit(&self, bytes: usize) {
        self.lock().limit = Some(bytes);
        self.free_while(State::is_full);
    }

    /// The number of idle bytes.
    pub fn idle_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Records that a plan was made for a new shape, and frees blocks that are too old.
    pub fn planned(&self) {
        let oldest = {
            let mut state = self.lock();
            state.planned += 1;
            state.planned.saturating_sub(state.users / PART_OF_PLANS)
        };
        // Idle blocks are in the order in which they were returned.
        self.free_while(|state| state.idle.front().is_some_and(|idle| idle.since < oldest));
    }

    fn enter(&self) {
        self.lock().users += 1;
    }

    /// Removes a user and returns whether it was the last one. The last one frees all idle blocks.
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

/// A user of the pool. When the last one is dropped, the idle blocks and the working memory are
/// freed.
///
/// Any two compare equal, so that a derived comparison of their owners ignores them.
pub(crate) struct PoolUser(&'static Pool);

impl PoolUser {
    /// Registers another user.
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

impl Hash for PoolUser {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pooled::Pooled;
    use crate::testing::assert_documented;
    use std::hash::Hasher;

    /// A pool for one test, with a limit.
    fn pool(limit: usize) -> &'static Pool {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
        pool.set_limit(limit);
        pool
    }

    fn layout(bytes: usize) -> TractResult<Layout> {
        Ok(Layout::from_size_align(bytes, 64)?)
    }

    /// An output of bytes, allocated as layers do.
    fn output(pool: &'static Pool, bytes: usize) -> TractResult<Tensor> {
        // SAFETY: zeros are written below.
        let fresh = |layout| unsafe { Blob::for_layout(layout) };
        let block = match pool.source(layout(bytes)?) {
            BlockSource::Reused(block) => block,
            BlockSource::New | BlockSource::Unpooled => fresh(layout(bytes)?),
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
        // the blocks returned last
        let idle: Vec<usize> = pool.lock().idle.iter().map(|idle| idle.block.as_ptr().addr()).collect();
        assert_eq!(idle, kept);
        // A block above the limit is freed, and no kept block with it.
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
        // an output that outlives the model
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
            // reused each time
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
        // Copies use tract's own storage.
        assert!(tensor.clone().has_plain_ram_storage());
        assert!(tensor.slice(0, 2, 5)?.has_plain_ram_storage());
        assert_eq!(tensor.slice(0, 2, 5)?, plain.slice(0, 2, 5)?);
        // other shapes of the same block
        tensor.set_shape(&[2, 4096])?;
        plain.set_shape(&[2, 4096])?;
        assert_eq!(tensor.moved_axis(0, 1)?, plain.moved_axis(0, 1)?);
        assert_eq!(address(&tensor), at);
        // a block that tract takes
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
        // Another alignment, which no output would use.
        assert_eq!(pool.idle_bytes(), 0);
        Ok(())
    }

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "it has no threads")]
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
            // Some are dropped on another thread.
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

    #[test]
    fn the_limits_are_documented() {
        let (most, least) = (format!("{} MiB", DEFAULT_POOL_BYTES >> 20), format!("{} KiB or more", SMALLEST >> 10));
        assert_documented("src/lib.rs", &format!("It keeps at most {most} of unused blocks."));
        assert_documented("src/lib.rs", &format!("An output of {least} is made in a block of a pool."));
        assert_documented("SECURITY.md", &format!("bounded for the whole process: {most}, or"));
        assert_documented("SECURITY.md", &format!("A failed allocation of {least} below the limit is an error."));
        assert_documented("README.md", &format!("a pool of at most {most}"));
        assert_documented("docs/knobs.md", &format!("| `TRACT_DECONV_POOL_BYTES` | {most} |"));
        assert_documented("docs/limits.md", &format!("stay in a pool for the next run, {most} at most."));
    }
}
