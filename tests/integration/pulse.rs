//! Streaming: the pulses must give the same result as the whole input.
//!
//! The cases are all those that stock tract streams, and some that it does not.
#![cfg(feature = "pulse")]

use crate::common::probe::Probe;
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, load_stock, run};
use tract_core::internal::*;
use tract_core::ops::cnn::Deconv;
use tract_deconv::{
    DataFormat, DeconvSpec, Dialect, Direction, FilterFormat, GroupedDeconv, OptGroupedDeconv, OutputShape, Padding,
    PlanOptions, QuantisedDeconv, Side, WithDeconv,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};
use tract_pulse::model::{PulsedModel, PulsedModelExt};

const PULSES: [usize; 2] = [1, 4];

/// A node that streams on one axis of its input.
struct Streamed {
    label: &'static str,
    axis: usize,
    probe: Probe,
}

fn streamed(label: &'static str, axis: usize, probe: Probe) -> Streamed {
    Streamed { label, axis, probe }
}

impl Streamed {
    fn proto(&self) -> ModelProto {
        let mut dims = sizes(self.probe.x.shape());
        dims[self.axis] = Dim::from("S");
        self.probe.clone().dims(&dims).proto()
    }
}

/// The cases that the built-in operator streams.
fn cases() -> Vec<Streamed> {
    let line = |k: usize| Probe::new(&[1, 4, 11], &[4, 3, k]);
    let plane = || Probe::new(&[2, 4, 7, 6], &[4, 2, 3, 4]);
    let typed = |dt| Probe::typed(dt, &[1, 4, 10], &[4, 2, 5]).ints("strides", &[2]).ints("pads", &[1, 2]).bias(2);
    let grouped = || Probe::new(&[1, 4, 9], &[4, 2, 3]).group(2);
    let deep = || Probe::new(&[1, 3, 9], &[3, 1, 4]).group(3);
    let two = |probe: Probe| probe.ints("strides", &[2, 3]);
    vec![
        streamed("kernel 1", 2, line(1).bias(3)),
        streamed("kernel 1, stride 3", 2, line(1).ints("strides", &[3]).bias(3)),
        streamed("kernel 3", 2, line(3)),
        streamed("kernel 3, bias", 2, line(3).bias(3)),
        streamed("kernel = stride", 2, line(2).ints("strides", &[2]).bias(3)),
        streamed("kernel < stride", 2, line(2).ints("strides", &[5]).bias(3)),
        streamed("kernel > stride", 2, line(5).ints("strides", &[2]).bias(3)),
        streamed("kernel a multiple of the stride", 2, line(8).ints("strides", &[4]).bias(3)),
        streamed("dilation", 2, line(3).ints("dilations", &[2]).bias(3)),
        streamed("dilation and stride", 2, line(3).ints("dilations", &[3]).ints("strides", &[2]).bias(3)),
        streamed("pads", 2, line(4).ints("strides", &[2]).ints("pads", &[1, 1]).bias(3)),
        streamed("pads at the beginning", 2, line(5).ints("pads", &[3, 0]).bias(3)),
        streamed("pads at the end", 2, line(5).ints("pads", &[0, 3]).bias(3)),
        streamed("pads, kernel = stride", 2, line(4).ints("strides", &[4]).ints("pads", &[3, 2]).bias(3)),
        streamed("VALID", 2, line(4).ints("strides", &[2]).string("auto_pad", "VALID").bias(3)),
        streamed("SAME_UPPER", 2, line(5).ints("strides", &[2]).string("auto_pad", "SAME_UPPER").bias(3)),
        streamed("SAME_LOWER", 2, line(5).ints("strides", &[2]).string("auto_pad", "SAME_LOWER").bias(3)),
        streamed("output_padding", 2, line(3).ints("strides", &[2]).ints("output_padding", &[1]).bias(3)),
        streamed(
            "output_padding and pads",
            2,
            line(3).ints("strides", &[3]).ints("output_padding", &[2]).ints("pads", &[1, 1]).bias(3),
        ),
        streamed("groups", 2, grouped().bias(4)),
        streamed("groups, stride, pads", 2, grouped().ints("strides", &[2]).ints("pads", &[1, 0]).bias(4)),
        streamed("depthwise", 2, deep().ints("strides", &[2]).bias(3)),
        streamed("depthwise, dilation", 2, deep().ints("dilations", &[2]).ints("pads", &[2, 1])),
        streamed("f16", 2, typed(DatumType::F16)),
        streamed("f64", 2, typed(DatumType::F64)),
        streamed("height", 2, two(plane()).bias(2)),
        streamed("width", 3, two(plane()).bias(2)),
        streamed("height, pads, output_padding", 2, {
            two(plane()).ints("pads", &[1, 2, 0, 1]).ints("output_padding", &[1, 2]).bias(2)
        }),
        streamed("width, pads, dilation, groups", 3, {
            Probe::new(&[2, 4, 6, 7], &[4, 2, 3, 4])
                .group(2)
                .ints("dilations", &[2, 1])
                .ints("pads", &[1, 2, 0, 1])
                .bias(4)
        }),
    ]
}

fn pulsed(model: TypedModel, pulse: usize) -> TractResult<TypedModel> {
    let model = model.into_decluttered()?;
    let symbol = model.symbols.sym("S");
    PulsedModel::new(&model, symbol, &pulse.to_dim())?.into_typed()
}

fn property(model: &TypedModel, name: &str) -> TractResult<usize> {
    let value = model.properties.get(name).with_context(|| format!("no property {name}"))?;
    Ok(value.cast_to::<i64>()?.try_as_plain_ram()?.as_slice::<i64>()?[0] as usize)
}

/// The time at which the length of a stream becomes known if the stream ends with a whole pulse.
/// Otherwise it is known with the pulse in which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    WithTheLast,
    WithTheNext,
}

/// Feeds pulses until there are `len` output positions, with NaN after the end, and removes the
/// delay.
///
/// Inputs after the first are passed with each pulse.
fn stream(model: TypedModel, inputs: &[Tensor], len: usize, told: Told) -> TractResult<Tensor> {
    let delay = property(&model, "pulse.delay")?;
    let (from, to) = (property(&model, "pulse.input_axes")?, property(&model, "pulse.output_axes")?);
    let pulse = model.input_fact(0)?.shape[from].to_usize()?;
    let symbol = model.symbols.sym("S");
    let x = &inputs[0];
    let size = x.shape()[from];
    let nan = tensor0(f32::NAN).cast_to_dt(x.datum_type())?.into_owned();
    let mut state = model.into_runnable()?.spawn()?;
    let (mut found, mut fed, mut got) = (vec![], 0, 0);
    while got < delay + len {
        let mut shape: TVec<usize> = x.shape().into();
        shape[from] = pulse;
        let mut chunk = nan.broadcast_scalar_to_shape(&shape)?;
        let valid = size.saturating_sub(fed).min(pulse);
        if valid > 0 {
            chunk.assign_slice(0..valid, x, fed..fed + valid, from)?;
        }
        fed += pulse;
        if fed > size || (fed == size && told == Told::WithTheLast) {
            state.turn_state.resolved_symbols.set(&symbol, size as i64);
        }
        let mut turn: TVec<TValue> = tvec!(chunk.into_tvalue());
        turn.extend(inputs[1..].iter().map(|t| t.clone().into_tvalue()));
        let y = state.run(turn)?.remove(0).into_tensor();
        got += y.shape()[to];
        found.push(y);
    }
    Tensor::stack_tensors(to, &found)?.slice(to, delay, delay + len)
}

/// Compares up to rounding, as sums that span two pulses are added in another order.
fn equal(want: &Tensor, got: &Tensor) -> TractResult<()> {
    let tolerance = match want.datum_type() {
        DatumType::F16 => 4e-3,
        DatumType::F32 => 1e-6,
        _ => 1e-14,
    };
    ensure!((want.shape(), want.datum_type()) == (got.shape(), got.datum_type()), "{want:?}, found {got:?}");
    let (want, got) = (want.cast_to::<f64>()?, got.cast_to::<f64>()?);
    let (want, got) = (want.to_plain_array_view::<f64>()?, got.to_plain_array_view::<f64>()?);
    let allowed = tolerance * want.iter().fold(1f64, |most, v| most.max(v.abs()));
    for ((at, want), got) in want.indexed_iter().zip(&got) {
        ensure!((want - got).abs() <= allowed, "at {at:?}: {got}, {want} is right");
    }
    Ok(())
}

/// Compares the whole input with pulses, for a model of either loader.
fn check(
    model: &TypedModel,
    inputs: &[Tensor],
    axis: usize,
    pulse: usize,
    stages: &[Stage],
) -> TractResult<TypedModel> {
    let want = run(model.clone(), inputs)?.remove(0);
    let streaming = pulsed(model.clone(), pulse)?;
    for stage in stages {
        let staged = stage.of(streaming.clone())?;
        for told in [Told::WithTheLast, Told::WithTheNext] {
            let got = stream(staged.clone(), inputs, want.shape()[axis], told)?;
            equal(&want, &got).with_context(|| format!("{stage:?}, pulse {pulse}, the end told {told:?}"))?;
        }
    }
    Ok(streaming)
}

fn count<O: tract_core::ops::Op>(model: &TypedModel) -> usize {
    model.nodes.iter().filter(|node| node.op_is::<O>()).count()
}

#[test]
fn pulses_give_what_the_whole_input_gives() {
    for case in cases() {
        for pulse in PULSES {
            let result = (|| {
                let model = load(&case.proto())?;
                let streaming = check(&model, &case.probe.inputs(), case.axis, pulse, &Stage::ALL)?;
                ensure!(count::<GroupedDeconv>(&streaming) == 1 && count::<Deconv>(&streaming) == 0, "{streaming}");
                let optimised = streaming.into_optimized()?;
                ensure!(count::<OptGroupedDeconv>(&optimised) == 1, "{optimised}");
                Ok(())
            })();
            result.unwrap_or_else(|e: TractError| panic!("{}: {e:#}", case.label));
        }
    }
}

#[test]
fn stock_tract_streams_the_same_cases() {
    for case in cases() {
        for pulse in PULSES {
            let result =
                (|| check(&load_stock(&case.proto())?, &case.probe.inputs(), case.axis, pulse, &[Stage::Decluttered]))(
                );
            result.unwrap_or_else(|e| panic!("{}: {e:#}", case.label));
        }
    }
}

#[test]
fn the_transform_streams_too() {
    for case in cases() {
        let result = (|| {
            let mut model = load_stock(&case.proto())?.into_decluttered()?;
            let transform = tract_core::transform::get_transform("deconv")?.context("it is registered")?;
            transform.transform(&mut model)?;
            let streaming = check(&model, &case.probe.inputs(), case.axis, 4, &[Stage::Optimised])?;
            ensure!(count::<GroupedDeconv>(&streaming) == 1, "{streaming}");
            Ok(())
        })();
        result.unwrap_or_else(|e: TractError| panic!("{}: {e:#}", case.label));
    }
}

/// Streaming on the batch axis, positions before the first one, SAME with a short kernel, and
/// output padding beyond the kernel's reach.
#[test]
fn beyond_stock() {
    let line = |k: usize| Probe::new(&[1, 4, 11], &[4, 3, k]).bias(3);
    let cases = [
        streamed("batch", 0, Probe::new(&[9, 4, 5], &[4, 3, 4]).ints("strides", &[2]).bias(3)),
        streamed("SAME_LOWER, kernel < stride", 2, line(2).ints("strides", &[3]).string("auto_pad", "SAME_LOWER")),
        streamed("SAME and output_padding", 2, {
            line(3).ints("strides", &[3]).ints("output_padding", &[2]).string("auto_pad", "SAME_UPPER")
        }),
    ];
    for case in cases {
        for pulse in PULSES {
            let result = (|| check(&load(&case.proto())?, &case.probe.inputs(), case.axis, pulse, &Stage::ALL))();
            result.unwrap_or_else(|e| panic!("{}: {e:#}", case.label));
        }
    }
}

/// Forward convolutions with various kernels, strides, dilations and pads, streaming on either
/// axis.
#[test]
fn forward_convolutions_stream() {
    let line = |k: usize| Probe::conv(DatumType::F32, &[1, 4, 24], &[3, 4, k]).bias(3);
    let plane = || Probe::conv(DatumType::F32, &[2, 4, 12, 8], &[6, 2, 3, 4]).group(2).bias(6);
    let cases = [
        streamed("kernel 1", 2, line(1)),
        streamed("kernel 3", 2, line(3)),
        streamed("kernel 3, pads", 2, line(3).ints("pads", &[1, 1])),
        streamed("causal", 2, line(5).ints("pads", &[4, 0])),
        streamed("pads at the end", 2, line(4).ints("pads", &[0, 3])),
        streamed("pads beyond the kernel", 2, line(2).ints("pads", &[5, 4])),
        streamed("stride 2", 2, line(3).ints("strides", &[2])),
        streamed("stride 4, kernel 4", 2, line(4).ints("strides", &[4])),
        streamed("stride 4, kernel 2", 2, line(2).ints("strides", &[4])),
        streamed("stride 2, pads", 2, line(5).ints("strides", &[2]).ints("pads", &[2, 3])),
        streamed("dilation, pads", 2, line(3).ints("dilations", &[3]).ints("pads", &[6, 0])),
        streamed("SAME_UPPER", 2, line(4).string("auto_pad", "SAME_UPPER")),
        streamed("SAME_LOWER", 2, line(4).string("auto_pad", "SAME_LOWER")),
        streamed("depthwise", 2, Probe::conv(DatumType::F32, &[1, 32, 12], &[32, 1, 3]).group(32)),
        streamed("f16", 2, Probe::conv(DatumType::F16, &[1, 4, 12], &[3, 4, 3]).ints("pads", &[2, 0])),
        streamed("height", 2, plane().ints("pads", &[1, 1, 1, 2])),
        streamed("width", 3, plane().ints("pads", &[1, 3, 1, 0]).ints("strides", &[2, 1])),
        streamed("batch", 0, Probe::conv(DatumType::F32, &[8, 4, 5], &[3, 4, 3])),
    ];
    for case in cases {
        for pulse in [4, 8] {
            let result = (|| {
                let model = load(&case.proto())?;
                let streaming = check(&model, &case.probe.inputs(), case.axis, pulse, &Stage::ALL)?;
                ensure!(count::<GroupedDeconv>(&streaming) == 1, "{streaming}");
                Ok(())
            })();
            result.unwrap_or_else(|e: TractError| panic!("{}: {e:#}", case.label));
        }
    }
    let case = streamed("stride 3", 2, line(3).ints("strides", &[3]));
    let error = format!("{:#}", pulsed(load(&case.proto()).unwrap(), 4).expect_err("4 is no multiple of 3"));
    assert!(error.contains("pulse: pulse=4, it must be a multiple of the stride"), "{error}");
}

/// A layer after a convolution, whose delay counts input positions, and before another
/// deconvolution.
#[test]
fn a_stream_that_comes_late() -> TractResult<()> {
    let probe = Probe::new(&[1, 4, 13], &[4, 4, 3]);
    let proto = Model::opset(11)
        .input("x", DatumType::F32, &[1.into(), 4.into(), "S".into()])
        .initializer("w", &probe.w)
        .initializer("b", &probe.clone().bias(4).b.context("it has a bias")?)
        .node(Node::new("Conv").named("c").inputs(&["x", "w", "b"]).output("c"))
        .node(
            Node::new("ConvTranspose")
                .named("d")
                .inputs(&["c", "w", "b"])
                .output("d")
                .ints("strides", &[2])
                .ints("pads", &[1, 0]),
        )
        .node(
            Node::new("ConvTranspose")
                .named("e")
                .inputs(&["d", "w", "b"])
                .output("e")
                .ints("strides", &[3])
                .ints("pads", &[1, 1]),
        )
        .node(Node::new("Conv").named("f").inputs(&["e", "w"]).output("y").ints("pads", &[1, 1]))
        .output("y")
        .build();
    for pulse in PULSES {
        check(&load(&proto)?, std::slice::from_ref(&probe.x), 2, pulse, &Stage::ALL)?;
    }
    Ok(())
}

/// A transposed convolution has positions past its own end before the stream's end can be known.
/// The next layer reads them, and it is this crate's or tract's own.
#[test]
fn what_follows_the_end_of_a_layer_is_zero() -> TractResult<()> {
    let layer =
        |op: &str, weights: &str, from: &str, to: &str| Node::new(op).named(to).inputs(&[from, weights]).output(to);
    let first = || layer("ConvTranspose", "w", "x", "d");
    let convolution = || layer("Conv", "v", "d", "y").ints("pads", &[2, 2]);
    let cases = [
        // Label, kernel of the first layer, the two layers.
        ("trim", 2, first().ints("strides", &[2]).ints("pads", &[0, 2]), layer("ConvTranspose", "v", "d", "y")),
        ("crop, then a convolution", 2, first().ints("strides", &[2]).ints("pads", &[0, 3]), convolution()),
        ("SAME, kernel < stride", 1, first().ints("strides", &[3]).string("auto_pad", "SAME_LOWER"), convolution()),
        ("crop of several strides", 3, first().ints("strides", &[2]).ints("pads", &[1, 6]), convolution()),
        ("crop at stride 1", 2, first().ints("pads", &[0, 3]), convolution()),
    ];
    for (label, kernel, first, second) in cases {
        let mut random = Random(kernel as u64);
        let proto = Model::opset(11)
            .input("x", DatumType::F32, &[1.into(), 2.into(), "S".into()])
            .initializer("w", &random.tensor(DatumType::F32, &[2, 2, kernel]))
            .initializer("v", &random.tensor(DatumType::F32, &[2, 2, 4]))
            .node(first)
            .node(second)
            .output("y")
            .build();
        for size in [8, 12, 13] {
            let x = [random.tensor(DatumType::F32, &[1, 2, size])];
            for pulse in [1, 2, 4] {
                let context = || format!("{label}, length {size}");
                check(&load(&proto)?, &x, 2, pulse, &Stage::ALL).with_context(context)?;
                // tract computes the second layer if it is a forward one.
                let mixed = tract_onnx::onnx().with_deconv().model_for_proto_model(&proto)?.into_typed()?;
                check(&mixed, &x, 2, pulse, &[Stage::Decluttered]).with_context(context)?;
            }
        }
    }
    Ok(())
}

/// Chains of two to four layers of either direction with any padding.
#[test]
fn random_chains() -> TractResult<()> {
    let mut random = Random(2026);
    let mut done = 0;
    while done < 150 {
        let pulse = [2, 4, 6, 12][random.below(4)];
        let size = pulse * (2 + random.below(3)) + [0, 0, 1][random.below(3)];
        let Some((model, specs)) = chain(&mut random, pulse, size)? else { continue };
        let x = [random.tensor(DatumType::F32, &[1, 2, size])];
        check(&model, &x, 2, pulse, &[Stage::Decluttered, Stage::Optimised])
            .with_context(|| format!("chain {done}, length {size}: {specs:#?}"))?;
        done += 1;
    }
    Ok(())
}

/// Returns none if a layer would have no output.
fn chain(random: &mut Random, pulse: usize, size: usize) -> TractResult<Option<(TypedModel, Vec<String>)>> {
    let mut model = TypedModel::default();
    let symbol = model.symbols.sym("S");
    let mut wire = model.add_source("x", f32::fact([1.to_dim(), 2.to_dim(), symbol.to_dim()]))?;
    let size_of_x = size;
    let (mut pulse, mut size, mut specs) = (pulse, size, vec![]);
    for layer in 0..2 + random.below(3) {
        let forward = random.below(2) == 0;
        let (kernel, mut stride, dilation) = (1 + random.below(4), 1 + random.below(3), 1 + random.below(2));
        if forward && !pulse.is_multiple_of(stride) {
            stride = 1;
        }
        let extent = (kernel - 1) * dilation + 1;
        let output_padding = if forward { 0 } else { [0, 0, 1, 2][random.below(4)] };
        let pads = |random: &mut Random| [0, 0, 1, 2, 3, -1][random.below(6)];
        let explicit = Padding::Explicit { begin: tvec!(pads(random)), end: tvec!(pads(random)) };
        let extra = [Side::Begin, Side::End][random.below(2)];
        let padding = match (forward, random.below(4)) {
            (true, 0) if stride == 1 => Padding::SameForward { extra },
            (false, 0) => Padding::same_transposed(&[kernel], &[stride], &[dilation], &[output_padding], extra),
            (false, 1) => {
                let full = (model.outlet_fact(wire)?.shape[2].clone() - 1) * stride + extent + output_padding;
                let shape = OutputShape::Dims(tvec!(full + 1 - random.below(4)));
                Padding::OutputShape { shape, extra }
            }
            _ => explicit,
        };
        let spec = DeconvSpec {
            direction: if forward { Direction::Forward } else { Direction::Transposed },
            data_format: DataFormat::Ncx,
            filter_format: if forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: 2,
            out_channels: 2,
            group: 1 + random.below(2),
            kernel: tvec!(kernel),
            strides: tvec!(stride),
            dilations: tvec!(dilation),
            padding,
            output_padding: tvec!(output_padding),
        };
        let filter = random.tensor(DatumType::F32, &spec.filter_shape());
        let has_bias = random.below(2) == 0;
        let mut wires = tvec!(wire, model.add_const(format!("w{layer}"), filter)?);
        if has_bias {
            let bias = random.tensor(DatumType::F32, &[2]);
            wires.push(model.add_const(format!("b{layer}"), bias)?);
        }
        let op = GroupedDeconv::new(spec.clone(), Dialect::Onnx, has_bias, PlanOptions::default())?;
        wire = model.wire_node(format!("layer{layer}"), op, &wires)?[0];
        let mut sized = spec.clone();
        if let Padding::OutputShape { shape: OutputShape::Dims(dims), .. } = &mut sized.padding {
            dims[0] = dims[0].eval(&SymbolValues::default().with(&symbol, size_of_x as i64));
        }
        // The output is empty or has no legal size.
        let Ok(shape) = sized.output_shape(&[1, 2, size]) else { return Ok(None) };
        size = shape[2];
        pulse = if forward { pulse / stride } else { pulse * stride };
        specs.push(format!("{spec}, bias: {has_bias}"));
    }
    model.select_output_outlets(&[wire])?;
    Ok(Some((model, specs)))
}

#[test]
fn channels_do_not_stream() -> TractResult<()> {
    let probe = Probe::new(&[1, 4, 5], &[4, 3, 3]);
    let mut model = load(&probe.proto())?;
    let symbol = model.symbols.sym("S");
    let mut fact = model.input_fact(0)?.clone();
    fact.shape.set(1, symbol.to_dim());
    let source = model.input_outlets()?[0];
    model.set_outlet_fact(source, fact)?;
    let error = format!("{:#}", pulsed(model, 1).expect_err("the filter has four channels"));
    assert!(error.contains("pulse: axis=1, the channels can't stream"), "{error}");
    Ok(())
}

/// Quantised layers on a stream of bytes. Where pulses overlap, sums are rescaled once complete.
#[test]
fn quantised_layers_stream() {
    use crate::common::quantised::integers;
    let mut random = Random(3);
    let cases: Vec<(&str, usize, Node)> = vec![
        ("Conv", 3, Node::new("Conv").ints("pads", &[1, 2])),
        ("Conv", 4, Node::new("Conv").ints("pads", &[2, 1]).ints("strides", &[2])),
        ("Conv", 2, Node::new("Conv").ints("dilations", &[3])),
        ("ConvTranspose", 2, Node::new("ConvTranspose").ints("strides", &[2])),
        ("ConvTranspose", 4, Node::new("ConvTranspose").ints("strides", &[2]).ints("pads", &[1, 1])),
        ("ConvTranspose", 3, Node::new("ConvTranspose").ints("dilations", &[2]).ints("pads", &[0, 2])),
    ];
    for (operator, kernel, node) in cases {
        for (pulse, quantised) in [(2, true), (4, true), (4, false)] {
            let shape = if operator == "Conv" { [3, 4, kernel] } else { [4, 3, kernel] };
            let dequantise = |name: &str, from: &str, to: &str| {
                Node::new("DequantizeLinear")
                    .named(name)
                    .inputs(&[from, &format!("{name}s"), &format!("{name}z")])
                    .output(to)
            };
            let mut model = Model::opset(13)
                .input("x", DatumType::U8, &[1.into(), 4.into(), "S".into()])
                .initializer("w", &random.tensor(DatumType::I8, &shape))
                .initializer("b", &random.tensor(DatumType::F32, &[3]))
                .initializer("dxs", &tensor0(0.02f32))
                .initializer("dxz", &integers(DatumType::U8, &[], &[131]))
                .initializer("dws", &tensor0(0.01f32))
                .initializer("dwz", &integers(DatumType::I8, &[], &[5]))
                .initializer("ys", &tensor0(0.1f32))
                .initializer("yz", &integers(DatumType::U8, &[], &[77]))
                .node(dequantise("dx", "x", "xf"))
                .node(dequantise("dw", "w", "wf"))
                .node(node.clone().named("layer").inputs(&["xf", "wf", "b"]).output("c"));
            let mut output = "c";
            if quantised {
                model = model.node(Node::new("QuantizeLinear").inputs(&["c", "ys", "yz"]).output("y"));
                output = "y";
            }
            let proto = model.output(output).build();
            let result = (|| {
                let model = load(&proto)?;
                let inputs = [random.tensor(DatumType::U8, &[1, 4, 24])];
                let streaming = check(&model, &inputs, 2, pulse, &Stage::ALL)?;
                ensure!(count::<QuantisedDeconv>(&streaming) == 1, "{streaming}");
                Ok(())
            })();
            result.unwrap_or_else(|e: TractError| panic!("{operator} of {kernel} taps, pulse {pulse}: {e:#}"));
        }
    }
}
