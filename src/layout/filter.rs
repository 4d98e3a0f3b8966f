//! Filter layouts: the order in which each strategy reads a filter's elements.

use crate::compute::{Grouped, Working};
use crate::element::{Element, dispatch_element, dispatch_grouped};
use crate::integers;
use crate::kernel::{Dispatch, SIDE, depth, has_matrix_products, transpose_sides, weights_of_side};
use crate::layout::tile_weights::TileWeights;
use crate::memory;
use crate::precision::Precision;
use crate::spec::{DeconvSpec, Direction};
use std::borrow::Cow;
use std::fmt;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::*;

/// The order of a packed filter's elements.
///
/// It depends on the spec and on the strategy, not on the input's shape.
/// One packed filter therefore serves all plans with this layout, whatever their input shapes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FilterLayout {
    /// The order of the spec's filter format.
    Plain,
    /// `[group][panel of output channels][phase][input channel][tap of the phase]`
    /// `[channel of the panel]`
    ///
    /// Missing channels in the last panel are zero.
    Phases {
        /// Output channels per panel.
        mr: usize,
        /// Output channels of the last panel if `mr` does not divide the output channels.
        last_mr: usize,
    },
    /// `[group][panel of output channels][phase][chunk of input channels][tap of the phase]`
    /// `[input channel of the chunk][channel of the panel]`
    ///
    /// Missing channels in the last panel are zero.
    Chunks {
        /// Output channels per panel.
        width: usize,
        /// Output channels of the last panel.
        last_width: usize,
        /// Input channels per chunk; the last chunk has the remainder.
        chunk: usize,
    },
    /// As [`FilterLayout::Chunks`], and beside it the weights as tiles of fewer products multiply
    /// them.
    Tiles {
        /// Output channels per panel.
        width: usize,
        /// Output channels of the last panel.
        last_width: usize,
        /// Input channels per chunk; the last chunk has the remainder.
        chunk: usize,
        /// The transformed weights.
        tiles: TileWeights,
    },
    /// `[group][panel of products][input channel][product of the panel]`
    ///
    /// A product is an (output channel, kernel position) pair.
    Columns {
        /// Products per panel.
        mr: usize,
        /// Products of the last panel if `mr` does not divide the products.
        last_mr: usize,
    },
    /// `[vector of output channels][phase][tap of the phase][input channel of a group]`
    /// `[output channel of the vector]`
    ///
    /// The output channels are those of all groups, side by side.
    /// Missing channels in the last vector are zero.
    Pixels {
        /// Output channels per vector.
        width: usize,
    },
    /// For matrix products in tile registers, or in vectors that multiply pairs of bf16:
    /// `[group][panel of output channels][tap, phase by phase][block of input channels][limb]`
    /// `[side of output channels][pair of input channels][output channel]`
    /// `[input channel of the pair]`
    ///
    /// Missing channels in the last panel or block are zero. There are as many limbs as the filter's
    /// values need, once they are rounded to the precision: at most three.
    ///
    /// Elements of four bytes are single limbs. A side is `[input channel][output channel]` for them.
    /// For planes, a block has (tap, input channel) pairs of all taps, and a side is `[output channel][pair]`. The filter
    /// then has one phase.
    ///
    /// A filter is not split into limbs if the CPU has no such products in the precision or if some
    /// values can't be split.
    /// Its order is then
    /// `[group][panel of output channels][phase][tap of the phase][input channel]`
    /// `[channel of the panel]`.
    Limbs {
        /// Output channels per panel.
        width: usize,
        /// Output channels of the last panel.
        last_width: usize,
        /// What weights are rounded to.
        precision: Precision,
        /// Whether planes are multiplied. Otherwise pixels are.
        of_planes: bool,
    },
    /// `[group][panel of products][input channel][product of the panel]`, with panels of whole
    /// vectors.
    Vectors {
        /// Products per panel.
        width: usize,
    },
}

/// The largest number of channels or products per panel. It is far above that of any kernel.
const MOST_IN_PANEL: usize = 1 << 16;

impl FilterLayout {
    /// Checks that a filter can be packed completely in this layout.
    ///
    /// # Errors
    /// An empty or oversized panel or chunk, or, for tile registers, a panel that is not made of
    /// whole sides.
    pub(crate) fn check(&self, spec: &DeconvSpec) -> TractResult<()> {
        let (panels, chunk, unit) = match *self {
            FilterLayout::Plain => return Ok(()),
            FilterLayout::Phases { mr, last_mr } | FilterLayout::Columns { mr, last_mr } => ([mr, last_mr], 1, 1),
            FilterLayout::Chunks { width, last_width, chunk } => ([width, last_width], chunk, 1),
            FilterLayout::Tiles { width, last_width, chunk, ref tiles } => {
                ensure!(
                    tiles.fits(&taps_per_phase(spec)),
                    "filter layout: tiles={tiles:?}, they have taps of another filter than \"{spec}\""
                );
                ([width, last_width], chunk, 1)
            }
            FilterLayout::Limbs { width, last_width, .. } => ([width, last_width], 1, SIDE),
            FilterLayout::Pixels { width } | FilterLayout::Vectors { width } => ([width; 2], 1, 1),
        };
        ensure!(
            panels.iter().all(|width| (1..=MOST_IN_PANEL).contains(width) && width.is_multiple_of(unit))
                && (1..=spec.group_in().max(1)).contains(&chunk),
            "filter layout: layout={self:?}, panels of 1 to {MOST_IN_PANEL} channels in steps of {unit} and chunks of 1 to \
             {} channels are needed",
            spec.group_in().max(1)
        );
        Ok(())
    }

    /// The layout without transformed weights: what strategies read that do not need them.
    pub(crate) fn untransformed(&self) -> Cow<'_, FilterLayout> {
        match *self {
            FilterLayout::Tiles { width, last_width, chunk, .. } => {
                Cow::Owned(FilterLayout::Chunks { width, last_width, chunk })
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Whether a filter in this layout can be read as one in `other`.
    fn holds(&self, other: &FilterLayout) -> bool {
        self == other || *self.untransformed() == *other
    }
}

impl fmt::Display for FilterLayout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            FilterLayout::Plain => f.write_str("the order of the file"),
            FilterLayout::Phases { mr, .. } => write!(f, "phases of taps for {mr} output channels at a time"),
            FilterLayout::Chunks { width, chunk, .. } => {
                write!(f, "chunks of {chunk} input channels for {width} output channels at a time")
            }
            FilterLayout::Tiles { .. } => write!(f, "{}, transformed as well", self.untransformed()),
            FilterLayout::Columns { mr: width, .. } | FilterLayout::Vectors { width } => {
                write!(f, "products of all taps, {width} at a time")
            }
            FilterLayout::Pixels { width } => write!(f, "vectors of {width} output channels"),
            FilterLayout::Limbs { width, of_planes, .. } => {
                let of = if of_planes { "planes" } else { "pixels" };
                write!(f, "limbs for matrix products of {of}, {width} output channels at a time")
            }
        }
    }
}

/// A filter in some layout.
///
/// Its elements have the compute type, except that floats in [`FilterLayout::Plain`] keep their
/// type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackedFilter {
    layout: FilterLayout,
    /// The spec it was packed for. Its padding and data formats have no effect on the packing.
    spec: DeconvSpec,
    /// The filter's type before packing.
    datum_type: DatumType,
    /// How many integers an element holds, if several.
    grouped: Option<Grouped>,
    data: Arc<Tensor>,
    /// Its transformed weights, in [`FilterLayout::Tiles`].
    transformed: Option<Arc<Tensor>>,
    /// The limbs that its values need in matrix products, or none if those can't multiply it. Only
    /// examined for the layouts that these read, on CPUs that have them.
    limbs: Option<usize>,
}

impl PackedFilter {
    /// Packs a filter that has the spec's filter shape.
    ///
    /// # Errors
    /// An invalid spec, a filter of another shape, or a layout that no strategy uses.
    pub fn pack(spec: &DeconvSpec, layout: &FilterLayout, filter: &Arc<Tensor>) -> TractResult<PackedFilter> {
        PackedFilter::pack_grouped(spec, layout, filter, None)
    }

    /// As [`PackedFilter::pack`], of elements that may hold several integers. These are `i32`.
    pub(crate) fn pack_grouped(
        spec: &DeconvSpec,
        layout: &FilterLayout,
        filter: &Arc<Tensor>,
        grouped: Option<Grouped>,
    ) -> TractResult<PackedFilter> {
        spec.validate()?;
        layout.check(spec)?;
        ensure!(
            *filter.shape() == *spec.filter_shape(),
            "filter: shape={:?}, the spec needs {:?}",
            filter.shape(),
            spec.filter_shape()
        );
        let datum_type = filter.datum_type();
        let computed_as = integers::computed_as_grouped(datum_type, grouped);
        let filter = match integers::converted("filter", filter, computed_as)? {
            Cow::Borrowed(_) => Cow::Borrowed(filter),
            Cow::Owned(converted) => Cow::Owned(Arc::new(converted)),
        };
        let filter = match layout {
            FilterLayout::Plain => filter,
            _ => Cow::Owned(without_subnormals(&filter)?),
        };
        let (data, limbs) = dispatch_grouped!(grouped, computed_as, E => Self::pack_t::<E>(spec, layout, &filter)?);
        let transformed = match layout {
            FilterLayout::Tiles { width, last_width, chunk, tiles } => {
                ensure!(datum_type.is_float(), "filter layout: datum_type={datum_type:?}, only floats are transformed");
                let panels = || panel_heights(spec.group_out(), *width, *last_width).map(|(_, width)| width);
                let panels: Vec<usize> = (0..spec.group).flat_map(|_| panels()).collect();
                let (panels, chunk) = ((&panels[..], &taps_per_phase(spec)[..]), (spec.group_in(), *chunk));
                dispatch_element!(computed_as, E => tiles.transformed::<<E as Element>::Compute>(panels, chunk, &data)?)
            }
            _ => None,
        };
        let transformed = transformed.map(Arc::new);
        Ok(PackedFilter { layout: layout.clone(), spec: spec.clone(), datum_type, grouped, data, transformed, limbs })
    }

    /// The filter's data in the layout, and the limbs that its values need in matrix products.
    fn pack_t<E: Element>(
        spec: &DeconvSpec,
        layout: &FilterLayout,
        filter: &Arc<Tensor>,
    ) -> TractResult<(Arc<Tensor>, Option<usize>)> {
        let plain = filter.try_as_plain_ram()?;
        let plain = plain.as_slice::<E>()?;
        let data = match layout {
            FilterLayout::Plain => Arc::clone(filter),
            FilterLayout::Columns { mr, last_mr } => Arc::new(products(spec, *mr, *last_mr, plain)?),
            FilterLayout::Pixels { width } => Arc::new(pixels(spec, *width, plain)?),
            FilterLayout::Vectors { width } => Arc::new(products(spec, *width, *width, plain)?),
            FilterLayout::Phases { mr, last_mr } => Arc::new(phases(spec, *mr, *last_mr, 1, plain)?),
            FilterLayout::Chunks { width, last_width, chunk }
            | FilterLayout::Tiles { width, last_width, chunk, .. } => {
                Arc::new(phases(spec, *width, *last_width, *chunk, plain)?)
            }
            FilterLayout::Limbs { width, last_width, precision, of_planes } => {
                let mut whole = phases(spec, *width, *last_width, spec.group_in(), plain)?;
                round(&mut whole, *precision)?;
                let limbs = limbs_of::<E::Compute>(&whole, *precision)?;
                let data = match limbs {
                    Some(limbs) => {
                        in_limbs::<E::Compute>(spec, (*width, *last_width), (*precision, limbs, *of_planes), &whole)?
                    }
                    None => whole,
                };
                return Ok((Arc::new(data), limbs));
            }
        };
        let limbs = match layout {
            FilterLayout::Chunks { .. } | FilterLayout::Tiles { .. } => {
                limbs_of::<E::Compute>(&data, Precision::Exact)?
            }
            _ => None,
        };
        Ok((data, limbs))
    }

    /// Returns the filter of elements of several integers that was packed.
    ///
    /// # Errors
    /// Elements of one number each, or failure to allocate memory.
    pub(crate) fn unpacked(&self) -> TractResult<Tensor> {
        ensure!(self.grouped.is_some(), "filter: elements of one number, those of several integers are needed");
        let shape = self.spec.filter_shape();
        let count: usize = shape.iter().product();
        // Where the packed elements come from, counted from one: padding is zero.
        let places = memory::tensor_of("filter", &shape, (0..count).map(|at| at as i32 + 1))?.into_arc_tensor();
        let places = PackedFilter::pack_grouped(&self.spec, &self.layout, &places, self.grouped)?;
        let (places, data) = (places.data.try_as_plain_ram()?, self.data.try_as_plain_ram()?);
        let mut filter = memory::zero_tensor::<i32>("filter", &shape)?;
        let mut view = filter.try_as_plain_ram_mut()?;
        let to = view.as_slice_mut::<i32>()?;
        for (place, element) in places.as_slice::<i32>()?.iter().zip(data.as_slice::<i32>()?) {
            if *place > 0 {
                to[*place as usize - 1] = *element;
            }
        }
        Ok(filter)
    }

    /// Checks that this filter was packed for the given layout, element type and filter geometry.
    ///
    /// # Errors
    /// One of them differs.
    pub(crate) fn check(
        &self,
        spec: &DeconvSpec,
        layout: &FilterLayout,
        datum_type: DatumType,
        grouped: Option<Grouped>,
    ) -> TractResult<()> {
        let found = self.datum_type;
        ensure!(found == datum_type, "filter: datum_type={found:?}, the plan is for {datum_type:?}");
        ensure!(self.grouped == grouped, "filter: elements of {:?}, the plan is for {grouped:?}", self.grouped);
        if self.is_for(spec, layout) {
            return Ok(());
        }
        ensure!(self.layout.holds(layout), "filter: layout={:?}, the plan reads {layout:?}", self.layout);
        bail!("filter: packed for \"{}\", the plan is for \"{spec}\"", self.spec)
    }

    /// Whether it can be read in this layout and was packed for a spec that packs filters in the same
    /// way.
    pub(crate) fn is_for(&self, spec: &DeconvSpec, layout: &FilterLayout) -> bool {
        self.layout.holds(layout) && self.spec.packs_like(spec)
    }

    /// The spec it was packed for.
    pub(crate) fn spec(&self) -> &DeconvSpec {
        &self.spec
    }

    /// The layout of the packed filter.
    pub fn layout(&self) -> &FilterLayout {
        &self.layout
    }

    /// The size in bytes, with the transformed weights.
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.len() * tensor.datum_type().size_of();
        bytes(&self.data) + self.transformed.as_deref().map_or(0, bytes)
    }

    /// The transformed weights, in [`FilterLayout::Tiles`].
    pub(crate) fn transformed<T: Datum>(&self) -> TractResult<&[T]> {
        let transformed = self.transformed.as_ref().context("filter: its weights are not transformed")?;
        transformed.try_as_plain_ram()?.as_slice::<T>()
    }

    /// The limbs of a filter for matrix products, if it was split into limbs: see
    /// [`FilterLayout::Limbs`].
    pub(crate) fn limbs<T: Working>(&self) -> Option<&[T::Limb]> {
        let split = matches!(self.layout, FilterLayout::Limbs { .. }) && self.limbs.is_some();
        if split { self.data().ok() } else { None }
    }

    /// The limbs that its values need in matrix products, or none if those can't multiply it. Only
    /// meaningful for the layouts that these read.
    pub(crate) fn limbs_needed(&self) -> Option<usize> {
        self.limbs
    }

    /// The elements in the layout's order.
    pub(crate) fn data<T: Datum>(&self) -> TractResult<&[T]> {
        self.data.try_as_plain_ram()?.as_slice::<T>()
    }
}

/// Replaces f32 subnormals (magnitudes below `2^-126`) by zero.
///
/// Trained models have them in dead channels. Arithmetic on subnormals is very slow on most CPUs,
/// and sums that stay subnormal slow the activation down too.
pub(crate) fn without_subnormals(constant: &Arc<Tensor>) -> TractResult<Arc<Tensor>> {
    let ram = constant.try_as_plain_ram()?;
    if !ram.as_slice::<f32>().is_ok_and(|values| values.iter().any(|value| value.is_subnormal())) {
        return Ok(Arc::clone(constant));
    }
    let flushed = |value: f32| if value.is_subnormal() { 0.0 } else { value };
    Ok(memory::mapped_tensor("filter", constant, flushed)?.into_arc_tensor())
}

/// `(first channel, height)` of each panel of one group.
pub(crate) fn panel_heights(channels: usize, mr: usize, last_mr: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..channels).step_by(mr).map(move |first| (first, if first + mr <= channels { mr } else { last_mr }))
}

/// The offsets of each phase's taps in a plain filter. Phases are ordered by residue, outermost
/// axis first.
pub(crate) fn taps_of_phases(spec: &DeconvSpec) -> Vec<Vec<usize>> {
    let strides = spec.filter_strides();
    let per_axis = (0..spec.rank()).map(|ax| {
        let residues = match spec.direction {
            Direction::Forward => 1,
            Direction::Transposed => spec.strides[ax],
        };
        let mut offsets = vec![vec![]; residues];
        for k in 0..spec.kernel[ax] {
            // u64: a product of two 31-bit values
            let residue = (k as u64 * spec.dilations[ax] as u64 % residues as u64) as usize;
            offsets[residue].push(k * strides.kernel[ax]);
        }
        offsets
    });
    per_axis
        .multi_cartesian_product()
        .map(|axes| axes.into_iter().multi_cartesian_product().map(|tap| tap.iter().sum()).collect())
        .collect()
}

/// The number of taps of each phase, in the same order.
fn taps_per_phase(spec: &DeconvSpec) -> Vec<usize> {
    taps_of_phases(spec).iter().map(|taps| taps.len()).collect()
}

/// Packs [`FilterLayout::Phases`] (chunks of one channel) and [`FilterLayout::Chunks`].
fn phases<E: Element>(spec: &DeconvSpec, mr: usize, last_mr: usize, chunk: usize, plain: &[E]) -> TractResult<Tensor> {
    let strides = spec.filter_strides();
    let phases = taps_of_phases(spec);
    let taps: usize = spec.kernel.iter().product();
    let padded: usize = panel_heights(spec.group_out(), mr, last_mr).map(|p| p.1).sum();
    let mut tensor = memory::zero_tensor::<E::Compute>("packed filter", &[spec.group, padded, spec.group_in(), taps])?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    let mut packed = view.as_slice_mut::<E::Compute>()?;
    for g in 0..spec.group {
        for (first, height) in panel_heights(spec.group_out(), mr, last_mr) {
            let present = height.min(spec.group_out() - first);
            let base = g * strides.group + first * strides.output;
            for taps in &phases {
                for first in (0..spec.group_in()).step_by(chunk) {
                    let channels = first..(first + chunk).min(spec.group_in());
                    for (tap, ci) in taps.iter().cartesian_product(channels) {
                        let at = base + ci * strides.input + tap;
                        let (column, rest) = std::mem::take(&mut packed).split_at_mut(height);
                        packed = rest;
                        for (m, to) in column.iter_mut().take(present).enumerate() {
                            *to = plain[at + m * strides.output].widen();
                        }
                    }
                }
            }
        }
    }
    Ok(tensor)
}

/// Rounds the values of an f32 filter.
fn round(filter: &mut Tensor, precision: Precision) -> TractResult<()> {
    if precision != Precision::Exact
        && let Ok(values) = filter.try_as_plain_ram_mut()?.as_slice_mut::<f32>()
    {
        values.iter_mut().for_each(|value| *value = precision.rounded(*value));
    }
    Ok(())
}

/// The limbs that the values of a filter need in matrix products. None if those can't multiply it, or
/// the CPU has none.
fn limbs_of<T: Dispatch + Datum>(filter: &Tensor, precision: Precision) -> TractResult<Option<usize>> {
    let ram = filter.try_as_plain_ram()?;
    let values = ram.as_slice::<T>()?;
    // Do not request tile registers from the OS here: this filter may be meant for vector kernels.
    Ok(if has_matrix_products(precision) { T::limbs_needed(precision, values) } else { None })
}

/// The limbs of a filter. `whole` is the filter packed with all input channels in one chunk.
fn in_limbs<T: Dispatch + Datum>(
    spec: &DeconvSpec,
    (width, last_width): (usize, usize),
    (precision, limbs, of_planes): (Precision, usize, bool),
    whole: &Tensor,
) -> TractResult<Tensor> {
    let kernels = T::kernels_of_limbs(precision).context("kernel: there are no matrix products")?;
    let ram = whole.try_as_plain_ram()?;
    let mut values = ram.as_slice::<T>()?;
    let (channels, taps, depth) = match (spec.group_in(), spec.kernel.iter().product::<usize>()) {
        (channels, taps) if of_planes => (taps * channels, 1, depth::<T>()),
        (channels, taps) => (channels, taps, depth::<T>()),
    };
    let panels: Vec<usize> = panel_heights(spec.group_out(), width, last_width).map(|p| p.1).collect();
    let sides = panels.iter().map(|width| width / SIDE).sum::<usize>();
    let shape = [spec.group, taps, channels.div_ceil(depth), limbs, sides, weights_of_side::<T>()];
    let mut tensor = memory::zero_tensor::<T::Limb>("packed filter", &shape)?;
    let mut ram = tensor.try_as_plain_ram_mut()?;
    let mut packed = ram.as_slice_mut::<T::Limb>()?;
    for width in (0..spec.group).flat_map(|_| &panels) {
        let (panel, rest) = values.split_at(taps * channels * width);
        values = rest;
        for step in panel.chunks(channels * width).flat_map(|tap| tap.chunks(depth * width)) {
            let (to, rest) = std::mem::take(&mut packed).split_at_mut(limbs * width * depth);
            packed = rest;
            kernels.split_weights(step, width / SIDE, limbs, to);
            if of_planes {
                transpose_sides(to);
            }
        }
    }
    Ok(tensor)
}

/// Packs [`FilterLayout::Pixels`].
fn pixels<E: Element>(spec: &DeconvSpec, width: usize, plain: &[E]) -> TractResult<Tensor> {
    let strides = spec.filter_strides();
    let taps: Vec<usize> = taps_of_phases(spec).concat();
    let vectors = spec.out_channels.div_ceil(width);
    let mut tensor =
        memory::zero_tensor::<E::Compute>("packed filter", &[vectors, taps.len(), spec.group_in(), width])?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    let packed = view.as_slice_mut::<E::Compute>()?.chunks_mut(width);
    let indices = (0..vectors).cartesian_product(&taps).cartesian_product(0..spec.group_in());
    for (((vector, tap), ci), to) in indices.zip(packed) {
        for (channel, to) in (vector * width..spec.out_channels).zip(to) {
            let (g, m) = (channel / spec.group_out(), channel % spec.group_out());
            *to = plain[g * strides.group + m * strides.output + ci * strides.input + tap].widen();
        }
    }
    Ok(tensor)
}

fn products<E: Element>(spec: &DeconvSpec, mr: usize, last_mr: usize, plain: &[E]) -> TractResult<Tensor> {
    let strides = spec.filter_strides();
    let taps: Vec<usize> = (0..spec.rank())
        .map(|ax| (0..spec.kernel[ax]).map(move |k| (ax, k)))
        .multi_cartesian_product()
        .map(|tap| tap.into_iter().map(|(ax, k)| k * strides.kernel[ax]).sum())
        .collect();
    let products = spec.group_out() * taps.len();
    let offset = |product: usize| product / taps.len() * strides.output + taps[product % taps.len()];
    let padded: usize = panel_heights(products, mr, last_mr).map(|p| p.1).sum();
    let mut tensor = memory::zero_tensor::<E::Compute>("packed filter", &[spec.group, padded, spec.group_in()])?;
    let mut view = tensor.try_as_plain_ram_mut()?;
    let mut packed = view.as_slice_mut::<E::Compute>()?;
    for g in 0..spec.group {
        for (first, height) in panel_heights(products, mr, last_mr) {
            let present = height.min(products - first);
            let offsets: Vec<usize> = (first..first + present).map(offset).collect();
            for ci in 0..spec.group_in() {
                let base = g * strides.group + ci * strides.input;
                let (row, rest) = std::mem::take(&mut packed).split_at_mut(height);
                packed = rest;
                for (to, at) in row.iter_mut().zip(&offsets) {
                    *to = plain[base + at].widen();
                }
            }
        }
    }
    Ok(tensor)
}
