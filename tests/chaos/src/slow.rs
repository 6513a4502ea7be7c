//! A proxy before an engine that makes each of its commits take long, while sessions live: their renewals go through. (On
//! MariaDB and ZooKeeper a renewal writes, too. One that takes as long as a session, 3 s, ends it, and the lead with it.)
//!
//! | engine    | what is a commit                                                     | what waits behind it            |
//! |-----------|----------------------------------------------------------------------|---------------------------------|
//! | etcd      | each call of `KV/Txn`, also those that only read                     | nothing: a proxy for gRPC       |
//! | MariaDB   | each message with `COMMIT`                                           | who wants a row that it locked  |
//! | ZooKeeper | each `multi`                                                         | what the same session asks next |

use crate::engine::Engine;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// What etcd's clients call to change something.
const TXN: &str = "/etcdserverpb.KV/Txn";

/// What ends a transaction on MariaDB; not the "READ COMMITTED" of each new connection.
const COMMIT: &[u8] = b";COMMIT";

/// The kind of ZooKeeper's request that does several things at once.
const MULTI: i32 = 14;

/// The length of a request of ZooKeeper, and its number and kind, in bytes.
const HEADER: usize = 12;

/// The proxy, on an address of its own. It goes with its handle.
#[derive(Debug)]
pub struct Slow {
    address: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    delay: watch::Sender<Duration>,
    delayed: AtomicUsize,
}

impl State {
    async fn commit(&self) {
        let delay = *self.delay.borrow();
        if !delay.is_zero() {
            self.delayed.fetch_add(1, Ordering::Relaxed);
            sleep(delay).await;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Dialect {
    Grpc,
    Sql,
    ZooKeeper,
}

impl Slow {
    /// Before `engine`. At first nothing takes longer.
    pub async fn before(engine: &Engine) -> Slow {
        let dialect = match engine {
            Engine::Etcd(_) => Dialect::Grpc,
            Engine::MariaDb(_) => Dialect::Sql,
            Engine::ZooKeeper(_) => Dialect::ZooKeeper,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State { delay: watch::Sender::default(), delayed: AtomicUsize::default() });
        let task = tokio::spawn(run(listener, engine.address(), dialect, state.clone()));
        Slow { address, state, task }
    }

    /// Where the proxy listens, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// From now on each commit takes that much longer.
    pub fn delay(&self, delay: Duration) {
        self.state.delay.send_replace(delay);
    }

    /// How many commits took longer so far.
    pub fn delayed(&self) -> usize {
        self.state.delayed.load(Ordering::Relaxed)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(listener: TcpListener, target: String, dialect: Dialect, state: Arc<State>) {
    loop {
        let Ok((from, _)) = listener.accept().await else { continue };
        let (target, state) = (target.clone(), state.clone());
        tokio::spawn(async move {
            let Ok(to) = TcpStream::connect(&target).await else { return };
            if from.set_nodelay(true).and(to.set_nodelay(true)).is_err() {
                return;
            }
            match dialect {
                Dialect::Grpc => carry_calls(from, to, state).await,
                Dialect::Sql | Dialect::ZooKeeper => carry_bytes(from, to, dialect, &state).await,
            }
        });
    }
}

/// Each call as it comes, whatever became of those before it.
async fn carry_calls(from: TcpStream, to: TcpStream, state: Arc<State>) {
    let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(to)).await;
    let Ok((sender, connection)) = made else { return };
    let call = service_fn(move |request: Request<Incoming>| {
        let (mut sender, state) = (sender.clone(), state.clone());
        async move {
            if request.uri().path() == TXN {
                state.commit().await;
            }
            sender.send_request(request).await
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // Either end may close it.
    tokio::select! {
        _ = connection => {}
        _ = server.serve_connection(TokioIo::new(from), call) => {}
    }
}

async fn carry_bytes(from: TcpStream, to: TcpStream, dialect: Dialect, state: &State) {
    let (from_read, mut from_write) = from.into_split();
    let (mut to_read, to_write) = to.into_split();
    let there = async {
        match dialect {
            Dialect::ZooKeeper => requests(from_read, to_write, state).await,
            Dialect::Grpc | Dialect::Sql => statements(from_read, to_write, state).await,
        }
    };
    tokio::select! {
        _ = there => {}
        _ = tokio::io::copy(&mut to_read, &mut from_write) => {}
    }
}

async fn statements(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) -> std::io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        let bytes = from.read(&mut piece).await?;
        let piece = &piece[..bytes];
        if bytes == 0 {
            return Ok(());
        }
        if piece.windows(COMMIT.len()).any(|part| part == COMMIT) {
            state.commit().await;
        }
        to.write_all(piece).await?;
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length).await?;
        let mut request = length.to_vec();
        request.resize(length.len() + u32::from_be_bytes(length) as usize, 0);
        from.read_exact(&mut request[4..]).await?;
        let kind = request.get(8..HEADER).and_then(|kind| kind.try_into().ok()).map(i32::from_be_bytes);
        if kind == Some(MULTI) {
            state.commit().await;
        }
        to.write_all(&request).await?;
    }
}
