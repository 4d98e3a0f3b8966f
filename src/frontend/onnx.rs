//! ONNX ConvTranspose and Conv, opsets 1, 11 and 22.

use super::attributes::{Attributes, Lists};
use super::expand::{DeclaredPads, FilterAxes, Node, OptionalInputs, PaddingRule};
use super::{check_arity, optional_input};
use crate::op::Dialect;
use crate::options::Settings;
use crate::spec::{DataFormat, Direction, FilterFormat, Side};
use tract_core::internal::*;
use tract_onnx::pb::NodeProto;

/// bf16 is not one of tract's types. See [`crate::load()`].
const DATUM_TYPES: [DatumType; 3] = [DatumType::F32, DatumType::F16, DatumType::F64];

/// The attributes that are read from a ConvTranspose.
pub(super) const ATTRIBUTES: [&str; 8] =
    ["auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"];

/// The attributes that are read from a Conv.
pub(super) const ATTRIBUTES_OF_CONV: [&str; 6] = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];

/// Reads a ConvTranspose.
pub(super) fn conv_transpose(node: &NodeProto) -> TractResult<Node> {
    check_arity(node, 2, 3)?;
    let attributes = Attributes::new(node, Lists::Ints, &ATTRIBUTES)?;
    let same = same_of(&attributes)?;
    let base = convolution(node, &attributes)?;
    let padding = match (attributes.sizes("output_shape", 1)?, same) {
        // SAME_UPPER is the only rule that puts the odd position at the end.
        (Some(sizes), same) => {
            attributes.note_unread_pads(&base.declared_pads, "output_shape");
            PaddingRule::OutputShape { sizes: Some(sizes), extra: same.unwrap_or(Side::Begin) }
        }
        (None, Some(extra)) => PaddingRule::Same { extra, counts_output_padding: true },
        (None, None) => PaddingRule::Explicit,
    };
    Ok(Node {
        operator: "ConvTranspose",
        direction: Direction::Transposed,
        filter_axes: FilterAxes::Plain(FilterFormat::Iox),
        output_padding: attributes.sizes("output_padding", 0)?,
        limits_output_padding: true,
        padding,
        ..base
    })
}

/// Reads a Conv.
pub(super) fn conv(node: &NodeProto) -> TractResult<Node> {
    check_arity(node, 2, 3)?;
    forward(node)
}

/// Reads the attributes of a ConvInteger or QLinearConv, which are those of Conv. `arity` are the
/// least and the largest number of inputs.
pub(super) fn quantised_conv(node: &NodeProto, operator: &'static str, arity: [usize; 2]) -> TractResult<Node> {
    check_arity(node, arity[0], arity[1])?;
    Ok(Node { operator, inputs: OptionalInputs::default(), ..forward(node)? })
}

fn forward(node: &NodeProto) -> TractResult<Node> {
    let attributes = Attributes::new(node, Lists::Ints, &ATTRIBUTES_OF_CONV)?;
    let padding = match same_of(&attributes)? {
        Some(extra) => PaddingRule::SameForward { extra },
        None => PaddingRule::Explicit,
    };
    Ok(Node { padding, ..convolution(node, &attributes)? })
}

/// Reads a Conv except for its padding. ConvTranspose shares this part.
fn convolution(node: &NodeProto, attributes: &Attributes) -> TractResult<Node> {
    Ok(Node {
        operator: "Conv",
        dialect: Dialect::Onnx,
        datum_types: &DATUM_TYPES,
        max_spatial_axes: 4,
        direction: Direction::Forward,
        data_format: DataFormat::Ncx,
        filter_axes: FilterAxes::Plain(FilterFormat::GroupedOix),
        group: attributes.group("group")?,
        kernel_shape: attributes.sizes("kernel_shape", 1)?,
        strides: attributes.sizes("strides", 1)?,
        dilations: attributes.sizes("dilations", 1)?,
        output_padding: None,
        limits_output_padding: false,
        declared_pads: declared_pads(attributes)?,
        padding: PaddingRule::Explicit,
        inputs: OptionalInputs { bias: optional_input(node, 2), output_shape: None },
        settings: Settings::default(),
    })
}

/// Returns the side of the odd position under SAME, or none under the other rules.
fn same_of(attributes: &Attributes) -> TractResult<Option<Side>> {
    match attributes.string("auto_pad")?.unwrap_or("") {
        "" | "NOTSET" | "VALID" => Ok(None),
        "SAME_UPPER" => Ok(Some(Side::End)),
        "SAME_LOWER" => Ok(Some(Side::Begin)),
        other => bail!("auto_pad: auto_pad={other}, it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID"),
    }
}

/// Returns the two halves of `pads`.
///
/// If `auto_pad` sets a rule, `pads` may contain only zeros, which some converters leave behind.
fn declared_pads(attributes: &Attributes) -> TractResult<[DeclaredPads; 2]> {
    let side = |values: Option<&[i64]>| DeclaredPads { name: "pads", values: values.map(|values| values.into()) };
    let Some(pads) = attributes.pads("pads", Some(0))? else { return Ok([side(None), side(None)]) };
    let auto_pad = attributes.string("auto_pad")?.unwrap_or("");
    ensure!(pads.len().is_multiple_of(2), "pads: pads={pads:?}, two values per spatial axis are needed");
    let (begin, end) = pads.split_at(pads.len() / 2);
    let sides = [side(Some(begin)), side(Some(end))];
    if !matches!(auto_pad, "" | "NOTSET") {
        ensure!(pads.iter().all(|pad| *pad == 0), "pads: pads={pads:?}, they exclude auto_pad={auto_pad}");
        attributes.note_unread_pads(&sides, &format!("auto_pad={auto_pad}"));
    }
    Ok(sides)
}
