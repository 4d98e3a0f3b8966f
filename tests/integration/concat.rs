//! Layers that read the tensors of a concatenation of channels.

use crate::common::oracle::{Expected, FromTensor, tolerance};
use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{guarded, run};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::path::Path;
use std::sync::OnceLock;
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::knobs::TRACT_DECONV_SHARE_FROM;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Dialect, Isa, OptGroupedDeconv, Options, WithConv, WithDeconv, WithDeconvOptions, explain};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

fn optimised(proto: &ModelProto, options: &Options) -> TractResult<TypedModel> {
    let onnx = tract_onnx::onnx().with_deconv_options(options)?.with_deconv().with_conv();
    onnx.model_for_proto_model(proto)?.into_typed()?.into_optimized()
}

fn layers(model: &TypedModel) -> Vec<&OptGroupedDeconv> {
    model.nodes().iter().filter_map(|node| node.op_as::<OptGroupedDeconv>()).collect()
}

fn concats(model: &TypedModel) -> usize {
    model.nodes().iter().filter(|node| node.op_is::<TypedConcat>()).count()
}

/// A layer behind a concatenation.
#[derive(Clone, Debug)]
struct Case {
    dt: DatumType,
    direction: Direction,
    batch: usize,
    /// The channels of each tensor.
    parts: Vec<usize>,
    group: usize,
    group_out: usize,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    pads: Vec<usize>,
    sizes: Vec<usize>,
    /// The axes whose sizes are symbols have their bit set. That of channels is never one.
    open: u8,
    bias: bool,
    /// One in a hundred values that is NaN or infinite.
    special: usize,
    seed: u64,
}

impl Case {
    fn channels(&self) -> usize {
        self.parts.iter().sum()
    }

    fn spec(&self) -> DeconvSpec {
        let pads: TVec<i64> = self.pads.iter().map(|pad| *pad as i64).collect();
        DeconvSpec {
            direction: self.direction,
            data_format: DataFormat::Ncx,
            filter_format: match self.direction {
                Direction::Transposed => FilterFormat::Iox,
                Direction::Forward => FilterFormat::GroupedOix,
            },
            in_channels: self.channels(),
            out_channels: self.group * self.group_out,
            group: self.group,
            kernel: self.kernel.iter().copied().collect(),
            strides: self.strides.iter().copied().collect(),
            dilations: self.dilations.iter().copied().collect(),
            padding: Padding::Explicit { begin: pads.clone(), end: pads },
            output_padding: tvec!(0; self.kernel.len()),
        }
    }

    fn shape(&self, channels: usize) -> Vec<usize> {
        [self.batch, channels].into_iter().chain(self.sizes.iter().copied()).collect()
    }

    fn xs(&self) -> Vec<Tensor> {
        let mut random = Random(self.seed);
        let x = |channels: &usize| {
            let shape = self.shape(*channels);
            let values = tract_ndarray::ArrayD::from_shape_simple_fn(&*shape, || match random.below(100) {
                at if at < self.special => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][random.below(3)],
                _ => random.unit(),
            });
            Tensor::from(values).cast_to_dt(self.dt).expect("a float type").into_owned()
        };
        self.parts.iter().map(x).collect()
    }

    fn operands(&self) -> (Tensor, Option<Tensor>) {
        let (mut random, spec) = (Random(self.seed ^ 1), self.spec());
        let w = random.tensor(self.dt, &spec.filter_shape());
        (w, self.bias.then(|| random.tensor(self.dt, &[spec.out_channels])))
    }

    fn proto(&self) -> ModelProto {
        let dim = |axis: usize, size: usize| match self.open >> axis & 1 == 1 {
            true if axis != 1 => Dim::Symbol(format!("D{axis}")),
            _ => Dim::Size(size),
        };
        let names: Vec<String> = (0..self.parts.len()).map(|part| format!("x{part}")).collect();
        let mut model = Model::opset(13);
        for (name, channels) in names.iter().zip(&self.parts) {
            let dims: Vec<Dim> =
                self.shape(*channels).into_iter().enumerate().map(|(ax, size)| dim(ax, size)).collect();
            model = model.input(name, self.dt, &dims);
        }
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let ints = |values: &[usize]| values.iter().map(|value| *value as i64).collect::<Vec<_>>();
        let (w, bias) = self.operands();
        let op = if self.direction == Direction::Forward { "Conv" } else { "ConvTranspose" };
        let layer = Node::new(op).named("layer").inputs(&["joined", "w"]).output("y").int("group", self.group as i64);
        let layer = layer.ints("strides", &ints(&self.strides)).ints("dilations", &ints(&self.dilations));
        let mut layer = layer.ints("pads", &ints(&[&*self.pads, &*self.pads].concat()));
        model = model.initializer("w", &w);
        if let Some(bias) = &bias {
            (model, layer) = (model.initializer("b", bias), layer.input("b"));
        }
        let concat = Node::new("Concat").named("joined").inputs(&names).output("joined").int("axis", 1);
        model.node(concat).node(layer).output("y").build()
    }

    /// The values of all tensors as one.
    fn joined(&self) -> Tensor {
        Tensor::stack_tensors(1, &self.xs()).expect("tensors of the same other sizes")
    }
}

fn case() -> impl Strategy<Value = Case> {
    let floats = prop::sample::select(&[DatumType::F16, DatumType::F32, DatumType::F32, DatumType::F64][..]);
    let direction = prop::sample::select(&[Direction::Forward, Direction::Transposed][..]);
    let channels = prop_oneof![1usize..=4, Just(8usize), Just(16), 5usize..=20];
    let parts = prop::collection::vec(channels, 2..=5);
    let axis = (1usize..=4, 1usize..=3, 1usize..=2, 0usize..=2, prop_oneof![1usize..=12, Just(40usize)]);
    let axes = prop::collection::vec(axis, 1..=3);
    let groups = prop_oneof![4 => Just(0usize), 1 => Just(1usize), 1 => Just(2)];
    let special = prop_oneof![6 => Just(0usize), 1 => Just(2), 1 => Just(30)];
    let outputs = prop_oneof![1usize..=4, 5usize..=24];
    let flags = (any::<u8>(), any::<bool>(), special, any::<u64>(), 1usize..=3);
    (floats, direction, parts, axes, groups, outputs, flags).prop_map(
        |(dt, direction, parts, axes, groups, group_out, (open, bias, special, seed, batch))| {
            let (channels, rank): (usize, _) = (parts.iter().sum(), axes.len());
            let group = match groups {
                1 => channels,
                2 if channels % 2 == 0 => 2,
                _ => 1,
            };
            let mut case = Case {
                dt,
                direction,
                batch,
                parts,
                group,
                group_out: if group > 2 { 1 + group_out % 2 } else { group_out },
                kernel: axes.iter().map(|axis| axis.0).collect(),
                strides: axes.iter().map(|axis| axis.1).collect(),
                dilations: axes.iter().map(|axis| axis.2).collect(),
                pads: vec![],
                sizes: vec![],
                open,
                bias,
                special,
                seed,
            };
            for (kernel, _, dilation, pad, size) in axes {
                let extent = (kernel - 1) * dilation + 1;
                // The filter fits, and something of the output is left.
                let pad = pad.min((extent - 1) / 2);
                let least = if direction == Direction::Forward { extent - 2 * pad } else { 1 };
                case.pads.push(pad);
                // Three axes have few positions each.
                case.sizes.push(size.min([300, 40, 6][rank - 1]).max(least));
            }
            case
        },
    )
}

/// Each case reads its tensors in the layer, and gives what the definition gives, and what a layer
/// behind tract's concatenation gives, with the same bits on one thread and on two.
fn check(case: &Case) -> Result<(), String> {
    static TWO: OnceLock<Executor> = OnceLock::new();
    let two = TWO.get_or_init(|| Executor::multithread(2));
    let (proto, xs, (w, bias)) = (case.proto(), case.xs(), case.operands());
    let error = |what: &str, error: String| format!("{what}: {error}");
    let theirs = {
        let model = optimised(&proto, &Options::default().with_fusion(false)).map_err(|e| e.to_string())?;
        if concats(&model) != 1 {
            return Err(format!("without fusion: {model}"));
        }
        run(model, &xs).map_err(|e| format!("{e:#}"))?.remove(0)
    };
    let expected = Expected::new(&case.spec(), &case.joined(), &w, bias.as_ref(), None);
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        let model = optimised(&proto, &Options::default().with_isa(isa)).map_err(|e| format!("{isa}: {e:#}"))?;
        let found = layers(&model);
        if concats(&model) != 0 || found.len() != 1 || found[0].parts() != case.parts.len() {
            return Err(format!("{isa}: {model}"));
        }
        let by = |executor: &Executor| {
            let run = || guarded(|| run(model.clone(), &xs)).map(|mut y| y.remove(0));
            multithread_tract_scope(executor.clone(), run).map_err(|e| format!("{isa}: {e}"))
        };
        let (alone, shared) = (by(&Executor::SingleThread)?, by(two)?);
        // One NaN may have other bits than another.
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        if !f64::from_tensor(&alone).iter().zip(&f64::from_tensor(&shared)).all(same) {
            return Err(format!("{isa}: other bits on two threads"));
        }
        if case.special == 0 {
            expected.check_by_largest(&alone).map_err(|e| error(isa.name(), e))?;
            continue;
        }
        // What is not finite stands where it does behind a joint tensor.
        let terms = case.channels() * case.kernel.iter().product::<usize>() + 1;
        let (ours, theirs) = (f64::from_tensor(&alone), f64::from_tensor(&theirs));
        if ours.shape() != theirs.shape() {
            return Err(format!("{isa}: shape {:?} for {:?}", ours.shape(), theirs.shape()));
        }
        for (at, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            let same = a == b || a.is_nan() && b.is_nan();
            if !same && ((a - b).abs() > 2.0 * tolerance(case.dt, terms, terms as f64, *b) || !(a - b).is_finite()) {
                return Err(format!("{isa}: {a} for {b} at {at}"));
            }
        }
    }
    Ok(())
}

#[test]
fn layers_read_the_tensors_of_random_concatenations() {
    tract_deconv::internals::fill_new_memory(true);
    // Small tensors are shared by threads, too.
    TRACT_DECONV_SHARE_FROM.set(Some(0));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&case(), |case| check(&case).map_err(TestCaseError::fail));
    result.unwrap_or_else(|error| panic!("{error}"));
}

fn plain() -> Case {
    Case {
        dt: DatumType::F32,
        direction: Direction::Forward,
        batch: 1,
        parts: vec![16, 8],
        group: 1,
        group_out: 16,
        kernel: vec![3, 3],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads: vec![1, 1],
        sizes: vec![20, 24],
        open: 0,
        bias: true,
        special: 0,
        seed: 5,
    }
}

/// Layers of each kind that nets have behind a concatenation, at sizes at which strategies differ.
#[test]
fn layers_of_nets_read_the_tensors() {
    TRACT_DECONV_SHARE_FROM.set(Some(0));
    let point = Case { kernel: vec![1, 1], pads: vec![0, 0], ..plain() };
    let up = Case { direction: Direction::Transposed, kernel: vec![4, 4], strides: vec![2, 2], ..plain() };
    let cases = [
        ("3x3", plain()),
        ("3x3 of odd channels", Case { parts: vec![3, 17, 1], ..plain() }),
        ("3x3 to few channels", Case { group_out: 2, ..plain() }),
        ("point", point.clone()),
        ("point of many channels", Case { parts: vec![64, 64, 5], group_out: 64, ..point.clone() }),
        ("point, batch", Case { batch: 3, open: 1, ..point.clone() }),
        ("one position", Case { sizes: vec![1, 1], ..point }),
        ("up", up.clone()),
        ("up to one channel", Case { group_out: 1, ..up.clone() }),
        ("up by its kernel", Case { kernel: vec![2, 2], pads: vec![0, 0], ..up }),
        ("depthwise", Case { group: 24, group_out: 1, ..plain() }),
        ("depthwise, strided", Case { group: 24, group_out: 1, strides: vec![2, 2], ..plain() }),
        ("f16", Case { dt: DatumType::F16, parts: vec![5, 20], ..plain() }),
        ("open sizes", Case { open: 0xff, batch: 2, ..plain() }),
    ];
    for (what, case) in cases {
        check(&case).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// One thread multiplies zeros with the first taps of the first row, as they are inside for other rows of its
/// block. Another thread that has this row alone leaves them out.
#[test]
fn taps_that_some_rows_leave_out_change_no_bits() {
    tract_deconv::internals::fill_new_memory(true);
    TRACT_DECONV_SHARE_FROM.set(Some(0));
    let case = Case {
        dt: DatumType::F64,
        batch: 3,
        parts: vec![16, 8, 20],
        group_out: 2,
        kernel: vec![4, 2, 2],
        strides: vec![2, 2, 1],
        dilations: vec![2, 2, 1],
        pads: vec![0, 1, 0],
        sizes: vec![7, 6, 6],
        seed: 0,
        ..plain()
    };
    for group_out in [2, 5, 16, 40] {
        check(&Case { group_out, ..case.clone() }).unwrap_or_else(|error| panic!("{group_out}: {error}"));
    }
}

/// What `explain` and the node say about the input.
#[test]
fn explanations_say_how_the_tensors_are_read() -> TractResult<()> {
    let of = |case: &Case, strategy: Option<&str>| -> TractResult<String> {
        let options: Options = serde_json::from_str(&match strategy {
            Some(strategy) => format!(r#"{{"strategy": "{strategy}"}}"#),
            None => "{}".into(),
        })?;
        let model = optimised(&case.proto(), &options)?;
        let [layer] = *layers(&model) else { bail!("{model}") };
        let (info, explained) = (layer.info()?.join("\n"), explain(&model, &SymbolValues::default())?[0].to_string());
        ensure!(explained.contains("[1,24,20,24] ->"), "{explained}");
        ensure!(info.contains("tensors of the input") == explained.contains("tensors of the input"), "{info}");
        Ok(explained)
    };
    let read = of(&plain(), None)?;
    ensure!(read.contains(", channels read from each tensor of the input"), "{read}");
    let up = Case { direction: Direction::Transposed, kernel: vec![4, 4], group_out: 1, ..plain() };
    let joined = of(&Case { strides: vec![2, 2], ..up }, Some("col2im"))?;
    ensure!(joined.contains(", tensors of the input joined first"), "{joined}");
    Ok(())
}

/// A model whose concatenation `joined` has readers besides a layer.
fn read_elsewhere(tail: impl FnOnce(Model) -> Model) -> TractResult<(TypedModel, Vec<Tensor>)> {
    let dims = |channels: usize| [1, channels, 20, 24].map(Dim::Size);
    let model = Model::opset(13)
        .input("x0", DatumType::F32, &dims(16))
        .input("x1", DatumType::F32, &dims(8))
        .initializer("w", &Random(3).tensor(DatumType::F32, &[16, 24, 3, 3]))
        .initializer("p", &Random(4).tensor(DatumType::F32, &[16, 24, 1, 1]))
        .node(Node::new("Concat").named("joined").inputs(&["x0", "x1"]).output("joined").int("axis", 1));
    let proto = tail(model).build();
    let xs: Vec<Tensor> = [16, 8].iter().map(|c| Random(9).tensor(DatumType::F32, &[1, *c, 20, 24])).collect();
    let model = optimised(&proto, &Options::default())?;
    let plain = run(optimised(&proto, &Options::default().with_fusion(false))?, &xs)?;
    for (ours, theirs) in run(model.clone(), &xs)?.iter().zip(&plain) {
        ours.close_enough(theirs, Approximation::Approximate)?;
    }
    Ok((model, xs))
}

fn layer(model: Model, name: &str, filter: &str, pads: i64) -> Model {
    let node = Node::new("Conv").named(name).inputs(&["joined", filter]).output(name).ints("pads", &[pads; 4]);
    model.node(node).output(name)
}

#[test]
fn a_concatenation_that_is_read_elsewhere_stays() -> TractResult<()> {
    let (model, _) = read_elsewhere(|model| layer(model, "y", "w", 1).output("joined"))?;
    assert_eq!((concats(&model), layers(&model)[0].parts()), (1, 1), "an output: {model}");
    let (model, _) = read_elsewhere(|model| {
        let model = layer(model, "y", "w", 1);
        model.node(Node::new("Erf").named("e").inputs(&["joined"]).output("e")).output("e")
    })?;
    assert_eq!((concats(&model), layers(&model)[0].parts()), (1, 1), "another op: {model}");
    Ok(())
}

#[test]
fn several_layers_read_the_tensors_if_their_work_stays_the_same() -> TractResult<()> {
    // Both copy their input into tiles.
    let (model, _) = read_elsewhere(|model| layer(layer(model, "y", "w", 1), "z", "w", 1))?;
    assert_eq!(concats(&model), 0, "{model}");
    assert!(layers(&model).iter().all(|layer| layer.parts() == 2), "{model}");
    // One reads its input in place.
    let (model, _) = read_elsewhere(|model| layer(layer(model, "y", "w", 1), "z", "p", 0))?;
    assert_eq!(concats(&model), 1, "{model}");
    assert!(layers(&model).iter().all(|layer| layer.parts() == 1), "{model}");
    Ok(())
}

#[test]
fn nested_concatenations_are_read_in_all_their_parts() -> TractResult<()> {
    let dims = |channels: usize| ["N".into(), Dim::Size(channels), "H".into(), "W".into()];
    let proto = Model::opset(13)
        .input("a", DatumType::F32, &dims(3))
        .input("b", DatumType::F32, &dims(6))
        .input("c", DatumType::F32, &dims(8))
        .initializer("w", &Random(3).tensor(DatumType::F32, &[17, 4, 3, 3]))
        .node(Node::new("Concat").named("inner").inputs(&["b", "c"]).output("inner").int("axis", 1))
        .node(Node::new("Concat").named("outer").inputs(&["a", "inner"]).output("outer").int("axis", -3))
        .node(Node::new("ConvTranspose").named("y").inputs(&["outer", "w"]).output("y"))
        .output("y")
        .build();
    let (model, plain) =
        (optimised(&proto, &Options::default())?, optimised(&proto, &Options::default().with_fusion(false))?);
    assert_eq!((concats(&model), layers(&model)[0].parts()), (0, 3), "{model}");
    // One model runs on sizes as they come, an empty batch among them.
    let (model, plain) = (model.into_runnable()?, plain.into_runnable()?);
    for (n, h, w) in [(1, 8, 8), (3, 5, 9), (1, 1, 1), (2, 33, 7), (0, 4, 4), (1, 8, 8)] {
        let xs = [3, 6, 8].map(|channels| Random(7).tensor(DatumType::F32, &[n, channels, h, w]));
        let xs = || xs.iter().map(|x| x.clone().into_tvalue()).collect::<TVec<_>>();
        let (ours, theirs) = (model.run(xs())?.remove(0), plain.run(xs())?.remove(0));
        ours.close_enough(&theirs, Approximation::Approximate)?;
    }
    // Tensors that do not fit each other are an error.
    let xs = [(3, 8), (6, 9), (8, 8)].map(|(channels, h)| Random(7).tensor(DatumType::F32, &[1, channels, h, 8]));
    let xs = xs.map(Tensor::into_tvalue).into_iter().collect::<TVec<_>>();
    assert!(guarded(|| model.run(xs)).is_err_and(|error| error.to_string().contains("8")));
    Ok(())
}

/// Channels that come last are joined pixel by pixel, which is left to tract.
#[test]
fn other_axes_are_left_to_tract() -> TractResult<()> {
    let spec = DeconvSpec { data_format: DataFormat::Nxc, ..plain().spec() };
    for (format, axis, shapes) in
        [(DataFormat::Nxc, 3, [[1, 20, 24, 16], [1, 20, 24, 8]]), (DataFormat::Ncx, 2, [[1, 24, 9, 7], [1, 24, 4, 7]])]
    {
        let spec = DeconvSpec { data_format: format, ..spec.clone() };
        let mut model = TypedModel::default();
        let inputs = shapes.iter().enumerate().map(|(at, shape)| model.add_source(format!("x{at}"), f32::fact(shape)));
        let inputs = inputs.collect::<TractResult<TVec<_>>>()?;
        let joined = model.wire_node("joined", TypedConcat { axis }, &inputs)?;
        let w = model.add_const("w", Random(3).tensor(DatumType::F32, &spec.filter_shape()))?;
        let op = tract_deconv::GroupedDeconv::new(spec, Dialect::Onnx, false, Default::default())?;
        let y = model.wire_node("y", op, &[joined[0], w])?;
        model.select_output_outlets(&y)?;
        let model = model.into_optimized()?;
        assert_eq!((concats(&model), layers(&model)[0].parts()), (1, 1), "{model}");
    }
    Ok(())
}

/// The skips of U-nets cost nothing: no concatenation of tract's is left.
#[test]
fn nets_with_skips_have_no_concatenation() -> TractResult<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The shared models are optional.
    let models = [("models/unet_symbolic", 3, true), ("../shared/models/unet_sed", 2, false)];
    for (name, skips, is_own) in models {
        let path = root.join(name).join("model.onnx");
        if !is_own && !path.is_file() {
            continue;
        }
        let onnx = tract_onnx::onnx().with_deconv().with_conv();
        let model = onnx.model_for_path(&path)?.into_typed()?.into_optimized()?;
        assert_eq!(concats(&model), 0, "{name}: {model}");
        assert_eq!(layers(&model).iter().filter(|layer| layer.parts() == 2).count(), skips, "{name}: {model}");
    }
    Ok(())
}
