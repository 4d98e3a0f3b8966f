//! Lets a layer read the tensors of a concatenation of channels, in place of the joint one.

use super::OptGroupedDeconv;
use crate::spec::DataFormat;
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;

/// The most tensors that a layer reads its input from. Each channel's is searched for.
const MOST_PARTS: usize = 64;

/// Replaces the result of a concatenation that a layer reads by its inputs. Returns none if there is
/// none.
///
/// A concatenation that nothing else needs is replaced whatever the layer's strategy: if it reads one
/// tensor only, the layer joins them itself, into a block that is kept for later runs. One that
/// several layers read is replaced if their work stays the same.
pub(super) fn read_in_parts(
    model: &TypedModel,
    node: &TypedNode,
    layer: &OptGroupedDeconv,
) -> TractResult<Option<TypedModelPatch>> {
    for (slot, outlet) in node.inputs.iter().enumerate().take(layer.parts()) {
        let Some(found) = channels_of(model, *outlet, layer)? else { continue };
        let parts = layer.parts() - 1 + found.len();
        if parts > MOST_PARTS {
            continue;
        }
        let op = layer.in_parts(parts);
        let data = layer.data_fact(&model.node_input_facts(node.id)?)?;
        // An error means that the joint tensor, which is working memory then, is above the limit.
        if op.plan(&data).is_err() {
            continue;
        }
        let readers = model.outlet_successors(*outlet);
        let alike = |inlet: &InletId| is_as_fast(model, *inlet);
        if readers.len() > 1
            && !readers.iter().map(alike).collect::<TractResult<Vec<_>>>()?.into_iter().all(|same| same)
        {
            continue;
        }
        let inputs: TVec<OutletId> =
            node.inputs[..slot].iter().chain(found).chain(&node.inputs[slot + 1..]).copied().collect();
        let mut patch = TypedModelPatch::new("a layer reads the tensors of a concatenation");
        let taps = patch.taps(model, &inputs)?;
        let wires = patch.wire_node(&node.name, op, &taps)?;
        patch.shunt_outside(model, node.id.into(), wires[0])?;
        return Ok(Some(patch));
    }
    Ok(None)
}

/// Returns the tensors of channels whose concatenation a value is, if a layer can read them.
fn channels_of<'m>(
    model: &'m TypedModel,
    outlet: OutletId,
    layer: &OptGroupedDeconv,
) -> TractResult<Option<&'m [OutletId]>> {
    let node = model.node(outlet.node);
    let Some(concat) = node.op_as::<TypedConcat>() else { return Ok(None) };
    let fact = model.outlet_fact(outlet)?;
    let of_channels = layer.spec.data_format == DataFormat::Ncx && concat.axis == DataFormat::Ncx.c_axis(fact.rank());
    if !of_channels || !fact.datum_type.is_float() || model.outputs.contains(&outlet) {
        return Ok(None);
    }
    let known = |input: &OutletId| Ok(model.outlet_fact(*input)?.shape[concat.axis].to_usize().is_ok());
    let known = node.inputs.iter().map(known).collect::<TractResult<Vec<_>>>()?;
    Ok((known.len() > 1 && known.into_iter().all(|known| known)).then_some(&*node.inputs))
}

/// Returns whether the reader of a value is a layer that does the same work if it reads the value as
/// several tensors.
fn is_as_fast(model: &TypedModel, inlet: InletId) -> TractResult<bool> {
    let node = model.node(inlet.node);
    let Some(layer) = node.op_as::<OptGroupedDeconv>() else { return Ok(false) };
    if inlet.slot >= layer.parts() || layer.spec.data_format != DataFormat::Ncx {
        return Ok(false);
    }
    let data = layer.data_fact(&model.node_input_facts(node.id)?)?;
    let (whole, parts) = (layer.in_parts(1).plan(&data)?, layer.in_parts(2).plan(&data).ok().flatten());
    Ok(whole.zip(parts).is_some_and(|(whole, parts)| parts.reads_parts_as(&whole)))
}
