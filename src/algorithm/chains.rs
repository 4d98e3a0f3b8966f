//! The length of accumulation chains, which bounds the rounding error of sums.

/// The longest accumulation chain, in (channel, tap) pairs. Longer sums are split into partial
/// sums, which keeps the rounding error close to that of other runtimes.
const LONGEST_CHAIN: usize = 256;

/// The most steps of matrix products per pass. A step is a block of input channels under one tap. Sums stay
/// in registers during a pass. More steps are no faster and make longer chains.
pub(crate) const MATRIX_STEPS: usize = 40;

/// Returns the longest chain for a sum of `depth` pairs over `taps` taps.
///
/// The rounding error grows with the length of the partial sums and with their number. Deep sums
/// have long chains, which are faster and as exact there. Other runtimes sum tap by tap, so sums
/// over several taps have shorter chains. Short sums are split into two chains. The shortest sums
/// are not split, as two chains would take longer.
pub(crate) fn longest_chain(depth: usize, taps: usize) -> usize {
    match (depth, taps) {
        (..96, _) => 96,
        (..=256, _) => depth.div_ceil(2),
        (..1024, 2..) => 96,
        _ => (depth / 8).clamp(128, LONGEST_CHAIN),
    }
}

/// Input channels per chain of a sum over this many channels and taps.
pub(crate) fn channels_per_chain(channels: usize, taps: usize) -> usize {
    (longest_chain(channels * taps, taps) / taps.max(1)).max(1)
}
