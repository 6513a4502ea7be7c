//! Keys, hash points and generations as JSON.

use crate::Malformed;
use crate::malformed::At;
use partage_core::base::id::TransactionId;
use partage_core::keyspace::key::Key;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use utoipa::ToSchema;

/// A key: text when it is UTF-8, else its bytes in hex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum KeyText {
    /// A key that is UTF-8.
    Text(String),
    /// A key of any bytes.
    Hex {
        /// The bytes of the key as hex digits, two for each byte.
        hex: String,
    },
}

/// Bytes in hexadecimal digits, in lower case.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of hexadecimal digits, in lower or upper case.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>, Malformed> {
    let wrong = || Malformed::new("hex", "must be an even number of hex digits");
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong()))
        .collect()
}

impl From<&Key> for KeyText {
    fn from(key: &Key) -> Self {
        match std::str::from_utf8(key.as_bytes()) {
            Ok(text) => KeyText::Text(text.to_owned()),
            Err(_) => KeyText::Hex { hex: to_hex(key.as_bytes()) },
        }
    }
}

impl From<Vec<u8>> for KeyText {
    fn from(key: Vec<u8>) -> Self {
        match String::from_utf8(key) {
            Ok(text) => KeyText::Text(text),
            Err(bytes) => KeyText::Hex { hex: to_hex(bytes.as_bytes()) },
        }
    }
}

impl TryFrom<KeyText> for Key {
    type Error = Malformed;
    fn try_from(form: KeyText) -> Result<Self, Malformed> {
        match form {
            KeyText::Text(text) => Key::new(text.as_bytes()).at("key"),
            KeyText::Hex { hex } => Key::new(&from_hex(&hex)?).at("hex"),
        }
    }
}

/// A point of the hash space: 16 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Point(pub String);

impl From<u64> for Point {
    fn from(point: u64) -> Self {
        Point(format!("{point:016x}"))
    }
}

impl TryFrom<Point> for u64 {
    type Error = Malformed;
    fn try_from(form: Point) -> Result<Self, Malformed> {
        match form.0.len() == 16 && form.0.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            true => u64::from_str_radix(&form.0, 16).at("point"),
            false => Err(Malformed::new("point", format!("{:?} is no point: give 16 hex digits", form.0))),
        }
    }
}

/// The generation of a map: it says which map of a keyspace is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Generation {
    /// The number of commits up to this map, from 1; 0 = the empty map.
    pub sequence: u64,
    /// The id of the commit that made this map, 40 hex digits; it tells two maps of the same sequence apart.
    pub transaction: String,
}

impl From<partage_core::base::id::Generation> for Generation {
    fn from(generation: partage_core::base::id::Generation) -> Self {
        Generation { sequence: generation.sequence, transaction: generation.transaction.to_string() }
    }
}

impl TryFrom<Generation> for partage_core::base::id::Generation {
    type Error = Malformed;
    fn try_from(form: Generation) -> Result<Self, Malformed> {
        let bytes = from_hex(&form.transaction)?;
        let transaction = <[u8; 20]>::try_from(bytes)
            .map_err(|_| Malformed::new("transaction", "must have 40 hex digits"))?;
        Ok(partage_core::base::id::Generation {
            sequence: form.sequence,
            transaction: TransactionId(transaction),
        })
    }
}
