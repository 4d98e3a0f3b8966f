//! Checks that no attributes, however extreme, make loading or planning panic.

use crate::options::{Options, WithDeconvOptions};
use crate::testing::{counting, i64s, info, int, ints, model, node, text};
use crate::{WithConv, WithDeconv};
use proptest::prelude::*;
use tract_core::internal::*;
use tract_hir::infer::InferenceModelExt;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, ModelProto};

/// The limit of an output and its working memory, in bytes. tract computes what has no input when it
/// loads a model.
const MEMORY_LIMIT: usize = 1 << 26;

fn load(proto: &ModelProto) -> TractResult<TypedModel> {
    let onnx = tract_onnx::onnx().with_deconv().with_conv();
    let onnx = onnx.with_deconv_options(&Options::default().with_memory_limit(MEMORY_LIMIT))?;
    onnx.model_for_proto_model(proto)?.into_typed()?.into_decluttered()
}

fn value() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0..5i64,
        1 => prop::sample::select(vec![
            i64::MIN,
            i64::MIN + 1,
            -(1 << 31),
            -1,
            (1 << 31) - 1,
            1 << 31,
            1 << 32,
            (1 << 40) + 1,
            1 << 62,
            i64::MAX,
        ]),
    ]
}

fn list(name: &'static str, len: usize) -> impl Strategy<Value = AttributeProto> {
    prop_oneof![8 => Just(len), 1 => 0..5usize]
        .prop_flat_map(|len| prop::collection::vec(value(), len))
        .prop_map(move |values| ints(name, &values))
}

fn attribute(rank: usize) -> impl Strategy<Value = AttributeProto> {
    let lists = ["strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape", "kernel_shape"];
    let texts = ["auto_pad", "data_format", "filter_format", "weights_format", "strides"];
    let words =
        ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "same_upper", "explicit", "NXC", "NCX", "OIX", "1,1", ","];
    prop_oneof![
        8 => prop::sample::select(lists.to_vec()).prop_flat_map(move |name| list(name, rank)),
        2 => list("pads", 2 * rank),
        1 => (prop::sample::select(vec!["group", "groups", "strides"]), value()).prop_map(|(name, v)| int(name, v)),
        2 => (prop::sample::select(texts.to_vec()), prop::sample::select(words.to_vec()))
            .prop_map(|(name, word)| text(name, word)),
    ]
}

/// Draws a node with all it needs, and extreme values in some places.
fn proto() -> impl Strategy<Value = ModelProto> {
    let operator = prop::sample::select(vec![
        ("", "ConvTranspose"),
        ("onednn", "ConvTranspose"),
        ("", "Conv"),
        ("", "GroupConvolutionBackpropData"),
        ("", "ConvolutionBackpropData"),
        ("", "GroupConvolution"),
        ("", "Convolution"),
    ]);
    let size = || prop::sample::select(vec!["0", "1", "2", "5", "70000", "2147483647", "L"]);
    (operator, 1..4usize).prop_flat_map(move |((domain, op), rank)| {
        let channels = if op.starts_with("Group") { vec![2, 1, 1] } else { vec![2, 2] };
        let attributes = prop::collection::vec(attribute(rank), 0..4);
        let kernel = prop::collection::vec(prop_oneof![9 => 1..4i64, 1 => Just(0)], rank);
        let sizes = prop::collection::vec(size(), rank);
        let third = prop::option::weighted(0.3, prop::collection::vec(value(), rank));
        (attributes, kernel, sizes, prop::sample::select(vec!["0", "1", "N"]), third).prop_map(
            move |(attributes, kernel, sizes, batch, third)| {
                let mut initialisers = vec![if domain == "onednn" {
                    counting("w", &[&*kernel, &[2, 2]].concat())
                } else {
                    counting("w", &[&*channels, &*kernel].concat())
                }];
                let input = if domain == "onednn" {
                    [&[batch], &*sizes, &["2"]].concat()
                } else {
                    [&[batch, "2"], &*sizes].concat()
                };
                let mut names = vec!["x", "w"];
                if let Some(values) = &third {
                    names.push("s");
                    initialisers.push(if matches!(op, "ConvTranspose" | "Conv") {
                        counting("s", &[2])
                    } else {
                        i64s("s", values)
                    });
                }
                let node = node(domain, op, &names, &attributes);
                model(vec![info("x", DataType::Float, &input)], initialisers, vec![node])
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn loading_never_panics(proto in proto()) {
        if let Ok(model) = load(&proto) {
            let _ = crate::explain(&model, &Default::default());
            let _ = model.into_optimized();
        }
    }
}
