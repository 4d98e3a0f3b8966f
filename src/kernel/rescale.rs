//! From integer sums to real numbers, or to quantised ones.
//!
//! Safe loops over slices that the compiler vectorises, instantiated for each instruction set. All
//! give the same values, those of arithmetic in f64 that rounds each step.
//!
//! Quantised results are first computed in f32. Its error is bounded, so it gives the same integer
//! unless a number is about half way between two integers. Parts that have such a number are
//! computed again in f64.

use crate::memory;
use crate::simd::isa::Isa;
use tract_core::internal::TractResult;

/// What is done to the sums of one channel: `(sum + before)·factor + term`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelScale {
    pub before: f64,
    pub factor: f64,
    pub term: f64,
}

/// What real numbers become: they are limited first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrowing {
    /// The least and the largest number. NaN stays NaN.
    pub limits: (f64, f64),
    /// The integer that is added to quantised results.
    pub zero_point: i32,
}

/// Integers of 8 bits that are added: `(value − zero point)·factor`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddedIntegers<'a, A> {
    pub values: &'a [A],
    pub zero_point: i32,
    pub factor: f64,
}

/// A type of results.
pub(crate) trait Narrowed: Copy {
    /// The result of a limited number.
    fn of(value: f64, zero_point: i32) -> Self;

    /// Whether results are integers of 8 bits.
    const IS_BYTE: bool;

    /// The result of the lowest bits of an integer. Zero if results are no integers.
    fn of_bits(bits: u32) -> Self;
}

impl Narrowed for f32 {
    #[inline(always)]
    fn of(value: f64, _zero_point: i32) -> f32 {
        value as f32
    }

    const IS_BYTE: bool = false;

    #[inline(always)]
    fn of_bits(_bits: u32) -> f32 {
        0.0
    }
}

impl Narrowed for u8 {
    #[inline(always)]
    fn of(value: f64, zero_point: i32) -> u8 {
        (rounded(value) + zero_point) as u8
    }

    const IS_BYTE: bool = true;

    #[inline(always)]
    fn of_bits(bits: u32) -> u8 {
        bits as u8
    }
}

impl Narrowed for i8 {
    #[inline(always)]
    fn of(value: f64, zero_point: i32) -> i8 {
        (rounded(value) + zero_point) as i8
    }

    const IS_BYTE: bool = true;

    #[inline(always)]
    fn of_bits(bits: u32) -> i8 {
        bits as i8
    }
}

/// Rounds a number of less than 31 bits to the nearest integer, ties to even.
#[inline(always)]
fn rounded(value: f64) -> i32 {
    // The sum has no bits below one, and is rounded as it is made. Its lowest bits are the integer's.
    const ONE_AND_A_HALF: f64 = (3u64 << 51) as f64;
    (value + ONE_AND_A_HALF).to_bits() as i32
}

/// A [`ChannelScale`] in f32: `sum·factor + term`.
#[derive(Clone, Copy, Debug)]
struct QuickScale {
    factor: f32,
    term: f32,
    /// The largest distance from an integer at which the f32 rounds to the same integer as the f64.
    /// Negative if there is none.
    certain: f32,
}

impl QuickScale {
    /// `added` is the factor of added integers, or zero.
    fn new(ChannelScale { before, factor, term }: ChannelScale, added: f64) -> QuickScale {
        /// The magnitude from which on results are limited, whatever the errors.
        const LIMITED: f64 = 260.0;
        /// The sum, its factor, their product, the term, what is added, and two sums of those are
        /// rounded, by 2⁻²⁴ of their sizes each. The rounding errors in f64 are far smaller.
        const ERROR: f64 = 1.0 / (1 << 21) as f64;
        let term = before * factor + term;
        // Where the result is not limited, the product is at most as large as the others together.
        let sizes = LIMITED + 2.0 * term.abs() + 2.0 * 255.0 * added.abs();
        let certain = 0.5 - ERROR * sizes;
        let usable = certain > 0.25 && factor.abs() < f32::MAX.into();
        QuickScale { factor: factor as f32, term: term as f32, certain: if usable { certain as f32 } else { -1.0 } }
    }
}

/// The scales of channels whose results are bytes, for kernels that saturate to `u8` and then limit.
///
/// Results of `i8` are those of `u8` with 128 more, less its bit.
#[derive(Debug)]
pub(crate) struct ByteScales {
    exact: Vec<ChannelScale>,
    narrowing: Narrowing,
    /// For each channel: in f32, a result is `sum·factor + term` rounded.
    pub factors: Vec<f32>,
    /// With the zero points.
    pub terms: Vec<f32>,
    /// For each channel: the largest distance from an integer at which the f32 rounds to the same
    /// integer as the f64. Negative if there is none.
    pub certain: Vec<f32>,
    /// Another tensor, of which `byte·factor` is added to the results.
    pub added: Option<AddedBytes>,
    /// The least and the largest result.
    pub low: u8,
    pub high: u8,
    /// The bits that are flipped in the end.
    pub flip: u8,
}

/// Bytes that are added: `(byte ^ flip − zero point)·factor`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddedBytes {
    pub factor: f64,
    pub zero_point: i32,
    /// The bits that are flipped, so that all are `u8`.
    pub flip: u8,
}

impl ByteScales {
    /// Returns whether nothing is limited or flipped after saturation.
    pub fn is_plain(&self) -> bool {
        (self.low, self.high, self.flip) == (0, u8::MAX, 0)
    }

    /// Creates the scales. `narrowing` is for `i8` if `signed`, else for `u8`. `most` returns the largest
    /// magnitude of a channel's sums.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn new(
        exact: Vec<ChannelScale>,
        mut narrowing: Narrowing,
        signed: bool,
        added: Option<AddedBytes>,
        most: impl Fn(usize) -> f64,
    ) -> TractResult<ByteScales> {
        /// Results from -1 to this one are not saturated, whatever the errors.
        const SATURATED: f64 = 257.0;
        /// A rounding error, of the size of what is rounded.
        const ROUNDED: f64 = 1.0 / (1 << 24) as f64;
        let flip = if signed { 0x80 } else { 0 };
        narrowing.zero_point += i32::from(flip);
        let zero_point = f64::from(narrowing.zero_point);
        let (of_added, less) =
            added.map_or((0.0, 0.0), |added| (255.0 * added.factor.abs(), f64::from(added.zero_point) * added.factor));
        let term = |ChannelScale { before, factor, term }: &ChannelScale| before * factor + term + zero_point - less;
        let certain = |(channel, scale): (usize, &ChannelScale)| {
            let (term, most) = (term(scale), most(channel));
            // The factor and its product are rounded, sums if they are large, then the term and the results
            // of both steps.
            let product = (SATURATED - term).abs().max((-1.0 - term).abs()) + of_added;
            let of_product = if most < f64::from(1 << 24) { 2.0 } else { 3.0 };
            let of_steps = if added.is_some() { 2.0 * SATURATED + 3.0 * of_added } else { SATURATED };
            let error = ROUNDED * (of_product * product + term.abs() + of_steps);
            // Some more, for the squares of errors and those of f64.
            let certain = 0.5 - 1.01 * error;
            // A conversion to i32 must not overflow.
            let largest = scale.factor.abs() * most + term.abs() + of_added;
            if certain > 0.25 && largest < f64::from(1 << 30) { certain as f32 } else { -1.0 }
        };
        let [low, high] = [narrowing.limits.0, narrowing.limits.1].map(|limit| (limit + zero_point) as u8);
        Ok(ByteScales {
            factors: memory::collected("channels", exact.iter().map(|scale| scale.factor as f32))?,
            terms: memory::collected("channels", exact.iter().map(|scale| term(scale) as f32))?,
            certain: memory::collected("channels", exact.iter().enumerate().map(certain))?,
            exact,
            narrowing,
            added,
            low,
            high,
            flip,
        })
    }

    /// The number of channels.
    pub fn channels(&self) -> usize {
        self.exact.len()
    }

    /// Returns the scales of the channels of several pixels.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn of_pixels(self, count: usize) -> TractResult<ByteScales> {
        fn repeated<T: Copy>(of_pixel: &[T], count: usize) -> TractResult<Vec<T>> {
            memory::collected("channels", (0..of_pixel.len() * count).map(|at| of_pixel[at % of_pixel.len()]))
        }
        Ok(ByteScales {
            exact: repeated(&self.exact, count)?,
            factors: repeated(&self.factors, count)?,
            terms: repeated(&self.terms, count)?,
            certain: repeated(&self.certain, count)?,
            ..self
        })
    }

    /// A real number as a number whose lowest bits are the byte before bits are flipped, and its distance
    /// from an integer.
    #[inline(always)]
    pub fn rounded(&self, value: f32) -> (u32, f32) {
        /// Sums with it have no bits below one. Their lowest bits are those of the integer.
        const ONE_AND_A_HALF: f32 = (3 << 22) as f32;
        let (low, high) = (self.low.into(), self.high.into());
        let value = if value < low { low } else { value };
        let value = if value > high { high } else { value };
        let shifted = value + ONE_AND_A_HALF;
        (shifted.to_bits(), (value - (shifted - ONE_AND_A_HALF)).abs())
    }

    /// The result of a sum.
    pub fn exact(&self, channel: usize, sum: i32, added: Option<u8>) -> u8 {
        let ChannelScale { before, factor, term } = self.exact[channel];
        let real = (f64::from(sum) + before) * factor + term;
        let real = match self.added.zip(added) {
            None => real,
            Some((added, byte)) => real + f64::from(i32::from(byte ^ added.flip) - added.zero_point) * added.factor,
        };
        narrowed::<u8>(real, self.narrowing) ^ self.flip
    }
}

/// Sums that are computed again together, if the result of one is not certain in f32.
const PART: usize = 128;

/// The scales of the channels of a layer.
pub(crate) struct Rescaling {
    channels: Vec<ChannelScale>,
    quick: Vec<QuickScale>,
}

impl Rescaling {
    /// Creates the scales. `added` is the factor of added integers, or zero.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn new(channels: Vec<ChannelScale>, added: f64) -> TractResult<Rescaling> {
        let quick = channels.iter().map(|channel| QuickScale::new(*channel, added));
        Ok(Rescaling { quick: memory::collected("channels", quick)?, channels })
    }

    /// The number of channels.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Rescales sums: runs of `run` sums of one channel each, or the channels of pixels if `run` is
    /// one. `first` is the index of the first run among those of all sums.
    ///
    /// # Panics
    /// There are no channels, or a slice is shorter than `to`.
    pub fn run<T: Narrowed, A: Copy + Into<i32>>(
        &self,
        (run, first): (usize, usize),
        sums: &[i32],
        added: Option<AddedIntegers<A>>,
        narrowing: Narrowing,
        to: &mut [T],
    ) {
        let sums = &sums[..to.len()];
        let count = self.channels.len();
        let isa = Isa::best();
        let whole = if run == 1 { count } else { run };
        for (at, (sums, to)) in sums.chunks(whole.max(1)).zip(to.chunks_mut(whole.max(1))).enumerate() {
            let channels = if run == 1 { 0..count } else { (first + at) % count..(first + at) % count + 1 };
            let (exact, quick) = (&self.channels[channels.clone()], &self.quick[channels]);
            let part = at * whole..at * whole + to.len();
            let added = added.map(|added| AddedIntegers { values: &added.values[part], ..added });
            match isa {
                // SAFETY: the CPU has the instruction set. The code inside is safe.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Amx => unsafe { avx512::rescaled((exact, quick), sums, added, narrowing, to) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2::rescaled((exact, quick), sums, added, narrowing, to) },
                _ => rescaled((exact, quick), sums, added, narrowing, to),
            }
        }
    }
}

/// Rescales sums of one channel, or one sum of each channel.
#[inline(always)]
fn rescaled<T: Narrowed, A: Copy + Into<i32>>(
    (exact, quick): (&[ChannelScale], &[QuickScale]),
    sums: &[i32],
    added: Option<AddedIntegers<A>>,
    narrowing: Narrowing,
    to: &mut [T],
) {
    for at in (0..to.len()).step_by(PART) {
        let part = at..to.len().min(at + PART);
        let (sums, to) = (&sums[part.clone()], &mut to[part.clone()]);
        let added = added.map(|added| AddedIntegers { values: &added.values[part.clone()], ..added });
        if let ([exact], [quick]) = (exact, quick) {
            if !(T::IS_BYTE && quickly(std::iter::repeat(quick), sums, added, narrowing, to)) {
                exactly(std::iter::repeat(exact), sums, added, narrowing, to);
            }
        } else {
            let (exact, quick) = (&exact[part.clone()], &quick[part]);
            if !(T::IS_BYTE && quickly(quick.iter(), sums, added, narrowing, to)) {
                exactly(exact.iter(), sums, added, narrowing, to);
            }
        }
    }
}

/// Rescales sums in f32, and returns whether all results are certain.
#[inline(always)]
fn quickly<'a, T: Narrowed, A: Copy + Into<i32>>(
    scales: impl Iterator<Item = &'a QuickScale>,
    sums: &[i32],
    added: Option<AddedIntegers<A>>,
    Narrowing { limits: (low, high), zero_point }: Narrowing,
    to: &mut [T],
) -> bool {
    /// Sums with it have no bits below one. Their lowest bits are those of the integer.
    const ONE_AND_A_HALF: f32 = (3 << 22) as f32;
    let (low, high) = (low as f32, high as f32);
    let mut certain = true;
    let mut each = |to: &mut T, value: f32, scale: &QuickScale| {
        let value = if value < low { low } else { value };
        let value = if value > high { high } else { value };
        let shifted = value + ONE_AND_A_HALF;
        certain &= (value - (shifted - ONE_AND_A_HALF)).abs() <= scale.certain;
        *to = T::of_bits(shifted.to_bits().wrapping_add(zero_point as u32));
    };
    let sums = to.iter_mut().zip(sums).zip(scales);
    match added {
        None => sums.for_each(|((to, sum), scale)| each(to, *sum as f32 * scale.factor + scale.term, scale)),
        Some(AddedIntegers { values, zero_point, factor }) => {
            let factor = factor as f32;
            for (((to, sum), scale), value) in sums.zip(values) {
                let value: i32 = (*value).into();
                let value = (value - zero_point) as f32 * factor;
                each(to, *sum as f32 * scale.factor + scale.term + value, scale);
            }
        }
    }
    certain
}

#[inline(always)]
fn narrowed<T: Narrowed>(value: f64, Narrowing { limits: (low, high), zero_point }: Narrowing) -> T {
    let value = if value < low { low } else { value };
    T::of(if value > high { high } else { value }, zero_point)
}

/// Rescales sums in f64.
#[inline(always)]
fn exactly<'a, T: Narrowed, A: Copy + Into<i32>>(
    scales: impl Iterator<Item = &'a ChannelScale>,
    sums: &[i32],
    added: Option<AddedIntegers<A>>,
    narrowing: Narrowing,
    to: &mut [T],
) {
    let real = |sum: i32, scale: &ChannelScale| (f64::from(sum) + scale.before) * scale.factor + scale.term;
    let sums = to.iter_mut().zip(sums).zip(scales);
    match added {
        None => sums.for_each(|((to, sum), scale)| *to = narrowed(real(*sum, scale), narrowing)),
        Some(AddedIntegers { values, zero_point, factor }) => {
            for (((to, sum), scale), value) in sums.zip(values) {
                let value: i32 = (*value).into();
                *to = narrowed(real(*sum, scale) + f64::from(value - zero_point) * factor, narrowing);
            }
        }
    }
}

/// Instantiates the loops for an instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! instances {
    ($name:ident, $features:literal) => {
        mod $name {
            use super::*;

            /// # Safety
            /// The CPU has the instruction set.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn rescaled<T: Narrowed, A: Copy + Into<i32>>(
                scales: (&[ChannelScale], &[QuickScale]),
                sums: &[i32],
                added: Option<AddedIntegers<A>>,
                narrowing: Narrowing,
                to: &mut [T],
            ) {
                super::rescaled(scales, sums, added, narrowing, to)
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
instances!(avx2, "avx2");
#[cfg(target_arch = "x86_64")]
instances!(avx512, "avx512f");

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns what draws integers.
    pub(in crate::kernel) fn random() -> impl FnMut() -> i32 {
        let mut state = 7u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i32
        }
    }

    /// Scales with results half way between integers, next to them, large ones, and others.
    pub(in crate::kernel) fn hard_scales() -> [ChannelScale; 8] {
        let scale = |before: f64, factor: f64, term: f64| ChannelScale { before, factor, term };
        [
            scale(0.0, 0.5, 0.0),
            scale(3.0, 0.25, 0.125),
            scale(-70_000.0, 1.0 / 3000.0, 0.5),
            scale(0.0, 0.001_953_125, -7.5),
            scale(1.0, 1e-9, 1e6),
            scale(0.0, -0.037, 12.3),
            scale(0.0, 1e300, 0.0),
            scale(0.0, 0.0, 0.5),
        ]
    }

    /// Numbers half way between integers, next to them, large ones, and others.
    #[test]
    fn quick_results_are_the_exact_ones() -> TractResult<()> {
        let (mut random, scales) = (random(), hard_scales());
        for (zero_point, (low, high)) in [(0, (0, 255)), (128, (0, 255)), (17, (17, 200)), (255, (3, 4))] {
            let limits = (f64::from(low - zero_point), f64::from(high - zero_point));
            let narrowing = Narrowing { limits, zero_point };
            for factor in [0.0, 0.5, 0.11, 1e7] {
                let rescaling = Rescaling::new(scales.to_vec(), factor)?;
                for (run, len) in [(1, 8 * 401), (600, 8 * 600), (7, 56)] {
                    let sums: Vec<i32> = (0..len).map(|i| random() >> (i * 7 % 32)).collect();
                    let values: Vec<u8> = (0..len).map(|_| random() as u8).collect();
                    let added = (factor != 0.0).then(|| AddedIntegers { values: &values, zero_point: 100, factor });
                    let mut got = vec![0u8; len];
                    rescaling.run((run, 0), &sums, added, narrowing, &mut got);
                    for (at, got) in got.iter().enumerate() {
                        let channel = scales[at / run % scales.len()];
                        let real = (f64::from(sums[at]) + channel.before) * channel.factor + channel.term;
                        let more = if factor == 0.0 { 0.0 } else { (f64::from(values[at]) - 100.0) * factor };
                        let want = (real + more).clamp(limits.0, limits.1).round_ties_even() as i32 + zero_point;
                        assert_eq!(i32::from(*got), want, "{channel:?}, {}, {more}", sums[at]);
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn signed_results_and_floats() -> TractResult<()> {
        let rescaling = Rescaling::new(vec![ChannelScale { before: 1.0, factor: 0.5, term: 0.25 }], 0.0)?;
        let sums = [-1000, -3, 0, 5, 1000];
        let mut bytes = [0i8; 5];
        let narrowing = Narrowing { limits: (-126.0, 129.0), zero_point: -2 };
        rescaling.run((5, 0), &sums, None::<AddedIntegers<u8>>, narrowing, &mut bytes);
        assert_eq!(bytes, [-128, -3, -1, 1, 127]);
        let mut floats = [0f32; 5];
        let narrowing = Narrowing { limits: (f64::NEG_INFINITY, 3.0), zero_point: 0 };
        rescaling.run((5, 0), &sums, None::<AddedIntegers<u8>>, narrowing, &mut floats);
        assert_eq!(floats, [-499.25, -0.75, 0.75, 3.0, 3.0]);
        Ok(())
    }
}
