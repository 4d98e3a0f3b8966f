//! Where addresses have 32 bits: sizes that 64 bits can count and 32 can't are refused, and others
//! compute what they compute elsewhere.
#![cfg(target_pointer_width = "32")]

mod common;

use common::probe::{Probe, axis};
use common::run::{guarded, load, refused};
use tract_core::internal::*;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side};
use tract_deconv::{Plan, PlanOptions};
use tract_onnx::pb::tensor_shape_proto::dimension;
use tract_onnx::pb::type_proto::Value;

/// 2^28, the largest size of an axis and the most elements of a tensor.
const MOST: i64 = 1 << 28;

/// Sizes whose lower 32 bits are legal sizes are not taken for these.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    let probe = || Probe::new(&[1, 2, 4], &[2, 3, 3]);
    let low_bits = (1i64 << 32) + 2;
    for (name, shown) in [("strides", "strides"), ("dilations", "dilations")] {
        for (value, rule) in [
            (low_bits, "every value must be at most 268435456"),
            (i64::MAX, "every value must be at most 268435456"),
            (MOST + 1, "every value must be at most 268435456"),
            (-low_bits, "every value must be at least 1"),
        ] {
            probe().ints(name, &[value]).refused(&[&format!("{shown}: {shown}=[{value}], {rule}")]);
        }
    }
    let pads = format!("pads begin: pads=[{low_bits}], every value must be within -268435456..=268435456");
    probe().ints("pads", &[low_bits, 0]).refused(&[&pads]);
    for (value, rule) in [(low_bits, "at most 268435456"), (MOST + 1, "within 1..=268435456")] {
        let words = format!("output_shape: output_shape=[{value}], every value must be {rule}");
        probe().ints("output_shape", &[value]).refused(&[&words]);
    }
}

#[test]
fn an_input_that_can_not_be_addressed_is_refused() {
    let mut proto = Probe::new(&[1, 2, 4], &[2, 3, 3]).proto();
    let input = &mut proto.graph.as_mut().expect("a graph").input[0];
    let Some(Value::TensorType(tensor)) = input.r#type.as_mut().and_then(|of| of.value.as_mut()) else {
        panic!("no tensor")
    };
    let dims = &mut tensor.shape.as_mut().expect("a shape").dim;
    dims[2].value = Some(dimension::Value::DimValue((1 << 32) + 4));
    let outcome = guarded(|| load(&proto)?.into_optimized());
    let words = "input size: shape=[1, 2, 4294967300], it must hold at most 268435456 elements";
    refused(outcome, &[words]).expect("an error");
}

/// The tensor has few enough elements, and more bytes than one allocation can have.
#[test]
fn an_output_of_more_bytes_than_an_allocation_is_refused() -> TractResult<()> {
    let spec = DeconvSpec {
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::Iox,
        in_channels: 1,
        out_channels: 1,
        group: 1,
        kernel: tvec!(3),
        strides: tvec!(1),
        dilations: tvec!(1),
        padding: Padding::OutputShape { shape: OutputShape::Dims(tvec!(MOST.to_dim())), extra: Side::End },
        output_padding: tvec!(0),
    };
    let plan = |dt: DatumType| Plan::new(&spec, &[1, 1, 4], None, dt, &PlanOptions::default());
    plan(f32::datum_type())?;
    let error = plan(f64::datum_type()).expect_err("2 GiB").to_string();
    let words = "output size: shape=[1, 1, 268435456], its 2147483648 bytes are more than the limit of 2147483647";
    ensure!(error == words, "{error}");
    let beyond = DeconvSpec { out_channels: 2, ..spec.clone() };
    let error = Plan::new(&beyond, &[1, 1, 4], None, f32::datum_type(), &PlanOptions::default());
    let error = error.expect_err("2^29 elements").to_string();
    let words = "output size: shape=[1, 2, 268435456], it must hold at most 268435456 elements";
    ensure!(error == words, "{error}");
    Ok(())
}

/// Below the limits, the largest attributes compute.
#[test]
fn the_largest_attributes_compute() {
    // One position, so that the stride does not matter.
    Probe::new(&[1, 2, 1], &[2, 3, 3]).ints("strides", &[MOST]).bias(3).gives(&[axis(MOST as usize, 1, 0, 3)]);
}
