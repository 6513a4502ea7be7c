//! One metadata server, told by hand what comes.

use super::*;
use crate::metadata::change::Change;
use crate::metadata::server::{Answer, Effect, Event, GONE_MS, LOOK_MS, Refused, Server};
use partage_core::base::time::Millis;
use std::sync::Arc;

/// `m0`, which has nothing but the map at sequence 1, which counts.
fn settled() -> (Server, Arc<ShardMap>, Seen) {
    let map = Arc::new(after(&empty(), |edit| assert!(edit.create_shard(ALL).is_ok())));
    let mut server = Server::new(node("m0"));
    let begun = server.take(Millis(0), Event::Store(1, Change::Whole(map.clone())));
    let [Effect::Begin(number, _)] = begun[..] else { panic!("{begun:?}") };
    server.take(Millis(0), Event::Written(number, Ok(())));
    let head = Head { at: map.generation(), servers: servers() };
    let seen = Seen { head, version: 7 };
    look(&mut server, Millis(0), Event::Tell(Notice::Committed(map.generation())), Some(seen.clone()));
    assert_eq!(server.current(), Some(&map));
    (server, map, seen)
}

/// Has it look at the head by `event`, and find `head` there.
fn look(server: &mut Server, now: Millis, event: Event, head: Option<Seen>) -> Vec<Effect> {
    let effects = server.take(now, event);
    let read = effects.iter().find_map(|effect| match effect {
        Effect::Read(number) => Some(*number),
        _ => None,
    });
    let number = read.unwrap_or_else(|| panic!("it looks: {effects:?}"));
    server.take(now, Event::Read(number, Some(head)))
}

#[test]
fn a_keyspace_in_which_nothing_happens_is_left_alone() {
    let (mut server, _, seen) = settled();
    for tick in 1..100 {
        assert_eq!(server.take(Millis(tick * LOOK_MS), Event::Tick), []);
    }
    assert_eq!(server.take(Millis(0), Event::News(Some(seen.clone()))), [], "it has read that");
    let refreshed = server.take(Millis(0), Event::Refresh);
    assert!(matches!(refreshed[..], [Effect::Read(_)]), "{refreshed:?}");
    let mut other = Server::new(node("m9"));
    look(&mut other, Millis(0), Event::Ask(1, 0), Some(seen.clone()));
    let later = Seen { version: 8, ..seen };
    for event in [Event::Tick, Event::Refresh, Event::News(Some(later))] {
        assert_eq!(other.take(Millis(60_000), event.clone()), [], "{event:?}: it is none of its business");
    }
}

#[test]
fn news_of_the_next_head_are_taken_up_without_a_look() {
    let (mut server, map, seen) = settled();
    let diff = Arc::new(map.edit().commit(TransactionId([8; 20])));
    let begun = server.take(Millis(1), Event::Store(2, Change::Operation(diff.clone())));
    let [Effect::Append(number, ..)] = begun[..] else { panic!("{begun:?}") };
    server.take(Millis(1), Event::Written(number, Ok(())));
    assert_eq!(server.take(Millis(2), Event::Tell(Notice::Committed(diff.to))), [], "the news will say so");
    let next = Seen { head: Head { at: diff.to, ..seen.head.clone() }, version: 9 };
    let taken = server.take(Millis(3), Event::News(Some(next.clone())));
    assert!(matches!(taken[..], [Effect::Settled(_)]), "{taken:?}");
    assert_eq!(server.current().unwrap().generation(), diff.to);
    // Late news of the head before do not lead back.
    let looks = server.take(Millis(4), Event::News(Some(seen)));
    assert!(matches!(looks[..], [Effect::Read(_)]), "{looks:?}");
    assert_eq!(server.current().unwrap().generation(), diff.to);
}

#[test]
fn a_change_whose_news_are_lost_is_found_with_the_next_look() {
    let (mut server, map, seen) = settled();
    let diff = Arc::new(map.edit().commit(TransactionId([8; 20])));
    let begun = server.take(Millis(1), Event::Store(2, Change::Operation(diff.clone())));
    let [Effect::Append(number, ..)] = begun[..] else { panic!("{begun:?}") };
    server.take(Millis(1), Event::Written(number, Ok(())));
    server.take(Millis(2), Event::Tell(Notice::Committed(diff.to)));
    let next = Seen { head: Head { at: diff.to, ..seen.head }, version: 9 };
    look(&mut server, Millis(LOOK_MS), Event::Tick, Some(next));
    assert_eq!(server.current().unwrap().generation(), diff.to);
}

#[test]
fn t8_news_of_another_head_make_it_look_and_fetch() {
    let (mut server, map, seen) = settled();
    let next = after(&map, |edit| drop(edit.add_replica(ShardId(1), &node("w"), NEW, None)));
    let head = Head { at: next.generation(), ..seen.head };
    let seen = Seen { head, version: 8 };
    let effects = look(&mut server, Millis(9), Event::News(Some(seen.clone())), Some(seen));
    assert!(matches!(effects[..], [Effect::Fetch(..)]), "{effects:?}");
}

#[test]
fn a_deleted_map_is_kept_for_a_while_and_nobody_is_answered_from_it() {
    let (mut server, map, _) = settled();
    assert_eq!(look(&mut server, Millis(5), Event::News(None), None), []);
    let asked = look(&mut server, Millis(6), Event::Ask(2, 0), None);
    assert_eq!(asked, [Effect::Answer(2, Err(Refused::NoMap))]);
    assert_eq!(look(&mut server, Millis(GONE_MS + 4), Event::Refresh, None), []);
    let gone = look(&mut server, Millis(GONE_MS + 5), Event::Refresh, None);
    assert_eq!(gone, [Effect::Remove(map.generation().transaction)]);
    assert_eq!(server.take(Millis(GONE_MS + 6), Event::Refresh), [], "and then leaves it alone");
}

#[test]
fn a_keyspace_is_created_anew_though_the_server_has_not_heard_that_it_was_deleted() {
    let (mut server, old, seen) = settled();
    let mut next = empty();
    next.apply(&next.edit().commit(TransactionId([9; 20]))).unwrap();
    let next = Arc::new(next);
    let store = Event::Store(2, Change::Whole(next.clone()));
    let refused = look(&mut server, Millis(5), store.clone(), Some(seen));
    assert_eq!(refused, [Effect::Answer(2, Err(Refused::Superseded))], "there is one");
    let begun = look(&mut server, Millis(6), store, None);
    let [Effect::Begin(number, _)] = begun[..] else { panic!("{begun:?}") };
    let stored = server.take(Millis(7), Event::Written(number, Ok(())));
    assert_eq!(stored[0], Effect::Answer(2, Ok(Answer::Stored)));
    let head = Head { at: next.generation(), servers: servers() };
    let new = Seen { head, version: 9 };
    let effects = look(&mut server, Millis(8), Event::News(Some(new.clone())), Some(new));
    assert_eq!(effects, [Effect::Remove(old.generation().transaction)]);
    assert_eq!(server.current(), Some(&next));
}

#[test]
fn a_map_that_was_fetched_too_late_takes_no_other_with_it() {
    let (mut server, old, seen) = settled();
    // The old keyspace is far ahead, and this server is fetching its map.
    let mut ahead = (*old).clone();
    for node_name in ["w1", "w2", "w3"] {
        ahead = after(&ahead, |edit| drop(edit.add_replica(ShardId(1), &node(node_name), NEW, None)));
    }
    let ahead = Arc::new(ahead);
    let head = Seen { head: Head { at: ahead.generation(), ..seen.head.clone() }, version: 8 };
    let fetching = look(&mut server, Millis(1), Event::News(Some(head.clone())), Some(head));
    let [Effect::Fetch(fetch, _)] = fetching[..] else { panic!("{fetching:?}") };
    let begun = server.take(Millis(2), Event::Fetched(fetch, Some(ahead.clone())));
    let [Effect::Begin(copy, _)] = begun[..] else { panic!("{begun:?}") };
    // Before it is on disk the keyspace is deleted, and created again at sequence 1.
    look(&mut server, Millis(3), Event::News(None), None);
    let mut next = empty();
    next.apply(&next.edit().commit(TransactionId([9; 20]))).unwrap();
    let next = Arc::new(next);
    let begun = server.take(Millis(4), Event::Store(2, Change::Whole(next.clone())));
    let [Effect::Begin(number, _)] = begun[..] else { panic!("{begun:?}") };
    server.take(Millis(5), Event::Written(number, Ok(())));
    let new = Seen { head: Head { at: next.generation(), ..seen.head }, version: 10 };
    look(&mut server, Millis(6), Event::News(Some(new.clone())), Some(new));
    assert_eq!(server.current(), Some(&next));
    let late = server.take(Millis(7), Event::Written(copy, Ok(())));
    assert!(late.contains(&Effect::Remove(ahead.generation().transaction)), "{late:?}");
    assert_eq!(server.current(), Some(&next), "T7: the head's map stays");
}

/// `m0` with a map at sequence 2, and the head of sequence 1 that it had before.
fn gone_on() -> (Server, Seen, Seen) {
    let (mut server, map, before) = settled();
    let diff = Arc::new(map.edit().commit(TransactionId([8; 20])));
    let begun = server.take(Millis(1), Event::Store(2, Change::Operation(diff.clone())));
    let [Effect::Append(number, ..)] = begun[..] else { panic!("{begun:?}") };
    server.take(Millis(1), Event::Written(number, Ok(())));
    let next = Seen { head: Head { at: diff.to, ..before.head.clone() }, version: 9 };
    server.take(Millis(3), Event::News(Some(next.clone())));
    assert_eq!(server.current().unwrap().generation(), diff.to);
    (server, before, next)
}

/// The backend was restored from an older state: the head of before lists other servers, or the same.
#[test]
fn d10_the_newest_map_is_kept_when_the_head_goes_back() {
    for servers in [vec![node("m7"), node("m8")], servers()] {
        let (mut server, before, next) = gone_on();
        let older = Seen { head: Head { servers, ..before.head }, version: 3 };
        let read = |server: &mut Server, now, seen: &Seen| {
            // None of it is asked for: it looks for other reasons.
            look(server, Millis(now), Event::Refresh, Some(seen.clone()))
        };
        for now in [4, 5, GONE_MS] {
            let effects = read(&mut server, now, &older);
            assert!(!effects.iter().any(|effect| matches!(effect, Effect::Remove(_))), "{effects:?}");
            assert_eq!(server.ahead_of_head(), Some((next.head.at, older.head.at)));
            assert_eq!(server.current(), None, "nobody is answered from it");
        }
        // The newest state is put back, and all is as before.
        let mut healed = server.clone();
        read(&mut healed, GONE_MS, &Seen { version: 10, ..next.clone() });
        assert_eq!((healed.current().unwrap().generation(), healed.ahead_of_head()), (next.head.at, None));
        // Else it goes, as one without a head.
        if !older.head.servers.contains(&node("m0")) {
            let effects = read(&mut server, GONE_MS + 5, &older);
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Remove(_))), "{effects:?}");
            assert_eq!(server.files(), 0);
        }
    }
}
