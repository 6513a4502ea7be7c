//! Clients that read and write few keys through several nodes, over HTTP and over Redis' protocol, and write down what became of
//! it.

use crate::cluster::{Answer, ask_within, coded, noise};
use crate::history::{Kind, Operation, Outcome, Version};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client waits for an answer: longer than a leader is stopped, in most cases.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long a client that names its writes sends one again.
const AGAIN: Duration = Duration::from_secs(8);

/// A rest after each operation, so that a key has hundreds of them in a round and not thousands.
const REST: Duration = Duration::from_millis(15);

/// The addresses of a node.
#[derive(Debug, Clone)]
pub struct At {
    pub http: String,
    pub resp: String,
}

/// What the answer to an operation says.
struct Told {
    outcome: Outcome,
    found: Option<String>,
    version: Option<Version>,
    existed: Option<bool>,
}

impl Told {
    fn only(outcome: Outcome) -> Told {
        Told { outcome, found: None, version: None, existed: None }
    }
}

/// An operation as a client asks for it.
struct Asked<'a> {
    kind: Kind,
    key: &'a str,
    value: Option<&'a str>,
    /// The version of the row that a swap replaces.
    version: Option<Version>,
    /// The write's name, under which it may be sent again.
    name: Option<String>,
}

/// All that clients of one history share.
pub struct Recorder {
    pub table: &'static str,
    began: Instant,
    history: Mutex<Vec<Operation>>,
    values: AtomicU64,
}

impl Recorder {
    pub fn new(table: &'static str) -> Recorder {
        Recorder { table, began: Instant::now(), history: Mutex::default(), values: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    pub fn count(&self, is_counted: impl Fn(&Operation) -> bool) -> usize {
        self.history.lock().unwrap().iter().filter(|one| is_counted(one)).count()
    }

    /// What became of it all, in the order in which it began.
    pub fn history(&self) -> Vec<Operation> {
        let mut history = self.history.lock().unwrap().clone();
        history.sort_by_key(|one| (one.start, one.client));
        history
    }

    /// Reads a key over HTTP through a node, until the node answers.
    pub fn read(&self, at: &At, key: &str, client: u64) {
        let asked = Asked { kind: Kind::Get, key, value: None, version: None, name: None };
        crate::cluster::eventually("a row is read", || {
            let start = self.now();
            let told = over_http(self.table, &at.http, &asked);
            match told.outcome {
                Outcome::Ok => {
                    self.keep(client, &asked, None, start, told);
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        });
    }

    fn keep(&self, client: u64, asked: &Asked<'_>, expected: Option<String>, start: u64, told: Told) {
        let one = Operation {
            client,
            key: asked.key.to_owned(),
            kind: asked.kind,
            value: asked.value.map(str::to_owned),
            expected,
            start,
            end: self.now(),
            outcome: told.outcome,
            found: told.found,
            version: told.version,
            existed: told.existed,
        };
        self.history.lock().unwrap().push(one);
    }
}

/// A client that sends one operation after the other, to nodes in turn.
struct Client {
    number: u64,
    recorder: Arc<Recorder>,
    nodes: Vec<At>,
    keys: Vec<String>,
    speaks_redis: bool,
    /// Sends a write whose outcome it does not know again, under its name.
    names_writes: bool,
    /// What it knows of rows, to swap them.
    known: BTreeMap<String, (String, Version)>,
    turn: usize,
}

/// Starts clients: one in four speaks Redis' protocol, half of the others name their writes.
pub fn start(
    recorder: &Arc<Recorder>,
    nodes: &[At],
    keys: &[String],
    (clients, seed): (u64, u64),
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<()>> {
    let client = |number: u64| {
        let mut client = Client {
            number,
            recorder: Arc::clone(recorder),
            nodes: nodes.to_vec(),
            keys: keys.to_vec(),
            speaks_redis: number % 4 == 3,
            names_writes: number % 4 == 1,
            known: BTreeMap::new(),
            turn: number as usize,
        };
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            let draws = noise(seed * 100 + number, 60_000);
            for draw in draws.chunks_exact(2).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                client.act(draw[0], draw[1]);
                std::thread::sleep(REST);
            }
        })
    };
    (0..clients).map(client).collect()
}

impl Client {
    fn act(&mut self, which: u8, what: u8) {
        let key = self.keys[usize::from(which) % self.keys.len()].clone();
        let known = self.known.get(&key).cloned();
        let kind = match what % 16 {
            0..=6 => Kind::Get,
            7..=9 => Kind::Put,
            10..=13 if known.is_some() => Kind::Swap,
            10..=13 => Kind::Get,
            14 => Kind::Create,
            _ => Kind::Delete,
        };
        let number = self.recorder.values.fetch_add(1, Ordering::Relaxed);
        let value = format!("v{number}");
        let is_write = kind != Kind::Get;
        let asked = Asked {
            kind,
            key: &key,
            value: Some(&*value).filter(|_| !matches!(kind, Kind::Get | Kind::Delete)),
            version: known.as_ref().filter(|_| kind == Kind::Swap).map(|(_, version)| *version),
            name: Some(format!("{key}-{}-{value}", self.number)).filter(|_| is_write && self.names_writes),
        };
        let start = self.recorder.now();
        let told = self.ask(&asked);
        match (told.outcome, told.version, kind) {
            (Outcome::Ok, Some(version), Kind::Get) => {
                self.known.extend(told.found.clone().map(|found| (key.clone(), (found, version))));
            }
            (Outcome::Ok, Some(version), Kind::Put | Kind::Swap | Kind::Create) => {
                drop(self.known.insert(key.clone(), (value.clone(), version)));
            }
            _ => drop(self.known.remove(&key)),
        }
        let expected = known.filter(|_| kind == Kind::Swap).map(|(value, _)| value);
        self.recorder.keep(self.number, &asked, expected, start, told);
    }

    fn next_node(&mut self) -> At {
        self.turn += 1;
        self.nodes[self.turn % self.nodes.len()].clone()
    }

    fn ask(&mut self, asked: &Asked<'_>) -> Told {
        let at = self.next_node();
        // Redis' protocol tells no version, so there is no swap by one.
        if self.speaks_redis && asked.kind != Kind::Swap {
            return over_redis(self.recorder.table, &at.resp, asked);
        }
        let mut told = over_http(self.recorder.table, &at.http, asked);
        let until = Instant::now() + AGAIN;
        while asked.name.is_some() && told.outcome == Outcome::Unknown && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
            let at = self.next_node();
            let again = over_http(self.recorder.table, &at.http, asked);
            // That it was not done this time says nothing about the first.
            if matches!(again.outcome, Outcome::Ok | Outcome::NotMet) {
                told = again;
            }
        }
        told
    }
}

fn version(text: &str) -> Option<Version> {
    let (epoch, index) = text.trim_matches('"').split_once('-')?;
    Some((epoch.parse().ok()?, index.parse().ok()?))
}

fn over_http(table: &str, address: &str, asked: &Asked<'_>) -> Told {
    let path = format!("/v1/tables/{table}/keys/{}", coded(asked.key.as_bytes()));
    let method = match asked.kind {
        Kind::Get => "GET",
        Kind::Delete => "DELETE",
        Kind::Put | Kind::Swap | Kind::Create => "PUT",
    };
    let etag = asked.version.map(|(epoch, index)| format!("\"{epoch}-{index}\""));
    let mut headers: Vec<(&str, &str)> = Vec::new();
    headers.extend(etag.iter().map(|etag| ("if-match", &**etag)));
    headers.extend(asked.name.iter().map(|name| ("idempotency-key", &**name)));
    if asked.kind == Kind::Create {
        headers.push(("if-none-match", "*"));
    }
    let body = asked.value.unwrap_or_default().as_bytes();
    match ask_within(PATIENCE, address, method, &path, &headers, body) {
        Ok(answer) => heard(asked.kind, &answer),
        // Nothing was sent.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Told::only(Outcome::Refused),
        Err(_) => Told::only(Outcome::Unknown),
    }
}

fn heard(kind: Kind, answer: &Answer) -> Told {
    let at = |header: &str| answer.header(header).and_then(version);
    match (answer.status, kind) {
        (200, Kind::Get) => Told {
            found: Some(String::from_utf8(answer.body.clone()).unwrap()),
            version: Some(at("etag").unwrap_or_else(|| panic!("{answer:?}"))),
            ..Told::only(Outcome::Ok)
        },
        // Of a row; a node that has just started says the same of a table that it does not know yet.
        (404, Kind::Get) if answer.header("partage-applied").is_some() => Told::only(Outcome::Ok),
        (204, Kind::Put | Kind::Delete | Kind::Swap | Kind::Create) => Told {
            version: Some(at("partage-applied").unwrap_or_else(|| panic!("{answer:?}"))),
            existed: Some(answer.header("partage-existed") == Some("true")),
            ..Told::only(Outcome::Ok)
        },
        (412, Kind::Swap | Kind::Create) => Told::only(Outcome::NotMet),
        // The shard had to be handed over while the request was carried out.
        (503, _) if answer.json()["error"]["kind"] == "moved" => Told::only(Outcome::Unknown),
        (404 | 421 | 503, _) => Told::only(Outcome::Refused),
        (502 | 504, _) => Told::only(Outcome::Unknown),
        _ => panic!("no client may be told this: {kind:?} {answer:?}"),
    }
}

/// Sends one command; what comes until the connection ends.
fn say(address: &str, table: &str, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("AUTH {table} x\r\n{command}\r\nQUIT\r\n").as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

fn over_redis(table: &str, address: &str, asked: &Asked<'_>) -> Told {
    let (key, value) = (asked.key, asked.value.unwrap_or_default());
    let command = match asked.kind {
        Kind::Get => format!("GET {key}"),
        Kind::Delete => format!("DEL {key}"),
        Kind::Create => format!("SET {key} {value} NX"),
        Kind::Put | Kind::Swap => format!("SET {key} {value}"),
    };
    let said = match say(address, table, &command) {
        Ok(said) => said,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Told::only(Outcome::Refused),
        Err(_) => return Told::only(Outcome::Unknown),
    };
    let mut lines = said.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let line = lines.next().unwrap_or_default();
    match (line, asked.kind) {
        (error, _) if error.starts_with("-UNKNOWN") => Told::only(Outcome::Unknown),
        (error, _) if error.starts_with('-') => Told::only(Outcome::Refused),
        // It is cut off, or not about the table.
        _ if first != "+OK" || line.is_empty() => Told::only(Outcome::Unknown),
        ("$-1", Kind::Get) => Told::only(Outcome::Ok),
        ("$-1" | "_", Kind::Create) => Told::only(Outcome::NotMet),
        ("+OK", Kind::Put | Kind::Create) => Told::only(Outcome::Ok),
        (":0" | ":1", Kind::Delete) => Told { existed: Some(line == ":1"), ..Told::only(Outcome::Ok) },
        (head, Kind::Get) if head.starts_with('$') => match lines.next() {
            Some(value) if head[1..] == value.len().to_string() => {
                Told { found: Some(value.to_owned()), ..Told::only(Outcome::Ok) }
            }
            _ => Told::only(Outcome::Unknown),
        },
        (other, kind) => panic!("no client may be told this: {kind:?} {other:?}"),
    }
}
