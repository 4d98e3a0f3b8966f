//! `tract-deconv bench`: times stock tract, the plugin with deconvolutions only and the plugin with both
//! directions on one model, in turns in one process. With a precision, the exact plugin takes the place of
//! the one with deconvolutions only.

use crate::args::{BenchArgs, Engine, Sizes};
use crate::compare::{Difference, compare};
use crate::failure::{chain, check_writable, say, usage};
use crate::figures::{Contender, Figures};
use crate::inputs::{Inputs, resolve};
use crate::latency::alternate;
use crate::measure::footprints;
use crate::model::{ModelFile, Ready, flags, parse, prepare, prepare_open_or_fixed, run, set_threads};
use crate::nodes::Profile;
use crate::run::against;
use crate::watch::Watch;
use crate::{plot, report};
use tract_core::internal::*;
use tract_deconv::Isa;

/// The share of the time limit that profiling each engine's nodes takes.
const PROFILE: f64 = 0.1;

pub fn main(args: &BenchArgs) -> TractResult<()> {
    for path in [&args.json, &args.plot].into_iter().flatten() {
        check_writable(path)?;
    }
    if let (Some(json), Some(plot)) = (&args.json, &args.plot)
        && json == plot
    {
        return Err(usage!("--json and --plot: both are {}", json.display()));
    }
    set_threads(&args.model)?;
    let mut file = ModelFile::find(&args.model.model, &args.model.plugin)?;
    file.plugin.conv = true;
    let parsed = parse(Engine::Plugin, &file, &args.model.sizes)?;
    let watch = Watch::start("reading or making the inputs");
    let inputs = resolve(&parsed.inputs, &args.model, &file, None)?;
    drop(watch);
    say(format!("model {}", file.onnx.display()))?;
    for note in &inputs.notes {
        say(note)?;
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    say(format!("threads {} of {cores} cores, kernels {}", args.model.threads, Isa::best()))?;

    let mut notes = vec![];
    if cfg!(debug_assertions) {
        notes.push("this is a debug build: build with --release for figures that mean something".to_string());
    }
    let mut sizes = args.model.sizes.clone();
    let mut contenders = contenders(args, &file, &mut sizes, &inputs, &mut notes)?;
    for note in &notes {
        say(format!("note: {note}"))?;
    }
    let engines: Vec<Engine> = contenders.iter().map(|c| c.engine).collect();
    if cfg!(target_os = "linux") {
        for (contender, footprint) in contenders.iter_mut().zip(footprints(&engines, &args.model, &sizes)?) {
            contender.footprint = Some(footprint);
        }
    } else {
        say("load, optimise and memory figures are measured on Linux only")?;
    }
    let runnables: Vec<_> = contenders.iter().map(|c| &c.ready.runnable).collect();
    let samples = alternate(&runnables, &inputs.tensors, args.seconds)?;
    for (contender, samples) in contenders.iter_mut().zip(samples) {
        contender.samples = samples;
        let _watch = Watch::start(format!("profiling {}", contender.engine.title()));
        contender.profile = Some(Profile::take(&contender.ready, &inputs.tensors, args.seconds * PROFILE)?);
    }
    let figures = Figures::new(sizes.set, notes, contenders);
    say(format!("\n{}", figures.latencies()))?;
    say(format!("\n{}", figures.convolutions()))?;
    say(format!("\n{}", figures.operators()))?;
    say(format!("{}\n", figures.largest_of_tract()))?;

    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&figures.json(args, &file, &inputs))?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
        say(format!("written: {}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        let engines: Vec<_> = figures.contenders.iter().map(|c| (c.engine, c.samples.clone())).collect();
        let threads =
            if args.model.threads == 1 { "1 thread".into() } else { format!("{} threads", args.model.threads) };
        let title = format!("{}, {threads}", args.model.model.display());
        plot::draw(path, &title, &engines)?;
        say(format!("written: {}", path.display()))?;
    }
    Ok(())
}

/// Loads the engines and compares their answers.
///
/// The plugin must work. If another engine does not, a note says so. The plugin with deconvolutions
/// only is left out where it is the same as another engine.
fn contenders(
    args: &BenchArgs,
    file: &ModelFile,
    sizes: &mut Sizes,
    inputs: &Inputs,
    notes: &mut Vec<String>,
) -> TractResult<Vec<Contender>> {
    let start = |engine: Engine, ready: Ready| -> TractResult<(Contender, Vec<Arc<Tensor>>)> {
        let _watch = Watch::start(format!("first run of {}", engine.title()));
        let outputs = run(&ready.runnable, &inputs.tensors)?;
        Ok((Contender { engine, ready, samples: vec![], footprint: None, profile: None, errors: vec![] }, outputs))
    };
    let watch = Watch::start("preparing the model");
    let (ready, fixed) = prepare_open_or_fixed(file, sizes, &inputs.symbols, &inputs.tensors)?;
    drop(watch);
    match fixed {
        Some(note) => notes.push(note),
        None if inputs.symbols.is_empty() => {}
        None => notes.push(format!(
            "optimised with open dimensions; to fix them before, as a program may do: {}",
            flags(&inputs.symbols)
        )),
    }
    let (mut plugin, mut ours) = start(Engine::Plugin, ready)?;
    let names = plugin.ready.output_names();
    let mut all = vec![];
    if args.model.plugin.rounds() {
        let ready = prepare(Engine::Exact, file, sizes, &inputs.tensors)?;
        let (exact, answers) = start(Engine::Exact, ready)?;
        plugin.errors = differences(&names, &ours, &answers, args)?;
        all.push(exact);
        ours = answers;
    }
    all.push(plugin);
    let reference =
        inputs.archive.as_ref().filter(|(_, arrays)| arrays.iter().any(|(name, _)| name.starts_with("out__")));
    let mut confirmed = false;
    if let Some((path, arrays)) = reference {
        let differences = against(arrays, &names, &ours, args.tolerance)?;
        let worst = report::worst(&differences);
        ensure!(differences.iter().all(Difference::passes), "the plugin's answer differs from {path}: {worst}");
        notes.push(format!("the plugin agrees with {path}, worst {worst}"));
        confirmed = true;
    }
    let layers = |ready: &Ready| Ok::<_, TractError>(tract_deconv::explain(&ready.typed, &Default::default())?.len());
    let all_layers = layers(&all[all.len() - 1].ready)?;
    for engine in [Engine::Deconv, Engine::Stock] {
        if engine == Engine::Deconv && (args.model.plugin.conv || args.model.plugin.rounds()) {
            continue;
        }
        let ready = match prepare(engine, file, sizes, &inputs.tensors) {
            Ok(ready) if engine == Engine::Deconv && [0, all_layers].contains(&layers(&ready)?) => continue,
            ready => ready,
        };
        let (contender, theirs) = match ready.and_then(|ready| start(engine, ready)) {
            Ok(started) => started,
            Err(why) => {
                let open = if sizes.set.len() < args.model.sizes.set.len() + inputs.symbols.len() {
                    " with open dimensions"
                } else {
                    ""
                };
                notes.push(format!("{} can't do this model{open}: {}", engine.described(), chain(&why)));
                continue;
            }
        };
        let differences = differences(&names, &ours, &theirs, args)?;
        let worst = report::worst(&differences);
        if differences.iter().all(Difference::passes) {
            notes.push(format!("the plugin agrees with {}, worst {worst}", engine.described()));
        } else if confirmed {
            notes.push(format!("{}: its answer is wrong, {worst}; it is timed all the same", engine.described()));
        } else {
            bail!("the engines' answers differ, nothing was timed: {worst}");
        }
        all.insert(0, contender);
    }
    Ok(all)
}

fn differences(
    names: &[String],
    ours: &[Arc<Tensor>],
    theirs: &[Arc<Tensor>],
    args: &BenchArgs,
) -> TractResult<Vec<Difference>> {
    let pairs = names.iter().zip(ours.iter().zip(theirs));
    pairs.map(|(name, (ours, theirs))| compare(name, ours, theirs, args.tolerance)).collect()
}
