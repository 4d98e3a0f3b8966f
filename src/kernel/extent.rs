//! Sizes for bounds checks of slices.
//!
//! A size that overflows saturates to `usize::MAX`, which is longer than any slice, so the check
//! fails. A size that wrapped around could pass.

/// The product of some sizes.
#[inline(always)]
pub(crate) fn product<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

/// `Σ count·step`: the distance covered by these steps.
#[inline(always)]
pub(crate) fn reach<const N: usize>(steps: [(usize, usize); N]) -> usize {
    steps.into_iter().fold(0, |sum, (count, step)| sum.saturating_add(count.saturating_mul(step)))
}

/// `len` rounded up to a multiple of `step`.
#[inline(always)]
pub(crate) fn rounded_up(len: usize, step: usize) -> usize {
    len.checked_next_multiple_of(step).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tile_data::{PointStrides, TileData};
    use super::super::tile_transforms::TileKind;
    use crate::kernel::col2im_row::{Col2imRows, Col2imRun};
    use crate::kernel::depthwise_pixels::{LaneGather, PixelSums, PixelTap, PixelTaps, Spaced};
    use crate::kernel::depthwise_plane::PlaneTaps;
    use crate::kernel::depthwise_taps::WeightedTap;
    use crate::kernel::depthwise_window::{Edges, Results, Window};
    use crate::kernel::gemm_tile::{ListedPixels, PhaseOperand, Source, Start, StridedRuns, TilePositions};
    use crate::kernel::pad_copy::{Rows, SplitRows};
    use crate::kernel::pixel_lists::PixelLists;
    use crate::kernel::transpose::PixelStarts;
    use crate::kernel::{Dispatch, Kernels};
    use crate::simd::isa::Isa;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Twice this wraps around to zero.
    const HUGE: usize = 1 << (usize::BITS - 1);

    /// Checks that `call` fails in a kernel's own assertion. An overflow check would not do, as
    /// release builds have none.
    fn refused(what: &str, call: impl FnOnce()) {
        let panic = catch_unwind(AssertUnwindSafe(call)).expect_err(what);
        let message = panic
            .downcast_ref::<&str>()
            .map_or_else(|| panic.downcast_ref::<String>().cloned(), |m| Some(m.to_string()));
        assert!(message.as_deref().is_some_and(|m| m.starts_with("assertion failed")), "{what}: {message:?}");
    }

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "no panic is caught there")]
    fn sizes_that_wrap_around_are_refused() {
        for isa in Isa::ALL.iter().copied().filter(|isa| *isa != Isa::Amx && isa.is_available()) {
            tiles_refuse(f32::kernels(isa));
            copies_refuse(f32::kernels(isa));
            sums_refuse(f32::kernels(isa));
            transforms_refuse(f32::kernels(isa));
        }
    }

    fn tiles_refuse(kernels: &Kernels<f32>) {
        let data = vec![1f32; 4096];
        let mut out = vec![0f32; 4096];
        let source = Source { data: &data, base: 0, channel_stride: HUGE, channels: 3, taps: &[0], prefetch: false };
        let near = Source { channel_stride: 1, ..source };
        let at_the_end = Source { base: usize::MAX, ..near };
        let (bias, add) = (&data[..], Start::Add);
        let tile = kernels.position_tiles.iter().find(|tile| tile.mr() == 4).expect("a tile of four rows");
        refused("position tile, channels", || tile.run(&data, &source, add, &mut out, 64));
        refused("position tile, base", || tile.run(&data, &at_the_end, add, &mut out, 64));
        refused("position tile, rows", || tile.run(&data, &near, add, &mut out, HUGE));
        let many = Source { channels: HUGE, channel_stride: 0, taps: &[0, 0], ..source };
        refused("position tile, panel", || tile.run(&data, &many, add, &mut out, 64));
        let tile = kernels.channel_tiles.iter().find(|tile| tile.positions() == 4).expect("a tile of four positions");
        let mut run = |source: &Source<f32>, tiles, stride, out_stride| {
            tile.run(&data, source, (add, None), &mut out, TilePositions { tiles, stride, out_stride })
        };
        refused("channel tile, channels", || run(&source, 1, 1, 64));
        refused("channel tile, positions", || run(&near, 1, usize::MAX / 3 + 1, 64));
        refused("channel tile, rows", || run(&near, 1, 1, usize::MAX / 3 + 1));
        refused("channel tile, panel", || run(&many, 1, 1, 64));
        refused("channel tile, tiles", || run(&near, HUGE, 1, 0));
        refused("channel tile, rows of tiles", || run(&near, 64, 0, 64));
        let listed = |tap, offset| {
            let mut lists = PixelLists::new(4, 1, 1).expect("memory");
            lists.push([(tap, [offset; 4])]).expect("a list");
            lists
        };
        let mut run = |lists: &PixelLists, base, channels, step| {
            tile.run_listed(
                &data,
                &ListedPixels { data: &data, base, channels, lists, list: 0 },
                (add, None),
                &mut out,
                step,
            )
        };
        refused("listed tile, tap", || run(&listed(u32::MAX, 0), 0, 1, 64));
        refused("listed tile, offset", || run(&listed(0, u32::MAX), 0, 1, 64));
        refused("listed tile, base", || run(&listed(0, 1), usize::MAX, 1, 64));
        refused("listed tile, channels", || run(&listed(0, 0), 0, HUGE, 64));
        refused("listed tile, rows", || run(&listed(0, 0), 0, 1, HUGE));
        refused("listed tile, positions", || run(&PixelLists::new(6, 0, 0).expect("memory"), 0, 1, 64));
        let tile = kernels.row_tiles(1).iter().find(|tile| tile.mr() == 1);
        let Some(tile) = tile else { return assert_eq!(kernels.lanes, 4, "only the portable set has no row tiles") };
        let operand = PhaseOperand { panel: &data, taps: &[0], chain: 8, two_chains: false };
        let mut run = |source: &Source<f32>, elements, count, step, (pitch, tile_step)| {
            let runs = StridedRuns { elements, count, step, pitch, tile_step };
            tile.run(&[operand], source, bias, &mut [&mut out[..]], &runs, None)
        };
        refused("row tile, channels", || run(&source, 0..1, 1, 0, (0, 8)));
        refused("row tile, pitch", || run(&near, 0..1, 3, 1, (HUGE, 8)));
        refused("row tile, step", || run(&near, 0..1, 3, HUGE, (1, 8)));
        refused("row tile, elements", || run(&near, usize::MAX - 1..usize::MAX, 2, 2, (1, 8)));
        refused("row tile, positions", || run(&near, 0..usize::MAX, 1, 0, (0, 8)));
        refused("row tile, step of tiles", || run(&near, 0..64, 1, 0, (0, HUGE)));
    }

    fn copies_refuse(kernels: &Kernels<f32>) {
        let from = vec![1f32; 4096];
        let mut to = vec![0f32; 4096];
        let lanes = kernels.lanes;
        let mut starts = vec![0; lanes];
        starts[1] = usize::MAX;
        let mut rows = |starts: &[usize]| {
            kernels.pixels_to_rows(&from, PixelStarts::new(starts), &mut [&mut to[..]], 0, None, false)
        };
        refused("pixels to rows", || rows(&starts));
        refused("pixels to rows, ascending", || rows(&[vec![0; lanes - 1], vec![usize::MAX]].concat()));
        refused("pixels to rows, few", || rows(&starts[2..]));
        refused("indexed rows to pixels, starts", || {
            kernels.indexed_rows_to_pixels(&from, &starts[..2], 1, &mut to, 4)
        });
        refused("indexed rows to pixels, count", || {
            kernels.indexed_rows_to_pixels(&from, &[0], usize::MAX, &mut to, 0)
        });
        refused("indexed rows to pixels, step", || kernels.indexed_rows_to_pixels(&from, &[0], 3, &mut to, HUGE));
        refused("rows to pixels, columns", || kernels.rows_to_pixels(&from, HUGE, (1, 3), &mut to, 64));
        refused("rows to pixels, rows", || kernels.rows_to_pixels(&from, 64, (3, 1), &mut to, HUGE));
        refused("copied pixels, read", || kernels.copy_pixels(&from, HUGE, (3, 1), (&mut to, 4), None, false));
        refused("copied pixels, written", || kernels.copy_pixels(&from, 4, (3, 1), (&mut to, HUGE), None, false));
        let rows = Rows { count: 3, width: 4, step: 4, before: 0 };
        refused("padded rows, read", || kernels.padded_rows(&from, &Rows { step: HUGE, ..rows }, &mut to[..24], 8));
        refused("padded rows, written", || {
            let rows = Rows { count: HUGE, step: 0, ..rows };
            kernels.padded_rows(&from, &rows, &mut [], 8)
        });
        refused("padded rows, before", || {
            let rows = Rows { before: usize::MAX, ..rows };
            kernels.padded_rows(&from, &rows, &mut to[..24], 8)
        });
        let (even, odd) = to.split_at_mut(24);
        let rows = SplitRows { count: 3, step: 8, widths: [4, 4], before: [0, 0] };
        refused("split rows, read", || {
            kernels.split_rows(&from, &SplitRows { step: HUGE, ..rows }, [even, &mut odd[..24]], 8)
        });
        refused("split rows, written", || {
            kernels.split_rows(&from, &SplitRows { count: HUGE, step: 0, ..rows }, [&mut [], &mut []], 8)
        });
        let nothing = SplitRows { step: HUGE, widths: [0, 0], ..rows };
        to.fill(1.0);
        let (even, odd) = to.split_at_mut(24);
        kernels.split_rows(&from, &nothing, [even, &mut odd[..24]], 8);
        assert!(to[..48].iter().all(|x| *x == 0.0) && to[48..].iter().all(|x| *x == 1.0));
    }

    fn sums_refuse(kernels: &Kernels<f32>) {
        let from = vec![1f32; 4096];
        let mut to = vec![0f32; 4096];
        let lanes = kernels.lanes;
        let far = vec![vec![WeightedTap { offset: usize::MAX, weight: 1.0 }]];
        refused("sum of taps", || kernels.sum_of_taps(&from, &far, (0.0, None), &mut to[..lanes]));
        let window = Window {
            source: &from,
            pitch: 64,
            steps: (1, 1),
            columns: &[0],
            weights: &from[..3],
            bias: 0.0,
            bounds: None,
            edges: None,
        };
        let results = Results { rows: 3, width: 4, step: 4 };
        let mut sum = |window: Window<f32>, results: Results| kernels.sum_of_window(&window, &results, &mut to);
        refused("window, pitch", || sum(Window { pitch: HUGE, ..window }, Results { rows: 1, ..results }));
        refused("window, column", || sum(Window { columns: &[usize::MAX], ..window }, results));
        refused("window, results", || sum(window, Results { step: HUGE, ..results }));
        let edges = Edges { first: 0, rows: (0, 3), column: 0, width: 64 };
        let with = |edges: Edges, pitch: usize| Window { edges: Some(edges), pitch, ..window };
        refused("window with edges, pitch", || sum(with(edges, HUGE), results));
        refused("window with edges, first", || sum(with(Edges { first: isize::MAX, ..edges }, 64), results));
        refused("window with edges, column", || sum(with(Edges { column: isize::MIN, ..edges }, 64), results));
        refused("window with edges, width", || sum(with(Edges { width: usize::MAX, ..edges }, 64), results));
        let plane = PlaneTaps::new(lanes, HUGE, 1, 2, &[]);
        refused("plane", || kernels.sum_of_plane(&plane, &[], &[], (0.0, None), &mut [0.0; 2]));
        let tap = PixelTap { offset: 0, weights: 0 };
        let (taps, far) =
            (PixelTaps::new(vec![tap], 1), PixelTaps::new(vec![PixelTap { offset: usize::MAX, ..tap }], 1));
        let heavy = PixelTaps::new(vec![PixelTap { weights: usize::MAX, ..tap }], 1);
        let positions = [Spaced { count: 2, from: 4, to: 16 }, Spaced { count: 3, from: 1, to: 4 }];
        let sums = PixelSums {
            source: &from,
            positions,
            taps: &taps,
            weights: &from,
            each: 0,
            bias: &from,
            bounds: None,
            channels: 4,
            gather: None,
        };
        let mut sum = |sums: PixelSums<f32>| kernels.sum_of_pixels(&sums, &mut to);
        for axis in 0..2 {
            let with = |change: fn(&mut Spaced)| {
                let mut positions = positions;
                change(&mut positions[axis]);
                PixelSums { positions, ..sums }
            };
            refused("pixel sums, read", || sum(with(|spaced| spaced.from = HUGE)));
            refused("pixel sums, written", || sum(with(|spaced| spaced.to = HUGE)));
            refused("pixel sums, count", || sum(with(|spaced| spaced.count = HUGE)));
        }
        refused("pixel sums, offset", || sum(PixelSums { taps: &far, ..sums }));
        refused("pixel sums, weights", || sum(PixelSums { taps: &heavy, ..sums }));
        refused("pixel sums, each", || sum(PixelSums { each: usize::MAX / lanes + 1, channels: lanes + 1, ..sums }));
        assert_eq!(LaneGather::new(lanes, HUGE, 2, 1), None);
        let run = |from| [vec![Col2imRun { from, to: 0..1 }]];
        let mut sum = |phases: &[Vec<Col2imRun>], base, pitch| {
            let (one, two) = to.split_at_mut(1);
            let rows = Col2imRows { from: &from, pitch, bases: &[base], phases };
            kernels.accumulate_rows(&rows, &[0.0; 2], &mut [one, two])
        };
        refused("col2im rows, run", || sum(&run(usize::MAX), 1, 1));
        refused("col2im rows, base", || sum(&run(1), usize::MAX, 1));
        refused("col2im rows, pitch", || sum(&run(1), 1, usize::MAX));
        refused("col2im rows, phases", || sum(&[], 1, 1));
    }

    fn transforms_refuse(kernels: &Kernels<f32>) {
        let from = vec![1f32; 4096];
        let mut to = vec![0f32; 4096];
        let channels = kernels.lanes;
        let transforms = kernels.tile_transforms(TileKind::Winograd { results: 2, rows: 2, columns: 2 });
        let strides = PointStrides { point: channels, tile: 9 * channels };
        let data = TileData {
            pixels: &from,
            starts: &[0, 0, 0],
            steps: (channels, channels),
            channels,
            short: (false, false),
        };
        let far = PointStrides { tile: HUGE, ..strides };
        let apart = PointStrides { point: HUGE, ..strides };
        refused("data, steps", || transforms.data(&TileData { steps: (HUGE, 1), ..data }, &mut to, strides));
        refused("data, starts", || transforms.data(&TileData { starts: &[usize::MAX], ..data }, &mut to, strides));
        refused("data, tiles", || transforms.data(&data, &mut to, far));
        refused("data, points", || transforms.data(&data, &mut to, apart));
        refused("filter", || transforms.filter(&[&from[..channels]; 4], &mut to, HUGE));
        let mut products = |strides, start, offset: usize| {
            transforms.products(&from, strides, start, channels, [[0, 0, 0, offset]; 3].as_flattened(), &mut to);
        };
        refused("products, tiles", || products(far, Start::Add, 0));
        refused("products, points", || products(apart, Start::Add, 0));
        refused("products, offsets", || products(strides, Start::Add, usize::MAX));
    }
}
