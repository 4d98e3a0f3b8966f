//! The transform `to_tract` turns our convolutions back into tract's own, with the same numbers.

/// One axis: input, kernel, stride, dilation, pads at the beginning and the end, output padding.
type Line = (usize, usize, usize, usize, i64, i64, usize);

use crate::common::probe::Probe;
use crate::common::random::Random;
use crate::common::run::{Stage, guarded, load, run};
use proptest::prelude::*;
use tract_core::internal::*;
use tract_core::ops::cnn::{Conv, Deconv};
use tract_core::ops::logic::IfThenElse;
use tract_core::transform::get_transform;
use tract_deconv::to_tract::kept_from_tract;
use tract_deconv::{
    DataFormat, DeconvSpec, Dialect, Direction, FilterFormat, GroupedDeconv, OutputShape, Padding, PlanOptions, Side,
};

fn transformed(mut model: TypedModel) -> TractResult<TypedModel> {
    get_transform("to_tract")?.context("the transform is registered")?.transform(&mut model)?;
    Ok(model)
}

fn count<O: tract_core::ops::Op>(model: &TypedModel) -> usize {
    model.nodes.iter().filter(|node| node.op_is::<O>()).count()
}

/// One layer with its batch, input sizes and bias.
#[derive(Clone, Debug)]
struct Layer {
    spec: DeconvSpec,
    batch: usize,
    sizes: Vec<usize>,
    bias: bool,
    constant: bool,
    datum_type: DatumType,
}

impl Layer {
    fn shape(&self) -> Vec<usize> {
        match self.spec.data_format {
            DataFormat::Ncx => [&[self.batch, self.spec.in_channels], &*self.sizes].concat(),
            DataFormat::Nxc => [&[self.batch], &*self.sizes, &[self.spec.in_channels]].concat(),
        }
    }

    /// Returns the model and its inputs.
    fn model(&self) -> TractResult<(TypedModel, Vec<Tensor>)> {
        let mut random = Random(self.sizes.iter().sum::<usize>() as u64);
        let x = random.tensor(self.datum_type, &self.shape());
        let w = random.tensor(self.datum_type, &self.spec.filter_shape());
        let mut model = TypedModel::default();
        let mut wires = tvec!(model.add_source("x", self.datum_type.fact(x.shape()))?);
        let mut inputs = vec![x];
        if self.constant {
            wires.push(model.add_const("w", w)?);
        } else {
            wires.push(model.add_source("w", self.datum_type.fact(w.shape()))?);
            inputs.push(w);
        }
        if self.bias {
            wires.push(model.add_const("b", random.tensor(self.datum_type, &[self.spec.out_channels]))?);
        }
        let op = GroupedDeconv::new(self.spec.clone(), Dialect::Onnx, self.bias, PlanOptions::default())?;
        let y = model.wire_node("y", op, &wires)?;
        model.select_output_outlets(&y)?;
        Ok((model, inputs))
    }
}

fn layer() -> impl Strategy<Value = Layer> {
    let axis = (1usize..=6, 1usize..=3, 1usize..=3, 1usize..=2, 0i64..=2, 0i64..=2, 0usize..=3);
    let axes = (1usize..=3).prop_flat_map(move |rank| prop::collection::vec(axis.clone(), rank));
    let formats = (any::<bool>(), 0usize..5, any::<bool>(), 0usize..4);
    let channels = (1usize..=3, 1usize..=3, 1usize..=3);
    let rest = (1usize..=2, any::<bool>(), any::<bool>(), any::<bool>());
    (axes, formats, channels, rest).prop_filter_map(
        "an output",
        |(axes, (forward, filter, last, padding), (group, input, output), (batch, bias, constant, double))| {
            let list = |of: fn(&Line) -> usize| axes.iter().map(of).collect();
            let (kernel, strides, dilations): (TVec<usize>, TVec<usize>, TVec<usize>) =
                (list(|a| a.1), list(|a| a.2), list(|a| a.3));
            let output_padding: TVec<usize> = if forward { tvec!(0; axes.len()) } else { list(|a| a.6) };
            let side = if padding.is_multiple_of(2) { Side::Begin } else { Side::End };
            let padding = match (padding, forward) {
                (0 | 1, true) => Padding::SameForward { extra: side },
                (0 | 1, false) => Padding::same_transposed(&kernel, &strides, &dilations, &output_padding, side),
                _ => Padding::Explicit {
                    begin: axes.iter().map(|a| a.4).collect(),
                    end: axes.iter().map(|a| a.5).collect(),
                },
            };
            let formats =
                [FilterFormat::GroupedOix, FilterFormat::Iox, FilterFormat::Oix, FilterFormat::Xio, FilterFormat::Xoi];
            let spec = DeconvSpec {
                direction: if forward { Direction::Forward } else { Direction::Transposed },
                data_format: if last { DataFormat::Nxc } else { DataFormat::Ncx },
                filter_format: if forward { FilterFormat::GroupedOix } else { formats[filter] },
                in_channels: group * input,
                out_channels: group * output,
                group,
                kernel,
                strides,
                dilations,
                padding,
                output_padding,
            };
            let datum_type = if double { DatumType::F64 } else { DatumType::F32 };
            let layer = Layer { spec, batch, sizes: axes.iter().map(|a| a.0).collect(), bias, constant, datum_type };
            // Layers that tract can't compute have a test of their own.
            let cropped = |ax: usize| {
                let (size, kernel, stride, dilation, ..) = axes[ax];
                let outputs = (size - 1) * stride + (kernel - 1) * dilation + 1;
                let begins = match &layer.spec.padding {
                    Padding::Explicit { begin, .. } if !forward => begin[ax] as usize,
                    _ => 0,
                };
                begins > outputs
            };
            let taken = layer.spec.problem(&layer.shape(), None).is_ok() && !(0..axes.len()).any(cropped);
            taken.then_some(layer)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_layers_keep_their_numbers(layer in layer()) {
        let check = || -> TractResult<()> {
            let (ours, inputs) = layer.model()?;
            let want = run(ours.clone(), &inputs)?.remove(0);
            for before in [Stage::Typed, Stage::Decluttered] {
                let before = before.of(ours.clone())?;
                ensure!(kept_from_tract(&before)?.is_empty(), "{:?}", kept_from_tract(&before)?);
                let theirs = transformed(before)?;
                let found = (count::<GroupedDeconv>(&theirs), count::<Conv>(&theirs) + count::<Deconv>(&theirs));
                ensure!(found == (0, 1), "{theirs}");
                for after in Stage::ALL {
                    let got = run(after.of(theirs.clone())?, &inputs)?.remove(0);
                    want.close_enough(&got, Approximation::Approximate).with_context(|| format!("{after:?}"))?;
                }
            }
            Ok(())
        };
        guarded(check).map_err(|e| TestCaseError::fail(format!("{layer:?}: {e}")))?;
    }
}

/// Models with neighbouring steps already folded, and models transformed forth and back.
#[test]
fn loaded_models_come_back() -> TractResult<()> {
    let conv = Probe::conv(DatumType::F32, &[1, 4, 6, 7], &[6, 2, 3, 3]).group(2).bias(6).ints("strides", &[2, 1]);
    let deconv = Probe::new(&[1, 4, 6, 7], &[4, 3, 3, 3]).bias(3).ints("strides", &[2, 2]).ints("pads", &[1, 0, 1, 1]);
    for (probe, there) in [(conv, "conv"), (deconv, "deconv")] {
        for stage in [Stage::Typed, Stage::Decluttered] {
            let ours = stage.of(load(&probe.proto())?)?;
            let want = run(ours.clone(), &probe.inputs())?.remove(0);
            let theirs = transformed(ours)?;
            assert_eq!(count::<GroupedDeconv>(&theirs), 0, "{theirs}");
            let mut again = theirs.clone();
            get_transform(there)?.context("registered")?.transform(&mut again)?;
            assert_eq!(count::<GroupedDeconv>(&again), 1, "{again}");
            for model in [theirs, again] {
                let got = run(model.into_optimized()?, &probe.inputs())?.remove(0);
                want.close_enough(&got, Approximation::Approximate)?;
            }
        }
    }
    Ok(())
}

/// Convolutions that tract's operators can't express are kept, listed, and run as before.
#[test]
fn what_can_not_be_said_is_named() -> TractResult<()> {
    let base = DeconvSpec {
        direction: Direction::Transposed,
        data_format: DataFormat::Ncx,
        filter_format: FilterFormat::Iox,
        in_channels: 2,
        out_channels: 3,
        group: 1,
        kernel: tvec!(3),
        strides: tvec!(2),
        dilations: tvec!(1),
        padding: Padding::zero(1),
        output_padding: tvec!(0),
    };
    let cropped = DeconvSpec {
        padding: Padding::Explicit { begin: tvec!(10), end: tvec!(1) },
        output_padding: tvec!(4),
        ..base.clone()
    };
    let layer =
        Layer { spec: cropped, batch: 1, sizes: vec![4], bias: true, constant: true, datum_type: DatumType::F32 };
    let (model, inputs) = layer.model()?;
    assert!(kept_from_tract(&model)?[0].reason.starts_with("output_padding: output_padding=[3]"));
    assert_eq!(run(model.clone(), &inputs)?, run(transformed(model)?, &inputs)?);
    let sized = Padding::OutputShape { shape: OutputShape::Dims(tvec!(8.to_dim())), extra: Side::End };
    let negative = Padding::Explicit { begin: tvec!(-1), end: tvec!(0) };
    for (padding, datum_type, reason) in [
        (sized, DatumType::F32, "output_shape: tract's operators have none"),
        (negative, DatumType::F32, "pads begin: pads=[-1], tract's operators have none below 0"),
        (Padding::zero(1), DatumType::I32, "input: datum_type=I32, tract's operators are exact for floats only"),
    ] {
        let spec = DeconvSpec { padding, ..base.clone() };
        let layer = Layer { spec, batch: 1, sizes: vec![4], bias: false, constant: true, datum_type };
        let (model, inputs) = layer.model()?;
        let kept = kept_from_tract(&model)?;
        assert_eq!(kept.iter().map(|k| (&*k.name, &*k.reason)).collect::<Vec<_>>(), [("y", reason)]);
        let same = transformed(model.clone())?;
        assert_eq!(count::<GroupedDeconv>(&same), 1);
        assert_eq!(run(model, &inputs)?, run(same, &inputs)?);
    }
    let layer = Layer { spec: base, batch: 1, sizes: vec![4], bias: false, constant: true, datum_type: DatumType::F32 };
    let optimised = layer.model()?.0.into_optimized()?;
    assert_eq!(kept_from_tract(&optimised)?[0].reason, "the model is optimised already");
    Ok(())
}

/// If the input's size is unknown, tract's arithmetic lets the padding go below zero.
#[test]
fn strides_over_more_than_the_kernel_need_a_known_size() -> TractResult<()> {
    let x = Random(2).tensor(DatumType::F32, &[1, 2, 7]);
    for (dim, stride, kept) in [("S".into(), 3, 1), ("S".into(), 2, 0), (7.into(), 3, 0)] {
        let probe = Probe::conv(DatumType::F32, &[1, 2, 7], &[3, 2, 2]).string("auto_pad", "SAME_UPPER");
        let probe = probe.ints("strides", &[stride]).dims(&[1.into(), 2.into(), dim]);
        let ours = load(&probe.proto())?;
        assert_eq!(kept_from_tract(&ours)?.len(), kept, "{probe:?}");
        let want = run(ours.clone(), std::slice::from_ref(&x))?.remove(0);
        let got = run(transformed(ours)?, std::slice::from_ref(&x))?.remove(0);
        want.close_enough(&got, Approximation::Approximate)?;
    }
    Ok(())
}

#[test]
fn bodies_of_conditions_are_rewritten() -> TractResult<()> {
    let body = load(&Probe::new(&[1, 2, 4], &[2, 3, 3]).proto())?;
    let mut outer = TypedModel::default();
    let condition = outer.add_source("c", bool::scalar_fact())?;
    let x = outer.add_source("x", body.input_fact(0)?.clone())?;
    let op = IfThenElse {
        then_body: body.clone(),
        then_input_mapping: vec![1],
        else_body: body,
        else_input_mapping: vec![1],
    };
    let y = outer.wire_node("if", op, &[condition, x])?;
    outer.select_output_outlets(&y)?;
    let outer = transformed(outer)?;
    let op = outer.node_by_name("if")?.op_as::<IfThenElse>().context("a condition")?;
    for body in [&op.then_body, &op.else_body] {
        assert_eq!((count::<GroupedDeconv>(body), count::<Deconv>(body)), (0, 1), "{body}");
    }
    Ok(())
}
