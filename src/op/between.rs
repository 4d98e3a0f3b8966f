//! What stands between layers and folds into none: element-wise steps and pooling before a deconvolution, as one op on the kernels and threads that layers run on.

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

/// Nodes before a layer that are looked at, at most.
const MOST_SEEN: usize = 32;

/// Largest kernel, stride, dilation and padding of a pool.
const MOST_SIZE: usize = i32::MAX as usize;

/// One thing that is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pass {
    /// An element-wise step. What [`Step::Add`] adds is an input of the op.
    Step(Step),
    /// Multiplies by the next input, one value per image and channel, or per channel.
    Scale,
    /// The largest value of each window.
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

/// Passes over a tensor, in order. Inputs: the tensor, then what [`Pass::Scale`] and [`Step::Add`] take.
///
/// Sizes of passes are checked when the op is made, and can't be changed afterwards:
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

/// What was found before a layer.
struct Found {
    /// Last one first.
    passes: Vec<Pass>,
    /// The inputs of passes, last one first.
    inputs: Vec<OutletId>,
    /// What is read instead.
    from: OutletId,
}

impl BetweenLayers {
    /// The op for some passes over data of a format. Of the options it takes the instruction set and the memory limit.
    ///
    /// # Errors
    /// A pool of other than channels-first data, whose lists differ in
    /// length, or with a size that is zero or too large.
    pub fn new(passes: Vec<Pass>, data_format: DataFormat, options: &PlanOptions) -> TractResult<BetweenLayers> {
        // one that this CPU does not have is as good as the portable one
        let isa = options.isa.unwrap_or_else(Isa::best);
        for pass in &passes {
            if let Pass::MaxPool(pool) = pass {
                check_pool(pool, data_format)?;
            }
        }
        Ok(BetweenLayers { passes, data_format, isa, limit: options.limit() })
    }

    /// What is done.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Where the channels are.
    pub fn data_format(&self) -> DataFormat {
        self.data_format
    }

    /// The instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Replaces what computes `data`, which a layer of a spec reads, where there is anything that the op can do; or what is before an upsampling or a concatenation there.
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
            if seen.insert(node.id) && (node.op_is::<TypedConcat>() || node.op_is::<NearestUpsample>()) {
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
        // SAFETY: the type is a number's, as there is an `Element`, and `max_pool` writes all windows of all planes, or fails.
        let mut to = unsafe { memory::output_tensor("pool", value.datum_type(), &output)? };
        let from = value.try_as_plain_ram()?;
        let mut view = to.try_as_plain_ram_mut()?;
        let operands = E::as_compute(from.as_slice::<E>()?).zip(E::as_compute_mut(view.as_slice_mut::<E>()?));
        let (from, to_slice) = operands.context("pool: floats of 32 or 64 bits are needed")?;
        max_pool(E::Compute::kernels(self.isa), &axes, from, to_slice)?;
        Ok(to)
    }

    /// The axes of a pool's planes and its output, for data of a shape.
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
        // factors that are one for each image and channel, and a channel's worth of zeros beside them
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
        // nobody else reads it
        if value.is_exclusive() {
            let mut tensor = value.into_tensor();
            pass.run(tensor.try_as_plain_ram_mut()?.as_slice_mut::<E>()?)?;
            return Ok(tensor);
        }
        let from = value.try_as_plain_ram()?;
        pass.from = Some(from.as_slice::<E>()?);
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: the type is a number's, as there is an `Element`, and each element is a copy of one of `from`, which is as long, or the pass fails.
        let mut tensor = unsafe { memory::output_tensor("activation", value.datum_type(), &shape)? };
        pass.run(tensor.try_as_plain_ram_mut()?.as_slice_mut::<E>()?)?;
        Ok(tensor)
    }
}

/// Refuses a pool that the kernel can't compute, or with sizes whose sums overflow.
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
        "pool: dilations={dilations:?}, the kernel must extend over at most {MOST_SIZE} cells"
    );
    ensure!(
        pool.input_channels == pool.output_channels,
        "pool: channels={}, as many come out as go in, {}",
        pool.output_channels,
        pool.input_channels
    );
    Ok(())
}

/// The pads before and after each axis, as far as the pool lists them.
fn pads(pool: &PoolSpec, rank: usize) -> [&[usize]; 2] {
    const NONE: [usize; 4] = [0; 4];
    match &pool.padding {
        PaddingSpec::Explicit(begin, end) | PaddingSpec::ExplicitOnnxPool(begin, end, _) => [begin, end],
        PaddingSpec::Valid | PaddingSpec::SameUpper | PaddingSpec::SameLower => [&NONE[..rank]; 2],
    }
}

/// Rows of all axes but the last that a thread keeps.
fn pool_working_bytes(axes: &[PoolAxis], datum_type: DatumType) -> usize {
    let inner = |ax: usize| axes[ax + 1..].iter().fold(datum_type.size_of(), |n, axis| n.saturating_mul(axis.input));
    (0..axes.len().saturating_sub(1)).map(inner).fold(0, usize::saturating_add)
}

/// What an element-wise pass needs.
enum Operand<'a, E: Element> {
    /// The same for all images.
    Same(Bound<'a, E>),
    /// Factors of the channels of each image, or of one for all.
    Scale(Vec<E::Compute>),
}

/// The factors of a [`Pass::Scale`].
fn scale<'a, E: Element>(factors: &Tensor, shape: &[usize], channels: usize) -> TractResult<Operand<'a, E>> {
    let whole = [1, shape[0]].map(|images| images * channels).contains(&factors.len());
    ensure!(whole, "scale: shape={:?}, the tensor's is {shape:?}", factors.shape());
    let mut wide = vec![E::Compute::ZERO; factors.len()];
    E::widen_slice(factors.try_as_plain_ram()?.as_slice::<E>()?, &mut wide);
    Ok(Operand::Scale(wide))
}

/// Whether one node alone reads a value.
fn is_inner(model: &TypedModel, outlet: OutletId) -> bool {
    model.outlet_successors(outlet).len() == 1 && !model.outputs.contains(&outlet)
}

/// The arithmetic of a node that changes its first input by others, each of which may change places with what it meets.
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
    /// Takes the node that computes `from`, if the op can do what that does, and gives what it reads.
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
        // what is no constant is followed; of a sum of two such, what nothing else reads
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

/// What a binary op with another operand is, for a tensor of such a fact.
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
