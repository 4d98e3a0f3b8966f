//! OpenVINO's GroupConvolutionBackpropData-1, ConvolutionBackpropData-1, GroupConvolution-1 and
//! Convolution-1.
//!
//! No standard defines them in ONNX files. By this crate's own convention, the operators have their
//! own names under one of [`DOMAINS`]. Attributes are lists of integers or strings of
//! comma-separated integers. The inputs have the specification's order. Attributes that these
//! operators don't have, such as the operator set's name, are ignored.

use super::attributes::{Attributes, Lists};
use super::expand::{FilterAxes, Node, OptionalInputs, PaddingRule};
use super::{check_arity, optional_input, required, warn_of_missing_pads};
use crate::element::ELEMENT_TYPES;
use crate::op::Dialect;
use crate::options::Settings;
use crate::spec::{DataFormat, Direction, FilterFormat, Side};
use tract_core::internal::*;
use tract_onnx::pb::NodeProto;

/// The domains of the operators. The empty domain is among them, as the names are unambiguous.
pub(super) const DOMAINS: [&str; 4] = ["", "ai.onnx", "org.openvinotoolkit", "ai.intel.openvino"];

/// The attributes that are read.
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
    // Negative pads are accepted. They add positions around a transposed convolution's output that
    // hold the bias only, and crop a forward one's input.
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
        // The only rule that puts the odd position at the beginning. This follows the
        // specification's formula where it contradicts its prose.
        (AutoPad::Same(Side::End), true, Some(_)) => PaddingRule::OutputShape { sizes: None, extra: Side::Begin },
        (_, true, Some(_)) => PaddingRule::OutputShape { sizes: None, extra: Side::End },
        // Without an output shape, SAME does not crop a transposed convolution.
        (AutoPad::Same(_), true, None) | (AutoPad::Valid, _, _) => PaddingRule::Zero,
        (AutoPad::Same(extra), false, _) => PaddingRule::SameForward { extra },
        (AutoPad::Explicit, _, _) => PaddingRule::Explicit,
    };
    match padding {
        PaddingRule::Explicit => warn_of_missing_pads(&declared_pads, node),
        PaddingRule::OutputShape { .. } => attributes.note_unread_pads(&declared_pads, "output_shape"),
        _ => attributes.note_unread_pads(&declared_pads, &format!("auto_pad={auto_pad}")),
    }
    let output_padding = attributes.sizes("output_padding", 0)?;
    if let Some(zeros) = output_padding.as_ref().filter(|values| !transposed && values.iter().all(|value| *value == 0))
    {
        attributes.note(format_args!("output_padding={zeros:?}, taken as absent, a forward convolution has none"));
    }
    Ok(Node {
        operator: operator.name(),
        dialect: Dialect::OpenVino,
        datum_types: &ELEMENT_TYPES,
        // The specifications of the forward operators end at rank 5.
        max_spatial_axes: if transposed { 4 } else { 3 },
        direction,
        data_format: DataFormat::Ncx,
        filter_axes: operator.filter_axes(),
        group: 1,
        kernel_shape: None,
        strides,
        dilations,
        output_padding,
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
