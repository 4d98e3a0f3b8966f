//! The definition of the operation, one output element at a time.
//!
//! It is the last algorithm of the list and never declines a plain filter.

use crate::algorithm::{Algorithm, Operands, Query};
use crate::compute::Compute;
use crate::element::Element;
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::strides_of;
use crate::simd::isa::Isa;
use crate::spec::{Axis, Direction, Problem};
use tract_core::internal::tract_ndarray::Dimension;
use tract_core::internal::*;

/// The decision for one problem. It has no parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference;

impl Algorithm for Reference {
    type Tables = ();

    const FOLDS: bool = false;

    const READS_PARTS: bool = true;

    fn propose(query: &Query) -> Result<Reference, String> {
        query.forced(|layout| (*layout == FilterLayout::Plain).then_some(())).map(|_| Reference)
    }

    fn cost(&self) -> Option<u64> {
        None
    }

    fn working_bytes(&self, _problem: &Problem, _element: usize) -> usize {
        0
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Plain
    }

    fn explain(&self) -> String {
        "one output element at a time".to_string()
    }

    fn tables(&self, _problem: &Problem, _lanes: usize) -> TractResult<()> {
        Ok(())
    }

    fn run<E: Element>(
        &self,
        _tables: &(),
        problem: &Problem,
        _isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let weights = filter.data::<E>()?;
        let strides = filter.spec().filter_strides();
        let rank = problem.axes.len();
        let (input_strides, output_strides) = (strides_of(&problem.input_shape()), strides_of(&problem.output_shape()));
        let (c_axis, x_axis) = (problem.data_format.c_axis(rank + 2), problem.data_format.x_axis());
        let spatial: TVec<usize> = problem.axes.iter().map(|a| a.output).collect();
        for n in 0..problem.batch {
            for g in 0..problem.group {
                let input = operands.input.channels(n, g * problem.group_in, problem.group_in);
                for at in tract_ndarray::indices(&*spatial) {
                    let at = at.slice();
                    // Per axis, the (tap, input index) pairs that contribute to this output
                    // element.
                    let pairs: TVec<TVec<(usize, usize)>> = problem
                        .axes
                        .iter()
                        .zip(at.iter())
                        .map(|(axis, o)| contributing(axis, problem.direction, *o))
                        .collect();
                    let spatial_offset: usize = at.iter().zip(&output_strides[x_axis..]).map(|(o, s)| o * s).sum();
                    for co in 0..problem.group_out {
                        let channel = g * problem.group_out + co;
                        let mut sum = operands.bias.map_or(E::Compute::ZERO, |b| b[channel].widen());
                        if pairs.iter().all(|p| !p.is_empty()) {
                            let w_base = g * strides.group + co * strides.output;
                            for index in tract_ndarray::indices(&*pairs.iter().map(|p| p.len()).collect::<TVec<_>>()) {
                                let index = index.slice();
                                let (mut x, mut w) = (0, w_base);
                                for (ax, p) in index.iter().enumerate() {
                                    let (k, i) = pairs[ax][*p];
                                    x += i * input_strides[x_axis + ax];
                                    w += k * strides.kernel[ax];
                                }
                                for ci in 0..problem.group_in {
                                    sum = sum
                                        .mul_add(input.from(ci).0[x].widen(), weights[w + ci * strides.input].widen());
                                }
                            }
                        }
                        let at = n * output_strides[0] + channel * output_strides[c_axis] + spatial_offset;
                        let mut sum = [sum];
                        operands.epilogue.of(channel).apply(at, 1, &mut sum);
                        output[at] = E::narrow(sum[0]);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the (kernel index, input index) pairs that contribute to output index `o`.
fn contributing(axis: &Axis, direction: Direction, o: usize) -> TVec<(usize, usize)> {
    let (s, d) = (axis.stride as i64, axis.dilation as i64);
    (0..axis.kernel)
        .filter_map(|k| {
            let i = match direction {
                Direction::Forward => o as i64 * s + k as i64 * d - axis.pad_begin,
                Direction::Transposed => {
                    let at = o as i64 + axis.pad_begin - k as i64 * d;
                    if at.rem_euclid(s) != 0 {
                        return None;
                    }
                    at.div_euclid(s)
                }
            };
            (0..axis.input as i64).contains(&i).then_some((k, i as usize))
        })
        .collect()
}
