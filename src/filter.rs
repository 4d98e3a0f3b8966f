//! Filters as strategies read them.

use crate::element::{Element, dispatch_element};
use crate::spec::DeconvSpec;
use tract_core::internal::*;

/// The order that a strategy wants a filter's elements in. It depends on the spec and on the strategy, never on the
/// input's shape, so one packed filter serves every shape that a plan with this layout is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FilterLayout {
    /// As the spec's filter format has it.
    Plain,
}

/// A filter in some layout, in the element type that sums are computed in (except for [`FilterLayout::Plain`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackedFilter {
    layout: FilterLayout,
    data: Arc<Tensor>,
}

impl PackedFilter {
    /// Packs a filter whose shape is the spec's.
    ///
    /// # Errors
    /// A filter of another shape.
    pub fn pack(spec: &DeconvSpec, layout: &FilterLayout, filter: &Arc<Tensor>) -> TractResult<PackedFilter> {
        ensure!(
            *filter.shape() == *spec.filter_shape(),
            "filter: shape={:?}, the spec needs {:?}",
            filter.shape(),
            spec.filter_shape()
        );
        dispatch_element!(filter.datum_type(), E => Self::pack_t::<E>(spec, layout, filter))
    }

    fn pack_t<E: Element>(
        _spec: &DeconvSpec,
        layout: &FilterLayout,
        filter: &Arc<Tensor>,
    ) -> TractResult<PackedFilter> {
        let data = match layout {
            FilterLayout::Plain => Arc::clone(filter),
        };
        Ok(PackedFilter { layout: layout.clone(), data })
    }

    /// The layout it is packed in.
    pub fn layout(&self) -> &FilterLayout {
        &self.layout
    }

    /// The elements in the layout's order.
    pub(crate) fn data<T: Datum>(&self) -> TractResult<&[T]> {
        self.data.try_as_plain_ram()?.as_slice::<T>()
    }
}
