//! The data formats of connected layers, chosen together.
//!
//! A layer may be faster with its channel axis last, but moving the axis before and behind it takes
//! longer than that saves. A chain of layers moves it at its ends only. So formats are chosen for all
//! layers that are connected through ops that compute in either format. The choice has the lowest
//! sum of estimated costs: those of the layers, and of the moves between two formats. That is a
//! minimum cut.

use super::minimum_cut::Capacities;
use super::{GroupedDeconv, shared};
use crate::layout::input::SIXTEEN_BYTES;
use crate::plan::Plan;
use crate::settings;
use crate::spec::{DataFormat, DeconvSpec};
use std::collections::{BTreeMap, BTreeSet};
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::konst::Const;
use tract_core::ops::nn::Reduce;

/// The most nodes whose formats are chosen together.
const MOST_NODES: usize = 1024;

/// The cost of moving the channel axis, per 16 bytes, in vector multiply-adds.
const MOVED: u64 = 3 * SIXTEEN_BYTES;

/// The cost of a move besides, in vector multiply-adds.
const MOVE: u64 = 10_000;

/// The percentages of the estimated costs of depthwise layers that count, with the channel axis first and last.
///
/// The planner compares the estimates of one layer with each other. A unit of them is more time in depthwise layers
/// than in others, and channels last gain more than is estimated.
const DEPTHWISE_PERCENT: [u64; 2] = [180, 150];

/// The same for other layers. A change of format has to be worth more than estimates are off.
const DENSE_PERCENT: [u64; 2] = [100, 103];

/// A cost that no choice is worth.
const NEVER: u64 = 1 << 60;

/// Chooses the formats of a layer with channels first and of the layers around it, and returns the
/// patch for all of them.
///
/// Returns none if there are no layers around it, or if its sizes are open.
pub(super) fn chosen(
    model: &TypedModel,
    layer: &TypedNode,
    op: &GroupedDeconv,
) -> TractResult<Option<TypedModelPatch>> {
    let region = Region::around(model, layer, &op.spec)?;
    let layers = region.nodes.keys().filter(|id| model.node(**id).op_is::<GroupedDeconv>()).count();
    if layers < 2 {
        return Ok(None);
    }
    region.patch(&region.cheapest()?).map(Some)
}

/// A node that computes in either format.
struct Either {
    /// The op with the channel axis last.
    last: Box<dyn TypedOp>,
    /// The estimated costs with the channel axis first, and last.
    costs: [u64; 2],
}

/// Connected nodes that compute in either format.
struct Region<'a> {
    model: &'a TypedModel,
    /// The last axis of the tensors.
    last_axis: usize,
    nodes: BTreeMap<usize, Either>,
}

impl<'a> Region<'a> {
    fn around(model: &'a TypedModel, layer: &TypedNode, spec: &DeconvSpec) -> TractResult<Region<'a>> {
        let mut region = Region { model, last_axis: spec.rank() + 1, nodes: BTreeMap::new() };
        let (mut open, mut seen) = (BTreeSet::from([layer.id]), BTreeSet::from([layer.id]));
        while let Some(node) = open.pop_last().map(|id| model.node(id)) {
            if region.nodes.len() >= MOST_NODES {
                break;
            }
            let Some(either) = region.either(node)? else { continue };
            region.nodes.insert(node.id, either);
            let before = node.inputs[..data_inputs(node)].iter().map(|input| input.node);
            let after = model.outlet_successors(node.id.into()).iter();
            let after = after.filter(|inlet| inlet.slot < data_inputs(model.node(inlet.node))).map(|inlet| inlet.node);
            open.extend(before.chain(after).filter(|id| seen.insert(*id)));
        }
        Ok(region)
    }

    /// The move of the channel axis to the end.
    fn to_last(&self) -> AxisOp {
        AxisOp::Move(1, self.last_axis)
    }

    /// Returns the two forms of a node, or none if it has one only.
    fn either(&self, node: &TypedNode) -> TractResult<Option<Either>> {
        let (inputs, outputs) = self.model.node_facts(node.id)?;
        let costs = if let Some(op) = node.op_as::<GroupedDeconv>() {
            let is_taken = op.fusion && !op.format_is_chosen && op.spec.data_format == DataFormat::Ncx;
            if !is_taken || op.spec.rank() + 1 != self.last_axis {
                return Ok(None);
            }
            match costs(op, inputs[0])? {
                Some(costs) => costs,
                None => return Ok(None),
            }
        } else {
            let spatial = |op: &Reduce| op.axes.iter().all(|axis| *axis > 1);
            let follows = node.op_is::<ElementWiseOp>()
                || node.op_is::<TypedBinOp>()
                || node.op_as::<Reduce>().is_some_and(spatial);
            let same_rank = inputs.iter().chain(&outputs).all(|fact| fact.rank() == self.last_axis + 1);
            if !follows || !same_rank || outputs.len() != 1 {
                return Ok(None);
            }
            [0, 0]
        };
        let Some(change) = node.op.change_axes(self.model, node, InOut::In(0), &self.to_last())? else {
            return Ok(None);
        };
        Ok(Some(Either { last: change.substitute_op.unwrap_or_else(|| node.op.clone()), costs }))
    }

    /// Returns the estimated cost of moving the channel axis of a tensor.
    fn moving(&self, outlet: OutletId) -> TractResult<u64> {
        let fact = self.model.outlet_fact(outlet)?;
        let Some(shape) = fact.shape.as_concrete() else { return Ok(NEVER) };
        if shape[1] == 1 || shape[2..].iter().all(|size| *size == 1) {
            return Ok(MOVE);
        }
        let bytes = shape.iter().fold(fact.datum_type.size_of() as u64, |bytes, dim| bytes.saturating_mul(*dim as u64));
        Ok((bytes / 16).saturating_mul(MOVED).saturating_add(MOVE).min(NEVER))
    }

    /// Returns whether a node may become part of the layer that computes one of its inputs. It then keeps that
    /// layer's format.
    fn folds(&self, input: OutletId, node: &TypedNode) -> bool {
        self.nodes.contains_key(&input.node)
            && self.model.outlet_successors(input).len() == 1
            && (node.op_is::<ElementWiseOp>() || node.op_is::<TypedBinOp>())
    }

    /// Returns whether a node outside of the region moves the channel axis to the end (`true`) or back.
    fn is_move(&self, node: usize, to_last: bool) -> bool {
        let op = if to_last { self.to_last() } else { self.to_last().recip() };
        self.model.node(node).op_as::<AxisOp>() == Some(&op)
    }

    /// Returns the nodes that have the channel axis last in the cheapest choice.
    fn cheapest(&self) -> TractResult<BTreeSet<usize>> {
        let index: BTreeMap<usize, usize> = self.nodes.keys().enumerate().map(|(at, id)| (*id, at)).collect();
        let (first, last) = (index.len(), index.len() + 1);
        let mut graph = Capacities::new(index.len() + 2)?;
        for (id, either) in &self.nodes {
            let (node, at) = (self.model.node(*id), index[id]);
            graph.add(first, at, either.costs[1])?;
            graph.add(at, last, either.costs[0])?;
            for input in &node.inputs[..data_inputs(node)] {
                if self.model.node(input.node).op_is::<Const>() {
                    continue;
                }
                let moving = self.moving(*input)?;
                match index.get(&input.node) {
                    Some(producer) if self.folds(*input, node) => graph.add_both(at, *producer, NEVER)?,
                    Some(producer) => graph.add_both(at, *producer, moving)?,
                    None if self.is_move(input.node, false) => graph.add_both(at, last, moving)?,
                    // A layer can read the tensors of a concatenation one by one, if nothing is in between.
                    None if self.model.node(input.node).op_is::<TypedConcat>() => {
                        graph.add_both(at, first, moving.saturating_add(moving / 2))?
                    }
                    None => graph.add_both(at, first, moving)?,
                }
            }
            let outlet = OutletId::from(*id);
            let moving = self.moving(outlet)?;
            let outside = self.outside(outlet);
            if outside.iter().any(|reader| self.is_move(*reader, true)) {
                graph.add_both(at, last, moving)?;
            }
            if self.is_read_first(outlet, &outside) {
                graph.add_both(at, first, moving)?;
            }
        }
        let cut = graph.minimum_cut(first, last)?;
        Ok(index.into_iter().filter(|(_, at)| cut[*at]).map(|(id, _)| id).collect())
    }

    /// Returns the readers of an outlet that are not in the region.
    fn outside(&self, outlet: OutletId) -> Vec<usize> {
        let readers = self.model.outlet_successors(outlet).iter();
        let outside = |inlet: &&InletId| {
            !self.nodes.contains_key(&inlet.node) || inlet.slot >= data_inputs(self.model.node(inlet.node))
        };
        readers.filter(outside).map(|inlet| inlet.node).collect()
    }

    /// Returns whether the channel axis of an outlet is read behind the batch, outside of the region.
    fn is_read_first(&self, outlet: OutletId, outside: &[usize]) -> bool {
        self.model.outputs.contains(&outlet) || outside.iter().any(|reader| !self.is_move(*reader, true))
    }

    /// Returns the patch that gives the layers their formats.
    fn patch(&self, last: &BTreeSet<usize>) -> TractResult<TypedModelPatch> {
        let mut patch = TypedModelPatch::new("formats of layers");
        let mut wires = BTreeMap::new();
        for id in self.model.eval_order()? {
            let (Some(either), node) = (self.nodes.get(&id), self.model.node(id)) else { continue };
            let is_last = last.contains(&id);
            let mut inputs = tvec!();
            for (slot, input) in node.inputs.iter().enumerate() {
                let is_last = is_last && slot < data_inputs(node);
                inputs.push(self.wire(&mut patch, &mut wires, *input, is_last)?);
            }
            let op = if is_last { either.last.clone() } else { node.op.clone() };
            let op = match op.downcast_ref::<GroupedDeconv>() {
                Some(layer) => Box::new(GroupedDeconv { format_is_chosen: true, ..layer.clone() }),
                None => op,
            };
            let wire = patch.wire_node(&node.name, op, &inputs)?[0];
            wires.insert((OutletId::from(id), is_last), wire);
        }
        for id in self.nodes.keys() {
            let outlet = OutletId::from(*id);
            let outside = self.outside(outlet);
            if self.is_read_first(outlet, &outside) {
                let wire = self.wire(&mut patch, &mut wires, outlet, false)?;
                patch.shunt_outside(self.model, outlet, wire)?;
            }
            for reader in outside.into_iter().filter(|reader| self.is_move(*reader, true)) {
                let wire = self.wire(&mut patch, &mut wires, outlet, true)?;
                patch.shunt_outside(self.model, reader.into(), wire)?;
            }
        }
        Ok(patch)
    }

    /// Returns the wire of the patch for an outlet of the model in one of the formats.
    fn wire(
        &self,
        patch: &mut TypedModelPatch,
        wires: &mut BTreeMap<(OutletId, bool), OutletId>,
        outlet: OutletId,
        is_last: bool,
    ) -> TractResult<OutletId> {
        if let Some(wire) = wires.get(&(outlet, is_last)) {
            return Ok(*wire);
        }
        let node = self.model.node(outlet.node);
        let (change, place) = match is_last {
            true => (self.to_last(), "channels_last"),
            false => (self.to_last().recip(), "channels_first"),
        };
        let name = self.model.unique_name(format!("{}.{}.{place}", node.name, outlet.slot));
        let wire = if let Some(wire) = wires.get(&(outlet, !is_last)).copied() {
            patch.wire_node(name, change, &[wire])?[0]
        } else if !is_last {
            patch.tap_model(self.model, outlet)?
        } else if let Some(konst) = node.op_as::<Const>() {
            let mut value = konst.val().clone().into_tensor();
            change.change_tensor(&mut value, false)?;
            patch.add_const(name, value)?
        } else if self.is_move(outlet.node, false) {
            patch.tap_model(self.model, node.inputs[0])?
        } else {
            let wire = patch.tap_model(self.model, outlet)?;
            patch.wire_node(name, change, &[wire])?[0]
        };
        wires.insert((outlet, is_last), wire);
        Ok(wire)
    }
}

/// Returns the number of inputs with a channel axis, the first ones of a node.
fn data_inputs(node: &TypedNode) -> usize {
    if node.op_is::<GroupedDeconv>() { 1 } else { node.inputs.len() }
}

/// Returns the estimated costs of a layer with channels first and last, if there are plans for both.
fn costs(op: &GroupedDeconv, data: &TypedFact) -> TractResult<Option<[u64; 2]>> {
    let Some(shape) = shared::known_shape(&op.spec, data) else { return Ok(None) };
    let options = settings::complete(&op.options)?;
    let cost = |spec: &DeconvSpec, shape: &[usize]| {
        Plan::new(spec, shape, None, data.datum_type, &options).ok().and_then(|plan| plan.cost())
    };
    let spec = DeconvSpec { data_format: DataFormat::Nxc, ..op.spec.clone() };
    let mut last: TVec<usize> = shape.into();
    last[1..].rotate_left(1);
    let Some([first, mut last]) = cost(&op.spec, shape).zip(cost(&spec, &last)).map(<[u64; 2]>::from) else {
        return Ok(None);
    };
    let is_depthwise = spec.group > 1 && spec.group == spec.in_channels;
    if !is_depthwise && spec.kernel.iter().any(|taps| *taps > 1) {
        // Such layers gain by neither format.
        last = last.max(first);
    }
    let percent = if is_depthwise { DEPTHWISE_PERCENT } else { DENSE_PERCENT };
    Ok(Some([first.saturating_mul(percent[0]) / 100, last.saturating_mul(percent[1]) / 100]))
}
