//! Reading the log when it is opened: what each replica has, and which replicas a damaged byte touches.
//!
//! The segments are read once, in their order. Each record names the group that has the record of the same replica before
//! it, so a record that is missing is noticed at the next one of its replica. A group that cannot be read may have had
//! records of any replica: each replica that has no later record is then damaged, as its last record may be the one
//! that is lost; each that has a later one is cleared, or found to lack one, by what that names.
//!
//! A replica is damaged no more behind its first record after a [`crate::Record::Forget`], and behind a checkpoint that needs
//! no entries.

mod locate;
mod rebuilt;

use crate::error::{Damage, OpenError};
use crate::group::{self, GroupId, Names, Part, Prelude, RecordId};
use crate::record::{Body, Record};
use crate::replica::{Needs, ReplicaState};
use crate::segment::{self, BLOCK, Mode};
use locate::{Located, locate};
use partage_core::node::exchange::ReplicaKey;
use partage_core::node::store;
use partage_journal::{AlignedBuffer, FileHeader, frame};
use partage_service::table::replication::Stored;
use rebuilt::Rebuilt;
use std::collections::{BTreeMap, BTreeSet};

/// What was found when the log was opened.
#[derive(Debug)]
pub struct Recovered {
    /// What each replica has. [`Stored::flushed`] is not known here: the engine has it.
    pub replicas: BTreeMap<ReplicaKey, Stored>,
    /// The replicas that are damaged, or of which it cannot be excluded, each with a place that touches it. They may neither
    /// lead nor serve; the log refuses their records until a [`Record::Forget`].
    pub damaged: BTreeMap<ReplicaKey, Damage>,
    /// All places that are damaged, those that touch no replica too.
    pub places: Vec<DamagedPlace>,
    /// Whether the last write was not finished: it was never acknowledged, and is dropped.
    pub is_unfinished: bool,
    /// How groups get to the disk: none while the disk has no room for a segment, until one is made.
    pub mode: Option<Mode>,
}

/// A damaged place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedPlace {
    /// Where, and what is wrong.
    pub damage: Damage,
    /// Whether a record was lost there that no replica in [`Recovered::damaged`] is known to have had: a replica of which
    /// nothing else is in the log is then not in [`Recovered`] at all.
    pub may_hide_a_replica: bool,
}

/// A part of the log that cannot be read.
#[derive(Debug)]
struct Loss {
    /// Records up to this one may be lost.
    last: RecordId,
    /// The checksum of the key of the replica that it was of: none if it may have been of any.
    key_crc: Option<u32>,
    /// Its place among all.
    place: usize,
}

/// How a segment ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ending {
    /// Zeros follow on the last group.
    Clean,
    /// An unfinished write follows.
    Unfinished,
    /// What follows is damaged: a group, unless a later segment says that none was there.
    Damaged { offset: usize, what: String },
}

/// A segment that was read.
#[derive(Debug)]
pub(crate) struct SegmentEnd {
    pub(crate) number: u64,
    /// Its groups, with those that cannot be read.
    pub(crate) groups: u64,
    /// Where the next group would be.
    pub(crate) at: usize,
    /// Where its last group is, and that; if it has none, its header.
    pub(crate) last: (usize, AlignedBuffer),
    ending: Ending,
    /// Whether a later segment has said how many groups it has.
    is_claimed: bool,
}

impl SegmentEnd {
    /// Whether groups may be added.
    pub(crate) fn is_clean(&self) -> bool {
        self.ending == Ending::Clean
    }
}

/// Reads segments, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    replicas: BTreeMap<ReplicaKey, Rebuilt>,
    needs: Needs,
    names: Names,
    /// In the order of the last record that each may have lost.
    losses: Vec<Loss>,
    places: Vec<DamagedPlace>,
    segments: Vec<SegmentEnd>,
}

/// What the log goes on with.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) replicas: BTreeMap<ReplicaKey, ReplicaState>,
    pub(crate) needs: Needs,
    pub(crate) segments: Vec<SegmentEnd>,
    pub(crate) recovered: Recovered,
}

/// All records of a group.
fn all_of(group: GroupId) -> RecordId {
    RecordId { group, section: u32::MAX }
}

impl Replay {
    /// Reads a segment. Segments come in the order of their numbers.
    ///
    /// # Errors
    /// The segment is not of this store, or of a later program.
    pub(crate) fn segment(&mut self, number: u64, file: &[u8], owner: u128) -> Result<(), OpenError> {
        self.notice_gap(number);
        let is_cut = self.header(number, file, owner)?;
        let (mut groups, mut at, mut last, mut ending) = (0, BLOCK, 0..BLOCK, Ending::Clean);
        let mut last_mended = None;
        loop {
            let id = GroupId { segment: number, group: groups + 1 };
            match locate(file, at, id, &mut self.names) {
                Located::End => break,
                Located::Unfinished => {
                    ending = Ending::Unfinished;
                    break;
                }
                Located::LostEnd(what) => {
                    ending = Ending::Damaged { offset: at, what };
                    break;
                }
                Located::Lost { last: lost, next, what } => {
                    self.lose(all_of(GroupId { group: lost, ..id }), at, what, None);
                    (groups, last, at, last_mended) = (lost, at..next, next, None);
                }
                Located::Group { prelude, payload, next, note, mended } => {
                    self.claim(number, prelude.before);
                    self.group(&prelude, &payload, at, note);
                    (groups, last, at, last_mended) = (id.group, at..next, next, mended);
                }
                Located::Unknown(version) => {
                    let what = format!("group {} has version {version}", id.group);
                    return Err(OpenError::Format { file: segment::name(number), what });
                }
            }
        }
        if is_cut || at > file.len() {
            ending =
                Ending::Damaged { offset: file.len(), what: "the file was cut: it ends here".to_owned() };
        }
        let bytes = last_mended.as_deref().or_else(|| file.get(last.start..last.end.min(file.len())));
        let last = (last.start, AlignedBuffer::of(bytes.unwrap_or_default()));
        self.segments.push(SegmentEnd { number, groups, at, last, ending, is_claimed: false });
        Ok(())
    }

    /// Looks at the header; says whether the file was cut.
    fn header(&mut self, number: u64, file: &[u8], owner: u128) -> Result<bool, OpenError> {
        /// Where the number of the form stands: [`FileHeader::decode`] names it if the header is whole.
        const FORMAT_OFFSET: u64 = 8;
        let name = segment::name(number);
        let header = match FileHeader::decode(file) {
            Ok(header) => header,
            Err(damage) if damage.offset == FORMAT_OFFSET => {
                return Err(OpenError::Format { file: name, what: damage.what });
            }
            Err(damage) => {
                self.place(number, damage.offset, damage.what);
                return Ok(file.len() < BLOCK || !file.len().is_multiple_of(BLOCK));
            }
        };
        if !store::is_own(owner, header.owner) {
            return Err(OpenError::Owner { file: name, found: header.owner, owner });
        }
        if header.file_number != number {
            let what = format!("this is segment {}, under another name", header.file_number);
            self.place(number, 0, what);
        }
        Ok(file.len() != header.step as usize)
    }

    /// Notices that segments before this one are missing.
    fn notice_gap(&mut self, number: u64) {
        let Some(before) = self.segments.last().map(|before| before.number) else { return };
        if before + 1 < number {
            let lost = GroupId { segment: number - 1, group: u64::MAX };
            self.lose(all_of(lost), 0, "the file is missing".to_owned(), None);
        }
    }

    /// A group of that segment says that the segment before has so many groups.
    fn claim(&mut self, number: u64, groups: u64) {
        let is_open = |before: &&mut SegmentEnd| before.number + 1 == number && !before.is_claimed;
        let Some(before) = self.segments.last_mut().filter(is_open) else { return };
        let found = std::mem::replace(&mut before.groups, groups);
        before.is_claimed = true;
        let (number, at, ending) = (before.number, before.at, before.ending.clone());
        let (offset, what) = match ending {
            Ending::Damaged { offset, what } => (offset, what),
            _ => (at, format!("groups {} to {groups} are missing", found + 1)),
        };
        if groups > found {
            self.lose(all_of(GroupId { segment: number, group: groups }), offset, what, None);
        } else if offset != at {
            self.place(number, offset as u64, what);
        }
    }

    /// Of the segments of which no later one says how many groups they have, each may have had one more, if its end is damaged.
    fn lose_ends(&mut self) {
        let unclaimed = self.segments.iter_mut().filter(|end| !end.is_claimed);
        let mut lost = Vec::new();
        for end in unclaimed {
            if let Ending::Damaged { offset, what } = &end.ending {
                end.groups += 1;
                lost.push((GroupId { segment: end.number, group: end.groups }, *offset, what.clone()));
            }
        }
        for (group, offset, what) in lost {
            self.lose(all_of(group), offset, what, None);
        }
    }

    fn place(&mut self, number: u64, offset: u64, what: String) -> usize {
        let damage = Damage { file: segment::name(number), offset, what };
        self.places.push(DamagedPlace { damage, may_hide_a_replica: false });
        self.places.len() - 1
    }

    fn lose(&mut self, last: RecordId, offset: usize, what: String, key_crc: Option<u32>) {
        let place = self.place(last.group.segment, offset as u64, what);
        let at = self.losses.partition_point(|loss| loss.last <= last);
        self.losses.insert(at, Loss { last, key_crc, place });
    }

    /// Takes up what can be read of a group.
    fn group(&mut self, prelude: &Prelude, payload: &[u8], at: usize, note: Option<(u64, String)>) {
        let places = self.places.len();
        let segment = prelude.id.segment;
        for (section, offset, part) in group::parts(prelude, payload, &mut self.names) {
            let id = RecordId { group: prelude.id, section };
            let offset = at + frame::RECORD_HEADER + offset;
            match part {
                Part::Whole { key, previous, body } => self.record(key, previous, body, id, offset),
                Part::BodyDamaged { key } => {
                    let place = self.place(segment, offset as u64, "a record is damaged".to_owned());
                    let damage = self.places[place].damage.clone();
                    let replica = self.replicas.entry(key).or_insert_with(|| Rebuilt::new(segment, true));
                    (replica.damage, replica.last) = (Some(damage), id);
                    replica.clear(&mut self.needs);
                }
                Part::Unknown { key_crc } => {
                    self.lose(id, offset, "the head of a record is damaged".to_owned(), key_crc);
                }
                Part::Harmless => {
                    self.place(segment, offset as u64, "the directory of a group is damaged".to_owned());
                }
            }
        }
        if let Some((offset, what)) = note.filter(|_| self.places.len() == places) {
            self.place(segment, offset, what);
        }
    }

    /// Takes up a record.
    fn record(
        &mut self,
        key: ReplicaKey,
        previous: Option<RecordId>,
        body: Body,
        id: RecordId,
        offset: usize,
    ) {
        if matches!(body, Body::Record(Record::Forget)) {
            if let Some(mut replica) = self.replicas.remove(&key) {
                replica.clear(&mut self.needs);
            }
            return;
        }
        let segment = id.group.segment;
        let oldest = self.segments.first().map_or(segment, |oldest| oldest.number);
        let is_deleted = previous.is_some_and(|previous| previous.group.segment < oldest);
        let replica = self.replicas.entry(key).or_insert_with(|| {
            let mut replica = Rebuilt::new(segment, !is_deleted);
            replica.last = previous.filter(|_| is_deleted).unwrap_or_default();
            replica
        });
        let place = |what: &str| Damage {
            file: segment::name(segment),
            offset: offset as u64,
            what: what.to_owned(),
        };
        if previous.is_none() && replica.last != RecordId::default() {
            replica.clear(&mut self.needs);
            *replica = Rebuilt::new(segment, true);
        } else if let Some(previous) = previous.filter(|previous| *previous != replica.last) {
            // The record before was not read.
            let at = self.losses.partition_point(|loss| loss.last < previous);
            let lost = self.losses.get(at).map(|loss| self.places[loss.place].damage.clone());
            replica
                .damage
                .get_or_insert(lost.unwrap_or_else(|| place("the record before this one is missing")));
            replica.clear(&mut self.needs);
        }
        replica.last = id;
        let taken = match body {
            Body::Damaged(damage) => {
                replica.damaged(damage, segment, &mut self.needs);
                Ok(())
            }
            Body::Checkpoint(checkpoint)
                if replica.damage.is_none() || checkpoint.base.index == checkpoint.end =>
            {
                replica.checkpoint(checkpoint, segment, &mut self.needs)
            }
            Body::Record(record) if replica.damage.is_none() => {
                replica.apply(record, segment, &mut self.needs)
            }
            Body::Checkpoint(_) | Body::Record(_) => Ok(()),
        };
        if let Err(what) = taken {
            replica.damage = Some(place(what));
            replica.clear(&mut self.needs);
        }
    }

    /// Ends the reading, and says what the log goes on with.
    pub(crate) fn finish(mut self) -> Replayed {
        self.lose_ends();
        let mut recovered = Recovered {
            replicas: BTreeMap::new(),
            damaged: BTreeMap::new(),
            places: Vec::new(),
            is_unfinished: self
                .segments
                .iter()
                .any(|end| !end.is_claimed && end.ending == Ending::Unfinished),
            mode: None,
        };
        // The last loss of each kind: what is cleared of it is cleared of those before.
        let any = self.losses.iter().rfind(|loss| loss.key_crc.is_none());
        let of_key: BTreeMap<u32, &Loss> =
            self.losses.iter().filter_map(|loss| Some((loss.key_crc?, loss))).collect();
        let mut replicas = BTreeMap::new();
        let mut damaged_crcs = BTreeSet::new();
        for (key, mut replica) in std::mem::take(&mut self.replicas) {
            let crc = group::key_crc(&key);
            let losses = [of_key.get(&crc).copied(), any];
            if let Some(loss) = losses.into_iter().flatten().find(|loss| replica.last < loss.last) {
                replica.damage.get_or_insert_with(|| self.places[loss.place].damage.clone());
            }
            if replica.damage.is_none()
                && let Err(what) = replica.check()
            {
                let RecordId { group: GroupId { segment, group }, .. } = replica.last;
                let what = format!("{what}: the last record is in group {group}");
                replica.damage = Some(Damage { file: segment::name(segment), offset: 0, what });
            }
            if let Some(damage) = &replica.damage {
                damaged_crcs.insert(crc);
                recovered.damaged.insert(key.clone(), damage.clone());
                replica.clear(&mut self.needs);
            }
            let (state, stored) = replica.finish();
            recovered.replicas.extend(stored.map(|stored| (key.clone(), stored)));
            replicas.insert(key, state);
        }
        for loss in &self.losses {
            let is_explained = loss.key_crc.is_some_and(|crc| damaged_crcs.contains(&crc));
            self.places[loss.place].may_hide_a_replica = !is_explained;
        }
        recovered.places = self.places;
        Replayed { replicas, needs: self.needs, segments: self.segments, recovered }
    }
}
