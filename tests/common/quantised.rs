//! Random quantised nodes, and their results by the definition: sums in `i128`, real numbers in f64.

use super::oracle;
use super::proto::{Model, Node, sizes};
use super::random::Random;
use tract_core::internal::tract_ndarray::ArrayD;
use tract_core::internal::*;
use tract_deconv::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_onnx::pb::ModelProto;

/// The forms of a quantised convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    ConvInteger,
    QLinearConv,
    /// Between DequantizeLinear and QuantizeLinear.
    Dequantised,
    /// As above, without QuantizeLinear.
    Real,
    /// Behind DynamicQuantizeLinear.
    Dynamic,
}

pub const FORMS: [Form; 5] = [Form::ConvInteger, Form::QLinearConv, Form::Dequantised, Form::Real, Form::Dynamic];

/// What is added to each output channel.
#[derive(Clone, Debug)]
pub enum Bias {
    None,
    /// i32 in units of the scales of data and filter.
    Integers(Vec<i32>),
    Reals(Vec<f32>),
}

/// A tensor that is read as `(q − zero)·scale`, with one scale and zero or several.
#[derive(Clone, Debug)]
pub struct Quantised {
    pub values: Tensor,
    pub scales: Vec<f32>,
    pub zeros: Vec<i32>,
}

/// A node and its tensors.
#[derive(Clone, Debug)]
pub struct Case {
    pub form: Form,
    pub spec: DeconvSpec,
    /// The data. Real data for the dynamic form.
    pub x: Quantised,
    pub w: Quantised,
    pub y: (f32, i32, DatumType),
    pub bias: Bias,
    /// Bounds of real results.
    pub limits: Option<(f32, f32)>,
}

fn byte(random: &mut Random) -> DatumType {
    if random.below(2) == 0 { DatumType::U8 } else { DatumType::I8 }
}

fn value_of(random: &mut Random, dt: DatumType) -> i32 {
    if dt == DatumType::U8 { random.below(256) as i32 } else { random.below(256) as i32 - 128 }
}

fn scale(random: &mut Random) -> f32 {
    (0.001 + random.unit().abs() * 0.1) as f32
}

/// Returns a tensor of 8-bit integers, or of i32.
pub fn integers(dt: DatumType, shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::from_shape(shape, values).and_then(|t| t.cast_to_dt(dt).map(|t| t.into_owned())).expect("an integer type")
}

impl Case {
    /// Draws a case.
    pub fn draw(random: &mut Random) -> Case {
        let form = FORMS[random.below(FORMS.len())];
        let forward = matches!(form, Form::ConvInteger | Form::QLinearConv | Form::Dynamic) || random.below(2) == 0;
        let rank = 1 + random.below(3);
        let group = 1 + random.below(3);
        let (ci, co) = (1 + random.below(4), 1 + random.below(5));
        let mut list = |least: usize, most: usize| -> TVec<usize> {
            (0..rank).map(|_| least + random.below(most - least + 1)).collect()
        };
        let (kernel, strides, dilations) = (list(1, 4), list(1, 3), list(1, 2));
        let (begin, end) = (list(0, 2), list(0, 2));
        let limit: TVec<usize> = (0..rank).map(|ax| strides[ax].max(dilations[ax]) - 1).collect();
        let output_padding: TVec<usize> = limit.iter().map(|most| random.below(most + 1)).collect();
        let spec = DeconvSpec {
            direction: if forward { Direction::Forward } else { Direction::Transposed },
            data_format: DataFormat::Ncx,
            filter_format: if forward { FilterFormat::GroupedOix } else { FilterFormat::Iox },
            in_channels: group * ci,
            out_channels: group * co,
            group,
            kernel,
            strides,
            dilations,
            padding: Padding::Explicit {
                begin: begin.iter().map(|p| *p as i64).collect(),
                end: end.iter().map(|p| *p as i64).collect(),
            },
            output_padding: if forward { tvec!(0; rank) } else { output_padding },
        };
        // Large enough for the kernel's extent, and for what the pads crop.
        let mut shape = vec![1 + random.below(2), group * ci];
        shape.extend((0..rank).map(|_| 7 + random.below(5)));
        let (x_type, w_type, y_type) = (byte(random), byte(random), byte(random));
        let x_type = if form == Form::Dynamic { DatumType::U8 } else { x_type };
        let filter_shape = spec.filter_shape();
        let channels = if forward { group * co } else { co };
        let per_channel = random.below(2) == 0;
        let of_filter = if per_channel { channels } else { 1 };
        let x = match form {
            Form::Dynamic => random.tensor(DatumType::F32, &shape),
            _ => random.tensor(x_type, &shape),
        };
        let bias = match (form, random.below(3)) {
            (Form::ConvInteger, _) | (_, 0) => Bias::None,
            (Form::QLinearConv, _) | (Form::Dequantised | Form::Real, 1) => {
                Bias::Integers((0..group * co).map(|_| random.below(4000) as i32 - 2000).collect())
            }
            _ => Bias::Reals((0..group * co).map(|_| random.unit() as f32).collect()),
        };
        let limits = match (form, random.below(3)) {
            (Form::Dequantised | Form::Real, 1) => Some((0.0, f32::INFINITY)),
            (Form::Dequantised | Form::Real, 2) => Some((-0.5, 6.0)),
            _ => None,
        };
        Case {
            form,
            x: Quantised { values: x, scales: vec![scale(random)], zeros: vec![value_of(random, x_type)] },
            w: Quantised {
                values: random.tensor(w_type, &filter_shape),
                scales: (0..of_filter).map(|_| scale(random)).collect(),
                zeros: (0..of_filter).map(|_| value_of(random, w_type)).collect(),
            },
            y: (scale(random) * 20.0, value_of(random, y_type), y_type),
            bias,
            limits,
            spec,
        }
    }

    fn filter_axis(&self) -> usize {
        (self.spec.direction == Direction::Transposed) as usize
    }

    /// Returns the value of an output channel. Vectors of a forward filter have the channels of all
    /// groups, and those of a transposed one the channels of a group.
    fn of_channel<T: Copy>(&self, values: &[T], channel: usize) -> T {
        match (values.len(), self.spec.direction) {
            (1, _) => values[0],
            (_, Direction::Forward) => values[channel],
            (_, Direction::Transposed) => values[channel % self.spec.group_out()],
        }
    }

    /// Returns the node's model, with the input `x` and the output `y`.
    pub fn proto(&self) -> ModelProto {
        let Case { form, spec, x, w, y, bias, limits } = self;
        let (y_scale, y_zero, y_type) = *y;
        let w_type = w.values.datum_type();
        let x_type = if *form == Form::Dynamic { DatumType::U8 } else { x.values.datum_type() };
        let vector = |values: &[f32]| match values {
            [one] => tensor0(*one),
            _ => tensor1(values),
        };
        let zeros = |values: &[i32], dt| match values {
            [one] => integers(dt, &[], &[*one]),
            _ => integers(dt, &[values.len()], values),
        };
        let mut model = Model::opset(13)
            .input("x", x.values.datum_type(), &sizes(x.values.shape()))
            .initializer("w", &w.values)
            .initializer("xs", &vector(&x.scales))
            .initializer("xz", &zeros(&x.zeros, x_type))
            .initializer("ws", &vector(&w.scales))
            .initializer("wz", &zeros(&w.zeros, w_type))
            .initializer("ys", &tensor0(y_scale))
            .initializer("yz", &zeros(&[y_zero], y_type));
        let (transposed, axis) = (spec.direction == Direction::Transposed, self.filter_axis() as i64);
        let layer = |op: &str, inputs: &[&str]| {
            let list = |values: &[usize]| values.iter().map(|v| *v as i64).collect::<Vec<i64>>();
            let Padding::Explicit { begin, end } = &spec.padding else { unreachable!("explicit pads are drawn") };
            let pads: Vec<i64> = begin.iter().chain(end).copied().collect();
            let node = Node::new(op).named("layer").inputs(inputs).int("group", spec.group as i64);
            let node = node.ints("strides", &list(&spec.strides)).ints("dilations", &list(&spec.dilations));
            let node = node.ints("pads", &pads).ints("kernel_shape", &list(&spec.kernel));
            if transposed { node.ints("output_padding", &list(&spec.output_padding)) } else { node }
        };
        let mut broadcast = vec![1; spec.rank() + 2];
        broadcast[1] = spec.out_channels;
        match form {
            Form::ConvInteger => {
                model = model.node(layer("ConvInteger", &["x", "w", "xz", "wz"]).output("y"));
            }
            Form::QLinearConv => {
                let mut node = layer("QLinearConv", &["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]).output("y");
                if let Bias::Integers(bias) = bias {
                    model = model.initializer("b", &tensor1(bias));
                    node = node.input("b");
                }
                model = model.node(node);
            }
            Form::Dequantised | Form::Real => {
                let dequantise =
                    |names: &[&str], output: &str| Node::new("DequantizeLinear").inputs(names).output(output);
                model = model
                    .node(dequantise(&["x", "xs", "xz"], "xf").named("dx"))
                    .node(dequantise(&["w", "ws", "wz"], "wf").named("dw").int("axis", axis));
                let mut node = layer(if transposed { "ConvTranspose" } else { "Conv" }, &["xf", "wf"]);
                match bias {
                    Bias::None => {}
                    Bias::Integers(bias) => {
                        model = model.initializer("b", &tensor1(bias)).initializer("bs", &tensor1(&self.bias_scales()));
                        model = model.node(dequantise(&["b", "bs"], "bf").named("db").int("axis", 0));
                        node = node.input("bf");
                    }
                    Bias::Reals(bias) => {
                        model = model.initializer("b", &tensor1(bias));
                        node = node.input("b");
                    }
                }
                let mut from = "c";
                model = model.node(node.output(from));
                if let Some((low, high)) = limits {
                    model = model.initializer("low", &tensor0(*low)).initializer("high", &tensor0(*high));
                    let clip = match *high == f32::INFINITY {
                        true => Node::new("Relu").inputs(&[from]),
                        false => Node::new("Clip").inputs(&[from, "low", "high"]),
                    };
                    from = "r";
                    model = model.node(clip.output(from));
                }
                let last = match form {
                    Form::Real => Node::new("Identity").inputs(&[from]),
                    _ => Node::new("QuantizeLinear").inputs(&[from, "ys", "yz"]),
                };
                model = model.node(last.output("y"));
            }
            Form::Dynamic => {
                let mut shape = broadcast.clone();
                if self.w.scales.len() == 1 {
                    shape[1] = 1;
                }
                model = model
                    .initializer("ws4", &Tensor::from_shape(&shape, &self.w.scales).expect("one per channel"))
                    .node(Node::new("DynamicQuantizeLinear").inputs(&["x"]).outputs(&["q", "s", "z"]))
                    .node(layer("ConvInteger", &["q", "w", "z", "wz"]).output("i"))
                    .node(Node::new("Cast").inputs(&["i"]).int("to", 1).output("f"))
                    .node(Node::new("Mul").named("scales").inputs(&["s", "ws4"]).output("sw"))
                    .node(Node::new("Mul").named("scaled").inputs(&["f", "sw"]).output("m"));
                let last = match bias {
                    Bias::Reals(bias) => {
                        let bias = Tensor::from_shape(&broadcast, bias).expect("one per channel");
                        model = model.initializer("b", &bias);
                        Node::new("Add").inputs(&["m", "b"])
                    }
                    _ => Node::new("Identity").inputs(&["m"]),
                };
                model = model.node(last.output("y"));
            }
        }
        model.output("y").build()
    }

    /// Returns the scales of an i32 bias behind DequantizeLinear, one per output channel.
    fn bias_scales(&self) -> Vec<f32> {
        let scale = |channel| (self.x.scales[0] as f64 * self.of_channel(&self.w.scales, channel) as f64) as f32;
        (0..self.spec.out_channels).map(scale).collect()
    }

    /// Returns the results by the definition, before they are rounded to the output's type. Those of
    /// quantised types are in its steps, without the zero point.
    pub fn real(&self) -> ArrayD<f64> {
        let (x, x_scale) = match self.form {
            Form::Dynamic => {
                let data = self.x.values.to_plain_array_view::<f32>().expect("f32");
                let (low, high) = data.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
                let scale = (high - low) / 255.0;
                let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0) as i64;
                let q = data.mapv(|v| ((v / scale).round_ties_even() as i64 + zero).clamp(0, 255) - zero);
                (Tensor::from(q), scale)
            }
            _ => {
                let x = self.x.values.cast_to::<i64>().expect("integers").into_owned();
                let x = x.to_plain_array_view::<i64>().expect("i64").mapv(|v| v - self.x.zeros[0] as i64);
                (Tensor::from(x), self.x.scales[0])
            }
        };
        let w = self.w.values.cast_to::<i64>().expect("integers").into_owned();
        let mut w = w.to_plain_array_view::<i64>().expect("i64").to_owned();
        for (channel, mut weights) in w.axis_iter_mut(tract_ndarray::Axis(self.filter_axis())).enumerate() {
            weights.mapv_inplace(|v| v - self.of_channel(&self.w.zeros, channel) as i64);
        }
        let sums = oracle::answer::<i128>(&self.spec, &x, &Tensor::from(w), None, None).y;
        let mut real = ArrayD::zeros(sums.shape());
        for (at, sum) in sums.indexed_iter() {
            let c = at[1];
            let product = x_scale as f64 * self.of_channel(&self.w.scales, c) as f64;
            real[at.clone()] = match (self.form, &self.bias) {
                (Form::ConvInteger, _) => *sum as f64,
                (Form::QLinearConv, bias) => {
                    let bias = if let Bias::Integers(bias) = bias { bias[c] } else { 0 };
                    (*sum + bias as i128) as f64 * (product / self.y.0 as f64)
                }
                (_, bias) => {
                    let bias = match bias {
                        Bias::None => 0.0,
                        Bias::Integers(bias) => bias[c] as f64 * self.bias_scales()[c] as f64,
                        Bias::Reals(bias) => bias[c] as f64,
                    };
                    let value = *sum as f64 * product + bias;
                    let (low, high) = self.limits.unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
                    let value = value.max(low as f64).min(high as f64);
                    if self.form == Form::Dequantised { value / self.y.0 as f64 } else { value }
                }
            };
        }
        real
    }

    /// Compares a result with the definition.
    ///
    /// Integers are equal, but next to a tie, where the definition in f64 may round to either side. Floats
    /// are within 2e-6 of the largest.
    pub fn check(&self, found: &Tensor) -> TractResult<()> {
        let real = self.real();
        ensure!(found.shape() == real.shape(), "shape {:?} for {:?}", found.shape(), real.shape());
        let (scaled, dt) = match self.form {
            Form::ConvInteger => (false, DatumType::I32),
            Form::QLinearConv | Form::Dequantised => (true, self.y.2),
            Form::Real | Form::Dynamic => (false, DatumType::F32),
        };
        ensure!(found.datum_type() == dt, "{:?} for {dt:?}", found.datum_type());
        let largest = real.iter().fold(0f64, |most, v| most.max(v.abs()));
        let values = found.cast_to::<f64>()?;
        for ((at, real), found) in real.indexed_iter().zip(values.to_plain_array_view::<f64>()?) {
            let (low, high) = if dt == DatumType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
            let quantised = |v: f64| (v.round_ties_even() + self.y.1 as f64).clamp(low, high);
            let (expected, allowed) = match (scaled, dt) {
                (true, _) => {
                    let by_a_tie = (real.abs().fract() - 0.5).abs() < 1e-9;
                    (quantised(*real), if by_a_tie { 1.0 } else { 0.0 })
                }
                (_, DatumType::F32) => (*real, 2e-6 * largest),
                _ => (*real, 0.0),
            };
            ensure!((found - expected).abs() <= allowed, "at {at:?}: {found}, {expected} is right");
        }
        Ok(())
    }
}
