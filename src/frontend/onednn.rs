//! oneDNN Graph's ConvTranspose-1.
//!
//! No standard defines it in ONNX files. By this crate's own convention it is `ConvTranspose` under
//! the domain [`DOMAIN`], or under any other domain but ONNX's own if it has one of [`MARKS`].

use super::attributes::{Attributes, Lists};
use super::expand::{FilterAxes, Node, OptionalInputs, PaddingRule};
use super::{check_arity, optional_input, required, warn_of_missing_pads};
use crate::op::Dialect;
use crate::options::Settings;
use crate::spec::{DataFormat, Direction, FilterFormat, Side};
use tract_core::internal::*;
use tract_onnx::pb::NodeProto;

/// The domain of the operator.
pub(super) const DOMAIN: &str = "onednn";

/// The attributes that are read, including those that are always refused.
pub(super) const ATTRIBUTES: [&str; 11] = [
    "auto_pad",
    "data_format",
    "dilations",
    "filter_format",
    "groups",
    "output_padding",
    "output_shape",
    "pads_begin",
    "pads_end",
    "strides",
    "weights_format",
];

/// Attributes that ONNX's operator of the same name does not have.
const MARKS: [&str; 6] = ["data_format", "filter_format", "weights_format", "groups", "pads_begin", "pads_end"];

/// bf16 is not one of tract's types. See [`crate::load()`].
const DATUM_TYPES: [DatumType; 2] = [DatumType::F32, DatumType::F16];

/// Returns whether a ConvTranspose of a domain other than ONNX's belongs to this dialect.
pub(super) fn is_ours(node: &NodeProto) -> bool {
    node.domain == DOMAIN || node.attribute.iter().any(|a| MARKS.contains(&&*a.name))
}

/// Reads a node.
pub(super) fn conv_transpose(node: &NodeProto) -> TractResult<Node> {
    check_arity(node, 2, 3)?;
    let attributes = Attributes::new(node, Lists::Ints, &ATTRIBUTES)?;
    if let Some(sizes) = attributes.ints("output_shape")? {
        bail!("output_shape: output_shape={sizes:?}, the operator has no such attribute");
    }
    let auto_pad = attributes.string("auto_pad")?.unwrap_or("").to_ascii_uppercase();
    let declared_pads = attributes.declared_pads(Some(0))?;
    let same = |extra| PaddingRule::Same { extra, counts_output_padding: false };
    let padding = match &*auto_pad {
        "" | "NONE" | "NOTSET" => {
            warn_of_missing_pads(&declared_pads, node);
            PaddingRule::Explicit
        }
        "SAME_UPPER" => same(Side::End),
        "SAME_LOWER" => same(Side::Begin),
        "VALID" => PaddingRule::Zero,
        other => bail!("auto_pad: auto_pad={other}, it must be None, SAME_UPPER, SAME_LOWER or VALID"),
    };
    if padding != PaddingRule::Explicit {
        attributes.note_unread_pads(&declared_pads, &format!("auto_pad={auto_pad}"));
    }
    let data_format = match attributes.string("data_format")?.unwrap_or("") {
        "" | "NXC" => DataFormat::Nxc,
        "NCX" => DataFormat::Ncx,
        other => bail!("data_format: data_format={other}, it must be NXC or NCX"),
    };
    Ok(Node {
        operator: "ConvTranspose",
        dialect: Dialect::OneDnn,
        datum_types: &DATUM_TYPES,
        max_spatial_axes: 4,
        direction: Direction::Transposed,
        data_format,
        filter_axes: FilterAxes::Plain(filter_format(&attributes)?),
        group: attributes.group("groups")?,
        kernel_shape: None,
        strides: required(attributes.sizes("strides", 1)?, "strides", node),
        dilations: required(attributes.sizes("dilations", 1)?, "dilations", node),
        output_padding: attributes.sizes("output_padding", 0)?,
        limits_output_padding: false,
        declared_pads,
        padding,
        inputs: OptionalInputs { bias: optional_input(node, 2), output_shape: None },
        settings: Settings::default(),
    })
}

/// Reads the filter format from the attribute of either name. The two have different defaults.
fn filter_format(attributes: &Attributes) -> TractResult<FilterFormat> {
    let read = |name: &str, default: FilterFormat| -> TractResult<Option<FilterFormat>> {
        let Some(value) = attributes.string(name)? else { return Ok(None) };
        Ok(Some(match value {
            "" => default,
            "XIO" => FilterFormat::Xio,
            "OIX" => FilterFormat::Oix,
            "XOI" => FilterFormat::Xoi,
            "IOX" => FilterFormat::Iox,
            other => bail!("{name}: {name}={other}, it must be XIO, OIX, XOI or IOX"),
        }))
    };
    match (read("filter_format", FilterFormat::Xio)?, read("weights_format", FilterFormat::Xoi)?) {
        (Some(filter), Some(weights)) => {
            ensure!(
                filter == weights,
                "weights_format: weights_format={weights}, filter_format={filter} contradicts it"
            );
            Ok(filter)
        }
        (Some(format), None) | (None, Some(format)) => Ok(format),
        (None, None) => Ok(FilterFormat::Xio),
    }
}
