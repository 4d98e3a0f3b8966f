//! Plans: what will run for one input shape, decided before anything is built.
//!
//! A [`Plan`] is inert: it can be compared, printed and tested without running anything. Strategies stand in one ordered
//! list, best first, the reference last; each says why it declines.

use crate::algorithm::{Decision, Query, Strategy};
use crate::element::{ELEMENT_TYPES, compute_bytes};
use crate::estimate::machine::Machine;
use crate::integers;
use crate::layout::filter::FilterLayout;
use crate::memory::PoolUser;
use crate::simd::isa::Isa;
use crate::spec::{DeconvSpec, Padding, Problem};
use std::fmt;
use std::path::PathBuf;
use tract_core::internal::*;

/// The limit where [`PlanOptions::memory_limit`] is open: 16 GiB.
pub const DEFAULT_MEMORY_LIMIT: usize = 16 << 30;

/// What may be forced on the planner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PlanOptions {
    /// Only this strategy (planning fails where it declines).
    pub strategy: Option<Strategy>,
    /// Only this instruction set (planning fails where the CPU lacks it).
    pub isa: Option<Isa>,
    /// Plan for this machine instead of the one that the program runs on. Its instruction set need not be this CPU's;
    /// a plan for one that this CPU lacks can be looked at, and not run.
    pub machine: Option<Machine>,
    /// A [variant](Plan::variant) that is not considered, so that it can be measured what it is worth.
    #[doc(hidden)]
    pub left_out: Option<&'static str>,
    /// Only strategies that read a filter already packed like this.
    pub layout: Option<FilterLayout>,
    /// How the strategy is chosen where none is forced: by estimates if unset.
    pub tuning: Option<Tuning>,
    /// The file that measured choices are read from and written to. Without one they last as long as the process.
    pub tuning_file: Option<PathBuf>,
    /// Most bytes of an output, and most bytes of working memory that a thread takes to compute one. A larger output is an
    /// error; a strategy that needs more declines. Integers of other types than `i64` are copied to it and back, which
    /// counts as working memory.
    pub memory_limit: Option<usize>,
}

impl PlanOptions {
    /// The same, with only this strategy, or with any.
    pub fn with_strategy(self, strategy: impl Into<Option<Strategy>>) -> PlanOptions {
        PlanOptions { strategy: strategy.into(), ..self }
    }

    /// The same, with only this instruction set, or with the machine's best.
    pub fn with_isa(self, isa: impl Into<Option<Isa>>) -> PlanOptions {
        PlanOptions { isa: isa.into(), ..self }
    }

    /// The same, for another machine, or for the one that the program runs on.
    pub fn with_machine(self, machine: impl Into<Option<Machine>>) -> PlanOptions {
        PlanOptions { machine: machine.into(), ..self }
    }

    /// The same, with only strategies that read a filter packed like this, or with any.
    pub fn with_layout(self, layout: impl Into<Option<FilterLayout>>) -> PlanOptions {
        PlanOptions { layout: layout.into(), ..self }
    }

    /// The same, with another limit to the bytes of an output and of working memory, or with 16 GiB.
    pub fn with_memory_limit(self, bytes: impl Into<Option<usize>>) -> PlanOptions {
        PlanOptions { memory_limit: bytes.into(), ..self }
    }

    /// The same, with a way to choose strategies, or with estimates.
    pub fn with_tuning(self, tuning: impl Into<Option<Tuning>>) -> PlanOptions {
        PlanOptions { tuning: tuning.into(), ..self }
    }

    /// The same, with a file for measured choices, or without one.
    pub fn with_tuning_file(self, path: impl Into<Option<PathBuf>>) -> PlanOptions {
        PlanOptions { tuning_file: path.into(), ..self }
    }

    /// The limit that is given, or the default one.
    pub(crate) fn limit(&self) -> MemoryLimit {
        MemoryLimit(self.memory_limit.unwrap_or(DEFAULT_MEMORY_LIMIT))
    }
}

/// How the strategy of a plan is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tuning {
    /// By the estimates: the same plan in every process on one kind of machine.
    #[default]
    Estimated,
    /// By timing the cheapest candidates on this machine, when a shape is first planned.
    Measured,
}

impl Tuning {
    const ALL: [Tuning; 2] = [Tuning::Estimated, Tuning::Measured];

    /// The name, as the knob `TRACT_DECONV_TUNING` has it.
    pub fn name(self) -> &'static str {
        match self {
            Tuning::Estimated => "estimated",
            Tuning::Measured => "measured",
        }
    }

    /// The way to choose of a name.
    ///
    /// # Errors
    /// An unknown name; the message lists the known ones.
    pub fn from_name(name: &str) -> TractResult<Tuning> {
        Tuning::ALL.into_iter().find(|tuning| tuning.name() == name).with_context(|| {
            let known = Tuning::ALL.map(Tuning::name).join(", ");
            format!("tuning: tuning={name}, the known ones are {known}")
        })
    }
}

/// Most bytes of an output, and most bytes of working memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemoryLimit(usize);

impl MemoryLimit {
    /// Refuses an output above the limit.
    pub fn check_output(self, shape: &[usize], datum_type: DatumType) -> TractResult<()> {
        let limit = self.0;
        let bytes = shape.iter().fold(datum_type.size_of(), |bytes, dim| bytes.saturating_mul(*dim));
        ensure!(bytes <= limit, "output size: shape={shape:?}, its {bytes} bytes are more than the limit of {limit}");
        Ok(())
    }

    /// Refuses working memory above the limit.
    pub fn check_working(self, bytes: usize) -> TractResult<()> {
        ensure!(
            bytes <= self.0,
            "working memory: bytes={bytes}, which are needed, are more than the limit of {}",
            self.0
        );
        Ok(())
    }
}

/// Bytes of the operands and the output of a problem as they are computed, where that is not in their own type.
pub(crate) fn converted_bytes(problem: &Problem, datum_type: DatumType) -> usize {
    let computed_as = integers::computed_as(datum_type);
    if computed_as == datum_type {
        return 0;
    }
    let elements = [problem.input_shape(), problem.output_shape()].map(|shape| shape.iter().product::<usize>());
    // no overflow: a problem's tensors are bounded
    (elements[0] + elements[1] + problem.group * problem.group_out).saturating_mul(computed_as.size_of())
}

/// The times by which a strategy was chosen, fastest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Nanoseconds of a run of each candidate.
    pub times: Vec<(Strategy, u64)>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let times = self.times.iter().map(|(strategy, ns)| format!("{strategy} {:.1} us", *ns as f64 / 1e3));
        write!(f, "measured: {}", times.collect::<Vec<_>>().join(", "))
    }
}

/// What will run for one input shape.
///
/// Kernels rely on what a plan holds, so nothing of it can be changed after planning:
///
/// ```compile_fail,E0616
/// # use tract_core::internal::*;
/// # use tract_deconv::{DeconvSpec, Plan};
/// fn larger(spec: &DeconvSpec, input: &Tensor) -> TractResult<Plan> {
///     let mut plan = Plan::new(spec, input.shape(), None, input.datum_type(), &Default::default())?;
///     plan.problem.batch = 2;
///     Ok(plan)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    spec: DeconvSpec,
    problem: Problem,
    /// What the strategies but for the reference compute: see [`Problem::folded`].
    folded: Problem,
    datum_type: DatumType,
    decision: Decision,
    isa: Isa,
    declined: Vec<(Strategy, String)>,
    /// The times of the candidates, where the strategy was chosen by them.
    measured: Option<Measured>,
    /// Keeps the blocks of outputs.
    pool: PoolUser,
}

impl Plan {
    /// Plans a spec for a concrete input shape. `requested` is the value of the run-time output shape, where there is one.
    ///
    /// # Errors
    /// What [`DeconvSpec::validate`] and [`DeconvSpec::problem`] refuse, an output above the memory limit, an unsupported
    /// element type, or a forced strategy that declines.
    pub fn new(
        spec: &DeconvSpec,
        input: &[usize],
        requested: Option<&[i64]>,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> TractResult<Plan> {
        // a spec can be edited after it was validated
        spec.validate()?;
        let problem = spec.problem(input, requested)?;
        let folded = problem.folded();
        Plan::choose(spec, problem, folded, datum_type, options)
    }

    /// The best of the strategies that take a problem, `folded` as it may be.
    fn choose(
        spec: &DeconvSpec,
        problem: Problem,
        folded: Problem,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> TractResult<Plan> {
        ensure!(
            ELEMENT_TYPES.contains(&datum_type),
            "input: datum_type={datum_type:?}, a deconvolution runs on floats of 16 to 64 bits and integers of 8 to 64"
        );
        let limit = options.limit();
        limit.check_output(&problem.output_shape(), datum_type)?;
        let converted = converted_bytes(&problem, datum_type);
        // what the strategies take that only the limit keeps from running
        let mut least: Option<(usize, Strategy)> = None;
        let computed_as = integers::computed_as(datum_type);
        let (isa, machine) = match options.machine {
            None => {
                let isa = Isa::of_plan(options.isa)?;
                (isa, Machine::with_isa(isa))
            }
            Some(machine) => (options.isa.unwrap_or(machine.isa()), machine),
        };
        ensure!(isa.is_compiled(), "isa: isa={isa}, a build for this architecture has no kernels for it");
        if let Some(layout) = &options.layout {
            layout.check(spec)?;
        }
        let empty = problem.input_shape().contains(&0) || problem.output_shape().contains(&0);
        let mut declined = vec![];
        let mut best: Option<(Strategy, Decision)> = None;
        let query = Query::new(&folded, computed_as, isa, options.layout.as_ref(), &machine, options.left_out);
        for &strategy in Strategy::ALL {
            if best.is_some() && strategy == Strategy::Reference {
                break;
            }
            if options.strategy.is_some_and(|forced| forced != strategy) {
                declined.push((strategy, "another one is forced".to_string()));
                continue;
            }
            if empty && strategy != Strategy::Reference {
                declined.push((strategy, "the input or the output is empty".to_string()));
                continue;
            }
            let proposed = strategy.propose(&query);
            let affordable = proposed.and_then(|decision| {
                if query.leaves_out(decision.variant()) {
                    return Err("its variant is left out".to_string());
                }
                let bytes = decision.working_bytes(&folded, query.element).saturating_add(converted);
                if bytes <= limit.0 {
                    return Ok(decision);
                }
                if least.is_none_or(|(least, _)| bytes < least) {
                    least = Some((bytes, strategy));
                }
                Err(format!("its {bytes} bytes of working memory are more than the limit of {}", limit.0))
            });
            match affordable {
                Err(reason) => declined.push((strategy, reason)),
                Ok(decision) => {
                    let (better, worse) = match best {
                        Some(rival) if rival.1.cost() <= decision.cost() => (rival, Some((strategy, decision))),
                        rival => ((strategy, decision), rival),
                    };
                    if let Some((loser, decision)) = worse {
                        let costs = decision.cost().zip(better.1.cost());
                        let (cost, less) = costs.context("planner: a strategy without a cost has a rival")?;
                        declined.push((loser, format!("its estimated cost is {cost}, that of {} {less}", better.0)));
                    }
                    best = Some(better);
                }
            }
        }
        if let Some((_, decision)) = best {
            let (spec, pool) = (spec.clone(), PoolUser::new());
            return Ok(Plan { spec, problem, folded, datum_type, decision, isa, declined, measured: None, pool });
        }
        if let Some((bytes, strategy)) = least {
            bail!(
                "working memory: bytes={bytes}, which {strategy} needs, the least of the strategies that can run, are more \
                 than the limit of {}",
                limit.0
            );
        }
        let reasons: Vec<String> = declined.iter().map(|(s, why)| format!("{s}: {why}")).collect();
        bail!("strategy: none is left, {}", reasons.join("; "))
    }

    /// What is computed.
    pub fn spec(&self) -> &DeconvSpec {
        &self.spec
    }

    /// The spec, resolved for the input's shape.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What the strategies but for the reference compute: see [`Problem::folded`].
    pub fn folded(&self) -> &Problem {
        &self.folded
    }

    /// Element type of input, filter, bias and output.
    pub fn datum_type(&self) -> DatumType {
        self.datum_type
    }

    /// The instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The estimated cost in vector multiply-adds, where the strategy competes with others.
    pub fn cost(&self) -> Option<u64> {
        self.decision.cost()
    }

    /// Which variant of the strategy it is; empty where there is one only.
    #[doc(hidden)]
    pub fn variant(&self) -> &'static str {
        self.decision.variant()
    }

    /// The strategies that were considered before or beside the chosen one, and why each declined.
    pub fn declined(&self) -> &[(Strategy, String)] {
        &self.declined
    }

    /// Bytes that a run takes on one thread besides operands and output. Integers that are converted count, with their
    /// output.
    pub fn working_bytes(&self) -> usize {
        let computed_as = integers::computed_as(self.datum_type);
        let converted = converted_bytes(&self.problem, self.datum_type);
        self.decision.working_bytes(&self.folded, compute_bytes(computed_as)).saturating_add(converted)
    }

    /// The chosen strategy with everything it decided.
    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The chosen strategy.
    pub fn strategy(&self) -> Strategy {
        self.decision.strategy()
    }

    /// The times of the candidates, where the strategy was chosen by them.
    pub fn measured(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// The same plan, chosen by times.
    pub(crate) fn chosen_by(self, measured: Measured) -> Plan {
        Plan { measured: Some(measured), ..self }
    }

    /// What runs, then a line for each strategy that was considered and why it declined.
    pub fn explain(&self) -> String {
        let declined = self.declined.iter().map(|(strategy, reason)| format!("\n  {strategy}: {reason}"));
        std::iter::once(self.to_string()).chain(declined).collect()
    }

    /// The layout that the filter must be packed in.
    pub fn filter_layout(&self) -> FilterLayout {
        self.decision.filter_layout()
    }

    /// The layout to pack a constant filter in when the input's shape is not known whole: plans made with it in
    /// [`PlanOptions::layout`] exist for every shape that is not empty. `input` are the dimensions as far as they are known;
    /// the others are planned for as one image of a moderate size.
    pub fn shape_free_layout(
        spec: &DeconvSpec,
        input: &[TDim],
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> FilterLayout {
        let typical = match spec.rank() {
            1 => 1024,
            2 => 48,
            _ => 16,
        };
        let (c, x) = (spec.data_format.c_axis(input.len()), spec.data_format.x_axis());
        let shape: TVec<usize> = input
            .iter()
            .enumerate()
            .map(|(axis, dim)| match dim.as_i64() {
                Some(dim) => dim.max(0) as usize,
                None if axis == 0 => 1,
                None if axis == c => spec.in_channels,
                None => typical,
            })
            .collect();
        // gemv is for single positions only, which the spatial axes are only known to be where they are all one
        let single = input[x..x + spec.rank()].iter().all(|dim| dim.as_i64() == Some(1));
        let requested: Option<TVec<i64>> = match &spec.padding {
            Padding::OutputShape { shape: requested, .. } if requested.dims().iter().any(|d| d.as_i64().is_none()) => {
                Some((0..spec.rank()).map(|ax| (shape[x + ax] * spec.strides[ax]).max(1) as i64).collect())
            }
            _ => None,
        };
        let problem = spec.validate().and_then(|()| spec.problem(&shape, requested.as_deref()));
        let chosen = problem.and_then(|problem| {
            // for another requested shape, an axis along which nothing moves here may have padding, and be left unfolded
            let folds = !matches!(spec.padding, Padding::OutputShape { .. });
            let folded = if folds { problem.folded() } else { problem.clone() };
            Plan::choose(spec, problem, folded, datum_type, options)
        });
        match chosen {
            Ok(plan) if single || plan.strategy() != Strategy::Gemv => plan.filter_layout(),
            _ => FilterLayout::Plain,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} on {} {:?}, {}", self.strategy(), self.isa, self.datum_type, self.decision.explain())?;
        self.measured.iter().try_for_each(|measured| write!(f, ", {measured}"))
    }
}
