//! Filters of scans: which rows are wanted, by what their JSON values have.
//!
//! ```text
//! section = "net" and size > 100
//! not (author.name starts_with "A" or tags[0] in ("old", "gone")) and price exists
//! ```
//!
//! | written | holds if |
//! |---|---|
//! | `PATH = VALUE`, `!=` | the path leads to a value that is, is not, the same; numbers are the same by what they are worth, `1` is `1.0` |
//! | `PATH < VALUE`, `<=`, `>`, `>=` | both are numbers, or both are texts, and stand so to each other; texts in the order of Unicode |
//! | `PATH in (VALUE, …)` | it is the same as one of them |
//! | `PATH starts_with TEXT` | it is a text that begins so |
//! | `PATH exists` | the path leads anywhere, to `null` too |
//! | `not`, `and`, `or`, `( )` | in this order of strength |
//!
//! A path is names joined by dots, and places in lists in brackets, from 0: `author.names[0]`. A name of other characters than
//! letters, digits, `_` and `-`, one that does not begin with a letter or `_`, and one that is a word of the language, stands in
//! double quotes: `"first name"`. `$` is the whole value. A value is a text in double quotes with the escapes of JSON, a number,
//! `true`, `false` or `null`.
//!
//! A comparison with what is not there does not hold, `!=` neither; with what is of another kind only `!=` holds. So
//! `not size > 100` holds where there is no size.
//! A row whose value is not JSON is in no result, whatever the filter.
//!
//! No arithmetic, no functions, no patterns: a filter reads a value once and keeps nothing. JSONPath (RFC 9535) has filters too;
//! these choose elements within one document, and their `$[?@.section=="net"]` is harder to write for what is wanted here.

mod parse;
mod path;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;

pub use parse::FilterError;
pub use path::{Path, PathError};

/// Which rows are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// As it was given: so it is sent to other nodes, which have the same bounds.
    text: String,
    expression: Expression,
}

#[derive(Debug, Clone, PartialEq)]
enum Expression {
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Not(Box<Expression>),
    Test(Vec<Step>, Check),
}

/// One step into a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The step to the field of that name, of an object.
    Field(String),
    /// The step to the item at that place, of a list, from 0.
    Item(usize),
}

#[derive(Debug, Clone, PartialEq)]
enum Check {
    Compare(Comparison, Literal),
    In(Vec<Literal>),
    StartsWith(String),
    Exists,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Same,
    Other,
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
}

/// A number of a document.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A number without a fraction.
    Whole(i128),
    /// Any other number; it is finite.
    Fraction(f64),
}

/// What a document is where it is neither an object nor a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar<'a> {
    /// The `null` of JSON: an index has no entry for it.
    Null,
    /// A truth value of JSON.
    Bool(bool),
    /// A number, whole or with a fraction.
    Number(Number),
    /// A text, with its escapes resolved.
    Text(&'a str),
}

/// A reference to a JSON value, of whichever parser.
pub trait Document<'a>: Copy {
    /// The field of that name, of an object that has it.
    fn field(self, name: &str) -> Option<Self>;

    /// The item at that place, of a list that is so long.
    fn item(self, at: usize) -> Option<Self>;

    /// What it is; none: an object or a list.
    fn scalar(self) -> Option<Scalar<'a>>;
}

impl Filter {
    /// Reads a filter.
    ///
    /// # Errors
    /// What is wrong, and at which character.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        parse::filter(text).map(|expression| Filter { text: text.to_owned(), expression })
    }

    /// Whether a row with that value is wanted.
    pub fn matches<'a>(&self, value: impl Document<'a>) -> bool {
        self.expression.holds(value)
    }
}

impl Expression {
    fn holds<'a>(&self, value: impl Document<'a>) -> bool {
        match self {
            Expression::And(all) => all.iter().all(|one| one.holds(value)),
            Expression::Or(all) => all.iter().any(|one| one.holds(value)),
            Expression::Not(other) => !other.holds(value),
            Expression::Test(path, check) => {
                let mut at = Some(value);
                for step in path {
                    at = at.and_then(|at| match step {
                        Step::Field(name) => at.field(name),
                        Step::Item(place) => at.item(*place),
                    });
                }
                at.is_some_and(|found| check.holds(found.scalar()))
            }
        }
    }
}

impl Check {
    /// Whether it holds of what was found: a scalar, or an object or a list (none).
    fn holds(&self, found: Option<Scalar<'_>>) -> bool {
        match (self, found) {
            (Check::Exists, _) | (Check::Compare(Comparison::Other, _), None) => true,
            (_, None) => false,
            (Check::Compare(comparison, wanted), Some(found)) => comparison.holds(found, wanted),
            (Check::In(all), Some(found)) => all.iter().any(|one| Comparison::Same.holds(found, one)),
            (Check::StartsWith(prefix), Some(Scalar::Text(text))) => text.starts_with(prefix.as_str()),
            (Check::StartsWith(_), Some(_)) => false,
        }
    }
}

impl Comparison {
    fn holds(self, found: Scalar<'_>, wanted: &Literal) -> bool {
        let order = match (found, wanted) {
            (Scalar::Number(found), Literal::Number(wanted)) => Some(found.compare(*wanted)),
            (Scalar::Text(found), Literal::Text(wanted)) => Some(found.cmp(wanted.as_str())),
            _ => None,
        };
        let is_same = match (found, wanted) {
            (Scalar::Null, Literal::Null) => true,
            (Scalar::Bool(found), Literal::Bool(wanted)) => found == *wanted,
            _ => order == Some(Ordering::Equal),
        };
        match self {
            Comparison::Same => is_same,
            Comparison::Other => !is_same,
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::AtMost => order.is_some_and(Ordering::is_le),
            Comparison::More => order == Some(Ordering::Greater),
            Comparison::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }
}

/// Beyond this, each number of 64 bits with a fraction is whole, and beyond what 64 bits hold otherwise.
const BEYOND_WHOLE: f64 = 1e30;

impl Number {
    /// Compares numbers by what they are worth, exactly.
    pub(super) fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Whole(one), Number::Whole(other)) => one.cmp(&other),
            // Both are finite, so that they have an order.
            (Number::Fraction(one), Number::Fraction(other)) => {
                one.partial_cmp(&other).unwrap_or(Ordering::Equal)
            }
            (Number::Whole(one), Number::Fraction(other)) => whole_with_fraction(one, other),
            (Number::Fraction(one), Number::Whole(other)) => whole_with_fraction(other, one).reverse(),
        }
    }
}

fn whole_with_fraction(whole: i128, fraction: f64) -> Ordering {
    if fraction.abs() >= BEYOND_WHOLE {
        // A whole number so large is compared as one of 64 bits, which loses what no document can tell apart.
        return (whole as f64).partial_cmp(&fraction).unwrap_or(Ordering::Equal);
    }
    let floor = fraction.floor();
    let of_floor = whole.cmp(&(floor as i128));
    if of_floor == Ordering::Equal && fraction > floor { Ordering::Less } else { of_floor }
}

impl fmt::Display for Filter {
    /// As it was given: [`Filter::parse`] gives the same filter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
