//! Weights that are transformed for tiles: which taps make them, and where they stand.
//!
//! The weights of a panel of output channels are
//! `[phase][term][pass of input channels][point][tap block][input channel][output channel]`. Phases are in the order of
//! packed filters.

use crate::compute::Compute;
use crate::kernel::{Dispatch, Kernels, MOST_TAPS, TileKind, TileTransforms};
use crate::memory;
use crate::simd::isa::Isa;
use std::fmt;
use std::ops::Range;
use tract_core::internal::tract_smallvec::SmallVec;
use tract_core::internal::*;

/// The taps of a tile: their indices in a phase, row by row. None for a weight of zero.
pub(crate) type TileTaps = TVec<Option<usize>>;

/// The taps of a phase that tiles of one kind read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TermTaps {
    /// The kind of the tiles.
    pub kind: TileKind,
    pub blocks: Vec<TileTaps>,
    /// Input channels whose weights stand together.
    pub pass: usize,
}

impl TermTaps {
    /// Elements per point of the weights of some input channels. One more vector, as points a power
    /// of two apart would compete for the same cache sets.
    pub fn of_point(&self, channels: usize, width: usize, lanes: usize) -> usize {
        self.blocks.len() * channels * width + lanes
    }

    /// Elements of the weights of the first `channels` input channels, which are whole passes or all
    /// channels.
    pub fn before(&self, channels: usize, width: usize, lanes: usize) -> usize {
        self.kind.points() * (self.blocks.len() * channels * width + channels.div_ceil(self.pass) * lanes)
    }

    /// Transforms the weights of a pass. `chunk_of` returns the chunk of an input channel and its
    /// weights `[tap][input channel][output channel]`. `zeros` are as many as a tap has weights in a
    /// pass.
    pub fn transform<'a, T: Compute>(
        &self,
        transforms: &TileTransforms<T>,
        pass: &Range<usize>,
        width: usize,
        chunk_of: impl Fn(usize) -> (Range<usize>, &'a [T]),
        zeros: &[T],
        (to, of_point): (&mut [T], usize),
    ) {
        let mut from = pass.start;
        while from < pass.end {
            let (chunk, weights) = chunk_of(from);
            let end = pass.end.min(chunk.end);
            for (block, at) in self.blocks.iter().zip((from - pass.start..).step_by(pass.len())) {
                let tap = |tap: &Option<usize>| match tap {
                    Some(tap) => {
                        let first = tap * chunk.len() + from - chunk.start;
                        &weights[first * width..(first + end - from) * width]
                    }
                    None => &zeros[..(end - from) * width],
                };
                let taps: SmallVec<[&[T]; MOST_TAPS * MOST_TAPS]> = block.iter().map(tap).collect();
                transforms.filter(&taps, &mut to[at * width..], of_point);
            }
            from = end;
        }
    }
}

/// The transformed weights that a packed filter has beside the others.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TileWeights {
    /// What transforms them, so that they have the same bits as weights transformed in a run.
    isa: Isa,
    /// Per phase, the taps of each kind of tiles.
    phases: Arc<Vec<Vec<TermTaps>>>,
}

impl fmt::Debug for TileWeights {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut kinds: Vec<TileKind> = self.phases.iter().flatten().map(|term| term.kind).collect();
        kinds.dedup();
        write!(f, "{kinds:?} on {}", self.isa)
    }
}

impl TileWeights {
    pub(crate) fn new(isa: Isa, phases: Vec<Vec<TermTaps>>) -> TileWeights {
        TileWeights { isa, phases: Arc::new(phases) }
    }

    /// Elements of a group's panel before a term of a phase.
    pub(crate) fn before(&self, (phase, term): (usize, usize), channels: usize, width: usize, lanes: usize) -> usize {
        let whole = self.phases[..phase].iter().flatten();
        let before = whole.chain(self.phases.get(phase).map_or(&[][..], |terms| &terms[..term]));
        before.map(|term| term.before(channels, width, lanes)).fold(0, usize::saturating_add)
    }

    /// Elements of a group's panel of `width` output channels.
    pub(crate) fn of_panel(&self, channels: usize, width: usize, lanes: usize) -> usize {
        self.before((self.phases.len(), 0), channels, width, lanes)
    }

    /// Elements of panels of these widths.
    pub(crate) fn of_panels(&self, channels: usize, widths: impl IntoIterator<Item = usize>, lanes: usize) -> usize {
        let of_panel = |width| self.of_panel(channels, width, lanes);
        widths.into_iter().map(of_panel).fold(0, usize::saturating_add)
    }

    /// Whether the phases of a filter have its taps. `taps` are the numbers of them per phase.
    pub(crate) fn fits(&self, taps: &[usize]) -> bool {
        let inside = |of: &TermTaps, taps: usize| of.blocks.iter().flatten().flatten().all(|tap| *tap < taps);
        let fits = |(terms, taps): (&Vec<TermTaps>, &usize)| terms.iter().all(|term| inside(term, *taps));
        self.phases.len() == taps.len() && self.phases.iter().zip(taps).all(fits)
    }

    /// Transforms a filter that is packed in chunks of `chunk` input channels: `panels` of output
    /// channels, of all groups, whose phases have so many `taps`. Returns none if the CPU lacks the
    /// instruction set.
    ///
    /// # Errors
    /// Panels that are not whole vectors, or no memory.
    pub(crate) fn transformed<T: Dispatch + Datum>(
        &self,
        (panels, taps): (&[usize], &[usize]),
        (channels, chunk): (usize, usize),
        packed: &Tensor,
    ) -> TractResult<Option<Tensor>> {
        if !self.isa.is_available() {
            return Ok(None);
        }
        let kernels: &Kernels<T> = T::kernels(self.isa);
        let lanes = kernels.lanes;
        ensure!(
            panels.iter().all(|width| width.is_multiple_of(lanes)),
            "filter layout: panels={panels:?}, vectors of {} have {lanes} channels",
            self.isa
        );
        let ram = packed.try_as_plain_ram()?;
        let mut weights = ram.as_slice::<T>()?;
        let len = self.of_panels(channels, panels.iter().copied(), lanes);
        let mut tensor = memory::zero_tensor::<T>("transformed filter", &[len])?;
        let mut view = tensor.try_as_plain_ram_mut()?;
        let mut to = view.as_slice_mut::<T>()?;
        let longest = self.phases.iter().flatten().map(|term| term.pass).max().unwrap_or(0);
        let zeros = memory::zeros("weights of zero", longest * panels.iter().max().unwrap_or(&0))?;
        for width in panels.iter().copied() {
            for (terms, taps) in self.phases.iter().zip(taps) {
                let (of_phase, rest) = weights.split_at(taps * channels * width);
                weights = rest;
                let chunk_of = |channel: usize| {
                    let first = channel / chunk * chunk;
                    (first..(first + chunk).min(channels), &of_phase[first * taps * width..])
                };
                for term in terms {
                    let transforms = kernels.tile_transforms(term.kind);
                    for from in (0..channels).step_by(term.pass) {
                        let pass = from..(from + term.pass).min(channels);
                        let of_point = term.of_point(pass.len(), width, lanes);
                        let (of_pass, rest) = std::mem::take(&mut to).split_at_mut(term.kind.points() * of_point);
                        to = rest;
                        term.transform(&transforms, &pass, width, chunk_of, &zeros, (of_pass, of_point));
                    }
                }
            }
        }
        Ok(Some(tensor))
    }
}
