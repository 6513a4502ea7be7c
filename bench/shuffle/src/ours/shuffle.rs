//! One shuffle from its start to its end: written by one process, sealed, read by another one, compared, deleted.

use super::cluster::Cluster;
use super::control::Control;
use super::job::Job;
use super::reader;
use super::writer::Part;
use crate::Got;
use crate::client_process::{ClientProcess, tally_of};
use crate::floor::Way;
use bench_gauge::{core_seconds_ever_of, myself, now};
use bench_shuffle::check::Tally;
use partage_shuffle_client::Shuffle;

/// What a shuffle took.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// Core-seconds of all processes per 10^9 bytes, until it was sealed, and then until all was read.
    pub writing: f64,
    /// The same for reading.
    pub reading: f64,
    /// By the clock, with what a writer makes of its records meanwhile.
    pub wall_seconds: f64,
    /// Of them the seal.
    pub seal_seconds: f64,
    /// Attempts that were run again.
    pub again: u64,
}

impl Took {
    /// Core-seconds per 10^9 bytes.
    pub fn all(&self) -> f64 {
        self.writing + self.reading
    }
}

/// How far a shuffle has come, for the code that disturbs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// So many records were handed in.
    Written(u64),
    /// It is about to be sealed.
    Sealing,
    /// So many were read.
    Read(u64),
}

/// Starts the process of a writer; it waits until it may go on.
pub fn start_writer(nodes: &str, shuffle: &Shuffle, job: &Job, part: &Part) -> Got<ClientProcess> {
    Ok(ClientProcess::start(myself()?.args(part.words(shuffle, nodes, job)))?.0)
}

/// So does this with a reader.
pub fn start_reader(nodes: &str, shuffle: &Shuffle, job: &Job) -> Got<ClientProcess> {
    Ok(ClientProcess::start(myself()?.args(reader::words(shuffle, nodes, job)))?.0)
}

/// The number behind a word of a line.
pub fn number_of(line: &str, word: &str) -> Option<u64> {
    line.strip_prefix(word)?.trim().parse().ok()
}

/// How a writer has ended: how many attempts it has run again, and the seconds on a core that it has made records.
pub fn written(line: &str) -> Option<(u64, f64)> {
    let mut words = line.strip_prefix("done ")?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// How a reader has ended: what it has read, and by how much its partitions differ.
pub fn read(line: &str) -> Option<(Tally, u64)> {
    let line = line.strip_prefix("done ")?;
    let sizes: Vec<u64> = line.split(' ').skip(3).filter_map(|word| word.parse().ok()).collect();
    let [smallest, largest] = sizes.as_slice() else { return None };
    Some((tally_of(line)?, largest - smallest.min(largest)))
}

/// An error if that is not what was written.
pub fn compare(read: Tally, expected: Tally) -> Got<()> {
    if read == expected {
        return Ok(());
    }
    let lost = expected.records.saturating_sub(read.records);
    let more = read.records.saturating_sub(expected.records);
    let what = "what was read is not what was written";
    Err(format!("{what}: {lost} records too few, {more} too many; read {read:?}, written {expected:?}")
        .into())
}

/// Goes on until a process of a client says that it is done; `hears` of the numbers behind a word.
pub fn follow(process: &mut ClientProcess, word: &str, hears: &mut dyn FnMut(u64) -> Got<()>) -> Got<String> {
    loop {
        let line = process.line()?;
        if line.starts_with("done") {
            return Ok(line);
        }
        if let Some(number) = number_of(&line, word) {
            hears(number)?;
        }
    }
}

/// One shuffle that is left alone.
pub fn one(cluster: &mut Cluster, way: Way, job: &Job, expected: Tally) -> Got<Took> {
    let took = disturbed(cluster, way, job, expected, &mut |_, _, _| Ok(()))?;
    cluster.is_empty()?;
    Ok(took)
}

/// One shuffle; `disturb` hears of each moment that it comes to. It is deleted at the end.
pub fn disturbed(
    cluster: &mut Cluster,
    way: Way,
    job: &Job,
    expected: Tally,
    disturb: &mut dyn FnMut(&mut Cluster, &Shuffle, Moment) -> Got<()>,
) -> Got<Took> {
    let nodes = cluster.addresses_word(way);
    let control = Control::new(cluster.addresses(way))?;
    let shuffle = control.start(job)?;
    let mut writer = start_writer(&nodes, &shuffle, job, &Part::all(job))?;
    let mut reader = start_reader(&nodes, &shuffle, job)?;
    let clients = [writer.pid(), reader.pid()];
    let core_seconds = |cluster: &Cluster| {
        cluster.core_seconds() + clients.iter().map(|pid| core_seconds_ever_of(*pid)).sum::<f64>()
    };
    let (begun, begin) = (core_seconds(cluster), now());
    writer.go()?;
    let line = follow(&mut writer, "wrote ", &mut |records| {
        disturb(&mut *cluster, &shuffle, Moment::Written(records))
    })?;
    let (again, making) = written(&line).ok_or("a writer says what is not understood")?;
    disturb(&mut *cluster, &shuffle, Moment::Sealing)?;
    let sealing = now();
    control.seal(shuffle.id, job)?;
    let seal_seconds = (now() - sealing).as_secs_f64();
    let stored = core_seconds(cluster);
    reader.go()?;
    let line =
        follow(&mut reader, "read ", &mut |records| disturb(&mut *cluster, &shuffle, Moment::Read(records)))?;
    let (tally, _) = read(&line).ok_or("a reader says what is not understood")?;
    let (done, wall_seconds) = (core_seconds(cluster), (now() - begin).as_secs_f64());
    compare(tally, expected)?;
    control.delete(shuffle.id)?;
    let gb = job.gb();
    let (writing, reading) = ((stored - begun - making) / gb, (done - stored) / gb);
    Ok(Took { writing, reading, wall_seconds, seal_seconds, again })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_process::word_of;

    #[test]
    fn what_processes_say_is_understood() {
        assert_eq!(number_of("wrote 17", "wrote "), Some(17));
        assert_eq!(number_of("whole 17", "wrote "), None);
        assert_eq!(written("done 3 0.25"), Some((3, 0.25)));
        let tally = Tally { records: 5, bytes: 500, sum: 7 };
        assert_eq!(read(&format!("done {} 2 3", word_of(tally))), Some((tally, 1)));
        assert_eq!(read("done 1 2"), None);
        assert!(compare(tally, tally).is_ok());
        let lost = compare(Tally { records: 4, ..tally }, tally).unwrap_err().to_string();
        assert!(lost.contains("1 records too few"), "{lost}");
    }
}
