//! Profiles a run: the convolutions one by one, everything else by operator.

use crate::model::Ready;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tract_core::internal::*;
use tract_deconv::op::{IfState, is_of_plugin};

/// What all convolutions are called among the operators.
pub const CONVOLUTIONS: &str = "convolutions";
/// What the names of the plugin's other operators end in.
const OF_PLUGIN: &str = " (plugin)";

/// The least profiled runs, after one that is not profiled.
const FEWEST_RUNS: usize = 5;
const MOST_RUNS: usize = 1000;

/// The times of one engine's nodes, in milliseconds: medians over the profiled runs.
///
/// Nodes inside the body of a loop, and inside a condition of tract's own, count as the loop or
/// condition. A condition of this crate's has the time that its branches' nodes leave.
pub struct Profile {
    /// The name, operator and time of each node.
    pub nodes: Vec<(String, String, f64)>,
}

/// The times of one node, one per run.
struct Times {
    name: String,
    operator: String,
    ms: Vec<f64>,
}

/// Evaluates nodes and records their times.
#[derive(Default)]
struct Clock {
    /// The nodes of each model: that of the file has the prefix `""`.
    times: HashMap<String, HashMap<usize, Times>>,
    /// The sum of all times so far.
    spent: f64,
    recording: bool,
}

impl Clock {
    /// Evaluates a node of the model whose nodes have this prefix in reports.
    fn eval(
        &mut self,
        prefix: &str,
        context: &EvalContext,
        op_state: Option<&mut (dyn OpState + 'static)>,
        node: &TypedNode,
        inputs: TVec<TValue>,
    ) -> TractResult<TVec<TValue>> {
        let (from, before) = (Instant::now(), self.spent);
        let outputs = match op_state {
            Some(state) if state.is::<IfState>() => {
                let state = state.downcast_mut::<IfState>().context("the state of a condition")?;
                let mut branch = String::new();
                state.eval_nodes(context, inputs, &mut |label, context, op_state, node_of_branch, inputs| {
                    if branch.is_empty() {
                        branch = format!("{prefix}{}/{label}", node.name);
                    }
                    self.eval(&branch, context, op_state, node_of_branch, inputs)
                })?
            }
            op_state => tract_core::plan::eval(context, op_state, node, inputs)?,
        };
        // What the nodes of a branch took is theirs.
        let own = from.elapsed().as_secs_f64() * 1e3 - (self.spent - before);
        self.spent += own;
        if self.recording {
            if !self.times.contains_key(prefix) {
                self.times.insert(prefix.to_string(), HashMap::new());
            }
            let nodes = self.times.get_mut(prefix).context("the times of a model")?;
            let times = nodes.entry(node.id).or_insert_with(|| Times {
                name: format!("{prefix}{}", node.name),
                operator: operator(node),
                ms: vec![],
            });
            times.ms.push(own);
        }
        Ok(outputs)
    }
}

impl Profile {
    /// Runs the model node by node for about `seconds`.
    pub fn take(ready: &Ready, inputs: &[Arc<Tensor>], seconds: f64) -> TractResult<Profile> {
        let mut state = ready.runnable.spawn()?;
        let mut clock = Clock::default();
        let limit = Duration::from_secs_f64(seconds);
        let start = Instant::now();
        for run in 0..=MOST_RUNS {
            if run > FEWEST_RUNS && start.elapsed() >= limit {
                break;
            }
            clock.recording = run > 0;
            let values = inputs.iter().map(|input| input.clone().into_tvalue()).collect();
            state.run_plan_with_eval(values, |context, op_state, node, inputs| {
                clock.eval("", context, op_state, node, inputs)
            })?;
        }
        let nodes = clock.times.into_values().flat_map(HashMap::into_values);
        let median = |Times { name, operator, mut ms }: Times| {
            ms.sort_by(f64::total_cmp);
            Some((name, operator, *ms.get(ms.len() / 2)?))
        };
        Ok(Profile { nodes: nodes.filter_map(median).collect() })
    }

    /// Returns the time of all nodes together.
    pub fn total(&self) -> f64 {
        self.nodes.iter().map(|(_, _, ms)| ms).sum()
    }

    /// Returns the time of each convolution, over all nodes that it was lowered to.
    ///
    /// `None` stands for a convolution that this engine does not have.
    pub fn of(&self, convolutions: &[String]) -> Vec<Option<f64>> {
        let mut times = vec![None; convolutions.len()];
        for (name, _, ms) in &self.nodes {
            if let Some(ix) = owner(name, convolutions) {
                *times[ix].get_or_insert(0.0) += ms;
            }
        }
        times
    }

    /// Returns the time by operator, in no order. All convolutions have one name.
    pub fn operators(&self, convolutions: &[String]) -> Vec<(String, f64)> {
        let mut operators: Vec<(String, f64)> = vec![];
        for (name, op, ms) in &self.nodes {
            let op = if owner(name, convolutions).is_some() { CONVOLUTIONS } else { op };
            match operators.iter_mut().find(|(known, _)| known == op) {
                Some((_, sum)) => *sum += ms,
                None => operators.push((op.to_string(), *ms)),
            }
        }
        operators
    }
}

fn operator(node: &TypedNode) -> String {
    let of_plugin = if is_of_plugin(&*node.op) { OF_PLUGIN } else { "" };
    format!("{}{of_plugin}", node.op.name())
}

/// Returns whether an operator of a profile is tract's, and computes something.
pub fn is_of_tract(operator: &str) -> bool {
    ![CONVOLUTIONS, "Source", "Const"].contains(&operator) && !operator.ends_with(OF_PLUGIN)
}

/// Returns the index of the convolution that a node was lowered from.
///
/// tract names such nodes `NAME` and `NAME.part`.
fn owner(node: &str, convolutions: &[String]) -> Option<usize> {
    let owns = |name: &str| node.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let owners = convolutions.iter().enumerate().filter(|(_, name)| owns(name));
    owners.max_by_key(|(_, name)| name.len()).map(|(ix, _)| ix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowered_nodes_belong_to_the_longest_name() {
        let names = ["up".to_string(), "up.2".to_string()];
        assert_eq!(owner("up", &names), Some(0));
        assert_eq!(owner("up.einsum", &names), Some(0));
        assert_eq!(owner("up.2.einsum", &names), Some(1));
        assert_eq!(owner("upper", &names), None);
    }

    #[test]
    fn operators_add_up_to_the_total() {
        let node = |name: &str, op: &str, ms| (name.to_string(), op.to_string(), ms);
        let profile = Profile {
            nodes: vec![
                node("a", "Conv", 1.0),
                node("up.x", "Conv", 2.0),
                node("up.y", "Sum", 4.0),
                node("b", "Conv", 8.0),
            ],
        };
        let names = ["up".to_string(), "gone".to_string()];
        assert_eq!(profile.of(&names), vec![Some(6.0), None]);
        let operators = profile.operators(&names);
        assert_eq!(operators, vec![("Conv".to_string(), 9.0), ("convolutions".to_string(), 6.0)]);
        assert_eq!(profile.total(), 15.0);
    }
}
