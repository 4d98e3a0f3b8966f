//! QuantizeLinear of one scale.

use super::rescale::{Quantisation, range_of};
use super::run::is_byte;
use crate::kernel::{Division, Narrowing, extremes, quantise};
use crate::memory;
use crate::parallel::{parallel, threads};
use tract_core::internal::*;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::quant::{QuantizeLinearI8, QuantizeLinearU8};

/// Quantises f32: `saturate(round(x / scale) + zero point)`, with ties rounded to even.
///
/// tract's own operator multiplies by the reciprocal of the scale, rounded to f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quantise {
    /// How results stand for real numbers.
    pub to: Quantisation,
}

impl Op for Quantise {
    fn name(&self) -> StaticName {
        "Quantise".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![self.to.to_string()])
    }

    op_as_typed_op!();
}

impl EvalOp for Quantise {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let division = Division::Scale(self.to.scale.value());
        eval(&inputs, division, self.to.zero_point(), self.to.datum_type())
    }
}

impl TypedOp for Quantise {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        output_facts(inputs, self.to.datum_type())
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        AxesMapping::natural(inputs, outputs)
    }

    fn change_axes(
        &self,
        model: &TypedModel,
        node: &TypedNode,
        _io: InOut,
        change: &AxisOp,
    ) -> TractResult<Option<AxisChangeConsequence>> {
        Ok(Some(AxisChangeConsequence::new(model, node, None, change)))
    }

    as_op!();
}

/// tract's QuantizeLinear in an optimised model: `saturate(round(x·factor) + zero point)`, with the
/// product in f32 and ties rounded to even.
///
/// Where tract's operator overflows, at products of 2³¹ and more, this one saturates.
#[derive(Clone, Debug, PartialEq)]
pub struct OptQuantise {
    /// The reciprocal of the scale.
    factor: f32,
    zero_point: i32,
    datum_type: DatumType,
}

impl Eq for OptQuantise {}

impl OptQuantise {
    /// Creates the op that gives the results of tract's op, if that is a QuantizeLinear.
    pub(crate) fn of(op: &ElementWiseOp) -> Option<OptQuantise> {
        if let Some(QuantizeLinearU8 { scale, zero_point }) = op.0.downcast_ref() {
            return Some(OptQuantise { factor: *scale, zero_point: i32::from(*zero_point), datum_type: DatumType::U8 });
        }
        let QuantizeLinearI8 { scale, zero_point } = op.0.downcast_ref()?;
        Some(OptQuantise { factor: *scale, zero_point: i32::from(*zero_point), datum_type: DatumType::I8 })
    }
}

impl Op for OptQuantise {
    fn name(&self) -> StaticName {
        "OptQuantise".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("{:?} by the factor {}, zero point {}", self.datum_type, self.factor, self.zero_point)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptQuantise {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        eval(&inputs, Division::Reciprocal(self.factor), self.zero_point, self.datum_type)
    }
}

impl TypedOp for OptQuantise {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        output_facts(inputs, self.datum_type)
    }

    as_op!();
}

/// tract's DynamicQuantizeLinear in an optimised model: f32 to u8, with the scale and the zero point as
/// further outputs.
///
/// The scale is a 255th of the range of the data and zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptDynamicQuantise;

impl Op for OptDynamicQuantise {
    fn name(&self) -> StaticName {
        "OptDynamicQuantise".into()
    }

    op_as_typed_op!();
}

impl EvalOp for OptDynamicQuantise {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = inputs.first().context("inputs: count=0, the data is needed")?;
        let ram = input.try_as_plain_ram()?;
        let values = ram.as_slice::<f32>()?;
        let cost = values.len() as u64 / 16;
        let per_task = values.len().div_ceil(threads(cost)).max(AT_ONCE);
        let mut tasks: Vec<(&[f32], (f32, f32))> = values.chunks(per_task).map(|part| (part, (0.0, 0.0))).collect();
        parallel(&mut tasks, cost, &|(part, found)| {
            *found = extremes(part);
            Ok(())
        })?;
        let parts = tasks.iter().map(|(_, found)| *found);
        let (least, most) = parts.fold((0f32, 0f32), |(a, b), (least, most)| (a.min(least), b.max(most)));
        let scale = (most - least) / 255.0;
        // The conversion saturates, and takes NaN to zero.
        let zero_point = (-least / scale).round_ties_even() as u8;
        let mut outputs = eval(&inputs, Division::ScaleInF32(scale), zero_point.into(), DatumType::U8)?;
        outputs.extend([tensor0(scale).into_tvalue(), tensor0(zero_point).into_tvalue()]);
        Ok(outputs)
    }
}

impl TypedOp for OptDynamicQuantise {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let mut facts = output_facts(inputs, DatumType::U8)?;
        facts.extend([f32::fact([0; 0]), u8::fact([0; 0])]);
        Ok(facts)
    }

    as_op!();
}

fn output_facts(inputs: &[&TypedFact], datum_type: DatumType) -> TractResult<TVec<TypedFact>> {
    let [input] = inputs else { bail!("inputs: count={}, one is needed", inputs.len()) };
    ensure!(input.datum_type == f32::datum_type(), "input: datum_type={:?}, F32 is needed", input.datum_type);
    Ok(tvec!(datum_type.fact(input.shape.clone())))
}

fn eval(inputs: &[TValue], division: Division, zero_point: i32, datum_type: DatumType) -> TractResult<TVec<TValue>> {
    let input = inputs.first().context("inputs: count=0, the data is needed")?;
    let (least, most) = range_of(datum_type).context("output: 8-bit integers are needed")?;
    let narrowing = Narrowing { limits: ((least - zero_point).into(), (most - zero_point).into()), zero_point };
    let ram = input.try_as_plain_ram()?;
    let from = ram.as_slice::<f32>()?;
    // The bits of both types are the lowest bits of the integer.
    let output = bytes_by_threads(from, (datum_type, input.shape()), 1, |_, from, to| {
        quantise::<u8>(division, narrowing, from, to)
    })?;
    Ok(tvec!(output.into_tvalue()))
}

/// Elements per task, at least.
const AT_ONCE: usize = 16 << 10;

/// Makes a tensor of 8-bit integers, of a type and a shape, from as many elements.
///
/// Threads share runs of `run` elements. `each` gets the index of the first of its runs, their elements,
/// and the bytes to write.
pub(super) fn bytes_by_threads<A: Sync>(
    from: &[A],
    (datum_type, shape): (DatumType, &[usize]),
    run: usize,
    each: impl Fn(usize, &[A], &mut [u8]) + Sync + Send,
) -> TractResult<Tensor> {
    ensure!(is_byte(datum_type), "output: datum_type={datum_type:?}, 8-bit integers are needed");
    #[expect(unsafe_code, reason = "each result is written once, not cleared before")]
    // SAFETY: the type is a number type. The tasks cover all bytes, and `each` reads none that it has
    // not written. On failure the tensor is dropped.
    let mut output = unsafe { memory::output_tensor("output size", datum_type, shape)? };
    let mut view = output.try_as_plain_ram_mut()?;
    let to = view.as_bytes_mut();
    ensure!(from.len() == to.len(), "elements: count={}, {} are needed", from.len(), to.len());
    if to.is_empty() {
        return Ok(output);
    }
    let cost = to.len() as u64 / 16;
    let per_task = to.len().div_ceil(threads(cost)).max(AT_ONCE).next_multiple_of(run.max(1));
    let mut tasks: Vec<(usize, &mut [u8])> = to.chunks_mut(per_task).enumerate().collect();
    parallel(&mut tasks, cost, &|(task, to)| {
        let first = *task * per_task;
        each(first / run.max(1), &from[first..first + to.len()], to);
        Ok(())
    })?;
    Ok(output)
}
