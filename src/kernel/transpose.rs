//! Register transposes, and copies of strided elements and pixels.
//!
//! A register transpose transposes as many vectors as a vector has lanes.

use crate::compute::Compute;
use crate::kernel::bounds::{Bounds, clamp_all};
use crate::simd::vector::{MOST_LANES, Vector, covering, interleave, store_run};
use std::ops::Range;

/// The elements of a slice at which pixels begin.
///
/// The fields are private, so that the largest start is known without a search if they ascend.
#[derive(Clone, Copy)]
pub(crate) struct PixelStarts<'a> {
    starts: &'a [usize],
    ascend: bool,
}

impl<'a> PixelStarts<'a> {
    /// Starts in any order.
    pub fn new(starts: &'a [usize]) -> Self {
        PixelStarts { starts, ascend: starts.is_sorted() }
    }

    /// The starts of some pixels.
    ///
    /// # Panics
    /// There are fewer pixels.
    pub fn of(self, pixels: Range<usize>) -> Self {
        PixelStarts { starts: &self.starts[pixels], ..self }
    }

    /// The starts, pixel by pixel.
    pub fn as_slice(self) -> &'a [usize] {
        self.starts
    }

    /// The largest start.
    pub(super) fn largest(self) -> Option<usize> {
        if self.ascend { self.starts.last().copied() } else { self.starts.iter().copied().max() }
    }
}

/// `to[j][first + i] = from[starts[i] + j]`: a run of pixels of `LANES` elements each becomes rows.
///
/// If there are fewer rows than lanes, the excess is dropped. With `streamed`, rows whose vectors
/// all have the same alignment are stored past the caches.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are at least `LANES` starts, and `from` holds `LANES`
/// elements from each of them on. There are at most `LANES` rows. Each holds `first` elements plus
/// one per start.
#[inline(always)]
pub(crate) unsafe fn pixels_to_rows<V: Vector, const LANES: usize>(
    from: &[V::Lane],
    starts: &[usize],
    to: &mut [&mut [V::Lane]],
    first: usize,
    bounds: Option<Bounds<V::Lane>>,
    streamed: bool,
) {
    let ahead = to.first().map_or(0, |row| before_aligned::<V>(&row[first..]));
    let streamed = streamed && V::STREAMS && to.iter().all(|row| before_aligned::<V>(&row[first..]) == ahead);
    let last = starts.len() - LANES;
    // SAFETY: no transpose exceeds the starts. Streamed transposes begin a whole number of vectors
    // after the first aligned element. All ordinary stores that overlap a streamed one come before
    // it. The rest is this function's contract.
    unsafe {
        if !streamed {
            for at in covering(starts.len(), LANES) {
                transpose_block::<V, LANES, false>(from, starts, at, to, first, bounds);
            }
            return;
        }
        // The unaligned ends come before the aligned transposes, as streamed memory may not be
        // accessed before the fence.
        for at in [0, last] {
            if at < ahead || !(at - ahead).is_multiple_of(LANES) {
                transpose_block::<V, LANES, false>(from, starts, at, to, first, bounds);
            }
        }
        // No closure, as the compiler does not always inline those into functions of an instruction set.
        let mut at = ahead;
        while at <= last {
            transpose_block::<V, LANES, true>(from, starts, at, to, first, bounds);
            at += LANES;
        }
        V::after_streams();
    }
}

/// Transposes the `LANES` pixels from pixel `at` on.
///
/// # Safety
/// As [`pixels_to_rows`]. There are `LANES` starts from `at` on. If `STREAMED`, all rows are
/// aligned there.
#[inline(always)]
unsafe fn transpose_block<V: Vector, const LANES: usize, const STREAMED: bool>(
    from: &[V::Lane],
    starts: &[usize],
    at: usize,
    to: &mut [&mut [V::Lane]],
    first: usize,
    bounds: Option<Bounds<V::Lane>>,
) {
    // SAFETY: this function's contract.
    unsafe {
        // Interleaving as many vectors as there are lanes is a transpose.
        let from = from.as_ptr();
        // No closures, as the compiler does not always inline them.
        let mut columns = [V::load(from.add(*starts.get_unchecked(at))); LANES];
        for (i, column) in columns.iter_mut().enumerate().skip(1) {
            *column = V::load(from.add(*starts.get_unchecked(at + i)));
        }
        store_rows::<V, LANES, STREAMED>(interleave(clamp_all(columns, bounds)), to, first + at);
    }
}

/// The number of elements before the first one whose address is a multiple of a vector's size.
#[inline(always)]
fn before_aligned<V: Vector>(row: &[V::Lane]) -> usize {
    (row.as_ptr().addr() / size_of::<V::Lane>()).wrapping_neg() % V::LANES
}

/// Writes one vector to each existing row, at element `at`.
///
/// # Safety
/// The CPU has `V`'s instruction set. Each row holds a vector there. If `STREAMED`, it is aligned.
#[inline(always)]
unsafe fn store_rows<V: Vector, const LANES: usize, const STREAMED: bool>(
    columns: [V; LANES],
    to: &mut [&mut [V::Lane]],
    at: usize,
) {
    let store = |(row, column): (&mut &mut [V::Lane], V)| {
        // SAFETY: this function's contract.
        unsafe {
            let to = row.as_mut_ptr().add(at);
            if STREAMED { column.stream(to) } else { column.store(to) }
        }
    };
    match <&mut [&mut [V::Lane]; LANES]>::try_from(&mut *to) {
        // The compiler knows this number of rows, so the columns stay in registers.
        Ok(to) => to.iter_mut().zip(columns).for_each(store),
        Err(_) => to.iter_mut().zip(columns).for_each(store),
    }
}

/// `to[r·to_step + c] = from[c·from_step + r]` for `rows` × `columns`. Columns after the last one,
/// up to a whole vector, receive copies of the last one.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are at least one row and one column. `from` holds all
/// elements that are read, at least a vector per column. `to` holds whole vectors of columns for
/// each row.
#[inline(always)]
pub(crate) unsafe fn rows_to_pixels<V: Vector, const LANES: usize>(
    from: &[V::Lane],
    from_step: usize,
    (rows, columns): (usize, usize),
    to: &mut [V::Lane],
    to_step: usize,
) {
    for c in (0..columns).step_by(LANES) {
        for at in covering(rows.max(LANES), LANES) {
            // SAFETY: a transpose ends where the rows do, or there are fewer rows than lanes and
            // `from` holds a vector per column. Column indices are clamped to the last column. The
            // rest is this function's contract.
            unsafe {
                let from = from.as_ptr().add(c * from_step + at);
                let mut pixels = [V::load(from); LANES];
                if c + LANES <= columns {
                    for (i, pixel) in pixels.iter_mut().enumerate().skip(1) {
                        *pixel = V::load(from.add(i * from_step));
                    }
                } else {
                    for (i, pixel) in pixels.iter_mut().enumerate().skip(1) {
                        *pixel = V::load(from.add(i.min(columns - 1 - c) * from_step));
                    }
                }
                let pixels = interleave(pixels);
                let to = to.as_mut_ptr().add(at * to_step + c);
                if (1..=LANES / 4).contains(&(at % LANES)) {
                    // The last transpose has few rows that no other one has. Storing only those
                    // lets the compiler skip the others.
                    let few = pixels.into_iter().enumerate().skip(LANES - LANES / 4);
                    few.for_each(|(j, pixel)| pixel.store(to.add(j * to_step)));
                } else if rows >= LANES {
                    // The compiler knows this number of rows, so the transpose stays in registers.
                    pixels.into_iter().enumerate().for_each(|(j, pixel)| pixel.store(to.add(j * to_step)));
                } else {
                    pixels.into_iter().enumerate().take(rows).for_each(|(j, pixel)| pixel.store(to.add(j * to_step)));
                }
            }
        }
    }
}

/// `to[i·n + r] = from[r][i]` for the `n` rows of `from`.
///
/// # Safety
/// The CPU has `V`'s instruction set. `S` is a power of two up to sixteen. `n` is more than `S / 2`
/// and at most `S`. Each row holds at least `to.len() / n` elements. `n` divides the length of
/// `to`.
#[inline(always)]
pub(crate) unsafe fn interleaved<V: Vector, const S: usize>(from: &[&[V::Lane]], to: &mut [V::Lane]) {
    let rows = from.len();
    let count = to.len() / rows;
    if count < V::LANES || (rows < S && V::LANES < S) {
        for (i, pixel) in to.chunks_exact_mut(rows).enumerate() {
            pixel.iter_mut().zip(from).for_each(|(to, row)| *to = row[i]);
        }
        return;
    }
    let present = Present::new::<V>(S, rows);
    for at in covering(count, V::LANES) {
        // SAFETY: by this function's contract, as vectors end where the rows do. A store may overwrite elements behind
        // its own, which the next store writes again.
        unsafe {
            let run: [V; S] =
                interleave(std::array::from_fn(|r| V::load(from.get_unchecked(r.min(rows - 1)).as_ptr().add(at))));
            present.store(run, &mut to[at * rows..]);
        }
    }
}

/// The most rows of [`Present`].
const MOST_ROWS: usize = 16;

/// The lanes of a register of `S` interleaved rows that belong to rows that are not missing.
pub(super) struct Present {
    /// Whether no row is missing. Then the lanes are all lanes.
    pub all: bool,
    /// Their number.
    count: usize,
    /// Their indices, in ascending order.
    lanes: &'static [u32; MOST_LANES],
}

impl Present {
    /// The lanes of `rows` rows that are interleaved with those that are missing to `interleaved`, a power of two.
    ///
    /// # Panics
    /// There are more than [`MOST_ROWS`].
    #[inline(always)]
    pub fn new<V: Vector>(interleaved: usize, rows: usize) -> Present {
        const { assert!(V::LANES <= MOST_LANES) }
        let lanes = &const { &present(V::LANES) }[rows];
        Present { all: interleaved == rows, count: V::LANES / interleaved * rows, lanes }
    }

    /// Writes as much of a sequence of interleaved registers as `to` has room for. Elements of `to` after the
    /// sequence may be overwritten.
    ///
    /// # Safety
    /// As [`Vector`]'s methods.
    #[inline(always)]
    pub unsafe fn store<V: Vector, const S: usize>(&self, run: [V; S], to: &mut [V::Lane]) {
        if self.all {
            // SAFETY: this function's contract.
            return unsafe { store_run(run, to) };
        }
        for (v, lanes) in run.into_iter().enumerate() {
            let first = v * self.count;
            let left = to.len().saturating_sub(first);
            let at = to.as_mut_ptr().wrapping_add(first);
            // SAFETY: this function's contract, and `to` has `left` elements from `at` on. With a row missing, less
            // than all lanes are present.
            unsafe {
                let lanes = lanes.permute_lanes(self.lanes.as_ptr());
                match left {
                    0 => return,
                    _ if left < V::LANES => lanes.store_first(left.min(self.count), at),
                    _ => lanes.store(at),
                }
            }
        }
    }
}

/// The lanes of each number of rows up to [`MOST_ROWS`], interleaved with those that are missing to a power of two.
const fn present(lanes: usize) -> [[u32; MOST_LANES]; MOST_ROWS + 1] {
    let mut present = [[0; MOST_LANES]; MOST_ROWS + 1];
    let mut rows = 1;
    while rows <= MOST_ROWS {
        let interleaved = rows.next_power_of_two();
        let mut lane = 0;
        while lane < lanes / interleaved * rows {
            present[rows][lane] = (lane / rows * interleaved + lane % rows) as u32;
            lane += 1;
        }
        rows += 1;
    }
    present
}

/// The largest step of [`strided`].
pub(crate) const MOST_STEP: usize = 8;

/// Of each step up to [`MOST_STEP`], the lanes of a register that are spread so that elements `step` apart become
/// `step.next_power_of_two()` apart.
const fn spread(lanes: usize) -> [[u32; MOST_LANES]; MOST_STEP + 1] {
    let mut spread = [[0; MOST_LANES]; MOST_STEP + 1];
    let mut step = 1;
    while step <= MOST_STEP {
        let apart = step.next_power_of_two();
        let mut lane = 0;
        while lane < lanes {
            spread[step][lane] = (lane / apart * step) as u32;
            lane += 1;
        }
        step += 1;
    }
    spread
}

/// `to[i] = from[i·step]`.
///
/// # Safety
/// The CPU has `V`'s instruction set. `S` is a power of two up to [`MOST_STEP`]. `step` is more than `S / 2` and at most
/// `S`. `from` holds all elements that are read.
#[inline(always)]
pub(crate) unsafe fn strided<V: Vector, const S: usize>(from: &[V::Lane], step: usize, to: &mut [V::Lane]) {
    let mut at = 0;
    // With fewer of the elements in each register, they are faster one by one. So are a few at the end.
    if S == 2 || 2 * S <= V::LANES {
        // Each of `S` registers has `LANES / S` of the elements. They are spread so that they are `S` lanes apart.
        let of_register = V::LANES / S * step;
        let lanes = const { &spread(V::LANES) }[step].as_ptr();
        let reach = (S - 1) * of_register + V::LANES;
        while to.len() - at >= V::LANES / 2 && at * step + reach <= from.len() {
            // SAFETY: the registers are within `from`. The lanes that are read are within a register, as `step` is
            // at most `S`. Results are stored as far as `to` goes.
            unsafe {
                let source = from.as_ptr().add(at * step);
                let mut registers = [V::load(source); S];
                for (r, register) in registers.iter_mut().enumerate() {
                    *register = V::load(source.add(r * of_register));
                }
                if step < S {
                    for register in &mut registers {
                        *register = register.permute_lanes(lanes);
                    }
                }
                let mut left = S;
                while left > 1 {
                    left /= 2;
                    for r in 0..left {
                        [registers[r], _] = registers[2 * r].unzip(registers[2 * r + 1]);
                    }
                }
                let target = to.as_mut_ptr().add(at);
                match to.len() - at {
                    rest if rest < V::LANES => registers[0].store_first(rest, target),
                    _ => registers[0].store(target),
                }
            }
            at = (at + V::LANES).min(to.len());
        }
    }
    for at in at..to.len() {
        to[at] = from[at * step];
    }
}

/// `to[i·to_step + j] = from[i·from_step + j]` for `count` pixels `i` of `size` elements.
///
/// Elements between the pixels keep their values. With `streamed`, pixels of whole aligned vectors
/// are stored past the caches.
///
/// # Safety
/// The CPU has `V`'s instruction set. `from` and `to` hold the pixels.
#[inline(always)]
pub(crate) unsafe fn copy_pixels<V: Vector>(
    from: &[V::Lane],
    from_step: usize,
    (count, size): (usize, usize),
    (to, to_step): (&mut [V::Lane], usize),
    bounds: Option<Bounds<V::Lane>>,
    streamed: bool,
) {
    let whole = [before_aligned::<V>(to), to_step % V::LANES, size % V::LANES] == [0; 3];
    if streamed && V::STREAMS && whole {
        // SAFETY: pixels are whole vectors. They are within the slices by this function's contract,
        // and aligned by the condition above.
        unsafe {
            for i in 0..count {
                let (from, to) = (from.as_ptr().add(i * from_step), to.as_mut_ptr().add(i * to_step));
                for at in (0..size).step_by(V::LANES) {
                    let [pixel] = clamp_all([V::load(from.add(at))], bounds);
                    pixel.stream(to.add(at));
                }
            }
            V::after_streams();
        }
        return;
    }
    if size < V::LANES && !V::MASKS {
        // Pixels without gaps between them are written as whole vectors. The next pixels are written over their
        // other lanes, and so must be there.
        let vectors = |len: usize, step: usize| len.checked_sub(V::LANES).map_or(0, |rest| rest / step + 1);
        let whole = if to_step == size { vectors(count * size, size).min(vectors(from.len(), from_step)) } else { 0 };
        for i in 0..whole {
            // SAFETY: the vectors of the first `whole` pixels are within `from` and within the `count` pixels of
            // `to`, by `vectors`.
            unsafe {
                let [pixel] = clamp_all([V::load(from.as_ptr().add(i * from_step))], bounds);
                pixel.store(to.as_mut_ptr().add(i * to_step));
            }
        }
        for (to, from) in to.chunks_mut(to_step).zip(from.chunks(from_step)).take(count).skip(whole) {
            let pixel = to.iter_mut().zip(from).take(size);
            pixel.for_each(|(to, from)| *to = bounds.map_or(*from, |bounds| bounds.clamp(*from)));
        }
        return;
    }
    for i in 0..count {
        // SAFETY: only a pixel's own elements are read and written, and the slices hold them by
        // this function's contract.
        unsafe {
            let (from, to) = (from.as_ptr().add(i * from_step), to.as_mut_ptr().add(i * to_step));
            if size < V::LANES {
                let [pixel] = clamp_all([V::load_some(from, ((1u32 << size) - 1) as u16)], bounds);
                pixel.store_first(size, to);
            } else {
                for at in covering(size, V::LANES) {
                    let [pixel] = clamp_all([V::load(from.add(at))], bounds);
                    pixel.store(to.add(at));
                }
            }
        }
    }
}

/// `to[i·step + j] = from[starts[j] + i]` for `count` positions `i`: rows become pixels, `step`
/// elements apart.
///
/// Elements between the pixels keep their values.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are one to `LANES` starts. From each of them on, `from`
/// holds `count` elements rounded up to whole vectors. From each pixel on, `to` holds as many
/// elements as there are starts.
#[inline(always)]
pub(crate) unsafe fn indexed_rows_to_pixels<V: Vector, const LANES: usize>(
    from: &[V::Lane],
    starts: &[usize],
    count: usize,
    to: &mut [V::Lane],
    step: usize,
) {
    for p in (0..count).step_by(LANES) {
        // SAFETY: whole vectors may be read by this function's contract. Per pixel, as many
        // elements are written as there are starts.
        unsafe {
            // A loop, as above.
            let mut rows = [V::splat(V::Lane::ZERO); LANES];
            for (j, row) in rows.iter_mut().enumerate() {
                *row = V::load(from.as_ptr().add(*starts.get_unchecked(j.min(starts.len() - 1)) + p));
            }
            for (i, pixel) in interleave(rows).into_iter().enumerate().take(count - p) {
                let to = to.as_mut_ptr().add((p + i) * step);
                if starts.len() == LANES { pixel.store(to) } else { pixel.store_first(starts.len(), to) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::vector::Lanes;
    use std::cell::RefCell;

    const LANES: usize = 4;

    thread_local! {
        /// Addresses of elements that were streamed and not fenced yet.
        static STREAMED: RefCell<Vec<usize>> = const { RefCell::new(vec![]) };
    }

    /// A portable vector that panics on an access to streamed memory before the fence.
    #[derive(Clone, Copy)]
    struct Watched(Lanes<f32, LANES>);

    fn touch(from: *const f32, count: usize) {
        let streamed =
            STREAMED.with_borrow(|streamed| (0..count).any(|i| streamed.contains(&from.wrapping_add(i).addr())));
        assert!(!streamed, "what is streamed is touched before the fence");
    }

    // SAFETY: each method is that of `Lanes`, after some checks.
    unsafe impl Vector for Watched {
        type Lane = f32;
        const LANES: usize = LANES;
        const REGISTERS: usize = 16;
        const STREAMS: bool = true;

        unsafe fn splat(value: f32) -> Self {
            // SAFETY: this method's contract.
            Watched(unsafe { Lanes::splat(value) })
        }

        unsafe fn load(from: *const f32) -> Self {
            touch(from, LANES);
            // SAFETY: this method's contract.
            Watched(unsafe { Lanes::load(from) })
        }

        unsafe fn store(self, to: *mut f32) {
            touch(to, LANES);
            // SAFETY: this method's contract.
            unsafe { self.0.store(to) }
        }

        unsafe fn stream(self, to: *mut f32) {
            assert!(to.addr().is_multiple_of(LANES * size_of::<f32>()), "a stream is not aligned");
            STREAMED.with_borrow_mut(|streamed| streamed.extend((0..LANES).map(|i| to.wrapping_add(i).addr())));
            // SAFETY: this method's contract.
            unsafe { self.0.store(to) }
        }

        unsafe fn after_streams() {
            STREAMED.with_borrow_mut(Vec::clear);
        }

        unsafe fn store_first(self, count: usize, to: *mut f32) {
            touch(to, count);
            // SAFETY: this method's contract.
            unsafe { self.0.store_first(count, to) }
        }

        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: this method's contract.
            Watched(unsafe { self.0.mul_add(a.0, b.0) })
        }

        unsafe fn plus(self, other: Self) -> Self {
            // SAFETY: this method's contract.
            Watched(unsafe { self.0.plus(other.0) })
        }

        unsafe fn minus(self, other: Self) -> Self {
            // SAFETY: this method's contract.
            Watched(unsafe { self.0.minus(other.0) })
        }

        unsafe fn clamp(self, low: Self, high: Self) -> Self {
            // SAFETY: this method's contract.
            Watched(unsafe { self.0.clamp(low.0, high.0) })
        }

        unsafe fn zip(self, other: Self) -> [Self; 2] {
            // SAFETY: this method's contract.
            unsafe { self.0.zip(other.0) }.map(Watched)
        }

        unsafe fn unzip(self, other: Self) -> [Self; 2] {
            // SAFETY: this method's contract.
            unsafe { self.0.unzip(other.0) }.map(Watched)
        }

        unsafe fn permute_lanes(self, lanes: *const u32) -> Self {
            // SAFETY: this method's contract.
            Watched(unsafe { self.0.permute_lanes(lanes) })
        }
    }

    /// The part of `buffer` that begins `ahead` elements before a multiple of a vector's size.
    fn from_alignment(buffer: &mut [f32], ahead: usize) -> &mut [f32] {
        let skip = before_aligned::<Watched>(buffer) + (LANES - ahead) % LANES;
        &mut buffer[skip..]
    }

    fn is_fenced() -> bool {
        STREAMED.with_borrow(Vec::is_empty)
    }

    #[test]
    fn no_row_is_touched_between_a_stream_and_the_fence() {
        let mut any_streamed = false;
        for (count, ahead) in (LANES..4 * LANES + 2).flat_map(|count| (0..LANES).map(move |ahead| (count, ahead))) {
            let from: Vec<f32> = (0..count * LANES).map(|i| i as f32).collect();
            let starts: Vec<usize> = (0..count).map(|i| i * LANES).collect();
            let mut buffers = vec![vec![-1.0; count + 2 * LANES]; LANES];
            let mut rows: Vec<&mut [f32]> =
                buffers.iter_mut().map(|buffer| &mut from_alignment(buffer, ahead)[..count]).collect();
            // SAFETY: the portable vector needs no instruction set. `from` holds a vector from each
            // start on, and rows have one element per start.
            unsafe { pixels_to_rows::<Watched, LANES>(&from, &starts, &mut rows, 0, None, true) };
            assert!(is_fenced(), "{count} pixels");
            for (j, row) in rows.iter().enumerate() {
                assert!(
                    (0..count).all(|i| row[i] == from[i * LANES + j]),
                    "{count} pixels, {ahead} before aligned ones"
                );
            }
            any_streamed |= before_aligned::<Watched>(rows[0]) + LANES <= count;
        }
        assert!(any_streamed);
    }

    #[test]
    fn no_pixel_is_touched_between_a_stream_and_the_fence() {
        for (count, size, gap) in [(1, LANES, 0), (5, LANES, 0), (3, 2 * LANES, LANES), (4, 2 * LANES, 1), (4, 3, 1)] {
            let (from_step, to_step) = (size + 1, size + gap);
            let from: Vec<f32> = (0..count * from_step).map(|i| i as f32).collect();
            let mut buffer = vec![-1.0; count * to_step + 2 * LANES];
            let to = from_alignment(&mut buffer, 0);
            // SAFETY: the portable vector needs no instruction set. Both slices hold the pixels.
            unsafe { copy_pixels::<Watched>(&from, from_step, (count, size), (to, to_step), None, true) };
            assert!(is_fenced());
            for (i, j) in (0..count).flat_map(|i| (0..size).map(move |j| (i, j))) {
                assert_eq!(to[i * to_step + j], from[i * from_step + j]);
            }
        }
    }

    /// Checks that the checks of the other tests work.
    #[test]
    #[should_panic(expected = "what is streamed is touched before the fence")]
    fn a_touch_before_the_fence_is_seen() {
        let mut buffer = [0f32; 4 * LANES];
        let to = from_alignment(&mut buffer, 0).as_mut_ptr();
        // SAFETY: two overlapping vectors, both within the array.
        unsafe {
            Watched::splat(1.0).stream(to);
            Watched::splat(2.0).store(to.add(LANES - 1));
        }
    }
}
