//! The client of the admin API, for the commands that ask and change a running cluster.

use crate::http::{self, ANSWER, RequestError, address, root_cause};
use crate::output::Failure;
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use partage_wire::json::{Answer, Command, CommandRequest, ErrorBody};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes shown of an answer that is not understood.
const SAID_BYTES: usize = 200;

/// Where the cluster is, and who asks.
#[derive(Debug, Clone, Args)]
pub struct ApiClient {
    /// Coordinators, as host:port separated by commas; the command asks the first one that answers
    #[arg(
        long,
        global = true,
        env = "PARTAGE_COORDINATOR",
        value_delimiter = ',',
        default_value = "127.0.0.1:7400",
        value_parser = address
    )]
    pub coordinator: Vec<String>,

    /// Name that the coordinator records with each approval, drain or move
    #[arg(long = "as", global = true, env = "USER", default_value = "anonymous", value_name = "NAME")]
    pub who: String,
}

/// The flag `--dry-run`: the command only says what would happen.
#[derive(Debug, Clone, Copy, Args)]
pub struct DryRun {
    /// Change nothing; print the plan
    #[arg(long)]
    pub dry_run: bool,
}

impl ApiClient {
    /// The answer to a question.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// Carries out a command, or says what it would do.
    pub async fn command(&self, command: Command, dry_run: bool) -> Result<Answer, Failure> {
        let body = body(&CommandRequest { command, dry_run })?;
        self.ask(Method::POST, "/v1/commands", body).await
    }

    /// What is at `path`, piece by piece as it comes, of the first coordinator that answers.
    pub async fn download(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut why = String::new();
        for coordinator in &self.coordinator {
            let answer = match self.send(coordinator, &Method::GET, path, Bytes::new()).await? {
                Ok(answer) => answer,
                Err(error) => {
                    why = error.why;
                    continue;
                }
            };
            let (status, mut body) = (answer.status(), answer.into_body());
            let broke_off = |why: &dyn std::fmt::Display| {
                Failure::failed(format!("{coordinator} broke off in the middle of {path}: {why}"))
                    .help("ask again, or another coordinator")
            };
            if !status.is_success() {
                let bytes = body.collect().await.map_err(|error| broke_off(&error))?.to_bytes();
                return Err(refusal(status, &bytes));
            }
            loop {
                let late = |_| broke_off(&format!("nothing came for {} s", ANSWER.as_secs()));
                match tokio::time::timeout(ANSWER, body.frame()).await.map_err(late)? {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(broke_off(&root_cause(&error))),
                    Some(Ok(frame)) => frame.data_ref().map_or(Ok(()), |piece| take(piece))?,
                }
            }
        }
        Err(self.unreachable(why))
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T, Failure> {
        let (coordinator, bytes) = self.first_answer(method, path, body).await?;
        match serde_json::from_slice(&bytes) {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.not_understood(coordinator, path, &error).await),
        }
    }

    /// Asks the first coordinator that answers, and names it. A change that may have arrived is not sent to another one.
    /// Apart from [`ApiClient::ask`], so that it is compiled once and not for each type of answers.
    async fn first_answer(&self, method: Method, path: &str, body: Bytes) -> Result<(&str, Bytes), Failure> {
        let mut why = String::new();
        for coordinator in &self.coordinator {
            match self.ask_one(coordinator, &method, path, body.clone()).await? {
                Ok((status, bytes)) if status.is_success() => return Ok((coordinator, bytes)),
                Ok((status, bytes)) => {
                    let other = self.other_program(coordinator).await;
                    return Err(other.unwrap_or_else(|| refusal(status, &bytes)));
                }
                Err(error) if error.sent && method != Method::GET => {
                    let what = format!(
                        "{coordinator} broke off before it answered ({}): it may have been done",
                        error.why
                    );
                    return Err(Failure::failed(what).help(
                        "before you ask again, look whether it was done: `partage status`, `partage plan list`",
                    ));
                }
                Err(error) => why = error.why,
            }
        }
        Err(self.unreachable(why))
    }

    async fn not_understood(&self, coordinator: &str, path: &str, error: &serde_json::Error) -> Failure {
        let what = format!("the answer of {path} is not understood: {error}");
        self.other_program(coordinator).await.unwrap_or(Failure::failed(what))
    }

    async fn ask_one(
        &self,
        coordinator: &str,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Result<(StatusCode, Bytes), RequestError>, Failure> {
        let answer = match self.send(coordinator, method, path, body).await? {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        let status = answer.status();
        Ok(match tokio::time::timeout(ANSWER, answer.into_body().collect()).await {
            Ok(Ok(body)) => Ok((status, body.to_bytes())),
            Ok(Err(error)) => Err(RequestError { sent: true, why: error.to_string() }),
            Err(_) => Err(RequestError::late()),
        })
    }

    /// Up to the head of the answer.
    async fn send(
        &self,
        coordinator: &str,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Result<Response<Incoming>, RequestError>, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{coordinator}{path}"))
            .header("content-type", "application/json")
            .header("partage-user", &self.who)
            .body(Full::new(body))
            .map_err(|error| Failure::usage(format!("{coordinator:?} is no address: {error}")))?;
        Ok(http::send(request).await)
    }

    /// What program answers at a coordinator's address, if it is no coordinator.
    async fn other_program(&self, address: &str) -> Option<Failure> {
        let what =
            [("/partage/health", "connected", "a router"), ("/-/health", "datasets", "a dataset node")];
        for (path, field, what) in what {
            let Ok(Ok((_, bytes))) = self.ask_one(address, &Method::GET, path, Bytes::new()).await else {
                continue;
            };
            let told: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            if told.get(field).is_some() {
                return Some(not_a_coordinator(address, what));
            }
        }
        // Every coordinator answers this, also one that stands by; a worker takes the path for a key of its service.
        let path = "/v1/coordinators";
        let (status, bytes) = self.ask_one(address, &Method::GET, path, Bytes::new()).await.ok()?.ok()?;
        let told: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let kind = told.pointer("/error/kind").and_then(serde_json::Value::as_str);
        match kind {
            Some("misdirected") => Some(not_a_coordinator(address, "a node of a service")),
            // What the door of a coordinator says before it looks at the path.
            Some(_) if !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => None,
            // A proxy in front of it, perhaps.
            None if status.is_server_error() => None,
            _ if told.get("coordinators").is_some() => None,
            _ => Some(not_a_coordinator(address, "another program")),
        }
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> Failure {
        let asked = self.coordinator.join(", ");
        Failure::not_reachable(format!("no coordinator answers at {asked}: {why}")).help(
            "start one with `partage coordinator` or `partage up`, or name it with --coordinator HOST:PORT",
        )
    }
}

fn not_a_coordinator(address: &str, what: &str) -> Failure {
    Failure::usage(format!("{address} is {what}, and this asks a coordinator")).help(
        "coordinators listen on port 7400 as a rule: name one with --coordinator HOST:PORT, or PARTAGE_COORDINATOR",
    )
}

fn body(value: &impl Serialize) -> Result<Bytes, Failure> {
    let bytes = serde_json::to_vec(value).map_err(|error| Failure::failed(error.to_string()))?;
    Ok(bytes.into())
}

fn refusal(status: StatusCode, bytes: &[u8]) -> Failure {
    let Ok(ErrorBody { error }) = serde_json::from_slice(bytes) else {
        let said = String::from_utf8_lossy(&bytes[..bytes.len().min(SAID_BYTES)]);
        let what = format!("what answers is no coordinator ({status}): {}", said.trim());
        return Failure::failed(what.trim_end_matches([':', ' ']))
            .help("coordinators listen on port 7400 as a rule: name one with --coordinator HOST:PORT");
    };
    let failure = match error.kind.as_str() {
        "invalid" | "malformed" => Failure::usage(&error.message),
        "unavailable" => Failure::not_reachable(&error.message),
        // Not refused: it may have been done, or could not be stored.
        "unknown" | "not_stored" => Failure::failed(&error.message),
        _ => Failure::refused(&error.message),
    };
    let failure = failure.kind(&error.kind);
    // Messages end with their way out already; only another one is worth a line.
    if error.help.is_empty() || error.message.ends_with(&error.help) {
        failure
    } else {
        failure.help(error.help)
    }
}
