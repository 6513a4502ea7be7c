//! What workers and coordinators tell each other.

use crate::Malformed;
use crate::conversion::Numbered;
use crate::json::ReplicaPhase;
use crate::limits::ADDRESS_BYTES;
use crate::malformed::{At, each, names, optional, required};
use crate::malformed::{at_most, sentence};
use crate::map::grpc::{role, state};
use crate::proto;
use crate::worker::conversion::{phase, phase_parts};
use crate::worker::session::digest_given;
use partage_core::base::id::{
    ClusterId, Configuration, Epoch, Incarnation, PlacementId, SessionDigest, ShardId,
};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::keyspace::key::Key;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{
    Beat, DiskHealth, DropReason, Failure, Known, LeaseRenewal, Order, Orders, Peer, Permission, ReplicaKey,
    ReplicationReport, Report, Served, Stored,
};
use partage_core::node::load::{HOT_KEYS, HotKey, Load, Profile};

impl From<&Registration> for proto::Register {
    fn from(registration: &Registration) -> Self {
        proto::Register {
            spec: Some((&registration.spec).into()),
            incarnation: registration.incarnation.map_or(0, |incarnation| incarnation.0),
            cluster: registration.cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
            stored: registration.stored.iter().map(Into::into).collect(),
            stored_of: registration.stored_of.map(|cluster| cluster.to_string()).unwrap_or_default(),
            known: registration.known.iter().map(Into::into).collect(),
            // Core knows digests. Who sends it has the token.
            token: String::new(),
        }
    }
}

impl TryFrom<proto::Register> for Registration {
    type Error = Malformed;
    fn try_from(form: proto::Register) -> Result<Self, Malformed> {
        Ok(Registration {
            // Its fields are those of the registration, as in JSON: errors call them by the same names.
            spec: form.spec.ok_or_else(|| Malformed::new("spec", "is missing"))?.try_into()?,
            incarnation: (form.incarnation != 0).then_some(Incarnation(form.incarnation)),
            session: digest_given(Some(form.token.as_str()).filter(|token| !token.is_empty()))?,
            cluster: cluster_given(&form.cluster, "cluster")?,
            stored: each(form.stored, "stored", Stored::try_from)?,
            stored_of: cluster_given(&form.stored_of, "stored_of")?,
            known: each(form.known, "known", Known::try_from)?,
            from: None,
        })
    }
}

/// A cluster by its digits; empty = none.
fn cluster_given(text: &str, field: &'static str) -> Result<Option<ClusterId>, Malformed> {
    (!text.is_empty()).then(|| text.parse()).transpose().at(field)
}

impl From<&Welcome> for proto::Welcome {
    fn from(welcome: &Welcome) -> Self {
        proto::Welcome {
            cluster: welcome.cluster.to_string(),
            continues: welcome.continues.iter().map(ToString::to_string).collect(),
            incarnation: welcome.incarnation.0,
            heartbeat_ms: welcome.heartbeat_ms,
            lease_ms: welcome.lease_ms,
            token: String::new(),
        }
    }
}

impl TryFrom<proto::Welcome> for Welcome {
    type Error = Malformed;
    fn try_from(form: proto::Welcome) -> Result<Self, Malformed> {
        if form.incarnation == 0 {
            return Err(Malformed::new("incarnation", "is 0: incarnations count from 1"));
        }
        if form.heartbeat_ms == 0 {
            return Err(Malformed::new("heartbeat_ms", "is 0: a worker cannot beat without a pause"));
        }
        Ok(Welcome {
            cluster: form.cluster.parse().at("cluster")?,
            continues: names(&form.continues, "continues")?,
            incarnation: Incarnation(form.incarnation),
            heartbeat_ms: form.heartbeat_ms,
            lease_ms: form.lease_ms,
        })
    }
}

impl From<&Load> for proto::Load {
    fn from(load: &Load) -> Self {
        let hot = load.profile.hot_keys().iter().take(HOT_KEYS);
        proto::Load {
            requests_per_s: load.requests_per_s,
            cpu_ms_per_s: load.cpu_ms_per_s,
            size_bytes: load.size_bytes,
            keys: load.keys,
            hot_keys: hot
                .map(|hot| proto::HotKey {
                    key: hot.key.as_bytes().to_vec(),
                    requests_per_s: hot.requests_per_s,
                })
                .collect(),
            median: load.profile.median().map(|key| key.as_bytes().to_vec()),
        }
    }
}

/// The last check of every load, whichever API it came through.
pub(crate) fn checked(load: Load) -> Result<Load, Malformed> {
    if load.profile.hot_keys().len() > HOT_KEYS {
        let why = format!("has {} entries: send the heaviest {HOT_KEYS}", load.profile.hot_keys().len());
        return Err(Malformed::new("hot_keys", why));
    }
    let field = |metric| match metric {
        "requests" => "requests_per_s",
        "cpu" => "cpu_ms_per_s",
        "bytes" => "size_bytes",
        other => other,
    };
    load.check().map_err(|error| Malformed::new(field(error.metric), &error))?;
    Ok(load)
}

impl TryFrom<proto::Load> for Load {
    type Error = Malformed;
    fn try_from(form: proto::Load) -> Result<Self, Malformed> {
        checked(Load {
            requests_per_s: form.requests_per_s,
            cpu_ms_per_s: form.cpu_ms_per_s,
            size_bytes: form.size_bytes,
            keys: form.keys,
            profile: Profile::new(
                each(form.hot_keys, "hot_keys", |hot| {
                    Ok(HotKey { key: Key::new(&hot.key).at("key")?, requests_per_s: hot.requests_per_s })
                })?,
                form.median.map(|key| Key::new(&key)).transpose().at("median")?,
            ),
        })
    }
}

impl From<&Served> for proto::Served {
    fn from(served: &Served) -> Self {
        proto::Served { epoch: served.epoch.0, bounds: Some((&served.bounds).into()) }
    }
}

impl From<&Report> for proto::Report {
    fn from(report: &Report) -> Self {
        let (phase, failure) = phase_parts(&report.phase);
        proto::Report {
            replica: Some((&report.replica).into()),
            phase: phase.number(),
            epoch: report.epoch.0,
            load: report.load.as_ref().map(Into::into),
            attempts: failure.map_or(0, |failure| failure.attempts),
            reason: failure.map_or(String::new(), |failure| sentence(failure.reason.clone())),
            progress: report.progress,
            served: report.served.as_ref().map(Into::into),
            replication: report.replication.as_ref().map(Into::into),
            damaged: failure.is_some_and(|failure| failure.damaged),
        }
    }
}

impl From<&ReplicationReport> for proto::Replication {
    fn from(report: &ReplicationReport) -> Self {
        let set = |members: &Vec<PlacementId>| proto::InSyncSet {
            placements: members.iter().map(|placement| placement.0).collect(),
        };
        proto::Replication {
            configuration: report.configuration.0,
            log_end: report.log_end,
            leader_silent: report.leader_silent,
            wish: report.wish.as_ref().map(set),
            heir_ready: report.heir_ready.map(|heir| heir.0),
        }
    }
}

/// The members of an in-sync set that a leader asks for.
pub(crate) fn wished(placements: Vec<u64>) -> Result<Vec<PlacementId>, Malformed> {
    let (count, limit) = (placements.len(), 2 * partage_core::limits::REPLICAS);
    match count <= limit {
        true => Ok(placements.into_iter().map(PlacementId).collect()),
        false => Err(Malformed::new("wish", format!("has {count} entries: the limit is {limit}"))),
    }
}

impl TryFrom<proto::Replication> for ReplicationReport {
    type Error = Malformed;
    fn try_from(form: proto::Replication) -> Result<Self, Malformed> {
        Ok(ReplicationReport {
            configuration: Configuration(form.configuration),
            log_end: form.log_end,
            leader_silent: form.leader_silent,
            wish: form.wish.map(|set| wished(set.placements)).transpose()?,
            heir_ready: form.heir_ready.map(PlacementId),
        })
    }
}

impl TryFrom<proto::Report> for Report {
    type Error = Malformed;
    fn try_from(form: proto::Report) -> Result<Self, Malformed> {
        let no_phase = || Malformed::new("phase", format!("{} is no phase: give 1 to 8", form.phase));
        let word = ReplicaPhase::of_number(form.phase).ok_or_else(no_phase)?;
        let (attempts, reason, damaged) = (form.attempts, sentence(form.reason), form.damaged);
        Ok(Report {
            replica: required(form.replica, "replica")?,
            phase: phase(word, Failure { attempts, reason, damaged }),
            epoch: Epoch(form.epoch),
            load: optional(form.load, "load")?,
            progress: form.progress,
            served: optional(form.served, "served")?,
            replication: optional(form.replication, "replication")?,
        })
    }
}

impl From<&Beat> for proto::Beat {
    fn from(beat: &Beat) -> Self {
        proto::Beat {
            node: beat.node.to_string(),
            incarnation: beat.incarnation.0,
            sequence: beat.sequence,
            sent_at_ms: beat.sent_at.0,
            applied: beat.applied,
            whole: beat.whole,
            reports: beat.reports.iter().map(Into::into).collect(),
            // Workers over gRPC say it each time.
            leaving: beat.leaving.unwrap_or_default(),
            busy: beat.busy,
            lease_expired: beat.lease_expired,
            disk_full: beat.disk.full,
            disk_stalled: beat.disk.stalled,
            disk_nearly_full: beat.disk.nearly_full,
        }
    }
}

/// A share from 0 to 1.
pub(crate) fn share(value: f64, field: &str) -> Result<f64, Malformed> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(Malformed::new(field, format!("is {value}: give a share from 0 to 1"))),
    }
}

impl TryFrom<proto::Beat> for Beat {
    type Error = Malformed;
    fn try_from(form: proto::Beat) -> Result<Self, Malformed> {
        Ok(Beat {
            node: NodeId::new(&form.node).at("node")?,
            incarnation: Incarnation(form.incarnation),
            // The gRPC service sets it, by the stream on which the beat came.
            session: SessionDigest::default(),
            sequence: form.sequence,
            sent_at: Millis(form.sent_at_ms),
            applied: form.applied,
            sent: 0,
            whole: form.whole,
            reports: each(form.reports, "reports", Report::try_from)?,
            leaving: Some(form.leaving),
            busy: share(form.busy, "busy")?,
            lease_expired: form.lease_expired,
            disk: DiskHealth {
                full: form.disk_full,
                nearly_full: form.disk_nearly_full,
                stalled: form.disk_stalled,
            },
        })
    }
}

impl TryFrom<proto::Peer> for Peer {
    type Error = Malformed;
    fn try_from(form: proto::Peer) -> Result<Self, Malformed> {
        // Of a coordinator that does not say it: the worker would ask for a replica that is nowhere.
        if form.placement == 0 {
            return Err(Malformed::new("placement", "is missing"));
        }
        Ok(Peer {
            shard: ShardId(form.shard),
            placement: PlacementId(form.placement),
            bounds: required(form.bounds, "bounds")?,
            node: NodeId::new(&form.node).at("node")?,
            incarnation: Incarnation(form.incarnation),
            address: Some(at_most(form.address, "address", ADDRESS_BYTES)?)
                .filter(|address| !address.is_empty()),
            role: role(form.role)?,
            state: state(form.state)?,
            in_sync: form.in_sync,
        })
    }
}

fn drop_reason(form: i32, field: &str) -> Result<Option<DropReason>, Malformed> {
    match DropReason::of_number(form) {
        None if form != 0 => {
            Err(Malformed::new(field, format!("{form} is no reason to delete data: give 1 to 3")))
        }
        reason => Ok(reason),
    }
}

impl TryFrom<proto::Permission> for Permission {
    type Error = Malformed;
    fn try_from(form: proto::Permission) -> Result<Self, Malformed> {
        let missing = || Malformed::new("reason", "is missing");
        Ok(Permission {
            replica: required(form.replica, "replica")?,
            reason: drop_reason(form.reason, "reason")?.ok_or_else(missing)?,
            epoch: Epoch(form.epoch),
        })
    }
}

impl From<&Order> for proto::Order {
    fn from(order: &Order) -> Self {
        proto::Order {
            replica: Some((&order.replica).into()),
            bounds: Some((&order.bounds).into()),
            role: order.role.number(),
            state: order.state.number(),
            epoch: order.epoch.0,
            granted: order.granted,
            peers: order.peers.iter().map(Into::into).collect(),
            had_data: order.had_data,
            drop: order.drop.map_or(0, DropReason::number),
            configuration: order.configuration.0,
            in_sync: order.in_sync,
            hand_over_to: order.hand_over_to.map(|heir| heir.0),
        }
    }
}

impl TryFrom<proto::Order> for Order {
    type Error = Malformed;
    fn try_from(form: proto::Order) -> Result<Self, Malformed> {
        Ok(Order {
            replica: required(form.replica, "replica")?,
            bounds: required(form.bounds, "bounds")?,
            role: role(form.role)?,
            state: state(form.state)?,
            epoch: Epoch(form.epoch),
            configuration: Configuration(form.configuration),
            in_sync: form.in_sync,
            granted: form.granted,
            peers: each(form.peers, "peers", Peer::try_from)?,
            had_data: form.had_data,
            drop: drop_reason(form.drop, "drop")?,
            hand_over_to: form.hand_over_to.map(PlacementId),
        })
    }
}

impl From<&Orders> for proto::Orders {
    fn from(orders: &Orders) -> Self {
        let lease = orders.lease.map(|lease| proto::Lease {
            sent_at_ms: lease.sent_at.0,
            lease_ms: lease.lease_ms,
            spread_ms: lease.spread_ms,
        });
        proto::Orders {
            cluster: orders.cluster.to_string(),
            permissions: orders.permissions.iter().map(Into::into).collect(),
            incarnation: orders.incarnation.0,
            version: orders.version,
            base: orders.base,
            keyspaces: orders.keyspaces.iter().map(Into::into).collect(),
            changed: orders.changed.iter().map(Into::into).collect(),
            removed: orders.removed.iter().map(Into::into).collect(),
            lease,
            may_go: orders.may_go,
        }
    }
}

impl TryFrom<proto::Orders> for Orders {
    type Error = Malformed;
    fn try_from(form: proto::Orders) -> Result<Self, Malformed> {
        let lease = form.lease.map(|lease| LeaseRenewal {
            sent_at: Millis(lease.sent_at_ms),
            lease_ms: lease.lease_ms,
            spread_ms: lease.spread_ms,
        });
        Ok(Orders {
            cluster: form.cluster.parse().at("cluster")?,
            permissions: each(form.permissions, "permissions", Permission::try_from)?,
            incarnation: Incarnation(form.incarnation),
            version: form.version,
            base: form.base,
            keyspaces: each(form.keyspaces, "keyspaces", TryFrom::try_from)?,
            changed: each(form.changed, "changed", Order::try_from)?,
            removed: each(form.removed, "removed", ReplicaKey::try_from)?,
            lease,
            may_go: form.may_go,
        })
    }
}
