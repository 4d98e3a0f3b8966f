//! The minimum cut of a graph, by the algorithm of Edmonds and Karp.

use std::collections::VecDeque;

/// A directed graph whose edges have capacities.
pub(super) struct Capacities {
    /// The edges that leave each node.
    edges: Vec<Vec<Edge>>,
}

#[derive(Clone)]
struct Edge {
    to: usize,
    /// What is left of the capacity.
    left: u64,
    /// The index of the opposite edge, among those of `to`.
    opposite: usize,
}

impl Capacities {
    pub fn new(nodes: usize) -> Capacities {
        Capacities { edges: vec![vec![]; nodes] }
    }

    /// Adds an edge.
    pub fn add(&mut self, from: usize, to: usize, capacity: u64) {
        self.add_pair([from, to], [capacity, 0]);
    }

    /// Adds an edge in each direction.
    pub fn add_both(&mut self, a: usize, b: usize, capacity: u64) {
        self.add_pair([a, b], [capacity; 2]);
    }

    fn add_pair(&mut self, [a, b]: [usize; 2], [to_b, to_a]: [u64; 2]) {
        if a != b {
            let (at_a, at_b) = (self.edges[a].len(), self.edges[b].len());
            self.edges[a].push(Edge { to: b, left: to_b, opposite: at_b });
            self.edges[b].push(Edge { to: a, left: to_a, opposite: at_a });
        }
    }

    /// Separates two nodes by edges of the least capacity in all. Returns which nodes are on the side
    /// of `to`. Of several such cuts, it is the one with the fewest nodes there.
    pub fn minimum_cut(mut self, from: usize, to: usize) -> Vec<bool> {
        loop {
            let (reaches, next) = self.shortest_paths(to);
            if !reaches[from] {
                return reaches;
            }
            let mut path = vec![];
            let mut node = from;
            while let Some(edge) = next[node] {
                path.push((node, edge));
                node = self.edges[node][edge].to;
            }
            let flow = path.iter().map(|(node, edge)| self.edges[*node][*edge].left).min().unwrap_or(0);
            for (node, edge) in path {
                let Edge { to, left, opposite } = &mut self.edges[node][edge];
                *left -= flow;
                let (to, opposite) = (*to, *opposite);
                let back = &mut self.edges[to][opposite].left;
                *back = back.saturating_add(flow);
            }
        }
    }

    /// Returns which nodes reach `to` by edges with capacity left, and the first edge of a shortest path
    /// from each.
    fn shortest_paths(&self, to: usize) -> (Vec<bool>, Vec<Option<usize>>) {
        let (mut reaches, mut next) = (vec![false; self.edges.len()], vec![None; self.edges.len()]);
        let mut open = VecDeque::from([to]);
        reaches[to] = true;
        while let Some(node) = open.pop_front() {
            for edge in &self.edges[node] {
                let other = edge.to;
                if !reaches[other] && self.edges[other][edge.opposite].left > 0 {
                    reaches[other] = true;
                    next[other] = Some(edge.opposite);
                    open.push_back(other);
                }
            }
        }
        (reaches, next)
    }
}

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
    fn no_other_cut_is_smaller() {
        let mut state = 1u32;
        let mut below = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        for nodes in 2..9 {
            for _ in 0..50 {
                let mut graph = Capacities::new(nodes);
                let mut edges = vec![];
                for _ in 0..below(3 * nodes as u32) {
                    let (a, b) = (below(nodes as u32) as usize, below(nodes as u32) as usize);
                    let capacity = u64::from(below(10));
                    edges.push((a, b, capacity));
                    if below(2) == 0 {
                        graph.add(a, b, capacity);
                    } else {
                        graph.add_both(a, b, capacity);
                        edges.push((b, a, capacity));
                    }
                }
                let cut = graph.minimum_cut(0, 1);
                let side = cut.iter().enumerate().map(|(node, is_there)| usize::from(*is_there) << node).sum::<usize>();
                let smallest = least(nodes, &edges, |_| true);
                assert_eq!(least(nodes, &edges, |other| other == side), smallest, "{edges:?}");
                let fewer = |other: usize| other & side != side;
                let others = (0..1usize << nodes).any(|other| other & 1 == 0 && other >> 1 & 1 == 1 && fewer(other));
                assert!(!others || least(nodes, &edges, fewer) > smallest, "{edges:?}");
            }
        }
    }
}
