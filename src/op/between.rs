//! Element-wise steps and pooling that precede a convolution and can't be folded into one.
//!
//! One op runs them, on the kernels and threads that layers use.

use super::OptResize;
use crate::activation::Activation;
use crate::algorithm::pointwise::{ElementWise, max_pool};
use crate::compute::Compute;
use crate::element::{Element, dispatch_element};
use crate::fuse::{affine_of, scalar};
use crate::kernel::{Dispatch, PoolAxis};
use crate::memory;
use crate::output::epilogue;
use crate::output::epilogue::{Bound, Step};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, DeconvSpec};
use std::collections::HashSet;
use std::fmt;
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::ops::binary::{BinMiniOp, OptBinByScalar, OptBinChain, OptBinUnicast, TypedBinOp};
use tract_core::ops::cnn::{MaxPool, OptMaxPool, PaddingSpec, PoolSpec};
use tract_core::ops::math::{Add, Max, Min, Mul};
use tract_core::ops::nn::NearestUpsample;

/// The maximum number of nodes searched before a layer.
const MOST_SEEN: usize = 32;

/// The largest kernel size, stride, dilation or padding of a pool.
const MOST_SIZE: usize = i32::MAX as usize;

/// One operation over the whole tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// An element-wise step. The tensor that a [`Step::Add`] adds is an input of the op.
    Step(Step),
    /// Multiplies by the next input, which has one value per channel or per image and channel.
    Scale,
    /// Takes the maximum of each window.
    MaxPool(Box<PoolSpec>),
}

impl Pass {
    fn takes_input(&self) -> bool {
        matches!(self, Pass::Scale | Pass::Step(Step::Add))
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Pass::Step(step) => write!(f, "{step}"),
            Pass::Scale => f.write_str("Scale"),
            Pass::MaxPool(pool) => write!(f, "MaxPool {:?}", pool.kernel_shape),
        }
    }
}

/// Passes over a tensor, in order.
///
/// The inputs are the tensor, then one operand per [`Pass::Scale`] and per [`Step::Add`].
///
/// [`BetweenLayers::new`] checks the sizes of the passes. They can't be changed afterwards:
///
/// ```compile_fail,E0616
/// # use tract_deconv::{BetweenLayers, DataFormat};
/// fn channels_last(op: &mut BetweenLayers) {
///     op.data_format = DataFormat::Nxc;
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BetweenLayers {
    passes: Vec<Pass>,
    data_format: DataFormat,
    isa: Isa,
    limit: MemoryLimit,
}

/// The passes found before a layer.
struct Found {
    /// The passes, last first.
    passes: Vec<Pass>,
    /// The operands of the passes, last first.
    inputs: Vec<OutletId>,
    /// The outlet that the op reads.
    from: OutletId,
}

impl BetweenLayers {
    /// Creates the op for some passes over data of a format.
    ///
    /// Only the instruction set and the memory limit of `options` are used.
    ///
    /// # Errors
    /// Fails for a pool whose data is not channels-first, whose lists differ in length, or that has
    /// a size that is zero or too large.
    pub fn new(passes: Vec<Pass>, data_format: DataFormat, options: &PlanOptions) -> TractResult<BetweenLayers> {
        // An instruction set that this CPU lacks is harmless: it selects the portable kernels.
        let isa = options.isa.unwrap_or_else(Isa::best);
        for pass in &passes {
            if let Pass::MaxPool(pool) = pass {
                check_pool(pool, data_format)?;
            }
        }
        Ok(BetweenLayers { passes, data_format, isa, limit: options.limit() })
    }

    /// Returns the passes, in order.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Returns the data format, which tells the channel axis.
    pub fn data_format(&self) -> DataFormat {
        self.data_format
    }

    /// Returns the instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Replaces nodes before `data`, the input of a layer with spec `spec`, by this op.
    ///
    /// The replaced nodes compute `data` itself. If there are none, and `data` is an upsampling or a
    /// concatenation, their inputs are searched in the same way. Returns none if nothing is found.
    pub(crate) fn before(
        model: &TypedModel,
        data: OutletId,
        spec: &DeconvSpec,
        options: &PlanOptions,
    ) -> TractResult<Option<TypedModelPatch>> {
        let (mut open, mut seen) = (vec![data], HashSet::new());
        while let Some(outlet) = open.pop().filter(|_| seen.len() < MOST_SEEN) {
            if let Some(patch) = Self::computing(model, outlet, spec, options)? {
                return Ok(Some(patch));
            }
            let node = model.node(outlet.node);
            let moves = node.op_is::<TypedConcat>() || node.op_is::<NearestUpsample>();
            if seen.insert(node.id) && (moves || node.op_is::<OptResize>()) {
                open.extend(node.inputs.iter().rev());
            }
        }
        Ok(None)
    }

    fn computing(
        model: &TypedModel,
        data: OutletId,
        spec: &DeconvSpec,
        options: &PlanOptions,
    ) -> TractResult<Option<TypedModelPatch>> {
        let fact = model.outlet_fact(data)?;
        if fact.rank() != spec.rank() + 2
            || !matches!(fact.datum_type, DatumType::F16 | DatumType::F32 | DatumType::F64)
        {
            return Ok(None);
        }
        let mut found = Found { passes: vec![], inputs: vec![], from: data };
        while found.from == data || is_inner(model, found.from) {
            let Some(from) = found.step(model, spec)? else { break };
            found.from = from;
        }
        if found.passes.is_empty() {
            return Ok(None);
        }
        let Found { mut passes, mut inputs, from } = found;
        passes.reverse();
        inputs.push(from);
        inputs.reverse();
        let mut patch = TypedModelPatch::new("passes between layers");
        let taps = patch.taps(model, &inputs)?;
        let op = BetweenLayers::new(passes, spec.data_format, options)?;
        let wires = patch.wire_node(&model.node(data.node).name, op, &taps)?;
        patch.shunt_outside(model, data, wires[0])?;
        Ok(Some(patch))
    }

    fn pooled<E: Element>(&self, pool: &PoolSpec, value: &Tensor) -> TractResult<Tensor> {
        let (axes, output) = self.pool_of_shape(pool, value.shape())?;
        self.limit.check_output(&output, value.datum_type())?;
        self.limit.check_working(pool_working_bytes(&axes, value.datum_type()))?;
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `output_tensor` returns uninitialised elements. Their type is a number's, as
        // there is an `Element` for it. `max_pool` writes every window of every plane, or fails,
        // and then the tensor is dropped without a read.
        let mut to = unsafe { memory::output_tensor("pool", value.datum_type(), &output)? };
        let from = value.try_as_plain_ram()?;
        let mut view = to.try_as_plain_ram_mut()?;
        let operands = E::as_compute(from.as_slice::<E>()?).zip(E::as_compute_mut(view.as_slice_mut::<E>()?));
        let (from, to_slice) = operands.context("pool: floats of 32 or 64 bits are needed")?;
        max_pool(E::Compute::kernels(self.isa), &axes, from, to_slice)?;
        Ok(to)
    }

    /// Returns the axes of a pool's planes and the output shape, for data of a shape.
    fn pool_of_shape(&self, pool: &PoolSpec, shape: &[usize]) -> TractResult<(Vec<PoolAxis>, TVec<usize>)> {
        let rank = pool.rank();
        ensure!(shape.len() == rank + 2, "pool: shape={shape:?}, {} axes are needed", rank + 2);
        let axes = pool_axes(pool, &shape[self.data_format.x_axis()..][..rank]);
        Ok((axes, pool.output_shape(shape)?.shape))
    }

    fn element_wise<E: Element>(&self, value: TValue, passes: &[Pass], inputs: &[&Tensor]) -> TractResult<Tensor> {
        let shape: TVec<usize> = value.shape().into();
        ensure!(
            shape.len() >= 3,
            "input: shape={shape:?}, an axis of images, one of channels and spatial ones are needed"
        );
        self.limit.check_output(&shape, value.datum_type())?;
        let (images, channels) = (shape[0], shape[self.data_format.c_axis(shape.len())]);
        // A scale holds one factor per image and channel, or fewer. The zeros take one more per
        // channel.
        if passes.contains(&Pass::Scale) {
            let values = inputs.iter().map(|input| input.len()).max().unwrap_or(0).min(images * channels) + channels;
            let scales = passes.iter().filter(|pass| **pass == Pass::Scale).count();
            self.limit.check_working(values.saturating_mul(scales * size_of::<E::Compute>()))?;
        }
        let positions = shape.iter().product::<usize>().checked_div(images * channels).unwrap_or(0);
        let mut inputs = inputs.iter().copied();
        let operand = |pass| {
            let input = if Pass::takes_input(pass) { inputs.next() } else { None };
            match (pass, input) {
                (Pass::Step(step), input) => {
                    let bound = epilogue::bind::<E>(std::slice::from_ref(step), input.as_slice(), channels, &shape)?;
                    Ok(Operand::Same(bound[0]))
                }
                (_, input) => scale::<E>(input.context("scale: it is missing")?, &shape, channels),
            }
        };
        let operands: Vec<Operand<E>> = passes.iter().map(operand).collect::<TractResult<_>>()?;
        let zeros = vec![E::Compute::ZERO; channels];
        let of_image = |n: usize| {
            let bound = |operand| match operand {
                &Operand::Same(bound) => bound,
                Operand::Scale(values) => Bound::Affine(&values[n * channels % values.len()..][..channels], &zeros),
            };
            operands.iter().map(bound).collect::<Vec<_>>()
        };
        let mut pass = ElementWise {
            kernels: E::Compute::kernels(self.isa),
            data_format: self.data_format,
            channels,
            positions,
            steps: if positions == 0 { vec![] } else { (0..images).map(of_image).collect() },
            from: None,
        };
        // No other reader holds the tensor, so it is changed in place.
        if value.is_exclusive() {
            let mut tensor = value.into_tensor();
            pass.run(tensor.try_as_plain_ram_mut()?.as_slice_mut::<E>()?)?;
            return Ok(tensor);
        }
        let from = value.try_as_plain_ram()?;
        pass.from = Some(from.as_slice::<E>()?);
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `output_tensor` returns uninitialised elements. Their type is a number's, as
        // there is an `Element` for it. The pass first writes each element from the same element of
        // `from`, which has the same length, or fails, and then the tensor is dropped without a
        // read.
        let mut tensor = unsafe { memory::output_tensor("activation", value.datum_type(), &shape)? };
        pass.run(tensor.try_as_plain_ram_mut()?.as_slice_mut::<E>()?)?;
        Ok(tensor)
    }
}

/// Refuses a pool that the kernel can't compute, and sizes whose sums would overflow.
fn check_pool(pool: &PoolSpec, data_format: DataFormat) -> TractResult<()> {
    ensure!(
        pool.data_format == tract_core::ops::nn::DataFormat::NCHW && data_format == DataFormat::Ncx,
        "pool: data_format={:?}, images of channels before the spatial axes are needed",
        pool.data_format
    );
    let rank = pool.rank();
    ensure!((1..=4).contains(&rank), "pool: kernel_shape={:?}, one to four axes are needed", pool.kernel_shape);
    let (strides, dilations) = (pool.strides(), pool.dilations());
    for (what, sizes, least) in [
        ("kernel_shape", &*pool.kernel_shape, 1),
        ("strides", &*strides, 1),
        ("dilations", &*dilations, 1),
        ("pads begin", pads(pool, rank)[0], 0),
        ("pads end", pads(pool, rank)[1], 0),
    ] {
        ensure!(
            sizes.len() == rank && sizes.iter().all(|size| (least..=MOST_SIZE).contains(size)),
            "pool: {what}={sizes:?}, {rank} values within {least}..={MOST_SIZE} are needed"
        );
    }
    let extents = pool.kernel_shape.iter().zip(&*dilations).map(|(kernel, dilation)| (kernel - 1) * dilation);
    ensure!(
        extents.into_iter().all(|extent| extent < MOST_SIZE),
        "pool: dilations={dilations:?}, the kernel must extend over at most {MOST_SIZE} positions"
    );
    ensure!(
        pool.input_channels == pool.output_channels,
        "pool: channels={}, as many come out as go in, {}",
        pool.output_channels,
        pool.input_channels
    );
    Ok(())
}

/// Returns the padding before and after each axis, in lists as long as the pool's own.
fn pads(pool: &PoolSpec, rank: usize) -> [&[usize]; 2] {
    const NONE: [usize; 4] = [0; 4];
    match &pool.padding {
        PaddingSpec::Explicit(begin, end) | PaddingSpec::ExplicitOnnxPool(begin, end, _) => [begin, end],
        PaddingSpec::Valid | PaddingSpec::SameUpper | PaddingSpec::SameLower => [&NONE[..rank]; 2],
    }
}

/// Returns the size of a thread's scratch: one row of each axis but the last.
fn pool_working_bytes(axes: &[PoolAxis], datum_type: DatumType) -> usize {
    let inner = |ax: usize| axes[ax + 1..].iter().fold(datum_type.size_of(), |n, axis| n.saturating_mul(axis.input));
    (0..axes.len().saturating_sub(1)).map(inner).fold(0, usize::saturating_add)
}

/// The operand of an element-wise pass.
enum Operand<'a, E: Element> {
    /// A step that is the same for all images.
    Same(Bound<'a, E>),
    /// Factors per image and channel, or per channel for all images.
    Scale(Vec<E::Compute>),
}

/// Widens the factors of a [`Pass::Scale`].
fn scale<'a, E: Element>(factors: &Tensor, shape: &[usize], channels: usize) -> TractResult<Operand<'a, E>> {
    let whole = [1, shape[0]].map(|images| images * channels).contains(&factors.len());
    ensure!(whole, "scale: shape={:?}, the tensor's is {shape:?}", factors.shape());
    let mut wide = vec![E::Compute::ZERO; factors.len()];
    E::widen_slice(factors.try_as_plain_ram()?.as_slice::<E>()?, &mut wide);
    Ok(Operand::Scale(wide))
}

/// Returns whether exactly one node reads a value.
fn is_inner(model: &TypedModel, outlet: OutletId) -> bool {
    model.outlet_successors(outlet).len() == 1 && !model.outputs.contains(&outlet)
}

/// Returns the binary operations of a node that applies them to its first input, with the other
/// operand of each.
///
/// All of them commute, so the two operands of the first operation may be exchanged.
fn arithmetic(node: &TypedNode) -> Option<TVec<(&dyn BinMiniOp, OutletId)>> {
    let ops: TVec<&dyn BinMiniOp> = if let Some(op) = node.op_as::<OptBinByScalar>() {
        tvec!(&*op.binop)
    } else if let Some(op) = node.op_as::<OptBinUnicast>() {
        tvec!(&*op.binop)
    } else if let Some(op) = node.op_as::<TypedBinOp>() {
        tvec!(&*op.0)
    } else {
        node.op_as::<OptBinChain>()?.steps.iter().map(|step| &*step.binop).collect()
    };
    let commutes = |op: &&dyn BinMiniOp| op.is::<Add>() || op.is::<Mul>() || op.is::<Max>() || op.is::<Min>();
    let others = node.inputs.get(1..)?;
    (ops.len() == others.len() && ops.iter().all(commutes))
        .then(|| ops.into_iter().zip(others.iter().copied()).collect())
}

impl Found {
    /// Takes the node that computes `from`, if this op can replace it. Returns that node's input.
    fn step(&mut self, model: &TypedModel, spec: &DeconvSpec) -> TractResult<Option<OutletId>> {
        let node = model.node(self.from.node);
        let fact = model.outlet_fact(self.from)?;
        if node.outputs.len() != 1 {
            return Ok(None);
        }
        let pool = match (node.op_as::<MaxPool>(), node.op_as::<OptMaxPool>()) {
            (Some(pool), _) => pool.with_index_outputs.is_none().then_some(&pool.pool_spec),
            (_, Some(pool)) => pool.with_index_outputs.is_none().then_some(&pool.pool_spec),
            _ => None,
        };
        if let Some(pool) = pool {
            let wide = fact.datum_type != DatumType::F16;
            if !(wide && pool.rank() == spec.rank() && check_pool(pool, spec.data_format).is_ok()) {
                return Ok(None);
            }
            self.passes.push(Pass::MaxPool(Box::new(pool.clone())));
            return Ok(Some(node.inputs[0]));
        }
        if let [from] = *node.inputs {
            let Some(activation) = crate::fuse::element_wise(node) else { return Ok(None) };
            self.passes.push(Pass::Step(Step::Activation(activation)));
            return Ok(Some(from));
        }
        let Some(mut steps) = arithmetic(node) else { return Ok(None) };
        let mut from = node.inputs[0];
        // The search follows the operand that is not constant. Of a sum of two such operands it
        // follows the one that no other node reads.
        let (first, other) = steps[0];
        let [from_is_constant, other_is_constant] =
            [model.outlet_fact(from)?.konst.is_some(), model.outlet_fact(other)?.konst.is_some()];
        let other_is_inner = is_inner(model, other) && !is_inner(model, from) && first.is::<Add>();
        if from_is_constant || other_is_inner && !other_is_constant {
            steps[0].1 = from;
            from = other;
        }
        let before = model.outlet_fact(from)?;
        if before.datum_type != fact.datum_type || before.shape != fact.shape {
            return Ok(None);
        }
        let mut passes: Vec<(Pass, Option<OutletId>)> = vec![];
        for (op, other) in steps {
            let Some(pass) = pass(op, fact, model.outlet_fact(other)?, spec)? else { return Ok(None) };
            let input = pass.takes_input().then_some(other);
            passes.push((pass, input));
        }
        for (pass, input) in passes.into_iter().rev() {
            self.passes.push(pass);
            self.inputs.extend(input);
        }
        Ok(Some(from))
    }
}

/// Returns the pass that is a binary op with another operand, for data of fact `fact`.
fn pass(op: &dyn BinMiniOp, fact: &TypedFact, other: &TypedFact, spec: &DeconvSpec) -> TractResult<Option<Pass>> {
    let rank = fact.rank();
    let c_axis = spec.data_format.c_axis(rank);
    if other.datum_type != fact.datum_type {
        return Ok(None);
    }
    let Some(constant) = &other.konst else {
        if op.is::<Add>() {
            return Ok((other.shape == fact.shape).then_some(Pass::Step(Step::Add)));
        }
        let per_channel = other.rank() == rank
            && (0..rank).all(|axis| match axis {
                0 => other.shape[0] == fact.shape[0] || other.shape[0].is_one(),
                _ if axis == c_axis => other.shape[axis] == fact.shape[axis],
                _ => other.shape[axis].is_one(),
            });
        return Ok((op.is::<Mul>() && per_channel && spec.data_format == DataFormat::Ncx).then_some(Pass::Scale));
    };
    let Ok(channels) = fact.shape[c_axis].to_usize() else { return Ok(None) };
    if op.is::<Max>() || op.is::<Min>() {
        let bound = scalar(constant)?;
        let of = |value| if op.is::<Max>() { Activation::Max(value) } else { Activation::Min(value) };
        return Ok(bound.map(|value| Pass::Step(Step::Activation(of(value)))));
    }
    affine_of(op, constant, fact, (c_axis, channels)).map(|step| step.map(Pass::Step))
}

fn pool_axes(pool: &PoolSpec, spatial: &[usize]) -> Vec<PoolAxis> {
    let computed = pool.computed_padding(spatial);
    let (strides, dilations) = (pool.strides(), pool.dilations());
    let axes = computed.iter().zip(spatial).enumerate();
    axes.map(|(ax, (computed, input))| PoolAxis {
        input: *input,
        output: computed.convoluted,
        kernel: pool.kernel_shape[ax],
        stride: strides[ax],
        dilation: dilations[ax],
        pad: computed.pad_before,
    })
    .collect()
}

impl Op for BetweenLayers {
    fn name(&self) -> StaticName {
        "BetweenLayers".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![crate::spec::list(&self.passes, ", ")])
    }

    op_as_typed_op!();
}

impl EvalOp for BetweenLayers {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let mut inputs = inputs.into_iter();
        let mut value = inputs.next().context("inputs: count=0, the data is needed")?;
        let others: TVec<TValue> = inputs.collect();
        let mut others: TVec<&Tensor> = others.iter().map(|value| &**value).collect();
        for passes in self.passes.chunk_by(|a, b| !matches!((a, b), (Pass::MaxPool(_), _) | (_, Pass::MaxPool(_)))) {
            let count = passes.iter().filter(|pass| pass.takes_input()).count();
            ensure!(count <= others.len(), "inputs: {} are missing", count - others.len());
            let taken: TVec<&Tensor> = others.drain(..count).collect();
            let tensor = dispatch_element!(value.datum_type(), E => match passes {
                [Pass::MaxPool(pool)] => self.pooled::<E>(pool, &value)?,
                _ => self.element_wise::<E>(value, passes, &taken)?,
            });
            value = tensor.into_tvalue();
        }
        Ok(tvec!(value))
    }
}

impl TypedOp for BetweenLayers {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let expected = 1 + self.passes.iter().filter(|pass| pass.takes_input()).count();
        ensure!(inputs.len() == expected, "inputs: count={}, {expected} are needed", inputs.len());
        let mut fact = inputs[0].without_value();
        for pass in &self.passes {
            if let Pass::MaxPool(pool) = pass {
                ensure!(
                    fact.rank() == pool.rank() + 2,
                    "pool: shape={:?}, {} axes are needed",
                    fact.shape,
                    pool.rank() + 2
                );
                fact = pool.output_facts(&[&fact])?.remove(0);
            }
            if let Some(shape) = fact.shape.as_concrete() {
                self.limit.check_output(shape, fact.datum_type)?;
            }
        }
        Ok(tvec!(fact))
    }

    as_op!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_core::ops::nn::DataFormat as TractFormat;

    fn pool(format: TractFormat) -> PoolSpec {
        PoolSpec::new(format, tvec!(2, 2), PaddingSpec::Valid, None, None, 1, 1)
    }

    fn op(pool: PoolSpec, data_format: DataFormat) -> TractResult<BetweenLayers> {
        BetweenLayers::new(vec![Pass::MaxPool(Box::new(pool))], data_format, &PlanOptions::default())
    }

    #[test]
    fn pools_are_checked_when_the_op_is_made() {
        let first = || pool(TractFormat::NCHW);
        let refused = [
            (pool(TractFormat::NHWC), DataFormat::Nxc, "data_format=NHWC"),
            (pool(TractFormat::NHWC), DataFormat::Ncx, "data_format=NHWC"),
            (pool(TractFormat::CHW), DataFormat::Ncx, "data_format=CHW"),
            (first(), DataFormat::Nxc, "images of channels before the spatial axes"),
            (PoolSpec { strides: Some(tvec!(1)), ..first() }, DataFormat::Ncx, "strides=[1], 2 values"),
            (PoolSpec { strides: Some(tvec!(0, 1)), ..first() }, DataFormat::Ncx, "strides=[0, 1], 2 values"),
            (PoolSpec { kernel_shape: tvec!(0, 1), ..first() }, DataFormat::Ncx, "kernel_shape=[0, 1], 2 values"),
            (PoolSpec { kernel_shape: tvec!(), ..first() }, DataFormat::Ncx, "kernel_shape=[], one to four axes"),
            (PoolSpec { dilations: Some(tvec!(1, usize::MAX)), ..first() }, DataFormat::Ncx, "dilations=[1, "),
            (PoolSpec { output_channels: 2, ..first() }, DataFormat::Ncx, "channels=2, as many"),
            (
                PoolSpec { padding: PaddingSpec::Explicit(tvec!(0, 0), tvec!(1)), ..first() },
                DataFormat::Ncx,
                "pads end=[1], 2 values",
            ),
        ];
        for (pool, format, words) in refused {
            let error = op(pool, format).expect_err(words).to_string();
            assert!(error.starts_with("pool: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn data_of_another_rank_or_of_other_channels_is_refused() -> TractResult<()> {
        let op = op(pool(TractFormat::NCHW), DataFormat::Ncx)?;
        let run = |shape: &[usize]| {
            let x = Tensor::zero::<f32>(shape)?.into_tvalue();
            op.eval(&EvalContext::out_of_plan(), tvec!(x))
        };
        assert_eq!(run(&[1, 1, 3, 4])?[0].shape(), [1, 1, 2, 3]);
        for shape in [&[1, 8, 3, 10][..], &[1, 1, 3], &[1, 1, 3, 4, 5], &[1], &[]] {
            assert!(run(shape).is_err(), "{shape:?}");
        }
        Ok(())
    }
}
