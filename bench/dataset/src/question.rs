//! What servers are asked, in their protocols, and what is an answer to it.

use crate::crowd::Question;
use crate::data::{self, Data, NAME_BYTES};
use bench_gauge::client::Draw;
use bench_gauge::http;

/// Keys of a multi-get.
pub const MANY: usize = 100;

/// Stands for the length of a value when the node that has the key did not answer.
const UNKNOWN: u32 = u32::MAX - 1;

/// Asks for one key by HTTP: `GET /bench/<key>`.
pub struct Get<'a>(pub &'a Data);

/// Asks for as many keys as that in one request: `POST /bench`.
pub struct Post<'a>(pub &'a Data, pub usize);

/// Asks for one key by Redis' command `GET`.
pub struct RedisGet<'a>(pub &'a Data);

/// Asks for as many keys as that by Redis' command `MGET`.
pub struct RedisMget<'a>(pub &'a Data, pub usize);

type Judged = Result<u32, String>;

impl Question for Get<'_> {
    fn ask(&self, out: &mut Vec<u8>, draw: &mut Draw) -> u64 {
        let number = draw.below(self.0.len());
        out.extend_from_slice(b"GET /bench/");
        match self.0 {
            Data::Made(_) => self.0.put_key(out, number),
            Data::Index(entries) => put_escaped(out, &entries[number as usize].0),
        }
        out.extend_from_slice(b" HTTP/1.1\r\nhost: localhost\r\n\r\n");
        number
    }

    fn length(&self, bytes: &[u8]) -> Option<usize> {
        http::length(bytes)
    }

    fn judge(&self, asked: u64, answer: &[u8]) -> Judged {
        let (name, version) = version(answer)?;
        match self.0 {
            Data::Made(_) => judged(http::body(answer), asked, version, name)?,
            Data::Index(entries) if entries[asked as usize].1 == http::body(answer) => {}
            Data::Index(_) => return Err(shown("not the value", answer)),
        }
        Ok(version)
    }
}

impl Question for Post<'_> {
    /// The keys are drawn again from what is returned when the answer is judged.
    fn ask(&self, out: &mut Vec<u8>, draw: &mut Draw) -> u64 {
        let Post(data, count) = self;
        let numbers: Vec<u64> = drawn(draw.0, data, *count).collect();
        let asked = std::mem::replace(draw, after(draw.0, data, *count)).0;
        let bytes: usize = numbers.iter().map(|number| 4 + data.key_bytes(*number)).sum();
        out.extend_from_slice(
            b"POST /bench HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-partage-keys\r\n",
        );
        out.extend_from_slice(format!("content-length: {bytes}\r\n\r\n").as_bytes());
        for number in numbers {
            out.extend_from_slice(&(data.key_bytes(number) as u32).to_le_bytes());
            data.put_key(out, number);
        }
        asked
    }

    fn length(&self, bytes: &[u8]) -> Option<usize> {
        http::length(bytes)
    }

    fn judge(&self, asked: u64, answer: &[u8]) -> Judged {
        let Post(data, count) = self;
        let (name, version) = version(answer)?;
        let mut rest = http::body(answer);
        for number in drawn(asked, data, *count) {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(|| shown("cut off", answer))?;
            let length = u32::from_le_bytes(*length);
            if length == UNKNOWN {
                return Err("no node answered for a key".to_owned());
            }
            let (value, after) =
                after.split_at_checked(length as usize).ok_or_else(|| shown("a key is missing", answer))?;
            match data {
                Data::Made(_) => judged(value, number, version, name)?,
                Data::Index(entries) if entries[number as usize].1 == value => {}
                Data::Index(_) => return Err(shown("not the value", answer)),
            }
            rest = after;
        }
        if rest.is_empty() { Ok(version) } else { Err(shown("it goes on after its end", answer)) }
    }
}

impl Question for RedisGet<'_> {
    fn ask(&self, out: &mut Vec<u8>, draw: &mut Draw) -> u64 {
        let number = draw.below(self.0.len());
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        put_word(out, self.0, number);
        number
    }

    fn length(&self, bytes: &[u8]) -> Option<usize> {
        word_length(bytes)
    }

    fn judge(&self, _: u64, answer: &[u8]) -> Judged {
        if answer.starts_with(b"$-") || !answer.starts_with(b"$") {
            Err(shown("no value", answer))
        } else {
            Ok(0)
        }
    }
}

impl Question for RedisMget<'_> {
    fn ask(&self, out: &mut Vec<u8>, draw: &mut Draw) -> u64 {
        let RedisMget(data, count) = self;
        out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", count + 1).as_bytes());
        (0..*count).for_each(|_| put_word(out, data, draw.below(data.len())));
        0
    }

    fn length(&self, bytes: &[u8]) -> Option<usize> {
        let mut at = bytes.iter().position(|byte| *byte == b'\n')? + 1;
        for _ in 0..self.1 {
            at += word_length(bytes.get(at..)?)?;
        }
        Some(at)
    }

    fn judge(&self, _: u64, answer: &[u8]) -> Judged {
        if answer.starts_with(b"*") { Ok(0) } else { Err(shown("no list", answer)) }
    }
}

/// What is drawn from a state.
fn drawn(state: u64, data: &Data, count: usize) -> impl Iterator<Item = u64> {
    let (mut draw, keys) = (Draw(state), data.len());
    (0..count).map(move |_| draw.below(keys))
}

fn after(state: u64, data: &Data, count: usize) -> Draw {
    let mut draw = Draw(state);
    for _ in 0..count {
        draw.below(data.len());
    }
    draw
}

fn put_escaped(out: &mut Vec<u8>, key: &[u8]) {
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(*byte),
            _ => out.extend_from_slice(format!("%{byte:02x}").as_bytes()),
        }
    }
}

fn put_word(out: &mut Vec<u8>, data: &Data, number: u64) {
    out.extend_from_slice(format!("${}\r\n", data.key_bytes(number)).as_bytes());
    data.put_key(out, number);
    out.extend_from_slice(b"\r\n");
}

fn word_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let length = std::str::from_utf8(bytes.get(1..end - 2)?).ok()?.parse::<usize>();
    let whole = end + length.map_or(0, |length| length + 2);
    (bytes.len() >= whole).then_some(whole)
}

/// The version that an answer with status 200 names: as written, and its number.
fn version(answer: &[u8]) -> Result<(&[u8], u32), String> {
    if !answer.starts_with(b"HTTP/1.1 200") {
        return Err(shown("not 200", answer));
    }
    let name = http::header(answer, b"x-sequins-version").ok_or_else(|| shown("no version", answer))?;
    let number = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix('v')?.parse().ok());
    Ok((name, number.ok_or_else(|| shown("an unknown version", answer))?))
}

/// Whether a made value is that of the key and of the version.
fn judged(value: &[u8], number: u64, version: u32, name: &[u8]) -> Result<(), String> {
    if value == data::value(number, version) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&value[..value.len().min(NAME_BYTES)]).into_owned();
    Err(format!("mixed: a value that begins with {text:?} in an answer of {}", String::from_utf8_lossy(name)))
}

fn shown(what: &str, answer: &[u8]) -> String {
    format!("{what}: {:?}", String::from_utf8_lossy(&answer[..answer.len().min(300)]))
}
