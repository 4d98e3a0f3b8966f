//! Normalisation by mean and variance, which tract computes as four operators or more.

use super::OptReduce;
use super::axes::{check_axes, neighbours, product};
use super::columns::{Columns, output};
use crate::element::{Element, dispatch_element, is_float};
use crate::fuse::binary;
use crate::kernel::{Dispatch, Kernels, Normalisation};
use crate::memory::zeros;
use crate::parallel::{parallel, threads};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use std::ops::Range;
use tract_core::internal::*;
use tract_core::ops::binary::BinMiniOp;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::math::{Add, Mul, Rsqrt, Sub};
use tract_core::ops::nn::{Reduce, Reducer, RmsNorm};

/// Estimated cost of four elements, in vector multiply-adds.
const FOUR_ELEMENTS: u64 = 6;

/// Tasks per thread.
const TASKS: usize = 4;

/// `(x − m) / √(v + epsilon)` over neighbouring axes, with `m` the mean of `x` and `v` that of
/// `(x − m)²`. If it is not centred, `m` is zero.
///
/// It has one input and one output of the same shape and type: f16, f32 or f64. Sums are computed
/// in f32 or f64, in blocks. A NaN or an infinity makes all results over its axes NaN, but those of
/// the finite values beside an infinity are 0 where the op is not centred.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptNormalise {
    axes: Range<usize>,
    centred: bool,
    epsilon: Arc<Tensor>,
    isa: Isa,
    limit: MemoryLimit,
}

/// Nodes that an [`OptNormalise`] can replace.
pub(super) struct FoundNormalisation {
    pub op: OptNormalise,
    /// What it reads.
    pub input: OutletId,
    /// What it computes.
    pub output: OutletId,
}

impl OptNormalise {
    /// Finds a normalisation whose differences from the mean, or whose only node, `node` computes.
    ///
    /// Returns none if there is none, or if tract's is as fast.
    pub(super) fn at(
        model: &TypedModel,
        node: &TypedNode,
        options: &PlanOptions,
    ) -> TractResult<Option<FoundNormalisation>> {
        let new = |axes, centred, epsilon| OptNormalise {
            axes,
            centred,
            epsilon,
            isa: options.isa.unwrap_or_else(Isa::best),
            limit: options.limit(),
        };
        if let Some((input, axes)) = differences(model, node)? {
            let found = scaled(model, node.id.into(), &axes)?;
            return Ok(found.map(|(output, epsilon)| FoundNormalisation {
                op: new(axes, true, epsilon),
                input,
                output,
            }));
        }
        let Some(op) = node.op_as::<RmsNorm>() else { return Ok(None) };
        let (input, fact) = (node.inputs[0], model.outlet_fact(node.inputs[0])?);
        // tract's kernel reads contiguous rows.
        let fast = op.axis + 1 == fact.rank() && fact.datum_type != DatumType::F64;
        let of_centred = differences(model, model.node(input.node))?.is_some();
        let ours = is_float(fact.datum_type) && !fast && !of_centred;
        let op = new(op.axis..op.axis + 1, false, Arc::clone(&op.eps));
        Ok(ours.then(|| FoundNormalisation { op, input, output: node.id.into() }))
    }

    fn run<E: Element>(&self, input: &Tensor) -> TractResult<Tensor>
    where
        E::Compute: Datum,
    {
        let shape = input.shape();
        self.limit.check_output(shape, input.datum_type())?;
        let [length, inner] = [&shape[self.axes.clone()], &shape[self.axes.end..]].map(product);
        let epsilon = self.epsilon.cast_to_scalar::<E::Compute>()?;
        let of = Normalisation { centred: self.centred, epsilon };
        let kernels = E::Compute::kernels(self.isa);
        let compute =
            |from: &[E::Compute], stride, to: &mut [&mut [E::Compute]]| kernels.normalise_columns(of, from, stride, to);
        let columns = Columns { what: "normalisation", length, inner, cost_of_four: FOUR_ELEMENTS, compute };
        self.limit.check_working(match inner {
            1 if E::as_compute(&[]).is_some() => 0,
            // A row before and after, in the type of the sums.
            1 => length.saturating_mul(2 * size_of::<E::Compute>()),
            _ => columns.working_bytes::<E>(input.len()),
        })?;
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `rows` and `Columns::run` write all elements, or fail.
        unsafe {
            output("normalisation", input, |from, to| match inner {
                1 => rows(kernels, of, length, from, to),
                _ => columns.run::<E>(from, to),
            })
        }
    }
}

/// Normalises rows of `length` values. Writes all of `to`.
fn rows<E: Element>(
    kernels: &Kernels<E::Compute>,
    of: Normalisation<E::Compute>,
    length: usize,
    from: &[E],
    to: &mut [E],
) -> TractResult<()> {
    if to.is_empty() {
        return Ok(());
    }
    let cost = to.len() as u64 / 4 * FOUR_ELEMENTS;
    let values = (to.len() / length).div_ceil(TASKS * threads(cost)) * length;
    let mut tasks: Vec<_> = from.chunks(values).zip(to.chunks_mut(values)).collect();
    parallel(&mut tasks, cost, &|(from, to)| {
        let rows = from.chunks(length).zip(to.chunks_mut(length));
        if E::as_compute(&[]).is_some() {
            for (from, to) in rows {
                if let (Some(from), Some(to)) = (E::as_compute(from), E::as_compute_mut(to)) {
                    kernels.normalise_row(of, from, to);
                }
            }
            return Ok(());
        }
        let [mut wide, mut normal] = [zeros("normalisation", length)?, zeros("normalisation", length)?];
        for (from, to) in rows {
            E::widen_slice(from, &mut wide);
            kernels.normalise_row(of, &wide, &mut normal);
            E::narrow_slice(&normal, to);
        }
        Ok(())
    })
}

/// Returns the other operand of a node that adds a constant to it, or multiplies it by one, and that
/// constant.
fn with_scalar<Op: BinMiniOp>(model: &TypedModel, node: &TypedNode) -> TractResult<Option<(OutletId, Arc<Tensor>)>> {
    let Some((_, [a, b])) = binary(node).filter(|(op, _)| op.is::<Op>()) else { return Ok(None) };
    for (from, constant) in [(a, b), (b, a)] {
        if let Some(uniform) = &model.outlet_fact(constant)?.uniform {
            return Ok(Some((from, Arc::clone(uniform))));
        }
    }
    Ok(None)
}

/// Returns what a node subtracts the mean of, and the axes of the mean.
fn differences(model: &TypedModel, node: &TypedNode) -> TractResult<Option<(OutletId, Range<usize>)>> {
    let Some((_, [input, mean])) = binary(node).filter(|(op, _)| op.is::<Sub>()) else { return Ok(None) };
    let fact = model.outlet_fact(input)?;
    let Some((sum, share)) = with_scalar::<Mul>(model, model.node(mean.node))? else { return Ok(None) };
    let sum = model.node(sum.node);
    if sum.inputs.first() != Some(&input) || !is_float(fact.datum_type) {
        return Ok(None);
    }
    let axes = match (sum.op_as::<Reduce>(), sum.op_as::<OptReduce>()) {
        (Some(reduce), _) if reduce.reducer == Reducer::Sum => neighbours(&reduce.axes, fact.rank()),
        (_, Some(reduce)) => reduce.axes_of_sum().cloned(),
        _ => None,
    };
    let Some(axes) = axes else { return Ok(None) };
    let Ok(count) = fact.shape[axes.clone()].iter().product::<TDim>().to_usize() else { return Ok(None) };
    // The share is rounded to the type of the data.
    let exact = if fact.datum_type == DatumType::F16 { 1e-3 } else { 1e-6 };
    let off = share.cast_to_scalar::<f64>()? * count as f64 - 1.0;
    Ok((off.abs() <= exact).then_some((input, axes)))
}

/// Returns what divides differences from the mean by the root of the mean of their squares and a
/// constant over the same axes, and the constant.
fn scaled(
    model: &TypedModel,
    differences: OutletId,
    axes: &Range<usize>,
) -> TractResult<Option<(OutletId, Arc<Tensor>)>> {
    if model.outputs.contains(&differences) {
        return Ok(None);
    }
    let readers = model.outlet_successors(differences);
    if let [reader] = readers {
        let reader = model.node(reader.node);
        let norm = reader.op_as::<RmsNorm>().filter(|norm| *axes == (norm.axis..norm.axis + 1));
        return Ok(norm.map(|norm| (reader.id.into(), Arc::clone(&norm.eps))));
    }
    let is_squares = |id: usize| {
        let reduce = model.node(id).op_as::<Reduce>();
        let reduce = reduce.filter(|reduce| reduce.reducer == Reducer::MeanOfSquares);
        reduce.and_then(|reduce| neighbours(&reduce.axes, axes.end)) == Some(axes.clone())
    };
    let [a, b] = readers else { return Ok(None) };
    let (squares, product) = if is_squares(a.node) { (a.node, b.node) } else { (b.node, a.node) };
    if !is_squares(squares) {
        return Ok(None);
    }
    let Some(added) = only_reader(model, squares) else { return Ok(None) };
    let Some((_, epsilon)) = with_scalar::<Add>(model, added)? else { return Ok(None) };
    let root = only_reader(model, added.id);
    let is_root = |node: &&TypedNode| node.op_as::<ElementWiseOp>().is_some_and(|op| op.0.is::<Rsqrt>());
    let Some(root) = root.filter(is_root) else { return Ok(None) };
    let of_root = only_reader(model, root.id).is_some_and(|reader| reader.id == product);
    let is_product = binary(model.node(product)).is_some_and(|(op, _)| op.is::<Mul>());
    Ok((of_root && is_product).then(|| (product.into(), epsilon)))
}

/// Returns the node that alone reads a node's only output.
fn only_reader(model: &TypedModel, node: usize) -> Option<&TypedNode> {
    let [reader] = model.outlet_successors(node.into()) else { return None };
    let inner = model.node(node).outputs.len() == 1 && !model.outputs.contains(&node.into());
    inner.then(|| model.node(reader.node))
}

impl Op for OptNormalise {
    fn name(&self) -> StaticName {
        "OptNormalise".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        let what = if self.centred { "mean and variance" } else { "mean of squares" };
        let epsilon = self.epsilon.cast_to_scalar::<f64>()?;
        Ok(vec![format!("by {what} over axes {:?}, epsilon {epsilon:e}, on {}", self.axes, self.isa)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptNormalise {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        check_axes(&self.axes, input.shape())?;
        let output: Tensor = dispatch_element!(input.datum_type(), E => self.run::<E>(&input)?);
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for OptNormalise {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    as_op!();
}
