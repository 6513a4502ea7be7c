//! Which process believes to own which key of the exclusive keyspaces, at every true instant.
//!
//! A belief begins only when something happens at a worker, and ends then or with its lease. So it is enough to
//! look whenever a worker's belief is made anew, with the true instant at which its own clock will end it.

use super::Finding;
use crate::clock::True;
use crate::model::{KEYS, KeyAt};
use partage_core::base::id::{Epoch, ShardId};

/// One key that a process believes to own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The key that the process believes to own.
    pub key: KeyAt,
    /// The epoch under which it believes so.
    pub epoch: Epoch,
    /// The shard by which it believes so.
    pub shard: ShardId,
}

#[derive(Debug, Clone, Default)]
struct Believer {
    process: u32,
    claims: Vec<Option<Claim>>,
    until: True,
}

/// What every process believes to own, and until when.
#[derive(Debug)]
pub struct Ownership {
    nodes: Vec<Believer>,
    /// The last process that owned a key, and how many did before it.
    last: Vec<(Option<(usize, u32)>, u64)>,
}

/// Keyspaces that there is room for.
const SPACES: usize = 7;

fn index(key: KeyAt) -> usize {
    key.keyspace * KEYS + key.key
}

impl Ownership {
    /// So many nodes, of which none owns a key.
    pub fn new(nodes: usize) -> Ownership {
        Ownership {
            nodes: vec![Believer { claims: vec![None; SPACES * KEYS], ..Believer::default() }; nodes],
            last: vec![(None, 0); SPACES * KEYS],
        }
    }

    /// O1: nobody else believes to own any of `claims` at `now`.
    pub fn check(&self, now: True, node: usize, claims: &[Claim]) -> Vec<Finding> {
        claims.iter().flat_map(|claim| self.others(now, node, *claim)).collect()
    }

    fn others(&self, now: True, node: usize, claim: Claim) -> Vec<Finding> {
        let others = self.nodes.iter().enumerate().filter(|(at, other)| *at != node && other.until > now);
        let both = others.filter_map(|(at, other)| other.claims[index(claim.key)].map(|held| (at, held)));
        both.map(|(at, held)| {
            let (mine, theirs) =
                (format!("node-{node} under {}", claim.epoch), format!("node-{at} under {}", held.epoch));
            (
                "O1",
                format!(
                    "{:?} is owned by {mine} ({}) and by {theirs} ({})",
                    claim.key, claim.shard, held.shard
                ),
            )
        })
        .collect()
    }

    /// A claim of another node to `key` at `now` under an epoch before `epoch`.
    pub fn owner_before(&self, now: True, node: usize, key: KeyAt, epoch: Epoch) -> Option<Claim> {
        let others = self.nodes.iter().enumerate().filter(|(at, other)| *at != node && other.until > now);
        others.filter_map(|(_, other)| other.claims[index(key)]).find(|claim| claim.epoch < epoch)
    }

    /// O1 for one request: no node but `node` owns `key` at `now`.
    pub fn alone(&self, now: True, node: usize, key: KeyAt) -> Vec<Finding> {
        self.nodes[node].claims[index(key)].map_or(Vec::new(), |claim| self.others(now, node, claim))
    }

    /// A process believes to own exactly these.
    pub fn claims(&mut self, node: usize, process: u32, claims: Vec<Claim>, until: True) {
        let believer = &mut self.nodes[node];
        believer.process = process;
        believer.until = until;
        believer.claims.fill(None);
        for claim in claims {
            believer.claims[index(claim.key)] = Some(claim);
            let last = &mut self.last[index(claim.key)];
            if last.0 != Some((node, process)) {
                *last = (Some((node, process)), last.1 + 1);
            }
        }
    }

    /// How many processes have owned a key so far, one after the other.
    pub fn owners(&self, key: KeyAt) -> u64 {
        self.last[index(key)].1
    }

    /// The node that owns a key at `now`, if one does.
    pub fn owner(&self, now: True, key: KeyAt) -> Option<usize> {
        self.nodes.iter().position(|node| node.until > now && node.claims[index(key)].is_some())
    }
}
