//! Plans: what will run for one input shape, decided before anything is built.
//!
//! A [`Plan`] is inert: it can be compared, printed and tested without running anything. Strategies stand in one ordered
//! list, best first, the reference last; each says why it declines.

use crate::algorithm::amx::MatrixPlan;
use crate::algorithm::col2im::Col2imPlan;
use crate::algorithm::depthwise_pixels::CellsPlan;
use crate::algorithm::depthwise_rows::{DepthwisePlan, Way};
use crate::algorithm::direct_channels::ChannelsPlan;
use crate::algorithm::direct_positions::PhasesPlan;
use crate::algorithm::gemv::MatVecPlan;
use crate::algorithm::overlap_add::OverlapPlan;
use crate::algorithm::winograd::WinogradPlan;
use crate::algorithm::{Operands, reference};
use crate::element::compute_bytes;
use crate::element::{ELEMENT_TYPES, Element, dispatch_element};
use crate::estimate::machine::Machine;
use crate::integers;
use crate::kernel::Dispatch;
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::memory::{self, PoolUser};
use crate::output::epilogue;
use crate::output::epilogue::{Step, Tail};
use crate::simd::isa::Isa;
use crate::spec::{DeconvSpec, Padding, Problem};
use std::fmt;
use tract_core::internal::*;

/// The algorithms, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// One input channel a group: sums of shifted rows.
    Depthwise,
    /// The same, and narrow groups of channels-last data, with channels as lanes.
    Cells,
    /// One input position: the weights are streamed once.
    MatVec,
    /// Few output channels and long kernels on one axis: each position's products are added where they overlap.
    Overlap,
    /// Few output channels: one matrix product for all taps, gathered from a ring of rows.
    Col2im,
    /// Each phase as a small dense convolution, in products of matrices.
    Matrix,
    /// Each phase as a small dense convolution, in tiles that take fewer products.
    Winograd,
    /// Each phase as a small dense convolution, lanes are output channels.
    Channels,
    /// Each phase as a small dense convolution, lanes are positions.
    Phases,
    /// The definition, one output element at a time.
    Reference,
}

impl Strategy {
    /// Every strategy, best first.
    pub const ALL: &[Strategy] = &[
        Strategy::Depthwise,
        Strategy::Cells,
        Strategy::MatVec,
        Strategy::Overlap,
        Strategy::Col2im,
        Strategy::Matrix,
        Strategy::Winograd,
        Strategy::Channels,
        Strategy::Phases,
        Strategy::Reference,
    ];

    /// Its name, as used by the knob `TRACT_DECONV_STRATEGY` and in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Depthwise => "depthwise",
            Strategy::Cells => "cells",
            Strategy::MatVec => "matvec",
            Strategy::Overlap => "overlap",
            Strategy::Col2im => "col2im",
            Strategy::Matrix => "matrix",
            Strategy::Winograd => "winograd",
            Strategy::Channels => "channels",
            Strategy::Phases => "phases",
            Strategy::Reference => "reference",
        }
    }

    /// Whether this CPU has what it needs: tile registers, for products of matrices.
    pub fn is_available(self) -> bool {
        self != Strategy::Matrix || Isa::Amx.is_available()
    }

    /// The strategy of a name.
    ///
    /// # Errors
    /// An unknown name; the message lists the known ones.
    pub fn from_name(name: &str) -> TractResult<Strategy> {
        Strategy::ALL.iter().copied().find(|s| s.name() == name).with_context(|| {
            let known: Vec<&str> = Strategy::ALL.iter().map(|s| s.name()).collect();
            format!("strategy: strategy={name}, the known ones are {}", known.join(", "))
        })
    }
}

impl Strategy {
    fn propose(
        self,
        problem: &Problem,
        datum_type: DatumType,
        isa: Isa,
        layout: Option<&FilterLayout>,
        machine: &Machine,
    ) -> Result<Decision, String> {
        match self {
            Strategy::Depthwise => {
                DepthwisePlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Depthwise)
            }
            Strategy::Cells => CellsPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Cells),
            Strategy::MatVec => MatVecPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::MatVec),
            Strategy::Overlap => OverlapPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Overlap),
            Strategy::Col2im => Col2imPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Col2im),
            Strategy::Matrix => MatrixPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Matrix),
            Strategy::Winograd => {
                WinogradPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Winograd)
            }
            Strategy::Channels => {
                ChannelsPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Channels)
            }
            Strategy::Phases => PhasesPlan::propose(problem, datum_type, isa, layout, machine).map(Decision::Phases),
            Strategy::Reference => match layout {
                None | Some(FilterLayout::Plain) => Ok(Decision::Reference),
                Some(other) => Err(format!("the filter is packed for {other:?}")),
            },
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A strategy with everything it decided.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// See [`Strategy::Depthwise`].
    Depthwise(DepthwisePlan),
    /// See [`Strategy::Cells`].
    Cells(CellsPlan),
    /// See [`Strategy::MatVec`].
    MatVec(MatVecPlan),
    /// See [`Strategy::Overlap`].
    Overlap(OverlapPlan),
    /// See [`Strategy::Col2im`].
    Col2im(Col2imPlan),
    /// See [`Strategy::Matrix`].
    Matrix(MatrixPlan),
    /// See [`Strategy::Channels`].
    Winograd(WinogradPlan),
    /// See [`Strategy::Channels`].
    Channels(ChannelsPlan),
    /// See [`Strategy::Phases`].
    Phases(PhasesPlan),
    /// See [`Strategy::Reference`].
    Reference,
}

/// The limit where [`PlanOptions::memory_limit`] is open: 16 GiB.
pub const DEFAULT_MEMORY_LIMIT: usize = 16 << 30;

impl Decision {
    /// See [`Plan::cost`].
    fn cost(&self) -> Option<u64> {
        match self {
            Decision::Col2im(plan) => Some(plan.cost),
            Decision::Matrix(plan) => Some(plan.cost),
            Decision::Winograd(plan) => Some(plan.cost),
            Decision::Channels(plan) => Some(plan.cost),
            Decision::Phases(plan) => Some(plan.cost),
            Decision::Depthwise(plan) => Some(plan.cost),
            Decision::Cells(plan) => Some(plan.cost),
            Decision::MatVec(plan) => Some(plan.cost),
            Decision::Overlap(plan) => Some(plan.cost),
            Decision::Reference => None,
        }
    }

    /// Bytes that a run takes on one thread, besides operands and output.
    fn working_bytes(&self, problem: &Problem, datum_type: DatumType) -> usize {
        let element = compute_bytes(datum_type);
        match self {
            Decision::Depthwise(plan) => plan.working_bytes(problem, element),
            Decision::Cells(plan) => plan.working_bytes(problem, element),
            Decision::MatVec(plan) => plan.working_bytes(problem, element),
            Decision::Overlap(plan) => plan.working_bytes(problem, element),
            Decision::Col2im(plan) => plan.working_bytes(problem, element),
            Decision::Matrix(plan) => plan.working_bytes(problem, element),
            Decision::Winograd(plan) => plan.working_bytes(problem, element),
            Decision::Channels(plan) => plan.working_bytes(problem, element),
            Decision::Phases(plan) => plan.working_bytes(problem, element),
            Decision::Reference => 0,
        }
    }
}

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
    /// Only strategies that read a filter already packed like this.
    pub layout: Option<FilterLayout>,
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

    /// The limit that is given, or the default one.
    pub(crate) fn limit(&self) -> MemoryLimit {
        MemoryLimit(self.memory_limit.unwrap_or(DEFAULT_MEMORY_LIMIT))
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
        let machine = options.machine.as_ref().unwrap_or_else(|| Machine::current());
        let isa = match options.machine {
            None => Isa::of_plan(options.isa)?,
            Some(_) => options.isa.unwrap_or_else(|| machine.isa()),
        };
        ensure!(isa.is_compiled(), "isa: isa={isa}, a build for this architecture has no kernels for it");
        if let Some(layout) = &options.layout {
            layout.check(spec)?;
        }
        let empty = problem.input_shape().contains(&0) || problem.output_shape().contains(&0);
        let mut declined = vec![];
        let mut best: Option<(Strategy, Decision)> = None;
        for strategy in Strategy::ALL.iter().copied() {
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
            let proposed = strategy.propose(&folded, computed_as, isa, options.layout.as_ref(), machine);
            let affordable = proposed.and_then(|decision| {
                let bytes = decision.working_bytes(&folded, computed_as).saturating_add(converted);
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
            return Ok(Plan { spec, problem, folded, datum_type, decision, isa, declined, pool });
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

    /// The strategies that were considered before or beside the chosen one, and why each declined.
    pub fn declined(&self) -> &[(Strategy, String)] {
        &self.declined
    }

    /// Bytes that a run takes on one thread besides operands and output. Integers that are converted count, with their
    /// output.
    pub fn working_bytes(&self) -> usize {
        let computed_as = integers::computed_as(self.datum_type);
        let converted = converted_bytes(&self.problem, self.datum_type);
        self.decision.working_bytes(&self.folded, computed_as).saturating_add(converted)
    }

    /// The chosen strategy.
    pub fn strategy(&self) -> Strategy {
        match self.decision {
            Decision::Depthwise(_) => Strategy::Depthwise,
            Decision::Cells(_) => Strategy::Cells,
            Decision::MatVec(_) => Strategy::MatVec,
            Decision::Overlap(_) => Strategy::Overlap,
            Decision::Col2im(_) => Strategy::Col2im,
            Decision::Matrix(_) => Strategy::Matrix,
            Decision::Winograd(_) => Strategy::Winograd,
            Decision::Channels(_) => Strategy::Channels,
            Decision::Phases(_) => Strategy::Phases,
            Decision::Reference => Strategy::Reference,
        }
    }

    /// What runs, then a line for each strategy that was considered and why it declined.
    pub fn explain(&self) -> String {
        let declined = self.declined.iter().map(|(strategy, reason)| format!("\n  {strategy}: {reason}"));
        std::iter::once(self.to_string()).chain(declined).collect()
    }

    /// The layout that the filter must be packed in.
    pub fn filter_layout(&self) -> FilterLayout {
        match &self.decision {
            Decision::Depthwise(_) => DepthwisePlan::layout(),
            Decision::Cells(plan) => plan.filter_layout(),
            Decision::MatVec(plan) => plan.filter_layout(),
            Decision::Overlap(plan) => plan.filter_layout(),
            Decision::Col2im(plan) => plan.filter_layout(),
            Decision::Matrix(plan) => plan.filter_layout(),
            Decision::Winograd(plan) => plan.filter_layout(),
            Decision::Channels(plan) => plan.filter_layout(),
            Decision::Phases(plan) => plan.filter_layout(),
            Decision::Reference => FilterLayout::Plain,
        }
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
        // matvec is for single positions only, which the spatial axes are only known to be where they are all one
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
            Ok(plan) if single || plan.strategy() != Strategy::MatVec => plan.filter_layout(),
            _ => FilterLayout::Plain,
        }
    }

    /// Runs the plan: `input` in the problem's shape, `filter` packed from the plan's spec in its layout, `bias` of one
    /// value per output channel.
    ///
    /// # Errors
    /// Operands that don't fit the plan, or no memory for the output.
    pub fn run(&self, input: &Tensor, filter: &PackedFilter, bias: Option<&Tensor>) -> TractResult<Tensor> {
        self.run_with_tail(input, filter, bias, &[], &[])
    }

    /// Refuses operands that the plan was not made for.
    fn check_operands(&self, input: &Tensor, filter: &PackedFilter, bias: Option<&Tensor>) -> TractResult<()> {
        let dt = self.datum_type;
        let expected = self.problem.input_shape();
        ensure!(*input.shape() == *expected, "input: shape={:?}, the plan is for {expected:?}", input.shape());
        for (what, found) in [("input", Some(input)), ("bias", bias)] {
            let Some(found) = found.map(|tensor| tensor.datum_type()) else { continue };
            ensure!(found == dt, "{what}: datum_type={found:?}, the plan is for {dt:?}");
        }
        if let Some(bias) = bias {
            self.spec.check_bias(bias)?;
        }
        filter.check(&self.spec, &self.filter_layout(), dt)
    }

    /// As [`Plan::run`], with steps applied to each result in order; `residuals` are what [`Step::Add`] adds, one each.
    /// Integers take none.
    ///
    /// # Errors
    /// As [`Plan::run`]; a step on integers, or operands that don't fit it.
    pub fn run_with_tail(
        &self,
        input: &Tensor,
        filter: &PackedFilter,
        bias: Option<&Tensor>,
        tail: &[Step],
        residuals: &[&Tensor],
    ) -> TractResult<Tensor> {
        ensure!(self.isa.is_available(), "plan: isa={}, this cpu does not have it", self.isa);
        ensure!(
            tail.is_empty() || self.datum_type.is_float(),
            "activation: datum_type={:?}, only floats take one",
            self.datum_type
        );
        self.check_operands(input, filter, bias)?;
        let computed_as = integers::computed_as(self.datum_type);
        let input = integers::converted("input", input, computed_as)?;
        let bias = bias.map(|bias| integers::converted("bias", bias, computed_as)).transpose()?;
        let output: Tensor = dispatch_element!(computed_as, E => {
            let shape = self.problem.output_shape();
            let steps = epilogue::bind::<E>(tail, residuals, self.problem.group * self.problem.group_out, &shape)?;
            #[expect(unsafe_code, reason = "an output is written once, by a strategy, not cleared before")]
            // SAFETY: the type is a number's, as there is an `Element`. Each strategy writes each element, or fails, and nobody gets the tensor: those that cut the
            // output into tasks count what they hand out (`run_tasks`), and a task writes all that it has; the others go over all cells of the output's shape.
            let mut output = unsafe { memory::output_tensor("output size", computed_as, &shape)? };
            let operands = Operands::<E> {
                input: input.try_as_plain_ram()?.as_slice::<E>()?,
                bias: bias.as_ref().map(|b| b.try_as_plain_ram()?.as_slice::<E>()).transpose()?,
                tail: Tail { steps: &steps, kernels: <<E as Element>::Compute as Dispatch>::kernels(self.isa) },
            };
            let mut view = output.try_as_plain_ram_mut()?;
            let target = view.as_slice_mut::<E>()?;
            match &self.decision {
                _ if target.is_empty() => {}
                Decision::Depthwise(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Cells(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::MatVec(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Overlap(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Col2im(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Matrix(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Winograd(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Channels(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Phases(plan) => plan.run::<E>(&self.folded, self.isa, filter, &operands, target)?,
                Decision::Reference => reference::run::<E>(&self.spec, &self.problem, filter, &operands, target)?,
            }
            output
        });
        integers::convert("output size", output, self.datum_type)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.decision {
            Decision::Depthwise(p) => {
                let runs = match p.way {
                    Way::Planes => "all rows of the input at once, in place",
                    Way::WindowsInPlace => "a window moving down the rows of the input in place",
                    Way::Windows => "a window moving down the rows",
                    Way::Runs => "blocks of rows at a time",
                    Way::Rows => "rows at a time",
                };
                write!(f, "depthwise on {} {:?}, {runs}", self.isa, self.datum_type)
            }
            Decision::Cells(p) => {
                let (rows, depth) = (p.block_rows, p.depths.1);
                write!(f, "cells on {} {:?}, {rows} rows of {depth} channels at a time", self.isa, self.datum_type)
            }
            Decision::MatVec(p) => {
                write!(f, "matvec on {} {:?}, {} columns at a time", self.isa, self.datum_type, p.width)
            }
            Decision::Overlap(p) => {
                write!(f, "overlap on {} {:?}, {} grid positions at a time", self.isa, self.datum_type, p.block)
            }
            Decision::Col2im(p) => {
                let rows = p.chunk_rows;
                write!(f, "col2im {}x{} on {} {:?}, {rows} input rows at a time", p.mr, p.nv, self.isa, self.datum_type)
            }
            Decision::Matrix(p) => {
                let runs = if p.by_row { "rows" } else { "blocks" };
                let (rows, columns) = (p.block_rows, p.block_columns);
                write!(
                    f,
                    "matrix on {} {:?}, each number in three parts of 8 bits, by {runs}, blocks of {rows}x{columns} positions",
                    self.isa, self.datum_type
                )
            }
            Decision::Winograd(p) => {
                let (rows, columns) = p.window;
                write!(
                    f,
                    "winograd {}x{} on {} {:?}, strips of {rows}x{columns} positions, blocks of {}x{} positions",
                    p.tiles, p.width, self.isa, self.datum_type, p.block_rows, p.block_columns
                )
            }
            Decision::Channels(p) => {
                let source = match (p.direct, p.transposed) {
                    (true, _) => "in place",
                    (_, true) => "in a transposed copy",
                    _ => "in padded rows",
                };
                let runs = if p.by_row { "rows" } else { "blocks" };
                write!(
                    f,
                    "channels {}x{} on {} {:?}, passes of {}x{} (input channels x taps), input read {source} by {runs}, blocks of {}x{} positions",
                    p.positions, p.width, self.isa, self.datum_type, p.chunk, p.taps, p.block_rows, p.block_columns
                )
            }
            Decision::Phases(p) => {
                write!(f, "phases {}x{} on {} {:?}", p.mr, p.nv, self.isa, self.datum_type)?;
                let source = match (p.direct, p.apart) {
                    (true, _) if p.ahead => "in place, fetched ahead",
                    (true, _) => "in place",
                    (_, true) => "in a copy per column shift",
                    _ => "in padded rows",
                };
                let store = if p.rows { "from registers" } else { "through a buffer" };
                write!(
                    f,
                    ", rows stored {store}, input read {source}, blocks of {}x{} positions",
                    p.block_rows, p.block_columns
                )?;
                if p.bundle > 1 {
                    write!(f, " of {} groups", p.bundle)?;
                }
                Ok(())
            }
            Decision::Reference => write!(f, "reference {:?}", self.datum_type),
        }
    }
}
