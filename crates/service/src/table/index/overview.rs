//! An index of a table, as all of its shards have it.

use super::{Definition, IndexState};
use partage_core::base::id::ShardId;
use partage_core::base::name::IndexName;
use std::collections::BTreeMap;
use std::fmt;

/// How far an index of a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// Clients can ask it.
    Ready,
    /// Shards still look at their rows.
    Building,
    /// It is being removed.
    Dropping,
    /// Some shards have no such index: a request to create or to drop it has not come to them.
    Incomplete,
    /// Shards have indexes of other fields under that name: two requests to create one have crossed.
    Conflicting,
}

impl TableState {
    /// All of them.
    pub const ALL: [TableState; 5] = [
        TableState::Ready,
        TableState::Building,
        TableState::Dropping,
        TableState::Incomplete,
        TableState::Conflicting,
    ];

    /// The word that people read.
    pub fn word(self) -> &'static str {
        match self {
            TableState::Ready => "ready",
            TableState::Building => "building",
            TableState::Dropping => "dropping",
            TableState::Incomplete => "incomplete",
            TableState::Conflicting => "conflicting",
        }
    }

    /// What to do so that the index can be asked.
    pub fn way_out(self) -> &'static str {
        match self {
            TableState::Ready => "ask it",
            TableState::Building => "wait, and ask again",
            TableState::Dropping => "wait until it is gone, and create it again",
            TableState::Incomplete => "create it again, with the same field, or drop it",
            TableState::Conflicting => "drop it, and create it again",
        }
    }
}

impl fmt::Display for TableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// An index of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    /// The name by which queries ask it.
    pub name: IndexName,
    /// Which field of the rows it is of, as the first shard that has it says.
    pub path: String,
    /// How far it is.
    pub state: TableState,
    /// The number of shards in which it is ready.
    pub ready: usize,
    /// How many shards the table has.
    pub shards: usize,
}

/// The indexes that only the last shards of a table lack, and that no shard drops: these shards came after the index, as that of
/// a partition does which is registered later, or a request to create it broke off. To create it in them completes it.
pub fn lacking(shards: &BTreeMap<ShardId, Vec<Definition>>) -> Vec<Definition> {
    let mut by_name: BTreeMap<&IndexName, Vec<(ShardId, &Definition)>> = BTreeMap::new();
    for (shard, definition) in shards.iter().flat_map(|(shard, of)| of.iter().map(|one| (*shard, one))) {
        by_name.entry(&definition.name).or_default().push((shard, definition));
    }
    let is_lacking = |found: &Vec<(ShardId, &Definition)>| {
        let is_one = found.iter().all(|(_, one)| one.id == found[0].1.id && one.is_kept_up());
        // They come by their numbers, so those that have it are the first ones.
        is_one
            && found.len() < shards.len()
            && found.iter().map(|(shard, _)| shard).eq(shards.keys().take(found.len()))
    };
    by_name.into_values().filter(is_lacking).map(|found| found[0].1.clone()).collect()
}

/// The indexes of a table with these shards, by name.
pub fn overview(shards: &BTreeMap<ShardId, Vec<Definition>>) -> Vec<Overview> {
    let mut by_name: BTreeMap<&IndexName, Vec<&Definition>> = BTreeMap::new();
    for definition in shards.values().flatten() {
        by_name.entry(&definition.name).or_default().push(definition);
    }
    let of = |(name, found): (&IndexName, Vec<&Definition>)| {
        let ready = found.iter().filter(|one| one.state == IndexState::Ready).count();
        let is_one = found.iter().all(|one| one.id == found[0].id);
        let state = if found.iter().any(|one| matches!(one.state, IndexState::Dropping(_))) {
            TableState::Dropping
        } else if !is_one {
            TableState::Conflicting
        } else if found.len() < shards.len() {
            TableState::Incomplete
        } else if ready < shards.len() {
            TableState::Building
        } else {
            TableState::Ready
        };
        let path = found.first().map_or_else(String::new, |one| one.path.to_string());
        Overview { name: name.clone(), path, state, ready, shards: shards.len() }
    };
    by_name.into_iter().map(of).collect()
}
