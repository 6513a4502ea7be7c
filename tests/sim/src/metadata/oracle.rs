//! What must hold, judged by what no process in the simulation sees: the true head, and what is on the disks.

use partage_core::base::id::Generation;
use partage_core::keyspace::map::ShardMap;
use partage_service::metadata::Head;
use partage_service::metadata::change::Failed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Every map that was tried, and which of them were the head's.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Every map that a requester tried to commit.
    maps: BTreeMap<Generation, Arc<ShardMap>>,
    /// Those that were the head's, in order; none where the keyspace was deleted.
    history: Vec<Option<Generation>>,
    /// Changes of which a requester was told that they are in, or that they never will be.
    told: BTreeMap<Generation, bool>,
}

impl Oracle {
    /// A requester is about to try this map.
    pub fn tried(&mut self, map: Arc<ShardMap>) -> Result<(), String> {
        match self.maps.insert(map.generation(), map.clone()) {
            Some(other) if other != map => Err(format!("M3: two maps at {:?}", map.generation())),
            _ => Ok(()),
        }
    }

    /// The head was written, or deleted.
    pub fn head(&mut self, head: Option<&Head>) -> Result<(), String> {
        let last = self.history.last().copied().flatten();
        let at = head.map(|head| head.at);
        if last == at {
            return Ok(());
        }
        if let Some(at) = at {
            let map = self.maps.get(&at).ok_or_else(|| format!("{at:?} was never tried"))?;
            let parent = map.parent().filter(|parent| parent.sequence > 0);
            if parent != last || at.sequence != last.map_or(1, |last| last.sequence + 1) {
                return Err(format!("M3: {at:?} has the parent {parent:?} but follows on {last:?}"));
            }
            if self.history.contains(&Some(at)) {
                return Err(format!("M3: {at:?} was the head's before"));
            }
        }
        self.history.push(at);
        Ok(())
    }

    /// How many maps were the head's so far, and how often there was none again.
    pub fn length(&self) -> usize {
        self.history.len()
    }

    /// How many maps were the head's, and how many of them were the first of a keyspace.
    pub fn commits(&self) -> (usize, usize) {
        let maps = || self.history.iter().flatten();
        (maps().count(), maps().filter(|at| at.sequence == 1).count())
    }

    /// A server answers with `map`, to a question that came when the history was `length` long. So an answer after a
    /// deletion is never from before it.
    pub fn answered(&self, map: &ShardMap, length: usize) -> Result<(), String> {
        let at = map.generation();
        let place = self.history.iter().position(|other| *other == Some(at));
        let place = place.ok_or_else(|| format!("T8: an answer from {at:?}, which was never the head's"))?;
        if place + 1 < length {
            return Err(format!("M2: an answer from {at:?} when the head was beyond"));
        }
        if self.maps.get(&at).is_none_or(|true_map| **true_map != *map) {
            return Err(format!("M3: an answer with another map at {at:?}"));
        }
        Ok(())
    }

    /// A requester is told how its change ended.
    pub fn told(&mut self, to: Generation, outcome: &Result<Generation, Failed>) {
        match outcome {
            Ok(_) => drop(self.told.insert(to, true)),
            Err(Failed::Conflict | Failed::TooFew { .. }) => drop(self.told.insert(to, false)),
            Err(Failed::Unknown) => {}
        }
    }

    /// What was told is so, for ever.
    pub fn told_the_truth(&self) -> Result<(), String> {
        let history: BTreeSet<_> = self.history.iter().flatten().collect();
        match self.told.iter().find(|(to, is_in)| history.contains(to) != **is_in) {
            Some((to, true)) => Err(format!("C3: {to:?} was told to be committed and is not")),
            Some((to, false)) => Err(format!("C3: {to:?} was told to have failed and is committed")),
            None => Ok(()),
        }
    }
}
