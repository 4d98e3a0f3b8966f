//! Model files: decoded from bytes, loaded, optimised, and run under a memory limit.

use super::{Outcome, Random};
use prost::Message;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use tract_core::internal::*;
use tract_core::knobs::KnobScope;
use tract_core::ops::cnn;
use tract_deconv::{BetweenLayers, Pass, WithConv, WithDeconv};
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};
use tract_onnx::prelude::{Framework, InferenceModelExt};

/// The operators of this crate, and below some that are common around them.
///
/// Models with other operators are skipped, as their treatment is tract's own.
const OURS: [&str; 6] = [
    "ConvTranspose",
    "Conv",
    "GroupConvolutionBackpropData",
    "ConvolutionBackpropData",
    "GroupConvolution",
    "Convolution",
];
const AROUND: [&str; 18] = [
    "Relu",
    "Identity",
    "Transpose",
    "Add",
    "Mul",
    "Sigmoid",
    "LeakyRelu",
    "Clip",
    "Softmax",
    "LogSoftmax",
    "Resize",
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "MaxPool",
];

/// The maximum size of an output in bytes.
const LIMIT: &str = "4194304";
/// The maximum number of positions over which a pool's window extends.
const MOST_REACH: usize = 1000;
const MOST_MULTIPLY_ADDS: u64 = 1_000_000;

thread_local! {
    static FIND: RefCell<Option<String>> = const { RefCell::new(None) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Records panics that involve this crate. Panics of tract alone on a broken file are not finds.
fn watch_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                return before(info);
            }
            let stack = std::backtrace::Backtrace::force_capture().to_string();
            if stack.lines().any(|line| line.contains("tract_deconv::")) {
                FIND.set(Some(format!("{info}\n{stack}")));
            }
        }));
    });
}

/// Checks that this crate gives an error or a result for any file.
///
/// # Panics
/// Panics on a find.
pub fn models(bytes: &[u8]) -> Outcome {
    tract_deconv::internals::fill_new_memory(true);
    let Ok(proto) = ModelProto::decode(bytes) else { return Outcome::Skipped };
    let nodes = proto.graph.iter().flat_map(|graph| &graph.node);
    let known = |node: &NodeProto| OURS.contains(&&*node.op_type) || AROUND.contains(&&*node.op_type);
    let ours = nodes.clone().filter(|node| OURS.contains(&&*node.op_type)).count();
    let external = |tensor: &TensorProto| tensor.data_location.is_some() || !tensor.external_data.is_empty();
    let tensors = proto.graph.iter().flat_map(|graph| &graph.initializer);
    if ours == 0 || !nodes.clone().all(known) || nodes.count() > 6 || tensors.into_iter().any(external) {
        return Outcome::Skipped;
    }
    watch_panics();
    let scope = KnobScope::new([("TRACT_DECONV_MEMORY_LIMIT", LIMIT)]).expect("a knob of this crate");
    INSIDE.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| scope.enter(|| load_and_run(&proto))));
    INSIDE.set(false);
    match (FIND.take(), outcome) {
        (Some(find), _) => panic!("{find}\nof {proto:?}"),
        (None, Ok(Ok(outcome))) => outcome,
        (None, Ok(Err(error))) => {
            let message = format!("{error:#}");
            assert!(!repeats_itself(&message), "the same words twice: {message}");
            Outcome::Refused
        }
        (None, Err(_)) => Outcome::Refused,
    }
}

/// Returns whether a chain of causes contains one of this crate's refusals twice.
fn repeats_itself(message: &str) -> bool {
    let parts: Vec<&str> = message.split(": ").filter(|part| part.contains('=')).collect();
    parts.iter().enumerate().any(|(i, part)| parts[..i].contains(part))
}

fn load_and_run(proto: &ModelProto) -> TractResult<Outcome> {
    let typed = tract_onnx::onnx().with_deconv().with_conv().model_for_proto_model(proto)?.into_typed()?;
    let mut outcome = Outcome::Accepted;
    // A convolution of a foreign domain, or one left to tract. tract aborts if its output does not
    // fit the memory, or fills all of the memory.
    if typed.nodes.iter().any(|node| node.op_is::<cnn::Conv>() || node.op_is::<cnn::Deconv>()) {
        return Ok(outcome);
    }
    let mut three = SymbolValues::default();
    let facts = typed.nodes.iter().flat_map(|node| &node.outputs).map(|output| &output.fact);
    for symbol in facts.flat_map(|fact| fact.shape.iter()).flat_map(|dim| dim.symbols()) {
        three.set(&symbol, 3);
    }
    // tract plans pools and resized axes as it optimises a model.
    let has = |op: &str| proto.graph.iter().flat_map(|graph| &graph.node).any(|node| node.op_type == op);
    if ["Resize", "AveragePool", "MaxPool"].into_iter().any(has) && !is_small(&typed, &three) {
        return Ok(outcome);
    }
    let mut answers: Vec<TVec<TValue>> = vec![];
    let optimised = typed.clone().into_optimized();
    for model in [Ok(typed), optimised] {
        let model = model?;
        let mut symbols = three.clone();
        let mut inputs = tvec!();
        for outlet in model.input_outlets()? {
            let fact = model.outlet_fact(*outlet)?;
            for symbol in fact.shape.iter().flat_map(|dim| dim.symbols()) {
                symbols.set(&symbol, 3);
            }
            let shape = fact.shape.iter().map(|dim| dim.eval_to_i64(&symbols)).collect::<TractResult<TVec<i64>>>()?;
            let shape: TVec<usize> = shape.iter().map(|dim| usize::try_from(*dim)).collect::<Result<_, _>>()?;
            let len = shape.iter().try_fold(1usize, |len, dim| len.checked_mul(*dim));
            if len.is_none_or(|len| len > 1 << 16) || !fact.datum_type.is_number() {
                return Ok(outcome);
            }
            let values: Vec<i64> = (0..len.unwrap_or(0)).map(|i| (1 + i % 5) as i64).collect();
            let values = Tensor::from_shape(&shape, &values)?.cast_to_dt(fact.datum_type)?.into_owned();
            inputs.push(values.into_tvalue());
        }
        let explained = tract_deconv::explain(&model, &symbols)?;
        let products = explained.iter().map(|e| e.concrete.as_ref().map_or(0, |c| c.multiply_adds.max(c.output_bytes)));
        if products.fold(0, u64::saturating_add) > MOST_MULTIPLY_ADDS || !is_small(&model, &symbols) {
            return Ok(outcome);
        }
        answers.push(model.into_runnable()?.run(inputs)?);
        outcome = Outcome::Ran;
    }
    if let [plain, optimised] = &*answers {
        for (plain, optimised) in plain.iter().zip(optimised) {
            assert_eq!(plain.shape(), optimised.shape(), "optimising changes the shape");
        }
    }
    Ok(outcome)
}

/// Returns whether tensors and windows are small enough for tract's own ops, which have no limit.
fn is_small(model: &TypedModel, symbols: &SymbolValues) -> bool {
    // Sizes that only a run tells are those of this crate's layers.
    let bytes = |fact: &TypedFact| {
        let size = |dim: &TDim| dim.eval_to_i64(symbols).map_or(1, |size| usize::try_from(size).unwrap_or(usize::MAX));
        fact.shape.iter().fold(fact.datum_type.size_of(), |bytes, dim| bytes.saturating_mul(size(dim)))
    };
    let limit = LIMIT.parse::<usize>().expect("a number");
    let outputs = model.nodes.iter().flat_map(|node| &node.outputs);
    let reach = |pool: &cnn::PoolSpec| {
        let dilations = pool.dilations();
        let taps = pool.kernel_shape.iter().zip(&*dilations);
        taps.fold(1usize, |reach, (kernel, dilation)| reach.saturating_mul(kernel.saturating_mul(*dilation)))
    };
    let passes = model.nodes.iter().filter_map(|node| node.op_as::<BetweenLayers>()).flat_map(BetweenLayers::passes);
    let ours = passes.filter_map(|pass| match pass {
        Pass::MaxPool(pool) => Some(reach(pool)),
        Pass::SumPool(pool) => Some(reach(&pool.pool_spec)),
        _ => None,
    });
    let of_tract = model.nodes.iter().filter_map(|node| {
        let largest = node.op_as::<cnn::MaxPool>().map(|op| &op.pool_spec);
        let largest = largest.or_else(|| node.op_as::<cnn::OptMaxPool>().map(|op| &op.pool_spec));
        let sum = largest.or_else(|| node.op_as::<cnn::SumPool>().map(|op| &op.pool_spec));
        sum.or_else(|| node.op_as::<cnn::OptSumPool>().map(|op| &op.pool_spec)).map(reach)
    });
    ours.chain(of_tract).all(|reach| reach <= MOST_REACH)
        && outputs.map(|output| bytes(&output.fact)).all(|bytes| bytes <= limit)
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind as i32, ..Default::default() }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: value, ..attribute(name, AttributeType::Int) }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: value.as_bytes().to_vec(), ..attribute(name, AttributeType::String) }
}

fn info(name: &str, kind: DataType, shape: &[i64]) -> ValueInfoProto {
    // A negative size represents a symbol.
    let value = |dim: &i64| match *dim {
        0.. => dimension::Value::DimValue(*dim),
        _ => dimension::Value::DimParam(format!("s{}", dim.unsigned_abs())),
    };
    let dim = shape.iter().map(|dim| Dimension { value: Some(value(dim)), ..Default::default() }).collect();
    let tensor = type_proto::Tensor { elem_type: kind as i32, shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() }),
        ..Default::default()
    }
}

fn floats(name: &str, shape: &[i64]) -> TensorProto {
    let len = shape.iter().product::<i64>();
    TensorProto {
        name: name.into(),
        dims: shape.to_vec(),
        data_type: DataType::Float as i32,
        float_data: (0..len).map(|v| v as f32).collect(),
        ..Default::default()
    }
}

fn longs(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        int64_data: values.to_vec(),
        ..Default::default()
    }
}

fn model(inputs: Vec<ValueInfoProto>, initializer: Vec<TensorProto>, node: Vec<NodeProto>) -> Vec<u8> {
    let output = node.last().map_or(String::new(), |node| node.output[0].clone());
    let proto = ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 11 }],
        graph: Some(GraphProto {
            input: inputs,
            initializer,
            node,
            output: vec![ValueInfoProto { name: output, ..Default::default() }],
            ..Default::default()
        }),
        ..Default::default()
    };
    proto.encode_to_vec()
}

fn node(domain: &str, op: &str, inputs: &[&str], output: &str, attributes: &[AttributeProto]) -> NodeProto {
    NodeProto {
        name: format!("node of {output}"),
        domain: domain.into(),
        op_type: op.into(),
        input: inputs.iter().map(|input| input.to_string()).collect(),
        output: vec![output.into()],
        attribute: attributes.to_vec(),
        ..Default::default()
    }
}

/// Returns small models of every operator, which together have each attribute. Mutation starts from
/// them.
pub fn seeds() -> Vec<Vec<u8>> {
    let x = |shape: &[i64]| vec![info("x", DataType::Float, shape)];
    let one = |op: &str, domain: &str, x: Vec<ValueInfoProto>, w: &[i64], attributes: &[AttributeProto]| {
        model(x, vec![floats("w", w)], vec![node(domain, op, &["x", "w"], "y", attributes)])
    };
    let full = [ints("strides", &[2, 1]), ints("dilations", &[1, 2]), ints("pads", &[1, 0, 0, 1])];
    let onnx = "ConvTranspose";
    let (group, groups) = (int("group", 2), int("groups", 2));
    // A layer, then an op that this crate computes as well.
    let around = |x: Vec<ValueInfoProto>, w: &[i64], op: &str, attributes: &[AttributeProto]| {
        let layer = node("", "Conv", &["x", "w"], "z", &[]);
        model(x, vec![floats("w", w)], vec![layer, node("", op, &["z"], "y", attributes)])
    };
    let resized = |scales: &[f32], mode: &str| {
        let scales = TensorProto {
            name: "s".into(),
            dims: vec![scales.len() as i64],
            data_type: DataType::Float as i32,
            float_data: scales.to_vec(),
            ..Default::default()
        };
        let attributes =
            [text("mode", mode), text("nearest_mode", "floor"), text("coordinate_transformation_mode", "asymmetric")];
        let nodes =
            vec![node("", "Conv", &["x", "w"], "z", &[]), node("", "Resize", &["z", "r", "s"], "y", &attributes)];
        model(x(&[-1, 2, 4, -2]), vec![floats("w", &[2, 2, 1, 1]), floats("r", &[0]), scales], nodes)
    };
    vec![
        one(onnx, "", x(&[1, 2, 3, 4]), &[2, 2, 3, 2], &full),
        one(onnx, "", x(&[-1, 2, -2]), &[2, 1, 3], &[ints("strides", &[2]), text("auto_pad", "SAME_UPPER")]),
        one(onnx, "", x(&[1, 2, -3]), &[2, 2, 3], &[ints("output_shape", &[6]), group.clone()]),
        one(onnx, "", x(&[1, 1, 1, 2, 2]), &[1, 2, 2, 2, 2], &[ints("kernel_shape", &[2, 2, 2])]),
        one(onnx, "", x(&[0, 2, 5]), &[2, 1, 2], &[ints("output_padding", &[1]), ints("strides", &[3])]),
        one(onnx, "onednn", x(&[1, 3, 2]), &[3, 2, 1], &[groups, text("data_format", "NXC")]),
        one(
            onnx,
            "onednn",
            x(&[1, 2, 3, 3]),
            &[2, 2, 2, 2],
            &[text("data_format", "NCX"), text("filter_format", "OIX"), ints("pads_begin", &[1, 0])],
        ),
        one(onnx, "custom", x(&[1, -1, 2]), &[3, 1, 2], &[text("weights_format", "XOI"), text("auto_pad", "VALID")]),
        one("Conv", "", x(&[1, 2, 5, 4]), &[3, 2, 2, 2], &full),
        one("Conv", "", x(&[1, 4, -2]), &[2, 2, 3], &[text("auto_pad", "SAME_LOWER"), group.clone()]),
        one("Conv", "ai.onnx", x(&[-1, 2, 3, 3]), &[2, 1, 3, 3], &[ints("kernel_shape", &[3, 3]), group.clone()]),
        one("GroupConvolutionBackpropData", "", x(&[1, 2, 3]), &[2, 1, 1, 3], &[text("strides", "2")]),
        one("ConvolutionBackpropData", "", x(&[1, 2, -1]), &[2, 1, 3], &[text("auto_pad", "same_lower")]),
        one("GroupConvolution", "org.openvinotoolkit", x(&[1, 2, 5]), &[2, 1, 1, 3], &[ints("pads_end", &[1])]),
        one("Convolution", "ai.intel.openvino", x(&[1, 2, 5, 5]), &[3, 2, 2, 2], &[text("auto_pad", "same_upper")]),
        model(
            x(&[1, 1, 4]),
            vec![floats("w", &[1, 1, 3]), longs("s", &[7])],
            vec![node("", "ConvolutionBackpropData", &["x", "w", "s"], "y", &[ints("strides", &[2])])],
        ),
        model(
            vec![info("x", DataType::Float, &[1, 1, 4]), info("s", DataType::Int64, &[1])],
            vec![floats("w", &[1, 1, 1, 3])],
            vec![node("", "GroupConvolutionBackpropData", &["x", "w", "s"], "y", &[])],
        ),
        model(
            vec![info("x", DataType::Float, &[1, 2, 4]), info("w", DataType::Float, &[2, 2, 3])],
            vec![floats("b", &[2])],
            vec![node("", onnx, &["x", "w", "b"], "z", &[]), node("", "Relu", &["z"], "y", &[])],
        ),
        model(
            x(&[-1, 2, 3, 3]),
            vec![floats("w", &[2, 2, 2, 2]), floats("b", &[2]), floats("k", &[1, 2, 1, 1])],
            vec![
                node("", onnx, &["x", "w", "b"], "z", &[ints("strides", &[2, 2])]),
                node("", "Mul", &["z", "k"], "m", &[]),
                node("", "Add", &["m", "k"], "a", &[]),
                node("", "Sigmoid", &["a"], "y", &[]),
            ],
        ),
        around(x(&[-1, 2, 5, -2]), &[3, 2, 2, 1], "Softmax", &[int("axis", 1)]),
        around(x(&[1, 2, 3, 4]), &[3, 2, 1, 1], "LogSoftmax", &[int("axis", -1)]),
        around(x(&[1, 2, 5, -1]), &[3, 2, 2, 2], "ReduceSum", &[ints("axes", &[1, 2]), int("keepdims", 0)]),
        around(x(&[-1, 2, 5, 4]), &[3, 2, 1, 2], "ReduceMax", &[ints("axes", &[-3])]),
        around(x(&[-1, 2, 5]), &[3, 2, 2], "ArgMax", &[int("axis", 1), int("select_last_index", 1)]),
        around(
            x(&[1, 2, 7, -1]),
            &[3, 2, 1, 1],
            "AveragePool",
            &[
                ints("kernel_shape", &[2, 3]),
                ints("strides", &[2, 1]),
                ints("pads", &[1, 0, 0, 1]),
                int("ceil_mode", 1),
                int("count_include_pad", 1),
            ],
        ),
        resized(&[1.0, 1.0, 2.0, 3.0], "linear"),
        resized(&[1.0, 1.0, 2.0, 2.0], "nearest"),
    ]
}

/// Returns a mutated seed. Most mutations change fields, so that the model still decodes. The
/// others change bytes, as a fuzzer without coverage would.
pub fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let bytes = seeds[random.below(seeds.len())].clone();
    if random.below(5) == 0 {
        return bytes_changed(bytes, seeds, random);
    }
    let Ok(mut proto) = ModelProto::decode(&*bytes) else { return bytes };
    if let Some(graph) = &mut proto.graph {
        for _ in 0..1 + random.below(3) {
            field_changed(graph, random);
        }
    }
    proto.encode_to_vec()
}

const NUMBERS: [i64; 20] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    17,
    64,
    1025,
    -1,
    -2,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MIN,
];
const NAMES: [&str; 23] = [
    "strides",
    "dilations",
    "pads",
    "pads_begin",
    "pads_end",
    "output_padding",
    "output_shape",
    "kernel_shape",
    "group",
    "groups",
    "auto_pad",
    "data_format",
    "filter_format",
    "weights_format",
    "axis",
    "axes",
    "keepdims",
    "select_last_index",
    "ceil_mode",
    "count_include_pad",
    "mode",
    "nearest_mode",
    "coordinate_transformation_mode",
];
const TENSORS: [&str; 7] = ["x", "w", "z", "y", "r", "s", ""];
const TEXTS: [&str; 21] = [
    "NOTSET",
    "VALID",
    "SAME_UPPER",
    "SAME_LOWER",
    "same_upper",
    "explicit",
    "NXC",
    "NCX",
    "XIO",
    "OIX",
    "XOI",
    "IOX",
    "linear",
    "nearest",
    "align_corners",
    "half_pixel_symmetric",
    "round_prefer_ceil",
    "2,2",
    "1,",
    "0,-1,9223372036854775808",
    "",
];
const DOMAINS: [&str; 5] = ["", "ai.onnx", "onednn", "org.openvinotoolkit", "com.example"];

fn pick<T: Copy>(from: &[T], random: &mut Random) -> T {
    from[random.below(from.len())]
}

/// Draws a number, more often a small one than an extreme one.
fn number(random: &mut Random) -> i64 {
    if random.below(3) > 0 { random.below(6) as i64 } else { pick(&NUMBERS, random) }
}

fn list_changed(list: &mut Vec<i64>, random: &mut Random) {
    let at = random.below(list.len() + 1);
    match random.below(4) {
        0 => list.insert(at, number(random)),
        1 if at < list.len() => {
            list.remove(at);
        }
        _ if at < list.len() => list[at] = number(random),
        _ => list.push(number(random)),
    }
}

fn field_changed(graph: &mut GraphProto, random: &mut Random) {
    let node = random.below(graph.node.len().max(1));
    let Some(node) = graph.node.get_mut(node) else { return };
    match random.below(14) {
        0..5 => {
            // Change, duplicate or remove an attribute.
            let count = node.attribute.len();
            let at = random.below(count + 1);
            match (random.below(6), node.attribute.get_mut(at)) {
                (0, Some(_)) => {
                    node.attribute.remove(at);
                }
                (1, Some(attribute)) => attribute.r#type = random.below(14) as i32,
                (2, Some(attribute)) => attribute.name = pick(&NAMES, random).into(),
                (_, Some(attribute)) => {
                    list_changed(&mut attribute.ints, random);
                    attribute.i = number(random);
                    if random.below(2) == 0 {
                        attribute.s = pick(&TEXTS, random).as_bytes().to_vec();
                    }
                }
                (0..3, None) => {
                    let values: Vec<i64> = (0..random.below(6)).map(|_| number(random)).collect();
                    node.attribute.push(ints(pick(&NAMES, random), &values));
                }
                (_, None) => node.attribute.push(text(pick(&NAMES, random), pick(&TEXTS, random))),
            }
        }
        5 => node.op_type = if random.below(4) > 0 { pick(&OURS, random) } else { pick(&AROUND, random) }.into(),
        6 => node.domain = pick(&DOMAINS, random).into(),
        7 => {
            let at = random.below(node.input.len() + 1);
            match node.input.get_mut(at) {
                Some(input) => *input = pick(&TENSORS, random).into(),
                None => node.input.push(pick(&TENSORS, random).into()),
            }
        }
        8 | 9 => {
            let at = random.below(graph.initializer.len().max(1));
            if let Some(tensor) = graph.initializer.get_mut(at) {
                match random.below(5) {
                    0 => tensor.data_type = random.below(18) as i32,
                    1 => tensor.int64_data = vec![number(random); random.below(4)],
                    2 if !tensor.float_data.is_empty() => {
                        let at = random.below(tensor.float_data.len());
                        tensor.float_data[at] = number(random) as f32 / [1.0, 2.0, 3.0][random.below(3)];
                    }
                    _ => {
                        list_changed(&mut tensor.dims, random);
                        // Mostly with the number of values that the shape requires.
                        let len = tensor.dims.iter().try_fold(1i64, |len, dim| len.checked_mul(*dim));
                        if let Some(len @ 0..4096) = len {
                            tensor.float_data.resize(len as usize, 1.0);
                        }
                    }
                }
            }
        }
        10 => {
            // Make a constant an input.
            if !graph.initializer.is_empty() {
                let tensor = graph.initializer.remove(random.below(graph.initializer.len()));
                graph.input.push(info(&tensor.name, DataType::Float, &tensor.dims));
            }
        }
        _ => {
            let at = random.below(graph.input.len().max(1));
            let tensor = graph.input.get_mut(at).and_then(|input| input.r#type.as_mut());
            if let Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), .. }) = tensor {
                let Some(shape) = &mut tensor.shape else { return };
                let at = random.below(shape.dim.len() + 1);
                let value = match random.below(4) {
                    0 => dimension::Value::DimParam(pick(&NAMES, random).into()),
                    _ => dimension::Value::DimValue(number(random)),
                };
                match (random.below(5), shape.dim.get_mut(at)) {
                    (0, _) => tensor.elem_type = random.below(18) as i32,
                    (1, _) => tensor.shape = None,
                    (2, Some(_)) => {
                        shape.dim.remove(at);
                    }
                    (_, Some(dim)) => dim.value = Some(value),
                    (_, None) => shape.dim.push(Dimension { value: Some(value), ..Default::default() }),
                }
            }
        }
    }
}

fn bytes_changed(mut bytes: Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes[at] = [0, 1, 2, 3, 7, 0x7f, 0x80, 0xff][random.below(8)],
            3 => {
                bytes.remove(at);
            }
            4 => bytes.insert(at, random.next() as u8),
            5 => {
                let len = random.below(12).min(bytes.len() - at);
                let copy = bytes[at..at + len].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            6 => {
                // Copy the bytes at the same offset of another seed.
                let other = &seeds[random.below(seeds.len())];
                for (to, from) in bytes.iter_mut().zip(other).skip(at).take(random.below(24)) {
                    *to = *from;
                }
            }
            // A varint of maximum length.
            _ => {
                let long = [0xff; 9].into_iter().chain([0x01]);
                bytes.splice(at..at + 1, long);
            }
        }
    }
    bytes
}
