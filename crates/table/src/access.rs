//! Requests for any key of any table, from inside a node: carried out here where this node has the key, else forwarded to the
//! node that has it.
//!
//! The listener of the Redis protocol uses this client, and gRPC for single rows. A forwarded request takes the way of requests
//! of HTTP clients, over the worker's layer ([`Sharded`]), which finds the node by the maps, and tries once.
//!
//! The client decides on retries, as a try may also be one at this node. It retries a request that was not begun for
//! [`PATIENCE`]. It retries a write that may have been carried out only if the write has a request id, by which the shard
//! recognizes it: no try begins after [`REPEATS`], and each takes from the budget of the node (`retry_budget.rs`). Commands of
//! Redis have no id, so none of them is sent twice.

use crate::backoff::Backoff;
use crate::http::{self, Internal};
use crate::limits::{PATIENCE, REPEATS};
use crate::node::ReadAnswer;
use crate::retry_budget::RetryBudget;
use crate::service::{Refusal, Refused, Tables};
use ::http::{Request, StatusCode};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_core::limits::BATCH_BYTES;
use partage_core::routing::budget::BudgetPolicy;
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Outcome, Write};
use partage_wire::json::ErrorBody;
use partage_worker::http::{Sharded, ShardedService};
use partage_worker::{Admission, Guard, KeyspaceName, Worker};
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};

/// Bytes of an answer of another node beyond those of a batch: outcomes, and what is around values.
const ANSWER_BYTES: usize = 2 * BATCH_BYTES;

/// Asks for keys of tables. Cheap to clone.
#[derive(Clone)]
pub struct TableClient {
    worker: Worker,
    tables: Tables,
    forwarder: ShardedService<Router>,
    budget: RetryBudget,
}

impl fmt::Debug for TableClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableClient").field("node", self.worker.node()).finish_non_exhaustive()
    }
}

/// The tries of one write.
#[derive(Debug)]
struct WriteRetries {
    has_id: bool,
    /// The refusal of an earlier attempt that may have carried it out.
    unknown: Option<Refused>,
}

impl WriteRetries {
    fn of(write: &Write) -> WriteRetries {
        WriteRetries { has_id: write.request.is_some(), unknown: None }
    }

    fn patience(&self) -> Duration {
        if self.has_id { REPEATS } else { PATIENCE }
    }

    /// Whether to try again after that refusal. If not, the error is for the client: the first unknown outcome, if there was one,
    /// since later refusals do not settle it.
    fn check_retry(&mut self, refused: Refused, is_late: bool) -> Result<(), Refused> {
        let goes_on = match refused.refusal {
            Refusal::Soon => true,
            Refusal::Unknown => self.has_id,
            _ => false,
        };
        if self.unknown.is_none() && refused.refusal == Refusal::Unknown {
            self.unknown = Some(refused.clone());
        }
        if goes_on && !is_late { Ok(()) } else { Err(self.unknown.take().unwrap_or(refused)) }
    }

    /// The error for the client if there is no further attempt after an unknown outcome.
    fn given_up(self) -> Refused {
        let what = "the write may have been carried out";
        self.unknown.unwrap_or_else(|| Refused::new(Refusal::Unknown, what))
    }
}

/// The result of one attempt.
enum Attempt<T> {
    Done(Result<T, Refused>),
    /// Nothing was done, and another attempt may soon succeed.
    Again(Refused),
}

impl TableClient {
    /// A client that reads and writes at the node of `worker`.
    pub fn new(worker: &Worker, tables: &Tables) -> TableClient {
        let forwarder = Sharded::new(worker, http::aim).layer(http::of_keys(tables.clone()));
        let budget = RetryBudget::new(BudgetPolicy::default());
        TableClient { worker: worker.clone(), tables: tables.clone(), forwarder, budget }
    }

    /// The budget for retries of writes that may have been carried out.
    pub(crate) fn budget(&self) -> &RetryBudget {
        &self.budget
    }

    /// The worker of the node.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The replicas of the node.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Carries out a write, whose keys are of one partition.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], or a refusal by which nothing was done.
    pub async fn write(&self, table: &KeyspaceName, write: Write) -> Result<Outcome, Refused> {
        self.write_or(table, write, |_| None).await
    }

    /// The same, unless `elsewhere` has an error for a key that this node does not serve: then it forwards nothing.
    ///
    /// # Errors
    /// As of [`TableClient::write`], and that of `elsewhere`.
    pub(crate) async fn write_or<E: From<Refused>>(
        &self,
        table: &KeyspaceName,
        write: Write,
        elsewhere: impl Fn(&Key) -> Option<E>,
    ) -> Result<Outcome, E> {
        let Some(key) = write.operations.first().map(|operation| operation.key.clone()) else {
            return Err(empty().into());
        };
        let mut retries = WriteRetries::of(&write);
        let (until, backoff) = (Instant::now() + retries.patience(), Backoff::new());
        self.budget.earn(1);
        loop {
            let attempt = match self.worker.enter(table, key.as_bytes(), Access::Write) {
                Admission::Serve(guard) => self.write_here(&guard, &write).await,
                Admission::Soon => again("the shard is being handed over to this node"),
                Admission::Lapsed | Admission::Elsewhere { .. } | Admission::Unknown { .. } => {
                    match elsewhere(&key) {
                        Some(why) => return Err(retries.unknown.map_or(why, E::from)),
                        None => self.write_elsewhere(table, &key, &write).await,
                    }
                }
            };
            let refused = match attempt {
                Attempt::Done(Ok(outcome)) => return Ok(outcome),
                Attempt::Done(Err(refused)) | Attempt::Again(refused) => refused,
            };
            let is_begun = refused.refusal == Refusal::Unknown;
            retries.check_retry(refused, Instant::now() >= until)?;
            sleep(backoff.delay()).await;
            if is_begun && !self.budget.spend_before(until).await {
                return Err(retries.given_up().into());
            }
        }
    }

    async fn write_here(&self, guard: &Guard, write: &Write) -> Attempt<Outcome> {
        tokio::select! {
            biased;
            outcome = self.tables.write(&guard.permit().replica, write) => attempt_of(outcome),
            () = guard.cancelled() => {
                let what = "the shard had to be handed over before the write was done";
                Attempt::Done(Err(Refused::new(Refusal::Unknown, what)))
            }
        }
    }

    async fn write_elsewhere(&self, table: &KeyspaceName, key: &Key, write: &Write) -> Attempt<Outcome> {
        let request = Internal::write(table, key, write);
        self.ask(request, |_, body| Internal::outcome(&body)).await
    }

    /// Reads the row of a key.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub async fn read(
        &self,
        table: &KeyspaceName,
        key: &Key,
        consistency: Consistency,
    ) -> Result<ReadAnswer, Refused> {
        self.read_at_least(table, key, consistency, 0).await
    }

    /// The same, of a state that has all entries of the shard's log up to the index `at_least`.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub async fn read_at_least(
        &self,
        table: &KeyspaceName,
        key: &Key,
        consistency: Consistency,
        at_least: u64,
    ) -> Result<ReadAnswer, Refused> {
        self.read_or(table, key, consistency, at_least, |_| None).await
    }

    /// The same, unless `elsewhere` has an error for a key that this node does not serve: then it forwards nothing.
    ///
    /// # Errors
    /// As of [`TableClient::read`], and that of `elsewhere`.
    pub(crate) async fn read_or<E: From<Refused>>(
        &self,
        table: &KeyspaceName,
        key: &Key,
        consistency: Consistency,
        at_least: u64,
        elsewhere: impl Fn(&Key) -> Option<E>,
    ) -> Result<ReadAnswer, E> {
        let admission = self.admit_read(table, key, consistency);
        self.read_admitted(admission, (table, key), consistency, at_least, elsewhere).await
    }

    fn admit_read(&self, table: &KeyspaceName, key: &Key, consistency: Consistency) -> Admission {
        self.worker.enter(table, key.as_bytes(), access_of(consistency))
    }

    /// Reads the row of a key if it is in memory here; else returns the admission for [`TableClient::read_admitted`].
    pub(crate) fn begin_read(
        &self,
        table: &KeyspaceName,
        key: &Key,
        consistency: Consistency,
    ) -> Result<ReadAnswer, Admission> {
        match self.admit_read(table, key, consistency) {
            Admission::Serve(guard) => {
                let found = self.tables.read_at_hand(&guard.permit().replica, key, consistency);
                found.ok_or(Admission::Serve(guard))
            }
            other => Err(other),
        }
    }

    /// As [`TableClient::read_or`], of a read that was admitted so.
    pub(crate) async fn read_admitted<E: From<Refused>>(
        &self,
        mut admission: Admission,
        (table, key): (&KeyspaceName, &Key),
        consistency: Consistency,
        at_least: u64,
        elsewhere: impl Fn(&Key) -> Option<E>,
    ) -> Result<ReadAnswer, E> {
        let (until, backoff) = (Instant::now() + PATIENCE, Backoff::new());
        loop {
            let attempt = match admission {
                Admission::Serve(guard) => {
                    attempt_of(self.tables.read(&guard.permit().replica, key, consistency, at_least).await)
                }
                Admission::Soon => again("the shard is being handed over to this node"),
                Admission::Lapsed | Admission::Elsewhere { .. } | Admission::Unknown { .. } => {
                    match elsewhere(key) {
                        Some(why) => return Err(why),
                        None => {
                            let request = Internal::read(table, key, consistency, at_least);
                            self.ask(request, Internal::found).await
                        }
                    }
                }
            };
            let refused = match attempt {
                Attempt::Again(refused) => refused,
                // The other node has gone: a read has done nothing.
                Attempt::Done(Err(Refused { refusal: Refusal::Unknown, message })) => {
                    Refused::new(Refusal::Soon, message)
                }
                Attempt::Done(answer) => return Ok(answer?),
            };
            if Instant::now() >= until {
                return Err(refused.into());
            }
            sleep(backoff.delay()).await;
            admission = self.admit_read(table, key, consistency);
        }
    }

    /// Reads a row of which this node has a replica.
    ///
    /// # Errors
    /// [`Refusal::Soon`] also where it has none.
    pub(crate) async fn read_own(
        &self,
        table: &KeyspaceName,
        key: &Key,
        consistency: Consistency,
    ) -> Result<ReadAnswer, Refused> {
        match self.admit_read(table, key, consistency) {
            Admission::Serve(guard) => self.tables.read(&guard.permit().replica, key, consistency, 0).await,
            _ => Err(self.not_here()),
        }
    }

    /// Carries out a write to a shard that this node leads.
    ///
    /// # Errors
    /// [`Refusal::Soon`] also where it does not.
    pub(crate) async fn write_own(&self, table: &KeyspaceName, write: Write) -> Result<Outcome, Refused> {
        let Some(first) = write.operations.first() else { return Err(empty()) };
        match self.worker.enter(table, first.key.as_bytes(), Access::Write) {
            Admission::Serve(guard) => match self.write_here(&guard, &write).await {
                Attempt::Done(outcome) => outcome,
                Attempt::Again(refused) => Err(refused),
            },
            _ => Err(self.not_here()),
        }
    }

    fn not_here(&self) -> Refused {
        let message = format!("node {} does not serve the key at this moment", self.worker.node());
        Refused::new(Refusal::Soon, message)
    }

    /// Forwards a request, and parses the answer.
    async fn ask<T>(
        &self,
        request: Request<Body>,
        understand: impl FnOnce(&::http::HeaderMap, Bytes) -> Option<T>,
    ) -> Attempt<T> {
        let unknown = |what: &str| Attempt::Done(Err(Refused::new(Refusal::Unknown, what)));
        let Ok(response) = self.forwarder.clone().oneshot(request).await;
        let (parts, body) = response.into_parts();
        let Ok(body) = to_bytes(body, ANSWER_BYTES).await else {
            return unknown("the answer of the node that has the shard broke off");
        };
        let is_absent = parts.status == StatusCode::NOT_FOUND && parts.headers.contains_key(http::APPLIED);
        if parts.status.is_success() || is_absent {
            return match understand(&parts.headers, body) {
                Some(answer) => Attempt::Done(Ok(answer)),
                None => unknown("the answer of the node that has the shard is not understood"),
            };
        }
        let Ok(ErrorBody { error }) = serde_json::from_slice(&body) else {
            return unknown("the answer of the node that has the shard is not understood");
        };
        let refusal = match (parts.status, Refusal::of_word(&error.kind)) {
            (_, Some(refusal)) => refusal,
            (StatusCode::SERVICE_UNAVAILABLE, None)
                if partage_wire::request::unavailable::is_not_begun(&body) =>
            {
                Refusal::Soon
            }
            (StatusCode::MISDIRECTED_REQUEST, None) => Refusal::Soon,
            (StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE, None) => Refusal::Invalid,
            (_, None) => Refusal::Unknown,
        };
        attempt_of(Err(Refused::new(refusal, error.message)))
    }
}

/// Only the leader answers linearizable reads.
fn access_of(consistency: Consistency) -> Access {
    if consistency == Consistency::Linearizable { Access::Write } else { Access::Read }
}

fn empty() -> Refused {
    Refused::new(Refusal::Invalid, "the write has no operation: give one or more")
}

fn again<T>(what: &str) -> Attempt<T> {
    Attempt::Again(Refused::new(Refusal::Soon, what))
}

/// A refusal because the shard changes hands is retried; everything else is an answer.
fn attempt_of<T>(answer: Result<T, Refused>) -> Attempt<T> {
    match answer {
        Err(refused) if refused.refusal == Refusal::Soon => Attempt::Again(refused),
        answer => Attempt::Done(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(refusal: Refusal, message: &str) -> Refused {
        Refused::new(refusal, message)
    }

    #[test]
    fn a_write_without_an_id_that_may_be_done_is_not_tried_again() {
        let mut retries = WriteRetries { has_id: false, unknown: None };
        assert_eq!(retries.patience(), PATIENCE);
        assert_eq!(retries.check_retry(refused(Refusal::Soon, "not begun"), false), Ok(()));
        let unknown = refused(Refusal::Unknown, "broken");
        assert_eq!(retries.check_retry(unknown.clone(), false), Err(unknown));
    }

    #[test]
    fn a_write_with_an_id_is_tried_until_an_outcome_comes_or_the_time_is_up() {
        let unknown = refused(Refusal::Unknown, "broken");
        for last in [Refusal::Soon, Refusal::Unknown, Refusal::NoRoom, Refusal::TooFewInSync] {
            let mut retries = WriteRetries { has_id: true, unknown: None };
            assert_eq!(retries.patience(), REPEATS);
            assert_eq!(retries.check_retry(unknown.clone(), false), Ok(()));
            assert_eq!(retries.check_retry(refused(Refusal::Soon, "not begun"), false), Ok(()));
            let told = retries.check_retry(refused(last, "at last"), true);
            assert_eq!(told, Err(unknown.clone()), "the first attempt may have done it: {last:?}");
        }
        let mut retries = WriteRetries { has_id: true, unknown: None };
        let soon = refused(Refusal::Soon, "not begun");
        assert_eq!(retries.check_retry(soon.clone(), true), Err(soon), "nothing was done");
        let full = refused(Refusal::NoRoom, "full");
        assert_eq!(retries.check_retry(full.clone(), false), Err(full));
    }
}
