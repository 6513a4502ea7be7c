//! Which partition a key is in, and by which hash the files of a version were written (S7).
//!
//! A batch job has sorted letters into pigeonholes and hands over one sack for each hole. A reader that knows how it sorted
//! need not look at every letter: the sack *is* the hole. Three ways to sort are common in the Java world, and a
//! handful of letters from each sack tells them apart. A sack that is mixed is emptied and sorted anew.
//!
//! - (pa) a key is in partition `(h & 0x7fffffff) mod n`, n the number of files, h one of three [hashes](java);
//! - (pb) [`recognise`] says by which hash a version's files were written: the one under which most sampled keys are in
//!   a file of one partition, and if hardly any are, [`JavaBytes`](Partitioner::JavaBytes);
//! - (pc) it says of which files the sample leaves no doubt that they are one partition. That is a shortcut: a node that
//!   takes such a file whole should look at its keys as they come, and sort them anew from the first that disagrees;
//! - (pd) the same samples give the same answer, in whichever order they come.
//!
//! Where a column of the key decides alone ([`Partitioner::Column`]), rows that agree on it are in one partition (K2). No
//! batch job cuts its files so that this could be recognised: each record is looked at.
//!
//! **Cascading.** It hashes a tuple of one key: h + 31, cut to 31 bits, modulo n. Nearly always that only renames the
//! partitions: file f holds the keys of partition f − 31. But where h + 31 passes the 31-bit limit, 2³¹ is lost on the
//! way, and the key is in the file of another partition ([`Partitioner::alternative`]). So keys near the limit are
//! looked for in both, and do not count against a file.
//!
//! Not done: hashes that are not of the Java world (a version that is sorted by another one is a mixed one), and
//! recognition by file names (`part-00007` says nothing of the hash).

use super::columns;
use partage_core::keyspace::hash::{HashFunction, java};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// All bits but the sign: what Java's partitioners keep.
const LIMIT: u32 = 0x7fff_ffff;

/// What Cascading's tuple adds to the hash of its one element.
const TUPLE: u32 = 31;

/// How unlikely it must be that a mixed file passes for one of one partition: less than one in 2^64.
const CERTAIN_BITS: f64 = 64.0;

/// A hash by which batch jobs cut their output into files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Partitioner {
    /// [`java::bytes`], as Sequins has it; also `String.hashCode` when keys are ASCII.
    #[default]
    JavaBytes,
    /// [`java::string`]: jobs whose keys are Java strings.
    JavaString,
    /// [`java::hadoop`]: jobs whose keys are `Text` or `BytesWritable`.
    HadoopBytes,
    /// [`java::bytes`] of one column of a [key of several](columns), as it stands in the key.
    Column {
        /// The column that decides, from 0.
        column: u8,
        /// How many a key has, 2 or more.
        of: u8,
    },
}

/// A name that no partitioner has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "files are partitioned by java-bytes, java-string, hadoop-bytes or java-bytes:COLUMN/COLUMNS, not by {name:?}: name one \
     of them"
)]
pub struct UnknownPartitioner {
    /// As given, cut to 64 characters.
    pub name: String,
}

impl Partitioner {
    /// All by which a batch job may have cut its files, the default first.
    pub const ALL: [Partitioner; 3] =
        [Partitioner::JavaBytes, Partitioner::JavaString, Partitioner::HadoopBytes];

    /// The hash that is taken.
    pub const fn hash_function(self) -> HashFunction {
        match self {
            Partitioner::JavaBytes | Partitioner::Column { .. } => HashFunction::JavaBytes,
            Partitioner::JavaString => HashFunction::JavaString,
            Partitioner::HadoopBytes => HashFunction::HadoopBytes,
        }
    }

    /// Whether the whole key decides.
    pub const fn is_of_whole_key(self) -> bool {
        !matches!(self, Partitioner::Column { .. })
    }

    /// How many columns a key must have, if this is not one: where it is then follows from nothing.
    pub fn lacks(self, key: &[u8]) -> Option<u8> {
        match self {
            Partitioner::Column { of, .. } if columns::count(key) != usize::from(of) => Some(of),
            _ => None,
        }
    }

    /// The one partition of all keys that begin so, if there is one.
    pub fn partition_of_prefix(self, prefix: &[u8], partitions: u32) -> Option<u32> {
        match self {
            // Behind the column another one has begun, so it is whole.
            Partitioner::Column { column, .. } if columns::count(prefix) > usize::from(column) + 1 => {
                Some(self.partition(prefix, partitions))
            }
            _ => None,
        }
    }

    /// The hash without its sign, below 2^31.
    #[inline]
    pub fn hash(self, key: &[u8]) -> u32 {
        let hash = match self {
            Partitioner::JavaBytes => java::bytes(key),
            Partitioner::JavaString => java::string(key),
            Partitioner::HadoopBytes => java::hadoop(key),
            Partitioner::Column { column, .. } => {
                java::bytes(columns::column(key, column.into()).unwrap_or(key))
            }
        };
        hash & LIMIT
    }

    /// Which of `partitions` the key is in, from 0. A version of no files has one partition, with nothing in it.
    #[inline]
    pub fn partition(self, key: &[u8], partitions: u32) -> u32 {
        self.hash(key) % partitions.max(1)
    }

    /// Where else a key may be that Cascading put into its file: in few versions, and for one key in 67 million.
    /// None when that is nowhere else.
    #[inline]
    pub fn alternative(self, key: &[u8], partitions: u32) -> Option<u32> {
        let hash = self.hash(key);
        if hash < LIMIT - TUPLE || !self.is_of_whole_key() {
            return None;
        }
        let partitions = partitions.max(1);
        let file = ((hash + TUPLE) & LIMIT) % partitions;
        let named = (file + partitions - TUPLE % partitions) % partitions;
        (named != hash % partitions).then_some(named)
    }

    /// The partition, and beside it the [alternative](Self::alternative) if there is one: in this order a reader looks.
    pub fn places(self, key: &[u8], partitions: u32) -> impl Iterator<Item = u32> + use<> {
        std::iter::once(self.partition(key, partitions)).chain(self.alternative(key, partitions))
    }
}

impl fmt::Display for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partitioner::Column { column, of } => {
                f.pad(&format!("{}:{}/{of}", self.hash_function().name(), column + 1))
            }
            _ => f.pad(self.hash_function().name()),
        }
    }
}

impl FromStr for Partitioner {
    type Err = UnknownPartitioner;

    fn from_str(name: &str) -> Result<Partitioner, UnknownPartitioner> {
        let known = |partitioner: &Partitioner| partitioner.hash_function().name() == name;
        let found = Partitioner::ALL.into_iter().find(known).or_else(|| by_column(name));
        found.ok_or_else(|| UnknownPartitioner { name: name.chars().take(64).collect() })
    }
}

/// The partitioner of a name such as `java-bytes:1/2`, in which columns count from 1.
fn by_column(name: &str) -> Option<Partitioner> {
    let (column, of) = name.strip_prefix("java-bytes:")?.split_once('/')?;
    let (column, of) = (column.parse::<u8>().ok()?.checked_sub(1)?, of.parse::<u8>().ok()?);
    let partitioner = Partitioner::Column { column, of };
    let is_one = column < of && (2..=columns::KEY_COLUMNS).contains(&usize::from(of));
    (is_one && partitioner.to_string() == name).then_some(partitioner)
}

/// Some keys of one file of a version.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a, K> {
    /// The file's number among the version's files, from 0.
    pub file: u32,
    /// The keys, as they are looked up: from its beginning, and better also from its middle and end.
    pub keys: &'a [K],
    /// Whether these are all the keys of the file.
    pub is_whole: bool,
}

/// What samples tell of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognised {
    /// The partitioner of its keys at this node.
    pub partitioner: Partitioner,
    /// Whether the batch job did so too: at least half of the sampled keys are in files of one partition.
    pub is_followed: bool,
    /// The files that are one partition beyond reasonable doubt, and which.
    pub whole: BTreeMap<u32, u32>,
}

/// Says by which hash the files of a version were written (pb), and which of them may be taken for one partition (pc).
/// `partitions` is the number of the version's files.
pub fn recognise<K: AsRef<[u8]>>(partitions: u32, samples: &[Sample<'_, K>]) -> Recognised {
    let keys: usize = samples.iter().map(|sample| sample.keys.len()).sum();
    let mut best: Option<(usize, Recognised)> = None;
    for partitioner in Partitioner::ALL {
        let (followed, whole) = followed(partitioner, partitions, samples);
        if best.as_ref().is_none_or(|(most, _)| followed > *most) {
            best = Some((followed, Recognised { partitioner, is_followed: 2 * followed >= keys, whole }));
        }
    }
    let nothing =
        Recognised { partitioner: Partitioner::default(), is_followed: false, whole: BTreeMap::new() };
    best.map(|(_, found)| found).filter(|found| found.is_followed).unwrap_or(nothing)
}

/// How many sampled keys are in files that are of one partition as far as the samples go, and of which files that is
/// certain.
fn followed<K: AsRef<[u8]>>(
    partitioner: Partitioner,
    partitions: u32,
    samples: &[Sample<'_, K>],
) -> (usize, BTreeMap<u32, u32>) {
    let (mut keys, mut whole) = (0, BTreeMap::new());
    for sample in samples {
        let Some(partition) = only_partition(partitioner, partitions, sample.keys) else { continue };
        keys += sample.keys.len();
        let is_certain = || {
            let hashes: BTreeSet<u32> =
                sample.keys.iter().map(|key| partitioner.hash(key.as_ref())).collect();
            (hashes.len() as f64 - 1.0) * f64::from(partitions).log2() >= CERTAIN_BITS
        };
        if sample.is_whole || partitions <= 1 || is_certain() {
            whole.insert(sample.file, partition);
        }
    }
    (keys, whole)
}

/// The one partition in which all keys may be, if there is one.
fn only_partition<K: AsRef<[u8]>>(partitioner: Partitioner, partitions: u32, keys: &[K]) -> Option<u32> {
    let first = keys.first()?.as_ref();
    let may_be_in =
        |key: &[u8], partition| partitioner.places(key, partitions).any(|place| place == partition);
    partitioner
        .places(first, partitions)
        .find(|partition| keys.iter().all(|key| may_be_in(key.as_ref(), *partition)))
}

#[cfg(test)]
mod tests;
