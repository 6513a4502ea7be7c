//! A key in what is here of a version.

use crate::catalogue::{Place, Version};
use partage_engine::limits::TOGETHER;
use partage_engine::readonly::{Reader, Search, Value};

/// What is known here of a key.
#[derive(Debug)]
pub enum LookupResult<'a> {
    /// The key is here, with this value.
    Value(Value<'a>),
    /// It is not in this version.
    Absent,
    /// It is in this partition, if anywhere, which is not here or is damaged here.
    Elsewhere(u32),
}

/// Looks in the partition of a key, and, for a few keys of some versions, in the one where Cascading puts it.
pub fn lookup<'a>(version: &Version, places: &'a [Place], key: &[u8]) -> LookupResult<'a> {
    PendingLookup::begin(version, places, key).end(version, places)
}

/// [`lookup`] for each of many keys, in their order; waits for memory overlap.
pub fn lookup_all<'a>(
    version: &Version,
    places: &'a [Place],
    keys: &[&[u8]],
    mut take: impl FnMut(LookupResult<'a>),
) {
    let mut lookups = Vec::with_capacity(TOGETHER.min(keys.len()));
    for keys in keys.chunks(TOGETHER) {
        lookups.clear();
        lookups.extend(keys.iter().map(|key| PendingLookup::begin(version, places, key)));
        prefetch(&mut lookups);
        lookups.iter().for_each(|lookup| take(lookup.end(version, places)));
    }
}

/// Has the memory fetched in which up to [`TOGETHER`] lookups that have begun will end: see [`Search`].
pub fn prefetch(lookups: &mut [PendingLookup<'_, '_>]) {
    lookups.iter().filter_map(|lookup| lookup.search.as_ref()).for_each(Search::prefetch_directory);
    lookups.iter_mut().filter_map(|lookup| lookup.search.as_mut()).for_each(Search::prefetch_entry);
}

/// A lookup that has begun.
#[derive(Debug)]
pub struct PendingLookup<'a, 'k> {
    key: &'k [u8],
    partition: u32,
    /// If the partition is here.
    search: Option<Search<'a, 'k>>,
}

impl<'a, 'k> PendingLookup<'a, 'k> {
    /// Begins to look for a key.
    pub fn begin(version: &Version, places: &'a [Place], key: &'k [u8]) -> PendingLookup<'a, 'k> {
        let partition = version.partitioner().partition(key, places.len() as u32);
        PendingLookup {
            key,
            partition,
            search: here(places, partition).map(|reader| Search::new(reader, key)),
        }
    }

    /// How many columns the key must have, if it has not, and so is in no partition.
    pub fn lacks(&self, version: &Version) -> Option<u8> {
        version.partitioner().lacks(self.key)
    }

    /// In which partition the key is, if that is not here, and so nothing is to be looked at here.
    pub fn elsewhere(&self, version: &Version, places: &'a [Place]) -> Option<u32> {
        match self.search {
            Some(_) => None,
            None => match self.end(version, places) {
                LookupResult::Elsewhere(partition) => Some(partition),
                LookupResult::Value(_) | LookupResult::Absent => None,
            },
        }
    }

    /// What is known of the key.
    pub fn end(&self, version: &Version, places: &'a [Place]) -> LookupResult<'a> {
        let first = found(version, self.partition, self.search.as_ref());
        if matches!(first, LookupResult::Value(_)) {
            return first;
        }
        let other = version.partitioner().alternative(self.key, places.len() as u32);
        let other = other.map(|other| {
            let search = here(places, other).map(|reader| Search::new(reader, self.key));
            found(version, other, search.as_ref())
        });
        match other {
            Some(LookupResult::Value(value)) => LookupResult::Value(value),
            Some(LookupResult::Elsewhere(other)) if matches!(first, LookupResult::Absent) => {
                LookupResult::Elsewhere(other)
            }
            _ => first,
        }
    }
}

fn found<'a>(version: &Version, partition: u32, search: Option<&Search<'a, '_>>) -> LookupResult<'a> {
    let Some(search) = search else { return LookupResult::Elsewhere(partition) };
    match search.end() {
        Ok(Some(value)) => LookupResult::Value(value),
        Ok(None) => LookupResult::Absent,
        Err(error) => {
            version.report_damage(partition, &error.to_string());
            LookupResult::Elsewhere(partition)
        }
    }
}

fn here(places: &[Place], partition: u32) -> Option<&Reader> {
    places.get(partition as usize)?.here.as_deref()
}
