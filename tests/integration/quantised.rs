//! Quantised convolutions: what loads, in which op, with which numbers.

use crate::common::proto::{Model, Node, sizes};
use crate::common::quantised::{Bias, Case, FORMS, Form, integers};
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, load, load_stock, refused, run};
use std::path::{Path, PathBuf};
use tract_core::internal::*;
use tract_core::ops::cnn::Conv;
use tract_core::ops::quant::DequantizeLinearF32;
use tract_deconv::internals::{DataZeroPoint, Output, Quantisation, Scale, Scaling};
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{
    ByteSum, ByteTable, Dialect, GroupedDeconv, OptDynamicQuantise, OptGroupedDeconv, OptQuantise, OptQuantisedDeconv,
    Options, PlanOptions, QuantisedDeconv, WithConv, WithDeconv, WithDeconvOptions, explain, left_to_tract,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

fn is_quantised(model: &TypedModel) -> bool {
    count::<QuantisedDeconv>(model) + count::<OptQuantisedDeconv>(model) > 0
}

fn count<O: tract_core::ops::Op>(model: &TypedModel) -> usize {
    let order = model.eval_order().expect("an order");
    order.into_iter().filter(|id| model.node(*id).op_is::<O>()).count()
}

/// Returns the stored cases of a folder, if it is there.
fn shared() -> Option<Vec<PathBuf>> {
    // The shared models are optional.
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/quantised");
    let folder = std::env::var_os("TRACT_DECONV_QUANTISED").map_or_else(beside, PathBuf::from);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "onnx"));
    files.sort();
    Some(files)
}

fn tensors(file: &Path) -> TractResult<HashMap<String, Tensor>> {
    use ndarray_npy::NpzReader;
    let mut npz = NpzReader::new(std::fs::File::open(file)?)?;
    let mut tensors = HashMap::new();
    for name in npz.names()? {
        macro_rules! read {
            ($($t:ty),*) => {
                $(if let Ok(array) = npz.by_name::<tract_ndarray::OwnedRepr<$t>, tract_ndarray::IxDyn>(&name) {
                    tensors.insert(name.trim_end_matches(".npy").to_string(), array.into_tensor());
                    continue;
                })*
            };
        }
        read!(f32, u8, i8, i32, f64, i64);
        bail!("{name}: a type that no case has");
    }
    Ok(tensors)
}

/// Compares results: floats within 2e-5 of the largest, integers exactly.
fn compare(found: &Tensor, expected: &Tensor) -> TractResult<()> {
    ensure!(found.shape() == expected.shape(), "{:?} for {:?}", found.shape(), expected.shape());
    let tolerance = if found.datum_type().is_float() { 2e-5 } else { 0.0 };
    let (found, expected) = (found.cast_to::<f64>()?, expected.cast_to::<f64>()?);
    let (found, expected) = (found.try_as_plain_ram()?, expected.try_as_plain_ram()?);
    let pairs = found.as_slice::<f64>()?.iter().zip(expected.as_slice::<f64>()?);
    let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let largest = expected.as_slice::<f64>()?.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    let allowed = tolerance * largest;
    ensure!(most <= allowed, "{most} apart, where {largest} is the largest");
    Ok(())
}

#[test]
fn the_shared_nodes_give_their_values_in_the_quantised_op() -> TractResult<()> {
    let Some(files) = shared() else { return Ok(()) };
    let mut wrong = vec![];
    for file in &files {
        let name = file.file_stem().unwrap().to_string_lossy().to_string();
        for stage in Stage::ALL {
            let check = || -> TractResult<()> {
                let tensors = tensors(&file.with_extension("npz"))?;
                let proto = tract_onnx::onnx().proto_model_for_path(file)?;
                let names: Vec<String> = proto.graph.as_ref().unwrap().input.iter().map(|i| i.name.clone()).collect();
                let inputs: Vec<Tensor> = names.iter().map(|name| tensors[name].clone()).collect();
                let model = stage.of(load(&proto)?)?;
                let names: Vec<StaticName> = model.nodes().iter().map(|node| node.op.name()).collect();
                ensure!(is_quantised(&model) != name.starts_with("weight"), "ops: {names:?}");
                let found = run(model, &inputs)?.remove(0);
                ensure!(found.datum_type() == tensors["expected"].datum_type(), "{:?}", found.datum_type());
                compare(&found, &tensors["expected"])
            };
            if let Err(error) = check() {
                wrong.push(format!("{name} {stage:?}: {error:#}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Loads a drawn case at each stage, and checks the op and the numbers.
fn check(case: &Case) -> TractResult<()> {
    let model = load(&case.proto())?;
    for stage in Stage::ALL {
        let model = stage.of(model.clone())?;
        let names: Vec<StaticName> = model.nodes().iter().map(|node| node.op.name()).collect();
        ensure!(is_quantised(&model), "{stage:?}: {names:?}");
        if stage == Stage::Optimised {
            let floats = count::<GroupedDeconv>(&model) + count::<OptGroupedDeconv>(&model);
            ensure!(floats == 0 && count::<DequantizeLinearF32>(&model) == 0, "{names:?}");
        }
        case.check(&run(model, std::slice::from_ref(&case.x.values))?.remove(0))
            .with_context(|| format!("{stage:?}"))?;
    }
    Ok(())
}

#[test]
fn random_nodes_give_the_definition_s_values() {
    let most = std::env::var("TRACT_DECONV_QUANTISED_CASES").map_or(120, |count| count.parse().expect("a number"));
    let mut met: Vec<Form> = vec![];
    for seed in 0..most {
        let case = Case::draw(&mut Random(seed));
        met.push(case.form);
        check(&case).unwrap_or_else(|e| panic!("seed {seed}, {case:?}: {e:#}"));
    }
    assert!(FORMS.iter().all(|form| met.contains(form)), "{met:?}");
}

/// Returns a drawn case of a form that fits.
fn drawn(form: Form, fits: impl Fn(&Case) -> bool) -> Case {
    (0..).map(|seed| Case::draw(&mut Random(1000 + seed))).find(|case| case.form == form && fits(case)).unwrap()
}

/// A chain of a forward and a transposed layer between f32 data and f32 results. With `twice`, the
/// results of the first are an output, too.
fn chain(twice: bool, residual: bool) -> ModelProto {
    let mut random = Random(5);
    let byte = |value| integers(DatumType::U8, &[], &[value]);
    let mut model = Model::opset(13)
        .input("x", DatumType::F32, &sizes(&[1, 4, 6, 7]))
        .initializer("w1", &random.tensor(DatumType::I8, &[5, 4, 3, 3]))
        .initializer("w2", &random.tensor(DatumType::I8, &[5, 3, 4, 4]))
        .initializer("b1", &random.tensor(DatumType::F32, &[5]))
        .initializer("s", &tensor0(0.02f32))
        .initializer("z", &byte(120))
        .initializer("zw", &integers(DatumType::I8, &[], &[0]))
        .initializer("s1", &tensor0(0.4f32))
        .initializer("z1", &byte(3))
        .initializer("s2", &tensor0(1.5f32))
        .initializer("z2", &byte(99));
    let node = |op: &str, name: &str, inputs: &[&str]| Node::new(op).named(name).inputs(inputs).output(name);
    model = model
        .node(node("QuantizeLinear", "q0", &["x", "s", "z"]))
        .node(node("DequantizeLinear", "d0", &["q0", "s", "z"]))
        .node(node("DequantizeLinear", "dw1", &["w1", "s", "zw"]))
        .node(node("Conv", "c1", &["d0", "dw1", "b1"]).ints("pads", &[1, 1, 1, 1]));
    let mut last = "c1";
    if residual {
        model = model
            .input("r", DatumType::U8, &sizes(&[1, 5, 6, 7]))
            .node(node("DequantizeLinear", "dr", &["r", "s1", "z"]))
            .node(node("Add", "sum", &["dr", "c1"]));
        last = "sum";
    }
    model = model
        .node(node("Relu", "r1", &[last]))
        .node(node("QuantizeLinear", "q1", &["r1", "s1", "z1"]))
        .node(node("DequantizeLinear", "d1", &["q1", "s1", "z1"]))
        .node(node("DequantizeLinear", "dw2", &["w2", "s", "zw"]))
        .node(node("ConvTranspose", "c2", &["d1", "dw2"]).ints("strides", &[2, 2]).ints("pads", &[1, 1, 1, 1]))
        .node(node("QuantizeLinear", "q2", &["c2", "s2", "z2"]))
        .node(node("DequantizeLinear", "y", &["q2", "s2", "z2"]))
        .output("y");
    if twice {
        model = model.output("c1");
    }
    model.build()
}

fn inputs_of_chain(residual: bool) -> Vec<Tensor> {
    let mut random = Random(6);
    let mut inputs = vec![random.tensor(DatumType::F32, &[1, 4, 6, 7])];
    if residual {
        inputs.push(random.tensor(DatumType::U8, &[1, 5, 6, 7]));
    }
    inputs
}

/// Compares with stock tract, whose f32 sums may round to the neighbouring integer.
fn close_to_stock(proto: &ModelProto, inputs: &[Tensor], step: f64) -> TractResult<()> {
    let stock = run(load_stock(proto)?.into_optimized()?, inputs)?;
    for stage in Stage::ALL {
        for (ours, stock) in run(stage.of(load(proto)?)?, inputs)?.iter().zip(&stock) {
            let (ours, stock) = (ours.cast_to::<f64>()?, stock.cast_to::<f64>()?);
            let (ours, stock) = (ours.to_plain_array_view::<f64>()?, stock.to_plain_array_view::<f64>()?);
            ensure!(ours.shape() == stock.shape(), "{:?} for {:?}", ours.shape(), stock.shape());
            let apart = ours.iter().zip(&stock).filter(|(a, b)| (*a - *b).abs() > 1e-4).count();
            let most = ours.iter().zip(&stock).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            ensure!(
                most <= step * 1.001 && apart * 50 <= ours.len(),
                "{stage:?}: {apart} of {} differ, by {most}",
                ours.len()
            );
        }
    }
    Ok(())
}

#[test]
fn layers_in_a_chain_pass_bytes() -> TractResult<()> {
    for residual in [false, true] {
        let proto = chain(false, residual);
        let model = load(&proto)?.into_optimized()?;
        let order = model.eval_order()?;
        let layers: Vec<usize> =
            order.iter().copied().filter(|id| model.node(*id).op_is::<OptQuantisedDeconv>()).collect();
        assert_eq!(layers.len(), 2, "{model}");
        for id in &layers {
            let (inputs, outputs) = model.node_facts(*id)?;
            let facts = inputs.iter().chain(&outputs);
            assert!(facts.clone().all(|fact| fact.datum_type == DatumType::U8), "{model}");
        }
        assert_eq!(model.node(layers[1]).inputs[0].node, layers[0], "{model}");
        assert_eq!(count::<DequantizeLinearF32>(&model), 1, "only that of the output: {model}");
        close_to_stock(&proto, &inputs_of_chain(residual), 1.5)?;
    }
    Ok(())
}

/// A residual block: a layer, a pool, a layer that is added to the pool's results, a join with another
/// tensor, and a depthwise layer. `pool_scale` is that of the pool's results.
fn block(pool_scale: f32, limited: bool) -> ModelProto {
    let mut random = Random(15);
    let byte = |value| integers(DatumType::U8, &[], &[value]);
    let mut model = Model::opset(13)
        .input("x", DatumType::U8, &sizes(&[1, 4, 12, 20]))
        .input("other", DatumType::U8, &sizes(&[1, 2, 6, 10]))
        .initializer("w1", &random.tensor(DatumType::I8, &[6, 4, 3, 3]))
        .initializer("w2", &random.tensor(DatumType::I8, &[6, 6, 3, 3]))
        .initializer("w3", &random.tensor(DatumType::I8, &[8, 1, 3, 3]))
        .initializer("zw", &integers(DatumType::I8, &[], &[0]))
        .initializer("s", &tensor0(0.021_37f32))
        .initializer("s1", &tensor0(0.413_1f32))
        .initializer("sp", &tensor0(pool_scale))
        .initializer("s2", &tensor0(0.918_7f32))
        .initializer("s3", &tensor0(2.571_9f32))
        .initializer("z", &byte(120))
        .initializer("zp", &byte(100));
    let node = |op: &str, name: &str, inputs: &[&str]| Node::new(op).named(name).inputs(inputs).output(name);
    let quantise = |name: &str, from: &str, scale: &str, zero: &str| {
        let quantised = format!("{name}.q");
        [
            Node::new("QuantizeLinear").named(&quantised).inputs(&[from, scale, zero]).output(&quantised),
            node("DequantizeLinear", name, &[&quantised, scale, zero]),
        ]
    };
    let pads = [1, 1, 1, 1];
    for (to, of) in [("dw1", "w1"), ("dw2", "w2"), ("dw3", "w3")] {
        model = model.node(node("DequantizeLinear", to, &[of, "s", "zw"]));
    }
    model = model
        .node(node("DequantizeLinear", "dx", &["x", "s", "z"]))
        .node(node("DequantizeLinear", "dother", &["other", "s2", "z"]))
        .node(node("Conv", "c1", &["dx", "dw1"]).ints("pads", &pads));
    let mut add = |nodes: &[Node]| {
        for node in nodes {
            model = std::mem::replace(&mut model, Model::opset(13)).node(node.clone());
        }
    };
    add(&quantise("d1", "c1", "s1", "z"));
    add(&[node("MaxPool", "p", &["d1"]).ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2])]);
    add(&quantise("dp", "p", "sp", "zp"));
    add(&[node("Conv", "c2", &["dp", "dw2"]).ints("pads", &pads)]);
    add(&quantise("d2", "c2", "s2", "z"));
    add(&[node("Add", "sum", &["d2", "dp"])]);
    if limited {
        add(&[node("Relu", "r", &["sum"])]);
    }
    add(&quantise("dr", if limited { "r" } else { "sum" }, "s2", "zp"));
    add(&[node("Concat", "joint", &["dr", "dother"]).int("axis", 1)]);
    add(&quantise("dj", "joint", "s2", "zp"));
    add(&[node("Conv", "c3", &["dj", "dw3"]).ints("pads", &pads).int("group", 8)]);
    model.node(node("QuantizeLinear", "y", &["c3", "s3", "z"])).output("y").build()
}

#[test]
fn bytes_pass_between_layers() -> TractResult<()> {
    let mut random = Random(16);
    let inputs = [random.tensor(DatumType::U8, &[1, 4, 12, 20]), random.tensor(DatumType::U8, &[1, 2, 6, 10])];
    for (pool_scale, limited, tables) in [(0.413_1, false, 2), (0.553_7, true, 2)] {
        let proto = block(pool_scale, limited);
        let model = load(&proto)?.into_optimized()?;
        assert_eq!(count::<OptQuantisedDeconv>(&model), 3, "{model}");
        assert_eq!(count::<ByteSum>(&model), 1, "{model}");
        assert_eq!(count::<ByteTable>(&model), tables, "{model}");
        let order = model.eval_order()?;
        let facts = order.iter().flat_map(|id| &model.node(*id).outputs).map(|output| &output.fact);
        let floats = facts.filter(|fact| fact.konst.is_none() && fact.datum_type.is_float()).count();
        assert_eq!(floats, 0, "{model}");
        let explained = explain(&model, &SymbolValues::default())?;
        if cfg!(target_arch = "x86_64") && tract_deconv::Isa::Avx2.is_available() {
            assert!(explained[2].to_string().contains("depthwise_bytes"), "{}", explained[2]);
        }
        close_to_stock(&proto, &inputs, 2.0)?;
    }
    Ok(())
}

/// Two quantised layers. `between` names nodes that make `middle` of `d1`, the dequantised results of the first.
fn with_between(between: &[Node]) -> ModelProto {
    let mut random = Random(23);
    let byte = |value: i32| integers(DatumType::U8, &[], &[value]);
    let node = |op: &str, name: &str, inputs: &[&str]| Node::new(op).named(name).inputs(inputs).output(name);
    let mut model = Model::opset(13)
        .input("x", DatumType::U8, &sizes(&[1, 4, 6, 7]))
        .initializer("w1", &random.tensor(DatumType::I8, &[5, 4, 3, 3]))
        .initializer("w2", &random.tensor(DatumType::I8, &[3, 5, 1, 1]))
        .initializer("zw", &integers(DatumType::I8, &[], &[0]))
        .initializer("s", &tensor0(0.02f32))
        .initializer("s1", &tensor0(0.4f32))
        .initializer("s2", &tensor0(1.5f32))
        .initializer("z", &byte(120))
        .initializer("scales", &tensor1(&[1f32, 1.0, 2.0, 2.0]))
        .node(node("DequantizeLinear", "dx", &["x", "s", "z"]))
        .node(node("DequantizeLinear", "dw1", &["w1", "s", "zw"]))
        .node(node("Conv", "c1", &["dx", "dw1"]).ints("pads", &[1, 1, 1, 1]))
        .node(node("QuantizeLinear", "q1", &["c1", "s1", "z"]))
        .node(node("DequantizeLinear", "d1", &["q1", "s1", "z"]));
    for node in between {
        model = model.node(node.clone());
    }
    model
        .node(node("QuantizeLinear", "q2", &["middle", "s1", "z"]))
        .node(node("DequantizeLinear", "d2", &["q2", "s1", "z"]))
        .node(node("DequantizeLinear", "dw2", &["w2", "s", "zw"]))
        .node(node("Conv", "c2", &["d2", "dw2"]))
        .node(node("QuantizeLinear", "q3", &["c2", "s2", "z"]))
        .node(node("DequantizeLinear", "y", &["q3", "s2", "z"]))
        .output("y")
        .build()
}

#[test]
fn what_stands_between_quantised_layers_is_replaced() -> TractResult<()> {
    let node = |op: &str, inputs: &[&str]| Node::new(op).named("r").inputs(inputs).output("middle");
    for (between, ours) in [
        (node("Resize", &["d1", "", "scales"]).string("mode", "linear"), "OptResize"),
        (node("ReduceMean", &["d1"]).ints("axes", &[2, 3]), "OptReduceSum"),
        // Means of nine values are not half way between two steps.
        (node("AveragePool", &["d1"]).ints("kernel_shape", &[3, 3]), "BetweenLayers"),
    ] {
        let proto = with_between(&[between]);
        let model = load(&proto)?.into_optimized()?;
        assert_eq!(count::<OptQuantisedDeconv>(&model), 2, "{model}");
        assert_eq!(model.nodes().iter().filter(|node| node.op.name() == ours).count(), 1, "{ours}: {model}");
        close_to_stock(&proto, &[Random(24).tensor(DatumType::U8, &[1, 4, 6, 7])], 1.5)?;
    }
    Ok(())
}

/// Results of bytes are the same with channels last, where several pixels are rescaled together.
#[test]
fn pixels_are_rescaled_as_planes_are() -> TractResult<()> {
    let mut random = Random(41);
    let cases = [Direction::Forward, Direction::Transposed].into_iter().flat_map(|of| [3, 5, 24, 64].map(|c| (of, c)));
    for ((direction, channels), group) in cases.flat_map(|case| [1, case.1].map(|group| (case, group))) {
        let spec = DeconvSpec {
            direction,
            data_format: DataFormat::Ncx,
            filter_format: if direction == Direction::Forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: channels,
            out_channels: channels,
            group,
            kernel: tvec!(3, 4),
            strides: tvec!(2, 3),
            dilations: tvec!(1, 1),
            padding: Padding::Explicit { begin: tvec!(1, 2), end: tvec!(0, 1) },
            output_padding: tvec!(0, 0),
        };
        let filter = random.tensor(DatumType::I8, &spec.filter_shape()).into_arc_tensor();
        let x = random.tensor(DatumType::U8, &[2, channels, 7, 9]);
        let scales: Vec<Scale> =
            (0..channels).map(|c| Scale::new("w", 0.01 + c as f32 / 997.0)).collect::<TractResult<_>>()?;
        let results = |data_format: DataFormat, x: Tensor| -> TractResult<Tensor> {
            let to = Quantisation::new("y", Scale::new("y", 0.37)?, 128, DatumType::U8)?;
            let output = Output::Quantised(Scaling::of_scales(Scale::new("x", 0.02)?, &scales)?, to);
            let spec = DeconvSpec { data_format, ..spec.clone() };
            let zero_point = DataZeroPoint::Const(113);
            let op = QuantisedDeconv::new(spec, Dialect::Onnx, zero_point, tvec!(0), output, PlanOptions::default())?;
            let mut model = TypedModel::default();
            let source = model.add_source("x", DatumType::U8.fact(x.shape()))?;
            let filter = model.add_const("filter", Arc::clone(&filter))?;
            let y = model.wire_node("layer", op, &[source, filter])?;
            model.select_output_outlets(&y)?;
            Ok(model.into_optimized()?.into_runnable()?.run(tvec!(x.into_tvalue()))?.remove(0).into_tensor())
        };
        let planes = results(DataFormat::Ncx, x.clone())?;
        let pixels = results(DataFormat::Nxc, x.permute_axes(&[0, 2, 3, 1])?)?.permute_axes(&[0, 3, 1, 2])?;
        assert_eq!(planes, pixels, "{direction:?}, {channels} channels in {group} groups");
    }
    Ok(())
}

/// SiLU is a product of values and of another function of the same bytes.
#[test]
fn functions_of_functions_of_bytes_are_one_table() -> TractResult<()> {
    let node = |op: &str, name: &str, inputs: &[&str]| Node::new(op).named(name).inputs(inputs).output(name);
    for operands in [["d1", "dg"], ["dg", "d1"]] {
        let proto = with_between(&[
            node("Sigmoid", "g", &["d1"]),
            node("QuantizeLinear", "qg", &["g", "s", "z"]),
            node("DequantizeLinear", "dg", &["qg", "s", "z"]),
            node("Mul", "middle", &operands),
        ]);
        let model = load(&proto)?.into_optimized()?;
        assert_eq!((count::<OptQuantisedDeconv>(&model), count::<ByteTable>(&model)), (2, 1), "{model}");
        assert_eq!(count::<DequantizeLinearF32>(&model), 1, "only the last: {model}");
        close_to_stock(&proto, &[Random(24).tensor(DatumType::U8, &[1, 4, 6, 7])], 1.5)?;
    }
    Ok(())
}

#[test]
fn a_value_that_something_else_reads_stays_real() -> TractResult<()> {
    let model = load(&chain(true, false))?.into_optimized()?;
    let layers = model.nodes().iter().filter_map(|node| node.op_as::<OptQuantisedDeconv>());
    let types: Vec<DatumType> = layers.map(|op| op.output().datum_type()).collect();
    assert_eq!(types, [DatumType::F32, DatumType::U8], "{model}");
    close_to_stock(&chain(true, false), &inputs_of_chain(false), 1.5)
}

#[test]
fn without_fusion_dequantised_layers_are_real() -> TractResult<()> {
    let options = Options::default().with_fusion(false);
    let onnx = tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&options)?;
    let model = onnx.model_for_proto_model(&chain(false, false))?.into_typed()?.into_optimized()?;
    assert!(!is_quantised(&model) && count::<OptGroupedDeconv>(&model) == 2, "{model}");
    Ok(())
}

/// Each switch takes the layers of its direction.
#[test]
fn the_switches_are_separate() -> TractResult<()> {
    let proto = chain(false, false);
    let only = |onnx: tract_onnx::Onnx| -> TractResult<String> {
        let model = onnx.model_for_proto_model(&proto)?.into_typed()?.into_decluttered()?;
        let layers = model.nodes().iter().filter(|node| node.op_is::<QuantisedDeconv>());
        Ok(layers.map(|node| node.name.clone()).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(only(tract_onnx::onnx().with_deconv())?, "c2");
    assert_eq!(only(tract_onnx::onnx().with_conv())?, "c1");
    assert_eq!(only(tract_onnx::onnx())?, "");
    for form in [Form::ConvInteger, Form::QLinearConv] {
        let proto = drawn(form, |_| true).proto();
        let model = tract_onnx::onnx().with_deconv().model_for_proto_model(&proto)?.into_typed()?;
        assert!(!is_quantised(&model) && count::<Conv>(&model) == 1, "{form:?}: {model}");
    }
    Ok(())
}

/// A dynamically quantised layer is one op, whatever follows.
#[test]
fn dynamic_quantisation_is_two_ops() -> TractResult<()> {
    let case = drawn(Form::Dynamic, |case| matches!(case.bias, Bias::Reals(_)));
    let model = load(&case.proto())?.into_optimized()?;
    let op = model.nodes().iter().find_map(|node| node.op_as::<OptQuantisedDeconv>()).unwrap();
    assert_eq!(op.output().datum_type(), DatumType::F32, "{model}");
    let rest: Vec<&TypedNode> = model.nodes().iter().filter(|node| node.op.name().contains("Add")).collect();
    assert!(rest.is_empty(), "{model}");
    // Data that are all zero have the scale zero.
    let zeros = Tensor::zero::<f32>(case.x.values.shape())?;
    let stock = run(load_stock(&case.proto())?.into_optimized()?, std::slice::from_ref(&zeros))?.remove(0);
    stock.close_enough(&run(model.clone(), &[zeros])?[0], false)?;
    let mut wrong = case.x.values.clone();
    wrong.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?[0] = f32::INFINITY;
    refused(guarded(|| run(model, &[wrong])), &["scale: scale=Some(inf), it must be finite"])
        .map_err(|e| format_err!("{e}"))
}

#[test]
fn explain_shows_the_op() -> TractResult<()> {
    for stage in [Stage::Decluttered, Stage::Optimised] {
        let model = stage.of(load(&chain(false, false))?)?;
        let explained = explain(&model, &SymbolValues::default())?;
        assert_eq!(explained.len(), 2);
        let text = explained[0].to_string();
        assert!(
            text.contains("quantised, to U8 of scale 0.4 and zero point 3, per tensor, bias, within 0..=inf"),
            "{text}"
        );
        assert!(text.contains("  runs "), "{text}");
    }
    Ok(())
}

/// Returns a case with one tensor replaced by name.
fn with_tensor(proto: &ModelProto, name: &str, tensor: &Tensor) -> ModelProto {
    let mut proto = proto.clone();
    let graph = proto.graph.as_mut().unwrap();
    let found = graph.initializer.iter_mut().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}"));
    found.dims = tensor.shape().iter().map(|d| *d as i64).collect();
    found.data_type = crate::common::proto::data_type(tensor.datum_type()) as i32;
    found.raw_data = tensor.as_bytes().to_vec();
    proto
}

#[test]
fn hostile_scales_are_refused() {
    let per_tensor = |case: &Case| case.w.scales.len() == 1;
    let conv = drawn(Form::QLinearConv, per_tensor);
    let dequantised = drawn(Form::Dequantised, per_tensor);
    for (case, names) in [(conv, ["xs", "ws", "ys"]), (dequantised, ["xs", "ws", "ys"])] {
        for name in names {
            for value in [0f32, -1.0, f32::NAN, f32::INFINITY] {
                let proto = with_tensor(&case.proto(), name, &tensor0(value));
                let words = format!("scale={value}, it must be positive and finite");
                let result = guarded(|| load(&proto));
                refused(result, &[&words]).unwrap_or_else(|e| panic!("{:?} {name} {value}: {e}", case.form));
            }
        }
    }
}

/// A vector of a grouped transposed filter has the channels of one group.
#[test]
fn a_vector_of_another_length_is_refused() -> TractResult<()> {
    let grouped = |case: &Case| {
        case.spec.direction == tract_deconv::Direction::Transposed && case.spec.group > 1 && case.spec.group_out() > 1
    };
    let case = drawn(Form::Dequantised, |case| grouped(case) && case.w.scales.len() > 1);
    check(&case)?;
    let scales = tensor1(&vec![0.1f32; case.spec.out_channels]);
    let proto = with_tensor(&case.proto(), "ws", &scales);
    refused(guarded(|| load(&proto)), &[""]).map_err(|e| format_err!("{e}"))
}

#[test]
fn every_opset_of_the_operators_loads() -> TractResult<()> {
    for form in FORMS {
        let case = drawn(form, |case| case.w.scales.len() == 1);
        for version in [10, 11, 13, 19, 21, 22] {
            let mut proto = case.proto();
            let dynamic = form == Form::Dynamic && version < 11;
            let clip = case.limits.is_some() && version < 11;
            if dynamic || clip {
                continue; // DynamicQuantizeLinear and bounds of Clip as inputs are of opset 11
            }
            proto.opset_import[0].version = version;
            let model = load(&proto)?.into_optimized()?;
            assert!(is_quantised(&model), "{form:?} {version}: {model}");
            case.check(&run(model, std::slice::from_ref(&case.x.values))?[0])?;
        }
    }
    Ok(())
}

/// What the op does not compute stays what it is without it.
#[test]
fn other_forms_stay_as_they_are() -> TractResult<()> {
    // A vector along the input channels of a filter.
    let case = drawn(Form::Dequantised, |case| {
        case.spec.direction == tract_deconv::Direction::Forward && case.spec.group == 1 && case.spec.in_channels == 3
    });
    let mut proto = with_tensor(&case.proto(), "ws", &tensor1(&[0.1f32, 0.2, 0.3]));
    proto = with_tensor(&proto, "wz", &integers(case.w.values.datum_type(), &[3], &[1, 2, 3]));
    let node = proto.graph.as_mut().unwrap().node.iter_mut().find(|node| node.name == "dw").unwrap();
    node.attribute.iter_mut().for_each(|axis| axis.i = 1);
    assert!(!is_quantised(&load(&proto)?.into_decluttered()?));
    close_to_stock(&proto, std::slice::from_ref(&case.x.values), 1.0)?;

    // A filter that is known at run time only.
    let case = drawn(Form::ConvInteger, |_| true);
    let mut proto = case.proto();
    let graph = proto.graph.as_mut().unwrap();
    let at = graph.initializer.iter().position(|t| t.name == "w").unwrap();
    graph.initializer.remove(at);
    let w = &case.w.values;
    let input = Model::opset(13).input("w", w.datum_type(), &sizes(w.shape())).build();
    graph.input.extend(input.graph.unwrap().input);
    let model = load(&proto)?;
    assert_eq!(count::<Conv>(&model), 1, "{model}");
    let left = left_to_tract(&model)?;
    assert_eq!(left[0].reason.as_deref(), Some("filter: it is known at run time only"));
    case.check(&run(model, &[case.x.values.clone(), w.clone()])?[0])?;

    // Sums that could leave 32 bits.
    let proto = Model::opset(13)
        .input("x", DatumType::U8, &sizes(&[1, 33_100, 1]))
        .initializer("w", &integers(DatumType::U8, &[1, 33_100, 1], &[255; 33_100]))
        .node(Node::new("ConvInteger").inputs(&["x", "w"]).output("y"))
        .output("y")
        .build();
    let model = load(&proto)?;
    assert_eq!(count::<Conv>(&model), 1, "{model}");
    let reason = left_to_tract(&model)?[0].reason.clone().unwrap_or_default();
    assert!(reason.contains("sums could leave 32 bits"), "{reason}");
    Ok(())
}

/// A zero point of the data may be computed in the model.
#[test]
fn a_zero_point_at_run_time() -> TractResult<()> {
    let case = drawn(Form::ConvInteger, |case| case.x.zeros[0] != 0);
    let mut proto = case.proto();
    let graph = proto.graph.as_mut().unwrap();
    let at = graph.initializer.iter().position(|t| t.name == "xz").unwrap();
    graph.initializer.remove(at);
    let dt = case.x.values.datum_type();
    graph.input.extend(Model::opset(13).input("xz", dt, &[]).build().graph.unwrap().input);
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        assert!(is_quantised(&model), "{model}");
        let zero = integers(dt, &[], &case.x.zeros);
        case.check(&run(model, &[case.x.values.clone(), zero])?[0])?;
    }
    Ok(())
}

/// Models that tract alone has loaded hold its own quantised convolutions.
#[test]
fn the_transform_takes_quantised_convolutions_of_tract_s() -> TractResult<()> {
    for form in [Form::ConvInteger, Form::QLinearConv] {
        for seed in 0..10 {
            let case = drawn(form, |case| case.spec.in_channels % 4 == seed % 4);
            for decluttered in [false, true] {
                let mut model = load_stock(&case.proto())?;
                if decluttered {
                    model = model.into_decluttered()?;
                }
                if count::<Conv>(&model) == 0 {
                    continue; // tract has made a matrix product of it
                }
                assert_eq!(left_to_tract(&model)?[0].reason, None, "{case:?}");
                tract_core::transform::get_transform("conv")?.unwrap().transform(&mut model)?;
                assert!(is_quantised(&model), "{model}");
                for stage in Stage::ALL {
                    case.check(&run(stage.of(model.clone())?, std::slice::from_ref(&case.x.values))?[0])?;
                }
            }
        }
    }
    Ok(())
}

/// Dumps a model to NNEF and loads it again.
#[cfg(feature = "nnef")]
#[test]
fn nnef_keeps_every_form() -> TractResult<()> {
    let nnef = tract_nnef::nnef().with_deconv().with_conv();
    for seed in 0..40 {
        let case = Case::draw(&mut Random(500 + seed));
        if case.form == Form::Dynamic {
            continue; // tract does not write DynamicQuantizeLinear
        }
        let again = || -> TractResult<()> {
            let model = load(&case.proto())?.into_decluttered()?;
            let tar = nnef.write_to_tar(&model, vec![])?;
            let again = nnef.model_for_read(&mut &*tar)?;
            let ops = |model: &TypedModel| {
                model.nodes().iter().filter_map(|node| node.op_as::<QuantisedDeconv>().cloned()).collect::<Vec<_>>()
            };
            ensure!(ops(&model) == ops(&again), "{:?}\n{:?}", ops(&model), ops(&again));
            for stage in Stage::ALL {
                case.check(&run(stage.of(again.clone())?, std::slice::from_ref(&case.x.values))?[0])?;
            }
            Ok(())
        };
        again().unwrap_or_else(|e| panic!("seed {seed}, {case:?}: {e:#}"));
    }
    Ok(())
}

/// Symbolic sizes, an empty batch, and shapes that do not fit.
#[test]
fn sizes_that_are_known_at_run_time() -> TractResult<()> {
    for form in FORMS {
        let case = drawn(form, |_| true);
        let mut proto = case.proto();
        let shape = case.x.values.shape();
        let mut dims: Vec<crate::common::proto::Dim> = vec!["N".into(), shape[1].into()];
        dims.extend((2..shape.len()).map(|axis| crate::common::proto::Dim::from(&*format!("X{axis}"))));
        let graph = proto.graph.as_mut().unwrap();
        graph.input = Model::opset(13).input("x", case.x.values.datum_type(), &dims).build().graph.unwrap().input;
        for stage in Stage::ALL {
            let model = stage.of(load(&proto)?)?;
            assert!(is_quantised(&model), "{form:?}: {model}");
            case.check(&run(model.clone(), std::slice::from_ref(&case.x.values))?[0])
                .with_context(|| format!("{form:?}"))?;
            let mut none: TVec<usize> = shape.into();
            none[0] = 0;
            let nothing = Tensor::zero_dt(case.x.values.datum_type(), &none)?;
            assert_eq!(run(model.clone(), &[nothing])?[0].shape()[0], 0, "{form:?}");
            if form != Form::Dynamic {
                none[0] = 1;
                none[1] += 1;
                let wrong = Tensor::zero_dt(case.x.values.datum_type(), &none)?;
                let words = ["channels", "Clashing resolution", "nconsistent", "unify"];
                refused(guarded(|| run(model, &[wrong])), &words).unwrap_or_else(|e| panic!("{form:?}: {e}"));
            }
        }
    }
    Ok(())
}

/// A forced strategy is that of layers of floats.
#[test]
fn a_forced_strategy_does_not_stop_quantised_layers() -> TractResult<()> {
    for form in FORMS {
        let case = drawn(form, |_| true);
        let options = Options::default().with_strategy("winograd");
        let onnx = tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&options)?;
        let model = onnx.model_for_proto_model(&case.proto())?.into_typed()?.into_optimized()?;
        assert!(is_quantised(&model), "{form:?}: {model}");
        case.check(&run(model, std::slice::from_ref(&case.x.values))?[0])?;
    }
    Ok(())
}

/// Zero points may be left out, and the bias of a QLinearConv too.
#[test]
fn absent_zero_points_are_zero() -> TractResult<()> {
    for form in [Form::ConvInteger, Form::Dequantised] {
        let zero = |case: &Case| case.x.values.datum_type() == DatumType::U8 && case.w.scales.len() == 1;
        let mut case = drawn(form, |case| zero(case) && case.y.2 == DatumType::U8 && matches!(case.bias, Bias::None));
        case.x.zeros = vec![0];
        case.w.zeros = vec![0];
        case.y.1 = 0;
        let mut proto = case.proto();
        for node in &mut proto.graph.as_mut().unwrap().node {
            match &*node.op_type {
                "DequantizeLinear" | "QuantizeLinear" | "ConvInteger" => node.input.truncate(2),
                _ => {}
            }
        }
        // Without a zero point, tract takes the type of weights from the tensor.
        for stage in Stage::ALL {
            let model = stage.of(load(&proto)?)?;
            assert!(is_quantised(&model), "{form:?}: {model}");
            case.check(&run(model, std::slice::from_ref(&case.x.values))?[0]).with_context(|| format!("{form:?}"))?;
        }
    }
    Ok(())
}

/// Quantised layers in a branch of If are optimised with the model.
#[test]
fn a_branch_of_a_condition() -> TractResult<()> {
    let case = drawn(Form::QLinearConv, |_| true);
    let mut branch = case.proto();
    let graph = branch.graph.as_mut().unwrap();
    graph.input.clear();
    let of = |name: &str| {
        let mut body = branch.clone();
        let graph = body.graph.as_mut().unwrap();
        graph.node.iter_mut().for_each(|node| node.output = vec![format!("{name}_y")]);
        graph.output[0].name = format!("{name}_y");
        let model = Model::default().output("none");
        let mut proto = model.build();
        proto.graph = body.graph;
        proto
    };
    let (then, other) = (of("then"), of("else"));
    let mut proto = Model::opset(13)
        .input("x", case.x.values.datum_type(), &sizes(case.x.values.shape()))
        .raw_input("c", tract_onnx::pb::tensor_proto::DataType::Bool, &[])
        .node(Node::new("If").inputs(&["c"]).output("y"))
        .output("y")
        .build();
    let attribute = |name: &str, body: ModelProto| tract_onnx::pb::AttributeProto {
        name: name.into(),
        r#type: tract_onnx::pb::attribute_proto::AttributeType::Graph as i32,
        g: body.graph,
        ..Default::default()
    };
    proto.graph.as_mut().unwrap().node[0].attribute =
        vec![attribute("then_branch", then), attribute("else_branch", other)];
    let model = load(&proto)?.into_optimized()?;
    let names: Vec<String> = explain(&model, &SymbolValues::default())?.into_iter().map(|layer| layer.name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let inputs = [case.x.values.clone(), tensor0(true)];
    case.check(&run(model, &inputs)?[0])
}

/// Transposes around a layer cancel, as they do around layers of floats.
#[test]
fn axes_move_through_the_op() -> TractResult<()> {
    let case = drawn(Form::QLinearConv, |case| case.spec.rank() == 2);
    let mut proto = case.proto();
    let graph = proto.graph.as_mut().unwrap();
    let shape = case.x.values.shape();
    let last = [shape[0], shape[2], shape[3], shape[1]];
    graph.input = Model::opset(13).input("l", case.x.values.datum_type(), &sizes(&last)).build().graph.unwrap().input;
    let around = Model::opset(13)
        .node(Node::new("Transpose").named("before").ints("perm", &[0, 3, 1, 2]).inputs(&["l"]).output("x"))
        .node(Node::new("Transpose").named("after").ints("perm", &[0, 2, 3, 1]).inputs(&["y"]).output("z"))
        .output("z")
        .build();
    let around = around.graph.unwrap();
    graph.node.insert(0, around.node[0].clone());
    graph.node.push(around.node[1].clone());
    graph.output = around.output;
    let x = case.x.values.clone().permute_axes(&[0, 2, 3, 1])?;
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        if stage != Stage::Typed {
            assert_eq!(count::<AxisOp>(&model), 0, "{model}");
        }
        let y = run(model, std::slice::from_ref(&x))?.remove(0).into_tensor();
        case.check(&y.permute_axes(&[0, 3, 1, 2])?)?;
    }
    Ok(())
}

/// Nodes with something wrong are computed or refused, but never panic.
#[test]
fn mutated_nodes_do_not_panic() {
    let most = std::env::var("TRACT_DECONV_QUANTISED_CASES").map_or(60, |count| count.parse().expect("a number"));
    for seed in 0..most {
        let mut random = Random(70_000 + seed);
        let case = Case::draw(&mut random);
        let mut proto = case.proto();
        let graph = proto.graph.as_mut().unwrap();
        for _ in 0..1 + random.below(3) {
            mutate(graph, &mut random);
        }
        let stock = guarded(|| load_stock(&proto)?.into_optimized());
        for stage in Stage::ALL {
            let result = guarded(|| run(stage.of(load(&proto)?)?, std::slice::from_ref(&case.x.values)));
            // tract's own code panics on some of them.
            if let (Err(crate::common::run::Failure::Panic(message)), false) = (&result, is_panic(&stock)) {
                let ours = message.contains(" src/") || message.contains("tract-deconv");
                assert!(!ours, "seed {seed} {stage:?}: {message}\n{proto:?}");
            }
        }
    }
}

fn is_panic<T>(result: &Result<T, crate::common::run::Failure>) -> bool {
    matches!(result, Err(crate::common::run::Failure::Panic(_)))
}

fn mutate(graph: &mut tract_onnx::pb::GraphProto, random: &mut Random) {
    use tract_onnx::pb::tensor_proto::DataType;
    let pick = |random: &mut Random, count: usize| random.below(count.max(1));
    let at = pick(random, graph.node.len());
    match random.below(7) {
        0 | 1 => {
            let at = pick(random, graph.initializer.len());
            let tensor = &mut graph.initializer[at];
            let axis = pick(random, tensor.dims.len());
            match (random.below(4), tensor.dims.get_mut(axis)) {
                (0, Some(dim)) => *dim = random.below(4) as i64,
                (1, _) => tensor.dims.push(1),
                (2, Some(_)) => drop(tensor.dims.remove(axis)),
                _ => tensor.dims.clear(),
            }
            let size = match DataType::try_from(tensor.data_type) {
                Ok(DataType::Float | DataType::Int32) => 4,
                _ => 1,
            };
            let len = tensor.dims.iter().product::<i64>() as usize * size;
            tensor.raw_data = random.bytes(len);
        }
        2 => {
            let at = pick(random, graph.initializer.len());
            let tensor = &mut graph.initializer[at];
            let types = [DataType::Uint8, DataType::Int8, DataType::Int32, DataType::Float];
            let (dt, size) = [(types[0], 1), (types[1], 1), (types[2], 4), (types[3], 4)][random.below(4)];
            tensor.data_type = dt as i32;
            let len = tensor.dims.iter().product::<i64>() as usize * size;
            tensor.raw_data = random.bytes(len);
        }
        3 | 4 => {
            let node = &mut graph.node[at];
            let attribute = pick(random, node.attribute.len());
            let value = [0, -1, 1, 2, 7, i64::MAX, i64::MIN, 1 << 33][random.below(8)];
            if let Some(attribute) = node.attribute.get_mut(attribute) {
                let element = pick(random, attribute.ints.len());
                match attribute.ints.get_mut(element) {
                    Some(element) => *element = value,
                    None => attribute.i = value,
                }
            }
        }
        5 => {
            let node = &mut graph.node[at];
            let input = pick(random, node.input.len());
            match node.input.get_mut(input) {
                Some(name) if random.below(2) == 0 => name.clear(),
                _ => node.input.truncate(input),
            }
        }
        _ => {
            let node = &mut graph.node[at];
            let (one, two) = (pick(random, node.input.len()), pick(random, node.input.len()));
            if !node.input.is_empty() {
                node.input.swap(one, two);
            }
        }
    }
}

/// Halves go to the even neighbour, and results saturate.
#[test]
fn results_are_rounded_half_to_even_and_saturate() -> TractResult<()> {
    let x = integers(DatumType::U8, &[1, 1, 8], &[0, 1, 2, 3, 4, 5, 7, 255]);
    let expected: [(DatumType, i32, f32, [i32; 8]); 4] = [
        (DatumType::U8, 0, 1.0, [0, 0, 1, 2, 2, 2, 4, 128]),
        (DatumType::I8, -3, 1.0, [-3, -3, -2, -1, -1, -1, 1, 125]),
        (DatumType::I8, 0, 0.25, [0, 2, 4, 6, 8, 10, 14, 127]),
        (DatumType::U8, 200, 1.0, [200, 200, 201, 202, 202, 202, 204, 255]),
    ];
    for (dt, zero, scale, values) in expected {
        let byte = |value| integers(DatumType::U8, &[], &[value]);
        let proto = Model::opset(10)
            .input("x", DatumType::U8, &sizes(x.shape()))
            .initializer("half", &tensor0(0.5f32))
            .initializer("one", &tensor0(1f32))
            .initializer("none", &byte(0))
            .initializer("w", &integers(DatumType::U8, &[1, 1, 1], &[1]))
            .initializer("ys", &tensor0(scale))
            .initializer("yz", &integers(dt, &[], &[zero]))
            .node(Node::new("QLinearConv").inputs(&["x", "half", "none", "w", "one", "none", "ys", "yz"]).output("y"))
            .output("y")
            .build();
        for stage in Stage::ALL {
            let y = run(stage.of(load(&proto)?)?, std::slice::from_ref(&x))?.remove(0);
            assert_eq!(*y, integers(dt, &[1, 1, 8], &values), "{stage:?}");
        }
    }
    Ok(())
}

/// A 1×1 layer of bytes behind `data`, of scale 1.
fn layer_behind(model: Model, data: &str) -> Model {
    model
        .initializer("w", &Tensor::zero::<i8>(&[1, 2, 1, 1]).expect("a small tensor"))
        .node(Node::new("DequantizeLinear").named("dq.x").inputs(&[data, "one", "zero"]).output("layer.x"))
        .node(Node::new("DequantizeLinear").named("dq.w").inputs(&["w", "one", "zero.w"]).output("layer.w"))
        .node(Node::new("Conv").inputs(&["layer.x", "layer.w"]).output("y"))
        .initializer("one", &tensor0(1f32))
        .initializer("zero.w", &tensor0(0i8))
}

/// Ties and their neighbours, NaN, and others, but no products beyond 31 bits, where tract's op overflows.
fn values_to_quantise(scale: f32) -> Tensor {
    let ties = (-600..600).flat_map(|half| {
        let tie = half as f32 * 0.5 * scale;
        [tie.next_down(), tie, tie.next_up(), (half as f32).sin() * 150.0 * scale]
    });
    let special = [f32::NAN, -0.0, 1e-40, 1e9 * scale, -1e9 * scale, 300.0 * scale, -300.0 * scale, 0.0];
    let values: Vec<f32> = ties.chain(special).collect();
    tensor1(&values).into_shape(&[1, 2, values.len() / 2, 1]).expect("as many elements")
}

#[test]
fn quantize_linear_near_a_layer_gives_what_tract_gives() -> TractResult<()> {
    for (scale, zero) in [(0.017_770_858_f32, tensor0(121u8)), (0.1, tensor0(0u8)), (1.0, tensor0(-3i8))] {
        let x = values_to_quantise(scale);
        let model = Model::opset(13)
            .input("x", DatumType::F32, &sizes(x.shape()))
            .initializer("scale", &tensor0(scale))
            .initializer("zero", &zero)
            .node(Node::new("QuantizeLinear").inputs(&["x", "scale", "zero"]).output("q"));
        let proto = layer_behind(model, "q").output("q").output("y").build();
        let expected = run(load_stock(&proto)?, std::slice::from_ref(&x))?.remove(0);
        let model = load(&proto)?.into_optimized()?;
        ensure!(count::<OptQuantise>(&model) == 1 && count::<OptQuantisedDeconv>(&model) == 1, "{model}");
        let found = run(model, &[x])?.remove(0);
        ensure!(found == expected, "scale {scale}, {zero:?}");
    }
    Ok(())
}

#[test]
fn quantize_linear_of_infinities_saturates() -> TractResult<()> {
    let x = tensor1(&[f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN]).into_shape(&[1, 2, 2, 1])?;
    for (zero, [least, most]) in [(tensor0(9u8), [0, 255]), (tensor0(-9i8), [-128, 127])] {
        let model = Model::opset(13)
            .input("x", DatumType::F32, &sizes(x.shape()))
            .initializer("scale", &tensor0(0.25f32))
            .initializer("zero", &zero)
            .node(Node::new("QuantizeLinear").inputs(&["x", "scale", "zero"]).output("q"));
        let proto = layer_behind(model, "q").output("q").output("y").build();
        let found = run(load(&proto)?.into_optimized()?, std::slice::from_ref(&x))?.remove(0);
        let found = found.cast_to::<i32>()?;
        let found = found.try_as_plain_ram()?;
        ensure!(found.as_slice::<i32>()? == [most, least, most, least], "{:?}", found.as_slice::<i32>()?);
    }
    Ok(())
}

/// Element-wise nodes from `d` to `e`.
fn functions() -> Vec<(Node, Option<Tensor>)> {
    let slopes = |shape: &[usize], values: &[f32]| Some(tensor1(values).into_shape(shape).expect("as many values"));
    vec![
        (Node::new("LeakyRelu").inputs(&["d"]).float("alpha", 0.1), None),
        (Node::new("PRelu").inputs(&["d", "slope"]), slopes(&[1], &[0.3])),
        (Node::new("PRelu").inputs(&["d", "slope"]), slopes(&[2, 1, 1], &[0.25, -1.7])),
        (Node::new("Mul").inputs(&["d", "slope"]), slopes(&[1, 2, 1, 1], &[-0.7, f32::NAN])),
        (Node::new("Mul").inputs(&["d", "d"]), None),
        (Node::new("Sigmoid").inputs(&["d"]), None),
        (Node::new("Tanh").inputs(&["d"]), None),
        (Node::new("HardSwish").inputs(&["d"]), None),
    ]
}

/// All bytes of both channels through a function, where another node reads the function's input, so that
/// tract makes no table of its own.
fn function_of_bytes(function: &(Node, Option<Tensor>), [from, to]: [&Tensor; 2]) -> (ModelProto, Tensor) {
    let bytes = tensor1(&(0..512).map(|i| (i * 5 + i / 256) as u8).collect::<Vec<u8>>());
    let bytes = match from.datum_type() {
        DatumType::U8 => bytes,
        _ => tensor1(&bytes.try_as_plain_ram().unwrap().as_bytes().iter().map(|b| *b as i8).collect::<Vec<i8>>()),
    };
    let bytes = bytes.into_shape(&[1, 2, 256, 1]).expect("512 bytes");
    let model = Model::opset(14)
        .input("b", from.datum_type(), &sizes(bytes.shape()))
        .initializer("scale.b", &tensor0(0.043f32))
        .initializer("zero.b", from)
        .initializer("scale", &tensor0(0.017f32))
        .initializer("zero", to)
        .node(Node::new("DequantizeLinear").inputs(&["b", "scale.b", "zero.b"]).output("d"))
        .node(function.0.clone().output("e"))
        .node(Node::new("QuantizeLinear").inputs(&["e", "scale", "zero"]).output("q"));
    let model = match &function.1 {
        Some(slope) => model.initializer("slope", slope),
        None => model,
    };
    let model = model.node(Node::new("Neg").inputs(&["d"]).output("n"));
    (layer_behind(model, "q").output("q").output("y").output("n").build(), bytes)
}

#[test]
fn functions_of_bytes_are_tables_of_the_same_results() -> TractResult<()> {
    let zeros = [tensor0(121u8), tensor0(-5i8), tensor0(0u8)];
    for (at, function) in functions().iter().enumerate() {
        for zeros in [[&zeros[0], &zeros[2]], [&zeros[1], &zeros[1]], [&zeros[0], &zeros[1]], [&zeros[1], &zeros[0]]] {
            let (proto, bytes) = function_of_bytes(function, zeros);
            let expected = run(load_stock(&proto)?, std::slice::from_ref(&bytes))?;
            for stage in [Stage::Decluttered, Stage::Optimised] {
                let model = stage.of(load(&proto)?)?;
                ensure!(count::<ByteTable>(&model) == 1, "{at}, {stage:?}: {model}");
                let found = run(model, std::slice::from_ref(&bytes))?;
                ensure!(found[0] == expected[0], "{at}, {zeros:?}, {stage:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn without_fusion_there_are_no_tables() -> TractResult<()> {
    let zero = tensor0(7u8);
    let (proto, _) = function_of_bytes(&functions()[1], [&zero, &zero]);
    let options = Options::default().with_fusion(false);
    let onnx = tract_onnx::onnx().with_deconv_options(&options)?.with_conv();
    let model = onnx.model_for_proto_model(&proto)?.into_typed()?.into_optimized()?;
    ensure!(count::<ByteTable>(&model) + count::<OptQuantise>(&model) == 0, "{model}");
    Ok(())
}

#[test]
fn dynamic_quantize_linear_near_a_layer_gives_what_tract_gives() -> TractResult<()> {
    let column = |values: Vec<f32>| {
        let len = values.len();
        tensor1(&values).into_shape(&[1, 2, len / 2, 1]).expect("an even number of values")
    };
    let special = [f32::NAN, 0.3, -2.0, -0.0, 1e-40, 0.0];
    for x in [
        values_to_quantise(1.0),
        values_to_quantise(0.017),
        // the zero point and values on ties
        column((-506..=515).map(|half| half as f32 * 0.5).collect()),
        column(special.to_vec()),
        column(vec![0.0; 4]),
        column(vec![f32::NAN; 2]),
        column(vec![-3.0, -1.0]),
        column(vec![f32::INFINITY, 1.0]),
        column((0..100_000).map(|at| (at as f32).sin() * 3.0 + 1.0).collect()),
    ] {
        let model = Model::opset(13)
            .input("x", DatumType::F32, &sizes(x.shape()))
            .initializer("w", &Tensor::zero::<i8>(&[1, 2, 1, 1])?)
            .node(Node::new("DynamicQuantizeLinear").inputs(&["x"]).outputs(&["q", "scale", "zero"]))
            .node(Node::new("ConvInteger").inputs(&["q", "w", "zero"]).output("y"));
        let proto = model.output("q").output("scale").output("zero").output("y").build();
        let expected = run(load_stock(&proto)?, std::slice::from_ref(&x))?;
        let model = load(&proto)?.into_optimized()?;
        ensure!(count::<OptDynamicQuantise>(&model) == 1, "{model}");
        let found = run(model, std::slice::from_ref(&x))?;
        let bits = |tensors: &[Arc<Tensor>]| -> TractResult<Vec<Vec<u8>>> {
            tensors.iter().map(|tensor| Ok(tensor.try_as_plain_ram()?.as_bytes().to_vec())).collect()
        };
        ensure!(bits(&found[..3])? == bits(&expected[..3])?, "{x:?}");
    }
    Ok(())
}
