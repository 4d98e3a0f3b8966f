//! The epilogue: steps applied to the results while they are still in the cache, before they are
//! stored.

use crate::activation::Activation;
use crate::compute::Compute;
use crate::element::Element;
use crate::kernel::{Bounds, Kernels};
use std::fmt;
use tract_core::internal::*;

/// One step of an epilogue.
///
/// Values per output channel are a vector over the output channels of all groups.
/// Their type is the compute type: f32 for f16 and f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The same function for every result.
    Activation(Activation),
    /// `x` if it is not negative, else `x` times the channel's slope.
    PRelu(Arc<Tensor>),
    /// `factor·x + term`, both per channel.
    Affine {
        /// The value by which results are multiplied.
        factor: Arc<Tensor>,
        /// The value that is then added.
        term: Arc<Tensor>,
    },
    /// Adds a tensor of the output's shape: the next one of those passed with the operands.
    Add,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Step::Activation(activation) => write!(f, "{activation:?}"),
            Step::PRelu(_) => f.write_str("PRelu"),
            Step::Affine { .. } => f.write_str("Affine"),
            Step::Add => f.write_str("Add"),
        }
    }
}

/// The number of tensors that the steps add.
pub(crate) fn added(steps: &[Step]) -> usize {
    steps.iter().filter(|step| **step == Step::Add).count()
}

/// A [`Step`] bound to its operands.
#[derive(Clone, Copy)]
pub(crate) enum Bound<'a, E: Element> {
    /// Adjacent activations that are a maximum or a minimum.
    Clamp(Bounds<E::Compute>),
    Activation(Activation),
    PRelu(&'a [E::Compute]),
    Affine(&'a [E::Compute], &'a [E::Compute]),
    /// A sum, and the bounds of the result.
    Add(&'a [E], Option<Bounds<E::Compute>>),
}

/// Binds steps to the tensors that they add, each of the output's shape.
///
/// # Errors
/// Another number of tensors than the steps add, a tensor of another type or shape, or per-channel
/// values whose count is not the number of output channels.
pub(crate) fn bind<'a, E: Element>(
    steps: &'a [Step],
    residuals: &[&'a Tensor],
    channels: usize,
    output: &[usize],
) -> TractResult<Vec<Bound<'a, E>>> {
    let count = added(steps);
    ensure!(residuals.len() == count, "residual: count={}, the steps add {count}", residuals.len());
    let per_channel = |what: &str, values: &'a Tensor| {
        let values = values.try_as_plain_ram()?.as_slice::<E::Compute>()?;
        ensure!(
            values.len() == channels,
            "{what}: count={}, one per output channel, {channels}, is needed",
            values.len()
        );
        Ok(values)
    };
    let mut residuals = residuals.iter();
    let mut bound: Vec<Bound<'a, E>> = vec![];
    for run in steps.chunk_by(|step, next| clamps(step) && clamps(next)) {
        let step = match &run[0] {
            step if clamps(step) => match bound.last_mut() {
                Some(Bound::Add(_, bounds)) => {
                    *bounds = Some(joined(run));
                    continue;
                }
                _ => Bound::Clamp(joined(run)),
            },
            Step::Activation(activation) => Bound::Activation(*activation),
            Step::PRelu(slopes) => Bound::PRelu(per_channel("slope", slopes)?),
            Step::Affine { factor, term } => Bound::Affine(per_channel("factor", factor)?, per_channel("term", term)?),
            Step::Add => {
                let residual = residuals.next().context("residual: one is missing")?;
                ensure!(
                    residual.shape() == output,
                    "residual: shape={:?}, the output's is {output:?}",
                    residual.shape()
                );
                Bound::Add(residual.try_as_plain_ram()?.as_slice::<E>()?, None)
            }
        };
        bound.push(step);
    }
    Ok(bound)
}

/// The bounds of a step that is a maximum or a minimum.
fn bounds_of(step: &Step) -> Option<[f32; 2]> {
    let Step::Activation(activation) = step else { return None };
    activation.bounds()
}

/// Whether a step is a maximum or a minimum.
fn clamps(step: &Step) -> bool {
    bounds_of(step).is_some()
}

/// The bounds that do what steps do one after the other, each of which is a maximum or a minimum.
fn joined<T: Compute>(steps: &[Step]) -> Bounds<T> {
    // What is within bounds, then within the next ones, is within the former moved into the latter.
    let [low, high] = steps
        .iter()
        .filter_map(bounds_of)
        .fold([f32::NEG_INFINITY, f32::INFINITY], |bounds, [low, high]| bounds.map(|bound| bound.clamped(low, high)));
    let of = |bound: f32| T::of_constant(bound.into());
    Bounds { low: of(low), high: of(high) }
}

/// Bound steps, applied in order.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<'a, E: Element> {
    /// The steps.
    pub steps: &'a [Bound<'a, E>],
    /// The kernels that apply steps to runs.
    pub kernels: &'static Kernels<E::Compute>,
}

impl<'a, E: Element> Epilogue<'a, E> {
    /// Splits off the first step if it is bounds and no other step that is the same for every result follows.
    ///
    /// Kernels clamp results to such bounds as they store them.
    pub fn split_bounds(self) -> (Option<Bounds<E::Compute>>, Epilogue<'a, E>) {
        match self.steps {
            [Bound::Clamp(_), Bound::Activation(_), ..] => (None, self),
            [Bound::Clamp(bounds), steps @ ..] => (Some(*bounds), Epilogue { steps, ..self }),
            _ => (None, self),
        }
    }

    /// Splits off the leading steps that are the same for every result.
    pub fn split(self) -> (UniformSteps<'a, E>, Epilogue<'a, E>) {
        let uniform =
            self.steps.iter().take_while(|step| matches!(step, Bound::Activation(_) | Bound::Clamp(_))).count();
        let (uniform, varying) = self.steps.split_at(uniform);
        (UniformSteps(Epilogue { steps: uniform, ..self }), Epilogue { steps: varying, ..self })
    }

    /// Whether there are no steps.
    pub fn is_empty(self) -> bool {
        self.steps.is_empty()
    }

    /// Applies the steps to `count` runs of `len` results of one output channel, counted over all groups.
    ///
    /// A run's first result is `step` after that of the run before in `results`, and `out_step` after it in the output.
    /// `at` is the output index of the first result of all.
    pub fn apply_runs(
        self,
        channel: usize,
        at: usize,
        (count, len): (usize, usize),
        (step, out_step): (usize, usize),
        results: &mut [E::Compute],
    ) {
        let (uniform, varying) = self.split();
        uniform.apply_pixels((count, len), step, results);
        if !varying.is_empty() {
            let runs = results.chunks_mut(step.max(1)).take(count).enumerate();
            runs.for_each(|(i, run)| varying.of(channel).apply(at + i * out_step, 1, &mut run[..len]));
        }
    }

    /// The epilogue of one output channel, counted over all groups.
    pub fn of(self, channel: usize) -> ChannelEpilogue<'a, E> {
        ChannelEpilogue { epilogue: self, channel }
    }

    /// Applies the steps to the results of adjacent channels of `count` pixels, in channels-last data.
    ///
    /// A pixel has `size` results. The first one of each is `step` after that of the pixel before, in `run`
    /// and in the output. `at` is the output index of the first result of all.
    pub fn apply_pixels(
        self,
        first_channel: usize,
        at: usize,
        (count, size): (usize, usize),
        step: usize,
        run: &mut [E::Compute],
    ) {
        let channels = first_channel..first_channel + size;
        let pixels = |run: &mut [E::Compute], change: &mut dyn FnMut(usize, &mut [E::Compute])| {
            let pixels = run.chunks_mut(step.max(1)).take(count).enumerate();
            pixels.for_each(|(i, pixel)| change(at + i * step, &mut pixel[..size]));
        };
        // Pixels without gaps between them are one.
        let (all, all_step) = if size == step { ((1, count * size), count * size) } else { ((count, size), step) };
        for bound in self.steps {
            match bound {
                Bound::Clamp(bounds) => self.kernels.clamp_pixels(*bounds, all, all_step, run),
                Bound::Activation(activation) => self.kernels.activate_pixels(*activation, all, all_step, run),
                Bound::PRelu(slopes) => pixels(run, &mut |_, pixel| {
                    pixel.iter_mut().zip(&slopes[channels.clone()]).for_each(|(x, slope)| *x = x.leak(*slope))
                }),
                Bound::Affine(factors, terms) => pixels(run, &mut |_, pixel| {
                    let values = factors[channels.clone()].iter().zip(&terms[channels.clone()]);
                    pixel.iter_mut().zip(values).for_each(|(x, (factor, term))| *x = term.mul_add(*x, *factor))
                }),
                Bound::Add(residual, bounds) => match E::as_compute(&residual[at..]) {
                    Some(residual) => self.kernels.add_pixels(residual, all, all_step, *bounds, run),
                    None => pixels(run, &mut |at, pixel| add(self.kernels, &residual[at..at + size], *bounds, pixel)),
                },
            }
        }
    }
}

/// Steps that are the same for every result.
#[derive(Clone, Copy)]
pub(crate) struct UniformSteps<'a, E: Element>(Epilogue<'a, E>);

impl<E: Element> UniformSteps<'_, E> {
    /// Whether there are no steps.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Applies the steps to the results of `count` pixels, as [`Epilogue::apply_pixels`].
    pub fn apply_pixels(self, size: (usize, usize), step: usize, run: &mut [E::Compute]) {
        self.0.apply_pixels(0, 0, size, step, run)
    }

    /// Applies the steps to any results.
    pub fn apply(self, run: &mut [E::Compute]) {
        self.0.apply_pixels(0, 0, (1, run.len()), run.len(), run)
    }
}

/// An [`Epilogue`] for the results of one output channel.
#[derive(Clone, Copy)]
pub(crate) struct ChannelEpilogue<'a, E: Element> {
    epilogue: Epilogue<'a, E>,
    channel: usize,
}

impl<E: Element> ChannelEpilogue<'_, E> {
    /// Applies the steps. `at` is the output index of the first result; the others follow at
    /// distance `stride`.
    pub fn apply(self, at: usize, stride: usize, run: &mut [E::Compute]) {
        let Epilogue { steps, kernels } = self.epilogue;
        for step in steps {
            match step {
                Bound::Clamp(bounds) => kernels.clamp_pixels(*bounds, (1, run.len()), run.len(), run),
                Bound::Activation(activation) => kernels.activate(*activation, run),
                Bound::PRelu(slopes) => kernels.leak(slopes[self.channel], run),
                Bound::Affine(factors, terms) => kernels.affine(factors[self.channel], terms[self.channel], run),
                Bound::Add(residual, bounds) if stride == 1 => {
                    add(kernels, &residual[at..at + run.len()], *bounds, run)
                }
                Bound::Add(residual, bounds) => {
                    let values = residual.iter().skip(at).step_by(stride);
                    run.iter_mut().zip(values).for_each(|(x, value)| *x = x.plus(value.widen()));
                    if let Some(bounds) = bounds {
                        kernels.clamp_pixels(*bounds, (1, run.len()), run.len(), run);
                    }
                }
            }
        }
    }
}

/// Adds values to results, and applies bounds to the sums.
fn add<E: Element>(
    kernels: &Kernels<E::Compute>,
    from: &[E],
    bounds: Option<Bounds<E::Compute>>,
    to: &mut [E::Compute],
) {
    let add =
        |from: &[E::Compute], to: &mut [E::Compute]| kernels.add_pixels(from, (1, to.len()), to.len(), bounds, to);
    match E::as_compute(from) {
        Some(from) => add(from, to),
        None => {
            // Widens chunks that fit the stack.
            let mut wide = [E::Compute::ZERO; 256];
            for (from, to) in from.chunks(wide.len()).zip(to.chunks_mut(wide.len())) {
                let wide = &mut wide[..from.len()];
                E::widen_slice(from, wide);
                add(wide, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any sequence of maxima and minima is the same as the bounds that stand for it.
    #[test]
    fn bounds_are_those_of_all_steps() {
        let bounds = [-3.0, -1.0, 2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let single: Vec<Activation> =
            bounds.iter().flat_map(|of| [Activation::Max(*of), Activation::Min(*of)]).collect();
        let [mut moved, mut cases] = [0, 0];
        for (first, second, third) in tract_itertools::iproduct!(&single, &single, &single) {
            let steps = [first, second, third].map(|of| Step::Activation(*of));
            let joined = joined::<f32>(&steps);
            assert!(joined.low <= joined.high, "{steps:?}");
            for x in [-7.0, -3.0, -2.0, 0.5, 2.0, 11.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut want = [x];
                for of in [first, second, third] {
                    crate::activation::activate::<f32, false>(*of, (1, 1), 1, &mut want);
                }
                let got = joined.clamp(x);
                assert!(got == want[0] || (got.is_nan() && want[0].is_nan()), "{x}, {steps:?}: {got} for {want:?}");
                (moved, cases) = (moved + usize::from(got != x), cases + 1);
            }
        }
        assert!(0 < moved && moved < cases, "{moved} of {cases} values were outside of bounds");
    }
}
