//! Words of fixed lists: statuses that are enums in `core` or `service`, and strings in JSON.
//!
//! A program that reads an answer compares values, not strings. An answer of a later version may have a word that this one does
//! not know: it is kept, is equal to no value, and is shown as it came.

use crate::Malformed;
use partage_core::cluster::event::EventKind;
use partage_core::cluster::moves::MoveStage;
use partage_core::cluster::serving::Serving;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Role, Stage};
use partage_core::keyspace::{KeyspaceKind, Mode, Ownership, RowValues, Spread};
use partage_core::node::Health;
use partage_core::node::exchange::DropReason;
use partage_service::dataset::node::State;
use partage_service::shuffle::Durability;
use partage_service::table::index::TableState;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A list of values that have one word each.
pub trait Words: Copy + PartialEq + fmt::Display + 'static {
    /// Every value: for reading a word, and for the API document.
    const WORDS: &'static [Self];

    /// The word of the value in JSON.
    fn word(&self) -> String {
        super::word(self)
    }
}

/// A word of such a list, or one that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FixedWord<T> {
    /// A value that this version knows.
    Known(T),
    /// The word that a later version has written.
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

    /// The value of the field, where no word but those that this version knows will do.
    pub(crate) fn value(&self, field: &str) -> Result<T, Malformed> {
        self.known().ok_or_else(|| {
            let known: Vec<String> = T::WORDS.iter().map(T::word).collect();
            Malformed::new(
                field,
                format!("{:?} is no {field}: choose one of {}", self.to_string(), known.join(", ")),
            )
        })
    }

    /// The value; none where this version does not know the word.
    pub fn known(&self) -> Option<T> {
        match self {
            FixedWord::Known(value) => Some(*value),
            FixedWord::Other(_) => None,
        }
    }
}

/// No word: an answer of an earlier version lacks the field.
impl<T> Default for FixedWord<T> {
    fn default() -> Self {
        FixedWord::Other(String::new())
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
            FixedWord::Known(value) => f.pad(&value.word()),
            FixedWord::Other(text) => f.pad(text),
        }
    }
}

impl<T: Words> FromStr for FixedWord<T> {
    type Err = Infallible;

    /// Any text is taken: the coordinator refuses a word that it does not know.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let value = T::WORDS.iter().find(|value| value.word() == text);
        Ok(value.map_or_else(|| FixedWord::Other(text.to_owned()), |value| FixedWord::Known(*value)))
    }
}

impl<T: Words> Serialize for FixedWord<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Words> Deserialize<'de> for FixedWord<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Ok(word) = Self::from_str(&String::deserialize(deserializer)?);
        Ok(word)
    }
}

/// Names the types of `core` and `service` whose values have one word each.
macro_rules! words_of {
    ($($list:ident: $all:expr),+ $(,)?) => {
        $(impl Words for $list {
            const WORDS: &'static [$list] = $all;
        })+
    };
}

words_of! {
    DropReason: &DropReason::ALL,
    Durability: &Durability::ALL,
    EventKind: &EventKind::ALL,
    Health: &Health::ALL,
    KeyspaceKind: KeyspaceKind::ALL,
    Mode: Mode::ALL,
    MoveStage: &MoveStage::ALL,
    Ownership: Ownership::ALL,
    ReplicaState: &ReplicaState::ALL,
    Role: &Role::ALL,
    RowValues: RowValues::ALL,
    Serving: &Serving::ALL,
    Spread: Spread::ALL,
    TableState: &TableState::ALL,
}

impl Words for State {
    const WORDS: &'static [State] = &State::ALL;

    /// In capitals, as Sequins writes the states of a version.
    fn word(&self) -> String {
        self.to_string()
    }
}

/// Defines values that are words of JSON only, as what is said with them in `core` has more to it.
macro_rules! fixed_words {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$value_doc])* $value,)+
        }

        impl Words for $name {
            const WORDS: &'static [$name] = &[$($name::$value,)+];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $($name::$value => $word,)+
                })
            }
        }
    };
}
pub(crate) use fixed_words;

fixed_words! {
    /// The stage of a shard, without the shards that it concerns.
    ShardStage {
        /// It answers for its keys.
        Serving = "serving",
        /// It prepares to take over from its parents.
        Forming = "forming",
        /// Its children take over from it.
        Closing = "closing",
        /// It is on its way out of the map.
        Removing = "removing",
    }
}

fixed_words! {
    /// How far a drain is, without its numbers and reasons.
    DrainState {
        /// It has not begun: too many other nodes are down or drained.
        Queued = "queued",
        /// Replicas leave the node.
        Moving = "moving",
        /// The node has nothing left that anybody needs.
        SafeToStop = "safe_to_stop",
        /// Nothing moves any more.
        Blocked = "blocked",
    }
}

fixed_words! {
    /// How far one change of a plan is, without the reason why it was dropped.
    ChangeProgress {
        /// It has not begun.
        Waiting = "waiting",
        /// It is in the map, and goes on.
        Started = "started",
        /// Nothing of it is left to do.
        Done = "done",
        /// It was given up.
        Dropped = "dropped",
    }
}

fixed_words! {
    /// The origin of a plan, without the person's name.
    PlanOrigin {
        /// Something was lost, and the coordinator places it again.
        Repair = "repair",
        /// A node or zone is drained.
        Drain = "drain",
        /// The planner improves the balance, splits or merges.
        Rebalance = "rebalance",
        /// A person has asked for it.
        Person = "person",
    }
}

fixed_words! {
    /// The status of a plan, without the reason why it was refused.
    PlanStatus {
        /// It waits for a person.
        Suggested = "suggested",
        /// The coordinator carries it out.
        Approved = "approved",
        /// Every change is done or dropped.
        Finished = "finished",
        /// A person has rejected it.
        Rejected = "rejected",
        /// A later plan has replaced it.
        Superseded = "superseded",
        /// The check or the brake has refused it.
        Refused = "refused",
    }
}

fixed_words! {
    /// The phase of a replica, without what is known of a failure.
    ReplicaPhase {
        /// The worker loads it.
        Loading = "loading",
        /// The worker can serve it.
        Ready = "ready",
        /// The worker serves it.
        Serving = "serving",
        /// The worker stops to serve it.
        Unloading = "unloading",
        /// The worker serves it no more.
        Unloaded = "unloaded",
        /// The worker keeps its data.
        Kept = "kept",
        /// The worker has deleted it.
        Dropped = "dropped",
        /// The worker could not load it.
        Failed = "failed",
    }
}

fixed_words! {
    /// The actor that caused an event, without its name.
    EventActor {
        /// The coordinator, by its own rules.
        Coordinator = "coordinator",
        /// A person who asked for it, through the API or the command line.
        Person = "person",
        /// The process of a node.
        Node = "node",
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
        each_word_is_read_as_what_was_written::<ChangeProgress>();
        each_word_is_read_as_what_was_written::<PlanOrigin>();
        each_word_is_read_as_what_was_written::<PlanStatus>();
        each_word_is_read_as_what_was_written::<ReplicaPhase>();
        each_word_is_read_as_what_was_written::<EventActor>();
        each_word_is_read_as_what_was_written::<EventKind>();
        each_word_is_read_as_what_was_written::<MoveStage>();
        each_word_is_read_as_what_was_written::<State>();
        each_word_is_read_as_what_was_written::<DropReason>();
        each_word_is_read_as_what_was_written::<Durability>();
        each_word_is_read_as_what_was_written::<KeyspaceKind>();
        each_word_is_read_as_what_was_written::<Mode>();
        each_word_is_read_as_what_was_written::<Ownership>();
        each_word_is_read_as_what_was_written::<RowValues>();
        each_word_is_read_as_what_was_written::<Spread>();
        each_word_is_read_as_what_was_written::<TableState>();
        assert_eq!(FixedWord::Known(Spread::ZoneStrict).to_string(), "zone-strict");
        assert_eq!(FixedWord::Known(ReplicaState::UnloadFinal).to_string(), "unload_final");
        assert_eq!(FixedWord::Known(State::Building).to_string(), "BUILDING");
        let later: FixedWord<Health> = serde_json::from_str("\"resting\"").unwrap();
        assert_eq!((later.known(), later.to_string().as_str()), (None, "resting"));
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"resting\"");
    }
}
