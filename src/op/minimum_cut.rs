//! The minimum cut of a graph, by the algorithm of Edmonds and Karp.

use crate::memory::{collected, reserve, reserved};
use tract_core::internal::TractResult;

/// A directed graph whose edges have capacities.
pub(super) struct Capacities {
    /// The last edge that leaves each node.
    last: Vec<Option<usize>>,
    /// The edges. The opposite of each is the one before or behind it.
    edges: Vec<Edge>,
}

struct Edge {
    to: usize,
    /// What is left of the capacity.
    left: u64,
    /// The edge before, of those that leave the same node.
    before: Option<usize>,
}

impl Capacities {
    /// Creates a graph without edges.
    ///
    /// # Errors
    /// Failure to allocate memory, as of the other functions.
    pub fn new(nodes: usize) -> TractResult<Capacities> {
        Ok(Capacities { last: collected(WHAT, (0..nodes).map(|_| None))?, edges: vec![] })
    }

    /// Adds an edge.
    pub fn add(&mut self, from: usize, to: usize, capacity: u64) -> TractResult<()> {
        self.add_pair([from, to], [capacity, 0])
    }

    /// Adds an edge in each direction.
    pub fn add_both(&mut self, a: usize, b: usize, capacity: u64) -> TractResult<()> {
        self.add_pair([a, b], [capacity; 2])
    }

    fn add_pair(&mut self, ends: [usize; 2], capacities: [u64; 2]) -> TractResult<()> {
        if self.edges.len() + 2 > self.edges.capacity() {
            let more = 2 * self.edges.len() + 64;
            reserve(WHAT, &mut self.edges, more)?;
        }
        for (i, left) in capacities.into_iter().enumerate() {
            let before = self.last[ends[i]].replace(self.edges.len());
            self.edges.push(Edge { to: ends[1 - i], left, before });
        }
        Ok(())
    }

    /// Separates two nodes by edges of the least capacity in all. Returns which nodes are on the side
    /// of `to`. Of several such cuts, it is the one with the fewest nodes there.
    pub fn minimum_cut(mut self, from: usize, to: usize) -> TractResult<Vec<bool>> {
        let nodes = self.last.len();
        let mut reaches = reserved(WHAT, nodes)?;
        let mut next = reserved(WHAT, nodes)?;
        let mut open = reserved(WHAT, nodes)?;
        loop {
            self.find_paths(to, &mut reaches, &mut next, &mut open);
            if !reaches[from] {
                return Ok(reaches);
            }
            let mut flow = u64::MAX;
            self.along(from, &next, |edges, edge| flow = flow.min(edges[edge].left));
            self.along(from, &next, |edges, edge| {
                edges[edge].left -= flow;
                edges[edge ^ 1].left = edges[edge ^ 1].left.saturating_add(flow);
            });
        }
    }

    /// Calls a function for each edge of the path from a node.
    fn along(&mut self, mut node: usize, next: &[Option<usize>], mut visit: impl FnMut(&mut [Edge], usize)) {
        while let Some(edge) = next[node] {
            visit(&mut self.edges, edge);
            node = self.edges[edge].to;
        }
    }

    /// Finds which nodes reach `to` by edges with capacity left, and the first edge of a shortest path
    /// from each. `open` is scratch.
    fn find_paths(&self, to: usize, reaches: &mut Vec<bool>, next: &mut Vec<Option<usize>>, open: &mut Vec<usize>) {
        let nodes = self.last.len();
        reaches.clear();
        reaches.resize(nodes, false);
        next.clear();
        next.resize(nodes, None);
        open.clear();
        open.push(to);
        reaches[to] = true;
        let mut at = 0;
        while let Some(node) = open.get(at).copied() {
            at += 1;
            let mut leaving = self.last[node];
            while let Some(edge) = leaving {
                let Edge { to: other, before, .. } = self.edges[edge];
                if !reaches[other] && self.edges[edge ^ 1].left > 0 {
                    reaches[other] = true;
                    next[other] = Some(edge ^ 1);
                    open.push(other);
                }
                leaving = before;
            }
        }
    }
}

/// Begins the messages of errors.
const WHAT: &str = "formats of layers";

#[cfg(test)]
mod tests {
    use super::*;

    /// The least capacity of the edges that leave the side of node 0, over all sides.
    fn least(nodes: usize, edges: &[(usize, usize, u64)], keeps: impl Fn(usize) -> bool) -> u64 {
        let crosses = |side: usize, a: usize, b: usize| side >> a & 1 == 0 && side >> b & 1 == 1;
        let sides = (0..1usize << nodes).filter(|side| side & 1 == 0 && side >> 1 & 1 == 1 && keeps(*side));
        let cut = |side| edges.iter().filter(|(a, b, _)| crosses(side, *a, *b)).map(|(_, _, capacity)| capacity).sum();
        sides.map(cut).min().expect("a side")
    }

    #[test]
    fn no_other_cut_is_smaller() -> TractResult<()> {
        let mut state = 1u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        for nodes in 2..9 {
            for _ in 0..50 {
                let mut graph = Capacities::new(nodes)?;
                let mut edges = vec![];
                for _ in 0..below(3 * nodes as u32) {
                    let (a, b) = (below(nodes as u32) as usize, below(nodes as u32) as usize);
                    let capacity = u64::from(below(10));
                    edges.push((a, b, capacity));
                    if below(2) == 0 {
                        graph.add(a, b, capacity)?;
                    } else {
                        graph.add_both(a, b, capacity)?;
                        edges.push((b, a, capacity));
                    }
                }
                let cut = graph.minimum_cut(0, 1)?;
                let side = cut.iter().enumerate().map(|(node, is_there)| usize::from(*is_there) << node).sum::<usize>();
                let smallest = least(nodes, &edges, |_| true);
                assert_eq!(least(nodes, &edges, |other| other == side), smallest, "{edges:?}");
                let fewer = |other: usize| other & side != side;
                let others = (0..1usize << nodes).any(|other| other & 1 == 0 && other >> 1 & 1 == 1 && fewer(other));
                assert!(!others || least(nodes, &edges, fewer) > smallest, "{edges:?}");
            }
        }
        Ok(())
    }
}
