//! Sums over a window that moves down the rows of a plane: the inner loop of depthwise
//! convolutions.
//!
//! Several rows of taps are summed in one of two ways. Either all rows of results that a row of the
//! source serves are in progress ([`rolling_rows`]), or two are ([`row_pairs`]). The first reads less.
//! The second has more sums that do not wait for each other, if there are few registers for seven
//! rows, or one column of taps.

// The compiler unrolls index loops over constant ranges into registers.
#![expect(clippy::needless_range_loop)]

use crate::kernel::bounds::{Bounds, clamp_all};
use crate::simd::vector::Vector;
use std::ops::Range;

/// The operands of the rows of results.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a, T> {
    /// The elements.
    pub source: &'a [T],
    /// Elements between rows of the source. Each row of taps reads the next row of the source.
    pub pitch: usize,
    /// Rows of the source from a row of results to the next, and elements within a row from a
    /// result to the next: one or two.
    ///
    /// With several rows of taps, both are equal. With a single row of taps, the first is one.
    pub steps: (usize, usize),
    /// The taps of a row, as offsets added to an index.
    pub columns: &'a [usize],
    /// `[row of taps][column]`.
    pub weights: &'a [T],
    /// The initial value of sums.
    pub bias: T,
    /// The bounds of results.
    pub bounds: Option<Bounds<T>>,
    /// The limits of the source, if taps also read outside of it. None if it holds all that they
    /// read.
    pub edges: Option<Edges>,
}

/// The part of a window's rows that exists. All other elements are taken to be zero and are not
/// read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edges {
    /// Index in the source of the window's first row at offset zero. This element need not exist.
    pub first: isize,
    /// The first row that exists, and one past the last.
    pub rows: (usize, usize),
    /// The column at offset zero. The columns that exist begin at zero.
    pub column: isize,
    /// The number of columns that exist.
    pub width: usize,
}

/// The most tap columns of a window with edges and several rows of taps.
pub(crate) const MOST_COLUMNS: usize = 8;

/// The most taps of a single row whose weights stay in registers.
pub(crate) const FEW_TAPS: usize = 5;

impl Edges {
    /// The lanes that exist of the vector at an offset in a row.
    #[inline(always)]
    fn lanes_at<V: Vector>(&self, offset: usize) -> u16 {
        let at = self.column + offset as isize;
        let begin = (-at).clamp(0, V::LANES as isize);
        let end = (self.width as isize - at).clamp(begin, V::LANES as isize);
        ((1u32 << end) - (1u32 << begin)) as u16
    }

    /// The vectors of a row of results for which all elements exist that a single row of taps reads.
    ///
    /// Elements of adjacent results are `every` apart.
    #[inline(always)]
    fn inside<V: Vector>(&self, columns: &[usize], results: &Results, every: usize) -> Range<usize> {
        let (least, most) = (columns.iter().min().map_or(0, |c| *c), columns.iter().max().map_or(0, |c| *c));
        let offset = |vector: usize| self.column + (every * VectorBlock::<1>::new::<V>(results, vector).first) as isize;
        let (mut begin, mut end) = (0, results.width.div_ceil(V::LANES));
        while begin < end && offset(begin) + (least as isize) < 0 {
            begin += 1;
        }
        while begin < end && offset(end - 1) + (most + every * V::LANES) as isize > self.width as isize {
            end -= 1;
        }
        begin..end
    }

    /// The lanes that exist, per tap column, vector of an accumulator block, and half of the
    /// elements read for that vector.
    #[inline(always)]
    fn lanes<V: Vector, const STEP: usize, const U: usize>(
        &self,
        columns: &[usize],
        block: VectorBlock<U>,
    ) -> [[[u16; 2]; U]; MOST_COLUMNS] {
        let mut lanes = [[[0; 2]; U]; MOST_COLUMNS];
        for (lanes, column) in lanes.iter_mut().zip(columns) {
            for (u, of_halves) in lanes.iter_mut().enumerate() {
                for (half, lanes) in of_halves.iter_mut().enumerate().take(STEP) {
                    *lanes = self.lanes_at::<V>(column + STEP * block.at::<V>(u) + half * V::LANES);
                }
            }
        }
        lanes
    }
}

/// Rows of results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Results {
    /// Number of rows.
    pub rows: usize,
    /// Results per row.
    pub width: usize,
    /// Elements from the start of a row to that of the next.
    pub step: usize,
}

/// `to[r·step + i] = bias + Σ weight[k][c]·source[(r·down + k)·pitch + columns[c] + i·every]` for
/// each row `r` and each `i` in `0..width`.
///
/// `steps` are `(down, every)`. Elements between rows keep their values.
/// Each row of the source is read once for the `K` rows of taps. At most `U` vectors are computed
/// together.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are `K` rows of weights. For each row and tap, `source`
/// holds `every` elements per result, for at least as many results as a vector has lanes. With
/// edges, `source` holds all rows and columns that exist instead. If `K` is one, all rows of such a
/// window exist, else `V` loads parts. `to` holds all rows.
#[inline(always)]
pub(crate) unsafe fn window<V: Vector, const K: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    to: &mut [V::Lane],
) {
    let vectors = results.width.div_ceil(V::LANES);
    let inside = match window.edges {
        Some(edges) if K == 1 => edges.inside::<V>(window.columns, results, window.steps.1),
        _ => 0..vectors,
    };
    for at in (0..inside.start).chain(inside.end..vectors) {
        // SAFETY: this function's contract.
        unsafe { single_tap_row_at_edges::<V>(window, results, at, to) }
    }
    if K == 1 && window.steps.1 == 1 {
        // SAFETY: this function's contract. All elements of these vectors exist.
        unsafe {
            match window.columns.len() {
                1 => return few_taps::<V, 1>(window, results, inside, to),
                2 => return few_taps::<V, 2>(window, results, inside, to),
                3 => return few_taps::<V, 3>(window, results, inside, to),
                4 => return few_taps::<V, 4>(window, results, inside, to),
                FEW_TAPS => return few_taps::<V, FEW_TAPS>(window, results, inside, to),
                _ => {}
            }
        }
    }
    // With few registers, planes with edges are small, and have few vectors.
    let most = match window.edges.is_some() && window.steps.1 == 1 && is_square::<K>(window.columns) {
        true => most_of_square::<V, K, U>(),
        false => U,
    };
    let (mut at, mut blocks) = (inside.start, EvenBlocks::new(inside.len(), most));
    while at < inside.end {
        let count = blocks.next();
        // SAFETY: this function's contract. With a single row of taps, all elements of these vectors exist.
        unsafe {
            match count {
                1 => rows_of_block::<V, K, 1>(window, results, at, to),
                2 if U > 2 => rows_of_block::<V, K, 2>(window, results, at, to),
                3 if U > 3 => rows_of_block::<V, K, 3>(window, results, at, to),
                _ => rows_of_block::<V, K, U>(window, results, at, to),
            }
        }
        at += count;
    }
}

/// Computes an accumulator block: the `U` vectors from vector `at` on, for all rows.
///
/// # Safety
/// As [`window`]. Rows have `at + U` vectors.
#[inline(always)]
unsafe fn rows_of_block<V: Vector, const K: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    at: usize,
    to: &mut [V::Lane],
) {
    let block = VectorBlock::<U>::new::<V>(results, at);
    // SAFETY: this function's contract.
    unsafe {
        match (K, window.steps.1) {
            (1, 1) => single_tap_row::<V, 1, U, false>(window, results, block, to),
            (1, _) => single_tap_row::<V, 2, U, false>(window, results, block, to),
            (_, 1) => with_or_without_edges::<V, 1, K, K, U>(window, results, block, to),
            // With step two, half as many rows of results are in progress.
            (3, _) => with_or_without_edges::<V, 2, 3, 2, U>(window, results, block, to),
            (5, _) => with_or_without_edges::<V, 2, 5, 3, U>(window, results, block, to),
            _ => with_or_without_edges::<V, 2, 7, 4, U>(window, results, block, to),
        }
    }
}

/// Whether there are as many tap columns as rows of taps, and they are adjacent.
#[inline(always)]
fn is_square<const K: usize>(columns: &[usize]) -> bool {
    columns.len() == K && columns.windows(2).all(|pair| pair[0] + 1 == pair[1])
}

/// The most vectors of an accumulator block whose sums fit in registers together with the weights of a square of taps.
const fn most_of_square<V: Vector, const K: usize, const U: usize>() -> usize {
    let left = V::REGISTERS.saturating_sub(K * K + 1) / K;
    if left == 0 || left > U { U } else { left }
}

/// Computes all rows of an accumulator block, with edges or without, for as many tap columns as rows or others.
///
/// # Safety
/// As [`rolling_rows`].
#[inline(always)]
unsafe fn with_or_without_edges<V: Vector, const STEP: usize, const K: usize, const J: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    block: VectorBlock<U>,
    to: &mut [V::Lane],
) {
    // Constants: other vectors have no code for edges, and a number of columns is a constant in loops.
    let edges = V::LOADS_PARTS && window.edges.is_some();
    // Otherwise the compiler keeps the weights in registers and the sums in memory.
    let fits = const { K * K + J * U < V::REGISTERS };
    // SAFETY: this function's contract.
    unsafe {
        match (K, fits && is_square::<K>(window.columns), edges) {
            (3, true, true) => rolling_rows::<V, STEP, K, J, U, true, 3>(window, results, block, to),
            (3, true, false) => rolling_rows::<V, STEP, K, J, U, false, 3>(window, results, block, to),
            (_, _, true) => rolling_rows::<V, STEP, K, J, U, true, 0>(window, results, block, to),
            (_, _, false) => rolling_rows::<V, STEP, K, J, U, false, 0>(window, results, block, to),
        }
    }
}

/// Computes a range of vectors of all rows for a single row of `T` taps, whose weights stay in registers.
///
/// # Safety
/// As [`window`] with `K` of one and steps of one. There are `T` taps, and all elements exist that they read for these
/// vectors.
#[inline(always)]
unsafe fn few_taps<V: Vector, const T: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    vectors: Range<usize>,
    to: &mut [V::Lane],
) {
    let first = window.source.as_ptr().wrapping_offset(window.edges.map_or(0, |edges| edges.first));
    // SAFETY: this function's contract.
    unsafe {
        let (mut weights, mut columns) = ([V::splat(window.bias); T], [0; T]);
        for t in 0..T {
            (weights[t], columns[t]) = (V::splat(window.weights[t]), window.columns[t]);
        }
        // Each vector before this one begins a whole number of vectors after its row does.
        let whole = vectors.end.min(results.width / V::LANES);
        for row in 0..results.rows {
            let source = first.wrapping_add(row * window.pitch);
            let mut at = vectors.start;
            while at + 4 <= whole {
                let offset = at * V::LANES;
                let source = source.wrapping_add(offset);
                let sums = sums_of_few_taps::<V, T, 4>(source, &columns, &weights, window);
                for u in 0..4 {
                    sums[u].store(to.as_mut_ptr().add(row * results.step + offset + u * V::LANES));
                }
                at += 4;
            }
            while at < vectors.end {
                let block = VectorBlock::<1>::new::<V>(results, at);
                let source = source.wrapping_add(block.first);
                block.store(sums_of_few_taps::<V, T, 1>(source, &columns, &weights, window), results, row, to);
                at += 1;
            }
        }
    }
}

/// The results of `U` vectors of a row, of which `source` holds all elements that `T` taps read.
///
/// # Safety
/// The CPU has `V`'s instruction set, and the elements exist.
#[inline(always)]
unsafe fn sums_of_few_taps<V: Vector, const T: usize, const U: usize>(
    source: *const V::Lane,
    columns: &[usize; T],
    weights: &[V; T],
    window: &Window<V::Lane>,
) -> [V; U] {
    // SAFETY: this function's contract.
    unsafe {
        let mut sums = [V::splat(window.bias); U];
        for t in 0..T {
            let source = source.wrapping_add(columns[t]);
            for u in 0..U {
                sums[u] = sums[u].mul_add(V::load(source.wrapping_add(u * V::LANES)), weights[t]);
            }
        }
        clamp_all(sums, window.bounds)
    }
}

/// Computes vector `at` of all rows for a single row of taps, which also reads elements that do not exist.
///
/// # Safety
/// As [`window`]. The window has edges.
#[inline(always)]
unsafe fn single_tap_row_at_edges<V: Vector>(
    window: &Window<V::Lane>,
    results: &Results,
    at: usize,
    to: &mut [V::Lane],
) {
    let block = VectorBlock::<1>::new::<V>(results, at);
    // SAFETY: this function's contract.
    unsafe {
        match window.steps.1 {
            1 => single_tap_row::<V, 1, 1, true>(window, results, block, to),
            _ => single_tap_row::<V, 2, 1, true>(window, results, block, to),
        }
    }
}

/// Computes all rows of an accumulator block for a single row of taps.
///
/// # Safety
/// As [`rows_of_block`]. `EVERY` is the window's. If not `EDGES`, all elements that are read exist, else the window has
/// edges.
#[inline(always)]
unsafe fn single_tap_row<V: Vector, const EVERY: usize, const U: usize, const EDGES: bool>(
    window: &Window<V::Lane>,
    results: &Results,
    block: VectorBlock<U>,
    to: &mut [V::Lane],
) {
    // SAFETY: this function's contract.
    unsafe {
        // A single row of taps has few independent sums, so several rows of results are computed
        // together.
        let mut row = 0;
        while U < 4 && row + 4 <= results.rows {
            side_by_side::<V, EVERY, 4, U, EDGES>(window, results, row, block, to);
            row += 4;
        }
        while row + 2 <= results.rows {
            side_by_side::<V, EVERY, 2, U, EDGES>(window, results, row, block, to);
            row += 2;
        }
        if row < results.rows {
            side_by_side::<V, EVERY, 1, U, EDGES>(window, results, row, block, to);
        }
    }
}

/// Accumulator blocks of about the same number of vectors, since a narrow one waits for its own sums.
#[derive(Clone, Copy)]
struct EvenBlocks {
    /// Vectors of each block, but for the first blocks.
    least: usize,
    /// The number of blocks before those, of one vector more.
    longer: usize,
}

impl EvenBlocks {
    #[inline(always)]
    fn new(vectors: usize, most: usize) -> Self {
        if vectors <= most {
            return EvenBlocks { least: vectors, longer: 0 };
        }
        let blocks = vectors.div_ceil(most);
        EvenBlocks { least: vectors / blocks, longer: vectors % blocks }
    }

    /// The vectors of the next block.
    #[inline(always)]
    fn next(&mut self) -> usize {
        let is_longer = self.longer > 0;
        self.longer -= usize::from(is_longer);
        self.least + usize::from(is_longer)
    }
}

/// The offsets of an accumulator block's `U` vectors within a row.
///
/// The last vector of a row ends where the row does. If the row is not whole vectors, it overlaps
/// the one before.
#[derive(Clone, Copy)]
struct VectorBlock<const U: usize> {
    first: usize,
    /// Offset of the last vector, relative to the first.
    last: usize,
}

impl<const U: usize> VectorBlock<U> {
    fn new<V: Vector>(results: &Results, at: usize) -> Self {
        let end = results.width.saturating_sub(V::LANES);
        let first = (at * V::LANES).min(end);
        VectorBlock { first, last: ((at + U - 1) * V::LANES).min(end) - first }
    }

    /// The offset of vector `u`.
    #[inline(always)]
    fn at<V: Vector>(self, u: usize) -> usize {
        self.first + if u + 1 == U { self.last } else { u * V::LANES }
    }

    /// # Safety
    /// The CPU has `V`'s instruction set. `to` holds all rows of results.
    #[inline(always)]
    unsafe fn store<V: Vector>(self, sums: [V; U], results: &Results, row: usize, to: &mut [V::Lane]) {
        let Results { rows, width, step } = *results;
        for u in 0..U {
            let begin = row * step + self.at::<V>(u);
            // SAFETY: in rows of at least one vector, every store is within the row. In shorter
            // rows, a whole vector is stored only if it is within contiguous rows of `to`, and it
            // then covers only rows that are written later. Otherwise only `width` elements are
            // stored.
            unsafe {
                if width >= V::LANES || (step == width && begin + V::LANES <= rows * width) {
                    sums[u].store(to.as_mut_ptr().add(begin));
                } else {
                    sums[u].store_first(width, to.as_mut_ptr().add(begin));
                }
            }
        }
    }
}

/// Computes all rows of an accumulator block, one row of the source at a time.
///
/// Each row of the source serves the `K` rows of taps. `J` rows of results are in progress at any
/// time.
///
/// # Safety
/// As [`rows_of_block`]. Both steps are `STEP`. `J` is `K / STEP` rounded up. `EDGES` is whether
/// the window has edges. There are `C` adjacent tap columns, or any if `C` is zero.
#[inline(always)]
unsafe fn rolling_rows<
    V: Vector,
    const STEP: usize,
    const K: usize,
    const J: usize,
    const U: usize,
    const EDGES: bool,
    const C: usize,
>(
    window: &Window<V::Lane>,
    results: &Results,
    block: VectorBlock<U>,
    to: &mut [V::Lane],
) {
    let sources = (results.rows - 1) * STEP + K;
    let whole = Edges { first: 0, rows: (0, sources), column: 0, width: 0 };
    let edges = window.edges.unwrap_or(whole);
    let lanes = if EDGES { edges.lanes::<V, STEP, U>(window.columns, block) } else { [[[0; 2]; U]; MOST_COLUMNS] };
    // SAFETY: by this function's contract, every load is within the rows of the source or, with
    // edges, within its existing part. `to` holds the rows.
    unsafe {
        let bias = V::splat(window.bias);
        let first = window.columns.first().map_or(0, |column| *column);
        // The sums of the rows of results `row + 1 - J..=row`.
        let mut sums = [[bias; U]; J];
        for row in 0..results.rows + J - 1 {
            for phase in 0..STEP {
                let at = row * STEP + phase;
                if (STEP > 1 || EDGES) && at >= edges.rows.1 {
                    break;
                }
                if EDGES && at < edges.rows.0 {
                    continue;
                }
                let source = window.source.as_ptr().wrapping_offset(edges.first).wrapping_add(at * window.pitch);
                for c in (0..C).step_by(STEP) {
                    let from = source.wrapping_add(first + c);
                    let follows = STEP == 2 && c + 1 < C;
                    add_column::<V, STEP, K, J, U, EDGES>(
                        window,
                        from,
                        block,
                        (phase, c),
                        follows,
                        &lanes[c],
                        &mut sums,
                    );
                }
                if C > 0 {
                    continue;
                }
                let mut columns = window.columns.iter().enumerate().peekable();
                while let Some((c, column)) = columns.next() {
                    let follows = STEP == 2 && columns.next_if(|(_, next)| **next == column + 1).is_some();
                    let from = source.wrapping_add(*column);
                    let lanes = if EDGES { &lanes[c] } else { &lanes[0] };
                    add_column::<V, STEP, K, J, U, EDGES>(window, from, block, (phase, c), follows, lanes, &mut sums);
                }
            }
            if row + 1 >= J {
                block.store(clamp_all(sums[0], window.bounds), results, row + 1 - J, to);
            }
            for j in 1..J {
                sums[j - 1] = sums[j];
            }
            sums[J - 1] = [bias; U];
        }
    }
}

/// Adds to the sums of rows of results the products of a tap column with a row of the source, from its first element
/// that this column reads on.
///
/// `phase` and `column` tell the weights. If `follows`, the next tap column reads the elements in between.
///
/// # Safety
/// As [`rolling_rows`].
#[inline(always)]
unsafe fn add_column<
    V: Vector,
    const STEP: usize,
    const K: usize,
    const J: usize,
    const U: usize,
    const EDGES: bool,
>(
    window: &Window<V::Lane>,
    source: *const V::Lane,
    block: VectorBlock<U>,
    (phase, column): (usize, usize),
    follows: bool,
    lanes: &[[u16; 2]; U],
    sums: &mut [[V; U]; J],
) {
    // SAFETY: this function's contract.
    unsafe {
        // A loop, as the compiler does not inline a closure over `u` here.
        let mut x = [[V::splat(window.bias); 2]; U];
        for u in 0..U {
            let from = source.wrapping_add(STEP * block.at::<V>(u));
            x[u][0] = load::<V, EDGES>(from, lanes[u][0]);
            if STEP == 2 {
                x[u] = x[u][0].unzip(load::<V, EDGES>(from.wrapping_add(V::LANES), lanes[u][1]));
            }
        }
        for j in 0..J {
            let k = (J - 1 - j) * STEP + phase;
            if k >= K {
                continue;
            }
            let weights = window.weights.as_ptr().add(k * window.columns.len() + column);
            let weight = V::splat(*weights);
            for u in 0..U {
                sums[j][u] = sums[j][u].mul_add(x[u][0], weight);
            }
            if follows {
                let weight = V::splat(*weights.add(1));
                for u in 0..U {
                    sums[j][u] = sums[j][u].mul_add(x[u][1], weight);
                }
            }
        }
    }
}

/// Bytes of a band of rows, whose accumulator blocks are all computed before the next band. Rows are
/// then read and written nearly in the order of memory.
const BAND_BYTES: usize = 4096;

/// As [`window`] with steps of one and any number of rows of taps, with two rows of results in progress.
///
/// # Safety
/// As [`window`], but `V` need not load parts. There are tap columns. With edges, all columns that
/// are read exist.
#[inline(always)]
pub(crate) unsafe fn row_pairs<V: Vector, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    to: &mut [V::Lane],
) {
    let vectors = results.width.div_ceil(V::LANES);
    let blocks = EvenBlocks::new(vectors, U);
    let row_bytes = size_of::<V::Lane>() * results.step.max(window.pitch);
    let band = (BAND_BYTES / row_bytes.max(1)).next_multiple_of(2).max(2);
    for first in (0..results.rows).step_by(band) {
        let rows = first..results.rows.min(first.saturating_add(band));
        let (mut at, mut blocks) = (0, blocks);
        while at < vectors {
            let count = blocks.next();
            let rows = rows.clone();
            // SAFETY: this function's contract.
            unsafe {
                match count {
                    1 => pairs_of_block::<V, 1>(window, results, rows, at, to),
                    2 if U > 2 => pairs_of_block::<V, 2>(window, results, rows, at, to),
                    3 if U > 3 => pairs_of_block::<V, 3>(window, results, rows, at, to),
                    4 if U > 4 => pairs_of_block::<V, 4>(window, results, rows, at, to),
                    5 if U > 5 => pairs_of_block::<V, 5>(window, results, rows, at, to),
                    _ => pairs_of_block::<V, U>(window, results, rows, at, to),
                }
            }
            at += count;
        }
    }
}

/// Computes an accumulator block: the `U` vectors from vector `at` on, for a range of rows.
///
/// # Safety
/// As [`row_pairs`]. Rows have `at + U` vectors.
#[inline(always)]
unsafe fn pairs_of_block<V: Vector, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    rows: Range<usize>,
    at: usize,
    to: &mut [V::Lane],
) {
    let block = VectorBlock::<U>::new::<V>(results, at);
    let mut row = rows.start;
    // SAFETY: this function's contract.
    unsafe {
        while row + 2 <= rows.end {
            sums_of_rows::<V, 2, U>(window, results, row, block, to);
            row += 2;
        }
        if row < rows.end {
            sums_of_rows::<V, 1, U>(window, results, row, block, to);
        }
    }
}

/// Computes `R` rows of an accumulator block from `row` on: one or two.
///
/// # Safety
/// As [`pairs_of_block`]. There are `row + R` rows of results.
#[inline(always)]
unsafe fn sums_of_rows<V: Vector, const R: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    row: usize,
    block: VectorBlock<U>,
    to: &mut [V::Lane],
) {
    let taps = window.weights.len() / window.columns.len();
    // The rows of the source that exist, counted from the first that is read.
    let edges = window.edges.unwrap_or(Edges { first: 0, rows: (0, usize::MAX), column: 0, width: 0 });
    let exist = edges.rows.0.max(row) - row..edges.rows.1.saturating_sub(row).min(R - 1 + taps);
    let source = window.source.as_ptr().wrapping_offset(edges.first).wrapping_add(row * window.pitch + block.first);
    // SAFETY: this function's contract, and only rows of the source that exist are read. Row `r` of results multiplies
    // row `s` of the source by row `s - r` of the weights, where that exists.
    unsafe {
        let mut sums = [[V::splat(window.bias); U]; R];
        // Only the first row of results reads the first row of the source, and only the last one the last.
        for s in exist.start..exist.end.min(if R == 1 { taps } else { 1 }) {
            source_row::<V, U, 1>(window, source, s, s, block, sums.first_chunk_mut().unwrap());
        }
        if R == 2 {
            for s in exist.start.max(1)..exist.end.min(taps) {
                source_row::<V, U, R>(window, source, s, s, block, &mut sums);
            }
            for s in exist.start.max(taps)..exist.end {
                source_row::<V, U, 1>(window, source, s, s - 1, block, sums.last_chunk_mut().unwrap());
            }
        }
        for r in 0..R {
            block.store(clamp_all(sums[r], window.bounds), results, row + r, to);
        }
    }
}

/// Adds to the sums of `R` rows of results the products of row `s` of the source with row `k` of the weights, for the
/// first row of results, and with the row before, for the second.
///
/// # Safety
/// As [`sums_of_rows`]. The row of the source and those of the weights exist.
#[inline(always)]
unsafe fn source_row<V: Vector, const U: usize, const R: usize>(
    window: &Window<V::Lane>,
    source: *const V::Lane,
    s: usize,
    k: usize,
    block: VectorBlock<U>,
    sums: &mut [[V; U]; R],
) {
    let columns = window.columns.len();
    let source = source.wrapping_add(s * window.pitch);
    // SAFETY: this function's contract.
    unsafe {
        for c in 0..columns {
            let from = source.wrapping_add(*window.columns.get_unchecked(c));
            let mut weights = [V::splat(window.bias); R];
            for r in 0..R {
                weights[r] = V::splat(*window.weights.get_unchecked((k - r) * columns + c));
            }
            for u in 0..U {
                let x = V::load(from.wrapping_add(block.at::<V>(u) - block.first));
                for r in 0..R {
                    sums[r][u] = sums[r][u].mul_add(x, weights[r]);
                }
            }
        }
    }
}

/// Loads a vector, or, if `SOME`, some lanes of one.
///
/// # Safety
/// As [`Vector`]'s methods. The elements that are read exist.
#[inline(always)]
unsafe fn load<V: Vector, const SOME: bool>(from: *const V::Lane, lanes: u16) -> V {
    let all = const { ((1u32 << V::LANES) - 1) as u16 };
    // SAFETY: this function's contract.
    unsafe { if SOME && (V::MASKS || lanes != all) { V::load_some(from, lanes) } else { V::load(from) } }
}

/// Computes `R` rows of an accumulator block from `row` on, for a single row of taps.
///
/// # Safety
/// As [`single_tap_row`]. There are `row + R` rows.
#[inline(always)]
unsafe fn side_by_side<V: Vector, const EVERY: usize, const R: usize, const U: usize, const EDGES: bool>(
    window: &Window<V::Lane>,
    results: &Results,
    row: usize,
    block: VectorBlock<U>,
    to: &mut [V::Lane],
) {
    let edges = window.edges.unwrap_or(Edges { first: 0, rows: (0, 0), column: 0, width: 0 });
    let lanes_at = |offset: usize| if EDGES { edges.lanes_at::<V>(offset) } else { 0 };
    // SAFETY: as in `rolling_rows`.
    unsafe {
        let mut sums = [[V::splat(window.bias); U]; R];
        let source = window.source.as_ptr().wrapping_offset(edges.first).wrapping_add(row * window.pitch);
        let mut taps = window.columns.iter().zip(window.weights).peekable();
        while let Some((column, weight)) = taps.next() {
            // With step two, the elements in between are those that the next tap column reads.
            let between = if EVERY == 2 { taps.next_if(|(next, _)| **next == column + 1) } else { None };
            let weight = V::splat(*weight);
            for r in 0..R {
                for u in 0..U {
                    let offset = column + EVERY * block.at::<V>(u);
                    let from = source.wrapping_add(r * window.pitch + offset);
                    let x = load::<V, EDGES>(from, lanes_at(offset));
                    if EVERY == 1 {
                        sums[r][u] = sums[r][u].mul_add(x, weight);
                        continue;
                    }
                    let next = load::<V, EDGES>(from.wrapping_add(V::LANES), lanes_at(offset + V::LANES));
                    let [even, odd] = x.unzip(next);
                    sums[r][u] = sums[r][u].mul_add(even, weight);
                    if let Some((_, weight)) = between {
                        sums[r][u] = sums[r][u].mul_add(odd, V::splat(*weight));
                    }
                }
            }
        }
        for r in 0..R {
            block.store(clamp_all(sums[r], window.bounds), results, row + r, to);
        }
    }
}
