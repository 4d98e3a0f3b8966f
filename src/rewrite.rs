//! The named transforms `deconv` and `conv`.
//!
//! They replace tract's own `Deconv` and `Conv` by this crate's operator, in any typed model.
//!
//! ```
//! use tract_core::internal::*;
//! use tract_deconv as _; // a crate that is never named is not linked
//!
//! let mut model = TypedModel::default();
//! let transform = tract_core::transform::get_transform("deconv")?.unwrap();
//! transform.transform(&mut model)?;
//! # Ok::<(), TractError>(())
//! ```
//!
//! The two are separate: `conv` replaces forward convolutions only. When tract declutters a model,
//! it turns forward convolutions of a single tap into matrix products, and the transform leaves
//! those as they are. To replace them too, transform the model before it is decluttered, or load it
//! through [`WithConv`](crate::WithConv).
//!
//! `examples/facade` applies the transforms through the `tract` crate, including their [`Options`].

use crate::compute::QUANTISED;
use crate::element;
use crate::memory;
use crate::op::bodies::{bodies_mut, condition, for_each_node};
use crate::op::{DataZeroPoint, Dialect, GroupedDeconv, Output, Quantisation, QuantisedDeconv, Scale, Scaling};
pub use crate::options::Options;
use crate::options::Settings;
use crate::plan::PlanOptions;
use crate::settings;
use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding, Side};
use tract_core::internal::*;
use tract_core::ops::cast::Cast;
use tract_core::ops::cnn::{Conv, Deconv, KernelFormat, PaddingSpec, PoolSpec, wire_reshape_bias_as_vector};
use tract_core::ops::logic::IfThenElse;
use tract_core::transform::ModelTransform;

/// Replaces every `Deconv` of tract's, or every `Conv`, including those in the bodies of loops and
/// conditions.
///
/// It must run before the model is optimised, as optimising breaks both operators down. The results
/// stay tract's own, including its choices of padding sides and output sizes. Where tract rescales
/// integer sums in f32, this crate does so in f64, and results may differ by one in rare ties. The
/// operators that [`left_to_tract`] lists are not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replace {
    direction: Direction,
    options: Options,
    settings: Settings,
}

impl Replace {
    /// Creates the transform `deconv` (transposed convolutions) or `conv` (forward ones).
    ///
    /// # Errors
    /// Fails for an unknown name among the options.
    pub fn new(direction: Direction, options: &Options) -> TractResult<Replace> {
        Ok(Replace { direction, options: options.clone(), settings: options.settings()? })
    }
}

tract_core::register_model_transform!("deconv", Options, |options| Ok(Box::new(Replace::new(
    Direction::Transposed,
    &options
)?)));
tract_core::register_model_transform!("conv", Options, |options| Ok(Box::new(Replace::new(
    Direction::Forward,
    &options
)?)));

impl ModelTransform for Replace {
    fn name(&self) -> StaticName {
        match self.direction {
            Direction::Transposed => "deconv".into(),
            Direction::Forward => "conv".into(),
        }
    }

    fn transform(&self, model: &mut TypedModel) -> TractResult<()> {
        self.options.set_process();
        #[cfg(feature = "pulse")]
        crate::pulse::register()?;
        for node in &mut model.nodes {
            let name = node.name.clone();
            for body in bodies_mut(node) {
                self.transform(body).with_context(|| format!("in the body of {name}"))?;
            }
            if let Some(op) = node.op_as_mut::<IfThenElse>().filter(|_| self.settings.fusion) {
                node.op = condition(std::mem::take(op))?;
            }
        }
        let (deconv, conv) = (self.clone(), self.clone());
        let rewriter = Rewriter::<()>::default();
        match self.direction {
            Direction::Transposed => rewriter
                .with_rule_for::<Deconv>("deconv", move |_, model, node, name, _| replace(&deconv, model, node, name)),
            Direction::Forward => {
                rewriter.with_rule_for::<Conv>("conv", move |_, model, node, name, _| replace(&conv, model, node, name))
            }
        }
        .rewrite(&(), model)
    }
}

/// A convolution of tract's that is not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftToTract {
    /// The node's name, in the form of [`Explanation::name`](crate::Explanation::name).
    pub name: String,
    /// The name of tract's operator.
    pub operator: String,
    /// The reason why neither transform replaces it, or none if one of them would.
    pub reason: Option<String>,
}

/// Lists tract's own convolutions in a model that has not been optimised.
///
/// Each comes with the reason if this crate's transforms do not replace it.
///
/// # Errors
/// Fails if the model's nodes have no evaluation order.
pub fn left_to_tract(model: &TypedModel) -> TractResult<Vec<LeftToTract>> {
    let mut left = vec![];
    for_each_node("", model, &mut |name, model, node| {
        if let Some(op) = TractOp::of(node) {
            let reason = match op.quantised() {
                Some(conv) => Quantised::of(conv, model, node, &PlanOptions::default()).err(),
                None => op.spec(&model.node_input_facts(node.id)?).err(),
            };
            let reason = reason.map(|reason| format!("{reason:#}"));
            left.push(LeftToTract { name: name.to_string(), operator: node.op.name().to_string(), reason });
        }
        Ok(())
    })?;
    Ok(left)
}

/// One of tract's convolutions.
#[derive(Clone, Copy)]
enum TractOp<'a> {
    Deconv(&'a Deconv),
    Conv(&'a Conv),
}

impl<'a> TractOp<'a> {
    fn of(node: &'a TypedNode) -> Option<TractOp<'a>> {
        node.op_as::<Deconv>().map(TractOp::Deconv).or_else(|| node.op_as::<Conv>().map(TractOp::Conv))
    }

    /// Returns the operator if it is quantised.
    fn quantised(&self) -> Option<&'a Conv> {
        match self {
            TractOp::Conv(op) => op.q_params.is_some().then_some(*op),
            TractOp::Deconv(_) => None,
        }
    }

    fn pool(&self) -> &'a PoolSpec {
        match self {
            TractOp::Deconv(op) => &op.pool_spec,
            TractOp::Conv(op) => &op.pool_spec,
        }
    }

    fn kernel_format(&self) -> KernelFormat {
        match self {
            TractOp::Deconv(op) => op.kernel_format,
            TractOp::Conv(op) => op.kernel_fmt,
        }
    }

    fn group(&self) -> usize {
        match self {
            TractOp::Deconv(op) => op.group,
            TractOp::Conv(op) => op.group,
        }
    }

    /// Returns the spec of the same arithmetic as tract's op, or the reason why there is none.
    fn spec(&self, inputs: &[&TypedFact]) -> TractResult<DeconvSpec> {
        let [data, filter, bias] = *inputs else {
            bail!("inputs: count={}, data, filter and bias are replaced", inputs.len())
        };
        let dt = data.datum_type;
        ensure!(dt.is_number() && !dt.is_quantized(), "input: datum_type={dt:?}, plain numbers are replaced");
        element::check_built("input", dt)?;
        ensure!(!filter.is_exotic(), "filter: its values are packed in blocks, plain tensors are replaced");
        for (what, fact) in [("filter", filter), ("bias", bias)] {
            let found = fact.datum_type;
            ensure!(found == dt, "{what}: datum_type={found:?}, the input's is {dt:?}");
        }
        let spec = match self {
            TractOp::Deconv(op) => transposed_spec(op)?,
            TractOp::Conv(op) => {
                ensure!(dt.is_float(), "input: datum_type={dt:?}, forward convolutions of floats are replaced");
                forward_spec(op)?
            }
        };
        spec.validate()?;
        Ok(spec)
    }
}

fn replace(
    transform: &Replace,
    model: &TypedModel,
    node: &TypedNode,
    name: &str,
) -> TractResult<Option<TypedModelPatch>> {
    let Some(op) = TractOp::of(node) else { return Ok(None) };
    let facts = model.node_input_facts(node.id)?;
    let options = settings::complete_for(&transform.settings.planning, &transform.settings.exact_nodes, name)?;
    let stays = |reason: TractError| {
        log::warn!("{name} stays as it is: {reason:#}");
        Ok(None)
    };
    if let Some(conv) = op.quantised() {
        return match Quantised::of(conv, model, node, &options) {
            Ok(quantised) => quantised.replace(conv, transform, model, node, name).map(Some),
            Err(reason) => stays(reason),
        };
    }
    let spec = match op.spec(&facts) {
        Ok(spec) => spec,
        Err(reason) => return stays(reason),
    };
    let zero_bias = facts[2].uniform.as_ref().is_some_and(|value| value.is_zero().unwrap_or(false));
    let mut replacement = GroupedDeconv::new(spec, Dialect::Tract, !zero_bias, options)?;
    replacement.fusion = transform.settings.fusion;

    let pool = op.pool();
    let mut patch = TypedModelPatch::default();
    let mut wires = patch.taps(model, &node.inputs)?;
    if !pool.data_format.has_n() {
        wires[0] = patch.wire_node(format!("{name}.add_n"), AxisOp::Add(0), &wires[..1])?[0];
    }
    if op.kernel_format() != KernelFormat::OIHW {
        let mut axes = op.kernel_format().kernel_as_group_o_i_h_w_ops(&facts[1].shape, op.group());
        axes.push(merged_groups(op.group(), pool.output_channels));
        for (ix, change) in axes.into_iter().enumerate() {
            wires[1] = patch.wire_node(format!("{name}.filter.{ix}"), change, &[wires[1]])?[0];
        }
    }
    if zero_bias {
        wires.truncate(2);
    } else if *patch.outlet_fact(wires[2])?.shape != [pool.output_channels.to_dim()] {
        wires[2] = wire_reshape_bias_as_vector(&mut patch, name, wires[2], pool.output_channels)?[0];
    }
    let mut output = patch.wire_node(name, replacement, &wires)?;
    if !pool.data_format.has_n() {
        output = patch.wire_node(format!("{name}.rm_n"), AxisOp::Rm(0), &output)?;
    }
    patch.shunt_outside(model, node.id.into(), output[0])?;
    Ok(Some(patch))
}

/// A quantised convolution of tract's, as this crate's op.
struct Quantised {
    op: QuantisedDeconv,
    /// In the spec's filter format.
    filter: Arc<Tensor>,
}

impl Quantised {
    /// Returns this crate's op, or the reason why there is none.
    fn of(conv: &Conv, model: &TypedModel, node: &TypedNode, options: &PlanOptions) -> TractResult<Quantised> {
        let constant = |slot: usize, what: &str| -> TractResult<Arc<Tensor>> {
            let outlet = node.inputs.get(slot).with_context(|| format!("inputs: count={}", node.inputs.len()))?;
            constant_of(model, *outlet)?.with_context(|| format!("{what}: it is known at run time only"))
        };
        let one_scale = |slot: usize, what: &str| -> TractResult<Scale> {
            let scales = scales(what, &*constant(slot, what)?)?;
            ensure!(scales.len() == 1, "{what}: count={}, one scale is replaced", scales.len());
            Ok(scales[0])
        };
        ensure!(QUANTISED, "layer: this build lacks the Cargo feature quantised");
        ensure!(node.inputs.len() == 9, "inputs: count={}, 9 are needed", node.inputs.len());
        let data = model.outlet_fact(node.inputs[0])?.datum_type;
        ensure!(
            matches!(data, DatumType::U8 | DatumType::I8),
            "input: datum_type={data:?}, plain 8-bit integers are replaced"
        );
        let mut filter = constant(1, "filter")?.as_ref().clone();
        let mut axes = match conv.kernel_fmt {
            KernelFormat::OIHW => tvec!(),
            format => {
                let shape: TVec<TDim> = filter.shape().iter().map(|dim| dim.to_dim()).collect();
                format.kernel_as_group_o_i_h_w_ops(&shape, conv.group)
            }
        };
        if !axes.is_empty() {
            axes.push(merged_groups(conv.group, conv.pool_spec.output_channels));
        }
        for change in axes {
            change.change_tensor(&mut filter, false)?;
        }
        let channels = conv.pool_spec.output_channels;
        let filter_zero_points = integers(&*constant(5, "filter zero point")?)?;
        let x_scale = one_scale(4, "input scale")?;
        let filter_scales = scales("filter scale", &*constant(6, "filter scale")?)?;
        let y_zero_point = integers(&*constant(7, "output zero point")?)?;
        let y_scale = one_scale(8, "output scale")?;
        let [y_zero_point] = y_zero_point[..] else {
            bail!("output zero point: count={}, one is replaced", y_zero_point.len())
        };
        let bias = integers(&*constant(2, "bias")?)?;
        let has_bias = bias.iter().any(|bias| *bias != 0);
        let output = match conv.q_params.context("quantisation: it is missing")? {
            DatumType::I32 => {
                let scaled = filter_scales.iter().chain([&x_scale, &y_scale]).any(|scale| *scale != Scale::ONE);
                ensure!(!scaled && y_zero_point == 0 && !has_bias, "output: scaled 32-bit results are not replaced");
                Output::Sums
            }
            dt => {
                let mut scaling = Scaling::of_scales(x_scale, &filter_scales)?;
                if has_bias {
                    let value = |c: usize| bias[if bias.len() == 1 { 0 } else { c }];
                    ensure!(bias.len() == 1 || bias.len() == channels, "bias: count={}", bias.len());
                    let bias = memory::tensor_of("bias", &[channels], (0..channels).map(value))?;
                    scaling = scaling.with_integer_bias(bias.into_arc_tensor());
                }
                Output::Quantised(scaling, Quantisation::new("output", y_scale, y_zero_point, dt)?)
            }
        };
        let zero_point = match constant_of(model, node.inputs[3])? {
            Some(tensor) => match integers(&tensor)?[..] {
                [value] => DataZeroPoint::Const(value),
                ref more => bail!("input zero point: count={}, one is replaced", more.len()),
            },
            None => {
                let fact = model.outlet_fact(node.inputs[3])?;
                ensure!(fact.shape.volume().is_one(), "input zero point: shape={:?}, one is replaced", fact.shape);
                DataZeroPoint::Input
            }
        };
        let spec = forward_spec(conv)?;
        let op = QuantisedDeconv::new(spec, Dialect::Tract, zero_point, filter_zero_points, output, options.clone())?;
        op.sums(&filter, options)?;
        Ok(Quantised { op, filter: filter.into_arc_tensor() })
    }

    fn replace(
        mut self,
        conv: &Conv,
        transform: &Replace,
        model: &TypedModel,
        node: &TypedNode,
        name: &str,
    ) -> TractResult<TypedModelPatch> {
        self.op.fusion = transform.settings.fusion;
        let mut patch = TypedModelPatch::default();
        let taps = patch.taps(model, &node.inputs)?;
        let filter = patch.add_const(format!("{name}.filter"), self.filter)?;
        let mut wires = tvec!(taps[0], filter);
        if self.op.zero_point == DataZeroPoint::Input {
            wires.push(taps[3]);
        }
        let has_n = conv.pool_spec.data_format.has_n();
        if !has_n {
            wires[0] = patch.wire_node(format!("{name}.add_n"), AxisOp::Add(0), &wires[..1])?[0];
        }
        let mut output = patch.wire_node(name, self.op, &wires)?;
        if !has_n {
            output = patch.wire_node(format!("{name}.rm_n"), AxisOp::Rm(0), &output)?;
        }
        patch.shunt_outside(model, node.id.into(), output[0])?;
        Ok(patch)
    }
}

/// Returns a value that is constant, perhaps behind casts and moves of axes that nothing has
/// computed yet.
fn constant_of(model: &TypedModel, outlet: OutletId) -> TractResult<Option<Arc<Tensor>>> {
    if let Some(constant) = &model.outlet_fact(outlet)?.konst {
        return Ok(Some(Arc::clone(constant)));
    }
    let node = model.node(outlet.node);
    let [input] = *node.inputs else { return Ok(None) };
    if !node.op_is::<Cast>() && !node.op_is::<AxisOp>() {
        return Ok(None);
    }
    let Some(constant) = &model.outlet_fact(input)?.konst else { return Ok(None) };
    let computed = node.op.eval_out_of_plan(tvec!(Arc::clone(constant).into_tvalue()))?;
    Ok(computed.and_then(|values| values.into_iter().next()).map(TValue::into_arc_tensor))
}

fn integers(tensor: &Tensor) -> TractResult<TVec<i32>> {
    let wide = tensor.cast_to::<i32>()?;
    Ok(wide.try_as_plain_ram()?.as_slice::<i32>()?.into())
}

fn scales(what: &str, tensor: &Tensor) -> TractResult<Vec<Scale>> {
    let wide = tensor.cast_to::<f32>()?;
    wide.try_as_plain_ram()?.as_slice::<f32>()?.iter().map(|value| Scale::new(what, *value)).collect()
}

/// Returns the change that joins groups and output channels of a filter.
fn merged_groups(group: usize, channels: usize) -> AxisOp {
    AxisOp::Reshape(0, tvec!(group.to_dim(), (channels / group).to_dim()), tvec!(channels.to_dim()))
}

fn signed(pads: &[usize]) -> TVec<i64> {
    pads.iter().map(|pad| i64::try_from(*pad).unwrap_or(i64::MAX)).collect()
}

fn forward_spec(op: &Conv) -> TractResult<DeconvSpec> {
    let pool = &op.pool_spec;
    let padding = match &pool.padding {
        PaddingSpec::Valid => Padding::zero(pool.rank()),
        PaddingSpec::Explicit(begin, end) | PaddingSpec::ExplicitOnnxPool(begin, end, false) => {
            Padding::Explicit { begin: signed(begin), end: signed(end) }
        }
        PaddingSpec::ExplicitOnnxPool(_, _, true) => {
            bail!("ceil_mode: ceil_mode=1, output sizes that are rounded up are not replaced")
        }
        PaddingSpec::SameUpper => Padding::SameForward { extra: Side::End },
        PaddingSpec::SameLower => Padding::SameForward { extra: Side::Begin },
    };
    Ok(DeconvSpec {
        direction: Direction::Forward,
        padding,
        output_padding: tvec!(0; pool.rank()),
        ..spec_of_pool(pool, op.group)
    })
}

/// Returns the fields that both directions share.
fn spec_of_pool(pool: &PoolSpec, group: usize) -> DeconvSpec {
    DeconvSpec {
        direction: Direction::Transposed,
        data_format: if pool.data_format.c_is_last() { DataFormat::Nxc } else { DataFormat::Ncx },
        filter_format: FilterFormat::GroupedOix,
        in_channels: pool.input_channels,
        out_channels: pool.output_channels,
        group,
        kernel: pool.kernel_shape.clone(),
        strides: TVec::from(&*pool.strides()),
        dilations: TVec::from(&*pool.dilations()),
        padding: Padding::zero(pool.rank()),
        output_padding: tvec!(0; pool.rank()),
    }
}

fn transposed_spec(op: &Deconv) -> TractResult<DeconvSpec> {
    let (pool, rank) = (&op.pool_spec, op.pool_spec.rank());
    let shared = spec_of_pool(pool, op.group);
    let mut output_padding = op.adjustments.clone();
    ensure!(
        [shared.strides.len(), shared.dilations.len(), output_padding.len()].iter().all(|len| *len == rank),
        "lists: one value per spatial axis, {rank}, is needed"
    );
    let padding = match &pool.padding {
        PaddingSpec::Valid => Padding::zero(rank),
        PaddingSpec::Explicit(begin, end) | PaddingSpec::ExplicitOnnxPool(begin, end, _) => {
            Padding::Explicit { begin: signed(begin), end: signed(end) }
        }
        PaddingSpec::SameUpper | PaddingSpec::SameLower => {
            let extra = if pool.padding == PaddingSpec::SameUpper { Side::End } else { Side::Begin };
            let (strides, dilations) = (&shared.strides, &shared.dilations);
            let padding = Padding::same_transposed(&pool.kernel_shape, strides, dilations, &output_padding, extra);
            // tract includes the adjustments in the size that it crops, but not in the size that it
            // crops from.
            output_padding = tvec!(0; rank);
            padding
        }
    };
    Ok(DeconvSpec { padding, output_padding, ..shared })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_core::ops::cnn::PoolSpec;
    use tract_core::ops::nn::DataFormat as TractFormat;

    /// Returns a model of one `Deconv` on an input of two channels, with counting weights and a
    /// bias.
    fn model(format: TractFormat, kernel_format: KernelFormat, padding: PaddingSpec, group: usize) -> TypedModel {
        let mut model = TypedModel::default();
        let input = match format {
            TractFormat::NCHW => vec![2, 2, 4, 5],
            TractFormat::NHWC => vec![2, 4, 5, 2],
            TractFormat::CHW => vec![2, 4, 5],
            TractFormat::HWC => vec![4, 5, 2],
        };
        let filter = match kernel_format {
            KernelFormat::OIHW => vec![4, 2 / group, 3, 2],
            KernelFormat::HWIO => vec![3, 2, 2, 4 / group],
            KernelFormat::OHWI => vec![4 / group, 3, 2, 2],
        };
        let len = filter.iter().product::<usize>();
        let filter = Tensor::from_shape(&filter, &(0..len).map(|v| v as f32 - 7.).collect::<Vec<_>>()).unwrap();
        let x = model.add_source("x", f32::fact(&input)).unwrap();
        let w = model.add_const("w", filter).unwrap();
        let b = model.add_const("b", tensor1(&[1f32, 2., 3., 4.])).unwrap();
        let pool = PoolSpec::new(format, tvec!(3, 2), padding, Some(tvec!(1, 2)), Some(tvec!(2, 1)), 2, 4);
        let op = Deconv::new(pool, kernel_format, tvec!(1, 0), group);
        let y = model.wire_node("y", op, &[x, w, b]).unwrap();
        model.select_output_outlets(&y).unwrap();
        model
    }

    fn check(model: TypedModel) -> TractResult<()> {
        let shape = model.input_fact(0)?.shape.as_concrete().unwrap().to_vec();
        let len = shape.iter().product::<usize>();
        let x = Tensor::from_shape(&shape, &(0..len).map(|v| (v % 11) as f32 - 5.).collect::<Vec<_>>())?;
        let expected = model.clone().into_runnable()?.run(tvec!(x.clone().into_tvalue()))?.remove(0);
        let mut ours = model;
        tract_core::transform::get_transform("deconv")?.unwrap().transform(&mut ours)?;
        assert!(ours.nodes().iter().any(|n| n.op_is::<GroupedDeconv>()), "{ours}");
        for ours in [ours.clone(), ours.into_optimized()?] {
            let found = ours.into_runnable()?.run(tvec!(x.clone().into_tvalue()))?.remove(0);
            expected.close_enough(&found, true)?;
        }
        Ok(())
    }

    #[test]
    fn layouts_keep_their_numbers() -> TractResult<()> {
        for format in [TractFormat::NCHW, TractFormat::NHWC, TractFormat::CHW, TractFormat::HWC] {
            for kernel_format in [KernelFormat::OIHW, KernelFormat::HWIO, KernelFormat::OHWI] {
                for group in [1, 2] {
                    let padding = PaddingSpec::Explicit(tvec!(1, 0), tvec!(0, 1));
                    check(model(format, kernel_format, padding, group))
                        .with_context(|| format!("{format:?} {kernel_format:?} in {group}"))?;
                }
            }
        }
        Ok(())
    }

    #[test]
    fn paddings_keep_their_numbers() -> TractResult<()> {
        let paddings = [
            PaddingSpec::Valid,
            PaddingSpec::SameUpper,
            PaddingSpec::SameLower,
            PaddingSpec::Explicit(tvec!(2, 3), tvec!(1, 1)),
            PaddingSpec::ExplicitOnnxPool(tvec!(1, 1), tvec!(0, 2), true),
        ];
        for padding in paddings {
            check(model(TractFormat::NCHW, KernelFormat::OIHW, padding.clone(), 1))
                .with_context(|| format!("{padding:?}"))?;
        }
        Ok(())
    }

    #[test]
    fn bodies_of_conditions_are_rewritten() -> TractResult<()> {
        let body = model(TractFormat::NCHW, KernelFormat::OIHW, PaddingSpec::Valid, 1);
        let mut outer = TypedModel::default();
        let condition = outer.add_source("c", bool::scalar_fact())?;
        let x = outer.add_source("x", body.input_fact(0)?.clone())?;
        let op = IfThenElse {
            then_body: body.clone(),
            then_input_mapping: vec![1],
            else_body: body,
            else_input_mapping: vec![1],
        };
        let y = outer.wire_node("if", op, &[condition, x])?;
        outer.select_output_outlets(&y)?;
        Replace::new(Direction::Transposed, &Options::default())?.transform(&mut outer)?;
        let op = outer.node_by_name("if")?.op_as::<crate::op::If>().context("the condition is replaced")?;
        for (_, body) in op.bodies() {
            assert!(body.nodes().iter().any(|n| n.op_is::<GroupedDeconv>()), "{body}");
        }
        Ok(())
    }

    #[test]
    fn options_are_checked() {
        let options = |json: &str| -> TractResult<Options> { Ok(serde_json::from_str(json)?) };
        assert_eq!(options("{}").unwrap(), Options::default());
        assert!(options(r#"{"fuse": true}"#).is_err());
        let reference = options(r#"{"strategy": "reference", "isa": "portable"}"#).unwrap();
        assert!(Replace::new(Direction::Transposed, &reference).is_ok());
        let limited = Replace::new(Direction::Forward, &options(r#"{"memory_limit": 4096}"#).unwrap()).unwrap();
        assert_eq!(limited.settings.planning.memory_limit, Some(4096));
        let unknown = options(r#"{"strategy": "fastest"}"#).unwrap();
        let error =
            format!("{:#}", Replace::new(Direction::Transposed, &unknown).expect_err("there is none of that name"));
        assert!(error.contains("strategy=fastest, the known ones are"), "{error}");
    }
}
