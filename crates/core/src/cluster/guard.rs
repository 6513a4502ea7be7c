//! The brake of the whole cluster and those of keyspaces: [`crate::plan::brake`] says when they go on, this file stores them
//! and tells people.

use super::decide::Transition;
use super::keyspaces::Keyspaces;
use super::members::NodesView;
use super::overdue::Avoided;
use super::{Cluster, ClusterRecord, KeyspaceState, Moment, NodeState, Outbox, Write};
use crate::base::id::ShardId;
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::node::Health;
use crate::plan::brake::{self, Fleet, Losses, Suspects, Verdict};
use crate::plan::poison::{self, Deaths};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of processes that ended, for the brake. The brake itself is stored, in [`super::ClusterRecord`].
#[derive(Debug, Clone, Default)]
pub(super) struct PlannerGuard {
    /// Nodes that were declared dead lately.
    pub(super) losses: Losses,
    /// Dead nodes that a person has given up by releasing the brake, and that the next decisions declare dead. Not stored:
    /// another coordinator would put the brake on, and the person be asked again.
    pub(super) written_off: BTreeSet<NodeId>,
    /// Processes that ended lately; not stored.
    pub(super) deaths: Deaths,
    /// Why only repairs begin: so many processes have ended lately. Not stored.
    pub(super) unrest: Option<String>,
    /// Since when every node is heard while the brake is on; not stored.
    pub(super) all_heard_since: Option<Millis>,
    /// Whether this decision may declare dead the nodes that are down.
    pub(super) declares_dead: bool,
    /// Planning waits because too few nodes answer.
    waiting: bool,
}

/// What follows from the nodes that are down.
pub(super) enum LossJudgement {
    /// The coordinator declares them dead, and the planner replaces their replicas.
    DeclareDead,
    /// The coordinator declares no node dead in this decision.
    Wait,
    /// As `DeclareDead`; and no other node gets this shard, as it has killed so many of them one after the other.
    HoldBack(KeyspaceName, ShardId, String),
    /// They are too many: the brake goes on.
    SetBrake(String),
}

impl Transition for LossJudgement {
    fn find(cluster: &Cluster, at: Moment) -> LossJudgement {
        if cluster.record.brake.is_some() {
            return LossJudgement::Wait;
        }
        let (losses, settings) = (&cluster.guard.losses, &cluster.settings);
        let dying: BTreeSet<NodeId> = cluster.guard.dying(cluster.nodes_at(at.now)).into_iter().collect();
        let fleet = cluster.fleet(at, &dying);
        let asks = losses.asks_for_suspects(&dying, fleet, at.now, settings);
        let suspects = |id: &NodeId| if asks { cluster.suspects(id) } else { Suspects::new() };
        let dying: BTreeMap<_, _> = dying.iter().map(|id| (id.clone(), suspects(id))).collect();
        match losses.judge(&dying, fleet, at.now, settings) {
            Verdict::Acceptable => LossJudgement::DeclareDead,
            Verdict::Waits => LossJudgement::Wait,
            Verdict::Poisoned { shards, deaths, otherwise } => match cluster.to_blame(at, shards, deaths) {
                Some((name, shard)) => LossJudgement::HoldBack(name, shard, poison::before_brake(deaths)),
                None => LossJudgement::SetBrake(otherwise),
            },
            Verdict::TooMany(why) => LossJudgement::SetBrake(why),
        }
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        cluster.guard.losses.forget_old(at.now, &cluster.settings);
        cluster.guard.declares_dead =
            matches!(self, LossJudgement::DeclareDead | LossJudgement::HoldBack(..));
        match self {
            LossJudgement::DeclareDead | LossJudgement::Wait => {}
            LossJudgement::HoldBack(name, shard, why) => {
                if let Some(keyspace) = cluster.keyspaces.get_mut(&name) {
                    keyspace.hold_back(at, shard, why, &cluster.settings, &mut cluster.outbox);
                }
            }
            LossJudgement::SetBrake(why) => {
                cluster.outbox.tell(
                    EventKind::BrakeSet,
                    About::all(),
                    true,
                    format!(
                        "the brake is on, nothing moves by itself and no node is given up: {why}. Look at the nodes and \
                         the network, then run `partage brake release`"
                    ),
                );
                cluster.record.brake = Some(why);
                cluster.outbox.writes.push(Write::Cluster(cluster.record.clone()));
            }
        }
        Millis::NEVER
    }
}

impl Cluster {
    /// Why the brake of the cluster, or those of some keyspaces, are on. [`Cluster::unrest`] is no brake: no person releases it.
    pub fn brake(&self) -> Option<String> {
        let all = self.brakes();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The brake of the cluster and those of keyspaces.
    pub(super) fn brakes(&self) -> Vec<String> {
        let own = self.keyspaces.by_name.iter().filter_map(|(name, keyspace)| {
            Some(format!("keyspace {name}: {}", keyspace.record.brake.as_ref()?))
        });
        self.record.brake.iter().cloned().chain(own).collect()
    }

    /// Why nothing of a keyspace moves by itself.
    pub(super) fn brake_on<'a>(&'a self, keyspace: &'a KeyspaceState) -> Option<&'a str> {
        self.record.brake.as_deref().or(keyspace.record.brake.as_deref())
    }

    /// Counts of the nodes that are not declared dead; `dying` are those that are down.
    fn fleet(&self, at: Moment, dying: &BTreeSet<NodeId>) -> Fleet {
        let counts = |node: &&NodeState| {
            !node.record.ended && !node.has_never_held() && !self.guard.is_written_off(node)
        };
        let standing = || self.members.nodes.values().filter(counts);
        let is_silent = |node: &&NodeState| {
            !matches!(node.signs.health(at.now, &self.settings), Health::Up | Health::Unreachable)
        };
        Fleet {
            standing: standing().count(),
            silent: standing().filter(is_silent).count().saturating_sub(dying.len()),
            // Also those that have held nothing yet: they may take the shards of others.
            able: self.members.nodes.values().filter(|node| node.stays_up(at.now, &self.settings)).count(),
            laden: dying.iter().filter_map(|id| self.members.get(id)).any(|node| node.held() > 0),
        }
    }
}

impl PlannerGuard {
    /// Nodes that are down and not declared dead yet.
    fn dying(&self, seen: NodesView<'_>) -> Vec<NodeId> {
        let is_down = |node: &NodeState| node.signs.health(seen.now, seen.settings) == Health::Down;
        let silent = seen.nodes.values().filter(|node| !node.record.ended && is_down(node));
        let dead = silent.filter(|node| !node.has_never_held() && !self.is_written_off(node));
        dead.map(|node| node.record.spec.id.clone()).collect()
    }

    /// Whether a person has given the node up.
    fn is_written_off(&self, node: &NodeState) -> bool {
        self.written_off.contains(&node.record.spec.id)
    }

    /// A person releases the brake. The next decisions declare dead the nodes that are down, without suspecting any shard; it
    /// takes several, as they may be half of the cluster.
    pub(super) fn release_brake(
        &mut self,
        at: Moment,
        seen: NodesView<'_>,
        record: &mut ClusterRecord,
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        record.brake = None;
        outbox.writes.push(Write::Cluster(record.clone()));
        let dying = self.dying(seen);
        self.written_off.extend(dying);
        for keyspace in keyspaces.by_name.values_mut().filter(|keyspace| keyspace.record.brake.is_some()) {
            keyspace.record.brake = None;
            // What failed is tried again everywhere.
            keyspace.overdue.avoid.clear();
            outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
        }
        self.losses.clear();
        self.deaths.clear();
        keyspaces.plan_soon(at, 0);
    }

    /// Whether planning waits because too few nodes answer; told when it begins and when it ends.
    pub(super) fn waits_for_nodes(
        &mut self,
        seen: NodesView<'_>,
        started: Millis,
        outbox: &mut Outbox,
    ) -> bool {
        let wanted = seen.nodes.values().filter(|node| !node.record.ended && node.record.drain.is_none());
        let wanted: Vec<_> = wanted
            .filter(|node| !node.leaving && !node.has_never_held() && !self.is_written_off(node))
            .collect();
        let answering = wanted.iter().filter(|node| node.stays_up(seen.now, seen.settings)).count();
        let verdict = brake::too_few(answering, wanted.len());
        // A coordinator that has just started has not heard anybody yet: no reason to alarm a person.
        if verdict.is_some() && seen.now < started + seen.settings.dead_after_ms {
            return true;
        }
        match (self.waiting, &verdict) {
            (false, Some(why)) => outbox.notice(true, format!("{why}; look at the nodes and the network")),
            (true, None) => outbox.notice(false, "enough nodes answer: planning goes on".to_owned()),
            (true, Some(_)) | (false, None) => {}
        }
        self.waiting = verdict.is_some();
        self.waiting
    }
}

impl KeyspaceState {
    /// Puts the brake of the keyspace on when its shards can be loaded hardly anywhere.
    pub(super) fn brake_if_loads_fail(&mut self, at: Moment, settings: &Settings, outbox: &mut Outbox) {
        if self.record.brake.is_some() {
            return;
        }
        let is_recent = |avoided: &Avoided| avoided.until > at.now;
        let lately = || self.overdue.avoid.iter().filter(|(_, a)| is_recent(a)).map(|(failed, _)| failed);
        let shards: BTreeSet<_> = lately().map(|(shard, _)| shard).collect();
        let nodes: BTreeSet<_> = lately().map(|(_, node)| node).collect();
        let Some(why) = brake::loads_fail(shards.len(), nodes.len(), settings) else { return };
        self.record.brake = Some(why.clone());
        outbox.writes.push(Write::Keyspace(self.record.clone()));
        let name = self.map.keyspace();
        outbox.tell(
            EventKind::BrakeSet,
            About::keyspace(name),
            true,
            format!(
                "the brake of keyspace {name} is on, nothing of it moves by itself: {why}. Mend the service, then \
                 run `partage brake release`"
            ),
        );
    }
}
