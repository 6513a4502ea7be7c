//! What a reader of a feed has: for each part of the table the position up to which it has read.

use crate::table::replication::LogPosition;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{Bounds, Position, geometry};
use std::cmp::Ordering;

/// Up to which change a reader has read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reached {
    /// It has all changes of earlier entries.
    pub entry: LogPosition,
    /// It has the changes of this entry up to this key; none: all.
    pub key: Option<Key>,
}

impl Reached {
    /// All changes of an entry, and of those before it.
    pub fn all_of(entry: LogPosition) -> Reached {
        Reached { entry, key: None }
    }

    /// Whether it has the change at that place.
    pub fn has(&self, entry: LogPosition, key: &Key) -> bool {
        if planted::is(Planted::FeedByIndex) && entry.index < self.entry.index {
            return true;
        }
        match entry.cmp(&self.entry) {
            Ordering::Less => true,
            Ordering::Equal => self.key.as_ref().is_none_or(|last| key <= last),
            Ordering::Greater => false,
        }
    }

    /// Whether a change that it lacks may be among those that were removed, up to that entry.
    pub fn lacks(&self, removed: LogPosition) -> bool {
        removed > self.entry
            || (removed == self.entry && self.key.is_some() && removed != LogPosition::default())
    }
}

impl Ord for Reached {
    fn cmp(&self, other: &Reached) -> Ordering {
        self.entry.cmp(&other.entry).then_with(|| match (&self.key, &other.key) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(these), Some(those)) => these.cmp(those),
        })
    }
}

impl PartialOrd for Reached {
    fn partial_cmp(&self, other: &Reached) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The place from which on a reader wants the changes of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    /// The changes from the oldest one on that is kept.
    Oldest,
    /// Changes that are not there yet.
    Now,
    /// Changes behind what it has read.
    After(Reached),
}

/// A part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which keys are in it.
    pub bounds: Bounds,
    /// Which of their changes are wanted.
    pub since: Since,
}

/// What a reader has of a table, or of a part of it. Parts have no key in common, and stand in the order of their bounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress(Vec<Part>);

impl Progress {
    /// The progress over these parts, which have no key in common.
    pub fn new(mut parts: Vec<Part>) -> Progress {
        parts.sort_by(|a, b| geometry::lowest(&a.bounds).cmp(&geometry::lowest(&b.bounds)));
        let mut merged: Vec<Part> = Vec::with_capacity(parts.len());
        for part in parts {
            let last = merged.last().filter(|last| last.since == part.since);
            let whole = last.and_then(|last| geometry::joined(&[&last.bounds, &part.bounds]));
            if whole.is_some() {
                merged.pop();
            }
            merged.push(Part { bounds: whole.unwrap_or(part.bounds), since: part.since });
        }
        Progress(merged)
    }

    /// The progress that begins so everywhere in these bounds.
    pub fn begin(bounds: impl IntoIterator<Item = Bounds>, since: &Since) -> Progress {
        Progress::new(bounds.into_iter().map(|bounds| Part { bounds, since: since.clone() }).collect())
    }

    /// The parts, in the order of their bounds.
    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    /// The parts, one by one.
    pub fn into_parts(self) -> Vec<Part> {
        self.0
    }

    /// Whether it is of no part.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What it has within these bounds.
    #[must_use]
    pub fn within(&self, bounds: &Bounds) -> Progress {
        let cut = |part: &Part| {
            let bounds = geometry::intersection(&part.bounds, bounds)?;
            Some(Part { bounds, since: part.since.clone() })
        };
        Progress::new(self.0.iter().filter_map(cut).collect())
    }

    /// The part that a key at that position is in.
    pub(super) fn part_of(&self, position: Position<'_>) -> Option<usize> {
        self.0.iter().position(|part| part.bounds.contains(position))
    }

    /// What it has when it has read on in the parts of another one, which is of a part of it.
    #[must_use]
    pub fn read_on(self, to: Progress) -> Progress {
        let mut parts = Vec::with_capacity(self.0.len() + to.0.len());
        for Part { bounds, since } in self.0 {
            let read = to.0.iter().map(|read| &read.bounds).filter(|read| geometry::overlap(read, &bounds));
            let left = read.fold(vec![bounds.clone()], |left, read| {
                left.iter().flat_map(|bounds| geometry::without(bounds, read)).collect()
            });
            parts.extend(left.into_iter().map(|bounds| Part { bounds, since: since.clone() }));
        }
        parts.extend(to.0);
        Progress::new(parts)
    }
}
