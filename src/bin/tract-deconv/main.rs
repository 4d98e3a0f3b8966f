//! The program `tract-deconv` runs, times and explains ONNX models with convolutions.

mod args;
mod arrays;
mod bench;
mod compare;
mod explain;
mod failure;
mod figures;
mod inputs;
mod latency;
mod measure;
mod model;
mod nodes;
mod plot;
mod report;
mod run;
mod watch;

use args::{Cli, Command};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // tract_onnx::model warns at every load of an opset that it was not tested with
    let default = env_logger::Env::default().default_filter_or("warn,tract_onnx::model=error");
    env_logger::Builder::from_env(default).init();
    failure::hold_panics();
    let done = failure::guarded(|| match &cli.command {
        Command::Run(args) => run::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Explain(args) => explain::main(args),
        Command::Measure(args) => measure::main(args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // the standard error may be closed
            let _ = writeln!(std::io::stderr(), "error: {}", failure::chain(&error));
            ExitCode::from(failure::exit_code(&error))
        }
    }
}
