//! Convolutions of 8-bit integers that stand for real numbers.
//!
//! The semantics are those of ONNX's ConvInteger, QLinearConv, and of a convolution between
//! DequantizeLinear and QuantizeLinear, computed in real numbers.

mod byte_sum;
mod byte_table;
mod fold;
mod near;
mod packed;
mod quantise;
mod rescale;
mod run;
#[cfg(feature = "pulse")]
mod scaled_sums;
mod selection;

pub use byte_sum::ByteSum;
pub use byte_table::ByteTable;
pub(crate) use fold::dequantised;
pub use packed::OptQuantisedDeconv;
pub use quantise::{OptDynamicQuantise, OptQuantise, Quantise};
pub use rescale::{Output, Quantisation, Scale, Scaling};
pub use run::DataZeroPoint;
#[cfg(feature = "pulse")]
pub use scaled_sums::ScaledSums;

use crate::cache::Kept;
use crate::fuse;
use crate::memory;
use crate::op::Dialect;
use crate::op::integer_sums::IntegerSums;
use crate::op::shared;
use crate::plan::PlanOptions;
use crate::settings;
use crate::spec::{DataFormat, DeconvSpec};
use rescale::RunTime;
use run::{Slots, check_inputs, check_zero_point, is_byte, zero_point_of};
use tract_core::internal::*;

/// A grouped convolution of 8-bit integers, transposed or forward.
///
/// It sums `(x − zero point)·(w − zero point)` exactly in i32, where padding contributes nothing, and
/// makes sums, f32, or 8-bit integers of the sums: see [`Output`].
///
/// Inputs, in order:
/// - the data, u8 or i8, in the spec's data format;
/// - the filter, u8 or i8, in the spec's filter format;
/// - the zero point of the data, if it is [`DataZeroPoint::Input`];
/// - an f32 factor, one value or one per output channel, if [`Scaling::has_factor_input`];
/// - a quantised tensor of the output's shape, if [`Scaling::added`].
///
/// Optimising a model replaces the op by [`OptQuantisedDeconv`] if the filter is constant. Otherwise
/// the op prepares its filter in each run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuantisedDeconv {
    /// The convolution to compute.
    pub spec: DeconvSpec,
    /// The source format of the node.
    pub dialect: Dialect,
    /// The zero point of the data.
    pub zero_point: DataZeroPoint,
    /// The zero points of the filter: one, or one per output channel.
    pub filter_zero_points: TVec<i32>,
    /// What the sums become.
    pub output: Output,
    /// Choices forced on the planner. The strategy is that of other layers.
    pub options: PlanOptions,
    /// Whether neighbouring nodes may be folded into the op.
    pub fusion: bool,
}

impl QuantisedDeconv {
    /// Creates the op of a spec.
    ///
    /// # Errors
    /// Fails if [`DeconvSpec::validate`] does, for a spec that reads its output shape at run time or has
    /// symbols in it, and for zero points, scales or biases that do not fit the spec.
    pub fn new(
        spec: DeconvSpec,
        dialect: Dialect,
        zero_point: DataZeroPoint,
        filter_zero_points: TVec<i32>,
        output: Output,
        options: PlanOptions,
    ) -> TractResult<QuantisedDeconv> {
        spec.validate()?;
        ensure!(
            !spec.has_output_shape_input() && !shared::has_symbolic_output_shape(&spec),
            "output_shape: a quantised convolution needs its value where it is loaded"
        );
        let (count, channels) = (filter_zero_points.len(), spec.out_channels);
        ensure!(
            count == 1 || count == channels,
            "filter zero point: count={count}, one or one per output channel, {channels}, is needed"
        );
        if let Some(scaling) = output.scaling() {
            scaling.check(channels)?;
        }
        Ok(QuantisedDeconv { spec, dialect, zero_point, filter_zero_points, output, options, fusion: true })
    }

    fn slots(&self) -> Slots {
        Slots::new(2, self.zero_point, &self.output)
    }

    /// Returns the sums of a filter. A forced strategy does not hold for them.
    ///
    /// # Errors
    /// The filter does not fit the op, or a sum could leave 32 bits.
    pub(crate) fn sums(&self, filter: &Tensor, options: &PlanOptions) -> TractResult<IntegerSums> {
        let shape = self.spec.filter_shape();
        ensure!(*filter.shape() == *shape, "filter: shape={:?}, {shape:?} is needed", filter.shape());
        let ram = filter.try_as_plain_ram()?;
        let zero_points = &self.filter_zero_points;
        for value in zero_points {
            check_zero_point("filter zero point", *value, filter.datum_type())?;
        }
        let mut weights = memory::zero_tensor::<i16>("filter", &shape)?;
        let mut view = weights.try_as_plain_ram_mut()?;
        let to = view.as_slice_mut::<i16>()?;
        let zero_point = |channel: usize| zero_points[if zero_points.len() == 1 { 0 } else { channel }] as i16;
        match filter.datum_type() {
            DatumType::U8 => {
                let from = ram.as_slice::<u8>()?;
                fuse::for_each_weight(&self.spec, |_, o, at| to[at] = from[at] as i16 - zero_point(o))?;
            }
            DatumType::I8 => {
                let from = ram.as_slice::<i8>()?;
                fuse::for_each_weight(&self.spec, |_, o, at| to[at] = from[at] as i16 - zero_point(o))?;
            }
            other => bail!("filter: datum_type={other:?}, 8-bit integers are needed"),
        }
        let options = PlanOptions { strategy: None, ..options.clone() };
        IntegerSums::new(&self.spec, &weights, &options)
    }
}

impl Op for QuantisedDeconv {
    fn name(&self) -> StaticName {
        "QuantisedDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![shared::info(&self.spec, self.dialect), format!("to {}", self.output)])
    }

    op_as_typed_op!();
}

impl EvalOp for QuantisedDeconv {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let slots = self.slots();
        slots.check(inputs.len())?;
        let zero_point = zero_point_of(self.zero_point, &inputs[0], slots.zero_point.map(|slot| &*inputs[slot]))?;
        let run_time = RunTime {
            factor: slots.factor.map(|slot| &*inputs[slot]),
            added: slots.added.map(|slot| &*inputs[slot]),
            scales: None,
        };
        let sums = self.sums(&inputs[1], &self.options)?;
        Ok(tvec!(self.output.of_data(&sums, &inputs[0], zero_point, &run_time)?.into_tvalue()))
    }
}

impl TypedOp for QuantisedDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let facts = check_inputs(&self.spec, &self.slots(), &self.output, inputs)?;
        let (data, filter) = (inputs[0], inputs[1]);
        ensure!(is_byte(filter.datum_type), "filter: datum_type={:?}, 8-bit integers are needed", filter.datum_type);
        let shape = self.spec.filter_shape();
        ensure!(
            filter.rank() == shape.len()
                && filter.shape.iter().zip(&shape).all(|(dim, size)| dim.to_usize().map_or(true, |dim| dim == *size)),
            "filter: shape={:?}, {shape:?} is needed",
            filter.shape
        );
        if let DataZeroPoint::Const(value) = self.zero_point {
            check_zero_point("zero point", value, data.datum_type)?;
        }
        for value in &self.filter_zero_points {
            check_zero_point("filter zero point", *value, filter.datum_type)?;
        }
        if let Some(shape) = facts[0].shape.as_concrete() {
            self.options.limit().check_output(shape, facts[0].datum_type)?;
        }
        Ok(facts)
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        self.slots().axes_mapping(&self.spec, inputs, outputs)
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
        let added = self.slots().added.map(InOut::In);
        let moves: TVec<InOut> = [InOut::In(0), InOut::Out(0)].into_iter().chain(added).collect();
        if !moves.contains(&io) || *change != to_other {
            return Ok(None);
        }
        let spec = DeconvSpec { data_format: other, ..self.spec.clone() };
        Ok(Some(AxisChangeConsequence {
            substitute_op: Some(Box::new(QuantisedDeconv { spec, ..self.clone() })),
            wire_changes: moves.into_iter().map(|io| (io, change.clone())).collect(),
        }))
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        shared::cost(&self.spec, inputs[0])
    }

    fn declutter(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if !self.fusion {
            return Ok(None);
        }
        match fold::following(self, model, node)? {
            Some(patch) => Ok(Some(patch)),
            None => near::function_of_bytes(model, node),
        }
    }

    fn codegen(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if let Some(patch) = if self.fusion { near::quantiser(model, node)? } else { None } {
            return Ok(Some(patch));
        }
        let Some(filter) = &model.outlet_fact(node.inputs[1])?.konst else { return Ok(None) };
        let op = OptQuantisedDeconv {
            dialect: self.dialect,
            zero_point: self.zero_point,
            output: self.output.clone(),
            sums: self.sums(filter, &settings::complete(&self.options)?)?,
            fusion: self.fusion,
            scales: Kept::default(),
        };
        let mut inputs: TVec<OutletId> = node.inputs.iter().copied().collect();
        inputs.remove(1);
        TypedModelPatch::replace_single_op(model, node, &inputs, op).map(Some)
    }

    as_op!();
}
