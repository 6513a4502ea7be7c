//! People change the coordination state: they delete its keys, set them back, restore a backup, or start the coordinators on
//! another folder, while workers, routers and sessions live.
//!
//! | what is touched           | what coordinators do about it                                                      |
//! |---------------------------|------------------------------------------------------------------------------------|
//! | the key of the election   | the next one leads; the last one may act until it asks again, for a session's time   |
//! | the head of a keyspace    | who is to change it leads no more; the next leader has it in quarantine, until it is back |
//! | the cluster's counters    | set back: the next leader goes on with numbers far beyond, and the brake on   |
//! | the records of nodes      | set back or gone: the next leader knows those that maps name                          |
//! | all: a backup is restored | under another cluster's id; all numbers go on far beyond                              |
//! | all: an empty folder      | a cluster of another id: workers refuse it, and nothing of theirs is touched           |
//! | all: an older snapshot    | under running coordinators: what workers and coordinators know of later maps puts keyspaces in quarantine |
//!
//! How a fault of a key is found out (a manifest says what was written last) is the coordinator crate's, whose tests
//! touch every key of each engine. Here it is found out always, and what follows is tried: no key has two owners,
//! nothing is dropped that is needed, nothing committed is lost, and when it is mended everything serves. An older snapshot
//! contradicts itself nowhere: whether it is found out is up to the core's own rule
//! ([`partage_core::cluster::LaterMaps`]).

use crate::clock::{MS, SECOND, True};
use crate::faults::Mend;
use crate::message::{Event, Place};
use crate::scene::Scene;
use crate::store::{SESSION, Store};
use crate::world::World;
use partage_core::base::counter_jump::CounterJump;
use partage_core::base::id::{ClusterId, Incarnation, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::cluster::{KeyspaceRecord, Records, StoredFaults, Write};
use partage_core::keyspace::map::ShardMap;
use partage_core::node::lease::GrantedLease;
use std::collections::{BTreeMap, BTreeSet};

/// The cluster that a run begins with. Those that it is restored to come after it.
pub const FIRST: ClusterId = ClusterId(1);

/// Clusters of empty folders: from here on.
const OTHERS: u128 = 1_000;

/// The person's clock shows the right time.
const WALL_MS: u64 = 1_700_000_000_000;

/// A way in which people change the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Touch {
    /// The key that says which coordinator leads is deleted, while the leader's session lives.
    Election,
    /// The head of a keyspace is deleted, and comes back.
    Head,
    /// The cluster's counters are set back. Where they are gone not even the longest lease is known any more, and
    /// exclusive shards wait for ten minutes: longer than a run.
    Counters,
    /// The records of nodes are.
    Nodes,
    /// A backup is restored.
    Restore,
    /// The coordinators are started on an empty folder, and later on their own again.
    Emptied,
    /// The engine is restored from an older snapshot while coordinators run; later the newest state is put back.
    Snapshot,
}

impl Touch {
    /// All ways, of which each touch draws one.
    const ALL: [Touch; 7] = [
        Touch::Election,
        Touch::Head,
        Touch::Counters,
        Touch::Nodes,
        Touch::Restore,
        Touch::Emptied,
        Touch::Snapshot,
    ];
}

/// How a touch ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ends {
    /// The head of a keyspace is there again.
    Head(KeyspaceName),
    /// The backup is restored, and coordinators are started.
    Restored,
    /// The coordinators have their own folder again.
    Righted,
    /// The newest state is put back in the place of the older snapshot.
    Newest,
}

/// What of the store is not as it was written last.
#[derive(Debug, Default)]
pub struct Touched {
    /// Keyspaces without a head, as they were.
    headless: BTreeMap<KeyspaceName, (KeyspaceRecord, ShardMap)>,
    /// The term in which the counters were touched.
    counters: Option<u64>,
    /// The same of nodes.
    nodes: Option<u64>,
    /// The last term that was given before an engine was restored: its leader commits nothing more.
    restored: Option<u64>,
    /// A backup is being restored: no coordinator leads there.
    pub is_closed: bool,
}

impl Touched {
    /// What the next leader finds.
    pub fn faults(&self) -> StoredFaults {
        let text = |what: &str| format!("{what} not what was written last");
        let faults = |touched: Option<u64>, what: &str| touched.iter().map(|_| text(what)).collect();
        StoredFaults {
            cluster: faults(self.counters, "the counters are"),
            nodes: faults(self.nodes, "the nodes are"),
            quarantine: self.headless.keys().map(|name| (name.clone(), text("its head is"))).collect(),
            ..StoredFaults::default()
        }
    }

    /// Whether the engine was restored since the leader of that term was elected: its election is gone.
    pub fn deposes(&self, term: u64) -> bool {
        self.restored.is_some_and(|restored| term <= restored)
    }

    /// Whether the engine was ever restored under coordinators.
    pub fn was_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Whether a transaction is refused, as it writes what is not what its leader knows.
    pub fn refuses(&self, term: u64, writes: &[Write]) -> bool {
        let is_older = |touched: Option<u64>| touched.is_some_and(|touched| term <= touched);
        writes.iter().any(|write| match write {
            Write::Cluster(_) => is_older(self.counters),
            Write::Node(_) | Write::DropNode(_) => is_older(self.nodes),
            Write::Keyspace(record) => self.headless.contains_key(&record.keyspace.name),
            Write::Map(diff) => self.headless.contains_key(&diff.keyspace),
            Write::DropKeyspace(name) => self.headless.contains_key(name),
            Write::Plan(_) | Write::DropPlan(_) => false,
        })
    }

    /// A leader has committed: the first of its transactions mends what its predecessor found no more.
    pub fn committed(&mut self, term: u64) {
        let is_mended = |touched: &mut u64| term > *touched;
        let _mended = (self.counters.take_if(is_mended), self.nodes.take_if(is_mended));
    }
}

/// What people have at hand: a backup, and the folder that was put aside.
#[derive(Debug, Default)]
pub struct OperatorStore {
    backup: Option<Records>,
    aside: Option<Box<Store>>,
    /// An older snapshot is in the place of the newest state.
    pub snapshot: Option<Box<Snapshot>>,
    /// Clusters that were begun.
    clusters: u128,
}

/// The state before an older snapshot was restored, and that snapshot.
#[derive(Debug)]
pub struct Snapshot {
    newest: Records,
    older: Records,
}

impl Snapshot {
    /// Whether the snapshot has another map of a keyspace than the newest state.
    fn sets_back(&self, name: &KeyspaceName) -> bool {
        map_of(&self.newest, name) != map_of(&self.older, name)
    }

    /// Whether a leader has changed maps since the snapshot was restored, or has given a node's process a number that
    /// the newest state would give again (seed 174; numbers beyond a jump it would not), or serves with a node that the
    /// newest state knows as ended (seed 40598).
    fn has_gone_on(&self, now: &Records) -> bool {
        let (given, next) = (now.cluster.next_incarnation.0, self.newest.cluster.next_incarnation.0);
        let is_given_again = given > next && !(given >= WALL_MS && next < WALL_MS);
        let has_changed =
            |map: &ShardMap| map_of(&self.older, map.keyspace()).is_none_or(|older| older != map);
        let is_alive = |id: &NodeId, incarnation: Incarnation| {
            let mut nodes = now.nodes.iter();
            nodes.any(|node| node.spec.id == *id && node.incarnation == incarnation && !node.ended)
        };
        let mut ended = self.newest.nodes.iter().filter(|node| node.ended);
        let lives_again = ended.any(|node| is_alive(&node.spec.id, node.incarnation));
        is_given_again || lives_again || now.keyspaces.iter().any(|(_, map)| has_changed(map))
    }

    /// The newest that is known of each keyspace, node and counter: what a person restores who has the state of before and the
    /// one of `now`.
    fn newest_of_each(self, now: Records) -> Records {
        let set_back = |name: &KeyspaceName| self.sets_back(name);
        let mut keyspaces: Vec<_> =
            self.newest.keyspaces.iter().filter(|(_, map)| set_back(map.keyspace())).cloned().collect();
        keyspaces.extend(now.keyspaces.into_iter().filter(|(_, map)| !set_back(map.keyspace())));
        let mut plans: Vec<_> =
            self.newest.plans.iter().filter(|plan| set_back(&plan.keyspace)).cloned().collect();
        plans.extend(now.plans.into_iter().filter(|plan| !set_back(&plan.keyspace)));
        let mut nodes: BTreeMap<_, _> =
            self.newest.nodes.into_iter().map(|node| (node.spec.id.clone(), node)).collect();
        for node in now.nodes {
            let is_later = nodes.get(&node.spec.id).is_none_or(|held| held.incarnation <= node.incarnation);
            if is_later {
                nodes.insert(node.spec.id.clone(), node);
            }
        }
        let is_ahead = now.cluster.next_incarnation > self.newest.cluster.next_incarnation;
        let cluster = if is_ahead { now.cluster } else { self.newest.cluster };
        Records { cluster, keyspaces, nodes: nodes.into_values().collect(), plans }
    }
}

fn map_of<'a>(records: &'a Records, name: &KeyspaceName) -> Option<&'a ShardMap> {
    records.keyspaces.iter().map(|(_, map)| map).find(|map| map.keyspace() == name)
}

impl World {
    /// From here on an operator touches the coordination state, now and then.
    pub fn begin_touches(&mut self) {
        self.store.cluster = FIRST;
        self.scene.oracles.lineage = BTreeSet::from([FIRST]);
        self.scene.after(3 * SECOND, Event::Touch);
    }

    /// A backup is taken, or something is touched.
    pub fn touch(&mut self) {
        if !self.is_lively() {
            return;
        }
        let next = self.scene.draw.between(500 * MS, 4 * SECOND);
        self.scene.after(next, Event::Touch);
        let is_touched = self.operator.aside.is_some() || self.operator.snapshot.is_some();
        if is_touched || self.store.touched.is_closed || self.store.is_away {
            return;
        }
        if self.operator.backup.is_none() || self.scene.draw.chance(200) {
            return self.back_up();
        }
        let Some(kind) = self.scene.draw.pick(&Touch::ALL).copied() else { return };
        self.scene.trace.event(self.scene.now, (43u8, kind), || format!("TOUCH {kind:?}"));
        let long = self.scene.draw.between(100 * MS, 6 * SECOND);
        match kind {
            Touch::Election => {
                self.store.depose();
                self.scene.oracles.maps.deposed(self.scene.now + SESSION);
            }
            Touch::Head => self.lose_head(long),
            Touch::Counters => self.lose_counters(),
            Touch::Nodes => self.lose_nodes(),
            Touch::Restore => match self.backup_of_these_keyspaces().cloned() {
                Some(backup) => self.restore(backup),
                None => self.back_up(),
            },
            Touch::Emptied => self.empty(long),
            Touch::Snapshot => self.restore_older_snapshot(long),
        }
    }

    fn back_up(&mut self) {
        // The leader takes it, and knows which cluster it is by then.
        if self.store.touched.faults().is_empty() && self.store.records.cluster.id == self.store.cluster {
            self.operator.backup = Some(self.store.records.clone());
        }
    }

    fn lose_head(&mut self, long: True) {
        let there = self.store.records.keyspaces.len();
        if there == 0 {
            return;
        }
        let (record, map) = self.store.records.keyspaces.remove(self.scene.draw.index(there));
        let name = record.keyspace.name.clone();
        self.store.touched.headless.insert(name.clone(), (record, map));
        self.scene.after(long, Event::Mend(Mend::Touched(Ends::Head(name))));
    }

    fn lose_counters(&mut self) {
        let Some(backup) = &self.operator.backup else { return };
        self.store.records.cluster = backup.cluster.clone();
        self.store.touched.counters = Some(self.store.term);
        // From what is set back once, numbers jump; what is backed up from now on has that jump.
        self.operator.backup = None;
    }

    fn lose_nodes(&mut self) {
        let Some(backup) = &self.operator.backup else { return };
        let gone = self.scene.draw.chance(500);
        self.store.records.nodes = if gone { Vec::new() } else { backup.nodes.clone() };
        self.store.touched.nodes = Some(self.store.term);
    }

    /// The backup, if it has the keyspaces that there are now. What was created or deleted since is not in it: that it is
    /// lost, or there again, is another matter. One whose head is missing may be such a one (seed 450243).
    fn backup_of_these_keyspaces(&self) -> Option<&Records> {
        let lives = |records: &Records| -> BTreeSet<(KeyspaceName, ShardId)> {
            let keyspaces = records.keyspaces.iter();
            keyspaces.map(|(record, _)| (record.keyspace.name.clone(), record.first_shard)).collect()
        };
        let now = lives(&self.store.records);
        let is_headless = !self.store.touched.headless.is_empty();
        self.operator.backup.as_ref().filter(|backup| !is_headless && lives(backup) == now)
    }

    /// The engine is restored from an older snapshot while coordinators and their sessions live. The election in it is of
    /// the past, so the leader is deposed. Coordinators keep the highest term on disks of their own: the next one is
    /// above it. No client creates or deletes keyspaces meanwhile.
    fn restore_older_snapshot(&mut self, long: True) {
        let Some(older) = self.backup_of_these_keyspaces().cloned() else { return self.back_up() };
        self.scene.count("snapshots restored under coordinators");
        let newest = std::mem::replace(&mut self.store.records, older.clone());
        self.operator.snapshot = Some(Box::new(Snapshot { newest, older }));
        self.depose_by_restoring();
        self.scene.after(long, Event::Mend(Mend::Touched(Ends::Newest)));
    }

    /// The newest state is put back. Where a leader has gone on from the snapshot, workers may know of maps that the newest
    /// state does not have: then the newest of each is restored as a backup is, with all numbers far beyond.
    fn put_newest_back(&mut self) {
        let Some(snapshot) = self.operator.snapshot.take() else { return };
        let has_gone_on = snapshot.has_gone_on(&self.store.records);
        self.depose_by_restoring();
        if has_gone_on {
            self.scene.count("snapshots that a leader went on from");
            return self.restore(snapshot.newest_of_each(self.store.records.clone()));
        }
        self.store.records = snapshot.newest;
        let names = self.store.records.keyspaces.iter().map(|(record, _)| record.keyspace.name.clone());
        for name in names.collect::<Vec<_>>() {
            for coordinator in &mut self.coordinators {
                coordinator.reads_again(&mut self.scene, &mut self.store, &name);
            }
        }
    }

    fn depose_by_restoring(&mut self) {
        self.store.touched.restored = Some(self.store.term);
        self.store.depose();
        self.scene.oracles.maps.deposed(self.scene.now + SESSION);
        // What is backed up from now on has numbers beyond those of before.
        self.operator.backup = None;
    }

    /// Coordinators are stopped, and the backup is written; then the leases of before are waited for.
    fn restore(&mut self, backup: Records) {
        let lease = GrantedLease::assumed(Millis(0), backup.cluster.longest_lease_ms).end().0;
        let wait = if planted::is(Planted::RestoreWait) { 0 } else { lease };
        self.stop_coordinators();
        self.store.touched.is_closed = true;
        self.operator.backup = Some(backup);
        self.scene.after(wait * MS, Event::Mend(Mend::Touched(Ends::Restored)));
    }

    /// Coordinators are stopped, and started on an empty folder.
    fn empty(&mut self, long: True) {
        self.stop_coordinators();
        self.operator.clusters += 1;
        let cluster = ClusterId(OTHERS + self.operator.clusters);
        let empty = Store::of(cluster, 0, Records::default());
        self.operator.aside = Some(Box::new(std::mem::replace(&mut self.store, empty)));
        self.scene.oracles.is_aside = true;
        self.start_coordinators();
        self.scene.after(long, Event::Mend(Mend::Touched(Ends::Righted)));
    }

    fn stop_coordinators(&mut self) {
        for coordinator in self.coordinators.iter_mut().filter(|coordinator| coordinator.up) {
            coordinator.leave(&mut self.scene, &mut self.store);
        }
    }

    fn start_coordinators(&mut self) {
        (0..self.coordinators.len()).for_each(|at| self.start_coordinator(at));
    }

    /// Undoes a touch, or goes on with it.
    pub fn mend_touch(&mut self, ends: Ends) {
        match ends {
            Ends::Head(name) => {
                let Some(there) = self.own_store().touched.headless.remove(&name) else { return };
                self.own_store().records.keyspaces.push(there);
                for coordinator in &mut self.coordinators {
                    coordinator.reads_again(&mut self.scene, &mut self.store, &name);
                }
            }
            Ends::Newest => self.put_newest_back(),
            Ends::Restored => {
                let Some(backup) = self.operator.backup.take() else { return };
                let leap_ms = WALL_MS + self.scene.now / MS;
                let records = backup.after_loss(leap_ms);
                self.operator.clusters += 1;
                let cluster = ClusterId(FIRST.0 + self.operator.clusters);
                let term = CounterJump::at(leap_ms).beyond(self.store.term);
                self.scene.oracles.lineage.insert(cluster);
                self.scene.oracles.maps.recalled(self.scene.now, &records);
                self.scene.oracles.carried_elsewhere(&self.store.records, &records);
                self.store = Store::of(cluster, term, records);
                self.stop_coordinators();
                self.start_coordinators();
            }
            Ends::Righted => {
                let Some(own) = self.operator.aside.take() else { return };
                self.stop_coordinators();
                let other = std::mem::replace(&mut self.store, *own).cluster;
                self.scene.oracles.is_aside = false;
                self.start_coordinators();
                self.start_anew_those_of(other);
            }
        }
    }

    /// The store of the run's own cluster.
    fn own_store(&mut self) -> &mut Store {
        self.operator.aside.as_deref_mut().unwrap_or(&mut self.store)
    }

    /// Workers that a person started while coordinators were on the empty folder belong to its cluster: they are started
    /// anew.
    fn start_anew_those_of(&mut self, other: ClusterId) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].process.as_ref().and_then(|process| process.worker.cluster()) == Some(other) {
                self.nodes[at].crash(&mut self.scene);
                self.scene.after(100 * MS, Event::Mend(Mend::Start(at)));
            }
        }
    }
}

/// D11: a worker that belongs to a cluster takes the welcome of none but those that it became.
pub fn welcomed(scene: &mut Scene, node: Place, before: Option<ClusterId>, by: ClusterId) {
    let lineage = &scene.oracles.lineage;
    if let Some(before) = before
        && before != by
        && !(lineage.contains(&before) && lineage.contains(&by))
    {
        scene.violate("D11", format!("{node:?} of cluster {before} takes the welcome of cluster {by}"));
    }
}
