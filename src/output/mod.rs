//! The output: its partition into tasks, the stores of results, and the epilogue applied before
//! them.

pub(crate) mod blocks;
pub(crate) mod epilogue;
pub(crate) mod partition;
