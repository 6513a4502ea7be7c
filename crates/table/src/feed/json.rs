//! Changes as they are sent, to clients and between nodes ([`partage_wire::table`]).

use crate::http::version_text;
use crate::rows::FoundChange;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::id::{Epoch, ShardId};
use partage_service::table::feed::{Change, ChangeKind};
use partage_service::table::replication::LogPosition;
use partage_wire::table::{BytesText, ChangeText, ChangeVerb, KeyBytes, ShardChange};

fn verb(kind: ChangeKind) -> ChangeVerb {
    match kind {
        ChangeKind::Put => ChangeVerb::Put,
        ChangeKind::Delete => ChangeVerb::Delete,
        ChangeKind::Expired => ChangeVerb::Expired,
    }
}

fn kind(verb: ChangeVerb) -> ChangeKind {
    match verb {
        ChangeVerb::Put => ChangeKind::Put,
        ChangeVerb::Delete => ChangeKind::Delete,
        ChangeVerb::Expired => ChangeKind::Expired,
    }
}

/// A change for a client.
pub(crate) fn for_client((shard, found): (ShardId, FoundChange)) -> ChangeText {
    let Change { kind, at_ms, value, expires_ms } = found.change;
    ChangeText {
        key: BytesText::from(&found.key),
        change: verb(kind),
        value: value.map(|value| BytesText::from(&value[..])),
        version: version_text(found.version),
        at_ms,
        expires_ms,
        shard: shard.0,
    }
}

/// A change for another node.
pub(super) fn for_node(found: FoundChange) -> ShardChange {
    let Change { kind, at_ms, value, expires_ms } = found.change;
    ShardChange {
        key: KeyBytes(found.key),
        change: verb(kind),
        value: value.map(|value| STANDARD.encode(&value)),
        epoch: found.version.epoch.0,
        index: found.version.index,
        at_ms,
        expires_ms,
    }
}

/// A change of another node; none if it is not understood.
pub(super) fn from_node(change: ShardChange) -> Option<FoundChange> {
    let value = change.value.map(|value| STANDARD.decode(value)).transpose().ok()?;
    let version = LogPosition { epoch: Epoch(change.epoch), index: change.index };
    let (at_ms, expires_ms) = (change.at_ms, change.expires_ms);
    let kind = kind(change.change);
    let change_of = Change { kind, at_ms, value: value.map(Into::into), expires_ms };
    Some(FoundChange { version, key: change.key.0, change: change_of })
}
