//! The examples of OpenVINO's specification pages as models of one node, with pseudo-random
//! weights.

use super::proto::{Graph, string};
use super::random::Random;
use tract_onnx::pb::ModelProto;

/// One `<layer>` of a page.
struct Example {
    name: &'static str,
    operator: &'static str,
    attributes: &'static [(&'static str, &'static str)],
    data: &'static [usize],
    filter: &'static [usize],
    /// The value of the third input.
    output_shape: Option<&'static [i64]>,
    output: &'static [usize],
}

const EXAMPLES: [Example; 9] = [
    Example {
        name: "group_convolution_backprop_data_1d",
        operator: "GroupConvolutionBackpropData",
        attributes: &[("dilations", "1"), ("pads_begin", "1"), ("pads_end", "1"), ("strides", "2")],
        data: &[1, 20, 224],
        filter: &[4, 5, 2, 3],
        output_shape: None,
        output: &[1, 8, 447],
    },
    Example {
        name: "group_convolution_backprop_data_2d",
        operator: "GroupConvolutionBackpropData",
        attributes: &[("dilations", "1,1"), ("pads_begin", "1,1"), ("pads_end", "1,1"), ("strides", "2,2")],
        data: &[1, 20, 224, 224],
        filter: &[4, 5, 2, 3, 3],
        output_shape: None,
        output: &[1, 8, 447, 447],
    },
    Example {
        name: "group_convolution_backprop_data_3d",
        operator: "GroupConvolutionBackpropData",
        attributes: &[("dilations", "1,1,1"), ("pads_begin", "1,1,1"), ("pads_end", "1,1,1"), ("strides", "2,2,2")],
        data: &[1, 20, 224, 224, 224],
        filter: &[4, 5, 2, 3, 3, 3],
        output_shape: None,
        output: &[1, 8, 447, 447, 447],
    },
    Example {
        name: "convolution_backprop_data",
        operator: "ConvolutionBackpropData",
        attributes: &[
            ("dilations", "1,1"),
            ("pads_begin", "1,1"),
            ("pads_end", "1,1"),
            ("strides", "2,2"),
            ("output_padding", "0,0"),
            ("auto_pad", "explicit"),
        ],
        data: &[1, 20, 224, 224],
        filter: &[20, 10, 3, 3],
        output_shape: None,
        output: &[1, 10, 447, 447],
    },
    Example {
        name: "convolution_backprop_data_output_padding",
        operator: "ConvolutionBackpropData",
        attributes: &[
            ("dilations", "1,1"),
            ("pads_begin", "0,0"),
            ("pads_end", "0,0"),
            ("strides", "3,3"),
            ("output_padding", "2,2"),
            ("auto_pad", "explicit"),
        ],
        data: &[1, 20, 2, 2],
        filter: &[20, 10, 3, 3],
        output_shape: None,
        output: &[1, 10, 8, 8],
    },
    Example {
        name: "convolution_backprop_data_output_shape",
        operator: "ConvolutionBackpropData",
        attributes: &[
            ("dilations", "1,1"),
            ("pads_begin", "1,1"),
            ("pads_end", "1,1"),
            ("strides", "1,1"),
            ("output_padding", "0,0"),
            ("auto_pad", "valid"),
        ],
        data: &[1, 20, 224, 224],
        filter: &[20, 10, 3, 3],
        output_shape: Some(&[450, 450]),
        output: &[1, 10, 450, 450],
    },
    Example {
        name: "group_convolution_1d",
        operator: "GroupConvolution",
        attributes: &[
            ("dilations", "1"),
            ("pads_begin", "2"),
            ("pads_end", "2"),
            ("strides", "1"),
            ("auto_pad", "explicit"),
        ],
        data: &[1, 12, 224],
        filter: &[4, 1, 3, 5],
        output_shape: None,
        output: &[1, 4, 224],
    },
    Example {
        name: "group_convolution_2d",
        operator: "GroupConvolution",
        attributes: &[
            ("dilations", "1,1"),
            ("pads_begin", "2,2"),
            ("pads_end", "2,2"),
            ("strides", "1,1"),
            ("auto_pad", "explicit"),
        ],
        data: &[1, 12, 224, 224],
        filter: &[4, 1, 3, 5, 5],
        output_shape: None,
        output: &[1, 4, 224, 224],
    },
    Example {
        name: "group_convolution_3d",
        operator: "GroupConvolution",
        attributes: &[
            ("dilations", "1,1,1"),
            ("pads_begin", "2,2,2"),
            ("pads_end", "2,2,2"),
            ("strides", "1,1,1"),
            ("auto_pad", "explicit"),
        ],
        data: &[1, 12, 224, 224, 224],
        filter: &[4, 1, 3, 5, 5, 5],
        output_shape: None,
        output: &[1, 4, 224, 224, 224],
    },
];

/// Returns each model with its name below `models/`.
pub fn models() -> impl Iterator<Item = (String, ModelProto)> {
    EXAMPLES.iter().zip(1..).map(|(example, seed)| (format!("specifications/{}", example.name), example.model(seed)))
}

impl Example {
    fn model(&self, seed: u64) -> ModelProto {
        let mut g = Graph::new(self.name);
        let data = g.input("data", &dims(self.data));
        let filter = Random(seed).around(0.0, 1.0, self.filter.iter().product());
        let filter = g.f32s("filter", self.filter, filter);
        let output_shape = self.output_shape.map(|values| g.i64s("output_shape", values));
        let inputs: Vec<&str> = [&*data, &*filter].into_iter().chain(output_shape.as_deref()).collect();
        let attributes = self.attributes.iter().map(|(name, text)| string(name, text)).collect();
        g.node_of("org.openvinotoolkit", "layer", self.operator, &inputs, attributes);
        g.output("layer", &dims(self.output));
        g.into_model(7, 13, "an example of OpenVINO's specification, random weights")
    }
}

fn dims(shape: &[usize]) -> String {
    shape.iter().map(|size| size.to_string()).collect::<Vec<_>>().join(" ")
}
