//! Which node believed to own which shard, and when: every request that was served says so, by the true time.

use std::collections::BTreeMap;

/// One node in one epoch of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The id of the shard.
    pub shard: u64,
    /// The epoch of the shard in which the node served.
    pub epoch: u64,
    /// The number of the node in this run, from 0.
    pub node: usize,
}

/// From the first to the last moment at which each owner served, in nanoseconds of true time.
#[derive(Debug, Clone, Default)]
pub struct Beliefs(BTreeMap<Owner, (u64, u64)>);

impl Beliefs {
    /// Remembers that the owner served from `first` to `last`.
    pub fn served(&mut self, owner: Owner, first: u64, last: u64) {
        let seen = self.0.entry(owner).or_insert((first, last));
        *seen = (seen.0.min(first), seen.1.max(last));
    }

    /// Adds all owners and times of another one to these.
    pub fn append(&mut self, other: &Beliefs) {
        other.0.iter().for_each(|(owner, (first, last))| self.served(*owner, *first, *last));
    }

    /// Every owner with its first and last moment.
    pub fn iter(&self) -> impl Iterator<Item = (&Owner, &(u64, u64))> {
        self.0.iter()
    }

    /// How long each two owners of one shard on different nodes believed at once, in nanoseconds; empty =
    /// never.
    pub fn overlaps(&self) -> Vec<(Owner, Owner, u64)> {
        let mut by_shard: BTreeMap<u64, Vec<(Owner, u64, u64)>> = BTreeMap::new();
        for (owner, (first, last)) in &self.0 {
            by_shard.entry(owner.shard).or_default().push((*owner, *first, *last));
        }
        let mut overlaps = Vec::new();
        for owners in by_shard.values_mut() {
            owners.sort_by_key(|(_, first, _)| *first);
            for (at, (one, _, last)) in owners.iter().enumerate() {
                let later = owners[at + 1..].iter().take_while(|(_, first, _)| first <= last);
                let other_nodes = later.filter(|(other, ..)| other.node != one.node);
                overlaps.extend(other_nodes.map(|(other, first, end)| (*one, *other, last.min(end) - first)));
            }
        }
        overlaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(shard: u64, epoch: u64, node: usize) -> Owner {
        Owner { shard, epoch, node }
    }

    #[test]
    fn two_owners_at_once_are_seen_and_owners_in_turn_are_not() {
        let mut beliefs = Beliefs::default();
        beliefs.served(owner(1, 1, 0), 10, 20);
        beliefs.served(owner(1, 1, 0), 30, 40);
        beliefs.served(owner(1, 2, 1), 41, 50);
        beliefs.served(owner(2, 1, 1), 0, 100);
        assert!(beliefs.overlaps().is_empty());
        beliefs.served(owner(1, 2, 1), 35, 36);
        assert_eq!(beliefs.overlaps(), [(owner(1, 1, 0), owner(1, 2, 1), 5)]);
    }

    #[test]
    fn one_node_in_two_epochs_is_one_owner() {
        let mut beliefs = Beliefs::default();
        beliefs.served(owner(1, 1, 0), 10, 20);
        beliefs.served(owner(1, 2, 0), 15, 30);
        assert!(beliefs.overlaps().is_empty());
    }
}
