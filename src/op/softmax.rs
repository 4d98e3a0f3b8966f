//! Softmax over an axis that tract computes element by element.

use super::axes::{neighbours, product};
use crate::compute::Compute;
use crate::element::{Element, dispatch_element, is_float};
use crate::kernel::{Dispatch, Kernels};
use crate::memory::{self, collected, reserved, zeros};
use crate::parallel::{parallel, threads};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use std::ops::Range;
use tract_core::internal::*;
use tract_core::ops::nn::{Softmax, SoftmaxKind};

/// Rows at least this long are left to tract if they are contiguous.
const LONG_ROW: usize = 32;

/// Columns that are copied together where values are converted or transposed.
const COLUMNS: usize = 64;

/// Tasks per thread.
const TASKS: usize = 4;

/// Estimated cost of four elements, in vector multiply-adds.
const FOUR_ELEMENTS: u64 = 20;

/// Softmax, or its logarithm, over neighbouring axes.
///
/// It has one input and one output of the same shape and type: f16, f32 or f64. Sums are computed
/// in f32 or f64. NaN and the infinities give what onnxruntime gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptSoftmax {
    axes: Range<usize>,
    log: bool,
    isa: Isa,
    limit: MemoryLimit,
}

impl OptSoftmax {
    /// Returns the op that replaces tract's, or none if tract's is as fast or not understood.
    pub(super) fn of(op: &Softmax, input: &TypedFact, options: &PlanOptions) -> Option<OptSoftmax> {
        let axes = neighbours(&op.axes, input.rank())?;
        let float = is_float(input.datum_type);
        let inner: TDim = input.shape[axes.end..].iter().product();
        let length: TDim = input.shape[axes.clone()].iter().product();
        let slow = !inner.is_one() || length.to_usize().is_ok_and(|length| length < LONG_ROW);
        (float && slow && op.quant_output_dt.is_none()).then(|| OptSoftmax {
            axes,
            log: op.kind == SoftmaxKind::LogSoftmax,
            isa: options.isa.unwrap_or_else(Isa::best),
            limit: options.limit(),
        })
    }

    pub(super) fn is_logarithm(&self) -> bool {
        self.log
    }

    /// Returns the logarithm of the same softmax.
    pub(super) fn logarithm(self) -> OptSoftmax {
        OptSoftmax { log: true, ..self }
    }

    fn run<E: Element>(&self, input: &Tensor) -> TractResult<Tensor> {
        let shape = input.shape();
        self.limit.check_output(shape, input.datum_type())?;
        let [length, inner] = [&shape[self.axes.clone()], &shape[self.axes.end..]].map(product);
        let columns = Columns { kernels: E::Compute::kernels(self.isa), log: self.log, length, inner };
        self.limit.check_working(columns.working_bytes::<E>(input.len()))?;
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `output_tensor` returns uninitialised elements. Their type is a number's, as
        // there is an `Element` for it. `Columns::run` writes all of them, or fails, and then the
        // tensor is dropped without a read.
        let mut output = unsafe { memory::output_tensor("softmax", input.datum_type(), shape)? };
        let from = input.try_as_plain_ram()?;
        let mut view = output.try_as_plain_ram_mut()?;
        columns.run::<E>(from.as_slice::<E>()?, view.as_slice_mut::<E>()?)?;
        Ok(output)
    }
}

/// A tensor seen as planes of `length` rows of `inner` values. The softmax is that of columns.
struct Columns<T: Compute> {
    kernels: &'static Kernels<T>,
    log: bool,
    length: usize,
    inner: usize,
}

/// Columns of one plane.
struct Part<'a, E> {
    /// The index of the first value.
    first: usize,
    rows: Vec<&'a mut [E]>,
}

impl<T: Compute> Columns<T> {
    /// Returns how many columns are copied together. None are if they can be read in place.
    fn copied<E: Element<Compute = T>>(&self, values: usize) -> usize {
        let in_place = self.inner > 1 && E::as_compute(&[]).is_some();
        let columns = if self.inner == 1 { values / self.length.max(1) } else { self.inner };
        if in_place { 0 } else { columns.min(COLUMNS) }
    }

    /// Returns the bytes that a thread needs for copies and for its tasks' lists of rows.
    fn working_bytes<E: Element<Compute = T>>(&self, values: usize) -> usize {
        let copies = 2 * self.copied::<E>(values) * size_of::<T>();
        // A plane is divided among at most twice as many tasks as there are to be. A running task
        // has two lists.
        let lists = (2 * TASKS + 1) * size_of::<&mut [E]>();
        self.length.saturating_mul(copies + lists)
    }

    /// Writes all of `to`.
    fn run<E: Element<Compute = T>>(&self, from: &[E], to: &mut [E]) -> TractResult<()> {
        if to.is_empty() {
            return Ok(());
        }
        let plane = self.length * self.inner;
        let cost = to.len() as u64 / 4 * FOUR_ELEMENTS;
        let (planes, parts) = (to.len() / plane, TASKS * threads(cost));
        let copied = self.copied::<E>(to.len());
        if self.inner == 1 || planes >= parts {
            let values = planes.div_ceil(parts) * plane;
            let mut tasks: Vec<_> = to.chunks_mut(values).enumerate().collect();
            return parallel(&mut tasks, cost, |(task, to)| {
                let from = &from[*task * values..][..to.len()];
                let mut copies = Copies::new(self.length, copied)?;
                if self.inner == 1 {
                    return self.contiguous(from, to, &mut copies);
                }
                from.chunks(plane).zip(to.chunks_mut(plane)).try_for_each(|(from, to)| {
                    self.strided(from, &mut collected("softmax", to.chunks_mut(self.inner))?, &mut copies)
                })
            });
        }
        let columns = self.inner.div_ceil(parts.div_ceil(planes)).next_multiple_of(COLUMNS);
        let mut tasks = vec![];
        for (p, to) in to.chunks_mut(plane).enumerate() {
            let part = |i| Ok(Part { first: p * plane + i * columns, rows: reserved("softmax", self.length)? });
            let mut parts = (0..self.inner.div_ceil(columns)).map(part).collect::<TractResult<Vec<Part<E>>>>()?;
            for row in to.chunks_mut(self.inner) {
                parts.iter_mut().zip(row.chunks_mut(columns)).for_each(|(part, row)| part.rows.push(row));
            }
            tasks.extend(parts);
        }
        parallel(&mut tasks, cost, |part| {
            self.strided(&from[part.first..], &mut part.rows, &mut Copies::new(self.length, copied)?)
        })
    }

    /// Computes columns that are contiguous in memory, after each other.
    fn contiguous<E: Element<Compute = T>>(&self, from: &[E], to: &mut [E], copies: &mut Copies<T>) -> TractResult<()> {
        let length = self.length;
        for (from, to) in from.chunks(length * copies.columns).zip(to.chunks_mut(length * copies.columns)) {
            copies.softmax(
                self,
                from.len() / length,
                |r, row| row.iter_mut().enumerate().for_each(|(c, x)| *x = from[c * length + r].widen()),
                |r, row| row.iter().enumerate().for_each(|(c, x)| to[c * length + r] = E::narrow(*x)),
            )?;
        }
        Ok(())
    }

    /// Computes columns whose values are `inner` apart.
    fn strided<E: Element<Compute = T>>(
        &self,
        from: &[E],
        rows: &mut [&mut [E]],
        copies: &mut Copies<T>,
    ) -> TractResult<()> {
        if let Some(from) = E::as_compute(from) {
            let mut to: Vec<&mut [T]> = reserved("softmax", rows.len())?;
            to.extend(rows.iter_mut().filter_map(|row| E::as_compute_mut(row)));
            self.kernels.softmax(self.log, from, self.inner, &mut to);
            return Ok(());
        }
        let width = rows.first().map_or(0, |row| row.len());
        for first in (0..width).step_by(copies.columns) {
            let columns = copies.columns.min(width - first);
            copies.softmax(
                self,
                columns,
                |r, row| E::widen_slice(&from[r * self.inner + first..][..columns], row),
                |r, row| E::narrow_slice(row, &mut rows[r][first..][..columns]),
            )?;
        }
        Ok(())
    }
}

/// Some columns, before and after.
struct Copies<T: Compute> {
    columns: usize,
    from: Vec<T>,
    to: Vec<T>,
}

impl<T: Compute> Copies<T> {
    fn new(length: usize, columns: usize) -> TractResult<Copies<T>> {
        let values = length.checked_mul(columns).context("softmax: its axis is too long")?;
        Ok(Copies { columns, from: zeros("softmax", values)?, to: zeros("softmax", values)? })
    }

    /// Computes `columns` columns. `read` fills a row of values, and `write` takes a row of results.
    fn softmax(
        &mut self,
        of: &Columns<T>,
        columns: usize,
        read: impl Fn(usize, &mut [T]),
        mut write: impl FnMut(usize, &[T]),
    ) -> TractResult<()> {
        let values = of.length * columns;
        self.from[..values].chunks_mut(columns).enumerate().for_each(|(r, row)| read(r, row));
        let mut rows: Vec<&mut [T]> = collected("softmax", self.to[..values].chunks_mut(columns))?;
        of.kernels.softmax(of.log, &self.from[..values], columns, &mut rows);
        rows.iter().enumerate().for_each(|(r, row)| write(r, row));
        Ok(())
    }
}

impl Op for OptSoftmax {
    fn name(&self) -> StaticName {
        if self.log { "OptLogSoftmax" } else { "OptSoftmax" }.into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("over axes {:?}, on {}", self.axes, self.isa)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptSoftmax {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = args_1!(inputs);
        ensure!(
            self.axes.end <= input.rank(),
            "input: shape={:?}, an axis {} is needed",
            input.shape(),
            self.axes.end - 1
        );
        let output: Tensor = dispatch_element!(input.datum_type(), E => self.run::<E>(&input)?);
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for OptSoftmax {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].without_value()))
    }

    as_op!();
}
