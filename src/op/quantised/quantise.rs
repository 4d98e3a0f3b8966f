//! QuantizeLinear of one scale, behind a quantised convolution that it folds into.

use super::rescale::Quantisation;
use crate::memory;
use tract_core::internal::*;

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
        let input = inputs.first().context("inputs: count=0, the data is needed")?;
        let output = match self.to.datum_type() {
            DatumType::U8 => memory::mapped_output("output", input, |x: f32| self.to.quantised(x as f64) as u8)?,
            _ => memory::mapped_output("output", input, |x: f32| self.to.quantised(x as f64) as i8)?,
        };
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for Quantise {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [input] = inputs else { bail!("inputs: count={}, one is needed", inputs.len()) };
        ensure!(input.datum_type == f32::datum_type(), "input: datum_type={:?}, F32 is needed", input.datum_type);
        Ok(tvec!(self.to.datum_type().fact(input.shape.clone())))
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
