//! How many rows one request may have, the same through all doors.

use super::PutItem;
use crate::limits;
use crate::table_error::TableError;
use partage_core::limits::{TTL_MS, VALUE_BYTES};
use partage_service::table::rows::Invalid;
use std::collections::BTreeSet;

/// Whether there are as many `what` (keys, rows) as there may be in one request.
///
/// # Errors
/// There is none, or there are too many.
pub(crate) fn check_count(count: usize, what: &str) -> Result<(), TableError> {
    let most = limits::BULK_KEYS;
    match count {
        0 => Err(TableError::Malformed(format!("there are no {what}: give one or more"))),
        1..=limits::BULK_KEYS => Ok(()),
        _ => Err(TableError::too_many(format!("there are {count} {what}, and {most} may be in one request"))),
    }
}

/// Whether rows may be put by one request: each has another key, as two writes of one key would come in no order.
///
/// # Errors
/// Two rows have one key, or there are too many bytes.
pub(crate) fn check_rows(items: &[PutItem]) -> Result<(), TableError> {
    let (mut keys, mut bytes) = (BTreeSet::new(), 0);
    for (at, item) in items.iter().enumerate() {
        let length = item.value.len();
        if length > VALUE_BYTES {
            let (key, bytes) = (item.key.clone(), length);
            return Err(TableError::too_many(Invalid::ValueTooLong { key, bytes }.to_string()));
        }
        if let Some(ttl_ms) = item.ttl_ms.filter(|ttl_ms| *ttl_ms > TTL_MS) {
            let key = item.key.clone();
            return Err(TableError::Invalid(Invalid::TtlTooLong { key, ttl_ms }.to_string()));
        }
        bytes += item.key.as_bytes().len() + length;
        if !keys.insert(&item.key) {
            let key = &item.key;
            let what = format!("row {at}: another row of the request has the key '{key}' too: send one");
            return Err(TableError::Malformed(what));
        }
    }
    let most = limits::BULK_BYTES;
    if bytes > most {
        let what =
            format!("the rows have {bytes} bytes of keys and values, and {most} may be in one request");
        return Err(TableError::too_many(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::keyspace::key::Key;
    use partage_service::table::rows::Condition;

    #[test]
    fn the_number_of_rows_has_bounds() {
        assert!(check_count(1, "rows").is_ok() && check_count(limits::BULK_KEYS, "rows").is_ok());
        let many = check_count(limits::BULK_KEYS + 1, "rows").unwrap_err();
        assert!(many.word() == "too_large" && many.to_string().contains("1001 rows"), "{many}");
        assert_eq!(check_count(0, "keys").unwrap_err().word(), "malformed");
    }

    #[test]
    fn a_time_to_live_has_a_bound() {
        let item = |ttl_ms| PutItem {
            key: Key::new(b"a").unwrap(),
            value: b"1".as_slice().into(),
            ttl_ms: Some(ttl_ms),
            condition: Condition::Always,
        };
        assert_eq!(check_rows(&[item(TTL_MS)]), Ok(()));
        assert_eq!(check_rows(&[item(TTL_MS + 1)]).unwrap_err().word(), "invalid");
    }
}
