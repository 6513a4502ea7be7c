//! Workers that were told more than this cluster knows: its stored state was set back, or another coordinator leads.
//!
//! A worker says with its registration by which maps it was given orders. No commit is told before it is durable, so a
//! coordinator that has older maps has not read what is durable now: it was deposed and does not know it yet, or
//! somebody put an older state in the place of the newest. Either way it must give no orders by what it has. It refuses
//! the worker, decides no more ([`Cluster::later_maps`]), and the driver reads everything anew. What is
//! older even then goes into quarantine ([`Records::refuse_older`]), and the numbers go on far beyond what may have
//! been given out.
//!
//! What is known of later maps is stored beside the older state ([`super::ClusterRecord::later_maps`]): coordinators
//! and workers may all be started anew before the newest is put back, and none would know.
//!
//! A worker that names no cluster, or another one, is not believed: this cluster has told it nothing.

use super::{Cluster, Moment, Records, StoredFaults};
use crate::base::count::counted;
use crate::base::counter_jump::CounterJump;
use crate::base::id::{Generation, TransactionId};
use crate::base::name::KeyspaceName;
use crate::base::planted::{self, Planted};
use crate::limits;
use crate::node::exchange::{Known, Registration, ReplicaKey, Stored};
use std::collections::BTreeMap;

/// What was known of keyspaces, by whom: the latest of each.
pub type LaterMaps = BTreeMap<KeyspaceName, LaterMap>;

/// A map that somebody knows of: it was told of the map, or has stored what such a map ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterMap {
    /// The worker or coordinator that knows of the map, as a subject of a sentence: "node n1", "this coordinator".
    pub who: String,
    /// The map that it knows of. With the transaction [`TransactionId::OF_NONE`] it stands for some later map, unknown which.
    pub known: Known,
}

impl Cluster {
    /// What a worker knows that this cluster does not, each with the map that this cluster has of the keyspace.
    pub(super) fn later_maps_of<'a>(
        &'a self,
        at: Moment,
        registration: &'a Registration,
    ) -> impl Iterator<Item = (LaterMap, Option<Generation>)> + 'a {
        let Registration { spec, cluster, stored, stored_of, known, .. } = registration;
        let node = &spec.id;
        // What a worker was told by a cluster that this one was restored from says nothing: there may have been other keyspaces
        // of these names. What it stored then does no harm: this cluster began with numbers beyond all of those.
        let known = if *cluster == Some(self.record.id) { &known[..] } else { &[] };
        let is_of_it = stored_of.is_some_and(|of| self.identity().is_or_continues(of));
        let stored = if is_of_it { &stored[..] } else { &[] };
        let told = known.iter().map(move |known| (format!("node {node}"), known.clone()));
        let stored = stored.iter().filter_map(move |stored| Some((stored, self.by_stored(at, stored)?)));
        let stored = stored.map(move |(stored, known)| {
            let ReplicaKey { shard, placement, .. } = &stored.replica;
            let epoch = stored.epoch;
            let who = format!("node {node}, which has stored {placement} of shard {shard} of epoch {epoch},");
            (who, known)
        });
        let all = told.chain(stored);
        all.filter_map(|(who, known)| self.is_behind(&known).map(|ours| (LaterMap { who, known }, ours)))
    }

    /// A process that was started anew was told nothing yet. But what it has stored was ordered by some map of this cluster:
    /// by a later one than ours, if that has not given out the shard, the replica or the epoch.
    fn by_stored(&self, at: Moment, stored: &Stored) -> Option<Known> {
        let ReplicaKey { keyspace, shard, placement } = &stored.replica;
        // What cannot be read may be named by anything.
        if stored.damaged {
            return None;
        }
        let Some(state) = self.keyspaces.get(keyspace) else {
            // One that there is no record of was created since, and began here or above. No number that was given out is
            // beyond those with which a keyspace would begin after a jump.
            let first_shard = self.record.next_shard;
            let may_be = *shard >= first_shard && shard.0 < CounterJump::at(at.wall_ms).beyond(0);
            let known = Known { keyspace: keyspace.clone(), first_shard, generation: Generation::default() };
            return may_be.then_some(known);
        };
        let map = &state.map;
        let is_later = *shard >= map.next_shard()
            || *placement >= map.next_placement()
            || map.shard(*shard).is_some_and(|shard| stored.epoch > shard.epoch);
        // Which one is not known: another than ours.
        let generation = Generation { transaction: TransactionId::OF_NONE, ..map.generation() };
        let first_shard = state.record.first_shard;
        (is_later && *shard >= first_shard).then(|| Known {
            keyspace: keyspace.clone(),
            first_shard,
            generation,
        })
    }

    /// What this cluster has of a keyspace, if somebody knows more.
    fn is_behind(&self, known: &Known) -> Option<Option<Generation>> {
        if planted::is(Planted::OlderState) {
            return None;
        }
        match self.keyspaces.get(&known.keyspace) {
            Some(state) => {
                let ours = state.map.generation();
                known.is_ahead_of(state.record.first_shard, ours).then_some(Some(ours))
            }
            None if self.recovered.faults.quarantine.contains_key(&known.keyspace) => None,
            // Deleted keyspaces began below.
            None => (known.first_shard >= self.record.next_shard).then_some(None),
        }
    }

    /// What workers were told that this cluster does not know. The driver of a cluster that has any lets it decide
    /// nothing more, and reads everything anew.
    pub fn later_maps(&self) -> &LaterMaps {
        &self.recovered.later_maps
    }
}

/// Adds a later map, if it is later than what is known.
pub fn note_later(ahead: &mut LaterMaps, later_map: LaterMap) {
    let is_news = match ahead.get(&later_map.known.keyspace) {
        // Which map it is says more than that it is another one.
        Some(before) if later_map.known.generation.transaction == TransactionId::OF_NONE => {
            let of = |known: &Known| (known.first_shard, known.generation.sequence);
            of(&later_map.known) > of(&before.known)
        }
        Some(before) => later_map.known.is_ahead_of(before.known.first_shard, before.known.generation),
        None => ahead.len() < limits::KEYSPACES,
    };
    if is_news {
        ahead.insert(later_map.known.keyspace.clone(), later_map);
    }
}

impl Records {
    /// Takes those keyspaces out whose map is older than one that somebody was told of, and puts them in quarantine. Then,
    /// and where one is missing, the whole state was set back, so that the counters are to go on far beyond
    /// ([`Records::mend`]). Forgets of `ahead` what is as new as that, and keeps the rest of it in these records, too.
    pub fn refuse_older(&mut self, faults: &mut StoredFaults, ahead: &mut LaterMaps) {
        if planted::is(Planted::OlderState) {
            return;
        }
        let stored = self.cluster.later_maps.clone();
        for known in &stored {
            note_later(ahead, LaterMap { who: "an earlier coordinator".to_owned(), known: known.clone() });
        }
        let mut older = Vec::new();
        self.keyspaces.retain(|(record, map)| {
            let name = &record.keyspace.name;
            let Some(LaterMap { who, known }) = ahead.get(name) else { return true };
            if !known.is_ahead_of(record.first_shard, map.generation()) {
                ahead.remove(name);
                return true;
            }
            let (ours, theirs) = (map.generation(), known.generation);
            let why =
                format!("its stored map is at {ours}, and {who} knows of {theirs}: somebody set it back");
            if !stored.contains(known) {
                older.push(format!("keyspace {name} is at {ours}, and {who} knows of {theirs}"));
            }
            faults.quarantine.insert(name.clone(), why);
            false
        });
        ahead.retain(|name, LaterMap { who, known }| {
            if faults.quarantine.contains_key(name) {
                return true;
            }
            let is_here = self.keyspaces.iter().any(|(record, _)| record.keyspace.name == *name);
            let is_missing = !is_here && known.first_shard >= self.cluster.next_shard;
            if is_missing {
                let at = known.generation;
                older.push(format!(
                    "keyspace {name} was at {at}, as {who} knows, and there is no record of it"
                ));
            }
            is_missing
        });
        let later = ahead.iter().filter(|(name, _)| faults.quarantine.contains_key(*name));
        self.cluster.later_maps = later.map(|(_, later_map)| later_map.known.clone()).collect();
        if !older.is_empty() {
            faults.was_set_back = true;
            let more = older.len().saturating_sub(limits::NAMES_SHOWN);
            older.truncate(limits::NAMES_SHOWN);
            let rest =
                if more > 0 { format!("; and {}", counted(more, "more keyspace")) } else { String::new() };
            faults.cluster.push(format!(
                "what is stored was restored from an older state of itself ({}{rest}): workers keep all data; stop all \
                 coordinators and put the newest state back, or restore a backup (`partage restore`)",
                older.join("; ")
            ));
        }
    }
}
