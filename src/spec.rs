//! The one canonical description that every dialect maps to.
//!
//! A [`DeconvSpec`] says what is computed and nothing of how. It is inert: it holds no tensor, knows no
//! dialect, and resolves to a concrete [`Problem`] once the input's shape is known.
//!
//! Per spatial axis, with input size `X`, kernel `K`, stride `s`, dilation `d`, output padding `op`:
//! the kernel's extent is `eff = (K-1)·d + 1` and the uncropped size is `F = s·(X-1) + eff + op`. A transposed
//! convolution is `y[i·s + k·d - pad_begin] += x[i] · w[k]`, positions outside the output dropped.

use crate::dimension::Extent;
use std::fmt;
use tract_core::internal::*;

/// Most elements of a tensor.
const MAX_ELEMENTS: usize = 1 << 40;

/// Largest value accepted for any attribute or size of one axis; keeps index arithmetic inside `i64`.
const MAX_EXTENT: usize = i32::MAX as usize;

/// Which way the convolution runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Every input position is scattered over `stride`-spaced output positions (ConvTranspose, backprop-data).
    Transposed,
    /// Every output position gathers from `stride`-spaced input positions (ordinary convolution).
    Forward,
}

/// Where the channels of an activation tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataFormat {
    /// `[N, C, X..]`, channels before the spatial axes.
    Ncx,
    /// `[N, X.., C]`, channels last.
    Nxc,
}

impl DataFormat {
    /// Index of the channel axis in a tensor of `rank` axes.
    pub fn c_axis(self, rank: usize) -> usize {
        match self {
            DataFormat::Ncx => 1,
            DataFormat::Nxc => rank - 1,
        }
    }

    /// Index of the first spatial axis.
    pub fn x_axis(self) -> usize {
        match self {
            DataFormat::Ncx => 2,
            DataFormat::Nxc => 1,
        }
    }

    /// A full shape from its parts.
    pub fn shape<D: Clone>(self, n: D, c: D, spatial: impl IntoIterator<Item = D>) -> TVec<D> {
        let mut shape = tvec!(n);
        match self {
            DataFormat::Ncx => {
                shape.push(c);
                shape.extend(spatial);
            }
            DataFormat::Nxc => {
                shape.extend(spatial);
                shape.push(c);
            }
        }
        shape
    }
}

/// The order of the filter's axes. `I` and `O` are channels, `X` the kernel's spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterFormat {
    /// `[Cin, Cout/group, K..]`: ONNX ConvTranspose and, once group and input axes are merged, OpenVINO's backprop filters.
    Iox,
    /// `[Cout/group, Cin, K..]`: oneDNN Graph's OIX.
    Oix,
    /// `[K.., Cin, Cout/group]`: oneDNN Graph's XIO.
    Xio,
    /// `[K.., Cout/group, Cin]`: oneDNN Graph's XOI.
    Xoi,
    /// `[Cout, Cin/group, K..]`, groups leading the output channels: ordinary (forward) convolutions.
    GroupedOix,
}

impl FilterFormat {
    /// `(input axis, output axis, first kernel axis)` in a filter with `spatial` kernel axes.
    fn axes(self, spatial: usize) -> (usize, usize, usize) {
        match self {
            FilterFormat::Iox => (0, 1, 2),
            FilterFormat::Oix | FilterFormat::GroupedOix => (1, 0, 2),
            FilterFormat::Xio => (spatial, spatial + 1, 0),
            FilterFormat::Xoi => (spatial + 1, spatial, 0),
        }
    }

    /// `(input axis, output axis, first kernel axis)` of a filter of rank two or more.
    pub(crate) fn axes_of(self, filter_rank: usize) -> (usize, usize, usize) {
        self.axes(filter_rank - 2)
    }

    /// The kernel's spatial shape inside a filter shape of rank two or more.
    pub fn kernel<D: Clone>(self, filter: &[D]) -> TVec<D> {
        let spatial = filter.len() - 2;
        let (_, _, x) = self.axes(spatial);
        filter[x..x + spatial].iter().cloned().collect()
    }

    /// `(in_channels, out_channels)` over all groups, for a filter shape of rank two or more.
    ///
    /// `None` when the product overflows.
    pub fn channels(self, filter: &[usize], group: usize) -> Option<(usize, usize)> {
        let (i, o, _) = self.axes(filter.len() - 2);
        match self {
            FilterFormat::GroupedOix => Some((filter[i].checked_mul(group)?, filter[o])),
            _ => Some((filter[i], filter[o].checked_mul(group)?)),
        }
    }

    /// The filter's shape for the given channels (over all groups) and kernel.
    pub fn shape(self, in_channels: usize, out_channels: usize, group: usize, kernel: &[usize]) -> TVec<usize> {
        let (i, o, x) = self.axes(kernel.len());
        let mut shape = tvec!(0; kernel.len() + 2);
        shape[x..x + kernel.len()].copy_from_slice(kernel);
        (shape[i], shape[o]) = match self {
            FilterFormat::GroupedOix => (in_channels / group, out_channels),
            _ => (in_channels, out_channels / group),
        };
        shape
    }
}

/// Element strides of a filter seen as `[group][in channel][out channel][kernel..]`, channels inside the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterStrides {
    /// Stride between groups.
    pub group: usize,
    /// Stride between input channels of a group.
    pub input: usize,
    /// Stride between output channels of a group.
    pub output: usize,
    /// Strides of the kernel's spatial axes.
    pub kernel: TVec<usize>,
}

/// The side of an axis that takes the odd cell when a total padding is split in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `pad_begin = ceil(total / 2)`.
    Begin,
    /// `pad_end = ceil(total / 2)`.
    End,
}

/// Where a requested output size comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutputShape {
    /// Known when the model is loaded, possibly over symbols: one dimension per spatial axis.
    Dims(TVec<TDim>),
    /// Computed at run time: the op's last input, an integer vector. The dimensions stand for it in facts.
    Input(TVec<TDim>),
}

impl OutputShape {
    /// One dimension per spatial axis.
    pub fn dims(&self) -> &[TDim] {
        match self {
            OutputShape::Dims(dims) | OutputShape::Input(dims) => dims,
        }
    }
}

/// How the padding, and with it the output's size, is decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Given per axis. Negative values add cells that hold the bias only (transposed) or crop the input (forward).
    ///
    /// The transposed SAME rules also end here, see [`Padding::same_transposed`]: their total does not depend on the
    /// input's size.
    Explicit {
        /// Padding before the first cell, one per spatial axis.
        begin: TVec<i64>,
        /// Padding after the last cell, one per spatial axis.
        end: TVec<i64>,
    },
    /// Forward only: `out = ceil(X/s)`, the total it takes split with the odd cell on `extra`.
    SameForward {
        /// The side of the odd cell.
        extra: Side,
    },
    /// Transposed only: the output's size is given; `max(F - out, 0)` is split with the odd cell on `extra`.
    OutputShape {
        /// The requested spatial size.
        shape: OutputShape,
        /// The side of the odd cell.
        extra: Side,
    },
}

impl Padding {
    /// No padding on any of `rank` spatial axes.
    pub fn zero(rank: usize) -> Padding {
        Padding::Explicit { begin: tvec!(0; rank), end: tvec!(0; rank) }
    }

    /// Explicit padding from one total per axis.
    pub fn split(totals: impl IntoIterator<Item = i64>, extra: Side) -> Padding {
        let (begin, end) = totals.into_iter().map(|total| split(total, extra)).unzip();
        Padding::Explicit { begin, end }
    }

    /// ONNX's SAME_UPPER (`extra` at the end) and SAME_LOWER (at the beginning) for a transposed convolution.
    ///
    /// The output is `min(F, X·s)`, as onnxruntime and ONNX's own shape inference have it. `F - X·s = eff + op - s` holds
    /// no `X`, so the total is the constant `max(eff + op - s, 0)`.
    pub fn same_transposed(
        kernel: &[usize],
        strides: &[usize],
        dilations: &[usize],
        output_padding: &[usize],
        extra: Side,
    ) -> Padding {
        Padding::split(
            (0..kernel.len()).map(|ax| {
                let eff = (kernel[ax] as i64 - 1).saturating_mul(dilations[ax] as i64).saturating_add(1);
                eff.saturating_add(output_padding[ax] as i64).saturating_sub(strides[ax] as i64).max(0)
            }),
            extra,
        )
    }
}

fn split(total: i64, extra: Side) -> (i64, i64) {
    let small = total / 2;
    let big = total - small;
    match extra {
        Side::Begin => (big, small),
        Side::End => (small, big),
    }
}

/// The canonical description of one (transposed or forward, grouped) convolution.
///
/// All per-axis lists have one value per spatial axis. Build it, then call [`DeconvSpec::validate`]: the other methods
/// rely on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeconvSpec {
    /// Transposed or forward.
    pub direction: Direction,
    /// Layout of input and output.
    pub data_format: DataFormat,
    /// Layout of the filter.
    pub filter_format: FilterFormat,
    /// Input channels, over all groups.
    pub in_channels: usize,
    /// Output channels, over all groups.
    pub out_channels: usize,
    /// Number of groups.
    pub group: usize,
    /// The kernel's spatial shape.
    pub kernel: TVec<usize>,
    /// Strides.
    pub strides: TVec<usize>,
    /// Dilations.
    pub dilations: TVec<usize>,
    /// Padding rule.
    pub padding: Padding,
    /// Cells added at the end of the uncropped output; zero for forward convolutions.
    pub output_padding: TVec<usize>,
}

impl DeconvSpec {
    /// Number of spatial axes.
    pub fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// Input channels of one group.
    pub fn group_in(&self) -> usize {
        self.in_channels / self.group
    }

    /// Output channels of one group.
    pub fn group_out(&self) -> usize {
        self.out_channels / self.group
    }

    /// The filter's shape.
    pub fn filter_shape(&self) -> TVec<usize> {
        self.filter_format.shape(self.in_channels, self.out_channels, self.group, &self.kernel)
    }

    /// Element strides of a contiguous filter.
    pub fn filter_strides(&self) -> FilterStrides {
        let shape = self.filter_shape();
        let mut strides = tvec!(1; shape.len());
        for axis in (0..shape.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        let (i, o, x) = self.filter_format.axes(self.rank());
        let (input, output) = (strides[i], strides[o]);
        let group = match self.filter_format {
            FilterFormat::GroupedOix => output * self.group_out(),
            _ => input * self.group_in(),
        };
        FilterStrides { group, input, output, kernel: strides[x..x + self.rank()].into() }
    }

    /// Whether a filter packed for this spec is packed for the other one, too.
    pub(crate) fn packs_like(&self, other: &DeconvSpec) -> bool {
        let of =
            |spec: &DeconvSpec| (spec.direction, spec.filter_format, spec.in_channels, spec.out_channels, spec.group);
        of(self) == of(other)
            && self.kernel == other.kernel
            && self.strides == other.strides
            && self.dilations == other.dilations
    }

    /// Refuses a bias that does not have one value per output channel.
    pub(crate) fn check_bias(&self, bias: &Tensor) -> TractResult<()> {
        ensure!(
            bias.shape() == [self.out_channels],
            "bias: shape={:?}, one value per output channel, {} of them, is needed",
            bias.shape(),
            self.out_channels
        );
        Ok(())
    }

    /// Whether the output's size is read from the op's last input.
    pub fn has_output_shape_input(&self) -> bool {
        matches!(&self.padding, Padding::OutputShape { shape: OutputShape::Input(_), .. })
    }

    /// Checks every rule that does not depend on the input's shape.
    ///
    /// # Errors
    /// Names the attribute, its value and the rule broken, for each rule of the list "must be rejected" of the
    /// semantics this crate follows (see the crate's README).
    pub fn validate(&self) -> TractResult<()> {
        let rank = self.rank();
        ensure!((1..=4).contains(&rank), "rank: spatial_axes={rank}, one to four are supported");
        check_list("kernel_shape", &self.kernel, rank, 1)?;
        check_list("strides", &self.strides, rank, 1)?;
        check_list("dilations", &self.dilations, rank, 1)?;
        check_list("output_padding", &self.output_padding, rank, 0)?;
        ensure!(self.group >= 1, "group: group={}, must be at least 1", self.group);
        for (name, channels, least, rule) in [
            ("input channels", self.in_channels, 1, "a positive multiple"),
            ("output channels", self.out_channels, 0, "a multiple"),
        ] {
            ensure!(
                channels >= least && channels.is_multiple_of(self.group),
                "{name}: channels={channels}, must be {rule} of group={}",
                self.group
            );
            ensure!(channels <= MAX_EXTENT, "{name}: channels={channels}, must be at most {MAX_EXTENT}");
        }
        check_volume("filter", &self.filter_shape())?;
        for ax in 0..rank {
            extent(self.kernel[ax], self.dilations[ax])?;
        }
        match &self.padding {
            Padding::Explicit { begin, end } => {
                for (name, pads) in [("pads begin", begin), ("pads end", end)] {
                    ensure!(pads.len() == rank, "{name}: pads={pads:?}, {rank} values are needed");
                    ensure!(
                        pads.iter().all(|p| p.unsigned_abs() <= MAX_EXTENT as u64),
                        "{name}: pads={pads:?}, every value must be within -{MAX_EXTENT}..={MAX_EXTENT}"
                    );
                }
            }
            Padding::SameForward { .. } => {
                ensure!(self.direction == Direction::Forward, "padding: rule=same, only a forward convolution has it")
            }
            Padding::OutputShape { shape, .. } => {
                ensure!(self.direction == Direction::Transposed, "output_shape: only a transposed convolution has it");
                let dims = shape.dims();
                let shown = list(dims, ", ");
                ensure!(dims.len() == rank, "output_shape: output_shape=[{shown}], {rank} values are needed");
                for dim in dims {
                    Extent::of(dim).check().context("output_shape: the expression is too large")?;
                    if let Some(dim) = dim.as_i64() {
                        ensure!(
                            (1..=MAX_EXTENT as i64).contains(&dim),
                            "output_shape: output_shape=[{shown}], every value must be within 1..={MAX_EXTENT}"
                        );
                    }
                }
            }
        }
        ensure!(
            self.direction == Direction::Transposed || self.output_padding.iter().all(|op| *op == 0),
            "output_padding: output_padding={:?}, a forward convolution has none",
            self.output_padding
        );
        Ok(())
    }

    /// Output shape for an input shape, over concrete or symbolic dimensions, in this spec's data format.
    ///
    /// A requested output size wins over what the formula gives; where it is only known at run time, its stand-in
    /// dimensions are returned, so `D = usize` fails there: use [`DeconvSpec::problem`].
    ///
    /// # Errors
    /// Wrong rank, wrong number of channels, or a size below one (where that can be decided). An empty axis of the input may
    /// give an empty one.
    pub fn output_shape<D: DimLike>(&self, input: &[D]) -> TractResult<TVec<D>> {
        self.check_input(input)?;
        let x0 = self.data_format.x_axis();
        let spatial =
            (0..self.rank()).map(|ax| self.output_dim(ax, &input[x0 + ax])).collect::<TractResult<TVec<D>>>()?;
        let output = self.data_format.shape(input[0].clone(), D::from(self.out_channels), spatial);
        check_volume("output size", &output)?;
        Ok(output)
    }

    fn check_input<D: DimLike>(&self, input: &[D]) -> TractResult<()> {
        ensure!(
            input.len() == self.rank() + 2,
            "input: shape=[{}], {} axes are needed for {} spatial ones",
            list(input, ", "),
            self.rank() + 2,
            self.rank()
        );
        let channels = &input[self.data_format.c_axis(input.len())];
        if let Ok(channels) = channels.to_usize() {
            ensure!(channels == self.in_channels, "input: channels={channels}, the filter needs {}", self.in_channels);
        }
        check_volume("input size", input)
    }

    fn output_dim<D: DimLike>(&self, ax: usize, input: &D) -> TractResult<D> {
        if let Ok(input) = input.to_usize() {
            if let Padding::OutputShape { shape, .. } = &self.padding
                && shape.dims()[ax].as_i64().is_none()
            {
                return from_tdim(&shape.dims()[ax]);
            }
            return Ok(D::from(self.axis(ax, input, None)?.output));
        }
        let eff = extent(self.kernel[ax], self.dilations[ax])? as i64;
        let stride = self.strides[ax] as i64;
        match (&self.padding, self.direction) {
            (Padding::OutputShape { shape, .. }, _) => from_tdim(&shape.dims()[ax]),
            (Padding::Explicit { begin, end }, Direction::Transposed) => {
                // s·(X-1) + eff + op - pads, constants gathered so that they cancel where they can
                let constant = eff + self.output_padding[ax] as i64 - stride - begin[ax] - end[ax];
                Ok(offset(input.clone() * self.strides[ax], constant))
            }
            (Padding::Explicit { begin, end }, Direction::Forward) => {
                Ok(offset(input.clone(), begin[ax] + end[ax] - eff) / self.strides[ax] + 1)
            }
            (Padding::SameForward { .. }, _) => Ok(input.clone().divceil(self.strides[ax])),
        }
    }

    /// Resolves one axis for a concrete input size.
    fn axis(&self, ax: usize, input: usize, requested: Option<usize>) -> TractResult<Axis> {
        let (kernel, stride, dilation) = (self.kernel[ax], self.strides[ax], self.dilations[ax]);
        ensure!(input <= MAX_EXTENT, "input: spatial size={input}, must be at most {MAX_EXTENT}");
        let eff = extent(kernel, dilation)? as i64;
        let (x, s) = (input as i64, stride as i64);
        let (output, pad_begin) = match (&self.padding, self.direction) {
            (Padding::OutputShape { shape, extra }, _) => {
                let output = match (requested, shape.dims()[ax].as_i64()) {
                    (Some(requested), _) => requested as i64,
                    (None, Some(dim)) => dim,
                    (None, None) => {
                        bail!("output_shape: output_shape=[{}], the value is not known yet", list(shape.dims(), ", "))
                    }
                };
                let total = (self.full(ax, x, s, eff)? - output).max(0);
                (output, split(total, *extra).0)
            }
            (Padding::Explicit { begin, end }, Direction::Transposed) => {
                (self.full(ax, x, s, eff)? - begin[ax] - end[ax], begin[ax])
            }
            (Padding::Explicit { begin, end }, Direction::Forward) => {
                let room = x + begin[ax] + end[ax] - eff;
                // no cell of an empty axis is there for a first position, and the stride before it
                let least = if input == 0 { -s } else { 0 };
                ensure!(
                    room >= least,
                    "output size: axis={ax}, the kernel's extent {eff} exceeds the padded input {}",
                    x + begin[ax] + end[ax]
                );
                (room.div_euclid(s) + 1, begin[ax])
            }
            (Padding::SameForward { extra }, _) => {
                let output = (x + s - 1) / s;
                let total = ((output - 1) * s + eff - x).max(0);
                (output, split(total, *extra).0)
            }
        };
        let least = if input == 0 { 0 } else { 1 };
        ensure!(
            (least..=MAX_EXTENT as i64).contains(&output),
            "output size: size={output} on spatial axis {ax} for input size {input}{}, must be within \
             {least}..={MAX_EXTENT}",
            match &self.padding {
                Padding::Explicit { begin, end } => format!(" and pads {} and {}", begin[ax], end[ax]),
                _ => String::new(),
            }
        );
        Ok(Axis { input, output: output as usize, kernel, stride, dilation, pad_begin })
    }

    /// The uncropped size `F`.
    fn full(&self, ax: usize, x: i64, s: i64, eff: i64) -> TractResult<i64> {
        s.checked_mul(x - 1)
            .and_then(|f| f.checked_add(eff))
            .and_then(|f| f.checked_add(self.output_padding[ax] as i64))
            .with_context(|| format!("output size: axis={ax}, stride·(input-1) + extent overflows"))
    }

    /// Resolves the spec for a concrete input shape. `requested` is the run-time output shape, where the op has that input.
    ///
    /// # Errors
    /// As [`DeconvSpec::output_shape`]; also when the number of output elements overflows.
    pub fn problem(&self, input: &[usize], requested: Option<&[i64]>) -> TractResult<Problem> {
        self.check_input(input)?;
        if let Some(requested) = requested {
            ensure!(
                requested.len() == self.rank() && requested.iter().all(|d| (1..=MAX_EXTENT as i64).contains(d)),
                "output_shape: output_shape={requested:?}, {} values within 1..={MAX_EXTENT} are needed",
                self.rank()
            );
        }
        let x0 = self.data_format.x_axis();
        let axes = (0..self.rank())
            .map(|ax| self.axis(ax, input[x0 + ax], requested.map(|r| r[ax] as usize)))
            .collect::<TractResult<TVec<Axis>>>()?;
        let problem = Problem {
            direction: self.direction,
            data_format: self.data_format,
            batch: input[0],
            group: self.group,
            group_in: self.group_in(),
            group_out: self.group_out(),
            axes,
        };
        check_volume("output size", &problem.output_shape())?;
        Ok(problem)
    }
}

/// One spatial axis with concrete sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Input size.
    pub input: usize,
    /// Output size.
    pub output: usize,
    /// Kernel size.
    pub kernel: usize,
    /// Stride.
    pub stride: usize,
    /// Dilation.
    pub dilation: usize,
    /// Cells cropped (transposed) or added (forward) before the first; may be negative.
    pub pad_begin: i64,
}

/// A spec resolved for one input shape: everything the planner and the strategies need to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Transposed or forward.
    pub direction: Direction,
    /// Layout of input and output.
    pub data_format: DataFormat,
    /// Batch size, may be zero.
    pub batch: usize,
    /// Number of groups.
    pub group: usize,
    /// Input channels of one group.
    pub group_in: usize,
    /// Output channels of one group.
    pub group_out: usize,
    /// The spatial axes, outermost first.
    pub axes: TVec<Axis>,
}

impl Problem {
    /// Input shape in the problem's data format.
    pub fn input_shape(&self) -> TVec<usize> {
        let spatial = self.axes.iter().map(|a| a.input);
        self.data_format.shape(self.batch, self.group * self.group_in, spatial)
    }

    /// Output shape in the problem's data format.
    pub fn output_shape(&self) -> TVec<usize> {
        let spatial = self.axes.iter().map(|a| a.output);
        self.data_format.shape(self.batch, self.group * self.group_out, spatial)
    }

    /// The same arithmetic on fewer axes: neighbouring ones along which nothing moves are walked as one. Both tensors hold the same elements in
    /// the same order.
    pub fn folded(&self) -> Problem {
        let mut axes: TVec<Axis> = tvec!();
        for axis in &self.axes {
            match axes.last_mut() {
                Some(last) if last.is_pointwise() && axis.is_pointwise() => {
                    last.input *= axis.input;
                    last.output *= axis.output;
                }
                _ => axes.push(axis.clone()),
            }
        }
        Problem { axes, ..self.clone() }
    }

    /// Bytes of the output in some element type.
    pub fn output_bytes(&self, datum_type: DatumType) -> usize {
        // no overflow: a problem's tensors hold at most `MAX_ELEMENTS`
        self.output_shape().iter().product::<usize>() * datum_type.size_of()
    }

    /// Multiply-adds whose result lands inside the output (transposed) or whose operand lies inside the input (forward).
    pub fn multiply_adds(&self) -> u64 {
        let per_axis = self.axes.iter().map(|a| a.useful_pairs(self.direction));
        let channels = [self.batch, self.group, self.group_in, self.group_out].map(|n| n as u64);
        channels.into_iter().chain(per_axis).fold(1u64, u64::saturating_mul)
    }
}

impl Axis {
    /// Whether each output cell reads the input cell of the same index, and no other.
    fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.pad_begin) == (1, 1, 0) && self.input == self.output
    }

    /// Number of (input position, tap) pairs that meet.
    fn useful_pairs(&self, direction: Direction) -> u64 {
        // scattered positions lie in from·s + k·d - p, within the other side's size
        let (from, to) = match direction {
            Direction::Transposed => (self.input as i64, self.output as i64),
            Direction::Forward => (self.output as i64, self.input as i64),
        };
        let s = self.stride as i64;
        (0..self.kernel as i64)
            .map(|k| {
                let base = k * self.dilation as i64 - self.pad_begin;
                let first = ceil_div(-base, s).max(0);
                let last = ceil_div(to - base, s).min(from);
                (last - first).max(0) as u64
            })
            .fold(0, u64::saturating_add)
    }
}

/// `ceil(a / b)` for any sign of `a` and positive `b`.
pub(crate) fn ceil_div(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + (a.rem_euclid(b) != 0) as i64
}

fn check_list(name: &str, values: &[usize], rank: usize, least: usize) -> TractResult<()> {
    ensure!(values.len() == rank, "{name}: {name}={values:?}, {rank} values are needed, one per spatial axis");
    ensure!(values.iter().all(|v| *v >= least), "{name}: {name}={values:?}, every value must be at least {least}");
    ensure!(
        values.iter().all(|v| *v <= MAX_EXTENT),
        "{name}: {name}={values:?}, every value must be at most {MAX_EXTENT}"
    );
    Ok(())
}

/// Refuses shapes that no memory holds, be it for an empty batch: below the bound, no arithmetic on sizes overflows. Sizes
/// that are not known yet count as one.
fn check_volume<D: DimLike>(name: &str, shape: &[D]) -> TractResult<()> {
    let mut sizes = shape.iter().filter_map(|dim| dim.to_usize().ok()).filter(|size| *size > 0);
    let elements = sizes.try_fold(1usize, |elements, size| elements.checked_mul(size));
    ensure!(
        elements.is_some_and(|elements| elements <= MAX_ELEMENTS),
        "{name}: shape=[{}], it must hold at most {MAX_ELEMENTS} elements",
        list(shape, ", ")
    );
    Ok(())
}

/// The kernel's extent `(K-1)·d + 1`.
fn extent(kernel: usize, dilation: usize) -> TractResult<usize> {
    (kernel - 1).checked_mul(dilation).and_then(|e| e.checked_add(1)).filter(|e| *e <= MAX_EXTENT).with_context(|| {
        format!("dilations: dilation={dilation}, a kernel of {kernel} must extend over at most {MAX_EXTENT} cells")
    })
}

fn from_tdim<D: DimLike>(dim: &TDim) -> TractResult<D> {
    D::try_from(dim).ok().with_context(|| format!("output_shape: dim={dim}, the value is not known yet"))
}

fn offset<D: DimLike>(dim: D, by: i64) -> D {
    if by >= 0 { dim + by as usize } else { dim - by.unsigned_abs() as usize }
}

/// Values as text, without brackets.
pub(crate) fn list<T: fmt::Display>(values: &[T], separator: &str) -> String {
    values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(separator)
}
