//! JSON over HTTP: the worker protocol for any language, and administration.
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

mod command;
mod coordinators;
pub mod dataset_status;
mod dump;
mod error;
mod event;
mod fixed_word;
mod keyspace;
mod pages;
mod plan;
mod query;
mod registration;
mod sharding;
mod status;
#[cfg(test)]
mod tests;
mod text;
mod worker;

pub use command::{
    Answer, Command, CommandRequest, DrainStatus, KeyspaceChanges, NodeShare, Presplit, SplitAt,
};
pub use coordinators::{Coordinator, Coordinators};
pub use dump::{
    Dump, DumpCluster, DumpDrain, DumpKeyspace, DumpMap, DumpNode, DumpReplica, DumpShard, Reading,
};
pub use error::{ErrorBody, ErrorDetail, Owner, parse, told};
pub use event::{Event, EventPlace, Events};
pub use fixed_word::{
    ChangeProgress, DrainState, EventActor, FixedWord, PlanOrigin, PlanStatus, ReplicaPhase, ShardStage,
    Words,
};
pub use keyspace::{Constraint, Keyspace, Resharding, Throttle};
pub use pages::{Drains, Explained, Keyspaces, Moves, Nodes, Plans, Shards};
pub use plan::{Change, Child, Plan, PlanBasis, Planned};
pub use query::{EventPage, NodePage, Patience, PlanPage, ShardPage, WhichKey, WhichMoves};
pub use registration::{Known, Leave, Register, Stored, Welcome};
pub use sharding::{Bounds, PartitionKey, Sharding};
pub use status::{
    Explanation, HostedShard, Move, Node, NodeDetail, Problem, Reason, Replica, SetAside, Shard, ShardCounts,
    ShardRule, Summary, Unplaced,
};
pub use text::{Generation, KeyText, Point};
pub(crate) use text::{from_hex, to_hex};
pub use worker::{Beat, HotKey, KeyspaceBrief, Lease, Load, Order, Orders, Peer, ReplicaKey, Report};

/// A word of core as the JSON forms write it: `UnloadFinal` is `unload_final`.
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

fn strings<T: std::fmt::Display>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(|name| name.to_string()).collect()
}
