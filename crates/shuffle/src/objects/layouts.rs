//! The indexes of folders that were read last: a range that is read next to another one of its slot asks for no index.

use super::layout::Layout;
use super::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What one takes besides its layout: its name, and its place among the others.
const AROUND: u64 = 256;

#[derive(Debug)]
struct Entry {
    layout: Arc<Layout>,
    bytes: u64,
    /// Counts uses.
    used: u64,
}

#[derive(Debug, Default)]
struct Kept {
    of: BTreeMap<String, Entry>,
    /// Of all of them.
    bytes: u64,
    uses: u64,
    /// The folders whose index is being read, by the number of the reading.
    being_read: BTreeMap<u64, BeingRead>,
    readings: u64,
}

#[derive(Debug)]
struct BeingRead {
    folder: String,
    /// It was forgotten meanwhile: what is read may be of before.
    is_forgotten: bool,
}

impl Kept {
    /// Keeps an index. Those that were not used for longest are removed for it.
    fn keep(&mut self, folder: String, layout: &Arc<Layout>, most: u64) {
        self.remove(&folder);
        let bytes = AROUND + folder.len() as u64 + layout.memory();
        self.uses += 1;
        self.bytes += bytes;
        self.of.insert(folder, Entry { layout: Arc::clone(layout), bytes, used: self.uses });
        while self.of.len() > 1 && self.bytes > most {
            let oldest = self.of.iter().min_by_key(|(_, entry)| entry.used).map(|(folder, _)| folder.clone());
            oldest.into_iter().for_each(|folder| self.remove(&folder));
        }
    }

    fn remove(&mut self, folder: &str) {
        if let Some(gone) = self.of.remove(folder) {
            self.bytes -= gone.bytes;
        }
    }
}

/// Those that are kept: they have so many bytes at most, or there is one.
#[derive(Debug)]
pub(super) struct Layouts {
    most: u64,
    kept: Mutex<Kept>,
    /// The folders whose index is being read, each by one thread.
    read: Mutex<BTreeSet<String>>,
    changed: Condvar,
}

/// An index is being read.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    layouts: &'a Layouts,
    number: u64,
}

impl Reading<'_> {
    /// Keeps what was read, unless the folder was forgotten meanwhile.
    pub(super) fn keep(self, layout: &Arc<Layout>) {
        let mut kept = lock(&self.layouts.kept);
        let Some(BeingRead { folder, is_forgotten: false }) = kept.being_read.remove(&self.number) else {
            return;
        };
        kept.keep(folder, layout, self.layouts.most);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(&self.layouts.kept).being_read.remove(&self.number);
    }
}

/// The turn of a thread to read an index that is not kept.
#[derive(Debug)]
pub(super) struct ReadTurn<'a> {
    layouts: &'a Layouts,
    folder: String,
}

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        lock(&self.layouts.read).remove(&self.folder);
        self.layouts.changed.notify_all();
    }
}

impl Layouts {
    pub(super) fn new(most: u64) -> Layouts {
        Layouts { most, kept: Mutex::default(), read: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits while another thread reads the index of a folder. What that has read is kept then, unless it has failed. The
    /// thread that waits has no memory that the other one might wait for.
    pub(super) fn turn(&self, folder: &str) -> ReadTurn<'_> {
        let waits = |read: &mut BTreeSet<String>| read.contains(folder);
        let waited = self.changed.wait_while(lock(&self.read), waits);
        let mut read = waited.unwrap_or_else(PoisonError::into_inner);
        read.insert(folder.to_owned());
        ReadTurn { layouts: self, folder: folder.to_owned() }
    }

    /// The index of a folder is read from now on.
    pub(super) fn begin_reading(&self, folder: &str) -> Reading<'_> {
        let mut kept = lock(&self.kept);
        kept.readings += 1;
        let number = kept.readings;
        kept.being_read.insert(number, BeingRead { folder: folder.to_owned(), is_forgotten: false });
        Reading { layouts: self, number }
    }

    pub(super) fn get(&self, folder: &str) -> Option<Arc<Layout>> {
        let mut kept = lock(&self.kept);
        kept.uses += 1;
        let used = kept.uses;
        let entry = kept.of.get_mut(folder)?;
        entry.used = used;
        Some(Arc::clone(&entry.layout))
    }

    pub(super) fn forget(&self, folder: &str) {
        lock(&self.kept).remove(folder);
    }

    /// Forgets all folders below a path.
    pub(super) fn forget_below(&self, path: &str) {
        let mut kept = lock(&self.kept);
        let below = format!("{path}/");
        for read in kept.being_read.values_mut() {
            read.is_forgotten |= read.folder.starts_with(&below);
        }
        let folders = kept.of.range(below.clone()..).map(|(folder, _)| folder);
        let gone: Vec<String> = folders.take_while(|folder| folder.starts_with(&below)).cloned().collect();
        gone.iter().for_each(|folder| kept.remove(folder));
    }

    /// What they take in memory, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.kept).bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Run;
    use super::*;
    use partage_service::shuffle::RangeId;

    fn layout(runs: usize) -> Arc<Layout> {
        let mut layout = Layout::default();
        let run = Run { object: 1, from: 0, bytes: 1, pieces: 1 };
        (0..runs).for_each(|_| layout.push(RangeId(1), run));
        Arc::new(layout)
    }

    fn sum(layouts: &Layouts) -> u64 {
        lock(&layouts.kept).of.values().map(|entry| entry.bytes).sum()
    }

    #[test]
    fn r1_what_is_kept_is_counted_and_bounded_and_what_was_used_last_stays() {
        let layouts = Layouts::new(4_000);
        for at in 0..100 {
            layouts.begin_reading(&format!("a/{at}")).keep(&layout(10));
            assert!(layouts.get("a/0").is_some(), "it is used again and again");
            assert!(layouts.bytes() <= 4_000 && layouts.bytes() == sum(&layouts));
        }
        assert!(layouts.get("a/99").is_some() && layouts.get("a/50").is_none());
        layouts.begin_reading("large").keep(&layout(10_000));
        assert!(layouts.get("large").is_some() && layouts.get("a/0").is_none(), "one is always kept");
        assert_eq!(lock(&layouts.kept).of.len(), 1);
        // The same folder counts once.
        layouts.begin_reading("large").keep(&layout(1));
        assert!(layouts.bytes() < 4_000 && layouts.bytes() == sum(&layouts));
    }

    #[test]
    fn what_is_below_a_path_is_forgotten_and_nothing_else() {
        let layouts = Layouts::new(u64::MAX);
        let all = ["1/2", "1/2/n", "1/2/m", "1/20/n", "1/3/n"];
        all.iter().for_each(|folder| layouts.begin_reading(folder).keep(&layout(1)));
        layouts.forget_below("1/2");
        let left: Vec<&str> = all.into_iter().filter(|folder| layouts.get(folder).is_some()).collect();
        assert_eq!(left, ["1/2", "1/20/n", "1/3/n"]);
        left.iter().for_each(|folder| layouts.forget(folder));
        assert_eq!((layouts.bytes(), sum(&layouts)), (0, 0));
    }

    #[test]
    fn what_is_forgotten_while_it_is_read_is_not_kept_and_other_folders_are() {
        let layouts = Layouts::new(u64::MAX);
        let (forgotten, other) = (layouts.begin_reading("1/2/n"), layouts.begin_reading("1/3/n"));
        layouts.forget_below("1/2");
        forgotten.keep(&layout(1));
        other.keep(&layout(1));
        assert!(layouts.get("1/2/n").is_none() && layouts.get("1/3/n").is_some());
        layouts.begin_reading("1/2/n").keep(&layout(1));
        assert!(layouts.get("1/2/n").is_some());
        // One that fails leaves nothing.
        drop(layouts.begin_reading("1/2/n"));
        assert!(layouts.get("1/2/n").is_some() && lock(&layouts.kept).being_read.is_empty());
    }

    #[test]
    fn one_thread_reads_an_index_and_others_those_of_other_folders() {
        let layouts = Layouts::new(u64::MAX);
        let (first, other) = (layouts.turn("a"), layouts.turn("b"));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let _turn = layouts.turn("a");
                layouts.get("a").is_some()
            });
            layouts.begin_reading("a").keep(&layout(1));
            assert!(!second.is_finished());
            drop(first);
            assert!(second.join().unwrap(), "it finds what the first one has kept");
        });
        drop(other);
        assert!(lock(&layouts.read).is_empty());
    }
}
