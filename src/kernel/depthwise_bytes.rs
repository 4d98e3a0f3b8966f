//! Sums of products of bytes for one input channel per group, rescaled to bytes in registers.
//!
//! Lane `i` of the vector at byte `b` of a row holds the bytes from `b + 4·i` on: what four adjacent
//! taps read for the result that begins there. So the vectors at bytes 0, 1, 2 and 3 hold the operands
//! of adjacent results, and no byte is moved before it is multiplied. Sums of four vectors become one
//! vector of bytes.

use crate::compute::Quad;
use crate::kernel::extent::reach;
use crate::kernel::rescale::ByteScale;
use crate::simd::isa::Isa;

/// The most bytes of a vector.
pub(crate) const MOST_BYTES: usize = 64;

/// The steps of results that have kernels.
pub(crate) const BYTE_STEPS: [usize; 3] = [1, 2, 4];

/// Bytes that the operands of a vector reach beyond its own.
const BEYOND: usize = 3;

/// The sums of one channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSums<'a> {
    /// For four adjacent taps each: the first byte that the result at byte zero reads.
    pub offsets: &'a [usize],
    /// Their weights, `i8`.
    pub weights: &'a [Quad],
    /// What each sum begins with.
    pub start: i32,
    /// Bytes between the operands of adjacent results: one of [`BYTE_STEPS`].
    pub step: usize,
    pub scale: &'a ByteScale,
}

/// Rows of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRows {
    pub count: usize,
    /// Bytes per row of results.
    pub len: usize,
    /// Bytes from one row to the next, where rows are read and where they are written.
    pub steps: [usize; 2],
}

type Sums = unsafe fn(sums: &ByteSums, source: &[u8], rows: ByteRows, to: &mut [u8]);

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct ByteKernels {
    /// The results that are computed together.
    pub results: usize,
    /// For the steps in [`BYTE_STEPS`].
    sums: [Sums; BYTE_STEPS.len()],
    copy: unsafe fn(from: &[u8], flip: u8, rows: ByteRows, to: &mut [u8]),
    interleave: unsafe fn(from: &[&[u8]], to: &mut [u8]),
}

impl ByteKernels {
    /// The best kernels of this CPU within an instruction set.
    pub fn of(isa: Isa) -> ByteKernels {
        #[cfg(target_arch = "x86_64")]
        {
            let has_vnni = is_x86_feature_detected!("avx512vnni");
            let has_512 = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq");
            return match isa {
                Isa::Avx512 | Isa::Amx if isa.is_available() && has_512 && has_vnni => avx512_vnni::KERNELS,
                Isa::Avx2 | Isa::Avx512 | Isa::Amx if Isa::Avx2.is_available() => {
                    if is_x86_feature_detected!("avxvnni") { avx_vnni::KERNELS } else { avx2::KERNELS }
                }
                _ => portable::KERNELS,
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = isa;
            portable::KERNELS
        }
    }

    /// Bytes of a source that rows of results read, from the byte on that the first result reads.
    pub fn reach(self, step: usize, rows: ByteRows) -> usize {
        let Some(last) = rows.count.checked_sub(1) else { return 0 };
        let whole = rows.len.next_multiple_of(self.results);
        reach([(last, rows.steps[0]), (whole, step), (BEYOND, 1)])
    }

    /// `to[r·steps[1] + i] = scaled(start + Σ weight·source[r·steps[0] + i·step + offset])`, where each
    /// weight of four has the next offset.
    ///
    /// # Panics
    /// There is no such step, other numbers of offsets and weights, or a slice is too short.
    pub fn sums(self, sums: &ByteSums, source: &[u8], rows: ByteRows, to: &mut [u8]) {
        let Some(last) = rows.count.checked_sub(1).filter(|_| rows.len > 0) else { return };
        let at = BYTE_STEPS.iter().position(|step| *step == sums.step).expect("one of the steps");
        let furthest = sums.offsets.iter().max().copied().unwrap_or(0);
        assert!(sums.offsets.len() == sums.weights.len());
        assert!(sums.offsets.is_empty() || reach([(furthest, 1), (self.reach(sums.step, rows), 1)]) <= source.len());
        assert!(reach([(last, rows.steps[1]), (rows.len, 1)]) <= to.len());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { (self.sums[at])(sums, source, rows, to) }
    }

    /// `to[r·steps[1] + i] = from[r·steps[0] + i] ^ flip`.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn copy(self, from: &[u8], flip: u8, rows: ByteRows, to: &mut [u8]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.copy)(from, flip, rows, to) }
    }

    /// `to[i·S + r] = from[r][i]` for `S` rows.
    ///
    /// # Panics
    /// A row is too short.
    pub fn interleave(self, from: &[&[u8]], to: &mut [u8]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.interleave)(from, to) }
    }
}

/// A vector of bytes that are operands, of sums of four products each, or of bytes that are results.
///
/// # Safety
/// The methods may execute instructions that the CPU must have. Call them only in a function that is
/// entered after a check. Each reads and writes exactly what its documentation says.
unsafe trait Dots: Copy {
    /// The number of sums. There are four times as many bytes.
    const LANES: usize;

    /// Sums, or the weights of each sum.
    unsafe fn splat(value: i32) -> Self;
    /// Reads a vector of bytes at any address.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes a vector of bytes at any address.
    unsafe fn store(self, to: *mut u8);
    /// Adds to each sum the products of four `u8` and four `i8`.
    unsafe fn dot(self, data: Self, weights: Self) -> Self;
    /// The results of four vectors of sums, in the order of [`place`], and whether all are certain.
    unsafe fn scaled<const STEP: usize>(sums: [Self; 4], scale: &ByteScale) -> (Self, bool);

    /// Writes the first `count` bytes, fewer than a vector has.
    #[inline(always)]
    unsafe fn store_first(self, count: usize, to: *mut u8) {
        let mut bytes = [0u8; MOST_BYTES];
        // SAFETY: the array has room for any vector. The caller guarantees that `count` bytes are
        // writable.
        unsafe {
            self.store(bytes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count);
        }
    }
}

/// The index among the results of a block of sum `lane` of vector `k`.
#[inline(always)]
const fn place<const STEP: usize>(lanes: usize, k: usize, lane: usize) -> usize {
    // Vectors whose results are between each other.
    let each = 4 / STEP;
    each * lane + k % each + each * lanes * (k / each)
}

/// See [`ByteKernels::sums`].
///
/// # Safety
/// The CPU has the instructions of `V`. The source has the bytes that [`ByteKernels::reach`] tells, from
/// the furthest offset on, and `to` has all rows.
#[inline(always)]
unsafe fn sums_of<V: Dots, const STEP: usize>(sums: &ByteSums, source: &[u8], rows: ByteRows, to: &mut [u8]) {
    let results = 4 * V::LANES;
    for row in 0..rows.count {
        let (source, to) = (&source[row * rows.steps[0]..], &mut to[row * rows.steps[1]..][..rows.len]);
        let mut next = 0;
        while next < rows.len {
            // The last vector ends where the row does. It may overlap the one before.
            let at = if rows.len >= results { next.min(rows.len - results) } else { next };
            next = at + results;
            // SAFETY: by this function's contract, a block reads `STEP·results` bytes and three more
            // from each offset on, and `results` bytes or the rest of the row are written.
            unsafe {
                let mut all = [V::splat(sums.start); 4];
                for (offset, weights) in sums.offsets.iter().zip(sums.weights) {
                    let weights = V::splat(weights.bits());
                    let from = source.as_ptr().add(offset + at * STEP);
                    for (k, sum) in all.iter_mut().enumerate() {
                        *sum = sum.dot(V::load(from.add(STEP * place::<STEP>(V::LANES, k, 0))), weights);
                    }
                }
                let (bytes, certain) = V::scaled::<STEP>(all, sums.scale);
                let (to, left) = (to.as_mut_ptr().add(at), rows.len - at);
                if !certain {
                    exactly::<V, STEP>(all, sums.scale, std::slice::from_raw_parts_mut(to, left.min(results)));
                } else if left >= results {
                    bytes.store(to);
                } else {
                    bytes.store_first(left, to);
                }
            }
        }
    }
}

/// Computes the results of a block in f64.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[cold]
#[inline(always)]
unsafe fn exactly<V: Dots, const STEP: usize>(sums: [V; 4], scale: &ByteScale, to: &mut [u8]) {
    for (k, sums) in sums.into_iter().enumerate() {
        let mut lanes = [[0u8; 4]; MOST_BYTES / 4];
        // SAFETY: the array has room for any vector, and the contract is this function's.
        unsafe { sums.store(lanes.as_mut_ptr().cast()) };
        for (lane, sum) in lanes.iter().enumerate().take(V::LANES) {
            if let Some(to) = to.get_mut(place::<STEP>(V::LANES, k, lane)) {
                *to = scale.exact(i32::from_ne_bytes(*sum));
            }
        }
    }
}

/// Copies rows in pieces of fixed sizes.
#[inline(always)]
fn copy(from: &[u8], flip: u8, rows: ByteRows, to: &mut [u8]) {
    #[inline(always)]
    fn pieces<const N: usize>(from: &[u8], flip: u8, to: &mut [u8]) {
        let mut next = 0;
        while next < to.len() {
            // The last piece may overlap the one before.
            let at = next.min(to.len() - N);
            let piece: &[u8; N] = from[at..at + N].try_into().expect("a piece");
            to[at..at + N].copy_from_slice(&piece.map(|byte| byte ^ flip));
            next = at + N;
        }
    }
    for row in 0..rows.count {
        let from = &from[row * rows.steps[0]..][..rows.len];
        let to = &mut to[row * rows.steps[1]..][..rows.len];
        match rows.len {
            32.. => pieces::<32>(from, flip, to),
            8.. => pieces::<8>(from, flip, to),
            _ => to.iter_mut().zip(from).for_each(|(to, from)| *to = from ^ flip),
        }
    }
}

#[inline(always)]
fn interleave(from: &[&[u8]], to: &mut [u8]) {
    match *from {
        [a] => to.copy_from_slice(&a[..to.len()]),
        [a, b] => {
            let (pairs, rest) = to.as_chunks_mut::<2>();
            let whole = pairs.len();
            for ((to, a), b) in pairs.iter_mut().zip(a).zip(b) {
                *to = [*a, *b];
            }
            rest.iter_mut().for_each(|to| *to = a[whole]);
        }
        _ => {
            for (r, row) in from.iter().enumerate() {
                to.iter_mut().skip(r).step_by(from.len()).zip(*row).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

/// Four sums in an array.
#[derive(Clone, Copy)]
struct Lanes([i32; 4]);

// SAFETY: the array has four sums, or sixteen bytes.
unsafe impl Dots for Lanes {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: i32) -> Lanes {
        Lanes([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Lanes {
        // SAFETY: the caller passes a pointer to sixteen readable bytes.
        Lanes(unsafe { from.cast::<[[u8; 4]; 4]>().read() }.map(i32::from_le_bytes))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller passes a pointer to sixteen writable bytes.
        unsafe { to.cast::<[[u8; 4]; 4]>().write(self.0.map(i32::to_ne_bytes)) }
    }

    #[inline(always)]
    unsafe fn dot(self, data: Lanes, weights: Lanes) -> Lanes {
        Lanes(std::array::from_fn(|i| {
            let (data, weights) = (data.0[i].to_le_bytes(), weights.0[i].to_le_bytes());
            let products = data.iter().zip(weights).map(|(x, w)| i32::from(*x) * i32::from(w as i8));
            self.0[i].wrapping_add(products.sum::<i32>())
        }))
    }

    #[inline(always)]
    unsafe fn scaled<const STEP: usize>(sums: [Lanes; 4], scale: &ByteScale) -> (Lanes, bool) {
        let (mut bytes, mut certain) = ([0u8; 16], true);
        for (k, sums) in sums.iter().enumerate() {
            for (lane, sum) in sums.0.iter().enumerate() {
                let (byte, is_certain) = scale.quick(*sum);
                bytes[place::<STEP>(4, k, lane)] = byte;
                certain &= is_certain;
            }
        }
        let (words, _) = bytes.as_chunks::<4>();
        (Lanes(std::array::from_fn(|i| i32::from_ne_bytes(words[i]))), certain)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    /// Sixteen sums of AVX-512 with VNNI.
    #[derive(Clone, Copy)]
    pub(super) struct Vnni16(__m512i);

    // SAFETY: the register has sixteen sums, and the intrinsics are those of the methods.
    unsafe impl Dots for Vnni16 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(value: i32) -> Self {
            // SAFETY: by the trait's contract, the CPU has this instruction.
            Vnni16(unsafe { _mm512_set1_epi32(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: by the trait's contract, these bytes are readable. This is the unaligned form.
            Vnni16(unsafe { _mm512_loadu_si512(from.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: by the trait's contract, these bytes are writable. This is the unaligned form.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn store_first(self, count: usize, to: *mut u8) {
            // SAFETY: by the trait's contract, `count` bytes are writable, and there are fewer than 64.
            unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << count) - 1, self.0) }
        }

        #[inline(always)]
        unsafe fn dot(self, data: Self, weights: Self) -> Self {
            // SAFETY: by the trait's contract, the CPU has this instruction.
            Vnni16(unsafe { _mm512_dpbusd_epi32(self.0, data.0, weights.0) })
        }

        #[inline(always)]
        unsafe fn scaled<const STEP: usize>(sums: [Self; 4], scale: &ByteScale) -> (Self, bool) {
            /// The larger of two magnitudes.
            const MAGNITUDE: i32 = 0b1011;
            // SAFETY: by the trait's contract, the CPU has these instructions.
            unsafe {
                let (factor, term) = (_mm512_set1_ps(scale.factor), _mm512_set1_ps(scale.term));
                let real = sums.map(|sum| _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum.0), factor, term));
                let [a, b, c, d] = real.map(|real| _mm512_cvtps_epi32(real));
                // The distances to the nearest integers.
                let [e, f, g, h] = real.map(|real| _mm512_reduce_ps::<0>(real));
                let furthest = _mm512_range_ps::<MAGNITUDE>(
                    _mm512_range_ps::<MAGNITUDE>(e, f),
                    _mm512_range_ps::<MAGNITUDE>(g, h),
                );
                let uncertain = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(furthest, _mm512_set1_ps(scale.certain));
                let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
                let bytes = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(order::<STEP>()));
                let bytes = match STEP {
                    1 => bytes,
                    2 => _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes),
                    _ => _mm512_permutexvar_epi32(
                        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                        bytes,
                    ),
                };
                let bytes = _mm512_max_epu8(bytes, _mm512_set1_epi8(scale.low as i8));
                let bytes = _mm512_min_epu8(bytes, _mm512_set1_epi8(scale.high as i8));
                (Vnni16(_mm512_xor_si512(bytes, _mm512_set1_epi8(scale.flip as i8))), uncertain == 0)
            }
        }
    }

    /// The order of the bytes in each quarter of a vector, which holds four bytes of each vector of sums.
    #[inline(always)]
    unsafe fn order<const STEP: usize>() -> __m128i {
        // SAFETY: all CPUs of this architecture have these instructions.
        unsafe {
            match STEP {
                1 => _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                2 => _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15),
                _ => _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            }
        }
    }

    /// Eight sums of 256-bit vectors, with their sum of products.
    macro_rules! eight {
        ($(#[$attr:meta])* $name:ident: |$acc:ident, $data:ident, $weights:ident| $dot:expr) => {
            $(#[$attr])*
            #[derive(Clone, Copy)]
            pub(super) struct $name(__m256i);

            // SAFETY: the register has eight sums, and the intrinsics are those of the methods.
            unsafe impl Dots for $name {
                const LANES: usize = 8;

                #[inline(always)]
                unsafe fn splat(value: i32) -> Self {
                    // SAFETY: by the trait's contract, the CPU has this instruction.
                    $name(unsafe { _mm256_set1_epi32(value) })
                }

                #[inline(always)]
                unsafe fn load(from: *const u8) -> Self {
                    // SAFETY: by the trait's contract, these bytes are readable. This is the unaligned
                    // form.
                    $name(unsafe { _mm256_loadu_si256(from.cast()) })
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut u8) {
                    // SAFETY: by the trait's contract, these bytes are writable. This is the unaligned
                    // form.
                    unsafe { _mm256_storeu_si256(to.cast(), self.0) }
                }

                #[inline(always)]
                unsafe fn dot(self, data: Self, weights: Self) -> Self {
                    let ($acc, $data, $weights) = (self.0, data.0, weights.0);
                    // SAFETY: by the trait's contract, the CPU has these instructions.
                    $name(unsafe { $dot })
                }

                #[inline(always)]
                unsafe fn scaled<const STEP: usize>(sums: [Self; 4], scale: &ByteScale) -> (Self, bool) {
                    // SAFETY: by the trait's contract, the CPU has these instructions.
                    unsafe {
                        let (factor, term) = (_mm256_set1_ps(scale.factor), _mm256_set1_ps(scale.term));
                        let real = sums.map(|sum| _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.0), factor, term));
                        let [a, b, c, d] = real.map(|real| _mm256_cvtps_epi32(real));
                        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
                        // The distances to the nearest integers.
                        let [e, f, g, h] = real.map(|real| {
                            let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(real);
                            _mm256_and_ps(_mm256_sub_ps(real, whole), magnitude)
                        });
                        let furthest = _mm256_max_ps(_mm256_max_ps(e, f), _mm256_max_ps(g, h));
                        let uncertain = _mm256_cmp_ps::<_CMP_NLE_UQ>(furthest, _mm256_set1_ps(scale.certain));
                        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
                        let bytes = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order::<STEP>()));
                        let bytes = match STEP {
                            1 => bytes,
                            2 => _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes),
                            _ => _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)),
                        };
                        let bytes = _mm256_max_epu8(bytes, _mm256_set1_epi8(scale.low as i8));
                        let bytes = _mm256_min_epu8(bytes, _mm256_set1_epi8(scale.high as i8));
                        let bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(scale.flip as i8));
                        ($name(bytes), _mm256_movemask_ps(uncertain) == 0)
                    }
                }
            }
        };
    }
    eight!(
        /// Eight sums of AVX-VNNI.
        Vnni8: |acc, data, weights| _mm256_dpbusd_avx_epi32(acc, data, weights)
    );
    eight!(
        /// Eight sums of AVX2: products of 16 bits, of the bytes with even indices and of those with odd
        /// ones.
        Even8: |acc, data, weights| {
            let even = _mm256_and_si256(data, _mm256_set1_epi16(0xff));
            let odd = _mm256_srli_epi16::<8>(data);
            let of_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(weights));
            let of_odd = _mm256_srai_epi16::<8>(weights);
            let sum = _mm256_add_epi32(acc, _mm256_madd_epi16(even, of_even));
            _mm256_add_epi32(sum, _mm256_madd_epi16(odd, of_odd))
        }
    );
}

/// Defines the [`ByteKernels`] of a vector type.
macro_rules! kernels {
    ($name:ident, $vector:ty, [$(#[$feature:meta])*]) => {
        mod $name {
            use super::*;

            $(#[$feature])*
            unsafe fn sums<const STEP: usize>(sums: &ByteSums, source: &[u8], rows: ByteRows, to: &mut [u8]) {
                // SAFETY: only called by `ByteKernels::sums`, which checks the contract.
                unsafe { sums_of::<$vector, STEP>(sums, source, rows, to) }
            }

            $(#[$feature])*
            unsafe fn copy(from: &[u8], flip: u8, rows: ByteRows, to: &mut [u8]) {
                super::copy(from, flip, rows, to)
            }

            $(#[$feature])*
            unsafe fn interleave(from: &[&[u8]], to: &mut [u8]) {
                super::interleave(from, to)
            }

            /// Only handed out if the CPU has the instruction set.
            pub(super) const KERNELS: ByteKernels = ByteKernels {
                results: 4 * <$vector as Dots>::LANES,
                sums: [sums::<1>, sums::<2>, sums::<4>],
                copy,
                interleave,
            };
        }
    };
}
kernels!(portable, Lanes, []);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, x86::Even8, [#[target_feature(enable = "avx2,fma,f16c")]]);
#[cfg(target_arch = "x86_64")]
kernels!(avx_vnni, x86::Vnni8, [#[target_feature(enable = "avxvnni,avx2,fma,f16c")]]);
#[cfg(target_arch = "x86_64")]
kernels!(avx512_vnni, x86::Vnni16, [#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vnni,avx2,fma,f16c")]]);
