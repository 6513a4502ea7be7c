//! The body of a long answer, which keeps its request in flight.

use crate::admission::Guard;
use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use tokio::sync::oneshot;

fn handed_over() -> axum::Error {
    axum::Error::new("the shard was handed over")
}

/// A long answer's body: it may read the shard to its end, so its request stays in flight until then, or until
/// the guard is cancelled. A client that reads slowly stops the reading, but not the task that waits for the cancelling.
pub(super) struct GuardedBody {
    body: Body,
    guard: Weak<Guard>,
    /// Dropped with the body: the task ends.
    _open: oneshot::Sender<()>,
}

impl GuardedBody {
    pub(super) fn new(body: Body, guard: Arc<Guard>) -> GuardedBody {
        let (open, closed) = oneshot::channel::<()>();
        let weak = Arc::downgrade(&guard);
        tokio::spawn(async move {
            tokio::select! {
                _ = closed => {}
                () = guard.cancelled() => {}
            }
        });
        GuardedBody { body, guard: weak, _open: open }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let Some(guard) = this.guard.upgrade().filter(|guard| guard.mine_all_along()) else {
            return Poll::Ready(Some(Err(handed_over())));
        };
        let polled = guard.meter(|| Pin::new(&mut this.body).poll_frame(context));
        // Asked again: the frame was read while the lease ran, or it is not sent.
        match polled {
            Poll::Ready(_) if !guard.mine_all_along() => Poll::Ready(Some(Err(handed_over()))),
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
