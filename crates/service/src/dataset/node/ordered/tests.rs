use super::*;
use crate::dataset::node::tests::remembers;
use crate::dataset::node::{Event, News, NodeSettings, State, Stored};
use crate::dataset::seats::Address;
use crate::dataset::{DatasetName, Partitioner};
use std::collections::BTreeMap;

const LAYOUT: Layout = Layout { partitioner: Partitioner::JavaBytes, partitions: 4, digest: 7 };
const LET_GO_MS: u64 = 5_000;

fn dataset() -> DatasetName {
    DatasetName::new("names").unwrap()
}

fn version(name: &str) -> VersionName {
    VersionName::new(name).unwrap()
}

fn address(name: &str) -> Address {
    Address::new(&format!("{name}:80")).unwrap()
}

fn slot(number: u32) -> Slot {
    Slot::new(number, 2).unwrap()
}

fn slots(numbers: &[u32]) -> BTreeSet<Slot> {
    numbers.iter().map(|number| slot(*number)).collect()
}

/// That `other` has these partitions, or has them no longer.
fn held(other: &str, name: &str, partitions: &[u32], is_there: bool) -> Event {
    let of = |partition: &u32| News::Partition {
        dataset: dataset(),
        version: version(name),
        partition: *partition,
        address: address(other),
        layout: is_there.then_some(LAYOUT),
    };
    Event::Mirror { is_whole: false, news: partitions.iter().map(of).collect() }
}

/// A node that has heard of nobody, with a source of these versions.
fn node(versions: &[&str]) -> Node {
    let settings =
        NodeSettings { is_ordered: true, let_go_ms: LET_GO_MS, ..NodeSettings::new(address("me")) };
    let (mut node, _) = Node::start(settings, BTreeMap::new(), Millis(0));
    node.take(Millis(0), Event::Session);
    node.take(Millis(0), Event::Mirror { is_whole: true, news: Vec::new() });
    node.take(Millis(0), Event::Listed(dataset(), versions.iter().map(|name| version(name)).collect()));
    node
}

fn inspected(node: &mut Node, name: &str) -> Vec<Effect> {
    node.take(Millis(0), Event::Inspected(dataset(), version(name), Ok(LAYOUT)))
}

fn ready(node: &mut Node, name: &str, partitions: &[u32]) {
    for partition in partitions {
        node.take(Millis(0), Event::Ready(dataset(), version(name), *partition));
    }
}

fn loaded(effects: &[Effect]) -> Vec<(String, Vec<u32>)> {
    let load = |effect: &Effect| match effect {
        Effect::Load { version, partitions, .. } => {
            Some((version.to_string(), partitions.iter().copied().collect()))
        }
        _ => None,
    };
    effects.iter().filter_map(load).collect()
}

fn order(node: &mut Node, numbers: &[u32]) -> Vec<Effect> {
    node.take(Millis(0), Event::ShardsOrdered(dataset(), slots(numbers)))
}

#[test]
fn a_shard_is_ready_when_its_partitions_are_here_and_no_others_are_loaded() {
    let mut node = node(&["v1"]);
    assert_eq!(
        loaded(&inspected(&mut node, "v1")),
        [],
        "ng: nothing was ordered, and nobody is there to compute"
    );
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Loading);
    assert_eq!(loaded(&order(&mut node, &[0])), [("v1".to_owned(), vec![0, 2])]);
    ready(&mut node, "v1", &[0]);
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Loading);
    ready(&mut node, "v1", &[2]);
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Loading, "it cannot answer for 1 and 3");
    node.take(Millis(0), held("other", "v1", &[1, 3], true));
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Ready);
    assert_eq!(node.readiness(&dataset(), slot(1)), Readiness::Loading, "it was not ordered");
}

#[test]
fn a_source_without_versions_is_ready_at_once() {
    let mut node = node(&[]);
    order(&mut node, &[1]);
    assert_eq!(node.readiness(&dataset(), slot(1)), Readiness::Ready);
}

#[test]
fn what_fails_is_told_but_a_later_version_that_fails_holds_up_nothing() {
    let mut node = node(&["v1"]);
    inspected(&mut node, "v1");
    order(&mut node, &[0]);
    let failed =
        |name: &str| Event::LoadFailed(dataset(), version(name), "part-0: byte 7: no checksum".to_owned());
    node.take(Millis(0), failed("v1"));
    let told = node.readiness(&dataset(), slot(0));
    assert!(matches!(&told, Readiness::Failed(why) if why.contains("byte 7")), "{told:?}");

    node.take(Millis(0), Event::Listed(dataset(), vec![version("v1"), version("v2")]));
    inspected(&mut node, "v2");
    node.take(Millis(0), held("other", "v1", &[0, 1, 2, 3], true));
    assert_eq!(node.dataset(&dataset()).unwrap().state(&version("v1")), Some(State::Active));
    ready(&mut node, "v1", &[0, 2]);
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Loading, "v2 is on its way");
    node.take(Millis(0), failed("v2"));
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Ready);
}

#[test]
fn nf_a_partition_is_let_go_when_others_have_it_still_after_it_was_withdrawn() {
    let mut node = node(&["v1"]);
    inspected(&mut node, "v1");
    order(&mut node, &[0, 1]);
    ready(&mut node, "v1", &[0, 1, 2, 3]);
    let key = |partition| Key::Partition(dataset(), version("v1"), partition);
    let gone = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::LetGo { .. }));
    let told = order(&mut node, &[0]);
    assert!(told.len() == 1 && remembers(&told[0]), "nobody else has 1 and 3: {told:?}");

    let told = node.take(Millis(0), held("other", "v1", &[1, 3], true));
    let withdrawn: Vec<_> = told.iter().filter(|effect| matches!(effect, Effect::Withdraw(_))).collect();
    assert_eq!(withdrawn, [&Effect::Withdraw(key(1)), &Effect::Withdraw(key(3))]);
    assert!(node.deadline() <= Millis(LET_GO_MS));
    // The other one lets go of 3 at the same time.
    let told = node.take(Millis(1), held("other", "v1", &[3], false));
    assert!(told.contains(&Effect::Publish(key(3), Value::Layout(LAYOUT))), "{told:?}");
    assert!(!gone(&node.take(Millis(LET_GO_MS - 1), Event::Tick)));
    let told = node.take(Millis(LET_GO_MS), Event::Tick);
    let expected = Effect::LetGo { dataset: dataset(), version: version("v1"), partitions: [1].into() };
    assert!(told.contains(&expected), "{told:?}");
    let here = |node: &Node| node.dataset(&dataset()).unwrap().versions[&version("v1")].here.clone();
    assert_eq!(here(&node), [0, 2, 3].into());

    // What is on its way out stays when nobody can be told any more.
    node.take(Millis(LET_GO_MS), held("other", "v1", &[3], true));
    node.take(Millis(LET_GO_MS + 1), Event::SessionLost);
    assert!(!gone(&node.take(Millis(3 * LET_GO_MS), Event::Tick)));
    assert!(node.published().contains_key(&key(3)));
}

#[test]
fn nf_what_is_ordered_elsewhere_is_not_published_when_a_session_begins() {
    let mut node = node(&["v1"]);
    inspected(&mut node, "v1");
    order(&mut node, &[0, 1]);
    ready(&mut node, "v1", &[0, 1, 2, 3]);
    node.take(Millis(1), Event::SessionLost);
    node.take(Millis(1), held("other", "v1", &[1, 3], true));
    order(&mut node, &[0]);
    let told = node.take(Millis(2), Event::Session);
    let key = |partition| Key::Partition(dataset(), version("v1"), partition);
    for partition in 0..4 {
        let is_published = told.contains(&Effect::Publish(key(partition), Value::Layout(LAYOUT)));
        let is_withdrawn = told.contains(&Effect::Withdraw(key(partition)));
        assert_eq!((is_published, is_withdrawn), (partition % 2 == 0, partition % 2 == 1), "{told:?}");
    }
}

#[test]
fn ni_who_starts_without_a_coordinator_goes_on_with_its_orders_and_lets_nothing_go() {
    let stored = Stored {
        slots: slots(&[0]),
        versions: [(version("v1"), (LAYOUT, [0, 1, 2].into()))].into(),
        ..Stored::default()
    };
    let start = |is_ordered| {
        let settings = NodeSettings { is_ordered, let_go_ms: LET_GO_MS, ..NodeSettings::new(address("me")) };
        let (mut node, _) = Node::start(settings, [(dataset(), stored.clone())].into(), Millis(0));
        node.take(Millis(0), Event::Listed(dataset(), vec![version("v1"), version("v2")]));
        node
    };
    let mut node = start(true);
    assert_eq!(loaded(&inspected(&mut node, "v2")), [("v2".to_owned(), vec![0, 2])]);
    assert_eq!(node.readiness(&dataset(), slot(0)), Readiness::Loading, "no coordinator asks for it");
    node.take(Millis(0), Event::Session);
    let news = Event::Mirror { is_whole: true, news: Vec::new() };
    node.take(Millis(0), news);
    let told = node.take(Millis(0), held("other", "v1", &[0, 1, 2, 3], true));
    assert!(!told.iter().any(|effect| matches!(effect, Effect::Withdraw(_))), "ng: {told:?}");
    // Registered anew, it has no orders for a moment; another start would still know them.
    assert!(!order(&mut node, &[]).iter().any(remembers));
    assert_eq!(*node.dataset(&dataset()).unwrap().kept(), slots(&[0]));
    assert!(order(&mut node, &[1]).iter().any(remembers));
    assert_eq!(*node.dataset(&dataset()).unwrap().kept(), slots(&[1]));
    assert_eq!(loaded(&inspected(&mut start(false), "v2")), [], "without a coordinator nobody orders");
}
