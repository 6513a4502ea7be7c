//! A key in what is here of a version.

use crate::catalogue::{Place, Version};
use partage_engine::readonly::{Reader, Value, foresee};
use std::sync::Arc;

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
    let count = places.len() as u32;
    let partition = version.partitioner().partition(key, count);
    let first = look_in(version, places, partition, key);
    if matches!(first, Looked::Value(_)) {
        return first;
    }
    match version.partitioner().alternative(key, count).map(|other| look_in(version, places, other, key)) {
        Some(Looked::Value(value)) => Looked::Value(value),
        Some(Looked::Elsewhere(other)) if matches!(first, Looked::Absent) => Looked::Elsewhere(other),
        _ => first,
    }
}

fn look_in<'a>(version: &Version, places: &'a [Place], partition: u32, key: &[u8]) -> Looked<'a> {
    let Some(reader) = here(places, partition) else { return Looked::Elsewhere(partition) };
    match reader.get(key) {
        Ok(Some(value)) => Looked::Value(value),
        Ok(None) => Looked::Absent,
        Err(error) => {
            version.report_damage(partition, &error.to_string());
            Looked::Elsewhere(partition)
        }
    }
}

fn here(places: &[Place], partition: u32) -> Option<&Arc<Reader>> {
    places.get(partition as usize)?.here.as_ref()
}

/// Has the memory fetched in which [`look`] will look for these keys: see [`foresee`].
pub fn look_ahead<'a>(version: &Version, places: &'a [Place], keys: impl Iterator<Item = &'a [u8]>) {
    let count = places.len() as u32;
    let partitioner = version.partitioner();
    foresee(keys.filter_map(|key| Some((&**here(places, partitioner.partition(key, count))?, key))));
}
