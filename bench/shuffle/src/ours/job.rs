//! One shuffle that is measured: its records, the input partitions in which they are written, and those in which they are read.

use crate::{Got, SEED};
use bench_shuffle::check::Tally;
use bench_shuffle::generate::{Generator, Input, Shape};
use partage_shuffle_client::Durability;
use std::ops::Range;

/// Input partitions of a shuffle: each is one attempt.
const INPUTS: u32 = 48;
/// Partitions that are read, as the floor has ranges.
const PARTITIONS: u64 = 256;
/// Records of at most so many bytes are made before anything is measured; more of them as they are written.
const MADE_BYTES: u64 = 3_000_000_000;
/// Threads that add up what is expected.
const THREADS: u64 = 2;
/// Records that are made at once.
const STRIDE: u64 = 1_000;

/// What is written, and how it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// How its keys are spread.
    pub input: Input,
    /// Bytes of its records.
    pub shape: Shape,
    /// The number of all records.
    pub records: u64,
    /// Input partitions: each has a stretch of the numbers of records, so that a stable order is one of numbers.
    pub inputs: u32,
    /// Partitions that are read.
    pub partitions: u64,
    /// Whether the records are made before anything is measured.
    pub is_made: bool,
    /// The seed that the records are made from.
    pub seed: u64,
    /// Where records are when they are acknowledged.
    pub durability: Durability,
}

impl Job {
    /// So many 10^9 bytes.
    pub fn new(input: Input, shape: Shape, gb: f64) -> Job {
        let records = ((gb * 1e9 / shape.record as f64) as u64).max(1);
        let is_made = records.saturating_mul(shape.record as u64) <= MADE_BYTES;
        let (inputs, partitions, durability) = (INPUTS, PARTITIONS, Durability::Disk);
        Job { input, shape, records, inputs, partitions, is_made, seed: SEED, durability }
    }

    /// Uniform records of 100 bytes.
    pub fn usual(gb: f64) -> Job {
        Job::new(Input::Uniform, Shape::USUAL, gb)
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.records * self.shape.record as u64
    }

    /// The same in 10^9 bytes.
    pub fn gb(&self) -> f64 {
        self.bytes() as f64 / 1e9
    }

    /// The numbers of the records of an input partition.
    pub fn numbers(&self, partition: u32) -> Range<u64> {
        let begin = |partition: u32| part(self.records, u64::from(partition), u64::from(self.inputs));
        begin(partition)..begin(partition + 1)
    }

    /// How many records partition `i` that is read must have.
    pub fn expected_of(&self, i: u64) -> u64 {
        part(self.records, i + 1, self.partitions) - part(self.records, i, self.partitions)
    }

    /// What makes its records.
    pub fn generator(&self) -> Got<Generator> {
        let generator = Generator::new(self.input, self.shape, self.records, self.seed);
        generator.ok_or_else(|| "a record has no room for its number".into())
    }

    /// As arguments of a process, which [`Job::of`] reads.
    pub fn words(&self) -> Vec<String> {
        let name = Input::ALL.iter().find(|(input, _)| *input == self.input).map_or("", |(_, name)| *name);
        let numbers = [
            self.shape.key as u64,
            self.shape.record as u64,
            self.records,
            u64::from(self.inputs),
            self.partitions,
            u64::from(self.is_made),
            self.seed,
        ];
        let numbers = numbers.map(|number| number.to_string());
        [name.to_owned()].into_iter().chain(numbers).chain([self.durability.to_string()]).collect()
    }

    /// Of the arguments of a process.
    pub fn of(words: &[String]) -> Got<Job> {
        let [input, key, record, records, inputs, partitions, is_made, seed, durability] = words else {
            return Err("INPUT KEY RECORD RECORDS INPUTS PARTITIONS MADE SEED DURABILITY".into());
        };
        Ok(Job {
            input: input.parse()?,
            shape: Shape { key: key.parse()?, record: record.parse()? },
            records: records.parse()?,
            inputs: inputs.parse()?,
            partitions: partitions.parse()?,
            is_made: is_made == "1",
            seed: seed.parse()?,
            durability: durability.parse()?,
        })
    }

    /// What must be read: the sum over all records, made by this process and not by those that are measured.
    pub fn expected(&self) -> Got<Tally> {
        let generator = self.generator()?;
        let of_thread = |thread: u64| {
            let (mut tally, length) = (Tally::default(), self.shape.record);
            let mut room = vec![0; STRIDE as usize * length];
            let numbers = part(self.records, thread, THREADS)..part(self.records, thread + 1, THREADS);
            for first in numbers.clone().step_by(STRIDE as usize) {
                let some = &mut room[..(numbers.end - first).min(STRIDE) as usize * length];
                generator.write_all(first, some);
                some.chunks_exact(length).for_each(|record| tally.add(record));
            }
            tally
        };
        let mut all = Tally::default();
        std::thread::scope(|scope| -> Got<()> {
            let of_thread = &of_thread;
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || of_thread(thread))).collect();
            for thread in threads {
                all += thread.join().map_err(|_| "a thread has failed")?;
            }
            Ok(())
        })?;
        Ok(all)
    }
}

/// ⌊i · all / n⌋.
fn part(all: u64, i: u64, n: u64) -> u64 {
    (u128::from(all) * u128::from(i) / u128::from(n.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_in_one_input_partition_and_in_one_that_is_read() {
        let job =
            Job { records: 1_234, inputs: 7, partitions: 9, ..Job::new(Input::Zipf, Shape::USUAL, 0.001) };
        let job = Job { durability: Durability::Memory, ..job };
        assert!(job.is_made && !Job::usual(10.0).is_made);
        let numbers: Vec<u64> = (0..7).flat_map(|partition| job.numbers(partition)).collect();
        assert_eq!(numbers, (0..1_234).collect::<Vec<u64>>());
        let sizes: Vec<u64> = (0..9).map(|i| job.expected_of(i)).collect();
        assert_eq!(sizes.iter().sum::<u64>(), 1_234);
        assert!(sizes.iter().all(|size| (137..=138).contains(size)), "{sizes:?}");
        assert_eq!(Job::of(&job.words()).unwrap(), job);
    }

    #[test]
    fn what_is_expected_does_not_depend_on_how_it_is_added_up() {
        let job = Job { records: 2_345, ..Job::usual(0.001) };
        let (generator, mut tally) = (job.generator().unwrap(), Tally::default());
        for number in 0..job.records {
            let mut record = [0; 100];
            generator.write(number, &mut record);
            tally.add(&record);
        }
        assert_eq!(job.expected().unwrap(), tally);
    }
}
