//! Services of workers behind [`Sharded`], and a client of theirs.

use super::{TestCoordinator, address, eventually, keyspace, settings};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use partage_wire::json::ErrorBody;
use partage_worker::http::{Aim, Sharded, Target, router};
use partage_worker::{
    Access, Admission, Assignment, CallbackTimeouts, Closures, Failure, Guard, NodeId, Ownership, Worker,
};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tower::Layer;

pub type Http = Client<HttpConnector, Body>;

pub struct TestService {
    pub worker: Worker,
    pub address: String,
}

pub fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

fn aim(parts: &http::request::Parts) -> Aim {
    match parts.uri.path().strip_prefix("/key/") {
        Some(key) => Aim::Key(Target { keyspace: keyspace(), key: key.into(), access: None }),
        None => Aim::Unsharded,
    }
}

/// Answers who it is and what it was told; `/key/slow` takes for ever, `/key/slow-here` unless another node has sent it on;
/// `/key/stream` never ends; `/key/paused` reads its only frame while its thread stands still for longer than a lease.
async fn service(guard: Option<Extension<Arc<Guard>>>, request: Request) -> Response {
    let Some(Extension(guard)) = guard else { return "unsharded".into_response() };
    match request.uri().path() {
        "/key/slow" => std::future::pending().await,
        "/key/slow-here" if !request.headers().contains_key("partage-hop") => std::future::pending().await,
        // Longer than the lease.
        "/key/long" => {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            "done".into_response()
        }
        "/key/stream" => {
            let endless = futures::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Ok::<_, std::convert::Infallible>("more"), ()))
            });
            Body::from_stream(endless).into_response()
        }
        "/key/paused" => Body::new(Paused { is_read: false }).into_response(),
        _ => {
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            format!("{} {}", guard.shard(), String::from_utf8_lossy(&body)).into_response()
        }
    }
}

/// A body of one frame, the last, as its end says: who sends it does not come back to ask for more.
struct Paused {
    is_read: bool,
}

impl http_body::Body for Paused {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    #[expect(clippy::disallowed_methods, reason = "a thread that stands still is what is tested")]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if std::mem::replace(&mut self.is_read, true) {
            return Poll::Ready(None);
        }
        std::thread::sleep(Duration::from_millis(2 * settings().lease_ms));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"read after the lease")))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_read
    }
}

pub type Known = Arc<Mutex<Option<(NodeId, String)>>>;

pub async fn test_service(name: &str, coordinator: &str, known: Known) -> TestService {
    let gate = move |gate: Sharded| gate.locate_by(move |_: &Target, _| known.lock().unwrap().clone());
    test_service_with(name, coordinator, gate).await.0
}

pub async fn test_service_with(
    name: &str,
    coordinator: &str,
    gate: impl FnOnce(Sharded) -> Sharded,
) -> (TestService, Sharded) {
    let (listener, address) = address().await;
    let nothing = |_: Assignment| async { Ok::<(), Failure>(()) };
    let worker = Worker::builder(name, [coordinator], address.to_string())
        .callback_timeouts(CallbackTimeouts { drain_ms: 300, ..CallbackTimeouts::default() })
        .start(Closures::new(nothing, nothing))
        .await
        .unwrap();
    let gate = gate(Sharded::new(&worker, aim).hold(Duration::from_millis(500)));
    let inner = Router::new().fallback(service);
    let app = router(&worker).fallback_service(gate.layer(inner));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (TestService { worker, address: address.to_string() }, gate)
}

impl TestService {
    pub async fn ask(&self, http: &Http, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = http.request(request.body(Body::from("hello")).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = to_bytes(Body::new(body), 1 << 20).await.map(|bytes| bytes.to_vec());
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub fn serves(&self) -> bool {
        matches!(self.worker.enter(&keyspace(), b"k", Access::Write), Admission::Serve(_))
    }
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub body: Result<Vec<u8>, axum::Error>,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The kind of a refusal, which says what to do, too.
    pub fn error(&self) -> String {
        let ErrorBody { error } = serde_json::from_str(&self.text()).unwrap();
        assert!(!error.help.is_empty() && error.message.ends_with(&error.help), "{error:?}");
        error.kind
    }

    /// Whom a refusal names as the owner.
    pub fn owner(&self) -> Option<(String, String)> {
        let ErrorBody { error } = serde_json::from_str(&self.text()).unwrap();
        error.owner.map(|owner| (owner.node, owner.address))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.as_ref().unwrap().clone()).unwrap()
    }
}

/// `a` leads the only shard, `b` has nothing.
pub async fn two_services(test_coordinator: &TestCoordinator, known: &Known) -> (TestService, TestService) {
    let (coordinator, _) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let a = test_service("a", &coordinator, Arc::default()).await;
    eventually("a serves", || a.serves()).await;
    let b = test_service("b", &coordinator, known.clone()).await;
    (a, b)
}
