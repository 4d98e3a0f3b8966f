//! Functions of single bytes, as tables of their results.

use super::quantise::{OptQuantise, Quantise, bytes_by_threads};
use super::run::is_byte;
use crate::memory;
use std::fmt;
use tract_core::internal::*;
use tract_core::ops::binary::TypedBinOp;
use tract_core::ops::element_wise::ElementWiseOp;
use tract_core::ops::logic::Iff;
use tract_core::ops::quant::DequantizeLinearF32;

/// The number of bytes.
const BYTES: usize = 256;

/// The most nodes between the bytes and QuantizeLinear.
const MOST_STEPS: usize = 16;

/// The most tables of one op, which bounds the memory that making them takes.
const MOST_TABLES: usize = 4096;

/// Maps each 8-bit integer to another one: what DequantizeLinear, element-wise operators, and
/// QuantizeLinear make of it.
///
/// The results are computed by these operators when the model is decluttered.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ByteTable {
    /// Results by the bits of the input: 256 for each index along the axis.
    results: Arc<Vec<u8>>,
    /// The axis whose indices have a table each. Without, there is one table.
    axis: Option<usize>,
    /// The type of the results.
    to: DatumType,
}

impl fmt::Debug for ByteTable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "ByteTable to {:?}, ", self.to)?;
        match self.axis {
            None => f.write_str("one table"),
            Some(axis) => write!(f, "{} tables along axis {axis}", self.results.len() / BYTES),
        }
    }
}

impl Op for ByteTable {
    fn name(&self) -> StaticName {
        "ByteTable".into()
    }

    fn info(&self) -> TractResult<Vec<String>> {
        Ok(vec![format!("{self:?}")])
    }

    op_as_typed_op!();
}

impl EvalOp for ByteTable {
    op_out_of_plan!();

    fn eval(&self, _ctx: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let input = inputs.first().context("inputs: count=0, the data is needed")?;
        ensure!(is_byte(input.datum_type()), "input: datum_type={:?}, 8-bit integers are needed", input.datum_type());
        let (tables, _) = self.results.as_chunks::<BYTES>();
        // Runs of one table.
        let run = match self.axis {
            None => 1,
            Some(axis) => {
                let dim = input.shape().get(axis);
                ensure!(dim == Some(&tables.len()), "input: dimension={dim:?}, {} are needed", tables.len());
                input.shape()[axis + 1..].iter().product()
            }
        };
        let ram = input.try_as_plain_ram()?;
        let output = bytes_by_threads(ram.as_bytes(), (self.to, input.shape()), run, |first, from, to| {
            let run = if tables.len() == 1 { to.len() } else { run };
            for (at, (from, to)) in from.chunks(run).zip(to.chunks_mut(run)).enumerate() {
                let table = &tables[(first + at) % tables.len()];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = table[usize::from(*from)]);
            }
        })?;
        Ok(tvec!(output.into_tvalue()))
    }
}

impl TypedOp for ByteTable {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [input] = inputs else { bail!("inputs: count={}, one is needed", inputs.len()) };
        ensure!(is_byte(input.datum_type), "input: datum_type={:?}, 8-bit integers are needed", input.datum_type);
        Ok(tvec!(self.to.fact(input.shape.clone())))
    }

    fn axes_mapping(&self, inputs: &[&TypedFact], outputs: &[&TypedFact]) -> TractResult<AxesMapping> {
        AxesMapping::natural(inputs, outputs)
    }

    fn change_axes(
        &self,
        model: &TypedModel,
        node: &TypedNode,
        _io: InOut,
        change: &AxisOp,
    ) -> TractResult<Option<AxisChangeConsequence>> {
        let Some(axis) = self.axis else {
            return Ok(Some(AxisChangeConsequence::new(model, node, None, change)));
        };
        let Some(axis) = change.transform_axis(axis) else { return Ok(None) };
        let op = ByteTable { axis: Some(axis), ..self.clone() };
        Ok(Some(AxisChangeConsequence::new(model, node, Some(Box::new(op)), change)))
    }

    as_op!();
}

/// Nodes that compute bytes of the bytes of one outlet, each by itself.
struct Steps<'a> {
    model: &'a TypedModel,
    /// Nodes in the order of their computation, without the quantising one.
    nodes: Vec<&'a TypedNode>,
    /// The bytes.
    from: Option<OutletId>,
    /// The axis along which constants differ, and its size.
    axis: Option<(usize, usize)>,
}

impl Steps<'_> {
    /// Adds the nodes that compute an outlet, and returns whether they are understood.
    fn add(&mut self, outlet: OutletId, left: usize) -> TractResult<bool> {
        let model = self.model;
        let (fact, node) = (model.outlet_fact(outlet)?, model.node(outlet.node));
        if let Some(constant) = &fact.konst {
            let mut dims = constant.shape().iter().copied().enumerate().filter(|(_, dim)| *dim != 1);
            let axis = dims.next();
            let fits = axis.is_none() || self.axis.is_none() || axis == self.axis;
            self.axis = self.axis.or(axis);
            return Ok(fits && dims.next().is_none() && constant.len() <= MOST_TABLES);
        }
        if self.nodes.iter().any(|known| known.id == node.id) {
            return Ok(true);
        }
        let usual = matches!(fact.datum_type, DatumType::F32 | DatumType::Bool) && node.outputs.len() == 1;
        if left == 0 || self.nodes.len() == MOST_STEPS || !usual {
            return Ok(false);
        }
        if node.op_is::<DequantizeLinearF32>() {
            if !self.add_bytes(node.inputs[0], left - 1)? {
                return Ok(false);
            }
        } else {
            if !(node.op_is::<ElementWiseOp>() || node.op_is::<TypedBinOp>() || node.op_is::<Iff>()) {
                return Ok(false);
            }
            for input in &node.inputs {
                if !self.add(*input, left - 1)? {
                    return Ok(false);
                }
            }
        }
        self.nodes.push(node);
        Ok(true)
    }

    /// Adds the tables that make an outlet of the bytes, and returns whether it is made of these.
    fn add_bytes(&mut self, outlet: OutletId, left: usize) -> TractResult<bool> {
        let node = self.model.node(outlet.node);
        let Some(table) = node.op_as::<ByteTable>() else {
            let are_bytes = is_byte(self.model.outlet_fact(outlet)?.datum_type);
            return Ok(are_bytes && *self.from.get_or_insert(outlet) == outlet);
        };
        if self.nodes.iter().any(|known| known.id == node.id) {
            return Ok(true);
        }
        let axis = table.axis.map(|axis| (axis, table.results.len() / BYTES));
        let fits = axis.is_none() || self.axis.is_none() || axis == self.axis;
        self.axis = self.axis.or(axis);
        let room = left > 0 && self.nodes.len() < MOST_STEPS;
        if !fits || !room || !self.add_bytes(node.inputs[0], left - 1)? {
            return Ok(false);
        }
        self.nodes.push(node);
        Ok(true)
    }

    /// Runs the nodes and `quantise` on all bytes.
    fn table(&self, from: OutletId, quantise: Box<dyn TypedOp>) -> TractResult<Option<ByteTable>> {
        let fact = self.model.outlet_fact(from)?;
        // Bytes are along one axis, tables along another.
        let mut shape: TVec<usize> = tvec!(1; fact.rank());
        let bytes_axis = usize::from(self.axis.is_some_and(|(axis, _)| axis == 0));
        if bytes_axis >= fact.rank() {
            return Ok(None);
        }
        shape[bytes_axis] = BYTES;
        if let Some((axis, dim)) = self.axis {
            if fact.shape.get(axis) != Some(&dim.to_dim()) {
                return Ok(None);
            }
            shape[axis] = dim;
        }
        if self.nodes.iter().any(|node| node.outputs[0].fact.shape != fact.shape) {
            return Ok(None);
        }
        let mut steps = TypedModel::default();
        let source = steps.add_source("bytes", fact.datum_type.fact(&*shape))?;
        let mut wires: HashMap<OutletId, OutletId> = [(from, source)].into_iter().collect();
        for node in &self.nodes {
            let mut inputs: TVec<OutletId> = tvec!();
            for input in &node.inputs {
                if let (None, Some(constant)) = (wires.get(input), &self.model.outlet_fact(*input)?.konst) {
                    let name = format!("{}.{}.constant", input.node, input.slot);
                    wires.insert(*input, steps.add_const(name, Arc::clone(constant))?);
                }
                inputs.push(*wires.get(input).context("a step before this one")?);
            }
            wires.insert(node.id.into(), steps.wire_node(&node.name, node.op.clone(), &inputs)?[0]);
        }
        let last = self.nodes.last().context("a step")?;
        let output = steps.wire_node("quantise", quantise, &[wires[&last.id.into()]])?;
        steps.select_output_outlets(&output)?;
        let mut bytes = memory::zero_tensor::<u8>("bytes", &shape)?;
        let tables = self.axis.map_or(1, |(_, dim)| dim);
        // All other axes have one index.
        let place =
            |table: usize, byte: usize| if bytes_axis == 1 { table * BYTES + byte } else { byte * tables + table };
        {
            let mut view = bytes.try_as_plain_ram_mut()?;
            let slice = view.as_slice_mut::<u8>()?;
            (0..tables * BYTES).for_each(|at| slice[place(at / BYTES, at % BYTES)] = (at % BYTES) as u8);
        }
        let input = if fact.datum_type == DatumType::I8 {
            memory::mapped_tensor("bytes", &bytes, |byte: u8| byte as i8)?
        } else {
            bytes
        };
        let found = steps.into_runnable()?.run(tvec!(input.into_tvalue()))?.remove(0);
        ensure!(*found.shape() == *shape, "bytes: shape={:?}, {shape:?} is needed", found.shape());
        let ram = found.try_as_plain_ram()?;
        let found_bytes = ram.as_bytes();
        let each = (0..tables * BYTES).map(|at| found_bytes[place(at / BYTES, at % BYTES)]);
        let results = Arc::new(memory::collected("tables", each)?);
        Ok(Some(ByteTable { results, axis: self.axis.map(|(axis, _)| axis), to: found.datum_type() }))
    }
}

/// Returns the table of a QuantizeLinear and the nodes before it, if there is one.
pub(super) fn of_quantiser(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    let quantise: Box<dyn TypedOp> = if let Some(op) = node.op_as::<Quantise>() {
        Box::new(op.clone())
    } else if let Some(op) = node.op_as::<ElementWiseOp>().and_then(OptQuantise::of) {
        Box::new(op)
    } else {
        return Ok(None);
    };
    let mut steps = Steps { model, nodes: vec![], from: None, axis: None };
    if !steps.add(node.inputs[0], MOST_STEPS)? {
        return Ok(None);
    }
    let Some(from) = steps.from else { return Ok(None) };
    // What the nodes refuse, they refuse when the model runs.
    let Some(op) = steps.table(from, quantise).ok().flatten() else { return Ok(None) };
    let mut patch = TypedModelPatch::new("a function of bytes");
    let is_identity = op.axis.is_none() && op.results.iter().enumerate().all(|(byte, to)| usize::from(*to) == byte);
    let same_type = model.outlet_fact(from)?.datum_type == op.to;
    let from = patch.tap_model(model, from)?;
    if is_identity && same_type && !model.outputs.contains(&node.id.into()) {
        patch.shunt_outside(model, node.id.into(), from)?;
        return Ok(Some(patch));
    }
    let wires = patch.wire_node(&node.name, op, &[from])?;
    patch.shunt_outside(model, node.id.into(), wires[0])?;
    Ok(Some(patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_core::prelude::multithread::{Executor, multithread_tract_scope};

    #[test]
    fn each_index_has_its_table() -> TractResult<()> {
        let results: Vec<u8> = (0..3 * BYTES).map(|at| (at * 7 + at / BYTES * 31) as u8).collect();
        for (shape, axis) in [
            (vec![2, 3, 700_001], Some(1)),
            (vec![2, 700_001, 3], Some(2)),
            (vec![3, 5], Some(0)),
            (vec![3, 700_001], None),
            (vec![2, 3, 0], Some(1)),
            (vec![], None),
        ] {
            let len: usize = shape.iter().product();
            let input = tensor1(&(0..len).map(|at| (at * 13) as u8 as i8).collect::<Vec<i8>>()).into_shape(&shape)?;
            let tables = if axis.is_some() { results.clone() } else { results[..BYTES].to_vec() };
            let op = ByteTable { results: Arc::new(tables), axis, to: DatumType::U8 };
            let run: usize = axis.map_or(1, |axis| shape[axis + 1..].iter().product());
            let table = |at: usize| if axis.is_some() { at / run % 3 } else { 0 };
            let want: Vec<u8> = (0..len).map(|at| results[table(at) * BYTES + at * 13 % BYTES]).collect();
            for executor in [Executor::SingleThread, Executor::multithread(3)] {
                let run = || op.eval_out_of_plan(tvec!(input.clone().into_tvalue()));
                let found = multithread_tract_scope(executor, run)?.context("an op of no state")?.remove(0);
                assert_eq!(found.shape(), &*shape);
                assert!(found.try_as_plain_ram()?.as_slice::<u8>()? == want, "{shape:?} {axis:?}");
            }
        }
        Ok(())
    }
}
