//! What the state machine asks its driver to do: each effect carries all that the driver needs for it.

use super::announcements::{Key, Layout, Pin, Value};
use super::dataset_state::Served;
use super::version::State;
use super::{Node, Version};
use crate::dataset::seats::{Address, Seat};
use crate::dataset::{DatasetName, Partitioner, VersionName};
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::Slot;
use std::collections::BTreeSet;

/// What a node's driver does, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish a key of this node in the session that there is.
    Publish(Key, Value),
    /// Take it back. Where there is no session: do not publish it in the next.
    Withdraw(Key),
    /// Remember the seat for the next start.
    Sit(Seat),
    /// The other nodes, or its own seat, have changed.
    Neighbours(Neighbours),
    /// Look at the source now, not at the next refresh: peers have what it was not seen to have.
    Look,
    /// Find out how the source divides a version: [`super::Event::Inspected`].
    Inspect(DatasetName, VersionName),
    /// Load partitions: [`super::Event::Ready`] for each, or [`super::Event::LoadFailed`]. Earlier loads go on.
    Load {
        /// The dataset that the version is of.
        dataset: DatasetName,
        /// The version to load.
        version: VersionName,
        /// How it is divided.
        layout: Layout,
        /// The numbers of the partitions to load.
        partitions: BTreeSet<u32>,
    },
    /// Stop to load a version. What is ready stays.
    Cancel(DatasetName, VersionName),
    /// Make what there is of a version visible to requests.
    Show(Box<ShownVersion>),
    /// Write to disk, before the next effect, what a dataset must know after a restart.
    Remember(RememberedDataset),
    /// Clients get this version from now on.
    Upgrade {
        /// The dataset that the version is of.
        dataset: DatasetName,
        /// The version that clients get.
        version: VersionName,
        /// The order of [`Pin`] by which they get it.
        order: u64,
    },
    /// Let no request get this version any more: [`super::Event::Retired`]. If [`super::may_retire`] forbids it:
    /// [`super::Event::Used`].
    Retire {
        /// The dataset that the version is of.
        dataset: DatasetName,
        /// The version that no request should get any more.
        version: VersionName,
        /// If it is unused since then.
        unused_since: Millis,
    },
    /// Delete partitions of a version from the local store: other nodes have them. Requests see them no longer.
    LetGo {
        /// The dataset that the version is of.
        dataset: DatasetName,
        /// The version that the partitions are of.
        version: VersionName,
        /// The numbers of the partitions to delete.
        partitions: BTreeSet<u32>,
    },
    /// No request gets this dataset any more.
    Drop(DatasetName),
    /// Delete a version from the local store, once no request reads from it.
    Delete(DatasetName, VersionName),
}

/// The nodes of the cluster, as one of them sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbours {
    /// Its own seat; none before it has one.
    pub seat: Option<Seat>,
    /// The other nodes, with the seats that they have.
    pub others: Vec<(Address, Seat)>,
}

/// What there is of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownVersion {
    /// The dataset that the version is of.
    pub dataset: DatasetName,
    /// The version that requests may see.
    pub version: VersionName,
    /// How it is divided. One that could not be read is shown as a single partition that no node has.
    pub layout: Layout,
    /// How it stands at this node.
    pub state: State,
    /// Why it could not be read or loaded, and how often.
    pub failure: Option<Failure>,
    /// Why clients do not get it by itself.
    pub held: Option<String>,
    /// The partitions that can be read here.
    pub here: BTreeSet<u32>,
    /// For each partition, the other nodes that may be asked.
    pub peers: Vec<Vec<Address>>,
    /// How many partitions are to be here in the end.
    pub wanted: usize,
    /// The nodes that have another version under its name.
    pub differing: Vec<Address>,
}

/// Why a version was not read or loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What failed, in one sentence for people.
    pub reason: String,
    /// How often it failed, one time after the other.
    pub times: u32,
    /// When it may be tried again.
    pub retry_at: Millis,
    /// It is not tried again at all while clients get a later version, or are to get another.
    pub is_superseded: bool,
    /// Clients can get it, or do, nevertheless: an order may name it.
    pub may_be_ordered: bool,
    /// It is not even known how it is divided.
    pub is_unread: bool,
}

/// What a dataset must know after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RememberedDataset {
    /// The dataset that has this state.
    pub dataset: DatasetName,
    /// What clients get or got last, and by which order.
    pub served: Option<Served>,
    /// The order of an operator that holds.
    pub pin: Pin,
    /// The shards that a coordinator has ordered.
    pub slots: BTreeSet<Slot>,
    /// What clients get now.
    pub serving: Option<VersionName>,
}

/// The effects of one event, while they are collected. Each version is shown, and each dataset remembered, once, as it
/// is in the end.
#[derive(Debug, Default)]
pub(super) struct Effects {
    shown: BTreeSet<(DatasetName, VersionName)>,
    remembered: BTreeSet<DatasetName>,
    has_other_neighbours: bool,
    others: Vec<Effect>,
}

impl Effects {
    pub(super) fn show(&mut self, dataset: DatasetName, version: VersionName) {
        self.shown.insert((dataset, version));
    }

    pub(super) fn remember(&mut self, dataset: DatasetName) {
        self.remembered.insert(dataset);
    }

    pub(super) fn neighbours(&mut self) {
        self.has_other_neighbours = true;
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.others.push(effect);
    }

    pub(super) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.others.extend(effects);
    }

    /// The effects, but for what is shown and remembered.
    pub(super) fn others(&self) -> &[Effect] {
        &self.others
    }
}

impl Node {
    /// All effects, with what the driver needs, in the order in which it does them: it withdraws partitions before it
    /// deletes anything of them, lets requests see a version and remembers it before clients get it, and publishes
    /// partitions last, when they can be read. Of what one event does to a key, the last counts.
    pub(super) fn complete(&mut self, effects: Effects) -> Vec<Effect> {
        let Effects { shown, remembered, has_other_neighbours, others } = effects;
        for (dataset, version) in &shown {
            // A version that was shown must be retired when it goes, even if it could not be read.
            let state = self.datasets.get_mut(dataset);
            if let Some(known) = state.and_then(|state| state.versions.get_mut(version)) {
                known.is_shown = true;
            }
        }
        let shown = shown.into_iter().filter_map(|(dataset, version)| self.shown(dataset, version));
        let shown = shown.map(|shown| Effect::Show(Box::new(shown)));
        let remembered = remembered.into_iter().filter_map(|dataset| self.remembered(dataset));
        let neighbours = has_other_neighbours.then(|| Effect::Neighbours(self.neighbours()));
        let others: Vec<_> = others.into_iter().filter(|effect| !self.is_overtaken(effect)).collect();
        let is_published = |effect: &Effect| matches!(effect, Effect::Publish(Key::Partition(..), _));
        let is_withdrawn = |effect: &Effect| matches!(effect, Effect::Withdraw(Key::Partition(..)));
        let (published, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_published);
        let (withdrawn, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_withdrawn);
        let known = shown.chain(remembered.map(Effect::Remember)).chain(neighbours);
        withdrawn.into_iter().chain(known).chain(others).chain(published).collect()
    }

    /// Whether a key that was to be published is withdrawn by now, or has another value: one event may do both.
    fn is_overtaken(&self, effect: &Effect) -> bool {
        matches!(effect, Effect::Publish(key, value) if self.published.get(key) != Some(value))
    }

    fn neighbours(&self) -> Neighbours {
        let others = self.presence.others().map(|(address, seat)| (address.clone(), seat));
        Neighbours { seat: self.presence.seat(), others: others.collect() }
    }

    fn remembered(&self, dataset: DatasetName) -> Option<RememberedDataset> {
        let state = self.datasets.get(&dataset)?;
        Some(RememberedDataset {
            served: state.served().cloned(),
            pin: state.pin().clone(),
            slots: state.kept().clone(),
            serving: state.serving().cloned(),
            dataset,
        })
    }

    fn shown(&self, dataset: DatasetName, version: VersionName) -> Option<ShownVersion> {
        let state = self.datasets.get(&dataset)?;
        let known: &Version = state.versions.get(&version)?;
        let unread = Layout { partitioner: Partitioner::default(), partitions: 1, digest: 0 };
        let layout = known.layout().unwrap_or(unread);
        let peers = |partition| known.peers(partition).cloned().collect();
        Some(ShownVersion {
            state: state.state(&version)?,
            failure: known.failure().map(|reason| Failure {
                reason: reason.to_owned(),
                times: known.failures(),
                retry_at: known.retry_at(),
                is_superseded: state.is_superseded(&version),
                may_be_ordered: state.serving() == Some(&version)
                    || known.is_complete(state.spread(&self.settings).replication.min),
                is_unread: known.layout().is_none(),
            }),
            held: known.held().map(ToString::to_string),
            here: known.here().clone(),
            peers: (0..layout.partitions).map(peers).collect(),
            wanted: known.wanted(),
            differing: known.differing().into_iter().cloned().collect(),
            layout,
            dataset,
            version,
        })
    }
}
