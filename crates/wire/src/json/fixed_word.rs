//! Words of fixed lists: statuses that are enums in `core` and strings in JSON.
//!
//! A program that reads an answer compares values, not strings. An answer of a later version may have a word that this one does
//! not know: it is kept, is equal to no value, and is shown as it came.

use super::word;
use partage_core::cluster::serving::Serving;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Role, Stage};
use partage_core::node::Health;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A list of values that have one word each.
pub trait Words: Copy + PartialEq + fmt::Display + 'static {
    /// Every value.
    const WORDS: &'static [Self];
}

/// A word of such a list, or one that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FixedWord<T> {
    /// The value.
    Known(T),
    /// What a later version has said.
    Other(String),
}

impl<T: Words> FixedWord<T> {
    /// Whether it is this value.
    pub fn is(&self, value: T) -> bool {
        matches!(self, FixedWord::Known(known) if *known == value)
    }

    /// Whether it is one of these values.
    pub fn is_any(&self, values: &[T]) -> bool {
        values.iter().any(|value| self.is(*value))
    }

    /// The value; none where this version does not know the word.
    pub fn known(&self) -> Option<T> {
        match self {
            FixedWord::Known(value) => Some(*value),
            FixedWord::Other(_) => None,
        }
    }
}

impl<T> From<T> for FixedWord<T> {
    fn from(value: T) -> Self {
        FixedWord::Known(value)
    }
}

impl<T: Words> fmt::Display for FixedWord<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FixedWord::Known(value) => f.pad(&word(value)),
            FixedWord::Other(text) => f.pad(text),
        }
    }
}

impl<T: Words> Serialize for FixedWord<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Words> Deserialize<'de> for FixedWord<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value = T::WORDS.iter().find(|value| word(value) == text);
        Ok(value.map_or(FixedWord::Other(text), |value| FixedWord::Known(*value)))
    }
}

impl Words for Health {
    const WORDS: &'static [Health] = &Health::ALL;
}

impl Words for Role {
    const WORDS: &'static [Role] = &[Role::Leader, Role::Follower];
}

impl Words for ReplicaState {
    const WORDS: &'static [ReplicaState] = &ReplicaState::ALL;
}

impl Words for Serving {
    const WORDS: &'static [Serving] = &Serving::ALL;
}

/// The stage of a shard, without the shards that it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardStage {
    /// It answers for its keys.
    Serving,
    /// It prepares to take over from its parents.
    Forming,
    /// Its children take over from it.
    Closing,
    /// It is on its way out of the map.
    Removing,
}

impl Words for ShardStage {
    const WORDS: &'static [ShardStage] =
        &[ShardStage::Serving, ShardStage::Forming, ShardStage::Closing, ShardStage::Removing];
}

impl fmt::Display for ShardStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ShardStage::Serving => "serving",
            ShardStage::Forming => "forming",
            ShardStage::Closing => "closing",
            ShardStage::Removing => "removing",
        })
    }
}

impl From<&Stage> for ShardStage {
    fn from(stage: &Stage) -> ShardStage {
        match stage {
            Stage::Serving => ShardStage::Serving,
            Stage::Forming(_) => ShardStage::Forming,
            Stage::Closing(_) => ShardStage::Closing,
            Stage::Removing => ShardStage::Removing,
        }
    }
}

/// How far a drain is, without its numbers and reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainState {
    /// It has not begun: too many other nodes are down or drained.
    Queued,
    /// Replicas leave the node.
    Moving,
    /// The node has nothing left that anybody needs.
    SafeToStop,
    /// Nothing moves any more.
    Blocked,
}

impl Words for DrainState {
    const WORDS: &'static [DrainState] =
        &[DrainState::Queued, DrainState::Moving, DrainState::SafeToStop, DrainState::Blocked];
}

impl fmt::Display for DrainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DrainState::Queued => "queued",
            DrainState::Moving => "moving",
            DrainState::SafeToStop => "safe_to_stop",
            DrainState::Blocked => "blocked",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_word_is_read_as_what_was_written<T: Words + fmt::Debug>() {
        for value in T::WORDS {
            let written = serde_json::to_string(&FixedWord::Known(*value)).unwrap();
            let read: FixedWord<T> = serde_json::from_str(&written).unwrap();
            assert!(read.is(*value), "{written}");
        }
    }

    #[test]
    fn words_are_read_as_they_were_written_and_those_of_later_versions_are_kept() {
        each_word_is_read_as_what_was_written::<Health>();
        each_word_is_read_as_what_was_written::<Role>();
        each_word_is_read_as_what_was_written::<ReplicaState>();
        each_word_is_read_as_what_was_written::<Serving>();
        each_word_is_read_as_what_was_written::<ShardStage>();
        each_word_is_read_as_what_was_written::<DrainState>();
        assert_eq!(FixedWord::Known(ReplicaState::UnloadFinal).to_string(), "unload_final");
        let later: FixedWord<Health> = serde_json::from_str("\"resting\"").unwrap();
        assert_eq!((later.known(), later.to_string().as_str()), (None, "resting"));
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"resting\"");
    }
}
