//! The one who asks a single server: raw sockets and epoll on one thread, so that it costs less than any server.
//!
//! Each connection sends so many requests, waits until as many answers are there, and sends the next. Answers of one
//! server to one kind of request are all of one length, which the first one tells; that each is one is checked where it
//! begins. Who looks at more is in `crowd.rs`.

use crate::data::Draw;
use bench_gauge::{Durations, now};
use rustix::event::epoll;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How a server is asked and answers.
pub struct Protocol<'a> {
    /// Appends one request.
    pub ask: &'a dyn Fn(&mut Vec<u8>, &mut Draw),
    /// What every answer begins with.
    pub begins: &'a [u8],
    /// The length of the answer at the front of the bytes, if it is whole.
    pub length: &'a dyn Fn(&[u8]) -> Option<usize>,
}

/// How much is asked.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// Connections.
    pub connections: usize,
    /// Requests on each at a time.
    pub depth: usize,
    /// For how long, after a while that is not counted.
    pub time: Duration,
}

/// What was seen.
pub struct Seen {
    /// Answers.
    pub answers: u64,
    /// From the sending of a group to its last answer, of every 16th.
    pub latency: Durations,
    /// Seconds on a core that the server used.
    pub server_seconds: f64,
    /// Seconds by the clock.
    pub seconds: f64,
}

struct Line {
    stream: TcpStream,
    out: Vec<u8>,
    /// Bytes of the group that are still to come.
    left: usize,
    sent: Instant,
}

/// Asks a server, whose time on a core `server` tells.
pub fn run(
    at: SocketAddr,
    protocol: &Protocol<'_>,
    pressure: Pressure,
    server: &dyn Fn() -> f64,
) -> std::io::Result<Seen> {
    let mut draw = Draw(0x1234_5678_9abc_def1);
    let length = first_length(at, protocol, &mut draw)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut lines = Vec::new();
    for number in 0..pressure.connections {
        let stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        epoll::add(&poll, &stream, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
        let mut line = Line { stream, out: Vec::new(), left: 0, sent: now() };
        send(&mut line, protocol, pressure.depth, length, &mut draw)?;
        lines.push(line);
    }
    let mut events = Vec::with_capacity(pressure.connections);
    let mut buffer = vec![0; 1 << 18];
    let warm = now() + Duration::from_millis(300);
    let (mut seen, mut counting) =
        (Seen { answers: 0, latency: Durations::default(), server_seconds: 0.0, seconds: 0.0 }, None);
    let mut turn = 0_u64;
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let line = &mut lines[event.data.u64() as usize];
            let read = line.stream.read(&mut buffer)?;
            if read == 0 || read > line.left {
                return Err(std::io::Error::other(format!(
                    "an answer ended, or was longer than the first one of {length} bytes: {:?}",
                    String::from_utf8_lossy(&buffer[..read.min(300)])
                )));
            }
            if line.left % length == 0 && !buffer[..read].starts_with(protocol.begins) {
                let text = String::from_utf8_lossy(&buffer[..read.min(300)]).into_owned();
                return Err(std::io::Error::other(format!("not such an answer: {text:?}")));
            }
            line.left -= read;
            if line.left > 0 {
                continue;
            }
            turn += 1;
            if counting.is_some() {
                seen.answers += pressure.depth as u64;
                if turn.is_multiple_of(16) {
                    seen.latency.push(now() - line.sent);
                }
            }
            send(line, protocol, pressure.depth, length, &mut draw)?;
        }
        if turn.is_multiple_of(8) || counting.is_none() {
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

fn send(
    line: &mut Line,
    protocol: &Protocol<'_>,
    depth: usize,
    length: usize,
    draw: &mut Draw,
) -> std::io::Result<()> {
    line.out.clear();
    (0..depth).for_each(|_| (protocol.ask)(&mut line.out, draw));
    line.left = depth * length;
    line.sent = now();
    line.stream.write_all(&line.out)
}

fn first_length(at: SocketAddr, protocol: &Protocol<'_>, draw: &mut Draw) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut out = Vec::new();
    (protocol.ask)(&mut out, draw);
    stream.write_all(&out)?;
    let mut input = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part)?;
        input.extend_from_slice(&part[..read]);
        if read == 0 || (input.len() >= protocol.begins.len() && !input.starts_with(protocol.begins)) {
            let text = String::from_utf8_lossy(&input[..input.len().min(300)]).into_owned();
            return Err(std::io::Error::other(format!("the first answer is {text:?}")));
        }
        if let Some(length) = (protocol.length)(&input) {
            return Ok(length);
        }
    }
}
