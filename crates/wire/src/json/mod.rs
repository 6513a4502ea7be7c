//! JSON over HTTP: the worker protocol for any language, and administration. What all its forms have in common is here;
//! the forms are in the folders `json` of their topics, and have their names here.
//!
//! | what | how |
//! |---|---|
//! | names of fields and words | `snake_case`, units last: `lease_ms`, `size_bytes` |
//! | keys | as text when they are UTF-8, else `{"hex": "00ff"}`; both are taken |
//! | points of a hash | 16 hex digits: JavaScript's numbers are too small |
//! | transactions | 40 hex digits |
//! | a choice | an object with one tag: `{"type": "key_range"}`, `{"command": "release_brake"}` |
//! | what is not there | is left out |
//!
//! A request with a field that is not known is refused, and the nearest known one is named ([`parse`]): a
//! mistyped setting that is silently a default is worse than an error. Answers may grow fields; readers
//! ignore those they do not know.

mod error;
mod fixed_word;
#[cfg(test)]
mod tests;
mod text;

pub use crate::admin::json::command::{
    Answer, Command, CommandRequest, DrainStatus, KeyspaceChanges, NodeShare, Presplit, SplitAt,
};
pub use crate::admin::json::coordinators::{Coordinator, Coordinators};
pub use crate::admin::json::dump::{
    Dump, DumpCluster, DumpDrain, DumpKeyspace, DumpMap, DumpNode, DumpReplica, DumpShard, Reading,
};
pub use crate::admin::json::event::{Event, EventPlace, Events};
pub use crate::admin::json::node::{HostedShard, Node, NodeDetail};
pub use crate::admin::json::pages::{Drains, Explained, Keyspaces, Moves, Nodes, Plans, Shards};
pub use crate::admin::json::plan::{Change, Child, Plan, PlanBasis, Planned};
pub use crate::admin::json::query::{
    EventPage, NodePage, Patience, PlanPage, ShardPage, WhichKey, WhichMoves,
};
pub use crate::admin::json::status::{
    BegunEmpty, Explanation, Move, Problem, Reason, Replica, SetAside, Shard, ShardCounts, ShardRule,
    Summary, Unplaced,
};
pub use crate::keyspace::json::settings::{Constraint, Keyspace, Resharding, Throttle};
pub use crate::keyspace::json::sharding::{Bounds, PartitionKey, Sharding};
pub use crate::worker::json::exchange::{
    Beat, HotKey, KeyspaceBrief, Lease, Load, Order, Orders, Peer, ReplicaKey, Replication, Report,
};
pub use crate::worker::json::registration::{Known, Leave, Register, Stored, Welcome};
pub(crate) use error::nearest;
pub use error::{ErrorBody, ErrorDetail, Owner, parse, told};
pub(crate) use fixed_word::fixed_words;
pub use fixed_word::{
    ChangeProgress, DrainState, EventActor, FixedWord, PlanOrigin, PlanStatus, ReplicaPhase, ShardStage,
    Words,
};
pub use text::{Generation, KeyText, Point};
pub(crate) use text::{from_hex, to_hex};

/// Whether a number is left out of an answer, as it is 0.
pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Whether a time in milliseconds is left out of an answer, as it is 0.
pub(crate) fn is_zero_ms(ms: &u64) -> bool {
    *ms == 0
}

/// A name of a role or state as the JSON forms write it: `UnloadFinal` is `unload_final`.
pub fn word(role_or_state: impl std::fmt::Display) -> String {
    let mut word = String::new();
    for letter in role_or_state.to_string().chars() {
        if letter.is_ascii_uppercase() && !word.is_empty() {
            word.push('_');
        }
        let letter = if letter == ' ' { '_' } else { letter };
        word.push(letter.to_ascii_lowercase());
    }
    word
}

pub(crate) fn strings<T: std::fmt::Display>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(|name| name.to_string()).collect()
}
