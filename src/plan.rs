//! Plans: the decisions for one input shape, made before anything is built.
//!
//! A [`Plan`] is inert. It can be compared, printed and tested without a run. The planner asks
//! every strategy for its decision and takes the one with the lowest estimated cost. The order of
//! the strategies breaks ties, and the reference is last. A strategy that declines gives its
//! reason.

use crate::algorithm::{Decision, Query, Restrictions, Strategy};
use crate::compute::Grouped;
use crate::element::{self, ELEMENT_TYPES, compute_bytes};
use crate::estimate::machine::Machine;
use crate::integers;
use crate::layout::filter::FilterLayout;
use crate::layout::input::SIXTEEN_BYTES;
use crate::memory::PoolUser;
use crate::precision::Precision;
use crate::simd::isa::Isa;
use crate::spec::{DeconvSpec, Padding, Problem};
use std::fmt;
use std::path::PathBuf;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// The memory limit if [`PlanOptions::memory_limit`] is not set: 16 GiB, or 2 GiB less one byte where
/// addresses have 32 bits.
pub const DEFAULT_MEMORY_LIMIT: usize = {
    let bytes: u64 = 16 << 30;
    // No allocation can have more.
    let most = isize::MAX as usize;
    if bytes < most as u64 { bytes as usize } else { most }
};

/// The most bytes of transformed weights if [`PlanOptions::transformed_bytes`] is not set: 1 MiB.
///
/// Weights that L2 does not hold take longer to load than to transform, unless they serve many tiles.
pub const DEFAULT_TRANSFORMED_BYTES: usize = 1 << 20;

/// The choices that can be forced on the planner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The only strategy to consider. Planning fails if it declines.
    pub strategy: Option<Strategy>,
    /// The only instruction set to consider. Planning fails if the CPU lacks it.
    pub isa: Option<Isa>,
    /// The machine to plan for, instead of the one that the program runs on.
    ///
    /// Its instruction set need not be one of this CPU. A plan for a missing instruction set can be
    /// inspected but not run.
    pub machine: Option<Machine>,
    /// Whether the error of a result must depend on the inputs of its own taps only.
    ///
    /// Tiles whose results share their rounding errors are then not considered.
    pub local_accuracy: bool,
    /// The most bytes of a filter's weights that are transformed when it is packed. 1 MiB if not set.
    ///
    /// Tiles of fewer products multiply transformed weights. Where those have more bytes, every run
    /// transforms them again.
    pub transformed_bytes: Option<usize>,
    /// The precision of the arithmetic. [`Precision::Exact`] if not set.
    ///
    /// Layers of f32 and f16 are computed in it by the strategies that have kernels for it. The others
    /// stay exact, and [`Plan::exact_because`] gives the reason.
    pub precision: Option<Precision>,
    /// The pattern because of which the layer stays exact, whatever the precision: see
    /// [`Options::exact_nodes`](crate::Options::exact_nodes).
    pub kept_exact_by: Option<String>,
    /// [Variants](Plan::variant) that are not considered, so that their benefit can be measured.
    #[doc(hidden)]
    pub left_out: Vec<&'static str>,
    /// The layout of an already packed filter. Only strategies that read this layout are
    /// considered.
    pub layout: Option<FilterLayout>,
    /// Whether the channels of the input come in several tensors.
    ///
    /// Some strategies read each tensor. For others the tensors are joined first, which counts as
    /// working memory.
    pub in_parts: bool,
    /// How many integers of 8 bits an element of input and filter holds, if several. Tensors are then
    /// `i32`.
    pub(crate) grouped: Option<Grouped>,
    /// The way to choose the strategy if none is forced. By estimates if not set.
    pub tuning: Option<Tuning>,
    /// The file that measured choices are read from and written to. Without a file they last as
    /// long as the process.
    pub tuning_file: Option<PathBuf>,
    /// The most bytes of an output, and of the working memory per thread.
    ///
    /// A larger output is an error. A strategy that needs more working memory declines. Integers of
    /// other types than `i64` are converted to it and back, and these copies count as working
    /// memory.
    pub memory_limit: Option<usize>,
}

impl PlanOptions {
    /// Returns the same options with only this strategy, or with any.
    pub fn with_strategy(self, strategy: impl Into<Option<Strategy>>) -> PlanOptions {
        PlanOptions { strategy: strategy.into(), ..self }
    }

    /// Returns the same options with only this instruction set, or with the machine's best.
    pub fn with_isa(self, isa: impl Into<Option<Isa>>) -> PlanOptions {
        PlanOptions { isa: isa.into(), ..self }
    }

    /// Returns the same options for another machine, or for the one that the program runs on.
    pub fn with_machine(self, machine: impl Into<Option<Machine>>) -> PlanOptions {
        PlanOptions { machine: machine.into(), ..self }
    }

    /// Returns the same options for a filter in this layout, or in any.
    pub fn with_layout(self, layout: impl Into<Option<FilterLayout>>) -> PlanOptions {
        PlanOptions { layout: layout.into(), ..self }
    }

    /// Returns the same options with another memory limit, or with the default one.
    pub fn with_memory_limit(self, bytes: impl Into<Option<usize>>) -> PlanOptions {
        PlanOptions { memory_limit: bytes.into(), ..self }
    }

    /// Returns the same options with or without local accuracy.
    pub fn with_local_accuracy(self, local_accuracy: bool) -> PlanOptions {
        PlanOptions { local_accuracy, ..self }
    }

    /// Returns the same options with other most bytes of transformed weights, or the default ones.
    pub fn with_transformed_bytes(self, bytes: impl Into<Option<usize>>) -> PlanOptions {
        PlanOptions { transformed_bytes: bytes.into(), ..self }
    }

    /// Returns the same options with another precision, or with the exact one.
    pub fn with_precision(self, precision: impl Into<Option<Precision>>) -> PlanOptions {
        PlanOptions { precision: precision.into(), ..self }
    }

    /// Returns the same options for an input in several tensors, or in one.
    pub fn with_in_parts(self, in_parts: bool) -> PlanOptions {
        PlanOptions { in_parts, ..self }
    }

    /// Returns the same options for elements that hold several integers.
    pub(crate) fn with_grouped(self, grouped: impl Into<Option<Grouped>>) -> PlanOptions {
        PlanOptions { grouped: grouped.into(), ..self }
    }

    /// Returns the same options with a way to choose strategies, or with estimates.
    pub fn with_tuning(self, tuning: impl Into<Option<Tuning>>) -> PlanOptions {
        PlanOptions { tuning: tuning.into(), ..self }
    }

    /// Returns the same options with a file for measured choices, or without one.
    pub fn with_tuning_file(self, path: impl Into<Option<PathBuf>>) -> PlanOptions {
        PlanOptions { tuning_file: path.into(), ..self }
    }

    /// Returns the precision of layers of an element type that have kernels for it.
    ///
    /// # Errors
    /// The reason why they stay exact, if another precision was asked for.
    pub(crate) fn precision_of(&self, datum_type: DatumType) -> Result<Precision, String> {
        let precision = self.precision.unwrap_or_default();
        match (&self.kept_exact_by, datum_type) {
            _ if precision == Precision::Exact => Ok(precision),
            (Some(pattern), _) => Err(format!("its name matches {pattern:?}")),
            (None, DatumType::F32 | DatumType::F16) => Ok(precision),
            (None, DatumType::F64) => Err("sums of f64 are made in f64".to_string()),
            (None, _) => Err("integers are summed exactly".to_string()),
        }
    }

    /// Returns the given limit, or the default one.
    pub(crate) fn limit(&self) -> MemoryLimit {
        MemoryLimit(self.memory_limit.unwrap_or(DEFAULT_MEMORY_LIMIT))
    }
}

/// How the strategy of a plan is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tuning {
    /// By estimates. Every process on the same kind of machine makes the same plan.
    #[default]
    Estimated,
    /// By timing the cheapest candidates on this machine, when a shape is first planned.
    Measured,
}

impl Tuning {
    const ALL: [Tuning; 2] = [Tuning::Estimated, Tuning::Measured];

    /// Returns the name, as in the knob `TRACT_DECONV_TUNING`.
    pub fn name(self) -> &'static str {
        match self {
            Tuning::Estimated => "estimated",
            Tuning::Measured => "measured",
        }
    }

    /// Returns the way to choose with this name.
    ///
    /// # Errors
    /// The name is unknown. The message lists the known names.
    pub fn from_name(name: &str) -> TractResult<Tuning> {
        Tuning::ALL.into_iter().find(|tuning| tuning.name() == name).with_context(|| {
            let known = Tuning::ALL.map(Tuning::name).join(", ");
            format!("tuning: tuning={name}, the known ones are {known}")
        })
    }
}

/// The most bytes of an output, and of working memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemoryLimit(usize);

impl MemoryLimit {
    /// Checks that an output is within the limit.
    pub fn check_output(self, shape: &[usize], datum_type: DatumType) -> TractResult<()> {
        let limit = self.0;
        let bytes = shape.iter().fold(datum_type.size_of(), |bytes, dim| bytes.saturating_mul(*dim));
        ensure!(bytes <= limit, "output size: shape={shape:?}, its {bytes} bytes are more than the limit of {limit}");
        Ok(())
    }

    /// Checks that working memory is within the limit.
    pub fn check_working(self, bytes: usize) -> TractResult<()> {
        ensure!(
            bytes <= self.0,
            "working memory: bytes={bytes}, which are needed, are more than the limit of {}",
            self.0
        );
        Ok(())
    }
}

/// Returns the bytes of the converted operands and output of a problem. Zero if they are computed
/// in their own type.
pub(crate) fn converted_bytes(problem: &Problem, datum_type: DatumType, grouped: Option<Grouped>) -> usize {
    let computed_as = integers::computed_as_grouped(datum_type, grouped);
    if computed_as == datum_type {
        return 0;
    }
    let elements = [problem.input_shape(), problem.output_shape()].map(|shape| shape.iter().product::<usize>());
    // This can't overflow, as a problem's tensors are bounded.
    (elements[0] + elements[1] + problem.group * problem.group_out).saturating_mul(computed_as.size_of())
}

/// Returns the bytes of the joint tensor, if the tensors of an input are joined before a decision is
/// run.
fn joint_bytes(problem: &Problem, computed_as: DatumType, in_parts: bool, decision: &Decision) -> usize {
    let shape = problem.input_shape();
    let bytes = || shape.iter().fold(computed_as.size_of(), |bytes, dim| bytes.saturating_mul(*dim));
    if in_parts && !decision.reads_parts() { bytes() } else { 0 }
}

/// Returns the estimated cost of joining tensors, in vector multiply-adds.
fn joining_cost(bytes: usize) -> u64 {
    (bytes as u64 / 16).saturating_mul(SIXTEEN_BYTES)
}

/// The times that decided on a strategy, fastest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Nanoseconds per run of each candidate.
    pub times: Vec<(Strategy, u64)>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let times = self.times.iter().map(|(strategy, ns)| format!("{strategy} {:.1} us", *ns as f64 / 1e3));
        write!(f, "measured: {}", times.collect::<Vec<_>>().join(", "))
    }
}

/// The decisions for one input shape.
///
/// Kernels rely on them, so they can't be changed after planning:
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
    /// The problem that all strategies except the reference compute: see [`Problem::folded`].
    folded: Problem,
    datum_type: DatumType,
    grouped: Option<Grouped>,
    decision: Decision,
    /// The layout that the filter is already packed in.
    layout: Option<FilterLayout>,
    isa: Isa,
    declined: Vec<(Strategy, String)>,
    /// The reason why the layer stays exact, if another precision was asked for.
    exact_because: Option<String>,
    /// Whether the channels of the input come in several tensors.
    in_parts: bool,
    /// The times of the candidates, if they decided on the strategy.
    measured: Option<Measured>,
    /// Keeps the memory blocks of outputs.
    pool: PoolUser,
}

/// The sizes of the input for which a filter is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// Those of the problem.
    These,
    /// All, of which the problem's are typical.
    All,
}

impl Plan {
    /// Plans a spec for a concrete input shape. `requested` is the value of the run-time output
    /// shape, if the spec has one.
    ///
    /// # Errors
    /// - [`DeconvSpec::validate`] or [`DeconvSpec::problem`] fails.
    /// - The output is above the memory limit.
    /// - The element type is not supported.
    /// - A forced strategy declines.
    pub fn new(
        spec: &DeconvSpec,
        input: &[usize],
        requested: Option<&[i64]>,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> TractResult<Plan> {
        // A spec can be edited after it was validated.
        spec.validate()?;
        let problem = spec.problem(input, requested)?;
        let folded = problem.folded();
        let chosen = Plan::choose(spec, problem.clone(), folded.clone(), datum_type, options, Sizes::These);
        // A given layout may have been chosen for open sizes. Those that turn out to be one fold, and
        // another axis becomes that of columns.
        if chosen.is_err() && options.layout.is_some() && folded != problem {
            return Plan::choose(spec, problem.clone(), problem, datum_type, options, Sizes::These).or(chosen);
        }
        chosen
    }

    /// Chooses the best strategy that accepts a problem. `folded` is the same problem, folded where
    /// possible. `sizes` are those for which the filter is packed.
    fn choose(
        spec: &DeconvSpec,
        problem: Problem,
        folded: Problem,
        datum_type: DatumType,
        options: &PlanOptions,
        sizes: Sizes,
    ) -> TractResult<Plan> {
        ensure!(
            ELEMENT_TYPES.contains(&datum_type),
            "input: datum_type={datum_type:?}, a deconvolution runs on floats of 16 to 64 bits and integers of 8 to 64"
        );
        let limit = options.limit();
        limit.check_output(&problem.output_shape(), datum_type)?;
        let grouped = options.grouped;
        if grouped.is_none() {
            element::check_built("input", datum_type)?;
        }
        ensure!(
            grouped.is_none() || datum_type == DatumType::I32,
            "input: datum_type={datum_type:?}, elements of several integers are I32"
        );
        let converted = converted_bytes(&problem, datum_type, grouped);
        // The smallest working memory among the strategies that only the limit rules out.
        let mut least: Option<(usize, Strategy)> = None;
        let computed_as = integers::computed_as_grouped(datum_type, grouped);
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
        let precision = options.precision_of(datum_type);
        let restrictions = Restrictions {
            precision: precision.clone().unwrap_or_default(),
            layout: options.layout.as_ref(),
            left_out: &options.left_out,
            local_accuracy: options.local_accuracy,
            transformed_bytes: options.transformed_bytes.unwrap_or(DEFAULT_TRANSFORMED_BYTES).min(limit.0),
            in_parts: options.in_parts,
            grouped,
        };
        let query = Query::new(&folded, computed_as, isa, &machine, restrictions);
        let joint = |decision: &Decision| joint_bytes(&problem, computed_as, options.in_parts, decision);
        let cost = |decision: &Decision| Some(decision.cost()?.saturating_add(joining_cost(joint(decision))));
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
                // There is no other choice if the strategy is forced.
                if sizes == Sizes::All && options.strategy.is_none() && !decision.layout_is_for_all_sizes(&query) {
                    return Err("filters packed for it can't be read for all sizes".to_string());
                }
                let bytes = decision.working_bytes(&folded, query.element).saturating_add(converted);
                let bytes = bytes.saturating_add(joint(&decision));
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
                        Some(rival) if cost(&rival.1) <= cost(&decision) => (rival, Some((strategy, decision))),
                        rival => ((strategy, decision), rival),
                    };
                    if let Some((loser, decision)) = worse {
                        let costs = cost(&decision).zip(cost(&better.1));
                        let (cost, less) = costs.context("planner: a strategy without a cost has a rival")?;
                        declined.push((loser, format!("its estimated cost is {cost}, that of {} {less}", better.0)));
                    }
                    best = Some(better);
                }
            }
        }
        if let Some((_, decision)) = best {
            let (spec, pool, in_parts) = (spec.clone(), PoolUser::new(), options.in_parts);
            let measured = None;
            let without_kernels = |asked: Precision| {
                let (strategy, asked) = (decision.strategy(), asked.name());
                format!("{strategy} on {isa} has no kernels for {asked}")
            };
            let exact_because = match precision {
                Ok(asked) => (decision.precision() != asked).then(|| without_kernels(asked)),
                Err(reason) => Some(reason),
            };
            return Ok(Plan {
                spec,
                problem,
                folded,
                datum_type,
                grouped,
                decision,
                layout: options.layout.clone(),
                isa,
                declined,
                exact_because,
                in_parts,
                measured,
                pool,
            });
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

    /// Returns the spec.
    pub fn spec(&self) -> &DeconvSpec {
        &self.spec
    }

    /// Returns the spec, resolved for the input's shape.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Returns the problem that all strategies except the reference compute: see
    /// [`Problem::folded`].
    pub fn folded(&self) -> &Problem {
        &self.folded
    }

    /// Returns the element type of input, filter, bias and output.
    pub fn datum_type(&self) -> DatumType {
        self.datum_type
    }

    /// Returns the instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the estimated cost in vector multiply-adds. None for the reference.
    pub fn cost(&self) -> Option<u64> {
        Some(self.decision.cost()?.saturating_add(joining_cost(self.joint_bytes())))
    }

    /// Returns the type that operands are converted to.
    pub(crate) fn computed_as(&self) -> DatumType {
        integers::computed_as_grouped(self.datum_type, self.grouped)
    }

    /// Returns how many integers an element holds, if several.
    pub(crate) fn grouped(&self) -> Option<Grouped> {
        self.grouped
    }

    /// Returns the bytes of the joint tensor, if the tensors of the input are joined first.
    fn joint_bytes(&self) -> usize {
        joint_bytes(&self.problem, self.computed_as(), self.in_parts, &self.decision)
    }

    /// Returns whether the layer reads each tensor of an input in several tensors.
    pub(crate) fn reads_parts(&self) -> bool {
        self.in_parts && self.decision.reads_parts()
    }

    /// Returns whether this plan, for an input in several tensors, does what `other` does for one.
    pub(crate) fn reads_parts_as(&self, other: &Plan) -> bool {
        self.reads_parts() && self.decision == other.decision
    }

    /// Returns the variant of the strategy. Empty if there is only one.
    #[doc(hidden)]
    pub fn variant(&self) -> &'static str {
        self.decision.variant()
    }

    /// Returns whether the rounding error of a result scales with the largest input of a tile, not
    /// only with the inputs of its own taps.
    #[doc(hidden)]
    pub fn mixes_results(&self) -> bool {
        self.decision.mixes_results()
    }

    /// Returns the other strategies that were considered, each with the reason why it declined.
    pub fn declined(&self) -> &[(Strategy, String)] {
        &self.declined
    }

    /// Returns the precision of the arithmetic.
    pub fn precision(&self) -> Precision {
        self.decision.precision()
    }

    /// Returns the reason why the layer is computed exactly, if another precision was asked for.
    pub fn exact_because(&self) -> Option<&str> {
        self.exact_because.as_deref()
    }

    /// Returns the precision in words, with the reason for an exact one that was not asked for.
    pub(crate) fn explain_precision(&self) -> String {
        let reason = self.exact_because.iter().map(|reason| format!(": {reason}"));
        std::iter::once(self.precision().name().to_string()).chain(reason).collect()
    }

    /// Returns the bytes of working memory per thread of a run, without operands and output.
    ///
    /// If integers are converted, the converted operands and output count. If the tensors of the
    /// input are joined first, the joint one counts.
    pub fn working_bytes(&self) -> usize {
        let converted = converted_bytes(&self.problem, self.datum_type, self.grouped);
        self.decision
            .working_bytes(&self.folded, compute_bytes(self.computed_as(), self.grouped))
            .saturating_add(converted)
            .saturating_add(self.joint_bytes())
    }

    /// Returns the chosen strategy with all of its parameters.
    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the chosen strategy.
    pub fn strategy(&self) -> Strategy {
        self.decision.strategy()
    }

    /// Returns the times of the candidates, if they decided on the strategy.
    pub fn measured(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// Returns the same plan, chosen by times.
    pub(crate) fn chosen_by(self, measured: Measured) -> Plan {
        Plan { measured: Some(measured), ..self }
    }

    /// Describes the plan in a line, then its precision, then each strategy that declined and its reason.
    pub fn explain(&self) -> String {
        let declined = self.declined.iter().map(|(strategy, reason)| format!("\n  {strategy}: {reason}"));
        let precision = format!("\n  precision {}", self.explain_precision());
        [self.to_string(), precision].into_iter().chain(declined).collect()
    }

    /// Returns the layout that the filter must be packed in: the one that the plan was made for
    /// ([`PlanOptions::layout`]), or the one that its strategy reads.
    pub fn filter_layout(&self) -> FilterLayout {
        self.layout.clone().unwrap_or_else(|| self.decision.filter_layout())
    }

    /// Returns the layout for a constant filter if the input's shape is not fully known.
    ///
    /// Plans with this layout in [`PlanOptions::layout`] exist for every shape that is not empty.
    /// `input` has the known dimensions. The planner assumes one image, of several sizes, and takes
    /// the layout with the lowest geometric mean of estimated costs.
    pub fn shape_free_layout(
        spec: &DeconvSpec,
        input: &[TDim],
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> FilterLayout {
        let x = spec.data_format.x_axis();
        let is_open = input.iter().skip(x).take(spec.rank()).any(|dim| dim.as_i64().is_none());
        let sizes: &[usize] = match spec.rank() {
            1 => &[256, 1024, 4096],
            2 => &[24, 48, 192],
            _ => &[8, 16, 32],
        };
        let sizes = if is_open { sizes } else { &sizes[..1] };
        let plan = |size: usize, layout: Option<&FilterLayout>| {
            let options = PlanOptions { layout: layout.or(options.layout.as_ref()).cloned(), ..options.clone() };
            Plan::of_open_axes(spec, input, size, datum_type, &options).ok()
        };
        let layouts: TVec<FilterLayout> =
            sizes.iter().filter_map(|size| Some(plan(*size, None)?.filter_layout())).unique().collect();
        let [_, _, ..] = layouts.as_slice() else {
            return layouts.into_iter().next().unwrap_or(FilterLayout::Plain);
        };
        let cost = |layout: &FilterLayout| -> f64 {
            let of_size = |size: &usize| plan(*size, Some(layout)).and_then(|plan| plan.cost());
            sizes.iter().map(|size| of_size(size).map_or(f64::INFINITY, |cost| (cost as f64).ln())).sum()
        };
        let best = layouts.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        best.unwrap_or(FilterLayout::Plain)
    }

    /// Plans for one image, whose unknown spatial axes have `size` positions.
    fn of_open_axes(
        spec: &DeconvSpec,
        input: &[TDim],
        size: usize,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> TractResult<Plan> {
        spec.validate()?;
        let (c, x) = (spec.data_format.c_axis(input.len()), spec.data_format.x_axis());
        let dims = input.iter().enumerate();
        let shape: TVec<usize> = dims
            .map(|(axis, dim)| match dim.as_i64() {
                Some(dim) => dim.max(0) as usize,
                None if axis == 0 => 1,
                None if axis == c => spec.in_channels,
                None => size,
            })
            .collect();
        let requested: Option<TVec<i64>> = match &spec.padding {
            Padding::OutputShape { shape: requested, .. } if requested.dims().iter().any(|d| d.as_i64().is_none()) => {
                Some((0..spec.rank()).map(|ax| (shape[x + ax] * spec.strides[ax]).max(1) as i64).collect())
            }
            _ => None,
        };
        let problem = spec.problem(&shape, requested.as_deref())?;
        // With another requested shape, an axis that folds here may have padding, and then does not
        // fold.
        let folds = !matches!(spec.padding, Padding::OutputShape { .. });
        let folded = if folds { problem.folded() } else { problem.clone() };
        let mut plan = Plan::choose(spec, problem.clone(), folded, datum_type, options, Sizes::All)?;
        // Other sizes may fold to another number of axes than the two that col2im needs.
        let is_open = input[x..x + spec.rank()].iter().any(|dim| dim.as_i64().is_none());
        if is_open && spec.rank() != 2 && plan.strategy() == Strategy::Col2im {
            plan = Plan::choose(spec, problem.clone(), problem, datum_type, options, Sizes::All)?;
        }
        // Gemv is only for single positions. The spatial axes are known to be single only if all of
        // them are one.
        let single = input[x..x + spec.rank()].iter().all(|dim| dim.as_i64() == Some(1));
        ensure!(single || plan.strategy() != Strategy::Gemv, "open axes: a plan for single positions");
        Ok(plan)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let elements = match self.grouped {
            None => "",
            Some(Grouped::Pairs) => " of two i16",
            Some(Grouped::Quads) => " of four u8",
        };
        let (strategy, isa) = (self.strategy(), self.isa);
        write!(f, "{strategy} on {isa} {:?}{elements}, {}", self.datum_type, self.decision.explain())?;
        match (self.in_parts, self.decision.reads_parts()) {
            (false, _) => {}
            (true, true) => f.write_str(", channels read from each tensor of the input")?,
            (true, false) => f.write_str(", tensors of the input joined first")?,
        }
        self.measured.iter().try_for_each(|measured| write!(f, ", {measured}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_documented;

    #[test]
    fn the_memory_limit_is_documented() {
        let most = "16 GiB";
        assert_eq!(DEFAULT_MEMORY_LIMIT as u64, (16 << 30).min(isize::MAX as u64));
        for file in ["SECURITY.md", "docs/limits.md"] {
            assert_documented(file, &format!("An output may have {most}, and so may the working memory"));
        }
        assert_documented("docs/knobs.md", &format!("| `TRACT_DECONV_MEMORY_LIMIT` | {most} |"));
    }

    #[test]
    fn the_most_transformed_bytes_are_documented() {
        let most = "1 MiB";
        assert_eq!(DEFAULT_TRANSFORMED_BYTES, 1 << 20);
        assert_documented("docs/limits.md", &format!("the transformed ones have at most {most}"));
        assert_documented("docs/knobs.md", &format!("| `TRACT_DECONV_TRANSFORMED_BYTES` | {most} |"));
    }
}
