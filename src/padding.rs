//! Folding of neighbouring `Pad` and `Slice` nodes into a convolution's padding.

use crate::spec::{DeconvSpec, Direction, Padding};
use tract_core::internal::*;
use tract_core::ops::array::{Pad, PadMode, Slice};

/// A node before or after a convolution that its padding replaces.
pub(crate) struct Folded {
    /// The convolution with the padding of both nodes.
    pub spec: DeconvSpec,
    /// The outlet that the folded convolution reads if the node precedes it, and replaces if the
    /// node follows it.
    pub outlet: OutletId,
}

/// Returns the convolution of `data` that includes the zeros which a preceding `Pad` adds on
/// spatial axes.
///
/// A zero before a forward convolution is padding. A zero before a transposed one adds nothing, but
/// its output positions: they are negative padding.
pub(crate) fn preceding(model: &TypedModel, data: OutletId, spec: &DeconvSpec) -> TractResult<Option<Folded>> {
    let node = model.node(data.node);
    let Some(pad) = node.op_as::<Pad>() else { return Ok(None) };
    let zeros = matches!(&pad.mode, PadMode::Constant(value) if value.cast_to_scalar::<f64>().is_ok_and(|v| v == 0.0));
    let step = |ax: usize| match spec.direction {
        Direction::Forward => 1,
        Direction::Transposed => -(spec.strides[ax] as i64),
    };
    let spec = if zeros { padded(spec, &model.outlet_fact(data)?.shape, &pad.pads, step) } else { None };
    Ok(spec.map(|spec| Folded { spec, outlet: node.inputs[0] }))
}

/// Returns the convolution without the output positions that a following `Slice` of a spatial axis
/// drops.
pub(crate) fn following(model: &TypedModel, node: &TypedNode, spec: &DeconvSpec) -> TractResult<Option<Folded>> {
    let outlet = OutletId::from(node.id);
    let [reader] = model.outlet_successors(outlet) else { return Ok(None) };
    let reader = model.node(reader.node);
    let Some(slice) = reader.op_as::<Slice>().filter(|_| !model.outputs.contains(&outlet)) else { return Ok(None) };
    let fact = model.outlet_fact(outlet)?;
    let behind = (fact.shape[slice.axis].clone() - &slice.end).simplify();
    let (Ok(before), Ok(behind)) = (slice.start.to_usize(), behind.to_usize()) else { return Ok(None) };
    let mut dropped = vec![(0, 0); fact.rank()];
    dropped[slice.axis] = (before, behind);
    let step = |ax: usize| match spec.direction {
        Direction::Forward => -(spec.strides[ax] as i64),
        Direction::Transposed => 1,
    };
    let input = &model.outlet_fact(node.inputs[0])?.shape;
    let Some(spec) = padded(spec, input, &dropped, step) else { return Ok(None) };
    let sliced = &model.outlet_fact(reader.id.into())?.shape;
    let same = spec.output_shape(input).is_ok_and(|output| *output == **sliced);
    Ok(same.then(|| Folded { spec, outlet: reader.id.into() }))
}

/// Returns the spec with `step(axis)` times the positions of each spatial axis added to its
/// padding.
///
/// Returns none if there are positions on other axes, or if the padding is not known for an input
/// of this shape.
fn padded(
    spec: &DeconvSpec,
    input: &[TDim],
    positions: &[(usize, usize)],
    step: impl Fn(usize) -> i64,
) -> Option<DeconvSpec> {
    let (x0, c) = (spec.data_format.x_axis(), spec.data_format.c_axis(positions.len()));
    if positions[0] != (0, 0) || positions[c] != (0, 0) {
        return None;
    }
    let (begin, end) = spec.explicit_pads(input.get(x0..x0 + spec.rank())?).ok()?;
    let sum = |pads: TVec<i64>, at: fn(&(usize, usize)) -> usize| -> Option<TVec<i64>> {
        let added = |ax: usize| i64::try_from(at(&positions[x0 + ax])).ok()?.checked_mul(step(ax));
        pads.iter().enumerate().map(|(ax, pad)| pad.checked_add(added(ax)?)).collect()
    };
    let padding = Padding::Explicit { begin: sum(begin, |p| p.0)?, end: sum(end, |p| p.1)? };
    let spec = DeconvSpec { padding, ..spec.clone() };
    spec.validate().is_ok().then_some(spec)
}
