//! Up to where the changes of a shard are removed.
//!
//! That is a position and not the oldest change which is kept: a reader that had everything up to the last change is not late
//! when the last change is removed, and not when another one comes then.
//!
//! In a merged shard the two positions of the parents stand beside each other, each for the keys that the parent held: the
//! position of one says nothing of the other, whose log had other indexes.

use crate::table::replication::LogPosition;
use partage_core::keyspace::sharding::{Bounds, Position, geometry};
use partage_core::limits;

/// What of a shard's changes is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// The last change that was removed here: all that are kept come behind it, as the oldest go first.
    pub through: LogPosition,
    /// The last change that was removed of keys that are in no part.
    pub general: LogPosition,
    /// The same of the keys of shards that were merged into this one.
    pub parts: Vec<(Bounds, LogPosition)>,
}

impl Removed {
    /// A change of the key at that position, and of that entry, is removed: the oldest of the shard.
    pub fn remove(&mut self, position: Position<'_>, entry: LogPosition) {
        self.through = self.through.max(entry);
        let part = self.parts.iter_mut().find(|(bounds, _)| bounds.contains(position));
        let last = part.map_or(&mut self.general, |(_, last)| last);
        *last = entry.max(*last);
    }

    /// The last change that was removed of any key in these bounds, or may have been.
    pub fn within(&self, bounds: &Bounds) -> LogPosition {
        let parts = self.parts.iter().filter(|(part, _)| geometry::overlap(part, bounds));
        parts.map(|(_, last)| *last).fold(self.general, LogPosition::max)
    }

    /// What is removed of a child of these parents. Where the bounds of one are not known, its position counts for all keys.
    pub fn joined(parents: impl IntoIterator<Item = (Option<Bounds>, Removed)>) -> Removed {
        let mut child = Removed::default();
        for (bounds, removed) in parents {
            match bounds {
                Some(bounds) => {
                    let cut = |(part, last): (Bounds, LogPosition)| {
                        Some((geometry::intersection(&part, &bounds)?, last.max(removed.general)))
                    };
                    let within: Vec<_> = removed.parts.into_iter().filter_map(cut).collect();
                    let is_whole = within.is_empty();
                    child.parts.extend(within);
                    if is_whole {
                        child.parts.push((bounds, removed.general));
                    }
                }
                None => {
                    let last = removed.parts.iter().map(|(_, last)| *last);
                    child.general = last.fold(child.general.max(removed.general), LogPosition::max);
                }
            }
        }
        child.simplify();
        child
    }

    /// If there are many parts, one position counts for all keys. That may call a reader late that is not, and none in time that
    /// is late. Parts that say the same stay apart: what is removed next is of one of them.
    fn simplify(&mut self) {
        if self.parts.len() > limits::REMOVED_PARTS {
            let last = self.parts.drain(..).map(|(_, last)| last);
            self.general = last.fold(self.general, LogPosition::max);
        }
        self.parts.sort_by(|(a, _), (b, _)| geometry::lowest(a).cmp(&geometry::lowest(b)));
    }
}
