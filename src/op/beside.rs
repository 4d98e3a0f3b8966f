//! Replaces tract's ops that stand between layers and that the layers' kernels compute faster.

use super::normalise::FoundNormalisation;
use super::{
    BetweenLayers, ByteSum, ByteTable, If, OptF16Arithmetic, OptFourier, OptGroupedDeconv, OptNormalise, OptQuantise,
    OptQuantisedDeconv, OptReduce, OptResize, OptSoftmax, OptTranspose, Pass,
};
use crate::element::is_float;
use crate::plan::PlanOptions;
use crate::spec::DataFormat;
use std::collections::HashSet;
use tract_core::internal::*;
use tract_core::ops::array::{Slice, TypedConcat};
use tract_core::ops::binary::{OptBinByScalar, OptBinChain, OptBinUnicast, TypedBinOp};
use tract_core::ops::change_axes::IntoShape;
use tract_core::ops::cnn::{OptSumPool, SumPool};
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::logic::IfThenElse;
use tract_core::ops::math::Ln;
use tract_core::ops::nn::resize::NearestUpsample;
use tract_core::ops::nn::{Reduce, RmsNorm, Softmax};
use tract_core::ops::quant::DequantizeLinearF32;

/// The maximum number of nodes searched around a layer.
const MOST_SEEN: usize = 64;

/// Replaces the first op found around a layer. Returns none if there is none.
pub(super) fn replaced(
    model: &TypedModel,
    layer: &TypedNode,
    options: &PlanOptions,
) -> TractResult<Option<TypedModelPatch>> {
    for node in around(model, layer) {
        if let Some(patch) = moved_before(model, node, options)? {
            return Ok(Some(patch));
        }
        if let Some((op, replaced)) = faster(model, node, options)? {
            return Ok(Some(by_op(model, op, &node.inputs, replaced)?));
        }
    }
    Ok(None)
}

/// Returns the nodes around a layer, by way of nodes that do not compute or compute element by element.
fn around<'a>(model: &'a TypedModel, layer: &TypedNode) -> Vec<&'a TypedNode> {
    let (mut open, mut seen, mut found) = (vec![layer.id], HashSet::from([layer.id]), vec![]);
    while let Some(node) = open.pop().map(|id| model.node(id)) {
        let before = node.inputs.iter().map(|input| input.node);
        let after = node.outputs.iter().flat_map(|output| &output.successors).map(|inlet| inlet.node);
        for id in before.chain(after) {
            if seen.len() >= MOST_SEEN || !seen.insert(id) {
                continue;
            }
            found.push(model.node(id));
            if is_passed(model.node(id)) {
                open.push(id);
            }
        }
    }
    found
}

/// Replaces outlets, from `replaced` on, by those of an op.
fn by_op(
    model: &TypedModel,
    op: Box<dyn TypedOp>,
    inputs: &[OutletId],
    replaced: OutletId,
) -> TractResult<TypedModelPatch> {
    let mut patch = TypedModelPatch::default();
    let taps = patch.taps(model, inputs)?;
    let wires = patch.wire_node(&model.node(replaced.node).name, op, &taps)?;
    for (slot, wire) in wires.into_iter().enumerate() {
        patch.shunt_outside(model, OutletId::new(replaced.node, replaced.slot + slot), wire)?;
    }
    Ok(patch)
}

/// Replaces the first normalisation found around a layer. Returns none if there is none.
pub(super) fn normalised(
    model: &TypedModel,
    layer: &TypedNode,
    options: &PlanOptions,
) -> TractResult<Option<TypedModelPatch>> {
    for node in around(model, layer) {
        if let Some(FoundNormalisation { op, input, output }) = OptNormalise::at(model, node, options)? {
            return Ok(Some(by_op(model, Box::new(op), &[input], output)?));
        }
    }
    Ok(None)
}

/// Moves an axis before a resizing that makes the tensor larger, instead of behind it.
fn moved_before(model: &TypedModel, node: &TypedNode, options: &PlanOptions) -> TractResult<Option<TypedModelPatch>> {
    let [reader] = *model.outlet_successors(node.id.into()) else { return Ok(None) };
    let reader = model.node(reader.node);
    let Some(change @ &AxisOp::Move(from, to)) = reader.op_as::<AxisOp>() else { return Ok(None) };
    if model.outputs.contains(&node.id.into()) || node.outputs.len() != 1 {
        return Ok(None);
    }
    let facts = model.node_input_facts(node.id)?;
    let resize = || OptResize::of(node, facts.first()?, options);
    let Some(op) = node.op_as::<OptResize>().cloned().or_else(resize) else { return Ok(None) };
    if !op.enlarges(&facts, &node.outputs[0].fact) {
        return Ok(None);
    }
    let mut patch = TypedModelPatch::new("an axis moves before a resizing");
    let mut taps = patch.taps(model, &node.inputs)?;
    taps[0] = patch.wire_node(format!("{}.moved", node.name), change.clone(), &taps[..1])?[0];
    let wires = patch.wire_node(&reader.name, op.moved(from, to), &taps)?;
    patch.shunt_outside(model, reader.id.into(), wires[0])?;
    Ok(Some(patch))
}

/// Returns the op that replaces a node, and the first outlet that it computes.
fn faster(
    model: &TypedModel,
    node: &TypedNode,
    options: &PlanOptions,
) -> TractResult<Option<(Box<dyn TypedOp>, OutletId)>> {
    let outlet = OutletId::from(node.id);
    let Some(input) = node.inputs.first() else { return Ok(None) };
    let input = model.outlet_fact(*input)?;
    if let Some(op) = node.op_as::<Softmax>() {
        let Some(op) = OptSoftmax::of(op, input, options) else { return Ok(None) };
        // The logarithm of a logarithm stays tract's.
        return Ok(Some(match logarithm(model, outlet).filter(|_| !op.is_logarithm()) {
            Some(logarithm) => (Box::new(op.logarithm()), logarithm),
            None => (Box::new(op), outlet),
        }));
    }
    if let Some(op) = node.op_as::<AxisOp>() {
        return Ok(OptTranspose::of(op, input, options).map(|op| (Box::new(op) as _, outlet)));
    }
    if let Some(op) = node.op_as::<Reduce>() {
        return Ok(OptReduce::of(op, input, options).map(|op| (Box::new(op) as _, outlet)));
    }
    if let Some(op) = node.op_as::<IfThenElse>() {
        return Ok(Some((Box::new(If::of(op.clone())?.optimised()?), outlet)));
    }
    if let Some(op) = node.op_as::<TypedBinOp>() {
        let op = OptF16Arithmetic::of(op, &model.node_input_facts(node.id)?, options);
        return Ok(op.map(|op| (Box::new(op) as _, outlet)));
    }
    let pool = match (node.op_as::<SumPool>(), node.op_as::<OptSumPool>()) {
        (Some(pool), _) => Some(pool.clone()),
        (_, Some(OptSumPool { pool_spec, count_include_pad, normalize, .. })) => {
            Some(SumPool::new(pool_spec.clone(), *count_include_pad, *normalize))
        }
        _ => None,
    };
    if let Some(pool) = pool.filter(|_| is_float(input.datum_type)) {
        // An error means a pool that the kernel can't compute.
        let op = BetweenLayers::new(vec![Pass::SumPool(Box::new(pool))], DataFormat::Ncx, options);
        return Ok(op.ok().map(|op| (Box::new(op) as _, outlet)));
    }
    Ok(OptResize::of(node, input, options).map(|op| (Box::new(op) as _, outlet)))
}

/// Returns the logarithm of a value that nothing else reads. tract loads ONNX's LogSoftmax as two
/// nodes.
fn logarithm(model: &TypedModel, outlet: OutletId) -> Option<OutletId> {
    let [reader] = model.outlet_successors(outlet) else { return None };
    let node = model.node(reader.node);
    let found = node.op_as::<ElementWiseOp>()?.0.is::<Ln>() && !model.outputs.contains(&outlet);
    found.then(|| node.id.into())
}

/// Returns whether the search goes on behind a node.
fn is_passed(node: &TypedNode) -> bool {
    node.op_is::<AxisOp>()
        || node.op_is::<IntoShape>()
        || node.op_is::<TypedConcat>()
        || node.op_is::<Slice>()
        || node.op_is::<NearestUpsample>()
        || node.op_is::<OptNormalise>()
        || node.op_is::<RmsNorm>()
        || node.op_is::<OptReduce>()
        || node.op_is::<OptResize>()
        || node.op_is::<OptSoftmax>()
        || node.op_is::<OptTranspose>()
        || node.op_is::<BetweenLayers>()
        || node.op_is::<ElementWiseOp>()
        || node.op_is::<TypedBinOp>()
        || node.op_is::<OptF16Arithmetic>()
        || node.op_is::<OptBinByScalar>()
        || node.op_is::<OptBinUnicast>()
        || node.op_is::<OptBinChain>()
        || node.op_is::<OptGroupedDeconv>()
        || node.op_is::<OptFourier>()
        || node.op_is::<OptQuantisedDeconv>()
        || node.op_is::<OptQuantise>()
        || node.op_is::<DequantizeLinearF32>()
        || node.op_is::<ByteSum>()
        || node.op_is::<ByteTable>()
}
