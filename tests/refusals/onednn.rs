//! oneDNN Graph's ConvTranspose.

use crate::common::random::Random;
use crate::table::{Layer, Row, check};
use tract_core::internal::*;

const MAX: i64 = i64::MAX;

fn layer() -> Layer {
    shaped(&[1, 5, 6, 4], &[3, 3, 4, 2])
}

fn shaped(x: &[usize], w: &[usize]) -> Layer {
    Layer::new("onednn", "ConvTranspose", x, w)
}

fn typed(dt: DatumType) -> Layer {
    Layer::typed(dt, "onednn", "ConvTranspose", &[1, 5, 6, 4], &[3, 3, 4, 2])
}

#[test]
fn attributes() {
    let rows: Vec<Row> = vec![
        (layer().ints("strides", &[0, 1]), "strides: strides=[0, 1], every value must be at least 1"),
        (layer().ints("strides", &[2]), "strides: strides=[2], 2 values are needed, one per spatial axis"),
        (
            layer().ints("strides", &[MAX, 1]),
            "strides: strides=[9223372036854775807, 1], every value must be at most 2147483647",
        ),
        (layer().text("strides", "2,2"), "strides: type=string, list of ints is needed"),
        (layer().ints("dilations", &[1, 0]), "dilations: dilations=[1, 0], every value must be at least 1"),
        (
            layer().ints("dilations", &[1, 1, 1]),
            "dilations: dilations=[1, 1, 1], 2 values are needed, one per spatial axis",
        ),
        (
            layer().ints("dilations", &[MAX, 1]),
            "dilations: dilations=[9223372036854775807, 1], every value must be at most 2147483647",
        ),
        (layer().float("dilations", 1.0), "dilations: type=float, list of ints is needed"),
        (layer().ints("pads_begin", &[-1, 0]), "pads_begin: pads_begin=[-1, 0], every value must be at least 0"),
        (
            layer().ints("pads_begin", &[1]),
            "pads_begin: pads_begin=[1], 2 values are needed on each side, one per spatial axis",
        ),
        (
            layer().ints("pads_begin", &[MAX, 0]),
            "pads begin: pads=[9223372036854775807, 0], every value must be within -2147483647..=2147483647",
        ),
        (layer().ints("pads_end", &[0, -2]), "pads_end: pads_end=[0, -2], every value must be at least 0"),
        (
            layer().ints("pads_end", &[0, 0, 0]),
            "pads_end: pads_end=[0, 0, 0], 2 values are needed on each side, one per spatial axis",
        ),
        (
            layer().ints("pads_begin", &[9, 9]),
            "output size: size=-2 on spatial axis 0 for input size 5 and pads 9 and 0, must be within 1..=2147483647",
        ),
        (layer().int("pads_end", 1), "pads_end: type=int, list of ints is needed"),
        (
            layer().ints("output_padding", &[0, -1]),
            "output_padding: output_padding=[0, -1], every value must be at least 0",
        ),
        (
            layer().ints("output_padding", &[0]),
            "output_padding: output_padding=[0], 2 values are needed, one per spatial axis",
        ),
        (
            layer().ints("output_padding", &[MAX, 0]),
            "output_padding: output_padding=[9223372036854775807, 0], every value must be at most 2147483647",
        ),
        (
            layer().ints("output_shape", &[9, 9]),
            "output_shape: output_shape=[9, 9], the operator has no such attribute",
        ),
        (layer().text("auto_pad", "same"), "auto_pad: auto_pad=SAME, it must be None, SAME_UPPER, SAME_LOWER or VALID"),
        (layer().int("auto_pad", 0), "auto_pad: type=int, string is needed"),
        (layer().text("data_format", "NCHW"), "data_format: data_format=NCHW, it must be NXC or NCX"),
        (layer().int("data_format", 1), "data_format: type=int, string is needed"),
        (
            layer().text("data_format", "NXC").text("data_format", "NCX"),
            "attribute: name=data_format, it is given more than once",
        ),
        (layer().text("filter_format", "OIHW"), "filter_format: filter_format=OIHW, it must be XIO, OIX, XOI or IOX"),
        (layer().text("weights_format", "IXO"), "weights_format: weights_format=IXO, it must be XIO, OIX, XOI or IOX"),
        (
            layer().text("filter_format", "XIO").text("weights_format", "OIX"),
            "weights_format: weights_format=OIX, filter_format=XIO contradicts it",
        ),
        (layer().ints("strides", &[1, -3]), "strides: strides=[1, -3], every value must be at least 1"),
        (layer().int("strides", 1), "strides: type=int, list of ints is needed"),
        (layer().ints("dilations", &[-1, 1]), "dilations: dilations=[-1, 1], every value must be at least 1"),
        (layer().text("pads_begin", "1,1"), "pads_begin: type=string, list of ints is needed"),
        (
            layer().ints("pads_end", &[MAX, 0]),
            "pads end: pads=[9223372036854775807, 0], every value must be within -2147483647..=2147483647",
        ),
        (
            layer().ints("pads_end", &[i64::MIN, 0]),
            "pads_end: pads_end=[-9223372036854775808, 0], every value must be at least 0",
        ),
        (layer().text("output_padding", "0,0"), "output_padding: type=string, list of ints is needed"),
        (layer().text("data_format", "nxc"), "data_format: data_format=nxc, it must be NXC or NCX"),
        (layer().ints("filter_format", &[1]), "filter_format: type=list of ints, string is needed"),
        (layer().int("weights_format", 1), "weights_format: type=int, string is needed"),
        (layer().float("groups", 1.0), "groups: type=float, int is needed"),
        (layer().int("groups", i64::MIN), "groups: groups=-9223372036854775808, it must be at least 1"),
        (layer().int("groups", 1).int("groups", 1), "attribute: name=groups, it is given more than once"),
        (layer().int("groups", 0), "groups: groups=0, it must be at least 1"),
        (layer().int("groups", -2), "groups: groups=-2, it must be at least 1"),
        (layer().int("groups", 3), "input channels: channels=4, must be a positive multiple of group=3"),
        (
            layer().int("groups", MAX),
            "input channels: channels=4, must be a positive multiple of group=9223372036854775807",
        ),
        (layer().text("groups", "2"), "groups: type=string, int is needed"),
        (layer().ints("groups", &[2]), "groups: type=list of ints, int is needed"),
    ];
    check("attributes of onednn", &rows);
}

#[test]
fn operands() {
    let bias = |dt, shape: &[usize]| layer().constant("b", Random(6).tensor(dt, shape));
    let rows: Vec<Row> = vec![
        (layer().node(|node| node.inputs(&["x"])), "inputs: count=1, 2 to 3 are needed"),
        (layer().node(|node| node.inputs(&["x", "w", "", "w"])), "inputs: count=4, 2 to 3 are needed"),
        (shaped(&[1, 5, 6, 3], &[3, 3, 4, 2]), "input: channels=3, the filter needs 4"),
        (shaped(&[1, 4], &[4, 2]), "input: rank=2, ConvTranspose takes 1 to 4 spatial axes"),
        (shaped(&[1, 5, 6, 4], &[3, 4, 2]), "filter: rank=3, 4 is needed for an input of rank 4"),
        (shaped(&[1, 5, 6, 4], &[0, 3, 4, 2]), "kernel_shape: kernel_shape=[0, 3], every value must be at least 1"),
        (
            shaped(&[1, 0, 6, 4], &[1, 3, 4, 2]).ints("strides", &[2, 1]),
            "output size: size=-1 on spatial axis 0 for input size 0 and pads 0 and 0, must be within 0..=2147483647",
        ),
        (layer().text("data_format", "NCX"), "input: channels=5, the filter needs 4"),
        (layer().text("filter_format", "OIX"), "input: channels=4, the filter needs 3"),
        (bias(DatumType::F32, &[3]), "bias: shape=[3], the output has 2 channels"),
        (bias(DatumType::F32, &[1, 2]), "bias: rank=2, one value per output channel is needed"),
        (bias(DatumType::F16, &[2]), "bias: datum_type=F16, the input's is F32"),
        (typed(DatumType::F64), "input: datum_type=F64, ConvTranspose takes [F32, F16]"),
        (typed(DatumType::I8), "input: datum_type=I8, ConvTranspose takes [F32, F16]"),
        (typed(DatumType::I32), "input: datum_type=I32, ConvTranspose takes [F32, F16]"),
    ];
    check("operands of onednn", &rows);
}
