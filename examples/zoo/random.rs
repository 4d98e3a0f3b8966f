//! Pseudo-random weights.

/// Knuth's linear congruential generator. Only exact float operations follow it, so that the
/// weights are the same bytes on every machine.
pub struct Random(pub u64);

impl Random {
    /// Returns a number that is uniform in -1..1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn around(&mut self, centre: f32, radius: f32, len: usize) -> Vec<f32> {
        (0..len).map(|_| centre + radius * self.next()).collect()
    }

    /// Returns weights that scale the variance of a sum of `terms` products by `gain` squared.
    pub fn weights(&mut self, gain: f32, terms: f32, len: usize) -> Vec<f32> {
        self.around(0.0, gain * (3.0 / terms).sqrt(), len)
    }
}
