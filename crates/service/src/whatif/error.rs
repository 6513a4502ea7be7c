//! Why a what-if cannot be played.

use partage_core::base::name::NodeId;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lookup::{HashIndexError, RangeIndexError, SlotTableError};
use partage_core::keyspace::sharding::ShardingError;
use partage_core::keyspace::sharding::nodes::SchemeError;
use partage_core::keyspace::sharding::presplit::PresplitError;
use partage_core::limits;
use partage_core::placement::{ProblemError, UnknownPolicy};

/// Why a what-if cannot be played. Each names the thing and the way out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum WhatIfError {
    #[error("there is no key in the sample: give at least one")]
    NoKeys,
    #[error("there is no scheme to compare: name at least one")]
    NoSchemes,
    #[error("the key {key:?} has weight {weight}: a weight is a finite number, 0 or more")]
    Weight { key: Key, weight: f64 },
    #[error("{found} {what} are too many: the limit is {limit}")]
    TooMany { what: &'static str, found: usize, limit: usize },
    #[error("there is no node {node} to leave: known are {}", known.join(", "))]
    UnknownNode { node: NodeId, known: Vec<String> },
    #[error("node {node} cannot leave: it is the last one, and somebody must hold the keys")]
    LastNode { node: NodeId },
    #[error("no node joins: let 1 or more join")]
    NobodyJoins,
    #[error("the key {key:?} cannot become hot: it is not in the sample")]
    UnknownKey { key: Key },
    #[error("{what} by {factor} is not possible: give a number from {least} to {}", limits::WHATIF_FACTOR)]
    Factor { what: &'static str, factor: f64, least: f64 },
    #[error("a key cannot get {share} of all load: give more than 0 % and less than 100 %")]
    Share { share: f64 },
    #[error("a key is salted over {ways} sub-keys: give 2 to {}", limits::SALT_WAYS)]
    SaltWays { ways: u32 },
    #[error("{why}")]
    Unplaced { why: String },
    #[error(transparent)]
    Nodes(#[from] SchemeError),
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    #[error(transparent)]
    Presplit(#[from] PresplitError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error(transparent)]
    Problem(#[from] ProblemError),
    #[error(transparent)]
    Slots(#[from] SlotTableError),
    #[error(transparent)]
    Hashes(#[from] HashIndexError),
    #[error(transparent)]
    Keys(#[from] RangeIndexError),
}
