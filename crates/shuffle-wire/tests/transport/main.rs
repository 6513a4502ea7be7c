//! Connections over real sockets: order, cuts, ends that read nothing or send rubbish, and what comes after.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, in its helping functions too")]

mod reached;
mod slow;
mod strangers;

use bytes::Bytes;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_service::shuffle::message::Message;
use partage_service::shuffle::{AttemptId, ShuffleId, Terms};
use partage_shuffle_wire::client::{Answer, Call, Refusal, RefusalWord, Request};
use partage_shuffle_wire::frame::{Frame, HEADER_BYTES, Header, Kind};
use partage_shuffle_wire::limits::PEER_BULK_BYTES;
use partage_shuffle_wire::node::{self, Control, Hello, Peer, Received};
use partage_shuffle_wire::records::PackedRecords;
use partage_shuffle_wire::transport::{
    Address, Answers, Calls, ClientConnection, Closed, ConnectionBounds, Dropped, Listener, Peers, Server,
    Service, Timing,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Short, but longer than a busy machine rests.
fn timing() -> Timing {
    Timing {
        opening: Duration::from_secs(1),
        ping: Duration::from_millis(100),
        silent: Duration::from_secs(1),
        client_silent: Duration::from_secs(2),
        stalled: Duration::from_secs(1),
        goodbye: Duration::from_secs(1),
    }
}

fn peer(name: &str) -> Peer {
    Peer { node: NodeId::new(name).unwrap(), incarnation: Incarnation(1) }
}

fn ask(number: u128) -> Frame {
    node::frame(&Message::Ask(ShuffleId(number))).unwrap()
}

/// A frame of bulk: any that is long.
fn bulk(bytes: usize) -> Frame {
    let record = vec![7; bytes];
    let call = Call {
        number: 1,
        shuffle: ShuffleId(1),
        what: Request::Records(1, PackedRecords::pack([(&b"key"[..], &record[..])])),
    };
    call.frame().unwrap()
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, looks).await;
}

/// Hands on what it gets, and takes as many calls as there are permits.
struct Recorder {
    messages: mpsc::Sender<(Peer, Message)>,
    calls: Arc<Semaphore>,
}

impl Service for Recorder {
    async fn received(&self, from: &Peer, received: Received) {
        self.messages.send((from.clone(), received.message())).await.unwrap();
    }

    async fn client(&self, calls: &mut Calls<'_>, answers: Answers) {
        loop {
            self.calls.acquire().await.unwrap().forget();
            let Some(call) = calls.next().await else { return };
            let what = match call.what {
                Request::Open(..) => Answer::Opened,
                Request::Records(number, _) => Answer::Taken(number),
                Request::End(records, bytes) => Answer::Sealed(records, bytes),
                Request::Delete => return,
                _ => Answer::Refused(Refusal::new(
                    RefusalWord::NotSealed,
                    partage_shuffle_wire::client::Again::Request,
                    "not sealed",
                )),
            };
            if answers.send(&Call { number: call.number, shuffle: call.shuffle, what }).await.is_err() {
                return;
            }
        }
    }
}

struct Running {
    server: Arc<Server<Recorder>>,
    at: Address,
    messages: mpsc::Receiver<(Peer, Message)>,
    calls: Arc<Semaphore>,
    ending: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(name: &str, at: &Address) -> Running {
        Running::bounded(name, at, ConnectionBounds::default()).await
    }

    async fn bounded(name: &str, at: &Address, bounds: ConnectionBounds) -> Running {
        let listener = Listener::bind(at).await.unwrap();
        let at = listener.address().unwrap();
        let (sender, messages) = mpsc::channel(10_000);
        let calls = Arc::new(Semaphore::new(1_000_000));
        let recorder = Recorder { messages: sender, calls: Arc::clone(&calls) };
        let server = Server::bounded(peer(name), timing(), recorder, bounds);
        let ending = CancellationToken::new();
        let task = tokio::spawn(Arc::clone(&server).serve(listener, ending.clone()));
        Running { server, at, messages, calls, ending, task }
    }

    async fn end(self) {
        self.ending.cancel();
        soon("the end of the server", self.task).await.unwrap();
    }

    async fn next(&mut self) -> (Peer, Message) {
        soon("a message", self.messages.recv()).await.unwrap()
    }
}

fn tcp() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn unix(folder: &TempDir) -> Address {
    Address::Unix(folder.path().join("node.sock"))
}

/// Node `a`, which sends to `b`.
fn sender(at: &Address) -> Peers {
    let peers = Peers::new(peer("a"), timing(), Handle::current());
    peers.set_addresses(&BTreeMap::from([(peer("b").node, at.clone())]));
    peers
}

#[tokio::test]
async fn what_is_sent_comes_in_order_over_tcp_and_unix_sockets() {
    let folder = TempDir::new().unwrap();
    for at in [tcp(), unix(&folder)] {
        let mut running = Running::start("b", &at).await;
        let peers = sender(&running.at);
        let to = peer("b").node;
        for number in 0..2_000 {
            peers.send(&to, ask(number)).unwrap();
        }
        for number in 0..2_000 {
            assert_eq!(running.next().await, (peer("a"), Message::Ask(ShuffleId(number))), "{at}");
        }
        until("the counts", || peers.counts().sent == 2_000).await;
        assert_eq!((peers.counts().opened, peers.counts().failed), (1, 0));
        assert_eq!(running.server.counts().received, 2_000);
        running.end().await;
    }
}

#[tokio::test]
async fn batches_of_every_size_come_whole_beside_short_messages() {
    use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Record, Segment, Stream};
    use partage_service::shuffle::{
        AttemptKey, BufferId, Durability, PoolSlot, RangeId, Writer, bounds::Tag,
    };
    let folder = TempDir::new().unwrap();
    let mut running = Running::start("b", &unix(&folder)).await;
    let (peers, to) = (sender(&running.at), peer("b").node);
    let buffer = BufferId { node: peer("a").node, incarnation: Incarnation(1) };
    let batch = |number: u64, bytes: usize| {
        let stream =
            Stream { shuffle: ShuffleId(1), slot: PoolSlot(1), writer: Writer::Buffer(buffer.clone()) };
        let attempt = AttemptKey { buffer: buffer.clone(), number };
        let records = vec![Record { key: b"key".as_slice().into(), value: vec![number as u8; bytes].into() }];
        let segment = Segment { attempt: attempt.clone(), partition: 1, frame: 1, records: records.into() };
        let tag = Tag { version: 0, range: RangeId(0) };
        let body = match bytes {
            0 => Body::Mark(EndMark {
                attempt,
                partition: 1,
                id: AttemptId(1),
                records: 1,
                bytes: 1,
                last: BTreeMap::new(),
            }),
            _ => Body::Records([(tag, vec![segment])].into()),
        };
        let (key, durability) = (BatchKey { stream, number }, Durability::Disk);
        Message::Batch(Arc::new(Batch { key, durability, body }))
    };
    // Below and above what is copied beside a header, what gets its room at once, and what is written at a time.
    let sizes = [0, 100, 16 << 10, 300 << 10, 4 << 20, 9 << 20];
    let sent: Vec<Message> = (1..).zip(sizes).map(|(number, bytes)| batch(number, bytes)).collect();
    for message in &sent {
        peers.send(&to, ask(1)).unwrap();
        peers.send_bulk(&to, node::frame(message).unwrap()).await.unwrap();
    }
    let mut batches = Vec::new();
    for _ in 0..2 * sent.len() {
        let (_, message) = running.next().await;
        if matches!(message, Message::Batch(_)) {
            batches.push(message);
        }
    }
    assert!(batches == sent, "each comes as it was sent, in order");
    running.end().await;
}

/// A bare connection to a server.
async fn raw(at: &Address) -> TcpStream {
    TcpStream::connect(at.to_string()).await.unwrap()
}

async fn put(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame, number: u64) {
    let mut bytes = Vec::new();
    frame.encode(number, &mut bytes);
    stream.write_all(&bytes).await.unwrap();
}

async fn get(stream: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut header = [0; HEADER_BYTES];
    soon("a frame", stream.read_exact(&mut header)).await.ok()?;
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.bytes];
    soon("a body", stream.read_exact(&mut body)).await.unwrap();
    Some(header.frame(Bytes::from(body)).unwrap())
}

fn hello(to: &str) -> Frame {
    Control::Hello(Hello::Node(peer("a"), peer(to).node)).frame().unwrap()
}

/// The last words of a server, behind which it closes the connection.
async fn goodbye(stream: &mut (impl AsyncRead + Unpin)) -> Refusal {
    loop {
        let frame = get(stream).await.expect("last words");
        match Control::of(&frame).unwrap() {
            Control::Welcome(_) | Control::Pong => {}
            Control::Goodbye(why) => {
                assert_eq!(get(stream).await, None, "closed");
                return why;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn whoever_sends_what_is_no_frame_is_told_why_and_let_go() {
    let running = Running::start("b", &tcp()).await;
    let mut version = Vec::new();
    hello("b").encode(0, &mut version);
    version[4] = 9;
    let mut sum = Vec::new();
    hello("b").encode(0, &mut sum);
    *sum.last_mut().unwrap() ^= 1;
    let mut of_client = Vec::new();
    hello("b").encode(0, &mut of_client);
    bulk(10).encode(1, &mut of_client);
    let mut doubled = Vec::new();
    hello("b").encode(0, &mut doubled);
    ask(1).encode(0, &mut doubled);
    let mut missing = Vec::new();
    hello("b").encode(0, &mut missing);
    ask(1).encode(2, &mut missing);
    let mut no_hello = Vec::new();
    ask(1).encode(0, &mut no_hello);
    let cases: [(&[u8], RefusalWord, &str); 7] = [
        (&[b'x'; 100], RefusalWord::BadFrame, "no frame of a shuffle"),
        (&version, RefusalWord::OtherVersion, "version 9"),
        (&sum, RefusalWord::BadFrame, "body of a frame Hello was damaged"),
        (&of_client, RefusalWord::BadFrame, "Records is not expected here"),
        (&doubled, RefusalWord::BadFrame, "came twice"),
        (&missing, RefusalWord::BadFrame, "which is missing"),
        (&no_hello, RefusalWord::BadFrame, "Ask is not expected here"),
    ];
    let count = cases.len() as u64;
    for (sent, word, says) in cases {
        let mut stream = raw(&running.at).await;
        stream.write_all(sent).await.unwrap();
        let why = goodbye(&mut stream).await;
        assert_eq!(why.word, word, "{why}");
        assert!(why.why.contains(says), "{why}");
    }
    until("the end of all connections", || running.server.open() == 0).await;
    assert_eq!(running.server.counts().malformed, count);
    running.end().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_in_the_middle_of_a_frame_loses_that_frame_alone() {
    let mut running = Running::start("b", &tcp()).await;
    let mut stream = raw(&running.at).await;
    put(&mut stream, &hello("b"), 0).await;
    put(&mut stream, &ask(1), 1).await;
    let mut half = Vec::new();
    ask(2).encode(2, &mut half);
    stream.write_all(&half[..HEADER_BYTES - 1]).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(running.next().await.1, Message::Ask(ShuffleId(1)));
    let why = goodbye(&mut stream).await;
    assert!(why.why.contains("43 of its 44 bytes"), "{why}");
    until("the end of the connection", || running.server.open() == 0).await;
    assert!(running.messages.try_recv().is_err(), "half a frame is none");
    running.end().await;
}

#[tokio::test]
async fn whoever_says_nothing_is_let_go() {
    let running = Running::start("b", &tcp()).await;
    let mut silent = raw(&running.at).await;
    assert_eq!(goodbye(&mut silent).await.word, RefusalWord::ConnectionSilent, "no opening");
    let mut later = raw(&running.at).await;
    put(&mut later, &hello("b"), 0).await;
    assert_eq!(goodbye(&mut later).await.word, RefusalWord::ConnectionSilent, "no ping");
    until("counts", || running.server.counts().silent == 2).await;
    running.end().await;
}

#[tokio::test]
async fn an_idle_connection_stays_by_its_pings() {
    let mut running = Running::start("b", &tcp()).await;
    let (peers, to) = (sender(&running.at), peer("b").node);
    peers.send(&to, ask(1)).unwrap();
    running.next().await;
    tokio::time::sleep(2 * timing().silent).await;
    peers.send(&to, ask(2)).unwrap();
    running.next().await;
    assert_eq!((peers.counts().opened, peers.counts().failed), (1, 0));
    running.end().await;
}

#[tokio::test]
async fn a_node_that_took_over_an_address_gets_nothing_for_another_one() {
    let mut running = Running::start("c", &tcp()).await;
    let (peers, to) = (sender(&running.at), peer("b").node);
    peers.send(&to, ask(1)).unwrap();
    until("a refusal", || peers.counts().failed > 0).await;
    assert!(running.server.counts().refused > 0 && running.messages.try_recv().is_err());
    running.end().await;
}

/// What a fake node accepts: a connection to which it has said welcome.
async fn welcomed(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = soon("a connection", listener.accept()).await.unwrap();
    get(&mut stream).await.unwrap();
    put(&mut stream, &Control::Welcome(peer("b")).frame().unwrap(), 0).await;
    stream
}

#[tokio::test]
async fn r1_a_node_that_reads_nothing_holds_bulk_back_until_it_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peers = Arc::new(sender(&Address::Tcp(listener.local_addr().unwrap().to_string())));
    let (to, frame) = (peer("b").node, bulk(1 << 20));
    peers.send_bulk(&to, frame.clone()).await.unwrap();
    let stream = welcomed(&listener).await;
    // It answers no ping either, but that takes longer than this.
    let mut taken = 1;
    while timeout(Duration::from_millis(200), peers.send_bulk(&to, frame.clone()))
        .await
        .is_ok_and(|sent| sent.is_ok())
    {
        taken += 1;
        assert!(taken < 200, "{taken} MiB wait for a node that reads nothing");
        assert!(peers.waiting(&to).unwrap().1 <= PEER_BULK_BYTES + frame.bytes());
    }
    assert!(taken >= 2, "{taken}");
    let last = soon("an end", async {
        loop {
            peers.send_bulk(&to, frame.clone()).await?;
        }
    });
    let last: Result<(), Dropped> = last.await;
    assert_eq!(last, Err(Dropped::Away), "it is given up, and who waited is told");
    assert!(peers.counts().dropped_away > 0);
    drop(stream);
}

#[tokio::test]
async fn a_short_frame_waits_for_no_bulk_that_the_node_does_not_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peers = sender(&Address::Tcp(listener.local_addr().unwrap().to_string()));
    let to = peer("b").node;
    peers.send_bulk(&to, bulk(8 << 20)).await.unwrap();
    // The node reads nothing of it.
    let reads_nothing = welcomed(&listener).await;
    peers.send_bulk(&to, bulk(8 << 20)).await.unwrap();
    peers.send(&to, ask(1)).unwrap();
    let mut short = welcomed(&listener).await;
    let frame = soon("a short frame", async {
        loop {
            let frame = get(&mut short).await.unwrap();
            if frame.kind() != Kind::Ping {
                return frame;
            }
        }
    });
    assert_eq!(frame.await, ask(1));
    drop(reads_nothing);
}

#[tokio::test]
async fn a_node_that_comes_back_is_reached_again_and_gets_nothing_of_before() {
    let mut running = Running::start("b", &tcp()).await;
    let at = running.at.clone();
    let (peers, to) = (sender(&at), peer("b").node);
    peers.send(&to, ask(1)).unwrap();
    running.next().await;
    running.end().await;
    until("the end of the connection", || peers.counts().failed > 0).await;
    // While it is away what is sent is dropped, or waits for an attempt that fails.
    let _ = peers.send(&to, ask(2));
    let mut again = Running::start("b", &at).await;
    let comes = async {
        loop {
            let _ = peers.send(&to, ask(3));
            if let Ok((_, message)) = again.messages.try_recv() {
                return message;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let first = soon("a message to the next process", comes).await;
    assert_ne!(first, Message::Ask(ShuffleId(1)));
    assert!(peers.counts().opened >= 2);
    again.end().await;
}

#[tokio::test]
async fn a_connection_that_the_node_cuts_is_opened_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peers = sender(&Address::Tcp(listener.local_addr().unwrap().to_string()));
    let to = peer("b").node;
    peers.send(&to, ask(1)).unwrap();
    let mut first = welcomed(&listener).await;
    // In the middle of an answer.
    first.write_all(b"PSHF").await.unwrap();
    drop(first);
    until("the end of the connection", || peers.counts().failed == 1).await;
    until("room for another one", || peers.send(&to, ask(2)).is_ok()).await;
    let mut second = welcomed(&listener).await;
    let frame = loop {
        let frame = get(&mut second).await.unwrap();
        if frame.kind() != Kind::Ping {
            break frame;
        }
    };
    assert_eq!(frame, ask(2));
}

fn call(number: u64, what: Request) -> Call<Request> {
    Call { number, shuffle: ShuffleId(7), what }
}

fn records(bytes: usize) -> PackedRecords {
    let value = vec![1; bytes];
    PackedRecords::pack([(&b"key"[..], &value[..])])
}

#[tokio::test]
async fn clients_call_and_are_answered_over_tcp_and_unix_sockets() {
    let folder = TempDir::new().unwrap();
    for at in [tcp(), unix(&folder)] {
        let running = Running::start("b", &at).await;
        let mut client = ClientConnection::open(&running.at, timing()).await.unwrap();
        assert_eq!(client.node, peer("b"));
        let asked = [
            (Request::Open(1, AttemptId(2), Terms::default()), "Opened"),
            (Request::Records(1, records(100)), "Taken(1)"),
            (Request::Records(2, records(1 << 20)), "Taken(2)"),
            (Request::End(2, 9), "Sealed(2, 9)"),
            (Request::Status, "NotSealed"),
        ];
        for (number, (what, _)) in (1..).zip(&asked) {
            client.calls.send(&call(number, what.clone())).await.unwrap();
        }
        for (number, (_, says)) in (1..).zip(&asked) {
            let answer = soon("an answer", client.answers.next()).await.unwrap();
            assert_eq!((answer.number, answer.shuffle), (number, ShuffleId(7)));
            assert!(format!("{:?}", answer.what).contains(says), "{:?} is not {says}", answer.what);
        }
        running.end().await;
        let last = soon("last words", client.answers.next()).await;
        assert!(matches!(&last, Err(Closed::Refused(why)) if why.word == RefusalWord::Ending), "{last:?}");
    }
}

#[tokio::test]
async fn r1_a_client_is_held_back_by_a_node_that_does_not_read_and_goes_on_when_it_does() {
    let running = Running::start("b", &tcp()).await;
    let permits = running.calls.forget_permits(usize::MAX);
    let mut client = ClientConnection::open(&running.at, timing()).await.unwrap();
    let frame = records(1 << 20);
    let (calls, mut sent) = (client.calls.clone(), 0);
    let sends = tokio::spawn(async move {
        for number in 1..=64 {
            calls.send(&call(number, Request::Records(number, frame.clone()))).await?;
        }
        Ok::<(), Closed>(())
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!sends.is_finished(), "64 MiB do not fit into sockets");
    running.calls.add_permits(permits);
    while sent < 64 {
        let answer = soon("an answer", client.answers.next()).await.unwrap();
        sent += 1;
        assert_eq!(answer.what, Answer::Taken(sent));
    }
    soon("the sender", sends).await.unwrap().unwrap();
    running.end().await;
}

#[tokio::test]
async fn a_client_that_waits_is_kept_by_its_pings_and_a_silent_one_is_let_go() {
    let running = Running::start("b", &tcp()).await;
    let mut waits = ClientConnection::open(&running.at, timing()).await.unwrap();
    let silent = ClientConnection::open(&running.at, timing()).await.unwrap();
    let long = 2 * timing().client_silent;
    assert!(timeout(long, waits.answers.next()).await.is_err(), "there is no answer, and no end");
    until("one has been let go", || running.server.counts().silent == 1).await;
    until("its connection is closed", || running.server.open() == 1).await;
    drop((silent, waits));
    running.end().await;
}

#[tokio::test]
async fn a_connection_is_quiet_until_something_comes_or_it_ends() {
    let running = Running::start("b", &tcp()).await;
    let mut client = ClientConnection::open(&running.at, timing()).await.unwrap();
    assert!(client.answers.is_quiet(), "it was welcomed");
    client.calls.send(&call(1, Request::Delete)).await.unwrap();
    let end = async {
        while client.answers.is_quiet() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("the end", end).await;
    assert!(!client.answers.is_quiet(), "it is seen each time");
    assert_eq!(soon("the end", client.answers.next()).await, Err(Closed::Ended), "nothing was lost");
    running.end().await;
}

#[tokio::test]
async fn a_client_that_the_service_lets_go_hears_the_end() {
    let running = Running::start("b", &tcp()).await;
    let mut client = ClientConnection::open(&running.at, timing()).await.unwrap();
    client.calls.send(&call(1, Request::Delete)).await.unwrap();
    assert_eq!(soon("the end", client.answers.next()).await, Err(Closed::Ended));
    running.end().await;
}
