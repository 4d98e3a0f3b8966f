//! The search for passes: nodes before a convolution that [`BetweenLayers`] can replace.

use crate::activation::Activation;
use crate::element::is_float;
use crate::fuse::{affine_of, scalar};
use crate::op::between::{BetweenLayers, Pass, check_pool};
use crate::op::{OptF16Arithmetic, OptResize, OptTranspose};
use crate::output::epilogue::Step;
use crate::plan::PlanOptions;
use crate::spec::{DataFormat, DeconvSpec};
use std::collections::HashSet;
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::ops::binary::{BinMiniOp, OptBinByScalar, OptBinChain, OptBinUnicast, TypedBinOp};
use tract_core::ops::cnn::{MaxPool, OptMaxPool};
use tract_core::ops::math::{Add, Max, Min, Mul};
use tract_core::ops::nn::NearestUpsample;

/// The maximum number of nodes searched before a layer.
const MOST_SEEN: usize = 32;

/// The passes found before a layer.
struct FoundPasses {
    /// The passes, last first.
    passes: Vec<Pass>,
    /// The operands of the passes, last first.
    inputs: Vec<OutletId>,
    /// The outlet that the op reads.
    from: OutletId,
}

impl BetweenLayers {
    /// Replaces nodes before `data`, the tensors that a layer with spec `spec` reads, by this op.
    ///
    /// The replaced nodes compute one of `data` itself. If there are none, and `data` is an upsampling, a
    /// concatenation or a move of the channel axis, their inputs are searched in the same way. Returns none if
    /// nothing is found.
    pub(crate) fn before(
        model: &TypedModel,
        data: &[OutletId],
        spec: &DeconvSpec,
        options: &PlanOptions,
    ) -> TractResult<Option<TypedModelPatch>> {
        let last_axis = spec.rank() + 1;
        let mut open: Vec<(OutletId, DataFormat)> =
            data.iter().rev().map(|outlet| (*outlet, spec.data_format)).collect();
        let mut seen = HashSet::new();
        while let Some((outlet, data_format)) = open.pop().filter(|_| seen.len() < MOST_SEEN) {
            if let Some(patch) = Self::computing(model, outlet, (spec.rank(), data_format), options)? {
                return Ok(Some(patch));
            }
            let node = model.node(outlet.node);
            let change = node.op_as::<AxisOp>().cloned().or_else(|| Some(node.op_as::<OptTranspose>()?.axis_op()));
            let before = match (change, data_format) {
                (Some(change), DataFormat::Nxc) if change == AxisOp::Move(1, last_axis) => Some(DataFormat::Ncx),
                (Some(change), DataFormat::Ncx) if change == AxisOp::Move(last_axis, 1) => Some(DataFormat::Nxc),
                (Some(_), _) => None,
                (None, _) => {
                    let moves =
                        node.op_is::<TypedConcat>() || node.op_is::<NearestUpsample>() || node.op_is::<OptResize>();
                    moves.then_some(data_format)
                }
            };
            if let Some(before) = before.filter(|_| seen.insert(node.id)) {
                open.extend(node.inputs.iter().rev().map(|input| (*input, before)));
            }
        }
        Ok(None)
    }

    /// Replaces nodes that compute `data`, which has so many spatial axes and this format.
    fn computing(
        model: &TypedModel,
        data: OutletId,
        (rank, data_format): (usize, DataFormat),
        options: &PlanOptions,
    ) -> TractResult<Option<TypedModelPatch>> {
        let fact = model.outlet_fact(data)?;
        if fact.rank() != rank + 2 || !is_float(fact.datum_type) {
            return Ok(None);
        }
        let mut found = FoundPasses { passes: vec![], inputs: vec![], from: data };
        while found.from == data || is_inner(model, found.from) {
            let Some(from) = found.step(model, data_format)? else { break };
            found.from = from;
        }
        if found.passes.is_empty() {
            return Ok(None);
        }
        let FoundPasses { mut passes, mut inputs, from } = found;
        passes.reverse();
        inputs.push(from);
        inputs.reverse();
        let mut patch = TypedModelPatch::new("passes between layers");
        let taps = patch.taps(model, &inputs)?;
        let op = BetweenLayers::new(passes, data_format, options)?;
        let wires = patch.wire_node(&model.node(data.node).name, op, &taps)?;
        patch.shunt_outside(model, data, wires[0])?;
        Ok(Some(patch))
    }
}

/// Returns whether exactly one node reads a value.
fn is_inner(model: &TypedModel, outlet: OutletId) -> bool {
    model.outlet_successors(outlet).len() == 1 && !model.outputs.contains(&outlet)
}

/// Returns the binary operations of a node that applies them to its first input, with the other
/// operand of each.
///
/// All of them commute, so the two operands of the first operation may be exchanged.
fn arithmetic(node: &TypedNode) -> Option<TVec<(&dyn BinMiniOp, OutletId)>> {
    let ops: TVec<&dyn BinMiniOp> = if let Some(op) = node.op_as::<OptBinByScalar>() {
        tvec!(&*op.binop)
    } else if let Some(op) = node.op_as::<OptBinUnicast>() {
        tvec!(&*op.binop)
    } else if let Some(op) = node.op_as::<TypedBinOp>() {
        tvec!(&*op.0)
    } else if let Some(op) = node.op_as::<OptF16Arithmetic>() {
        tvec!(op.operation())
    } else {
        node.op_as::<OptBinChain>()?.steps.iter().map(|step| &*step.binop).collect()
    };
    let commutes = |op: &&dyn BinMiniOp| op.is::<Add>() || op.is::<Mul>() || op.is::<Max>() || op.is::<Min>();
    let others = node.inputs.get(1..)?;
    (ops.len() == others.len() && ops.iter().all(commutes))
        .then(|| ops.into_iter().zip(others.iter().copied()).collect())
}

impl FoundPasses {
    /// Takes the node that computes `from`, if this op can replace it. Returns that node's input.
    fn step(&mut self, model: &TypedModel, data_format: DataFormat) -> TractResult<Option<OutletId>> {
        let node = model.node(self.from.node);
        let fact = model.outlet_fact(self.from)?;
        if node.outputs.len() != 1 {
            return Ok(None);
        }
        let pool = match (node.op_as::<MaxPool>(), node.op_as::<OptMaxPool>()) {
            (Some(pool), _) => pool.with_index_outputs.is_none().then_some(&pool.pool_spec),
            (_, Some(pool)) => pool.with_index_outputs.is_none().then_some(&pool.pool_spec),
            _ => None,
        };
        if let Some(pool) = pool {
            if pool.rank() + 2 != fact.rank() || check_pool(pool, data_format).is_err() {
                return Ok(None);
            }
            self.passes.push(Pass::MaxPool(Box::new(pool.clone())));
            return Ok(Some(node.inputs[0]));
        }
        if let Some((activation, from)) = crate::fuse::elu(model, node)? {
            self.passes.push(Pass::Step(Step::Activation(activation)));
            return Ok(Some(from));
        }
        if let [from] = *node.inputs {
            let Some(activation) = crate::fuse::element_wise(node) else { return Ok(None) };
            self.passes.push(Pass::Step(Step::Activation(activation)));
            return Ok(Some(from));
        }
        let Some(mut steps) = arithmetic(node) else { return Ok(None) };
        let mut from = node.inputs[0];
        // The search follows the operand that is not constant. Of a sum of two such operands it
        // follows the one that no other node reads.
        let (first, other) = steps[0];
        let [from_is_constant, other_is_constant] =
            [model.outlet_fact(from)?.konst.is_some(), model.outlet_fact(other)?.konst.is_some()];
        let other_is_inner = is_inner(model, other) && !is_inner(model, from) && first.is::<Add>();
        if from_is_constant || other_is_inner && !other_is_constant {
            steps[0].1 = from;
            from = other;
        }
        let before = model.outlet_fact(from)?;
        if before.datum_type != fact.datum_type || before.shape != fact.shape {
            return Ok(None);
        }
        let mut passes: Vec<(Pass, Option<OutletId>)> = vec![];
        for (op, other) in steps {
            let Some(pass) = pass(op, fact, model.outlet_fact(other)?, data_format)? else { return Ok(None) };
            let input = pass.takes_input().then_some(other);
            passes.push((pass, input));
        }
        for (pass, input) in passes.into_iter().rev() {
            self.passes.push(pass);
            self.inputs.extend(input);
        }
        Ok(Some(from))
    }
}

/// Returns the pass that is a binary op with another operand, for data of fact `fact`.
fn pass(op: &dyn BinMiniOp, fact: &TypedFact, other: &TypedFact, data_format: DataFormat) -> TractResult<Option<Pass>> {
    let rank = fact.rank();
    let c_axis = data_format.c_axis(rank);
    if other.datum_type != fact.datum_type {
        return Ok(None);
    }
    let Some(constant) = &other.konst else {
        if op.is::<Add>() {
            return Ok((other.shape == fact.shape).then_some(Pass::Step(Step::Add)));
        }
        let per_channel = other.rank() == rank
            && (0..rank).all(|axis| match axis {
                0 => other.shape[0] == fact.shape[0] || other.shape[0].is_one(),
                _ if axis == c_axis => other.shape[axis] == fact.shape[axis],
                _ => other.shape[axis].is_one(),
            });
        return Ok((op.is::<Mul>() && per_channel).then_some(Pass::Scale));
    };
    let Ok(channels) = fact.shape[c_axis].to_usize() else { return Ok(None) };
    if op.is::<Max>() || op.is::<Min>() {
        let bound = scalar(constant)?;
        let of = |value| if op.is::<Max>() { Activation::Max(value) } else { Activation::Min(value) };
        return Ok(bound.map(|value| Pass::Step(Step::Activation(of(value)))));
    }
    affine_of(op, constant, fact, (c_axis, channels)).map(|step| step.map(Pass::Step))
}
