//! Commands to a coordinator, as `POST /v1/commands` takes them.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_wire::json::{Command, CommandRequest};
use std::net::SocketAddr;

/// A client of one coordinator.
#[derive(Debug, Clone)]
pub struct Admin {
    coordinator: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Admin {
    /// Connects when it is first used.
    pub fn new(coordinator: SocketAddr) -> Admin {
        Admin { coordinator, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Has a command carried out; an error is what the coordinator said.
    pub async fn command(&self, command: Command) -> Result<(), String> {
        let body = serde_json::to_vec(&CommandRequest { command, dry_run: false });
        let request = Request::post(format!("http://{}/v1/commands", self.coordinator))
            .header("content-type", "application/json")
            .header("partage-user", "bench")
            .body(Full::from(body.map_err(|error| error.to_string())?))
            .map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("{status}: {}", String::from_utf8_lossy(&bytes))),
        }
    }
}
