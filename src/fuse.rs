//! What follows a deconvolution and folds into it when a model is optimised: per-channel affine steps into weights and bias,
//! activations into the store.

use crate::spec::DeconvSpec;
use crate::tail::Activation;
use tract_core::internal::*;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::math::{Add, Div, Max, Min, Mul, Sub, Tanh};
use tract_core::ops::nn::{HardSwish, LeakyRelu, Sigmoid, Silu};

/// What was found behind a node, as far as nothing else reads the values in between.
pub(crate) struct Following {
    /// Affine steps merged: a factor and a term per output channel.
    pub affine: Option<(Vec<f64>, Vec<f64>)>,
    /// Activations in order.
    pub tail: Vec<Activation>,
    /// The outlet that takes the place of the last folded node's.
    pub outlet: OutletId,
}

/// Looks behind `node`. `affine` tells whether weights and bias are there to be changed.
pub(crate) fn following(
    model: &TypedModel,
    node: &TypedNode,
    spec: &DeconvSpec,
    affine: bool,
) -> TractResult<Following> {
    let mut found = Following { affine: None, tail: vec![], outlet: node.id.into() };
    let fact = model.outlet_fact(found.outlet)?;
    let c_axis = spec.data_format.c_axis(fact.rank());
    if !fact.datum_type.is_float() {
        return Ok(found);
    }
    while let Some(next) = only_successor(model, found.outlet) {
        let same = model.outlet_fact(next.id.into())?;
        if next.outputs.len() != 1 || same.datum_type != fact.datum_type || same.shape != fact.shape {
            break;
        }
        if let Some(activation) = activation(model, next, found.outlet)? {
            found.tail.push(activation);
        } else if affine && found.tail.is_empty() && fact.datum_type != f16::datum_type() {
            let Some((scale, term)) = affine_step(model, next, found.outlet, c_axis, spec.out_channels)? else { break };
            let (scales, terms) =
                found.affine.get_or_insert_with(|| (vec![1.0; spec.out_channels], vec![0.0; spec.out_channels]));
            for c in 0..spec.out_channels {
                scales[c] *= scale[c];
                terms[c] = terms[c] * scale[c] + term[c];
            }
        } else {
            break;
        }
        found.outlet = next.id.into();
    }
    Ok(found)
}

/// The node that reads an outlet, if it is the only one and the outlet is no output of the model.
fn only_successor(model: &TypedModel, outlet: OutletId) -> Option<&TypedNode> {
    match model.outlet_successors(outlet) {
        [inlet] if !model.outputs.contains(&outlet) => Some(model.node(inlet.node)),
        _ => None,
    }
}

fn activation(model: &TypedModel, node: &TypedNode, from: OutletId) -> TractResult<Option<Activation>> {
    if let Some(op) = node.op_as::<ElementWiseOp>() {
        let op = &op.0;
        return Ok(if op.is::<Sigmoid>() {
            Some(Activation::Sigmoid)
        } else if op.is::<Tanh>() {
            Some(Activation::Tanh)
        } else if op.is::<HardSwish>() {
            Some(Activation::HardSwish)
        } else if op.is::<Silu>() {
            Some(Activation::Silu)
        } else {
            op.downcast_ref::<LeakyRelu>().map(|relu| Activation::LeakyRelu(relu.alpha))
        });
    }
    let Some((op, constant, _)) = with_constant(model, node, from)? else { return Ok(None) };
    let Some(value) = scalar(&constant)? else { return Ok(None) };
    Ok(if op.0.is::<Max>() {
        Some(Activation::Max(value))
    } else if op.0.is::<Min>() {
        Some(Activation::Min(value))
    } else {
        None
    })
}

/// A binary op of `from` and a constant, and whether the constant is the second operand.
fn with_constant<'a>(
    model: &TypedModel,
    node: &'a TypedNode,
    from: OutletId,
) -> TractResult<Option<(&'a TypedBinOp, Arc<Tensor>, bool)>> {
    let Some(op) = node.op_as::<TypedBinOp>() else { return Ok(None) };
    let second = node.inputs[0] == from;
    let other = model.outlet_fact(node.inputs[second as usize])?;
    Ok(other.konst.clone().map(|constant| (op, constant, second)))
}

/// The value of a constant of one element, where f32 holds it exactly.
fn scalar(constant: &Tensor) -> TractResult<Option<f32>> {
    if constant.len() != 1 || !constant.datum_type().is_float() {
        return Ok(None);
    }
    let wide = constant.cast_to::<f64>()?;
    let value = wide.try_as_plain_ram()?.as_slice::<f64>()?[0];
    Ok((value as f32 as f64 == value).then_some(value as f32))
}

/// A factor and a term per channel.
fn affine_step(
    model: &TypedModel,
    node: &TypedNode,
    from: OutletId,
    c_axis: usize,
    channels: usize,
) -> TractResult<Option<(Vec<f64>, Vec<f64>)>> {
    let Some((op, constant, second)) = with_constant(model, node, from)? else { return Ok(None) };
    let rank = model.outlet_fact(from)?.rank();
    let per_channel = constant.rank() == rank
        && constant.shape().iter().enumerate().all(|(axis, dim)| *dim == if axis == c_axis { channels } else { 1 });
    if !(constant.len() == 1 || per_channel) || !constant.datum_type().is_float() {
        return Ok(None);
    }
    let wide = constant.cast_to::<f64>()?;
    let wide = wide.try_as_plain_ram()?;
    let values = wide.as_slice::<f64>()?;
    let values: Vec<f64> = (0..channels).map(|c| values[if per_channel { c } else { 0 }]).collect();
    let (ones, zeros) = (vec![1.0; channels], vec![0.0; channels]);
    let negated = |values: Vec<f64>| values.into_iter().map(|v| -v).collect();
    Ok(if op.0.is::<Mul>() {
        Some((values, zeros))
    } else if op.0.is::<Add>() {
        Some((ones, values))
    } else if op.0.is::<Sub>() {
        Some(if second { (ones, negated(values)) } else { (negated(ones), values) })
    } else if op.0.is::<Div>() && second && values.iter().all(|v| *v != 0.0) {
        Some((values.into_iter().map(|v| 1.0 / v).collect(), zeros))
    } else {
        None
    })
}

/// Filter and bias with an affine step folded in.
pub(crate) fn fold(
    spec: &DeconvSpec,
    filter: &Tensor,
    bias: Option<&Tensor>,
    (scale, term): &(Vec<f64>, Vec<f64>),
) -> TractResult<(Arc<Tensor>, Arc<Tensor>)> {
    let datum_type = filter.datum_type();
    let mut wide = filter.cast_to::<f64>()?.into_owned();
    let strides = spec.filter_strides();
    let mut view = wide.try_as_plain_ram_mut()?;
    let weights = view.as_slice_mut::<f64>()?;
    let taps: Vec<usize> = (0..spec.rank()).fold(vec![0], |at, ax| {
        at.iter()
            .flat_map(|a| (0..spec.kernel[ax]).map(move |k| (*a, k)))
            .map(|(a, k)| a + k * strides.kernel[ax])
            .collect()
    });
    for (channel, scale) in scale.iter().enumerate() {
        let (g, co) = (channel / spec.group_out(), channel % spec.group_out());
        for ci in 0..spec.group_in() {
            for tap in &taps {
                weights[g * strides.group + ci * strides.input + co * strides.output + tap] *= scale;
            }
        }
    }
    let mut folded = term.clone();
    if let Some(bias) = bias {
        let bias = bias.cast_to::<f64>()?;
        let bias = bias.try_as_plain_ram()?;
        for (c, value) in bias.as_slice::<f64>()?.iter().enumerate() {
            folded[c] += value * scale[c];
        }
    }
    Ok((
        wide.cast_to_dt(datum_type)?.into_owned().into_arc_tensor(),
        tensor1(&folded).cast_to_dt(datum_type)?.into_owned().into_arc_tensor(),
    ))
}
