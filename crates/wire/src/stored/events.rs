//! Events as they are stored: a ring of keys, each with some events, a JSON line each, in the usual envelope.
//!
//! They are no records: nothing is decided by them, so no manifest lists them, and a damaged one is left out.

use super::{StoredError, envelope};
use crate::json::Event;
use bytes::Bytes;

/// The key below which they are.
pub const EVENTS: &str = "events";

/// Where the events of that place in the ring are.
#[must_use]
pub fn events_key(slot: u16) -> String {
    format!("{EVENTS}/{slot}")
}

/// The place in the ring of a key.
#[must_use]
pub fn events_slot(key: &str) -> Option<u16> {
    let slot = key.strip_prefix(EVENTS)?.strip_prefix('/')?.parse().ok()?;
    (events_key(slot) == key).then_some(slot)
}

/// One event as it is stored, with the end of its line.
#[must_use]
pub fn event_line(event: &Event) -> Vec<u8> {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The value to put at `key` for lines of [`event_line`].
#[must_use]
pub fn seal_events(key: &str, lines: &[u8]) -> Bytes {
    envelope::seal(key, 0, 1, lines)
}

/// The events that are stored at `key`.
///
/// # Errors
/// When the value is damaged, or of another key.
pub fn open_events(key: &str, value: &[u8]) -> Result<Vec<Event>, StoredError> {
    let (_, _, lines) = envelope::open(key, value).map_err(|why| StoredError::new(key, why))?;
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let event = |line| {
        serde_json::from_slice(line).map_err(|why| StoredError::new(key, format!("is no event: {why}")))
    };
    lines.map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_and_damage_is_found() {
        let line = r#"{"term":1,"number":2,"at_ms":3,"kind":"notice","actor":"coordinator","text":"t"}"#;
        let event: Event = serde_json::from_str(line).unwrap();
        let key = events_key(7);
        let lines = [event_line(&event), event_line(&event)].concat();
        assert_eq!(lines, format!("{line}\n{line}\n").into_bytes(), "the stored form stays");
        let value = seal_events(&key, &lines);
        assert_eq!(open_events(&key, &value).unwrap(), [event.clone(), event]);
        assert!(open_events(&events_key(8), &value).is_err(), "it belongs to another key");
        for index in 0..value.len() {
            let mut damaged = value.to_vec();
            damaged[index] ^= 1;
            assert!(open_events(&key, &damaged).is_err(), "byte {index}");
        }
        assert_eq!(events_slot("events/7"), Some(7));
        for other in ["events", "events/", "events/07", "events/7/1", "events/x", "nodes/7", "events7"] {
            assert_eq!(events_slot(other), None, "{other}");
        }
    }
}
