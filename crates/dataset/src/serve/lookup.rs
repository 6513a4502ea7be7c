//! A key in what is here of a version.

use crate::catalogue::{Place, Version};
use partage_engine::readonly::{ReadError, Value};

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
    let mut elsewhere = None;
    for partition in version.partitioner().places(key, places.len() as u32) {
        match here(places, partition, key) {
            Some(Ok(Some(value))) => return Looked::Value(value),
            Some(Ok(None)) => {}
            Some(Err(error)) => {
                tracing::error!(
                    "{error}; peers are asked for partition {partition} of version {}",
                    version.name()
                );
                elsewhere = elsewhere.or(Some(partition));
            }
            None => elsewhere = elsewhere.or(Some(partition)),
        }
    }
    elsewhere.map_or(Looked::Absent, Looked::Elsewhere)
}

fn here<'a>(places: &'a [Place], partition: u32, key: &[u8]) -> Option<Result<Option<Value<'a>>, ReadError>> {
    Some(places.get(partition as usize)?.here.as_ref()?.get(key))
}
