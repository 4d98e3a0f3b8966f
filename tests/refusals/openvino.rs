//! OpenVINO's operators.

use crate::common::random::Random;
use crate::table::{Layer, Row, check};
use tract_core::internal::*;

const MAX: i64 = i64::MAX;

fn grouped() -> Layer {
    Layer::new("org.openvinotoolkit", "GroupConvolutionBackpropData", &[1, 4, 5, 6], &[2, 2, 3, 3, 3])
}

fn dense(x: &[usize], w: &[usize]) -> Layer {
    Layer::new("ai.intel.openvino", "ConvolutionBackpropData", x, w)
}

fn forward(x: &[usize], w: &[usize]) -> Layer {
    Layer::new("", "GroupConvolution", x, w)
}

#[test]
fn attributes() {
    let rows: Vec<Row> = vec![
        (grouped().ints("strides", &[2]), "strides: strides=[2], 2 values are needed, one per spatial axis"),
        (grouped().ints("strides", &[0, 1]), "strides: strides=[0, 1], every value must be at least 1"),
        (grouped().ints("strides", &[1, -1]), "strides: strides=[1, -1], every value must be at least 1"),
        (
            grouped().ints("strides", &[MAX, 1]),
            "strides: strides=[9223372036854775807, 1], every value must be at most 2147483647",
        ),
        (grouped().int("strides", 2), "strides: type=int, list of ints or string is needed"),
        (grouped().text("strides", "2"), "strides: strides=[2], 2 values are needed, one per spatial axis"),
        (grouped().text("strides", "2;2"), "strides: strides=\"2;2\", integers between commas are needed"),
        (grouped().text("strides", "2,x"), "strides: strides=\"2,x\", integers between commas are needed"),
        (grouped().text("strides", "2,,2"), "strides: strides=\"2,,2\", integers between commas are needed"),
        (grouped().text("strides", "2.0,2.0"), "strides: strides=\"2.0,2.0\", integers between commas are needed"),
        (grouped().text("strides", "0,1"), "strides: strides=[0, 1], every value must be at least 1"),
        (
            grouped().text("strides", "99999999999999999999,1"),
            "strides: strides=\"99999999999999999999,1\", integers between commas are needed",
        ),
        (grouped().floats("strides", &[2.0, 2.0]), "strides: type=list of floats, list of ints or string is needed"),
        (grouped().ints("dilations", &[1, 0]), "dilations: dilations=[1, 0], every value must be at least 1"),
        (
            grouped().ints("dilations", &[1, 1, 1]),
            "dilations: dilations=[1, 1, 1], 2 values are needed, one per spatial axis",
        ),
        (grouped().text("dilations", "1,-1"), "dilations: dilations=[1, -1], every value must be at least 1"),
        (
            grouped().ints("dilations", &[MAX, 1]),
            "dilations: dilations=[9223372036854775807, 1], every value must be at most 2147483647",
        ),
        (
            grouped().ints("pads_begin", &[1]),
            "pads_begin: pads_begin=[1], 2 values are needed on each side, one per spatial axis",
        ),
        (
            grouped().ints("pads_end", &[1, 1, 1]),
            "pads_end: pads_end=[1, 1, 1], 2 values are needed on each side, one per spatial axis",
        ),
        (
            grouped().ints("pads_begin", &[MAX, 0]),
            "pads begin: pads=[9223372036854775807, 0], every value must be within -2147483647..=2147483647",
        ),
        (
            grouped().ints("pads_end", &[0, i64::MIN]),
            "pads end: pads=[0, -9223372036854775808], every value must be within -2147483647..=2147483647",
        ),
        (
            grouped().ints("pads_begin", &[9, 9]).ints("pads_end", &[9, 9]),
            "output size: size=-11 on spatial axis 0 for input size 5 and pads 9 and 9, must be within 1..=2147483647",
        ),
        (grouped().int("pads_begin", 1), "pads_begin: type=int, list of ints or string is needed"),
        (grouped().text("pads_end", "1,"), "pads_end: pads_end=\"1,\", integers between commas are needed"),
        (
            grouped().ints("output_padding", &[0, -1]),
            "output_padding: output_padding=[0, -1], every value must be at least 0",
        ),
        (
            grouped().ints("output_padding", &[1]),
            "output_padding: output_padding=[1], 2 values are needed, one per spatial axis",
        ),
        (
            grouped().ints("output_padding", &[1 << 40, 0]),
            "output_padding: output_padding=[1099511627776, 0], every value must be at most 2147483647",
        ),
        (
            grouped().text("output_padding", "a"),
            "output_padding: output_padding=\"a\", integers between commas are needed",
        ),
        (
            grouped().text("auto_pad", "same"),
            "auto_pad: auto_pad=same, it must be explicit, same_upper, same_lower or valid",
        ),
        (grouped().int("auto_pad", 0), "auto_pad: type=int, string is needed"),
        (
            grouped().ints("strides", &[1, 1]).text("strides", "1,1"),
            "attribute: name=strides, it is given more than once",
        ),
        (
            grouped().ints("strides", &[i64::MIN, 1]),
            "strides: strides=[-9223372036854775808, 1], every value must be at least 1",
        ),
        (grouped().float("dilations", 1.0), "dilations: type=float, list of ints or string is needed"),
        (
            grouped().ints("dilations", &[(1 << 31) - 1, 1]),
            "dilations: dilation=2147483647, a kernel of 3 must extend over at most 2147483647 positions",
        ),
        (
            grouped().floats("pads_begin", &[0.0, 0.0]),
            "pads_begin: type=list of floats, list of ints or string is needed",
        ),
        (grouped().text("pads_begin", "0x1,0"), "pads_begin: pads_begin=\"0x1,0\", integers between commas are needed"),
        (grouped().int("pads_end", 0), "pads_end: type=int, list of ints or string is needed"),
        (
            grouped().ints("output_padding", &[i64::MIN, 0]),
            "output_padding: output_padding=[-9223372036854775808, 0], every value must be at least 0",
        ),
        (grouped().int("output_padding", 1), "output_padding: type=int, list of ints or string is needed"),
        (grouped().ints("auto_pad", &[1]), "auto_pad: type=list of ints, string is needed"),
        (
            grouped().text("auto_pad", "valid").text("auto_pad", "valid"),
            "attribute: name=auto_pad, it is given more than once",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).ints("dilations", &[1, 9]),
            "output size: axis=1, the kernel's extent 19 exceeds the padded input 6",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).ints("pads_begin", &[MAX, 0]),
            "pads begin: pads=[9223372036854775807, 0], every value must be within -2147483647..=2147483647",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).text("auto_pad", "full"),
            "auto_pad: auto_pad=full, it must be explicit, same_upper, same_lower or valid",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).ints("output_padding", &[1, 0]),
            "output_padding: output_padding=[1, 0], a forward convolution has none",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).ints("strides", &[0, 1]),
            "strides: strides=[0, 1], every value must be at least 1",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).ints("pads_end", &[0, -9]),
            "output size: axis=1, the kernel's extent 3 exceeds the padded input -3",
        ),
    ];
    check("attributes of openvino", &rows);
}

#[test]
fn operands() {
    let integers = |values: &[i64]| tensor1(values);
    let rows: Vec<Row> = vec![
        (grouped().node(|node| node.inputs(&["x"])), "inputs: count=1, 2 to 3 are needed"),
        (grouped().node(|node| node.inputs(&["", "w"])), "inputs: data=\"\", it can not be left out"),
        (
            grouped().constant("s", integers(&[9, 9])).constant("t", integers(&[9, 9])),
            "inputs: count=4, 2 to 3 are needed",
        ),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 3, 3]).constant("s", integers(&[9, 9])),
            "inputs: count=3, 2 to 2 are needed",
        ),
        (dense(&[1, 4, 5, 6], &[2, 2, 3, 3, 3]), "filter: rank=5, 4 is needed for an input of rank 4"),
        (dense(&[1, 3, 5, 6], &[4, 3, 3, 3]), "input: channels=3, the filter needs 4"),
        (dense(&[1, 4], &[4, 3]), "input: rank=2, ConvolutionBackpropData takes 1 to 4 spatial axes"),
        (
            Layer::new("", "Convolution", &[1, 2, 2, 2, 2, 2], &[2, 2, 1, 1, 1, 1]),
            "input: rank=6, Convolution takes 1 to 3 spatial axes",
        ),
        (
            Layer::new("", "GroupConvolutionBackpropData", &[1, 4, 5, 6], &[4, 3, 3, 3]),
            "filter: rank=4, 5 is needed for an input of rank 4",
        ),
        (
            Layer::new("", "GroupConvolutionBackpropData", &[1, 4, 5, 6], &[3, 2, 3, 3, 3]),
            "input: channels=4, the filter needs 6",
        ),
        (
            Layer::new("", "GroupConvolutionBackpropData", &[1, 4, 5, 6], &[0, 2, 3, 3, 3]),
            "group: group=0, must be at least 1",
        ),
        (forward(&[1, 4, 5, 6], &[4, 3, 3, 3]), "filter: rank=4, 5 is needed for an input of rank 4"),
        (
            forward(&[1, 4, 5, 6], &[2, 3, 2, 9, 9]),
            "output size: axis=0, the kernel's extent 9 exceeds the padded input 5",
        ),
        (forward(&[1, 4, 5, 6], &[2, 3, 3, 3, 3]), "input: channels=4, the filter needs 6"),
        (
            grouped().with("w", Random(5).tensor(f64::datum_type(), &[2, 2, 3, 3, 3])),
            "filter: datum_type=F64, the input's is F32",
        ),
        (
            grouped().declare("w", &["G", "2", "3", "3", "3"]).ints("strides", &[1, 0]),
            "strides: strides=[1, 0], every value must be at least 1",
        ),
        (
            grouped().declare("w", &["4294967296", "4294967296", "3", "3", "3"]),
            "filter: shape=[4294967296, 4294967296, 3, 3, 3], the number of channels overflows",
        ),
        // The requested size, as a constant.
        (grouped().constant("s", integers(&[9])), "output_shape: output_shape=[9], 2 values are needed"),
        (grouped().constant("s", integers(&[9, 9, 9])), "output_shape: output_shape=[9, 9, 9], 2 values are needed"),
        (grouped().constant("s", integers(&[])), "output_shape: output_shape=[], 2 values are needed"),
        (
            grouped().constant("s", integers(&[0, 9])),
            "output_shape: output_shape=[0, 9], every value must be within 1..=2147483647",
        ),
        (
            grouped().constant("s", integers(&[9, -1])),
            "output_shape: output_shape=[9, -1], every value must be within 1..=2147483647",
        ),
        (
            grouped().constant("s", integers(&[MAX, 9])),
            "output_shape: output_shape=[9223372036854775807, 9], every value must be within 1..=2147483647",
        ),
        (
            grouped().constant("s", integers(&[1 << 30, 1 << 30])),
            "output size: shape=[1, 6, 1073741824, 1073741824], it must hold at most 1099511627776 elements",
        ),
        (
            grouped().constant("s", integers(&[1 << 16, 1 << 16])),
            "output size: shape=[1, 6, 65536, 65536], its 103079215104 bytes are more than the limit of 17179869184",
        ),
        (grouped().constant("s", tensor1(&[9f32, 9.])), "output_shape: datum_type=F32, an integer type is needed"),
        (grouped().constant("s", tensor0(9i64)), "output_shape: rank=0, a vector is needed"),
        (grouped().constant("s", tensor2(&[[9i64, 9]])), "output_shape: rank=2, a vector is needed"),
    ];
    check("operands of openvino", &rows);
}
