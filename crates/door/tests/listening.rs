//! A door that listens, and clients on real connections that say nothing, say it too slowly, come too often, or ask for
//! another.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use partage_door::{Budget, Door, Reason, RequestBody, Role, Service, Settings};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// A time-out of the door under test.
const SHORT: Duration = Duration::from_millis(300);

/// A time that must not run out.
const LONG: Duration = Duration::from_secs(600);

/// How long a client waits for the door on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers with the length of the body; at `/unread` without having read it, and the answer never ends, as for a client that
/// does not take it.
#[derive(Clone)]
struct Measure;

/// A body that never ends.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

impl Service for Measure {
    type Body = Either<Full<Bytes>, Endless>;

    async fn answer(&self, request: Request<RequestBody>) -> Response<Self::Body> {
        if request.uri().path() == "/unread" {
            return Response::new(Either::Right(Endless));
        }
        let mut response = Response::new(Full::default());
        match request.into_body().collect().await {
            Ok(body) => *response.body_mut() = Full::from(body.to_bytes().len().to_string()),
            Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
        }
        response.map(Either::Left)
    }
}

struct Listening {
    door: Door,
    address: SocketAddr,
    /// The door listens until it is dropped.
    _stop: watch::Sender<bool>,
}

/// Longest body that the door reads if its length is announced.
const LONGEST: u64 = 6 << 20;

async fn listening(settings: Settings) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let door = Door::new(Role { body_bytes: LONGEST, ..Role::default() }, settings);
    let (_stop, stopped) = watch::channel(false);
    let listens = door.clone();
    tokio::spawn(async move { listens.listen_with(listener, |_| Measure, stopped).await });
    Listening { door, address, _stop }
}

fn patient() -> Settings {
    Settings { first_byte: LONG, head: LONG, body_window: LONG, ..Settings::default() }
}

impl Listening {
    /// A connection from this address of this machine.
    async fn connect_from(&self, from: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0)).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn connect(&self) -> TcpStream {
        self.connect_from("127.0.0.1").await
    }

    /// A connection that announces a body of so many bytes, and sends none of them.
    async fn announce(&self, bytes: u64) -> TcpStream {
        self.announce_from("127.0.0.1", bytes).await
    }

    async fn announce_from(&self, from: &str, bytes: u64) -> TcpStream {
        let mut stream = self.connect_from(from).await;
        let head = format!(
            "POST / HTTP/1.1\r\nhost: localhost\r\npartage-request: 1\r\nconnection: close\r\n\
             content-length: {bytes}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// The status that a request with these headers gets on a connection of its own.
    async fn ask(&self, headers: &str) -> u16 {
        let mut stream = self.connect().await;
        let request = format!("GET / HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        status(&rest(&mut stream).await)
    }
}

/// What the door still says before it closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    // A connection that the door closes with bytes unread is reset.
    let _ = read.expect("the door closes the connection");
    String::from_utf8(said).unwrap()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

/// Asks once and keeps the connection. The head of the answer; empty if the door closes the connection instead.
async fn ask_on(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.ok()?;
        // The body is one digit.
        while !answer.ends_with(b"\r\n\r\n0") {
            answer.push(stream.read_u8().await.ok()?);
        }
        Some(())
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("the door answers or closes");
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_after_the_first_byte_time_out() {
    let listening = listening(Settings { first_byte: SHORT, ..patient() }).await;
    let began = Instant::now();
    let mut silent = listening.connect().await;
    assert_eq!(rest(&mut silent).await, "");
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    assert_eq!(listening.door.counts().of(Reason::Silent), 1);
    assert_eq!(listening.ask("host: localhost\r\n").await, 200);
}

#[tokio::test]
async fn a_connection_with_half_a_head_is_closed_after_the_head_time_out() {
    let listening = listening(Settings { head: SHORT, ..patient() }).await;
    for half in ["GET / HTTP/1.1\r\nhost: local", "G"] {
        let began = Instant::now();
        let mut slow = listening.connect().await;
        slow.write_all(half.as_bytes()).await.unwrap();
        assert_eq!(rest(&mut slow).await, "", "{half:?}");
        let took = began.elapsed();
        assert!(took >= SHORT && took < 10 * SHORT, "{half:?}: {took:?}");
    }
    assert_eq!(listening.door.counts().of(Reason::SlowHead), 2);
    // Bytes that keep coming do not make the time longer.
    let mut trickling = listening.connect().await;
    let began = Instant::now();
    while trickling.write_all(b"G").await.is_ok() {
        assert!(began.elapsed() < PATIENCE, "the door reads on");
        tokio::time::sleep(SHORT / 10).await;
    }
    assert_eq!(listening.door.counts().of(Reason::SlowHead), 3);
}

#[tokio::test]
async fn a_body_below_the_least_rate_is_told_408_and_one_above_it_is_read() {
    let settings = Settings { body_bytes_s: 100, body_window: SHORT, ..patient() };
    let listening = listening(settings).await;
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\npartage-request: 1\r\nconnection: close\r\n\
                content-length: 300\r\n\r\n";
    let send = async |piece: usize| {
        let mut stream = listening.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let pieces = async {
            for _ in 0..300 / piece {
                // The door may have refused the rest.
                let _ = writing.write_all(&vec![b'x'; piece]).await;
                tokio::time::sleep(SHORT / 6).await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        let answered = async {
            // What the door does not read resets the connection, after the answer.
            let _ = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut answer)).await.unwrap();
        };
        tokio::select! {
            () = answered => {}
            () = pieces => {}
        }
        String::from_utf8(answer).unwrap()
    };
    // 20 bytes a second.
    let refused = send(1).await;
    assert_eq!(status(&refused), 408, "{refused}");
    assert!(refused.contains("\"too_slow\""), "{refused}");
    assert_eq!(listening.door.counts().of(Reason::SlowBody), 1);
    // 600 bytes a second.
    let read = send(30).await;
    assert_eq!(status(&read), 200, "{read}");
    assert!(read.ends_with("\r\n\r\n300"), "{read}");
    assert_eq!(listening.door.counts().of(Reason::SlowBody), 1);
}

/// A stream may rest between two messages, and a message that comes then has a whole window for itself.
#[tokio::test]
async fn a_message_that_begins_at_the_end_of_a_window_is_not_too_slow() {
    let window = 4 * SHORT;
    let settings = Settings { body_bytes_s: 1_000, body_window: window, ..patient() };
    let listening = listening(settings).await;
    let mut stream = listening.connect().await;
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/grpc\r\nconnection: close\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(window * 5 / 6).await;
    let message = [&[0, 0, 0, 0, 200][..], &[b'x'; 200]].concat();
    for piece in message.chunks(41) {
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        stream.write_all(&chunk).await.unwrap();
        tokio::time::sleep(window / 12).await;
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(status(&answer) == 200 && answer.ends_with("\r\n\r\n205"), "{answer}");
    assert_eq!(listening.door.counts().of(Reason::SlowBody), 0);
}

/// So a thousand of them cost a thousand heads.
#[tokio::test]
async fn large_bodies_beyond_the_budget_or_the_limit_are_refused_by_their_heads() {
    let budget = Arc::new(Budget::new(8 << 20, Some(7 << 20)));
    let listening = listening(Settings { budget: budget.clone(), ..patient() }).await;
    let too_large = rest(&mut listening.announce(LONGEST + 1).await).await;
    assert_eq!(status(&too_large), 413, "{too_large}");
    assert!(too_large.contains("\"too_large\"") && too_large.contains(&LONGEST.to_string()), "{too_large}");
    assert_eq!((listening.door.counts().of(Reason::TooLarge), budget.used()), (1, 0));
    let mut first = listening.announce(5 << 20).await;
    let until = Instant::now() + PATIENCE;
    while budget.used() < 5 << 20 {
        assert!(Instant::now() < until, "the announced body is never counted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = rest(&mut listening.announce(5 << 20).await).await;
    assert_eq!(status(&second), 503, "{second}");
    assert!(second.contains("retry-after: 1\r\n"), "{second}");
    assert_eq!(listening.door.counts().of(Reason::Bytes), 1);
    let mut small = listening.announce(3).await;
    small.write_all(b"abc").await.unwrap();
    assert_eq!(status(&rest(&mut small).await), 200, "small ones are read meanwhile");
    first.write_all(&vec![b'x'; 5 << 20]).await.unwrap();
    let answer = rest(&mut first).await;
    assert!(answer.ends_with(&format!("\r\n\r\n{}", 5 << 20)), "{answer}");
    let until = Instant::now() + PATIENCE;
    while budget.used() > 0 {
        assert!(Instant::now() < until, "the body is still counted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// So one client does not keep all others from sending large ones.
#[tokio::test]
async fn the_large_bodies_of_one_address_have_half_of_the_budget() {
    let budget = Arc::new(Budget::new(16 << 20, None));
    let listening = listening(Settings { budget: budget.clone(), ..patient() }).await;
    let too_large = rest(&mut listening.announce(8 << 20).await).await;
    assert_eq!(status(&too_large), 413, "it would never fit: {too_large}");
    let held = listening.announce(5 << 20).await;
    let until = Instant::now() + PATIENCE;
    while budget.used() < 5 << 20 {
        assert!(Instant::now() < until, "the announced body is never counted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = rest(&mut listening.announce(5 << 20).await).await;
    assert_eq!(status(&refused), 503, "{refused}");
    assert!(refused.contains("from this address") && refused.contains("per_address"), "{refused}");
    let mut another = listening.announce_from("127.0.0.2", 5 << 20).await;
    another.write_all(&vec![b'x'; 5 << 20]).await.unwrap();
    assert_eq!(status(&rest(&mut another).await), 200);
    drop(held);
}

/// The service answers without it: it was never in memory.
#[tokio::test]
async fn a_large_body_that_the_service_does_not_read_is_given_back() {
    let budget = Arc::new(Budget::new(8 << 20, Some(7 << 20)));
    let listening = listening(Settings { budget: budget.clone(), ..patient() }).await;
    let mut stream = listening.connect().await;
    let head = format!("GET /unread HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", 5 << 20);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let until = Instant::now() + PATIENCE;
    while budget.used() > 0 {
        assert!(Instant::now() < until, "{} bytes are still counted", budget.used());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A few of them would keep all others out.
#[tokio::test]
async fn a_large_body_must_be_there_in_time_and_a_small_one_may_take_longer() {
    let settings = Settings { large_body: 4 * SHORT, ..patient() };
    let listening = listening(settings).await;
    for (bytes, expected) in [(6_u64 << 20, 408), (600, 200)] {
        let (mut reading, mut writing) = listening.announce(bytes).await.into_split();
        let trickle = async {
            // 600 in ten times SHORT: a thousand times too slow for 6 MiB in four.
            for _ in 0..60 {
                let _ = writing.write_all(&[b'x'; 10]).await;
                tokio::time::sleep(SHORT / 6).await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        let answered = async {
            let _ = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut answer)).await.unwrap();
        };
        tokio::select! {
            () = answered => {}
            () = trickle => {}
        }
        assert_eq!(status(&String::from_utf8(answer).unwrap()), expected, "{bytes} bytes");
    }
}

#[tokio::test]
async fn an_address_beyond_its_share_is_refused_while_another_one_is_served() {
    let settings = Settings { connections: Some(400), connections_per_address: Some(2), ..patient() };
    let listening = listening(settings).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = listening.connect().await;
        assert_eq!(status(&ask_on(&mut stream).await), 200);
        kept.push(stream);
    }
    let mut third = listening.connect().await;
    let answer = ask_on(&mut third).await;
    assert_eq!(status(&answer), 200, "one in the reserve may ask once: {answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert_eq!(rest(&mut third).await, "");
    // Half heads keep the reserve.
    for _ in 0..partage_door::limits::RESERVE {
        let mut stream = listening.connect().await;
        stream.write_all(b"GET ").await.unwrap();
        kept.push(stream);
    }
    let until = Instant::now() + PATIENCE;
    while listening.door.counts().of(Reason::Address) == 0 {
        assert!(Instant::now() < until, "the address is never refused");
        assert_eq!(ask_on(&mut listening.connect().await).await.len().min(1), 0);
    }
    let mut other = listening.connect_from("127.0.0.2").await;
    for _ in 0..2 {
        let answer = ask_on(&mut other).await;
        assert_eq!(status(&answer), 200, "another address is served: {answer}");
        assert!(!answer.contains("connection: close"), "{answer}");
    }
    assert_eq!(status(&ask_on(&mut kept[0]).await), 200, "those who have a place keep it");
    drop(kept);
    let until = Instant::now() + PATIENCE;
    while listening.door.connections() > 1 {
        assert!(Instant::now() < until, "places of closed connections stay taken");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut again = listening.connect().await;
    assert!(!ask_on(&mut again).await.contains("connection: close"), "places come free again");
}

#[tokio::test]
async fn hosts_and_origins_are_those_of_the_listener_and_those_that_an_operator_allows() {
    let allowed_hosts = vec!["shop.example".to_owned(), "ops.example:8080".to_owned()];
    let allowed_origins = vec!["https://app.example".to_owned()];
    let open = listening(Settings { allowed_hosts, allowed_origins, ..patient() }).await;
    let closed = listening(patient()).await;
    let own = format!("host: {}\r\n", open.address);
    for (headers, with, without) in [
        ("host: localhost\r\n", 200, 200),
        ("host: shop.example\r\n", 200, 421),
        ("host: SHOP.example:99\r\n", 200, 421),
        ("host: ops.example:8080\r\n", 200, 421),
        ("host: ops.example:8081\r\n", 421, 421),
        ("host: evil.example\r\n", 421, 421),
        ("host: localhost\r\norigin: https://app.example\r\n", 200, 403),
        ("host: localhost\r\norigin: https://app.example\r\nsec-fetch-site: cross-site\r\n", 200, 403),
        ("host: localhost\r\norigin: http://app.example\r\n", 403, 403),
        ("host: localhost\r\norigin: https://evil.example\r\n", 403, 403),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n", 403, 403),
    ] {
        assert_eq!(open.ask(headers).await, with, "allowed by name: {headers}");
        assert_eq!(closed.ask(headers).await, without, "nothing allowed: {headers}");
    }
    assert_eq!(open.ask(&own).await, 200);
    assert_eq!(closed.door.counts().of(Reason::Host), 5);
    assert_eq!(closed.door.counts().of(Reason::Origin), 5);
    let any = Settings { allowed_hosts: vec!["*".into()], allowed_origins: vec!["*".into()], ..patient() };
    let any = listening(any).await;
    assert_eq!(any.ask("host: evil.example\r\norigin: https://evil.example\r\n").await, 200);
}
