//! As much of Redis' protocol as is needed: two requests, and the kinds of answer to them.

use crate::rows::{self, VALUE_BYTES};
use bench_gauge::client::Protocol;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The answer to a `SET`.
const OK: &[u8] = b"+OK\r\n";

/// Appends the request `SET key value`.
pub fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n$100\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the request `GET key`.
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// The bytes of a `GET`.
pub const GET_BYTES: usize = 18 + rows::KEY_BYTES + 2;

/// Appends the answer to a `GET`.
pub fn found(out: &mut Vec<u8>, value: &[u8; VALUE_BYTES]) {
    out.extend_from_slice(b"$100\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// `SET`s, made by `ask`.
pub fn sets<'a>(ask: &'a dyn Fn(&mut Vec<u8>, &mut bench_gauge::client::Draw, usize)) -> Protocol<'a> {
    Protocol {
        ask,
        begins: OK,
        length: &|bytes| (bytes.len() >= OK.len()).then_some(OK.len()),
        greet: &|_| Ok(()),
    }
}

/// `GET`s of rows that are there, made by `ask`.
pub fn gets<'a>(ask: &'a dyn Fn(&mut Vec<u8>, &mut bench_gauge::client::Draw, usize)) -> Protocol<'a> {
    const LENGTH: usize = 6 + VALUE_BYTES + 2;
    Protocol {
        ask,
        begins: b"$100\r\n",
        length: &|bytes| (bytes.len() >= LENGTH).then_some(LENGTH),
        greet: &|_| Ok(()),
    }
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The request is done: an answer that begins with `+`.
    Done,
    /// A whole number, as the answer to a `WAIT` is.
    Number(i64),
    /// A value, or that there is none.
    Value(Option<Vec<u8>>),
    /// The text of an error.
    Error(String),
}

/// A connection that waits for each group of answers.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    begin: usize,
}

impl Connection {
    /// Connects; no answer within `patience` is an error.
    pub fn open(at: SocketAddr, patience: Duration) -> Result<Connection> {
        let stream = TcpStream::connect_timeout(&at, Duration::from_secs(2))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Connection { stream, input: Vec::new(), begin: 0 })
    }

    /// Sends requests; does not wait for answers.
    pub fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.stream.write_all(requests)
    }

    /// Waits for the next answer and takes it.
    pub fn answer(&mut self) -> Result<Answer> {
        loop {
            if let Some((answer, bytes)) = parse(&self.input[self.begin..])? {
                self.begin += bytes;
                return Ok(answer);
            }
            self.input.drain(..self.begin);
            self.begin = 0;
            let mut part = [0; 1 << 14];
            match self.stream.read(&mut part)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => self.input.extend_from_slice(&part[..read]),
            }
        }
    }
}

/// The answer at the front of the bytes, with its length, if it is whole.
fn parse(bytes: &[u8]) -> Result<Option<(Answer, usize)>> {
    let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let (text, head) = (String::from_utf8_lossy(&bytes[1..end]).into_owned(), end + 2);
    match bytes[0] {
        b'+' => Ok(Some((Answer::Done, head))),
        b'-' => Ok(Some((Answer::Error(text), head))),
        b':' => Ok(Some((Answer::Number(text.parse().map_err(Error::other)?), head))),
        b'$' if text == "-1" => Ok(Some((Answer::Value(None), head))),
        b'$' => {
            let length: usize = text.parse().map_err(Error::other)?;
            let value = bytes.get(head..head + length).filter(|_| bytes.len() >= head + length + 2);
            Ok(value.map(|value| (Answer::Value(Some(value.to_vec())), head + length + 2)))
        }
        other => Err(Error::other(format!("an answer begins with {:?}", char::from(other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_when_they_are_whole() {
        assert_eq!(parse(b"+OK\r").unwrap(), None);
        assert_eq!(parse(b"+OK\r\n-").unwrap(), Some((Answer::Done, 5)));
        assert_eq!(parse(b"$-1\r\n").unwrap(), Some((Answer::Value(None), 5)));
        assert_eq!(parse(b"$2\r\nab\r").unwrap(), None);
        assert_eq!(parse(b"$2\r\nab\r\n").unwrap(), Some((Answer::Value(Some(b"ab".to_vec())), 8)));
        assert_eq!(parse(b"-ERR no\r\n").unwrap(), Some((Answer::Error("ERR no".to_owned()), 9)));
        let mut request = Vec::new();
        get(&mut request, &rows::key(0));
        assert_eq!(request.len(), GET_BYTES);
    }
}
