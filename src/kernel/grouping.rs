//! Groups integers of 8 bits into elements of 32 bits, and turns sums of them into integers again.
//!
//! Safe loops over slices that the compiler vectorises, instantiated for each instruction set.

use crate::compute::{Pair, Quad};
use crate::simd::isa::Isa;

/// The integers that elements are made of: those of 8 bits, as bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    /// The bits that are flipped. With the highest one, `i8` become `u8` plus 128.
    pub flip: u8,
    /// The integer that is subtracted after this. It must be zero for quads.
    pub zero_point: i16,
}

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct GroupingKernels {
    pairs: unsafe fn(rows: [&[u8]; 2], bytes: Bytes, to: &mut [Pair]),
    quads: unsafe fn(rows: [&[u8]; 4], bytes: Bytes, to: &mut [Quad]),
    adjacent_pairs: unsafe fn(from: &[u8], bytes: Bytes, to: &mut [Pair]),
    adjacent_quads: unsafe fn(from: &[u8], bytes: Bytes, to: &mut [Quad]),
}

impl GroupingKernels {
    /// The kernels of the best instruction set that this CPU has.
    pub fn best() -> GroupingKernels {
        match Isa::best() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx if std::arch::is_x86_feature_detected!("avx512bw") => avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => avx2::KERNELS,
            _ => portable::KERNELS,
        }
    }
}

/// Elements that hold several integers, and the kernels that make them.
pub(crate) trait Grouping: Sized {
    /// `to[i] = [rows[0][i], rows[1][i], …]`, of as many rows as an element holds integers.
    ///
    /// # Panics
    /// There are fewer rows, or a row is shorter than `to`.
    fn group(kernels: GroupingKernels, rows: &[&[u8]], bytes: Bytes, to: &mut [Self]);

    /// `to[i] = [from[i·count], from[i·count + 1], …]`, where `count` integers make an element.
    ///
    /// # Panics
    /// `from` is too short.
    fn group_adjacent(kernels: GroupingKernels, from: &[u8], bytes: Bytes, to: &mut [Self]);
}

impl Grouping for Pair {
    fn group(kernels: GroupingKernels, rows: &[&[u8]], bytes: Bytes, to: &mut [Pair]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is
        // safe.
        unsafe { (kernels.pairs)([rows[0], rows[1]], bytes, to) }
    }

    fn group_adjacent(kernels: GroupingKernels, from: &[u8], bytes: Bytes, to: &mut [Pair]) {
        // SAFETY: as in `group`.
        unsafe { (kernels.adjacent_pairs)(from, bytes, to) }
    }
}

impl Grouping for Quad {
    fn group(kernels: GroupingKernels, rows: &[&[u8]], bytes: Bytes, to: &mut [Quad]) {
        // SAFETY: as for pairs.
        unsafe { (kernels.quads)([rows[0], rows[1], rows[2], rows[3]], bytes, to) }
    }

    fn group_adjacent(kernels: GroupingKernels, from: &[u8], bytes: Bytes, to: &mut [Quad]) {
        // SAFETY: as for pairs.
        unsafe { (kernels.adjacent_quads)(from, bytes, to) }
    }
}

#[inline(always)]
fn pairs([a, b]: [&[u8]; 2], Bytes { flip, zero_point }: Bytes, to: &mut [Pair]) {
    let (a, b) = (&a[..to.len()], &b[..to.len()]);
    let each = |byte: u8| i16::from(byte ^ flip) - zero_point;
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = Pair::of([each(*a), each(*b)]);
    }
}

#[inline(always)]
fn quads([a, b, c, d]: [&[u8]; 4], Bytes { flip, .. }: Bytes, to: &mut [Quad]) {
    let len = to.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    let flip = [flip; 4];
    for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *to = Quad::of([*a, *b, *c, *d]).flipped(flip);
    }
}

#[inline(always)]
fn adjacent_pairs(from: &[u8], Bytes { flip, zero_point }: Bytes, to: &mut [Pair]) {
    let from = &from[..2 * to.len()];
    let each = |byte: u8| i16::from(byte ^ flip) - zero_point;
    let (from, _) = from.as_chunks::<2>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = Pair::of(from.map(each));
    }
}

#[inline(always)]
fn adjacent_quads(from: &[u8], Bytes { flip, .. }: Bytes, to: &mut [Quad]) {
    let (from, _) = from[..4 * to.len()].as_chunks::<4>();
    let flip = [flip; 4];
    for (to, from) in to.iter_mut().zip(from) {
        *to = Quad::of(*from).flipped(flip);
    }
}

/// Defines the [`GroupingKernels`] of an instruction set.
macro_rules! kernels {
    ($name:ident, [$(#[$feature:meta])*]) => {
        mod $name {
            use super::*;

            $(#[$feature])*
            unsafe fn pairs(rows: [&[u8]; 2], bytes: Bytes, to: &mut [Pair]) {
                super::pairs(rows, bytes, to)
            }

            $(#[$feature])*
            unsafe fn quads(rows: [&[u8]; 4], bytes: Bytes, to: &mut [Quad]) {
                super::quads(rows, bytes, to)
            }

            $(#[$feature])*
            unsafe fn adjacent_pairs(from: &[u8], bytes: Bytes, to: &mut [Pair]) {
                super::adjacent_pairs(from, bytes, to)
            }

            $(#[$feature])*
            unsafe fn adjacent_quads(from: &[u8], bytes: Bytes, to: &mut [Quad]) {
                super::adjacent_quads(from, bytes, to)
            }

            /// Only handed out if the CPU has the instruction set.
            pub(super) const KERNELS: GroupingKernels =
                GroupingKernels { pairs, quads, adjacent_pairs, adjacent_quads };
        }
    };
}
kernels!(portable, []);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, [#[target_feature(enable = "avx2,fma,f16c")]]);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, [#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]]);
