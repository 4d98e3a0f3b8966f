//! OpenVINO's GroupConvolutionBackpropData-1, ConvolutionBackpropData-1, GroupConvolution-1 and Convolution-1.
//!
//! Nothing standardises them in ONNX files. What this crate takes, by its own convention: the operators' names under one
//! of [`DOMAINS`], attributes as lists of integers or as strings of integers between commas, the inputs in the
//! specification's order. Attributes that these operators don't have, such as the operator set's name, are left alone.

use super::attributes::{Attributes, Lists};
use super::expand::{FilterAxes, Node, OptionalInputs, PaddingRule};
use super::{check_arity, optional_input, required, warn_of_missing_pads};
use crate::element::ELEMENT_TYPES;
use crate::op::Dialect;
use crate::options::Settings;
use crate::spec::{DataFormat, Direction, FilterFormat, Side};
use tract_core::internal::*;
use tract_onnx::pb::NodeProto;

/// The domains under which the operators are taken, none among them: their names are unambiguous.
pub(super) const DOMAINS: [&str; 4] = ["", "ai.onnx", "org.openvinotoolkit", "ai.intel.openvino"];

/// What is read of a node.
pub(super) const ATTRIBUTES: [&str; 6] =
    ["auto_pad", "dilations", "output_padding", "pads_begin", "pads_end", "strides"];

/// The operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    GroupConvolutionBackpropData,
    ConvolutionBackpropData,
    GroupConvolution,
    Convolution,
}

impl Operator {
    fn name(self) -> &'static str {
        match self {
            Operator::GroupConvolutionBackpropData => "GroupConvolutionBackpropData",
            Operator::ConvolutionBackpropData => "ConvolutionBackpropData",
            Operator::GroupConvolution => "GroupConvolution",
            Operator::Convolution => "Convolution",
        }
    }

    fn direction(self) -> Direction {
        match self {
            Operator::GroupConvolutionBackpropData | Operator::ConvolutionBackpropData => Direction::Transposed,
            Operator::GroupConvolution | Operator::Convolution => Direction::Forward,
        }
    }

    fn filter_axes(self) -> FilterAxes {
        match self {
            Operator::GroupConvolutionBackpropData => FilterAxes::GroupLed(FilterFormat::Iox),
            Operator::ConvolutionBackpropData => FilterAxes::Plain(FilterFormat::Iox),
            Operator::GroupConvolution => FilterAxes::GroupLed(FilterFormat::GroupedOix),
            Operator::Convolution => FilterAxes::Plain(FilterFormat::GroupedOix),
        }
    }
}

/// Reads a node.
pub(super) fn node(operator: Operator, node: &NodeProto) -> TractResult<Node> {
    let direction = operator.direction();
    let transposed = direction == Direction::Transposed;
    check_arity(node, 2, if transposed { 3 } else { 2 })?;
    let attributes = Attributes::new(node, Lists::IntsOrText, &ATTRIBUTES)?;
    let auto_pad = attributes.string("auto_pad")?.unwrap_or("").to_ascii_lowercase();
    let strides = required(attributes.sizes("strides", 1)?, "strides", node);
    let dilations = required(attributes.sizes("dilations", 1)?, "dilations", node);
    // negative pads are taken: cells of nothing around a transposed convolution's output, a crop of a forward one's input
    let declared_pads = attributes.declared_pads(None)?;
    let output_shape = optional_input(node, 2);
    let rule = match &*auto_pad {
        "" | "explicit" | "notset" | "none" => AutoPad::Explicit,
        "same_upper" => AutoPad::Same(Side::End),
        "same_lower" => AutoPad::Same(Side::Begin),
        "valid" => AutoPad::Valid,
        other => bail!("auto_pad: auto_pad={other}, it must be explicit, same_upper, same_lower or valid"),
    };
    let padding = match (rule, transposed, output_shape) {
        // the one rule that puts the odd cell at the beginning: the formula's way, not the prose's
        (AutoPad::Same(Side::End), true, Some(_)) => PaddingRule::OutputShape { sizes: None, extra: Side::Begin },
        (_, true, Some(_)) => PaddingRule::OutputShape { sizes: None, extra: Side::End },
        // without an output shape, a transposed convolution crops nothing under SAME
        (AutoPad::Same(_), true, None) | (AutoPad::Valid, _, _) => PaddingRule::Zero,
        (AutoPad::Same(extra), false, _) => PaddingRule::SameForward { extra },
        (AutoPad::Explicit, _, _) => PaddingRule::Explicit,
    };
    match padding {
        PaddingRule::Explicit => warn_of_missing_pads(&declared_pads, node),
        PaddingRule::OutputShape { .. } => attributes.note_unread_pads(&declared_pads, "output_shape"),
        _ => attributes.note_unread_pads(&declared_pads, &format!("auto_pad={auto_pad}")),
    }
    Ok(Node {
        operator: operator.name(),
        dialect: Dialect::OpenVino,
        datum_types: &ELEMENT_TYPES,
        // the texts of the forward operators end at rank 5
        max_spatial_axes: if transposed { 4 } else { 3 },
        direction,
        data_format: DataFormat::Ncx,
        filter_axes: operator.filter_axes(),
        group: 1,
        kernel_shape: None,
        strides,
        dilations,
        output_padding: attributes.sizes("output_padding", 0)?,
        limits_output_padding: false,
        declared_pads,
        padding,
        inputs: OptionalInputs { bias: None, output_shape },
        settings: Settings::default(),
    })
}

#[derive(Clone, Copy)]
enum AutoPad {
    Explicit,
    Same(Side),
    Valid,
}
