//! Element-wise steps and pooling that precede a convolution and can't be folded into one.
//!
//! One op runs them, on the kernels and threads that layers use.

use crate::algorithm::pointwise::{ElementWise, pool};
use crate::compute::Compute;
use crate::element::{Element, dispatch_element};
use crate::kernel::{Dispatch, PoolAxis};
use crate::memory::{self, collected};
use crate::output::epilogue;
use crate::output::epilogue::{Bound, Step};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, MAX_EXTENT};
use std::fmt;
use tract_core::internal::*;
use tract_core::ops::cnn::{PaddingSpec, PoolSpec, SumPool};

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
    /// Takes the sum or the average of each window.
    SumPool(Box<SumPool>),
}

impl Pass {
    pub(super) fn takes_input(&self) -> bool {
        matches!(self, Pass::Scale | Pass::Step(Step::Add))
    }

    fn pool(&self) -> Option<&PoolSpec> {
        match self {
            Pass::MaxPool(pool) => Some(pool),
            Pass::SumPool(pool) => Some(&pool.pool_spec),
            Pass::Step(_) | Pass::Scale => None,
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Pass::Step(step) => write!(f, "{step}"),
            Pass::Scale => f.write_str("Scale"),
            Pass::MaxPool(pool) => write!(f, "MaxPool {:?}", pool.kernel_shape),
            Pass::SumPool(pool) => {
                let name = if pool.normalize { "AveragePool" } else { "SumPool" };
                write!(f, "{name} {:?}", pool.pool_spec.kernel_shape)
            }
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
            if let Some(pool) = pass.pool() {
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

    /// Pools a tensor: the sums of windows if `sum`, else the largest values.
    fn pooled<E: Element>(&self, spec: &PoolSpec, sum: Option<&SumPool>, value: &Tensor) -> TractResult<Tensor> {
        let (axes, output) = self.pool_of_shape(spec, value.shape())?;
        self.limit.check_output(&output, value.datum_type())?;
        let factors = if sum.is_some() { axes.iter().fold(1, |n, axis| axis.output.saturating_mul(n)) } else { 0 };
        let factors = factors.saturating_mul(size_of::<E::Compute>());
        self.limit.check_working(pool_working_bytes::<E>(&axes).saturating_add(factors))?;
        let factors = sum.map(|sum| factors_of_windows::<E::Compute>(sum, &axes)).transpose()?;
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `output_tensor` returns uninitialised elements. Their type is a number's, as
        // there is an `Element` for it. `pool` writes every window of every plane, or fails, and
        // then the tensor is dropped without a read.
        let mut to = unsafe { memory::output_tensor("pool", value.datum_type(), &output)? };
        let from = value.try_as_plain_ram()?;
        let mut view = to.try_as_plain_ram_mut()?;
        let (from, results) = (from.as_slice::<E>()?, view.as_slice_mut::<E>()?);
        pool(E::Compute::kernels(self.isa), &axes, factors.as_deref(), from, results)?;
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
pub(super) fn check_pool(pool: &PoolSpec, data_format: DataFormat) -> TractResult<()> {
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
            sizes.len() == rank && sizes.iter().all(|size| (least..=MAX_EXTENT).contains(size)),
            "pool: {what}={sizes:?}, {rank} values within {least}..={MAX_EXTENT} are needed"
        );
    }
    let extents =
        pool.kernel_shape.iter().zip(&*dilations).map(|(kernel, dilation)| (kernel - 1).checked_mul(*dilation));
    ensure!(
        extents.into_iter().flatten().filter(|extent| *extent < MAX_EXTENT).count() == rank,
        "pool: dilations={dilations:?}, the kernel must extend over at most {MAX_EXTENT} positions"
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

/// Returns the size of a thread's scratch: one row of each axis but the last, and a plane and its results if they are
/// widened.
fn pool_working_bytes<E: Element>(axes: &[PoolAxis]) -> usize {
    let bytes = |sizes: &mut dyn Iterator<Item = usize>| sizes.fold(size_of::<E::Compute>(), usize::saturating_mul);
    let inner = |ax: usize| bytes(&mut axes[ax + 1..].iter().map(|axis| axis.input));
    let rows = (0..axes.len().saturating_sub(1)).map(inner).fold(0, usize::saturating_add);
    if E::as_compute(&[]).is_some() {
        return rows;
    }
    let planes = [bytes(&mut axes.iter().map(|axis| axis.input)), bytes(&mut axes.iter().map(|axis| axis.output))];
    planes.into_iter().fold(rows, usize::saturating_add)
}

/// Returns what the sum of each window of a plane is multiplied by.
fn factors_of_windows<T: Compute>(pool: &SumPool, axes: &[PoolAxis]) -> TractResult<Vec<T>> {
    let windows = axes.iter().map(|axis| axis.output).product();
    if !pool.normalize {
        return collected("pool", (0..windows).map(|_| T::of_count(1)));
    }
    let mut counts: TVec<Vec<usize>> = tvec!();
    for (ax, axis) in axes.iter().enumerate() {
        // The positions that count, from the begin of the padding on. With ONNX's ceil mode, windows
        // may leave the padded input.
        let counted = match &pool.pool_spec.padding {
            _ if !pool.count_include_pad => axis.pad..axis.pad + axis.input,
            PaddingSpec::ExplicitOnnxPool(_, end, true) => 0..axis.pad + axis.input + end[ax],
            _ => 0..usize::MAX,
        };
        let taps_before =
            |o: usize, end: usize| end.saturating_sub(o * axis.stride).div_ceil(axis.dilation).min(axis.kernel);
        let count = |o| taps_before(o, counted.end) - taps_before(o, counted.start);
        counts.push(collected("pool", (0..axis.output).map(count))?);
    }
    let count = |window: usize| {
        let mut rest = window;
        let each = |counts: &Vec<usize>| {
            let count = counts[rest % counts.len()];
            rest /= counts.len();
            count
        };
        counts.iter().rev().map(each).fold(1, usize::saturating_mul)
    };
    collected("pool", (0..windows).map(|window| T::of_count(count(window)).reciprocal()))
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
        for passes in self.passes.chunk_by(|a, b| a.pool().or(b.pool()).is_none()) {
            let count = passes.iter().filter(|pass| pass.takes_input()).count();
            ensure!(count <= others.len(), "inputs: {} are missing", count - others.len());
            let taken: TVec<&Tensor> = others.drain(..count).collect();
            let tensor = dispatch_element!(value.datum_type(), E => match passes {
                [Pass::MaxPool(pool)] => self.pooled::<E>(pool, None, &value)?,
                [Pass::SumPool(pool)] => self.pooled::<E>(&pool.pool_spec, Some(pool), &value)?,
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
            if let Some(pool) = pass.pool() {
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
