//! Finds a model's file, loads it with either engine, and resolves its inputs' shapes and symbols.

use crate::args::{Engine, InputShape, ModelArgs, PluginArgs, Sizes};
use crate::failure::{guarded, usage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;
use tract_deconv::{Precision, WithConv, WithDeconv, WithDeconvOptions, WithLeniency};
use tract_hir::infer::{Factoid, GenericFactoid, InferenceFact, InferenceModel, InferenceModelExt, ShapeFactoid};
use tract_onnx::prelude::Framework;

/// A model on disk.
pub struct ModelFile {
    /// The .onnx file.
    pub onnx: PathBuf,
    /// The io.npz beside it, if there is one.
    pub io: Option<PathBuf>,
    /// How the plugin computes convolutions.
    pub plugin: PluginArgs,
}

impl ModelFile {
    /// Finds the model that an argument names: the file itself, or the model.onnx in a folder.
    pub fn find(path: &Path, plugin: &PluginArgs) -> TractResult<ModelFile> {
        let onnx = if path.is_dir() { path.join("model.onnx") } else { path.to_path_buf() };
        ensure!(onnx.exists(), "model: path={}, no such file", onnx.display());
        ensure!(onnx.is_file(), "model: path={}, it is no file", onnx.display());
        let io = onnx.with_file_name("io.npz");
        Ok(ModelFile { onnx, io: io.is_file().then_some(io), plugin: plugin.clone() })
    }
}

/// One input as the model declares it, with `--set` and `--input-shape` applied.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: String,
    pub datum_type: DatumType,
    /// The shape, or `None` if the model does not declare it.
    pub shape: Option<TVec<TDim>>,
}

impl std::fmt::Display for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let shape =
            self.shape.as_ref().map_or("?".into(), |s| s.iter().map(|d| d.to_string()).collect::<Vec<_>>().join("×"));
        write!(f, "{} {} {:?}", self.name, shape, self.datum_type)
    }
}

/// A model read from its file, with `--set` and `--input-shape` applied, before analysis.
pub struct Parsed {
    pub model: InferenceModel,
    pub inputs: Vec<Input>,
    pub took: Duration,
}

/// Reads a model with one engine's operators.
pub fn parse(engine: Engine, file: &ModelFile, sizes: &Sizes) -> TractResult<Parsed> {
    guarded(|| {
        let start = Instant::now();
        let mut model = match engine {
            Engine::Stock => tract_onnx::onnx().model_for_path(&file.onnx)?,
            Engine::Deconv | Engine::Exact | Engine::Plugin => {
                let mut options = file.plugin.options();
                if engine == Engine::Exact {
                    options = options.with_precision(Precision::Exact);
                }
                let onnx = tract_onnx::onnx().with_deconv().with_leniency().with_deconv_options(&options)?;
                let conv = file.plugin.conv && engine != Engine::Deconv;
                let onnx = if conv { onnx.with_conv() } else { onnx };
                tract_deconv::load_with(&onnx, &file.onnx)?
            }
        };
        name_unknown_dims(&mut model)?;
        let known = input_symbols(&model)?;
        let mut values = HashMap::new();
        for (name, value) in &sizes.set {
            let symbol = known.iter().find(|symbol| symbol.to_string() == *name).ok_or_else(|| {
                let names: Vec<String> = known.iter().map(|s| s.to_string()).collect();
                match names.is_empty() {
                    true => usage!("--set {name}={value}: the model's inputs have no symbolic dimension"),
                    false => usage!("--set {name}={value}: the model's symbols are {}", names.join(", ")),
                }
            })?;
            values.insert(symbol.clone(), value.to_dim());
        }
        let shapes = named_shapes(&model, sizes)?;
        for (ix, given) in &shapes {
            bind_symbols(model.input_fact(*ix)?, given, &mut values)?;
        }
        InferenceModelExt::set_symbols(&mut model, &values)?;
        for (ix, given) in &shapes {
            let fact = model.input_fact(*ix)?.clone();
            let dims = given.shape.iter().map(|dim| GenericFactoid::Only(dim.to_dim())).collect::<Vec<_>>();
            let shape = fact.shape.unify(&ShapeFactoid::closed(SmallVec::from_vec(dims)));
            let shape = shape.map_err(|_| usage!("--input-shape {given}: the model declares {:?}", fact.shape))?;
            model.set_input_fact(*ix, InferenceFact { shape, ..fact })?;
        }
        let inputs = (0..model.inputs.len()).map(|ix| input(&model, ix)).collect::<TractResult<_>>()?;
        Ok(Parsed { model, inputs, took: start.elapsed() })
    })
    .with_context(|| format!("loading {}", file.onnx.display()))
}

/// Gives each unknown dimension a symbol, so that `--set` can name it.
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

/// Returns the shapes of `--input-shape`, each with its input's index.
fn named_shapes<'a>(model: &InferenceModel, sizes: &'a Sizes) -> TractResult<Vec<(usize, &'a InputShape)>> {
    let names: Vec<&str> = model.inputs.iter().map(|input| &*model.node(input.node).name).collect();
    let mut shapes: Vec<(usize, &InputShape)> = vec![];
    for given in &sizes.input_shapes {
        let place = match &given.name {
            Some(name) => names.iter().position(|known| known == name),
            None => (names.len() == 1).then_some(0),
        };
        let place =
            place.ok_or_else(|| usage!("--input-shape {given}: the model's inputs are {}", names.join(", ")))?;
        if shapes.iter().any(|(taken, _)| *taken == place) {
            return Err(usage!("--input-shape {given}: input {} has a shape already", names[place]));
        }
        shapes.push((place, given));
    }
    Ok(shapes)
}

/// Takes the symbols' values from a shape that is given for an input.
fn bind_symbols(declared: &InferenceFact, given: &InputShape, values: &mut HashMap<Symbol, TDim>) -> TractResult<()> {
    for (dim, size) in declared.shape.dims().zip(&given.shape) {
        let Some(TDim::Sym(symbol)) = dim.concretize() else { continue };
        let value = values.entry(symbol.clone()).or_insert_with(|| size.to_dim());
        if *value != size.to_dim() {
            return Err(usage!("--input-shape {given}: {symbol} is {value} already"));
        }
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
    /// The model before code generation, for look-ups of names and convolutions.
    pub typed: TypedModel,
    pub runnable: Arc<TypedRunnableModel>,
    /// The time of reading and analysing.
    pub load: Duration,
    /// The time of decluttering and code generation.
    pub optimise: Duration,
}

/// Loads a model with one engine, as a program would.
///
/// `inputs` matter only for inputs of undeclared rank.
pub fn prepare(engine: Engine, file: &ModelFile, sizes: &Sizes, inputs: &[Arc<Tensor>]) -> TractResult<Ready> {
    let Parsed { mut model, inputs: declared, took } = parse(engine, file, sizes)?;
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

/// Prepares a model with the plugin, with its symbols fixed if it does not load with open ones.
///
/// Fixed symbols have the inputs' sizes and are appended to `sizes`. The second value is a note
/// that says so.
pub fn prepare_open_or_fixed(
    file: &ModelFile,
    sizes: &mut Sizes,
    symbols: &[(String, i64)],
    inputs: &[Arc<Tensor>],
) -> TractResult<(Ready, Option<String>)> {
    let why = match prepare(Engine::Plugin, file, sizes, inputs) {
        Ok(ready) => return Ok((ready, None)),
        Err(why) => why,
    };
    let fixed = sizes.and_set(symbols);
    match prepare(Engine::Plugin, file, &fixed, inputs) {
        Ok(ready) if !symbols.is_empty() => {
            *sizes = fixed;
            Ok((ready, Some(fixed_note(symbols))))
        }
        _ => Err(why),
    }
}

/// Returns the note that symbols were fixed.
pub fn fixed_note(symbols: &[(String, i64)]) -> String {
    format!("the model does not load with open dimensions, they are fixed as by {}", flags(symbols))
}

/// Formats symbols' values as flags of the command line.
pub fn flags(symbols: &[(String, i64)]) -> String {
    let flags: Vec<String> = symbols.iter().map(|(name, value)| format!("--set {name}={value}")).collect();
    flags.join(" ")
}

impl Ready {
    /// Returns the outputs' names, in order.
    pub fn output_names(&self) -> Vec<String> {
        let model = self.runnable.model();
        let name = |outlet: &OutletId| {
            model.outlet_label(*outlet).map_or_else(|| model.node(outlet.node).name.clone(), |label| label.to_string())
        };
        model.outputs.iter().map(name).collect()
    }
}

/// Runs a model once, and does nothing else, for timing.
pub fn execute(runnable: &Arc<TypedRunnableModel>, inputs: &[Arc<Tensor>]) -> TractResult<TVec<TValue>> {
    runnable.run(inputs.iter().map(|input| input.clone().into_tvalue()).collect())
}

/// Runs a model once. Symbolic sizes in outputs become i64, as in ONNX.
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

/// Checks that the system gives this many threads, as the executor's pool panics if it does not.
///
/// The stacks are twice the usual size, which leaves room for the other memory of each thread.
fn try_threads(count: usize) -> TractResult<()> {
    const STACK: usize = 4 << 20;
    let held = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        let _all = held.lock();
        for made in 0..count {
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || drop(held.lock()));
            thread.with_context(|| format!("threads: threads={count}, the system gives no more than {made}"))?;
        }
        Ok(())
    })
}

/// Sets the number of threads that tract computes with from here on.
pub fn set_threads(args: &ModelArgs) -> TractResult<()> {
    if args.threads == 1 {
        return Ok(());
    }
    guarded(|| {
        use tract_linalg::multithread::{Executor, set_default_executor};
        try_threads(args.threads as usize)?;
        set_default_executor(Executor::multithread(args.threads as usize));
        Ok(())
    })
}
