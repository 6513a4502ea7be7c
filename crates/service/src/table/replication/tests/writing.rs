use super::*;

#[test]
fn d1_a_write_is_acknowledged_when_every_in_sync_replica_has_it_on_disk() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    assert_eq!(group.ended(1), None, "P3 has not synced it");
    group.slow = set(&[]);
    group.sync(P3);
    assert_eq!(group.ended(1), Some(Ok(Answer::Written(LogPosition { epoch: Epoch(1), index: 2 }))));
    group.pass(100);
    let applied: Vec<_> = group.replicas.values().map(|replica| replica.status().applied).collect();
    assert_eq!(applied, [2, 2, 2]);
}

#[test]
fn a_group_of_writes_is_one_write_to_the_log() {
    let mut group = Group::of_three();
    let writes = (1..=5).map(|request| (request, Payload::from([0; 8]))).collect();
    let effects = group.replicas.get_mut(&P1).unwrap().handle(group.now, Event::Write(writes));
    let written: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Write(_, LogWrite::Append(entries)) => Some(entries.len()),
            _ => None,
        })
        .collect();
    assert_eq!(written, [5]);
}

#[test]
fn a_write_is_refused_before_it_is_logged_while_too_few_are_in_sync() {
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    group.pass(600);
    group.order(|order| order.in_sync = set(&[P1]));
    group.write(P1, 1);
    assert_eq!(group.ended(1), Some(Err(Failed::TooFewInSync { have: 1, need: 2 })));
    assert_eq!(group.replicas[&P1].status().end.index, 1);
    assert!(group.ended(1).unwrap().unwrap_err().is_definite());
}

#[test]
fn what_was_logged_waits_for_enough_to_be_in_sync() {
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    group.write(P1, 1);
    group.pass(2_100);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1]));
    group.order(|order| order.in_sync = set(&[P1]));
    assert_eq!(group.ended(1), None, "one disk is too few");
    group.cut = set(&[P3]);
    group.tell(P2, Event::Order(group.order.clone()));
    group.pass(600);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P2]));
    assert_eq!(group.ended(1), None, "the coordinator may give P2 up before it grants that");
    group.order(|order| order.in_sync = set(&[P1, P2]));
    assert!(matches!(group.ended(1), Some(Ok(_))));
}

#[test]
fn a_write_that_was_logged_when_the_lead_was_lost_is_answered_when_the_next_leader_has_committed_it() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    group.lead(P2);
    group.write(P1, 2);
    assert_eq!(group.ended(2), Some(Err(Failed::NotLeader(Some(P2)))));
    assert_eq!(group.ended(1), None);
    group.slow = set(&[]);
    group.sync(P3);
    group.pass(100);
    assert_eq!(group.ended(1), Some(Ok(Answer::Written(LogPosition { epoch: Epoch(1), index: 2 }))));
}

/// One entry of the next leader says of all that the former one had not replicated that it is not done: nothing waits for later
/// entries.
#[test]
fn all_writes_that_no_later_leader_has_are_answered_with_its_first_entry() {
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    (1..=3).for_each(|request| group.write(P1, request));
    group.cut = set(&[P1]);
    group.lead(P2);
    group.pass(1_100);
    assert_eq!(group.ended(1), None);
    group.cut = set(&[]);
    group.order(|_| ());
    group.pass(1_000);
    for request in 1..=3 {
        assert_eq!(group.ended(request), Some(Err(Failed::NotLeader(Some(P2)))), "{request}");
    }
}

#[test]
fn a_write_that_outlives_its_leader_waits_until_enough_replicas_have_it() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    group.order(|order| {
        order.leader = P2;
        order.epoch = order.epoch.next();
        order.in_sync = set(&[P2]);
    });
    group.pass(1_100);
    // P2 alone has committed it with its first entry.
    assert!(group.replicas[&P1].status().committed >= 2);
    assert_eq!(group.ended(1), None);
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.pass(100);
    assert!(matches!(group.ended(1), Some(Ok(_))));
}

#[test]
fn what_becomes_of_a_write_is_unknown_when_it_is_not_heard_in_time_or_a_snapshot_comes() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    group.lead(P2);
    group.pass(10_050);
    assert!(matches!(group.ended(1), Some(Err(Failed::Unknown(_)))));
    assert!(!group.ended(1).unwrap().unwrap_err().is_definite());

    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    group.cut = set(&[P2, P3]);
    group.lead(P2);
    group.tell(P1, Event::Installed(LogPosition { epoch: Epoch(2), index: 9 }));
    assert!(matches!(group.ended(1), Some(Err(Failed::Unknown(_)))));
}

/// The cluster's coordinator counts the epoch on when a follower leaves the set.
#[test]
fn a_write_in_flight_goes_on_with_its_leader_under_a_later_epoch() {
    let mut group = Group::of_three();
    group.cut = set(&[P3]);
    group.write(P1, 1);
    group.pass(600);
    group.order(|order| {
        order.in_sync = set(&[P1, P2]);
        order.epoch = order.epoch.next();
    });
    group.pass(100);
    assert_eq!(group.ended(1), Some(Ok(Answer::Written(LogPosition { epoch: Epoch(1), index: 2 }))));
    assert!(group.heard(P1, &Effect::Began(Epoch(2))));
    group.write(P1, 2);
    assert_eq!(group.ended(2), Some(Ok(Answer::Written(LogPosition { epoch: Epoch(2), index: 4 }))));
}

#[test]
fn a_write_that_is_not_committed_in_time_is_answered_as_unknown_and_stays() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    group.pass(10_050);
    assert!(matches!(group.ended(1), Some(Err(Failed::Unknown(_)))));
    group.slow = set(&[]);
    group.sync(P3);
    group.pass(100);
    assert_eq!(group.replicas[&P1].status().committed, 2);
    assert_eq!(group.count(|effect| matches!(effect, Effect::Answer(1, _))), 1);
}

#[test]
fn entries_and_bytes_in_flight_have_bounds() {
    let small = Settings { in_flight_entries: 3, in_flight_bytes: 1_000, ..Settings::default() };
    let mut group = Group::new(small, &[P1, P2], &[P1, P2]);
    group.slow = set(&[P2]);
    (1..=4).for_each(|request| group.write(P1, request));
    assert_eq!(group.ended(3), None);
    assert!(matches!(group.ended(4), Some(Err(Failed::Full(_)))));
    group.slow = set(&[]);
    group.sync(P2);
    group.slow = set(&[P2]);
    group.tell(P1, Event::Write(vec![(5, vec![0; 900].into()), (6, vec![0; 900].into())]));
    assert_eq!(group.ended(5), None);
    assert!(matches!(group.ended(6), Some(Err(Failed::Full(_)))));
}

#[test]
fn o2_a_new_leader_cuts_what_was_never_committed_and_the_old_one_writes_nothing_more() {
    let mut group = Group::of_three();
    group.cut = set(&[P1]);
    group.write(P1, 1);
    group.tell(P1, Event::Tick);
    // The former leader has an entry that nobody else has.
    group.cut = set(&[]);
    group.slow = set(&[P2, P3]);
    group.write(P1, 2);
    group.cut = set(&[P1]);
    group.disks.values_mut().for_each(|(_, waiting)| waiting.clear());
    group.slow = set(&[]);
    group.restart(P2);
    group.restart(P3);
    group.lead(P2);
    group.pass(1_100);
    // P2 leads, and has asked the silent P1 out.
    group.pass(600);
    assert_eq!(group.wish(P2).unwrap().in_sync, set(&[P2, P3]));
    group.order(|order| order.in_sync = set(&[P2, P3]));
    assert!(group.heard(P2, &Effect::Began(Epoch(2))));
    group.cut = set(&[]);
    group.write(P2, 3);
    group.pass(200);
    assert!(matches!(group.ended(3), Some(Ok(_))));
    let logs: Vec<_> = group.disks.values().map(|(stored, _)| stored.entries.clone()).collect();
    assert!(logs.iter().all(|log| *log == logs[0]), "{logs:?}");
    assert!(matches!(group.ended(2), Some(Err(Failed::NotLeader(_)))), "another entry is at its place");
}

#[test]
fn a_leader_whose_committed_entries_differ_is_not_followed() {
    let mut group = Group::of_three();
    group.write(P1, 1);
    group.pass(100);
    let entry = Entry { position: LogPosition { epoch: Epoch(5), index: 2 }, kind: EntryKind::Begin };
    let before = LogPosition { epoch: Epoch(1), index: 1 };
    let (sent, committed) = (Millis(1), 0);
    let append = Append {
        epoch: Epoch(5),
        before,
        entries: vec![entry],
        committed,
        is_enough: true,
        sent,
        echo: None,
    };
    group.tell(P2, Event::Message(P3, Message::Append(append)));
    assert!(matches!(group.replicas[&P2].damage(), Some(Damage::CommittedDiffers { committed: 2, .. })));
    group.read(P2, 9, Consistency::Any);
    assert_eq!(group.ended(9), Some(Err(Failed::Damaged)));
}

#[test]
fn what_is_flushed_and_everywhere_is_trimmed_and_a_follower_far_behind_gets_a_snapshot() {
    let small = Settings { catch_up_log_bytes: 500, ..Settings::default() };
    let mut group = Group::new(small, &[P1, P2, P3], &[P1, P2]);
    group.cut = set(&[P3]);
    group.pass(600);
    group.order(|_| {});
    (1..=30).for_each(|request| group.write(P1, request));
    let end = group.replicas[&P1].status().end;
    assert_eq!(end.index, 31);
    group.tell(P1, Event::Flushed(LogPosition { epoch: Epoch(1), index: 30 }));
    let kept = group.replicas[&P1].status().log_bytes;
    assert!(kept <= 500, "{kept}");
    group.cut = set(&[]);
    group.tell(P3, Event::Order(group.order.clone()));
    group.pass(200);
    assert!(group.heard(P1, &Effect::Snapshot(P3)));
    let applied = LogPosition { epoch: Epoch(1), index: 31 };
    assert!(group.replicas[&P3].takes_snapshot(applied));
    group.tell(P3, Event::Installed(applied));
    group.write(P1, 40);
    group.pass(200);
    assert_eq!(group.replicas[&P3].status().applied, 32);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P2, P3]));
}

#[test]
fn a_log_that_wants_room_keeps_nothing_that_is_flushed_and_what_is_closed_goes_on_with_the_rest() {
    let mut group = Group::of_three();
    group.cut = set(&[P3]);
    (1..=10).for_each(|request| group.write(P2, request));
    (1..=10).for_each(|request| group.write(P1, request));
    let at = |index| LogPosition { epoch: Epoch(1), index };
    group.tell(P2, Event::Flushed(at(1)));
    assert_eq!(group.replicas[&P2].stored(at(1)).entries.len(), 11, "kept for followers");
    group.tell(P2, Event::Trim);
    let stored = group.replicas[&P2].stored(at(1));
    assert_eq!((stored.base, stored.entries.len(), stored.fence), (at(1), 10, Epoch(1)));
    assert_eq!((stored.flushed, stored.damage()), (at(1), None));
    assert_eq!(stored.entries, group.disks[&P2].0.entries, "what is closed is what the disk has");
    let recovered = Replica::recover((P2, Incarnation(1)), group.settings, stored, group.now, false);
    assert_eq!(recovered.status().end, group.replicas[&P2].status().end);
    assert!(group.replicas[&P2].stored(at(0)).damage().is_some(), "the rows do not reach the log");
}

#[test]
fn a_log_that_does_not_join_what_was_flushed_is_damaged() {
    let base = LogPosition { epoch: Epoch(1), index: 5 };
    let stored = Stored { base, ..Stored::default() };
    let replica = Replica::recover((P1, Incarnation(1)), Settings::default(), stored, Millis(0), false);
    assert!(matches!(replica.damage(), Some(Damage::Gap { .. })));
}

#[test]
fn d1_nothing_is_applied_or_noted_as_committed_that_is_not_on_the_own_disk() {
    let entry = |epoch, index| Entry {
        position: LogPosition { epoch: Epoch(epoch), index },
        kind: EntryKind::Write(Payload::from([epoch as u8])),
    };
    // The second entry was never committed, and the next leader has another one there.
    let stored = Stored { entries: vec![entry(1, 1), entry(1, 2)], fence: Epoch(2), ..Stored::default() };
    let mut replica = Replica::recover((P2, Incarnation(2)), Settings::default(), stored, Millis(0), false);
    let (before, sent, committed) = (entry(1, 1).position, Millis(1), 2);
    let append = Append {
        epoch: Epoch(2),
        before,
        entries: vec![entry(2, 2)],
        committed,
        is_enough: true,
        sent,
        echo: None,
    };
    let effects = replica.handle(Millis(1), Event::Message(P1, Message::Append(append)));
    let last = effects.iter().filter_map(|effect| match effect {
        Effect::Write(number, _) => Some(*number),
        _ => None,
    });
    let last = last.max().unwrap();
    assert!(effects.contains(&Effect::Apply(vec![entry(1, 1)])), "{effects:?}");
    assert_eq!(replica.status().applied, 1, "the disk may still have the other one");
    let effects = replica.handle(Millis(2), Event::Synced(last));
    assert!(effects.contains(&Effect::Apply(vec![entry(2, 2)])), "{effects:?}");
}

#[test]
fn d1_a_log_that_a_snapshot_replaced_is_begun_anew_before_anything_is_appended() {
    let entry =
        |epoch, index| Entry { position: LogPosition { epoch: Epoch(epoch), index }, kind: EntryKind::Begin };
    // The snapshot was stored, and the process ended before the log was begun anew.
    let flushed = LogPosition { epoch: Epoch(3), index: 9 };
    let stored =
        Stored { entries: vec![entry(1, 1), entry(1, 2)], fence: Epoch(3), flushed, ..Stored::default() };
    let mut replica = Replica::recover((P2, Incarnation(2)), Settings::default(), stored, Millis(0), false);
    let (sent, committed) = (Millis(1), 9);
    let entries = vec![entry(3, 10)];
    let append =
        Append { epoch: Epoch(3), before: flushed, entries, committed, is_enough: true, sent, echo: None };
    let effects = replica.handle(Millis(1), Event::Message(P1, Message::Append(append)));
    let writes = effects.into_iter().filter_map(|effect| match effect {
        Effect::Write(_, write) => Some(write),
        _ => None,
    });
    let expected = [LogWrite::Restart(flushed), LogWrite::Append(vec![entry(3, 10)])];
    assert_eq!(writes.collect::<Vec<_>>(), expected);
}

#[test]
fn entries_out_of_order_are_a_damage() {
    let entry =
        |epoch, index| Entry { position: LogPosition { epoch: Epoch(epoch), index }, kind: EntryKind::Begin };
    for entries in [vec![entry(1, 1), entry(1, 3)], vec![entry(2, 1), entry(1, 2)], vec![entry(1, 2)]] {
        let stored = Stored { entries, ..Stored::default() };
        let replica = Replica::recover((P1, Incarnation(1)), Settings::default(), stored, Millis(0), false);
        assert!(matches!(replica.damage(), Some(Damage::NotInOrder { .. })));
    }
}

#[test]
fn new_entries_are_replied_to_once_when_they_are_on_disk() {
    let mut group = Group::of_three();
    let now = group.now;
    let written =
        group.replicas.get_mut(&P1).unwrap().handle(now, Event::Write(vec![(1, Payload::from([0; 8]))]));
    let append = written.into_iter().find_map(|effect| match effect {
        Effect::Send(P3, message) => Some(message),
        _ => None,
    });
    let follower = group.replicas.get_mut(&P3).unwrap();
    let taken = follower.handle(now, Event::Message(P1, append.unwrap()));
    assert!(taken.iter().all(|effect| !matches!(effect, Effect::Send(..))), "{taken:?}");
    let number = taken.iter().find_map(|effect| match effect {
        Effect::Write(number, _) => Some(*number),
        _ => None,
    });
    let synced = follower.handle(now, Event::Synced(number.unwrap()));
    let replies = synced.iter().filter(|effect| matches!(effect, Effect::Send(P1, Message::Reply(_))));
    assert_eq!(replies.count(), 1, "{synced:?}");
}

#[test]
fn a_leader_hears_of_a_slow_disk_while_every_append_has_something_new() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    for request in 1..=50 {
        group.write(P1, request);
        group.pass(50);
    }
    assert!(group.replicas[&P1].may_rely(group.now), "P3 goes on promising");
    assert_eq!(group.wish(P1), None);
}

#[test]
fn all_that_may_be_under_way_is_sent_at_once() {
    let mut group = Group::of_three();
    let most = group.settings.append_entries as u64;
    let writes = (1..=3 * most).map(|request| (request, Payload::from([0; 8]))).collect();
    let effects = group.replicas.get_mut(&P1).unwrap().handle(group.now, Event::Write(writes));
    let to_follower = |effect: &&Effect| matches!(effect, Effect::Send(P2, Message::Append(_)));
    assert_eq!(effects.iter().filter(to_follower).count(), 3);
    // Entries as large as an append go alone, and wait while four of them are under way.
    let mut group = Group::of_three();
    let large = Payload::from(vec![0; group.settings.append_bytes]);
    let writes = (1..=6).map(|request| (request, large.clone())).collect();
    let effects = group.replicas.get_mut(&P1).unwrap().handle(group.now, Event::Write(writes));
    assert_eq!(effects.iter().filter(to_follower).count(), 4);
}
