//! A body for the answer to a request that cannot be read.
//!
//! hyper answers such a request by itself, with a status and no body, before any service gets it, and offers no way to
//! change that. So, while no request is open, the door inspects the bytes that hyper writes, and replaces exactly that
//! answer by one that says what is wrong and what to do. Any other form of it passes as it is.

use crate::limits;
use crate::refusal::{Counts, Reason};
use crate::usage::Usage;
use partage_wire::json::ErrorBody;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// The statuses that hyper answers by itself: their first line, the kind of the error, what is wrong, and the way out.
const ANSWERS: [(&str, &str, &str, &str); 3] = [
    (
        "HTTP/1.1 400 Bad Request",
        "malformed",
        "the request cannot be read",
        "send a line with method, path and HTTP/1.1, then headers of a name, a colon and a value, as RFC 9112 has them",
    ),
    (
        "HTTP/1.1 414 URI Too Long",
        "malformed",
        "the path is too long",
        "send what is long in a body: several keys are asked for by POST",
    ),
    (
        "HTTP/1.1 431 Request Header Fields Too Large",
        "malformed",
        "the headers are too long, or too many",
        "send fewer and shorter ones; clients that follow redirects may gather cookies",
    ),
];

/// How the rest of such an answer begins; the date follows.
const REST: &str = "\r\nconnection: close\r\ncontent-length: 0\r\ndate: ";

/// The writing half of a connection of HTTP/1.1.
#[derive(Debug)]
pub(crate) struct ErrorBodyWriter<W> {
    inner: W,
    /// None: of HTTP/2, where hyper answers by frames.
    usage: Option<Arc<Usage>>,
    counts: Arc<Counts>,
    /// Requests that had begun when something was written last.
    begun: u64,
    /// All written bytes were flushed while no request was open: the last answer has ended.
    is_over: bool,
    /// The unwritten rest of a replacing answer.
    left: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> ErrorBodyWriter<W> {
    pub(crate) fn new(inner: W, usage: Option<Arc<Usage>>, counts: Arc<Counts>) -> ErrorBodyWriter<W> {
        ErrorBodyWriter { inner, usage, counts, begun: 0, is_over: true, left: Vec::new() }
    }

    /// What to write in place of `bytes`, if no service wrote them.
    fn replace(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (begun, open) = self.usage.as_ref()?.requests();
        let is_of_service = begun != self.begun || open > 0 || !self.is_over;
        self.begun = begun;
        self.is_over = false;
        if is_of_service { None } else { with_body(bytes) }
    }

    fn write_left(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while !self.left.is_empty() {
            let taken = ready!(Pin::new(&mut self.inner).poll_write(context, &self.left))?;
            if taken == 0 {
                return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
            }
            self.left.drain(..taken);
        }
        Poll::Ready(Ok(()))
    }
}

/// The same answer with a body, if this is one that hyper gives by itself.
fn with_body(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= limits::UNREADABLE_ANSWER)?;
    let (first, kind, what, way_out) = ANSWERS
        .iter()
        .find(|(first, ..)| text.strip_prefix(first).is_some_and(|rest| rest.starts_with(REST)))?;
    let date =
        text[first.len() + REST.len()..].strip_suffix("\r\n\r\n").filter(|date| !date.contains("\r\n"))?;
    let body = ErrorBody::told(kind, what, way_out).bytes();
    let head = format!(
        "{first}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\ndate: {date}\r\n\r\n",
        body.len()
    );
    Some([head.as_bytes(), &body[..]].concat())
}

impl<W: AsyncWrite + Unpin> AsyncWrite for ErrorBodyWriter<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        ready!(self.write_left(context))?;
        let Some(answer) = self.replace(bytes) else {
            return Pin::new(&mut self.inner).poll_write(context, bytes);
        };
        self.counts.refused(Reason::Malformed, &"a request that cannot be read");
        self.left = answer;
        // The rest goes out before anything else, at the latest with the flush.
        match self.write_left(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        if let [only] = parts {
            return self.poll_write(context, only);
        }
        ready!(self.write_left(context))?;
        self.begun = self.usage.as_ref().map_or(0, |usage| usage.requests().0);
        self.is_over = false;
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.write_left(context))?;
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        self.is_over = self.usage.as_ref().is_some_and(|usage| usage.requests().1 == 0);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.write_left(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const BARE: &[u8] =
        b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\ndate: Wed, 25 Nov 2026 20:03:20 GMT\r\n\r\n";

    /// What the client reads of what is written.
    async fn written(usage: &Arc<Usage>, what: &[&[u8]]) -> String {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = ErrorBodyWriter::new(server, Some(usage.clone()), Arc::default());
        let write = async {
            for bytes in what {
                server.write_all(bytes).await.unwrap();
                server.flush().await.unwrap();
            }
            server.shutdown().await.unwrap();
        };
        let mut text = String::new();
        let (_, read) = tokio::join!(write, client.read_to_string(&mut text));
        read.unwrap();
        text
    }

    #[tokio::test]
    async fn an_answer_that_nobody_gave_says_what_is_wrong() {
        let text = written(&Usage::new(), &[BARE]).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 414 URI Too Long\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}: {body}");
        assert!(body.contains("the path is too long") && body.contains("\"help\""), "{body}");
    }

    #[tokio::test]
    async fn what_a_service_answers_passes_as_it_is() {
        let usage = Usage::new();
        let open = usage.begin();
        assert_eq!(written(&usage, &[BARE]).await.as_bytes(), BARE, "a request is open");
        drop(open);
        assert_eq!(written(&usage, &[BARE]).await.as_bytes(), BARE, "one was answered just now");
        let usage = Usage::new();
        let (mut client, server) = tokio::io::duplex(4_096);
        let mut server = ErrorBodyWriter::new(server, Some(usage.clone()), Arc::default());
        // The head is flushed while the body is not there yet; with its last piece the request is over, and then that is written.
        let open = usage.begin();
        server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        server.flush().await.unwrap();
        drop(open);
        server.write_all(BARE).await.unwrap();
        server.shutdown().await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.as_bytes().ends_with(BARE), "the rest of another answer: {text}");
    }

    #[test]
    fn only_that_answer_is_replaced() {
        for other in [
            &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\ndate: x\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\nvia: y\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n",
            b"\xff",
        ] {
            assert_eq!(with_body(other), None);
        }
    }
}
