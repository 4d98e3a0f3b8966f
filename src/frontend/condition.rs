//! ONNX If, whose branches this crate optimises where they hold layers.

use super::of_tract::ToTyped;
use crate::op::bodies;
use tract_core::ops::logic::IfThenElse;
use tract_hir::internal::*;

/// An If. With fusion, the typed op is this crate's where a branch holds a layer.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub fusion: bool,
}

impl ToTyped for Condition {
    /// Names the typed node as in the file. tract names it after the operator, and two nodes of one
    /// graph may not have the same name.
    fn to_typed(
        &self,
        of_tract: &dyn InferenceOp,
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
        let outlets = of_tract.to_typed(source, node, &mut alone, &sources)?;
        let outlet = outlets.first().context("outputs: count=0, an If has one at least")?;
        let op = alone.node_mut(outlet.node).op_as_mut::<IfThenElse>();
        let op = std::mem::take(op.context("tract's own condition is expected")?);
        let op = if self.fusion { bodies::condition(op)? } else { Box::new(op) };
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        target.wire_node(&node.name, op, &inputs)
    }
}
