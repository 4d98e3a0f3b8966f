//! The panels of a filter that is packed in chunks: output channels that are lanes together, their weights, bias and register tiles.

use crate::element::Element;
use crate::kernel::{ChannelTile, Kernels};
use crate::layout::filter::{PackedFilter, panel_heights};
use crate::spec::Problem;
use std::ops::Range;
use tract_core::internal::*;

/// The output channels of a group that are lanes together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelPlace {
    /// Its place among the panels.
    pub index: usize,
    /// Its first output channel of the group.
    pub first_channel: usize,
    /// Output channels, those that are missing included.
    pub width: usize,
}

/// How channels and positions are parted.
#[derive(Clone, Copy)]
pub(crate) struct PanelShape {
    /// Output channels of a panel, and of the last one.
    pub widths: (usize, usize),
    /// Positions of a register tile, at most.
    pub positions: usize,
    /// Weights of an output channel: all phases, taps and input channels.
    pub weights: usize,
}

struct Panel<T: 'static> {
    place: PanelPlace,
    /// Where its weights begin among the group's.
    weights: usize,
    tiles: Vec<&'static ChannelTile<T>>,
}

/// Those of all groups.
pub(crate) struct Panels<'a, E: Element> {
    /// Of one group.
    list: Vec<Panel<E::Compute>>,
    weights: &'a [E::Compute],
    /// Weights of a group.
    group_weights: usize,
    /// Padded to panel widths, per group.
    bias: Vec<E::Compute>,
    /// Output channels of a group, padded so.
    padded: usize,
}

impl<'a, E: Element> Panels<'a, E> {
    /// # Errors
    /// When there is no register tile of a panel's width, or the filter has another type.
    pub fn new(
        problem: &Problem,
        kernels: &'static Kernels<E::Compute>,
        shape: PanelShape,
        filter: &'a PackedFilter,
        bias: Option<&[E]>,
    ) -> TractResult<Self> {
        let mut padded = 0;
        let list: Vec<Panel<E::Compute>> = panel_heights(problem.group_out, shape.widths.0, shape.widths.1)
            .enumerate()
            .map(|(index, (first_channel, width))| {
                let weights = padded * shape.weights;
                padded += width;
                let fits = |tile: &&ChannelTile<_>| tile.channels() == width && tile.positions() <= shape.positions;
                let tiles: Vec<_> = kernels.channel_tiles.iter().rev().filter(fits).collect();
                ensure!(tiles.last().is_some_and(|t| t.positions() == 1), "kernel: a tile of the plan is missing");
                Ok(Panel { place: PanelPlace { index, first_channel, width }, weights, tiles })
            })
            .collect::<TractResult<_>>()?;
        let weights = filter.data::<E::Compute>()?;
        let bias = crate::layout::padded_bias(problem, bias, padded);
        Ok(Panels { list, weights, group_weights: padded * shape.weights, bias, padded })
    }

    /// Those that begin within some output channels of a group.
    pub fn within(&self, channels: Range<usize>) -> impl Iterator<Item = PanelPlace> {
        self.list.iter().map(|panel| panel.place).filter(move |place| channels.contains(&place.first_channel))
    }

    /// The weights of a panel of a group, without the `before` first of each output channel.
    pub fn weights(&self, g: usize, panel: PanelPlace, before: usize) -> &[E::Compute] {
        &self.weights[g * self.group_weights + self.list[panel.index].weights + before * panel.width..]
    }

    /// The bias of a panel of a group.
    pub fn bias(&self, g: usize, panel: PanelPlace) -> &[E::Compute] {
        &self.bias[g * self.padded + panel.first_channel..][..panel.width]
    }

    /// The register tiles of a panel: that of most positions, then smaller ones for those that are left, at last of one.
    pub fn tiles(&self, panel: PanelPlace) -> &[&'static ChannelTile<E::Compute>] {
        &self.list[panel.index].tiles
    }
}
