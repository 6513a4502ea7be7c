//! What a reader wants to know of the order of a range without its records: where cuts fall, and which keys are heavy.
//!
//! A holder answers from the one order that all holders have: so each of them gives the same answer, and no range is sent to find
//! a cut in it. It looks at the records that the question is about, and not at all of a range ([`super::ordered`]). The keys that
//! bound n partitions are found in one question for each range that has a bound, and one more where a partition begins behind the
//! last record of a range ([`BoundKeys`]).

use super::Bytes;
use super::partition::{self, Cut, CutAt, CutBy, Edge, HeavyKey};
use super::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A question about the order of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seek {
    /// What the shuffle is read by.
    pub plan: Arc<Plan>,
    /// The place of the range in the plan.
    pub range: usize,
    /// What is sought in it.
    pub what: SeekFor,
}

/// What is sought in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeekFor {
    /// The cuts nearest to these offsets from its begin: bytes where cuts are by bytes, else records.
    Cuts(CutBy, BTreeSet<u64>),
    /// The heavy keys of it.
    HeavyKeys {
        /// They have more records than this.
        more_than: u64,
        /// Only those whose first record is here or behind it.
        from: u64,
    },
}

/// What a holder has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The cuts, in the order of their offsets: of all that were asked for, or of the first ones.
    Cuts(Vec<CutAt>),
    /// Heavy keys, in order, each with the place of its first record in the range.
    HeavyKeys {
        /// The keys, the first ones if they are too many for an answer.
        keys: Vec<HeavyKey>,
        /// Whether others come behind them, which are to be asked for.
        has_more: bool,
    },
}

impl Seek {
    /// The answer, by all records of the range in order, each with its key and bytes. It says what an answer is: holders have the
    /// same of [`Seek::within`].
    pub fn of<K: AsRef<[u8]> + PartialEq>(&self, records: impl IntoIterator<Item = (K, u64)>) -> Found {
        match &self.what {
            SeekFor::Cuts(by, offsets) => Found::Cuts(partition::cuts_at(*by, records, offsets)),
            SeekFor::HeavyKeys { more_than, from } => {
                let keys = records.into_iter().map(|(key, _)| key);
                let mut keys = partition::heavy_keys(keys, *more_than);
                keys.retain(|one| one.first >= *from);
                Found::HeavyKeys { keys, has_more: false }
            }
        }
    }
}

impl Found {
    /// What a cut or a heavy key has besides its key, in bytes, at most.
    pub(super) const AROUND: u64 = 32;

    /// What it takes in memory, in bytes.
    pub fn memory(&self) -> u64 {
        let key = |key: Option<&Bytes>| Found::AROUND + key.map_or(0, |key| key.len() as u64);
        match self {
            Found::Cuts(cuts) => cuts.iter().map(|cut| key(cut.key.as_ref())).sum(),
            Found::HeavyKeys { keys, .. } => keys.iter().map(|one| key(Some(&one.key))).sum(),
        }
    }

    /// The front of it: as much as one answer may have by the bytes of its keys, and one cut or key at least. The reader asks
    /// for what is behind it.
    pub fn bounded(self, most_bytes: u64) -> Found {
        let mut bytes = 0;
        let mut is_within = |key: usize| {
            bytes += Found::AROUND + key as u64;
            bytes <= most_bytes
        };
        match self {
            Found::Cuts(mut cuts) => {
                let key = |cut: &CutAt| cut.key.as_ref().map_or(0, |key| key.len());
                let within = cuts.iter().take_while(|cut| is_within(key(cut))).count();
                cuts.truncate(within.max(1));
                Found::Cuts(cuts)
            }
            Found::HeavyKeys { mut keys, has_more } => {
                let within = keys.iter().take_while(|one| is_within(one.key.len())).count().max(1);
                let has_more = has_more || within < keys.len();
                keys.truncate(within);
                Found::HeavyKeys { keys, has_more }
            }
        }
    }
}

impl SeekFor {
    /// What is left to be sought behind an answer; none: that was all.
    ///
    /// # Errors
    /// The answer is of something else, or of nothing.
    pub fn behind(&self, found: &Found) -> Result<Option<SeekFor>, OtherAnswer> {
        match (self, found) {
            (SeekFor::Cuts(by, offsets), Found::Cuts(cuts)) => {
                let is_some = offsets.is_empty() || !cuts.is_empty();
                if !is_some || cuts.len() > offsets.len() {
                    return Err(OtherAnswer);
                }
                let left: BTreeSet<u64> = offsets.iter().skip(cuts.len()).copied().collect();
                Ok((!left.is_empty()).then_some(SeekFor::Cuts(*by, left)))
            }
            (SeekFor::HeavyKeys { more_than, .. }, Found::HeavyKeys { keys, has_more: true }) => {
                let last = keys.last().ok_or(OtherAnswer)?;
                let from = last.first.saturating_add(last.records.max(1));
                Ok(Some(SeekFor::HeavyKeys { more_than: *more_than, from }))
            }
            (SeekFor::HeavyKeys { .. }, Found::HeavyKeys { has_more: false, .. }) => Ok(None),
            _ => Err(OtherAnswer),
        }
    }
}

/// An answer to another question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the holder has answered something else than it was asked")]
pub struct OtherAnswer;

/// A place in a range that is sought: the range, how its offset counts, and the offset.
type Spot = (usize, CutBy, u64);

/// The keys that bound partitions, as far as they are known: the first key, that of each later partition, and the last key.
#[derive(Debug, Clone)]
pub struct BoundKeys {
    held: Vec<(u64, u64)>,
    spots: Vec<Spot>,
    /// Where the last record is.
    last: Spot,
    found: BTreeMap<Spot, CutAt>,
}

impl BoundKeys {
    /// Of `n` partitions of ranges with so many records and bytes. Without records there are none.
    pub fn new(held: Vec<(u64, u64)>, n: u64, by: CutBy) -> BoundKeys {
        let last = held.iter().rposition(|(records, _)| *records > 0);
        let last = last.and_then(|range| Some((range, CutBy::Records, held.get(range)?.0 - 1)));
        let Some(last) = last else {
            return BoundKeys {
                held,
                spots: Vec::new(),
                last: (0, CutBy::Records, 0),
                found: BTreeMap::new(),
            };
        };
        let spot = |i| match partition::edge(&held, (i, n), by) {
            Edge::At(Cut { range, offset: 0 }) => first_from(&held, range).unwrap_or(last),
            Edge::At(Cut { range, offset }) => (range, CutBy::Records, offset),
            Edge::Near(Cut { range, offset }) => (range, by, offset),
        };
        let spots = (0..n).map(spot).chain([last]).collect();
        BoundKeys { held, spots, last, found: BTreeMap::new() }
    }

    /// What is to be sought next, one question for each range and way to count; nothing: all is known.
    pub fn seeks(&self) -> Vec<(usize, SeekFor)> {
        let unknown = self.spots.iter().filter_map(|spot| self.key(*spot).err());
        let mut seeks: BTreeMap<(usize, CutBy), BTreeSet<u64>> = BTreeMap::new();
        for (range, by, offset) in unknown {
            seeks.entry((range, by)).or_default().insert(offset);
        }
        seeks.into_iter().map(|((range, by), offsets)| (range, SeekFor::Cuts(by, offsets))).collect()
    }

    /// Takes in what was found of a question.
    pub fn found(&mut self, range: usize, what: &SeekFor, found: Found) {
        if let (SeekFor::Cuts(by, offsets), Found::Cuts(cuts)) = (what, found) {
            self.found.extend(offsets.iter().map(|offset| (range, *by, *offset)).zip(cuts));
        }
    }

    /// The keys, as far as they are known: one more than there are partitions, or none if there are no records.
    pub fn keys(&self) -> Vec<Bytes> {
        self.spots.iter().filter_map(|spot| self.key(*spot).ok().flatten().cloned()).collect()
    }

    /// The key at a spot; else the spot that is not known yet. A partition that begins behind the last record of a range begins
    /// with the next range; one behind all records has the last key.
    fn key(&self, mut spot: Spot) -> Result<Option<&Bytes>, Spot> {
        loop {
            match self.found.get(&spot) {
                None => return Err(spot),
                Some(CutAt { key: Some(key), .. }) => return Ok(Some(key)),
                Some(_) if spot == self.last => return Ok(None),
                Some(_) => spot = first_from(&self.held, spot.0 + 1).unwrap_or(self.last),
            }
        }
    }
}

/// The first record of a range or of those behind it.
fn first_from(held: &[(u64, u64)], range: usize) -> Option<Spot> {
    let mut ranges = held.iter().enumerate().skip(range);
    ranges.find(|(_, (records, _))| *records > 0).map(|(range, _)| (range, CutBy::Records, 0))
}

/// What is to be sought for the keys that have more records than any of `n` partitions: ranges with fewer records are left out.
pub fn heavy_seeks(held: &[(u64, u64)], n: u64) -> Vec<(usize, SeekFor)> {
    let total: u64 = held.iter().map(|(records, _)| records).sum();
    let more_than = total.div_ceil(n.max(1));
    let heavy = held.iter().enumerate().filter(|(_, (records, _))| *records > more_than);
    heavy.map(|(range, _)| (range, SeekFor::HeavyKeys { more_than, from: 0 })).collect()
}

/// The heavy keys that were found in a range, with the ranks of their first records among all.
pub fn ranked(held: &[(u64, u64)], range: usize, found: Found) -> Vec<HeavyKey> {
    let Found::HeavyKeys { keys, .. } = found else { return Vec::new() };
    let before: u64 = held.iter().take(range).map(|(records, _)| records).sum();
    keys.into_iter().map(|one| HeavyKey { first: before.saturating_add(one.first), ..one }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type RangeRecords = Vec<(Bytes, u64)>;

    /// Ranges of ordered keys, few of them different, with bytes that differ, and some without any.
    fn ranges() -> impl Strategy<Value = Vec<RangeRecords>> {
        let range = proptest::collection::vec((0u8..6, 0u64..9), 0..40);
        proptest::collection::vec(range, 1..6).prop_map(|ranges| {
            let of = |(at, mut range): (usize, Vec<(u8, u64)>)| {
                range.sort();
                let key = |key: u8| Bytes::from([at as u8, key].as_slice());
                range.into_iter().map(|(one, bytes)| (key(one), bytes)).collect()
            };
            ranges.into_iter().enumerate().map(of).collect()
        })
    }

    fn held(ranges: &[RangeRecords]) -> Vec<(u64, u64)> {
        let of = |range: &RangeRecords| (range.len() as u64, range.iter().map(|(_, bytes)| *bytes).sum());
        ranges.iter().map(of).collect()
    }

    /// A holder of all ranges, whose answers have few keys.
    fn answer(ranges: &[RangeRecords], range: usize, what: &SeekFor) -> Found {
        let plan = Arc::new(Plan {
            shuffle: super::super::ShuffleId(1),
            winners: Arc::default(),
            needed: BTreeMap::new(),
            ranges: Vec::new(),
        });
        let seek = Seek { plan, range, what: what.clone() };
        seek.of(ranges[range].iter().map(|(key, bytes)| (key, *bytes))).bounded(3 * Found::AROUND)
    }

    /// All answers to a question, until nothing is left.
    fn all_of(ranges: &[RangeRecords], range: usize, what: SeekFor) -> Vec<(SeekFor, Found)> {
        let (mut answers, mut left) = (Vec::new(), Some(what));
        while let Some(what) = left {
            let found = answer(ranges, range, &what);
            left = what.behind(&found).unwrap();
            answers.push((what, found));
        }
        answers
    }

    proptest! {
        #[test]
        fn x13_bounds_are_the_keys_at_which_partitions_begin(
            ranges in ranges(), n in 1u64..200,
            by in proptest::sample::select(vec![CutBy::Records, CutBy::Bytes, CutBy::Keys]),
        ) {
            let (held, all) = (held(&ranges), ranges.concat());
            let mut bounds = BoundKeys::new(held.clone(), n, by);
            let mut rounds = 0;
            loop {
                let seeks = bounds.seeks();
                if seeks.is_empty() {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds <= 2, "one question for each range, and one for those that follow");
                for (range, what) in seeks {
                    prop_assert!(held[range].0 > 0, "nothing is sought where nothing is");
                    for (what, found) in all_of(&ranges, range, what) {
                        bounds.found(range, &what, found);
                    }
                }
            }
            let keys = bounds.keys();
            if all.is_empty() {
                prop_assert!(keys.is_empty());
                return Ok(());
            }
            prop_assert_eq!(keys.len() as u64, n + 1);
            prop_assert!(keys.is_sorted());
            prop_assert_eq!((&keys[0], keys.last().unwrap()), (&all[0].0, &all[all.len() - 1].0));
            for i in 0..n {
                let begins: u64 = match partition::edge(&held, (i, n), by) {
                    Edge::At(cut) => held[..cut.range].iter().map(|(records, _)| records).sum::<u64>() + cut.offset,
                    Edge::Near(cut) => {
                        let records = ranges[cut.range].iter().map(|(key, bytes)| (key, *bytes));
                        let record = partition::cuts_at(by, records, &[cut.offset].into())[0].record;
                        held[..cut.range].iter().map(|(records, _)| records).sum::<u64>() + record
                    }
                };
                let at = (begins as usize).min(all.len() - 1);
                prop_assert_eq!(&keys[i as usize], &all[at].0, "bound {} of {}", i, n);
            }
        }

        #[test]
        fn x14_heavy_keys_are_found_with_their_ranks(ranges in ranges(), n in 1u64..20) {
            let (held, all) = (held(&ranges), ranges.concat());
            let mut heavy = Vec::new();
            for (range, what) in heavy_seeks(&held, n) {
                for (_, found) in all_of(&ranges, range, what) {
                    heavy.extend(ranked(&held, range, found));
                }
            }
            let most = all.len().div_ceil(n as usize);
            let runs = all.chunk_by(|one, other| one.0 == other.0).filter(|run| run.len() > most);
            let expected: Vec<(&Bytes, u64)> = runs.map(|run| (&run[0].0, run.len() as u64)).collect();
            prop_assert_eq!(heavy.iter().map(|one| (&one.key, one.records)).collect::<Vec<_>>(), expected);
            for HeavyKey { key, first, records } in heavy {
                prop_assert!(all[first as usize..(first + records) as usize].iter().all(|one| one.0 == key));
            }
        }
    }

    #[test]
    fn r1_an_answer_has_an_end_and_one_cut_at_least() {
        let cut = |bytes: usize| CutAt { record: 0, key: Some(vec![0; bytes].into()) };
        let count = |found: Found| match found {
            Found::Cuts(cuts) => cuts.len(),
            Found::HeavyKeys { keys, .. } => keys.len(),
        };
        assert_eq!(count(Found::Cuts(vec![cut(1_000); 5]).bounded(3_200)), 3);
        assert_eq!(count(Found::Cuts(vec![cut(1_000); 5]).bounded(10)), 1);
        assert_eq!(count(Found::Cuts(Vec::new()).bounded(10)), 0);
        let key = HeavyKey { key: vec![0; 1_000].into(), first: 7, records: 3 };
        let keys = Found::HeavyKeys { keys: vec![key; 5], has_more: false }.bounded(3_200);
        let what = SeekFor::HeavyKeys { more_than: 2, from: 0 };
        assert_eq!(what.behind(&keys), Ok(Some(SeekFor::HeavyKeys { more_than: 2, from: 10 })));
        assert_eq!(count(keys), 3);
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let cuts = SeekFor::Cuts(CutBy::Bytes, [1, 2].into());
        let heavy = SeekFor::HeavyKeys { more_than: 1, from: 0 };
        let at = CutAt { record: 1, key: None };
        let none = Found::HeavyKeys { keys: Vec::new(), has_more: true };
        assert_eq!(cuts.behind(&none), Err(OtherAnswer));
        assert_eq!(heavy.behind(&none), Err(OtherAnswer));
        assert_eq!(heavy.behind(&Found::Cuts(Vec::new())), Err(OtherAnswer));
        assert_eq!(cuts.behind(&Found::Cuts(Vec::new())), Err(OtherAnswer));
        assert_eq!(cuts.behind(&Found::Cuts(vec![at.clone(); 3])), Err(OtherAnswer));
        assert_eq!(
            cuts.behind(&Found::Cuts(vec![at.clone()])),
            Ok(Some(SeekFor::Cuts(CutBy::Bytes, [2].into())))
        );
        assert_eq!(cuts.behind(&Found::Cuts(vec![at; 2])), Ok(None));
    }
}
