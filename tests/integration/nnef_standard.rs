//! NNEF's own `deconv` and `conv`: which convolutions are written as them, that tract reads them
//! without the plugin, and how files of other writers are read.
#![cfg(feature = "nnef")]

use crate::common::nnef::{is_standard, plain};
use crate::common::oracle::Expected;
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, refused, run};
use tract_core::internal::*;
use tract_core::ops::cnn::{Conv, Deconv};
use tract_deconv::nnef::PRIMITIVE;
use tract_deconv::{
    DataFormat, DeconvSpec, Dialect, Direction, FilterFormat, GroupedDeconv, OutputShape, Padding, PlanOptions, Side,
    WithConv, WithDeconv,
};
use tract_nnef::ast::{ProtoModel, RValue, parse::parse_document};
use tract_nnef::internal::Nnef;
use tract_nnef::prelude::Framework;

fn with_plugin() -> Nnef {
    tract_nnef::nnef().with_deconv()
}

/// Returns a model of one op, whose weights are constants or inputs, and the model's inputs.
fn model(
    spec: &DeconvSpec,
    dt: DatumType,
    has_bias: bool,
    constant: bool,
    change: impl Fn(&mut GroupedDeconv),
) -> TractResult<(TypedModel, Vec<Tensor>)> {
    let (mut random, mut model) = (Random(11), TypedModel::default());
    let x = random.small_integers(dt, &spec.data_format.shape(2, spec.in_channels, [5, 4]));
    let mut wires = tvec!(model.add_source("x", dt.fact(x.shape()))?);
    let mut inputs = vec![x];
    let bias = has_bias.then(|| vec![spec.out_channels]);
    for (name, shape) in [("filter", Some(spec.filter_shape().to_vec())), ("bias", bias)] {
        let Some(shape) = shape else { continue };
        let weights = random.small_integers(dt, &shape);
        wires.push(match constant {
            true => model.add_const(name, weights)?,
            false => {
                inputs.push(weights);
                model.add_source(name, dt.fact(&shape))?
            }
        });
    }
    let mut op = GroupedDeconv::new(spec.clone(), Dialect::Onnx, has_bias, PlanOptions::default())?;
    change(&mut op);
    let y = model.wire_node("y", op, &wires)?;
    model.select_output_outlets(&y)?;
    Ok((model, inputs))
}

fn written(model: &TypedModel) -> TractResult<(Vec<u8>, ProtoModel)> {
    let tar = with_plugin().write_to_tar(model, vec![])?;
    let proto = with_plugin().proto_model_for_read(&mut &*tar)?;
    Ok((tar, proto))
}

fn fragments(proto: &ProtoModel) -> Vec<&str> {
    let assignments = proto.doc.graph_def.body.iter();
    assignments
        .filter_map(|assignment| match &assignment.right {
            RValue::Invocation(invocation) => Some(&*invocation.id.0),
            _ => None,
        })
        .collect()
}

/// Returns specs that the fragment can express.
fn sayable() -> Vec<DeconvSpec> {
    use FilterFormat::*;
    let mut specs = vec![];
    for group in [1, 2] {
        for filter_format in [Iox, Oix, Xio, Xoi, GroupedOix] {
            specs.push(DeconvSpec { filter_format, group, ..plain() });
        }
    }
    let explicit = Padding::Explicit { begin: tvec!(1, 0), end: tvec!(2, 1) };
    let same = Padding::same_transposed(&[3, 2], &[2, 3], &[2, 1], &[0, 0], Side::Begin);
    specs.extend([
        DeconvSpec { padding: explicit.clone(), ..plain() },
        DeconvSpec { padding: same, ..plain() },
        DeconvSpec { padding: explicit, output_padding: tvec!(1, 2), ..plain() },
        // Depthwise, and depthwise with a channel multiplier.
        DeconvSpec { group: 4, out_channels: 4, ..plain() },
        DeconvSpec { group: 4, out_channels: 8, ..plain() },
        // The output is empty without the output padding.
        DeconvSpec {
            kernel: tvec!(1, 1),
            padding: Padding::Explicit { begin: tvec!(5, 6), end: tvec!(4, 4) },
            output_padding: tvec!(3, 4),
            ..plain()
        },
    ]);
    let forward: Vec<DeconvSpec> = specs
        .iter()
        .filter(|spec| spec.output_padding.iter().all(|padding| *padding == 0))
        .map(|spec| DeconvSpec { direction: Direction::Forward, dilations: tvec!(1, 1), ..spec.clone() })
        .collect();
    specs.extend(forward);
    for extra in [Side::Begin, Side::End] {
        let padding = Padding::SameForward { extra };
        specs.push(DeconvSpec { direction: Direction::Forward, padding, ..plain() });
    }
    specs
}

#[test]
fn tract_reads_it_without_the_plugin() -> TractResult<()> {
    use DatumType::*;
    for spec in sayable() {
        for (dt, has_bias, constant) in [(F32, true, true), (F32, false, true), (F32, true, false), (F16, true, true)] {
            let what = format!("{spec}, {dt:?}, bias {has_bias}, constant {constant}");
            let (ours, inputs) = model(&spec, dt, has_bias, constant, |_| ())?;
            let (tar, proto) = written(&ours)?;
            let fragment = if spec.direction == Direction::Forward { "conv" } else { "deconv" };
            ensure!(fragments(&proto).contains(&fragment), "{what}: {:?}", fragments(&proto));
            let named = proto.doc.extension.iter().any(|(_, value)| value.trim() == "tract_deconv");
            ensure!(!named, "{what}: {:?}", proto.doc.extension);
            let stock = tract_nnef::nnef().model_for_read(&mut &*tar).context(what.clone())?;
            ensure!(stock.nodes().iter().any(|node| node.op_is::<Deconv>() || node.op_is::<Conv>()), "{what}: {stock}");
            let want = run(ours, &inputs)?.remove(0);
            for stage in [Stage::Decluttered, Stage::Optimised] {
                // sums of small integers are exact in every type
                let got = run(stage.of(stock.clone())?, &inputs)?.remove(0);
                ensure!(got == want, "{what}, {stage:?}: {got:?} for {want:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn all_else_is_written_as_the_own_primitive() -> TractResult<()> {
    use DatumType::*;
    let forward = |padding| DeconvSpec {
        direction: Direction::Forward,
        filter_format: FilterFormat::GroupedOix,
        padding,
        ..plain()
    };
    let asked = OutputShape::Dims(tvec!(9.to_dim(), 11.to_dim()));
    let negative = Padding::Explicit { begin: tvec!(-1, 0), end: tvec!(0, 0) };
    // tract's own arithmetic would go below zero.
    let less_than_nothing = DeconvSpec {
        kernel: tvec!(1, 1),
        padding: Padding::Explicit { begin: tvec!(5, 6), end: tvec!(5, 6) },
        output_padding: tvec!(3, 4),
        ..plain()
    };
    let unsayable = [
        (DeconvSpec { data_format: DataFormat::Nxc, ..plain() }, F32),
        (DeconvSpec { padding: Padding::OutputShape { shape: asked, extra: Side::End }, ..plain() }, F32),
        (DeconvSpec { padding: negative, ..plain() }, F32),
        (less_than_nothing, F32),
        (forward(Padding::zero(2)), I32),
        (forward(Padding::Explicit { begin: tvec!(0, 0), end: tvec!(0, -1) }), F32),
        (DeconvSpec { data_format: DataFormat::Nxc, ..forward(Padding::zero(2)) }, F32),
        (plain(), I32),
    ];
    for (spec, dt) in unsayable {
        let (ours, _) = model(&spec, dt, true, true, |_| ())?;
        let proto = written(&ours)?.1;
        ensure!(fragments(&proto).contains(&PRIMITIVE), "{spec}, {dt:?}: {:?}", fragments(&proto));
        ensure!(fragments(&proto).iter().all(|name| !["conv", "deconv"].contains(name)), "{spec}, {dt:?}");
        let op = ours.node_by_name("y")?.op_as::<GroupedDeconv>().context("the op")?;
        ensure!(!is_standard(op, ours.input_fact(0)?), "{spec}, {dt:?}");
    }
    let (unfused, _) = model(&plain(), F32, true, true, |op| op.fusion = false)?;
    ensure!(fragments(&written(&unfused)?.1).contains(&PRIMITIVE), "fusion turned off would be lost");
    // An output padding that depends on symbols.
    let spec = DeconvSpec { output_padding: tvec!(1, 2), ..plain() };
    let (mut symbolic, _) = model(&spec, F32, true, true, |_| ())?;
    let n = symbolic.symbols.sym("N").to_dim();
    symbolic.set_input_fact(0, f32::fact(&[n, 4.to_dim(), 5.to_dim(), 4.to_dim()]))?;
    ensure!(fragments(&written(&symbolic)?.1).contains(&PRIMITIVE), "tract needs all sizes");
    Ok(())
}

/// `conv` is loaded as this crate's operator only if forward convolutions were enabled, `deconv`
/// only if transposed ones were.
#[test]
fn each_direction_on_request() -> TractResult<()> {
    let forward = DeconvSpec { direction: Direction::Forward, filter_format: FilterFormat::GroupedOix, ..plain() };
    for spec in [plain(), forward] {
        let is_forward = spec.direction == Direction::Forward;
        let (ours, inputs) = model(&spec, DatumType::F32, true, true, |_| ())?;
        let tar = written(&ours)?.0;
        let want = run(ours, &inputs)?;
        for (nnef, asked) in [
            (tract_nnef::nnef().with_deconv(), !is_forward),
            (tract_nnef::nnef().with_conv(), is_forward),
            (tract_nnef::nnef().with_deconv().with_conv(), true),
            (tract_nnef::nnef().with_conv().with_deconv().with_conv(), true),
        ] {
            let loaded = nnef.model_for_read(&mut &*tar)?;
            let ours = loaded.nodes().iter().any(|node| node.op_is::<GroupedDeconv>());
            ensure!(ours == asked, "{spec}: {loaded}");
            ensure!(run(loaded.clone(), &inputs)? == want, "{spec}");
            // A framework that reads a file can write it.
            let again = nnef.model_for_read(&mut &*nnef.write_to_tar(&loaded, vec![])?)?;
            ensure!(run(again, &inputs)? == want, "{spec}, again");
        }
    }
    Ok(())
}

/// Returns a graph of one `deconv` of `x`, which has four channels, with this filter and bias.
fn by_hand(filter: &[usize], bias: &[usize], arguments: &str) -> TractResult<ProtoModel> {
    let mut random = Random(23);
    let mut tensor = |shape: &[usize]| random.small_integers(DatumType::F32, shape).into_arc_tensor();
    let text = format!(
        r#"version 1.0;
graph net(x) -> (y) {{
  x = external(shape = [2, 4, 5, 4]);
  w = variable(label = "w", shape = {filter:?});
  b = variable(label = "b", shape = {bias:?});
  y = deconv(x, w{arguments});
}}
"#
    );
    Ok(ProtoModel {
        doc: parse_document(&text).with_context(|| text.clone())?,
        tensors: [("w".into(), tensor(filter)), ("b".into(), tensor(bias))].into(),
        quantization: None,
        resources: HashMap::new(),
    })
}

fn x() -> Tensor {
    Random(29).small_integers(DatumType::F32, &[2, 4, 5, 4])
}

/// The plugin gives files the meaning that tract gives them.
#[test]
fn files_by_other_hands_mean_what_they_mean_to_tract() -> TractResult<()> {
    let groups = [("1", [6, 4, 3, 3]), ("2", [6, 2, 3, 3])];
    let biases = [(", b", vec![6]), (", b", vec![1, 6]), (", b", vec![6, 1, 1]), ("", vec![6]), (", 2.0", vec![6])];
    let geometries = [
        "",
        ", stride = [2, 1]",
        ", padding = []",
        ", padding = [(1, 0), (0, 2)], stride = [2, 2], dilation = [1, 2]",
        ", padding = [(1, 1), (1, 1)], stride = [2, 2], output_shape = [10, 8]",
        ", padding = [(0, 0), (0, 0)], stride = [], dilation = [], output_shape = [], border = 'constant'",
    ];
    for (group, filter) in groups {
        for (argument, bias) in &biases {
            for geometry in geometries {
                let arguments = format!("{argument}{geometry}, groups = {group}");
                let proto = by_hand(&filter, bias, &arguments)?;
                let stock = tract_nnef::nnef().model_for_proto_model(&proto).context(arguments.clone())?;
                let ours = with_plugin().model_for_proto_model(&proto).context(arguments.clone())?;
                let op = ours.nodes().iter().find_map(|node| node.op_as::<GroupedDeconv>());
                ensure!(op.is_some_and(|op| op.dialect == Dialect::Nnef), "{arguments}: {ours}");
                ensure!(ours.output_fact(0)?.shape == stock.output_fact(0)?.shape, "{arguments}: {ours}, {stock}");
                let want = run(stock, &[x()])?.remove(0);
                for stage in Stage::ALL {
                    let got = run(stage.of(ours.clone())?, &[x()])?.remove(0);
                    ensure!(got == want, "{arguments}, {stage:?}: {got:?} for {want:?}");
                }
            }
        }
    }
    // As many groups as channels.
    let arguments = ", b, stride = [2, 2], padding = [(0, 0), (0, 0)], groups = 0";
    let proto = by_hand(&[4, 1, 3, 3], &[4], arguments)?;
    let stock = run(tract_nnef::nnef().model_for_proto_model(&proto)?, &[x()])?;
    let ours = run(with_plugin().model_for_proto_model(&proto)?, &[x()])?;
    ensure!(ours == stock, "{arguments}");
    Ok(())
}

/// Files on which tract panics or fails: automatic padding to a given size, and automatic padding
/// with a kernel that does not exceed the stride.
#[test]
fn beyond_tract() -> TractResult<()> {
    for (arguments, filter, padding) in [
        (", b, stride = [2, 2], output_shape = [9, 8]", [6, 4, 3, 3], {
            Padding::OutputShape { shape: OutputShape::Dims(tvec!(9.to_dim(), 8.to_dim())), extra: Side::End }
        }),
        (", b, stride = [3, 2]", [6, 4, 2, 1], Padding::zero(2)),
    ] {
        let proto = by_hand(&filter, &[6], arguments)?;
        let stock = guarded(|| run(tract_nnef::nnef().model_for_proto_model(&proto)?, &[x()]));
        ensure!(stock.is_err(), "stock tract does this now: {arguments}");
        let model = with_plugin().model_for_proto_model(&proto)?;
        let op = model.nodes().iter().find_map(|node| node.op_as::<GroupedDeconv>()).context("the op")?;
        assert_eq!(op.spec.padding, padding, "{arguments}");
        let tensor = |name: &str| Arc::clone(&proto.tensors[&name.into()]);
        let expected = Expected::new(&op.spec, &x(), &tensor("w"), Some(&*tensor("b")), None);
        for stage in Stage::ALL {
            let got = run(stage.of(model.clone())?, &[x()])?.remove(0);
            expected.check(&got).map_err(|e| format_err!("{arguments}, {stage:?}: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn broken_files_are_refused() -> TractResult<()> {
    let filter = [6, 4, 3, 3];
    for (arguments, word) in [
        (", b, border = 'reflect'", "border=reflect"),
        (", b, stride = [0, 1]", "stride"),
        (", b, stride = [2]", "stride=[2], one value per spatial axis"),
        (", b, stride = [-1, 1]", "stride=-1"),
        (", b, dilation = [1, 0]", "dilation"),
        (", b, dilation = [1, 1, 1]", "dilation=[1, 1, 1], one value"),
        (", b, padding = [(1, 1)]", "padding=[[1, 1]], one pair"),
        (", b, padding = [(9, 9), (0, 0)]", "output size"),
        (", b, groups = -1", "groups=-1"),
        (", b, groups = 3", "channels"),
        (", b, groups = 4611686018427387904", "groups"),
        (", b, output_shape = [10]", "output_shape=[10], one value"),
        (", b, padding = [(0, 0), (0, 0)], output_shape = [6, 6]", "output padding only adds to them"),
        (", b, padding = [(0, 0), (0, 0)], output_shape = [-6, 6]", "output_shape=-6"),
    ] {
        let proto = by_hand(&filter, &[6], arguments)?;
        let result = guarded(|| run(with_plugin().model_for_proto_model(&proto)?, &[x()]));
        refused(result, &[word]).map_err(|e| format_err!("{arguments}: {e}"))?;
    }
    for (filter, bias, word) in [
        (&[6, 4, 3][..], &[6][..], "filter: shape=[6, 4, 3]"),
        (&[6, 5, 3, 3], &[6], "channels"),
        (&[6, 4, 3, 3], &[5], "bias"),
        (&[6, 4, 3, 3], &[2, 3], "bias"),
    ] {
        let proto = by_hand(filter, bias, ", b")?;
        let result = guarded(|| run(with_plugin().model_for_proto_model(&proto)?, &[x()]));
        refused(result, &[word]).map_err(|e| format_err!("{filter:?}, {bias:?}: {e}"))?;
    }
    Ok(())
}

/// Forward convolutions of other writers.
#[test]
fn forward_files_mean_what_they_mean_to_tract() -> TractResult<()> {
    for geometry in [
        "",
        ", stride = [2, 1]",
        ", padding = [(1, 0), (0, 2)], stride = [2, 2], dilation = [1, 2]",
        ", padding = [(1, 1), (1, 1)], border = 'constant'",
    ] {
        for (groups, filter) in [("1", [6, 4, 3, 3]), ("2", [6, 2, 3, 3])] {
            for bias in ["", ", b"] {
                let arguments = format!("{bias}{geometry}, groups = {groups}");
                let mut proto = by_hand(&filter, &[6], &arguments)?;
                for assignment in &mut proto.doc.graph_def.body {
                    if let RValue::Invocation(invocation) = &mut assignment.right
                        && invocation.id.0 == "deconv"
                    {
                        invocation.id = "conv".into();
                    }
                }
                let stock = tract_nnef::nnef().model_for_proto_model(&proto).context(arguments.clone())?;
                let ours = tract_nnef::nnef().with_conv().model_for_proto_model(&proto).context(arguments.clone())?;
                ensure!(ours.nodes().iter().any(|node| node.op_is::<GroupedDeconv>()), "{arguments}: {ours}");
                ensure!(ours.output_fact(0)?.shape == stock.output_fact(0)?.shape, "{arguments}: {ours}, {stock}");
                let want = run(stock, &[x()])?.remove(0);
                for stage in Stage::ALL {
                    let got = run(stage.of(ours.clone())?, &[x()])?.remove(0);
                    ensure!(got == want, "{arguments}, {stage:?}: {got:?} for {want:?}");
                }
            }
        }
    }
    Ok(())
}
