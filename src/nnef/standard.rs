//! NNEF's own `deconv` and `conv`, which tract reads with this crate or without.
//!
//! The fragments have the meaning that tract's reader gives them. For `deconv` it departs from the
//! standard in two points. The filter is `[output channels, input channels / groups, ..]`, where
//! the standard has the input channels first. `output_shape` holds spatial sizes only. Missing
//! padding means SAME_UPPER.

use crate::op::{Dialect, GroupedDeconv};
use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side, as_size, list};
use tract_core::ops::cast::cast;
use tract_core::ops::cnn::wire_reshape_bias_as_vector;
use tract_nnef::internal::*;
use tract_nnef::ser::{array, ints, tuple_2};

/// The registry that every model may use without naming it.
const REGISTRY: &str = "tract_nnef";

/// Returns the fragment of a direction.
fn fragment(direction: Direction) -> &'static str {
    match direction {
        Direction::Transposed => "deconv",
        Direction::Forward => "conv",
    }
}

/// Adds this crate's writer to tract's, and replaces tract's reader of one direction's fragment.
pub(super) fn take_over(nnef: &mut Nnef, direction: Direction) {
    for registry in nnef.registries.iter_mut().filter(|registry| registry.id.0 == REGISTRY) {
        registry.register_dumper(dump);
        if let Some(primitive) = registry.primitives.get_mut(&fragment(direction).into()) {
            primitive.to_tract = match direction {
                Direction::Transposed => load_transposed,
                Direction::Forward => load_forward,
            };
        }
    }
}

/// Writes the op, or returns `None` if the fragment can't express it.
fn dump(ast: &mut IntoAst, node: &TypedNode, op: &GroupedDeconv) -> TractResult<Option<Arc<RValue>>> {
    let spec = &op.spec;
    let (data, output) = (ast.model.outlet_fact(node.inputs[0])?, &node.outputs[0].fact);
    if spec.data_format != DataFormat::Ncx || !op.fusion || !data.datum_type.is_float() {
        return Ok(None);
    }
    let Some(padding) = padding_argument(spec, &data.shape) else { return Ok(None) };
    super::check_nesting(ast, node)?;
    let mut named = vec![
        ("border", string("constant")),
        ("padding", padding),
        ("stride", ints(&spec.strides)),
        ("dilation", ints(&spec.dilations)),
        ("groups", numeric(spec.group)),
    ];
    if spec.output_padding.iter().any(|padding| *padding != 0) {
        // tract derives the output padding from the sizes of input and output.
        let (Some(data), Some(output)) = (data.shape.as_concrete(), output.shape.as_concrete()) else {
            return Ok(None);
        };
        let x0 = spec.data_format.x_axis();
        if !tract_derives_output_padding(spec, &data[x0..]) {
            return Ok(None);
        }
        named.push(("output_shape", ints(&output[x0..])));
    }
    let mut inputs = node
        .inputs
        .iter()
        .map(|input| ast.mapping.get(input).cloned().with_context(|| format!("{}: an input is not dumped", node.name)))
        .collect::<TractResult<Vec<_>>>()?;
    if let Some(filter) = inputs.get(1).cloned() {
        inputs[1] = outputs_first(ast, &node.name, spec, filter);
    }
    Ok(Some(invocation(fragment(spec.direction), &inputs, &named)))
}

/// Returns whether tract derives the output padding without a size below zero on the way.
///
/// The critical sizes are the input's size less one, and the output's size before the output
/// padding.
fn tract_derives_output_padding(spec: &DeconvSpec, input: &[usize]) -> bool {
    let Padding::Explicit { begin, end } = &spec.padding else { return false };
    (0..spec.rank()).all(|ax| {
        let extent = (spec.kernel[ax] - 1) * spec.dilations[ax] + 1;
        let pads = usize::try_from(begin[ax]).ok().zip(usize::try_from(end[ax]).ok());
        let full = input[ax].checked_sub(1).and_then(|strides| strides.checked_mul(spec.strides[ax]));
        full.zip(pads).is_some_and(|(full, (begin, end))| full.saturating_add(extent) >= begin.saturating_add(end))
    })
}

/// Returns pairs of pads, or the empty list, which means SAME_UPPER, or `None` if neither expresses
/// the padding.
fn padding_argument(spec: &DeconvSpec, input: &ShapeFact) -> Option<RValue> {
    let (begin, end) = match &spec.padding {
        Padding::Explicit { begin, end } => (begin.clone(), end.clone()),
        Padding::SameForward { extra: Side::End } => return Some(array([])),
        Padding::SameForward { extra: Side::Begin } => {
            let input = input.as_concrete()?;
            let pads = spec.problem(input, None).ok()?.axes.into_iter().map(|axis| {
                let extent = (axis.kernel - 1) * axis.dilation + 1;
                let total = ((axis.output.max(1) - 1) * axis.stride + extent).saturating_sub(axis.input) as i64;
                (axis.pad_begin, total - axis.pad_begin)
            });
            pads.unzip()
        }
        Padding::OutputShape { .. } => return None,
    };
    if begin.iter().chain(&end).any(|pad| *pad < 0) {
        return None;
    }
    Some(array(begin.iter().zip(&end).map(|(b, e)| tuple_2(numeric(b), numeric(e))).collect::<Vec<RValue>>()))
}

/// Converts the filter to [`FilterFormat::GroupedOix`].
fn outputs_first(ast: &mut IntoAst, name: &str, spec: &DeconvSpec, filter: Arc<RValue>) -> Arc<RValue> {
    let rank = spec.rank();
    let (g, i, o) = (spec.group, spec.group_in(), spec.group_out());
    let (kernel_first, kernel_last) = (0..rank, 3..3 + rank);
    // The sizes with the groups on an axis of their own, the positions of the axes of groups,
    // outputs and inputs, and the kernel's axes.
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

fn load_transposed(builder: &mut ModelBuilder, invocation: &ResolvedInvocation) -> TractResult<Value> {
    load(builder, invocation, Direction::Transposed)
}

fn load_forward(builder: &mut ModelBuilder, invocation: &ResolvedInvocation) -> TractResult<Value> {
    load(builder, invocation, Direction::Forward)
}

fn load(builder: &mut ModelBuilder, invocation: &ResolvedInvocation, direction: Direction) -> TractResult<Value> {
    let input: OutletId = invocation.named_arg_as(builder, "input")?;
    let filter: OutletId = invocation.named_arg_as(builder, "filter")?;
    let data = builder.model.outlet_fact(input)?.clone();
    let weights = builder.model.outlet_fact(filter)?.clone();
    if !data.datum_type.is_float() || weights.datum_type != data.datum_type {
        // These are integers, quantised or not.
        return match direction {
            Direction::Transposed => tract_nnef::ops::nnef::deser::deconv(builder, invocation),
            Direction::Forward => tract_nnef::ops::nnef::deser::conv(builder, invocation),
        };
    }
    let border: String = invocation.named_arg_as(builder, "border")?;
    ensure!(border == "constant", "border: border={border}, it must be constant");
    let spec = spec(builder, invocation, direction, &data, &weights)?;
    let (channels, name) = (spec.out_channels, builder.generate_node_name());
    let mut wires = tvec!(input, filter);
    wires.extend(bias(builder, invocation, &name, data.datum_type, channels)?);
    let op = super::op(builder, spec, Dialect::Nnef, wires.len() == 3)?;
    builder.wire(op, &wires)
}

fn spec(
    builder: &mut ModelBuilder,
    invocation: &ResolvedInvocation,
    direction: Direction,
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
    // Zero means one group per channel.
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
    let (strides, dilations) = (or(sizes("stride")?, 1), or(sizes("dilation")?, 1));
    let output_shape = match direction {
        Direction::Transposed => sizes("output_shape")?,
        Direction::Forward => tvec!(),
    };
    let pads: TVec<TVec<i64>> = invocation.named_arg_as(builder, "padding")?;
    ensure!(
        pads.is_empty() || (pads.len() == rank && pads.iter().all(|pad| pad.len() == 2)),
        "padding: padding={pads:?}, one pair per spatial axis, {rank}, is needed"
    );
    let explicit = |ix: usize| pads.iter().map(|pad| pad[ix]).collect::<TVec<i64>>();
    let mut spec = DeconvSpec {
        direction,
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
        (true, true) if direction == Direction::Forward => spec.padding = Padding::SameForward { extra: Side::End },
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
            let sizes = &data.shape[spec.data_format.x_axis()..];
            spec.output_padding = missing_outputs(&spec, sizes, &output_shape).with_context(|| {
                format!("output_shape: output_shape={output_shape:?}, padding={pads:?}, input=[{}]", list(sizes, ", "))
            })?;
        }
    }
    Ok(spec)
}

/// Returns the output padding that gives an output size, with explicit pads.
fn missing_outputs(spec: &DeconvSpec, input: &[TDim], output: &[usize]) -> TractResult<TVec<usize>> {
    let Padding::Explicit { begin, end } = &spec.padding else { bail!("explicit pads are needed") };
    let missing = |ax: usize| {
        let size = input[ax].to_usize().ok().context("the input's size must be known when the model is loaded")?;
        let size = i64::try_from(size)?;
        let extent = (spec.kernel[ax] as i64 - 1).checked_mul(spec.dilations[ax] as i64).and_then(|e| e.checked_add(1));
        // This may be below one, as the output padding is not added yet.
        let without = (size - 1)
            .checked_mul(spec.strides[ax] as i64)
            .zip(extent)
            .and_then(|(strides, extent)| strides.checked_add(extent))
            .and_then(|full| full.checked_sub(begin[ax] + end[ax]))
            .context("the sizes overflow")?;
        let missing = i64::try_from(output[ax])?.checked_sub(without).context("the sizes overflow")?;
        usize::try_from(missing).ok().with_context(|| {
            format!(
                "axis={ax}, strides, kernel and pads give {without} outputs, and output padding only adds to them (tract's own \
                 operator crops an output_shape wrongly, and dumps it so)"
            )
        })
    };
    (0..spec.rank()).map(missing).collect()
}

/// Returns the bias as a vector, or none for a scalar zero, the default of the argument.
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
        // This axis represents the batch or a spatial axis.
        if model.outlet_fact(bias)?.rank() > 1 && fact.shape[axis].is_one() {
            bias = model.wire_node(format!("{name}.bias.rm_{axis}"), AxisOp::Rm(axis), &[bias])?[0];
        }
    }
    if fact.datum_type != datum_type {
        bias = model.wire_node(format!("{name}.bias.cast"), cast(datum_type), &[bias])?[0];
    }
    if *model.outlet_fact(bias)?.shape != [channels.to_dim()] {
        // A vector of one element would become a scalar on the way, which NNEF's `reshape` can't
        // do.
        bias = wire_reshape_bias_as_vector(model, name, bias, channels)?[0];
    }
    Ok(Some(bias))
}
