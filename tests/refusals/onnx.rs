//! ONNX ConvTranspose.

use crate::common::random::Random;
use crate::table::{Layer, Row, check};
use tract_core::internal::*;

const MAX: i64 = i64::MAX;

fn layer() -> Layer {
    Layer::new("", "ConvTranspose", &[1, 4, 5, 6], &[4, 3, 3, 2])
}

fn shaped(x: &[usize], w: &[usize]) -> Layer {
    Layer::new("", "ConvTranspose", x, w)
}

fn typed(x: DatumType, w: DatumType) -> Layer {
    let mut random = Random(3);
    Layer::typed(x, "", "ConvTranspose", &[1, 4, 5, 6], &[4, 3, 3, 2]).with("w", random.tensor(w, &[4, 3, 3, 2]))
}

fn bias(dt: DatumType, shape: &[usize]) -> Layer {
    layer().constant("b", Random(4).tensor(dt, shape))
}

#[test]
fn lists() {
    let rows: Vec<Row> = vec![
        (layer().ints("strides", &[2]), "strides: strides=[2], 2 values are needed, one per spatial axis"),
        (layer().ints("strides", &[2, 2, 2]), "strides: strides=[2, 2, 2], 2 values are needed, one per spatial axis"),
        (layer().ints("strides", &[0, 1]), "strides: strides=[0, 1], every value must be at least 1"),
        (layer().ints("strides", &[1, -2]), "strides: strides=[1, -2], every value must be at least 1"),
        (
            layer().ints("strides", &[i64::MIN, 1]),
            "strides: strides=[-9223372036854775808, 1], every value must be at least 1",
        ),
        (
            layer().ints("strides", &[1 << 31, 1]),
            "strides: strides=[2147483648, 1], every value must be at most 2147483647",
        ),
        (
            layer().ints("strides", &[1, MAX]),
            "strides: strides=[1, 9223372036854775807], every value must be at most 2147483647",
        ),
        (layer().int("strides", 2), "strides: type=int, list of ints is needed"),
        (layer().text("strides", "2,2"), "strides: type=string, list of ints is needed"),
        (layer().float("strides", 2.0), "strides: type=float, list of ints is needed"),
        (layer().floats("strides", &[2.0, 2.0]), "strides: type=list of floats, list of ints is needed"),
        (
            layer().ints("strides", &[2, 2]).ints("strides", &[1, 1]),
            "attribute: name=strides, it is given more than once",
        ),
        (layer().ints("dilations", &[2]), "dilations: dilations=[2], 2 values are needed, one per spatial axis"),
        (
            layer().ints("dilations", &[1, 1, 1]),
            "dilations: dilations=[1, 1, 1], 2 values are needed, one per spatial axis",
        ),
        (layer().ints("dilations", &[1, 0]), "dilations: dilations=[1, 0], every value must be at least 1"),
        (layer().ints("dilations", &[-1, 1]), "dilations: dilations=[-1, 1], every value must be at least 1"),
        (
            layer().ints("dilations", &[i64::MIN, 1]),
            "dilations: dilations=[-9223372036854775808, 1], every value must be at least 1",
        ),
        (
            layer().ints("dilations", &[MAX, 1]),
            "dilations: dilations=[9223372036854775807, 1], every value must be at most 2147483647",
        ),
        (
            layer().ints("dilations", &[(1 << 31) - 1, 1]),
            "dilations: dilation=2147483647, a kernel of 3 must extend over at most 2147483647 positions",
        ),
        (layer().int("dilations", 1), "dilations: type=int, list of ints is needed"),
        (layer().text("dilations", "1,1"), "dilations: type=string, list of ints is needed"),
        (layer().floats("dilations", &[1.0, 1.0]), "dilations: type=list of floats, list of ints is needed"),
        (layer().ints("pads", &[1]), "pads: pads=[1], two values per spatial axis are needed"),
        (layer().ints("pads", &[1, 1]), "pads: pads=[1, 1], 2 values are needed on each side, one per spatial axis"),
        (layer().ints("pads", &[1, 1, 1]), "pads: pads=[1, 1, 1], two values per spatial axis are needed"),
        (
            layer().ints("pads", &[0, 0, 0, 0, 0, 0]),
            "pads: pads=[0, 0, 0, 0, 0, 0], 2 values are needed on each side, one per spatial axis",
        ),
        (layer().ints("pads", &[0, 0, 0, -1]), "pads: pads=[0, 0, 0, -1], every value must be at least 0"),
        (
            layer().ints("pads", &[i64::MIN, 0, 0, 0]),
            "pads: pads=[-9223372036854775808, 0, 0, 0], every value must be at least 0",
        ),
        (
            layer().ints("pads", &[MAX, 0, 0, 0]),
            "pads begin: pads=[9223372036854775807, 0], every value must be within -2147483647..=2147483647",
        ),
        (
            layer().ints("pads", &[0, 0, 1 << 31, 0]),
            "pads end: pads=[2147483648, 0], every value must be within -2147483647..=2147483647",
        ),
        (
            layer().ints("pads", &[4, 0, 3, 0]),
            "output size: size=0 on spatial axis 0 for input size 5 and pads 4 and 3, must be within 1..=2147483647",
        ),
        (
            layer().ints("pads", &[0, 9, 0, 9]),
            "output size: size=-11 on spatial axis 1 for input size 6 and pads 9 and 9, must be within 1..=2147483647",
        ),
        (layer().int("pads", 0), "pads: type=int, list of ints is needed"),
        (layer().float("pads", 0.0), "pads: type=float, list of ints is needed"),
        (layer().text("pads", "0,0,0,0"), "pads: type=string, list of ints is needed"),
        (
            layer().ints("pads", &[0, 0, 0, 1]).text("auto_pad", "VALID"),
            "pads: pads=[0, 0, 0, 1], they exclude auto_pad=VALID",
        ),
        (
            layer().ints("pads", &[0, 0, 0, 1]).text("auto_pad", "SAME_UPPER"),
            "pads: pads=[0, 0, 0, 1], they exclude auto_pad=SAME_UPPER",
        ),
        (
            layer().ints("pads", &[0, 0, 0]).text("auto_pad", "VALID"),
            "pads: pads=[0, 0, 0], two values per spatial axis are needed",
        ),
        (
            layer().ints("pads", &[0, 0]).text("auto_pad", "SAME_UPPER"),
            "pads: pads=[0, 0], 2 values are needed on each side, one per spatial axis",
        ),
        (
            layer().ints("pads", &[1, 1, 1, 1]).text("auto_pad", "SAME_LOWER"),
            "pads: pads=[1, 1, 1, 1], they exclude auto_pad=SAME_LOWER",
        ),
        (
            layer().ints("output_padding", &[0]),
            "output_padding: output_padding=[0], 2 values are needed, one per spatial axis",
        ),
        (
            layer().ints("output_padding", &[0, 0, 0]),
            "output_padding: output_padding=[0, 0, 0], 2 values are needed, one per spatial axis",
        ),
        (
            layer().ints("output_padding", &[-1, 0]),
            "output_padding: output_padding=[-1, 0], every value must be at least 0",
        ),
        (
            layer().ints("output_padding", &[0, 1]),
            "output_padding: output_padding=[0, 1], every value must be less than the stride or the dilation",
        ),
        (
            layer().ints("output_padding", &[3, 0]).ints("strides", &[2, 2]).ints("dilations", &[3, 1]),
            "output_padding: output_padding=[3, 0], every value must be less than the stride or the dilation",
        ),
        (
            layer().ints("output_padding", &[MAX, 0]),
            "output_padding: output_padding=[9223372036854775807, 0], every value must be at most 2147483647",
        ),
        (layer().int("output_padding", 0), "output_padding: type=int, list of ints is needed"),
        (layer().floats("output_padding", &[0.0, 0.0]), "output_padding: type=list of floats, list of ints is needed"),
        (
            layer().ints("output_shape", &[7]),
            "output_shape: output_shape=[7], 2 values are needed, one per spatial axis",
        ),
        (
            layer().ints("output_shape", &[1, 3, 7, 7]),
            "output_shape: output_shape=[1, 3, 7, 7], 2 values are needed, one per spatial axis",
        ),
        (layer().ints("output_shape", &[0, 7]), "output_shape: output_shape=[0, 7], every value must be at least 1"),
        (layer().ints("output_shape", &[7, -1]), "output_shape: output_shape=[7, -1], every value must be at least 1"),
        (
            layer().ints("output_shape", &[i64::MIN, 7]),
            "output_shape: output_shape=[-9223372036854775808, 7], every value must be at least 1",
        ),
        (
            layer().ints("output_shape", &[1 << 31, 7]),
            "output_shape: output_shape=[2147483648, 7], every value must be within 1..=2147483647",
        ),
        (
            layer().ints("output_shape", &[7, MAX]),
            "output_shape: output_shape=[7, 9223372036854775807], every value must be within 1..=2147483647",
        ),
        (
            layer().ints("output_shape", &[1 << 30, 1 << 30]),
            "output size: shape=[1, 3, 1073741824, 1073741824], it must hold at most 1099511627776 elements",
        ),
        (
            layer().ints("output_shape", &[1 << 16, 1 << 17]),
            "output size: shape=[1, 3, 65536, 131072], its 103079215104 bytes are more than the limit of 17179869184",
        ),
        (layer().int("output_shape", 7), "output_shape: type=int, list of ints is needed"),
        (layer().text("output_shape", "7,7"), "output_shape: type=string, list of ints is needed"),
        (layer().ints("kernel_shape", &[3]), "kernel_shape: kernel_shape=[3], the filter's is [3, 2]"),
        (layer().ints("kernel_shape", &[3, 2, 1]), "kernel_shape: kernel_shape=[3, 2, 1], the filter's is [3, 2]"),
        (layer().ints("kernel_shape", &[2, 3]), "kernel_shape: kernel_shape=[2, 3], the filter's is [3, 2]"),
        (layer().ints("kernel_shape", &[0, 2]), "kernel_shape: kernel_shape=[0, 2], every value must be at least 1"),
        (layer().ints("kernel_shape", &[3, -2]), "kernel_shape: kernel_shape=[3, -2], every value must be at least 1"),
        (
            layer().ints("kernel_shape", &[MAX, 2]),
            "kernel_shape: kernel_shape=[9223372036854775807, 2], the filter's is [3, 2]",
        ),
        (layer().int("kernel_shape", 3), "kernel_shape: type=int, list of ints is needed"),
        (layer().text("kernel_shape", "3,2"), "kernel_shape: type=string, list of ints is needed"),
    ];
    check("lists of onnx", &rows);
}

#[test]
fn scalars() {
    let rows: Vec<Row> = vec![
        (layer().int("group", 0), "group: group=0, it must be at least 1"),
        (layer().int("group", -1), "group: group=-1, it must be at least 1"),
        (layer().int("group", i64::MIN), "group: group=-9223372036854775808, it must be at least 1"),
        (layer().int("group", 3), "input channels: channels=4, must be a positive multiple of group=3"),
        (layer().int("group", 8), "input channels: channels=4, must be a positive multiple of group=8"),
        (
            layer().int("group", MAX),
            "group: group=9223372036854775807, the number of channels of a filter [4, 3, 3, 2] overflows",
        ),
        (layer().ints("group", &[1]), "group: type=list of ints, int is needed"),
        (layer().text("group", "1"), "group: type=string, int is needed"),
        (layer().float("group", 1.0), "group: type=float, int is needed"),
        (layer().int("group", 1).int("group", 1), "attribute: name=group, it is given more than once"),
        (
            layer().text("auto_pad", "SAME"),
            "auto_pad: auto_pad=SAME, it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID",
        ),
        (
            layer().text("auto_pad", "same_upper"),
            "auto_pad: auto_pad=same_upper, it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID",
        ),
        (
            layer().text("auto_pad", " VALID"),
            "auto_pad: auto_pad= VALID, it must be NOTSET, SAME_UPPER, SAME_LOWER or VALID",
        ),
        (layer().int("auto_pad", 1), "auto_pad: type=int, string is needed"),
        (layer().ints("auto_pad", &[1, 1]), "auto_pad: type=list of ints, string is needed"),
    ];
    check("scalars of onnx", &rows);
}

#[test]
fn operands() {
    let rows: Vec<Row> = vec![
        // Number and presence of operands.
        (layer().node(|node| node.inputs(&["x"])), "inputs: count=1, 2 to 3 are needed"),
        (layer().node(|node| node.inputs(&["", "w"])), "inputs: data=\"\", it can not be left out"),
        (layer().node(|node| node.inputs(&["x", ""])), "inputs: filter=\"\", it can not be left out"),
        (bias(f32::datum_type(), &[3]).constant("c", tensor0(1f32)), "inputs: count=4, 2 to 3 are needed"),
        // Ranks.
        (shaped(&[1, 4], &[4, 3]), "input: rank=2, ConvTranspose takes 1 to 4 spatial axes"),
        (shaped(&[4], &[4]), "input: rank=1, ConvTranspose takes 1 to 4 spatial axes"),
        (shaped(&[1, 4, 5], &[4, 3, 3, 2]), "filter: rank=4, 3 is needed for an input of rank 3"),
        (shaped(&[1, 4, 5, 6], &[4, 3, 3]), "filter: rank=3, 4 is needed for an input of rank 4"),
        (
            shaped(&[1, 1, 1, 1, 1, 1, 1], &[1, 1, 1, 1, 1, 1, 1]),
            "input: rank=7, ConvTranspose takes 1 to 4 spatial axes",
        ),
        // Sizes.
        (shaped(&[1, 3, 5, 6], &[4, 3, 3, 2]), "input: channels=3, the filter needs 4"),
        (shaped(&[1, 0, 5, 6], &[0, 3, 3, 2]), "input channels: channels=0, must be a positive multiple of group=1"),
        (shaped(&[1, 4, 5, 6], &[4, 3, 0, 2]), "kernel_shape: kernel_shape=[0, 2], every value must be at least 1"),
        (
            shaped(&[1, 4, 0, 6], &[4, 3, 1, 2]).ints("strides", &[2, 1]),
            "output size: size=-1 on spatial axis 0 for input size 0 and pads 0 and 0, must be within 0..=2147483647",
        ),
        (
            shaped(&[1, 4, 0, 6], &[4, 3, 3, 2]).ints("strides", &[4, 1]),
            "output size: size=-1 on spatial axis 0 for input size 0 and pads 0 and 0, must be within 0..=2147483647",
        ),
        (
            shaped(&[0, 4, 5, 6], &[4, 3, 3, 2]).ints("pads", &[4, 0, 4, 0]),
            "output size: size=-1 on spatial axis 0 for input size 5 and pads 4 and 4, must be within 1..=2147483647",
        ),
        (
            layer().declare("x", &["1", "4", "2147483647", "2147483647"]),
            "input size: shape=[1, 4, 2147483647, 2147483647], it must hold at most 1099511627776 elements",
        ),
        (
            layer().declare("x", &["1", "4", "2147483648", "6"]),
            "input: spatial size=2147483648, must be at most 2147483647",
        ),
        (layer().declare("x", &["1", "5", "N", "N"]), "input: channels=5, the filter needs 4"),
        // Some sizes are unknown, but the case is illegal for all their values.
        (
            layer().declare("w", &["4", "3", "K", "2"]).int("group", 3),
            "input channels: channels=4, must be a positive multiple of group=3",
        ),
        (
            layer().declare("w", &["4", "3", "K", "2"]).ints("kernel_shape", &[3, 3]),
            "kernel_shape: kernel_shape=[3, 3], the filter's is [3, 2]",
        ),
        (
            layer().declare("w", &["4", "3", "K", "2"]).ints("kernel_shape", &[2, 2]),
            "kernel_shape: kernel_shape=[2, 2], the filter's is [3, 2]",
        ),
        (
            layer().declare("w", &["I", "3", "3", "2"]).with("x", Random(5).tensor(f32::datum_type(), &[1, 3, 5, 6])),
            "input: channels=3, the filter needs 4",
        ),
        (
            layer().declare("w", &["4", "3", "2147483647", "2147483647"]),
            "filter: shape=[4, 3, 2147483647, 2147483647], it must hold at most 1099511627776 elements",
        ),
        (
            layer().declare("w", &["4", "9223372036854775807", "3", "2"]).int("group", 2),
            "output channels: channels=18446744073709551614, must be at most 2147483647",
        ),
        // Bias.
        (bias(f32::datum_type(), &[2]), "bias: shape=[2], the output has 3 channels"),
        (bias(f32::datum_type(), &[4]), "bias: shape=[4], the output has 3 channels"),
        (bias(f32::datum_type(), &[]), "bias: rank=0, one value per output channel is needed"),
        (bias(f32::datum_type(), &[1, 3]), "bias: rank=2, one value per output channel is needed"),
        (bias(f32::datum_type(), &[0]), "bias: shape=[0], the output has 3 channels"),
        (bias(f64::datum_type(), &[3]), "bias: datum_type=F64, the input's is F32"),
        (bias(i32::datum_type(), &[3]), "bias: datum_type=I32, the input's is F32"),
        (bias(f32::datum_type(), &[3]).int("group", 2), "bias: shape=[3], the output has 6 channels"),
        // Element types.
        (typed(DatumType::I8, DatumType::I8), "input: datum_type=I8, ConvTranspose takes [F32, F16, F64]"),
        (typed(DatumType::U8, DatumType::U8), "input: datum_type=U8, ConvTranspose takes [F32, F16, F64]"),
        (typed(DatumType::I32, DatumType::I32), "input: datum_type=I32, ConvTranspose takes [F32, F16, F64]"),
        (typed(DatumType::I64, DatumType::I64), "input: datum_type=I64, ConvTranspose takes [F32, F16, F64]"),
        (typed(DatumType::F32, DatumType::F64), "filter: datum_type=F64, the input's is F32"),
        (typed(DatumType::F16, DatumType::F32), "filter: datum_type=F32, the input's is F16"),
        (typed(DatumType::F32, DatumType::I32), "filter: datum_type=I32, the input's is F32"),
    ];
    check("operands of onnx", &rows);
}
