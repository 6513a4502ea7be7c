//! The client: what is asked of shuffles, again at other nodes while the retry budget lasts.

use crate::attempt::{Attempt, Written};
use crate::combined::CombinedReading;
use crate::error::Error;
use crate::nodes::{Connection, Nodes};
use crate::reading::Reading;
use crate::retry::Retry;
use crate::settings::Settings;
use crate::shuffle::{Shuffle, StartOptions};
use crate::{Bytes, ShuffleId};
use partage_service::shuffle::partition::rank;
use partage_shuffle_wire::client::{Answer, CutBy, HeavyKey, RefusalWord, Request, Status};
use partage_shuffle_wire::transport::Address;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Numbers that a start draws at once, while nodes say that the owner has as much as it may have: each node has a share of the
/// quota. One that a node has named does not count, so that the draws are as many as without it.
const START_DRAWS: u32 = 16;

/// The answer to a seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealed {
    /// The shuffle is sealed, and can be read.
    Whole {
        /// Records of the attempts that are read, one for each input partition.
        records: u64,
        /// Their keys and values, in bytes.
        bytes: u64,
    },
    /// It is not sealed: these input partitions lack a whole attempt. Write them, and seal again.
    Lacks(Vec<u32>),
}

/// The keys of a shuffle that are heavier than a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeavyKeys {
    /// All records of the shuffle.
    pub records: u64,
    /// The keys, in order, each with the rank of its first record among all.
    pub keys: Vec<HeavyKey>,
}

impl HeavyKeys {
    /// The share of a key in all records, 0 to 1.
    pub fn share(&self, key: &HeavyKey) -> f64 {
        key.records as f64 / self.records.max(1) as f64
    }
}

/// A client of a pool of shuffles. A copy is a client of the same nodes.
#[derive(Debug, Clone)]
pub struct Client {
    nodes: Arc<Nodes>,
    settings: Settings,
}

impl Client {
    /// A client of these nodes of one pool. Any of them takes any request; give several, so that one may be away.
    ///
    /// # Errors
    /// No node is named, or none of them accepts a connection now.
    pub async fn connect(
        addresses: impl IntoIterator<Item = Address>,
        settings: Settings,
    ) -> Result<Client, Error> {
        let nodes = Arc::new(Nodes::new(addresses.into_iter().collect(), &settings)?);
        let connection = nodes.connect().await?;
        nodes.give_back(connection);
        Ok(Client { nodes, settings })
    }

    /// Starts a shuffle, under a number that was never used. While one node says that the owner has as much as it may have,
    /// another number is drawn, which another node may lead.
    ///
    /// # Errors
    /// The options are not within their limits, the owner has as much as it may have, or no node has started it.
    pub async fn start(&self, options: &StartOptions) -> Result<Shuffle, Error> {
        options.check()?;
        let draw = || ShuffleId(u128::from_be_bytes(partage_random::bytes()));
        let (mut number, mut retry, mut draws) = (None, Retry::new(&self.settings), 0);
        let request = Request::Start(options.terms(self.nodes.count()), options.of_shuffle());
        loop {
            let asked = match self.nodes.connect_to_start().await {
                Ok(connection) => {
                    // It stays the same while nodes are asked again: one whose answer was lost may have started the shuffle.
                    let drawn = || {
                        draws += 1;
                        draw()
                    };
                    let led = || self.nodes.number_led_by(connection.at).unwrap_or_else(drawn);
                    let id = *number.get_or_insert_with(led);
                    let answer = self.ask_on(connection, id, &request, self.settings.answer).await;
                    answer.map(|(at, answer)| (id, at, answer))
                }
                Err(error) => Err(error),
            };
            match asked {
                Ok((id, at, Answer::Started(terms, numbers))) => {
                    self.nodes.led_by(at, numbers);
                    return Ok(Shuffle { id, terms });
                }
                Ok((_, at, _)) => return Err(self.unexpected(at, "a start")),
                Err(error) => {
                    if error.word() == Some(RefusalWord::QuotaUsedUp) {
                        number = Some(draw());
                        draws += 1;
                        // Another node may lead it, which has room for the owner now.
                        if draws <= START_DRAWS {
                            continue;
                        }
                    }
                    retry.rest(error).await?;
                }
            }
        }
    }

    /// Opens one attempt of an input partition. It is not run again; [`Client::write`] does that.
    ///
    /// # Errors
    /// No node accepts a connection. What else may be wrong with the attempt, its calls say.
    pub async fn open(&self, shuffle: &Shuffle, partition: u32) -> Result<Attempt, Error> {
        Attempt::open(&self.nodes, &self.settings, shuffle, partition).await
    }

    /// Writes an input partition: opens an attempt and hands it to `produce`, which writes the records and ends it. If the
    /// attempt fails so that it may be run again, `produce` is called again with another attempt, at another node, as often as
    /// the retry budget allows. It must produce the same records each time.
    ///
    /// # Errors
    /// What `produce` or the last attempt says.
    pub async fn write<F, Fut>(
        &self,
        shuffle: &Shuffle,
        partition: u32,
        mut produce: F,
    ) -> Result<Written, Error>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<Written, Error>>,
    {
        let mut retry = Retry::new(&self.settings);
        loop {
            let failed = match self.open(shuffle, partition).await {
                Err(error) => error,
                Ok(attempt) => match produce(attempt).await {
                    Ok(written) => return Ok(written),
                    Err(error) => error,
                },
            };
            // To wait would change nothing: no node that the client knows takes attempts.
            if failed.word() == Some(RefusalWord::StoresOnly) && self.nodes.all_store_only() {
                return Err(failed);
            }
            retry.rest(failed).await?;
        }
    }

    /// Seals a shuffle, if each of these input partitions has a whole attempt; else the answer lists those that lack one. It may
    /// be asked again, also of a sealed shuffle.
    ///
    /// # Errors
    /// There is no such shuffle, it has failed, or no node answers.
    pub async fn seal(
        &self,
        shuffle: ShuffleId,
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<Sealed, Error> {
        let partitions: BTreeSet<u32> = partitions.into_iter().collect();
        match self.ask(shuffle, &Request::Seal(partitions), self.settings.seal).await? {
            (_, Answer::Sealed(records, bytes)) => Ok(Sealed::Whole { records, bytes }),
            (_, Answer::Lacks(partitions)) => Ok(Sealed::Lacks(partitions)),
            (at, _) => Err(self.unexpected(at, "a seal")),
        }
    }

    /// The keys that bound `n` partitions of a sealed shuffle, `n` + 1 of them: the first key, the first one of each later
    /// partition, and the last key. A partition that is empty has the key at which the next one begins. Without records there
    /// are none.
    ///
    /// # Errors
    /// The shuffle is not sealed, there is none, or no node answers.
    pub async fn bounds(&self, shuffle: ShuffleId, n: u64, by: CutBy) -> Result<Vec<Bytes>, Error> {
        match self.ask(shuffle, &Request::Bounds(n, by), self.settings.seal).await? {
            (_, Answer::Bounds(keys)) => Ok(keys),
            (at, _) => Err(self.unexpected(at, "bounds")),
        }
    }

    /// The keys of a sealed shuffle that have more records than any of `n` partitions. Cut by [`CutBy::Keys`] each makes one
    /// partition larger than its share; [`Client::read_key_part`] reads such a key in parts.
    ///
    /// # Errors
    /// The shuffle is not sealed, there is none, or no node answers.
    pub async fn heavy_keys(&self, shuffle: ShuffleId, n: u64) -> Result<HeavyKeys, Error> {
        match self.ask(shuffle, &Request::HeavyKeys(n), self.settings.seal).await? {
            (_, Answer::HeavyKeys(records, keys)) => Ok(HeavyKeys { records, keys }),
            (at, _) => Err(self.unexpected(at, "heavy keys")),
        }
    }

    /// Reads partition `i` of `n` of a sealed shuffle, for any `n`: by [`CutBy::Records`] the ranks ⌊i·N/n⌋ to ⌊(i+1)·N/n⌋ of all
    /// N records; by [`CutBy::Bytes`] from the first record that begins at the i-th share of all bytes or behind it; by
    /// [`CutBy::Keys`] from where another key begins, as near to that rank as can be. Nothing is asked for before the first
    /// [`Reading::next`].
    pub fn read(&self, shuffle: ShuffleId, i: u64, n: u64, by: CutBy) -> Reading {
        // A client that knows one node has no other to go to.
        let request = match self.nodes.count() {
            1 => Request::ReadPartition(i, n, by),
            _ => Request::ReadPartitionNear(i, n, by),
        };
        Reading::new(&self.nodes, &self.settings, shuffle, request)
    }

    /// Reads the keys of a sealed shuffle from `first`, included, to `end`, excluded; none: to the last one.
    pub fn read_keys(&self, shuffle: ShuffleId, first: &[u8], end: Option<&[u8]>) -> Reading {
        let request = Request::ReadKeys(first.into(), end.map(Bytes::from));
        Reading::new(&self.nodes, &self.settings, shuffle, request)
    }

    /// Reads partition `i` of `n` of a sealed shuffle that combines records, cut by [`CutBy::Keys`]: each key once, with what all
    /// of its records give together.
    ///
    /// # Errors
    /// The shuffle does not combine records, as its handle says.
    pub fn read_combined(&self, shuffle: &Shuffle, i: u64, n: u64) -> Result<CombinedReading, Error> {
        let how = shuffle.terms.combine.ok_or(Error::CombinesNothing)?;
        Ok(CombinedReading::new(self.read(shuffle.id, i, n, CutBy::Keys), how))
    }

    /// The same of the keys from `first`, included, to `end`, excluded; none: to the last one.
    ///
    /// # Errors
    /// The shuffle does not combine records, as its handle says.
    pub fn read_combined_keys(
        &self,
        shuffle: &Shuffle,
        first: &[u8],
        end: Option<&[u8]>,
    ) -> Result<CombinedReading, Error> {
        let how = shuffle.terms.combine.ok_or(Error::CombinesNothing)?;
        Ok(CombinedReading::new(self.read_keys(shuffle.id, first, end), how))
    }

    /// Reads the records of some ranks of a sealed shuffle, from `first`, included, to `end`, excluded.
    pub fn read_ranks(&self, shuffle: ShuffleId, first: u64, end: u64) -> Reading {
        Reading::new(&self.nodes, &self.settings, shuffle, Request::ReadRanks(first, end))
    }

    /// Reads part `i` of `parts` of the records of a heavy key: their sizes differ by one record at most.
    pub fn read_key_part(&self, shuffle: ShuffleId, key: &HeavyKey, i: u64, parts: u64) -> Reading {
        if i >= parts {
            // A node says that there is no such part.
            return self.read(shuffle, i, parts, CutBy::Records);
        }
        let begin = |i| key.first.saturating_add(rank(i, parts, key.records));
        self.read_ranks(shuffle, begin(i), begin(i + 1))
    }

    /// Reads all of `n` partitions, cut so, so many at once, each by the future that `each` makes of it.
    ///
    /// # Errors
    /// The first error of a future; the others are dropped then.
    pub async fn read_partitions<F, Fut>(
        &self,
        shuffle: ShuffleId,
        (n, by): (u64, CutBy),
        at_once: usize,
        mut each: F,
    ) -> Result<(), Error>
    where
        F: FnMut(u64, Reading) -> Fut,
        Fut: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let mut under_way = JoinSet::new();
        for i in 0..n {
            if under_way.len() >= at_once.max(1) {
                one_of(&mut under_way).await?;
            }
            under_way.spawn(each(i, self.read(shuffle, i, n, by)));
        }
        while !under_way.is_empty() {
            one_of(&mut under_way).await?;
        }
        Ok(())
    }

    /// How a shuffle is.
    ///
    /// # Errors
    /// There is no such shuffle, or no node answers.
    pub async fn status(&self, shuffle: ShuffleId) -> Result<Status, Error> {
        match self.ask(shuffle, &Request::Status, self.settings.answer).await? {
            (_, Answer::Status(status)) => Ok(status),
            (at, _) => Err(self.unexpected(at, "the status")),
        }
    }

    /// Says that a shuffle is in use, so that it lives on for its time to live.
    ///
    /// # Errors
    /// There is no such shuffle, or no node answers.
    pub async fn keep_alive(&self, shuffle: ShuffleId) -> Result<(), Error> {
        match self.ask(shuffle, &Request::KeepAlive, self.settings.answer).await? {
            (_, Answer::Alive) => Ok(()),
            (at, _) => Err(self.unexpected(at, "a keep-alive")),
        }
    }

    /// Deletes a shuffle. One that was deleted before is deleted.
    ///
    /// # Errors
    /// There was no such shuffle, or no node answers.
    pub async fn delete(&self, shuffle: ShuffleId) -> Result<(), Error> {
        match self.ask(shuffle, &Request::Delete, self.settings.answer).await? {
            (_, Answer::Deleted) => Ok(()),
            (at, _) => Err(self.unexpected(at, "a delete")),
        }
    }

    fn unexpected(&self, at: usize, asked: &'static str) -> Error {
        Error::Unexpected { node: self.nodes.address(at), asked }
    }

    /// Asks one node after the other until one has done it. Each request does the same when it is sent twice.
    async fn ask(
        &self,
        shuffle: ShuffleId,
        request: &Request,
        within: Duration,
    ) -> Result<(usize, Answer), Error> {
        let mut retry = Retry::new(&self.settings);
        loop {
            let answered = match self.nodes.connect_for(shuffle).await {
                Ok(connection) => self.ask_on(connection, shuffle, request, within).await,
                Err(error) => Err(error),
            };
            match answered {
                Ok(answer) => return Ok(answer),
                Err(error) => retry.rest(error).await?,
            }
        }
    }

    async fn ask_on(
        &self,
        mut connection: Connection,
        shuffle: ShuffleId,
        request: &Request,
        within: Duration,
    ) -> Result<(usize, Answer), Error> {
        let at = connection.at;
        loop {
            match timeout(within, connection.ask(shuffle, request.clone())).await {
                Ok(Ok(answer)) => {
                    self.nodes.give_back(connection);
                    return match answer {
                        Answer::Refused(refusal) => {
                            Err(Error::Refused { node: self.nodes.address(at), refusal })
                        }
                        answer => Ok((at, answer)),
                    };
                }
                Ok(Err(why)) => connection = self.nodes.in_place_of(at, connection.is_kept, why).await?,
                Err(_) => {
                    self.nodes.failed(at);
                    return Err(Error::Late { node: self.nodes.address(at), within });
                }
            }
        }
    }
}

/// Waits for one of several to be done.
async fn one_of(under_way: &mut JoinSet<Result<(), Error>>) -> Result<(), Error> {
    match under_way.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(panicked)) => Err(Error::own(panicked)),
        None => Ok(()),
    }
}
