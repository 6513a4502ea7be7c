//! `partage table load`: rows of a file into a table, several multi-puts at a time.
//!
//! A thread reads and parses; what it has ready waits in a queue of few requests. Each request has an idempotency key, under
//! which its rows that have no outcome yet are sent again. No two requests under way have the same key of a row, so that of
//! several rows of one key the last one of the file stays.

mod source;

pub use source::{Bounded, ROW_BYTES};

use super::nodes::{
    Effect, IDEMPOTENCY_KEY, PATIENCE, REST, TableNodes, UNKNOWN_OUTCOME, refusal, request_name,
};
use crate::admin::key_text;
use crate::client::DryRun;
use crate::http::segment;
use crate::output::{Failure, Output, say};
use crate::redrawn::drawn;
use clap::Args;
use hyper::{HeaderMap, Method, StatusCode};
use indicatif::ProgressBar;
use partage_wire::json::KeyText;
use partage_wire::request::unavailable;
use partage_wire::table::{BytesText, PutAnswer, PutOutcome, PutRequest, PutResult, PutRow};
use serde_json::json;
use source::{BadRow, Fields, Format, Row};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

/// Rows of one request, and bytes of their keys and values: few enough that a request is done in some milliseconds.
const REQUEST_ROWS: usize = 500;
const REQUEST_BYTES: usize = 512 << 10;

/// Requests that are read and not sent yet.
const READ_AHEAD: usize = 4;

/// Requests at a time, unless told otherwise.
const PARALLEL: u16 = 4;

/// Failed rows that the summary names; it counts the others.
const NAMED: usize = 1_000;

/// Failed rows that are shown to people.
const SHOWN: usize = 20;

const CHANGES: Effect<'static> = Effect::Changes(
    "load the file again: rows that are there already are written anew, with the same values",
);

/// The arguments of `partage table load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Name of the table
    table: String,
    /// File with the rows; - for stdin
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Format of the file [default: by its name]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Field whose text is the key; of several, given each by --key, the texts are joined [default: key, with the value in value]
    #[arg(long, value_name = "FIELD")]
    key: Vec<String>,
    /// Text between the fields of a key
    #[arg(long, default_value = ":", value_name = "TEXT")]
    separator: String,
    /// Field whose text is the value [default with --key: the whole row, as a JSON object]
    #[arg(long, value_name = "FIELD", requires = "key")]
    value: Option<String>,
    /// Field of csv or tsv that is a number in the JSON object; may be given several times
    #[arg(long, value_name = "FIELD")]
    number: Vec<String>,
    /// Maximum number of requests in flight
    #[arg(long, default_value_t = PARALLEL, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    nodes: TableNodes,
}

/// What the reader has found.
enum Found {
    Rows(Vec<Row>, u64),
    Bad(BadRow),
}

/// What has become of the rows.
#[derive(Debug, Default)]
struct Summary {
    loaded: u64,
    bytes: u64,
    failed: u64,
    failures: Vec<(u64, Option<String>, String)>,
}

impl Summary {
    fn fail(&mut self, line: u64, key: Option<String>, why: String) {
        self.failed += 1;
        if self.failures.len() < NAMED {
            self.failures.push((line, key, why));
        }
    }

    fn take(&mut self, done: Vec<(Row, PutResult)>) {
        for (row, result) in done {
            if result.outcome == PutOutcome::Written {
                self.loaded += 1;
                self.bytes += (row.key.len() + row.value.len()) as u64;
                continue;
            }
            let why = result.error.map_or("it has no outcome".to_owned(), |error| error.message);
            let unknown = if result.outcome == PutOutcome::Unknown { "it may be loaded: " } else { "" };
            self.fail(row.line, Some(key_of(&row)), format!("{unknown}{why}"));
        }
    }
}

fn key_of(row: &Row) -> String {
    key_text(&KeyText::from(row.key.clone()))
}

impl LoadArgs {
    fn format(&self) -> Result<Format, Failure> {
        let by_name = || match self.file.extension()?.to_str()? {
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            "csv" => Some(Format::Csv),
            "tsv" => Some(Format::Tsv),
            _ => None,
        };
        self.format.or_else(by_name).ok_or_else(|| {
            Failure::usage(format!("the name {} does not say its format", self.file.display()))
                .help("give --format jsonl, csv or tsv")
        })
    }

    /// The file, and its length if it has one.
    fn open(&self) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
        if self.file.as_os_str() == "-" {
            return Ok((Box::new(std::io::stdin()), None));
        }
        let cannot = |error| Failure::usage(format!("cannot read {}: {error}", self.file.display()));
        let file = File::open(&self.file).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?;
        Ok((Box::new(file), length.is_file().then_some(length.len())))
    }

    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let format = self.format()?;
        if format == Format::Jsonl && !self.number.is_empty() {
            return Err(
                Failure::usage("--number is for csv and tsv").help("leave it out: JSON has its own numbers")
            );
        }
        let (file, length) = self.open()?;
        let bar = bar(&self.table, length, output.is_json());
        let fields = Fields {
            key: self.key.clone(),
            separator: self.separator.clone(),
            value: self.value.clone(),
            number: self.number.clone(),
        };
        let (give, found) = mpsc::channel(READ_AHEAD);
        let reading = spawn_blocking(move || read(file, format, &fields, &give));
        let mut summary = Summary::default();
        let destination = Destination {
            table: self.table.clone(),
            nodes: self.nodes.clone(),
            parallel: self.parallel,
            is_dry: self.dry.dry_run,
            only_absent: false,
        };
        let loaded = destination.load(found, &bar, &mut summary).await;
        let read = reading.await.map_err(Failure::failed)?;
        bar.finish_and_clear();
        self.report(&summary, output)?;
        let stopped = loaded.and(read).map_err(|failure| {
            let loaded = summary.loaded;
            failure.help(format!("{loaded} rows were loaded before; load the file again when that is mended"))
        });
        stopped?;
        match summary.failed {
            0 => Ok(()),
            failed => {
                let verb = if self.dry.dry_run { "could not be loaded" } else { "were not loaded" };
                let help = "mend the lines that are named, and load them again";
                Err(Failure::refused(format!("{failed} rows {verb}")).kind("rows_failed").help(help))
            }
        }
    }

    fn report(&self, summary: &Summary, output: &mut Output) -> Result<(), Failure> {
        let Summary { loaded, bytes, failed, failures } = summary;
        let is_dry = self.dry.dry_run;
        if output.is_json() {
            let named =
                failures.iter().map(|(line, key, why)| json!({ "line": line, "key": key, "error": why }));
            return output.json(&json!({
                "table": self.table, "dry_run": is_dry, "loaded": if is_dry { 0 } else { *loaded },
                "rows": loaded, "bytes": bytes, "failed": failed, "failures": named.collect::<Vec<_>>(),
            }));
        }
        for (line, key, why) in failures.iter().take(SHOWN) {
            let key = key.as_ref().map(|key| format!(", key {key}")).unwrap_or_default();
            say(&format!("line {line}{key}: {why}"));
        }
        if *failed > SHOWN as u64 {
            say(&format!("and {} more lines: --json names {NAMED} of them", failed - SHOWN as u64));
        }
        let verb = if is_dry { "would load" } else { "loaded" };
        output.text(&format!("{verb} {loaded} rows with {bytes} bytes into {}, {failed} failed", self.table));
        Ok(())
    }
}

/// The table that rows go to, and how they are sent.
#[derive(Debug, Clone)]
struct Destination {
    table: String,
    nodes: TableNodes,
    /// Number of requests at a time.
    parallel: u16,
    is_dry: bool,
    /// A row that is there stays as it is, and counts as loaded.
    only_absent: bool,
}

impl Destination {
    /// Sends what is read until there is no more, or until nothing can be sent any more.
    async fn load(
        &self,
        mut found: mpsc::Receiver<Found>,
        bar: &ProgressBar,
        summary: &mut Summary,
    ) -> Result<(), Failure> {
        let (mut under_way, mut keys) = (JoinSet::new(), BTreeSet::new());
        while let Some(next) = found.recv().await {
            let (rows, read) = match next {
                Found::Bad(bad) => {
                    summary.fail(bad.line, None, bad.why);
                    continue;
                }
                Found::Rows(rows, read) => (rows, read),
            };
            bar.set_position(read);
            if self.is_dry {
                summary.loaded += rows.len() as u64;
                summary.bytes += rows.iter().map(|row| (row.key.len() + row.value.len()) as u64).sum::<u64>();
                continue;
            }
            while under_way.len() >= usize::from(self.parallel)
                || rows.iter().any(|row| keys.contains(&row.key))
            {
                take_one(&mut under_way, &mut keys, summary).await?;
            }
            keys.extend(rows.iter().map(|row| row.key.clone()));
            under_way.spawn(send(self.clone(), rows));
        }
        while !under_way.is_empty() {
            take_one(&mut under_way, &mut keys, summary).await?;
        }
        Ok(())
    }
}

/// Loads JSON lines whose field `key` is the key, with the whole line as the value. Rows that are there stay as they are, so that
/// it may be done again. Returns how many rows the file has.
///
/// # Errors
/// A line that cannot be read or written, or nodes that do not answer.
pub async fn load_absent(
    table: &str,
    nodes: TableNodes,
    key: &str,
    file: impl Read + Send + 'static,
) -> Result<u64, Failure> {
    let fields =
        Fields { key: vec![key.to_owned()], separator: String::new(), value: None, number: Vec::new() };
    let destination =
        Destination { table: table.to_owned(), nodes, parallel: PARALLEL, is_dry: false, only_absent: true };
    let (give, found) = mpsc::channel(READ_AHEAD);
    let reading = spawn_blocking(move || read(Box::new(file), Format::Jsonl, &fields, &give));
    let mut summary = Summary::default();
    let loaded = destination.load(found, &ProgressBar::hidden(), &mut summary).await;
    let read = reading.await.map_err(Failure::failed)?;
    loaded.and(read)?;
    match summary.failures.first() {
        None => Ok(summary.loaded),
        Some((line, _, why)) => Err(Failure::failed(format!(
            "{} rows were not loaded, the first of line {line}: {why}",
            summary.failed
        ))),
    }
}

fn bar(table: &str, length: Option<u64>, is_json: bool) -> ProgressBar {
    let message = crate::terminal::line(table).into_owned();
    match length {
        Some(length) => drawn(
            ProgressBar::new(length).with_message(message),
            "{msg} {wide_bar} {bytes} of {total_bytes}, {eta} to go",
            is_json,
        ),
        None => drawn(
            ProgressBar::no_length().with_message(message),
            "{spinner} {msg} {bytes}, {elapsed}",
            is_json,
        ),
    }
}

/// Reads rows into requests, for as long as they are taken.
fn read(
    file: Box<dyn Read + Send>,
    format: Format,
    fields: &Fields,
    give: &mpsc::Sender<Found>,
) -> Result<(), Failure> {
    let (mut rows, mut keys, mut bytes, mut at) = (Vec::new(), BTreeSet::new(), 0, 0);
    source::read(file, format, fields, |row, read| {
        at = read;
        let row = match row {
            Ok(row) => row,
            Err(bad) => return give.blocking_send(Found::Bad(bad)).is_ok(),
        };
        let length = row.key.len() + row.value.len();
        let is_full = rows.len() >= REQUEST_ROWS || bytes + length > REQUEST_BYTES || keys.contains(&row.key);
        if is_full && !rows.is_empty() {
            (bytes, keys) = (0, BTreeSet::new());
            if give.blocking_send(Found::Rows(std::mem::take(&mut rows), read)).is_err() {
                return false;
            }
        }
        bytes += length;
        keys.insert(row.key.clone());
        rows.push(row);
        true
    })?;
    if !rows.is_empty() {
        // If nothing can be sent any more, the sender reports that.
        let _ = give.blocking_send(Found::Rows(rows, at));
    }
    Ok(())
}

/// What has become of the rows of a request.
type Sent = Result<Vec<(Row, PutResult)>, Failure>;

async fn take_one(
    under_way: &mut JoinSet<Sent>,
    keys: &mut BTreeSet<Vec<u8>>,
    summary: &mut Summary,
) -> Result<(), Failure> {
    let Some(sent) = under_way.join_next().await else { return Ok(()) };
    let sent = sent.map_err(Failure::failed)??;
    for (row, _) in &sent {
        keys.remove(&row.key);
    }
    summary.take(sent);
    Ok(())
}

/// Sends rows, and those that have no outcome again, under the same name.
async fn send(to: Destination, rows: Vec<Row>) -> Sent {
    let Destination { table, nodes, only_absent, .. } = to;
    let mut headers = HeaderMap::new();
    headers.insert(IDEMPOTENCY_KEY, request_name()?);
    let path = format!("/v1/tables/{}/put", segment(&table));
    let until = Instant::now() + PATIENCE;
    // Under one name a row is sent with one time to live, however often: with another it would be another write.
    let now_ms = partage_clock::unix_ms();
    let (mut open, mut done) = (rows, Vec::new());
    loop {
        let rows = body(&open, now_ms, only_absent)?.into();
        let reply = match nodes.ask(CHANGES, Method::POST, &path, headers.clone(), rows).await {
            Err(why) if why.is_kind(UNKNOWN_OUTCOME) && Instant::now() < until => {
                sleep(REST).await;
                continue;
            }
            asked => asked?,
        };
        if !matches!(reply.status, StatusCode::OK | StatusCode::MULTI_STATUS) {
            return Err(refusal(&table, &reply));
        }
        let answer: PutAnswer = serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))?;
        if answer.results.len() != open.len() {
            return Err(Failure::failed(
                "the answer of the node has another number of rows than the request",
            ));
        }
        let is_late = Instant::now() >= until;
        let mut again = Vec::new();
        for (row, mut result) in open.into_iter().zip(answer.results) {
            if only_absent && result.outcome == PutOutcome::NotMet {
                result.outcome = PutOutcome::Written;
            }
            if is_open(&result) && !is_late {
                again.push(row);
            } else {
                done.push((row, result));
            }
        }
        if again.is_empty() {
            return Ok(done);
        }
        open = again;
        sleep(REST).await;
    }
}

fn body(rows: &[Row], now_ms: u64, only_absent: bool) -> Result<Vec<u8>, Failure> {
    let form = |row: &Row| PutRow {
        key: BytesText::from(&row.key[..]),
        value: Some(BytesText::from(&row.value[..])),
        json: None,
        ttl_ms: row.expires_ms.map(|end| end.saturating_sub(now_ms)),
        if_version: None,
        if_absent: only_absent,
    };
    serde_json::to_vec(&PutRequest { rows: rows.iter().map(form).collect() }).map_err(Failure::failed)
}

/// Whether it may be otherwise when it is sent again.
fn is_open(result: &PutResult) -> bool {
    let kind = result.error.as_ref().map(|error| error.kind.as_str());
    match result.outcome {
        PutOutcome::Unknown => true,
        PutOutcome::Failed => {
            matches!(kind, Some(unavailable::SOON | unavailable::BUSY | unavailable::TOO_FEW_IN_SYNC))
        }
        PutOutcome::Written | PutOutcome::NotMet => false,
    }
}
