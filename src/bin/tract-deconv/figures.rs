//! The results of a benchmark, as tables and as JSON.

use crate::args::{BenchArgs, Engine};
use crate::compare::Difference;
use crate::explain;
use crate::inputs::Inputs;
use crate::latency::Summary;
use crate::measure::Footprint;
use crate::model::{ModelFile, Ready};
use crate::nodes::{Profile, is_of_tract};
use crate::report::{self, bytes, ms};
use comfy_table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tract_deconv::Isa;

/// The most convolutions, and the most operators, that a table lists.
const ROWS: usize = 10;

/// One engine and its results from all stages.
pub struct Contender {
    pub engine: Engine,
    pub ready: Ready,
    pub samples: Vec<f64>,
    pub footprint: Option<Footprint>,
    pub profile: Option<Profile>,
    /// The differences of the outputs from those of the exact plugin, if its operands are rounded.
    pub errors: Vec<Difference>,
}

/// The results of a benchmark.
pub struct Figures {
    /// The symbols that were fixed.
    pub set: Vec<(String, i64)>,
    pub notes: Vec<String>,
    /// Stock tract, if it can run the model, and the plugin, last of all.
    pub contenders: Vec<Contender>,
    /// One per contender.
    summaries: Vec<Summary>,
    /// The names of the convolutions of all engines.
    names: Vec<String>,
}

impl Figures {
    pub fn new(set: Vec<(String, i64)>, notes: Vec<String>, contenders: Vec<Contender>) -> Figures {
        let summaries = contenders.iter().filter_map(|c| Summary::of(&c.samples)).collect();
        let names = names(&contenders);
        Figures { set, notes, contenders, summaries, names }
    }

    fn titles(&self, first: &'static str) -> Vec<&'static str> {
        [first].into_iter().chain(self.contenders.iter().map(|c| c.engine.title())).collect()
    }

    fn profiles(&self) -> Vec<&Profile> {
        self.contenders.iter().filter_map(|c| c.profile.as_ref()).collect()
    }

    /// Returns the ratio of the median of `over` to that of `engine`.
    fn speed_up(&self, engine: Engine, over: Engine) -> Option<f64> {
        let median = |engine| {
            self.contenders.iter().zip(&self.summaries).find_map(|(c, s)| (c.engine == engine).then_some(s.median))
        };
        (over != engine).then(|| Some(median(over)? / median(engine)?)).flatten()
    }

    /// Returns the row of how many times as fast as the first engine each other one is.
    fn speed_ups(&self) -> Vec<String> {
        let first = self.contenders.first().map_or(Engine::Stock, |c| c.engine);
        let of = |c: &Contender| self.speed_up(c.engine, first).map_or(String::new(), |ratio| format!("{ratio:.2}×"));
        [format!("speed-up over {}", first.title())].into_iter().chain(self.contenders.iter().map(of)).collect()
    }

    /// Returns the row of the largest error of each engine, against the exact plugin.
    fn errors(&self) -> Vec<String> {
        let of = |c: &Contender| match c.errors.iter().map(|error| error.relative).reduce(f64::max) {
            Some(error) => format!("{error:.1e}"),
            None => String::new(),
        };
        ["error against exact, of the scale".to_string()].into_iter().chain(self.contenders.iter().map(of)).collect()
    }

    /// Returns the table of latency, load time and memory.
    pub fn latencies(&self) -> Table {
        let mut table = report::table(&self.titles("one run"), 1);
        let mut row = |name: &str, of: &dyn Fn(&Summary) -> String| {
            table.add_row([name.to_string()].into_iter().chain(self.summaries.iter().map(of)));
        };
        row("median", &|s| ms(s.median));
        row("p95", &|s| ms(s.p95));
        row("fastest", &|s| ms(s.min));
        row("spread (quartiles / median)", &|s| format!("{:.1} %", s.spread() * 100.0));
        row("runs", &|s| s.runs.to_string());
        if self.contenders.len() > 1 {
            table.add_row(self.speed_ups());
        }
        if self.contenders.iter().any(|c| !c.errors.is_empty()) {
            table.add_row(self.errors());
        }
        let mut row = |name: &str, of: &dyn Fn(&Footprint) -> String| {
            let cells = self.contenders.iter().map(|c| c.footprint.as_ref().map_or("-".into(), of));
            table.add_row([name.to_string()].into_iter().chain(cells));
        };
        row("load", &|f| ms(f.load_ms));
        row("optimise", &|f| ms(f.optimise_ms));
        row("first run", &|f| ms(f.first_run_ms));
        row("peak memory of a process", &|f| f.peak_memory.map_or("-".into(), bytes));
        row("held without program code", &|f| f.held_memory.map_or("-".into(), bytes));
        table
    }

    /// Returns the table of the slowest convolutions, with their share of the run.
    ///
    /// The plugin's times include fused operators.
    pub fn convolutions(&self) -> Table {
        let names = &self.names;
        let mut table = report::table(&self.titles("convolution"), 1);
        let profiles = self.profiles();
        let times: Vec<Vec<Option<f64>>> = profiles.iter().map(|p| p.of(names)).collect();
        let slowest = |ix: usize| times.iter().filter_map(|t| t[ix]).fold(0.0, f64::max);
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by(|a, b| slowest(*b).total_cmp(&slowest(*a)));
        for ix in order.iter().take(ROWS) {
            let cells = profiles.iter().zip(&times).map(|(p, t)| share(t[*ix], p.total()));
            table.add_row([names[*ix].clone()].into_iter().chain(cells));
        }
        if names.len() > ROWS {
            table.add_row([format!("{} more", names.len() - ROWS)]);
        }
        let sum = |times: &[Option<f64>]| times.iter().flatten().copied().reduce(|sum, ms| sum + ms);
        let sums = profiles.iter().zip(&times).map(|(p, t)| share(sum(t), p.total()));
        table.add_row([format!("all {}", names.len())].into_iter().chain(sums));
        table
    }

    /// Returns the table of the whole run's time by operator.
    pub fn operators(&self) -> Table {
        let mut table = report::table(&self.titles("operator"), 1);
        let profiles = self.profiles();
        let operators: Vec<Vec<(String, f64)>> = profiles.iter().map(|p| p.operators(&self.names)).collect();
        let time = |engine: usize, op: &str| operators[engine].iter().find(|(name, _)| name == op).map(|(_, ms)| *ms);
        let mut rows: Vec<(String, f64)> = vec![];
        for (op, ms) in operators.iter().flatten() {
            match rows.iter_mut().find(|(known, _)| known == op) {
                Some((_, most)) => *most = most.max(*ms),
                None => rows.push((op.clone(), *ms)),
            }
        }
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (op, _) in rows.iter().take(ROWS) {
            let cells = profiles.iter().enumerate().map(|(engine, p)| share(time(engine, op), p.total()));
            table.add_row([op.clone()].into_iter().chain(cells));
        }
        if let Some(rest) = rows.get(ROWS..).filter(|rest| !rest.is_empty()) {
            let cells = profiles
                .iter()
                .enumerate()
                .map(|(engine, p)| share(Some(rest.iter().filter_map(|(op, _)| time(engine, op)).sum()), p.total()));
            table.add_row([format!("{} more", rest.len())].into_iter().chain(cells));
        }
        table
    }

    /// Says which of tract's operators takes most of the plugin's run.
    pub fn largest_of_tract(&self) -> String {
        let profile = self.contenders.iter().find(|c| c.engine == Engine::Plugin).and_then(|c| c.profile.as_ref());
        let largest = profile.and_then(|profile| {
            let of_tract = profile.operators(&self.names).into_iter().filter(|(op, _)| is_of_tract(op));
            Some((of_tract.max_by(|a, b| a.1.total_cmp(&b.1))?, profile.total()))
        });
        match largest {
            Some(((op, ms), total)) => {
                format!("tract's largest operator beside the plugin's: {op}, {}", share(Some(ms), total))
            }
            None => "no operator of tract's is beside the plugin's".into(),
        }
    }

    /// Returns all figures and samples as JSON. Times are in milliseconds.
    pub fn json(&self, args: &BenchArgs, file: &ModelFile, inputs: &Inputs) -> Value {
        let engines = self.contenders.iter().zip(&self.summaries).map(|(c, s)| {
            let of = c.profile.as_ref().map(|p| p.of(&self.names)).unwrap_or_default();
            let nodes: Vec<Value> =
                self.names.iter().zip(of).map(|(name, ms)| json!({ "name": name, "ms": ms })).collect();
            let operators = c.profile.as_ref().map(|p| p.operators(&self.names)).unwrap_or_default();
            let value = json!({
                "latency_ms": {
                    "runs": s.runs, "min": s.min, "p25": s.p25, "median": s.median, "p75": s.p75, "p95": s.p95,
                    "spread": s.spread(),
                },
                "process": c.footprint.as_ref().map(Footprint::json),
                "convolutions": nodes,
                "operators_ms": operators.into_iter().collect::<BTreeMap<String, f64>>(),
                "profiled_total_ms": c.profile.as_ref().map(Profile::total),
                "samples_ms": c.samples,
                "errors_against_exact": c.errors.iter().map(|error| json!({
                    "output": error.name, "absolute": error.absolute, "relative": error.relative,
                })).collect::<Vec<_>>(),
            });
            (c.engine.key().to_string(), value)
        });
        let set = self.set.iter().map(|(name, value)| json!({ "symbol": name, "value": value }));
        let inputs =
            inputs.tensors.iter().map(|t| json!({ "shape": t.shape(), "type": format!("{:?}", t.datum_type()) }));
        json!({
            "program": concat!("tract-deconv ", env!("CARGO_PKG_VERSION")),
            "model": file.onnx.display().to_string(),
            "set": set.collect::<Vec<_>>(),
            "inputs": inputs.collect::<Vec<_>>(),
            "threads": args.model.threads,
            "kernels": Isa::best().to_string(),
            "seconds": args.seconds,
            "notes": self.notes,
            "precision": args.model.plugin.precision.unwrap_or_default().name(),
            "speed_up": self.speed_up(Engine::Plugin, Engine::Stock),
            "speed_up_with_deconvolutions_only": self.speed_up(Engine::Deconv, Engine::Stock),
            "speed_up_over_exact": self.speed_up(Engine::Plugin, Engine::Exact),
            "engines": engines.collect::<serde_json::Map<String, Value>>(),
        })
    }
}

fn names(contenders: &[Contender]) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    // the plugin's names come first, as fused nodes may have other names in stock tract
    for contender in contenders.iter().rev() {
        let nodes = contender.ready.typed.nodes().iter();
        for node in nodes.filter(|node| explain::is_deconvolution(node)) {
            if !names.contains(&node.name) {
                names.push(node.name.clone());
            }
        }
        // those in the branches of a condition, of which the profile has the branch that ran
        let explained = tract_deconv::explain(&contender.ready.typed, &Default::default()).unwrap_or_default();
        let timed = |name: &String| contender.profile.iter().any(|p| p.nodes.iter().any(|(node, ..)| node == name));
        for name in explained.into_iter().map(|layer| layer.name).filter(timed) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn share(time: Option<f64>, total: f64) -> String {
    time.map_or("-".into(), |time| format!("{} {:>3.0} %", ms(time), 100.0 * time / total))
}
