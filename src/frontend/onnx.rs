//! ONNX ConvTranspose, opsets 1, 11 and 22.

use super::attributes::{Attributes, Lists};
use super::expand::{DeclaredPads, FilterAxes, Node, OptionalInputs, PaddingRule};
use super::{check_arity, optional_input};
use crate::op::Dialect;
use crate::spec::{DataFormat, Direction, FilterFormat, Side};
use tract_core::internal::*;
use tract_onnx::pb::NodeProto;

/// bf16 is not one of tract's types: see [`crate::load`].
const DATUM_TYPES: [DatumType; 3] = [DatumType::F32, DatumType::F16, DatumType::F64];

/// What is read of a node.
pub(super) const ATTRIBUTES: [&str; 8] =
    ["auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"];

/// Reads a node.
pub(super) fn conv_transpose(node: &NodeProto) -> TractResult<Node> {
    check_arity(node, 2, 3)?;
    let attributes = Attributes::new(node, Lists::Ints, &ATTRIBUTES)?;
    let auto_pad = attributes.string("auto_pad")?.unwrap_or("");
    let same = match auto_pad {
        "" | "NOTSET" | "VALID" => None,
        "SAME_UPPER" => Some(Side::End),
        "SAME_LOWER" => Some(Side::Begin),
        other => bail!("auto_pad: auto_pad={other}, it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID"),
    };
    let pads = attributes.pads("pads", Some(0))?;
    if let Some(pads) = &pads {
        ensure!(matches!(auto_pad, "" | "NOTSET"), "pads: pads={pads:?}, they exclude auto_pad={auto_pad}");
        ensure!(pads.len().is_multiple_of(2), "pads: pads={pads:?}, two values per spatial axis are needed");
    }
    let side = |values: &[i64]| DeclaredPads { name: "pads", values: Some(values.into()) };
    let declared_pads = match &pads {
        Some(pads) => {
            let (begin, end) = pads.split_at(pads.len() / 2);
            [side(begin), side(end)]
        }
        None => [DeclaredPads { name: "pads", values: None }, DeclaredPads { name: "pads", values: None }],
    };
    let padding = match (attributes.sizes("output_shape", 1)?, same) {
        // SAME_UPPER is the one rule that puts the odd cell at the end
        (Some(sizes), same) => PaddingRule::OutputShape { sizes: Some(sizes), extra: same.unwrap_or(Side::Begin) },
        (None, Some(extra)) => PaddingRule::Same { extra, counts_output_padding: true },
        (None, None) => PaddingRule::Explicit,
    };
    Ok(Node {
        operator: "ConvTranspose",
        dialect: Dialect::Onnx,
        datum_types: &DATUM_TYPES,
        max_spatial_axes: 4,
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_axes: FilterAxes::Plain(FilterFormat::Iox),
        group: attributes.group("group")?,
        kernel_shape: attributes.sizes("kernel_shape", 1)?,
        strides: attributes.sizes("strides", 1)?,
        dilations: attributes.sizes("dilations", 1)?,
        output_padding: attributes.sizes("output_padding", 0)?,
        limits_output_padding: true,
        declared_pads,
        padding,
        inputs: OptionalInputs { bias: optional_input(node, 2), output_shape: None },
    })
}
