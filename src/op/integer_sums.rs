//! The integer sums of a convolution of 8-bit integers, before any scale.
//!
//! They run as a layer of elements that hold several integers each: see
//! [`grouped`](crate::layout::grouped).
//! - *Pairs* hold `x − zero point` and the weights in 16 bits.
//! - *Quads* hold `x` as `u8` and the weights as `i8`, on CPUs that multiply these, where all weights
//!   fit. `i8` become `u8` by adding 128 to data and zero point. Such a sum is
//!   `Σ x·w − zero point · Σ w`. The second term is the same for all positions of a phase if all taps
//!   read inside the input. So where the zero point is not zero, the input gets a border of it.

use super::shared;
use crate::algorithm::depthwise_bytes::{ByteData, ByteFilter, DepthwiseBytes};
use crate::cache::{Kept, PackedFilters, PlainFilter, PlanCache};
use crate::compute::{Grouped, Pair, QUANTISED, Quad};
use crate::kernel::{ByteKernels, ByteScales, Bytes};
use crate::layout::filter::PackedFilter;
use crate::layout::grouped::{GroupedLayer, Terms};
use crate::memory;
use crate::parallel::{parallel, threads};
use crate::plan::PlanOptions;
use crate::ranges::unflatten;
use crate::simd::isa::Isa;
use crate::spec::{Axis, DataFormat, DeconvSpec, Direction, Problem};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// The largest difference of two 8-bit integers of one type.
const MAX_DIFFERENCE: u64 = 255;

/// Columns whose terms are added together.
const TERMS: usize = 64;

/// Sums to which terms are added in the time of a vector multiply-add.
const SUMS_PER_COST: usize = 8;

/// Tasks per thread.
const TASKS: usize = 4;

/// The most phases whose sums of weights are kept.
const MOST_PHASES: usize = 64;

/// The sums `Σ (x − zero point)·w` of a convolution, exact in `i32`. Padding contributes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IntegerSums {
    spec: DeconvSpec,
    options: PlanOptions,
    /// The weights, as `i8` if all fit, else as `i16`. Once they are packed, they are only there.
    filter: PlainFilter,
    /// Whether all weights fit `i8`.
    fits: bool,
    /// The largest magnitude that a sum may have.
    largest: i32,
    /// `Σ w` per phase of a filter's taps and per output channel. None if there are many phases for the taps.
    totals: Option<Arc<Vec<i32>>>,
    plans: PlanCache,
    packed: PackedFilters,
    /// The filter for kernels from bytes to bytes.
    bytes: Kept<ByteFilter>,
}

/// Returns options that force elements of two or of four integers, for tests. None if there are no
/// such elements, or if this CPU lacks their kernels for the instruction set of the options.
#[doc(hidden)]
pub fn with_elements_of(integers: usize, options: PlanOptions) -> Option<PlanOptions> {
    let grouped = [Grouped::Pairs, Grouped::Quads].into_iter().find(|grouped| grouped.count() == integers)?;
    let isa = options.isa.unwrap_or_else(Isa::best);
    grouped.is_available(isa).then(|| options.with_grouped(grouped))
}

/// How the sums of an input are computed.
struct Form {
    grouped: Grouped,
    layer: GroupedLayer,
    options: PlanOptions,
    /// How the integers of the input become those of elements.
    bytes: Bytes,
    /// The byte of the input that stands for padding.
    outside: u8,
    /// The zero point that is still in the elements.
    zero_point: i32,
}

impl IntegerSums {
    /// Creates the sums of a filter: `i16`, the weights less their zero points (−255 to 255), in the
    /// spec's filter format.
    ///
    /// # Errors
    /// A spec that is not valid, a filter of another shape or type, a weight outside the range, or a
    /// sum that could leave `i32`.
    pub fn new(spec: &DeconvSpec, filter: &Tensor, options: &PlanOptions) -> TractResult<IntegerSums> {
        ensure!(QUANTISED, "sums: this build lacks the Cargo feature quantised");
        spec.validate()?;
        ensure!(
            *filter.shape() == *spec.filter_shape(),
            "filter: shape={:?}, the spec needs {:?}",
            filter.shape(),
            spec.filter_shape()
        );
        let ram = filter.try_as_plain_ram()?;
        let weights = ram.as_slice::<i16>()?;
        let largest = weights.iter().map(|weight| weight.unsigned_abs()).max().unwrap_or(0) as u64;
        ensure!(largest <= MAX_DIFFERENCE, "filter: weight={largest}, it must be within -255..=255");
        let terms = spec.kernel.iter().fold(spec.group_in() as u64, |terms, size| terms.saturating_mul(*size as u64));
        let sum = terms.saturating_mul(largest).saturating_mul(MAX_DIFFERENCE);
        ensure!(sum <= i32::MAX as u64, "sums: terms={terms} of weights up to {largest}, sums could leave 32 bits");
        let fits = weights.iter().all(|weight| i8::try_from(*weight).is_ok());
        let kept = match fits {
            true => memory::mapped_tensor("filter", filter, |weight: i16| weight as i8)?,
            false => memory::mapped_tensor("filter", filter, |weight: i16| weight)?,
        };
        Ok(IntegerSums {
            spec: spec.clone(),
            options: options.clone(),
            filter: PlainFilter::new(kept),
            largest: sum as i32,
            fits,
            totals: totals(spec, weights)?.map(Arc::new),
            plans: PlanCache::default(),
            packed: PackedFilters::default(),
            bytes: Kept::default(),
        })
    }

    /// Returns the spec of the convolution.
    pub fn spec(&self) -> &DeconvSpec {
        &self.spec
    }

    /// Returns the options of its plans.
    pub(crate) fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// Returns the largest magnitude that a sum may have.
    pub(crate) fn largest(&self) -> i32 {
        self.largest
    }

    /// Decides how to compute the sums of an input.
    fn form(&self, problem: &Problem, datum_type: DatumType, zero_point: i32) -> TractResult<Form> {
        let flip = flip_of(datum_type)?;
        let outside = zero_point as u8;
        let in_elements = outside ^ flip;
        let isa = self.isa()?;
        let forced = self.options.grouped;
        let form = |grouped: Grouped, layer: GroupedLayer, zero_point: u8, subtracted: u8| {
            let isa = match grouped.is_available(isa) || self.options.machine.is_some() {
                true => self.options.isa,
                // AVX-512 without VNNI.
                false => Some(Isa::Avx2),
            };
            let options = self.options.clone().with_grouped(grouped).with_isa(isa);
            let bytes = Bytes { flip, zero_point: subtracted.into() };
            Form { grouped, layer, options, bytes, outside, zero_point: zero_point.into() }
        };
        let quads = match forced {
            None => Grouped::Quads.pays(isa),
            Some(forced) => forced == Grouped::Quads && Grouped::Quads.is_available(isa),
        };
        if quads && self.fits && (in_elements == 0 || self.totals.is_some()) {
            let positions = |shape: &[usize]| {
                let x = self.spec.data_format.x_axis();
                shape[x..x + self.spec.rank()].iter().fold(1, |all: usize, size| all.saturating_mul(*size))
            };
            // A border that is much larger than the input takes more time than it saves.
            let most = positions(&problem.input_shape()).saturating_mul(4).saturating_add(64);
            let layer = self.layer(problem, Grouped::Quads, in_elements != 0);
            if let Some(layer) = layer.filter(|layer| in_elements == 0 || positions(&layer.input) <= most) {
                return Ok(form(Grouped::Quads, layer, in_elements, 0));
            }
        }
        let layer = self.layer(problem, Grouped::Pairs, false).context("input: its elements are too many")?;
        Ok(form(Grouped::Pairs, layer, 0, in_elements))
    }

    /// The layer of elements, in which taps share elements if possible.
    fn layer(&self, problem: &Problem, grouped: Grouped, bordered: bool) -> Option<GroupedLayer> {
        let terms = [Terms::new(&self.spec, grouped), Terms::of_channels(grouped)];
        terms.into_iter().find_map(|terms| GroupedLayer::new(&self.spec, problem, terms, bordered))
    }

    /// Returns the sums for `x`: `u8` or `i8`, in the spec's data format.
    ///
    /// `zero_point` is a value of `x`'s type. `requested` is the run-time output shape, if the spec
    /// has one. The result is `i32`, in the spec's data format.
    ///
    /// # Errors
    /// `x` does not fit the spec, or there is no memory for the result.
    pub fn run(&self, x: &Tensor, zero_point: i32, requested: Option<&[i64]>) -> TractResult<Tensor> {
        let (mut sums, terms) = self.run_without_terms(x, zero_point, requested)?;
        if let Some(terms) = terms {
            terms.add_all(sums.try_as_plain_ram_mut()?.as_slice_mut::<i32>()?)?;
        }
        Ok(sums)
    }

    /// As [`IntegerSums::run`], but returns the products of the zero point with weights apart from the sums, if they
    /// are still to be subtracted.
    ///
    /// # Errors
    /// As [`IntegerSums::run`].
    pub(crate) fn run_without_terms(
        &self,
        x: &Tensor,
        zero_point: i32,
        requested: Option<&[i64]>,
    ) -> TractResult<(Tensor, Option<ZeroPointTerms<'_>>)> {
        let problem = self.spec.problem(x.shape(), requested)?;
        self.options.limit().check_output(&problem.output_shape(), i32::datum_type())?;
        if x.shape().contains(&0) || problem.output_shape().contains(&0) {
            return Ok((memory::zero_tensor::<i32>("output size", &problem.output_shape())?, None));
        }
        let form = self.form(&problem, x.datum_type(), zero_point)?;
        let input = self.grouped(&problem, &form, x)?;
        let requested = requested.filter(|_| !form.layer.explicit);
        let layer = self.plans.get(&form.layer.spec, input.shape(), requested, i32::datum_type(), &form.options)?;
        let layout = layer.plan().filter_layout();
        let filter = self.packed.get(form.grouped, &form.layer.spec, &layout, || {
            let filter = self.filter_of(form.grouped, form.layer.terms)?.into_arc_tensor();
            PackedFilter::pack_grouped(&form.layer.spec, &layout, &filter, Some(form.grouped))
        })?;
        self.filter.forget();
        let totals = self.totals.as_ref().filter(|_| form.zero_point != 0);
        let channels = self.spec.out_channels;
        let Some(totals) = totals else { return Ok((layer.run(&input, &filter, None)?, None)) };
        if totals.len() == channels {
            let terms = totals.iter().map(|total| total.wrapping_mul(-form.zero_point));
            let bias = memory::tensor_of("bias", &[channels], terms)?;
            return Ok((layer.run(&input, &filter, Some(&bias))?, None));
        }
        let terms = ZeroPointTerms::new(self, &problem, form.zero_point, totals)?;
        Ok((layer.run(&input, &filter, None)?, Some(terms)))
    }

    fn isa(&self) -> TractResult<Isa> {
        match &self.options.machine {
            Some(machine) => Ok(self.options.isa.unwrap_or(machine.isa())),
            None => Isa::of_plan(self.options.isa),
        }
    }

    /// How bytes are computed without sums of 32 bits in memory, or the reason why they are not.
    fn bytes_to_bytes(&self, problem: &Problem) -> TractResult<Result<DepthwiseBytes, String>> {
        if self.options.grouped.is_some() {
            return Ok(Err("elements of several integers are forced".to_string()));
        }
        if !self.fits {
            return Ok(Err("weights of more than 8 bits".to_string()));
        }
        let isa = self.isa()?;
        if !ByteKernels::of(isa).have_vectors() {
            return Ok(Err("no vectors of bytes".to_string()));
        }
        Ok(DepthwiseBytes::propose(problem, isa))
    }

    /// Returns results of an 8-bit type for `x`: `u8` or `i8`, in the spec's data format. None if the
    /// results are those of [`IntegerSums::run`] scaled.
    ///
    /// `scales` returns the scales of the output channels. It gets the largest magnitude of a channel's
    /// sums.
    ///
    /// # Errors
    /// As [`IntegerSums::run`].
    pub(crate) fn bytes(
        &self,
        x: &Tensor,
        zero_point: i32,
        datum_type: DatumType,
        scales: impl FnOnce(&dyn Fn(usize) -> f64) -> TractResult<Arc<ByteScales>>,
    ) -> TractResult<Option<Tensor>> {
        let problem = self.spec.problem(x.shape(), None)?;
        let shape = problem.output_shape();
        if x.shape().contains(&0) || shape.contains(&0) {
            return Ok(None);
        }
        let Ok(plan) = self.bytes_to_bytes(&problem)? else { return Ok(None) };
        let limit = self.options.limit();
        limit.check_output(&shape, datum_type)?;
        limit.check_working(plan.working_bytes())?;
        let filter = self.bytes.get(|| {
            let wide = self.weights()?;
            let ram = wide.try_as_plain_ram()?;
            let weights = ram.as_slice::<i16>()?;
            plan.pack(&self.spec, |at| weights[at].into())
        })?;
        let scales = scales(&|channel| filter.largest_sum(channel))?;
        let flip = flip_of(x.datum_type())?;
        let ram = x.try_as_plain_ram()?;
        let data = ByteData { from: ram.as_bytes(), flip, zero_point: zero_point as u8 ^ flip };
        #[expect(unsafe_code, reason = "each result is written once, not cleared before")]
        // SAFETY: the type is a number type. `run` writes all elements or fails, and on failure the tensor
        // is dropped.
        let mut output = unsafe { memory::output_tensor("output size", datum_type, &shape)? };
        plan.run(&problem, &filter, &scales, data, output.try_as_plain_ram_mut()?.as_bytes_mut())?;
        Ok(Some(output))
    }

    /// The weights, as `i16`.
    fn weights(&self) -> TractResult<Arc<Tensor>> {
        if let Some(filter) = self.filter.get() {
            return Ok(match self.fits {
                true => memory::mapped_tensor("filter", &filter, |weight: i8| i16::from(weight))?.into_arc_tensor(),
                false => filter,
            });
        }
        let latest = self.packed.latest().and_then(|(grouped, packed)| Some((grouped?, packed)));
        let (grouped, packed) = latest.context("filter: it is neither there nor packed")?;
        let terms = [Terms::new(&self.spec, grouped), Terms::of_channels(grouped)];
        let terms = terms.into_iter().find(|terms| terms.spec(&self.spec).packs_like(packed.spec()));
        let terms = terms.context("filter: its elements are others")?;
        let elements = packed.unpacked()?;
        let ram = elements.try_as_plain_ram()?;
        let integers = |element: i32| match grouped {
            Grouped::Pairs => [element as i16, (element >> 16) as i16, 0, 0],
            Grouped::Quads => element.to_le_bytes().map(|byte| i16::from(byte as i8)),
        };
        Ok(terms.weights(&self.spec, ram.as_slice::<i32>()?, integers)?.into_arc_tensor())
    }

    /// The filter as elements.
    fn filter_of(&self, grouped: Grouped, terms: Terms) -> TractResult<Tensor> {
        let wide = self.weights()?;
        let ram = wide.try_as_plain_ram()?;
        let weights = ram.as_slice::<i16>()?;
        match grouped {
            Grouped::Pairs => terms.filter(&self.spec, weights, |w| Pair::of([w[0], w[1]]).bits()),
            Grouped::Quads => {
                terms.filter(&self.spec, weights, |w| Quad::of([w[0] as u8, w[1] as u8, w[2] as u8, w[3] as u8]).bits())
            }
        }
    }

    /// The input as elements.
    fn grouped(&self, problem: &Problem, form: &Form, x: &Tensor) -> TractResult<Tensor> {
        let shape = &form.layer.input;
        let bytes = shape.iter().fold(size_of::<i32>(), |bytes, size| bytes.saturating_mul(*size));
        self.options.limit().check_working(bytes)?;
        #[expect(unsafe_code, reason = "each element is written once, not cleared before")]
        // SAFETY: the type is a number type. `group` writes all elements or fails, and on failure the
        // tensor is dropped.
        let mut input = unsafe { memory::output_tensor("input elements", i32::datum_type(), shape)? };
        let mut view = input.try_as_plain_ram_mut()?;
        let from = x.try_as_plain_ram()?;
        let (from, how) = (from.as_bytes(), (form.bytes, form.outside));
        match form.grouped {
            Grouped::Pairs => form.layer.group(problem, from, how, view.as_slice_mut::<Pair>()?)?,
            Grouped::Quads => form.layer.group(problem, from, how, view.as_slice_mut::<Quad>()?)?,
        }
        Ok(input)
    }

    /// Describes how data of a fact is computed, or returns none if sizes are open or the data is
    /// empty. `to_bytes` tells whether the results are bytes.
    pub fn plan(&self, data: &TypedFact, to_bytes: bool) -> TractResult<Option<String>> {
        let Some(shape) = shared::known_shape(&self.spec, data) else { return Ok(None) };
        let problem = self.spec.problem(shape, None)?;
        if to_bytes && let Ok(plan) = self.bytes_to_bytes(&problem)? {
            return Ok(Some(plan.explain()));
        }
        let form = self.form(&problem, DatumType::U8, 0)?;
        let layer = self.plans.get(&form.layer.spec, &form.layer.input, None, i32::datum_type(), &form.options)?;
        Ok(Some(layer.plan().explain()))
    }
}

/// The products of the data's zero point with the weights of each result's phase, less than zero: sums lack them.
pub(crate) struct ZeroPointTerms<'a> {
    /// `Σ w` per phase of a filter's taps and per output channel.
    totals: &'a [i32],
    channels: usize,
    zero_point: i32,
    kernels: ByteKernels,
    /// Whether results are planes of a channel. Otherwise they are pixels.
    planar: bool,
    /// Columns of a row of results.
    columns: usize,
    /// The phases of columns, and that of the first one.
    stride: usize,
    first: usize,
    /// The phases of outer axes.
    phases: usize,
    /// For each row of a plane, or of an image, the phase of its outer axes.
    residues: Vec<usize>,
}

impl<'a> ZeroPointTerms<'a> {
    fn new(
        sums: &IntegerSums,
        problem: &Problem,
        zero_point: i32,
        totals: &'a [i32],
    ) -> TractResult<ZeroPointTerms<'a>> {
        let (last, outer) = problem.axes.split_last().context("terms: a convolution without axes")?;
        // The phase of an axis's output, as an index of the filter's phases.
        let residue = |axis: &Axis, at: usize| (at as i64 + axis.pad_begin).rem_euclid(axis.stride as i64) as usize;
        let rows: usize = outer.iter().map(|axis| axis.output).product();
        let outer_residue = |row: usize| {
            let at = unflatten(row, outer.iter().map(|axis| axis.output));
            outer.iter().zip(at).fold(0, |index, (axis, at)| index * axis.stride + residue(axis, at))
        };
        Ok(ZeroPointTerms {
            totals,
            channels: sums.spec.out_channels,
            zero_point,
            kernels: ByteKernels::of(sums.isa()?),
            planar: sums.spec.data_format == DataFormat::Ncx,
            columns: last.output,
            stride: last.stride,
            first: residue(last, 0),
            phases: outer.iter().map(|axis| axis.stride).product(),
            residues: memory::collected("terms", (0..rows).map(outer_residue))?,
        })
    }

    /// Sums of a unit: a plane, or a row of pixels.
    pub fn unit(&self) -> usize {
        if self.planar { self.residues.len() * self.columns } else { self.columns * self.channels }
    }

    /// Adds the terms to whole units of sums. `first` counts the units before them.
    ///
    /// # Errors
    /// There is no memory for a list of terms.
    pub fn add(&self, first: usize, sums: &mut [i32]) -> TractResult<()> {
        let ZeroPointTerms { channels, stride, planar, .. } = *self;
        // As many columns of a plane as make whole vectors, or as many pixels as there are phases.
        let columns = if planar { TERMS.div_ceil(stride) * stride } else { stride }.min(self.columns);
        let row = if planar { self.columns } else { self.columns * channels };
        let mut terms: Vec<i32> = vec![];
        for (at, sums) in (first..).zip(sums.chunks_mut(self.unit())) {
            let (of, residues) = match planar {
                true => (at % channels..at % channels + 1, &self.residues[..]),
                false => (0..channels, &self.residues[at % self.residues.len()..][..1]),
            };
            let of_phase = columns * of.len();
            if planar || terms.is_empty() {
                terms.clear();
                memory::reserve("terms", &mut terms, self.phases.saturating_mul(of_phase))?;
                for (outer, column) in (0..self.phases).cartesian_product(0..columns) {
                    let totals = &self.totals[(outer * stride + (self.first + column) % stride) * channels..];
                    terms.extend(totals[of.clone()].iter().map(|total| total.wrapping_mul(-self.zero_point)));
                }
            }
            for (sums, phase) in sums.chunks_mut(row).zip(residues) {
                self.kernels.add(&terms[phase * of_phase..(phase + 1) * of_phase], sums);
            }
        }
        Ok(())
    }

    /// Adds the terms to all sums.
    fn add_all(&self, sums: &mut [i32]) -> TractResult<()> {
        let cost = (sums.len() / SUMS_PER_COST) as u64;
        let unit = self.unit().max(1);
        let at_once = (sums.len() / unit).div_ceil(TASKS * threads(cost)).max(1);
        let mut tasks: Vec<(usize, &mut [i32])> = sums.chunks_mut(at_once * unit).enumerate().collect();
        parallel(&mut tasks, cost, &|(task, sums)| self.add(*task * at_once, sums))
    }
}

/// The bits of 8-bit integers that are flipped, so that all are `u8`.
fn flip_of(datum_type: DatumType) -> TractResult<u8> {
    match datum_type {
        DatumType::U8 => Ok(0),
        DatumType::I8 => Ok(0x80),
        other => bail!("input: datum_type={other:?}, 8-bit integers are needed"),
    }
}

/// `Σ w` per phase of a filter's taps, by residues, and per output channel.
fn totals(spec: &DeconvSpec, weights: &[i16]) -> TractResult<Option<Vec<i32>>> {
    let residues = |ax: usize| match spec.direction {
        Direction::Forward => 1,
        Direction::Transposed => spec.strides[ax],
    };
    let phases = (0..spec.rank()).map(residues).fold(1, usize::saturating_mul);
    let taps = spec.kernel.iter().fold(1, |taps: usize, size| taps.saturating_mul(*size));
    if phases > MOST_PHASES.min(taps.saturating_mul(4)) {
        return Ok(None);
    }
    let strides = spec.filter_strides();
    let mut totals = memory::reserved("sums of weights", phases.saturating_mul(spec.out_channels))?;
    totals.resize(phases * spec.out_channels, 0i32);
    let taps = spec.kernel.iter().map(|size| 0..*size).multi_cartesian_product();
    for tap in taps {
        let (mut phase, mut at) = (0, 0);
        for (ax, k) in tap.iter().enumerate() {
            let residue = (*k as u64 * spec.dilations[ax] as u64 % residues(ax) as u64) as usize;
            phase = phase * residues(ax) + residue;
            at += k * strides.kernel[ax];
        }
        for (g, o, i) in tract_itertools::iproduct!(0..spec.group, 0..spec.group_out(), 0..spec.group_in()) {
            let weight = weights[g * strides.group + o * strides.output + i * strides.input + at];
            let total = &mut totals[phase * spec.out_channels + g * spec.group_out() + o];
            *total = total.wrapping_add(weight.into());
        }
    }
    Ok(Some(totals))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FilterFormat, Padding};

    /// Weights are found in each packed form.
    #[test]
    fn weights_are_found_where_they_are_packed() -> TractResult<()> {
        let forms = [
            (Direction::Forward, FilterFormat::GroupedOix, [3, 20, 1]),
            (Direction::Forward, FilterFormat::GroupedOix, [10, 18, 2]),
            (Direction::Transposed, FilterFormat::Iox, [12, 5, 1]),
            (Direction::Transposed, FilterFormat::Iox, [6, 6, 6]),
        ];
        for ((direction, filter_format, [inputs, outputs, group]), most) in
            forms.into_iter().cartesian_product([127, 255])
        {
            let spec = DeconvSpec {
                direction,
                data_format: DataFormat::Ncx,
                filter_format,
                in_channels: inputs,
                out_channels: outputs,
                group,
                kernel: tvec!(3, 5),
                strides: tvec!(2, 2),
                dilations: tvec!(1, 1),
                padding: Padding::Explicit { begin: tvec!(1, 2), end: tvec!(1, 2) },
                output_padding: tvec!(0, 0),
            };
            let shape = spec.filter_shape();
            let count: usize = shape.iter().product();
            let values: Vec<i16> = (0..count).map(|at| (at * 37 % (2 * most + 1)) as i16 - most as i16).collect();
            let weights = Tensor::from_shape(&shape, &values)?;
            for grouped in [Grouped::Pairs, Grouped::Quads] {
                let options = PlanOptions::default().with_isa(Isa::Portable).with_grouped(grouped);
                let sums = IntegerSums::new(&spec, &weights, &options)?;
                assert_eq!(*sums.weights()?, weights);
                for size in [1, 9, 40] {
                    let x = Tensor::from_shape(&[1, inputs, size, size], &vec![3u8; inputs * size * size])?;
                    let first = sums.run(&x, 7, None)?;
                    assert!(sums.filter.get().is_none());
                    assert_eq!(*sums.weights()?, weights, "{direction:?} {group} {grouped:?} {size}");
                    let fresh = IntegerSums::new(&spec, &weights, &options)?;
                    assert_eq!(first, fresh.run(&x, 7, None)?);
                }
            }
        }
        Ok(())
    }
}
