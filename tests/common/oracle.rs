//! The definition of a convolution, computed plainly in float64 or in exact integers. It shares no
//! code with the crate.
//!
//! A transposed convolution is
//! `y[n, g·Co+co, i·s + k·d - p] += x[n, g·Ci+ci, i] · w[g, ci, co, k]`, where positions outside
//! the output are dropped. The bias is added last. A forward convolution exchanges input and output
//! in the index.

use tract_core::internal::tract_ndarray::{ArrayD, Dimension, indices};
use tract_core::internal::*;
use tract_deconv::Precision;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding, Side};

/// The type of sums: `f64`, or `i128` modulo 2¹²⁸, which holds every 64-bit result modulo 2⁶⁴.
pub trait Scalar: Copy + Default {
    fn plus_product(self, a: Self, b: Self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn size(self) -> f64;
}

impl Scalar for f64 {
    fn plus_product(self, a: f64, b: f64) -> f64 {
        self + a * b
    }
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn size(self) -> f64 {
        self.abs()
    }
}

impl Scalar for i128 {
    fn plus_product(self, a: i128, b: i128) -> i128 {
        self.wrapping_add(a.wrapping_mul(b))
    }
    fn plus(self, other: i128) -> i128 {
        self.wrapping_add(other)
    }
    fn size(self) -> f64 {
        self.unsigned_abs() as f64
    }
}

/// One spatial axis with all sizes resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub stride: usize,
    pub dilation: usize,
    pub pad_begin: i64,
    pub output: usize,
}

/// The result, with the quantities that bound its rounding errors.
pub struct Answer<S> {
    pub y: ArrayD<S>,
    /// The sum of the absolute values that were added, per element of `y`.
    pub magnitude: ArrayD<f64>,
    /// The maximum number of products that were added into one element.
    pub terms: usize,
}

/// Computes a convolution. `x` is `[N, G·Ci, X..]`, `w` is `[G, Ci, Co, K..]`, the result
/// `[N, G·Co, out..]`.
pub fn convolve<S: Scalar>(
    direction: Direction,
    x: &ArrayD<S>,
    w: &ArrayD<S>,
    bias: Option<&[S]>,
    rules: &[Rule],
) -> Answer<S> {
    let (group, ci, co) = (w.shape()[0], w.shape()[1], w.shape()[2]);
    let (batch, input, kernel) = (x.shape()[0], &x.shape()[2..], &w.shape()[3..]);
    assert_eq!(x.shape()[1], group * ci, "input channels");
    let output: Vec<usize> = rules.iter().map(|r| r.output).collect();
    let (in_positions, out_positions) = (input.iter().product::<usize>(), output.iter().product::<usize>());
    let taps: usize = kernel.iter().product();
    let (x, w) = (x.as_standard_layout(), w.as_standard_layout());
    let (x, w) = (x.as_slice().expect("contiguous"), w.as_slice().expect("contiguous"));
    let mut y = vec![S::default(); batch * group * co * out_positions];
    let mut magnitude = vec![0f64; y.len()];
    let mut met = vec![0usize; out_positions];

    let (walked, reached) = match direction {
        Direction::Transposed => (input, &*output),
        Direction::Forward => (&*output, input),
    };
    for (from, at) in indices(walked).into_iter().enumerate() {
        let at = at.slice().to_vec();
        for (tap, k) in indices(kernel).into_iter().enumerate() {
            let k = k.slice().to_vec();
            let mut to = Some(0usize);
            for (ax, rule) in rules.iter().enumerate() {
                let position = (at[ax] * rule.stride + k[ax] * rule.dilation) as i64 - rule.pad_begin;
                let inside = (0..reached[ax] as i64).contains(&position);
                to = to.filter(|_| inside).map(|to| to * reached[ax] + position as usize);
            }
            let Some(to) = to else { continue };
            let (i, o) = match direction {
                Direction::Transposed => (from, to),
                Direction::Forward => (to, from),
            };
            met[o] += 1;
            for (n, g) in (0..batch).flat_map(|n| (0..group).map(move |g| (n, g))) {
                for (ci_, co_) in (0..ci).flat_map(|a| (0..co).map(move |b| (a, b))) {
                    let xv = x[((n * group + g) * ci + ci_) * in_positions + i];
                    let wv = w[((g * ci + ci_) * co + co_) * taps + tap];
                    let slot = ((n * group + g) * co + co_) * out_positions + o;
                    y[slot] = y[slot].plus_product(xv, wv);
                    magnitude[slot] += xv.size() * wv.size();
                }
            }
        }
    }
    if let Some(bias) = bias {
        assert_eq!(bias.len(), group * co, "bias");
        for (slot, value) in y.iter_mut().enumerate() {
            let b = bias[slot / out_positions % bias.len()];
            *value = value.plus(b);
            magnitude[slot] += b.size();
        }
    }
    let shape: Vec<usize> = [batch, group * co].into_iter().chain(output).collect();
    Answer {
        y: ArrayD::from_shape_vec(&*shape, y).expect("as many as the shape holds"),
        magnitude: ArrayD::from_shape_vec(&*shape, magnitude).expect("as many as the shape holds"),
        terms: ci * met.into_iter().max().unwrap_or(0),
    }
}

/// Resolves the axes of a spec for an input of these spatial sizes, by the decision table.
pub fn rules(spec: &DeconvSpec, input: &[usize], requested: Option<&[i64]>) -> Vec<Rule> {
    let halves = |total: i64, extra: &Side| match extra {
        Side::Begin => (total - total / 2, total / 2),
        Side::End => (total / 2, total - total / 2),
    };
    (0..input.len())
        .map(|ax| {
            let (x, s, d) = (input[ax] as i64, spec.strides[ax] as i64, spec.dilations[ax] as i64);
            let eff = (spec.kernel[ax] as i64 - 1) * d + 1;
            let full = s * (x - 1) + eff + spec.output_padding[ax] as i64;
            let (output, pad_begin) = match (&spec.padding, spec.direction) {
                (Padding::Explicit { begin, end }, Direction::Transposed) => (full - begin[ax] - end[ax], begin[ax]),
                (Padding::Explicit { begin, end }, Direction::Forward) => {
                    ((x + begin[ax] + end[ax] - eff) / s + 1, begin[ax])
                }
                (Padding::SameForward { extra }, _) => {
                    let output = (x + s - 1) / s;
                    (output, halves(((output - 1) * s + eff - x).max(0), extra).0)
                }
                (Padding::OutputShape { shape, extra }, _) => {
                    let output = requested.map_or_else(|| shape.dims()[ax].to_i64().expect("a number"), |r| r[ax]);
                    (output, halves((full - output).max(0), extra).0)
                }
            };
            Rule { stride: s as usize, dilation: d as usize, pad_begin, output: output as usize }
        })
        .collect()
}

/// Conversion of tensors to `f64` (exact for floats up to 64 bits) or `i128` (exact for every
/// integer).
pub trait FromTensor: Scalar {
    fn from_tensor(tensor: &Tensor) -> ArrayD<Self>;
}

impl FromTensor for f64 {
    fn from_tensor(tensor: &Tensor) -> ArrayD<f64> {
        let tensor = tensor.cast_to::<f64>().expect("a number type");
        tensor.to_plain_array_view::<f64>().expect("f64").to_owned()
    }
}

impl FromTensor for i128 {
    fn from_tensor(tensor: &Tensor) -> ArrayD<i128> {
        if tensor.datum_type() == DatumType::U64 {
            return tensor.to_plain_array_view::<u64>().expect("u64").mapv(|v| v as i128);
        }
        let tensor = tensor.cast_to::<i64>().expect("an integer type");
        tensor.to_plain_array_view::<i64>().expect("i64").mapv(|v| v as i128)
    }
}

/// Computes a spec's result, in the spec's data format.
pub fn answer<S: FromTensor>(
    spec: &DeconvSpec,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    requested: Option<&[i64]>,
) -> Answer<S> {
    let x = match spec.data_format {
        DataFormat::Ncx => S::from_tensor(x),
        DataFormat::Nxc => channels_second(S::from_tensor(x)),
    };
    let w = grouped_filter(spec.filter_format, spec.group, S::from_tensor(w));
    let bias = bias.map(|b| S::from_tensor(b).into_iter().collect::<Vec<S>>());
    let rules = rules(spec, &x.shape()[2..], requested);
    let answer = convolve(spec.direction, &x, &w, bias.as_deref(), &rules);
    match spec.data_format {
        DataFormat::Ncx => answer,
        DataFormat::Nxc => {
            Answer { y: channels_last(answer.y), magnitude: channels_last(answer.magnitude), terms: answer.terms }
        }
    }
}

/// Converts `[N, X.., C]` to `[N, C, X..]`.
pub fn channels_second<S: Clone>(tensor: ArrayD<S>) -> ArrayD<S> {
    let rank = tensor.ndim();
    let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    tensor.permuted_axes(order).as_standard_layout().into_owned()
}

/// Converts `[N, C, X..]` to `[N, X.., C]`.
pub fn channels_last<S: Clone>(tensor: ArrayD<S>) -> ArrayD<S> {
    let order: Vec<usize> = [0].into_iter().chain(2..tensor.ndim()).chain([1]).collect();
    tensor.permuted_axes(order).as_standard_layout().into_owned()
}

/// Converts a filter of any format to `[G, Ci, Co, K..]`, with channels numbered within the group.
pub fn grouped_filter<S: Clone>(format: FilterFormat, group: usize, filter: ArrayD<S>) -> ArrayD<S> {
    let spatial = filter.ndim() - 2;
    let kernel_last: Vec<usize> = match format {
        FilterFormat::Iox | FilterFormat::Oix | FilterFormat::GroupedOix => (0..spatial + 2).collect(),
        FilterFormat::Xio | FilterFormat::Xoi => [spatial, spatial + 1].into_iter().chain(0..spatial).collect(),
    };
    let mut filter = filter.permuted_axes(kernel_last);
    if matches!(format, FilterFormat::Oix | FilterFormat::Xoi) {
        filter.swap_axes(0, 1);
    }
    let mut shape = filter.shape().to_vec();
    shape[0] /= group;
    shape.insert(0, group);
    let mut filter = filter.as_standard_layout().into_owned().into_shape_with_order(shape).expect("same length");
    if format == FilterFormat::GroupedOix {
        filter.swap_axes(1, 2);
    }
    filter.as_standard_layout().into_owned()
}

/// Returns the largest error that a correct result may have. These tests have no other tolerance.
///
/// Consider a sum of `terms` products, whose absolute values add up to `magnitude`, in any order
/// with unit roundoff `u`. Its error is at most `terms·u·magnitude`. Rounding errors behave like
/// random ones, so in practice `2·(1 + √terms)·u·magnitude` is never exceeded. It grows with the
/// length of the sum as the errors do. Storing the result in `dt` rounds once more. Half floats are
/// summed in f32. The float64 oracle errs as much as float64 results do, so their share is doubled.
pub fn tolerance(dt: DatumType, terms: usize, magnitude: f64, truth: f64) -> f64 {
    tolerance_in(Precision::Exact, dt, terms, magnitude, truth)
}

/// As [`tolerance`], for operands that are rounded.
///
/// Each of the two operands of a product is off by `u` of it at most, where `u` is `2^-8` for bf16 and
/// `2^-11` for f16. All products may be off in the same direction. In f16, operands below `2^-14` are
/// off by up to `2^-25` whatever their size; the other operand of these tests is at most one. On tile
/// registers, f16 leaves out the product of two low limbs, up to `2^-16` of the product.
pub fn tolerance_in(precision: Precision, dt: DatumType, terms: usize, magnitude: f64, truth: f64) -> f64 {
    let both = |unit: f64| 2.0 * unit + unit * unit;
    let rounded = match precision {
        Precision::Bf16 => both(2f64.powi(-8)) * magnitude,
        Precision::F16 => (both(2f64.powi(-11)) + 2f64.powi(-16)) * magnitude + terms as f64 * 2f64.powi(-24),
        _ => 0.0,
    };
    let magnitude = magnitude + rounded;
    let (sum, store, tiny) = match dt {
        DatumType::F16 => (2f64.powi(-24), 2f64.powi(-11), 2f64.powi(-25)),
        DatumType::F32 => (2f64.powi(-24), 0.0, f32::MIN_POSITIVE as f64),
        DatumType::F64 => (2f64.powi(-52), 0.0, f64::MIN_POSITIVE),
        _ => return 0.0,
    };
    let summed = 2.0 * (1.0 + (terms as f64).sqrt()) * sum * magnitude;
    let summed = summed + rounded;
    summed + store * (truth.abs() + summed) + tiny
}

/// The oracle's result for operands of one element type.
pub struct Expected {
    dt: DatumType,
    answer: Kind,
    /// How large the products of a result can be together that reads any values of the input, about.
    unread: f64,
}

enum Kind {
    Float(Answer<f64>),
    Integer(Answer<i128>),
}

impl Expected {
    pub fn new(
        spec: &DeconvSpec,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        requested: Option<&[i64]>,
    ) -> Expected {
        let dt = x.datum_type();
        let answer = if dt.is_float() {
            Kind::Float(answer(spec, x, w, bias, requested))
        } else {
            Kind::Integer(answer(spec, x, w, bias, requested))
        };
        Expected { dt, answer, unread: 0.0 }
    }

    /// Wraps a float64 result, to be compared with results of type `dt`.
    pub fn floats(dt: DatumType, answer: Answer<f64>) -> Expected {
        Expected { dt, answer: Kind::Float(answer), unread: 0.0 }
    }

    /// Tells the operands, for [`Expected::check_by_largest`]. Each result has `products` of them.
    pub fn of_operands(self, x: &Tensor, w: &Tensor, products: usize) -> Expected {
        let floats = |tensor: &Tensor| f64::from_tensor(tensor).into_iter();
        let largest = |tensor: &Tensor| floats(tensor).fold(0.0, |most: f64, value| most.max(value.abs()));
        // Numbers at random are, on average, smaller than the largest.
        Expected { unread: largest(x) * largest(w) * products as f64 / 16.0, ..self }
    }

    pub fn shape(&self) -> &[usize] {
        match &self.answer {
            Kind::Float(answer) => answer.y.shape(),
            Kind::Integer(answer) => answer.y.shape(),
        }
    }

    /// Compares element by element: floats within [`tolerance`], integers exactly (modulo their
    /// width).
    pub fn check(&self, got: &Tensor) -> Result<(), String> {
        self.check_with(got, Precision::Exact, false)
    }

    /// As [`Expected::check`], within [`tolerance_in`].
    pub fn check_in(&self, precision: Precision, got: &Tensor) -> Result<(), String> {
        self.check_with(got, precision, false)
    }

    /// As [`Expected::check`], but each error may be that of the result with the largest products, or
    /// of such a result of values that none reads: a tile reads them too.
    pub fn check_by_largest(&self, got: &Tensor) -> Result<(), String> {
        self.check_with(got, Precision::Exact, true)
    }

    fn check_with(&self, got: &Tensor, precision: Precision, by_largest: bool) -> Result<(), String> {
        if got.datum_type() != self.dt {
            return Err(format!("element type {:?}, {:?} was expected", got.datum_type(), self.dt));
        }
        if got.shape() != self.shape() {
            return Err(format!("shape {:?}, {:?} was expected", got.shape(), self.shape()));
        }
        match &self.answer {
            Kind::Float(want) => {
                let got = f64::from_tensor(got);
                let least = if by_largest { want.magnitude.iter().copied().fold(self.unread, f64::max) } else { 0.0 };
                for ((at, y), (got, magnitude)) in want.y.indexed_iter().zip(got.iter().zip(&want.magnitude)) {
                    let allowed = tolerance_in(precision, self.dt, want.terms, magnitude.max(least), *y);
                    if (got - y).abs() > allowed || got.is_nan() {
                        return Err(format!("at {:?}: {got} for {y}, {allowed:e} is allowed", at.slice()));
                    }
                }
            }
            Kind::Integer(want) => {
                let got = i128::from_tensor(got);
                for ((at, y), got) in want.y.indexed_iter().zip(&got) {
                    let y = wrap(self.dt, *y);
                    if *got != y {
                        return Err(format!("at {:?}: {got} for {y}", at.slice()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns an exact integer as the element type stores it, modulo its width.
fn wrap(dt: DatumType, value: i128) -> i128 {
    match dt {
        DatumType::I8 => value as i8 as i128,
        DatumType::U8 => value as u8 as i128,
        DatumType::I16 => value as i16 as i128,
        DatumType::U16 => value as u16 as i128,
        DatumType::I32 => value as i32 as i128,
        DatumType::U32 => value as u32 as i128,
        DatumType::I64 => value as i64 as i128,
        DatumType::U64 => value as u64 as i128,
        other => panic!("{other:?} is no integer type"),
    }
}
