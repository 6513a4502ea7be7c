//! One node, told what happens around it.

use super::*;
use crate::dataset::partition::Partitioner;
use crate::dataset::seats::{Claim, Right, Seat};
use crate::dataset::{Dealing, Replication, Wish};

mod digest;
mod withdrawn;

const LAYOUT: Layout = Layout { partitioner: Partitioner::JavaBytes, partitions: 4, digest: 7 };

fn shows(effect: &Effect, name: &str) -> bool {
    matches!(effect, Effect::Show(shown) if shown.version == version(name))
}

fn upgrades(effect: &Effect, name: &str) -> bool {
    matches!(effect, Effect::Upgrade { version: upgraded, .. } if *upgraded == version(name))
}

pub(super) fn remembers(effect: &Effect) -> bool {
    matches!(effect, Effect::Remember(_))
}

fn dataset() -> DatasetName {
    DatasetName::new("names").unwrap()
}

fn version(name: &str) -> VersionName {
    VersionName::new(name).unwrap()
}

fn address(node: u32) -> Address {
    Address::new(&format!("node-{node}:9599")).unwrap()
}

fn settings(node: u32) -> NodeSettings {
    NodeSettings {
        wish: Wish::Configured(Seat(node)),
        spread: Spread { dealing: Dealing::RingIndex, ..Spread::default() },
        ..NodeSettings::new(address(node))
    }
}

/// A node with its time, and its effects since they were last taken.
struct Fixture {
    node: Node,
    now: u64,
    effects: Vec<Effect>,
}

impl Fixture {
    fn new(settings: NodeSettings) -> Fixture {
        Fixture::with(settings, BTreeMap::new())
    }

    fn with(settings: NodeSettings, stored: BTreeMap<DatasetName, Stored>) -> Fixture {
        let (node, effects) = Node::start(settings, stored, Millis(0));
        Fixture { node, now: 0, effects }
    }

    /// A node in a cluster at rest, with one peer at seat 2 that has nothing.
    fn settled(settings: NodeSettings) -> Fixture {
        let mut fixture = Fixture::new(settings);
        fixture.take(Event::Session);
        fixture.whole(vec![node_news(2, 2)]);
        fixture.wait(10_000);
        fixture.effects.clear();
        fixture
    }

    fn take(&mut self, event: Event) {
        self.effects.extend(self.node.take(Millis(self.now), event));
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms;
        self.take(Event::Tick);
    }

    fn whole(&mut self, news: Vec<News>) {
        self.take(Event::Mirror { is_whole: true, news });
    }

    fn hear(&mut self, news: Vec<News>) {
        self.take(Event::Mirror { is_whole: false, news });
    }

    fn list(&mut self, versions: &[&str]) {
        self.take(Event::Listed(dataset(), versions.iter().map(|name| version(name)).collect()));
    }

    fn inspected(&mut self, name: &str) {
        self.take(Event::Inspected(dataset(), version(name), Ok(LAYOUT)));
    }

    /// The source has a version, and this node loads all of its share.
    fn load(&mut self, name: &str) {
        self.inspected(name);
        for partition in self.loads(name) {
            self.take(Event::Ready(dataset(), version(name), partition));
        }
    }

    /// The partitions that are being loaded.
    fn loads(&self, name: &str) -> Vec<u32> {
        let state = self.node.dataset(&dataset()).unwrap();
        state.versions[&version(name)].loading.iter().copied().collect()
    }

    fn serving(&self) -> Option<&str> {
        self.node.dataset(&dataset()).and_then(DatasetState::serving).map(VersionName::as_str)
    }

    fn did(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn shows(&self, name: &str) -> bool {
        self.effects.iter().any(|effect| shows(effect, name))
    }

    fn has(&self, effect: &Effect) -> bool {
        self.effects.contains(effect)
    }

    fn state(&self, name: &str) -> Option<State> {
        self.node.dataset(&dataset()).and_then(|state| state.state(&version(name)))
    }
}

fn node_news(node: u32, seat: u32) -> News {
    News::Node(address(node), Some(Claim { seat: Seat(seat), right: Right::Configured }))
}

fn has(name: &str, node: u32, partitions: impl IntoIterator<Item = u32>) -> Vec<News> {
    news(name, node, partitions, Some(LAYOUT))
}

fn news(
    name: &str,
    node: u32,
    partitions: impl IntoIterator<Item = u32>,
    layout: Option<Layout>,
) -> Vec<News> {
    let of = |partition| News::Partition {
        dataset: dataset(),
        version: version(name),
        partition,
        address: address(node),
        layout,
    };
    partitions.into_iter().map(of).collect()
}

fn partition_key(name: &str, partition: u32) -> Key {
    Key::Partition(dataset(), version(name), partition)
}

#[test]
fn s9_it_loads_when_nodes_have_been_stable_and_not_before() {
    let mut fixture = Fixture::new(settings(1));
    fixture.take(Event::Session);
    let claim = Claim { seat: Seat(1), right: Right::Configured };
    assert!(fixture.has(&Effect::Publish(Key::Node, Value::Claim(claim))));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.wait(60_000);
    assert!(fixture.loads("1").is_empty(), "the mirror was never heard");
    fixture.whole(vec![]);
    fixture.wait(9_999);
    fixture.hear(vec![node_news(2, 2)]);
    assert_eq!(fixture.node.deadline(), Millis(79_999));
    fixture.wait(9_999);
    assert!(fixture.loads("1").is_empty(), "another one came");
    fixture.wait(1);
    assert_eq!(fixture.loads("1"), [0, 1, 2, 3], "two nodes, two replicas");
}

#[test]
fn s9_nodes_that_never_rest_are_dealt_to_as_they_are() {
    let mut fixture = Fixture::new(settings(1));
    fixture.take(Event::Session);
    fixture.whole(vec![]);
    fixture.list(&["1"]);
    fixture.inspected("1");
    for round in 0..11 {
        fixture.hear(vec![node_news(2, 2 + round % 2)]);
        fixture.wait(5_000);
    }
    assert!(fixture.loads("1").is_empty());
    fixture.hear(vec![node_news(2, 9)]);
    fixture.wait(5_000);
    assert!(!fixture.loads("1").is_empty());
}

#[test]
fn s10_clients_get_it_when_each_partition_has_enough_replicas_anywhere() {
    let mut fixture = Fixture::settled(settings(1));
    let replication = Replication { wanted: 2, min: 2, max: None };
    fixture.take(Event::Spread(dataset(), Some(Spread { replication, ..Spread::default() })));
    fixture.list(&["1"]);
    fixture.load("1");
    assert_eq!((fixture.serving(), fixture.state("1")), (None, Some(State::Building)));
    fixture.hear(has("1", 2, 0..3));
    assert_eq!(fixture.serving(), None);
    fixture.hear(has("1", 2, 3..4));
    assert_eq!((fixture.serving(), fixture.state("1")), (Some("1"), Some(State::Active)));
    let did = fixture.did();
    let remembered = did.iter().rposition(remembers).unwrap();
    assert!(remembered < did.iter().rposition(|effect| upgrades(effect, "1")).unwrap());
}

#[test]
fn s13_a_node_that_joins_serves_what_others_have_as_soon_as_its_source_says_what_that_is() {
    let mut fixture = Fixture::new(settings(3));
    fixture.take(Event::Session);
    let mut all = has("7", 1, 0..4);
    all.push(node_news(1, 1));
    fixture.whole(all);
    assert_eq!(fixture.serving(), None, "its own source was not heard");
    fixture.list(&["7", "8"]);
    assert!(fixture.has(&Effect::Inspect(dataset(), version("7"))), "others have it, and nobody has 8");
    fixture.inspected("7");
    assert_eq!(fixture.serving(), Some("7"), "neither rest nor a load was waited for");
    let did = fixture.did();
    let at = |is: fn(&Effect, &str) -> bool| did.iter().position(|effect| is(effect, "7")).unwrap();
    assert!(at(shows) < at(upgrades), "{did:?}");
    let known = &fixture.node.dataset(&dataset()).unwrap().versions[&version("7")];
    assert_eq!(known.peers(2).collect::<Vec<_>>(), [&address(1)]);
}

#[test]
fn s13_peers_are_served_before_clients() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.did();
    fixture.take(Event::Ready(dataset(), version("1"), 2));
    let publish = Effect::Publish(partition_key("1", 2), Value::Layout(LAYOUT));
    let did = fixture.did();
    let in_order = did.len() == 2 && shows(&did[0], "1") && did[1] == publish;
    assert!(in_order, "it can be read before it is said to be: {did:?}");
    assert_eq!(fixture.serving(), None);
}

#[test]
fn s14_only_forward_and_never_back_to_what_is_whole_again() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["2"]);
    fixture.load("2");
    assert_eq!(fixture.serving(), Some("2"));
    fixture.hear(news("2", 2, 0..4, None));
    fixture.list(&["1"]);
    fixture.hear(has("1", 2, 0..4));
    assert_eq!(fixture.serving(), Some("2"));
    assert_eq!(fixture.loads("1"), [0; 0]);
    assert!(
        !fixture.has(&Effect::Inspect(dataset(), version("1"))),
        "what is earlier is none of its business"
    );
}

#[test]
fn s15_an_old_version_goes_when_nobody_asked_for_it_for_ten_minutes() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.list(&["1", "2"]);
    fixture.load("2");
    assert_eq!((fixture.serving(), fixture.state("1")), (Some("2"), Some(State::Removing)));
    let began = fixture.now;
    fixture.did();
    fixture.wait(599_999);
    assert!(fixture.did().is_empty());
    fixture.wait(1);
    let retire =
        |since| Effect::Retire { dataset: dataset(), version: version("1"), unused_since: Millis(since) };
    assert_eq!(fixture.did(), [retire(began)]);
    // A request came a minute ago.
    fixture.take(Event::Used(dataset(), version("1"), Millis(fixture.now - 60_000)));
    assert_eq!(fixture.node.deadline(), Millis(fixture.now + 540_000));
    fixture.wait(540_000);
    assert_eq!(fixture.did(), [retire(fixture.now - 600_000)]);
    fixture.take(Event::Retired(dataset(), version("1")));
    let did = fixture.did();
    let withdrawn = did.iter().filter(|effect| matches!(effect, Effect::Withdraw(_))).count();
    assert!(withdrawn == 4 && did.contains(&Effect::Delete(dataset(), version("1"))), "{did:?}");
}

#[test]
fn s15_what_is_read_or_was_asked_for_stays() {
    assert!(may_retire(0, Millis(7), Millis(7)));
    assert!(!may_retire(1, Millis(7), Millis(7)) && !may_retire(0, Millis(8), Millis(7)));
}

#[test]
fn s2_without_the_coordination_service_it_goes_on() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.hear(has("1", 2, 0..4));
    fixture.take(Event::LoadFailed(dataset(), version("1"), "part-0: byte 17: no checksum".to_owned()));
    fixture.take(Event::SessionLost);
    fixture.wait(365 * 24 * 3_600_000);
    let known = &fixture.node.dataset(&dataset()).unwrap().versions[&version("1")];
    assert_eq!((fixture.serving(), known.peers(0).count()), (Some("1"), 1));
    fixture.list(&["1", "2"]);
    fixture.load("2");
    assert_eq!(fixture.serving(), Some("2"), "it has all partitions itself, and needs nobody to know that");
    assert!(!fixture.effects.iter().any(|effect| matches!(effect, Effect::Publish(..))));
    fixture.did();
    fixture.take(Event::Session);
    let published = fixture.did().iter().filter(|effect| matches!(effect, Effect::Publish(..))).count();
    assert_eq!(published, 5, "its seat and four partitions");
}

#[test]
fn s2_who_had_a_partition_last_is_asked_when_nobody_is_known_to_have_it() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.hear([has("1", 2, 0..4), has("1", 3, 0..4)].concat());
    let known = |fixture: &Fixture, partition| -> (Vec<Address>, usize) {
        let version = &fixture.node.dataset(&dataset()).unwrap().versions[&version("1")];
        (version.peers(partition).cloned().collect(), version.replicas(partition))
    };
    fixture.did();
    // The service comes back, and knows nobody yet.
    fixture.whole(vec![]);
    assert_eq!((fixture.serving(), known(&fixture, 0)), (Some("1"), (vec![address(2), address(3)], 0)));
    fixture.hear(has("1", 3, [0]));
    assert_eq!(known(&fixture, 0), (vec![address(3)], 1));
    fixture.hear(news("1", 3, [0], None));
    assert_eq!(known(&fixture, 0), (vec![address(3)], 0));
    assert!(fixture.shows("1"));
}

#[test]
fn s12_what_is_gone_is_published_again_and_what_it_lacks_is_withdrawn() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.did();
    fixture.hear(news("1", 1, [2], None));
    assert_eq!(fixture.did(), [Effect::Publish(partition_key("1", 2), Value::Layout(LAYOUT))]);
    fixture.hear(has("0", 1, [3]));
    assert_eq!(fixture.did(), [Effect::Withdraw(partition_key("0", 3))]);
    let mut all = has("1", 1, 0..3);
    all.push(node_news(1, 1));
    all.push(node_news(2, 2));
    fixture.whole(all);
    assert!(fixture.has(&Effect::Publish(partition_key("1", 3), Value::Layout(LAYOUT))));
    assert!(!fixture.has(&Effect::Publish(partition_key("1", 1), Value::Layout(LAYOUT))));
}

#[test]
fn s19_a_version_that_fails_leaves_the_old_one_and_is_tried_again_at_the_next_refresh() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    assert_eq!(fixture.loads("2").len(), 4);
    fixture.take(Event::LoadFailed(dataset(), version("2"), "part-3: byte 17: no checksum".to_owned()));
    assert_eq!((fixture.serving(), fixture.state("2")), (Some("1"), Some(State::Error)));
    let state = fixture.node.dataset(&dataset()).unwrap();
    assert_eq!(state.versions[&version("2")].failure(), Some("part-3: byte 17: no checksum"));
    fixture.wait(3_600_000);
    assert!(fixture.loads("2").is_empty());
    fixture.list(&["1", "2"]);
    assert_eq!((fixture.loads("2").len(), fixture.state("2")), (4, Some(State::Building)));
    fixture.load("2");
    assert_eq!(fixture.serving(), Some("2"));
}

#[test]
fn s19_a_version_that_fails_again_and_again_rests_longer_each_time() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    let failed = || Event::LoadFailed(dataset(), version("1"), "part-3: cut off".to_owned());
    let mut rests = Vec::new();
    for _ in 0..9 {
        fixture.take(failed());
        let mut refreshes = 0;
        while fixture.loads("1").is_empty() {
            fixture.wait(60_000);
            fixture.list(&["1"]);
            refreshes += 1;
        }
        rests.push(refreshes);
    }
    assert_eq!(rests, [1, 1, 2, 4, 8, 16, 32, 60, 60]);
    fixture.take(failed());
    fixture.list(&["1"]);
    assert!(fixture.loads("1").is_empty());
    fixture.take(Event::TryAgain);
    fixture.list(&["1"]);
    assert_eq!(fixture.loads("1").len(), 4, "a person has asked");
    fixture.load("1");
    let state = fixture.node.dataset(&dataset()).unwrap();
    assert_eq!((state.versions[&version("1")].failures(), fixture.serving()), (0, Some("1")));
}

#[test]
fn s19_a_version_that_killed_the_node_is_an_error_and_rests() {
    let served = Some(Served { order: 0, version: version("1") });
    let versions = [(version("1"), (LAYOUT, (0..4).collect()))].into();
    let stored = Stored { served, versions, died: [(version("2"), 1)].into(), ..Stored::default() };
    let mut fixture = Fixture::with(settings(1), [(dataset(), stored)].into());
    assert!(fixture.shows("2"));
    assert_eq!(fixture.state("2"), Some(State::Error));
    fixture.take(Event::Session);
    fixture.whole(vec![node_news(2, 2)]);
    fixture.wait(10_000);
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    assert_eq!((fixture.serving(), fixture.loads("2").len()), (Some("1"), 0), "not at once");
    let why = fixture.node.dataset(&dataset()).unwrap().versions[&version("2")].failure().unwrap().to_owned();
    assert!(why.contains("killed once"), "{why}");
    fixture.wait(60_000);
    fixture.list(&["1", "2"]);
    assert_eq!(fixture.loads("2").len(), 4);
}

#[test]
fn s15_when_the_disk_is_full_what_clients_do_not_get_goes_at_once() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.list(&["1", "2"]);
    fixture.load("2");
    fixture.list(&["1", "2", "3"]);
    fixture.did();
    fixture.take(Event::DiskFull);
    let retire = Effect::Retire { dataset: dataset(), version: version("1"), unused_since: Millis::NEVER };
    assert!(fixture.has(&retire), "{:?}", fixture.effects);
    assert!(
        !fixture.effects.iter().any(|e| matches!(e, Effect::Retire { version: v, .. } if *v != version("1")))
    );
    fixture.take(Event::Retired(dataset(), version("1")));
    assert!(fixture.has(&Effect::Delete(dataset(), version("1"))));
    assert_eq!(fixture.serving(), Some("2"));
}

/// Version 1 with 100 keys in a partition, and then one with so many.
fn replaced(keys: u64, guard: Option<Guard>) -> Fixture {
    let mut fixture = Fixture::settled(settings(1));
    if let Some(guard) = guard {
        fixture.take(Event::Guard(dataset(), guard));
    }
    fixture.list(&["1"]);
    fixture.take(Event::Counted(dataset(), version("1"), 400));
    fixture.load("1");
    assert_eq!(fixture.serving(), Some("1"));
    fixture.list(&["1", "2"]);
    fixture.take(Event::Counted(dataset(), version("2"), keys));
    fixture.load("2");
    fixture
}

#[test]
fn s8_a_version_without_keys_or_with_less_than_half_is_held_until_a_person_releases_it() {
    for keys in [0, 199] {
        let mut fixture = replaced(keys, None);
        assert_eq!((fixture.serving(), fixture.state("2")), (Some("1"), Some(State::Held)), "{keys}");
        assert!(fixture.node.dataset(&dataset()).unwrap().versions[&version("2")].held().is_some());
        fixture.wait(3_600_000);
        fixture.list(&["1", "2"]);
        assert_eq!(fixture.serving(), Some("1"));
        // An earlier one again, and back: the hold is as before.
        fixture.take(Event::Pin(dataset(), Some(version("1")), 7));
        fixture.take(Event::Pin(dataset(), None, 8));
        assert_eq!((fixture.serving(), fixture.state("2")), (Some("1"), Some(State::Held)));
        fixture.take(Event::Pin(dataset(), Some(version("2")), 9));
        assert_eq!((fixture.serving(), fixture.state("2")), (Some("2"), Some(State::Active)));
        fixture.take(Event::Pin(dataset(), None, 10));
        assert_eq!(fixture.serving(), Some("2"));
        // What comes after is compared with what clients get now.
        fixture.list(&["1", "2", "3"]);
        fixture.take(Event::Counted(dataset(), version("3"), keys));
        fixture.load("3");
        assert_eq!(fixture.serving(), Some("3"));
    }
    assert_eq!(replaced(200, None).serving(), Some("2"), "half is enough");
    let open = Guard { min_keys: Some(0), max_shrink_percent: 100 };
    assert_eq!(replaced(0, Some(open)).serving(), Some("2"));
    let strict = Guard { min_keys: Some(300), max_shrink_percent: 1 };
    assert_eq!(replaced(299, Some(strict)).serving(), Some("1"));
    assert_eq!(replaced(395, Some(strict)).serving(), Some("1"));
    assert_eq!(replaced(396, Some(strict)).serving(), Some("2"));
}

#[test]
fn s8_what_peers_tell_of_their_keys_counts_and_a_later_version_passes_a_held_one() {
    let mut fixture = replaced(399, None);
    assert_eq!(fixture.serving(), Some("2"));
    fixture.list(&["1", "2", "3"]);
    let keys = |name: &str, keys| News::Keys {
        dataset: dataset(),
        version: version(name),
        address: address(2),
        keys: Some(keys),
    };
    // All of it is at the peer, and this node has none of it.
    let of_peer = |name: &str, count| {
        let mut news = has(name, 2, 0..4);
        news.push(keys(name, count));
        news
    };
    fixture.inspected("3");
    fixture.hear(of_peer("3", 3));
    assert_eq!((fixture.serving(), fixture.state("3")), (Some("2"), Some(State::Held)));
    fixture.list(&["1", "2", "3", "4"]);
    fixture.inspected("4");
    fixture.hear(of_peer("4", 390));
    assert_eq!((fixture.serving(), fixture.state("3")), (Some("4"), Some(State::Removing)));
}

#[test]
fn s19_an_earlier_version_is_loaded_while_the_latest_fails() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["2", "3"]);
    assert!(fixture.has(&Effect::Inspect(dataset(), version("3"))));
    assert!(
        !fixture.has(&Effect::Inspect(dataset(), version("2"))),
        "the latest alone, as long as it holds out hope"
    );
    fixture.take(Event::Inspected(dataset(), version("3"), Err("part-0: not a SequenceFile".to_owned())));
    assert!(fixture.has(&Effect::Inspect(dataset(), version("2"))));
    fixture.load("2");
    assert_eq!((fixture.serving(), fixture.state("3")), (Some("2"), Some(State::Error)));
    fixture.list(&["2", "3"]);
    fixture.load("3");
    assert_eq!(fixture.serving(), Some("3"));
}

#[test]
fn a_version_that_the_source_divides_otherwise_than_its_peers_is_an_error() {
    // Of what is here already the source says now that it is divided otherwise.
    let mut fixture = Fixture::with(settings(1), stored("1", 0..2));
    fixture.take(Event::Inspected(dataset(), version("1"), Ok(Layout { partitions: 5, ..LAYOUT })));
    let state = fixture.node.dataset(&dataset()).unwrap();
    let told = state.versions[&version("1")].failure().unwrap();
    assert!(told.contains("5 partitions") && told.contains("4 by java-bytes"), "{told}");
}

#[test]
fn z5_who_divides_a_version_otherwise_has_another_one_and_holds_nobody_back() {
    let mut fixture = Fixture::settled(settings(1));
    let strange = Layout { partitioner: Partitioner::HadoopBytes, ..LAYOUT };
    for node in 3..9 {
        fixture.hear(news("1", node, 0..4, Some(strange)));
    }
    fixture.list(&["1"]);
    assert_eq!((fixture.serving(), fixture.state("1")), (None, Some(State::Building)));
    fixture.inspected("1");
    assert_eq!(fixture.serving(), None, "six nodes have what is called so, and none of them has this");
    fixture.load("1");
    assert_eq!((fixture.serving(), fixture.state("1")), (Some("1"), Some(State::Active)));
    let known = &fixture.node.dataset(&dataset()).unwrap().versions[&version("1")];
    assert_eq!(known.peers(0).count(), 0, "nor is one of them asked");
}

#[test]
fn z5_no_peer_makes_a_node_serve_what_its_own_source_does_not_list() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.did();
    fixture.hear((2..9).flat_map(|node| has("9", node, 0..4)).collect());
    assert_eq!(fixture.serving(), Some("1"));
    assert!(fixture.has(&Effect::Look), "the source may have it since the last look");
    fixture.did();
    fixture.list(&["1"]);
    assert_eq!(fixture.serving(), Some("1"), "it has not");
    // Nor do they keep it from what its source has.
    fixture.list(&["1", "2"]);
    fixture.load("2");
    assert_eq!(fixture.serving(), Some("2"));
    assert!(!fixture.shows("9"), "nothing of it is shown");
    // As soon as the own source has it, what they have counts.
    fixture.list(&["1", "2", "9"]);
    fixture.inspected("9");
    assert_eq!(fixture.serving(), Some("9"));
}

#[test]
fn z5_what_peers_say_costs_the_source_one_look_in_five_seconds() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.did();
    let mut looks = 0;
    for tenth in 0..200 {
        fixture.hear(has(&format!("x{tenth}"), 2, 0..4));
        fixture.wait(100);
        looks += fixture.did().iter().filter(|effect| **effect == Effect::Look).count();
    }
    assert_eq!(looks, 5, "in twenty seconds: one at once, and one in each five seconds");
    fixture.hear(has("late", 2, 0..4));
    assert!(fixture.node.deadline() <= Millis(fixture.now + 5_000), "and the last one is not forgotten");
}

#[test]
fn z5_an_order_for_what_the_own_source_does_not_have_holds_back_for_a_stated_time() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    let pin = |order, name: &str| {
        News::Pin(dataset(), address(2), Some(Pin { order, version: Some(version(name)) }))
    };
    fixture.hear(vec![pin(7, "0")]);
    let began = fixture.now;
    fixture.list(&["1", "2"]);
    fixture.wait(599_999);
    assert_eq!(
        (fixture.serving(), fixture.loads("2").len()),
        (Some("1"), 0),
        "it may come to this source, too"
    );
    assert_eq!(fixture.node.deadline(), Millis(began + 600_000));
    fixture.wait(1);
    fixture.load("2");
    assert_eq!(fixture.serving(), Some("2"), "it did not come");
    let overdue = |fixture: &Fixture| fixture.node.dataset(&dataset()).unwrap().overdue().cloned();
    assert_eq!(overdue(&fixture), Some(version("0")));
    // When it comes after all it is followed.
    fixture.list(&["0", "1", "2"]);
    fixture.load("0");
    assert_eq!((fixture.serving(), overdue(&fixture)), (Some("0"), None));
    // And another order is waited for anew.
    fixture.hear(vec![pin(8, "5")]);
    fixture.list(&["0", "1", "2", "3"]);
    fixture.wait(599_999);
    assert_eq!(fixture.serving(), Some("0"));
}

#[test]
fn z5_an_order_of_a_clock_that_there_is_not_is_none() {
    let now = 1_800_000_000_000;
    let pin = |order| Pin { order, version: None };
    assert!(pin(now).is_plausible(now) && pin(now + 50 * 365 * 86_400_000).is_plausible(now));
    assert!(pin(now).is_plausible(0), "this node's own clock begins at 1970");
    assert!(!pin(u64::MAX).is_plausible(now) && !pin(u64::MAX / 2).is_plausible(now));
    assert!(pin(u64::MAX).is_plausible(u64::MAX));
}

#[test]
fn a_source_that_is_quicker_than_the_loading_starves_nobody() {
    let mut fixture = Fixture::settled(settings(1));
    for name in ["1", "2", "3", "4"] {
        let listed: Vec<String> = (1..=name.parse().unwrap()).map(|v: u32| v.to_string()).collect();
        fixture.list(&listed.iter().map(String::as_str).collect::<Vec<_>>());
        fixture.inspected(name);
    }
    let loading: Vec<bool> =
        ["1", "2", "3", "4"].iter().map(|name| !fixture.loads(name).is_empty()).collect();
    assert_eq!(loading, [true, true, false, false]);
    fixture.load("1");
    assert_eq!(fixture.serving(), Some("1"));
    assert!(!fixture.loads("4").is_empty() && fixture.loads("3").is_empty());
    fixture.load("4");
    assert_eq!(fixture.serving(), Some("4"));
    assert!(fixture.has(&Effect::Cancel(dataset(), version("2"))), "it is too late for that one");
}

#[test]
fn s14_an_order_of_the_operator_goes_back_once_and_holds_in_the_cluster() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1", "2"]);
    fixture.load("2");
    let pin = Pin { order: 7, version: Some(version("1")) };
    fixture.take(Event::Pin(dataset(), pin.version.clone(), pin.order));
    assert!(fixture.has(&Effect::Publish(Key::Pin(dataset()), Value::Pin(pin.clone()))));
    assert!(fixture.effects.iter().any(remembers));
    assert_eq!(fixture.serving(), Some("2"), "until the other one is whole");
    fixture.load("1");
    assert_eq!((fixture.serving(), fixture.state("2")), (Some("1"), Some(State::Removing)));
    fixture.list(&["1", "2", "3"]);
    assert!(!fixture.has(&Effect::Inspect(dataset(), version("3"))), "it is pinned");
    // An older order, heard late, changes nothing; a later one does.
    fixture.hear(vec![News::Pin(dataset(), address(2), Some(Pin { order: 6, version: Some(version("2")) }))]);
    assert_eq!(fixture.node.dataset(&dataset()).unwrap().pin(), &pin);
    fixture.hear(vec![News::Pin(dataset(), address(2), Some(Pin { order: 8, version: None }))]);
    assert!(fixture.has(&Effect::Inspect(dataset(), version("3"))));
    fixture.load("3");
    assert_eq!(fixture.serving(), Some("3"));
}

#[test]
fn s20_what_clients_had_before_a_restart_and_is_lost_on_the_disk_is_loaded_again() {
    // The store has lost all its files, and the node remembers what clients got.
    let mut fixture = Fixture::with(settings(1), stored("3", []));
    fixture.take(Event::Session);
    fixture.whole(vec![]);
    fixture.list(&["3"]);
    fixture.inspected("3");
    fixture.wait(60_000);
    assert!(
        fixture.node.deadline() > Millis(60_000),
        "it waits for something to come: {:?}",
        fixture.node.deadline()
    );
    assert_eq!(fixture.loads("3").len(), 4);
    assert!(!fixture.has(&Effect::Cancel(dataset(), version("3"))));
    fixture.load("3");
    assert_eq!(fixture.serving(), Some("3"));
}

#[test]
fn of_two_orders_the_later_one_holds_whatever_the_clocks_say() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1", "2"]);
    let order = |fixture: &mut Fixture, name: Option<&str>, at: u64| {
        fixture.take(Event::Pin(dataset(), name.map(version), at));
        let pin = fixture.node.dataset(&dataset()).unwrap().pin().clone();
        assert_eq!(pin.version, name.map(version), "the order that was given last holds");
        pin.order
    };
    let first = order(&mut fixture, Some("2"), 1_000);
    let second = order(&mut fixture, Some("1"), 1_000);
    assert!(second > first, "in the same millisecond, and the lower version");
    // Another node, whose clock is a year ahead.
    let ahead = Pin { order: 1_000 + 365 * 86_400_000, version: Some(version("2")) };
    fixture.hear(vec![News::Pin(dataset(), address(2), Some(ahead.clone()))]);
    assert_eq!(fixture.node.dataset(&dataset()).unwrap().pin(), &ahead);
    assert!(order(&mut fixture, None, 2_000) > ahead.order);
    assert!(order(&mut fixture, Some("1"), 1_500) > ahead.order, "this node's own clock was set back");
}

fn stored(name: &str, here: impl IntoIterator<Item = u32>) -> BTreeMap<DatasetName, Stored> {
    let served = Some(Served { order: 0, version: version(name) });
    let versions = [(version(name), (LAYOUT, here.into_iter().collect()))].into();
    [(dataset(), Stored { served, versions, ..Stored::default() })].into()
}

#[test]
fn s20_a_restart_serves_what_it_has_without_source_and_coordination() {
    let mut whole = Fixture::with(settings(1), stored("3", 0..4));
    assert_eq!(whole.serving(), Some("3"), "it has all, so it needs to wait for nobody");
    whole.take(Event::Session);
    assert!(whole.has(&Effect::Publish(partition_key("3", 0), Value::Layout(LAYOUT))));

    let mut part = Fixture::with(settings(1), stored("3", 0..2));
    assert_eq!((part.serving(), part.node.deadline()), (None, Millis(5_000)));
    part.wait(5_000);
    assert_eq!(part.serving(), Some("3"), "what it had is better than nothing");
}

#[test]
fn s14_holds_over_a_restart() {
    let mut fixture = Fixture::with(settings(1), stored("3", 0..2));
    fixture.take(Event::Session);
    fixture.whole(has("2", 2, 0..4));
    assert_eq!(fixture.serving(), None, "clients had a later one");
    fixture.hear(has("4", 2, 0..4));
    fixture.list(&["2", "4"]);
    fixture.inspected("4");
    assert_eq!(fixture.serving(), Some("4"));
}

#[test]
fn s14_only_what_is_nowhere_any_more_does_not_hold_back() {
    let mut fixture = Fixture::with(settings(1), stored("3", []));
    fixture.take(Event::Session);
    fixture.whole(has("2", 2, 0..4));
    fixture.wait(20_000);
    assert_eq!(fixture.serving(), None, "the source was not heard yet");
    fixture.list(&["2", "3"]);
    fixture.wait(20_000);
    assert_eq!(fixture.serving(), None, "it will be loaded from there");
    fixture.list(&["2"]);
    fixture.inspected("2");
    fixture.wait(1);
    assert_eq!(fixture.serving(), Some("2"));
}

#[test]
fn s18_lost_replicas_are_made_good_only_if_that_is_wished() {
    for (re_replicate, expected) in [(false, vec![]), (true, vec![0, 1, 2, 3])] {
        let mut fixture = Fixture::new(NodeSettings { re_replicate, ..settings(3) });
        fixture.take(Event::Session);
        let mut all: Vec<News> = vec![node_news(1, 1), node_news(2, 2)];
        all.extend((1..3).flat_map(|node| has("1", node, 0..4)));
        fixture.whole(all);
        fixture.list(&["1"]);
        fixture.inspected("1");
        fixture.wait(10_000);
        for partition in fixture.loads("1") {
            fixture.take(Event::Ready(dataset(), version("1"), partition));
        }
        let here = |fixture: &Fixture| {
            fixture.node.dataset(&dataset()).unwrap().versions[&version("1")].here.clone()
        };
        let first = here(&fixture);
        fixture.hear([vec![News::Node(address(2), None)], news("1", 2, 0..4, None)].concat());
        fixture.wait(9_999);
        assert!(fixture.loads("1").is_empty());
        fixture.wait(1);
        let lacking: Vec<u32> = expected.into_iter().filter(|partition| !first.contains(partition)).collect();
        assert_eq!(fixture.loads("1"), lacking);
    }
}

#[test]
fn it_leaves_and_nobody_asks_it_any_more() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    fixture.did();
    fixture.take(Event::Leave);
    let did = fixture.did();
    assert_eq!(did.iter().filter(|effect| matches!(effect, Effect::Withdraw(_))).count(), 5);
    assert!(did.contains(&Effect::Cancel(dataset(), version("2"))));
    fixture.list(&["1", "2", "3"]);
    fixture.wait(10_000);
    assert!(!fixture.did().iter().any(|effect| matches!(effect, Effect::Publish(..) | Effect::Load { .. })));
    assert_eq!(fixture.serving(), Some("1"), "clients that are still there get what there is");
}

#[test]
fn a_dataset_that_is_not_served_any_more_goes_as_soon_as_nobody_reads_it() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    fixture.did();
    fixture.take(Event::DatasetEnabled(dataset(), false));
    let retire =
        |name| Effect::Retire { dataset: dataset(), version: version(name), unused_since: Millis::NEVER };
    let did = fixture.did();
    assert!(did.contains(&Effect::Cancel(dataset(), version("2"))) && did.contains(&retire("1")), "{did:?}");
    assert_eq!(fixture.serving(), None);
    // Somebody reads from one of them.
    fixture.take(Event::Used(dataset(), version("1"), Millis(fixture.now)));
    fixture.take(Event::Retired(dataset(), version("2")));
    assert!(!fixture.has(&retire("1")) && !fixture.has(&Effect::Drop(dataset())));
    fixture.wait(1_000);
    assert!(fixture.has(&retire("1")));
    fixture.take(Event::Retired(dataset(), version("1")));
    assert!(fixture.has(&Effect::Drop(dataset())) && fixture.has(&Effect::Delete(dataset(), version("1"))));
    fixture.did();
    fixture.list(&["1", "2", "3"]);
    fixture.wait(60_000);
    assert_eq!(fixture.did(), [], "until it is served again");
    fixture.take(Event::DatasetEnabled(dataset(), true));
    fixture.load("3");
    assert_eq!(fixture.serving(), Some("3"));
}

#[test]
fn z5_what_one_node_tells_of_is_bounded_and_costs_nobody_else_a_word() {
    let mut fixture = Fixture::settled(settings(1));
    let told = |name: String, node: u32| News::Partition {
        dataset: dataset(),
        version: version(&name),
        partition: 0,
        address: address(node),
        layout: Some(LAYOUT),
    };
    let most = partage_core::limits::ANNOUNCED_VERSIONS;
    fixture.hear((0..3 * most).map(|number| told(format!("x{number:05}"), 9)).collect());
    let known = |fixture: &Fixture| fixture.node.dataset(&dataset()).unwrap().versions().count();
    assert_eq!(known(&fixture), most, "of one node");
    // What another node tells, and what the source has, is taken in all the same.
    fixture.hear(vec![told("v1".to_owned(), 2)]);
    assert_eq!(known(&fixture), most + 1);
    fixture.list(&["v1", "x99999"]);
    fixture.hear(vec![told("x99999".to_owned(), 9)]);
    let state = fixture.node.dataset(&dataset()).unwrap();
    assert_eq!(
        state.versions[&version("x99999")].holders.count(LAYOUT, 0),
        1,
        "that one is the source's own"
    );
    // What it takes back makes room.
    let gone = |number: usize| News::Partition {
        dataset: dataset(),
        version: version(&format!("x{number:05}")),
        partition: 0,
        address: address(9),
        layout: None,
    };
    fixture.hear((0..most).map(gone).collect());
    fixture.hear(vec![told("y1".to_owned(), 9)]);
    assert!(fixture.node.dataset(&dataset()).unwrap().versions.contains_key(&version("y1")));
}

#[test]
fn z5_datasets_that_peers_announce_and_take_back_leave_nothing_and_hinder_no_order() {
    let mut fixture = Fixture::settled(settings(1));
    let most = partage_core::limits::ANNOUNCED_DATASETS;
    let told = |number: usize, node: u32, layout: Option<Layout>| News::Partition {
        dataset: DatasetName::new(&format!("d{number}")).unwrap(),
        version: version("1"),
        partition: 0,
        address: address(node),
        layout,
    };
    let per_node = partage_core::limits::ANNOUNCED_VERSIONS;
    let node_of = |number: usize| (3 + number / per_node) as u32;
    fixture.hear((0..most + 9).map(|number| told(number, node_of(number), Some(LAYOUT))).collect());
    assert_eq!(fixture.node.datasets().count(), most + 9);
    let pin = Pin { order: 5, version: Some(version("1")) };
    let other = DatasetName::new("other").unwrap();
    fixture.hear(vec![News::Pin(other.clone(), address(2), Some(pin))]);
    assert_eq!(fixture.node.dataset(&other).map(|state| state.pin().order), Some(5));
    fixture.hear((0..most + 9).map(|number| told(number, node_of(number), None)).collect());
    assert_eq!(fixture.node.datasets().map(|(name, _)| name).collect::<Vec<_>>(), [&other]);
}

#[test]
fn z5_a_peer_that_announces_one_layout_after_the_other_is_remembered_in_none() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    fixture.hear(has("1", 2, 0..3));
    for digest in 100..200 {
        fixture.hear(news("1", 9, 0..4, Some(Layout { digest, ..LAYOUT })));
    }
    fixture.hear(news("1", 9, 0..4, None));
    fixture.hear(news("1", 2, 0..3, None));
    let known = &fixture.node.dataset(&dataset()).unwrap().versions[&version("1")];
    assert_eq!(known.holders.remembered(), 3);
    assert_eq!(known.peers(2).collect::<Vec<_>>(), [&address(2)], "the last one that had it");
    fixture.take(Event::Inspected(dataset(), version("1"), Ok(Layout { digest: 8, ..LAYOUT })));
    let known = &fixture.node.dataset(&dataset()).unwrap().versions[&version("1")];
    assert_eq!(known.peers(2).count(), 0, "it had other files");
}

#[test]
fn z5_orders_for_datasets_that_the_source_does_not_have_are_bounded() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["v1"]);
    let pin = |name: String, order| {
        let pin = Pin { order, version: Some(version("v0")) };
        News::Pin(DatasetName::new(&name).unwrap(), address(9), Some(pin))
    };
    let most = partage_core::limits::ANNOUNCED_DATASETS;
    fixture.hear((0..most + 50).map(|number| pin(format!("d{number}"), 1)).collect());
    assert_eq!(fixture.node.datasets().count(), most + 1);
    fixture.hear(vec![pin(dataset().to_string(), 7)]);
    assert_eq!(fixture.node.dataset(&dataset()).unwrap().pin().order, 7, "of its own it is followed");
}

#[test]
fn nc_partitions_are_withdrawn_before_anything_is_deleted_and_published_when_they_can_be_read() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.inspected("1");
    let (publish, withdraw) = (
        Effect::Publish(partition_key("1", 2), Value::Layout(LAYOUT)),
        Effect::Withdraw(partition_key("1", 0)),
    );
    let delete = Effect::Delete(dataset(), version("0"));
    fixture.node.published.insert(partition_key("1", 2), Value::Layout(LAYOUT));
    let mut effects = Effects::default();
    for effect in [&publish, &delete, &withdraw] {
        effects.push(effect.clone());
    }
    effects.show(dataset(), version("1"));
    let done = fixture.node.complete(effects);
    assert!(done.len() == 4 && shows(&done[1], "1"), "{done:?}");
    assert_eq!([&done[0], &done[2], &done[3]], [&withdraw, &delete, &publish]);
}

#[test]
fn s12_what_goes_while_there_is_no_session_is_withdrawn_all_the_same() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    fixture.list(&["2"]);
    fixture.load("2");
    assert_eq!(fixture.serving(), Some("2"));
    fixture.take(Event::SessionLost);
    fixture.did();
    fixture.take(Event::Retired(dataset(), version("1")));
    let did = fixture.did();
    let at = |effect: &Effect| did.iter().position(|done| done == effect);
    for partition in 0..4 {
        let withdrawn = at(&Effect::Withdraw(partition_key("1", partition)));
        assert!(withdrawn.is_some() && withdrawn < at(&Effect::Delete(dataset(), version("1"))), "{did:?}");
    }
    fixture.take(Event::Session);
    let is_published = |name| fixture.has(&Effect::Publish(partition_key(name, 0), Value::Layout(LAYOUT)));
    assert!(is_published("2") && !is_published("1"), "{:?}", fixture.effects);
}
