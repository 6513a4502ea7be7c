//! Records of equal keys become one, if the shuffle was started so: their sum, the smallest or largest of them, or how many there
//! are.
//!
//! ```text
//!  client ── 7 "a" 1 · "b" 5 · "a" 2 ──► buffer: "a" 3 · "b" 5 ──► holders          within one attempt, as far as they meet
//!  reader ◄── "a" 3 of one attempt · "a" 4 of another ──► "a" 7                      over the attempts that are read
//! ```
//!
//! A buffer combines what it holds of one attempt ([`frame`], [`segments`]). It never combines over attempts: one of them may
//! lose, and its part could not be taken out any more. So a key has one record or several for each attempt that is read, and a
//! client that wants one record for each key combines those that it reads ([`Total`]).
//!
//! | how | value of a record as the client gives it | value as it is stored, 8 bytes, the least significant one first |
//! |---|---|---|
//! | count | any | how many records, without a sign |
//! | sum, min, max of whole numbers | 8 bytes: a number with a sign | the same |
//! | sum, min, max of floats | 8 bytes: IEEE 754 | the same; each NaN is the one NaN |
//!
//! Floats are ordered by value, −0 before 0, NaN last: the same order as that of sort columns.
//!
//! Whether a sum fits into 8 bytes must not depend on which records have met. So a buffer leaves two records as they are if their
//! sum does not fit, and only the total, which has 16 bytes, is refused if it does not. A sum of floats is rounded at each step:
//! two attempts with equal records may differ in its last bits, reads of the same attempt do not.

use super::record::Segment;
use super::records::PackedRecords;
use partage_core::base::planted::{self, Planted};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

/// How records of equal keys become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Combine {
    /// How many there are, whatever their values.
    Count,
    /// The sum of whole numbers.
    SumI64,
    /// The smallest whole number.
    MinI64,
    /// The largest whole number.
    MaxI64,
    /// The sum of floats.
    SumF64,
    /// The smallest float: −0 is below 0, and NaN above all others.
    MinF64,
    /// The largest float: NaN if there is one.
    MaxF64,
}

/// A value that a shuffle which combines cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a value of {bytes} bytes is no number to combine by {how}: give 8 bytes, the least significant one first"
)]
pub struct NoNumber {
    /// How the shuffle combines.
    pub how: Combine,
    /// The bytes of the value.
    pub bytes: usize,
}

/// A total that 8 bytes cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {0} of a key does not fit into 8 bytes: read its records as they are, or sum floats")]
pub struct TotalTooLarge(pub Combine);

/// A text that says no way to combine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no way to combine: give one of count, sum-i64, min-i64, max-i64, sum-f64, min-f64, max-f64"
)]
pub struct BadCombine(pub String);

/// A number as it is stored.
type Number = [u8; 8];

impl Combine {
    /// Every way, in the order of its code in the stored form of options.
    pub const ALL: [Combine; 7] = [
        Combine::Count,
        Combine::SumI64,
        Combine::MinI64,
        Combine::MaxI64,
        Combine::SumF64,
        Combine::MinF64,
        Combine::MaxF64,
    ];

    /// Its name, as handles and commands have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Combine::Count => "count",
            Combine::SumI64 => "sum-i64",
            Combine::MinI64 => "min-i64",
            Combine::MaxI64 => "max-i64",
            Combine::SumF64 => "sum-f64",
            Combine::MinF64 => "min-f64",
            Combine::MaxF64 => "max-f64",
        }
    }

    /// The value of a record as it is stored, before it meets others.
    ///
    /// # Errors
    /// It is no number.
    pub fn stored(self, value: &[u8]) -> Result<[u8; 8], NoNumber> {
        match self {
            Combine::Count => Ok(1_u64.to_le_bytes()),
            Combine::SumI64 | Combine::MinI64 | Combine::MaxI64 => self.number(value),
            Combine::SumF64 | Combine::MinF64 | Combine::MaxF64 => {
                self.number(value).map(|bytes| float_bytes(f64::from_le_bytes(bytes)))
            }
        }
    }

    fn number(self, value: &[u8]) -> Result<Number, NoNumber> {
        Number::try_from(value).map_err(|_| NoNumber { how: self, bytes: value.len() })
    }

    /// One stored value of two; none: their sum does not fit, and both remain.
    pub fn merged(self, first: [u8; 8], second: [u8; 8]) -> Option<[u8; 8]> {
        let whole = || (i64::from_le_bytes(first), i64::from_le_bytes(second));
        let floats = || (f64::from_le_bytes(first), f64::from_le_bytes(second));
        match self {
            Combine::Count => {
                let sum = u64::from_le_bytes(first).checked_add(u64::from_le_bytes(second))?;
                Some(sum.to_le_bytes())
            }
            Combine::SumI64 => {
                let (first, second) = whole();
                first.checked_add(second).map(i64::to_le_bytes)
            }
            Combine::MinI64 => {
                let (first, second) = whole();
                Some(first.min(second).to_le_bytes())
            }
            Combine::MaxI64 => {
                let (first, second) = whole();
                Some(first.max(second).to_le_bytes())
            }
            Combine::SumF64 => {
                let (first, second) = floats();
                Some(float_bytes(first + second))
            }
            Combine::MinF64 => {
                let (first, second) = floats();
                Some(float_bytes(if order(first, second).is_le() { first } else { second }))
            }
            Combine::MaxF64 => {
                let (first, second) = floats();
                Some(float_bytes(if order(first, second).is_ge() { first } else { second }))
            }
        }
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Combine {
    type Err = BadCombine;

    fn from_str(text: &str) -> Result<Combine, BadCombine> {
        let found = Combine::ALL.into_iter().find(|how| how.as_str() == text);
        found.ok_or_else(|| BadCombine(text.chars().take(100).collect()))
    }
}

/// Each NaN is the one NaN, so that equal values have equal bytes.
fn float_bytes(value: f64) -> Number {
    if value.is_nan() { f64::NAN.to_le_bytes() } else { value.to_le_bytes() }
}

/// By value, −0 before 0, NaN last whatever its sign.
fn order(first: f64, second: f64) -> Ordering {
    first
        .is_nan()
        .cmp(&second.is_nan())
        .then_with(|| if first.is_nan() { Ordering::Equal } else { first.total_cmp(&second) })
}

/// What all records of one key give together, of stored values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    how: Combine,
    sum: Sum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// A total of whole numbers: 16 bytes hold any.
    Wide(i128),
    Number(Number),
}

impl Total {
    /// The total of one value.
    ///
    /// # Errors
    /// It is no number.
    pub fn new(how: Combine, value: &[u8]) -> Result<Total, NoNumber> {
        let number = how.number(value)?;
        let sum = match how {
            Combine::Count => Sum::Wide(i128::from(u64::from_le_bytes(number))),
            Combine::SumI64 => Sum::Wide(i128::from(i64::from_le_bytes(number))),
            _ => Sum::Number(number),
        };
        Ok(Total { how, sum })
    }

    /// Adds one value more, which comes behind those before.
    ///
    /// # Errors
    /// It is no number.
    pub fn add(&mut self, value: &[u8]) -> Result<(), NoNumber> {
        let next = Total::new(self.how, value)?;
        self.sum = match (self.sum, next.sum) {
            (Sum::Wide(first), Sum::Wide(second)) => Sum::Wide(first.saturating_add(second)),
            // Those that are no sums of whole numbers always fit.
            (Sum::Number(first), Sum::Number(second)) => {
                Sum::Number(self.how.merged(first, second).unwrap_or(first))
            }
            (sum, _) => sum,
        };
        Ok(())
    }

    /// The value of the one record.
    ///
    /// # Errors
    /// It does not fit into 8 bytes.
    pub fn value(&self) -> Result<[u8; 8], TotalTooLarge> {
        let too_large = TotalTooLarge(self.how);
        match (self.sum, self.how) {
            (Sum::Number(number), _) => Ok(number),
            (Sum::Wide(sum), Combine::Count) => {
                u64::try_from(sum).map(u64::to_le_bytes).map_err(|_| too_large)
            }
            (Sum::Wide(sum), _) => i64::try_from(sum).map(i64::to_le_bytes).map_err(|_| too_large),
        }
    }
}

/// Records and bytes that an attempt has less, by its number.
pub type Less = BTreeMap<u64, (u64, u64)>;

/// What combining takes in memory for each key that it has found, in bytes, about: its first record, and its place in the map.
pub const MEMORY_OF_KEY: u64 = 128;

/// A frame as it is stored: each value as a number, and of each key one record, in the place of its first one. Only records whose
/// sum does not fit remain.
///
/// # Errors
/// A value is no number.
pub fn frame(how: Combine, records: &PackedRecords) -> Result<PackedRecords, NoNumber> {
    let mut kept: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut all: Vec<(&[u8], Number)> = Vec::with_capacity(usize::try_from(records.count()).unwrap_or(0));
    for (key, value) in records {
        let value = how.stored(value)?;
        let first = *kept.entry(key).or_insert(all.len());
        let merged = all.get(first).and_then(|(_, first)| how.merged(*first, value));
        if let Some(merged) = merged
            && let Some((_, first)) = all.get_mut(first)
        {
            *first = merged;
        } else {
            all.push((key, value));
        }
    }
    Ok(PackedRecords::pack(all.iter().map(|(key, value)| (*key, &value[..]))))
}

/// The first record of a key among all records, and what it is worth now.
struct Kept {
    place: usize,
    value: Number,
    is_changed: bool,
}

/// Combines records of equal keys of each attempt, in segments of one buffer. The first one of a key stays in its place and gets
/// the value of all of them; the others go. So a segment never grows, and the order of the rest does not change. A segment may
/// have no record left. It takes about so much memory at most, besides the copy of what is left: what keys come when there is
/// no more stays as it is.
pub fn segments(how: Combine, segments: &mut [Segment], most_memory: u64) -> Less {
    let packed: Vec<PackedRecords> = segments.iter().map(|segment| segment.records.clone()).collect();
    let (mut kept, mut less) = (BTreeMap::<(u64, &[u8]), Kept>::new(), Less::new());
    // Of all records, one segment behind the other.
    let mut stays = Vec::new();
    for (segment, records) in segments.iter().zip(&packed) {
        let number = segment.attempt.number;
        let of = if planted::is(Planted::CombinedAcross) { 0 } else { number };
        for (key, value) in records {
            let has_room = (kept.len() as u64 + 1).saturating_mul(MEMORY_OF_KEY) <= most_memory;
            let is_gone = Number::try_from(value).is_ok_and(|value| match kept.entry((of, key)) {
                Entry::Vacant(place) => {
                    if has_room {
                        place.insert(Kept { place: stays.len(), value, is_changed: false });
                    }
                    false
                }
                Entry::Occupied(mut place) => {
                    let first = place.get_mut();
                    let merged = how.merged(first.value, value);
                    if let Some(merged) = merged {
                        (first.value, first.is_changed) = (merged, true);
                    }
                    merged.is_some()
                }
            });
            if is_gone {
                let gone = less.entry(number).or_default();
                *gone = (gone.0 + 1, gone.1 + (key.len() + value.len()) as u64);
            }
            stays.push(!is_gone);
        }
    }
    let changed = kept.into_values().filter(|first| first.is_changed);
    let changed: BTreeMap<usize, Number> = changed.map(|first| (first.place, first.value)).collect();
    let mut begin = 0;
    for (segment, records) in segments.iter_mut().zip(packed) {
        // Also one of which nothing has gone: it would keep the frame in memory of which it is a part.
        let left = (begin..).zip(&records).filter(|(place, _)| stays.get(*place) == Some(&true));
        segment.records =
            PackedRecords::pack(left.map(|(place, (key, value))| {
                (key, changed.get(&place).map_or(value, |changed| &changed[..]))
            }));
        begin += usize::try_from(records.count()).unwrap_or(0);
    }
    less
}

#[cfg(test)]
mod tests;
