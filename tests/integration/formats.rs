//! The data formats of connected layers, which are chosen together when a model is optimised.
//!
//! All plans are made for one machine and the portable kernels, so that every CPU makes the same choices.

use crate::common::oracle::FromTensor;
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{load_stock, run};
use tract_core::internal::*;
use tract_core::ops::change_axes::AxisOp;
use tract_deconv::spec::DataFormat;
use tract_deconv::{
    BetweenLayers, Isa, OptGroupedDeconv, OptTranspose, Options, Pass, WithConv, WithDeconv, WithDeconvOptions,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

/// Builds a graph of tensors of one image with the same spatial sizes.
struct Graph {
    model: Model,
    random: Random,
    /// Names and channels.
    tensors: Vec<(String, usize)>,
    size: Vec<usize>,
    datum_type: DatumType,
}

impl Graph {
    fn new(channels: usize, size: &[usize], seed: u64) -> Graph {
        Graph::of_type(f32::datum_type(), channels, size, seed)
    }

    fn of_type(datum_type: DatumType, channels: usize, size: &[usize], seed: u64) -> Graph {
        let model = Model::opset(14).input("x", datum_type, &sizes(&[&[1, channels], size].concat()));
        Graph { model, random: Random(seed), tensors: vec![("x".into(), channels)], size: size.into(), datum_type }
    }

    /// Returns the shape of a tensor with these sizes before the spatial axes, and `size` along each of those.
    fn along(&self, before: &[usize], size: usize) -> Vec<usize> {
        [before, &vec![size; self.size.len()]].concat()
    }

    /// Adds a node and its output, which gets the next name.
    fn push(&mut self, node: Node, channels: usize) -> usize {
        let name = format!("t{}", self.tensors.len());
        self.model = self.model.clone().node(node.named(&name).output(&name));
        self.tensors.push((name, channels));
        self.tensors.len() - 1
    }

    /// Adds a constant and returns its name. Sums of products with it are not larger than the other factors.
    fn constant(&mut self, shape: &[usize]) -> String {
        let name = format!("w{}", self.random.next());
        let products: usize = shape[1..].iter().product();
        let value = || self.random.unit() / (products as f64).sqrt();
        let tensor = tract_ndarray::ArrayD::from_shape_simple_fn(shape, value).into_tensor();
        let tensor = tensor.cast_to_dt(self.datum_type).expect("a type of numbers").into_owned();
        self.model = self.model.clone().initializer(&name, &tensor);
        name
    }

    fn conv(&mut self, from: usize, channels: usize) -> usize {
        let (name, c) = self.tensors[from].clone();
        let w = self.constant(&self.along(&[channels, c], 1));
        self.push(Node::new("Conv").inputs(&[&name, &w]), channels)
    }

    /// Adds a layer of three taps along each axis, in so many groups, that keeps the sizes.
    fn grouped(&mut self, from: usize, direction: &str, group: usize) -> usize {
        let (name, c) = self.tensors[from].clone();
        let (w, pads) = (self.constant(&self.along(&[c, c / group], 3)), vec![1; 2 * self.size.len()]);
        let node = Node::new(direction).inputs(&[&name, &w]).int("group", group as i64).ints("pads", &pads);
        self.push(node, c)
    }

    fn depthwise(&mut self, from: usize, kernel: usize) -> usize {
        let (name, c) = self.tensors[from].clone();
        let (w, pads) = (self.constant(&self.along(&[c, 1], kernel)), vec![kernel as i64 / 2; 2 * self.size.len()]);
        let node = Node::new("Conv").inputs(&[&name, &w]).int("group", c as i64).ints("pads", &pads);
        self.push(node, c)
    }

    fn unary(&mut self, op: &str, from: usize) -> usize {
        let (name, c) = self.tensors[from].clone();
        // Stock tract, which gives the expected numbers, has no other activations of f64.
        let of_f64 = self.datum_type == DatumType::F64 && ["Sigmoid", "HardSwish"].contains(&op);
        let op = if of_f64 { "Relu" } else { op };
        self.push(Node::new(op).inputs(&[&name]), c)
    }

    fn binary(&mut self, op: &str, a: usize, b: usize) -> usize {
        let ((a, c), (b, _)) = (self.tensors[a].clone(), self.tensors[b].clone());
        self.push(Node::new(op).inputs(&[&a, &b]), c)
    }

    /// Multiplies by a constant per channel.
    fn scaled(&mut self, from: usize) -> usize {
        let (name, c) = self.tensors[from].clone();
        let factors = self.constant(&self.along(&[1, c], 1));
        self.push(Node::new("Mul").inputs(&[&name, &factors]), c)
    }

    /// Multiplies by a gate that two layers compute from the mean of each channel.
    fn gated(&mut self, from: usize) -> usize {
        let mean = self.unary("GlobalAveragePool", from);
        let channels = self.tensors[from].1;
        let squeezed = self.conv(mean, 8);
        let rectified = self.unary("Relu", squeezed);
        let excited = self.conv(rectified, channels);
        let gate = self.unary("Sigmoid", excited);
        self.binary("Mul", from, gate)
    }

    fn pooled(&mut self, from: usize) -> usize {
        let (name, c) = self.tensors[from].clone();
        let (kernel, pads) = (vec![3; self.size.len()], vec![1; 2 * self.size.len()]);
        let node = Node::new("MaxPool").inputs(&[&name]).ints("kernel_shape", &kernel).ints("pads", &pads);
        self.push(node, c)
    }

    fn joined(&mut self, a: usize, b: usize) -> usize {
        let channels = self.tensors[a].1 + self.tensors[b].1;
        let names = [self.tensors[a].0.clone(), self.tensors[b].0.clone()];
        self.push(Node::new("Concat").inputs(&[&names[0], &names[1]]).int("axis", 1), channels)
    }

    /// A block of a mobile network, which adds its input to its result.
    fn block(&mut self, from: usize, channels: usize) -> usize {
        let wide = self.conv(from, channels);
        let wide = self.unary("Relu", wide);
        let wide = self.depthwise(wide, 3);
        let wide = self.unary("HardSwish", wide);
        let narrow = self.conv(wide, self.tensors[from].1);
        self.binary("Add", narrow, from)
    }

    fn build(self, outputs: &[usize]) -> ModelProto {
        let outputs = outputs.iter().map(|at| &self.tensors[*at].0);
        outputs.fold(self.model.clone(), |model, name| model.output(name)).build()
    }

    fn x(&self) -> Tensor {
        Random(9).tensor(self.datum_type, &[&[1, self.tensors[0].1], &self.size[..]].concat())
    }
}

fn optimised(proto: &ModelProto, fusion: bool) -> TractResult<TypedModel> {
    let options = Options::default().with_fusion(fusion).with_machine("zen4").with_isa(Isa::Portable);
    let onnx = tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(&options)?;
    onnx.model_for_proto_model(proto)?.into_typed()?.into_optimized()
}

/// The layers with channels last, all layers, and the moves of an axis.
#[derive(Debug, PartialEq)]
struct Count {
    last: usize,
    layers: usize,
    moves: usize,
}

fn count(model: &TypedModel) -> Count {
    let layers = || model.nodes().iter().filter_map(|node| node.op_as::<OptGroupedDeconv>());
    let moves =
        |node: &&TypedNode| node.op_is::<OptTranspose>() || matches!(node.op_as::<AxisOp>(), Some(AxisOp::Move(..)));
    Count {
        last: layers().filter(|op| op.spec.data_format == DataFormat::Nxc).count(),
        layers: layers().count(),
        moves: model.nodes().iter().filter(moves).count(),
    }
}

/// Checks that an optimised model gives the numbers of tract's own, which is not optimised.
fn check(proto: &ModelProto, model: TypedModel, x: &Tensor) -> TractResult<()> {
    let expected = run(load_stock(proto)?, std::slice::from_ref(x))?;
    let found = run(model, std::slice::from_ref(x))?;
    assert_eq!(expected.len(), found.len());
    let tolerance = match x.datum_type() {
        DatumType::F16 => 0.03,
        DatumType::F32 => 1e-5,
        _ => 1e-13,
    };
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected.shape(), found.shape());
        let [expected, found] = [expected, found].map(|tensor| f64::from_tensor(tensor));
        let largest = expected.iter().fold(0f64, |largest, value| largest.max(value.abs()));
        for (at, (a, b)) in expected.iter().zip(&found).enumerate() {
            ensure!((a - b).abs() <= tolerance * largest, "{a} expected, {b} found at {at}, the largest is {largest}");
        }
    }
    Ok(())
}

/// Three blocks of a mobile network, whose input has these spatial sizes.
fn three_blocks(spatial: [Dim; 2]) -> (ModelProto, Tensor) {
    let mut graph = Graph::new(32, &[14, 14], 1);
    let [height, width] = spatial;
    graph.model = Model::opset(14).input("x", f32::datum_type(), &[1.into(), 32.into(), height, width]);
    let last = (0..3).fold(0, |from, _| graph.block(from, 192));
    let x = graph.x();
    (graph.build(&[last]), x)
}

#[test]
fn a_chain_moves_its_channels_at_its_ends_only() -> TractResult<()> {
    let (proto, x) = three_blocks([14.into(), 14.into()]);
    let model = optimised(&proto, true)?;
    assert_eq!(count(&model), Count { last: 9, layers: 9, moves: 2 }, "{model}");
    // Activations and sums are part of the layers.
    assert_eq!(model.nodes().len(), 1 + 9 + 2, "{model}");
    check(&proto, model, &x)?;
    let apart = optimised(&proto, false)?;
    assert_eq!(count(&apart), Count { last: 0, layers: 9, moves: 0 });
    check(&proto, apart, &x)
}

#[test]
fn a_layer_by_itself_keeps_its_format() -> TractResult<()> {
    let mut graph = Graph::new(192, &[14, 14], 1);
    let last = graph.depthwise(0, 3);
    let model = optimised(&graph.build(&[last]), true)?;
    assert_eq!(count(&model), Count { last: 0, layers: 1, moves: 0 }, "{model}");
    Ok(())
}

#[test]
fn open_sizes_keep_their_format() -> TractResult<()> {
    let (proto, x) = three_blocks(["H".into(), "W".into()]);
    let model = optimised(&proto, true)?;
    assert_eq!(count(&model), Count { last: 0, layers: 9, moves: 0 }, "{model}");
    check(&proto, model, &x)
}

/// What reads the channels behind the batch gets them there, each value moved once.
#[test]
fn other_readers_get_the_channels_where_they_were() -> TractResult<()> {
    let mut graph = Graph::new(32, &[14, 14], 1);
    let first = (0..3).fold(0, |from, _| graph.block(from, 192));
    let pooled = graph.pooled(first);
    let joined = graph.joined(first, pooled);
    let second = graph.block(first, 192);
    let x = graph.x();
    let proto = graph.build(&[joined, second, first]);
    let model = optimised(&proto, true)?;
    assert_eq!(count(&model), Count { last: 12, layers: 12, moves: 3 }, "{model}");
    check(&proto, model, &x)
}

/// The means of channels, and the gates made of them, are computed in the format of the layers around them.
#[test]
fn gates_keep_up_with_their_layers() -> TractResult<()> {
    let mut graph = Graph::new(48, &[14, 14], 1);
    let mut last = 0;
    for _ in 0..3 {
        last = graph.conv(last, 192);
        last = graph.depthwise(last, 5);
        last = graph.scaled(last);
        last = graph.gated(last);
        last = graph.conv(last, 48);
    }
    let x = graph.x();
    let proto = graph.build(&[last]);
    let model = optimised(&proto, true)?;
    let found = count(&model);
    assert_eq!((found.last, found.moves), (found.layers, 2), "{model}");
    let scales = model.nodes().iter().filter_map(|node| node.op_as::<BetweenLayers>());
    assert_eq!(scales.filter(|op| op.passes().contains(&Pass::Scale)).count(), 3, "{model}");
    check(&proto, model, &x)
}

/// Graphs of layers and of ops that do and don't compute in either format.
#[test]
fn random_graphs_keep_their_numbers() -> TractResult<()> {
    let cases: u64 = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64);
    let (mut all, mut some) = (0, 0);
    for seed in 0..cases.clamp(8, 2000) {
        let mut choice = Random(seed);
        let size: &[usize] = [&[14, 14][..], &[6, 9], &[1, 40], &[20, 3], &[90], &[4, 5, 6]][choice.below(6)];
        let datum_type = [DatumType::F32, DatumType::F32, DatumType::F64, DatumType::F16][choice.below(4)];
        let mut graph = Graph::of_type(datum_type, [3, 16, 24, 32][choice.below(4)], size, seed);
        // The tensors with all positions.
        let mut whole = vec![0];
        for _ in 0..3 + choice.below(12) {
            let wide = |at: &usize| graph.tensors[*at].1 >= 16;
            let from = whole[[whole.len() - 1, choice.below(whole.len())][choice.below(3) / 2]];
            let made = match choice.below(12) {
                0 | 1 => graph.conv(from, [5, 16, 32, 96][choice.below(4)]),
                2 | 3 => graph.depthwise(from, [3, 5][choice.below(2)]),
                4 if wide(&from) => graph.block(from, 96),
                5 => graph.unary(["Relu", "Sigmoid", "HardSwish"][choice.below(3)], from),
                6 => graph.scaled(from),
                7 => graph.gated(from),
                8 => graph.pooled(from),
                9 | 10 if wide(&from) => {
                    let group = [1, 4][choice.below(2)];
                    graph.grouped(from, ["Conv", "ConvTranspose"][choice.below(2)], group)
                }
                _ => {
                    let same = |at: &&usize| graph.tensors[**at].1 == graph.tensors[from].1;
                    let others: Vec<usize> = whole.iter().filter(same).copied().collect();
                    let other = others[choice.below(others.len())];
                    if choice.below(2) == 0 { graph.binary("Add", from, other) } else { graph.joined(from, other) }
                }
            };
            whole.push(made);
        }
        let outputs = [whole[whole.len() - 1], whole[1 + choice.below(whole.len() - 1)]];
        let outputs = if outputs[0] == outputs[1] { &outputs[..1] } else { &outputs[..] };
        let x = graph.x();
        let proto = graph.build(outputs);
        let model = optimised(&proto, true)?;
        let Count { last, layers, .. } = count(&model);
        all += usize::from(last > 0 && last == layers);
        some += usize::from(last > 0 && last < layers);
        check(&proto, model, &x).with_context(|| format!("seed {seed}"))?;
    }
    println!("channels last in all layers of {all} graphs, in some layers of {some}");
    assert!(cases < 64 || (all > 0 && some > 0), "{all} {some}");
    Ok(())
}
