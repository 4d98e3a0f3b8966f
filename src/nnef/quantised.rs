//! The primitive of quantised convolutions.

use super::{
    Arguments, DIALECTS, QUANTISED_PRIMITIVE, arguments_of_spec, carried, inputs_of, labels, parameters_of_spec, word,
};
use crate::op::{DataZeroPoint, Output, Quantisation, QuantisedDeconv, Scale, Scaling};
use crate::settings;
use tract_nnef::internal::*;

/// The output's type if the sums are the results, if real numbers are, or if these are quantised.
const SUMS: &str = "i32";
const FLOATS: &str = "f32";
const BYTES: [(&str, DatumType); 2] = [("u8", DatumType::U8), ("i8", DatumType::I8)];

pub(super) fn register(registry: &mut Registry) {
    registry
        .register_primitive(QUANTISED_PRIMITIVE, &parameters(), &[("output", TypeName::Scalar.tensor())], load)
        .with_doc("One convolution of 8-bit integers, transposed or forward, whose sums are rescaled.");
    registry.register_dumper(dump);
}

fn parameters() -> Vec<Parameter> {
    let optional = |name: &str| TypeName::Scalar.tensor().named(name).default(false);
    let inputs = vec![
        TypeName::Scalar.tensor().named("input").doc("u8 or i8, in the data format"),
        TypeName::Scalar.tensor().named("filter").doc("u8 or i8, in the filter format"),
        optional("zero_point").doc("that of the data where it is computed at run time, or false"),
        optional("factor").doc("f32 that multiplies the scale at run time, or false"),
        optional("added").doc("a quantised tensor of the output's shape, or false"),
    ];
    let numbers = vec![
        TypeName::Integer.named("data_zero_point").default(0).doc("where zero_point is false"),
        TypeName::Integer.array().named("filter_zero_points").doc("one, or one per output channel"),
        TypeName::String.named("output").doc("i32 (the sums), f32 (the real numbers), u8 or i8"),
        optional("scale").doc("f64, one value or one per output channel: the data's times the filter's"),
        optional("integer_bias").doc("i32 per output channel, added to the sums, or false"),
        optional("real_bias").doc("f64 per output channel, added to the real numbers, or false"),
        optional("limits").doc("f32, the least and the largest real number, or false"),
        optional("output_scale").doc("f32, of u8 and i8"),
        TypeName::Integer.named("output_zero_point").default(0).doc("of u8 and i8"),
        optional("added_scale").doc("f32, of the added tensor"),
        TypeName::Integer.named("added_zero_point").default(0).doc("of the added tensor"),
    ];
    inputs.into_iter().chain(parameters_of_spec()).chain(numbers).chain(labels()).collect()
}

fn dump(ast: &mut IntoAst, node: &TypedNode, op: &QuantisedDeconv) -> TractResult<Option<Arc<RValue>>> {
    let optional = [
        ("zero_point", op.zero_point == DataZeroPoint::Input),
        ("factor", op.output.has_factor_input()),
        ("added", op.output.added().is_some()),
    ];
    let (data_and_filter, mut named) = inputs_of(ast, node, &optional)?;
    named.extend(arguments_of_spec(&op.spec)?);
    if let DataZeroPoint::Const(value) = op.zero_point {
        named.push(("data_zero_point", numeric(value)));
    }
    named.push(("filter_zero_points", array_of(&op.filter_zero_points)));
    let mut constant = |name: &'static str, tensor: &Arc<Tensor>| -> TractResult<(&'static str, RValue)> {
        let value = ast.konst_variable(format!("{}.{name}", node.name), tensor)?;
        Ok((name, value.as_ref().clone()))
    };
    if let Some(scaling) = op.output.scaling() {
        named.push(constant("scale", scaling.factor())?);
        if let Some(bias) = scaling.integer_bias() {
            named.push(constant("integer_bias", bias)?);
        }
        if let Some(bias) = scaling.bias() {
            named.push(constant("real_bias", bias)?);
        }
        let (low, high) = scaling.limits();
        if (low, high) != (f32::NEG_INFINITY, f32::INFINITY) {
            named.push(constant("limits", &tensor1(&[low, high]).into_arc_tensor())?);
        }
        if let Some(added) = scaling.added {
            named.push(constant("added_scale", &tensor1(&[added.scale.value()]).into_arc_tensor())?);
            named.push(("added_zero_point", numeric(added.zero_point())));
        }
    }
    match &op.output {
        Output::Sums => named.push(("output", string(SUMS))),
        Output::Floats(_) => named.push(("output", string(FLOATS))),
        Output::Quantised(_, to) => {
            named.push(("output", word(&BYTES, &to.datum_type())?));
            named.push(constant("output_scale", &tensor1(&[to.scale.value()]).into_arc_tensor())?);
            named.push(("output_zero_point", numeric(to.zero_point())));
        }
    }
    named.extend([("dialect", word(&DIALECTS, &op.dialect)?), ("fusion", logical(op.fusion))]);
    Ok(Some(invocation(QUANTISED_PRIMITIVE, &data_and_filter, &named)))
}

fn array_of(values: &[i32]) -> RValue {
    let sizes: Vec<i64> = values.iter().map(|value| *value as i64).collect();
    tract_nnef::ser::array(sizes.iter().map(numeric).collect::<Vec<_>>())
}

fn load(builder: &mut ModelBuilder, invocation: &ResolvedInvocation) -> TractResult<Value> {
    let mut inputs: TVec<OutletId> = tvec!();
    for name in ["input", "filter"] {
        inputs.push(invocation.named_arg_as(builder, name)?);
    }
    let mut present: TVec<bool> = tvec!();
    for name in ["zero_point", "factor", "added"] {
        let input: Option<OutletId> = invocation.optional_named_arg_as(builder, name).context(name)?;
        present.push(input.is_some());
        inputs.extend(input);
    }
    let constant = |builder: &mut ModelBuilder, name: &'static str| -> TractResult<Option<Arc<Tensor>>> {
        invocation.optional_named_arg_as(builder, name).context(name)
    };
    let carried = carried(builder)?;
    let added_datum_type = match present[2] {
        true => inputs.last().map(|added| builder.model.outlet_fact(*added).map(|fact| fact.datum_type)).transpose()?,
        false => None,
    };
    let scale_of = |builder: &mut ModelBuilder, name: &'static str| -> TractResult<Scale> {
        let tensor = constant(builder, name)?.with_context(|| format!("{name}: it is missing"))?;
        ensure!(tensor.len() == 1, "{name}: shape={:?}, one value is needed", tensor.shape());
        let wide = tensor.cast_to::<f32>()?;
        Scale::new(name, wide.try_as_plain_ram()?.as_slice::<f32>()?[0])
    };
    let zero_point = match present[0] {
        true => DataZeroPoint::Input,
        false => DataZeroPoint::Const(i32::try_from(invocation.named_arg_as::<i64>(builder, "data_zero_point")?)?),
    };
    let output_name: String = invocation.named_arg_as(builder, "output")?;
    let output = if output_name == SUMS {
        ensure!(!present[1] && !present[2], "output: output={output_name}, sums are neither scaled nor added to");
        Output::Sums
    } else {
        let factor = constant(builder, "scale")?.context("scale: it is missing")?;
        let mut scaling = Scaling::of_factor(vector("scale", &factor)?)?;
        if let Some(bias) = constant(builder, "integer_bias")? {
            scaling = scaling.with_integer_bias(bias);
        }
        if let Some(bias) = constant(builder, "real_bias")? {
            scaling = scaling.with_bias(bias);
        }
        if let Some(limits) = constant(builder, "limits")? {
            let wide = limits.cast_to::<f32>()?;
            let ram = wide.try_as_plain_ram()?;
            let [low, high] = *ram.as_slice::<f32>()? else {
                bail!("limits: shape={:?}, two are needed", limits.shape())
            };
            scaling = scaling.with_limits(low, high);
        }
        scaling.has_factor_input = present[1];
        if let Some(datum_type) = added_datum_type {
            let zero_point = i32::try_from(invocation.named_arg_as::<i64>(builder, "added_zero_point")?)?;
            let scale = scale_of(builder, "added_scale")?;
            scaling.added = Some(Quantisation::new("added", scale, zero_point, datum_type)?);
        }
        match BYTES.iter().find(|(name, _)| *name == output_name) {
            Some((_, datum_type)) => {
                let zero_point = i32::try_from(invocation.named_arg_as::<i64>(builder, "output_zero_point")?)?;
                let scale = scale_of(builder, "output_scale")?;
                Output::Quantised(scaling, Quantisation::new("output", scale, zero_point, *datum_type)?)
            }
            None => {
                ensure!(output_name == FLOATS, "output: output={output_name}, the known ones are i32, f32, u8, i8");
                Output::Floats(scaling)
            }
        }
    };
    let mut arguments = Arguments { builder, invocation };
    let zero_points: TVec<i64> = arguments.get("filter_zero_points")?;
    let zero_points = zero_points.iter().map(|value| i32::try_from(*value)).collect::<Result<_, _>>()?;
    let (spec, dialect) = (arguments.spec(false)?, arguments.word("dialect", &DIALECTS)?);
    let fusion = arguments.get::<bool>("fusion")?;
    let options = settings::complete(&carried.planning)?;
    let mut op = QuantisedDeconv::new(spec, dialect, zero_point, zero_points, output, options)?;
    op.fusion = carried.fusion && fusion;
    builder.wire(op, &inputs)
}

/// Returns a constant as a vector.
fn vector(what: &str, tensor: &Arc<Tensor>) -> TractResult<Arc<Tensor>> {
    ensure!(tensor.rank() <= 1, "{what}: shape={:?}, a vector is needed", tensor.shape());
    match tensor.rank() {
        0 => Ok(tensor.as_ref().clone().into_shape(&[1])?.into_arc_tensor()),
        _ => Ok(Arc::clone(tensor)),
    }
}
