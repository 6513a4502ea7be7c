//! A load: a stream of messages with rows, each written like a multi-put, one message after the other. So of several rows of one
//! key that of the last message stays, and memory holds one message.

use super::{TableService, answer, form, status};
use crate::bulk::{Put, PutItem};
use crate::limits;
use crate::table_error::TableError;
use partage_core::base::name::KeyspaceName;
use partage_wire::proto::table as proto;
use partage_wire::proto::table::put_result;
use tonic::{Status, Streaming};
use xxhash_rust::xxh3::xxh3_128;

/// What the first message says of all.
struct Load {
    /// The table and the name, as the first message has them.
    said: (String, String),
    table: KeyspaceName,
    name: Option<Vec<u8>>,
}

impl Load {
    /// Whether a later message says nothing else.
    fn check(&self, message: &proto::LoadRequest) -> Result<(), TableError> {
        let same = |said: &str, first: &str| said.is_empty() || said == first;
        if same(&message.table, &self.said.0) && same(&message.idempotency_key, &self.said.1) {
            return Ok(());
        }
        let why =
            "table and idempotency_key are said by the first message: leave them out, or begin another load";
        Err(TableError::Malformed(why.to_owned()))
    }

    /// The name of the rows of one message: with that of the load itself, the same key in two messages would be one write.
    fn name_of(&self, number: u64) -> Option<Vec<u8>> {
        let name = self.name.as_ref()?;
        Some(format!("load-{:032x}-{number}", xxh3_128(name)).into_bytes())
    }
}

/// Writes the rows of a stream, to its end.
pub(super) async fn load(
    service: &TableService,
    mut messages: Streaming<proto::LoadRequest>,
) -> Result<proto::LoadResponse, Status> {
    let mut load = None;
    let mut summary = Summary::default();
    let mut number = 0;
    loop {
        // A stream that breaks, or a message that cannot be read, ends the load as well.
        let next = messages.message().await.map_err(|why| status::more(&why, summary.metadata(number)))?;
        let Some(message) = next else { break };
        let done = take(service, &mut load, &mut summary, number, message).await;
        done.map_err(|why| status::with(&why, summary.metadata(number)))?;
        number += 1;
    }
    if load.is_none() {
        let why = "the load has no message: the first one names the table".to_owned();
        return Err(status::of(&TableError::Malformed(why)));
    }
    Ok(summary.0)
}

async fn take(
    service: &TableService,
    load: &mut Option<Load>,
    summary: &mut Summary,
    number: u64,
    message: proto::LoadRequest,
) -> Result<(), TableError> {
    let load = match load {
        Some(load) => load,
        None => {
            let name = form::idempotency_key(&message.idempotency_key)?;
            let table = service.known(&message.table).await?;
            let said = (message.table.clone(), message.idempotency_key.clone());
            load.insert(Load { said, table, name })
        }
    };
    load.check(&message)?;
    let items = form::rows(message.rows)?;
    let question = Put::new(load.table.clone(), load.name_of(number));
    let outcomes = service.bulk.settle(&load.table, &question, &items).await;
    let results = outcomes.into_iter().map(answer::put);
    items.iter().zip(results).for_each(|(item, result)| summary.take(item, result));
    Ok(())
}

/// What has become of the rows so far.
#[derive(Default)]
struct Summary(proto::LoadResponse, usize);

impl Summary {
    /// What an error says of the messages that were done before it.
    fn metadata(&self, messages: u64) -> [(&'static str, String); 5] {
        let counts = &self.0;
        let metadata = [
            ("messages", messages),
            ("written", counts.written),
            ("not_met", counts.not_met),
            ("unknown", counts.unknown),
            ("failed", counts.failed),
        ];
        metadata.map(|(name, count)| (name, count.to_string()))
    }

    fn take(&mut self, item: &PutItem, result: proto::PutResult) {
        use put_result::Outcome::{Failed, NotMet, Unknown, Unspecified, Written};
        let Summary(said, bytes) = self;
        let row = said.rows;
        said.rows += 1;
        match result.outcome() {
            Written => {
                said.written += 1;
                return;
            }
            NotMet => said.not_met += 1,
            Unknown => said.unknown += 1,
            Failed | Unspecified => said.failed += 1,
        }
        let key = item.key.as_bytes();
        if said.failures.len() < limits::LOAD_FAILURES && *bytes < limits::LOAD_FAILURE_BYTES {
            *bytes += key.len() + result.error.as_ref().map_or(0, |error| error.message.len());
            said.failures.push(proto::LoadFailure { row, key: key.to_vec(), result: Some(result) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Refusal, Refused};
    use partage_core::keyspace::key::Key;
    use partage_service::table::rows::Condition;

    fn message(table: &str, name: &str) -> proto::LoadRequest {
        proto::LoadRequest { table: table.to_owned(), idempotency_key: name.to_owned(), rows: vec![] }
    }

    #[test]
    fn the_first_message_says_what_the_others_must_not_change() {
        let table = KeyspaceName::new("stock").unwrap();
        let load = Load { said: ("stock".into(), "x".into()), table, name: Some(b"x".to_vec()) };
        for fine in [message("", ""), message("stock", "x"), message("stock", "")] {
            assert_eq!(load.check(&fine), Ok(()));
        }
        assert!(load.check(&message("other", "")).is_err() && load.check(&message("", "y")).is_err());
        assert_ne!(load.name_of(0), load.name_of(1), "the same key in two messages is two writes");
    }

    #[test]
    fn what_a_summary_names_has_a_bound() {
        let item = |bytes: usize| PutItem {
            key: Key::new(&vec![7; bytes]).unwrap(),
            value: b"".as_slice().into(),
            ttl_ms: None,
            condition: Condition::Always,
        };
        let failed = || answer::put(Err(Refused::new(Refusal::Unknown, "why")));
        let mut summary = Summary::default();
        (0..3_000).for_each(|_| summary.take(&item(1), failed()));
        assert_eq!((summary.0.rows, summary.0.unknown, summary.0.failures.len()), (3_000, 3_000, 1_000));
        let mut summary = Summary::default();
        (0..1_000).for_each(|_| summary.take(&item(4_096), failed()));
        assert!(summary.0.failures.len() < 300, "long keys take more room");
    }
}
