//! The tests that need no process of their own, as one program: linking one for each file takes minutes.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code)] // a part is used here
#[path = "../../benches/common/io.rs"]
mod io;
#[path = "../../benches/common/npy.rs"]
mod npy;

mod accuracy;
mod activations;
mod beside;
mod beside_random;
mod branches;
mod citizens;
mod concat;
mod conv;
mod dynamic_filter;
mod empty;
mod floors;
mod formats;
mod fourier;
mod fusion;
mod gaps;
mod geometry_sweep;
mod ieee;
mod leniency;
mod nnef;
mod nnef_random;
mod nnef_standard;
mod normalise;
mod operands;
mod padding;
mod planner;
mod precision;
mod pulse;
mod quantised;
mod quantised_models;
mod send_sync;
mod space_to_depth;
mod specifications;
mod to_tract;
