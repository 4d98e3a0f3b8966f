//! Recognises filters that are windowed Fourier bases.
//!
//! Such a filter has a row of `taps` weights per channel. Row `r` at tap `n` is
//! `window[n]·factor[r]·cos(2πkn/N)` or the same with the sine, for the bin `k` of the row and a
//! transform of `N` points. Window and factors are not given. They are fitted to the weights by
//! least squares, in f64, and then every weight is compared with its product.

use crate::memory::{collected, zeros};
use std::f64::consts::TAU;
use tract_core::internal::*;

/// The most by which rounding to f32 changes a number, relative to it.
const ROUNDING: f64 = f32::EPSILON as f64 / 2.0;

/// The most by which a weight may differ from its product, relative to the product.
///
/// A weight has up to three roundings of its own: those of the cosine, of its product with the
/// window, and of the product with a factor that was folded into it. The roundings of the window
/// and of the rows' factors are common to a column or a row, so they are part of what is fitted.
/// The error of the fit itself is smaller, as it averages over hundreds of weights.
const TOLERANCE: f64 = 3.0 * ROUNDING;

/// As [`TOLERANCE`], for the first fit, whose window is that of a single row: the window has the
/// row's three roundings, too, and so does the factor.
const FIRST_TOLERANCE: f64 = 9.0 * ROUNDING;

/// The most by which a weight may differ besides, relative to the product without the cosine.
///
/// This is the error of cosines that were computed in f64, as powers of a root of unity or by a
/// pseudo-inverse: they are not zero where they should be. Measured were 4e-11 at 2048 points. It
/// is a thousandth of what rounding to f32 changes.
const ERROR_OF_COSINES: f64 = ROUNDING / 1024.0;

/// The fewest points of a transform.
const FEWEST_POINTS: usize = 4;

/// A windowed Fourier basis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FourierBasis {
    /// The points of the transform, no fewer than the taps.
    pub points: usize,
    /// One factor per tap.
    pub window: Vec<f32>,
    /// One per channel.
    pub rows: Vec<Row>,
}

/// One channel of a basis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub bin: usize,
    /// Whether the weights are sines.
    pub sine: bool,
    pub factor: f32,
}

impl Row {
    /// Returns whether the weights are sines of multiples of a half turn, which are all zero.
    pub fn is_null(&self, points: usize) -> bool {
        self.sine && is_self_conjugate(self.bin, points)
    }
}

/// Returns whether a bin is its own mirror image: it has no imaginary part.
pub(super) fn is_self_conjugate(bin: usize, points: usize) -> bool {
    bin == 0 || 2 * bin == points
}

/// The order of a basis's rows, by ascending bin.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// All cosines, then all sines.
    Halves,
    /// Cosine and sine of each bin in turn.
    Alternating,
    Cosines,
    Sines,
}

impl Order {
    fn row(self, rows: usize, row: usize) -> (usize, bool) {
        match self {
            Order::Halves => (row % (rows / 2), row >= rows / 2),
            Order::Alternating => (row / 2, row % 2 == 1),
            Order::Cosines => (row, false),
            Order::Sines => (row, true),
        }
    }
}

/// Why a filter is no basis of some order and number of points.
struct Refusal {
    /// The rows that fit before one that does not, in both fits.
    fitting: usize,
    reason: String,
}

fn no_memory(error: TractError) -> Refusal {
    Refusal { fitting: 0, reason: error.to_string() }
}

impl FourierBasis {
    /// Recognises a filter of rows of `taps` weights.
    ///
    /// # Errors
    /// The reason why it is no basis.
    pub fn of(filter: &[f32], taps: usize) -> Result<FourierBasis, String> {
        let rows = filter.len().checked_div(taps).unwrap_or(0);
        // The filter of another kind of layer differs in its first rows. The reason is that of the
        // order that fits longest.
        let mut longest = Refusal { fitting: 2, reason: "its weights are no sines and cosines".into() };
        for (order, bins) in
            [(Order::Halves, rows / 2), (Order::Alternating, rows / 2), (Order::Cosines, rows), (Order::Sines, rows)]
        {
            let whole = bins == rows || rows.is_multiple_of(2);
            for points in [(2 * bins).saturating_sub(2), (2 * bins).saturating_sub(1)] {
                if !whole || points < taps.max(FEWEST_POINTS) {
                    continue;
                }
                match Fit::new(filter, taps, order, points).and_then(Fit::basis) {
                    Ok(basis) => return Ok(basis),
                    Err(refusal) if refusal.fitting > longest.fitting => longest = refusal,
                    Err(_) => {}
                }
            }
        }
        Err(longest.reason)
    }
}

/// A basis that is fitted to a filter.
struct Fit<'a> {
    filter: &'a [f32],
    taps: usize,
    rows: usize,
    order: Order,
    points: usize,
    /// The cosine and the sine of each multiple of a turn over the points.
    circle: Vec<[f64; 2]>,
    window: Vec<f64>,
}

impl<'a> Fit<'a> {
    /// Takes the window from the first row that determines it.
    fn new(filter: &'a [f32], taps: usize, order: Order, points: usize) -> Result<Fit<'a>, Refusal> {
        let circle = collected("circle", (0..points).map(|at| on_circle(at, points))).map_err(no_memory)?;
        let first = if matches!(order, Order::Sines) { &filter[taps..2 * taps] } else { &filter[..taps] };
        let window = first.iter().enumerate().map(|(n, weight)| match order {
            Order::Sines if circle[n][1] == 0.0 => 0.0,
            Order::Sines => f64::from(*weight) / circle[n][1],
            _ => f64::from(*weight),
        });
        let window: Vec<f64> = collected("window", window).map_err(no_memory)?;
        let rows = filter.len() / taps;
        if !window.iter().all(|value| value.is_finite()) || window.iter().all(|value| *value == 0.0) {
            return Err(Refusal { fitting: 0, reason: "the weights of its first row are zero or not finite".into() });
        }
        Ok(Fit { filter, taps, rows, order, points, circle, window })
    }

    /// Improves the window, fits the factors to it, and compares all weights.
    fn basis(mut self) -> Result<FourierBasis, Refusal> {
        let mut products: Vec<f64> = zeros("window", self.taps).map_err(no_memory)?;
        let mut squares: Vec<f64> = zeros("window", self.taps).map_err(no_memory)?;
        self.factors(FIRST_TOLERANCE, |factor, weights, parts| {
            for (((product, square), weight), part) in products.iter_mut().zip(&mut squares).zip(weights).zip(parts) {
                let part = factor * part;
                *product += part * weight;
                *square += part * part;
            }
        })?;
        for ((value, product), square) in self.window.iter_mut().zip(&products).zip(&squares) {
            *value = if *square > 0.0 { product / square } else { 0.0 };
        }
        let after_the_first = |refusal: Refusal| Refusal { fitting: self.rows + refusal.fitting, ..refusal };
        let factors = self.factors(TOLERANCE, |_, _, _| {}).map_err(after_the_first)?;
        // The window takes the factor of the first bins, so that most factors are exactly one or
        // two.
        let unit = (0..self.rows).find(|row| self.order.row(self.rows, *row).0 == 1).map_or(0.0, |row| factors[row]);
        let unit = if unit == 0.0 { 1.0 } else { unit.abs() };
        let window = self.window.iter().map(|value| (value * unit) as f32);
        let window: Vec<f32> = collected("window", window).map_err(no_memory)?;
        let rows = (0..self.rows).map(|row| {
            let (bin, sine) = self.order.row(self.rows, row);
            Row { bin, sine, factor: (factors[row] / unit) as f32 }
        });
        let rows: Vec<Row> = collected("rows", rows).map_err(no_memory)?;
        let exact = |value: f32| value == 0.0 || value.is_normal();
        if !window.iter().copied().chain(rows.iter().map(|row| row.factor)).all(exact) {
            return Err(Refusal { fitting: 2 * self.rows, reason: "its window leaves the range of f32".into() });
        }
        Ok(FourierBasis { points: self.points, window, rows })
    }

    /// Fits a factor per row to the window, and compares all weights with their products.
    ///
    /// `each` gets the factor of each row that is not null, and its weights with their cosines.
    fn factors(&self, tolerance: f64, mut each: impl FnMut(f64, &[f64], &[f64])) -> Result<Vec<f64>, Refusal> {
        // No weight tells the window at taps where all sines are zero.
        let largest = self.window.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        let untold = |n: usize| matches!(self.order, Order::Sines) && self.circle[n][1] == 0.0;
        let amplitudes = self.window.iter().enumerate().map(|(n, value)| if untold(n) { largest } else { value.abs() });
        let amplitudes: Vec<f64> = collected("window", amplitudes).map_err(no_memory)?;
        let new = |len| zeros::<f64>("row", len).map_err(no_memory);
        let mut factors = new(self.rows)?;
        let [mut weights, mut parts, mut products] = [new(self.taps)?, new(self.taps)?, new(self.taps)?];
        let mut least = f64::INFINITY;
        for (row, filter) in self.filter.chunks_exact(self.taps).enumerate() {
            let (bin, sine) = self.order.row(self.rows, row);
            if sine && is_self_conjugate(bin, self.points) {
                continue;
            }
            weights.iter_mut().zip(filter).for_each(|(to, weight)| *to = f64::from(*weight));
            let mut at = 0;
            for part in &mut parts {
                *part = self.circle[at][usize::from(sine)];
                at = (at + bin) % self.points;
            }
            products.iter_mut().zip(&self.window).zip(&parts).for_each(|((to, value), part)| *to = value * part);
            let product: f64 = weights.iter().zip(&products).map(|(a, b)| a * b).sum();
            let square: f64 = products.iter().map(|a| a * a).sum();
            let factor = if square > 0.0 { product / square } else { 0.0 };
            for (n, ((weight, product), amplitude)) in weights.iter().zip(&products).zip(&amplitudes).enumerate() {
                let product = factor * product;
                let allowed = tolerance * product.abs() + ERROR_OF_COSINES * factor.abs() * amplitude;
                // A NaN is not within the tolerance.
                let is_within = (weight - product).abs() <= allowed;
                if !is_within {
                    return Err(self.refusal(row, n, product));
                }
            }
            if factor != 0.0 {
                least = least.min(factor.abs());
            }
            factors[row] = factor;
            each(factor, &weights, &parts);
        }
        for (row, filter) in self.filter.chunks_exact(self.taps).enumerate() {
            let (bin, sine) = self.order.row(self.rows, row);
            if sine && is_self_conjugate(bin, self.points) {
                let is_zero =
                    |(weight, amplitude): (&f32, &f64)| f64::from(weight.abs()) <= ERROR_OF_COSINES * least * amplitude;
                let wrong = filter.iter().zip(&amplitudes).position(|values| !is_zero(values));
                if let Some(n) = wrong {
                    return Err(self.refusal(row, n, 0.0));
                }
            }
        }
        Ok(factors)
    }

    fn refusal(&self, row: usize, tap: usize, product: f64) -> Refusal {
        let weight = self.filter[row * self.taps + tap];
        let points = self.points;
        Refusal {
            fitting: row,
            reason: format!(
                "weight {weight:e} at tap {tap} of channel {row} is {product:e} in the windowed basis of {points} points"
            ),
        }
    }
}

/// Returns the cosine and the sine of `at` parts of a turn of `points`. Zeros are exact.
fn on_circle(at: usize, points: usize) -> [f64; 2] {
    let (sine, cosine) = (TAU * at as f64 / points as f64).sin_cos();
    let quarters = |of: &[usize]| of.iter().any(|quarter| 4 * at == quarter * points);
    [if quarters(&[1, 3]) { 0.0 } else { cosine }, if quarters(&[0, 2]) { 0.0 } else { sine }]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter to recognise.
    #[derive(Clone, Copy)]
    struct Case {
        order: Order,
        points: usize,
        taps: usize,
        window: fn(f64) -> f64,
        /// By row and bin.
        factor: fn(usize, usize) -> f64,
        /// How often a weight is rounded.
        roundings: usize,
    }

    const HANN: fn(f64) -> f64 = |x| 0.5 - 0.5 * (TAU * x).cos();

    const PLAIN: Case =
        Case { order: Order::Halves, points: 64, taps: 64, window: HANN, factor: |_, _| 1.0, roundings: 1 };

    impl Case {
        fn rows(self) -> usize {
            let bins = self.points / 2 + 1;
            if matches!(self.order, Order::Halves | Order::Alternating) { 2 * bins } else { bins }
        }

        fn filter(self) -> Vec<f32> {
            let of = |at: usize| {
                let (row, n) = (at / self.taps, at % self.taps);
                let (bin, sine) = self.order.row(self.rows(), row);
                let part = on_circle(bin * n % self.points, self.points)[usize::from(sine)];
                let window = (self.window)(n as f64 / self.taps as f64);
                let factor = (self.factor)(row, bin);
                match self.roundings {
                    1 => (part * window * factor) as f32,
                    2 => (part * factor) as f32 * window as f32,
                    _ => part as f32 * window as f32 * factor as f32,
                }
            };
            (0..self.rows() * self.taps).map(of).collect()
        }

        fn check(self) {
            let filter = self.filter();
            let basis = FourierBasis::of(&filter, self.taps).unwrap_or_else(|reason| panic!("{reason}"));
            assert_eq!((basis.points, basis.window.len(), basis.rows.len()), (self.points, self.taps, self.rows()));
            for (r, row) in basis.rows.iter().enumerate() {
                assert_eq!((row.bin, row.sine), self.order.row(self.rows(), r));
                for (n, window) in basis.window.iter().enumerate() {
                    let part = on_circle(row.bin * n % self.points, self.points)[usize::from(row.sine)];
                    let product = f64::from(*window) * f64::from(row.factor) * part;
                    let weight = f64::from(filter[r * self.taps + n]);
                    // Window and factor are rounded, too.
                    let allowed = (TOLERANCE + 2.0 * ROUNDING) * product.abs() + 1e-30;
                    assert!((weight - product).abs() <= allowed, "{weight} and {product}, row {r}, tap {n}");
                }
            }
        }
    }

    #[test]
    fn orders_windows_and_factors() {
        let windows: [fn(f64) -> f64; 5] = [
            |_| 1.0,
            |x| (std::f64::consts::PI * x).sin(),
            // padded with zeros
            |x| if (0.25..0.75).contains(&x) { 0.54 - 0.46 * (2.0 * TAU * (x - 0.25)).cos() } else { 0.0 },
            |x| 3e4 * (x - 0.3),
            |x| 1e-9 * (1.0 - x),
        ];
        for order in [Order::Halves, Order::Alternating, Order::Cosines, Order::Sines] {
            for window in windows {
                for roundings in 1..=3 {
                    Case { order, window, roundings, ..PLAIN }.check();
                }
            }
            for factor in [
                |row, _| if row % 2 == 0 { -0.3 } else { 0.7 },
                |_, bin| if bin == 0 || bin == 32 { 1.0 / 64.0 } else { 2.0 / 64.0 },
                |row: usize, _| 1.0 + row as f64,
                |_, bin| if bin == 5 { 0.0 } else { 1e-6 },
            ] {
                Case { order, factor, roundings: 3, ..PLAIN }.check();
            }
        }
    }

    #[test]
    fn points_and_taps() {
        for points in [64, 65, 66, 67, 72, 100, 127, 128] {
            for taps in [points, points - 7, 64] {
                for order in [Order::Halves, Order::Alternating, Order::Cosines, Order::Sines] {
                    Case { order, points, taps, ..PLAIN }.check();
                }
            }
        }
    }

    /// Cosines as powers of a root of unity, which are not zero where they should be.
    #[test]
    fn cosines_of_some_error() {
        for order in [Order::Halves, Order::Sines] {
            let case = Case { order, ..PLAIN };
            let mut filter = case.filter();
            for (at, weight) in filter.iter_mut().enumerate() {
                let amplitude = HANN((at % 64) as f64 / 64.0);
                if *weight == 0.0 {
                    *weight = (3e-11 * amplitude) as f32;
                }
            }
            assert!(FourierBasis::of(&filter, 64).is_ok());
        }
    }

    /// Four units in the last place of any weight are noticed.
    #[test]
    fn each_changed_weight_is_refused() {
        for order in [Order::Halves, Order::Alternating, Order::Cosines, Order::Sines] {
            for factor in [|_, _| 1.0, |_, bin| if bin == 0 { 1.0 / 48.0 } else { 2.0 / 48.0 }] {
                let case = Case { order, factor, points: 48, taps: 48, ..PLAIN };
                let filter = case.filter();
                let scale = filter.iter().fold(0f32, |most, weight| most.max(weight.abs()));
                for at in 0..filter.len() {
                    // The unit of a weight that is about zero is that of the largest weight.
                    let is_zero = filter[at].abs() < 1e-12;
                    let unit =
                        if is_zero { scale * f32::EPSILON } else { filter[at].abs().next_up() - filter[at].abs() };
                    for change in [4.0 * unit, -4.0 * unit, scale, f32::NAN, f32::INFINITY] {
                        let mut changed = filter.clone();
                        changed[at] += change;
                        let reason = FourierBasis::of(&changed, 48).err();
                        assert!(reason.is_some(), "{order:?}: weight {at}, {} by {change}", filter[at]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_reason_names_the_weight() {
        let mut filter = PLAIN.filter();
        filter[40 * 64 + 5] *= 1.0 + 1e-6;
        let reason = FourierBasis::of(&filter, 64).expect_err("it is changed");
        assert!(reason.contains("at tap 5 of channel 40") && reason.contains("of 64 points"), "{reason}");
        let reason = FourierBasis::of(&[0.5; 66 * 64], 64).expect_err("constant");
        assert_eq!(reason, "its weights are no sines and cosines");
    }

    #[test]
    fn other_filters_are_refused() {
        // Cosines of angles that were rounded to f32.
        let angle = |row: usize, n: usize| (std::f32::consts::TAU * row as f32 * n as f32) / 64.0;
        let rounded = (0..66 * 64).map(|at| {
            let (row, n) = (at / 64, at % 64);
            if row < 33 { angle(row, n).cos() } else { angle(row - 33, n).sin() }
        });
        let zeros = vec![0.0; 66 * 64];
        let subnormal = PLAIN.filter().iter().map(|weight| weight * 1e-38).collect();
        // Half of the bins, and rows in another order.
        let half = PLAIN.filter()[..16 * 64].to_vec();
        let mut swapped = PLAIN.filter();
        swapped.rotate_left(64);
        for filter in [rounded.collect(), zeros, subnormal, half, swapped, vec![], vec![1.0; 64]] {
            assert!(FourierBasis::of(&filter, 64).is_err());
        }
        assert!(FourierBasis::of(&[], 0).is_err());
    }
}
