//! Each phase as a small dense convolution whose positions read pixels through lists. Output
//! channels are the lanes.
//!
//! The input is transposed into pixels once. For each tap of a register tile, a list names the pixel
//! that each of its positions reads, or a pixel of zeros outside the input. Positions of a tile may
//! therefore be in several rows and planes, and a tap that is outside the input for all of them is
//! not multiplied. This suits small planes and volumes, strides and dilations.
//!
//! The phases of an output row are interleaved as their sums are transposed into rows, if a part of L2 holds the sums of
//! all positions of these phases. Otherwise each phase is stored element by element.
//!
//! It is the algorithm of Dukhan, *The Indirect Convolution Algorithm* (2019), without its products
//! with the pixel of zeros where that is the only one.

use crate::algorithm::blocked::last_width;
use crate::algorithm::chains::longest_chain;
use crate::algorithm::{Algorithm, Operands, Query};
use crate::element::Element;
use crate::estimate::cost::{self, Cost};
use crate::geometry::{Axes, AxisPhases};
use crate::kernel::{
    Dispatch, Kernels, LISTED_POSITIONS, ListedPixels, MOST_POSITIONS, PixelLists, PixelStarts, Start,
};
use crate::layout::filter::{FilterLayout, PackedFilter};
use crate::layout::input_strides;
use crate::layout::panels::{Panel, PanelShape, Panels};
use crate::layout::taps::taps_before;
use crate::memory::{Scratch, reserved};
use crate::parallel::{parallel, threads};
use crate::ranges::{blocks_of, even_blocks, even_part, unflatten};
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use std::ops::Range;
use tract_core::internal::tract_itertools::Itertools;
use tract_core::internal::tract_smallvec::{SmallVec, smallvec};
use tract_core::internal::*;

/// The fewest input channels of a group. With fewer, a pixel is read faster than its place in a list.
const FEWEST_CHANNELS: usize = 4;

/// The divisor of L2 for the sums of a block of tiles.
const SHARE_OF_SUMS: usize = 16;

/// The sums of the phases that share output rows may take this many times those of the tiles that are stored together.
const MOST_OF_ROWS: usize = 4;

/// Lists may take this many times L2.
const MOST_OF_L2: usize = 8;

/// Positions that a task transposes into pixels.
const TRANSPOSED_AT_ONCE: usize = 256;

/// The decision for one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indirect {
    /// Output channels per panel.
    pub width: usize,
    /// Output channels of the last panel.
    pub last_width: usize,
    /// Positions per register tile.
    pub positions: usize,
    /// Input channels per pass.
    pub chunk: usize,
    /// The most taps per pass. Channels × taps of a pass is the longest accumulation chain.
    pub taps: usize,
    /// Register tiles whose sums are stored together.
    pub tiles: usize,
    /// Register tiles of a phase that all panels compute before the next ones, as L2 holds the pixels that they read.
    /// None if each panel computes all of them.
    pub block: Option<usize>,
    /// Images whose pixels are in memory together.
    pub images: usize,
    /// Elements per pixel: the input channels of a group in an odd number of whole vectors, as
    /// pixels a power of two apart would compete for the same cache sets.
    pub pixel: usize,
    /// Estimated cost, in vector multiply-adds.
    pub cost: u64,
    axes: Axes,
}

/// Returns the number of grid positions of one axis at which a phase has an output.
fn positions_of(axis: &AxisPhases, phase: usize) -> usize {
    axis.output.saturating_sub(phase).div_ceil(axis.out_step)
}

/// Returns the number of pixels that a phase reads for some adjacent positions.
fn pixels_read(axes: &Axes, positions: usize) -> usize {
    let (mut window, mut pixels) = (positions, 1_usize);
    for axis in axes.iter().rev() {
        let shifts = axis.phases.iter().flat_map(|phase| &phase.taps).map(|tap| tap.shift);
        let reach = shifts.clone().max().unwrap_or(0).abs_diff(shifts.min().unwrap_or(0)) as usize;
        let of_window = window.min(axis.grid).saturating_sub(1).saturating_mul(axis.in_step).saturating_add(reach + 1);
        pixels = pixels.saturating_mul(of_window.min(axis.input));
        window = window.div_ceil(axis.grid.max(1));
    }
    pixels
}

/// Returns [`Indirect::block`] for `panels` panels of output channels and tiles of so many positions.
///
/// Either each panel reads all pixels again, or each block reads the whole filter again.
fn block(query: &Query, axes: &Axes, positions: usize, (panels, pixel): (usize, usize)) -> Option<usize> {
    let &Query { problem, machine, element, .. } = query;
    let bytes = |pixels: usize| pixels.saturating_mul(pixel).saturating_mul(element);
    let over_axes = |of: fn(&AxisPhases) -> usize| axes.iter().map(of).fold(1, usize::saturating_mul);
    let image = bytes(over_axes(|axis| axis.input));
    let within = |tiles: &usize| bytes(pixels_read(axes, tiles.saturating_mul(positions))) <= machine.l2 / 2;
    let tiles = (0..usize::BITS).map(|shift| 1 << shift).take_while(within).last()?;
    let filter = [problem.group_in, problem.group_out, axes.taps(), element].into_iter().fold(1, usize::saturating_mul);
    let blocks = over_axes(|axis| axis.grid).div_ceil(tiles.saturating_mul(positions));
    let by_panels = image.saturating_mul(panels).saturating_add(filter);
    let by_blocks = filter.saturating_mul(blocks).saturating_add(image);
    (blocks > 1 && by_blocks < by_panels).then_some(tiles)
}

/// Whether the sums of the phases that share output rows are stored together. Register tiles have so many positions, and
/// otherwise the sums of `tiles` of them are stored together.
fn stores_rows(axes: &Axes, positions: usize, tiles: usize) -> bool {
    let step = axes.columns().out_step;
    // No phase has more positions than the first one.
    let of_phase = axes.iter().map(|axis| positions_of(axis, 0)).fold(1, usize::saturating_mul);
    step > 1 && step.saturating_mul(of_phase.div_ceil(positions)) <= MOST_OF_ROWS * tiles
}

/// Returns the share of taps of one axis that some of `window` adjacent grid positions read inside
/// the input.
fn share_read(axis: &AxisPhases, window: usize) -> f64 {
    let windows = axis.grid.div_ceil(window);
    let read = |inside: Range<usize>| match inside.is_empty() {
        true => 0,
        false => inside.end.div_ceil(window) - inside.start / window,
    };
    let read: usize = axis.phases.iter().flat_map(|phase| &phase.taps).map(|tap| read(axis.inside(tap.shift))).sum();
    read as f64 / (windows * axis.taps()).max(1) as f64
}

impl Algorithm for Indirect {
    type Tables = Lists;

    fn propose(query: &Query) -> Result<Indirect, String> {
        let &Query { problem, machine, element, .. } = query;
        let axes = query.axes()?;
        let forced = query.forced(|layout| match layout {
            FilterLayout::Chunks { width, last_width, chunk } => Some((*width, *last_width, *chunk)),
            _ => None,
        })?;
        let lanes = query.sizes.lanes;
        if problem.group_in < FEWEST_CHANNELS {
            return Err(format!("{} input channels per group are too few for lists of pixels", problem.group_in));
        }
        let over_axes = |of: fn(&AxisPhases) -> usize| axes.iter().map(of).fold(1, usize::saturating_mul);
        let (outputs, inputs) = (over_axes(|axis| axis.output), over_axes(|axis| axis.input));
        let (taps, widest, phases) = (axes.taps(), axes.most_taps(), axes.phases());
        // A phase has its share of the positions and of the taps.
        let listed = over_axes(|axis| axis.grid).saturating_mul(taps);
        if listed.saturating_mul(size_of::<u32>()) > MOST_OF_L2 * machine.l2 {
            return Err(format!("lists of {listed} pixels exceed {MOST_OF_L2} times L2"));
        }
        // Several phases are not split by positions.
        let shares_channels_only = phases > 1 && problem.group == 1 && problem.batch == 1;
        if phases > 1 && problem.data_format == DataFormat::Nxc || shares_channels_only && problem.group_out <= lanes {
            return Err("several phases whose channels can't be shared among threads".to_string());
        }
        let pixel = (problem.group_in.div_ceil(lanes) | 1) * lanes;
        let image = inputs.saturating_add(1).saturating_mul(pixel);
        if u32::try_from(image).is_err() {
            return Err(format!("pixels of {image} elements are too many for a list"));
        }
        let part = longest_chain(problem.group_in.saturating_mul(widest), widest);
        let chunk = forced.map_or_else(|| even_part(problem.group_in, part), |(_, _, chunk)| chunk);
        let under = even_part(widest, part / chunk.max(1));
        let passes = problem.group_in.div_ceil(chunk.max(1)) * widest.div_ceil(under);
        let vectors = problem.group_out.div_ceil(lanes);
        let input_bytes = query.input_bytes();
        let mut best: Option<Indirect> = None;
        for (positions, nv) in query.sizes.channel_tiles.iter().copied() {
            let width = nv * lanes;
            let last_width = last_width(problem.group_out, width, lanes);
            let is_shared = !shares_channels_only || problem.group_out > width;
            if !LISTED_POSITIONS.contains(&positions)
                || !is_shared
                || forced.is_some_and(|f| f != (width, last_width, chunk))
            {
                continue;
            }
            let (mut tiles, mut window, mut share) = (outputs.div_ceil(phases).div_ceil(positions), positions, 1.0);
            tiles *= phases;
            for axis in axes.iter().rev() {
                share *= share_read(axis, window.min(axis.grid.max(1)));
                window = window.saturating_sub(1) / axis.grid.max(1) + 1;
            }
            let panels = problem.group_out.div_ceil(width);
            let product =
                |nv| cost::tile(positions, nv, lanes * element, false, machine) * problem.group_in + cost::LISTED_TAP;
            let of_panels = product(nv) * (panels - 1) + product(last_width / lanes);
            // `tiles` is a multiple of `phases`. The product of all tiles and taps may exceed 32 bits.
            let multiplied = of_panels * (tiles / phases * taps) * share;
            let summed = cost::SUMMED.times(&[tiles * positions, vectors, passes]);
            let stored_tiles = (machine.l2 / SHARE_OF_SUMS / element / (positions * width)).max(1);
            let by_rows = stores_rows(axes, positions, stored_tiles);
            let block = if by_rows { None } else { block(query, axes, positions, (panels, pixel)) };
            let scattered = match phases {
                1 => Cost::ZERO,
                _ if by_rows => cost::STAGED,
                _ => cost::SCATTERED,
            };
            let store = cost::store_of_channels(problem, query.datum_type, machine) + scattered;
            let stored = store.times(&[outputs, vectors]);
            let waited = match problem.data_format {
                DataFormat::Ncx => cost::far_pixels(problem, input_bytes, machine),
                DataFormat::Nxc => Cost::ZERO,
            };
            // All groups are copied before the first one is multiplied.
            let far = image.saturating_mul(problem.group).saturating_mul(element) > machine.l2;
            // Several taps that read a pixel find it in the caches.
            let alone = listed <= inputs && far;
            let again = match alone && block.is_none() {
                true => Cost::new(machine.rates.far_pixels_of_one_tap) * panels,
                false => Cost::ZERO,
            };
            let spilled = if far { cost::SPILLED * 2 } else { Cost::ZERO } + waited;
            let copied = (cost::INTO_PIXELS + spilled + again).times(&[inputs, problem.group_in.div_ceil(lanes)]);
            let group = multiplied + summed + stored + copied + cost::LISTED_GROUP;
            let beyond = cost::beyond_caches(problem, query.datum_type, cost::BEYOND_BY_PIXELS, lanes, machine);
            let cost = (group.times(&[problem.group, problem.batch]) + beyond).rounded();
            if best.as_ref().is_none_or(|b| cost < b.cost) {
                let group_image = image.saturating_mul(problem.group).saturating_mul(element);
                let images = (machine.l2 / 2 / group_image.max(1)).clamp(1, problem.batch.max(1));
                let axes = axes.clone();
                best = Some(Indirect {
                    width,
                    last_width,
                    positions,
                    chunk,
                    taps: under,
                    tiles: stored_tiles,
                    block,
                    images,
                    pixel,
                    cost,
                    axes,
                });
            }
        }
        best.ok_or_else(|| "no kernel has the tile that the filter is packed for".to_string())
    }

    fn cost(&self) -> Option<u64> {
        Some(self.cost)
    }

    fn working_bytes(&self, problem: &Problem, element: usize) -> usize {
        let over_axes = |of: fn(&AxisPhases) -> usize| self.axes.iter().map(of).fold(1, usize::saturating_mul);
        let groups = self.images.saturating_mul(problem.group);
        let pixels = groups.saturating_mul(self.image());
        let channels_at_once = TRANSPOSED_AT_ONCE.saturating_mul(problem.group_in);
        // Those of several phases are stored together, and transposed before.
        let (step, columns) = (self.axes.columns().out_step, self.axes.columns().output);
        let together =
            if step > 1 { MOST_OF_ROWS * self.tiles * (self.positions + 64) } else { self.tiles * self.positions };
        let sums = (together + 64).saturating_mul(2 * self.width).saturating_add(columns);
        let lists = over_axes(|axis| axis.grid).saturating_mul(self.axes.taps()).saturating_mul(2 * size_of::<u32>());
        let tasks = groups.saturating_mul(problem.group_out).saturating_mul(size_of::<Part<f32>>());
        let copies = groups.saturating_mul(self.image() / self.pixel / TRANSPOSED_AT_ONCE + 1);
        let elements = pixels.saturating_add(channels_at_once).saturating_add(sums);
        let listed = lists.saturating_add(tasks).saturating_add(copies.saturating_mul(size_of::<Copied<f32>>()));
        elements.saturating_mul(element).saturating_add(listed)
    }

    fn filter_layout(&self) -> FilterLayout {
        FilterLayout::Chunks { width: self.width, last_width: self.last_width, chunk: self.chunk }
    }

    fn explain(&self) -> String {
        let rows = if self.stores_rows() { ", phases of a row stored together" } else { "" };
        let blocks = self.block.map_or(String::new(), |tiles| {
            format!(", all panels pass over blocks of {} positions", tiles * self.positions)
        });
        format!(
            "tiles of {}x{}, passes of {}x{} (input channels x taps), images at a time: {}{rows}{blocks}",
            self.positions, self.width, self.chunk, self.taps, self.images
        )
    }

    fn tables(&self, problem: &Problem, _lanes: usize) -> TractResult<Lists> {
        Lists::new(self, problem)
    }

    fn run<E: Element>(
        &self,
        lists: &Lists,
        problem: &Problem,
        isa: Isa,
        filter: &PackedFilter,
        operands: &Operands<E>,
        output: &mut [E],
    ) -> TractResult<()> {
        let kernels = <E::Compute as Dispatch>::kernels(isa);
        let widths = (self.width, self.last_width);
        let weights = taps_before(&self.axes).last().map_or(0, |taps| taps * problem.group_in);
        let shape = PanelShape { widths, positions: self.positions, weights };
        let panels = Panels::new(problem, kernels, shape, filter, operands.bias)?;
        let prepared = Prepared { plan: self, problem, kernels, lists, panels, operands };
        let size = output.len() / problem.batch.max(1);
        E::Compute::with_scratch(|scratch| {
            let image = self.image();
            for (images, output) in
                blocks_of(problem.batch, self.images).into_iter().zip(output.chunks_mut(self.images * size))
            {
                let pixels = scratch.block.of(images.len() * problem.group * image)?;
                let mut copies = prepared.copies(images.start, pixels)?;
                parallel(&mut copies, self.cost, &|copied| {
                    E::Compute::with_scratch(|scratch| prepared.copy(copied, scratch))
                })?;
                let mut parts = prepared.parts(images, output)?;
                parallel(&mut parts, self.cost, &|part| {
                    E::Compute::with_scratch(|scratch| prepared.run_part(part, pixels, scratch))
                })?;
            }
            Ok(())
        })
    }
}

impl Indirect {
    /// Whether the sums of the phases that share output rows are stored together.
    fn stores_rows(&self) -> bool {
        stores_rows(&self.axes, self.positions, self.tiles)
    }

    /// Elements of the pixels of an image's group, and of a pixel of zeros.
    fn image(&self) -> usize {
        let inputs = self.axes.iter().map(|axis| axis.input).fold(1, usize::saturating_mul);
        inputs.saturating_add(1).saturating_mul(self.pixel)
    }
}

/// The lists of all tiles, and the phases that they belong to.
#[derive(Debug)]
pub(crate) struct Lists {
    pixels: PixelLists,
    phases: Vec<PhaseLists>,
}

/// The positions and taps of one phase.
#[derive(Debug)]
struct PhaseLists {
    /// The phase of each axis, outermost first.
    of_axes: Vec<usize>,
    /// Grid positions with an output, per axis.
    grid: Vec<usize>,
    /// Number of taps.
    taps: usize,
    /// The offset of its weights in a panel, in units of the panel's width.
    weights: usize,
    /// Its first list. There is one per tile and pass over taps: `[pass][tile]`.
    first: usize,
}

impl PhaseLists {
    /// The lists of a phase begin at `first`.
    fn new(plan: &Indirect, problem: &Problem, phase: usize, before: &[usize], first: usize) -> PhaseLists {
        let of_axes = unflatten(phase, plan.axes.iter().map(|axis| axis.out_step));
        let picked = || plan.axes.iter().zip(&of_axes).map(|(axis, phase)| (axis, &axis.phases[*phase]));
        let residue = picked().fold(0, |at, (axis, phase)| at * axis.out_step + phase.residue);
        PhaseLists {
            grid: plan.axes.iter().zip(&of_axes).map(|(axis, phase)| positions_of(axis, *phase)).collect(),
            taps: picked().map(|(_, phase)| phase.taps.len()).product(),
            weights: problem.group_in * before[residue],
            of_axes,
            first,
        }
    }

    fn positions(&self) -> usize {
        self.grid.iter().product()
    }

    fn tiles(&self, plan: &Indirect) -> usize {
        self.positions().div_ceil(plan.positions)
    }

    /// Lists what the tiles read.
    fn list(&self, plan: &Indirect, pixels: &mut PixelLists) -> TractResult<()> {
        let axes = plan.axes.iter().zip(&self.of_axes);
        let shifts = axes.map(|(axis, phase)| axis.phases[*phase].taps.iter().map(|tap| tap.shift));
        let mut taps = reserved("taps", self.taps)?;
        taps.extend(shifts.multi_cartesian_product());
        let zeros = plan.axes.iter().map(|axis| axis.input).product::<usize>();
        let offset = |pixel: usize| (pixel * plan.pixel) as u32;
        for taps in taps.chunks(plan.taps) {
            for first in (0..self.positions()).step_by(plan.positions) {
                let tile = first..self.positions().min(first + plan.positions);
                let positions: TVec<Vec<usize>> = tile.map(|at| unflatten(at, self.grid.iter().copied())).collect();
                let listed = taps.iter().enumerate().filter_map(|(tap, shifts)| {
                    let mut offsets: SmallVec<[u32; MOST_POSITIONS]> = smallvec![offset(zeros); plan.positions];
                    let mut is_read = false;
                    for (to, position) in offsets.iter_mut().zip(&positions) {
                        if let Some(pixel) = read_pixel(&plan.axes, position, shifts) {
                            (*to, is_read) = (offset(pixel), true);
                        }
                    }
                    is_read.then_some((tap as u32, offsets))
                });
                pixels.push(listed)?;
            }
        }
        Ok(())
    }
}

/// Returns the index of the pixel that a tap reads at a grid position, if it is inside the input.
fn read_pixel(axes: &Axes, position: &[usize], shifts: &[i64]) -> Option<usize> {
    let mut of_axes = axes.iter().zip(position).zip(shifts);
    of_axes.try_fold(0, |flat, ((axis, u), shift)| {
        let at = usize::try_from((u * axis.in_step) as i64 + shift).ok().filter(|at| *at < axis.input)?;
        Some(flat * axis.input + at)
    })
}

impl Lists {
    /// # Errors
    /// Failure to allocate memory.
    fn new(plan: &Indirect, problem: &Problem) -> TractResult<Lists> {
        let before = taps_before(&plan.axes);
        let mut phases: Vec<PhaseLists> = reserved("phases", plan.axes.phases())?;
        let (mut lists, mut taps) = (0, 0);
        for phase in 0..plan.axes.phases() {
            let phase = PhaseLists::new(plan, problem, phase, &before, lists);
            lists += phase.tiles(plan) * phase.taps.div_ceil(plan.taps);
            taps += phase.tiles(plan) * phase.taps;
            phases.push(phase);
        }
        let mut pixels = PixelLists::new(plan.positions, lists, taps)?;
        phases.iter().try_for_each(|phase| phase.list(plan, &mut pixels))?;
        Ok(Lists { pixels, phases })
    }
}

/// Pixels that a task makes.
struct Copied<'a, T> {
    n: usize,
    g: usize,
    /// The first input position.
    first: usize,
    pixels: &'a mut [T],
}

/// A part of the output that a task computes.
struct Part<'a, E> {
    /// Image, and its index among those whose pixels are in memory.
    n: (usize, usize),
    groups: Range<usize>,
    /// Output channels of each group.
    channels: Range<usize>,
    /// Output positions. All of them if there are several phases.
    positions: Range<usize>,
    /// Channels-first: these positions of each channel. Channels-last: all channels of these
    /// positions.
    output: Vec<&'a mut [E]>,
}

/// The data that all tasks share.
struct Prepared<'a, E: Element> {
    plan: &'a Indirect,
    problem: &'a Problem,
    kernels: &'static Kernels<E::Compute>,
    lists: &'a Lists,
    panels: Panels<'a, E>,
    operands: &'a Operands<'a, E>,
}

impl<E: Element> Prepared<'_, E> {
    /// Splits the pixels of some images among tasks.
    fn copies<'p>(&self, first: usize, pixels: &'p mut [E::Compute]) -> TractResult<Vec<Copied<'p, E::Compute>>> {
        let image = self.plan.image();
        let at_once = TRANSPOSED_AT_ONCE * self.plan.pixel;
        let mut copies = reserved("copies", pixels.len() / image * image.div_ceil(at_once))?;
        for (at, pixels) in pixels.chunks_mut(image).enumerate() {
            let (n, g) = (first + at / self.problem.group, at % self.problem.group);
            let chunks = pixels.chunks_mut(at_once).enumerate();
            copies.extend(chunks.map(|(i, pixels)| Copied { n, g, first: i * TRANSPOSED_AT_ONCE, pixels }));
        }
        Ok(copies)
    }

    /// Transposes some input positions into pixels. The one behind the last position is zero.
    fn copy(&self, copied: &mut Copied<E::Compute>, scratch: &mut Scratch<E::Compute>) -> TractResult<()> {
        let Copied { n, g, first, ref mut pixels } = *copied;
        let (problem, pixel, channels) = (self.problem, self.plan.pixel, self.problem.group_in);
        let positions: usize = problem.axes.iter().map(|axis| axis.input).product();
        let count = (pixels.len() / pixel).min(positions - first.min(positions));
        let (pixels, zeros) = pixels.split_at_mut(count * pixel);
        zeros.fill(E::Compute::default());
        if count == 0 {
            return Ok(());
        }
        let (image, channel, _) = input_strides(problem, problem.axes.len());
        let input = self.operands.input.whole()?;
        if problem.data_format == DataFormat::Nxc {
            let all = problem.group * channels;
            let from = input[n * image + first * all..].chunks(all).map(|from| &from[g * channels..][..channels]);
            pixels.chunks_mut(pixel).zip(from).for_each(|(to, from)| E::widen_slice(from, &mut to[..channels]));
            return Ok(());
        }
        let from = (&input[n * image + g * channels * channel + first..], channel, 1);
        crate::layout::planes_to_pixels(self.kernels, from, (count, channels), (pixels, pixel), &mut scratch.ragged)
    }

    /// Splits the output of some images among tasks: first the panels, then the positions.
    ///
    /// # Errors
    /// The parts are not all of the output, or the list's memory can't be allocated.
    fn parts<'o>(&self, images: Range<usize>, output: &'o mut [E]) -> TractResult<Vec<Part<'o, E>>> {
        let (problem, plan) = (self.problem, self.plan);
        let plane: usize = problem.axes.iter().map(|axis| axis.output).product();
        let (groups, panels) = match problem.data_format {
            DataFormat::Nxc => (blocks_of(problem.group, problem.group), 1),
            DataFormat::Ncx => (blocks_of(problem.group, 1), problem.group_out.div_ceil(plan.width)),
        };
        let wanted = match threads(plan.cost) {
            1 => 1,
            threads => (2 * threads).div_ceil(images.len() * groups.len()),
        };
        let width = if panels > 1 { plan.width } else { problem.group_out };
        let channels = even_blocks(panels, wanted.min(panels)).into_iter();
        let channels: Vec<_> =
            channels.map(|panels| panels.start * width..(panels.end * width).min(problem.group_out)).collect();
        let blocks = if plan.axes.phases() == 1 { wanted.div_ceil(channels.len()) } else { 1 };
        let tiles = even_blocks(plane.div_ceil(plan.positions), blocks).into_iter();
        let positions: Vec<_> =
            tiles.map(|tiles| tiles.start * plan.positions..(tiles.end * plan.positions).min(plane)).collect();
        let per_position = if problem.data_format == DataFormat::Nxc { problem.group * problem.group_out } else { 1 };
        let mut parts = reserved("parts", images.len() * groups.len() * channels.len() * positions.len())?;
        let mut planes = output.chunks_mut(plane * per_position);
        for (at, n) in images.enumerate() {
            for (groups, channels) in groups.iter().cartesian_product(&channels) {
                let first = parts.len();
                let slices = if problem.data_format == DataFormat::Nxc { 1 } else { channels.len() };
                for positions in &positions {
                    let (groups, channels, positions) = (groups.clone(), channels.clone(), positions.clone());
                    let output = reserved("parts", slices)?;
                    parts.push(Part { n: (n, at), groups, channels, positions, output });
                }
                for mut rest in planes.by_ref().take(slices) {
                    for part in &mut parts[first..] {
                        let len = part.positions.len() * per_position;
                        let split = rest.split_at_mut_checked(len);
                        let (slice, others) = split.context("output partition: a part is beyond the output")?;
                        part.output.push(slice);
                        rest = others;
                    }
                    ensure!(rest.is_empty(), "output partition: elements={}, no part has them", rest.len());
                }
                let complete = parts[first..].iter().all(|part| part.output.len() == slices);
                ensure!(complete, "output partition: a part is beyond the output");
            }
        }
        ensure!(planes.next().is_none(), "output partition: no part has the last elements");
        Ok(parts)
    }

    fn run_part(
        &self,
        part: &mut Part<E>,
        pixels: &[E::Compute],
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let (plan, image) = (self.plan, self.plan.image());
        for g in part.groups.clone() {
            let pixels = &pixels[(part.n.1 * self.problem.group + g) * image..][..image];
            if plan.stores_rows() {
                for panel in self.panels.within(part.channels.clone()) {
                    for phases in self.lists.phases.chunks(plan.axes.columns().out_step) {
                        self.run_rows(part, (g, panel, phases), pixels, scratch)?;
                    }
                }
                continue;
            }
            // The positions of a single phase are those of the output.
            let all = match &self.lists.phases[..] {
                [_] => part.positions.start / plan.positions..part.positions.end.div_ceil(plan.positions),
                phases => 0..phases.iter().map(|phase| phase.tiles(plan)).max().unwrap_or(0),
            };
            for block in blocks_of(all.end, plan.block.unwrap_or(all.end)) {
                for (panel, phase) in self.panels.within(part.channels.clone()).cartesian_product(&self.lists.phases) {
                    let block = all.start.max(block.start)..block.end.min(phase.tiles(plan));
                    for first in block.clone().step_by(plan.tiles) {
                        let tiles = first..block.end.min(first + plan.tiles);
                        self.run_tiles(part, (g, panel, phase), tiles, pixels, scratch)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes and stores the results of some tiles of a panel.
    fn run_tiles(
        &self,
        part: &mut Part<E>,
        (g, panel, phase): (usize, Panel, &PhaseLists),
        tiles: Range<usize>,
        pixels: &[E::Compute],
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let plan = self.plan;
        // A register transpose may read past the last position.
        let sums = scratch.tile.of((tiles.len() * plan.positions + self.kernels.lanes) * plan.width)?;
        self.sum((g, panel, phase), tiles.clone(), pixels, sums);
        let positions = tiles.start * plan.positions..(tiles.end * plan.positions).min(phase.positions());
        self.store(part, (g, panel, phase), positions, sums, &mut scratch.row)
    }

    /// Computes and stores the output rows of some phases, which differ in the phase of their columns.
    fn run_rows(
        &self,
        part: &mut Part<E>,
        (g, panel, phases): (usize, Panel, &[PhaseLists]),
        pixels: &[E::Compute],
        scratch: &mut Scratch<E::Compute>,
    ) -> TractResult<()> {
        let (plan, problem, lanes) = (self.plan, self.problem, self.kernels.lanes);
        let tiles = phases.iter().map(|phase| phase.tiles(plan)).max().unwrap_or(0);
        // A register transpose may read past the last position.
        let of_phase = (tiles * plan.positions + lanes) * plan.width;
        let sums = scratch.tile.of(phases.len() * of_phase)?;
        let (_, epilogue) = self.operands.epilogue.split_bounds();
        let (uniform, varying) = epilogue.split();
        for (phase, sums) in phases.iter().zip(sums.chunks_mut(of_phase)) {
            self.sum((g, panel, phase), 0..phase.tiles(plan), pixels, sums);
            uniform.apply(&mut sums[..phase.positions() * plan.width]);
        }
        let columns = plan.axes.columns().output;
        let (rows, starts) = self.output_rows(phases, of_phase)?;
        let plane: usize = plan.axes.iter().map(|axis| axis.output).product();
        let count = panel.width.min(part.channels.end - panel.first_channel);
        let outputs = &mut part.output[panel.first_channel - part.channels.start..][..count];
        let (count_of_starts, starts) = (starts.len(), PixelStarts::new(&starts));
        let staging = scratch.row.of(lanes * count_of_starts)?;
        for (m, outputs) in (0..).step_by(lanes).zip(outputs.chunks_mut(lanes)) {
            let mut staged: SmallVec<[_; 16]> = staging.chunks_mut(count_of_starts).take(outputs.len()).collect();
            self.kernels.pixels_to_rows(&sums[m..], starts, &mut staged, 0, None, false);
            let channel = g * problem.group_out + panel.first_channel + m;
            for ((channel, output), staged) in (channel..).zip(outputs).zip(staged) {
                let first = (part.n.0 * problem.group * problem.group_out + channel) * plane;
                for (at, row) in rows.iter().zip(staged.chunks_mut(columns)) {
                    varying.of(channel).apply(first + at, 1, row);
                    E::narrow_slice(row, &mut output[at - part.positions.start..][..columns]);
                }
            }
        }
        Ok(())
    }

    /// The output rows of some phases, which differ in the phase of their columns: the output index of each row, and for
    /// each output of all rows where its sums begin. There are at least as many as a vector has lanes.
    fn output_rows(&self, phases: &[PhaseLists], of_phase: usize) -> TractResult<(Vec<usize>, Vec<usize>)> {
        let (plan, columns) = (self.plan, self.plan.axes.columns().output);
        let columns_of = |phase: &PhaseLists| phase.grid[phase.grid.len() - 1];
        // The first phase has a column wherever there is a row.
        let first = &phases[0];
        let count = first.positions() / columns_of(first).max(1);
        let mut rows = reserved("output rows", count)?;
        rows.extend((0..count).map(|row| self.output(first, row * columns_of(first))));
        let len = (count * columns).max(self.kernels.lanes);
        let mut starts = reserved("output rows", len)?;
        for (row, column) in (0..count).cartesian_product(0..columns) {
            let (at, column) = (column % phases.len(), column / phases.len());
            starts.push(at * of_phase + (row * columns_of(&phases[at]) + column) * plan.width);
        }
        starts.resize(len, 0);
        Ok((rows, starts))
    }

    /// Computes the sums of some tiles: one panel width per position.
    fn sum(
        &self,
        (g, panel, phase): (usize, Panel, &PhaseLists),
        tiles: Range<usize>,
        pixels: &[E::Compute],
        sums: &mut [E::Compute],
    ) {
        let (plan, channels) = (self.plan, self.problem.group_in);
        let tile = self.panels.tiles(panel)[0];
        let weights = self.panels.weights(g, panel, phase.weights);
        let bias = self.panels.bias(g, panel);
        let (bounds, _) = self.operands.epilogue.split_bounds();
        if phase.taps == 0 {
            let sums = sums.chunks_mut(plan.width).take(tiles.len() * plan.positions);
            return sums.for_each(|sums| {
                for (sum, bias) in sums.iter_mut().zip(bias) {
                    *sum = bounds.map_or(*bias, |bounds| bounds.clamp(*bias));
                }
            });
        }
        let mut start = Start::Bias(bias);
        for first in (0..channels).step_by(plan.chunk) {
            let channels = plan.chunk.min(channels - first);
            for (pass, tap) in (0..phase.taps).step_by(plan.taps).enumerate() {
                // The layout within a chunk is `[tap][channel][width]`.
                let taps = plan.taps.min(phase.taps - tap);
                let weights = &weights[(first * phase.taps + tap * channels) * panel.width..];
                let weights = &weights[..taps * channels * panel.width];
                let last = first + channels == self.problem.group_in && tap + taps == phase.taps;
                let start_and_bounds = (start, bounds.filter(|_| last));
                for (sums, of_tile) in sums.chunks_mut(plan.positions * plan.width).zip(tiles.clone()) {
                    let list = phase.first + pass * phase.tiles(plan) + of_tile;
                    let lists = &self.lists.pixels;
                    // Where taps are far apart, most read outside the input.
                    if matches!(start_and_bounds, (Start::Add, None)) && lists.list(list).is_empty() {
                        continue;
                    }
                    let source = ListedPixels { data: pixels, base: first, channels, lists, list };
                    tile.run_listed(weights, &source, start_and_bounds, sums, plan.width);
                }
                start = Start::Add;
            }
        }
    }

    /// Stores the sums of some positions of a phase.
    fn store(
        &self,
        part: &mut Part<E>,
        (g, panel, phase): (usize, Panel, &PhaseLists),
        positions: Range<usize>,
        sums: &mut [E::Compute],
        staging: &mut crate::memory::Aligned<E::Compute>,
    ) -> TractResult<()> {
        let (problem, width, axes) = (self.problem, self.plan.width, &self.plan.axes);
        let plane: usize = axes.iter().map(|axis| axis.output).product();
        let count = panel.width.min(part.channels.end - panel.first_channel);
        let channel = g * problem.group_out + panel.first_channel;
        let (_, epilogue) = self.operands.epilogue.split_bounds();
        let (uniform, varying) = epilogue.split();
        uniform.apply(&mut sums[..positions.len() * width]);
        if problem.data_format == DataFormat::Nxc {
            let all = problem.group * problem.group_out;
            let first = part.positions.start;
            for output in &mut part.output {
                for (index, pixel) in self.outputs(phase, positions.clone()).zip(sums.chunks_mut(width)) {
                    let pixel = &mut pixel[..count];
                    varying.apply_pixels(channel, (part.n.0 * plane + index) * all + channel, (1, count), count, pixel);
                    E::narrow_slice(pixel, &mut output[(index - first) * all + channel..][..count]);
                }
            }
            return Ok(());
        }
        let stride = positions.len().next_multiple_of(self.kernels.lanes);
        let rows = staging.of(count * stride)?;
        crate::layout::transposed(self.kernels, sums, width, (count, positions.len()), rows, stride);
        let step = axes.columns().out_step;
        let mut runs = reserved("runs", positions.len())?;
        runs.extend(self.runs(phase, positions));
        for (m, row) in rows.chunks_mut(stride).enumerate() {
            let output = &mut *part.output[panel.first_channel - part.channels.start + m];
            let first = (part.n.0 * problem.group * problem.group_out + channel + m) * plane;
            let epilogue = varying.of(channel + m);
            for (run, at) in &runs {
                let row = &mut row[run.clone()];
                epilogue.apply(first + at, step, row);
                let output = &mut output[at - part.positions.start..];
                match step {
                    1 => E::narrow_slice(row, &mut output[..row.len()]),
                    _ => {
                        let to = output.iter_mut().step_by(step);
                        to.zip(&*row).for_each(|(to, value)| *to = E::narrow(*value));
                    }
                }
            }
        }
        Ok(())
    }

    /// The output index of a phase's position within a plane.
    fn output(&self, phase: &PhaseLists, position: usize) -> usize {
        let at = unflatten(position, phase.grid.iter().copied());
        let axes = self.plan.axes.iter().zip(at.iter().zip(&phase.of_axes));
        axes.fold(0, |flat, (axis, (u, phase))| flat * axis.output + u * axis.out_step + phase)
    }

    /// The output indices of a phase's positions.
    fn outputs(&self, phase: &PhaseLists, positions: Range<usize>) -> impl Iterator<Item = usize> {
        positions.map(|position| self.output(phase, position))
    }

    /// Splits positions of a phase where their outputs are not evenly spaced. Returns each run's
    /// range among the positions, and the output index of its first one within a plane.
    fn runs(&self, phase: &PhaseLists, positions: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        let row = match self.plan.axes.phases() {
            // the outputs are the positions
            1 => phase.positions(),
            _ => phase.grid[phase.grid.len() - 1],
        };
        let rows = positions.start / row.max(1)..positions.end.div_ceil(row.max(1));
        rows.map(move |at| {
            let run = positions.start.max(at * row)..positions.end.min((at + 1) * row);
            (run.start - positions.start..run.end - positions.start, self.output(phase, run.start))
        })
    }
}
