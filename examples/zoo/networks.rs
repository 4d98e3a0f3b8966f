//! Models shaped like published networks, with pseudo-random weights.

use super::proto::{Graph, float, int, ints, string};
use super::random::Random;
use tract_onnx::pb::{AttributeProto, ModelProto};

/// A graph and the generator of its weights.
struct Net {
    graph: Graph,
    random: Random,
}

/// The geometry of one convolution. Empty lists mean ONNX's defaults.
#[derive(Default)]
struct Conv<'a> {
    channels: (usize, usize),
    group: usize,
    kernel: &'a [usize],
    strides: &'a [i64],
    dilations: &'a [i64],
    pads: &'a [i64],
    output_padding: &'a [i64],
    auto_pad: Option<&'a str>,
    gain: f32,
    bias: bool,
}

impl<'a> Conv<'a> {
    fn new(channels: (usize, usize), kernel: &'a [usize]) -> Conv<'a> {
        Conv { channels, kernel, group: 1, gain: 1.0, bias: true, ..Default::default() }
    }

    fn attributes(&self) -> Vec<AttributeProto> {
        let kernel: Vec<i64> = self.kernel.iter().map(|&k| k as i64).collect();
        let lists = [
            ("kernel_shape", &*kernel),
            ("strides", self.strides),
            ("dilations", self.dilations),
            ("pads", self.pads),
            ("output_padding", self.output_padding),
        ];
        let mut attributes: Vec<_> = lists.iter().filter(|l| !l.1.is_empty()).map(|l| ints(l.0, l.1)).collect();
        attributes.extend(self.auto_pad.map(|mode| string("auto_pad", mode)));
        attributes.extend((self.group > 1).then(|| int("group", self.group as i64)));
        attributes
    }
}

impl Net {
    fn new(name: &str, seed: u64) -> Net {
        Net { graph: Graph::new(name), random: Random(seed) }
    }

    fn conv(&mut self, name: &str, x: &str, conv: Conv) -> String {
        let (input, output) = conv.channels;
        let terms = input / conv.group * conv.kernel.iter().product::<usize>();
        let dims = [&[output, input / conv.group], conv.kernel].concat();
        self.weighted(name, "Conv", x, &conv, &dims, terms as f32)
    }

    fn deconv(&mut self, name: &str, x: &str, conv: Conv) -> String {
        let (input, output) = conv.channels;
        let taps = conv.kernel.iter().product::<usize>() as f32;
        let stride = conv.strides.iter().product::<i64>().max(1) as f32;
        let terms = (input / conv.group) as f32 * taps / stride;
        let dims = [&[input, output / conv.group], conv.kernel].concat();
        self.weighted(name, "ConvTranspose", x, &conv, &dims, terms)
    }

    fn weighted(&mut self, name: &str, op_type: &str, x: &str, conv: &Conv, dims: &[usize], terms: f32) -> String {
        let values = self.random.weights(conv.gain, terms, dims.iter().product());
        let w = self.graph.f32s(&format!("{name}.weight"), dims, values);
        if !conv.bias {
            return self.graph.node(name, op_type, &[x, &w], conv.attributes());
        }
        let channels = conv.channels.1;
        let values = self.random.around(0.0, 0.1, channels);
        let b = self.graph.f32s(&format!("{name}.bias"), &[channels], values);
        self.graph.node(name, op_type, &[x, &w, &b], conv.attributes())
    }

    fn batch_norm(&mut self, name: &str, x: &str, channels: usize) -> String {
        let statistics = [("scale", 1.0, 0.25), ("bias", 0.0, 0.1), ("mean", 0.0, 0.1), ("var", 1.0, 0.5)];
        let parameters = statistics.map(|(parameter, centre, radius)| {
            let values = self.random.around(centre, radius, channels);
            self.graph.f32s(&format!("{name}.{parameter}"), &[channels], values)
        });
        let [scale, bias, mean, var] = &parameters;
        self.graph.node(name, "BatchNormalization", &[x, scale, bias, mean, var], vec![float("epsilon", 1e-5)])
    }

    /// Adds a PRelu with a slope per channel, for `spatial` trailing axes.
    fn prelu(&mut self, x: &str, channels: usize, spatial: usize) -> String {
        let dims = [&[channels][..], &vec![1; spatial]].concat();
        let values = self.random.around(0.2, 0.1, channels);
        let slope = self.graph.f32s(&format!("{x}.slope"), &dims, values);
        self.graph.node(&format!("{x}.prelu"), "PRelu", &[x, &slope], vec![])
    }

    fn leaky_relu(&mut self, x: &str) -> String {
        self.graph.node(&format!("{x}.leaky"), "LeakyRelu", &[x], vec![float("alpha", 0.1)])
    }

    fn unary(&mut self, op_type: &str, x: &str) -> String {
        self.graph.node(&format!("{x}.{}", op_type.to_lowercase()), op_type, &[x], vec![])
    }
}

/// DCGAN's generator at 32x32: a 4x4 projection of the latent vector, then doublings.
pub fn dcgan_small() -> ModelProto {
    let mut net = Net::new("dcgan_small", 1);
    let latent = net.graph.input("latent", "batch 64 1 1");
    let mut x = net.deconv("project", &latent, Conv { bias: false, ..Conv::new((64, 48), &[4, 4]) });
    for (i, (from, to)) in [(48, 32), (32, 16)].into_iter().enumerate() {
        x = net.batch_norm(&format!("norm{i}"), &x, from);
        x = net.unary("Relu", &x);
        let double = doubling((from, to));
        x = net.deconv(&format!("double{i}"), &x, Conv { bias: false, gain: 1.4, ..double });
    }
    x = net.batch_norm("norm2", &x, 16);
    x = net.unary("Relu", &x);
    x = net.deconv("paint", &x, Conv { bias: false, ..doubling((16, 3)) });
    net.graph.node("image", "Tanh", &[&x], vec![]);
    net.graph.output("image", "batch 3 32 32");
    net.graph.into_model(6, 11, "DCGAN-like generator, seeded weights")
}

fn doubling(channels: (usize, usize)) -> Conv<'static> {
    Conv { strides: &[2, 2], pads: &[1, 1, 1, 1], ..Conv::new(channels, &[4, 4]) }
}

/// A speech denoiser's decoder: causal dilated layers over time, then upsampling over frequency
/// only, and a mask for the noisy spectrum.
pub fn denoiser() -> ModelProto {
    let mut net = Net::new("denoiser", 2);
    let features = net.graph.input("features", "batch 16 frames 33");
    let spectrum = net.graph.input("spectrum", "batch 2 frames 129");
    let mut x = features.clone();
    for dilation in [4, 2, 1] {
        let name = format!("dilated{dilation}");
        let squeeze = net.conv(&format!("{name}.in"), &x, Conv::new((16, 16), &[1, 1]));
        let squeeze = net.prelu(&squeeze, 16, 2);
        // a crop at the end only keeps the layer causal
        let depthwise = net.deconv(
            &name,
            &squeeze,
            Conv {
                group: 16,
                dilations: &[dilation, 1],
                pads: &[0, 1, 2 * dilation, 1],
                ..Conv::new((16, 16), &[3, 3])
            },
        );
        let depthwise = net.prelu(&depthwise, 16, 2);
        let expand = net.deconv(
            &format!("{name}.out"),
            &depthwise,
            Conv { group: 2, gain: 0.5, ..Conv::new((16, 16), &[1, 1]) },
        );
        x = net.graph.node(&format!("{name}.sum"), "Add", &[&x, &expand], vec![]);
    }
    // 33 -> 65 bins, two groups
    x = net.deconv(
        "widen0",
        &x,
        Conv { group: 2, strides: &[1, 2], pads: &[0, 2, 0, 2], ..Conv::new((16, 16), &[1, 5]) },
    );
    x = net.batch_norm("widen0.norm", &x, 16);
    x = net.prelu(&x, 16, 2);
    // Channel multiplier 2, time and frequency dilated
    x = net.deconv(
        "multiplier",
        &x,
        Conv { group: 16, dilations: &[2, 3], pads: &[2, 3, 2, 3], ..Conv::new((16, 32), &[3, 3]) },
    );
    x = net.prelu(&x, 32, 2);
    // 65 -> 129 bins
    x = net.deconv("widen1", &x, Conv { strides: &[1, 2], pads: &[1, 1, 1, 1], ..Conv::new((32, 2), &[3, 3]) });
    let mask = net.unary("Sigmoid", &x);
    net.graph.node("enhanced", "Mul", &[&mask, &spectrum], vec![]);
    net.graph.output("enhanced", "batch 2 frames 129");
    net.graph.into_model(8, 16, "speech-denoiser-like decoder, seeded weights")
}

/// U-Net for pictures of any size: the encoder rounds up, the decoder crops to the skip's size.
pub fn unet_symbolic() -> ModelProto {
    const WIDTHS: [usize; 4] = [8, 12, 16, 24];
    let mut net = Net::new("unet_symbolic", 3);
    let image = net.graph.input("image", "batch 3 height width");
    let starts = net.graph.i64s("starts", &[0, 0]);
    let spatial_axes = net.graph.i64s("spatial_axes", &[2, 3]);

    let mut x = net.block("enc0", &image, (3, WIDTHS[0]));
    let mut skips = vec![];
    for level in 1..WIDTHS.len() {
        let attributes = vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2]), int("ceil_mode", 1)];
        let pooled = net.graph.node(&format!("pool{level}"), "MaxPool", &[&x], attributes);
        skips.push(x);
        x = net.block(&format!("enc{level}"), &pooled, (WIDTHS[level - 1], WIDTHS[level]));
    }
    // three variants of doubling the size
    let base =
        |level: usize, kernel| Conv { strides: &[2, 2], ..Conv::new((WIDTHS[level], WIDTHS[level - 1]), kernel) };
    let ups = [
        Conv { auto_pad: Some("SAME_UPPER"), ..base(1, &[3, 3]) },
        Conv { pads: &[1, 1, 1, 1], output_padding: &[1, 1], ..base(2, &[3, 3]) },
        base(3, &[2, 2]),
    ];
    for (level, (up, skip)) in ups.into_iter().zip(skips).enumerate().rev() {
        x = net.deconv(&format!("up{level}"), &x, up);
        let shape = net.graph.node(&format!("shape{level}"), "Shape", &[&skip], vec![]);
        let size = net.graph.node(&format!("size{level}"), "Gather", &[&shape, &spatial_axes], vec![]);
        x = net.graph.node(&format!("crop{level}"), "Slice", &[&x, &starts, &size, &spatial_axes], vec![]);
        x = net.graph.node(&format!("join{level}"), "Concat", &[&skip, &x], vec![int("axis", 1)]);
        x = net.block(&format!("dec{level}"), &x, (2 * WIDTHS[level], WIDTHS[level]));
    }
    net.conv("classes", &x, Conv::new((WIDTHS[0], 2), &[1, 1]));
    net.graph.output("classes", "batch 2 height width");
    net.graph.into_model(8, 17, "small U-Net with symbolic batch, height and width, seeded weights")
}

impl Net {
    fn block(&mut self, name: &str, x: &str, channels: (usize, usize)) -> String {
        let pads = &[1, 1, 1, 1];
        let x = self.conv(name, x, Conv { pads, gain: 1.4, ..Conv::new(channels, &[3, 3]) });
        self.unary("Relu", &x)
    }
}

/// A small HiFi-GAN generator: mel frames in, 256 samples per frame out.
pub fn vocoder() -> ModelProto {
    let mut net = Net::new("vocoder", 4);
    let mel = net.graph.input("mel", "batch 40 frames");
    let mut x = net.conv("pre", &mel, Conv { pads: &[3, 3], ..Conv::new((40, 48), &[7]) });
    let stages = [(48, 24, 8), (24, 16, 8), (16, 12, 2), (12, 8, 2)];
    for (stage, (from, to, stride)) in stages.into_iter().enumerate() {
        x = net.leaky_relu(&x);
        x = net.deconv(
            &format!("up{stage}"),
            &x,
            Conv {
                strides: &[stride],
                pads: &[stride / 2, stride / 2],
                ..Conv::new((from, to), &[2 * stride as usize])
            },
        );
        for dilation in [1, 3, 5] {
            let name = format!("up{stage}.res{dilation}");
            let active = net.leaky_relu(&x);
            let pads = &[dilation, dilation];
            let residual =
                net.conv(&name, &active, Conv { dilations: &[dilation], pads, gain: 0.4, ..Conv::new((to, to), &[3]) });
            x = net.graph.node(&format!("{name}.sum"), "Add", &[&x, &residual], vec![]);
        }
    }
    x = net.leaky_relu(&x);
    x = net.conv("post", &x, Conv { pads: &[3, 3], ..Conv::new((8, 1), &[7]) });
    net.graph.node("audio", "Tanh", &[&x], vec![]);
    net.graph.output("audio", "batch 1 samples");
    net.graph.into_model(8, 15, "HiFi-GAN-like vocoder, seeded weights")
}
