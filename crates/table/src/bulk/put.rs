//! Multi-put: several rows, each a write of its own.
//!
//! Under an idempotency key each row has a request id of its own, made of the key of the request and that of the row. So any part
//! of a multi-put may be sent again, in any other company, and a row that was written gets its first answer.

use super::Question;
use super::batch::condition_form;
use crate::access::TableClient;
use crate::http::{version, version_text};
use crate::limits;
use crate::service::{Refusal, Refused};
use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_service::table::rows::{
    Action, Condition, Expiry, Operation, Outcome, Request, RequestId, Value, Write,
};
use partage_wire::json::ErrorBody;
use partage_wire::table::{BytesText, PutAnswer, PutOutcome, PutRequest, PutResult, PutRow};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The word for a row whose request id another write had.
const REQUEST_ID_TAKEN: &str = "request_id_taken";

/// The question of a multi-put: its items are the rows.
#[derive(Debug)]
pub(crate) struct Put {
    table: KeyspaceName,
    name: Option<Vec<u8>>,
}

/// A row that is put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PutItem {
    pub(crate) key: Key,
    pub(crate) value: Value,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) condition: Condition,
}

impl PutItem {
    /// What tells it from another write under the same name.
    fn request(&self, name: &[u8]) -> Request {
        let key = self.key.as_bytes();
        let length = u64::try_from(name.len()).unwrap_or(u64::MAX).to_be_bytes();
        let id = xxh3_128(&[&length, name, key].concat());
        let mut hash = Xxh3::new();
        hash.update(format!("put {:?} {:?} ", self.condition, self.ttl_ms).as_bytes());
        hash.update(&self.value);
        Request { id: RequestId(id.to_be_bytes()), fingerprint: hash.digest() }
    }

    fn form(&self) -> PutRow {
        let (if_version, if_absent) = condition_form(self.condition);
        PutRow {
            key: BytesText::base64(self.key.as_bytes()),
            value: Some(BytesText::base64(&self.value)),
            json: None,
            ttl_ms: self.ttl_ms,
            if_version,
            if_absent,
        }
    }
}

impl Put {
    /// Into a table; `name` is the client's idempotency key.
    pub(crate) fn new(table: KeyspaceName, name: Option<Vec<u8>>) -> Put {
        Put { table, name }
    }

    fn write(&self, item: PutItem) -> Write {
        let request = self.name.as_ref().map(|name| item.request(name));
        let expiry = item.ttl_ms.map_or(Expiry::Never, Expiry::After);
        let operation = Operation {
            key: item.key,
            condition: item.condition,
            action: Action::Put(item.value, expiry),
            wants_former: false,
        };
        // The node sets the time.
        Write { at_ms: 0, request, operations: vec![operation] }
    }

    /// The result for a row, as clients and other nodes get it.
    pub(crate) fn result(key: BytesText, outcome: Result<Outcome, Refused>) -> PutResult {
        let error = |word: &str, why: String| Some(ErrorBody::new(word, why, "").error);
        let mut result =
            PutResult { key, outcome: PutOutcome::Failed, version: None, existed: None, error: None };
        match outcome {
            Ok(Outcome::Done { version, results }) => {
                result.outcome = PutOutcome::Written;
                result.version = Some(version_text(version));
                result.existed = Some(results.first().is_some_and(|done| done.existed));
            }
            Ok(Outcome::NotMet { current, .. }) => {
                result.outcome = PutOutcome::NotMet;
                result.version = current.map(version_text);
            }
            Ok(Outcome::Refused { refusal, .. }) => result.error = error("refused", refusal.to_string()),
            Ok(Outcome::RequestIdTaken) => {
                let what = "another write of the row had this idempotency-key: give each its own";
                result.error = error(REQUEST_ID_TAKEN, what.to_owned());
            }
            Err(why) => {
                let is_unknown = why.refusal == Refusal::Unknown;
                result.outcome = if is_unknown { PutOutcome::Unknown } else { PutOutcome::Failed };
                result.error = error(why.refusal.word(), why.message);
            }
        }
        result
    }

    /// What another node's result says; none: this node does not understand it.
    fn outcome(result: PutResult) -> Option<Result<Outcome, Refused>> {
        use partage_service::table::rows::Done;
        Some(match result.outcome {
            PutOutcome::Written => {
                let done = Done { existed: result.existed?, former: None, now: None };
                Ok(Outcome::Done { version: version(&result.version?)?, results: vec![done] })
            }
            PutOutcome::NotMet => {
                let current = match result.version {
                    Some(text) => Some(version(&text)?),
                    None => None,
                };
                Ok(Outcome::NotMet { operation: 0, current })
            }
            PutOutcome::Failed | PutOutcome::Unknown => {
                let error = result.error?;
                match Refusal::of_word(&error.kind) {
                    Some(refusal) => Err(Refused::new(refusal, error.message)),
                    None if error.kind == REQUEST_ID_TAKEN => Ok(Outcome::RequestIdTaken),
                    None => return None,
                }
            }
        })
    }
}

#[async_trait]
impl Question for Put {
    type Item = PutItem;
    type Answer = Outcome;

    fn path(&self) -> String {
        "put?here=true".to_owned()
    }

    fn key<'a>(&self, item: &'a PutItem) -> &'a Key {
        &item.key
    }

    fn access(&self) -> Access {
        Access::Write
    }

    fn is_repeatable(&self) -> bool {
        self.name.is_some()
    }

    fn idempotency_key(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    async fn own(&self, client: &TableClient, items: Vec<PutItem>) -> Vec<Result<Outcome, Refused>> {
        let writes = items.into_iter().map(|item| client.write_own(&self.table, self.write(item)));
        stream::iter(writes).buffered(limits::BULK_WRITES).collect().await
    }

    fn body(&self, items: &[PutItem]) -> Vec<u8> {
        // Strings and numbers can always be written.
        serde_json::to_vec(&PutRequest { rows: items.iter().map(PutItem::form).collect() })
            .unwrap_or_default()
    }

    fn understand(&self, body: &[u8]) -> Option<Vec<Result<Outcome, Refused>>> {
        let PutAnswer { results, .. } = serde_json::from_slice(body).ok()?;
        results.into_iter().map(Put::outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_service::table::replication::LogPosition;
    use partage_service::table::rows::Done;

    #[test]
    fn what_one_node_says_is_what_the_other_one_hears() {
        let version = LogPosition { epoch: Epoch(2), index: 9 };
        let done = Done { existed: true, former: None, now: None };
        let all = [
            Ok(Outcome::Done { version, results: vec![done] }),
            Ok(Outcome::NotMet { operation: 0, current: Some(version) }),
            Ok(Outcome::NotMet { operation: 0, current: None }),
            Ok(Outcome::RequestIdTaken),
            Err(Refused::new(Refusal::Unknown, "why")),
            Err(Refused::new(Refusal::NoRoom, "why")),
        ];
        let results = all.iter().map(|one| Put::result(BytesText::Text("k".into()), one.clone())).collect();
        let body = serde_json::to_vec(&PutAnswer { results, failed: 5 }).unwrap();
        let put = Put::new(KeyspaceName::new("stock").unwrap(), None);
        assert_eq!(put.understand(&body), Some(all.to_vec()));
    }

    #[test]
    fn a_time_to_live_is_sent_to_the_leader_as_it_came() {
        let put = Put::new(KeyspaceName::new("stock").unwrap(), Some(b"x".to_vec()));
        let item = PutItem {
            key: Key::new(b"a").unwrap(),
            value: b"1".as_slice().into(),
            ttl_ms: Some(5),
            condition: Condition::Always,
        };
        let write = put.write(item.clone());
        assert_eq!(write.operations[0].action, Action::Put(b"1".as_slice().into(), Expiry::After(5)));
        assert_eq!(write, put.write(item), "a retry is the same write at any time");
    }

    #[test]
    fn a_row_has_the_same_request_id_in_any_company_and_another_value_another_fingerprint() {
        let item = |key: &[u8], value: &[u8]| PutItem {
            key: Key::new(key).unwrap(),
            value: value.into(),
            ttl_ms: None,
            condition: Condition::Always,
        };
        let (one, other) = (item(b"a", b"1").request(b"x"), item(b"b", b"1").request(b"x"));
        assert_eq!(one, item(b"a", b"1").request(b"x"));
        assert_ne!(one.id, other.id);
        assert_ne!(item(b"ab", b"1").request(b"x").id, item(b"b", b"1").request(b"xa").id);
        let changed = item(b"a", b"2").request(b"x");
        assert!(changed.id == one.id && changed.fingerprint != one.fingerprint);
    }
}
