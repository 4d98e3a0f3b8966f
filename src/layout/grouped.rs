//! Layers of integers of 8 bits as layers of elements that hold several of them.
//!
//! An element holds the integers of adjacent input channels. If a group has few channels, it also
//! holds those of several taps of a row, so that the taps of the new layer are fewer: the first tap
//! of element `i` is input `i`, and the others follow where the next taps of the row read.

use crate::compute::Grouped;
use crate::formats::DataFormat;
use crate::kernel::{Bytes, Grouping, GroupingKernels};
use crate::layout::input::SIXTEEN_BYTES;
use crate::memory::{reserved, zero_tensor};
use crate::parallel::{parallel, threads};
use crate::spec::{DeconvSpec, Direction, MAX_EXTENT, Padding, Problem};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// Bytes before a row whose taps share elements, for elements that are made of more adjacent integers
/// than there are taps.
const BEFORE: usize = 3;

/// Bytes after such a row, for kernels that load whole vectors.
const AFTER: usize = 16;

/// Tasks per thread.
const TASKS: usize = 4;

/// The terms of a sum that an element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    grouped: Grouped,
    /// Taps of a row. If there are several, all input channels of a group are in an element.
    taps: usize,
    /// The distance between the inputs of adjacent taps, negative in a transposed convolution.
    tap_step: i64,
}

impl Terms {
    /// Decides on the terms, which depend on channels and kernel only.
    pub fn new(spec: &DeconvSpec, grouped: Grouped) -> Terms {
        let last = spec.rank() - 1;
        let (kernel, stride, dilation) = (spec.kernel[last], spec.strides[last], spec.dilations[last]);
        let room = grouped.count() / spec.group_in();
        let (taps, tap_step) = match spec.direction {
            // The stride leaves room for the taps of other phases.
            Direction::Transposed if dilation == 1 && kernel.div_ceil(stride) <= room => (kernel.div_ceil(stride), -1),
            Direction::Forward if room > 1 => (room.min(kernel), dilation as i64),
            _ => (1, 0),
        };
        Terms { grouped, taps, tap_step }
    }

    /// The same without taps: elements hold input channels only.
    pub fn of_channels(grouped: Grouped) -> Terms {
        Terms { grouped, taps: 1, tap_step: 0 }
    }

    /// Elements per position and group.
    fn group_in(&self, spec: &DeconvSpec) -> usize {
        if self.taps > 1 { 1 } else { spec.group_in().div_ceil(self.grouped.count()) }
    }

    /// Returns the channel within its group and the tap of each integer of an element. None for
    /// those that are missing.
    fn slots(&self, channels: usize, element: usize) -> impl Iterator<Item = Option<(usize, usize)>> {
        let Terms { grouped, taps, .. } = *self;
        (0..grouped.count()).map(move |slot| match taps {
            1 => Some((element * grouped.count() + slot, 0)).filter(|(channel, _)| *channel < channels),
            _ => Some((slot % channels, slot / channels)).filter(|(_, tap)| *tap < taps),
        })
    }

    /// Returns the layer of elements for a filter's spec, without its padding.
    pub fn spec(&self, spec: &DeconvSpec) -> DeconvSpec {
        let mut of_elements = DeconvSpec { in_channels: spec.group * self.group_in(spec), ..spec.clone() };
        let last = spec.rank() - 1;
        if self.taps > 1 {
            match spec.direction {
                Direction::Transposed => of_elements.kernel[last] = spec.kernel[last].min(spec.strides[last]),
                Direction::Forward => {
                    of_elements.kernel[last] = spec.kernel[last].div_ceil(self.taps);
                    // A single tap has no dilation, which could otherwise become too large.
                    of_elements.dilations[last] =
                        if of_elements.kernel[last] == 1 { 1 } else { spec.dilations[last] * self.taps };
                }
            }
        }
        of_elements
    }

    /// Returns the filter of the layer of elements. `element` makes one of its weights.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn filter(&self, spec: &DeconvSpec, weights: &[i16], element: impl Fn(&[i16]) -> i32) -> TractResult<Tensor> {
        let mut tensor = zero_tensor::<i32>("filter", &self.spec(spec).filter_shape())?;
        let mut view = tensor.try_as_plain_ram_mut()?;
        let elements = view.as_slice_mut::<i32>()?;
        let mut integers = [0; 4];
        self.for_each_element(spec, |at, slots| {
            for (integer, slot) in integers.iter_mut().zip(slots) {
                *integer = slot.map_or(0, |slot| weights[slot]);
            }
            elements[at] = element(&integers[..slots.len()]);
        });
        Ok(tensor)
    }

    /// Returns the weights that [`Terms::filter`] made a filter of. `integers` returns those of an element.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn weights(
        &self,
        spec: &DeconvSpec,
        filter: &[i32],
        integers: impl Fn(i32) -> [i16; 4],
    ) -> TractResult<Tensor> {
        let mut tensor = zero_tensor::<i16>("filter", &spec.filter_shape())?;
        let mut view = tensor.try_as_plain_ram_mut()?;
        let weights = view.as_slice_mut::<i16>()?;
        self.for_each_element(spec, |at, slots| {
            for (integer, slot) in integers(filter[at]).into_iter().zip(slots) {
                if let Some(slot) = slot {
                    weights[*slot] = integer;
                }
            }
        });
        Ok(tensor)
    }

    /// Calls `each` with the index of each element of the filter of elements, and the indices of its
    /// integers in the spec's filter. None for those that are missing.
    fn for_each_element(&self, spec: &DeconvSpec, mut each: impl FnMut(usize, &[Option<usize>])) {
        let of_elements = self.spec(spec);
        let (from, to) = (spec.filter_strides(), of_elements.filter_strides());
        let last = spec.rank() - 1;
        let taps = of_elements.kernel.iter().map(|size| 0..*size).multi_cartesian_product();
        for (tap, c) in taps.cartesian_product(0..self.group_in(spec)) {
            let outer: usize = tap[..last].iter().zip(&from.kernel).map(|(k, stride)| k * stride).sum();
            let slots: SmallVec<[Option<usize>; 4]> = self
                .slots(spec.group_in(), c)
                .map(|slot| {
                    let (channel, of_row) = slot?;
                    let k = match spec.direction {
                        Direction::Transposed => tap[last] + of_row * spec.strides[last],
                        Direction::Forward => tap[last] * self.taps + of_row,
                    };
                    (k < spec.kernel[last]).then_some(channel * from.input + outer + k * from.kernel[last])
                })
                .collect();
            let at: usize = c * to.input + tap.iter().zip(&to.kernel).map(|(k, stride)| k * stride).sum::<usize>();
            let mut all = [None; 4];
            for (g, o) in (0..spec.group).cartesian_product(0..spec.group_out()) {
                let base = g * from.group + o * from.output;
                all.iter_mut().zip(&slots).for_each(|(to, slot)| *to = slot.map(|slot| base + slot));
                each(g * to.group + o * to.output + at, &all[..slots.len()]);
            }
        }
    }
}

/// A layer of elements, for one input shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupedLayer {
    pub terms: Terms,
    /// Its spec.
    pub spec: DeconvSpec,
    /// Whether its padding is explicit. Otherwise it is that of the spec of integers.
    pub explicit: bool,
    /// The shape of its input.
    pub input: TVec<usize>,
    /// The positions added before each axis.
    before: TVec<usize>,
}

impl GroupedLayer {
    /// Describes the layer of elements of a problem.
    ///
    /// If `bordered`, its input has a border so large that no tap reads outside of it. Otherwise it
    /// has only the positions at which some tap of an element reads inside.
    ///
    /// None if its sizes or its padding would be too large for a spec.
    pub fn new(spec: &DeconvSpec, problem: &Problem, terms: Terms, bordered: bool) -> Option<GroupedLayer> {
        if !bordered && terms.taps == 1 {
            let of_elements = terms.spec(spec);
            let sizes = problem.axes.iter().map(|axis| axis.input);
            let input = spec.data_format.shape(problem.batch, of_elements.in_channels, sizes);
            let before = tvec!(0; spec.rank());
            return Some(GroupedLayer { terms, spec: of_elements, explicit: false, input, before });
        }
        let mut of_elements = terms.spec(spec);
        let last = spec.rank() - 1;
        let (mut begin, mut end, mut before, mut sizes) = (tvec!(), tvec!(), tvec!(), tvec!());
        for (ax, axis) in problem.axes.iter().enumerate() {
            let (kernel, dilation) = (of_elements.kernel[ax] as i64, of_elements.dilations[ax] as i64);
            let (stride, pad, extent) = (axis.stride as i64, axis.pad_begin, (kernel - 1) * dilation + 1);
            let (input, output) = (axis.input as i64, axis.output as i64);
            // The first and the last element that are read, or some beyond them.
            let (first, end_of_last) = match spec.direction {
                Direction::Forward => (-pad, (output - 1) * stride + extent - pad),
                Direction::Transposed => {
                    ((pad - extent + 1).div_euclid(stride), (output - 1 + pad).div_euclid(stride) + 1)
                }
            };
            let (mut less, mut more) = ((-first).max(0), (end_of_last - input).max(0));
            if !bordered {
                let reach = if ax == last { (terms.taps as i64 - 1) * terms.tap_step } else { 0 };
                (less, more) = (less.min(reach.max(0)), more.min((-reach).max(0)));
            }
            let size = less + input + more;
            let pad = match spec.direction {
                Direction::Forward => pad - less,
                Direction::Transposed => pad + less * stride,
            };
            let after = match spec.direction {
                Direction::Forward => (output - 1) * stride + extent - size - pad,
                Direction::Transposed => stride * (size - 1) + extent - output - pad,
            };
            let most = MAX_EXTENT as i64;
            if size > most || pad.abs() > most || after.abs() > most {
                return None;
            }
            begin.push(pad);
            end.push(after);
            before.push(less as usize);
            sizes.push(size as usize);
        }
        of_elements.padding = Padding::Explicit { begin, end };
        of_elements.output_padding = tvec!(0; spec.rank());
        let input = spec.data_format.shape(problem.batch, of_elements.in_channels, sizes);
        Some(GroupedLayer { terms, spec: of_elements, explicit: true, input, before })
    }

    /// Groups the bytes of an input into the elements of this layer's input. `outside` is the byte
    /// at positions outside the input.
    ///
    /// # Errors
    /// A slice of another size, or failure to allocate memory.
    pub fn group<T: Grouping + Copy + Send>(
        &self,
        problem: &Problem,
        from: &[u8],
        (bytes, outside): (Bytes, u8),
        to: &mut [T],
    ) -> TractResult<()> {
        let sizes: TVec<usize> = problem.axes.iter().map(|axis| axis.input).collect();
        let elements: usize = self.input.iter().product();
        let positions = sizes.iter().product::<usize>() * problem.batch;
        let integers = positions * problem.group * problem.group_in;
        ensure!(
            (from.len(), to.len()) == (integers, elements),
            "input: bytes={}, elements={}, {integers} and {elements} are needed",
            from.len(),
            to.len()
        );
        let spec = &self.spec;
        let x_axis = spec.data_format.x_axis();
        let grouped_sizes = &self.input[x_axis..x_axis + spec.rank()];
        let channels = spec.in_channels;
        // Without borders, all positions of a plane are a row.
        let is_plain = self.terms.taps == 1 && grouped_sizes == &sizes[..] && spec.data_format == DataFormat::Ncx;
        let (inner, outer) = match is_plain {
            true => ((positions / problem.batch.max(1), positions / problem.batch.max(1), 0), vec![]),
            false => {
                let (last, outer) = (sizes.len() - 1, 0..sizes.len() - 1);
                let outer = outer.map(|ax| (sizes[ax], grouped_sizes[ax], self.before[ax])).collect();
                ((sizes[last], grouped_sizes[last], self.before[last]), outer)
            }
        };
        let rows = Rows {
            terms: self.terms,
            kernels: GroupingKernels::best(),
            bytes,
            outside,
            group: problem.group,
            group_in: problem.group_in,
            channels,
            inner,
            outer,
        };
        let row = match spec.data_format {
            DataFormat::Ncx => inner.1,
            DataFormat::Nxc => inner.1 * channels,
        };
        let count = elements / row.max(1);
        let cost = (size_of_val(to) as u64 / 16).saturating_mul(SIXTEEN_BYTES);
        let at_once = count.div_ceil(TASKS * threads(cost)).max(1);
        let mut tasks: Vec<(usize, &mut [T])> = to.chunks_mut((at_once * row).max(1)).enumerate().collect();
        parallel(&mut tasks, cost, &|(task, to)| {
            let first = *task * at_once;
            match spec.data_format {
                DataFormat::Ncx => rows.planes(from, first, to),
                DataFormat::Nxc => rows.pixels(from, first, to),
            }
        })
    }
}

/// The rows that elements are made for: runs of the innermost axis, or all positions.
struct Rows {
    terms: Terms,
    kernels: GroupingKernels,
    bytes: Bytes,
    outside: u8,
    group: usize,
    group_in: usize,
    /// Elements per position, of all groups.
    channels: usize,
    /// Positions of a row in the input, those in elements, and those of them before the input.
    inner: (usize, usize, usize),
    /// The same for the outer axes.
    outer: Vec<(usize, usize, usize)>,
}

impl Rows {
    /// The index in the input of a row of elements: of one plane or one image. None if it is outside.
    fn source(&self, mut row: usize) -> Option<usize> {
        let (mut index, mut step) = (0, 1);
        for (size, grouped, before) in self.outer.iter().rev() {
            let at = (row % grouped).checked_sub(*before).filter(|at| at < size)?;
            (index, step, row) = (index + at * step, step * size, row / grouped);
        }
        Some(index)
    }

    /// Rows of elements and of the input per plane.
    fn per_plane(&self) -> (usize, usize) {
        self.outer.iter().fold((1, 1), |(elements, integers), (size, grouped, _)| (elements * grouped, integers * size))
    }

    /// Makes rows of channels-first elements, from row `first` on.
    fn planes<T: Grouping>(&self, from: &[u8], first: usize, to: &mut [T]) -> TractResult<()> {
        let (size, row_size, before) = self.inner;
        let (rows_of_elements, rows_of_integers) = self.per_plane();
        let per_group = self.channels / self.group;
        let Terms { taps, tap_step, .. } = self.terms;
        let shift = |tap: usize| tap as i64 * tap_step;
        let lowest = shift(taps - 1).min(0);
        let span = BEFORE + row_size + shift(taps - 1).unsigned_abs() as usize + AFTER;
        let slides = taps > 1 && self.group_in == 1 && tap_step.abs() == 1;
        // A row of each channel with what is before and after it.
        let count = if taps > 1 { self.group_in } else { self.terms.grouped.count() };
        let padded = !(taps == 1 && row_size == size);
        let mut copies: Vec<u8> = vec![];
        if padded {
            copies = reserved("working memory", (count * span).max(row_size))?;
            copies.resize((count * span).max(row_size), self.outside);
        }
        let offset = BEFORE + (before as i64 - lowest) as usize;
        let outside = vec_of(self.outside, if self.outer.is_empty() { 0 } else { row_size })?;
        let (mut plane, mut next) = (first / rows_of_elements, first % rows_of_elements);
        for to in to.chunks_mut(row_size.max(1)) {
            let row = next;
            let (image, channel) = (plane / self.channels, plane % self.channels);
            next += 1;
            if next == rows_of_elements {
                (plane, next) = (plane + 1, 0);
            }
            let Some(row) = self.source(row) else {
                T::group(self.kernels, &[&outside[..]; 4], self.bytes, to);
                continue;
            };
            if slides {
                let from = &from[((image * self.group + channel) * rows_of_integers + row) * size..][..size];
                copies[offset..][..size].copy_from_slice(from);
                let reversed = tap_step < 0;
                let start = if reversed { taps - 1 } else { BEFORE };
                if T::group_sliding(self.kernels, &copies[start..], reversed, self.bytes, to) {
                    continue;
                }
            }
            let (g, element) = (channel / per_group, channel % per_group);
            let source = |channel: usize| {
                let plane = (image * self.group + g) * self.group_in + channel;
                &from[(plane * rows_of_integers + row) * size..][..size]
            };
            let slots = || self.terms.slots(self.group_in, element);
            if padded {
                for (at, (channel, _)) in slots().flatten().filter(|(_, tap)| *tap == 0).enumerate() {
                    copies[at * span + offset..][..size].copy_from_slice(source(channel));
                }
            }
            let mut rows: [&[u8]; 4] = [&[]; 4];
            for (at, (to, slot)) in rows.iter_mut().zip(slots()).enumerate() {
                // The weights of missing integers are zero.
                let (channel, tap) = slot.or(slots().next().flatten()).unwrap_or((0, 0));
                *to = match padded {
                    true => {
                        let copy = if taps > 1 {
                            channel
                        } else if slot.is_some() {
                            at
                        } else {
                            0
                        };
                        &copies[copy * span + BEFORE + (shift(tap) - lowest) as usize..][..row_size]
                    }
                    false => source(channel),
                };
            }
            T::group(self.kernels, &rows, self.bytes, to);
        }
        Ok(())
    }

    /// Makes rows of channels-last elements, from row `first` on.
    fn pixels<T: Grouping>(&self, from: &[u8], first: usize, to: &mut [T]) -> TractResult<()> {
        let (size, row_size, before) = self.inner;
        let (rows_of_elements, rows_of_integers) = self.per_plane();
        let Terms { grouped, taps, tap_step } = self.terms;
        let (count, pixel) = (grouped.count(), self.group * self.group_in);
        // Bytes of a group and of a pixel in the copy of a row: whole elements, if taps do not share them.
        let of_group = if taps == 1 { self.channels / self.group * count } else { self.group_in };
        let copied = self.group * of_group;
        // Where a tap reads, as a distance from the first pixel of the copy.
        let lowest = ((taps as i64 - 1) * tap_step).min(0);
        let shift = |tap: usize| (tap as i64 * tap_step - lowest) as usize;
        let offset = before + shift(0);
        let len = (row_size + (taps - 1) * tap_step.unsigned_abs() as usize) * copied;
        let in_place = taps == 1 && copied == pixel && row_size == size;
        let mut copy = vec_of(self.outside, if in_place { 0 } else { len })?;
        let outside = vec_of(self.outside, if self.outer.is_empty() { 0 } else { len })?;
        let joined = if taps > 1 && self.group_in > 1 { row_size * self.group * count } else { 0 };
        let mut integers = vec_of(self.outside, joined)?;
        for (row, to) in to.chunks_mut((row_size * self.channels).max(1)).enumerate() {
            let (image, row) = ((first + row) / rows_of_elements, (first + row) % rows_of_elements);
            let source = self.source(row).map(|row| {
                let first = (image * rows_of_integers + row) * size * pixel;
                &from[first..][..size * pixel]
            });
            let pixels = match source {
                None => &outside[..],
                Some(source) if in_place => source,
                Some(source) => {
                    widened(source, self.group_in, &mut copy[offset * copied..][..size * copied], of_group);
                    &copy[..]
                }
            };
            match (taps, self.group_in) {
                (1, _) => T::group_adjacent(self.kernels, &pixels[..row_size * copied], self.bytes, to),
                (_, 1) => {
                    // The weights of missing taps are zero.
                    let of_tap = |tap: usize| if tap < taps { shift(tap) } else { shift(0) };
                    let rows: [&[u8]; 4] =
                        std::array::from_fn(|tap| &pixels[of_tap(tap) * pixel..][..row_size * pixel]);
                    T::group(self.kernels, &rows, self.bytes, to);
                }
                _ => {
                    for (at, to) in integers.chunks_mut(count).enumerate() {
                        let (at, g) = (at / self.group, at % self.group);
                        for (to, slot) in to.iter_mut().zip(self.terms.slots(self.group_in, 0)) {
                            if let Some((channel, tap)) = slot {
                                *to = pixels[(at + shift(tap)) * pixel + g * self.group_in + channel];
                            }
                        }
                    }
                    T::group_adjacent(self.kernels, &integers, self.bytes, to);
                }
            }
        }
        Ok(())
    }
}

/// Copies runs of `size` bytes, `step` apart in `to`.
fn widened(from: &[u8], size: usize, to: &mut [u8], step: usize) {
    /// As [`widened`], of a size that the compiler knows.
    fn of<const SIZE: usize>(from: &[u8], to: &mut [u8], step: usize) {
        let (runs, _) = from.as_chunks::<SIZE>();
        for (from, to) in runs.iter().zip(to.chunks_exact_mut(step)) {
            to[..SIZE].copy_from_slice(from);
        }
    }
    match size {
        _ if size == step => to.copy_from_slice(from),
        1 => of::<1>(from, to, step),
        2 => of::<2>(from, to, step),
        3 => of::<3>(from, to, step),
        _ => {
            for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(step)) {
                to[..size].copy_from_slice(from);
            }
        }
    }
}

/// `len` copies of a byte.
fn vec_of(byte: u8, len: usize) -> TractResult<Vec<u8>> {
    let mut bytes = reserved("working memory", len)?;
    bytes.resize(len, byte);
    Ok(bytes)
}
