//! State that ops keep between runs: plans by shape, and the last packed filter.

use crate::compute::Grouped;
use crate::layer::Layer;
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::memory;
use crate::plan::PlanOptions;
use crate::spec::DeconvSpec;
use crate::tuning;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use tract_core::internal::*;

/// The plans of one op, most recently used first.
///
/// It holds at most [`PlanCache::CAPACITY`] plans and drops the least recently used one. Clones
/// share their plans.
#[derive(Clone, Default)]
pub(crate) struct PlanCache(Arc<Mutex<Vec<Arc<Entry>>>>);

struct Entry {
    input: TVec<usize>,
    requested: Option<TVec<i64>>,
    options: PlanOptions,
    layer: Layer,
}

impl Entry {
    fn is_for(
        &self,
        spec: &DeconvSpec,
        input: &[usize],
        requested: Option<&[i64]>,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> bool {
        *self.input == *input
            && self.requested.as_deref() == requested
            && self.layer.plan().datum_type() == datum_type
            // An op's spec and options can be edited after a run.
            && self.layer.plan().spec() == spec
            && self.options == *options
    }
}

/// A layer in use.
pub(crate) struct CachedLayer(Arc<Entry>);

impl std::ops::Deref for CachedLayer {
    type Target = Layer;

    fn deref(&self) -> &Layer {
        &self.0.layer
    }
}

impl PlanCache {
    /// The maximum number of plans.
    pub const CAPACITY: usize = 16;

    /// Returns the plan for a shape, and makes it if it is missing. The arguments are those of
    /// [`Plan::new`](crate::Plan::new).
    pub fn get(
        &self,
        spec: &DeconvSpec,
        input: &[usize],
        requested: Option<&[i64]>,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> TractResult<CachedLayer> {
        {
            let mut plans = self.lock();
            let found = plans.iter().position(|entry| entry.is_for(spec, input, requested, datum_type, options));
            if let Some(at) = found {
                plans[..=at].rotate_right(1);
                return Ok(CachedLayer(Arc::clone(&plans[0])));
            }
        }
        let plan = tuning::plan(spec, input, requested, datum_type, options)?;
        memory::planned();
        log::debug!("planned a deconvolution of {input:?} ({datum_type:?}): {plan}");
        let entry = Arc::new(Entry {
            input: input.into(),
            requested: requested.map(|r| r.into()),
            options: options.clone(),
            layer: Layer::new(plan),
        });
        let mut plans = self.lock();
        plans.truncate(Self::CAPACITY - 1);
        plans.insert(0, Arc::clone(&entry));
        Ok(CachedLayer(entry))
    }

    /// Returns the plan used last.
    pub fn latest(&self) -> Option<CachedLayer> {
        self.lock().first().map(|entry| CachedLayer(Arc::clone(entry)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The packed form of a filter that successive runs pass to the op.
///
/// That happens in models that run without being optimised, which includes the branches of every
/// condition. A filter is kept from its second use on, so a filter computed anew in each run is
/// never kept.
#[derive(Clone, Default)]
pub(crate) struct FilterCache(Arc<Mutex<Option<Seen>>>);

struct Seen {
    source: Weak<Tensor>,
    packed: Option<Arc<PackedFilter>>,
}

impl FilterCache {
    /// Returns the packed form of `source`. `pack` makes it if it is missing.
    pub fn get(
        &self,
        source: &Arc<Tensor>,
        spec: &DeconvSpec,
        layout: &FilterLayout,
        pack: impl FnOnce() -> TractResult<PackedFilter>,
    ) -> TractResult<Arc<PackedFilter>> {
        // The weak reference keeps the address from being reused, and the tensor from being changed
        // in place.
        let again = match &*self.lock() {
            Some(seen) if seen.source.as_ptr() == Arc::as_ptr(source) => {
                if let Some(packed) = seen.packed.as_ref().filter(|packed| packed.is_for(spec, layout)) {
                    return Ok(Arc::clone(packed));
                }
                true
            }
            _ => false,
        };
        let packed = Arc::new(pack()?);
        let kept = again.then(|| Arc::clone(&packed));
        *self.lock() = Some(Seen { source: Arc::downgrade(source), packed: kept });
        Ok(packed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The packed forms of a constant filter, most recently used first.
///
/// It holds at most [`PackedFilters::CAPACITY`] and drops the least recently used one. Clones share
/// them.
#[derive(Clone, Default)]
pub(crate) struct PackedFilters(Arc<Mutex<Vec<OfGrouped>>>);

/// A packed filter, and how many integers its elements hold, if these are several.
type OfGrouped = (Option<Grouped>, Arc<PackedFilter>);

impl PackedFilters {
    /// The maximum number of packed forms. A filter of integers has one, unless sizes or zero points vary. One of
    /// floats has one per layout that plans for several sizes read.
    pub const CAPACITY: usize = 4;

    /// Returns the packed form for a spec and a layout. `pack` makes it if it is missing.
    pub fn get(
        &self,
        grouped: impl Into<Option<Grouped>>,
        spec: &DeconvSpec,
        layout: &FilterLayout,
        pack: impl FnOnce() -> TractResult<PackedFilter>,
    ) -> TractResult<Arc<PackedFilter>> {
        let grouped = grouped.into();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut filters = lock();
            let found = filters.iter().position(|(of, packed)| *of == grouped && packed.is_for(spec, layout));
            if let Some(at) = found {
                filters[..=at].rotate_right(1);
                return Ok(Arc::clone(&filters[0].1));
            }
        }
        let packed = Arc::new(pack()?);
        let mut filters = lock();
        filters.truncate(Self::CAPACITY - 1);
        filters.insert(0, (grouped, Arc::clone(&packed)));
        Ok(packed)
    }

    /// Returns the one used last.
    pub fn latest(&self) -> Option<(Option<Grouped>, Arc<PackedFilter>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }
}

/// The weights of a constant filter, until they are packed. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PlainFilter(Arc<Mutex<Option<Arc<Tensor>>>>);

impl PlainFilter {
    pub fn new(weights: Tensor) -> PlainFilter {
        PlainFilter(Arc::new(Mutex::new(Some(weights.into_arc_tensor()))))
    }

    /// Returns the weights, unless they were forgotten.
    pub fn get(&self) -> Option<Arc<Tensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Frees the weights.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl PartialEq for PlainFilter {
    fn eq(&self, other: &PlainFilter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PlainFilter {}

impl Hash for PlainFilter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state)
    }
}

/// A value that an op's first run makes. Clones share it.
pub(crate) struct Kept<T>(Arc<Mutex<Option<Arc<T>>>>);

impl<T> Kept<T> {
    /// Returns the value. `make` makes it if it is missing.
    pub fn get(&self, make: impl FnOnce() -> TractResult<T>) -> TractResult<Arc<T>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*kept {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(make()?);
        *kept = Some(Arc::clone(&value));
        Ok(value)
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Kept(Arc::clone(&self.0))
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept(Arc::default())
    }
}

/// Implements the traits of ops for a cache.
///
/// A cache does not affect the result, so ops are equal whatever their caches hold.
macro_rules! inert {
    ($cache:ident $(<$t:ident>)?) => {
        impl $(<$t>)? fmt::Debug for $cache $(<$t>)? {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, stringify!($cache))
            }
        }

        impl $(<$t>)? PartialEq for $cache $(<$t>)? {
            fn eq(&self, _other: &Self) -> bool {
                true
            }
        }

        impl $(<$t>)? Eq for $cache $(<$t>)? {}

        impl $(<$t>)? Hash for $cache $(<$t>)? {
            fn hash<H: Hasher>(&self, _state: &mut H) {}
        }
    };
}
inert!(PlanCache);
inert!(FilterCache);
inert!(PackedFilters);
inert!(Kept<T>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Strategy;
    use crate::spec::{DataFormat, Direction, FilterFormat, Padding};
    use crate::testing::assert_documented;

    fn spec() -> DeconvSpec {
        DeconvSpec {
            direction: Direction::Transposed,
            data_format: DataFormat::Ncx,
            filter_format: FilterFormat::Iox,
            in_channels: 1,
            out_channels: 1,
            group: 1,
            kernel: tvec!(2),
            strides: tvec!(2),
            dilations: tvec!(1),
            padding: Padding::zero(1),
            output_padding: tvec!(0),
        }
    }

    #[test]
    fn keeps_the_most_recent_shapes() -> TractResult<()> {
        let (cache, spec, options) = (PlanCache::default(), spec(), PlanOptions::default());
        for x in 1..=2 * PlanCache::CAPACITY {
            cache.get(&spec, &[1, 1, x], None, f32::datum_type(), &options)?;
            cache.get(&spec, &[1, 1, 1], None, f32::datum_type(), &options)?;
        }
        let plans = cache.lock();
        assert_eq!(plans.len(), PlanCache::CAPACITY);
        assert_eq!(plans[0].input.as_slice(), [1, 1, 1]);
        assert_eq!(plans[1].input.as_slice(), [1, 1, 2 * PlanCache::CAPACITY]);
        Ok(())
    }

    #[test]
    fn a_shape_is_planned_once() -> TractResult<()> {
        let (cache, spec, options) = (PlanCache::default(), spec(), PlanOptions::default());
        let first = cache.get(&spec, &[1, 1, 3], None, f32::datum_type(), &options)?;
        let again = cache.clone().get(&spec, &[1, 1, 3], None, f32::datum_type(), &options)?;
        assert!(Arc::ptr_eq(&first.0, &again.0));
        let other_type = cache.get(&spec, &[1, 1, 3], None, f64::datum_type(), &options)?;
        assert_eq!(other_type.plan().datum_type(), f64::datum_type());
        assert_eq!(cache.lock().len(), 2);
        Ok(())
    }

    #[test]
    fn a_plan_holds_for_its_options_only() -> TractResult<()> {
        let (cache, spec) = (PlanCache::default(), spec());
        let reference = PlanOptions::default().with_strategy(Strategy::Reference);
        for options in [PlanOptions::default(), reference.clone(), PlanOptions::default()] {
            let layer = cache.get(&spec, &[1, 1, 3], None, f32::datum_type(), &options)?;
            assert_eq!(layer.plan().strategy() == Strategy::Reference, options == reference);
        }
        assert_eq!(cache.lock().len(), 2);
        Ok(())
    }

    #[test]
    fn a_filter_is_kept_from_its_second_run_on() -> TractResult<()> {
        let (cache, spec) = (FilterCache::default(), spec());
        let (one, other) = (rctensor3(&[[[1f32, 2.]]]), rctensor3(&[[[3f32, 4.]]]));
        let get = |filter: &Arc<Tensor>| {
            cache.get(filter, &spec, &FilterLayout::Plain, || PackedFilter::pack(&spec, &FilterLayout::Plain, filter))
        };
        let first = get(&one)?;
        let second = get(&one)?;
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &get(&one)?));
        assert_eq!(get(&other)?.data::<f32>()?, [3., 4.]);
        assert!(!Arc::ptr_eq(&second, &get(&one)?));
        Ok(())
    }

    #[test]
    fn the_capacity_is_documented() {
        let shapes = PlanCache::CAPACITY;
        assert_documented("src/lib.rs", &format!("keeps the plans of the {shapes} most recent shapes"));
        assert_documented("SECURITY.md", &format!("Each node keeps the plans of at most {shapes} shapes."));
    }
}
