//! Arithmetic of two f16 tensors beside layers, which tract computes a value at a time.

use super::axes::product;
use super::shared::converted;
use crate::compute::F16;
use crate::plan::{MemoryLimit, PlanOptions};
use tract_core::internal::*;
use tract_core::ops::binary::{BinMiniOp, TypedBinOp};
use tract_core::ops::math::{Add, Div, Max, Min, Mul, Sub};

/// A sum, difference, product, quotient, maximum or minimum of two tensors of f16, of shapes that go together.
///
/// It is tract's own of f32, whose result is rounded to f16. That gives the same bits as f16 arithmetic: f32 has twice
/// as many significant bits as f16 and two more, so that rounding twice changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptF16Arithmetic {
    op: Box<dyn BinMiniOp>,
    limit: MemoryLimit,
}

impl OptF16Arithmetic {
    /// Returns the op that replaces tract's, or none if it is another one or of another type.
    pub(super) fn of(op: &TypedBinOp, inputs: &[&TypedFact], options: &PlanOptions) -> Option<OptF16Arithmetic> {
        let TypedBinOp(op, None) = op else { return None };
        let rounds_once =
            op.is::<Add>() || op.is::<Sub>() || op.is::<Mul>() || op.is::<Div>() || op.is::<Max>() || op.is::<Min>();
        let all_f16 = inputs.iter().all(|input| input.datum_type == DatumType::F16 && input.is_plain());
        (F16 && rounds_once && all_f16).then(|| OptF16Arithmetic { op: op.clone(), limit: options.limit() })
    }

    /// Returns the operation.
    pub(super) fn operation(&self) -> &dyn BinMiniOp {
        &*self.op
    }
}

impl Op for OptF16Arithmetic {
    fn name(&self) -> StaticName {
        format!("OptF16{}", self.op.name()).into()
    }

    op_as_typed_op!();
}

impl EvalOp for OptF16Arithmetic {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (a, b) = args_2!(inputs);
        let shape = tract_core::broadcast::multi_broadcast(&[a.shape(), b.shape()])?;
        self.limit.check_output(&shape, DatumType::F16)?;
        let elements = [a.shape(), b.shape(), &*shape].map(product).into_iter().fold(0, usize::saturating_add);
        self.limit.check_working(elements.saturating_mul(size_of::<f32>()))?;
        let [a, b] = [a, b].map(|operand| converted("arithmetic", &operand, DatumType::F32));
        let wide = self.op.eval(a?.into_tvalue(), b?.into_tvalue(), DatumType::F32)?;
        Ok(tvec!(converted("arithmetic", &wide, DatumType::F16)?.into_tvalue()))
    }
}

impl TypedOp for OptF16Arithmetic {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        TypedBinOp(self.op.clone(), None).output_facts(inputs)
    }

    as_op!();
}
