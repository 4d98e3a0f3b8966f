//! Layers: a plan, and the tables that its runs read.

use crate::algorithm::{Operands, Tables};
use crate::element::{Element, dispatch_element, dispatch_grouped};
use crate::integers;
use crate::kernel::{Dispatch, KernelSizes};
use crate::layout::filter::PackedFilter;
use crate::layout::input::{Input, InputPart};
use crate::memory;
use crate::output::epilogue::{self, Epilogue, Step};
use crate::plan::Plan;
use crate::spec::DeconvSpec;
use std::sync::OnceLock;
use tract_core::internal::*;

/// A plan that can be run. Its tables are built by the first run.
pub struct Layer {
    plan: Plan,
    tables: OnceLock<Tables>,
}

impl Layer {
    /// Creates a layer that runs a plan.
    pub fn new(plan: Plan) -> Layer {
        Layer { plan, tables: OnceLock::new() }
    }

    /// Returns the plan that the layer runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn tables(&self) -> TractResult<&Tables> {
        if let Some(tables) = self.tables.get() {
            return Ok(tables);
        }
        let plan = &self.plan;
        let problem = if plan.decision().folds() { plan.folded() } else { plan.problem() };
        let lanes = KernelSizes::new(plan.computed_as(), plan.grouped(), plan.isa()).lanes;
        let tables = plan.decision().tables(problem, lanes)?;
        Ok(self.tables.get_or_init(|| tables))
    }

    /// Runs the layer.
    ///
    /// `input` has the problem's shape. `filter` is packed from the plan's spec in the plan's
    /// layout. `bias` has one value per output channel.
    ///
    /// # Errors
    /// Operands that don't fit the plan, or no memory for the output.
    pub fn run(&self, input: &Tensor, filter: &PackedFilter, bias: Option<&Tensor>) -> TractResult<Tensor> {
        self.run_with_epilogue(input, filter, bias, &[], &[])
    }

    /// Checks that the operands fit the plan.
    fn check_operands(&self, inputs: &[&Tensor], filter: &PackedFilter, bias: Option<&Tensor>) -> TractResult<()> {
        let plan = &self.plan;
        let dt = plan.datum_type();
        let (found, expected) = (joint_shape(plan.spec(), inputs)?, plan.problem().input_shape());
        ensure!(found == expected, "input: shape={found:?}, the plan is for {expected:?}");
        let inputs = inputs.iter().map(|input| ("input", *input));
        for (what, found) in inputs.chain(bias.map(|bias| ("bias", bias))) {
            let found = found.datum_type();
            ensure!(found == dt, "{what}: datum_type={found:?}, the plan is for {dt:?}");
        }
        if let Some(bias) = bias {
            plan.spec().check_bias(bias)?;
        }
        filter.check(plan.spec(), &plan.filter_layout(), dt, plan.grouped())
    }

    /// As [`Layer::run`], with an epilogue whose steps are applied to each result in order.
    ///
    /// `residuals` are the tensors that the [`Step::Add`] steps add, one per step. Integers accept
    /// no steps.
    ///
    /// # Errors
    /// As [`Layer::run`], or a step on integers, or operands that don't fit a step.
    pub fn run_with_epilogue(
        &self,
        input: &Tensor,
        filter: &PackedFilter,
        bias: Option<&Tensor>,
        epilogue: &[Step],
        residuals: &[&Tensor],
    ) -> TractResult<Tensor> {
        self.run_on_parts(&[input], filter, bias, epilogue, residuals)
    }

    /// As [`Layer::run_with_epilogue`], on an input whose channels are in several tensors, one after
    /// the other.
    ///
    /// The tensors are joined first, unless the plan was made for an input in several tensors
    /// ([`PlanOptions::in_parts`](crate::PlanOptions::in_parts)) and its strategy reads each.
    ///
    /// # Errors
    /// As [`Layer::run_with_epilogue`], or tensors whose other sizes differ.
    pub fn run_on_parts(
        &self,
        inputs: &[&Tensor],
        filter: &PackedFilter,
        bias: Option<&Tensor>,
        epilogue: &[Step],
        residuals: &[&Tensor],
    ) -> TractResult<Tensor> {
        let plan = &self.plan;
        ensure!(plan.isa().is_available(), "plan: isa={}, this cpu does not have it", plan.isa());
        ensure!(
            plan.grouped().is_none_or(|grouped| grouped.is_available(plan.isa())),
            "plan: isa={}, this cpu does not have its products of integers",
            plan.isa()
        );
        ensure!(
            epilogue.is_empty() || plan.datum_type().is_float(),
            "activation: datum_type={:?}, only floats take one",
            plan.datum_type()
        );
        self.check_operands(inputs, filter, bias)?;
        let computed_as = plan.computed_as();
        let inputs: TVec<_> =
            inputs.iter().map(|input| integers::converted("input", input, computed_as)).collect::<TractResult<_>>()?;
        let bias = bias.map(|bias| integers::converted("bias", bias, computed_as)).transpose()?;
        let output: Tensor = dispatch_grouped!(plan.grouped(), computed_as, E => {
            let shape = plan.problem().output_shape();
            let steps = epilogue::bind::<E>(epilogue, residuals, plan.problem().group * plan.problem().group_out, &shape)?;
            #[expect(unsafe_code, reason = "an output is written once, by a strategy, not cleared before")]
            // SAFETY: the type is a number type, as there is an `Element`. Each strategy writes
            // each element or fails, and on failure the tensor is dropped. Strategies that
            // partition the output into tasks check that the tasks cover it (`run_tasks`, and `parts` of
            // the indirect convolution), and each task writes all of its part. The other strategies
            // iterate over all elements of the output's shape.
            let mut output = unsafe { memory::output_tensor("output size", computed_as, &shape)? };
            let problem = if plan.decision().folds() { plan.folded() } else { plan.problem() };
            let c_axis = problem.data_format.c_axis(shape.len());
            let tensors: TVec<(&[E], usize)> = inputs
                .iter()
                .map(|input| Ok((input.try_as_plain_ram()?.as_slice::<E>()?, input.shape()[c_axis])))
                .collect::<TractResult<_>>()?;
            let joint;
            let mut parts = InputPart::list(problem, &tensors)?;
            if parts.len() > 1 && !plan.reads_parts() {
                joint = joined(plan, Input::new(problem, &parts), computed_as)?;
                parts = InputPart::list(problem, &[(joint.try_as_plain_ram()?.as_slice::<E>()?, joint.shape()[c_axis])])?;
            }
            let operands = Operands::<E> {
                input: Input::new(problem, &parts),
                bias: bias.as_ref().map(|b| b.try_as_plain_ram()?.as_slice::<E>()).transpose()?,
                epilogue: Epilogue { steps: &steps, kernels: <<E as Element>::Compute as Dispatch>::kernels(plan.isa()) },
            };
            let mut view = output.try_as_plain_ram_mut()?;
            let target = view.as_slice_mut::<E>()?;
            if !target.is_empty() {
                plan.decision().run::<E>(self.tables()?, problem, plan.isa(), filter, &operands, target)?;
            }
            output
        });
        integers::convert("output size", output, plan.datum_type())
    }
}

/// Returns the joint tensor of an input, for a strategy that reads one.
fn joined<E: Element>(plan: &Plan, input: Input<E>, datum_type: DatumType) -> TractResult<Tensor> {
    #[expect(unsafe_code, reason = "the joint tensor is written once, not cleared before")]
    // SAFETY: the type is a number type, as there is an `Element`. `join` writes all elements or
    // fails, and on failure the tensor is dropped.
    let mut joint = unsafe { memory::output_tensor("joint input", datum_type, &plan.problem().input_shape())? };
    input.join(joint.try_as_plain_ram_mut()?.as_slice_mut::<E>()?)?;
    Ok(joint)
}

/// Returns the shape of the tensor that would hold the channels of all tensors.
pub(crate) fn joint_shape(spec: &DeconvSpec, tensors: &[&Tensor]) -> TractResult<TVec<usize>> {
    let first = tensors.first().context("input: it is missing")?;
    let mut shape: TVec<usize> = first.shape().into();
    let c_axis = spec.data_format.c_axis(spec.rank() + 2);
    for tensor in &tensors[1..] {
        let found = tensor.shape();
        let fits = |(axis, (a, b)): (usize, (&usize, &usize))| axis == c_axis || a == b;
        ensure!(
            found.len() == shape.len() && c_axis < shape.len() && found.iter().zip(&shape).enumerate().all(fits),
            "input: shape={found:?}, that of the channels before is {shape:?}"
        );
        // Two numbers of elements that fit the memory.
        shape[c_axis] += found[c_axis];
    }
    Ok(shape)
}
