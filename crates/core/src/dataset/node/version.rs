//! One version of a dataset, as a node knows it: what is here, who has the rest, and how loading goes.

use super::hearsay::{Holders, Layout};
use crate::planted::{self, Planted};
use crate::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How far the node is in finding out how a version is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Inspection {
    /// Nobody has looked.
    #[default]
    None,
    /// The driver looks.
    Asked,
    /// It could not be found out; the next refresh looks again.
    Failed,
}

/// A version at this node (S17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is later than what clients get: being loaded, or waiting for others to have it.
    Building,
    /// Clients get it.
    Active,
    /// Clients get another; peers may still ask for it, and then it goes.
    Removing,
    /// It could not be read or loaded; the reason is [`Version::failure`].
    Error,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Version {
    pub(super) layout: Option<Layout>,
    /// Whether the source had it when it was last listed.
    pub(super) is_listed: bool,
    pub(super) inspection: Inspection,
    pub(super) here: BTreeSet<u32>,
    pub(super) loading: BTreeSet<u32>,
    /// Those of `here` that others have been told are not, and since when: they are ordered elsewhere.
    pub(super) leaving: BTreeMap<u32, Millis>,
    /// What it is to take, once that was computed.
    pub(super) share: Option<BTreeSet<u32>>,
    pub(super) holders: Holders,
    pub(super) failure: Option<String>,
    /// Whether it has failed since it was known, here or, as it seems, elsewhere: then an earlier version is loaded
    /// beside it.
    pub(super) is_doubtful: bool,
    /// Since when it is neither what clients get nor what they may get next, nor asked for.
    pub(super) idle: Option<Millis>,
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

    /// The other nodes that may be asked for a partition: those that have it, as far as is known, or else those that had
    /// it last.
    pub fn peers(&self, partition: u32) -> impl Iterator<Item = &super::Address> {
        self.layout.into_iter().flat_map(move |layout| self.holders.worth_asking(layout, partition))
    }

    /// Why it could not be loaded, if it could not. What failed in the source names the file.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
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

    /// Nothing is known of it, and nothing was told of it.
    pub(super) fn is_forgotten(&self) -> bool {
        let is_asked = self.inspection == Inspection::Asked;
        !self.is_listed && !self.is_somewhere() && self.loading.is_empty() && !self.is_shown && !is_asked
    }

    /// It failed: what is being loaded is not any more.
    pub(super) fn fail(&mut self, reason: String) {
        self.loading.clear();
        self.is_doubtful = true;
        self.failure = Some(reason);
    }

    /// A refresh: what failed is tried again, and what is not complete is dealt anew.
    pub(super) fn refresh(&mut self, min: u32) {
        if planted::is(Planted::S19) {
            return;
        }
        if self.inspection == Inspection::Failed {
            self.inspection = Inspection::None;
        }
        if self.failure.is_some() || !self.is_complete(min) {
            // All that is to be here is, and it is still not whole: others have trouble with it.
            self.is_doubtful |= self.share.as_ref().is_some_and(|share| share.is_subset(&self.here));
            self.failure = None;
            self.share = None;
        }
    }
}

impl State {
    /// The word of status pages.
    pub const fn word(self) -> &'static str {
        match self {
            State::Building => "BUILDING",
            State::Active => "ACTIVE",
            State::Removing => "REMOVING",
            State::Error => "ERROR",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
