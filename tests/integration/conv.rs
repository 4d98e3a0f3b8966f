//! Forward convolutions against the definition and stock tract.
//!
//! They are ONNX Conv through `with_conv`, and tract's own Conv through the transform `conv`.

use crate::common::oracle::Rule;
use crate::common::probe::{NAME, Probe, axis};
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, load_stock, run};
use tract_core::internal::*;
use tract_core::ops::cnn::{Conv, KernelFormat, PaddingSpec, PoolSpec};
use tract_core::ops::nn::DataFormat as TractFormat;
use tract_deconv::rewrite::left_to_tract;
use tract_deconv::{GroupedDeconv, OptGroupedDeconv, OptSoftmax, WithConv};
use tract_onnx::prelude::Framework;

fn count<O: tract_core::ops::Op>(model: &TypedModel) -> usize {
    model.nodes.iter().filter(|node| node.op_is::<O>()).count()
}

fn f32(x: &[usize], w: &[usize]) -> Probe {
    Probe::conv(DatumType::F32, x, w)
}

#[test]
fn every_attribute_and_rank() {
    f32(&[2, 3, 11], &[4, 3, 3]).bias(4).gives_as_stock(&[axis(1, 1, 0, 9)]);
    f32(&[1, 3, 11], &[4, 3, 3]).ints("pads", &[2, 1]).ints("strides", &[2]).gives_as_stock(&[axis(2, 1, 2, 6)]);
    f32(&[1, 3, 11], &[4, 3, 3]).ints("dilations", &[3]).bias(4).gives_as_stock(&[axis(1, 3, 0, 5)]);
    f32(&[1, 4, 7, 6], &[6, 2, 3, 2])
        .group(2)
        .ints("pads", &[1, 0, 1, 1])
        .bias(6)
        .gives_as_stock(&[axis(1, 1, 1, 7), axis(1, 1, 0, 6)]);
    f32(&[1, 5, 7, 6], &[10, 1, 3, 3])
        .group(5)
        .ints("strides", &[2, 1])
        .gives_as_stock(&[axis(2, 1, 0, 3), axis(1, 1, 0, 4)]);
    let rules = [axis(1, 1, 1, 4), axis(2, 1, 0, 2), axis(1, 2, 1, 3)];
    let deep = f32(&[2, 3, 4, 5, 5], &[2, 3, 3, 2, 3]).bias(2);
    deep.ints("strides", &[1, 2, 1])
        .ints("dilations", &[1, 1, 2])
        .ints("pads", &[1, 0, 1, 1, 0, 1])
        .gives_as_stock(&rules);
    let four = [axis(1, 1, 0, 2), axis(1, 1, 1, 3), axis(2, 1, 0, 2), axis(1, 1, 0, 3)];
    f32(&[1, 2, 3, 3, 4, 3], &[3, 2, 2, 3, 2, 1])
        .ints("strides", &[1, 1, 2, 1])
        .ints("pads", &[0, 1, 0, 0, 0, 1, 0, 0])
        .gives(&four);
}

/// The layers become channels-last, so that the transposes around them and behind the Softmax go.
#[test]
fn transposes_around_layers_and_a_softmax_go() -> TractResult<()> {
    let mut random = Random(7);
    let to = |op: &str, from: &[&str], to: &str| Node::new(op).named(to).inputs(from).output(to);
    let up = to("ConvTranspose", &["t", "w1"], "a").ints("strides", &[2]).ints("pads", &[5, 5]);
    let proto = Model::opset(13)
        .input("x", DatumType::F32, &sizes(&[1, 20, 16]))
        .initializer("w1", &random.tensor(DatumType::F32, &[16, 8, 11]))
        .initializer("w2", &random.tensor(DatumType::F32, &[3, 8, 11]))
        .node(to("Transpose", &["x"], "t").ints("perm", &[0, 2, 1]))
        .node(up.ints("output_padding", &[1]))
        .node(to("Conv", &["a", "w2"], "b").ints("pads", &[5, 5]))
        .node(to("Softmax", &["b"], "c").int("axis", 1))
        .node(to("Transpose", &["c"], "y").ints("perm", &[0, 2, 1]))
        .output("y")
        .build();
    let model = load(&proto)?.into_optimized()?;
    assert_eq!((count::<OptSoftmax>(&model), count::<AxisOp>(&model)), (1, 0), "{model}");
    let x = random.tensor(DatumType::F32, &[1, 20, 16]);
    let want = run(load_stock(&proto)?, std::slice::from_ref(&x))?.remove(0);
    want.close_enough(&run(model, &[x])?[0], true)
}

#[test]
fn every_padding_rule() {
    let base = || f32(&[1, 3, 8, 9], &[4, 3, 3, 4]).bias(4).ints("strides", &[2, 3]);
    base().string("auto_pad", "VALID").gives_as_stock(&[axis(2, 1, 0, 3), axis(3, 1, 0, 2)]);
    base().string("auto_pad", "NOTSET").gives_as_stock(&[axis(2, 1, 0, 3), axis(3, 1, 0, 2)]);
    // 3·2 + 3 - 8 = 1 and 2·3 + 4 - 9 = 1.
    base().string("auto_pad", "SAME_UPPER").gives_as_stock(&[axis(2, 1, 0, 4), axis(3, 1, 0, 3)]);
    base().string("auto_pad", "SAME_LOWER").gives_as_stock(&[axis(2, 1, 1, 4), axis(3, 1, 1, 3)]);
    // A kernel that does not exceed the stride needs no padding.
    f32(&[1, 2, 7], &[3, 2, 1]).ints("strides", &[3]).string("auto_pad", "SAME_UPPER").gives(&[axis(3, 1, 0, 3)]);
}

#[test]
fn element_types_opsets_and_run_time_weights() {
    for dt in [DatumType::F16, DatumType::F64] {
        Probe::conv(dt, &[1, 20, 6, 7], &[18, 20, 3, 3]).bias(18).gives(&[axis(1, 1, 0, 4), axis(1, 1, 0, 5)]);
    }
    for opset in [1, 11, 22] {
        f32(&[1, 2, 5], &[3, 2, 2]).opset(opset).ints("kernel_shape", &[2]).gives(&[axis(1, 1, 0, 4)]);
    }
    f32(&[2, 4, 9], &[6, 2, 3]).group(2).bias(6).run_time_weights().gives(&[axis(1, 1, 0, 7)]);
    f32(&[0, 4, 9], &[6, 4, 3]).gives(&[axis(1, 1, 0, 7)]);
}

/// Random nodes agree with the definition, with which stock tract agrees on most of them.
#[test]
fn random_nodes() -> TractResult<()> {
    let mut random = Random(41);
    let mut stock = 0;
    for case in 0..200 {
        let rank = [1, 2, 2, 2, 3, 4][random.below(6)];
        let group = [1, 1, 1, 2, 3][random.below(5)];
        let (ci, co) = (group * (1 + random.below(20)), group * (1 + random.below(if rank > 2 { 9 } else { 40 })));
        let (mut x, mut w) = (vec![random.below(3), ci], vec![co, ci / group]);
        let (mut strides, mut dilations, mut begins, mut ends) = (vec![], vec![], vec![], vec![]);
        let rules: Vec<Rule> = (0..rank)
            .map(|_| {
                let (k, s, d) = (1 + random.below(4), 1 + random.below(3), 1 + random.below(2));
                let (begin, end) = (random.below(3), random.below(3));
                let extent = (k - 1) * d + 1;
                let least = extent.saturating_sub(begin + end).max(1);
                let size = least + random.below(if rank > 2 { 4 } else { 20 });
                x.push(size);
                w.push(k);
                strides.push(s as i64);
                dilations.push(d as i64);
                begins.push(begin as i64);
                ends.push(end as i64);
                axis(s, d, begin as i64, (size + begin + end - extent) / s + 1)
            })
            .collect();
        let pads: Vec<i64> = begins.into_iter().chain(ends).collect();
        let dt = [DatumType::F32, DatumType::F32, DatumType::F64, DatumType::F16][random.below(4)];
        let mut probe = Probe::conv(dt, &x, &w).group(group);
        probe = probe.ints("strides", &strides).ints("dilations", &dilations).ints("pads", &pads);
        if random.below(2) == 0 {
            probe = probe.bias(co);
        }
        if random.below(4) == 0 {
            probe = probe.run_time_weights();
        }
        let expected = probe.expected(&rules);
        for stage in [Stage::Decluttered, Stage::Optimised] {
            let got = run(stage.of(load(&probe.proto())?)?, &probe.inputs())
                .with_context(|| format!("case {case}: {x:?} {w:?} {:?}", probe.node))?;
            expected.check(&got[0]).map_err(|e| format_err!("case {case}: {x:?} {w:?} {:?}: {e}", probe.node))?;
        }
        let theirs =
            crate::common::run::guarded(|| run(load_stock(&probe.proto())?.into_optimized()?, &probe.inputs()));
        stock += theirs.is_ok_and(|y| expected.check(&y[0]).is_ok()) as usize;
    }
    // Confirms the oracle independently.
    assert!(stock > 150, "stock tract gives {stock} of 200");
    Ok(())
}

#[test]
fn symbols() -> TractResult<()> {
    let probe = f32(&[2, 3, 12, 9], &[5, 3, 3, 3]).string("auto_pad", "SAME_UPPER").ints("strides", &[2, 2]).bias(5);
    let model = load(&probe.clone().dims(&[Dim::from("N"), 3.into(), "H".into(), "W".into()]).proto())?;
    for stage in Stage::ALL {
        let staged = stage.of(model.clone())?;
        assert_eq!(count::<Conv>(&staged), 0);
        for (shape, rules) in [
            ([2, 3, 12, 9], [axis(2, 1, 0, 6), axis(2, 1, 1, 5)]),
            ([1, 3, 7, 10], [axis(2, 1, 1, 4), axis(2, 1, 0, 5)]),
        ] {
            let probe = probe.clone().with_x(&shape);
            let got = run(staged.clone(), &probe.inputs())?;
            probe.expected(&rules).check(&got[0]).map_err(|e| format_err!("{stage:?} {shape:?}: {e}"))?;
        }
    }
    Ok(())
}

/// `with_conv` alone does not take ConvTranspose, nor `with_deconv` alone Conv. Other domains stay
/// tract's.
#[test]
fn nothing_else_is_taken() -> TractResult<()> {
    use tract_deconv::WithDeconv;
    let conv = f32(&[1, 2, 5], &[3, 2, 2]).proto();
    let deconv = Probe::new(&[1, 2, 5], &[2, 3, 2]).proto();
    let ours = |onnx: tract_onnx::model::Onnx, proto| -> TractResult<usize> {
        Ok(count::<GroupedDeconv>(&onnx.model_for_proto_model(proto)?.into_typed()?))
    };
    use tract_onnx::prelude::InferenceModelExt;
    assert_eq!(ours(tract_onnx::onnx().with_conv(), &conv)?, 1);
    assert_eq!(ours(tract_onnx::onnx().with_conv(), &deconv)?, 0);
    assert_eq!(ours(tract_onnx::onnx().with_deconv(), &conv)?, 0);
    let other = f32(&[1, 2, 5], &[3, 2, 2]).node(|node| node.domain("com.acme"));
    assert_eq!(ours(tract_onnx::onnx().with_conv(), &other.proto())?, 0);
    Ok(())
}

#[test]
fn malformed_nodes_are_refused() {
    let base = || f32(&[1, 4, 6, 6], &[6, 4, 3, 3]);
    base().ints("strides", &[0, 1]).refused(&["strides: strides=[0, 1], every value must be at least 1"]);
    base().ints("strides", &[1]).refused(&["strides: strides=[1], 2 values are needed, one per spatial axis"]);
    base().ints("pads", &[1, 1, 1]).refused(&["pads: pads=[1, 1, 1], two values per spatial axis are needed"]);
    base().ints("pads", &[-1, 0, 0, 0]).refused(&["pads: pads=[-1, 0, 0, 0], every value must be at least 0"]);
    base().ints("pads", &[0, 0, 1, 0]).string("auto_pad", "SAME_UPPER").refused(&["they exclude auto_pad=SAME_UPPER"]);
    base().string("auto_pad", "same_upper").refused(&["auto_pad: auto_pad=same_upper, it must be NOTSET"]);
    base().ints("kernel_shape", &[3, 2]).refused(&["kernel_shape: kernel_shape=[3, 2], the filter's is [3, 3]"]);
    base().int("group", 4).refused(&["channels"]);
    base().int("group", 0).refused(&["group: group=0, it must be at least 1"]);
    base().bias(5).refused(&["bias: shape=[5], the output has 6 channels"]);
    base().ints("dilations", &[9, 1]).refused(&["output size"]);
    f32(&[1, 3, 6, 6], &[6, 4, 3, 3]).refused(&["channels"]);
    Probe::conv(DatumType::I32, &[1, 4, 6], &[6, 4, 3]).refused(&["input: datum_type=I32, Conv takes"]);
}

/// Batch normalisation, activation and a residual sum after a Conv fold into its node.
#[test]
fn what_follows_is_fused() -> TractResult<()> {
    let mut random = Random(5);
    let (x, w) = (random.tensor(DatumType::F32, &[1, 16, 9, 8]), random.tensor(DatumType::F32, &[16, 16, 3, 3]));
    let mut model = Model::opset(11).input("x", DatumType::F32, &[1.into(), 16.into(), 9.into(), 8.into()]);
    model = model.initializer("w", &w);
    for (name, least) in [("scale", 0.5), ("shift", -0.5), ("mean", -0.5), ("variance", 0.5)] {
        let values: Vec<f32> = (0..16).map(|i| least + i as f32 / 16.).collect();
        model = model.initializer(name, &tensor1(&values));
    }
    let proto = model
        .node(Node::new("Conv").named("c").inputs(&["x", "w"]).output("c").ints("pads", &[1, 1, 1, 1]))
        .node(
            Node::new("BatchNormalization").named("n").inputs(&["c", "scale", "shift", "mean", "variance"]).output("n"),
        )
        .node(Node::new("Add").named("s").inputs(&["n", "x"]).output("s"))
        .node(Node::new("Relu").named("r").inputs(&["s"]).output("y"))
        .output("y")
        .build();
    let optimised = load(&proto)?.into_optimized()?;
    assert_eq!((count::<OptGroupedDeconv>(&optimised), optimised.nodes.len()), (1, 2), "{optimised}");
    let (ours, theirs) = (run(optimised, std::slice::from_ref(&x))?, run(load_stock(&proto)?.into_optimized()?, &[x])?);
    ours[0].close_enough(&theirs[0], Approximation::Approximate)
}

/// Returns tract's op with one of its data formats and kernel formats.
fn of_tract(format: TractFormat, kernel: KernelFormat, padding: PaddingSpec, group: usize) -> TractResult<TypedModel> {
    let mut random = Random(3);
    let mut model = TypedModel::default();
    let x = match format {
        TractFormat::NCHW => vec![2, 4, 6, 7],
        TractFormat::NHWC => vec![2, 6, 7, 4],
        TractFormat::CHW => vec![4, 6, 7],
        TractFormat::HWC => vec![6, 7, 4],
    };
    let w = match kernel {
        KernelFormat::OIHW => vec![6, 4 / group, 3, 2],
        KernelFormat::HWIO => vec![3, 2, 4, 6 / group],
        KernelFormat::OHWI => vec![6 / group, 3, 2, 4],
    };
    let source = model.add_source("x", f32::fact(&x))?;
    let w = model.add_const("w", random.tensor(DatumType::F32, &w))?;
    let b = model.add_const("b", random.tensor(DatumType::F32, &[6]))?;
    let pool = PoolSpec::new(format, tvec!(3, 2), padding, Some(tvec!(1, 2)), Some(tvec!(2, 1)), 4, 6);
    let y = model.wire_node(NAME, Conv::new(pool, kernel, group, None), &[source, w, b])?;
    model.select_output_outlets(&y)?;
    Ok(model)
}

fn transformed(mut model: TypedModel) -> TractResult<TypedModel> {
    let transform = tract_core::transform::get_transform("conv")?.context("it is registered")?;
    transform.transform(&mut model)?;
    Ok(model)
}

#[test]
fn the_transform_keeps_tracts_numbers() -> TractResult<()> {
    use KernelFormat::{HWIO, OHWI, OIHW};
    use TractFormat::{CHW, HWC, NCHW, NHWC};
    let paddings = [
        PaddingSpec::Valid,
        PaddingSpec::Explicit(tvec!(1, 0), tvec!(0, 2)),
        PaddingSpec::ExplicitOnnxPool(tvec!(1, 1), tvec!(1, 1), false),
        PaddingSpec::SameUpper,
        PaddingSpec::SameLower,
    ];
    for (format, kernel) in [NCHW, NHWC, CHW, HWC].iter().flat_map(|f| [OIHW, HWIO, OHWI].map(|k| (*f, k))) {
        for (padding, group) in paddings.iter().flat_map(|p| [(p, 1), (p, 2)]) {
            // tract's own op does not run with such filters.
            if group > 1 && kernel != OIHW {
                continue;
            }
            let what = || format!("{format:?} {kernel:?} {padding:?}, {group} groups");
            let model = of_tract(format, kernel, padding.clone(), group)?;
            let x = Random(9).tensor(DatumType::F32, model.input_fact(0)?.shape.as_concrete().context("fixed")?);
            let want = run(model.clone().into_optimized()?, std::slice::from_ref(&x)).with_context(what)?;
            let ours = transformed(model).with_context(what)?;
            ensure!(count::<GroupedDeconv>(&ours) == 1 && count::<Conv>(&ours) == 0, "{}", what());
            let got = run(ours.into_optimized()?, &[x]).with_context(what)?;
            got[0].close_enough(&want[0], Approximation::Approximate).with_context(what)?;
        }
    }
    Ok(())
}

/// An op that the transform does not replace is listed with the reason.
#[test]
fn what_is_left_to_tract() -> TractResult<()> {
    let rounded = PaddingSpec::ExplicitOnnxPool(tvec!(0, 0), tvec!(0, 0), true);
    let model = of_tract(TractFormat::NCHW, KernelFormat::OIHW, rounded, 1)?;
    let left = left_to_tract(&model)?;
    let reason = "ceil_mode: ceil_mode=1, output sizes that are rounded up are not replaced";
    assert_eq!((left.len(), &*left[0].name, left[0].reason.as_deref()), (1, NAME, Some(reason)));
    assert_eq!(count::<Conv>(&transformed(model)?), 1);

    let mut model = TypedModel::default();
    let x = model.add_source("x", i8::fact([1, 1, 5]))?;
    let w = model.add_const("w", tensor3(&[[[1i8, 2]]]))?;
    let b = model.add_const("b", tensor0(0i32))?;
    let pool = PoolSpec::new(TractFormat::NCHW, tvec!(2), PaddingSpec::Valid, None, None, 1, 1);
    let quantised = Conv::new(pool.clone(), KernelFormat::OIHW, 1, Some(i32::datum_type()));
    let zero = |model: &mut TypedModel, name: &str| model.add_const(name, tensor0(0i32));
    let scale = |model: &mut TypedModel, name: &str, value: f32| model.add_const(name, tensor0(value));
    let (x0, w0, y0) = (zero(&mut model, "x0")?, zero(&mut model, "w0")?, zero(&mut model, "y0")?);
    let (xs, ws) = (scale(&mut model, "xs", 1.0)?, scale(&mut model, "ws", 1.0)?);
    let ys = scale(&mut model, "ys", 2.0)?;
    let y = model.wire_node("q", quantised, &[x, w, b, x0, xs, w0, ws, y0, ys])?;
    model.select_output_outlets(&y)?;
    let left = left_to_tract(&model)?;
    let reason = left[0].reason.as_deref().context("it has one")?;
    assert_eq!(reason, "output: scaled 32-bit results are not replaced");
    let kept = transformed(model)?;
    assert_eq!(count::<Conv>(&kept), 1);
    Ok(())
}
