//! Shared by the integration tests: model builders, the float64 definition, cases, and runs.
#![allow(dead_code)] // each test file is a crate of its own and uses a part

pub mod beside;
pub mod case;
pub mod decoder;
pub mod nnef;
pub mod oracle;
pub mod probe;
pub mod proto;
pub mod quantised;
pub mod random;
pub mod run;
pub mod spec;
