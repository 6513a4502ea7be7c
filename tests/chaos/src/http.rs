//! One HTTP request, with a deadline.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use std::time::Duration;

/// How long an answer may take: above the time for which a node holds a request during a move.
const ANSWER: Duration = Duration::from_secs(20);

/// A client with its own connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Http(Client<HttpConnector, Full<Bytes>>);

/// An answer of a server, whatever its status.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status, which need not be a success.
    pub status: StatusCode,
    /// The headers, such as `partage-epoch` and `partage-version`.
    pub headers: HeaderMap,
    /// The whole body, which may be empty.
    pub body: Bytes,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Default for Http {
    fn default() -> Http {
        Http(Client::builder(TokioExecutor::new()).build_http())
    }
}

impl Http {
    /// The answer of `address`, or why there is none.
    pub async fn ask(
        &self,
        method: Method,
        address: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).map_err(|error| error.to_string())?;
        let answered = tokio::time::timeout(ANSWER, async {
            let answer = self.0.request(request).await.map_err(|error| root(&error))?;
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.map_err(|error| root(&error))?.to_bytes();
            Ok(Reply { status: parts.status, headers: parts.headers, body })
        });
        answered.await.unwrap_or_else(|_| Err(format!("{address} does not answer within {ANSWER:?}")))
    }

    /// The answer to a `GET`.
    pub async fn get(&self, address: &str, path: &str) -> Result<Reply, String> {
        self.ask(Method::GET, address, path, &[], Bytes::new()).await
    }
}

fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
