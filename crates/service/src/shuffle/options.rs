//! What a shuffle is started with besides its terms: what its records are, how long it lives, whose it is. The leader keeps
//! it with the decision to start; clients that only write or read records need not know it.

use super::{Bytes, Combine};
use partage_core::limits::{
    SHUFFLE_COMBINED_COLUMNS, SHUFFLE_OWNER_BYTES, SHUFFLE_SCHEMA_BYTES, SHUFFLE_SORT_COLUMNS,
    SHUFFLE_TTL_LEAST_MS, SHUFFLE_TTL_MOST_MS,
};
use std::collections::BTreeSet;

/// What the records of a shuffle are. It is fixed when the shuffle starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum RecordKind {
    /// Key and value are opaque bytes, ordered by the key.
    #[default]
    Raw,
    /// Rows of Arrow: key and value are an encoding of their columns.
    Arrow(ArrowKind),
}

/// How rows of Arrow become records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArrowKind {
    /// The version of the encoding of rows.
    pub encoding: u16,
    /// The schema, as a message of Arrow IPC.
    pub schema: Bytes,
    /// The columns by which rows are ordered, the first one first.
    pub order: Vec<SortColumn>,
    /// How rows that are equal in all of these become one: by each other column. Empty: they all remain.
    pub combine: Vec<CombinedColumn>,
}

/// A column by which rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SortColumn {
    /// Its place in the schema.
    pub column: u32,
    /// Whether the largest value comes first.
    pub descends: bool,
    /// Whether nulls come first.
    pub nulls_first: bool,
}

/// A column of numbers that become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CombinedColumn {
    /// Its place in the schema.
    pub column: u32,
    /// What the numbers in it become.
    pub by: ColumnCombine,
}

/// What the numbers of a column become. Nulls are left out; where all are null, so is what they become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ColumnCombine {
    /// How many rows have a value.
    Count,
    /// The sum of all of them.
    Sum,
    /// The smallest of them.
    Min,
    /// The largest of them.
    Max,
}

impl ColumnCombine {
    /// Every way, in the order of its code in the stored form of options.
    pub const ALL: [ColumnCombine; 4] =
        [ColumnCombine::Count, ColumnCombine::Sum, ColumnCombine::Min, ColumnCombine::Max];

    /// The word for it: `count`, `sum`, `min` or `max`.
    pub const fn as_str(self) -> &'static str {
        match self {
            ColumnCombine::Count => "count",
            ColumnCombine::Sum => "sum",
            ColumnCombine::Min => "min",
            ColumnCombine::Max => "max",
        }
    }
}

/// What a shuffle is started with, besides its terms. A start that is sent again must have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ShuffleOptions {
    /// What its records are.
    pub kind: RecordKind,
    /// It ends when it is not sealed and no client has asked for it for so many milliseconds; none: what the settings of its
    /// leader say.
    pub unsealed_ttl_ms: Option<u64>,
    /// The same of the sealed shuffle.
    pub sealed_ttl_ms: Option<u64>,
    /// The name of its owner, for people and for quotas; empty: it has none.
    pub owner: String,
}

/// Why a shuffle is not started with such options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadShuffleOptions {
    /// The time to live is too short or too long.
    #[error(
        "the time to live {0} ms cannot be: give {least} to {most} ms",
        least = SHUFFLE_TTL_LEAST_MS,
        most = SHUFFLE_TTL_MOST_MS
    )]
    Ttl(u64),
    /// The owner has too many bytes, or others than a name has.
    #[error(
        "the owner {0:?} cannot be: give at most {most} letters of a to z, digits, dots, hyphens and underscores",
        most = SHUFFLE_OWNER_BYTES
    )]
    Owner(String),
    /// The schema is too large.
    #[error("the schema has {0} bytes, and {most} are the most: leave out columns or their metadata", most = SHUFFLE_SCHEMA_BYTES)]
    Schema(usize),
    /// Rows are combined by their columns.
    #[error(
        "rows of Arrow cannot be combined by {0}: name a way for each column that is no sort column instead"
    )]
    CombinesRows(Combine),
    /// There is no column to order by, or there are too many.
    #[error("the order has {0} columns: give 1 to {most}", most = SHUFFLE_SORT_COLUMNS)]
    SortColumns(usize),
    /// A column stands in the order twice.
    #[error("column {0} stands in the order twice: name it once")]
    SortedTwice(u32),
    /// There are too many columns to combine.
    #[error("{0} columns are combined, and {most} are the most: leave out columns", most = SHUFFLE_COMBINED_COLUMNS)]
    CombinedColumns(usize),
    /// A column is combined, and rows are ordered by it, or it is named twice.
    #[error(
        "column {0} cannot be combined, as rows are ordered by it or it is named twice: name each other column once"
    )]
    CombinedTwice(u32),
}

/// What differs between a start and that of the shuffle which has its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OptionDifference {
    /// What the records are.
    Kind,
    /// The time to live before it is sealed.
    UnsealedTtl,
    /// The time to live afterwards.
    SealedTtl,
    /// The name of the owner.
    Owner,
    /// How records of equal keys are combined.
    Combine,
    /// Where records are when they are acknowledged.
    Durability,
}

impl std::fmt::Display for OptionDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            OptionDifference::Kind => "kind of records",
            OptionDifference::UnsealedTtl => "time to live before it is sealed",
            OptionDifference::SealedTtl => "time to live after it is sealed",
            OptionDifference::Owner => "owner",
            OptionDifference::Combine => "way to combine records",
            OptionDifference::Durability => "durability",
        })
    }
}

/// Whether a text can be the name of an owner; the empty one says that there is none.
fn is_owner(text: &str) -> bool {
    let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() <= SHUFFLE_OWNER_BYTES && text.bytes().all(is_in_name)
}

impl ArrowKind {
    fn check(&self) -> Result<(), BadShuffleOptions> {
        if self.schema.len() > SHUFFLE_SCHEMA_BYTES {
            return Err(BadShuffleOptions::Schema(self.schema.len()));
        }
        if self.order.is_empty() || self.order.len() > SHUFFLE_SORT_COLUMNS {
            return Err(BadShuffleOptions::SortColumns(self.order.len()));
        }
        let mut seen = BTreeSet::new();
        match self.order.iter().find(|one| !seen.insert(one.column)) {
            Some(twice) => return Err(BadShuffleOptions::SortedTwice(twice.column)),
            None if self.combine.len() > SHUFFLE_COMBINED_COLUMNS => {
                return Err(BadShuffleOptions::CombinedColumns(self.combine.len()));
            }
            None => {}
        }
        match self.combine.iter().find(|one| !seen.insert(one.column)) {
            Some(twice) => Err(BadShuffleOptions::CombinedTwice(twice.column)),
            None => Ok(()),
        }
    }
}

impl ShuffleOptions {
    /// Looks whether a shuffle may be started with them. A server that takes them from a client calls this; machines and logs
    /// trust them.
    ///
    /// # Errors
    /// One is outside of its limits, or malformed.
    pub fn check(&self) -> Result<(), BadShuffleOptions> {
        let mut ttls = self.unsealed_ttl_ms.iter().chain(&self.sealed_ttl_ms);
        if let Some(ttl) = ttls.find(|ttl| !(SHUFFLE_TTL_LEAST_MS..=SHUFFLE_TTL_MOST_MS).contains(*ttl)) {
            return Err(BadShuffleOptions::Ttl(*ttl));
        }
        if !is_owner(&self.owner) {
            return Err(BadShuffleOptions::Owner(self.owner.chars().take(SHUFFLE_OWNER_BYTES).collect()));
        }
        match &self.kind {
            RecordKind::Raw => Ok(()),
            RecordKind::Arrow(arrow) => arrow.check(),
        }
    }

    /// Looks whether records of this kind can be combined so.
    ///
    /// # Errors
    /// They are rows.
    pub fn check_combine(&self, combine: Option<Combine>) -> Result<(), BadShuffleOptions> {
        match (&self.kind, combine) {
            (RecordKind::Arrow(_), Some(how)) => Err(BadShuffleOptions::CombinesRows(how)),
            _ => Ok(()),
        }
    }

    /// The first difference between others and these, by what matters most.
    pub fn difference(&self, others: &ShuffleOptions) -> Option<OptionDifference> {
        let same = [
            (self.kind == others.kind, OptionDifference::Kind),
            (self.unsealed_ttl_ms == others.unsealed_ttl_ms, OptionDifference::UnsealedTtl),
            (self.sealed_ttl_ms == others.sealed_ttl_ms, OptionDifference::SealedTtl),
            (self.owner == others.owner, OptionDifference::Owner),
        ];
        same.into_iter().find(|(is_same, _)| !is_same).map(|(_, difference)| difference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(columns: &[u32], schema: usize) -> ShuffleOptions {
        let column = |column: &u32| SortColumn { column: *column, descends: false, nulls_first: true };
        let order = columns.iter().map(column).collect();
        let kind = RecordKind::Arrow(ArrowKind {
            encoding: 1,
            schema: vec![0; schema].into(),
            order,
            combine: Vec::new(),
        });
        ShuffleOptions { kind, ..ShuffleOptions::default() }
    }

    #[test]
    fn options_outside_of_their_limits_are_refused_with_the_limits_named() {
        let ttl = |ttl| ShuffleOptions { sealed_ttl_ms: Some(ttl), ..ShuffleOptions::default() };
        for good in [SHUFFLE_TTL_LEAST_MS, SHUFFLE_TTL_MOST_MS] {
            assert_eq!(ttl(good).check(), Ok(()));
        }
        for bad in [0, SHUFFLE_TTL_LEAST_MS - 1, SHUFFLE_TTL_MOST_MS + 1, u64::MAX] {
            let why = ttl(bad).check().unwrap_err();
            assert_eq!(why, BadShuffleOptions::Ttl(bad));
            assert!(why.to_string().contains(&SHUFFLE_TTL_MOST_MS.to_string()), "{why}");
        }
        let owner = |owner: &str| ShuffleOptions { owner: owner.to_owned(), ..ShuffleOptions::default() };
        for good in ["", "etl-2.nightly_1", &"o".repeat(SHUFFLE_OWNER_BYTES)] {
            assert_eq!(owner(good).check(), Ok(()), "{good}");
        }
        for bad in ["a b", "ä", "a/b", "a\n", &"o".repeat(SHUFFLE_OWNER_BYTES + 1)] {
            assert!(matches!(owner(bad).check(), Err(BadShuffleOptions::Owner(_))), "{bad}");
        }
        assert_eq!(arrow(&[3, 0], SHUFFLE_SCHEMA_BYTES).check(), Ok(()));
        let large = SHUFFLE_SCHEMA_BYTES + 1;
        assert_eq!(arrow(&[3], large).check(), Err(BadShuffleOptions::Schema(large)));
        assert_eq!(arrow(&[], 1).check(), Err(BadShuffleOptions::SortColumns(0)));
        assert_eq!(arrow(&[3, 1, 3], 1).check(), Err(BadShuffleOptions::SortedTwice(3)));
        let many: Vec<u32> = (0..=SHUFFLE_SORT_COLUMNS as u32).collect();
        assert_eq!(arrow(&many, 1).check(), Err(BadShuffleOptions::SortColumns(many.len())));
    }

    #[test]
    fn each_column_is_sorted_by_or_combined_once() {
        let combined = |columns: &[u32]| {
            let ShuffleOptions { kind: RecordKind::Arrow(kind), .. } = arrow(&[3], 1) else { unreachable!() };
            let of = |column: &u32| CombinedColumn { column: *column, by: ColumnCombine::Sum };
            let kind = ArrowKind { combine: columns.iter().map(of).collect(), ..kind };
            ShuffleOptions { kind: RecordKind::Arrow(kind), ..ShuffleOptions::default() }.check()
        };
        assert_eq!(combined(&[0, 1]), Ok(()));
        assert_eq!(combined(&[0, 3]), Err(BadShuffleOptions::CombinedTwice(3)));
        assert_eq!(combined(&[0, 1, 0]), Err(BadShuffleOptions::CombinedTwice(0)));
        let most: Vec<u32> = (4..4 + SHUFFLE_COMBINED_COLUMNS as u32).collect();
        assert_eq!(combined(&most), Ok(()));
        let many = [&most[..], &[0]].concat();
        assert_eq!(combined(&many), Err(BadShuffleOptions::CombinedColumns(many.len())));
    }

    #[test]
    fn the_first_difference_is_named() {
        let first = arrow(&[3], 2);
        assert_eq!(first.difference(&first.clone()), None);
        assert_eq!(first.difference(&ShuffleOptions::default()), Some(OptionDifference::Kind));
        assert_eq!(first.difference(&arrow(&[2], 2)), Some(OptionDifference::Kind));
        let cases = [
            (ShuffleOptions { unsealed_ttl_ms: Some(7), ..first.clone() }, OptionDifference::UnsealedTtl),
            (ShuffleOptions { sealed_ttl_ms: Some(7), ..first.clone() }, OptionDifference::SealedTtl),
            (ShuffleOptions { owner: "o".to_owned(), ..first.clone() }, OptionDifference::Owner),
        ];
        for (other, difference) in cases {
            assert_eq!(first.difference(&other), Some(difference), "{difference}");
        }
    }
}
