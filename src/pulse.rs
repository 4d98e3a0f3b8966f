//! Streaming: [`GroupedDeconv`] and [`QuantisedDeconv`] in tract's pulsification (feature `pulse`).
//!
//! A model loaded through [`with_deconv`](crate::WithDeconv) or [`with_conv`](crate::WithConv), or
//! rewritten by the transforms `deconv` and `conv`, becomes a streaming model in the usual way: by
//! tract's transform `pulse` or by `PulsedModel::new`. A convolution can stream on any one of its
//! spatial axes, and on the batch axis.
//!
//! `examples/stream.rs` streams audio out of a small vocoder.
//!
//! # Transposed convolutions
//!
//! A [`GroupedDeconv`] that does not crop the streaming axis computes each pulse of `P` positions,
//! so that one plan of fixed shape serves all pulses. If the kernel's extent exceeds the stride,
//! the outputs of two pulses overlap. tract's `DeconvDelay` adds the overlapping positions, and the
//! bias is added afterwards, once per position. The output has `P·stride` positions per pulse. It
//! is `delay·stride + pad_begin` positions late, where `delay` is the input's own delay.
//!
//! Where the pulses of a [`QuantisedDeconv`] overlap, it computes integer sums, and [`ScaledSums`] makes
//! results of them once they are complete.
//!
//! # Forward convolutions
//!
//! tract's `Delay` keeps the last `extent - stride` positions of the input for the next pulse.
//! tract's `PulsePad` writes zeros before the stream begins and after it ends. The pulse must be a
//! multiple of the stride.
//!
//! # The end of the stream
//!
//! The stream's length becomes known with the pulse that contains its end. If the stream ends
//! together with a pulse, the length may become known only with the next one. A layer delays its
//! output so that positions past its own end come no sooner than that. The next layer then reads
//! zeros there. The delay is needed if the padding crops more positions at the end than two pulses
//! share.

use crate::op::{DataZeroPoint, GroupedDeconv, Output, QuantisedDeconv, ScaledSums};
use crate::spec::{DeconvSpec, Direction, Padding};
use std::sync::OnceLock;
use tract_core::internal::*;
use tract_core::ops::array::PadMode;
use tract_pulse::PulsedOp;
use tract_pulse::fact::{PulsedFact, StreamInfo};
use tract_pulse::model::PulsedModel;
use tract_pulse::ops::OpPulsifier;
use tract_pulse_opl::ops::{DeconvDelay, Delay, PulseMask, PulsePad};

/// Registers [`GroupedDeconv`] and [`QuantisedDeconv`] with tract's pulsification, for the whole process.
///
/// [`WithDeconv`](crate::WithDeconv) and the transform `deconv` call it. Only models that are built
/// by hand need a call. Further calls do nothing.
///
/// # Errors
/// Fails if tract's registry can't be locked.
pub fn register() -> TractResult<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_none() {
        OpPulsifier::register::<GroupedDeconv>(pulsify)?;
        OpPulsifier::register::<QuantisedDeconv>(pulsify)?;
        DONE.get_or_init(|| ());
    }
    Ok(())
}

/// A convolution that streams.
#[derive(Clone, Copy)]
enum Layer<'a> {
    Plain(&'a GroupedDeconv),
    Quantised(&'a QuantisedDeconv),
}

impl<'a> Layer<'a> {
    fn of(node: &'a TypedNode) -> Option<Layer<'a>> {
        node.op_as::<GroupedDeconv>()
            .map(Layer::Plain)
            .or_else(|| node.op_as::<QuantisedDeconv>().map(Layer::Quantised))
    }

    fn spec(self) -> &'a DeconvSpec {
        match self {
            Layer::Plain(op) => &op.spec,
            Layer::Quantised(op) => &op.spec,
        }
    }

    /// Returns the value of the data that contributes nothing.
    fn absent(self, datum_type: DatumType) -> TractResult<Tensor> {
        match self {
            Layer::Plain(_) => Tensor::zero_scalar_dt(datum_type),
            Layer::Quantised(op) => match op.zero_point {
                DataZeroPoint::Const(value) => Ok(tensor0(value).cast_to_dt(datum_type)?.into_owned()),
                DataZeroPoint::Input => bail!("pulse: a zero point that is known at run time only can't stream"),
            },
        }
    }

    /// Returns the number of inputs that a pulse has too.
    fn inputs(self) -> usize {
        match self {
            Layer::Plain(op) => 2 + op.has_bias as usize,
            Layer::Quantised(_) => 2,
        }
    }

    /// Returns the layer of one pulse.
    fn of_pulse(self, spec: DeconvSpec) -> TractResult<Box<dyn TypedOp>> {
        Ok(match self {
            Layer::Plain(op) => {
                let mut pulsed = GroupedDeconv::new(spec, op.dialect, op.has_bias, op.options.clone())?;
                pulsed.fusion = op.fusion;
                Box::new(pulsed)
            }
            Layer::Quantised(op) => Box::new(QuantisedDeconv { spec, ..op.clone() }),
        })
    }

    /// Returns the sums of one pulse, to which those of the next may be added.
    fn sums_of_pulse(self, spec: DeconvSpec) -> TractResult<Box<dyn TypedOp>> {
        Ok(match self {
            Layer::Plain(op) => {
                let mut pulsed = GroupedDeconv::new(spec, op.dialect, false, op.options.clone())?;
                pulsed.fusion = op.fusion;
                Box::new(pulsed)
            }
            Layer::Quantised(op) => {
                Box::new(QuantisedDeconv { spec, output: Output::Sums, fusion: false, ..op.clone() })
            }
        })
    }

    /// Returns whether the sums are the results.
    fn is_sums(self) -> bool {
        match self {
            Layer::Plain(op) => !op.has_bias,
            Layer::Quantised(op) => op.output == Output::Sums,
        }
    }
}

fn pulsify(
    model: &TypedModel,
    node: &TypedNode,
    target: &mut PulsedModel,
    mapping: &HashMap<OutletId, OutletId>,
    symbol: &Symbol,
    source_pulse: &TDim,
) -> TractResult<Option<TVec<OutletId>>> {
    let Some(layer) = Layer::of(node) else { return Ok(None) };
    let mut data = mapping[&node.inputs[0]];
    let mut fact = target.outlet_fact(data)?.clone();
    let Some(mut stream) = fact.stream.clone() else { return Ok(None) };
    let (inputs, outputs) = model.node_facts(node.id)?;
    let axis = node.op.axes_mapping(&inputs, &outputs)?.axis((InOut::In(0), stream.axis))?.clone();
    if axis.outputs[0].len() == 1 {
        return Ok(None);
    }
    let source = Source { symbol, pulse: source_pulse };
    let pulse = fact.pulse().context("pulse: a stream has pulses")?.clone();
    let spec = layer.spec();
    let c_axis = spec.data_format.c_axis(fact.shape.rank());
    ensure!(stream.axis != c_axis, "pulse: axis={c_axis}, the channels can't stream");
    for input in &node.inputs[1..] {
        let streams = target.outlet_fact(mapping[input])?.stream.is_some();
        ensure!(!streams, "pulse: only the data can stream, not the filter, the bias or the output shape");
    }
    if let Layer::Quantised(op) = layer {
        ensure!(node.inputs.len() == 2, "pulse: {}, results of several tensors can't stream", op.output);
    }
    let absent = layer.absent(fact.datum_type)?;
    if spec.direction == Direction::Forward {
        return forward(layer, node, target, mapping, data, fact, stream, &source).map(Some);
    }
    let pulse_spec = PulseSpec::new(spec, stream.axis - spec.data_format.x_axis(), &fact.streaming_shape())?;

    // The input must be late enough for two reasons. The output may begin before the first input's
    // contribution, and positions past the output's end must not come before the stream's end is
    // known.
    let early = pulse_spec.pad_begin + (stream.delay * pulse_spec.stride) as i64;
    let mut frames = match early {
        ..0 => early.unsigned_abs().div_ceil(pulse_spec.stride as u64) as usize,
        0.. => 0,
    };
    frames = frames.max(source.missing_delay(&stream, &pulse)?);
    let output = StreamInfo {
        axis: stream.axis,
        dim: pulse_spec.output_dim.clone(),
        delay: usize::try_from(pulse_spec.pad_begin + ((stream.delay + frames) * pulse_spec.stride) as i64)?,
    };
    frames += source.missing_delay(&output, &(pulse.clone() * pulse_spec.stride))?.div_ceil(pulse_spec.stride);
    if frames > 0 {
        let delay = Delay::new_typed(&TypedFact::from(&fact), stream.axis, frames, 0);
        data = target.wire_node(format!("{}.delay", node.name), delay, &[data])?[0];
        fact = target.outlet_fact(data)?.clone();
        stream = fact.stream.clone().context("pulse: a delayed stream is a stream")?;
    }
    // Values before and after the stream are arbitrary, and the kernel would read them.
    let mask =
        PulseMask { axis: stream.axis, begin: stream.delay, end: stream.dim.clone() + stream.delay, value: absent };
    data = target.wire_node(format!("{}.mask", node.name), mask, &[data])?[0];

    let output = StreamInfo {
        delay: usize::try_from(pulse_spec.pad_begin + (stream.delay * pulse_spec.stride) as i64)?,
        ..output
    };
    let overlaps = pulse_spec.overlap > 0;
    if !overlaps {
        let mut wires: TVec<OutletId> = node.inputs[..layer.inputs()].iter().map(|input| mapping[input]).collect();
        wires[0] = data;
        let pulsed = Pulsed::new(layer.of_pulse(pulse_spec.spec.clone())?, Some(output));
        return target.wire_node(&node.name, pulsed, &wires).map(Some);
    }
    let whole = StreamInfo {
        axis: stream.axis,
        dim: pulse_spec.whole_dim(&stream.dim),
        delay: stream.delay * pulse_spec.stride,
    };
    let pulsed = Pulsed::new(layer.sums_of_pulse(pulse_spec.spec.clone())?, Some(whole));
    let wire = target.wire_node(format!("{}.deconv", node.name), pulsed, &[data, mapping[&node.inputs[1]]])?;
    let sum = DeconvDelay {
        axis: stream.axis,
        overlap: pulse_spec.overlap,
        delay: output.delay,
        stride: pulse_spec.stride,
        pulse,
        // The position where it begins to write zeros, counted from the first position kept.
        deconv_input_dim: pulse_spec.whole_dim(&stream.dim) - pulse_spec.overlap - pulse_spec.pad_begin,
        deconv_output_dim: pulse_spec.output_dim.clone(),
    };
    if layer.is_sums() {
        return target.wire_node(&node.name, sum, &wire).map(Some);
    }
    let wire = target.wire_node(format!("{}.sum", node.name), sum, &wire)?;
    if let Layer::Quantised(op) = layer {
        let scaled = Pulsed::new(ScaledSums::new(spec.clone(), op.output.clone())?, Some(output));
        return target.wire_node(&node.name, scaled, &wire).map(Some);
    }
    let mut bias = mapping[&node.inputs[2]];
    for ax in (0..fact.shape.rank()).filter(|ax| *ax != c_axis) {
        let name = format!("{}.bias.{ax}", node.name);
        bias = target.wire_node(name, Pulsed::new(AxisOp::Add(ax), None), &[bias])?[0];
    }
    let add = Pulsed::new(tract_core::ops::math::add(), Some(output));
    target.wire_node(&node.name, add, &[wire[0], bias]).map(Some)
}

/// The input of the whole model.
struct Source<'a> {
    /// The symbol of the stream's length.
    symbol: &'a Symbol,
    /// The positions per pulse.
    pulse: &'a TDim,
}

impl Source<'_> {
    /// Returns by how much a stream with pulses of this size must be delayed further.
    ///
    /// Positions past its end must not come in the pulse that ends a source of whole pulses,
    /// because the length may become known with the next pulse only.
    fn missing_delay(&self, stream: &StreamInfo, pulse: &TDim) -> TractResult<usize> {
        if !stream.dim.symbols().contains(self.symbol) {
            return Ok(0);
        }
        let after = |pulses: i64| -> TractResult<Option<i64>> {
            let end = stream.dim.substitute(self.symbol, &(self.pulse.clone() * pulses))? + stream.delay;
            Ok((pulse.clone() * pulses - end).simplify().to_i64().ok())
        };
        // Evaluated far from the stream's beginning, where sizes are linear in the number of
        // pulses.
        match (after(1 << 10)?, after((1 << 10) + 1)?) {
            (Some(positions), Some(next)) if positions == next => Ok(usize::try_from(positions).unwrap_or(0)),
            _ => Ok(0),
        }
    }
}

/// Wires a forward convolution that streams on one of its spatial axes.
#[expect(clippy::too_many_arguments)]
fn forward(
    layer: Layer,
    node: &TypedNode,
    target: &mut PulsedModel,
    mapping: &HashMap<OutletId, OutletId>,
    mut data: OutletId,
    fact: PulsedFact,
    mut stream: StreamInfo,
    source: &Source,
) -> TractResult<TVec<OutletId>> {
    let spec = layer.spec();
    let (axis, x0) = (stream.axis, spec.data_format.x_axis());
    let ax = axis - x0;
    let whole = fact.streaming_shape();
    let output_dim = spec.output_shape(&whole)?[axis].clone();
    let (mut begin, mut end) = spec.explicit_pads(&whole[x0..]).context("pulse: the padding must be known")?;
    let (before, after) = (std::mem::take(&mut begin[ax]), std::mem::take(&mut end[ax]));
    let (stride, extent) = (spec.strides[ax], (spec.kernel[ax] - 1) * spec.dilations[ax] + 1);
    let pulse = fact.pulse().context("pulse: a stream has pulses")?;
    ensure!(
        pulse.clone() % stride as i64 == 0.to_dim(),
        "pulse: pulse={pulse}, it must be a multiple of the stride on the streaming axis, {stride}"
    );
    // Cropping makes the stream begin later or end earlier.
    let crop = |pad: i64| pad.min(0).unsigned_abs() as usize;
    stream.delay += crop(before);
    stream.dim = stream.dim - crop(before) - crop(after);
    let (before, after) = (before.max(0) as usize, after.max(0) as usize);

    // The first output comes with the first whole pulse that holds all its inputs. It must be late
    // by a multiple of the stride.
    let overlap = extent.saturating_sub(stride);
    let mut early = before.saturating_sub(stream.delay + overlap);
    if after > 0 {
        early = early.max(source.missing_delay(&stream, pulse)?);
    }
    let late = stream.delay + overlap + early - before;
    let mut extra = early + late.next_multiple_of(stride) - late;
    let mut output = StreamInfo { axis, dim: output_dim, delay: (stream.delay + extra + overlap - before) / stride };
    // The output must not end before the stream's end can be known.
    let missing = source.missing_delay(&output, &(pulse.clone() / stride))?;
    output.delay += missing;
    extra += missing * stride;
    if overlap + extra > 0 {
        let delay = Delay::new_typed(&TypedFact::from(&fact), axis, extra, overlap);
        data = target.wire_node(format!("{}.delay", node.name), delay, &[data])?[0];
    }
    let begin_input = stream.delay + extra + overlap;
    if before + after > 0 {
        let pad = PulsePad {
            axis,
            before,
            after: after.to_dim(),
            begin_input,
            end_input: stream.dim.clone() + begin_input,
            mode: PadMode::Constant(layer.absent(fact.datum_type)?.into_arc_tensor()),
            overlap,
        };
        data = target.wire_node(format!("{}.pad", node.name), pad, &[data])?[0];
    }
    let pulse_spec = DeconvSpec { padding: Padding::Explicit { begin, end }, ..spec.clone() };
    let pulsed = layer.of_pulse(pulse_spec)?;
    let mut wires: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
    wires[0] = data;
    target.wire_node(&node.name, Pulsed::new(pulsed, Some(output)), &wires)
}

/// The transposed convolution of one pulse.
struct PulseSpec {
    spec: DeconvSpec,
    stride: usize,
    /// The kernel's extent on the streaming axis.
    extent: usize,
    /// The number of positions that the outputs of two consecutive pulses share.
    overlap: usize,
    /// The padding before the first position of the streaming axis. The stream's delay replaces it.
    pad_begin: i64,
    /// The size of the output's streaming axis over the whole stream.
    output_dim: TDim,
}

impl PulseSpec {
    /// Derives it from that of the whole stream. `ax` is the streaming spatial axis, `input` the
    /// shape of the whole stream.
    fn new(spec: &DeconvSpec, ax: usize, input: &[TDim]) -> TractResult<PulseSpec> {
        let x0 = spec.data_format.x_axis();
        let output_dim = spec.output_shape(input)?[x0 + ax].clone();
        let (mut begin, mut end) = match &spec.padding {
            Padding::Explicit { begin, end } => (begin.clone(), end.clone()),
            Padding::OutputShape { shape, extra } => (0..spec.rank())
                .map(|ax| {
                    let full = full(spec, ax, &input[x0 + ax]);
                    let cropped = (full.clone() - &shape.dims()[ax]).simplify();
                    let cropped = cropped.to_i64().with_context(|| {
                        format!(
                            "pulse: output_shape={}, what it crops from {full} on spatial axis {ax} must not depend \
                             on the size of the input",
                            shape.dims()[ax]
                        )
                    })?;
                    let begin = match Padding::split([cropped.max(0)], *extra) {
                        Padding::Explicit { begin, .. } => begin[0],
                        _ => 0,
                    };
                    Ok((begin, cropped - begin))
                })
                .collect::<TractResult<Vec<(i64, i64)>>>()?
                .into_iter()
                .unzip(),
            Padding::SameForward { .. } => bail!("pulse: a transposed convolution has no forward padding"),
        };
        let pad_begin = std::mem::take(&mut begin[ax]);
        end[ax] = 0;
        let (stride, extent) = (spec.strides[ax], (spec.kernel[ax] - 1) * spec.dilations[ax] + 1);
        let mut pulse_spec = DeconvSpec { padding: Padding::Explicit { begin, end }, ..spec.clone() };
        // At least P·stride positions, so that there is no gap between pulses.
        pulse_spec.output_padding[ax] = stride.saturating_sub(extent);
        Ok(PulseSpec {
            spec: pulse_spec,
            stride,
            extent,
            overlap: extent.saturating_sub(stride),
            pad_begin,
            output_dim,
        })
    }

    /// Returns the uncropped size of the output's streaming axis, for the whole input.
    fn whole_dim(&self, input: &TDim) -> TDim {
        (input.clone() - 1) * self.stride + self.extent
    }
}

/// Returns the uncropped size of a spatial axis.
fn full(spec: &DeconvSpec, ax: usize, input: &TDim) -> TDim {
    let extent = (spec.kernel[ax] - 1) * spec.dilations[ax] + 1;
    (input.clone() - 1) * spec.strides[ax] + extent + spec.output_padding[ax]
}

/// An ordinary op in a pulsed model, with the stream of its output.
///
/// tract's own wrapper is private, and supports only axes that pass through unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pulsed {
    op: Box<dyn TypedOp>,
    stream: Option<StreamInfo>,
}

impl Pulsed {
    fn new(op: impl Into<Box<dyn TypedOp>>, stream: Option<StreamInfo>) -> Pulsed {
        Pulsed { op: op.into(), stream }
    }
}

impl Op for Pulsed {
    fn name(&self) -> StaticName {
        format!("Pulsed{}", self.op.name()).into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        self.op.info()
    }

    fn as_typed(&self) -> Option<&dyn TypedOp> {
        Some(self.op.as_ref())
    }
}

impl EvalOp for Pulsed {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.op.eval(ctx, inputs)
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        self.op.eval_out_of_plan(inputs)
    }

    fn state(&self, ctx: &EvalContext) -> TractResult<Option<Box<dyn OpState>>> {
        self.op.state(ctx)
    }
}

impl PulsedOp for Pulsed {
    fn pulsed_output_facts(&self, inputs: &[&PulsedFact]) -> TractResult<TVec<PulsedFact>> {
        let inputs = inputs.iter().map(|fact| TypedFact::from(*fact)).collect::<TVec<_>>();
        let facts = self.op.output_facts(&inputs.iter().collect::<TVec<_>>())?;
        let pulsed = |fact: TypedFact| PulsedFact {
            datum_type: fact.datum_type,
            shape: fact.shape,
            stream: self.stream.clone(),
        };
        Ok(facts.into_iter().map(pulsed).collect())
    }

    fn to_typed(&self) -> Box<dyn TypedOp> {
        self.op.clone()
    }

    as_op!();
}
