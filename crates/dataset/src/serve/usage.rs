//! Whether a connection is still of use: who asks nothing for long, or takes nothing of what is answered, is let go.
//!
//! A client of HTTP/2 need not leave the network's buffers full to take nothing: it just gives no leave to send, and
//! answers every sign of life that hyper asks for. So here it counts whether anything of a request or an answer has moved.

use crate::clock::Clock;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// What is known of the use of a connection.
#[derive(Debug)]
pub struct Usage {
    clock: Clock,
    /// Requests that have come and are not answered to the end.
    open: AtomicU64,
    /// When something moved last, by the clock.
    moved: AtomicU64,
}

/// Why a connection is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Useless {
    /// Nothing is asked.
    Idle,
    /// Something was asked, and nothing of it moves.
    Stalled,
}

impl Usage {
    /// Of a connection that begins.
    pub fn new(clock: Clock) -> Arc<Usage> {
        Arc::new(Usage { clock, open: AtomicU64::new(0), moved: AtomicU64::new(clock.nanos()) })
    }

    /// A request has come. It is open until what is returned is dropped.
    pub fn begin(self: &Arc<Usage>) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Open(self.clone())
    }

    /// Something moves.
    pub fn touch(&self) {
        self.moved.store(self.clock.nanos(), Ordering::Relaxed);
    }

    /// Waits until nothing was asked for `idle`, or nothing has moved for `patience` of what was.
    pub async fn ended(&self, idle: Duration, patience: Duration) -> Useless {
        loop {
            let (most, useless) = match self.open.load(Ordering::Relaxed) {
                0 => (idle, Useless::Idle),
                _ => (patience, Useless::Stalled),
            };
            let rested = self.clock.nanos().saturating_sub(self.moved.load(Ordering::Relaxed));
            let rested = Duration::from_nanos(rested);
            if rested >= most {
                return useless;
            }
            tokio::time::sleep((most - rested).min(patience)).await;
        }
    }
}

/// A request that is not answered to the end.
#[derive(Debug)]
pub struct Open(Arc<Usage>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.touch();
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body, of a request or an answer, whose movement is told.
#[derive(Debug)]
pub struct Moving<B> {
    body: B,
    open: Arc<Open>,
}

impl<B> Moving<B> {
    /// Of this request.
    pub fn new(body: B, open: Arc<Open>) -> Moving<B> {
        Moving { body, open }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Moving<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.open.0.touch();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};

    const LONG: Duration = Duration::from_secs(3_600);
    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn nothing_asked_is_idle_and_nothing_moved_is_stalled() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let usage = Usage::new(Clock::start());
            assert_eq!(usage.ended(SHORT, LONG).await, Useless::Idle);
            let open = Arc::new(usage.begin());
            assert_eq!(usage.ended(LONG, SHORT).await, Useless::Stalled);
            let before = usage.moved.load(Ordering::Relaxed);
            let body = Moving::new(Full::new(Bytes::from_static(b"all")), open);
            assert_eq!(body.size_hint().exact(), Some(3));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
            assert!(usage.moved.load(Ordering::Relaxed) > before, "a part of the answer was taken");
            assert_eq!(usage.open.load(Ordering::Relaxed), 0, "and all of it");
            assert_eq!(usage.ended(SHORT, LONG).await, Useless::Idle);
        });
    }
}
