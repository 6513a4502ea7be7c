//! Groups: what one synced write holds, and how each part of it is found again when another part is damaged.
//!
//! A group is the payload of one frame of the journal:
//!
//! ```text
//! group     prelude 40 | prelude again 40 | directory | section | section | …
//! prelude   version 4 | segment 8 | group number 8 | groups in the segment before 8 | sections 4
//!           | bytes of the group 4 | crc 4
//! directory ( crc of the key 4 | bytes of the section 4 ) for each section | crc 4
//! section   body bytes 4 | body crc 4 | the replica's record before: segment 8, group 8, section 4 | shard 8
//!           | placement 8 | name bytes 1 | name of the keyspace | crc 4 | body
//! ```
//!
//! Each part has a checksum of its own, so a damaged byte damages one part. What then is still known:
//!
//! | damaged                       | known                                                                       |
//! |-------------------------------|-----------------------------------------------------------------------------|
//! | frame, padding, one prelude   | everything                                                                  |
//! | the directory                 | everything: the sections say themselves where they end                      |
//! | the body of a section         | whose record it was                                                         |
//! | the head of a section         | where the next one begins, the checksum of the key; the key, if one byte is damaged |
//! | directory and head            | the sections before; what follows may have been of any replica              |
//! | both preludes                 | nothing: the group may have had records of any replica                      |

use crate::record::{Body, BodyRef};
use bytes::{Buf, BufMut};
use partage_core::base::id::{PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use std::collections::BTreeSet;

/// Where a group is. Of two groups the later one is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct GroupId {
    /// The number of the segment, from 1.
    pub(crate) segment: u64,
    /// Counts the groups of the segment, from 1. 0 stands before the first.
    pub(crate) group: u64,
}

/// Where a record is. Of two records the later one is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct RecordId {
    pub(crate) group: GroupId,
    /// Counts the sections of the group, from 0.
    pub(crate) section: u32,
}

/// The form described above.
const VERSION: u32 = 1;
const PRELUDE: usize = 40;
/// Bytes at the start that are enough to read the prelude.
pub(crate) const PRELUDES: usize = 2 * PRELUDE;
/// Bytes of a section's head but for the name.
const SECTION: usize = 49;
/// Bytes of a section in the directory.
const DIRECTORY: usize = 8;
const CRC: usize = 4;

/// A section to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section<'a> {
    pub(crate) key: &'a ReplicaKey,
    /// The replica's record before: none if this is its first.
    pub(crate) previous: Option<RecordId>,
    pub(crate) body: BodyRef<'a>,
}

/// Bytes of a section.
pub(crate) fn section_bytes(key: &ReplicaKey, body: &BodyRef<'_>) -> usize {
    SECTION + key.keyspace.as_str().len() + body.bytes()
}

/// Bytes of a group with so many sections that have so many bytes in all.
pub(crate) fn group_bytes(sections: usize, section_bytes: usize) -> usize {
    PRELUDES + sections * DIRECTORY + CRC + section_bytes
}

/// The checksum of a key that stands in the directory.
pub(crate) fn key_crc(key: &ReplicaKey) -> u32 {
    let crc = crc32c::crc32c(key.keyspace.as_str().as_bytes());
    let crc = crc32c::crc32c_append(crc, &key.shard.0.to_be_bytes());
    crc32c::crc32c_append(crc, &key.placement.0.to_be_bytes())
}

/// The group as bytes. `before`: how many groups the segment before has.
pub(crate) fn encode(id: GroupId, before: u64, sections: &[Section<'_>]) -> Vec<u8> {
    let of_sections = sections.iter().map(|section| section_bytes(section.key, &section.body)).sum();
    let bytes = group_bytes(sections.len(), of_sections);
    let mut group = Vec::with_capacity(bytes);
    let small = |number: usize| u32::try_from(number).expect("the bound on a group is below 4 GiB");
    group.put_u32(VERSION);
    group.put_u64(id.segment);
    group.put_u64(id.group);
    group.put_u64(before);
    group.put_u32(small(sections.len()));
    group.put_u32(small(bytes));
    group.put_u32(crc32c::crc32c(&group));
    group.extend_from_within(..);
    for section in sections {
        group.put_u32(key_crc(section.key));
        group.put_u32(small(section_bytes(section.key, &section.body)));
    }
    group.put_u32(crc32c::crc32c(&group[PRELUDES..]));
    for section in sections {
        encode_section(section, &mut group);
    }
    group
}

fn encode_section(section: &Section<'_>, group: &mut Vec<u8>) {
    let start = group.len();
    group.put_bytes(0, 8);
    let previous = section.previous.unwrap_or_default();
    group.put_u64(previous.group.segment);
    group.put_u64(previous.group.group);
    group.put_u32(previous.section);
    group.put_u64(section.key.shard.0);
    group.put_u64(section.key.placement.0);
    let name = section.key.keyspace.as_str();
    group.put_u8(u8::try_from(name.len()).expect("the bound on names is below 256 bytes"));
    group.put_slice(name.as_bytes());
    let head = group.len();
    group.put_bytes(0, CRC);
    let body = group.len();
    section.body.encode(group);
    let body_bytes = u32::try_from(group.len() - body).expect("the bound on a group is below 4 GiB");
    let body_crc = crc32c::crc32c(&group[body..]);
    group[start..start + 4].copy_from_slice(&body_bytes.to_be_bytes());
    group[start + 4..start + 8].copy_from_slice(&body_crc.to_be_bytes());
    let head_crc = crc32c::crc32c(&group[start..head]);
    group[head..body].copy_from_slice(&head_crc.to_be_bytes());
}

/// The first part of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prelude {
    pub(crate) id: GroupId,
    /// How many groups the segment before has.
    pub(crate) before: u64,
    pub(crate) sections: u32,
    /// Bytes of the group.
    pub(crate) bytes: usize,
}

impl Prelude {
    /// From the first bytes of a group: none if both preludes are damaged.
    pub(crate) fn decode(group: &[u8]) -> Option<Prelude> {
        let preludes = group.get(..PRELUDES)?;
        preludes.chunks(PRELUDE).find_map(|bytes| {
            let (mut content, mut crc) = bytes.split_at(PRELUDE - CRC);
            if crc32c::crc32c(content) != crc.get_u32() || content.get_u32() != VERSION {
                return None;
            }
            Some(Prelude {
                id: GroupId { segment: content.get_u64(), group: content.get_u64() },
                before: content.get_u64(),
                sections: content.get_u32(),
                bytes: content.get_u32() as usize,
            })
        })
    }
}

/// The versions of a group's form that are not known here, if its preludes are whole and say so.
pub(crate) fn unknown_version(group: &[u8]) -> Option<u32> {
    let preludes = group.get(..PRELUDES)?;
    preludes.chunks(PRELUDE).find_map(|bytes| {
        let (mut content, mut crc) = bytes.split_at(PRELUDE - CRC);
        let is_whole = crc32c::crc32c(content) == crc.get_u32();
        Some(content.get_u32()).filter(|version| is_whole && *version != VERSION)
    })
}

/// A part of a group, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// As it was written.
    Whole { key: ReplicaKey, previous: Option<RecordId>, body: Body },
    /// A record of that replica was here.
    BodyDamaged { key: ReplicaKey },
    /// A record of a replica with that checksum of its key was here, or records of any replicas.
    Unknown { key_crc: Option<u32> },
    /// A part that touches no replica is damaged.
    Harmless,
}

struct Head {
    key: ReplicaKey,
    previous: Option<RecordId>,
    body: usize,
    body_bytes: usize,
    body_crc: u32,
}

/// Names of keyspaces that were met: each is in memory once.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeSet<KeyspaceName>);

impl Names {
    fn get(&mut self, name: &str) -> Option<KeyspaceName> {
        if let Some(known) = self.0.get(name) {
            return Some(known.clone());
        }
        let name = KeyspaceName::new(name).ok()?;
        self.0.insert(name.clone());
        Some(name)
    }
}

/// The sections of a group, each with its number and its offset in the group. `group` may be cut short.
pub(crate) fn parts(prelude: &Prelude, group: &[u8], names: &mut Names) -> Vec<(u32, usize, Part)> {
    let mut found = Vec::new();
    let sections = PRELUDES + (prelude.sections as usize).saturating_mul(DIRECTORY).saturating_add(CRC);
    let directory = directory(group, sections);
    if directory.is_none() {
        found.push((0, PRELUDES, Part::Harmless));
    }
    let mut at = sections;
    for number in 0..prelude.sections {
        let listed = directory.and_then(|directory| directory.get(number as usize * DIRECTORY..));
        let listed = listed.map(|mut listed| (listed.get_u32(), listed.get_u32() as usize));
        let head = group.get(at..).and_then(|bytes| head(bytes, names));
        let Some(head) = head else {
            let Some((key_crc, bytes)) = listed else {
                found.push((u32::MAX, at, Part::Unknown { key_crc: None }));
                return found;
            };
            let key = group.get(at..).and_then(|section| owner(section, key_crc, names));
            let part = key.map_or(Part::Unknown { key_crc: Some(key_crc) }, |key| Part::BodyDamaged { key });
            found.push((number, at, part));
            at = at.saturating_add(bytes);
            continue;
        };
        let start = at;
        let body = group.get(at + head.body..).and_then(|bytes| bytes.get(..head.body_bytes));
        at += head.body + head.body_bytes;
        let body = body.filter(|body| crc32c::crc32c(body) == head.body_crc).and_then(Body::decode);
        let part = match body {
            Some(body) => Part::Whole { key: head.key, previous: head.previous, body },
            None => Part::BodyDamaged { key: head.key },
        };
        found.push((number, start, part));
    }
    found
}

/// The directory, if it is as it was written.
fn directory(group: &[u8], end: usize) -> Option<&[u8]> {
    let (directory, mut crc) = group.get(PRELUDES..end)?.split_at_checked(end - PRELUDES - CRC)?;
    (crc32c::crc32c(directory) == crc.get_u32()).then_some(directory)
}

/// The replica whose section it is, if one byte of its head is damaged: tries each byte with each value until the head's
/// checksum is right, and the key has the checksum that the directory says.
fn owner(section: &[u8], crc: u32, names: &mut Names) -> Option<ReplicaKey> {
    let longest = SECTION + usize::from(u8::MAX);
    let mut section = section[..longest.min(section.len())].to_vec();
    for at in 0..section.len() {
        let found = section[at];
        for difference in 1..=u8::MAX {
            section[at] = found ^ difference;
            if let Some(head) = head(&section, names).filter(|head| key_crc(&head.key) == crc) {
                return Some(head.key);
            }
        }
        section[at] = found;
    }
    None
}

/// The head of a section, if it is as it was written.
fn head(section: &[u8], names: &mut Names) -> Option<Head> {
    let name_bytes = usize::from(*section.get(SECTION - CRC - 1)?);
    let body = SECTION + name_bytes;
    let (content, mut crc) = section.get(..body)?.split_at(body - CRC);
    if crc32c::crc32c(content) != crc.get_u32() {
        return None;
    }
    let mut fields = content;
    let (body_bytes, body_crc) = (fields.get_u32() as usize, fields.get_u32());
    let group = GroupId { segment: fields.get_u64(), group: fields.get_u64() };
    let previous = RecordId { group, section: fields.get_u32() };
    let (shard, placement) = (ShardId(fields.get_u64()), PlacementId(fields.get_u64()));
    let name = std::str::from_utf8(fields.get(1..)?).ok()?;
    let key = ReplicaKey { keyspace: names.get(name)?, shard, placement };
    let previous = Some(previous).filter(|previous| *previous != RecordId::default());
    Some(Head { key, previous, body, body_bytes, body_crc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn key(keyspace: &str, shard: u64) -> ReplicaKey {
        let keyspace = KeyspaceName::new(keyspace).unwrap();
        ReplicaKey { keyspace, shard: ShardId(shard), placement: PlacementId(shard + 100) }
    }

    fn group(keys: &[ReplicaKey]) -> (GroupId, Vec<u8>) {
        let id = GroupId { segment: 3, group: 9 };
        let previous = Some(RecordId { group: GroupId { segment: 2, group: 1 }, section: 4 });
        let record = Record::Committed(77);
        let body = BodyRef::Record(&record);
        let sections: Vec<_> = keys.iter().map(|key| Section { key, previous, body }).collect();
        let bytes = encode(id, 5, &sections);
        let of_sections = sections.iter().map(|section| section_bytes(section.key, &section.body)).sum();
        assert_eq!(bytes.len(), group_bytes(keys.len(), of_sections), "the size is known before");
        (id, bytes)
    }

    #[test]
    fn a_damaged_byte_touches_one_replica_at_most() {
        let keys = [key("orders", 1), key("o", 2), key("orders", 3)];
        let (id, clean) = group(&keys);
        let whole = |part: &Part| match part {
            Part::Whole { key, .. } => Some(key.clone()),
            _ => None,
        };
        for at in 0..clean.len() {
            let mut bytes = clean.clone();
            bytes[at] ^= 0x20;
            let prelude = Prelude::decode(&bytes).expect("one of two preludes is whole");
            assert_eq!((prelude.id, prelude.bytes, prelude.before), (id, clean.len(), 5));
            let parts = parts(&prelude, &bytes, &mut Names::default());
            let found: Vec<_> = parts.iter().filter_map(|(_, _, part)| whole(part)).collect();
            let mut missing = keys.iter().filter(|key| !found.contains(key));
            let lost = missing.next();
            assert_eq!(missing.next(), None, "byte {at}");
            let said: Vec<_> = parts.iter().filter(|(_, _, part)| whole(part).is_none()).collect();
            match (lost, said.as_slice()) {
                (None, [] | [(_, _, Part::Harmless)]) => {}
                (Some(lost), [(_, _, Part::BodyDamaged { key })]) => assert_eq!(key, lost, "byte {at}"),
                other => panic!("byte {at}: {other:?}"),
            }
        }
    }

    #[test]
    fn of_a_head_with_more_damage_the_checksum_of_the_key_is_known() {
        let keys = [key("orders", 1), key("o", 2)];
        let (_, mut bytes) = group(&keys);
        let start = group_bytes(2, 0);
        bytes[start + 30..start + 40].fill(0xee);
        let prelude = Prelude::decode(&bytes).unwrap();
        let parts = parts(&prelude, &bytes, &mut Names::default());
        assert_eq!(parts[0], (0, start, Part::Unknown { key_crc: Some(key_crc(&keys[0])) }));
        assert!(matches!(parts[1].2, Part::Whole { .. }));
    }

    #[test]
    fn a_group_that_is_cut_anywhere_has_the_sections_before() {
        let keys = [key("orders", 1), key("orders", 2)];
        let (_, clean) = group(&keys);
        for end in PRELUDES..clean.len() {
            let prelude = Prelude::decode(&clean[..end]).unwrap();
            let parts = parts(&prelude, &clean[..end], &mut Names::default());
            let is_whole = |(_, _, part): &(u32, usize, Part)| matches!(part, Part::Whole { .. });
            assert!(!parts.iter().all(is_whole), "cut at {end}");
        }
    }
}
