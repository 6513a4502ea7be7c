//! Clients that look at every answer: of one server or several, of any length, some of which may be lost.
//!
//! One thread, raw sockets and epoll. Each asker has a connection, sends so many requests, waits for as many answers, and
//! sends the next. A connection that breaks is made anew, to the next server that the asker knows.

use bench_gauge::client::Draw;
use bench_gauge::{Durations, now, rest, say};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is asked, and when an answer is one.
pub trait Question: Sync {
    /// Appends a request. Gives the number by which its answer is judged.
    fn ask(&self, out: &mut Vec<u8>, draw: &mut Draw) -> u64;

    /// The length of the answer at the front of the bytes, if it is whole.
    fn length(&self, bytes: &[u8]) -> Option<usize>;

    /// The version that an answer is of, or what is wrong with it.
    fn judge(&self, asked: u64, answer: &[u8]) -> std::result::Result<u32, String>;
}

/// A client with one connection.
#[derive(Clone)]
pub struct Asker<'a> {
    /// What this client asks the servers.
    pub question: &'a dyn Question,
    /// The servers that the client asks: the first, and after a break the next.
    pub servers: Vec<SocketAddr>,
    /// Requests at a time.
    pub depth: usize,
    /// Whether what was lost with a connection is asked once more.
    pub asks_again: bool,
}

/// An answer that was as it must be.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// Microseconds since the beginning.
    pub at: u32,
    /// Microseconds since it was asked.
    pub took: u32,
    /// The number of the asker, from 0.
    pub asker: u16,
    /// The version it is of.
    pub version: u32,
}

/// What all clients together have seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// The answers, in the order of time.
    pub answers: Vec<Answered>,
    /// Requests that failed: when, the number of the asker, and what was wrong.
    pub failed: Vec<(u32, u16, String)>,
    /// Requests that were asked a second time.
    pub again: u64,
}

impl Seen {
    /// How long answers took that came between two times.
    pub fn between(&self, from: u32, to: u32) -> Durations {
        self.of(|answered| (from..to).contains(&answered.at))
    }

    /// How long some of the answers took.
    pub fn of(&self, chosen: impl Fn(&Answered) -> bool) -> Durations {
        let mut durations = Durations::default();
        let chosen = self.answers.iter().filter(|answered| chosen(answered));
        chosen.for_each(|answered| durations.push(Duration::from_micros(answered.took.into())));
        durations
    }

    /// Answers of an earlier version than the same asker had from the same server before.
    pub fn backward(&self) -> usize {
        let mut latest =
            vec![0; 1 + self.answers.iter().map(|one| usize::from(one.asker)).max().unwrap_or(0)];
        let is_backward = |one: &&Answered| {
            let latest = &mut latest[usize::from(one.asker)];
            let is_backward = one.version < *latest;
            *latest = one.version.max(*latest);
            is_backward
        };
        self.answers.iter().filter(is_backward).count()
    }
}

/// No answer for so long is none.
const PATIENCE: Duration = Duration::from_secs(5);

/// All clients, on one thread, with what they have seen so far.
struct Crowd<'a> {
    poll: OwnedFd,
    lines: Vec<Line<'a>>,
    draw: Draw,
    began: Instant,
    seen: Seen,
    buffer: Vec<u8>,
}

struct Line<'a> {
    asker: Asker<'a>,
    server: usize,
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    /// What each request of the group that was sent is judged by.
    asked: Vec<u64>,
    /// How many of them were answered.
    answered: usize,
    is_second: bool,
    sent: Instant,
}

/// Asks until it is over.
pub fn run(askers: Vec<Asker<'_>>, began: Instant, is_over: &dyn Fn() -> bool) -> Result<Seen> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let lines = askers.into_iter().map(Line::new).collect::<Result<_>>()?;
    let (draw, seen) = (Draw(0x1234_5678_9abc_def1), Seen::default());
    let mut crowd = Crowd { poll, lines, draw, began, seen, buffer: vec![0; 1 << 18] };
    for number in 0..crowd.lines.len() {
        epoll::add(&crowd.poll, &crowd.lines[number].stream, data(number), EventFlags::IN)?;
        crowd.ask(number);
    }
    let mut events = Vec::with_capacity(crowd.lines.len());
    let mut looked = began;
    while !is_over() {
        events.clear();
        let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        epoll::wait(&crowd.poll, rustix::buffer::spare_capacity(&mut events), Some(&tick))?;
        for event in &events {
            crowd.hear(event.data.u64() as usize);
        }
        if now() - looked > PATIENCE / 10 {
            looked = now();
            crowd.look_for_silence(looked);
        }
    }
    Ok(crowd.seen)
}

/// Asks for so many seconds, goes on while something is done, and so many seconds longer. What was seen, and after how many
/// microseconds it was begun to be done.
pub fn asked_around(
    askers: Vec<Asker<'_>>,
    before_s: u64,
    after_s: u64,
    act: impl FnOnce() -> Result<()>,
) -> Result<(Seen, u32)> {
    let (began, is_over) = (now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| run(askers, began, &|| is_over.load(Ordering::Relaxed)));
        rest(before_s * 1_000);
        let acted_at = (now() - began).as_micros() as u32;
        let acted = act();
        rest(after_s * 1_000);
        is_over.store(true, Ordering::Relaxed);
        let seen = asking.join().map_err(|_| Error::other("who asks has panicked"))??;
        acted.map(|()| (seen, acted_at))
    })
}

/// Tells of the first that failed, if one did, and how long after something it was.
pub fn say_first(failed: Option<&(u32, u16, String)>, since: u32, what: &str) {
    if let Some((at, _, why)) = failed {
        let ms = (i64::from(*at) - i64::from(since)) / 1_000;
        say(&format!("       the first that failed, {ms} ms after {what}: {why}"));
    }
}

fn data(number: usize) -> EventData {
    EventData::new_u64(number as u64)
}

fn connect(at: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl<'a> Line<'a> {
    fn new(asker: Asker<'a>) -> Result<Line<'a>> {
        let stream = connect(asker.servers[0])?;
        let (out, input, asked) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Line { asker, server: 0, stream, out, input, asked, answered: 0, is_second: false, sent: now() })
    }
}

impl Crowd<'_> {
    fn micros(&self) -> u32 {
        (now() - self.began).as_micros() as u32
    }

    /// Sends the next group.
    fn ask(&mut self, number: usize) {
        let line = &mut self.lines[number];
        line.out.clear();
        line.asked.clear();
        line.input.clear();
        for _ in 0..line.asker.depth {
            let asked = line.asker.question.ask(&mut line.out, &mut self.draw);
            line.asked.push(asked);
        }
        (line.answered, line.is_second, line.sent) = (0, false, now());
        let sent = line.stream.write_all(&line.out);
        if let Err(error) = sent {
            self.broken(number, &error);
        }
    }

    fn hear(&mut self, number: usize) {
        let line = &mut self.lines[number];
        match line.stream.read(&mut self.buffer) {
            Ok(0) => return self.broken(number, &ErrorKind::UnexpectedEof.into()),
            Ok(read) => line.input.extend_from_slice(&self.buffer[..read]),
            Err(error) => return self.broken(number, &error),
        }
        let mut at = 0;
        let answered = now();
        let (when, took) = (answered - self.began, answered - line.sent);
        let when = when.as_micros() as u32;
        while let Some(length) = line.asker.question.length(&line.input[at..]) {
            let Some(asked) = line.asked.get(line.answered) else { break };
            match line.asker.question.judge(*asked, &line.input[at..at + length]) {
                Ok(version) => {
                    let (took, asker) = (took.as_micros() as u32, number as u16);
                    self.seen.answers.push(Answered { at: when, took, asker, version });
                }
                Err(what) => self.seen.failed.push((when, number as u16, what)),
            }
            line.answered += 1;
            at += length;
        }
        line.input.drain(..at);
        if line.answered == line.asked.len() {
            self.ask(number);
        }
    }

    /// The connection is of no more use: another one, and what was lost is lost or asked again.
    fn broken(&mut self, number: usize, error: &Error) {
        let asks_again = {
            let line = &self.lines[number];
            line.asker.asks_again && !line.is_second && line.answered == 0
        };
        if !asks_again {
            let server = self.lines[number].asker.servers[self.lines[number].server];
            let lost = self.lines[number].asked.len() - self.lines[number].answered;
            for _ in 0..lost {
                self.seen.failed.push((self.micros(), number as u16, format!("{server}: {error}")));
            }
        }
        let line = &mut self.lines[number];
        // To drop the connection takes it out of the poll.
        for _ in 0..line.asker.servers.len() {
            line.server = (line.server + 1) % line.asker.servers.len();
            if let Ok(stream) = connect(line.asker.servers[line.server]) {
                line.stream = stream;
                break;
            }
        }
        let added = epoll::add(&self.poll, &line.stream, data(number), EventFlags::IN);
        if !asks_again {
            return if added.is_ok() {
                self.ask(number)
            };
        }
        self.seen.again += line.asked.len() as u64;
        line.input.clear();
        line.is_second = true;
        let sent = line.stream.write_all(&line.out);
        if let Err(error) = sent {
            self.broken(number, &error);
        }
    }

    fn look_for_silence(&mut self, time: Instant) {
        let is_silent = |line: &Line<'_>| time.saturating_duration_since(line.sent) > PATIENCE;
        let silent: Vec<usize> =
            (0..self.lines.len()).filter(|number| is_silent(&self.lines[*number])).collect();
        for number in silent {
            self.lines[number].is_second = true;
            self.broken(number, &Error::new(ErrorKind::TimedOut, "no answer within 5 s"));
        }
    }
}
