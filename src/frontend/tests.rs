//! Nodes as they stand in model files, run or refused.

use crate::op::{GroupedDeconv, OptGroupedDeconv};
use crate::testing::*;
use tract_hir::internal::*;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, NodeProto, TensorProto, ValueInfoProto};

#[test]
fn a_node_runs() -> TractResult<()> {
    // x = 0 1 2, w = 0 1 2
    assert_eq!(run(&one(&[]), &[x3()])?, tensor3(&[[[0f32, 0., 1., 4., 4.]]]));
    assert_eq!(run(&one(&[ints("pads", &[1, 2])]), &[x3()])?, tensor3(&[[[0f32, 1.]]]));
    assert_eq!(run(&one(&[ints("strides", &[2])]), &[x3()])?, tensor3(&[[[0f32, 0., 0., 1., 2., 2., 4.]]]));
    Ok(())
}

#[test]
fn output_shape_and_auto_pad_choose_the_side() -> TractResult<()> {
    // F = 5, one cell to crop
    let shape = ints("output_shape", &[4]);
    assert_eq!(run(&one(&[shape.clone()]), &[x3()])?, tensor3(&[[[0f32, 1., 4., 4.]]]));
    let upper = [shape.clone(), text("auto_pad", "SAME_UPPER")];
    assert_eq!(run(&one(&upper), &[x3()])?, tensor3(&[[[0f32, 0., 1., 4.]]]));
    let larger = [ints("output_shape", &[7])];
    assert_eq!(run(&one(&larger), &[x3()])?, tensor3(&[[[0f32, 0., 1., 4., 4., 0., 0.]]]));
    Ok(())
}

#[test]
fn symbolic_dims_with_output_shape() -> TractResult<()> {
    let proto = model(
        vec![info("x", DataType::Float, &["N", "1", "L"])],
        vec![counting("w", &[1, 1, 3])],
        vec![node("", "ConvTranspose", &["x", "w"], &[ints("output_shape", &[4])])],
    );
    assert_eq!(run(&proto, &[x3()])?, tensor3(&[[[0f32, 1., 4., 4.]]]));
    let fact = format!("{:?}", load(&proto)?.output_fact(0)?);
    assert!(fact.starts_with("N,1,4,F32"), "{fact}");
    Ok(())
}

#[test]
fn bias_of_the_empty_name_is_none() -> TractResult<()> {
    let mut proto = one(&[]);
    proto.graph.as_mut().unwrap().node[0].input.push("".into());
    assert_eq!(run(&proto, &[x3()])?, tensor3(&[[[0f32, 0., 1., 4., 4.]]]));
    Ok(())
}

#[test]
fn constant_weights_are_packed_and_not_kept() -> TractResult<()> {
    let model = load(&one(&[]))?.into_optimized()?;
    assert!(model.nodes().iter().any(|n| n.op_is::<OptGroupedDeconv>()));
    assert!(model.nodes().iter().all(|n| !n.op_is::<tract_core::ops::konst::Const>()), "{model}");
    Ok(())
}

#[test]
fn weights_and_bias_of_other_nodes() -> TractResult<()> {
    let proto = model(
        vec![
            info("x", DataType::Float, &["1", "1", "3"]),
            info("w", DataType::Float, &["1", "2", "3"]),
            info("b", DataType::Float, &["2"]),
        ],
        vec![],
        vec![
            NodeProto { name: "neg".into(), output: vec!["v".into()], ..node("", "Neg", &["w"], &[]) },
            node("", "ConvTranspose", &["x", "v", "b"], &[]),
        ],
    );
    let weights = tensor3(&[[[0f32, -1., -2.], [1., 0., 0.]]]);
    let y = run(&proto, &[x3(), weights, tensor1(&[10f32, 20.])])?;
    assert_eq!(y, tensor3(&[[[10f32, 10., 11., 14., 14.], [20., 19., 18., 20., 20.]]]));
    let model = load(&proto)?.into_optimized()?;
    assert!(model.nodes().iter().any(|n| n.op_is::<GroupedDeconv>()));
    Ok(())
}

#[test]
fn nodes_that_share_an_initialiser_share_the_packed_filter() -> TractResult<()> {
    let mut proto = one(&[]);
    let graph = proto.graph.as_mut().unwrap();
    graph.node[0].output[0] = "z".into();
    let padded = node("", "ConvTranspose", &["z", "w"], &[ints("pads", &[1, 1])]);
    graph.node.push(NodeProto { name: "second".into(), ..padded });
    let model = load(&proto)?.into_optimized()?;
    let ops: Vec<_> = model.nodes().iter().filter_map(|n| n.op_as::<OptGroupedDeconv>()).collect();
    assert_eq!(ops.len(), 2);
    assert!(ops[0].shares_filter_with(ops[1]));
    Ok(())
}

#[test]
fn refused_attributes_are_named_with_value_and_rule() {
    let cases: [(&[AttributeProto], &str); 22] = [
        (&[ints("strides", &[0])], "strides: strides=[0], every value must be at least 1"),
        (&[ints("strides", &[1, 1])], "strides: strides=[1, 1], 1 values are needed, one per spatial axis"),
        (&[int("strides", 1)], "strides: type=int, list of ints is needed"),
        (&[text("strides", "1")], "strides: type=string, list of ints is needed"),
        (&[ints("strides", &[1]), ints("strides", &[1])], "attribute: name=strides, it is given more than once"),
        (&[ints("dilations", &[0])], "dilations: dilations=[0], every value must be at least 1"),
        (&[ints("dilations", &[i64::MAX])], "dilations: dilations=[9223372036854775807], every value must be at most"),
        (&[ints("pads", &[-1, 0])], "pads: pads=[-1, 0], every value must be at least 0"),
        (&[ints("pads", &[1])], "pads: pads=[1], two values per spatial axis are needed"),
        (&[ints("pads", &[i64::MAX, i64::MAX])], "pads=[9223372036854775807], a value is out of range"),
        (&[ints("pads", &[0, 0]), text("auto_pad", "VALID")], "pads: pads=[0, 0], they exclude auto_pad=VALID"),
        (&[ints("pads", &[0, 0, 0, 0])], "pads begin: pads=[0, 0], 1 values are needed"),
        (&[ints("pads", &[3, 3])], "output size: size=-1 on spatial axis 0"),
        (&[text("auto_pad", "same_upper")], "auto_pad: auto_pad=same_upper, it must be NOTSET,"),
        (&[ints("output_padding", &[1])], "output_padding: output_padding=[1], every value must be less than"),
        (&[ints("output_padding", &[-1])], "output_padding: output_padding=[-1], every value must be at least 0"),
        (&[ints("output_shape", &[1, 1, 4])], "output_shape: output_shape=[1, 1, 4], 1 values are needed"),
        (&[ints("output_shape", &[0])], "output_shape: output_shape=[0], every value must be at least 1"),
        (&[ints("kernel_shape", &[2])], "kernel_shape: kernel_shape=[2], the filter's is [3]"),
        (&[int("group", 0)], "group: group=0, it must be at least 1"),
        (&[int("group", 2)], "input channels: channels=1, must be a positive multiple of group=2"),
        (&[int("group", i64::MAX)], "input channels: channels=1, must be a positive multiple"),
    ];
    for (attributes, expected) in cases {
        let error = refusal(&one(attributes), &[x3()]);
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(error.contains("node"), "{error:?} does not name the node");
    }
}

#[test]
fn refused_inputs_are_named() {
    let with = |inputs: &[&str], x: ValueInfoProto, others: Vec<TensorProto>| {
        model(vec![x], others, vec![node("", "ConvTranspose", inputs, &[])])
    };
    let x = || info("x", DataType::Float, &["1", "2", "3"]);
    let w = || counting("w", &[2, 1, 3]);
    let i32s = TensorProto {
        data_type: DataType::Int32 as i32,
        int32_data: vec![0; 6],
        float_data: vec![],
        ..counting("w", &[2, 1, 3])
    };
    let cases = [
        (with(&["x"], x(), vec![]), "inputs: count=1, 2 to 3 are needed"),
        (with(&["x", ""], x(), vec![]), "inputs: filter=\"\", it can not be left out"),
        (with(&["x", "w"], x(), vec![counting("w", &[2, 1])]), "filter: rank=2, 3 is needed for an input of rank 3"),
        (with(&["x", "w"], x(), vec![counting("w", &[3, 1, 3])]), "input: channels=2, the filter needs 3"),
        (with(&["x", "w"], x(), vec![counting("w", &[2, 0, 3])]), "output channels: channels=0"),
        (with(&["x", "w"], x(), vec![counting("w", &[2, 1, 0])]), "kernel_shape: kernel_shape=[0]"),
        (with(&["x", "w"], x(), vec![i32s.clone()]), "filter: datum_type=I32, the input's is F32"),
        (with(&["x", "w"], info("x", DataType::Int32, &["1", "2", "3"]), vec![i32s]), "input: datum_type=I32"),
        (with(&["x", "w", "b"], x(), vec![w(), counting("b", &[2])]), "bias: shape=[2], the output has 1 channels"),
        (with(&["x", "w", "b"], x(), vec![w(), counting("b", &[1, 1])]), "bias: rank=2, one value per output channel"),
        (
            with(&["x", "w"], info("x", DataType::Float, &["1", "1"]), vec![counting("w", &[1, 1])]),
            "input: rank=2, ConvTranspose takes 1 to 4 spatial axes",
        ),
        (with(&["x", "w"], info("x", DataType::Float, &["1", "2", "0"]), vec![w()]), ""),
    ];
    for (proto, expected) in cases {
        let error =
            format!("{:#}", load(&proto).map(|model| model.to_string()).err().unwrap_or_else(|| anyhow!("none")));
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

#[test]
fn nodes_of_other_domains_are_not_ours() -> TractResult<()> {
    let mut proto = one(&[]);
    proto.graph.as_mut().unwrap().node[0].domain = "com.example".into();
    let model = load(&proto)?;
    assert!(model.nodes().iter().any(|n| n.op_is::<tract_core::ops::cnn::Deconv>()), "{model}");
    proto.graph.as_mut().unwrap().node[0].op_type = "Unheard".into();
    let error = format!("{:#}", load(&proto).expect_err("tract has no such operator"));
    assert!(error.contains("Unheard"), "{error:?}");
    Ok(())
}
