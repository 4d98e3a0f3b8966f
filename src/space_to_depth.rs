//! Folding of a space-to-depth rearrangement before a forward convolution into the convolution's strides.
//!
//! Some networks begin with one (the `Focus` layer of YOLOv5 and YOLOX): strided slices of an image, one for each
//! offset within a block of pixels, concatenated along the channels. A convolution of the slices is one of the image,
//! whose kernel and strides are larger by the block's size.

use crate::memory;
use crate::ranges::unflatten;
use crate::spec::{DeconvSpec, Direction, Padding};
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;
use tract_core::ops::array::TypedConcat;
use tract_core::ops::downsample::Downsample;

/// The largest number of channels that are rearranged.
///
/// With more than these, a convolution of the slices may run in tiles with fewer products.
const MOST_CHANNELS: usize = 4;

/// The convolution that reads what is rearranged.
pub(crate) struct Folded {
    /// Its spec.
    pub spec: DeconvSpec,
    /// Its filter.
    pub filter: Arc<Tensor>,
    /// What it reads.
    pub outlet: OutletId,
}

/// One number per spatial axis.
type PerAxis = TVec<usize>;

/// Returns the convolution of `data` that includes a rearrangement of space to channels before it.
///
/// Returns none if there is no rearrangement, if its result is needed elsewhere, or if the filter is not of floats.
///
/// # Errors
/// The memory of the filter can't be allocated.
pub(crate) fn preceding(
    model: &TypedModel,
    data: OutletId,
    spec: &DeconvSpec,
    filter: &Tensor,
) -> TractResult<Option<Folded>> {
    let dt = filter.datum_type();
    let Some((outlet, block, slices)) = rearranged(model, data, spec)?.filter(|_| dt.is_float()) else {
        return Ok(None);
    };
    let Some(folded) = strided(spec, &block) else { return Ok(None) };
    let (image, joint) = (&model.outlet_fact(outlet)?.shape, &model.outlet_fact(data)?.shape);
    let same = |folded: TVec<TDim>| spec.output_shape(joint).is_ok_and(|joint| joint == folded);
    if !folded.output_shape(image).is_ok_and(same) {
        return Ok(None);
    }
    let filter = dispatch_floatlike!(interleaved(dt)(spec, &folded, filter, &block, &slices))?;
    Ok(Some(Folded { spec: folded, filter: filter.into_arc_tensor(), outlet }))
}

/// Returns what is rearranged, the size of a block, and the offset of each slice within a block.
///
/// Each offset has one slice.
fn rearranged(
    model: &TypedModel,
    data: OutletId,
    spec: &DeconvSpec,
) -> TractResult<Option<(OutletId, PerAxis, Vec<PerAxis>)>> {
    let node = model.node(data.node);
    let Some(concat) = node.op_as::<TypedConcat>() else { return Ok(None) };
    let alone = model.outlet_successors(data).len() == 1 && !model.outputs.contains(&data);
    if concat.axis != spec.data_format.c_axis(model.outlet_fact(data)?.rank()) || !alone {
        return Ok(None);
    }
    let slices: Option<Vec<_>> = node.inputs.iter().map(|input| slice_of(model, *input, spec)).collect();
    let Some(slices) = slices else { return Ok(None) };
    let Some((outlet, block, _)) = slices.first().cloned() else { return Ok(None) };
    let alike = slices.iter().all(|(of, steps, _)| *of == outlet && *steps == block);
    let offsets: Vec<PerAxis> = slices.into_iter().map(|(_, _, offset)| offset).collect();
    let inside = |offset: &PerAxis| offset.iter().zip(&block).all(|(at, size)| at < size);
    let size = block.iter().try_fold(1usize, |size, of_axis| size.checked_mul(*of_axis));
    let each_once = Some(offsets.len()) == size && offsets.iter().all(inside) && offsets.iter().all_unique();
    Ok((alike && each_once).then_some((outlet, block, offsets)))
}

/// Returns what a strided slice on the spatial axes is taken of, its step and its offset on each axis.
fn slice_of(model: &TypedModel, outlet: OutletId, spec: &DeconvSpec) -> Option<(OutletId, PerAxis, PerAxis)> {
    let (mut of, mut steps, mut offsets) = (outlet, tvec!(1; spec.rank()), tvec!(0; spec.rank()));
    while let Some(slice) = model.node(of.node).op_as::<Downsample>() {
        let axis = slice.axis.checked_sub(spec.data_format.x_axis()).filter(|axis| *axis < spec.rank())?;
        let step = usize::try_from(slice.stride).ok().filter(|step| *step > 0)?;
        // The steps of the slices behind this one count positions of this one's result.
        offsets[axis] = step.checked_mul(offsets[axis])?.checked_add(slice.modulo)?;
        steps[axis] = step.checked_mul(steps[axis])?;
        of = model.node(of.node).inputs[0];
    }
    (of != outlet).then_some((of, steps, offsets))
}

/// Returns the spec of the convolution that reads blocks of pixels in place of their slices.
fn strided(spec: &DeconvSpec, block: &PerAxis) -> Option<DeconvSpec> {
    let Padding::Explicit { begin, end } = &spec.padding else { return None };
    let channels = spec.in_channels / block.iter().product::<usize>();
    let dilated = spec.dilations.iter().zip(block).any(|(dilation, size)| *dilation > 1 && *size > 1);
    if spec.direction != Direction::Forward || spec.group != 1 || dilated || channels > MOST_CHANNELS {
        return None;
    }
    let times =
        |of: &[usize]| -> Option<TVec<usize>> { of.iter().zip(block).map(|(a, b)| a.checked_mul(*b)).collect() };
    let pads = |of: &[i64]| -> Option<TVec<i64>> {
        of.iter().zip(block).map(|(pad, size)| pad.checked_mul(i64::try_from(*size).ok()?)).collect()
    };
    let folded = DeconvSpec {
        in_channels: channels,
        kernel: times(&spec.kernel)?,
        strides: times(&spec.strides)?,
        padding: Padding::Explicit { begin: pads(begin)?, end: pads(end)? },
        ..spec.clone()
    };
    folded.validate().is_ok().then_some(folded)
}

/// Returns the filter of `folded`: the taps of each slice at its offset within blocks.
fn interleaved<T: Datum + Copy + Default>(
    spec: &DeconvSpec,
    folded: &DeconvSpec,
    filter: &Tensor,
    block: &PerAxis,
    slices: &[PerAxis],
) -> TractResult<Tensor> {
    let weights = filter.try_as_plain_ram()?.as_slice::<T>()?;
    let (shape, from) = (folded.filter_shape(), spec.filter_strides());
    let (input, output, x) = spec.filter_format.axes(spec.rank());
    let weight = |at: usize| {
        let at = unflatten(at, shape.iter().copied());
        let taps = at[x..].iter().zip(block);
        let offset: PerAxis = taps.clone().map(|(tap, size)| tap % size).collect();
        let slice = slices.iter().position(|of| *of == offset).unwrap_or(0);
        let channel = slice * folded.in_channels + at[input];
        let tap: usize = taps.zip(&from.kernel).map(|((tap, size), stride)| tap / size * stride).sum();
        weights[channel * from.input + at[output] * from.output + tap]
    };
    memory::tensor_of("folded filter", &shape, (0..weights.len()).map(weight))
}
