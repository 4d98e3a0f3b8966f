//! Symbolic batch and spatial sizes: one runnable at many shapes, symbols set at every stage, and
//! shapes known at run time only.

mod common;

use common::oracle::Rule;
use common::probe::{Probe, axis};
use common::proto::{Dim, Model, Node, sizes};
use common::random::Random;
use common::run::{Stage, load, load_stock, run};
use std::collections::{HashMap, HashSet};
use tract_core::internal::*;
use tract_deconv::{Plan, PlanOptions, explain};

/// An input of two spatial axes whose batch and sizes are symbols.
fn dims() -> [Dim; 4] {
    ["N".into(), 4.into(), "H".into(), "W".into()]
}

const SHAPES: [[usize; 4]; 6] = [[1, 4, 3, 5], [2, 4, 1, 1], [3, 4, 8, 2], [1, 4, 3, 5], [0, 4, 2, 2], [1, 4, 17, 33]];

/// Runs one runnable at every shape.
fn one_runnable(probe: Probe, rules: impl Fn(usize, usize) -> Vec<Rule>) -> TractResult<()> {
    let probe = probe.dims(&dims());
    for stage in Stage::ALL {
        let model = stage.of(load(&probe.proto())?)?;
        let fact = model.output_fact(0)?.clone();
        let symbols = ["N", "H", "W"].map(|name| model.symbols.get(name).context("a symbol of the model"));
        let runnable = model.into_runnable()?;
        for shape in SHAPES {
            let probe = probe.clone().with_x(&shape);
            let inputs = probe.inputs().into_iter().map(|t| t.into_tvalue()).collect();
            let got = runnable.run(inputs)?.remove(0);
            let expected = probe.expected(&rules(shape[2], shape[3]));
            expected.check(&got).map_err(|e| format_err!("{stage:?}, input {shape:?}: {e}"))?;
            let mut values = SymbolValues::default();
            for (symbol, size) in symbols.iter().zip([shape[0], shape[2], shape[3]]) {
                values.set(symbol.as_ref().map_err(|e| format_err!("{e}"))?, size as i64);
            }
            let promised = fact.shape.eval_to_usize(&values)?;
            ensure!(**promised == *got.shape(), "{stage:?}: {:?} promised, {:?} came", fact.shape, got.shape());
        }
    }
    Ok(())
}

fn deconvolution() -> Probe {
    Probe::new(&SHAPES[0], &[4, 3, 4, 3]).ints("strides", &[2, 3]).bias(3)
}

#[test]
fn explicit_pads() -> TractResult<()> {
    let probe = deconvolution().ints("pads", &[1, 0, 1, 2]).ints("output_padding", &[1, 0]);
    // F = 2·(H-1) + 4 + 1 and 3·(W-1) + 3
    one_runnable(probe, |h, w| vec![axis(2, 1, 1, 2 * h + 1), axis(3, 1, 0, (3 * w).saturating_sub(2))])
}

#[test]
fn groups_and_dilations() -> TractResult<()> {
    let probe = Probe::new(&SHAPES[0], &[4, 2, 3, 3]).group(2).ints("dilations", &[2, 3]);
    one_runnable(probe, |h, w| vec![axis(1, 2, 0, h + 4), axis(1, 3, 0, w + 6)])
}

#[test]
fn auto_pad() -> TractResult<()> {
    let probe = || deconvolution().ints("output_padding", &[1, 0]);
    // out = 2·H with F = 2·H + 3, and 3·W = F
    let upper = probe().string("auto_pad", "SAME_UPPER");
    one_runnable(upper, |h, w| vec![axis(2, 1, 1, 2 * h), axis(3, 1, 0, 3 * w)])?;
    let lower = probe().string("auto_pad", "SAME_LOWER");
    one_runnable(lower, |h, w| vec![axis(2, 1, 2, 2 * h), axis(3, 1, 0, 3 * w)])?;
    let valid = probe().string("auto_pad", "VALID");
    one_runnable(valid, |h, w| vec![axis(2, 1, 0, 2 * h + 3), axis(3, 1, 0, 3 * w)])
}

#[test]
fn output_shape() -> TractResult<()> {
    // F = 2·H + 2 and 3·W
    let crop = |full: usize, out: usize| full.saturating_sub(out);
    for (auto_pad, upper) in [("NOTSET", false), ("VALID", false), ("SAME_LOWER", false), ("SAME_UPPER", true)] {
        let probe = deconvolution().ints("output_shape", &[9, 14]).string("auto_pad", auto_pad);
        let begin = |total: usize| if upper { total / 2 } else { total - total / 2 } as i64;
        one_runnable(probe, |h, w| {
            vec![axis(2, 1, begin(crop(2 * h + 2, 9)), 9), axis(3, 1, begin(crop(3 * w, 14)), 14)]
        })?;
    }
    Ok(())
}

#[test]
fn weights_as_graph_inputs() -> TractResult<()> {
    let probe = deconvolution().run_time_weights().string("auto_pad", "SAME_UPPER");
    one_runnable(probe, |h, w| vec![axis(2, 1, 1, 2 * h), axis(3, 1, 0, 3 * w)])
}

#[test]
fn one_symbol_at_a_time() -> TractResult<()> {
    let probe = deconvolution().string("auto_pad", "SAME_LOWER");
    let rules = [axis(2, 1, 1, 6), axis(3, 1, 0, 15)];
    for symbolic in 0..8usize {
        let dim = |ax: usize, bit: usize, name: &str| match symbolic >> bit & 1 {
            1 => Dim::Symbol(name.into()),
            _ => Dim::Size(SHAPES[0][ax]),
        };
        let dims = [dim(0, 0, "N"), 4.into(), dim(2, 1, "H"), dim(3, 2, "W")];
        probe.clone().dims(&dims).gives(&rules);
    }
    // One symbol for two axes.
    let square = probe.clone().with_x(&[1, 4, 5, 5]).dims(&["N".into(), 4.into(), "S".into(), "S".into()]);
    square.gives(&[axis(2, 1, 1, 10), axis(3, 1, 0, 15)]);
    Ok(())
}

#[test]
fn symbols_set_at_every_stage() -> TractResult<()> {
    let probe = deconvolution().ints("output_shape", &[7, 14]).dims(&dims());
    // F = 8 and 15
    let expected = probe.expected(&[axis(2, 1, 1, 7), axis(3, 1, 1, 14)]);
    for (before, after) in Stage::ALL.into_iter().flat_map(|b| Stage::ALL.map(|a| (b, a))) {
        let model = before.of(load(&probe.proto())?)?;
        let symbol = |name| model.symbols.get(name).with_context(|| format!("the model has no symbol {name}"));
        let all = HashMap::from([(symbol("N")?, 1.to_dim()), (symbol("H")?, 3.to_dim()), (symbol("W")?, 5.to_dim())]);
        // All symbols at once, and in two steps, after the first of which some symbols remain.
        let batch = model.symbols.new_with_prefix("B");
        let first = HashMap::from([(symbol("N")?, batch.to_dim() * 2 - 1), (symbol("W")?, 5.to_dim())]);
        let second = HashMap::from([(batch, 1.to_dim()), (symbol("H")?, 3.to_dim())]);
        let at_once = model.set_symbols(&all)?;
        let in_steps = model.set_symbols(&first)?.set_symbols(&second)?;
        for model in [at_once, in_steps] {
            let model = after.of(model)?;
            let fact = model.output_fact(0)?;
            ensure!(fact.shape.as_concrete() == Some(expected.shape()), "{before:?}, {after:?}: fact {fact:?}");
            let got = run(model, &probe.inputs())?;
            expected.check(&got[0]).map_err(|e| format_err!("set {before:?}, run {after:?}: {e}"))?;
        }
    }
    Ok(())
}

/// A skip connection whose sizes are given as an expression. The facts must unify.
#[test]
fn sizes_that_meet_another_tensor() -> TractResult<()> {
    let mut random = Random(3);
    let probe = Probe::new(&[2, 4, 3, 5], &[4, 3, 2, 2]).ints("strides", &[2, 2]).dims(&dims());
    let skip: [Dim; 4] = ["N".into(), 3.into(), "2*H".into(), "2*W".into()];
    let proto = Model::opset(11)
        .input("x", f32::datum_type(), &dims())
        .input("skip", f32::datum_type(), &skip)
        .initializer("w", &probe.w)
        .node(probe.node.clone())
        .node(Node::new("Concat").inputs(&["y", "skip"]).int("axis", 1).output("z"))
        .output("z")
        .build();
    let skip = random.tensor(f32::datum_type(), &[2, 3, 6, 10]);
    let expected = probe.expected(&[axis(2, 1, 0, 6), axis(2, 1, 0, 10)]);
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        let z = run(model, &[probe.x.clone(), skip.clone()])?.remove(0);
        expected.check(&z.slice(1, 0, 3)?).map_err(|e| format_err!("{stage:?}: {e}"))?;
        ensure!(z.slice(1, 3, 6)? == skip, "{stage:?}: the skip connection is not what went in");
    }
    Ok(())
}

/// The size of the input is the number of nonzero values of another tensor, so it is known at run
/// time only.
#[test]
fn a_size_that_only_the_run_knows() -> TractResult<()> {
    let probe = Probe::new(&[1, 1, 4], &[1, 2, 3]).ints("strides", &[2]).string("auto_pad", "SAME_LOWER");
    let proto = Model::opset(11)
        .input("mask", f32::datum_type(), &[9.into()])
        .initializer("w", &probe.w)
        .node(Node::new("NonZero").inputs(&["mask"]).output("places"))
        .node(Node::new("Cast").inputs(&["places"]).int("to", 1).output("numbers"))
        .node(Node::new("Unsqueeze").inputs(&["numbers"]).ints("axes", &[0]).output("x"))
        .node(probe.node.clone())
        .output("y")
        .build();
    for stage in Stage::ALL {
        let runnable = stage.of(load(&proto)?)?.into_runnable()?;
        for mask in [[0f32, 1., 1., 0., 0., 1., 0., 0., 0.], [1.; 9], [0., 0., 0., 0., 0., 0., 0., 0., 1.]] {
            let places: Vec<f32> = (0..9).filter(|i| mask[*i] != 0.0).map(|i| i as f32).collect();
            let mut probe = probe.clone();
            probe.x = tensor1(&places).into_shape(&[1, 1, places.len()])?;
            let y = runnable.run(tvec!(tensor1(&mask).into_tvalue()))?.remove(0);
            let rules = [axis(2, 1, 1, 2 * places.len())];
            probe.expected(&rules).check(&y).map_err(|e| format_err!("{stage:?}, {} places: {e}", places.len()))?;
        }
    }
    Ok(())
}

/// OpenVINO's third input, computed from the shape of the tensor that the result must fit.
#[test]
fn output_shape_taken_from_another_tensor() -> TractResult<()> {
    let probe = Probe::new(&[2, 4, 3, 5], &[4, 3, 4, 4]);
    let w = probe.w.clone().into_shape(&[1, 4, 3, 4, 4])?;
    let node = Node::new("GroupConvolutionBackpropData").named("fit").domain("org.openvinotoolkit");
    let node = node.ints("strides", &[2, 2]).ints("dilations", &[1, 1]);
    let node = node.ints("pads_begin", &[0, 0]).ints("pads_end", &[0, 0]);
    let proto = Model::opset(11)
        .input("x", f32::datum_type(), &dims())
        .input("target", f32::datum_type(), &["N".into(), 1.into(), "P".into(), "Q".into()])
        .initializer("w", &w)
        .initializer("begin", &tensor1(&[2i64]))
        .initializer("end", &tensor1(&[4i64]))
        .node(Node::new("Shape").inputs(&["target"]).output("shape"))
        .node(Node::new("Slice").inputs(&["shape", "begin", "end"]).output("size"))
        .node(node.inputs(&["x", "w", "size"]).output("y"))
        .output("y")
        .build();
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?;
        let runnable = model.into_runnable()?;
        // F = 8 and 12, with the odd position at the end.
        for (size, begin) in [([8, 12], [0, 0]), ([7, 9], [0, 1]), ([6, 13], [1, 0])] {
            let target = Tensor::zero::<f32>(&[2, 1, size[0], size[1]])?;
            let y = runnable.run(tvec!(probe.x.clone().into_tvalue(), target.into_tvalue()))?.remove(0);
            let rules = [axis(2, 1, begin[0], size[0]), axis(2, 1, begin[1], size[1])];
            probe.expected(&rules).check(&y).map_err(|e| format_err!("{stage:?}, {size:?}: {e}"))?;
        }
    }
    Ok(())
}

#[test]
fn output_shape_of_three_axes_that_only_the_run_knows() -> TractResult<()> {
    let probe = Probe::new(&[1, 2, 3, 2, 4], &[2, 3, 3, 2, 2]);
    let node = Node::new("ConvolutionBackpropData").domain("org.openvinotoolkit").inputs(&["x", "w", "size"]);
    let node = node.ints("strides", &[2, 2, 2]).ints("dilations", &[1, 1, 1]);
    let node = node.ints("pads_begin", &[0, 0, 0]).ints("pads_end", &[0, 0, 0]).output("y");
    let model = Model::opset(11).input("x", f32::datum_type(), &sizes(probe.x.shape())).initializer("w", &probe.w);
    let proto = model.input("size", i64::datum_type(), &sizes(&[3])).node(node).output("y").build();
    for stage in Stage::ALL {
        let y = run(stage.of(load(&proto)?)?, &[probe.x.clone(), tensor1(&[7i64, 4, 8])])?;
        let rules = [axis(2, 1, 0, 7), axis(2, 1, 0, 4), axis(2, 1, 0, 8)];
        probe.expected(&rules).check(&y[0]).map_err(|e| format_err!("{stage:?}: {e}"))?;
    }
    Ok(())
}

/// The forms in which exporters write "as large as the skip connection" and "twice as large as the
/// input".
#[test]
fn output_shapes_computed_by_the_graph() -> TractResult<()> {
    let probe = Probe::new(&[2, 4, 3, 5], &[4, 3, 4, 4]);
    let w = probe.w.clone().into_shape(&[1, 4, 3, 4, 4])?;
    let shape_of = |name: &str| Node::new("Shape").named("whole").inputs(&[name]).output("whole");
    let one = |name: &str, index: &str| Node::new("Gather").named(name).inputs(&["whole", index]).output(name);
    let vector = |from: &str, to: &str| Node::new("Unsqueeze").named(to).inputs(&[from, "zero"]).output(to);
    let joined = || Node::new("Concat").named("size").int("axis", 0).inputs(&["high", "wide"]).output("size");
    // "second" is a scalar with the value two.
    let doubled = |from: &str, to: &str| Node::new("Mul").named(to).inputs(&[from, "second"]).output(to);
    let of_the_skip: [(&str, Vec<Node>); 4] = [
        ("Slice", vec![shape_of("skip"), Node::new("Slice").inputs(&["whole", "two", "four"]).output("size")]),
        ("Gather of both", vec![shape_of("skip"), Node::new("Gather").inputs(&["whole", "places"]).output("size")]),
        (
            "Gather of each, Unsqueeze, Concat",
            vec![
                shape_of("skip"),
                one("h", "second"),
                one("w_", "third"),
                vector("h", "high"),
                vector("w_", "wide"),
                joined(),
            ],
        ),
        (
            "Cast",
            vec![
                shape_of("skip"),
                Node::new("Cast").named("cast").int("to", 6).inputs(&["whole"]).output("narrow"),
                Node::new("Slice").inputs(&["narrow", "two", "four"]).output("size"),
            ],
        ),
    ];
    let of_the_input: [(&str, Vec<Node>); 2] = [
        (
            "Slice, Mul",
            vec![
                shape_of("x"),
                Node::new("Slice").named("half").inputs(&["whole", "two", "four"]).output("half"),
                doubled("half", "size"),
            ],
        ),
        (
            "Gather of each, Mul, Unsqueeze, Concat",
            vec![
                shape_of("x"),
                one("h", "second"),
                one("w_", "third"),
                doubled("h", "h2"),
                doubled("w_", "w2"),
                vector("h2", "high"),
                vector("w2", "wide"),
                joined(),
            ],
        ),
    ];
    let skips = [[2, 3, 8, 12], [2, 3, 7, 9], [2, 3, 6, 13]];
    for (what, nodes, skips) in of_the_skip
        .into_iter()
        .map(|(what, nodes)| (what, nodes, &skips[..]))
        .chain(of_the_input.into_iter().map(|(what, nodes)| (what, nodes, &[[2, 3, 6, 10]][..])))
    {
        let node = Node::new("GroupConvolutionBackpropData").named("fit").inputs(&["x", "w", "size"]).output("y");
        let node = node.ints("strides", &[2, 2]).ints("dilations", &[1, 1]);
        let node = node.ints("pads_begin", &[0, 0]).ints("pads_end", &[0, 0]);
        let mut model = Model::opset(13)
            .input("x", f32::datum_type(), &dims())
            .input("skip", f32::datum_type(), &["N".into(), 3.into(), "P".into(), "Q".into()])
            .initializer("w", &w)
            .initializer("zero", &tensor1(&[0i64]))
            .initializer("two", &tensor1(&[2i64]))
            .initializer("four", &tensor1(&[4i64]))
            .initializer("second", &tensor0(2i64))
            .initializer("third", &tensor0(3i64))
            .initializer("places", &tensor1(&[2i64, 3]));
        for node in nodes {
            model = model.node(node);
        }
        let proto = model.node(node).node(Node::new("Identity").inputs(&["skip"]).output("same")).output("y");
        let proto = proto.output("same").build();
        for (before, after) in Stage::ALL.into_iter().flat_map(|b| Stage::ALL.map(|a| (b, a))) {
            let model = before.of(load(&proto)?).context(what)?;
            let text = model.to_string();
            // tract does not cast symbols, so the result of a cast is known at run time only.
            let known = !text.contains("deconv_out");
            ensure!(known == (what != "Cast"), "{what}, {before:?}, known over symbols: {known}: {text}");
            for skip in skips {
                // F = 8 and 12, with the odd position at the end.
                let begin = |full: usize, out: usize| (full.saturating_sub(out) / 2) as i64;
                let rules = [axis(2, 1, begin(8, skip[2]), skip[2]), axis(2, 1, begin(12, skip[3]), skip[3])];
                let expected = probe.expected(&rules);
                let inputs = [probe.x.clone(), Tensor::zero::<f32>(skip)?];
                let sizes = [("N", 2), ("H", 3), ("W", 5), ("P", skip[2]), ("Q", skip[3])];
                let set = sizes.into_iter().filter_map(|(name, size)| Some((model.symbols.get(name)?, size.to_dim())));
                for model in [model.clone(), model.set_symbols(&set.collect())?] {
                    let got = run(after.of(model)?, &inputs).context(what)?;
                    expected.check(&got[0]).map_err(|e| format_err!("{what}, {before:?}, {after:?}, {skip:?}: {e}"))?;
                }
            }
        }
    }
    Ok(())
}

/// Counts the plans that this thread made. Each plan is logged, a run is not.
mod plans {
    use std::cell::Cell;
    use std::sync::Once;

    thread_local! {
        static MADE: Cell<usize> = const { Cell::new(0) };
    }

    struct Counter;

    impl log::Log for Counter {
        fn enabled(&self, _: &log::Metadata) -> bool {
            true
        }

        fn log(&self, record: &log::Record) {
            if record.target().starts_with("tract_deconv") {
                MADE.set(MADE.get() + 1);
            }
        }

        fn flush(&self) {}
    }

    /// Returns the number of plans since the last call.
    pub fn made() -> usize {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            log::set_logger(&Counter).expect("the only logger");
            log::set_max_level(log::LevelFilter::Debug);
        });
        MADE.take()
    }
}

/// One runnable with ever new shapes. Every result is right, and exactly the 16 most recent plans
/// are kept.
#[test]
fn recent_shapes_are_planned_once() -> TractResult<()> {
    let probe = deconvolution().ints("pads", &[1, 0, 1, 0]).dims(&dims());
    for stage in Stage::ALL {
        let runnable = stage.of(load(&probe.proto())?)?.into_runnable()?;
        let run_all = |widths: std::ops::RangeInclusive<usize>| -> TractResult<usize> {
            plans::made();
            for width in widths {
                let probe = probe.clone().with_x(&[1, 4, 2, width]);
                let inputs = probe.inputs().into_iter().map(|t| t.into_tvalue()).collect();
                let y = runnable.run(inputs)?.remove(0);
                let rules = [axis(2, 1, 1, 4), axis(3, 1, 0, 3 * width)];
                probe.expected(&rules).check(&y).map_err(|e| format_err!("{stage:?}, width {width}: {e}"))?;
            }
            Ok(plans::made())
        };
        ensure!(run_all(1..=16)? == 16, "{stage:?}: a plan for each shape");
        ensure!(run_all(1..=16)? == 0, "{stage:?}: sixteen plans are kept");
        ensure!(run_all(17..=17)? == 1, "{stage:?}: a new shape");
        ensure!(run_all(2..=17)? == 0, "{stage:?}: the oldest went, the others stayed");
        ensure!(run_all(1..=1)? == 1, "{stage:?}: the oldest went");
        ensure!(run_all(1..=40)? == 40 - 1, "{stage:?}: more shapes than plans are kept");
    }
    Ok(())
}

/// An output shape given by an ordinary tensor of integers, of every type that the operator
/// accepts.
#[test]
fn output_shape_of_every_integer_type() -> TractResult<()> {
    let probe = Probe::new(&[2, 4, 5], &[4, 3, 4]);
    let w = probe.w.clone().into_shape(&[1, 4, 3, 4])?;
    let types = [u8::datum_type(), i8::datum_type(), u16::datum_type(), i16::datum_type(), u32::datum_type()];
    for dt in types.into_iter().chain([i32::datum_type(), u64::datum_type(), i64::datum_type()]) {
        let node = Node::new("GroupConvolutionBackpropData").domain("ai.intel.openvino").comma_string("strides", &[2]);
        let node = node.comma_string("dilations", &[1]).comma_string("pads_begin", &[0]).comma_string("pads_end", &[0]);
        let node = node.string("auto_pad", "same_upper").inputs(&["x", "w", "size"]).output("y");
        let proto = Model::opset(11)
            .input("x", f32::datum_type(), &["N".into(), 4.into(), "W".into()])
            .input("size", dt, &sizes(&[1]))
            .initializer("w", &w)
            .node(node)
            .output("y")
            .build();
        for stage in Stage::ALL {
            let runnable = stage.of(load(&proto)?)?.into_runnable()?;
            for size in [12usize, 9, 15] {
                let value = tensor1(&[size as i64]).cast_to_dt(dt)?.into_owned();
                let y = runnable.run(tvec!(probe.x.clone().into_tvalue(), value.into_tvalue()))?.remove(0);
                // F = 12. Here same_upper puts the odd position at the beginning.
                let total = 12usize.saturating_sub(size);
                let rules = [axis(2, 1, (total - total / 2) as i64, size)];
                probe.expected(&rules).check(&y).map_err(|e| format_err!("{stage:?}, {dt:?}: {e}"))?;
            }
            for wrong in [0i64, -3] {
                let Ok(value) = tensor1(&[wrong]).cast_to_dt(dt).map(|t| t.into_owned()) else { continue };
                if dt.is_unsigned() && wrong < 0 {
                    continue;
                }
                let result = runnable.run(tvec!(probe.x.clone().into_tvalue(), value.into_tvalue()));
                let message = format!("{:#}", result.err().context("an empty output must be refused")?);
                ensure!(message.contains("output_shape"), "{message}");
            }
        }
    }
    Ok(())
}

/// A layer whose size is open reads a small filter in the layout of the best plan for each size, and a large one in
/// one layout for all.
#[test]
fn a_small_filter_is_packed_for_each_size() -> TractResult<()> {
    let layer = |channels: usize, group: usize| {
        let mut random = Random(7);
        let node = Node::new("Conv").inputs(&["x", "w"]).output("y").int("group", group as i64);
        Model::opset(13)
            .input("x", DatumType::F32, &[1.into(), channels.into(), "S".into(), 8.into()])
            .initializer("w", &random.tensor(DatumType::F32, &[channels, channels / group, 1, 1]))
            .node(node)
            .output("y")
            .build()
    };
    let plans = |channels: usize, group: usize| -> TractResult<Vec<Plan>> {
        let proto = layer(channels, group);
        let model = load(&proto)?.into_optimized()?;
        let symbol = model.symbols.get("S").context("a symbol of the model")?;
        let (ours, stock) = (model.clone().into_runnable()?, load_stock(&proto)?.into_optimized()?.into_runnable()?);
        let mut plans = vec![];
        for size in [1, 200, 1, 24] {
            let x = Random(size as u64).tensor(DatumType::F32, &[1, channels, size, 8]);
            let [want, got] = [&stock, &ours].map(|model| model.run(tvec!(x.clone().into_tvalue())));
            want?[0].close_enough(&got?[0], Approximation::Approximate)?;
            let explained = explain(&model, &SymbolValues::default().with(&symbol, size as i64))?.remove(0);
            plans.push(explained.concrete.context("all sizes are known")?.plan);
        }
        Ok(plans)
    };
    let packings = |plans: &[Plan]| plans.iter().map(|plan| plan.filter_layout()).collect::<HashSet<_>>().len();
    for plan in plans(64, 64)? {
        let of_size =
            Plan::new(plan.spec(), &plan.problem().input_shape(), None, DatumType::F32, &PlanOptions::default())?;
        assert_eq!(plan.filter_layout(), of_size.filter_layout(), "{plan}");
    }
    assert_eq!(packings(&plans(512, 1)?), 1);
    Ok(())
}

/// `col2im` computes volumes only where L2 holds all products. A layer with open sizes packs its filter for another strategy.
#[test]
fn volumes_of_any_size_are_read_with_one_layout() -> TractResult<()> {
    let dims = |batch: Dim, size: Dim| [batch, 48.into(), size, 6.into(), 6.into()];
    let images = [(1, 3), (3, 3)];
    let sizes = [(1, 3), (1, 40)];
    let open = [
        ("N".into(), 3.into(), images),
        (1.into(), "S".into(), sizes),
        ("N".into(), "S".into(), images),
        ("N".into(), "S".into(), sizes),
    ];
    for (batch, size, runs) in open {
        let proto = Model::opset(13)
            .input("x", DatumType::F32, &dims(batch, size))
            .initializer("w", &Random(7).tensor(DatumType::F32, &[48, 12, 4, 2, 4]))
            .node(Node::new("ConvTranspose").inputs(&["x", "w"]).output("y").ints("strides", &[1, 2, 1]))
            .output("y")
            .build();
        let ours = load(&proto)?.into_optimized()?.into_runnable()?;
        let stock = load_stock(&proto)?.into_optimized()?.into_runnable()?;
        for (batch, size) in runs {
            let x = Random(5).tensor(DatumType::F32, &[batch, 48, size, 6, 6]);
            let [want, got] = [&stock, &ours].map(|model| model.run(tvec!(x.clone().into_tvalue())));
            want?[0].close_enough(&got?[0], Approximation::Approximate)?;
        }
    }
    Ok(())
}
