//! The results of integer sums that are complete only behind another op, as in a stream.

use super::rescale::{Output, RunTime};
use crate::spec::DeconvSpec;
use tract_core::internal::*;

/// Turns the integer sums of a convolution into its results.
///
/// It has one input, the sums, i32 in the spec's data format.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScaledSums {
    spec: DeconvSpec,
    output: Output,
}

impl ScaledSums {
    /// Creates the op for the sums of a spec.
    ///
    /// # Errors
    /// Fails for an output that reads other tensors.
    pub fn new(spec: DeconvSpec, output: Output) -> TractResult<ScaledSums> {
        ensure!(
            output.added().is_none() && !output.has_factor_input(),
            "output: {output}, results of several tensors can't be computed apart from the sums"
        );
        Ok(ScaledSums { spec, output })
    }
}

impl Op for ScaledSums {
    fn name(&self) -> StaticName {
        "ScaledSums".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("to {}", self.output)])
    }

    op_as_typed_op!();
}

impl EvalOp for ScaledSums {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let sums = inputs.into_iter().next().context("inputs: count=0, the sums are needed")?.into_tensor();
        let channels = sums.shape().get(self.spec.data_format.c_axis(self.spec.rank() + 2));
        ensure!(
            sums.rank() == self.spec.rank() + 2 && channels == Some(&self.spec.out_channels),
            "sums: shape={:?}, they have {} channels",
            sums.shape(),
            self.spec.out_channels
        );
        let none = RunTime { factor: None, added: None, scales: None };
        Ok(tvec!(self.output.of_sums(&self.spec, (sums, i32::MAX), &none)?.into_tvalue()))
    }
}

impl TypedOp for ScaledSums {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [sums] = inputs else { bail!("inputs: count={}, one is needed", inputs.len()) };
        ensure!(sums.datum_type == i32::datum_type(), "sums: datum_type={:?}, I32 is needed", sums.datum_type);
        Ok(tvec!(self.output.datum_type().fact(sums.shape.clone())))
    }

    as_op!();
}
