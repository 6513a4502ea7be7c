//! The indexes of folders that were read last: a range that is read next to another one of its slot asks for no index.

use super::layout::Layout;
use super::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

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
}

impl Kept {
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
}

impl Layouts {
    pub(super) fn new(most: u64) -> Layouts {
        Layouts { most, kept: Mutex::default() }
    }

    pub(super) fn get(&self, folder: &str) -> Option<Arc<Layout>> {
        let mut kept = lock(&self.kept);
        kept.uses += 1;
        let used = kept.uses;
        let entry = kept.of.get_mut(folder)?;
        entry.used = used;
        Some(Arc::clone(&entry.layout))
    }

    /// Keeps an index. Those that were not used for longest are removed for it.
    pub(super) fn keep(&self, folder: &str, layout: &Arc<Layout>) {
        let bytes = AROUND + folder.len() as u64 + layout.memory();
        let mut kept = lock(&self.kept);
        kept.remove(folder);
        kept.uses += 1;
        kept.bytes += bytes;
        let entry = Entry { layout: Arc::clone(layout), bytes, used: kept.uses };
        kept.of.insert(folder.to_owned(), entry);
        while kept.of.len() > 1 && kept.bytes > self.most {
            let oldest = kept.of.iter().min_by_key(|(_, entry)| entry.used).map(|(folder, _)| folder.clone());
            oldest.into_iter().for_each(|folder| kept.remove(&folder));
        }
    }

    pub(super) fn forget(&self, folder: &str) {
        lock(&self.kept).remove(folder);
    }

    /// Forgets all folders below a path.
    pub(super) fn forget_below(&self, path: &str) {
        let mut kept = lock(&self.kept);
        let below = format!("{path}/");
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
            layouts.keep(&format!("a/{at}"), &layout(10));
            assert!(layouts.get("a/0").is_some(), "it is used again and again");
            assert!(layouts.bytes() <= 4_000 && layouts.bytes() == sum(&layouts));
        }
        assert!(layouts.get("a/99").is_some() && layouts.get("a/50").is_none());
        layouts.keep("large", &layout(10_000));
        assert!(layouts.get("large").is_some() && layouts.get("a/0").is_none(), "one is always kept");
        assert_eq!(lock(&layouts.kept).of.len(), 1);
        // The same folder counts once.
        layouts.keep("large", &layout(1));
        assert!(layouts.bytes() < 4_000 && layouts.bytes() == sum(&layouts));
    }

    #[test]
    fn what_is_below_a_path_is_forgotten_and_nothing_else() {
        let layouts = Layouts::new(u64::MAX);
        let all = ["1/2", "1/2/n", "1/2/m", "1/20/n", "1/3/n"];
        all.iter().for_each(|folder| layouts.keep(folder, &layout(1)));
        layouts.forget_below("1/2");
        let left: Vec<&str> = all.into_iter().filter(|folder| layouts.get(folder).is_some()).collect();
        assert_eq!(left, ["1/2", "1/20/n", "1/3/n"]);
        left.iter().for_each(|folder| layouts.forget(folder));
        assert_eq!((layouts.bytes(), sum(&layouts)), (0, 0));
    }
}
