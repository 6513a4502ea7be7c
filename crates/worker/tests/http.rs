//! What stands before a service that speaks HTTP.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use axum::body::Body;
use common::services::{Answer, Known, TestService, http, test_service_with, two_services};
use common::{KS, TestCoordinator, eventually, keyspace};
use futures::StreamExt;
use http::{Method, Request, StatusCode};
use partage_worker::http::{ALIVE_PATH, METRICS_PATH, Sharded, Target, WORKER_PATH};
use partage_worker::{NodeId, Ownership};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k19_a_request_is_forwarded_once_and_then_refused_with_a_hint() {
    let (test_coordinator, known) = (TestCoordinator::new(), Known::default());
    let (a, b) = two_services(&test_coordinator, &known).await;
    let http = http();
    let own = a.ask(&http, Method::PUT, "/key/k", &[]).await;
    assert_eq!((own.status, own.text().as_str()), (StatusCode::OK, "s1 hello"));
    assert_eq!((own.header("partage-node"), own.header("partage-proxied-to")), ("a", ""));
    assert!(own.header("partage-epoch").parse::<u64>().unwrap() > 0);

    let unknown = b.ask(&http, Method::PUT, "/key/k", &[]).await;
    assert_eq!(unknown.status, StatusCode::MISDIRECTED_REQUEST, "b has never heard of it");
    assert!(unknown.text().contains("misdirected") && unknown.header("partage-owner-node").is_empty());

    *known.lock().unwrap() = Some((a.worker.node().clone(), a.address.clone()));
    let forwarded = b.ask(&http, Method::PUT, "/key/k", &[]).await;
    assert_eq!((forwarded.status, forwarded.text().as_str()), (StatusCode::OK, "s1 hello"));
    assert_eq!((forwarded.header("partage-node"), forwarded.header("partage-proxied-to")), ("a", "a"));

    let refused = b.ask(&http, Method::PUT, "/key/k", &[("partage-hop", "1")]).await;
    assert_eq!(refused.status, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(refused.header("partage-owner-node"), "a");
    assert_eq!(refused.header("partage-owner-address"), a.address);
    assert_eq!(refused.error(), "misdirected");
    assert_eq!(refused.owner(), Some(("a".to_owned(), a.address.clone())), "the body says so, too");

    *known.lock().unwrap() = Some((NodeId::new("gone").unwrap(), "127.0.0.1:1".to_owned()));
    let nobody = b.ask(&http, Method::PUT, "/key/k", &[]).await;
    assert_eq!(nobody.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(nobody.header("retry-after"), "1");
    assert_eq!(nobody.error(), "unreachable");

    assert_eq!(b.ask(&http, Method::GET, "/other", &[]).await.text(), "unsharded");
    assert!(b.ask(&http, Method::GET, WORKER_PATH, &[]).await.text().contains("\"node\":\"b\""));
    let alive = b.ask(&http, Method::HEAD, ALIVE_PATH, &[("partage-hop", "1")]).await;
    assert_eq!((alive.status, alive.text().as_str()), (StatusCode::NO_CONTENT, ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_requests_inside_are_ended_when_their_time_is_up_and_others_go_on_at_the_new_owner() {
    let (test_coordinator, known) = (TestCoordinator::new(), Known::default());
    let (a, b) = two_services(&test_coordinator, &known).await;
    let (a, http) = (Arc::new(a), http());
    let ask = |path: &'static str| {
        let (a, http) = (a.clone(), http.clone());
        tokio::spawn(async move { a.ask(&http, Method::PUT, path, &[]).await })
    };
    let (slow, stream) = (ask("/key/slow"), ask("/key/stream"));
    eventually("both are inside", || a.worker.replicas()[0].in_flight == 2).await;
    test_coordinator.move_shard(test_coordinator.shard(), "a", "b").await;
    eventually("the gate is shut", || !a.serves()).await;
    // Comes in at a, is forwarded, and waits at b until b may begin.
    let next = ask("/key/next");
    let slow = slow.await.unwrap();
    assert_eq!(slow.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(slow.text().contains("handed over"));
    assert_eq!(slow.error(), "moved");
    let stream = stream.await.unwrap();
    assert_eq!(stream.status, StatusCode::OK);
    assert!(stream.body.is_err(), "cut off, not ended as if it were whole");
    let next = next.await.unwrap();
    assert_eq!((next.status, next.header("partage-proxied-to")), (StatusCode::OK, "b"));
    assert!(b.serves());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_may_be_done_has_a_status_of_its_own_where_the_service_wants_that() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let (a, _) = test_service_with("a", &coordinator, Sharded::definite_statuses).await;
    eventually("a serves", || a.serves()).await;
    // A node that reads the beginning of each request, and closes.
    let (listener, closes) = common::address().await;
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0]).await;
        }
    });
    let gate = move |gate: Sharded| {
        let located = (NodeId::new("closes").unwrap(), closes.to_string());
        gate.definite_statuses().locate_by(move |_: &Target, _| Some(located.clone()))
    };
    let (b, _) = test_service_with("b", &coordinator, gate).await;
    let http = http();
    let told = |answer: &Answer| (answer.status, answer.error());
    let unknown = (StatusCode::GATEWAY_TIMEOUT, "unknown_outcome".to_owned());
    assert_eq!(told(&b.ask(&http, Method::PUT, "/key/k", &[]).await), unknown);
    assert_eq!(told(&b.ask(&http, Method::DELETE, "/key/k", &[]).await), unknown);
    let read = b.ask(&http, Method::GET, "/key/k", &[]).await;
    assert_eq!(told(&read), (StatusCode::BAD_GATEWAY, "broken".to_owned()));

    let a = Arc::new(a);
    let ask = |method: Method| {
        let (a, http) = (a.clone(), http.clone());
        tokio::spawn(async move { a.ask(&http, method, "/key/slow", &[]).await })
    };
    let (written, read) = (ask(Method::PUT), ask(Method::GET));
    eventually("both are inside", || a.worker.replicas()[0].in_flight == 2).await;
    test_coordinator.move_shard(test_coordinator.shard(), "a", "b").await;
    let written = written.await.unwrap();
    assert_eq!(told(&written), unknown);
    assert_eq!(written.header("retry-after"), "", "nobody is to send it again unasked");
    assert_eq!(told(&read.await.unwrap()), (StatusCode::SERVICE_UNAVAILABLE, "moved".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a18_a_frame_that_was_read_while_the_lease_ran_out_is_not_sent() {
    let (test_coordinator, known) = (TestCoordinator::new(), Known::default());
    let (a, _b) = two_services(&test_coordinator, &known).await;
    test_coordinator.be_silent(true);
    let uri = format!("http://{}/key/paused", a.address);
    let request = Request::get(uri).body(Body::empty()).unwrap();
    // The connection breaks before or after the head of the answer, as it was sent already or not.
    let Ok(answer) = http().request(request).await else { return };
    let first = Body::new(answer.into_body()).into_data_stream().next().await;
    assert!(!matches!(first, Some(Ok(_))), "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_with_a_newer_map_is_waited_for_and_one_without_is_not() {
    let (test_coordinator, known) = (TestCoordinator::new(), Known::default());
    let (a, b) = two_services(&test_coordinator, &known).await;
    let http = http();
    test_coordinator.move_shard(test_coordinator.shard(), "a", "b").await;
    eventually("b serves", || b.serves()).await;
    eventually("a has nothing left", || a.worker.replicas().is_empty()).await;
    // a learns nothing more of the keyspace once all is gone; b's map is at this generation:
    let generation = b.worker.generation(&keyspace()).unwrap().sequence;
    *known.lock().unwrap() = None;
    let told = (generation + 1_000).to_string();
    let begun = tokio::time::Instant::now();
    let behind =
        a.ask(&http, Method::PUT, "/key/k", &[("partage-hop", "1"), ("partage-generation", &told)]).await;
    assert_eq!(behind.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(begun.elapsed() >= Duration::from_millis(500), "it hoped for the newer map");
    let begun = tokio::time::Instant::now();
    let level =
        a.ask(&http, Method::PUT, "/key/k", &[("partage-hop", "1"), ("partage-generation", "1")]).await;
    assert_eq!(level.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(begun.elapsed() < Duration::from_millis(400), "nothing to hope for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_what_outlasts_the_lease_is_not_answered_as_if_it_were_ours() {
    let (test_coordinator, known) = (TestCoordinator::new(), Known::default());
    let (a, _b) = two_services(&test_coordinator, &known).await;
    let http = http();
    let long = tokio::spawn({
        let (http, address) = (http.clone(), a.address.clone());
        let a = TestService { worker: a.worker.clone(), address };
        async move { a.ask(&http, Method::PUT, "/key/long", &[]).await }
    });
    eventually("it is inside", || a.worker.replicas()[0].in_flight == 1).await;
    test_coordinator.be_silent(true);
    let mut lapsed = a.ask(&http, Method::GET, "/key/k", &[]).await;
    let end = tokio::time::Instant::now() + Duration::from_secs(5);
    while lapsed.status == StatusCode::OK {
        assert!(tokio::time::Instant::now() < end, "{KS} is served without a lease");
        tokio::time::sleep(Duration::from_millis(20)).await;
        lapsed = a.ask(&http, Method::GET, "/key/k", &[]).await;
    }
    assert_eq!(lapsed.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(lapsed.text().contains("coordinator"));
    assert_eq!(lapsed.error(), "lapsed", "it was not begun");
    let long = long.await.unwrap();
    assert_eq!(
        (long.status, long.error().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "lapsed_while_served")
    );
    let metrics = a.ask(&http, Method::GET, METRICS_PATH, &[]).await;
    assert!(metrics.header("content-type").starts_with("text/plain"));
    let has = |line: &str| {
        assert!(metrics.text().lines().any(|has| has.starts_with(line)), "{line}: {}", metrics.text())
    };
    has("partage_worker_up{health=\"up\"} ");
    has("partage_worker_replicas{keyspace=\"users\",role=\"leader\",phase=\"serving\"} 1");
    has("partage_worker_entrances_total{outcome=\"lapsed\"} ");
    has("partage_worker_requests_total{keyspace=\"users\",shard=\"1\",placement=");
    assert!(!metrics.text().contains("entrances_total{outcome=\"lapsed\"} 0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maps_are_followed_when_first_needed_and_not_for_what_was_sent_on() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let (a, of_a) = test_service_with("a", &coordinator, |gate| gate).await;
    eventually("a serves", || a.serves()).await;
    let (b, of_b) = test_service_with("b", &coordinator, |gate| gate).await;
    let (c, of_c) = test_service_with("c", &coordinator, Sharded::hints_only).await;
    let http = http();
    assert_eq!(a.ask(&http, Method::GET, "/key/k", &[]).await.status, StatusCode::OK);
    assert_eq!(b.ask(&http, Method::GET, "/other", &[]).await.text(), "unsharded");
    let hopped = b.ask(&http, Method::GET, "/key/k", &[("partage-hop", "1")]).await;
    assert_eq!(hopped.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(!of_a.is_following() && !of_b.is_following(), "nobody has needed a map");

    // This coordinator has no maps to give, so that nothing is found; but they were asked for.
    let asked = b.ask(&http, Method::GET, "/key/k", &[]).await;
    assert_eq!(asked.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(of_b.is_following());
    assert_eq!(c.ask(&http, Method::GET, "/key/k", &[]).await.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(!of_c.is_following(), "it was told to do without");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_who_has_left_closes_each_connection_with_its_answer() {
    let (test_coordinator, known) = (TestCoordinator::new(), Known::default());
    let (a, b) = two_services(&test_coordinator, &known).await;
    let http = http();
    let before = a.ask(&http, Method::PUT, "/key/k", &[]).await;
    assert_eq!((before.status, before.header("connection")), (StatusCode::OK, ""));
    let leaving = tokio::spawn({
        let a = a.worker.clone();
        async move { a.leave(Duration::from_secs(10)).await }
    });
    eventually("b serves", || b.serves()).await;
    // From the goodbye on, and while it lingers, clients are told not to come back on this connection.
    leaving.await.unwrap().unwrap();
    let sharded = a.ask(&http, Method::PUT, "/key/k", &[]).await;
    assert_eq!((sharded.status, sharded.header("connection")), (StatusCode::MISDIRECTED_REQUEST, "close"));
    let other = a.ask(&http, Method::GET, "/other", &[]).await;
    assert_eq!((other.text().as_str(), other.header("connection")), ("unsharded", "close"));
}
