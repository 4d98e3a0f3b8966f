//! Nodes behind a quantised convolution that become part of it.

use super::near::DYNAMIC;
use super::rescale::{Output, Quantisation, Scale, Scaling};
use super::run::{Slots, is_byte};
use super::{Quantise, QuantisedDeconv};
use crate::activation::Activation;
use crate::fuse::{self, Fold};
use crate::output::epilogue::Step;
use tract_core::internal::*;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::cast::Cast;
use tract_core::ops::math::Mul;
use tract_core::ops::quant::DequantizeLinearF32;

/// The most nodes between the scale of a dynamic quantisation and the product with it.
const MOST_STEPS: usize = 8;

/// A node that becomes part of the op.
struct Folded {
    output: Output,
    /// The outlet of the last node.
    outlet: OutletId,
    /// The input that the op gets.
    input: Option<OutletId>,
}

/// Folds the nodes that alone read the results of the op.
pub(super) fn following(
    op: &QuantisedDeconv,
    model: &TypedModel,
    node: &TypedNode,
) -> TractResult<Option<TypedModelPatch>> {
    let mut folded = Folded { output: op.output.clone(), outlet: node.id.into(), input: None };
    let (mut factor, mut added) = (None, None);
    let first = folded.outlet;
    while let Some(next) = behind(op, model, &folded)? {
        if next.output.has_factor_input() && !folded.output.has_factor_input() {
            factor = next.input;
        } else if next.input.is_some() {
            added = next.input;
        }
        folded = next;
    }
    if folded.outlet == first {
        return Ok(None);
    }
    let old = op.slots();
    let mut inputs: TVec<OutletId> = tvec!(node.inputs[0], node.inputs[1]);
    inputs.extend(old.zero_point.map(|slot| node.inputs[slot]));
    inputs.extend(factor.or_else(|| old.factor.map(|slot| node.inputs[slot])));
    inputs.extend(added.or_else(|| old.added.map(|slot| node.inputs[slot])));
    Slots::new(2, op.zero_point, &folded.output).check(inputs.len())?;
    let mut patch = TypedModelPatch::new("nodes behind a quantised convolution");
    let taps = patch.taps(model, &inputs)?;
    let op = QuantisedDeconv { output: folded.output, ..op.clone() };
    let wires = patch.wire_node(&node.name, op, &taps)?;
    patch.shunt_outside(model, folded.outlet, wires[0])?;
    Ok(Some(patch))
}

/// Returns the op's output with the next node folded in, or none if that node is not understood.
fn behind(op: &QuantisedDeconv, model: &TypedModel, before: &Folded) -> TractResult<Option<Folded>> {
    let from = before.outlet;
    let [reader] = model.outlet_successors(from) else { return Ok(None) };
    let node = model.node(reader.node);
    if model.outputs.contains(&from) || node.outputs.len() != 1 {
        return Ok(None);
    }
    let folded = |output, input| Ok(Some(Folded { output, outlet: node.id.into(), input }));
    let scaling = match &before.output {
        Output::Sums => {
            let to_floats = node.op_as::<Cast>().is_some_and(|cast| cast.to == DatumType::F32);
            return if to_floats { folded(Output::Floats(Scaling::new(1.0)), None) } else { Ok(None) };
        }
        Output::Quantised(..) => return Ok(None),
        Output::Floats(scaling) => scaling,
    };
    if let Some(quantise) = node.op_as::<Quantise>() {
        return folded(Output::Quantised(scaling.clone(), quantise.to), None);
    }
    let fact = model.outlet_fact(from)?;
    if node.outputs[0].fact.shape != fact.shape || node.outputs[0].fact.datum_type != fact.datum_type {
        return Ok(None);
    }
    let c_axis = op.spec.data_format.c_axis(fact.rank());
    if let Some(factor) = run_time_factor(model, node, from, (c_axis, op.spec.out_channels), scaling)? {
        return folded(Output::Floats(scaling.clone().with_factor_input()), Some(factor));
    }
    let Some((fold, _)) = fuse::behind(model, from, (c_axis, op.spec.out_channels))? else { return Ok(None) };
    let (scaling, input) = match fold {
        Fold::Affine(affine) => (scaling.then_affine(affine.factors(), affine.terms())?, None),
        Fold::Step(Step::Activation(Activation::Max(bound))) => (scaling.at_least(bound), None),
        Fold::Step(Step::Activation(Activation::Min(bound))) => (scaling.at_most(bound), None),
        Fold::Add(other) => {
            // An error is that of a scale which is no part of a layer.
            let Some((quantisation, input)) = dequantised(model, other).ok().flatten() else { return Ok(None) };
            (scaling.then_added(quantisation), Some(input))
        }
        _ => (None, None),
    };
    match scaling {
        Some(scaling) => folded(Output::Floats(scaling), input),
        None => Ok(None),
    }
}

/// Returns how a value is quantised that DequantizeLinear computes, and its input.
pub(crate) fn dequantised(model: &TypedModel, outlet: OutletId) -> TractResult<Option<(Quantisation, OutletId)>> {
    let node = model.node(outlet.node);
    let Some(op) = node.op_as::<DequantizeLinearF32>() else { return Ok(None) };
    let input = node.inputs[0];
    let datum_type = model.outlet_fact(input)?.datum_type;
    if !is_byte(datum_type) {
        return Ok(None);
    }
    let scale = Scale::new("DequantizeLinear", op.scale)?;
    Ok(Some((Quantisation::new("DequantizeLinear", scale, op.zero_point, datum_type)?, input)))
}

/// Returns the operand that a node multiplies with, if it is the scale of a dynamic quantisation, times
/// constants.
fn run_time_factor(
    model: &TypedModel,
    node: &TypedNode,
    from: OutletId,
    (c_axis, channels): (usize, usize),
    scaling: &Scaling,
) -> TractResult<Option<OutletId>> {
    let plain = !scaling.has_factor_input && scaling.bias().is_none() && scaling.added.is_none();
    let unlimited = scaling.limits() == (f32::NEG_INFINITY, f32::INFINITY);
    if !node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Mul>()) || !plain || !unlimited {
        return Ok(None);
    }
    let factor = node.inputs[(node.inputs[0] == from) as usize];
    let fact = model.outlet_fact(factor)?;
    let per_channel = |(axis, dim): (usize, &TDim)| dim.is_one() || axis == c_axis && *dim == channels.to_dim();
    if fact.datum_type != DatumType::F32 || !fact.shape.iter().enumerate().all(per_channel) {
        return Ok(None);
    }
    let mut at = factor;
    for _ in 0..MOST_STEPS {
        let node = model.node(at.node);
        if node.op.name() == DYNAMIC {
            return Ok((at.slot == 1).then_some(factor));
        }
        at = if node.op_is::<AxisOp>() {
            node.inputs[0]
        } else if node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Mul>()) {
            let is_constant = |input: &OutletId| model.outlet_fact(*input).is_ok_and(|fact| fact.konst.is_some());
            match node.inputs.iter().filter(|input| !is_constant(input)).collect::<TVec<_>>()[..] {
                [only] => *only,
                _ => return Ok(None),
            }
        } else {
            return Ok(None);
        };
    }
    Ok(None)
}
