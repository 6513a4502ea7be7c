//! Clients that write and read one row of each shard without pause, note what they were told, and find out what is lost.
//!
//! Each client has a connection and some rows. It sends one write for each row and one read for each, waits for all answers,
//! and rests. A row's values are numbers that grow. A read must give the last value that was acknowledged, or one whose
//! write ended as unknown: that one may be carried out late.

use crate::resp::{self, Answer, Connection};
use crate::rows::{self, key, value};
use bench_gauge::{now, rest, say};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// From the beginning of a group to that of the next, so that the machine has time for others.
const PERIOD: Duration = Duration::from_millis(250);
/// The rest after a group with a failure.
const AGAIN_MS: u64 = 20;
/// Rows of one client.
const ROWS: usize = 50;
/// Longer than any server makes a client wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Kinds of failures that each client keeps to be shown.
const SHOWN: usize = 10;

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The server has said that it is done.
    Acknowledged,
    /// It was not done: the server refused it, or the client had no connection.
    Refused,
    /// It may be done: the server does not know, or the connection broke.
    Unknown,
}

/// One write that a client has sent, or could not send.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// The number of its row.
    pub row: u64,
    /// When the client sent it.
    pub sent: Instant,
    /// When it was answered, or had failed.
    pub ended: Instant,
    /// How the write ended.
    pub outcome: Outcome,
}

/// Failures of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Failures {
    /// How many there were.
    pub count: u64,
    /// When the first came.
    pub first: Instant,
    /// When the last came.
    pub last: Instant,
}

/// A row that could not be written for a while.
#[derive(Debug, Clone, Copy)]
pub struct Stall {
    /// The number of the row.
    pub row: u64,
    /// When the first write was sent that was not acknowledged, or was so at last.
    pub begun: Instant,
    /// When a write was acknowledged.
    pub ended: Instant,
}

/// What all clients were told.
#[derive(Debug, Default)]
pub struct Told {
    /// The writes, for each row in the order of their sending.
    pub writes: Vec<Write>,
    /// Reads that were answered.
    pub reads: u64,
    /// The longest time from the sending of a group of requests to an answered read.
    pub longest_read: Duration,
    /// Reads that were not answered, and when they were sent.
    pub failed_reads: Vec<Instant>,
    /// What failed, by what was said of it.
    pub failures: BTreeMap<String, Failures>,
    /// What was read and cannot be so: acknowledged writes that are lost.
    pub lies: Vec<String>,
}

/// A row and what is known of it.
#[derive(Debug)]
struct Row {
    number: u64,
    sent: u64,
    acknowledged: Option<u64>,
    unknown: BTreeSet<u64>,
}

impl Row {
    fn judge(&self, found: Option<Vec<u8>>) -> Option<String> {
        let found = found.map(|found| rows::number(&found).ok_or(found)).transpose();
        match found {
            Ok(read) if read == self.acknowledged => None,
            Ok(Some(read)) if self.unknown.contains(&read) => None,
            other => {
                let (number, acknowledged) = (self.number, self.acknowledged);
                Some(format!("row {number} is {other:?}, and {acknowledged:?} was acknowledged last"))
            }
        }
    }
}

struct Client {
    servers: Vec<SocketAddr>,
    /// The server of the connection.
    at: usize,
    connection: Option<Connection>,
    rows: Vec<Row>,
    told: Told,
}

/// Clients at work, each on a thread of its own.
pub struct Load {
    stop: Arc<AtomicBool>,
    /// Groups that each client has sent and that were answered without a failure.
    whole: Vec<Arc<AtomicU64>>,
    clients: Vec<JoinHandle<Client>>,
}

impl Load {
    /// Begins to write and read the rows of these numbers through these servers. Rows of one part share no connection with
    /// those of another.
    pub fn start(servers: &[SocketAddr], parts: &[Vec<u64>]) -> Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut clients, mut whole) = (Vec::new(), Vec::new());
        for (number, numbers) in parts.iter().flat_map(|part| part.chunks(ROWS)).enumerate() {
            let row =
                |number: &u64| Row { number: *number, sent: 0, acknowledged: None, unknown: BTreeSet::new() };
            let mut client = Client {
                servers: servers.to_vec(),
                at: number,
                connection: None,
                rows: numbers.iter().map(row).collect(),
                told: Told::default(),
            };
            let (stop, of_client) = (Arc::clone(&stop), Arc::new(AtomicU64::new(0)));
            whole.push(Arc::clone(&of_client));
            let work = move || {
                client.clear();
                client.work(&stop, &of_client);
                client
            };
            clients.push(std::thread::Builder::new().name("client".to_owned()).spawn(work)?);
        }
        Ok(Load { stop, whole, clients })
    }

    /// Waits until each client has had so many groups without a failure.
    pub fn rounds(&self, more: u64) -> Result<()> {
        let of_clients = || self.whole.iter().map(|whole| whole.load(Ordering::Relaxed));
        let enough: Vec<u64> = of_clients().map(|whole| whole + more).collect();
        let end = now() + PATIENCE;
        while of_clients().zip(&enough).any(|(whole, enough)| whole < *enough) {
            if now() > end {
                let late = of_clients().zip(&enough).filter(|(whole, enough)| whole < *enough).count();
                let what = format!("{late} clients had no {more} groups without a failure in {PATIENCE:?}");
                return Err(Error::other(what));
            }
            rest(20);
        }
        Ok(())
    }

    /// Ends the clients and reads each row a last time.
    pub fn finish(self) -> Result<Told> {
        self.stop.store(true, Ordering::Relaxed);
        let mut told = Told::default();
        for client in self.clients {
            let mut client = client.join().map_err(|_| Error::other("a client has panicked"))?;
            client.read_back();
            let of = client.told;
            told.writes.extend(of.writes);
            told.reads += of.reads;
            told.longest_read = told.longest_read.max(of.longest_read);
            told.failed_reads.extend(of.failed_reads);
            for (why, failures) in of.failures {
                let all = told.failures.entry(why).or_insert(Failures { count: 0, ..failures });
                all.count += failures.count;
                (all.first, all.last) = (all.first.min(failures.first), all.last.max(failures.last));
            }
            told.lies.extend(of.lies);
        }
        Ok(told)
    }
}

impl Client {
    /// Rows of an earlier load may be there, and their numbers must not come again: the first write is one beyond.
    fn clear(&mut self) {
        let end = now() + PATIENCE;
        while now() < end {
            let mut out = Vec::new();
            self.rows.iter().for_each(|row| resp::get(&mut out, &key(row.number)));
            if let Ok(answers) = self.ask(&out, self.rows.len()) {
                let mut is_whole = true;
                for (row, answer) in self.rows.iter_mut().zip(answers) {
                    match answer {
                        Answer::Value(found) => {
                            row.acknowledged = found.and_then(|found| rows::number(&found));
                            row.sent = row.acknowledged.unwrap_or_default();
                        }
                        _ => is_whole = false,
                    }
                }
                if is_whole {
                    return;
                }
            }
            rest(AGAIN_MS);
        }
        self.told.lies.push("the rows cannot be read at the beginning".to_owned());
    }

    fn work(&mut self, stop: &AtomicBool, whole: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            let begin = now();
            if self.group() {
                whole.fetch_add(1, Ordering::Relaxed);
                let used = now() - begin;
                rest(PERIOD.saturating_sub(used).as_millis() as u64);
            } else {
                rest(AGAIN_MS);
            }
        }
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        if self.connection.is_none() {
            self.at += 1;
            let server = self.servers[self.at % self.servers.len()];
            self.connection = Some(Connection::open(server, PATIENCE)?);
        }
        self.connection.as_mut().ok_or_else(|| Error::other("no connection"))
    }

    /// All answers to a group of requests.
    fn ask(&mut self, out: &[u8], count: usize) -> Result<Vec<Answer>> {
        let connection = self.connection()?;
        let sent = connection.send(out);
        let answers = sent.and_then(|()| (0..count).map(|_| connection.answer()).collect());
        if answers.is_err() {
            self.connection = None;
        }
        answers
    }

    fn fail(&mut self, why: &str) {
        let kinds = self.told.failures.len();
        if kinds < SHOWN || self.told.failures.contains_key(why) {
            let (first, last) = (now(), now());
            let failures =
                self.told.failures.entry(why.to_owned()).or_insert(Failures { count: 0, first, last });
            failures.count += 1;
            failures.last = last;
        }
    }

    /// Writes and reads each row once; whether nothing failed.
    fn group(&mut self) -> bool {
        if let Err(error) = self.connection() {
            // Nothing was sent.
            self.fail(&error.to_string());
            let (sent, ended) = (now(), now());
            let refused = |row: &Row| Write { row: row.number, sent, ended, outcome: Outcome::Refused };
            self.told.writes.extend(self.rows.iter().map(refused));
            return false;
        }
        let mut out = Vec::new();
        for row in &mut self.rows {
            row.sent += 1;
            resp::set(&mut out, &key(row.number), &value(row.sent));
        }
        self.rows.iter().for_each(|row| resp::get(&mut out, &key(row.number)));
        let sent = now();
        let mut broken = self.connection().and_then(|connection| connection.send(&out)).err();
        let mut is_whole = broken.is_none();
        for number in 0..self.rows.len() {
            let answer = self.hear(&mut broken);
            is_whole &= self.written(number, sent, answer);
        }
        for number in 0..self.rows.len() {
            let answer = self.hear(&mut broken);
            is_whole &= self.read(number, sent, answer);
        }
        if broken.is_some() {
            self.connection = None;
        }
        is_whole
    }

    fn hear(&mut self, broken: &mut Option<Error>) -> Answer {
        if broken.is_none() {
            match self.connection().and_then(Connection::answer) {
                Ok(answer) => return answer,
                Err(error) => *broken = Some(error),
            }
        }
        let why = broken.as_ref().map(ToString::to_string).unwrap_or_default();
        Answer::Error(format!("UNKNOWN the connection broke: {why}"))
    }

    fn written(&mut self, number: usize, sent: Instant, answer: Answer) -> bool {
        let row = &mut self.rows[number];
        let outcome = match &answer {
            Answer::Done => Outcome::Acknowledged,
            Answer::Error(why) if !why.starts_with("UNKNOWN") => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        match outcome {
            Outcome::Acknowledged => row.acknowledged = Some(row.sent),
            Outcome::Refused => {}
            Outcome::Unknown => drop(row.unknown.insert(row.sent)),
        }
        self.told.writes.push(Write { row: row.number, sent, ended: now(), outcome });
        if outcome != Outcome::Acknowledged {
            self.fail(&format!("a write: {answer:?}"));
        }
        outcome == Outcome::Acknowledged
    }

    fn read(&mut self, number: usize, sent: Instant, answer: Answer) -> bool {
        match answer {
            Answer::Value(found) => {
                self.told.reads += 1;
                self.told.longest_read = self.told.longest_read.max(now() - sent);
                self.told.lies.extend(self.rows[number].judge(found));
                true
            }
            other => {
                self.told.failed_reads.push(sent);
                self.fail(&format!("a read: {other:?}"));
                false
            }
        }
    }

    /// Reads each row until it is answered.
    fn read_back(&mut self) {
        let mut out = Vec::new();
        self.rows.iter().for_each(|row| resp::get(&mut out, &key(row.number)));
        let end = now() + PATIENCE;
        let mut last = "no answer".to_owned();
        while now() < end {
            match self.ask(&out, self.rows.len()) {
                Err(error) => last = error.to_string(),
                Ok(answers) => {
                    let refused = answers.iter().find(|answer| !matches!(answer, Answer::Value(_)));
                    let Some(refused) = refused else {
                        for (row, answer) in self.rows.iter().zip(answers) {
                            if let Answer::Value(found) = answer {
                                self.told.lies.extend(row.judge(found));
                            }
                        }
                        return;
                    };
                    last = format!("{refused:?}");
                }
            }
            rest(100);
        }
        self.told.lies.push(format!("{} rows cannot be read at the end: {last}", self.rows.len()));
    }
}

impl Told {
    /// The time from `since` until a write to each of these rows was acknowledged that was sent after it; none if that has
    /// not come for one of them.
    pub fn until_all(&self, since: Instant, is_of: &dyn Fn(u64) -> bool) -> Option<Duration> {
        let mut wanted = BTreeSet::new();
        let mut latest = Some(Duration::ZERO);
        let mut done = BTreeSet::new();
        for write in self.writes.iter().filter(|write| is_of(write.row)) {
            wanted.insert(write.row);
            let counts = write.outcome == Outcome::Acknowledged && write.sent >= since;
            if counts && done.insert(write.row) {
                latest = latest.max(Some(write.ended - since));
            }
        }
        latest.filter(|_| wanted == done)
    }

    /// The longest stall of a write to these rows that ended within that time: from its sending, or that of the first before it
    /// that was not acknowledged, to an acknowledgement.
    pub fn longest_stall(&self, from: Instant, to: Instant, is_of: &dyn Fn(u64) -> bool) -> Duration {
        self.stall(from, to, is_of).map_or(Duration::ZERO, |stall| stall.ended - stall.begun)
    }

    /// The same, with its row and its moments; none if nothing was acknowledged within that time.
    pub fn stall(&self, from: Instant, to: Instant, is_of: &dyn Fn(u64) -> bool) -> Option<Stall> {
        let mut waits = BTreeMap::new();
        let mut longest: Option<Stall> = None;
        for write in self.writes.iter().filter(|write| is_of(write.row)) {
            let begun = *waits.entry(write.row).or_insert(write.sent);
            if write.outcome == Outcome::Acknowledged {
                waits.remove(&write.row);
                let stall = Stall { row: write.row, begun, ended: write.ended };
                let is_longer = |longest: Stall| stall.ended - stall.begun > longest.ended - longest.begun;
                if (from..to).contains(&stall.ended) && longest.is_none_or(is_longer) {
                    longest = Some(stall);
                }
            }
        }
        longest
    }

    /// Says what failed, with seconds since that moment.
    pub fn show_failures(&self, since: Instant) {
        let after = |at: Instant| at.saturating_duration_since(since).as_secs_f64();
        for (why, Failures { count, first, last }) in &self.failures {
            say(&format!("    {count} from {:.1} s to {:.1} s: {why}", after(*first), after(*last)));
        }
    }

    /// Writes with that outcome that were sent within that time.
    pub fn count(&self, outcome: Outcome, from: Instant, to: Instant) -> usize {
        let counts = |write: &&Write| write.outcome == outcome && (from..to).contains(&write.sent);
        self.writes.iter().filter(counts).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(acknowledged: Option<u64>, unknown: &[u64]) -> Row {
        Row { number: 1, sent: 9, acknowledged, unknown: unknown.iter().copied().collect() }
    }

    #[test]
    fn what_was_acknowledged_must_be_there_unless_an_unknown_write_is() {
        let found = |number: u64| Some(value(number).to_vec());
        assert_eq!(row(Some(3), &[]).judge(found(3)), None);
        assert_eq!(row(None, &[]).judge(None), None);
        assert_eq!(row(Some(3), &[4]).judge(found(4)), None);
        assert!(row(Some(3), &[]).judge(None).is_some(), "it is lost");
        assert!(row(Some(3), &[]).judge(found(2)).is_some(), "an older one is there");
        assert!(row(Some(3), &[]).judge(found(4)).is_some(), "a refused one is there");
        assert!(row(Some(3), &[]).judge(Some(b"x".to_vec())).is_some(), "it is damaged");
    }

    #[test]
    fn a_stall_begins_with_the_first_write_that_is_not_acknowledged() {
        let begin = now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let write = |sent, ended, outcome| Write { row: 5, sent: at(sent), ended: at(ended), outcome };
        let writes = vec![
            write(0, 10, Outcome::Acknowledged),
            write(100, 150, Outcome::Refused),
            write(160, 400, Outcome::Unknown),
            write(400, 700, Outcome::Acknowledged),
        ];
        let told = Told { writes, ..Told::default() };
        assert_eq!(told.longest_stall(begin, at(10_000), &|_| true).as_millis(), 600);
        assert_eq!(told.until_all(at(90), &|_| true), Some(Duration::from_millis(610)));
        assert_eq!(told.until_all(at(500), &|_| true), None);
        assert_eq!(told.count(Outcome::Refused, begin, at(200)), 1);
    }
}
