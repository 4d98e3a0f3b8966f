//! The op for a filter whose sizes are known at run time only.

use super::{Dialect, GroupedDeconv};
use crate::cache::{FilterCache, PlanCache};
use crate::plan::PlanOptions;
use crate::spec::{DataFormat, DeconvSpec, OutputShape};
use std::fmt;
use tract_core::internal::dyn_eq::{DynEq, eq_trait_object};
use tract_core::internal::*;

/// The attributes of a node. They determine a spec once the filter's shape is known.
pub(crate) trait SpecOfFilter: fmt::Debug + DynEq + Send + Sync + 'static {
    /// Returns the spec for a filter shape. It checks every rule of the dialect.
    fn spec(&self, filter: &[usize], output_shape: Option<OutputShape>) -> TractResult<DeconvSpec>;

    /// Returns the channels and the spatial size of the output.
    ///
    /// Without `output_shape` they follow from the shapes of data and filter.
    fn output_dims(
        &self,
        data: &[TDim],
        filter: &[TDim],
        output_shape: Option<&OutputShape>,
    ) -> TractResult<(TDim, TVec<TDim>)>;

    /// Returns whether the filter's first axis is an axis of groups, to be merged with the next.
    fn has_group_axis(&self) -> bool;

    /// Returns whether neighbouring nodes may be folded into the op.
    fn fusion(&self) -> bool;
}

eq_trait_object!(SpecOfFilter);

/// A shared [`SpecOfFilter`]. Comparing the bare reference in a derived `PartialEq` would move it.
#[derive(Clone, Debug)]
pub(crate) struct SharedSpecOfFilter(Arc<dyn SpecOfFilter>);

impl PartialEq for SharedSpecOfFilter {
    fn eq(&self, other: &SharedSpecOfFilter) -> bool {
        *self.0 == *other.0
    }
}

impl Eq for SharedSpecOfFilter {}

impl std::ops::Deref for SharedSpecOfFilter {
    type Target = dyn SpecOfFilter;

    fn deref(&self) -> &dyn SpecOfFilter {
        &*self.0
    }
}

/// A convolution whose filter shape is not known when the model is loaded.
///
/// Each run behaves as the [`GroupedDeconv`] for the filter that the run gets. The op is replaced
/// by a [`GroupedDeconv`] as soon as the filter's shape is known.
///
/// The inputs are those of [`GroupedDeconv`], except that the filter has the dialect's axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DynamicFilterDeconv {
    pub node: SharedSpecOfFilter,
    pub dialect: Dialect,
    pub data_format: DataFormat,
    pub has_bias: bool,
    pub output_shape: Option<OutputShape>,
    pub options: PlanOptions,
    plans: PlanCache,
    filters: FilterCache,
}

impl DynamicFilterDeconv {
    pub fn new(
        node: impl SpecOfFilter,
        dialect: Dialect,
        data_format: DataFormat,
        has_bias: bool,
        output_shape: Option<OutputShape>,
        options: PlanOptions,
    ) -> DynamicFilterDeconv {
        let node = SharedSpecOfFilter(Arc::new(node));
        let (plans, filters) = (PlanCache::default(), FilterCache::default());
        DynamicFilterDeconv { node, dialect, data_format, has_bias, output_shape, options, plans, filters }
    }

    /// Returns the op for a filter shape. Both share their caches, so the plans last until the next
    /// run.
    pub fn resolved(&self, filter: &[usize]) -> TractResult<GroupedDeconv> {
        let spec = self.node.spec(filter, self.output_shape.clone())?;
        let mut op = GroupedDeconv::new(spec, self.dialect, self.has_bias, self.options.clone())?;
        op.fusion = self.node.fusion();
        (op.plans, op.filters) = (self.plans.clone(), self.filters.clone());
        Ok(op)
    }

    fn reads_output_shape(&self) -> bool {
        matches!(self.output_shape, Some(OutputShape::Input(_)))
    }

    /// Returns the filter with the axes that the spec describes.
    fn canonical(&self, filter: TValue) -> TValue {
        match self.node.has_group_axis() {
            true => filter.into_tensor().collapse_axis_with_next(0).into_tvalue(),
            false => filter,
        }
    }
}

impl Op for DynamicFilterDeconv {
    fn name(&self) -> StaticName {
        "DynamicFilterDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("{}: the filter's sizes come with it", self.dialect)])
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.reads_output_shape()
    }

    op_as_typed_op!();
}

impl EvalOp for DynamicFilterDeconv {
    fn eval(&self, ctx: &EvalContext, mut inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        ensure!(inputs.len() >= 2, "inputs: count={}, data and filter are needed", inputs.len());
        let op = self.resolved(inputs[1].shape())?;
        let filter = inputs.remove(1);
        inputs.insert(1, self.canonical(filter));
        op.eval(ctx, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        let symbolic = self.output_shape.iter().flat_map(|shape| shape.dims()).any(|dim| dim.as_i64().is_none());
        if symbolic && !self.reads_output_shape() {
            return Ok(None);
        }
        self.eval(&EvalContext::out_of_plan(), inputs).map(Some)
    }
}

impl TypedOp for DynamicFilterDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let expected = 2 + self.has_bias as usize + self.reads_output_shape() as usize;
        ensure!(inputs.len() == expected, "inputs: count={}, {expected} are needed", inputs.len());
        let (data, filter) = (inputs[0], inputs[1]);
        let found = filter.datum_type;
        ensure!(found == data.datum_type, "filter: datum_type={found:?}, the input's is {:?}", data.datum_type);
        let (channels, spatial) = self.node.output_dims(&data.shape, &filter.shape, self.output_shape.as_ref())?;
        let fact = data.datum_type.fact(self.data_format.shape(data.shape[0].clone(), channels, spatial));
        if let Some(shape) = fact.shape.as_concrete() {
            self.options.limit().check_output(shape, fact.datum_type)?;
        }
        Ok(tvec!(fact))
    }

    fn declutter(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let filter = model.outlet_fact(node.inputs[1])?;
        let Some(shape) = filter.shape.as_concrete() else { return Ok(None) };
        let mut op = self.resolved(shape)?;
        (op.plans, op.filters) = (PlanCache::default(), FilterCache::default());
        let mut patch = TypedModelPatch::default();
        let mut inputs = patch.taps(model, &node.inputs)?;
        if self.node.has_group_axis() {
            let (from, to) = (tvec!(shape[0].to_dim(), shape[1].to_dim()), (shape[0] * shape[1]).to_dim());
            let merge = AxisOp::Reshape(0, from, tvec!(to));
            inputs[1] = patch.wire_node(format!("{}.filter", node.name), merge, &[inputs[1]])?[0];
        }
        let wires = patch.wire_node(&node.name, op, &inputs)?;
        patch.shunt_outside(model, node.id.into(), wires[0])?;
        Ok(Some(patch))
    }

    fn set_symbols(
        &self,
        _source: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs = node.inputs.iter().map(|i| mapping[i]).collect::<TVec<_>>();
        let substituted = |dims: &[TDim]| dims.iter().map(|dim| dim.substitute_all(subs)).collect::<TractResult<_>>();
        let mut op = self.clone();
        (op.plans, op.filters) = (PlanCache::default(), FilterCache::default());
        op.output_shape = match &self.output_shape {
            None => None,
            Some(OutputShape::Dims(dims)) => Some(OutputShape::Dims(substituted(dims)?)),
            Some(OutputShape::Input(dims)) => Some(OutputShape::Input(substituted(dims)?)),
        };
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}
