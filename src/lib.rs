//! Convolutions of both directions for [tract](https://docs.rs/tract-onnx): ONNX Conv and
//! ConvTranspose, and the deconvolutions of OpenVINO and oneDNN.
//!
//! Two calls added to a tract program let this crate compute every Conv and ConvTranspose of a
//! model:
//!
//! ```
//! use tract_deconv::{WithConv, WithDeconv};
//! use tract_onnx::prelude::*;
//!
//! # fn main() -> TractResult<()> {
//! let model = tract_onnx::onnx()
//!     .with_deconv()
//!     .with_conv()
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
//! [`WithDeconv`] takes the transposed convolutions and [`WithConv`] the forward ones. Either works
//! alone.
//!
//! # What loads
//!
//! | operator | domain | element types |
//! |---|---|---|
//! | ONNX ConvTranspose (opsets 1, 11, 22) | ONNX's | f16, f32, f64; bf16 through [`load`](load()) |
//! | ONNX Conv (opsets 1, 11, 22), with [`WithConv`] only | ONNX's | the same |
//! | ONNX ConvInteger and QLinearConv (opset 10), with [`WithConv`] only | ONNX's | u8 and i8 |
//! | Conv and ConvTranspose of tensors behind DequantizeLinear (opsets 10 to 22) | ONNX's | u8 and i8 |
//! | OpenVINO GroupConvolutionBackpropData-1 | OpenVINO's | f16, f32, f64, integers of 8 to 64 bits |
//! | OpenVINO ConvolutionBackpropData-1 | OpenVINO's | the same |
//! | OpenVINO GroupConvolution-1, Convolution-1 (forward) | OpenVINO's | the same |
//! | oneDNN Graph ConvTranspose-1 | oneDNN's | f16, f32; bf16 through [`load`](load()) |
//!
//! The domain in the file tells which operator a node is:
//!
//! - ONNX's: none, or `ai.onnx`.
//! - OpenVINO's: `org.openvinotoolkit`, `ai.intel.openvino`, or none.
//! - oneDNN's: `onednn`, or any that is not ONNX's if the node has one of the operator's
//!   attributes.
//!
//! They run on one to four spatial axes, OpenVINO's forward operators on one to three. Any stride,
//! dilation, padding rule, output padding, output shape and grouping that their specifications
//! allow is accepted, and so are symbolic dimensions. Weights and bias may be constants, inputs of
//! the graph, or results of other nodes. Where a specification is ambiguous, the operator's own
//! runtime decides.
//!
//! No standard puts OpenVINO's or oneDNN's operators into ONNX files. The domains of their rows,
//! and integer lists written as `"2,2"`, are a convention of this crate. `examples/dialects.rs`
//! builds a graph with such nodes. Nodes of any other domain are handed to tract's own builders.
//!
//! [`WithLeniency`] reads two older operators that stand between layers and that tract refuses.
//!
//! A node that violates its specification is an error when the model is loaded. A shape that does
//! is an error when it is known. The message names the node, the attribute, its value and the rule.
//!
//! Integer arithmetic is exact while the result fits the type, and wraps where it does not. It
//! never saturates and never goes through floats.
//!
//! # How it runs
//!
//! A node becomes a [`GroupedDeconv`] with a [`DeconvSpec`], the one description that all dialects
//! share. Optimising the model packs constant weights, once for all nodes that share them, and
//! drops the original. A filter that is a windowed Fourier basis becomes an [`OptFourier`], which needs
//! no plan. Otherwise a [`Plan`] is made for each concrete shape. It says which [`Strategy`] runs
//! on which instruction set, and why the other strategies declined; [`explain`](explain()) prints
//! it. An op keeps the plans of the 16 most recent shapes.
//!
//! A convolution of quantised tensors becomes a [`QuantisedDeconv`], which takes in the bias, Relu,
//! Clip, the sum with a dequantised tensor, and the QuantizeLinear behind it. Layers of a chain then
//! pass bytes to each other. Optimising the model makes an [`OptQuantisedDeconv`] of it.
//!
//! NCX and NXC data are both read in place. tract can move the channel axis through the op, so that
//! transposes around it cancel.
//!
//! # Determinism
//!
//! A plan gives the same bits at every run, on any number of threads, and whatever other threads
//! run on the same model. The plan fixes the order in which each output element is summed. The plan
//! depends on the spec, the input's shape, the element type, the filter's layout, the CPU's model,
//! instruction set and cache sizes, the options and knobs, and this crate's version, and on nothing
//! else. The exception is measured tuning, an option that is off by default: it depends on times,
//! unless a file has the choices. Where one of these differs, results may be rounded differently.
//! [`explain`](explain()) prints the plan, and options and knobs narrow the choice.
//!
//! # Numbers
//!
//! Sums of f16 and f32 are made in f32, those of f64 in f64, and those of integers in integers.
//!
//! **Tile registers.** Where a CPU has AMX, on Linux, dense layers in f16 and f32 are multiplied on
//! its tile registers. Each number is split exactly into three limbs of 8 significant bits. Six of
//! the nine products of limbs are made and added in f32. The other three amount to at most what
//! rounding each product to f32 changes. Long sums end up closer to the true ones than a chain of
//! f32 multiply-adds does.
//!
//! Products with limbs that are zero are left out where the filter's values or the element type tell: a
//! filter of bf16 values takes three. That changes no bit.
//!
//! Layers of 8-bit integers are multiplied there as they are, four bytes at a time, with exact sums.
//!
//! Some numbers do not go through tile registers. These are blocks of data with infinity, NaN or
//! magnitudes above `2^50`, blocks and filters whose largest magnitude is below `2^-40`, and
//! filters with infinity, NaN or magnitudes above `2^50`. Vectors multiply them. On tile registers,
//! a product below `2^-102` may lose bits, and one below `2^-126` counts as zero.
//!
//! `TRACT_DECONV_ISA=avx512` avoids tile registers. A process asks Linux for permission
//! (`arch_prctl`) once, when the first plan that uses them is made. A program that forces another
//! instruction set does not ask.
//!
//! **Precision.** With the option `precision`, or `TRACT_DECONV_PRECISION`, both operands of each
//! product are rounded to bf16 or f16 in the layers that have kernels for it: dense layers of f16 and
//! f32 on tile registers. Sums stay f32. In bf16 there is one product in place of six, and an operand
//! below `2^-126` counts as zero; in f16 there are three, and magnitudes from 65520 on are infinity.
//! [`Precision::rounded`] is the rounding, and `docs/knobs.md` has the bounds. Nothing is rounded by
//! default.
//!
//! **Winograd.** Where tile registers are not faster, dense layers of 8 and more input channels per group run in tiles
//! that take fewer products (strategy `winograd`), unless results at the border have fewer than 16 products
//! along an axis. The largest error is at most 1.5 times that of a
//! sum tap by tap, 1.6 times with spikes, and twice that on a pure tone. A product with a weight that is zero, or far
//! smaller than its neighbours, has the error of the neighbours' products. In tiles of two results
//! along an axis, a result is made of the inputs that its own taps read, and of nothing else. Layers
//! whose phases have two adjacent taps may run in tiles of three results, those of three and more
//! in cyclic tiles, and those of several taps along an axis in Fourier tiles. Their error scales
//! with the largest input of the tile: a result that should be zero can be 1e-7 of it. The option
//! `local_accuracy`, or `TRACT_DECONV_LOCAL_ACCURACY=1`, forbids those three.
//! `TRACT_DECONV_STRATEGY`, or the option `strategy`, chooses another strategy.
//!
//! **Fourier transforms.** A layer in f32 whose constant filter is a windowed Fourier basis, to within
//! the roundings of its weights, runs as a fast Fourier transform of each frame ([`OptFourier`]). The
//! error of a result is by the size of its frame, before the window of an inverse. A frame with a
//! number that is not finite gives NaN. With `fusion` off, or with a strategy or an instruction set
//! that is forced, the layer is a convolution.
//!
//! **Quantised layers.** Sums of products of 8-bit integers are exact. The real numbers that they stand
//! for are computed in f64 and rounded once, half to even, and saturate. A layer between
//! DequantizeLinear and QuantizeLinear gives what these operators and a convolution of real numbers
//! give.
//!
//! **Subnormal constants.** Constant weights and biases in f32 that are subnormal, below `2^-126`,
//! count as zero.
//!
//! **NaN and infinity** pass through sums as in IEEE 754. Padding is multiplied as zeros, so a
//! weight that is not finite may make NaN of more elements of its own output channel. In a Fourier
//! transform, all results of a frame are NaN.
//!
//! # Threads
//!
//! Layers run on tract's current executor, which is a pool of its own or rayon's global one. It is
//! a single thread unless the program sets another one. This crate starts no threads. Without the
//! Cargo feature `threads`, which is on by default, layers run on the calling thread.
//!
//! Work is divided into as many shares as the executor has threads. The calling thread takes one of
//! them and begins at once. Threads of the executor join it while there is work left. A thread that
//! wakes up later finds nothing to do, and nobody waits for it. Layers below 34 us by estimate, or
//! 25 us on a Sapphire Rapids with AMX, stay on the calling thread.
//!
//! Waking a thread takes as long as a small layer does. A thread that has helped therefore spins
//! for the next layer, 200 us at most. While it spins, a Granite Rapids shares layers from 10 us on,
//! and other machines than these two from 5 us on. A thread is also woken to spin once such small
//! layers follow each other closely. The process spins at most one thread less than it may use cores, and
//! none on one core. Each executor has its own list of spinning threads, and a spinning thread
//! takes no lock. [`set_spin_time`] or `TRACT_DECONV_SPIN_US` sets the spin time of the whole
//! process. With zero no thread spins.
//!
//! Every few microseconds, a spinning thread runs a waiting task of its executor, if there is one.
//! This may be a part of one of tract's own operators, or any task that the program spawned. It
//! runs on top of the spinning thread's stack and takes as long as it takes. No such task is begun
//! once the spin time is over.
//!
//! The calling thread waits for the helpers that have joined. It yields its core, then spins for
//! 100 us at most and no longer than the spin time, and then sleeps.
//!
//! Steps between layers that fold into no layer become one op in an optimised model,
//! [`BetweenLayers`]. These are activations of values that something else reads, factors of
//! channels, sums and max pooling. Threads share it as they share layers.
//!
//! Every public type is `Send` and `Sync`. Threads may share models, plans and packed filters.
//!
//! # Memory
//!
//! An output of 4 KiB or more is made in a block of a pool. Dropping its tensor, on whatever
//! thread, returns the block. The next output of the same size takes it, and so needs no fresh
//! pages. To tract and to the program it is a plain tensor.
//!
//! The pool belongs to the process. It keeps at most 256 MiB of unused blocks.
//! [`memory::set_pool_bytes`] and `TRACT_DECONV_POOL_BYTES` set another number, and 0 turns the
//! pool off. A larger output is allocated and freed like other tensors. Blocks for shapes that do
//! not come again are freed as other shapes come. All unused blocks are freed with the last model
//! that has planned a layer, and by [`memory::release`].
//!
//! Working memory is kept from run to run. There is one set for each thread that ever computed at
//! the same time as the others, as large as the largest layer needed it. It is freed with the pool.
//! Integers of other types than `i64` are copied to working memory and back.
//!
//! The allocator of the process is used as it is. What loading a model left free in it stays there;
//! with glibc, [`memory::trim_heap`] returns these pages, if a program calls it. On Linux, blocks
//! of 32 MiB and more are advised to have huge pages. tract allocates the tensors of its own
//! operators.
//!
//! # What the process notices
//!
//! This table lists everything that outlives a model or is seen outside of it. Otherwise, this
//! crate spawns no threads, sets no signal handlers and no environment variables, opens no
//! connections and writes no file but the one for measured choices, where there is one.
//!
//! | what | from when, until when | where |
//! |---|---|---|
//! | whether there are tile registers | the first plan; for good | simd/tile_registers.rs `AVAILABLE` |
//! | Linux's permission to use them | the first plan on AMX; for good | simd/tile_registers.rs `PERMITTED` |
//! | the CPU's model and its row of rates | the first plan; for good | estimate/machine.rs `CURRENT`, `CPU` |
//! | measured choices, if asked for | the first measured plan; for good | tuning.rs `CHOICES` |
//! | tract's own builders, for nodes of other domains | the first such node; for good | frontend/mod.rs `REGISTER` |
//! | entries in tract's lists of transforms, knobs, pulsifiers | linking, loading; for good | pulse.rs `DONE` |
//! | blocks of freed outputs, bounded | the first output; the last plan | memory/pool.rs `POOL`, `OF_KNOB` |
//! | working memory | the first run; the last plan | memory/scratch.rs `F32`, `F64`, `I64`, `PAIR`, `QUAD`, `SPECTRA` |
//! | per thread: which working memory it had last | the first run; the thread | memory/scratch.rs `LAST` |
//! | spinning threads of an executor | a shared layer; its spin time | parallel/workers.rs `SPINNING`, `ALL` |
//! | per thread: its executor's list | a shared layer; the thread | parallel/workers.rs `LAST` |
//! | per thread: whether it spins | a shared layer; the thread | parallel/workers.rs `WAITS` |
//! | how long, and how many may spin | the first run; for good | parallel/spin_time.rs `SPIN_NANOS`, `KNOB`; parallel/workers.rs `MOST` |
//! | least cost of a shared layer | the first run; for good | parallel/mod.rs `SHARE_FROM`; parallel/share.rs `SET` |
//! | per thread: time of a small layer, last scope | the first run; the thread | parallel/share.rs `ASKED`, `KEPT` |
//! | a switch for this crate's own tests | off | memory/fill.rs `FILLED` |
//!
//! # Related items
//!
//! - [`rewrite`]: the transforms `deconv` and `conv`, for models that tract has loaded already
//!   (NNEF, TFLite, the `tract` facade).
//! - [`Options`], through [`WithDeconvOptions`]: strategy, instruction set, fusion and memory limit
//!   where a model is loaded. For the whole process: how threads share and spin, and how much
//!   memory the pool keeps.
//! - [`to_tract`]: the transform back to tract's own operators, as its CUDA and Metal runtimes need
//!   them.
//! - [`load`](load()): models with bf16 tensors. [`load_with`] does the same with another set of
//!   operators.
//! - NNEF, with the feature `nnef`: `tract_nnef::nnef().with_deconv()` dumps and loads this crate's
//!   operator, as NNEF's own `deconv` and `conv` where those can express it. `with_conv()` loads
//!   `conv` into it too.
//! - Streaming, with the feature `pulse`: tract's transform `pulse` takes the operator as it takes
//!   tract's own.
//! - [`knobs`]: environment variables. `TRACT_DECONV_STRATEGY` and `TRACT_DECONV_ISA` force a
//!   strategy or an instruction set. `TRACT_DECONV_MEMORY_LIMIT` limits the bytes of an output,
//!   `TRACT_DECONV_POOL_BYTES` those of the pool. `TRACT_DECONV_SHARE_FROM` says which layers
//!   threads share, `TRACT_DECONV_SPIN_US` how long they spin.
//! - The `log` crate gets one `debug!` message per plan, and none per run.
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
mod formats;
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
mod padding;
mod parallel;
#[deny(unsafe_code)]
mod plan;
#[forbid(unsafe_code)]
mod precision;
#[forbid(unsafe_code)]
mod problem;
#[cfg(feature = "pulse")]
#[forbid(unsafe_code)]
pub mod pulse;
#[forbid(unsafe_code)]
mod ranges;
#[forbid(unsafe_code)]
pub mod rewrite;
#[forbid(unsafe_code)]
mod settings;
mod simd;
#[forbid(unsafe_code)]
mod space_to_depth;
#[forbid(unsafe_code)]
pub mod spec;
#[cfg(test)]
mod testing;
#[forbid(unsafe_code)]
pub mod to_tract;
#[forbid(unsafe_code)]
mod tuning;

/// Internals for the tests, benchmarks and fuzz targets of this crate.
///
/// They are no part of its interface and may change in any release.
#[doc(hidden)]
pub mod internals {
    pub use crate::estimate::machine::Rates;
    pub use crate::geometry::AxisPhases;
    pub use crate::memory::fill::fill_new_memory;
    pub use crate::op::{DataZeroPoint, IntegerSums, Output, Quantisation, Scale, Scaling, with_elements_of};
    pub use crate::parallel::threads;
}

pub use crate::estimate::machine::Machine;
pub use crate::layout::filter::{FilterLayout, PackedFilter};
pub use crate::simd::isa::Isa;
pub use activation::Activation;
pub use algorithm::Strategy;
pub use explain::{Explanation, explain};
pub use frontend::{WithConv, WithDeconv, WithLeniency};
pub use layer::Layer;
pub use load::{load, load_with};
pub use op::{
    BetweenLayers, ByteSum, ByteTable, Dialect, GroupedDeconv, If, OptDynamicQuantise, OptF16Arithmetic, OptFourier,
    OptGroupedDeconv, OptIf, OptNormalise, OptQuantise, OptQuantisedDeconv, OptReduce, OptResize, OptSoftmax,
    OptTranspose, Pass, QuantisedDeconv,
};
pub use options::{Options, WithDeconvOptions};
pub use output::epilogue::Step;
pub use parallel::{set_share_from, set_spin_time, spin_time};
pub use plan::{Measured, Plan, PlanOptions, Tuning};
pub use precision::Precision;
pub use rewrite::{LeftToTract, left_to_tract};
pub use spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side};
