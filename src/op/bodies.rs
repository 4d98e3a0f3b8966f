//! The models inside nodes: bodies of loops and branches of conditions.

use super::{DynamicFilterDeconv, GroupedDeconv, If, OptGroupedDeconv, OptIf, OptQuantisedDeconv, QuantisedDeconv};
use tract_core::internal::*;
use tract_core::ops::logic::IfThenElse;
use tract_core::ops::scan::{OptScan, Scan};
use tract_core::ops::submodel::SubmodelOp;

/// Visits the nodes of a model and of the models inside them, each with its name in reports:
/// [`Explanation::name`](crate::Explanation::name).
///
/// # Errors
/// The nodes have no evaluation order, and the errors of `visit`.
pub(crate) fn for_each_node(
    prefix: &str,
    model: &TypedModel,
    visit: &mut impl FnMut(&str, &TypedModel, &TypedNode) -> TractResult<()>,
) -> TractResult<()> {
    for id in model.eval_order()? {
        let node = model.node(id);
        let name = format!("{prefix}{}", node.name);
        visit(&name, model, node)?;
        for (label, body) in bodies(node) {
            for_each_node(&format!("{name}/{label}"), body, visit)?;
        }
    }
    Ok(())
}

/// Returns the models inside a node, each with its part of the name.
fn bodies(node: &TypedNode) -> TVec<(&'static str, &TypedModel)> {
    if let Some(op) = node.op_as::<Scan>() {
        tvec!(("", &op.body))
    } else if let Some(op) = node.op_as::<OptScan>() {
        tvec!(("", op.plan.model()))
    } else if let Some(op) = node.op_as::<If>() {
        op.bodies()
    } else if let Some(op) = node.op_as::<OptIf>() {
        op.bodies()
    } else if let Some(op) = node.op_as::<IfThenElse>() {
        tvec!(("then/", &op.then_body), ("else/", &op.else_body))
    } else if let Some(op) = node.op_as::<SubmodelOp>() {
        tvec!(("", op.model()))
    } else {
        tvec!()
    }
}

/// Returns the models inside a node that is not optimised yet, to be changed.
///
/// Decluttering the model declutters bodies of loops and branches again.
pub(crate) fn bodies_mut(node: &mut TypedNode) -> TVec<&mut TypedModel> {
    if node.op_is::<Scan>() {
        node.op_as_mut::<Scan>()
            .into_iter()
            .map(|op| {
                op.decluttered = false;
                &mut op.body
            })
            .collect()
    } else if node.op_is::<If>() {
        node.op_as_mut::<If>().map(If::bodies_mut).unwrap_or_default()
    } else if node.op_is::<IfThenElse>() {
        let bodies = node.op_as_mut::<IfThenElse>().map(|op| tvec!(&mut op.then_body, &mut op.else_body));
        bodies.unwrap_or_default()
    } else {
        let inner = node.op_as_mut::<SubmodelOp>().and_then(|op| op.model.downcast_mut::<TypedModel>());
        inner.into_iter().collect()
    }
}

/// Returns whether a model holds a layer of this crate, at any depth.
pub(crate) fn holds_layers(model: &TypedModel) -> bool {
    model.nodes.iter().any(|node| {
        node.op_is::<GroupedDeconv>()
            || node.op_is::<DynamicFilterDeconv>()
            || node.op_is::<OptGroupedDeconv>()
            || node.op_is::<QuantisedDeconv>()
            || node.op_is::<OptQuantisedDeconv>()
            || bodies(node).iter().any(|(_, body)| holds_layers(body))
    })
}

/// Returns this crate's op for a condition if a branch holds a layer of this crate, or else tract's.
///
/// # Errors
/// Fails if outputs of the branches differ in number, type or shape.
pub(crate) fn condition(op: IfThenElse) -> TractResult<Box<dyn TypedOp>> {
    let ours = holds_layers(&op.then_body) || holds_layers(&op.else_body);
    Ok(if ours { Box::new(If::of(op)?) } else { Box::new(op) })
}
