//! The storage of an output in a block of the pool.
//!
//! It returns its block when the tensor is dropped, on any thread. To tract it is a plain tensor in
//! RAM.

use crate::memory::pool::Pool;
use std::fmt;
use std::hash::Hasher;
use tract_core::internal::*;

/// The storage of an output: a block that is returned to the pool when the tensor is dropped.
pub(super) struct Pooled {
    /// None once tract has taken the block.
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
        // This may be another block than the pool's own: the tensor's owner may have exchanged it.
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
        // The same hash as tract's plain storage, which compares equal.
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
