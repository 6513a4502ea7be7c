//! The coordination state for a person: every key, what it is, and what is in it (`partage check --show`).

use crate::backend::store::ROOM;
use partage_coordination::{Entry, Key, cluster_of};
use partage_wire::stored::{
    COORDINATORS, ELECTION, EVENTS, Presence, Shown, describe, events_slot, is_record, open_events,
};

/// All of them, in the order of their names. `place` names the root in errors.
pub fn show<'a>(place: &str, entries: impl IntoIterator<Item = (&'a Key, &'a Entry)>) -> Vec<Shown> {
    let shown = entries.into_iter().map(|(key, entry)| {
        let said = describe_entry(place, key.as_str(), &entry.value);
        Shown {
            key: key.to_string(),
            version: entry.version.get(),
            ephemeral: entry.session.is_some(),
            bytes: entry.value.len(),
            readable: said.is_ok(),
            says: said.unwrap_or_else(|why| why),
        }
    });
    shown.collect()
}

fn describe_entry(place: &str, key: &str, value: &[u8]) -> Result<String, String> {
    let presence = |value: &[u8]| {
        let Presence { id, address, since_ms, version, leads } =
            Presence::from_bytes(key, value).map_err(|error| error.to_string())?;
        let leads = leads.map(|term| format!(", leads at term {term}")).unwrap_or_default();
        Ok::<_, String>(format!(
            "coordinator {id} at {address}, partage {version}, since {since_ms} ms{leads}"
        ))
    };
    match key.split('/').collect::<Vec<_>>()[..] {
        ["about"] => {
            let cluster = cluster_of(place, value).map_err(|error| error.to_string())?;
            Ok(format!("whose root it is: cluster {cluster}"))
        }
        [ELECTION, last @ ("term" | "commit")] => match <[u8; 8]>::try_from(value).map(u64::from_be_bytes) {
            Ok(term) if last == "term" => Ok(format!("last term: {term}")),
            Ok(term) => Ok(format!("written with each commit of a leader, last by that of term {term}")),
            Err(_) => Err(format!("has {} bytes, and a term has 8", value.len())),
        },
        [ELECTION, "leader"] => match value.split_first_chunk::<8>() {
            Some((term, candidate)) => {
                Ok(format!("leader of term {}: {}", u64::from_be_bytes(*term), presence(candidate)?))
            }
            None => Err(format!("has {} bytes, and a term has 8", value.len())),
        },
        [ROOM] => Ok("a look for room of a leader whose backend was full; it goes again".to_owned()),
        [COORDINATORS, _] => presence(value),
        [EVENTS, _] if events_slot(key).is_some() => {
            let events = open_events(key, value).map_err(|error| error.to_string())?;
            let times = events.first().zip(events.last());
            let span = times.map(|(first, last)| format!(" from {} ms to {} ms", first.at_ms, last.at_ms));
            Ok(format!("{} events{}", events.len(), span.unwrap_or_default()))
        }
        _ if is_record(key) => describe(key, value).map_err(|error| error.to_string()),
        _ => Err("was not written by this program".to_owned()),
    }
}
