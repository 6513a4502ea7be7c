//! A durable cluster whose coordination state is restored from an older backup, while its workers live on (D1, D7, D10).

use super::super::Records;
use super::durable::{durable, force_join, is_told, town_of};
use super::town::{Town, node};
use crate::id::ShardId;
use crate::map::Shard;

/// The state of `backup` in the place of what the coordinators had.
fn restore(mut town: Town, backup: Records) -> Town {
    town.disk = backup.after_loss(1_700_000_000_000);
    town.disks.as_mut().unwrap().restored = true;
    town = town.restart_coordinator();
    town.run(10_000);
    town
}

/// n0's copies have moved off since, and n0 has deleted them: the state names them as copies, some as leaders.
fn after_a_drain(replicas: u32) -> (Town, Vec<ShardId>) {
    let mut town = town_of(3, durable(8, replicas));
    let backup = town.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let moved = town.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    town.drain("n0");
    town.run(30_000);
    assert_eq!(town.counts().get("n0"), None, "{:#?}", town.notices);
    (restore(town, backup), moved)
}

#[test]
fn d1_what_was_deleted_since_the_backup_counts_for_no_copy() {
    let (town, moved) = after_a_drain(2);
    assert!(!moved.is_empty());
    // Each shard has another copy that was one all along: it leads, and n0 loads from it.
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
    assert!(town.is_at_rest(2), "{:#?}", town.map());
}

#[test]
fn d10_the_only_copy_is_one_that_the_backup_does_not_know() {
    let (mut town, moved) = after_a_drain(1);
    let served = town.served();
    assert!(moved.iter().all(|shard| !served.contains(shard)), "{served:?}");
    assert_eq!(served.len() + moved.len(), 8);
    let status = town.cluster.status(town.at());
    let told = format!("{:?}", status.problems);
    assert!(told.contains("force-join"), "{told}");
    assert!(!is_told(&town, "restart that process"), "{:#?}", town.notices);
    // A node with data that no map names is not empty, whatever its orders say.
    let told = |town: &Town| format!("{:?}", town.cluster.drains(town.at()));
    town.drain("n1");
    town.drain("n2");
    town.run(5_000);
    assert!(told(&town).contains("which no map names"), "{}", told(&town));
    assert!(!told(&town).contains("SafeToStop"), "{}", told(&town));
    ["n1", "n2"].into_iter().for_each(|name| town.undrain(name));
    town.run(5_000);
    // Both are there for a person to choose, and nothing of them is deleted.
    for shard in moved {
        let now = town.map().generation().sequence;
        let joins = ["n1", "n2"].map(|on| force_join(&mut town, shard, on, now).is_ok());
        assert!(joins.contains(&true), "{shard}");
    }
    town.run(10_000);
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
}
