//! What the planner's estimates are made of. A slot is one vector multiply-add.
//!
//! The constants were fitted to the times of random layers, each under every strategy that takes it (f32, one thread): those of channels to 480 on a Zen 4
//! with AVX-512 (channels first), those of tile registers to 600 on a Xeon, of both directions and layouts, of input tiles, of input that is read in place and of
//! what phases and col2im store to 1,200 there, and those of layers of one input channel a group, the two strategies made for them, to 1,200 more; those that
//! hold where there are no tile registers to 900 on the Zen 4, and those of layers of one tap to 600 there. What is neither was set to the times of the layers
//! in `benches/workloads.json`. They count what a strategy adds to the multiply-adds for each vector of results, memory traffic included; on the Xeon dense
//! layers do 5.3 slots a nanosecond, those of one input channel a group 3.3. `cargo bench --bench planner` tells how far the choices they lead to are from
//! the best ones.

use crate::estimate::machine::Machine;
use crate::layout::input_tile::InputTiles;
use crate::simd::isa::Isa;
use crate::spec::{DataFormat, Problem};
use tract_core::internal::DatumType;

/// What a block of a group costs where weights are the scalars, whatever its size.
pub(crate) const BLOCK: usize = 300;

/// Storing a vector of results that a register tile interleaves itself.
pub(crate) fn from_registers(isa: Isa) -> usize {
    if isa == Isa::Amx { 19 } else { 5 }
}

/// What a run of such tiles costs, whatever its length: one an output row of each phase of rows, and panel.
pub(crate) fn run_of_tiles(isa: Isa) -> usize {
    if isa == Isa::Amx { 0 } else { 250 }
}

/// Narrowing a vector of such rows, by way of a buffer, to f16.
pub(crate) const NARROWED: usize = 4;

/// Loading and storing a vector of unfinished sums, once a chain.
pub(crate) const SUMMED: usize = 4;

/// One step of tile registers, 32 positions by 32 input channels by 32 output channels in six products of parts: 170 to 190 ns in layers on a Xeon (159 of
/// the unit's own) that makes 5 of the estimates' slots a nanosecond under the other strategies.
pub(crate) const MULTIPLIED: usize = 850;

/// What such tiles of sums cost besides, once a pass.
pub(crate) const TILES: usize = 1250;

/// Making parts of a vector of input channels of a cell.
pub(crate) const PARTED: usize = 20;

/// Loading the parts of the weights of a step for 16 output channels, once a block.
pub(crate) const STREAMED_PARTS: usize = 310;

/// What each of several blocks waits for such weights where all of them are more than L2 has (512 to 512 channels on 16×16 positions, 3×3 taps, channels last:
/// 3.9 ms in one block, 5.5 in four).
pub(crate) const READ_AGAIN: usize = 520;

/// Loading such weights and making parts of them, once an accumulator block.
pub(crate) const PARTED_WEIGHTS: usize = 650;

/// Storing a vector of sums of the strategies with lanes of channels: transposed (21 on a Xeon whose output is in L3; less on a Zen 4 where the sixteen planes
/// that are written at once do not fight for the same sets), or, where channels are last, as it is.
pub(crate) fn from_lanes(problem: &Problem, datum_type: DatumType, isa: Isa) -> usize {
    let plane = problem.axes.iter().fold(datum_type.size_of(), |bytes, axis| bytes.saturating_mul(axis.output));
    match (problem.data_format, isa) {
        (DataFormat::Nxc, _) => 6,
        (_, Isa::Amx) => 17,
        _ if plane.is_multiple_of(SAME_SETS) => 17,
        _ => 13,
    }
}

/// Transforming a vector of channels of a tile's input, for each of its products; a vector of weights; and products to results, each of which is
/// stored and loaded once.
pub(crate) const TRANSFORMED: usize = 4;
pub(crate) const TRANSFORMED_WEIGHTS: usize = 8;
pub(crate) const FROM_PRODUCTS: usize = 9;

/// Loading a vector of weights there again, for each block but the first, where all of them are more than L2 has (256 to 256 channels, 5×5×5 taps on 4×4×4
/// positions, took three times what its products take on a Xeon, whose L3 is slow; on a Zen 4 little more than the products).
pub(crate) fn far_weight(isa: Isa) -> usize {
    if isa == Isa::Amx { 30 } else { 3 }
}

/// What moving data in and out adds where few products are made of it, as a multiple of the estimate: worth sharing, if not a reason to choose another strategy (two to
/// four slots a nanosecond on a Xeon where dense layers have 5.6).
pub(crate) const MOVED: u64 = 2;

/// Copying what the strategy that sums a channel's rows reads into input tiles, once an outer position; for windows, rows are long and few.
pub(crate) fn copied_rows(input_tiles: &InputTiles, lanes: usize, windows: bool) -> usize {
    let rows = input_tiles.channel_stride / input_tiles.pitch;
    match windows {
        true => rows.saturating_mul(14).saturating_add(input_tiles.count().saturating_mul(120)).saturating_add(600),
        false => (input_tiles.channel_stride / lanes)
            .saturating_mul(5)
            .saturating_add(input_tiles.count().saturating_mul(185)),
    }
}

/// Listing its taps, once a run.
pub(crate) const LISTED_ROWS: u64 = 2000;

/// How that strategy goes over the results of a channel.
pub(crate) struct Rows {
    /// Output rows that are begun one by one.
    pub rows: usize,
    /// Vectors of results.
    pub vectors: usize,
    /// Products of each.
    pub taps: usize,
}

impl Rows {
    fn of(&self, channel: usize, vector: usize, product_tenths: usize) -> usize {
        let products = self.vectors.saturating_mul(self.taps).saturating_mul(product_tenths) / 10;
        channel.saturating_add(self.vectors.saturating_mul(vector)).saturating_add(products)
    }

    /// Of so many interleaved phases: other numbers than powers of two go through memory.
    pub fn interleaved(&self, phases: usize) -> usize {
        let stored = if phases.is_power_of_two() { 4 } else { 20 };
        self.of(67, stored, 17).saturating_add(self.rows.saturating_mul(54))
    }

    /// By a window that moves down a copy; rows of taps share what they load, as far as there are `several`. Where neighbouring results are two apart in the
    /// input, few sums are under way, and their products wait for each other.
    pub fn by_window(&self, every: usize, several: bool) -> usize {
        match every {
            2 => self.of(54, 7, 11).saturating_add(self.rows.saturating_mul(self.taps) / 5 * 2),
            _ => self.of(54, 5, if several { 7 } else { 14 }),
        }
    }

    /// By a window that moves down the input and leaves out the padding.
    pub fn by_window_in_place(&self, every: usize, several: bool) -> usize {
        let row = if several { (self.taps.saturating_mul(7) / 5).saturating_add(34) } else { 10 };
        match every {
            2 => self.of(91, 13, 2).saturating_add(self.rows.saturating_mul(row)),
            _ => self.of(268, 8, 6),
        }
    }

    /// By vectors that run over row ends, which `several` rows of taps make them mask.
    pub fn by_plane(&self, several: bool) -> usize {
        self.of(43, 7, if several { 19 } else { 10 })
    }
}

/// Bytes of input and output that L3 keeps from run to run, about, where there are no tile registers.
const KEPT: usize = 10 << 20;

/// What input and output add where groups have one input channel: a slot for so many bytes that L2 does not have on a Xeon, or L3 on a Zen 4, where what L3 has costs
/// next to nothing (256 to 256 channels on 56×56 positions, stride 2).
pub(crate) fn beyond_cache(problem: &Problem, datum_type: DatumType, isa: Isa, machine: &Machine) -> u64 {
    let [input, output] = moved_bytes(problem, datum_type);
    let (kept, bytes) = if isa == Isa::Amx { (machine.l2, 20) } else { (KEPT, 6) };
    (input.saturating_add(output).saturating_sub(kept) / bytes) as u64
}

/// Bytes of the input, and of the output.
fn moved_bytes(problem: &Problem, datum_type: DatumType) -> [usize; 2] {
    [problem.input_shape(), problem.output_shape()]
        .map(|shape| shape.iter().fold(datum_type.size_of(), |bytes, dim| bytes.saturating_mul(*dim)))
}

/// What a vector of channels costs the strategy that sums cells, whatever their size: where lanes are picked, and for each tap where they are not.
pub(crate) const CHANNELS: usize = 1500;
pub(crate) const TAP_OF_CELLS: usize = 45;

/// What cells take of their estimate where a row of them is more than a quarter of L2, and what phases do where one channel
/// becomes several, interleaved: the same work is half as much again there, or little more than half.
pub(crate) fn of_long_rows(cost: u64) -> u64 {
    cost.saturating_mul(8) / 5
}
pub(crate) fn of_multiplied_channels(cost: u64) -> u64 {
    cost.saturating_mul(5) / 8
}

/// Transposing a vector of channels-first input on its way into cells, all of a plane's, and some of a block's.
pub(crate) const INTO_CELLS: usize = 8;
pub(crate) const INTO_BLOCK: usize = 9;

/// What a run of cells costs that have the same taps, one phase of an output row, whatever its length.
pub(crate) const RUN_OF_CELLS: usize = 150;

/// Such a run near the end of a row, one of as many as there are places with other taps, for each tap, whatever the channels (8 to 8 channels on 12×12×12
/// positions, 5×5×5 taps: a quarter of the time was estimated on a Zen 4).
pub(crate) const TAP_OF_EDGE: usize = 15;

/// A vector of sums of `taps` products of cells, and its store. Neighbouring taps that are as far apart as positions have `shared` loads.
pub(crate) fn cells(data_format: DataFormat, vectors: usize, taps: usize, shared: bool) -> usize {
    let products = if shared { taps } else { taps * 5 / 4 };
    let stored = if data_format == DataFormat::Ncx { 12 } else { 6 };
    vectors.saturating_mul(products.saturating_add(stored))
}

/// A vector of sums of so many products, for each of which lanes are picked, by instructions of their own or not, and its store; `shared` as above.
pub(crate) fn picked(vectors: usize, products: usize, shared: bool, by_instructions: bool) -> usize {
    let tenths = match (by_instructions, shared) {
        (false, _) => 100,
        (true, true) => 11,
        (true, false) => 18,
    };
    vectors.saturating_mul(products.saturating_mul(tenths) / 10 + 6)
}

/// Loading a vector of weights that is used once and is not in L2, and what a product of one position costs besides.
pub(crate) const STREAMED: usize = 3;

/// What such loads wait for memory where that is slow, as a multiple of the estimate: a second thread is worth having for it (240 us of one, 190 of two, on a
/// Xeon whose L3 gives a core 28 GB/s; the estimate holds on a Zen 4).
pub(crate) const WAITED: u64 = 3;
pub(crate) const PRODUCT: usize = 100;

/// What a group costs whose products are added to the output where they overlap, whatever its size.
pub(crate) const CHANNEL: usize = 650;

/// Adding a vector of products to the output, unaligned, and what a run of them costs besides.
pub(crate) const ADDED: usize = 6;
pub(crate) const RUN: usize = 40;

/// Making, reading and adding a vector of products; what an output row costs besides, whatever its length, and storing a vector of it, of so many
/// interleaved phases.
pub(crate) const GATHERED: usize = 8;
pub(crate) const GATHERED_ROW: u64 = 190;
pub(crate) fn gathered_store(phases: usize) -> usize {
    if matches!(phases, 1 | 2 | 4) { 28 } else { 42 }
}

/// Storing a vector of positions element by element, where channels are last.
pub(crate) const SCATTERED: usize = 80;

/// Storing a vector of positions by way of a buffer in which the phases of a row are interleaved. Channels last take squares of at most sixteen of a
/// tile's `channels`, and a square costs the same however full it is.
pub(crate) fn buffered(data_format: DataFormat, channels: usize) -> usize {
    match data_format {
        DataFormat::Ncx => 20,
        DataFormat::Nxc if channels < 4 => SCATTERED,
        DataFormat::Nxc => 12 + 130 / channels.min(16),
    }
}

/// Storing a row of a phase of a channel from such a buffer, whatever its length.
pub(crate) const BUFFERED_ROW: usize = 50;

/// Filling the input tiles of some channels, of which a vector of positions costs `copying`, and each input tile something besides, whatever its size.
pub(crate) fn filled(input_tiles: &InputTiles, channels: usize, lanes: usize, copying: usize) -> usize {
    const SHEET: usize = 100;
    let vectors = (input_tiles.elements(channels) / lanes).saturating_mul(copying);
    vectors.saturating_add(input_tiles.count().saturating_mul(channels).saturating_mul(SHEET))
}

/// A row of a channel of which only some positions are picked, as no tap reads the others, whatever its length (192 to 384 channels on 32×32 positions, 1×1 taps of
/// stride 2: 0.4 of the time was estimated on a Zen 4).
pub(crate) const PICKED_ROW: usize = 100;

/// Planes so many bytes apart, or a multiple, fight for the same sets of L1, and for one or two of L2.
const SAME_SETS: usize = 4 << 10;
const SAME_SETS_OF_L2: usize = 64 << 10;
const WAITED_FOR: usize = 40;

/// Reading a vector of positions where it is, of an input of so many `bytes`, for `panels` of `mr` × `nv` tiles, in as many `passes` as the input is gone
/// over. Many planes, and few cache lines at once of each, are not fetched by the CPU itself (256 to 20 channels on 128×128 positions took twice what their
/// products take on a Xeon). On a Zen 4 tiles fetch them, and one pass is as fast as the products (512 to 24 on 160×160: 0.6 of the time before). What the first
/// panel fetched is not always there for the next ones: 256 to 48 on 100×100 took 1.7 times as long by 24×1 as by 12×2. Of planes that fight for one set of
/// L2, tiles wait for each line some forty slots, whether they make 16 or 24 products of it.
pub(crate) fn read_in_place(
    problem: &Problem,
    bytes: usize,
    (passes, panels): (usize, usize),
    (mr, nv): (usize, usize),
    isa: Isa,
    machine: &Machine,
) -> usize {
    let plane = bytes / (problem.group_in * problem.group * problem.batch).max(1);
    match (isa, problem.group_in, bytes > machine.l2) {
        (Isa::Amx, 64.., false) => 6,
        (Isa::Amx, 64.., true) => 20,
        (Isa::Amx, ..) | (_, _, false) => 0,
        _ if problem.group_in >= 128 && plane.is_multiple_of(SAME_SETS_OF_L2) => {
            passes.saturating_mul(WAITED_FOR.saturating_sub(mr).max(8))
        }
        _ if nv == 1 && panels > 1 => passes.saturating_add(30),
        _ if passes <= 1 => 1,
        _ if plane.is_multiple_of(SAME_SETS) => passes.saturating_mul(8),
        _ => passes.saturating_mul(2),
    }
}

/// What input and output cost besides where both are more than L3 keeps, by the strategy's slots a vector: nothing on the Xeon, whose estimates were
/// fitted to such layers without.
pub(crate) fn beyond_caches(
    problem: &Problem,
    datum_type: DatumType,
    (of_input, of_output): (u64, u64),
    lanes: usize,
    isa: Isa,
) -> u64 {
    let [input, output] = moved_bytes(problem, datum_type);
    if isa == Isa::Amx || input.saturating_add(output) < KEPT {
        return 0;
    }
    let vectors = |bytes: usize| (bytes / (lanes * datum_type.size_of())) as u64;
    vectors(input).saturating_mul(of_input).saturating_add(vectors(output).saturating_mul(of_output))
}

/// The slots of strategies that read some positions of many planes and write as many of several: twelve to twenty. Of those that read
/// cells of channels and store squares, five to eight. What is read in place is fetched ahead, and its results are stored in long runs.
pub(crate) const BEYOND_BY_PLANES: (u64, u64) = (16, 16);
pub(crate) const BEYOND_BY_CELLS: (u64, u64) = (6, 6);
pub(crate) const BEYOND_IN_PLACE: (u64, u64) = (4, 6);

/// Copying a vector of positions into a block. Channels last take squares, as above.
pub(crate) fn copied(data_format: DataFormat, channels: usize) -> usize {
    match data_format {
        DataFormat::Ncx => 16,
        DataFormat::Nxc => 8 + 200 / channels.clamp(1, 16),
    }
}

/// One (channel, tap) of an `m` × `n` tile. Bounds: the multiply-adds; a load for each operand; eight accumulators to hide the latency; 20 bytes a slot from
/// L2, where the input is not `resident` in L1.
pub(crate) fn tile(m: usize, n: usize, vector_bytes: usize, resident: bool) -> usize {
    let streamed = if resident { 0 } else { n * vector_bytes / 20 };
    (m * n).max(m + n).max(8).max(streamed) + 1
}
