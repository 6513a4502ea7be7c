//! An index of a shard, and the payload of an entry of the log that is about indexes.
//!
//! ```text
//! index    version u8 · state u8 (1 building, 2 ready, 3 dropping) · name bytes u8 · name · path bytes u16 · path
//!          · building: the key up to which it is built, dropping: the place up to which its entries are removed
//! change   version u8 (2; a write has 1) · at u64 · kind u8 · …
//!   1 create   name bytes u8 · name · path
//!   2 drop     name bytes u8 · name
//!   3 build    index u64 · key
//!   4 remove   index u64 · place
//!   5 check    number u64 · rows of a range u64
//! ```
//!
//! The number of an index follows from its name and its path, so it is not stored.

use super::Malformed;
use super::cursor::Cursor;
use bytes::BufMut;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::Key;
use partage_service::table::filter::Path;
use partage_service::table::index::{Definition, IndexChange, IndexId, IndexState};

const INDEX_VERSION: u8 = 1;
/// The version of a change of indexes: no write has it, so it tells which of both a payload is.
const CHANGE_VERSION: u8 = 2;

const BUILDING: u8 = 1;
const READY: u8 = 2;
const DROPPING: u8 = 3;

const CREATE: u8 = 1;
const DROP: u8 = 2;
const BUILD: u8 = 3;
const REMOVE: u8 = 4;
const CHECK: u8 = 5;

/// The value of an index in the store, for [`decode`].
pub fn encode(definition: &Definition) -> Vec<u8> {
    let (state, progress): (u8, &[u8]) = match &definition.state {
        IndexState::Building(key) => (BUILDING, key.as_bytes()),
        IndexState::Ready => (READY, &[]),
        IndexState::Dropping(place) => (DROPPING, place),
    };
    let path = definition.path.to_string();
    let mut bytes = vec![INDEX_VERSION, state];
    put_name(&mut bytes, &definition.name);
    bytes.put_u16(u16::try_from(path.len()).expect("a path is no longer than limits::INDEX_PATH_BYTES"));
    bytes.put_slice(path.as_bytes());
    bytes.put_slice(progress);
    bytes
}

/// # Errors
/// What is wrong with the stored index.
pub fn decode(bytes: &[u8]) -> Result<Definition, Malformed> {
    let mut cursor = Cursor::begin("a stored index", bytes, INDEX_VERSION)?;
    let state = cursor.u8("the state")?;
    let name = name(&mut cursor)?;
    let length = usize::from(cursor.u16("the length of the path")?);
    let text = cursor.bytes(length, "the path")?;
    let path = path(&cursor, text)?;
    let progress = cursor.rest();
    let state = match state {
        BUILDING => IndexState::Building(key(&cursor, progress)?),
        READY => IndexState::Ready,
        DROPPING => IndexState::Dropping(progress.to_vec()),
        unknown => return Err(cursor.wrong("the state", 0, format!("is the unknown kind {unknown}"))),
    };
    Ok(Definition { id: IndexId::of(&name, &path), name, path, state })
}

fn put_name(bytes: &mut Vec<u8>, name: &IndexName) {
    let name = name.as_str().as_bytes();
    bytes.put_u8(u8::try_from(name.len()).expect("a name is no longer than limits::NAME_BYTES"));
    bytes.put_slice(name);
}

fn name(cursor: &mut Cursor<'_>) -> Result<IndexName, Malformed> {
    let length = usize::from(cursor.u8("the length of the name")?);
    let bytes = cursor.bytes(length, "the name")?;
    let text = String::from_utf8_lossy(bytes);
    IndexName::new(&text).map_err(|error| cursor.wrong("the name", length, format!("is refused: {error}")))
}

fn path(cursor: &Cursor<'_>, bytes: &[u8]) -> Result<Path, Malformed> {
    let text = String::from_utf8_lossy(bytes);
    Path::parse(&text).map_err(|error| cursor.wrong("the path", bytes.len(), format!("is refused: {error}")))
}

fn key(cursor: &Cursor<'_>, bytes: &[u8]) -> Result<Key, Malformed> {
    Key::new(bytes).map_err(|error| cursor.wrong("a key", bytes.len(), format!("is refused: {error}")))
}

/// Whether a payload is of a change of indexes, and not of a write of rows.
pub fn is_change(payload: &[u8]) -> bool {
    payload.first() == Some(&CHANGE_VERSION)
}

/// The payload of a change, at that time of the leader in milliseconds of Unix time.
pub fn encode_change(at_ms: u64, change: &IndexChange) -> Vec<u8> {
    let mut bytes = vec![CHANGE_VERSION];
    bytes.put_u64(at_ms);
    match change {
        IndexChange::Create(name, path) => {
            bytes.put_u8(CREATE);
            put_name(&mut bytes, name);
            bytes.put_slice(path.to_string().as_bytes());
        }
        IndexChange::Drop(name) => {
            bytes.put_u8(DROP);
            put_name(&mut bytes, name);
        }
        IndexChange::Build(index, key) => {
            bytes.put_u8(BUILD);
            bytes.put_u64(index.0);
            bytes.put_slice(key.as_bytes());
        }
        IndexChange::Remove(index, place) => {
            bytes.put_u8(REMOVE);
            bytes.put_u64(index.0);
            bytes.put_slice(place);
        }
        IndexChange::Check { number, range_rows } => {
            bytes.put_u8(CHECK);
            bytes.put_u64(*number);
            bytes.put_u64(*range_rows);
        }
    }
    bytes
}

/// The time of a change, and the change.
///
/// # Errors
/// What is wrong with the payload.
pub fn decode_change(payload: &[u8]) -> Result<(u64, IndexChange), Malformed> {
    let mut cursor = Cursor::begin("a change of indexes in the log", payload, CHANGE_VERSION)?;
    let at_ms = cursor.u64("the time")?;
    let change = match cursor.u8("the kind")? {
        CREATE => {
            let name = name(&mut cursor)?;
            let text = cursor.rest();
            IndexChange::Create(name, path(&cursor, text)?)
        }
        DROP => IndexChange::Drop(name(&mut cursor)?),
        BUILD => {
            let index = IndexId(cursor.u64("the index")?);
            let from = cursor.rest();
            IndexChange::Build(index, key(&cursor, from)?)
        }
        REMOVE => IndexChange::Remove(IndexId(cursor.u64("the index")?), cursor.rest().to_vec()),
        CHECK => IndexChange::Check {
            number: cursor.u64("the number")?,
            range_rows: cursor.u64("the rows of a range")?,
        },
        unknown => return Err(cursor.wrong("the kind", 1, format!("is the unknown kind {unknown}"))),
    };
    cursor.end().map(|()| (at_ms, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::{keys, write};
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = IndexName> {
        "[a-z-]{1,12}".prop_map(|name| IndexName::new(&name).unwrap())
    }

    fn path() -> impl Strategy<Value = Path> {
        "[a-c]{1,3}(\\.[a-c]{1,3}){0,3}"
            .prop_map(|path| Path::parse(&path).unwrap_or_else(|_| Path::parse("a").unwrap()))
    }

    fn key() -> impl Strategy<Value = Key> {
        any::<Vec<u8>>().prop_map(|bytes| Key::new(&bytes).unwrap())
    }

    fn change() -> impl Strategy<Value = IndexChange> {
        prop_oneof![
            (name(), path()).prop_map(|(name, path)| IndexChange::Create(name, path)),
            name().prop_map(IndexChange::Drop),
            (any::<u64>(), key()).prop_map(|(index, key)| IndexChange::Build(IndexId(index), key)),
            (any::<u64>(), any::<Vec<u8>>())
                .prop_map(|(index, place)| IndexChange::Remove(IndexId(index), place)),
            (any::<u64>(), any::<u64>())
                .prop_map(|(number, range_rows)| IndexChange::Check { number, range_rows }),
        ]
    }

    proptest! {
        #[test]
        fn forms_come_back(
            name in name(), path in path(), key in key(), place in any::<Vec<u8>>(), state in 0u8..3,
            change in change(), at_ms in any::<u64>(), bytes in any::<Vec<u8>>(),
        ) {
            let state = match state {
                0 => IndexState::Building(key),
                1 => IndexState::Ready,
                _ => IndexState::Dropping(place),
            };
            let definition = Definition { state, ..Definition::new(name, path) };
            prop_assert_eq!(decode(&encode(&definition)), Ok(definition));
            let payload = encode_change(at_ms, &change);
            prop_assert_eq!(decode_change(&payload), Ok((at_ms, change)));
            let seen = write::decode(&payload).unwrap();
            prop_assert!(is_change(&payload) && seen.operations.is_empty() && seen.at_ms == at_ms);
            prop_assert!(!is_change(&write::encode(&seen)));
            let _ = (decode(&bytes), decode_change(&bytes), keys::parse_index_entry(&bytes));
        }

        #[test]
        fn entries_stand_by_index_value_and_key(
            one in (0u64..3, 0u8..2, any::<Vec<u8>>()), other in (0u64..3, 0u8..2, any::<Vec<u8>>()),
        ) {
            let entry = |(index, value, key): &(u64, u8, Vec<u8>)| keys::index_entry(IndexId(*index), &[1, *value], key);
            prop_assert_eq!(entry(&one).cmp(&entry(&other)), one.cmp(&other));
            let stored = entry(&one);
            let parsed = keys::parse_index_entry(&stored).unwrap();
            prop_assert_eq!((parsed.index.0, parsed.value, parsed.key), (one.0, &[1, one.1][..], &one.2[..]));
            prop_assert_eq!(keys::row_of(&stored), Some(&one.2[..]));
            prop_assert!(keys::behind_index(parsed.index) > stored && stored >= keys::index_place(parsed.index, &[]));
        }
    }

    #[test]
    fn stored_forms_stay_as_they_are() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (name, path) = (IndexName::new("by-a").unwrap(), Path::parse("a.b").unwrap());
        let building = IndexState::Building(Key::new(b"k").unwrap());
        let definition = Definition { state: building, ..Definition::new(name.clone(), path.clone()) };
        assert_eq!(hex(encode(&definition)), "01010462792d610003612e626b");
        assert_eq!(
            hex(encode_change(7, &IndexChange::Create(name, path))),
            "020000000000000007010462792d61612e62"
        );
        assert_eq!(hex(keys::index_entry(IndexId(9), &[1, 1], b"k")), "06000000000000000901016b");
        assert_eq!(hex(keys::index(IndexId(9))), "070000000000000009");
        assert_eq!(keys::behind_index(IndexId(u64::MAX)), [7]);
    }
}
