//! A node for tasks of its own process: what clients do over a connection, without one. Other protocols stand on it.
//!
//! ```text
//!  start ─► open ─► put … put ─► end      the task waits while the buffer has no room
//!           seal ─► partitions ─► read    records come in pieces, each when the task has taken those before
//!           bounds, overview, keep_alive, delete
//! ```
//!
//! Each call is what [`Session`](super::session::Session) does for the same call of a connection, by the same code: it waits and
//! refuses alike.

use super::attempt::OpenAttempt;
use super::calls::{Asks, check_terms, unexpected};
use crate::limits::{LOCAL_ANSWERS, START_DRAWS};
use crate::node::Node;
use crate::node::client::PutError;
use crate::node::shared::Shared;
use partage_core::base::name::NodeId;
use partage_service::shuffle::buffer::Attempt;
use partage_service::shuffle::leader::ShuffleOverview;
use partage_service::shuffle::partition::rank;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::{AttemptId, Bytes, ShuffleId, ShuffleOptions, Terms};
use partage_shuffle_wire::client::{Answer, CutBy, Refusal, RefusalWord, Request};
use partage_shuffle_wire::records::PackedRecords;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A node, for tasks of its process. A copy is the same node.
#[derive(Debug, Clone)]
pub struct LocalNode {
    shared: Arc<Shared>,
    asks: Asks,
}

/// The answer to a seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalSeal {
    /// It is sealed, with so many records and bytes of keys and values.
    Sealed(u64, u64),
    /// It is not sealed: these input partitions lack a whole attempt.
    Lacks(Vec<u32>),
}

/// What is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalRead {
    /// Partition `i` of `n`, cut so.
    Partition(u64, u64, CutBy),
    /// The keys from the first, included, to the second, or to the last one.
    Keys(Bytes, Option<Bytes>),
}

/// A partition of a sealed shuffle that is cut at ranks of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPartition {
    /// Its records.
    pub records: u64,
    /// The nodes that have what lies in its middle; the first one is asked for it by readers.
    pub holders: Vec<NodeId>,
}

impl LocalNode {
    /// Of that node, by its name.
    pub fn new(own: NodeId, node: &Node) -> LocalNode {
        let shared = node.shared();
        LocalNode { asks: Asks::new(Arc::clone(&shared), own), shared }
    }

    /// Starts a shuffle under a number that was never used. While a leader says that the owner has as much as it may have,
    /// another number is drawn, which another leader may have.
    ///
    /// # Errors
    /// Terms or options cannot be, the owner has as much as it may have, or no leader answers.
    pub async fn start(&self, terms: Terms, options: ShuffleOptions) -> Result<(ShuffleId, Terms), Refusal> {
        let mut draws = 1;
        loop {
            let id = ShuffleId(u128::from_be_bytes(partage_random::bytes()));
            match self.call(id, Request::Start(terms, options.clone())).await {
                Ok(Answer::Started(terms, _)) => return Ok((id, terms)),
                Ok(_) => return Err(unexpected()),
                Err(refusal) if refusal.word == RefusalWord::QuotaUsedUp && draws < START_DRAWS => draws += 1,
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Opens an attempt of an input partition at the buffer of this node.
    ///
    /// # Errors
    /// The terms cannot be, or the node has ended. What else may be wrong, [`LocalAttempt::put`] and [`LocalAttempt::end`] say.
    pub async fn open(
        &self,
        (shuffle, terms): (ShuffleId, Terms),
        partition: u32,
        id: AttemptId,
    ) -> Result<LocalAttempt, Refusal> {
        check_terms(terms)?;
        let attempt = Attempt { shuffle, partition, id };
        let open = OpenAttempt::open(Arc::clone(&self.shared), attempt, terms).await?;
        Ok(LocalAttempt { open, frames: 0, records: 0, bytes: 0 })
    }

    /// Seals a shuffle, if each of these input partitions has a whole attempt.
    ///
    /// # Errors
    /// There is no such shuffle, it has failed, it was sealed without one of these partitions, or no leader answers.
    pub async fn seal(&self, shuffle: ShuffleId, inputs: BTreeSet<u32>) -> Result<LocalSeal, Refusal> {
        match self.call(shuffle, Request::Seal(inputs)).await? {
            Answer::Sealed(records, bytes) => Ok(LocalSeal::Sealed(records, bytes)),
            Answer::Lacks(partitions) => Ok(LocalSeal::Lacks(partitions)),
            _ => Err(unexpected()),
        }
    }

    /// How a shuffle is, as its leader knows it, and with what it was started. Who asks this does not use it.
    ///
    /// # Errors
    /// There is no such shuffle, or no leader answers.
    pub async fn overview(&self, shuffle: ShuffleId) -> Result<ShuffleOverview, Refusal> {
        self.asks.overview(shuffle).await
    }

    /// The first key, that of each later one of `n` partitions, and the last key; none of a shuffle without records.
    ///
    /// # Errors
    /// The shuffle is not sealed, `n` is 0 or too many, or the records cannot be read.
    pub async fn bounds(&self, shuffle: ShuffleId, n: u64) -> Result<Vec<Bytes>, Refusal> {
        match self.call(shuffle, Request::Bounds(n, CutBy::Records)).await? {
            Answer::Bounds(keys) => Ok(keys),
            _ => Err(unexpected()),
        }
    }

    /// A shuffle is in use, and lives on.
    ///
    /// # Errors
    /// There is no such shuffle, or no leader answers.
    pub async fn keep_alive(&self, shuffle: ShuffleId) -> Result<(), Refusal> {
        self.call(shuffle, Request::KeepAlive).await.map(drop)
    }

    /// Deletes a shuffle. One that was deleted may be deleted again.
    ///
    /// # Errors
    /// There was no such shuffle, it has expired, or no leader answers.
    pub async fn delete(&self, shuffle: ShuffleId) -> Result<(), Refusal> {
        self.call(shuffle, Request::Delete).await.map(drop)
    }

    /// What a sealed shuffle is read by.
    ///
    /// # Errors
    /// It is not sealed, there is no such shuffle, or no leader answers.
    pub async fn plan(&self, shuffle: ShuffleId) -> Result<Arc<Plan>, Refusal> {
        self.asks.plan(shuffle).await
    }

    /// Each of `n` partitions that are cut at ranks of records, as the present map has their holders.
    pub fn partitions(&self, plan: &Plan, n: u64) -> Vec<LocalPartition> {
        let (map, total) = (self.shared.map(), plan.records());
        let holders = plan.holders_of_partitions(&map, n);
        let records = |i: u64| rank(i + 1, n, total) - rank(i, n, total);
        (0..n).map(|i| LocalPartition { records: records(i), holders: holders(i) }).collect()
    }

    /// Reads records, in their order. What is wrong, the first piece says.
    pub fn read(&self, shuffle: ShuffleId, what: LocalRead) -> LocalReading {
        let request = match what {
            LocalRead::Partition(i, n, by) => Request::ReadPartition(i, n, by),
            LocalRead::Keys(first, end) => Request::ReadKeys(first, end),
        };
        let (sender, answers) = mpsc::channel(LOCAL_ANSWERS);
        let (asks, mut task) = (self.asks.clone(), JoinSet::new());
        task.spawn(async move { asks.answer_task(shuffle, request, &sender).await });
        LocalReading { answers, task, records: 0, is_over: false }
    }

    /// A call that has one answer.
    async fn call(&self, shuffle: ShuffleId, what: Request) -> Result<Answer, Refusal> {
        let (sender, mut answers) = mpsc::channel(1);
        self.asks.answer_task(shuffle, what, &sender).await?;
        answers.try_recv().map_err(|_| unexpected())
    }
}

/// An attempt of an input partition that is written. One that is dropped before its end is never read.
pub struct LocalAttempt {
    open: OpenAttempt,
    frames: u64,
    records: u64,
    bytes: u64,
}

impl fmt::Debug for LocalAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAttempt").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl LocalAttempt {
    /// Writes some records behind those before, as a frame, and returns when the buffer has them: it waits while the buffer has
    /// no room. A piece of some 256 KiB is cheap.
    ///
    /// # Errors
    /// The attempt has failed; the refusal says whether to run it again.
    pub async fn put(&mut self, records: PackedRecords) -> Result<(), Refusal> {
        self.frames += 1;
        self.records += records.count();
        self.bytes += records.content_bytes();
        self.open.put(self.frames, records).await
    }

    /// Ends the attempt, and returns its records and bytes when it is stored on as many nodes as the pool says.
    ///
    /// # Errors
    /// The attempt has failed; the refusal says whether to run it again.
    pub async fn end(self) -> Result<(u64, u64), Refusal> {
        self.open.end(self.records, self.bytes).await?;
        Ok((self.records, self.bytes))
    }
}

/// Records that are read, in pieces, in their order. The read ends when this is dropped.
#[derive(Debug)]
pub struct LocalReading {
    answers: mpsc::Receiver<Answer>,
    task: JoinSet<Result<(), Refusal>>,
    records: u64,
    is_over: bool,
}

impl LocalReading {
    /// The next records; none: those were all.
    ///
    /// # Errors
    /// The shuffle is not sealed or has ended, there is no such partition, or no holder gives the records.
    pub async fn next(&mut self) -> Result<Option<PackedRecords>, Refusal> {
        if self.is_over {
            return Ok(None);
        }
        let answer = self.answers.recv().await;
        self.is_over = answer.is_none();
        match answer {
            Some(Answer::Read(records)) => {
                self.records += records.count();
                Ok(Some(records))
            }
            Some(Answer::ReadEnd(records, _)) if records == self.records => {
                self.is_over = true;
                Ok(None)
            }
            // An error is said once.
            Some(_) => {
                self.is_over = true;
                Err(unexpected())
            }
            None => match self.task.join_next().await {
                Some(Ok(Err(refusal))) => Err(refusal),
                // It ends with a word, unless the process ends.
                _ => Err(super::attempt::refusal(PutError::Stopped)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_read_that_has_failed_says_so_once() {
        let (sender, answers) = mpsc::channel(LOCAL_ANSWERS);
        let mut task = JoinSet::new();
        task.spawn(async move {
            drop(sender);
            Err(unexpected())
        });
        let mut reading = LocalReading { answers, task, records: 0, is_over: false };
        assert_eq!(reading.next().await.unwrap_err(), unexpected());
        assert!(reading.next().await.unwrap().is_none());
    }
}
