//! Layers whose filter is a windowed Fourier basis run as Fourier transforms.
//!
//! Each result is compared with the definition in f64, and its largest error with that of the same
//! layer as a convolution.

use crate::common::oracle::{Expected, FromTensor, answer};
use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use crate::common::spec::unpadded;
use std::f64::consts::TAU;
use std::io::Write;
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::{
    BetweenLayers, DataFormat, DeconvSpec, Dialect, Direction, FilterFormat, GroupedDeconv, OptFourier,
    OptGroupedDeconv, OutputShape, Padding, PlanOptions, Side, Strategy, WithConv, WithDeconv, WithDeconvOptions,
    explain,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

const DIRECTIONS: [Direction; 2] = [Direction::Forward, Direction::Transposed];

fn hann(x: f64) -> f64 {
    0.5 - 0.5 * (TAU * x).cos()
}

/// A basis of all bins, cosines then sines. `scale` gets the bin.
fn basis(points: usize, taps: usize, window: fn(f64) -> f64, scale: impl Fn(usize) -> f64) -> Vec<f32> {
    let bins = points / 2 + 1;
    let of = |at: usize| {
        let (row, n) = (at / taps, at % taps);
        let bin = row % bins;
        let (sine, cosine) = (TAU * (bin * n % points) as f64 / points as f64).sin_cos();
        (if row < bins { cosine } else { -sine } * window(n as f64 / taps as f64) * scale(bin)) as f32
    };
    (0..2 * bins * taps).map(of).collect()
}

/// A layer as exporters write it: a spectrum of all bins, or its inverse.
#[derive(Clone)]
struct Layer {
    spec: DeconvSpec,
    filter: Arc<Tensor>,
    bias: Option<Arc<Tensor>>,
}

impl Layer {
    fn new(direction: Direction, points: usize, taps: usize, hop: usize) -> TractResult<Layer> {
        let channels = 2 * (points / 2 + 1);
        let (i, o, scale): (_, _, fn(bool, f64) -> f64) = match direction {
            Direction::Forward => (1, channels, |_, _| 1.0),
            Direction::Transposed => (channels, 1, |once, points| if once { 1.0 } else { 2.0 } / points),
        };
        let spec = unpadded(direction, (i, o, 1), &[taps], hop);
        let values = basis(points, taps, hann, |bin| scale(bin == 0 || 2 * bin == points, points as f64));
        Ok(Layer { filter: Tensor::from_shape(&spec.filter_shape(), &values)?.into_arc_tensor(), spec, bias: None })
    }

    fn with(self, change: impl FnOnce(&mut DeconvSpec)) -> Layer {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Layer { spec, ..self }
    }

    fn channels(&self) -> usize {
        self.spec.in_channels.max(self.spec.out_channels)
    }

    fn with_bias(self) -> Layer {
        let bias = Random(5).tensor(DatumType::F32, &[self.spec.out_channels]);
        Layer { bias: Some(bias.into_arc_tensor()), ..self }
    }

    /// Returns the shape of data with so many positions.
    fn shape(&self, batch: usize, positions: usize) -> TVec<usize> {
        self.spec.data_format.shape(batch, self.spec.in_channels, [positions])
    }

    /// The decluttered model of this layer, for data of a shape.
    fn model(&self, shape: &[TDim], fusion: bool, options: &PlanOptions) -> TractResult<TypedModel> {
        self.model_in(TypedModel::default(), shape, fusion, options)
    }

    /// The same in an empty model, whose symbols the shape may have.
    fn model_in(
        &self,
        mut model: TypedModel,
        shape: &[TDim],
        fusion: bool,
        options: &PlanOptions,
    ) -> TractResult<TypedModel> {
        let mut op = GroupedDeconv::new(self.spec.clone(), Dialect::Onnx, self.bias.is_some(), options.clone())?;
        op.fusion = fusion;
        let mut inputs = tvec!(model.add_source("x", f32::fact(shape))?);
        inputs.push(model.add_const("w", Arc::clone(&self.filter))?);
        if let Some(bias) = &self.bias {
            inputs.push(model.add_const("b", Arc::clone(bias))?);
        }
        let outputs = model.wire_node("layer", op, &inputs)?;
        model.select_output_outlets(&outputs)?;
        Ok(model)
    }

    fn optimised(&self, shape: &[usize], fusion: bool) -> TractResult<TypedModel> {
        let shape: TVec<TDim> = shape.iter().map(|dim| dim.to_dim()).collect();
        self.model(&shape, fusion, &PlanOptions::default())?.into_optimized()
    }

    /// Checks that the layer runs as a transform, and that its results are right.
    fn check(&self, batch: usize, positions: usize) -> TractResult<()> {
        let shape = self.shape(batch, positions);
        let x = Random(3).tensor(DatumType::F32, &shape);
        let model = self.optimised(&shape, true)?;
        ensure!(count::<OptFourier>(&model) == 1, "{model} {:?}", explain(&model, &SymbolValues::default())?);
        self.is_right(&x, &run(model, std::slice::from_ref(&x))?.remove(0))
    }

    /// Compares a result with the definition. The errors of a spectrum's bins are alike, so those of
    /// small weights are measured by the largest of the spectrum.
    fn is_right(&self, x: &Tensor, found: &Tensor) -> TractResult<()> {
        let mut expected = answer::<f64>(&self.spec, x, &self.filter, self.bias.as_deref(), None);
        if self.spec.direction == Direction::Forward {
            let channels = self.spec.data_format.c_axis(self.spec.rank() + 2);
            for mut bins in expected.magnitude.lanes_mut(tract_ndarray::Axis(channels)) {
                let largest = bins.iter().fold(0.0, |most: f64, magnitude| most.max(*magnitude));
                bins.fill(largest);
            }
        }
        let checked = Expected::floats(DatumType::F32, expected).check(found);
        checked.map_err(|error| format_err!("{}, {:?}: {error}", self.spec, x.shape()))
    }
}

fn count<O: tract_core::ops::Op>(model: &TypedModel) -> usize {
    model.nodes.iter().filter(|node| node.op_is::<O>()).count()
}

#[test]
fn points_hops_and_images() -> TractResult<()> {
    for direction in DIRECTIONS {
        // Even and odd, and windows shorter than the transform.
        for (points, taps) in [(256, 256), (400, 400), (405, 405), (512, 320), (525, 512), (1155, 1100)] {
            let layer = Layer::new(direction, points, taps, taps / 4)?;
            let positions = if direction == Direction::Forward { taps + 19 * (taps / 4) + 3 } else { 20 };
            layer.check(1, positions)?;
            layer.clone().with_bias().check(3, positions)?;
        }
        for hop in [1, 100, 255, 256, 300] {
            let positions = if direction == Direction::Forward { 256 + 9 * hop } else { 17 };
            Layer::new(direction, 256, 256, hop)?.check(2, positions)?;
        }
    }
    Ok(())
}

#[test]
fn paddings_and_layouts() -> TractResult<()> {
    for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
        for (begin, end) in [(0, 0), (128, 128), (255, 0), (3, 77), (-5, 9), (9, -5), (256, 256)] {
            let padded = |spec: &mut DeconvSpec| {
                spec.data_format = data_format;
                spec.padding = Padding::Explicit { begin: tvec!(begin), end: tvec!(end) };
            };
            Layer::new(Direction::Forward, 256, 256, 64)?.with(padded).with_bias().check(2, 1500)?;
            let inverse = Layer::new(Direction::Transposed, 256, 256, 64)?.with(padded);
            inverse.clone().with_bias().check(2, 21)?;
            // A stride's rest after the last frame, which has the bias only.
            inverse.with(|spec| spec.output_padding = tvec!(61)).with_bias().check(1, 18)?;
        }
        for extra in [Side::Begin, Side::End] {
            let same = |spec: &mut DeconvSpec| {
                spec.data_format = data_format;
                spec.padding = Padding::SameForward { extra };
            };
            Layer::new(Direction::Forward, 256, 256, 100)?.with(same).check(1, 2001)?;
            let asked = |spec: &mut DeconvSpec| {
                spec.data_format = data_format;
                spec.padding = Padding::OutputShape { shape: OutputShape::Dims(tvec!(1234.to_dim())), extra };
            };
            Layer::new(Direction::Transposed, 256, 256, 64)?.with(asked).check(1, 18)?;
        }
    }
    Ok(())
}

#[test]
fn filter_formats_and_unit_axes() -> TractResult<()> {
    for direction in DIRECTIONS {
        let layer = Layer::new(direction, 256, 256, 64)?;
        let [a, b] = [layer.channels(), 256];
        let positions = if direction == Direction::Forward { 2000 } else { 20 };
        let values = layer.filter.to_plain_array_view::<f32>()?.to_owned().into_shape_with_order([a, b])?;
        let turned = values.t().as_standard_layout().into_owned();
        for format in [FilterFormat::Iox, FilterFormat::Oix, FilterFormat::Xio, FilterFormat::Xoi] {
            let layer = layer.clone().with(|spec| spec.filter_format = format);
            let taps_first = matches!(format, FilterFormat::Xio | FilterFormat::Xoi);
            let mut filter = if taps_first { turned.clone() } else { values.clone() }.into_tensor();
            filter.set_shape(&layer.spec.filter_shape())?;
            Layer { filter: filter.into_arc_tensor(), ..layer }.check(1, positions)?;
        }
        // Axes of one position before and after that of the taps.
        for (kernel, strides, shape) in [([1, 256], [1, 64], [1, positions]), ([256, 1], [64, 1], [positions, 1])] {
            let layer = layer.clone().with(|spec| {
                spec.kernel = kernel[..].into();
                spec.strides = strides[..].into();
                spec.dilations = tvec!(1, 1);
                spec.output_padding = tvec!(0, 0);
                spec.padding = Padding::zero(2);
            });
            let mut filter = layer.filter.as_ref().clone();
            filter.set_shape(&layer.spec.filter_shape())?;
            let layer = Layer { filter: filter.into_arc_tensor(), ..layer };
            let shape = layer.spec.data_format.shape(1, layer.spec.in_channels, shape);
            let x = Random(3).tensor(DatumType::F32, &shape);
            let model = layer.optimised(&shape, true)?;
            ensure!(count::<OptFourier>(&model) == 1, "{model}");
            layer.is_right(&x, &run(model, std::slice::from_ref(&x))?.remove(0))?;
        }
    }
    Ok(())
}

/// A kind of data: its name, and what it makes of the i-th random number.
type Kind = (&'static str, fn(usize, f32) -> f32);

const KINDS: [Kind; 5] = [
    ("noise", |_, x| x),
    ("offset", |_, x| x + 3.0),
    ("spiky", |i, x| if i % 97 == 0 { 50.0 * x } else { x }),
    ("tone", |i, _| (i as f32 * 0.7).sin()),
    ("fading", |i, x| x * (-(i as f32) / 300.0).exp()),
];

/// The largest error is no larger than that of the convolution, with one exception.
#[test]
fn errs_no_more_than_the_convolution() -> TractResult<()> {
    for direction in DIRECTIONS {
        for (points, frames) in [(256, 40), (400, 20), (512, 20), (405, 20), (1024, 12), (1155, 8), (2048, 6)] {
            let hop = points / 4;
            let layer = Layer::new(direction, points, points, hop)?;
            let positions = if direction == Direction::Forward { points + (frames - 1) * hop } else { frames };
            let shape = layer.shape(1, positions);
            let noise = Random(7).tensor(DatumType::F32, &shape);
            let noise = noise.try_as_plain_ram()?.as_slice::<f32>()?.to_vec();
            for (kind, change) in KINDS {
                let x: Vec<f32> = noise.iter().enumerate().map(|(i, x)| change(i, *x)).collect();
                let x = Tensor::from_shape(&shape, &x)?;
                let truth = answer::<f64>(&layer.spec, &x, &layer.filter, None, None).y;
                let largest = truth.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
                let error = |fusion| -> TractResult<f64> {
                    let model = layer.optimised(&shape, fusion)?;
                    ensure!(count::<OptFourier>(&model) == usize::from(fusion), "{model}");
                    let found = f64::from_tensor(&run(model, std::slice::from_ref(&x))?.remove(0));
                    Ok(found.iter().zip(&truth).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs())) / largest)
                };
                let (fourier, direct) = (error(true)?, error(false)?);
                let _ = writeln!(
                    std::io::stderr(),
                    "fourier: {direction:?}, {points} points, {kind}: {fourier:.1e}, as a convolution {direct:.1e}"
                );
                // These spectra are those of impulses, where the window is small. Other positions
                // have an error by the size of the impulse before the window.
                if direction == Direction::Transposed && ["offset", "tone"].contains(&kind) {
                    let found = run(layer.optimised(&shape, true)?, std::slice::from_ref(&x))?.remove(0);
                    layer.is_right(&x, &found)?;
                    continue;
                }
                ensure!(fourier <= direct, "{direction:?}, {points} points, {kind}: {fourier:e}, {direct:e}");
            }
        }
    }
    Ok(())
}

/// As ONNX writes it, with an open length and batch, at several lengths.
fn open(direction: Direction, points: usize, hop: usize, change: impl FnOnce(Node) -> Node) -> TractResult<ModelProto> {
    let layer = Layer::new(direction, points, points, hop)?;
    let op = if direction == Direction::Forward { "Conv" } else { "ConvTranspose" };
    let dims = [Dim::from("N"), Dim::from(layer.spec.in_channels), Dim::from("T")];
    let node = change(Node::new(op).named("layer").inputs(&["x", "w"]).ints("strides", &[hop as i64]).output("y"));
    let model = Model::opset(13).input("x", DatumType::F32, &dims).initializer("w", &layer.filter);
    Ok(model.node(node).output("y").build())
}

#[test]
fn open_sizes() -> TractResult<()> {
    for direction in DIRECTIONS {
        let proto = open(direction, 320, 80, |node| node.ints("pads", &[160, 160]))?;
        let layer = Layer::new(direction, 320, 320, 80)?
            .with(|spec| spec.padding = Padding::Explicit { begin: tvec!(160), end: tvec!(160) });
        let model = Stage::Optimised.of(load(&proto)?)?;
        ensure!(count::<OptFourier>(&model) == 1 && count::<OptGroupedDeconv>(&model) == 0, "{model}");
        for stage in Stage::ALL {
            let runnable = stage.of(load(&proto)?)?.into_runnable()?;
            for (batch, positions) in [(1, 2), (2, 100), (1, 3), (0, 5), (1, 333)] {
                let x = Random(3).tensor(DatumType::F32, &layer.shape(batch, positions));
                let found = runnable.run(tvec!(x.clone().into_tvalue()))?.remove(0);
                layer.is_right(&x, &found).with_context(|| format!("{stage:?}"))?;
            }
        }
    }
    Ok(())
}

/// A length that turns out to be zero gives the bias, as it does in a convolution.
#[test]
fn an_empty_input() -> TractResult<()> {
    let layer = Layer::new(Direction::Transposed, 256, 256, 64)?.with_bias();
    let [fourier, convolution] = [true, false].map(|fusion| -> TractResult<Arc<Tensor>> {
        let model = TypedModel::default();
        let frames = model.symbols.sym("T");
        let shape = [1.to_dim(), 258.to_dim(), frames.into()];
        let model = layer.model_in(model, &shape, fusion, &PlanOptions::default())?.into_optimized()?;
        ensure!(count::<OptFourier>(&model) == usize::from(fusion), "{model}");
        Ok(run(model, &[Tensor::zero::<f32>(&[1, 258, 0])?])?.remove(0))
    });
    let (fourier, convolution) = (fourier?, convolution?);
    ensure!(fourier == convolution, "{fourier:?}, {convolution:?}");
    Ok(())
}

/// Frames that overlap are added in the same order on any number of threads.
#[test]
fn threads_do_not_change_bits() -> TractResult<()> {
    for direction in DIRECTIONS {
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let layer = Layer::new(direction, 512, 512, 100)?.with(|spec| spec.data_format = data_format);
            for (batch, positions) in [(1, 700), (3, 301)] {
                let positions = if direction == Direction::Forward { 100 * positions } else { positions };
                let shape = layer.shape(batch, positions);
                let model = layer.optimised(&shape, true)?;
                ensure!(count::<OptFourier>(&model) == 1, "{model}");
                let runnable = model.into_runnable()?;
                let x = Random(3).tensor(DatumType::F32, &shape).into_tvalue();
                let on = |executor: Executor| {
                    multithread_tract_scope(executor, || runnable.run(tvec!(x.clone()))).map(|mut y| y.remove(0))
                };
                let alone = on(Executor::SingleThread)?;
                for threads in [2, 3, 5] {
                    let shared = on(Executor::multithread(threads))?;
                    ensure!(alone.as_bytes() == shared.as_bytes(), "{direction:?}, {data_format}, {threads} threads");
                }
            }
        }
    }
    Ok(())
}

/// A frame with a number that is not finite is NaN where the convolution is, and where that has
/// infinities. Other frames are not affected.
#[test]
fn numbers_that_are_not_finite() -> TractResult<()> {
    for direction in DIRECTIONS {
        let layer = Layer::new(direction, 256, 256, 64)?;
        let positions = if direction == Direction::Forward { 3000 } else { 40 };
        let shape = layer.shape(1, positions);
        let plain = Random(3).tensor(DatumType::F32, &shape);
        let channels = layer.spec.in_channels;
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // Of a spectrum: an inner part, and the imaginary part of the first bin, which has no
            // weight.
            for channel in [0, channels / 3, channels / 2, channels - 1] {
                let mut x = plain.clone();
                x.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?[channel * positions + positions / 2] = value;
                let [fourier, direct] = [true, false].map(|fusion| -> TractResult<_> {
                    Ok(f64::from_tensor(&run(layer.optimised(&shape, fusion)?, std::slice::from_ref(&x))?.remove(0)))
                });
                let (fourier, direct) = (fourier?, direct?);
                let mut spoiled = 0;
                for ((at, fourier), direct) in fourier.indexed_iter().zip(&direct) {
                    let place = format!("{direction:?}, {value} in channel {channel}: {fourier}, {direct} at {at:?}");
                    ensure!(fourier.is_finite() == direct.is_finite(), "{place}");
                    ensure!(!direct.is_nan() || fourier.is_nan(), "{place}");
                    spoiled += usize::from(!direct.is_finite());
                }
                ensure!(spoiled >= 256, "{spoiled}");
            }
        }
    }
    Ok(())
}

/// What `explain` says of an optimised model's only layer.
fn explained(model: &TypedModel) -> TractResult<String> {
    Ok(explain(model, &SymbolValues::default())?.remove(0).to_string())
}

#[test]
fn explain_says_which() -> TractResult<()> {
    for direction in DIRECTIONS {
        let layer = Layer::new(direction, 400, 400, 100)?;
        let positions = if direction == Direction::Forward { 2000 } else { 20 };
        let shape: TVec<TDim> = layer.shape(1, positions).iter().map(|dim| dim.to_dim()).collect();
        let model = |layer: &Layer, options: &PlanOptions| layer.model(&shape, true, options)?.into_optimized();
        let refused = |layer: &Layer, options: &PlanOptions, reason: &str| -> TractResult<()> {
            let model = model(layer, options)?;
            ensure!(count::<OptFourier>(&model) == 0 && count::<OptGroupedDeconv>(&model) == 1, "{model}");
            let text = explained(&model)?;
            ensure!(text.contains("not a Fourier transform: ") && text.contains(reason), "{text}");
            Ok(())
        };
        let plain = PlanOptions::default();
        let text = explained(&model(&layer, &plain)?)?;
        ensure!(text.ends_with("runs as a Fourier transform of 400 points"), "{text}");
        ensure!(text.contains("kernel 400"), "{text}");

        let mut filter = layer.filter.as_ref().clone();
        filter.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?[123 * 400 + 45] *= 1.0 + 1e-6;
        let tampered = Layer { filter: filter.into_arc_tensor(), ..layer.clone() };
        refused(&tampered, &plain, "at tap 45 of channel 123")?;
        let noise = Random(3).tensor(DatumType::F32, layer.filter.shape()).into_arc_tensor();
        refused(&Layer { filter: noise, ..layer.clone() }, &plain, "no sines and cosines")?;
        let forced = plain.clone().with_strategy(Strategy::DirectPositions);
        refused(&layer, &forced, "is forced")?;
        refused(&layer, &plain.clone().with_isa(tract_deconv::Isa::Portable), "is forced")?;
        refused(&layer.clone().with(|spec| spec.dilations = tvec!(2)), &plain, "dilated")?;
        let model = layer.model(&shape, false, &plain)?.into_optimized()?;
        ensure!(count::<OptFourier>(&model) == 0 && !explained(&model)?.contains("Fourier"), "{model}");
    }
    let prime = Layer::new(Direction::Forward, 257, 257, 64)?;
    let text = explained(&prime.optimised(&[1, 1, 1000], true)?)?;
    ensure!(text.contains("its 257 points have a prime factor above 11"), "{text}");
    // A short transform is no faster, and a layer of other sizes is not asked.
    let short = Layer::new(Direction::Forward, 64, 64, 16)?;
    let text = explained(&short.optimised(&[1, 1, 1000], true)?)?;
    ensure!(text.contains("a transform of 64 points is not faster"), "{text}");
    let text = explained(&Layer::new(Direction::Forward, 32, 32, 16)?.optimised(&[1, 1, 1000], true)?)?;
    ensure!(!text.contains("Fourier"), "{text}");
    Ok(())
}

#[test]
fn fusion_is_an_option() -> TractResult<()> {
    let proto = open(Direction::Transposed, 400, 100, |node| node)?;
    for (fusion, fourier) in [(true, 1), (false, 0)] {
        let options = tract_deconv::Options::default().with_fusion(fusion);
        let onnx = tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&options)?;
        let model = onnx.model_for_proto_model(&proto)?.into_typed()?.into_optimized()?;
        ensure!(count::<OptFourier>(&model) == fourier, "{model}");
    }
    Ok(())
}

/// What is folded into weights stays folded, other steps keep the convolution, and steps before the
/// layer are found.
#[test]
fn operators_around_the_layer() -> TractResult<()> {
    let layer = Layer::new(Direction::Forward, 400, 400, 100)?;
    let dims = [Dim::from("N"), Dim::from(1), Dim::from("T")];
    let model = |build: &dyn Fn(Model) -> Model| {
        let model = Model::opset(13).input("x", DatumType::F32, &dims).initializer("w", &layer.filter);
        build(model.initializer("half", &rctensor0(0.37f32))).build()
    };
    let conv =
        |from: &str, to: &str| Node::new("Conv").named("layer").inputs(&[from, "w"]).ints("strides", &[100]).output(to);
    let scaled = model(&|model| {
        let model = model.node(Node::new("Mul").named("before").inputs(&["x", "half"]).output("s"));
        let model = model.node(conv("s", "c"));
        model.node(Node::new("Mul").named("after").inputs(&["c", "half"]).output("y")).output("y")
    });
    let activated = model(&|model| {
        model.node(conv("x", "c")).node(Node::new("Relu").named("after").inputs(&["c"]).output("y")).output("y")
    });
    let after_tanh = model(&|model| {
        model.node(Node::new("Tanh").named("before").inputs(&["x"]).output("t")).node(conv("t", "y")).output("y")
    });
    let x = Random(3).tensor(DatumType::F32, &[2, 1, 3000]);
    for (proto, fourier, between, nodes) in [(scaled, 1, 0, 2), (activated, 0, 0, 2), (after_tanh, 1, 1, 3)] {
        let optimised = Stage::Optimised.of(load(&proto)?)?;
        let counts = (count::<OptFourier>(&optimised), count::<BetweenLayers>(&optimised), optimised.nodes.len());
        ensure!(counts == (fourier, between, nodes), "{counts:?} {optimised}");
        let [plain, fused] = [Stage::Typed.of(load(&proto)?)?, optimised]
            .map(|model| Ok::<_, TractError>(f64::from_tensor(&run(model, std::slice::from_ref(&x))?.remove(0))));
        let (plain, fused) = (plain?, fused?);
        for (a, b) in plain.iter().zip(&fused) {
            ensure!((a - b).abs() < 2e-5, "{a}, {b}");
        }
    }
    Ok(())
}

/// A limit below the transform's working memory leaves the convolution, which may need less.
#[test]
fn the_memory_limit_holds() -> TractResult<()> {
    let layer = Layer::new(Direction::Transposed, 400, 400, 100)?;
    let shape = layer.shape(1, 2);
    let dims: TVec<TDim> = shape.iter().map(|dim| dim.to_dim()).collect();
    let limited = |bytes| layer.model(&dims, true, &PlanOptions::default().with_memory_limit(bytes))?.into_optimized();
    let model = limited(20_000)?;
    ensure!(explained(&model)?.contains("its working memory is more than the limit"), "{model}");
    // 500 positions of output
    let error = limited(1999).err().context("the output is above the limit")?;
    ensure!(format!("{error:#}").contains("limit of 1999"), "{error:#}");
    Ok(())
}
