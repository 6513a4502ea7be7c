//! A sharder of the user's own as a placement policy, so that a coordinator's keyspaces can name it (A3).

use super::{Sharder, SharderError};
use crate::base::id::ShardId;
use crate::base::name::{NodeId, PartitionName};
use crate::placement::{
    NodeIndex, Policy, Preference, Problem, ProblemError, ShardIndex, Solution, by_preference, members,
};
use std::collections::{BTreeMap, BTreeSet};

/// Asks a new sharder each time, one for each number of replicas that shards want.
///
/// The sharder gets the nodes by name and the shards as partitions `s1`, `s2` …, each in order; so it comes
/// to the same result as long as it depends on nothing else. Its answer is a preference: rules, room and the
/// budget of moves hold as with the shipped policies.
pub struct BySharder<M> {
    name: &'static str,
    make: M,
}

impl<M, S> BySharder<M>
where
    M: Fn(u8) -> Result<S, SharderError>,
    S: Sharder,
{
    /// A policy of that name; `make` gets the number of replicas.
    pub fn new(name: &'static str, make: M) -> BySharder<M> {
        BySharder { name, make }
    }

    fn node_orders(&self, problem: &Problem) -> Result<NodeOrders, SharderError> {
        let members = members(problem);
        let index: BTreeMap<&NodeId, NodeIndex> =
            members.iter().map(|node| (&problem.nodes[*node as usize].name, *node)).collect();
        let nodes: Vec<NodeId> = index.keys().map(|name| (*name).clone()).collect();
        let mut order = vec![Vec::new(); problem.shard_count()];
        let wanted: BTreeSet<u8> =
            problem.replicas.iter().copied().filter(|replicas| *replicas > 0).collect();
        for replicas in wanted {
            let shards = (0..problem.shard_count()).filter(|shard| problem.replicas[*shard] == replicas);
            let shards: BTreeMap<PartitionName, usize> =
                shards.map(|shard| (partition(problem.shards[shard]), shard)).collect();
            let mut sharder = (self.make)(replicas)?;
            sharder.register_nodes(&nodes)?;
            sharder.register_partitions(&shards.keys().cloned().collect::<Vec<_>>())?;
            for (partition, shard) in shards {
                let told = sharder.nodes_of(&partition)?;
                order[shard] = told.iter().filter_map(|node| index.get(node).copied()).collect();
            }
        }
        Ok(NodeOrders { order, nodes: members.len() })
    }
}

#[expect(clippy::expect_used, reason = "`s` and a number is a name")]
fn partition(shard: ShardId) -> PartitionName {
    PartitionName::new(&shard.to_string()).expect("a name")
}

struct NodeOrders {
    order: Vec<Vec<NodeIndex>>,
    nodes: usize,
}

impl Preference for NodeOrders {
    fn first(&self, shard: ShardIndex, count: usize) -> Vec<NodeIndex> {
        self.order[shard as usize].iter().take(count).copied().collect()
    }

    fn nodes(&self) -> usize {
        self.nodes
    }
}

impl<M, S> Policy for BySharder<M>
where
    M: Fn(u8) -> Result<S, SharderError> + Send + Sync,
    S: Sharder,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        problem.check()?;
        let refuses = |why: SharderError| ProblemError::Sharder { policy: self.name, why: why.to_string() };
        by_preference(self.name, problem, &self.node_orders(problem).map_err(refuses)?)
    }
}
