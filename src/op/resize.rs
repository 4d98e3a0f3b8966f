//! Resizing of axes: linear interpolation and nearest neighbours.

use super::axes::product;
use super::shared;
use crate::kernel::{Dispatch, Kernels, TwoTaps};
use crate::memory::{self, collected, zeros};
use crate::parallel::{parallel, threads};
use crate::plan::{MemoryLimit, PlanOptions};
use crate::simd::isa::Isa;
use tract_core::internal::*;
use tract_core::ops::nn::resize::{Interpolator, NearestUpsample, Resize, linear_weights};

/// Rows of at least this many values are blended by vectors. Values of shorter ones get their own
/// taps.
const SHORT_ROW: usize = 16;

/// The most positions of a scaled axis.
const MOST_SIZE: f64 = (1u64 << 48) as f64;

/// Tasks per thread.
const TASKS: usize = 4;

/// Estimated cost of four elements, in vector multiply-adds.
const FOUR_ELEMENTS: u64 = 12;

/// tract's op that is replaced. It defines sizes and coordinates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Resize(Resize),
    Nearest(NearestUpsample),
}

/// Resizes axes of f16 or f32 data, linearly or by nearest neighbours.
///
/// The inputs and the output are those of tract's `Resize` or `NearestUpsample`, but the axes of the
/// data may be in another order than the scales or sizes. Each result is the
/// weighted sum of at most two values per axis. A value of weight zero is not read, so that NaN and
/// the infinities reach no other results than in tract. f16 is computed in f32, as by tract.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptResize {
    rule: Rule,
    /// The axis of the rule that each axis of the data is.
    order: TVec<usize>,
    isa: Isa,
    limit: MemoryLimit,
}

impl OptResize {
    /// Returns the op that replaces a node, if it resizes in a way that is understood.
    pub(super) fn of(node: &TypedNode, input: &TypedFact, options: &PlanOptions) -> Option<OptResize> {
        let rule = match (node.op_as::<Resize>(), node.op_as::<NearestUpsample>()) {
            (Some(op), _) if op.interpolator != Interpolator::Cubic => Rule::Resize(op.clone()),
            (_, Some(op)) => Rule::Nearest(op.clone()),
            _ => return None,
        };
        let isa = options.isa.unwrap_or_else(Isa::best);
        let is_taken = matches!(input.datum_type, DatumType::F16 | DatumType::F32);
        is_taken.then(|| OptResize { rule, order: (0..input.rank()).collect(), isa, limit: options.limit() })
    }

    /// Returns the op for data one of whose axes has moved before.
    ///
    /// The inputs of scales or sizes keep their order.
    pub(super) fn moved(mut self, from: usize, to: usize) -> OptResize {
        let axis = self.order.remove(from);
        self.order.insert(to, axis);
        self
    }

    /// Returns whether the output is known to be larger than the data.
    pub(super) fn enlarges(&self, inputs: &[&TypedFact], output: &TypedFact) -> bool {
        let shapes = [&inputs[0].shape, &output.shape].map(|shape| shape.as_concrete().map(product));
        if let [Some(input), Some(output)] = shapes {
            return input < output;
        }
        match &self.rule {
            Rule::Nearest(op) => op.scales.iter().any(|scale| *scale > 1) && !op.scales.contains(&0),
            Rule::Resize(op) => {
                let given = op.optional_scales_input.and_then(|slot| inputs.get(slot)?.konst.as_ref());
                let view = given.and_then(|given| given.try_as_plain_ram().ok());
                let scales = view.as_ref().and_then(|view| view.as_slice::<f32>().ok()).unwrap_or(&[]);
                scales.iter().all(|scale| *scale >= 1.0) && scales.iter().any(|scale| *scale > 1.0)
            }
        }
    }

    /// Returns values, one per axis of the data, in the order of the rule.
    fn of_rule<T: Clone>(&self, of_data: &[T]) -> TractResult<TVec<T>> {
        ensure!(of_data.len() == self.order.len(), "resize: {} axes, {} are needed", of_data.len(), self.order.len());
        let mut of_rule: TVec<T> = of_data.into();
        of_data.iter().zip(&self.order).for_each(|(value, axis)| of_rule[*axis] = value.clone());
        Ok(of_rule)
    }

    /// Returns values, one per axis of the rule, in the order of the data.
    fn of_data<T: Clone>(&self, of_rule: &[T]) -> TVec<T> {
        self.order.iter().map(|axis| of_rule[*axis].clone()).collect()
    }

    /// Returns the output's shape and the scale of each axis.
    fn sizes(&self, inputs: &[TValue]) -> TractResult<(TVec<usize>, TVec<f32>)> {
        let (output, scales) = self.sizes_of_rule(&self.of_rule(inputs[0].shape())?, inputs)?;
        Ok((self.of_data(&output), self.of_data(&scales)))
    }

    fn sizes_of_rule(&self, shape: &[usize], inputs: &[TValue]) -> TractResult<(TVec<usize>, TVec<f32>)> {
        let op = match &self.rule {
            Rule::Nearest(op) => {
                ensure!(op.scales.len() == shape.len(), "resize: shape={shape:?}, {} axes are needed", op.scales.len());
                let output = shape.iter().zip(&op.scales).map(|(size, scale)| size.saturating_mul(*scale)).collect();
                return Ok((output, op.scales.iter().map(|scale| *scale as f32).collect()));
            }
            Rule::Resize(op) => op,
        };
        let input = |slot: Option<usize>| slot.and_then(|slot| inputs.get(slot)).map(|value| &**value);
        let (scales, sizes) = (input(op.optional_scales_input), input(op.optional_sizes_input));
        let given = scales.filter(|scales| scales.len() == shape.len());
        let Some(given) = given else {
            let output = op.compute_output_shape(shape, scales, sizes)?;
            let scales = output.iter().zip(shape).map(|(output, input)| *output as f32 / *input as f32).collect();
            return Ok((output, scales));
        };
        // They are f16 in a model that was turned to it.
        let given: TVec<f32> = given.cast_to::<f32>()?.try_as_plain_ram()?.as_slice::<f32>()?.into();
        for (size, scale) in shape.iter().zip(&given) {
            // tract multiplies without a check. Not a number is no size either.
            let fits = *size as f64 * f64::from(*scale) <= MOST_SIZE;
            ensure!(fits, "resize: scale={scale}, an axis of {size} gets more than {MOST_SIZE} positions or none");
        }
        Ok((op.compute_output_shape(shape, scales, sizes)?, given))
    }

    /// Returns the taps of an axis, neither of whose sizes is zero.
    fn taps(&self, scale: f32, input: usize, output: usize) -> TractResult<Taps> {
        let op = match &self.rule {
            Rule::Nearest(_) => {
                return Ok(Taps::One(collected("resize", (0..output).map(|at| at / (output / input)))?));
            }
            Rule::Resize(op) => op,
        };
        // The positions before and after a coordinate, and how far it is behind the first one: more
        // than 0, and 1 if it is a position. What is outside of the input reads its first or last
        // value.
        let neighbours = |at: usize| {
            let coordinate = op.coord_transformer.transform(at, scale, input, output);
            let before = coordinate.ceil() - 1.0;
            let first = before as isize;
            let inside = |at: isize| at.clamp(0, input as isize - 1) as usize;
            ([first, first.saturating_add(1)].map(inside), coordinate - before)
        };
        if op.interpolator == Interpolator::Nearest {
            let nearest = |at: usize| {
                let (positions, behind) = neighbours(at);
                positions[usize::from(behind == 1.0 || op.nearest.prefers_right(behind))]
            };
            return Ok(Taps::One(collected("resize", (0..output).map(nearest))?));
        }
        let linear = |at: usize| {
            let (positions, behind) = neighbours(at);
            let mut weights = [0.0; 2];
            linear_weights(behind, scale, false, &mut weights);
            match weights {
                // Twice a half is exact, and reads no other value.
                [weight, 0.0] => TwoTaps { positions: [positions[0]; 2], weights: [weight / 2.0; 2] },
                [0.0, weight] => TwoTaps { positions: [positions[1]; 2], weights: [weight / 2.0; 2] },
                _ => TwoTaps { positions, weights },
            }
        };
        let taps = collected("resize", (0..output).map(linear))?;
        if taps.iter().all(|taps| taps.weights == [0.5; 2] && taps.positions[0] == taps.positions[1]) {
            return Ok(Taps::One(collected("resize", taps.iter().map(|taps| taps.positions[0]))?));
        }
        Ok(Taps::Two(taps))
    }

    fn run(&self, inputs: &[TValue]) -> TractResult<TValue> {
        let input = &inputs[0];
        let shape = input.shape();
        let (output, scales) = self.sizes(inputs)?;
        self.limit.check_output(&output, input.datum_type())?;
        if output.contains(&0) {
            let empty = match input.datum_type() {
                DatumType::F16 => memory::zero_tensor::<f16>("resize", &output)?,
                _ => memory::zero_tensor::<f32>("resize", &output)?,
            };
            return Ok(empty.into_tvalue());
        }
        let resized = (0..shape.len()).filter(|&axis| shape[axis] != output[axis] || scales[axis] != 1.0);
        let resized: TVec<usize> = resized.collect();
        if let Some(axis) = resized.iter().find(|&&axis| shape[axis] == 0) {
            bail!("resize: shape={shape:?}, axis {axis} is empty and its result is not");
        }
        if resized.is_empty() {
            return Ok(input.clone());
        }
        let half = input.datum_type() == DatumType::F16;
        let copies = if half { product(shape).saturating_add(product(&output)).saturating_mul(4) } else { 0 };
        self.limit.check_working(copies.saturating_add(working_bytes(shape, &output, &resized)))?;
        if !half {
            return Ok(self.resized(input, &output, &scales, &resized)?.into_tvalue());
        }
        let wide = shared::converted("resize", input, DatumType::F32)?;
        let wide = self.resized(&wide, &output, &scales, &resized)?;
        Ok(shared::converted("resize", &wide, DatumType::F16)?.into_tvalue())
    }

    /// Resizes some axes of a tensor of f32, of which there is at least one.
    fn resized(&self, input: &Tensor, output: &[usize], scales: &[f32], axes: &[usize]) -> TractResult<Tensor> {
        let kernels = <f32 as Dispatch>::kernels(self.isa);
        let mut value: Option<Tensor> = None;
        let mut axes = axes.iter().copied().peekable();
        while let Some(axis) = axes.next() {
            let from = value.as_ref().unwrap_or(input);
            let mut shape: TVec<usize> = from.shape().into();
            let first = self.taps(scales[axis], shape[axis], output[axis])?;
            let second = axes.next_if_eq(&(axis + 1));
            let second = second.map(|axis| self.taps(scales[axis], shape[axis], output[axis])).transpose()?;
            // A last axis is that of columns.
            let (rows, columns, row_axis) = match second {
                Some(second) => (Some(first), Some(second), axis),
                None if axis > 0 && product(&shape[axis + 1..]) == 1 => (None, Some(first), axis - 1),
                None => (Some(first), None, axis),
            };
            let inner = product(&shape[row_axis + if columns.is_some() { 2 } else { 1 }..]);
            let plane = Plane::new(kernels, &shape[row_axis..], rows, columns, inner)?;
            shape[axis] = output[axis];
            if plane.columns.is_some() {
                shape[row_axis + 1] = output[row_axis + 1];
            }
            // Some axes may grow before others shrink.
            self.limit.check_output(&shape, DatumType::F32)?;
            #[expect(unsafe_code, reason = "an output is written once, not cleared before")]
            // SAFETY: `output_tensor` returns uninitialised elements. `Plane::run` writes all of
            // them, or fails, and then the tensor is dropped without a read.
            let mut to = unsafe { memory::output_tensor("resize", DatumType::F32, &shape)? };
            plane
                .run(from.try_as_plain_ram()?.as_slice::<f32>()?, to.try_as_plain_ram_mut()?.as_slice_mut::<f32>()?)?;
            value = Some(to);
        }
        value.context("resize: no axis is resized")
    }
}

/// Returns the most bytes of the taps and of a thread's resized rows.
fn working_bytes(input: &[usize], output: &[usize], resized: &[usize]) -> usize {
    let of_axis = |axis: usize| {
        let inner = product(&input[axis + 1..]);
        let row = output[axis].saturating_mul(inner);
        let taps = output[axis].saturating_add(if inner < SHORT_ROW { row } else { 0 });
        let rows = if axis > 0 && resized.contains(&(axis - 1)) { row } else { 0 };
        taps.saturating_mul(size_of::<TwoTaps<f32>>()).saturating_add(rows.saturating_mul(2 * size_of::<f32>()))
    };
    resized.iter().map(|axis| of_axis(*axis)).fold(0, usize::saturating_add)
}

/// The positions of an axis that each result is made of.
enum Taps {
    /// One position per result.
    One(Vec<usize>),
    /// Two positions and their weights per result.
    Two(Vec<TwoTaps<f32>>),
}

impl Taps {
    fn len(&self) -> usize {
        match self {
            Taps::One(taps) => taps.len(),
            Taps::Two(taps) => taps.len(),
        }
    }

    /// Returns how often each of `input` positions stands in the results, if these are the positions in order, each
    /// equally often.
    fn repeats(&self, input: usize) -> Option<usize> {
        let Taps::One(taps) = self else { return None };
        let repeats = taps.len() / input.max(1);
        let in_order = repeats > 0 && taps.iter().enumerate().all(|(i, tap)| *tap == i / repeats);
        (in_order && taps.len() == repeats * input).then_some(repeats)
    }

    /// Returns the taps of values, of which each position has `count`.
    fn repeated(self, count: usize) -> TractResult<Taps> {
        let values = self.len().saturating_mul(count);
        Ok(match self {
            Taps::One(taps) => {
                Taps::One(collected("resize", (0..values).map(|i| taps[i / count] * count + i % count))?)
            }
            Taps::Two(taps) => {
                let each = |i: usize| {
                    let tap = &taps[i / count];
                    TwoTaps { positions: tap.positions.map(|at| at * count + i % count), ..*tap }
                };
                Taps::Two(collected("resize", (0..values).map(each))?)
            }
        })
    }
}

/// Two neighbouring axes, rows and columns, of which one or both are resized.
struct Plane {
    kernels: &'static Kernels<f32>,
    /// Rows of the input.
    input_rows: usize,
    /// Values of an input row.
    input_row: usize,
    /// Values of an output row.
    output_row: usize,
    rows: Option<Taps>,
    columns: Option<Taps>,
    /// Values per tap of `columns`.
    inner: usize,
    /// How often a row's values are repeated by `columns`, if that is all they do.
    repeats: Option<usize>,
}

impl Plane {
    /// `shape` has the axis of rows and those after it. Each column has `inner` values.
    fn new(
        kernels: &'static Kernels<f32>,
        shape: &[usize],
        rows: Option<Taps>,
        columns: Option<Taps>,
        inner: usize,
    ) -> TractResult<Plane> {
        let input_row = product(&shape[1..]);
        let output_row = columns.as_ref().map_or(input_row, |columns| columns.len() * inner);
        let (columns, inner) = match columns {
            Some(columns) if inner < SHORT_ROW => (Some(columns.repeated(inner)?), 1),
            columns => (columns, inner),
        };
        let repeats = columns.as_ref().filter(|_| inner == 1).and_then(|columns| columns.repeats(input_row));
        Ok(Plane { kernels, input_rows: shape[0], input_row, output_row, rows, columns, inner, repeats })
    }

    fn output_rows(&self) -> usize {
        self.rows.as_ref().map_or(self.input_rows, Taps::len)
    }

    /// Writes all of `to`, in tasks of whole rows.
    fn run(&self, from: &[f32], to: &mut [f32]) -> TractResult<()> {
        let cost = to.len() as u64 / 4 * FOUR_ELEMENTS;
        let rows = (to.len() / self.output_row).div_ceil(TASKS * threads(cost));
        let mut tasks: Vec<_> = to.chunks_mut(rows * self.output_row).enumerate().collect();
        parallel(&mut tasks, cost, &|(task, to)| self.rows(*task * rows, from, to))
    }

    /// Writes whole rows. `first` counts the rows of all planes before `to`.
    fn rows(&self, first: usize, from: &[f32], to: &mut [f32]) -> TractResult<()> {
        let output_rows = self.output_rows();
        let of_plane = |row: usize, at: usize| row / output_rows * self.input_rows + at;
        let input = |row: usize| &from[row * self.input_row..][..self.input_row];
        let count = to.len() / self.output_row;
        match &self.rows {
            None => {
                for (i, to) in to.chunks_exact_mut(self.output_row).enumerate() {
                    self.columns(input(first + i), to);
                }
            }
            Some(Taps::One(rows)) => {
                let source = |i: usize| of_plane(first + i, rows[(first + i) % output_rows]);
                for i in 0..count {
                    let (before, to) = to.split_at_mut(i * self.output_row);
                    let to = &mut to[..self.output_row];
                    if i > 0 && source(i) == source(i - 1) {
                        to.copy_from_slice(&before[before.len() - self.output_row..]);
                    } else {
                        self.columns(input(source(i)), to);
                    }
                }
            }
            Some(Taps::Two(rows)) if self.columns.is_none() => {
                for (i, to) in to.chunks_exact_mut(self.output_row).enumerate() {
                    let taps = &rows[(first + i) % output_rows];
                    self.kernels.blend(taps.positions.map(|at| input(of_plane(first + i, at))), taps.weights, to);
                }
            }
            Some(Taps::Two(rows)) => {
                // The last two input rows with resized columns. Neighbouring results share them.
                let mut kept: [Vec<f32>; 2] =
                    [zeros("resized row", self.output_row)?, zeros("resized row", self.output_row)?];
                let mut held = [usize::MAX; 2];
                for (i, to) in to.chunks_exact_mut(self.output_row).enumerate() {
                    let taps = &rows[(first + i) % output_rows];
                    let wanted = taps.positions.map(|at| of_plane(first + i, at));
                    if held[1] == wanted[0] && held[0] != wanted[0] {
                        held.swap(0, 1);
                        kept.swap(0, 1);
                    }
                    for slot in 0..2 {
                        if held[slot] != wanted[slot] {
                            self.columns(input(wanted[slot]), &mut kept[slot]);
                            held[slot] = wanted[slot];
                        }
                    }
                    self.kernels.blend([&kept[0], &kept[1]], taps.weights, to);
                }
            }
        }
        Ok(())
    }

    /// Resizes the columns of a row.
    fn columns(&self, from: &[f32], to: &mut [f32]) {
        match &self.columns {
            None => to.copy_from_slice(from),
            // The usual numbers are constants, so that the compiler vectorises their loops.
            Some(Taps::One(_)) if self.repeats == Some(2) => repeat::<2>(from, to),
            Some(Taps::One(_)) if self.repeats == Some(4) => repeat::<4>(from, to),
            Some(Taps::One(_)) if self.repeats == Some(8) => repeat::<8>(from, to),
            Some(Taps::One(columns)) if self.inner == 1 => {
                to.iter_mut().zip(&columns[..self.output_row]).for_each(|(to, at)| *to = from[*at]);
            }
            Some(Taps::Two(columns)) if self.inner == 1 => self.kernels.resample_row(from, columns, to),
            Some(Taps::One(columns)) => {
                for (to, at) in to.chunks_exact_mut(self.inner).zip(columns) {
                    to.copy_from_slice(&from[at * self.inner..][..self.inner]);
                }
            }
            Some(Taps::Two(columns)) => {
                for (to, taps) in to.chunks_exact_mut(self.inner).zip(columns) {
                    let from = taps.positions.map(|at| &from[at * self.inner..][..self.inner]);
                    self.kernels.blend(from, taps.weights, to);
                }
            }
        }
    }
}

/// Writes each value `TIMES` times.
fn repeat<const TIMES: usize>(from: &[f32], to: &mut [f32]) {
    to.as_chunks_mut::<TIMES>().0.iter_mut().zip(from).for_each(|(to, value)| *to = [*value; TIMES]);
}

impl Op for OptResize {
    fn name(&self) -> StaticName {
        "OptResize".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        let rule = match &self.rule {
            Rule::Nearest(op) => format!("nearest, scales {:?}", op.scales),
            Rule::Resize(op) => format!("{}, {}", op.interpolator.as_str(), op.coord_transformer.as_str()),
        };
        let order = if self.order.is_sorted() { String::new() } else { format!(", of axes {:?}", self.order) };
        Ok(vec![format!("{rule}{order}, on {}", self.isa)])
    }

    op_as_typed_op!();
}

impl EvalOp for OptResize {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        ensure!(!inputs.is_empty(), "inputs: count=0, the data is needed");
        Ok(tvec!(self.run(&inputs)?))
    }
}

impl TypedOp for OptResize {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let data = inputs[0].datum_type.fact(self.of_rule(&inputs[0].shape)?);
        let inputs: TVec<&TypedFact> = [&data].into_iter().chain(inputs[1..].iter().copied()).collect();
        let facts = match &self.rule {
            Rule::Resize(op) => op.output_facts(&inputs)?,
            Rule::Nearest(op) => op.output_facts(&inputs)?,
        };
        Ok(tvec!(facts[0].datum_type.fact(self.of_data(&facts[0].shape))))
    }

    as_op!();
}
