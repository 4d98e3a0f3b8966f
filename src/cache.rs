//! A bounded cache of plans, one per concrete shape.

use crate::plan::{Plan, PlanOptions};
use crate::spec::DeconvSpec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use tract_core::internal::*;

/// The plans of one op, most recently used first; at most [`PlanCache::CAPACITY`], the oldest is dropped.
///
/// Clones share their plans. A cache says nothing of what an op computes, so all caches are equal.
#[derive(Clone, Default)]
pub(crate) struct PlanCache(Arc<Mutex<Vec<Arc<Entry>>>>);

struct Entry {
    input: TVec<usize>,
    requested: Option<TVec<i64>>,
    plan: Plan,
}

impl Entry {
    fn is_for(&self, input: &[usize], requested: Option<&[i64]>, datum_type: DatumType) -> bool {
        *self.input == *input && self.requested.as_deref() == requested && self.plan.datum_type == datum_type
    }
}

/// A plan in use.
pub(crate) struct CachedPlan(Arc<Entry>);

impl std::ops::Deref for CachedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0.plan
    }
}

impl PlanCache {
    /// How many plans are kept.
    pub const CAPACITY: usize = 16;

    /// The plan for a shape, made now if it is not there. The arguments are those of [`Plan::new`].
    pub fn get(
        &self,
        spec: &DeconvSpec,
        input: &[usize],
        requested: Option<&[i64]>,
        datum_type: DatumType,
        options: &PlanOptions,
    ) -> TractResult<CachedPlan> {
        {
            let mut plans = self.lock();
            if let Some(at) = plans.iter().position(|entry| entry.is_for(input, requested, datum_type)) {
                plans[..=at].rotate_right(1);
                return Ok(CachedPlan(Arc::clone(&plans[0])));
            }
        }
        let plan = Plan::new(spec, input, requested, datum_type, options)?;
        log::debug!("planned a deconvolution of {input:?} ({datum_type:?}): {plan}");
        let entry = Arc::new(Entry { input: input.into(), requested: requested.map(|r| r.into()), plan });
        let mut plans = self.lock();
        plans.truncate(Self::CAPACITY - 1);
        plans.insert(0, Arc::clone(&entry));
        Ok(CachedPlan(entry))
    }

    /// The plan used last.
    pub fn latest(&self) -> Option<CachedPlan> {
        self.lock().first().map(|entry| CachedPlan(Arc::clone(entry)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "PlanCache")
    }
}

impl PartialEq for PlanCache {
    fn eq(&self, _other: &PlanCache) -> bool {
        true
    }
}

impl Eq for PlanCache {}

impl Hash for PlanCache {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{DataFormat, Direction, FilterFormat, Padding};

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
        assert_eq!(other_type.datum_type, f64::datum_type());
        assert_eq!(cache.lock().len(), 2);
        Ok(())
    }
}
