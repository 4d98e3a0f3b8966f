//! From integer sums to real numbers, or to quantised ones.
//!
//! Safe loops over slices that the compiler vectorises, instantiated for each instruction set. All
//! give the same values, those of arithmetic in f64 that rounds each step.

use crate::simd::isa::Isa;

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
}

impl Narrowed for f32 {
    #[inline(always)]
    fn of(value: f64, _zero_point: i32) -> f32 {
        value as f32
    }
}

impl Narrowed for u8 {
    #[inline(always)]
    fn of(value: f64, zero_point: i32) -> u8 {
        (rounded(value) + zero_point) as u8
    }
}

impl Narrowed for i8 {
    #[inline(always)]
    fn of(value: f64, zero_point: i32) -> i8 {
        (rounded(value) + zero_point) as i8
    }
}

/// Rounds a number of less than 31 bits to the nearest integer, ties to even.
#[inline(always)]
fn rounded(value: f64) -> i32 {
    // The sum has no bits below one, and is rounded as it is made. Its lowest bits are the integer's.
    const ONE_AND_A_HALF: f64 = (3u64 << 51) as f64;
    (value + ONE_AND_A_HALF).to_bits() as i32
}

/// Rescales sums: runs of `run` sums of one channel each, or the channels of pixels if `run` is one.
/// `first` is the index of the first run among those of all sums.
///
/// # Panics
/// There are no channels, or a slice is shorter than `to`.
pub(crate) fn rescale<T: Narrowed, A: Copy + Into<i32>>(
    channels: &[ChannelScale],
    (run, first): (usize, usize),
    sums: &[i32],
    added: Option<AddedIntegers<A>>,
    narrowing: Narrowing,
    to: &mut [T],
) {
    let sums = &sums[..to.len()];
    let part = |at: usize, len: usize| added.map(|added| AddedIntegers { values: &added.values[at..at + len], ..added });
    let isa = Isa::best();
    if run == 1 {
        let pixels = sums.chunks(channels.len()).zip(to.chunks_mut(channels.len()));
        for (pixel, (sums, to)) in pixels.enumerate() {
            let added = part(pixel * channels.len(), to.len());
            match isa {
                // SAFETY: the CPU has the instruction set. The code inside is safe.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Amx => unsafe { avx512::pixel(channels, sums, added, narrowing, to) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2::pixel(channels, sums, added, narrowing, to) },
                _ => pixel(channels, sums, added, narrowing, to),
            }
        }
        return;
    }
    let runs = sums.chunks(run.max(1)).zip(to.chunks_mut(run.max(1)));
    for (row, (sums, to)) in runs.enumerate() {
        let channel = channels[(first + row) % channels.len()];
        let added = part(row * run, to.len());
        match isa {
            // SAFETY: the CPU has the instruction set. The code inside is safe.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { avx512::row(channel, sums, added, narrowing, to) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::row(channel, sums, added, narrowing, to) },
            _ => self::row(channel, sums, added, narrowing, to),
        }
    }
}

#[inline(always)]
fn narrowed<T: Narrowed>(value: f64, Narrowing { limits: (low, high), zero_point }: Narrowing) -> T {
    let value = if value < low { low } else { value };
    T::of(if value > high { high } else { value }, zero_point)
}

#[inline(always)]
fn row<T: Narrowed, A: Copy + Into<i32>>(
    ChannelScale { before, factor, term }: ChannelScale,
    sums: &[i32],
    added: Option<AddedIntegers<A>>,
    narrowing: Narrowing,
    to: &mut [T],
) {
    let real = |sum: i32| (f64::from(sum) + before) * factor + term;
    match added {
        None => to.iter_mut().zip(sums).for_each(|(to, sum)| *to = narrowed(real(*sum), narrowing)),
        Some(AddedIntegers { values, zero_point, factor }) => {
            for ((to, sum), value) in to.iter_mut().zip(sums).zip(values) {
                let value: i32 = (*value).into();
                *to = narrowed(real(*sum) + f64::from(value - zero_point) * factor, narrowing);
            }
        }
    }
}

#[inline(always)]
fn pixel<T: Narrowed, A: Copy + Into<i32>>(
    channels: &[ChannelScale],
    sums: &[i32],
    added: Option<AddedIntegers<A>>,
    narrowing: Narrowing,
    to: &mut [T],
) {
    let real = |sum: i32, ChannelScale { before, factor, term }: ChannelScale| (f64::from(sum) + before) * factor + term;
    let sums = to.iter_mut().zip(sums).zip(channels);
    match added {
        None => sums.for_each(|((to, sum), channel)| *to = narrowed(real(*sum, *channel), narrowing)),
        Some(AddedIntegers { values, zero_point, factor }) => {
            for (((to, sum), channel), value) in sums.zip(values) {
                let value: i32 = (*value).into();
                *to = narrowed(real(*sum, *channel) + f64::from(value - zero_point) * factor, narrowing);
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
            pub(super) unsafe fn row<T: Narrowed, A: Copy + Into<i32>>(
                channel: ChannelScale,
                sums: &[i32],
                added: Option<AddedIntegers<A>>,
                narrowing: Narrowing,
                to: &mut [T],
            ) {
                super::row(channel, sums, added, narrowing, to)
            }

            /// # Safety
            /// The CPU has the instruction set.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn pixel<T: Narrowed, A: Copy + Into<i32>>(
                channels: &[ChannelScale],
                sums: &[i32],
                added: Option<AddedIntegers<A>>,
                narrowing: Narrowing,
                to: &mut [T],
            ) {
                super::pixel(channels, sums, added, narrowing, to)
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
instances!(avx2, "avx2");
#[cfg(target_arch = "x86_64")]
instances!(avx512, "avx512f");
