//! Nodes of tables, as commands ask them, and what their answers mean.
//!
//! | the node answers | the command reports | exit code |
//! |---|---|---|
//! | 400, 413 | wrong usage | 2 |
//! | 404, 409, 412, 421, 422, 507 and others | refused | 4 |
//! | 503 of a kind that says that nothing was done | not reachable, after it has asked again for [`PATIENCE`] | 3 |
//! | 502, 503, 504 of other kinds, or nothing, to a read | not reachable | 3 |
//! | the same to a request that changes something and may have arrived | `unknown_outcome` | 1 |
//!
//! A change that may have been carried out is never reported as "no node answers": people take that for not done.

use super::LISTEN;
use crate::http::{Reply, address, first_answer};
use crate::output::Failure;
use bytes::Bytes;
use clap::Args;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use partage_wire::json::{ErrorBody, ErrorDetail, told};
use partage_wire::request::unavailable::{LAPSED_WHILE_SERVED, MOVED, is_not_begun};
use std::fmt::Display;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the command asks again while a shard changes hands: longer than the coordinator takes to find a node dead.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Rest between two attempts.
pub(super) const REST: Duration = Duration::from_millis(200);

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The kind of a failure after which a change may be done or not: the word that nodes have for it too.
pub(super) const UNKNOWN_OUTCOME: &str = "unknown_outcome";

/// The flag `--node`: the nodes of tables that a command asks.
#[derive(Debug, Clone, Args)]
pub struct TableNodes {
    /// Nodes of tables, as host:port separated by commas; the command asks the first one that answers
    #[arg(
        long,
        env = "PARTAGE_TABLE_NODE",
        value_delimiter = ',',
        default_value = LISTEN,
        value_parser = address
    )]
    node: Vec<String>,
}

/// What a request does at the node that carries it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect<'a> {
    /// It changes nothing, so it may be sent again.
    Reads,
    /// It changes something. The text says what a person does where the command does not know whether a node carried it out.
    Changes(&'a str),
}

/// A text that no other write has as its idempotency key.
pub(super) fn random_name() -> String {
    partage_random::bytes::<16>().map(|byte| format!("{byte:02x}")).concat()
}

/// A name for a write, by which it may be sent to another node when one has broken off.
pub(super) fn request_name() -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(&random_name()).map_err(Failure::failed)
}

impl TableNodes {
    /// The nodes with these addresses, each as host:port.
    pub fn at(node: Vec<String>) -> TableNodes {
        TableNodes { node }
    }

    /// What a `GET` reads.
    pub(super) async fn get(&self, path: &str) -> Result<Reply, Failure> {
        self.ask(Effect::Reads, Method::GET, path, HeaderMap::new(), Bytes::new()).await
    }

    /// The answer of the first node that gives one; asks again while a shard changes hands.
    ///
    /// # Errors
    /// No node has answered; or the request changes something, and the command does not know whether a node carried it out.
    pub(super) async fn ask(
        &self,
        effect: Effect<'_>,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Failure> {
        let until = Instant::now() + PATIENCE;
        // Whether a node may have got the request that has not answered it.
        let mut is_lost = false;
        loop {
            let reply = match first_answer(&self.node, &method, path, &headers, &body).await {
                Ok(reply) => reply,
                Err(error) => {
                    let asked = self.node.join(", ");
                    return Err(match effect {
                        Effect::Changes(way_out) if is_lost || error.sent => {
                            unknown(format!("{asked} broke off before it answered ({})", error.why), way_out)
                        }
                        Effect::Changes(_) | Effect::Reads => not_reachable(&asked, &error.why),
                    });
                }
            };
            is_lost |= reply.is_repeated;
            let is_not_begun = reply.status == StatusCode::SERVICE_UNAVAILABLE && is_not_begun(&reply.body);
            if is_not_begun && Instant::now() < until {
                sleep(REST).await;
                continue;
            }
            return match effect {
                Effect::Changes(way_out)
                    if may_be_done(&reply) || (is_lost && reply.status.is_server_error()) =>
                {
                    Err(unknown(what_of(&reply), way_out))
                }
                Effect::Changes(_) | Effect::Reads => Ok(reply),
            };
        }
    }
}

fn not_reachable(asked: &str, why: &str) -> Failure {
    Failure::not_reachable(format!("no node of tables answers at {asked}: {why}"))
        .help("start one with `partage table serve`, or name it with --node HOST:PORT")
}

/// A change that may be done or not.
fn unknown(why: impl Display, way_out: &str) -> Failure {
    let what = told(format!("the outcome is unknown: {why}"), way_out);
    Failure::failed(what).help(way_out).kind(UNKNOWN_OUTCOME)
}

fn detail(reply: &Reply) -> Option<ErrorDetail> {
    serde_json::from_slice(&reply.body).ok().map(|ErrorBody { error }| error)
}

/// Whether an answer leaves open whether the request was carried out.
fn may_be_done(reply: &Reply) -> bool {
    match reply.status {
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => true,
        StatusCode::SERVICE_UNAVAILABLE => {
            detail(reply).is_some_and(|error| matches!(error.kind.as_str(), MOVED | LAPSED_WHILE_SERVED))
        }
        _ => false,
    }
}

/// What is wrong, as the node says it, without its way out.
fn what_of(reply: &Reply) -> String {
    match detail(reply) {
        Some(ErrorDetail { message, help, .. }) => {
            let what = message.strip_suffix(help.as_str()).unwrap_or(&message);
            what.trim_end_matches([':', ' ']).to_owned()
        }
        None => format!("{}: {}", reply.status, String::from_utf8_lossy(&reply.body)),
    }
}

/// What a node says that has not done as it was asked.
pub(super) fn refusal(table: &str, reply: &Reply) -> Failure {
    let Some(ErrorDetail { kind, message, help, .. }) = detail(reply) else {
        return Failure::failed(format!("{}: {}", reply.status, String::from_utf8_lossy(&reply.body)));
    };
    let failure = match reply.status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => Failure::usage(message),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            Failure::not_reachable(message)
        }
        StatusCode::MISDIRECTED_REQUEST => {
            return Failure::refused(format!("no node serves table {table}"))
                .help("`partage table list` lists the tables")
                .kind(kind);
        }
        _ => Failure::refused(message),
    };
    let failure = failure.kind(kind);
    if help.is_empty() { failure } else { failure.help(help) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A node that reads each request and sends one of these answers after the other, and then closes each connection unanswered.
    async fn node(answers: Vec<(u16, ErrorBody)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut answers = answers.into_iter();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut read = [0; 4_096];
                let _ = stream.read(&mut read).await;
                if let Some((status, body)) = answers.next() {
                    let body = String::from_utf8(body.bytes()).unwrap();
                    let head = format!(
                        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                }
            }
        });
        address
    }

    fn error(status: u16, kind: &str) -> (u16, ErrorBody) {
        (status, ErrorBody::told(kind, "why", "look first"))
    }

    async fn asked(nodes: Vec<String>, effect: Effect<'_>) -> Result<Reply, Failure> {
        let nodes = TableNodes::at(nodes);
        nodes.ask(effect, Method::PUT, "/v1/tables/t/keys/k", HeaderMap::new(), Bytes::new()).await
    }

    #[tokio::test]
    async fn a_change_that_may_have_arrived_is_of_unknown_outcome_and_a_read_is_not() {
        let change = Effect::Changes("read the row");
        for (status, kind) in
            [(502, "broken"), (503, MOVED), (503, LAPSED_WHILE_SERVED), (504, UNKNOWN_OUTCOME)]
        {
            let failure = asked(vec![node(vec![error(status, kind)]).await], change).await.err().unwrap();
            assert!(failure.is_kind(UNKNOWN_OUTCOME) && !failure.is_not_reachable(), "{kind}: {failure}");
            assert_eq!(failure.what(), "the outcome is unknown: why: read the row", "{kind}");
            let reply = asked(vec![node(vec![error(status, kind)]).await], Effect::Reads).await.ok().unwrap();
            let failure = refusal("t", &reply);
            assert!(failure.is_kind(kind) && failure.is_not_reachable(), "{kind}: {failure}");
        }
        let lost = asked(vec![node(vec![]).await], change).await.err().unwrap();
        assert!(lost.is_kind(UNKNOWN_OUTCOME) && lost.what().contains("broke off"), "{lost}");
        let lost = asked(vec![node(vec![]).await], Effect::Reads).await.err().unwrap();
        assert!(lost.is_not_reachable(), "{lost}");
        // Nothing listens there: the request was not sent.
        let none = asked(vec!["127.0.0.1:9".to_owned()], change).await.err().unwrap();
        assert!(none.is_not_reachable(), "{none}");
    }

    #[tokio::test]
    async fn what_a_second_node_refuses_may_have_been_done_by_the_first() {
        let change = Effect::Changes("read the row");
        let nodes = vec![node(vec![]).await, node(vec![error(507, "no_room")]).await];
        let failure = asked(nodes, change).await.err().unwrap();
        assert!(failure.is_kind(UNKNOWN_OUTCOME), "{failure}");
        let alone = asked(vec![node(vec![error(507, "no_room")]).await], change).await.ok().unwrap();
        assert_eq!(alone.status, StatusCode::INSUFFICIENT_STORAGE);
        let nodes = vec![node(vec![]).await, node(vec![error(412, "not_met")]).await];
        let answered = asked(nodes, change).await.ok().unwrap();
        assert_eq!(answered.status, StatusCode::PRECONDITION_FAILED);
    }

    #[test]
    fn the_way_out_of_a_node_is_passed_on_and_told_once() {
        let (_, body) = error(412, "not_met");
        let reply = Reply {
            status: StatusCode::PRECONDITION_FAILED,
            headers: HeaderMap::new(),
            body: body.bytes().into(),
            is_repeated: false,
        };
        let failure = refusal("t", &reply);
        assert_eq!(failure, Failure::refused("why: look first").kind("not_met").help("look first"));
        assert_eq!(failure.to_string(), "error: why: look first");
    }
}
