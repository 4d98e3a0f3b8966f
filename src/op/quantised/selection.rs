//! Operators whose results are some of their operands, on bytes.

use super::Quantise;
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::ops::cnn::MaxPool;
use tract_core::ops::quant::DequantizeLinearF32;

/// Whether each result of a node is one of its operands, and the same one if all are mapped by a function
/// that does not decrease.
fn selects(node: &TypedNode) -> bool {
    let pools = node.op_as::<MaxPool>().is_some_and(|pool| pool.with_index_outputs.is_none());
    // tract itself moves Slice and changes of axes.
    pools || node.op_is::<TypedConcat>()
}

/// Moves a QuantizeLinear before such a node, if that reads dequantised tensors, perhaps through other such
/// nodes.
pub(super) fn of_quantiser(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    let Some(quantise) = node.op_as::<Quantise>() else { return Ok(None) };
    let from = node.inputs[0];
    let before = model.node(from.node);
    let alone = before.outputs.len() == 1 && before.outputs[0].successors.len() == 1 && !model.outputs.contains(&from);
    let reads = |input: &OutletId| {
        let node = model.node(input.node);
        let only = model.outlet_successors(*input).len() == 1 && !model.outputs.contains(input);
        node.op_is::<DequantizeLinearF32>() || selects(node) && only
    };
    if !alone || !selects(before) || !before.inputs.iter().all(reads) {
        return Ok(None);
    }
    let mut patch = TypedModelPatch::new("a selection of bytes");
    let mut inputs: TVec<OutletId> = tvec!();
    for (slot, input) in before.inputs.iter().enumerate() {
        let tap = patch.tap_model(model, *input)?;
        inputs.extend(patch.wire_node(format!("{}.{slot}", node.name), quantise.clone(), &[tap])?);
    }
    let wires = patch.wire_node(&node.name, before.op.clone(), &inputs)?;
    patch.shunt_outside(model, node.id.into(), wires[0])?;
    Ok(Some(patch))
}
