//! Sums over a window that moves down the rows of a plane: the inner loop of depthwise convolutions.

// index loops over constant ranges are what unrolls into registers
#![expect(clippy::needless_range_loop)]

use crate::simd::vector::Vector;

/// What the rows of results are summed from.
#[derive(Clone, Copy)]
pub(crate) struct Window<'a, T> {
    /// The elements.
    pub source: &'a [T],
    /// Elements between rows of the source. A row of taps reads the row behind that of the one before.
    pub pitch: usize,
    /// Rows of the source from a row of results to the next, and elements of its rows from a result to the next: one or two. Several rows of
    /// taps have both the same, a single one has one row.
    pub steps: (usize, usize),
    /// The taps of a row: what to add to an index.
    pub columns: &'a [usize],
    /// `[row of taps][column]`.
    pub weights: &'a [T],
    /// What sums start from.
    pub bias: T,
    /// Where the source ends amid what taps read; none where it holds all of it.
    pub edges: Option<Edges>,
}

/// What of a window's rows exists: the rest is read as zeros, without being there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edges {
    /// Index in the source of offset zero of the first row of the window, which need not exist.
    pub first: isize,
    /// The first row that exists, and that behind the last.
    pub rows: (usize, usize),
    /// Column that has offset zero; those that exist begin at zero.
    pub column: isize,
    /// How many columns exist.
    pub width: usize,
}

/// Columns of taps that a window with edges has, at most.
pub(crate) const MOST_COLUMNS: usize = 8;

impl Edges {
    /// For each column of taps, vector of a strip and half of what it reads, the lanes that exist.
    #[inline(always)]
    fn lanes<V: Vector, const STEP: usize, const U: usize>(
        &self,
        columns: &[usize],
        strip: Strip<U>,
    ) -> [[[u16; 2]; U]; MOST_COLUMNS] {
        let mut lanes = [[[0; 2]; U]; MOST_COLUMNS];
        for (lanes, column) in lanes.iter_mut().zip(columns) {
            for (u, of_halves) in lanes.iter_mut().enumerate() {
                for (half, lanes) in of_halves.iter_mut().enumerate() {
                    let at = self.column + (column + STEP * strip.at::<V>(u) + half * V::LANES) as isize;
                    let begin = (-at).clamp(0, V::LANES as isize);
                    let end = (self.width as isize - at).clamp(begin, V::LANES as isize);
                    *lanes = ((1u32 << end) - (1u32 << begin)) as u16;
                }
            }
        }
        lanes
    }
}

/// Rows of results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Results {
    /// How many.
    pub rows: usize,
    /// Results of one.
    pub width: usize,
    /// Elements from the begin of one to that of the next.
    pub step: usize,
}

/// `to[r·step + i] = bias + Σ weight[k][c]·source[(r·down + k)·pitch + columns[c] + i·every]` for each row `r` and each `i` in `0..width`, `steps` being
/// `(down, every)`. What is between rows stays. Each row of the source is read once for the `K` rows of taps; at most `U` vectors are made side by side.
///
/// # Safety
/// The CPU has `V`'s instruction set. There are `K` rows of weights; `source` holds, for each row and tap, `every` elements for each result and at least
/// for each lane of a vector, or, where it has edges, all rows and columns that exist; `to` holds all rows.
#[inline(always)]
pub(crate) unsafe fn window<V: Vector, const K: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    to: &mut [V::Lane],
) {
    let vectors = results.width.div_ceil(V::LANES);
    let mut at = 0;
    // SAFETY: this function's contract.
    unsafe {
        while at + U <= vectors {
            strip::<V, K, U>(window, results, at, to);
            at += U;
        }
        while U > 2 && at + 2 <= vectors {
            strip::<V, K, 2>(window, results, at, to);
            at += 2;
        }
        while at < vectors {
            strip::<V, K, 1>(window, results, at, to);
            at += 1;
        }
    }
}

/// The `U` vectors from vector `at` on, of all rows.
///
/// # Safety
/// As [`window`]; rows have `at + U` vectors.
#[inline(always)]
unsafe fn strip<V: Vector, const K: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    at: usize,
    to: &mut [V::Lane],
) {
    let strip = Strip::<U>::new::<V>(results, at);
    // SAFETY: this function's contract.
    unsafe {
        match (K, window.steps.1) {
            (1, 1) => apart::<V, 1, U>(window, results, strip, to),
            (1, _) => apart::<V, 2, U>(window, results, strip, to),
            (_, 1) => either::<V, 1, K, K, U>(window, results, strip, to),
            // half as many results are under way
            (3, _) => either::<V, 2, 3, 2, U>(window, results, strip, to),
            (5, _) => either::<V, 2, 5, 3, U>(window, results, strip, to),
            _ => either::<V, 2, 7, 4, U>(window, results, strip, to),
        }
    }
}

/// All rows of a strip, with edges or without.
///
/// # Safety
/// As [`moving`].
#[inline(always)]
unsafe fn either<V: Vector, const STEP: usize, const K: usize, const J: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    strip: Strip<U>,
    to: &mut [V::Lane],
) {
    // SAFETY: this function's contract.
    unsafe {
        match window.edges {
            None => moving::<V, STEP, K, J, U, false>(window, results, strip, to),
            Some(_) => moving::<V, STEP, K, J, U, true>(window, results, strip, to),
        }
    }
}

/// All rows of a strip, of one row of taps.
///
/// # Safety
/// As [`strip`]; `EVERY` is what the window says.
#[inline(always)]
unsafe fn apart<V: Vector, const EVERY: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    strip: Strip<U>,
    to: &mut [V::Lane],
) {
    // SAFETY: this function's contract.
    unsafe {
        // one row of taps has few sums to wait for each other: rows are made side by side too
        let mut row = 0;
        while U < 4 && row + 4 <= results.rows {
            side_by_side::<V, EVERY, 4, U>(window, results, row, strip, to);
            row += 4;
        }
        while row + 2 <= results.rows {
            side_by_side::<V, EVERY, 2, U>(window, results, row, strip, to);
            row += 2;
        }
        if row < results.rows {
            side_by_side::<V, EVERY, 1, U>(window, results, row, strip, to);
        }
    }
}

/// Where the `U` vectors of a strip are in a row. The last one of a row ends where the row does, on results of the one before where it is not whole.
#[derive(Clone, Copy)]
struct Strip<const U: usize> {
    first: usize,
    /// The last vector, from the first one.
    last: usize,
}

impl<const U: usize> Strip<U> {
    fn new<V: Vector>(results: &Results, at: usize) -> Self {
        let end = results.width.saturating_sub(V::LANES);
        let first = (at * V::LANES).min(end);
        Strip { first, last: ((at + U - 1) * V::LANES).min(end) - first }
    }

    /// Where vector `u` is.
    #[inline(always)]
    fn at<V: Vector>(self, u: usize) -> usize {
        self.first + if u + 1 == U { self.last } else { u * V::LANES }
    }

    /// # Safety
    /// The CPU has `V`'s instruction set; `to` holds all rows of results.
    #[inline(always)]
    unsafe fn store<V: Vector>(self, sums: [V; U], results: &Results, row: usize, to: &mut [V::Lane]) {
        let Results { rows, width, step } = *results;
        for u in 0..U {
            let begin = row * step + self.at::<V>(u);
            // SAFETY: rows of at least a vector are stored within themselves, shorter ones where the vector covers but rows still to be written, or
            // in part.
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

/// All rows of a strip, a row of the source at a time: those of `K` rows of taps, of whose results `J` are under way.
///
/// # Safety
/// As [`strip`]; both steps are `STEP`, `J` is `K / STEP` rounded up, and `EDGES` is whether the window has some.
#[inline(always)]
unsafe fn moving<V: Vector, const STEP: usize, const K: usize, const J: usize, const U: usize, const EDGES: bool>(
    window: &Window<V::Lane>,
    results: &Results,
    strip: Strip<U>,
    to: &mut [V::Lane],
) {
    let sources = (results.rows - 1) * STEP + K;
    let whole = Edges { first: 0, rows: (0, sources), column: 0, width: 0 };
    let edges = window.edges.unwrap_or(whole);
    let lanes = if EDGES { edges.lanes::<V, STEP, U>(window.columns, strip) } else { [[[0; 2]; U]; MOST_COLUMNS] };
    // SAFETY: by this function's contract every load is within the source, whose rows are counted, or, with edges, of what exists of it; `to` holds the rows.
    unsafe {
        let bias = V::splat(window.bias);
        // of results `row + 1 - J..=row`
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
                let mut columns = window.columns.iter().enumerate().peekable();
                while let Some((c, column)) = columns.next() {
                    let between = if STEP == 2 { columns.next_if(|(_, next)| **next == column + 1) } else { None };
                    // a loop: of a function of `u` the compiler made calls
                    let mut x = [[bias; 2]; U];
                    for u in 0..U {
                        let from = source.wrapping_add(column + STEP * strip.at::<V>(u));
                        let lanes = if EDGES { lanes[c][u] } else { [0; 2] };
                        x[u][0] = load::<V, EDGES>(from, lanes[0]);
                        if STEP == 2 {
                            x[u] = x[u][0].unzip(load::<V, EDGES>(from.wrapping_add(V::LANES), lanes[1]));
                        }
                    }
                    for j in 0..J {
                        let k = (J - 1 - j) * STEP + phase;
                        if k >= K {
                            continue;
                        }
                        let weights = window.weights.as_ptr().add(k * window.columns.len() + c);
                        let weight = V::splat(*weights);
                        for u in 0..U {
                            sums[j][u] = sums[j][u].mul_add(weight, x[u][0]);
                        }
                        if between.is_some() {
                            let weight = V::splat(*weights.add(1));
                            for u in 0..U {
                                sums[j][u] = sums[j][u].mul_add(weight, x[u][1]);
                            }
                        }
                    }
                }
            }
            if row + 1 >= J {
                strip.store(sums[0], results, row + 1 - J, to);
            }
            for j in 1..J {
                sums[j - 1] = sums[j];
            }
            sums[J - 1] = [bias; U];
        }
    }
}

/// A vector, or some lanes of one.
///
/// # Safety
/// As [`Vector`]'s methods; what is read exists.
#[inline(always)]
unsafe fn load<V: Vector, const SOME: bool>(from: *const V::Lane, lanes: u16) -> V {
    // SAFETY: this function's contract.
    unsafe { if SOME { V::load_some(from, lanes) } else { V::load(from) } }
}

/// `R` rows of a strip from `row` on, of one row of taps.
///
/// # Safety
/// As [`apart`]; there are `row + R` rows.
#[inline(always)]
unsafe fn side_by_side<V: Vector, const EVERY: usize, const R: usize, const U: usize>(
    window: &Window<V::Lane>,
    results: &Results,
    row: usize,
    strip: Strip<U>,
    to: &mut [V::Lane],
) {
    // SAFETY: as in `moving`.
    unsafe {
        let mut sums = [[V::splat(window.bias); U]; R];
        let source = window.source.as_ptr().wrapping_add(row * window.pitch);
        let mut taps = window.columns.iter().zip(window.weights).peekable();
        while let Some((column, weight)) = taps.next() {
            // of every second element, those between are what the next column reads
            let between = if EVERY == 2 { taps.next_if(|(next, _)| **next == column + 1) } else { None };
            let weight = V::splat(*weight);
            for r in 0..R {
                for u in 0..U {
                    let from = source.wrapping_add(r * window.pitch + column + EVERY * strip.at::<V>(u));
                    let x = V::load(from);
                    if EVERY == 1 {
                        sums[r][u] = sums[r][u].mul_add(weight, x);
                        continue;
                    }
                    let [even, odd] = x.unzip(V::load(from.wrapping_add(V::LANES)));
                    sums[r][u] = sums[r][u].mul_add(weight, even);
                    if let Some((_, weight)) = between {
                        sums[r][u] = sums[r][u].mul_add(V::splat(*weight), odd);
                    }
                }
            }
        }
        for r in 0..R {
            strip.store(sums[r], results, row + r, to);
        }
    }
}
