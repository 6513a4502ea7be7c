//! Versions of one name and of other files: of a peer with another source, and of a source that has changed one.

use super::*;
use proptest::prelude::*;

/// As many partitions by the same hash, of other files.
const OTHER: Layout = Layout { digest: 8, ..LAYOUT };

fn known<'a>(fixture: &'a Fixture, name: &str) -> &'a Version {
    &fixture.node.dataset(&dataset()).unwrap().versions[&version(name)]
}

#[test]
fn z5_a_version_of_other_files_is_not_used_however_it_is_called_and_divided() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.hear((3..9).flat_map(|node| news("1", node, 0..4, Some(OTHER))).collect());
    let keys = News::Keys { dataset: dataset(), version: version("1"), address: address(3), keys: Some(9) };
    fixture.hear(vec![keys]);
    assert_eq!((fixture.serving(), fixture.state("1")), (None, Some(State::Building)));
    assert_eq!((known(&fixture, "1").peers(0).count(), known(&fixture, "1").keys()), (0, None));
    assert_eq!(known(&fixture, "1").differing(), (3..9).map(address).collect::<Vec<_>>().iter().collect());
    // One of them reads the right source from now on; and nobody has what the other five have.
    fixture.hear(has("1", 3, 0..4));
    assert_eq!(fixture.serving(), Some("1"));
    assert_eq!(known(&fixture, "1").peers(0).collect::<Vec<_>>(), [&address(3)]);
    fixture.hear((4..9).flat_map(|node| news("1", node, 0..4, None)).collect());
    assert!(known(&fixture, "1").differing().is_empty());
}

#[test]
fn z5_a_node_that_restarts_knows_of_which_files_its_copy_is() {
    let mut fixture = Fixture::with(settings(1), stored("3", 0..2));
    fixture.take(Event::Session);
    assert!(fixture.has(&Effect::Publish(partition_key("3", 0), Value::Layout(LAYOUT))));
    fixture.whole(news("3", 2, 0..4, Some(OTHER)));
    assert_eq!((fixture.serving(), known(&fixture, "3").replicas(2)), (None, 0));
    fixture.hear(has("3", 4, 2..4));
    assert_eq!(fixture.serving(), Some("3"));
    assert_eq!(known(&fixture, "3").peers(2).collect::<Vec<_>>(), [&address(4)]);
}

#[test]
fn s19_a_version_that_was_mended_is_loaded_from_its_beginning() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.take(Event::Ready(dataset(), version("1"), 2));
    fixture.take(Event::LoadFailed(dataset(), version("1"), "part-3: cut off".to_owned()));
    fixture.list(&["1"]);
    assert_eq!(fixture.loads("1"), [0, 1, 3]);
    fixture.did();
    // The load finds other files than those that were inspected.
    fixture.take(Event::Inspected(dataset(), version("1"), Ok(OTHER)));
    assert!(fixture.has(&Effect::Withdraw(partition_key("1", 2))), "it is of the files of before");
    let did = fixture.did();
    let at = |effect: &Effect| did.iter().position(|done| done == effect).unwrap();
    let deleted = at(&Effect::Delete(dataset(), version("1")));
    let partitions = (0..4).collect();
    let load = Effect::Load { dataset: dataset(), version: version("1"), layout: OTHER, partitions };
    assert!(deleted < at(&load), "{did:?}");
    for partition in 0..4 {
        fixture.take(Event::Ready(dataset(), version("1"), partition));
    }
    assert!(fixture.has(&Effect::Publish(partition_key("1", 2), Value::Layout(OTHER))));
    assert_eq!((fixture.serving(), fixture.state("1")), (Some("1"), Some(State::Active)));
    // What clients get must not change.
    fixture.did();
    fixture.take(Event::Inspected(dataset(), version("1"), Ok(LAYOUT)));
    assert_eq!((fixture.serving(), known(&fixture, "1").here().len()), (Some("1"), 4));
    let told = known(&fixture, "1").failure().unwrap();
    assert!(told.contains("0000000000000007") && told.contains("0000000000000008"), "{told}");
}

#[test]
fn s19_a_node_that_looked_too_early_looks_again_once_for_whatever_peers_have() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.take(Event::Spread(dataset(), Some(least(2))));
    fixture.list(&["1"]);
    fixture.load("1");
    let looks = |fixture: &mut Fixture, rounds: u32| {
        fixture.did();
        for _ in 0..rounds {
            fixture.wait(60_000);
            fixture.list(&["1"]);
        }
        let inspect = Effect::Inspect(dataset(), version("1"));
        fixture.did().iter().filter(|effect| **effect == inspect).count()
    };
    assert_eq!(looks(&mut fixture, 5), 0, "nobody else has it yet");
    fixture.hear(news("1", 3, 0..4, Some(OTHER)));
    assert_eq!(looks(&mut fixture, 1), 1);
    fixture.inspected("1");
    assert_eq!(looks(&mut fixture, 5), 0, "it is as it was, and the peer has another source");
    let third = Layout { digest: 9, ..LAYOUT };
    fixture.hear(news("1", 4, 0..4, Some(third)));
    assert_eq!(looks(&mut fixture, 1), 1);
    fixture.take(Event::Inspected(dataset(), version("1"), Err("the source is away".to_owned())));
    assert_eq!(looks(&mut fixture, 2), 1, "it has not seen the files");
    fixture.take(Event::Inspected(dataset(), version("1"), Ok(third)));
    assert_eq!(fixture.loads("1"), [0, 1, 2, 3], "all files were there by now");
    for partition in 0..4 {
        fixture.take(Event::Ready(dataset(), version("1"), partition));
    }
    assert_eq!(fixture.serving(), Some("1"));
}

fn least(min: u32) -> Spread {
    Spread { replication: Replication { wanted: 2, min, max: None }, ..Spread::default() }
}

proptest! {
    /// What peers say of a version, one after the other, which may be of any files and be taken back.
    #[test]
    fn z5_only_copies_of_the_same_files_count_and_are_asked(
        said in prop::collection::vec((2u32..7, 0u32..4, prop::option::of(6u64..9)), 0..60),
        min in 1u32..3,
    ) {
        let mut fixture = Fixture::settled(settings(1));
        fixture.take(Event::Spread(dataset(), Some(least(min))));
        fixture.list(&["1"]);
        fixture.inspected("1");
        let mut last = BTreeMap::new();
        let mut was_whole = false;
        for (node, partition, digest) in said {
            let layout = digest.map(|digest| Layout { digest, ..LAYOUT });
            fixture.hear(news("1", node, [partition], layout));
            last.insert((node, partition), digest);
            let with = |keep: &dyn Fn(u64) -> bool, at: Option<u32>| -> BTreeSet<Address> {
                let held = last.iter().filter(|((_, partition), _)| at.is_none_or(|at| at == *partition));
                held.filter(|(_, digest)| digest.is_some_and(keep)).map(|((node, _), _)| address(*node)).collect()
            };
            let is_own = |digest| digest == LAYOUT.digest;
            let holders: Vec<BTreeSet<Address>> = (0..4).map(|at| with(&is_own, Some(at))).collect();
            was_whole |= holders.iter().all(|holders| holders.len() >= min as usize);
            prop_assert_eq!(fixture.serving().is_some(), was_whole);
            let version = known(&fixture, "1");
            for (at, holders) in (0..4).zip(&holders) {
                prop_assert_eq!(version.replicas(at), holders.len());
                let asked: BTreeSet<Address> = version.peers(at).cloned().collect();
                prop_assert!(holders.is_empty() || asked == *holders, "{:?}", asked);
            }
            let differing: BTreeSet<Address> = version.differing().into_iter().cloned().collect();
            prop_assert_eq!(differing, with(&|digest| !is_own(digest), None));
        }
    }
}
