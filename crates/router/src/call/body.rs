//! Bodies: what is sent to a node, and what comes back.

use super::pool::{Connected, PoolHandle};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use partage_door::RequestBody;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Whatever went wrong in a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// What a request sends to a node, and whether it can be sent again.
#[derive(Default)]
pub enum Outgoing {
    /// The request has no body, so it can be sent again.
    #[default]
    Empty,
    /// All of it, at hand: it can be sent again.
    Whole(Bytes),
    /// The body as it comes in from a client of the proxy.
    Incoming(RequestBody),
    /// Any other stream; it is read once, so the request is not sent again.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = BodyError> + Send>>),
}

impl Outgoing {
    /// A body that is sent as it comes, and can be sent once.
    pub fn stream(body: impl Body<Data = Bytes, Error = BodyError> + Send + 'static) -> Outgoing {
        Outgoing::Stream(Box::pin(body))
    }

    /// The same once more, if it is at hand.
    pub(crate) fn again(&self) -> Option<Outgoing> {
        match self {
            Outgoing::Empty => Some(Outgoing::Empty),
            Outgoing::Whole(bytes) => Some(Outgoing::Whole(bytes.clone())),
            Outgoing::Incoming(_) | Outgoing::Stream(_) => None,
        }
    }

    /// Reads the whole body into memory if it announces at most `most` bytes; else as it is.
    pub(crate) async fn kept(mut self, most: usize) -> Result<Outgoing, BodyError> {
        if self.is_end_stream() {
            return Ok(Outgoing::Empty);
        }
        let streamed = matches!(self, Outgoing::Incoming(_) | Outgoing::Stream(_));
        if streamed && self.size_hint().exact().is_some_and(|bytes| bytes <= most as u64) {
            if let Outgoing::Incoming(body) = &mut self {
                body.keep();
            }
            return Ok(Outgoing::from(Box::pin(self.collect()).await?.to_bytes()));
        }
        Ok(self)
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outgoing::Empty => "Empty",
            Outgoing::Whole(_) => "Whole",
            Outgoing::Incoming(_) => "Incoming",
            Outgoing::Stream(_) => "Stream",
        })
    }
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Outgoing {
        if bytes.is_empty() { Outgoing::Empty } else { Outgoing::Whole(bytes) }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Outgoing::Empty => Poll::Ready(None),
            Outgoing::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Outgoing::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Outgoing::Incoming(body) => {
                Pin::new(body).poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Outgoing::Stream(body) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Empty => true,
            Outgoing::Whole(bytes) => bytes.is_empty(),
            Outgoing::Incoming(body) => body.is_end_stream(),
            Outgoing::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Empty => SizeHint::with_exact(0),
            Outgoing::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Outgoing::Incoming(body) => body.size_hint(),
            Outgoing::Stream(body) => body.size_hint(),
        }
    }
}

/// The body of an answer: a node's, read as it comes, or one that the router has in memory.
#[derive(Debug)]
pub struct AnswerBody(Answer);

#[derive(Debug)]
enum Answer {
    Whole(Bytes),
    Driven(Driven),
    Peeked(Box<Peeked>),
}

/// A body whose beginning was read, and is read once more.
#[derive(Debug)]
struct Peeked {
    read: VecDeque<Result<Frame<Bytes>, hyper::Error>>,
    rest: AnswerBody,
}

/// A body that still comes in. No task drives its connection, so reading the body does; at the
/// end the connection goes back to its pool. Dropped before the end, it closes the connection.
#[derive(Debug)]
struct Driven {
    incoming: Incoming,
    connected: Option<Connected>,
    pool: Option<PoolHandle>,
}

impl AnswerBody {
    pub(super) fn driven(incoming: Incoming, connected: Connected, pool: PoolHandle) -> AnswerBody {
        let mut driven = Driven { incoming, connected: Some(connected), pool: Some(pool) };
        if driven.incoming.is_end_stream() {
            driven.release();
        }
        AnswerBody(Answer::Driven(driven))
    }

    /// All of its bytes, if they are no more than `most` and it does not break off; and the body as it was.
    pub(super) async fn peeked(mut self, most: u64) -> (Option<Bytes>, AnswerBody) {
        if self.size_hint().lower() > most {
            return (None, self);
        }
        let (mut read, mut all) = (VecDeque::new(), Vec::new());
        let mut is_whole = true;
        while let Some(frame) = self.frame().await {
            if let Some(data) = frame.as_ref().ok().and_then(Frame::data_ref) {
                all.extend_from_slice(data);
            }
            is_whole = frame.is_ok() && all.len() as u64 <= most;
            read.push_back(frame);
            if !is_whole {
                break;
            }
        }
        let body = AnswerBody(Answer::Peeked(Box::new(Peeked { read, rest: self })));
        (is_whole.then(|| all.into()), body)
    }

    /// All of it, if it is no longer than `most` and does not break off.
    pub(super) async fn at_most(self, most: u64) -> Option<Bytes> {
        self.peeked(most).await.0
    }
}

impl Default for AnswerBody {
    fn default() -> AnswerBody {
        AnswerBody(Answer::Whole(Bytes::new()))
    }
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> AnswerBody {
        AnswerBody(Answer::Whole(bytes))
    }
}

impl Peeked {
    fn size_hint(&self) -> SizeHint {
        let data = self.read.iter().filter_map(|frame| frame.as_ref().ok()?.data_ref());
        let read = data.map(|data| data.len() as u64).sum::<u64>();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint
    }
}

impl Driven {
    fn release(&mut self) {
        if let (Some(connected), Some(pool)) = (self.connected.take(), self.pool.take()) {
            pool.give_back(connected);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let driven = match &mut self.0 {
            Answer::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            Answer::Whole(bytes) => return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Answer::Driven(driven) => driven,
            Answer::Peeked(peeked) => {
                return match peeked.read.pop_front() {
                    Some(frame) => Poll::Ready(Some(frame)),
                    None => Pin::new(&mut peeked.rest).poll_frame(context),
                };
            }
        };
        let mut frame = Pin::new(&mut driven.incoming).poll_frame(context);
        if frame.is_pending()
            && let Some(connected) = &mut driven.connected
        {
            connected.drive(context);
            frame = Pin::new(&mut driven.incoming).poll_frame(context);
        }
        match &frame {
            Poll::Ready(Some(Err(_))) => driven.connected = None,
            Poll::Ready(None) => driven.release(),
            Poll::Ready(Some(Ok(_))) if driven.incoming.is_end_stream() => driven.release(),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Answer::Whole(bytes) => bytes.is_empty(),
            Answer::Driven(driven) => driven.incoming.is_end_stream(),
            Answer::Peeked(peeked) => peeked.read.is_empty() && peeked.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Answer::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Answer::Driven(driven) => driven.incoming.size_hint(),
            Answer::Peeked(peeked) => peeked.size_hint(),
        }
    }
}
