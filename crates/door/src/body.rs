//! Bodies of requests, which the door counts, and of answers, whose progress it watches.
//!
//! The door counts a byte against the budget before the service gets it. The bytes of a kept body stay counted
//! until the answer; of a body passed on, until the next piece; of gRPC, until the next message.
//!
//! The door counts a kept body that is not small, and announces its length, whole before it reads any of it. So it
//! refuses a thousand of them by their heads, which costs little, and reads those that it can also keep. A client
//! must send such a body within [`limits::LARGE_BODY_TIME`]; the budget gets back what the service does not read.

use crate::budget::{Exceeded, ReservedBytes};
use crate::limits;
use crate::refusal::{Counts, Reason, Refusal, millis};
use crate::usage::OpenRequest;
use crate::{Bodies, Door};
use bytes::Bytes;
use http::Version;
use http::header::{self, HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// An open request, and its share of the budget.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    open: OpenRequest,
    held: ReservedBytes,
    counts: Arc<Counts>,
    /// Why its body was not read to its end.
    broken: OnceLock<Refusal>,
}

impl InFlightRequest {
    pub(crate) fn new(open: OpenRequest, held: ReservedBytes, counts: Arc<Counts>) -> InFlightRequest {
        InFlightRequest { open, held, counts, broken: OnceLock::new() }
    }

    /// Why its body was not read to its end, if it was not.
    pub(crate) fn broken(&self) -> Option<&Refusal> {
        self.broken.get()
    }

    fn break_off(&self, refusal: Refusal) -> Refusal {
        self.counts.refused(refusal.reason, &refusal);
        self.broken.get_or_init(|| refusal).clone()
    }
}

/// The body of a request that was let in.
#[derive(Debug)]
pub struct RequestBody {
    inner: Incoming,
    in_flight: Arc<InFlightRequest>,
    release_at: ReleaseAt,
    /// The whole of it may use the share of small bodies.
    is_small: bool,
    is_h2: bool,
    /// The unread rest of a body that is counted whole.
    whole: Option<Remainder>,
    rate: BodyRate,
    failed: Option<Refusal>,
}

/// The counted part of a body that is not read yet.
#[derive(Debug)]
struct Remainder {
    /// How many bytes have not come yet.
    bytes: u64,
    /// When all of them must have come.
    deadline: Pin<Box<Sleep>>,
}

/// How long the door counts bytes that the service has read.
#[derive(Debug)]
enum ReleaseAt {
    /// Until the request is answered.
    Answer,
    /// Until the next piece is read.
    Piece,
    /// Until the next message begins.
    Message(Framing),
}

impl RequestBody {
    pub(crate) fn new(
        inner: Incoming,
        in_flight: Arc<InFlightRequest>,
        (headers, version): (&HeaderMap, Version),
        door: &Door,
    ) -> Result<RequestBody, Refusal> {
        let (bodies, longest) = (door.role().bodies, door.role().body_bytes);
        let exact = inner.size_hint().exact();
        if exact.is_some_and(|bytes| bytes > longest) {
            return Err(too_large(longest));
        }
        let is_grpc = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/grpc");
        let release_at = match bodies {
            _ if headers.get(header::CONTENT_TYPE).is_some_and(is_grpc) => {
                ReleaseAt::Message(Framing::default())
            }
            Bodies::PassedOn { kept } if exact.is_none_or(|bytes| bytes > kept) => ReleaseAt::Piece,
            Bodies::PassedOn { .. } | Bodies::Kept => ReleaseAt::Answer,
        };
        let is_small = match release_at {
            ReleaseAt::Answer => exact.is_some_and(|bytes| bytes <= limits::SMALL_BODY),
            ReleaseAt::Piece | ReleaseAt::Message(_) => true,
        };
        let settings = door.settings();
        let is_whole = matches!(release_at, ReleaseAt::Answer) && !is_small;
        let whole = match exact.filter(|_| is_whole) {
            Some(bytes) if bytes > settings.budget.per_address() => {
                return Err(too_large(settings.budget.per_address()));
            }
            Some(bytes) => {
                in_flight.held.take(bytes, false).map_err(beyond_budget)?;
                Some(Remainder { bytes, deadline: Box::pin(sleep(settings.large_body)) })
            }
            None => None,
        };
        let rate = BodyRate::new(settings.body_bytes_s, settings.body_window);
        let is_h2 = version == Version::HTTP_2;
        Ok(RequestBody { inner, in_flight, release_at, is_small, is_h2, whole, rate, failed: None })
    }

    /// The service will keep all of it until the answer, where the door expected it to pass it on.
    pub fn keep(&mut self) {
        if matches!(self.release_at, ReleaseAt::Piece) {
            self.release_at = ReleaseAt::Answer;
            self.is_small = self.inner.size_hint().exact().is_some_and(|bytes| bytes <= limits::SMALL_BODY);
        }
    }

    fn fail(&mut self, refusal: Refusal) -> Refusal {
        let refusal = self.in_flight.break_off(refusal);
        self.failed = Some(refusal.clone());
        refusal
    }

    /// Counts what has come.
    fn count(&mut self, piece: &Bytes) -> Result<(), Refusal> {
        let bytes = piece.len() as u64;
        self.rate.came(bytes);
        if let Some(remainder) = &mut self.whole {
            // HTTP lets no more come than announced.
            remainder.bytes = remainder.bytes.saturating_sub(bytes);
            return Ok(());
        }
        let is_small = match &mut self.release_at {
            ReleaseAt::Answer => self.is_small,
            ReleaseAt::Piece => {
                self.in_flight.held.give_back();
                true
            }
            ReleaseAt::Message(framing) => {
                if framing.take(piece) {
                    self.in_flight.held.give_back();
                    // The client may have owed nothing for most of the present window.
                    self.rate.begin(bytes);
                }
                framing.length <= limits::SMALL_BODY
            }
        };
        let taken = self.in_flight.held.take(bytes, is_small);
        taken.map_err(|exceeded| self.fail(beyond_budget(exceeded)))
    }

    /// Whether a stream of gRPC is over without its end. HTTP/1 says by itself where a body ends early.
    fn is_cut(&self) -> bool {
        matches!(self.release_at, ReleaseAt::Message(_)) && self.is_h2 && !self.inner.is_end_stream()
    }

    /// Whether the client owes bytes.
    fn is_awaited(&self) -> bool {
        match &self.release_at {
            ReleaseAt::Answer => true,
            // The service and its client agree on the pace; the door holds one piece meanwhile.
            ReleaseAt::Piece => false,
            ReleaseAt::Message(framing) => framing.left > 0 || !framing.head.is_empty(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        if let Some(refusal) = &self.failed {
            return Poll::Ready(Some(Err(refusal.clone())));
        }
        let frame = match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let awaited = self.is_awaited();
                let mut deadline = self.whole.as_mut().map(|remainder| remainder.deadline.as_mut());
                let is_late =
                    deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready());
                if !is_late {
                    ready!(self.rate.poll_too_slow(context, awaited));
                }
                let what = "the body comes too slowly";
                let refusal = Refusal::new(Reason::SlowBody, what, "send it faster, or in parts");
                return Poll::Ready(Some(Err(self.fail(refusal))));
            }
        };
        self.in_flight.open.touch();
        Poll::Ready(match frame {
            // A client that resets a stream without an error has not ended it: what a stream of messages is for may be half done.
            None if self.is_cut() => Some(Err(self.fail(ends_early()))),
            None => None,
            Some(Err(_)) => Some(Err(self.fail(ends_early()))),
            Some(Ok(frame)) => {
                Some(frame.data_ref().map_or(Ok(()), |piece| self.count(piece)).map(|()| frame))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(remainder) = &self.whole {
            self.in_flight.held.give_back_some(remainder.bytes);
        }
    }
}

fn ends_early() -> Refusal {
    let way_out = "send as much as was announced, in chunks as RFC 9112 has them";
    Refusal::new(Reason::Malformed, "the body is malformed or ends early", way_out)
}

fn too_large(longest: u64) -> Refusal {
    let what = format!("the body is longer than {longest} bytes, the most that is read");
    Refusal::new(Reason::TooLarge, what, "send less at once")
}

fn beyond_budget(exceeded: Exceeded) -> Refusal {
    let (what, way_out) = match exceeded {
        Exceeded::All => (
            "the bodies of all requests together are longer than this process keeps in memory",
            "send it again in a moment, or raise bytes_in_flight_mib",
        ),
        Exceeded::Address => (
            "the bodies of all requests from this address together are longer than this process keeps in memory for one client",
            "send it again in a moment, or raise bytes_in_flight_per_address_mib",
        ),
    };
    Refusal::new(Reason::Bytes, what, way_out)
}

/// Whether a body comes fast enough.
#[derive(Debug)]
pub(crate) struct BodyRate {
    bytes_s: u64,
    /// The length of the window over which the rate is measured.
    length: Duration,
    /// Bytes that have come in this window.
    came: u64,
    /// The end of the window; none before the first wait.
    window: Option<Pin<Box<Sleep>>>,
}

impl BodyRate {
    pub(crate) fn new(bytes_s: u64, length: Duration) -> BodyRate {
        BodyRate { bytes_s, length, came: 0, window: None }
    }

    fn came(&mut self, bytes: u64) {
        self.came = self.came.saturating_add(bytes);
    }

    /// A window of its own begins for a message of which so many bytes are here.
    fn begin(&mut self, bytes: u64) {
        self.came = bytes;
        if let Some(window) = &mut self.window {
            window.as_mut().reset(Instant::now() + self.length);
        }
    }

    /// Ready when too little came in a window and the client owes more.
    fn poll_too_slow(&mut self, context: &mut Context<'_>, awaited: bool) -> Poll<()> {
        let length = self.length;
        let least = self.bytes_s.saturating_mul(millis(length)) / 1_000;
        let window = self.window.get_or_insert_with(|| Box::pin(sleep(length)));
        loop {
            ready!(window.as_mut().poll(context));
            if awaited && self.came < least {
                return Poll::Ready(());
            }
            self.came = 0;
            window.as_mut().reset(Instant::now() + Duration::from_millis(1) + length);
        }
    }
}

/// The bounds of gRPC messages: a byte, the length in four, and so many bytes.
#[derive(Debug, Default)]
struct Framing {
    head: Vec<u8>,
    /// The length of the message that is being read.
    length: u64,
    left: u64,
}

impl Framing {
    /// Takes a piece; true if a message begins in it, so that those before have ended.
    fn take(&mut self, mut piece: &[u8]) -> bool {
        let mut begins = false;
        while !piece.is_empty() {
            if self.left > 0 {
                let some = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len());
                self.left -= some as u64;
                piece = &piece[some..];
                continue;
            }
            begins |= self.head.is_empty();
            let some = (5 - self.head.len()).min(piece.len());
            self.head.extend_from_slice(&piece[..some]);
            piece = &piece[some..];
            if let [_, a, b, c, d] = self.head[..] {
                self.length = u64::from(u32::from_be_bytes([a, b, c, d]));
                self.left = self.length;
                self.head.clear();
            }
        }
        begins
    }
}

/// An answer's body; each piece is progress.
#[derive(Debug)]
pub(crate) enum ResponseBody<B> {
    /// What the door itself answers, for a request that it refuses.
    Refused(Full<Bytes>),
    /// What the service answers; the request is open until the body is dropped.
    Served(B, Arc<InFlightRequest>),
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            ResponseBody::Refused(body) => {
                Pin::new(body).poll_frame(context).map(|frame| frame.map(|one| one.map_err(Into::into)))
            }
            ResponseBody::Served(body, in_flight) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                in_flight.open.touch();
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Refused(body) => body.is_end_stream(),
            ResponseBody::Served(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Refused(body) => body.size_hint(),
            ResponseBody::Served(body, _) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![7; length as usize]);
        bytes
    }

    proptest::proptest! {
        /// However messages are cut into pieces, the framing ends at the end of the last of them.
        #[test]
        fn messages_are_found_however_they_are_cut(
            lengths in proptest::collection::vec(0_u32..300, 1..8),
            cut in 1_usize..97,
            short in 0_usize..5,
        ) {
            let all: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let mut framing = Framing::default();
            let begins = all.chunks(cut).filter(|piece| framing.take(piece)).count();
            proptest::prop_assert!(begins >= 1 && begins <= lengths.len());
            proptest::prop_assert!(framing.left == 0 && framing.head.is_empty());
            proptest::prop_assert_eq!(framing.length, u64::from(*lengths.last().unwrap()));
            framing.take(&message(9)[..5 + short]);
            proptest::prop_assert_eq!(framing.left, 9 - short as u64);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_too_slow_and_one_that_comes_is_not() {
        let mut rate = BodyRate::new(10, limits::BODY_WINDOW);
        let began = Instant::now();
        for _ in 0..5 {
            rate.came(100);
            let waited = std::future::poll_fn(|context| rate.poll_too_slow(context, true));
            tokio::time::timeout(limits::BODY_WINDOW, waited).await.unwrap_err();
        }
        std::future::poll_fn(|context| rate.poll_too_slow(context, true)).await;
        assert!(began.elapsed() < limits::BODY_WINDOW * 8);
        let mut idle = BodyRate::new(10, limits::BODY_WINDOW);
        let waited = std::future::poll_fn(|context| idle.poll_too_slow(context, false));
        tokio::time::timeout(limits::BODY_WINDOW * 9, waited).await.unwrap_err();
    }
}
