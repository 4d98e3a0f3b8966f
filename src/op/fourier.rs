//! A layer whose filter is a windowed Fourier basis, run as a fast Fourier transform.

use super::fourier_basis::FourierBasis;
use super::fourier_frames::{LARGEST_FACTOR, Transform, has_small_factors};
use super::shared;
use super::{BetweenLayers, Bias, Dialect, GroupedDeconv, beside};
use crate::estimate::machine::Machine;
use crate::kernel::KernelSizes;
use crate::memory::{self, PoolUser, collected};
use crate::output::epilogue::Step;
use crate::plan::{Plan, PlanOptions};
use crate::spec::{DeconvSpec, Direction, Padding};
use tract_core::internal::*;

/// The fewest taps of a layer that is considered. Below, a sum of products is as fast.
const FEWEST_TAPS: usize = 64;

/// The frames that are assumed where sizes are not known.
const TYPICAL_FRAMES: usize = 64;

/// The most that a transform may take by estimate, relative to the convolution.
const WORTH_FROM: f64 = 0.8;

/// A convolution of f32 whose filter is a windowed Fourier basis: a short-time Fourier transform,
/// or its inverse.
///
/// It has one input, the data. Inputs, output and shapes are those of the [`GroupedDeconv`] that it
/// replaces. A frame of the data that holds NaN or infinity gives a frame of NaN; where sums of
/// products would give infinities, some of these are NaN.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptFourier {
    spec: DeconvSpec,
    dialect: Dialect,
    bias: Option<Arc<Tensor>>,
    options: PlanOptions,
    transform: Arc<Transform>,
    pool: PoolUser,
}

/// The spatial axis of a layer with several taps. None if there is none or more than one, or if
/// another axis changes its size.
fn axis_of_taps(spec: &DeconvSpec) -> Option<usize> {
    let is_plain = |ax: usize| spec.kernel[ax] == 1 && spec.strides[ax] == 1 && spec.output_padding[ax] == 0;
    let mut long = (0..spec.rank()).filter(|ax| !is_plain(*ax));
    let axis = long.next().filter(|_| long.next().is_none())?;
    let is_padded = |ax: usize| match &spec.padding {
        Padding::Explicit { begin, end } => begin[ax] != 0 || end[ax] != 0,
        // A single tap is not padded.
        Padding::SameForward { .. } => false,
        Padding::OutputShape { .. } => true,
    };
    (0..spec.rank()).all(|ax| ax == axis || !is_padded(ax)).then_some(axis)
}

/// Returns the weights with one row per channel.
fn rows_of(spec: &DeconvSpec, filter: &Tensor, axis: usize) -> TractResult<Vec<f32>> {
    let strides = spec.filter_strides();
    let (channels, stride) = match spec.direction {
        Direction::Forward => (spec.out_channels, strides.output),
        Direction::Transposed => (spec.in_channels, strides.input),
    };
    let taps = spec.kernel[axis];
    let ram = filter.try_as_plain_ram()?;
    let weights = ram.as_slice::<f32>()?;
    let at = |i: usize| i / taps * stride + i % taps * strides.kernel[axis];
    collected("filter", (0..channels * taps).map(|i| weights[at(i)]))
}

/// Returns the data's shape, with sizes of [`TYPICAL_FRAMES`] frames where they are not known.
fn typical_shape(spec: &DeconvSpec, input: &TypedFact, axis: usize) -> TVec<usize> {
    let (c, x) = (spec.data_format.c_axis(input.rank()), spec.data_format.x_axis());
    let frames = match spec.direction {
        Direction::Forward => spec.kernel[axis].saturating_add((TYPICAL_FRAMES - 1).saturating_mul(spec.strides[axis])),
        Direction::Transposed => TYPICAL_FRAMES,
    };
    let size = |(at, dim): (usize, &TDim)| match dim.to_usize() {
        Ok(size) => size,
        Err(_) if at == c => spec.in_channels,
        Err(_) if at == x + axis => frames,
        Err(_) => 1,
    };
    input.shape.iter().enumerate().map(size).collect()
}

impl OptFourier {
    /// Returns the op that replaces a layer, or the reason why the layer stays a convolution. None
    /// if the layer is of another kind, for which there is no reason to give.
    ///
    /// `filter`, `bias` and `epilogue` have what was folded into the layer.
    pub(super) fn of(
        layer: &GroupedDeconv,
        data: &TypedFact,
        filter: &Tensor,
        bias: &Bias,
        epilogue: &[Step],
        options: &PlanOptions,
    ) -> TractResult<Option<Result<OptFourier, String>>> {
        if !cfg!(feature = "fourier") {
            return Ok(None);
        }
        let spec = &layer.spec;
        let (signals, channels) = match spec.direction {
            Direction::Forward => (spec.in_channels, spec.out_channels),
            Direction::Transposed => (spec.out_channels, spec.in_channels),
        };
        let Some(axis) = axis_of_taps(spec) else { return Ok(None) };
        let taps = spec.kernel[axis];
        if spec.group != 1 || signals != 1 || taps < FEWEST_TAPS || channels < taps / 2 {
            return Ok(None);
        }
        Ok(Some(OptFourier::checked(layer, data, filter, bias, epilogue, options, axis)?))
    }

    fn checked(
        layer: &GroupedDeconv,
        data: &TypedFact,
        filter: &Tensor,
        bias: &Bias,
        epilogue: &[Step],
        options: &PlanOptions,
        axis: usize,
    ) -> TractResult<Result<OptFourier, String>> {
        let spec = &layer.spec;
        let refused = |reason: &str| Ok(Err(reason.to_string()));
        if data.datum_type != DatumType::F32 {
            return refused("its numbers are not f32");
        }
        if options.strategy.is_some() || options.isa.is_some() || options.layout.is_some() {
            return refused("the strategy, the instruction set or the filter's layout is forced");
        }
        if !epilogue.is_empty() {
            return refused("other operators are fused into the layer");
        }
        if spec.dilations[axis] != 1 {
            return refused("its taps are dilated");
        }
        if spec.has_output_shape_input() {
            return refused("its output shape is known at run time only");
        }
        let x = spec.data_format.x_axis();
        if (0..spec.rank()).any(|ax| ax != axis && !data.shape[x + ax].is_one()) {
            return refused("it has another spatial axis");
        }
        let bias = match bias {
            Bias::None => None,
            Bias::Const(bias) => Some(Arc::clone(bias)),
            Bias::Input => return refused("its bias is computed at run time"),
        };
        let basis = match FourierBasis::of(&rows_of(spec, filter, axis)?, spec.kernel[axis]) {
            Ok(basis) => basis,
            Err(reason) => return Ok(Err(reason)),
        };
        if !has_small_factors(basis.points) {
            return Ok(Err(format!("its {} points have a prime factor above {LARGEST_FACTOR}", basis.points)));
        }
        let transform = Transform::new(basis, spec.direction)?;
        if options.limit().check_working(transform.working_bytes()).is_err() {
            return refused("its working memory is more than the limit");
        }
        let shape = typical_shape(spec, data, axis);
        // Empty data and output shapes over symbols have no plan to compare with.
        let plan = Plan::new(spec, &shape, None, data.datum_type, options).ok().filter(|_| !shape.contains(&0));
        if let Some(plan) = plan {
            let problem = plan.problem();
            let frames = match spec.direction {
                Direction::Forward => problem.axes[axis].output,
                Direction::Transposed => problem.axes[axis].input,
            };
            let lanes = KernelSizes::new(data.datum_type, None, plan.isa()).lanes;
            let machine = options.machine.unwrap_or(*Machine::current());
            let time = transform.nanoseconds(frames.saturating_mul(problem.batch), lanes);
            if let Some(cost) = plan.cost()
                && time > WORTH_FROM * machine.nanoseconds(cost)
            {
                return Ok(Err(format!("a transform of {} points is not faster", transform.points())));
            }
        }
        Ok(Ok(OptFourier {
            spec: spec.clone(),
            dialect: layer.dialect,
            bias,
            options: options.clone(),
            transform: Arc::new(transform),
            pool: PoolUser::new(),
        }))
    }

    /// Returns the convolution that is computed.
    pub fn spec(&self) -> &DeconvSpec {
        &self.spec
    }

    /// Returns the source format of the node.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the choices that were left to the planner. Only the memory limit applies.
    pub fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// Returns the points of the transform.
    pub fn points(&self) -> usize {
        self.transform.points()
    }
}

impl Op for OptFourier {
    fn name(&self) -> StaticName {
        "OptFourier".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        let line = format!("a Fourier transform of {} points per frame", self.points());
        Ok(vec![shared::info(&self.spec, self.dialect), line])
    }

    op_as_typed_op!();
}

impl EvalOp for OptFourier {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        let dt = input.datum_type();
        ensure!(dt == DatumType::F32, "input: datum_type={dt:?}, the filter's is F32");
        let requested = shared::requested(&self.spec, ctx.symbols, None)?;
        let problem = self.spec.problem(input.shape(), requested.as_deref())?;
        let shape = problem.output_shape();
        self.options.limit().check_output(&shape, dt)?;
        if input.len() == 0 {
            let output = shared::bias_only(&problem, dt, self.bias.as_deref(), &[], &[])?;
            return Ok(tvec!(output.into_tvalue()));
        }
        self.options.limit().check_working(self.transform.working_bytes())?;
        let axis = axis_of_taps(&self.spec).context("kernel_shape: several taps are needed")?;
        let others = problem.axes.iter().enumerate().all(|(ax, of)| ax == axis || (of.input, of.output) == (1, 1));
        ensure!(others, "input: shape={:?}, only one spatial axis may have several positions", input.shape());
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `output_tensor` returns uninitialised elements. `Transform::run` writes all of
        // them, or fails, and then the tensor is dropped without a read.
        let mut output = unsafe { memory::output_tensor("output size", dt, &shape)? };
        let bias = self.bias.as_ref().map(|bias| bias.try_as_plain_ram()).transpose()?;
        self.transform.run(
            &problem.axes[axis],
            self.spec.data_format,
            bias.map(|bias| bias.as_slice::<f32>()).transpose()?,
            input.try_as_plain_ram()?.as_slice::<f32>()?,
            output.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?,
        )?;
        Ok(tvec!(output.into_tvalue()))
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        if shared::has_symbolic_output_shape(&self.spec) {
            return Ok(None);
        }
        self.eval(&EvalContext::out_of_plan(), inputs).map(Some)
    }
}

impl TypedOp for OptFourier {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        ensure!(inputs.len() == 1, "inputs: count={}, the data is needed", inputs.len());
        let dt = inputs[0].datum_type;
        ensure!(dt == DatumType::F32, "input: datum_type={dt:?}, the filter's is F32");
        shared::output_fact(&self.spec, &self.options, inputs[0])
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        shared::axes_mapping(&self.spec, 1, inputs, outputs)
    }

    fn fuse(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if let Some(patch) = beside::normalised(model, node, &self.options)? {
            return Ok(Some(patch));
        }
        let before = BetweenLayers::before(model, &node.inputs[..1], &self.spec, &self.options)?;
        if before.is_some() {
            return Ok(before);
        }
        beside::replaced(model, node, &self.options)
    }

    fn set_symbols(
        &self,
        _source: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs = node.inputs.iter().map(|i| mapping[i]).collect::<TVec<_>>();
        let op = OptFourier { spec: shared::substitute(&self.spec, subs)?, ..self.clone() };
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_documented;

    #[test]
    fn the_limits_are_documented() {
        assert_documented("docs/fusion.md", &format!("at least {FEWEST_TAPS} taps"));
        assert_documented("docs/fusion.md", &format!("no prime factor above {LARGEST_FACTOR}"));
    }
}
