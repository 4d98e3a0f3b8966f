//! The named transform `to_tract`, which turns this crate's convolutions back into tract's own.
//!
//! Programs that need tract's operators use it. For example, tract's CUDA and Metal runtimes move
//! tract's operators to the device. They leave this crate's on the CPU, and copy the data before
//! and after each.
//!
//! ```
//! use tract_core::internal::*;
//! use tract_deconv as _; // a crate that is never named is not linked
//!
//! let mut model = TypedModel::default();
//! let transform = tract_core::transform::get_transform("to_tract")?.unwrap();
//! transform.transform(&mut model)?;
//! # Ok::<(), TractError>(())
//! ```
//!
//! A forward convolution becomes a `Conv`, a transposed one a `Deconv`. A convolution that these
//! can't express is not replaced. [`kept_from_tract`] and the log list such convolutions with the
//! reason.

use crate::op::bodies::{bodies_mut, for_each_node, holds_layers};
use crate::op::{
    BetweenLayers, DynamicFilterDeconv, GroupedDeconv, If, OptFourier, OptGroupedDeconv, OptIf, OptQuantisedDeconv,
    QuantisedDeconv,
};
use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding, Side};
use tract_core::internal::*;
use tract_core::ops::cnn::{Conv, Deconv, KernelFormat, PaddingSpec, PoolSpec};
use tract_core::ops::nn::DataFormat as TractFormat;
use tract_core::transform::ModelTransform;

/// The transform. It includes the bodies of loops and conditions.
///
/// It must run before the model is optimised, as optimising packs the weights and fuses
/// neighbouring nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToTract;

tract_core::register_simple_model_transform!("to_tract", ToTract);

impl ModelTransform for ToTract {
    fn name(&self) -> StaticName {
        "to_tract".into()
    }

    fn transform(&self, model: &mut TypedModel) -> TractResult<()> {
        for kept in kept_from_tract(model)? {
            log::warn!("{} stays as it is: {}", kept.name, kept.reason);
        }
        rewrite(model)
    }
}

fn rewrite(model: &mut TypedModel) -> TractResult<()> {
    for node in &mut model.nodes {
        let name = node.name.clone();
        for body in bodies_mut(node) {
            rewrite(body).with_context(|| format!("in the body of {name}"))?;
        }
        if let Some(op) = node.op_as::<If>().filter(|op| !op.bodies().iter().any(|(_, body)| holds_layers(body))) {
            node.op = Box::new(op.to_tract());
        }
    }
    Rewriter::<()>::default()
        .with_rule_for::<GroupedDeconv>("to_tract", |_, model, node, name, op| replace(model, node, name, op))
        .rewrite(&(), model)
}

/// An operator of this crate that the transform `to_tract` does not replace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptFromTract {
    /// The node's name, in the form of [`Explanation::name`](crate::Explanation::name).
    pub name: String,
    /// The reason why tract's own operators can't express it.
    pub reason: String,
}

/// Lists the operators of this crate that the transform `to_tract` does not replace, and why.
///
/// # Errors
/// Fails if the model's nodes have no evaluation order.
pub fn kept_from_tract(model: &TypedModel) -> TractResult<Vec<KeptFromTract>> {
    let mut kept = vec![];
    for_each_node("", model, &mut |name, model, node| {
        let reason = if let Some(op) = node.op_as::<GroupedDeconv>() {
            Converted::of(&op.spec, model.node_input_facts(node.id)?[0]).err().map(|reason| format!("{reason:#}"))
        } else if node.op_is::<OptGroupedDeconv>()
            || node.op_is::<OptFourier>()
            || node.op_is::<OptQuantisedDeconv>()
            || node.op_is::<BetweenLayers>()
            || node.op_is::<OptIf>()
        {
            Some("the model is optimised already".to_string())
        } else if node.op_is::<QuantisedDeconv>() {
            Some("quantisation: tract's operators round in f32".to_string())
        } else if node.op_is::<DynamicFilterDeconv>() {
            Some("filter: its sizes are known at run time only".to_string())
        } else {
            None
        };
        kept.extend(reason.map(|reason| KeptFromTract { name: name.to_string(), reason }));
        Ok(())
    })?;
    Ok(kept)
}

/// A convolution expressed as one of tract's operators.
enum Converted {
    Conv(Conv),
    Deconv(Deconv),
}

impl Converted {
    /// Converts a spec, or returns the reason why tract can't express it.
    fn of(spec: &DeconvSpec, input: &TypedFact) -> TractResult<Converted> {
        let datum_type = input.datum_type;
        let spec = &uncropped(spec);
        ensure!(
            matches!(datum_type, DatumType::F16 | DatumType::F32 | DatumType::F64),
            "input: datum_type={datum_type:?}, tract's operators are exact for floats only"
        );
        let unsigned = |side: &str, pads: &[i64]| -> TractResult<TVec<usize>> {
            let unsigned = pads.iter().map(|pad| usize::try_from(*pad).ok()).collect::<Option<_>>();
            unsigned.with_context(|| format!("pads {side}: pads={pads:?}, tract's operators have none below 0"))
        };
        let padding = match &spec.padding {
            Padding::Explicit { begin, end } => PaddingSpec::Explicit(unsigned("begin", begin)?, unsigned("end", end)?),
            Padding::SameForward { extra: Side::End } => PaddingSpec::SameUpper,
            Padding::SameForward { extra: Side::Begin } => PaddingSpec::SameLower,
            Padding::OutputShape { .. } => bail!("output_shape: tract's operators have none"),
        };
        let first = if spec.data_format == DataFormat::Ncx { 2 } else { 1 };
        for ax in 0..spec.rank() {
            let size = input.shape.get(first + ax).and_then(|dim| dim.to_usize().ok());
            check_axis(spec, ax, size)?;
        }
        let pool_spec = PoolSpec {
            data_format: match spec.data_format {
                DataFormat::Ncx => TractFormat::NCHW,
                DataFormat::Nxc => TractFormat::NHWC,
            },
            kernel_shape: spec.kernel.clone(),
            padding,
            dilations: Some(spec.dilations.clone()),
            strides: Some(spec.strides.clone()),
            input_channels: spec.in_channels,
            output_channels: spec.out_channels,
        };
        Ok(match spec.direction {
            Direction::Forward => {
                Converted::Conv(Conv { pool_spec, kernel_fmt: KernelFormat::OIHW, group: spec.group, q_params: None })
            }
            Direction::Transposed => Converted::Deconv(Deconv {
                pool_spec,
                kernel_format: KernelFormat::OIHW,
                adjustments: spec.output_padding.clone(),
                group: spec.group,
            }),
        })
    }
}

/// Returns the same convolution without output padding that the end padding crops again.
fn uncropped(spec: &DeconvSpec) -> DeconvSpec {
    let mut spec = spec.clone();
    if let (Direction::Transposed, Padding::Explicit { end, .. }) = (spec.direction, &mut spec.padding) {
        for (end, added) in end.iter_mut().zip(&mut spec.output_padding) {
            let both = usize::try_from(*end).unwrap_or(0).min(*added);
            *added -= both;
            *end -= both as i64;
        }
    }
    spec
}

/// Refuses an axis on which tract computes with sizes below zero, which its types can't hold.
///
/// `size` is the input's size, if it is known.
fn check_axis(spec: &DeconvSpec, ax: usize, size: Option<usize>) -> TractResult<()> {
    let (kernel, stride, dilation) = (spec.kernel[ax], spec.strides[ax], spec.dilations[ax]);
    let extent = kernel.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
    match &spec.padding {
        Padding::Explicit { begin, end } if spec.direction == Direction::Transposed => {
            // tract crops before it adds the output padding.
            let least = size.unwrap_or(1).saturating_sub(1).saturating_mul(stride).saturating_add(extent);
            let pads = begin[ax].saturating_add(end[ax]);
            ensure!(
                usize::try_from(pads).is_ok_and(|pads| pads <= least) || spec.output_padding[ax] == 0,
                "output_padding: output_padding={:?}, without it pads={pads} on spatial axis {ax} may crop all {least} outputs",
                spec.output_padding
            );
        }
        Padding::SameForward { .. } => ensure!(
            size.is_some() || extent >= stride,
            "auto_pad: the kernel's extent {extent} on spatial axis {ax} is less than the stride {stride}, and the input's size is \
             not known"
        ),
        _ => {}
    }
    Ok(())
}

/// Returns the axis operations that bring a filter to
/// `[out channels, in channels per group, kernel..]`.
fn to_oihw(spec: &DeconvSpec) -> Vec<AxisOp> {
    let spatial = spec.rank();
    let mut ops = match spec.filter_format {
        FilterFormat::GroupedOix => return vec![],
        FilterFormat::Iox => vec![],
        FilterFormat::Oix => vec![AxisOp::Move(1, 0)],
        FilterFormat::Xio => vec![AxisOp::Move(spatial, 0), AxisOp::Move(spatial + 1, 1)],
        FilterFormat::Xoi => vec![AxisOp::Move(spatial + 1, 0), AxisOp::Move(spatial + 1, 1)],
    };
    let (group, input, output) = (spec.group, spec.in_channels / spec.group, spec.out_channels / spec.group);
    if group > 1 {
        ops.push(AxisOp::Reshape(0, tvec!(spec.in_channels.to_dim()), tvec!(group.to_dim(), input.to_dim())));
        ops.push(AxisOp::Move(1, 2));
        ops.push(AxisOp::Reshape(0, tvec!(group.to_dim(), output.to_dim()), tvec!(spec.out_channels.to_dim())));
    } else {
        ops.push(AxisOp::Move(1, 0));
    }
    ops
}

fn replace(
    model: &TypedModel,
    node: &TypedNode,
    name: &str,
    op: &GroupedDeconv,
) -> TractResult<Option<TypedModelPatch>> {
    let input = model.node_input_facts(node.id)?[0];
    let datum_type = input.datum_type;
    let Ok(converted) = Converted::of(&op.spec, input) else { return Ok(None) };
    let mut patch = TypedModelPatch::default();
    let mut wires = patch.taps(model, &node.inputs)?;
    for (ix, change) in to_oihw(&op.spec).into_iter().enumerate() {
        wires[1] = patch.wire_node(format!("{name}.filter.{ix}"), change, &[wires[1]])?[0];
    }
    if !op.has_bias {
        wires.push(patch.add_const(format!("{name}.bias"), Tensor::zero_scalar_dt(datum_type)?)?);
    }
    let output = match converted {
        Converted::Conv(op) => patch.wire_node(name, op, &wires)?,
        Converted::Deconv(op) => patch.wire_node(name, op, &wires)?,
    };
    patch.shunt_outside(model, node.id.into(), output[0])?;
    Ok(Some(patch))
}
