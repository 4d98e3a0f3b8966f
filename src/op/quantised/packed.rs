//! The op that optimised models run.

use super::rescale::{Output, RunTime};
use super::run::{DataZeroPoint, Slots, check_inputs, zero_point_of};
use crate::op::Dialect;
use crate::op::integer_sums::IntegerSums;
use crate::op::shared;
use crate::spec::DeconvSpec;
use tract_core::internal::*;

/// A [`QuantisedDeconv`](super::QuantisedDeconv) whose filter is packed. Optimised models run it.
///
/// Inputs, in order: those of [`QuantisedDeconv`](super::QuantisedDeconv) without the filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptQuantisedDeconv {
    /// The source format of the node.
    pub dialect: Dialect,
    /// The zero point of the data.
    pub zero_point: DataZeroPoint,
    /// What the sums become.
    pub output: Output,
    pub(super) sums: IntegerSums,
}

impl OptQuantisedDeconv {
    /// Returns the convolution.
    pub fn spec(&self) -> &DeconvSpec {
        self.sums.spec()
    }

    /// Describes how the sums are computed for data of a fact, or returns none if sizes are open or the
    /// data is empty.
    pub(crate) fn plan(&self, data: &TypedFact) -> TractResult<Option<String>> {
        let to_bytes = matches!(self.output, Output::Quantised(..)) && self.output.added().is_none();
        self.sums.plan(data, to_bytes)
    }

    fn slots(&self) -> Slots {
        Slots::new(1, self.zero_point, &self.output)
    }
}

impl Op for OptQuantisedDeconv {
    fn name(&self) -> StaticName {
        "OptQuantisedDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![shared::info(self.spec(), self.dialect), format!("to {}", self.output)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptQuantisedDeconv {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let slots = self.slots();
        slots.check(inputs.len())?;
        let zero_point = zero_point_of(self.zero_point, &inputs[0], slots.zero_point.map(|slot| &*inputs[slot]))?;
        let run_time =
            RunTime { factor: slots.factor.map(|slot| &*inputs[slot]), added: slots.added.map(|slot| &*inputs[slot]) };
        if let Some(output) = self.output.of_bytes(&self.sums, &inputs[0], zero_point, &run_time)? {
            return Ok(tvec!(output.into_tvalue()));
        }
        let sums = (self.sums.run(&inputs[0], zero_point, None)?, self.sums.largest());
        Ok(tvec!(self.output.of_sums(self.spec(), sums, &run_time)?.into_tvalue()))
    }
}

impl TypedOp for OptQuantisedDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        check_inputs(self.spec(), &self.slots(), &self.output, inputs)
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        self.slots().axes_mapping(self.spec(), inputs, outputs)
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        shared::cost(self.spec(), inputs[0])
    }

    as_op!();
}
