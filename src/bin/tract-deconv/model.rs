//! From a path to something that runs: finding the file, loading it with either engine, its inputs' shapes and symbols.

use crate::args::{Engine, ModelArgs, PluginArgs};
use crate::failure::{guarded, usage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;
use tract_deconv::{WithConv, WithDeconv};
use tract_hir::infer::{Factoid, GenericFactoid, InferenceModel, InferenceModelExt, ShapeFactoid};
use tract_onnx::prelude::Framework;

/// A model on disk.
pub struct ModelFile {
    /// The .onnx file.
    pub onnx: PathBuf,
    /// The io.npz beside it, where there is one.
    pub io: Option<PathBuf>,
    /// Whether the plugin computes forward convolutions too.
    pub conv: bool,
}

impl ModelFile {
    /// Finds the model that an argument names: the file itself, or model.onnx in that folder.
    pub fn find(path: &Path, plugin: PluginArgs) -> TractResult<ModelFile> {
        let onnx = if path.is_dir() { path.join("model.onnx") } else { path.to_path_buf() };
        ensure!(onnx.exists(), "model: path={}, no such file", onnx.display());
        let io = onnx.with_file_name("io.npz");
        Ok(ModelFile { onnx, io: io.is_file().then_some(io), conv: plugin.conv })
    }
}

/// One input as the model declares it, after `--set`.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: String,
    pub datum_type: DatumType,
    /// `None` where the model says nothing about the shape.
    pub shape: Option<TVec<TDim>>,
}

impl std::fmt::Display for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let shape =
            self.shape.as_ref().map_or("?".into(), |s| s.iter().map(|d| d.to_string()).collect::<Vec<_>>().join("×"));
        write!(f, "{} {} {:?}", self.name, shape, self.datum_type)
    }
}

/// A model read from its file, with `--set` applied, not yet analysed.
pub struct Parsed {
    pub model: InferenceModel,
    pub inputs: Vec<Input>,
    pub took: Duration,
}

/// Reads a model with one engine's operators.
pub fn parse(engine: Engine, file: &ModelFile, set: &[(String, i64)]) -> TractResult<Parsed> {
    guarded(|| {
        let start = Instant::now();
        let mut model = match engine {
            Engine::Stock => tract_onnx::onnx().model_for_path(&file.onnx)?,
            Engine::Plugin if file.conv => {
                tract_deconv::load_with(&tract_onnx::onnx().with_deconv().with_conv(), &file.onnx)?
            }
            Engine::Plugin => tract_deconv::load(&file.onnx)?,
        };
        name_unknown_dims(&mut model)?;
        let known = input_symbols(&model)?;
        let mut values = HashMap::new();
        for (name, value) in set {
            let symbol = known.iter().find(|symbol| symbol.to_string() == *name).ok_or_else(|| {
                let names: Vec<String> = known.iter().map(|s| s.to_string()).collect();
                match names.is_empty() {
                    true => usage!("--set {name}={value}: the model's inputs have no symbolic dimension"),
                    false => usage!("--set {name}={value}: the model's symbols are {}", names.join(", ")),
                }
            })?;
            values.insert(symbol.clone(), value.to_dim());
        }
        InferenceModelExt::set_symbols(&mut model, &values)?;
        let inputs = (0..model.inputs.len()).map(|ix| input(&model, ix)).collect::<TractResult<_>>()?;
        Ok(Parsed { model, inputs, took: start.elapsed() })
    })
    .with_context(|| format!("loading {}", file.onnx.display()))
}

/// Gives the dimensions that the file leaves open a symbol each, so that `--set` can name them.
fn name_unknown_dims(model: &mut InferenceModel) -> TractResult<()> {
    for ix in 0..model.inputs.len() {
        let mut fact = model.input_fact(ix)?.clone();
        if fact.shape.is_open() {
            continue;
        }
        let name = model.node(model.inputs[ix].node).name.clone();
        let dims: TVec<GenericFactoid<TDim>> = fact
            .shape
            .dims()
            .enumerate()
            .map(|(axis, dim)| match dim.concretize() {
                Some(_) => dim.clone(),
                None => GenericFactoid::Only(model.symbols.sym(&format!("{name}_{axis}")).to_dim()),
            })
            .collect();
        fact.shape = ShapeFactoid::closed(SmallVec::from_vec(dims.to_vec()));
        model.set_input_fact(ix, fact)?;
    }
    Ok(())
}

fn input_symbols(model: &InferenceModel) -> TractResult<Vec<Symbol>> {
    let mut symbols = vec![];
    for ix in 0..model.inputs.len() {
        for dim in model.input_fact(ix)?.shape.dims().filter_map(|dim| dim.concretize()) {
            symbols.extend(dim.symbols());
        }
    }
    symbols.sort_by_key(|symbol| symbol.to_string());
    symbols.dedup();
    Ok(symbols)
}

fn input(model: &InferenceModel, ix: usize) -> TractResult<Input> {
    let fact = model.input_fact(ix)?;
    let name = model.node(model.inputs[ix].node).name.clone();
    let datum_type =
        fact.datum_type.concretize().with_context(|| format!("input: name={name}, its type is not known"))?;
    Ok(Input { name, datum_type, shape: fact.shape.concretize() })
}

/// A model ready to run.
pub struct Ready {
    /// Before code generation: what the names and deconvolutions are looked up in.
    pub typed: TypedModel,
    pub runnable: Arc<TypedRunnableModel>,
    /// Reading and analysing.
    pub load: Duration,
    /// Decluttering and code generation.
    pub optimise: Duration,
}

/// Loads a model with one engine, the way a program would. `inputs` only matter for inputs of undeclared rank.
pub fn prepare(engine: Engine, file: &ModelFile, set: &[(String, i64)], inputs: &[Arc<Tensor>]) -> TractResult<Ready> {
    let Parsed { mut model, inputs: declared, took } = parse(engine, file, set)?;
    guarded(|| {
        let start = Instant::now();
        for (ix, tensor) in inputs.iter().enumerate().filter(|(ix, _)| declared[*ix].shape.is_none()) {
            model.set_input_fact(ix, TypedFact::shape_and_dt_of(tensor).into())?;
        }
        let typed = model.into_typed()?;
        let load = took + start.elapsed();
        let start = Instant::now();
        let mut decluttered = typed;
        decluttered.declutter()?;
        let mut optimised = decluttered.clone();
        optimised.optimize()?;
        let runnable = optimised.into_runnable()?;
        Ok(Ready { typed: decluttered, runnable, load, optimise: start.elapsed() })
    })
    .with_context(|| format!("preparing {}", file.onnx.display()))
}

/// [`prepare`] with the plugin, and once more with the symbols fixed to the inputs' sizes (appended to `set`) where the
/// model does not load with open ones. The second value says so.
pub fn prepare_open_or_fixed(
    file: &ModelFile,
    set: &mut Vec<(String, i64)>,
    symbols: &[(String, i64)],
    inputs: &[Arc<Tensor>],
) -> TractResult<(Ready, Option<String>)> {
    let why = match prepare(Engine::Plugin, file, set, inputs) {
        Ok(ready) => return Ok((ready, None)),
        Err(why) => why,
    };
    let fixed = [set.as_slice(), symbols].concat();
    match prepare(Engine::Plugin, file, &fixed, inputs) {
        Ok(ready) if !symbols.is_empty() => {
            *set = fixed;
            Ok((ready, Some(fixed_note(symbols))))
        }
        _ => Err(why),
    }
}

/// Says that symbols were fixed.
pub fn fixed_note(symbols: &[(String, i64)]) -> String {
    format!("the model does not load with open dimensions, they are fixed as by {}", flags(symbols))
}

/// Symbols' values as they are given on the command line.
pub fn flags(symbols: &[(String, i64)]) -> String {
    let flags: Vec<String> = symbols.iter().map(|(name, value)| format!("--set {name}={value}")).collect();
    flags.join(" ")
}

impl Ready {
    /// The outputs' names, in order.
    pub fn output_names(&self) -> Vec<String> {
        let model = self.runnable.model();
        let name = |outlet: &OutletId| {
            model.outlet_label(*outlet).map_or_else(|| model.node(outlet.node).name.clone(), |label| label.to_string())
        };
        model.outputs.iter().map(name).collect()
    }
}

/// One run and nothing else, for timing.
pub fn execute(runnable: &Arc<TypedRunnableModel>, inputs: &[Arc<Tensor>]) -> TractResult<TVec<TValue>> {
    runnable.run(inputs.iter().map(|input| input.clone().into_tvalue()).collect())
}

/// One run. Sizes that tract keeps symbolic in values come out as i64, as ONNX has them.
pub fn run(runnable: &Arc<TypedRunnableModel>, inputs: &[Arc<Tensor>]) -> TractResult<Vec<Arc<Tensor>>> {
    guarded(|| {
        execute(runnable, inputs)?
            .into_iter()
            .map(|output| match output.datum_type() == TDim::datum_type() {
                true => Ok(output.cast_to::<i64>()?.into_owned().into_arc_tensor()),
                false => Ok(output.into_arc_tensor()),
            })
            .collect()
    })
    .context("running the model")
}

/// Makes tract compute with this many threads from here on.
pub fn set_threads(args: &ModelArgs) -> TractResult<()> {
    if args.threads == 1 {
        return Ok(());
    }
    guarded(|| {
        use tract_linalg::multithread::{Executor, set_default_executor};
        set_default_executor(Executor::multithread(args.threads as usize));
        Ok(())
    })
}
