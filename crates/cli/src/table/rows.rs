//! Verbs about single rows: they ask a node of tables, which asks the right one.
//!
//! A write has an idempotency key always: a random one, or that of `--idempotency-key`. If the command does not know
//! whether a node carried the write out, it prints the key, with which a person can send the write again.

use super::nodes::{Effect, IDEMPOTENCY_KEY, REST, TableNodes, random_name, refusal};
use crate::admin::{Hex, key_text};
use crate::client::DryRun;
use crate::http::{Reply, segment, segment_of};
use crate::output::{Failure, Output, say};
use bytes::Bytes;
use clap::{Args, value_parser};
use hyper::header::{AsHeaderName, ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, Method, StatusCode};
use partage_core::base::count::counted;
use partage_core::keyspace::key::Key;
use partage_core::limits::{TTL_MS, VALUE_BYTES};
use partage_wire::json::KeyText;
use partage_wire::table::BytesText;
use serde_json::json;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const EXISTED: &str = "partage-existed";
const EXPIRES_MS: &str = "partage-expires-ms";
/// Up to which entry of the shard's log an answer is read; that of a row that is not there has it too.
const APPLIED: &str = "partage-applied";
const AGE_MS: &str = "partage-age-ms";

/// The kind of the answer of a replica that is older than the read wants.
const TOO_OLD: &str = "too_old";

/// How long such a replica is asked again: one that follows its leader has what was acknowledged within milliseconds.
const CATCH_UP: Duration = Duration::from_secs(2);

/// The longest idempotency key that a node takes.
const NAME_BYTES: usize = 255;

/// Which node is asked, and for which row.
#[derive(Debug, Clone, Args)]
struct Target {
    /// Name of the table
    table: String,
    /// The key, as plain text; with --hex, as hex digits
    key: String,
    #[command(flatten)]
    hex: Hex,
    #[command(flatten)]
    nodes: TableNodes,
}

/// When and how a write is done.
#[derive(Debug, Clone, Args)]
struct Writing {
    /// Write only if the row has this version, as `get` prints it; * = only if the row is there
    #[arg(long, value_name = "VERSION", value_parser = version_or_any)]
    if_version: Option<String>,
    /// There is no row of the key: only `put` can ask for that.
    #[arg(skip)]
    if_absent: bool,
    /// Name of the write: sent again under the same key within ten minutes, the write is not done twice [default: a random key]
    #[arg(long, value_name = "KEY", value_parser = idempotency_key)]
    idempotency_key: Option<String>,
    #[command(flatten)]
    dry: DryRun,
}

/// A version as nodes write it: the epoch and the index of an entry of the shard's log.
fn version(text: &str) -> Result<String, String> {
    let parsed = || {
        let (epoch, index) = text.split_once('-')?;
        Some((epoch.parse::<u64>().ok()?, index.parse::<u64>().ok()?))
    };
    match parsed() {
        Some((epoch, index)) => Ok(format!("{epoch}-{index}")),
        None => Err("give a version as `partage table get` prints it, such as 3-17".to_owned()),
    }
}

fn version_or_any(text: &str) -> Result<String, String> {
    if text == "*" { Ok(text.to_owned()) } else { version(text) }
}

fn idempotency_key(text: &str) -> Result<String, String> {
    let can_be_sent = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'\'');
    if (1..=NAME_BYTES).contains(&text.len()) && can_be_sent && text.trim() == text {
        return Ok(text.to_owned());
    }
    Err(format!("give 1 to {NAME_BYTES} ASCII characters, without quotes (') and spaces at the ends"))
}

impl Writing {
    fn headers(&self, name: &str) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(version) = &self.if_version {
            let tag = if version == "*" { version.clone() } else { format!("\"{version}\"") };
            headers.insert(IF_MATCH, HeaderValue::from_str(&tag).map_err(Failure::failed)?);
        }
        if self.if_absent {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(name).map_err(Failure::failed)?);
        Ok(headers)
    }

    /// Refuses a write whose condition does not hold on the row that is there; none: there is no row.
    fn check(&self, current: Option<&str>) -> Result<(), Failure> {
        let is_met = match (&self.if_version, current) {
            (Some(wanted), Some(current)) => wanted == "*" || wanted == current,
            (Some(_), None) => false,
            (None, current) => !self.if_absent || current.is_none(),
        };
        if is_met {
            return Ok(());
        }
        let what = match current {
            Some(version) => format!("the row has the version {version}"),
            None => "there is no row of that key".to_owned(),
        };
        Err(Failure::refused(format!("{what}: nothing would be written")).kind("not_met"))
    }
}

impl Target {
    fn key(&self) -> Result<Key, Failure> {
        Key::try_from(self.hex.key(&self.key)).map_err(Failure::usage)
    }

    fn path(&self, key: &Key, query: &str) -> String {
        format!("/v1/tables/{}/keys/{}{query}", segment(&self.table), segment_of(key.as_bytes()))
    }

    /// Reads the row, or that there is none.
    async fn read(&self, key: &Key, query: &str) -> Result<Found, Failure> {
        let reply = self.nodes.get(&self.path(key, query)).await?;
        match reply.status {
            StatusCode::OK => {}
            // That of a table that no node knows names no entry of a log.
            StatusCode::NOT_FOUND if reply.headers.contains_key(APPLIED) => {}
            _ => return Err(refusal(&self.table, &reply)),
        }
        Ok(Found {
            is_there: reply.status == StatusCode::OK,
            version: version_of(&reply),
            applied: text_of(&reply, APPLIED),
            age_ms: number_of(&reply, AGE_MS),
            expires_ms: number_of(&reply, EXPIRES_MS),
            value: reply.body,
        })
    }

    /// Writes, and prints what has become of it.
    async fn write(
        &self,
        writing: &Writing,
        method: Method,
        query: &str,
        value: Bytes,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let key = self.key()?;
        let name = writing.idempotency_key.clone().unwrap_or_else(random_name);
        let way_out = format!(
            "send it again with --idempotency-key '{name}' within ten minutes, which does not do it twice, or read the row"
        );
        let (path, headers) = (self.path(&key, query), writing.headers(&name)?);
        let reply = self.nodes.ask(Effect::Changes(&way_out), method, &path, headers, value).await?;
        if !reply.status.is_success() {
            return Err(refusal(&self.table, &reply));
        }
        let existed = text_of(&reply, EXISTED).as_deref() == Some("true");
        if output.is_json() {
            return output.json(&json!({
                "key": BytesText::from(&key),
                "version": version_of(&reply),
                "applied": text_of(&reply, APPLIED),
                "existed": existed,
            }));
        }
        match version_of(&reply) {
            Some(version) => say(&format!("version {version}")),
            None if existed => say("deleted"),
            None => say("there was no such key"),
        }
        Ok(())
    }

    /// Prints what a write would do, of so many bytes or of none, by the row that is there now.
    async fn foresee(
        &self,
        writing: &Writing,
        bytes: Option<usize>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let key = self.key()?;
        if let Some(bytes) = bytes.filter(|bytes| *bytes > VALUE_BYTES) {
            let what =
                format!("the value has {bytes} bytes, and the limit is {VALUE_BYTES}: store it in parts");
            return Err(Failure::usage(what).kind("too_large"));
        }
        let found = self.read(&key, "?consistency=linearizable").await?;
        let current = found.version.filter(|_| found.is_there);
        writing.check(current.as_deref())?;
        if output.is_json() {
            let would = match (bytes, &current) {
                (Some(_), _) => "put",
                (None, Some(_)) => "delete",
                (None, None) => "nothing",
            };
            return output.json(&json!({
                "key": BytesText::from(&key),
                "dry_run": true,
                "would": would,
                "existed": current.is_some(),
                "current_version": current,
            }));
        }
        let (table, key) = (&self.table, quoted(&key));
        let value = bytes.map(|bytes| counted(bytes, "byte"));
        output.text(&match (value, current) {
            (Some(value), Some(version)) => {
                format!("would write {value} to key {key} of table {table}, which has version {version}")
            }
            (Some(value), None) => format!("would create key {key} of table {table} with {value}"),
            (None, Some(version)) => {
                format!("would delete key {key} of table {table}, which has version {version}")
            }
            (None, None) => format!("would delete nothing: table {table} has no key {key}"),
        });
        Ok(())
    }
}

/// What a read has found.
#[derive(Debug)]
struct Found {
    is_there: bool,
    value: Bytes,
    version: Option<String>,
    applied: Option<String>,
    /// How old it may be at most; none: not known.
    age_ms: Option<u64>,
    expires_ms: Option<u64>,
}

impl Found {
    /// The version and the age of the row, for people.
    fn as_of(&self) -> String {
        let version = self.version.iter().map(|version| format!("version {version}"));
        let applied = self.applied.iter().map(|applied| format!("read as of {applied}"));
        let age = self.age_ms.iter().map(|age_ms| format!("at most {age_ms} ms old"));
        version.chain(applied).chain(age).collect::<Vec<_>>().join(", ")
    }
}

/// A key in a sentence.
fn quoted(key: &Key) -> String {
    match KeyText::from(key) {
        KeyText::Text(text) => format!("{text:?}"),
        hex @ KeyText::Hex { .. } => key_text(&hex),
    }
}

fn text_of(reply: &Reply, name: impl AsHeaderName) -> Option<String> {
    reply.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn number_of(reply: &Reply, name: &str) -> Option<u64> {
    text_of(reply, name).and_then(|text| text.parse().ok())
}

fn version_of(reply: &Reply) -> Option<String> {
    text_of(reply, ETAG).map(|tag| tag.trim_matches('"').to_owned())
}

/// The arguments of `partage table get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    target: Target,
    /// Freshness of the answer: linearizable (includes every acknowledged write), any, or a maximum age in milliseconds
    #[arg(long, default_value = "linearizable", value_name = "WORD|MS")]
    consistency: String,
    /// Read nothing older than this version, which an earlier read or write of the same key has printed
    #[arg(long, value_name = "VERSION", value_parser = version)]
    at_least: Option<String>,
}

impl GetArgs {
    fn query(&self) -> Result<String, Failure> {
        let mut query = match (self.consistency.as_str(), self.consistency.parse::<u64>()) {
            (_, Ok(bound_ms)) => format!("?consistency=bounded&bound_ms={bound_ms}"),
            (word @ ("linearizable" | "any"), _) => format!("?consistency={word}"),
            (other, _) => {
                return Err(Failure::usage(format!("--consistency {other:?} is not known"))
                    .help("give linearizable, any, or a number of milliseconds"));
            }
        };
        query.extend(self.at_least.iter().map(|version| format!("&at_least={version}")));
        Ok(query)
    }

    /// Reads; a replica that is behind is asked again for a moment.
    async fn read(&self, key: &Key) -> Result<Found, Failure> {
        let (query, until) = (self.query()?, Instant::now() + CATCH_UP);
        loop {
            match self.target.read(key, &query).await {
                Err(why) if why.is_kind(TOO_OLD) && Instant::now() < until => sleep(REST).await,
                read => return read,
            }
        }
    }

    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let key = self.target.key()?;
        let found = self.read(&key).await?;
        if !found.is_there {
            let what = format!("table {} has no key {}, {}", self.target.table, quoted(&key), found.as_of());
            return Err(Failure::refused(what).kind("absent"));
        }
        if output.is_json() {
            return output.json(&json!({
                "key": BytesText::from(&key),
                "value": BytesText::from(&found.value[..]),
                "version": found.version,
                "applied": found.applied,
                "age_ms": found.age_ms,
                "expires_ms": found.expires_ms,
            }));
        }
        say(&found.as_of());
        output.bytes(&found.value);
        Ok(())
    }
}

/// The arguments of `partage table put`.
#[derive(Debug, Args)]
pub struct PutArgs {
    #[command(flatten)]
    target: Target,
    /// The value, as plain text [default: what --file names]
    #[arg(conflicts_with = "file", required_unless_present = "file")]
    value: Option<String>,
    /// File whose bytes are the value; - for stdin
    #[arg(long)]
    file: Option<PathBuf>,
    /// Milliseconds after which the row expires [default: never]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(..=TTL_MS))]
    ttl_ms: Option<u64>,
    /// Write only if there is no row of the key
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    #[command(flatten)]
    writing: Writing,
}

impl PutArgs {
    fn value(&self) -> Result<Bytes, Failure> {
        let Some(file) = &self.file else { return Ok(self.value.clone().unwrap_or_default().into()) };
        let cannot = |error| Failure::usage(format!("cannot read {}: {error}", file.display()));
        if file.as_os_str() == "-" {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(cannot)?;
            return Ok(bytes.into());
        }
        std::fs::read(file).map(Bytes::from).map_err(cannot)
    }

    pub async fn run(mut self, output: &mut Output) -> Result<(), Failure> {
        let value = self.value()?;
        self.writing.if_absent = self.if_absent;
        if self.writing.dry.dry_run {
            return self.target.foresee(&self.writing, Some(value.len()), output).await;
        }
        let query = self.ttl_ms.map(|ttl_ms| format!("?ttl_ms={ttl_ms}")).unwrap_or_default();
        self.target.write(&self.writing, Method::PUT, &query, value, output).await
    }
}

/// The arguments of `partage table delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    writing: Writing,
}

impl DeleteArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        if self.writing.dry.dry_run {
            return self.target.foresee(&self.writing, None, output).await;
        }
        self.target.write(&self.writing, Method::DELETE, "", Bytes::new(), output).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writing(if_version: Option<&str>, if_absent: bool) -> Writing {
        Writing {
            if_version: if_version.map(str::to_owned),
            if_absent,
            idempotency_key: None,
            dry: DryRun { dry_run: true },
        }
    }

    #[test]
    fn a_dry_run_judges_conditions_as_a_node_does() {
        for (if_version, if_absent, current, is_met) in [
            (None, false, None, true),
            (None, false, Some("3-17"), true),
            (None, true, None, true),
            (None, true, Some("3-17"), false),
            (Some("*"), false, None, false),
            (Some("*"), false, Some("3-17"), true),
            (Some("3-17"), false, Some("3-17"), true),
            (Some("3-17"), false, Some("3-18"), false),
            (Some("3-17"), false, None, false),
        ] {
            let checked = writing(if_version, if_absent).check(current);
            assert_eq!(checked.is_ok(), is_met, "{if_version:?} {if_absent} {current:?}");
            assert!(checked.is_ok() || checked.unwrap_err().is_kind("not_met"));
        }
    }

    #[test]
    fn versions_and_idempotency_keys_are_read_before_anybody_is_asked() {
        assert_eq!(version("3-17"), Ok("3-17".to_owned()));
        assert_eq!(version("03-017"), Ok("3-17".to_owned()), "as a node writes it");
        assert_eq!(version_or_any("*"), Ok("*".to_owned()));
        for bad in ["", "3", "3-", "-17", "3-x", "\"3-17\"", "*"] {
            assert!(version(bad).unwrap_err().contains("3-17"), "{bad}");
        }
        assert_eq!(idempotency_key("order 17"), Ok("order 17".to_owned()));
        for bad in ["", " a", "a\n", "höhe", &"x".repeat(256)] {
            assert!(idempotency_key(bad).is_err(), "{bad:?}");
        }
    }
}
