//! The Rust side of `run.py`, started as `serve ENGINE`. It holds one loaded model and times it on
//! request, so that the driver can alternate between engines. The engine `plugin-bf16` rounds
//! operands to bf16, and `ENGINE-f16` turns the model to f16 by tract's transform.
//!
//! `peer.py` speaks the same protocol for the other runtimes. Standard input has one command per
//! line. Standard output has one answer per line (`ok …` or `error …`):
//!
//! | command | answer |
//! |---|---|
//! | `inputs PATH …` | `ok`; uses the .npy files of f32, i64, i32 or bool as the model's inputs |
//! | `load THREADS PATH` | `ok NS`; drops the previous model, reads and optimises an ONNX file |
//! | `output PATH` | `ok`; runs once and writes the first output as .npy of f32 |
//! | `time WARMUP N` | `ok NS …`; times N runs one by one after WARMUP untimed ones |
//! | `peak THREADS MS` | `ok FLOPS`; measures the flops per second of a pure FMA loop |

#[path = "fma_peak.rs"]
mod fma_peak;
#[path = "../common/npy.rs"]
mod npy;

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use ndarray_npy::{read_npy, write_npy};
use tract_core::transform::get_transform;
use tract_deconv::{Options, Precision, WithConv, WithDeconv, WithDeconvOptions};
use tract_onnx::model::Onnx;
use tract_onnx::prelude::multithread::{Executor, set_default_executor};
use tract_onnx::prelude::*;

use anyhow::{Context, bail};

fn main() -> TractResult<()> {
    let mut arguments = std::env::args().skip(1);
    // `cargo bench` and `cargo test --benches` start every bench target. Only the driver passes
    // `serve`.
    let (Some("serve"), Some(engine)) = (arguments.next().as_deref(), arguments.next()) else {
        eprintln!("this bench is driven by benches/peers/run.py");
        return Ok(());
    };
    let mut runner = Runner { engine, inputs: tvec![], given: tvec![], state: None };
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        match runner.command(&line?) {
            Ok(answer) => writeln!(answers, "{}", format!("ok {answer}").trim_end())?,
            Err(e) => writeln!(answers, "error {}", format!("{e:#}").replace('\n', " "))?,
        }
        answers.flush()?;
    }
    Ok(())
}

struct Runner {
    engine: String,
    inputs: TVec<TValue>,
    /// The inputs in the types of the model's.
    given: TVec<TValue>,
    state: Option<Box<dyn State>>,
}

impl Runner {
    fn command(&mut self, line: &str) -> TractResult<String> {
        let (verb, arguments) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "inputs" => {
                let read = |path: &str| -> TractResult<TValue> {
                    let x = npy::read_of_any_type!(read_npy(path)).with_context(|| path.to_string())?;
                    Ok(x.into_tvalue())
                };
                self.inputs = arguments.split(' ').map(read).collect::<TractResult<_>>()?;
                Ok(String::new())
            }
            "load" => {
                let (threads, path) = arguments
                    .split_once(' ')
                    .with_context(|| format!("load: arguments={arguments:?}, expected THREADS PATH"))?;
                self.load(threads.parse()?, path)
            }
            "output" => {
                let output = self.run()?.remove(0);
                write_npy(arguments, &output.cast_to::<f32>()?.to_plain_array_view::<f32>()?)?;
                Ok(String::new())
            }
            "time" => {
                let (warmup, n) = two_numbers(verb, arguments)?;
                for _ in 0..warmup {
                    self.run()?;
                }
                let mut times = Vec::with_capacity(n);
                for _ in 0..n {
                    let start = Instant::now();
                    // Dropping the output is part of the run, as the engine that allocates it also
                    // frees it.
                    drop(std::hint::black_box(self.run()?));
                    times.push(start.elapsed().as_nanos().to_string());
                }
                Ok(times.join(" "))
            }
            "peak" => {
                let (threads, ms) = two_numbers(verb, arguments)?;
                Ok(format!("{:.0}", fma_peak::measure(threads, Duration::from_millis(ms as u64))))
            }
            _ => bail!("command={verb}, expected inputs, load, output, time or peak"),
        }
    }

    fn load(&mut self, threads: usize, path: &str) -> TractResult<String> {
        self.state = None;
        // Programs set tract's threads in this way. Every plan then uses the default executor.
        set_default_executor(if threads > 1 { Executor::multithread(threads) } else { Executor::SingleThread });
        let start = Instant::now();
        let (engine, is_f16) = match self.engine.strip_suffix("-f16") {
            Some(engine) => (engine, true),
            None => (&*self.engine, false),
        };
        let mut model = framework(engine)?.model_for_path(path)?.into_typed()?;
        if is_f16 {
            get_transform("f32_to_f16")?.context("tract has the transform")?.transform(&mut model)?;
        }
        let model = model.into_optimized()?;
        // Inputs of a model in f16 are f16 as well.
        let facts = model.input_outlets()?.iter().map(|input| model.outlet_fact(*input));
        let given = self.inputs.iter().zip(facts).map(|(input, fact)| match fact?.datum_type {
            of if of == input.datum_type() => Ok(input.clone()),
            of => Ok(input.cast_to_dt(of)?.into_owned().into_tvalue()),
        });
        self.given = given.collect::<TractResult<_>>()?;
        self.state = Some(Runnable::spawn(&model.into_runnable()?)?);
        Ok(start.elapsed().as_nanos().to_string())
    }

    fn run(&mut self) -> TractResult<TVec<TValue>> {
        self.state.as_mut().context("run: no model, load one first")?.run(self.given.clone())
    }
}

fn framework(engine: &str) -> TractResult<Onnx> {
    match engine {
        "stock" => Ok(tract_onnx::onnx()),
        "plugin" => Ok(tract_onnx::onnx().with_deconv().with_conv()),
        "plugin-bf16" => {
            let rounded = Options::default().with_precision(Precision::Bf16);
            tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&rounded)
        }
        "deconv" => Ok(tract_onnx::onnx().with_deconv()),
        _ => bail!("engine={engine}, not built in"),
    }
}

fn two_numbers(verb: &str, arguments: &str) -> TractResult<(usize, usize)> {
    let numbers = arguments.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.with_context(|| format!("{verb}: arguments={arguments:?}, expected two numbers"))
}
