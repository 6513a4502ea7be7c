//! Requests for any key of any table, from inside a node: carried out here where this node has the key, else sent on to the node
//! that has it.
//!
//! The listener of the Redis protocol asks so, and gRPC for single rows. What is sent on takes the same way as the requests of
//! HTTP clients, over the worker's layer ([`Sharded`]), which finds the node and follows the maps, and tries once.
//!
//! Whether there is another try is decided here, as a try may also be one at this node. What was not begun is tried again for
//! [`PATIENCE`]. A write that may have been carried out is tried again only if it has a request id, by which a shard knows it
//! again: no try begins after [`REPEATS`], and each takes from the budget of the node (`retry_budget.rs`). Commands of Redis have
//! no id, so none of them is sent twice.

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
    elsewhere: ShardedService<Router>,
    budget: RetryBudget,
}

impl fmt::Debug for TableClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableClient").field("node", self.worker.node()).finish_non_exhaustive()
    }
}

/// What is known of a write while it is tried.
#[derive(Debug)]
struct Repetition {
    has_id: bool,
    /// That an earlier attempt may have carried it out.
    unknown: Option<Refused>,
}

impl Repetition {
    fn of(write: &Write) -> Repetition {
        Repetition { has_id: write.request.is_some(), unknown: None }
    }

    fn patience(&self) -> Duration {
        if self.has_id { REPEATS } else { PATIENCE }
    }

    /// Takes in what an attempt was refused with; an error is what the client is told, as there is no other attempt. That an
    /// earlier attempt may have carried the write out is not forgotten: only an outcome says more.
    fn again_after(&mut self, refused: Refused, is_late: bool) -> Result<(), Refused> {
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

    /// What the client is told if there is no other attempt after one that may have carried the write out.
    fn given_up(self) -> Refused {
        let what = "the write may have been carried out";
        self.unknown.unwrap_or_else(|| Refused::new(Refusal::Unknown, what))
    }
}

/// What one attempt has come to.
enum Attempt<T> {
    Done(Result<T, Refused>),
    /// Nothing was done, and soon it may be otherwise.
    Again(Refused),
}

impl TableClient {
    /// A client that reads and writes at the node of `worker`.
    pub fn new(worker: &Worker, tables: &Tables) -> TableClient {
        let elsewhere = Sharded::new(worker, http::aim).layer(http::of_keys(tables.clone()));
        let budget = RetryBudget::new(BudgetPolicy::default());
        TableClient { worker: worker.clone(), tables: tables.clone(), elsewhere, budget }
    }

    /// What writes that may have been carried out take from when they are sent again.
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

    /// The same, unless `elsewhere` says that this node is not to ask on for a key that it does not serve.
    ///
    /// # Errors
    /// As of [`TableClient::write`], and what `elsewhere` says.
    pub(crate) async fn write_or<E: From<Refused>>(
        &self,
        table: &KeyspaceName,
        write: Write,
        elsewhere: impl Fn(&Key) -> Option<E>,
    ) -> Result<Outcome, E> {
        let Some(key) = write.operations.first().map(|operation| operation.key.clone()) else {
            return Err(empty().into());
        };
        let mut repetition = Repetition::of(&write);
        let (until, backoff) = (Instant::now() + repetition.patience(), Backoff::new());
        self.budget.earn(1);
        loop {
            let attempt = match self.worker.enter(table, key.as_bytes(), Access::Write) {
                Admission::Serve(guard) => self.write_here(&guard, &write).await,
                Admission::Soon => again("the shard is being handed over to this node"),
                Admission::Lapsed | Admission::Elsewhere { .. } | Admission::Unknown { .. } => {
                    match elsewhere(&key) {
                        Some(why) => return Err(repetition.unknown.map_or(why, E::from)),
                        None => self.write_elsewhere(table, &key, &write).await,
                    }
                }
            };
            let refused = match attempt {
                Attempt::Done(Ok(outcome)) => return Ok(outcome),
                Attempt::Done(Err(refused)) | Attempt::Again(refused) => refused,
            };
            let is_begun = refused.refusal == Refusal::Unknown;
            repetition.again_after(refused, Instant::now() >= until)?;
            sleep(backoff.delay()).await;
            if is_begun && !self.budget.spend_before(until).await {
                return Err(repetition.given_up().into());
            }
        }
    }

    async fn write_here(&self, guard: &Guard, write: &Write) -> Attempt<Outcome> {
        tokio::select! {
            biased;
            outcome = self.tables.write(&guard.permit().replica, write) => settled(outcome),
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

    /// The same, unless `elsewhere` says that this node is not to ask on for a key that it does not serve.
    ///
    /// # Errors
    /// As of [`TableClient::read`], and what `elsewhere` says.
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

    /// Begins to read the row of a key: reads it, if it is at hand; else says how the read was admitted, by which
    /// [`TableClient::read_admitted`] goes on.
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
                    settled(self.tables.read(&guard.permit().replica, key, consistency, at_least).await)
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
                // The node that was asked has gone: a read has done nothing.
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

    /// Sends a request on, and understands the answer.
    async fn ask<T>(
        &self,
        request: Request<Body>,
        understand: impl FnOnce(&::http::HeaderMap, Bytes) -> Option<T>,
    ) -> Attempt<T> {
        let unknown = |what: &str| Attempt::Done(Err(Refused::new(Refusal::Unknown, what)));
        let Ok(response) = self.elsewhere.clone().oneshot(request).await;
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
        settled(Err(Refused::new(refusal, error.message)))
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

/// A shard that changes hands is asked again; everything else is an answer.
fn settled<T>(answer: Result<T, Refused>) -> Attempt<T> {
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
        let mut repetition = Repetition { has_id: false, unknown: None };
        assert_eq!(repetition.patience(), PATIENCE);
        assert_eq!(repetition.again_after(refused(Refusal::Soon, "not begun"), false), Ok(()));
        let unknown = refused(Refusal::Unknown, "broken");
        assert_eq!(repetition.again_after(unknown.clone(), false), Err(unknown));
    }

    #[test]
    fn a_write_with_an_id_is_tried_until_an_outcome_comes_or_the_time_is_up() {
        let unknown = refused(Refusal::Unknown, "broken");
        for last in [Refusal::Soon, Refusal::Unknown, Refusal::NoRoom, Refusal::TooFewInSync] {
            let mut repetition = Repetition { has_id: true, unknown: None };
            assert_eq!(repetition.patience(), REPEATS);
            assert_eq!(repetition.again_after(unknown.clone(), false), Ok(()));
            assert_eq!(repetition.again_after(refused(Refusal::Soon, "not begun"), false), Ok(()));
            let told = repetition.again_after(refused(last, "at last"), true);
            assert_eq!(told, Err(unknown.clone()), "the first attempt may have done it: {last:?}");
        }
        let mut repetition = Repetition { has_id: true, unknown: None };
        let soon = refused(Refusal::Soon, "not begun");
        assert_eq!(repetition.again_after(soon.clone(), true), Err(soon), "nothing was done");
        let full = refused(Refusal::NoRoom, "full");
        assert_eq!(repetition.again_after(full.clone(), false), Err(full));
    }
}
