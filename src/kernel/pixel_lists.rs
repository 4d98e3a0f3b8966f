//! Lists of the pixels that register tiles read.

use crate::memory::reserved;
use tract_core::internal::*;

/// What register tiles read where their positions are not evenly spaced: for each tap of a tile, one
/// pixel per position.
///
/// This is the indirection buffer of Dukhan, *The Indirect Convolution Algorithm* (2019).
///
/// The fields are private, so that the bounds of a tile's reads are known without a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PixelLists {
    positions: usize,
    /// For each listed tap, its index and the offset of a pixel per position. The taps of a list
    /// ascend.
    entries: Vec<u32>,
    /// The end of each list in `entries`.
    ends: Vec<usize>,
    /// The largest offset.
    furthest: u32,
}

impl PixelLists {
    /// No lists, for tiles of `positions` positions, with memory for `lists` lists of `taps` taps in
    /// total.
    ///
    /// # Errors
    /// Failure to allocate memory.
    pub fn new(positions: usize, lists: usize, taps: usize) -> TractResult<PixelLists> {
        let entries = reserved("pixel lists", taps.saturating_mul(1 + positions))?;
        Ok(PixelLists { positions, entries, ends: reserved("pixel lists", lists)?, furthest: 0 })
    }

    /// Positions of a tile.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Adds a list: for each tap, its index and an offset per position.
    ///
    /// # Errors
    /// Taps that do not ascend, another number of offsets than positions, or more lists or taps than
    /// there is memory for.
    pub fn push(&mut self, list: impl IntoIterator<Item = (u32, impl AsRef<[u32]>)>) -> TractResult<()> {
        let mut last = None;
        for (tap, offsets) in list {
            let offsets = offsets.as_ref();
            let (len, room) = (1 + self.positions, self.entries.capacity() - self.entries.len());
            ensure!(last.is_none_or(|last| last < tap), "pixel list: tap={tap}, the one before is {last:?}");
            ensure!(1 + offsets.len() == len, "pixel list: offsets={}, {} are needed", offsets.len(), self.positions);
            ensure!(len <= room, "pixel lists: elements={len}, there is room for {room}");
            last = Some(tap);
            self.entries.push(tap);
            self.entries.extend_from_slice(offsets);
            self.furthest = offsets.iter().copied().fold(self.furthest, u32::max);
        }
        ensure!(self.ends.len() < self.ends.capacity(), "pixel lists: count={}, there is no room", self.ends.len());
        self.ends.push(self.entries.len());
        Ok(())
    }

    /// A list: for each tap, its index and one offset per position.
    ///
    /// # Panics
    /// There are fewer lists.
    pub fn list(&self, at: usize) -> &[u32] {
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.entries[begin..self.ends[at]]
    }

    /// One past the largest tap of a list. Zero if it is empty.
    pub(super) fn taps(&self, at: usize) -> usize {
        let list = self.list(at);
        list.len().checked_sub(1 + self.positions).map_or(0, |last| (list[last] as usize).saturating_add(1))
    }

    /// The largest offset of all lists.
    pub(super) fn furthest(&self) -> usize {
        self.furthest as usize
    }
}
