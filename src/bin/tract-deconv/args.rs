//! The command line, as clap parses it.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use tract_deconv::{Options, Precision, Tuning};

/// Run, time and explain ONNX models whose convolutions the tract-deconv plugin computes.
///
/// MODEL is an .onnx file, or a folder with a model.onnx. An io.npz beside the model (arrays
/// in__NAME and out__NAME) gives the inputs, unless --input does. Forward convolutions stay tract's
/// in `run` and `explain` without --conv.
#[derive(Parser)]
#[command(
    name = "tract-deconv",
    version,
    after_help = "Exit code: 0 success, 1 failure, 2 usage. RUST_LOG=debug shows the plans as they are made.\n\
                  Ctrl-C ends a command at once; what takes long says so on the standard error.\n\
                  TRACT_DECONV_STRATEGY=NAME forces a strategy (`explain` prints the names)."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a model once, and compare with known outputs
    #[command(
        after_help = "Example: tract-deconv run models/upscale4 --check models/upscale4/io.npz --output mine.npz\n\
                      Example: tract-deconv run models/unet_symbolic --input-shape 1x3x64x64"
    )]
    Run(RunArgs),
    /// Time a model with stock tract, with the plugin for deconvolutions only, and with the plugin for
    /// both directions, in turns
    #[command(
        after_help = "Example: tract-deconv bench models/dcgan_small --seconds 10 --json dcgan.json --plot dcgan.svg\n\
                      Example: tract-deconv bench models/dcgan_small --precision bf16 --exact-node 'last*'\n\
                      Example: tract-deconv bench models/unet_symbolic --input-shape 1x3x64x64"
    )]
    Bench(BenchArgs),
    /// Print how each convolution of a model will be computed, and why
    #[command(
        after_help = "Example: tract-deconv explain models/unet_symbolic --set batch=1 --set height=64 --set width=64\n\
                      Example: tract-deconv explain models/unet_symbolic --input-shape 1x3x64x64"
    )]
    Explain(ExplainArgs),
    /// Measure one engine, in the process that `bench` starts for it
    #[command(hide = true)]
    Measure(MeasureArgs),
}

#[derive(Args)]
pub struct ModelArgs {
    /// An .onnx file, or a folder with a model.onnx
    pub model: PathBuf,
    #[command(flatten)]
    pub plugin: PluginArgs,
    #[command(flatten)]
    pub sizes: Sizes,
    /// Inputs: an npz with in__NAME (or NAME) arrays, or NAME=x.npy (repeat for more)
    #[arg(long = "input", value_name = "IO.NPZ|NAME=X.NPY")]
    pub input: Vec<String>,
    /// Seed of the random inputs that stand in for missing ones
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Threads of tract's executor, at most 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

/// Values for sizes that the model leaves open.
#[derive(Args, Clone)]
pub struct Sizes {
    /// Fix a symbolic dimension before the model is optimised (repeat for more)
    #[arg(long = "set", value_name = "SYMBOL=N", value_parser = symbol)]
    pub set: Vec<(String, i64)>,
    /// Fix an input's shape (repeat for more); the name is optional if the model has one input
    #[arg(long = "input-shape", value_name = "[NAME=]1x3x64x64", value_parser = input_shape)]
    pub input_shapes: Vec<InputShape>,
}

impl Sizes {
    /// Returns the sizes with more symbols fixed.
    pub fn and_set(&self, symbols: &[(String, i64)]) -> Sizes {
        Sizes { set: [self.set.as_slice(), symbols].concat(), ..self.clone() }
    }
}

/// The shape of a named input, or of the only one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape {
    pub name: Option<String>,
    pub shape: Vec<usize>,
}

impl std::fmt::Display for InputShape {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        f.write_str(&self.shape.iter().map(|dim| dim.to_string()).collect::<Vec<_>>().join("x"))
    }
}

#[derive(Args, Clone)]
pub struct PluginArgs {
    /// Let the plugin compute forward convolutions too. `bench` then leaves out the plugin with
    /// deconvolutions only
    #[arg(long)]
    pub conv: bool,
    /// Choose strategies by timing them. With a FILE, choices are read from it and written to it
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub tune: Option<Option<PathBuf>>,
    /// Round the operands of convolutions to bf16 or f16, where there are kernels for it. `bench` then
    /// compares with the exact plugin
    #[arg(long, value_name = "exact|bf16|f16", value_parser = precision)]
    pub precision: Option<Precision>,
    /// Keep the convolutions exact whose names match (repeat for more); * stands for any characters
    #[arg(long = "exact-node", value_name = "PATTERN")]
    pub exact_nodes: Vec<String>,
}

impl PluginArgs {
    /// Returns the options of the plugin's convolutions.
    pub fn options(&self) -> Options {
        let options = match &self.tune {
            None => Options::default(),
            Some(None) => Options::default().with_tuning(Tuning::Measured),
            Some(Some(file)) => Options::default().with_tuning(Tuning::Measured).with_tuning_file(file),
        };
        let options = options.with_exact_nodes(&self.exact_nodes);
        match self.precision {
            None => options,
            Some(precision) => options.with_precision(precision),
        }
    }

    /// Returns whether some convolutions may have rounded operands.
    pub fn rounds(&self) -> bool {
        self.precision.is_some_and(|precision| precision != Precision::Exact)
    }
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Write inputs and outputs as in__NAME and out__NAME arrays
    #[arg(long, value_name = "OUT.NPZ")]
    pub output: Option<PathBuf>,
    /// Compare with the out__NAME arrays of an npz; its in__NAME arrays are the inputs, unless
    /// --input is given
    #[arg(long, value_name = "IO.NPZ")]
    pub check: Option<PathBuf>,
    /// Largest error allowed, as a fraction of the output's largest magnitude
    /// [default: 1e-4, f16: 1e-2]
    ///
    /// An output that is below 0.01 everywhere is measured as if it reached 0.01. Integers and
    /// booleans must be equal, whatever the tolerance.
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub tolerance: Option<f64>,
}

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Seconds to time, for all engines together
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Largest difference allowed between answers, as a fraction of the output's largest magnitude
    /// [default: 1e-4, f16: 1e-2]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Write all figures and samples
    #[arg(long, value_name = "F.JSON")]
    pub json: Option<PathBuf>,
    /// Draw the distribution of the engines' latencies
    #[arg(long, value_name = "F.SVG")]
    pub plot: Option<PathBuf>,
}

#[derive(Args)]
pub struct ExplainArgs {
    /// An .onnx file, or a folder with a model.onnx
    pub model: PathBuf,
    #[command(flatten)]
    pub plugin: PluginArgs,
    #[command(flatten)]
    pub sizes: Sizes,
}

#[derive(Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[arg(long)]
    pub engine: Engine,
    /// End when the standard input is closed, which means that the parent process is gone
    #[arg(long)]
    pub while_stdin: bool,
}

/// The engine that computes the convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    Stock,
    /// The plugin without forward convolutions.
    Deconv,
    /// The plugin without `--precision`.
    Exact,
    /// The plugin as the arguments say.
    Plugin,
}

impl Engine {
    /// Returns its name in flags and files.
    pub fn key(self) -> &'static str {
        match self {
            Engine::Stock => "stock",
            Engine::Deconv => "deconv",
            Engine::Exact => "exact",
            Engine::Plugin => "plugin",
        }
    }

    /// Returns what it is called in a sentence.
    pub fn described(self) -> &'static str {
        match self {
            Engine::Stock => "stock tract",
            Engine::Deconv => "the plugin with deconvolutions only",
            Engine::Exact => "the exact plugin",
            Engine::Plugin => "the plugin",
        }
    }

    /// Returns its name at the head of a column.
    pub fn title(self) -> &'static str {
        match self {
            Engine::Stock => "stock tract",
            Engine::Deconv => "plugin, deconvolutions only",
            Engine::Exact => "plugin, exact",
            Engine::Plugin => "plugin",
        }
    }
}

fn symbol(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("expected SYMBOL=N")?;
    let value = value.parse::<i64>().map_err(|e| format!("{name}: {e}"))?;
    if name.is_empty() || !(0..=i64::from(i32::MAX)).contains(&value) {
        return Err(format!("expected a name and a value within 0..={}", i32::MAX));
    }
    Ok((name.to_string(), value))
}

fn precision(text: &str) -> Result<Precision, String> {
    Precision::from_name(text).map_err(|error| error.to_string())
}

/// The most axes of a shape.
const MOST_AXES: usize = 16;

fn input_shape(text: &str) -> Result<InputShape, String> {
    let (name, dims) = text.rsplit_once('=').map_or((None, text), |(name, dims)| (Some(name), dims));
    if name == Some("") {
        return Err("expected NAME=1x3x64x64, or 1x3x64x64".into());
    }
    let dim = |dim: &str| dim.parse::<usize>().ok().filter(|dim| *dim <= i32::MAX as usize);
    let shape: Option<Vec<usize>> =
        if dims.is_empty() { Some(vec![]) } else { dims.split(['x', '×']).map(dim).collect() };
    match shape.filter(|shape| shape.len() <= MOST_AXES && (name.is_some() || !shape.is_empty())) {
        Some(shape) => Ok(InputShape { name: name.map(String::from), shape }),
        None => Err(format!("expected sizes within 0..={} with x between them, at most {MOST_AXES}", i32::MAX)),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x),
        _ => Err("expected a finite number, zero or more".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x <= 86_400.0 => Ok(x),
        _ => Err("expected seconds, more than 0 and at most 86400".into()),
    }
}
