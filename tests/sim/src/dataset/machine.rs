//! A node: its mind, its disk, what requests see of it, and its session.

use super::store::Named;
use partage_core::keyspace::sharding::Slot;
use partage_service::dataset::node::{Layout, Node, NodeSettings, Pin, Served, ShownVersion, Stored, Value};
use partage_service::dataset::{Address, DatasetName, Seat, VersionName, Wish};
use std::collections::{BTreeMap, BTreeSet};

/// What there is of each version.
pub type Versions = BTreeMap<VersionName, (Layout, BTreeSet<u32>)>;

/// What survives a crash, unless the disk is lost with it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub served: Option<Served>,
    pub pin: Pin,
    pub seat: Option<Seat>,
    pub slots: BTreeSet<Slot>,
    pub versions: Versions,
}

/// What requests see of a version.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// The partitions that are here, and since when.
    pub here: BTreeMap<u32, u64>,
    pub partitions: u32,
    pub peers: BTreeMap<u32, Vec<Address>>,
    pub last_request: u64,
}

/// What requests of clients see: the version that is served, and what is here of each.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    pub serving: Option<VersionName>,
    pub shown: BTreeMap<VersionName, Entry>,
    /// How many read from a version, be it shown or not.
    pub in_flight: BTreeMap<VersionName, u64>,
}

impl Catalogue {
    pub fn enter(&mut self, version: &VersionName, now: u64) {
        *self.in_flight.entry(version.clone()).or_default() += 1;
        if let Some(entry) = self.shown.get_mut(version) {
            entry.last_request = now;
        }
    }

    pub fn leave(&mut self, version: &VersionName) {
        if let Some(count) = self.in_flight.get_mut(version) {
            *count -= 1;
        }
    }
}

/// A simulated dataset node: its mind, its disk, what requests see of it, and its session.
#[derive(Debug)]
pub struct Machine {
    pub address: Address,
    pub settings: NodeSettings,
    /// Grows with every start; even while it is down.
    pub life: u64,
    pub mind: Option<Node>,
    pub disk: Disk,
    pub catalogue: Catalogue,
    pub up_since: u64,
    /// Whether it has given up what it served before the restart, as that is lost.
    pub has_given_up: bool,
    /// What its clients got before it was restarted.
    pub gave: Option<VersionName>,
    pub session: Option<u64>,
    /// Until when it may believe in its session.
    pub believes: u64,
    /// Where it is in the log of the store; none before it has read the whole.
    pub cursor: Option<usize>,
    /// The content of its mirror, as it was delivered: what it can see, and since when.
    pub seen: BTreeMap<Named, (Value, u64)>,
    /// What the driver publishes of each version: its partitions share a key. It outlives sessions.
    pub held: Versions,
    /// Versions of which that has changed since the driver published it last.
    pub unsaid: BTreeSet<VersionName>,
    /// Loads that are cancelled or over have another number.
    pub loads: BTreeMap<VersionName, u64>,
    /// When it crashed last, and what it had then.
    pub fell: Option<(u64, Versions)>,
}

impl Machine {
    pub fn new(settings: NodeSettings) -> Machine {
        Machine {
            address: settings.address.clone(),
            settings,
            life: 0,
            mind: None,
            disk: Disk::default(),
            catalogue: Catalogue::default(),
            up_since: 0,
            has_given_up: false,
            gave: None,
            session: None,
            believes: 0,
            cursor: None,
            seen: BTreeMap::new(),
            held: Versions::new(),
            unsaid: BTreeSet::new(),
            loads: BTreeMap::new(),
            fell: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.mind.is_some()
    }

    /// The mirror gets these changes, or this is all there is.
    pub fn see(&mut self, is_whole: bool, changes: &[(Named, Option<Value>)], now: u64) {
        if is_whole {
            let there = |named: &Named| changes.iter().any(|(other, _)| other == named);
            self.seen.retain(|named, _| there(named));
        }
        for (named, value) in changes {
            match value {
                Some(value) => {
                    self.seen.entry(named.clone()).or_insert((value.clone(), now)).0 = value.clone()
                }
                None => drop(self.seen.remove(named)),
            }
        }
    }

    /// What it starts with.
    pub fn stored(&self, dataset: &DatasetName) -> BTreeMap<DatasetName, Stored> {
        let Disk { served, pin, slots, versions, .. } = self.disk.clone();
        [(dataset.clone(), Stored { served, pin, slots, versions, ..Stored::default() })].into()
    }

    /// Its settings, with the seat it remembers.
    pub fn settings(&self) -> NodeSettings {
        let mut settings = self.settings.clone();
        if let Wish::Any { before } = &mut settings.wish {
            *before = self.disk.seat;
        }
        settings
    }

    /// It is down: all but the disk is gone.
    pub fn crash(&mut self, now: u64) {
        self.life += 1;
        self.fell = Some((now, self.disk.versions.clone()));
        self.mind = None;
        self.has_given_up = false;
        self.catalogue = Catalogue::default();
        self.session = None;
        self.cursor = None;
        self.seen.clear();
        self.held.clear();
        self.unsaid.clear();
        self.loads.clear();
    }

    /// The driver takes up that a partition is to be published, or no longer.
    pub fn hold(&mut self, version: VersionName, partition: u32, layout: Option<Layout>) {
        self.unsaid.insert(version.clone());
        let Some(layout) = layout else {
            if let Some((_, held)) = self.held.get_mut(&version) {
                held.remove(&partition);
            }
            return self.held.retain(|_, (_, held)| !held.is_empty());
        };
        let held = self.held.entry(version).or_insert((layout, BTreeSet::new()));
        held.0 = layout;
        held.1.insert(partition);
    }

    /// Shows requests what there is of a version.
    pub fn show(&mut self, shown: ShownVersion, now: u64) {
        if shown.failure.is_some_and(|failure| failure.is_unread) {
            return;
        }
        let entry = self.catalogue.shown.entry(shown.version).or_default();
        entry.partitions = shown.layout.partitions;
        entry.here.retain(|partition, _| shown.here.contains(partition));
        for partition in shown.here {
            entry.here.entry(partition).or_insert(now);
        }
        entry.peers = (0..).zip(shown.peers).map(|(p, peers)| (p, peers.into_iter().collect())).collect();
    }
}
