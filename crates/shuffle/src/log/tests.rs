//! What a leader was told to be synced is there after the end of the process, under the epoch that was heard of.

use super::{DecisionLog, DecisionSettings, DecisionsError, Logged};
use partage_core::base::id::Epoch;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_journal::Disk;
use partage_journal::faulty_disk::{Fault, FaultyDisk};
use partage_log::{DamagedPlace, LogSettings, Report, WriterSettings};
use partage_service::shuffle::log::{Append, Decision, Decisions, Refused, What};
use partage_service::shuffle::{Ended, PoolSlot, ShuffleId, Terms};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

const SLOT: PoolSlot = PoolSlot(3);
const DIR: &str = "/decisions";

struct Opened {
    log: DecisionLog,
    reports: Receiver<Report>,
    damaged: usize,
}

fn open(disk: &FaultyDisk) -> Opened {
    try_open(disk).unwrap()
}

/// None: the disk has failed.
fn try_open(disk: &FaultyDisk) -> Option<Opened> {
    let (sender, reports) = sync_channel(1_024);
    let opened = open_with(disk, WriterSettings::default(), move |report| drop(sender.try_send(report)));
    opened.ok().map(|(log, places)| Opened { log, reports, damaged: places.len() })
}

fn open_with(
    disk: &FaultyDisk,
    writer: WriterSettings,
    report: impl FnMut(Report) + Send + 'static,
) -> Result<(DecisionLog, Vec<DamagedPlace>), DecisionsError> {
    let log = LogSettings {
        segment_bytes: 128 << 10,
        entry_bytes: 1_000,
        try_direct: false,
        prepare_ahead: false,
        ..LogSettings::default()
    };
    let settings = DecisionSettings { log, writer, records_before_copy: 8, ended_kept: 4 };
    let pool = KeyspaceName::new("pool").unwrap();
    DecisionLog::open(Arc::new(disk.clone()), Path::new(DIR), pool, settings, report)
}

fn leader() -> NodeId {
    NodeId::new("leader").unwrap()
}

impl Opened {
    /// Takes decisions, and waits until they are synced. None: the disk has failed.
    fn take(&mut self, epoch: u64, what: What) -> Option<Result<Logged, Refused>> {
        let append = Append { slot: SLOT, epoch: Epoch(epoch), what };
        match self.log.take(leader(), append, Epoch(0)).ok()? {
            Err(refused) => return Some(Err(refused)),
            Ok(Some(logged)) => return Some(Ok(logged)),
            Ok(None) => {}
        }
        while let Ok(report) = self.reports.recv_timeout(Duration::from_secs(20)) {
            match report {
                Report::Synced(synced) => {
                    if let Some(logged) = self.log.synced(&synced).pop() {
                        return Some(Ok(logged));
                    }
                }
                Report::Ended(_) => return None,
                _ => {}
            }
        }
        panic!("neither synced nor failed");
    }

    fn copy(&self) -> Decisions {
        self.log.replicas().copies.get(&SLOT).cloned().unwrap_or_default()
    }
}

fn start(shuffle: u128) -> (ShuffleId, Decision) {
    (ShuffleId(shuffle), Decision::Start(Terms::new(3, shuffle as u32), Arc::default()))
}

fn whole(epoch: u64, shuffles: u128) -> What {
    let mut copy = Decisions { epoch: Epoch(epoch), ..Decisions::default() };
    for shuffle in 0..shuffles {
        let (shuffle, decision) = start(shuffle);
        copy.push(shuffle, decision, 4);
    }
    What::Whole(Arc::new(copy))
}

fn logged(epoch: u64, sequence: u64) -> Option<Result<Logged, Refused>> {
    Some(Ok(Logged { slot: SLOT, leader: leader(), epoch: Epoch(epoch), sequence }))
}

#[test]
fn what_was_synced_is_there_after_a_restart() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    // The copy has several entries, as it is larger than one.
    assert_eq!(opened.take(2, whole(2, 100)), logged(2, 100));
    for more in 100..130 {
        let after = What::After(u64::try_from(more).unwrap(), vec![start(more)]);
        assert_eq!(opened.take(2, after), logged(2, u64::try_from(more).unwrap() + 1));
    }
    let copy = opened.copy();
    assert_eq!(copy.living.len(), 130);
    drop(opened);
    disk.lose_power(|| false);
    let opened = open(&disk);
    assert_eq!((opened.copy(), opened.damaged), (copy, 0));
}

#[test]
fn o2_an_epoch_that_was_led_under_or_heard_of_is_kept() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    assert!(opened.log.may_lead(SLOT, Epoch(1)));
    assert_eq!(opened.take(3, whole(3, 2)), logged(3, 2));
    assert_eq!(opened.log.lead(SLOT, Epoch(5)).unwrap(), None, "the epoch is not on disk yet");
    // Its own copy under its epoch, as a leader sends it to itself.
    assert_eq!(opened.take(5, whole(5, 2)), logged(5, 2));
    assert_eq!(opened.log.lead(SLOT, Epoch(5)).unwrap().unwrap().epoch, Epoch(5));
    drop(opened);
    let mut opened = open(&disk);
    assert_eq!(opened.copy().epoch, Epoch(3), "an epoch that was heard of makes no copy one of its leader");
    assert_eq!(opened.take(4, whole(4, 9)), Some(Err(Refused::Stale(Epoch(5)))));
    assert!(!opened.log.may_lead(SLOT, Epoch(5)), "an earlier process of the node has led under it");
    assert!(opened.log.may_lead(SLOT, Epoch(6)));
}

#[test]
fn a_pool_that_is_made_anew_counts_its_epochs_from_the_first_on() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    assert_eq!(opened.take(7, whole(7, 2)), logged(7, 2));
    drop(opened);
    let mut opened = open(&disk);
    assert_eq!(opened.take(1, whole(1, 1)), Some(Err(Refused::Stale(Epoch(7)))));
    opened.log.forget_epochs(SLOT).unwrap();
    assert!(opened.log.may_lead(SLOT, Epoch(1)));
    assert_eq!(opened.take(1, whole(1, 1)), logged(1, 1));
}

#[test]
fn a_shuffle_that_has_ended_leaves_the_disk() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    opened.take(1, whole(1, 0)).unwrap().unwrap();
    let mut sequence = 0;
    for shuffle in 0..2_000 {
        for decision in [start(shuffle), (ShuffleId(shuffle), Decision::Ended(Ended::Deleted))] {
            assert_eq!(opened.take(1, What::After(sequence, vec![decision])), logged(1, sequence + 1));
            sequence += 1;
        }
    }
    let segments = disk.list(Path::new(DIR)).unwrap().len();
    assert!(segments <= 4, "{segments} segments: what has ended is not let go");
    drop(opened);
    let opened = open(&disk);
    assert_eq!((opened.copy().living.len(), opened.copy().ended.len()), (0, 4));
    assert_eq!(opened.copy().sequence, 4_000);
}

#[test]
fn a_slot_that_is_forgotten_begins_anew() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    opened.take(1, whole(1, 3)).unwrap().unwrap();
    opened.log.forget(SLOT).unwrap();
    assert_eq!(opened.take(1, What::After(3, vec![start(9)])), Some(Err(Refused::Lacks)));
    drop(opened);
    let mut opened = open(&disk);
    assert_eq!(opened.copy(), Decisions::default());
    assert_eq!(opened.take(1, whole(1, 4)), logged(1, 4));
}

#[test]
fn who_hands_decisions_over_never_waits_for_the_disk() {
    let disk = FaultyDisk::default();
    // The thread that writes waits in its first report, as it would for a full disk. One record fits into the queue before it.
    let (sender, reports) = sync_channel(1_024);
    let (let_go, gate) = sync_channel::<()>(0);
    let report = move |report| {
        drop(sender.try_send(report));
        let _ = gate.recv();
    };
    let writer = WriterSettings { queue_bytes: 1, ..WriterSettings::default() };
    let (mut log, _) = open_with(&disk, writer, report).unwrap();
    // A copy, a trim and a fence.
    let append = Append { slot: SLOT, epoch: Epoch(1), what: whole(1, 3) };
    assert_eq!(log.take(leader(), append, Epoch(0)), Ok(Ok(None)));
    assert!(log.is_full());
    assert_eq!(log.lead(SLOT, Epoch(1)), Ok(None), "what it has is not on disk");
    let other = PoolSlot(SLOT.0 + 1);
    for _ in 0..100 {
        log.forget(other).unwrap();
    }
    assert!(log.waiting.len() < 5, "{} records wait of two slots", log.waiting.len());
    drop(let_go);
    let mut logged = Vec::new();
    while log.is_full() || logged.is_empty() {
        if let Report::Synced(synced) = reports.recv_timeout(Duration::from_secs(20)).unwrap() {
            log.hand_over().unwrap();
            logged.extend(log.synced(&synced));
        }
    }
    assert_eq!(logged, [Logged { slot: SLOT, leader: leader(), epoch: Epoch(1), sequence: 3 }]);
    let copy = log.replicas().copies[&SLOT].clone();
    drop(log);
    assert_eq!(open(&disk).copy(), copy);
}

#[test]
fn decisions_of_a_later_version_are_no_damage_and_are_kept() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    opened.take(1, whole(1, 3)).unwrap().unwrap();
    opened.log.append(SLOT, &[2, 1, 77]).unwrap();
    drop(opened);
    let path = Path::new(DIR).join(&disk.list(Path::new(DIR)).unwrap()[0]);
    let bytes = disk.read(&path).unwrap();
    for _ in 0..2 {
        let refused = open_with(&disk, WriterSettings::default(), |_| {}).err();
        assert!(matches!(refused, Some(DecisionsError::Later(3))), "{refused:?}");
        assert_eq!(disk.read(&path).unwrap(), bytes);
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_power_goes() {
    let mut fired = 0;
    for left in 0..120 {
        let disk = FaultyDisk::default();
        let mut acknowledged = 0;
        disk.arm(left, Fault::Power);
        if let Some(mut opened) = try_open(&disk) {
            let mut sequence = 0;
            let mut what = whole(1, 0);
            while let Some(Ok(logged)) = opened.take(1, what) {
                (acknowledged, sequence) = (logged.sequence, logged.sequence);
                if sequence == 40 {
                    break;
                }
                what = What::After(sequence, vec![start(u128::from(sequence))]);
            }
            assert!(sequence == 40 || disk.fired());
        }
        fired += u32::from(disk.fired());
        let mut bits = u64::from(left).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        disk.lose_power(|| {
            bits = bits.rotate_left(9).wrapping_mul(0x2545_f491_4f6c_dd1d);
            bits >> 63 == 1
        });
        let opened = open(&disk);
        let found = opened.copy();
        assert_eq!(opened.damaged, 0, "operation {left}");
        assert!(found.sequence == acknowledged || found.sequence == acknowledged + 1, "{left}: {found:?}");
        assert_eq!(found.living.len() as u64, found.sequence, "operation {left}");
    }
    assert!(fired > 60, "{fired}");
}

#[test]
fn no_damaged_byte_makes_a_leader_that_lacks_a_decision() {
    let disk = FaultyDisk::default();
    let mut opened = open(&disk);
    opened.take(1, whole(1, 30)).unwrap().unwrap();
    drop(opened);
    let path = Path::new(DIR).join(&disk.list(Path::new(DIR)).unwrap()[0]);
    let bytes = disk.read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let mut unfit = 0;
    for at in (0..end).step_by(11) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        // A start that finds damage may have made another segment.
        for name in disk.list(Path::new(DIR)).unwrap() {
            disk.remove(&Path::new(DIR).join(name)).unwrap();
        }
        let mut file = disk.create(&path).unwrap();
        file.write_at(0, &flipped).and_then(|()| file.sync()).unwrap();
        let mut opened = open(&disk);
        opened.log.named([SLOT]).unwrap();
        if opened.log.may_lead(SLOT, Epoch(9)) {
            assert_eq!((opened.copy().living.len(), opened.copy().epoch), (30, Epoch(1)), "byte {at}");
            continue;
        }
        unfit += 1;
        assert!(opened.damaged > 0, "byte {at}");
        assert_eq!(opened.log.unfit().collect::<Vec<_>>(), [SLOT]);
        drop(opened);
        // Also the next process of the node knows that decisions were lost.
        let mut opened = open(&disk);
        assert!(!opened.log.may_lead(SLOT, Epoch(9)), "byte {at}");
        assert_eq!(opened.take(9, whole(9, 5)), logged(9, 5));
        assert!(opened.log.may_lead(SLOT, Epoch(10)));
    }
    assert!(unfit > 20, "{unfit} of {end} bytes");
}

#[test]
fn decisions_of_many_slots_that_come_while_the_disk_is_busy_share_one_sync() {
    let patience = Duration::from_secs(20);
    let (reported, reports) = sync_channel(64);
    let (goes_on, waits) = sync_channel::<()>(64);
    let report = move |report: Report| {
        let _ = reported.send(report);
        // No group is written before this returns.
        let _ = waits.recv_timeout(patience);
    };
    let (mut log, _) = open_with(&FaultyDisk::default(), WriterSettings::default(), report).unwrap();
    let take = |log: &mut DecisionLog, slot: u32| {
        let mut decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
        let start = Decision::Start(Terms::new(1, 1), Arc::default());
        decisions.push(ShuffleId(slot.into()), start, 4);
        let what = What::Whole(Arc::new(decisions));
        let append = Append { slot: PoolSlot(slot), epoch: Epoch(1), what };
        assert_eq!(log.take(leader(), append, Epoch(0)).unwrap(), Ok(None));
    };
    let synced = |log: &mut DecisionLog| match reports.recv_timeout(patience).unwrap() {
        Report::Synced(synced) => log.synced(&synced).len(),
        other => panic!("{other:?}"),
    };
    take(&mut log, 0);
    let first = synced(&mut log);
    (1..32).for_each(|slot| take(&mut log, slot));
    goes_on.send(()).unwrap();
    assert_eq!(first + synced(&mut log), 32, "the second sync is of all that have come meanwhile");
    drop(goes_on);
}
