//! Power loss, killed processes and failing disks at every operation: nothing that was acknowledged is lost, and what is
//! said of an outcome is true.

use super::{Draws, Group, Model, append, apply, key, open, open_with, same, small};
use crate::{LogSettings, OpenError, WriteError};
use partage_journal::faulty_disk::{Fault, FaultyDisk};

/// What is known of the log.
#[derive(Default)]
struct Known {
    acknowledged: Model,
    /// A group of which the outcome is unknown.
    open: Option<Group>,
}

impl Known {
    /// What was found must be what was acknowledged, with the open group as a whole or without it.
    fn check(&mut self, found: &Model, what: &str) {
        if let Some(group) = self.open.take() {
            let mut with = self.acknowledged.clone();
            apply(&mut with, &group);
            if *found == with {
                self.acknowledged = with;
            }
        }
        same(found, &self.acknowledged, what);
    }
}

/// Opens the log, writes to it until something fails, and ends. Says whether the fault struck.
fn life(disk: &FaultyDisk, known: &mut Known, draws: &mut Draws, settings: LogSettings, what: &str) {
    let (mut log, recovered) = match open_with(disk, settings) {
        Ok(opened) => opened,
        Err(OpenError::Disk(_)) => return,
        Err(error) => panic!("{what}: {error}"),
    };
    known.check(&recovered.replicas, what);
    assert_eq!((recovered.damaged.len(), recovered.places), (0, vec![]), "{what}");
    for _ in 0..draws.below(60) {
        if draws.below(6) == 0 {
            match log.reclaim() {
                Ok(_) | Err(WriteError::Full(_)) => {}
                Err(WriteError::Ends(_)) => break,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        let group = draws.group(&known.acknowledged, 5);
        match log.write(&group) {
            Ok(()) => apply(&mut known.acknowledged, &group),
            Err(WriteError::Full(_)) => {}
            Err(WriteError::Ends(_)) => {
                known.open = Some(group);
                break;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    if known.open.is_some() {
        let later = log.write(&[(key(77), append(1, 1, 1))]);
        assert!(matches!(later, Err(WriteError::Ends(_))), "{what}: a log that has ended refuses writes");
        assert!(log.reclaim().is_err(), "{what}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let (mut struck, mut unknown) = (0, 0);
    for seed in 0..400 {
        let mut draws = Draws::new(seed);
        let disk = FaultyDisk::default();
        let mut known = Known::default();
        let settings = LogSettings { prepare_ahead: seed % 4 == 3, ..small() };
        for round in 0..5 {
            let faults = [Fault::Power, Fault::ShortWrite, Fault::Full, Fault::SyncFails];
            let fault = faults[draws.below(4) as usize];
            let left = draws.below(if fault == Fault::Full { 12 } else { 120 }) as u32;
            if draws.below(8) > 0 {
                disk.arm(left, fault);
            }
            let what = format!("seed {seed}, round {round}, {fault:?} after {left}");
            life(&disk, &mut known, &mut draws, settings, &what);
            struck += u32::from(disk.fired());
            unknown += u32::from(known.open.is_some());
            if draws.below(3) == 0 {
                disk.kill();
            } else {
                disk.lose_power(|| draws.below(2) == 0);
            }
        }
        let (_, recovered) = open(&disk);
        known.check(&recovered.replicas, &format!("seed {seed}, at the end"));
    }
    assert!(
        struck > 300 && unknown > 200,
        "the faults struck {struck} times, {unknown} outcomes were unknown"
    );
}

#[test]
fn power_may_go_at_each_operation_of_one_life() {
    for after in 0.. {
        let disk = FaultyDisk::default();
        let mut draws = Draws::new(4);
        let mut known = Known::default();
        disk.arm(after, Fault::Power);
        life(&disk, &mut known, &mut draws, small(), "first life");
        let fired = disk.fired();
        let mut lost = Draws::new(u64::from(after));
        disk.lose_power(|| lost.below(2) == 0);
        let (_, recovered) = open(&disk);
        known.check(&recovered.replicas, &format!("power went after {after} operations"));
        assert!(recovered.damaged.is_empty() && recovered.places.is_empty(), "after {after}");
        if !fired {
            assert!(after > 60, "the life had {after} operations");
            return;
        }
    }
}

#[test]
fn a_full_disk_refuses_before_it_writes_and_the_log_goes_on() {
    let mut refused = 0;
    for left in 0..40 {
        let disk = FaultyDisk::default();
        let (mut log, _) = if left % 2 == 0 {
            open(&disk)
        } else {
            // The very first segment finds no room: the log opens, and refuses.
            disk.arm(left / 2, Fault::Full);
            open(&disk)
        };
        let mut model = Model::new();
        let mut draws = Draws::new(u64::from(left));
        if left % 2 == 0 {
            disk.arm(left, Fault::Full);
        }
        for _ in 0..120 {
            let group = draws.group(&model, 4);
            if let Err(error) = log.write(&group) {
                assert!(matches!(error, WriteError::Full(_)) && error.is_definite(), "{error}");
                refused += 1;
                log.write(&group).unwrap();
            }
            apply(&mut model, &group);
        }
        assert!(log.mode().is_some());
        drop(log);
        let (_, recovered) = open(&disk);
        same(&recovered.replicas, &model, &format!("full after {left}"));
        assert!(recovered.places.is_empty());
    }
    assert!(refused >= 10, "{refused} writes were refused");
}

#[test]
fn a_failed_sync_ends_the_log() {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    log.write(&[(key(1), append(1, 1, 10))]).unwrap();
    disk.arm(0, Fault::SyncFails);
    let failed = log.write(&[(key(1), append(1, 2, 10))]).unwrap_err();
    assert!(matches!(failed, WriteError::Ends(_)) && !failed.is_definite(), "{failed}");
    assert!(log.has_ended());
    let later = log.write(&[(key(2), append(1, 1, 10))]);
    assert!(matches!(later, Err(WriteError::Ends(_))), "the log does not try again");
}

#[test]
fn what_a_start_finds_is_on_the_platter_although_its_sync_never_came() {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    log.write(&[(key(1), append(1, 1, 10))]).unwrap();
    // The write of the group arrives in the system's memory, and the process ends before the sync.
    disk.arm(1, Fault::Power);
    log.write(&[(key(1), append(1, 2, 10))]).unwrap_err();
    drop(log);
    disk.kill();
    let (log, found) = open(&disk);
    assert_eq!(found.replicas[&key(1)].entries.len(), 2);
    drop(log);
    disk.lose_power(|| false);
    same(&open(&disk).1.replicas, &found.replicas, "after the power was lost");
}

#[test]
fn nothing_is_written_behind_an_unfinished_write() {
    let mut unfinished = 0;
    for before in 0..40 {
        let disk = FaultyDisk::default();
        let (mut log, _) = open(&disk);
        let mut model = Model::new();
        for index in 1..=before {
            let group = vec![(key(2), append(1, index, 1))];
            log.write(&group).unwrap();
            apply(&mut model, &group);
        }
        disk.arm(0, Fault::ShortWrite);
        let large = vec![(key(1), append(1, 1, 7_000)), (key(3), append(1, 1, 7_000))];
        log.write(&large).unwrap_err();
        drop(log);
        disk.kill();
        let (mut log, recovered) = open(&disk);
        unfinished += u32::from(recovered.is_unfinished);
        let mut known = Known { acknowledged: model, open: Some(large) };
        known.check(&recovered.replicas, "after the short write");
        let small = vec![(key(2), append(1, before + 1, 1))];
        log.write(&small).unwrap();
        apply(&mut known.acknowledged, &small);
        drop(log);
        let (_, recovered) = open(&disk);
        known.check(&recovered.replicas, &format!("{:?}", recovered.places));
        assert!(recovered.places.is_empty() && recovered.damaged.is_empty(), "{:?}", recovered.places);
    }
    assert!(unfinished > 10, "{unfinished} writes were unfinished");
}

#[test]
fn a_file_whose_name_was_not_synced_keeps_what_is_written_to_it() {
    for after in 0..15 {
        let disk = FaultyDisk::default();
        disk.arm(after, Fault::Power);
        drop(open_with(&disk, small()));
        disk.kill();
        let (mut log, _) = open(&disk);
        let mut model = Model::new();
        let group = vec![(key(1), append(1, 1, 10))];
        log.write(&group).unwrap();
        apply(&mut model, &group);
        drop(log);
        disk.lose_power(|| false);
        same(&open(&disk).1.replicas, &model, &format!("the first start ended after {after} operations"));
    }
}
