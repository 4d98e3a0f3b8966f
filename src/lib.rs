//! Right and fast transposed convolution for ONNX models in [tract](https://docs.rs/tract-onnx).
//!
//! One line added to a tract program, and every ConvTranspose of a model is computed by this crate:
//!
//! ```
//! use tract_deconv::WithDeconv;
//! use tract_onnx::prelude::*;
//!
//! # fn main() -> TractResult<()> {
//! let model = tract_onnx::onnx()
//!     .with_deconv()
//!     .model_for_path("models/upscale4/model.onnx")?
//!     .into_optimized()?
//!     .into_runnable()?;
//! let picture = Tensor::zero::<f32>(&[1, 3, 5, 7])?;
//! let larger = model.run(tvec!(picture.into()))?;
//! assert_eq!(larger[0].shape(), [1, 3, 20, 28]);
//! # Ok(())
//! # }
//! ```
//!
//! # What loads
//!
//! | operator | domain in the file | element types |
//! |---|---|---|
//! | ONNX ConvTranspose (opsets 1, 11, 22) | none, `ai.onnx` | f16, f32, f64; bf16 through [`load`](load()) |
//! | ONNX Conv (opsets 1, 11, 22), only with [`WithConv`] | the same | the same |
//! | OpenVINO GroupConvolutionBackpropData-1, ConvolutionBackpropData-1 | `org.openvinotoolkit`, `ai.intel.openvino`, none | f16, f32, f64, integers of 8 to 64 bits |
//! | OpenVINO GroupConvolution-1, Convolution-1 (forward) | the same | the same |
//! | oneDNN Graph ConvTranspose-1 | `onednn`, or any other that is not ONNX's where the node has one of its attributes | f16, f32; bf16 through [`load`](load()) |
//!
//! All of them run on 1 to 3 spatial axes, the transposed ones on 4 too, with any stride, dilation, padding rule, output
//! padding, output shape and grouping that their texts allow, and on symbolic dimensions. Weights and bias may be constant,
//! inputs of the graph, or results of other nodes. Where a text is ambiguous, the operator's own runtime decides.
//! The domains of OpenVINO's and oneDNN's rows, and integer lists written as `"2,2"`, are this crate's convention: no standard puts
//! these operators in ONNX files; `examples/dialects.rs` builds a graph that has them. Nodes of any other domain are handed
//! to tract's own builders.
//!
//! What a text forbids is an error when the model is loaded, or when a shape that breaks it comes in: it names the node,
//! the attribute, its value and the rule. Integer arithmetic is exact as long as the result fits the type, and wraps
//! where it does not; it never saturates and never goes through floats.
//!
//! # How it runs
//!
//! A node becomes a [`DeconvSpec`], the one description that all dialects share, in a [`GroupedDeconv`]. Optimising the
//! model packs constant weights, once for all the nodes that share them, and drops the original. For each concrete shape a
//! [`Plan`] is made: an inert value that says which [`Strategy`] runs on which instruction set, and why the better-ranked
//! ones declined; [`explain`](explain()) shows it. An op keeps the plans of the 16 shapes that it saw last.
//!
//! NCX and NXC data are both read where they lie. tract can move the channel axis through the op, so that transposes around
//! it cancel.
//!
//! # Determinism
//!
//! A plan gives the same bits at every run, on any number of threads, and whatever other threads run on the same model: each
//! output element is summed in one order, which the plan fixes. The plan depends on the spec, the input's shape, the element
//! type, the filter's layout, the CPU's instruction set and second-level cache, the knobs, and this crate's version, and on
//! nothing else; where one of these differs, results may be rounded otherwise. [`explain`](explain()) prints it, and the knobs
//! narrow it.
//!
//! # Numbers
//!
//! Sums of f16 and f32 are made in f32, those of f64 in f64, integers in integers. Where a CPU has tile registers (AMX, on Linux), dense layers in
//! f16 and f32 are multiplied there: each number as the exact sum of three numbers of 8 significant bits, of whose nine products six are made, and all added in
//! f32. What is left out is at most what rounding each product to f32 changes, and long sums end up closer to the true ones than a chain of f32
//! multiply-adds does. Blocks of data with infinity, NaN or magnitudes above `2^50`, blocks and filters whose largest magnitude is below `2^-40`, and filters with
//! either are not multiplied so; in the others, a product below `2^-102` may lose bits and one below `2^-126` counts as zero. `TRACT_DECONV_ISA=avx512` keeps to
//! vectors. Linux is asked for the tile registers once a process, when the first plan is made that has them; a program that keeps to vectors does not ask.
//!
//! Elsewhere, dense layers of 16 input channels a group and more are multiplied in transformed tiles of two results along an axis (Winograd's minimal filtering, strategy
//! `winograd`). Each result is made of what its own taps read, so that errors are near those of a sum tap by tap (within 1.6 times onnxruntime's on the
//! transposed layers of `benches/workloads.json`); but a product of a weight that is zero, or far smaller than its neighbours, is as exact as theirs are. `TRACT_DECONV_STRATEGY` or the
//! transforms' option `strategy` choose another one.
//!
//! Constant weights and biases in f32 that are subnormal, below `2^-126`, count as zero.
//!
//! NaN and infinity pass through sums as IEEE 754 has it. Padding is multiplied as zeros, so a weight that is not finite may
//! make NaN of more cells of its own output channel.
//!
//! # Threads
//!
//! Work is split over tract's current executor, of whichever kind: a pool of its own, or rayon's global one. It is a single thread unless you set another one, and no
//! thread is started here. The calling thread takes a share, one of as many as the executor has threads, and begins at once. Threads of the executor join it while there
//! is work left; one that wakes up later finds nothing to do, and is not waited for. Layers of less than some 35 us stay on the calling thread.
//!
//! Waking a thread takes as long as a small layer does. So a thread that has helped spins for the next layer, 200 us at most, and while it does, layers from some 5 us on are
//! shared with it. At most as many threads spin as the process may use cores, less one for the calling thread; on one core none does. Each executor has its own
//! list of such threads, and a spinning thread takes no lock. [`set_spin_time`] or `TRACT_DECONV_SPIN_US` sets how long they spin: it is for the whole process, and with zero
//! no thread spins.
//!
//! Every few microseconds, a spinning thread runs a task of its executor's if one is waiting there, such as a part of one of tract's own operators or anything else that you
//! spawned. That task runs on top of the spinning thread's stack and takes as long as it takes; none is begun once the spin time is over.
//!
//! The calling thread waits for the helpers that have joined: it yields its core, spins for 100 us at most and no longer than the spin time, and then sleeps.
//!
//! What stands between layers and folds into none (activations of values that something else reads, factors of channels, sums, max pooling) is one op,
//! [`BetweenLayers`], in an optimised model, shared as layers are.
//!
//! Every public type is `Send` and `Sync`: models, plans and packed filters may be shared by threads.
//!
//! # Memory
//!
//! An output of 4 KiB or more is made in a block that goes back to a pool when its tensor is dropped, on whatever thread. The next
//! output of the same size takes that block, and does not wait for fresh pages. To tract and to your program it is a plain tensor.
//! The pool belongs to the process. It holds 256 MiB that nothing uses at most; [`memory::set_pool_bytes`] and
//! `TRACT_DECONV_POOL_BYTES` set another number, and 0 turns it off. A larger output is allocated and freed as other tensors are.
//! Blocks for shapes that do not come again are freed as other shapes come.
//! All of them are freed with the last model that has planned a layer, and by [`memory::release`].
//!
//! Working memory is kept from run to run, for as many threads as ever computed at once, as large as the largest layer needed it.
//! It is freed with the pool. Integers of other types than `i64` are copied to it and back.
//!
//! The allocator of the process is used as it is and not set in any way. What loading a model left free in it stays there: with
//! glibc, a program that wants those pages back can trim the heap itself. On Linux, blocks of 32 MiB and more are advised to have huge pages.
//! Tensors of tract's own operators are tract's.
//!
//! # What the process notices
//!
//! All that outlives a model or is seen outside of it. Nothing else of this crate is: it spawns no threads, sets no signal
//! handlers and no environment, opens no connections, and writes no file but the one for measured choices.
//!
//! | what | from when, until when | where |
//! |---|---|---|
//! | permission for tile registers, asked of Linux for the process (`arch_prctl`) | the first plan on [`Isa::Amx`]; for good | simd/tile_registers.rs `AVAILABLE`, `PERMITTED` |
//! | the CPU's model, and its row of rates | the first plan; a few numbers | estimate/machine.rs `CURRENT`, `CPU` |
//! | measured choices of strategies, where measuring is asked for, and the file for them where there is one | the first measured plan; for good, 16,384 choices at most | tuning.rs `CHOICES` |
//! | tract's own builders, for nodes of other domains; entries in tract's lists of transforms, knobs and pulsifiers | loading the first model | frontend/mod.rs `REGISTER`; pulse.rs `DONE` |
//! | blocks of freed outputs, bounded | the first output; the last plan that goes | memory/pool.rs `POOL`, `OF_KNOB` |
//! | working memory, as much as the largest layers needed at once; its last place, per thread | the first run; for good | memory/scratch.rs `F32`, `F64`, `I64`, `LAST` |
//! | threads of an executor that spin for the next layer, for 200 us or as long as is set | layers that are shared; that time after the last of them | parallel/workers.rs `SPIN_NANOS`, `SPINNING`, `KNOB`, `MOST`, `LAST`, `ALL`, `WAITS` |
//! | from which cost on layers are shared; when one was last asked for, and the scope of the last, per thread | the first run; a few words | parallel/mod.rs `SHARE_FROM`, `SET`, `ASKED`, `KEPT` |
//! | a switch for this crate's own tests | off | memory/fill.rs `FILLED` |
//!
//! # Other doors
//!
//! - Forward convolutions too: [`WithConv`].
//! - Models that tract has loaded already (NNEF, TFLite, the `tract` facade): the transforms `deconv` and `conv` of [`rewrite`].
//! - Strategy, instruction set, fusion and memory limit where a model is loaded, and for the whole process how threads
//!   share and spin and how much memory waits for outputs: [`Options`], by [`WithDeconvOptions`].
//! - Back to tract's own operators, as its CUDA and Metal runtimes need them: the transform [`to_tract`].
//! - Models with bf16 tensors: [`load`](load()), and [`load_with`] for another set of operators.
//! - NNEF: with the feature `nnef`, `tract_nnef::nnef().with_deconv()` dumps and loads this crate's operator, as NNEF's own
//!   `deconv` and `conv` where those can say it; `with_conv()` loads `conv` into it too.
//! - Streaming, with the feature `pulse`: tract's transform `pulse` takes the operator as it takes tract's own.
//! - [`knobs`]: `TRACT_DECONV_STRATEGY` and `TRACT_DECONV_ISA` force a strategy or an instruction set,
//!   `TRACT_DECONV_MEMORY_LIMIT` sets how many bytes an output may have, `TRACT_DECONV_POOL_BYTES` how many wait for outputs to come,
//!   `TRACT_DECONV_SHARE_FROM` which layers threads share, `TRACT_DECONV_SPIN_US` how long they spin.
//! - The `log` crate gets one `debug!` for each plan, and nothing for a run.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[forbid(unsafe_code)]
mod activation;
#[forbid(unsafe_code)]
mod algorithm;
#[forbid(unsafe_code)]
mod cache;
#[forbid(unsafe_code)]
mod compute;
#[forbid(unsafe_code)]
mod describe;
#[forbid(unsafe_code)]
mod dimension;
#[forbid(unsafe_code)]
mod element;
#[forbid(unsafe_code)]
mod estimate;
#[forbid(unsafe_code)]
pub mod explain;
#[forbid(unsafe_code)]
mod frontend;
#[forbid(unsafe_code)]
mod fuse;
#[forbid(unsafe_code)]
mod geometry;
#[forbid(unsafe_code)]
mod integers;
mod kernel;
#[forbid(unsafe_code)]
pub mod knobs;
#[deny(unsafe_code)]
mod layer;
#[forbid(unsafe_code)]
mod layout;
#[forbid(unsafe_code)]
pub mod load;
pub mod memory;
#[cfg(feature = "nnef")]
#[forbid(unsafe_code)]
pub mod nnef;
#[deny(unsafe_code)]
pub mod op;
#[forbid(unsafe_code)]
mod options;
#[forbid(unsafe_code)]
mod output;
mod parallel;
#[deny(unsafe_code)]
mod plan;
#[cfg(feature = "pulse")]
#[forbid(unsafe_code)]
pub mod pulse;
#[forbid(unsafe_code)]
pub mod rewrite;
#[forbid(unsafe_code)]
mod settings;
mod simd;
#[forbid(unsafe_code)]
pub mod spec;
#[cfg(test)]
mod testing;
#[forbid(unsafe_code)]
pub mod to_tract;
#[forbid(unsafe_code)]
mod tuning;

/// For tests, benchmarks and fuzzing of this crate: no part of its interface, and free to change in any release.
#[doc(hidden)]
pub mod internals {
    pub use crate::estimate::machine::Rates;
    pub use crate::geometry::AxisPhases;
    pub use crate::memory::fill::fill_new_memory;
    pub use crate::parallel::threads;
}

pub use crate::estimate::machine::Machine;
pub use crate::layout::filter::{FilterLayout, PackedFilter};
pub use crate::simd::isa::Isa;
pub use activation::Activation;
pub use algorithm::Strategy;
pub use explain::{Explanation, explain};
pub use frontend::{WithConv, WithDeconv};
pub use layer::Layer;
pub use load::{load, load_with};
pub use op::{BetweenLayers, Dialect, GroupedDeconv, OptGroupedDeconv, Pass};
pub use options::{Options, WithDeconvOptions};
pub use output::epilogue::Step;
pub use parallel::{set_share_from, set_spin_time, spin_time};
pub use plan::{Measured, Plan, PlanOptions, Tuning};
pub use rewrite::{LeftToTract, left_to_tract};
pub use spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side};
