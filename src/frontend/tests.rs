//! Nodes as in model files, which must run or be refused.

use crate::op::{GroupedDeconv, OptGroupedDeconv};
use crate::spec::MAX_EXTENT;
use crate::testing::*;
use tract_hir::internal::*;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

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
    // F = 5, so one position is cropped.
    let shape = ints("output_shape", &[4]);
    assert_eq!(run(&one(std::slice::from_ref(&shape)), &[x3()])?, tensor3(&[[[0f32, 1., 4., 4.]]]));
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
fn grouped_filters_are_shared_too() -> TractResult<()> {
    let step = |name: &str, input: &str, output: &str| NodeProto {
        name: name.into(),
        output: vec![output.into()],
        ..node("", "GroupConvolutionBackpropData", &[input, "w"], &[])
    };
    let proto = model(
        vec![info("x", DataType::Float, &["1", "8", "3"])],
        vec![counting("w", &[4, 2, 2, 5])],
        vec![step("first", "x", "z"), step("second", "z", "y")],
    );
    let model = load(&proto)?.into_optimized()?;
    let ops: Vec<_> = model.nodes().iter().filter_map(|n| n.op_as::<OptGroupedDeconv>()).collect();
    assert_eq!(ops.len(), 2);
    assert!(ops[0].shares_filter_with(ops[1]));
    Ok(())
}

#[test]
fn refused_attributes_are_named_with_value_and_rule() {
    let too_many_groups = if usize::BITS < i64::BITS {
        "group: group=9223372036854775807, must be at most 268435456"
    } else {
        "input channels: channels=1, must be a positive multiple"
    };
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
        (
            &[ints("pads", &[i64::MAX, i64::MAX])],
            &format!("pads=[9223372036854775807], every value must be within -{MAX_EXTENT}..={MAX_EXTENT}"),
        ),
        (&[ints("pads", &[0, 1]), text("auto_pad", "VALID")], "pads: pads=[0, 1], they exclude auto_pad=VALID"),
        (&[ints("pads", &[0, 0, 0, 0])], "pads: pads=[0, 0, 0, 0], 1 values are needed on each side"),
        (&[ints("pads", &[3, 3])], "output size: size=-1 on spatial axis 0"),
        (&[text("auto_pad", "same_upper")], "auto_pad: auto_pad=same_upper, it must be NOTSET,"),
        (&[ints("output_padding", &[1])], "output_padding: output_padding=[1], every value must be less than"),
        (&[ints("output_padding", &[-1])], "output_padding: output_padding=[-1], every value must be at least 0"),
        (&[ints("output_shape", &[1, 1, 4])], "output_shape: output_shape=[1, 1, 4], 1 values are needed"),
        (&[ints("output_shape", &[0])], "output_shape: output_shape=[0], every value must be at least 1"),
        (&[ints("kernel_shape", &[2])], "kernel_shape: kernel_shape=[2], the filter's is [3]"),
        (&[int("group", 0)], "group: group=0, it must be at least 1"),
        (&[int("group", 2)], "input channels: channels=1, must be a positive multiple of group=2"),
        (&[int("group", i64::MAX)], too_many_groups),
    ];
    for (attributes, expected) in cases {
        let error = refusal(&one(attributes), &[x3()]);
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(error.contains("node"), "{error:?} does not name the node");
    }
}

#[test]
fn wrong_types_of_attributes_are_named() {
    let names = [
        (AttributeType::Undefined, "undefined"),
        (AttributeType::Int, "int"),
        (AttributeType::Float, "float"),
        (AttributeType::String, "string"),
        (AttributeType::Tensor, "tensor"),
        (AttributeType::Graph, "graph"),
        (AttributeType::Floats, "list of floats"),
        (AttributeType::Strings, "list of strings"),
        (AttributeType::Tensors, "list of tensors"),
        (AttributeType::Graphs, "list of graphs"),
        (AttributeType::SparseTensor, "another type"),
    ];
    for (found, name) in names {
        let attribute = AttributeProto { r#type: found as i32, ..ints("strides", &[1]) };
        let error = refusal(&one(&[attribute]), &[x3()]);
        let expected = format!("strides: type={name}, list of ints is needed");
        assert!(error.contains(&expected), "{expected:?} is not in {error:?}");
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

/// GroupConvolutionBackpropData of X [1, 2, 3] and a filter [2, 1, 1, 3], both counting from zero,
/// with further inputs.
fn grouped(attributes: &[AttributeProto], others: Vec<TensorProto>) -> ModelProto {
    let mut names = vec!["x", "w"];
    names.extend(others.iter().map(|t| &*t.name));
    let node = node("org.openvinotoolkit", "GroupConvolutionBackpropData", &names, attributes);
    let initialisers = [counting("w", &[2, 1, 1, 3])].into_iter().chain(others.iter().cloned()).collect();
    model(vec![info("x", DataType::Float, &["1", "2", "3"])], initialisers, vec![node])
}

fn x23() -> Tensor {
    tensor3(&[[[0f32, 1., 2.], [1., 0., 0.]]])
}

#[test]
fn openvino_attributes_as_ints_or_text() -> TractResult<()> {
    // group 0: x = 0 1 2, w = 0 1 2; group 1: x = 1 0 0, w = 3 4 5
    let expected = tensor3(&[[[0f32, 1., 4., 4.], [4., 5., 0., 0.]]]);
    let as_ints = [ints("strides", &[1]), ints("dilations", &[1]), ints("pads_begin", &[1]), ints("pads_end", &[0])];
    assert_eq!(run(&grouped(&as_ints, vec![]), &[x23()])?, expected);
    let as_text = [
        text("strides", "1"),
        text("dilations", " 1 "),
        text("pads_begin", "1"),
        text("pads_end", "0"),
        text("auto_pad", "EXPLICIT"),
        text("version", "opset1"),
    ];
    assert_eq!(run(&grouped(&as_text, vec![]), &[x23()])?, expected);
    let negative = [text("pads_begin", "-1"), text("pads_end", "-1")];
    let y = run(&grouped(&negative, vec![]), &[x23()])?;
    assert_eq!(y, tensor3(&[[[0f32, 0., 0., 1., 4., 4., 0.], [0., 3., 4., 5., 0., 0., 0.]]]));
    Ok(())
}

#[test]
fn openvino_output_shape_of_any_integer_type() -> TractResult<()> {
    // F = 5, so one position is cropped: at the beginning for same_upper, else at the end.
    let later = tensor3(&[[[0f32, 0., 1., 4.], [3., 4., 5., 0.]]]);
    let earlier = tensor3(&[[[0f32, 1., 4., 4.], [4., 5., 0., 0.]]]);
    let int32 = TensorProto {
        name: "s".into(),
        dims: vec![1],
        data_type: DataType::Int32 as i32,
        int32_data: vec![4],
        ..TensorProto::default()
    };
    for shape in [i64s("s", &[4]), int32] {
        assert_eq!(run(&grouped(&[], vec![shape.clone()]), &[x23()])?, later);
        assert_eq!(run(&grouped(&[text("auto_pad", "same_upper")], vec![shape.clone()]), &[x23()])?, earlier);
        assert_eq!(run(&grouped(&[text("auto_pad", "same_lower")], vec![shape]), &[x23()])?, later);
    }
    Ok(())
}

#[test]
fn openvino_output_shape_at_run_time() -> TractResult<()> {
    let node = node("", "GroupConvolutionBackpropData", &["x", "w", "s"], &[]);
    let relu = NodeProto { name: "relu".into(), output: vec!["y".into()], ..self::node("", "Relu", &["z"], &[]) };
    let proto = model(
        vec![info("x", DataType::Float, &["N", "2", "3"]), info("s", DataType::Int64, &["1"])],
        vec![counting("w", &[2, 1, 1, 3])],
        vec![NodeProto { output: vec!["z".into()], ..node }, relu],
    );
    for (size, expected) in [
        (4, tensor3(&[[[0f32, 0., 1., 4.], [3., 4., 5., 0.]]])),
        (6, tensor3(&[[[0f32, 0., 1., 4., 4., 0.], [3., 4., 5., 0., 0., 0.]]])),
    ] {
        assert_eq!(run(&proto, &[x23(), tensor1(&[size as i64])])?, expected);
    }
    assert!(refusal(&proto, &[x23(), tensor1(&[0i64])]).contains("output_shape: output_shape=[0], 1 values within"));
    Ok(())
}

#[test]
fn openvino_output_shape_of_a_skip_connection() -> TractResult<()> {
    let like = |name: &str, op: &str, inputs: &[&str], output: &str, attributes: &[AttributeProto]| NodeProto {
        name: name.into(),
        output: vec![output.into()],
        ..node("", op, inputs, attributes)
    };
    let proto = model(
        vec![info("x", DataType::Float, &["N", "2", "3"]), info("skip", DataType::Float, &["N", "2", "L"])],
        vec![counting("w", &[2, 1, 1, 3]), i64s("two", &[2]), i64s("three", &[3])],
        vec![
            like("shape", "Shape", &["skip"], "whole", &[]),
            like("slice", "Slice", &["whole", "two", "three"], "s", &[]),
            like("deconv", "GroupConvolutionBackpropData", &["x", "w", "s"], "z", &[]),
            like("add", "Add", &["z", "skip"], "y", &[]),
        ],
    );
    let model = load(&proto)?;
    let op = model.node_by_name("deconv")?.op_as::<GroupedDeconv>().unwrap();
    assert!(!op.spec.has_output_shape_input(), "the shape is known over symbols");
    let skip = Tensor::zero::<f32>(&[1, 2, 4])?;
    assert_eq!(run(&proto, &[x23(), skip])?, tensor3(&[[[0f32, 0., 1., 4.], [3., 4., 5., 0.]]]));
    // The same with a value for the symbol.
    let l = model.symbols.sym("L");
    let five = model.set_symbols(&[(l, 5.to_dim())].into())?.into_optimized()?.into_runnable()?;
    let y = five.run(tvec!(x23().into_tvalue(), Tensor::zero::<f32>(&[1, 2, 5])?.into_tvalue()))?;
    assert_eq!(*y[0], tensor3(&[[[0f32, 0., 1., 4., 4.], [3., 4., 5., 0., 0.]]]));
    Ok(())
}

#[test]
fn openvino_forward_convolutions() -> TractResult<()> {
    let forward = |op: &str, filter: &[i64], attributes: &[AttributeProto]| {
        model(
            vec![info("x", DataType::Float, &["1", "2", "3"])],
            vec![counting("w", filter)],
            vec![node("ai.intel.openvino", op, &["x", "w"], attributes)],
        )
    };
    // groups: x = 0 1 2 with w = 0 1, x = 1 0 0 with w = 2 3
    let grouped = forward("GroupConvolution", &[2, 1, 1, 2], &[]);
    assert_eq!(run(&grouped, &[x23()])?, tensor3(&[[[1f32, 2.], [2., 0.]]]));
    let same = forward("GroupConvolution", &[2, 1, 1, 2], &[text("auto_pad", "same_lower")]);
    assert_eq!(run(&same, &[x23()])?, tensor3(&[[[0f32, 1., 2.], [3., 2., 0.]]]));
    let dense = forward("Convolution", &[1, 2, 2], &[text("strides", "2")]);
    assert_eq!(run(&dense, &[x23()])?, tensor3(&[[[3f32]]]));
    let large = forward("Convolution", &[1, 2, 4], &[]);
    assert!(refusal(&large, &[x23()]).contains("the kernel's extent 4 exceeds the padded input 3"));
    Ok(())
}

#[test]
fn integers_stay_integers() -> TractResult<()> {
    let filter = TensorProto {
        data_type: DataType::Int64 as i32,
        float_data: vec![],
        int64_data: vec![1 << 40, -1],
        ..counting("w", &[1, 1, 2])
    };
    let proto = model(
        vec![info("x", DataType::Int64, &["1", "1", "2"])],
        vec![filter],
        vec![node("", "ConvolutionBackpropData", &["x", "w"], &[])],
    );
    let y = run(&proto, &[tensor3(&[[[3i64, (1 << 20) + 1]]])])?;
    assert_eq!(y, tensor3(&[[[3i64 << 40, (1 << 60) + (1 << 40) - 3, -(1 << 20) - 1]]]));
    Ok(())
}

/// oneDNN's ConvTranspose of X [1, 3, 2] in NXC and a filter [3, 2, 1] in XIO, both counting from
/// zero.
fn nxc(attributes: &[AttributeProto]) -> ModelProto {
    model(
        vec![info("x", DataType::Float, &["1", "3", "2"])],
        vec![counting("w", &[3, 2, 1])],
        vec![node("onednn", "ConvTranspose", &["x", "w"], attributes)],
    )
}

#[test]
fn onednn_defaults_are_nxc_and_xio() -> TractResult<()> {
    // channel 0: x = 0 2 4, w = 0 2 4; channel 1: x = 1 3 5, w = 1 3 5
    let x = tensor3(&[[[0f32, 1.], [2., 3.], [4., 5.]]]);
    let y = tensor3(&[[[1f32], [6.], [23.], [46.], [41.]]]);
    assert_eq!(run(&nxc(&[]), std::slice::from_ref(&x))?, y);
    let named = [text("data_format", "NXC"), text("filter_format", "XIO"), text("auto_pad", "None"), int("groups", 1)];
    assert_eq!(run(&nxc(&named), std::slice::from_ref(&x))?, y);
    let mut elsewhere = nxc(&named);
    elsewhere.graph.as_mut().unwrap().node[0].domain = "com.example".into();
    assert_eq!(run(&elsewhere, &[x])?, y);
    Ok(())
}

#[test]
fn onednn_filter_formats() -> TractResult<()> {
    // X is [1, 2, 2] in NCX with rows 0 1 and 2 3. The kernel has one tap, with two inputs and two
    // outputs: y[o] = Σ x[i] w[i][o].
    let plain = |attributes: &[AttributeProto], shape: &[i64]| {
        model(
            vec![info("x", DataType::Float, &["1", "2", "2"])],
            vec![counting("w", shape)],
            vec![node("onednn", "ConvTranspose", &["x", "w"], &[&[text("data_format", "NCX")], attributes].concat())],
        )
    };
    let x = || tensor3(&[[[0f32, 1.], [2., 3.]]]);
    let input_first = tensor3(&[[[4f32, 6.], [6., 10.]]]);
    let output_first = tensor3(&[[[2f32, 3.], [6., 11.]]]);
    let cases = [
        (text("filter_format", "XIO"), [1, 2, 2], &input_first),
        (text("filter_format", "IOX"), [2, 2, 1], &input_first),
        (text("filter_format", "OIX"), [2, 2, 1], &output_first),
        (text("filter_format", "XOI"), [1, 2, 2], &output_first),
        (text("weights_format", "OIX"), [2, 2, 1], &output_first),
        (text("weights_format", ""), [1, 2, 2], &output_first),
        (text("filter_format", ""), [1, 2, 2], &input_first),
    ];
    for (format, shape, expected) in cases {
        assert_eq!(&run(&plain(std::slice::from_ref(&format), &shape), &[x()])?, expected, "{format:?}");
    }
    let both = [text("weights_format", "OIX"), text("filter_format", "IOX")];
    let error = refusal(&plain(&both, &[2, 2, 1]), &[x()]);
    assert!(error.contains("weights_format: weights_format=OIX, filter_format=IOX contradicts it"), "{error}");
    Ok(())
}

#[test]
fn refused_nodes_of_the_other_dialects() {
    let integers = TensorProto {
        data_type: DataType::Int32 as i32,
        int32_data: vec![0; 6],
        float_data: vec![],
        ..counting("w", &[3, 2, 1])
    };
    let mut typed = nxc(&[]);
    let graph = typed.graph.as_mut().unwrap();
    graph.input[0] = info("x", DataType::Int32, &["1", "3", "2"]);
    graph.initializer[0] = integers;
    let mut biased = grouped(&[], vec![i64s("s", &[4])]);
    biased.graph.as_mut().unwrap().node[0].op_type = "GroupConvolution".into();
    let deep = model(
        vec![info("x", DataType::Float, &["1", "1", "1", "1", "1", "1"])],
        vec![counting("w", &[1, 1, 1, 1, 1, 1])],
        vec![node("", "Convolution", &["x", "w"], &[])],
    );
    let cases = [
        (nxc(&[ints("output_shape", &[4])]), "output_shape: output_shape=[4], the operator has no such attribute"),
        (nxc(&[ints("pads_begin", &[-1])]), "pads_begin: pads_begin=[-1], every value must be at least 0"),
        (nxc(&[ints("pads_begin", &[0, 0])]), "pads_begin: pads_begin=[0, 0], 1 values are needed on each side"),
        (nxc(&[text("data_format", "NHWC")]), "data_format: data_format=NHWC, it must be NXC or NCX"),
        (nxc(&[text("filter_format", "HWIO")]), "filter_format: filter_format=HWIO, it must be XIO, OIX, XOI or IOX"),
        (nxc(&[text("auto_pad", "SAME")]), "auto_pad: auto_pad=SAME, it must be None, SAME_UPPER"),
        (nxc(&[text("strides", "1")]), "strides: type=string, list of ints is needed"),
        (nxc(&[int("groups", -1)]), "groups: groups=-1, it must be at least 1"),
        (typed, "input: datum_type=I32, ConvTranspose takes [F32, F16]"),
        (grouped(&[text("strides", "1;1")], vec![]), "strides: strides=\"1;1\", integers between commas are needed"),
        (grouped(&[int("strides", 1)], vec![]), "strides: type=int, list of ints or string is needed"),
        (grouped(&[text("auto_pad", "same")], vec![]), "auto_pad: auto_pad=same, it must be explicit, same_upper"),
        (grouped(&[], vec![i64s("s", &[4, 4])]), "output_shape: output_shape=[4, 4], 1 values are needed"),
        (grouped(&[], vec![i64s("s", &[-4])]), "output_shape: output_shape=[-4], every value must be within 1.."),
        (grouped(&[], vec![counting("s", &[1])]), "output_shape: datum_type=F32, an integer type is needed"),
        (biased, "inputs: count=3, 2 to 2 are needed"),
        (deep, "input: rank=6, Convolution takes 1 to 3 spatial axes"),
    ];
    for (proto, expected) in cases {
        let error = format!("{:#}", load(&proto).expect_err(expected));
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

#[test]
fn dialects_live_in_one_graph() -> TractResult<()> {
    let step = |name: &str, domain: &str, op: &str, inputs: &[&str], output: &str| NodeProto {
        name: name.into(),
        output: vec![output.into()],
        ..node(domain, op, inputs, &[])
    };
    let proto = model(
        vec![info("x", DataType::Float, &["1", "1", "1"])],
        vec![counting("w", &[1, 1, 2]), counting("g", &[1, 1, 1, 2]), counting("v", &[1, 3, 1])],
        vec![
            step("first", "", "ConvTranspose", &["x", "w"], "a"),
            step("second", "ai.intel.openvino", "GroupConvolutionBackpropData", &["a", "g"], "b"),
            step("third", "onednn", "ConvTranspose", &["b", "v"], "y"),
        ],
    );
    let model = load(&proto)?;
    let explanations = crate::explain(&model, &SymbolValues::default())?;
    let dialects: Vec<String> = explanations.iter().map(|e| e.dialect.to_string()).collect();
    assert_eq!(dialects, ["onnx", "openvino", "onednn"]);
    // 2 -> 0 2 -> 0 0 2, read as one position of three channels.
    assert_eq!(run(&proto, &[tensor3(&[[[2f32]]])])?, tensor3(&[[[4f32]]]));
    Ok(())
}

#[test]
fn transposes_around_a_node_cancel() -> TractResult<()> {
    let step = |name: &str, op: &str, inputs: &[&str], output: &str, attributes: &[AttributeProto]| NodeProto {
        name: name.into(),
        output: vec![output.into()],
        ..node("", op, inputs, attributes)
    };
    let proto = model(
        vec![info("x", DataType::Float, &["N", "3", "4", "2"])],
        vec![counting("w", &[2, 5, 3, 2]), counting("b", &[5])],
        vec![
            step("in", "Transpose", &["x"], "ncx", &[ints("perm", &[0, 3, 1, 2])]),
            step("deconv", "ConvTranspose", &["ncx", "w", "b"], "z", &[ints("strides", &[2, 1])]),
            step("out", "Transpose", &["z"], "y", &[ints("perm", &[0, 2, 3, 1])]),
        ],
    );
    let model = load(&proto)?;
    assert!(model.nodes().iter().all(|n| !n.op_is::<AxisOp>()), "{model}");
    let op = model.node_by_name("deconv")?.op_as::<GroupedDeconv>().unwrap();
    assert_eq!(op.spec.data_format, crate::DataFormat::Nxc);
    let x = Tensor::from_shape(&[1, 3, 4, 2], &(0..24).map(|v| v as f32).collect::<Vec<_>>())?;
    let stock = tract_onnx::onnx().model_for_proto_model(&proto)?.into_optimized()?.into_runnable()?;
    let expected = stock.run(tvec!(x.clone().into_tvalue()))?.remove(0);
    expected.close_enough(&run(&proto, &[x])?, true)
}

#[test]
fn batch_zero_gives_nothing() -> TractResult<()> {
    let proto = model(
        vec![info("x", DataType::Float, &["N", "1", "3"])],
        vec![counting("w", &[1, 1, 3])],
        vec![node("", "ConvTranspose", &["x", "w"], &[])],
    );
    assert_eq!(run(&proto, &[Tensor::zero::<f32>(&[0, 1, 3])?])?.shape(), [0, 1, 5]);
    Ok(())
}

#[test]
fn nodes_in_branches_run() -> TractResult<()> {
    let branch = |name: &str, stride: i64| {
        let deconv = node("", "ConvTranspose", &["x", "w"], &[ints("strides", &[stride]), ints("output_shape", &[4])]);
        AttributeProto {
            r#type: AttributeType::Graph as i32,
            g: Some(GraphProto {
                node: vec![NodeProto { name: name.into(), output: vec![name.into()], ..deconv }],
                output: vec![ValueInfoProto { name: name.into(), ..ValueInfoProto::default() }],
                ..GraphProto::default()
            }),
            ..attribute(name)
        }
    };
    let proto = model(
        vec![info("c", DataType::Bool, &[]), info("x", DataType::Float, &["1", "1", "3"])],
        vec![counting("w", &[1, 1, 3])],
        vec![node("", "If", &["c"], &[branch("then_branch", 1), branch("else_branch", 2)])],
    );
    assert_eq!(run(&proto, &[tensor0(true), x3()])?, tensor3(&[[[0f32, 1., 4., 4.]]]));
    assert_eq!(run(&proto, &[tensor0(false), x3()])?, tensor3(&[[[0f32, 1., 2., 2.]]]));
    let names: Vec<String> =
        crate::explain(&load(&proto)?, &SymbolValues::default())?.into_iter().map(|e| e.name).collect();
    // The condition's own name is the part before the first slash.
    assert_eq!(names, ["node/then/then_branch", "node/else/else_branch"]);
    Ok(())
}

#[test]
fn an_empty_axis_gives_the_bias() -> TractResult<()> {
    // F = -1 + 3
    let ncx = model(
        vec![info("x", DataType::Float, &["N", "1", "L"])],
        vec![counting("w", &[1, 2, 3]), counting("b", &[2])],
        vec![node("", "ConvTranspose", &["x", "w", "b"], &[])],
    );
    assert_eq!(run(&ncx, &[Tensor::zero::<f32>(&[1, 1, 0])?])?, tensor3(&[[[0f32, 0.], [1., 1.]]]));
    let nxc = model(
        vec![info("x", DataType::Float, &["N", "0", "1"])],
        vec![counting("w", &[3, 1, 2]), counting("b", &[2])],
        vec![node("onednn", "ConvTranspose", &["x", "w", "b"], &[])],
    );
    assert_eq!(run(&nxc, &[Tensor::zero::<f32>(&[1, 0, 1])?])?, tensor3(&[[[0f32, 1.], [0., 1.]]]));
    Ok(())
}

#[test]
fn shapes_that_no_tensor_can_have_are_refused() {
    let large = ["0", "1", "2147483647", "2147483647", "70000"];
    let proto = model(
        vec![info("x", DataType::Float, &large)],
        vec![counting("w", &[1, 1, 1, 1, 1])],
        vec![node("", "ConvTranspose", &["x", "w"], &[])],
    );
    let error = format!("{:#}", load(&proto).expect_err("too large"));
    assert!(error.contains("input size: shape=[0, 1, 2147483647, 2147483647, 70000], it must hold at most"), "{error}");
}
