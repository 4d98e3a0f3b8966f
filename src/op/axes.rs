//! Neighbouring axes of a tensor.

use std::ops::Range;
use tract_core::internal::{TractResult, ensure};

/// Returns axes as a range, if they are different, next to each other, and axes of a tensor of this
/// rank.
pub(super) fn neighbours(axes: &[usize], rank: usize) -> Option<Range<usize>> {
    let range = *axes.iter().min()?..*axes.iter().max()? + 1;
    let each_once = range.len() == axes.len() && range.clone().all(|axis| axes.contains(&axis));
    (each_once && range.end <= rank).then_some(range)
}

/// Checks that a tensor of a shape has these axes.
pub(super) fn check_axes<D: std::fmt::Debug>(axes: &Range<usize>, shape: &[D]) -> TractResult<()> {
    ensure!(axes.end <= shape.len(), "input: shape={shape:?}, an axis {} is needed", axes.end - 1);
    Ok(())
}

/// Returns the number of positions of some axes, at most `usize::MAX`. That of an empty tensor's
/// other axes may be larger.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_are_a_range() {
        assert_eq!(neighbours(&[3, 1, 2], 4), Some(1..4));
        for (axes, rank) in [(&[][..], 4), (&[1, 3], 4), (&[1, 1], 4), (&[1, 3, 3], 4), (&[2, 3], 3)] {
            assert_eq!(neighbours(axes, rank), None, "{axes:?}");
        }
    }
}
