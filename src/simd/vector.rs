//! The small vector trait over which kernels are generic, and its implementations.

use crate::compute::Compute;

/// The most lanes of a vector.
pub(crate) const MOST_LANES: usize = 16;

/// A vector register.
///
/// Every method is always inlined. It is then compiled for the instruction set of the
/// `#[target_feature]` function that it is inlined into.
///
/// # Safety
/// Kernels rely on these properties of an implementation:
/// - There are `LANES` lanes, a power of two and at most [`MOST_LANES`].
/// - [`Vector::load`] and [`Vector::store`] keep the order of lanes.
/// - Each method reads and writes exactly what its documentation says.
///
/// The methods may execute instructions that the CPU must have. Call them only inside a function
/// that is entered after a check (see [`Isa::is_available`](crate::simd::isa::Isa::is_available)).
/// Pointers must be valid for `LANES` elements. They need no alignment.
///
/// # Stores past the caches
/// Memory written by [`Vector::stream`] must not be accessed before [`Vector::after_streams`], not
/// even by the same thread, because the memory model of the language does not order these stores. A
/// kernel that streams ends with the fence, so its callers need not know.
///
/// Two kernels stream: `pixels_to_rows`, whose ordinary stores to the same rows come before its
/// streams, and `copy_pixels`, whose pixels do not overlap. Both read other slices only. All other
/// kernels use ordinary stores, as their vectors may overlap at the ends of rows.
pub(crate) unsafe trait Vector: Copy {
    /// The type of a lane.
    type Lane: Compute;
    /// Number of lanes.
    const LANES: usize;
    /// Number of such registers.
    const REGISTERS: usize;
    /// Whether [`Vector::mul_add`] is one instruction, which rounds once.
    const FUSES: bool = false;

    /// A vector whose lanes are all `value`.
    unsafe fn splat(value: Self::Lane) -> Self;
    /// Reads `LANES` elements.
    unsafe fn load(from: *const Self::Lane) -> Self;
    /// Whether [`Vector::load_some`] is as fast as [`Vector::load`].
    const MASKS: bool = false;
    /// Whether [`Vector::load_some`] has an instruction of its own, which may be slower than [`Vector::load`].
    const LOADS_PARTS: bool = Self::MASKS;
    /// Reads the lanes whose bit is set. Only their elements need to be readable. The other lanes
    /// are zero.
    #[inline(always)]
    unsafe fn load_some(from: *const Self::Lane, lanes: u16) -> Self {
        const { assert!(Self::LANES <= MOST_LANES) }
        let mut some = [Self::Lane::ZERO; MOST_LANES];
        for (lane, to) in some.iter_mut().enumerate().take(Self::LANES) {
            if lanes >> lane & 1 == 1 {
                // SAFETY: this lane's element is readable.
                *to = unsafe { *from.wrapping_add(lane) };
            }
        }
        // SAFETY: the array has room for any vector.
        unsafe { Self::load(some.as_ptr()) }
    }
    /// Writes `LANES` elements.
    unsafe fn store(self, to: *mut Self::Lane);
    /// Whether there are stores past the caches.
    const STREAMS: bool = false;
    /// Writes `LANES` elements at a multiple of a vector's size, past the caches if possible.
    ///
    /// The elements must not be accessed before [`Vector::after_streams`].
    #[inline(always)]
    unsafe fn stream(self, to: *mut Self::Lane) {
        // SAFETY: the caller passes a pointer to `LANES` writable elements.
        unsafe { self.store(to) }
    }
    /// The fence that must follow such stores.
    #[inline(always)]
    unsafe fn after_streams() {}
    /// Writes the first `count` elements. `count` is less than `LANES`.
    #[inline(always)]
    unsafe fn store_first(self, count: usize, to: *mut Self::Lane) {
        const { assert!(Self::LANES <= MOST_LANES && MOST_LANES <= 16) }
        let mut lanes = [Self::Lane::ZERO; MOST_LANES];
        // SAFETY: the array has room for any vector. The caller guarantees that `count` elements
        // are writable at `to`, and only those are copied. Copies of a constant size are not calls.
        unsafe {
            self.store(lanes.as_mut_ptr());
            match count {
                8.. => copy_both_ends::<_, 8>(lanes.as_ptr(), count, to),
                4.. => copy_both_ends::<_, 4>(lanes.as_ptr(), count, to),
                2.. => copy_both_ends::<_, 2>(lanes.as_ptr(), count, to),
                1 => *to = lanes[0],
                0 => {}
            }
        }
    }
    /// `self + a·b`. In a product of data and weights, the data come first.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// Whether [`Vector::mul_add_by_lanes`] takes one instruction per product, none of which spreads a lane.
    const BY_LANES: bool = false;
    /// Adds to each row of sums the products of `data` and one lane of `weights`: row `n` has lane `n`. There are at
    /// most `LANES` rows.
    #[inline(always)]
    unsafe fn mul_add_by_lanes<const N: usize>(sums: &mut [[Self; N]], data: &[Self; N], weights: Self) {
        const { assert!(Self::LANES <= MOST_LANES) }
        let mut lanes = [Self::Lane::ZERO; MOST_LANES];
        // SAFETY: the array has room for any vector. The CPU has the instructions by the trait's contract.
        unsafe {
            weights.store(lanes.as_mut_ptr());
            for (sums, weight) in sums.iter_mut().zip(lanes) {
                let weight = Self::splat(weight);
                sums.iter_mut().zip(data).for_each(|(sum, data)| *sum = sum.mul_add(*data, weight));
            }
        }
    }
    /// `self + other`.
    unsafe fn plus(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn minus(self, other: Self) -> Self;
    /// `low` where a lane is less, else `high` where it is more, as [`Compute::clamped`].
    unsafe fn clamp(self, low: Self, high: Self) -> Self;
    /// `[a0 b0 a1 b1 …]` in two registers.
    unsafe fn zip(self, other: Self) -> [Self; 2];
    /// `[a0 a2 … b0 b2 …]` and `[a1 a3 … b1 b3 …]`.
    unsafe fn unzip(self, other: Self) -> [Self; 2];
    /// Whether there are instructions for [`Vector::permute_lanes`].
    const PERMUTES_LANES: bool = true;
    /// The lane gather `[a[lanes[0]] a[lanes[1]] …]`. There are `LANES` indices, each less than
    /// `LANES`.
    unsafe fn permute_lanes(self, lanes: *const u32) -> Self;
}

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Whether there is an instruction for [`prefetch`].
pub(crate) const PREFETCHES: bool = cfg!(target_arch = "x86_64");

/// Prefetches the cache line of any address, if there is an instruction for it.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: x86-64 has SSE, and a prefetch of an unreadable address does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the cache lines of some elements, if there is an instruction for it.
pub(crate) fn prefetch_all<T>(elements: &[T]) {
    if PREFETCHES {
        elements.iter().step_by((LINE_BYTES / size_of::<T>()).max(1)).for_each(|element| prefetch(element));
    }
}

/// Copies `count` elements as `N` at each end, which may overlap. `count` is `N` to `2·N`.
///
/// # Safety
/// `from` and `to` have so many elements.
#[inline(always)]
unsafe fn copy_both_ends<T: Copy, const N: usize>(from: *const T, count: usize, to: *mut T) {
    // SAFETY: this function's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, N);
        std::ptr::copy_nonoverlapping(from.add(count - N), to.add(count - N), N);
    }
}

/// Interleaves `S` registers, a power of two: `[v0[0], v1[0], …, v0[1], v1[1], …]`.
///
/// # Safety
/// As [`Vector`]'s methods.
#[inline(always)]
pub(crate) unsafe fn interleave<V: Vector, const S: usize>(v: [V; S]) -> [V; S] {
    // Zipping registers r and r + half gives sequences of step `half`. After log2(S) rounds the
    // order is complete.
    let mut v = v;
    let mut half = S / 2;
    while half > 0 {
        let from = v;
        for i in 0..S / 2 {
            // SAFETY: this function's contract.
            [v[2 * i], v[2 * i + 1]] = unsafe { from[i].zip(from[i + S / 2]) };
        }
        half /= 2;
    }
    v
}

/// Writes as much of a sequence of registers as `to` has room for.
///
/// # Safety
/// As [`Vector`]'s methods.
#[inline(always)]
pub(crate) unsafe fn store_run<V: Vector, const S: usize>(run: [V; S], to: &mut [V::Lane]) {
    for (i, lanes) in run.into_iter().enumerate() {
        let left = to.len().saturating_sub(i * V::LANES);
        let at = to.as_mut_ptr().wrapping_add(i * V::LANES);
        // SAFETY: this function's contract, and `to` has `left` elements from `at` on.
        unsafe {
            match left {
                0 => return,
                _ if left < V::LANES => return lanes.store_first(left, at),
                _ => lanes.store(at),
            }
        }
    }
}

/// The start indices of the vectors that cover `len` elements, which are at least one vector.
///
/// The last vector ends at `len`. If `len` is not whole vectors, it overlaps the one before.
#[inline(always)]
pub(crate) fn covering(len: usize, lanes: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(lanes).map(move |at| at.min(len - lanes))
}

/// `N` lanes in an array, for which the compiler uses the registers that the target has.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<T, const N: usize>([T; N]);

// SAFETY: `N` is a power of two up to `MOST_LANES` in all kernels, as their macro asserts. Lanes
// are the array's elements.
unsafe impl<T: Compute, const N: usize> Vector for Lanes<T, N> {
    type Lane = T;
    const LANES: usize = N;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: T) -> Self {
        Lanes([value; N])
    }

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller passes a pointer to `N` readable elements. An array of `T` has the
        // alignment of `T`.
        Lanes(unsafe { from.cast::<[T; N]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller passes a pointer to `N` writable elements.
        unsafe { to.cast::<[T; N]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        Lanes(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Lanes(std::array::from_fn(|i| self.0[i].plus(other.0[i])))
    }

    #[inline(always)]
    unsafe fn minus(self, other: Self) -> Self {
        Lanes(std::array::from_fn(|i| self.0[i].minus(other.0[i])))
    }

    #[inline(always)]
    unsafe fn clamp(self, low: Self, high: Self) -> Self {
        Lanes(std::array::from_fn(|i| self.0[i].clamped(low.0[i], high.0[i])))
    }

    #[inline(always)]
    unsafe fn zip(self, other: Self) -> [Self; 2] {
        let lane = |i: usize| if i.is_multiple_of(2) { self.0[i / 2] } else { other.0[i / 2] };
        [Lanes(std::array::from_fn(lane)), Lanes(std::array::from_fn(|i| lane(N + i)))]
    }

    #[inline(always)]
    unsafe fn unzip(self, other: Self) -> [Self; 2] {
        let lane = |i: usize| if i < N { self.0[i] } else { other.0[i - N] };
        [Lanes(std::array::from_fn(|i| lane(2 * i))), Lanes(std::array::from_fn(|i| lane(2 * i + 1)))]
    }

    const PERMUTES_LANES: bool = false;

    #[inline(always)]
    unsafe fn permute_lanes(self, lanes: *const u32) -> Self {
        // SAFETY: the caller passes `N` readable indices.
        Lanes(std::array::from_fn(|i| self.0[unsafe { *lanes.add(i) } as usize]))
    }
}

/// Implements [`Vector`] for a register type by its intrinsics.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128")))]
macro_rules! register {
    ($(#[$attr:meta])* $name:ident($registers:literal $register:ty) of $lanes:literal $lane:ty:
        $splat:path, $load:path, $store:path, |$acc:ident, $a:ident, $b:ident| $fma:expr, $add:path, $sub:path, |$value:ident, $low:ident, $high:ident| $clamp:expr,
        |$x:ident, $y:ident| $zip:expr, $unzip:expr, |$v:ident, $lanes_of:ident| $permute:expr $(, streamed $stream:path)? $(, partly $load_partly:path)? $(, masked $load_some:path, $store_some:path, $mask:ty)? $(, fuses $fuses:literal)? $(, by lanes $by_lane:ident of $($lane_index:literal)+)?) => {
        $(#[$attr])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(in crate::simd) $register);

        // SAFETY: the register has `$lanes` lanes of type `$lane`, and the intrinsics are those of
        // the methods.
        unsafe impl Vector for $name {
            type Lane = $lane;
            const LANES: usize = $lanes;
            const REGISTERS: usize = $registers;
            const FUSES: bool = true $(&& $fuses)?;

            #[inline(always)]
            unsafe fn splat(value: $lane) -> Self {
                // SAFETY: by the trait's contract, the CPU has this instruction.
                Self(unsafe { $splat(value) })
            }

            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: by the trait's contract, `LANES` elements are readable. This is the
                // unaligned form.
                Self(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: by the trait's contract, `LANES` elements are writable. This is the
                // unaligned form.
                unsafe { $store(to, self.0) }
            }

            $(
            const STREAMS: bool = true;

            #[inline(always)]
            unsafe fn stream(self, to: *mut $lane) {
                // SAFETY: by the trait's contract, `LANES` elements are writable and have a
                // vector's alignment.
                unsafe { $stream(to, self.0) }
            }

            #[inline(always)]
            unsafe fn after_streams() {
                // SAFETY: all CPUs with such registers have this instruction, which accesses no
                // memory.
                unsafe { _mm_sfence() }
            }
            )?

            $(
            const LOADS_PARTS: bool = true;

            #[inline(always)]
            unsafe fn load_some(from: *const $lane, lanes: u16) -> Self {
                // SAFETY: by the trait's contract, the CPU has these instructions. They read only
                // these lanes.
                Self(unsafe { $load_partly(from, lanes) })
            }
            )?

            $(
            const MASKS: bool = true;

            #[inline(always)]
            unsafe fn load_some(from: *const $lane, lanes: u16) -> Self {
                // SAFETY: by the trait's contract, the CPU has this instruction. It reads only
                // these lanes.
                Self(unsafe { $load_some(lanes as $mask, from) })
            }

            #[inline(always)]
            unsafe fn store_first(self, count: usize, to: *mut $lane) {
                // SAFETY: by the trait's contract, the CPU has these instructions. They write only
                // `count` elements.
                unsafe { $store_some(to, (1 << count) - 1, self.0) }
            }
            )?

            #[inline(always)]
            unsafe fn mul_add(self, a: Self, b: Self) -> Self {
                let ($acc, $a, $b) = (self.0, a.0, b.0);
                // SAFETY: by the trait's contract, the CPU has this instruction.
                Self(unsafe { $fma })
            }

            $(
            const BY_LANES: bool = true;

            #[inline(always)]
            unsafe fn mul_add_by_lanes<const N: usize>(sums: &mut [[Self; N]], data: &[Self; N], weights: Self) {
                let mut rows = sums.iter_mut();
                $(if let Some(sums) = rows.next() {
                    for (sum, data) in sums.iter_mut().zip(data) {
                        // SAFETY: by the trait's contract, the CPU has this instruction.
                        sum.0 = unsafe { $by_lane::<$lane_index>(sum.0, data.0, weights.0) };
                    }
                })+
            }
            )?

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: by the trait's contract, the CPU has this instruction.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn minus(self, other: Self) -> Self {
                // SAFETY: by the trait's contract, the CPU has this instruction.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn clamp(self, low: Self, high: Self) -> Self {
                let ($value, $low, $high) = (self.0, low.0, high.0);
                // SAFETY: by the trait's contract, the CPU has these instructions.
                Self(unsafe { $clamp })
            }

            #[inline(always)]
            unsafe fn zip(self, other: Self) -> [Self; 2] {
                let ($x, $y) = (self.0, other.0);
                // SAFETY: by the trait's contract, the CPU has these instructions.
                unsafe { $zip }.map(Self)
            }

            #[inline(always)]
            unsafe fn unzip(self, other: Self) -> [Self; 2] {
                let ($x, $y) = (self.0, other.0);
                // SAFETY: by the trait's contract, the CPU has these instructions.
                unsafe { $unzip }.map(Self)
            }

            #[inline(always)]
            unsafe fn permute_lanes(self, lanes: *const u32) -> Self {
                let ($v, $lanes_of) = (self.0, lanes);
                // SAFETY: by the trait's contract, the CPU has these instructions, and `LANES`
                // indices are readable.
                Self(unsafe { $permute })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use crate::compute::{Group, Pair, Quad};
    use std::arch::x86_64::*;

    /// The intrinsics of elements of 32 bits that hold several integers, for one size of vectors.
    macro_rules! integers {
        ($name:ident, $register:ty, $splat:path, $load:path, $store:path, $stream:path) => {
            mod $name {
                use super::*;

                /// # Safety
                /// The CPU has the instruction set.
                #[inline(always)]
                pub(super) unsafe fn splat(value: impl Group) -> $register {
                    // SAFETY: this function's contract.
                    unsafe { $splat(value.bits()) }
                }

                /// # Safety
                /// The CPU has the instruction set, and a vector is readable.
                #[inline(always)]
                pub(super) unsafe fn load(from: *const impl Group) -> $register {
                    // SAFETY: this function's contract. This is the unaligned form.
                    unsafe { $load(from.cast()) }
                }

                /// # Safety
                /// The CPU has the instruction set, and a vector is writable.
                #[inline(always)]
                pub(super) unsafe fn store(to: *mut impl Group, vector: $register) {
                    // SAFETY: this function's contract. This is the unaligned form.
                    unsafe { $store(to.cast(), vector) }
                }

                /// # Safety
                /// The CPU has the instruction set, and an aligned vector is writable.
                #[inline(always)]
                pub(super) unsafe fn stream(to: *mut impl Group, vector: $register) {
                    // SAFETY: this function's contract.
                    unsafe { $stream(to.cast(), vector) }
                }
            }
        };
    }
    integers!(i512, __m512i, _mm512_set1_epi32, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512);
    integers!(i256, __m256i, _mm256_set1_epi32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256);

    /// # Safety
    /// The CPU has AVX-512, and the lanes of the mask are readable.
    #[inline(always)]
    unsafe fn load_some_512(mask: __mmask16, from: *const impl Group) -> __m512i {
        // SAFETY: this function's contract.
        unsafe { _mm512_maskz_loadu_epi32(mask, from.cast()) }
    }

    /// # Safety
    /// The CPU has AVX-512, and the lanes of the mask are writable.
    #[inline(always)]
    unsafe fn store_some_512(to: *mut impl Group, mask: __mmask16, vector: __m512i) {
        // SAFETY: this function's contract.
        unsafe { _mm512_mask_storeu_epi32(to.cast(), mask, vector) }
    }

    /// A register of integers of AVX-512, with its sum of products.
    macro_rules! integers_of_512_bits {
        ($(#[$attr:meta])* $name:ident of $lane:ident: |$acc:ident, $a:ident, $b:ident| $dot:expr) => {
            register!(
                $(#[$attr])*
                $name(32 __m512i) of 16 $lane:
                i512::splat, i512::load, i512::store, |$acc, $a, $b| $dot, _mm512_add_epi32, _mm512_sub_epi32,
                |value, low, high| _mm512_min_epi32(high, _mm512_max_epi32(low, value)),
                |x, y| {
                    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                    [_mm512_permutex2var_epi32(x, low, y), _mm512_permutex2var_epi32(x, high, y)]
                },
                {
                    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
                    [_mm512_permutex2var_epi32(x, even, y), _mm512_permutex2var_epi32(x, odd, y)]
                },
                |v, lanes| _mm512_permutexvar_epi32(_mm512_loadu_si512(lanes.cast()), v),
                streamed i512::stream,
                masked load_some_512, store_some_512, __mmask16
            );
        };
    }
    integers_of_512_bits!(
        /// Sixteen pairs of AVX-512 with VNNI.
        Pair16 of Pair: |acc, a, b| _mm512_dpwssd_epi32(acc, a, b)
    );
    integers_of_512_bits!(
        /// Sixteen quads of AVX-512 with VNNI.
        Quad16 of Quad: |acc, a, b| _mm512_dpbusd_epi32(acc, a, b)
    );

    /// A register of integers of AVX2, with its sum of products.
    macro_rules! integers_of_256_bits {
        ($(#[$attr:meta])* $name:ident of $lane:ident: |$acc:ident, $a:ident, $b:ident| $dot:expr) => {
            register!(
                $(#[$attr])*
                $name(16 __m256i) of 8 $lane:
                i256::splat, i256::load, i256::store, |$acc, $a, $b| $dot, _mm256_add_epi32, _mm256_sub_epi32,
                |value, low, high| _mm256_min_epi32(high, _mm256_max_epi32(low, value)),
                |x, y| {
                    let (low, high) = (_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
                    [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)]
                },
                {
                    // each half holds two elements of x, then two of y
                    let (x, y) = (_mm256_castsi256_ps(x), _mm256_castsi256_ps(y));
                    let (even, odd) = (_mm256_shuffle_ps::<0b10_00_10_00>(x, y), _mm256_shuffle_ps::<0b11_01_11_01>(x, y));
                    [even, odd].map(|halves| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(halves)))
                },
                |v, lanes| _mm256_permutevar8x32_epi32(v, _mm256_loadu_si256(lanes.cast())),
                streamed i256::stream
            );
        };
    }
    integers_of_256_bits!(
        /// Eight pairs of AVX2.
        Pair8 of Pair: |acc, a, b| _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
    );
    integers_of_256_bits!(
        /// Eight quads of AVX-VNNI.
        Quad8 of Quad: |acc, a, b| _mm256_dpbusd_avx_epi32(acc, a, b)
    );

    register!(
        /// Sixteen f32 of AVX-512.
        F32x16(32 __m512) of 16 f32:
        _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, |acc, a, b| _mm512_fmadd_ps(a, b, acc), _mm512_add_ps, _mm512_sub_ps,
        |value, low, high| _mm512_min_ps(high, _mm512_max_ps(low, value)),
        |x, y| {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [_mm512_permutex2var_ps(x, low, y), _mm512_permutex2var_ps(x, high, y)]
        },
        {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [_mm512_permutex2var_ps(x, even, y), _mm512_permutex2var_ps(x, odd, y)]
        },
        |v, lanes| _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.cast()), v),
        streamed _mm512_stream_ps,
        masked _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps, __mmask16
    );
    register!(
        /// Eight f64 of AVX-512.
        F64x8(32 __m512d) of 8 f64:
        _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, |acc, a, b| _mm512_fmadd_pd(a, b, acc), _mm512_add_pd, _mm512_sub_pd,
        |value, low, high| _mm512_min_pd(high, _mm512_max_pd(low, value)),
        |x, y| {
            let low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
            let high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
            [_mm512_permutex2var_pd(x, low, y), _mm512_permutex2var_pd(x, high, y)]
        },
        {
            let (even, odd) = (_mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15));
            [_mm512_permutex2var_pd(x, even, y), _mm512_permutex2var_pd(x, odd, y)]
        },
        |v, lanes| _mm512_permutexvar_pd(_mm512_cvtepu32_epi64(_mm256_loadu_si256(lanes.cast())), v),
        streamed _mm512_stream_pd,
        masked _mm512_maskz_loadu_pd, _mm512_mask_storeu_pd, __mmask8
    );
    /// # Safety
    /// The CPU has AVX2, and the lanes whose bit is set are readable.
    #[inline(always)]
    unsafe fn load_some_256(from: *const f32, lanes: u16) -> __m256 {
        // SAFETY: this function's contract. Lanes whose mask's highest bit is zero are not read.
        unsafe {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(lanes)), bits);
            _mm256_maskload_ps(from, _mm256_cmpeq_epi32(set, bits))
        }
    }

    register!(
        /// Eight f32 of AVX.
        F32x8(16 __m256) of 8 f32:
        _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, |acc, a, b| _mm256_fmadd_ps(a, b, acc), _mm256_add_ps, _mm256_sub_ps,
        |value, low, high| _mm256_min_ps(high, _mm256_max_ps(low, value)),
        |x, y| {
            let (low, high) = (_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
            [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
        },
        {
            // each half holds two elements of x, then two of y
            let (even, odd) = (_mm256_shuffle_ps::<0b10_00_10_00>(x, y), _mm256_shuffle_ps::<0b11_01_11_01>(x, y));
            [even, odd].map(|halves| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(halves))))
        },
        |v, lanes| _mm256_permutevar8x32_ps(v, _mm256_loadu_si256(lanes.cast())),
        streamed _mm256_stream_ps,
        partly load_some_256
    );
    register!(
        /// Four f64 of AVX.
        F64x4(16 __m256d) of 4 f64:
        _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, |acc, a, b| _mm256_fmadd_pd(a, b, acc), _mm256_add_pd, _mm256_sub_pd,
        |value, low, high| _mm256_min_pd(high, _mm256_max_pd(low, value)),
        |x, y| {
            let (low, high) = (_mm256_unpacklo_pd(x, y), _mm256_unpackhi_pd(x, y));
            [_mm256_permute2f128_pd::<0x20>(low, high), _mm256_permute2f128_pd::<0x31>(low, high)]
        },
        [_mm256_unpacklo_pd(x, y), _mm256_unpackhi_pd(x, y)].map(|halves| _mm256_permute4x64_pd::<0b11_01_10_00>(halves)),
        |v, lanes| {
            // Lane n of 64 bits is the lanes 2n and 2n + 1 of 32 bits.
            let first = _mm256_slli_epi64::<1>(_mm256_cvtepu32_epi64(_mm_loadu_si128(lanes.cast())));
            let second = _mm256_slli_epi64::<32>(_mm256_add_epi64(first, _mm256_set1_epi64x(1)));
            _mm256_castps_pd(_mm256_permutevar8x32_ps(_mm256_castpd_ps(v), _mm256_or_si256(first, second)))
        },
        streamed _mm256_stream_pd
    );
}
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::Vector;
    use crate::compute::Pair;
    use std::arch::aarch64::*;

    /// # Safety
    /// The CPU has NEON.
    #[inline(always)]
    unsafe fn splat_pair(value: Pair) -> int32x4_t {
        // SAFETY: this function's contract.
        unsafe { vdupq_n_s32(value.bits()) }
    }

    /// # Safety
    /// The CPU has NEON, and a vector is readable.
    #[inline(always)]
    unsafe fn load_pairs(from: *const Pair) -> int32x4_t {
        // SAFETY: this function's contract. A pair is an `i32`.
        unsafe { vld1q_s32(from.cast()) }
    }

    /// # Safety
    /// The CPU has NEON, and a vector is writable.
    #[inline(always)]
    unsafe fn store_pairs(to: *mut Pair, vector: int32x4_t) {
        // SAFETY: this function's contract. A pair is an `i32`.
        unsafe { vst1q_s32(to.cast(), vector) }
    }

    register!(
        /// Four pairs of NEON.
        Pair4(32 int32x4_t) of 4 Pair:
        splat_pair, load_pairs, store_pairs,
        |acc, a, b| {
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            vaddq_s32(acc, vpaddq_s32(low, vmull_high_s16(a, b)))
        },
        vaddq_s32, vsubq_s32,
        |value, low, high| vminq_s32(high, vmaxq_s32(low, value)),
        |x, y| [vzip1q_s32(x, y), vzip2q_s32(x, y)], [vuzp1q_s32(x, y), vuzp2q_s32(x, y)],
        |v, lanes| {
            // The bytes of lane n are 4n to 4n + 3.
            let bytes = vaddq_u32(vmulq_n_u32(vld1q_u32(lanes), 0x0404_0404), vdupq_n_u32(0x0302_0100));
            vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(v), vreinterpretq_u8_u32(bytes)))
        }
    );
    register!(
        /// Four f32 of NEON.
        F32x4(32 float32x4_t) of 4 f32:
        vdupq_n_f32, vld1q_f32, vst1q_f32, |acc, a, b| vfmaq_f32(acc, a, b), vaddq_f32, vsubq_f32,
        |value, low, high| {
            // The instructions for maxima give zero for minus zero.
            let raised = vbslq_f32(vcgtq_f32(low, value), low, value);
            vbslq_f32(vcltq_f32(high, raised), high, raised)
        },
        |x, y| [vzip1q_f32(x, y), vzip2q_f32(x, y)], [vuzp1q_f32(x, y), vuzp2q_f32(x, y)],
        |v, lanes| {
            // The bytes of lane n are 4n to 4n + 3.
            let bytes = vaddq_u32(vmulq_n_u32(vld1q_u32(lanes), 0x0404_0404), vdupq_n_u32(0x0302_0100));
            vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), vreinterpretq_u8_u32(bytes)))
        },
        by lanes vfmaq_laneq_f32 of 0 1 2 3
    );
    register!(
        /// Two f64 of NEON.
        F64x2(32 float64x2_t) of 2 f64:
        vdupq_n_f64, vld1q_f64, vst1q_f64, |acc, a, b| vfmaq_f64(acc, a, b), vaddq_f64, vsubq_f64,
        |value, low, high| {
            // The instructions for maxima give zero for minus zero.
            let raised = vbslq_f64(vcgtq_f64(low, value), low, value);
            vbslq_f64(vcltq_f64(high, raised), high, raised)
        },
        |x, y| [vzip1q_f64(x, y), vzip2q_f64(x, y)], [vuzp1q_f64(x, y), vuzp2q_f64(x, y)],
        |v, lanes| {
            let (low, high) = (vdupq_laneq_f64::<0>(v), vdupq_laneq_f64::<1>(v));
            // All bits are set where the high lane is wanted.
            let wanted = vnegq_s64(vreinterpretq_s64_u64(vmovl_u32(vld1_u32(lanes))));
            vbslq_f64(vreinterpretq_u64_s64(wanted), high, low)
        },
        by lanes vfmaq_laneq_f64 of 0 1
    );
}
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;

/// A module states the instructions that it has when it is built, so these need no check.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm32 {
    // All functions of a module may use its vectors: their intrinsics are safe.
    #![allow(unused_unsafe, reason = "only memory is unsafe here")]

    use super::Vector;
    use crate::compute::Pair;
    use std::arch::wasm32::*;

    /// # Safety
    /// Sixteen bytes are readable.
    #[inline(always)]
    unsafe fn load<T>(from: *const T) -> v128 {
        // SAFETY: this function's contract. The instruction needs no alignment.
        unsafe { v128_load(from.cast()) }
    }

    /// # Safety
    /// Sixteen bytes are writable.
    #[inline(always)]
    unsafe fn store<T>(to: *mut T, vector: v128) {
        // SAFETY: this function's contract. The instruction needs no alignment.
        unsafe { v128_store(to.cast(), vector) }
    }

    /// `acc + a·b`, rounded once or twice, as is faster where the module runs.
    #[cfg(target_feature = "relaxed-simd")]
    mod multiply_add {
        use super::*;

        #[inline(always)]
        pub(super) fn of_f32(acc: v128, a: v128, b: v128) -> v128 {
            f32x4_relaxed_madd(a, b, acc)
        }

        #[inline(always)]
        pub(super) fn of_f64(acc: v128, a: v128, b: v128) -> v128 {
            f64x2_relaxed_madd(a, b, acc)
        }
    }

    /// `acc + a·b`, rounded twice.
    #[cfg(not(target_feature = "relaxed-simd"))]
    mod multiply_add {
        use super::*;

        #[inline(always)]
        pub(super) fn of_f32(acc: v128, a: v128, b: v128) -> v128 {
            f32x4_add(acc, f32x4_mul(a, b))
        }

        #[inline(always)]
        pub(super) fn of_f64(acc: v128, a: v128, b: v128) -> v128 {
            f64x2_add(acc, f64x2_mul(a, b))
        }
    }

    register!(
        /// Four f32 of WebAssembly. V8 keeps one of sixteen registers of x86-64 for itself.
        F32x4(15 v128) of 4 f32:
        f32x4_splat, load, store, |acc, a, b| multiply_add::of_f32(acc, a, b), f32x4_add, f32x4_sub,
        |value, low, high| f32x4_pmin(f32x4_pmax(value, low), high),
        |x, y| [i32x4_shuffle::<0, 4, 1, 5>(x, y), i32x4_shuffle::<2, 6, 3, 7>(x, y)],
        [i32x4_shuffle::<0, 2, 4, 6>(x, y), i32x4_shuffle::<1, 3, 5, 7>(x, y)],
        |v, lanes| {
            // The bytes of lane n are 4n to 4n + 3.
            let bytes = u32x4_add(u32x4_mul(load(lanes), u32x4_splat(0x0404_0404)), u32x4_splat(0x0302_0100));
            u8x16_swizzle(v, bytes)
        },
        fuses false
    );
    /// A vector of copies of a pair.
    #[inline(always)]
    fn splat_pair(value: Pair) -> v128 {
        i32x4_splat(value.bits())
    }

    register!(
        /// Four pairs of WebAssembly.
        Pair4(15 v128) of 4 Pair:
        splat_pair, load, store, |acc, a, b| i32x4_add(acc, i32x4_dot_i16x8(a, b)), i32x4_add, i32x4_sub,
        |value, low, high| i32x4_min(high, i32x4_max(low, value)),
        |x, y| [i32x4_shuffle::<0, 4, 1, 5>(x, y), i32x4_shuffle::<2, 6, 3, 7>(x, y)],
        [i32x4_shuffle::<0, 2, 4, 6>(x, y), i32x4_shuffle::<1, 3, 5, 7>(x, y)],
        |v, lanes| {
            // The bytes of lane n are 4n to 4n + 3.
            let bytes = u32x4_add(u32x4_mul(load(lanes), u32x4_splat(0x0404_0404)), u32x4_splat(0x0302_0100));
            u8x16_swizzle(v, bytes)
        },
        fuses false
    );
    register!(
        /// Two f64 of WebAssembly.
        F64x2(15 v128) of 2 f64:
        f64x2_splat, load, store, |acc, a, b| multiply_add::of_f64(acc, a, b), f64x2_add, f64x2_sub,
        |value, low, high| f64x2_pmin(f64x2_pmax(value, low), high),
        |x, y| [i64x2_shuffle::<0, 2>(x, y), i64x2_shuffle::<1, 3>(x, y)],
        [i64x2_shuffle::<0, 2>(x, y), i64x2_shuffle::<1, 3>(x, y)],
        |v, lanes| {
            let (low, high) = (i64x2_shuffle::<0, 0>(v, v), i64x2_shuffle::<1, 1>(v, v));
            // All bits are set where the high lane is wanted.
            let wanted = i64x2_neg(u64x2_extend_low_u32x4(v128_load64_zero(lanes.cast())));
            v128_bitselect(high, low, wanted)
        },
        fuses false
    );
}
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use wasm32::*;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lanes of sums of products in `rows` rows, by [`Vector::mul_add_by_lanes`] and by spread lanes.
    fn sums_of_products<V: Vector>(rows: usize) -> [Vec<V::Lane>; 2] {
        let values = |first: usize| -> [V::Lane; MOST_LANES] {
            std::array::from_fn(|i| V::Lane::of_constant(0.37 * (first + i) as f64 + 0.1))
        };
        // SAFETY: each vector is read from and written to `MOST_LANES` elements, and the target has the instructions.
        unsafe {
            let [start, weights, data] = [1, 9, 20].map(|first| V::load(values(first).as_ptr()));
            let mut by_lanes = [[start, data]; MOST_LANES];
            let mut spread = by_lanes;
            V::mul_add_by_lanes(&mut by_lanes[..rows], &[data, start], weights);
            let mut lanes = [V::Lane::ZERO; MOST_LANES];
            weights.store(lanes.as_mut_ptr());
            for (sums, weight) in spread[..rows].iter_mut().zip(lanes) {
                *sums = [sums[0].mul_add(data, V::splat(weight)), sums[1].mul_add(start, V::splat(weight))];
            }
            [by_lanes, spread].map(|sums| {
                let lanes = sums.as_flattened().iter().flat_map(|sum| {
                    let mut lanes = [V::Lane::ZERO; MOST_LANES];
                    sum.store(lanes.as_mut_ptr());
                    lanes
                });
                lanes.collect()
            })
        }
    }

    #[test]
    fn products_by_lanes_are_those_by_spread_lanes() {
        fn check<V: Vector>() {
            let [before, _] = sums_of_products::<V>(0);
            for rows in 1..=V::LANES {
                let [by_lanes, spread] = sums_of_products::<V>(rows);
                assert_eq!(by_lanes, spread, "{rows} rows");
                assert_ne!(by_lanes, before, "{rows} rows");
            }
        }
        check::<Lanes<f32, 4>>();
        check::<Lanes<f64, 2>>();
        #[cfg(target_arch = "aarch64")]
        {
            check::<F32x4>();
            check::<F64x2>();
        }
    }
}
