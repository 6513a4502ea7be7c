use super::super::commit::committed;
use super::super::log::{Log, Matching};
use super::*;
use crate::table::copy::deadline::{CopyProgress, Urgency};
use proptest::prelude::*;

fn entry(epoch: u64, index: u64) -> Entry {
    Entry { position: LogPosition { epoch: Epoch(epoch), index }, kind: EntryKind::Begin }
}

/// A log whose epochs grow by these steps from entry to entry.
fn of_steps(steps: &[u64]) -> Vec<Entry> {
    let mut epoch = 1;
    let with_epoch = |(at, step): (usize, &u64)| {
        epoch += step;
        entry(epoch, at as u64 + 1)
    };
    steps.iter().enumerate().map(with_epoch).collect()
}

/// Two logs of one history: alike up to some index, and with entries of different epochs behind it, as two leaders
/// never append under one epoch.
fn two_logs() -> impl Strategy<Value = (Vec<Entry>, Vec<Entry>)> {
    let steps = || prop::collection::vec(0_u64..2, 0..8);
    (steps(), steps(), steps()).prop_map(|(common, one, other)| {
        let mut logs = [&one, &other].map(|own| of_steps(&[&common[..], &own[..]].concat()));
        for (parity, log) in logs.iter_mut().enumerate() {
            for entry in log.iter_mut().skip(common.len()) {
                entry.position.epoch = Epoch(100 + 2 * entry.position.epoch.0 + parity as u64);
            }
        }
        let [leader, follower] = logs;
        (leader, follower)
    })
}

proptest! {
    /// Whatever a follower has, it gets the leader's log by appends of any size, and keeps what both have.
    #[test]
    fn d1_a_follower_ends_with_the_log_of_its_leader((leader, own) in two_logs(), size in 1_usize..4, begin in 0_usize..16) {
        let common = leader.iter().zip(&own).take_while(|(a, b)| a == b).count() as u64;
        let mut log = Log::new(LogPosition::default(), own);
        let position = |at: u64| at.checked_sub(1).map_or(LogPosition::default(), |at| leader[at as usize].position);
        let mut next = (begin as u64).min(leader.len() as u64);
        let mut steps = 0;
        while next <= leader.len() as u64 {
            steps += 1;
            prop_assert!(steps < 100, "it comes to an end");
            let entries: Vec<_> = leader.iter().skip(next as usize).take(size).cloned().collect();
            match log.matching(position(next), &entries, false) {
                Matching::Ends(ends) => {
                    prop_assert!(ends < next && next > 0, "it steps back");
                    next = ends.min(next - 1);
                }
                Matching::Fits { known, cut } => {
                    if let Some(after) = cut {
                        prop_assert!(after >= common, "what both have is not cut");
                        log.truncate(after);
                    }
                    let before = next;
                    next += entries.len() as u64;
                    entries.into_iter().skip(known).for_each(|entry| log.push(entry));
                    if before == next {
                        break;
                    }
                }
            }
        }
        let kept = log.between(0, leader.len() as u64);
        prop_assert_eq!(kept, leader);
    }

    /// An append that comes late or twice cuts nothing that came after it.
    #[test]
    fn d1_an_append_that_comes_late_cuts_nothing(steps in prop::collection::vec(0_u64..2, 1..12), from in 0_usize..12, size in 0_usize..6) {
        let entries = of_steps(&steps);
        let log = Log::new(LogPosition::default(), entries.clone());
        let from = from.min(entries.len());
        let before = from.checked_sub(1).map_or(LogPosition::default(), |at| entries[at].position);
        let late: Vec<_> = entries.iter().skip(from).take(size).cloned().collect();
        prop_assert_eq!(log.matching(before, &late, false), Matching::Fits { known: late.len(), cut: None });
    }

    /// What is let go of is what may be; entries keep their places.
    #[test]
    fn trimming_keeps_what_is_behind(steps in prop::collection::vec(0_u64..2, 1..12), to in 0_u64..14, certain in 0_u64..14, most in 0_usize..600) {
        let entries = of_steps(&steps);
        let (to, certain) = (to.min(entries.len() as u64), certain.min(to).min(entries.len() as u64));
        let mut log = Log::new(LogPosition::default(), entries.clone());
        log.trim(to, certain, most);
        prop_assert!(log.base().index >= certain && log.base().index <= to);
        prop_assert!(log.bytes() <= most || log.base().index == to);
        prop_assert_eq!(log.end(), entries.last().unwrap().position);
        prop_assert_eq!(log.between(log.base().index, 100), entries[log.base().index as usize..].to_vec());
    }

    /// Nothing is committed that a required replica lacks, nor before the first entry of the epoch, nor behind it by too few.
    #[test]
    fn d1_nothing_is_committed_that_a_required_replica_lacks(have in prop::collection::vec(0_u64..20, 1..5), begin in 0_u64..20, is_enough: bool) {
        match committed(&have, begin, is_enough) {
            Some(index) => {
                prop_assert!(have.iter().all(|one| *one >= index) && index >= begin && begin > 0);
                prop_assert!(is_enough || index == begin);
            }
            None => prop_assert!(begin == 0 || have.iter().any(|one| *one < begin)),
        }
    }
}

#[test]
fn a_slice_has_one_entry_at_least_and_keeps_its_limits() {
    let log = Log::new(LogPosition::default(), of_steps(&[0; 9]));
    assert_eq!(log.slice(3, 4, usize::MAX).len(), 4);
    assert_eq!(log.slice(3, 4, 100).len(), 2);
    assert_eq!(log.slice(3, 4, 1), [entry(1, 3)]);
    assert_eq!(log.slice(10, 4, 1), []);
}

fn at(index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(1), index }
}

/// One of a copy at that position, of which so many rows of ten are there.
fn copied(position: u64, copied: u64, is_whole: bool) -> Option<SnapshotProgress> {
    let progress = CopyProgress { copied, size: 10 };
    Some(SnapshotProgress { position: at(position), progress, is_whole })
}

/// P1 leads, and P3, which is out of sync, hears nothing. The log is kept for nobody but for copies.
fn with_one_behind() -> Group {
    let settings = Settings { catch_up_log_bytes: 1, copy_log_bytes: 4_000, ..Settings::default() };
    let mut group = Group::new(settings, &[P1, P2, P3], &[P1, P2]);
    group.cut = set(&[P3]);
    group.pass(600);
    group.order(|_| {});
    (1..=9).for_each(|request| group.write(P1, request));
    group.tell(P1, Event::Flushed(at(9)));
    assert!(!group.replicas[&P1].reaches_back_to(at(8)) && group.replicas[&P1].reaches_back_to(at(9)));
    group
}

fn leader(group: &mut Group) -> &mut Replica {
    group.replicas.get_mut(&P1).unwrap()
}

#[test]
fn l1_the_log_behind_a_snapshot_is_kept_while_it_is_copied() {
    let mut group = with_one_behind();
    let now = group.now;
    leader(&mut group).copies_to(now, P3, copied(10, 0, false));
    (10..=14).for_each(|request| group.write(P1, request));
    group.tell(P1, Event::Flushed(at(15)));
    group.tell(P1, Event::Trim);
    assert!(group.replicas[&P1].reaches_back_to(at(10)) && group.replicas[&P1].keeps_for_copies(now));
    // Its rows are there, and it stores what is behind them.
    leader(&mut group).copies_to(now, P3, copied(10, 10, true));
    group.cut = set(&[]);
    group.tell(P3, Event::Order(group.order.clone()));
    group.tell(P3, Event::Installed(at(10)));
    group.pass(200);
    assert_eq!(group.replicas[&P3].status().applied, 15);
    assert!(!group.replicas[&P1].keeps_for_copies(group.now), "it has all");
}

#[test]
fn the_log_is_kept_for_no_copy_that_was_given_up_or_not_heard_of_or_takes_too_much() {
    for case in 0..3 {
        let mut group = with_one_behind();
        let now = group.now;
        leader(&mut group).copies_to(now, P3, copied(10, 0, false));
        let (writes, waits) = [(20, 0), (20, 60_000), (80, 0)][case];
        if case == 0 {
            leader(&mut group).copies_to(now, P3, None);
        }
        group.pass(waits);
        group.order(|_| {});
        (0..writes).for_each(|request| group.write(P1, 100 + request));
        group.tell(P1, Event::Flushed(at(10 + writes)));
        assert!(!group.replicas[&P1].reaches_back_to(at(10)), "case {case}");
        assert!(!group.replicas[&P1].keeps_for_copies(group.now), "case {case}");
        assert!(group.replicas[&P1].status().log_bytes <= 4_000, "case {case}");
    }
}

#[test]
fn there_is_room_for_writes_as_far_as_a_copy_goes_on() {
    let mut group = with_one_behind();
    let now = group.now;
    assert_eq!(group.replicas[&P1].write_room(now), None, "nothing is copied");
    leader(&mut group).copies_to(now, P3, copied(10, 0, false));
    assert_eq!(group.replicas[&P1].write_room(now), Some(1_000));
    assert_eq!(group.replicas[&P1].copy_urgency(P3), Urgency::GivesWay);
    (0..18).for_each(|request| group.write(P1, 100 + request));
    assert_eq!(group.replicas[&P1].write_room(now), Some(0), "each has 56 bytes");
    assert_eq!(group.replicas[&P1].copy_urgency(P3), Urgency::Urgent);
    leader(&mut group).copies_to(now, P3, copied(10, 5, false));
    assert!(group.replicas[&P1].write_room(now).is_some_and(|room| room > 400));
    let silent = now + group.settings.copy_slows_ms;
    assert_eq!(group.replicas[&P1].write_room(silent), None, "nothing was heard of it");
    leader(&mut group).end_copies();
    assert_eq!(group.replicas[&P1].write_room(now), None);
}
