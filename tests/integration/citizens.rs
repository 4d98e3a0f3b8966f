//! Models with difficult wiring.
//!
//! They have values with two readers, shared weights, bodies of conditions and loops, and operands
//! behind casts, quantisation and moved axes. tract itself does not support ONNX Loop.

use crate::common::oracle::FromTensor;
use crate::common::probe::{Probe, axis};
use crate::common::proto::{Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use tract_core::internal::*;
use tract_deconv::{GroupedDeconv, OptGroupedDeconv, explain};
use tract_onnx::pb::ModelProto;

/// The shape of the data.
const DATA: [usize; 4] = [2, 4, 5, 3];

/// Returns a layer from 4 to 3 channels with strides 2 and 1.
fn probe() -> Probe {
    Probe::new(&DATA, &[4, 3, 3, 2]).ints("strides", &[2, 1]).ints("pads", &[1, 0, 0, 1])
}

/// Returns the axes of [`probe`], with F = 2·4 + 3 and 2 + 2.
fn rules() -> [crate::common::oracle::Rule; 2] {
    [axis(2, 1, 1, 10), axis(1, 1, 0, 3)]
}

fn packed(model: &TypedModel) -> Vec<&OptGroupedDeconv> {
    model.nodes.iter().filter_map(|node| node.op_as::<OptGroupedDeconv>()).collect()
}

/// Checks that the first output is the probe's result at every stage, and that an optimised model
/// has a packed filter.
fn gives(what: &str, proto: &ModelProto, inputs: &[Tensor], probe: &Probe) -> TractResult<()> {
    let expected = probe.expected(&rules());
    for stage in Stage::ALL {
        let model = stage.of(load(proto)?).context(what.to_string())?;
        if stage == Stage::Optimised {
            ensure!(packed(&model).len() == 1, "{what}: the filter is not packed: {model}");
            ensure!(!model.nodes.iter().any(|node| node.op_is::<GroupedDeconv>()), "{what}: {model}");
        }
        let got = run(model, inputs).context(what.to_string())?;
        expected.check(&got[0]).map_err(|e| format_err!("{what}, {stage:?}: {e}"))?;
    }
    Ok(())
}

#[test]
fn a_result_that_is_an_output_and_is_read() -> TractResult<()> {
    let probe = probe();
    let expected = probe.expected(&rules());
    let factor = Random(3).tensor(DatumType::F32, &[1, 3, 1, 1]);
    let square = Random(4).tensor(DatumType::F32, &[3, 3, 2, 2]);
    let followers = [
        Node::new("Relu").inputs(&["y"]),
        Node::new("Mul").inputs(&["y", "factor"]),
        Node::new("Add").inputs(&["factor", "y"]),
        Node::new("Sigmoid").inputs(&["y"]),
        Node::new("ConvTranspose").named("second").inputs(&["y", "square"]),
    ];
    for follower in followers {
        let proto = Model::opset(13)
            .input("x", DatumType::F32, &sizes(&DATA))
            .initializer("w", &probe.w)
            .initializer("factor", &factor)
            .initializer("square", &square)
            .node(probe.node.clone())
            .node(follower.clone().output("z"))
            .output("y")
            .output("z")
            .build();
        // The following node alone.
        let alone = Model::opset(13)
            .input("y", DatumType::F32, &sizes(&[2, 3, 10, 3]))
            .initializer("factor", &factor)
            .initializer("square", &square)
            .node(follower.clone().output("z"))
            .output("z")
            .build();
        for stage in Stage::ALL {
            let got = run(stage.of(load(&proto)?)?, std::slice::from_ref(&probe.x))?;
            expected.check(&got[0]).map_err(|e| format_err!("{stage:?}, before {follower:?}: {e}"))?;
            let want = run(load(&alone)?, &[got[0].as_ref().clone()])?;
            want[0].close_enough(&got[1], true).with_context(|| format!("{stage:?}: {follower:?}"))?;
        }
    }
    Ok(())
}

/// Nodes with the same weights share one packed filter, except for a node that folds a following
/// step into its weights.
#[test]
fn nodes_that_share_weights() -> TractResult<()> {
    let probe = probe();
    let other = probe.clone().with_x(&DATA);
    let grouped = probe.w.clone().into_shape(&[1, 4, 3, 3, 2])?;
    let openvino = |x: &str, name: &str| {
        let node = Node::new("GroupConvolutionBackpropData").named(name).inputs(&[x, "grouped"]).output(name);
        let node = node.ints("strides", &[2, 1]).ints("dilations", &[1, 1]);
        node.ints("pads_begin", &[1, 0]).ints("pads_end", &[0, 1])
    };
    let onnx = |x: &str, name: &str| probe.node.clone().named(name).inputs(&[x, "w"]).output(name);
    for (dialect, nodes) in [
        ("onnx", [onnx("x", "a"), onnx("other", "b"), onnx("third", "c")]),
        ("openvino", [openvino("x", "a"), openvino("other", "b"), openvino("third", "c")]),
    ] {
        let mut model = Model::opset(13)
            .input("x", DatumType::F32, &sizes(&DATA))
            .input("other", DatumType::F32, &sizes(&DATA))
            .input("third", DatumType::F32, &sizes(&DATA))
            .initializer("w", &probe.w)
            .initializer("grouped", &grouped)
            .initializer("two", &tensor0(2f32));
        for node in nodes {
            model = model.node(node);
        }
        let model = model.node(Node::new("Mul").inputs(&["c", "two"]).output("doubled"));
        let proto = model.output("a").output("b").output("doubled").build();
        let inputs = [probe.x.clone(), other.x.clone(), probe.x.clone()];
        for stage in Stage::ALL {
            let model = stage.of(load(&proto)?)?;
            if stage == Stage::Optimised {
                let named = |name: &str| -> TractResult<&OptGroupedDeconv> {
                    let node = model.nodes.iter().find(|node| node.name == name);
                    node.and_then(|node| node.op_as()).with_context(|| format!("{dialect}: no {name} in {model}"))
                };
                let (a, b, c) = (named("a")?, named("b")?, named("c")?);
                ensure!(a.shares_filter_with(b), "{dialect}: the filter is packed twice");
                ensure!(!a.shares_filter_with(c), "{dialect}: the factor would be in a filter of other nodes");
            }
            let got = run(model, &inputs)?;
            let check = |probe: &Probe, got: &Tensor| probe.expected(&rules()).check(got);
            let halved = got[2].to_plain_array_view::<f32>()?.mapv(|v| v / 2.0).into_tensor();
            for (probe, got) in [(&probe, &*got[0]), (&other, &got[1]), (&probe, &halved)] {
                check(probe, got).map_err(|e| format_err!("{dialect}, {stage:?}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// The weights belong to the body or to the enclosing graph.
#[test]
fn in_the_branches_of_a_condition() -> TractResult<()> {
    let probe = probe();
    let minus = probe.w.to_plain_array_view::<f32>()?.mapv(|v| -v).into_tensor();
    for own_weights in [true, false] {
        let branch = |name: &str, w: &Tensor| {
            let (node, weights) = (probe.node.clone().named(name).output(name), format!("{name}.w"));
            let body = Model::opset(13).output(name);
            if own_weights {
                body.initializer(&weights, w).node(node.inputs(&["x", &weights]))
            } else {
                body.node(node.inputs(&["x", &weights]))
            }
        };
        let condition = Node::new("If").named("either").inputs(&["c"]).output("y");
        let condition = condition.graph("then_branch", branch("plus", &probe.w));
        let condition = condition.graph("else_branch", branch("minus", &minus));
        let mut model = Model::opset(13).input("c", DatumType::Bool, &[]);
        model = model.input("x", DatumType::F32, &sizes(&DATA));
        if !own_weights {
            model = model.initializer("plus.w", &probe.w).initializer("minus.w", &minus);
        }
        let proto = model.node(condition).output("y").build();
        for stage in Stage::ALL {
            let model = stage.of(load(&proto)?)?;
            let names: Vec<String> =
                explain(&model, &SymbolValues::default())?.into_iter().map(|explanation| explanation.name).collect();
            assert_eq!(names, ["either/then/plus", "either/else/minus"], "{stage:?}");
            for plus in [true, false] {
                let got = run(model.clone(), &[tensor0(plus), probe.x.clone()])?.remove(0);
                let sign = if plus { 1.0 } else { -1.0 };
                let got = got.to_plain_array_view::<f32>()?.mapv(|v| sign * v).into_tensor();
                let expected = probe.expected(&rules());
                expected.check(&got).map_err(|e| format_err!("{stage:?}, {plus}, own weights {own_weights}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// Each turn takes one slice and adds the result to a carried sum.
#[test]
fn in_the_body_of_a_scan() -> TractResult<()> {
    const TURNS: usize = 3;
    let probe = probe();
    let turns: Vec<Probe> = (0..TURNS as u64)
        .map(|turn| Probe { x: Random(turn).tensor(DatumType::F32, &DATA), ..probe.clone() })
        .collect();
    let xs = turns.iter().map(|probe| probe.x.clone().into_shape(&[1, 2, 4, 5, 3])).collect::<TractResult<Vec<_>>>()?;
    let xs = Tensor::stack_tensors(0, &xs)?;
    let zeros = Tensor::zero::<f32>(&[2, 3, 10, 3])?;
    for own_weights in [true, false] {
        let mut body = Model::opset(13)
            .input("sum", DatumType::F32, &sizes(zeros.shape()))
            .input("x", DatumType::F32, &sizes(&DATA))
            .node(probe.node.clone().named("up").inputs(&["x", "w"]).output("y"))
            .node(Node::new("Add").inputs(&["sum", "y"]).output("next"))
            .node(Node::new("Identity").inputs(&["y"]).output("each"))
            .output("next")
            .output("each");
        let mut model = Model::opset(13).input("start", DatumType::F32, &sizes(zeros.shape())).input(
            "xs",
            DatumType::F32,
            &sizes(xs.shape()),
        );
        if own_weights {
            body = body.initializer("w", &probe.w);
        } else {
            model = model.initializer("w", &probe.w);
        }
        let scan = Node::new("Scan").named("scan").inputs(&["start", "xs"]).outputs(&["total", "ys"]);
        let proto = model.node(scan.graph("body", body).int("num_scan_inputs", 1)).output("ys").output("total").build();
        for stage in Stage::ALL {
            let model = stage.of(load(&proto)?)?;
            let explained = explain(&model, &SymbolValues::default())?;
            ensure!(explained.len() == 1 && explained[0].concrete.is_some(), "{stage:?}: {model}");
            let got = run(model, &[zeros.clone(), xs.clone()])?;
            let mut sum = f64::from_tensor(&zeros);
            for (turn, probe) in turns.iter().enumerate() {
                let y = got[0].slice(0, turn, turn + 1)?.into_shape(&[2, 3, 10, 3])?;
                let what = format!("{stage:?}, turn {turn}, own weights {own_weights}");
                probe.expected(&rules()).check(&y).map_err(|e| format_err!("{what}: {e}"))?;
                sum += &f64::from_tensor(&y);
            }
            got[1].close_enough(&Tensor::from(sum.mapv(|v| v as f32)), true)?;
        }
    }
    Ok(())
}

/// A filter of half floats and data of bytes.
#[test]
fn behind_casts() -> TractResult<()> {
    let mut probe = probe();
    let half = probe.w.cast_to::<f16>()?.into_owned();
    probe.w = half.cast_to::<f32>()?.into_owned();
    let bytes = Random(8).tensor(DatumType::U8, &DATA);
    probe.x = bytes.cast_to::<f32>()?.into_owned();
    let proto = Model::opset(13)
        .input("bytes", DatumType::U8, &sizes(&DATA))
        .initializer("half", &half)
        .node(Node::new("Cast").named("data").int("to", 1).inputs(&["bytes"]).output("x"))
        .node(Node::new("Cast").named("filter").int("to", 1).inputs(&["half"]).output("w"))
        .node(probe.node.clone())
        .output("y")
        .build();
    gives("casts", &proto, &[bytes], &probe)
}

/// A filter of bytes with one scale or with one per output channel. The data are floats.
#[test]
fn behind_quantisation() -> TractResult<()> {
    let bytes = Random(9).small_integers(DatumType::I8, &[4, 3, 3, 2]);
    let data = Random(10).small_integers(DatumType::F32, &DATA);
    for per_channel in [false, true] {
        let scales = if per_channel { tensor1(&[0.5f32, 0.25, 2.0]) } else { tensor0(0.5f32) };
        let zero_points = if per_channel { tensor1(&[1i8, 0, -2]) } else { tensor0(1i8) };
        let (scale, zero) = (f64::from_tensor(&scales), f64::from_tensor(&zero_points));
        let mut wide = f64::from_tensor(&bytes);
        for ((_, channel, _, _), value) in
            wide.view_mut().into_dimensionality::<tract_ndarray::Ix4>()?.indexed_iter_mut()
        {
            let at = |list: &tract_ndarray::ArrayD<f64>| *list.iter().nth(channel % list.len()).expect("a value");
            *value = (*value - at(&zero)) * at(&scale);
        }
        let filter: Tensor = wide.mapv(|v| v as f32).into();
        let probe = Probe { x: data.clone(), w: filter, ..probe() };
        let proto = Model::opset(13)
            .input("x", DatumType::F32, &sizes(&DATA))
            .initializer("bytes", &bytes)
            .initializer("scale", &scales)
            .initializer("zero", &zero_points)
            .node(Node::new("DequantizeLinear").named("w").inputs(&["bytes", "scale", "zero"]).output("w"))
            .node(probe.node.clone())
            .output("y")
            .build();
        gives(&format!("a scale per channel: {per_channel}"), &proto, std::slice::from_ref(&data), &probe)?;
    }
    Ok(())
}

#[test]
fn behind_moved_axes_of_constants() -> TractResult<()> {
    let probe = probe();
    let w = probe.w.to_plain_array_view::<f32>()?;
    // [Co, K0, K1, Ci], the layout of some exporters.
    let channels_last: Tensor = w.view().permuted_axes(vec![1, 2, 3, 0]).as_standard_layout().into_owned().into();
    let flat = probe.w.clone().into_shape(&[4, 18])?;
    let transposed = Node::new("Transpose").named("w").ints("perm", &[3, 0, 1, 2]).inputs(&["stored"]).output("w");
    let reshaped = Node::new("Reshape").named("w").inputs(&["stored", "shape"]).output("w");
    for (what, stored, nodes) in [
        ("Transpose", &channels_last, vec![transposed]),
        ("Reshape", &flat, vec![reshaped]),
        (
            "Transpose and Reshape",
            &probe.w.clone().into_shape(&[4, 3, 6])?.permute_axes(&[1, 0, 2])?,
            vec![
                Node::new("Transpose").named("t").ints("perm", &[1, 0, 2]).inputs(&["stored"]).output("t"),
                Node::new("Reshape").named("w").inputs(&["t", "shape"]).output("w"),
            ],
        ),
    ] {
        let mut model = Model::opset(13)
            .input("x", DatumType::F32, &sizes(&DATA))
            .initializer("stored", stored)
            .initializer("shape", &tensor1(&[4i64, 3, 3, 2]));
        for node in nodes {
            model = model.node(node);
        }
        let proto = model.node(probe.node.clone()).output("y").build();
        gives(what, &proto, std::slice::from_ref(&probe.x), &probe)?;
    }
    // With an axis of groups.
    let node = Node::new("GroupConvolutionBackpropData").named("up").inputs(&["x", "w"]).output("y");
    let node = node.ints("strides", &[2, 1]).ints("dilations", &[1, 1]);
    let node = node.ints("pads_begin", &[1, 0]).ints("pads_end", &[0, 1]);
    let proto = Model::opset(13)
        .input("x", DatumType::F32, &sizes(&DATA))
        .initializer("stored", &probe.w)
        .initializer("shape", &tensor1(&[1i64, 4, 3, 3, 2]))
        .node(Node::new("Reshape").named("w").inputs(&["stored", "shape"]).output("w"))
        .node(node)
        .output("y")
        .build();
    gives("Reshape to groups", &proto, std::slice::from_ref(&probe.x), &probe)
}
