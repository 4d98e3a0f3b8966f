//! The option `precision`: where it comes from, which layers take it, and what it changes.

use crate::common::oracle::tolerance_in;
use crate::common::proto::{Dim, Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load_stock, run};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_core::knobs::KnobScope;
use tract_core::transform::get_transform_with_params;
use tract_deconv::{Direction, Explanation, FilterLayout, Isa, Layer, Options, PackedFilter, Plan, PlanOptions};
use tract_deconv::{Precision, Strategy, WithConv, WithDeconv, WithDeconvOptions, explain};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

const INPUT: [usize; 4] = [1, 64, 17, 16];

/// The most products of a result of the first layer, and of the second.
const PRODUCTS: [usize; 2] = [64 * 9, 64 * 4];

/// Whether this CPU has kernels for a precision.
fn rounds(precision: Precision) -> bool {
    Strategy::MatrixPixels.is_available_in(precision)
}

/// A Conv and a ConvTranspose that are faster with rounded operands, where there are kernels for them.
fn two_layers(dt: DatumType) -> ModelProto {
    let mut random = Random(7);
    Model::opset(13)
        .input("x", dt, &sizes(&INPUT))
        .initializer("v", &random.tensor(dt, &[64, 64, 3, 3]))
        .initializer("w", &random.tensor(dt, &[64, 32, 4, 4]))
        .node(
            Node::new("Conv")
                .named("stem.conv")
                .inputs(&["x", "v"])
                .output("a")
                .ints("strides", &[2, 2])
                .ints("pads", &[1; 4]),
        )
        .node(
            Node::new("ConvTranspose")
                .named("head.up")
                .inputs(&["a", "w"])
                .output("y")
                .ints("strides", &[2, 2])
                .ints("pads", &[1; 4]),
        )
        .output("y")
        .build()
}

fn loaded(proto: &ModelProto, options: &Options) -> TractResult<TypedModel> {
    let onnx = tract_onnx::onnx().with_deconv().with_conv().with_deconv_options(options)?;
    onnx.model_for_proto_model(proto)?.into_typed()
}

fn explained(model: &TypedModel) -> TractResult<Vec<Explanation>> {
    explain(model, &SymbolValues::default())
}

/// The precision of each layer, with the reason of exact ones.
fn precisions(model: &TypedModel) -> TractResult<Vec<(Precision, Option<String>)>> {
    let of = |explanation: Explanation| {
        let plan = explanation.concrete.context("the shape is known")?.plan;
        Ok((plan.precision(), plan.exact_because().map(String::from)))
    };
    explained(model)?.into_iter().map(of).collect()
}

fn floats(tensor: &Tensor) -> TractResult<Vec<f64>> {
    Ok(tensor.cast_to::<f64>()?.try_as_plain_ram()?.as_slice::<f64>()?.to_vec())
}

fn input(dt: DatumType) -> Tensor {
    Random(3).tensor(dt, &INPUT)
}

/// Both layers round where there are kernels for it. Otherwise both say why not.
fn assert_rounds(model: &TypedModel, precision: Precision) -> TractResult<()> {
    for (found, reason) in precisions(model)? {
        match rounds(precision) {
            true => assert_eq!((found, reason), (precision, None)),
            false => {
                let (isa, reason) = (Isa::best(), reason.context("a reason")?);
                assert!(
                    found == Precision::Exact
                        && reason.ends_with(&format!("on {isa} has no kernels for {}", precision.name()))
                );
            }
        }
    }
    Ok(())
}

#[test]
fn every_way_to_ask_for_it() -> TractResult<()> {
    let proto = two_layers(DatumType::F32);
    for precision in [Precision::Bf16, Precision::F16] {
        let name = precision.name();
        let asked = Options::default().with_precision(precision);
        let knob = KnobScope::new([("TRACT_DECONV_PRECISION", name)])?;
        for stage in Stage::ALL {
            let by_option = stage.of(loaded(&proto, &asked)?)?;
            assert_rounds(&by_option, precision)?;
            let by_knob = knob.enter(|| stage.of(loaded(&proto, &Options::default())?))?;
            assert_rounds(&by_knob, precision)?;
            let mut by_transform = load_stock(&proto)?;
            for transform in ["conv", "deconv"] {
                let mut params = <dyn erased_serde::Deserializer>::erase(serde_json::json!({ "precision": name }));
                get_transform_with_params(transform, &mut params)?
                    .context("registered")?
                    .transform(&mut by_transform)?;
            }
            let by_transform = stage.of(by_transform)?;
            assert_rounds(&by_transform, precision)?;
            // All of them compute the same.
            let answers = [by_option, by_knob, by_transform].map(|model| run(model, &[input(DatumType::F32)]));
            let [first, second, third] = answers;
            let first = first?;
            assert_eq!((&first, &first), (&second?, &third?), "{stage:?} in {name}");
            // An option in code precedes the knob.
            let exact = Options::default().with_precision(Precision::Exact);
            let exact = knob.enter(|| stage.of(loaded(&proto, &exact)?))?;
            assert!(precisions(&exact)?.iter().all(|(found, reason)| *found == Precision::Exact && reason.is_none()));
        }
    }
    Ok(())
}

/// Without the option there are the bits of the exact one, whatever the weights.
#[test]
fn nothing_is_rounded_by_itself() -> TractResult<()> {
    for dt in [DatumType::F32, DatumType::F16] {
        let proto = two_layers(dt);
        let answer = |options: &Options| run(loaded(&proto, options)?.into_optimized()?, &[input(dt)]);
        let usual = answer(&Options::default())?;
        assert_eq!(usual, answer(&Options::default().with_precision(Precision::Exact))?);
        assert_eq!(usual, answer(&Options::default().with_precision(Precision::Bf16).with_exact_nodes(["*"]))?);
        if rounds(Precision::Bf16) {
            assert_ne!(usual, answer(&Options::default().with_precision(Precision::Bf16))?);
        }
    }
    Ok(())
}

/// Errors are within the bound, and not so small that nothing can have been rounded.
#[test]
fn errors_are_those_of_rounded_operands() -> TractResult<()> {
    for (dt, precision) in
        [DatumType::F32, DatumType::F16].into_iter().cartesian_product([Precision::Bf16, Precision::F16])
    {
        let proto = two_layers(dt);
        let answer = |options: &Options| run(loaded(&proto, options)?.into_optimized()?, &[input(dt)]);
        let exact = floats(&answer(&Options::default())?[0])?;
        let got = floats(&answer(&Options::default().with_precision(precision))?[0])?;
        // Values of the first layer are at most the number of its products.
        let first = PRODUCTS[0] as f64;
        let passed_on = tolerance_in(precision, dt, PRODUCTS[0], first, first) * PRODUCTS[1] as f64;
        let magnitude = first * PRODUCTS[1] as f64;
        let allowed = passed_on + 2.0 * tolerance_in(precision, dt, PRODUCTS[1], magnitude, magnitude);
        let most = exact.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(most <= allowed, "{dt:?} in {}: {most} of {allowed}", precision.name());
        let scale = exact.iter().fold(0f64, |most, value| most.max(value.abs()));
        let least = if precision == Precision::Bf16 { 1e-4 } else { 1e-5 };
        // Operands of f16 have no more bits than that.
        let rounds = rounds(precision) && (dt, precision) != (DatumType::F16, Precision::F16);
        assert!(!rounds || most > least * scale, "{dt:?} in {}: {most} of {scale}", precision.name());
    }
    Ok(())
}

#[test]
fn layers_stay_exact_for_a_reason() -> TractResult<()> {
    let proto = two_layers(DatumType::F32);
    let asked = Options::default().with_precision(Precision::Bf16);
    for stage in Stage::ALL {
        let kept = stage.of(loaded(&proto, &asked.clone().with_exact_nodes(["none", "head*"]))?)?;
        let found = precisions(&kept)?;
        assert_eq!(found[1], (Precision::Exact, Some("its name matches \"head*\"".to_string())), "{stage:?}");
        assert_eq!(found[0].0 == Precision::Bf16, rounds(Precision::Bf16));
        assert!(explained(&kept)?[1].to_string().contains("precision exact: its name matches \"head*\""));
        let knob = KnobScope::new([("TRACT_DECONV_EXACT_NODES", "head.*, other")])?;
        let kept = knob.enter(|| stage.of(loaded(&proto, &asked)?))?;
        assert_eq!(precisions(&kept)?[1].1.as_deref(), Some("its name matches \"head.*\""), "{stage:?}");
        let vectors = stage.of(loaded(&proto, &asked.clone().with_isa(Isa::Portable))?)?;
        let reason = precisions(&vectors)?.remove(0).1.context("a reason")?;
        assert!(reason.ends_with("on portable has no kernels for bf16"), "{reason}");
    }
    let spec = crate::common::spec::unpadded(Direction::Transposed, (64, 64, 1), &[3, 3], 1);
    for (dt, words) in [
        (DatumType::F64, "sums of f64 are made in f64"),
        (DatumType::I32, "integers are summed exactly"),
        (DatumType::U8, "integers are summed exactly"),
    ] {
        let input = spec.data_format.shape(1, 64, [9, 9]);
        let options = PlanOptions::default().with_precision(Precision::F16);
        let plan = Plan::new(&spec, &input, None, dt, &options)?;
        assert_eq!((plan.precision(), plan.exact_because()), (Precision::Exact, Some(words)), "{dt:?}");
        let usual = Plan::new(&spec, &input, None, dt, &PlanOptions::default())?;
        assert_eq!((usual.to_string(), usual.exact_because()), (plan.to_string(), None), "{dt:?}");
    }
    // A depthwise layer has no kernels that round.
    let spec = crate::common::spec::unpadded(Direction::Forward, (64, 64, 64), &[3, 3], 1);
    let input = spec.data_format.shape(1, 64, [30, 30]);
    let options = PlanOptions::default().with_precision(Precision::Bf16);
    let plan = Plan::new(&spec, &input, None, DatumType::F32, &options)?;
    let reason = plan.exact_because().context("a reason")?;
    assert!(plan.strategy() != Strategy::MatrixPixels && reason.starts_with(plan.strategy().name()), "{reason}");
    assert!(plan.explain().contains(&format!("precision exact: {reason}")), "{}", plan.explain());
    Ok(())
}

/// Filters that are inputs, sizes that are open, and sizes that are known at run time only.
#[test]
fn filters_and_sizes_of_the_run() -> TractResult<()> {
    let mut random = Random(11);
    let (x, w) = (random.tensor(DatumType::F32, &[1, 64, 20, 21]), random.tensor(DatumType::F32, &[64, 64, 3, 3]));
    let open: [Dim; 4] = ["N".into(), 64.into(), "H".into(), "W".into()];
    let of_filter = [sizes(&[64, 64, 3, 3]), vec![64.into(), 64.into(), "K".into(), 3.into()]];
    // Of stride 1, constant filters may be transformed for tiles of fewer products, and filters of the run not.
    let node = || Node::new("Conv").inputs(&["x", "w"]).output("y").ints("strides", &[2, 2]);
    let given = |filter: &[Dim]| {
        Model::opset(13)
            .input("x", DatumType::F32, &open)
            .input("w", DatumType::F32, filter)
            .node(node())
            .output("y")
            .build()
    };
    let constant =
        Model::opset(13).input("x", DatumType::F32, &open).initializer("w", &w).node(node()).output("y").build();
    let asked = Options::default().with_precision(Precision::Bf16);
    let all = [(constant, vec![x.clone()])];
    let all = all.into_iter().chain(of_filter.iter().map(|filter| (given(filter), vec![x.clone(), w.clone()])));
    let mut answers = vec![];
    for (proto, inputs) in all {
        for stage in Stage::ALL {
            answers.push(run(stage.of(loaded(&proto, &asked)?)?, &inputs)?.remove(0));
        }
    }
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
    }
    Ok(())
}

/// A filter of bf16 values is smaller and gives the bits of the same filter among other values.
#[test]
fn filters_of_few_bits() -> TractResult<()> {
    if !Isa::Amx.is_available() {
        return Ok(());
    }
    let mut random = Random(13);
    let x = random.tensor(DatumType::F32, &[1, 64, 9, 9]);
    let strategies = [(Strategy::MatrixPixels, [3, 3]), (Strategy::MatrixPlanes, [1, 1])];
    let precisions = [(Precision::Bf16, 1), (Precision::F16, 2)];
    for ((strategy, kernel), (precision, limbs)) in strategies.into_iter().cartesian_product(precisions) {
        let spec = crate::common::spec::unpadded(Direction::Forward, (64, 64, 1), &kernel, 1);
        let taps: usize = kernel.iter().product();
        let w = random.tensor(DatumType::F32, &spec.filter_shape());
        let few: Vec<f32> = w.try_as_plain_ram()?.as_slice::<f32>()?.iter().map(|w| precision.rounded(*w)).collect();
        // The last output channel has all bits, so that the filter needs three limbs.
        let mut many = few.clone();
        many[63 * 64 * taps..].iter_mut().for_each(|w| *w = 1.0 / 3.0);
        for size in [9, 40] {
            let x = if size == 9 { x.clone() } else { random.tensor(DatumType::F32, &[1, 64, size, size]) };
            let options = PlanOptions::default().with_strategy(strategy);
            let plan = Plan::new(&spec, x.shape(), None, DatumType::F32, &options)?;
            let answer = |weights: &[f32]| -> TractResult<(usize, Vec<f32>)> {
                let weights = Tensor::from_shape(&spec.filter_shape(), weights)?.into_arc_tensor();
                let filter = PackedFilter::pack(&spec, &plan.filter_layout(), &weights)?;
                let y = Layer::new(plan.clone()).run(&x, &filter, None)?;
                Ok((filter.bytes(), y.try_as_plain_ram()?.as_slice::<f32>()?.to_vec()))
            };
            let ((few_bytes, few), (many_bytes, many)) = (answer(&few)?, answer(&many)?);
            let planes = 63 * (size + 1 - kernel[0]) * (size + 1 - kernel[1]);
            let bits = |values: &[f32]| values[..planes].iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&few), bits(&many), "{size} in {}", precision.name());
            // Filters for many positions are kept whole if pixels are multiplied.
            let in_limbs = matches!(plan.filter_layout(), FilterLayout::Limbs { .. });
            assert_eq!(in_limbs, size == 9 || strategy == Strategy::MatrixPlanes);
            assert_eq!(few_bytes, if in_limbs { many_bytes / 3 * limbs } else { many_bytes });
        }
    }
    Ok(())
}
