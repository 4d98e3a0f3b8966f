//! The panels of a filter packed in chunks: their weights, bias and register tiles.
//!
//! The output channels of a panel are the lanes of its kernel.

use crate::element::Element;
use crate::kernel::{ChannelTile, Kernels};
use crate::layout::filter::{PackedFilter, panel_heights};
use crate::spec::Problem;
use std::ops::Range;
use tract_core::internal::*;

/// A panel: the output channels of a group that the kernel's lanes hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel {
    /// Its index in the group's list of panels.
    pub index: usize,
    /// Its first output channel within the group.
    pub first_channel: usize,
    /// Output channels, including the missing ones of the last panel.
    pub width: usize,
}

/// How output channels and output positions are split into register tiles.
#[derive(Clone, Copy)]
pub(crate) struct PanelShape {
    /// Output channels per panel, and output channels of the last panel.
    pub widths: (usize, usize),
    /// The most positions per register tile.
    pub positions: usize,
    /// Weights per output channel: all phases, taps and input channels.
    pub weights: usize,
}

struct PackedPanel<T: 'static> {
    panel: Panel,
    /// The index of its first weight within the group's weights.
    weights: usize,
    tiles: Vec<&'static ChannelTile<T>>,
}

/// The panels of all groups.
pub(crate) struct Panels<'a, E: Element> {
    /// The panels of one group; all groups have the same.
    list: Vec<PackedPanel<E::Compute>>,
    weights: &'a [E::Compute],
    /// Weights per group.
    group_weights: usize,
    /// Padded to whole panels, per group.
    bias: Vec<E::Compute>,
    /// Output channels per group, padded to whole panels.
    padded: usize,
}

impl<'a, E: Element> Panels<'a, E> {
    /// # Errors
    /// No register tile has a panel's width, or the filter has another element type.
    pub fn new(
        problem: &Problem,
        kernels: &'static Kernels<E::Compute>,
        shape: PanelShape,
        filter: &'a PackedFilter,
        bias: Option<&[E]>,
    ) -> TractResult<Self> {
        let mut padded = 0;
        let list: Vec<PackedPanel<E::Compute>> = panel_heights(problem.group_out, shape.widths.0, shape.widths.1)
            .enumerate()
            .map(|(index, (first_channel, width))| {
                let weights = padded * shape.weights;
                padded += width;
                let fits = |tile: &&ChannelTile<_>| tile.channels() == width && tile.positions() <= shape.positions;
                let tiles: Vec<_> = kernels.channel_tiles.iter().rev().filter(fits).collect();
                ensure!(tiles.last().is_some_and(|t| t.positions() == 1), "kernel: a tile of the plan is missing");
                Ok(PackedPanel { panel: Panel { index, first_channel, width }, weights, tiles })
            })
            .collect::<TractResult<_>>()?;
        let weights = filter.data::<E::Compute>()?;
        let bias = crate::layout::padded_bias(problem, bias, padded);
        Ok(Panels { list, weights, group_weights: padded * shape.weights, bias, padded })
    }

    /// The panels whose first output channel is in `channels`.
    pub fn within(&self, channels: Range<usize>) -> impl Iterator<Item = Panel> {
        self.list.iter().map(|packed| packed.panel).filter(move |panel| channels.contains(&panel.first_channel))
    }

    /// The weights of a panel of group `g`, skipping the first `before` weights of each output
    /// channel.
    pub fn weights(&self, g: usize, panel: Panel, before: usize) -> &[E::Compute] {
        &self.weights[g * self.group_weights + self.list[panel.index].weights + before * panel.width..]
    }

    /// The bias of a panel of group `g`.
    pub fn bias(&self, g: usize, panel: Panel) -> &[E::Compute] {
        &self.bias[g * self.padded + panel.first_channel..][..panel.width]
    }

    /// The register tiles of a panel, from the one with the most positions down to one position.
    ///
    /// The smaller ones compute the remainder of a run of positions.
    pub fn tiles(&self, panel: Panel) -> &[&'static ChannelTile<E::Compute>] {
        &self.list[panel.index].tiles
    }
}
