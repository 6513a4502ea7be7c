//! One connection of a client: it takes calls in their order, and answers as soon as it can.
//!
//! | call | the connection is read meanwhile |
//! |---|---|
//! | open, abort | no: they cost nothing |
//! | records | no: until the buffer has taken them, which holds the client back |
//! | end of an attempt, and all that leaders and holders are asked for | yes, up to [`CALLS_AT_ONCE`] at a time |
//!
//! A client that goes leaves nothing: what is asked for it is given up, and so are its attempts.

use super::attempt::OpenAttempt;
use super::calls::{Asks, check_terms};
use crate::limits::{ATTEMPTS_OF_CLIENT, CALLS_AT_ONCE};
use crate::node::shared::Shared;
use partage_core::base::name::NodeId;
use partage_service::shuffle::buffer::{Attempt, Failed};
use partage_service::shuffle::{ShuffleId, Terms};
use partage_shuffle_wire::client::{Again, Answer, Call, Refusal, RefusalWord, Request};
use partage_shuffle_wire::records::PackedRecords;
use partage_shuffle_wire::transport::{Answers, Calls, Closed};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// What one client has open.
pub(super) struct Session {
    shared: Arc<Shared>,
    asks: Asks,
    answers: Answers,
    /// By the numbers of the calls that opened them.
    attempts: BTreeMap<u64, OpenAttempt>,
    tasks: JoinSet<()>,
}

/// The refusal as an answer, which is counted.
fn refused(shared: &Shared, refusal: Refusal) -> Answer {
    shared.counters.refused(refusal.word.as_str());
    Answer::Refused(refusal)
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, own: NodeId, answers: Answers) -> Session {
        let asks = Asks::new(Arc::clone(&shared), own);
        Session { shared, asks, answers, attempts: BTreeMap::new(), tasks: JoinSet::new() }
    }

    /// Runs until the client is gone.
    pub(super) async fn run(mut self, calls: &mut Calls<'_>) {
        while let Some(call) = calls.next().await {
            // A client that takes no answers is let go.
            if self.take(call).await.is_err() {
                return;
            }
        }
    }

    async fn take(&mut self, call: Call<Request>) -> Result<(), Closed> {
        let Call { number, shuffle, what } = call;
        match what {
            Request::Open(partition, id, terms) => {
                let answer = self.open(number, Attempt { shuffle, partition, id }, terms).await;
                self.answer(number, shuffle, answer).await
            }
            Request::Records(frame, records) => {
                let answer = self.records(number, shuffle, frame, records).await;
                self.answer(number, shuffle, answer).await
            }
            Request::Abort => {
                self.attempts.remove(&number);
                Ok(())
            }
            Request::End(records, bytes) => {
                let Some(attempt) = self.attempts.remove(&number) else {
                    return self.answer(number, shuffle, Err(Failed::Unknown.into())).await;
                };
                self.wait_for_room().await;
                let (answers, shared) = (self.answers.clone(), Arc::clone(&self.shared));
                self.tasks.spawn(async move {
                    let what = match attempt.end(records, bytes).await {
                        Ok(()) => Answer::Whole,
                        Err(refusal) => refused(&shared, refusal),
                    };
                    // A client that is gone needs no answer.
                    let _ = answers.send(&Call { number, shuffle, what }).await;
                });
                Ok(())
            }
            what => {
                self.wait_for_room().await;
                let (asks, answers) = (self.asks.clone(), self.answers.clone());
                self.tasks.spawn(async move {
                    let _ = asks.answer(Call { number, shuffle, what }, &answers).await;
                });
                Ok(())
            }
        }
    }

    async fn open(&mut self, number: u64, attempt: Attempt, terms: Terms) -> Result<Answer, Refusal> {
        if self.attempts.contains_key(&number) {
            let why = format!("call {number} has an attempt: number the calls of a connection");
            return Err(Refusal::new(RefusalWord::BadFrame, Again::No, why));
        }
        if self.attempts.len() >= ATTEMPTS_OF_CLIENT {
            let why = format!("a connection has {ATTEMPTS_OF_CLIENT} attempts at most: open another one");
            return Err(Refusal::new(RefusalWord::Busy, Again::Attempt, why));
        }
        check_terms(terms)?;
        self.attempts.insert(number, OpenAttempt::open(Arc::clone(&self.shared), attempt, terms).await?);
        Ok(Answer::Opened)
    }

    async fn records(
        &mut self,
        number: u64,
        shuffle: ShuffleId,
        frame: u64,
        records: PackedRecords,
    ) -> Result<Answer, Refusal> {
        let of_call = self.attempts.get_mut(&number).filter(|attempt| attempt.shuffle() == shuffle);
        let attempt = of_call.ok_or_else(|| Refusal::from(Failed::Unknown))?;
        let taken = attempt.put(frame, records).await;
        if taken.is_err() {
            self.attempts.remove(&number);
        }
        taken.map(|()| Answer::Taken(frame))
    }

    async fn answer(
        &self,
        number: u64,
        shuffle: ShuffleId,
        answer: Result<Answer, Refusal>,
    ) -> Result<(), Closed> {
        let what = answer.unwrap_or_else(|refusal| refused(&self.shared, refusal));
        self.answers.send(&Call { number, shuffle, what }).await
    }

    /// Waits while as many calls are answered as may be.
    async fn wait_for_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() >= CALLS_AT_ONCE {
            self.tasks.join_next().await;
        }
    }
}
