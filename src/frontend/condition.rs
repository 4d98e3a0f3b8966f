//! ONNX If, whose branches this crate optimises where they hold layers.

use crate::op::bodies;
use tract_core::ops::logic::IfThenElse;
use tract_hir::internal::*;

/// tract's op for If. Inference is tract's. With fusion, the typed op is this crate's where a branch
/// holds a layer.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub of_tract: Box<dyn InferenceOp>,
    pub fusion: bool,
}

/// No two are taken for equal, as models can't be compared.
impl PartialEq for Condition {
    fn eq(&self, _other: &Condition) -> bool {
        false
    }
}

impl Eq for Condition {}

impl Op for Condition {
    fn name(&self) -> StaticName {
        self.of_tract.name()
    }

    not_a_typed_op!();
}

impl EvalOp for Condition {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.of_tract.eval(ctx, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        self.of_tract.eval_out_of_plan(inputs)
    }
}

impl InferenceOp for Condition {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        self.of_tract.infer_facts(inputs, outputs, observed)
    }

    fn nboutputs(&self) -> TractResult<usize> {
        self.of_tract.nboutputs()
    }

    /// Names the typed node as in the file. tract names it after the operator, and two nodes of one
    /// graph may not have the same name.
    fn to_typed(
        &self,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let mut alone = TypedModel { symbols: target.symbols.clone(), ..TypedModel::default() };
        let mut sources = HashMap::new();
        for (ix, input) in node.inputs.iter().enumerate() {
            let fact = target.outlet_fact(mapping[input])?.clone();
            sources.insert(*input, alone.add_source(format!("input.{ix}"), fact)?);
        }
        let outlets = self.of_tract.to_typed(source, node, &mut alone, &sources)?;
        let outlet = outlets.first().context("outputs: count=0, an If has one at least")?;
        let op = alone.node_mut(outlet.node).op_as_mut::<IfThenElse>();
        let op = std::mem::take(op.context("tract's own condition is expected")?);
        let op = if self.fusion { bodies::condition(op)? } else { Box::new(op) };
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}
