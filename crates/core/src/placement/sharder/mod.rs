//! The sharder: takes partitions and nodes, and gives the nodes of each partition (A3).
//!
//! Partitions and nodes come and go, and at any time a caller may ask for a node's partitions and for a partition's
//! nodes. [`Sharder`] is the contract and assumes neither hashing nor tables, so users can bring their
//! own. [`PolicySharder`] is ours: lookup tables (A7) kept by any placement [`Policy`].
//!
//! - (sa) all of a call or nothing of it: one bad name, and the tables are as they were;
//! - (sb) a duplicate and an unknown name are errors that name it;
//! - (sc) the two lookups always agree: a partition is on a node if and only if the node is one of its;
//! - (sd) every change of nodes or partitions rebuilds the tables, which alone say who
//!   has what; they can be listed and drawn;
//! - (se) what could not be placed is kept, with the reason (A2).
//!
//! Not here: moving anything. The tables say at once who will serve what, so that nodes can prepare (A8). The
//! coordinator keeps no such tables, because its maps have states and epochs. [`PolicySharder`] is for services that
//! only look up; a user's own sharder decides for the coordinator as [`BySharder`].

mod by_sharder;

pub use by_sharder::BySharder;

use crate::base::id::ShardId;
use crate::base::name::{NodeId, PartitionName};
use crate::limits;
use crate::placement::{NodeSpec, Placement, Policy, Problem, ProblemError, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Decides which node has which partition.
pub trait Sharder {
    /// Adds nodes, all of them or none.
    fn register_nodes(&mut self, nodes: &[NodeId]) -> Result<(), SharderError>;

    /// Removes nodes; what they had is placed on others.
    fn unregister_nodes(&mut self, nodes: &[NodeId]) -> Result<(), SharderError>;

    /// Adds partitions, all of them or none.
    fn register_partitions(&mut self, partitions: &[PartitionName]) -> Result<(), SharderError>;

    /// Removes partitions, all of them or none.
    fn unregister_partitions(&mut self, partitions: &[PartitionName]) -> Result<(), SharderError>;

    /// The partitions of which the node has a replica, in the order of their names.
    fn partitions_of(&self, node: &NodeId) -> Result<Vec<PartitionName>, SharderError>;

    /// The nodes of a partition, the leader first.
    fn nodes_of(&self, partition: &PartitionName) -> Result<Vec<NodeId>, SharderError>;
}

/// Why a call changed nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SharderError {
    /// Registered already, or named twice in one call.
    #[error("node {node} is registered already: unregister it first, or use another name")]
    DuplicateNode {
        /// The node that is registered already.
        node: NodeId,
    },
    /// Not registered, or named twice in one call to unregister.
    #[error("node {node} is not registered: register it first")]
    UnknownNode {
        /// The node that is not registered.
        node: NodeId,
    },
    /// Registered already, or named twice in one call.
    #[error("partition {partition} is registered already: unregister it first, or use another id")]
    DuplicatePartition {
        /// The partition that is registered already.
        partition: PartitionName,
    },
    /// Not registered, or named twice in one call to unregister.
    #[error("partition {partition} is not registered: register it first")]
    UnknownPartition {
        /// The partition that is not registered.
        partition: PartitionName,
    },
    /// A number of replicas that cannot be.
    #[error("{replicas} replicas cannot be: ask for 1 to {max}", max = limits::REPLICAS)]
    Replicas {
        /// The number that was asked for, of each partition.
        replicas: u8,
    },
    /// The policy refuses the problem that the sharder made of its tables.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

/// A sharder that asks a placement policy and remembers the answer.
pub struct PolicySharder {
    policy: Box<dyn Policy>,
    replicas: u8,
    seed: u64,
    tables: Tables,
}

/// Both lookups. Replaced as a whole, so a call that fails leaves no trace.
#[derive(Debug, Clone, Default)]
struct Tables {
    nodes: BTreeMap<NodeId, BTreeSet<PartitionName>>,
    partitions: BTreeMap<PartitionName, Row>,
    next: ShardId,
    unplaced: Vec<String>,
}

#[derive(Debug, Clone)]
struct Row {
    id: ShardId,
    nodes: Vec<NodeId>,
}

impl PolicySharder {
    /// A sharder without nodes or partitions, that keeps so many replicas of each partition.
    pub fn new(policy: Box<dyn Policy>, replicas: u8, seed: u64) -> Result<PolicySharder, SharderError> {
        if replicas == 0 || usize::from(replicas) > limits::REPLICAS {
            return Err(SharderError::Replicas { replicas });
        }
        Ok(PolicySharder { policy, replicas, seed, tables: Tables::default() })
    }

    /// Every partition with its nodes, in the order of names.
    pub fn list(&self) -> impl Iterator<Item = (&PartitionName, &[NodeId])> {
        self.tables.partitions.iter().map(|(partition, row)| (partition, row.nodes.as_slice()))
    }

    /// What could not be placed, one sentence each; beyond the first few it is only counted.
    pub fn unplaced(&self) -> &[String] {
        &self.tables.unplaced
    }

    /// Asks the policy again though nothing has changed: work stealing's routine run (A6).
    pub fn rebalance(&mut self) -> Result<(), SharderError> {
        self.replace(self.tables.clone(), &[])
    }

    /// Places everything anew and replaces the tables. `leaving` nodes are in no table any more.
    fn replace(&mut self, mut tables: Tables, leaving: &[NodeId]) -> Result<(), SharderError> {
        let problem = self.problem(&tables, leaving);
        let solution = self.policy.place(&problem)?;
        tables.nodes.values_mut().for_each(BTreeSet::clear);
        for ((partition, row), placed) in tables.partitions.iter_mut().zip(solution.placement.iter()) {
            row.nodes = placed.iter().map(|node| problem.nodes[*node as usize].name.clone()).collect();
            for node in &row.nodes {
                if let Some(held) = tables.nodes.get_mut(node) {
                    held.insert(partition.clone());
                }
            }
        }
        tables.unplaced = solution.complaints(&problem);
        self.tables = tables;
        Ok(())
    }

    fn problem(&self, tables: &Tables, leaving: &[NodeId]) -> Problem {
        let stay = tables.nodes.keys().zip(0..).map(|(name, at)| NodeSpec::new(name.clone(), at));
        let gone = leaving
            .iter()
            .map(|name| NodeSpec { standing: Standing::Gone, ..NodeSpec::new(name.clone(), u32::MAX) });
        let nodes: Vec<NodeSpec> = stay.chain(gone).collect();
        let index: BTreeMap<&NodeId, u32> = nodes.iter().map(|node| &node.name).zip(0..).collect();
        let on = |row: &Row| -> Vec<u32> {
            row.nodes.iter().filter_map(|node| index.get(node).copied()).collect()
        };
        let current: Placement = tables.partitions.values().map(on).collect();
        let hash = |name: &PartitionName| {
            crate::keyspace::hash::HashFunction::Xxh3_64.scatter(name.as_str().as_bytes())
        };
        let hashes = tables.partitions.keys().map(hash).collect();
        let shards = tables.partitions.values().map(|row| row.id).collect();
        let replicas = vec![self.replicas; tables.partitions.len()];
        Problem { current, hashes, shards, seed: self.seed, ..Problem::new(nodes, replicas) }
    }
}

impl Sharder for PolicySharder {
    fn register_nodes(&mut self, nodes: &[NodeId]) -> Result<(), SharderError> {
        let mut tables = self.tables.clone();
        for node in nodes {
            if tables.nodes.insert(node.clone(), BTreeSet::new()).is_some() {
                return Err(SharderError::DuplicateNode { node: node.clone() });
            }
        }
        self.replace(tables, &[])
    }

    fn unregister_nodes(&mut self, nodes: &[NodeId]) -> Result<(), SharderError> {
        let mut tables = self.tables.clone();
        for node in nodes {
            if tables.nodes.remove(node).is_none() {
                return Err(SharderError::UnknownNode { node: node.clone() });
            }
        }
        self.replace(tables, nodes)
    }

    fn register_partitions(&mut self, partitions: &[PartitionName]) -> Result<(), SharderError> {
        let mut tables = self.tables.clone();
        for partition in partitions {
            let row = Row { id: tables.next, nodes: Vec::new() };
            tables.next = tables.next.next();
            if tables.partitions.insert(partition.clone(), row).is_some() {
                return Err(SharderError::DuplicatePartition { partition: partition.clone() });
            }
        }
        self.replace(tables, &[])
    }

    fn unregister_partitions(&mut self, partitions: &[PartitionName]) -> Result<(), SharderError> {
        let mut tables = self.tables.clone();
        for partition in partitions {
            if tables.partitions.remove(partition).is_none() {
                return Err(SharderError::UnknownPartition { partition: partition.clone() });
            }
        }
        self.replace(tables, &[])
    }

    fn partitions_of(&self, node: &NodeId) -> Result<Vec<PartitionName>, SharderError> {
        let unknown = || SharderError::UnknownNode { node: node.clone() };
        Ok(self.tables.nodes.get(node).ok_or_else(unknown)?.iter().cloned().collect())
    }

    fn nodes_of(&self, partition: &PartitionName) -> Result<Vec<NodeId>, SharderError> {
        let unknown = || SharderError::UnknownPartition { partition: partition.clone() };
        Ok(self.tables.partitions.get(partition).ok_or_else(unknown)?.nodes.clone())
    }
}

impl fmt::Display for PolicySharder {
    /// A drawing for people: a line for each node, a column for each partition in the order of names; the
    /// digit is the replica's number, the last column their count.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.tables.nodes.keys().map(|node| node.as_str().len()).max().unwrap_or(0);
        for (node, held) in &self.tables.nodes {
            write!(f, "{node:width$} ")?;
            for row in self.tables.partitions.values() {
                match row.nodes.iter().position(|other| other == node) {
                    Some(replica) => {
                        write!(f, "{}", char::from_digit(replica as u32 % 36, 36).unwrap_or('+'))?
                    }
                    None => f.write_str("·")?,
                }
            }
            writeln!(f, " {}", held.len())?;
        }
        self.tables.unplaced.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests;
