//! Nodes that keep one pool in memory, and do what they are told wrong.

use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_service::shuffle::partition::heavy_keys;
use partage_shuffle_client::{
    Address, Again, AttemptId, Bytes, PackedRecords, Refusal, RefusalWord, ShuffleId, Stage, Status,
};
use partage_shuffle_wire::client::{Answer, Call, Request};
use partage_shuffle_wire::node::{Peer, Received};
use partage_shuffle_wire::transport::{Answers, Calls, Listener, Server, Service, Timing};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Records of an answer.
const PIECE: usize = 40;

/// What goes wrong: each so-many-th time; 0 is never.
#[derive(Debug, Default)]
pub struct Faults {
    /// The connection breaks at a frame of records.
    pub frames: AtomicU64,
    /// An end is refused.
    pub ends: AtomicU64,
    /// The connection breaks before a piece of a read.
    pub pieces: AtomicU64,
    /// No records are read from sockets.
    pub is_full: AtomicBool,
    /// A quarter of all numbers of shuffles is not started, as if its leader had no room for the owner.
    pub is_used_up: AtomicBool,
    /// A connection ends at the first call that begins on it after another one was begun.
    pub kept: AtomicBool,
    /// The number of the node that has all partitions, as the others say.
    pub has_all: AtomicU64,
    /// How often something went wrong.
    pub broken: AtomicU64,
    counts: [AtomicU64; 3],
}

impl Faults {
    fn is_due(&self, every: &AtomicU64, count: usize) -> bool {
        let every = every.load(Ordering::Relaxed);
        let is_due = every > 0 && self.counts[count].fetch_add(1, Ordering::Relaxed) % every == every - 1;
        self.broken.fetch_add(u64::from(is_due), Ordering::Relaxed);
        is_due
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, Default)]
struct OneShuffle {
    winners: BTreeMap<u32, Pairs>,
    sealed: Option<Pairs>,
    is_deleted: bool,
}

impl OneShuffle {
    fn seal(&mut self, expected: BTreeSet<u32>) -> Answer {
        let lacks: Vec<u32> =
            expected.into_iter().filter(|partition| !self.winners.contains_key(partition)).collect();
        if !lacks.is_empty() {
            return Answer::Lacks(lacks);
        }
        // By key; those of one key stay in the order of their partitions.
        let mut all: Pairs = self.winners.values().flatten().cloned().collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        let (records, bytes) = sum(&all);
        self.sealed = Some(all);
        Answer::Sealed(records, bytes)
    }
}

type Pool = Arc<Mutex<BTreeMap<ShuffleId, OneShuffle>>>;

/// A node with a server at a free port of loopback; when it is dropped, the server ends.
pub struct Node {
    pub at: Address,
    number: u64,
    pool: Pool,
    named: Arc<Mutex<BTreeSet<ShuffleId>>>,
    reads: Arc<AtomicU64>,
    server: Arc<Server<InMemory>>,
    ending: CancellationToken,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.ending.cancel();
    }
}

/// Longer than anything takes: no pong comes when nothing is waited for any more, which would end a connection that is kept.
pub fn timing() -> Timing {
    let long = Duration::from_secs(60);
    Timing { ping: long, silent: long, client_silent: long, ..Timing::default() }
}

/// An address at which nobody listens.
pub async fn away() -> Address {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    listener.address().unwrap()
}

impl Node {
    pub async fn start(faults: &Arc<Faults>) -> Node {
        Node::of_pool(Pool::default(), 1, faults).await
    }

    /// Another node of the same pool.
    pub async fn another(&self, faults: &Arc<Faults>) -> Node {
        Node::of_pool(Arc::clone(&self.pool), self.number + 1, faults).await
    }

    async fn of_pool(pool: Pool, number: u64, faults: &Arc<Faults>) -> Node {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let at = listener.address().unwrap();
        let own = Peer { node: name(number), incarnation: Incarnation(1) };
        let (named, reads) = (Arc::<Mutex<BTreeSet<ShuffleId>>>::default(), Arc::<AtomicU64>::default());
        let service = InMemory {
            number,
            pool: Arc::clone(&pool),
            named: Arc::clone(&named),
            reads: Arc::clone(&reads),
            faults: Arc::clone(faults),
        };
        let ending = CancellationToken::new();
        let server = Server::new(own, timing(), service);
        tokio::spawn(Arc::clone(&server).serve(listener, ending.clone()));
        Node { at, number, pool, named, reads, server, ending }
    }

    /// Whether it has named the number for a shuffle.
    pub fn has_named(&self, shuffle: ShuffleId) -> bool {
        self.named.lock().unwrap().contains(&shuffle)
    }

    /// How often something was read at it.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Connections that it has accepted, and those that are open.
    pub fn connections(&self) -> (u64, usize) {
        (self.server.counts().clients, self.server.open())
    }
}

fn name(number: u64) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

struct InMemory {
    number: u64,
    pool: Pool,
    reads: Arc<AtomicU64>,
    /// The numbers that were named for next shuffles.
    named: Arc<Mutex<BTreeSet<ShuffleId>>>,
    faults: Arc<Faults>,
}

/// An attempt that is open on a connection.
struct Open {
    partition: u32,
    records: Pairs,
}

impl Service for InMemory {
    async fn received(&self, _: &Peer, _: Received) {}

    async fn client(&self, calls: &mut Calls<'_>, answers: Answers) {
        let (mut open, mut has_begun) = (BTreeMap::<u64, Open>::new(), false);
        while let Some(Call { number, shuffle, what }) = calls.next().await {
            if !matches!(what, Request::Records(..) | Request::End(..) | Request::Abort) {
                if has_begun && self.faults.kept.load(Ordering::Relaxed) {
                    self.faults.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                has_begun = true;
            }
            let what = match what {
                Request::Records(..) if self.faults.is_due(&self.faults.frames, 0) => return,
                Request::ReadPartitionNear(..) if let Some(node) = self.another_has_it() => {
                    Answer::ReadAt(node)
                }
                Request::ReadPartition(..)
                | Request::ReadPartitionNear(..)
                | Request::ReadKeys(..)
                | Request::ReadRanks(..) => {
                    self.reads.fetch_add(1, Ordering::Relaxed);
                    if !self.read(number, shuffle, &what, &answers).await {
                        return;
                    }
                    continue;
                }
                Request::Abort => {
                    open.remove(&number);
                    continue;
                }
                what => self.answer(number, shuffle, what, &mut open),
            };
            if answers.send(&Call { number, shuffle, what }).await.is_err() {
                return;
            }
            while self.faults.is_full.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

fn refused(word: RefusalWord, again: Again) -> Answer {
    Answer::Refused(Refusal::new(word, again, "the test says so"))
}

impl InMemory {
    fn numbers(&self) -> Vec<ShuffleId> {
        let numbers = [(); 2].map(|()| ShuffleId(u128::from_be_bytes(partage_random::bytes())));
        self.named.lock().unwrap().extend(numbers);
        numbers.into()
    }

    fn answer(
        &self,
        number: u64,
        shuffle: ShuffleId,
        what: Request,
        open: &mut BTreeMap<u64, Open>,
    ) -> Answer {
        let mut pool = self.pool.lock().unwrap();
        if let Request::Start(terms, _) = what {
            if shuffle.0.is_multiple_of(4) && self.faults.is_used_up.load(Ordering::Relaxed) {
                return refused(RefusalWord::QuotaUsedUp, Again::Request);
            }
            pool.entry(shuffle).or_default();
            return Answer::Started(terms, self.numbers());
        }
        let one = match pool.get_mut(&shuffle) {
            None => return refused(RefusalWord::ShuffleUnknown, Again::No),
            Some(one) if one.is_deleted => return refused(RefusalWord::ShuffleDeleted, Again::No),
            Some(one) => one,
        };
        match what {
            Request::Open(partition, AttemptId(_), _) => {
                open.insert(number, Open { partition, records: Vec::new() });
                Answer::Opened
            }
            Request::Records(frame, records) => {
                let Some(open) = open.get_mut(&number) else {
                    return refused(RefusalWord::AttemptUnknown, Again::Attempt);
                };
                open.records.extend(records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
                Answer::Taken(frame)
            }
            Request::End(records, bytes) => match open.remove(&number) {
                Some(_) if self.faults.is_due(&self.faults.ends, 1) => {
                    refused(RefusalWord::TooFewNodes, Again::Attempt)
                }
                Some(ended) if (records, bytes) == sum(&ended.records) => {
                    one.winners.entry(ended.partition).or_insert(ended.records);
                    Answer::Whole
                }
                Some(_) => refused(RefusalWord::CountDiffers, Again::Attempt),
                None => refused(RefusalWord::AttemptUnknown, Again::Attempt),
            },
            Request::Seal(expected) => one.seal(expected),
            Request::HeavyKeys(n) => {
                let all = one.sealed.as_ref().unwrap();
                let keys: Vec<Bytes> = all.iter().map(|(key, _)| key.as_slice().into()).collect();
                let records = keys.len() as u64;
                Answer::HeavyKeys(records, heavy_keys(&keys, records.div_ceil(n)))
            }
            Request::Bounds(n, _) => {
                let all = one.sealed.as_ref().unwrap();
                let inner = (0..n as usize).map(|i| i * all.len() / n as usize).chain([all.len() - 1]);
                Answer::Bounds(inner.map(|at| all[at].0.as_slice().into()).collect())
            }
            Request::Status => Answer::Status(Status {
                stage: if one.sealed.is_some() { Stage::Sealed } else { Stage::Open },
                winners: one.winners.len() as u64,
                records: 0,
                bytes: 0,
                version: 0,
                ranges: 1,
                waits_for: String::new(),
            }),
            Request::KeepAlive => Answer::Alive,
            Request::Delete => {
                one.is_deleted = true;
                Answer::Deleted
            }
            _ => refused(RefusalWord::BadFrame, Again::No),
        }
    }

    /// The node that has all partitions, if it is another one.
    fn another_has_it(&self) -> Option<NodeId> {
        let number = self.faults.has_all.load(Ordering::Relaxed);
        (number > 0 && number != self.number).then(|| name(number))
    }

    /// Sends what is read. False: the connection breaks.
    async fn read(&self, number: u64, shuffle: ShuffleId, what: &Request, answers: &Answers) -> bool {
        let found: Pairs = {
            let pool = self.pool.lock().unwrap();
            let all = pool[&shuffle].sealed.as_ref().unwrap();
            match what {
                Request::ReadPartition(i, n, _) | Request::ReadPartitionNear(i, n, _) => {
                    let begin = |i: u64| (i * all.len() as u64 / n) as usize;
                    all[begin(*i)..begin(i + 1)].to_vec()
                }
                Request::ReadRanks(first, end) => all[*first as usize..*end as usize].to_vec(),
                Request::ReadKeys(first, end) => {
                    let is_in =
                        |key: &[u8]| key >= &first[..] && end.as_ref().is_none_or(|end| key < &end[..]);
                    all.iter().filter(|(key, _)| is_in(key)).cloned().collect()
                }
                _ => Vec::new(),
            }
        };
        let (records, bytes) = sum(&found);
        for piece in found.chunks(PIECE) {
            if self.faults.is_due(&self.faults.pieces, 2) {
                return false;
            }
            let packed = PackedRecords::pack(piece.iter().map(|(key, value)| (&key[..], &value[..])));
            if answers.send(&Call { number, shuffle, what: Answer::Read(packed) }).await.is_err() {
                return false;
            }
        }
        answers.send(&Call { number, shuffle, what: Answer::ReadEnd(records, bytes) }).await.is_ok()
    }
}

fn sum(records: &[(Vec<u8>, Vec<u8>)]) -> (u64, u64) {
    let bytes = records.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    (records.len() as u64, bytes)
}
