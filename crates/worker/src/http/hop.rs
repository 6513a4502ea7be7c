//! Requests that are sent on to other nodes, and the check that such a node still answers.
//!
//! A stopped process, and a machine that is cut off, leave their connections open: an answer of theirs would be waited for until
//! they come back. How long a request may take is the service's affair, so it has no deadline. Instead, when a request or the
//! next part of an answer has been waited for [`limits::HOP_QUIET`], the node is asked at [`ALIVE_PATH`], which costs it nothing.
//! When [`limits::HOP_CHECKS`] such questions in a row have no answer, the request is given up: it may have been carried out, and
//! it may still be. One check of a node serves all requests that wait for it.

use super::{ALIVE_PATH, HOP};
use crate::limits;
use axum::body::{Body, Bytes, HttpBody};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body::{Frame, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use partage_dialer::Dialer;
use std::collections::HashMap;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Why another node has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HopError {
    /// There was no connection: nothing was done.
    NotConnected,
    /// The connection broke: the request may have been carried out.
    Broken,
    /// The node has the request and does not answer: it may be carried out, also later.
    Silent,
}

/// The connections to other nodes. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Hops {
    client: Client<HttpConnector, Body>,
    /// By address: whether the check has found that the node is silent. The check of a node is here while it runs.
    checks: Arc<Mutex<HashMap<String, watch::Sender<bool>>>>,
}

impl Hops {
    pub(super) fn new() -> Hops {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(limits::HOP_IDLE)
            .build(Dialer::PEER.http());
        Hops { client, checks: Arc::default() }
    }

    /// Sends a request to the node at `address`, which the URI names, too. Bodies are streamed both ways.
    pub(super) async fn send(
        &self,
        address: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, HopError> {
        let answer = tokio::select! {
            biased;
            answer = self.client.request(request) => answer,
            () = self.silence(address) => return Err(HopError::Silent),
        };
        match answer {
            Ok(response) => Ok(response.map(|body| self.checked(address, Body::new(body)))),
            Err(error) if error.is_connect() => Err(HopError::NotConnected),
            Err(_) => Err(HopError::Broken),
        }
    }

    fn checked(&self, address: &str, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        Body::new(CheckedBody { body, hops: self.clone(), address: address.to_owned(), silence: None })
    }

    /// Ends when the node at `address` does not answer any more.
    async fn silence(&self, address: &str) {
        sleep(limits::HOP_QUIET).await;
        let mut is_silent = self.check(address);
        if is_silent.wait_for(|is_silent| *is_silent).await.is_err() {
            // The check runs in the runtime that has ended.
            pending::<()>().await;
        }
    }

    fn checks(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<bool>>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of the check of a node, which begins if it does not run.
    fn check(&self, address: &str) -> watch::Receiver<bool> {
        let mut checks = self.checks();
        if let Some(check) = checks.get(address) {
            return check.subscribe();
        }
        let (check, result) = watch::channel(false);
        checks.insert(address.to_owned(), check.clone());
        tokio::spawn(self.clone().run_check(address.to_owned(), check));
        result
    }

    /// Asks the node until it is found silent, or until no request waits for it.
    async fn run_check(self, address: String, check: watch::Sender<bool>) {
        let mut unanswered = 0;
        loop {
            unanswered = if self.answers(&address).await { 0 } else { unanswered + 1 };
            let is_silent = unanswered >= limits::HOP_CHECKS;
            let mut checks = self.checks();
            if is_silent || check.receiver_count() == 0 {
                checks.remove(&address);
                check.send_replace(is_silent);
                return;
            }
            drop(checks);
            if unanswered == 0 {
                sleep(limits::HOP_QUIET).await;
            }
        }
    }

    /// Whether the node answers anything at all.
    async fn answers(&self, address: &str) -> bool {
        let Ok(uri) = format!("http://{address}{ALIVE_PATH}").parse::<Uri>() else { return false };
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::HEAD;
        *request.uri_mut() = uri;
        request.headers_mut().insert(HOP, HeaderValue::from_static("1"));
        matches!(timeout(limits::HOP_CHECK, self.client.request(request)).await, Ok(Ok(_)))
    }
}

/// The body of another node's answer: an error when the node stops answering in its midst.
struct CheckedBody {
    body: Body,
    hops: Hops,
    address: String,
    /// There while the next frame is waited for.
    silence: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl HttpBody for CheckedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let CheckedBody { body, hops, address, silence } = &mut *self;
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            *silence = None;
            return Poll::Ready(frame);
        }
        let silence = silence.get_or_insert_with(|| {
            let (hops, address) = (hops.clone(), address.clone());
            Box::pin(async move { hops.silence(&address).await })
        });
        let error = || axum::Error::new(format!("the node at {address} does not answer any more"));
        silence.as_mut().poll(context).map(|()| Some(Err(error())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    fn request(address: SocketAddr, path: &str) -> Request<Body> {
        Request::get(format!("http://{address}{path}")).body(Body::empty()).expect("a request")
    }

    /// Accepts connections, reads, and answers `first` to the first request of each if there is something; then nothing.
    async fn stopped(first: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut begin = [0; 16];
                let _ = connection.read(&mut begin).await;
                if begin.starts_with(b"GET ") {
                    let _ = tokio::io::AsyncWriteExt::write_all(&mut connection, first.as_bytes()).await;
                }
                connections.push(connection);
            }
        });
        address
    }

    #[tokio::test]
    async fn a_request_to_a_node_that_answers_nothing_any_more_is_given_up() {
        let (hops, address) = (Hops::new(), stopped("").await);
        let of_many = (0..50).map(|_| {
            let hops = hops.clone();
            tokio::spawn(async move { hops.send(&address.to_string(), request(address, "/slow")).await })
        });
        for sent in of_many.collect::<Vec<_>>() {
            assert_eq!(sent.await.expect("no panic").expect_err("no answer"), HopError::Silent);
        }
        assert!(hops.checks().is_empty(), "the check has ended");
    }

    #[tokio::test]
    async fn an_answer_of_which_the_rest_does_not_come_ends_with_an_error() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
        let (hops, address) = (Hops::new(), stopped(head).await);
        let answer = hops.send(&address.to_string(), request(address, "/slow")).await.expect("the head");
        let error = axum::body::to_bytes(answer.into_body(), 100).await.expect_err("half of it");
        assert!(error.to_string().contains("does not answer any more"), "{error}");
    }

    #[tokio::test]
    async fn a_slow_request_to_a_node_that_answers_is_waited_for() {
        let long = limits::HOP_QUIET + limits::HOP_CHECK * (limits::HOP_CHECKS + 1);
        let slow = move || async move {
            sleep(long).await;
            "done"
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let alive = move || async move {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let routes = Router::new().route("/slow", get(slow)).route(ALIVE_PATH, get(alive));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let hops = Hops::new();
        let answer = hops.send(&address.to_string(), request(address, "/slow")).await.expect("an answer");
        let body = axum::body::to_bytes(answer.into_body(), 100).await.expect("its body");
        assert_eq!(&body[..], b"done");
        assert!(asked.load(Ordering::Relaxed) > 0, "it was asked where that costs it nothing");
        sleep(2 * limits::HOP_QUIET + limits::HOP_CHECK).await;
        assert!(hops.checks().is_empty(), "no request waits, so no check runs");
    }

    #[tokio::test]
    async fn a_node_that_is_not_there_has_done_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let sent = Hops::new().send(&address.to_string(), request(address, "/slow")).await;
        assert_eq!(sent.expect_err("no answer"), HopError::NotConnected);
    }
}
