//! The memory limit. A plan above it is refused before anything is allocated, or replaced by one
//! that needs less.

mod common;

use common::beside::layer_then;
use common::oracle::Expected;
use common::probe::{Probe, axis};
use common::proto::{Dim, Model, Node};
use common::random::Random;
use common::run::{Stage, guarded, load, refused, run};
use common::spec::unpadded;
use tract_core::internal::*;
use tract_core::knobs::KnobScope;
use tract_core::ops::cnn::{PaddingSpec, PoolSpec};
use tract_core::ops::nn::DataFormat::NCHW;
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::PackedFilter;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Activation, BetweenLayers, Dialect, GroupedDeconv, OptReduce, OptResize, OptSoftmax, Pass, Step};
use tract_deconv::{OptGroupedDeconv, Options, WithConv, WithDeconv, WithDeconvOptions, explain};
use tract_deconv::{Plan, PlanOptions, Strategy};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

/// About the largest size of an axis.
const MOST: usize = if usize::BITS > 32 { i32::MAX as usize - 1 } else { 1 << 28 };

/// Runs a job under a limit of `limit` bytes.
fn under<T>(limit: usize, job: impl FnOnce() -> T) -> TractResult<T> {
    Ok(KnobScope::new([("TRACT_DECONV_MEMORY_LIMIT", &*limit.to_string())])?.enter(job))
}

#[test]
fn an_output_above_the_limit_is_refused() -> TractResult<()> {
    // 3 channels of 9 positions.
    let (bytes, rules) = (3 * 9 * 4, [axis(2, 1, 0, 9)]);
    let refusal = "output size: shape=[1, 3, 9], its 108 bytes are more than the limit of 107";
    let known = Probe::new(&[1, 2, 4], &[2, 3, 3]).ints("strides", &[2]).bias(3);
    under(bytes, || known.gives(&rules))?;
    under(bytes - 1, || known.refused(&[refusal]))?;
    for weights_at_run_time in [false, true] {
        let mut open = known.clone().dims(&[Dim::Size(1), Dim::Size(2), "L".into()]);
        open.run_time_weights = weights_at_run_time;
        under(bytes, || open.gives(&rules))?;
        under(bytes - 1, || open.refused(&[refusal]))?;
    }
    Ok(())
}

#[test]
fn what_an_empty_input_gives_is_limited_too() -> TractResult<()> {
    let probe = Probe::new(&[1, 2, 0], &[2, 3, 3]).ints("output_padding", &[2]).ints("strides", &[3]).bias(3);
    let probe = probe.dims(&[Dim::Size(1), Dim::Size(2), "L".into()]);
    // F = 3·(0-1) + 3 + 2.
    under(24, || probe.gives(&[axis(3, 1, 0, 2)]))?;
    under(23, || probe.refused(&["output size: shape=[1, 3, 2], its 24 bytes are more than the limit of 23"]))
}

#[test]
fn a_refused_model_may_run_on_smaller_inputs() -> TractResult<()> {
    let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]).dims(&[Dim::Size(1), Dim::Size(2), "L".into()]);
    let plan = under(100, || load(&probe.proto())?.into_optimized()?.into_runnable())??;
    for (len, fits) in [(6, true), (7, false), (1, true)] {
        let x = Random(len as u64).tensor(f32::datum_type(), &[1, 2, len]);
        let y = guarded(|| under(100, || plan.run(tvec!(x.into_tvalue())))?);
        assert_eq!(y.is_ok(), fits, "{len} elements");
    }
    Ok(())
}

#[cfg(target_pointer_width = "64")]
#[test]
fn the_default_limit_holds() {
    // 2³³ f32 per channel, which is twice the limit of 16 GiB but less than a tensor may hold.
    let probe = Probe::new(&[1, 2, 4, 4], &[2, 3, 3, 3]).ints("output_shape", &[1 << 16, 1 << 17]);
    let bytes = 3usize << 35;
    probe.refused(&["output size", &format!("{bytes} bytes are more than the limit of 17179869184")]);
}

fn spec(direction: Direction, kernel: &[usize], stride: usize) -> DeconvSpec {
    let rank = kernel.len();
    DeconvSpec {
        direction,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::Iox,
        in_channels: 4,
        out_channels: 2,
        group: 1,
        kernel: kernel.into(),
        strides: tvec!(stride; rank),
        dilations: tvec!(1; rank),
        padding: Padding::zero(rank),
        output_padding: tvec!(0; rank),
    }
}

/// Packs the filter, runs the plan, and compares the result with the definition.
fn check(spec: &DeconvSpec, plan: &Plan, input: &[usize]) -> TractResult<()> {
    let mut random = Random(7);
    let x = random.tensor(f32::datum_type(), input);
    let w = random.tensor(f32::datum_type(), &spec.filter_shape()).into_arc_tensor();
    let y = Layer::new(plan.clone()).run(&x, &PackedFilter::pack(spec, &plan.filter_layout(), &w)?, None)?;
    Expected::new(spec, &x, &w, None, None).check(&y).map_err(|e| format_err!("{plan}: {e}"))
}

#[test]
fn a_strategy_that_needs_more_memory_leaves_the_place_to_another() -> TractResult<()> {
    let grouped = DeconvSpec { group: 4, out_channels: 4, ..spec(Direction::Transposed, &[3, 3], 2) };
    let cases = [
        (Strategy::DepthwiseRows, grouped, vec![1, 4, 1, 1]),
        (Strategy::Gemv, spec(Direction::Transposed, &[4, 4], 1), vec![2, 4, 1, 1]),
        (Strategy::Col2im, spec(Direction::Transposed, &[9, 9], 4), vec![1, 4, 5, 6]),
        (Strategy::DirectPositions, spec(Direction::Transposed, &[4, 4], 2), vec![1, 4, 5, 6]),
        (Strategy::DirectPositions, spec(Direction::Transposed, &[2, 2, 2, 2], 2), vec![2, 4, 2, 3, 2, 3]),
        (Strategy::DirectPositions, spec(Direction::Forward, &[3, 3], 2), vec![1, 4, 9, 9]),
    ];
    for (strategy, mut spec, input) in cases {
        if spec.direction == Direction::Forward {
            spec.filter_format = FilterFormat::GroupedOix;
        }
        let plan = |limit: usize| {
            let options = PlanOptions::default().with_strategy(strategy).with_memory_limit(limit);
            Plan::new(&spec, &input, None, f32::datum_type(), &options)
        };
        let output = plan(1 << 30)?.problem().output_bytes(f32::datum_type());
        check(&spec, &plan(1 << 30)?, &input)?;
        let refusal = guarded(|| plan(output));
        let needed = plan(1 << 30)?.working_bytes();
        let reason = format!(
            "working memory: bytes={needed}, which {strategy} needs, the least of the strategies that can run, are more than \
             the limit of {output}"
        );
        refused(refusal, &[&reason]).map_err(|e| format_err!("{strategy}: {e}"))?;
        check(&spec, &plan(needed.max(output))?, &input)?;
        // The reference needs no working memory.
        let options = PlanOptions::default().with_memory_limit(output);
        let left = Plan::new(&spec, &input, None, f32::datum_type(), &options)?;
        ensure!(left.strategy() == Strategy::Reference, "{strategy}: {left}");
        check(&spec, &left, &input)?;
    }
    Ok(())
}

/// Taps so far apart that a window of the input that holds them all has more positions than can be
/// counted.
#[test]
fn taps_spread_over_more_than_any_memory() -> TractResult<()> {
    let far = (MOST - 1) / 2;
    for rank in 1..=4 {
        let base = spec(Direction::Transposed, &vec![3; rank], 1);
        let spread = DeconvSpec {
            dilations: tvec!(far; rank),
            // Only positions around the middle tap remain.
            padding: Padding::Explicit { begin: tvec!(far as i64 - 1; rank), end: tvec!(far as i64 - 1; rank) },
            ..base
        };
        spread.validate()?;
        for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
            let spread = DeconvSpec { data_format, out_channels: 40, ..spread.clone() };
            let input = data_format.shape(1, 4, [2, 1, 2, 1][..rank].iter().copied());
            check(&spread, &Plan::new(&spread, &input, None, f32::datum_type(), &PlanOptions::default())?, &input)?;
            let open: TVec<TDim> = input.iter().map(|dim| dim.to_dim()).collect();
            for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
                for dt in [f32::datum_type(), f64::datum_type(), i64::datum_type()] {
                    let options = PlanOptions::default().with_isa(isa);
                    Plan::new(&spread, &input, None, dt, &options)?;
                    Plan::shape_free_layout(&spread, &open, dt, &options);
                }
            }
        }
    }
    Ok(())
}

/// Tensors given by their shape only take no memory, so planning can be tested on the largest
/// shapes.
#[test]
fn planning_the_largest_shapes_does_not_overflow() -> TractResult<()> {
    let sizes = [1, 3, 1 << 10, 1 << 16, (1 << 20) - 1, 1 << 30];
    let mut planned = 0;
    for direction in [Direction::Transposed, Direction::Forward] {
        for kernel in [1, 2, 5, 1 << 9] {
            for stride in [1, 2, 64, 1 << 20] {
                for channels in [1, 64, 1 << 20, 1 << 29] {
                    for (h, w) in sizes.into_iter().flat_map(|h| sizes.map(|w| (h, w))) {
                        let base = spec(direction, &[kernel, kernel], stride);
                        let spec = DeconvSpec { in_channels: channels, filter_format: FilterFormat::Oix, ..base };
                        let options = PlanOptions::default().with_memory_limit(usize::MAX);
                        let dt = f64::datum_type();
                        if spec.validate().is_err() || spec.problem(&[1, channels, h, w], None).is_err() {
                            continue;
                        }
                        planned += 1;
                        Plan::new(&spec, &[1, channels, h, w], None, dt, &options)?.problem().multiply_adds();
                    }
                }
            }
        }
    }
    ensure!(planned > 300, "only {planned} of the shapes are legal");
    Ok(())
}

/// A filter that is a graph input is also given by its shape only.
#[test]
fn kernels_of_more_taps_than_can_be_listed() -> TractResult<()> {
    for direction in [Direction::Transposed, Direction::Forward] {
        let huge = MOST;
        // The output is one position.
        let crop = if direction == Direction::Transposed { huge as i64 - 1 } else { 0 };
        let padding = Padding::Explicit { begin: tvec!(crop), end: tvec!(crop) };
        let base = spec(direction, &[huge], 1);
        let spec = DeconvSpec { in_channels: 1, out_channels: 1, filter_format: FilterFormat::Oix, padding, ..base };
        let plan = Plan::new(&spec, &[1, 1, huge], None, f32::datum_type(), &PlanOptions::default())?;
        let reason = format!("{huge} taps are too many to enumerate");
        ensure!(plan.strategy() == Strategy::Reference && plan.explain().contains(&reason), "{}", plan.explain());
    }
    Ok(())
}

/// Found by fuzzing. The list would grow with the number of groups before any limit is checked.
#[test]
fn groups_of_more_channels_than_can_be_listed() -> TractResult<()> {
    let group = MOST / 2 - 1;
    let base = spec(Direction::Forward, &[1], 1);
    let (data_format, filter_format) = (DataFormat::Nxc, FilterFormat::GroupedOix);
    let spec = DeconvSpec { in_channels: group, out_channels: 2 * group, group, data_format, filter_format, ..base };
    let plan = Plan::new(&spec, &[1, 1, group], None, f32::datum_type(), &PlanOptions::default())?;
    ensure!(plan.explain().contains("are too many to list"), "{}", plan.explain());
    Ok(())
}

/// Few taps share a class. Planning that compared each tap with every class would not end here.
#[test]
fn the_most_taps_are_planned_for() -> TractResult<()> {
    let taps = 1 << 16;
    let base = spec(Direction::Forward, &[taps], 4096);
    let spec = DeconvSpec { in_channels: 1, out_channels: 40, filter_format: FilterFormat::GroupedOix, ..base };
    let plan = Plan::new(&spec, &[1, 1, 3 * taps], None, f32::datum_type(), &PlanOptions::default())?;
    // That strategy takes few taps in any case.
    let mut others = plan.declined().iter().filter(|(strategy, _)| *strategy != Strategy::DepthwisePixels);
    ensure!(!others.any(|(_, why)| why.contains("too many")), "{}", plan.explain());
    Ok(())
}

/// The joint tensor of a strategy that reads one counts as working memory.
#[test]
fn joint_tensors_keep_the_limit() -> TractResult<()> {
    let grouped = DeconvSpec { group: 4, out_channels: 4, ..spec(Direction::Transposed, &[3, 3], 2) };
    let forward = DeconvSpec { filter_format: FilterFormat::GroupedOix, ..spec(Direction::Forward, &[1, 1], 1) };
    let cases = [
        (Strategy::Gemv, spec(Direction::Transposed, &[4, 4], 1), vec![2, 4, 1, 1], true),
        (Strategy::Col2im, spec(Direction::Transposed, &[9, 9], 4), vec![1, 4, 5, 6], true),
        (Strategy::DepthwiseRows, grouped, vec![1, 4, 5, 6], false),
        (Strategy::DirectPositions, spec(Direction::Transposed, &[4, 4], 2), vec![1, 4, 5, 6], false),
        // In one tensor it is read in place.
        (Strategy::DirectPositions, forward, vec![1, 4, 9, 9], false),
        (Strategy::Reference, spec(Direction::Transposed, &[4, 4], 2), vec![1, 4, 5, 6], false),
    ];
    for (strategy, spec, input, joins) in cases {
        let plan = |limit: usize, in_parts: bool| {
            let options = PlanOptions::default().with_strategy(strategy).with_memory_limit(limit);
            Plan::new(&spec, &input, None, f32::datum_type(), &options.with_in_parts(in_parts))
        };
        let (whole, parts) = (plan(1 << 30, false)?, plan(1 << 30, true)?);
        let joint = input.iter().product::<usize>() * 4;
        if joins {
            ensure!(parts.working_bytes() == whole.working_bytes() + joint, "{strategy}: {parts}");
        } else {
            ensure!(parts.to_string().contains("read from each tensor"), "{strategy}: {parts}");
        }
        let needed = parts.working_bytes();
        let output = whole.problem().output_bytes(f32::datum_type());
        ensure!(plan(needed.max(output), true)?.working_bytes() == needed, "{strategy}");
        if needed > output {
            let words = format!("working memory: bytes={needed}, which {strategy} needs");
            refused(guarded(|| plan(needed - 1, true)), &[&words]).map_err(|e| format_err!("{strategy}: {e}"))?;
        }
    }
    Ok(())
}

/// A layer that would have to join tensors beyond the limit leaves that to tract, if the sizes are
/// known. If not, its runs keep the limit.
#[test]
fn layers_behind_concatenations_keep_the_limit() -> TractResult<()> {
    let proto = |rows: Dim| {
        let dims = |channels: usize| [Dim::Size(1), Dim::Size(channels), rows.clone(), Dim::Size(24)];
        Model::opset(13)
            .input("a", f32::datum_type(), &dims(2))
            .input("b", f32::datum_type(), &dims(6))
            .initializer("w", &Random(3).tensor(f32::datum_type(), &[8, 1, 9, 9]))
            .node(Node::new("Concat").named("c").inputs(&["a", "b"]).output("c").int("axis", 1))
            .node(Node::new("ConvTranspose").named("y").inputs(&["c", "w"]).output("y"))
            .output("y")
            .build()
    };
    let model = |rows: Dim, limit: usize| -> TractResult<TypedModel> {
        let options = Options::default().with_strategy("col2im").with_memory_limit(limit);
        let onnx = tract_onnx::onnx().with_deconv_options(&options)?.with_deconv().with_conv();
        onnx.model_for_proto_model(&proto(rows))?.into_typed()?.into_optimized()
    };
    let parts = |model: &TypedModel| {
        model.nodes().iter().find_map(|node| node.op_as::<OptGroupedDeconv>()).map(|layer| layer.parts())
    };
    let xs: TVec<TValue> = [2, 6]
        .iter()
        .map(|channels| Random(3).tensor(f32::datum_type(), &[1, *channels, 200, 24]).into_tvalue())
        .collect();
    let joint = 8 * 200 * 24 * 4;
    let known = model(Dim::Size(200), 1 << 30)?;
    let plan = explain(&known, &SymbolValues::default())?.remove(0).concrete.context("the sizes are known")?.plan;
    let (needed, output) = (plan.working_bytes(), plan.problem().output_bytes(f32::datum_type()));
    ensure!(plan.to_string().contains("joined first") && needed > joint && joint > output, "{plan}");
    ensure!(parts(&known) == Some(2), "{known}");
    let (fits, beyond) = (model(Dim::Size(200), needed)?, model(Dim::Size(200), needed - 1)?);
    ensure!((parts(&fits), parts(&beyond)) == (Some(2), Some(1)), "{fits}\n{beyond}");
    let expected = beyond.into_runnable()?.run(xs.clone())?;
    ensure!(fits.into_runnable()?.run(xs.clone())? == expected);
    let open = |limit: usize| model("H".into(), limit)?.into_runnable()?.run(xs.clone());
    ensure!(open(needed)? == expected);
    let words = format!("working memory: bytes={needed}, which col2im needs");
    refused(guarded(|| open(needed - 1)), &[&words]).map_err(TractError::msg)
}

/// Floats can always use the reference, which takes no working memory. Integers other than `i64`
/// are copied to `i64`.
#[test]
fn a_limit_that_holds_the_output_leaves_a_strategy_or_says_what_is_needed() -> TractResult<()> {
    let spec = spec(Direction::Transposed, &[3, 3], 2);
    let input = [1, 4, 5, 6];
    for dt in [DatumType::F16, DatumType::F32, DatumType::F64, DatumType::I64, DatumType::I8, DatumType::U32] {
        let plan = |limit: usize| {
            let options = PlanOptions::default().with_memory_limit(limit);
            Plan::new(&spec, &input, None, dt, &options)
        };
        let output = plan(1 << 30)?.problem().output_bytes(dt);
        for limit in [0, 1, output - 1] {
            let words = format!("its {output} bytes are more than the limit of {limit}");
            refused(guarded(|| plan(limit)), &[&words]).map_err(|e| format_err!("{dt:?}: {e}"))?;
        }
        if dt.is_float() || dt == DatumType::I64 {
            ensure!(
                [output, output + 1].iter().all(|limit| plan(*limit).is_ok_and(|plan| plan.working_bytes() <= *limit))
            );
            continue;
        }
        // 4·5·6 inputs, 2·11·13 results and 2 values of a bias.
        let needed = (120 + 286 + 2) * 8;
        let words = format!(
            "working memory: bytes={needed}, which reference needs, the least of the strategies that can run, are more than \
             the limit of {output}"
        );
        ensure!(needed > output);
        refused(guarded(|| plan(output)), &[&words]).map_err(|e| format_err!("{dt:?}: {e}"))?;
        refused(guarded(|| plan(needed - 1)), &["working memory"]).map_err(|e| format_err!("{dt:?}: {e}"))?;
        ensure!(plan(needed)?.working_bytes() == needed);
    }
    Ok(())
}

/// Returns a model whose only large tensor is between its layers. It has 1,000,004 elements for an
/// input of 4.
fn pooled_far(len: Dim) -> ModelProto {
    const FAR: i64 = 1_000_000;
    let ones = Tensor::from_shape(&[1, 1, 1], &[1f32]).expect("one value");
    Model::opset(13)
        .input("x", DatumType::F32, &[Dim::Size(1), Dim::Size(1), len])
        .initializer("v", &ones)
        .initializer("w", &ones)
        .node(Node::new("Conv").named("before").inputs(&["x", "v"]).output("a"))
        .node(
            Node::new("MaxPool")
                .named("between")
                .inputs(&["a"])
                .ints("kernel_shape", &[2])
                .ints("dilations", &[FAR])
                .ints("pads", &[FAR, FAR])
                .output("b"),
        )
        .node(Node::new("Conv").named("behind").inputs(&["b", "w"]).ints("strides", &[FAR]).output("y"))
        .output("y")
        .build()
}

/// A pool between layers becomes one of our ops in an optimised model.
#[test]
fn pools_between_layers_keep_the_limit() -> TractResult<()> {
    let (x, bytes) = (Random(3).tensor(f32::datum_type(), &[1, 1, 4]), 4 * 1_000_004);
    for len in [Dim::Size(4), "L".into()] {
        let proto = pooled_far(len);
        let all = |limit| under(limit, || run(load(&proto)?.into_optimized()?, std::slice::from_ref(&x)))?;
        let found = load(&proto)?.into_optimized()?;
        ensure!(found.nodes.iter().any(|node| node.op_is::<BetweenLayers>()), "{found}");
        ensure!(all(bytes)?[0].shape() == [1, 1, 2]);
        ensure!(all(bytes + 1)?[0].shape() == [1, 1, 2]);
        for limit in [20, 1 << 20, bytes - 1] {
            let words =
                format!("output size: shape=[1, 1, 1000004], its {bytes} bytes are more than the limit of {limit}");
            refused(guarded(|| all(limit)), &[&words]).map_err(|e| format_err!("{limit}: {e}"))?;
        }
        for limit in [0, 1] {
            refused(guarded(|| all(limit)), &["output size: shape=[1, 1, 4], its 16 bytes"])
                .map_err(TractError::msg)?;
        }
    }
    Ok(())
}

/// The rows that a pool keeps and the factors of channels are working memory.
#[test]
fn passes_between_layers_keep_the_limit() -> TractResult<()> {
    let pool = PoolSpec::new(NCHW, tvec!(2, 2), PaddingSpec::Valid, None, Some(tvec!(2, 2)), 2, 2);
    let x = Random(3).tensor(f32::datum_type(), &[1, 2, 2, 100]).into_tvalue();
    let factors = Random(4).tensor(f32::datum_type(), &[1, 2, 1, 1]).into_tvalue();
    // The output's bytes, then the working memory: a row of 100 values, or two factors and two
    // zeros.
    let cases = [
        (Pass::MaxPool(Box::new(pool)), tvec!(x.clone()), 2 * 50 * 4, 100 * 4),
        (Pass::Scale, tvec!(x.clone(), factors), 2 * 2 * 100 * 4, 4 * 4),
        (Pass::Step(Step::Activation(Activation::Max(0.0))), tvec!(x), 2 * 2 * 100 * 4, 0),
    ];
    for (pass, inputs, output, working) in cases {
        let least = output.max(working);
        let run = |limit: usize| {
            let options = PlanOptions::default().with_memory_limit(limit);
            let op = BetweenLayers::new(vec![pass.clone()], DataFormat::Ncx, &options)?;
            op.eval(&EvalContext::out_of_plan(), inputs.clone())
        };
        for limit in [0, 1, output - 1] {
            let words = format!("its {output} bytes are more than the limit of {limit}");
            refused(guarded(|| run(limit)), &[&words]).map_err(|e| format_err!("{pass}: {e}"))?;
        }
        for limit in [least, least + 1] {
            ensure!(run(limit).is_ok_and(|y| y[0].len() * 4 == output), "{pass} with {limit}");
        }
    }
    // With many rows, the working memory exceeds the output.
    let deep = PoolSpec::new(NCHW, tvec!(2, 100), PaddingSpec::Valid, None, Some(tvec!(2, 100)), 2, 2);
    let options = PlanOptions::default().with_memory_limit(399);
    let op = BetweenLayers::new(vec![Pass::MaxPool(Box::new(deep))], DataFormat::Ncx, &options)?;
    let x = Random(3).tensor(f32::datum_type(), &[1, 2, 2, 100]).into_tvalue();
    let refusal = guarded(|| op.eval(&EvalContext::out_of_plan(), tvec!(x)));
    let words = "working memory: bytes=400, which are needed, are more than the limit of 399";
    refused(refusal, &[words]).map_err(TractError::msg)
}

/// Returns the op that an optimised model with open sizes has in the place of an op behind a layer.
fn around<O: Op>(dt: DatumType, limit: usize, node: Node, constants: &[(&str, Tensor)]) -> TractResult<TypedNode> {
    let dims = ["N".into(), Dim::Size(3), "H".into(), "W".into()];
    let proto = layer_then(13, dt, &dims, 3, |model, from| {
        let model = constants.iter().fold(model, |model, (name, tensor)| model.initializer(name, tensor));
        let inputs: Vec<&str> = [from].into_iter().chain(constants.iter().map(|(name, _)| *name)).collect();
        (model.node(node.named("o").inputs(&inputs).output("o")), "o".into())
    });
    let model = under(limit, || load(&proto)?.into_optimized())??;
    model.nodes().iter().find(|node| node.op_is::<O>()).cloned().with_context(|| format!("tract's stays: {model}"))
}

/// The outputs of ops around layers, and what they take for copies, taps and lists, are limited.
#[test]
fn ops_around_layers_keep_the_limit() -> TractResult<()> {
    type Made = Box<dyn Fn(usize) -> TractResult<TypedNode>>;
    let softmax = |dt, op: &'static str| -> Made {
        Box::new(move |limit| around::<OptSoftmax>(dt, limit, Node::new(op).int("axis", 1), &[]))
    };
    let reduced = |op: &'static str| -> Made {
        let axes = [("axes", tensor1(&[1i64]))];
        Box::new(move |limit| match op {
            "ReduceSum" => around::<OptReduce>(DatumType::F32, limit, Node::new(op), &axes),
            "ArgMax" => around::<OptReduce>(DatumType::F32, limit, Node::new(op).int("axis", 1), &[]),
            _ => around::<OptReduce>(DatumType::F32, limit, Node::new(op).ints("axes", &[1]), &[]),
        })
    };
    let resized = |dt, mode: &'static str| -> Made {
        let node = Node::new("Resize").string("mode", mode).string("nearest_mode", "floor");
        Box::new(move |limit| {
            let scales = tensor1(&[1f32, 1.0, 2.0, 2.0]);
            let empty = Tensor::zero::<f32>(&[0])?;
            around::<OptResize>(dt, limit, node.clone(), &[("roi", empty), ("scales", scales)])
        })
    };
    let pooled: Made = Box::new(|limit| {
        around::<BetweenLayers>(DatumType::F32, limit, Node::new("AveragePool").ints("kernel_shape", &[2, 2]), &[])
    });
    // For 3 channels of 9x7: the values of the output and their bytes, and the bytes of working
    // memory.
    let lists = 3 * 9 * size_of::<&mut [f32]>();
    let taps = (18 * 8 + 14 * 2) * size_of::<(usize, usize, f32, f32)>();
    let cases: [(&str, DatumType, Made, usize, usize); 10] = [
        ("Softmax", DatumType::F32, softmax(DatumType::F32, "Softmax"), 3 * 63 * 4, lists),
        ("LogSoftmax", DatumType::F64, softmax(DatumType::F64, "LogSoftmax"), 3 * 63 * 8, lists),
        // Two copies of each column.
        ("f16 Softmax", DatumType::F16, softmax(DatumType::F16, "Softmax"), 3 * 63 * 2, 3 * 63 * 2 * 4 + lists),
        ("ReduceSum", DatumType::F32, reduced("ReduceSum"), 63 * 4, 0),
        ("ReduceMax", DatumType::F32, reduced("ReduceMax"), 63 * 4, 0),
        ("ArgMax", DatumType::F32, reduced("ArgMax"), 63 * 8, 0),
        // The taps of 18 rows and 14 columns, those of columns once more, and two rows. Of the rows'
        // inner axis, 7 values are few.
        ("linear", DatumType::F32, resized(DatumType::F32, "linear"), 12 * 63 * 4, taps + 14 * 8),
        // The same bounds.
        ("nearest", DatumType::F32, resized(DatumType::F32, "nearest"), 12 * 63 * 4, taps + 14 * 8),
        // In f32, the input and the output too.
        ("f16", DatumType::F16, resized(DatumType::F16, "linear"), 12 * 63 * 2, 15 * 63 * 4 + taps + 14 * 8),
        // A row of 7 values, and a factor for each of 8x6 windows.
        ("AveragePool", DatumType::F32, pooled, 3 * 48 * 4, (7 + 48) * 4),
    ];
    for (what, dt, made, output, working) in cases {
        let x = Random(3).tensor(dt, &[1, 3, 9, 7]).into_tvalue();
        let inputs: TVec<TValue> = match what {
            "linear" | "nearest" | "f16" => tvec!(x, tensor1(&[1f32, 1.0, 2.0, 2.0]).into_tvalue()),
            _ => tvec!(x),
        };
        let run = |limit: usize| made(limit)?.op.eval(&EvalContext::out_of_plan(), inputs.clone());
        let least = output.max(working);
        let fits = run(least).map_err(|e| format_err!("{what}: {e:#}"))?;
        ensure!(fits[0].as_bytes().len() == output, "{what}: {} bytes", fits[0].as_bytes().len());
        let words = format!("its {output} bytes are more than the limit of");
        refused(guarded(|| run(output - 1)), &[&words]).map_err(|e| format_err!("{what}: {e}"))?;
        if working > output {
            let words = format!("working memory: bytes={working}, which are needed, are more than the limit of");
            refused(guarded(|| run(working - 1)), &[&words]).map_err(|e| format_err!("{what}: {e}"))?;
        }
    }
    Ok(())
}

/// The product of a scale and a size, which tract does not check, may be no number of positions.
#[test]
fn scales_of_no_size_are_refused() -> TractResult<()> {
    let node = Node::new("Resize").string("mode", "linear");
    let scales = |scale: f32| tensor1(&[1f32, 1.0, scale, 1.0]);
    let constants = [("roi", Tensor::zero::<f32>(&[0])?), ("scales", scales(2.0))];
    let node = around::<OptResize>(DatumType::F32, 1 << 30, node, &constants)?;
    let run = |scale: f32, rows: usize| {
        let x = Random(3).tensor(DatumType::F32, &[1, 3, rows, 2]).into_tvalue();
        node.op.eval(&EvalContext::out_of_plan(), tvec!(x, scales(scale).into_tvalue()))
    };
    ensure!(run(2.5, 4)?[0].shape() == [1, 3, 10, 2]);
    ensure!(run(2.5, 0)?[0].shape() == [1, 3, 0, 2]);
    ensure!(run(-2.0, 4)?[0].shape() == [1, 3, 0, 2]);
    for scale in [f32::NAN, f32::INFINITY, 1e30, 3e18] {
        let words = format!("resize: scale={scale}, an axis of 4 gets more than");
        refused(guarded(|| run(scale, 4)), &[&words]).map_err(TractError::msg)?;
    }
    refused(guarded(|| run(1e9, 4)), &["output size: shape=[1, 3, 4000000000, 2]"]).map_err(TractError::msg)
}

#[test]
fn an_unreadable_limit_is_an_error() -> TractResult<()> {
    let probe = Probe::new(&[1, 2, 4], &[2, 3, 3]);
    for text in ["1G", "-1", "99999999999999999999"] {
        let scope = KnobScope::new([("TRACT_DECONV_MEMORY_LIMIT", text)])?;
        for stage in Stage::ALL {
            let result = guarded(|| scope.enter(|| run(stage.of(load(&probe.proto())?)?, &probe.inputs())));
            let needed = format!("TRACT_DECONV_MEMORY_LIMIT: memory limit: bytes={}", text.to_lowercase());
            refused(result, &[&needed]).map_err(|e| format_err!("{stage:?}: {e}"))?;
        }
    }
    Ok(())
}

/// A plan holds for the options that it was made with only.
#[test]
fn options_changed_after_a_run_are_obeyed() -> TractResult<()> {
    let spec = unpadded(Direction::Transposed, (2, 3, 1), &[3, 3], 2);
    let inputs: TVec<TValue> =
        tvec!(Tensor::zero::<f32>(&[1, 2, 4, 4])?.into(), Tensor::zero::<f32>(&spec.filter_shape())?.into());
    let mut op = GroupedDeconv::new(spec, Dialect::Onnx, false, PlanOptions::default())?;
    let run = |op: &GroupedDeconv| op.eval_out_of_plan(inputs.clone());
    run(&op)?;
    op.options.memory_limit = Some(16);
    let error = format!("{:#}", run(&op).expect_err("the output has 972 bytes"));
    ensure!(error.contains("limit of 16"), "{error}");
    Ok(())
}

/// Legal sizes whose products 32 bits do not hold: of bytes of a row, and of strides. It can fail on 32-bit targets
/// only, where `tools/check_targets.sh` runs it.
#[test]
fn plans_of_many_products_are_made() -> TractResult<()> {
    for (kernel, stride, input) in [(&[64][..], 4, &[1, 2, 1 << 20][..]), (&[1, 1, 1, 1], 1024, &[1, 16, 1, 1, 1, 1])] {
        let spec = unpadded(Direction::Transposed, (input[1], 16, 1), kernel, stride);
        Plan::new(&spec, input, None, f32::datum_type(), &PlanOptions::default())?;
    }
    Ok(())
}
