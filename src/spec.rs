//! The canonical description of a convolution, to which every dialect maps.
//!
//! A [`DeconvSpec`] says what is computed, not how. It holds no tensor and depends on no dialect.
//! It resolves to a concrete [`Problem`] once the input's shape is known.
//!
//! For each spatial axis, let `X` be the input size, `K` the kernel size, `s` the stride, `d` the
//! dilation and `op` the output padding. The kernel's extent is `eff = (K-1)·d + 1`. The uncropped
//! size is `F = s·(X-1) + eff + op`. A transposed convolution is
//! `y[i·s + k·d - pad_begin] += x[i] · w[k]`, where positions outside the output are dropped.

use crate::dimension::Extent;
pub use crate::formats::{DataFormat, FilterFormat, FilterStrides};
pub use crate::problem::{Axis, Direction, Problem};
use std::fmt;
use tract_core::internal::*;

/// Whether addresses have 32 bits.
const SMALL_ADDRESSES: bool = usize::BITS <= 32;

/// The maximum number of elements of a tensor.
///
/// It leaves room in `usize` for sums of sizes and for bytes. Where addresses have 32 bits, a tensor
/// of that many `f32` is half of what one allocation can have.
const MAX_ELEMENTS: u64 = 1 << if SMALL_ADDRESSES { 28 } else { 40 };

/// The largest value of any attribute or of the size of one axis.
///
/// It keeps index arithmetic inside `i64`, and sums of some sizes inside `usize`.
pub(crate) const MAX_EXTENT: usize = if SMALL_ADDRESSES { 1 << 28 } else { i32::MAX as usize };

/// The side of an axis that gets the extra position when an odd total padding is split in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `pad_begin = ceil(total / 2)`.
    Begin,
    /// `pad_end = ceil(total / 2)`.
    End,
}

/// The source of a requested output size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutputShape {
    /// Known when the model is loaded, possibly over symbols. One dimension per spatial axis.
    Dims(TVec<TDim>),
    /// Computed at run time: the op's last input, an integer vector. The dimensions represent it in
    /// facts.
    Input(TVec<TDim>),
}

impl OutputShape {
    /// Returns the dimensions, one per spatial axis.
    pub fn dims(&self) -> &[TDim] {
        match self {
            OutputShape::Dims(dims) | OutputShape::Input(dims) => dims,
        }
    }
}

/// The rule that determines the padding, and with it the output's size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Given per axis. A negative value adds positions that hold the bias only (transposed), or
    /// crops the input (forward).
    ///
    /// The transposed SAME rules map to this variant, too, as their total does not depend on the
    /// input's size. See [`Padding::same_transposed`].
    Explicit {
        /// The padding before the first position, one value per spatial axis.
        begin: TVec<i64>,
        /// The padding after the last position, one value per spatial axis.
        end: TVec<i64>,
    },
    /// Forward only: `out = ceil(X/s)`. The total that this size needs is split, with an odd
    /// position on `extra`.
    SameForward {
        /// The side of the odd position.
        extra: Side,
    },
    /// Transposed only: the output's size is given. `max(F - out, 0)` is split, with an odd
    /// position on `extra`.
    OutputShape {
        /// The requested spatial size.
        shape: OutputShape,
        /// The side of the odd position.
        extra: Side,
    },
}

impl Padding {
    /// Returns no padding, on `rank` spatial axes.
    pub fn zero(rank: usize) -> Padding {
        Padding::Explicit { begin: tvec!(0; rank), end: tvec!(0; rank) }
    }

    /// Returns explicit padding from one total per axis.
    pub fn split(totals: impl IntoIterator<Item = i64>, extra: Side) -> Padding {
        let (begin, end) = totals.into_iter().map(|total| split(total, extra)).unzip();
        Padding::Explicit { begin, end }
    }

    /// Returns the padding of ONNX's SAME_UPPER or SAME_LOWER for a transposed convolution.
    ///
    /// `extra` is [`Side::End`] for SAME_UPPER and [`Side::Begin`] for SAME_LOWER. The output's
    /// size is `min(F, X·s)`, as in onnxruntime and in ONNX's own shape inference.
    /// `F - X·s = eff + op - s` does not contain `X`, so the total is the constant
    /// `max(eff + op - s, 0)`.
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

/// The canonical description of one grouped convolution, transposed or forward.
///
/// All per-axis lists have one value per spatial axis. Call [`DeconvSpec::validate`] after building
/// one, as the other methods rely on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeconvSpec {
    /// Transposed or forward.
    pub direction: Direction,
    /// The layout of input and output.
    pub data_format: DataFormat,
    /// The layout of the filter.
    pub filter_format: FilterFormat,
    /// The input channels, over all groups.
    pub in_channels: usize,
    /// The output channels, over all groups.
    pub out_channels: usize,
    /// The number of groups.
    pub group: usize,
    /// The kernel's spatial shape.
    pub kernel: TVec<usize>,
    /// The stride of each axis.
    pub strides: TVec<usize>,
    /// The dilation of each axis.
    pub dilations: TVec<usize>,
    /// The padding rule.
    pub padding: Padding,
    /// The positions added at the end of the uncropped output. Zero for forward convolutions.
    pub output_padding: TVec<usize>,
}

impl DeconvSpec {
    /// Returns the number of spatial axes.
    pub fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// Returns the input channels per group.
    pub fn group_in(&self) -> usize {
        self.in_channels / self.group
    }

    /// Returns the output channels per group.
    pub fn group_out(&self) -> usize {
        self.out_channels / self.group
    }

    /// Returns the filter's shape.
    pub fn filter_shape(&self) -> TVec<usize> {
        self.filter_format.shape(self.in_channels, self.out_channels, self.group, &self.kernel)
    }

    /// Returns the element strides of a contiguous filter.
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

    /// Returns whether a filter packed for this spec is right for `other`, too.
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

    /// Returns whether the op reads the output's size from its last input.
    pub fn has_output_shape_input(&self) -> bool {
        matches!(&self.padding, Padding::OutputShape { shape: OutputShape::Input(_), .. })
    }

    /// Checks every rule that does not depend on the input's shape.
    ///
    /// # Errors
    /// Fails with a message that names the attribute, its value and the broken rule. The rules are
    /// those of the list "must be rejected" of the semantics that this crate follows (see the
    /// crate's README).
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

    /// Returns the output shape for an input shape, in this spec's data format.
    ///
    /// Dimensions may be concrete or symbolic. A requested output size takes precedence over the
    /// formula. If it is known at run time only, the result has the dimensions that represent it.
    /// `D = usize` then fails; use [`DeconvSpec::problem`] instead.
    ///
    /// # Errors
    /// Fails for a wrong rank, a wrong number of channels, or an output size below one where that
    /// can be decided. An empty axis of the input may give an empty axis of the output.
    pub fn output_shape<D: DimLike>(&self, input: &[D]) -> TractResult<TVec<D>> {
        self.check_input(input)?;
        let x0 = self.data_format.x_axis();
        let spatial =
            (0..self.rank()).map(|ax| self.output_dim(ax, &input[x0 + ax])).collect::<TractResult<TVec<D>>>()?;
        let output = self.data_format.shape(input[0].clone(), D::from(self.out_channels), spatial);
        check_volume("output size", &output)?;
        Ok(output)
    }

    /// Returns the padding before and after each spatial axis, for the spatial size of an input.
    ///
    /// # Errors
    /// The padding depends on a size that is not known, or on an output shape.
    pub(crate) fn explicit_pads(&self, input: &[TDim]) -> TractResult<(TVec<i64>, TVec<i64>)> {
        let extra = match &self.padding {
            Padding::Explicit { begin, end } => return Ok((begin.clone(), end.clone())),
            Padding::SameForward { extra } => *extra,
            Padding::OutputShape { .. } => bail!("output_shape: it stands in the place of padding"),
        };
        let pads = (0..self.rank()).map(|ax| {
            let (stride, extent) = (self.strides[ax], extent(self.kernel[ax], self.dilations[ax])?);
            let size = match (&input[ax], stride) {
                // With stride 1 the total is the kernel's extent minus one, whatever the size.
                (_, 1) => 1,
                (size, _) => size.to_usize().ok().with_context(|| {
                    format!(
                        "auto_pad: auto_pad=SAME, what it adds depends on the size {size} with a stride of {stride}"
                    )
                })?,
            };
            let total = (size.div_ceil(stride).saturating_sub(1) * stride + extent).saturating_sub(size);
            Ok(split(total as i64, extra))
        });
        Ok(pads.collect::<TractResult<Vec<_>>>()?.into_iter().unzip())
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
                // s·(X-1) + eff + op - pads. The constants are summed first, so that they cancel if
                // they can.
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
                // An empty axis has no position for the first window, nor for the stride before it.
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

    /// Returns the uncropped size `F`.
    fn full(&self, ax: usize, x: i64, s: i64, eff: i64) -> TractResult<i64> {
        s.checked_mul(x - 1)
            .and_then(|f| f.checked_add(eff))
            .and_then(|f| f.checked_add(self.output_padding[ax] as i64))
            .with_context(|| format!("output size: axis={ax}, stride·(input-1) + extent overflows"))
    }

    /// Resolves the spec for a concrete input shape.
    ///
    /// `requested` is the run-time output shape, if the op has that input.
    ///
    /// # Errors
    /// Fails if [`DeconvSpec::output_shape`] does, or if the number of output elements overflows.
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

/// Converts a size that a model file gives, of an axis or an attribute.
///
/// # Errors
/// It is negative, or larger than [`MAX_EXTENT`] where addresses can't count it.
pub(crate) fn as_size(name: &str, value: i64) -> TractResult<usize> {
    ensure!(value >= 0, "{name}: {name}={value}, must not be negative");
    usize::try_from(value).ok().with_context(|| format!("{name}: {name}={value}, must be at most {MAX_EXTENT}"))
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

/// Refuses shapes that no memory can hold, even if the batch is empty.
///
/// Below the bound, no arithmetic on sizes overflows. Unknown sizes and zeros count as one.
pub(crate) fn check_volume<D: DimLike>(name: &str, shape: &[D]) -> TractResult<()> {
    // In 64 bits: `to_usize` of a dimension drops what an address can't count.
    let mut sizes = shape.iter().filter_map(|dim| dim.to_i64().ok()).filter(|size| *size != 0);
    let elements = sizes.try_fold(1u64, |elements, size| elements.checked_mul(u64::try_from(size).ok()?));
    ensure!(
        elements.is_some_and(|elements| elements <= MAX_ELEMENTS),
        "{name}: shape=[{}], it must hold at most {MAX_ELEMENTS} elements",
        list(shape, ", ")
    );
    Ok(())
}

/// Returns the kernel's extent `(K-1)·d + 1`.
fn extent(kernel: usize, dilation: usize) -> TractResult<usize> {
    (kernel - 1).checked_mul(dilation).and_then(|e| e.checked_add(1)).filter(|e| *e <= MAX_EXTENT).with_context(|| {
        format!("dilations: dilation={dilation}, a kernel of {kernel} must extend over at most {MAX_EXTENT} positions")
    })
}

fn from_tdim<D: DimLike>(dim: &TDim) -> TractResult<D> {
    D::try_from(dim).ok().with_context(|| format!("output_shape: dim={dim}, the value is not known yet"))
}

fn offset<D: DimLike>(dim: D, by: i64) -> D {
    if by >= 0 { dim + by as usize } else { dim - by.unsigned_abs() as usize }
}

/// Returns the values as text, without brackets.
pub(crate) fn list<T: fmt::Display>(values: &[T], separator: &str) -> String {
    values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(separator)
}
