//! `partage shuffle list`: asks a node over HTTP.

use crate::http::{address, first_answer};
use crate::output::{Failure, Output, table};
use bytes::Bytes;
use clap::Args;
use hyper::{HeaderMap, Method, StatusCode};
use partage_wire::json::ErrorBody;
use serde_json::Value;

/// Where a node listens for HTTP unless somebody says.
const HTTP: &str = "127.0.0.1:7700";

/// `partage shuffle list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// HTTP addresses of nodes of shuffles, as host:port separated by commas; the command asks the first one that answers
    #[arg(
        long,
        env = "PARTAGE_SHUFFLE_HTTP",
        value_delimiter = ',',
        default_value = HTTP,
        value_parser = address
    )]
    http: Vec<String>,
}

impl ListArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let answer = first_answer(&self.http, &Method::GET, "/v1/shuffles", &HeaderMap::new(), &Bytes::new());
        let reply = answer.await.map_err(|error| {
            let asked = self.http.join(", ");
            Failure::not_reachable(format!("no node of shuffles answers at {asked}: {}", error.why))
                .help("start one with `partage shuffle serve`, or name it with --http HOST:PORT")
        })?;
        if reply.status != StatusCode::OK {
            return Err(match serde_json::from_slice::<ErrorBody>(&reply.body) {
                Ok(ErrorBody { error }) => Failure::refused(error.message).kind(error.kind).help(error.help),
                Err(_) => {
                    let said = String::from_utf8_lossy(&reply.body);
                    Failure::failed(format!("{}: {said}", reply.status))
                }
            });
        }
        let told: Value = serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))?;
        if output.is_json() {
            return output.json(&told);
        }
        let mut rows = table(["shuffle", "stage", "whole inputs", "records", "bytes"]);
        for shuffle in told["shuffles"].as_array().into_iter().flatten() {
            rows.add_row(
                ["shuffle", "stage", "winners", "records", "bytes"].map(|name| text(&shuffle[name])),
            );
        }
        output.text(&rows.trim_fmt());
        Ok(())
    }
}

/// A value for people.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
