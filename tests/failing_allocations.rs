//! Failing allocations while models are loaded, optimised and run.
//!
//! Each allocation fails once alone, and once together with all that follow. Each attempt must end
//! with an error or with the right result. No allocation of this crate may end the process, and
//! nothing may stay allocated.
//!
//! Only blocks of at least [`LEAST_BYTES`] count, as the model determines their sizes. tract
//! allocates such blocks too, and panics or aborts if it gets none. The stack frame that asked for
//! the block tells whose failure it is. tract's frames are recognised by [`OF_TRACT`], and a panic
//! or abort in any other frame is a failure of the test.
//!
//! Each attempt is a process of its own, forked from the test, so that an abort ends only that
//! attempt.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod common;

use common::beside::layer_then;
use common::proto::{Model, Node, sizes};
use common::random::Random;
use ndarray_npy::NpzReader;
use prost::Message;
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};
use tract_core::internal::*;
use tract_deconv::{WithConv, WithDeconv, explain, load_with};
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::prelude::{Framework, InferenceFact, InferenceModelExt, tract_ndarray};

/// The smallest block that may fail.
const LEAST_BYTES: usize = 4096;

/// The maximum number of attempts per model and kind of failure. If there are more blocks, an even
/// sample of them is tried.
const MOST_ATTEMPTS: usize = 300;

/// The bytes that may stay allocated after an attempt, for lists and caches of the process that
/// later attempts reuse.
const KEPT_BYTES: isize = 64 << 10;

/// The prefixes of the functions of tract, and of the crate with which it reads files, that can't
/// go on without memory.
///
/// Inlining determines which of the functions is seen. A crate name and a colon precede the
/// functions that are compiled as part of this crate.
const OF_TRACT: &[&str] = &[
    "<tract_core::",
    "<tract_data::",
    "<tract_hir::",
    "<tract_onnx::",
    "prost: merge",
    "prost::",
    "tract_core::",
    "tract_data::",
    "tract_hir::",
    "tract_onnx::",
];

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// The bytes that naming functions leaves allocated.
static REPORTED: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// The number of blocks to grant before one fails. No block fails if there is none.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static SEEN: Cell<usize> = const { Cell::new(0) };
    /// Whether all blocks after the first failure fail, too.
    static FOR_GOOD: Cell<bool> = const { Cell::new(false) };
    /// The file descriptor for the report of a failing block.
    static REPORT: Cell<i32> = const { Cell::new(-1) };
}

struct Failing;

impl Failing {
    fn fails(bytes: usize) -> bool {
        let Some(left) = LEFT.try_with(Cell::get).ok().flatten().filter(|_| bytes >= LEAST_BYTES) else { return false };
        SEEN.set(SEEN.get() + 1);
        if left > 0 {
            LEFT.set(Some(left - 1));
            return false;
        }
        // The report below allocates.
        LEFT.set(None);
        let before = LIVE.load(Ordering::Relaxed);
        report(&format!("{}\n", whose(&Backtrace::force_capture().to_string())));
        REPORTED.fetch_add(LIVE.load(Ordering::Relaxed) - before, Ordering::Relaxed);
        if FOR_GOOD.get() {
            LEFT.set(Some(0));
        }
        true
    }
}

// SAFETY: every call is forwarded to the system's allocator with unchanged arguments, or `alloc`
// returns null, which the trait allows.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Failing::fails(layout.size()) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`, and the block came from the
        // system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn report(line: &str) {
    // SAFETY: `line` is readable for its whole length, and the kernel refuses an invalid
    // descriptor.
    unsafe { libc::write(REPORT.get(), line.as_ptr().cast(), line.len()) };
}

/// The crates that allocate on behalf of others. The nearest function of another crate is the one
/// that asked.
const HELPERS: [&str; 16] = [
    "T",
    "alloc",
    "anyhow",
    "bytes",
    "core",
    "half",
    "hashbrown",
    "itertools",
    "ndarray",
    "num_traits",
    "rustc",
    "__rustc",
    "smallvec",
    "std",
    "tract_data",
    "__rust_realloc",
];

/// Returns the function that asked for a block.
///
/// For a function of this crate, the result begins with `src/` and the file if there are line
/// numbers. Functions of other crates have no file, but their whole name.
fn whose(backtrace: &str) -> String {
    let mut lines = backtrace.lines().map(str::trim_start).peekable();
    while let Some(line) = lines.next() {
        let Some((_, function)) = line.split_once(": ") else { continue };
        let at = lines.next_if(|line| line.starts_with("at ")).unwrap_or_default();
        if let Some(place) = at.strip_prefix("at ./src/") {
            let file = place.split(':').next().unwrap_or(place);
            return format!("src/{file}: {function}");
        }
        // `<T as Trait>::method` belongs to the crate of the type. Generic functions are compiled
        // where they are used.
        let of_name = function.trim_start_matches(['<', '&', '*']).trim_start_matches("mut ");
        let of_name = of_name.split([':', ' ', '<', '>']).next().unwrap_or_default();
        let of_file = at.rsplit_once("/src/").and_then(|(folder, _)| folder.rsplit('/').next());
        let of_file = of_file.map(|folder| {
            folder.split('-').take_while(|part| !part.starts_with(char::is_numeric)).collect::<Vec<_>>().join("_")
        });
        let of = of_file.as_deref().unwrap_or(of_name);
        // An inlined function has a file, but no path. Others have no file in builds without line numbers.
        let here = at.contains("tests/failing_allocations.rs") || function.contains("failing_allocations::");
        let own = here && !function.ends_with("attempt");
        if !own && !HELPERS.contains(&of) {
            return if of == of_name { function.into() } else { format!("{of}: {function}") };
        }
    }
    "nobody".into()
}

/// A model file with its inputs and expected outputs.
struct Case {
    name: &'static str,
    model: std::path::PathBuf,
    inputs: Vec<(String, Arc<Tensor>)>,
    /// The outputs of the optimised model without a failure.
    expected: Vec<Arc<Tensor>>,
}

impl Case {
    fn new(name: &'static str, folder: &Path, bf16: bool) -> TractResult<Case> {
        let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
        let mut proto = ModelProto::decode(&*std::fs::read(of.join("model.onnx"))?)?;
        let graph = proto.graph.as_mut().context("no graph")?;
        if bf16 {
            for tensor in graph.initializer.iter_mut().filter(|tensor| tensor.data_type == DataType::Float as i32) {
                let raw: Vec<u8> = match tensor.raw_data.is_empty() {
                    true => tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
                    false => tensor.raw_data.to_vec(),
                };
                tensor.raw_data =
                    raw.as_chunks::<4>().0.iter().flat_map(|value| [value[2], value[3]]).collect::<Vec<u8>>();
                tensor.float_data.clear();
                tensor.data_type = DataType::Bfloat16 as i32;
            }
        }
        let mut npz = NpzReader::new(File::open(of.join("io.npz"))?)?;
        let mut inputs = vec![];
        for input in graph.input.iter().filter(|input| graph.initializer.iter().all(|tensor| tensor.name != input.name))
        {
            let file = npz
                .names()?
                .into_iter()
                .find(|file| file.trim_end_matches(".npy").strip_prefix("in__") == Some(&*input.name));
            let file = file.with_context(|| format!("{name}: no input {}", input.name))?;
            let array: tract_ndarray::ArrayD<f32> = npz.by_name(&file)?;
            inputs.push((input.name.clone(), array.into_arc_tensor()));
        }
        Case::of(name, folder, &proto, inputs)
    }

    /// Writes a model to a file, as failures while reading it count too.
    fn of(
        name: &'static str,
        folder: &Path,
        proto: &ModelProto,
        inputs: Vec<(String, Arc<Tensor>)>,
    ) -> TractResult<Case> {
        let model = folder.join(format!("{name}.onnx"));
        std::fs::write(&model, proto.encode_to_vec())?;
        let case = Case { name, model, inputs, expected: vec![] };
        let expected = case.attempt()?;
        Ok(Case { expected, ..case })
    }

    /// Returns a model of a layer and the ops around it that this crate computes.
    fn around(name: &'static str, folder: &Path, dt: DatumType) -> TractResult<Case> {
        let proto = layer_then(13, dt, &sizes(&[2, 8, 40, 40]), 8, |model, from| {
            let resized = Node::new("Resize").named("r").inputs(&[from, "", "scales"]).output("r");
            // tract's pool of f16 would end the search for ops.
            let pooled = Node::new(if dt == DatumType::F16 { "Neg" } else { "AveragePool" }).named("p");
            let pooled = pooled.inputs(&["r"]).output("p");
            let pooled = match dt {
                DatumType::F16 => pooled,
                _ => pooled.ints("kernel_shape", &[3, 2]).ints("strides", &[1, 2]),
            };
            let extreme = Node::new("ReduceMax").named("m").inputs(&["p"]).output("m").ints("axes", &[2]);
            let sum = Node::new("ReduceSum").named("a").inputs(&["p", "axes"]).output("a");
            let softmax = Node::new("LogSoftmax").named("s").inputs(&["p"]).output("s").int("axis", 1);
            let rows = Node::new("Softmax").named("t").inputs(&["v"]).output("t").int("axis", 2);
            let turned = Node::new("Transpose").named("v").inputs(&["s"]).output("v").ints("perm", &[0, 2, 1, 3]);
            let position = Node::new("ArgMax").named("y").inputs(&["t"]).output("y").int("axis", 1);
            let model =
                model.initializer("scales", &tensor1(&[1f32, 1.0, 1.5, 2.5])).initializer("axes", &tensor1(&[1i64]));
            let model = model.node(resized.string("mode", "linear")).node(pooled).node(extreme).node(sum).node(softmax);
            (model.node(turned).node(rows).node(position).output("m").output("a").output("s"), "y".into())
        });
        let x = Random(3).tensor(dt, &[2, 8, 40, 40]);
        Case::of(name, folder, &proto, vec![("x".into(), x.into_arc_tensor())])
    }

    /// Returns a model of layers that join the tensors of a concatenation.
    fn joining(name: &'static str, folder: &Path) -> TractResult<Case> {
        let dt = DatumType::F32;
        let proto = Model::opset(13)
            .input("a", dt, &sizes(&[1, 24, 8, 8]))
            .input("b", dt, &sizes(&[1, 40, 8, 8]))
            .initializer("w", &Random(3).tensor(dt, &[32, 64, 3, 3]))
            .node(Node::new("Concat").named("c").inputs(&["a", "b"]).output("c").int("axis", 1))
            .node(Node::new("Conv").named("y").inputs(&["c", "w"]).output("y").ints("strides", &[2, 2]))
            .initializer("v", &Random(4).tensor(dt, &[32, 88, 3, 3]))
            .node(Node::new("Concat").named("d").inputs(&["b", "a", "a"]).output("d").int("axis", 1))
            .node(Node::new("Conv").named("z").inputs(&["d", "v"]).output("z").ints("strides", &[2, 2]))
            .output("y")
            .output("z")
            .build();
        let onnx = tract_onnx::onnx().with_deconv().with_conv();
        let model = onnx.model_for_proto_model(&proto)?.into_typed()?.into_optimized()?;
        for layer in explain(&model, &SymbolValues::default())? {
            ensure!(layer.to_string().contains("tensors of the input joined first"), "{layer}");
        }
        let x = |channels: usize| Random(3).tensor(dt, &[1, channels, 8, 8]).into_arc_tensor();
        Case::of(name, folder, &proto, vec![("a".into(), x(24)), ("b".into(), x(40))])
    }

    /// Returns a model of two layers whose inputs tile registers can't multiply, so that vectors do.
    fn tiny(name: &'static str, folder: &Path) -> TractResult<Case> {
        let (dt, shape) = (DatumType::F32, [1, 128, 26, 26]);
        let proto = Model::opset(13)
            .input("x", dt, &sizes(&shape))
            .initializer("w", &Random(3).tensor(dt, &[128, 128, 1, 1]))
            .node(Node::new("Conv").named("z").inputs(&["x", "w"]).output("z"))
            .initializer("v", &Random(4).tensor(dt, &[128, 128, 1, 1]))
            .node(Node::new("Conv").named("y").inputs(&["z", "v"]).output("y"))
            .output("y")
            .build();
        let onnx = tract_onnx::onnx().with_deconv().with_conv();
        let model = onnx.model_for_proto_model(&proto)?.into_typed()?.into_optimized()?;
        for layer in explain(&model, &SymbolValues::default())? {
            let layer = layer.to_string();
            ensure!(!layer.contains(" on amx ") || layer.contains("matrix_planes on amx"), "{layer}");
        }
        let mut x = Random(3).tensor(dt, &shape);
        x.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?.iter_mut().for_each(|value| *value *= 1e-15);
        Case::of(name, folder, &proto, vec![("x".into(), x.into_arc_tensor())])
    }

    fn attempt(&self) -> TractResult<Vec<Arc<Tensor>>> {
        let onnx = tract_onnx::onnx().with_deconv().with_conv();
        let mut model = load_with(&onnx, &self.model)?;
        let mut inputs: TVec<TValue> = tvec!();
        for outlet in model.input_outlets()?.to_vec() {
            let name = &model.node(outlet.node).name;
            let (_, tensor) = self.inputs.iter().find(|input| input.0 == *name).context("an input is missing")?;
            inputs.push(tensor.clone().into_tvalue());
        }
        for (ix, input) in inputs.iter().enumerate() {
            model.set_input_fact(ix, InferenceFact::dt_shape(input.datum_type(), input.shape()))?;
        }
        let runnable = model.into_optimized()?.into_runnable()?;
        // The second run reuses what the first one cached.
        runnable.run(inputs.clone())?;
        Ok(runnable.run(inputs)?.into_iter().map(|value| value.into_arc_tensor()).collect())
    }

    /// Runs an attempt and returns its outcome.
    fn outcome(&self) -> &'static str {
        let before = LIVE.load(Ordering::Relaxed) - REPORTED.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| self.attempt()));
        LEFT.set(None);
        let outcome = match &result {
            Ok(Ok(given)) if *given == self.expected => "right",
            Ok(Ok(_)) => "wrong",
            Ok(Err(_)) => "error",
            Err(_) => "panic",
        };
        drop(result);
        let kept = LIVE.load(Ordering::Relaxed) - REPORTED.load(Ordering::Relaxed) - before;
        if outcome != "panic" && kept > KEPT_BYTES {
            report(&format!("{kept} bytes stay allocated\n"));
            return "leak";
        }
        outcome
    }

    /// Forks a process in which the block after `given` others fails. Returns the frames of the
    /// failed blocks and the outcome.
    fn forked(&self, given: usize, for_good: bool) -> TractResult<(Vec<String>, String)> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors that are written.
        ensure!(unsafe { libc::pipe(ends.as_mut_ptr()) } == 0, "no pipe");
        // SAFETY: the child has only this thread. It runs nothing that needs a lock of another
        // thread, and exits without returning.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "no process");
        if child == 0 {
            std::panic::set_hook(Box::new(|_| ()));
            // SAFETY: closes the child's standard error, as an abort would print there. Nothing
            // reads the descriptor.
            unsafe { libc::close(2) };
            REPORT.set(ends[1]);
            FOR_GOOD.set(for_good);
            LEFT.set(Some(given));
            report(&format!("{}\n", self.outcome()));
            // SAFETY: only ends the child process.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: this process owns the descriptor, and the child has its own copy.
        unsafe { libc::close(ends[1]) };
        let mut lines = String::new();
        // SAFETY: the descriptor is open, and nothing else owns it.
        unsafe { File::from_raw_fd(ends[0]) }.read_to_string(&mut lines)?;
        let mut status = 0;
        // SAFETY: `child` is this process's own child, waited for once, and `status` is writable.
        ensure!(unsafe { libc::waitpid(child, &mut status, 0) } == child, "no child");
        let mut lines: Vec<String> = lines.lines().map(|line| line.to_string()).collect();
        if libc::WIFSIGNALED(status) {
            return Ok((lines, "abort".into()));
        }
        let outcome = lines.pop().context("nothing was reported")?;
        Ok((lines, outcome))
    }

    /// Returns the number of blocks that count.
    fn blocks(&self) -> TractResult<usize> {
        SEEN.set(0);
        LEFT.set(Some(usize::MAX));
        let result = self.attempt();
        LEFT.set(None);
        result?;
        Ok(SEEN.get())
    }
}

#[test]
fn an_error_or_a_result() -> TractResult<()> {
    // SAFETY: this program has no other test that could read or set variables. With this value,
    // errors do not allocate a backtrace.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    let folder = tempfile::tempdir()?;
    let (mut of_tract, mut wrong) = (BTreeMap::<String, usize>::new(), vec![]);
    let files = [("dcgan_small", false), ("vocoder", true), ("unet_symbolic", false)];
    let around = [("ops_around_f32", DatumType::F32), ("ops_around_f16", DatumType::F16)];
    let files = files.into_iter().map(|(name, bf16)| Case::new(name, folder.path(), bf16));
    let around = around.into_iter().map(|(name, dt)| Case::around(name, folder.path(), dt));
    let others = [Case::joining("joined_f32", folder.path()), Case::tiny("tiny_f32", folder.path())];
    for case in files.chain(around).chain(others) {
        let case = case?;
        let name = case.name;
        // The symbol tables for backtraces are read once, before the forks.
        let _ = Backtrace::force_capture().to_string();
        let blocks = case.blocks()?;
        ensure!(blocks > 20, "{name}: {blocks} blocks");
        let step = blocks.div_ceil(MOST_ATTEMPTS);
        for for_good in [false, true] {
            let mut outcomes = BTreeMap::<String, usize>::new();
            // The last attempt has no failure.
            for given in (0..blocks).step_by(step).chain([usize::MAX]) {
                let (frames, outcome) = case.forked(given, for_good)?;
                // If all later blocks fail, the last frame is the one that could not go on.
                let frame = frames.last().cloned().unwrap_or_default();
                match &*outcome {
                    "right" | "error" => {}
                    "panic" | "abort" if OF_TRACT.iter().any(|function| frame.starts_with(function)) => {
                        *of_tract.entry(format!("{outcome} in {frame}")).or_default() += 1;
                    }
                    _ => wrong.push(format!("{} without block {given} of {blocks}: {outcome}, {frame}", case.name)),
                }
                ensure!(
                    given != usize::MAX || (outcome == "right" && frames.is_empty()),
                    "{name}: {outcome}, nothing failed"
                );
                *outcomes.entry(outcome).or_default() += 1;
            }
            let what = if for_good { "all from one on" } else { "one" };
            let sampled = if step > 1 { format!(", one of {step} tried") } else { String::new() };
            let _ = writeln!(std::io::stderr(), "{name}, {what} of {blocks} blocks fail{sampled}: {outcomes:?}");
        }
    }
    for (function, times) in of_tract {
        let _ = writeln!(std::io::stderr(), "tract's: {times} times {function}");
    }
    wrong.sort();
    ensure!(wrong.is_empty(), "{} times:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
