//! The sum of two tensors of 8-bit integers, as 8-bit integers.

use super::Quantise;
use super::fold::dequantised;
use super::quantise::bytes_by_threads;
use super::rescale::{Output, Quantisation, Scaling};
use crate::activation::Activation;
use crate::fuse;
use crate::kernel::{ByteKernels, SumsOfBytes};
use crate::simd::isa::Isa;
use tract_core::internal::*;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::math::Add;

/// Integers that are widened together.
const AT_ONCE: usize = 1024;

/// The most limits of a sum.
const MOST_LIMITS: usize = 4;

/// Adds the real numbers of two tensors of 8-bit integers, limits the sums, and quantises them.
///
/// The inputs have one shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ByteSum {
    /// How the first input stands for real numbers.
    first: Quantisation,
    /// Scales that input, adds the second one, and quantises.
    output: Output,
}

impl ByteSum {
    fn quantisations(&self) -> TractResult<(&Scaling, Quantisation, Quantisation)> {
        match &self.output {
            Output::Quantised(scaling, to) => Ok((scaling, scaling.added.context("output: nothing is added")?, *to)),
            _ => bail!("output: {}, 8-bit integers are needed", self.output),
        }
    }

    fn check(&self, types: [DatumType; 2]) -> TractResult<()> {
        let (_, second, _) = self.quantisations()?;
        for (quantisation, found) in [self.first, second].iter().zip(types) {
            let dt = quantisation.datum_type();
            ensure!(found == dt, "input: datum_type={found:?}, {dt:?} is needed");
        }
        Ok(())
    }
}

impl Op for ByteSum {
    fn name(&self) -> StaticName {
        "ByteSum".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("{} to {}", self.first, self.output)])
    }

    op_as_typed_op!();
}

impl EvalOp for ByteSum {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let [a, b] = &*inputs else { bail!("inputs: count={}, two are needed", inputs.len()) };
        self.check([a.datum_type(), b.datum_type()])?;
        ensure!(a.shape() == b.shape(), "inputs: shapes={:?} and {:?}, they must be equal", a.shape(), b.shape());
        let (scaling, _, to) = self.quantisations()?;
        let scales = scaling.byte_scales(&to, 1, None, &|_| 255.0)?;
        let kernels = ByteKernels::of(Isa::best());
        let signed = self.first.datum_type() == DatumType::I8;
        let (a_ram, b_ram) = (a.try_as_plain_ram()?, b.try_as_plain_ram()?);
        let (from, added) = (a_ram.as_bytes(), b_ram.as_bytes());
        let output = bytes_by_threads(from, (to.datum_type(), a.shape()), 1, |first, from, to| {
            let mut wide = [0i32; AT_ONCE];
            let added = &added[first..first + to.len()];
            for ((from, added), to) in from.chunks(AT_ONCE).zip(added.chunks(AT_ONCE)).zip(to.chunks_mut(AT_ONCE)) {
                let wide = &mut wide[..from.len()];
                match signed {
                    true => wide.iter_mut().zip(from).for_each(|(wide, byte)| *wide = i32::from(*byte as i8)),
                    false => wide.iter_mut().zip(from).for_each(|(wide, byte)| *wide = i32::from(*byte)),
                }
                kernels.rescale(SumsOfBytes { sums: wide, added: Some(added), scales: &scales }, 0, to);
            }
        })?;
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for ByteSum {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [a, b] = inputs else { bail!("inputs: count={}, two are needed", inputs.len()) };
        self.check([a.datum_type, b.datum_type])?;
        ensure!(a.shape == b.shape, "inputs: shapes={:?} and {:?}, they must be equal", a.shape, b.shape);
        Ok(tvec!(self.quantisations()?.2.datum_type().fact(a.shape.clone())))
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        AxesMapping::natural(inputs, outputs)
    }

    fn change_axes(
        &self,
        model: &TypedModel,
        node: &TypedNode,
        _io: InOut,
        change: &AxisOp,
    ) -> TractResult<Option<AxisChangeConsequence>> {
        Ok(Some(AxisChangeConsequence::new(model, node, None, change)))
    }

    as_op!();
}

/// Replaces a quantised sum of two dequantised tensors, if a node is one.
pub(super) fn of_quantiser(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    let Some(Quantise { to }) = node.op_as::<Quantise>() else { return Ok(None) };
    let (mut at, mut limits) = (node.inputs[0], vec![]);
    let sum = loop {
        let before = model.node(at.node);
        if before.outputs.len() != 1 || before.outputs[0].successors.len() != 1 || model.outputs.contains(&at) {
            return Ok(None);
        }
        if before.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Add>()) {
            break before;
        }
        let Some((limit, from)) = fuse::activation_of(model, before)? else { return Ok(None) };
        if limits.len() == MOST_LIMITS || model.outlet_fact(from)?.shape != before.outputs[0].fact.shape {
            return Ok(None);
        }
        limits.push(limit);
        at = from;
    };
    let shape = &sum.outputs[0].fact.shape;
    let mut operands: TVec<(Quantisation, OutletId)> = tvec!();
    for input in &sum.inputs {
        // An error is that of a scale which is no part of a layer.
        match dequantised(model, *input).ok().flatten() {
            Some(operand) if model.outlet_fact(*input)?.shape == *shape => operands.push(operand),
            _ => return Ok(None),
        }
    }
    let [(first, a), (second, b)] = operands[..] else { return Ok(None) };
    let less = tensor1(&[-first.zero_point()]).into_arc_tensor();
    let scaling = Scaling::new(first.scale.value().into()).with_integer_bias(less).then_added(second);
    let limited = limits.into_iter().rev().try_fold(scaling, |scaling, limit| {
        let scaling = scaling?;
        match limit {
            Activation::Max(bound) => Some(scaling.at_least(bound)),
            Activation::Min(bound) => Some(scaling.at_most(bound)),
            _ => None,
        }
    });
    let Some(Some(scaling)) = limited else { return Ok(None) };
    let op = ByteSum { first, output: Output::Quantised(scaling, *to) };
    let mut patch = TypedModelPatch::new("a sum of bytes");
    let inputs = patch.taps(model, &[a, b])?;
    let wires = patch.wire_node(&node.name, op, &inputs)?;
    patch.shunt_outside(model, node.id.into(), wires[0])?;
    Ok(Some(patch))
}
