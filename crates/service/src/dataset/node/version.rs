//! One version of a dataset, as a node knows it: what is here, which nodes have the rest, and how loading goes.

use super::announcements::{Holders, Layout};
use super::guard::HoldReason;
use partage_core::base::count::counted;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How far the node is in finding out how a version is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Inspection {
    /// No inspection is wanted or under way.
    #[default]
    None,
    /// The driver was asked to look.
    Asked,
    /// It could not be found out; the next refresh looks again.
    Failed,
    /// Peers have another layout under its name: the driver is to look again, as the files may have changed.
    Again,
}

/// A version at this node (S17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Clients may get it next: it is being loaded, or waits for others to have it.
    Building,
    /// Clients get it, and no other of its dataset.
    Active,
    /// Clients get another; peers may still ask for it, and then it goes.
    Removing,
    /// It could not be read or loaded; the reason is [`Version::failure`].
    Error,
    /// It is whole, and clients get it only when a person says so; the reason is [`Version::held`].
    Held,
}

/// One version of a dataset as one node knows it: its partitions, their holders, and how loading goes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Version {
    pub(super) layout: Option<Layout>,
    /// Whether the source had it when it was last listed.
    pub(super) is_listed: bool,
    pub(super) inspection: Inspection,
    pub(super) here: BTreeSet<u32>,
    pub(super) loading: BTreeSet<u32>,
    /// Those of `here` whose keys are withdrawn, and since when: they are ordered elsewhere.
    pub(super) leaving: BTreeMap<u32, Millis>,
    /// What this node is to load, once computed.
    pub(super) share: Option<BTreeSet<u32>>,
    pub(super) holders: Holders,
    /// The other layouts that peers had when this node last inspected it again.
    pub(super) compared: BTreeSet<Layout>,
    pub(super) failure: Option<String>,
    /// How often it failed since it was last loaded.
    pub(super) failures: u32,
    /// When it may be tried again.
    pub(super) retry_at: Millis,
    /// How many keys are in the partitions here, once the driver has counted.
    pub(super) keys: Option<u64>,
    /// Why clients do not get it by itself.
    pub(super) held: Option<HoldReason>,
    /// Whether the source took it back while it was held: then clients get it by an order only.
    pub(super) is_withdrawn: bool,
    /// Whether it has failed since it was known, here or, as it seems, elsewhere: then an earlier version is loaded
    /// beside it.
    pub(super) is_doubtful: bool,
    /// Since when it is neither what clients get nor what they may get next, nor asked for.
    pub(super) idle: Option<Millis>,
    /// When the driver, which refused to let it go, may be asked again, if there is nothing to wait for.
    pub(super) ask_again_at: Millis,
    /// Whether the driver was asked to let it go.
    pub(super) is_retiring: bool,
    /// Whether the driver has been told of it.
    pub(super) is_shown: bool,
}

impl Version {
    /// How it is divided, once that is known.
    pub fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// The partitions that are here, ready to be read.
    pub fn here(&self) -> &BTreeSet<u32> {
        &self.here
    }

    /// The partitions that are being loaded.
    pub fn loading(&self) -> &BTreeSet<u32> {
        &self.loading
    }

    /// How many partitions are to be here in the end, as far as is known: those that are, and those that lack.
    pub fn wanted(&self) -> usize {
        let lacking = self.share.iter().flatten().chain(&self.loading).filter(|p| !self.here.contains(p));
        self.here.len() + lacking.collect::<BTreeSet<_>>().len()
    }

    /// The other nodes that may be asked for a partition: those that have it, as far as is known, else the last ones.
    pub fn peers(&self, partition: u32) -> impl Iterator<Item = &super::Address> {
        self.layout.into_iter().flat_map(move |layout| self.holders.worth_asking(layout, partition))
    }

    /// The nodes that have another version under its name: other files, or divided otherwise. This node uses nothing of
    /// theirs (Z5).
    pub fn differing(&self) -> BTreeSet<&super::Address> {
        self.layout.map_or_else(BTreeSet::new, |layout| self.holders.of_other_layouts(layout))
    }

    /// How it is divided, if it may be loaded now. While the source is asked again, it may not.
    pub(super) fn to_load(&self) -> Option<Layout> {
        let is_settled = !matches!(self.inspection, Inspection::Asked | Inspection::Again);
        self.layout.filter(|_| self.is_listed && self.failure.is_none() && is_settled)
    }

    /// Why it could not be loaded, if it could not. What failed in the source names the file.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// How often it failed, one time after the other.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When it may be tried again, if it failed.
    pub fn retry_at(&self) -> Millis {
        self.retry_at
    }

    /// Why clients do not get it by itself, if they do not.
    pub fn held(&self) -> Option<&HoldReason> {
        self.held.as_ref()
    }

    /// How many keys it has in all, as far as nodes tell ([`super::guard`]).
    pub fn keys(&self) -> Option<u64> {
        let layout = self.layout?;
        let mine = self.keys.map(|keys| (keys, self.here.len()));
        let (keys, partitions) = self
            .holders
            .counted(layout)
            .chain(mine)
            .fold((0u128, 0u128), |sum, (keys, held)| (sum.0 + u128::from(keys), sum.1 + held as u128));
        let all = (keys * u128::from(layout.partitions)).div_ceil(if partitions == 0 {
            return None;
        } else {
            partitions
        });
        Some(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// Whether the source had it when it was last listed.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// How many nodes have the partition, this one among them.
    pub fn replicas(&self, partition: u32) -> usize {
        let others = self.layout.map_or(0, |layout| self.holders.count(layout, partition));
        others + usize::from(self.here.contains(&partition))
    }

    /// Whether every partition is at so many nodes (S10).
    pub fn is_complete(&self, min: u32) -> bool {
        let Some(layout) = self.layout else { return false };
        let mut partitions = 0..layout.partitions;
        if planted::is(Planted::S10) {
            return partitions.any(|partition| self.replicas(partition) > 0);
        }
        partitions.all(|partition| self.replicas(partition) >= min as usize)
    }

    /// Whether the own source lists it, or has given this node a part of it (Z5). What peers have of it does not count.
    pub(super) fn is_own(&self) -> bool {
        self.is_listed || !self.here.is_empty() || planted::is(Planted::AnySource)
    }

    /// Whether any of it is anywhere, as far as is known.
    pub(super) fn is_somewhere(&self) -> bool {
        !self.here.is_empty() || !self.holders.is_empty()
    }

    /// Whether nothing is known of it, and the driver was told nothing.
    pub(super) fn is_forgotten(&self) -> bool {
        let is_asked = self.inspection == Inspection::Asked;
        !self.is_listed && !self.is_somewhere() && self.loading.is_empty() && !self.is_shown && !is_asked
    }

    /// Notes a failure: nothing of it loads any more.
    pub(super) fn fail(&mut self, reason: String, now: Millis, retry_ms: u64) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + pause(self.failures, retry_ms);
        self.loading.clear();
        self.is_doubtful = true;
        self.failure = Some(reason);
    }

    /// A partition was loaded; when the whole share is here, earlier failures no longer count.
    pub(super) fn has_loaded(&mut self) {
        if self.share.as_ref().is_some_and(|share| share.is_subset(&self.here)) {
            self.failures = 0;
        }
    }

    /// Clears its failure; returns whether it had one.
    pub(super) fn forgive(&mut self) -> bool {
        if self.inspection == Inspection::Failed {
            self.inspection = Inspection::None;
        }
        self.failures = 0;
        self.failure.take().is_some()
    }

    /// A refresh: the node tries a failed version again if it may succeed, and computes a new share of one not whole.
    pub(super) fn refresh(&mut self, min: u32, now: Millis, may_succeed: bool) {
        let rests = self.failure.is_some() && (now < self.retry_at || !may_succeed);
        if planted::is(Planted::S19) || rests {
            return;
        }
        if self.inspection == Inspection::Failed {
            self.inspection = Inspection::None;
        }
        if self.failure.is_some() || !self.is_complete(min) {
            // The whole share is here, and the version is not whole: other nodes fail to load it.
            self.is_doubtful |= self.share.as_ref().is_some_and(|share| share.is_subset(&self.here));
            self.look_again();
            self.failure = None;
            self.share = None;
        }
    }

    /// Peers have another layout of a version that is not whole: this node may have looked before all files were there.
    /// It looks once more for each such layout.
    fn look_again(&mut self) {
        let Some(layout) = self.layout else { return };
        let others = self.holders.other_layouts(layout);
        let is_idle = self.loading.is_empty() && self.inspection == Inspection::None;
        if is_idle && !others.is_subset(&self.compared) {
            (self.compared, self.inspection) = (others, Inspection::Again);
        }
    }

    /// The files of a version that clients do not get have changed: the node loads it from the beginning. Returns
    /// whether partitions of the old files are here.
    pub(super) fn replace(&mut self, found: Layout) -> bool {
        (self.layout, self.share, self.keys) = (Some(found), None, None);
        self.loading.clear();
        !self.here.is_empty()
    }
}

/// Why the node does not take a version whose files changed.
pub fn other_layout(found: Layout, known: Layout) -> String {
    format!(
        "the source has it as {} by {} of files with the digest {:016x}, this node as {} by {} of {:016x}: a version must \
         not change; give the new files a new version",
        counted(found.partitions, "partition"),
        found.partitioner,
        found.digest,
        known.partitions,
        known.partitioner,
        known.digest
    )
}

/// How long a version rests after so many failures: after the first until the next refresh, then twice as long each
/// time, up to a bound.
fn pause(failures: u32, retry_ms: u64) -> u64 {
    match failures {
        0 | 1 => 0,
        more => retry_ms.saturating_mul(1 << (more - 2).min(20)).min(MOST_RETRY_MS),
    }
}

/// A person who mends the files of a version should wait an hour at most until it is tried again.
const MOST_RETRY_MS: u64 = 3_600_000;

impl State {
    /// Every state that status pages can name.
    pub const ALL: [State; 5] = [State::Building, State::Active, State::Removing, State::Error, State::Held];

    /// The word of status pages.
    pub const fn word(self) -> &'static str {
        match self {
            State::Building => "BUILDING",
            State::Active => "ACTIVE",
            State::Removing => "REMOVING",
            State::Error => "ERROR",
            State::Held => "HELD",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
