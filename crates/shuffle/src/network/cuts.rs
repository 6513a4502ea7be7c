//! Where partitions begin, and which keys are heavier than one: holders are asked, each range once, several ranges at a time.

use super::attempt::refusal;
use super::calls::{Asks, Given, next_given, unexpected};
use crate::limits::{ANSWERS, BOUNDS, BOUNDS_BYTES, SEEKS_AT_ONCE};
use crate::node::client::{PutError, Steps, Wanted};
use crate::node::inbox::ReadAnswer;
use crate::node::shared::Shared;
use partage_service::shuffle::Bytes;
use partage_service::shuffle::partition::{CutBy, HeavyKey};
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::seek::{BoundKeys, Found, SeekFor, heavy_seeks, ranked};
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What was sought in a range, and found.
type Sought = (usize, SeekFor, Found);

impl Asks {
    /// The first key, that of each later partition, and the last key; none of a shuffle without records.
    pub(super) async fn bounds(&self, plan: &Arc<Plan>, n: u64, by: CutBy) -> Result<Vec<Bytes>, Refusal> {
        check_count(n)?;
        let mut bounds = BoundKeys::new(plan.held(), n, by);
        let room = Arc::new(Room::new(n));
        loop {
            let seeks = bounds.seeks();
            if seeks.is_empty() {
                break;
            }
            for (range, what, found) in self.seek(plan, seeks, &room).await? {
                bounds.found(range, &what, found);
            }
        }
        let keys = bounds.keys();
        // A holder that says that a range has no first record says something else than the plan.
        if plan.records() > 0 && keys.len() as u64 != n + 1 {
            return Err(unexpected());
        }
        Room::new(n).take(keys.iter())?;
        Ok(keys)
    }

    /// The keys that have more records than any of `n` partitions, with the ranks at which they begin.
    pub(super) async fn heavy_keys(&self, plan: &Arc<Plan>, n: u64) -> Result<Vec<HeavyKey>, Refusal> {
        check_count(n)?;
        let held = plan.held();
        let mut keys = Vec::new();
        for (range, _, found) in self.seek(plan, heavy_seeks(&held, n), &Arc::new(Room::new(n))).await? {
            keys.extend(ranked(&held, range, found));
        }
        keys.sort_by_key(|one| one.first);
        Ok(keys)
    }

    /// Asks for all of it, several ranges at a time.
    async fn seek(
        &self,
        plan: &Arc<Plan>,
        seeks: Vec<(usize, SeekFor)>,
        room: &Arc<Room>,
    ) -> Result<Vec<Sought>, Refusal> {
        let mut under_way = JoinSet::new();
        let share = seeks.len().div_ceil(SEEKS_AT_ONCE).max(1);
        for some in seeks.chunks(share) {
            let (shared, plan, room) = (Arc::clone(&self.shared), Arc::clone(plan), Arc::clone(room));
            under_way.spawn(seek_some(shared, plan, some.to_vec(), room));
        }
        let mut all = Vec::new();
        while let Some(some) = under_way.join_next().await {
            all.extend(some.map_err(|_| refusal(PutError::Stopped))??);
        }
        Ok(all)
    }
}

/// One range after the other.
async fn seek_some(
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    seeks: Vec<(usize, SeekFor)>,
    room: Arc<Room>,
) -> Result<Vec<Sought>, Refusal> {
    let (sender, mut come) = mpsc::channel::<ReadAnswer>(ANSWERS);
    let mut steps = Steps::new(shared, &plan, Wanted::Sought(seeks), sender.into());
    let mut all = Vec::new();
    while let Some(given) = next_given(&mut steps, &mut come).await? {
        if let Given::Found(range, what, found) = given {
            match &found {
                Found::Cuts(cuts) => room.take(cuts.iter().filter_map(|cut| cut.key.as_ref()))?,
                Found::HeavyKeys { keys, .. } => room.take(keys.iter().map(|one| &one.key))?,
            }
            all.push((range, what, found));
        }
    }
    Ok(all)
}

fn check_count(n: u64) -> Result<(), Refusal> {
    if (1..=BOUNDS).contains(&n) {
        return Ok(());
    }
    let why = format!("there are no bounds of {n} partitions: ask for 1 to {BOUNDS}");
    Err(Refusal::new(RefusalWord::NoSuchPartition, Again::No, why))
}

/// The room that one answer has for keys. They are counted as they come from holders: no more of them are held.
struct Room {
    partitions: u64,
    taken: AtomicUsize,
}

impl Room {
    fn new(partitions: u64) -> Room {
        Room { partitions, taken: AtomicUsize::new(0) }
    }

    fn take<'a>(&self, keys: impl Iterator<Item = &'a Bytes>) -> Result<(), Refusal> {
        let bytes: usize = keys.map(|key| key.len()).sum();
        if self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes <= BOUNDS_BYTES {
            return Ok(());
        }
        let n = self.partitions;
        let why = format!(
            "the keys of {n} partitions have more than the {BOUNDS_BYTES} bytes that an answer has room for: ask for fewer partitions"
        );
        Err(Refusal::new(RefusalWord::RecordTooLarge, Again::No, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_bounds_have_a_count_and_keys_a_length() {
        assert!(check_count(1).is_ok() && check_count(BOUNDS).is_ok());
        for bad in [0, BOUNDS + 1, u64::MAX] {
            assert_eq!(check_count(bad).unwrap_err().word, RefusalWord::NoSuchPartition);
        }
        let keys = |count| vec![Bytes::from(vec![0; BOUNDS_BYTES / 4]); count];
        let room = Room::new(4);
        // They come in several answers.
        assert!(room.take(keys(1).iter()).is_ok() && room.take(keys(3).iter()).is_ok());
        let refused = room.take(keys(1).iter()).unwrap_err();
        assert!(refused.why.contains("ask for fewer partitions"), "{refused}");
    }
}
