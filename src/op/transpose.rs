//! The move of an axis, which exchanges two groups of neighbouring axes.

use super::axes::product;
use crate::compute::{Compute, F64};
use crate::kernel::{Dispatch, Kernels, PixelStarts};
use crate::layout::input::SIXTEEN_BYTES;
use crate::memory::{self, reserved};
use crate::parallel::{parallel, threads};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use crate::simd::vector::MOST_LANES;
use std::ops::Range;
use tract_core::internal::*;

/// Smaller tensors are left to tract.
const SMALLEST: usize = 4096;

/// With fewer output rows than this, each of which is at least as long, tasks take parts of all
/// rows of a plane.
const FEW_ROWS: usize = 64;

/// Positions of an input plane's long axis that are moved before the next ones.
const BLOCK: usize = 128;

/// Elements of an output block, which is to stay in the nearest cache.
const BLOCK_ELEMENTS: usize = 4096;

/// Tasks per thread.
const TASKS: usize = 4;

/// Moves an axis to another place, as tract's `AxisOp::Move`.
///
/// It has one input and one output of the same element type, of 1, 2, 4 or 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptTranspose {
    from: usize,
    to: usize,
    isa: Isa,
    limit: MemoryLimit,
}

impl OptTranspose {
    /// Returns the op that replaces tract's, or none if the tensor is small or of another type.
    pub(super) fn of(op: &AxisOp, input: &TypedFact, options: &PlanOptions) -> Option<OptTranspose> {
        let &AxisOp::Move(from, to) = op else { return None };
        let dt = input.datum_type;
        let is_taken = dt.is_copy() && dt.is_number() && [1, 2, 4, 8].contains(&dt.size_of()) && !input.is_exotic();
        let small =
            input.shape.as_concrete().is_some_and(|shape| product(shape).saturating_mul(dt.size_of()) < SMALLEST);
        (is_taken && !small && from.max(to) < input.rank()).then(|| OptTranspose {
            from,
            to,
            isa: options.isa.unwrap_or_else(Isa::best),
            limit: options.limit(),
        })
    }

    /// Returns the same op as tract has it.
    pub(super) fn axis_op(&self) -> AxisOp {
        AxisOp::Move(self.from, self.to)
    }

    /// Returns the planes of data of a shape.
    fn planes(&self, shape: &[usize]) -> Planes {
        // The moved axis, and those that it passes.
        let [rows, columns] = if self.from < self.to {
            [self.from..self.from + 1, self.from + 1..self.to + 1]
        } else {
            [self.to..self.from, self.from..self.from + 1]
        };
        let size = |axes: Range<usize>| product(&shape[axes]);
        match [size(rows.clone()), size(columns.clone()), size(columns.end..shape.len())] {
            // The elements keep their order.
            [1, _, _] | [_, 1, _] => Planes { rows: 1, columns: 1, inner: product(shape) },
            [rows, columns, inner] => Planes { rows, columns, inner },
        }
    }

    fn run(&self, input: TValue) -> TractResult<Tensor> {
        ensure!(
            self.from.max(self.to) < input.rank(),
            "input: shape={:?}, an axis {} is needed",
            input.shape(),
            self.from.max(self.to)
        );
        let (dt, planes) = (input.datum_type(), self.planes(input.shape()));
        let mut shape: TVec<usize> = input.shape().into();
        let moved = shape.remove(self.from);
        shape.insert(self.to, moved);
        self.limit.check_output(&shape, dt)?;
        if planes.rows == 1 && input.is_exclusive() {
            let mut tensor = input.into_tensor();
            tensor.set_shape(&shape)?;
            return Ok(tensor);
        }
        if planes.has_few_rows() {
            // A plane is divided among at most twice as many tasks as there are to be. A running
            // task has one more list.
            let lists = (2 * TASKS + 1) * size_of::<&mut [u8]>();
            self.limit.check_working(planes.columns.saturating_mul(lists))?;
        }
        #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
        // SAFETY: `output_tensor` returns uninitialised elements. Ops are made for numbers only,
        // and other types are refused below. `Planes::run` writes all elements, or fails, and then
        // the tensor is dropped without a read.
        let mut output = unsafe { memory::output_tensor("transposition", dt, &shape)? };
        let (from, mut to) = (input.try_as_plain_ram()?, output.try_as_plain_ram_mut()?);
        match dt {
            DatumType::F32 => {
                planes.run(&ByVectors(f32::kernels(self.isa)), from.as_slice::<f32>()?, to.as_slice_mut::<f32>()?)?
            }
            DatumType::F64 if F64 => {
                planes.run(&ByVectors(f64::kernels(self.isa)), from.as_slice::<f64>()?, to.as_slice_mut::<f64>()?)?
            }
            _ => match dt.size_of() {
                1 => planes.run(&ByElements, from.as_bytes(), to.as_bytes_mut())?,
                2 => planes.of_bytes::<2>(from.as_bytes(), to.as_bytes_mut())?,
                4 => planes.of_bytes::<4>(from.as_bytes(), to.as_bytes_mut())?,
                8 => planes.of_bytes::<8>(from.as_bytes(), to.as_bytes_mut())?,
                size => bail!("input: datum_type={dt:?}, elements of {size} bytes are not moved"),
            },
        }
        Ok(output)
    }
}

/// A tensor seen as planes of `rows` × `columns` runs of `inner` elements. Those of the output have
/// `columns` × `rows`.
struct Planes {
    rows: usize,
    columns: usize,
    inner: usize,
}

/// A part of an output plane: all of its rows, from some position on.
struct Part<'a, E> {
    /// The index of the first value in the input.
    first: usize,
    rows: Vec<&'a mut [E]>,
}

impl Planes {
    /// Returns whether output rows are few and long.
    fn has_few_rows(&self) -> bool {
        self.inner == 1 && self.columns < FEW_ROWS && self.rows >= FEW_ROWS
    }

    fn of_bytes<const N: usize>(&self, from: &[u8], to: &mut [u8]) -> TractResult<()> {
        self.run(&ByElements, from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0)
    }

    /// Writes all of `to`.
    fn run<E: Copy + Send + Sync>(&self, by: &impl Moves<E>, from: &[E], to: &mut [E]) -> TractResult<()> {
        if to.is_empty() {
            return Ok(());
        }
        let plane = self.rows * self.columns * self.inner;
        let cost = (size_of_val(to) as u64 / 16).saturating_mul(SIXTEEN_BYTES);
        let (planes, parts) = (to.len() / plane, TASKS * threads(cost));
        if !self.has_few_rows() {
            let rows = (planes * self.columns).div_ceil(parts);
            let rows = if self.inner == 1 { rows.next_multiple_of(MOST_LANES) } else { rows };
            let mut tasks: Vec<_> = to.chunks_mut(rows * self.rows * self.inner).enumerate().collect();
            return parallel(&mut tasks, cost, &|(task, to)| {
                self.whole_rows(by, *task * rows, from, to);
                Ok(())
            });
        }
        if planes >= parts {
            let values = planes.div_ceil(parts) * plane;
            let mut tasks: Vec<_> = to.chunks_mut(values).enumerate().collect();
            return parallel(&mut tasks, cost, &|(task, to)| {
                for (p, to) in to.chunks_mut(plane).enumerate() {
                    let mut rows = reserved("transposition", self.columns)?;
                    rows.extend(to.chunks_mut(self.rows));
                    by.to_rows(&from[*task * values + p * plane..], self.columns, &mut rows);
                }
                Ok(())
            });
        }
        let width = self.rows.div_ceil(parts.div_ceil(planes)).next_multiple_of(MOST_LANES);
        let mut tasks = vec![];
        for (p, to) in to.chunks_mut(plane).enumerate() {
            let part = |i| {
                let first = p * plane + i * width * self.columns;
                Ok(Part { first, rows: reserved("transposition", self.columns)? })
            };
            let mut parts = (0..self.rows.div_ceil(width)).map(part).collect::<TractResult<Vec<Part<E>>>>()?;
            for row in to.chunks_mut(self.rows) {
                parts.iter_mut().zip(row.chunks_mut(width)).for_each(|(part, row)| part.rows.push(row));
            }
            tasks.extend(parts);
        }
        parallel(&mut tasks, cost, &|part| {
            by.to_rows(&from[part.first..], self.columns, &mut part.rows);
            Ok(())
        })
    }

    /// Writes whole output rows. `first` counts the rows of all planes before `to`.
    fn whole_rows<E: Copy>(&self, by: &impl Moves<E>, mut first: usize, from: &[E], mut to: &mut [E]) {
        let row = self.rows * self.inner;
        while !to.is_empty() {
            let (p, column) = (first / self.columns, first % self.columns);
            let count = (self.columns - column).min(to.len() / row);
            let (rows, rest) = std::mem::take(&mut to).split_at_mut(count * row);
            let from = &from[p * self.columns * row..][..self.columns * row];
            if self.inner == 1 {
                by.to_pixels(&from[column..], self.columns, self.rows, rows);
            } else {
                for (i, to) in rows.chunks_exact_mut(self.inner).enumerate() {
                    let at = i % self.rows * self.columns + column + i / self.rows;
                    to.copy_from_slice(&from[at * self.inner..][..self.inner]);
                }
            }
            (first, to) = (first + count, rest);
        }
    }
}

/// A way to transpose. All of `to` is written.
trait Moves<E>: Sync {
    /// `to[i·count + j] = from[j·step + i]` for `j` in `0..count`. The rows of `from` may be shorter
    /// than `step` at its end.
    fn to_pixels(&self, from: &[E], step: usize, count: usize, to: &mut [E]);

    /// `to[j][i] = from[i·step + j]`. There are `step` rows in `to`, all equally long. `from` may be
    /// longer than what they need.
    fn to_rows(&self, from: &[E], step: usize, to: &mut [&mut [E]]);
}

struct ByElements;

impl<E: Copy + Sync> Moves<E> for ByElements {
    fn to_pixels(&self, from: &[E], step: usize, count: usize, to: &mut [E]) {
        for (block, to) in to.chunks_mut(MOST_LANES * count).enumerate() {
            for j in 0..count {
                let row = &from[j * step + block * MOST_LANES..];
                to[j..].iter_mut().step_by(count).zip(row).for_each(|(to, from)| *to = *from);
            }
        }
    }

    fn to_rows(&self, from: &[E], step: usize, to: &mut [&mut [E]]) {
        let width = to.first().map_or(0, |row| row.len());
        for at in (0..width).step_by(BLOCK) {
            let end = width.min(at + BLOCK);
            for (j, row) in to.iter_mut().enumerate() {
                let from = from[at * step + j..].iter().step_by(step);
                row[at..end].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

struct ByVectors<T: Compute>(&'static Kernels<T>);

impl<T: Compute> Moves<T> for ByVectors<T> {
    fn to_pixels(&self, from: &[T], step: usize, count: usize, to: &mut [T]) {
        let ByVectors(kernels) = self;
        let (lanes, pixels) = (kernels.lanes, to.len() / count);
        if count <= lanes {
            let rows: TVec<&[T]> = (0..count).map(|j| &from[j * step..][..pixels]).collect();
            return kernels.interleave(&rows, to);
        }
        if pixels < lanes {
            return ByElements.to_pixels(from, step, count, to);
        }
        let mut starts = [0; MOST_LANES];
        let mut moved = |at: usize, pixels: usize| {
            for j in (0..count).step_by(lanes) {
                // The last rows end where all do.
                let j = j.min(count - lanes);
                starts[..lanes].iter_mut().enumerate().for_each(|(k, start)| *start = (j + k) * step + at);
                kernels.indexed_rows_to_pixels(from, &starts[..lanes], pixels, &mut to[at * count + j..], count);
            }
        };
        let whole = pixels / lanes * lanes;
        let block = (BLOCK_ELEMENTS / count).clamp(2 * MOST_LANES, BLOCK) / MOST_LANES * MOST_LANES;
        (0..whole).step_by(block).for_each(|at| moved(at, block.min(whole - at)));
        if whole < pixels {
            moved(pixels - lanes, lanes);
        }
    }

    fn to_rows(&self, from: &[T], step: usize, to: &mut [&mut [T]]) {
        let ByVectors(kernels) = self;
        let (lanes, width) = (kernels.lanes, to.first().map_or(0, |row| row.len()));
        // The pixels of which whole vectors can be read.
        let readable = from.len().checked_sub(step.max(lanes)).map_or(0, |last| last / step + 1);
        let whole = width.min(readable);
        if whole < lanes {
            return ByElements.to_rows(from, step, to);
        }
        let starts: [usize; BLOCK] = std::array::from_fn(|i| i * step);
        let starts = PixelStarts::new(&starts);
        for at in (0..whole).step_by(BLOCK) {
            // The last pixels end where all do.
            let at = at.min(whole - lanes);
            let count = BLOCK.min(whole - at);
            for j in (0..step).step_by(lanes) {
                let j = j.min(step.saturating_sub(lanes));
                let rows = &mut to[j..step.min(j + lanes)];
                kernels.pixels_to_rows(&from[at * step + j..], starts.of(0..count), rows, at, None, false);
            }
        }
        for (j, row) in to.iter_mut().enumerate() {
            (whole..width).for_each(|i| row[i] = from[i * step + j]);
        }
    }
}

impl Op for OptTranspose {
    fn name(&self) -> StaticName {
        "OptTranspose".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("axis {} to {}, on {}", self.from, self.to, self.isa)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptTranspose {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        Ok(tvec!(self.run(args_1!(inputs))?.into_tvalue()))
    }
}

impl TypedOp for OptTranspose {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.axis_op().output_facts(inputs)
    }

    as_op!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_documented;

    /// Bytes that differ from their neighbours, as a tensor of a type.
    fn counted(dt: DatumType, shape: &[usize]) -> TractResult<Tensor> {
        let mut tensor = Tensor::zero_dt(dt, shape)?;
        let count = |(i, byte): (usize, &mut u8)| *byte = (i as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0];
        tensor.as_bytes_mut().iter_mut().enumerate().for_each(count);
        Ok(tensor)
    }

    fn op(from: usize, to: usize, isa: Isa, limit: usize) -> TractResult<OptTranspose> {
        let options = PlanOptions::default().with_isa(isa).with_memory_limit(limit);
        let input = f32::fact([64, 64, 64, 64]);
        OptTranspose::of(&AxisOp::Move(from, to), &input, &options).context("taken")
    }

    fn run(op: &OptTranspose, input: &TValue) -> TractResult<Tensor> {
        let outputs = op.eval(&EvalContext::out_of_plan(), tvec!(input.clone()))?;
        Ok(args_1!(outputs).into_tensor())
    }

    #[test]
    fn elements_move_as_by_tract() -> TractResult<()> {
        let sizes =
            [[1, 1], [2, 3], [3, 7], [4, 64], [8, 8], [9, 16], [15, 33], [17, 20], [63, 65], [70, 3], [257, 21]];
        let sizes = sizes.into_iter().flat_map(|[a, b]| [[a, b], [b, a]]);
        let shapes = sizes.flat_map(|[a, b]| [[1, a, b, 1], [3, a, b, 1], [1, a, b, 3], [2, 1, a, b], [40, a, b, 1]]);
        let isas: Vec<Isa> = Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect();
        for shape in shapes.filter(|shape| product(shape) <= 100_000) {
            for dt in [u8::datum_type(), f16::datum_type(), i32::datum_type(), f32::datum_type(), f64::datum_type()] {
                let x = counted(dt, &shape)?.into_tvalue();
                for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (0, 2)] {
                    let expected = x.moved_axis(from, to)?;
                    for isa in &isas {
                        let y = run(&op(from, to, *isa, usize::MAX)?, &x)?;
                        ensure!(y.shape() == expected.shape(), "{shape:?}, {from} to {to}: {:?}", y.shape());
                        ensure!(y.as_bytes() == expected.as_bytes(), "{shape:?} of {dt:?}, {from} to {to} on {isa}");
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn axes_of_one_position_move_in_place() -> TractResult<()> {
        let op = op(1, 3, Isa::best(), usize::MAX)?;
        for shape in [[2, 1, 40, 30], [2, 40, 1, 1], [0, 3, 4, 5]] {
            let x = counted(f32::datum_type(), &shape)?;
            let (expected, at) = (x.moved_axis(1, 3)?, x.as_bytes().as_ptr());
            let y = args_1!(op.eval(&EvalContext::out_of_plan(), tvec!(x.into_tvalue()))?);
            assert_eq!((y.shape(), y.as_bytes()), (expected.shape(), expected.as_bytes()));
            assert!(y.len() == 0 || y.as_bytes().as_ptr() == at, "{shape:?} is copied");
        }
        assert!(run(&op, &Tensor::zero::<f32>(&[1, 2, 3])?.into_tvalue()).is_err());
        Ok(())
    }

    #[test]
    fn outputs_and_lists_keep_the_limit() -> TractResult<()> {
        let lists = 3 * 9 * size_of::<&mut [f32]>();
        for (shape, working) in [([1, 3, 4, 5], 0), ([1, 3, 8, 8], 0), ([1, 8, 8, 3], lists), ([1, 1, 70, 3], lists)] {
            let x = counted(f32::datum_type(), &shape)?.into_tvalue();
            let (from, to) = if shape[3] == 3 { (3, 1) } else { (1, 3) };
            let bytes = x.as_bytes().len();
            for limit in [0, 1, bytes - 1] {
                let error = run(&op(from, to, Isa::best(), limit)?, &x).expect_err("beyond the limit").to_string();
                assert!(error.contains(&format!("its {bytes} bytes are more than the limit of {limit}")), "{error}");
            }
            assert!(run(&op(from, to, Isa::best(), bytes.max(working))?, &x).is_ok());
        }
        Ok(())
    }

    #[test]
    fn small_tensors_and_other_types_stay_with_tract() {
        let taken = |fact: TypedFact| OptTranspose::of(&AxisOp::Move(0, 1), &fact, &PlanOptions::default()).is_some();
        assert!(taken(f32::fact([32, 32])) && taken(u8::fact([64, 64])) && taken(f64::fact([16, 32])));
        assert!(!taken(f32::fact([31, 33])) && !taken(u8::fact([64, 63])));
        assert!(!taken(bool::fact([64, 64])) && !taken(TDim::fact([64, 64])) && !taken(String::fact([64, 64])));
        assert!(!taken(f32::fact([4096])));
        let other = OptTranspose::of(&AxisOp::Add(0), &f32::fact([64, 64]), &PlanOptions::default());
        assert!(other.is_none());
        assert_documented("docs/fusion.md", &format!("of a tensor of {} KiB or more", SMALLEST >> 10));
    }
}
