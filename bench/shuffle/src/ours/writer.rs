//! The process of a client that writes input partitions: several attempts at a time, each run again when it has failed so that
//! it may be.
//!
//! It says `wrote N` now and then, the records that it has handed in, `whole P` for each input partition that is acknowledged,
//! and at the end `done`, with how many attempts it has run again and the seconds on a core that went into making records.

use super::job::Job;
use crate::client_process::ready;
use crate::{Done, Got};
use bench_gauge::{now, say};
use bench_shuffle::generate::Generator;
use partage_shuffle_client::{Address, Attempt, Client, Error, PackedRecords, Settings, Shuffle, Written};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

/// Attempts at a time: two to each node.
pub const AT_ONCE: usize = 6;
/// Threads of a client, as the client of the floor has.
pub const THREADS: usize = 3;
/// Bytes of the records of a frame, as the client makes them in a long attempt.
const FRAME_BYTES: usize = 1 << 20;
/// How often progress is said.
const WORDS: u64 = 200;
/// How often the whole retry budget of an input partition may be used up while nodes are lost and come back.
pub const BUDGETS: usize = 4;

/// What a writer is told, besides its job.
#[derive(Debug, Clone)]
pub struct Part {
    /// The input partitions that it writes.
    pub partitions: BTreeSet<u32>,
    /// Bytes that it writes in a second; 0: as fast as it can.
    pub bytes_per_s: u64,
}

impl Part {
    /// All of a job, as fast as it goes.
    pub fn all(job: &Job) -> Part {
        Part { partitions: (0..job.inputs).collect(), bytes_per_s: 0 }
    }

    /// The arguments of the process.
    pub fn words(&self, shuffle: &Shuffle, nodes: &str, job: &Job) -> Vec<String> {
        let partitions: Vec<String> = self.partitions.iter().map(ToString::to_string).collect();
        let own = ["ours-writer", &shuffle.to_string(), nodes].map(str::to_owned);
        let told = [partitions.join(","), self.bytes_per_s.to_string()];
        own.into_iter().chain(told).chain(job.words()).collect()
    }
}

/// The nodes of an argument.
pub fn nodes_of(word: &str) -> Got<Vec<Address>> {
    Ok(word.split(',').map(str::parse::<Address>).collect::<Result<Vec<Address>, _>>()?)
}

/// Runs a client on the threads that one has.
pub fn run<F>(client: F) -> Done
where
    F: Future<Output = Done>,
{
    Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?.block_on(client)
}

/// What the process does.
pub fn process(words: &[String]) -> Done {
    let [_, shuffle, nodes, partitions, bytes_per_s, job @ ..] = words else {
        return Err("ours-writer HANDLE NODES PARTITIONS BYTES_PER_S JOB".into());
    };
    let job = Job::of(job)?;
    let (shuffle, nodes) = (shuffle.parse::<Shuffle>()?, nodes_of(nodes)?);
    let of_word = partitions.split(',').map(str::parse::<u32>);
    let partitions = of_word.collect::<Result<BTreeSet<u32>, _>>()?;
    let bytes_per_s = bytes_per_s.parse::<u64>()?;
    run(async move {
        let client = Client::connect(nodes, Settings::default()).await?;
        let records = Records::new(job, &partitions)?;
        let counts = [(); 4].map(|()| AtomicU64::new(0));
        let [written, said, attempts, making_ns] = counts;
        let begin = now();
        let writer =
            Writer { client, shuffle, job, records, bytes_per_s, begin, written, said, attempts, making_ns };
        ready("ready")?;
        let writer = Arc::new(Writer { begin: now(), ..writer });
        let expected = partitions.len() as u64;
        write_all(&writer, partitions).await?;
        let again = writer.attempts.load(Ordering::Relaxed).saturating_sub(expected);
        let making = writer.making_ns.load(Ordering::Relaxed) as f64 / 1e9;
        Ok(ready(&format!("done {again} {making}"))?)
    })
}

async fn write_all(writer: &Arc<Writer>, partitions: BTreeSet<u32>) -> Done {
    let mut under_way: JoinSet<Result<(), Error>> = JoinSet::new();
    for partition in partitions {
        if under_way.len() >= AT_ONCE
            && let Some(done) = under_way.join_next().await
        {
            done??;
        }
        under_way.spawn(Arc::clone(writer).write(partition));
    }
    while let Some(done) = under_way.join_next().await {
        done??;
    }
    Ok(())
}

/// The records of some input partitions.
struct Records {
    generator: Generator,
    record_bytes: usize,
    /// Where they were made before, by the number of the first one of each stretch.
    made: Vec<(Range<u64>, Vec<u8>)>,
}

impl Records {
    fn new(job: Job, partitions: &BTreeSet<u32>) -> Got<Records> {
        let (generator, record_bytes) = (job.generator()?, job.shape.record);
        let make = |partition: &u32| {
            let numbers = job.numbers(*partition);
            let mut bytes = vec![0; (numbers.end - numbers.start) as usize * record_bytes];
            generator.write_all(numbers.start, &mut bytes);
            (numbers, bytes)
        };
        let made = if job.is_made { partitions.iter().map(make).collect() } else { Vec::new() };
        Ok(Records { generator, record_bytes, made })
    }

    /// Some that lie in one stretch.
    fn get<'a>(&'a self, numbers: Range<u64>, room: &'a mut Vec<u8>) -> &'a [u8] {
        let length = (numbers.end - numbers.start) as usize * self.record_bytes;
        let at = self.made.partition_point(|(of, _)| of.end <= numbers.start);
        match self.made.get(at) {
            Some((of, bytes)) if of.start <= numbers.start => {
                let begin = (numbers.start - of.start) as usize * self.record_bytes;
                &bytes[begin..begin + length]
            }
            _ => {
                room.resize(length, 0);
                self.generator.write_all(numbers.start, room);
                &room[..]
            }
        }
    }
}

struct Writer {
    client: Client,
    shuffle: Shuffle,
    job: Job,
    records: Records,
    bytes_per_s: u64,
    begin: Instant,
    /// Records that were handed in, also in attempts that have failed.
    written: AtomicU64,
    /// How often that was said.
    said: AtomicU64,
    attempts: AtomicU64,
    making_ns: AtomicU64,
}

impl Writer {
    /// Writes an input partition, in as many attempts as it takes.
    async fn write(self: Arc<Writer>, partition: u32) -> Result<(), Error> {
        let produce = |attempt: Attempt| Arc::clone(&self).attempt(attempt);
        for budget in 1.. {
            match self.client.write(&self.shuffle, partition, produce).await {
                Ok(_) => break,
                Err(error) if error.runs_again() && budget < BUDGETS => {}
                Err(error) => return Err(error),
            }
        }
        say(&format!("whole {partition}"));
        Ok(())
    }

    async fn attempt(self: Arc<Writer>, mut attempt: Attempt) -> Result<Written, Error> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let numbers = self.job.numbers(attempt.partition());
        let stride = (FRAME_BYTES / self.job.shape.record).max(1) as u64;
        let mut room = Vec::new();
        let mut first = numbers.start;
        while first < numbers.end {
            let end = (first + stride).min(numbers.end);
            let frame = self.frame(first..end, &mut room);
            attempt.put(frame).await?;
            self.handed_in(end - first).await;
            first = end;
        }
        attempt.end().await
    }

    fn frame(&self, numbers: Range<u64>, room: &mut Vec<u8>) -> PackedRecords {
        let (begun, key) = (thread_ns(), self.job.shape.key);
        let records = self.records.get(numbers, room);
        if !self.job.is_made {
            self.making_ns.fetch_add(thread_ns().saturating_sub(begun), Ordering::Relaxed);
        }
        PackedRecords::pack(records.chunks_exact(self.job.shape.record).map(|record| record.split_at(key)))
    }

    /// Says so now and then, and waits if that was faster than it should be.
    async fn handed_in(&self, records: u64) {
        let written = self.written.fetch_add(records, Ordering::Relaxed) + records;
        let step = (self.job.records / WORDS).max(1);
        let said = self.said.load(Ordering::Relaxed);
        let is_due = written / step > said;
        let exchange = |now| self.said.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && exchange(written / step).is_ok() {
            say(&format!("wrote {written}"));
        }
        if self.bytes_per_s > 0 {
            let bytes = written * self.job.shape.record as u64;
            let due = self.begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
            tokio::time::sleep_until(due.into()).await;
        }
    }
}

/// What this thread has used on a core.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_were_made_before_are_those_that_are_made_as_it_goes() {
        let job = Job { records: 1_000, inputs: 4, ..Job::usual(0.001) };
        let made = Records::new(job, &BTreeSet::from([1, 3])).unwrap();
        let later = Records::new(Job { is_made: false, ..job }, &BTreeSet::new()).unwrap();
        for numbers in [250..300, 480..500, 750..751, 999..1_000, 0..3] {
            let (mut room, mut other) = (Vec::new(), Vec::new());
            let records = made.get(numbers.clone(), &mut room);
            assert_eq!(records, later.get(numbers.clone(), &mut other), "{numbers:?}");
            assert_eq!(records.len() as u64, (numbers.end - numbers.start) * 100);
        }
    }
}
