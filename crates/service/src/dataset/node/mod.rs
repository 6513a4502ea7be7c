//! One node of a dataset cluster: what it publishes, loads, and gives its clients (S9 to S15, S18).
//!
//! A node publishes its presence, waits until the list of nodes is stable, and computes from it alone which partitions
//! are its own. It publishes each partition when it is ready, gives it to other nodes from that moment, and gives a
//! version to its clients as soon as enough nodes have every partition of it; then it gives them no older one.
//!
//! | event                     | seen                                | does                                       |
//! |---------------------------|-------------------------------------|--------------------------------------------|
//! | a session begins          |                                     | publishes all it has, again                |
//! | the session is lost       |                                     | nothing: it keeps what it knows (S2)       |
//! | the mirror changes        | a partition of a shown version      | shows the version again                    |
//! |                           | other nodes, or other seats         | waits again until nodes are stable         |
//! |                           | a key that it published is gone     | publishes it again                         |
//! |                           | a key of its own, of what it lacks  | withdraws it                               |
//! |                           | a pin of a higher order             | follows it, and publishes it               |
//! |                           | a version, last seen only at peers  | looks at the source                        |
//! | the source was listed     | a version that clients may get next | has the driver inspect it                  |
//! |                           | one that failed, or is not whole    | tries again; computes its share again      |
//! |                           | one that failed, and is superseded  | nothing, until a person wants it           |
//! |                           | one is gone that no node has whole  | stops to load it, and lets it go; at once  |
//! |                           |                                     | if no node has any of it                   |
//! |                           | one not whole, of another layout at peers | has the driver inspect it once more  |
//! | a dataset's spread changes |                                    | computes later shares by it                |
//! | a dataset is not served   |                                     | lets all of it go, when no request reads it |
//! | the source fails          |                                     | nothing                                    |
//! | a version was inspected   | nodes are stable                    | loads its share                            |
//! |                           | its layout changed; clients get it  | ERROR                                      |
//! |                           | its layout changed; they do not     | deletes what is here, and loads it again   |
//! | a partition is ready      |                                     | shows and publishes it: peers may ask      |
//! | loading failed            |                                     | ERROR with the reason, until a refresh; at |
//! |                           |                                     | each later failure for a longer time       |
//! | the disk is full          | versions that clients do not get    | asks the driver to let them go at once     |
//! | any                       | a later version has min_replication | remembers it, then gives it to clients     |
//! |                           | but too few keys, and no pin        | HELD, until a person releases it ([`Guard`]) |
//! |                           | a load that clients will not get    | stops it                                   |
//! |                           | a version unused for `keep_ms`      | asks the driver to let it go               |
//! | it was used meanwhile     |                                     | waits `keep_ms` again                      |
//! | it was let go             |                                     | withdraws its keys, deletes it             |
//! | an operator's order       |                                     | numbers it above all others, publishes it  |
//! | it leaves                 |                                     | withdraws all; loads nothing more          |
//!
//! That is a node without a coordinator. Under one these rows are added ([`ordered`]):
//!
//! | event                     | seen                                | does                                       |
//! |---------------------------|-------------------------------------|--------------------------------------------|
//! | shards were ordered       |                                     | remembers them, and loads their partitions, |
//! |                           |                                     | of what clients get, too                   |
//! | it starts                 | shards that it remembers            | loads for them until a coordinator is heard |
//! | any                       | a partition of no ordered shard, that others have | withdraws it; later deletes it |
//!
//! - (na) clients get versions in one direction only (S14, [`DatasetState`]);
//! - (nb) they get a version only when each partition is at `min` nodes, or when they had it before a restart (S10);
//! - (nc) a partition is published only while it is here, and again whenever a session begins (S12);
//! - (nd) only loading waits for the coordination service or the source (S2);
//! - (ne) a version goes only when no request asked for it for `keep_ms`, or the disk is full, and none reads it (S15).
//!
//! Not done without a coordinator: removing surplus replicas (they go with their version), and moving replicas of what
//! clients get to nodes that join (the next version goes there). `re_replicate` replaces lost replicas (S18).

mod announcements;
mod dataset_state;
mod effects;
mod guard;
mod listing;
mod look;
mod mirror;
mod ordered;
mod presence;
mod settings;
mod version;

pub use announcements::{Holders, Key, Layout, News, Pin, Value};
pub use dataset_state::{DatasetState, Served};
pub use effects::{Effect, Failure, Neighbours, RememberedDataset, ShownVersion};
pub use guard::{Guard, HoldReason};
pub use ordered::Readiness;
pub use presence::Presence;
pub use settings::{NodeSettings, Spread};
pub use version::{State, Version, other_layout};

use super::name::{DatasetName, VersionName};
use super::seats::Address;
use dataset_state::{DROP_AGAIN_MS, NodeContext};
use effects::Effects;
use look::Look;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::Slot;
use std::collections::{BTreeMap, BTreeSet};
use version::Inspection;

/// What the local store has of a dataset when a node starts (S20).
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// What clients got last.
    pub served: Option<Served>,
    /// The operator's order that held.
    pub pin: Pin,
    /// The shards that a coordinator had ordered last.
    pub slots: BTreeSet<Slot>,
    /// The partitions that can be read, by version.
    pub versions: BTreeMap<VersionName, (Layout, BTreeSet<u32>)>,
    /// Versions that the node was loading when it was killed, and how often.
    pub died: BTreeMap<VersionName, u32>,
}

/// What the driver tells a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A session with the coordination service began.
    Session,
    /// The session is lost, or its state is unknown.
    SessionLost,
    /// The mirror of the keys of all nodes.
    Mirror {
        /// Whether the news are the whole mirror; else they are the changes.
        is_whole: bool,
        /// The keys that have changed, or all keys.
        news: Vec<News>,
    },
    /// How a dataset is to be spread, if otherwise than the node's settings say.
    Spread(DatasetName, Option<Spread>),
    /// A coordinator's orders: these shards of the dataset are to be here, and no others.
    ShardsOrdered(DatasetName, BTreeSet<Slot>),
    /// Which versions of a dataset a person must release.
    Guard(DatasetName, Guard),
    /// How many keys are in all partitions of a version that are here.
    Counted(DatasetName, VersionName, u64),
    /// A person wants what failed to be tried again.
    TryAgain,
    /// Versions that clients do not get must go at once.
    DiskFull,
    /// Whether a dataset is served at all. One that is not is let go, and forgotten here.
    DatasetEnabled(DatasetName, bool),
    /// The source has these versions of a dataset.
    Listed(DatasetName, Vec<VersionName>),
    /// How the source divides a version, or why that is unknown.
    Inspected(DatasetName, VersionName, Result<Layout, String>),
    /// A partition is ready to be read.
    Ready(DatasetName, VersionName, u32),
    /// Loading ended before all of it was here.
    LoadFailed(DatasetName, VersionName, String),
    /// The driver keeps the version: a request asked for it at that time.
    Used(DatasetName, VersionName, Millis),
    /// No request can get the version any more.
    Retired(DatasetName, VersionName),
    /// An operator's order, given at that time of day: in milliseconds since 1970, by the clock of this node.
    Pin(DatasetName, Option<VersionName>, u64),
    /// The node is to leave.
    Leave,
    /// Nothing but the time.
    Tick,
}

/// Whether a version may go: no request reads from it, and none has asked for it since `unused_since` (S15).
pub fn may_retire(in_flight: u64, last_request: Millis, unused_since: Millis) -> bool {
    let is_idle = in_flight == 0 || planted::is(Planted::S15);
    is_idle && (last_request <= unused_since || planted::is(Planted::Timer))
}

/// One node of a dataset cluster, as a state machine: the table of this module says what it does on each event.
#[derive(Debug, Clone)]
pub struct Node {
    settings: NodeSettings,
    presence: Presence,
    /// The keys that other nodes are to see.
    published: BTreeMap<Key, Value>,
    datasets: BTreeMap<DatasetName, DatasetState>,
    started: Millis,
    is_leaving: bool,
    look: Look,
    now: Millis,
}

impl Node {
    /// A node with this in its local store, and its first effects.
    pub fn start(
        settings: NodeSettings,
        stored: BTreeMap<DatasetName, Stored>,
        now: Millis,
    ) -> (Node, Vec<Effect>) {
        let presence = Presence::new(settings.address.clone(), settings.wish, settings.stable_ms, now);
        let (published, datasets) = (BTreeMap::new(), BTreeMap::new());
        let (is_leaving, look) = (false, Look::default());
        let mut node = Node { settings, presence, published, datasets, started: now, is_leaving, look, now };
        let mut effects = Effects::default();
        for (dataset, stored) in stored {
            let mut state =
                DatasetState { before: stored.served, pin: stored.pin, ..DatasetState::default() };
            if node.settings.is_ordered && !planted::is(Planted::Forgets) {
                state.resume_orders(stored.slots);
            }
            for (name, (layout, here)) in stored.versions {
                for partition in &here {
                    let key = Key::Partition(dataset.clone(), name.clone(), *partition);
                    node.published.insert(key, Value::Layout(layout));
                }
                state.versions.insert(name, Version { layout: Some(layout), here, ..Version::default() });
            }
            for (name, times) in stored.died {
                state.remember_death(&name, times, now, node.settings.retry_ms);
                effects.show(dataset.clone(), name);
            }
            if state.pin.order > 0 {
                node.published.insert(Key::Pin(dataset.clone()), Value::Pin(state.pin.clone()));
            }
            node.datasets.insert(dataset, state);
        }
        node.settle(&mut effects);
        let effects = node.complete(effects);
        (node, effects)
    }

    /// Takes an event; returns what the driver must do.
    pub fn take(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Effects::default();
        let out = &mut effects;
        match event {
            Event::Session => self.begin(out),
            Event::SessionLost => {
                self.presence.has_session = false;
                if planted::is(Planted::S2) {
                    self.datasets.values_mut().for_each(DatasetState::lose_holders);
                    self.all().for_each(|(dataset, version)| out.show(dataset, version));
                }
            }
            Event::Mirror { is_whole, news } => self.hear(is_whole, news, out),
            Event::Spread(dataset, spread) => self.dataset_mut(&dataset).spread = spread,
            Event::ShardsOrdered(dataset, slots) => {
                if self.dataset_mut(&dataset).order(slots) {
                    out.remember(dataset);
                }
            }
            Event::Guard(dataset, guard) => self.dataset_mut(&dataset).guard = guard,
            Event::Counted(dataset, version, keys) => self.version(&dataset, &version).keys = Some(keys),
            Event::TryAgain => {
                for (dataset, state) in &mut self.datasets {
                    state.try_again().into_iter().for_each(|name| out.show(dataset.clone(), name));
                }
            }
            Event::DiskFull => self.datasets.values_mut().for_each(|state| state.is_disk_full = true),
            Event::DatasetEnabled(dataset, is_served) => self.dataset_mut(&dataset).is_dropped = !is_served,
            Event::Listed(dataset, versions) => self.list(dataset, &versions, out),
            Event::Inspected(dataset, version, found) => self.inspected(dataset, version, found, out),
            Event::Ready(dataset, version, partition) => self.ready(dataset, version, partition, out),
            Event::LoadFailed(dataset, version, reason) => {
                let (now, rest) = (self.now, self.settings.retry_ms);
                self.version(&dataset, &version).fail(reason, now, rest);
                out.show(dataset, version);
            }
            Event::Used(dataset, version, at) => {
                let ask_again_at = self.now + DROP_AGAIN_MS;
                let version = self.version(&dataset, &version);
                version.is_retiring = false;
                version.ask_again_at = ask_again_at;
                version.idle = version.idle.map(|since| since.max(at));
            }
            Event::Retired(dataset, version) => self.retired(dataset, version, out),
            Event::Pin(dataset, version, at) => self.order(dataset, version, at, out),
            Event::Leave => self.leave(out),
            Event::Tick => {}
        }
        self.settle(out);
        self.complete(effects)
    }

    /// What it knows of the cluster's nodes.
    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    /// A dataset, if it is known here.
    pub fn dataset(&self, dataset: &DatasetName) -> Option<&DatasetState> {
        self.datasets.get(dataset)
    }

    /// How a dataset is spread.
    pub fn spread(&self, dataset: &DatasetName) -> Spread {
        self.dataset(dataset).map_or(self.settings.spread, |state| state.spread(&self.settings))
    }

    /// All datasets that are known here.
    pub fn datasets(&self) -> impl Iterator<Item = (&DatasetName, &DatasetState)> {
        self.datasets.iter()
    }

    /// The keys that other nodes are to see.
    pub fn published(&self) -> &BTreeMap<Key, Value> {
        &self.published
    }

    /// When [`Event::Tick`] is due, if nothing else comes before.
    pub fn deadline(&self) -> Millis {
        let stable = self.presence.stable_at().filter(|at| *at > self.now);
        let is_waiting =
            self.datasets.values().any(|state| state.serving.is_none() && state.before.is_some());
        let resume = is_waiting.then(|| self.started + self.settings.resume_ms).filter(|at| *at > self.now);
        let deadlines = self.datasets.values().flat_map(|state| {
            [state.deadline(&self.settings), state.parting_at(self.settings.let_go_ms, self.now)]
        });
        let deadlines = deadlines.flatten().chain(stable).chain(resume).chain(self.look.at(self.now));
        deadlines.min().unwrap_or(Millis::NEVER)
    }

    fn version(&mut self, dataset: &DatasetName, version: &VersionName) -> &mut Version {
        self.dataset_mut(dataset).version(version)
    }

    fn dataset_mut(&mut self, dataset: &DatasetName) -> &mut DatasetState {
        self.datasets.entry(dataset.clone()).or_default()
    }

    /// Every version that is known, by its dataset.
    fn all(&self) -> impl Iterator<Item = (DatasetName, VersionName)> {
        let of = |(dataset, state): (&DatasetName, &DatasetState)| {
            let names: Vec<_> = state.versions.keys().map(|name| (dataset.clone(), name.clone())).collect();
            names
        };
        self.datasets.iter().flat_map(of)
    }

    fn publish(&mut self, key: Key, value: Value, out: &mut Effects) {
        if self.is_leaving {
            return;
        }
        self.published.insert(key.clone(), value.clone());
        if self.presence.has_session {
            out.push(Effect::Publish(key, value));
        }
    }

    /// Also without a session: the driver publishes what it still has of a version, in the next session, as one value.
    fn withdraw(&mut self, key: Key, out: &mut Effects) {
        self.published.remove(&key);
        out.push(Effect::Withdraw(key));
    }

    fn list(&mut self, dataset: DatasetName, versions: &[VersionName], out: &mut Effects) {
        let (settings, now) = (self.settings.clone(), self.now);
        let state = self.dataset_mut(&dataset);
        let min = state.spread(&settings).replication.min;
        for name in state.list(versions, min, now) {
            out.show(dataset.clone(), name);
        }
    }

    fn inspected(
        &mut self,
        dataset: DatasetName,
        name: VersionName,
        found: Result<Layout, String>,
        out: &mut Effects,
    ) {
        let (now, retry_ms) = (self.now, self.settings.retry_ms);
        let served = self.dataset_mut(&dataset).served().map(|served| served.version.clone());
        let version = self.version(&dataset, &name);
        version.inspection = Inspection::None;
        match (found, version.layout) {
            (Ok(found), Some(known)) if found != known && served.as_ref() == Some(&name) => {
                version.fail(other_layout(found, known), now, retry_ms)
            }
            (Ok(found), Some(known)) if found != known => {
                if version.replace(found) {
                    self.retired(dataset.clone(), name.clone(), out);
                }
            }
            (Ok(found), _) => version.layout = Some(found),
            (Err(reason), _) => {
                version.inspection = Inspection::Failed;
                version.compared.clear();
                version.fail(reason, now, retry_ms);
            }
        }
        out.show(dataset, name);
    }

    fn ready(&mut self, dataset: DatasetName, name: VersionName, partition: u32, out: &mut Effects) {
        let version = self.version(&dataset, &name);
        version.loading.remove(&partition);
        let Some(layout) = version.layout.filter(|layout| partition < layout.partitions) else { return };
        version.here.insert(partition);
        version.has_loaded();
        out.show(dataset.clone(), name.clone());
        self.publish(Key::Partition(dataset, name, partition), Value::Layout(layout), out);
    }

    fn retired(&mut self, dataset: DatasetName, name: VersionName, out: &mut Effects) {
        let version = self.version(&dataset, &name);
        let here = std::mem::take(&mut version.here);
        version.leaving.clear();
        version.loading.clear();
        version.share = None;
        (version.is_shown, version.is_retiring, version.idle) = (false, false, None);
        version.forgive();
        for partition in here {
            self.withdraw(Key::Partition(dataset.clone(), name.clone(), partition), out);
        }
        out.push(Effect::Delete(dataset, name));
    }

    /// Numbers an operator's order above all that the node knows, however wrong the clocks were. The time of day sorts
    /// orders of nodes that have not heard of each other's yet.
    fn order(&mut self, dataset: DatasetName, version: Option<VersionName>, at: u64, out: &mut Effects) {
        let order = at.max(self.dataset_mut(&dataset).pin.order.saturating_add(1));
        self.follow(dataset, Pin { order, version }, out);
    }

    /// Follows an order, if it is higher than the one that holds.
    fn follow(&mut self, dataset: DatasetName, pin: Pin, out: &mut Effects) {
        let state = self.dataset_mut(&dataset);
        if pin > state.pin {
            state.pin_to(pin.clone());
            // Another order may have nodes try again what has failed, or not any more.
            let failed = state.versions.iter().filter(|(_, version)| version.failure.is_some());
            failed.for_each(|(name, _)| out.show(dataset.clone(), name.clone()));
            out.remember(dataset.clone());
            self.publish(Key::Pin(dataset), Value::Pin(pin), out);
        }
    }

    fn leave(&mut self, out: &mut Effects) {
        for key in self.published.keys().cloned().collect::<Vec<_>>() {
            self.withdraw(key, out);
        }
        self.is_leaving = true;
        for (dataset, state) in &mut self.datasets {
            for (name, version) in &mut state.versions {
                if !std::mem::take(&mut version.loading).is_empty() {
                    out.push(Effect::Cancel(dataset.clone(), name.clone()));
                }
            }
        }
    }

    /// Adds the effects that the present state calls for.
    fn settle(&mut self, out: &mut Effects) {
        if !self.is_leaving
            && let Some(claim) = self.presence.sit(self.now)
        {
            out.push(Effect::Sit(claim.seat));
            out.neighbours();
            self.publish(Key::Node, Value::Claim(claim), out);
        }
        self.presence.rest(self.now);
        let seats = self.presence.seats();
        let is_stable = self.presence.is_stable(self.now);
        let context = NodeContext {
            settings: &self.settings,
            now: self.now,
            dealer: self.presence.seat().filter(|_| is_stable).map(|seat| (seat, &seats)),
            seat_of: &|address| self.presence.seat_of(address),
            may_resume: self.now >= self.started + self.settings.resume_ms,
            is_leaving: self.is_leaving,
        };
        for (dataset, state) in &mut self.datasets {
            state.settle(dataset, &context, out);
        }
        self.datasets.retain(|_, state| !state.is_forgotten());
        if !self.is_leaving {
            self.let_go(out);
            out.extend(self.look.is_due(self.now).then_some(Effect::Look));
        }
        if planted::is(Planted::S12) {
            self.publish_too_early(out);
        }
    }

    /// A planted bug: publishes partitions before they are ready.
    fn publish_too_early(&mut self, out: &mut Effects) {
        for effect in out.others().to_vec() {
            if let Effect::Load { dataset, version, layout, partitions } = effect {
                let key = |partition| Key::Partition(dataset.clone(), version.clone(), partition);
                partitions.into_iter().for_each(|p| self.publish(key(p), Value::Layout(layout), out));
            }
        }
    }
}

#[cfg(test)]
mod tests;
