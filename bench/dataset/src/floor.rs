//! The least a server does: one thread that waits until a client has sent something, reads it, and writes an answer that is
//! always the same (another one for a multi-get). What it needs for a request is what a request costs here without any work.

use crate::question::MANY;
use crate::{Done, data};
use bench_gauge::{Running, free, myself};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// What stands once in every GET, so that it can tell how many have come.
const REQUEST: &[u8] = b"\r\n\r\n";

/// Starts the process of the floor, and waits until it listens.
pub fn start() -> std::io::Result<Running> {
    let at = free()?;
    Running::start(myself()?.arg("floor").arg(at.to_string()), at)
}

/// What its process does.
pub fn serve(words: &[String]) -> Done {
    let at: SocketAddr = words.get(1).ok_or("floor ADDRESS")?.parse()?;
    let listener = TcpListener::bind(at)?;
    let (one, many) =
        (answer(&data::value(0, 1)), answer("v".repeat(MANY * (4 + data::VALUE_BYTES)).as_bytes()));
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, EventData::new_u64(u64::MAX), EventFlags::IN)?;
    let mut lines: Vec<Option<TcpStream>> = Vec::new();
    let (mut events, mut buffer, mut out) = (Vec::with_capacity(64), vec![0; 1 << 16], Vec::new());
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == u64::MAX {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                epoll::add(&poll, &stream, EventData::new_u64(lines.len() as u64), EventFlags::IN)?;
                lines.push(Some(stream));
                continue;
            }
            let Some(stream) = &mut lines[number as usize] else { continue };
            let read = match stream.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            out.clear();
            if buffer[..read].starts_with(b"POST") {
                out.extend_from_slice(&many);
            } else {
                let asked = buffer[..read].windows(REQUEST.len()).filter(|bytes| *bytes == REQUEST).count();
                (0..asked).for_each(|_| out.extend_from_slice(&one));
            }
            if read == 0 || stream.write_all(&out).is_err() {
                lines[number as usize] = None;
            }
        }
    }
}

/// An answer with a head as long as that of ours.
fn answer(body: &[u8]) -> Vec<u8> {
    let mut answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\npartage-version: v001\r\n\
        x-sequins-version: v001\r\nlast-modified: Thu, 01 Jan 1970 00:00:00 GMT\r\naccept-ranges: bytes\r\n\
        etag: \"0123456789abcdef\"\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
            .to_vec();
    answer.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    answer.extend_from_slice(body);
    answer
}
