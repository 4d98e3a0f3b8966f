//! Conditions whose branches are optimised with the model, and planned once.

use tract_core::internal::*;
use tract_core::ops::konst::Const;
use tract_core::ops::logic::IfThenElse;

/// The branches' parts of the names in reports.
const LABELS: [&str; 2] = ["then/", "else/"];

/// One branch of a condition.
#[derive(Clone, Debug)]
struct Branch<M> {
    body: M,
    /// The input of the op that each input of the body reads.
    inputs: Vec<usize>,
}

impl Branch<TypedModel> {
    /// Returns the value of an input of the body, if it is a constant that the input's type and
    /// shape allow.
    fn constant<'a>(&self, slot: usize, inputs: &[&'a TypedFact]) -> Option<&'a Arc<Tensor>> {
        let outer = inputs.get(*self.inputs.get(slot)?).filter(|fact| !fact.is_exotic())?;
        let inner = self.body.input_fact(slot).ok()?;
        outer.konst.as_ref().filter(|value| inner.matches(value, None).unwrap_or(false))
    }

    /// Returns whether the body reads its input.
    fn reads(&self, slot: usize) -> bool {
        let input = self.body.inputs.get(slot);
        input.is_some_and(|input| !self.body.outlet_successors(*input).is_empty() || self.body.outputs.contains(input))
    }
}

/// A condition whose branches are optimised with the model: tract's `IfThenElse` in the form that
/// this crate's optimisations understand.
///
/// The first input is the condition, one boolean. The others are what the branches read. The
/// outputs are those of the branch that the condition selects. Both branches have outputs of the
/// same types and shapes.
///
/// Loading a model through this crate, and its transforms, put the op in the place of tract's where
/// a branch holds a layer of this crate. tract leaves the branches of its own op as they are, and
/// plans the selected one at every run. Optimising a model replaces this op by [`OptIf`].
#[derive(Clone, Debug)]
pub struct If {
    branches: [Branch<TypedModel>; 2],
    outputs: TVec<TypedFact>,
    decluttered: bool,
}

/// No two are taken for equal, as models can't be compared.
impl PartialEq for If {
    fn eq(&self, _other: &If) -> bool {
        false
    }
}

impl Eq for If {}

impl If {
    /// Converts tract's op.
    ///
    /// # Errors
    /// Fails if outputs of the branches differ in number, type or shape.
    pub(crate) fn of(op: IfThenElse) -> TractResult<If> {
        let IfThenElse { then_body, then_input_mapping, else_body, else_input_mapping } = op;
        let branches = [
            Branch { body: then_body, inputs: then_input_mapping },
            Branch { body: else_body, inputs: else_input_mapping },
        ];
        let [outputs, others] = [&branches[0], &branches[1]].map(|branch| {
            let facts = branch.body.outputs.iter().map(|outlet| branch.body.outlet_fact(*outlet));
            // The value of one branch's output is not that of the condition's.
            facts.map(|fact| Ok(fact?.without_value())).collect::<TractResult<TVec<TypedFact>>>()
        });
        let (outputs, others) = (outputs?, others?);
        ensure!(outputs == others, "branches: outputs={outputs:?} and {others:?}, types and shapes must agree");
        Ok(If { branches, outputs, decluttered: false })
    }

    /// Converts the op back to tract's.
    pub(crate) fn to_tract(&self) -> IfThenElse {
        let [then, otherwise] = self.branches.clone();
        IfThenElse {
            then_body: then.body,
            then_input_mapping: then.inputs,
            else_body: otherwise.body,
            else_input_mapping: otherwise.inputs,
        }
    }

    /// Returns the branches, each with its part of the name in reports.
    pub(crate) fn bodies(&self) -> TVec<(&'static str, &TypedModel)> {
        LABELS.into_iter().zip(self.branches.iter().map(|branch| &branch.body)).collect()
    }

    /// Returns the branches to be changed. They are decluttered again.
    pub(crate) fn bodies_mut(&mut self) -> TVec<&mut TypedModel> {
        self.decluttered = false;
        self.branches.iter_mut().map(|branch| &mut branch.body).collect()
    }

    /// Moves constants that a branch reads into the branch, and drops inputs that are not read.
    fn with_fewer_inputs(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let facts = model.node_input_facts(node.id)?;
        let read = |slot: &usize| *slot == 0 || self.branches.iter().any(|branch| branch.inputs.contains(slot));
        let stays = |branch: &Branch<TypedModel>| {
            (0..branch.inputs.len()).all(|slot| branch.constant(slot, &facts).is_none() && branch.reads(slot))
        };
        if self.branches.iter().all(stays) && (0..node.inputs.len()).all(|slot| read(&slot)) {
            return Ok(None);
        }
        let mut op = self.clone();
        for branch in &mut op.branches {
            for slot in (0..branch.inputs.len()).rev() {
                if let Some(value) = branch.constant(slot, &facts) {
                    let source = branch.body.inputs[slot].node;
                    branch.body.nodes[source].op = Box::new(Const::new(Arc::clone(value))?);
                    op.decluttered = false;
                } else if branch.reads(slot) {
                    continue;
                }
                branch.body.inputs.remove(slot);
                branch.inputs.remove(slot);
            }
        }
        let read = |slot: &usize| *slot == 0 || op.branches.iter().any(|branch| branch.inputs.contains(slot));
        let kept: Vec<usize> = (0..node.inputs.len()).filter(read).collect();
        for slot in op.branches.iter_mut().flat_map(|branch| &mut branch.inputs) {
            *slot = kept.iter().position(|kept| kept == slot).context("an input of a branch is kept")?;
        }
        let inputs: TVec<OutletId> = kept.iter().map(|slot| node.inputs[*slot]).collect();
        TypedModelPatch::replace_single_op(model, node, &inputs, op).map(Some)
    }

    /// Plans the branches as they are.
    fn planned(self) -> TractResult<OptIf> {
        let [then, otherwise] = self
            .branches
            .map(|Branch { body, inputs }| TractResult::Ok(Branch { body: TypedSimplePlan::new(body)?, inputs }));
        Ok(OptIf(Arc::new(Planned { branches: [then?, otherwise?], outputs: self.outputs })))
    }

    /// Optimises and plans the branches.
    pub(crate) fn optimised(mut self) -> TractResult<OptIf> {
        for Branch { body, .. } in &mut self.branches {
            if !self.decluttered {
                body.declutter()?;
            }
            body.optimize()?;
        }
        self.planned()
    }

    fn with_symbols(&self, subs: &HashMap<Symbol, TDim>) -> TractResult<If> {
        let mut op = self.clone();
        for body in op.bodies_mut() {
            *body = body.set_symbols(subs)?;
        }
        op.outputs = substituted(&op.outputs, subs)?;
        Ok(op)
    }
}

fn substituted(facts: &[TypedFact], subs: &HashMap<Symbol, TDim>) -> TractResult<TVec<TypedFact>> {
    let fact = |fact: &TypedFact| {
        let dims = fact.shape.iter().map(|dim| dim.substitute_all(subs)).collect::<TractResult<TVec<TDim>>>()?;
        Ok(TypedFact { shape: dims.into(), ..fact.clone() })
    };
    facts.iter().map(fact).collect()
}

/// Returns the symbols in a fact's shape and values.
fn symbols(fact: &TypedFact) -> TVec<Symbol> {
    let mut symbols: TVec<Symbol> = fact.shape.iter().flat_map(|dim| dim.symbols()).collect();
    for value in [&fact.konst, &fact.uniform].into_iter().flatten() {
        if let Some(dims) = value.try_as_plain_ram().ok().and_then(|dims| dims.as_slice::<TDim>().ok()) {
            symbols.extend(dims.iter().flat_map(|dim| dim.symbols()));
        }
    }
    symbols
}

/// Returns the symbols that must be known before the branches run.
///
/// They include those that the branches find out themselves. No node outside defines these.
fn required<'a>(inputs: &[&TypedFact], bodies: impl IntoIterator<Item = &'a TypedModel>) -> TVec<Symbol> {
    let mut required: TVec<Symbol> = inputs.iter().flat_map(|fact| symbols(fact)).collect();
    for body in bodies {
        for node in &body.nodes {
            required.extend(node.outputs.iter().flat_map(|output| symbols(&output.fact)));
            if let Ok(facts) = body.node_input_facts(node.id) {
                required.extend(node.op.required_bound_symbols(&facts));
            }
        }
    }
    required.sort();
    required.dedup();
    required
}

/// Returns whether a branch finds out the values of symbols at run time.
fn mints<'a>(bodies: impl IntoIterator<Item = &'a TypedModel>) -> bool {
    let mut nodes = bodies.into_iter().flat_map(|body| &body.nodes);
    nodes.any(|node| !TypedModel::is_source(&node.op) && node.op.mints_runtime_symbols())
}

fn check_condition(inputs: &[&TypedFact]) -> TractResult<()> {
    let condition = inputs.first().context("inputs: count=0, a condition is needed")?;
    let (dt, shape) = (condition.datum_type, &condition.shape);
    ensure!(dt == DatumType::Bool, "condition: datum_type={dt:?}, booleans are needed");
    ensure!(shape.volume() == 1.to_dim(), "condition: shape={shape:?}, one value is needed");
    Ok(())
}

impl Op for If {
    fn name(&self) -> StaticName {
        "If".into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        mints(self.branches.iter().map(|branch| &branch.body))
    }

    fn required_bound_symbols(&self, inputs: &[&TypedFact]) -> TVec<Symbol> {
        required(inputs, self.branches.iter().map(|branch| &branch.body))
    }

    op_as_typed_op!();
}

impl EvalOp for If {
    not_out_of_plan!();

    fn state(&self, ctx: &EvalContext) -> TractResult<Option<Box<dyn OpState>>> {
        self.clone().planned()?.state(ctx)
    }
}

impl TypedOp for If {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        check_condition(inputs)?;
        for Branch { body, inputs: read } in &self.branches {
            ensure!(
                body.inputs.len() == read.len(),
                "inputs: count={}, the branch has {}",
                read.len(),
                body.inputs.len()
            );
            let known = read.iter().all(|slot| *slot < inputs.len());
            ensure!(known, "inputs: count={}, a branch reads {read:?}", inputs.len());
        }
        Ok(self.outputs.clone())
    }

    fn declutter(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        if model.outlet_fact(node.inputs[0])?.konst.is_some() {
            return self.to_tract().declutter(model, node);
        }
        if let Some(patch) = self.with_fewer_inputs(model, node)? {
            return Ok(Some(patch));
        }
        if self.decluttered {
            return Ok(None);
        }
        let mut op = self.clone();
        for (label, body) in LABELS.iter().zip(op.bodies_mut()) {
            body.declutter().with_context(|| format!("in {}/{label}", node.name))?;
        }
        op.decluttered = true;
        TypedModelPatch::replace_single_op(model, node, &node.inputs, op).map(Some)
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
        target.wire_node(&node.name, self.with_symbols(subs)?, &inputs)
    }

    fn codegen(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        let op = self.clone().optimised().with_context(|| format!("in the branches of {}", node.name))?;
        TypedModelPatch::replace_single_op(model, node, &node.inputs, op).map(Some)
    }

    as_op!();
}

/// The branches of an optimised condition, ready to run.
#[derive(Debug)]
struct Planned {
    branches: [Branch<Arc<TypedSimplePlan>>; 2],
    outputs: TVec<TypedFact>,
}

/// A condition with optimised branches that are planned already.
///
/// Optimising a model puts the op in the place of [`If`]. Inputs and outputs are the same. A clone
/// shares the plans. Each state of a model keeps states of the branches of its own.
#[derive(Clone, Debug)]
pub struct OptIf(Arc<Planned>);

impl PartialEq for OptIf {
    fn eq(&self, other: &OptIf) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OptIf {}

impl OptIf {
    /// Returns the branches, each with its part of the name in reports.
    pub(crate) fn bodies(&self) -> TVec<(&'static str, &TypedModel)> {
        LABELS.into_iter().zip(self.0.bodies()).collect()
    }
}

impl Planned {
    fn bodies(&self) -> impl Iterator<Item = &TypedModel> {
        self.branches.iter().map(|branch| branch.body.model())
    }
}

impl Op for OptIf {
    fn name(&self) -> StaticName {
        "OptIf".into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        mints(self.0.bodies())
    }

    fn required_bound_symbols(&self, inputs: &[&TypedFact]) -> TVec<Symbol> {
        required(inputs, self.0.bodies())
    }

    op_as_typed_op!();
}

impl EvalOp for OptIf {
    not_out_of_plan!();

    fn state(&self, _ctx: &EvalContext) -> TractResult<Option<Box<dyn OpState>>> {
        Ok(Some(Box::new(IfState { planned: Arc::clone(&self.0), kept: [None, None] })))
    }
}

impl TypedOp for OptIf {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        check_condition(inputs)?;
        Ok(self.0.outputs.clone())
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
        let [then, otherwise] = [0, 1].map(|ix| {
            let Branch { body, inputs } = &self.0.branches[ix];
            let body = TypedSimplePlan::new(body.model().set_symbols(subs)?)?;
            TractResult::Ok(Branch { body, inputs: inputs.clone() })
        });
        let outputs = substituted(&self.0.outputs, subs)?;
        target.wire_node(&node.name, OptIf(Arc::new(Planned { branches: [then?, otherwise?], outputs })), &inputs)
    }

    as_op!();
}

/// A function that evaluates one node of a branch, as `tract_core::plan::eval` does.
///
/// The first argument is the branch: `then/` or `else/`.
pub type EvalNode<'a> = &'a mut dyn FnMut(
    &'static str,
    &EvalContext,
    Option<&mut (dyn OpState + 'static)>,
    &TypedNode,
    TVec<TValue>,
) -> TractResult<TVec<TValue>>;

/// The state of an [`If`] or [`OptIf`] in a state of the model.
///
/// It holds memory to run the branches in, and nothing that a later run reads: a loop inside a
/// branch starts anew at each run, as in tract's op.
#[derive(Clone, Debug)]
pub struct IfState {
    planned: Arc<Planned>,
    /// The state of each branch that has run.
    kept: [Option<TypedSimpleState>; 2],
}

impl IfState {
    /// Runs the selected branch, and passes each of its nodes to `eval`.
    ///
    /// # Errors
    /// Those of the branch's nodes, and a condition that is not one value.
    pub fn eval_nodes(&mut self, ctx: &EvalContext, inputs: TVec<TValue>, eval: EvalNode) -> TractResult<TVec<TValue>> {
        self.run(ctx, inputs, |label, state, inputs| {
            state.run_plan_with_eval(inputs, |ctx, op_state, node, inputs| eval(label, ctx, op_state, node, inputs))
        })
    }

    fn run(
        &mut self,
        ctx: &EvalContext,
        inputs: TVec<TValue>,
        run: impl FnOnce(&'static str, &mut TypedSimpleState, TVec<TValue>) -> TractResult<TVec<TValue>>,
    ) -> TractResult<TVec<TValue>> {
        let condition = inputs.first().context("inputs: count=0, a condition is needed")?;
        let selected = if condition.cast_to_scalar::<bool>()? { 0 } else { 1 };
        let Branch { body, inputs: read } = &self.planned.branches[selected];
        let missing = || format!("inputs: count={}, the branch reads {read:?}", inputs.len());
        let of_branch = read.iter().map(|slot| inputs.get(*slot).cloned().with_context(missing));
        let of_branch = of_branch.collect::<TractResult<TVec<TValue>>>()?;
        drop(inputs);
        // A run that fails leaves values in the state. Such a state is not kept.
        let mut state = match self.kept[selected].take() {
            Some(state) => state,
            None => body.spawn()?,
        };
        let turn = &mut state.turn_state;
        // A branch may mention symbols that only values outside of it determine.
        turn.resolved_symbols.clone_from(ctx.symbols);
        turn.scenario = ctx.scenario;
        if turn.seating != *ctx.seating {
            turn.seating = ctx.seating.clone();
        }
        let outputs = run(LABELS[selected], &mut state, of_branch)?;
        if state.op_states.iter().flatten().all(|inner| inner.is::<IfState>()) {
            self.kept[selected] = Some(state);
        }
        Ok(outputs)
    }
}

impl OpState for IfState {
    fn eval(&mut self, ctx: &EvalContext, _op: &dyn Op, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        self.run(ctx, inputs, |_, state, inputs| state.run(inputs))
    }

    fn reset_lanes(&mut self, _lanes: &[LaneId]) -> TractResult<()> {
        Ok(())
    }
}
