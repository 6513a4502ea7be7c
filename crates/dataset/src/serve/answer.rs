//! The answer to a request for one key, as both paths give it, and how the fast path writes it.

use super::encoding;
use super::range::{ByteRange, byte_range};
use super::refusal::Refusal;
use super::request::Wants;
use super::{SEQUINS_VERSION, VERSION};
use crate::catalogue::Reading;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use partage_engine::readonly::Value;
use partage_wire::json::ErrorBody;
use partage_wire::request::at_least::ORDER;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

/// What a value's answer says whatever the value is.
pub fn head_of(reading: &Reading) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, text(&reading.options().content_type));
    VersionHeaders::of(reading).insert_into(&mut headers);
    let created = UNIX_EPOCH + Duration::from_secs(reading.created_at());
    headers.insert(header::LAST_MODIFIED, text(&httpdate::fmt_http_date(created)));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers
}

/// The headers that say which version an answer is of, and by which order.
#[derive(Debug, Clone)]
pub struct VersionHeaders {
    version: HeaderValue,
    order: u64,
}

impl VersionHeaders {
    pub fn of(reading: &Reading) -> VersionHeaders {
        VersionHeaders { version: text(reading.name().as_str()), order: reading.order() }
    }

    pub fn insert_into(self, headers: &mut HeaderMap) {
        if self.order > 0 {
            headers.insert(ORDER, HeaderValue::from(self.order));
        }
        headers.insert(VERSION, self.version.clone());
        headers.insert(SEQUINS_VERSION, self.version);
    }
}

/// Names were checked when they came in; what no header can hold is left out.
pub fn text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// The entity tag of a value: it stays the same over versions as long as the value does.
pub fn tag(value: &[u8]) -> [u8; 18] {
    let mut tag = [b'"'; 18];
    let hash = xxhash_rust::xxh3::xxh3_64(value);
    for (at, digit) in tag[1..17].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(hash >> (60 - 4 * at)) as usize & 15];
    }
    tag
}

/// 200, 206, 304 or 416, as the headers of the request want it.
pub fn found(head: &HeaderMap, value: Value<'_>, wants: &Wants<'_>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.headers_mut() = head.clone();
    let plain_tag = tag(&value);
    if encoding::is_negotiated(value.len()) {
        // Also where it is not coded: a cache must not give it to who asks otherwise.
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
    if wants.if_none_match.is_some_and(|tags| names(tags, &plain_tag)) {
        let headers = response.headers_mut();
        headers.remove(header::CONTENT_TYPE);
        headers.remove(header::ACCEPT_RANGES);
        headers.insert(header::ETAG, tag_value(&plain_tag));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    let same = wants.if_range.is_none_or(|tag| tag == plain_tag);
    let byte_range =
        wants.range.filter(|_| same).map_or(ByteRange::Whole, |range| byte_range(range, value.len()));
    response.headers_mut().insert(header::ETAG, tag_value(&plain_tag));
    match byte_range {
        ByteRange::Whole => whole(&mut response, value, wants),
        ByteRange::Some(range) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let place = format!("bytes {}-{}/{}", range.start, range.end - 1, value.len());
            response.headers_mut().insert(header::CONTENT_RANGE, text(&place));
            *response.body_mut() = Bytes::copy_from_slice(&value[range]);
        }
        ByteRange::Unsatisfiable => {
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            response.headers_mut().remove(header::CONTENT_TYPE);
            let place = format!("bytes */{}", value.len());
            response.headers_mut().insert(header::CONTENT_RANGE, text(&place));
        }
    }
    response
}

fn whole(response: &mut Response<Bytes>, value: Value<'_>, wants: &Wants<'_>) {
    let encoding = wants.accept_encoding.and_then(|accept| encoding::chosen(accept, value.len()));
    if let Some((encoding, coded)) = encoding.and_then(|e| Some((e, e.encode(&value)?))) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        // Not the same bytes, so a weak tag: good to ask whether the value has changed, not to put ranges together.
        let weak = [b"W/".as_slice(), &tag(&value)].concat();
        headers.insert(header::ETAG, HeaderValue::from_bytes(&weak).unwrap_or(HeaderValue::from_static("")));
        *response.body_mut() = Bytes::from(coded);
        return;
    }
    *response.body_mut() = Bytes::from(value.into_owned());
}

fn tag_value(tag: &[u8; 18]) -> HeaderValue {
    HeaderValue::from_bytes(tag).unwrap_or(HeaderValue::from_static(""))
}

/// Whether one of the tags is this one, by the weak comparison.
fn names(tags: &[u8], tag: &[u8; 18]) -> bool {
    let tags = tags.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tags.map(|one| one.strip_prefix(b"W/").unwrap_or(one)).any(|one| one == b"*" || one == tag)
}

/// 404 of a version: the key is not in it.
pub fn absent(reading: &Reading) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    VersionHeaders::of(reading).insert_into(response.headers_mut());
    response
}

/// What is not carried out, as JSON.
pub fn refused(refusal: &Refusal) -> Response<Bytes> {
    let body = ErrorBody::new(refusal.kind, &refusal.text, &refusal.way_out);
    let mut response = Response::new(Bytes::from(body.bytes()));
    *response.status_mut() = refusal.status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(allow) = refusal.allow {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Whether [`found`] would send the value whole and as it is, so that [`write_plain`] may.
pub fn is_plain(wants: &Wants<'_>, length: usize) -> bool {
    wants.range.is_none()
        && wants.if_none_match.is_none()
        && (wants.accept_encoding.is_none() || length < crate::limits::COMPRESSED_BYTES)
}

/// The lines of [`head_of`], with the status line before them, written once for a version.
pub fn plain_head(head: &HeaderMap) -> Box<[u8]> {
    let mut out = b"HTTP/1.1 200 OK\r\n".to_vec();
    write_headers(&mut out, head);
    out.into()
}

/// A 200 with a whole value.
pub fn write_plain(out: &mut Vec<u8>, plain_head: &[u8], value: &[u8], is_head: bool, date: &[u8]) {
    out.reserve(plain_head.len() + value.len() + 128);
    out.extend_from_slice(plain_head);
    if encoding::is_negotiated(value.len()) {
        out.extend_from_slice(b"vary: accept-encoding\r\n");
    }
    out.extend_from_slice(b"etag: ");
    out.extend_from_slice(&tag(value));
    out.extend_from_slice(b"\r\ncontent-length: ");
    write_number(out, value.len());
    out.extend_from_slice(b"\r\n");
    write_date(out, date);
    if !is_head {
        out.extend_from_slice(value);
    }
}

/// Writes any answer, with a length where it has a body.
pub fn write(out: &mut Vec<u8>, response: &Response<Bytes>, is_head: bool, date: &[u8]) {
    // 304 has no body, and a length would be taken for that of the value (RFC 9110, 8.6). An answer to HEAD that a
    // peer gave tells the length itself.
    let is_told = response.status() == StatusCode::NOT_MODIFIED
        || response.headers().contains_key(header::CONTENT_LENGTH);
    write_head(out, response, (!is_told).then_some(response.body().len()), date);
    if !is_head {
        out.extend_from_slice(response.body());
    }
}

/// The head of any answer, with the length of its body unless it has none.
pub fn write_head(out: &mut Vec<u8>, response: &Response<Bytes>, length: Option<usize>, date: &[u8]) {
    let status = response.status();
    // Writing to memory cannot fail.
    let _ = write!(out, "HTTP/1.1 {} {}\r\n", status.as_str(), status.canonical_reason().unwrap_or(""));
    write_headers(out, response.headers());
    if let Some(length) = length {
        out.extend_from_slice(b"content-length: ");
        write_number(out, length);
        out.extend_from_slice(b"\r\n");
    }
    write_date(out, date);
}

fn write_headers(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// The last line of a head.
fn write_date(out: &mut Vec<u8>, date: &[u8]) {
    out.extend_from_slice(b"date: ");
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\n\r\n");
}

fn write_number(out: &mut Vec<u8>, mut number: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break out.extend_from_slice(&digits[at..]);
        }
    }
}
