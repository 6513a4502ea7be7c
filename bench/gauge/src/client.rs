//! A client that asks servers: raw sockets and epoll on one thread, so that it costs less than any server.
//!
//! Each line sends so many requests, waits until as many answers are there, and sends the next. A line is a connection to one
//! server, or one to each of several that get the same. Answers to one kind of request are all of one length, which the
//! first one tells; that each is one is checked where it begins.

use crate::{Durations, now};
use rustix::event::Timespec;
use rustix::event::epoll;
use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// No answer for so long is none.
const SILENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// How servers are asked and answer.
pub struct Protocol<'a> {
    /// Appends one request of the line with this number.
    pub ask: &'a dyn Fn(&mut Vec<u8>, &mut Draw, usize),
    /// What every answer begins with.
    pub begins: &'a [u8],
    /// The length of the answer at the front of the bytes, if it is whole.
    pub length: &'a dyn Fn(&[u8]) -> Option<usize>,
    /// What is said first on each connection, if anything.
    pub greet: &'a dyn Fn(&mut TcpStream) -> Result<()>,
}

/// How much a client asks, and which servers.
#[derive(Debug, Clone)]
pub struct Pressure {
    /// The servers of each line.
    pub lines: Vec<Vec<SocketAddr>>,
    /// Requests on each at a time.
    pub depth: usize,
    /// For how long, after a while that is not counted.
    pub time: Duration,
}

/// What the client saw of all servers.
#[derive(Debug, Default)]
pub struct Seen {
    /// The number of answers that came in the time that counts.
    pub answers: u64,
    /// From the sending of a group to its last answer: of each group where there is one line, else of every 16th.
    pub latency: Durations,
    /// Seconds on a core that the servers used.
    pub server_seconds: f64,
    /// Seconds by the clock.
    pub seconds: f64,
}

/// Numbers that are drawn from a seed.
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    /// Draws the next number, of 64 bits.
    pub fn next_number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Draws the next number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        ((u128::from(self.next_number()) * u128::from(most)) >> 64) as u64
    }
}

struct Line {
    /// The connections of the line, each with the bytes of the group that are still to come.
    streams: Vec<(TcpStream, usize)>,
    /// The number of connections on which something is still to come.
    waiting: usize,
    out: Vec<u8>,
    sent: Instant,
}

struct Client<'a> {
    protocol: &'a Protocol<'a>,
    depth: usize,
    /// The length of every answer, in bytes.
    length: usize,
    lines: Vec<Line>,
    draw: Draw,
}

/// Asks servers. `server` tells the time that they have used on a core.
pub fn run(protocol: &Protocol<'_>, pressure: &Pressure, server: &dyn Fn() -> f64) -> Result<Seen> {
    let mut draw = Draw(0x1234_5678_9abc_def1);
    let first =
        pressure.lines.first().and_then(|line| line.first()).ok_or_else(|| Error::other("no line"))?;
    let length = first_length(*first, protocol, &mut draw)?;
    let mut client = Client { protocol, depth: pressure.depth, length, lines: Vec::new(), draw };
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, servers) in pressure.lines.iter().enumerate() {
        let mut streams = Vec::new();
        for (of_line, at) in servers.iter().enumerate() {
            let mut stream = TcpStream::connect(at)?;
            stream.set_nodelay(true)?;
            (protocol.greet)(&mut stream)?;
            let data = (number as u64) << 8 | of_line as u64;
            epoll::add(&poll, &stream, epoll::EventData::new_u64(data), epoll::EventFlags::IN)?;
            streams.push((stream, 0));
        }
        client.lines.push(Line { streams, waiting: 0, out: Vec::new(), sent: now() });
        client.send(number)?;
    }
    let mut events = Vec::with_capacity(pressure.lines.len());
    let mut buffer = vec![0; 1 << 18];
    let every = if pressure.lines.len() == 1 { 1 } else { 16 };
    let warm = now() + (pressure.time / 4).clamp(Duration::from_millis(300), Duration::from_secs(1));
    let (mut seen, mut counting, mut turn) = (Seen::default(), None, 0_u64);
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&SILENCE))?;
        if events.is_empty() {
            return Err(Error::other("no answer within 20 s"));
        }
        for event in &events {
            let data = event.data.u64();
            let number = (data >> 8) as usize;
            if !client.hear(number, data as usize & 0xff, &mut buffer)? {
                continue;
            }
            turn += 1;
            if counting.is_some() {
                seen.answers += pressure.depth as u64;
                if turn.is_multiple_of(every) {
                    seen.latency.push(now() - client.lines[number].sent);
                }
            }
            client.send(number)?;
        }
        if turn.is_multiple_of(8) || counting.is_none() || every == 1 {
            let time = now();
            match counting {
                None if time >= warm => counting = Some((time, server())),
                Some((began, before)) if time - began >= pressure.time => {
                    seen.server_seconds = server() - before;
                    seen.seconds = (time - began).as_secs_f64();
                    return Ok(seen);
                }
                _ => {}
            }
        }
    }
}

impl Client<'_> {
    fn send(&mut self, number: usize) -> Result<()> {
        let line = &mut self.lines[number];
        line.out.clear();
        (0..self.depth).for_each(|_| (self.protocol.ask)(&mut line.out, &mut self.draw, number));
        line.sent = now();
        line.waiting = line.streams.len();
        for (stream, left) in &mut line.streams {
            *left = self.depth * self.length;
            stream.write_all(&line.out)?;
        }
        Ok(())
    }

    /// Reads what has come; says whether the whole group is answered.
    fn hear(&mut self, number: usize, of_line: usize, buffer: &mut [u8]) -> Result<bool> {
        let (length, begins) = (self.length, self.protocol.begins);
        let line = &mut self.lines[number];
        let (stream, left) = &mut line.streams[of_line];
        let read = stream.read(buffer)?;
        let shown = |what: &str| {
            let text = String::from_utf8_lossy(&buffer[..read.min(300)]).into_owned();
            Err(Error::other(format!("{what}: {text:?}")))
        };
        if read == 0 || read > *left {
            return shown(&format!("an answer ended, or was longer than the first one of {length} bytes"));
        }
        // Answers that come together are all looked at; of one that is cut the rest has no beginning.
        let first = (length - (self.depth * length - *left) % length) % length;
        let is_one = |at: usize| buffer[at..read].starts_with(&begins[..begins.len().min(read - at)]);
        if !(first..read).step_by(length).all(is_one) {
            return shown("not such an answer");
        }
        *left -= read;
        if *left == 0 {
            line.waiting -= 1;
        }
        Ok(*left == 0 && line.waiting == 0)
    }
}

fn first_length(at: SocketAddr, protocol: &Protocol<'_>, draw: &mut Draw) -> Result<usize> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    (protocol.greet)(&mut stream)?;
    let mut out = Vec::new();
    (protocol.ask)(&mut out, draw, 0);
    stream.write_all(&out)?;
    let mut input = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part)?;
        input.extend_from_slice(&part[..read]);
        let begins = &protocol.begins[..protocol.begins.len().min(input.len())];
        if read == 0 || !input.starts_with(begins) {
            let text = String::from_utf8_lossy(&input[..input.len().min(300)]).into_owned();
            return Err(Error::other(format!("the first answer is {text:?}")));
        }
        if let Some(length) = (protocol.length)(&input) {
            return Ok(length);
        }
    }
}
