//! Multi-get: rows of several keys, each read for itself.

use super::Question;
use crate::access::TableClient;
use crate::http::{version, version_text};
use crate::limits;
use crate::node::ReadAnswer;
use crate::scans::consistency_query;
use crate::service::{Refusal, Refused};
use async_trait::async_trait;
use futures::stream::{self, StreamExt};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_service::table::replication::Consistency;
use partage_service::table::rows::Row;
use partage_wire::json::ErrorBody;
use partage_wire::table::{BytesText, GetAnswer, GetOutcome, GetRequest, GetResult};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The question of a multi-get: its items are the keys.
#[derive(Debug)]
pub(crate) struct Get {
    table: KeyspaceName,
    consistency: Consistency,
    /// Bytes of values that are in the answer.
    bytes: AtomicUsize,
}

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Got {
    /// The node has read it, and found a row or none.
    Read(ReadAnswer),
    /// The answer has as many bytes as one may have.
    LeftOut,
}

impl Get {
    /// Of a table, with that consistency for each key.
    pub(crate) fn new(table: KeyspaceName, consistency: Consistency) -> Get {
        Get { table, consistency, bytes: AtomicUsize::new(0) }
    }

    /// A row for the answer, if that still has room. The first one is always in it.
    fn admit(&self, answer: ReadAnswer) -> Got {
        let bytes = answer.row.as_ref().map_or(0, |row| row.value.len());
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if bytes > 0 && before > 0 && before + bytes > limits::BULK_BYTES {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Got::LeftOut;
        }
        Got::Read(answer)
    }

    /// The result for a key, as clients and other nodes get it.
    pub(crate) fn result(key: BytesText, outcome: Result<Got, Refused>) -> GetResult {
        let mut result = GetResult {
            key,
            outcome: GetOutcome::LeftOut,
            value: None,
            version: None,
            expires_ms: None,
            applied: None,
            age_ms: None,
            error: None,
        };
        match outcome {
            Ok(Got::LeftOut) => {}
            Ok(Got::Read(answer)) => {
                result.outcome = if answer.row.is_some() { GetOutcome::Found } else { GetOutcome::Absent };
                result.applied = Some(version_text(answer.position));
                result.age_ms = answer.age_ms;
                if let Some(row) = answer.row {
                    result.value = Some(BytesText::from(&row.value[..]));
                    result.version = Some(version_text(row.version));
                    result.expires_ms = row.expires_ms;
                }
            }
            Err(why) => {
                result.outcome = GetOutcome::Failed;
                result.error = Some(ErrorBody::new(why.refusal.word(), why.message, "").error);
            }
        }
        result
    }

    /// What another node's result says; none: this node does not understand it.
    fn outcome(&self, result: GetResult) -> Option<Result<Got, Refused>> {
        let row = match result.outcome {
            GetOutcome::LeftOut => return Some(Ok(Got::LeftOut)),
            GetOutcome::Failed => {
                let error = result.error?;
                let refusal = Refusal::of_word(&error.kind)?;
                return Some(Err(Refused::new(refusal, error.message)));
            }
            GetOutcome::Absent => None,
            GetOutcome::Found => Some(Row {
                value: result.value?.bytes().ok()?.into(),
                version: version(&result.version?)?,
                expires_ms: result.expires_ms,
            }),
        };
        let position = version(&result.applied?)?;
        Some(Ok(self.admit(ReadAnswer { row, position, age_ms: result.age_ms })))
    }
}

#[async_trait]
impl Question for Get {
    type Item = Key;
    type Answer = Got;

    fn path(&self) -> String {
        format!("get?here=true&{}", consistency_query(self.consistency))
    }

    fn key<'a>(&self, item: &'a Key) -> &'a Key {
        item
    }

    fn access(&self) -> Access {
        if self.consistency == Consistency::Linearizable { Access::Write } else { Access::Read }
    }

    fn is_read(&self) -> bool {
        true
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn idempotency_key(&self) -> Option<&[u8]> {
        None
    }

    async fn own(&self, client: &TableClient, items: Vec<Key>) -> Vec<Result<Got, Refused>> {
        let reads = items.into_iter().map(|key| async move {
            if self.bytes.load(Ordering::Relaxed) >= limits::BULK_BYTES {
                return Ok(Got::LeftOut);
            }
            client.read_own(&self.table, &key, self.consistency).await.map(|answer| self.admit(answer))
        });
        stream::iter(reads).buffered(limits::BULK_READS).collect().await
    }

    fn body(&self, items: &[Key]) -> Vec<u8> {
        let keys = items.iter().map(|key| BytesText::base64(key.as_bytes())).collect();
        // Strings can always be written.
        serde_json::to_vec(&GetRequest { keys }).unwrap_or_default()
    }

    fn understand(&self, body: &[u8]) -> Option<Vec<Result<Got, Refused>>> {
        let GetAnswer { rows, .. } = serde_json::from_slice(body).ok()?;
        rows.into_iter().map(|row| self.outcome(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_service::table::replication::LogPosition;

    fn get() -> Get {
        Get::new(KeyspaceName::new("stock").unwrap(), Consistency::Any)
    }

    fn answer(bytes: usize) -> ReadAnswer {
        let position = LogPosition { epoch: Epoch(2), index: 9 };
        let row = Row { value: vec![0xff; bytes].into(), version: position, expires_ms: Some(4) };
        ReadAnswer { row: Some(row), position, age_ms: Some(3) }
    }

    #[test]
    fn what_one_node_says_is_what_the_other_one_hears() {
        let absent = ReadAnswer { row: None, ..answer(0) };
        let refused = Refused::new(Refusal::TooFewInSync, "why");
        let all = [
            Ok(Got::Read(answer(3))),
            Ok(Got::Read(answer(0))),
            Ok(Got::Read(absent)),
            Ok(Got::LeftOut),
            Err(refused),
        ];
        let rows = all.iter().map(|one| Get::result(BytesText::Text("k".into()), one.clone())).collect();
        let body = serde_json::to_vec(&GetAnswer { rows, failed: 2 }).unwrap();
        assert_eq!(get().understand(&body), Some(all.to_vec()));
        assert_eq!(get().understand(b"{}"), None);
    }

    #[test]
    fn an_answer_has_no_more_bytes_than_it_may_and_one_row_always() {
        let whole = get();
        let row = 1 << 20;
        let admitted = (0..6).filter(|_| whole.admit(answer(row)) != Got::LeftOut).count();
        assert_eq!(admitted, limits::BULK_BYTES / row);
        assert_ne!(whole.admit(answer(0)), Got::LeftOut, "an empty value needs no room");
        assert_ne!(get().admit(answer(2 * limits::BULK_BYTES)), Got::LeftOut);
    }
}
