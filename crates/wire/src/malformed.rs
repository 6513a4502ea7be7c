//! What arrived is not what it should be: which field, and why.

use crate::limits;
use std::fmt::Display;
use std::str::FromStr;

/// A message, a request or a record with a field that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Malformed {
    /// Path of the field, such as `changed[3].bounds.keys.end`.
    pub field: String,
    /// What is wrong with it, and what would do.
    pub why: String,
}

impl Malformed {
    /// `field` is wrong because of `why`.
    pub fn new(field: impl Into<String>, why: impl Display) -> Malformed {
        Malformed { field: field.into(), why: why.to_string() }
    }

    /// The same, seen from the message that has it in its field `outer`.
    #[must_use]
    pub fn within(self, outer: &str) -> Malformed {
        Malformed { field: format!("{outer}.{}", self.field), ..self }
    }
}

/// Names the field in which a check of core failed.
pub(crate) trait At<T> {
    fn at(self, field: &str) -> Result<T, Malformed>;
}

impl<T, E: Display> At<T> for Result<T, E> {
    fn at(self, field: &str) -> Result<T, Malformed> {
        self.map_err(|why| Malformed::new(field, why))
    }
}

/// Names the field in which the malformed one is.
pub(crate) trait Inside<T> {
    fn inside(self, field: &str) -> Result<T, Malformed>;
}

impl<T> Inside<T> for Result<T, Malformed> {
    fn inside(self, field: &str) -> Result<T, Malformed> {
        self.map_err(|malformed| malformed.within(field))
    }
}

/// A message field that must be there.
pub(crate) fn required<T, U>(value: Option<T>, field: &str) -> Result<U, Malformed>
where
    U: TryFrom<T, Error = Malformed>,
{
    value.ok_or_else(|| Malformed::new(field, "is missing"))?.try_into().inside(field)
}

/// A message field that may be there.
pub(crate) fn optional<T, U>(value: Option<T>, field: &str) -> Result<Option<U>, Malformed>
where
    U: TryFrom<T, Error = Malformed>,
{
    value.map(U::try_from).transpose().inside(field)
}

/// Every element of a list, into any collection; a malformed one is named by its index.
pub(crate) fn each<T, U, C: FromIterator<U>>(
    list: Vec<T>,
    field: &str,
    mut parse: impl FnMut(T) -> Result<U, Malformed>,
) -> Result<C, Malformed> {
    let parsed = list.into_iter().enumerate();
    parsed.map(|(at, item)| parse(item).inside(&format!("{field}[{at}]"))).collect()
}

/// Every name of a list; a bad one is named by its index.
pub(crate) fn names<U: std::str::FromStr<Err: Display>, C: FromIterator<U>>(
    list: &[String],
    field: &str,
) -> Result<C, Malformed> {
    let parsed = list.iter().enumerate();
    parsed
        .map(|(at, name)| name.parse().map_err(|why| Malformed::new(format!("{field}[{at}]"), why)))
        .collect()
}

/// A text that is absent when empty.
pub(crate) fn none_if_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// A name that is absent when empty.
pub(crate) fn name_unless_empty<U: std::str::FromStr<Err: Display>>(
    text: &str,
    field: &str,
) -> Result<Option<U>, Malformed> {
    (!text.is_empty()).then(|| text.parse()).transpose().at(field)
}

/// A name, or a word.
pub(crate) fn name<T: FromStr<Err: Display>>(text: &str, field: &str) -> Result<T, Malformed> {
    text.parse().at(field)
}

/// A word where one is given.
pub(crate) fn word<T: FromStr<Err: Display>>(
    word: Option<impl Display>,
    field: &str,
) -> Result<Option<T>, Malformed> {
    word.map(|word| word.to_string().parse()).transpose().at(field)
}

/// A sentence from outside, cut to [`limits::SENTENCE_BYTES`] at a character's end.
pub(crate) fn sentence(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(limits::SENTENCE_BYTES));
    text
}

/// Refuses a text that is longer than `limit` bytes.
pub(crate) fn at_most(text: String, field: &str, limit: usize) -> Result<String, Malformed> {
    match text.len() {
        bytes if bytes > limit => {
            Err(Malformed::new(field, format!("has {bytes} bytes: the limit is {limit}")))
        }
        _ => Ok(text),
    }
}
