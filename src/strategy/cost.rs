//! What the planner's estimates are made of. A slot is one vector multiply-add.
//!
//! The constants of phases, channels and col2im were fitted to the times of 480 random problems (f32, NCX, one thread, AVX-512 on Zen 4), each under
//! every strategy that takes it, but for what unfinished sums cost, which was parted by hand when sums were; the others were set
//! so, to the times of the layers in `benches/workloads.json`, and on a Xeon those of tile registers to 600 random layers of both directions and layouts, of sheets and of
//! input that is read in place to 1,800 of both directions. They count what a strategy adds to the multiply-adds for each vector
//! of results, memory traffic included. `cargo bench --bench planner` tells how far the choices they lead to are from the best ones.

use super::sheets::Sheets;
use crate::machine::Machine;
use crate::spec::DataFormat;

/// The estimated cost, some 50 us, below which a plan keeps what it lists of its taps from run to run. Above, that takes less than a fiftieth of the time, and small blocks that
/// stay between large ones keep outputs from taking the place of earlier ones (a HiFi-GAN took 60 MB more).
pub(super) const LISTED_ONCE: u64 = 1 << 18;

/// What a block of a group costs where weights are the scalars, whatever its size.
pub(super) const BLOCK: usize = 300;

/// Storing a vector of results that a register tile interleaves itself.
pub(super) const FROM_REGISTERS: usize = 19;

/// Narrowing a vector of such rows, by way of a buffer, to f16.
pub(super) const NARROWED: usize = 4;

/// Loading and storing a vector of unfinished sums, once a chain.
pub(super) const SUMMED: usize = 4;

/// One step of tile registers, 32 positions by 32 input channels by 32 output channels in six products of parts: 170 to 190 ns in layers on a Xeon (159 of
/// the unit's own) that makes 5 of the estimates' slots a nanosecond under the other strategies.
pub(super) const MULTIPLIED: usize = 850;

/// What such tiles of sums cost besides, once a pass.
pub(super) const TILES: usize = 1250;

/// Making parts of a vector of input channels of a cell.
pub(super) const PARTED: usize = 20;

/// Loading the parts of the weights of a step for 16 output channels, once a block.
pub(super) const STREAMED_PARTS: usize = 310;

/// What each of several blocks waits for such weights where all of them are more than L2 has (512 to 512 channels on 16×16 positions, 3×3 taps, channels last:
/// 3.9 ms in one block, 5.5 in four).
pub(super) const READ_AGAIN: usize = 520;

/// Loading such weights and making parts of them, once a strip.
pub(super) const PARTED_WEIGHTS: usize = 650;

/// Transposing and storing a vector of sums of the strategy with lanes of channels (21 on a Xeon whose output is in L3).
pub(super) const TRANSPOSED: usize = 17;

/// Storing a vector of such sums where channels are last.
pub(super) const PLACED: usize = 6;

/// Copying a row of one channel into a block, by its number of vectors: calls cost more than short rows do.
pub(super) const COPIED_ROW: usize = 40;

/// What a channel costs the strategy that sums its shifted rows, whatever its size.
pub(super) const CHANNEL: usize = 650;

/// What an output row costs there, where rows do not follow each other in memory.
pub(super) const ROW: usize = 80;

/// What moving data in and out adds where few products are made of it, as a multiple of the estimate: worth sharing, if not a reason to choose another strategy (two to
/// four slots a nanosecond on a Xeon where dense layers have 5.6).
pub(super) const MOVED: u64 = 2;

/// A vector of sums of `taps` products, and its store, there.
pub(super) fn shifted(vectors: usize, taps: usize) -> usize {
    vectors.saturating_mul(7).saturating_add(vectors.saturating_mul(taps).saturating_mul(7) / 5)
}

/// What a channel costs where a window moves down its rows, whatever its size, and copying a row, whatever its length.
pub(super) const WINDOW: usize = 380;
pub(super) const PADDED_ROW: usize = 8;

/// What a channel costs where the window reads the input in place, whatever its size, and the share of its sums that leaving out the padding takes.
pub(super) const WINDOW_IN_PLACE: usize = 260;
pub(super) const MASKED: usize = 16;

/// Rows of vectors of such sums of `taps` products, and their store; `every` is how far apart in the input neighbouring results are. Where that is two, few
/// sums are under way, and a row takes as long as its products wait for each other. Else rows of taps share what they load, as far as there are `several`.
pub(super) fn window(rows: usize, vectors: usize, taps: usize, every: usize, several: bool) -> usize {
    match (every, several) {
        (2, _) => rows.saturating_mul(4 * taps + 4).saturating_add(vectors.saturating_mul(taps * 3 / 2)),
        (_, true) => vectors.saturating_mul(taps * 11 / 10 + 1),
        (_, false) => loaded(vectors, taps),
    }
}

/// Vectors of sums of `taps` products, each of a load of its own, mostly across two cache lines.
fn loaded(vectors: usize, taps: usize) -> usize {
    vectors.saturating_mul(taps * 27 / 10 + 1)
}

/// A channel of so many vectors of such sums where vectors run over row ends.
pub(super) fn plane(vectors: usize, taps: usize) -> usize {
    loaded(vectors, taps).saturating_add(165)
}

/// What a vector of channels costs the strategy that sums cells, whatever their size.
pub(super) const CHANNELS: usize = 1500;

/// Transposing a vector of channels-first input on its way into cells.
pub(super) const INTO_CELLS: usize = 9;

/// What a run of cells costs that have the same taps, one phase of an output row, whatever its length.
pub(super) const RUN_OF_CELLS: usize = 150;

/// A vector of sums of `taps` products of cells, and its store. Neighbouring taps that are as far apart as positions have `shared` loads.
pub(super) fn cells(data_format: DataFormat, vectors: usize, taps: usize, shared: bool) -> usize {
    let products = if shared { taps } else { taps * 5 / 4 };
    let stored = if data_format == DataFormat::Ncx { 14 } else { 6 };
    vectors.saturating_mul(products.saturating_add(stored))
}

/// A vector of sums of so many products, for each of which lanes are picked, by instructions of their own or not, and its store; `shared` as above.
pub(super) fn picked(vectors: usize, products: usize, shared: bool, by_instructions: bool) -> usize {
    let tenths = match (by_instructions, shared) {
        (false, _) => 100,
        (true, true) => 11,
        (true, false) => 18,
    };
    vectors.saturating_mul(products.saturating_mul(tenths) / 10 + 6)
}

/// Loading a vector of weights that is used once and is not in L2, and what a product of one position costs besides.
pub(super) const STREAMED: usize = 3;

/// What such loads wait for memory where that is slow, as a multiple of the estimate: a second thread is worth having for it (240 us of one, 190 of two, on a
/// Xeon whose L3 gives a core 28 GB/s; the estimate holds on a Zen 4).
pub(super) const WAITED: u64 = 3;
pub(super) const PRODUCT: usize = 100;

/// Adding a vector of products to the output, unaligned, and what a run of them costs besides.
pub(super) const ADDED: usize = 6;
pub(super) const RUN: usize = 40;

/// Making, reading and adding a vector of products.
pub(super) const GATHERED: usize = 16;

/// Storing a vector of positions element by element, where channels are last.
pub(super) const SCATTERED: usize = 80;

/// Interleaving a row of a phase of a channel with the others, on its way from such a buffer, whatever its length.
pub(super) const INTERLEAVED_ROW: usize = 20;

/// Storing a vector of positions by way of a buffer in which so many phases of a row are interleaved. Channels last take squares of
/// at most sixteen of a tile's `channels`, and a square costs the same however full it is.
pub(super) fn buffered(data_format: DataFormat, phases: usize, channels: usize) -> usize {
    let interleaved = if matches!(phases, 1 | 2 | 4) { 38 } else { 54 };
    match data_format {
        DataFormat::Ncx => interleaved,
        DataFormat::Nxc if channels < 4 => SCATTERED,
        DataFormat::Nxc => 12 + 130 / channels.min(16),
    }
}

/// Filling the sheets of some channels, of which a vector of positions costs `copying`, and each sheet something besides, whatever its size.
pub(super) fn filled(sheets: &Sheets, channels: usize, lanes: usize, copying: usize) -> usize {
    const SHEET: usize = 80;
    let vectors = (sheets.elements(channels) / lanes).saturating_mul(copying);
    vectors.saturating_add(sheets.count().saturating_mul(channels).saturating_mul(SHEET))
}

/// Reading a vector of positions where it is, of so many channels in an input of so many `bytes`: many planes, and few cache lines at once of each, are not fetched
/// ahead (256 to 20 channels on 128×128 positions took twice what their products take on a Xeon).
pub(super) fn read_in_place(channels: usize, bytes: usize, machine: &Machine) -> usize {
    match (channels, bytes > machine.l2) {
        (..64, _) => 0,
        (_, false) => 6,
        (_, true) => 20,
    }
}

/// Copying a vector of positions into a block. Channels last take squares, as above.
pub(super) fn copied(data_format: DataFormat, channels: usize) -> usize {
    match data_format {
        DataFormat::Ncx => 8,
        DataFormat::Nxc => 8 + 200 / channels.clamp(1, 16),
    }
}

/// One (channel, tap) of an `m` × `n` tile. Bounds: the multiply-adds; a load for each operand; eight accumulators to hide the latency; 20 bytes a slot from
/// L2, where the input is not `resident` in L1.
pub(super) fn tile(m: usize, n: usize, vector_bytes: usize, resident: bool) -> usize {
    let streamed = if resident { 0 } else { n * vector_bytes / 20 };
    (m * n).max(m + n).max(8).max(streamed) + 1
}
