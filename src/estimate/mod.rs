//! The machine, its kernel sizes and the cost model that planning uses.

pub(crate) mod cost;
pub(crate) mod machine;
