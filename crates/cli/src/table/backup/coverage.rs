//! Which shards are still to be read, while shards are split and merged.
//!
//! What was read of a shard that is not there any more is as good as before: it has every write that was acknowledged before the
//! backup began. So a split of a shard that was read asks for nothing, and its children are read if it was not. A merge of shards
//! of which not all were read is read as a whole; what it overlaps is dropped, as each key must come once. A named partition is
//! neither split nor merged.

use super::cluster::ShardView;
use partage_wire::table::PlaceForm;
use partage_wire::table::backup::manifest::ShardBackup;

/// Whether a place is before the end of a range.
fn is_before(place: &PlaceForm, end: Option<&PlaceForm>) -> bool {
    end.is_none_or(|end| place < end)
}

/// Whether what was read has every key of a shard.
fn is_read(shard: &ShardView, read: &[ShardBackup]) -> bool {
    if matches!(shard.begin, PlaceForm::Name(_)) {
        return read.iter().any(|one| one.begin == shard.begin);
    }
    let mut at = &shard.begin;
    loop {
        let has = |one: &&ShardBackup| one.begin <= *at && is_before(at, one.end.as_ref());
        let Some(one) = read.iter().find(has) else { return false };
        match (&one.end, &shard.end) {
            (None, _) => return true,
            (Some(end), Some(wanted)) if end >= wanted => return true,
            (Some(end), _) => at = end,
        }
    }
}

/// Whether a shard that was not read has keys of what was read.
fn overlap(shard: &ShardView, read: &ShardBackup) -> bool {
    let is_name = matches!(shard.begin, PlaceForm::Name(_));
    !is_name && is_before(&read.begin, shard.end.as_ref()) && is_before(&shard.begin, read.end.as_ref())
}

/// The shards to read of those that there are now. Drops what was read and would come twice.
pub fn missing(now: Vec<ShardView>, read: &mut Vec<ShardBackup>) -> Vec<ShardView> {
    let mut missing = Vec::new();
    for shard in now {
        if !is_read(&shard, read) {
            read.retain(|one| !overlap(&shard, one));
            missing.push(shard);
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(shard: u64, begin: u64, end: u64) -> ShardView {
        let end = (end > 0).then_some(PlaceForm::Point(end));
        ShardView { shard, begin: PlaceForm::Point(begin), end, leader: None, size_bytes: 0 }
    }

    fn read(shard: u64, begin: u64, end: u64) -> ShardBackup {
        let ShardView { begin, end, .. } = view(shard, begin, end);
        ShardBackup { shard, begin, end, position: String::new(), clock_ms: 0, chunks: vec![] }
    }

    fn case(now: &[ShardView], had: &[ShardBackup]) -> (Vec<u64>, Vec<u64>) {
        let mut had = had.to_vec();
        let wanted = missing(now.to_vec(), &mut had).iter().map(|shard| shard.shard).collect();
        (wanted, had.iter().map(|one| one.shard).collect())
    }

    #[test]
    fn a_split_of_what_was_read_asks_for_nothing_and_one_of_what_was_not_for_its_children() {
        let children = [view(3, 0, 5), view(4, 5, 10), view(2, 10, 0)];
        assert_eq!(case(&children, &[read(1, 0, 10), read(2, 10, 0)]), (vec![], vec![1, 2]));
        assert_eq!(case(&children, &[read(1, 0, 10)]), (vec![2], vec![1]));
        assert_eq!(case(&children, &[read(2, 10, 0)]), (vec![3, 4], vec![2]));
        assert_eq!(case(&children, &[]), (vec![3, 4, 2], vec![]));
    }

    #[test]
    fn each_named_partition_is_read_for_itself() {
        let name =
            |shard, name: &str| ShardView { begin: PlaceForm::Name(name.to_owned()), ..view(shard, 0, 0) };
        let had = |shard, of: &str| ShardBackup { begin: name(shard, of).begin, ..read(shard, 0, 0) };
        let now = [name(1, "a"), name(2, "b"), name(3, "c")];
        assert_eq!(case(&now, &[]), (vec![1, 2, 3], vec![]));
        assert_eq!(case(&now, &[had(2, "b")]), (vec![1, 3], vec![2]));
        assert_eq!(case(&now[1..], &[had(1, "a"), had(2, "b")]), (vec![3], vec![1, 2]));
    }

    #[test]
    fn a_merge_is_read_as_a_whole_unless_all_of_it_was_read() {
        let merged = [view(5, 0, 10), view(6, 10, 0)];
        assert_eq!(case(&merged, &[read(1, 0, 5), read(2, 5, 10)]), (vec![6], vec![1, 2]));
        assert_eq!(case(&merged, &[read(1, 0, 5), read(6, 10, 0)]), (vec![5], vec![6]));
        // What was read is dropped as it overlaps, so the rest of it is missing at the next look.
        let across = [view(7, 0, 5), view(8, 5, 0)];
        assert_eq!(case(&across, &[read(1, 0, 10)]), (vec![8], vec![]));
        assert_eq!(case(&across, &[read(8, 5, 0)]), (vec![7], vec![8]));
    }
}
