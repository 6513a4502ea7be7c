//! The thread that gathers groups.

use super::{Model, append, apply, at, fence, key, open, same};
use crate::{GroupWriter, Record, Report, SubmitError, WriteError, WriterSettings};
use partage_journal::faulty_disk::{Fault, FaultyDisk};
use partage_service::table::replication::LogWrite;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

fn start(disk: &FaultyDisk, settings: WriterSettings) -> (GroupWriter, Receiver<Report>) {
    let (reports, received) = sync_channel(10_000);
    let writer = GroupWriter::start(open(disk).0, settings, move |report| reports.send(report).unwrap());
    (writer.unwrap(), received)
}

fn quick() -> WriterSettings {
    WriterSettings { retry: Duration::from_millis(5), ..WriterSettings::default() }
}

#[test]
fn each_record_that_many_threads_hand_over_is_reported_once_it_is_stored() {
    let disk = FaultyDisk::default();
    let (writer, reports) =
        start(&disk, WriterSettings { group_bytes: 4_000, queue_bytes: 10_000, ..quick() });
    std::thread::scope(|scope| {
        for shard in 0..6 {
            let writer = &writer;
            scope.spawn(move || {
                for index in 1..=50 {
                    writer.submit(key(shard), index, append(1, index, 100)).unwrap();
                }
            });
        }
    });
    writer.stop().unwrap();
    let mut synced = BTreeMap::new();
    for report in reports {
        let Report::Synced(numbers) = report else { panic!("{report:?}") };
        for (key, number) in numbers {
            assert!(synced.insert(key, number).is_none_or(|before| before < number));
        }
    }
    assert_eq!(synced, (0..6).map(|shard| (key(shard), 50)).collect());
    let mut model = Model::new();
    for shard in 0..6 {
        apply(&mut model, &(1..=50).map(|index| (key(shard), append(1, index, 100))).collect());
    }
    same(&open(&disk).1.replicas, &model, "");
}

#[test]
fn a_full_disk_is_told_and_waited_out() {
    let disk = FaultyDisk::default();
    let (writer, reports) = start(&disk, quick());
    disk.arm(0, Fault::Full);
    for index in 1..=20 {
        writer.submit(key(1), index, append(1, index, 3_000)).unwrap();
    }
    let log = writer.stop().unwrap();
    drop(log);
    let told: Vec<_> = reports.into_iter().collect();
    let full = told.iter().filter(|report| matches!(report, Report::Full(_))).count();
    assert!(full <= 1, "{told:?}");
    let last = told.iter().rev().find_map(|report| match report {
        Report::Synced(numbers) => numbers.last().map(|(_, number)| *number),
        _ => None,
    });
    // If the writer was stopped while the disk was full, what waited is dropped, and was not told.
    assert_eq!(
        open(&disk).1.replicas.get(&key(1)).map_or(0, |stored| stored.entries.len() as u64),
        last.unwrap_or(0)
    );
}

#[test]
fn a_full_disk_that_gets_room_again_goes_on() {
    let disk = FaultyDisk::default();
    let (writer, reports) = start(&disk, quick());
    disk.arm(0, Fault::Full);
    let mut told = Vec::new();
    for index in 1..=20 {
        writer.submit(key(1), index, append(1, index, 3_000)).unwrap();
    }
    while !told.iter().any(|report| matches!(report, Report::Synced(numbers) if numbers[0].1 == 20)) {
        told.push(reports.recv_timeout(Duration::from_secs(20)).unwrap());
    }
    let full = told.iter().position(|report| matches!(report, Report::Full(_))).unwrap();
    let room = told.iter().position(|report| *report == Report::HasRoom).unwrap();
    assert!(full < room && matches!(told[room + 1], Report::Synced(_)), "{told:?}");
}

#[test]
fn a_refused_record_is_told_and_those_of_others_are_written() {
    let disk = FaultyDisk::default();
    let (writer, reports) = start(&disk, quick());
    writer.submit(key(1), 1, append(1, 5, 10)).unwrap();
    writer.submit(key(2), 1, append(1, 1, 10)).unwrap();
    writer.submit(key(3), 1, append(1, 1, 9_000)).unwrap();
    writer.stop().unwrap();
    let told: Vec<_> = reports.into_iter().collect();
    let refused = |shard| {
        let is_of = |report: &&Report| matches!(report, Report::Refused(of, 1, _) if *of == key(shard));
        told.iter().filter(is_of).count()
    };
    assert_eq!((refused(1), refused(2), refused(3)), (1, 0, 1), "{told:?}");
    assert_eq!(open(&disk).1.replicas.keys().collect::<Vec<_>>(), [&key(2)]);
}

#[test]
fn a_failed_sync_is_told_and_ends_the_writer() {
    let disk = FaultyDisk::default();
    let (writer, reports) = start(&disk, quick());
    disk.arm(0, Fault::SyncFails);
    writer.submit(key(1), 1, append(1, 1, 10)).unwrap();
    let told = reports.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(told, Report::Ended(WriteError::Ends(_))), "{told:?}");
    assert!(reports.recv_timeout(Duration::from_secs(20)).is_err(), "the callback is gone with the thread");
    assert_eq!(writer.submit(key(1), 2, append(1, 2, 10)), Err(SubmitError::Stopped));
    assert!(writer.stop().unwrap().has_ended());
}

#[test]
fn the_queue_has_a_bound() {
    let disk = FaultyDisk::default();
    let (entered, has_entered) = sync_channel(100);
    let (go_on, may_go_on) = sync_channel::<()>(100);
    let settings = WriterSettings { queue_bytes: 1_000, ..quick() };
    let writer = GroupWriter::start(open(&disk).0, settings, move |_| {
        entered.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let writer = writer.unwrap();
    writer.submit(key(1), 1, append(1, 1, 10)).unwrap();
    has_entered.recv_timeout(Duration::from_secs(20)).unwrap();
    let taken = (2..100)
        .take_while(|index| writer.try_submit(key(1), *index, append(1, *index, 100)).is_ok())
        .count();
    assert!((2..10).contains(&taken), "{taken}");
    let (error, back) = writer.try_submit(key(1), 50, append(1, 50, 100)).unwrap_err();
    assert_eq!((error, back), (SubmitError::Full, append(1, 50, 100)), "the record comes back");
    (0..10).for_each(|_| go_on.send(()).unwrap());
    writer.stop().unwrap();
    assert_eq!(open(&disk).1.replicas[&key(1)].entries.len(), taken + 1);
}

#[test]
fn the_group_that_is_being_written_is_known_by_its_number() {
    let disk = FaultyDisk::default();
    let (entered, has_entered) = sync_channel(100);
    let (go_on, may_go_on) = sync_channel::<()>(100);
    let writer = GroupWriter::start(open(&disk).0, quick(), move |_| {
        entered.send(()).unwrap();
        may_go_on.recv().unwrap();
    });
    let writer = writer.unwrap();
    assert_eq!(writer.writing(), None);
    for number in 1..=2 {
        writer.submit(key(1), number, append(1, number, 10)).unwrap();
        has_entered.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(writer.writing(), Some(number));
        assert_eq!(writer.writing(), Some(number), "for as long as it takes");
        go_on.send(()).unwrap();
        while writer.writing().is_some() {
            std::thread::yield_now();
        }
    }
    writer.stop().unwrap();
}

#[test]
fn the_writer_deletes_segments_and_names_the_replicas_that_keep_one() {
    let disk = FaultyDisk::default();
    let (writer, reports) = start(&disk, WriterSettings { segments: 3, ..quick() });
    writer.submit(key(1), 1, append(1, 1, 10)).unwrap();
    writer.submit(key(3), 1, fence(7)).unwrap();
    for index in 1..=40 {
        writer.submit(key(2), 2 * index, append(1, index, 3_000)).unwrap();
        writer.submit(key(2), 2 * index + 1, LogWrite::Trim(at(1, index)).into()).unwrap();
    }
    let holding = loop {
        if let Report::Holding(keys) = reports.recv_timeout(Duration::from_secs(20)).unwrap() {
            break keys;
        }
    };
    assert!(holding.contains(&key(1)), "{holding:?}");
    writer.submit(key(1), 2, Record::Forget).unwrap();
    let log = writer.stop().unwrap();
    assert!(log.segments() <= 2, "{}", log.segments());
    drop(log);
    assert_eq!(open(&disk).1.replicas[&key(3)].fence.0, 7);
}
