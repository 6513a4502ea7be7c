//! Packets to and from protobuf.

use super::{Chunk, Content, Opening, Packet, ParentAsk, ParentGiven};
use crate::malformed::{At, Inside, each, required};
use crate::proto::packet::Content as Form;
use crate::{Malformed, proto};
use bytes::Bytes;
use partage_core::base::id::{Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::message::{Append, Echo, Reply};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Message};
use partage_service::table::split::{Ask, Given, GivenExtent};

impl From<&Opening> for proto::DeliveryOpening {
    fn from(opening: &Opening) -> Self {
        proto::DeliveryOpening {
            from: opening.from.to_string(),
            incarnation: opening.incarnation.map_or(0, |incarnation| incarnation.0),
            to: opening.to.to_string(),
        }
    }
}

impl TryFrom<proto::DeliveryOpening> for Opening {
    type Error = Malformed;
    fn try_from(form: proto::DeliveryOpening) -> Result<Self, Malformed> {
        Ok(Opening {
            from: NodeId::new(&form.from).at("from")?,
            incarnation: Some(Incarnation(form.incarnation)).filter(|incarnation| incarnation.0 > 0),
            to: NodeId::new(&form.to).at("to")?,
        })
    }
}

impl From<Packet> for proto::Packet {
    fn from(packet: Packet) -> Self {
        let content = match packet.content {
            Content::Message(Message::Append(append)) => Form::Append(append.into()),
            Content::Message(Message::Reply(reply)) => Form::Reply(reply.into()),
            Content::Message(Message::LetGo(epoch)) => Form::LetGo(proto::LetGo { epoch: epoch.0 }),
            Content::Chunk(chunk) => Form::Chunk(chunk.into()),
            Content::Stored { position, number } => {
                Form::Stored(proto::ChunkStored { position: Some(position.into()), number })
            }
            Content::Resumed { position, number, through } => {
                Form::Resumed(proto::SnapshotResumed { position: Some(position.into()), number, through })
            }
            Content::Useless { position } => {
                Form::Useless(proto::SnapshotUseless { position: Some(position.into()) })
            }
            Content::Ask(ask) => Form::Ask(ask.into()),
            Content::Given(given) => Form::Given(given.into()),
        };
        proto::Packet { to: Some((&packet.to).into()), from: packet.from.0, content: Some(content) }
    }
}

impl TryFrom<proto::Packet> for Packet {
    type Error = Malformed;
    fn try_from(form: proto::Packet) -> Result<Self, Malformed> {
        let (to, from): (ReplicaKey, _) = (required(form.to, "to")?, PlacementId(form.from));
        let content = match form.content {
            Some(Form::Append(append)) => {
                Content::Message(Message::Append(append.try_into().inside("append")?))
            }
            Some(Form::Reply(reply)) => Content::Message(Message::Reply(reply.into())),
            Some(Form::LetGo(let_go)) => Content::Message(Message::LetGo(Epoch(let_go.epoch))),
            Some(Form::Chunk(chunk)) => Content::Chunk(chunk.try_into().inside("chunk")?),
            Some(Form::Stored(stored)) => {
                let position = snapshot_position(stored.position).inside("stored")?;
                Content::Stored { position, number: stored.number }
            }
            Some(Form::Resumed(resumed)) => {
                let position = snapshot_position(resumed.position).inside("resumed")?;
                Content::Resumed { position, number: resumed.number, through: resumed.through }
            }
            Some(Form::Useless(useless)) => {
                Content::Useless { position: snapshot_position(useless.position).inside("useless")? }
            }
            Some(Form::Ask(ask)) => Content::Ask(parent_ask(ask, &to).inside("ask")?),
            Some(Form::Given(given)) => Content::Given(parent_given(given, from).inside("given")?),
            None => {
                let why = "is missing, or of a kind that this version does not know";
                return Err(Malformed::new("content", why));
            }
        };
        Ok(Packet { to, from, content })
    }
}

impl From<LogPosition> for proto::LogPosition {
    fn from(position: LogPosition) -> Self {
        proto::LogPosition { epoch: position.epoch.0, index: position.index }
    }
}

impl From<proto::LogPosition> for LogPosition {
    fn from(form: proto::LogPosition) -> Self {
        LogPosition { epoch: Epoch(form.epoch), index: form.index }
    }
}

/// A snapshot is of some entry, so its position is there.
fn snapshot_position(form: Option<proto::LogPosition>) -> Result<LogPosition, Malformed> {
    form.map(Into::into).ok_or_else(|| Malformed::new("position", "is missing"))
}

impl From<Entry> for proto::LogEntry {
    fn from(entry: Entry) -> Self {
        let (kind, payload) = match entry.kind {
            EntryKind::Begin => (proto::LogEntryKind::Begin, Bytes::new()),
            EntryKind::Write(payload) => (proto::LogEntryKind::Write, Bytes::from_owner(payload)),
            EntryKind::Close => (proto::LogEntryKind::Close, Bytes::new()),
        };
        let LogPosition { epoch, index } = entry.position;
        proto::LogEntry { epoch: epoch.0, index, kind: kind.into(), payload }
    }
}

impl TryFrom<proto::LogEntry> for Entry {
    type Error = Malformed;
    fn try_from(form: proto::LogEntry) -> Result<Self, Malformed> {
        let kind = match proto::LogEntryKind::try_from(form.kind) {
            Ok(proto::LogEntryKind::Begin) if form.payload.is_empty() => EntryKind::Begin,
            Ok(proto::LogEntryKind::Close) if form.payload.is_empty() => EntryKind::Close,
            Ok(proto::LogEntryKind::Begin | proto::LogEntryKind::Close) => {
                let why =
                    format!("has {} bytes: the first entry of an epoch has no payload", form.payload.len());
                return Err(Malformed::new("payload", why));
            }
            Ok(proto::LogEntryKind::Write) => EntryKind::Write(form.payload.as_ref().into()),
            Ok(proto::LogEntryKind::Unspecified) | Err(_) => {
                let why =
                    format!("{} is no kind of entry: give 1 (begin), 2 (write) or 3 (close)", form.kind);
                return Err(Malformed::new("kind", why));
            }
        };
        Ok(Entry { position: LogPosition { epoch: Epoch(form.epoch), index: form.index }, kind })
    }
}

impl From<Append> for proto::Append {
    fn from(append: Append) -> Self {
        let echo = |echo: Echo| proto::ClockEcho { incarnation: echo.incarnation.0, clock_ms: echo.clock.0 };
        proto::Append {
            epoch: append.epoch.0,
            before: Some(append.before).filter(|before| *before != LogPosition::default()).map(Into::into),
            entries: append.entries.into_iter().map(Into::into).collect(),
            committed: append.committed,
            is_enough: append.is_enough,
            sent_ms: append.sent.0,
            echo: append.echo.map(echo),
        }
    }
}

impl TryFrom<proto::Append> for Append {
    type Error = Malformed;
    fn try_from(form: proto::Append) -> Result<Self, Malformed> {
        let echo = |form: proto::ClockEcho| Echo {
            incarnation: Incarnation(form.incarnation),
            clock: Millis(form.clock_ms),
        };
        let before: LogPosition = form.before.map(Into::into).unwrap_or_default();
        let entries: Vec<Entry> = each(form.entries, "entries", Entry::try_from)?;
        let mut last = before.index;
        for (at, entry) in entries.iter().enumerate() {
            let index = entry.position.index;
            if last.checked_add(1) != Some(index) {
                let why = format!(
                    "{index} does not follow on {last}: entries of an append are one after the other"
                );
                return Err(Malformed::new(format!("entries[{at}].index"), why));
            }
            last = index;
        }
        Ok(Append {
            epoch: Epoch(form.epoch),
            before,
            entries,
            committed: form.committed,
            is_enough: form.is_enough,
            sent: Millis(form.sent_ms),
            echo: form.echo.map(echo),
        })
    }
}

impl From<Reply> for proto::AppendReply {
    fn from(reply: Reply) -> Self {
        proto::AppendReply {
            epoch: reply.epoch.0,
            fence: reply.fence.0,
            incarnation: reply.incarnation.0,
            sent_ms: reply.sent.0,
            clock_ms: reply.clock.0,
            matched: reply.matched,
            ends: reply.ends,
        }
    }
}

impl From<proto::AppendReply> for Reply {
    fn from(form: proto::AppendReply) -> Self {
        Reply {
            epoch: Epoch(form.epoch),
            fence: Epoch(form.fence),
            incarnation: Incarnation(form.incarnation),
            sent: Millis(form.sent_ms),
            clock: Millis(form.clock_ms),
            matched: form.matched,
            ends: form.ends,
        }
    }
}

impl From<Chunk> for proto::SnapshotChunk {
    fn from(chunk: Chunk) -> Self {
        let rows = chunk.rows.into_iter().map(|(key, value)| proto::SnapshotRow { key, value });
        proto::SnapshotChunk {
            position: Some(chunk.position.into()),
            number: chunk.number,
            rows: rows.collect(),
            is_last: chunk.is_last,
            is_pressed: chunk.is_pressed,
            is_urgent: chunk.is_urgent,
        }
    }
}

impl TryFrom<proto::SnapshotChunk> for Chunk {
    type Error = Malformed;
    fn try_from(form: proto::SnapshotChunk) -> Result<Self, Malformed> {
        let position = snapshot_position(form.position)?;
        let ascends = |pair: &[proto::SnapshotRow]| pair[0].key < pair[1].key;
        if let Some(at) = form.rows.windows(2).position(|pair| !ascends(pair)) {
            let why =
                "is not above that of the row before: the rows of a chunk are in the order of their keys";
            return Err(Malformed::new(format!("rows[{}].key", at + 1), why));
        }
        let (number, is_last) = (form.number, form.is_last);
        let (is_pressed, is_urgent) = (form.is_pressed, form.is_urgent);
        let rows = form.rows.into_iter().map(|row| (row.key, row.value)).collect();
        Ok(Chunk { position, number, rows, is_last, is_pressed, is_urgent })
    }
}

impl From<ParentAsk> for proto::ParentAsk {
    fn from(ask: ParentAsk) -> Self {
        proto::ParentAsk {
            child: ask.child.0,
            bounds: Some((&ask.bounds).into()),
            node: ask.node.to_string(),
            after: ask.ask.after.map(Into::into),
        }
    }
}

fn parent_ask(form: proto::ParentAsk, to: &ReplicaKey) -> Result<ParentAsk, Malformed> {
    let after = form.after.map(Into::into);
    Ok(ParentAsk {
        child: ShardId(form.child),
        bounds: required(form.bounds, "bounds")?,
        node: NodeId::new(&form.node).at("node")?,
        ask: Ask { parent: to.shard, of: to.placement, after },
    })
}

impl From<ParentGiven> for proto::ParentGiven {
    fn from(ParentGiven { given, changes }: ParentGiven) -> Self {
        use proto::parent_given::What as Form;
        let what = match given.what {
            GivenExtent::Snapshot(position) => Form::Snapshot(position.into()),
            GivenExtent::Changes { after, to } => {
                Form::Changes(proto::ChangesBetween { after: Some(after.into()), to: Some(to.into()) })
            }
        };
        proto::ParentGiven {
            parent: given.parent.0,
            what: Some(what),
            end: given.end,
            closed: given.closed.map(Into::into),
            has_more: given.has_more,
            stored_changes: changes
                .into_iter()
                .map(|(key, value)| proto::StoredChange { key, value })
                .collect(),
        }
    }
}

fn parent_given(form: proto::ParentGiven, by: PlacementId) -> Result<ParentGiven, Malformed> {
    use proto::parent_given::What as Form;
    let what = match form.what {
        Some(Form::Snapshot(position)) => GivenExtent::Snapshot(position.into()),
        Some(Form::Changes(between)) => {
            let (after, to): (LogPosition, LogPosition) = (
                between.after.map(Into::into).unwrap_or_default(),
                between.to.map(Into::into).unwrap_or_default(),
            );
            if to.index < after.index {
                let why = format!("{} is before {}, behind which the changes begin", to.index, after.index);
                return Err(Malformed::new("changes.to", why));
            }
            GivenExtent::Changes { after, to }
        }
        None => return Err(Malformed::new("what", "is missing: give a snapshot or changes")),
    };
    let changes = form.stored_changes.into_iter().map(|change| (change.key, change.value)).collect();
    let (closed, has_more) = (form.closed.map(Into::into), form.has_more);
    let given = Given { parent: ShardId(form.parent), by, what, end: form.end, closed, has_more };
    Ok(ParentGiven { given, changes })
}
