//! The import-time op that all dialects share. It becomes a [`DeconvSpec`] once the filter's shape
//! is known.

use crate::element;
use crate::op::{Dialect, DynamicFilterDeconv, GroupedDeconv, SpecOfFilter, integers};
use crate::options::Settings;
use crate::settings;
use crate::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side, check_volume};
use tract_hir::infer::*;
use tract_hir::internal::*;

/// The order of a filter's axes in a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FilterAxes {
    /// One of the canonical formats. The number of groups is an attribute.
    Plain(FilterFormat),
    /// The first axis is an axis of groups. Merging it with the next axis gives a canonical format.
    GroupLed(FilterFormat),
}

/// The rule that determines the padding of a dialect's node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PaddingRule {
    /// The declared pads, or zeros if there are none.
    Explicit,
    /// No padding.
    Zero,
    /// Transposed SAME. oneDNN's formula ignores the output padding.
    Same { extra: Side, counts_output_padding: bool },
    /// Forward SAME.
    SameForward { extra: Side },
    /// From the output's size, which is an attribute or else an input.
    OutputShape { sizes: Option<TVec<usize>>, extra: Side },
}

/// The indices of the optional inputs among the inputs that are present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OptionalInputs {
    pub bias: Option<usize>,
    pub output_shape: Option<usize>,
}

/// The pads of one side, with the name of their attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeclaredPads {
    pub name: &'static str,
    pub values: Option<TVec<i64>>,
}

impl DeclaredPads {
    /// Returns the values of each attribute that is present. ONNX's single attribute has those of
    /// both sides.
    pub fn by_attribute(pads: &[DeclaredPads; 2]) -> TVec<(&'static str, TVec<i64>)> {
        let mut attributes: TVec<(&'static str, TVec<i64>)> = tvec!();
        for DeclaredPads { name, values } in pads {
            let Some(values) = values else { continue };
            match attributes.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => known.extend(values.iter().copied()),
                None => attributes.push((name, values.clone())),
            }
        }
        attributes
    }
}

/// A node as its attributes describe it. Each attribute is already checked on its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub operator: &'static str,
    pub dialect: Dialect,
    pub datum_types: &'static [DatumType],
    pub max_spatial_axes: usize,
    pub direction: Direction,
    pub data_format: DataFormat,
    pub filter_axes: FilterAxes,
    pub group: usize,
    pub kernel_shape: Option<TVec<usize>>,
    pub strides: Option<TVec<usize>>,
    pub dilations: Option<TVec<usize>>,
    pub output_padding: Option<TVec<usize>>,
    /// ONNX requires each output padding to be less than the stride or the dilation.
    pub limits_output_padding: bool,
    /// The pads before and after each axis, whether the rule uses them or not.
    pub declared_pads: [DeclaredPads; 2],
    pub padding: PaddingRule,
    pub inputs: OptionalInputs,
    /// The settings of the framework, which are the same for all dialects.
    pub settings: Settings,
}

impl Node {
    fn input_count(&self) -> usize {
        2 + self.inputs.bias.is_some() as usize + self.inputs.output_shape.is_some() as usize
    }

    /// Returns how many more axes the filter has than the data.
    fn extra_filter_axes(&self) -> i64 {
        matches!(self.filter_axes, FilterAxes::GroupLed(_)) as i64
    }

    fn check_datum_types(&self, input: DatumType, filter: DatumType) -> TractResult<()> {
        ensure!(
            self.datum_types.contains(&input),
            "input: datum_type={input:?}, {} takes {:?}",
            self.operator,
            self.datum_types
        );
        element::check_built("input", input)?;
        ensure!(filter == input, "filter: datum_type={filter:?}, the input's is {input:?}");
        Ok(())
    }

    fn check_ranks(&self, input: i64, filter: i64) -> TractResult<()> {
        ensure!(
            (3..=2 + self.max_spatial_axes as i64).contains(&input),
            "input: rank={input}, {} takes 1 to {} spatial axes",
            self.operator,
            self.max_spatial_axes
        );
        let needed = input + self.extra_filter_axes();
        ensure!(filter == needed, "filter: rank={filter}, {needed} is needed for an input of rank {input}");
        Ok(())
    }

    /// Returns the canonical spec for a filter shape. `output_shape` is the value of the input, if
    /// there is one.
    pub fn spec(&self, filter: &[usize], output_shape: Option<OutputShape>) -> TractResult<DeconvSpec> {
        let (format, group, filter) = match self.filter_axes {
            FilterAxes::Plain(format) => (format, self.group, TVec::from(filter)),
            FilterAxes::GroupLed(format) => {
                ensure!(filter.len() >= 2, "filter: shape={filter:?}, more axes are needed");
                let merged = filter[0]
                    .checked_mul(filter[1])
                    .with_context(|| format!("filter: shape={filter:?}, the number of channels overflows"))?;
                (format, filter[0], std::iter::once(merged).chain(filter[2..].iter().copied()).collect())
            }
        };
        ensure!(filter.len() >= 3, "filter: shape={filter:?}, at least one spatial axis is needed");
        let kernel = format.kernel(&filter);
        let (in_channels, out_channels) = format.channels(&filter, group).with_context(|| {
            format!("group: group={group}, the number of channels of a filter {filter:?} overflows")
        })?;
        let rank = kernel.len();
        if let Some(declared) = &self.kernel_shape {
            ensure!(*declared == kernel, "kernel_shape: kernel_shape={declared:?}, the filter's is {kernel:?}");
        }
        let strides = self.strides.clone().unwrap_or_else(|| tvec!(1; rank));
        let dilations = self.dilations.clone().unwrap_or_else(|| tvec!(1; rank));
        let output_padding = self.output_padding.clone().unwrap_or_else(|| tvec!(0; rank));
        let mut spec = DeconvSpec {
            direction: self.direction,
            data_format: self.data_format,
            filter_format: format,
            in_channels,
            out_channels,
            group,
            kernel,
            strides,
            dilations,
            padding: Padding::zero(rank),
            output_padding,
        };
        // The rules below rely on lists of the right length.
        spec.validate()?;
        if self.limits_output_padding {
            let within = |ax: usize| spec.output_padding[ax] < spec.strides[ax].max(spec.dilations[ax]);
            ensure!(
                (0..rank).all(within),
                "output_padding: output_padding={:?}, every value must be less than the stride or the dilation",
                spec.output_padding
            );
        }
        for (name, pads) in DeclaredPads::by_attribute(&self.declared_pads) {
            let sides = self.declared_pads.iter().filter(|side| side.name == name).count();
            ensure!(
                pads.len() == sides * rank,
                "{name}: {name}={pads:?}, {rank} values are needed on each side, one per spatial axis"
            );
        }
        spec.padding = match &self.padding {
            PaddingRule::Zero => Padding::zero(rank),
            PaddingRule::Explicit => {
                let [begin, end] = &self.declared_pads;
                let side = |pads: &DeclaredPads| pads.values.clone().unwrap_or_else(|| tvec!(0; rank));
                Padding::Explicit { begin: side(begin), end: side(end) }
            }
            PaddingRule::Same { extra, counts_output_padding } => {
                let zeros = tvec!(0; rank);
                let counted = if *counts_output_padding { &spec.output_padding } else { &zeros };
                Padding::same_transposed(&spec.kernel, &spec.strides, &spec.dilations, counted, *extra)
            }
            PaddingRule::SameForward { extra } => Padding::SameForward { extra: *extra },
            PaddingRule::OutputShape { sizes: Some(sizes), extra } => {
                ensure!(
                    sizes.len() == rank,
                    "output_shape: output_shape={sizes:?}, {rank} values are needed, one per spatial axis"
                );
                Padding::OutputShape {
                    shape: OutputShape::Dims(sizes.iter().map(|s| s.to_dim()).collect()),
                    extra: *extra,
                }
            }
            PaddingRule::OutputShape { sizes: None, extra } => Padding::OutputShape {
                shape: output_shape.context("output_shape: the input that holds it is missing")?,
                extra: *extra,
            },
        };
        spec.validate()?;
        Ok(spec)
    }

    fn wire_node(
        &self,
        prefix: &str,
        target: &mut TypedModel,
        inputs: &[OutletId],
        declared: Option<&ShapeFactoid>,
    ) -> TractResult<TVec<OutletId>> {
        ensure!(
            inputs.len() == self.input_count(),
            "inputs: count={}, {} are needed",
            inputs.len(),
            self.input_count()
        );
        let data = target.outlet_fact(inputs[0])?.clone();
        let filter = target.outlet_fact(inputs[1])?.clone();
        self.check_datum_types(data.datum_type, filter.datum_type)?;
        self.check_ranks(data.rank() as i64, filter.rank() as i64)?;
        let rank = data.rank() - 2;
        let filter_shape = filter.shape.as_concrete();
        let mut wires = tvec!(inputs[0], inputs[1]);
        if let (FilterAxes::GroupLed(_), Some(_)) = (self.filter_axes, filter_shape) {
            let name = format!("{prefix}.filter");
            wires[1] = match &filter.konst {
                // Equal constants become one node, so nodes that share a filter still do.
                Some(konst) => target.add_const(name, konst.as_ref().clone().collapse_axis_with_next(0))?,
                None => {
                    let from: TVec<TDim> = filter.shape[..2].iter().cloned().collect();
                    let to = from.iter().product();
                    target.wire_node(name, AxisOp::Reshape(0, from, tvec!(to)), &[inputs[1]])?[0]
                }
            };
        }
        wires.extend(self.inputs.bias.map(|slot| inputs[slot]));
        let mut output_shape = None;
        if let Some(slot) = self.inputs.output_shape {
            let konst = target.outlet_fact(inputs[slot])?.konst.clone();
            output_shape = Some(match konst {
                Some(konst) => OutputShape::Dims(integers(&konst)?),
                None => {
                    wires.push(inputs[slot]);
                    OutputShape::Input(self.stand_ins(rank, target, declared))
                }
            });
        }
        let options = settings::complete_for(&self.settings.planning, &self.settings.exact_nodes, prefix)?;
        let (dialect, has_bias) = (self.dialect, self.inputs.bias.is_some());
        let Some(filter_shape) = filter_shape else {
            // Refuse now whatever can be refused without the unknown sizes.
            self.spec(&self.least_filter(&filter.shape), output_shape.clone())?;
            let op = DynamicFilterDeconv::new(self.clone(), dialect, self.data_format, has_bias, output_shape, options);
            return target.wire_node(prefix, op, &wires);
        };
        let spec = self.spec(filter_shape, output_shape)?;
        let mut op = GroupedDeconv::new(spec, dialect, has_bias, options)?;
        op.fusion = self.settings.fusion;
        target.wire_node(prefix, op, &wires)
    }

    /// Returns the canonical format of the filter and its axes in the dialect's order.
    ///
    /// The axes are that of the groups, if there is one, then those of input channels, output
    /// channels and the kernel's first axis.
    fn axes_of_filter(&self, rank: usize) -> (FilterFormat, Option<usize>, [usize; 3]) {
        match self.filter_axes {
            FilterAxes::Plain(format) => {
                let (i, o, x) = format.axes_of(rank);
                (format, None, [i, o, x])
            }
            FilterAxes::GroupLed(format) => {
                let (i, o, x) = format.axes_of(rank - 1);
                (format, Some(0), [i + 1, o + 1, x + 1])
            }
        }
    }

    /// Returns a legal shape for a filter with unknown sizes, if there is one.
    fn least_filter(&self, filter: &[TDim]) -> TVec<usize> {
        let (_, group_axis, [i, o, x]) = self.axes_of_filter(filter.len());
        let open = |axis: usize| match &self.kernel_shape {
            Some(declared) if axis >= x => declared.get(axis - x).copied().unwrap_or(1),
            _ if (axis == i || axis == o) && group_axis.is_none() => self.group.max(1),
            _ => 1,
        };
        filter.iter().enumerate().map(|(axis, dim)| dim.to_usize().unwrap_or_else(|_| open(axis))).collect()
    }

    /// Returns dimensions that represent an output shape known at run time only.
    ///
    /// They are those that the model file declares, or new symbols.
    fn stand_ins(&self, rank: usize, target: &TypedModel, declared: Option<&ShapeFactoid>) -> TVec<TDim> {
        let x0 = self.data_format.x_axis();
        (0..rank)
            .map(|ax| {
                declared
                    .and_then(|shape| shape.dim(x0 + ax))
                    .and_then(|dim| dim.concretize())
                    .unwrap_or_else(|| target.symbols.new_with_prefix("deconv_out").to_dim())
            })
            .collect()
    }
}

impl SpecOfFilter for Node {
    fn spec(&self, filter: &[usize], output_shape: Option<OutputShape>) -> TractResult<DeconvSpec> {
        Node::spec(self, filter, output_shape)
    }

    fn output_dims(
        &self,
        data: &[TDim],
        filter: &[TDim],
        output_shape: Option<&OutputShape>,
    ) -> TractResult<(TDim, TVec<TDim>)> {
        self.check_ranks(data.len() as i64, filter.len() as i64)?;
        let rank = data.len() - 2;
        let (format, group_axis, [_, o, x]) = self.axes_of_filter(filter.len());
        let groups = group_axis.map_or(self.group.to_dim(), |axis| filter[axis].clone());
        let channels = match (format, group_axis) {
            (FilterFormat::GroupedOix, None) => filter[o].clone(),
            _ => filter[o].clone() * groups,
        };
        let x0 = self.data_format.x_axis();
        let spatial = (0..rank).map(|ax| {
            let of = |list: &Option<TVec<usize>>, default: usize| match list {
                None => Ok(default),
                Some(list) => list.get(ax).copied().context("lists: one value per spatial axis is needed"),
            };
            let (stride, dilation) = (of(&self.strides, 1)?, of(&self.dilations, 1)?);
            let output_padding = of(&self.output_padding, 0)?;
            let pads = self.declared_pads.iter().flat_map(|side| &side.values).filter_map(|pads| pads.get(ax));
            let pads: i64 = pads.sum();
            let (input, extent) = (data[x0 + ax].clone(), (filter[x + ax].clone() - 1) * dilation + 1);
            let full = (input.clone() - 1) * stride + &extent + output_padding;
            Ok(match (&self.padding, output_shape) {
                (PaddingRule::OutputShape { sizes: Some(sizes), .. }, _) => {
                    sizes.get(ax).context("output_shape: one value per spatial axis is needed")?.to_dim()
                }
                (PaddingRule::OutputShape { sizes: None, .. }, Some(shape)) => {
                    shape.dims().get(ax).cloned().context("output_shape: one value per spatial axis is needed")?
                }
                (PaddingRule::OutputShape { .. }, None) => bail!("output_shape: the input that holds it is missing"),
                (PaddingRule::SameForward { .. }, _) => input.divceil(stride),
                (PaddingRule::Same { counts_output_padding, .. }, _) => {
                    let counted = if *counts_output_padding { output_padding } else { 0 };
                    full - TDim::Max(vec![extent + counted - stride, 0.to_dim()]).simplify()
                }
                (PaddingRule::Explicit | PaddingRule::Zero, _) => {
                    let pads = if self.padding == PaddingRule::Zero { 0 } else { pads };
                    match self.direction {
                        Direction::Transposed => full - pads,
                        Direction::Forward => (input + pads - extent) / stride + 1,
                    }
                }
            })
        });
        Ok((channels, spatial.collect::<TractResult<_>>()?))
    }

    fn has_group_axis(&self) -> bool {
        matches!(self.filter_axes, FilterAxes::GroupLed(_))
    }

    fn fusion(&self) -> bool {
        self.settings.fusion
    }
}

impl Expansion for Node {
    fn name(&self) -> StaticName {
        self.operator.into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("{self:?}")])
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, self.input_count())?;
        check_output_arity(outputs, 1)?;
        s.given_2(&inputs[0].datum_type, &inputs[1].datum_type, move |_, input, filter| {
            self.check_datum_types(input, filter)
        })?;
        s.equals(&inputs[0].datum_type, &inputs[1].datum_type)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.given_2(&inputs[0].rank, &inputs[1].rank, move |_, input, filter| self.check_ranks(input, filter))?;
        s.equals(inputs[0].rank.bex() + self.extra_filter_axes(), &inputs[1].rank)?;
        s.equals(&inputs[0].rank, &outputs[0].rank)?;
        s.equals(&inputs[0].shape[0], &outputs[0].shape[0])?;
        if let Some(slot) = self.inputs.bias {
            s.given_2(&inputs[0].datum_type, &inputs[slot].datum_type, move |_, input, bias| {
                ensure!(bias == input, "bias: datum_type={bias:?}, the input's is {input:?}");
                Ok(())
            })?;
            s.equals(&inputs[0].datum_type, &inputs[slot].datum_type)?;
            s.given(&inputs[slot].rank, |_, rank| {
                ensure!(rank == 1, "bias: rank={rank}, one value per output channel is needed");
                Ok(())
            })?;
            s.equals(&inputs[slot].rank, 1)?;
        }
        if let Some(slot) = self.inputs.output_shape {
            s.given(&inputs[slot].rank, |_, rank| {
                ensure!(rank == 1, "output_shape: rank={rank}, a vector is needed");
                Ok(())
            })?;
        }
        s.given(&inputs[1].shape, move |s, filter| {
            // `to_usize` drops what such an address can't count.
            if usize::BITS < 64 {
                check_volume("filter", &filter)?;
            }
            let Some(filter) = filter.iter().map(|d| d.to_usize().ok()).collect::<Option<TVec<usize>>>() else {
                return Ok(());
            };
            let rank = filter.len().saturating_sub(2 + self.extra_filter_axes() as usize);
            // Any output shape serves to check the attributes and to find the channels.
            let any = || Some(OutputShape::Input(tvec!(1.to_dim(); rank)));
            let spec = self.spec(&filter, any())?;
            s.equals(&outputs[0].shape[self.data_format.c_axis(rank + 2)], spec.out_channels.to_dim())?;
            if let Some(slot) = self.inputs.bias {
                s.given(&inputs[slot].shape[0], move |_, len| {
                    ensure!(
                        len.to_usize().map_or(true, |len| len == spec.out_channels),
                        "bias: shape=[{len}], the output has {} channels",
                        spec.out_channels
                    );
                    Ok(())
                })?;
            }
            match self.inputs.output_shape {
                None => s.given(&inputs[0].shape, move |s, input| {
                    let spec = self.spec(&filter, None)?;
                    s.equals(&outputs[0].shape, spec.output_shape(&input)?)
                }),
                Some(slot) => s.given_2(&inputs[0].shape, &inputs[slot].value, move |s, input, value| {
                    let spec = self.spec(&filter, Some(OutputShape::Dims(integers(&value)?)))?;
                    s.equals(&outputs[0].shape, spec.output_shape(&input)?)
                }),
            }
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        self.wire_node(prefix, model, inputs, None)
    }

    fn wire_with_inference_model_and_node(
        &self,
        prefix: &str,
        _model: &InferenceModel,
        node: &InferenceNode,
        typed_model: &mut TypedModel,
        inputs: &[OutletId],
    ) -> TractResult<TVec<OutletId>> {
        self.wire_node(prefix, typed_model, inputs, node.outputs.first().map(|output| &output.fact.shape))
    }
}
