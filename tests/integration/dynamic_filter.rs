//! Filters that are inputs at run time, with sizes that the model file does not tell.

use crate::common::oracle::Expected;
use crate::common::probe::{Probe, axis};
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, load, refused, run};
use crate::common::spec::unpadded;
use tract_core::internal::*;
use tract_core::knobs::KnobScope;
use tract_deconv::Layer;
use tract_deconv::{DeconvSpec, Direction, FilterFormat, GroupedDeconv, OptGroupedDeconv};
use tract_deconv::{Options, WithDeconv, WithDeconvOptions};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

const F32: DatumType = DatumType::F32;

fn dims(names: &[&str]) -> Vec<Dim> {
    let dim = |name: &&str| name.parse().map_or_else(|_| Dim::from(*name), Dim::Size);
    names.iter().map(dim).collect()
}

#[test]
fn onnx_filters_of_open_sizes() {
    // Forward. One size is unknown, or all are.
    let conv = Probe::conv(F32, &[2, 4, 9, 8], &[6, 2, 4, 3]).group(2);
    let rules = [axis(1, 1, 0, 6), axis(1, 1, 0, 6)];
    conv.clone().filter_dims(&dims(&["6", "2", "K", "3"])).gives(&rules);
    conv.clone().filter_dims(&dims(&["O", "I", "K", "L"])).bias(6).gives(&rules);
    conv.clone().dims(&dims(&["N", "4", "H", "W"])).filter_dims(&dims(&["O", "I", "K", "L"])).gives(&rules);
    let rules = [axis(2, 2, 1, 3), axis(1, 1, 2, 9)];
    let padded = conv.clone().ints("strides", &[2, 1]).ints("dilations", &[2, 1]).ints("pads", &[1, 2, 1, 1]);
    padded.filter_dims(&dims(&["6", "2", "K", "L"])).gives(&rules);
    let same = conv.string("auto_pad", "SAME_LOWER").ints("strides", &[2, 3]);
    same.filter_dims(&dims(&["6", "2", "K", "L"])).gives(&[axis(2, 1, 2, 5), axis(3, 1, 1, 3)]);

    // Transposed. F = 2·(5-1) + 4 and 3·(6-1) + 3.
    let transposed = Probe::new(&[1, 4, 5, 6], &[4, 3, 4, 3]).ints("strides", &[2, 3]);
    let open = dims(&["I", "O", "K", "L"]);
    transposed.clone().filter_dims(&open).bias(3).gives(&[axis(2, 1, 0, 12), axis(3, 1, 0, 18)]);
    let grouped = transposed.clone().group(2).bias(6).ints("output_padding", &[1, 2]).ints("pads", &[1, 0, 2, 1]);
    grouped.filter_dims(&open).gives(&[axis(2, 1, 1, 10), axis(3, 1, 0, 19)]);
    let same = transposed.clone().string("auto_pad", "SAME_UPPER");
    same.filter_dims(&open).gives(&[axis(2, 1, 1, 10), axis(3, 1, 0, 18)]);
    let sized = transposed.ints("output_shape", &[11, 16]);
    sized.filter_dims(&open).gives(&[axis(2, 1, 1, 11), axis(3, 1, 1, 16)]);
}

/// Filters of several sizes through one model, each of them twice.
#[test]
fn sizes_change_from_run_to_run() -> TractResult<()> {
    let node = Node::new("ConvTranspose").inputs(&["x", "w"]).ints("strides", &[2, 2]).output("y");
    let proto = Model::opset(13)
        .input("x", F32, &dims(&["N", "6", "H", "W"]))
        .input("w", F32, &dims(&["6", "O", "K", "L"]))
        .node(node)
        .output("y")
        .build();
    for stage in Stage::ALL {
        let model = stage.of(load(&proto)?)?.into_runnable()?;
        for (kernel, out_channels) in [([3, 3], 5), ([1, 4], 16), ([3, 3], 5), ([5, 2], 1), ([3, 3], 7)] {
            let spec = unpadded(Direction::Transposed, (6, out_channels, 1), &kernel, 2);
            let mut random = Random(out_channels as u64);
            let (x, w) = (random.tensor(F32, &[2, 6, 5, 4]), random.tensor(F32, &spec.filter_shape()));
            let y = model.run(tvec!(x.clone().into_tvalue(), w.clone().into_tvalue()))?;
            Expected::new(&spec, &x, &w, None, None).check(&y[0]).map_err(|e| format_err!("{stage:?}, {spec}: {e}"))?;
        }
    }
    Ok(())
}

/// Another image, of unknown size, determines the filter of each channel.
#[test]
fn a_filter_computed_from_an_input() -> TractResult<()> {
    let mixing = Random(3).tensor(F32, &[4, 4, 1, 1]);
    let proto = Model::opset(13)
        .input("z", F32, &dims(&["1", "4", "h", "w"]))
        .input("x", F32, &dims(&["1", "4", "H", "W"]))
        .initializer("m", &mixing)
        .initializer("four_one", &tensor1(&[4i64, 1]))
        .initializer("two", &tensor1(&[2i64]))
        .initializer("four", &tensor1(&[4i64]))
        .initializer("zero", &tensor1(&[0i64]))
        .node(Node::new("Conv").named("mix").inputs(&["z", "m"]).output("f"))
        .node(Node::new("Shape").inputs(&["f"]).output("s"))
        .node(Node::new("Slice").inputs(&["s", "two", "four", "zero"]).output("hw"))
        .node(Node::new("Concat").inputs(&["four_one", "hw"]).int("axis", 0).output("to"))
        .node(Node::new("Reshape").inputs(&["f", "to"]).output("v"))
        .node(Node::new("Conv").named("main").inputs(&["x", "v"]).int("group", 4).output("y"))
        .output("y")
        .build();
    let (mix, depthwise) =
        (unpadded(Direction::Forward, (4, 4, 1), &[1, 1], 1), unpadded(Direction::Forward, (4, 4, 4), &[4, 3], 1));
    let mut random = Random(7);
    let (z, x) = (random.tensor(F32, &[1, 4, 4, 3]), random.tensor(F32, &[1, 4, 9, 8]));
    // The mixed image, computed by the layer's own plan.
    let mixed = {
        let plan = tract_deconv::Plan::new(&mix, z.shape(), None, F32, &Default::default())?;
        let mixing = mixing.into_arc_tensor();
        let filter = tract_deconv::PackedFilter::pack(&mix, &plan.filter_layout(), &mixing)?;
        Layer::new(plan.clone()).run(&z, &filter, None)?.into_shape(&[4, 1, 4, 3])?
    };
    let expected = Expected::new(&depthwise, &x, &mixed, None, None);
    for stage in Stage::ALL {
        let y = run(stage.of(load(&proto)?)?, &[z.clone(), x.clone()])?;
        expected.check(&y[0]).map_err(|e| format_err!("{stage:?}: {e}"))?;
    }
    Ok(())
}

/// OpenVINO's filters have an axis of groups, which may be unknown too. The output's size may be an
/// input.
#[test]
fn openvino_filters_of_open_sizes() -> TractResult<()> {
    for (open, size) in [(["G", "2", "3", "K", "L"], None), (["2", "I", "O", "3", "2"], Some([9i64, 8]))] {
        let mut node = Node::new("GroupConvolutionBackpropData").domain("org.openvinotoolkit").inputs(&["x", "w"]);
        node = node.ints("strides", &[2, 1]).ints("pads_begin", &[0, 0]).ints("pads_end", &[0, 0]);
        node = node.ints("dilations", &[1, 1]).output("y");
        let mut model = Model::opset(13).input("x", F32, &dims(&["N", "4", "H", "W"])).input("w", F32, &dims(&open));
        let mut random = Random(5);
        let (x, w) = (random.tensor(F32, &[1, 4, 4, 6]), random.tensor(F32, &[2, 2, 3, 3, 2]));
        let mut inputs = vec![x.clone(), w.clone()];
        if let Some(size) = size {
            node = node.input("s");
            model = model.input("s", DatumType::I64, &sizes(&[2]));
            inputs.push(tensor1(&size));
        }
        let proto = model.node(node).output("y").build();
        let mut spec = unpadded(Direction::Transposed, (4, 6, 2), &[3, 2], 1);
        spec.strides = tvec!(2, 1);
        // F is 2·3 + 3 and 5 + 2. The second axis asks for one position more than F.
        if size.is_some() {
            spec.padding = tract_deconv::Padding::Explicit { begin: tvec!(0, 0), end: tvec!(0, -1) };
        }
        let expected = Expected::new(&spec, &x, &w.into_shape(&[4, 3, 3, 2])?, None, None);
        for stage in Stage::ALL {
            let y = guarded(|| run(stage.of(load(&proto)?)?, &inputs)).map_err(|e| format_err!("{stage:?}: {e}"))?;
            expected.check(&y[0]).map_err(|e| format_err!("{stage:?}, {size:?}: {e}"))?;
        }
    }
    Ok(())
}

/// The facts follow from the symbolic sizes. Once those are known, the op is an ordinary one.
#[test]
fn symbols_that_get_values_make_an_ordinary_op() -> TractResult<()> {
    let probe = Probe::new(&[1, 4, 5, 6], &[4, 3, 4, 3]).ints("strides", &[2, 3]).ints("pads", &[1, 0, 0, 2]);
    let model = load(&probe.clone().filter_dims(&dims(&["4", "O", "K", "L"])).proto())?.into_decluttered()?;
    assert!(model.nodes.iter().all(|node| !node.op_is::<GroupedDeconv>()), "{model}");
    let symbol = |name: &str| model.symbols.sym(name);
    let values = SymbolValues::default().with(&symbol("O"), 3).with(&symbol("K"), 4).with(&symbol("L"), 3);
    let shape = &model.outlet_fact(model.outputs[0])?.shape;
    let known: Vec<TDim> = shape.iter().map(|dim| dim.eval(&values)).collect();
    assert_eq!(known, [1, 3, 11, 16].map(|dim| dim.to_dim()));
    let values = [("O", 3), ("K", 4), ("L", 3)].map(|(name, value)| (symbol(name), value.to_dim()));
    let known = model.set_symbols(&values.into_iter().collect())?;
    let known = known.into_decluttered()?;
    assert!(known.nodes.iter().any(|node| node.op_is::<GroupedDeconv>()), "{known}");
    assert!(known.nodes.iter().all(|node| !node.op_is::<OptGroupedDeconv>()), "{known}");
    let y = run(known, &[probe.x.clone(), probe.w.clone()])?;
    probe.expected(&[axis(2, 1, 1, 11), axis(3, 1, 0, 16)]).check(&y[0]).map_err(TractError::msg)
}

/// Checks that the output's fact, with the sizes of a run in place of the symbols, has this shape.
fn promises(proto: &ModelProto, sizes: &[(&str, i64)], expected: &[usize]) -> TractResult<()> {
    let model = load(proto)?;
    let values =
        sizes.iter().fold(SymbolValues::default(), |values, (name, size)| values.with(&model.symbols.sym(name), *size));
    let shape = model.output_fact(0)?.shape.eval_to_usize(&values)?.into_owned();
    ensure!(*shape == *expected, "{:?} is {shape:?}, not {expected:?}", model.output_fact(0)?.shape);
    Ok(())
}

#[test]
fn facts_of_open_sizes_are_those_of_the_result() -> TractResult<()> {
    let conv = || Probe::conv(F32, &[2, 4, 9, 8], &[6, 2, 4, 3]).group(2);
    let transposed = || Probe::new(&[2, 4, 9, 8], &[4, 3, 4, 3]).group(2);
    let spread = |probe: Probe| probe.ints("strides", &[2, 5]).ints("dilations", &[2, 1]);
    let cases = [
        (conv(), [2, 6, 6, 6]),
        (spread(conv()).ints("pads", &[1, 2, 3, 1]), [2, 6, 4, 2]),
        (spread(conv()).string("auto_pad", "SAME_UPPER"), [2, 6, 5, 2]),
        (transposed(), [2, 6, 12, 10]),
        (transposed().ints("kernel_shape", &[4, 3]), [2, 6, 12, 10]),
        // F is 2·8 + 7 + 1 and 5·7 + 3 + 2.
        (spread(transposed()).ints("output_padding", &[1, 2]).ints("pads", &[1, 0, 2, 1]), [2, 6, 21, 39]),
        // The smaller of F and the strides' multiple of the input.
        (spread(transposed()).ints("output_padding", &[1, 1]).string("auto_pad", "SAME_LOWER"), [2, 6, 18, 39]),
        (spread(transposed()).ints("output_shape", &[11, 16]), [2, 6, 11, 16]),
    ];
    let sizes = |w: &Tensor| {
        let filter = ["A", "B", "K", "L"].into_iter().zip(w.shape().iter().map(|dim| *dim as i64));
        [("N", 2), ("H", 9), ("W", 8)].into_iter().chain(filter).collect::<Vec<_>>()
    };
    for (probe, expected) in cases {
        let open = probe.dims(&dims(&["N", "4", "H", "W"])).filter_dims(&dims(&["A", "B", "K", "L"]));
        promises(&open.proto(), &sizes(&open.w), &expected).with_context(|| format!("{:?}", open.node))?;
        let result = run(load(&open.proto())?, &open.inputs())?;
        assert_eq!(result[0].shape(), expected);
    }
    let volume = Probe::conv(F32, &[1, 2, 5, 6, 7], &[3, 2, 2, 3, 2]).dims(&dims(&["N", "2", "D", "H", "W"]));
    let volume = volume.filter_dims(&dims(&["A", "B", "J", "K", "L"]));
    let values = [("N", 1), ("D", 5), ("H", 6), ("W", 7), ("A", 3), ("B", 2), ("J", 2), ("K", 3), ("L", 2)];
    promises(&volume.proto(), &values, &[1, 3, 4, 4, 6])?;
    assert_eq!(run(load(&volume.proto())?, &volume.inputs())?[0].shape(), [1, 3, 4, 4, 6]);
    // The first axis of the filter is that of the groups. Valid ignores the pads.
    for (operator, auto_pad, expected) in [
        ("GroupConvolutionBackpropData", "explicit", [2, 6, 20, 36]),
        ("GroupConvolutionBackpropData", "valid", [2, 6, 23, 38]),
        ("GroupConvolution", "explicit", [2, 4, 3, 2]),
        ("GroupConvolution", "valid", [2, 4, 2, 2]),
    ] {
        let node = Node::new(operator).domain("org.openvinotoolkit").inputs(&["x", "w"]).string("auto_pad", auto_pad);
        let node = node.ints("strides", &[2, 5]).ints("dilations", &[2, 1]);
        let node = node.ints("pads_begin", &[1, 0]).ints("pads_end", &[2, 2]).output("y");
        let (x, w) = (Random(5).tensor(F32, &[2, 4, 9, 8]), Random(6).tensor(F32, &[2, 2, 3, 4, 3]));
        // A forward filter has its output channels before the input channels.
        let w = if operator == "GroupConvolution" { w.into_shape(&[2, 3, 2, 4, 3])?.slice(1, 0, 2)? } else { w };
        let model = Model::opset(13).input("x", F32, &dims(&["N", "4", "H", "W"]));
        let proto = model.input("w", F32, &dims(&["G", "A", "B", "K", "L"])).node(node).output("y").build();
        let mut values = sizes(&w);
        values.truncate(3);
        values.extend(["G", "A", "B", "K", "L"].into_iter().zip(w.shape().iter().map(|dim| *dim as i64)));
        promises(&proto, &values, &expected).with_context(|| format!("{operator} {auto_pad}"))?;
        let result = run(load(&proto)?, &[x, w])?;
        assert_eq!(result[0].shape(), expected);
    }
    Ok(())
}

/// Without fusion, the op of known sizes takes no neighbours either.
#[test]
fn an_op_of_known_sizes_keeps_the_choice_of_fusion() -> TractResult<()> {
    let proto = Probe::new(&[1, 4, 5, 6], &[4, 3, 4, 3]).filter_dims(&dims(&["4", "3", "K", "3"])).proto();
    for fusion in [false, true] {
        let onnx = tract_onnx::onnx().with_deconv().with_deconv_options(&Options::default().with_fusion(fusion))?;
        let model = onnx.model_for_proto_model(&proto)?.into_typed()?;
        let values = [(model.symbols.sym("K"), 4.to_dim())];
        let known = model.set_symbols(&values.into_iter().collect())?.into_decluttered()?;
        let op = known.nodes.iter().find_map(|node| node.op_as::<GroupedDeconv>()).context("an ordinary op")?;
        assert_eq!(op.fusion, fusion);
    }
    Ok(())
}

/// A kernel of an open size may have one position, so no dilation is too large for it.
#[test]
fn an_open_kernel_takes_any_dilation() -> TractResult<()> {
    let probe = Probe::conv(F32, &[1, 2, 5], &[2, 1, 1]).group(2).ints("dilations", &[i32::MAX as i64]);
    let probe = probe.filter_dims(&dims(&["O", "I", "K"]));
    assert_eq!(run(load(&probe.proto())?, &probe.inputs())?[0].shape(), [1, 2, 5]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> TractResult<()> {
    let open = dims(&["I", "O", "K", "L"]);
    let probe = |x: &[usize], w: &[usize]| Probe::new(x, w).filter_dims(&open);
    probe(&[1, 3, 5, 6], &[4, 3, 4, 3]).refused(&["input: channels=3, the filter needs 4"]);
    probe(&[1, 4, 5, 6], &[4, 3, 4, 3]).bias(2).refused(&["bias: shape=[2], one value per output channel, 3 of them"]);
    probe(&[1, 4, 5, 6], &[4, 3, 4, 3]).group(3).refused(&["input channels: channels=4, must be a positive multiple"]);
    let declared = probe(&[1, 4, 5, 6], &[4, 3, 4, 3]).ints("kernel_shape", &[3, 3]);
    declared.refused(&["kernel_shape: kernel_shape=[3, 3], the filter's is [4, 3]"]);
    let padded = probe(&[1, 4, 1, 6], &[4, 3, 1, 3]).ints("pads", &[1, 0, 1, 0]);
    padded.refused(&["output size: size=-1 on spatial axis 0"]);
    // The output has 3 · 8 · 8 elements.
    let layer = probe(&[1, 4, 5, 6], &[4, 3, 4, 3]);
    for (limit, fits) in [(3 * 8 * 8 * 4, true), (3 * 8 * 8 * 4 - 1, false)] {
        let scope = KnobScope::new([("TRACT_DECONV_MEMORY_LIMIT", &*limit.to_string())])?;
        let result = guarded(|| scope.enter(|| run(load(&layer.proto())?.into_optimized()?, &layer.inputs())));
        if fits {
            result.map_err(|e| format_err!("{e}"))?;
        } else {
            refused(result, &["its 768 bytes are more than the limit of 767"]).map_err(TractError::msg)?;
        }
    }
    Ok(())
}

/// oneDNN's filters, with the kernel axes first and in other formats.
#[test]
fn onednn_filters_of_open_sizes() -> TractResult<()> {
    for (format, filter_format, shape) in
        [("XIO", FilterFormat::Xio, [3, 2, 4, 5]), ("OIX", FilterFormat::Oix, [5, 4, 3, 2])]
    {
        let node = Node::new("ConvTranspose").domain("onednn").inputs(&["x", "w"]).ints("strides", &[2, 1]);
        let node = node.string("data_format", "NCX").string("filter_format", format).output("y");
        let names: Vec<String> = (0..4).map(|axis| format!("D{axis}")).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let proto = Model::opset(13)
            .input("x", F32, &dims(&["N", "4", "H", "W"]))
            .input("w", F32, &dims(&names))
            .node(node)
            .output("y")
            .build();
        let base = unpadded(Direction::Transposed, (4, 5, 1), &[3, 2], 1);
        let spec = DeconvSpec { filter_format, strides: tvec!(2, 1), ..base };
        let mut random = Random(5);
        let (x, w) = (random.tensor(F32, &[1, 4, 4, 6]), random.tensor(F32, &shape));
        let expected = Expected::new(&spec, &x, &w, None, None);
        for stage in Stage::ALL {
            let y = run(stage.of(load(&proto)?)?, &[x.clone(), w.clone()])?;
            expected.check(&y[0]).map_err(|e| format_err!("{stage:?}, {format}: {e}"))?;
        }
    }
    Ok(())
}
