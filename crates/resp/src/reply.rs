//! Replies, and their bytes in both versions of the protocol.

use partage_service::table::rows::Value;
use std::ops::Range;

/// Which version a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// RESP2, which each connection speaks until `HELLO 3`.
    #[default]
    Two,
    /// RESP3, which a client chooses by `HELLO 3`.
    Three,
}

/// What a command is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A word of ours.
    Word(&'static str),
    /// An error: its code, and a sentence. What clients sent may be in it.
    Error(String),
    Integer(i64),
    /// The bytes of a value.
    Value(Value),
    /// A part of a value.
    Part(Value, Range<usize>),
    /// Bytes that are no value of a row, or were copied from one.
    Bytes(Vec<u8>),
    /// A text of ours for people.
    Text(String),
    /// Nothing, where a value would be.
    Null,
    /// Nothing, where an array would be.
    NullArray,
    Array(Vec<Reply>),
    /// Pairs; in RESP2 one after the other.
    Map(Vec<(Reply, Reply)>),
    /// Several without an order; in RESP2 an array.
    Set(Vec<Reply>),
}

impl Reply {
    pub const OK: Reply = Reply::Word("OK");

    /// An error with the code `ERR`.
    pub fn error(text: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {text}"))
    }

    /// A text as bytes.
    pub fn text(text: impl Into<String>) -> Reply {
        Reply::Bytes(text.into().into_bytes())
    }

    /// The number 1 if it is so, else 0.
    pub fn flag(is_so: bool) -> Reply {
        Reply::Integer(i64::from(is_so))
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// About how many bytes it has.
    pub fn bytes(&self) -> usize {
        /// The line before it.
        const HEAD: usize = 16;
        HEAD + match self {
            Reply::Word(text) => text.len(),
            Reply::Error(text) | Reply::Text(text) => text.len(),
            Reply::Value(value) => value.len(),
            Reply::Part(_, part) => part.len(),
            Reply::Bytes(bytes) => bytes.len(),
            Reply::Integer(_) | Reply::Null | Reply::NullArray => 0,
            Reply::Array(all) | Reply::Set(all) => all.iter().map(Reply::bytes).sum(),
            Reply::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
        }
    }

    /// Appends the bytes of the reply to `out`.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        match self {
            Reply::Word(text) => line(out, b'+', text.as_bytes()),
            Reply::Error(text) => {
                out.push(b'-');
                // A line break would end the reply.
                let clean = |byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
                out.extend(text.bytes().map(clean));
                out.extend_from_slice(b"\r\n");
            }
            Reply::Integer(number) => head(out, b':', *number),
            Reply::Value(value) => string(out, value),
            Reply::Part(value, part) => string(out, &value[part.clone()]),
            Reply::Bytes(bytes) => string(out, bytes),
            Reply::Text(text) if version == Version::Three => {
                head(out, b'=', text.len() as i64 + 4);
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Text(text) => string(out, text.as_bytes()),
            Reply::Null | Reply::NullArray if version == Version::Three => out.extend_from_slice(b"_\r\n"),
            Reply::Null => out.extend_from_slice(b"$-1\r\n"),
            Reply::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Reply::Array(all) => several(out, b'*', all, version),
            Reply::Set(all) => {
                several(out, if version == Version::Three { b'~' } else { b'*' }, all, version)
            }
            Reply::Map(pairs) => {
                match version {
                    Version::Two => head(out, b'*', 2 * pairs.len() as i64),
                    Version::Three => head(out, b'%', pairs.len() as i64),
                }
                for (key, value) in pairs {
                    key.encode(version, out);
                    value.encode(version, out);
                }
            }
        }
    }
}

fn several(out: &mut Vec<u8>, kind: u8, all: &[Reply], version: Version) {
    head(out, kind, all.len() as i64);
    all.iter().for_each(|reply| reply.encode(version, out));
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, b'$', bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A line with a number, which needs no allocation.
fn head(out: &mut Vec<u8>, kind: u8, number: i64) {
    /// As many digits as a number of 64 bits has.
    const DIGITS: usize = 20;
    out.push(kind);
    if number < 0 {
        out.push(b'-');
    }
    let (mut digits, mut at, mut left) = ([0; DIGITS], DIGITS, number.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// What of a client's words an error repeats.
pub fn shown(words: &[u8]) -> String {
    let shown = &words[..words.len().min(crate::limits::SHOWN)];
    shown
        .iter()
        .map(|byte| char::from(if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' }))
        .collect()
}
