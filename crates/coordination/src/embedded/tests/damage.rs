//! D8, exhaustively on a small journal: no flipped bit, cut, zeroed or misplaced sector goes unnoticed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::ClusterId;
use crate::embedded::Options;
use crate::embedded::journal::{Journal, file_name};
use crate::embedded::record::Committed;
use crate::embedded::replay::{Replayed, replay};
use crate::{Change, Entry, Key, Version};
use partage_journal::Disk;
use partage_journal::faulty_disk::FaultyDisk;
use partage_journal::frame::{self, Damage};

const STEP: u32 = 1024;

type Content = BTreeMap<Key, Entry>;

/// A journal's bytes, and what they say after each record.
struct Sample {
    bytes: Vec<u8>,
    /// Where each record ends, and the content with it. The first is the empty snapshot.
    states: Vec<(usize, Content)>,
}

impl Sample {
    /// Records of several sizes: within a sector, over several, and with long runs of zeros in values.
    fn new(sizes: &[usize]) -> Self {
        let (dir, disk) = (Path::new("/d"), Arc::new(FaultyDisk::default()));
        let options = Options {
            cluster: Some(ClusterId(7)),
            step_bytes: STEP,
            compact_bytes: 1 << 30,
            disk: disk.clone(),
        };
        let (mut journal, _) = Journal::open(disk.clone(), dir, &options).unwrap();
        let mut content = Content::new();
        let mut states = vec![(frame::FILE_HEADER + frame::extent(9), content.clone())];
        for (index, size) in sizes.iter().enumerate() {
            let at = Version::new(index as u64 + 1);
            let key = Key::new(format!("k{}", index % 3)).unwrap();
            let entry = Entry { value: Bytes::from(vec![0; *size]), version: at, session: None };
            content.insert(key.clone(), entry.clone());
            let batch = vec![Committed { at, changes: vec![Change { key, entry: Some(entry) }] }];
            let payload = crate::embedded::record::Record::Batch(batch.clone()).encode().len();
            journal.append(batch).unwrap();
            states.push((states[index].0 + frame::extent(payload), content.clone()));
        }
        let bytes = disk.read(&dir.join(file_name(1))).unwrap();
        Self { bytes, states }
    }

    fn end(&self) -> usize {
        self.states.last().unwrap().0
    }

    /// The content of all records that end at or before `offset`.
    fn until(&self, offset: usize) -> Option<&Content> {
        self.states.iter().rev().find(|(end, _)| *end <= offset).map(|(_, content)| content)
    }

    /// Where the record (or header) that holds `offset` begins.
    fn start_of(&self, offset: usize) -> usize {
        let starts = [0, frame::FILE_HEADER].into_iter().chain(self.states.iter().map(|(end, _)| *end));
        starts.filter(|start| *start <= offset).max().unwrap()
    }

    fn full(&self) -> &Content {
        self.until(usize::MAX).unwrap()
    }
}

fn content(replayed: &Replayed) -> &Content {
    replayed.tree.entries()
}

#[test]
fn a_sound_file_is_read_whole() {
    let sample = Sample::new(&[0, 10, 700, 40, 1500, 3]);
    let replayed = replay(&sample.bytes, 1).unwrap();
    assert_eq!(content(&replayed), sample.full());
    assert_eq!(
        (replayed.contents.end, replayed.contents.torn, replayed.contents.next_record),
        (sample.end(), false, 8)
    );
    assert!(sample.bytes.len().is_multiple_of(STEP as usize));
}

#[test]
fn every_flipped_bit_is_found() {
    let sample = Sample::new(&[0, 10, 700, 40, 900, 3]);
    for byte in 0..sample.bytes.len() {
        for bit in 0..8 {
            let mut bytes = sample.bytes.clone();
            bytes[byte] ^= 1 << bit;
            match replay(&bytes, 1) {
                Err(Damage { offset, .. }) => {
                    let offset = offset as usize;
                    let start = sample.start_of(byte);
                    let in_header = byte < frame::FILE_HEADER && offset < frame::FILE_HEADER;
                    assert!(in_header || offset == start, "bit {bit} of {byte}: named {offset}, not {start}");
                }
                Ok(replayed) => {
                    assert!(byte >= sample.end(), "bit {bit} of byte {byte} went unnoticed");
                    assert!(replayed.contents.torn, "a bit in the free room is at least seen");
                    assert_eq!(content(&replayed), sample.full());
                }
            }
        }
    }
}

#[test]
fn every_cut_is_found() {
    // The last size makes a record end exactly a step's end less 32: the tightest room there is.
    for last in (0..1200).step_by(32) {
        let sample = Sample::new(&[700, last]);
        for length in 0..sample.bytes.len() {
            match replay(&sample.bytes[..length], 1) {
                Err(Damage { offset, .. }) => assert!(offset as usize <= length),
                Ok(replayed) => {
                    assert!(length >= sample.end() + frame::ALIGN, "a cut at {length} went unnoticed");
                    assert_eq!(content(&replayed), sample.full());
                }
            }
        }
    }
}

#[test]
fn a_zeroed_tail_is_damage_or_the_records_before_it() {
    let sample = Sample::new(&[0, 10, 700, 40, 1500, 3]);
    for from in 0..sample.bytes.len() {
        let mut bytes = sample.bytes.clone();
        bytes[from..].fill(0);
        match replay(&bytes, 1) {
            Err(Damage { offset, .. }) => {
                assert!(
                    offset as usize <= from.max(frame::FILE_HEADER + 64),
                    "{offset} for a tail from {from}"
                );
            }
            Ok(replayed) => assert_eq!(content(&replayed), sample.until(from).unwrap(), "tail from {from}"),
        }
    }
}

#[test]
fn an_unfinished_last_write_is_dropped_whatever_part_of_it_arrived() {
    let sample = Sample::new(&[0, 10, 2100]);
    let (start, end) = (sample.states[2].0, sample.end());
    let sectors: Vec<usize> = (start / 512..end.div_ceil(512)).collect();
    assert!(sectors.len() >= 5, "the record spans sectors");
    for arrived in 0..(1_u32 << sectors.len()) - 1 {
        let mut bytes = sample.bytes.clone();
        for (index, sector) in sectors.iter().enumerate() {
            if arrived & (1 << index) == 0 {
                bytes[(sector * 512).max(start)..((sector + 1) * 512).min(end)].fill(0);
            }
        }
        let replayed = replay(&bytes, 1).unwrap();
        assert_eq!(content(&replayed), sample.until(start).unwrap());
        assert_eq!((replayed.contents.end, replayed.contents.torn), (start, arrived != 0));
    }
    // A write that stopped at any byte.
    for stopped in start..end {
        let mut bytes = sample.bytes.clone();
        bytes[stopped..].fill(0);
        let replayed = replay(&bytes, 1).unwrap();
        assert_eq!(content(&replayed), sample.until(start).unwrap(), "stopped at {stopped}");
    }
}

#[test]
fn a_misplaced_or_lost_sector_is_found() {
    let sample = Sample::new(&[700, 10, 1500, 40, 900, 600]);
    let sectors = sample.bytes.len() / 512;
    let last_start = sample.states[sample.states.len() - 2].0;
    for from in 0..sectors {
        for to in 0..sectors {
            let mut bytes = sample.bytes.clone();
            bytes.copy_within(from * 512..(from + 1) * 512, to * 512);
            if bytes == sample.bytes {
                continue;
            }
            // Zeros over the very last sectors cannot be told from a write that never happened.
            let lost_at_the_end =
                (to + 1) * 512 > last_start && bytes[to * 512..(to + 1) * 512].iter().all(|b| *b == 0);
            match replay(&bytes, 1) {
                Err(_) => {}
                Ok(replayed) if lost_at_the_end => {
                    assert!(sample.states.iter().any(|(_, state)| state == content(&replayed)));
                }
                Ok(replayed) => {
                    assert!(to * 512 >= sample.end(), "sector {from} over {to} went unnoticed");
                    assert_eq!(content(&replayed), sample.full());
                }
            }
        }
    }
}

#[test]
fn a_file_under_another_name_is_found() {
    let sample = Sample::new(&[10]);
    assert_eq!(replay(&sample.bytes, 2).unwrap_err().offset, 0);
}
