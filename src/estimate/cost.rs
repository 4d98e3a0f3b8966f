//! The cost model of the algorithms.
//!
//! The unit of a [`Cost`] is one vector multiply-add. The cost of any other step is the number of
//! multiply-adds that take as long. A quantity that differs between machines is a rate of the
//! machine ([`Rates`]). The constants here hold for all measured
//! machines. They were fitted to the times of random layers under every algorithm that accepts the
//! layer. `benches/record/constants.md` has the measurements behind single constants.
//! `cargo bench --bench planner` measures how far the choices are from the best ones.

use crate::estimate::machine::{Machine, Rates};
use crate::geometry::Axes;
use crate::kernel::{FEW_TAPS, MOST_PHASES, POSITIONS_AT_ONCE, SIDE};
use crate::layout::input_tile::InputTiles;
use crate::simd::vector::LINE_BYTES;
use crate::spec::{DataFormat, Problem};
use std::cmp::Ordering;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul};
use tract_core::internal::DatumType;

/// An estimate, in vector multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(crate) struct Cost(f64);

impl Cost {
    pub const ZERO: Cost = Cost(0.0);

    pub const fn new(multiply_adds: f64) -> Cost {
        Cost(multiply_adds)
    }

    /// Multiplies the cost by all factors.
    pub fn times(self, factors: &[usize]) -> Cost {
        factors.iter().fold(self, |cost, factor| cost * *factor)
    }

    /// Compares two costs, as `f64::total_cmp` does.
    pub fn total_order(self, other: Cost) -> Ordering {
        self.0.total_cmp(&other.0)
    }

    pub fn max(self, other: Cost) -> Cost {
        Cost(self.0.max(other.0))
    }

    pub fn min(self, other: Cost) -> Cost {
        Cost(self.0.min(other.0))
    }

    /// Returns the whole multiply-adds.
    pub fn rounded(self) -> u64 {
        // The conversion saturates.
        self.0 as u64
    }
}

impl Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost(self.0 + other.0)
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.0 += other.0;
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::ZERO, Cost::add)
    }
}

impl Mul<usize> for Cost {
    type Output = Cost;
    fn mul(self, times: usize) -> Cost {
        Cost(self.0 * times as f64)
    }
}

impl Mul<f64> for Cost {
    type Output = Cost;
    fn mul(self, factor: f64) -> Cost {
        Cost(self.0 * factor)
    }
}

impl Div<usize> for Cost {
    type Output = Cost;
    fn div(self, parts: usize) -> Cost {
        Cost(self.0 / parts as f64)
    }
}

/// Setting up a block of a group if weights are the scalars.
pub(crate) const BLOCK: Cost = Cost(300.0);

/// Narrowing a vector of results to f16 through a buffer.
pub(crate) const NARROWED: Cost = Cost(4.0);

/// Loading and storing a vector of unfinished sums, once per accumulation chain.
pub(crate) const SUMMED: Cost = Cost(4.0);

/// Adding a vector of the sums of a chain to those of others in registers.
pub(crate) const ADDED_IN_REGISTERS: Cost = Cost(1.0);

/// What multiplies limbs in matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixUnit {
    /// Tile registers.
    TileRegisters,
    /// Vectors that multiply pairs of bf16.
    Vectors,
}

/// One step of tile registers: 32 positions by 32 input channels by 32 output channels, as six
/// products of limbs.
const MATRIX_STEP: Cost = Cost(850.0);

/// Zeroing and storing the sums of one such step, once per pass.
const MATRIX_PASS: Cost = Cost(1250.0);

/// A step of as many products in vectors of pairs of bf16.
const VECTOR_STEP: Cost = Cost(1150.0);

/// Loading and storing the sums of such a step, once per pass.
const VECTOR_PASS: Cost = Cost(300.0);

/// Calling the kernel of such vectors for a run of positions, once per pass.
const VECTOR_CALL: Cost = Cost(200.0);

/// How much longer the last of an odd number of sides takes in such vectors: each of its products loads an operand of
/// its own.
const LONE_SIDE: f64 = 1.3;

/// The least output channels of planes that keep such vectors busy. Fewer take as long, as sums wait for each other.
const LEAST_ROWS: usize = 6;

/// The products of limbs of f32.
const SIX_PRODUCTS: usize = 6;

/// The limbs of an f32.
const THREE_LIMBS: usize = 3;

impl MatrixUnit {
    /// Sums of `positions` positions and 32 output channels, over some steps of so many products of limbs, in some
    /// passes.
    pub fn sums(self, positions: usize, products: usize, (steps, passes): (usize, usize), machine: &Machine) -> Cost {
        match self {
            MatrixUnit::TileRegisters => {
                let of_tile = MATRIX_STEP * products / SIX_PRODUCTS * steps + MATRIX_PASS * passes;
                of_tile * positions.div_ceil(POSITIONS_AT_ONCE) * machine.rates.tile_registers
            }
            MatrixUnit::Vectors => {
                let of_tile = VECTOR_STEP * steps + VECTOR_PASS * passes;
                of_tile * (positions as f64 / POSITIONS_AT_ONCE as f64) + VECTOR_CALL * passes
            }
        }
    }

    /// The share of such sums that so many output channels of pixels take.
    pub fn share_of_pixels(self, channels: usize) -> f64 {
        let sides = channels.div_ceil(SIDE);
        let last = if self == MatrixUnit::Vectors && sides % 2 == 1 { LONE_SIDE } else { 1.0 };
        ((sides - sides % 2) as f64 + (sides % 2) as f64 * last) / 2.0
    }

    /// The share of such sums that so many output channels of planes take.
    pub fn share_of_planes(self, channels: usize) -> f64 {
        let least = if self == MatrixUnit::Vectors { LEAST_ROWS } else { 1 };
        channels.max(least) as f64 / (2 * SIDE) as f64
    }
}

/// Splitting a vector of a pixel's input channels into three limbs.
const SPLIT: Cost = Cost(20.0);

/// As [`SPLIT`], for fewer limbs.
pub(crate) fn split(limbs: usize) -> Cost {
    SPLIT * limbs / THREE_LIMBS
}

/// Loading the three limbs of the weights of a step for 16 output channels, once per block.
const STREAMED_LIMBS: Cost = Cost(310.0);

/// As [`STREAMED_LIMBS`], for fewer limbs.
pub(crate) fn streamed_limbs(limbs: usize) -> Cost {
    STREAMED_LIMBS * limbs / THREE_LIMBS
}

/// Waiting for such weights, per block, if there are several blocks and the weights exceed L2.
pub(crate) const STREAMED_AGAIN: Cost = Cost(520.0);

/// Loading such weights and splitting them into limbs, once per accumulator block.
pub(crate) const SPLIT_WEIGHTS: Cost = Cost(650.0);

/// Transforming a vector of channels of a tile's input, per product of the tile.
pub(crate) const TRANSFORMED: Cost = Cost(4.0);

/// Transforming a vector of weights, per product of the tile.
pub(crate) const TRANSFORMED_WEIGHTS: Cost = Cost(8.0);

/// Loading a vector of a filter's transformed weights, of so many bytes, once per accumulator block.
///
/// A vector is multiplied by each of `tiles` tiles. That hides a part of the wait for a vector from
/// beyond L2. The numbers are set by hand, by the layers of `benches/record/2026-11-26-tiles-2`.
pub(crate) fn streamed_tiles(bytes: usize, tiles: usize, machine: &Machine) -> Cost {
    const LEAST: f64 = 10.0;
    const MOST: f64 = 24.0;
    const HIDDEN: f64 = 0.2;
    if bytes <= machine.l2 { Cost::ZERO } else { Cost((MOST - HIDDEN * tiles as f64).max(LEAST)) }
}

/// Setting up the products of a point of transformed tiles, for the tiles of an accumulator block.
pub(crate) const POINT: Cost = Cost(350.0);

/// Transforming products to a vector of results. Each result is stored and loaded once.
pub(crate) const FROM_PRODUCTS: Cost = Cost(9.0);

/// As [`FROM_PRODUCTS`], for tiles of three results of two taps along each axis.
pub(crate) const THREE_FROM_PRODUCTS: Cost = Cost(7.0);

/// The factor by which moving data slows down a layer with few products per element. It counts only
/// for the sharing among threads, as it is the same for all algorithms of such a layer.
pub(crate) const MOVED: u64 = 2;

/// Listing the taps of a depthwise layer, once per run.
pub(crate) const LISTED_ROWS: Cost = Cost(2000.0);

/// Setting up a vector of channels of a depthwise layer whose lanes are channels, if lanes are
/// gathered.
pub(crate) const CHANNELS: Cost = Cost(1500.0);

/// The same per tap, if lanes are loaded.
pub(crate) const TAP_OF_PIXELS: Cost = Cost(45.0);

/// Transposing a vector of channels-first input into pixels, if whole planes are transposed.
pub(crate) const INTO_PIXELS: Cost = Cost(8.0);

/// Copying such a vector before, if several output channels read the same plane.
pub(crate) const REPEATED: Cost = Cost(3.0);

/// The same as [`INTO_PIXELS`] if parts of a block are transposed.
pub(crate) const INTO_BLOCK: Cost = Cost(9.0);

/// The extra time to read or to store a vector that L2 does not hold, if planes are transposed or
/// copied a few positions at a time.
pub(crate) const SPILLED: Cost = Cost(9.0);

/// Setting up a run of pixels with the same taps: one phase of an output row.
pub(crate) const RUN_OF_PIXELS: Cost = Cost(150.0);

/// Loading a vector of weights that is used once and comes from beyond L2.
pub(crate) const STREAMED: usize = 3;

/// The factor for such loads on slow memory. It counts only for the sharing among threads.
pub(crate) const WAITED: u64 = 3;

/// Setting up a matrix-vector product for a single position.
pub(crate) const PRODUCT: Cost = Cost(100.0);

/// Setting up a group whose products are added to the output where they overlap.
pub(crate) const OVERLAPPING_GROUP: Cost = Cost(650.0);

/// Reading the place of a pixel per position of a tile, for each tap.
pub(crate) const LISTED_TAP: Cost = Cost(12.0);

/// Setting up a group whose positions read pixels through lists.
pub(crate) const LISTED_GROUP: Cost = Cost(650.0);

/// Adding a vector of products to the output, unaligned.
pub(crate) const ADDED: Cost = Cost(6.0);

/// Setting up a run of such additions.
pub(crate) const ADDED_RUN: Cost = Cost(40.0);

/// Computing, loading and adding a vector of col2im's products.
pub(crate) const ACCUMULATED: Cost = Cost(10.0);

/// The wait for a vector of col2im's products, of which `bytes` are kept, if L2 does not hold them.
pub(crate) fn accumulated_far(bytes: usize, machine: &Machine) -> Cost {
    /// The wait for a vector beyond L2.
    const WAIT: f64 = 90.0;
    // Of up to twice as many bytes as L2 has, most are still there.
    Cost(WAIT * (1.0 - 2.0 * machine.l2 as f64 / bytes.max(1) as f64).max(0.0))
}

/// Copying a vector of positions in the order in which register tiles read them.
pub(crate) const INTO_TILES: Cost = Cost(7.0);

/// As [`INTO_TILES`], for a few positions of each plane at a time, of an input of so many bytes.
pub(crate) fn copied_to_tiles(bytes: usize, machine: &Machine) -> Cost {
    /// The part of the last-level cache from which reads hardly wait.
    const NEAR: usize = 8;
    if bytes <= machine.l2.max(machine.l3 / NEAR) { Cost(16.0) } else { Cost(40.0) }
}

/// Waiting for the first positions of a run of a plane that L2 does not hold.
pub(crate) const FAR_RUN: Cost = Cost(265.0);

/// Setting up the products of an image and group of col2im.
pub(crate) const ACCUMULATED_GROUP: Cost = Cost(2000.0);

/// Setting up an output row of col2im.
pub(crate) const ACCUMULATED_ROW: Cost = Cost(40.0);

/// Storing a vector of such a row, with interleaved phases.
pub(crate) fn accumulated_store(phases: usize) -> Cost {
    if matches!(phases, 1 | 2 | 4) { Cost(20.0) } else { Cost(36.0) }
}

/// Storing a vector element by element.
pub(crate) const SCATTERED: Cost = Cost(80.0);

/// Copying a vector of the results of a row, whose phases are stored together, from a buffer.
pub(crate) const STAGED: Cost = Cost(30.0);

/// Storing a row of one phase of one channel from a buffer of interleaved phases.
pub(crate) const BUFFERED_ROW: Cost = Cost(50.0);

/// Storing a vector of positions through a buffer that interleaves the phases of a row.
///
/// Channels-last results go through register transposes of at most 16 of a tile's `channels`. A
/// register transpose costs the same however many of its channels are used.
pub(crate) fn buffered(data_format: DataFormat, channels: usize) -> Cost {
    match data_format {
        DataFormat::Ncx => Cost(20.0),
        DataFormat::Nxc if channels < 4 => SCATTERED,
        DataFormat::Nxc => Cost(12.0 + 130.0 / channels.min(16) as f64),
    }
}

/// Planes whose distance is a multiple of this many bytes compete for the same sets of L1.
const ALIASED: usize = 4 << 10;

/// The ways of a set of L1 on a Zen 3 and a Zen 4: the cache lines of competing planes that it holds.
const L1_WAYS: usize = 8;

/// Storing a part of a cache line that other planes evict before the next part is stored.
const PART_OF_LINE: Cost = Cost(20.0);

/// The extra cost of storing a vector of an output row from a tile of `rows` rows and `run_bytes` bytes of each.
///
/// If the rows of a tile compete for the same sets of L1 and are not whole cache lines, lines are evicted half
/// written.
pub(crate) fn partly_stored(
    problem: &Problem,
    element: usize,
    [rows, run_bytes]: [usize; 2],
    machine: &Machine,
) -> Cost {
    let plane = problem.axes.iter().fold(element, |bytes, axis| bytes.saturating_mul(axis.output));
    let output = plane.saturating_mul(problem.group_out * problem.group);
    let evicted = rows > L1_WAYS && plane.is_multiple_of(ALIASED) && output > machine.l2;
    if evicted && run_bytes < LINE_BYTES { PART_OF_LINE } else { Cost::ZERO }
}

/// Storing a vector of sums whose lanes are channels. Channels-first results are transposed.
pub(crate) fn store_of_channels(problem: &Problem, datum_type: DatumType, machine: &Machine) -> Cost {
    let plane = problem.axes.iter().fold(datum_type.size_of(), |bytes, axis| bytes.saturating_mul(axis.output));
    match problem.data_format {
        DataFormat::Nxc => Cost(6.0),
        DataFormat::Ncx if plane.is_multiple_of(ALIASED) => Cost(machine.rates.aliased_transposed_store),
        DataFormat::Ncx => Cost(machine.rates.transposed_store),
    }
}

/// Storing `rows` grid rows of some channels whose sums were transposed, if the phases of a row are interleaved.
pub(crate) fn interleaved_rows(
    data_format: DataFormat,
    axes: &Axes,
    [rows, channels]: [usize; 2],
    machine: &Machine,
) -> Cost {
    match (data_format, axes.columns().out_step) {
        (DataFormat::Nxc, _) | (_, 1) => Cost::ZERO,
        _ => Cost(machine.rates.interleaved_row).times(&[rows, channels, axes.phases()]),
    }
}

/// Copying a vector of positions into a block. Channels-last input goes through register
/// transposes, as in [`buffered`].
pub(crate) fn copied(data_format: DataFormat, channels: usize) -> Cost {
    match data_format {
        DataFormat::Ncx => Cost(16.0),
        DataFormat::Nxc => Cost(8.0 + 200.0 / channels.clamp(1, 16) as f64),
    }
}

/// Copying a vector of positions that are `step` apart besides: the parts of lines that it gathers.
///
/// Set by hand, by three layers of `benches/record/2026-11-28-planes`.
pub(crate) fn strided(step: usize, lanes: usize) -> Cost {
    const PART: Cost = Cost(10.0);
    if step > 1 { PART * step.min(lanes) } else { Cost::ZERO }
}

/// Filling the input tiles of some channels. `copying` is the cost of a vector of positions.
pub(crate) fn filled(input_tiles: &InputTiles, channels: usize, lanes: usize, copying: Cost) -> Cost {
    /// Setting up an input tile.
    const TILE: Cost = Cost(100.0);
    copying * (input_tiles.elements(channels) / lanes) + TILE * input_tiles.count() * channels
}

/// Copying the rows that a channel of [`depthwise_rows`](crate::algorithm::depthwise_rows) reads,
/// once per outer position. `step` is that of the columns of the input in a row of the copy.
pub(crate) fn copied_rows(input_tiles: &InputTiles, lanes: usize, windows: bool, step: usize) -> Cost {
    /// Copying a vector of elements that are not adjacent. The lines of a row are read once per step.
    const STRIDED: Cost = Cost(25.0);
    match windows {
        // Rows are long and few.
        true => {
            let rows = input_tiles.channel_stride / input_tiles.pitch;
            let strided = if step > 1 { STRIDED * (input_tiles.channel_stride / lanes) } else { Cost::ZERO };
            Cost(14.0) * rows + strided + Cost(120.0) * input_tiles.count() + Cost(600.0)
        }
        false => Cost(5.0) * (input_tiles.channel_stride / lanes) + Cost(185.0) * input_tiles.count(),
    }
}

/// The results of a channel of a depthwise layer, and the cost of their sums in each variant.
pub(crate) struct Rows {
    /// Output rows with a setup of their own.
    pub rows: usize,
    /// Vectors of results.
    pub vectors: usize,
    /// Products per result.
    pub taps: usize,
}

impl Rows {
    fn of(&self, channel: f64, vector: f64, product: f64) -> Cost {
        Cost(channel) + Cost(vector) * self.vectors + Cost(product) * self.vectors * self.taps
    }

    /// The cost with interleaved phases. More phases than a kernel has are interleaved in memory.
    pub fn interleaved(&self, phases: usize, rates: &Rates) -> Cost {
        let stored = match phases {
            _ if phases > MOST_PHASES => 20.0,
            _ if phases.is_power_of_two() => 4.0,
            _ => 6.0,
        };
        self.of(67.0, stored, 1.7 * rates.interleaved_products) + Cost(54.0) * self.rows
    }

    /// The cost of a window that moves down a copy of the input. If there are `several` rows of
    /// taps, they share loads.
    pub fn by_window(&self, stride: usize, several: bool, rates: &Rates) -> Cost {
        let strided = rates.strided_window_products;
        match stride {
            // Few sums are in flight, and their products wait for each other.
            2 => self.of(54.0, 7.0, 1.1 * strided) + Cost(0.4 * strided) * self.rows * self.taps,
            _ if several => self.of(54.0, 5.0, 0.7 * rates.window_products),
            _ if self.taps <= FEW_TAPS => self.of(54.0, 5.0, 0.6 * rates.window_products),
            _ => self.of(54.0, 5.0, 1.4 * rates.window_products),
        }
    }

    /// The cost of a single row of taps on the input, where `near_ends` vectors at both ends of a row read outside of it.
    pub fn by_row_in_place(&self, stride: usize, near_ends: usize, rates: &Rates) -> Cost {
        /// A product of a vector of which some elements do not exist.
        const PARTIAL: Cost = Cost(30.0);
        // Each end has a vector that partly reads inside.
        let partial = if near_ends > 0 { near_ends + 1 } else { 0 };
        self.by_window(stride, false, rates) + Cost(450.0) + PARTIAL.times(&[self.rows, partial, self.taps])
    }

    /// The cost of a window with several rows of taps that moves down the input and skips the padding.
    pub fn by_window_in_place(&self, stride: usize, rates: &Rates) -> Cost {
        let strided = rates.strided_window_products;
        let row = Cost(1.4 * strided) * self.taps + Cost(34.0);
        match stride {
            2 => self.of(91.0, 13.0, 0.2 * strided) + row * self.rows,
            _ => self.of(268.0, 8.0, 0.6 * rates.window_products),
        }
    }

    /// The cost of vectors that run over row ends. If there are `several` rows of taps, they are
    /// masked there.
    pub fn by_plane(&self, several: bool, rates: &Rates) -> Cost {
        self.of(43.0, 7.0, if several { 1.9 } else { 1.0 } * rates.window_products)
    }
}

/// Summing and storing `vectors` vectors of pixels with `taps` products each.
///
/// If `shared`, adjacent taps are as far apart as positions and share loads.
pub(crate) fn pixels(data_format: DataFormat, vectors: usize, taps: usize, shared: bool, rates: &Rates) -> Cost {
    let product = if shared { 1.0 } else { 1.25 } * rates.pixel_products;
    let stored = if data_format == DataFormat::Ncx { 12.0 } else { 6.0 };
    (Cost(product) * taps + Cost(stored)) * vectors
}

/// The same if the lanes of each product are gathered, by permutation instructions or one by one.
pub(crate) fn gathered_pixels(vectors: usize, products: usize, shared: bool, by_permutation: bool) -> Cost {
    let product = match (by_permutation, shared) {
        (false, _) => 10.0,
        (true, true) => 1.1,
        (true, false) => 1.8,
    };
    (Cost(product) * products + Cost(6.0)) * vectors
}

/// Returns the bytes of the input and those of the output.
fn moved_bytes(problem: &Problem, datum_type: DatumType) -> [usize; 2] {
    [problem.input_shape(), problem.output_shape()]
        .map(|shape| shape.iter().fold(datum_type.size_of(), |bytes, dim| bytes.saturating_mul(*dim)))
}

/// Reading the input and writing the output beyond the caches, for a layer of one input channel per
/// group.
pub(crate) fn beyond_cache(problem: &Problem, datum_type: DatumType, machine: &Machine) -> Cost {
    let [input, output] = moved_bytes(problem, datum_type);
    let beyond = input.saturating_add(output).saturating_sub(machine.cached_bytes());
    Cost(beyond as f64 / machine.rates.bytes_per_fma)
}

/// Reading the input and writing the output of a dense layer, if the caches do not hold both.
///
/// The costs per vector of input and of output are those of the algorithm.
pub(crate) fn beyond_caches(
    problem: &Problem,
    datum_type: DatumType,
    [per_input, per_output]: [Cost; 2],
    lanes: usize,
    machine: &Machine,
) -> Cost {
    let [input, output] = moved_bytes(problem, datum_type);
    if input.saturating_add(output) < machine.cached_bytes() {
        return Cost::ZERO;
    }
    let vectors = |bytes: usize| bytes / (lanes * datum_type.size_of());
    (per_input * vectors(input) + per_output * vectors(output)) * machine.rates.dense_traffic
}

/// The costs of a vector of input and of output beyond the caches, for algorithms that read and
/// write some positions of several planes.
pub(crate) const BEYOND_BY_PLANES: [Cost; 2] = [Cost(16.0), Cost(16.0)];
/// The same for algorithms that read pixels and store through register transposes.
pub(crate) const BEYOND_BY_PIXELS: [Cost; 2] = [Cost(6.0), Cost(6.0)];
/// The same for input that is read in place and prefetched.
pub(crate) const BEYOND_IN_PLACE: [Cost; 2] = [Cost(4.0), Cost(6.0)];

/// Reading a vector of a plane in place so many times, in long runs of few planes: first from beyond L2, then from L2.
pub(crate) fn in_passes(reads: usize, vector_bytes: usize, machine: &Machine) -> Cost {
    const FROM_BEYOND_L2: Cost = Cost(3.0);
    FROM_BEYOND_L2 + Cost(vector_bytes as f64 / machine.rates.l2_bytes_per_fma) * reads.saturating_sub(1)
}

/// The most planes of an input of so many bytes whose pages a CPU's first-level TLB holds together, if a few positions of
/// each plane are read in turn.
pub(crate) fn planes_in_tlb(problem: &Problem, bytes: usize) -> usize {
    /// The TLB holds 64 to 96 pages. Sums and weights take some of them.
    const PAGES: usize = 48;
    const PAGE_BYTES: usize = 4096;
    let plane = bytes / (problem.group_in * problem.group * problem.batch).max(1);
    PAGES * (PAGE_BYTES / plane.max(1)).max(1)
}

/// Reading a vector of positions of a plane in place, where planes evict each other's lines from L1.
///
/// `bytes` are those of the input. A tile reads `run_bytes` of each plane, and so do the tiles of all `panels`. L1
/// keeps no line until its next part is read, nor until the next panel.
pub(crate) fn evicted_lines(
    problem: &Problem,
    bytes: usize,
    panels: usize,
    run_bytes: usize,
    machine: &Machine,
) -> Cost {
    let plane = bytes / (problem.group_in * problem.group * problem.batch).max(1);
    if bytes <= machine.l2 || problem.group_in <= L1_WAYS || !plane.is_multiple_of(ALIASED) {
        return Cost::ZERO;
    }
    Cost(machine.rates.aliased_in_place) * LINE_BYTES.div_ceil(run_bytes.max(1)) * panels
}

/// Reading a vector of a plane a few positions at a time, where L2 does not hold the `bytes` of the input.
pub(crate) fn far_pixels(problem: &Problem, bytes: usize, machine: &Machine) -> Cost {
    match bytes > machine.l2 && problem.group_in >= machine.rates.fetched_planes as usize {
        true => Cost(machine.rates.far_pixels),
        false => Cost::ZERO,
    }
}

/// The reads of tiles from an input in place.
pub(crate) struct InPlace {
    /// Bytes of the input.
    pub bytes: usize,
    /// The number of times that the input is read.
    pub passes: usize,
    /// Panels of output channels.
    pub panels: usize,
    /// Output channels and vectors of positions per tile.
    pub tile: (usize, usize),
    /// Bytes that a tile reads of a plane.
    pub run_bytes: usize,
}

impl InPlace {
    /// The cost of reading a vector of positions of one plane.
    ///
    /// A CPU prefetches only a few planes at a time. The data that the first panel loaded may be
    /// evicted before the next panels.
    pub fn vector(&self, problem: &Problem, machine: &Machine) -> Cost {
        const ALIASED_L2: usize = 64 << 10;
        /// The number of planes from which planes that compete for the same sets of L2 evict each
        /// other.
        const EVICTING: usize = 128;
        /// The rest of the wait for a tile that makes many products meanwhile.
        const LEAST_WAIT: f64 = 8.0;
        let InPlace { bytes, passes, panels, tile: (mr, nv), run_bytes } = *self;
        let rates = &machine.rates;
        if problem.group_in < rates.fetched_planes as usize {
            return Cost::ZERO;
        }
        if bytes <= machine.l2 {
            return Cost(rates.near_in_place);
        }
        let plane = bytes / (problem.group_in * problem.group * problem.batch).max(1);
        let waits = rates.aliased_in_place_l2 > 0.0;
        if waits && problem.group_in >= EVICTING && plane.is_multiple_of(ALIASED_L2) {
            return Cost((rates.aliased_in_place_l2 - mr as f64).max(LEAST_WAIT)) * passes;
        }
        if rates.narrow_in_place > 0.0 && nv == 1 && panels > 1 {
            return Cost(rates.narrow_in_place) + Cost(1.0) * passes;
        }
        let evicted = evicted_lines(problem, bytes, panels, run_bytes, machine);
        let again = if passes > 1 { Cost(rates.far_in_place_again) * passes } else { Cost::ZERO };
        Cost(rates.far_in_place).max(again).max(evicted)
    }
}

/// Reading pixels in passes over some of their channels, beyond reading each cache line once.
///
/// `bytes` are those of a pixel and of a pass over it. If L2 does not hold the pixels, each pass
/// loads whole lines, however little of them it uses.
pub(crate) fn read_in_passes(pixels: usize, bytes: [usize; 2], vector_bytes: usize, machine: &Machine) -> Cost {
    let [pixel, pass] = bytes.map(|bytes| bytes.max(1));
    if pixels.saturating_mul(pixel) <= machine.l2 || pass >= LINE_BYTES {
        return Cost::ZERO;
    }
    let lines = pixel.div_ceil(pass).saturating_sub(pixel.div_ceil(LINE_BYTES));
    Cost(machine.rates.far_weights * LINE_BYTES as f64 / vector_bytes as f64).times(&[pixels, lines])
}

/// The cost of one (channel, tap) pair of an `m` × `n` tile.
///
/// It is the maximum of several limits: the multiply-adds, one load per operand, and the latency of
/// a multiply-add. If L1 does not hold the input (not `resident`), it is also limited by L2.
pub(crate) fn tile(m: usize, n: usize, vector_bytes: usize, resident: bool, machine: &Machine) -> Cost {
    tile_of_phases(1, (m, n), vector_bytes, resident, machine)
}

/// As [`tile`], if the pairs of several phases alternate.
pub(crate) fn tile_of_phases(
    phases: usize,
    (m, n): (usize, usize),
    vector_bytes: usize,
    resident: bool,
    machine: &Machine,
) -> Cost {
    let rates = &machine.rates;
    let streamed = if resident { 0.0 } else { (n * vector_bytes) as f64 / rates.l2_bytes_per_fma };
    let loaded = (m + n) as f64 * rates.tile_load;
    let waited = rates.tile_latency / phases as f64;
    Cost(((m * n) as f64).max(loaded).max(waited).max(streamed) + 1.0)
}

/// The estimated cost of one (channel, tap) pair over a run of positions.
///
/// Tiles have `nv` vectors and at most `most` positions, the largest tiles first and smaller ones
/// for the remainder. `tiles` is sorted by positions. Weights come from L2, at 20 bytes per
/// multiply-add.
pub(crate) fn run(
    mut len: usize,
    most: usize,
    nv: usize,
    tiles: &[(usize, usize)],
    vector_bytes: usize,
    machine: &Machine,
) -> Cost {
    let mut cost = Cost::ZERO;
    for (positions, _) in tiles.iter().rev().copied().filter(|tile| tile.0 <= most && tile.1 == nv) {
        cost += tile(positions, nv, vector_bytes, false, machine) * (len / positions);
        len %= positions;
    }
    cost
}
