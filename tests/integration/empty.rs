//! Layers with an empty output: no output channels, or an empty sequence that stays empty.

use crate::common::probe::Probe;
use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, load, load_stock, run};
use tract_core::internal::*;

const F32: DatumType = DatumType::F32;

/// Checks at every stage that the output has this shape.
#[track_caller]
fn gives_shape(probe: &Probe, shape: &[usize]) {
    for stage in Stage::ALL {
        let got = guarded(|| run(stage.of(load(&probe.proto())?)?, &probe.inputs()));
        let got = got.unwrap_or_else(|e| panic!("{stage:?}, {:?}: {e}", probe.node));
        assert_eq!((got[0].shape(), got[0].datum_type()), (shape, probe.x.datum_type()), "{stage:?}, {:?}", probe.node);
    }
}

/// Checks it with the input's spatial size known and unknown, and with constant weights and
/// run-time ones.
#[track_caller]
fn gives_shape_however_declared(probe: Probe, shape: &[usize]) {
    let open: Vec<Dim> = (0..probe.x.rank())
        .map(|axis| if axis == 1 { Dim::Size(probe.x.shape()[1]) } else { Dim::from(["N", "", "L", "M"][axis]) })
        .collect();
    gives_shape(&probe, shape);
    gives_shape(&probe.clone().run_time_weights(), shape);
    gives_shape(&probe.clone().dims(&open), shape);
    gives_shape(&probe.dims(&open).run_time_weights(), shape);
}

#[test]
fn no_output_channels() {
    gives_shape_however_declared(Probe::conv(F32, &[1, 3, 5], &[0, 3, 3]), &[1, 0, 3]);
    gives_shape_however_declared(Probe::conv(F32, &[2, 3, 5, 5], &[0, 3, 3, 2]).bias(0), &[2, 0, 3, 4]);
    gives_shape_however_declared(Probe::conv(F32, &[1, 4, 5], &[0, 2, 3]).group(2), &[1, 0, 3]);
    gives_shape_however_declared(Probe::new(&[1, 3, 5], &[3, 0, 3]), &[1, 0, 7]);
    gives_shape_however_declared(Probe::new(&[2, 3, 5, 4], &[3, 0, 2, 2]).bias(0), &[2, 0, 6, 5]);
    gives_shape_however_declared(Probe::new(&[1, 4, 5], &[4, 0, 3]).group(2).ints("strides", &[2]), &[1, 0, 11]);
    gives_shape_however_declared(Probe::conv(DatumType::F16, &[1, 3, 5], &[0, 3, 1]), &[1, 0, 5]);
}

/// Stock tract gives the same.
#[test]
fn stock_tract_gives_no_output_channels_either() -> TractResult<()> {
    let probe = Probe::conv(F32, &[1, 3, 5, 5], &[0, 3, 3, 3]);
    let stock = run(load_stock(&probe.proto())?, &probe.inputs())?;
    assert_eq!(stock[0].shape(), [1, 0, 3, 3]);
    gives_shape(&probe, &[1, 0, 3, 3]);
    Ok(())
}

/// Neighbouring steps are folded as for any other layer.
#[test]
fn steps_around_no_channels() -> TractResult<()> {
    let proto = Model::opset(13)
        .input("x", F32, &[Dim::from("N"), Dim::Size(3), Dim::from("L")])
        .initializer("w", &Random(3).tensor(F32, &[0, 3, 3]))
        .initializer("b", &Tensor::zero::<f32>(&[0])?)
        .initializer("scale", &Tensor::zero::<f32>(&[1, 0, 1])?)
        .node(Node::new("Relu").named("before").inputs(&["x"]).output("a"))
        .node(Node::new("Conv").named("none").inputs(&["a", "w", "b"]).output("c"))
        .node(Node::new("Mul").named("scaled").inputs(&["c", "scale"]).output("d"))
        .node(Node::new("Relu").named("behind").inputs(&["d"]).output("y"))
        .output("y")
        .build();
    for stage in Stage::ALL {
        let y = run(stage.of(load(&proto)?)?, &[Random(4).tensor(F32, &[2, 3, 9])])?;
        assert_eq!(y[0].shape(), [2, 0, 7], "{stage:?}");
    }
    Ok(())
}

#[test]
fn an_empty_sequence_stays_empty() {
    let conv = |k: usize| Probe::conv(F32, &[1, 3, 0], &[2, 3, k]);
    gives_shape_however_declared(conv(1), &[1, 2, 0]);
    gives_shape_however_declared(conv(1).bias(2), &[1, 2, 0]);
    gives_shape_however_declared(conv(3).ints("pads", &[1, 1]), &[1, 2, 0]);
    gives_shape_however_declared(conv(1).ints("strides", &[2]), &[1, 2, 0]);
    gives_shape_however_declared(conv(3).string("auto_pad", "SAME_UPPER"), &[1, 2, 0]);
    gives_shape_however_declared(conv(2).string("auto_pad", "SAME_LOWER").ints("strides", &[3]), &[1, 2, 0]);
    // Padding alone makes room for a position.
    gives_shape_however_declared(conv(2).ints("pads", &[1, 1]), &[1, 2, 1]);
    let transposed = |k: usize, s: i64| Probe::new(&[1, 3, 0], &[3, 2, k]).ints("strides", &[s]);
    gives_shape_however_declared(transposed(1, 1), &[1, 2, 0]);
    gives_shape_however_declared(transposed(2, 2).bias(2), &[1, 2, 0]);
    gives_shape_however_declared(transposed(3, 2), &[1, 2, 1]);
    gives_shape_however_declared(transposed(3, 2).string("auto_pad", "SAME_UPPER"), &[1, 2, 0]);
    gives_shape_however_declared(transposed(3, 1).ints("pads", &[1, 1]), &[1, 2, 0]);
}

#[test]
fn sizes_below_zero_and_empty_ones_of_full_inputs_are_refused() {
    let refused = |probe: Probe, words: &str| probe.refused(&[words]);
    refused(Probe::conv(F32, &[1, 3, 0], &[2, 3, 3]), "the kernel's extent 3 exceeds the padded input 0");
    refused(Probe::conv(F32, &[1, 3, 2], &[2, 3, 3]), "the kernel's extent 3 exceeds the padded input 2");
    let transposed = Probe::new(&[1, 3, 0], &[3, 2, 1]).ints("strides", &[2]);
    refused(transposed, "size=-1 on spatial axis 0 for input size 0");
    refused(Probe::new(&[1, 3, 1], &[3, 2, 2]).ints("pads", &[1, 1]), "size=0 on spatial axis 0 for input size 1");
}
