//! NNEF: a dumped model that is loaded again has the same facts and gives the same bits.
#![cfg(feature = "nnef")]

use crate::common::nnef::plain;
use crate::common::probe::Probe;
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, load, load_stock, refused, run};
use std::path::Path;
use tract_core::internal::*;
use tract_core::ops::cnn::Deconv;
use tract_deconv::{
    DataFormat, DeconvSpec, Dialect, Direction, FilterFormat, GroupedDeconv, Isa, Options, OutputShape, Padding,
    PlanOptions, Precision, Side, Strategy, WithConv, WithDeconv, WithDeconvOptions, explain,
};
use tract_nnef::ast::{Argument, Literal, ProtoModel, RValue};
use tract_nnef::internal::Nnef;
use tract_nnef::prelude::Framework;
use tract_onnx::prelude::InferenceModelExt;

fn nnef() -> Nnef {
    tract_nnef::nnef().with_deconv().with_conv()
}

fn dump(model: &TypedModel) -> TractResult<Vec<u8>> {
    nnef().write_to_tar(model, vec![])
}

fn proto(tar: &[u8]) -> TractResult<ProtoModel> {
    nnef().proto_model_for_read(&mut &*tar)
}

fn reload(tar: &[u8]) -> TractResult<TypedModel> {
    nnef().model_for_read(&mut &*tar)
}

/// Describes the model's deconvolutions, in order. Symbols of two models are never equal, but their
/// names are.
fn deconvolutions(model: &TypedModel) -> TractResult<Vec<String>> {
    let ops = model.eval_order()?.into_iter().filter_map(|id| model.node(id).op_as::<GroupedDeconv>());
    Ok(ops.map(describe).collect())
}

fn describe(op: &GroupedDeconv) -> String {
    format!("{:?} {:?} {} {}", op.spec, op.dialect, op.has_bias, op.fusion)
}

/// Describes them as they must be loaded again. NNEF's `deconv` has one filter layout and no
/// dialect.
fn dumped_deconvolutions(model: &TypedModel) -> TractResult<Vec<String>> {
    let nodes = model.eval_order()?.into_iter().map(|id| model.node(id));
    nodes
        .filter_map(|node| node.op_as::<GroupedDeconv>().map(|op| (node, op)))
        .map(|(node, op)| {
            let mut op = op.clone();
            if crate::common::nnef::is_standard(&op, model.outlet_fact(node.inputs[0])?) {
                op.dialect = Dialect::Nnef;
                op.spec.filter_format = FilterFormat::GroupedOix;
            }
            Ok(describe(&op))
        })
        .collect()
}

fn shapes(model: &TypedModel) -> TractResult<Vec<String>> {
    let outlets = model.input_outlets()?.iter().chain(model.output_outlets()?);
    outlets.map(|outlet| model.outlet_fact(*outlet).map(|f| format!("{:?} {:?}", f.datum_type, f.shape))).collect()
}

/// Dumps a model that is not optimised, loads the dump, and compares both.
///
/// It compares the deconvolutions, the facts, and the bits of the outputs at every stage.
fn round_trips(model: &TypedModel, runs: &[Vec<Tensor>]) -> TractResult<()> {
    let again = reload(&dump(model)?)?;
    let (ours, theirs) = (dumped_deconvolutions(model)?, deconvolutions(&again)?);
    ensure!(!ours.is_empty() && ours == theirs, "{ours:?} came back as {theirs:?}");
    let (ours, theirs) = (shapes(model)?, shapes(&again)?);
    ensure!(ours == theirs, "{ours:?} came back as {theirs:?}");
    for stage in Stage::ALL {
        let (ours, theirs) = (stage.of(model.clone())?, stage.of(again.clone())?);
        for inputs in runs {
            let (ours, theirs) = (run(ours.clone(), inputs)?, run(theirs.clone(), inputs)?);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                ensure!(
                    ours.shape() == theirs.shape()
                        && ours.datum_type() == theirs.datum_type()
                        && ours.as_bytes() == theirs.as_bytes(),
                    "{stage:?}: {ours:?} became {theirs:?}"
                );
            }
        }
    }
    Ok(())
}

/// Returns a model of one op with symbolic dimensions `[N, H, W]`, and its inputs for one shape.
fn model(spec: &DeconvSpec, dt: DatumType, has_bias: bool) -> TractResult<(TypedModel, Vec<Tensor>)> {
    let mut random = Random(11);
    let mut model = TypedModel::default();
    let [n, h, w] = ["N", "H", "W"].map(|name| model.symbols.sym(name).to_dim());
    let fact = dt.fact(spec.data_format.shape(n, spec.in_channels.to_dim(), [h, w]));
    let mut inputs = vec![random.small_integers(dt, &spec.data_format.shape(2, spec.in_channels, [5, 4]))];
    let mut wires = tvec!(model.add_source("x", fact)?);
    wires.push(model.add_const("filter", random.small_integers(dt, &spec.filter_shape()))?);
    if has_bias {
        wires.push(model.add_const("bias", random.small_integers(dt, &[spec.out_channels]))?);
    }
    if spec.has_output_shape_input() {
        wires.push(model.add_source("size", i64::fact([2]))?);
        inputs.push(tensor1(&[9i64, 11]));
    }
    let op = GroupedDeconv::new(spec.clone(), Dialect::OneDnn, has_bias, PlanOptions::default())?;
    let y = model.wire_node("y", op, &wires)?;
    model.select_output_outlets(&y)?;
    Ok((model, inputs))
}

fn paddings() -> Vec<DeconvSpec> {
    let with = |padding: Padding, output_padding: [usize; 2]| DeconvSpec {
        padding,
        output_padding: TVec::from(&output_padding[..]),
        ..plain()
    };
    let explicit =
        |begin: [i64; 2], end: [i64; 2]| Padding::Explicit { begin: TVec::from(&begin[..]), end: TVec::from(&end[..]) };
    let asked = |shape: OutputShape, extra| with(Padding::OutputShape { shape, extra }, [1, 2]);
    let forward = |padding: Padding| DeconvSpec {
        direction: Direction::Forward,
        filter_format: FilterFormat::GroupedOix,
        padding,
        ..plain()
    };
    let mut specs = vec![
        with(explicit([1, 0], [2, 1]), [0, 0]),
        with(explicit([-1, 1], [0, -2]), [1, 4]),
        forward(explicit([2, 1], [0, 1])),
    ];
    for extra in [Side::Begin, Side::End] {
        specs.push(with(Padding::same_transposed(&[3, 2], &[2, 3], &[2, 1], &[1, 2], extra), [1, 2]));
        specs.push(asked(OutputShape::Dims(tvec!(9.to_dim(), 11.to_dim())), extra));
        specs.push(forward(Padding::SameForward { extra }));
    }
    specs
}

#[test]
fn every_layout() -> TractResult<()> {
    for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
        for filter_format in
            [FilterFormat::Iox, FilterFormat::Oix, FilterFormat::Xio, FilterFormat::Xoi, FilterFormat::GroupedOix]
        {
            for has_bias in [false, true] {
                let spec = DeconvSpec { data_format, filter_format, ..plain() };
                let (model, inputs) = model(&spec, f32::datum_type(), has_bias)?;
                round_trips(&model, &[inputs]).with_context(|| format!("{spec}, bias: {has_bias}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_padding_rule() -> TractResult<()> {
    for spec in paddings() {
        let (model, inputs) = model(&spec, f32::datum_type(), true)?;
        round_trips(&model, &[inputs]).with_context(|| spec.to_string())?;
    }
    Ok(())
}

#[test]
fn every_element_type() -> TractResult<()> {
    use DatumType::*;
    for dt in [F16, F32, F64, I8, U8, I16, U16, I32, U32, I64, U64] {
        for group in [1, 2] {
            // A filter of up to eight values is written into the graph's text, a larger one into a
            // file.
            let small = DeconvSpec { in_channels: 2, out_channels: 2, group: 2, kernel: tvec!(2, 2), ..plain() };
            for spec in [small, DeconvSpec { group, ..plain() }] {
                let (model, inputs) = model(&spec, dt, true)?;
                round_trips(&model, &[inputs]).with_context(|| format!("{dt:?}, {spec}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn output_shapes_over_symbols() -> TractResult<()> {
    for extra in [Side::Begin, Side::End] {
        for run_time in [false, true] {
            let mut spec = plain();
            spec.padding = Padding::OutputShape { shape: OutputShape::Dims(tvec!(9.to_dim(), 11.to_dim())), extra };
            let (mut model, _) = model(&spec, f32::datum_type(), true)?;
            let [h, w] = ["H", "W"].map(|name| model.symbols.sym(name).to_dim());
            // For H = 5 and W = 4.
            let dims = tvec!(
                TDim::MulInt(2, Box::new(h.clone() - 1)) + 1,
                TDim::Min(vec![w * 3, 100.to_dim()]) - TDim::Div(Box::new(h), 5)
            );
            let shape = if run_time { OutputShape::Input(dims) } else { OutputShape::Dims(dims) };
            let op = model.node_by_name("y")?.op_as::<GroupedDeconv>().context("the op under test")?;
            let spec = DeconvSpec { padding: Padding::OutputShape { shape, extra }, ..op.spec.clone() };
            let op = GroupedDeconv::new(spec, Dialect::Onnx, true, PlanOptions::default())?;
            let mut wires = TVec::from(&*model.node_by_name("y")?.inputs);
            let mut inputs = vec![Random(5).tensor(f32::datum_type(), &[2, 4, 5, 4])];
            if run_time {
                wires.push(model.add_source("size", i64::fact([2]))?);
                inputs.push(tensor1(&[9i64, 11]));
            }
            let y = model.wire_node("z", op, &wires)?;
            model.select_output_outlets(&y)?;
            model.compact()?;
            round_trips(&model, &[inputs]).with_context(|| format!("{extra:?}, at run time: {run_time}"))?;
        }
    }
    Ok(())
}

const SHAPES: [[usize; 4]; 4] = [[1, 4, 3, 5], [2, 4, 1, 1], [0, 4, 2, 2], [1, 4, 17, 9]];

fn symbolic() -> Probe {
    let dims: [Dim; 4] = ["N".into(), 4.into(), "H".into(), "W".into()];
    Probe::new(&SHAPES[0], &[4, 3, 4, 3]).ints("strides", &[2, 3]).bias(3).dims(&dims)
}

fn check(probe: &Probe) -> TractResult<()> {
    let runs: Vec<_> = SHAPES.iter().map(|shape| probe.clone().with_x(shape).inputs()).collect();
    for stage in [Stage::Typed, Stage::Decluttered] {
        round_trips(&stage.of(load(&probe.proto())?)?, &runs).with_context(|| format!("{stage:?}: {probe:?}"))?;
    }
    Ok(())
}

#[test]
fn onnx_models_with_symbols() -> TractResult<()> {
    check(&symbolic().ints("pads", &[1, 0, 1, 2]).ints("output_padding", &[1, 2]))?;
    check(&symbolic().ints("output_shape", &[9, 14]))?;
    check(&symbolic().run_time_weights())?;
    for auto_pad in ["SAME_LOWER", "SAME_UPPER", "VALID"] {
        check(&symbolic().string("auto_pad", auto_pad))?;
        check(&symbolic().string("auto_pad", auto_pad).ints("output_padding", &[1, 2]))?;
    }
    Ok(())
}

/// The cases in which tract's own op does not round-trip. The test fails if that changes.
#[test]
fn stock_tract_does_not_round_trip() -> TractResult<()> {
    let nnef = tract_nnef::nnef();
    let fails = [
        symbolic().string("auto_pad", "SAME_LOWER"),
        symbolic().ints("output_padding", &[1, 2]),
        symbolic().string("auto_pad", "SAME_UPPER").ints("output_padding", &[1, 2]),
    ];
    for probe in fails {
        let result = guarded(|| {
            let tar = nnef.write_to_tar(&load_stock(&probe.proto())?.into_decluttered()?, vec![])?;
            let again = nnef.model_for_read(&mut &*tar)?;
            let stock = run(load_stock(&probe.proto())?, &probe.inputs())?.remove(0);
            run(again, &probe.inputs())?[0].close_enough(&stock, false)
        });
        ensure!(result.is_err(), "stock tract does this now: {probe:?}");
    }
    Ok(())
}

/// OpenVINO's third input, computed by the graph from the shape of another tensor.
#[test]
fn output_shape_taken_from_another_tensor() -> TractResult<()> {
    let probe = Probe::new(&[2, 4, 3, 5], &[4, 3, 4, 4]);
    let w = probe.w.clone().into_shape(&[1, 4, 3, 4, 4])?;
    let node = Node::new("GroupConvolutionBackpropData").named("fit").domain("org.openvinotoolkit");
    let node = node.ints("strides", &[2, 2]).ints("dilations", &[1, 1]);
    let node = node.ints("pads_begin", &[0, 0]).ints("pads_end", &[0, 0]);
    let proto = Model::opset(11)
        .input("x", f32::datum_type(), &["N".into(), 4.into(), "H".into(), "W".into()])
        .input("target", f32::datum_type(), &["N".into(), 1.into(), "P".into(), "Q".into()])
        .initializer("w", &w)
        .initializer("begin", &tensor1(&[2i64]))
        .initializer("end", &tensor1(&[4i64]))
        .node(Node::new("Shape").inputs(&["target"]).output("shape"))
        .node(Node::new("Slice").inputs(&["shape", "begin", "end"]).output("size"))
        .node(node.inputs(&["x", "w", "size"]).output("y"))
        .output("y")
        .build();
    let runs: Vec<_> = [[8, 12], [7, 9], [6, 13]]
        .iter()
        .map(|size| Ok(vec![probe.x.clone(), Tensor::zero::<f32>(&[2, 1, size[0], size[1]])?]))
        .collect::<TractResult<_>>()?;
    round_trips(&load(&proto)?.into_decluttered()?, &runs)
}

/// All models but `unet_symbolic`, which does not load again. tract reads one operand of a
/// concatenation as `height/4` and the other as `(height+3)/4`.
#[test]
fn own_models() -> TractResult<()> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    for name in ["dcgan_small", "denoiser", "istft", "upscale4", "vocoder"] {
        let onnx = tract_onnx::onnx().with_deconv().with_conv();
        let model = onnx.model_for_path(models.join(name).join("model.onnx"))?.into_typed()?.into_decluttered()?;
        let values = model.symbols.all_symbols().iter().fold(SymbolValues::default(), |v, s| v.with(s, 6));
        let inputs = model
            .input_outlets()?
            .iter()
            .map(|outlet| {
                let fact = model.outlet_fact(*outlet)?;
                Ok(Random(17).tensor(fact.datum_type, &fact.shape.eval_to_usize(&values)?))
            })
            .collect::<TractResult<Vec<_>>>()?;
        round_trips(&model, &[inputs]).with_context(|| name.to_string())?;
    }
    Ok(())
}

/// A dump of tract's own op, made without the plugin, loads as the plugin's op, or as tract's,
/// which the transform replaces.
#[test]
fn dumps_of_stock_tract() -> TractResult<()> {
    let probe = Probe::new(&[2, 4, 5, 6], &[4, 3, 3, 3]).ints("strides", &[2, 3]).ints("pads", &[1, 0, 2, 1]).bias(3);
    let stock = load_stock(&probe.proto())?.into_decluttered()?;
    let tar = tract_nnef::nnef().write_to_tar(&stock, vec![])?;
    let mut transformed = tract_nnef::nnef().model_for_read(&mut &*tar)?;
    ensure!(transformed.nodes().iter().any(|node| node.op_is::<Deconv>()), "{transformed}");
    let transform = tract_core::transform::get_transform("deconv")?.context("the transform is registered")?;
    transform.transform(&mut transformed)?;
    let want = run(stock, &probe.inputs())?.remove(0);
    for ours in [reload(&tar)?, transformed] {
        ensure!(!ours.nodes().iter().any(|node| node.op_is::<Deconv>()), "{ours}");
        for stage in Stage::ALL {
            let got = run(stage.of(ours.clone())?, &probe.inputs())?.remove(0);
            want.close_enough(&got, true)?;
        }
        round_trips(&ours.into_decluttered()?, &[probe.inputs()])?;
    }
    Ok(())
}

/// Both the fragments of NNEF and this crate's own primitive.
#[test]
fn options_reach_what_is_loaded() -> TractResult<()> {
    let options = Options::default().with_strategy("reference").with_isa(Isa::Portable);
    let options = options.with_precision(Precision::Bf16).with_exact_nodes(["*of another name"]);
    let before = tract_nnef::nnef().with_deconv_options(&options)?.with_deconv().with_conv();
    let after = nnef().with_deconv_options(&Options::default().with_strategy("col2im"))?;
    let after = after.with_deconv_options(&options)?;
    for direction in [Direction::Transposed, Direction::Forward] {
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let spec = DeconvSpec { data_format, ..crate::common::spec::unpadded(direction, (4, 6, 2), &[3, 3], 2) };
            let (model, inputs) = model(&spec, DatumType::F32, true)?;
            let tar = dump(&model)?;
            for nnef in [&before, &after] {
                let loaded = nnef.model_for_read(&mut &*tar)?;
                let sizes = [("N", 2), ("H", 5), ("W", 4)];
                let symbols = sizes.iter().fold(SymbolValues::default(), |values, (name, size)| {
                    values.with(&loaded.symbols.sym(name), *size)
                });
                for stage in Stage::ALL {
                    let explained = explain(&stage.of(loaded.clone())?, &symbols)?;
                    let [only] = &*explained else { bail!("{stage:?}: {} layers", explained.len()) };
                    let plan = &only.concrete.as_ref().context("the shape is known")?.plan;
                    assert_eq!((plan.strategy(), plan.isa()), (Strategy::Reference, Isa::Portable), "{only}");
                }
                for op in loaded.nodes().iter().filter_map(|node| node.op_as::<GroupedDeconv>()) {
                    assert_eq!((op.options.precision, &op.options.kept_exact_by), (Some(Precision::Bf16), &None));
                }
                // Dumping the loaded model writes no options.
                let again = reload(&nnef.write_to_tar(&loaded, vec![])?)?;
                assert_eq!(deconvolutions(&again)?, deconvolutions(&loaded)?);
                let asked = |op: &GroupedDeconv| op.options.precision;
                assert!(again.nodes().iter().filter_map(|node| node.op_as()).all(|op| asked(op).is_none()));
                assert_eq!(run(again, &inputs)?, run(reload(&tar)?, &inputs)?);
            }
            let unfused = nnef().with_deconv_options(&Options::default().with_fusion(false))?;
            let loaded = unfused.model_for_read(&mut &*tar)?;
            assert!(loaded.nodes().iter().filter_map(|node| node.op_as::<GroupedDeconv>()).all(|op| !op.fusion));
        }
    }
    let unknown = guarded(|| nnef().with_deconv_options(&Options::default().with_strategy("fastest")));
    refused(unknown, &["strategy=fastest, the known ones are"]).map_err(|e| format_err!("{e}"))
}

#[test]
fn optimised_models_are_refused() -> TractResult<()> {
    let model = load(&symbolic().proto())?.into_optimized()?;
    refused(guarded(|| dump(&model)), &["OptGroupedDeconv"]).map_err(|e| format_err!("{e}"))
}

/// Broken files of other writers give an error that names the argument.
#[test]
fn broken_files_are_refused() -> TractResult<()> {
    let spec = paddings()
        .into_iter()
        .find(|spec| matches!(spec.padding, Padding::OutputShape { .. }))
        .context("one with an output shape")?;
    let tar = dump(&model(&spec, f32::datum_type(), true)?.0)?;
    let text = |text: &str| RValue::Literal(Literal::String(text.into()));
    let number = |number: &str| RValue::Literal(Literal::Numeric(number.into()));
    let list = |items: &[RValue]| RValue::Array(items.to_vec());
    let cases = [
        ("direction", text("sideways")),
        ("data_format", text("xnc")),
        ("filter_format", text("")),
        ("dialect", number("3")),
        ("extra", text("middle")),
        ("padding", text("reflect")),
        ("padding", text("same_forward")),
        ("padding", text("explicit")),
        ("in_channels", number("-4")),
        ("out_channels", number("7")),
        ("group", number("0")),
        ("group", text("many")),
        ("kernel", list(&[number("3")])),
        ("kernel", list(&[])),
        ("strides", list(&[number("0"), number("1")])),
        ("dilations", list(&[number("-1"), number("1")])),
        ("output_padding", list(&[number("-1"), number("1")])),
        ("output_shape", list(&[])),
        ("output_shape", list(&[text("0"), text("9")])),
        ("output_shape", list(&[text("9"), text("K")])),
        ("output_shape", list(&[text("9"), text("W/0")])),
        ("output_shape", list(&[text("9"), text("W +")])),
        ("output_shape", list(&[text("9"), text(&["W"; 8].join("*"))])),
        ("output_shape", list(&[text("9"), text(&["W"; 2048].join("*"))])),
        ("output_shape", list(&[text("9"), text(&["(W+1)"; 30].join("*"))])),
        ("bias", RValue::Literal(Literal::Logical(true))),
    ];
    for (name, value) in cases {
        let result = guarded(|| {
            let mut proto = proto(&tar)?;
            let arguments = arguments(&mut proto)?;
            match arguments.iter_mut().find(|argument| argument.id.as_ref().is_some_and(|id| id.0 == name)) {
                Some(argument) => argument.rvalue = value.clone(),
                None => bail!("no argument of that name"),
            }
            nnef().model_for_proto_model(&proto)
        });
        refused(result, &[name, "rank", "filter", "channels", "strides", "pads"])
            .map_err(|e| format_err!("{name} = {value:?}: {e}"))?;
    }
    Ok(())
}

fn arguments(proto: &mut ProtoModel) -> TractResult<&mut Vec<Argument>> {
    let body = &mut proto.doc.graph_def.body;
    let found = body.iter_mut().find_map(|assignment| match &mut assignment.right {
        RValue::Invocation(invocation) if invocation.id.0 == tract_deconv::nnef::PRIMITIVE => {
            Some(&mut invocation.arguments)
        }
        _ => None,
    });
    found.context("the graph has no deconvolution")
}

/// Expressions on which tract's arithmetic would take seconds or more.
#[test]
fn expressions_that_are_too_large() -> TractResult<()> {
    let symbols = SymbolScope::default();
    let s = symbols.sym("S").to_dim();
    for (dim, word) in [
        ((0..7).fold(s.clone(), |power, _| power * &s), "factors=8"),
        (TDim::Add(vec![TDim::Div(Box::new(s.clone()), 2); 9]), "divisions=9"),
        (TDim::Min(vec![s.clone(); 65]), "terms=65"),
    ] {
        let shape = OutputShape::Dims(tvec!(9.to_dim(), dim));
        let spec = DeconvSpec { padding: Padding::OutputShape { shape, extra: Side::End }, ..plain() };
        let error = format!("{:#}", spec.validate().expect_err("too large"));
        ensure!(error.contains("output_shape: ") && error.contains(word), "{error}");
    }
    Ok(())
}

/// Returns a loop whose body is a node with its own filter on a channel of `xs`, and a sum. With
/// `deep`, the loop contains another loop.
fn looped(node: Node, w: &Tensor, each: &[usize], output: &[usize], deep: bool) -> tract_onnx::pb::ModelProto {
    let with_turns = |shape: &[usize]| sizes(&[&[2], shape].concat());
    let body = Model::opset(13)
        .input("sum", DatumType::F32, &sizes(output))
        .input("x", DatumType::F32, &sizes(each))
        .initializer("w", w)
        .node(node.named("up").inputs(&["x", "w"]).output("y"))
        .node(Node::new("Add").inputs(&["sum", "y"]).output("next"))
        .node(Node::new("Identity").inputs(&["y"]).output("each"))
        .output("next")
        .output("each");
    let scan = |body: Model, name: &str| {
        Node::new("Scan")
            .named(name)
            .inputs(&["start", "xs"])
            .outputs(&["total", "ys"])
            .graph("body", body)
            .int("num_scan_inputs", 1)
    };
    let inputs = |model: Model, turns: Vec<Dim>| {
        model.input("start", DatumType::F32, &sizes(output)).input("xs", DatumType::F32, &turns)
    };
    let loops = inputs(Model::opset(13), with_turns(each)).node(scan(body, "scan"));
    if !deep {
        return loops.output("ys").output("total").build();
    }
    let body = loops.output("total").output("ys");
    let turns = sizes(&[&[3, 2], each].concat());
    inputs(Model::opset(13), turns).node(scan(body, "outer")).output("ys").output("total").build()
}

#[test]
fn bodies_of_loops() -> TractResult<()> {
    let filter = Random(3).small_integers(DatumType::F32, &[2, 2, 3, 2]);
    let up = || Node::new("ConvTranspose").ints("strides", &[2, 2]);
    let cases = [
        // Written as `conv`, as `deconv`, and as this crate's own primitive.
        ("conv", Node::new("Conv").ints("pads", &[1, 0, 1, 1]), [1, 2, 4, 3]),
        ("deconv", up(), [1, 2, 9, 6]),
        ("own", up().ints("output_shape", &[8, 5]), [1, 2, 8, 5]),
        ("own", up().ints("output_shape", &[8, 5]).string("auto_pad", "SAME_UPPER"), [1, 2, 8, 5]),
    ];
    for (label, node, output) in cases {
        let proto = looped(node.clone(), &filter, &[1, 2, 4, 3], &output, false);
        let inputs = [Tensor::zero::<f32>(&output)?, Random(4).small_integers(DatumType::F32, &[2, 1, 2, 4, 3])];
        for stage in [Stage::Typed, Stage::Decluttered] {
            let model = stage.of(load(&proto)?)?;
            let want = run(model.clone(), &inputs)?;
            for nnef in [nnef(), tract_nnef::nnef().with_deconv(), tract_nnef::nnef().with_conv()] {
                let tar = nnef.write_to_tar(&model, vec![])?;
                let file = nnef.proto_model_for_read(&mut &*tar)?;
                let named = file.doc.extension.iter().any(|(_, value)| value.trim() == "tract_deconv");
                ensure!(named == (label == "own"), "{label}, {stage:?}: {:?}", file.doc.extension);
                let again = nnef.model_for_read(&mut &*tar).with_context(|| format!("{label}, {stage:?}"))?;
                ensure!(run(again, &inputs)? == want, "{label}, {stage:?}");
                if !named {
                    let stock = tract_nnef::nnef().model_for_read(&mut &*tar)?;
                    ensure!(run(stock, &inputs)? == want, "{label}, {stage:?}, read by tract");
                }
            }
            // With the registry alone, bodies of loops can't be written.
            let alone = tract_nnef::nnef().with_registry(tract_deconv::nnef::registry());
            refused(guarded(|| alone.write_to_tar(&model, vec![])), &["with_deconv or with_conv", "is in the body"])
                .map_err(|e| format_err!("{label}: {e}"))?;
        }
        // tract leaves the inner body out.
        let deep = load(&looped(node, &filter, &[1, 2, 4, 3], &output, true))?;
        refused(guarded(|| dump(&deep)), &["a loop inside a loop"]).map_err(|e| format_err!("{label}: {e}"))?;
    }
    Ok(())
}
