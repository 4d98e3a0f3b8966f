//! The tract op: facts, axes, symbols, code generation.

use crate::cache::PlanCache;
use crate::describe::list;
use crate::filter::{FilterLayout, PackedFilter};
use crate::knobs;
use crate::plan::{Plan, PlanOptions};
use crate::spec::{DataFormat, DeconvSpec, Direction, OutputShape, Padding};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Weak;
use tract_core::internal::*;

/// Where a node came from. A label only: the spec holds everything that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// ONNX ConvTranspose.
    Onnx,
    /// OpenVINO's \[Group\]ConvolutionBackpropData-1, GroupConvolution-1 and Convolution-1.
    OpenVino,
    /// oneDNN Graph's ConvTranspose-1.
    OneDnn,
    /// tract's own `Deconv`, rewritten.
    Tract,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Dialect::Onnx => "onnx",
            Dialect::OpenVino => "openvino",
            Dialect::OneDnn => "onednn",
            Dialect::Tract => "tract",
        })
    }
}

/// A grouped (transposed or forward) convolution.
///
/// Inputs: the data in the spec's data format, the filter in its filter format, then the bias of shape `[out channels]`
/// where [`GroupedDeconv::has_bias`], then the spatial output shape as a vector of integers where the spec reads it at run
/// time. One output, in the data's type and the spec's data format.
///
/// Optimising a model replaces the op by [`OptGroupedDeconv`] where the filter is constant. Otherwise the filter is
/// packed at every run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupedDeconv {
    /// What is computed.
    pub spec: DeconvSpec,
    /// Where the node came from.
    pub dialect: Dialect,
    /// Whether there is a bias input.
    pub has_bias: bool,
    /// What may be forced on the planner.
    pub options: PlanOptions,
    /// Whether what follows may be folded into the op.
    pub fusion: bool,
    plans: PlanCache,
}

impl GroupedDeconv {
    /// The op for a spec.
    ///
    /// # Errors
    /// What [`DeconvSpec::validate`] refuses.
    pub fn new(spec: DeconvSpec, dialect: Dialect, has_bias: bool, options: PlanOptions) -> TractResult<GroupedDeconv> {
        spec.validate()?;
        Ok(GroupedDeconv { spec, dialect, has_bias, options, fusion: true, plans: PlanCache::default() })
    }

    fn bias_slot(&self) -> Option<usize> {
        self.has_bias.then_some(2)
    }

    fn output_shape_slot(&self) -> Option<usize> {
        self.spec.has_output_shape_input().then_some(2 + self.has_bias as usize)
    }
}

/// [`GroupedDeconv`] with its constant filter packed: what an optimised model runs.
///
/// Inputs: the data, then the bias where it is not constant, then the output shape where it is read at run time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptGroupedDeconv {
    /// What is computed.
    pub spec: DeconvSpec,
    /// Where the node came from.
    pub dialect: Dialect,
    /// Element type of data, filter, bias and output.
    pub datum_type: DatumType,
    /// Where the bias is.
    pub bias: Bias,
    /// What may be forced on the planner, with the packed filter's layout.
    pub options: PlanOptions,
    filter: Arc<PackedFilter>,
    source: Source,
    plans: PlanCache,
}

/// Where the bias of an optimised op is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bias {
    /// Nowhere.
    None,
    /// In the op.
    Const(Arc<Tensor>),
    /// The op's second input.
    Input,
}

/// The tensor that a filter was packed from, which is not kept alive: nodes that share an initialiser share the packed
/// filter. It says nothing of what is computed, so all sources are equal.
#[derive(Clone, Debug)]
struct Source(Weak<Tensor>);

impl PartialEq for Source {
    fn eq(&self, _other: &Source) -> bool {
        true
    }
}

impl Eq for Source {}

impl Hash for Source {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl OptGroupedDeconv {
    /// The packed filter's layout.
    pub fn filter_layout(&self) -> &FilterLayout {
        self.filter.layout()
    }

    fn bias_slot(&self) -> Option<usize> {
        (self.bias == Bias::Input).then_some(1)
    }

    fn output_shape_slot(&self) -> Option<usize> {
        self.spec.has_output_shape_input().then(|| 1 + (self.bias == Bias::Input) as usize)
    }

    /// Whether both ops read one packed filter.
    pub fn shares_filter_with(&self, other: &OptGroupedDeconv) -> bool {
        Arc::ptr_eq(&self.filter, &other.filter)
    }

    /// Whether a filter packed for this op serves another one.
    fn packs_like(&self, spec: &DeconvSpec, layout: &FilterLayout, source: &Arc<Tensor>) -> bool {
        let as_filter = |spec: &DeconvSpec| DeconvSpec { padding: Padding::zero(spec.rank()), ..spec.clone() };
        self.source.0.as_ptr() == Arc::as_ptr(source)
            && self.filter.layout() == layout
            && as_filter(&self.spec) == as_filter(spec)
    }
}

/// What both ops run.
struct Run<'a> {
    spec: &'a DeconvSpec,
    plans: &'a PlanCache,
    options: &'a PlanOptions,
    input: &'a Tensor,
    bias: Option<&'a Tensor>,
    output_shape: Option<&'a Tensor>,
}

impl Run<'_> {
    fn eval(
        self,
        symbols: &SymbolValues,
        filter: impl FnOnce(&Plan) -> TractResult<Arc<PackedFilter>>,
    ) -> TractResult<TVec<TValue>> {
        let requested = requested(self.spec, symbols, self.output_shape)?;
        let plan = self.plans.get(
            self.spec,
            self.input.shape(),
            requested.as_deref(),
            self.input.datum_type(),
            self.options,
        )?;
        let filter = filter(&plan)?;
        Ok(tvec!(plan.run(self.spec, self.input, &filter, self.bias)?.into_tvalue()))
    }
}

/// The output's spatial size where neither the spec nor the input's shape tells it.
fn requested(spec: &DeconvSpec, symbols: &SymbolValues, tensor: Option<&Tensor>) -> TractResult<Option<TVec<i64>>> {
    let Padding::OutputShape { shape, .. } = &spec.padding else { return Ok(None) };
    match (shape, tensor) {
        (OutputShape::Dims(dims), _) if dims.iter().all(|d| d.as_i64().is_some()) => Ok(None),
        (OutputShape::Dims(dims), _) => {
            dims.iter().map(|dim| dim.eval_to_i64(symbols)).collect::<TractResult<_>>().map(Some)
        }
        (OutputShape::Input(_), None) => bail!("output_shape: the input that holds it is missing"),
        (OutputShape::Input(dims), Some(tensor)) => {
            let values = integers(tensor)?;
            let values = values
                .iter()
                .map(|dim| dim.eval_to_i64(symbols))
                .collect::<TractResult<TVec<i64>>>()
                .context("output_shape")?;
            ensure!(
                values.len() == dims.len(),
                "output_shape: output_shape={values:?}, {} values are needed, one per spatial axis",
                dims.len()
            );
            for (dim, value) in dims.iter().zip(&values) {
                ensure!(
                    dim.as_i64().is_none_or(|dim| dim == *value),
                    "output_shape: output_shape={values:?}, the model declares [{}]",
                    list(dims, ", ")
                );
            }
            Ok(Some(values))
        }
    }
}

/// The values of an integer vector, of any integer type or over symbols.
///
/// # Errors
/// Another type, or a tensor that is not a vector.
pub(crate) fn integers(tensor: &Tensor) -> TractResult<TVec<TDim>> {
    let datum_type = tensor.datum_type();
    ensure!(
        datum_type.is_integer() || datum_type == TDim::datum_type(),
        "output_shape: datum_type={datum_type:?}, an integer type is needed"
    );
    ensure!(tensor.rank() == 1, "output_shape: shape={:?}, a vector is needed", tensor.shape());
    if datum_type == TDim::datum_type() {
        Ok(tensor.try_as_plain_ram()?.as_slice::<TDim>()?.into())
    } else {
        let values = tensor.cast_to::<i64>()?;
        Ok(values.try_as_plain_ram()?.as_slice::<i64>()?.iter().map(|v| v.to_dim()).collect())
    }
}

fn tensor(inputs: &[TValue], slot: Option<usize>) -> TractResult<Option<&Tensor>> {
    slot.map(|slot| inputs.get(slot).map(|value| &**value).context("inputs: one is missing")).transpose()
}

fn has_symbolic_output_shape(spec: &DeconvSpec) -> bool {
    matches!(&spec.padding, Padding::OutputShape { shape: OutputShape::Dims(dims), .. }
        if dims.iter().any(|d| d.as_i64().is_none()))
}

fn substitute(spec: &DeconvSpec, subs: &HashMap<Symbol, TDim>) -> TractResult<DeconvSpec> {
    let mut spec = spec.clone();
    if let Padding::OutputShape { shape: OutputShape::Dims(dims) | OutputShape::Input(dims), .. } = &mut spec.padding {
        for dim in dims {
            *dim = dim.substitute_all(subs)?;
        }
    }
    spec.validate()?;
    Ok(spec)
}

/// Facts and axes, which both ops share: `input` is that of the data.
fn output_fact(spec: &DeconvSpec, input: &TypedFact) -> TractResult<TVec<TypedFact>> {
    Ok(tvec!(input.datum_type.fact(spec.output_shape(&input.shape)?)))
}

fn check_output_shape_fact(spec: &DeconvSpec, fact: &TypedFact) -> TractResult<()> {
    let datum_type = fact.datum_type;
    ensure!(
        datum_type.is_integer() || datum_type == TDim::datum_type(),
        "output_shape: datum_type={datum_type:?}, an integer type is needed"
    );
    ensure!(
        fact.rank() == 1 && fact.shape[0].to_usize().map_or(true, |len| len == spec.rank()),
        "output_shape: shape={:?}, {} values are needed, one per spatial axis",
        fact.shape,
        spec.rank()
    );
    Ok(())
}

fn check_bias_fact(spec: &DeconvSpec, input: &TypedFact, fact: &TypedFact) -> TractResult<()> {
    ensure!(
        fact.datum_type == input.datum_type,
        "bias: datum_type={:?}, the input's is {:?}",
        fact.datum_type,
        input.datum_type
    );
    ensure!(
        fact.rank() == 1 && fact.shape[0].to_usize().map_or(true, |len| len == spec.out_channels),
        "bias: shape={:?}, one value per output channel, {} of them, is needed",
        fact.shape,
        spec.out_channels
    );
    Ok(())
}

fn axes_mapping(spec: &DeconvSpec, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
    let c_axis = spec.data_format.c_axis(spec.rank() + 2);
    let mut axes = AxesMapping::disconnected(inputs, outputs)?
        .renaming((InOut::In(0), c_axis), 'I')?
        .renaming((InOut::Out(0), c_axis), 'O')?
        .renaming((InOut::In(0), 0), 'N')?
        .linking('N', (InOut::Out(0), 0))?;
    for (ax, repr) in (0..spec.rank()).zip("HWXY".chars()) {
        let padded = match &spec.padding {
            Padding::Explicit { begin, end } => begin[ax] != 0 || end[ax] != 0,
            Padding::SameForward { .. } => false,
            Padding::OutputShape { .. } => true,
        };
        if spec.kernel[ax] == 1 && spec.strides[ax] == 1 && spec.output_padding[ax] == 0 && !padded {
            let axis = spec.data_format.x_axis() + ax;
            axes = axes.renaming((InOut::In(0), axis), repr)?.linking(repr, (InOut::Out(0), axis))?;
        }
    }
    Ok(axes)
}

fn cost(spec: &DeconvSpec, input: &TypedFact) -> TractResult<TVec<(Cost, TDim)>> {
    let weights: usize = spec.filter_shape().iter().product();
    let concrete =
        input.shape.as_concrete().filter(|_| !has_symbolic_output_shape(spec) && !spec.has_output_shape_input());
    let multiply_adds = match concrete {
        Some(shape) => spec.problem(shape, None)?.multiply_adds().to_dim(),
        None => {
            // every tap at every input (transposed) or output (forward) position, those that miss the other side included
            let positions = match spec.direction {
                Direction::Transposed => input.shape.to_tvec(),
                Direction::Forward => spec.output_shape(&input.shape)?,
            };
            let x0 = spec.data_format.x_axis();
            let positions: TDim = positions[x0..x0 + spec.rank()].iter().product();
            positions * &input.shape[0] * weights
        }
    };
    Ok(tvec!((Cost::FMA(input.datum_type), multiply_adds), (Cost::Params(input.datum_type), weights.to_dim())))
}

fn info(spec: &DeconvSpec, dialect: Dialect) -> String {
    format!("{dialect}: {spec}")
}

impl Op for GroupedDeconv {
    fn name(&self) -> StaticName {
        "GroupedDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![info(&self.spec, self.dialect)])
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.spec.has_output_shape_input()
    }

    op_as_typed_op!();
}

impl EvalOp for GroupedDeconv {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        ensure!(inputs.len() >= 2, "inputs: count={}, data and filter are needed", inputs.len());
        Run {
            spec: &self.spec,
            plans: &self.plans,
            options: &self.options,
            input: &inputs[0],
            bias: tensor(&inputs, self.bias_slot())?,
            output_shape: tensor(&inputs, self.output_shape_slot())?,
        }
        .eval(ctx.symbols, |plan| {
            let filter = inputs[1].clone().into_arc_tensor();
            Ok(Arc::new(PackedFilter::pack(&self.spec, &plan.filter_layout(), &filter)?))
        })
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        if has_symbolic_output_shape(&self.spec) {
            return Ok(None);
        }
        self.eval(&EvalContext::out_of_plan(), inputs).map(Some)
    }
}

impl TypedOp for GroupedDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let expected = 2 + self.has_bias as usize + self.spec.has_output_shape_input() as usize;
        ensure!(inputs.len() == expected, "inputs: count={}, {expected} are needed", inputs.len());
        let (input, filter) = (inputs[0], inputs[1]);
        ensure!(
            filter.datum_type == input.datum_type,
            "filter: datum_type={:?}, the input's is {:?}",
            filter.datum_type,
            input.datum_type
        );
        let shape = self.spec.filter_shape();
        ensure!(
            filter.rank() == shape.len()
                && filter.shape.iter().zip(&shape).all(|(dim, size)| dim.to_usize().map_or(true, |dim| dim == *size)),
            "filter: shape={:?}, {shape:?} is needed",
            filter.shape
        );
        if let Some(slot) = self.bias_slot() {
            check_bias_fact(&self.spec, input, inputs[slot])?;
        }
        if let Some(slot) = self.output_shape_slot() {
            check_output_shape_fact(&self.spec, inputs[slot])?;
        }
        output_fact(&self.spec, input)
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        axes_mapping(&self.spec, inputs, outputs)
    }

    /// Moving the channels between the two places that data formats know only changes the format.
    fn change_axes(
        &self,
        _model: &TypedModel,
        _node: &TypedNode,
        io: InOut,
        change: &AxisOp,
    ) -> TractResult<Option<AxisChangeConsequence>> {
        let last = self.spec.rank() + 1;
        let (to_other, other) = match self.spec.data_format {
            DataFormat::Ncx => (AxisOp::Move(1, last), DataFormat::Nxc),
            DataFormat::Nxc => (AxisOp::Move(last, 1), DataFormat::Ncx),
        };
        if !matches!(io, InOut::In(0) | InOut::Out(0)) || *change != to_other {
            return Ok(None);
        }
        let op = GroupedDeconv {
            spec: DeconvSpec { data_format: other, ..self.spec.clone() },
            plans: PlanCache::default(),
            ..self.clone()
        };
        Ok(Some(AxisChangeConsequence {
            substitute_op: Some(Box::new(op)),
            wire_changes: tvec!((InOut::In(0), change.clone()), (InOut::Out(0), change.clone())),
        }))
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        cost(&self.spec, inputs[0])
    }

    fn set_symbols(
        &self,
        _source: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs = node.inputs.iter().map(|i| mapping[i]).collect::<TVec<_>>();
        let op = GroupedDeconv { spec: substitute(&self.spec, subs)?, plans: PlanCache::default(), ..self.clone() };
        target.wire_node(&node.name, op, &inputs)
    }

    fn codegen(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let facts = model.node_input_facts(node.id)?;
        let options = knobs::complete(&self.options)?;
        let Some(filter) = &facts[1].konst else {
            if options == self.options {
                return Ok(None);
            }
            let op = GroupedDeconv { options, plans: PlanCache::default(), ..self.clone() };
            return TypedModelPatch::replace_single_op(model, node, &node.inputs, op).map(Some);
        };
        let datum_type = facts[0].datum_type;
        let plans = PlanCache::default();
        let concrete = facts[0]
            .shape
            .as_concrete()
            .filter(|_| !has_symbolic_output_shape(&self.spec) && !self.spec.has_output_shape_input());
        let layout = match concrete {
            Some(shape) => plans.get(&self.spec, shape, None, datum_type, &options)?.filter_layout(),
            None => Plan::shape_free_layout(&self.spec, datum_type, &options),
        };
        let options = PlanOptions { layout: Some(layout.clone()), ..options };
        let shared = model
            .nodes()
            .iter()
            .filter_map(|node| node.op_as::<OptGroupedDeconv>())
            .find(|op| op.packs_like(&self.spec, &layout, filter));
        let packed = match shared {
            Some(op) => Arc::clone(&op.filter),
            None => Arc::new(PackedFilter::pack(&self.spec, &layout, filter)?),
        };
        let mut inputs = tvec!(node.inputs[0]);
        let bias = match self.bias_slot() {
            None => Bias::None,
            Some(slot) => match &facts[slot].konst {
                Some(bias) => Bias::Const(Arc::clone(bias)),
                None => {
                    inputs.push(node.inputs[slot]);
                    Bias::Input
                }
            },
        };
        inputs.extend(self.output_shape_slot().map(|slot| node.inputs[slot]));
        let op = OptGroupedDeconv {
            spec: self.spec.clone(),
            dialect: self.dialect,
            datum_type,
            bias,
            options,
            filter: packed,
            source: Source(Arc::downgrade(filter)),
            plans,
        };
        TypedModelPatch::replace_single_op(model, node, &inputs, op).map(Some)
    }

    as_op!();
}

impl Op for OptGroupedDeconv {
    fn name(&self) -> StaticName {
        "OptGroupedDeconv".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        let mut lines = vec![info(&self.spec, self.dialect)];
        lines.extend(self.plans.latest().map(|plan| plan.to_string()));
        Ok(lines)
    }

    fn mints_runtime_symbols(&self) -> bool {
        self.spec.has_output_shape_input()
    }

    op_as_typed_op!();
}

impl EvalOp for OptGroupedDeconv {
    fn eval(&self, ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        ensure!(!inputs.is_empty(), "inputs: count=0, the data is needed");
        Run {
            spec: &self.spec,
            plans: &self.plans,
            options: &self.options,
            input: &inputs[0],
            bias: match &self.bias {
                Bias::Const(bias) => Some(bias),
                Bias::None | Bias::Input => tensor(&inputs, self.bias_slot())?,
            },
            output_shape: tensor(&inputs, self.output_shape_slot())?,
        }
        .eval(ctx.symbols, |_| Ok(Arc::clone(&self.filter)))
    }

    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        if has_symbolic_output_shape(&self.spec) {
            return Ok(None);
        }
        self.eval(&EvalContext::out_of_plan(), inputs).map(Some)
    }
}

impl TypedOp for OptGroupedDeconv {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let expected = 1 + (self.bias == Bias::Input) as usize + self.spec.has_output_shape_input() as usize;
        ensure!(inputs.len() == expected, "inputs: count={}, {expected} are needed", inputs.len());
        ensure!(
            inputs[0].datum_type == self.datum_type,
            "input: datum_type={:?}, the filter's is {:?}",
            inputs[0].datum_type,
            self.datum_type
        );
        if let Some(slot) = self.bias_slot() {
            check_bias_fact(&self.spec, inputs[0], inputs[slot])?;
        }
        if let Some(slot) = self.output_shape_slot() {
            check_output_shape_fact(&self.spec, inputs[slot])?;
        }
        output_fact(&self.spec, inputs[0])
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        axes_mapping(&self.spec, inputs, outputs)
    }

    fn cost(&self, inputs: &[&TypedFact]) -> TractResult<TVec<(Cost, TDim)>> {
        cost(&self.spec, inputs[0])
    }

    fn set_symbols(
        &self,
        _source: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        let inputs = node.inputs.iter().map(|i| mapping[i]).collect::<TVec<_>>();
        let op = OptGroupedDeconv { spec: substitute(&self.spec, subs)?, plans: PlanCache::default(), ..self.clone() };
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}
