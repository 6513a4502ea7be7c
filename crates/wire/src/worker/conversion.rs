//! Conversions of workers that JSON and protobuf share.

use crate::conversion::{Field, Given, from_forms, into_forms};
use crate::json::{self, ReplicaPhase};
use crate::malformed::name;
use crate::proto;
use crate::worker::json::exchange::{Permission as JsonPermission, Served as JsonServed};
use partage_core::base::count::counted;
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::node::exchange::{Failure, Known, Peer, Permission, Phase, ReplicaKey, Served, Stored};

into_forms!(key: &ReplicaKey => [json::ReplicaKey, proto::ReplicaKey] {
    keyspace: key.keyspace.to_string(),
    shard: key.shard.0,
    placement: key.placement.0,
});

from_forms!(form: [json::ReplicaKey, proto::ReplicaKey] => ReplicaKey {
    keyspace: name(&form.keyspace, "keyspace")?,
    shard: ShardId(form.shard),
    placement: PlacementId(form.placement),
});

into_forms!(known: &Known => [json::Known, proto::Known] {
    keyspace: known.keyspace.to_string(),
    first_shard: known.first_shard.0,
    generation: Field::of(known.generation),
});

from_forms!(form: [json::Known, proto::Known] => Known {
    keyspace: name(&form.keyspace, "keyspace")?,
    first_shard: ShardId(form.first_shard),
    generation: form.generation.given("generation")?,
});

into_forms!(stored: &Stored => [json::Stored, proto::Stored] {
    replica: Field::of(&stored.replica),
    bounds: Field::of(&stored.bounds),
    epoch: stored.epoch.0,
    store: stored.store,
    damaged: stored.damaged,
});

from_forms!(form: [json::Stored, proto::Stored] => Stored {
    replica: form.replica.given("replica")?,
    bounds: form.bounds.given("bounds")?,
    epoch: Epoch(form.epoch),
    store: form.store,
    damaged: form.damaged,
});

into_forms!(permission: &Permission => [JsonPermission, proto::Permission] {
    replica: Field::of(&permission.replica),
    reason: Field::of(permission.reason),
    epoch: permission.epoch.0,
});

into_forms!(peer: &Peer => [json::Peer, proto::Peer] {
    shard: peer.shard.0,
    placement: peer.placement.0,
    bounds: Field::of(&peer.bounds),
    node: peer.node.to_string(),
    incarnation: peer.incarnation.0,
    address: peer.address.clone().unwrap_or_default(),
    role: Field::of(peer.role),
    state: Field::of(peer.state),
    in_sync: peer.in_sync,
});

from_forms!(form: [JsonServed, proto::Served] => Served {
    epoch: Epoch(form.epoch),
    bounds: form.bounds.given("bounds")?,
});

/// The word of a phase, and how it failed, if it has.
pub(crate) fn phase_parts(phase: &Phase) -> (ReplicaPhase, Option<&Failure>) {
    match phase {
        Phase::Loading => (ReplicaPhase::Loading, None),
        Phase::Ready => (ReplicaPhase::Ready, None),
        Phase::Serving => (ReplicaPhase::Serving, None),
        Phase::Unloading => (ReplicaPhase::Unloading, None),
        Phase::Unloaded => (ReplicaPhase::Unloaded, None),
        Phase::Kept => (ReplicaPhase::Kept, None),
        Phase::Dropped => (ReplicaPhase::Dropped, None),
        Phase::Failed(failure) => (ReplicaPhase::Failed, Some(failure.as_ref())),
    }
}

/// Why a load failed, and how often in a row.
pub(crate) fn failure_text(failure: &Failure) -> String {
    format!("{} ({})", failure.reason, counted(failure.attempts, "time"))
}

/// The phase of that word; the failure is that of a failed one.
pub(crate) fn phase(word: ReplicaPhase, failure: Failure) -> Phase {
    match word {
        ReplicaPhase::Loading => Phase::Loading,
        ReplicaPhase::Ready => Phase::Ready,
        ReplicaPhase::Serving => Phase::Serving,
        ReplicaPhase::Unloading => Phase::Unloading,
        ReplicaPhase::Unloaded => Phase::Unloaded,
        ReplicaPhase::Kept => Phase::Kept,
        ReplicaPhase::Dropped => Phase::Dropped,
        ReplicaPhase::Failed => Phase::Failed(Box::new(failure)),
    }
}
