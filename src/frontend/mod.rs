//! Import of ONNX files into [`crate::spec::DeconvSpec`]. Only this module knows the dialects.

mod attributes;
mod condition;
mod expand;
#[cfg(test)]
mod fuzz;
mod leniency;
mod of_tract;
mod onednn;
mod onnx;
mod openvino;
mod quantised;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod tests;

pub use leniency::WithLeniency;

use crate::compute::QUANTISED;
use crate::options;
use of_tract::OfTract;
use quantised::Kind;
use std::sync::OnceLock;
use tract_hir::internal::*;
use tract_onnx::model::{Onnx, OnnxOpRegister, ParsingContext, optional_inputs};
use tract_onnx::pb::NodeProto;

type Built = TractResult<(Box<dyn InferenceOp>, Vec<String>)>;

/// Adds this crate's operators to a framework of tract's.
///
/// In `tract_onnx::onnx()` they replace tract's own ConvTranspose. With the feature `nnef` the
/// trait also extends `tract_nnef::nnef()`, which then dumps and loads
/// [`GroupedDeconv`](crate::GroupedDeconv).
pub trait WithDeconv {
    /// Registers the operators.
    fn enable_deconv(&mut self);

    /// Returns the framework with the operators registered.
    fn with_deconv(self) -> Self
    where
        Self: Sized;
}

impl WithDeconv for Onnx {
    fn enable_deconv(&mut self) {
        use openvino::Operator;
        let register = &mut self.op_register;
        register.insert("ConvTranspose", conv_transpose);
        register.insert("GroupConvolutionBackpropData", |ctx, node| {
            of_openvino(Operator::GroupConvolutionBackpropData, ctx, node)
        });
        register
            .insert("ConvolutionBackpropData", |ctx, node| of_openvino(Operator::ConvolutionBackpropData, ctx, node));
        register.insert("GroupConvolution", |ctx, node| of_openvino(Operator::GroupConvolution, ctx, node));
        register.insert("Convolution", |ctx, node| of_openvino(Operator::Convolution, ctx, node));
        register.insert("If", condition);
        enable_quantised(register);
        enable_pulse();
    }

    fn with_deconv(mut self) -> Onnx {
        self.enable_deconv();
        self
    }
}

/// Adds this crate's forward convolution to a framework of tract's.
///
/// The kernels of this crate then compute Conv, and following nodes are folded into it in the same
/// way. It can be enabled with [`WithDeconv`] or without it.
///
/// ```
/// use tract_deconv::{WithConv, WithDeconv};
///
/// let onnx = tract_onnx::onnx().with_deconv().with_conv();
/// ```
///
/// With the feature `nnef` it also makes `tract_nnef::nnef()` load NNEF's own `conv` as
/// [`GroupedDeconv`](crate::GroupedDeconv).
///
/// Do not use it with tract's CUDA and Metal runtimes. They move tract's own convolutions to the
/// device, but not this crate's. All convolutions of the model would silently run on the CPU, with
/// a copy of the data before and after each. [`WithDeconv`] has the same effect on transposed
/// convolutions. The transform [`to_tract`](crate::to_tract) reverts it, for a model that is not
/// optimised yet.
pub trait WithConv {
    /// Registers the operator.
    fn enable_conv(&mut self);

    /// Returns the framework with the operator registered.
    fn with_conv(self) -> Self
    where
        Self: Sized;
}

impl WithConv for Onnx {
    fn enable_conv(&mut self) {
        self.op_register.insert("Conv", conv);
        self.op_register.insert("If", condition);
        if QUANTISED {
            self.op_register.insert("ConvInteger", conv_integer);
            self.op_register.insert("QLinearConv", qlinear_conv);
        }
        enable_quantised(&mut self.op_register);
        enable_pulse();
    }

    fn with_conv(mut self) -> Onnx {
        self.enable_conv();
        self
    }
}

/// Lets convolutions find out whether they are between these.
fn enable_quantised(register: &mut OnnxOpRegister) {
    if !QUANTISED {
        return;
    }
    register.insert("DequantizeLinear", dequantize_linear);
    register.insert("QuantizeLinear", quantize_linear);
}

fn enable_pulse() {
    #[cfg(feature = "pulse")]
    if let Err(error) = crate::pulse::register() {
        log::warn!("models will not pulsify: {error:#}");
    }
}

fn conv(ctx: &ParsingContext, node: &NodeProto) -> Built {
    match &*node.domain {
        "" | "ai.onnx" => built_between(ctx, onnx::conv(node)?),
        _ => built_by_tract(ctx, node),
    }
}

fn conv_transpose(ctx: &ParsingContext, node: &NodeProto) -> Built {
    match &*node.domain {
        "" | "ai.onnx" => built_between(ctx, onnx::conv_transpose(node)?),
        _ if onednn::is_ours(node) => built(ctx, onednn::conv_transpose(node)?),
        _ => built_by_tract(ctx, node),
    }
}

fn conv_integer(ctx: &ParsingContext, node: &NodeProto) -> Built {
    if !matches!(&*node.domain, "" | "ai.onnx") {
        return built_by_tract(ctx, node);
    }
    let conv = Box::new(with_settings(ctx, onnx::quantised_conv(node, "ConvInteger", [2, 4])?)?);
    let zero_points = [2, 3].map(|slot| optional_input(node, slot));
    quantised_node(ctx, node, Kind::ConvInteger { node: conv, zero_points })
}

fn qlinear_conv(ctx: &ParsingContext, node: &NodeProto) -> Built {
    if !matches!(&*node.domain, "" | "ai.onnx") {
        return built_by_tract(ctx, node);
    }
    let conv = Box::new(with_settings(ctx, onnx::quantised_conv(node, "QLinearConv", [8, 9])?)?);
    quantised_node(ctx, node, Kind::QLinearConv { node: conv, bias: optional_input(node, 8) })
}

fn dequantize_linear(ctx: &ParsingContext, node: &NodeProto) -> Built {
    if !matches!(&*node.domain, "" | "ai.onnx") {
        return built_by_tract(ctx, node);
    }
    let axis = node.get_attr_opt("axis")?.unwrap_or(1);
    quantised_node(ctx, node, Kind::DequantizeLinear { axis })
}

fn quantize_linear(ctx: &ParsingContext, node: &NodeProto) -> Built {
    match &*node.domain {
        "" | "ai.onnx" => quantised_node(ctx, node, Kind::QuantizeLinear),
        _ => built_by_tract(ctx, node),
    }
}

fn quantised_node(ctx: &ParsingContext, node: &NodeProto, kind: Kind) -> Built {
    let (of_tract, outer) = built_by_tract(ctx, node)?;
    Ok((Box::new(OfTract { of_tract, typed: kind }), outer))
}

fn condition(ctx: &ParsingContext, node: &NodeProto) -> Built {
    let (of_tract, outer) = built_by_tract(ctx, node)?;
    let fusion = options::carried(ctx.framework)?.fusion;
    Ok((Box::new(OfTract { of_tract, typed: condition::Condition { fusion } }), outer))
}

fn of_openvino(operator: openvino::Operator, ctx: &ParsingContext, node: &NodeProto) -> Built {
    if openvino::DOMAINS.contains(&&*node.domain) {
        built(ctx, openvino::node(operator, node)?)
    } else {
        built_by_tract(ctx, node)
    }
}

fn built(ctx: &ParsingContext, node: expand::Node) -> Built {
    Ok((expand(with_settings(ctx, node)?), vec![]))
}

/// Builds a convolution that may be between DequantizeLinear and QuantizeLinear.
fn built_between(ctx: &ParsingContext, node: expand::Node) -> Built {
    if !QUANTISED {
        return built(ctx, node);
    }
    Ok((expand(quantised::Layer(with_settings(ctx, node)?)), vec![]))
}

fn with_settings(ctx: &ParsingContext, node: expand::Node) -> TractResult<expand::Node> {
    let settings = options::carried(ctx.framework)?;
    Ok(expand::Node { settings, ..node })
}

/// Builds a node of a foreign domain as tract would, because tract looks builders up by operator
/// name alone.
fn built_by_tract(ctx: &ParsingContext, node: &NodeProto) -> Built {
    static REGISTER: OnceLock<OnnxOpRegister> = OnceLock::new();
    let register = REGISTER.get_or_init(|| tract_onnx::onnx().op_register);
    match register.0.get(&node.op_type) {
        Some(builder) => builder(ctx, node),
        None => Ok((
            tract_hir::ops::unimpl::UnimplementedOp::new(node.output.len(), &*node.op_type, format!("{node:?}")).into(),
            vec![],
        )),
    }
}

/// Checks the number of inputs, that data and filter are present, and that there is one output.
fn check_arity(node: &NodeProto, least: usize, most: usize) -> TractResult<()> {
    let (inputs, outputs) = (node.input.len(), node.output.len());
    ensure!((least..=most).contains(&inputs), "inputs: count={inputs}, {least} to {most} are needed");
    for (name, input) in ["data", "filter"].iter().zip(&node.input) {
        ensure!(!input.is_empty(), "inputs: {name}=\"\", it can not be left out");
    }
    ensure!(outputs == 1, "outputs: count={outputs}, there is one");
    Ok(())
}

/// Returns the index of an input among those that are present. An empty name means that an input is
/// absent.
fn optional_input(node: &NodeProto, slot: usize) -> Option<usize> {
    optional_inputs(node).nth(slot).flatten()
}

/// Logs a warning if a mandatory attribute is missing. OpenVINO's own reader accepts that, and so
/// does this one.
fn required<T>(value: Option<T>, name: &str, node: &NodeProto) -> Option<T> {
    if value.is_none() {
        log::warn!("{} ({}): {name} is missing, its ONNX default is taken", node.name, node.op_type);
    }
    value
}

fn warn_of_missing_pads(pads: &[expand::DeclaredPads; 2], node: &NodeProto) {
    for side in pads {
        required(side.values.as_ref(), side.name, node);
    }
}
