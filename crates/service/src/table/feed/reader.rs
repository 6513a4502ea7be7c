//! Which changes of one shard a reader lacks, and how far it is when it has read some.
//!
//! The driver reads changes in the order of their places from [`Reader::from`] on, asks of each whether it is wanted, and says at
//! the end up to which one it has looked.

use super::{FeedSettings, Part, Place, Progress, Reached, Removed, Since};
use crate::table::replication::LogPosition;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{Bounds, geometry};

/// Changes that a reader lacks are removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("changes after {} of keys in {bounds} are no longer kept", reached.entry)]
pub struct Gone {
    /// The keys of which the reader lacks a change.
    pub bounds: Bounds,
    /// Up to where the reader has their changes.
    pub reached: Reached,
}

/// The same, where what is to be read from the oldest change on begins behind what is removed: for the keys of each shard that
/// was merged into this one by itself, as their logs had other indexes.
fn from_oldest(progress: Progress, removed: &Removed) -> Progress {
    let mut parts = Vec::new();
    for part in progress.into_parts() {
        if part.since != Since::Oldest {
            parts.push(part);
            continue;
        }
        let mut rest = vec![part.bounds];
        let mut cut = Vec::new();
        for (known, _) in &removed.parts {
            let common: Vec<_> = rest.iter().filter_map(|one| geometry::intersection(one, known)).collect();
            rest = common.iter().fold(rest, |rest, common| {
                rest.iter().flat_map(|one| geometry::without(one, common)).collect()
            });
            cut.extend(common);
        }
        parts.extend(cut.into_iter().chain(rest).map(|bounds| {
            let since = Since::After(Reached::all_of(removed.within(&bounds)));
            Part { bounds, since }
        }));
    }
    Progress::new(parts)
}

/// One reading of one shard.
#[derive(Debug, Clone)]
pub struct Reader {
    settings: FeedSettings,
    progress: Progress,
    reached: Vec<Reached>,
}

impl Reader {
    /// Begins for a reader that is so far within the shard. `newest` is the last change of the shard that is kept, which counts
    /// where the reader wants those to come.
    ///
    /// # Errors
    /// A change that it lacks is removed.
    pub fn begin(
        settings: FeedSettings,
        progress: Progress,
        removed: &Removed,
        newest: Option<LogPosition>,
    ) -> Result<Reader, Gone> {
        let progress = from_oldest(progress, removed);
        let reached = |part: &Part| {
            let last = removed.within(&part.bounds);
            match &part.since {
                Since::Oldest => Ok(Reached::all_of(last)),
                Since::Now => Ok(Reached::all_of(newest.unwrap_or_default().max(last))),
                Since::After(reached) if reached.lacks(last) => {
                    Err(Gone { bounds: part.bounds.clone(), reached: reached.clone() })
                }
                Since::After(reached) => Ok(reached.clone()),
            }
        };
        let reached = progress.parts().iter().map(reached).collect::<Result<_, _>>()?;
        Ok(Reader { settings, progress, reached })
    }

    /// All changes up to this are read already; none: there is nothing to read.
    pub fn from(&self) -> Option<&Reached> {
        self.reached.iter().min()
    }

    /// Whether a change is to be given to the reader.
    pub fn wants(&self, entry: LogPosition, key: &Key) -> bool {
        let part = self.progress.part_of(self.settings.position(key));
        part.is_some_and(|part| !self.reached[part].has(entry, key))
    }

    /// How far the reader is. `last` is the last change that was looked at, `next` the one behind it that was not: none, if there
    /// is none. `applied` is the last entry that the replica had applied which was read: one that lags does not have what is
    /// behind that.
    pub fn end(self, last: Option<Place>, next: Option<&Place>, applied: LogPosition) -> Progress {
        let looked = last.map(|(entry, key)| match next {
            Some((after, _)) if *after == entry => Reached { entry, key: Some(key) },
            _ => Reached::all_of(entry),
        });
        let parts = self.progress.parts().iter().zip(self.reached);
        let parts = parts.map(|(part, reached)| {
            let mut reached = looked.clone().map_or(reached.clone(), |looked| looked.max(reached));
            if next.is_none() && reached.entry <= applied {
                // The rest of the entry is in another shard.
                reached.key = None;
            }
            Part { bounds: part.bounds.clone(), since: Since::After(reached) }
        });
        Progress::new(parts.collect())
    }
}
