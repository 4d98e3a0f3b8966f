//! The three dialects side by side: the same layer in every spelling, and one graph with all
//! dialects.

mod common;
#[path = "../examples/dialects.rs"]
mod example;

use common::oracle::{Answer, Expected, FromTensor, Rule, channels_last, channels_second, convolve};
use common::proto::{Model, Node, sizes};
use common::random::Random;
use common::run::{Stage, guarded, load, run};
use proptest::prelude::*;
use tract_core::internal::tract_ndarray::ArrayD;
use tract_core::internal::*;
use tract_deconv::spec::Direction;
use tract_deconv::{Dialect, WithDeconv, explain};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::Framework;

/// A transposed layer that every dialect can express, with explicit pads and an output padding
/// within ONNX's limit.
#[derive(Clone, Debug)]
struct Layer {
    batch: usize,
    group: usize,
    /// Input and output channels per group.
    channels: (usize, usize),
    /// Per axis: input, kernel, stride, dilation, pads at the beginning and the end, output
    /// padding.
    axes: Vec<(usize, usize, usize, usize, i64, i64, usize)>,
    bias: bool,
    seed: u64,
}

impl Layer {
    fn list(&self, of: impl Fn(&(usize, usize, usize, usize, i64, i64, usize)) -> i64) -> Vec<i64> {
        self.axes.iter().map(of).collect()
    }

    fn rules(&self) -> Vec<Rule> {
        let rule = |&(x, k, stride, dilation, begin, end, op): &(usize, usize, usize, usize, i64, i64, usize)| {
            let full = stride * (x - 1) + (k - 1) * dilation + 1 + op;
            Rule { stride, dilation, pad_begin: begin, output: (full as i64 - begin - end) as usize }
        };
        self.axes.iter().map(rule).collect()
    }

    /// The input, `[N, C, X..]`.
    fn x(&self) -> Tensor {
        let shape = [vec![self.batch, self.group * self.channels.0], self.axes.iter().map(|a| a.0).collect()].concat();
        Random(self.seed).tensor(DatumType::F32, &shape)
    }

    /// The filter, `[G, Ci, Co, K..]`.
    fn w(&self) -> Tensor {
        let (ci, co) = self.channels;
        let shape = [vec![self.group, ci, co], self.axes.iter().map(|a| a.1).collect()].concat();
        Random(self.seed + 1).tensor(DatumType::F32, &shape)
    }

    fn b(&self) -> Option<Tensor> {
        self.bias.then(|| Random(self.seed + 2).tensor(DatumType::F32, &[self.group * self.channels.1]))
    }

    fn answer(&self, with_bias: bool) -> Answer<f64> {
        let bias = self.b().filter(|_| with_bias).map(|b| f64::from_tensor(&b).into_iter().collect::<Vec<_>>());
        let (x, w) = (f64::from_tensor(&self.x()), f64::from_tensor(&self.w()));
        convolve(Direction::Transposed, &x, &w, bias.as_deref(), &self.rules())
    }

    /// The filter with merged groups, `[G·Ci, Co, K..]`.
    fn merged_filter(&self) -> Tensor {
        let w = self.w();
        let shape = [&[w.shape()[0] * w.shape()[1]], &w.shape()[2..]].concat();
        w.into_shape(&shape).expect("same length")
    }

    fn with_operands(&self, node: Node, x: &Tensor, w: &Tensor, bias: bool) -> (ModelProto, Tensor) {
        let mut node = node.inputs(&["x", "w"]).output("y");
        let mut model = Model::opset(11).input("x", x.datum_type(), &sizes(x.shape())).initializer("w", w);
        if let Some(b) = self.b().filter(|_| bias) {
            node = node.input("b");
            model = model.initializer("b", &b);
        }
        (model.node(node).output("y").build(), x.clone())
    }

    fn onnx(&self) -> (ModelProto, Tensor) {
        let pads = [self.list(|a| a.4), self.list(|a| a.5)].concat();
        let node = Node::new("ConvTranspose").ints("pads", &pads).int("group", self.group as i64);
        let node = node.ints("strides", &self.list(|a| a.2 as i64)).ints("dilations", &self.list(|a| a.3 as i64));
        let node = node.ints("output_padding", &self.list(|a| a.6 as i64));
        self.with_operands(node, &self.x(), &self.merged_filter(), true)
    }

    fn openvino(&self, commas: bool) -> (ModelProto, Tensor) {
        let mut node = Node::new("GroupConvolutionBackpropData").domain("org.openvinotoolkit");
        for (name, values) in [
            ("strides", self.list(|a| a.2 as i64)),
            ("dilations", self.list(|a| a.3 as i64)),
            ("pads_begin", self.list(|a| a.4)),
            ("pads_end", self.list(|a| a.5)),
            ("output_padding", self.list(|a| a.6 as i64)),
        ] {
            node = if commas { node.comma_string(name, &values) } else { node.ints(name, &values) };
        }
        self.with_operands(node, &self.x(), &self.w(), false)
    }

    fn onednn(&self, data_format: &str, filter_format: &str) -> (ModelProto, Tensor) {
        let node = Node::new("ConvTranspose").domain("onednn").int("groups", self.group as i64);
        let node = node.ints("strides", &self.list(|a| a.2 as i64)).ints("dilations", &self.list(|a| a.3 as i64));
        let node = node.ints("pads_begin", &self.list(|a| a.4)).ints("pads_end", &self.list(|a| a.5));
        let node = node.ints("output_padding", &self.list(|a| a.6 as i64));
        let node = node.string("data_format", data_format).string("filter_format", filter_format);
        // The merged filter has the layout IOX.
        let w = self.merged_filter().into_plain_array::<f32>().expect("f32");
        let rank = self.axes.len();
        let kernel = 2..rank + 2;
        let order: Vec<usize> = match filter_format {
            "IOX" => [0, 1].into_iter().chain(kernel).collect(),
            "OIX" => [1, 0].into_iter().chain(kernel).collect(),
            "XIO" => kernel.chain([0, 1]).collect(),
            _ => kernel.chain([1, 0]).collect(),
        };
        let w: Tensor = w.permuted_axes(order).as_standard_layout().into_owned().into();
        let x = self.x();
        let x = if data_format == "NXC" { channels_last(x.into_plain_array::<f32>().expect("f32")).into() } else { x };
        self.with_operands(node, &x, &w, true)
    }
}

fn layer() -> impl Strategy<Value = Layer> {
    let axis = (1usize..=4, 1usize..=3, 1usize..=3, 1usize..=3, 0i64..=3, 0i64..=3, 0usize..=2);
    let axis = axis.prop_map(|(x, k, s, d, begin, end, op)| {
        let op = op % s.max(d);
        let full = (s * (x - 1) + (k - 1) * d + 1 + op) as i64;
        let begin = begin.min(full - 1);
        (x, k, s, d, begin, end.min(full - 1 - begin), op)
    });
    let axes = (1usize..=4).prop_flat_map(move |rank| prop::collection::vec(axis.clone(), rank));
    (1usize..=2, 1usize..=3, (1usize..=3, 1usize..=3), axes, any::<bool>(), 0..u64::MAX - 2)
        .prop_map(|(batch, group, channels, axes, bias, seed)| Layer { batch, group, channels, axes, bias, seed })
}

/// Loads the model, runs it decluttered and optimised, and compares the results.
fn check(what: &str, (proto, x): (ModelProto, Tensor), expected: &Expected) -> Result<(), TestCaseError> {
    for stage in [Stage::Decluttered, Stage::Optimised] {
        let got = guarded(|| run(stage.of(load(&proto)?)?, std::slice::from_ref(&x)));
        let verdict = got.map_err(|e| e.to_string()).and_then(|got| expected.check(&got[0]));
        verdict.map_err(|e| TestCaseError::fail(format!("{what}, {stage:?}: {e}")))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_layer_in_every_spelling(layer in layer()) {
        let expected = |with_bias| Expected::floats(DatumType::F32, layer.answer(with_bias));
        check("onnx", layer.onnx(), &expected(true))?;
        for commas in [false, true] {
            check("openvino", layer.openvino(commas), &expected(false))?;
        }
        for filter_format in ["XIO", "OIX", "XOI", "IOX"] {
            let what = |data_format: &str| format!("onednn {data_format} {filter_format}");
            check(&what("NCX"), layer.onednn("NCX", filter_format), &expected(true))?;
            let answer = layer.answer(true);
            let answer = Answer {
                y: channels_last(answer.y),
                magnitude: channels_last(answer.magnitude),
                terms: answer.terms,
            };
            let expected = Expected::floats(DatumType::F32, answer);
            check(&what("NXC"), layer.onednn("NXC", filter_format), &expected)?;
        }
    }
}

/// The values are small integers, so the chain is exact.
#[test]
fn three_dialects_in_one_graph() -> TractResult<()> {
    let mut random = Random(11);
    let small = |random: &mut Random, shape: &[usize]| random.small_integers(DatumType::F32, shape);
    let x = small(&mut random, &[2, 4, 3, 4]);
    let onnx = small(&mut random, &[4, 2, 3, 3]);
    let openvino = small(&mut random, &[2, 1, 3, 2, 2]);
    let onednn = small(&mut random, &[2, 2, 6, 5]);
    let backprop = Node::new("GroupConvolutionBackpropData").domain("ai.intel.openvino").named("second");
    let backprop = backprop.comma_string("strides", &[2, 1]).comma_string("dilations", &[1, 2]);
    let backprop = backprop.comma_string("pads_begin", &[0, 1]).comma_string("pads_end", &[1, 0]);
    let third = Node::new("ConvTranspose").domain("onednn").named("third").ints("strides", &[1, 2]);
    let third = third.ints("dilations", &[1, 1]).ints("pads_begin", &[1, 0]).ints("pads_end", &[0, 1]);
    let proto = Model::opset(11)
        .input("x", f32::datum_type(), &["N".into(), 4.into(), "H".into(), "W".into()])
        .initializer("w1", &onnx)
        .initializer("w2", &openvino)
        .initializer("w3", &onednn)
        .node(Node::new("ConvTranspose").named("first").ints("strides", &[1, 2]).inputs(&["x", "w1"]).output("a"))
        .node(backprop.inputs(&["a", "w2"]).output("b"))
        .node(Node::new("Transpose").ints("perm", &[0, 2, 3, 1]).inputs(&["b"]).output("c"))
        .node(third.inputs(&["c", "w3"]).output("d"))
        .node(Node::new("Transpose").named("back").ints("perm", &[0, 3, 1, 2]).inputs(&["d"]).output("y"))
        .output("y")
        .build();

    let grouped = |w: &Tensor, group: usize| -> ArrayD<f64> {
        let w = f64::from_tensor(w);
        let mut shape = w.shape().to_vec();
        shape[0] /= group;
        shape.insert(0, group);
        w.into_shape_with_order(shape).expect("same length")
    };
    let rule = |stride, dilation, pad_begin, output| Rule { stride, dilation, pad_begin, output };
    let direction = Direction::Transposed;
    let first = [rule(1, 1, 0, 5), rule(2, 1, 0, 9)];
    let a = convolve(direction, &f64::from_tensor(&x), &grouped(&onnx, 1), None, &first).y;
    // 2·4 + 2 - 1 and 8 + 3 - 1.
    let second = [rule(2, 1, 0, 9), rule(1, 2, 1, 10)];
    let b = convolve(direction, &a, &f64::from_tensor(&openvino), None, &second).y;
    // XIO, with [3, 3 - 1] taps, 6 input and 5 output channels.
    let third = f64::from_tensor(&onednn).permuted_axes(vec![2, 3, 0, 1]);
    let third = third.as_standard_layout().into_owned();
    let third_rules = [rule(1, 1, 1, 9), rule(2, 1, 0, 19)];
    let y = convolve(direction, &b, &third.insert_axis(tract_ndarray::Axis(0)), None, &third_rules).y;
    for stage in Stage::ALL {
        let got = run(stage.of(load(&proto)?)?, std::slice::from_ref(&x))?.remove(0);
        ensure!(got.shape() == y.shape(), "{stage:?}: {:?} for {:?}", got.shape(), y.shape());
        ensure!(f64::from_tensor(&got) == y, "{stage:?}: other numbers");
    }
    Ok(())
}

/// The explanations of the example's graph, as text and as values.
#[test]
fn explanations_name_dialect_and_spec() -> TractResult<()> {
    let typed = load(&example::graph())?;
    for stage in Stage::ALL {
        let explained = explain(&stage.of(typed.clone())?, &SymbolValues::default())?;
        let found: Vec<_> = explained.iter().map(|e| (&*e.name, e.dialect)).collect();
        assert_eq!(found, [("twice", Dialect::OpenVino), ("four_times", Dialect::OneDnn)], "{stage:?}");
        for (explanation, dialect) in explained.iter().zip(["openvino", "onednn"]) {
            let spec = explanation.spec.as_ref().context("the filter's sizes are known")?;
            let read = (spec.direction, spec.in_channels, spec.out_channels, spec.group, &*spec.kernel, &*spec.strides);
            assert_eq!(read, (Direction::Transposed, 3, 3, 3, &[2, 2][..], &[2, 2][..]), "{stage:?}");
            let text = explanation.to_string();
            assert!(text.contains(&format!("({dialect})")) && text.contains(&spec.to_string()), "{text}");
        }
    }
    Ok(())
}

#[test]
fn the_example_runs() {
    example::main().expect("the picture four times larger");
}

/// Returns a node of an OpenVINO operator with a constant filter.
fn openvino(op: &str, attributes: impl FnOnce(Node) -> Node, x: &Tensor, w: &Tensor) -> ModelProto {
    Model::of_node(attributes(Node::new(op).domain("org.openvinotoolkit")), x, w)
}

/// Convolution-1 and GroupConvolution-1 with every rule, on one to three axes.
#[test]
fn forward_operators() {
    let mut random = Random(5);
    for rank in 1..=3usize {
        for (auto_pad, rule) in [
            ("explicit", |x: usize| (x + 3 - 5) / 2 + 1),
            ("valid", |x: usize| (x - 5) / 2 + 1),
            ("same_upper", |x: usize| x.div_ceil(2)),
            ("same_lower", |x: usize| x.div_ceil(2)),
        ] as [(&str, fn(usize) -> usize); 4]
        {
            for group in [1, 3] {
                let input: Vec<usize> = (0..rank).map(|ax| 6 + ax).collect();
                let x = random.tensor(DatumType::F32, &[vec![2, 2 * group], input.clone()].concat());
                let w = random.tensor(DatumType::F32, &[vec![group, 4, 2], vec![3; rank]].concat());
                let ones = |value: i64| vec![value; rank];
                let attributes = |node: Node| {
                    let node = node.ints("strides", &ones(2)).ints("dilations", &ones(2)).string("auto_pad", auto_pad);
                    node.ints("pads_begin", &ones(1)).ints("pads_end", &ones(2))
                };
                let rules: Vec<Rule> = input
                    .iter()
                    .map(|x| {
                        let output = rule(*x);
                        let total = ((output - 1) * 2 + 5).saturating_sub(*x);
                        let pad_begin = match auto_pad {
                            "explicit" => 1,
                            "valid" => 0,
                            "same_upper" => total / 2,
                            _ => total - total / 2,
                        } as i64;
                        Rule { stride: 2, dilation: 2, pad_begin, output }
                    })
                    .collect();
                let mut filter = f64::from_tensor(&w);
                filter.swap_axes(1, 2);
                let answer = convolve(Direction::Forward, &f64::from_tensor(&x), &filter, None, &rules);
                let expected = Expected::floats(DatumType::F32, answer);
                let grouped = openvino("GroupConvolution", attributes, &x, &w);
                check("GroupConvolution", (grouped, x.clone()), &expected).expect("the definition's answer");
                if group == 1 {
                    let w = w.into_shape(&[vec![4, 2], vec![3; rank]].concat()).expect("same length");
                    let dense = openvino("Convolution", attributes, &x, &w);
                    check("Convolution", (dense, x), &expected).expect("the definition's answer");
                }
            }
        }
    }
}

/// Sums that do not fit wrap modulo the type's width. They do not saturate and are not computed in
/// floats.
#[test]
fn integers_are_exact_or_wrap() -> TractResult<()> {
    fn wrapped(dt: DatumType, values: ArrayD<i128>) -> Tensor {
        macro_rules! narrow {
            ($t:ty) => {
                values.mapv(|v| v as $t).into()
            };
        }
        match dt {
            DatumType::I8 => narrow!(i8),
            DatumType::U8 => narrow!(u8),
            DatumType::I16 => narrow!(i16),
            DatumType::U16 => narrow!(u16),
            DatumType::I32 => narrow!(i32),
            DatumType::U32 => narrow!(u32),
            DatumType::I64 => narrow!(i64),
            _ => narrow!(u64),
        }
    }
    let mut random = Random(17);
    for dt in [
        DatumType::I8,
        DatumType::U8,
        DatumType::I16,
        DatumType::U16,
        DatumType::I32,
        DatumType::U32,
        DatumType::I64,
        DatumType::U64,
    ] {
        let extremes: i128 = if dt.is_unsigned() { -1 } else { 1 << (dt.size_of() * 8 - 1) };
        for whole_range in [true, false] {
            let draw = |random: &mut Random, shape: &[usize]| match whole_range {
                true => random.tensor(dt, shape),
                false => wrapped(dt, ArrayD::from_elem(shape, extremes)),
            };
            let (x, w) = (draw(&mut random, &[2, 4, 3, 5]), draw(&mut random, &[2, 2, 3, 2, 3]));
            let attributes = |node: Node| node.ints("strides", &[2, 1]).ints("dilations", &[1, 2]);
            let proto = openvino("GroupConvolutionBackpropData", attributes, &x, &w);
            let rule = |stride, dilation, output| Rule { stride, dilation, pad_begin: 0, output };
            let rules = [rule(2, 1, 6), rule(1, 2, 9)];
            let (x_exact, w_exact) = (i128::from_tensor(&x), i128::from_tensor(&w));
            let y = convolve(Direction::Transposed, &x_exact, &w_exact, None, &rules).y;
            let want = wrapped(dt, y);
            for stage in Stage::ALL {
                let got = run(stage.of(load(&proto)?)?, std::slice::from_ref(&x))?.remove(0);
                ensure!(*got == want, "{dt:?}, {stage:?}: {got:?} for {want:?}");
            }
        }
    }
    Ok(())
}

/// Up to four spatial axes and negative pads, as far as the specifications allow them.
#[test]
fn what_openvino_and_onednn_allow() {
    let mut random = Random(37);
    let (x, w) = (random.tensor(DatumType::F32, &[1, 4, 5]), random.tensor(DatumType::F32, &[2, 2, 3, 3]));
    let negative = |node: Node| node.ints("pads_begin", &[-2]).ints("pads_end", &[-1]).ints("strides", &[2]);
    let proto = openvino("GroupConvolutionBackpropData", negative, &x, &w);
    let rules = [Rule { stride: 2, dilation: 1, pad_begin: -2, output: 14 }];
    let answer = convolve(Direction::Transposed, &f64::from_tensor(&x), &f64::from_tensor(&w), None, &rules);
    check("negative pads", (proto, x.clone()), &Expected::floats(DatumType::F32, answer))
        .expect("the definition's answer");

    // Any output padding.
    let padded = |node: Node| node.ints("output_padding", &[7]);
    let proto = openvino("GroupConvolutionBackpropData", padded, &x, &w);
    let rules = [Rule { stride: 1, dilation: 1, pad_begin: 0, output: 14 }];
    let answer = convolve(Direction::Transposed, &f64::from_tensor(&x), &f64::from_tensor(&w), None, &rules);
    check("output padding", (proto, x), &Expected::floats(DatumType::F32, answer)).expect("the definition's answer");

    // An unknown domain, with an attribute that only oneDNN has.
    let x = random.tensor(DatumType::F32, &[2, 4, 5, 3]);
    let w = random.tensor(DatumType::F32, &[2, 3, 3, 2]);
    let node = Node::new("ConvTranspose").domain("com.example").string("data_format", "NXC");
    let filter = f64::from_tensor(&w).permuted_axes(vec![2, 3, 0, 1]).as_standard_layout().into_owned();
    let rules = [
        Rule { stride: 1, dilation: 1, pad_begin: 0, output: 5 },
        Rule { stride: 1, dilation: 1, pad_begin: 0, output: 7 },
    ];
    let filter = filter.insert_axis(tract_ndarray::Axis(0));
    let answer = convolve(Direction::Transposed, &channels_second(f64::from_tensor(&x)), &filter, None, &rules);
    let answer = Answer { y: channels_last(answer.y), magnitude: channels_last(answer.magnitude), terms: answer.terms };
    let proto = Model::of_node(node, &x, &w);
    check("another domain", (proto, x), &Expected::floats(DatumType::F32, answer)).expect("the definition's answer");
}

/// Transposes around a layer cancel in both directions, and the layer changes its data format.
#[test]
fn surrounding_transposes_cancel() -> TractResult<()> {
    let mut random = Random(11);
    let onednn = |format: &str| Node::new("ConvTranspose").domain("onednn").string("data_format", format);
    let formats =
        [("NCX", [3, 5, 6, 4], [0, 3, 1, 2], [0, 2, 3, 1]), ("NXC", [3, 4, 5, 6], [0, 2, 3, 1], [0, 3, 1, 2])];
    for (format, shape, to, back) in formats {
        let x = random.tensor(DatumType::F32, &shape);
        let w = random.tensor(DatumType::F32, &[3, 2, 4, 4]);
        let node =
            onednn(format).string("filter_format", "XIO").ints("strides", &[2, 1]).inputs(&["a", "w"]).output("b");
        let proto = Model::opset(13)
            .input("x", f32::datum_type(), &sizes(&shape))
            .initializer("w", &w)
            .node(Node::new("Transpose").ints("perm", &to).inputs(&["x"]).output("a"))
            .node(node.ints("pads_begin", &[0, 0]).ints("pads_end", &[0, 0]).ints("dilations", &[1, 1]))
            .node(Node::new("Transpose").named("back").ints("perm", &back).inputs(&["b"]).output("y"))
            .output("y")
            .build();
        let typed = load(&proto)?;
        let want = run(typed.clone(), std::slice::from_ref(&x))?.remove(0);
        let model = typed.into_optimized()?;
        let moved = model.nodes.iter().filter(|node| node.op_is::<AxisOp>()).count();
        ensure!(moved == 0, "{format}: {moved} axis moves are left in\n{model}");
        let got = run(model, std::slice::from_ref(&x))?.remove(0);
        got.close_enough(&want, Approximation::Approximate)?;
    }
    Ok(())
}

/// Records the warnings that this thread logs.
mod told {
    use std::cell::RefCell;
    use std::sync::Once;

    thread_local!(static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(vec![]) });

    struct Ear;

    impl log::Log for Ear {
        fn enabled(&self, _: &log::Metadata) -> bool {
            true
        }

        fn log(&self, record: &log::Record) {
            if record.level() == log::Level::Warn && record.target().starts_with("tract_deconv") {
                WARNINGS.with_borrow_mut(|warnings| warnings.push(record.args().to_string()));
            }
        }

        fn flush(&self) {}
    }

    /// Returns the result of some work and the warnings that it logged.
    pub fn warnings<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
        static LISTEN: Once = Once::new();
        LISTEN.call_once(|| {
            log::set_logger(&Ear).expect("no other logger");
            log::set_max_level(log::LevelFilter::Warn);
        });
        WARNINGS.take();
        let result = work();
        (result, WARNINGS.take())
    }
}

/// In every list attribute of every dialect, redundant values are accepted and logged, and
/// contradictions are refused.
#[test]
fn lists_that_say_nothing_new_are_taken() {
    struct Operator {
        node: Node,
        x: &'static [usize],
        w: &'static [usize],
    }
    let onnx = |op: &str| Operator { node: Node::new(op), x: &[1, 2, 5, 6], w: &[2, 2, 3, 3] };
    let openvino = |op: &str, w: &'static [usize]| {
        let node = Node::new(op).domain("org.openvinotoolkit").ints("strides", &[1, 1]).ints("dilations", &[1, 1]);
        Operator { node, x: &[1, 2, 5, 6], w }
    };
    let onednn = || {
        let node = Node::new("ConvTranspose").domain("onednn").ints("strides", &[1, 1]).ints("dilations", &[1, 1]);
        Operator { node: node.string("data_format", "NCX"), x: &[1, 2, 5, 6], w: &[3, 3, 2, 2] }
    };
    let backprop = || openvino("GroupConvolutionBackpropData", &[1, 2, 2, 3, 3]);
    let forward = || openvino("Convolution", &[2, 2, 3, 3]);
    let explained = |operator: &Operator, change: &dyn Fn(Node) -> Node| {
        let mut random = Random(3);
        let (x, w) = (random.tensor(DatumType::F32, operator.x), random.tensor(DatumType::F32, operator.w));
        let proto = Model::of_node(change(operator.node.clone()), &x, &w);
        let load = || -> TractResult<_> { Ok(explain(&load(&proto)?, &SymbolValues::default())?.remove(0).spec) };
        told::warnings(load)
    };
    type Change = Box<dyn Fn(Node) -> Node>;
    fn ints(name: &'static str, values: &'static [i64]) -> Change {
        Box::new(move |node| node.ints(name, values))
    }
    fn with(word: &'static str, change: Change) -> Change {
        Box::new(move |node| change(node.string("auto_pad", word)))
    }
    let both = |begin: &'static [i64], end: &'static [i64]| -> Change {
        Box::new(move |node| node.ints("pads_begin", begin).ints("pads_end", end))
    };
    // The operator, the change of the spelling to compare with, the change to test, and the words
    // of the log or of the refusal.
    let same = |word: &'static str| -> Change { Box::new(move |node| node.string("auto_pad", word)) };
    let plain = || -> Change { Box::new(|node| node) };
    let mut taken: Vec<(Operator, Change, Change, Vec<&str>)> = vec![];
    let mut refused: Vec<(Operator, Change, &str)> = vec![];
    for op in ["ConvTranspose", "Conv"] {
        for word in ["VALID", "SAME_UPPER", "SAME_LOWER"] {
            let note = "pads=[0, 0, 0, 0], taken as absent beside auto_pad=";
            taken.push((onnx(op), same(word), with(word, ints("pads", &[0; 4])), vec![note]));
            refused.push((onnx(op), with(word, ints("pads", &[0, 0, 0, 1])), "they exclude auto_pad="));
            refused.push((onnx(op), with(word, ints("pads", &[0, 0])), "2 values are needed on each side"));
            taken.push((onnx(op), same(word), with(word, ints("pads", &[])), vec!["pads=[], taken as absent"]));
        }
        taken.push((onnx(op), plain(), with("NOTSET", ints("pads", &[0; 4])), vec![]));
        for name in ["strides", "dilations", "pads", "kernel_shape"] {
            taken.push((onnx(op), plain(), ints(name, &[]), vec!["=[], taken as absent"]));
        }
        taken.push((onnx(op), plain(), ints("kernel_shape", &[3, 3]), vec![]));
        refused.push((onnx(op), ints("kernel_shape", &[3, 2]), "the filter's is [3, 3]"));
    }
    for name in ["output_padding", "output_shape"] {
        taken.push((onnx("ConvTranspose"), plain(), ints(name, &[]), vec!["=[], taken as absent"]));
    }
    taken.push((onnx("ConvTranspose"), plain(), ints("output_padding", &[0, 0]), vec![]));
    // ONNX's specification ignores pads if there is an output shape.
    let shaped = |pads: &'static [i64]| -> Change {
        Box::new(move |node| node.ints("pads", pads).ints("output_shape", &[6, 7]))
    };
    for (pads, note) in [
        (&[0; 4], "pads=[0, 0, 0, 0], taken as absent beside output_shape"),
        (&[1, 0, 0, 1], "pads=[1, 0, 0, 1], unread beside output_shape"),
    ] {
        taken.push((onnx("ConvTranspose"), ints("output_shape", &[6, 7]), shaped(pads), vec![note]));
    }

    // The other specifications ignore pads if auto_pad sets a rule.
    let of_forward = vec!["output_padding=[0, 0], taken as absent, a forward convolution has none"];
    for (operator, words, no_output_padding) in [
        (&backprop as &dyn Fn() -> Operator, ["valid", "same_upper"], vec![]),
        (&forward, ["valid", "same_lower"], of_forward),
        (&onednn, ["VALID", "SAME_UPPER"], vec![]),
    ] {
        for word in words {
            let absent = |begin| vec![begin, "pads_end=[0, 0], taken as absent beside auto_pad="];
            let zeros = absent("pads_begin=[0, 0], taken as absent beside auto_pad=");
            taken.push((operator(), same(word), with(word, both(&[0, 0], &[0, 0])), zeros));
            let empty = absent("pads_begin=[], taken as absent");
            taken.push((operator(), same(word), with(word, both(&[], &[0, 0])), empty));
            let unread = vec!["pads_begin=[1, 0], unread beside auto_pad=", "pads_end=[0, 2], unread beside auto_pad="];
            taken.push((operator(), same(word), with(word, both(&[1, 0], &[0, 2])), unread));
            refused.push((operator(), with(word, both(&[0], &[0, 0])), "2 values are needed on each side"));
        }
        let zeros = both(&[0, 0], &[0, 0]);
        taken.push((operator(), zeros, both(&[], &[]), vec!["pads_begin=[], taken", "pads_begin is missing"]));
        let padded = |values: &'static [i64]| -> Change {
            let zeros = both(&[0, 0], &[0, 0]);
            Box::new(move |node| zeros(node).ints("output_padding", values))
        };
        taken.push((operator(), both(&[0, 0], &[0, 0]), padded(&[]), vec!["output_padding=[], taken as absent"]));
        taken.push((operator(), both(&[0, 0], &[0, 0]), padded(&[0, 0]), no_output_padding));
        refused.push((operator(), padded(&[0]), "output_padding: output_padding=[0], 2 values are needed"));
    }
    refused.push((forward(), ints("output_padding", &[0, 1]), "a forward convolution has none"));
    let zeros = both(&[0, 0], &[0, 0]);
    let shaped = |values: &'static [i64]| -> Change {
        let zeros = both(&[0, 0], &[0, 0]);
        Box::new(move |node| zeros(node).ints("output_shape", values))
    };
    taken.push((onednn(), zeros, shaped(&[]), vec!["output_shape=[], taken as absent"]));
    refused.push((onednn(), shaped(&[7, 8]), "output_shape: output_shape=[7, 8], the operator has no such attribute"));

    for (ix, (operator, without, change, expected)) in taken.iter().enumerate() {
        let what = format!("row {ix}, {:?}", change(operator.node.clone()));
        let (plain, _) = explained(operator, without);
        let (spec, warnings) = explained(operator, change);
        let (plain, spec) = (plain.expect("the plain spelling"), spec.unwrap_or_else(|e| panic!("{what}: {e:#}")));
        assert_eq!(spec, plain, "{what}");
        assert_eq!(warnings.is_empty(), expected.is_empty(), "{what}: {warnings:?}");
        for words in expected {
            assert!(warnings.iter().any(|warning| warning.contains(words)), "{what}: {words:?} not in {warnings:?}");
        }
    }
    for (ix, (operator, change, expected)) in refused.iter().enumerate() {
        let what = format!("row {ix}, {:?}", change(operator.node.clone()));
        let (spec, _) = explained(operator, change);
        let error = format!("{:#}", spec.expect_err(&what));
        assert!(error.contains(expected), "{what}: {error}");
    }
}

#[test]
fn pads_beside_an_output_shape_that_is_an_input_are_unread() -> TractResult<()> {
    let node = Node::new("ConvolutionBackpropData").domain("org.openvinotoolkit").inputs(&["x", "w", "size"]);
    let node = node.ints("strides", &[1, 1]).ints("dilations", &[1, 1]).output("y");
    let proto = Model::opset(13)
        .input("x", f32::datum_type(), &sizes(&[1, 2, 5, 6]))
        .initializer("w", &Random(2).tensor(f32::datum_type(), &[2, 3, 3, 2]))
        .initializer("size", &tensor1(&[7i64, 7]))
        .node(node.ints("pads_begin", &[1, 0]).ints("pads_end", &[0, 2]))
        .output("y")
        .build();
    let (model, warnings) = told::warnings(|| load(&proto));
    assert_eq!(model?.output_fact(0)?.shape.as_concrete(), Some(&[1, 3, 7, 7][..]));
    for words in ["pads_begin=[1, 0], unread beside output_shape", "pads_end=[0, 2], unread beside output_shape"] {
        assert!(warnings.iter().any(|warning| warning.contains(words)), "{words:?} not in {warnings:?}");
    }
    Ok(())
}

/// A node that has no types yet has its operator's name, shows its attributes, and runs.
#[test]
fn untyped_nodes_are_named_and_run() -> TractResult<()> {
    let (x, w) =
        (Random(1).tensor(f32::datum_type(), &[1, 4, 5, 6]), Random(2).tensor(f32::datum_type(), &[4, 3, 3, 2]));
    let node = Node::new("ConvTranspose").named("up").inputs(&["x", "w"]).ints("strides", &[2, 1]).output("y");
    let model = Model::opset(13).input("x", f32::datum_type(), &sizes(x.shape())).initializer("w", &w);
    let proto = model.node(node).output("y").build();
    let untyped = tract_onnx::onnx().with_deconv().model_for_proto_model(&proto)?;
    let op = &untyped.node(untyped.node_id_by_name("up")?).op;
    assert_eq!(op.name(), "ConvTranspose");
    assert!(op.info()?.concat().contains("strides: Some([2, 1])"), "{:?}", op.info());
    let y = op.eval(&EvalContext::out_of_plan(), tvec!(x.clone().into_tvalue(), w.into_tvalue()))?;
    assert_eq!(*y[0], *run(load(&proto)?, &[x])?[0]);
    Ok(())
}
