//! The gaps of tract's built-in ConvTranspose. The plugin must be right where the built-in is
//! wrong, and where it is right.
//!
//! There is one test per row of the two lists. If a row says that stock tract fails, the test shows
//! that first. The row can go once a later tract is right.

use crate::common::probe::{Probe, axis};
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::run::{Stage, guarded, load, run};
use tract_core::internal::*;
use tract_deconv::load::Source;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::prelude::InferenceModelExt;

/// Rows that are tested elsewhere, with the file.
const ELSEWHERE: [(&str, &str); 6] = [
    ("batch norm after it", "tests/integration/fusion.rs"),
    ("Relu, LeakyRelu, Clip, Sigmoid, Tanh, Add of a constant after it", "tests/integration/fusion.rs"),
    (
        "NNEF dump with SAME_LOWER, with symbols and output_padding, with SAME_UPPER and output_padding",
        "tests/integration/nnef.rs",
    ),
    ("pulsification", "tests/integration/pulse.rs"),
    ("threads: as fast as the executor allows", "benches/latency.rs"),
    ("f16 as fast as onnxruntime", "benches/latency.rs"),
];

#[test]
fn other_rows_have_their_files() {
    for (row, file) in ELSEWHERE {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        assert!(path.is_file(), "{row}: there is no {file}");
    }
}

// ---- wrong in the built-in operator

#[test]
fn output_shape_with_padding_to_share_crops_both_sides() {
    // F = 2·3 + 3 = 9. An output of 7 crops 2. An output of 6 crops 3, with the odd position at the
    // beginning.
    for auto_pad in ["", "NOTSET", "VALID"] {
        let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).ints("strides", &[2]).string("auto_pad", auto_pad);
        let even = probe.clone().ints("output_shape", &[7]);
        even.stock_fails(&[axis(2, 1, 1, 7)]);
        even.gives(&[axis(2, 1, 1, 7)]);
        probe.ints("output_shape", &[6]).gives(&[axis(2, 1, 2, 6)]);
    }
    let planes = Probe::new(&[2, 2, 4, 3], &[2, 3, 3, 4]).ints("strides", &[2, 3]).bias(3);
    // F = 9 and 10
    planes.clone().ints("output_shape", &[8, 5]).gives(&[axis(2, 1, 1, 8), axis(3, 1, 3, 5)]);
    // Larger than F, so the end holds the bias alone.
    planes.ints("output_shape", &[12, 10]).gives(&[axis(2, 1, 0, 12), axis(3, 1, 0, 10)]);
}

#[test]
fn output_shape_with_same() {
    let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).ints("strides", &[2]).ints("output_shape", &[6]);
    let upper = probe.clone().string("auto_pad", "SAME_UPPER");
    upper.stock_fails(&[axis(2, 1, 1, 6)]);
    upper.gives(&[axis(2, 1, 1, 6)]);
    let lower = probe.string("auto_pad", "SAME_LOWER");
    lower.stock_fails(&[axis(2, 1, 2, 6)]);
    lower.gives(&[axis(2, 1, 2, 6)]);
}

#[test]
fn output_shape_with_symbols() {
    let probe = Probe::new(&[3, 2, 4], &[2, 3, 3]).ints("strides", &[2]).ints("output_shape", &[6]);
    for dims in [["N".into(), Dim::Size(2), Dim::Size(4)], ["N".into(), Dim::Size(2), "W".into()]] {
        for (auto_pad, begin) in [("NOTSET", 2), ("VALID", 2), ("SAME_LOWER", 2), ("SAME_UPPER", 1)] {
            let probe = probe.clone().dims(&dims).string("auto_pad", auto_pad);
            probe.stock_fails(&[axis(2, 1, begin, 6)]);
            probe.gives(&[axis(2, 1, begin, 6)]);
        }
    }
}

#[test]
fn same_with_an_extent_up_to_the_stride() {
    // The output is min(F, X·s), and nothing is cropped.
    for (kernel, output) in [(1, 7), (2, 8), (3, 9)] {
        for auto_pad in ["SAME_UPPER", "SAME_LOWER"] {
            let probe = Probe::new(&[1, 2, 3], &[2, 2, kernel]).ints("strides", &[3]).string("auto_pad", auto_pad);
            if kernel < 3 {
                probe.stock_fails(&[axis(3, 1, 0, output)]);
            }
            probe.gives(&[axis(3, 1, 0, output)]);
        }
    }
}

#[test]
fn same_with_output_padding() {
    // F = 2·3 + 4 + 1 = 11, the output is 8, the total crop 3.
    let probe = Probe::new(&[1, 2, 4], &[2, 2, 4]).ints("strides", &[2]).ints("output_padding", &[1]);
    let upper = probe.clone().string("auto_pad", "SAME_UPPER");
    upper.stock_fails(&[axis(2, 1, 1, 8)]);
    upper.gives(&[axis(2, 1, 1, 8)]);
    probe.string("auto_pad", "SAME_LOWER").gives(&[axis(2, 1, 2, 8)]);
}

#[test]
fn bias_given_as_the_empty_name() {
    let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).node(|node| node.input(""));
    probe.stock_fails(&[axis(1, 1, 0, 6)]);
    probe.gives(&[axis(1, 1, 0, 6)]);
}

#[test]
fn spatial_size_zero() {
    // F = 2·(0-1) + 2 = 0 is an empty output, tested in `empty`. F = -1 is not a size.
    Probe::new(&[1, 2, 0], &[2, 3, 1]).ints("strides", &[2]).refused(&["output size"]);
    Probe::new(&[1, 2, 0, 3], &[2, 3, 1, 2]).ints("strides", &[2, 2]).refused(&["output size"]);
    // F = 2·(0-1) + 3 = 1 is one position that nothing reaches.
    Probe::new(&[1, 2, 0], &[2, 3, 3]).ints("strides", &[2]).bias(3).gives(&[axis(2, 1, 0, 1)]);
}

#[test]
fn lists_of_the_wrong_length() {
    let probe = Probe::new(&[1, 2, 4, 4], &[2, 3, 3, 3]);
    for (name, values) in [
        ("strides", &[2][..]),
        ("strides", &[2, 2, 2]),
        ("dilations", &[2]),
        ("dilations", &[1, 1, 1]),
        ("pads", &[1, 1]),
        ("pads", &[1, 1, 1]),
        ("pads", &[0, 0, 0, 0, 0, 0]),
        ("output_padding", &[0]),
        ("output_padding", &[0, 0, 0]),
        ("output_shape", &[6]),
        ("output_shape", &[1, 3, 6, 6]),
        ("kernel_shape", &[3]),
        ("kernel_shape", &[3, 3, 3]),
    ] {
        probe.clone().ints(name, values).refused(&[name, &format!("{values:?}")]);
    }
}

#[test]
fn values_out_of_range() {
    let probe = Probe::new(&[1, 2, 4, 4], &[2, 3, 3, 3]);
    for (name, values) in [
        ("strides", &[0, 1][..]),
        ("strides", &[1, -2]),
        ("dilations", &[0, 1]),
        ("dilations", &[1, -1]),
        ("pads", &[0, 0, 0, -1]),
        ("output_padding", &[-1, 0]),
        ("output_padding", &[0, 1]), // not less than max(stride, dilation)
        ("output_shape", &[0, 6]),
        ("output_shape", &[6, -1]),
        ("kernel_shape", &[3, 2]),
    ] {
        probe.clone().ints(name, values).refused(&[name, &format!("{values:?}")]);
    }
    for group in [0, -1, 3] {
        probe.clone().int("group", group).refused(&["group", &group.to_string()]);
    }
    probe.clone().string("auto_pad", "SAME").refused(&["auto_pad", "SAME"]);
    probe.clone().ints("pads", &[9, 9, 9, 9]).refused(&["output size"]);
}

#[test]
fn auto_pad_with_pads() {
    for auto_pad in ["VALID", "SAME_UPPER", "SAME_LOWER"] {
        let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).string("auto_pad", auto_pad);
        probe.clone().ints("pads", &[1, 1]).refused(&["pads", auto_pad]);
        // Zeros contradict nothing. onnxruntime gives these sizes if they are removed.
        let rule = if auto_pad == "VALID" { axis(1, 1, 0, 6) } else { axis(1, 1, 1, 4) };
        probe.ints("pads", &[0, 0]).gives(&[rule]);
    }
}

#[test]
fn attributes_of_the_wrong_type() {
    let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]);
    probe.clone().int("strides", 2).refused(&["strides"]);
    probe.clone().string("strides", "2").refused(&["strides"]);
    probe.clone().node(|node| node.floats("dilations", &[1.0])).refused(&["dilations"]);
    probe.clone().ints("group", &[1]).refused(&["group"]);
    probe.clone().int("auto_pad", 1).refused(&["auto_pad"]);
    probe.clone().node(|node| node.float("pads", 0.0)).refused(&["pads"]);
    probe.clone().string("output_shape", "6").refused(&["output_shape"]);
    probe.clone().int("output_padding", 0).refused(&["output_padding"]);
    probe.int("kernel_shape", 3).refused(&["kernel_shape"]);
}

#[test]
fn huge_values() {
    let probe = Probe::new(&[1, 2, 4, 4], &[2, 3, 3, 3]);
    for huge in [1 << 31, 1 << 40, 1 << 62, i64::MAX] {
        probe.clone().ints("dilations", &[huge, 1]).refused(&["dilation"]);
        probe.clone().ints("strides", &[huge, 1]).refused(&["stride"]);
        probe.clone().ints("output_shape", &[huge, 6]).refused(&["output_shape"]);
        probe.clone().ints("pads", &[huge, 0, 0, 0]).refused(&[]);
        probe.clone().ints("kernel_shape", &[huge, 3]).refused(&["kernel_shape"]);
        probe.clone().int("group", huge).refused(&["group"]);
    }
    // Each size is legal, but their product overflows.
    probe.clone().ints("output_shape", &[1 << 30, 1 << 30]).refused(&["output"]);
    probe.ints("strides", &[1 << 30, 1 << 30]).refused(&["output"]);
}

#[test]
fn shapes_that_do_not_fit() {
    // input channels
    Probe::new(&[1, 3, 4], &[2, 3, 3]).refused(&["channels"]);
    Probe::new(&[1, 3, 4], &[3, 3, 3]).int("group", 2).refused(&["group"]);
    // bias
    Probe::new(&[1, 2, 4], &[2, 3, 3]).bias(2).refused(&["bias"]);
    Probe::new(&[1, 2, 4], &[2, 3, 3]).int("group", 2).bias(3).refused(&["bias"]);
    // ranks
    Probe::new(&[1, 2, 4], &[2, 3, 3, 3]).refused(&["rank"]);
    Probe::new(&[1, 2], &[2, 3]).refused(&["rank"]);
    Probe::new(&[1, 1, 1, 1, 1, 1, 1], &[1, 1, 1, 1, 1, 1, 1]).refused(&["rank"]);
    // An empty filter.
    Probe::new(&[1, 2, 4], &[2, 3, 0]).refused(&["kernel"]);
}

#[test]
fn element_types_outside_the_operator() {
    for dt in [DatumType::I8, DatumType::U8, DatumType::I32, DatumType::I64] {
        Probe::typed(dt, &[1, 2, 4], &[2, 3, 3]).refused(&["type"]);
    }
    let mut mixed = Probe::new(&[1, 2, 4], &[2, 3, 3]);
    mixed.w = mixed.w.cast_to::<f64>().expect("a float type").into_owned();
    mixed.refused(&[]);
}

#[test]
fn outputs_that_no_memory_holds() {
    // 2⁴⁶ elements per channel: less than the address space, but more than any machine has.
    let probe = Probe::new(&[1, 2, 4, 4], &[2, 3, 3, 3]);
    probe.clone().ints("output_shape", &[1 << 23, 1 << 23]).refused(&["output size", "it must hold at most"]);
    probe.ints("strides", &[1 << 22, 1 << 22]).refused(&["output size", "it must hold at most"]);
}

/// Evaluated in f32. The result is that of the widened operands, and is not rounded to bf16.
#[test]
fn bf16_models() -> TractResult<()> {
    let mut probe = Probe::new(&[2, 4, 5], &[4, 3, 3]).opset(22).ints("strides", &[2]).bias(3);
    // A bf16 is the upper half of an f32.
    let cut = |tensor: &Tensor| -> TractResult<(Tensor, Vec<u8>)> {
        let halves = tensor.to_plain_array_view::<f32>()?.mapv(|v| v.to_bits() >> 16);
        let bytes = halves.iter().flat_map(|half| (*half as u16).to_le_bytes()).collect();
        Ok((halves.mapv(|half| f32::from_bits(half << 16)).into(), bytes))
    };
    let (w, w_bytes) = cut(&probe.w)?;
    let (b, b_bytes) = cut(probe.b.as_ref().context("a bias")?)?;
    let proto = Model::opset(22)
        .raw_input("x", DataType::Bfloat16, &["N".into(), 4.into(), 5.into()])
        .raw_initializer("w", DataType::Bfloat16, w.shape(), w_bytes)
        .raw_initializer("b", DataType::Bfloat16, b.shape(), b_bytes)
        .node(probe.node.clone())
        .output("y")
        .build();
    let stock = guarded(|| crate::common::run::load_stock(&proto));
    assert!(stock.is_err(), "stock tract takes bf16 by now");
    (probe.w, probe.b) = (w, Some(b));
    let expected = probe.expected(&[axis(2, 1, 0, 11)]);
    let mut bytes = vec![];
    prost::Message::encode(&proto, &mut bytes)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bf16.onnx");
    std::fs::write(&path, &bytes)?;
    for stage in Stage::ALL {
        let sources = [Source::from(proto.clone()), Source::from(&path), Source::reader(&*bytes)];
        for (ix, source) in sources.into_iter().enumerate() {
            let model = stage.of(tract_deconv::load::load(source)?.into_typed()?)?;
            ensure!(model.input_fact(0)?.datum_type == f32::datum_type(), "bf16 inputs become f32");
            let y = run(model, &probe.inputs())?.remove(0);
            expected.check(&y).map_err(|e| format_err!("{stage:?}, source {ix}: {e}"))?;
        }
    }
    Ok(())
}

/// A layer without bias must not hold a constant as large as its output.
#[test]
fn no_bias_as_large_as_the_output() -> TractResult<()> {
    for with_bias in [false, true] {
        let mut probe = Probe::new(&[1, 8, 400, 400], &[8, 8, 2, 2]).ints("strides", &[2, 2]);
        if with_bias {
            probe = probe.bias(8);
        }
        for stage in Stage::ALL {
            let constants = constants(&stage.of(load(&probe.proto())?)?);
            assert!(constants <= 4 * (8 * 8 * 4 + 8) + 64, "{stage:?}: {constants} bytes of constants");
        }
    }
    Ok(())
}

/// Returns the size of the constants that a model's nodes hold, in bytes.
fn constants(model: &TypedModel) -> usize {
    let facts = model.nodes.iter().flat_map(|node| &node.outputs).filter_map(|o| o.fact.konst.as_ref());
    facts.map(|tensor| tensor.len() * tensor.datum_type().size_of()).sum()
}

// ---- right in the built-in operator

#[test]
fn one_to_four_spatial_axes() {
    let ones = |rank: usize, rule| vec![rule; rank];
    for rank in 1..=4 {
        let shape = |n, c, x| [vec![n, c], vec![x; rank]].concat();
        let probe = Probe::new(&shape(2, 3, 3), &shape(3, 2, 2)).bias(2);
        probe.gives_as_stock(&ones(rank, axis(1, 1, 0, 4)));
        probe.ints("strides", &vec![2; rank]).gives_as_stock(&ones(rank, axis(2, 1, 0, 6)));
    }
}

#[test]
fn groups() {
    let rules = [axis(2, 1, 1, 7), axis(1, 1, 1, 4)];
    // Dense, grouped, depthwise, and depthwise with a channel multiplier.
    for (group, w) in [(1, [6, 4, 3, 3]), (2, [6, 4, 3, 3]), (3, [6, 1, 3, 3]), (6, [6, 1, 3, 3]), (6, [6, 2, 3, 3])] {
        let probe = Probe::new(&[2, 6, 4, 4], &w).group(group).ints("strides", &[2, 1]).ints("pads", &[1, 1, 1, 1]);
        probe.clone().gives_as_stock(&rules);
        probe.bias(w[1] * group).gives_as_stock(&rules);
    }
}

#[test]
fn dilations() {
    let probe = Probe::new(&[1, 2, 5], &[2, 3, 3]);
    probe.clone().ints("dilations", &[3]).gives_as_stock(&[axis(1, 3, 0, 11)]);
    probe.ints("dilations", &[2]).ints("strides", &[3]).gives_as_stock(&[axis(3, 2, 0, 17)]);
    let planes = Probe::new(&[1, 2, 5, 4], &[2, 3, 3, 2]).ints("dilations", &[2, 3]).ints("strides", &[2, 2]);
    planes.gives_as_stock(&[axis(2, 2, 0, 13), axis(2, 3, 0, 10)]);
}

#[test]
fn asymmetric_pads() {
    let probe = Probe::new(&[1, 2, 5], &[2, 3, 4]).ints("strides", &[2]);
    // F = 12
    for (begin, end) in [(0, 3), (3, 0), (1, 2), (5, 6)] {
        let rule = axis(2, 1, begin, (12 - begin - end) as usize);
        probe.clone().ints("pads", &[begin, end]).gives_as_stock(&[rule]);
    }
    let planes = Probe::new(&[1, 2, 5, 4], &[2, 3, 4, 3]).ints("strides", &[2, 3]).ints("pads", &[0, 2, 3, 1]);
    planes.gives_as_stock(&[axis(2, 1, 0, 9), axis(3, 1, 2, 9)]);
}

#[test]
fn output_padding_of_every_legal_size() {
    for (stride, dilation) in [(1, 4), (2, 1), (3, 2), (4, 4), (2, 5)] {
        for output_padding in 0..stride.max(dilation) {
            let output = stride * 3 + 2 * dilation + 1 + output_padding;
            let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).bias(3).ints("output_padding", &[output_padding as i64]);
            let probe = probe.ints("strides", &[stride as i64]).ints("dilations", &[dilation as i64]);
            probe.gives_as_stock(&[axis(stride, dilation, 0, output)]);
        }
    }
}

#[test]
fn batch_zero() {
    let probe = Probe::new(&[0, 2, 4], &[2, 3, 3]).bias(3);
    probe.gives_as_stock(&[axis(1, 1, 0, 6)]);
    probe.ints("output_shape", &[4]).gives(&[axis(1, 1, 1, 4)]);
}

#[test]
fn opsets() {
    for opset in [1, 11, 22] {
        let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).opset(opset).ints("strides", &[2]).ints("pads", &[1, 0]);
        probe.gives_as_stock(&[axis(2, 1, 1, 8)]);
    }
}

#[test]
fn f16_and_f64() {
    for dt in [DatumType::F16, DatumType::F64] {
        let probe = Probe::typed(dt, &[1, 4, 5, 4], &[4, 3, 3, 2]).ints("strides", &[2, 2]).bias(3);
        let rules = [axis(2, 1, 0, 11), axis(2, 1, 0, 8)];
        // Stock tract sums half floats in half floats.
        if dt == DatumType::F64 { probe.gives_as_stock(&rules) } else { probe.gives(&rules) }
    }
}

#[test]
fn weights_computed_at_run_time() {
    let probe = Probe::new(&[2, 4, 5], &[4, 3, 3]).run_time_weights().ints("strides", &[2]).ints("pads", &[1, 1]);
    probe.gives_as_stock(&[axis(2, 1, 1, 9)]);
    probe.clone().bias(3).gives(&[axis(2, 1, 1, 9)]);
    probe.group(2).bias(6).gives(&[axis(2, 1, 1, 9)]);
}

#[test]
fn weights_that_are_results_of_other_nodes() -> TractResult<()> {
    let probe = Probe::new(&[2, 4, 5], &[4, 3, 3]).bias(3);
    let negated = |name: &str| Node::new("Neg").named(name).inputs(&[&format!("-{name}")]).output(name);
    let minus = |t: &Tensor| -> TractResult<Tensor> { Ok(t.to_plain_array_view::<f32>()?.mapv(|v| -v).into()) };
    let b = probe.b.clone().context("a bias")?;
    let proto = Model::opset(11)
        .input("x", f32::datum_type(), &sizes(probe.x.shape()))
        .input("-w", f32::datum_type(), &sizes(probe.w.shape()))
        .input("-b", f32::datum_type(), &sizes(b.shape()))
        .node(negated("w"))
        .node(negated("b"))
        .node(probe.node.clone())
        .output("y")
        .build();
    let inputs = [probe.x.clone(), minus(&probe.w)?, minus(&b)?];
    for stage in Stage::ALL {
        let got = run(stage.of(load(&proto)?)?, &inputs)?;
        probe.expected(&[axis(1, 1, 0, 7)]).check(&got[0]).map_err(|e| format_err!("{stage:?}: {e}"))?;
    }
    Ok(())
}

#[test]
fn symbols_without_output_shape() {
    let probe = Probe::new(&[2, 3, 4, 5], &[3, 2, 3, 3]).ints("strides", &[2, 2]).ints("pads", &[1, 1, 1, 1]).bias(2);
    let probe = probe.dims(&["N".into(), 3.into(), "H".into(), "W".into()]);
    probe.gives_as_stock(&[axis(2, 1, 1, 7), axis(2, 1, 1, 9)]);
}

/// Without `with_deconv`, tract behaves as before.
#[test]
fn stock_tract_is_one_line_away() -> TractResult<()> {
    let proto = Probe::new(&[1, 2, 4], &[2, 3, 3]).proto();
    let names = |model: TypedModel| model.nodes.iter().map(|n| n.op.name().to_string()).collect::<Vec<_>>();
    let stock = names(crate::common::run::load_stock(&proto)?);
    let ours = names(load(&proto)?);
    assert!(stock.iter().any(|n| n == "Deconv") && !stock.iter().any(|n| n == "GroupedDeconv"), "{stock:?}");
    assert!(ours.iter().any(|n| n == "GroupedDeconv") && !ours.iter().any(|n| n == "Deconv"), "{ours:?}");
    Ok(())
}

/// A node of a foreign domain is treated as by stock tract.
#[test]
fn nodes_of_other_domains_are_left_alone() {
    let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).node(|node| node.domain("com.example"));
    let ours = guarded(|| load(&probe.proto()));
    let stock = guarded(|| crate::common::run::load_stock(&probe.proto()));
    let names = |model: TypedModel| model.nodes.iter().map(|n| n.op.name().to_string()).collect::<Vec<_>>();
    assert_eq!(ours.map(names).map_err(|e| e.to_string()), stock.map(names).map_err(|e| e.to_string()));
}
