//! The quality of the planner's choices, measured on layers drawn at random, on one thread. The
//! layers are drawn from `benches/distribution.json`.
//!
//! `cargo bench --bench planner -- 160 7` draws 160 layers from seed 7 and runs each under every
//! strategy that takes it. It compares the results of the strategies, prints each one's time next
//! to its estimate, and at the end how much slower the choice is than the best strategy, in the
//! mean and at worst. Further words:
//!
//! - `transposed`, `forward`, `nxc` (channels last), `depthwise` (one input channel per group), `pointwise` (one tap):
//!   the kinds of layers that are drawn in turns. All of them if none is given.
//! - `--isa avx2`: with another instruction set.
//! - `--machine generic`: with the rates of another machine.
//! - `--precision bf16`: with rounded operands where a strategy has kernels for it. Their results are not compared.
//! - `--worth`: how often each strategy and each of its variants is chosen, and how much slower the layers are without it.
//! - `transforms=2,tile_load=1.5`: rates other than those of the machine. Prints what choices by them would take, from the
//!   times of each strategy as they were measured. Several such words are compared.
//! - `--fit`: fits a row of `src/estimate/machine.rs` to the measured times, and prints it.

mod common;

use common::{Layer, Ready, compare};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_deconv::internals::Rates;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Isa, Machine, PlanOptions, Precision, Strategy};

/// Strategies whose estimate exceeds the choice's by this factor are not run.
const MOST_COST_RATIO: u64 = 10;

/// The kind of layer to draw.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    data_format: DataFormat,
    direction: Direction,
    depthwise: bool,
    pointwise: bool,
}

const TRANSPOSED: Kind = Kind {
    name: "transposed",
    data_format: DataFormat::Ncx,
    direction: Direction::Transposed,
    depthwise: false,
    pointwise: false,
};

const KINDS: [Kind; 7] = [
    TRANSPOSED,
    Kind { name: "forward", direction: Direction::Forward, ..TRANSPOSED },
    Kind { name: "nxc", data_format: DataFormat::Nxc, ..TRANSPOSED },
    Kind { name: "depthwise", depthwise: true, ..TRANSPOSED },
    Kind { name: "pointwise", direction: Direction::Forward, pointwise: true, ..TRANSPOSED },
    // drawn with the kinds of the same names
    Kind { name: "nxc", data_format: DataFormat::Nxc, direction: Direction::Forward, ..TRANSPOSED },
    Kind { name: "depthwise", depthwise: true, direction: Direction::Forward, ..TRANSPOSED },
];

/// What the command line asks for.
struct Asked {
    count: usize,
    seed: u64,
    kinds: Vec<Kind>,
    options: PlanOptions,
    worth: bool,
    fit: bool,
    /// Rates to compare, as on the command line.
    rates: Vec<String>,
}

impl Asked {
    fn new() -> TractResult<Asked> {
        // cargo adds a flag of its own
        let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
        let says = |word: &str| words.iter().any(|other| other == word);
        let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1));
        let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let mut kinds: Vec<Kind> = KINDS.into_iter().filter(|kind| says(kind.name)).collect();
        if kinds.is_empty() {
            kinds.extend(KINDS);
        }
        let isa = after("--isa").map(|name| Isa::from_name(name)).transpose()?;
        let precision = after("--precision").map(|name| Precision::from_name(name)).transpose()?;
        let machine = after("--machine").map(|name| Machine::from_name(name)).transpose()?;
        let machine = machine.map(|machine| machine.with_instruction_set(isa.unwrap_or_else(Isa::best)));
        Ok(Asked {
            count: numbers.first().map_or(40, |count| *count as usize),
            seed: numbers.get(1).copied().unwrap_or(7),
            kinds,
            options: PlanOptions::default().with_isa(isa).with_machine(machine).with_precision(precision),
            worth: says("--worth"),
            fit: says("--fit"),
            rates: words.iter().filter(|word| word.contains('=')).cloned().collect(),
        })
    }

    /// The machine that plans are made for.
    fn machine(&self) -> Machine {
        self.options.machine.unwrap_or_else(|| Machine::with_isa(self.options.isa.unwrap_or_else(Isa::best)))
    }
}

/// `benches/distribution.json`, which `benches/peers` draws from too.
#[derive(Deserialize)]
struct Distribution {
    ranks: Vec<usize>,
    batches: Vec<usize>,
    groups: Vec<usize>,
    in_channels: Vec<usize>,
    out_channels: Vec<usize>,
    depthwise_channels: Vec<usize>,
    depthwise_multipliers: Vec<usize>,
    /// Taps, stride and dilation of every axis.
    taps: Taps,
    most_taps: [usize; 3],
    sizes: [Vec<usize>; 3],
    aspects: Vec<[usize; 2]>,
    one_axis: ByKind<Vec<bool>>,
    multiply_adds: ByKind<[u64; 2]>,
    most_channels: usize,
    most_outputs: usize,
}

#[derive(Deserialize)]
struct Taps {
    transposed: Vec<[usize; 3]>,
    forward: Vec<[usize; 3]>,
}

#[derive(Deserialize)]
struct ByKind<T> {
    dense: T,
    depthwise: T,
}

impl<T> ByKind<T> {
    fn of(&self, depthwise: bool) -> &T {
        if depthwise { &self.depthwise } else { &self.dense }
    }
}

impl Distribution {
    fn read() -> TractResult<Distribution> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/distribution.json");
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
    }
}

struct Draw(u64);

impl Draw {
    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        values[(self.0 >> 33) as usize % values.len()]
    }

    /// Draws a layer, or none if it is outside the bounds.
    fn layer(&mut self, kind: &Kind, lists: &Distribution) -> TractResult<Option<Layer>> {
        let Kind { data_format, direction, depthwise, pointwise, .. } = *kind;
        let rank = self.of(&lists.ranks);
        let batch = self.of(&lists.batches);
        let (group, inputs, outputs) = match data_format {
            _ if depthwise => (self.of(&lists.depthwise_channels), 1, self.of(&lists.depthwise_multipliers)),
            // What the distribution has too seldom: channels last in narrow groups.
            DataFormat::Nxc if self.of(&[true, false]) => {
                let narrow = [1usize, 2, 3, 4, 5, 8, 12];
                (self.of(&[4usize, 8, 16, 32, 64]), self.of(&narrow), self.of(&narrow))
            }
            _ => (self.of(&lists.groups), self.of(&lists.in_channels), self.of(&lists.out_channels)),
        };
        let [taps, stride, dilation] = match direction {
            _ if pointwise => [1, 1, 1],
            Direction::Transposed => self.of(&lists.taps.transposed),
            Direction::Forward => self.of(&lists.taps.forward),
        };
        let size = self.of(&lists.sizes[rank - 1]);
        let [numerator, denominator] = self.of(&lists.aspects);
        if taps > lists.most_taps[rank - 1]
            || (depthwise && taps == 1)
            || (inputs.max(outputs) * group > lists.most_channels)
        {
            return Ok(None);
        }
        let left_out = (rank == 2 && self.of(lists.one_axis.of(depthwise))).then(|| self.of(&[0usize, 1]));
        let on_axes = |value: usize| -> TVec<usize> {
            (0..rank).map(|axis| if left_out == Some(axis) { 1 } else { value }).collect()
        };
        let (kernel, strides, dilations) = (on_axes(taps), on_axes(stride), on_axes(dilation));
        let pads: TVec<i64> = tract_itertools::izip!(&kernel, &strides, &dilations)
            .map(|(taps, stride, dilation)| {
                let reach = (taps - 1) * dilation;
                match direction {
                    Direction::Transposed => (reach + 1).saturating_sub(*stride) as i64 / 2,
                    Direction::Forward => reach as i64 / 2,
                }
            })
            .collect();
        let spec = DeconvSpec {
            direction,
            data_format,
            filter_format: FilterFormat::Iox,
            in_channels: inputs * group,
            out_channels: outputs * group,
            group,
            kernel,
            strides,
            dilations,
            padding: Padding::Explicit { begin: pads.clone(), end: pads },
            output_padding: tvec!(0; rank),
        };
        let mut spatial: TVec<usize> = tvec!(size; rank);
        if rank > 1 {
            spatial[rank - 1] = (size * numerator / denominator).max(1);
        }
        let shape = spec.data_format.shape(batch, spec.in_channels, spatial);
        let problem = spec.problem(&shape, None)?;
        let [least, most] = *lists.multiply_adds.of(depthwise);
        let outputs = problem.output_shape().iter().product::<usize>();
        if !(least..=most).contains(&problem.multiply_adds()) || outputs > lists.most_outputs {
            return Ok(None);
        }
        Layer::new(spec, &shape).map(Some)
    }
}

/// A strategy on a layer.
struct Candidate {
    strategy: Strategy,
    variant: &'static str,
    cost: u64,
    /// Seconds of a run.
    time: f64,
}

/// A layer with the times of its candidates.
struct Timed {
    layer: Layer,
    candidates: Vec<Candidate>,
    /// The index of the planner's choice.
    chosen: usize,
}

impl Timed {
    /// How much longer the choice takes than the best.
    fn loss(&self) -> f64 {
        self.candidates[self.chosen].time / self.best()
    }

    fn best(&self) -> f64 {
        self.candidates.iter().map(|candidate| candidate.time).fold(f64::MAX, f64::min)
    }
}

/// Returns the best time of a few runs of each plan, in seconds. The plans take turns.
///
/// The run before each timed run is not counted, so every strategy finds the caches in its own
/// state.
fn times(layer: &Layer, plans: &[Ready]) -> TractResult<Vec<f64>> {
    let mut best = vec![f64::MAX; plans.len()];
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || (begin.elapsed() < Duration::from_millis(200) && rounds < 60) {
        for (ready, best) in plans.iter().zip(&mut best) {
            drop(layer.run(ready)?);
            let begin = Instant::now();
            let output = layer.run(ready)?;
            *best = best.min(begin.elapsed().as_secs_f64());
            drop(output);
        }
        rounds += 1;
    }
    Ok(best)
}

/// Times every strategy that competes for a layer. None where there are fewer than two.
fn timed(layer: Layer, options: &PlanOptions) -> TractResult<Option<Timed>> {
    let choice = layer.plan(options)?.plan;
    let forced = |strategy: Strategy| layer.plan(&options.clone().with_strategy(strategy)).ok();
    let competes = |ready: &Ready| {
        ready.plan.cost().zip(choice.cost()).is_some_and(|(a, b)| a < b.saturating_mul(MOST_COST_RATIO))
    };
    let plans: Vec<Ready> = Strategy::ALL.iter().copied().filter_map(forced).filter(competes).collect();
    let [first, others @ ..] = &plans[..] else { return Ok(None) };
    let chosen = plans.iter().position(|ready| ready.plan.strategy() == choice.strategy());
    let Some(chosen) = chosen.filter(|_| !others.is_empty()) else { return Ok(None) };
    let expected = layer.run(first)?;
    let is_exact = |ready: &&Ready| ready.plan.precision() == Precision::Exact;
    for other in others.iter().filter(|_| is_exact(&first)).filter(is_exact) {
        compare(&format!("{:?} by {}", layer.spec, other.plan.strategy()), &layer.run(other)?, &expected)?;
    }
    let times = times(&layer, &plans)?;
    let candidates = plans.iter().zip(times).map(|(ready, time)| Candidate {
        strategy: ready.plan.strategy(),
        variant: ready.plan.variant(),
        cost: ready.plan.cost().unwrap_or(0),
        time,
    });
    let candidates = candidates.collect();
    Ok(Some(Timed { layer, candidates, chosen }))
}

fn print(timed: &Timed, machine: &Machine) {
    let each = timed.candidates.iter().map(|candidate| {
        let estimate = candidate.cost as f64 / machine.rates().get("fma_per_ns").unwrap_or(1.0) / 1e9 / candidate.time;
        format!("{} {:.0} us, estimate {estimate:.2} of it", candidate.strategy, candidate.time * 1e6)
    });
    let DeconvSpec { direction, data_format, in_channels, out_channels, group, kernel, strides, dilations, .. } =
        &timed.layer.spec;
    println!(
        "{:.2} {direction:?} {data_format:?} {in_channels} to {out_channels} in {group}, kernel {kernel:?} strides {strides:?} \
         dilations {dilations:?} on {:?}: {} of {}",
        timed.loss(),
        timed.layer.input.shape(),
        timed.candidates[timed.chosen].strategy,
        each.format("; ")
    );
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len().max(1) as f64).exp()
}

/// Prints how much slower layers are without each strategy, and without each variant.
fn print_worth(layers: &[Timed], options: &PlanOptions) -> TractResult<()> {
    // for each name, how much longer each layer takes that has it; infinite where nothing else
    // takes the layer
    let mut losses: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for timed in layers {
        let choice = &timed.candidates[timed.chosen];
        let others = timed.candidates.iter().enumerate().filter(|(at, _)| *at != timed.chosen);
        let next = others.min_by_key(|(_, candidate)| candidate.cost).map_or(f64::INFINITY, |(_, next)| next.time);
        losses.entry(choice.strategy.to_string()).or_default().push(next / choice.time);
        if choice.variant.is_empty() {
            continue;
        }
        let mut without = options.clone();
        without.left_out.push(choice.variant);
        let loss = match timed.layer.plan(&without) {
            Ok(other) if other.plan.cost().is_some() => {
                let plans = [timed.layer.plan(options)?, other];
                let times = times(&timed.layer, &plans)?;
                times[1] / times[0]
            }
            _ => f64::INFINITY,
        };
        losses.entry(format!("{}: {}", choice.strategy, choice.variant)).or_default().push(loss);
    }
    println!("{:<60} layers, time without it where it is chosen, and over all layers", "strategy: variant");
    for (name, losses) in losses {
        let finite: Vec<f64> = losses.iter().copied().filter(|loss| loss.is_finite()).collect();
        let mean = geometric_mean(&finite);
        let over_all = mean.powf(finite.len() as f64 / layers.len() as f64);
        let worst = finite.iter().copied().fold(0.0, f64::max);
        println!("{name:<60} {:>4}  {mean:.3}  {over_all:.3}, at worst {worst:.2}", losses.len());
    }
    Ok(())
}

/// How badly rates describe the measured times: how much longer the choices would take than the
/// best strategies, and, with less weight, how far the estimates are from the times. Returns both.
fn fit_error(layers: &[Timed], options: &PlanOptions, machine: &Machine) -> TractResult<(f64, f64)> {
    let (mut losses, mut errors) = (vec![], vec![]);
    let options = options.clone().with_machine(*machine);
    let rate = machine.rates().get("fma_per_ns").unwrap_or(1.0);
    for timed in layers {
        let mut cheapest: Option<(u64, f64)> = None;
        for candidate in &timed.candidates {
            let Some(cost) = timed.layer.cost(&options.clone().with_strategy(candidate.strategy)) else { continue };
            errors.push((cost as f64 / rate / 1e9 / candidate.time).ln().abs());
            if cheapest.is_none_or(|(least, _)| cost < least) {
                cheapest = Some((cost, candidate.time));
            }
        }
        losses.extend(cheapest.map(|(_, time)| (time / timed.best()).ln()));
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    Ok((mean(&losses), mean(&errors)))
}

/// Fits the rates that estimates are made of: one rate after the other is changed as long as that
/// describes the times better. Another rate can change the parameters of a strategy, too, whose
/// times were measured with the old ones: a second fit, from the row that the first one gave, is a
/// little better.
fn fit(layers: &[Timed], options: &PlanOptions, start: Machine) -> TractResult<Machine> {
    /// How much the distance of estimates from times counts beside the loss by choices.
    const OF_ERRORS: f64 = 0.05;
    const STEPS: [f64; 8] = [0.0, 0.25, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0];
    let value = |machine: &Machine| -> TractResult<f64> {
        let (loss, error) = fit_error(layers, options, machine)?;
        Ok(loss + OF_ERRORS * error)
    };
    let mut best = (value(&start)?, start);
    for round in 0..4 {
        let before = best.0;
        for name in Rates::NAMES.iter().filter(|name| !name.starts_with("share_")) {
            let rate = best.1.rates().get(name).unwrap_or(0.0);
            // a rate of zero has no multiples
            let tried = STEPS.map(|step| if rate == 0.0 { 4.0 * step } else { rate * step });
            for tried in tried.into_iter().filter(|tried| *tried > 0.0 || *name != "fma_per_ns") {
                let machine = best.1.with_rates(best.1.rates().with(name, tried));
                let value = value(&machine)?;
                if value < best.0 - 1e-5 {
                    best = (value, machine);
                }
            }
        }
        eprintln!("round {round}: {:.4}", best.0);
        if before - best.0 < 1e-4 {
            break;
        }
    }
    Ok(best.1)
}

/// Prints what choices by other rates than the machine's would take.
fn print_rates(changes: &str, layers: &[Timed], options: &PlanOptions, machine: Machine) -> TractResult<()> {
    let mut rates = *machine.rates();
    for change in changes.split(',') {
        let (name, value) = change.split_once('=').context("a rate is name=value")?;
        ensure!(Rates::NAMES.contains(&name), "rate: name={name}, no such rate");
        rates = rates.with(name, value.parse()?);
    }
    let (loss, error) = fit_error(layers, options, &machine.with_rates(rates))?;
    println!("{changes}: choices take {:.3} of the best, estimates are {:.2} times off", loss.exp(), error.exp());
    Ok(())
}

fn print_row(machine: &Machine, layers: &[Timed], options: &PlanOptions) -> TractResult<()> {
    let (loss, error) = fit_error(layers, options, machine)?;
    println!("fitted: choices take {:.3} of the best, estimates are {:.2} times off", loss.exp(), error.exp());
    println!("rates: Rates {{");
    for name in Rates::NAMES {
        println!("    {name}: {:.4},", machine.rates().get(name).unwrap_or(0.0));
    }
    println!("}},");
    Ok(())
}

fn main() -> TractResult<()> {
    let asked = Asked::new()?;
    let machine = asked.machine();
    println!("machine {} on {}", machine.name(), machine.isa());
    let lists = Distribution::read()?;
    let mut draw = Draw(asked.seed);
    let mut layers = vec![];
    let mut kinds = asked.kinds.iter().cycle();
    while layers.len() < asked.count {
        let Some(kind) = kinds.next() else { break };
        let layer =
            std::iter::repeat_with(|| draw.layer(kind, &lists)).find_map(|layer| layer.transpose()).transpose()?;
        let Some(layer) = layer else { continue };
        if let Some(timed) = timed(layer, &asked.options)? {
            print(&timed, &machine);
            layers.push(timed);
        }
    }
    let losses: Vec<f64> = layers.iter().map(Timed::loss).collect();
    println!(
        "the choice takes {:.3} of the best strategy's time in the mean, {:.2} at worst",
        geometric_mean(&losses),
        losses.iter().copied().fold(1.0, f64::max)
    );
    if asked.worth {
        print_worth(&layers, &asked.options)?;
    }
    for changes in &asked.rates {
        print_rates(changes, &layers, &asked.options, machine)?;
    }
    if asked.fit {
        print_row(&fit(&layers, &asked.options, machine)?, &layers, &asked.options)?;
    }
    Ok(())
}
