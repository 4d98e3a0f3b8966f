//! Errors that only a run reveals: tensors that contradict the model or each other.

use crate::common::random::Random;
use crate::table::{Layer, Row, check};
use tract_core::internal::*;

const MAX: i64 = i64::MAX;

fn f32s(shape: &[usize]) -> Tensor {
    Random(8).tensor(f32::datum_type(), shape)
}

fn open() -> Layer {
    Layer::new("", "ConvTranspose", &[1, 4, 5, 6], &[4, 3, 3, 2]).declare("x", &["N", "4", "H", "W"])
}

fn sized(size: Tensor) -> Layer {
    let layer = Layer::new("", "GroupConvolutionBackpropData", &[1, 4, 5, 6], &[2, 2, 3, 3, 3]);
    layer.declare("x", &["N", "4", "H", "W"]).input("s", size)
}

#[test]
fn tensors_that_contradict_the_model() {
    let rows: Vec<Row> = vec![
        (open().with("x", f32s(&[1, 3, 5, 6])), "Clashing resolution for expression…"),
        (open().with("x", f32s(&[1, 4, 5])), "Input at index 0 has incorrect dtype or shape…"),
        (open().with("x", f32s(&[1, 4, 5, 6, 7])), "Input at index 0 has incorrect dtype or shape…"),
        (
            open().with("x", f32s(&[1, 4, 0, 6])).ints("strides", &[4, 1]),
            "output size: size=-1 on spatial axis 0 for input size 0 and pads 0 and 0, must be within 0..=2147483647",
        ),
        (
            open().with("x", f32s(&[1, 4, 1, 1])).ints("pads", &[2, 1, 2, 1]),
            "output size: size=-1 on spatial axis 0 for input size 1 and pads 2 and 2, must be within 1..=2147483647",
        ),
        (
            open().with("x", f32s(&[0, 4, 1, 1])).ints("pads", &[2, 1, 2, 1]),
            "output size: size=-1 on spatial axis 0 for input size 1 and pads 2 and 2, must be within 1..=2147483647",
        ),
        // A symbol hides a channel number that does not fit.
        (
            open().declare("x", &["N", "C", "H", "W"]).with("x", f32s(&[1, 3, 5, 6])),
            "Clashing resolution for expression…",
        ),
        (
            open().input("b", f32s(&[1])).declare("b", &["M"]),
            "bias: shape=[1], one value per output channel, 3 of them, is needed",
        ),
        (
            open().input("b", f32s(&[0])).declare("b", &["M"]),
            "bias: shape=[0], one value per output channel, 3 of them, is needed",
        ),
        (
            open().input("b", f32s(&[4])).declare("b", &["M"]),
            "bias: shape=[4], one value per output channel, 3 of them, is needed",
        ),
        (
            open().declare("w", &["4", "3", "3", "2"]).with("w", f32s(&[4, 3, 2, 2])),
            "Clashing resolution for expression…",
        ),
        (
            open().declare("w", &["4", "3", "3", "2"]).input("b", f32s(&[4])).declare("b", &["M"]),
            "bias: shape=[4], one value per output channel, 3 of them, is needed",
        ),
        (
            open().with("x", f32s(&[0, 4, 5, 6])).input("b", f32s(&[4])).declare("b", &["M"]),
            "bias: shape=[4], one value per output channel, 3 of them, is needed",
        ),
        // Large strides and small tensors.
        (
            open().ints("strides", &[1 << 30, 1 << 30]),
            "output size: size=4294967299 on spatial axis 0 for input size 5 and pads 0 and 0, must be within 1..=2147483647",
        ),
        (
            open().ints("strides", &[1 << 15, 1 << 15]),
            "output size: shape=[1, 3, 131075, 163842], its 257707081800 bytes are more than the limit of 17179869184",
        ),
    ];
    check("tensors that contradict the model", &rows);
}

#[test]
fn sizes_asked_for_at_run_time() {
    let rows: Vec<Row> = vec![
        (sized(tensor1(&[9i64])), "output_shape: shape=1, 2 values are needed, one per spatial axis"),
        (
            sized(tensor1(&[9i64])).declare("s", &["R"]),
            "output_shape: output_shape=[9], 2 values are needed, one per spatial axis",
        ),
        (
            sized(tensor1::<i64>(&[])).declare("s", &["R"]),
            "output_shape: output_shape=[], 2 values are needed, one per spatial axis",
        ),
        (sized(tensor1(&[9i64, 9, 9])), "output_shape: shape=3, 2 values are needed, one per spatial axis"),
        (sized(tensor1(&[0i64, 9])), "output_shape: output_shape=[0, 9], 2 values within 1..=2147483647 are needed"),
        (sized(tensor1(&[9i64, -1])), "output_shape: output_shape=[9, -1], 2 values within 1..=2147483647 are needed"),
        (
            sized(tensor1(&[i64::MIN, 9])),
            "output_shape: output_shape=[-9223372036854775808, 9], 2 values within 1..=2147483647 are needed",
        ),
        (
            sized(tensor1(&[MAX, 9])),
            "output_shape: output_shape=[9223372036854775807, 9], 2 values within 1..=2147483647 are needed",
        ),
        (
            sized(tensor1(&[1i64 << 31, 9])),
            "output_shape: output_shape=[2147483648, 9], 2 values within 1..=2147483647 are needed",
        ),
        (
            sized(tensor1(&[u64::MAX, 9])),
            "output_shape: output_shape=[-1, 9], 2 values within 1..=2147483647 are needed",
        ),
        (
            sized(tensor1(&[(1i64 << 31) - 1, (1 << 31) - 1])),
            "output size: shape=[1, 6, 2147483647, 2147483647], it must hold at most 1099511627776 elements",
        ),
        (
            sized(tensor1(&[1i64 << 16, 1 << 16])),
            "output size: shape=[1, 6, 65536, 65536], its 103079215104 bytes are more than the limit of 17179869184",
        ),
        (sized(tensor1(&[-1i8, 9])), "output_shape: output_shape=[-1, 9], 2 values within 1..=2147483647 are needed"),
        (sized(tensor1(&[9f32, 9.])), "output_shape: datum_type=F32, an integer type is needed"),
        (sized(tensor2(&[[9i64, 9]])), "output_shape: rank=2, a vector is needed"),
        (sized(tensor0(9i64)), "output_shape: rank=0, a vector is needed"),
    ];
    check("sizes asked for at run time", &rows);
}
