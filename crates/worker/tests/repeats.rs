//! Requests that the node which a client has asked sends again itself.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use axum::body::Body;
use common::services::{Answer, Known, TestService, http, test_service, test_service_with};
use common::{TestCoordinator, eventually, keyspace};
use http::{Method, Request, StatusCode};
use partage_wire::json::ErrorBody;
use partage_worker::http::{RetryPolicy, Sharded, Target};
use partage_worker::{Access, Admission, NodeId, Ownership};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A node that notes each request, and sends one of these answers after the other, the last of them for ever; an empty one closes
/// the connection.
struct ScriptedNode {
    address: String,
    saw: Arc<Mutex<Vec<String>>>,
}

impl ScriptedNode {
    /// Each answer takes it `pause`.
    async fn start(answers: Vec<String>, pause: Duration) -> ScriptedNode {
        let (listener, address) = common::address().await;
        let saw = Arc::<Mutex<Vec<String>>>::default();
        let noted = saw.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = String::new();
                // Every request of these tests has this body.
                while !request.contains("hello") {
                    let mut part = [0; 4_096];
                    match stream.read(&mut part).await {
                        Ok(0) | Err(_) => break,
                        Ok(bytes) => request += &String::from_utf8_lossy(&part[..bytes]),
                    }
                }
                let answer = {
                    let mut saw = noted.lock().unwrap();
                    saw.push(request);
                    answers[(saw.len() - 1).min(answers.len() - 1)].clone()
                };
                tokio::time::sleep(pause).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                // What a node has passed on before a connection breaks is flushed only by then.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        ScriptedNode { address: address.to_string(), saw }
    }

    fn requests(&self) -> Vec<String> {
        self.saw.lock().unwrap().clone()
    }
}

const CLOSES: &str = "";

fn says(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

fn done() -> String {
    says(200, "partage-epoch: 7\r\n", "done")
}

fn refuses(status: u16, kind: &str) -> String {
    let body = ErrorBody::told(kind, "not now", "look").bytes();
    says(status, "retry-after: 1\r\n", &String::from_utf8(body).unwrap())
}

const NAMED: (&str, &str) = ("idempotency-key", "order-17");

/// How many nodes there are that send requests on: each has a name of its own.
static NODES: AtomicUsize = AtomicUsize::new(0);

/// A node that has nothing itself, sends every key on to a scripted one, and sends again what it may.
async fn hop_to(coordinator: &str, policy: RetryPolicy, answers: Vec<String>) -> (TestService, ScriptedNode) {
    slow_hop_to(coordinator, policy, answers, Duration::ZERO).await
}

async fn slow_hop_to(
    coordinator: &str,
    policy: RetryPolicy,
    answers: Vec<String>,
    pause: Duration,
) -> (TestService, ScriptedNode) {
    let node = ScriptedNode::start(answers, pause).await;
    let located = (NodeId::new("scripted").unwrap(), node.address.clone());
    let gate = move |gate: Sharded| {
        gate.definite_statuses().sends_again(policy).locate_by(move |_: &Target, _| Some(located.clone()))
    };
    let name = format!("b{}", NODES.fetch_add(1, Ordering::Relaxed));
    (test_service_with(&name, coordinator, gate).await.0, node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_sent_twice_is_sent_again_by_the_node_that_was_asked() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let http = http();
    let unknown = refuses(504, "unknown_outcome");
    let moved = refuses(503, "moved");
    // The request's method and headers, what the first node answers, and how often it is sent.
    type Case<'a> = (Method, &'a [(&'a str, &'a str)], String, usize);
    let cases: [Case<'_>; 11] = [
        // It has a name.
        (Method::PUT, &[NAMED], CLOSES.to_owned(), 2),
        (Method::DELETE, &[NAMED], unknown.clone(), 2),
        (Method::PUT, &[NAMED], moved.clone(), 2),
        // It reads.
        (Method::GET, &[], CLOSES.to_owned(), 2),
        (Method::GET, &[], moved, 2),
        // Nothing was done.
        (Method::PUT, &[], refuses(503, "soon"), 2),
        (Method::PUT, &[], refuses(421, "misdirected"), 2),
        // It may have been done, and a repetition would not be known as one.
        (Method::PUT, &[], CLOSES.to_owned(), 1),
        (Method::PUT, &[], unknown.clone(), 1),
        // What the service says is the answer.
        (Method::PUT, &[NAMED], says(412, "partage-epoch: 7\r\n", "not met"), 1),
        (Method::PUT, &[NAMED], refuses(503, "too_few_in_sync"), 1),
    ];
    for (method, headers, first, tries) in cases {
        let (b, node) = hop_to(&coordinator, RetryPolicy::default(), vec![first.clone(), done()]).await;
        let answer = b.ask(&http, method.clone(), "/key/k", headers).await;
        let requests = node.requests();
        assert_eq!(requests.len(), tries, "{method} {headers:?} after {first:?}");
        assert!(requests.iter().all(|request| request.ends_with("hello")), "{requests:?}");
        assert!(requests.iter().all(|request| request.contains("partage-hop: 1")), "{requests:?}");
        if tries == 2 {
            assert_eq!((answer.status, answer.text().as_str()), (StatusCode::OK, "done"), "{first:?}");
        } else if first == CLOSES || first == unknown {
            let told = (answer.status, answer.error());
            assert_eq!(told, (StatusCode::GATEWAY_TIMEOUT, "unknown_outcome".to_owned()));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_time_is_up_the_client_hears_what_may_have_been_done() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let http = http();
    let told = |answer: &Answer| (answer.status, answer.error());
    let unknown = (StatusCode::GATEWAY_TIMEOUT, "unknown_outcome".to_owned());
    let soon = refuses(503, "soon");

    let brief = RetryPolicy { deadline_ms: 500, ..RetryPolicy::default() };
    let (b, node) = hop_to(&coordinator, brief.clone(), vec![CLOSES.to_owned()]).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(told(&b.ask(&http, Method::PUT, "/key/k", &[NAMED]).await), unknown);
    assert!(begun.elapsed() >= Duration::from_millis(490) && node.requests().len() > 2);

    // The first try may have done it, whatever the later ones say.
    let (b, _node) = hop_to(&coordinator, brief.clone(), vec![CLOSES.to_owned(), soon.clone()]).await;
    assert_eq!(told(&b.ask(&http, Method::PUT, "/key/k", &[NAMED]).await), unknown);
    let no_room = vec![CLOSES.to_owned(), says(507, "partage-epoch: 7\r\n", "full")];
    let (b, _node) = hop_to(&coordinator, RetryPolicy::default(), no_room).await;
    assert_eq!(told(&b.ask(&http, Method::PUT, "/key/k", &[NAMED]).await), unknown);
    // But for an outcome, which is that of the name.
    let not_met = vec![CLOSES.to_owned(), says(412, "partage-epoch: 7\r\n", "not met")];
    let (b, _node) = hop_to(&coordinator, RetryPolicy::default(), not_met).await;
    let answer = b.ask(&http, Method::PUT, "/key/k", &[NAMED]).await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED);

    // No try was begun, and none is under way when there are no more.
    let few = RetryPolicy { tries: 4, ..RetryPolicy::default() };
    let (b, node) = hop_to(&coordinator, few, vec![soon]).await;
    let refused = b.ask(&http, Method::PUT, "/key/k", &[NAMED]).await;
    assert_eq!(told(&refused), (StatusCode::SERVICE_UNAVAILABLE, "soon".to_owned()));
    assert_eq!(node.requests().len(), 4);
    // A read has no outcome that could be unknown.
    let (b, _node) = hop_to(&coordinator, brief, vec![CLOSES.to_owned()]).await;
    let read = b.ask(&http, Method::GET, "/key/k", &[]).await;
    assert_eq!(told(&read), (StatusCode::BAD_GATEWAY, "broken".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_which_nothing_was_done_is_not_said_to_be_unknown_when_the_time_is_up() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let told = |answer: &Answer| (answer.status, answer.error());
    let brief = RetryPolicy { deadline_ms: 500, ..RetryPolicy::default() };
    // The owner holds each request; so the second try is under way at the deadline.
    let (held, soon) = (Duration::from_millis(300), refuses(503, "soon"));
    let cases: [&[(&str, &str)]; 2] = [&[], &[NAMED]];
    for headers in cases {
        let answers = vec![soon.clone()];
        let (b, node) = slow_hop_to(&coordinator, brief.clone(), answers, held).await;
        let refused = b.ask(&http(), Method::PUT, "/key/k", headers).await;
        assert_eq!(told(&refused), (StatusCode::SERVICE_UNAVAILABLE, "soon".to_owned()), "{headers:?}");
        assert_eq!(node.requests().len(), 2, "no try begins after the deadline");
    }
    // A router that streams it waits for as long as the node: it would hear nothing in time.
    let (b, node) = slow_hop_to(&coordinator, brief.clone(), vec![soon.clone()], held).await;
    let by_router = [("partage-generation", "0")];
    let refused = b.ask(&http(), Method::PUT, "/key/k", &by_router).await;
    assert_eq!(told(&refused), (StatusCode::SERVICE_UNAVAILABLE, "soon".to_owned()));
    assert_eq!(node.requests().len(), 1);
    // One that may have been carried out is given up at the deadline.
    let answers = vec![CLOSES.to_owned(), soon];
    let (b, node) = slow_hop_to(&coordinator, brief, answers, held).await;
    let refused = b.ask(&http(), Method::PUT, "/key/k", &[NAMED]).await;
    assert_eq!(told(&refused), (StatusCode::GATEWAY_TIMEOUT, "unknown_outcome".to_owned()));
    assert_eq!(node.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_no_lease_says_so_at_once() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let gate = |gate: Sharded| gate.sends_again(RetryPolicy::default());
    let (a, _) = test_service_with("a", &coordinator, gate).await;
    test_coordinator.create(1, Ownership::Exclusive);
    eventually("a serves", || a.serves()).await;
    test_coordinator.be_silent(true);
    eventually("the lease is over", || {
        matches!(a.worker.enter(&keyspace(), b"k", Access::Write), Admission::Lapsed)
    })
    .await;
    let begun = tokio::time::Instant::now();
    let lapsed = a.ask(&http(), Method::PUT, "/key/k", &[]).await;
    let took = begun.elapsed();
    assert_eq!((lapsed.status, lapsed.error()), (StatusCode::SERVICE_UNAVAILABLE, "lapsed".to_owned()));
    assert!(took < Duration::from_secs(5), "another node may know better: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_tries_that_find_no_node_to_ask_take_nothing_from_the_budget() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let (node, known) = (ScriptedNode::start(vec![done()], Duration::ZERO).await, Known::default());
    let located = known.clone();
    let gate = |gate: Sharded| {
        let gate = gate.sends_again(RetryPolicy::default());
        gate.locate_by(move |_: &Target, _| located.lock().unwrap().clone())
    };
    let b = Arc::new(test_service_with("waits", &coordinator, gate).await.0);
    let asked = (0..60).map(|_| {
        let b = b.clone();
        tokio::spawn(async move { b.ask(&http(), Method::PUT, "/key/k", &[]).await.status })
    });
    let asked: Vec<_> = asked.collect();
    // Several hundred tries, of which the budget would pay a hundred.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    *known.lock().unwrap() = Some((NodeId::new("scripted").unwrap(), node.address.clone()));
    let begun = tokio::time::Instant::now();
    for answer in asked {
        assert_eq!(answer.await.unwrap(), StatusCode::OK);
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(node.requests().len(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_has_begun_is_not_asked_for_again() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nhalf".to_owned();
    let cases: [(Method, &[(&str, &str)]); 2] = [(Method::GET, &[]), (Method::PUT, &[NAMED])];
    for (method, headers) in cases {
        let (b, node) = hop_to(&coordinator, RetryPolicy::default(), vec![half.clone(), done()]).await;
        let answer = b.ask(&http(), method, "/key/k", headers).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(answer.body.is_err(), "cut off, and not made whole from another answer");
        assert_eq!(node.requests().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_not_kept_is_sent_once() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let (b, node) = hop_to(&coordinator, RetryPolicy::default(), vec![CLOSES.to_owned(), done()]).await;
    // Its length is not announced.
    let body = Body::from_stream(futures::stream::iter([Ok::<_, std::convert::Infallible>("hello")]));
    let uri = format!("http://{}/key/k", b.address);
    let request = Request::put(uri).header(NAMED.0, NAMED.1).body(body).unwrap();
    let answer = http().request(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(node.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_write_that_the_leader_must_give_up_is_sent_to_the_next_one() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let gate = |gate: Sharded| gate.definite_statuses().sends_again(RetryPolicy::default());
    let (a, _) = test_service_with("a", &coordinator, gate).await;
    eventually("a serves", || a.serves()).await;
    let b = test_service("b", &coordinator, Known::default()).await;
    let (a, http) = (Arc::new(a), http());
    let asked = tokio::spawn({
        let a = a.clone();
        async move { a.ask(&http, Method::PUT, "/key/slow-here", &[NAMED]).await }
    });
    eventually("it is inside", || a.worker.replicas()[0].in_flight == 1).await;
    test_coordinator.move_shard(test_coordinator.shard(), "a", "b").await;
    let answer = asked.await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (StatusCode::OK, "s1 hello"));
    assert_eq!(answer.header("partage-proxied-to"), "b");
    assert!(b.serves());
}
