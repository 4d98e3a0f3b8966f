//! Sums, extremes and their positions over axes that tract reads element by element.

use super::axes::{check_axes, neighbours, product};
use crate::compute::{Compute, F16, F64};
use crate::element::{Element, is_float};
use crate::kernel::Dispatch;
use crate::memory;
use crate::parallel::{parallel, threads};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use std::ops::Range;
use tract_core::internal::*;
use tract_core::ops::nn::{Reduce, Reducer};

/// Rows that are added up before their sum is added to that of the others. The error of a sum then
/// grows with the number of such blocks.
const ROWS: usize = 64;

/// Columns whose results are computed together.
const COLUMNS: usize = 256;

/// Tasks per thread.
const TASKS: usize = 4;

/// Estimated cost of four elements, in vector multiply-adds.
const FOUR_ELEMENTS: u64 = 4;

/// What is computed of each column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reduction {
    /// The sum, of f16, f32 or f64. That of f16 is made in f32.
    Sum,
    /// The largest or smallest value, of f16, f32 or f64.
    Extreme { largest: bool },
    /// The position of the largest or smallest value, of f16, f32 or f64. Of equal values the first
    /// or the last one.
    Position { largest: bool, last: bool },
}

/// A reduction over neighbouring axes, which get the size one.
///
/// It has one input and one output: i64 for positions, else the type of the input.
///
/// A NaN makes a sum NaN. A position is never that of a NaN, and 0 if all values are NaN. The extreme
/// value is that of the values after the last NaN, and NaN if none is after it. All this is as in
/// tract. Without any value, the sum and the position are 0, and the extreme value is infinite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptReduce {
    axes: Range<usize>,
    reduction: Reduction,
    isa: Isa,
    limit: MemoryLimit,
}

impl OptReduce {
    /// Returns the op that replaces tract's, or none if tract's is as fast or not understood.
    pub(super) fn of(op: &Reduce, input: &TypedFact, options: &PlanOptions) -> Option<OptReduce> {
        let axes = neighbours(&op.axes, input.rank())?;
        let dt = input.datum_type;
        let (reduction, slow) = match op.reducer {
            // tract adds whole rows of f32 in the first case, and contiguous values in the second, but for f16.
            Reducer::Sum => {
                let fast = axes.start == 0 && dt == DatumType::F32 || axes.start + 1 == input.rank();
                (Reduction::Sum, !fast || dt == DatumType::F16)
            }
            Reducer::ArgMax(last) => (Reduction::Position { largest: true, last }, true),
            Reducer::ArgMin(last) => (Reduction::Position { largest: false, last }, true),
            Reducer::Max | Reducer::Min => {
                // tract reads contiguous values of f32 by vectors.
                let inner: TDim = input.shape[axes.end..].iter().product();
                (Reduction::Extreme { largest: op.reducer == Reducer::Max }, !inner.is_one() || dt != DatumType::F32)
            }
            _ => return None,
        };
        (slow && is_float(dt)).then(|| OptReduce {
            axes,
            reduction,
            isa: options.isa.unwrap_or_else(Isa::best),
            limit: options.limit(),
        })
    }

    /// Returns the axes if this is a sum.
    pub(super) fn axes_of_sum(&self) -> Option<&Range<usize>> {
        (self.reduction == Reduction::Sum).then_some(&self.axes)
    }

    /// Returns the planes, the rows of each, and the values of a row, for data of a shape.
    fn sizes(&self, shape: &[usize]) -> TractResult<[usize; 3]> {
        check_axes(&self.axes, shape)?;
        Ok([&shape[..self.axes.start], &shape[self.axes.clone()], &shape[self.axes.end..]].map(product))
    }

    /// Writes a new output, whose elements are those of rows of `inner` columns, one row per plane.
    ///
    /// `write` gets the index of the plane, the first column, and the results of some columns.
    fn output<T: Datum + Default + Copy + Send>(
        &self,
        shape: &[usize],
        write: impl Fn(usize, usize, &mut [T]) + Sync + Send,
    ) -> TractResult<Tensor> {
        let [_, length, inner] = self.sizes(shape)?;
        let reduced: TVec<usize> =
            shape.iter().enumerate().map(|(axis, size)| if self.axes.contains(&axis) { 1 } else { *size }).collect();
        self.limit.check_output(&reduced, T::datum_type())?;
        let mut output = memory::zero_tensor::<T>("reduction", &reduced)?;
        Self::write(length, inner, output.try_as_plain_ram_mut()?.as_slice_mut::<T>()?, write)?;
        Ok(output)
    }

    fn write<T: Send>(
        length: usize,
        inner: usize,
        to: &mut [T],
        write: impl Fn(usize, usize, &mut [T]) + Sync + Send,
    ) -> TractResult<()> {
        if to.is_empty() {
            return Ok(());
        }
        let cost = (to.len() as u64 / 4).saturating_mul(length as u64).saturating_mul(FOUR_ELEMENTS);
        // Whole rows, or parts of one if there are few.
        let (planes, parts) = (to.len() / inner, TASKS * threads(cost));
        let rows = planes.div_ceil(parts);
        let columns = if rows == 1 { inner.div_ceil(parts.div_ceil(planes)) } else { rows * inner };
        let mut tasks: Vec<_> = to
            .chunks_mut(rows * inner)
            .enumerate()
            .flat_map(|(i, to)| {
                to.chunks_mut(columns).enumerate().map(move |(part, to)| (i * rows, part * columns, to))
            })
            .collect();
        parallel(&mut tasks, cost, &|(plane, first, to)| {
            for (i, row) in to.chunks_mut(inner).enumerate() {
                for (part, to) in row.chunks_mut(COLUMNS).enumerate() {
                    write(*plane + i, *first + part * COLUMNS, to);
                }
            }
            Ok(())
        })
    }

    fn sum<E: Element>(&self, input: &Tensor) -> TractResult<Tensor> {
        let [_, length, inner] = self.sizes(input.shape())?;
        let kernels = E::Compute::kernels(self.isa);
        let ram = input.try_as_plain_ram()?;
        let from = ram.as_slice::<E>()?;
        self.output::<E>(input.shape(), |plane, first, to| {
            let from = &from[plane * length * inner..][..length * inner];
            let zeros = [E::Compute::ZERO; COLUMNS];
            let (mut wide, mut block, mut sums) = (zeros, zeros, zeros);
            if inner == 1 {
                let widened_sum = |run: &[E]| {
                    E::widen_slice(run, &mut wide[..run.len()]);
                    sum_of_run(&wide[..run.len()])
                };
                to[0] = E::narrow(match E::as_compute(from) {
                    Some(from) => sum_of_run(from),
                    None => from.chunks(COLUMNS).map(widened_sum).fold(E::Compute::ZERO, Compute::plus),
                });
                return;
            }
            let columns = to.len();
            let (block, sums) = (&mut block[..columns], &mut sums[..columns]);
            for from in from.chunks(ROWS * inner) {
                block.fill(E::Compute::ZERO);
                for row in from.chunks_exact(inner).map(|row| &row[first..][..columns]) {
                    match E::as_compute(row) {
                        Some(row) => kernels.add(row, block),
                        None => {
                            E::widen_slice(row, &mut wide[..columns]);
                            kernels.add(&wide[..columns], block);
                        }
                    }
                }
                kernels.add(block, sums);
            }
            E::narrow_slice(sums, to);
        })
    }

    fn extremes<E: Element + PartialOrd>(&self, input: &Tensor, largest: bool, none: E) -> TractResult<Tensor> {
        let [_, length, inner] = self.sizes(input.shape())?;
        let ram = input.try_as_plain_ram()?;
        let from = ram.as_slice::<E>()?;
        // A comparison with NaN is false: the later value stays.
        let join =
            |to: &mut E, value: &E| *to = if if largest { *to > *value } else { *to < *value } { *to } else { *value };
        self.output::<E>(input.shape(), |plane, first, to| {
            let from = &from[plane * length * inner..][..length * inner];
            if inner == 1 {
                return match from.split_first() {
                    Some((value, rest)) => {
                        to[0] = rest.iter().fold(*value, |mut to, value| {
                            join(&mut to, value);
                            to
                        })
                    }
                    None => to[0] = none,
                };
            }
            to.fill(none);
            for row in from.chunks_exact(inner) {
                to.iter_mut().zip(&row[first..]).for_each(|(to, value)| join(to, value));
            }
        })
    }

    fn positions<E: Element + PartialOrd>(&self, input: &Tensor, largest: bool, last: bool) -> TractResult<Tensor> {
        let [_, length, inner] = self.sizes(input.shape())?;
        let ram = input.try_as_plain_ram()?;
        let from = ram.as_slice::<E>()?;
        self.output::<i64>(input.shape(), |plane, first, to| {
            let mut best: [Option<E>; COLUMNS] = [None; COLUMNS];
            for r in 0..length {
                let row = &from[(plane * length + r) * inner + first..][..to.len()];
                for ((to, best), value) in to.iter_mut().zip(&mut best).zip(row) {
                    let better = match best {
                        // Only NaN has no order with itself.
                        None => value.partial_cmp(value).is_some(),
                        Some(best) if largest => value > best || last && value == best,
                        Some(best) => value < best || last && value == best,
                    };
                    if better {
                        (*to, *best) = (r as i64, Some(*value));
                    }
                }
            }
        })
    }
}

/// Adds values that are contiguous, in sixteen sums.
fn sum_of_run<T: Compute>(run: &[T]) -> T {
    const SUMS: usize = 16;
    let mut total = T::ZERO;
    for run in run.chunks(ROWS * SUMS) {
        let (chunks, rest) = run.as_chunks::<SUMS>();
        let mut sums = [T::ZERO; SUMS];
        for chunk in chunks {
            sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum = sum.plus(*value));
        }
        total = sums.into_iter().chain(rest.iter().copied()).fold(total, T::plus);
    }
    total
}

impl Op for OptReduce {
    fn name(&self) -> StaticName {
        match self.reduction {
            Reduction::Sum => "OptReduceSum",
            Reduction::Extreme { largest: true } => "OptReduceMax",
            Reduction::Extreme { largest: false } => "OptReduceMin",
            Reduction::Position { largest: true, .. } => "OptArgMax",
            Reduction::Position { largest: false, .. } => "OptArgMin",
        }
        .into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("over axes {:?}, on {}", self.axes, self.isa)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptReduce {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        let output = match (self.reduction, input.datum_type()) {
            (Reduction::Sum, DatumType::F16) if F16 => self.sum::<f16>(&input)?,
            (Reduction::Sum, DatumType::F32) => self.sum::<f32>(&input)?,
            (Reduction::Sum, DatumType::F64) if F64 => self.sum::<f64>(&input)?,
            (Reduction::Extreme { largest }, DatumType::F16) if F16 => {
                self.extremes(&input, largest, if largest { f16::NEG_INFINITY } else { f16::INFINITY })?
            }
            (Reduction::Extreme { largest }, DatumType::F32) => {
                self.extremes(&input, largest, if largest { f32::NEG_INFINITY } else { f32::INFINITY })?
            }
            (Reduction::Extreme { largest }, DatumType::F64) if F64 => {
                self.extremes(&input, largest, if largest { f64::NEG_INFINITY } else { f64::INFINITY })?
            }
            (Reduction::Position { largest, last }, DatumType::F16) if F16 => {
                self.positions::<f16>(&input, largest, last)?
            }
            (Reduction::Position { largest, last }, DatumType::F32) => self.positions::<f32>(&input, largest, last)?,
            (Reduction::Position { largest, last }, DatumType::F64) if F64 => {
                self.positions::<f64>(&input, largest, last)?
            }
            (_, other) => bail!("input: datum_type={other:?}, floats are needed"),
        };
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for OptReduce {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let input = inputs[0];
        let mut shape: TVec<TDim> = input.shape.to_tvec();
        check_axes(&self.axes, &shape)?;
        shape[self.axes.clone()].fill(1.to_dim());
        let is_position = matches!(self.reduction, Reduction::Position { .. });
        let datum_type = if is_position { DatumType::I64 } else { input.datum_type };
        Ok(tvec!(datum_type.fact(shape)))
    }

    as_op!();
}
