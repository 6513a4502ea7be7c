//! A key in what is here of a version.

use crate::catalogue::{Place, Version};
use partage_engine::limits::TOGETHER;
use partage_engine::readonly::{Reader, Search, Value};

/// What is known here of a key.
#[derive(Debug)]
pub enum Looked<'a> {
    /// Its value.
    Value(Value<'a>),
    /// It is not in this version.
    Absent,
    /// It is in this partition, if anywhere, which is not here or is damaged here.
    Elsewhere(u32),
}

/// Looks in the partition of a key, and, for a few keys of some versions, in the one where Cascading puts it.
pub fn look<'a>(version: &Version, places: &'a [Place], key: &[u8]) -> Looked<'a> {
    Look::begin(version, places, key).end(version, places)
}

/// [`look`] for each of many keys, in their order; waits for memory overlap.
pub fn look_for_all<'a>(
    version: &Version,
    places: &'a [Place],
    keys: &[&[u8]],
    mut take: impl FnMut(Looked<'a>),
) {
    let mut looks = Vec::with_capacity(TOGETHER.min(keys.len()));
    for keys in keys.chunks(TOGETHER) {
        looks.clear();
        looks.extend(keys.iter().map(|key| Look::begin(version, places, key)));
        look_ahead(&mut looks);
        looks.iter().for_each(|look| take(look.end(version, places)));
    }
}

/// Has the memory fetched in which up to [`TOGETHER`] looks that have begun will end: see [`Search`].
pub fn look_ahead(looks: &mut [Look<'_, '_>]) {
    looks.iter().filter_map(|look| look.search.as_ref()).for_each(Search::turn_to_page);
    looks.iter_mut().filter_map(|look| look.search.as_mut()).for_each(Search::turn_to_entry);
}

/// A look that has begun.
#[derive(Debug)]
pub struct Look<'a, 'k> {
    key: &'k [u8],
    partition: u32,
    /// If the partition is here.
    search: Option<Search<'a, 'k>>,
}

impl<'a, 'k> Look<'a, 'k> {
    /// Begins to look for a key.
    pub fn begin(version: &Version, places: &'a [Place], key: &'k [u8]) -> Look<'a, 'k> {
        let partition = version.partitioner().partition(key, places.len() as u32);
        Look { key, partition, search: here(places, partition).map(|reader| Search::new(reader, key)) }
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
                Looked::Elsewhere(partition) => Some(partition),
                Looked::Value(_) | Looked::Absent => None,
            },
        }
    }

    /// What is known of the key.
    pub fn end(&self, version: &Version, places: &'a [Place]) -> Looked<'a> {
        let first = found(version, self.partition, self.search.as_ref());
        if matches!(first, Looked::Value(_)) {
            return first;
        }
        let other = version.partitioner().alternative(self.key, places.len() as u32);
        let other = other.map(|other| {
            let search = here(places, other).map(|reader| Search::new(reader, self.key));
            found(version, other, search.as_ref())
        });
        match other {
            Some(Looked::Value(value)) => Looked::Value(value),
            Some(Looked::Elsewhere(other)) if matches!(first, Looked::Absent) => Looked::Elsewhere(other),
            _ => first,
        }
    }
}

fn found<'a>(version: &Version, partition: u32, search: Option<&Search<'a, '_>>) -> Looked<'a> {
    let Some(search) = search else { return Looked::Elsewhere(partition) };
    match search.end() {
        Ok(Some(value)) => Looked::Value(value),
        Ok(None) => Looked::Absent,
        Err(error) => {
            version.report_damage(partition, &error.to_string());
            Looked::Elsewhere(partition)
        }
    }
}

fn here(places: &[Place], partition: u32) -> Option<&Reader> {
    places.get(partition as usize)?.here.as_deref()
}
