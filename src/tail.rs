//! What is applied to a deconvolution's sums while they are hot, before they are stored.

use crate::element::Compute;
use std::hash::{Hash, Hasher};

/// An element-wise function that a strategy applies to each run of results. Values as tract's own ops compute them.
#[derive(Clone, Copy, Debug)]
pub enum Activation {
    /// `max(x, value)`: Relu with zero, the lower half of Clip.
    Max(f32),
    /// `min(x, value)`: the upper half of Clip.
    Min(f32),
    /// `x` where positive, `alpha·x` elsewhere.
    LeakyRelu(f32),
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x · clamp(x/6 + 1/2, 0, 1)`.
    HardSwish,
    /// `x · sigmoid(x)`.
    Silu,
}

impl Activation {
    /// What tells two of them apart: a parameter counts by its bits.
    fn key(self) -> (std::mem::Discriminant<Activation>, u32) {
        let parameter = match self {
            Activation::Max(v) | Activation::Min(v) | Activation::LeakyRelu(v) => v.to_bits(),
            _ => 0,
        };
        (std::mem::discriminant(&self), parameter)
    }
}

impl PartialEq for Activation {
    fn eq(&self, other: &Activation) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Activation {}

impl Hash for Activation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state)
    }
}

/// Applies the functions in order.
pub(crate) fn apply<T: Compute>(tail: &[Activation], run: &mut [T]) {
    for activation in tail {
        T::activate(*activation, run);
    }
}
