//! A stored record as a person reads it: one line that says what it is and what is in it.

use super::envelope;
use super::manifest::KeyspaceManifest;
use super::path::Path;
use super::read::StoredError;
use crate::{Malformed, proto};
use partage_core::cluster::{ClusterRecord, KeyspaceRecord, NodeRecord};
use partage_core::keyspace::map::MapDiff;
use partage_core::plan::Plan;
use partage_service::metadata::Head;
use prost::Message;
use serde::Serialize;

/// A key of the coordination state, as a person reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Its name, below the root.
    pub key: String,
    /// When it was written, in the backend's own count.
    pub version: u64,
    /// Whether it goes with the session of its owner.
    pub ephemeral: bool,
    /// The length of the value, in bytes.
    pub bytes: usize,
    /// What it is and what is in it; for a value that cannot be read, what is wrong with it.
    pub says: String,
    /// Whether it can be read.
    pub readable: bool,
}

/// What is stored at a key, in one line.
///
/// # Errors
/// When nothing can be made of it: what is wrong with it.
pub fn describe(key: &str, value: &[u8]) -> Result<String, StoredError> {
    let failed = |why: &dyn std::fmt::Display| StoredError::new(key, why);
    let Some((path, place)) = Path::parse(key) else {
        return Err(failed(&"is at a key that is none of ours"));
    };
    let (part, parts, payload) = envelope::open(key, value).map_err(|why| failed(&why))?;
    if part != place {
        return Err(failed(&format!("says that it is part {part}")));
    }
    if parts > 1 {
        return Ok(format!("part {part} of {parts} of {}", name_of(&path)));
    }
    text(&path, &payload).map_err(|why| failed(&format!("is no record: {why}")))
}

/// What kind of record is at that key.
fn name_of(path: &Path) -> &'static str {
    match path {
        Path::Manifest => "checksums of the cluster's record, the nodes and the plans",
        Path::Cluster => "counters and switches of the cluster",
        Path::Keyspace(_) => "settings of a keyspace",
        Path::KeyspaceManifest(_) => "checksum of a keyspace's record, and its map",
        Path::Head(_) => "head of a map that is kept here",
        Path::Metadata(_) => "head of a map that coordinators keep in files",
        Path::Base(..) => "shards of a map",
        Path::Diff(..) => "change of a map",
        Path::Node(_) => "node",
        Path::Plan(_) => "plan",
        Path::RedoHead => "commit to finish",
        Path::RedoPiece(_) => "piece of a commit",
    }
}

fn decoded<F: Message + Default, T: TryFrom<F, Error = Malformed>>(payload: &[u8]) -> Result<T, String> {
    let form = F::decode(payload).map_err(|why| why.to_string())?;
    T::try_from(form).map_err(|why| why.to_string())
}

fn text(path: &Path, payload: &[u8]) -> Result<String, String> {
    let kind = name_of(path);
    let of_form = |why: prost::DecodeError| why.to_string();
    let said = match path {
        Path::Manifest => {
            let proto::StoredManifest { cluster, nodes, plans } =
                proto::StoredManifest::decode(payload).map_err(of_form)?;
            format!("cluster {cluster:016x}, nodes {nodes:016x}, plans {plans:016x}")
        }
        Path::Cluster => format!("{:?}", decoded::<proto::StoredCluster, ClusterRecord>(payload)?),
        Path::Keyspace(_) => format!("{:?}", decoded::<proto::StoredKeyspace, KeyspaceRecord>(payload)?),
        Path::KeyspaceManifest(_) => {
            let manifest = decoded::<proto::StoredKeyspaceManifest, KeyspaceManifest>(payload)?;
            match manifest.at.sequence {
                0 => format!("record {:016x}, no map yet", manifest.record),
                _ => format!("record {:016x}, map {}", manifest.record, manifest.at),
            }
        }
        Path::Head(_) => {
            let head = proto::StoredHead::decode(payload).map_err(of_form)?;
            let base = head.base.map(partage_core::base::id::Generation::try_from).transpose();
            let base = base.map_err(|why| why.to_string())?.unwrap_or_default();
            format!("its log begins with the map at {base}, in {} chunks", head.chunks)
        }
        Path::Metadata(_) => {
            let head = decoded::<proto::StoredMetadata, Head>(payload)?;
            let servers: Vec<_> = head.servers.iter().map(ToString::to_string).collect();
            format!("map {}, kept by {}", head.at, servers.join(", "))
        }
        Path::Base(..) | Path::Diff(..) => {
            let diff = decoded::<proto::MapDiff, MapDiff>(payload)?;
            let (changed, removed) = (diff.changed.len(), diff.removed.len());
            format!("from {} to {}: {changed} shards set, {removed} removed", diff.from, diff.to)
        }
        Path::Node(_) => format!("{:?}", decoded::<proto::StoredNode, NodeRecord>(payload)?),
        Path::Plan(_) => {
            let plan = decoded::<proto::Plan, Plan>(payload)?;
            let (changes, base) = (plan.changes.len(), plan.base);
            format!(
                "of {} from {base}: {changes} changes, {:?}, by {:?}",
                plan.keyspace, plan.status, plan.origin
            )
        }
        Path::RedoHead => {
            let pieces = proto::StoredRedoHead::decode(payload).map_err(of_form)?.pieces;
            format!("in {pieces} pieces")
        }
        Path::RedoPiece(_) => format!("{} bytes", payload.len()),
    };
    Ok(format!("{kind}: {said}"))
}
