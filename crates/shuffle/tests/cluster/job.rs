//! One shuffle: generator of its input, clients that write it, readers that check it.

use crate::nodes::{Cluster, NODES, pause};
use partage_service::shuffle::Bytes;
use partage_service::shuffle::Terms;
use partage_service::shuffle::message::Word;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::plan::{Placed, Plan};
use partage_service::shuffle::record::Record;
use partage_service::shuffle::records::PackedRecords;
use partage_shuffle::node::client::{ClientError, PutError, ReadError, Sealed, Shuffle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records of one piece of an attempt.
const PIECE: usize = 500;

/// Clients that write at a time.
const CLIENTS: usize = 4;

/// Which keys the records of a job have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Many are there more than once, and some of them often.
    Mixed,
    /// All have the same.
    Equal,
}

pub struct Job {
    pub shuffle: Shuffle,
    keys: Keys,
    partitions: u32,
    records: u64,
    /// All records, in the order in which they are to be read.
    expected: Vec<(Vec<u8>, Vec<u8>)>,
    pieces: AtomicU64,
    again: AtomicU64,
    /// How long a client rests after each piece, in milliseconds.
    pace_ms: u64,
}

/// Numbers that look random and are the same at each run (Steele, Lea, Flood: SplitMix).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A record of 10 bytes of key and 22 of value.
fn record(keys: Keys, partition: u32, at: u64) -> (Vec<u8>, Vec<u8>) {
    let lot = mixed(u64::from(partition) << 40 | at);
    let is_same = keys == Keys::Equal || lot.is_multiple_of(50);
    let key = if is_same { mixed(7) } else { mixed(lot % 60_000) };
    let mut bytes = key.to_be_bytes().to_vec();
    bytes.extend_from_slice(b"..");
    let mut value = partition.to_be_bytes().to_vec();
    value.extend_from_slice(&at.to_be_bytes());
    value.resize(22, b'v');
    (bytes, value)
}

impl Job {
    pub fn start(cluster: &Cluster, partitions: u32, records: u64) -> Job {
        Job::start_of(cluster, Keys::Mixed, partitions, records)
    }

    pub fn start_of(cluster: &Cluster, keys: Keys, partitions: u32, records: u64) -> Job {
        Job::start_as(cluster, Terms::new(30, 48), keys, (partitions, records))
    }

    /// By these terms.
    pub fn start_as(cluster: &Cluster, terms: Terms, keys: Keys, (partitions, records): (u32, u64)) -> Job {
        let shuffle = cluster.client(0).start(terms).unwrap();
        let all =
            (0..partitions).flat_map(|partition| (0..records).map(move |at| record(keys, partition, at)));
        let mut expected: Vec<_> = all.collect();
        // Stable: records of one key stay in the order of partition and place.
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        let (pieces, again) = Default::default();
        Job { shuffle, keys, partitions, records, expected, pieces, again, pace_ms: 0 }
    }

    /// The same with clients that rest for so long after each piece.
    pub fn paced(self, pace_ms: u64) -> Job {
        Job { pace_ms, ..self }
    }

    /// Pieces that buffers have taken.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Acquire)
    }

    pub fn attempts_run_again(&self) -> u64 {
        self.again.load(Ordering::Acquire)
    }

    /// Writes all partitions, by some clients at a time.
    pub fn write(&self, cluster: &Cluster) {
        std::thread::scope(|scope| {
            for first in 0..CLIENTS {
                scope.spawn(move || {
                    for partition in (first as u32..self.partitions).step_by(CLIENTS) {
                        self.write_partition(cluster, partition);
                    }
                });
            }
        });
    }

    /// Runs attempts until one is stored. No error but "run it again" may come.
    fn write_partition(&self, cluster: &Cluster, partition: u32) {
        for attempt in 0..200 {
            match self.attempt(cluster, partition, partition as usize + attempt) {
                Ok(()) => return,
                Err(error) => {
                    assert!(error.runs_again(), "{error}");
                    self.again.fetch_add(1, Ordering::AcqRel);
                    pause(50);
                }
            }
        }
        panic!("partition {partition} was never stored");
    }

    pub fn attempt(&self, cluster: &Cluster, partition: u32, node: usize) -> Result<(), PutError> {
        let put = cluster.client(node).open(self.shuffle, partition);
        let Ok(mut put) = put else { return Err(PutError::Stopped) };
        let records = (0..self.records).map(|at| record(self.keys, partition, at));
        let records = records.map(|(key, value)| Record { key: key.into(), value: value.into() });
        let records: Vec<Record> = records.collect();
        for piece in records.chunks(PIECE) {
            put.put(PackedRecords::of(piece))?;
            self.pieces.fetch_add(1, Ordering::AcqRel);
            if self.pace_ms > 0 {
                pause(self.pace_ms);
            }
        }
        put.end()
    }

    pub fn seal(&self, cluster: &Cluster) -> Arc<Plan> {
        for node in 0..100 {
            match cluster.client(node % NODES).seal(self.shuffle.id, (0..self.partitions).collect()) {
                Ok(Sealed::Plan(plan)) => return plan,
                // The leader was replaced, and has not heard of all marks in time.
                Ok(Sealed::Lacks(_)) => {}
                Err(ClientError::Stopped | ClientError::NoAnswer(_)) => pause(50),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("it was never sealed");
    }

    /// Reads all partitions of `n`, some at a time, and compares them with what was written.
    pub fn read(&self, cluster: &Cluster, plan: &Arc<Plan>, n: u64) {
        let mut parts: Vec<Vec<Placed>> = Vec::new();
        for first in (0..n).step_by(CLIENTS) {
            let some = std::thread::scope(|scope| {
                let readers: Vec<_> = (first..n.min(first + CLIENTS as u64))
                    .map(|i| scope.spawn(move || self.read_one(cluster, plan, i, n)))
                    .collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
            });
            parts.extend(some);
        }
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(most - least <= 1, "partitions of {sizes:?} records");
        self.compare(parts.concat());
    }

    fn read_one(&self, cluster: &Cluster, plan: &Arc<Plan>, i: u64, n: u64) -> Vec<Placed> {
        for node in 0..50 {
            let pieces: Result<Vec<_>, _> = cluster.client(i as usize + node).read(plan, i, n).collect();
            match pieces {
                Ok(pieces) => return pieces.iter().flat_map(OrderedRecords::placed).collect(),
                Err(ReadError::Stopped) => {}
                Err(error) => panic!("partition {i} of {n}: {error}"),
            }
        }
        panic!("partition {i} of {n} was never read");
    }

    /// Reads partition `i` of `n` at one node, and compares it with what was written.
    pub fn read_part(
        &self,
        cluster: &Cluster,
        plan: &Arc<Plan>,
        (i, n): (u64, u64),
    ) -> Result<(), ReadError> {
        let pieces: Result<Vec<_>, _> = cluster.client(0).read(plan, i, n).collect();
        let read: Vec<Placed> = pieces?.iter().flat_map(OrderedRecords::placed).collect();
        let all = self.expected.len() as u64;
        let part = &self.expected[(i * all / n) as usize..((i + 1) * all / n) as usize];
        assert_eq!(read.len(), part.len(), "partition {i} of {n}");
        let is_same = |(one, (key, value)): (&Placed, &(Vec<u8>, Vec<u8>))| {
            one.key[..] == key[..] && one.value[..] == value[..]
        };
        assert!(read.iter().zip(part).all(is_same), "partition {i} of {n}");
        Ok(())
    }

    /// Reads by keys, cut where some of the records are.
    pub fn read_keys(&self, cluster: &Cluster, plan: &Arc<Plan>) {
        let cuts: Vec<Bytes> = [self.expected.len() / 3, self.expected.len() / 2]
            .map(|at| self.expected[at].0.as_slice().into())
            .to_vec();
        let first: Bytes = Vec::new().into();
        let parts = [
            (first, Some(cuts[0].clone())),
            (cuts[0].clone(), Some(cuts[1].clone())),
            (cuts[1].clone(), None),
        ];
        let read = parts.into_iter().flat_map(|(first, end)| cluster.client(1).read_keys(plan, first, end));
        self.compare(read.flat_map(|piece| piece.unwrap().placed().collect::<Vec<_>>()).collect());
    }

    fn compare(&self, read: Vec<Placed>) {
        assert_eq!(read.len(), self.expected.len(), "records");
        let pairs = read.iter().zip(&self.expected);
        let wrong = pairs
            .enumerate()
            .find(|(_, (one, (key, value)))| one.key[..] != key[..] || one.value[..] != value[..]);
        assert!(wrong.is_none(), "record {wrong:?}");
    }

    /// Deletes it, and looks that it is deleted.
    pub fn delete(&self, cluster: &Cluster) {
        for node in 0..50 {
            match cluster.client(node % NODES).delete(self.shuffle.id) {
                Ok(()) => break,
                Err(ClientError::Stopped | ClientError::NoAnswer(_)) => pause(50),
                Err(error) => panic!("{error}"),
            }
        }
        let word = cluster.client(0).status(self.shuffle.id).unwrap();
        assert!(matches!(word, Word::Ended(_)), "{word:?}");
    }
}
