//! The second half of a sort: partitions of the sealed shuffle become parts.

use super::folder::PartFolder;
use super::layout::{Layout, cannot_write};
use super::{Cut, Sort, Sum};
use crate::output::Failure;
use crate::shuffle::nodes::{failure, own};
use indicatif::ProgressBar;
use partage_shuffle_client::{Error, PackedRecords, Reading};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Pieces of a partition that are read and not written yet.
const PIECES_AHEAD: usize = 2;

impl Sort {
    /// Reads all partitions, and writes each as a part.
    pub(super) async fn read(&self, sum: Sum, partitions: u64, parts: &PartFolder) -> Result<(), Failure> {
        let bar = self.bar(
            "reading",
            sum.records,
            "{msg} {wide_bar} {human_pos} of {human_len} records, {eta} to go",
        );
        let written = Arc::new(AtomicU64::new(0));
        let part = |i: u64, reading: Reading| {
            let expected = begin_of(i + 1, partitions, sum.records) - begin_of(i, partitions, sum.records);
            // Where else partitions are cut only the nodes know.
            let expected = (self.cut == Cut::Records).then_some(expected);
            let part = Part { path: parts.path(i), expected, written: Arc::clone(&written) };
            part_of(reading, Arc::clone(&self.layout), part, bar.clone())
        };
        let partitions = (partitions, self.cut.into());
        let read = self.client.read_partitions(self.shuffle.id, partitions, self.at_once, part).await;
        bar.finish_and_clear();
        read.map_err(failure)?;
        let written = written.load(Ordering::Relaxed);
        if written != sum.records {
            let what = format!("the parts have {written} records, and must have {}", sum.records);
            return Err(Failure::failed(what).help("sort again, and report this"));
        }
        Ok(())
    }
}

/// A part that is to be written.
struct Part {
    path: PathBuf,
    /// Its records, where they are known before.
    expected: Option<u64>,
    /// The records of all parts so far.
    written: Arc<AtomicU64>,
}

/// The rank at which partition `i` of `n` begins.
fn begin_of(i: u64, n: u64, records: u64) -> u64 {
    (u128::from(i) * u128::from(records) / u128::from(n.max(1))) as u64
}

/// One part: records are read, and a thread writes them.
async fn part_of(
    mut reading: Reading,
    layout: Arc<Layout>,
    Part { path, expected, written: all }: Part,
    bar: ProgressBar,
) -> Result<(), Error> {
    let name = path.display().to_string();
    let (give, pieces) = mpsc::channel(PIECES_AHEAD);
    let writing = spawn_blocking(move || write(&layout, &path, pieces));
    let read = loop {
        match reading.next().await {
            Ok(Some(records)) => {
                bar.inc(records.count());
                // The thread that writes says why it has ended.
                if give.send(records).await.is_err() {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    drop(give);
    let written = writing.await.map_err(Error::own)?;
    read?;
    let written = written.map_err(own)?;
    all.fetch_add(written, Ordering::Relaxed);
    if let Some(expected) = expected.filter(|expected| *expected != written) {
        let what = format!("{name} has {written} records, and must have {expected}");
        return Err(own(Failure::failed(what).help("sort again, and report this")));
    }
    Ok(())
}

/// Writes the records that come, until there are no more; says how many.
fn write(layout: &Layout, path: &Path, mut pieces: mpsc::Receiver<PackedRecords>) -> Result<u64, Failure> {
    let mut writer = layout.writer(File::create_new(path).map_err(cannot_write)?)?;
    let mut count = 0;
    while let Some(records) = pieces.blocking_recv() {
        for (key, value) in &records {
            writer.put(key, value)?;
        }
        count += records.count();
    }
    writer.end()?.sync_all().map_err(cannot_write)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_partitions_differ_by_one_at_most_and_are_all() {
        for (records, n) in [(0, 7), (3, 7), (100, 7), (u64::MAX, 3)] {
            let sizes: Vec<u64> =
                (0..n).map(|i| begin_of(i + 1, n, records) - begin_of(i, n, records)).collect();
            assert_eq!(sizes.iter().sum::<u64>(), records);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{sizes:?}");
        }
    }
}
