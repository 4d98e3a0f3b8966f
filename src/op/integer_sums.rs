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
use crate::algorithm::depthwise_bytes::{ByteData, DepthwiseBytes};
use crate::cache::{ByteFilters, PackedFilters, PlainFilter, PlanCache};
use crate::compute::{Grouped, Pair, QUANTISED, Quad};
use crate::kernel::{ByteKernels, ByteScales, Bytes};
use crate::layout::filter::PackedFilter;
use crate::layout::grouped::{GroupedLayer, Terms};
use crate::memory;
use crate::plan::PlanOptions;
use crate::ranges::unflatten;
use crate::simd::isa::Isa;
use crate::spec::{Axis, DataFormat, DeconvSpec, Direction, Problem};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// The largest difference of two 8-bit integers of one type.
const MAX_DIFFERENCE: u64 = 255;

/// Columns whose terms are subtracted together.
const TERMS: usize = 64;

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
    bytes: ByteFilters,
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
            bytes: ByteFilters::default(),
        })
    }

    /// Returns the spec of the convolution.
    pub fn spec(&self) -> &DeconvSpec {
        &self.spec
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
        let problem = self.spec.problem(x.shape(), requested)?;
        self.options.limit().check_output(&problem.output_shape(), i32::datum_type())?;
        if x.shape().contains(&0) || problem.output_shape().contains(&0) {
            return memory::zero_tensor::<i32>("output size", &problem.output_shape());
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
        let Some(totals) = totals else { return layer.run(&input, &filter, None) };
        if totals.len() == channels {
            let terms = totals.iter().map(|total| total.wrapping_mul(-form.zero_point));
            return layer.run(&input, &filter, Some(&memory::tensor_of("bias", &[channels], terms)?));
        }
        let mut sums = layer.run(&input, &filter, None)?;
        drop(input);
        self.subtract(&problem, form.zero_point, totals, sums.try_as_plain_ram_mut()?.as_slice_mut::<i32>()?)?;
        Ok(sums)
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
        scales: impl FnOnce(&dyn Fn(usize) -> f64) -> TractResult<ByteScales>,
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

    /// Subtracts the products of the zero point with the weights of each result's phase.
    fn subtract(&self, problem: &Problem, zero_point: i32, totals: &[i32], sums: &mut [i32]) -> TractResult<()> {
        let channels = self.spec.out_channels;
        let Some((last, outer)) = problem.axes.split_last() else { return Ok(()) };
        // The phase of an axis's output, as an index of the filter's phases.
        let residue = |axis: &Axis, at: usize| (at as i64 + axis.pad_begin).rem_euclid(axis.stride as i64) as usize;
        let rows: usize = outer.iter().map(|axis| axis.output).product();
        let outer_residue = |row: usize| {
            let at = unflatten(row, outer.iter().map(|axis| axis.output));
            outer.iter().zip(at).fold(0, |index, (axis, at)| index * axis.stride + residue(axis, at))
        };
        let residues = memory::collected("terms", (0..rows).map(outer_residue))?;
        let term = |outer: usize, column: usize, channel: usize| {
            let phase = outer * last.stride + residue(last, column);
            totals[phase * channels + channel].wrapping_mul(zero_point)
        };
        let less = |sums: &mut [i32], terms: &[i32]| {
            for sums in sums.chunks_mut(terms.len()) {
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum = sum.wrapping_sub(*term));
            }
        };
        // The terms of as many columns as make whole vectors, for each phase of a row.
        let columns = (TERMS.div_ceil(last.stride) * last.stride).min(last.output);
        let (period, per_channel) = match self.spec.data_format {
            DataFormat::Ncx => (columns, columns),
            DataFormat::Nxc => (last.stride.min(last.output), 1),
        };
        let phases: usize = outer.iter().map(|axis| axis.stride).product();
        let of_phase = channels * period;
        let mut terms: Vec<i32> = memory::reserved("terms", phases.saturating_mul(of_phase))?;
        for phase in 0..phases {
            match self.spec.data_format {
                DataFormat::Ncx => {
                    let all = (0..channels).cartesian_product(0..period);
                    terms.extend(all.map(|(channel, column)| term(phase, column, channel)))
                }
                DataFormat::Nxc => {
                    let all = (0..period).cartesian_product(0..channels);
                    terms.extend(all.map(|(column, channel)| term(phase, column, channel)))
                }
            }
        }
        match self.spec.data_format {
            DataFormat::Ncx => {
                for (plane, sums) in sums.chunks_mut(rows * last.output).enumerate() {
                    for (sums, phase) in sums.chunks_mut(last.output).zip(&residues) {
                        let first = phase * of_phase + plane % channels * per_channel;
                        less(sums, &terms[first..first + per_channel]);
                    }
                }
            }
            DataFormat::Nxc => {
                let rows = sums.chunks_mut(last.output * channels).zip(residues.iter().cycle());
                rows.for_each(|(sums, phase)| less(sums, &terms[phase * of_phase..(phase + 1) * of_phase]));
            }
        }
        Ok(())
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
