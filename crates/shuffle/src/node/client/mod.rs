//! A client in the process of a node: it starts shuffles, writes attempts, seals, reads and deletes.
//!
//! ```text
//! start ─► open ─► put … put ─► end       for each input partition, again under a new attempt if it fails
//!          seal ─► plan ─► read 0 of n … n − 1 of n
//!          delete
//! ```
//!
//! Calls block. What has no answer, as a leader is being replaced, is asked again until the time of a request is over.

mod put;
mod read;

pub use put::{Put, PutError};
pub use read::{ReadError, Reading};
pub(crate) use read::{Step, Steps, Wanted};

use super::inbox::{Closed, Event};
use super::shared::Shared;
use crate::limits;
use partage_core::base::time::Millis;
use partage_service::shuffle::buffer::Attempt;
use partage_service::shuffle::leader::{Answer, Failed, QuotaUsedUp, Request};
use partage_service::shuffle::message::Word;
use partage_service::shuffle::options::{BadShuffleOptions, OptionDifference};
use partage_service::shuffle::partition::CutBy;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::{AttemptId, Bytes, Ended, Failure, ShuffleId, ShuffleOptions, Terms};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The node has ended.
    #[error("the node has ended: ask another one")]
    Stopped,
    /// No leader has answered.
    #[error("no leader has answered within {0} ms: try again when the nodes of the shuffle are there")]
    NoAnswer(u64),
    /// There is no shuffle any more.
    #[error("{0}")]
    Over(Ended),
    /// It has failed.
    #[error("the shuffle has failed: {0}")]
    Failed(Failure),
    /// It is not sealed.
    #[error("the shuffle is not sealed: seal it before it is read")]
    NotSealed,
    /// It is sealed, or is being sealed, without this input partition.
    #[error(
        "the shuffle is sealed, or is being sealed, without input partition {0}: seal it with the partitions of its first seal"
    )]
    NotExpected(u32),
    /// It is not started with such options.
    #[error("{0}")]
    BadOptions(#[from] BadShuffleOptions),
    /// A shuffle with its number was started with other options.
    #[error("a shuffle with this number was started with another {0}: start this one under another number")]
    StartDiffers(OptionDifference),
    /// Its owner has as much as it may have.
    #[error("the shuffle is not started: {0}")]
    QuotaUsedUp(QuotaUsedUp),
}

impl From<Closed> for ClientError {
    fn from(_: Closed) -> ClientError {
        ClientError::Stopped
    }
}

/// A shuffle, as its clients know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    /// Its number.
    pub id: ShuffleId,
    /// What it was started with: those who write need the same.
    pub terms: Terms,
}

/// The answer to a seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealed {
    /// It is sealed, and read by this.
    Plan(Arc<Plan>),
    /// It is not sealed: these input partitions lack a whole attempt.
    Lacks(Vec<u32>),
}

/// A client of a node. A copy is a client of the same one.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>) -> Client {
        Client { shared }
    }

    /// Starts a shuffle under a number that was never used.
    ///
    /// # Errors
    /// The node has ended, or no leader answers.
    pub fn start(&self, terms: Terms) -> Result<Shuffle, ClientError> {
        self.start_with(terms, ShuffleOptions::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// The options are not within their limits, the node has ended, or no leader answers.
    pub fn start_with(&self, terms: Terms, options: ShuffleOptions) -> Result<Shuffle, ClientError> {
        options.check()?;
        options.check_combine(terms.combine)?;
        let id = ShuffleId(u128::from_be_bytes(partage_random::bytes()));
        match self.request(id, &Request::Start(terms, options))? {
            Answer::Started(terms) => Ok(Shuffle { id, terms }),
            _ => Err(ClientError::Over(Ended::Unknown)),
        }
    }

    /// Opens an attempt of an input partition at the buffer of this node.
    ///
    /// # Errors
    /// The node has ended. What else may be wrong with the attempt, [`Put::put`] and [`Put::end`] say.
    pub fn open(&self, shuffle: Shuffle, partition: u32) -> Result<Put, ClientError> {
        let id = AttemptId(u128::from_be_bytes(partage_random::bytes()));
        Ok(Put::open(
            Arc::clone(&self.shared),
            Attempt { shuffle: shuffle.id, partition, id },
            shuffle.terms,
        )?)
    }

    /// Seals a shuffle, if each of these input partitions has a whole attempt; else the answer lists those that lack one. A
    /// sealed shuffle answers with its plan.
    ///
    /// # Errors
    /// There is no such shuffle, it has failed, it was or is being sealed without one of these partitions, or no leader answers.
    pub fn seal(&self, shuffle: ShuffleId, partitions: BTreeSet<u32>) -> Result<Sealed, ClientError> {
        match self.request(shuffle, &Request::Seal(partitions))? {
            Answer::Sealed(plan) => Ok(Sealed::Plan(plan)),
            Answer::Lacks(partitions) => Ok(Sealed::Lacks(partitions)),
            _ => Err(ClientError::NotSealed),
        }
    }

    /// Deletes a shuffle. One that was deleted before is deleted.
    ///
    /// # Errors
    /// There was no such shuffle, or no leader answers.
    pub fn delete(&self, shuffle: ShuffleId) -> Result<(), ClientError> {
        match self.request(shuffle, &Request::Delete) {
            Ok(_) | Err(ClientError::Over(Ended::Deleted)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A shuffle is in use, and lives on.
    ///
    /// # Errors
    /// There is no such shuffle, or no leader answers.
    pub fn keep_alive(&self, shuffle: ShuffleId) -> Result<(), ClientError> {
        self.request(shuffle, &Request::KeepAlive).map(drop)
    }

    /// The state of a shuffle: of a sealed one this node knows it, of others the leader.
    ///
    /// # Errors
    /// The node has ended, or no leader answers.
    pub fn status(&self, shuffle: ShuffleId) -> Result<Word, ClientError> {
        let begun = self.now();
        loop {
            let (sender, answer) = sync_channel::<Word>(1);
            self.shared.inbox.push(Event::Status(shuffle, sender.into()))?;
            match answer.recv_timeout(self.patience()) {
                Ok(word) => return Ok(word),
                Err(_) => self.rest(begun)?,
            }
        }
    }

    /// The plan of a sealed shuffle.
    ///
    /// # Errors
    /// It is not sealed, there is no such shuffle, or no leader answers.
    pub fn plan(&self, shuffle: ShuffleId) -> Result<Arc<Plan>, ClientError> {
        match self.status(shuffle)? {
            Word::Sealed(plan) => Ok(plan),
            Word::Open(..) => Err(ClientError::NotSealed),
            Word::Failed(failure) => Err(ClientError::Failed(failure)),
            Word::Ended(how) => Err(ClientError::Over(how)),
        }
    }

    /// Reads partition `i` of `n`: the ranks ⌊i·N/n⌋ to ⌊(i+1)·N/n⌋ of all N records, in their order.
    pub fn read(&self, plan: &Arc<Plan>, i: u64, n: u64) -> Reading {
        self.read_by(plan, i, n, CutBy::Records)
    }

    /// Reads partition `i` of `n`, cut by records, by bytes or between keys.
    pub fn read_by(&self, plan: &Arc<Plan>, i: u64, n: u64, by: CutBy) -> Reading {
        Reading::new(Arc::clone(&self.shared), plan, Wanted::Partition(i, n, by))
    }

    /// Reads the keys from `first`, included, to `end`, or to the last one.
    pub fn read_keys(&self, plan: &Arc<Plan>, first: Bytes, end: Option<Bytes>) -> Reading {
        Reading::new(Arc::clone(&self.shared), plan, Wanted::Keys(first, end))
    }

    fn request(&self, shuffle: ShuffleId, request: &Request) -> Result<Answer, ClientError> {
        let begun = self.now();
        loop {
            let (sender, answer) = sync_channel::<Result<Answer, Failed>>(1);
            self.shared.inbox.push(Event::Request(shuffle, request.clone(), sender.into()))?;
            match answer.recv_timeout(self.patience()) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Failed::Over(how))) => return Err(ClientError::Over(how)),
                Ok(Err(Failed::Failed(failure))) => return Err(ClientError::Failed(failure)),
                Ok(Err(Failed::NotExpected(partition))) => return Err(ClientError::NotExpected(partition)),
                Ok(Err(Failed::StartDiffers(difference))) => {
                    return Err(ClientError::StartDiffers(difference));
                }
                Ok(Err(Failed::QuotaUsedUp(why))) => return Err(ClientError::QuotaUsedUp(why)),
                Ok(Err(Failed::NotLeading)) | Err(_) => self.rest(begun)?,
            }
        }
    }

    /// After so long a question is asked again.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.shared.settings.question_ms / 2)
    }

    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    /// Waits before the next try, unless the time of the request is over.
    fn rest(&self, begun: Millis) -> Result<(), ClientError> {
        let most = self.shared.settings.request_ms;
        if self.now().since(begun) >= most {
            return Err(ClientError::NoAnswer(most));
        }
        Ok(self.shared.inbox.pause(Duration::from_millis(limits::REQUEST_REST_MS))?)
    }
}
