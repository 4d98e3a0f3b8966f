//! NNEF's own `deconv`, with which tract reads a model whether this crate is there or not.
//!
//! The fragment means what tract's reader takes it for. That departs from the standard's text in two places: the filter is
//! `[output channels, input channels / groups, ..]`, where the text has the input channels first, and `output_shape` holds
//! spatial sizes alone. Padding that is left out is SAME_UPPER.

use super::as_size;
use crate::knobs;
use crate::op::{Dialect, GroupedDeconv};
use crate::plan::PlanOptions;
use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side};
use tract_core::ops::cast::cast;
use tract_core::ops::cnn::wire_reshape_bias_as_vector;
use tract_nnef::internal::*;
use tract_nnef::ser::{array, ints, tuple_2};

/// The name of the fragment.
const FRAGMENT: &str = "deconv";

/// The registry that every model may use without naming it.
const REGISTRY: &str = "tract_nnef";

/// Puts this crate's reader and writer in the place of tract's.
pub(super) fn take_over(nnef: &mut Nnef) {
    for registry in nnef.registries.iter_mut().filter(|registry| registry.id.0 == REGISTRY) {
        registry.register_dumper(dump);
        if let Some(primitive) = registry.primitives.get_mut(&FRAGMENT.into()) {
            primitive.to_tract = load;
        }
    }
}

/// `None` for what the fragment can not say.
fn dump(ast: &mut IntoAst, node: &TypedNode, op: &GroupedDeconv) -> TractResult<Option<Arc<RValue>>> {
    let spec = &op.spec;
    let Padding::Explicit { begin, end } = &spec.padding else { return Ok(None) };
    let (data, output) = (ast.model.outlet_fact(node.inputs[0])?, &node.outputs[0].fact);
    let sayable = spec.direction == Direction::Transposed
        && spec.data_format == DataFormat::Ncx
        && op.fusion
        && data.datum_type.is_float()
        && begin.iter().chain(end).all(|pad| *pad >= 0);
    if !sayable {
        return Ok(None);
    }
    let mut named = vec![
        ("border", string("constant")),
        (
            "padding",
            array(begin.iter().zip(end).map(|(b, e)| tuple_2(numeric(b), numeric(e))).collect::<Vec<RValue>>()),
        ),
        ("stride", ints(&spec.strides)),
        ("dilation", ints(&spec.dilations)),
        ("groups", numeric(spec.group)),
    ];
    if spec.output_padding.iter().any(|padding| *padding != 0) {
        // tract derives the output padding from the sizes on both sides
        let (Some(_), Some(output)) = (data.shape.as_concrete(), output.shape.as_concrete()) else { return Ok(None) };
        named.push(("output_shape", ints(&output[spec.data_format.x_axis()..])));
    }
    let mut inputs = node
        .inputs
        .iter()
        .map(|input| ast.mapping.get(input).cloned().with_context(|| format!("{}: an input is not dumped", node.name)))
        .collect::<TractResult<Vec<_>>>()?;
    if let Some(filter) = inputs.get(1).cloned() {
        inputs[1] = outputs_first(ast, &node.name, spec, filter);
    }
    Ok(Some(invocation(FRAGMENT, &inputs, &named)))
}

/// The filter as [`FilterFormat::GroupedOix`].
fn outputs_first(ast: &mut IntoAst, name: &str, spec: &DeconvSpec, filter: Arc<RValue>) -> Arc<RValue> {
    let rank = spec.rank();
    let (g, i, o) = (spec.group, spec.group_in(), spec.group_out());
    let (kernel_first, kernel_last) = (0..rank, 3..3 + rank);
    // sizes with the groups on an axis of their own; its place, that of the outputs, of the inputs, and of the kernel
    let (channels, [at_g, at_o, at_i], kernel) = match spec.filter_format {
        FilterFormat::GroupedOix => return filter,
        FilterFormat::Iox => ([g, i, o], [0, 2, 1], kernel_last),
        FilterFormat::Oix => ([o, g, i], [1, 0, 2], kernel_last),
        FilterFormat::Xio => ([g, i, o], [rank, rank + 2, rank + 1], kernel_first),
        FilterFormat::Xoi => ([o, g, i], [rank + 1, rank, rank + 2], kernel_first),
    };
    let split: Vec<usize> = match kernel.start {
        0 => spec.kernel.iter().copied().chain(channels).collect(),
        _ => channels.into_iter().chain(spec.kernel.iter().copied()).collect(),
    };
    let axes: Vec<usize> = [at_g, at_o, at_i].into_iter().chain(kernel).collect();
    let merged: Vec<usize> = [g * o, i].into_iter().chain(spec.kernel.iter().copied()).collect();
    let steps = [("reshape", "shape", split), ("transpose", "axes", axes), ("reshape", "shape", merged)];
    steps.into_iter().enumerate().fold(filter, |filter, (step, (operator, attribute, values))| {
        let next = invocation(operator, &[filter], &[(attribute, ints(&values))]);
        ast.force_variable(format!("{name}_filter_{step}"), &next)
    })
}

fn load(builder: &mut ModelBuilder, invocation: &ResolvedInvocation) -> TractResult<Value> {
    let input: OutletId = invocation.named_arg_as(builder, "input")?;
    let filter: OutletId = invocation.named_arg_as(builder, "filter")?;
    let data = builder.model.outlet_fact(input)?.clone();
    let weights = builder.model.outlet_fact(filter)?.clone();
    if !data.datum_type.is_float() || weights.datum_type != data.datum_type {
        // integers, quantised or not
        return tract_nnef::ops::nnef::deser::deconv(builder, invocation);
    }
    let border: String = invocation.named_arg_as(builder, "border")?;
    ensure!(border == "constant", "border: border={border}, it must be constant");
    let spec = spec(builder, invocation, &data, &weights)?;
    let (channels, name) = (spec.out_channels, builder.generate_node_name());
    let mut wires = tvec!(input, filter);
    wires.extend(bias(builder, invocation, &name, data.datum_type, channels)?);
    let options = knobs::complete(&PlanOptions::default())?;
    builder.wire(GroupedDeconv::new(spec, Dialect::Nnef, wires.len() == 3, options)?, &wires)
}

fn spec(
    builder: &mut ModelBuilder,
    invocation: &ResolvedInvocation,
    data: &TypedFact,
    weights: &TypedFact,
) -> TractResult<DeconvSpec> {
    let shape = weights
        .shape
        .as_concrete()
        .with_context(|| format!("filter: shape={:?}, it must be known when the model is loaded", weights.shape))?;
    ensure!(
        shape.len() >= 3 && shape.len() == data.rank(),
        "filter: shape={shape:?}, as many axes as the input's are needed, {}, and three at least",
        data.rank()
    );
    let (kernel, rank) = (TVec::from(&shape[2..]), shape.len() - 2);
    let groups: i64 = invocation.named_arg_as(builder, "groups")?;
    // as many as there are channels
    let group = if groups == 0 { shape[0] } else { as_size("groups", groups)? };
    let in_channels =
        shape[1].checked_mul(group).with_context(|| format!("groups: groups={groups}, the channels overflow"))?;
    let mut sizes = |name: &str| -> TractResult<TVec<usize>> {
        let values: TVec<i64> = invocation.named_arg_as(builder, name)?;
        let sizes = values.iter().map(|value| as_size(name, *value)).collect::<TractResult<TVec<usize>>>()?;
        ensure!(
            sizes.is_empty() || sizes.len() == rank,
            "{name}: {name}={sizes:?}, one value per spatial axis, {rank}, is needed"
        );
        Ok(sizes)
    };
    let or = |sizes: TVec<usize>, value| if sizes.is_empty() { tvec!(value; rank) } else { sizes };
    let (strides, dilations, output_shape) =
        (or(sizes("stride")?, 1), or(sizes("dilation")?, 1), sizes("output_shape")?);
    let pads: TVec<TVec<i64>> = invocation.named_arg_as(builder, "padding")?;
    ensure!(
        pads.is_empty() || (pads.len() == rank && pads.iter().all(|pad| pad.len() == 2)),
        "padding: padding={pads:?}, one pair per spatial axis, {rank}, is needed"
    );
    let explicit = |ix: usize| pads.iter().map(|pad| pad[ix]).collect::<TVec<i64>>();
    let mut spec = DeconvSpec {
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::GroupedOix,
        in_channels,
        out_channels: shape[0],
        group,
        kernel,
        strides,
        dilations,
        padding: if pads.is_empty() {
            Padding::zero(rank)
        } else {
            Padding::Explicit { begin: explicit(0), end: explicit(1) }
        },
        output_padding: tvec!(0; rank),
    };
    spec.validate()?;
    match (pads.is_empty(), output_shape.is_empty()) {
        (true, true) => {
            spec.padding =
                Padding::same_transposed(&spec.kernel, &spec.strides, &spec.dilations, &spec.output_padding, Side::End);
        }
        (true, false) => {
            let shape = OutputShape::Dims(output_shape.iter().map(|size| size.to_dim()).collect());
            spec.padding = Padding::OutputShape { shape, extra: Side::End };
        }
        (false, true) => (),
        (false, false) => {
            let without = spec.output_shape(&data.shape)?;
            let missing = |ax: usize| {
                let size = without[spec.data_format.x_axis() + ax].to_usize().ok()?;
                output_shape[ax].checked_sub(size)
            };
            spec.output_padding = (0..rank).map(missing).collect::<Option<_>>().with_context(|| {
                format!(
                    "output_shape: output_shape={output_shape:?}, at least [{without:?}] is needed, and known sizes"
                )
            })?;
        }
    }
    Ok(spec)
}

/// A vector; nothing for a bare zero, the value of an argument that is left out.
fn bias(
    builder: &mut ModelBuilder,
    invocation: &ResolvedInvocation,
    name: &str,
    datum_type: DatumType,
    channels: usize,
) -> TractResult<Option<OutletId>> {
    let mut bias: OutletId = invocation.named_arg_as(builder, "bias")?;
    let fact = builder.model.outlet_fact(bias)?.clone();
    let zero = || fact.konst.as_ref().is_some_and(|bias| bias.is_zero().unwrap_or(false));
    if fact.rank() == 0 && zero() {
        return Ok(None);
    }
    let model = &mut builder.model;
    for axis in (0..fact.rank()).rev() {
        // one that stands for the batch or for a spatial axis
        if model.outlet_fact(bias)?.rank() > 1 && fact.shape[axis].is_one() {
            bias = model.wire_node(format!("{name}.bias.rm_{axis}"), AxisOp::Rm(axis), &[bias])?[0];
        }
    }
    if fact.datum_type != datum_type {
        bias = model.wire_node(format!("{name}.bias.cast"), cast(datum_type), &[bias])?[0];
    }
    Ok(Some(wire_reshape_bias_as_vector(model, name, bias, channels)?[0]))
}
