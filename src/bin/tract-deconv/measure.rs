//! Measures one engine in a process of its own: load time, optimise time and peak memory.
//!
//! Only fresh processes give the peak memory of one engine. `bench` therefore starts this program
//! again as `tract-deconv measure --engine E MODEL …` and reads one line of JSON from it. The peak
//! is the kernel's `VmHWM` (peak resident set), which exists on Linux only. It includes the touched
//! pages of the program's file.

use crate::args::{Engine, MeasureArgs, ModelArgs, Sizes};
use crate::failure::say;
use crate::inputs::resolve;
use crate::model::{ModelFile, parse, prepare, run, set_threads};
use crate::watch::Watch;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use tract_core::internal::*;

/// The runs of the model before the peak is read.
const RUNS: usize = 3;
/// The processes per engine. Times are their median, and memory is their maximum.
const PROCESSES: usize = 3;

/// The exit code of a process whose parent is gone.
const ORPHANED: i32 = 3;

/// The times and memory of one engine's processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    pub load_ms: f64,
    pub optimise_ms: f64,
    pub first_run_ms: f64,
    /// The peak resident set in bytes, if the system reports it.
    pub peak_memory: Option<u64>,
    /// The peak resident set in bytes before the model was loaded.
    pub base_memory: Option<u64>,
    /// The part of the resident set after the runs that belongs to no file, in bytes.
    ///
    /// It leaves out the program's own code, as each engine touches another part of it.
    pub held_memory: Option<u64>,
}

impl Footprint {
    pub fn json(&self) -> Value {
        json!({
            "load_ms": self.load_ms,
            "optimise_ms": self.optimise_ms,
            "first_run_ms": self.first_run_ms,
            "peak_memory_bytes": self.peak_memory,
            "base_memory_bytes": self.base_memory,
            "held_memory_bytes": self.held_memory,
        })
    }
}

/// Measures in the child process.
pub fn main(args: &MeasureArgs) -> TractResult<()> {
    if args.while_stdin {
        std::thread::spawn(|| {
            // the parent writes nothing: the copy ends when it closes the pipe
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            std::process::exit(ORPHANED);
        });
    }
    set_threads(&args.model)?;
    let file = ModelFile::find(&args.model.model, &args.model.plugin)?;
    let parsed = parse(Engine::Plugin, &file, &args.model.sizes)?;
    let inputs = resolve(&parsed.inputs, &args.model, &file, None)?;
    let base_memory = memory("VmHWM");
    let ready = prepare(args.engine, &file, &args.model.sizes, &inputs.tensors)?;
    let start = std::time::Instant::now();
    run(&ready.runnable, &inputs.tensors)?;
    let first_run = start.elapsed();
    for _ in 1..RUNS {
        run(&ready.runnable, &inputs.tensors)?;
    }
    let footprint = Footprint {
        load_ms: ready.load.as_secs_f64() * 1e3,
        optimise_ms: ready.optimise.as_secs_f64() * 1e3,
        first_run_ms: first_run.as_secs_f64() * 1e3,
        peak_memory: memory("VmHWM"),
        base_memory,
        held_memory: memory("RssAnon"),
    };
    say(footprint.json())
}

/// Measures the engines in turns, in [`PROCESSES`] child processes each.
///
/// `sizes` replace those of `args`.
pub fn footprints(engines: &[Engine], args: &ModelArgs, sizes: &Sizes) -> TractResult<Vec<Footprint>> {
    let _watch = Watch::start("measuring load time and memory in fresh processes");
    let mut found: Vec<Vec<Footprint>> = vec![vec![]; engines.len()];
    for _ in 0..PROCESSES {
        for (engine, found) in engines.iter().zip(&mut found) {
            found.push(child(*engine, args, sizes)?);
        }
    }
    Ok(found.iter().map(|processes| summarise(processes)).collect())
}

fn summarise(processes: &[Footprint]) -> Footprint {
    let median = |of: fn(&Footprint) -> f64| {
        let mut values: Vec<f64> = processes.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Footprint {
        load_ms: median(|f| f.load_ms),
        optimise_ms: median(|f| f.optimise_ms),
        first_run_ms: median(|f| f.first_run_ms),
        peak_memory: processes.iter().filter_map(|f| f.peak_memory).max(),
        base_memory: processes.iter().filter_map(|f| f.base_memory).max(),
        held_memory: processes.iter().filter_map(|f| f.held_memory).max(),
    }
}

fn child(engine: Engine, args: &ModelArgs, sizes: &Sizes) -> TractResult<Footprint> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["measure", "--while-stdin", "--engine", engine.key(), "--seed", &args.seed.to_string()]);
    command.args(["--threads", &args.threads.to_string()]);
    // `Engine::Deconv` ignores it
    command.arg("--conv");
    match &args.plugin.tune {
        None => {}
        Some(None) => drop(command.arg("--tune")),
        Some(Some(file)) => drop(command.arg("--tune=").arg(file)),
    }
    if let Some(precision) = args.plugin.precision {
        command.args(["--precision", precision.name()]);
    }
    for pattern in &args.plugin.exact_nodes {
        command.arg(format!("--exact-node={pattern}"));
    }
    for (symbol, value) in &sizes.set {
        command.arg("--set").arg(format!("{symbol}={value}"));
    }
    for shape in &sizes.input_shapes {
        command.arg(format!("--input-shape={shape}"));
    }
    for input in &args.input {
        command.arg(format!("--input={input}"));
    }
    command.arg("--").arg(&args.model);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().context("starting a process for one engine")?;
    // the pipe is open while this process lives, so that the child ends with it in any case
    let lifeline = process.stdin.take();
    let output = process.wait_with_output().context("waiting for the process for one engine")?;
    drop(lifeline);
    ensure!(
        output.status.success(),
        "the process that measures {} ended with {}: {}",
        engine.title(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let json: Value = serde_json::from_str(line).context("reading what the measuring process printed")?;
    let number = |key: &str| json[key].as_f64().with_context(|| format!("the measuring process gave no {key}"));
    Ok(Footprint {
        load_ms: number("load_ms")?,
        optimise_ms: number("optimise_ms")?,
        first_run_ms: number("first_run_ms")?,
        peak_memory: json["peak_memory_bytes"].as_u64(),
        base_memory: json["base_memory_bytes"].as_u64(),
        held_memory: json["held_memory_bytes"].as_u64(),
    })
}

/// Returns a size that Linux reports for this process, in bytes.
///
/// `VmHWM` is the peak of the resident set so far.
fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_the_median_and_memory_the_maximum() {
        let of = |load_ms, peak| Footprint {
            load_ms,
            optimise_ms: 1.0,
            first_run_ms: 1.0,
            peak_memory: Some(peak),
            base_memory: None,
            held_memory: Some(peak / 2),
        };
        let all = summarise(&[of(9.0, 1), of(2.0, 7), of(3.0, 2)]);
        assert_eq!((all.load_ms, all.peak_memory, all.base_memory, all.held_memory), (3.0, Some(7), None, Some(3)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_sizes() {
        assert!(memory("VmHWM").unwrap() > 100_000 && memory("RssAnon").unwrap() > 10_000);
        assert_eq!(memory("Vm"), None);
    }
}
