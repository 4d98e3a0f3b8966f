//! Operators near a quantised convolution.

use super::quantise::{OptDynamicQuantise, OptQuantise};
use super::{OptQuantisedDeconv, QuantisedDeconv};
use super::{byte_sum, byte_table, selection};
use tract_core::internal::*;
use tract_core::ops::element_wise::ElementWiseOp;

/// The most nodes near a layer that are looked at.
const MOST_SEEN: usize = 64;

/// The name of tract's op.
pub(super) const DYNAMIC: &str = "DynamicQuantizeLinearU8";

/// Returns the nodes around a layer, up to the next quantised convolutions.
fn near(model: &TypedModel, node: &TypedNode) -> Vec<usize> {
    let beside = |node: &TypedNode| -> TVec<usize> {
        let before = node.inputs.iter().map(|input| input.node);
        let after = node.outputs.iter().flat_map(|output| output.successors.iter().map(|reader| reader.node));
        before.chain(after).collect()
    };
    let mut seen: Vec<usize> = beside(node).into_vec();
    let mut at = 0;
    while at < seen.len().min(MOST_SEEN) {
        let node = model.node(seen[at]);
        at += 1;
        let ends = node.op_is::<QuantisedDeconv>() || node.op_is::<OptQuantisedDeconv>();
        if !ends && model.outlet_fact(node.id.into()).is_ok_and(|fact| fact.konst.is_none()) {
            let more = beside(node).into_iter().filter(|id| !seen.contains(id));
            seen.extend(more.collect::<TVec<_>>());
        }
    }
    seen.truncate(MOST_SEEN);
    seen
}

/// Replaces one of tract's QuantizeLinear near a layer.
pub(super) fn quantiser(model: &TypedModel, layer: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    for id in near(model, layer) {
        let node = model.node(id);
        let op: Box<dyn TypedOp> = if let Some(op) = node.op_as::<ElementWiseOp>().and_then(OptQuantise::of) {
            Box::new(op)
        } else if node.op.name() == DYNAMIC {
            Box::new(OptDynamicQuantise)
        } else {
            continue;
        };
        if model.outlet_fact(node.inputs[0])?.datum_type == DatumType::F32 {
            return TypedModelPatch::replace_single_op(model, node, &node.inputs, op).map(Some);
        }
    }
    Ok(None)
}

/// Replaces one QuantizeLinear near a layer, and the nodes before it, by a table.
pub(super) fn function_of_bytes(model: &TypedModel, layer: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    for id in near(model, layer) {
        let node = model.node(id);
        for rule in [byte_table::of_quantiser, byte_sum::of_quantiser, selection::of_quantiser] {
            if let Some(patch) = rule(model, node)? {
                return Ok(Some(patch));
            }
        }
    }
    Ok(None)
}
