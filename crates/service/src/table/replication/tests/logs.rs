use super::super::commit::committed;
use super::super::log::{Log, Matching};
use super::*;
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
