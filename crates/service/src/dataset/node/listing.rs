//! What a node does after its source was listed: which versions clients may get at all, which failed ones are tried
//! again, and which the source has taken back.
//!
//! A person who deletes the folder of a version before clients get it wants it gone. The node stops to load it, no
//! longer shows it as failed or held, and deletes what is here of it when no request has come for it in a long time
//! (S15); at once where no node has any of it. Only a version that nodes have whole, and do not hold, still comes:
//! another node may have given it to its clients already.

use super::VersionName;
use super::dataset_state::DatasetState;
use super::version::Version;
use partage_core::base::time::Millis;
use std::collections::BTreeSet;

impl DatasetState {
    /// Failed versions need not rest any longer. Superseded ones count as failed no more: a person may have removed the
    /// cause, and want to go back to one. Returns those.
    pub(super) fn try_again(&mut self) -> Vec<VersionName> {
        let wanted = self.wanted();
        let mut forgiven = Vec::new();
        for (name, version) in &mut self.versions {
            version.retry_at = Millis(0);
            version.compared.clear();
            if !wanted.contains(name) && version.forgive() {
                forgiven.push(name.clone());
            }
        }
        forgiven
    }

    /// The source has these versions, and no others. A failed one is tried again when it is due, unless it is
    /// superseded. Returns the versions to show again: those that have failed, and those that have not any more.
    pub(super) fn list(&mut self, listed: &[VersionName], min: u32, now: Millis) -> Vec<VersionName> {
        self.was_listed = true;
        for name in listed {
            self.version(name);
        }
        for (name, version) in &mut self.versions {
            version.is_listed = listed.contains(name);
            // A version that is held and deleted is given to no client by itself, though all of it is here.
            version.is_withdrawn = !version.is_listed && (version.held.is_some() || version.is_withdrawn);
        }
        // A version in whose place another is loaded is not tried again now, and so it stays an error.
        let wanted: BTreeSet<VersionName> = self.wanted().into_iter().collect();
        let served = self.served().map(|served| served.version.clone());
        let mut changed = Vec::new();
        for (name, version) in &mut self.versions {
            let is_served = served.as_ref() == Some(name);
            let is_ordered = self.pin.version.as_ref() == Some(name);
            if version.is_listed || is_served || is_ordered {
                // While clients get nothing, whichever can be loaded is of use.
                let is_wanted = served.is_none() || wanted.contains(name);
                let may_succeed = is_served || (is_wanted && version.is_listed);
                version.refresh(min, now, may_succeed);
            } else if version.forgive() {
                changed.push(name.clone());
            }
            if version.failure.is_some() {
                // Whether it is superseded may have changed.
                changed.push(name.clone());
            }
        }
        changed
    }

    /// Whether clients may get it from this node at all: the own source lists it, or has given this node a part of it
    /// (Z5). A version that the source has taken back comes only if nodes have all of it, and do not hold it, or if it
    /// was served or is ordered.
    pub(super) fn is_within_reach(&self, name: &VersionName) -> bool {
        let Some(version) = self.versions.get(name).filter(|version| version.is_own()) else { return false };
        let is_there = version.is_listed || !self.was_listed;
        is_there || self.is_chosen(name) || (version.is_complete(1) && !version.is_withdrawn)
    }

    /// Whether clients get it, or a person has ordered that they do.
    fn is_chosen(&self, name: &VersionName) -> bool {
        let is_served = self.served().is_some_and(|served| served.version == *name);
        is_served || self.pin.version.as_ref() == Some(name)
    }

    /// Whether it may go at once: the source has taken it back, no node has any of it, and clients neither get it nor
    /// are to get it.
    pub(super) fn is_gone_everywhere(&self, name: &VersionName, version: &Version) -> bool {
        let is_gone = self.was_listed && !version.is_listed && !version.is_somewhere();
        let is_awaited = self.is_chosen(name) || self.is_ahead(name);
        is_gone && !is_awaited && version.loading.is_empty()
    }
}
