//! Folding of neighbouring nodes into a convolution when a model is optimised.
//!
//! Per-channel affine steps become part of the weights and the bias. Other steps that follow the
//! convolution become part of its epilogue.

use crate::activation::Activation;
use crate::memory::{self, collected, tensor_of};
use crate::output::epilogue::Step;
use crate::spec::{DeconvSpec, Direction, Padding};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_core::ops::binary::{BinMiniOp, OptBinByScalar, OptBinUnicast, TypedBinOp};
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::logic::{CompGT, CompLT, Iff};
use tract_core::ops::math::{Add, Div, Exp, Max, Min, Mul, Sub, Tanh};
use tract_core::ops::nn::{GeluApproximate, GeluExact, HardSwish, LeakyRelu, Sigmoid, Silu};

/// `factor·x + term` per channel, over the channels of all groups.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Affine {
    factor: Vec<f64>,
    term: Vec<f64>,
}

impl Affine {
    /// Returns this step followed by `next`, as one step.
    fn then(mut self, next: &Affine) -> Affine {
        for (c, (factor, term)) in next.factor.iter().zip(&next.term).enumerate() {
            self.factor[c] *= factor;
            self.term[c] = self.term[c] * factor + term;
        }
        self
    }

    /// Returns the factor of each channel.
    pub(crate) fn factors(&self) -> &[f64] {
        &self.factor
    }

    /// Returns the term of each channel.
    pub(crate) fn terms(&self) -> &[f64] {
        &self.term
    }

    fn has_term(&self) -> bool {
        self.term.iter().any(|term| *term != 0.0)
    }

    /// Returns whether the step multiplies all channels by one finite nonzero number and adds
    /// nothing.
    fn is_one_factor(&self) -> bool {
        let usable = |factor: f64| factor.is_finite() && factor != 0.0;
        let Some(first) = self.factor.first().filter(|factor| usable(**factor)) else { return false };
        self.factor.iter().all(|factor| factor == first) && !self.has_term()
    }
}

/// `min(max(scale·x + shift, low), high)`, with `low <= high`.
///
/// Any sequence of scalar additions, multiplications, minima and maxima of `x` with constants has
/// this form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clamp {
    scale: f64,
    shift: f64,
    low: f64,
    high: f64,
}

impl Clamp {
    const IDENTITY: Clamp = Clamp { scale: 1.0, shift: 0.0, low: f64::NEG_INFINITY, high: f64::INFINITY };

    fn multiplied(self, by: f64) -> Clamp {
        let (low, high) = if by < 0.0 { (self.high, self.low) } else { (self.low, self.high) };
        Clamp { scale: self.scale * by, shift: self.shift * by, low: low * by, high: high * by }
    }

    fn plus(self, term: f64) -> Clamp {
        Clamp { shift: self.shift + term, low: self.low + term, high: self.high + term, ..self }
    }

    fn at_least(self, bound: f64) -> Clamp {
        Clamp { low: self.low.max(bound), high: self.high.max(bound), ..self }
    }

    fn at_most(self, bound: f64) -> Clamp {
        Clamp { low: self.low.min(bound), high: self.high.min(bound), ..self }
    }

    /// Returns `x` times this clamp of `x`, as an activation.
    fn activation(self) -> Activation {
        let Clamp { scale, shift, low, high } = self;
        Activation::Gate { scale: scale as f32, shift: shift as f32, low: low as f32, high: high as f32 }
    }
}

/// The nodes found after a convolution whose intermediate values no other node reads.
pub(crate) struct Following {
    /// The step that becomes part of weights and bias.
    pub affine: Option<Affine>,
    /// The steps applied to the results, in order.
    pub epilogue: Vec<Step>,
    /// The tensors that the epilogue adds, in order.
    pub residuals: TVec<OutletId>,
    /// The outlet that the folded op replaces: that of the last folded node.
    pub outlet: OutletId,
}

/// One node, or group of nodes, that can be folded.
pub(crate) enum Fold {
    Step(Step),
    Affine(Affine),
    Gate(Clamp),
    Add(OutletId),
}

/// Searches the nodes after `node`. `weights` tells whether weights and bias can be changed.
pub(crate) fn following(
    model: &TypedModel,
    node: &TypedNode,
    spec: &DeconvSpec,
    weights: bool,
) -> TractResult<Following> {
    let mut outlet = OutletId::from(node.id);
    let mut folds: Vec<Fold> = vec![];
    let fact = model.outlet_fact(outlet)?;
    let channels = (spec.data_format.c_axis(fact.rank()), spec.out_channels);
    while let Some((fold, next)) = behind(model, outlet, channels)? {
        let same = model.outlet_fact(next)?;
        if !fact.datum_type.is_float() || same.datum_type != fact.datum_type || same.shape != fact.shape {
            break;
        }
        match (folds.pop(), fold) {
            (Some(Fold::Affine(last)), Fold::Affine(affine)) => folds.push(Fold::Affine(last.then(&affine))),
            (Some(Fold::Gate(gate)), Fold::Affine(affine)) if affine.is_one_factor() => {
                folds.push(Fold::Gate(gate.multiplied(affine.factor[0])))
            }
            (last, fold) => folds.extend(last.into_iter().chain([fold])),
        }
        outlet = next;
    }
    let mut found = Following { affine: None, epilogue: vec![], residuals: tvec![], outlet };
    // Folding would round 16-bit weights once more, and sums of many of them would show the error.
    let wide = fact.datum_type != f16::datum_type();
    for fold in folds {
        match fold {
            Fold::Affine(affine) if weights && wide && found.epilogue.is_empty() => found.affine = Some(affine),
            Fold::Affine(Affine { factor, term }) => found.epilogue.push(Step::Affine {
                factor: per_channel(factor, fact.datum_type)?,
                term: per_channel(term, fact.datum_type)?,
            }),
            Fold::Step(step) => found.epilogue.push(step),
            Fold::Gate(gate) => found.epilogue.push(Step::Activation(gate.activation())),
            Fold::Add(residual) => {
                found.epilogue.push(Step::Add);
                found.residuals.push(residual);
            }
        }
    }
    Ok(found)
}

/// Returns values in the accumulation type of `datum_type`.
fn per_channel(values: Vec<f64>, datum_type: DatumType) -> TractResult<Arc<Tensor>> {
    let compute = if datum_type == DatumType::F64 { DatumType::F64 } else { DatumType::F32 };
    Ok(rounded("per channel", &values, compute)?.into_arc_tensor())
}

/// Returns values as a vector of a float type.
fn rounded(what: &str, values: &[f64], datum_type: DatumType) -> TractResult<Tensor> {
    let (shape, values) = ([values.len()], values.iter());
    match datum_type {
        DatumType::F64 => tensor_of(what, &shape, values.copied()),
        DatumType::F32 => tensor_of(what, &shape, values.map(|value| *value as f32)),
        DatumType::F16 => tensor_of(what, &shape, values.map(|value| f16::from_f64(*value))),
        other => bail!("{what}: datum_type={other:?}, floats are needed"),
    }
}

/// Returns `len` values of a tensor of floats, which repeat if the tensor has fewer.
fn widened(what: &str, tensor: &Tensor, len: usize) -> TractResult<Vec<f64>> {
    let ram = tensor.try_as_plain_ram()?;
    let at = |i: usize| i % tensor.len();
    match tensor.datum_type() {
        DatumType::F64 => ram.as_slice::<f64>().map(|v| collected(what, (0..len).map(|i| v[at(i)])))?,
        DatumType::F32 => ram.as_slice::<f32>().map(|v| collected(what, (0..len).map(|i| v[at(i)] as f64)))?,
        DatumType::F16 => ram.as_slice::<f16>().map(|v| collected(what, (0..len).map(|i| v[at(i)].to_f64())))?,
        other => bail!("{what}: datum_type={other:?}, floats are needed"),
    }
}

/// Returns what the readers of an outlet fold to, and the outlet after them.
///
/// Returns none if the value itself is needed. `channels` is the channel axis and its size.
pub(crate) fn behind(
    model: &TypedModel,
    from: OutletId,
    channels: (usize, usize),
) -> TractResult<Option<(Fold, OutletId)>> {
    if model.outputs.contains(&from) {
        return Ok(None);
    }
    let reader = match model.outlet_successors(from) {
        [reader] => reader,
        [_, _] => return gate(model, from, channels),
        _ => {
            let found = elu_behind(model, from)?;
            return if found.is_some() { Ok(found) } else { prelu(model, from, channels) };
        }
    };
    let node = model.node(reader.node);
    if node.outputs.len() != 1 {
        return Ok(None);
    }
    let fold = if let Some(activation) = activation(model, node, from)? {
        Fold::Step(Step::Activation(activation))
    } else if let Some(affine) = affine(model, node, from, channels)? {
        Fold::Affine(affine)
    } else if let Some(residual) = residual(model, node, from)? {
        Fold::Add(residual)
    } else {
        return Ok(None);
    };
    Ok(Some((fold, node.id.into())))
}

/// Returns the activation that a node of one input computes.
pub(crate) fn element_wise(node: &TypedNode) -> Option<Activation> {
    let op = &node.op_as::<ElementWiseOp>()?.0;
    if op.is::<Sigmoid>() {
        Some(Activation::Sigmoid)
    } else if op.is::<Tanh>() {
        Some(Activation::Tanh)
    } else if op.is::<HardSwish>() {
        Some(Activation::HardSwish)
    } else if op.is::<Silu>() {
        Some(Activation::Silu)
    } else if op.is::<GeluExact>() {
        Some(Activation::Gelu)
    } else if op.downcast_ref::<GeluApproximate>().is_some_and(|gelu| !gelu.fast_impl) {
        Some(Activation::GeluTanh)
    } else {
        op.downcast_ref::<LeakyRelu>().map(|relu| Activation::LeakyRelu(relu.alpha))
    }
}

/// Returns the activation that a node of one operand and constants computes, and the operand.
pub(crate) fn activation_of(model: &TypedModel, node: &TypedNode) -> TractResult<Option<(Activation, OutletId)>> {
    for from in &node.inputs {
        if model.outlet_fact(*from)?.konst.is_none() {
            return Ok(activation(model, node, *from)?.map(|activation| (activation, *from)));
        }
    }
    Ok(None)
}

fn activation(model: &TypedModel, node: &TypedNode, from: OutletId) -> TractResult<Option<Activation>> {
    if node.op_is::<ElementWiseOp>() {
        return Ok(element_wise(node));
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

/// Returns the tensor that `node` adds to `from`, if it has the same type and shape.
fn residual(model: &TypedModel, node: &TypedNode, from: OutletId) -> TractResult<Option<OutletId>> {
    if !node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Add>()) {
        return Ok(None);
    }
    let other = node.inputs[(node.inputs[0] == from) as usize];
    let (one, two) = (model.outlet_fact(from)?, model.outlet_fact(other)?);
    Ok((one.datum_type == two.datum_type && one.shape == two.shape).then_some(other))
}

/// Matches Elu as tract wires it, with three readers of `from`.
fn elu_behind(model: &TypedModel, from: OutletId) -> TractResult<Option<(Fold, OutletId)>> {
    let readers = model.outlet_successors(from);
    let Some(iff) = readers.iter().map(|inlet| model.node(inlet.node)).find(|node| node.op_is::<Iff>()) else {
        return Ok(None);
    };
    let found = elu(model, iff)?.filter(|(_, x)| *x == from && readers.len() == 3);
    Ok(found.map(|(activation, _)| (Fold::Step(Step::Activation(activation)), iff.id.into())))
}

/// Matches the last node of Elu as tract wires it, `if 0 < x then x else alpha·(exp(x) - 1)`, before and after
/// its operators are chosen. Returns the activation and `x`. Nothing else reads the values between.
pub(crate) fn elu(model: &TypedModel, iff: &TypedNode) -> TractResult<Option<(Activation, OutletId)>> {
    let [test, x, negative] = *iff.inputs else { return Ok(None) };
    let alone = |outlet: OutletId| model.outlet_successors(outlet).len() == 1 && !model.outputs.contains(&outlet);
    let constant = |outlet: OutletId| match &model.outlet_fact(outlet)?.uniform {
        Some(uniform) => scalar(uniform),
        None => Ok(None),
    };
    let positive = match binary(model.node(test.node)) {
        Some((op, [zero, of])) if op.is::<CompLT>() && of == x => constant(zero)? == Some(0.0),
        Some((op, [of, zero])) if op.is::<CompGT>() && of == x => constant(zero)? == Some(0.0),
        _ => false,
    };
    if !iff.op_is::<Iff>() || !positive || !alone(test) || !alone(negative) {
        return Ok(None);
    }
    let (mut alpha, mut less_one) = (1.0, negative);
    if let Some((op, [a, b])) = binary(model.node(negative.node))
        && op.is::<Mul>()
    {
        let (factor, of) = match (constant(a)?, constant(b)?) {
            (Some(factor), _) => (factor, b),
            (_, Some(factor)) => (factor, a),
            _ => return Ok(None),
        };
        (alpha, less_one) = (factor, of);
    }
    let Some((op, [exp, one])) = binary(model.node(less_one.node)) else { return Ok(None) };
    let one = constant(one)?;
    let is_less_one = op.is::<Sub>() && one == Some(1.0) || op.is::<Add>() && one == Some(-1.0);
    let node = model.node(exp.node);
    let is_exp = node.op_as::<ElementWiseOp>().is_some_and(|op| op.0.is::<Exp>()) && node.inputs[0] == x;
    Ok((is_less_one && is_exp && alone(less_one) && alone(exp)).then_some((Activation::Elu(alpha), x)))
}

/// Returns the binary operation of a node on two inputs.
pub(crate) fn binary(node: &TypedNode) -> Option<(&dyn BinMiniOp, [OutletId; 2])> {
    let op: &dyn BinMiniOp = if let Some(op) = node.op_as::<TypedBinOp>() {
        &*op.0
    } else if let Some(op) = node.op_as::<OptBinByScalar>() {
        &*op.binop
    } else {
        &*node.op_as::<OptBinUnicast>()?.binop
    };
    Some((op, <[OutletId; 2]>::try_from(&*node.inputs).ok()?))
}

/// Matches PRelu as tract wires it, `if 0 > x then slope·x else x`, with slopes per channel.
fn prelu(model: &TypedModel, from: OutletId, channels: (usize, usize)) -> TractResult<Option<(Fold, OutletId)>> {
    let readers = model.outlet_successors(from);
    let Some(iff) = readers.iter().map(|inlet| model.node(inlet.node)).find(|node| node.op_is::<Iff>()) else {
        return Ok(None);
    };
    let [test, scaled, plain] = *iff.inputs else { return Ok(None) };
    let between = [test, scaled];
    let alone = |outlet: &OutletId| model.outlet_successors(*outlet).len() == 1 && !model.outputs.contains(outlet);
    let chosen = plain == from
        && readers.len() == 3
        && between.iter().all(|outlet| alone(outlet) && readers.iter().any(|reader| reader.node == outlet.node));
    if !chosen {
        return Ok(None);
    }
    let Some((op, zero, constant_first)) = with_constant(model, model.node(test.node), from)? else { return Ok(None) };
    let negative = if constant_first { op.0.is::<CompGT>() } else { op.0.is::<CompLT>() };
    if !negative || scalar(&zero)? != Some(0.0) {
        return Ok(None);
    }
    let Some(slopes) = affine(model, model.node(scaled.node), from, channels)?.filter(|affine| !affine.has_term())
    else {
        return Ok(None);
    };
    let first = slopes.factor.first().copied().unwrap_or(0.0);
    let step = if slopes.factor.iter().all(|slope| *slope == first) && first as f32 as f64 == first {
        Step::Activation(Activation::LeakyRelu(first as f32))
    } else {
        Step::PRelu(per_channel(slopes.factor, model.outlet_fact(from)?.datum_type)?)
    };
    Ok(Some((Fold::Step(step), iff.id.into())))
}

/// Matches `x` times a [`Clamp`] of `x`.
///
/// Exporters write HardSwish in this form, `x·min(max(x + 3, 0), 6) / 6`, and similar functions.
fn gate(model: &TypedModel, from: OutletId, channels: (usize, usize)) -> TractResult<Option<(Fold, OutletId)>> {
    let fact = model.outlet_fact(from)?;
    // The parameters of the activation are f32.
    if !matches!(fact.datum_type, DatumType::F16 | DatumType::F32) {
        return Ok(None);
    }
    let readers = model.outlet_successors(from);
    let is_product = |node: &TypedNode| node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Mul>());
    for (first, product) in [(readers[0], readers[1]), (readers[1], readers[0])] {
        let product = model.node(product.node);
        let (mut clamp, mut outlet, mut next) = (Clamp::IDENTITY, from, first);
        while is_product(product) && next.node != product.id {
            let node = model.node(next.node);
            let Some(further) = clamped(model, node, outlet, channels, clamp)? else { break };
            (clamp, outlet) = (further, node.id.into());
            let same = model.outlet_fact(outlet)?;
            let [reader] = model.outlet_successors(outlet) else { break };
            if model.outputs.contains(&outlet) || same.datum_type != fact.datum_type || same.shape != fact.shape {
                break;
            }
            next = *reader;
        }
        if next.node == product.id && outlet != from {
            return Ok(Some((Fold::Gate(clamp), product.id.into())));
        }
    }
    Ok(None)
}

/// Returns the clamp of `from`'s values composed with `node`, if the composition is a clamp too.
fn clamped(
    model: &TypedModel,
    node: &TypedNode,
    from: OutletId,
    channels: (usize, usize),
    clamp: Clamp,
) -> TractResult<Option<Clamp>> {
    if let Some(activation) = activation(model, node, from)? {
        return Ok(match activation {
            Activation::Max(bound) => Some(clamp.at_least(bound as f64)),
            Activation::Min(bound) => Some(clamp.at_most(bound as f64)),
            _ => None,
        });
    }
    let Some(Affine { factor, term }) = affine(model, node, from, channels)? else { return Ok(None) };
    let same = |values: &[f64]| values.iter().all(|value| *value == values[0]);
    let usable = factor.first().is_some_and(|f| f.is_finite() && *f != 0.0) && term.iter().all(|t| t.is_finite());
    Ok((usable && same(&factor) && same(&term)).then(|| clamp.multiplied(factor[0]).plus(term[0])))
}

/// Matches a binary op of `from` and a constant. The flag tells whether the constant comes first.
fn with_constant<'a>(
    model: &TypedModel,
    node: &'a TypedNode,
    from: OutletId,
) -> TractResult<Option<(&'a TypedBinOp, Arc<Tensor>, bool)>> {
    let Some(op) = node.op_as::<TypedBinOp>() else { return Ok(None) };
    let second = node.inputs[0] == from;
    let other = model.outlet_fact(node.inputs[second as usize])?;
    Ok(other.konst.clone().map(|constant| (op, constant, !second)))
}

/// Returns the value of a constant of one element, if f32 represents it exactly.
pub(crate) fn scalar(constant: &Tensor) -> TractResult<Option<f32>> {
    if constant.len() != 1 || !constant.datum_type().is_float() {
        return Ok(None);
    }
    let wide = constant.cast_to::<f64>()?;
    let value = wide.try_as_plain_ram()?.as_slice::<f64>()?[0];
    Ok((value as f32 as f64 == value).then_some(value as f32))
}

/// Matches a node that multiplies `from` by constants or adds them, per channel or one for all.
fn affine(
    model: &TypedModel,
    node: &TypedNode,
    from: OutletId,
    channels: (usize, usize),
) -> TractResult<Option<Affine>> {
    let Some((op, constant, constant_first)) = with_constant(model, node, from)? else { return Ok(None) };
    affine_by(&*op.0, &constant, constant_first, model.outlet_fact(from)?.rank(), channels)
}

/// Returns the step that multiplies by a constant or adds it, for data of fact `fact`.
pub(crate) fn affine_of(
    op: &dyn BinMiniOp,
    constant: &Tensor,
    fact: &TypedFact,
    channels: (usize, usize),
) -> TractResult<Option<Step>> {
    let Some(Affine { factor, term }) = affine_by(op, constant, false, fact.rank(), channels)? else { return Ok(None) };
    let of = |values| per_channel(values, fact.datum_type);
    Ok(Some(Step::Affine { factor: of(factor)?, term: of(term)? }))
}

fn affine_by(
    op: &dyn BinMiniOp,
    constant: &Tensor,
    constant_first: bool,
    rank: usize,
    (c_axis, channels): (usize, usize),
) -> TractResult<Option<Affine>> {
    let per_channel = constant.rank() == rank
        && constant.shape().iter().enumerate().all(|(axis, dim)| *dim == if axis == c_axis { channels } else { 1 });
    if !(constant.len() == 1 || per_channel) || !constant.datum_type().is_float() {
        return Ok(None);
    }
    ensure!(constant.len() > 0 || channels == 0, "constant: shape={:?}, it is empty", constant.shape());
    let mut values = widened("constant", constant, channels)?;
    let other = |value: f64| collected("constant", (0..channels).map(|_| value));
    let affine = |factor, term| Some(Affine { factor, term });
    Ok(if op.is::<Mul>() {
        affine(values, other(0.0)?)
    } else if op.is::<Add>() {
        affine(other(1.0)?, values)
    } else if op.is::<Sub>() && constant_first {
        affine(other(-1.0)?, values)
    } else if op.is::<Sub>() {
        values.iter_mut().for_each(|value| *value = -*value);
        affine(other(1.0)?, values)
    } else if op.is::<Div>() && !constant_first && values.iter().all(|v| *v != 0.0) {
        values.iter_mut().for_each(|value| *value = 1.0 / *value);
        affine(values, other(0.0)?)
    } else {
        None
    })
}

/// The nodes found before a convolution whose intermediate values no other node reads.
pub(crate) struct Preceding {
    /// The step that becomes part of weights and bias, per input channel.
    pub affine: Affine,
    /// The outlet that the folded op reads.
    pub outlet: OutletId,
}

/// Searches the nodes before `data`, a convolution's input. `bias` tells whether the bias can be
/// changed.
pub(crate) fn preceding(
    model: &TypedModel,
    data: OutletId,
    spec: &DeconvSpec,
    bias: bool,
) -> TractResult<Option<Preceding>> {
    let fact = model.outlet_fact(data)?;
    let channels = (spec.data_format.c_axis(fact.rank()), spec.in_channels);
    let mut found: Option<Preceding> = None;
    // Folded 16-bit weights might leave their range.
    if !matches!(fact.datum_type, DatumType::F32 | DatumType::F64) {
        return Ok(None);
    }
    loop {
        let outlet = found.as_ref().map_or(data, |found| found.outlet);
        if model.outlet_successors(outlet).len() != 1 || model.outputs.contains(&outlet) {
            break;
        }
        let node = model.node(outlet.node);
        let mut inputs = node.inputs.iter();
        let Some(from) = inputs.find(|input| model.outlet_fact(**input).is_ok_and(|fact| fact.konst.is_none())) else {
            break;
        };
        let before = model.outlet_fact(*from)?;
        if before.datum_type != fact.datum_type || before.shape != fact.shape {
            break;
        }
        let Some(mut affine) = affine(model, node, *from, channels)? else { break };
        if let Some(found) = &found {
            affine = affine.then(&found.affine);
        }
        if affine.has_term() && !(bias && reaches_all_alike(spec)) {
            break;
        }
        found = Some(Preceding { affine, outlet: *from });
    }
    Ok(found)
}

/// Returns whether every output position sees every tap.
///
/// A constant added to the input is then the same as a constant added to the output. Padding breaks
/// this, as some taps see padding there. A transposed convolution of several taps breaks it at the
/// edges of its output. With a stride it breaks it everywhere, as each output position sees only
/// one phase of the taps.
fn reaches_all_alike(spec: &DeconvSpec) -> bool {
    let point = |values: &[usize]| values.iter().all(|value| *value == 1);
    match (spec.direction, &spec.padding) {
        (Direction::Forward, Padding::Explicit { begin, end }) => begin.iter().chain(end).all(|pad| *pad <= 0),
        (Direction::Transposed, Padding::Explicit { begin, end }) => {
            point(&spec.kernel)
                && point(&spec.strides)
                && spec.output_padding.iter().all(|padding| *padding == 0)
                && begin.iter().chain(end).all(|pad| *pad >= 0)
        }
        (Direction::Forward, Padding::SameForward { .. }) => point(&spec.kernel),
        (_, Padding::OutputShape { .. } | Padding::SameForward { .. }) => false,
    }
}

/// Calls `each` with the input channel, the output channel and the index of every weight.
///
/// Channels are numbered over all groups. The order roughly follows memory. Each output channel
/// gets its weights by ascending input channel.
pub(crate) fn for_each_weight(spec: &DeconvSpec, mut each: impl FnMut(usize, usize, usize)) -> TractResult<()> {
    let strides = spec.filter_strides();
    let mut taps: Vec<usize> = memory::reserved("taps", spec.kernel.iter().product())?;
    taps.push(0);
    for (ax, size) in spec.kernel.iter().enumerate().rev() {
        // Repeats the offsets of the inner axes for each further position on this axis.
        let inner = taps.len();
        for at in inner..inner * size {
            taps.push(taps[at % inner] + at / inner * strides.kernel[ax]);
        }
    }
    let mut pair = |g: usize, ci: usize, co: usize| {
        for tap in &taps {
            let at = g * strides.group + ci * strides.input + co * strides.output + tap;
            each(g * spec.group_in() + ci, g * spec.group_out() + co, at);
        }
    };
    for g in 0..spec.group {
        let (inputs, outputs) = (0..spec.group_in(), 0..spec.group_out());
        if strides.input > strides.output {
            inputs.cartesian_product(outputs).for_each(|(ci, co)| pair(g, ci, co));
        } else {
            outputs.cartesian_product(inputs).for_each(|(co, ci)| pair(g, ci, co));
        }
    }
    Ok(())
}

/// Returns the filter with `change` applied to its weights.
///
/// `change` takes the input channel, the output channel and the weight.
fn changed(
    spec: &DeconvSpec,
    filter: &Tensor,
    change: impl FnMut(usize, usize, f64) -> f64,
) -> TractResult<Arc<Tensor>> {
    fn changed<T: Datum + Copy>(
        spec: &DeconvSpec,
        filter: &Tensor,
        mut change: impl FnMut(usize, usize, f64) -> f64,
        widen: fn(T) -> f64,
        round: fn(f64) -> T,
    ) -> TractResult<Arc<Tensor>> {
        let mut folded = memory::mapped_tensor("folded filter", filter, |weight: T| weight)?;
        let mut view = folded.try_as_plain_ram_mut()?;
        let weights = view.as_slice_mut::<T>()?;
        for_each_weight(spec, |input, output, at| {
            weights[at] = round(change(input, output, widen(weights[at])));
        })?;
        Ok(folded.into_arc_tensor())
    }
    match filter.datum_type() {
        DatumType::F64 => changed::<f64>(spec, filter, change, |w| w, |w| w),
        DatumType::F32 => changed::<f32>(spec, filter, change, |w| w as f64, |w| w as f32),
        DatumType::F16 => changed::<f16>(spec, filter, change, |w| w.to_f64(), f16::from_f64),
        other => bail!("filter: datum_type={other:?}, floats are needed"),
    }
}

fn bias_values(spec: &DeconvSpec, bias: Option<&Tensor>) -> TractResult<Vec<f64>> {
    match bias {
        Some(bias) => widened("bias", bias, bias.len()),
        None => collected("bias", (0..spec.out_channels).map(|_| 0.0)),
    }
}

/// Returns filter and bias with a following step folded in.
pub(crate) fn fold_following(
    spec: &DeconvSpec,
    filter: &Tensor,
    bias: Option<&Tensor>,
    affine: &Affine,
) -> TractResult<(Arc<Tensor>, Arc<Tensor>)> {
    let folded = changed(spec, filter, |_, output, weight| weight * affine.factor[output])?;
    let mut sums = bias_values(spec, bias)?;
    for (sum, (factor, term)) in sums.iter_mut().zip(affine.factor.iter().zip(&affine.term)) {
        *sum = *sum * factor + term;
    }
    Ok((folded, rounded("bias", &sums, filter.datum_type())?.into_arc_tensor()))
}

/// Returns the filter with a preceding step folded in, and the bias if it changes.
pub(crate) fn fold_preceding(
    spec: &DeconvSpec,
    filter: &Tensor,
    bias: Option<&Tensor>,
    affine: &Affine,
) -> TractResult<(Arc<Tensor>, Option<Arc<Tensor>>)> {
    let mut sums = bias_values(spec, bias)?;
    let folded = changed(spec, filter, |input, output, weight| {
        sums[output] += weight * affine.term[input];
        weight * affine.factor[input]
    })?;
    let bias = affine.has_term().then(|| rounded("bias", &sums, filter.datum_type())).transpose()?;
    Ok((folded, bias.map(Tensor::into_arc_tensor)))
}
