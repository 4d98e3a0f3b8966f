//! Softmax over an axis that tract computes element by element.

use super::axes::{check_axes, neighbours, product};
use super::columns::{Columns, output};
use crate::element::{Element, dispatch_element, is_float};
use crate::kernel::Dispatch;
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use std::ops::Range;
use tract_core::internal::*;
use tract_core::ops::nn::{Softmax, SoftmaxKind};

/// Rows at least this long are left to tract if they are contiguous.
const LONG_ROW: usize = 32;

/// Estimated cost of four elements, in vector multiply-adds.
const FOUR_ELEMENTS: u64 = 20;

/// Softmax, or its logarithm, over neighbouring axes.
///
/// It has one input and one output of the same shape and type: f16, f32 or f64. Sums are computed
/// in f32 or f64. NaN and the infinities give what onnxruntime gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptSoftmax {
    axes: Range<usize>,
    log: bool,
    isa: Isa,
    limit: MemoryLimit,
}

impl OptSoftmax {
    /// Returns the op that replaces tract's, or none if tract's is as fast or not understood.
    pub(super) fn of(op: &Softmax, input: &TypedFact, options: &PlanOptions) -> Option<OptSoftmax> {
        let axes = neighbours(&op.axes, input.rank())?;
        let float = is_float(input.datum_type);
        let inner: TDim = input.shape[axes.end..].iter().product();
        let length: TDim = input.shape[axes.clone()].iter().product();
        let slow = !inner.is_one() || length.to_usize().is_ok_and(|length| length < LONG_ROW);
        (float && slow && op.quant_output_dt.is_none()).then(|| OptSoftmax {
            axes,
            log: op.kind == SoftmaxKind::LogSoftmax,
            isa: options.isa.unwrap_or_else(Isa::best),
            limit: options.limit(),
        })
    }

    pub(super) fn is_logarithm(&self) -> bool {
        self.log
    }

    /// Returns the logarithm of the same softmax.
    pub(super) fn logarithm(self) -> OptSoftmax {
        OptSoftmax { log: true, ..self }
    }

    fn run<E: Element>(&self, input: &Tensor) -> TractResult<Tensor> {
        let shape = input.shape();
        self.limit.check_output(shape, input.datum_type())?;
        let [length, inner] = [&shape[self.axes.clone()], &shape[self.axes.end..]].map(product);
        let (kernels, log) = (E::Compute::kernels(self.isa), self.log);
        let compute =
            |from: &[E::Compute], stride, to: &mut [&mut [E::Compute]]| kernels.softmax(log, from, stride, to);
        let columns = Columns { what: "softmax", length, inner, cost_of_four: FOUR_ELEMENTS, compute };
        self.limit.check_working(columns.working_bytes::<E>(input.len()))?;
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `Columns::run` writes all elements, or fails.
        unsafe {
            output("softmax", input, |from, to| columns.run::<E>(from, to))
        }
    }
}

impl Op for OptSoftmax {
    fn name(&self) -> StaticName {
        if self.log { "OptLogSoftmax" } else { "OptSoftmax" }.into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("over axes {:?}, on {}", self.axes, self.isa)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptSoftmax {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        check_axes(&self.axes, input.shape())?;
        let output: Tensor = dispatch_element!(input.datum_type(), E => self.run::<E>(&input)?);
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for OptSoftmax {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    as_op!();
}
