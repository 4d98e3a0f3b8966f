//! What the estimates of algorithms are made of.
//!
//! The unit of a [`Cost`] is one vector multiply-add. Every other step counts as the number of multiply-adds that take as
//! long. What differs between machines is a rate of the machine ([`Rates`](crate::estimate::machine::Rates)); the constants
//! here hold on all machines that were measured. They were fitted to the times of layers drawn at random, each under every
//! algorithm that takes it. `benches/record/constants.md` has the measurements behind single constants, and
//! `cargo bench --bench planner` measures how far the choices are from the best ones.

use crate::estimate::machine::{Machine, Rates};
use crate::layout::input_tile::InputTiles;
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

    /// This cost as often as there are parts.
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

    /// In whole multiply-adds, as decisions hold it.
    pub fn rounded(self) -> u64 {
        // saturates
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

/// Setting up a block of a group where weights are the scalars.
pub(crate) const BLOCK: Cost = Cost(300.0);

/// Narrowing a vector of results to f16 through a buffer.
pub(crate) const NARROWED: Cost = Cost(4.0);

/// Loading and storing a vector of unfinished sums, once per accumulation chain.
pub(crate) const SUMMED: Cost = Cost(4.0);

/// One step of tile registers: 32 positions by 32 input channels by 32 output channels, in six products of limbs.
pub(crate) const MATRIX_STEP: Cost = Cost(850.0);

/// Zeroing and storing the sums of such a step, once per pass.
pub(crate) const MATRIX_PASS: Cost = Cost(1250.0);

/// Splitting a vector of a pixel's input channels into limbs.
pub(crate) const SPLIT: Cost = Cost(20.0);

/// Loading the limbs of the weights of a step for 16 output channels, once per block.
pub(crate) const STREAMED_LIMBS: Cost = Cost(310.0);

/// What a block waits for such weights where there are several blocks and L2 does not hold all weights.
pub(crate) const STREAMED_AGAIN: Cost = Cost(520.0);

/// Loading such weights and splitting them into limbs, once per accumulator block.
pub(crate) const SPLIT_WEIGHTS: Cost = Cost(650.0);

/// Transforming a vector of channels of a tile's input, per product of the tile.
pub(crate) const TRANSFORMED: Cost = Cost(4.0);

/// Transforming a vector of weights, per product of the tile.
pub(crate) const TRANSFORMED_WEIGHTS: Cost = Cost(8.0);

/// Transforming products to a vector of results, each of which is stored and loaded once.
pub(crate) const FROM_PRODUCTS: Cost = Cost(9.0);

/// How much longer moving data takes a layer that has few products per element. It counts for sharing among threads only:
/// all algorithms for such a layer have it.
pub(crate) const MOVED: u64 = 2;

/// Listing the taps of a depthwise layer, once per run.
pub(crate) const LISTED_ROWS: Cost = Cost(2000.0);

/// Setting up a vector of channels of a depthwise layer whose lanes are channels, where lanes are gathered.
pub(crate) const CHANNELS: Cost = Cost(1500.0);

/// The same per tap, where lanes are loaded.
pub(crate) const TAP_OF_PIXELS: Cost = Cost(45.0);

/// Transposing a vector of channels-first input into pixels, where whole planes are transposed.
pub(crate) const INTO_PIXELS: Cost = Cost(8.0);

/// The same where parts of a block are transposed.
pub(crate) const INTO_BLOCK: Cost = Cost(9.0);

/// What a vector of pixels takes longer to read, and one of results to store, where L2 does not hold a row.
pub(crate) const SPILLED: Cost = Cost(9.0);

/// Setting up a run of pixels that have the same taps: one phase of an output row.
pub(crate) const RUN_OF_PIXELS: Cost = Cost(150.0);

/// Loading a vector of weights that is used once and that L2 does not hold.
pub(crate) const STREAMED: usize = 3;

/// How much longer such loads take where memory is slow. It counts for sharing among threads only.
pub(crate) const WAITED: u64 = 3;

/// Setting up a product of one position.
pub(crate) const PRODUCT: Cost = Cost(100.0);

/// Setting up a group whose products are added to the output where they overlap.
pub(crate) const OVERLAPPING_GROUP: Cost = Cost(650.0);

/// Adding a vector of products to the output, unaligned.
pub(crate) const ADDED: Cost = Cost(6.0);

/// Setting up a run of such vectors.
pub(crate) const ADDED_RUN: Cost = Cost(40.0);

/// Making, reading and adding a vector of col2im's products.
pub(crate) const ACCUMULATED: Cost = Cost(8.0);

/// Setting up an output row of col2im.
pub(crate) const ACCUMULATED_ROW: Cost = Cost(190.0);

/// Storing a vector of such a row, with its phases interleaved.
pub(crate) fn accumulated_store(phases: usize) -> Cost {
    if matches!(phases, 1 | 2 | 4) { Cost(28.0) } else { Cost(42.0) }
}

/// Storing a vector of positions element by element, where channels are last.
pub(crate) const SCATTERED: Cost = Cost(80.0);

/// Storing a row of a phase of a channel from a buffer of interleaved phases.
pub(crate) const BUFFERED_ROW: Cost = Cost(50.0);

/// Storing a vector of positions through a buffer in which the phases of a row are interleaved.
///
/// Channels-last results go through register transposes of at most 16 of a tile's `channels`. A register transpose costs the
/// same however many of its channels are used.
pub(crate) fn buffered(data_format: DataFormat, channels: usize) -> Cost {
    match data_format {
        DataFormat::Ncx => Cost(20.0),
        DataFormat::Nxc if channels < 4 => SCATTERED,
        DataFormat::Nxc => Cost(12.0 + 130.0 / channels.min(16) as f64),
    }
}

/// Storing a vector of sums whose lanes are channels: as it is where channels are last, or else transposed.
pub(crate) fn store_of_channels(problem: &Problem, datum_type: DatumType, machine: &Machine) -> Cost {
    /// Planes whose distance is a multiple of this many bytes compete for the same sets of L1.
    const ALIASED: usize = 4 << 10;
    let plane = problem.axes.iter().fold(datum_type.size_of(), |bytes, axis| bytes.saturating_mul(axis.output));
    match problem.data_format {
        DataFormat::Nxc => Cost(6.0),
        DataFormat::Ncx if plane.is_multiple_of(ALIASED) => Cost(machine.rates.aliased_transposed_store),
        DataFormat::Ncx => Cost(machine.rates.transposed_store),
    }
}

/// Copying a vector of positions into a block. Channels-last input goes through register transposes, as in [`buffered`].
pub(crate) fn copied(data_format: DataFormat, channels: usize) -> Cost {
    match data_format {
        DataFormat::Ncx => Cost(16.0),
        DataFormat::Nxc => Cost(8.0 + 200.0 / channels.clamp(1, 16) as f64),
    }
}

/// Filling the input tiles of some channels, where copying a vector of positions costs `copying`.
pub(crate) fn filled(input_tiles: &InputTiles, channels: usize, lanes: usize, copying: Cost) -> Cost {
    /// Setting up an input tile.
    const TILE: Cost = Cost(100.0);
    copying * (input_tiles.elements(channels) / lanes) + TILE * input_tiles.count() * channels
}

/// Copying the rows that a channel of [`depthwise_rows`](crate::algorithm::depthwise_rows) reads, once per outer position.
pub(crate) fn copied_rows(input_tiles: &InputTiles, lanes: usize, windows: bool) -> Cost {
    match windows {
        // rows are long and few
        true => {
            let rows = input_tiles.channel_stride / input_tiles.pitch;
            Cost(14.0) * rows + Cost(120.0) * input_tiles.count() + Cost(600.0)
        }
        false => Cost(5.0) * (input_tiles.channel_stride / lanes) + Cost(185.0) * input_tiles.count(),
    }
}

/// The results of a channel of a depthwise layer, and what summing them costs in each variant.
pub(crate) struct Rows {
    /// Output rows that are begun one by one.
    pub rows: usize,
    /// Vectors of results.
    pub vectors: usize,
    /// Products of each result.
    pub taps: usize,
}

impl Rows {
    fn of(&self, channel: f64, vector: f64, product: f64) -> Cost {
        Cost(channel) + Cost(vector) * self.vectors + Cost(product) * self.vectors * self.taps
    }

    /// With interleaved phases. Numbers of phases other than powers of two go through memory.
    pub fn interleaved(&self, phases: usize, rates: &Rates) -> Cost {
        let stored = if phases.is_power_of_two() { 4.0 } else { 20.0 };
        self.of(67.0, stored, 1.7 * rates.interleaved_products) + Cost(54.0) * self.rows
    }

    /// By a window that moves down a copy of the input. With `several` rows of taps, they share their loads.
    pub fn by_window(&self, stride: usize, several: bool, rates: &Rates) -> Cost {
        let strided = rates.strided_window_products;
        match stride {
            // few sums are in flight, and their products wait for each other
            2 => self.of(54.0, 7.0, 1.1 * strided) + Cost(0.4 * strided) * self.rows * self.taps,
            _ => self.of(54.0, 5.0, if several { 0.7 } else { 1.4 } * rates.window_products),
        }
    }

    /// By a window that moves down the input and leaves out the padding.
    pub fn by_window_in_place(&self, stride: usize, several: bool, rates: &Rates) -> Cost {
        let strided = rates.strided_window_products;
        let row = if several { Cost(1.4 * strided) * self.taps + Cost(34.0) } else { Cost(10.0) };
        match stride {
            2 => self.of(91.0, 13.0, 0.2 * strided) + row * self.rows,
            _ => self.of(268.0, 8.0, 0.6 * rates.window_products),
        }
    }

    /// By vectors that run over row ends. With `several` rows of taps, they are masked there.
    pub fn by_plane(&self, several: bool, rates: &Rates) -> Cost {
        self.of(43.0, 7.0, if several { 1.9 } else { 1.0 } * rates.window_products)
    }
}

/// Summing `vectors` vectors of pixels of `taps` products each, and storing them. With `shared`, neighbouring taps are as far
/// apart as positions, and share their loads.
pub(crate) fn pixels(data_format: DataFormat, vectors: usize, taps: usize, shared: bool, rates: &Rates) -> Cost {
    let product = if shared { 1.0 } else { 1.25 } * rates.pixel_products;
    let stored = if data_format == DataFormat::Ncx { 12.0 } else { 6.0 };
    (Cost(product) * taps + Cost(stored)) * vectors
}

/// The same where the lanes of each product are gathered, by permutation instructions or one by one.
pub(crate) fn gathered_pixels(vectors: usize, products: usize, shared: bool, by_permutation: bool) -> Cost {
    let product = match (by_permutation, shared) {
        (false, _) => 10.0,
        (true, true) => 1.1,
        (true, false) => 1.8,
    };
    (Cost(product) * products + Cost(6.0)) * vectors
}

/// Bytes of the input, and of the output.
fn moved_bytes(problem: &Problem, datum_type: DatumType) -> [usize; 2] {
    [problem.input_shape(), problem.output_shape()]
        .map(|shape| shape.iter().fold(datum_type.size_of(), |bytes, dim| bytes.saturating_mul(*dim)))
}

/// Reading the input and writing the output of a layer of one input channel per group, as far as the caches do not hold them.
pub(crate) fn beyond_cache(problem: &Problem, datum_type: DatumType, machine: &Machine) -> Cost {
    let [input, output] = moved_bytes(problem, datum_type);
    let beyond = input.saturating_add(output).saturating_sub(machine.cached_bytes());
    Cost(beyond as f64 / machine.rates.bytes_per_fma)
}

/// Reading the input and writing the output of a dense layer, by the algorithm's costs per vector of each, where the caches
/// do not hold both.
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

/// A vector of input and of output beyond the caches, for algorithms that read some positions of many planes and write some
/// of several.
pub(crate) const BEYOND_BY_PLANES: [Cost; 2] = [Cost(16.0), Cost(16.0)];
/// The same for those that read pixels and store register transposes.
pub(crate) const BEYOND_BY_PIXELS: [Cost; 2] = [Cost(6.0), Cost(6.0)];
/// The same for input that is read in place and prefetched.
pub(crate) const BEYOND_IN_PLACE: [Cost; 2] = [Cost(4.0), Cost(6.0)];

/// How tiles go over an input that they read in place.
pub(crate) struct InPlace {
    /// Bytes of the input.
    pub bytes: usize,
    /// How many times the input is read.
    pub passes: usize,
    /// Panels of output channels.
    pub panels: usize,
    /// Output channels and vectors of positions of a tile.
    pub tile: (usize, usize),
}

impl InPlace {
    /// Reading a vector of positions of one plane.
    ///
    /// The caches of a CPU prefetch few planes at a time. What the first panel loaded is not always there for the next ones.
    pub fn vector(&self, problem: &Problem, machine: &Machine) -> Cost {
        const ALIASED: usize = 4 << 10;
        const ALIASED_L2: usize = 64 << 10;
        /// Planes from which on those that compete for the same sets of L2 evict each other.
        const EVICTING: usize = 128;
        /// What is left of the wait where a tile makes many products meanwhile.
        const LEAST_WAIT: f64 = 8.0;
        let InPlace { bytes, passes, panels, tile: (mr, nv) } = *self;
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
        if passes <= 1 {
            return Cost(rates.far_in_place);
        }
        let again = if plane.is_multiple_of(ALIASED) { rates.aliased_in_place } else { rates.far_in_place_again };
        Cost(rates.far_in_place).max(Cost(again) * passes)
    }
}

/// One (channel, tap) of an `m` × `n` tile: the largest of its multiply-adds, a load for each operand, the latency of a
/// multiply-add, and the vectors that it reads from L2 where L1 does not hold the input (`resident`).
pub(crate) fn tile(m: usize, n: usize, vector_bytes: usize, resident: bool, machine: &Machine) -> Cost {
    let rates = &machine.rates;
    let streamed = if resident { 0.0 } else { (n * vector_bytes) as f64 / rates.l2_bytes_per_fma };
    let loaded = (m + n) as f64 * rates.tile_load;
    Cost(((m * n) as f64).max(loaded).max(rates.tile_latency).max(streamed) + 1.0)
}
