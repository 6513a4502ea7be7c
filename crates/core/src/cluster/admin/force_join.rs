//! A person chooses the copy with which a shard goes on, when no node that has all of its data comes back; or gives all of
//! it up, when none is left.
//!
//! The coordinator never chooses so by itself: what it cannot see may be the only place of an acknowledged write
//! (D10). So the answer says what may be missing, and the person types the generation of the map back that they have
//! looked at.

use super::{AdminError, Effect, Intent, KeyspaceState, NodeState};
use crate::base::id::{Epoch, PlacementId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::cluster::record::ShardRule;
use crate::cluster::{Cluster, Kept, Moment, stored};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Edit, EditError, Replica, Role, Shard};
use crate::keyspace::sharding::{Bounds, geometry};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::ReplicaKey;
use crate::plan::check::{self, Finding};
use crate::plan::handover::{DiskState, ReplicaView};
use std::collections::BTreeSet;

impl Cluster {
    pub(super) fn force_join(
        &self,
        at: Moment,
        transaction: TransactionId,
        (name, id): (&KeyspaceName, ShardId),
        node: &NodeId,
        generation: u64,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let shard = keyspace.serving(id)?;
        let state = self.node(node)?;
        self.may_force_join(keyspace, shard, generation)?;
        let health = state.signs.health(at.now, &self.settings);
        if health != Health::Up {
            return Err(AdminError::Refused {
                problem: format!("node {node} is {health}"),
                way_out: "start it first, and wait until it is up".into(),
            });
        }
        let mut edit = keyspace.map.edit();
        let mut warnings = self.give_parents_up(keyspace, shard, &mut edit)?;
        let lives = |r: &Replica| !state.has_ended(r.incarnation) && r.node == *node && !keyspace.has_lost(r);
        let (chosen, summary) = match shard.live().find(|r| lives(r)) {
            Some(replica) => {
                warnings.extend(self.give_missing_up(keyspace, (shard, replica), &mut edit)?);
                warnings.extend(keyspace.later_than(shard, replica));
                let placement = replica.placement;
                (placement, format!("let shard {id} of keyspace {name} go on as {placement} on {node}"))
            }
            None => {
                let (placement, kept) = self.stored_of(keyspace, shard, state)?;
                warnings.extend(self.may_be_missing(at, keyspace, shard, (placement, kept)));
                warnings.extend(given_up_there(shard, placement, state));
                choose(&mut edit, shard, placement, state)?;
                let summary = format!(
                    "let shard {id} of keyspace {name} go on with what {node} has stored as {placement}, of epoch {}",
                    kept.epoch
                );
                (placement, summary)
            }
        };
        let diff = edit.commit(transaction);
        let findings = check::diff(&keyspace.map, &diff).into_iter();
        no_finding(findings.chain(check::keeps_data(&keyspace.map, &diff)))?;
        Ok(Intent { warnings, ..Intent::new(summary, vec![Effect::GoOnWith(id, chosen, diff)]) })
    }

    /// A new shard takes the keys. It has never had data, so it is placed by itself; what nodes still have of the former
    /// one belongs to no shard any more.
    pub(super) fn recreate_shard(
        &self,
        transaction: TransactionId,
        (name, id): (&KeyspaceName, ShardId),
        generation: u64,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let shard = keyspace.serving(id)?;
        self.may_force_join(keyspace, shard, generation)?;
        self.has_no_holder(keyspace, shard)?;
        let mut edit = keyspace.map.edit();
        self.give_parents_up(keyspace, shard, &mut edit)?;
        edit.remove_shard(id)?;
        let new = edit.create_shard(shard.bounds.clone())?;
        let diff = edit.commit(transaction);
        // That the last copy goes is what the person asks for.
        no_finding(check::diff(&keyspace.map, &diff))?;
        let mut record = keyspace.record.clone();
        if let Some(rule) = record.rules.remove(&id) {
            let rule = ShardRule { set_aside: None, deaths: 0, ..rule };
            record.rules.extend((rule != ShardRule::default()).then_some((new, rule)));
        }
        let mut warnings = vec![format!("everything that was written to shard {id} is given up")];
        warnings.extend(self.stored_of_keys(keyspace, shard));
        let summary = format!("let {new}, which is empty, take the place of shard {id} of keyspace {name}");
        Ok(Intent {
            warnings,
            ..Intent::new(summary, vec![Effect::GiveUpShard(id, diff), Effect::Keyspace(record)])
        })
    }

    /// Where data of a shard's keys is stored, one sentence for each kind.
    fn stored_of_keys(&self, keyspace: &KeyspaceState, shard: &Shard) -> Vec<String> {
        let name = keyspace.map.keyspace();
        let stored =
            self.members.nodes.iter().flat_map(|(id, node)| node.kept.iter().map(move |stored| (id, stored)));
        let stored: Vec<_> = stored.filter(|(_, (key, _))| key.keyspace == *name).collect();
        let on = |is_its: &dyn Fn(&ReplicaKey, &Kept) -> bool| {
            let its = stored.iter().filter(|(_, (key, kept))| is_its(key, kept));
            let nodes: BTreeSet<&str> = its.map(|(id, _)| id.as_str()).collect();
            let named: Vec<_> = nodes.iter().copied().take(limits::NAMES_SHOWN).collect();
            (!named.is_empty()).then(|| named.join(", "))
        };
        let of_it = |key: &ReplicaKey| key.shard == shard.id;
        let holds_keys = |kept: &Kept| {
            let overlap = |bounds: &Bounds| geometry::overlap(bounds, &shard.bounds);
            kept.epoch > Epoch(0) && kept.bounds.as_ref().is_some_and(overlap)
        };
        let intact = on(&|key, kept| of_it(key) && !kept.damaged).map(|nodes| {
            format!(
                "some of it is stored on {nodes}: `partage shard force-join` goes on with that; the nodes may delete it when \
                 the new shard serves"
            )
        });
        let damaged = on(&|key, kept| of_it(key) && kept.damaged).map(|nodes| {
            format!(
                "what is stored on {nodes} cannot be read whole: save it before, if parts of it are wanted"
            )
        });
        let others = on(&|key, kept| !of_it(key) && !self.keyspaces.is_named(key) && holds_keys(kept)).map(|nodes| {
            format!(
                "{nodes} stored data of its keys, of shards that no map names: save it before, no command puts it in place"
            )
        });
        intact.into_iter().chain(damaged).chain(others).collect()
    }

    /// Refuses where a process has the data, and waits only for what the shard's parents have.
    fn has_no_holder(&self, keyspace: &KeyspaceState, shard: &Shard) -> Result<(), AdminError> {
        let lives = |r: &&Replica| !stored::has_ended(&self.members.nodes, r) && !keyspace.has_lost(r);
        let Some(Replica { node, placement, .. }) = shard.live().find(lives) else { return Ok(()) };
        Err(AdminError::Refused {
            problem: format!("node {node} has the data of shard {} as {placement}", shard.id),
            way_out: format!("`partage shard force-join --node {node}` goes on with that"),
        })
    }

    /// A shard goes on as `chosen`, without the copies on nodes that have not been heard since the cluster's state was restored.
    /// Returns what may be missing by that.
    fn give_missing_up(
        &self,
        keyspace: &KeyspaceState,
        (shard, chosen): (&Shard, &Replica),
        edit: &mut Edit<'_>,
    ) -> Result<Vec<String>, AdminError> {
        let mut told = Vec::new();
        for Replica { node, placement, incarnation, state, .. } in
            keyspace.missing_copies(&self.members.nodes, shard)
        {
            if *state == ReplicaState::Live {
                edit.begin_anew(shard.id, *placement, *incarnation, ReplicaState::Load)?;
            }
            told.push(format!(
                "{placement} on {node} may be a later copy: what only it has may be missing, and is gone when it comes back \
                 and copies from {}",
                chosen.placement
            ));
        }
        let unheard = self.waits_for_unheard(keyspace, shard);
        told.extend(unheard.map(|unheard| format!("{unheard}: what only it has may be missing")));
        if !told.is_empty() {
            edit.lead(shard.id, chosen.placement)?;
            edit.go_on_without(shard.id)?;
        }
        Ok(told)
    }

    /// What a shard was split or merged from is waited for no longer. Returns what may be missing by that.
    fn give_parents_up(
        &self,
        keyspace: &KeyspaceState,
        shard: &Shard,
        edit: &mut Edit<'_>,
    ) -> Result<Vec<String>, AdminError> {
        let mut told = Vec::new();
        for parent in keyspace.parents_away(&self.members.nodes, shard) {
            for replica in &parent.replicas {
                edit.remove_replica(parent.id, replica.placement)?;
            }
            let parts: Vec<_> =
                keyspace.children_under_way(parent.id).iter().map(ToString::to_string).collect();
            told.push(format!(
                "what was acknowledged in shard {} just before it became {} may be missing in all of these",
                parent.id,
                parts.join(", ")
            ));
        }
        Ok(told)
    }

    /// Refuses where there is nothing to choose, or where another map was looked at.
    fn may_force_join(
        &self,
        keyspace: &KeyspaceState,
        shard: &Shard,
        generation: u64,
    ) -> Result<(), AdminError> {
        let (name, id) = (keyspace.map.keyspace(), shard.id);
        let refused = |problem: String, way_out: &str| {
            Err(AdminError::Refused { problem, way_out: way_out.to_owned() })
        };
        if !keyspace.record.keyspace.durable {
            let problem = format!("keyspace {name} is not durable: no data of it outlives its processes");
            return refused(problem, "there is nothing to choose");
        }
        if !shard.had_data() {
            let problem = format!("shard {id} has never had data");
            return refused(problem, "there is nothing to choose: it is placed by itself");
        }
        if !keyspace.waits_for_copy(&self.members.nodes, shard) {
            let lives =
                |r: &&Replica| self.members.get(&r.node).is_some_and(|node| !node.has_ended(r.incarnation));
            let node = shard.live().find(lives).map_or("a node", |r| r.node.as_str());
            let problem = format!("shard {id} has a replica on {node} that has not ended");
            return refused(
                problem,
                "wait until it serves; if it cannot, stop that process; if it has stopped and the brake is on, release \
                 the brake (partage brake release)",
            );
        }
        let current = keyspace.map.generation().sequence;
        if generation != current {
            let problem = format!("generation {generation} was given, and keyspace {name} is at {current}");
            return refused(problem, "look at the shard again, and give its present generation");
        }
        Ok(())
    }

    /// The best of what a node has stored of a shard.
    fn stored_of<'a>(
        &'a self,
        keyspace: &'a KeyspaceState,
        shard: &Shard,
        node: &'a NodeState,
    ) -> Result<(PlacementId, &'a Kept), AdminError> {
        let name = keyspace.map.keyspace();
        let is_of_it = |key: &ReplicaKey| key.keyspace == *name && key.shard == shard.id;
        let stored = node.kept.iter().filter(|(key, _)| is_of_it(key));
        let is_final = |key: &ReplicaKey| {
            shard.replica(key.placement).is_some_and(|r| r.state == ReplicaState::UnloadFinal)
        };
        let id = &node.record.spec.id;
        // Where coordinators began from an older state and no process knew, a number may have been given out twice.
        let is_other = |r: &&Replica, key: &ReplicaKey, of: &Shard| {
            r.placement == key.placement && (r.node != *id || of.id != shard.id)
        };
        let twin = |key: &ReplicaKey| {
            let of = |other: &'a Shard| other.replicas.iter().find(|r| is_other(r, key, other));
            keyspace.map.shards().find_map(of)
        };
        let rank = |(key, kept): &(&ReplicaKey, &Kept)| {
            let is_copy = shard.live().any(|r| r.placement == key.placement);
            (twin(key).is_none(), !kept.damaged, is_copy, kept.epoch, key.placement)
        };
        let best = stored.filter(|(key, _)| !is_final(key)).max_by_key(rank);
        let Some((key, kept)) = best else { return Err(self.nothing_stored(name, shard, id)) };
        if kept.damaged {
            return Err(AdminError::Refused {
                problem: format!("some of what {id} has stored as {} cannot be read, so its service refuses it", key.placement),
                way_out: "mend the files there and start that process again, choose another copy, or give all of it up with \
                          `partage shard recreate`"
                    .into(),
            });
        }
        if let Some(other) = twin(key) {
            return Err(AdminError::Refused {
                problem: format!(
                    "what {id} has stored has the number of another replica, {} on {}: coordinators began from an older state, \
                     and gave it out twice",
                    key.placement, other.node
                ),
                way_out: format!(
                    "choose another copy, or save the files on {id} and give all of the shard up with `partage shard recreate`"
                ),
            });
        }
        if kept.epoch > shard.epoch {
            return Err(AdminError::Refused {
                problem: format!(
                    "what {id} has stored is of epoch {}, and this coordinator knows of {} only: its state was set back",
                    kept.epoch, shard.epoch
                ),
                way_out: "restore the coordinator's state from its latest backup first".into(),
            });
        }
        Ok((key.placement, kept))
    }

    /// Why a node has no copy to choose, and who has.
    fn nothing_stored(&self, name: &KeyspaceName, shard: &Shard, id: &NodeId) -> AdminError {
        let catches_up = |r: &&Replica| {
            let is_none =
                r.state == ReplicaState::Load || r.is_read_replica() && r.state == ReplicaState::Live;
            r.node == *id && is_none && !stored::has_ended(&self.members.nodes, r)
        };
        if let Some(replica) = shard.replicas.iter().find(catches_up) {
            let placement = replica.placement;
            return AdminError::Refused {
                problem: format!("the process on {id} follows as {placement}, and has not said what it has"),
                way_out: "start that process again: it then names what it has stored, and that can be chosen"
                    .into(),
            };
        }
        let is_of_it = |key: &ReplicaKey| key.keyspace == *name && key.shard == shard.id;
        let has = |other: &&NodeState| other.kept.keys().any(is_of_it);
        let others = self.members.nodes.values().filter(has).map(|other| other.record.spec.id.as_str());
        let others: Vec<_> = others.take(limits::NAMES_SHOWN).collect();
        AdminError::Refused {
            problem: format!("node {id} has stored nothing of shard {} of keyspace {name}", shard.id),
            way_out: match others.is_empty() {
                true => "no node that is up has: start one that had it, with its disk".to_owned(),
                false => format!("choose {}", others.join(" or ")),
            },
        }
    }

    /// What the copy may lack, one sentence each.
    fn may_be_missing(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        shard: &Shard,
        (placement, kept): (PlacementId, &Kept),
    ) -> Vec<String> {
        let since = match kept.epoch {
            Epoch(0) => "everything that was acknowledged before it had copied".to_owned(),
            epoch => format!("what was acknowledged since epoch {epoch}"),
        };
        let mut told: Vec<String> = keyspace.later_copy(shard, kept.epoch, &since).into_iter().collect();
        let copy = |r: &Replica| self.view(keyspace, at.now).disk_state(shard, r);
        match shard.live().find(|r| r.placement == placement).map(copy) {
            Some(DiskState::Unproven) => told.push(format!(
                "the cluster's state was restored, and nodes that are away may have a later copy: {since} may be missing"
            )),
            Some(_) => {}
            None => {
                told.push(format!(
                    "others went on without {placement}: {since}, up to epoch {}, may be missing",
                    shard.epoch
                ));
                let copies = shard.live().filter(|r| r.placement != placement);
                let copies: Vec<_> = copies.map(|r| format!("{} as {}", r.node, r.placement)).collect();
                if !copies.is_empty() {
                    told.push(format!(
                        "everything that was acknowledged is on {}: when it comes back, it copies from {placement}, and \
                         what only it has is gone",
                        copies.join(", ")
                    ));
                }
            }
        }
        told
    }
}

impl KeyspaceState {
    /// That others have a later copy of a shard than one of that epoch.
    fn later_copy(&self, shard: &Shard, epoch: Epoch, since: &str) -> Option<String> {
        let (node, key) = self.later_copies(shard, epoch).next()?;
        let ReplicaKey { placement, shard, .. } = key;
        Some(format!("{placement} of shard {shard} on {node} is a later copy: {since} may be missing"))
    }

    /// The same of a copy on a process that lives, where the coordinator's state was restored.
    fn later_than(&self, shard: &Shard, replica: &Replica) -> Option<String> {
        let epoch = self.restored.named_epoch(shard.id, replica)?;
        self.later_copy(shard, epoch, &format!("what was acknowledged since epoch {epoch}"))
    }
}

/// What else of the shard the chosen node has: it leaves the map, and may be deleted.
fn given_up_there(shard: &Shard, placement: PlacementId, node: &NodeState) -> Option<String> {
    let is_other = |r: &&Replica| r.node == node.record.spec.id && r.placement != placement;
    let other = shard.live().find(is_other)?;
    Some(format!("{} on the same node is given up, and may be deleted", other.placement))
}

fn no_finding(findings: impl IntoIterator<Item = Finding>) -> Result<(), AdminError> {
    match findings.into_iter().next() {
        None => Ok(()),
        Some(finding) => Err(AdminError::Refused {
            problem: format!("the next map would not be a map ({finding})"),
            way_out: "please report this".into(),
        }),
    }
}

/// The chosen replica leads; what else the map names of the shard catches up from it.
fn choose(
    edit: &mut Edit<'_>,
    shard: &Shard,
    placement: PlacementId,
    node: &NodeState,
) -> Result<(), EditError> {
    let (id, incarnation) = (shard.id, node.record.incarnation);
    for other in shard.replicas.iter().filter(|r| r.placement != placement) {
        if other.node == node.record.spec.id {
            edit.remove_replica(id, other.placement)?;
        } else if other.state == ReplicaState::Live {
            edit.begin_anew(id, other.placement, other.incarnation, ReplicaState::Load)?;
        }
    }
    match shard.replica(placement) {
        Some(_) => edit.begin_anew(id, placement, incarnation, ReplicaState::Live)?,
        None => edit.readmit(
            id,
            Replica {
                placement,
                node: node.record.spec.id.clone(),
                incarnation,
                role: Role::Follower,
                state: ReplicaState::Live,
                in_sync: false,
                predecessor: None,
            },
        )?,
    }
    edit.lead(id, placement)
}
