//! As much of HTTP/1.1 as the clients need.

use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The length of the answer at the front of the bytes, if it is whole.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut body) = (0, 0);
    loop {
        let line = &bytes[at..at + bytes[at..].iter().position(|byte| *byte == b'\n')?];
        at += line.len() + 1;
        match line {
            [] | [b'\r'] => break,
            [b'c' | b'C', ..] => {
                if let Some(value) = value_of(line, b"content-length") {
                    body = std::str::from_utf8(value).ok()?.parse::<usize>().ok()?;
                }
            }
            _ => {}
        }
    }
    (bytes.len() >= at + body).then_some(at + body)
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":").filter(|_| found.eq_ignore_ascii_case(name))?;
    Some(value.trim_ascii())
}

/// A header of an answer.
pub fn header<'a>(answer: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let lines = answer.split(|byte| *byte == b'\n').take_while(|line| !matches!(line, [] | [b'\r']));
    lines.filter_map(|line| value_of(line, name)).next()
}

/// The body of a whole answer.
pub fn body(answer: &[u8]) -> &[u8] {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(&[], |at| &answer[at + 4..])
}

/// Asks once, on a connection of its own.
pub fn ask(at: SocketAddr, method: &str, path: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 4_096]);
    while length(&answer).is_none() {
        match stream.read(&mut part)? {
            0 => return Err(Error::other(format!("{at} closed the connection within its answer"))),
            read => answer.extend_from_slice(&part[..read]),
        }
    }
    Ok(answer)
}
