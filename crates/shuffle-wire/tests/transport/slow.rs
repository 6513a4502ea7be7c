//! Ends that take their time, and ends that are let go while something still goes out.

use super::*;
use std::sync::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// Reads until so many bytes have come, a little at a time.
async fn take_slowly(stream: &mut UnixStream, bytes: usize, rest: Duration) -> Bytes {
    let (mut taken, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    while taken.len() < bytes {
        let read = soon("bytes", stream.read(&mut piece)).await.unwrap();
        assert!(read > 0, "the connection was given up after {} of {bytes} bytes", taken.len());
        taken.extend_from_slice(&piece[..read]);
        sleep(rest).await;
    }
    Bytes::from(taken)
}

/// A fake node at a Unix socket: the connection to which it has said welcome.
async fn welcomed_unix(listener: &UnixListener) -> UnixStream {
    let (mut stream, _) = soon("a connection", listener.accept()).await.unwrap();
    get(&mut stream).await.unwrap();
    put(&mut stream, &Control::Welcome(peer("b")).frame().unwrap(), 0).await;
    stream
}

fn unix_listener(folder: &TempDir) -> (UnixListener, Address) {
    let path = folder.path().join("slow.sock");
    (UnixListener::bind(&path).unwrap(), Address::Unix(path))
}

/// The kinds of frames at the front of these bytes, up to the first long one.
fn kinds(mut bytes: Bytes) -> Vec<Kind> {
    let mut kinds = Vec::new();
    while kinds.last() != Some(&Kind::Records) {
        kinds.push(Frame::decode(&mut bytes).unwrap().0.kind());
    }
    kinds
}

#[tokio::test]
async fn a_node_that_takes_a_long_frame_slowly_is_not_silent() {
    let folder = TempDir::new().unwrap();
    let (listener, at) = unix_listener(&folder);
    let (peers, to) = (sender(&at), peer("b").node);
    let frame = bulk(8 << 20);
    peers.send_bulk(&to, frame.clone()).await.unwrap();
    let mut stream = welcomed_unix(&listener).await;
    // It answers no ping meanwhile, for three times as long as a silent node is kept. One ping may be before the frame.
    let rest = Duration::from_millis(25);
    let taken = take_slowly(&mut stream, frame.bytes() + HEADER_BYTES, rest).await;
    assert!(kinds(taken).contains(&Kind::Records), "it came whole");
    assert_eq!(peers.counts().failed, 0);
}

#[tokio::test]
async fn a_client_that_sends_a_long_frame_slowly_hears_the_answer() {
    let folder = TempDir::new().unwrap();
    let (listener, at) = unix_listener(&folder);
    let opening = tokio::spawn(async move { ClientConnection::open(&at, timing()).await });
    let mut stream = welcomed_unix(&listener).await;
    let ClientConnection { calls, mut answers, .. } = opening.await.unwrap().unwrap();
    let frame = call(1, Request::Records(1, records(8 << 20)));
    let bytes = frame.frame().unwrap().bytes();
    let sends = tokio::spawn(async move { calls.send(&frame).await });
    let hears = tokio::spawn(async move { answers.next().await });
    take_slowly(&mut stream, bytes, Duration::from_millis(40)).await;
    let answer = Call { number: 1, shuffle: ShuffleId(7), what: Answer::Taken(1) };
    put(&mut stream, &answer.frame().unwrap(), 1).await;
    assert_eq!(soon("an answer", hears).await.unwrap(), Ok(answer));
    assert_eq!(soon("the sender", sends).await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_client_whose_pings_are_not_taken_hears_answers() {
    let folder = TempDir::new().unwrap();
    let (listener, at) = unix_listener(&folder);
    // So that pings soon fill what the system keeps of them.
    let (ping, long) = (Duration::from_millis(1), 10 * PATIENCE);
    let pings = Timing { ping, client_silent: long, ..timing() };
    let opening = tokio::spawn(async move { ClientConnection::open(&at, pings).await });
    let mut stream = welcomed_unix(&listener).await;
    let mut client = opening.await.unwrap().unwrap();
    let hears = tokio::spawn(async move { client.answers.next().await });
    sleep(Duration::from_secs(2)).await;
    let answer = Call { number: 1, shuffle: ShuffleId(7), what: Answer::Alive };
    put(&mut stream, &answer.frame().unwrap(), 1).await;
    assert_eq!(soon("an answer", hears).await.unwrap(), Ok(answer));
}

#[tokio::test]
async fn a_node_that_refuses_what_it_is_sent_is_tried_ever_more_rarely() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peers = sender(&Address::Tcp(listener.local_addr().unwrap().to_string()));
    let refuses = tokio::spawn(async move {
        let again = partage_shuffle_wire::client::Again::No;
        let goodbye =
            Control::Goodbye(Refusal::new(RefusalWord::BadFrame, again, "not that")).frame().unwrap();
        loop {
            let mut stream = welcomed(&listener).await;
            put(&mut stream, &goodbye, 1).await;
        }
    });
    // As machines do that hear no answer.
    for _ in 0..400 {
        let _ = peers.send(&peer("b").node, ask(1));
        sleep(Duration::from_millis(10)).await;
    }
    let opened = peers.counts().opened;
    assert!((2..=35).contains(&opened), "{opened} connections in four seconds");
    refuses.abort();
}

/// Keeps what it could answer with.
#[derive(Clone, Default)]
struct Keeper {
    kept: Arc<Mutex<Option<Answers>>>,
}

impl Service for Keeper {
    async fn received(&self, _: &Peer, _: Received) {}

    async fn client(&self, calls: &mut Calls<'_>, answers: Answers) {
        *self.kept.lock().unwrap() = Some(answers);
        let _ = calls.next().await;
    }
}

/// A server of a keeper, a connection of a client to it, and what the keeper has kept.
async fn kept() -> (CancellationToken, tokio::task::JoinHandle<()>, TcpStream, Answers) {
    let keeper = Keeper::default();
    let listener = Listener::bind(&tcp()).await.unwrap();
    let at = listener.address().unwrap();
    let ending = CancellationToken::new();
    let server = Server::new(peer("b"), timing(), keeper.clone());
    let task = tokio::spawn(server.serve(listener, ending.clone()));
    let mut stream = raw(&at).await;
    put(&mut stream, &Control::Hello(Hello::Client).frame().unwrap(), 0).await;
    get(&mut stream).await.unwrap();
    until("the service", || keeper.kept.lock().unwrap().is_some()).await;
    let answers = keeper.kept.lock().unwrap().take().unwrap();
    (ending, task, stream, answers)
}

fn long_answer() -> Call<Answer> {
    Call { number: 1, shuffle: ShuffleId(7), what: Answer::Read(records(1 << 20)) }
}

#[tokio::test]
async fn an_answer_that_outlives_its_connection_keeps_nothing_open() {
    let (ending, task, mut stream, answers) = kept().await;
    put(&mut stream, &call(1, Request::Delete).frame().unwrap(), 1).await;
    assert_eq!(get(&mut stream).await, None, "the service has let it go");
    // The rest goes nowhere: where the socket is still open, it fills what the system keeps, and waits.
    let zeros = vec![0; 64 << 10];
    let fills = async { while stream.write_all(&zeros).await.is_ok() {} };
    soon("the end of the socket", fills).await;
    assert_eq!(answers.send(&long_answer()).await, Err(Closed::Ended));
    ending.cancel();
    soon("the end of the server", task).await.unwrap();
}

#[tokio::test]
async fn an_answer_under_way_ends_with_its_server() {
    for is_dropped in [false, true] {
        let (ending, task, stream, answers) = kept().await;
        let sends = tokio::spawn(async move {
            loop {
                if let Err(closed) = answers.send(&long_answer()).await {
                    return (closed, answers);
                }
            }
        });
        sleep(Duration::from_millis(300)).await;
        assert!(!sends.is_finished(), "the client reads nothing");
        if is_dropped {
            task.abort()
        } else {
            ending.cancel()
        }
        let (closed, answers) = soon("the answer", sends).await.unwrap();
        assert_eq!(closed, Closed::Ended);
        let ends = soon("the end of the server", task).await;
        assert_ne!(ends.is_ok(), is_dropped);
        let again = soon("another answer", answers.send(&long_answer())).await;
        assert_eq!(again, Err(Closed::Ended));
        drop(stream);
    }
}

/// Hands on the kinds of calls, while a long answer goes out.
struct Talker {
    kinds: mpsc::Sender<Kind>,
}

impl Service for Talker {
    async fn received(&self, _: &Peer, _: Received) {}

    async fn client(&self, calls: &mut Calls<'_>, answers: Answers) {
        let talks = tokio::spawn(async move { while answers.send(&long_answer()).await.is_ok() {} });
        while let Some(call) = calls.next().await {
            self.kinds.send(call.frame().unwrap().kind()).await.unwrap();
        }
        talks.abort();
    }
}

#[tokio::test]
async fn a_ping_does_not_wait_behind_a_long_answer() {
    let (sender, mut kinds) = mpsc::channel(8);
    let listener = Listener::bind(&tcp()).await.unwrap();
    let at = listener.address().unwrap();
    let ending = CancellationToken::new();
    // Nothing is given up here in time.
    let patient = Timing { client_silent: 10 * PATIENCE, ..timing() };
    let server = Server::new(peer("b"), patient, Talker { kinds: sender });
    let task = tokio::spawn(server.serve(listener, ending.clone()));
    let mut stream = raw(&at).await;
    put(&mut stream, &Control::Hello(Hello::Client).frame().unwrap(), 0).await;
    get(&mut stream).await.unwrap();
    // Until answers fill what the system keeps.
    sleep(Duration::from_millis(300)).await;
    put(&mut stream, &Control::Ping.frame().unwrap(), 1).await;
    put(&mut stream, &call(1, Request::Status).frame().unwrap(), 2).await;
    assert_eq!(soon("the call", kinds.recv()).await, Some(Kind::AskStatus));
    ending.cancel();
    soon("the end of the server", task).await.unwrap();
}
