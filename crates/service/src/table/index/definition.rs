//! An index as a shard has it, and what entries of the log do to it.
//!
//! | state | entries of the index | changes |
//! |---|---|---|
//! | building, from key K on | those of all rows below K, and of all rows that were written since it began | the leader logs one [`IndexChange::Build`] after the other, until there are no rows behind K: then it is ready |
//! | ready | those of all rows | by writes |
//! | dropping, from place P on | those from P on that were there when the drop began; no write keeps them up | the leader logs one [`IndexChange::Remove`] after the other, until there are none: then the index is gone |
//!
//! A change names what it is based on (K, P): one that comes twice, or from a leader that was replaced, does nothing.

use crate::table::filter::Path;
use partage_core::base::name::IndexName;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use partage_core::limits;

/// The number of an index: the same in each shard of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexId(pub u64);

impl IndexId {
    /// The number of an index of that name and path.
    pub fn of(name: &IndexName, path: &Path) -> IndexId {
        // No name has a zero byte.
        let bytes = [name.as_str().as_bytes(), &[0], path.to_string().as_bytes()].concat();
        let hash = HashFunction::Xxh3_64.hash(&bytes);
        IndexId((hash & u128::from(u64::MAX)) as u64)
    }
}

/// How far an index of a shard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// The rows from this key on have still to be looked at.
    Building(Key),
    /// It has an entry for each row that it should have.
    Ready,
    /// Its entries from this place on (an encoded value and a key) have still to be removed.
    Dropping(Vec<u8>),
}

/// An index of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The number that its entries carry, the same in all shards.
    pub id: IndexId,
    /// The name by which queries ask it: no other index of the shard has it.
    pub name: IndexName,
    /// Which field of the rows it is of.
    pub path: Path,
    /// How far it is.
    pub state: IndexState,
}

/// What an entry of the log does to an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexChange {
    /// It begins. Nothing happens if there is an index of that name, or if there are [`limits::INDEXES`].
    Create(IndexName, Path),
    /// It ends. Nothing happens if there is none of that name.
    Drop(IndexName),
    /// The leader has the next rows, from that key on, looked at.
    Build(IndexId, Key),
    /// The leader has the next entries, from that place on, removed.
    Remove(IndexId, Vec<u8>),
    /// Each replica compares its rows with its indexes as of this entry, under this number, and tells apart ranges of about so
    /// many rows.
    Check {
        /// The number under which the result is asked for.
        number: u64,
        /// A power of two.
        range_rows: u64,
    },
}

impl Definition {
    /// An index that begins.
    pub fn new(name: IndexName, path: Path) -> Definition {
        Definition { id: IndexId::of(&name, &path), name, path, state: IndexState::Building(Key::empty()) }
    }

    /// Whether writes keep it up.
    pub fn is_kept_up(&self) -> bool {
        !matches!(self.state, IndexState::Dropping(_))
    }

    /// What the leader is to log for it next.
    pub fn next_change(&self) -> Option<IndexChange> {
        match &self.state {
            IndexState::Building(from) => Some(IndexChange::Build(self.id, from.clone())),
            IndexState::Dropping(from) => Some(IndexChange::Remove(self.id, from.clone())),
            IndexState::Ready => None,
        }
    }

    /// Whether an index of that name and path may be created beside `others`.
    pub fn may_join(&self, others: &[Definition]) -> bool {
        others.len() < limits::INDEXES
            && others.iter().all(|other| other.name != self.name && other.id != self.id)
    }
}

/// The indexes of a child that is merged from parents with these indexes.
///
/// An index is ready if it is so in all parents. If it is dropped in one, that goes on: what is left of it there may be behind
/// the rows. In every other case it is built from the first row on, over the entries that are there, which are right.
pub fn joined(parents: &[Vec<Definition>]) -> Vec<Definition> {
    let mut child: Vec<Definition> = Vec::new();
    for definition in parents.iter().flatten() {
        if child.iter().any(|known| known.id == definition.id) {
            continue;
        }
        let states: Vec<&IndexState> = parents
            .iter()
            .filter_map(|parent| parent.iter().find(|other| other.id == definition.id))
            .map(|other| &other.state)
            .collect();
        let is_dropped = states.iter().any(|state| matches!(state, IndexState::Dropping(_)));
        let is_ready =
            states.len() == parents.len() && states.iter().all(|state| **state == IndexState::Ready);
        let state = match (is_dropped, is_ready) {
            // Each parent has removed up to another place.
            (true, _) => IndexState::Dropping(Vec::new()),
            (false, true) => IndexState::Ready,
            (false, false) => IndexState::Building(Key::empty()),
        };
        child.push(Definition { state, ..definition.clone() });
    }
    // Two requests may have created two indexes of one name in different shards: neither is of use, and the shard keeps one to be
    // dropped by its name.
    for at in 0..child.len() {
        if child[..at].iter().any(|other| other.name == child[at].name) {
            child[at].state = IndexState::Dropping(Vec::new());
        }
    }
    child
}
