//! Requests of HTTP/2 that nobody reads on, on one connection with others.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use partage_door::{Door, RequestBody, Role, Service, Settings, Windows};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// More than the window of one request.
const BYTES: usize = 600 << 10;
/// So many of them have more than a mebibyte on the connection.
const HELD: usize = 12;

/// Answers with the length of the body; at `/held` it has the body and does not read it.
#[derive(Clone)]
struct Holds;

impl Service for Holds {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<RequestBody>) -> Response<Full<Bytes>> {
        let is_held = request.uri().path() == "/held";
        let body = request.into_body();
        if is_held {
            std::future::pending::<()>().await;
        }
        let read = body.collect().await.unwrap().to_bytes();
        Response::new(Full::from(read.len().to_string()))
    }
}

/// As a call of gRPC has it. Zeros are messages of no bytes.
fn call(path: &str) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc");
    request.body(Full::from(vec![0; BYTES])).unwrap()
}

#[tokio::test]
async fn requests_that_nobody_reads_leave_their_connection_to_others() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let windows = Windows { stream: 256 << 10, connection: 16 << 20 };
    let door = Door::new(Role { windows, ..Role::default() }, Settings::default());
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(async move { door.listen_with(listener, |_| Holds, stopped).await });
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..HELD {
        let mut sender = sender.clone();
        tokio::spawn(async move { sender.send_request(call("/held")).await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut sender = sender;
    let answer = tokio::time::timeout(Duration::from_secs(10), sender.send_request(call("/"))).await;
    let body = answer.expect("its body has room").unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), BYTES.to_string());
}
