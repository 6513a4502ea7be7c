//! What messages of clients say. An error is a sentence with the way out, with the words of the fields.

use super::feed::Feed;
use crate::bulk::{Batch, PutItem, check_count, check_rows, condition};
use crate::feed::{EndsLeft, FeedRequest, FeedStart, FeedToken};
use crate::http::{consistency_of, idempotency_name, named, version};
use crate::limits;
use crate::rows::ScanRange;
use crate::scans::{TableScan, Token};
use crate::table_error::TableError;
use http::HeaderValue;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::limits::VALUE_BYTES;
use partage_service::table::filter::Filter;
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Request, Write};
use partage_wire::proto::table as proto;
use partage_wire::proto::table::operation::Action as ActionForm;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// An operation, and its time to live.
pub(super) type Timed = (Operation, Option<u64>);

fn malformed(why: impl Display) -> TableError {
    TableError::Malformed(why.to_string())
}

pub(super) fn table(name: &str) -> Result<KeyspaceName, TableError> {
    KeyspaceName::new(name).map_err(malformed)
}

pub(super) fn key(bytes: &[u8]) -> Result<Key, TableError> {
    Key::new(bytes).map_err(malformed)
}

pub(super) fn consistency(number: i32, bound_ms: Option<u64>) -> Result<Consistency, TableError> {
    let word = match proto::Consistency::try_from(number) {
        Ok(proto::Consistency::Unspecified | proto::Consistency::Linearizable) => "linearizable",
        Ok(proto::Consistency::Bounded) => "bounded",
        Ok(proto::Consistency::Any) => "any",
        Err(_) => return Err(malformed(format!("consistency {number} is not known here"))),
    };
    consistency_of(Some(word), bound_ms).map_err(TableError::Malformed)
}

/// The index in the log that a read must have reached.
pub(super) fn at_least(text: &str) -> Result<u64, TableError> {
    if text.is_empty() {
        return Ok(0);
    }
    let why = || malformed(format!("at_least {text:?}: give a version as an answer's applied has it"));
    Ok(version(text).ok_or_else(why)?.index)
}

/// The client's name for a write. It must be one that a header can have: nodes send it on over HTTP, and it must arrive as it is.
pub(super) fn idempotency_key(text: &str) -> Result<Option<Vec<u8>>, TableError> {
    if text.is_empty() {
        return Ok(None);
    }
    if text.trim_ascii() != text || HeaderValue::from_bytes(text.as_bytes()).is_err() {
        let why = "idempotency_key begins or ends with a space, or has a control character: leave them out";
        return Err(malformed(why));
    }
    idempotency_name(text.as_bytes()).map(Some).map_err(TableError::Malformed)
}

fn condition_of(if_version: &str, if_absent: bool) -> Result<Condition, TableError> {
    condition(Some(if_version).filter(|text| !text.is_empty()), if_absent).map_err(TableError::Malformed)
}

/// When a row ends, by the clock of the leader; without a time to live it never does.
fn expiry(ttl_ms: Option<u64>) -> Expiry {
    ttl_ms.map_or(Expiry::Never, Expiry::After)
}

/// A write of one row.
fn single(operation: Operation, ttl_ms: Option<u64>, name: Option<Vec<u8>>) -> Write {
    let value = match &operation.action {
        Action::Put(value, _) | Action::Overwrite(value) => Some(&value[..]),
        _ => None,
    };
    let request = name.map(|name| {
        let (id, fingerprint) = named(&name, &operation.key, operation.condition, ttl_ms, value);
        Request { id, fingerprint }
    });
    // The node sets the time.
    Write { at_ms: 0, request, operations: vec![operation] }
}

pub(super) fn put(asked: proto::PutRequest) -> Result<Write, TableError> {
    if asked.value.len() > VALUE_BYTES {
        let message = format!("the value is longer than {VALUE_BYTES} bytes");
        return Err(TableError::TooLarge { message, help: "store it in parts" });
    }
    let operation = Operation {
        key: key(&asked.key)?,
        condition: condition_of(&asked.if_version, asked.if_absent)?,
        action: Action::Put(asked.value.into(), expiry(asked.ttl_ms)),
        wants_former: false,
    };
    Ok(single(operation, asked.ttl_ms, idempotency_key(&asked.idempotency_key)?))
}

pub(super) fn delete(asked: proto::DeleteRequest) -> Result<Write, TableError> {
    let operation = Operation {
        key: key(&asked.key)?,
        condition: condition_of(&asked.if_version, false)?,
        action: Action::Delete,
        wants_former: false,
    };
    Ok(single(operation, None, idempotency_key(&asked.idempotency_key)?))
}

/// The operations of a batch, which are counted first.
pub(super) fn operations(forms: Vec<proto::Operation>) -> Result<Vec<Timed>, TableError> {
    let reads =
        |form: &&proto::Operation| form.want_former || matches!(form.action, Some(ActionForm::Read(_)));
    Batch::check_counts(forms.len(), forms.iter().filter(reads).count())?;
    let numbered = forms.into_iter().enumerate();
    numbered
        .map(|(at, form)| operation(form).map_err(|why| malformed(format!("operation {at}: {why}"))))
        .collect()
}

fn operation(form: proto::Operation) -> Result<Timed, TableError> {
    let missing = "it has no action: give put, delete, read, add, append or expire";
    let (action, ttl_ms) = match form.action.ok_or_else(|| malformed(missing))? {
        ActionForm::Put(put) => (Action::Put(put.value.into(), Expiry::Never), put.ttl_ms),
        ActionForm::Delete(_) => (Action::Delete, None),
        ActionForm::Read(_) => (Action::Read, None),
        ActionForm::Add(by) => (Action::Add(by), None),
        ActionForm::Append(value) => (Action::Append(value.into()), None),
        ActionForm::Expire(expire) => (Action::Expire(Expiry::Never), expire.ttl_ms),
    };
    let condition = condition_of(&form.if_version, form.if_absent)?;
    let operation = Operation { key: key(&form.key)?, condition, action, wants_former: form.want_former };
    Ok((operation, ttl_ms))
}

pub(super) fn keys(forms: Vec<Vec<u8>>) -> Result<Vec<Key>, TableError> {
    check_count(forms.len(), "keys")?;
    let keys = forms.iter().enumerate();
    keys.map(|(at, bytes)| key(bytes).map_err(|why| malformed(format!("key {at}: {why}")))).collect()
}

/// The rows of one message.
pub(super) fn rows(forms: Vec<proto::PutRow>) -> Result<Vec<PutItem>, TableError> {
    check_count(forms.len(), "rows")?;
    let rows = forms.into_iter().enumerate();
    let items = rows.map(|(at, form)| row(form).map_err(|why| malformed(format!("row {at}: {why}"))));
    let items = items.collect::<Result<Vec<PutItem>, TableError>>()?;
    check_rows(&items)?;
    Ok(items)
}

fn row(form: proto::PutRow) -> Result<PutItem, TableError> {
    let condition = condition_of(&form.if_version, form.if_absent)?;
    Ok(PutItem { key: key(&form.key)?, value: form.value.into(), ttl_ms: form.ttl_ms, condition })
}

/// How much a page may have; 0 is the most.
fn page_size(name: &str, asked: u32) -> Result<usize, TableError> {
    let most = limits::SCAN_ROWS;
    match usize::try_from(asked) {
        Ok(0) => Ok(most),
        Ok(size) if size <= most => Ok(size),
        _ => Err(malformed(format!("{name} {asked}: give a number from 1 to {most}"))),
    }
}

/// The feed that a client's stream follows, after its numbers were checked.
pub(super) fn feed(asked: proto::FeedRequest) -> Result<Feed, TableError> {
    let page_changes = page_size("page_changes", asked.page_changes)?;
    let (least, most) = (limits::FEED_IDLE, limits::FEED_WAIT);
    let idle = match Duration::from_millis(asked.idle_ms.into()) {
        Duration::ZERO => most,
        _ if !asked.follow => return Err(malformed("idle_ms is for a stream with follow: leave it out")),
        idle if (least..=most).contains(&idle) => idle,
        _ => {
            let (asked, least, most) = (asked.idle_ms, least.as_millis(), most.as_millis());
            return Err(malformed(format!("idle_ms {asked}: give a number from {least} to {most}")));
        }
    };
    let start = match asked.after.as_str() {
        "" => FeedStart::Oldest,
        "now" => FeedStart::Now,
        token => FeedStart::After(FeedToken::parse(token).map_err(malformed)?),
    };
    let asked_for = FeedRequest {
        table: table(&asked.table)?,
        shard: asked.shard.map(ShardId),
        start,
        most: page_changes,
        wait: Duration::ZERO,
        ends: !asked.follow,
    };
    Ok(Feed {
        asked: asked_for,
        page_changes,
        left: if asked.limit == 0 { u64::MAX } else { asked.limit },
        idle: if asked.follow { idle } else { Duration::ZERO },
        ends: (!asked.follow).then_some(EndsLeft::All),
    })
}

/// A scan, and how many rows it may have.
pub(super) fn scan(asked: proto::ScanRequest) -> Result<(TableScan, u64), TableError> {
    let most = page_size("page_rows", asked.page_rows)?;
    let to = asked.to.as_deref().map(key).transpose()?;
    let range = ScanRange {
        from: key(&asked.from)?,
        to,
        prefix: key(&asked.prefix)?,
        most,
        with_values: !asked.keys_only,
    };
    if range.to.as_ref().is_some_and(|to| *to < range.from) {
        return Err(malformed("to is below from: exchange them"));
    }
    let filter = Some(asked.filter).filter(|text| !text.is_empty());
    let filter = filter.map(|text| Filter::parse(&text).map(Arc::new)).transpose().map_err(malformed)?;
    let token = Some(asked.token).filter(|text| !text.is_empty());
    let token = token.map(|text| Token::parse(&text)).transpose().map_err(malformed)?;
    let consistency = consistency(asked.consistency, asked.bound_ms)?;
    let left = if asked.limit == 0 { u64::MAX } else { asked.limit };
    Ok((TableScan { table: table(&asked.table)?, range, filter, consistency, token }, left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_service::table::replication::LogPosition;

    fn put_of(key: &[u8], value: usize) -> proto::PutRequest {
        proto::PutRequest { table: "t".into(), key: key.into(), value: vec![0; value], ..Default::default() }
    }

    #[test]
    fn a_write_has_its_condition_and_its_name() {
        let named = |value: usize| proto::PutRequest { idempotency_key: "x".into(), ..put_of(b"a", value) };
        let (one, other) = (put(named(1)).unwrap(), put(named(2)).unwrap());
        let request = |write: &Write| write.request.unwrap();
        assert_eq!(request(&one).id, request(&other).id);
        assert_ne!(request(&one).fingerprint, request(&other).fingerprint);
        let version = LogPosition { epoch: Epoch(3), index: 17 };
        for (if_version, if_absent, expected) in [
            ("", false, Condition::Always),
            ("", true, Condition::Absent),
            ("*", false, Condition::Present),
            ("3-17", false, Condition::Version(version)),
        ] {
            let asked = proto::PutRequest { if_version: if_version.into(), if_absent, ..put_of(b"a", 0) };
            assert_eq!(put(asked).unwrap().operations[0].condition, expected);
        }
        let ending = |ttl_ms| put(proto::PutRequest { ttl_ms: Some(ttl_ms), ..put_of(b"a", 0) }).unwrap();
        assert!(matches!(ending(5).operations[0].action, Action::Put(_, Expiry::After(5))));
        assert_eq!(ending(5).at_ms, 0, "the leader gives the write its time");
        let once = || proto::PutRequest { ttl_ms: Some(5), idempotency_key: "x".into(), ..put_of(b"a", 0) };
        assert_eq!(put(once()).unwrap(), put(once()).unwrap(), "a retry is the same write at any time");
    }

    #[test]
    fn a_feed_follows_or_ends() {
        let asked = proto::FeedRequest { table: "t".into(), ..Default::default() };
        let plain = feed(asked.clone()).unwrap();
        assert_eq!((plain.page_changes, plain.left, plain.idle), (1_000, u64::MAX, Duration::ZERO));
        assert_eq!((&plain.ends, plain.asked.ends), (&Some(EndsLeft::All), true));
        assert_eq!((plain.asked.start, plain.asked.shard), (FeedStart::Oldest, None));
        let follow = proto::FeedRequest {
            after: "now".into(),
            follow: true,
            shard: Some(7),
            page_changes: 3,
            limit: 9,
            idle_ms: 100,
            ..asked.clone()
        };
        let followed = feed(follow.clone()).unwrap();
        assert_eq!((followed.page_changes, followed.left, followed.idle), (3, 9, Duration::from_millis(100)));
        assert_eq!((followed.ends, followed.asked.ends, followed.asked.wait), (None, false, Duration::ZERO));
        assert_eq!((followed.asked.start, followed.asked.shard), (FeedStart::Now, Some(ShardId(7))));
        for (bad, named) in [
            (proto::FeedRequest { page_changes: 1_001, ..asked.clone() }, "page_changes 1001"),
            (proto::FeedRequest { idle_ms: 99, ..follow.clone() }, "idle_ms 99"),
            (proto::FeedRequest { idle_ms: 25_001, ..follow.clone() }, "100 to 25000"),
            (proto::FeedRequest { follow: false, ..follow.clone() }, "follow"),
            (proto::FeedRequest { after: "abc".into(), ..asked.clone() }, "damaged"),
            (proto::FeedRequest { table: "no/name".into(), ..asked }, "name"),
        ] {
            let why = feed(bad).unwrap_err();
            assert!(why.word() == "malformed" && why.to_string().contains(named), "{named}: {why}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_as_over_http() {
        let word = |asked: proto::PutRequest| put(asked).unwrap_err().word();
        assert!(put(put_of(&[7; 4_096], VALUE_BYTES)).is_ok() && put(put_of(b"", 0)).is_ok());
        assert_eq!(word(put_of(&[7; 4_097], 0)), "malformed");
        assert_eq!(word(put_of(b"a", VALUE_BYTES + 1)), "too_large");
        assert_eq!(word(proto::PutRequest { if_version: "3".into(), ..put_of(b"a", 0) }), "malformed");
        for bad in [" x", "x\n", "x\0", &"x".repeat(256)] {
            let asked = proto::PutRequest { idempotency_key: bad.to_owned(), ..put_of(b"a", 0) };
            assert_eq!(word(asked), "malformed", "{bad:?}");
        }
        assert!(table("a/b").is_err() && table("").is_err());
        assert!(at_least("17").is_err() && at_least("3-17").is_ok_and(|index| index == 17));
        assert!(
            consistency(2, None).is_err()
                && consistency(3, Some(1)).is_err()
                && consistency(9, None).is_err()
        );
        assert_eq!(consistency(2, Some(7)).unwrap(), Consistency::Bounded(7));
    }

    #[test]
    fn rows_and_operations_are_counted_before_they_are_made() {
        let row = |key: usize| proto::PutRow { key: key.to_string().into(), ..Default::default() };
        assert_eq!(rows((0..1_000).map(row).collect()).unwrap().len(), 1_000);
        assert_eq!(rows((0..1_001).map(row).collect()).unwrap_err().word(), "too_large");
        assert_eq!(rows(vec![]).unwrap_err().word(), "malformed");
        assert!(rows(vec![row(1), row(1)]).unwrap_err().to_string().starts_with("row 1: "));
        let of = |action| proto::Operation { key: b"a".into(), action, ..Default::default() };
        let read = || of(Some(ActionForm::Read(proto::ReadAction {})));
        assert_eq!(operations(vec![read(); 32]).unwrap().len(), 32);
        assert_eq!(operations(vec![read(); 33]).unwrap_err().word(), "too_large");
        assert_eq!(operations(vec![of(Some(ActionForm::Add(1))); 1_001]).unwrap_err().word(), "too_large");
        let why = operations(vec![read(), of(None)]).unwrap_err().to_string();
        assert!(why.starts_with("operation 1: ") && why.contains("action"), "{why}");
    }

    #[test]
    fn a_scan_says_which_rows() {
        let asked = proto::ScanRequest { table: "t".into(), ..Default::default() };
        let (whole, left) = scan(asked.clone()).unwrap();
        assert_eq!((whole.range.most, whole.range.to, left), (limits::SCAN_ROWS, None, u64::MAX));
        for bad in [
            proto::ScanRequest { page_rows: 1_001, ..asked.clone() },
            proto::ScanRequest { from: b"b".into(), to: Some(b"a".into()), ..asked.clone() },
            proto::ScanRequest { filter: "a = ".into(), ..asked.clone() },
            proto::ScanRequest { token: "x".into(), ..asked },
        ] {
            assert_eq!(scan(bad).unwrap_err().word(), "malformed");
        }
    }
}
