//! Requests through a router, against real connections: what is sent where, how often, and what comes back.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod world;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use partage_core::keyspace::KeyspaceKind;
use partage_core::routing::budget::BudgetPolicy;
use partage_core::routing::retry::{Reason, RetryPolicy};
use partage_router::{Access, AnswerBody, CallError, CallOptions, Hedging, Options, Outgoing, Router};
use std::time::Duration;
use tokio::time::Instant;
use world::coordinator::Coordinator;
use world::node::{Does, Length, Node};
use world::{Maps, eventually, router};

async fn send(router: &Router, method: Method, key: &str, body: &str) -> Result<(u16, String), CallError> {
    let body = Outgoing::from(Bytes::from(body.to_owned()));
    let access = if method == Method::GET { Access::Read } else { Access::Write };
    let request = Request::builder().method(method).uri(format!("/ks/{key}?q=1")).body(body).unwrap();
    let answer = router.request(request, "ks", key.as_bytes(), access).await?;
    Ok((answer.status().as_u16(), text(answer).await))
}

async fn text(answer: Response<AnswerBody>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Nodes a, b, c; keys below "m" are led by a, the rest by b; both have c as a follower if `followers`.
async fn world(followers: bool, call: CallOptions) -> (Coordinator, Router, [Node; 3]) {
    let nodes = [Node::start("a").await, Node::start("b").await, Node::start("c").await];
    let shards: &[(&str, &[&str])] =
        if followers { &[("", &["a", "c"]), ("m", &["b", "c"])] } else { &[("", &["a"]), ("m", &["b"])] };
    let mut maps = Maps::new("ks", shards);
    maps.nodes = nodes.iter().map(Node::at).collect();
    let coordinator = Coordinator::start(maps).await;
    let router = router(&coordinator, call).await;
    (coordinator, router, nodes)
}

fn unhedged() -> CallOptions {
    CallOptions { hedging: Hedging::Off, ..CallOptions::default() }
}

#[tokio::test]
async fn keys_go_to_their_owners_and_follow_a_move() {
    let (coordinator, router, nodes) = world(false, unhedged()).await;
    assert_eq!(send(&router, Method::GET, "apple", "").await.unwrap(), (200, "a GET /ks/apple?q=1 ".into()));
    assert_eq!(
        send(&router, Method::POST, "pear", "x").await.unwrap(),
        (200, "b POST /ks/pear?q=1 x".into())
    );
    let headers = &nodes[0].saw()[0].headers;
    assert_eq!(
        (&headers["partage-hop"], &headers["partage-generation"]),
        (&"1".parse().unwrap(), &"1".parse().unwrap())
    );
    assert_eq!(headers["host"], nodes[0].address.as_str());
    coordinator.push(|maps| maps.hand_over(1, "c"));
    eventually("the move", || {
        router.lookup("ks", b"apple").unwrap().leader.is_some_and(|o| o.node.id.as_str() == "c")
    })
    .await;
    assert_eq!(send(&router, Method::PUT, "apple", "y").await.unwrap().1, "c PUT /ks/apple?q=1 y");
    let error = router.lookup("nothing", b"x").unwrap_err();
    assert_eq!(error.to_string(), "there is no keyspace \"nothing\": known are ks");
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_costs_no_request() {
    let (_coordinator, router, mut nodes) = world(false, unhedged()).await;
    for _ in 0..50 {
        send(&router, Method::POST, "apple", "x").await.unwrap();
    }
    assert_eq!(nodes[0].saw().len(), 50);
    // The node goes away and comes back at the same place: idle connections are dead, and no POST is lost.
    let address = nodes[0].address.clone();
    nodes[0].kill().await;
    let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper::service::service_fn(|_| async {
            Ok::<_, std::convert::Infallible>(Response::new(http_body_util::Full::<Bytes>::from("anew")))
        });
        let stream = hyper_util::rt::TokioIo::new(stream);
        hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await.unwrap();
    });
    assert_eq!(send(&router, Method::POST, "apple", "x").await.unwrap().1, "anew");
}

#[tokio::test]
async fn a_hint_is_followed_and_a_lagging_map_is_refreshed() {
    let (coordinator, router, nodes) = world(false, unhedged()).await;
    coordinator.change_silently(|maps| maps.hand_over(1, "c"));
    nodes[0].does(&[Does::Misdirects { node: "c".into(), address: nodes[2].address.clone(), sequence: 2 }]);
    let began = Instant::now();
    assert_eq!(send(&router, Method::POST, "apple", "x").await.unwrap().1, "c POST /ks/apple?q=1 x");
    assert!(began.elapsed() < Duration::from_millis(500), "a hint is followed at once");
    eventually("the map catches up", || router.lookup("ks", b"a").unwrap().generation.sequence == 2).await;
    assert_eq!(router.streams(), 2);
    let resumed = coordinator.watches()[1].known.values().next().copied().unwrap();
    assert_eq!(resumed.sequence, 1, "by what it had");
    assert_eq!(nodes[0].saw().len(), 1);
    assert_eq!(router.counts().misdirected, 1);
}

#[tokio::test]
async fn a_dead_owner_is_waited_for_until_another_is_named() {
    let (coordinator, router, mut nodes) = world(false, unhedged()).await;
    nodes[0].kill().await;
    let began = Instant::now();
    let writes: Vec<_> = (0..20)
        .map(|at| {
            let router = router.clone();
            tokio::spawn(async move { send(&router, Method::POST, &format!("apple{at}"), "x").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let moved = Instant::now();
    coordinator.push(|maps| maps.hand_over(1, "c"));
    for write in writes {
        assert!(write.await.unwrap().unwrap().1.starts_with("c POST"));
    }
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert!(moved.elapsed() < Duration::from_millis(400), "a new map wakes who waits for it");
}

#[tokio::test]
async fn what_may_have_been_done_is_only_done_again_if_it_may() {
    let (_coordinator, router, nodes) = world(false, unhedged()).await;
    nodes[0].does(&[Does::Breaks, Does::Answers]);
    let error = send(&router, Method::POST, "apple", "x").await.unwrap_err();
    assert!(
        error.is_indefinite() && matches!(error, CallError::GaveUp { reason: Reason::Broken, .. }),
        "{error}"
    );
    assert_eq!((nodes[0].saw().len(), error.status().as_u16()), (1, 502));
    nodes[0].does(&[Does::Breaks, Does::Answers]);
    assert_eq!(send(&router, Method::PUT, "apple", "x").await.unwrap().0, 200);
    assert_eq!(nodes[0].saw().len(), 3);
    // "Not yet" has done nothing; "moved" may have.
    nodes[0].does(&[Does::Refuses("soon"), Does::Answers]);
    assert_eq!(send(&router, Method::POST, "apple", "x").await.unwrap().0, 200);
    for not_begun in ["lapsed", "unreachable"] {
        nodes[0].does(&[Does::Refuses(not_begun), Does::Answers]);
        assert_eq!(send(&router, Method::POST, "apple", "x").await.unwrap().0, 200, "{not_begun}");
    }
    nodes[0].does(&[Does::Refuses("lapsed_while_served"), Does::Answers]);
    assert_eq!(send(&router, Method::POST, "apple", "x").await.unwrap().0, 503);
    nodes[0].does(&[Does::Refuses("moved"), Does::Answers]);
    let (status, said) = send(&router, Method::POST, "apple", "x").await.unwrap();
    assert!(status == 503 && said.contains("moved"), "{status} {said}");
    nodes[0].does(&[Does::Refuses("moved"), Does::Answers]);
    assert_eq!(send(&router, Method::GET, "apple", "").await.unwrap().0, 200);
    nodes[0].does(&[Does::Says(500), Does::Answers]);
    assert_eq!(send(&router, Method::GET, "apple", "").await.unwrap().0, 500, "an answer is an answer");
}

/// A table, led by the node, and requests for its row `apple`: with a name or without.
struct TableWorld {
    coordinator: Coordinator,
    router: Router,
    node: Node,
}

async fn table_world() -> TableWorld {
    let node = Node::start("a").await;
    let mut maps = Maps::new("ks", &[("", &["a"])]);
    maps.kind = KeyspaceKind::Table;
    maps.nodes = vec![node.at()];
    let coordinator = Coordinator::start(maps).await;
    let retry = RetryPolicy { deadline_ms: 400, ..RetryPolicy::default() };
    let router = router(&coordinator, CallOptions { retry, ..unhedged() }).await;
    TableWorld { coordinator, router, node }
}

impl TableWorld {
    /// The status of a put, and how often it was sent.
    async fn put(&self, is_named: bool, does: &[Does]) -> (u16, usize) {
        self.node.does(does);
        let before = self.node.saw().len();
        let mut request = Request::put("/ks/apple");
        if is_named {
            request = request.header("idempotency-key", "order-17");
        }
        let request = request.body(Bytes::from("x").into()).unwrap();
        let status = match self.router.request(request, "ks", b"apple", Access::Write).await {
            Ok(answer) => answer.status().as_u16(),
            Err(error) if error.is_indefinite() => 0,
            Err(error) => error.status().as_u16(),
        };
        let saw = self.node.saw();
        assert!(saw[before..].iter().all(|seen| &seen.body[..] == b"x"), "{saw:?}");
        (status, saw.len() - before)
    }
}

#[tokio::test]
async fn a_write_to_a_table_is_sent_again_by_its_name_only() {
    let world = table_world().await;
    let unknown = Does::Tells(504, "unknown_outcome");
    for first in [Does::Breaks, unknown.clone(), Does::Refuses("moved"), Does::Tells(503, "soon")] {
        let then = [first.clone(), Does::Answers];
        assert_eq!(world.put(true, &then).await, (200, 2), "{first:?}");
    }
    assert_eq!(world.put(false, &[Does::Breaks, Does::Answers]).await, (0, 1), "it may have been done");
    assert_eq!(world.put(false, &[unknown, Does::Answers]).await, (504, 1), "passed on");
    assert_eq!(world.put(false, &[Does::Refuses("soon"), Does::Answers]).await, (200, 2), "not begun");
    let own = [Does::Tells(503, "too_few_in_sync"), Does::Answers];
    assert_eq!(world.put(true, &own).await, (503, 1), "the leader has waited for it to pass");
    assert_eq!(world.put(true, &[Does::Tells(412, "not_met"), Does::Answers]).await, (412, 1));
}

#[tokio::test]
async fn a_write_that_comes_before_the_first_map_is_as_a_later_one() {
    let mut world = table_world().await;
    let options = Options { call: unhedged(), ..Options::default() };
    for (is_named, expected) in [(false, (0, 1)), (true, (200, 2))] {
        // Without waiting for maps.
        world.router = Router::connect(vec![world.coordinator.address.clone()], options.clone()).await;
        assert_eq!(world.put(is_named, &[Does::Breaks, Does::Answers]).await, expected);
    }
}

#[tokio::test]
async fn when_the_time_is_up_a_named_write_is_as_unknown_as_its_first_try_has_left_it() {
    let world = table_world().await;
    let unknown = Does::Tells(504, "unknown_outcome");
    let (status, tries) = world.put(true, std::slice::from_ref(&unknown)).await;
    assert!(status == 504 && tries > 2, "{status} {tries}");
    let (status, tries) = world.put(true, &[Does::Breaks]).await;
    assert!(status == 0 && tries > 2, "{status} {tries}");
    // That a later try was refused says nothing about the first.
    assert_eq!(world.put(true, &[Does::Breaks, Does::Tells(507, "no_room")]).await, (0, 2));
    assert_eq!(world.put(true, &[unknown, Does::Tells(507, "no_room")]).await, (504, 2));
    assert_eq!(world.put(true, &[Does::Breaks, Does::Refuses("soon")]).await.0, 0);
    assert_eq!(world.put(true, &[Does::Refuses("moved"), Does::Refuses("soon")]).await.0, 0);
    assert_eq!(world.put(true, &[Does::Breaks, Does::Says(403)]).await, (0, 2), "a door says it of one try");
    // An outcome does: it is that of the name.
    assert_eq!(world.put(true, &[Does::Breaks, Does::Tells(412, "not_met")]).await, (412, 2));
    assert_eq!(world.put(true, &[Does::Refuses("soon")]).await.0, 503, "nothing was done");
}

#[tokio::test]
async fn an_answer_that_has_begun_is_not_asked_for_again() {
    let world = table_world().await;
    let half =
        Does::Unavailable { headers: &[("partage-epoch", "3")], bytes: 1 << 10, length: Length::BreaksOff };
    world.node.does(&[half, Does::Answers]);
    let request = Request::put("/ks/apple").header("idempotency-key", "order-17");
    let request = request.body(Bytes::from("x").into()).unwrap();
    let answer = world.router.request(request, "ks", b"apple", Access::Write).await.unwrap();
    assert!(answer.into_body().collect().await.is_err(), "cut off, and not made whole from another answer");
    assert_eq!(world.node.saw().len(), 1);
}

/// A 503 whose reason the router does not understand is the client's, and comes as the node sent it.
#[tokio::test]
async fn a_refusal_without_a_known_reason_is_passed_on_whole() {
    let (_coordinator, router, nodes) = world(false, unhedged()).await;
    let ask = async || {
        let request = Request::post("/ks/apple").body(Bytes::from("x").into()).unwrap();
        let answer = router.request(request, "ks", b"apple", Access::Write).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        let announced: Option<usize> =
            answer.headers().get("content-length").map(|length| length.to_str().unwrap().parse().unwrap());
        (announced, answer.into_body().collect().await.map(|body| body.to_bytes().len()))
    };
    for bytes in [0, 10, 16 << 10, (16 << 10) + 1, 1 << 20] {
        for length in [Length::Announced, Length::Chunked] {
            nodes[0].does(&[Does::Unavailable { headers: &[], bytes, length }, Does::Answers]);
            let (announced, body) = ask().await;
            assert_eq!(body.unwrap(), bytes, "{length:?}");
            assert_eq!(announced, (length == Length::Announced).then_some(bytes));
        }
        nodes[0].does(&[Does::Unavailable { headers: &[], bytes, length: Length::BreaksOff }, Does::Answers]);
        assert!(ask().await.1.is_err(), "{bytes} bytes, and then a break: nobody may take them for all");
    }
}

/// A shard that serves says so by its epoch: its 503 is the service's word to the client, and no refusal of the node.
#[tokio::test]
async fn the_service_s_own_503_goes_to_the_client() {
    let (_coordinator, router, nodes) = world(false, unhedged()).await;
    let headers = &[("partage-epoch", "3"), ("retry-after", "30")];
    for method in [Method::GET, Method::PUT, Method::POST] {
        let before = nodes[0].saw().len();
        let own = Does::Unavailable { headers, bytes: 10, length: Length::Announced };
        nodes[0].does(&[own, Does::Answers]);
        let request = Request::builder().method(&method).uri("/ks/apple").body(Outgoing::Empty).unwrap();
        let answer = router.request(request, "ks", b"apple", Access::Write).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["retry-after"]),
            (503, &"30".parse().unwrap())
        );
        assert_eq!(text(answer).await, "x".repeat(10));
        assert_eq!(nodes[0].saw().len(), before + 1, "{method}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_kept_is_sent_once() {
    let (_coordinator, router, nodes) = world(false, unhedged()).await;
    nodes[0].does(&[Does::Refuses("soon"), Does::Answers]);
    let body = http_body_util::Full::new(Bytes::from(vec![b'x'; 1 << 20])).map_err(Into::into);
    let request = Request::post("/ks/apple").body(Outgoing::stream(body)).unwrap();
    let error = router.request(request, "ks", b"apple", Access::Write).await.unwrap_err();
    assert!(matches!(error, CallError::GaveUp { reason: Reason::NotKept(_), .. }), "{error}");
    assert_eq!((error.status().as_u16(), error.is_indefinite()), (503, false));
    let saw = nodes[0].saw();
    assert_eq!((saw.len(), saw[0].body.len()), (1, 1 << 20));
    assert!(!saw[0].headers.contains_key("partage-hop"), "such a request may be sent on by the node");
}

#[tokio::test]
async fn a_named_write_that_is_not_kept_gets_the_refusal_of_the_shard() {
    let world = table_world().await;
    world.node.does(&[Does::Tells(503, "soon"), Does::Answers]);
    let body = http_body_util::Full::new(Bytes::from(vec![b'x'; 1 << 20])).map_err(Into::into);
    let request = Request::put("/ks/apple").header("idempotency-key", "order-17");
    let request = request.body(Outgoing::stream(body)).unwrap();
    let answer = world.router.request(request, "ks", b"apple", Access::Write).await.unwrap();
    assert_eq!(answer.status().as_u16(), 503);
    assert!(text(answer).await.contains("soon"), "as the shard gave it");
    assert_eq!(world.node.saw().len(), 1);
}

#[tokio::test]
async fn what_may_have_been_done_and_twice_is_not_refused_as_if_nothing_was_done() {
    let retry = RetryPolicy { deadline_ms: 400, ..RetryPolicy::default() };
    let (_coordinator, router, nodes) = world(false, CallOptions { retry, ..unhedged() }).await;
    nodes[0].does(&[Does::Refuses("moved"), Does::Refuses("soon")]);
    let (status, said) = send(&router, Method::PUT, "apple", "x").await.unwrap();
    assert!(status == 503 && said.contains("moved"), "{status} {said}");
    assert!(nodes[0].saw().len() > 2, "it may be done twice");
}

#[tokio::test]
async fn the_deadline_ends_a_request_that_hangs() {
    let retry = RetryPolicy { deadline_ms: 300, ..RetryPolicy::default() };
    let (_coordinator, router, nodes) = world(false, CallOptions { retry, ..unhedged() }).await;
    nodes[0].does(&[Does::Waits(Duration::from_secs(30))]);
    let began = Instant::now();
    let error = send(&router, Method::POST, "apple", "x").await.unwrap_err();
    assert!((300..1_500).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!((error.status().as_u16(), error.is_indefinite()), (504, true));
    nodes[0].does(&[Does::Refuses("soon")]);
    let error = send(&router, Method::POST, "apple", "x").await.unwrap_err();
    assert_eq!((error.status().as_u16(), error.is_indefinite()), (503, false), "{error}");
    assert_eq!(send(&router, Method::POST, "pear", "x").await.unwrap().0, 200, "others are not held up");
}

#[tokio::test]
async fn a_slow_read_is_hedged_and_the_first_good_answer_wins() {
    let hedging = Hedging::AfterMs(30);
    let (_coordinator, router, nodes) = world(true, CallOptions { hedging, ..CallOptions::default() }).await;
    let began = Instant::now();
    for node in [&nodes[0], &nodes[2]] {
        node.does(&[Does::Waits(Duration::from_secs(5))]);
        let other = if node.name == "a" { &nodes[2] } else { &nodes[0] };
        other.does(&[Does::Answers]);
        for _ in 0..10 {
            assert_eq!(send(&router, Method::GET, "apple", "").await.unwrap().0, 200);
        }
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let hedges = router.counts().hedges;
    assert!(hedges > 0 && hedges < 20, "{hedges}");
    // A write is never sent twice.
    nodes[0].does(&[Does::Waits(Duration::from_millis(200))]);
    let before = nodes[0].saw().len() + nodes[2].saw().len();
    send(&router, Method::PUT, "apple", "x").await.unwrap();
    assert_eq!(nodes[0].saw().len() + nodes[2].saw().len(), before + 1);
}

#[tokio::test]
async fn reads_go_on_with_the_other_replica_when_one_dies() {
    let (_coordinator, router, mut nodes) = world(true, unhedged()).await;
    nodes[0].kill().await;
    let began = Instant::now();
    for at in 0..40 {
        assert!(send(&router, Method::GET, &format!("a{at}"), "").await.unwrap().1.starts_with("c GET"));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn r3_a_storm_of_refusals_adds_a_tenth() {
    let budget = BudgetPolicy { capacity: 5, refill_per_s: 0, ..BudgetPolicy::default() };
    let retry = RetryPolicy { deadline_ms: 500, rest_ms: 1, longest_rest_ms: 10, ..RetryPolicy::default() };
    let (_coordinator, router, nodes) = world(false, CallOptions { budget, retry, ..unhedged() }).await;
    nodes[0].does(&[Does::Refuses("soon")]);
    for _ in 0..4 {
        let storm: Vec<_> = (0..50)
            .map(|_| {
                let router = router.clone();
                tokio::spawn(async move { send(&router, Method::GET, "apple", "").await })
            })
            .collect();
        for request in storm {
            assert!(request.await.unwrap().is_err());
        }
    }
    let sent = nodes[0].saw().len();
    assert!((150..=225).contains(&sent), "{sent} tries of 200 requests");
}

#[tokio::test]
async fn too_many_at_once_are_refused_at_once() {
    let (_coordinator, router, nodes) = world(false, CallOptions { in_flight: 1, ..unhedged() }).await;
    nodes[0].does(&[Does::Waits(Duration::from_millis(300))]);
    let first = tokio::spawn({
        let router = router.clone();
        async move { send(&router, Method::GET, "apple", "").await }
    });
    eventually("the first is under way", || nodes[0].saw().len() == 1).await;
    let error = send(&router, Method::GET, "pear", "").await.unwrap_err();
    assert_eq!(error, CallError::Full { limit: 1 });
    assert_eq!(first.await.unwrap().unwrap().0, 200);
    assert_eq!(send(&router, Method::GET, "pear", "").await.unwrap().0, 200);
}
