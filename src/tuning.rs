//! Measured planning: the cheapest candidates of a layer are timed, and the fastest is chosen.
//!
//! A choice lasts as long as the process. With a tuning file, choices are also read from it and
//! appended to it, so that later processes make the same plans without measuring. A line of the
//! file has the layer, a tab, and the times of its candidates, fastest first. A file may have lines
//! for several machines, instruction sets and numbers of threads.

use crate::algorithm::Strategy;
use crate::compute::Grouped;
use crate::estimate::machine::Machine;
use crate::layer::Layer;
use crate::layout::filter::PackedFilter;
use crate::memory::zero_tensor;
use crate::parallel;
use crate::plan::{Measured, Plan, PlanOptions, Tuning};
use crate::precision::Precision;
use crate::spec::{DeconvSpec, Direction, list};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tract_core::internal::*;

/// Whether the platform has a clock. Without one, the estimates decide.
const HAS_CLOCK: bool = !cfg!(all(target_family = "wasm", target_os = "unknown"));

/// The most candidates that are timed.
const CANDIDATES: usize = 3;

/// Candidates with an estimate of more than this many times the lowest are not timed.
const MOST_COST_RATIO: u64 = 4;

/// The fewest and the most runs of each candidate, and the time after which no run is begun.
const RUNS: std::ops::Range<usize> = 2..20;
const TIME: Duration = Duration::from_millis(20);

/// The most choices that a process remembers. Further plans are measured each time.
const MOST_CHOICES: usize = 1 << 14;

/// The most bytes that are read from a file.
const MOST_BYTES: u64 = 16 << 20;

/// The choices of this process.
static CHOICES: Mutex<Option<Choices>> = Mutex::new(None);

#[derive(Default)]
struct Choices {
    /// By layer, in the form of the file's lines.
    measured: HashMap<String, Measured>,
    /// The files that were read.
    read: Vec<PathBuf>,
}

/// Plans a spec as [`Plan::new`] does with the same arguments, or by times if the options request
/// it.
///
/// Estimates also decide on platforms without a clock. A candidate that can't be timed is left out, for example if memory is short. If none is left,
/// the estimates decide.
///
/// # Errors
/// As [`Plan::new`].
pub(crate) fn plan(
    spec: &DeconvSpec,
    input: &[usize],
    requested: Option<&[i64]>,
    datum_type: DatumType,
    options: &PlanOptions,
) -> TractResult<Plan> {
    let estimated = Plan::new(spec, input, requested, datum_type, options)?;
    if options.tuning != Some(Tuning::Measured)
        || !HAS_CLOCK
        || options.strategy.is_some()
        || estimated.cost().is_none()
    {
        return Ok(estimated);
    }
    let forced = |strategy: Strategy| {
        Plan::new(spec, input, requested, datum_type, &options.clone().with_strategy(strategy)).ok()
    };
    let key = key(&estimated, options);
    let file = options.tuning_file.as_deref();
    // a filter that is packed already may leave the second one only
    let known = remembered(&key, file).and_then(|measured| {
        let fastest = measured.times.iter().find_map(|(strategy, _)| forced(*strategy))?;
        Some(fastest.chosen_by(measured))
    });
    if let Some(plan) = known {
        return Ok(plan);
    }
    let most = estimated.cost().unwrap_or(0).saturating_mul(MOST_COST_RATIO);
    let mut candidates: Vec<Plan> = Strategy::ALL.iter().filter_map(|strategy| forced(*strategy)).collect();
    candidates.retain(|plan| plan.cost().is_some_and(|cost| cost <= most));
    candidates.sort_by_key(|plan| plan.cost());
    candidates.truncate(CANDIDATES);
    let Some(measured) = measure(&candidates) else { return Ok(estimated) };
    let fastest = measured.times[0].0;
    log::debug!("measured a deconvolution of {input:?} ({datum_type:?}): {measured}");
    remember(key, &measured, file);
    let chosen = candidates.into_iter().find(|plan| plan.strategy() == fastest).unwrap_or(estimated);
    Ok(chosen.chosen_by(measured))
}

/// Everything that a choice depends on, in one line without tabs.
fn key(plan: &Plan, options: &PlanOptions) -> String {
    let (spec, problem) = (plan.spec(), plan.problem());
    let machine = options.machine.unwrap_or_else(|| Machine::with_isa(plan.isa()));
    let dims = |dims: &[usize]| list(dims, "x");
    format!(
        "{} {:?} {} of {:?}{} {:?}, {} to {}, kernel {}, strides {}, dilations {}, {} groups, filter {:?}, {} threads{}{}",
        machine.name(),
        plan.isa(),
        if spec.direction == Direction::Forward { "conv" } else { "deconv" },
        plan.datum_type(),
        plan.grouped().map_or("", |grouped| if grouped == Grouped::Pairs { " pairs" } else { " quads" }),
        spec.data_format,
        dims(&problem.input_shape()),
        dims(&problem.output_shape()),
        dims(&spec.kernel),
        dims(&spec.strides),
        dims(&spec.dilations),
        spec.group,
        spec.filter_format,
        parallel::threads(u64::MAX),
        if options.in_parts { ", input in parts" } else { "" },
        match options.precision_of(plan.datum_type()) {
            Ok(Precision::Exact) | Err(_) => String::new(),
            Ok(precision) => format!(", in {}", precision.name()),
        },
    )
}

/// Times all candidates that can be run, in turns. None if there are none.
fn measure(candidates: &[Plan]) -> Option<Measured> {
    let first = candidates.first()?;
    let operands = operands(first).map_err(|error| log::warn!("tuning: {error:#}")).ok()?;
    let mut running = vec![];
    for plan in candidates {
        let (layout, grouped) = (plan.filter_layout(), plan.grouped());
        let ready = PackedFilter::pack_grouped(plan.spec(), &layout, &operands.1, grouped).and_then(|filter| {
            let layer = Layer::new(plan.clone());
            // This run builds the tables and warms the caches.
            layer.run(&operands.0, &filter, None)?;
            Ok((layer, filter))
        });
        match ready {
            Ok((layer, filter)) => running.push((layer, filter, u64::MAX)),
            Err(error) => log::warn!("tuning: {}: {error:#}", plan.strategy()),
        }
    }
    let begin = Instant::now();
    for run in 0..RUNS.end {
        if run >= RUNS.start && begin.elapsed() > TIME * running.len() as u32 {
            break;
        }
        for (layer, filter, best) in &mut running {
            let begin = Instant::now();
            let output = layer.run(&operands.0, filter, None);
            let time = begin.elapsed().as_nanos() as u64;
            *best = if output.is_ok() { time.min(*best) } else { *best };
        }
    }
    let times = running.iter().map(|(layer, _, best)| (layer.plan().strategy(), *best));
    let mut times: Vec<(Strategy, u64)> = times.filter(|(_, best)| *best < u64::MAX).collect();
    times.sort_by_key(|(_, best)| *best);
    (!times.is_empty()).then_some(Measured { times })
}

/// Returns an input and a filter with moderate values. The time of an algorithm does not depend on
/// the values.
fn operands(plan: &Plan) -> TractResult<(Tensor, Arc<Tensor>)> {
    let tensor = |what: &str, shape: &[usize]| -> TractResult<Tensor> {
        let mut tensor = zero_tensor::<f32>(what, shape)?;
        let mut view = tensor.try_as_plain_ram_mut()?;
        let values = view.as_slice_mut::<f32>()?;
        values.iter_mut().enumerate().for_each(|(i, value)| *value = (i % 7) as f32 - 3.0);
        tensor.cast_to_dt(plan.datum_type()).map(|cast| cast.into_owned())
    };
    let input = tensor("tuning input", &plan.problem().input_shape())?;
    let filter = tensor("tuning filter", &plan.spec().filter_shape())?;
    Ok((input, filter.into_arc_tensor()))
}

fn choices() -> MutexGuard<'static, Option<Choices>> {
    CHOICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the choice for a layer, if the process or the file has it. A process reads a file once.
fn remembered(key: &str, file: Option<&Path>) -> Option<Measured> {
    let mut choices = choices();
    let choices = choices.get_or_insert_default();
    if let Some(path) = file.filter(|path| choices.read.iter().all(|read| read != path)) {
        choices.read.push(path.to_path_buf());
        match read(path) {
            Ok(text) => {
                for (key, measured) in text.lines().filter_map(parsed) {
                    if choices.measured.len() < MOST_CHOICES {
                        choices.measured.insert(key.to_string(), measured);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => log::warn!("tuning: file={}, {error}", path.display()),
        }
    }
    choices.measured.get(key).cloned()
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Parses a line of a file. None if this version did not write it.
fn parsed(line: &str) -> Option<(&str, Measured)> {
    let (key, times) = line.split_once('\t')?;
    let time = |word: &str| {
        let (strategy, ns) = word.split_once('=')?;
        Some((Strategy::from_name(strategy).ok()?, ns.parse().ok()?))
    };
    let times = times.split(' ').map(time).collect::<Option<Vec<(Strategy, u64)>>>()?;
    Some((key, Measured { times }))
}

fn written(key: &str, measured: &Measured) -> String {
    let times: Vec<String> = measured.times.iter().map(|(strategy, ns)| format!("{strategy}={ns}")).collect();
    format!("{key}\t{}\n", times.join(" "))
}

/// Keeps a choice for the process, and appends it to the file.
fn remember(key: String, measured: &Measured, file: Option<&Path>) {
    if let Some(path) = file {
        let line = written(&key, measured);
        // A single write, so that lines of several processes do not mix.
        let appended =
            OpenOptions::new().append(true).create(true).open(path).and_then(|mut f| f.write_all(line.as_bytes()));
        if let Err(error) = appended {
            log::warn!("tuning: file={}, {error}", path.display());
        }
    }
    let mut choices = choices();
    let choices = choices.get_or_insert_default();
    if choices.measured.len() < MOST_CHOICES {
        choices.measured.insert(key, measured.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::isa::Isa;
    use crate::testing::{assert_documented, spec_2d};

    #[cfg(not(target_family = "wasm"))]
    fn options(file: &Path) -> PlanOptions {
        PlanOptions::default().with_tuning(Tuning::Measured).with_tuning_file(file.to_path_buf())
    }

    #[test]
    fn a_measured_plan_is_one_of_the_candidates_and_says_so() -> TractResult<()> {
        let (spec, shape) = spec_2d(40, 32, 3);
        let tuned = PlanOptions::default().with_tuning(Tuning::Measured);
        let plan = plan(&spec, &shape, None, f32::datum_type(), &tuned)?;
        let measured = plan.measured().context("no times")?;
        assert!(measured.times.len() > 1, "{measured}");
        assert_eq!(measured.times[0].0, plan.strategy());
        assert!(measured.times.is_sorted_by_key(|time| time.1));
        assert!(plan.to_string().contains("measured: "), "{plan}");
        // The second plan uses the same times and does not measure again.
        let again = super::plan(&spec, &shape, None, f32::datum_type(), &tuned)?;
        assert_eq!(again, plan);
        Ok(())
    }

    #[test]
    fn elements_of_several_integers_are_measured_by_themselves() -> TractResult<()> {
        let (spec, shape) = spec_2d(41, 32, 3);
        let mut keys = vec![];
        for grouped in [None, Some(Grouped::Pairs)] {
            let isa = Isa::Portable;
            let tuned = PlanOptions::default().with_tuning(Tuning::Measured).with_grouped(grouped).with_isa(isa);
            let plan = plan(&spec, &shape, None, i32::datum_type(), &tuned)?;
            assert!(plan.measured().is_some_and(|measured| measured.times.len() > 1), "{plan}");
            keys.push(key(&plan, &tuned));
        }
        assert_ne!(keys[0], keys[1]);
        Ok(())
    }

    #[test]
    fn without_being_asked_for_nothing_is_measured() -> TractResult<()> {
        let (spec, shape) = spec_2d(40, 32, 3);
        for options in [
            PlanOptions::default(),
            PlanOptions::default().with_tuning(Tuning::Estimated),
            PlanOptions::default().with_tuning(Tuning::Measured).with_strategy(Strategy::DirectPositions),
        ] {
            let plan = plan(&spec, &shape, None, f32::datum_type(), &options)?;
            assert_eq!(plan.measured(), None);
            assert_eq!(plan, Plan::new(&spec, &shape, None, f32::datum_type(), &options)?);
        }
        Ok(())
    }

    #[test]
    #[cfg(not(target_family = "wasm"))] // it has no folder for temporary files
    fn a_file_decides_and_is_written() -> TractResult<()> {
        let folder = tempfile::tempdir()?;
        let (spec, shape) = spec_2d(48, 24, 3);
        // The estimates do not make this choice.
        let path = folder.path().join("given");
        let estimated = Plan::new(&spec, &shape, None, f32::datum_type(), &PlanOptions::default())?;
        let other = Strategy::ALL.iter().copied().find(|strategy| {
            let forced = PlanOptions::default().with_strategy(*strategy);
            *strategy != estimated.strategy() && Plan::new(&spec, &shape, None, f32::datum_type(), &forced).is_ok()
        });
        let given = Measured { times: vec![(other.context("one algorithm only")?, 7)] };
        std::fs::write(&path, format!("no line of ours\n{}", written(&key(&estimated, &options(&path)), &given)))?;
        let plan = plan(&spec, &shape, None, f32::datum_type(), &options(&path))?;
        assert_eq!((Some(plan.strategy()), plan.measured()), (other, Some(&given)));

        let (spec, shape) = spec_2d(56, 24, 3);
        let path = folder.path().join("written");
        let plan = super::plan(&spec, &shape, None, f32::datum_type(), &options(&path))?;
        let text = std::fs::read_to_string(&path)?;
        let (key, measured) = parsed(text.trim_end()).context("a line")?;
        assert_eq!(Some(&measured), plan.measured());
        assert!(key.contains(" to ") && !key.contains('\t'), "{key}");
        Ok(())
    }

    #[test]
    #[cfg(not(target_family = "wasm"))] // it has no folder for temporary files
    fn a_file_that_cannot_be_used_is_no_error() -> TractResult<()> {
        let folder = tempfile::tempdir()?;
        let (spec, shape) = spec_2d(64, 24, 3);
        let plan = plan(&spec, &shape, None, f32::datum_type(), &options(folder.path()))?;
        assert!(plan.measured().is_some());
        Ok(())
    }

    #[test]
    fn the_effort_is_documented() {
        assert_eq!(CANDIDATES, 3);
        assert_documented("docs/knobs.md", "it times the three cheapest strategies of a layer");
        let most = CANDIDATES as u128 * TIME.as_millis();
        assert_documented("docs/knobs.md", &format!("That takes up to {most} ms per layer."));
    }
}
