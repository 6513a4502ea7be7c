//! Why the door refuses something, its answer, and how often that was.

use crate::limits;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use partage_wire::json::ErrorBody;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Why a request or a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The request can be understood in two ways, or in none.
    Malformed,
    /// `Host` names another listener.
    Host,
    /// A page of another site asks.
    Origin,
    /// It would change something, and a page of another site could have sent it.
    Unmarked,
    /// The body is longer than the listener reads.
    TooLarge,
    /// The bodies of all requests together are too long.
    Bytes,
    /// The body comes too slowly.
    SlowBody,
    /// The head did not come in time.
    SlowHead,
    /// No byte came in time.
    Silent,
    /// The connection was silent, and a newer one took its place.
    Displaced,
    /// As many connections are open as there may be.
    Connections,
    /// One address has as many connections as it may have.
    Address,
    /// The process has no file left.
    Files,
    /// The client reads nothing of its answer.
    Stalled,
}

/// Every reason, in the order of [`Reason`], with its word in the metrics.
const WORDS: [(Reason, &str); 14] = [
    (Reason::Malformed, "malformed"),
    (Reason::Host, "host"),
    (Reason::Origin, "origin"),
    (Reason::Unmarked, "unmarked"),
    (Reason::TooLarge, "too_large"),
    (Reason::Bytes, "bytes_in_flight"),
    (Reason::SlowBody, "slow_body"),
    (Reason::SlowHead, "slow_head"),
    (Reason::Silent, "silent"),
    (Reason::Displaced, "displaced"),
    (Reason::Connections, "connections"),
    (Reason::Address, "address"),
    (Reason::Files, "files"),
    (Reason::Stalled, "stalled"),
];

impl Reason {
    /// The word for the reason in logs and metrics.
    pub fn word(self) -> &'static str {
        WORDS[self as usize].1
    }
}

/// A refused request: why, and the way out that its client reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {way_out}")]
pub struct Refusal {
    /// The kind of refusal, as it is counted and logged.
    pub reason: Reason,
    what: String,
    way_out: &'static str,
}

impl Refusal {
    /// `what` is wrong; `way_out` says what helps.
    pub(crate) fn new(reason: Reason, what: impl Into<String>, way_out: &'static str) -> Refusal {
        Refusal { reason, what: what.into(), way_out }
    }

    /// The HTTP status that the door answers with.
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Malformed => StatusCode::BAD_REQUEST,
            Reason::Host => StatusCode::MISDIRECTED_REQUEST,
            Reason::Origin | Reason::Unmarked => StatusCode::FORBIDDEN,
            Reason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::SlowBody | Reason::SlowHead | Reason::Silent => StatusCode::REQUEST_TIMEOUT,
            Reason::Bytes
            | Reason::Displaced
            | Reason::Connections
            | Reason::Address
            | Reason::Files
            | Reason::Stalled => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn kind(&self) -> &'static str {
        match self.reason {
            Reason::Malformed => "malformed",
            Reason::Host => "unknown_host",
            Reason::Origin | Reason::Unmarked => "forbidden",
            Reason::TooLarge => "too_large",
            Reason::SlowBody => "too_slow",
            _ => "unavailable",
        }
    }

    /// The answer to the client: JSON, and Retry-After where the client may try again.
    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        let body = ErrorBody::new(self.kind(), self.to_string(), self.way_out).bytes();
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// How often a door has refused something, by reason.
#[derive(Debug)]
pub struct Counts {
    began: Instant,
    each: [One; WORDS.len()],
}

#[derive(Debug, Default)]
struct One {
    count: AtomicU64,
    /// How many are logged.
    logged: AtomicU64,
    /// When the next line may be written, in milliseconds since the beginning.
    next_line: AtomicU64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { began: Instant::now(), each: Default::default() }
    }
}

impl Counts {
    /// How often the door has refused something for `reason` since it was made.
    pub fn of(&self, reason: Reason) -> u64 {
        self.each[reason as usize].count.load(Ordering::Relaxed)
    }

    /// Counts one more, and logs it unless that reason was logged a moment ago.
    pub(crate) fn refused(&self, reason: Reason, message: &dyn std::fmt::Display) {
        let one = &self.each[reason as usize];
        let count = one.count.fetch_add(1, Ordering::Relaxed) + 1;
        let now = millis(self.began.elapsed());
        let next = one.next_line.load(Ordering::Relaxed);
        let line = now + millis(limits::LOG_EVERY);
        if now < next
            || one.next_line.compare_exchange(next, line, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let since = count - one.logged.swap(count, Ordering::Relaxed).min(count);
        tracing::warn!(reason = reason.word(), count = since, "refused at the door: {message}");
    }

    /// Adds the counter `door_refused`, with the reason as a label.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
        for (reason, word) in WORDS {
            family.get_or_create(&[("reason", word)]).inc_by(self.of(reason));
        }
        registry.register("door_refused", "Requests and connections that were not let in, by why", family);
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_word_in_its_place() {
        for (at, (reason, word)) in WORDS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            assert_eq!(reason.word(), *word);
        }
    }

    #[tokio::test]
    async fn a_refusal_is_counted_each_time() {
        let counts = Counts::default();
        for _ in 0..1_000 {
            counts.refused(Reason::Host, &"x");
        }
        assert_eq!((counts.of(Reason::Host), counts.of(Reason::Origin)), (1_000, 0));
    }
}
