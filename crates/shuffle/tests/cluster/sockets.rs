//! The same nodes over TCP, and clients that call them there.

use crate::job::Job;
use crate::nodes::{Cluster, NODES, pause, until};
use partage_core::limits::{SHUFFLE_RANGES, SHUFFLE_TTL_LEAST_MS, SHUFFLE_WEIGHT};
use partage_service::shuffle::{AttemptId, ShuffleId, Terms};
use partage_shuffle::network::{PoolService, WireTransport};
use partage_shuffle::node::Node;
use partage_shuffle_wire::client::{
    Again, Answer, Call, CutBy, Refusal, RefusalWord, Request, ShuffleOptions, Stage,
};
use partage_shuffle_wire::node::Peer;
use partage_shuffle_wire::records::PackedRecords;
use partage_shuffle_wire::transport::{Address, ClientConnection, Listener, Server, Timing};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What all connections of a test run on.
pub struct Sockets(Runtime);

impl Default for Sockets {
    fn default() -> Sockets {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Sockets(runtime.unwrap())
    }
}

/// The connections of one process of a node. When it is dropped they are cut.
pub struct Socket {
    own: Peer,
    address: Address,
    transport: Arc<WireTransport>,
    serving: JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Sockets {
    pub fn transport(&self, own: Peer) -> Arc<WireTransport> {
        Arc::new(WireTransport::new(own, Timing::default(), self.0.handle().clone()))
    }

    pub fn serve(&self, own: Peer, node: &Node, transport: Arc<WireTransport>) -> Socket {
        let listener = self.0.block_on(Listener::bind(&Address::Tcp("127.0.0.1:0".to_owned()))).unwrap();
        let address = listener.address().unwrap();
        let service = PoolService::new(own.node.clone(), node);
        let server = Server::new(own.clone(), Timing::default(), service);
        let serving = self.0.spawn(server.serve(listener, CancellationToken::new()));
        Socket { own, address, transport, serving }
    }
}

impl Socket {
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// All of them hear where the others are.
    pub fn introduce<'a>(all: impl Iterator<Item = &'a Socket> + Clone) {
        let addresses = all.clone().map(|one| (one.own.node.clone(), one.address.clone())).collect();
        all.for_each(|one| one.transport.set_addresses(&addresses));
    }
}

#[test]
fn x13_nodes_divide_a_shuffle_exactly_over_sockets() {
    let cluster = Cluster::start_over_sockets();
    let job = Job::start(&cluster, 8, 10_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    for n in [1, 7] {
        job.read(&cluster, &plan, n);
    }
    job.read_keys(&cluster, &plan);
    assert_eq!(job.attempts_run_again(), 0, "nothing has failed");
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn d6_a_node_is_killed_over_sockets_while_clients_write_and_while_they_read() {
    let cluster = Cluster::start_over_sockets();
    let job = Job::start(&cluster, 8, 10_000).paced(25);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| job.write(&cluster));
        until("clients go on", || job.pieces() >= 20 || writing.is_finished());
        cluster.kill(1);
        pause(400);
        cluster.start_node(1);
    });
    let plan = job.seal(&cluster);
    cluster.kill(2);
    // Holders in turn, and others where one is away.
    job.read(&cluster, &plan, 7);
    cluster.start_node(2);
    job.delete(&cluster);
    cluster.has_nothing();
}

/// A client of one node, with one call at a time.
struct Caller {
    connection: ClientConnection,
    shuffle: ShuffleId,
    number: u64,
}

impl Caller {
    async fn connect(address: &Address, shuffle: ShuffleId) -> Caller {
        let connection = ClientConnection::open(address, Timing::default()).await.unwrap();
        Caller { connection, shuffle, number: 0 }
    }

    async fn send(&self, number: u64, what: Request) {
        let call = Call { number, shuffle: self.shuffle, what };
        self.connection.calls.send(&call).await.unwrap();
    }

    async fn next(&mut self, number: u64) -> Answer {
        let answer = self.connection.answers.next().await.unwrap();
        assert_eq!((answer.number, answer.shuffle), (number, self.shuffle));
        answer.what
    }

    async fn call(&mut self, what: Request) -> Answer {
        self.number += 1;
        self.send(self.number, what).await;
        self.next(self.number).await
    }

    /// Starts the shuffle. The node names other numbers for the next ones.
    async fn start(&mut self, terms: Terms, options: ShuffleOptions) {
        match self.call(Request::Start(terms, options)).await {
            Answer::Started(found, numbers) => {
                assert_eq!(found, terms);
                assert!(!numbers.is_empty() && !numbers.contains(&self.shuffle), "{numbers:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&mut self, what: Request) -> Refusal {
        match self.call(what).await {
            Answer::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    /// Writes an input partition in pieces, and returns how its attempt has ended.
    async fn write(&mut self, partition: u32, terms: Terms, pieces: &[PackedRecords]) -> Answer {
        let id = AttemptId(u128::from(partition) + 1);
        assert_eq!(self.call(Request::Open(partition, id, terms)).await, Answer::Opened);
        let number = self.number;
        let (mut records, mut bytes) = (0, 0);
        for (frame, piece) in (1..).zip(pieces) {
            self.send(number, Request::Records(frame, piece.clone())).await;
            assert_eq!(self.next(number).await, Answer::Taken(frame));
            (records, bytes) = (records + piece.count(), bytes + piece.content_bytes());
        }
        self.send(number, Request::End(records, bytes)).await;
        self.next(number).await
    }

    /// 10,000 records of 8 bytes, two of each of 5,000 keys.
    async fn cuts_by_bytes_and_between_keys(&mut self) {
        let mut parts = Vec::new();
        for i in 0..7 {
            let part = self.read(Request::ReadPartition(i, 7, CutBy::Bytes)).await;
            assert!((1_428..=1_430).contains(&part.len()), "{i}: {}", part.len());
            parts.extend(part);
        }
        let all: Vec<Vec<u8>> = (0..10_000_u32).map(|rank| (rank / 2).to_be_bytes().to_vec()).collect();
        assert_eq!(parts, all);
        let mut rest = &all[..];
        let Answer::Bounds(bounds) = self.call(Request::Bounds(7, CutBy::Keys)).await else { panic!() };
        for i in 0..7 {
            let part = self.read(Request::ReadPartition(i, 7, CutBy::Keys)).await;
            assert!((1_426..=1_432).contains(&part.len()) && part.len() % 2 == 0, "{i}: {}", part.len());
            assert_eq!(&bounds[i as usize][..], part[0]);
            let (own, others) = rest.split_at(part.len());
            assert_eq!(own, part);
            rest = others;
        }
        assert!(rest.is_empty() && bounds.len() == 8);
        assert_eq!(self.read(Request::ReadRanks(9_999, 20_000)).await, all[9_999..]);
        let Answer::HeavyKeys(total, heavy) = self.call(Request::HeavyKeys(7)).await else { panic!() };
        assert_eq!((total, heavy.len()), (10_000, 0));
        let Answer::HeavyKeys(_, heavy) = self.call(Request::HeavyKeys(10_000)).await else { panic!() };
        let found: Vec<(u64, u64)> = heavy.iter().map(|one| (one.first, one.records)).collect();
        assert_eq!(found, (0..5_000).map(|key| (2 * key, 2)).collect::<Vec<_>>());
        let none = self.refused(Request::HeavyKeys(0)).await;
        assert_eq!(none.word, RefusalWord::NoSuchPartition);
    }

    /// All records of a read.
    async fn read(&mut self, what: Request) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut answer = self.call(what).await;
        while let Answer::Read(records) = &answer {
            keys.extend(records.iter().map(|(key, _)| key.to_vec()));
            answer = self.next(self.number).await;
        }
        assert!(matches!(answer, Answer::ReadEnd(count, _) if count == keys.len() as u64), "{answer:?}");
        keys
    }
}

fn piece(partition: u32, keys: std::ops::Range<u32>) -> PackedRecords {
    let records: Vec<_> = keys.map(|key| (key.to_be_bytes(), partition.to_be_bytes())).collect();
    PackedRecords::pack(records.iter().map(|(key, value)| (&key[..], &value[..])))
}

fn call_one_node_after_the_other(cluster: &Cluster) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let terms = Terms::new(30, 48);
    runtime.block_on(async {
        let mut callers = Vec::new();
        for node in 0..NODES {
            callers.push(Caller::connect(&cluster.address(node), ShuffleId(77)).await);
        }
        callers[0].start(terms, ShuffleOptions::default()).await;
        for partition in 0..2 {
            // The other half of each key's records lies in the other partition.
            let pieces = [piece(partition, 0..2_000), piece(partition, 2_000..5_000)];
            let node = partition as usize;
            assert_eq!(callers[node].write(partition, terms, &pieces).await, Answer::Whole);
        }
        let lacks = callers[1].call(Request::Seal(BTreeSet::from([0, 1, 2]))).await;
        assert_eq!(lacks, Answer::Lacks(vec![2]));
        let early = callers[2].refused(Request::ReadPartition(0, 1, CutBy::Records)).await;
        assert_eq!((early.word, early.again), (RefusalWord::NotSealed, Again::Request));
        let sealed = callers[2].call(Request::Seal(BTreeSet::from([0, 1]))).await;
        assert_eq!(sealed, Answer::Sealed(10_000, 80_000));
        let more = callers[1].refused(Request::Seal(BTreeSet::from([0, 1, 2]))).await;
        assert_eq!((more.word, more.again), (RefusalWord::PartitionNotExpected, Again::No), "{more}");
        for caller in &mut callers {
            let Answer::Status(status) = caller.call(Request::Status).await else { panic!() };
            assert_eq!((status.stage, status.winners, status.records), (Stage::Sealed, 2, 10_000));
            let keys = caller.read(Request::ReadPartition(1, 2, CutBy::Records)).await;
            assert_eq!(keys.len(), 5_000);
            assert!(keys.is_sorted() && keys[0] == 2_500_u32.to_be_bytes());
            let first = 4_999_u32.to_be_bytes().as_slice().into();
            assert_eq!(caller.read(Request::ReadKeys(first, None)).await.len(), 2);
            let Answer::Bounds(bounds) = caller.call(Request::Bounds(2, CutBy::Records)).await else {
                panic!()
            };
            let bounds: Vec<&[u8]> = bounds.iter().map(|key| &key[..]).collect();
            assert_eq!(bounds, [0_u32, 2_500, 4_999].map(u32::to_be_bytes).each_ref().map(|key| &key[..]));
            for by in [CutBy::Records, CutBy::Bytes, CutBy::Keys] {
                let none = caller.refused(Request::ReadPartition(2, 2, by)).await;
                assert_eq!(none.word, RefusalWord::NoSuchPartition);
            }
            caller.cuts_by_bytes_and_between_keys().await;
        }
        assert_eq!(callers[1].call(Request::Delete).await, Answer::Deleted);
        let gone = callers[0].refused(Request::KeepAlive).await;
        assert_eq!((gone.word, gone.again), (RefusalWord::ShuffleDeleted, Again::No));
    });
}

#[test]
fn any_node_takes_any_call_of_a_client() {
    let cluster = Cluster::start_over_sockets();
    call_one_node_after_the_other(&cluster);
    cluster.has_nothing();
}

/// Longer than it lives without.
#[test]
fn d7_a_sealed_shuffle_lives_as_long_as_it_is_read() {
    let cluster = Cluster::start_over_sockets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let terms = Terms::new(3, 4);
    let options = ShuffleOptions { sealed_ttl_ms: Some(SHUFFLE_TTL_LEAST_MS), ..ShuffleOptions::default() };
    runtime.block_on(async {
        let mut caller = Caller::connect(&cluster.address(0), ShuffleId(78)).await;
        caller.start(terms, options).await;
        assert_eq!(caller.write(0, terms, &[piece(0, 0..100)]).await, Answer::Whole);
        assert_eq!(caller.call(Request::Seal(BTreeSet::from([0]))).await, Answer::Sealed(100, 800));
        for _ in 0..(SHUFFLE_TTL_LEAST_MS + 2_000) / 500 {
            assert_eq!(caller.read(Request::ReadPartition(0, 1, CutBy::Records)).await.len(), 100);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
}

#[test]
fn r1_terms_that_no_node_has_memory_for_are_refused_and_cost_nothing() {
    let cluster = Cluster::start_over_sockets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let terms = Terms::new(30, 48);
    runtime.block_on(async {
        let mut caller = Caller::connect(&cluster.address(0), ShuffleId(79)).await;
        let large = [
            Terms::new(4_000_000_000, 48),
            Terms::new(30, SHUFFLE_RANGES + 1),
            Terms { weight: 0, ..terms },
            Terms { weight: SHUFFLE_WEIGHT + 1, ..terms },
        ];
        for large in large {
            let refused = caller.refused(Request::Start(large, ShuffleOptions::default())).await;
            assert_eq!((refused.word, refused.again), (RefusalWord::BadFrame, Again::No), "{refused}");
            let refused = caller.refused(Request::Open(0, AttemptId(1), large)).await;
            assert_eq!((refused.word, refused.again), (RefusalWord::BadFrame, Again::No), "{refused}");
        }
        caller.start(terms, ShuffleOptions::default()).await;
        assert_eq!(caller.call(Request::Delete).await, Answer::Deleted);
    });
    cluster.has_nothing();
}

#[test]
fn an_attempt_of_a_client_that_goes_away_is_given_up() {
    let cluster = Cluster::start_over_sockets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let terms = Terms::new(30, 48);
    runtime.block_on(async {
        let mut caller = Caller::connect(&cluster.address(0), ShuffleId(78)).await;
        caller.start(terms, ShuffleOptions::default()).await;
        assert_eq!(caller.call(Request::Open(0, AttemptId(1), terms)).await, Answer::Opened);
        let number = caller.number;
        caller.send(number, Request::Records(1, piece(0, 0..1_000))).await;
        assert_eq!(caller.next(number).await, Answer::Taken(1));
        drop(caller);
        let mut other = Caller::connect(&cluster.address(1), ShuffleId(78)).await;
        assert_eq!(other.call(Request::Seal(BTreeSet::from([0]))).await, Answer::Lacks(vec![0]));
        assert_eq!(other.call(Request::Delete).await, Answer::Deleted);
    });
    until("the buffer has let it go", || cluster.status(0).buffered_bytes == 0);
    cluster.has_nothing();
}
