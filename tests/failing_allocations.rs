//! Allocations fail, each one alone and then each one with all that follow, through loading, optimising and running three models. Each time there is an error,
//! or the right result; no block that this crate asks for ends the process, and nothing stays allocated.
//!
//! What counts are blocks from [`LEAST_BYTES`] on, whose sizes a model decides. tract asks for such blocks too, and it panics or aborts where there is none:
//! the frame that asked decides whose failure it is. tract's are told by the crate of the function in [`OF_TRACT`], and any other is an error.
//!
//! Each attempt is a process of its own, forked from the test, so that one that aborts can be told from the others.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod common;

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
use tract_deconv::{WithConv, WithDeconv, load_with};
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::prelude::{InferenceFact, InferenceModelExt, tract_ndarray};

/// The smallest block that may fail.
const LEAST_BYTES: usize = 4096;

/// Attempts for a model and a way to fail, at most. Of more blocks some are left out, evenly.
const MOST_ATTEMPTS: usize = 300;

/// What may stay allocated after an attempt: lists and caches of the process, which the next one uses again.
const KEPT_BYTES: isize = 64 << 10;

/// How the names of functions of tract begin, and of what it reads files with, that can not go on without memory. Which of them is seen depends on what is
/// inlined. A crate and a colon stand before functions that
/// are compiled with this crate.
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

/// What naming functions keeps.
static REPORTED: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// How many blocks are given before one fails; nothing fails where there is none.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static SEEN: Cell<usize> = const { Cell::new(0) };
    /// Whether all blocks after the first that fails do.
    static FOR_GOOD: Cell<bool> = const { Cell::new(false) };
    /// Where the report of a block that fails goes.
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
        // what follows allocates
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

// SAFETY: forwards to the system's allocator, or gives no block.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Failing::fails(layout.size()) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn report(line: &str) {
    // SAFETY: the bytes are readable, and a descriptor that is none is refused.
    unsafe { libc::write(REPORT.get(), line.as_ptr().cast(), line.len()) };
}

/// Crates that allocate for others: the nearest function that is of another one asked.
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

/// The function that asked for a block. One of this crate's begins with `src/`, its file: of the others there are no lines, but their names are whole.
fn whose(backtrace: &str) -> String {
    let mut lines = backtrace.lines().map(str::trim_start).peekable();
    while let Some(line) = lines.next() {
        let Some((_, function)) = line.split_once(": ") else { continue };
        let at = lines.next_if(|line| line.starts_with("at ")).unwrap_or_default();
        if let Some(place) = at.strip_prefix("at ./src/") {
            let file = place.split(':').next().unwrap_or(place);
            return format!("src/{file}: {function}");
        }
        // `<T as Trait>::method` is a function of the type's, and generic ones are compiled where they are used
        let of_name = function.trim_start_matches(['<', '&', '*']).trim_start_matches("mut ");
        let of_name = of_name.split([':', ' ', '<', '>']).next().unwrap_or_default();
        let of_file = at.rsplit_once("/src/").and_then(|(folder, _)| folder.rsplit('/').next());
        let of_file = of_file.map(|folder| {
            folder.split('-').take_while(|part| !part.starts_with(char::is_numeric)).collect::<Vec<_>>().join("_")
        });
        let of = of_file.as_deref().unwrap_or(of_name);
        let own = at.contains("tests/failing_allocations.rs") && function != "attempt";
        if !own && !HELPERS.contains(&of) {
            return if of == of_name { function.into() } else { format!("{of}: {function}") };
        }
    }
    "nobody".into()
}

/// A model's file, its inputs, and what it gives.
struct Case {
    name: &'static str,
    model: std::path::PathBuf,
    inputs: Vec<(String, Arc<Tensor>)>,
    /// Of the optimised model, without a failure.
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
        let model = folder.join(format!("{name}.onnx"));
        std::fs::write(&model, proto.encode_to_vec())?;
        let case = Case { name, model, inputs, expected: vec![] };
        let expected = case.attempt()?;
        Ok(Case { expected, ..case })
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
        // the second run finds what the first has left
        runnable.run(inputs.clone())?;
        Ok(runnable.run(inputs)?.into_iter().map(|value| value.into_arc_tensor()).collect())
    }

    /// What came of an attempt in which blocks fail after so many.
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

    /// Forks a process in which the block after `given` others fails, and gives the frames that asked for blocks that did, and what came of it.
    fn forked(&self, given: usize, for_good: bool) -> TractResult<(Vec<String>, String)> {
        let mut ends = [0; 2];
        // SAFETY: two descriptors are written.
        ensure!(unsafe { libc::pipe(ends.as_mut_ptr()) } == 0, "no pipe");
        // SAFETY: the new process has this thread alone, runs what other threads have no lock on, and ends without returning.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "no process");
        if child == 0 {
            std::panic::set_hook(Box::new(|_| ()));
            // SAFETY: what is printed by an abort is not wanted.
            unsafe { libc::close(2) };
            REPORT.set(ends[1]);
            FOR_GOOD.set(for_good);
            LEFT.set(Some(given));
            report(&format!("{}\n", self.outcome()));
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: ours, and the child's has its own copy.
        unsafe { libc::close(ends[1]) };
        let mut lines = String::new();
        // SAFETY: the descriptor is nobody else's.
        unsafe { File::from_raw_fd(ends[0]) }.read_to_string(&mut lines)?;
        let mut status = 0;
        // SAFETY: the child's, which is waited for once.
        ensure!(unsafe { libc::waitpid(child, &mut status, 0) } == child, "no child");
        let mut lines: Vec<String> = lines.lines().map(|line| line.to_string()).collect();
        if libc::WIFSIGNALED(status) {
            return Ok((lines, "abort".into()));
        }
        let outcome = lines.pop().context("nothing was reported")?;
        Ok((lines, outcome))
    }

    /// How many blocks count.
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
    // SAFETY: no other test of this program reads or sets variables. Errors are to allocate nothing for where they come from.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    let folder = tempfile::tempdir()?;
    let (mut of_tract, mut wrong) = (BTreeMap::<String, usize>::new(), vec![]);
    for (name, bf16) in [("dcgan_small", false), ("vocoder", true), ("unet_symbolic", false)] {
        let case = Case::new(name, folder.path(), bf16)?;
        // the lists of symbols that frames are named by are read once, before the forks
        let _ = Backtrace::force_capture().to_string();
        let blocks = case.blocks()?;
        ensure!(blocks > 20, "{name}: {blocks} blocks");
        let step = blocks.div_ceil(MOST_ATTEMPTS);
        for for_good in [false, true] {
            let mut outcomes = BTreeMap::<String, usize>::new();
            // and once nothing fails
            for given in (0..blocks).step_by(step).chain([usize::MAX]) {
                let (frames, outcome) = case.forked(given, for_good)?;
                // of one that fails for good the last asked in vain
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
