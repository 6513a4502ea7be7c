//! Which connections to close: a client that sends no request for long, begins a request and does not go on, or reads
//! nothing of its answer.
//!
//! An HTTP/2 client can stall without full network buffers: it grants no flow-control window, and still answers
//! hyper's pings. So what counts here is the progress of requests and answers.

use crate::limits;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The use of a connection. Times are in nanoseconds since it began.
#[derive(Debug)]
pub(crate) struct Usage {
    began: Instant,
    /// Requests that have come.
    begun: AtomicU64,
    /// Requests without a complete answer.
    open: AtomicU64,
    /// When the connection last made progress: a request began or ended, or a piece of a body went through.
    moved: AtomicU64,
    /// When the first byte of a request came whose head is not whole; 0 for none.
    head: AtomicU64,
}

/// How long a connection may be of no use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimeouts {
    /// How long it may have no request.
    pub idle: Duration,
    /// How long the head of a request may take.
    pub head: Duration,
    /// How long an open request may make no progress; none: no limit.
    pub stalled: Option<Duration>,
}

/// Why a connection is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// It has had no request for long.
    Idle,
    /// The head of a request has begun, and does not end.
    Head,
    /// An open request makes no progress.
    Stalled,
}

impl Usage {
    /// The use of a connection that begins.
    pub(crate) fn new() -> Arc<Usage> {
        Arc::new(Usage {
            began: Instant::now(),
            begun: AtomicU64::new(0),
            open: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            head: AtomicU64::new(0),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// A request has come. It is open until the return value is dropped.
    pub(crate) fn begin(self: &Arc<Usage>) -> OpenRequest {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.head.store(0, Ordering::Relaxed);
        self.touch();
        OpenRequest(self.clone())
    }

    /// How many requests have come, and how many of those are open.
    pub(crate) fn requests(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.open.load(Ordering::Relaxed))
    }

    /// Notes that the connection makes progress at this moment.
    pub(crate) fn touch(&self) {
        self.moved.store(self.now(), Ordering::Relaxed);
    }

    /// Bytes have come: with no request open, they begin the head of one.
    fn heard(&self) {
        if self.open.load(Ordering::Relaxed) == 0 && self.head.load(Ordering::Relaxed) == 0 {
            self.head.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Waits until the connection is of no use.
    pub(crate) async fn ended(&self, timeouts: &ConnectionTimeouts) -> CloseReason {
        loop {
            let (moved, head) = (self.moved.load(Ordering::Relaxed), self.head.load(Ordering::Relaxed));
            let (since, most, reason) = match (self.open.load(Ordering::Relaxed), head) {
                (0, 0) => (moved, Some(timeouts.idle), CloseReason::Idle),
                (0, head) => (head, Some(timeouts.head), CloseReason::Head),
                _ => (moved, timeouts.stalled, CloseReason::Stalled),
            };
            let rested = Duration::from_nanos(self.now().saturating_sub(since));
            let rest = match most {
                Some(most) if rested >= most => return reason,
                Some(most) => most - rested,
                None => limits::LOOK,
            };
            // A head may begin meanwhile, and must not take much longer than it may.
            tokio::time::sleep(rest.min(limits::LOOK).min(timeouts.head)).await;
        }
    }
}

/// A request without a complete answer.
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Usage>);

impl OpenRequest {
    pub(crate) fn touch(&self) {
        self.0.touch();
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.touch();
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that reports the first bytes of a request.
#[derive(Debug)]
pub(crate) struct TrackedStream<S> {
    inner: S,
    usage: Arc<Usage>,
}

impl<S> TrackedStream<S> {
    pub(crate) fn new(inner: S, usage: Arc<Usage>) -> TrackedStream<S> {
        TrackedStream { inner, usage }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(context, into));
        if into.filled().len() > before {
            self.usage.heard();
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LONG: Duration = Duration::from_secs(3_600);
    const SHORT: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn nothing_asked_is_idle_half_a_head_is_slow_and_nothing_moved_is_stalled() {
        let usage = Usage::new();
        let idle = ConnectionTimeouts { idle: SHORT, head: LONG, stalled: None };
        assert_eq!(usage.ended(&idle).await, CloseReason::Idle);
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = TrackedStream::new(server, usage.clone());
        client.write_all(b"GET").await.unwrap();
        server.read_u8().await.unwrap();
        let head = ConnectionTimeouts { idle: LONG, head: SHORT, stalled: None };
        assert_eq!(usage.ended(&head).await, CloseReason::Head);
        let open = usage.begin();
        server.read_u8().await.unwrap();
        let stalled = ConnectionTimeouts { idle: SHORT, head: SHORT, stalled: Some(SHORT) };
        assert_eq!(usage.ended(&stalled).await, CloseReason::Stalled);
        let patient = ConnectionTimeouts { stalled: None, ..stalled };
        tokio::time::timeout(10 * SHORT, usage.ended(&patient)).await.unwrap_err();
        drop(open);
        assert_eq!(usage.ended(&idle).await, CloseReason::Idle);
    }
}
