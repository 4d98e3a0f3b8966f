//! The integer sums of a convolution of 8-bit integers, before any scale.

use super::shared;
use crate::cache::{FilterCache, PlanCache};
use crate::integers;
use crate::layout::filter::PackedFilter;
use crate::memory;
use crate::plan::PlanOptions;
use crate::spec::DeconvSpec;
use tract_core::internal::*;

/// The largest difference of two 8-bit integers of one type.
const MAX_DIFFERENCE: u64 = 255;

/// The sums `Σ (x − zero point)·w` of a convolution, exact in `i32`. Padding contributes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IntegerSums {
    spec: DeconvSpec,
    options: PlanOptions,
    /// The weights, as `i64`.
    filter: Arc<Tensor>,
    plans: PlanCache,
    packed: FilterCache,
}

impl IntegerSums {
    /// Creates the sums of a filter: `i16`, the weights less their zero points (−255 to 255), in the
    /// spec's filter format.
    ///
    /// # Errors
    /// A spec that is not valid, a filter of another shape or type, a weight outside the range, or a
    /// sum that could leave `i32`.
    pub fn new(spec: &DeconvSpec, filter: &Tensor, options: &PlanOptions) -> TractResult<IntegerSums> {
        spec.validate()?;
        ensure!(
            *filter.shape() == *spec.filter_shape(),
            "filter: shape={:?}, the spec needs {:?}",
            filter.shape(),
            spec.filter_shape()
        );
        let ram = filter.try_as_plain_ram()?;
        let largest = ram.as_slice::<i16>()?.iter().map(|weight| weight.unsigned_abs()).max().unwrap_or(0) as u64;
        ensure!(largest <= MAX_DIFFERENCE, "filter: weight={largest}, it must be within -255..=255");
        let terms = spec.kernel.iter().fold(spec.group_in() as u64, |terms, size| terms.saturating_mul(*size as u64));
        let sum = terms.saturating_mul(largest).saturating_mul(MAX_DIFFERENCE);
        ensure!(sum <= i32::MAX as u64, "sums: terms={terms} of weights up to {largest}, sums could leave 32 bits");
        let filter = integers::converted("filter", filter, DatumType::I64)?.into_owned().into_arc_tensor();
        Ok(IntegerSums {
            spec: spec.clone(),
            options: options.clone(),
            filter,
            plans: PlanCache::default(),
            packed: FilterCache::default(),
        })
    }

    /// Returns the spec of the convolution.
    pub fn spec(&self) -> &DeconvSpec {
        &self.spec
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
        if x.shape().contains(&0) || self.spec.out_channels == 0 {
            return memory::zero_tensor::<i32>("output size", &problem.output_shape());
        }
        let zero_point = zero_point as i64;
        let x = match x.datum_type() {
            DatumType::U8 => memory::mapped_output("input", x, |x: u8| x as i64 - zero_point)?,
            DatumType::I8 => memory::mapped_output("input", x, |x: i8| x as i64 - zero_point)?,
            other => bail!("input: datum_type={other:?}, 8-bit integers are needed"),
        };
        let layer = self.plans.get(&self.spec, x.shape(), requested, DatumType::I64, &self.options)?;
        let layout = layer.plan().filter_layout();
        let pack = || PackedFilter::pack(&self.spec, &layout, &self.filter);
        let filter = self.packed.get(&self.filter, &self.spec, &layout, pack)?;
        integers::convert("output size", layer.run(&x, &filter, None)?, DatumType::I32)
    }

    /// Describes how data of a fact is computed, or returns none if sizes are open or the data is
    /// empty.
    pub fn plan(&self, data: &TypedFact) -> TractResult<Option<String>> {
        let Some(shape) = shared::known_shape(&self.spec, data) else { return Ok(None) };
        let layer = self.plans.get(&self.spec, shape, None, DatumType::I64, &self.options)?;
        Ok(Some(layer.plan().explain()))
    }
}
