//! The output: how it is parted among threads, how results are written, and what is applied to them before.

pub(crate) mod blocks;
pub(crate) mod epilogue;
pub(crate) mod partition;
