//! What an index has of a value, and the bytes that have the same order.
//!
//! ```text
//! 01 · 00 false, 01 true
//! 02 · the largest number of 64 bits with a fraction that is not above, its bits in the order of numbers u64 · what is left u16
//! 03 · bytes of the text, of which 00 becomes 00 FF · 00 00, or 00 01 where the text goes on
//! ```
//!
//! A whole number of 64 bits is not always one with a fraction too: 2^63 + 1 is not. So it is stored as the next one below it,
//! and what is left. Numbers that are worth the same have the same bytes, as filters find them equal.
//!
//! The first [`limits::INDEX_TEXT_BYTES`] of a long text are in the index. Texts that begin with the same bytes stand there in
//! the order of their keys, and a query looks at the row.

use crate::table::filter::{Number, Scalar};
use partage_core::limits;
use std::cmp::Ordering;

/// A value that an index has.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexedValue {
    /// A truth value: `false` is before `true`.
    Bool(bool),
    /// A number: numbers that are worth the same are one value.
    Number(Number),
    /// A text, compared byte by byte.
    Text(String),
}

const BOOL: u8 = 1;
const NUMBER: u8 = 2;
const TEXT: u8 = 3;

const WHOLE_END: [u8; 2] = [0, 0];
const CUT_END: [u8; 2] = [0, 1];
const ESCAPED: [u8; 2] = [0, 0xff];

const BOOL_BYTES: usize = 2;
const NUMBER_BYTES: usize = 11;

impl IndexedValue {
    /// What an index has of a scalar: nothing of `null`.
    pub fn of(scalar: Scalar<'_>) -> Option<IndexedValue> {
        match scalar {
            Scalar::Null => None,
            Scalar::Bool(is) => Some(IndexedValue::Bool(is)),
            Scalar::Number(number) => Some(IndexedValue::Number(number)),
            Scalar::Text(text) => Some(IndexedValue::Text(text.to_owned())),
        }
    }

    /// The order of values: by kind (booleans, numbers, texts), then by value.
    pub fn compare(&self, other: &IndexedValue) -> Ordering {
        match (self, other) {
            (IndexedValue::Bool(one), IndexedValue::Bool(other)) => one.cmp(other),
            (IndexedValue::Number(one), IndexedValue::Number(other)) => one.compare(*other),
            (IndexedValue::Text(one), IndexedValue::Text(other)) => one.cmp(other),
            _ => self.kind().cmp(&other.kind()),
        }
    }

    /// A number for the kind, in the order of kinds.
    pub fn kind(&self) -> u8 {
        match self {
            IndexedValue::Bool(_) => BOOL,
            IndexedValue::Number(_) => NUMBER,
            IndexedValue::Text(_) => TEXT,
        }
    }

    /// Bytes that have the order of values, and of which none are the beginning of others.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            IndexedValue::Bool(is) => vec![BOOL, u8::from(*is)],
            IndexedValue::Number(number) => {
                let (floor, left) = parts(*number);
                let mut bytes = Vec::with_capacity(NUMBER_BYTES);
                bytes.push(NUMBER);
                bytes.extend_from_slice(&ordered_bits(floor).to_be_bytes());
                bytes.extend_from_slice(&left.to_be_bytes());
                bytes
            }
            IndexedValue::Text(text) => encode_text(text.as_bytes()),
        }
    }
}

fn encode_text(text: &[u8]) -> Vec<u8> {
    let kept = &text[..text.len().min(limits::INDEX_TEXT_BYTES)];
    let mut bytes = Vec::with_capacity(kept.len() + 3);
    bytes.push(TEXT);
    for byte in kept {
        match byte {
            0 => bytes.extend_from_slice(&ESCAPED),
            other => bytes.push(*other),
        }
    }
    bytes.extend_from_slice(if kept.len() < text.len() { &CUT_END } else { &WHOLE_END });
    bytes
}

/// The encoded value that bytes begin with, and what is behind it; none if they begin with no such value.
pub fn encoded_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = match *bytes.first()? {
        BOOL => BOOL_BYTES,
        NUMBER => NUMBER_BYTES,
        TEXT => text_end(bytes)?,
        _ => return None,
    };
    bytes.split_at_checked(length)
}

/// The length of an encoded text.
fn text_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == 0)?;
        let pair = bytes.get(at..at + 2)?;
        at += 2;
        if pair == WHOLE_END || pair == CUT_END {
            return Some(at);
        }
        if pair != ESCAPED {
            return None;
        }
    }
}

/// Whether an encoded value has only the beginning of a text.
pub fn is_cut(encoded: &[u8]) -> bool {
    encoded.first() == Some(&TEXT) && encoded.ends_with(&CUT_END)
}

/// The first byte behind all encoded values of that kind.
pub fn kind_end(kind: u8) -> u8 {
    kind.saturating_add(1)
}

/// The largest number with a fraction that is not above the number, and how much is left.
fn parts(number: Number) -> (f64, u16) {
    match number {
        // Zero has no sign here.
        Number::Fraction(fraction) => (fraction + 0.0, 0),
        Number::Whole(whole) => {
            let nearest = whole as f64;
            let floor = if nearest as i128 > whole { nearest.next_down() } else { nearest };
            // Of 64 bits at most 2^11 are left; of larger numbers, which no document has, the order is kept.
            let left = whole.saturating_sub(floor as i128);
            (floor, u16::try_from(left).unwrap_or(u16::MAX))
        }
    }
}

/// Bits that have the order of the numbers.
fn ordered_bits(number: f64) -> u64 {
    let bits = number.to_bits();
    if number.is_sign_negative() { !bits } else { bits | (1 << 63) }
}
