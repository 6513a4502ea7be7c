//! Damaged bytes, sectors and files: never a wrong answer.

use super::{DIR, Draws, Group, Model, append, apply, at, fence, key, open, same, small};
use crate::segment::BLOCK;
use crate::{Log, Record, Recovered, WriteError};
use partage_core::node::exchange::ReplicaKey;
use partage_journal::Disk;
use partage_journal::faulty_disk::FaultyDisk;
use partage_service::table::replication::LogWrite;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

type Files = Vec<(PathBuf, Vec<u8>)>;

fn files(disk: &FaultyDisk) -> Files {
    let names = disk.list(DIR.as_ref()).unwrap();
    let paths = names.into_iter().map(|name| PathBuf::from(DIR).join(name));
    paths.map(|path| (path.clone(), disk.read(&path).unwrap())).collect()
}

fn disk_of(files: &Files) -> FaultyDisk {
    let disk = FaultyDisk::default();
    for (path, bytes) in files {
        let mut file = disk.create(path).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
    }
    disk.sync_dir(DIR.as_ref()).unwrap();
    disk
}

/// A log of two segments with a checkpoint in it, what its replicas have, and what they had before the last group.
fn small_log() -> (Files, Model, Model) {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    let mut model = Model::new();
    let mut write = |log: &mut Log, group: Group| {
        log.write(&group).unwrap();
        apply(&mut model, &group);
        model.clone()
    };
    let trim = |epoch, index| Record::from(LogWrite::Trim(at(epoch, index)));
    let truncate = |after| Record::from(LogWrite::Truncate(after));
    write(&mut log, vec![(key(1), fence(1)), (key(2), fence(4)), (key(3), fence(2)), (key(4), fence(9))]);
    write(&mut log, vec![(key(1), append(1, 1, 50)), (key(2), append(4, 1, 700)), (key(1), append(1, 2, 5))]);
    for index in 3..9 {
        write(&mut log, vec![(key(1), append(1, index, 3_000)), (key(1), Record::Committed(index))]);
    }
    write(
        &mut log,
        vec![
            (key(2), truncate(0)),
            (key(2), append(5, 1, 90)),
            (key(1), trim(1, 8)),
            (key(4), Record::Forget),
        ],
    );
    write(
        &mut log,
        vec![(key(2), append(5, 2, 20)), (key(1), append(1, 9, 4_500)), (key(5), append(1, 1, 7))],
    );
    write(&mut log, vec![(key(2), trim(5, 2)), (key(5), trim(1, 1)), (key(4), fence(1))]);
    assert_eq!(log.segments(), 2);
    let mut before = write(&mut log, vec![(key(1), trim(1, 9)), (key(2), append(5, 3, 33))]);
    if log.reclaim().unwrap() == 1 {
        before = write(&mut log, vec![(key(3), append(2, 1, 12)), (key(1), append(1, 10, 40))]);
    }
    let last = write(&mut log, vec![(key(2), append(5, 4, 33)), (key(5), append(1, 2, 600))]);
    drop(log);
    (files(&disk), last, before)
}

/// A log of several segments, none deleted.
fn long_log(seed: u64) -> (Files, Vec<Model>) {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    let mut draws = Draws::new(seed);
    let mut models = vec![Model::new()];
    while log.segments() < 3 {
        let mut model = models.last().unwrap().clone();
        let group = draws.group(&model, 5);
        log.write(&group).unwrap();
        apply(&mut model, &group);
        models.push(model);
    }
    drop(log);
    (files(&disk), models)
}

fn known(recovered: &Recovered) -> BTreeSet<&ReplicaKey> {
    recovered.replicas.keys().chain(recovered.damaged.keys()).collect()
}

/// Flips each byte of a log, and says how often a replica was damaged, and how often none.
fn flip_each(files: &Files, model: &Model, with: impl Fn(u8) -> u8) -> (u32, u32) {
    let (mut touched, mut harmless) = (0, 0);
    for (number, (path, bytes)) in files.iter().enumerate() {
        let name = path.file_name().unwrap().to_str().unwrap();
        for offset in 0..bytes.len() {
            // Of blocks of zeros some bytes are enough.
            let block = &bytes[offset / BLOCK * BLOCK..][..BLOCK];
            let is_far = block[offset % BLOCK / 64 * 64..][..64].iter().all(|byte| *byte == 0);
            if (is_far && offset % 97 != 0) || with(bytes[offset]) == bytes[offset] {
                continue;
            }
            let mut damaged = files.clone();
            damaged[number].1[offset] = with(bytes[offset]);
            let disk = disk_of(&damaged);
            let (mut log, recovered) = open(&disk);
            let what = format!("byte {offset} of {name}: {:?}", recovered.places);
            assert_eq!(known(&recovered), model.keys().collect(), "{what}");
            for (key, stored) in &recovered.replicas {
                assert_eq!(stored, &model[key], "{what}");
            }
            assert!(recovered.damaged.len() <= 1, "{what}");
            assert!(recovered.places.iter().all(|place| !place.may_hide_a_replica), "{what}");
            for (key, damage) in &recovered.damaged {
                assert_eq!(damage.file, name, "{what}");
                let distance = (offset as u64).checked_sub(damage.offset);
                assert!(distance.is_some_and(|distance| distance < 5_000), "{what}");
                let refused = log.write(&[(key.clone(), fence(99))]);
                assert!(matches!(refused, Err(WriteError::Damaged { .. })), "{what}");
                touched += 1;
            }
            harmless += u32::from(recovered.damaged.is_empty());
            if offset % 7 == 0 {
                goes_on(&disk, log, &recovered, model, &what);
            }
        }
    }
    (touched, harmless)
}

/// The log takes up records of the other replicas and says the same of the damaged ones when it is opened again, until these
/// are forgotten.
fn goes_on(disk: &FaultyDisk, mut log: Log, recovered: &Recovered, model: &Model, what: &str) {
    let mut model = model.clone();
    let others: Group = recovered.replicas.keys().map(|key| (key.clone(), fence(50))).collect();
    log.write(&others).unwrap();
    apply(&mut model, &others);
    drop(log);
    let (mut log, again) = open(disk);
    assert_eq!(
        again.damaged.keys().collect::<Vec<_>>(),
        recovered.damaged.keys().collect::<Vec<_>>(),
        "{what}"
    );
    assert!(again.replicas.iter().all(|(key, stored)| stored == &model[key]), "{what}");
    let anew = |key: &ReplicaKey| [(key.clone(), Record::Forget), (key.clone(), fence(51))];
    let anew: Group = again.damaged.keys().flat_map(anew).collect();
    log.write(&anew).unwrap();
    apply(&mut model, &anew);
    drop(log);
    let (_, healed) = open(disk);
    same(&healed.replicas, &model, what);
    assert!(healed.damaged.is_empty(), "{what}");
}

#[test]
fn a_flipped_byte_damages_the_replica_it_is_of_and_no_other() {
    let (files, model, _) = small_log();
    assert!(!files.is_empty() && model.len() == 5);
    let (touched, harmless) = flip_each(&files, &model, |byte| byte ^ 0xff);
    assert!(touched > 1_000 && harmless > 500, "{touched} flips touched a replica, {harmless} none");
    flip_each(&files, &model, |byte| byte ^ 0x10);
    flip_each(&files, &model, |_| 0);
}

/// Each replica is damaged, or has what it should have; only the last group may be missing.
fn never_wrong(recovered: &Recovered, models: &[Model], what: &str) {
    let (last, before) = (&models[models.len() - 1], &models[models.len() - 2]);
    let fits = |model: &Model| {
        let is_right = |(key, stored)| {
            recovered.damaged.contains_key(key) || recovered.replicas.get(key) == Some(stored)
        };
        model.iter().all(is_right) && recovered.replicas.keys().all(|key| model.contains_key(key))
    };
    let may_hide = recovered.places.iter().any(|place| place.may_hide_a_replica);
    let fits_but_for_hidden = |model: &Model| {
        let is_right = |(key, stored)| recovered.replicas.get(key).is_none_or(|found| found == stored);
        model.iter().all(is_right)
    };
    assert!(
        fits(last) || fits(before) || (may_hide && fits_but_for_hidden(last)),
        "{what}: {:?} {:?}",
        recovered.places,
        recovered.damaged
    );
}

#[test]
fn damaged_sectors_and_files_never_give_a_wrong_answer() {
    let mut all_right = 0;
    for seed in 0..6 {
        let (files, models) = long_log(seed);
        for number in 0..files.len() {
            for sector in 0..files[number].1.len() / 512 {
                let mut draws = Draws::new(sector as u64);
                for fill in ["zeros", "noise", "another sector", "some bytes"] {
                    let mut damaged = files.clone();
                    let other = damaged[number].1[(sector / 2 * 512)..][..512].to_vec();
                    let bytes = &mut damaged[number].1[sector * 512..][..512];
                    match fill {
                        "zeros" => bytes.fill(0),
                        "noise" => bytes.fill_with(|| draws.next() as u8),
                        "another sector" => bytes.copy_from_slice(&other),
                        _ => (0..4).for_each(|_| bytes[draws.below(512) as usize] ^= draws.next() as u8),
                    }
                    if damaged == files {
                        continue;
                    }
                    let (_, recovered) = open(&disk_of(&damaged));
                    let what = format!("seed {seed}, {fill} in sector {sector} of file {number}");
                    never_wrong(&recovered, &models, &what);
                    all_right += u32::from(recovered.damaged.is_empty());
                }
            }
        }
        for number in 0..files.len() - 1 {
            let mut fewer = files.clone();
            fewer.remove(number);
            let (_, recovered) = open(&disk_of(&fewer));
            let what = format!("seed {seed}, file {number} is missing");
            for (key, stored) in &recovered.replicas {
                assert_eq!(models[models.len() - 1].get(key), Some(stored), "{what}");
            }
            let mut cut = files.clone();
            cut[number].1.truncate(9_000 + number * 512);
            let (_, recovered) = open(&disk_of(&cut));
            never_wrong(&recovered, &models, &format!("seed {seed}, file {number} was cut"));
        }
    }
    assert!(all_right > 0);
}

#[test]
fn a_damaged_replica_stays_damaged_when_its_segments_are_deleted() {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    log.write(&[(key(1), append(1, 1, 500)), (key(2), append(1, 1, 500))]).unwrap();
    drop(log);
    let mut damaged = files(&disk);
    damaged[0].1[BLOCK + 400] ^= 1;
    let disk = disk_of(&damaged);
    let (mut log, recovered) = open(&disk);
    let found = recovered.damaged.clone();
    assert_eq!(found.len(), 1, "{found:?}");
    let (whole, _) = recovered.replicas.first_key_value().unwrap();
    for index in 2..30 {
        log.write(&[(whole.clone(), append(1, index, 3_000))]).unwrap();
        log.write(&[(whole.clone(), LogWrite::Trim(at(1, index)).into())]).unwrap();
    }
    assert!(log.reclaim().unwrap() > 1);
    drop(log);
    assert_eq!(open(&disk).1.damaged, found, "by the same file and offset");
}

#[test]
fn files_of_other_stores_and_programs_are_refused() {
    use crate::{LogSettings, OpenError};
    let (files, _, _) = small_log();
    let other = LogSettings { owner: 7, ..small() };
    let refused = Log::open(Arc::new(disk_of(&files)), DIR.as_ref(), other).unwrap_err();
    assert!(matches!(refused, OpenError::Owner { found: 0, owner: 7, .. }), "{refused}");
}
