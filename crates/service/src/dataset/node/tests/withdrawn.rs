//! Versions that the source takes back before clients get them, and versions that failed and are passed by.

use super::*;

fn fails(fixture: &mut Fixture, name: &str) {
    fixture.take(Event::Inspected(dataset(), version(name), Err("part-0: no JSON".to_owned())));
}

fn retires(fixture: &Fixture, name: &str) -> bool {
    let is_it =
        |effect: &Effect| matches!(effect, Effect::Retire { version: gone, .. } if *gone == version(name));
    fixture.effects.iter().any(is_it)
}

/// A node whose clients get version 1.
fn serving_1() -> Fixture {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fixture.load("1");
    assert_eq!(fixture.serving(), Some("1"));
    fixture.did();
    fixture
}

/// How a version is shown: whether as failed, and whether as tried no more.
fn shown(fixture: &mut Fixture, name: &str) -> Option<(bool, bool)> {
    let shown = fixture.did().into_iter().rfind(|effect| shows(effect, name));
    shown.map(|effect| {
        let Effect::Show(shown) = effect else { panic!("{effect:?}") };
        (shown.state == State::Error, shown.failure.is_some_and(|failure| failure.is_superseded))
    })
}

#[test]
fn s19_a_version_that_failed_is_forgotten_when_it_is_gone_from_the_source() {
    for is_read in [false, true] {
        let mut fixture = serving_1();
        fixture.list(&["1", "2"]);
        match is_read {
            false => fails(&mut fixture, "2"),
            true => {
                fixture.inspected("2");
                fixture.take(Event::LoadFailed(dataset(), version("2"), "part-0: line 7".to_owned()));
            }
        }
        assert_eq!(fixture.state("2"), Some(State::Error));
        fixture.did();
        fixture.list(&["1"]);
        assert!(retires(&fixture, "2"), "{is_read}: at once: {:?}", fixture.effects);
        // A request that reads from it does not keep the driver busy.
        fixture.did();
        fixture.take(Event::Used(dataset(), version("2"), Millis(fixture.now)));
        assert!(!retires(&fixture, "2"));
        fixture.wait(1_000);
        assert!(retires(&fixture, "2"));
        fixture.take(Event::Retired(dataset(), version("2")));
        assert_eq!(fixture.state("2"), None, "{is_read}");
    }
}

#[test]
fn s19_the_only_version_is_forgotten_too() {
    let mut fixture = Fixture::settled(settings(1));
    fixture.list(&["1"]);
    fails(&mut fixture, "1");
    fixture.did();
    fixture.list(&[]);
    assert!(retires(&fixture, "1"), "{:?}", fixture.effects);
}

#[test]
fn s19_a_version_that_is_ordered_stays_an_error() {
    let mut fixture = serving_1();
    fixture.list(&["1", "2"]);
    fails(&mut fixture, "2");
    fixture.take(Event::Pin(dataset(), Some(version("2")), 7));
    fixture.list(&["1"]);
    assert_eq!((fixture.state("2"), retires(&fixture, "2")), (Some(State::Error), false));
    fixture.take(Event::Pin(dataset(), None, 8));
    fixture.wait(1_000);
    assert!(retires(&fixture, "2"));
}

#[test]
fn s15_part_of_a_version_that_is_gone_stays_for_peers_and_is_no_error() {
    let mut fixture = serving_1();
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    fixture.take(Event::Ready(dataset(), version("2"), 0));
    fixture.take(Event::LoadFailed(dataset(), version("2"), "part-1: line 7".to_owned()));
    fixture.did();
    fixture.list(&["1"]);
    assert_eq!(shown(&mut fixture, "2"), Some((false, false)));
    assert_eq!(fixture.state("2"), Some(State::Removing));
    fixture.wait(599_999);
    assert!(!retires(&fixture, "2"));
    fixture.wait(1);
    assert!(retires(&fixture, "2"));
}

#[test]
fn z5_a_version_that_is_gone_comes_only_if_it_is_whole_and_not_held() {
    let mut fixture = serving_1();
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    fixture.take(Event::Ready(dataset(), version("2"), 0));
    fixture.list(&["1"]);
    assert_eq!(fixture.loads("2"), [0; 0], "nothing more of it is loaded");
    fixture.hear(has("2", 2, 0..4));
    assert_eq!(fixture.serving(), Some("2"), "clients of others may get it already");
    // An empty one is held, and does not come when it is gone.
    fixture.list(&["1", "2", "3"]);
    fixture.take(Event::Counted(dataset(), version("3"), 0));
    fixture.load("3");
    assert_eq!(fixture.state("3"), Some(State::Held));
    fixture.list(&["1", "2"]);
    fixture.wait(1);
    assert_eq!((fixture.serving(), fixture.state("3")), (Some("2"), Some(State::Removing)));
    fixture.list(&["1", "2", "3"]);
    assert_eq!(fixture.state("3"), Some(State::Held), "it is back");
    fixture.list(&["1", "2"]);
    fixture.take(Event::Pin(dataset(), Some(version("3")), 7));
    assert_eq!(fixture.serving(), Some("3"), "a person wants it");
}

#[test]
fn z5_a_version_that_is_whole_only_after_it_is_gone_is_not_held() {
    let mut fixture = serving_1();
    fixture.list(&["1", "2"]);
    fixture.inspected("2");
    fixture.take(Event::Counted(dataset(), version("2"), 0));
    fixture.take(Event::Ready(dataset(), version("2"), 0));
    fixture.list(&["1"]);
    fixture.hear(has("2", 2, 0..4));
    assert_eq!((fixture.serving(), fixture.state("2")), (Some("1"), Some(State::Removing)));
    fixture.list(&["1", "2"]);
    assert_eq!(fixture.state("2"), Some(State::Held), "it is back");
}

#[test]
fn s19_a_version_that_is_superseded_is_not_tried_again_until_a_person_wants_it() {
    let mut fixture = serving_1();
    fixture.list(&["1", "2"]);
    fails(&mut fixture, "2");
    assert_eq!(shown(&mut fixture, "2"), Some((true, false)), "the next refresh tries it again");
    fixture.list(&["1", "2", "3"]);
    fails(&mut fixture, "2");
    fixture.load("3");
    assert_eq!(fixture.serving(), Some("3"));
    assert_eq!(shown(&mut fixture, "2"), Some((true, true)));
    for _ in 0..2 {
        fixture.wait(60_000);
        fixture.list(&["1", "2", "3"]);
    }
    assert!(!fixture.has(&Effect::Inspect(dataset(), version("2"))));
    assert_eq!(fixture.state("2"), Some(State::Error));
    let mut ordered = Fixture { node: fixture.node.clone(), now: fixture.now, effects: Vec::new() };
    ordered.take(Event::Pin(dataset(), Some(version("2")), 7));
    assert_eq!(shown(&mut ordered, "2"), Some((true, false)), "by an order it is");
    ordered.list(&["1", "2", "3"]);
    assert!(ordered.has(&Effect::Inspect(dataset(), version("2"))));
    // An order for an earlier version passes it by, too.
    let mut earlier = serving_1();
    earlier.list(&["1", "2"]);
    fails(&mut earlier, "2");
    earlier.did();
    earlier.take(Event::Pin(dataset(), Some(version("1")), 7));
    assert_eq!(shown(&mut earlier, "2"), Some((true, true)));
    fixture.take(Event::TryAgain);
    assert_eq!(shown(&mut fixture, "2"), Some((false, false)), "what was said of it is out of date");
    assert_eq!(fixture.state("2"), Some(State::Removing));
}

/// The driver's refusal is about a request of the past: the node rests before it asks again, and has a time for it.
#[test]
fn s15_a_version_that_is_gone_and_was_read_lately_is_asked_about_once_a_second() {
    let mut fixture = serving_1();
    fixture.list(&["1", "2"]);
    fails(&mut fixture, "2");
    fixture.list(&["1"]);
    assert!(retires(&fixture, "2"), "{:?}", fixture.effects);
    fixture.wait(1_500);
    fixture.did();
    let read = Millis(fixture.now.saturating_sub(2_000));
    fixture.take(Event::Used(dataset(), version("2"), read));
    assert!(!retires(&fixture, "2"), "not at once: {:?}", fixture.effects);
    let again = fixture.node.deadline().0;
    assert!(again > fixture.now && again <= fixture.now + 1_000, "{again} at {}", fixture.now);
    fixture.wait(1_000);
    assert!(retires(&fixture, "2"), "{:?}", fixture.effects);
}
