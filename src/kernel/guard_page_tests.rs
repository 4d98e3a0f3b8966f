//! Runs every kernel with each operand next to an inaccessible page, on either side.
//!
//! A read or write past the end faults. Operands hold exactly what the kernel's contract requires.
//! Results are compared with plain loops.

use crate::compute::{Grouped, Pair, Quad};
use crate::kernel::bounds::Bounds;
use crate::kernel::col2im_row::{Col2imRows, Col2imRun};
use crate::kernel::depthwise_pixels::{LaneGather, PixelSums, PixelTap, PixelTaps, Spaced};
use crate::kernel::depthwise_plane::PlaneTaps;
use crate::kernel::depthwise_taps::WeightedTap;
use crate::kernel::depthwise_window::{Edges, Results, Window};
use crate::kernel::fourier::FOURIER_VALUES;
use crate::kernel::gemm_tile::{Chains, LISTED_POSITIONS, ListedPixels, PhaseOperand, Source, Start};
use crate::kernel::pad_copy::{Rows, SplitRows};
use crate::kernel::pixel_lists::PixelLists;
use crate::kernel::tile_data::{PointStrides, TileData, short_result};
use crate::kernel::tile_transforms::TileKind;
use crate::kernel::transpose::PixelStarts;
use crate::kernel::{
    AddedBytes, BYTE_STEPS, ByteKernels, ByteRows, ByteScales, ByteSums, ChannelScale, Dispatch, Kernels, Narrowing,
    StridedRuns, SumsOfBytes, TilePositions,
};
use crate::simd::isa::Isa;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use tract_core::internal::f16;
use tract_core::internal::tract_itertools::{Itertools, iproduct};

/// The side of the inaccessible page that operands touch. There is one on the other side too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Before,
    After,
}

/// Elements between two inaccessible pages.
pub(crate) struct Guarded<T> {
    map: *mut libc::c_void,
    bytes: usize,
    first: *mut T,
    len: usize,
}

fn page() -> usize {
    // SAFETY: the call only returns a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

impl<T: Copy> Guarded<T> {
    pub fn new(side: Side, values: &[T]) -> Guarded<T> {
        let page = page();
        let room = size_of_val(values).next_multiple_of(page).max(page);
        let bytes = room + 2 * page;
        // SAFETY: the mapping is new and anonymous, and only its middle is made accessible. The
        // elements lie in the middle, either at its beginning or ending with it. Both positions are
        // aligned, as pages and sizes are multiples of an element's size.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let middle = map.cast::<u8>().add(page);
            assert_eq!(libc::mprotect(middle.cast(), room, libc::PROT_READ | libc::PROT_WRITE), 0);
            let skip = if side == Side::Before { 0 } else { room - size_of_val(values) };
            let first = middle.add(skip).cast::<T>();
            std::ptr::copy_nonoverlapping(values.as_ptr(), first, values.len());
            Guarded { map, bytes, first, len: values.len() }
        }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `len` elements there. They live as long as the mapping, which `self`
        // owns.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the mapping belongs to `self` alone, which is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.map, self.bytes) };
    }
}

/// The compute types, with the conversions that a test needs.
trait Number: Dispatch {
    const NAME: &'static str;
    fn of(value: i64) -> Self;
    /// Whether a rounded sum of integers is this integer.
    fn is_near(self, other: Self) -> bool;
}

macro_rules! numbers {
    ($($t:ident),*) => {$(
        impl Number for $t {
            const NAME: &'static str = stringify!($t);

            fn of(value: i64) -> $t {
                value as $t
            }

            fn is_near(self, other: $t) -> bool {
                (self as f64 - other as f64).abs() < 1e-3
            }
        }
    )*};
}
numbers!(f32, f64, i64);

impl Number for Pair {
    const NAME: &'static str = "pairs";

    /// Two integers that differ.
    fn of(value: i64) -> Pair {
        Pair::of([value as i16, 3 - 40 * value as i16])
    }

    fn is_near(self, other: Pair) -> bool {
        self == other
    }
}

/// Data and weights differ in their sign, so these tests also hold that data come first in products.
impl Number for Quad {
    const NAME: &'static str = "quads";

    /// Four bytes that differ, of both signs.
    fn of(value: i64) -> Quad {
        Quad::of([value, 2 - value, 17 * value, -30 * value].map(|byte| byte as u8))
    }

    fn is_near(self, other: Quad) -> bool {
        self == other
    }
}

/// Returns small integers, so that sums are exact in any order.
fn values<T: Number>(len: usize, seed: i64) -> Vec<T> {
    (0..len as i64).map(|i| T::of((i * 7 + seed * 3) % 11 - 5)).collect()
}

/// No bounds, and bounds that some results are outside of.
fn all_bounds<T: Number>() -> [Option<Bounds<T>>; 2] {
    let (one, other) = (T::of(-2), T::of(3));
    let high = one.larger(other);
    [None, Some(Bounds { low: if high == one { other } else { one }, high })]
}

/// Applies bounds, if there are any.
fn clamped<T: Number>(value: T, bounds: Option<Bounds<T>>) -> T {
    bounds.map_or(value, |bounds| bounds.clamp(value))
}

/// Calls a test with the kernels of every available instruction set and compute type.
macro_rules! for_each_kernel_set {
    ($test:ident) => {
        // Tile registers have their own tests. The other kernels of that set are those of 512-bit
        // vectors.
        for isa in Isa::ALL.iter().copied().filter(|isa| *isa != Isa::Amx) {
            if !isa.is_available() {
                // The portable set, which every cpu has, is tested in any case.
                assert_ne!(isa, Isa::Portable);
                continue;
            }
            let mut calls =
                vec![(f32::NAME, both(f32::kernels(isa), $test)), (f64::NAME, both(f64::kernels(isa), $test))];
            if isa == Isa::Portable {
                // Integers have no other kernels.
                calls.push((i64::NAME, both(i64::kernels(isa), $test)));
            }
            if Grouped::Pairs.is_available(isa) {
                calls.push((Pair::NAME, both(Pair::kernels(isa), $test)));
            }
            if Grouped::Quads.is_available(isa) {
                calls.push((Quad::NAME, both(Quad::kernels(isa), $test)));
            }
            for (of, calls) in calls {
                let has_none = match stringify!($test) {
                    // The portable set has some for f32, where the target has no other set.
                    "row_tiles" => {
                        let other_sets = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
                        isa == Isa::Portable && (other_sets || of != f32::NAME)
                    }
                    "tile_transforms" => [i64::NAME, Pair::NAME, Quad::NAME].contains(&of),
                    "planes" => isa != Isa::Avx512,
                    _ => false,
                };
                assert_eq!(calls > 0, !has_none, "{} on {isa} {of}: {calls} calls", stringify!($test));
                let line = format!("guard pages: {} on {isa} {of}: {calls} calls\n", stringify!($test));
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }
    };
}

fn both<T: Number>(kernels: &Kernels<T>, test: impl Fn(&Kernels<T>, Side) -> usize) -> usize {
    [Side::Before, Side::After].into_iter().map(|side| test(kernels, side)).sum()
}

/// The number of channels, the gap between a tile's reads of two channels, and the taps.
const SHAPES: [(usize, usize, &[usize]); 6] =
    [(1, 0, &[0]), (3, 0, &[0]), (3, 5, &[2]), (2, 1, &[0, 3, 4]), (5, 0, &[7, 1]), (2, 0, &[])];

/// A source with exactly the elements that `width` positions read with these channels and taps.
struct Shape<T> {
    data: Guarded<T>,
    channel_stride: usize,
    channels: usize,
    taps: &'static [usize],
    /// Whether tiles prefetch, which must not fault past the end. They do where there are gaps.
    prefetch: bool,
}

impl<T: Number> Shape<T> {
    fn new(side: Side, width: usize, (channels, gap, taps): (usize, usize, &'static [usize])) -> Shape<T> {
        let span = taps.iter().max().map_or(0, |tap| tap + width);
        let channel_stride = span + gap;
        let len = if span == 0 { 0 } else { (channels - 1) * channel_stride + span };
        Shape { data: Guarded::new(side, &values(len, 1)), channel_stride, channels, taps, prefetch: gap > 0 }
    }

    fn source(&self) -> Source<'_, T> {
        let &Shape { channel_stride, channels, taps, prefetch, .. } = self;
        Source { data: &self.data, base: 0, channel_stride, channels, taps, prefetch }
    }

    /// `Σ weight(c, t) · source[c, t + at]`.
    fn sum(&self, at: usize, taps: &[usize], weight: impl Fn(usize, usize) -> T) -> T {
        let mut sum = T::ZERO;
        for c in 0..self.channels {
            for (t, tap) in taps.iter().enumerate() {
                sum = sum.mul_add(self.data[c * self.channel_stride + tap + at], weight(c, t));
            }
        }
        sum
    }
}

fn position_tiles<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    for tile in kernels.position_tiles {
        for shape in SHAPES {
            let shape = Shape::new(side, tile.positions(), shape);
            let taps = shape.taps.len();
            let panel = Guarded::new(side, &values::<T>(shape.channels * taps * tile.mr(), 2));
            let bias = Guarded::new(side, &values::<T>(tile.mr(), 3));
            for (stride, add) in
                [(tile.positions(), false), (tile.positions() + 3, false), (tile.positions() + 1, true)]
            {
                let before = values::<T>((tile.mr() - 1) * stride + tile.positions(), 4);
                let mut out = Guarded::new(side, &before);
                let start = if add { Start::Add } else { Start::Bias(&bias) };
                tile.run(&panel, &shape.source(), start, &mut out, stride);
                let mut expected = before;
                for m in 0..tile.mr() {
                    for n in 0..tile.positions() {
                        let to = &mut expected[m * stride + n];
                        let begin = if add { *to } else { bias[m] };
                        *to = begin.plus(shape.sum(n, shape.taps, |c, t| panel[(c * taps + t) * tile.mr() + m]));
                    }
                }
                assert_eq!(*out, expected, "{}x{}", tile.mr(), tile.nv());
                calls += 1;
            }
        }
    }
    calls
}

fn channel_tiles<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    for (tile, tiles) in kernels.channel_tiles.iter().cartesian_product([1, 3]) {
        let positions = tiles * tile.positions();
        for (shape, stride) in SHAPES.into_iter().flat_map(|shape| [(shape, 1), (shape, 3)]) {
            let shape = Shape::new(side, (positions - 1) * stride + 1, shape);
            let panel = Guarded::new(side, &values::<T>(shape.channels * shape.taps.len() * tile.channels(), 2));
            let bias = Guarded::new(side, &values::<T>(tile.channels(), 3));
            let out_strides = [(tile.channels(), false), (tile.channels() + 3, false), (tile.channels() + 1, true)];
            for ((out_stride, add), bounds) in out_strides.into_iter().cartesian_product(all_bounds()) {
                let before = values::<T>((positions - 1) * out_stride + tile.channels(), 4);
                let mut out = Guarded::new(side, &before);
                let start = if add { Start::Add } else { Start::Bias(&bias) };
                let of_tiles = TilePositions { tiles, stride, out_stride };
                tile.run(&panel, &shape.source(), (start, bounds), &mut out, of_tiles);
                let mut expected = before.clone();
                for (p, j) in (0..positions).cartesian_product(0..tile.channels()) {
                    let to = &mut expected[p * out_stride + j];
                    let begin = if add { *to } else { bias[j] };
                    let weight = |c, t| panel[(t * shape.channels + c) * tile.channels() + j];
                    *to = clamped(begin.plus(shape.sum(p * stride, shape.taps, weight)), bounds);
                }
                assert_eq!(*out, expected, "{} of {}x{}", tiles, tile.positions(), tile.nv());
                calls += 1;
            }
        }
    }
    calls
}

fn chained_channel_tiles<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let all_taps: [&[usize]; 5] = [&[], &[0], &[2], &[3, 0], &[7, 1, 4]];
    let shapes = [1, 3].into_iter().cartesian_product([1, 3, 5]).cartesian_product(all_taps);
    for (tile, ((tiles, channels), taps)) in kernels.channel_tiles.iter().cartesian_product(shapes) {
        let (positions, stride, width) = (tiles * tile.positions(), channels + 1, tile.channels());
        let len = taps.iter().max().map_or(0, |tap| tap + (positions - 1) * stride + channels);
        let data = Guarded::new(side, &values::<T>(len, 1));
        let panel = Guarded::new(side, &values::<T>(taps.len() * channels * width, 2));
        let mut weights: Vec<usize> = (0..taps.len()).map(|tap| tap * channels * width).collect();
        // Registers add chains of any taps.
        if tile.adds_chains() {
            weights.reverse();
        }
        let bias = Guarded::new(side, &values::<T>(width, 3));
        for (out_stride, add) in [(width, false), (width + 1, true)] {
            let before = values::<T>((positions - 1) * out_stride + width, 4);
            let start = if add { Start::Add } else { Start::Bias(&bias) };
            let mut expected = before.clone();
            for (p, j) in (0..positions).cartesian_product(0..width) {
                let to = &mut expected[p * out_stride + j];
                let products = taps.iter().zip(&weights).cartesian_product(0..channels);
                let begin = if add { *to } else { bias[j] };
                *to = products.fold(begin, |sum, ((tap, at), c)| {
                    sum.mul_add(data[p * stride + tap + c], panel[at + c * width + j])
                });
            }
            for (taps_of_chain, channels_of_chain) in [1, 2, 3].into_iter().cartesian_product([1, 2, 3, 5]) {
                if !tile.adds_chains() && taps_of_chain > 1 && channels_of_chain < channels {
                    continue;
                }
                let source = Source { data: &data, base: 0, channel_stride: 1, channels, taps, prefetch: false };
                let chains = Chains { weights: &weights, taps: taps_of_chain, channels: channels_of_chain };
                let mut out = Guarded::new(side, &before);
                tile.run_chains(&panel, &source, &chains, start, &mut out, TilePositions { tiles, stride, out_stride });
                assert_eq!(*out, expected, "{tiles} of {}x{} in chains", tile.positions(), tile.nv());
                calls += 1;
            }
        }
    }
    calls
}

fn listed_channel_tiles<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let taps: [&[u32]; 4] = [&[], &[0], &[1, 2], &[0, 3]];
    for tile in kernels.channel_tiles.iter().filter(|tile| LISTED_POSITIONS.contains(&tile.positions())) {
        for (taps, channels) in taps.into_iter().cartesian_product([1, 3]) {
            // A list before the one that is read, which reads further.
            let offset = |tap: u32, p: usize| (7 * p as u32 + 5 * tap) % 23;
            let entry = |tap: &u32| (*tap, (0..tile.positions()).map(|p| offset(*tap, p)).collect::<Vec<_>>());
            let mut lists = PixelLists::new(tile.positions(), 2, 3).expect("memory");
            lists.push([(4, vec![22; tile.positions()])]).expect("a list");
            lists.push(taps.iter().map(entry)).expect("a list");
            let data = Guarded::new(side, &values::<T>(2 + 22 + channels, 1));
            let count = taps.last().map_or(0, |tap| *tap as usize + 1);
            let panel = Guarded::new(side, &values::<T>(channels * count * tile.channels(), 2));
            let bias = Guarded::new(side, &values::<T>(tile.channels(), 3));
            let strides = [(tile.channels(), false), (tile.channels() + 3, false), (tile.channels() + 1, true)];
            for ((stride, add), bounds) in strides.into_iter().cartesian_product(all_bounds()) {
                let before = values::<T>((tile.positions() - 1) * stride + tile.channels(), 4);
                let mut out = Guarded::new(side, &before);
                let start = if add { Start::Add } else { Start::Bias(&bias) };
                let pixels = ListedPixels { data: &data, base: 2, channels, lists: &lists, list: 1 };
                tile.run_listed(&panel, &pixels, (start, bounds), &mut out, stride);
                let mut expected = before;
                for (p, j) in (0..tile.positions()).cartesian_product(0..tile.channels()) {
                    let to = &mut expected[p * stride + j];
                    let mut sum = T::ZERO;
                    for (tap, c) in taps.iter().cartesian_product(0..channels) {
                        let weight = panel[(*tap as usize * channels + c) * tile.channels() + j];
                        sum = sum.mul_add(data[2 + offset(*tap, p) as usize + c], weight);
                    }
                    *to = clamped(if add { *to } else { bias[j] }.plus(sum), bounds);
                }
                assert_eq!(*out, expected, "{}x{}", tile.positions(), tile.nv());
                calls += 1;
            }
        }
    }
    calls
}

/// The taps of the phases that a row tile interleaves.
#[derive(Clone, Copy, PartialEq)]
enum TapsOfPhases {
    /// Different numbers of taps. The first phase has all of them.
    Fewer,
    Same,
    /// Equally many, in another order.
    Reversed,
}

fn row_tiles<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let (mut calls, lanes) = (0, kernels.lanes);
    for tile in [1, 2, 4].into_iter().flat_map(|phases| kernels.row_tiles(phases)) {
        let ragged = [0, 1, lanes - 1, lanes, lanes + 1, tile.positions() - 1, tile.positions()];
        let one_tile =
            ragged.into_iter().filter(|n| *n <= tile.positions()).flat_map(|n| [(n, tile.mr(), 1), (n, 1, 1)]);
        let several = [(2 * tile.positions(), 1, 1), (2 * tile.positions() + lanes + 1, tile.mr(), 1)];
        let runs = [(1, tile.mr(), 2), (tile.positions(), 1, 3), (tile.positions() + 1, tile.mr(), 2), (1, 1, 0)];
        let cases: Vec<_> = one_tile
            .chain(several)
            .chain(runs)
            .flat_map(|case| [0, tile.phases() / 2].into_iter().unique().map(move |less| (case, less)))
            .cartesian_product([0, 3])
            .cartesian_product([TapsOfPhases::Fewer, TapsOfPhases::Same, TapsOfPhases::Reversed])
            .filter(|(_, of_phases)| tile.phases() > 1 || *of_phases == TapsOfPhases::Fewer)
            .collect();
        for (shape, ((((positions, rows, count), less), gap), of_phases)) in
            SHAPES.into_iter().flat_map(|shape| cases.iter().map(move |case| (shape, *case)))
        {
            // Tiles may have gaps between them in the source.
            let tile_step = tile.positions() + gap;
            let tiles = positions.div_ceil(tile.positions());
            let whole = tiles.checked_sub(1).map_or(0, |before| before * tile_step + tile.positions());
            // Runs overlap in the source, and have gaps between them in the output.
            let pitch = positions.saturating_sub(1);
            let shape = Shape::new(side, (count.max(1) - 1) * pitch + whole, shape);
            let reversed: Vec<usize> = shape.taps.iter().rev().copied().collect();
            let taps_of = |s: usize| match of_phases {
                TapsOfPhases::Fewer => &shape.taps[s.min(shape.taps.len())..],
                TapsOfPhases::Reversed if s % 2 == 1 => &reversed,
                _ => shape.taps,
            };
            let differ = of_phases == TapsOfPhases::Fewer;
            let panel_of = |s: usize| values::<T>(shape.channels * taps_of(s).len() * tile.mr(), 2 + s as i64);
            let panels: Vec<Guarded<T>> = (0..tile.phases()).map(|s| Guarded::new(side, &panel_of(s))).collect();
            let phase = |s: usize| PhaseOperand {
                panel: &panels[s],
                taps: taps_of(s),
                chain: 2 + if differ { s % 2 } else { 0 } + less,
                two_chains: differ && s == 0,
            };
            let phases: Vec<_> = (0..tile.phases()).map(phase).collect();
            let bias = Guarded::new(side, &values::<T>(tile.mr(), 3));
            let len = (positions * tile.phases()).saturating_sub(less);
            let step = len + 3;
            let before = vec![T::of(99); if count == 0 { 0 } else { (count - 1) * step + len }];
            for bounds in all_bounds() {
                let mut out: Vec<Guarded<T>> = (0..rows).map(|_| Guarded::new(side, &before)).collect();
                let mut slices: Vec<&mut [T]> = out.iter_mut().map(|row| &mut **row).collect();
                let runs = StridedRuns { elements: 0..len, count, step, pitch, tile_step };
                tile.run(&phases, &shape.source(), &bias, &mut slices, &runs, bounds);
                for (m, row) in out.iter().enumerate() {
                    let mut expected = before.clone();
                    for (run, at) in (0..count).flat_map(|run| (0..len).map(move |at| (run, at))) {
                        let (s, n) = (at % tile.phases(), at / tile.phases());
                        let n = n / tile.positions() * tile_step + n % tile.positions() + run * pitch;
                        let taps = taps_of(s);
                        let sum = shape.sum(n, taps, |c, t| panels[s][(c * taps.len() + t) * tile.mr() + m]);
                        expected[run * step + at] = clamped(bias[m].plus(sum), bounds);
                    }
                    assert_eq!(**row, expected, "{} phases, {}x{}", tile.phases(), tile.mr(), tile.nv());
                }
                calls += 1;
            }
        }
    }
    calls
}

fn sums_of_taps<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let lanes = kernels.lanes;
    let counts = [1, lanes - 1, lanes, lanes + 1, 2 * lanes - 1, 2 * lanes, 3 * lanes + 1, 255, 256, 257, 600];
    for phases in 1..=9 {
        for count in counts {
            for offsets in [&[0][..], &[0, 3, 9], &[6]] {
                let furthest = offsets.iter().max().unwrap_or(&0);
                let source = Guarded::new(side, &values::<T>(furthest + count.next_multiple_of(lanes), 1));
                let taps: Vec<Vec<WeightedTap<T>>> = (0..phases)
                    .map(|j| {
                        let used = offsets.iter().skip(j % 3);
                        used.enumerate()
                            .map(|(t, o)| WeightedTap { offset: *o, weight: T::of((t + j) as i64) })
                            .collect()
                    })
                    .collect();
                for bounds in all_bounds() {
                    let mut to = Guarded::new(side, &vec![T::of(99); count * phases]);
                    kernels.sum_of_taps(&source, &taps, (T::of(5), bounds), &mut to);
                    for (at, got) in to.iter().enumerate() {
                        let (taps, i) = (&taps[at % phases], at / phases);
                        let sum =
                            taps.iter().fold(T::of(5), |sum, tap| sum.mul_add(source[i + tap.offset], tap.weight));
                        assert_eq!(*got, clamped(sum, bounds), "{phases} phases of {count}");
                    }
                    calls += 1;
                }
            }
        }
    }
    calls
}

fn sums_of_pixels<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let lanes = kernels.lanes;
    // Groups, then input and output channels per group.
    let one_to_one = [1, lanes - 1, lanes, lanes + 1, 3 * lanes - 1].map(|groups| (groups, 1, 1));
    let narrow = [(1, 3), (2, 2), (lanes - 1, 1), (lanes - 1, 3), (2, lanes)];
    let narrow = narrow.iter().flat_map(|(i, o)| [1, lanes + 1].map(|groups| (groups, *i, *o)));
    for (groups, inputs, outputs) in one_to_one.into_iter().chain(narrow) {
        let gathered = (inputs, outputs) != (1, 1);
        let gather = if gathered { LaneGather::new(lanes, groups, inputs, outputs) } else { None };
        if gathered && gather.is_none() {
            continue;
        }
        let (channels, pixel) = (groups * outputs, groups * inputs);
        let width = channels.next_multiple_of(lanes);
        let needed = gather.as_ref().map_or(width, LaneGather::reach);
        assert!(needed <= pixel.max(lanes).max(if gathered { 0 } else { width }), "reads stay in pixels");
        let counts = if gathered { &[1, 7, 9][..] } else { &[1, 2, 3, 4, 5, 6, 8, 13] };
        let sizes = counts.iter().flat_map(|n| [(1, *n, pixel, channels), (3, *n, needed + 1, channels + 2)]);
        for ((rows, count, step, to_step), bounds) in sizes.cartesian_product(all_bounds()) {
            // Rows overlap in the source. The results of each begin one after those of the one before.
            let in_row = Spaced { count, from: step, to: rows * to_step };
            let positions = [Spaced { count: rows, from: step + 1, to: to_step }, in_row];
            // Taps a few elements apart, and taps as far apart as pixels.
            for offsets in [&[0][..], &[0, 3, 7], &[], &[step, 0], &[0, step, 2 * step, 3 * step + 1]] {
                let reach = offsets
                    .iter()
                    .max()
                    .map_or(0, |furthest| furthest + (rows - 1) * (step + 1) + (count - 1) * step + needed);
                let source = Guarded::new(side, &values::<T>(reach, 1));
                let each = offsets.len() * inputs;
                let weights = Guarded::new(side, &values::<T>(each * width, 2));
                let bias = Guarded::new(side, &values::<T>(width, 3));
                let tap = |(t, offset): (usize, &usize)| PixelTap { offset: *offset, weights: t * inputs * lanes };
                let mut list: Vec<PixelTap> = offsets.iter().enumerate().map(tap).collect();
                let taps = PixelTaps::new(list.clone(), step);
                let (source, weights) = (&source[..], &weights[..]);
                let gather = gather.as_ref();
                let sums =
                    PixelSums { source, positions, taps: &taps, weights, each, bias: &bias, bounds, channels, gather };
                let mut to = Guarded::new(side, &vec![T::of(99); (rows * count - 1) * to_step + channels]);
                kernels.sum_of_pixels(&sums, &mut to);
                list.sort_by_key(|tap| tap.offset);
                for (at, got) in to.iter().enumerate() {
                    let (p, c) = (at / to_step, at % to_step);
                    let first = p % rows * (step + 1) + p / rows * step;
                    if c >= channels {
                        assert_eq!(*got, T::of(99), "what is between pixels stays");
                        continue;
                    }
                    // Small whole numbers, so that sums are exact in any order.
                    let products = list.iter().flat_map(|tap| (0..inputs).map(move |input| (tap, input)));
                    let want = products.fold(bias[c], |sum, (tap, input)| {
                        let weight = weights[c / lanes * lanes * each + tap.weights + input * lanes + c % lanes];
                        sum.mul_add(source[first + tap.offset + c / outputs * inputs + input], weight)
                    });
                    assert_eq!(
                        *got,
                        clamped(want, bounds),
                        "{groups} groups of {inputs} to {outputs}, {count} positions"
                    );
                }
                calls += 1;
            }
        }
    }
    calls
}

fn rows<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let lanes = kernels.lanes;
    for stride in [1, lanes, lanes + 1] {
        for len in [lanes, lanes + 1, 2 * lanes - 1, 3 * lanes] {
            for count in [1, lanes - 1, lanes] {
                let starts: Vec<usize> = (0..len).map(|i| i * stride).collect();
                let from = Guarded::new(side, &values::<T>((len - 1) * stride + lanes, 1));
                let ways = [0, 3].into_iter().cartesian_product([false, true]).cartesian_product(all_bounds());
                for ((first, streamed), bounds) in ways {
                    let row = || Guarded::new(side, &vec![T::of(99); first + len]);
                    let mut to: Vec<Guarded<T>> = (0..count).map(|_| row()).collect();
                    let mut slices: Vec<&mut [T]> = to.iter_mut().map(|row| &mut **row).collect();
                    kernels.pixels_to_rows(&from, PixelStarts::new(&starts), &mut slices, first, bounds, streamed);
                    for (j, row) in to.iter().enumerate() {
                        assert!(row[..first].iter().all(|kept| *kept == T::of(99)));
                        assert!((0..len).all(|i| row[first + i] == clamped(from[i * stride + j], bounds)));
                    }
                    calls += 1;
                }
            }
        }
    }
    let sizes = [1, lanes - 1, lanes, lanes + 1, 3 * lanes - 1];
    for (rows, columns) in sizes.iter().flat_map(|r| [1, lanes, lanes + 2].map(|c| (*r, c))) {
        let width = columns.next_multiple_of(lanes);
        for (from_step, to_step) in [(rows, width), (rows + 3, width + 1)] {
            let from = Guarded::new(side, &values::<T>((columns - 1) * from_step + rows.max(lanes), 1));
            let mut to = Guarded::new(side, &vec![T::of(99); (rows - 1) * to_step + width]);
            kernels.rows_to_pixels(&from, from_step, (rows, columns), &mut to, to_step);
            for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                assert_eq!(to[r * to_step + c], from[c * from_step + r]);
            }
            calls += 1;
        }
    }
    let pixels = [1, 2, 5, 2 * lanes + 3].into_iter().cartesian_product([1, 3, lanes - 1, lanes, lanes + 1, 3 * lanes]);
    for (count, size) in pixels {
        let steps = [(size, size + 2, false), (size + 3, size, false), (size, size, true), (size, 2 * size, true)];
        for ((from_step, to_step, streamed), bounds) in steps.into_iter().cartesian_product(all_bounds()) {
            let from = Guarded::new(side, &values::<T>((count - 1) * from_step + size, 1));
            let mut to = Guarded::new(side, &vec![T::of(99); (count - 1) * to_step + size]);
            kernels.copy_pixels(&from, from_step, (count, size), (&mut to, to_step), bounds, streamed);
            for (at, got) in to.iter().enumerate() {
                let (i, j) = (at / to_step, at % to_step);
                assert_eq!(*got, if j < size { clamped(from[i * from_step + j], bounds) } else { T::of(99) });
            }
            calls += 1;
        }
    }
    for (count, channels) in [1, lanes, 2 * lanes + 1].iter().flat_map(|n| [1, lanes - 1, lanes].map(|c| (*n, c))) {
        let width = count.next_multiple_of(lanes);
        for gap in [0, 3] {
            let starts: Vec<usize> = (0..channels).map(|j| j * (width + gap)).collect();
            let from = Guarded::new(side, &values::<T>(starts[channels - 1] + width, 1));
            let step = channels + gap;
            let mut to = Guarded::new(side, &vec![T::of(99); (count - 1) * step + channels]);
            kernels.indexed_rows_to_pixels(&from, &starts, count, &mut to, step);
            for (at, got) in to.iter().enumerate() {
                let (i, j) = (at / step, at % step);
                assert_eq!(*got, if j < channels { from[starts[j] + i] } else { T::of(99) });
            }
            calls += 1;
        }
    }
    for len in [0, 1, lanes - 1, lanes, 2 * lanes + 1, 9 * lanes] {
        for step in 1..=9 {
            let from = Guarded::new(side, &values::<T>((len * step).saturating_sub(step - 1), 1));
            let mut to = Guarded::new(side, &vec![T::of(99); len]);
            kernels.strided(&from, step, &mut to);
            assert!((0..len).all(|i| to[i] == from[i * step]));
            calls += 1;
        }
    }
    for len in [0, 1, lanes - 1, lanes, lanes + 1, 3 * lanes + 2] {
        for count in [1, 2, 3, 4, 6, 7, 8, 9, 15, 16, 17] {
            let from: Vec<Guarded<T>> = (0..count).map(|r| Guarded::new(side, &values(len, r))).collect();
            let mut to = Guarded::new(side, &vec![T::of(99); len * from.len()]);
            let slices: Vec<&[T]> = from.iter().map(|row| &**row).collect();
            kernels.interleave(&slices, &mut to);
            for (at, got) in to.iter().enumerate() {
                assert_eq!(*got, from[at % from.len()][at / from.len()]);
            }
            calls += 1;
        }
        let (from, before) = (Guarded::new(side, &values::<T>(len, 1)), values::<T>(len, 2));
        let mut to = Guarded::new(side, &before);
        kernels.add(&from, &mut to);
        assert!(to.iter().zip(&before).zip(&*from).all(|((to, before), from)| *to == before.plus(*from)));
        for bounds in all_bounds() {
            let mut to = Guarded::new(side, &before);
            kernels.add_pixels(&from, (1, len), len, bounds, &mut to);
            let want = before.iter().zip(&*from).map(|(before, from)| clamped(before.plus(*from), bounds));
            assert!(to.iter().copied().eq(want));
        }
        calls += 1;
        for phases in (1..=4).filter(|phases| kernels.accumulates(*phases)) {
            // The last result has some of the phases only.
            let mut rows: [_; 2] = std::array::from_fn(|_| {
                Guarded::new(side, &vec![T::of(99); (phases * len).saturating_sub(phases / 2)])
            });
            let half = len / 2;
            let run = |from, to| Col2imRun { from, to };
            let within = len / 3..len - len.div_ceil(3);
            let runs = [run(half, 0..half), run(0, len - half..len), run(half / 2, within)];
            let all: Vec<_> = (0..phases).map(|phase| runs[..3 - phase.min(3)].to_vec()).collect();
            let (bases, biases) = ([0, len % 2], [T::of(5), T::of(-3)]);
            let (pitch, products) = (1, Guarded::new(side, &values::<T>(len + 1, 1)));
            let from = Col2imRows { from: &products, pitch, bases: &bases, phases: &all };
            kernels.accumulate_rows(&from, &biases, &mut rows.each_mut().map(|row| &mut **row));
            for (channel, row) in rows.iter().enumerate() {
                for (at, to) in row.iter().enumerate() {
                    let (i, runs) = (at / phases, &all[at % phases]);
                    let added = bases.iter().flat_map(|base| runs.iter().map(move |run| (base, run)));
                    let added = added.filter(|(_, run)| run.to.contains(&i));
                    let value = |base, run: &Col2imRun| products[channel * pitch + base + run.from + i - run.to.start];
                    assert_eq!(*to, added.fold(biases[channel], |sum, (base, run)| sum.plus(value(base, run))));
                }
            }
            calls += 1;
        }
    }
    calls
}

fn windows<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let lanes = kernels.lanes;
    let ragged = [lanes - 1, lanes, lanes + 1, 7 * lanes + 2];
    let steps = |taps: usize| if taps == 1 { [(1, 1), (1, 2)] } else { [(1, 1), (2, 2)] };
    for (taps, width) in [1, 3, 5, 7].into_iter().flat_map(|taps| ragged.map(|width| (taps, width))) {
        for (rows, gap, steps) in
            [(1, 0), (6, 3), (7, 0), (37, 0)].iter().flat_map(|r| steps(taps).map(|s| (r.0, r.1, s)))
        {
            for (columns, bounds) in [&[0][..], &[1, 2, 9, 0], &[2, 3, 4]].into_iter().cartesian_product(all_bounds()) {
                let (down, every) = steps;
                let pitch = every * width + 5;
                let reach = ((rows - 1) * down + taps - 1) * pitch
                    + columns.iter().max().unwrap_or(&0)
                    + every * width.max(lanes);
                let source = Guarded::new(side, &values::<T>(reach, 1));
                let weights = Guarded::new(side, &values::<T>(taps * columns.len(), 2));
                let (weights, bias) = (&weights[..], T::of(5));
                let window = Window { source: &source, pitch, steps, columns, weights, bias, bounds, edges: None };
                let results = Results { rows, width, step: width + gap };
                let mut to = Guarded::new(side, &vec![T::of(99); (rows - 1) * results.step + width]);
                kernels.sum_of_window(&window, &results, &mut to);
                for (at, got) in to.iter().enumerate() {
                    let (r, i) = (at / results.step, at % results.step);
                    let sum = (0..taps).flat_map(|k| (0..columns.len()).map(move |c| (k, c))).fold(
                        T::of(5),
                        |sum, (k, c)| {
                            let read = || source[(r * down + k) * pitch + columns[c] + i * every];
                            if i < width { sum.mul_add(read(), weights[k * columns.len() + c]) } else { sum }
                        },
                    );
                    let want = if i < width { clamped(sum, bounds) } else { T::of(99) };
                    assert_eq!(*got, want, "{taps} rows of taps at {columns:?}, {steps:?}, {rows} of {width}");
                }
                calls += 1;
            }
        }
    }
    calls
}

fn planes<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    if !kernels.masks {
        return calls;
    }
    let lanes = kernels.lanes;
    let taps = &[(-1, -1), (0, 2), (1, 0), (0, 0), (-7, 3), (2, -40)][..];
    for (width, rows) in
        [1, 3, lanes - 1, lanes, 2 * lanes + 1].into_iter().flat_map(|w| [1, 4, 9usize].map(|r| (w, r)))
    {
        let results = [(rows, taps), (rows + 2, taps), (rows.div_ceil(2), taps), (rows, &[])];
        for ((results, taps), bounds) in results.into_iter().cartesian_product(all_bounds()) {
            let planes = PlaneTaps::new(lanes, rows, results, width, taps);
            let source = Guarded::new(side, &values::<T>(rows * width, 1));
            let weights = Guarded::new(side, &values::<T>(taps.len(), 2));
            let mut to = Guarded::new(side, &vec![T::of(99); results * width]);
            kernels.sum_of_plane(&planes, &source, &weights, (T::of(5), bounds), &mut to);
            for (at, got) in to.iter().enumerate() {
                let want = taps.iter().zip(&*weights).fold(T::of(5), |sum, ((down, along), weight)| {
                    let (row, column) = ((at / width) as i64 + down, (at % width) as i64 + along);
                    let inside = (0..rows as i64).contains(&row) && (0..width as i64).contains(&column);
                    if inside { sum.mul_add(source[row as usize * width + column as usize], *weight) } else { sum }
                });
                assert_eq!(*got, clamped(want, bounds), "{results} rows of {rows} of {width}, result {at}");
            }
            calls += 1;
        }
    }
    calls
}

fn windows_with_edges<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let lanes = kernels.lanes;
    let any = [&[0][..], &[0, 1, 4], &[0, 1, 2]];
    let windows = iproduct!([3, 5, 7], [1, 2], any).filter(|w| kernels.loads_parts || (w.1, w.2) == (1, &[0]));
    let far = [0, lanes + 3, 4 * lanes];
    let of_one_row = iproduct!([1], [1, 2], any.into_iter().chain([&[0, 1, 2, 3, 4, 5, 6, 7, 8][..], &[2, 0], &far]));
    for (taps, every, columns) in windows.chain(of_one_row) {
        let down = if taps == 1 { 1 } else { every };
        for (width, before, after) in [1, lanes, 2 * lanes + 1, 5 * lanes - 1, 2100]
            .into_iter()
            .flat_map(|w| [(w, 0, 0), (w, 1, 1), (w, 3, lanes + 3)])
        {
            let heights = match taps {
                1 => &[(1, 0, 0), (7, 0, 0)][..],
                _ => &[(1, 1, 2), (4, 0, 0), (6, 3, 9), (2, 8, 1)],
            };
            for (&(height, above, below), bounds) in heights.iter().cartesian_product(all_bounds()) {
                let results = |size: usize, taps: usize, step: usize| (size >= taps).then(|| (size - taps) / step + 1);
                let furthest = columns.iter().fold(0, |far, column| far.max(*column));
                let sizes = results(before + width + after, furthest + 1, every).zip(results(
                    above + height + below,
                    taps,
                    down,
                ));
                let Some((wide, rows)) = sizes else { continue };
                let inside = before == 0 && furthest + every * wide.max(lanes) <= width;
                if !kernels.loads_parts && taps > 1 && !inside {
                    continue;
                }
                let source = Guarded::new(side, &values::<T>(height * width, 1));
                let weights = Guarded::new(side, &values::<T>(taps * columns.len(), 2));
                let edges = Edges {
                    first: -((above * width + before) as isize),
                    rows: (above.min((rows - 1) * down + taps), (above + height).min((rows - 1) * down + taps)),
                    column: -(before as isize),
                    width,
                };
                let window = Window {
                    source: &source,
                    pitch: width,
                    steps: (down, every),
                    columns,
                    weights: &weights,
                    bias: T::of(5),
                    bounds,
                    edges: Some(edges),
                };
                let mut to = Guarded::new(side, &vec![T::of(99); rows * wide]);
                kernels.sum_of_window(&window, &Results { rows, width: wide, step: wide }, &mut to);
                for (at, got) in to.iter().enumerate() {
                    let (r, i) = (at / wide, at % wide);
                    let pairs = (0..taps).flat_map(|k| (0..columns.len()).map(move |c| (k, c)));
                    let want = pairs.fold(T::of(5), |sum, (k, c)| {
                        let row = (r * down + k).checked_sub(above).filter(|row| *row < height);
                        let column = (i * every + columns[c]).checked_sub(before).filter(|column| *column < width);
                        match row.zip(column) {
                            Some((row, column)) => {
                                sum.mul_add(source[row * width + column], weights[k * columns.len() + c])
                            }
                            None => sum,
                        }
                    });
                    assert_eq!(
                        *got,
                        clamped(want, bounds),
                        "{taps} rows of taps, {height}x{width} every {every}, {edges:?}"
                    );
                }
                calls += 1;
            }
        }
    }
    calls
}

fn copies<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    let mut calls = 0;
    let lanes = kernels.lanes;
    for (width, count) in
        [1, lanes - 1, lanes, lanes + 1, 3 * lanes - 1].iter().flat_map(|w| [1, 2, 5].map(|n| (*w, n)))
    {
        for (before, after, gap) in [(0, 0, 0), (1, 1, 0), (2, 0, 3), (0, 3, 1), (4, lanes, 0)] {
            let pitch = before + width + after;
            let rows = Rows { count, width, step: width + gap, before };
            let from = Guarded::new(side, &values::<T>((count - 1) * rows.step + width, 1));
            let mut to = Guarded::new(side, &vec![T::of(99); count * pitch]);
            kernels.padded_rows(&from, &rows, &mut to, pitch);
            for (at, got) in to.iter().enumerate() {
                let inside = (at % pitch).checked_sub(before).filter(|i| *i < width);
                assert_eq!(*got, inside.map_or(T::ZERO, |i| from[at / pitch * rows.step + i]), "{rows:?}");
            }
            for widths in [[width, width], [width + 1, width], [width, width - 1]] {
                let pitch = before + width + 1 + after;
                let all = widths[0] + widths[1];
                let rows = SplitRows { count, step: all + gap, widths, before: [before, before.min(1)] };
                let from = Guarded::new(side, &values::<T>((count - 1) * rows.step + all, 1));
                let mut to = [0, 1].map(|_| Guarded::new(side, &vec![T::of(99); count * pitch]));
                let [even, odd] = &mut to;
                kernels.split_rows(&from, &rows, [even, odd], pitch);
                for (s, to) in to.iter().enumerate() {
                    for (at, got) in to.iter().enumerate() {
                        let inside = (at % pitch).checked_sub(rows.before[s]).filter(|i| *i < widths[s]);
                        let want = inside.map_or(T::ZERO, |i| from[at / pitch * rows.step + 2 * i + s]);
                        assert_eq!(*got, want, "{rows:?}");
                    }
                }
                calls += 2;
            }
        }
    }
    calls
}

/// Tests the transforms of data, weights and products, which together compute the tiles'
/// convolution.
fn tile_transforms<T: Number>(kernels: &Kernels<T>, side: Side) -> usize {
    if kernels.transforms.is_none() {
        return 0;
    }
    let mut calls = 0;
    let lanes = kernels.lanes;
    let taps = (1..=3).flat_map(|rows| (1..=3).map(move |columns| (rows, columns)));
    let winograd = taps.map(|(rows, columns)| TileKind::Winograd { results: 2, rows, columns });
    let threes = [(1, 2), (2, 1), (2, 2)];
    let threes = threes.map(|(rows, columns)| TileKind::Winograd { results: 3, rows, columns });
    let fourier = FOURIER_VALUES
        .into_iter()
        .flat_map(|values| [1, 3, values / 2, values].map(|taps| TileKind::Fourier { values, taps }));
    let all = winograd.chain(threes).chain([TileKind::Cyclic]).chain(fourier);
    let all = all.flat_map(|kind| [1, 3].map(|tiles| (kind, tiles))).cartesian_product([
        (false, false),
        (false, true),
        (true, false),
        (true, true),
    ]);
    for ((kind, tiles), short) in all {
        if short != (false, false) && !kind.can_be_short() {
            continue;
        }
        let transforms = kernels.tile_transforms(kind);
        let points = kind.points();
        // Taps, results and offsets along rows and columns.
        let ((rows, columns), (down, along), (of_rows, of_columns)) = match kind {
            TileKind::Winograd { results, rows, columns } => {
                let of = |taps: usize| if taps == 1 { 1 } else { results };
                ((rows, columns), (of(rows), of(columns)), (results, results))
            }
            TileKind::Cyclic => ((3, 3), (4, 4), (4, 4)),
            TileKind::Fourier { values, taps } => ((1, taps), (1, values - taps + 1), (1, values - taps + 1)),
        };
        let (height, width) = kind.reads_if_short(short);
        let channels = 2 * lanes;
        let steps = (width * channels + 3, channels + 1);
        let starts: Vec<usize> = (0..tiles).map(|tile| tile * 5).collect();
        let reach = (height - 1) * steps.0 + (width - 1) * steps.1 + channels;
        let pixels = Guarded::new(side, &values::<T>(starts[tiles - 1] + reach, 1));
        let of_taps: Vec<Guarded<T>> =
            (0..rows * columns).map(|tap| Guarded::new(side, &values(channels, tap as i64))).collect();
        let strides = PointStrides { point: channels + 1, tile: points * (channels + 1) + 2 };
        let last = (points - 1) * strides.point;
        let mut data = Guarded::new(side, &vec![T::of(99); last + (tiles - 1) * strides.tile + channels]);
        transforms.data(&TileData { pixels: &pixels, starts: &starts, steps, channels, short }, &mut data, strides);
        let mut weights = Guarded::new(side, &vec![T::of(99); last + channels]);
        let slices: Vec<&[T]> = of_taps.iter().map(|tap| &**tap).collect();
        transforms.filter(&slices, &mut weights, strides.point);
        for tile in 0..tiles {
            for point in 0..points {
                for c in 0..channels {
                    let product = &mut data[tile * strides.tile + point * strides.point + c];
                    let zero = kind.zero_if_short(point);
                    let is_zero = short.0 && zero.0 || short.1 && zero.1;
                    assert!(!is_zero || *product == T::ZERO, "{kind:?}, {short:?}, {point}");
                    *product = T::ZERO.mul_add(*product, weights[point * strides.point + c]);
                }
            }
        }
        let bias = Guarded::new(side, &values::<T>(channels, 7));
        let of_tile = of_rows * of_columns;
        assert_eq!(of_tile, kind.offsets());
        let size = of_tile * channels;
        let offset = |tile: usize, result: usize| tile * size + (of_tile - 1 - result) * channels;
        let all = || (0..tiles).flat_map(|tile| (0..of_tile).map(move |result| (tile, result)));
        let offsets: Vec<usize> = all().map(|(tile, result)| offset(tile, result)).collect();
        let mut to = Guarded::new(side, &vec![T::of(99); tiles * size]);
        for start in [Start::Bias(&bias), Start::Add] {
            assert!(transforms.products(&data, strides, start, channels, &offsets, &mut to));
        }
        for (tile, result) in all() {
            let (row, column) = (result / of_columns, result % of_columns);
            let there = row < down && column < along;
            let place =
                |short: bool, at: usize, of: usize| if short && of > 1 { short_result(at, of) } else { Some(at) };
            let (row, column) = match (place(short.0, row, down), place(short.1, column, along)) {
                (Some(row), Some(column)) => (row, column),
                _ => continue,
            };
            for c in 0..channels {
                if !there {
                    assert_eq!(to[offset(tile, result) + c], T::of(99));
                    continue;
                }
                let of_tap = |sum: T, tap: usize| {
                    let (row, column) = (row + tap / columns, column + tap % columns);
                    sum.mul_add(of_taps[tap][c], pixels[starts[tile] + row * steps.0 + column * steps.1 + c])
                };
                // The expected value is the bias plus twice the sum.
                let sum = (0..2).fold(bias[c], |sum, _| (0..rows * columns).fold(sum, of_tap));
                let got = to[offset(tile, result) + c];
                if matches!(kind, TileKind::Fourier { .. }) {
                    // Its cosines are rounded.
                    assert!(got.is_near(sum), "{kind:?}, result {result} of tile {tile}: {got:?}, not {sum:?}");
                } else {
                    assert_eq!(got, sum, "{kind:?}, result {result} of tile {tile}");
                }
            }
        }
        calls += 4;
    }
    calls
}

#[test]
fn tile_transforms_stay_inside() {
    for_each_kernel_set!(tile_transforms);
}

#[test]
fn position_tiles_stay_inside() {
    for_each_kernel_set!(position_tiles);
}

#[test]
fn channel_tiles_stay_inside() {
    for_each_kernel_set!(channel_tiles);
}

#[test]
fn chained_channel_tiles_stay_inside() {
    for_each_kernel_set!(chained_channel_tiles);
}

#[test]
fn listed_channel_tiles_stay_inside() {
    for_each_kernel_set!(listed_channel_tiles);
}

#[test]
fn row_tiles_stay_inside() {
    for_each_kernel_set!(row_tiles);
}

#[test]
fn sums_of_taps_stay_inside() {
    for_each_kernel_set!(sums_of_taps);
}

#[test]
fn sums_of_pixels_stay_inside() {
    for_each_kernel_set!(sums_of_pixels);
}

#[test]
fn windows_stay_inside() {
    for_each_kernel_set!(windows);
}

#[test]
fn planes_stay_inside() {
    for_each_kernel_set!(planes);
}

#[test]
fn windows_with_edges_stay_inside() {
    for_each_kernel_set!(windows_with_edges);
}

#[test]
fn copies_stay_inside() {
    for_each_kernel_set!(copies);
}

#[test]
fn row_kernels_stay_inside() {
    for_each_kernel_set!(rows);
}

#[test]
fn conversions_of_halves_stay_inside() {
    for side in [Side::Before, Side::After] {
        for len in [0, 1, 15, 16, 17, 47, 600] {
            let singles: Vec<f32> = (0..len).map(|i| i as f32 - 3.5).collect();
            let singles = Guarded::new(side, &singles);
            let mut halves = Guarded::new(side, &vec![f16::ZERO; len]);
            crate::kernel::narrow(&singles, &mut halves);
            let mut again = Guarded::new(side, &vec![99f32; len]);
            crate::kernel::widen(&halves, &mut again);
            assert_eq!(singles[..], again[..], "{len} on {side:?}");
        }
    }
}

/// Kernels whose results are bytes, in exactly the memory that their contracts name.
#[test]
fn bytes_between_guarded_pages() -> tract_core::internal::TractResult<()> {
    let scale = |channel: usize| ChannelScale { before: 3.0, factor: 0.01 + channel as f64 * 1e-3, term: 0.25 };
    let narrowing = Narrowing { limits: (-20.0, 200.0), zero_point: 20 };
    let added = AddedBytes { factor: 0.3, zero_point: 100, flip: 0x80 };
    let scales_of = |added| ByteScales::new((0..131).map(scale).collect(), narrowing, false, added, |_| 1e6);
    let (plain, with_added) = (scales_of(None)?, scales_of(Some(added))?);
    let bytes = |len: usize| (0..len).map(|i| (i * 37 % 251) as u8).collect::<Vec<u8>>();
    let (offsets, weights) = ([0, 3, 9], [[1i8, -2, 3, 0], [-128, 127, 5, 6], [0, 0, 7, -9]]);
    let quads = weights.map(|weights| Quad::of(weights.map(|weight| weight as u8)));
    let kernel_sets = Isa::ALL.iter().filter(|isa| isa.is_available()).map(|isa| ByteKernels::of(*isa));
    for (kernels, side) in kernel_sets.cartesian_product([Side::Before, Side::After]) {
        for ((count, len), step) in
            [(1, 1), (2, 15), (1, 64), (3, 65), (2, 130)].into_iter().cartesian_product(BYTE_STEPS)
        {
            let rows = ByteRows { count, len, steps: [len * step + 5, len + 1] };
            let source = Guarded::new(side, &bytes(9 + kernels.reach(step, rows)));
            let mut to = Guarded::new(side, &vec![0xa5u8; (count - 1) * (len + 1) + len]);
            let sums = ByteSums { offsets: &offsets, weights: &quads, start: -77, step, scales: &plain, channel: 5 };
            kernels.sums(&sums, &source, rows, &mut to);
            for (row, at) in (0..count).cartesian_product(0..len) {
                let from = |tap: usize, byte: usize| source[row * rows.steps[0] + at * step + offsets[tap] + byte];
                let products = (0..3)
                    .cartesian_product(0..4)
                    .map(|(tap, byte)| i32::from(from(tap, byte)) * i32::from(weights[tap][byte]));
                assert_eq!(to[row * (len + 1) + at], plain.exact(5, products.sum::<i32>() - 77, None));
            }
            let untouched = (1..count).all(|row| to[row * (len + 1) - 1] == 0xa5);
            assert!(untouched, "{side:?}");
            let copied = ByteRows { count, len, steps: [len + 2, len + 1] };
            let source = Guarded::new(side, &bytes((count - 1) * (len + 2) + len));
            kernels.copy(&source, 0x80, copied, &mut to);
            let same = |(row, at): (usize, usize)| to[row * (len + 1) + at] == source[row * (len + 2) + at] ^ 0x80;
            assert!((0..count).cartesian_product(0..len).all(same));
            let halves = [Guarded::new(side, &bytes(len)), Guarded::new(side, &bytes(len + 1)[1..])];
            let mut to = Guarded::new(side, &vec![0u8; 2 * len - 1]);
            kernels.interleave(&[&halves[0], &halves[1]], &mut to);
            assert!(to.iter().enumerate().all(|(at, to)| *to == halves[at % 2][at / 2]));
        }
        for (len, scales) in [1, 16, 63, 64, 65, 131].into_iter().cartesian_product([&plain, &with_added]) {
            let wide: Vec<i32> = (0..len as i32).map(|i| i * 797 % 20_000 - 7_000).collect();
            let (from, more) = (Guarded::new(side, &wide), Guarded::new(side, &bytes(len)));
            let sums = SumsOfBytes { sums: &from, added: scales.added.map(|_| &more[..]), scales };
            let mut to = Guarded::new(side, &vec![0u8; len]);
            let want = |at: usize, channel: usize| scales.exact(channel, wide[at], scales.added.map(|_| more[at]));
            kernels.rescale(sums, 7, &mut to);
            assert!(to.iter().enumerate().all(|(at, to)| *to == want(at, 7)), "{len}");
            kernels.rescale_pixel(sums, 131 - len, &mut to);
            assert!(to.iter().enumerate().all(|(at, to)| *to == want(at, 131 - len + at)), "{len}");
        }
    }
    Ok(())
}

/// Checks that the pages do fault, without which the other tests would prove nothing.
#[test]
fn the_pages_are_guarded() {
    for (side, offset) in [(Side::Before, -1), (Side::After, 5), (Side::Before, 0), (Side::After, 4)] {
        let block = Guarded::new(side, &[1f32; 5]);
        // SAFETY: the child only reads one element, which is inside the block or faults, and then
        // exits at once.
        let status = unsafe {
            let child = libc::fork();
            assert!(child >= 0, "no process can be made");
            if child == 0 {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                std::hint::black_box(block.first.offset(offset).read_volatile());
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        let faulted = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
        assert_eq!(faulted, !(0..5).contains(&offset), "{side:?}, element {offset}");
    }
}
