//! What planning counts with: the machine, the sizes of its kernels, and the cost of what they do.

pub(crate) mod cost;
pub(crate) mod machine;
