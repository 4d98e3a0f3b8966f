//! From integer sums to results: scales, bias, limits and rounding.
//!
//! Real numbers are computed in f64. The product of two scales is exact there. A sum of products
//! and its scale are rounded once each, by less than 2⁻⁵² of their size.

use crate::cache::Kept;
use crate::kernel::{
    AddedBytes, AddedIntegers, ByteKernels, ByteScales, ChannelScale, Narrowed, Narrowing, Rescaling, SumsOfBytes,
};
use crate::memory;
use crate::op::integer_sums::{IntegerSums, ZeroPointTerms};
use crate::parallel::{parallel, threads};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, DeconvSpec};
use std::fmt;
use std::hash::{Hash, Hasher};
use tract_core::internal::*;

/// The real number that a quantised one counts: positive and finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale(f32);

impl Scale {
    /// The scale of plain integers.
    pub const ONE: Scale = Scale(1.0);

    /// Creates a scale. `what` begins the message of an error.
    ///
    /// # Errors
    /// Fails for zero, a negative value, infinity or NaN.
    pub fn new(what: &str, value: f32) -> TractResult<Scale> {
        ensure!(value > 0.0 && value.is_finite(), "{what}: scale={value}, it must be positive and finite");
        Ok(Scale(value))
    }

    /// Returns its value.
    pub fn value(self) -> f32 {
        self.0
    }
}

impl Eq for Scale {}

impl Hash for Scale {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state)
    }
}

/// How a tensor of 8-bit integers stands for real numbers: `(q − zero point)·scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantisation {
    /// The scale.
    pub scale: Scale,
    zero_point: i32,
    datum_type: DatumType,
}

impl Quantisation {
    /// Creates the quantisation of a tensor of type u8 or i8. `what` begins the message of an error.
    ///
    /// # Errors
    /// Fails for another type, or for a zero point outside of it.
    pub fn new(what: &str, scale: Scale, zero_point: i32, datum_type: DatumType) -> TractResult<Quantisation> {
        let (least, most) = range_of(datum_type)
            .with_context(|| format!("{what}: datum_type={datum_type:?}, 8-bit integers are needed"))?;
        ensure!(
            (least..=most).contains(&zero_point),
            "{what}: zero_point={zero_point}, it must be within {least}..={most}"
        );
        Ok(Quantisation { scale, zero_point, datum_type })
    }

    /// Returns the zero point, a value of the type.
    pub fn zero_point(&self) -> i32 {
        self.zero_point
    }

    /// Returns the element type.
    pub fn datum_type(&self) -> DatumType {
        self.datum_type
    }

    /// Returns `saturate(round(value / scale) + zero point)`, with ties rounded to even.
    pub(super) fn quantised(&self, value: f64) -> i32 {
        let (least, most) = range_of(self.datum_type).unwrap_or_default();
        // A conversion to i32 saturates, and takes NaN to zero.
        ((value / self.scale.0 as f64).round_ties_even() as i32).saturating_add(self.zero_point).clamp(least, most)
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?} of scale {} and zero point {}", self.datum_type, self.scale.0, self.zero_point)
    }
}

/// Returns the least and the largest value of an 8-bit type.
pub(super) fn range_of(datum_type: DatumType) -> Option<(i32, i32)> {
    match datum_type {
        DatumType::U8 => Some((0, 255)),
        DatumType::I8 => Some((-128, 127)),
        _ => None,
    }
}

/// What sums become.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The sums, as i32.
    Sums,
    /// The real numbers that they stand for, as f32.
    Floats(Scaling),
    /// These numbers, quantised.
    Quantised(Scaling, Quantisation),
}

/// The real numbers that sums stand for: `limited((sum + integer bias)·factor·input + bias + added)`.
///
/// `input` is a tensor that is known at run time only, and `added` another quantised tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scaling {
    /// The scale of the data times that of the filter, in f64: one value, or one per output channel.
    factor: Arc<Tensor>,
    /// Whether a tensor of the op multiplies the factor.
    pub has_factor_input: bool,
    /// An i32 per output channel.
    integer_bias: Option<Arc<Tensor>>,
    /// An f64 per output channel.
    bias: Option<Arc<Tensor>>,
    /// The tensor that is added, an input of the op.
    pub added: Option<Quantisation>,
    limits: Limits,
}

/// The least and the largest real number. NaN passes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limits {
    low: f32,
    high: f32,
}

impl Eq for Limits {}

impl Hash for Limits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        [self.low, self.high].map(f32::to_bits).hash(state)
    }
}

impl Limits {
    const NONE: Limits = Limits { low: f32::NEG_INFINITY, high: f32::INFINITY };
}

impl Scaling {
    /// Creates the scaling by a factor, without bias and limits.
    pub fn new(factor: f64) -> Scaling {
        Scaling {
            factor: tensor1(&[factor]).into_arc_tensor(),
            has_factor_input: false,
            integer_bias: None,
            bias: None,
            added: None,
            limits: Limits::NONE,
        }
    }

    /// Creates the scaling by the scale of the data and those of the filter, of which there is one or
    /// one per output channel.
    ///
    /// # Errors
    /// There is no memory for the product.
    pub fn of_scales(data: Scale, filter: &[Scale]) -> TractResult<Scaling> {
        let products = filter.iter().map(|filter| data.0 as f64 * filter.0 as f64);
        let factor = memory::tensor_of("scale", &[filter.len()], products)?.into_arc_tensor();
        Ok(Scaling { factor, ..Scaling::new(1.0) })
    }

    /// Creates the scaling by a factor: f64, one value or one per output channel.
    ///
    /// # Errors
    /// It is not a vector of f64.
    #[cfg(feature = "nnef")]
    pub(crate) fn of_factor(factor: Arc<Tensor>) -> TractResult<Scaling> {
        let (dt, shape) = (factor.datum_type(), factor.shape());
        ensure!(
            dt == DatumType::F64 && shape.len() == 1,
            "scale: datum_type={dt:?} and shape={shape:?}, a vector of F64 is needed"
        );
        Ok(Scaling { factor, ..Scaling::new(1.0) })
    }

    /// Lets a tensor of the op multiply the factor.
    pub fn with_factor_input(self) -> Scaling {
        Scaling { has_factor_input: true, ..self }
    }

    /// Sets the bias of the sums: an i32 per output channel.
    pub fn with_integer_bias(self, bias: Arc<Tensor>) -> Scaling {
        Scaling { integer_bias: Some(bias), ..self }
    }

    /// Sets the bias of the real numbers: an f64 per output channel.
    pub fn with_bias(self, bias: Arc<Tensor>) -> Scaling {
        Scaling { bias: Some(bias), ..self }
    }

    /// Sets the least and the largest real number.
    pub fn with_limits(self, low: f32, high: f32) -> Scaling {
        Scaling { limits: Limits { low, high }, ..self }
    }

    /// Returns the factor: f64, one value or one per output channel.
    pub fn factor(&self) -> &Arc<Tensor> {
        &self.factor
    }

    /// Returns the bias of the sums, if there is one.
    pub fn integer_bias(&self) -> Option<&Arc<Tensor>> {
        self.integer_bias.as_ref()
    }

    /// Returns the bias of the real numbers, if there is one.
    pub fn bias(&self) -> Option<&Arc<Tensor>> {
        self.bias.as_ref()
    }

    /// Returns the least and the largest real number.
    pub fn limits(&self) -> (f32, f32) {
        (self.limits.low, self.limits.high)
    }

    /// Checks that the tensors fit a number of output channels, and that their values are finite.
    ///
    /// # Errors
    /// One of them does not.
    pub fn check(&self, channels: usize) -> TractResult<()> {
        let finite = |what: &str, tensor: &Tensor| -> TractResult<()> {
            let ram = tensor.try_as_plain_ram()?;
            let wrong = ram.as_slice::<f64>()?.iter().find(|value| !value.is_finite());
            ensure!(wrong.is_none(), "{what}: value={wrong:?}, it must be finite");
            Ok(())
        };
        let vector = |what: &str, tensor: &Tensor| -> TractResult<()> {
            let shape = tensor.shape();
            ensure!(
                shape == [channels],
                "{what}: shape={shape:?}, one value per output channel, {channels} of them, is needed"
            );
            Ok(())
        };
        finite("scale", &self.factor)?;
        if self.factor.shape() != [1] {
            vector("scale", &self.factor)?;
        }
        if let Some(bias) = &self.integer_bias {
            vector("bias", bias)?;
            ensure!(bias.datum_type() == DatumType::I32, "bias: datum_type={:?}, I32 is needed", bias.datum_type());
        }
        if let Some(bias) = &self.bias {
            vector("bias", bias)?;
            finite("bias", bias)?;
        }
        let Limits { low, high } = self.limits;
        ensure!(low <= high, "limits: low={low} and high={high}, low must be at most high");
        Ok(())
    }

    /// Returns the same scaling with all real numbers multiplied and increased, per output channel.
    ///
    /// Returns none where limits or an added tensor come before.
    pub(super) fn then_affine(&self, factor: &[f64], term: &[f64]) -> TractResult<Option<Scaling>> {
        let usable = factor.iter().chain(term).all(|value| value.is_finite());
        if self.limits != Limits::NONE || self.added.is_some() || !usable {
            return Ok(None);
        }
        let channels = factor.len();
        let multiplied = factor.iter().any(|factor| *factor != 1.0);
        // With a factor that is known at run time, products of it are not this op's.
        let old = values(&self.factor, channels)?;
        let products = (0..channels).map(|c| old[c] * factor[c]);
        let old_bias = match &self.bias {
            Some(bias) => values(bias, channels)?,
            None => memory::collected("bias", (0..channels).map(|_| 0.0))?,
        };
        let sums = (0..channels).map(|c| old_bias[c] * factor[c] + term[c]);
        let mut scaling = self.clone();
        if multiplied {
            scaling.factor = memory::tensor_of("scale", &[channels], products)?.into_arc_tensor();
        }
        if self.bias.is_some() || term.iter().any(|term| *term != 0.0) {
            scaling.bias = Some(memory::tensor_of("bias", &[channels], sums)?.into_arc_tensor());
        }
        Ok(Some(scaling))
    }

    /// Returns the same scaling with another quantised tensor added.
    pub(super) fn then_added(&self, added: Quantisation) -> Option<Scaling> {
        let free = self.limits == Limits::NONE && self.added.is_none();
        free.then(|| Scaling { added: Some(added), ..self.clone() })
    }

    /// Returns the same scaling with results raised to a bound, if that is a number.
    pub(super) fn at_least(&self, bound: f32) -> Option<Scaling> {
        let Limits { low, high } = self.limits;
        (!bound.is_nan()).then(|| self.clone().with_limits(low.max(bound), high.max(bound)))
    }

    /// Returns the same scaling with results lowered to a bound, if that is a number.
    pub(super) fn at_most(&self, bound: f32) -> Option<Scaling> {
        let Limits { low, high } = self.limits;
        (!bound.is_nan()).then(|| self.clone().with_limits(low.min(bound), high.min(bound)))
    }
}

impl Output {
    /// Returns the element type of the results.
    pub fn datum_type(&self) -> DatumType {
        match self {
            Output::Sums => DatumType::I32,
            Output::Floats(_) => DatumType::F32,
            Output::Quantised(_, quantisation) => quantisation.datum_type,
        }
    }

    /// Returns the scaling, unless the sums are the results.
    pub fn scaling(&self) -> Option<&Scaling> {
        match self {
            Output::Sums => None,
            Output::Floats(scaling) | Output::Quantised(scaling, _) => Some(scaling),
        }
    }

    /// Returns the quantisation of the tensor that is added, if there is one.
    pub fn added(&self) -> Option<Quantisation> {
        self.scaling().and_then(|scaling| scaling.added)
    }

    /// Returns whether a tensor of the op multiplies the factor.
    pub fn has_factor_input(&self) -> bool {
        self.scaling().is_some_and(|scaling| scaling.has_factor_input)
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Some(scaling) = self.scaling() else { return f.write_str("I32 sums") };
        match self {
            Output::Quantised(_, quantisation) => write!(f, "{quantisation}")?,
            _ => f.write_str("F32")?,
        }
        write!(f, ", {}", if scaling.factor.len() == 1 { "per tensor" } else { "per channel" })?;
        if scaling.has_factor_input {
            f.write_str(", a factor at run time")?;
        }
        if scaling.bias.is_some() || scaling.integer_bias.is_some() {
            f.write_str(", bias")?;
        }
        if let Some(added) = &scaling.added {
            write!(f, ", plus {added}")?;
        }
        if scaling.limits != Limits::NONE {
            write!(f, ", within {}..={}", scaling.limits.low, scaling.limits.high)?;
        }
        Ok(())
    }
}

/// Returns one value per channel of a tensor of one value or one per channel.
fn values(tensor: &Tensor, channels: usize) -> TractResult<Vec<f64>> {
    let ram = tensor.try_as_plain_ram()?;
    let all = ram.as_slice::<f64>()?;
    ensure!(all.len() == 1 || all.len() == channels, "values: count={}, {channels} are needed", all.len());
    memory::collected("values", (0..channels).map(|c| if all.len() == 1 { all[0] } else { all[c] }))
}

/// The tensors of one run.
pub(super) struct RunTime<'a> {
    /// The factor, if there is one at run time: f32, one value or one per output channel.
    pub factor: Option<&'a Tensor>,
    /// The tensor that is added, if there is one.
    pub added: Option<&'a Tensor>,
    /// Where scales are kept that are the same at every run.
    pub scales: Option<&'a Kept<ByteScales>>,
}

impl RunTime<'_> {
    /// Returns the scales for results of a layer that are bytes, of some pixels if these are channels last. `most`
    /// returns the largest magnitude of a channel's sums.
    fn byte_scales(
        &self,
        scaling: &Scaling,
        to: &Quantisation,
        (spec, pixels): (&DeconvSpec, usize),
        most: &dyn Fn(usize) -> f64,
    ) -> TractResult<Arc<ByteScales>> {
        let make = || scaling.byte_scales(to, spec.out_channels, self.factor, most)?.of_pixels(pixels);
        match self.scales {
            Some(kept) if self.factor.is_none() => kept.get(make),
            _ => Ok(Arc::new(make()?)),
        }
    }
}

impl Output {
    /// Returns the results of data, if they are computed without sums in memory.
    fn of_bytes(
        &self,
        sums: &IntegerSums,
        x: &Tensor,
        zero_point: i32,
        run_time: &RunTime,
    ) -> TractResult<Option<Tensor>> {
        let Output::Quantised(scaling, quantisation) = self else { return Ok(None) };
        if scaling.added.is_some() {
            return Ok(None);
        }
        let scales = |most: &dyn Fn(usize) -> f64| run_time.byte_scales(scaling, quantisation, (sums.spec(), 1), most);
        sums.bytes(x, zero_point, quantisation.datum_type, scales)
    }

    /// Returns the results of data.
    pub(super) fn of_data(
        &self,
        sums: &IntegerSums,
        x: &Tensor,
        zero_point: i32,
        run_time: &RunTime,
    ) -> TractResult<Tensor> {
        if let Some(output) = self.of_bytes(sums, x, zero_point, run_time)? {
            return Ok(output);
        }
        let kernels = ByteKernels::of(Isa::best());
        if let (Output::Quantised(scaling, quantisation), true) = (self, kernels.have_vectors()) {
            let (unfinished, terms) = sums.run_without_terms(x, zero_point, None)?;
            let of_sums = (unfinished, terms, sums.largest());
            return bytes_of(scaling, quantisation, sums.spec(), of_sums, run_time, kernels);
        }
        self.of_sums(sums.spec(), (sums.run(x, zero_point, None)?, sums.largest()), run_time)
    }

    /// Turns sums into results. `sums` are i32 in the spec's data format, of at most a magnitude.
    pub(super) fn of_sums(
        &self,
        spec: &DeconvSpec,
        (sums, most): (Tensor, i32),
        run_time: &RunTime,
    ) -> TractResult<Tensor> {
        match self {
            Output::Sums => Ok(sums),
            Output::Floats(scaling) => {
                let Limits { low, high } = scaling.limits;
                let narrowing = Narrowing { limits: (low as f64, high as f64), zero_point: 0 };
                of_type::<f32>(scaling, 1.0, spec, sums, run_time, narrowing)
            }
            Output::Quantised(scaling, quantisation) => {
                let narrowing = scaling.narrowing(quantisation);
                let scale = quantisation.scale.0 as f64;
                let kernels = ByteKernels::of(Isa::best());
                if kernels.have_vectors() {
                    return bytes_of(scaling, quantisation, spec, (sums, None, most), run_time, kernels);
                }
                match quantisation.datum_type {
                    DatumType::U8 => of_type::<u8>(scaling, scale, spec, sums, run_time, narrowing),
                    _ => of_type::<i8>(scaling, scale, spec, sums, run_time, narrowing),
                }
            }
        }
    }
}

/// Sums per task of a rescaling, at least.
const SUMS_AT_ONCE: usize = 16 << 10;

/// The estimated cost of rescaling a sum, in vector multiply-adds.
const RESCALED: u64 = 2;

/// The number of vectors of a pixel from which on its last one, which may not be full, takes little of its time.
const LARGE_PIXEL: usize = 8;

/// Returns how many pixels of `channels` results are whole vectors of `results`, which is a power of two. It is one if
/// a pixel is large.
fn pixels_at_once(channels: usize, results: usize) -> usize {
    let shared = 1 << channels.trailing_zeros().min(results.trailing_zeros());
    if channels < LARGE_PIXEL * results { results / shared } else { 1 }
}

/// Returns how a tensor is read whose shape is that of sums, and the tensor, if one is added.
fn added_to<'a>(
    scaling: &Scaling,
    sums: &Tensor,
    run_time: &RunTime<'a>,
) -> TractResult<Option<(Quantisation, &'a Tensor)>> {
    match (scaling.added, run_time.added) {
        (None, _) => Ok(None),
        (Some(_), None) => bail!("inputs: the tensor that is added is missing"),
        (Some(quantisation), Some(tensor)) => {
            let (dt, shape) = (tensor.datum_type(), tensor.shape());
            ensure!(dt == quantisation.datum_type, "added: datum_type={dt:?}, {quantisation} is needed");
            ensure!(shape == sums.shape(), "added: shape={shape:?}, the output's is {:?}", sums.shape());
            Ok(Some((quantisation, tensor)))
        }
    }
}

/// Makes bytes of sums in registers.
fn bytes_of(
    scaling: &Scaling,
    quantisation: &Quantisation,
    spec: &DeconvSpec,
    (mut sums, terms, most): (Tensor, Option<ZeroPointTerms>, i32),
    run_time: &RunTime,
    kernels: ByteKernels,
) -> TractResult<Tensor> {
    let count = spec.out_channels;
    let pixels = match spec.data_format {
        DataFormat::Ncx => 1,
        DataFormat::Nxc => pixels_at_once(count, kernels.results),
    };
    let scales = run_time.byte_scales(scaling, quantisation, (spec, pixels), &|_| most.into())?;
    let added = added_to(scaling, &sums, run_time)?;
    let added = added.map(|(_, tensor)| Ok::<_, TractError>(tensor.try_as_plain_ram()?.as_bytes())).transpose()?;
    let run: usize = match spec.data_format {
        DataFormat::Ncx => sums.shape()[2..].iter().product(),
        DataFormat::Nxc => 1,
    };
    #[expect(unsafe_code, reason = "each result is written once, not cleared before")]
    // SAFETY: the type is a number type. The tasks cover all bytes, and write each or fail. On failure the
    // tensor is dropped.
    let mut output = unsafe { memory::output_tensor("output size", quantisation.datum_type, sums.shape())? };
    let mut view = output.try_as_plain_ram_mut()?;
    let to = view.as_bytes_mut();
    let mut ram = sums.try_as_plain_ram_mut()?;
    let from = ram.as_slice_mut::<i32>()?;
    // Whole runs of a channel, or whole pixels, or whole rows of them.
    let whole = if run == 1 { count * pixels } else { run };
    let unit = terms.as_ref().map_or(whole, ZeroPointTerms::unit);
    in_parts(from, unit, to, |first, from, to| {
        for (at, (from, to)) in from.chunks_mut(unit).zip(to.chunks_mut(unit)).enumerate() {
            if let Some(terms) = &terms {
                terms.add(first / unit + at, from)?;
            }
            let first = first + at * unit;
            for (at, (sums, to)) in from.chunks(whole).zip(to.chunks_mut(whole)).enumerate() {
                let part = first + at * whole..first + at * whole + to.len();
                let sums = SumsOfBytes { sums, added: added.map(|added| &added[part]), scales: &scales };
                match run {
                    1 => kernels.rescale_pixel(sums, 0, to),
                    _ => kernels.rescale(sums, (first / run + at) % count, to),
                }
            }
        }
        Ok(())
    })?;
    Ok(output)
}

/// The index of a part, its sums and its results.
type Part<'a, T> = (usize, (&'a mut [i32], &'a mut [T]));

/// Calls `each` with parts of sums and of results, in whole runs, and the index of their first sum.
fn in_parts<T: Send>(
    sums: &mut [i32],
    whole: usize,
    to: &mut [T],
    each: impl Fn(usize, &mut [i32], &mut [T]) -> TractResult<()> + Sync + Send,
) -> TractResult<()> {
    ensure!(sums.len() == to.len(), "sums: count={}, {} are needed", sums.len(), to.len());
    if to.is_empty() {
        return Ok(());
    }
    let cost = (to.len() as u64 / 16).saturating_mul(RESCALED);
    let per_thread = to.len().div_ceil(threads(cost)).max(SUMS_AT_ONCE).next_multiple_of(whole.max(1));
    let parts = sums.chunks_mut(per_thread).zip(to.chunks_mut(per_thread));
    let mut tasks: Vec<Part<T>> = parts.enumerate().collect();
    parallel(&mut tasks, cost, &|(task, (sums, to))| each(*task * per_thread, sums, to))
}

fn of_type<T: Datum + Copy + Default + Narrowed>(
    scaling: &Scaling,
    scale: f64,
    spec: &DeconvSpec,
    mut sums: Tensor,
    run_time: &RunTime,
    narrowing: Narrowing,
) -> TractResult<Tensor> {
    let channels = scaling.channels(scale, spec.out_channels, run_time.factor)?;
    #[expect(unsafe_code, reason = "each result is written once, not cleared before")]
    // SAFETY: the type is a number type. `scaled` writes all elements or fails, and on failure the
    // tensor is dropped.
    let mut output = unsafe { memory::output_tensor("output size", T::datum_type(), sums.shape())? };
    let mut view = output.try_as_plain_ram_mut()?;
    let to = view.as_slice_mut::<T>()?;
    let run = match spec.data_format {
        DataFormat::Ncx => sums.shape()[2..].iter().product(),
        DataFormat::Nxc => 1,
    };
    let added = added_to(scaling, &sums, run_time)?;
    let mut ram = sums.try_as_plain_ram_mut()?;
    let from = ram.as_slice_mut::<i32>()?;
    let by = added.map_or(0.0, |(quantisation, _)| quantisation.scale.0 as f64 / scale);
    let channels = Rescaling::new(channels, by)?;
    match added {
        None => scaled::<T, u8>(&channels, run, from, None, narrowing, to)?,
        Some((quantisation, tensor)) => {
            let (zero_point, factor) = (quantisation.zero_point, by);
            let ram = tensor.try_as_plain_ram()?;
            if quantisation.datum_type == DatumType::U8 {
                let added = AddedIntegers { values: ram.as_slice::<u8>()?, zero_point, factor };
                scaled(&channels, run, from, Some(added), narrowing, to)?;
            } else {
                let added = AddedIntegers { values: ram.as_slice::<i8>()?, zero_point, factor };
                scaled(&channels, run, from, Some(added), narrowing, to)?;
            }
        }
    }
    Ok(output)
}

/// Scales runs of `run` sums of one channel each, or the channels of pixels if `run` is one.
fn scaled<T: Narrowed + Send, A: Copy + Into<i32> + Sync>(
    channels: &Rescaling,
    run: usize,
    from: &mut [i32],
    added: Option<AddedIntegers<A>>,
    narrowing: Narrowing,
    to: &mut [T],
) -> TractResult<()> {
    // Whole runs, or whole pixels.
    let whole = if run == 1 { channels.channels() } else { run };
    in_parts(from, whole, to, |first, sums, to| {
        let added = added.map(|added| AddedIntegers { values: &added.values[first..first + to.len()], ..added });
        channels.run((run, first / run), sums, added, narrowing, to);
        Ok(())
    })
}

impl Scaling {
    /// Returns the limits of results that are quantised.
    fn narrowing(&self, quantisation: &Quantisation) -> Narrowing {
        let [low, high] = [self.limits.low, self.limits.high].map(|limit| quantisation.quantised(limit as f64));
        let zero_point = quantisation.zero_point;
        Narrowing { limits: ((low - zero_point) as f64, (high - zero_point) as f64), zero_point }
    }

    /// Returns the scales of channels for results that are quantised. `most` returns the largest magnitude
    /// of a channel's sums.
    pub(super) fn byte_scales(
        &self,
        to: &Quantisation,
        count: usize,
        at_run_time: Option<&Tensor>,
        most: &dyn Fn(usize) -> f64,
    ) -> TractResult<ByteScales> {
        let scale = to.scale.0 as f64;
        let channels = self.channels(scale, count, at_run_time)?;
        let flip_of = |quantisation: &Quantisation| if quantisation.datum_type == DatumType::I8 { 0x80 } else { 0 };
        let added = self.added.map(|added| {
            let flip = flip_of(&added);
            let zero_point = added.zero_point + i32::from(flip);
            AddedBytes { factor: added.scale.0 as f64 / scale, zero_point, flip }
        });
        ByteScales::new(channels, self.narrowing(to), flip_of(to) != 0, added, most)
    }

    /// Returns the steps of each channel that give real numbers divided by `scale`.
    fn channels(&self, scale: f64, count: usize, at_run_time: Option<&Tensor>) -> TractResult<Vec<ChannelScale>> {
        let factors = values(&self.factor, count)?;
        let mut channels: Vec<ChannelScale> = memory::collected(
            "channels",
            factors.iter().map(|factor| ChannelScale { before: 0.0, factor: factor / scale, term: 0.0 }),
        )?;
        if let Some(bias) = &self.integer_bias {
            let ram = bias.try_as_plain_ram()?;
            let bias = ram.as_slice::<i32>()?;
            ensure!(bias.len() == count, "bias: length={}, {count} values are needed", bias.len());
            channels.iter_mut().zip(bias).for_each(|(channel, bias)| channel.before = *bias as f64);
        }
        if let Some(bias) = &self.bias {
            let ram = bias.try_as_plain_ram()?;
            let bias = ram.as_slice::<f64>()?;
            ensure!(bias.len() == count, "bias: length={}, {count} values are needed", bias.len());
            channels.iter_mut().zip(bias).for_each(|(channel, bias)| channel.term = bias / scale);
        }
        match (self.has_factor_input, at_run_time) {
            (false, _) => {}
            (true, None) => bail!("inputs: the factor is missing"),
            (true, Some(tensor)) => {
                let ram = tensor.try_as_plain_ram()?;
                let all = ram.as_slice::<f32>()?;
                ensure!(
                    all.len() == 1 || all.len() == count,
                    "scale: shape={:?}, one value or one per output channel, {count}, is needed",
                    tensor.shape()
                );
                // The scale of data that are all zero is zero.
                let wrong = all.iter().find(|scale| !(**scale >= 0.0 && scale.is_finite()));
                ensure!(wrong.is_none(), "scale: scale={wrong:?}, it must be finite and not negative");
                for (c, channel) in channels.iter_mut().enumerate() {
                    channel.factor *= if all.len() == 1 { all[0] } else { all[c] } as f64;
                }
            }
        }
        Ok(channels)
    }
}
