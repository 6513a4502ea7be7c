//! Maps by push: what a router asks for, and what it is sent.
//!
//! A large map comes in parts, each a message of its own. [`in_parts`] cuts, [`Joiner`] puts together; to
//! a router a map still changes in one step.

use crate::conversion::Numbered;
use crate::limits::{ADDRESS_BYTES, SHARDS_IN_PART};
use crate::malformed::at_most;
use crate::malformed::{At, Inside, each, name_unless_empty, names, none_if_empty, optional, required};
use crate::worker::grpc::node;
use crate::{Malformed, proto};
use partage_core::base::id::{Generation, Incarnation, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::MapDiff;
use partage_core::node::exchange::{ClusterIdentity, KeyspaceBrief};
use std::collections::{BTreeMap, BTreeSet};

pub use partage_core::node::NodeAddress;

/// What a router wants to hear of, and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Watch {
    /// Empty = all, also those that are created later.
    pub keyspaces: BTreeSet<KeyspaceName>,
    /// The maps that it has.
    pub known: BTreeMap<KeyspaceName, Generation>,
}

/// What happened to one keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapNews {
    /// Its map has changed.
    Changed {
        /// Its settings, when the router may not have them yet.
        brief: Option<KeyspaceBrief>,
        /// What the router has must be forgotten: the diff begins at the empty map.
        resync: bool,
        /// The difference that leads to the new map.
        diff: Box<MapDiff>,
    },
    /// It is gone, if its shards began below that: the coordinator may lag behind, and not know a later one of that name yet.
    Deleted(KeyspaceName, ShardId),
    /// Everything that there was when the stream began has been sent: said once on each stream, and once more with a horizon
    /// where the first had none (0). Keyspaces whose shards begin below that are among it, or are gone.
    Current(ShardId),
    /// Over how long routers spread, in milliseconds, when this coordinator is lost.
    Spread(u64),
    /// Which cluster the coordinator is of: said first on each stream.
    Cluster(ClusterIdentity),
    /// Nothing: the event is about nodes only.
    Nothing,
}

/// One message to a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapEvent {
    /// What has happened to a keyspace, or where the stream is.
    pub news: MapNews,
    /// New or different addresses.
    pub nodes: Vec<NodeAddress>,
    /// Nodes that no map refers to any more.
    pub forgotten: Vec<NodeId>,
}

impl From<&Watch> for proto::WatchRequest {
    fn from(watch: &Watch) -> Self {
        let known = watch.known.iter().map(|(keyspace, generation)| proto::KnownMap {
            keyspace: keyspace.to_string(),
            generation: Some((*generation).into()),
        });
        proto::WatchRequest {
            keyspaces: watch.keyspaces.iter().map(ToString::to_string).collect(),
            known: known.collect(),
        }
    }
}

impl TryFrom<proto::WatchRequest> for Watch {
    type Error = Malformed;
    fn try_from(form: proto::WatchRequest) -> Result<Self, Malformed> {
        let known = each(form.known, "known", |known| {
            let keyspace = KeyspaceName::new(&known.keyspace).at("keyspace")?;
            Ok((keyspace, required(known.generation, "generation")?))
        })?;
        Ok(Watch { keyspaces: names(&form.keyspaces, "keyspaces")?, known })
    }
}

impl From<&NodeAddress> for proto::NodeAddress {
    fn from(node: &NodeAddress) -> Self {
        proto::NodeAddress {
            id: node.id.to_string(),
            incarnation: node.incarnation.0,
            address: node.address.clone(),
            zone: node.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
            health: node.health.number(),
            resp_address: node.resp_address.clone().unwrap_or_default(),
            labels: node.labels.iter().map(ToString::to_string).collect(),
            drains: node.drains,
        }
    }
}

impl TryFrom<proto::NodeAddress> for NodeAddress {
    type Error = Malformed;
    fn try_from(form: proto::NodeAddress) -> Result<Self, Malformed> {
        Ok(NodeAddress {
            id: NodeId::new(&form.id).at("id")?,
            incarnation: Incarnation(form.incarnation),
            address: at_most(form.address, "address", ADDRESS_BYTES)?,
            zone: name_unless_empty(&form.zone, "zone")?,
            health: node::health(form.health),
            resp_address: node::resp_address(none_if_empty(form.resp_address))?,
            labels: names(&form.labels, "labels")?,
            drains: form.drains,
        })
    }
}

/// The messages of one event: one, unless its diff is of more than [`SHARDS_IN_PART`] shards.
pub fn in_parts(event: &MapEvent) -> Vec<proto::MapEvent> {
    let mut first = proto::MapEvent {
        nodes: event.nodes.iter().map(Into::into).collect(),
        forgotten: event.forgotten.iter().map(ToString::to_string).collect(),
        ..proto::MapEvent::default()
    };
    match &event.news {
        MapNews::Nothing => vec![first],
        MapNews::Current(horizon) => {
            first.current = true;
            first.horizon = horizon.0;
            vec![first]
        }
        MapNews::Spread(ms) => {
            first.spread_ms = *ms;
            vec![first]
        }
        MapNews::Cluster(identity) => {
            first.cluster = identity.cluster.to_string();
            first.continues = identity.continues.iter().map(ToString::to_string).collect();
            vec![first]
        }
        MapNews::Deleted(keyspace, horizon) => {
            first.horizon = horizon.0;
            first.keyspace = keyspace.to_string();
            first.deleted = true;
            vec![first]
        }
        MapNews::Changed { brief, resync, diff } => {
            first.brief = brief.as_ref().map(Into::into);
            first.resync = *resync;
            let mut parts: Vec<proto::MapEvent> = cut(diff, SHARDS_IN_PART)
                .map(|part| proto::MapEvent {
                    keyspace: diff.keyspace.to_string(),
                    diff: Some((&part).into()),
                    more: true,
                    ..std::mem::take(&mut first)
                })
                .collect();
            parts.iter_mut().next_back().into_iter().for_each(|last| last.more = false);
            parts
        }
    }
}

/// The diff as one or more diffs of at most `shards` changed shards each, the first with all removals. Each
/// says where the whole begins and leads; only all of them together lead there.
pub(crate) fn cut(diff: &MapDiff, shards: usize) -> impl Iterator<Item = MapDiff> {
    let count = diff.changed.len().div_ceil(shards).max(1);
    (0..count).map(move |part| MapDiff {
        keyspace: diff.keyspace.clone(),
        changed: diff.changed.chunks(shards).nth(part).unwrap_or_default().to_vec(),
        removed: if part == 0 { diff.removed.clone() } else { vec![] },
        ..*diff
    })
}

/// Adds the next part of a [`cut`] diff.
pub(crate) fn join(whole: &mut MapDiff, part: MapDiff) -> Result<(), Malformed> {
    if part.keyspace != whole.keyspace || part.from != whole.from || part.to != whole.to {
        return Err(Malformed::new("diff", "is not the next part of the one before"));
    }
    let above =
        whole.changed.last().is_none_or(|last| part.changed.first().is_none_or(|next| last.id < next.id));
    if !above {
        return Err(Malformed::new("diff.changed", "has a shard that the part before had"));
    }
    whole.changed.extend(part.changed);
    whole.removed.extend(part.removed);
    Ok(())
}

/// Puts the parts of an event together.
#[derive(Debug, Default)]
pub struct Joiner {
    begun: Option<MapEvent>,
}

impl Joiner {
    /// Takes the next message of the stream; gives the event when it is whole. After an error the stream is
    /// of no more use.
    pub fn take(&mut self, form: proto::MapEvent) -> Result<Option<MapEvent>, Malformed> {
        let more = form.more;
        let part = MapEvent::try_from(form)?;
        let event = match self.begun.take() {
            None => part,
            Some(begun) => joined(begun, part)?,
        };
        if more {
            self.begun = Some(event);
            return Ok(None);
        }
        Ok(Some(event))
    }
}

fn joined(mut begun: MapEvent, part: MapEvent) -> Result<MapEvent, Malformed> {
    match (&mut begun.news, part.news) {
        (MapNews::Changed { diff: whole, .. }, MapNews::Changed { diff, .. }) => join(whole, *diff)?,
        _ => return Err(Malformed::new("more", "was said, but what came is no further part")),
    }
    begun.nodes.extend(part.nodes);
    begun.forgotten.extend(part.forgotten);
    Ok(begun)
}

impl TryFrom<proto::MapEvent> for MapEvent {
    type Error = Malformed;
    fn try_from(form: proto::MapEvent) -> Result<Self, Malformed> {
        let keyspace: Option<KeyspaceName> = name_unless_empty(&form.keyspace, "keyspace")?;
        let news = match (keyspace, form.deleted, form.diff) {
            (None, false, None) if form.current => MapNews::Current(ShardId(form.horizon)),
            (None, false, None) if form.spread_ms > 0 => MapNews::Spread(form.spread_ms),
            (None, false, None) if !form.cluster.is_empty() => MapNews::Cluster(ClusterIdentity {
                cluster: form.cluster.parse().at("cluster")?,
                continues: names(&form.continues, "continues")?,
            }),
            (None, false, None) => MapNews::Nothing,
            (Some(keyspace), true, None) => MapNews::Deleted(keyspace, ShardId(form.horizon)),
            (Some(keyspace), false, Some(diff)) => {
                let diff: MapDiff = diff.try_into().inside("diff")?;
                if diff.keyspace != keyspace {
                    return Err(Malformed::new("diff.keyspace", "is not that of the event"));
                }
                if form.resync && diff.from != Generation::default() {
                    return Err(Malformed::new("diff.from", "must be the empty map in a resync"));
                }
                MapNews::Changed {
                    brief: optional(form.brief, "brief")?,
                    resync: form.resync,
                    diff: Box::new(diff),
                }
            }
            _ => {
                let why = "an event has a keyspace with either a diff or `deleted`, or nothing but nodes";
                return Err(Malformed::new("keyspace", why));
            }
        };
        Ok(MapEvent {
            news,
            nodes: each(form.nodes, "nodes", NodeAddress::try_from)?,
            forgotten: names(&form.forgotten, "forgotten")?,
        })
    }
}
