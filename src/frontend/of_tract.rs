//! Operators of ONNX whose inference is tract's, and whose typed ops may be this crate's.

use tract_hir::internal::*;

/// What tract's op for a node becomes in a typed model.
pub(super) trait ToTyped: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Wires the typed ops, as [`InferenceOp::to_typed`] does.
    fn to_typed(
        &self,
        of_tract: &dyn InferenceOp,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>>;
}

/// tract's op for a node, and what it becomes.
#[derive(Clone, Debug)]
pub(super) struct OfTract<T> {
    pub of_tract: Box<dyn InferenceOp>,
    pub typed: T,
}

/// No two are taken for equal, as tract's ops can't be compared.
impl<T> PartialEq for OfTract<T> {
    fn eq(&self, _other: &OfTract<T>) -> bool {
        false
    }
}

impl<T> Eq for OfTract<T> {}

impl<T: ToTyped> Op for OfTract<T> {
    fn name(&self) -> StaticName {
        self.of_tract.name()
    }

    not_a_typed_op!();
}

impl<T: ToTyped> EvalOp for OfTract<T> {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.of_tract.eval(ctx, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        self.of_tract.eval_out_of_plan(inputs)
    }
}

impl<T: ToTyped> InferenceOp for OfTract<T> {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        self.of_tract.infer_facts(inputs, outputs, observed)
    }

    fn nboutputs(&self) -> TractResult<usize> {
        self.of_tract.nboutputs()
    }

    fn to_typed(
        &self,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        self.typed.to_typed(&*self.of_tract, source, node, target, mapping)
    }

    as_op!();
}
