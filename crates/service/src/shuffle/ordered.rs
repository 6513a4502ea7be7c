//! How a holder finds what is sought in a range without looking at all of its records.
//!
//! | sought | what it looks at |
//! |---|---|
//! | a cut at a record | that record |
//! | a cut between keys | the record at the offset, and where the records with its key begin and end |
//! | a cut at bytes | what the range itself goes by: the bytes before records, of each in memory, and of some in a file |
//! | heavy keys | one record in half as many as a heavy key has; where two of these in a row have one key, its begin and its end |
//!
//! The answers are those of [`Seek::of`], which looks at all of them.

use super::Bytes;
use super::ordered_records::OrderedRecords;
use super::partition::{CutAt, CutBy, HeavyKey};
use super::seek::{Found, Seek, SeekFor};
use std::collections::BTreeSet;
use std::convert::Infallible;

/// The records of a range in order, any of which is found without those before it.
pub trait Ordered {
    /// Why a record is not read.
    type Error;

    /// How many records there are.
    fn count(&self) -> u64;

    /// The key of the record at that place, which is below the count.
    fn key_at(&self, at: u64) -> Result<Bytes, Self::Error>;

    /// Where the records with the key of that record begin and end.
    fn run_at(&self, at: u64, key: &Bytes) -> Result<(u64, u64), Self::Error>;

    /// The cuts nearest to these bytes from the begin, as [`super::partition::cuts_at`] has them.
    fn cuts_at_bytes(&self, offsets: &BTreeSet<u64>) -> Result<Vec<CutAt>, Self::Error>;

    /// How many cuts one answer has at most: each may have to wait for a disk.
    fn cuts_at_once(&self) -> usize {
        usize::MAX
    }
}

impl Ordered for OrderedRecords {
    type Error = Infallible;

    fn count(&self) -> u64 {
        self.len() as u64
    }

    fn key_at(&self, at: u64) -> Result<Bytes, Infallible> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        Ok(self.key(at).map(Bytes::from).unwrap_or_default())
    }

    fn run_at(&self, at: u64, key: &Bytes) -> Result<(u64, u64), Infallible> {
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.len());
        let begin = self.first_key(0..at, |one| one < &key[..]);
        let end = self.first_key(at..self.len(), |one| one <= &key[..]);
        Ok((begin as u64, end as u64))
    }

    fn cuts_at_bytes(&self, offsets: &BTreeSet<u64>) -> Result<Vec<CutAt>, Infallible> {
        let mut cuts: Vec<CutAt> = Vec::with_capacity(offsets.len());
        for offset in offsets {
            let record = self.first_at_bytes(*offset);
            // Many offsets may lie in one record: they share its key.
            let key = match cuts.last() {
                Some(last) if last.record == record as u64 => last.key.clone(),
                _ => self.key(record).map(Bytes::from),
            };
            cuts.push(CutAt { record: record as u64, key });
        }
        Ok(cuts)
    }
}

impl Seek {
    /// The answer, as much of it as one may have ([`Found::bounded`]).
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn within<O: Ordered + ?Sized>(&self, records: &O, most_bytes: u64) -> Result<Found, O::Error> {
        let found = match &self.what {
            SeekFor::Cuts(by, offsets) => {
                let mut offsets = offsets.clone();
                if let Some(first_left) = offsets.iter().nth(records.cuts_at_once()).copied() {
                    drop(offsets.split_off(&first_left));
                }
                Found::Cuts(match by {
                    CutBy::Records => cuts_at_records(records, &offsets, most_bytes)?,
                    CutBy::Bytes => records.cuts_at_bytes(&offsets)?,
                    CutBy::Keys => cuts_between_keys(records, &offsets, most_bytes)?,
                })
            }
            SeekFor::HeavyKeys { more_than, from } => {
                let keys = heavy_keys(records, *more_than, *from, most_bytes)?;
                Found::HeavyKeys { keys, has_more: false }
            }
        };
        Ok(found.bounded(most_bytes))
    }
}

/// Counts the keys of an answer, to end with the first one that has no room.
struct Room {
    left: u64,
    keys: usize,
}

impl Room {
    fn new(most_bytes: u64) -> Room {
        Room { left: most_bytes, keys: 0 }
    }

    /// Whether more is to be looked for behind a cut or key: one is always told, and whether others follow.
    fn goes_on(&mut self, key: Option<&Bytes>) -> bool {
        let bytes = Found::AROUND + key.map_or(0, |key| key.len() as u64);
        self.keys += 1;
        let fits = bytes <= self.left;
        self.left = self.left.saturating_sub(bytes);
        if !fits {
            self.left = 0;
        }
        fits || self.keys < 2
    }
}

fn cuts_at_records<O: Ordered + ?Sized>(
    records: &O,
    offsets: &BTreeSet<u64>,
    most_bytes: u64,
) -> Result<Vec<CutAt>, O::Error> {
    let (count, mut cuts, mut room) = (records.count(), Vec::new(), Room::new(most_bytes));
    for offset in offsets {
        let record = count.min(*offset);
        let key = if record < count { Some(records.key_at(record)?) } else { None };
        let goes_on = room.goes_on(key.as_ref());
        cuts.push(CutAt { record, key });
        if !goes_on {
            break;
        }
    }
    Ok(cuts)
}

/// The records of one key: where they begin and end, the key, and that of the record behind them.
struct Run {
    begin: u64,
    end: u64,
    key: Bytes,
    next: Option<Bytes>,
}

impl Run {
    fn at<O: Ordered + ?Sized>(records: &O, at: u64) -> Result<Run, O::Error> {
        let key = records.key_at(at)?;
        let (begin, end) = records.run_at(at, &key)?;
        let next = if end < records.count() { Some(records.key_at(end)?) } else { None };
        Ok(Run { begin, end, key, next })
    }

    /// Where it begins or ends, whichever is nearer to a record of it.
    fn cut(&self, offset: u64) -> CutAt {
        if offset.saturating_sub(self.begin) <= self.end.saturating_sub(offset) {
            CutAt { record: self.begin, key: Some(self.key.clone()) }
        } else {
            CutAt { record: self.end, key: self.next.clone() }
        }
    }
}

fn cuts_between_keys<O: Ordered + ?Sized>(
    records: &O,
    offsets: &BTreeSet<u64>,
    most_bytes: u64,
) -> Result<Vec<CutAt>, O::Error> {
    let (count, mut cuts, mut room) = (records.count(), Vec::new(), Room::new(most_bytes));
    let mut last: Option<Run> = None;
    for offset in offsets {
        let cut = if *offset < count {
            // Offsets come in order: many of them may be in the records of one key.
            let run = match last.take() {
                Some(run) if *offset < run.end => run,
                _ => Run::at(records, *offset)?,
            };
            last.insert(run).cut(*offset)
        } else {
            CutAt { record: count, key: None }
        };
        let goes_on = room.goes_on(cut.key.as_ref());
        cuts.push(cut);
        if !goes_on {
            break;
        }
    }
    Ok(cuts)
}

fn heavy_keys<O: Ordered + ?Sized>(
    records: &O,
    more_than: u64,
    from: u64,
    most_bytes: u64,
) -> Result<Vec<HeavyKey>, O::Error> {
    // More records than that have two or more of the places that are so far apart, one behind the other.
    let step = more_than.div_ceil(2).max(1);
    let next = |at: u64| at.checked_next_multiple_of(step).unwrap_or(u64::MAX);
    let (count, mut keys, mut room) = (records.count(), Vec::new(), Room::new(most_bytes));
    let (mut at, mut before) = (next(from), None);
    while at < count {
        let key = records.key_at(at)?;
        if more_than > 0 && before.as_ref() != Some(&key) {
            (at, before) = (at.saturating_add(step), Some(key));
            continue;
        }
        let (first, end) = records.run_at(at, &key)?;
        if end.saturating_sub(first) > more_than && first >= from {
            let goes_on = room.goes_on(Some(&key));
            keys.push(HeavyKey { key, first, records: end - first });
            if !goes_on {
                break;
            }
        }
        (at, before) = (next(end.max(at.saturating_add(1))), None);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::ShuffleId;
    use crate::shuffle::plan::{Placed, Plan};
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn seek(what: SeekFor) -> Seek {
        let (winners, needed) = (BTreeMap::new(), BTreeMap::new());
        let plan =
            Arc::new(Plan { shuffle: ShuffleId(1), winners: Arc::new(winners), needed, ranges: Vec::new() });
        Seek { plan, range: 0, what }
    }

    fn placed(key: &[u8], value: usize) -> Placed {
        let key = bytes::Bytes::copy_from_slice(key);
        Placed { key, partition: 0, frame: 1, index: 0, value: vec![0; value].into() }
    }

    /// Ordered records of few keys, some of them many times.
    fn records() -> impl Strategy<Value = OrderedRecords> {
        let run = (prop::collection::vec(0u8..3, 0..3), prop_oneof![1usize..4, 1usize..60], 0usize..9);
        prop::collection::vec(run, 0..12).prop_map(|runs| {
            let of = |(key, count, value): (Vec<u8>, usize, usize)| {
                (0..count).map(move |at| placed(&key, value * (at % 2)))
            };
            let mut all: Vec<Placed> = runs.into_iter().flat_map(of).collect();
            all.sort();
            OrderedRecords::of(&all).unwrap()
        })
    }

    fn what() -> impl Strategy<Value = SeekFor> {
        let by = prop::sample::select(vec![CutBy::Records, CutBy::Bytes, CutBy::Keys]);
        prop_oneof![
            (by, prop::collection::btree_set(0u64..300, 0..12)).prop_map(|(by, at)| SeekFor::Cuts(by, at)),
            (0u64..40, 0u64..100).prop_map(|(more_than, from)| SeekFor::HeavyKeys { more_than, from }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn x13_x14_what_is_found_is_what_all_records_say(
            records in records(), what in what(), most_bytes in prop_oneof![0u64..200, Just(u64::MAX)],
        ) {
            let seek = seek(what);
            let Ok(found) = seek.within(&records, most_bytes);
            prop_assert_eq!(found, seek.of(records.iter().map(|one| one.sized())).bounded(most_bytes));
        }
    }

    /// A range of so many records, each key the place divided by the length of a run, that counts the looks at it.
    struct Counted {
        count: u64,
        run: u64,
        looks: Cell<u64>,
    }

    impl Ordered for Counted {
        type Error = Infallible;

        fn count(&self) -> u64 {
            self.count
        }

        fn key_at(&self, at: u64) -> Result<Bytes, Infallible> {
            self.looks.set(self.looks.get() + 1);
            Ok((at / self.run).to_be_bytes().as_slice().into())
        }

        fn run_at(&self, at: u64, _: &Bytes) -> Result<(u64, u64), Infallible> {
            self.looks.set(self.looks.get() + 1);
            let begin = at - at % self.run;
            Ok((begin, self.count.min(begin + self.run)))
        }

        fn cuts_at_bytes(&self, _: &BTreeSet<u64>) -> Result<Vec<CutAt>, Infallible> {
            Ok(Vec::new())
        }

        fn cuts_at_once(&self) -> usize {
            3
        }
    }

    #[test]
    fn r1_a_question_about_a_long_range_looks_at_few_of_its_records() {
        let looks = |what: SeekFor, run: u64| {
            let range = Counted { count: 100_000_000, run, looks: Cell::new(0) };
            let Ok(found) = seek(what).within(&range, u64::MAX);
            (found, range.looks.get())
        };
        for by in [CutBy::Records, CutBy::Keys] {
            for run in [1, 1_000, 90_000_000] {
                let (found, looks) =
                    looks(SeekFor::Cuts(by, (1..=20).map(|at| at * 1_000_000).collect()), run);
                assert!(looks <= 9, "{looks} looks for {found:?}");
                assert!(matches!(found, Found::Cuts(cuts) if cuts.len() == 3), "the rest is asked for again");
            }
        }
        for (run, heavy) in [(1, 0), (1_000_000, 0), (40_000_000, 3)] {
            let (found, looks) = looks(SeekFor::HeavyKeys { more_than: 10_000_000, from: 0 }, run);
            assert!(looks <= 60, "{looks} looks for {found:?}");
            assert!(matches!(found, Found::HeavyKeys { keys, has_more: false } if keys.len() == heavy));
        }
    }
}
