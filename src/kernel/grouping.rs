//! Groups integers of 8 bits into elements of 32 bits, and turns sums of them into integers again.
//!
//! Safe loops over slices that the compiler vectorises, instantiated for each instruction set.

use crate::compute::{Pair, Quad};
use crate::kernel::extent::reach;
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
    sliding_quads: unsafe fn(from: &[u8], reversed: bool, bytes: Bytes, to: &mut [Quad]),
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

    /// `to[i] = [from[i], from[i + 1], …]`, or the same integers in the opposite order if `reversed`.
    /// Returns whether there is a kernel for it.
    ///
    /// # Panics
    /// `from` is too short.
    fn group_sliding(kernels: GroupingKernels, from: &[u8], reversed: bool, bytes: Bytes, to: &mut [Self]) -> bool;
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

    fn group_sliding(_: GroupingKernels, _from: &[u8], _reversed: bool, _bytes: Bytes, _to: &mut [Pair]) -> bool {
        false
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

    fn group_sliding(kernels: GroupingKernels, from: &[u8], reversed: bool, bytes: Bytes, to: &mut [Quad]) -> bool {
        assert!(to.is_empty() || reach([(to.len(), 1), (3, 1)]) <= from.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertion above is
        // the rest of the contract.
        unsafe { (kernels.sliding_quads)(from, reversed, bytes, to) };
        true
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

#[inline(always)]
fn sliding_quads(from: &[u8], reversed: bool, bytes: Bytes, to: &mut [Quad]) {
    if to.is_empty() {
        return;
    }
    let [a, b, c, d] = [from, &from[1..], &from[2..], &from[3..]];
    quads(if reversed { [d, c, b, a] } else { [a, b, c, d] }, bytes, to)
}

/// Each vector of elements is made of 28 adjacent bytes.
///
/// # Safety
/// The CPU has AVX-512 with BW. `from` has three more bytes than there are elements, if there are any.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
unsafe fn sliding_quads_512(from: &[u8], reversed: bool, bytes: Bytes, to: &mut [Quad]) {
    use std::arch::x86_64::*;
    const LANES: usize = 16;
    // The bytes that the last element of a vector needs, after those of the first, and those loaded.
    const LOADED: usize = 32;
    let mut at = 0;
    // SAFETY: all loads are of `LOADED` bytes within `from`, and all stores of `LANES` elements within
    // `to`. Neither needs alignment.
    unsafe {
        // The four elements of a quarter of a vector are made of two words of four bytes.
        let words = _mm512_setr_epi32(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6);
        let order = match reversed {
            false => _mm_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6),
            true => _mm_setr_epi8(3, 2, 1, 0, 4, 3, 2, 1, 5, 4, 3, 2, 6, 5, 4, 3),
        };
        let order = _mm512_broadcast_i32x4(order);
        let flip = _mm512_set1_epi8(bytes.flip as i8);
        // The last vector ends where the elements do. It may overlap the one before.
        while at < to.len() && to.len() >= LANES {
            let first = at.min(to.len() - LANES);
            if first + LOADED > from.len() {
                break;
            }
            let loaded = _mm512_castsi256_si512(_mm256_loadu_si256(from.as_ptr().add(first).cast()));
            let elements = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, loaded), order);
            _mm512_storeu_si512(to.as_mut_ptr().add(first).cast(), _mm512_xor_si512(elements, flip));
            at = first + LANES;
        }
    }
    sliding_quads(&from[at..], reversed, bytes, &mut to[at..]);
}

/// Defines the [`GroupingKernels`] of an instruction set.
macro_rules! kernels {
    ($name:ident, [$(#[$feature:meta])*], $sliding:ident) => {
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

            #[allow(dead_code, reason = "some instruction sets have another one")]
            $(#[$feature])*
            unsafe fn sliding_quads(from: &[u8], reversed: bool, bytes: Bytes, to: &mut [Quad]) {
                super::sliding_quads(from, reversed, bytes, to)
            }

            /// Only handed out if the CPU has the instruction set.
            pub(super) const KERNELS: GroupingKernels =
                GroupingKernels { pairs, quads, adjacent_pairs, adjacent_quads, sliding_quads: $sliding };
        }
    };
}
kernels!(portable, [], sliding_quads);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, [#[target_feature(enable = "avx2,fma,f16c")]], sliding_quads);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, [#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]], sliding_quads_512);
