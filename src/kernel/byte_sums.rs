//! Integer sums that become bytes in registers, and sums of products of bytes.
//!
//! Results are computed in f32 first. Its error is bounded, so it gives the same integer as f64 unless a
//! number is about half way between two integers. Such numbers are computed again, one by one.
//!
//! Lane `i` of the vector at byte `b` of a row holds the bytes from `b + 4·i` on: what four adjacent
//! taps read for the result that begins there. So the vectors at bytes 0, 1, 2 and 3 hold the operands
//! of adjacent results, and no byte is moved before it is multiplied. Sums of four vectors become one
//! vector of bytes.

use crate::compute::Quad;
use crate::kernel::extent::reach;
use crate::kernel::rescale::ByteScales;
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
    pub scales: &'a ByteScales,
    pub channel: usize,
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

/// Sums that become bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumsOfBytes<'a> {
    pub sums: &'a [i32],
    /// A byte for each sum that is added, if the scales are for that.
    pub added: Option<&'a [u8]>,
    pub scales: &'a ByteScales,
}

type Rescale = unsafe fn(sums: &SumsOfBytes, channel: usize, to: &mut [u8]);

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct ByteKernels {
    /// The results that are computed together.
    pub results: usize,
    /// For the steps in [`BYTE_STEPS`].
    sums: [Sums; BYTE_STEPS.len()],
    /// Without and with an added tensor: for sums of one channel, and for one sum of each.
    rescale: [[Rescale; 2]; 2],
    add: unsafe fn(terms: &[i32], sums: &mut [i32]),
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
            match isa {
                Isa::Avx512 | Isa::Amx if isa.is_available() && has_512 && has_vnni => avx512_vnni::KERNELS,
                Isa::Avx2 | Isa::Avx512 | Isa::Amx if Isa::Avx2.is_available() => {
                    if is_x86_feature_detected!("avxvnni") { avx_vnni::KERNELS } else { avx2::KERNELS }
                }
                _ => portable::KERNELS,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = isa;
            portable::KERNELS
        }
    }

    /// Whether there are vectors. Without, other loops are faster.
    pub fn have_vectors(self) -> bool {
        self.results > portable::KERNELS.results
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
        assert!(sums.scales.added.is_none());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above are
        // the rest of the contract.
        unsafe { (self.sums[at])(sums, source, rows, to) }
    }

    /// Makes bytes of sums of one channel.
    ///
    /// # Panics
    /// A slice is shorter than `to`, there is no such channel, or the scales are for another number of
    /// tensors.
    pub fn rescale(self, sums: SumsOfBytes, channel: usize, to: &mut [u8]) {
        assert!(channel < sums.scales.channels());
        self.rescale_some(sums, 0, channel, to)
    }

    /// Makes bytes of sums, one of each channel from `first` on.
    ///
    /// # Panics
    /// As [`ByteKernels::rescale`], or there are not as many channels.
    pub fn rescale_pixel(self, sums: SumsOfBytes, first: usize, to: &mut [u8]) {
        assert!(first <= sums.scales.channels() && to.len() <= sums.scales.channels() - first);
        self.rescale_some(sums, 1, first, to)
    }

    fn rescale_some(self, sums: SumsOfBytes, each: usize, channel: usize, to: &mut [u8]) {
        assert!(to.len() <= sums.sums.len() && sums.added.is_none_or(|added| to.len() <= added.len()));
        assert!(sums.added.is_some() == sums.scales.added.is_some());
        // SAFETY: these kernels exist only if the CPU has the instruction set. The assertions above and
        // those of the caller are the rest of the contract.
        unsafe { (self.rescale[usize::from(sums.added.is_some())][each])(&sums, channel, to) }
    }

    /// `sums[i] += terms[i % terms.len()]`, which wraps.
    ///
    /// # Panics
    /// There are no terms.
    pub fn add(self, terms: &[i32], sums: &mut [i32]) {
        // SAFETY: these kernels exist only if the CPU has the instruction set. The code inside is safe.
        unsafe { (self.add)(terms, sums) }
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
/// entered after a check. Each reads and writes exactly what its documentation says, at any address.
unsafe trait Dots: Copy {
    /// The number of sums. There are four times as many bytes.
    const LANES: usize;

    /// As many real numbers as sums.
    type Reals: Copy;

    /// Sums, or the weights of each sum.
    unsafe fn splat(value: i32) -> Self;
    /// Reads a vector of bytes, or of sums.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes a vector of bytes, or of sums.
    unsafe fn store(self, to: *mut u8);
    /// Adds to each sum the products of four `u8` and four `i8`.
    unsafe fn dot(self, data: Self, weights: Self) -> Self;

    /// The same real number in all lanes.
    unsafe fn splat_real(value: f32) -> Self::Reals;
    /// Reads real numbers.
    unsafe fn load_reals(from: *const f32) -> Self::Reals;
    /// Reads a byte for each lane, and flips bits.
    unsafe fn load_bytes(from: *const u8, flip: u8) -> Self;
    /// As [`Dots::load`], of the first `count` sums. The other lanes have any.
    #[inline(always)]
    unsafe fn load_first(from: *const i32, count: usize) -> Self {
        let mut some = [0i32; MOST_BYTES / 4];
        // SAFETY: the array has room for any vector. The caller guarantees that `count` sums are readable.
        unsafe {
            std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
            Self::load(some.as_ptr().cast())
        }
    }
    /// As [`Dots::load_reals`], of the first `count` numbers. The other lanes have any.
    #[inline(always)]
    unsafe fn load_first_reals(from: *const f32, count: usize) -> Self::Reals {
        let mut some = [0f32; MOST_BYTES / 4];
        // SAFETY: as in `load_first`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
            Self::load_reals(some.as_ptr())
        }
    }
    /// As [`Dots::load_bytes`], of the first `count` bytes. The other lanes have any.
    #[inline(always)]
    unsafe fn load_first_bytes(from: *const u8, count: usize, flip: u8) -> Self {
        let mut some = [0u8; MOST_BYTES / 4];
        // SAFETY: as in `load_first`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), count);
            Self::load_bytes(some.as_ptr(), flip)
        }
    }
    /// `self·factor + term`, rounded once or twice.
    unsafe fn scaled(self, factor: Self::Reals, term: Self::Reals) -> Self::Reals;
    /// The smaller number of each lane.
    unsafe fn smaller(a: Self::Reals, b: Self::Reals) -> Self::Reals;
    /// The same byte everywhere.
    unsafe fn splat_byte(value: u8) -> Self;
    /// The real numbers as bytes, in the order of [`place`], and whether all are certain: no further from an integer
    /// than `certain`.
    unsafe fn bytes<const STEP: usize>(
        reals: [Self::Reals; 4],
        certain: Self::Reals,
        range: ByteRange<Self>,
        scales: &ByteScales,
    ) -> (Self, bool);
    /// The lanes of real numbers that are not certain, as bits.
    unsafe fn uncertain(reals: Self::Reals, certain: Self::Reals, scales: &ByteScales) -> u16;

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

/// The range of results that are bytes, in vectors.
#[derive(Clone, Copy)]
struct ByteRange<V> {
    low: V,
    high: V,
    /// The bits that are flipped in the end.
    flip: V,
    /// Whether nothing is limited or flipped.
    is_plain: bool,
}

impl<V: Dots> ByteRange<V> {
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn new(scales: &ByteScales) -> ByteRange<V> {
        // SAFETY: this function's contract.
        unsafe {
            ByteRange {
                low: V::splat_byte(scales.low),
                high: V::splat_byte(scales.high),
                flip: V::splat_byte(scales.flip),
                is_plain: scales.is_plain(),
            }
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
    let ByteSums { scales, channel, .. } = *sums;
    let (factor, term, certain) = (scales.factors[channel], scales.terms[channel], scales.certain[channel]);
    // SAFETY: the contract is this function's. No closures, as in `rescale`.
    let (factor, term, certain, range) =
        unsafe { (V::splat_real(factor), V::splat_real(term), V::splat_real(certain), ByteRange::new(scales)) };
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
                let mut scaled = [term; 4];
                for (scaled, sum) in scaled.iter_mut().zip(all) {
                    *scaled = sum.scaled(factor, term);
                }
                let (bytes, all_certain) = V::bytes::<STEP>(scaled, certain, range, scales);
                let (to, left) = (to.as_mut_ptr().add(at), rows.len - at);
                if left >= results {
                    bytes.store(to);
                } else {
                    bytes.store_first(left, to);
                }
                if !all_certain {
                    let to = std::slice::from_raw_parts_mut(to, left.min(results));
                    let block = Block { sums: all, reals: scaled, certain: [certain; 4] };
                    exactly::<V, STEP>(block, (scales, channel, 0), None, to);
                }
            }
        }
    }
}

/// The sums of a block, in f32, and how far these may be from an integer.
struct Block<V: Dots> {
    sums: [V; 4],
    reals: [V::Reals; 4],
    certain: [V::Reals; 4],
}

/// Computes the results of a block that are not certain in f64. Sums are of one channel, or each of the channel that is
/// `next` after the one before.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn exactly<V: Dots, const STEP: usize>(
    Block { sums, reals, certain }: Block<V>,
    (scales, channel, next): (&ByteScales, usize, usize),
    added: Option<&[u8]>,
    to: &mut [u8],
) {
    for k in 0..4 {
        let mut stored = [[0u8; 4]; MOST_BYTES / 4];
        // SAFETY: the array has room for any vector, and the contract is this function's.
        let lanes = unsafe {
            sums[k].store(stored.as_mut_ptr().cast());
            V::uncertain(reals[k], certain[k], scales)
        };
        let places = (place::<STEP>(V::LANES, k, 0), 4 / STEP);
        one_by_one((&stored, lanes), places, (scales, channel, next), added, to);
    }
}

#[cold]
#[inline(never)]
fn one_by_one(
    (sums, mut lanes): (&[[u8; 4]; MOST_BYTES / 4], u16),
    (first, step): (usize, usize),
    (scales, channel, next): (&ByteScales, usize, usize),
    added: Option<&[u8]>,
    to: &mut [u8],
) {
    while lanes != 0 {
        let lane = lanes.trailing_zeros() as usize;
        lanes &= lanes - 1;
        let at = first + lane * step;
        let Some(to) = to.get_mut(at) else { break };
        *to = scales.exact(channel + at * next, i32::from_ne_bytes(sums[lane]), added.map(|added| added[at]));
    }
}

/// See [`ByteKernels::rescale`]. Sums are of one channel, or of one `EACH`.
///
/// # Safety
/// The CPU has the instructions of `V`. There are the channels, and as many sums and bytes as `to` has.
#[inline(always)]
unsafe fn rescale<V: Dots, const ADDED: bool, const EACH: bool>(sums: &SumsOfBytes, channel: usize, to: &mut [u8]) {
    /// The block's sums follow each other.
    const STEP: usize = 4;
    let results = 4 * V::LANES;
    let scales = sums.scales;
    let added = sums.added.unwrap_or_default();
    let (of_added, flip) = scales.added.as_ref().map_or((0.0, 0), |added| (added.factor as f32, added.flip));
    // SAFETY: this function's contract.
    let range = unsafe { ByteRange::new(scales) };
    for at in (0..to.len()).step_by(results) {
        let to = &mut to[at..];
        let left = to.len().min(results);
        let whole = left == results;
        let c = if EACH { channel + at } else { channel };
        let reals = [&scales.factors, &scales.terms, &scales.certain].map(|reals| &reals[c..]);
        // SAFETY: by this function's contract, there are `left` elements of each.
        unsafe {
            // No closures: they would be compiled without the instructions of `V`.
            let mut of_block = [[V::splat_real(of_added); 4]; 3];
            for (of, block) in of_block.iter_mut().enumerate() {
                let from = reals[of].as_ptr();
                for (k, reals) in block.iter_mut().enumerate() {
                    let first = k * V::LANES;
                    *reals = match (EACH, whole) {
                        (false, _) => V::splat_real(*from),
                        (true, true) => V::load_reals(from.add(first)),
                        (true, false) => {
                            V::load_first_reals(from.wrapping_add(first), left.saturating_sub(first).min(V::LANES))
                        }
                    };
                }
            }
            let [factors, mut scaled, certain] = of_block;
            let mut all = [V::splat(0); 4];
            for k in 0..4 {
                let first = at + k * V::LANES;
                let count = (at + left).saturating_sub(first).min(V::LANES);
                let from = sums.sums.as_ptr().wrapping_add(first);
                all[k] = if whole { V::load(from.cast()) } else { V::load_first(from, count) };
                scaled[k] = all[k].scaled(factors[k], scaled[k]);
                if ADDED {
                    let from = added.as_ptr().wrapping_add(first);
                    let more = if whole { V::load_bytes(from, flip) } else { V::load_first_bytes(from, count, flip) };
                    scaled[k] = more.scaled(V::splat_real(of_added), scaled[k]);
                }
            }
            let mut least = certain[0];
            if EACH {
                for certain in &certain[1..] {
                    least = V::smaller(least, *certain);
                }
            }
            let (found, all_certain) = V::bytes::<STEP>(scaled, least, range, scales);
            if whole {
                found.store(to.as_mut_ptr());
            } else {
                found.store_first(left, to.as_mut_ptr());
            }
            if !all_certain {
                let added = ADDED.then(|| &added[at..at + left]);
                let block = Block { sums: all, reals: scaled, certain };
                exactly::<V, STEP>(block, (scales, c, usize::from(EACH)), added, &mut to[..left]);
            }
        }
    }
}

#[inline(always)]
fn add(terms: &[i32], sums: &mut [i32]) {
    for sums in sums.chunks_mut(terms.len()) {
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum = sum.wrapping_add(*term));
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
            let (from, to) = (&from[at..at + N], &mut to[at..at + N]);
            for i in 0..N {
                to[i] = from[i] ^ flip;
            }
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
        let mut sums = self.0;
        for byte in 0..4 {
            for (sum, (x, w)) in sums.iter_mut().zip(data.0.into_iter().zip(weights.0)) {
                let (x, w) = (x >> (8 * byte) & 0xff, w << (24 - 8 * byte) >> 24);
                *sum = sum.wrapping_add(x * w);
            }
        }
        Lanes(sums)
    }

    type Reals = [f32; 4];

    #[inline(always)]
    unsafe fn splat_real(value: f32) -> [f32; 4] {
        [value; 4]
    }

    #[inline(always)]
    unsafe fn load_reals(from: *const f32) -> [f32; 4] {
        // SAFETY: the caller passes a pointer to four readable numbers.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8, flip: u8) -> Lanes {
        // SAFETY: the caller passes a pointer to four readable bytes.
        Lanes(unsafe { from.cast::<[u8; 4]>().read() }.map(|byte| i32::from(byte ^ flip)))
    }

    #[inline(always)]
    unsafe fn scaled(self, factor: [f32; 4], term: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|lane| self.0[lane] as f32 * factor[lane] + term[lane])
    }

    #[inline(always)]
    unsafe fn smaller(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|lane| if b[lane] < a[lane] { b[lane] } else { a[lane] })
    }

    #[inline(always)]
    unsafe fn splat_byte(value: u8) -> Lanes {
        Lanes([i32::from_ne_bytes([value; 4]); 4])
    }

    #[inline(always)]
    unsafe fn bytes<const STEP: usize>(
        reals: [[f32; 4]; 4],
        certain: [f32; 4],
        _range: ByteRange<Lanes>,
        scales: &ByteScales,
    ) -> (Lanes, bool) {
        // Loops that the compiler vectorises.
        let (mut rounded, mut left) = ([[0u32; 4]; 4], [0f32; 4]);
        for k in 0..4 {
            for lane in 0..4 {
                let (bits, distance) = scales.rounded(reals[k][lane]);
                rounded[k][lane] = bits;
                let beyond = distance - certain[lane];
                left[lane] = if beyond > left[lane] { beyond } else { left[lane] };
            }
        }
        let mut bytes = [0u8; 16];
        for (k, rounded) in rounded.iter().enumerate() {
            for (lane, bits) in rounded.iter().enumerate() {
                bytes[place::<STEP>(4, k, lane)] = *bits as u8 ^ scales.flip;
            }
        }
        let all_certain = left == [0.0; 4];
        let (words, _) = bytes.as_chunks::<4>();
        (Lanes(std::array::from_fn(|i| i32::from_ne_bytes(words[i]))), all_certain)
    }

    #[inline(always)]
    unsafe fn uncertain(reals: [f32; 4], certain: [f32; 4], scales: &ByteScales) -> u16 {
        let is_uncertain = |real: f32, certain: f32| {
            let (_, distance) = scales.rounded(real);
            distance > certain || distance.is_nan()
        };
        let lanes = reals.into_iter().zip(certain).enumerate();
        lanes.fold(0, |all, (lane, (real, certain))| all | u16::from(is_uncertain(real, certain)) << lane)
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

        type Reals = __m512;

        #[inline(always)]
        unsafe fn splat_real(value: f32) -> __m512 {
            // SAFETY: by the trait's contract, the CPU has this instruction.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load_reals(from: *const f32) -> __m512 {
            // SAFETY: by the trait's contract, these numbers are readable. This is the unaligned form.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn load_bytes(from: *const u8, flip: u8) -> Self {
            // SAFETY: by the trait's contract, the CPU has these instructions, and the bytes are readable.
            Vnni16(unsafe {
                let bytes = _mm_xor_si128(_mm_loadu_si128(from.cast()), _mm_set1_epi8(flip as i8));
                _mm512_cvtepu8_epi32(bytes)
            })
        }

        #[inline(always)]
        unsafe fn load_first(from: *const i32, count: usize) -> Self {
            // SAFETY: by the trait's contract, `count` sums are readable.
            Vnni16(unsafe { _mm512_maskz_loadu_epi32(first_lanes(count), from) })
        }

        #[inline(always)]
        unsafe fn load_first_reals(from: *const f32, count: usize) -> __m512 {
            // SAFETY: by the trait's contract, `count` numbers are readable.
            unsafe { _mm512_maskz_loadu_ps(first_lanes(count), from) }
        }

        #[inline(always)]
        unsafe fn scaled(self, factor: __m512, term: __m512) -> __m512 {
            // SAFETY: by the trait's contract, the CPU has these instructions.
            unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(self.0), factor, term) }
        }

        #[inline(always)]
        unsafe fn smaller(a: __m512, b: __m512) -> __m512 {
            // SAFETY: by the trait's contract, the CPU has this instruction.
            unsafe { _mm512_min_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn splat_byte(value: u8) -> Self {
            // SAFETY: by the trait's contract, the CPU has this instruction.
            Vnni16(unsafe { _mm512_set1_epi8(value as i8) })
        }

        #[inline(always)]
        unsafe fn bytes<const STEP: usize>(
            reals: [__m512; 4],
            certain: __m512,
            range: ByteRange<Self>,
            _scales: &ByteScales,
        ) -> (Self, bool) {
            /// The larger of two magnitudes.
            const MAGNITUDE: i32 = 0b1011;
            // SAFETY: by the trait's contract, the CPU has these instructions.
            unsafe {
                // No closures, as in `rescale`.
                let mut furthest = _mm512_setzero_ps();
                let mut whole = [_mm512_setzero_si512(); 4];
                for k in 0..4 {
                    whole[k] = _mm512_cvtps_epi32(reals[k]);
                    // The distance to the nearest integer.
                    furthest = _mm512_range_ps::<MAGNITUDE>(furthest, _mm512_reduce_ps::<0>(reals[k]));
                }
                let is_certain = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(furthest, certain) == 0;
                let [low, high] = [_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3])];
                let bytes = _mm512_packus_epi16(low, high);
                let bytes = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(order::<STEP>()));
                let bytes = match STEP {
                    1 => bytes,
                    2 => _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes),
                    _ => _mm512_permutexvar_epi32(
                        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                        bytes,
                    ),
                };
                if range.is_plain {
                    return (Vnni16(bytes), is_certain);
                }
                let bytes = _mm512_min_epu8(_mm512_max_epu8(bytes, range.low.0), range.high.0);
                (Vnni16(_mm512_xor_si512(bytes, range.flip.0)), is_certain)
            }
        }

        #[inline(always)]
        unsafe fn uncertain(reals: __m512, certain: __m512, _scales: &ByteScales) -> u16 {
            // SAFETY: by the trait's contract, the CPU has these instructions.
            unsafe { _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(_mm512_abs_ps(_mm512_reduce_ps::<0>(reals)), certain) }
        }
    }

    /// The bits of the first `count` lanes, at most sixteen.
    #[inline(always)]
    fn first_lanes(count: usize) -> __mmask16 {
        ((1u32 << count) - 1) as u16
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

    /// The distances of real numbers to the nearest integers.
    ///
    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn from_integer(reals: __m256) -> __m256 {
        // SAFETY: this function's contract.
        unsafe {
            let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
            let near = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(reals);
            _mm256_and_ps(_mm256_sub_ps(reals, near), magnitude)
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

                type Reals = __m256;

                #[inline(always)]
                unsafe fn splat_real(value: f32) -> __m256 {
                    // SAFETY: by the trait's contract, the CPU has this instruction.
                    unsafe { _mm256_set1_ps(value) }
                }

                #[inline(always)]
                unsafe fn load_reals(from: *const f32) -> __m256 {
                    // SAFETY: by the trait's contract, these numbers are readable. This is the unaligned
                    // form.
                    unsafe { _mm256_loadu_ps(from) }
                }

                #[inline(always)]
                unsafe fn load_bytes(from: *const u8, flip: u8) -> Self {
                    // SAFETY: by the trait's contract, the CPU has these instructions, and the bytes are
                    // readable.
                    $name(unsafe {
                        let bytes = _mm_xor_si128(_mm_loadl_epi64(from.cast()), _mm_set1_epi8(flip as i8));
                        _mm256_cvtepu8_epi32(bytes)
                    })
                }

                #[inline(always)]
                unsafe fn scaled(self, factor: __m256, term: __m256) -> __m256 {
                    // SAFETY: by the trait's contract, the CPU has these instructions.
                    unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(self.0), factor, term) }
                }

                #[inline(always)]
                unsafe fn smaller(a: __m256, b: __m256) -> __m256 {
                    // SAFETY: by the trait's contract, the CPU has this instruction.
                    unsafe { _mm256_min_ps(a, b) }
                }

                #[inline(always)]
                unsafe fn splat_byte(value: u8) -> Self {
                    // SAFETY: by the trait's contract, the CPU has this instruction.
                    $name(unsafe { _mm256_set1_epi8(value as i8) })
                }

                #[inline(always)]
                unsafe fn bytes<const STEP: usize>(
                    reals: [__m256; 4],
                    certain: __m256,
                    range: ByteRange<Self>,
                    _scales: &ByteScales,
                ) -> (Self, bool) {
                    // SAFETY: by the trait's contract, the CPU has these instructions.
                    unsafe {
                        // No closures, as in `rescale`.
                        let mut furthest = _mm256_setzero_ps();
                        let mut whole = [_mm256_setzero_si256(); 4];
                        for k in 0..4 {
                            whole[k] = _mm256_cvtps_epi32(reals[k]);
                            furthest = _mm256_max_ps(furthest, from_integer(reals[k]));
                        }
                        let uncertain = _mm256_cmp_ps::<_CMP_NLE_UQ>(furthest, certain);
                        let is_certain = _mm256_movemask_ps(uncertain) == 0;
                        let low = _mm256_packs_epi32(whole[0], whole[1]);
                        let bytes = _mm256_packus_epi16(low, _mm256_packs_epi32(whole[2], whole[3]));
                        let bytes = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order::<STEP>()));
                        let bytes = match STEP {
                            1 => bytes,
                            2 => _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes),
                            _ => _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)),
                        };
                        if range.is_plain {
                            return ($name(bytes), is_certain);
                        }
                        let bytes = _mm256_min_epu8(_mm256_max_epu8(bytes, range.low.0), range.high.0);
                        ($name(_mm256_xor_si256(bytes, range.flip.0)), is_certain)
                    }
                }

                #[inline(always)]
                unsafe fn uncertain(reals: __m256, certain: __m256, _scales: &ByteScales) -> u16 {
                    // SAFETY: by the trait's contract, the CPU has these instructions.
                    unsafe {
                        let far = _mm256_cmp_ps::<_CMP_NLE_UQ>(from_integer(reals), certain);
                        _mm256_movemask_ps(far) as u16
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
            unsafe fn rescale<const ADDED: bool, const EACH: bool>(sums: &SumsOfBytes, channel: usize, to: &mut [u8]) {
                // SAFETY: only called by `ByteKernels::rescale_some`, which checks the contract.
                unsafe { super::rescale::<$vector, ADDED, EACH>(sums, channel, to) }
            }

            $(#[$feature])*
            unsafe fn add(terms: &[i32], sums: &mut [i32]) {
                super::add(terms, sums)
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
                rescale: [
                    [rescale::<false, false>, rescale::<false, true>],
                    [rescale::<true, false>, rescale::<true, true>],
                ],
                add,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::rescale::tests::{hard_scales, random};
    use crate::kernel::rescale::{AddedBytes, ChannelScale, Narrowing};
    use tract_core::internal::TractResult;

    /// Numbers half way between integers, next to them, large ones, and others.
    #[test]
    fn bytes_are_those_of_exact_numbers() -> TractResult<()> {
        let (mut random, scales) = (random(), hard_scales());
        let channels: Vec<ChannelScale> = scales.into_iter().cycle().take(77).collect();
        for (signed, zero_point, (low, high)) in [
            (false, 0, (0, 255)),
            (false, 128, (0, 255)),
            (true, -3, (-128, 127)),
            (true, 17, (17, 100)),
            (false, 255, (3, 4)),
        ] {
            let limits = (f64::from(low - zero_point), f64::from(high - zero_point));
            for (factor, flip) in [(0.0, 0), (0.5, 0), (0.11, 0x80), (1e7, 0)] {
                let added = (factor != 0.0).then_some(AddedBytes { factor, zero_point: 100, flip });
                let narrowing = Narrowing { limits, zero_point };
                let scales = ByteScales::new(channels.clone(), narrowing, signed, added, |_| f64::from(i32::MAX))?;
                let sums: Vec<i32> = (0..77 * 9).map(|i| random() >> (i * 7 % 32)).collect();
                let bytes: Vec<u8> = (0..77 * 9).map(|_| random() as u8).collect();
                let want = |at: usize, channel: usize| {
                    let ChannelScale { before, factor: by, term } = channels[channel];
                    let real = (f64::from(sums[at]) + before) * by + term;
                    let byte = f64::from(bytes[at] ^ flip);
                    let more = if factor == 0.0 { 0.0 } else { (byte - 100.0) * factor };
                    (real + more).clamp(limits.0, limits.1).round_ties_even() as i32 + zero_point
                };
                let sums_from =
                    |at: usize| SumsOfBytes { sums: &sums[at..], added: added.map(|_| &bytes[at..]), scales: &scales };
                for kernels in Isa::ALL.iter().filter(|isa| isa.is_available()).map(|isa| ByteKernels::of(*isa)) {
                    let check = |got: &[u8], want: &dyn Fn(usize) -> i32| {
                        for (at, got) in got.iter().enumerate() {
                            let got = if signed { i32::from(*got as i8) } else { i32::from(*got) };
                            assert_eq!(got, want(at), "{at} of {}, {factor}, {zero_point}", kernels.results);
                        }
                    };
                    for len in [1, 15, 16, 33, 64, 77] {
                        let mut got = vec![0; len];
                        for channel in [0, 1, 4, 6, 76] {
                            kernels.rescale(sums_from(channel), channel, &mut got);
                            check(&got, &|at| want(channel + at, channel));
                        }
                        kernels.rescale_pixel(sums_from(3), 77 - len, &mut got);
                        check(&got, &|at| want(3 + at, 77 - len + at));
                    }
                    let mut all = vec![0; sums.len()];
                    kernels.rescale(sums_from(0), 2, &mut all);
                    check(&all, &|at| want(at, 2));
                }
            }
        }
        Ok(())
    }
}
