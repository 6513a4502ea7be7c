//! Which serving shard holds a key: the bounds of a map, made ready for lookups.
//!
//! Built when bounds change (a split, a merge, a new partition), which is rare; a replica that moves leaves
//! it as it is. It gives positions; [`super::routes`] has the shard at each. It refuses a whole map whose
//! serving shards leave a gap or overlap (M1): an older map is better than a wrong owner.

use crate::base::id::ShardId;
use crate::keyspace::lookup::{HashIndex, RangeIndex, SlotTable};
use crate::keyspace::map::{Shard, ShardMap};
use crate::keyspace::sharding::geometry::lowest;
use crate::keyspace::sharding::slot::common_multiple;
use crate::keyspace::sharding::{Bounds, Position, Sharding};

/// No shard at that slot.
const NOBODY: u32 = u32::MAX;

/// A map that cannot be indexed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A gap or an overlap between serving shards, or bounds of another sharding.
    #[error("shard {shard} does not begin where the one before it ends, or is of another sharding (M1)")]
    Misfit {
        /// The first that is wrong.
        shard: ShardId,
    },
    /// The last shard ends before the keyspace does.
    #[error("no serving shard holds the end of the keyspace (M1)")]
    Open,
    /// More than an index takes.
    #[error("the bounds cannot be indexed: {0}")]
    Index(String),
}

/// The index of one keyspace.
#[derive(Debug, Clone)]
pub(super) enum Layout {
    /// A keyspace without serving shards: as it is before its first plan.
    Empty,
    Keys(RangeIndex),
    Hashes(HashIndex),
    Slots(SlotTable),
    /// The names of the partitions in byte order, each at the place of its shard.
    Names(Vec<Box<[u8]>>),
}

/// The serving shards in the order of their positions.
pub(super) fn in_order(map: &ShardMap) -> Vec<&Shard> {
    let mut serving: Vec<&Shard> = map.shards().filter(|shard| shard.is_serving()).collect();
    serving.sort_by(|a, b| lowest(&a.bounds).cmp(&lowest(&b.bounds)));
    serving
}

impl Layout {
    /// Of shards that are [`in_order`].
    pub(super) fn build(sharding: Sharding, shards: &[&Shard]) -> Result<Layout, LayoutError> {
        if shards.is_empty() {
            return Ok(Layout::Empty);
        }
        if let Some(misfit) = shards.iter().find(|shard| !sharding.fits(&shard.bounds)) {
            return Err(LayoutError::Misfit { shard: misfit.id });
        }
        match sharding {
            Sharding::KeyRange => keys(shards),
            Sharding::HashRange { .. } => hashes(shards),
            Sharding::Fixed { .. } => slots(shards),
            Sharding::Named => names(shards),
        }
    }

    /// Where the shard that holds `position` stands in the order.
    #[inline]
    pub(super) fn find(&self, position: Position<'_>) -> Option<usize> {
        match (self, position) {
            (Layout::Keys(index), Position::Key(key)) => Some(index.find(key)),
            (Layout::Hashes(index), Position::Point(point)) => Some(index.find(point)),
            (Layout::Slots(table), Position::Value(value)) => Some(table.find_value(value) as usize),
            (Layout::Names(names), Position::Name(name)) => {
                names.binary_search_by(|known| known.as_ref().cmp(name)).ok()
            }
            _ => None,
        }
    }
}

fn keys(shards: &[&Shard]) -> Result<Layout, LayoutError> {
    let mut begins: Vec<&[u8]> = Vec::with_capacity(shards.len());
    let mut end: Option<&[u8]> = Some(b"");
    for shard in shards {
        let Bounds::Keys(range) = &shard.bounds else { continue };
        if end != Some(range.begin.as_bytes()) {
            return Err(LayoutError::Misfit { shard: shard.id });
        }
        begins.push(range.begin.as_bytes());
        end = Some(range.end.as_bytes()).filter(|end| !end.is_empty());
    }
    if end.is_some() {
        return Err(LayoutError::Open);
    }
    RangeIndex::build(begins).map(Layout::Keys).map_err(|error| LayoutError::Index(error.to_string()))
}

fn hashes(shards: &[&Shard]) -> Result<Layout, LayoutError> {
    let mut begins = Vec::with_capacity(shards.len());
    let mut next = Some(0u64);
    for shard in shards {
        let Bounds::Hashes(range) = &shard.bounds else { continue };
        if next != Some(range.first) {
            return Err(LayoutError::Misfit { shard: shard.id });
        }
        begins.push(range.first);
        next = range.last.checked_add(1);
    }
    if next.is_some() {
        return Err(LayoutError::Open);
    }
    HashIndex::build(&begins).map(Layout::Hashes).map_err(|error| LayoutError::Index(error.to_string()))
}

/// While the number of shards changes, slots of different counts serve together: the table has as many entries as
/// the counts' least common multiple.
fn slots(shards: &[&Shard]) -> Result<Layout, LayoutError> {
    let slot_of = |shard: &&&Shard| match &shard.bounds {
        Bounds::Slot(slot) => Some(*slot),
        Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => None,
    };
    let divisors = shards.iter().filter_map(|shard| Some(slot_of(&shard)?.of()));
    let ring = common_multiple(divisors)
        .ok_or_else(|| LayoutError::Index("the slots are of too many different numbers".to_owned()))?;
    let mut owners = vec![NOBODY; ring as usize];
    for (at, shard) in shards.iter().enumerate() {
        for number in slot_of(&shard).into_iter().flat_map(|slot| slot.among(ring)) {
            match owners.get_mut(number as usize) {
                Some(owner) if *owner == NOBODY => *owner = at as u32,
                _ => return Err(LayoutError::Misfit { shard: shard.id }),
            }
        }
    }
    if owners.contains(&NOBODY) {
        return Err(LayoutError::Open);
    }
    SlotTable::build(owners).map(Layout::Slots).map_err(|error| LayoutError::Index(error.to_string()))
}

fn names(shards: &[&Shard]) -> Result<Layout, LayoutError> {
    if let Some(twice) = shards.windows(2).find(|pair| pair[0].bounds == pair[1].bounds) {
        return Err(LayoutError::Misfit { shard: twice[1].id });
    }
    let name = |shard: &&Shard| match &shard.bounds {
        Bounds::Name(name) => name.as_str().as_bytes().into(),
        _ => Box::default(),
    };
    Ok(Layout::Names(shards.iter().map(name).collect()))
}
