//! Models with stored inputs and outputs: stock tract against this crate in both directions, in turns,
//! on one thread.
//!
//! `cargo bench --bench stock -- models/vocoder models/istft`. It uses nothing of one target, but has
//! not been built for WebAssembly modules yet: `tools/wasm/cargo.sh bench --bench stock` would.
//!
//! Each engine's answers are compared with the stored ones before it is timed. `stock` is tract
//! alone. Other engines are instruction sets, with the row of a machine behind a colon if another
//! is to decide: `simd128:zen3`. `ENGINES` sets them, separated by commas, and `SECONDS` the time
//! per model and engine.

#[path = "common/io.rs"]
mod io;
#[path = "common/npy.rs"]
mod npy;

use anyhow::{Context, Result};
use io::{Io, TOLERANCE, compare};
use std::path::Path;
use std::time::{Duration, Instant};
use tract_deconv::{Isa, Options, WithConv, WithDeconv, WithDeconvOptions};
use tract_onnx::prelude::*;

fn main() -> Result<()> {
    let models: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let engines = std::env::var("ENGINES").unwrap_or_else(|_| {
        let best = Isa::best().name();
        if best == "portable" { "stock,portable".into() } else { format!("stock,portable,{best}") }
    });
    let engines: Vec<&str> = engines.split(',').collect();
    let seconds = std::env::var("SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(1.0);
    println!("model (ms: least, median) {}", engines.join(" "));
    for model in models {
        let folder = Path::new(&model);
        match times(folder, &engines, Duration::from_secs_f64(seconds)) {
            Ok(times) => {
                let each = times.iter().map(|(least, median)| format!("{:.3} {:.3}", least * 1e3, median * 1e3));
                let name = folder.file_name().unwrap_or_default().to_string_lossy();
                println!("{name} {}", each.collect::<Vec<_>>().join(" "));
            }
            Err(error) => println!("{model}: {error:#}"),
        }
    }
    Ok(())
}

/// Returns the least and the median seconds of a run of each engine.
fn times(folder: &Path, engines: &[&str], time: Duration) -> Result<Vec<(f64, f64)>> {
    let mut running = vec![];
    for engine in engines {
        let mut model = engine_of(engine)?.with_ignore_value_info(true).model_for_path(folder.join("model.onnx"))?;
        let io = Io::read(folder)?;
        let inputs = io.inputs(&model)?;
        for (ix, input) in inputs.iter().enumerate() {
            let shape: TVec<TDim> = input.shape().iter().map(|size| size.to_dim()).collect();
            model.set_input_fact(ix, InferenceFact::dt_shape(input.datum_type(), shape))?;
        }
        let expected = io.outputs(&model)?;
        let runnable = model.into_optimized()?.into_runnable()?;
        for ((name, expected, scale), output) in expected.iter().zip(&runnable.run(inputs.clone())?) {
            compare(output, expected, *scale).with_context(|| format!("{engine}, {name}, {TOLERANCE} of the scale"))?;
        }
        running.push((runnable, inputs, vec![]));
    }
    let begin = Instant::now();
    while begin.elapsed() < time * engines.len() as u32 {
        for (runnable, inputs, seconds) in &mut running {
            // The first run after another engine's finds its data gone from the caches.
            runnable.run(inputs.clone())?;
            for _ in 0..4 {
                let inputs = inputs.clone();
                let begin = Instant::now();
                drop(std::hint::black_box(runnable.run(inputs)?));
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
    }
    let summary = running.into_iter().map(|(_, _, mut seconds)| {
        seconds.sort_by(f64::total_cmp);
        (seconds[0], seconds[seconds.len() / 2])
    });
    Ok(summary.collect())
}

fn engine_of(engine: &str) -> Result<tract_onnx::Onnx> {
    if engine == "stock" {
        return Ok(tract_onnx::onnx());
    }
    let (isa, machine) = engine.split_once(':').map_or((engine, None), |(isa, machine)| (isa, Some(machine)));
    let mut options = Options::default().with_isa(Isa::from_name(isa)?);
    if let Some(machine) = machine {
        options = options.with_machine(machine);
    }
    tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&options)
}
