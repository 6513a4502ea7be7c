//! Where each record is kept: typed keys to text and back.

use partage_core::base::id::{Generation, PlanId};
use partage_core::base::name::{KeyspaceName, NodeId};
use std::fmt;

/// Names one life of a map: its base's sequence and the first 8 bytes of its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Log {
    sequence: u64,
    transaction: u64,
}

impl Log {
    pub(super) fn of(base: Generation) -> Log {
        let transaction =
            base.transaction.0.iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        Log { sequence: base.sequence, transaction }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.sequence, self.transaction)
    }
}

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    Manifest,
    Cluster,
    Keyspace(KeyspaceName),
    KeyspaceManifest(KeyspaceName),
    Head(KeyspaceName),
    Metadata(KeyspaceName),
    Base(KeyspaceName, Log, u32),
    Diff(KeyspaceName, Log, u64),
    Node(NodeId),
    Plan(PlanId),
    RedoHead,
    RedoPiece(u32),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Manifest => write!(f, "manifest"),
            Path::Cluster => write!(f, "cluster"),
            Path::Keyspace(name) => write!(f, "keyspaces/{name}/record"),
            Path::KeyspaceManifest(name) => write!(f, "keyspaces/{name}/manifest"),
            Path::Head(name) => write!(f, "keyspaces/{name}/map/head"),
            Path::Metadata(name) => write!(f, "keyspaces/{name}/map/metadata"),
            Path::Base(name, log, chunk) => write!(f, "keyspaces/{name}/map/logs/{log}/base/{chunk}"),
            Path::Diff(name, log, sequence) => write!(f, "keyspaces/{name}/map/logs/{log}/diff/{sequence}"),
            Path::Node(id) => write!(f, "nodes/{id}"),
            Path::Plan(id) => write!(f, "plans/{}", id.0),
            Path::RedoHead => write!(f, "redo/head"),
            Path::RedoPiece(piece) => write!(f, "redo/pieces/{piece}"),
        }
    }
}

impl Path {
    /// The keyspace that the record belongs to.
    pub(super) fn keyspace(&self) -> Option<&KeyspaceName> {
        match self {
            Path::Keyspace(name)
            | Path::KeyspaceManifest(name)
            | Path::Head(name)
            | Path::Metadata(name)
            | Path::Base(name, ..)
            | Path::Diff(name, ..) => Some(name),
            Path::Manifest
            | Path::Cluster
            | Path::Node(_)
            | Path::Plan(_)
            | Path::RedoHead
            | Path::RedoPiece(_) => None,
        }
    }

    /// Where a part of the record is put.
    pub(super) fn part(&self, part: u16) -> String {
        if part == 0 { self.to_string() } else { format!("{self}/{part}") }
    }

    /// The record that a key belongs to, and which part of it is there; none for a key that is none of ours.
    pub(super) fn parse(key: &str) -> Option<(Path, u16)> {
        let segments: Vec<&str> = key.split('/').collect();
        let (path, rest) = match segments.as_slice() {
            ["manifest", rest @ ..] => (Path::Manifest, rest),
            ["cluster", rest @ ..] => (Path::Cluster, rest),
            ["keyspaces", name, rest @ ..] => Self::parse_keyspace(KeyspaceName::new(name).ok()?, rest)?,
            ["nodes", id, rest @ ..] => (Path::Node(NodeId::new(id).ok()?), rest),
            ["plans", id, rest @ ..] => (Path::Plan(PlanId(number(id)?)), rest),
            ["redo", "head", rest @ ..] => (Path::RedoHead, rest),
            ["redo", "pieces", piece, rest @ ..] => (Path::RedoPiece(number(piece)?), rest),
            _ => return None,
        };
        match rest {
            [] => Some((path, 0)),
            [part] => Some((path, number(part).filter(|part| *part > 0)?)),
            _ => None,
        }
    }

    fn parse_keyspace<'a>(name: KeyspaceName, segments: &'a [&'a str]) -> Option<(Path, &'a [&'a str])> {
        Some(match segments {
            ["record", rest @ ..] => (Path::Keyspace(name), rest),
            ["manifest", rest @ ..] => (Path::KeyspaceManifest(name), rest),
            ["map", "head", rest @ ..] => (Path::Head(name), rest),
            ["map", "metadata", rest @ ..] => (Path::Metadata(name), rest),
            ["map", "logs", log, "base", chunk, rest @ ..] => {
                (Path::Base(name, parse_log(log)?, number(chunk)?), rest)
            }
            ["map", "logs", log, "diff", sequence, rest @ ..] => {
                (Path::Diff(name, parse_log(log)?, number(sequence)?), rest)
            }
            _ => return None,
        })
    }
}

/// A number as it is printed, and in no other spelling: one record has one key.
fn number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

fn parse_log(text: &str) -> Option<Log> {
    let (sequence, transaction) = text.split_once('-')?;
    let log = Log { sequence: number(sequence)?, transaction: u64::from_str_radix(transaction, 16).ok()? };
    (log.to_string() == text).then_some(log)
}
