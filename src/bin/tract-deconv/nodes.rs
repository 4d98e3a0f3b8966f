//! Profiles a run: the convolutions one by one, everything else by operator.

use crate::model::Ready;
use std::time::{Duration, Instant};
use tract_core::internal::*;

/// The least profiled runs, after one that is not profiled.
const FEWEST_RUNS: usize = 5;
const MOST_RUNS: usize = 1000;

/// The times of one engine's nodes, in milliseconds: medians over the profiled runs.
///
/// Nodes inside the bodies of loops and conditions count as the loop or condition.
pub struct Profile {
    /// The name, operator and time of each node.
    pub nodes: Vec<(String, String, f64)>,
}

impl Profile {
    /// Runs the model node by node for about `seconds`.
    pub fn take(ready: &Ready, inputs: &[Arc<Tensor>], seconds: f64) -> TractResult<Profile> {
        let model = ready.runnable.model();
        let mut state = ready.runnable.spawn()?;
        let mut times: Vec<Vec<f64>> = vec![vec![]; model.nodes().len()];
        let limit = Duration::from_secs_f64(seconds);
        let start = Instant::now();
        for run in 0..=MOST_RUNS {
            if run > FEWEST_RUNS && start.elapsed() >= limit {
                break;
            }
            let values = inputs.iter().map(|input| input.clone().into_tvalue()).collect();
            state.run_plan_with_eval(values, |context, op_state, node, inputs| {
                let from = Instant::now();
                let outputs = tract_core::plan::eval(context, op_state, node, inputs);
                if run > 0 {
                    times[node.id].push(from.elapsed().as_secs_f64() * 1e3);
                }
                outputs
            })?;
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied()
        };
        let nodes = model.nodes().iter().zip(&mut times);
        Ok(Profile {
            nodes: nodes
                .filter_map(|(node, times)| Some((node.name.clone(), node.op.name().into_owned(), median(times)?)))
                .collect(),
        })
    }

    /// Returns the time of all nodes together.
    pub fn total(&self) -> f64 {
        self.nodes.iter().map(|(_, _, ms)| ms).sum()
    }

    /// Returns the time of each convolution, over all nodes that it was lowered to.
    ///
    /// `None` stands for a convolution that this engine does not have.
    pub fn of(&self, deconvolutions: &[String]) -> Vec<Option<f64>> {
        let mut times = vec![None; deconvolutions.len()];
        for (name, _, ms) in &self.nodes {
            if let Some(ix) = owner(name, deconvolutions) {
                *times[ix].get_or_insert(0.0) += ms;
            }
        }
        times
    }

    /// Returns the time by operator, in no order. All convolutions have one name.
    pub fn operators(&self, deconvolutions: &[String]) -> Vec<(String, f64)> {
        let mut operators: Vec<(String, f64)> = vec![];
        for (name, op, ms) in &self.nodes {
            let op = if owner(name, deconvolutions).is_some() { "deconvolutions" } else { op };
            match operators.iter_mut().find(|(known, _)| known == op) {
                Some((_, sum)) => *sum += ms,
                None => operators.push((op.to_string(), *ms)),
            }
        }
        operators
    }
}

/// Returns the index of the convolution that a node was lowered from.
///
/// tract names such nodes `NAME` and `NAME.part`.
fn owner(node: &str, deconvolutions: &[String]) -> Option<usize> {
    let owns = |name: &str| node.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let owners = deconvolutions.iter().enumerate().filter(|(_, name)| owns(name));
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
        assert_eq!(operators, vec![("Conv".to_string(), 9.0), ("deconvolutions".to_string(), 6.0)]);
        assert_eq!(profile.total(), 15.0);
    }
}
