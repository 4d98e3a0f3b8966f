//! NNEF: random specs of every dialect, both directions and all paddings are dumped and loaded
//! again.
//!
//! The framework that wrote a file must read it and give the definition's numbers. tract alone must
//! do so too if the file needs nothing of this crate.
#![cfg(feature = "nnef")]

use crate::common::nnef::is_standard;
use crate::common::oracle::Expected;
use crate::common::random::Random;
use crate::common::run::{guarded, run};
use tract_core::internal::*;
use tract_deconv::{
    DataFormat, DeconvSpec, Dialect, Direction, FilterFormat, GroupedDeconv, OutputShape, Padding, PlanOptions, Side,
    WithConv, WithDeconv,
};
use tract_nnef::internal::Nnef;
use tract_nnef::prelude::Framework;

struct Drawn {
    op: GroupedDeconv,
    model: TypedModel,
    inputs: Vec<Tensor>,
    filter: Tensor,
    bias: Option<Tensor>,
    requested: Option<Vec<i64>>,
}

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len())].clone()
}

/// Draws a case. Returns none if its output would be empty.
fn draw(random: &mut Random) -> TractResult<Option<Drawn>> {
    use FilterFormat::*;
    let direction = pick(random, &[Direction::Transposed, Direction::Forward]);
    let forward = direction == Direction::Forward;
    let rank = pick(random, &[1, 1, 2, 2, 2, 3, 4]);
    let group = pick(random, &[1, 1, 2, 3]);
    let mut list = |from: &[usize]| -> TVec<usize> { (0..rank).map(|_| pick(random, from)).collect() };
    let (kernel, strides, dilations) = (list(&[1, 2, 3]), list(&[1, 1, 2, 3]), list(&[1, 1, 2]));
    let (spatial, output_padding) = (list(&[1, 2, 3, 5]), list(&[0, 0, 0, 1, 2, 4]));
    let output_padding = if forward || random.below(2) == 0 { tvec!(0; rank) } else { output_padding };
    let extra = pick(random, &[Side::Begin, Side::End]);
    let mut pads = || -> TVec<i64> { (0..rank).map(|_| pick(random, &[0, 0, 1, 2, 3, 4, -1])).collect() };
    let (begin, end) = (pads(), pads());
    let symbolic = random.below(3) == 0;
    let mut model = TypedModel::default();
    let symbols: Vec<TDim> = (0..rank).map(|ax| model.symbols.sym(&format!("S{ax}")).to_dim()).collect();
    let asked: Vec<usize> = (0..rank).map(|_| 1 + random.below(9)).collect();
    let padding = match (forward, random.below(4)) {
        (true, 0) => Padding::SameForward { extra },
        (false, 0) => Padding::same_transposed(&kernel, &strides, &dilations, &output_padding, extra),
        (false, 1) => {
            let dim = |ax: usize| match symbolic {
                true => symbols[ax].clone() * 2 + asked[ax] - 1,
                false => asked[ax].to_dim(),
            };
            let dims = (0..rank).map(dim).collect();
            let shape = if random.below(3) == 0 { OutputShape::Input(dims) } else { OutputShape::Dims(dims) };
            Padding::OutputShape { shape, extra }
        }
        (_, 2) => Padding::Explicit {
            begin: begin.iter().map(|pad| (*pad).max(0)).collect(),
            end: end.iter().map(|pad| (*pad).max(0)).collect(),
        },
        _ => Padding::Explicit { begin, end },
    };
    let dt = match random.below(8) {
        0 => DatumType::F16,
        1 => DatumType::F64,
        2 => DatumType::I32,
        3 => DatumType::I8,
        _ => DatumType::F32,
    };
    let filter_formats: &[FilterFormat] = if forward { &[GroupedOix] } else { &[Iox, Oix, Xio, Xoi, GroupedOix] };
    let spec = DeconvSpec {
        direction,
        data_format: pick(random, &[DataFormat::Ncx, DataFormat::Ncx, DataFormat::Ncx, DataFormat::Nxc]),
        filter_format: pick(random, filter_formats),
        in_channels: group * pick(random, &[1, 2]),
        out_channels: group * pick(random, &[1, 2, 3]),
        group,
        kernel,
        strides,
        dilations,
        padding,
        output_padding,
    };
    spec.validate()?;
    let requested = matches!(spec.padding, Padding::OutputShape { .. }).then(|| -> Vec<i64> {
        let size = |ax: usize| if symbolic { spatial[ax] * 2 + asked[ax] - 1 } else { asked[ax] };
        (0..rank).map(|ax| size(ax) as i64).collect()
    });
    let batch = 1 + random.below(2);
    let x_shape = spec.data_format.shape(batch, spec.in_channels, spatial.iter().copied());
    if spec.problem(&x_shape, requested.as_deref()).is_err() {
        return Ok(None);
    }

    let x = random.small_integers(dt, &x_shape);
    let fact = match symbolic {
        true => dt.fact(spec.data_format.shape(batch.to_dim(), spec.in_channels.to_dim(), symbols)),
        false => dt.fact(x.shape()),
    };
    let mut wires = tvec!(model.add_source("x", fact)?);
    let mut inputs = vec![x];
    let filter = random.small_integers(dt, &spec.filter_shape());
    let bias = (random.below(2) == 0).then(|| random.small_integers(dt, &[spec.out_channels]));
    let constant = random.below(3) > 0;
    for (name, tensor) in [("filter", Some(&filter)), ("bias", bias.as_ref())] {
        let Some(tensor) = tensor else { continue };
        wires.push(match constant {
            true => model.add_const(name, tensor.clone())?,
            false => {
                inputs.push(tensor.clone());
                model.add_source(name, dt.fact(tensor.shape()))?
            }
        });
    }
    if spec.has_output_shape_input() {
        wires.push(model.add_source("size", i64::fact([rank]))?);
        inputs.push(tensor1(requested.as_deref().unwrap_or_default()));
    }
    let dialects = [Dialect::Onnx, Dialect::OpenVino, Dialect::OneDnn, Dialect::Tract, Dialect::Nnef];
    let mut op = GroupedDeconv::new(spec, pick(random, &dialects), bias.is_some(), PlanOptions::default())?;
    op.fusion = random.below(8) > 0;
    let y = model.wire_node("y", op.clone(), &wires)?;
    model.select_output_outlets(&y)?;
    Ok(Some(Drawn { op, model, inputs, filter, bias, requested }))
}

fn check(drawn: &Drawn, writer: &Nnef) -> TractResult<bool> {
    let Drawn { op, model, inputs, .. } = drawn;
    let expected = Expected::new(&op.spec, &inputs[0], &drawn.filter, drawn.bias.as_ref(), drawn.requested.as_deref());
    let tar = writer.write_to_tar(model, vec![]).context("dump")?;
    let standard = is_standard(op, model.input_fact(0)?);
    let mut readers = vec![("the writer", writer.model_for_read(&mut &*tar).context("load")?)];
    if standard {
        readers.push(("tract", tract_nnef::nnef().model_for_read(&mut &*tar).context("load by tract")?));
    }
    for (reader, loaded) in readers {
        for loaded in [loaded.clone(), loaded.into_optimized().with_context(|| format!("optimise, read by {reader}"))?]
        {
            let got = run(loaded, inputs).with_context(|| format!("run, read by {reader}"))?.remove(0);
            expected.check(&got).map_err(|e| format_err!("read by {reader}: {e}"))?;
        }
    }
    // Write and read again, unless the model now has only tract's own operators.
    let again = writer.model_for_read(&mut &*tar)?;
    if !again.nodes().iter().any(|node| node.op_is::<GroupedDeconv>()) {
        return Ok(standard);
    }
    let tar = writer.write_to_tar(&again, vec![]).context("dump again")?;
    let got = run(writer.model_for_read(&mut &*tar).context("load again")?, inputs)?.remove(0);
    expected.check(&got).map_err(|e| format_err!("written again: {e}"))?;
    Ok(standard)
}

#[test]
fn what_is_dumped_is_loaded() {
    let mut random = Random(32);
    let writers = [
        tract_nnef::nnef().with_deconv(),
        tract_nnef::nnef().with_conv(),
        tract_nnef::nnef().with_deconv().with_conv(),
    ];
    let (mut done, mut standard, mut failures) = (0, 0, vec![]);
    while done < 600 {
        let Some(drawn) = draw(&mut random).expect("a model") else { continue };
        match guarded(|| check(&drawn, &writers[done % writers.len()])) {
            Ok(is_standard) => standard += is_standard as usize,
            Err(failure) => failures.push(format!(
                "{done}: {}, {:?}, {:?}, {:?}: {failure}",
                drawn.op.spec,
                drawn.inputs.iter().map(|x| x.shape()).collect::<Vec<_>>(),
                drawn.inputs[0].datum_type(),
                drawn.op.dialect
            )),
        }
        done += 1;
    }
    assert!(failures.is_empty(), "{} of {done}:\n{}", failures.len(), failures[..failures.len().min(12)].join("\n"));
    assert!((150..450).contains(&standard), "{standard} of {done} needed nothing of this crate");
}
