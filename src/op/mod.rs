//! The tract operators: those that importers create, and those that optimised models run.

mod axes;
mod beside;
mod between;
pub(crate) mod bodies;
mod columns;
mod concat;
mod condition;
mod dynamic_filter;
mod f16_arithmetic;
mod find_passes;
mod formats;
mod fourier;
mod fourier_basis;
mod fourier_frames;
mod integer_sums;
mod minimum_cut;
mod normalise;
mod packed;
pub(crate) mod quantised;
mod reduce;
mod resize;
mod shared;
mod softmax;
mod transpose;

pub use between::{BetweenLayers, Pass};
pub use condition::{EvalNode, If, IfState, OptIf};
pub(crate) use dynamic_filter::{DynamicFilterDeconv, SpecOfFilter};
pub use f16_arithmetic::OptF16Arithmetic;
pub use fourier::OptFourier;
#[doc(hidden)]
pub use integer_sums::{IntegerSums, with_elements_of};
pub use normalise::OptNormalise;
pub use packed::{Bias, OptGroupedDeconv};
#[cfg(feature = "pulse")]
pub use quantised::ScaledSums;
pub use quantised::{
    ByteSum, ByteTable, DataZeroPoint, OptDynamicQuantise, OptQuantise, OptQuantisedDeconv, Output, Quantisation,
    Quantise, QuantisedDeconv, Scale, Scaling,
};
pub use reduce::OptReduce;
pub use resize::OptResize;
pub(crate) use shared::integers;
pub use softmax::OptSoftmax;
pub use transpose::OptTranspose;

use crate::cache::{FilterCache, PlanCache};
use crate::fuse;
use crate::layout::filter::PackedFilter;
use crate::padding;
use crate::plan::PlanOptions;
use crate::settings;
use crate::space_to_depth;
use crate::spec::{DataFormat, DeconvSpec};
use shared::{Run, tensor};
use std::fmt;
use tract_core::internal::*;

macro_rules! is_one_of {
    ($op:expr, $($of:ty),* $(,)?) => { false $(|| $op.is::<$of>())* };
}

/// Returns whether an operator is this crate's, not tract's.
pub fn is_of_plugin(op: &dyn TypedOp) -> bool {
    #[cfg(feature = "pulse")]
    if op.is::<ScaledSums>() {
        return true;
    }
    is_one_of!(
        op,
        BetweenLayers,
        ByteSum,
        ByteTable,
        DynamicFilterDeconv,
        GroupedDeconv,
        If,
        OptDynamicQuantise,
        OptF16Arithmetic,
        OptFourier,
        OptGroupedDeconv,
        OptIf,
        OptNormalise,
        OptQuantise,
        OptQuantisedDeconv,
        OptReduce,
        OptResize,
        OptSoftmax,
        OptTranspose,
        Quantise,
        QuantisedDeconv,
    )
}

/// The source format of a node.
///
/// It is a label only. The spec holds everything that affects the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// ONNX ConvTranspose and Conv.
    Onnx,
    /// OpenVINO's \[Group\]ConvolutionBackpropData-1, GroupConvolution-1 and Convolution-1.
    OpenVino,
    /// oneDNN Graph's ConvTranspose-1.
    OneDnn,
    /// tract's own `Deconv` or `Conv`, rewritten.
    Tract,
    /// NNEF's `deconv` and `conv`.
    Nnef,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Dialect::Onnx => "onnx",
            Dialect::OpenVino => "openvino",
            Dialect::OneDnn => "onednn",
            Dialect::Tract => "tract",
            Dialect::Nnef => "nnef",
        })
    }
}

/// A grouped convolution, transposed or forward.
///
/// Inputs, in order:
/// - the data, in the spec's data format;
/// - the filter, in the spec's filter format;
/// - the bias, of shape `[out channels]`, if [`GroupedDeconv::has_bias`];
/// - the spatial output shape, a vector of integers, if the spec reads it at run time.
///
/// It has one output, with the data's element type and the spec's data format.
///
/// Optimising a model replaces the op by [`OptGroupedDeconv`] if the filter is constant, or by
/// [`OptFourier`] if it is a windowed Fourier basis. Otherwise the op packs its filter at run time.
/// It packs a tensor that successive runs pass to it at most twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupedDeconv {
    /// The convolution to compute.
    pub spec: DeconvSpec,
    /// The source format of the node.
    pub dialect: Dialect,
    /// Whether the op has a bias input.
    pub has_bias: bool,
    /// Choices forced on the planner.
    pub options: PlanOptions,
    /// Whether neighbouring nodes may be folded into the op.
    pub fusion: bool,
    /// Whether its data format is the one that [`formats`] chose.
    format_is_chosen: bool,
    plans: PlanCache,
    filters: FilterCache,
}

impl GroupedDeconv {
    /// Creates the op for a spec.
    ///
    /// # Errors
    /// Fails if [`DeconvSpec::validate`] does.
    pub fn new(spec: DeconvSpec, dialect: Dialect, has_bias: bool, options: PlanOptions) -> TractResult<GroupedDeconv> {
        spec.validate()?;
        Ok(GroupedDeconv {
            spec,
            dialect,
            has_bias,
            options,
            fusion: true,
            format_is_chosen: false,
            plans: PlanCache::default(),
            filters: FilterCache::default(),
        })
    }

    fn bias_slot(&self) -> Option<usize> {
        self.has_bias.then_some(2)
    }

    fn output_shape_slot(&self) -> Option<usize> {
        self.spec.has_output_shape_input().then_some(2 + self.has_bias as usize)
    }

    /// Returns the op of another spec.
    fn with_spec(&self, spec: DeconvSpec) -> GroupedDeconv {
        GroupedDeconv { spec, plans: PlanCache::default(), filters: FilterCache::default(), ..self.clone() }
    }

    /// Replaces a `Pad` before the node, or a `Slice` after it, by padding.
    fn with_padding_of_neighbours(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let mut patch = TypedModelPatch::default();
        let mut inputs = patch.taps(model, &node.inputs)?;
        let (spec, replaced) = if let Some(folded) = padding::preceding(model, node.inputs[0], &self.spec)? {
            inputs[0] = patch.tap_model(model, folded.outlet)?;
            (folded.spec, node.id.into())
        } else if let Some(folded) = padding::following(model, node, &self.spec)? {
            (folded.spec, folded.outlet)
        } else {
            return Ok(None);
        };
        let wires = patch.wire_node(&node.name, self.with_spec(spec), &inputs)?;
        patch.shunt_outside(model, replaced, wires[0])?;
        Ok(Some(patch))
    }
}

impl Op for GroupedDeconv {
    fn name(&self) -> StaticName {
        "GroupedDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![shared::info(&self.spec, self.dialect)])
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.spec.has_output_shape_input()
    }

    op_as_typed_op!();
}

impl EvalOp for GroupedDeconv {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        ensure!(inputs.len() >= 2, "inputs: count={}, data and filter are needed", inputs.len());
        // The filter may be another one in each run.
        let options = self.options.clone().with_transformed_bytes(0);
        Run {
            spec: &self.spec,
            plans: &self.plans,
            options: &options,
            inputs: tvec!(&*inputs[0]),
            bias: tensor(&inputs, self.bias_slot())?,
            output_shape: tensor(&inputs, self.output_shape_slot())?,
            epilogue: &[],
            residuals: tvec!(),
        }
        .eval(ctx.symbols, |plan| {
            let (filter, layout) = (inputs[1].clone().into_arc_tensor(), plan.filter_layout());
            self.filters.get(&filter, &self.spec, &layout, || PackedFilter::pack(&self.spec, &layout, &filter))
        })
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        if shared::has_symbolic_output_shape(&self.spec) {
            return Ok(None);
        }
        self.eval(&EvalContext::out_of_plan(), inputs).map(Some)
    }
}

impl TypedOp for GroupedDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let expected = 2 + self.has_bias as usize + self.spec.has_output_shape_input() as usize;
        ensure!(inputs.len() == expected, "inputs: count={}, {expected} are needed", inputs.len());
        let (input, filter) = (inputs[0], inputs[1]);
        ensure!(
            filter.datum_type == input.datum_type,
            "filter: datum_type={:?}, the input's is {:?}",
            filter.datum_type,
            input.datum_type
        );
        let shape = self.spec.filter_shape();
        ensure!(
            filter.rank() == shape.len()
                && filter.shape.iter().zip(&shape).all(|(dim, size)| dim.to_usize().map_or(true, |dim| dim == *size)),
            "filter: shape={:?}, {shape:?} is needed",
            filter.shape
        );
        if let Some(slot) = self.bias_slot() {
            shared::check_bias_fact(&self.spec, input, inputs[slot])?;
        }
        if let Some(slot) = self.output_shape_slot() {
            shared::check_output_shape_fact(&self.spec, inputs[slot])?;
        }
        shared::output_fact(&self.spec, &self.options, input)
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        shared::axes_mapping(&self.spec, 1, inputs, outputs)
    }

    // Moving the channel axis between its positions in the two data formats changes the format
    // only.
    fn change_axes(
        &self,
        _model: &TypedModel,
        _node: &TypedNode,
        io: InOut,
        change: &AxisOp,
    ) -> TractResult<Option<AxisChangeConsequence>> {
        let last = self.spec.rank() + 1;
        let (to_other, other) = match self.spec.data_format {
            DataFormat::Ncx => (AxisOp::Move(1, last), DataFormat::Nxc),
            DataFormat::Nxc => (AxisOp::Move(last, 1), DataFormat::Ncx),
        };
        if !matches!(io, InOut::In(0) | InOut::Out(0)) || *change != to_other {
            return Ok(None);
        }
        let op = self.with_spec(DeconvSpec { data_format: other, ..self.spec.clone() });
        Ok(Some(AxisChangeConsequence {
            substitute_op: Some(Box::new(op)),
            wire_changes: tvec!((InOut::In(0), change.clone()), (InOut::Out(0), change.clone())),
        }))
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        shared::cost(&self.spec, inputs[0])
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
        let op =
            GroupedDeconv { spec: shared::substitute(&self.spec, subs)?, plans: PlanCache::default(), ..self.clone() };
        target.wire_node(&node.name, op, &inputs)
    }

    fn declutter(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if !self.fusion {
            return Ok(None);
        }
        if let Some(patch) = self.with_padding_of_neighbours(model, node)? {
            return Ok(Some(patch));
        }
        let facts = model.node_input_facts(node.id)?;
        let Some(filter) = &facts[1].konst else { return Ok(None) };
        if let Some(folded) = space_to_depth::preceding(model, node.inputs[0], &self.spec, filter)? {
            let mut patch = TypedModelPatch::new("a convolution reads what is rearranged to channels");
            let mut inputs = patch.taps(model, &node.inputs)?;
            inputs[0] = patch.tap_model(model, folded.outlet)?;
            inputs[1] = patch.add_const(format!("{}.filter", node.name), folded.filter)?;
            let wires = patch.wire_node(&node.name, self.with_spec(folded.spec), &inputs)?;
            patch.shunt_outside(model, node.id.into(), wires[0])?;
            return Ok(Some(patch));
        }
        let bias = self.bias_slot().map(|slot| &facts[slot].konst);
        let known = !matches!(bias, Some(None));
        let Some(preceding) = fuse::preceding(model, node.inputs[0], &self.spec, known)? else { return Ok(None) };
        let bias = bias.and_then(|bias| bias.as_deref());
        let (filter, bias) = fuse::fold_preceding(&self.spec, filter, bias, &preceding.affine)?;
        let mut patch = TypedModelPatch::default();
        let mut inputs = patch.taps(model, &node.inputs)?;
        inputs[0] = patch.tap_model(model, preceding.outlet)?;
        inputs[1] = patch.add_const(format!("{}.filter", node.name), filter)?;
        let mut op = GroupedDeconv { filters: FilterCache::default(), ..self.clone() };
        if let Some(bias) = bias {
            let bias = patch.add_const(format!("{}.bias", node.name), bias)?;
            match self.bias_slot() {
                Some(slot) => inputs[slot] = bias,
                None => inputs.insert(2, bias),
            }
            op.has_bias = true;
        }
        let wires = patch.wire_node(&node.name, op, &inputs)?;
        patch.shunt_outside(model, node.id.into(), wires[0])?;
        Ok(Some(patch))
    }

    fn codegen(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if self.fusion
            && !self.format_is_chosen
            && self.spec.data_format == DataFormat::Ncx
            && let Some(patch) = formats::chosen(model, node, self)?
        {
            return Ok(Some(patch));
        }
        let facts = model.node_input_facts(node.id)?;
        let options = settings::complete(&self.options)?;
        let Some(filter) = &facts[1].konst else {
            if options == self.options {
                return Ok(None);
            }
            let op = GroupedDeconv { options, plans: PlanCache::default(), ..self.clone() };
            return TypedModelPatch::replace_single_op(model, node, &node.inputs, op).map(Some);
        };
        let mut inputs = tvec!(node.inputs[0]);
        let bias = match self.bias_slot() {
            None => Bias::None,
            Some(slot) => match &facts[slot].konst {
                Some(bias) => Bias::Const(Arc::clone(bias)),
                None => {
                    inputs.push(node.inputs[slot]);
                    Bias::Input
                }
            },
        };
        inputs.extend(self.output_shape_slot().map(|slot| node.inputs[slot]));
        if !self.fusion {
            let op = OptGroupedDeconv::new(self, model, facts[0], filter, bias, options)?;
            return TypedModelPatch::replace_single_op(model, node, &inputs, op).map(Some);
        }
        let following = fuse::following(model, node, &self.spec, bias != Bias::Input)?;
        let (filter, bias) = match (&following.affine, &bias) {
            (None, _) => (Arc::clone(filter), bias),
            (Some(affine), Bias::Const(bias)) => {
                let (filter, bias) = fuse::fold_following(&self.spec, filter, Some(bias), affine)?;
                (filter, Bias::Const(bias))
            }
            (Some(affine), _) => {
                let (filter, bias) = fuse::fold_following(&self.spec, filter, None, affine)?;
                (filter, Bias::Const(bias))
            }
        };
        let op: Box<dyn TypedOp> = match OptFourier::of(self, facts[0], &filter, &bias, &following.epilogue, &options)?
        {
            Some(Ok(fourier)) => Box::new(fourier),
            refused => {
                let mut op = OptGroupedDeconv::new(self, model, facts[0], &filter, bias, options)?;
                op.epilogue = following.epilogue;
                op.not_fourier = refused.and_then(Result::err);
                inputs.extend(following.residuals);
                Box::new(op)
            }
        };
        let mut patch = TypedModelPatch::default();
        let taps = patch.taps(model, &inputs)?;
        let wires = patch.wire_node(&node.name, op, &taps)?;
        patch.shunt_outside(model, following.outlet, wires[0])?;
        Ok(Some(patch))
    }

    as_op!();
}
