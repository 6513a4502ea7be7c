//! One version of a dataset on this node: which partitions are here, and who has the others.

use super::dataset::NotTaken;
use super::meter::Meter;
use super::stripes::InFlightCounter;
use arc_swap::{ArcSwap, Guard};
use partage_core::base::time::Millis;
use partage_engine::readonly::Reader;
use partage_service::dataset::name::VersionName;
use partage_service::dataset::node;
use partage_service::dataset::partition::Partitioner;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The nodes that have one partition.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The open store file, if this node has the partition.
    pub here: Option<Arc<Reader>>,
    /// `host:port` of the other nodes that have the partition.
    pub peers: Arc<[Arc<str>]>,
}

/// How a version stands on one node (S17).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// It is known, and its share is being loaded.
    #[default]
    Building,
    /// Clients of this node get it.
    Active,
    /// A later version is active; this one is removed when no request for it comes any more.
    Removing,
    /// The node could not load it.
    Error {
        /// File, offset, reason, way out.
        reason: String,
        /// How often, one time after the other.
        tries: u32,
        /// When it is tried again, in seconds since 1970, if not with the next look at the source.
        next_try: Option<u64>,
        /// Whether it is not tried again, as clients get a later version, or are to get another.
        is_superseded: bool,
    },
    /// It is whole, and a person must release it.
    Held {
        /// What the guard of the dataset has against the version: too few keys, or too many lost.
        reason: String,
    },
}

impl State {
    /// The same without reasons, as pages write it.
    pub fn kind(&self) -> node::State {
        match self {
            State::Building => node::State::Building,
            State::Active => node::State::Active,
            State::Removing => node::State::Removing,
            State::Error { .. } => node::State::Error,
            State::Held { .. } => node::State::Held,
        }
    }
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadProgress {
    /// Partitions that are to be here in the end; those that are here already are in [`Version::places`].
    pub partitions_in_all: u32,
    /// Bytes read from the source so far.
    pub bytes: u64,
    /// Bytes there are to be read, as far as is known.
    pub bytes_in_all: u64,
}

/// How the version stands, beside the places of its partitions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct VersionStatus {
    state: State,
    progress: LoadProgress,
    /// When clients of this node first got it, in seconds since 1970.
    active_at: Option<u64>,
}

/// A version as requests see it.
#[derive(Debug)]
pub struct Version {
    name: VersionName,
    source: String,
    partitioner: Partitioner,
    places: ArcSwap<Vec<Place>>,
    created_at: u64,
    status: ArcSwap<VersionStatus>,
    /// Partitions whose store file here is damaged, and how. What is sound in it is read on.
    damaged: ArcSwap<BTreeMap<u32, String>>,
    /// The peers that have other files under its name.
    differing: ArcSwap<Vec<String>>,
    last_request: AtomicU64,
    in_flight_counter: InFlightCounter,
    meter: Meter,
}

impl Version {
    /// A version of `partitions` partitions of which none is anywhere yet. `source` says where it comes from, for
    /// status pages; `created_at` is in seconds since 1970.
    pub fn new(
        name: VersionName,
        source: &str,
        partitions: u32,
        partitioner: Partitioner,
        created_at: u64,
    ) -> Result<Version, NotTaken> {
        if partitions == 0 {
            return Err(NotTaken::NoPartitions { version: name.to_string() });
        }
        Ok(Version {
            name,
            source: source.to_owned(),
            partitioner,
            places: ArcSwap::from_pointee(vec![Place::default(); partitions as usize]),
            created_at,
            status: ArcSwap::default(),
            damaged: ArcSwap::default(),
            differing: ArcSwap::default(),
            last_request: AtomicU64::new(0),
            in_flight_counter: InFlightCounter::default(),
            meter: Meter::default(),
        })
    }

    /// The name of its folder in the source; names order the versions.
    pub fn name(&self) -> &VersionName {
        &self.name
    }

    /// Where the version comes from, for status pages.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.places.load().len() as u32
    }

    /// The function that says which partition a key is in.
    pub fn partitioner(&self) -> Partitioner {
        self.partitioner
    }

    /// When this node added the version to its catalogue, in seconds since 1970: a restart adds it anew.
    pub fn created_at(&self) -> u64 {
        self.created_at
    }

    /// A partition is here from now on. A number out of range is not taken, and `false` is returned.
    pub fn hold(&self, partition: u32, reader: Arc<Reader>) -> bool {
        self.change(partition, |place| place.here = Some(reader.clone()))
    }

    /// Where all partitions are from now on. Another number of them is not taken, and `false` is returned.
    pub fn arrange(&self, places: Vec<Place>) -> bool {
        let fits = places.len() == self.places.load().len();
        if fits {
            self.places.store(Arc::new(places));
        }
        fits
    }

    /// This node has the partition no longer.
    pub fn let_go(&self, partition: u32) -> bool {
        self.change(partition, |place| place.here = None)
    }

    /// Sets the peers that have a partition, as the mirror says now.
    pub fn found_at(&self, partition: u32, peers: Arc<[Arc<str>]>) -> bool {
        self.change(partition, |place| place.peers = peers.clone())
    }

    fn change(&self, partition: u32, change: impl Fn(&mut Place)) -> bool {
        let before = self.places.rcu(|places| {
            let mut places = Vec::clone(places);
            places.get_mut(partition as usize).map(&change);
            places
        });
        (partition as usize) < before.len()
    }

    /// Where each partition is, at one moment.
    pub fn places(&self) -> Guard<Arc<Vec<Place>>> {
        self.places.load()
    }

    /// How it stands here.
    pub fn state(&self) -> State {
        self.status.load().state.clone()
    }

    /// Sets what [`Version::state`] returns; the first [`State::Active`] sets [`Version::active_at`].
    pub fn set_state(&self, state: State) {
        let now = partage_clock::unix_seconds();
        self.status.rcu(|status| {
            let active_at = match state {
                State::Active => status.active_at.or(Some(now)),
                _ => status.active_at,
            };
            VersionStatus { state: state.clone(), active_at, ..VersionStatus::clone(status) }
        });
    }

    /// How far loading is.
    pub fn progress(&self) -> LoadProgress {
        self.status.load().progress
    }

    /// Sets how many partitions this node is to have in the end.
    pub fn set_partitions_to_load(&self, partitions_in_all: u32) {
        self.change_progress(|progress| LoadProgress { partitions_in_all, ..progress });
    }

    /// Sets how many bytes have been read from the source, and of how many.
    pub fn set_bytes_loaded(&self, bytes: u64, bytes_in_all: u64) {
        self.change_progress(|progress| LoadProgress { bytes, bytes_in_all, ..progress });
    }

    fn change_progress(&self, change: impl Fn(LoadProgress) -> LoadProgress) {
        self.status.rcu(|status| VersionStatus {
            progress: change(status.progress),
            ..VersionStatus::clone(status)
        });
    }

    /// The store file of a partition is damaged; whether that is news.
    pub fn report_damage(&self, partition: u32, reason: &str) -> bool {
        let before = self.damaged.rcu(|damaged| {
            let mut damaged = BTreeMap::clone(damaged);
            damaged.entry(partition).or_insert_with(|| reason.to_owned());
            damaged
        });
        !before.contains_key(&partition)
    }

    /// Partitions whose store file is damaged, and how.
    pub fn damaged(&self) -> Arc<BTreeMap<u32, String>> {
        self.damaged.load_full()
    }

    /// Another store file has taken the place of a damaged one.
    pub fn repaired(&self, partition: u32) {
        if self.damaged.load().contains_key(&partition) {
            self.damaged.rcu(|damaged| {
                let mut damaged = BTreeMap::clone(damaged);
                damaged.remove(&partition);
                damaged
            });
        }
    }

    /// `host:port` of the peers that have another version under its name: nothing of theirs is used (Z5).
    pub fn differing(&self) -> Arc<Vec<String>> {
        self.differing.load_full()
    }

    /// Sets the peers that have another version under its name.
    pub fn set_differing(&self, peers: Vec<String>) {
        self.differing.store(Arc::new(peers));
    }

    /// Since when it is active here, in seconds since 1970.
    pub fn active_at(&self) -> Option<u64> {
        self.status.load().active_at
    }

    /// How many requests have hold of it now. Once it is retired this only falls.
    pub fn in_flight(&self) -> u64 {
        self.in_flight_counter.count()
    }

    /// When the last request for it came, by [`super::Catalogue::clock`]; 0 if none did.
    pub fn last_request(&self) -> Millis {
        Millis(self.last_request.load(Ordering::Relaxed))
    }

    /// A request for it came.
    pub fn asked_at(&self, now: Millis) {
        // Written only when it changes: a line that nobody writes is in every core's cache.
        if self.last_request.load(Ordering::Relaxed) < now.0 {
            self.last_request.fetch_max(now.0, Ordering::Relaxed);
        }
    }

    /// What requests for it have been.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn in_flight_counter(&self) -> &InFlightCounter {
        &self.in_flight_counter
    }
}
