//! Faults of the stored state: what of it was missing, damaged or set back when this coordinator read it, and how the
//! cluster goes on all the same.
//!
//! A keyspace of which something is missing that cannot be replaced is in *quarantine*: no order, no lease and no
//! map of it leaves this coordinator, nothing of it is stored, and workers keep its data. Everything else that can be
//! known from what is left is mended, with its numbers far beyond what may have been given out.
//!
//! | what is wrong                     | how the cluster goes on                                              |
//! |-----------------------------------|----------------------------------------------------------------------|
//! | map or record of a keyspace       | the keyspace is in quarantine                                        |
//! | settings of a keyspace are older  | with them, and with the keyspace's brake on                          |
//! | the cluster's counters            | far beyond them ([`CounterJump`]), and with the brake on                    |
//! | nodes                             | nodes that maps name are known, without an address until they return |
//! | plans                             | plans that were not over are refused; the planner makes new ones     |
//! | manifests                         | they are written anew                                                |
//!
//! People hear of all of it: by an alarm at the start, by `status` while this coordinator leads, and by `check`.

use super::decide::Transition;
use super::recovered::Recovered;
use super::restored::Heard;
use super::{Cluster, ClusterRecord, Moment, Outbox, Records, Write};
use crate::base::counter_jump::CounterJump;
use crate::base::id::{Incarnation, PlanId};
use crate::base::name::KeyspaceName;
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::limits;
use crate::plan::Status;
use crate::plan::check;
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong with a stored state that a cluster can be made from all the same, in sentences.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredFaults {
    /// The counters and switches are missing, damaged, or not those that were written last.
    pub cluster: Vec<String>,
    /// A worker or a coordinator knows of later maps than the stored ones, and no coordinator before this one has found that.
    pub was_set_back: bool,
    /// Records of nodes are missing, damaged or older than what was written last.
    pub nodes: Vec<String>,
    /// Plans are missing, damaged or older than what was written last.
    pub plans: Vec<String>,
    /// Whether plans may be among the records that are older than what was written last.
    pub plans_may_be_old: bool,
    /// Settings of these keyspaces are not those that were written last.
    pub settings: BTreeMap<KeyspaceName, String>,
    /// The manifest, which says what was written last, is missing, damaged or older itself.
    pub manifest: Vec<String>,
    /// Keyspaces whose manifest is missing, damaged or older itself.
    pub manifests: BTreeMap<KeyspaceName, String>,
    /// Keyspaces whose map or record is missing, damaged or older than what was written last.
    pub quarantine: BTreeMap<KeyspaceName, String>,
    /// What nothing depends on: it is left alone.
    pub aside: Vec<String>,
}

impl StoredFaults {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        *self == StoredFaults::default()
    }

    /// What is wrong with each keyspace in quarantine, and the way out.
    pub fn quarantined(&self) -> impl Iterator<Item = (&KeyspaceName, String)> {
        self.quarantine.iter().map(|(name, why)| (name, quarantine_of(name, why)))
    }

    /// All but the quarantine: what is wrong, and what the coordinator did about it.
    pub fn mended(&self) -> Vec<String> {
        let list = |faults: &[String], done: &str| {
            let sentence = |why: &String| format!("{why}; {done}");
            faults.iter().map(sentence).collect::<Vec<_>>()
        };
        let counters = "the coordinator goes on with numbers far beyond, and has put the brake on: look at \
                        `partage status`, then release it";
        let nodes = "nodes that a map names are known again, and come back with their next heartbeat; look whether \
                     a drain has to be asked for again";
        let plans = match self.plans_may_be_old {
            true => "plans that were not over are refused, and the planner plans anew",
            false => "it is left out, and its key is left alone: delete the key when you have looked at it",
        };
        let mut all = list(&self.cluster, counters);
        all.extend(list(&self.nodes, nodes));
        all.extend(list(&self.plans, plans));
        all.extend(list(&self.manifest, "the coordinator has written it anew"));
        all.extend(self.manifests.values().map(|why| format!("{why}; the coordinator has written it anew")));
        all.extend(self.settings.iter().map(|(name, why)| {
            format!(
                "{why}; the brake of keyspace {name} is on: look at its settings (`partage keyspace show {name}`), \
                 then release it"
            )
        }));
        all.extend(list(&self.aside, "nothing depends on it, and it is left alone: delete the key"));
        all
    }
}

fn quarantine_of(name: &KeyspaceName, why: &str) -> String {
    format!(
        "keyspace {name} is in quarantine, so it is neither served nor changed, and workers keep its data: {why}. {}",
        way_out(name)
    )
}

fn way_out(name: &KeyspaceName) -> String {
    format!(
        "Write the key again as it was, and the coordinator takes the keyspace up; or restore a backup; or give the \
         keyspace up with `partage keyspace delete {name}`"
    )
}

impl Records {
    /// Makes the records fit to start from at `wall_ms`, in milliseconds of Unix time, and gives the writes that make
    /// that durable. A keyspace whose settings or map no cluster could have joins those in quarantine.
    pub fn mend(&mut self, faults: &mut StoredFaults, wall_ms: u64) -> Vec<Write> {
        self.keyspaces.retain(|(record, map)| {
            let name = &record.keyspace.name;
            let settings =
                record.keyspace.check().err().map(|why| format!("its stored settings are none: {why}"));
            let finding = || Some(format!("its stored map is not a map: {}", check::map(map).first()?));
            let Some(why) = settings.or_else(finding) else { return true };
            faults.quarantine.insert(name.clone(), why);
            false
        });
        let mut writes = Vec::new();
        let known = |node: &super::NodeRecord| (node.spec.id.clone(), node.incarnation, node.held);
        let before: BTreeSet<_> = self.nodes.iter().map(known).collect();
        if !faults.nodes.is_empty() || !faults.cluster.is_empty() {
            self.remember_nodes();
        }
        let is_new = |node: &&super::NodeRecord| !before.contains(&known(node));
        writes.extend(self.nodes.iter().filter(is_new).cloned().map(Write::Node));
        if !faults.cluster.is_empty() {
            self.jump_counters(CounterJump::at(wall_ms));
            self.cluster.brake = Some(format!("faults of the stored state: {}", faults.cluster.join("; ")));
        }
        let names: BTreeSet<_> = self.keyspaces.iter().map(|(_, map)| map.keyspace().clone()).collect();
        self.plans.retain(|plan| names.contains(&plan.keyspace));
        if faults.plans_may_be_old {
            for plan in self.plans.iter_mut().filter(|plan| is_open(&plan.status)) {
                plan.status = Status::Refused(faults.plans.join("; "));
                writes.push(Write::Plan(plan.clone()));
            }
        }
        for (record, _) in &mut self.keyspaces {
            let name = &record.keyspace.name;
            if let Some(why) = faults.settings.get(name) {
                record.brake = Some(why.clone());
            }
            if faults.settings.contains_key(name) || faults.manifests.contains_key(name) {
                writes.push(Write::Keyspace(record.clone()));
            }
        }
        let others = [&faults.cluster, &faults.nodes, &faults.plans, &faults.manifest];
        // What is known of later maps may be news, also where nothing else is wrong with the counters.
        let knows_later = !self.cluster.later_maps.is_empty();
        if knows_later || others.into_iter().any(|faults| !faults.is_empty()) {
            writes.push(Write::Cluster(self.cluster.clone()));
        }
        writes
    }

    /// Counters beyond all that may have been given out.
    fn jump_counters(&mut self, jump: CounterJump) {
        let cluster = &mut self.cluster;
        let starts = self.nodes.iter().map(|node| node.incarnation.next());
        let next = starts.chain([cluster.next_incarnation]).max().unwrap_or_default();
        cluster.next_incarnation = Incarnation(jump.beyond(next.0));
        let plans = self.plans.iter().map(|plan| plan.id.next());
        let next = plans.chain([cluster.next_plan]).max().unwrap_or_default();
        cluster.next_plan = PlanId(jump.beyond(next.0));
        cluster.jump_ids(jump, Default::default());
        if cluster.longest_lease_ms == 0 {
            cluster.longest_lease_ms = limits::LOST_LEASE_MS;
        }
    }
}

fn is_open(status: &Status) -> bool {
    matches!(status, Status::Suggested | Status::Approved)
}

/// Once every lease is over that was granted before this coordinator led, none is longer than its own: the next
/// coordinator need not wait for more.
pub(super) struct LongestLease {
    /// The new bound, where it differs.
    own_ms: Option<u64>,
}

impl Transition for LongestLease {
    fn find(cluster: &Cluster, at: Moment) -> LongestLease {
        let own = cluster.settings.lease_ms;
        let differs = cluster.record.longest_lease_ms > own && at.now >= cluster.recovered.leases_before;
        LongestLease { own_ms: differs.then_some(own) }
    }

    fn apply(self, cluster: &mut Cluster, _: Moment) -> Millis {
        if let Some(own_ms) = self.own_ms {
            cluster.record.longest_lease_ms = own_ms;
            cluster.outbox.writes.push(Write::Cluster(cluster.record.clone()));
        }
        Millis::NEVER
    }
}

impl Cluster {
    /// Begins with what was wrong with the records that it was made from, and with the writes that mend it.
    pub fn take_faults(&mut self, faults: StoredFaults, mended: Vec<Write>) {
        self.outbox.writes.extend(mended);
        let texts: Vec<_> = faults.quarantined().map(|(_, text)| text).chain(faults.mended()).collect();
        texts.into_iter().for_each(|text| self.outbox.notice(true, text));
        self.recovered.faults = faults;
    }

    /// Whether this coordinator grants a lease to a node, by whether the node's last lease `has_expired`. As long as a lease of
    /// the coordinator before may run, the state may be older than what that coordinator decided by, and name a former owner. The
    /// former owner has no lease any more, and this coordinator may not have heard the present one. So it grants no lease where
    /// it knows that the state was set back (seed 405125). Else it renews leases that run, and grants others when it has heard
    /// every node but dead ones (seed 600252).
    pub(super) fn may_lease(&self, now: Millis, has_expired: bool) -> bool {
        let renews = !has_expired;
        let is_safe =
            !self.recovered.faults.was_set_back && (renews || self.recovered.heard >= Heard::AllButDead);
        is_safe || now >= self.recovered.leases_before || planted::is(Planted::FormerLeases)
    }

    /// What was wrong with the stored state when this coordinator began to lead.
    pub fn faults(&self) -> &StoredFaults {
        &self.recovered.faults
    }

    /// Why a keyspace is in quarantine, and the way out.
    pub(super) fn quarantine(&self, name: &KeyspaceName) -> Option<(String, String)> {
        let why = self.recovered.faults.quarantine.get(name)?;
        let problem = format!("keyspace {name} is in quarantine: {why}");
        Some((problem, way_out(name)))
    }
}

impl Recovered {
    /// A person gives up a keyspace in quarantine. Its ids are not known, so the next ones are far beyond. Workers keep
    /// what they have of it.
    pub(super) fn drop_quarantined(
        &mut self,
        name: &KeyspaceName,
        wall_ms: u64,
        record: &mut ClusterRecord,
        outbox: &mut Outbox,
    ) {
        if self.faults.quarantine.remove(name).is_none() {
            return;
        }
        record.jump_ids(CounterJump::at(wall_ms), Default::default());
        outbox.writes.push(Write::Cluster(record.clone()));
        outbox.writes.push(Write::DropKeyspace(name.clone()));
    }
}
