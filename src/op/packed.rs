//! The op that optimised models run.

use super::shared::{self, Run, tensor};
use super::{BetweenLayers, Dialect, GroupedDeconv, beside, concat};
use crate::cache::{PackedFilters, PlanCache};
use crate::layout::filter::{FilterLayout, PackedFilter, without_subnormals};
use crate::output::epilogue;
use crate::output::epilogue::Step;
use crate::plan::{Plan, PlanOptions};
use crate::spec::DeconvSpec;
use crate::spec::list;
use std::hash::{Hash, Hasher};
use std::sync::Weak;
use tract_core::internal::*;

/// A [`GroupedDeconv`] whose constant filter is packed. Optimised models run it.
///
/// Inputs, in order:
/// - the data, or [`OptGroupedDeconv::parts`] tensors that hold its channels one after the other;
/// - the bias, if it is not constant;
/// - the spatial output shape, if the spec reads it at run time;
/// - one tensor of the output's shape per [`Step::Add`] of the epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptGroupedDeconv {
    /// The convolution to compute.
    pub spec: DeconvSpec,
    /// The source format of the node.
    pub dialect: Dialect,
    /// The element type of data, filter, bias and output.
    pub datum_type: DatumType,
    /// The source of the bias.
    pub bias: Bias,
    /// The steps applied to the results before they are stored.
    pub epilogue: Vec<Step>,
    /// Choices forced on the planner, including the layout of the packed filter if it is packed once.
    pub options: PlanOptions,
    /// The reason why the op is no [`OptFourier`](crate::OptFourier), if it could have been one by
    /// its sizes.
    pub not_fourier: Option<String>,
    /// Whether the nodes before this op may become a [`BetweenLayers`].
    fusion: bool,
    /// The tensors of the data.
    parts: usize,
    filter: Arc<PackedFilter>,
    /// The filter as it was, if plans may read it in other layouts than that of [`OptGroupedDeconv::filter`].
    plain: Option<Arc<Tensor>>,
    /// The filter in these layouts.
    repacked: PackedFilters,
    source: Source,
    plans: PlanCache,
}

/// The most bytes of a filter that is packed again for sizes whose best plan reads another layout, if the sizes
/// are open. A larger one is packed once for all sizes.
const MOST_REPACKED_BYTES: usize = 64 * 1024;

/// The source of an optimised op's bias.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bias {
    /// There is no bias.
    None,
    /// The op holds a constant bias.
    Const(Arc<Tensor>),
    /// The bias is the op's input after the data.
    Input,
}

/// The tensor that a filter was packed from.
///
/// It lets nodes that share an initialiser share the packed filter. The reference is weak, so it
/// does not keep the tensor alive. It does not affect the result, so all sources compare equal.
#[derive(Clone, Debug)]
struct Source(Weak<Tensor>);

impl PartialEq for Source {
    fn eq(&self, _other: &Source) -> bool {
        true
    }
}

impl Eq for Source {}

impl Hash for Source {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl OptGroupedDeconv {
    /// Packs a constant filter, or shares the packed filter of a node of `model` with the same
    /// source.
    pub(super) fn new(
        op: &GroupedDeconv,
        model: &TypedModel,
        data: &TypedFact,
        filter: &Arc<Tensor>,
        bias: Bias,
        options: PlanOptions,
    ) -> TractResult<OptGroupedDeconv> {
        let (spec, datum_type, plans) = (&op.spec, data.datum_type, PlanCache::default());
        let known = shared::known_shape(spec, data);
        let layout = match known {
            Some(shape) => plans.get(spec, shape, None, datum_type, &options)?.plan().filter_layout(),
            None => Plan::shape_free_layout(spec, &data.shape, datum_type, &options),
        };
        let bytes = filter.len().saturating_mul(datum_type.size_of());
        let is_packed_again = known.is_none() && options.layout.is_none() && bytes <= MOST_REPACKED_BYTES;
        let twin = model
            .nodes()
            .iter()
            .filter_map(|node| node.op_as::<OptGroupedDeconv>())
            .find(|twin| twin.packs_like(spec, &layout, filter));
        let packed = match twin {
            Some(twin) => Arc::clone(&twin.filter),
            None => Arc::new(PackedFilter::pack(spec, &layout, filter)?),
        };
        let bias = match bias {
            Bias::Const(bias) => Bias::Const(without_subnormals(&bias)?),
            other => other,
        };
        Ok(OptGroupedDeconv {
            spec: spec.clone(),
            dialect: op.dialect,
            datum_type,
            bias,
            epilogue: vec![],
            not_fourier: None,
            fusion: op.fusion,
            parts: 1,
            options: if is_packed_again { options } else { PlanOptions { layout: Some(layout), ..options } },
            filter: packed,
            plain: is_packed_again.then(|| Arc::clone(filter)),
            repacked: PackedFilters::default(),
            source: Source(Arc::downgrade(filter)),
            plans,
        })
    }

    /// Returns the filter packed for a plan.
    fn filter_for(&self, plan: &Plan) -> TractResult<Arc<PackedFilter>> {
        let layout = plan.filter_layout();
        match &self.plain {
            Some(plain) if layout != *self.filter.layout() => {
                self.repacked.get(None, &self.spec, &layout, || PackedFilter::pack(&self.spec, &layout, plain))
            }
            _ => Ok(Arc::clone(&self.filter)),
        }
    }

    /// Returns the layout of the packed filter: the first one, if it is packed again for some sizes.
    pub fn filter_layout(&self) -> &FilterLayout {
        self.filter.layout()
    }

    /// Returns the number of tensors that hold the channels of the data.
    ///
    /// There are several if the layer reads the tensors of a concatenation.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Returns the same op for data in so many tensors.
    pub(super) fn in_parts(&self, parts: usize) -> OptGroupedDeconv {
        let options = self.options.clone().with_in_parts(parts > 1);
        OptGroupedDeconv { parts, options, plans: PlanCache::default(), ..self.clone() }
    }

    /// Returns the fact of the data, whose channels may be in several tensors.
    pub(crate) fn data_fact(&self, inputs: &[&TypedFact]) -> TractResult<TypedFact> {
        let parts = inputs.get(..self.parts).with_context(|| format!("inputs: count={}", inputs.len()))?;
        shared::joint_fact(&self.spec, parts)
    }

    /// Returns the plan for data of a fact. None if sizes are open or the data is empty.
    pub(super) fn plan(&self, data: &TypedFact) -> TractResult<Option<Plan>> {
        let Some(shape) = shared::known_shape(&self.spec, data) else { return Ok(None) };
        let layer = self.plans.get(&self.spec, shape, None, self.datum_type, &self.options)?;
        Ok(Some(layer.plan().clone()))
    }

    fn bias_slot(&self) -> Option<usize> {
        (self.bias == Bias::Input).then_some(self.parts)
    }

    fn output_shape_slot(&self) -> Option<usize> {
        self.spec.has_output_shape_input().then(|| self.parts + (self.bias == Bias::Input) as usize)
    }

    /// Returns the slot of the epilogue's first added tensor. The other added tensors follow it.
    fn first_residual_slot(&self) -> usize {
        self.parts + (self.bias == Bias::Input) as usize + self.spec.has_output_shape_input() as usize
    }

    /// Returns whether both ops share one packed filter.
    pub fn shares_filter_with(&self, other: &OptGroupedDeconv) -> bool {
        Arc::ptr_eq(&self.filter, &other.filter)
    }

    /// Returns whether this op's packed filter is also right for `spec`, `layout` and `source`.
    fn packs_like(&self, spec: &DeconvSpec, layout: &FilterLayout, source: &Arc<Tensor>) -> bool {
        self.source.0.as_ptr() == Arc::as_ptr(source) && self.filter.layout() == layout && self.spec.packs_like(spec)
    }
}

impl Op for OptGroupedDeconv {
    fn name(&self) -> StaticName {
        "OptGroupedDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        let mut lines = vec![shared::info(&self.spec, self.dialect)];
        if !self.epilogue.is_empty() {
            lines.push(format!("then {}", list(&self.epilogue, ", ")));
        }
        lines.push(match self.plans.latest() {
            Some(layer) => layer.plan().to_string(),
            None if self.plain.is_some() => "planned at run time".to_string(),
            None => format!("planned at run time, with the filter packed in {}", self.filter_layout()),
        });
        Ok(lines)
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.spec.has_output_shape_input()
    }

    op_as_typed_op!();
}

impl EvalOp for OptGroupedDeconv {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let parts = inputs.get(..self.parts).with_context(|| {
            format!("inputs: count={}, tensors of the data: {} are needed", inputs.len(), self.parts)
        })?;
        Run {
            spec: &self.spec,
            plans: &self.plans,
            options: &self.options,
            inputs: parts.iter().map(|value| &**value).collect(),
            bias: match &self.bias {
                Bias::Const(bias) => Some(bias),
                Bias::None | Bias::Input => tensor(&inputs, self.bias_slot())?,
            },
            output_shape: tensor(&inputs, self.output_shape_slot())?,
            epilogue: &self.epilogue,
            residuals: inputs.iter().skip(self.first_residual_slot()).map(|value| &**value).collect(),
        }
        .eval(ctx.symbols, |plan| self.filter_for(plan))
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        if shared::has_symbolic_output_shape(&self.spec) {
            return Ok(None);
        }
        self.eval(&EvalContext::out_of_plan(), inputs).map(Some)
    }
}

impl TypedOp for OptGroupedDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let expected = self.first_residual_slot() + epilogue::added(&self.epilogue);
        ensure!(inputs.len() == expected, "inputs: count={}, {expected} are needed", inputs.len());
        ensure!(
            inputs[0].datum_type == self.datum_type,
            "input: datum_type={:?}, the filter's is {:?}",
            inputs[0].datum_type,
            self.datum_type
        );
        if let Some(slot) = self.bias_slot() {
            shared::check_bias_fact(&self.spec, inputs[0], inputs[slot])?;
        }
        if let Some(slot) = self.output_shape_slot() {
            shared::check_output_shape_fact(&self.spec, inputs[slot])?;
        }
        let output = shared::output_fact(&self.spec, &self.options, &self.data_fact(inputs)?)?;
        for residual in &inputs[self.first_residual_slot()..] {
            let (dt, shape) = (residual.datum_type, &residual.shape);
            ensure!(dt == self.datum_type, "residual: datum_type={dt:?}, the output's is {:?}", self.datum_type);
            ensure!(
                shape.compatible_with(&output[0].shape),
                "residual: shape={shape:?}, the output's is {:?}",
                output[0].shape
            );
        }
        Ok(output)
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        let mut axes = shared::axes_mapping(&self.spec, self.parts, inputs, outputs)?;
        for (slot, residual) in inputs.iter().enumerate().skip(self.first_residual_slot()) {
            for axis in 0..residual.rank() {
                let of_output = axes.axis((InOut::Out(0), axis))?.repr;
                axes = axes.linking(of_output, (InOut::In(slot), axis))?;
            }
        }
        Ok(axes)
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        shared::cost(&self.spec, &self.data_fact(inputs)?)
    }

    fn fuse(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if !self.fusion {
            return Ok(None);
        }
        // Before its last product becomes a pass.
        if let Some(patch) = beside::normalised(model, node, &self.options)? {
            return Ok(Some(patch));
        }
        let before = BetweenLayers::before(model, &node.inputs[..self.parts], &self.spec, &self.options)?;
        if before.is_some() {
            return Ok(before);
        }
        match beside::replaced(model, node, &self.options)? {
            None => concat::read_in_parts(model, node, self),
            replaced => Ok(replaced),
        }
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
        let op = OptGroupedDeconv {
            spec: shared::substitute(&self.spec, subs)?,
            plans: PlanCache::default(),
            ..self.clone()
        };
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}
