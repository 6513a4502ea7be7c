//! Which files are read for which partitions, in which order: a pure decision.
//!
//! - (pl1) Every partition that is wanted is made once, and out of every file that may hold one of its keys.
//! - (pl2) A file that is one partition is read only if that one is wanted, and then once.
//! - (pl3) Partitions made at the same time never need more memory than there is, at the least a builder takes.
//! - (pl4) No more jobs are done at once than files may be read at once.

use std::collections::{BTreeMap, BTreeSet};

/// Some partitions, and the files that they are made of. When these have been read, those are complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The numbers of the partitions that the job makes, in ascending order.
    pub partitions: Vec<u32>,
    /// Numbers of files, in order.
    pub files: Vec<u32>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The jobs, begun in this order.
    pub jobs: Vec<Job>,
    /// How many of them at once; of one job alone, its files are read at once instead.
    pub jobs_at_once: usize,
    /// Memory of each builder.
    pub builder_bytes: usize,
}

/// What there is to work with.
#[derive(Debug, Clone, Copy)]
pub struct Resources {
    /// How many files are read at the same time.
    pub at_once: usize,
    /// Bytes of memory for all builders together.
    pub memory_bytes: usize,
    /// Bytes of memory below which a builder is not begun beside another.
    pub least_bytes: usize,
}

/// Divides the work. `whole` says which files are one partition.
pub fn plan(files: u32, whole: &BTreeMap<u32, u32>, wanted: &BTreeSet<u32>, resources: Resources) -> Plan {
    let mixed: Vec<u32> = (0..files).filter(|file| !whole.contains_key(file)).collect();
    let at_once = resources.at_once.max(1);
    // Several builders at once as long as each has the least.
    let together = (resources.memory_bytes / resources.least_bytes.max(1)).max(1);
    let (size, jobs_at_once) = match mixed.is_empty() {
        true => (1, at_once.min(together)),
        false => (together.min(wanted.len().max(1)), 1),
    };
    let wanted: Vec<u32> = wanted.iter().copied().collect();
    let jobs = wanted.chunks(size).map(|partitions| {
        let of_these = whole.iter().filter(|(_, partition)| partitions.contains(partition));
        let mut files: Vec<u32> = of_these.map(|(file, _)| *file).chain(mixed.iter().copied()).collect();
        files.sort_unstable();
        Job { partitions: partitions.to_vec(), files }
    });
    let builders = size * jobs_at_once;
    Plan {
        jobs: jobs.collect(),
        jobs_at_once,
        builder_bytes: (resources.memory_bytes / builders).max(resources.least_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_key_finds_its_store_file(
            files in 1u32..40,
            whole in prop::collection::btree_map(0u32..40, 0u32..40, 0..40),
            wanted in prop::collection::btree_set(0u32..40, 0..40),
            at_once in 0usize..9,
            memory_bytes in 0usize..50,
        ) {
            let whole: BTreeMap<u32, u32> =
                whole.into_iter().filter(|(f, p)| *f < files && *p < files).collect();
            let wanted: BTreeSet<u32> = wanted.into_iter().filter(|p| *p < files).collect();
            let resources = Resources { at_once, memory_bytes, least_bytes: 2 };
            let plan = plan(files, &whole, &wanted, resources);
            prop_assert!((1..=at_once.max(1)).contains(&plan.jobs_at_once), "pl4");
            let made: Vec<u32> = plan.jobs.iter().flat_map(|job| job.partitions.clone()).collect();
            prop_assert_eq!(made, wanted.iter().copied().collect::<Vec<_>>(), "pl1");
            for job in &plan.jobs {
                for file in 0..files {
                    let is_needed = whole.get(&file).is_none_or(|partition| job.partitions.contains(partition));
                    prop_assert_eq!(job.files.contains(&file), is_needed, "pl1, pl2");
                }
                let builders = job.partitions.len() * plan.jobs_at_once;
                prop_assert!(builders == 1 || builders * plan.builder_bytes <= memory_bytes, "pl3");
            }
        }
    }
}
