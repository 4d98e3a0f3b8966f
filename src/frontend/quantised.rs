//! Quantised forms of ONNX: QLinearConv, ConvInteger, and convolutions between DequantizeLinear and
//! QuantizeLinear.
//!
//! tract's own builders and rules read these operators. A form that this crate's op does not compute
//! becomes what tract makes of it. Scales that are not positive and finite are refused.

use super::expand::Node;
use super::of_tract::{OfTract, ToTyped};
use crate::memory;
use crate::op::quantised::dequantised;
use crate::op::{DataZeroPoint, Output, Quantisation, Quantise, QuantisedDeconv, Scale, Scaling};
use crate::settings;
use crate::spec::{DeconvSpec, FilterFormat};
use tract_core::ops::array::TypedConcat;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::cnn::MaxPool;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::identity::Identity;
use tract_core::ops::quant::DequantizeLinearF32;
use tract_hir::internal::*;

/// The most nodes searched between a convolution and QuantizeLinear.
const MOST_SEEN: usize = 64;

/// An operator on quantised numbers, and what its typed op needs of the file.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    DequantizeLinear { axis: i64 },
    QuantizeLinear,
    ConvInteger { node: Box<Node>, zero_points: [Option<usize>; 2] },
    QLinearConv { node: Box<Node>, bias: Option<usize> },
}

impl ToTyped for Kind {
    fn to_typed(
        &self,
        of_tract: &dyn InferenceOp,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        let mut wiring = Wiring { source, node, target, inputs: &inputs };
        let wired = match self {
            Kind::DequantizeLinear { .. } => Ok(None),
            Kind::QuantizeLinear => wiring.quantise(),
            Kind::ConvInteger { node, zero_points } => wiring.conv_integer(node, *zero_points),
            Kind::QLinearConv { node, bias } => wiring.qlinear_conv(node, *bias),
        };
        match wired? {
            Some(outlets) => Ok(outlets),
            None => of_tract.to_typed(source, node, target, mapping),
        }
    }
}

/// A Conv or ConvTranspose, which is quantised if its operands are dequantised.
#[derive(Clone, Debug)]
pub(super) struct Layer(pub Node);

impl Expansion for Layer {
    fn name(&self) -> StaticName {
        self.0.name()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        self.0.info()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        self.0.rules(s, inputs, outputs)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        self.0.wire(prefix, model, inputs)
    }

    fn wire_with_inference_model_and_node(
        &self,
        prefix: &str,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        let wired = match self.0.settings.fusion {
            true => Wiring { source, node, target, inputs }.dequantised_layer(&self.0)?,
            false => None,
        };
        match wired {
            Some(outlets) => Ok(outlets),
            None => self.0.wire_with_inference_model_and_node(prefix, source, node, target, inputs),
        }
    }
}

/// A constant of 8-bit integers or i32, with its scales and zero points.
struct Constant {
    values: Arc<Tensor>,
    scales: Arc<Tensor>,
    zero_points: Option<Arc<Tensor>>,
    axis: i64,
}

/// A node that becomes typed.
struct Wiring<'a> {
    source: &'a InferenceModel,
    node: &'a InferenceNode,
    target: &'a mut TypedModel,
    inputs: &'a [OutletId],
}

impl Wiring<'_> {
    /// Returns the value of an input, if it is constant.
    fn constant(&self, slot: usize) -> TractResult<Option<Arc<Tensor>>> {
        let input = self.node.inputs.get(slot).with_context(|| format!("inputs: slot={slot}, it is missing"))?;
        Ok(self.source.outlet_fact(*input)?.value.concretize())
    }

    /// Returns the constant that a DequantizeLinear of constants dequantises.
    fn dequantised_constant(&self, slot: usize) -> TractResult<Option<Constant>> {
        let input = self.node.inputs.get(slot).with_context(|| format!("inputs: slot={slot}, it is missing"))?;
        let node = self.source.node(input.node);
        let Some(OfTract { typed: Kind::DequantizeLinear { axis }, .. }) = node.op_as::<OfTract<Kind>>() else {
            return Ok(None);
        };
        let value = |slot: usize| -> TractResult<Option<Arc<Tensor>>> {
            node.inputs.get(slot).map_or(Ok(None), |input| Ok(self.source.outlet_fact(*input)?.value.concretize()))
        };
        let (Some(values), Some(scales), zero_points) = (value(0)?, value(1)?, value(2)?) else { return Ok(None) };
        if zero_points.is_none() && node.inputs.len() > 2 {
            return Ok(None);
        }
        Ok(Some(Constant { values, scales, zero_points, axis: *axis }))
    }

    /// Wires a QuantizeLinear behind a quantised convolution.
    fn quantise(&mut self) -> TractResult<Option<TVec<OutletId>>> {
        if !self.is_behind_quantised(self.inputs[0])? {
            return Ok(None);
        }
        let zero_point = match self.inputs.len() {
            2 => Some(tensor0(0u8).into_arc_tensor()),
            _ => self.constant(2)?,
        };
        let (Some(scale), Some(zero_point)) = (self.constant(1)?, zero_point) else { return Ok(None) };
        if scale.len() != 1 || zero_point.len() != 1 || !is_byte(&zero_point) {
            return Ok(None);
        }
        let to = quantisation("y", &scale, &zero_point)?;
        self.target.wire_node(&self.node.name, Quantise { to }, &self.inputs[..1]).map(Some)
    }

    /// Returns whether a quantised convolution computes a value, perhaps through other ops between layers.
    fn is_behind_quantised(&self, outlet: OutletId) -> TractResult<bool> {
        let (mut open, mut seen) = (vec![outlet], 0);
        while let Some(outlet) = open.pop().filter(|_| seen < MOST_SEEN) {
            seen += 1;
            let node = self.target.node(outlet.node);
            if node.op_as::<QuantisedDeconv>().is_some_and(|op| op.fusion) {
                return Ok(self.target.outlet_fact(self.inputs[0])?.datum_type == DatumType::F32);
            }
            let quantises = node.op_is::<Quantise>() || node.op_is::<DequantizeLinearF32>();
            let selects = node.op_is::<TypedConcat>()
                || node.op_is::<MaxPool>()
                || node.op_is::<AxisOp>()
                || node.op_is::<Identity>();
            if quantises || selects || node.op_is::<TypedBinOp>() || node.op_is::<ElementWiseOp>() {
                open.extend(&node.inputs);
            }
        }
        Ok(false)
    }

    /// Wires an op and the constant filter that it reads.
    ///
    /// Returns none if a sum could leave 32 bits.
    fn layer(
        &mut self,
        mut op: QuantisedDeconv,
        fusion: bool,
        data: OutletId,
        filter: Arc<Tensor>,
        inputs: &[OutletId],
    ) -> TractResult<Option<TVec<OutletId>>> {
        op.fusion = fusion;
        if let Err(reason) = op.sums(&filter, &op.options) {
            log::warn!("{} stays as it is: {reason:#}", self.node.name);
            return Ok(None);
        }
        let name = &self.node.name;
        let filter = self.target.add_const(format!("{name}.filter"), filter)?;
        let inputs: TVec<OutletId> = [data, filter].into_iter().chain(inputs.iter().copied()).collect();
        self.target.wire_node(name, op, &inputs).map(Some)
    }

    /// Logs why a layer of dequantised operands is not a quantised one.
    fn stays<T>(&self, reason: &str) -> TractResult<Option<T>> {
        log::warn!("{} stays in f32: {reason}", self.node.name);
        Ok(None)
    }

    /// Wires a convolution whose operands are dequantised, if it is one.
    fn dequantised_layer(&mut self, layer: &Node) -> TractResult<Option<TVec<OutletId>>> {
        let Some((data, outlet)) = dequantised(self.target, self.inputs[0])? else { return Ok(None) };
        let Some(filter) = self.dequantised_constant(1)? else { return Ok(None) };
        if !is_byte(&filter.values) {
            return self
                .stays(&format!("filter: datum_type={:?}, 8-bit integers are needed", filter.values.datum_type()));
        }
        if layer.inputs.output_shape.is_some() {
            return self.stays("output_shape: it is known at run time only");
        }
        let spec = layer.spec(filter.values.shape(), None)?;
        let (_, output_axis, _) = spec.filter_format.axes_of(filter.values.rank());
        let Some((scales, zero_points)) = filter.per_channel(&spec, output_axis)? else {
            return self.stays("filter: scales and zero points are not those of output channels");
        };
        let scaling = Scaling::of_scales(data.scale, &scales_of("filter", &scales)?)?;
        let scaling = match layer.inputs.bias {
            None => scaling,
            Some(slot) => match self.bias(slot, spec.out_channels)? {
                Some(bias) => scaling.with_bias(bias),
                None => {
                    return self.stays("bias: finite constants, or dequantised i32 with zero points of 0, are needed");
                }
            },
        };
        let op = QuantisedDeconv::new(
            spec,
            layer.dialect,
            DataZeroPoint::Const(data.zero_point()),
            zero_points,
            Output::Floats(scaling),
            settings::complete(&layer.settings.planning)?,
        )?;
        self.layer(op, true, outlet, filter.values, &[])
    }

    /// Returns a bias in f64: a constant, or what a DequantizeLinear of constants computes.
    fn bias(&self, slot: usize, channels: usize) -> TractResult<Option<Arc<Tensor>>> {
        if let Some(bias) = self.dequantised_constant(slot)? {
            let is_i32 = bias.values.datum_type() == DatumType::I32;
            let zeros = bias.zero_points.as_ref().map_or(Ok(tvec!()), |zeros| integers(zeros))?;
            let fits = bias.values.shape() == [channels] && [1, channels].contains(&bias.scales.len());
            if !is_i32 || !fits || zeros.iter().any(|zero| *zero != 0) {
                return Ok(None);
            }
            let scales = scales_of("bias", &bias.scales)?;
            let ram = bias.values.try_as_plain_ram()?;
            let values = ram.as_slice::<i32>()?.iter().enumerate();
            let real = values.map(|(c, value)| *value as f64 * scales[c % scales.len()].value() as f64);
            return Ok(Some(memory::tensor_of("bias", &[channels], real)?.into_arc_tensor()));
        }
        let Some(bias) = self.constant(slot)? else { return Ok(None) };
        let finite =
            bias.try_as_plain_ram()?.as_slice::<f32>().is_ok_and(|values| values.iter().all(|v| v.is_finite()));
        if !finite || bias.shape() != [channels] {
            return Ok(None);
        }
        Ok(Some(bias.cast_to::<f64>()?.into_owned().into_arc_tensor()))
    }

    fn conv_integer(&mut self, layer: &Node, zero_points: [Option<usize>; 2]) -> TractResult<Option<TVec<OutletId>>> {
        let data = self.target.outlet_fact(self.inputs[0])?.clone();
        let Some(filter) = self.constant(1)?.filter(|filter| is_byte(filter)) else { return Ok(None) };
        let spec = layer.spec(filter.shape(), None)?;
        let filter_zero_points = match zero_points[1] {
            None => tvec!(0),
            Some(slot) => match self.constant(slot)? {
                Some(tensor) if tensor.len() == 1 || tensor.shape() == [spec.out_channels] => integers(&tensor)?,
                _ => return Ok(None),
            },
        };
        let mut inputs: TVec<OutletId> = tvec!();
        let zero_point = match zero_points[0] {
            None => DataZeroPoint::Const(0),
            Some(slot) => match self.constant(slot)? {
                Some(tensor) if tensor.len() == 1 => DataZeroPoint::Const(integers(&tensor)?[0]),
                Some(_) => return Ok(None),
                None => {
                    let is_one = self.target.outlet_fact(self.inputs[slot])?.shape.volume().is_one();
                    if !is_one {
                        return Ok(None);
                    }
                    inputs.push(self.inputs[slot]);
                    DataZeroPoint::Input
                }
            },
        };
        if !matches!(data.datum_type, DatumType::U8 | DatumType::I8) {
            return Ok(None);
        }
        let options = settings::complete(&layer.settings.planning)?;
        let op = QuantisedDeconv::new(spec, layer.dialect, zero_point, filter_zero_points, Output::Sums, options)?;
        self.layer(op, layer.settings.fusion, self.inputs[0], filter, &inputs)
    }

    fn qlinear_conv(&mut self, layer: &Node, bias: Option<usize>) -> TractResult<Option<TVec<OutletId>>> {
        let data = self.target.outlet_fact(self.inputs[0])?.clone();
        let mut constants: TVec<Arc<Tensor>> = tvec!();
        for slot in 1..8 {
            match self.constant(slot)? {
                Some(constant) => constants.push(constant),
                None => return Ok(None),
            }
        }
        let [x_scale, x_zero, filter, w_scale, w_zero, y_scale, y_zero] = &*constants else { return Ok(None) };
        let single = [x_scale, x_zero, y_scale, y_zero].iter().all(|tensor| tensor.len() == 1);
        if !single || !is_byte(filter) || !is_byte(x_zero) || !is_byte(y_zero) || x_zero.datum_type() != data.datum_type
        {
            return Ok(None);
        }
        let spec = layer.spec(filter.shape(), None)?;
        let channels = spec.out_channels;
        let fits = |tensor: &Tensor| tensor.len() == 1 || tensor.shape() == [channels];
        if !fits(w_scale) || !fits(w_zero) {
            return Ok(None);
        }
        let x = quantisation("x", x_scale, x_zero)?;
        let y = quantisation("y", y_scale, y_zero)?;
        let mut scaling = Scaling::of_scales(x.scale, &scales_of("w", w_scale)?)?;
        if let Some(slot) = bias {
            match self.constant(slot)? {
                Some(bias) if bias.shape() == [channels] && bias.datum_type() == DatumType::I32 => {
                    scaling = scaling.with_integer_bias(bias);
                }
                _ => return Ok(None),
            }
        }
        let op = QuantisedDeconv::new(
            spec,
            layer.dialect,
            DataZeroPoint::Const(x.zero_point()),
            integers(w_zero)?,
            Output::Quantised(scaling, y),
            settings::complete(&layer.settings.planning)?,
        )?;
        self.layer(op, layer.settings.fusion, self.inputs[0], Arc::clone(filter), &[])
    }
}

impl Constant {
    /// Returns scales and zero points of the output channels, one or one per channel, of a filter.
    ///
    /// Returns none if they are along another axis, or have another length.
    fn per_channel(&self, spec: &DeconvSpec, output_axis: usize) -> TractResult<Option<(Arc<Tensor>, TVec<i32>)>> {
        let zero_points = match &self.zero_points {
            None => tvec!(0),
            Some(tensor) if tensor.datum_type() == self.values.datum_type() => integers(tensor)?,
            Some(_) => return Ok(None),
        };
        if self.scales.len() == 1 && zero_points.len() == 1 {
            return Ok(Some((Arc::clone(&self.scales), zero_points)));
        }
        let rank = self.values.rank() as i64;
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let along = self.values.shape()[output_axis];
        let fits = |len: usize| len == 1 || len == along;
        if axis != output_axis as i64 || !fits(self.scales.len()) || !fits(zero_points.len()) {
            return Ok(None);
        }
        // The axis of a transposed filter has the channels of one group.
        let groups = if spec.filter_format == FilterFormat::GroupedOix { 1 } else { spec.group };
        let scales = scales_of("filter", &self.scales)?;
        let all = memory::tensor_of(
            "scale",
            &[spec.out_channels],
            (0..along * groups).map(|c| scales[c % scales.len()].value()),
        )?;
        let zero_points = (0..along * groups).map(|c| zero_points[c % zero_points.len()]).collect();
        Ok(Some((all.into_arc_tensor(), zero_points)))
    }
}

fn is_byte(tensor: &Tensor) -> bool {
    matches!(tensor.datum_type(), DatumType::U8 | DatumType::I8)
}

fn integers(tensor: &Tensor) -> TractResult<TVec<i32>> {
    let wide = tensor.cast_to::<i32>()?;
    Ok(wide.try_as_plain_ram()?.as_slice::<i32>()?.into())
}

fn scales_of(what: &str, tensor: &Tensor) -> TractResult<Vec<Scale>> {
    let ram = tensor.try_as_plain_ram()?;
    ram.as_slice::<f32>()?.iter().map(|value| Scale::new(what, *value)).collect()
}

/// Returns the quantisation with a scale and a zero point of one element each.
fn quantisation(what: &str, scale: &Tensor, zero_point: &Tensor) -> TractResult<Quantisation> {
    let scales = scales_of(what, scale)?;
    let scale = scales.first().with_context(|| format!("{what}: the scale is missing"))?;
    let zero_points = integers(zero_point)?;
    let zero = zero_points.first().with_context(|| format!("{what}: the zero point is missing"))?;
    Quantisation::new(what, *scale, *zero, zero_point.datum_type())
}
