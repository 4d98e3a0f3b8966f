//! The op that optimised models run.

use super::rescale::{Output, RunTime};
use super::run::{DataZeroPoint, Slots, check_inputs, zero_point_of};
use crate::cache::Kept;
use crate::kernel::ByteScales;
use crate::op::Dialect;
use crate::op::beside;
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
    pub(super) output: Output,
    pub(super) sums: IntegerSums,
    /// Whether the op replaces tract's ops between layers.
    pub(super) fusion: bool,
    /// The scales of results that are bytes, unless a factor is known at run time only.
    pub(super) scales: Kept<ByteScales>,
}

impl OptQuantisedDeconv {
    /// Returns the convolution.
    pub fn spec(&self) -> &DeconvSpec {
        self.sums.spec()
    }

    /// Returns what the sums become.
    pub fn output(&self) -> &Output {
        &self.output
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
        let run_time = RunTime {
            factor: slots.factor.map(|slot| &*inputs[slot]),
            added: slots.added.map(|slot| &*inputs[slot]),
            scales: Some(&self.scales),
        };
        Ok(tvec!(self.output.of_data(&self.sums, &inputs[0], zero_point, &run_time)?.into_tvalue()))
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

    fn fuse(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if !self.fusion {
            return Ok(None);
        }
        match beside::normalised(model, node, self.sums.options())? {
            None => beside::replaced(model, node, self.sums.options()),
            normalised => Ok(normalised),
        }
    }

    as_op!();
}
