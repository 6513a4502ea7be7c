//! How equal partitions are, for any number of them and any input: one shuffle of each, read several times.

use super::cluster::Cluster;
use super::control::Control;
use super::job::Job;
use super::shapes;
use super::shuffle::{compare, follow, read, start_reader, start_writer};
use super::writer::Part;
use crate::{Done, Run};
use bench_gauge::say;

/// Each shuffle is read in so many partitions, in turn.
const NUMBERS: [u64; 4] = [1, 7, 256, 10_000];
/// Records of the largest partition may be so many more than those of the smallest.
const GOAL: u64 = 1;

/// Prints by how much partitions differ; an error if that is by more than one record.
pub fn bench(run: &Run) -> Done {
    for way in run.ways() {
        let mut cluster = Cluster::start(run, &format!("balance-{}", way.name()))?;
        let nodes = cluster.addresses_word(way);
        let control = Control::new(cluster.addresses(way))?;
        for (name, job) in shapes::all(run.gb).into_iter().filter(|(name, _)| run.of.measures(name)) {
            let expected = job.expected()?;
            let shuffle = control.start(&job)?;
            let mut writer = start_writer(&nodes, &shuffle, &job, &Part::all(&job))?;
            writer.go()?;
            follow(&mut writer, "wrote ", &mut |_| Ok(()))?;
            control.seal(shuffle.id, &job)?;
            let mut spreads = Vec::new();
            for partitions in NUMBERS {
                let job = Job { partitions, ..job };
                let mut reader = start_reader(&nodes, &shuffle, &job)?;
                reader.go()?;
                let line = follow(&mut reader, "read ", &mut |_| Ok(()))?;
                let (tally, spread) = read(&line).ok_or("a reader says what is not understood")?;
                compare(tally, expected)?;
                if spread > GOAL {
                    return Err(
                        format!("{name}: of {partitions} partitions one has {spread} records more").into()
                    );
                }
                spreads.push(format!("{partitions}: {spread}"));
            }
            control.delete(shuffle.id)?;
            cluster.is_empty()?;
            let (way, spreads) = (way.name(), spreads.join(", "));
            say(&format!(
                "{way:4} {name:8} {} records; largest minus smallest partition, by number of partitions: {spreads} (goal {GOAL})",
                job.records
            ));
        }
        cluster.coordinator.lives()?;
    }
    Ok(())
}
