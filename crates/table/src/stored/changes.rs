//! Values of the change feed in a store.
//!
//! ```text
//! change     version u8 · kind u8 (1 put, 2 deleted, 3 expired) · at u64
//!            [· of a put: flags u8 (1 = it ends) [· ends u64] · value]
//! removed    version u8 · through · general · parts u16 · ( bounds · last ) for each
//!            where each position is epoch u64 · index u64
//! ```

use super::cursor::Cursor;
use super::{Malformed, bounds};
use bytes::BufMut;
use partage_core::limits::REMOVED_PARTS;
use partage_service::table::feed::{Change, ChangeKind, Removed};
use partage_service::table::replication::LogPosition;

const VERSION: u8 = 1;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const EXPIRED: u8 = 3;
const ENDS: u8 = 1;

/// The value of a change in the store.
pub(crate) fn encode_change(change: &Change) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(19 + change.bytes());
    bytes.put_u8(VERSION);
    bytes.put_u8(match change.kind {
        ChangeKind::Put => PUT,
        ChangeKind::Delete => DELETE,
        ChangeKind::Expired => EXPIRED,
    });
    bytes.put_u64(change.at_ms);
    if change.kind == ChangeKind::Put {
        bytes.put_u8(if change.expires_ms.is_some() { ENDS } else { 0 });
        change.expires_ms.iter().for_each(|ends| bytes.put_u64(*ends));
        bytes.put_slice(change.value.as_deref().unwrap_or_default());
    }
    bytes
}

/// # Errors
/// What is wrong with the bytes.
pub(crate) fn decode_change(bytes: &[u8]) -> Result<Change, Malformed> {
    let mut cursor = Cursor::begin("a stored change", bytes, VERSION)?;
    let kind = match cursor.u8("the kind")? {
        PUT => ChangeKind::Put,
        DELETE => ChangeKind::Delete,
        EXPIRED => ChangeKind::Expired,
        unknown => return Err(cursor.wrong("the kind", 1, format!("is the unknown one {unknown}"))),
    };
    let at_ms = cursor.u64("the time")?;
    if kind != ChangeKind::Put {
        return cursor.end().map(|()| Change { kind, at_ms, value: None, expires_ms: None });
    }
    let flags = cursor.flags(ENDS, "the flags")?;
    let expires_ms = if flags & ENDS != 0 { Some(cursor.u64("the time when the row ends")?) } else { None };
    Ok(Change { kind, at_ms, value: Some(cursor.rest().into()), expires_ms })
}

fn put_position(bytes: &mut Vec<u8>, position: LogPosition) {
    bytes.put_u64(position.epoch.0);
    bytes.put_u64(position.index);
}

/// The value of the record that says up to where changes are removed.
pub(crate) fn encode_removed(removed: &Removed) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    put_position(&mut bytes, removed.through);
    put_position(&mut bytes, removed.general);
    bytes.put_u16(u16::try_from(removed.parts.len()).expect("limits::REMOVED_PARTS bounds them"));
    for (part, last) in &removed.parts {
        bounds::put(&mut bytes, part);
        put_position(&mut bytes, *last);
    }
    bytes
}

/// # Errors
/// What is wrong with the bytes.
pub(crate) fn decode_removed(bytes: &[u8]) -> Result<Removed, Malformed> {
    let mut cursor = Cursor::begin("up to where changes are removed", bytes, VERSION)?;
    let through = cursor.position("the last change that was removed")?;
    let general = cursor.position("the last change of other keys")?;
    let count = usize::from(cursor.u16("the count of parts")?);
    if count > REMOVED_PARTS {
        let why = format!("is {count}, the limit is {REMOVED_PARTS}");
        return Err(cursor.wrong("the count of parts", 2, why));
    }
    let part = |cursor: &mut Cursor<'_>| {
        Ok::<_, Malformed>((bounds::read(cursor)?, cursor.position("the last change of a part")?))
    };
    let parts = (0..count).map(|_| part(&mut cursor)).collect::<Result<_, _>>()?;
    cursor.end().map(|()| Removed { through, general, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::keys;
    use partage_core::base::id::Epoch;
    use partage_core::keyspace::key::{HashRange, Key, KeyRange};
    use partage_core::keyspace::sharding::{Bounds, Slot};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn position() -> impl Strategy<Value = LogPosition> {
        (any::<u64>(), any::<u64>()).prop_map(|(epoch, index)| LogPosition { epoch: Epoch(epoch), index })
    }

    fn key() -> impl Strategy<Value = Key> {
        vec(any::<u8>(), 0..5).prop_map(|bytes| Key::new(&bytes).unwrap())
    }

    fn bounds() -> impl Strategy<Value = Bounds> {
        let keys = (key(), key()).prop_filter_map("a range", |(a, b)| {
            KeyRange::new(a.clone().min(b.clone()), a.max(b)).ok().map(Bounds::Keys)
        });
        let hashes = (any::<u64>(), any::<u64>())
            .prop_map(|(a, b)| Bounds::Hashes(HashRange { first: a.min(b), last: a.max(b) }));
        let slots = (0u32..9, 9u32..20).prop_map(|(number, of)| Bounds::Slot(Slot::new(number, of).unwrap()));
        prop_oneof![keys, hashes, slots]
    }

    fn change() -> impl Strategy<Value = Change> {
        let put = (any::<u64>(), vec(any::<u8>(), 0..9), option::of(any::<u64>())).prop_map(
            |(at_ms, value, expires_ms)| Change {
                kind: ChangeKind::Put,
                at_ms,
                value: Some(value.into()),
                expires_ms,
            },
        );
        let gone = (any::<u64>(), any::<bool>()).prop_map(|(at_ms, expired)| Change {
            kind: if expired { ChangeKind::Expired } else { ChangeKind::Delete },
            at_ms,
            value: None,
            expires_ms: None,
        });
        prop_oneof![put, gone]
    }

    proptest! {
        #[test]
        fn what_is_stored_of_a_feed_comes_back(
            change in change(), through in position(), general in position(),
            parts in vec((bounds(), position()), 0..5),
        ) {
            let bytes = encode_change(&change);
            prop_assert_eq!(decode_change(&bytes), Ok(change));
            let removed = Removed { through, general, parts };
            let bytes = encode_removed(&removed);
            prop_assert_eq!(decode_removed(&bytes), Ok(removed));
            for end in 0..bytes.len() {
                prop_assert!(decode_removed(&bytes[..end]).is_err(), "{} of {} bytes", end, bytes.len());
            }
        }

        #[test]
        fn keys_of_changes_stand_in_the_order_of_their_places(a in (position(), key()), b in (position(), key())) {
            let stored = |(entry, key): &(LogPosition, Key)| keys::change(*entry, key.as_bytes());
            prop_assert_eq!(a.cmp(&b), stored(&a).cmp(&stored(&b)));
            let bytes = stored(&a);
            prop_assert_eq!(keys::row_of(&bytes), Some(a.1.as_bytes()));
            prop_assert_eq!(keys::parse_change(&bytes), Some(a));
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..60), is_of_version: bool) {
            if is_of_version && let Some(version) = bytes.first_mut() {
                *version = VERSION;
            }
            if let Ok(change) = decode_change(&bytes) {
                prop_assert_eq!(encode_change(&change), bytes.clone());
            }
            if let Ok(removed) = decode_removed(&bytes) {
                prop_assert_eq!(encode_removed(&removed), bytes);
            }
        }
    }

    #[test]
    fn forms_stay_as_they_are() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let put =
            Change { kind: ChangeKind::Put, at_ms: 5, value: Some(b"v"[..].into()), expires_ms: Some(7) };
        assert_eq!(hex(encode_change(&put)), "01010000000000000005010000000000000007".to_owned() + "76");
        let at = |index| LogPosition { epoch: Epoch(2), index };
        let parts = vec![(Bounds::Hashes(HashRange { first: 0, last: 9 }), at(3))];
        let removed = Removed { through: at(4), general: at(1), parts };
        let positions = ["00000000000000020000000000000004", "00000000000000020000000000000001"].concat();
        let part = "02000000000000000000000000000000090000000000000002".to_owned() + "0000000000000003";
        assert_eq!(hex(encode_removed(&removed)), format!("01{positions}0001{part}"));
        assert_eq!(hex(keys::change(at(3), b"k")), "08000000000000000200000000000000036b");
    }
}
