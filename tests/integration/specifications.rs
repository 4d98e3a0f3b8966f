//! The examples of OpenVINO's specification pages must have the stated shapes and the definition's
//! numbers.

use crate::common::oracle::{Expected, FromTensor, Rule, convolve};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use prost::Message;
use std::path::Path;
use tract_core::internal::tract_ndarray::{ArrayD, Axis};
use tract_core::internal::*;
use tract_deconv::{Dialect, Direction, explain};
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_shape_proto::dimension::Value;

/// The layer of an example, as the page states it.
struct Layer {
    name: &'static str,
    direction: Direction,
    data: &'static [usize],
    /// `[G, Ci, Co, K..]`
    filter: &'static [usize],
    stride: usize,
    pad: i64,
    output: &'static [usize],
}

fn transposed(
    name: &'static str,
    data: &'static [usize],
    filter: &'static [usize],
    stride: usize,
    pad: i64,
    output: &'static [usize],
) -> Layer {
    Layer { name, direction: Direction::Transposed, data, filter, stride, pad, output }
}

fn forward(name: &'static str, data: &'static [usize], filter: &'static [usize], output: &'static [usize]) -> Layer {
    Layer { name, direction: Direction::Forward, data, filter, stride: 1, pad: 2, output }
}

fn layers() -> [Layer; 9] {
    let picture = &[1, 20, 224, 224];
    let (line, volume) = (&[1, 20, 224], &[1, 20, 224, 224, 224]);
    [
        transposed("group_convolution_backprop_data_1d", line, &[4, 5, 2, 3], 2, 1, &[1, 8, 447]),
        transposed("group_convolution_backprop_data_2d", picture, &[4, 5, 2, 3, 3], 2, 1, &[1, 8, 447, 447]),
        transposed("group_convolution_backprop_data_3d", volume, &[4, 5, 2, 3, 3, 3], 2, 1, &[1, 8, 447, 447, 447]),
        transposed("convolution_backprop_data", picture, &[1, 20, 10, 3, 3], 2, 1, &[1, 10, 447, 447]),
        transposed(
            "convolution_backprop_data_output_padding",
            &[1, 20, 2, 2],
            &[1, 20, 10, 3, 3],
            3,
            0,
            &[1, 10, 8, 8],
        ),
        // auto_pad is valid, so the pads are ignored.
        transposed("convolution_backprop_data_output_shape", picture, &[1, 20, 10, 3, 3], 1, 0, &[1, 10, 450, 450]),
        forward("group_convolution_1d", &[1, 12, 224], &[4, 3, 1, 5], &[1, 4, 224]),
        forward("group_convolution_2d", &[1, 12, 224, 224], &[4, 3, 1, 5, 5], &[1, 4, 224, 224]),
        forward("group_convolution_3d", &[1, 12, 224, 224, 224], &[4, 3, 1, 5, 5, 5], &[1, 4, 224, 224, 224]),
    ]
}

impl Layer {
    fn proto(&self) -> ModelProto {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/specifications");
        let bytes = std::fs::read(models.join(self.name).join("model.onnx")).expect("a committed model");
        ModelProto::decode(&*bytes).expect("a model")
    }

    /// Returns the model with other spatial sizes.
    fn proto_for(&self, input: &[usize]) -> ModelProto {
        let mut proto = self.proto();
        let graph = proto.graph.as_mut().expect("a graph");
        graph.output[0].r#type = None;
        let shape = graph.input[0].r#type.as_mut().and_then(|t| t.value.as_mut()).map(|value| match value {
            tract_onnx::pb::type_proto::Value::TensorType(tensor) => tensor.shape.as_mut().expect("a shape"),
        });
        for (dim, size) in shape.expect("a tensor").dim[2..].iter_mut().zip(input) {
            dim.value = Some(Value::DimValue(*size as i64));
        }
        proto
    }

    /// Returns the filter in the definition's layout.
    fn grouped_filter(&self) -> ArrayD<f64> {
        let graph = self.proto().graph.expect("a graph");
        let filter = graph.initializer.iter().find(|tensor| tensor.name == "filter").expect("a filter");
        let dims: Vec<usize> = filter.dims.iter().map(|d| *d as usize).collect();
        let values = filter.raw_data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes) as f64).collect();
        let mut filter = ArrayD::from_shape_vec(dims, values).expect("as many as the shape holds");
        if filter.ndim() < self.filter.len() {
            filter = filter.insert_axis(Axis(0));
        }
        if self.direction == Direction::Forward {
            filter.swap_axes(1, 2);
        }
        assert_eq!(filter.shape(), self.filter, "{}", self.name);
        filter.as_standard_layout().into_owned()
    }

    /// Returns the output's size on an axis whose input size is `x`. For the page's own input size
    /// it is the page's output size.
    fn output(&self, ax: usize, x: usize) -> usize {
        let stated = self.output[2 + ax];
        match self.direction {
            Direction::Forward => stated + x - self.data[2 + ax],
            // A requested size does not depend on the input.
            Direction::Transposed if self.name.ends_with("output_shape") => stated,
            Direction::Transposed => stated + self.stride * x - self.stride * self.data[2 + ax],
        }
    }
}

#[test]
fn facts_have_the_stated_shapes() -> TractResult<()> {
    for layer in layers() {
        let model = load(&layer.proto())?;
        for stage in Stage::ALL {
            let model = stage.of(model.clone())?;
            let shape = |fact: &TypedFact| fact.shape.as_concrete().map(|shape| shape.to_vec());
            assert_eq!(shape(model.input_fact(0)?).as_deref(), Some(layer.data), "{}, {stage:?}", layer.name);
            assert_eq!(shape(model.output_fact(0)?).as_deref(), Some(layer.output), "{}, {stage:?}", layer.name);
            let explanations = explain(&model, &SymbolValues::default())?;
            let [only] = &*explanations else { bail!("{}, {stage:?}: {model}", layer.name) };
            let spec = only.spec.as_ref().context("the filter's sizes are known")?;
            assert_eq!((only.dialect, spec.direction), (Dialect::OpenVino, layer.direction), "{only}");
            let channels = (spec.group, spec.group_in(), spec.group_out());
            assert_eq!(channels, (layer.filter[0], layer.filter[1], layer.filter[2]), "{only}");
            assert!(only.concrete.is_some(), "{only}");
        }
    }
    Ok(())
}

/// One and two axes have the page's own sizes. Three axes are made smaller, as their output would
/// take gigabytes.
#[test]
fn runs_give_the_definitions_numbers() -> TractResult<()> {
    for layer in layers() {
        let sizes: Vec<&[usize]> = match layer.data.len() {
            5 => vec![&[5, 4, 7], &[1, 9, 2]],
            _ => vec![&layer.data[2..]],
        };
        for input in sizes {
            let x = Random(41).tensor(DatumType::F32, &[&layer.data[..2], input].concat());
            let rules: Vec<Rule> = (input.iter().enumerate())
                .map(|(ax, x)| Rule {
                    stride: layer.stride,
                    dilation: 1,
                    pad_begin: layer.pad,
                    output: layer.output(ax, *x),
                })
                .collect();
            let answer = convolve(layer.direction, &f64::from_tensor(&x), &layer.grouped_filter(), None, &rules);
            let expected = Expected::floats(DatumType::F32, answer);
            let proto = layer.proto_for(input);
            for stage in Stage::ALL {
                let got = run(stage.of(load(&proto)?)?, std::slice::from_ref(&x))?;
                expected.check(&got[0]).map_err(|e| format_err!("{}, {input:?}, {stage:?}: {e}", layer.name))?;
            }
        }
    }
    Ok(())
}
