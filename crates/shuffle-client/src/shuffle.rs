//! What a client knows of a shuffle: its handle, and with what it is started.

use crate::{BadShuffleOptions, Combine, Durability, ShuffleId, Terms};
use partage_core::limits::SHUFFLE_WEIGHT;
use partage_shuffle_wire::client::{RecordKind, ShuffleOptions};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Ranges that a shuffle has at most.
const MOST_RANGES: u64 = 65_536;

/// Ranges for each node.
const RANGES_A_NODE: u64 = 10;

/// There is one for each output partition up to so many. Partitions are cut inside of ranges, by counts: more ranges make none of
/// them more even, and what is written at a time of each range smaller.
const RANGES_FOR_PARTITIONS: u64 = 1_024;

/// Bytes of a range: one is sorted in memory.
const RANGE_BYTES: u64 = 24 << 20;

/// The handle of a shuffle: all that a process needs to write to it or read from it. As a text it can be given to another
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shuffle {
    /// Its number, which the client drew when it started the shuffle.
    pub id: ShuffleId,
    /// What it was started with; a process that writes to it needs the same.
    pub terms: Terms,
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terms { stashes, ranges, weight, combine, durability } = self.terms;
        write!(f, "{}-{stashes}-{ranges}", self.id)?;
        // A weight of 1 is not said, so that each handle has one form.
        if weight != 1 {
            write!(f, "-{weight}")?;
        }
        combine.map_or(Ok(()), |how| write!(f, "-{how}"))?;
        match durability {
            Durability::Disk => Ok(()),
            other => write!(f, "-{other}"),
        }
    }
}

/// A text that is no handle of a shuffle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no shuffle: give the handle that `partage shuffle start` has printed")]
pub struct BadHandle(String);

/// The number of a shuffle: 32 hex digits, alone or at the front of a handle.
///
/// # Errors
/// There is none.
pub fn shuffle_id(text: &str) -> Result<ShuffleId, BadHandle> {
    let bad = || BadHandle(text.chars().take(100).collect());
    let digits = text.split('-').next().unwrap_or(text);
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(bad());
    }
    u128::from_str_radix(digits, 16).map(ShuffleId).map_err(|_| bad())
}

impl FromStr for Shuffle {
    type Err = BadHandle;

    fn from_str(text: &str) -> Result<Shuffle, BadHandle> {
        let bad = || BadHandle(text.chars().take(100).collect());
        let id = shuffle_id(text)?;
        let parts: Vec<&str> = text.split('-').skip(1).collect();
        let numbers: Vec<u32> = parts.iter().map_while(|part| part.parse().ok()).collect();
        let (names, durability) = match parts.get(numbers.len()..).unwrap_or_default() {
            [names @ .., last] if *last == Durability::Memory.as_str() => (names, Durability::Memory),
            names => (names, Durability::Disk),
        };
        let combine = match names {
            [] => None,
            name => Some(name.join("-").parse::<Combine>().map_err(|_| bad())?),
        };
        let (stashes, ranges, weight) = match numbers[..] {
            [stashes, ranges] => (stashes, ranges, 1),
            [stashes, ranges, weight] => (stashes, ranges, weight),
            _ => return Err(bad()),
        };
        let weight = u16::try_from(weight).map_err(|_| bad())?;
        if !(1..=SHUFFLE_WEIGHT).contains(&weight) {
            return Err(bad());
        }
        Ok(Shuffle { id, terms: Terms { stashes, ranges, weight, combine, durability } })
    }
}

/// With what a shuffle is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    /// How many partitions it will be read in, about. Any other number can be read too.
    pub partitions: u64,
    /// How many bytes it will have, about; 0: that is not known.
    pub bytes: u64,
    /// How many nodes its pool has, about; 0: as many as the client knows.
    pub nodes: u32,
    /// Its part of the memory of nodes, relative to that of other shuffles: from 1 to 1,000. Others are held back while it has
    /// less than its part, and it is held back beyond it. A shuffle that writes alone has all memory, whatever its weight.
    pub weight: u16,
    /// How records of equal keys become one, of raw records: see [`Combine`]. None: they all remain.
    pub combine: Option<Combine>,
    /// Where its records are when an attempt is acknowledged: on the disks of several nodes, or in the memory of several
    /// machines. What is in memory alone is lost if these machines end at once; then the shuffle fails, or a read of it does.
    pub durability: Durability,
    /// What its records are.
    pub kind: RecordKind,
    /// It ends when it is not sealed and no client has asked for it for so long, 10 s to 30 days; none: what its pool says.
    pub ttl: Option<Duration>,
    /// The same of the sealed shuffle.
    pub sealed_ttl: Option<Duration>,
    /// The owner, for lists and quotas: at most 64 letters of a to z, digits, dots, hyphens and underscores. Empty: none.
    pub owner: String,
}

impl Default for StartOptions {
    fn default() -> StartOptions {
        StartOptions {
            partitions: 1,
            bytes: 0,
            nodes: 0,
            weight: 1,
            combine: None,
            durability: Durability::Disk,
            kind: RecordKind::Raw,
            ttl: None,
            sealed_ttl: None,
            owner: String::new(),
        }
    }
}

impl StartOptions {
    /// The terms that follow from them, for a client that knows so many nodes.
    pub fn terms(&self, known: usize) -> Terms {
        let nodes = if self.nodes == 0 { known as u64 } else { u64::from(self.nodes) };
        let stashes = nodes.saturating_mul(RANGES_A_NODE);
        let ranges =
            stashes.max(self.partitions.min(RANGES_FOR_PARTITIONS)).max(self.bytes.div_ceil(RANGE_BYTES));
        let bounded = |ranges: u64| ranges.clamp(1, MOST_RANGES) as u32;
        let StartOptions { weight, combine, durability, .. } = *self;
        Terms { stashes: bounded(stashes), ranges: bounded(ranges), weight, combine, durability }
    }

    /// Looks whether a shuffle may be started with them, as [`crate::Client::start`] does first.
    ///
    /// # Errors
    /// One is outside of its limits, or malformed.
    pub fn check(&self) -> Result<(), BadShuffleOptions> {
        let options = self.of_shuffle();
        options.check()?;
        options.check_combine(self.combine)
    }

    /// What the leader keeps of them.
    pub fn of_shuffle(&self) -> ShuffleOptions {
        let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        ShuffleOptions {
            kind: self.kind.clone(),
            unsealed_ttl_ms: self.ttl.map(millis),
            sealed_ttl_ms: self.sealed_ttl.map(millis),
            owner: self.owner.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_as_they_are_printed() {
        let shuffle = Shuffle { id: ShuffleId(0xab), terms: Terms::new(30, 64) };
        let text = shuffle.to_string();
        assert_eq!(text, "000000000000000000000000000000ab-30-64");
        assert_eq!(text.parse(), Ok(shuffle));
        assert_eq!(shuffle_id(&text), Ok(shuffle.id));
        assert_eq!(shuffle_id(&text[..32]), Ok(shuffle.id));
        let heavy = Shuffle { terms: Terms { weight: 1_000, ..shuffle.terms }, ..shuffle };
        assert_eq!(heavy.to_string(), format!("{text}-1000"));
        assert_eq!(heavy.to_string().parse(), Ok(heavy));
        assert_eq!(shuffle_id(&heavy.to_string()), Ok(shuffle.id));
        for how in Combine::ALL {
            for heavy in [shuffle, heavy] {
                let one = Shuffle { terms: Terms { combine: Some(how), ..heavy.terms }, ..heavy };
                assert_eq!(one.to_string(), format!("{heavy}-{how}"));
                assert_eq!(one.to_string().parse(), Ok(one));
                let in_memory =
                    Shuffle { terms: Terms { durability: Durability::Memory, ..one.terms }, ..one };
                assert_eq!(in_memory.to_string(), format!("{one}-memory"));
                assert_eq!(in_memory.to_string().parse(), Ok(in_memory));
            }
        }
        let in_memory = format!("{text}-memory").parse::<Shuffle>().unwrap();
        assert_eq!((in_memory.terms.durability, in_memory.terms.combine), (Durability::Memory, None));
        let behind = ["-sum", "-count-2", "-count-count", "-i64", "-0", "-1001", "-70000", "-1-1", "-", "-x"];
        let twice = ["-disk", "-memory-memory", "-memory-count"].map(|more| format!("{text}{more}"));
        let behind = behind.map(|more| format!("{text}{more}"));
        let letters = text.replace('6', "x");
        let others = ["", "ab-1-2", &text[..32], letters.as_str()];
        for bad in behind.iter().chain(&twice).map(String::as_str).chain(others) {
            assert!(bad.parse::<Shuffle>().is_err(), "{bad:?}");
        }
        assert!(shuffle_id("+00000000000000000000000000000ab").is_err());
    }

    #[test]
    fn rows_are_not_combined_as_raw_records_are() {
        use crate::ArrowKind;
        let order = vec![crate::SortColumn { column: 0, descends: false, nulls_first: false }];
        let kind = ArrowKind { encoding: 1, schema: b"s".as_slice().into(), order, combine: Vec::new() };
        let combine = Some(Combine::Count);
        let raw = StartOptions { combine, ..StartOptions::default() };
        assert_eq!((raw.check(), raw.terms(1).combine), (Ok(()), combine));
        let rows = StartOptions { kind: RecordKind::Arrow(kind), ..raw };
        assert_eq!(rows.check(), Err(BadShuffleOptions::CombinesRows(Combine::Count)));
        assert_eq!(StartOptions { combine: None, ..rows }.check(), Ok(()));
    }

    #[test]
    fn ranges_are_for_partitions_nodes_and_bytes() {
        let options = |partitions, bytes| StartOptions { partitions, bytes, ..StartOptions::default() };
        assert_eq!(options(1, 0).terms(3), Terms::new(30, 30));
        assert_eq!(options(256, 0).terms(3), Terms::new(30, 256));
        assert_eq!(options(1, 10 << 30).terms(3), Terms::new(30, 427));
        assert_eq!(options(256, 10 << 30).terms(3), Terms::new(30, 427));
        assert_eq!(options(u64::MAX, 0).terms(3), Terms::new(30, 1_024));
        assert_eq!(options(1, u64::MAX).terms(3).ranges, 65_536);
        assert_eq!(options(256, 0).terms(100), Terms::new(1_000, 1_000));
        assert_eq!(StartOptions { nodes: 7, ..options(1, 0) }.terms(3).stashes, 70);
        assert_eq!(StartOptions { weight: 9, ..options(1, 0) }.terms(3).weight, 9);
        let in_memory = StartOptions { durability: Durability::Memory, ..options(1, 0) };
        assert_eq!(in_memory.terms(3), Terms { durability: Durability::Memory, ..Terms::new(30, 30) });
    }

    #[test]
    fn times_to_live_and_owner_go_to_the_leader() {
        let options = StartOptions {
            ttl: Some(Duration::from_secs(20)),
            owner: "etl".to_owned(),
            ..StartOptions::default()
        };
        let told = options.of_shuffle();
        assert_eq!((told.unsealed_ttl_ms, told.sealed_ttl_ms), (Some(20_000), None));
        assert_eq!((told.owner.as_str(), options.check()), ("etl", Ok(())));
        let bad = StartOptions { sealed_ttl: Some(Duration::MAX), ..options };
        assert_eq!(bad.check(), Err(BadShuffleOptions::Ttl(u64::MAX)));
    }
}
