//! The process of a client that reads a shuffle in partitions, several at a time, and checks what comes.
//!
//! Each partition must have exactly the records of its ranks: by the number of them, in order, stable, and all behind those of
//! the partition before. It says `read N` now and then, and at the end `done` with the tally of all, and the sizes of the
//! smallest and the largest partition. The bench compares the tally with what was written.

use super::job::Job;
use super::writer::{AT_ONCE, BUDGETS, nodes_of, run};
use crate::client_process::{ready, word_of};
use crate::{Done, Got};
use bench_gauge::say;
use bench_shuffle::check::{Checker, Order, Tally};
use partage_shuffle_client::{Client, CutBy, Error, Settings, Shuffle, ShuffleId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinSet;

/// How often progress is said.
const WORDS: u64 = 200;

/// The arguments of the process.
pub fn words(shuffle: &Shuffle, nodes: &str, job: &Job) -> Vec<String> {
    let own = ["ours-reader", &shuffle.to_string(), nodes].map(str::to_owned);
    own.into_iter().chain(job.words()).collect()
}

/// What the process does.
pub fn process(words: &[String]) -> Done {
    let [_, shuffle, nodes, job @ ..] = words else {
        return Err("ours-reader HANDLE NODES JOB".into());
    };
    let (job, shuffle, nodes) = (Job::of(job)?, shuffle.parse::<Shuffle>()?, nodes_of(nodes)?);
    run(async move {
        let client = Client::connect(nodes, Settings::default()).await?;
        ready("ready")?;
        let read = read_all(&client, shuffle.id, job, true).await?;
        let Read { tally, smallest, largest } = read;
        Ok(ready(&format!("done {} {smallest} {largest}", word_of(tally)))?)
    })
}

/// What was read of all partitions together.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The tally of all records.
    pub tally: Tally,
    /// Records of the smallest partition.
    pub smallest: u64,
    /// Of the largest one.
    pub largest: u64,
}

/// Reads all partitions, and checks each and their order; `says` progress.
pub async fn read_all(client: &Client, shuffle: ShuffleId, job: Job, says: bool) -> Got<Read> {
    let progress = Arc::new(Progress { read: AtomicU64::new(0), job, says });
    let mut under_way: JoinSet<Result<Partition, String>> = JoinSet::new();
    let mut partitions = Vec::new();
    for i in 0..job.partitions {
        if under_way.len() >= AT_ONCE
            && let Some(done) = under_way.join_next().await
        {
            partitions.push(done??);
        }
        under_way.spawn(read_partition(client.clone(), shuffle, Arc::clone(&progress), i));
    }
    while let Some(done) = under_way.join_next().await {
        partitions.push(done??);
    }
    partitions.sort_by_key(|partition| partition.i);
    joined(&job, &partitions)
}

/// The sum of all partitions, if they follow one another.
fn joined(job: &Job, partitions: &[Partition]) -> Got<Read> {
    let mut read = Read { tally: Tally::default(), smallest: u64::MAX, largest: 0 };
    let mut last: &[u8] = &[];
    for partition in partitions {
        let records = partition.tally.records;
        if records != job.expected_of(partition.i) {
            let (i, n, expected) = (partition.i, job.partitions, job.expected_of(partition.i));
            return Err(format!("partition {i} of {n} has {records} records instead of {expected}").into());
        }
        if records > 0 {
            if partition.first.as_slice() <= last {
                let i = partition.i;
                return Err(format!("partition {i} begins before the end of the one before").into());
            }
            last = &partition.last;
        }
        read.tally += partition.tally;
        (read.smallest, read.largest) = (read.smallest.min(records), read.largest.max(records));
    }
    Ok(read)
}

/// One partition that was read. The first and the last place are keys and numbers.
#[derive(Debug, Default)]
struct Partition {
    i: u64,
    tally: Tally,
    first: Vec<u8>,
    last: Vec<u8>,
}

struct Progress {
    read: AtomicU64,
    job: Job,
    says: bool,
}

impl Progress {
    fn read(&self, records: u64) {
        let before = self.read.fetch_add(records, Ordering::Relaxed);
        let step = (self.job.records / WORDS).max(1);
        if self.says && (before + records) / step > before / step {
            say(&format!("read {}", before + records));
        }
    }
}

async fn read_partition(
    client: Client,
    shuffle: ShuffleId,
    progress: Arc<Progress>,
    i: u64,
) -> Result<Partition, String> {
    for budget in 1.. {
        match try_partition(&client, shuffle, &progress, i).await {
            Ok(partition) => return Ok(partition),
            Err(error) if error.runs_again() && budget < BUDGETS => {}
            Err(error) => return Err(format!("partition {i}: {error}")),
        }
    }
    Err("no budget".to_owned())
}

async fn try_partition(
    client: &Client,
    shuffle: ShuffleId,
    progress: &Progress,
    i: u64,
) -> Result<Partition, Error> {
    let job = &progress.job;
    let place_bytes = job.shape.key + size_of::<u64>();
    let mut checker = Checker::new(job.shape.key, Order::Stable);
    let mut partition = Partition { i, ..Partition::default() };
    let mut record = Vec::with_capacity(job.shape.record);
    let mut reading = client.read(shuffle, i, job.partitions, CutBy::Records);
    while let Some(records) = reading.next().await? {
        for (key, value) in &records {
            record.clear();
            record.extend_from_slice(key);
            record.extend_from_slice(value);
            checker.take(&record).map_err(Error::own)?;
            if partition.first.is_empty() {
                partition.first = record[..place_bytes.min(record.len())].to_vec();
            }
        }
        progress.read(records.count());
    }
    partition.last = record[..place_bytes.min(record.len())].to_vec();
    partition.tally = checker.tally();
    Ok(partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(i: u64, records: u64, first: &[u8], last: &[u8]) -> Partition {
        let tally = Tally { records, bytes: records * 100, sum: 0 };
        Partition { i, tally, first: first.to_vec(), last: last.to_vec() }
    }

    #[test]
    fn partitions_have_their_ranks_and_follow_one_another() {
        let job = Job { records: 5, partitions: 2, ..Job::usual(0.001) };
        let good = [partition(0, 2, b"a", b"c"), partition(1, 3, b"d", b"e")];
        let read = joined(&job, &good).unwrap();
        assert_eq!((read.tally.records, read.smallest, read.largest), (5, 2, 3));
        for bad in [
            [partition(0, 3, b"a", b"c"), partition(1, 2, b"d", b"e")],
            [partition(0, 2, b"a", b"d"), partition(1, 3, b"d", b"e")],
        ] {
            assert!(joined(&job, &bad).is_err(), "{bad:?}");
        }
        let empty = [partition(0, 0, b"", b""), partition(1, 1, b"d", b"d")];
        assert!(joined(&Job { records: 1, ..job }, &empty).is_ok());
    }
}
