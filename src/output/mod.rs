//! The output: its partition into tasks, the stores of results, and the epilogue applied before
//! them.

pub(crate) mod blocks;
pub(crate) mod epilogue;
pub(crate) mod partition;
pub(crate) mod task;
pub(crate) mod task_output;
