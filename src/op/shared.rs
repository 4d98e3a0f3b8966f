//! The code that both ops share: execution, facts, axes, symbols and cost.

use super::Dialect;
use crate::cache::PlanCache;
use crate::compute::Compute;
use crate::element::{Element, dispatch_element};
use crate::integers;
use crate::kernel::{Dispatch, narrow, widen};
use crate::layer::joint_shape;
use crate::layout::filter::PackedFilter;
use crate::memory;
use crate::output::epilogue;
use crate::output::epilogue::{Epilogue, Step};
use crate::plan::{Plan, PlanOptions, converted_bytes};
use crate::simd::isa::Isa;
use crate::spec::list;
use crate::spec::{DataFormat, DeconvSpec, Direction, OutputShape, Padding, Problem};
use tract_core::internal::*;

/// Converts a tensor of f16 to f32, or one of f32 to f16.
///
/// # Errors
/// The types are others, or there is no memory.
pub(super) fn converted(what: &str, from: &Tensor, to: DatumType) -> TractResult<Tensor> {
    ensure!(matches!(to, DatumType::F16 | DatumType::F32), "{what}: datum_type={to:?}, f16 and f32 are converted");
    #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
    // SAFETY: `output_tensor` returns uninitialised elements of a number type. `widen` and `narrow` write all of
    // them. If `from` has another type, the tensor is dropped without a read.
    let mut tensor = unsafe { memory::output_tensor(what, to, from.shape())? };
    let (ram, mut view) = (from.try_as_plain_ram()?, tensor.try_as_plain_ram_mut()?);
    match to {
        DatumType::F32 => widen(ram.as_slice::<f16>()?, view.as_slice_mut::<f32>()?),
        _ => narrow(ram.as_slice::<f32>()?, view.as_slice_mut::<f16>()?),
    }
    Ok(tensor)
}

/// The arguments of one run of either op.
pub(super) struct Run<'a> {
    pub spec: &'a DeconvSpec,
    pub plans: &'a PlanCache,
    pub options: &'a PlanOptions,
    /// The data. Its channels may be in several tensors, one after the other.
    pub inputs: TVec<&'a Tensor>,
    pub bias: Option<&'a Tensor>,
    pub output_shape: Option<&'a Tensor>,
    pub epilogue: &'a [Step],
    /// The tensors that the epilogue adds.
    pub residuals: TVec<&'a Tensor>,
}

impl Run<'_> {
    /// Runs the op. `filter` returns the filter packed for a plan.
    pub fn eval(
        self,
        symbols: &SymbolValues,
        filter: impl FnOnce(&Plan) -> TractResult<Arc<PackedFilter>>,
    ) -> TractResult<TVec<TValue>> {
        let requested = requested(self.spec, symbols, self.output_shape)?;
        if let Some(bias) = self.bias {
            // The facts may leave the length of the bias open.
            self.spec.check_bias(bias)?;
        }
        let (shape, dt) = (joint_shape(self.spec, &self.inputs)?, self.inputs[0].datum_type());
        // Output sizes are positive if input sizes are, so the output is empty in these cases only.
        if shape.contains(&0) || self.spec.out_channels == 0 {
            let problem = self.spec.problem(&shape, requested.as_deref())?;
            self.options.limit().check_output(&problem.output_shape(), dt)?;
            self.options.limit().check_working(converted_bytes(&problem, dt, None))?;
            let output = bias_only(&problem, dt, self.bias, self.epilogue, &self.residuals)?;
            return Ok(tvec!(output.into_tvalue()));
        }
        let layer = self.plans.get(self.spec, &shape, requested.as_deref(), dt, self.options)?;
        let filter = filter(layer.plan())?;
        let output = layer.run_on_parts(&self.inputs, &filter, self.bias, self.epilogue, &self.residuals)?;
        Ok(tvec!(output.into_tvalue()))
    }
}

/// Returns the output if the input or the output is empty.
pub(super) fn bias_only(
    problem: &Problem,
    datum_type: DatumType,
    bias: Option<&Tensor>,
    epilogue: &[Step],
    residuals: &[&Tensor],
) -> TractResult<Tensor> {
    let shape = problem.output_shape();
    let inner: usize = match problem.data_format {
        DataFormat::Ncx => shape[2..].iter().product(),
        DataFormat::Nxc => 1,
    };
    let computed_as = integers::computed_as(datum_type);
    let bias = bias.map(|bias| integers::converted("bias", bias, computed_as)).transpose()?;
    let output: Tensor = dispatch_element!(computed_as, E => {
        let mut output = memory::zero_tensor::<E>("output size", &shape)?;
        let mut sums = vec![<<E as Element>::Compute as Compute>::ZERO; problem.group * problem.group_out];
        if let Some(bias) = &bias {
            let bias = bias.try_as_plain_ram()?;
            sums.iter_mut().zip(bias.as_slice::<E>()?).for_each(|(sum, bias)| *sum = bias.widen());
        }
        let steps = epilogue::bind::<E>(epilogue, residuals, sums.len(), &shape)?;
        let kernels = <<E as Element>::Compute as Dispatch>::kernels(Isa::best());
        let (uniform, varying) = Epilogue { steps: &steps, kernels }.split();
        uniform.apply(&mut sums);
        let mut view = output.try_as_plain_ram_mut()?;
        let elements = view.as_slice_mut::<E>()?;
        for (run, elements) in elements.chunks_mut(inner.max(1)).enumerate() {
            let channel = run % sums.len();
            if varying.is_empty() {
                elements.fill(E::narrow(sums[channel]));
            } else {
                for (at, element) in elements.iter_mut().enumerate() {
                    let mut value = [sums[channel]];
                    varying.of(channel).apply(run * inner + at, 1, &mut value);
                    *element = E::narrow(value[0]);
                }
            }
        }
        output
    });
    integers::convert("output size", output, datum_type)
}

/// Returns the output's spatial size if neither the spec nor the input's shape determines it.
pub(super) fn requested(
    spec: &DeconvSpec,
    symbols: &SymbolValues,
    tensor: Option<&Tensor>,
) -> TractResult<Option<TVec<i64>>> {
    let Padding::OutputShape { shape, .. } = &spec.padding else { return Ok(None) };
    match (shape, tensor) {
        (OutputShape::Dims(dims), _) if dims.iter().all(|d| d.as_i64().is_some()) => Ok(None),
        (OutputShape::Dims(dims), _) => {
            dims.iter().map(|dim| dim.eval_to_i64(symbols)).collect::<TractResult<_>>().map(Some)
        }
        (OutputShape::Input(_), None) => bail!("output_shape: the input that holds it is missing"),
        (OutputShape::Input(dims), Some(tensor)) => {
            let values = integers(tensor)?;
            let values = values
                .iter()
                .map(|dim| dim.eval_to_i64(symbols))
                .collect::<TractResult<TVec<i64>>>()
                .context("output_shape")?;
            ensure!(
                values.len() == dims.len(),
                "output_shape: output_shape={values:?}, {} values are needed, one per spatial axis",
                dims.len()
            );
            for (dim, value) in dims.iter().zip(&values) {
                ensure!(
                    dim.as_i64().is_none_or(|dim| dim == *value),
                    "output_shape: output_shape={values:?}, the model declares [{}]",
                    list(dims, ", ")
                );
            }
            Ok(Some(values))
        }
    }
}

/// Returns the values of an integer vector, of any integer type or over symbols.
///
/// # Errors
/// Fails for another element type, or for a tensor that is not a vector.
pub(crate) fn integers(tensor: &Tensor) -> TractResult<TVec<TDim>> {
    let datum_type = tensor.datum_type();
    ensure!(
        datum_type.is_integer() || datum_type == TDim::datum_type(),
        "output_shape: datum_type={datum_type:?}, an integer type is needed"
    );
    ensure!(tensor.rank() == 1, "output_shape: shape={:?}, a vector is needed", tensor.shape());
    if datum_type == TDim::datum_type() {
        Ok(tensor.try_as_plain_ram()?.as_slice::<TDim>()?.into())
    } else {
        let values = tensor.cast_to::<i64>()?;
        Ok(values.try_as_plain_ram()?.as_slice::<i64>()?.iter().map(|v| v.to_dim()).collect())
    }
}

pub(super) fn tensor(inputs: &[TValue], slot: Option<usize>) -> TractResult<Option<&Tensor>> {
    slot.map(|slot| inputs.get(slot).map(|value| &**value).context("inputs: one is missing")).transpose()
}

pub(super) fn has_symbolic_output_shape(spec: &DeconvSpec) -> bool {
    matches!(&spec.padding, Padding::OutputShape { shape: OutputShape::Dims(dims), .. }
        if dims.iter().any(|d| d.as_i64().is_none()))
}

/// Returns the data's shape if it suffices to make a plan, and if the data is not empty.
pub(super) fn known_shape<'a>(spec: &DeconvSpec, input: &'a TypedFact) -> Option<&'a [usize]> {
    input
        .shape
        .as_concrete()
        .filter(|shape| !shape.contains(&0) && !has_symbolic_output_shape(spec) && !spec.has_output_shape_input())
}

pub(super) fn substitute(spec: &DeconvSpec, subs: &HashMap<Symbol, TDim>) -> TractResult<DeconvSpec> {
    let mut spec = spec.clone();
    if let Padding::OutputShape { shape: OutputShape::Dims(dims) | OutputShape::Input(dims), .. } = &mut spec.padding {
        for dim in dims {
            *dim = dim.substitute_all(subs)?;
        }
    }
    spec.validate()?;
    Ok(spec)
}

pub(super) fn output_fact(spec: &DeconvSpec, options: &PlanOptions, input: &TypedFact) -> TractResult<TVec<TypedFact>> {
    let fact = input.datum_type.fact(spec.output_shape(&input.shape)?);
    if let Some(shape) = fact.shape.as_concrete() {
        options.limit().check_output(shape, fact.datum_type)?;
    }
    Ok(tvec!(fact))
}

pub(super) fn check_output_shape_fact(spec: &DeconvSpec, fact: &TypedFact) -> TractResult<()> {
    let datum_type = fact.datum_type;
    ensure!(
        datum_type.is_integer() || datum_type == TDim::datum_type(),
        "output_shape: datum_type={datum_type:?}, an integer type is needed"
    );
    ensure!(
        fact.rank() == 1 && fact.shape[0].to_usize().map_or(true, |len| len == spec.rank()),
        "output_shape: shape={:?}, {} values are needed, one per spatial axis",
        fact.shape,
        spec.rank()
    );
    Ok(())
}

pub(super) fn check_bias_fact(spec: &DeconvSpec, input: &TypedFact, fact: &TypedFact) -> TractResult<()> {
    ensure!(
        fact.datum_type == input.datum_type,
        "bias: datum_type={:?}, the input's is {:?}",
        fact.datum_type,
        input.datum_type
    );
    ensure!(
        fact.rank() == 1 && fact.shape[0].to_usize().map_or(true, |len| len == spec.out_channels),
        "bias: shape={:?}, one value per output channel, {} of them, is needed",
        fact.shape,
        spec.out_channels
    );
    Ok(())
}

/// Returns the fact of the tensor that would hold the channels of all tensors.
pub(super) fn joint_fact(spec: &DeconvSpec, parts: &[&TypedFact]) -> TractResult<TypedFact> {
    let first = parts.first().context("inputs: count=0, the data is needed")?;
    let mut joint = first.without_value();
    let c_axis = spec.data_format.c_axis(spec.rank() + 2);
    for part in &parts[1..] {
        let (found, shape) = (&part.shape, &joint.shape);
        let fits = |(axis, (a, b)): (usize, (&TDim, &TDim))| axis == c_axis || a.compatible_with(b);
        ensure!(
            part.datum_type == joint.datum_type
                && found.rank() == shape.rank()
                && c_axis < shape.rank()
                && found.iter().zip(shape.iter()).enumerate().all(fits),
            "input: shape={found:?} of {:?}, that of the channels before is {shape:?} of {:?}",
            part.datum_type,
            joint.datum_type
        );
        let channels = joint.shape[c_axis].clone() + &found[c_axis];
        joint.shape.set(c_axis, channels);
    }
    Ok(joint)
}

/// Relates the axes of `parts` tensors of data, the first inputs, to those of the output.
pub(super) fn axes_mapping(
    spec: &DeconvSpec,
    parts: usize,
    inputs: &[&TypedFact],
    outputs: &[&TypedFact],
) -> TractResult<AxesMapping> {
    let c_axis = spec.data_format.c_axis(spec.rank() + 2);
    let mut axes = AxesMapping::disconnected(inputs, outputs)?
        .renaming((InOut::In(0), c_axis), 'I')?
        .renaming((InOut::Out(0), c_axis), 'O')?
        .renaming((InOut::In(0), 0), 'N')?
        .linking('N', (InOut::Out(0), 0))?;
    for part in 1..parts {
        axes = axes.linking('N', (InOut::In(part), 0))?;
    }
    for (ax, repr) in (0..spec.rank()).zip("HWXY".chars()) {
        let padded = match &spec.padding {
            Padding::Explicit { begin, end } => begin[ax] != 0 || end[ax] != 0,
            Padding::SameForward { .. } => false,
            Padding::OutputShape { .. } => true,
        };
        if spec.kernel[ax] == 1 && spec.strides[ax] == 1 && spec.output_padding[ax] == 0 && !padded {
            let axis = spec.data_format.x_axis() + ax;
            axes = axes.renaming((InOut::In(0), axis), repr)?.linking(repr, (InOut::Out(0), axis))?;
            for part in 1..parts {
                axes = axes.linking(repr, (InOut::In(part), axis))?;
            }
        }
    }
    Ok(axes)
}

pub(super) fn cost(spec: &DeconvSpec, input: &TypedFact) -> TractResult<TVec<(Cost, TDim)>> {
    let weights: usize = spec.filter_shape().iter().product();
    let multiply_adds = match known_shape(spec, input) {
        Some(shape) => i64::try_from(spec.problem(shape, None)?.multiply_adds()).unwrap_or(i64::MAX).to_dim(),
        None => {
            // Each tap counts at each input position (transposed) or output position (forward).
            // That includes the taps that fall outside the other side.
            let positions = match spec.direction {
                Direction::Transposed => input.shape.to_tvec(),
                Direction::Forward => spec.output_shape(&input.shape)?,
            };
            let x0 = spec.data_format.x_axis();
            let positions: TDim = positions[x0..x0 + spec.rank()].iter().product();
            positions * &input.shape[0] * weights
        }
    };
    Ok(tvec!((Cost::FMA(input.datum_type), multiply_adds), (Cost::Params(input.datum_type), weights.to_dim())))
}

pub(super) fn info(spec: &DeconvSpec, dialect: Dialect) -> String {
    format!("{dialect}: {spec}")
}
