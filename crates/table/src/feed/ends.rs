//! Up to where a reader reads that does not follow: to the end that each part of the table had when it began, or to a later one.
//!
//! No position in a log says that: the log of a shard that closes may end under a later epoch than that under which its children
//! begin, and in a child the last changes of its parent may be of keys that another child has. So each page names the bounds that
//! it has read to their end, and the reader keeps the others. A reader that is slower than the writers ends all the same.

use super::{FeedToken, TableChanges};
use partage_core::keyspace::sharding::Bounds;
use partage_service::table::feed::{Progress, Since};

/// The parts of a table whose end a reader has not reached yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndsLeft {
    /// All that the reader wants.
    All,
    /// The parts of this token. What it says of each part does not count.
    Of(FeedToken),
}

impl EndsLeft {
    /// What is left behind a page; none: the end of each part is reached.
    #[must_use]
    pub fn after(&self, page: &TableChanges) -> Option<FeedToken> {
        let token = match self {
            EndsLeft::All => &page.next,
            EndsLeft::Of(token) => token,
        };
        let wanted = token.progress.parts().iter().map(|part| part.bounds.clone());
        let wanted = Progress::begin(wanted, &Since::Oldest);
        let progress = page.ended.iter().fold(wanted, without);
        (!progress.is_empty()).then(|| FeedToken { progress, ..token.clone() })
    }
}

fn without(left: Progress, ended: &Bounds) -> Progress {
    let read = left.read_on(Progress::begin([ended.clone()], &Since::Now)).into_parts();
    Progress::new(read.into_iter().filter(|part| part.since == Since::Oldest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::ShardId;
    use partage_core::base::name::KeyspaceName;
    use partage_core::keyspace::key::HashRange;
    use partage_core::keyspace::sharding::Slot;

    fn hashes(first: u64, last: u64) -> Bounds {
        Bounds::Hashes(HashRange { first, last })
    }

    fn page(parts: Vec<Bounds>, ended: Vec<Bounds>) -> TableChanges {
        let (table, first_shard) = (KeyspaceName::new("t").unwrap(), ShardId(1));
        let progress = Progress::begin(parts, &Since::Now);
        TableChanges { changes: Vec::new(), next: FeedToken { table, first_shard, progress }, ended }
    }

    fn left(token: &FeedToken) -> Vec<Bounds> {
        token.progress.parts().iter().map(|part| part.bounds.clone()).collect()
    }

    #[test]
    fn a_reader_ends_when_each_part_was_read_to_its_end_over_splits_and_merges() {
        let all = || vec![HashRange::ALL].into_iter().map(Bounds::Hashes).collect::<Vec<_>>();
        let first = EndsLeft::All.after(&page(all(), vec![hashes(0, 99), hashes(200, 299)])).unwrap();
        assert_eq!(left(&first), [hashes(100, 199), hashes(300, u64::MAX)]);
        // The shard from 100 on was merged with its neighbours: what was read to its end may come again.
        let second = EndsLeft::Of(first).after(&page(all(), vec![hashes(50, 250), hashes(0, 9)])).unwrap();
        assert_eq!(left(&second), [hashes(300, u64::MAX)]);
        let third = EndsLeft::Of(second.clone()).after(&page(all(), Vec::new())).unwrap();
        assert_eq!(third, second, "nothing was read to its end");
        assert_eq!(EndsLeft::Of(third).after(&page(all(), vec![hashes(300, u64::MAX)])), None);
        // A token is read by other programs as text.
        let token = EndsLeft::All.after(&page(Slot::all(4), Slot::all(8)[2..].to_vec())).unwrap();
        assert_eq!(FeedToken::parse(&token.text()).unwrap(), token);
    }
}
