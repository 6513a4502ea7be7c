//! A batch: operations within one partition key, done as one or not at all, as one entry of the shard's log.

use super::Question;
use crate::access::TableClient;
use crate::http::{version, version_text};
use crate::limits;
use crate::rows::ScannedRow;
use crate::scans::for_client;
use crate::service::Refused;
use crate::stored::values;
use async_trait::async_trait;
use bytes::Bytes;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_core::keyspace::sharding::PartitionKey;
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{
    Action, Condition, Done, Expiry, Invalid, Operation, Outcome, Request, RequestId, Value, Write,
};
use partage_wire::table::{BatchAnswer, BatchOperation, BatchRequest, BatchResult, BatchVerb, BytesText};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// A batch, which is the only item of its question.
#[derive(Debug)]
pub(crate) struct Batch {
    table: KeyspaceName,
    name: Option<Vec<u8>>,
    /// As it came: what another node is sent. None: it is written anew.
    body: Option<Bytes>,
    /// The times to live count by the clock of the leader, from when it carries the batch out.
    operations: Vec<(Operation, Option<u64>)>,
}

/// Why a batch cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchError {
    /// An operation is none.
    #[error("operation {at}: {why}")]
    Operation {
        /// The place of the operation in the batch, counted from 0.
        at: usize,
        /// What is wrong with the operation, and what to send instead.
        why: String,
    },
    /// Too many rows are asked for.
    #[error(
        "{0} operations ask for rows as they were, and {max} may: read others by a multi-get",
        max = limits::BATCH_FORMER_ROWS
    )]
    FormerRows(usize),
    /// It is beyond the limits of writes, or of several partitions.
    #[error("{0}")]
    Invalid(#[from] Invalid),
}

/// What must hold of a row.
pub(crate) fn condition(if_version: Option<&str>, if_absent: bool) -> Result<Condition, String> {
    match (if_version, if_absent) {
        (None, false) => Ok(Condition::Always),
        (None, true) => Ok(Condition::Absent),
        (Some("*"), false) => Ok(Condition::Present),
        (Some(text), false) => version(text)
            .map(Condition::Version)
            .ok_or_else(|| format!("if_version {text:?}: give a version as an answer has it, or *")),
        (Some(_), true) => Err("if_version and if_absent contradict each other: give one".to_owned()),
    }
}

/// The value of a row, given in one of two ways.
pub(crate) fn value(
    value: Option<BytesText>,
    json: Option<&serde_json::value::RawValue>,
) -> Result<Value, String> {
    match (value, json) {
        (Some(value), None) => value.bytes().map(Value::from).map_err(|error| error.to_string()),
        (None, Some(json)) => Ok(json.get().as_bytes().into()),
        (None, None) => Err("the value is missing: give value or json".to_owned()),
        (Some(_), Some(_)) => Err("value and json are both given: give one".to_owned()),
    }
}

/// An operation, and its time to live.
fn operation(form: BatchOperation) -> Result<(Operation, Option<u64>), String> {
    use BatchVerb::{Add, Append, Delete, Expire, Put, Read};
    let key = Key::try_from(form.key).map_err(|error| error.to_string())?;
    let condition = condition(form.if_version.as_deref(), form.if_absent)?;
    let verb = form.operation;
    let is_given = |name: &str, is_given: bool, verbs: &[BatchVerb]| match is_given && !verbs.contains(&verb)
    {
        true => Err(format!("{name} is not for this operation: leave it out")),
        false => Ok(()),
    };
    is_given("value", form.value.is_some(), &[Put, Append])?;
    is_given("json", form.json.is_some(), &[Put])?;
    is_given("by", form.by.is_some(), &[Add])?;
    is_given("ttl_ms", form.ttl_ms.is_some(), &[Put, Expire])?;
    let given = || value(form.value.clone(), form.json.as_deref());
    let action = match verb {
        Put => Action::Put(given()?, Expiry::Never),
        Append => Action::Append(given()?),
        Delete => Action::Delete,
        Add => Action::Add(form.by.ok_or("by is missing: give a whole number")?),
        Expire => Action::Expire(Expiry::Never),
        Read => Action::Read,
    };
    Ok((Operation { key, condition, action, wants_former: form.want_former }, form.ttl_ms))
}

/// An operation as [`operation`] reads it.
fn form((operation, ttl_ms): &(Operation, Option<u64>)) -> BatchOperation {
    use BatchVerb::{Add, Append, Delete, Expire, Put, Read};
    let given = |value: &Value| Some(BytesText::base64(value));
    let (verb, value, by) = match &operation.action {
        Action::Put(value, _) | Action::Overwrite(value) => (Put, given(value), None),
        Action::Append(value) => (Append, given(value), None),
        Action::Delete => (Delete, None, None),
        Action::Add(by) => (Add, None, Some(*by)),
        Action::Expire(_) => (Expire, None, None),
        Action::Read => (Read, None, None),
    };
    let (if_version, if_absent) = condition_form(operation.condition);
    BatchOperation {
        operation: verb,
        key: BytesText::base64(operation.key.as_bytes()),
        value,
        json: None,
        by,
        ttl_ms: *ttl_ms,
        if_version,
        if_absent,
        want_former: operation.wants_former,
    }
}

/// A condition as [`condition`] reads it.
pub(super) fn condition_form(condition: Condition) -> (Option<String>, bool) {
    match condition {
        Condition::Always => (None, false),
        Condition::Absent => (None, true),
        Condition::Present => (Some("*".to_owned()), false),
        Condition::Version(version) => (Some(version_text(version)), false),
    }
}

/// The operation with its time to live.
fn ending(mut operation: Operation, ttl_ms: Option<u64>) -> Operation {
    if let (Action::Put(_, expiry) | Action::Expire(expiry), Some(ttl_ms)) = (&mut operation.action, ttl_ms) {
        *expiry = Expiry::After(ttl_ms);
    }
    operation
}

impl Batch {
    /// Of a request that came with `body`; `name` is the client's idempotency key.
    ///
    /// # Errors
    /// What cannot be, and the way out.
    pub(crate) fn new(
        table: KeyspaceName,
        name: Option<Vec<u8>>,
        body: Bytes,
        request: BatchRequest,
    ) -> Result<Batch, BatchError> {
        let wanted = request.operations.iter();
        let former = wanted.filter(|one| one.want_former || one.operation == BatchVerb::Read).count();
        Batch::check_counts(request.operations.len(), former)?;
        let parsed = request.operations.into_iter().enumerate();
        let operations =
            parsed.map(|(at, form)| operation(form).map_err(|why| BatchError::Operation { at, why }));
        let operations = operations.collect::<Result<_, _>>()?;
        Ok(Batch { table, name, body: Some(body), operations })
    }

    /// Of operations with their times to live, which [`Batch::check_counts`] has counted.
    pub(crate) fn of(
        table: KeyspaceName,
        name: Option<Vec<u8>>,
        operations: Vec<(Operation, Option<u64>)>,
    ) -> Batch {
        Batch { table, name, body: None, operations }
    }

    /// Whether a batch may have so many operations, of which so many are answered with a row: looked at before anything is made
    /// of them.
    ///
    /// # Errors
    /// The batch has more of them than it may have.
    pub(crate) fn check_counts(operations: usize, former: usize) -> Result<(), BatchError> {
        if operations > partage_core::limits::BATCH_OPERATIONS {
            return Err(Invalid::TooMany(operations).into());
        }
        if former > limits::BATCH_FORMER_ROWS {
            return Err(BatchError::FormerRows(former));
        }
        Ok(())
    }

    /// Whether it is within the limits, and within one partition of a table with such partition keys.
    pub(crate) fn check(&self, partition_key: PartitionKey) -> Result<(), BatchError> {
        Ok(self.write().check(partition_key)?)
    }

    /// The key by which its shard is found; the empty one of a batch that does nothing, which [`Batch::check`] refuses.
    pub(crate) fn first_key(&self) -> Key {
        self.operations.first().map_or(Key::empty(), |(first, _)| first.key.clone())
    }

    fn write(&self) -> Write {
        let operations = self.operations.iter().map(|(operation, ttl_ms)| ending(operation.clone(), *ttl_ms));
        // The node sets the time.
        Write { at_ms: 0, request: self.request(), operations: operations.collect() }
    }

    /// The client's name for it, and what tells it from another batch under the same name: not when it came.
    fn request(&self) -> Option<Request> {
        let name = self.name.as_ref()?;
        let mut hash = Xxh3::new();
        for (operation, ttl_ms) in &self.operations {
            hash.update(format!("{operation:?} {ttl_ms:?} ").as_bytes());
        }
        Some(Request { id: RequestId(xxh3_128(name).to_be_bytes()), fingerprint: hash.digest() })
    }

    /// The answer to the client, which has a result for each operation.
    pub(crate) fn answer(&self, version: LogPosition, results: Vec<Done>) -> BatchAnswer {
        let result = |((operation, _), done): (&(Operation, Option<u64>), Done)| BatchResult {
            key: BytesText::from(&operation.key),
            existed: done.existed,
            number: done.now.and_then(|now| now.number),
            bytes: done.now.map(|now| now.bytes as u64),
            expires_ms: done.now.and_then(|now| now.expires_ms),
            former: done.former.map(|row| {
                for_client(ScannedRow {
                    key: operation.key.clone(),
                    value: Some(row.value),
                    version: row.version,
                    expires_ms: row.expires_ms,
                })
            }),
        };
        let results = self.operations.iter().zip(results).map(result).collect();
        BatchAnswer { version: version_text(version), results }
    }

    /// Which operation it is, before what is said of it.
    pub(crate) fn operation_name(&self, at: usize) -> String {
        let key = self.operations.get(at).map_or(Key::empty(), |(operation, _)| operation.key.clone());
        format!("operation {at}, key '{key}': ")
    }

    /// The keys of the operations.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.operations.iter().map(|(operation, _)| &operation.key)
    }

    /// The request by which another node is asked to do the batch.
    fn form(&self) -> BatchRequest {
        BatchRequest { operations: self.operations.iter().map(form).collect() }
    }
}

#[async_trait]
impl Question for Batch {
    /// The key by which the shard is found.
    type Item = Key;
    type Answer = Outcome;

    fn path(&self) -> String {
        "batch?here=true".to_owned()
    }

    fn key<'a>(&self, item: &'a Key) -> &'a Key {
        item
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

    async fn own(&self, client: &TableClient, _: Vec<Key>) -> Vec<Result<Outcome, Refused>> {
        vec![client.write_own(&self.table, self.write()).await]
    }

    fn body(&self, _: &[Key]) -> Vec<u8> {
        // Strings and numbers can always be written.
        let written = || serde_json::to_vec(&self.form()).unwrap_or_default();
        self.body.as_ref().map_or_else(written, |body| body.to_vec())
    }

    fn understand(&self, body: &[u8]) -> Option<Vec<Result<Outcome, Refused>>> {
        values::decode_answered(body).ok().map(|answered| vec![Ok(answered.outcome)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(text: &str) -> Result<Batch, String> {
        let request = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let body = Bytes::copy_from_slice(text.as_bytes());
        let table = KeyspaceName::new("stock").unwrap();
        Batch::new(table, Some(b"x".to_vec()), body, request).map_err(|error| error.to_string())
    }

    #[test]
    fn each_operation_is_what_it_says() {
        let text = r#"{"operations":[
            {"operation":"put","key":"a","value":{"base64":"/w=="},"ttl_ms":5,"if_absent":true},
            {"operation":"put","key":{"hex":"ff"},"json":{"n": 1.0}},
            {"operation":"append","key":"a","value":"x","if_version":"*"},
            {"operation":"add","key":"n","by":-3},
            {"operation":"expire","key":"a"},
            {"operation":"read","key":"b","if_version":"3-17"},
            {"operation":"delete","key":"a","want_former":true}]}"#;
        let batch = batch_of(text).unwrap();
        let operations = batch.write().operations;
        let actions: Vec<&Action> = operations.iter().map(|one| &one.action).collect();
        let bytes = |bytes: &[u8]| Value::from(bytes);
        assert_eq!(
            actions,
            [
                &Action::Put(bytes(b"\xff"), Expiry::After(5)),
                &Action::Put(bytes(br#"{"n": 1.0}"#), Expiry::Never),
                &Action::Append(bytes(b"x")),
                &Action::Add(-3),
                &Action::Expire(Expiry::Never),
                &Action::Read,
                &Action::Delete,
            ]
        );
        let conditions: Vec<Condition> = operations.iter().map(|one| one.condition).collect();
        assert_eq!(conditions[..3], [Condition::Absent, Condition::Always, Condition::Present]);
        assert_eq!(conditions[5], Condition::Version(version("3-17").unwrap()));
        let name = |text: &str| batch_of(text).unwrap().request().unwrap();
        assert_eq!(name(text), name(&text.replace('\n', " ")), "it is the same however it is written");
        assert_ne!(name(text).fingerprint, name(&text.replace(":5,", ":6,")).fingerprint);
        assert!(operations[6].wants_former && operations[1].key.as_bytes() == b"\xff");
        let anew = Batch::of(batch.table.clone(), batch.name.clone(), batch.operations.clone());
        let sent_on = batch_of(std::str::from_utf8(&anew.body(&[])).unwrap()).unwrap();
        assert_eq!(
            sent_on.operations, batch.operations,
            "what is written for another node is read as it was"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_operation() {
        for (bad, named) in [
            (r#"{"operation":"put","key":"a"}"#, "value is missing"),
            (r#"{"operation":"put","key":"a","value":"1","json":1}"#, "both"),
            (r#"{"operation":"delete","key":"a","value":"1"}"#, "value is not for"),
            (r#"{"operation":"add","key":"a"}"#, "by is missing"),
            (r#"{"operation":"read","key":"a","ttl_ms":1}"#, "ttl_ms"),
            (r#"{"operation":"read","key":"a","if_version":"3"}"#, "if_version"),
            (r#"{"operation":"read","key":"a","if_version":"*","if_absent":true}"#, "contradict"),
            (r#"{"operation":"read","key":{"base64":"?"}}"#, "base64"),
        ] {
            let fine = r#"{"operation":"delete","key":"a"}"#;
            let why = batch_of(&format!(r#"{{"operations":[{fine},{bad}]}}"#)).unwrap_err();
            assert!(why.starts_with("operation 1: ") && why.contains(named), "{bad}: {why}");
        }
        let many = vec![r#"{"operation":"read","key":"a"}"#; 33].join(",");
        assert!(batch_of(&format!(r#"{{"operations":[{many}]}}"#)).unwrap_err().contains("32"));
        let none = batch_of(r#"{"operations":[]}"#).unwrap().check(PartitionKey::Whole).unwrap_err();
        assert!(none.to_string().contains("no operation"), "{none}");
        let two = r#"{"operations":[{"operation":"delete","key":"a"},{"operation":"delete","key":"b"}]}"#;
        let why = batch_of(two).unwrap().check(PartitionKey::Whole).unwrap_err().to_string();
        assert!(why.contains("'a'") && why.contains("'b'"), "{why}");
    }
}
