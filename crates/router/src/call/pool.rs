//! Connections to nodes, kept for the next request.
//!
//! The request that uses a connection drives it, in the same task: sending, waiting and reading need no
//! other task to wake, which saves a proxy a good part of its work. No task drives an idle one; before
//! a request uses it, one poll shows whether the node has closed it.
//!
//! Not here: a library's pool (hyper-util's spawns a task for each connection, and takes a lock and a hash of
//! the address for each request; here the number of the node is an index).

use super::body::Outgoing;
use crate::limits;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use partage_core::base::time::Millis;
use partage_core::node::NodeAddress;
use partage_dialer::Dialer;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The half of a connection that reads and writes while polled.
type ConnectionFuture = Pin<Box<Connection<TokioIo<TcpStream>, Outgoing>>>;

/// An open connection; the request that uses it drives it, in its own task.
pub struct Connected {
    send: SendRequest<Outgoing>,
    /// None once the connection has ended.
    connection: Option<ConnectionFuture>,
    idle_since: Instant,
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected").field("open", &self.connection.is_some()).finish_non_exhaustive()
    }
}

/// A request that got no answer.
pub enum Unanswered {
    /// Nothing of it was sent: here it is.
    Unsent(Box<Request<Outgoing>>),
    /// Some of it may have arrived.
    Broken(hyper::Error),
}

impl Connected {
    /// Dials, and shakes hands for HTTP/1.1; no request is sent.
    pub async fn open(address: &str) -> Result<Connected, String> {
        let stream = Dialer::PEER.tcp(address).await.map_err(|error| error.to_string())?;
        let (send, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        Ok(Connected { send, connection: Some(Box::pin(connection)), idle_since: Instant::now() })
    }

    /// Polls its I/O once.
    pub fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// Whether it takes a request, as far as can be told without sending one.
    fn takes(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        self.connection.is_some() && matches!(self.send.poll_ready(context), Poll::Ready(Ok(())))
    }

    /// Sends a request and waits for the head of its answer.
    pub async fn exchange(&mut self, request: Request<Outgoing>) -> Result<Response<Incoming>, Unanswered> {
        let Connected { send, connection, .. } = self;
        let mut answer = pin!(send.try_send_request(request));
        let answer = poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            if let Some(open) = connection
                && open.as_mut().poll(context).is_ready()
            {
                // Its request ends with it.
                *connection = None;
            }
            answer.as_mut().poll(context)
        });
        answer.await.map_err(|mut error| match error.take_message() {
            Some(request) => Unanswered::Unsent(Box::new(request)),
            None => Unanswered::Broken(error.into_error()),
        })
    }
}

#[derive(Debug, Default)]
struct Slot {
    node: Option<Arc<NodeAddress>>,
    idle: Vec<Connected>,
    failed_at: Option<Millis>,
}

/// The connections of one caller, by the number of the node.
#[derive(Debug, Default)]
pub struct Pools {
    slots: Mutex<Vec<Slot>>,
}

/// Where a connection belongs. A node that only a hint has named has no number, and its connection no pool.
#[derive(Debug, Clone)]
pub struct PoolHandle {
    pools: Arc<Pools>,
    place: Option<(u32, Arc<NodeAddress>)>,
}

impl PoolHandle {
    pub fn new(pools: &Arc<Pools>, place: Option<(u32, Arc<NodeAddress>)>) -> PoolHandle {
        PoolHandle { pools: pools.clone(), place }
    }

    pub fn give_back(self, mut connected: Connected) {
        let Some((number, node)) = self.place else { return };
        if connected.connection.is_none() || connected.send.is_closed() {
            return;
        }
        let mut slots = self.pools.slots();
        let Some(slot) = slots.get_mut(number as usize) else { return };
        let same = slot.node.as_ref().is_some_and(|known| is_same_place(known, &node));
        if same && slot.idle.len() < limits::IDLE_CONNECTIONS {
            connected.idle_since = Instant::now();
            slot.idle.push(connected);
        }
    }
}

/// A node keeps its connections when only its health changes; a new incarnation does not.
fn is_same_place(a: &Arc<NodeAddress>, b: &Arc<NodeAddress>) -> bool {
    Arc::ptr_eq(a, b) || (a.incarnation == b.incarnation && a.address == b.address && a.id == b.id)
}

impl Pools {
    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open idle connection used last. Closed ones are dropped on the way.
    pub async fn take(&self, number: u32, node: &Arc<NodeAddress>) -> Option<Connected> {
        loop {
            let mut connected = self.pop(number, node)?;
            let fresh = connected.idle_since.elapsed() < limits::IDLE;
            if fresh && poll_fn(|context| Poll::Ready(connected.takes(context))).await {
                return Some(connected);
            }
        }
    }

    fn pop(&self, number: u32, node: &Arc<NodeAddress>) -> Option<Connected> {
        let mut slots = self.slots();
        let number = number as usize;
        if slots.len() <= number {
            slots.resize_with(number + 1, Slot::default);
        }
        let slot = &mut slots[number];
        if !slot.node.as_ref().is_some_and(|known| is_same_place(known, node)) {
            *slot = Slot { node: Some(node.clone()), ..Slot::default() };
        }
        slot.idle.pop()
    }

    /// A connection to that node failed or broke.
    pub fn failed(&self, number: u32, now: Millis) {
        if let Some(slot) = self.slots().get_mut(number as usize) {
            slot.failed_at = Some(now);
            slot.idle.clear();
        }
    }

    /// When that node last failed.
    pub fn failed_at(&self, number: u32) -> Option<Millis> {
        self.slots().get(number as usize)?.failed_at
    }

    /// Closes what has been idle for too long, or was closed by its node.
    pub fn sweep(&self) {
        let mut context = Context::from_waker(Waker::noop());
        for slot in self.slots().iter_mut() {
            slot.idle.retain_mut(|idle| idle.idle_since.elapsed() < limits::IDLE && idle.takes(&mut context));
        }
    }
}
