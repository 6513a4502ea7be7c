//! Where the groups of a segment are, as far as its bytes tell.

use crate::group::{self, GroupId, Names, PRELUDES, Part, Prelude};
use crate::segment::BLOCK;
use partage_journal::frame::{self, Found};

/// What is found where a group could begin.
#[derive(Debug)]
pub(super) enum Located {
    /// A group of which something can be read.
    Group {
        prelude: Prelude,
        payload: Vec<u8>,
        /// Where the next group could begin.
        next: usize,
        /// What is damaged although all of the group may be there, and at which offset.
        note: Option<(u64, String)>,
        /// The frame as it should be, if its last bytes did not arrive although all records are there.
        mended: Option<Vec<u8>>,
    },
    /// Groups up to that number were here, and cannot be read.
    Lost { last: u64, next: usize, what: String },
    /// A group was here that cannot be read, and none follows.
    LostEnd(String),
    /// A write that was not finished, and nothing follows.
    Unfinished,
    /// Nothing was written from here on.
    End,
    /// A later program wrote the group, in a form of that version.
    Unknown(u32),
}

/// Judges what lies at `at`, where the group `id` could be.
pub(super) fn locate(file: &[u8], at: usize, id: GroupId, names: &mut Names) -> Located {
    let rest = file.get(at..).unwrap_or_default();
    if rest.len() < frame::RECORD_HEADER {
        return Located::End;
    }
    if rest[..frame::RECORD_HEADER].iter().all(|byte| *byte == 0) {
        // A frame begins with bytes that are not all zero, so no frame was written here, or its first sector did not
        // arrive. In the second case it was the last one.
        return match following(file, at, id) {
            Some((next, number)) => {
                let what = "the first bytes of a group went back to zeros".to_owned();
                Located::Lost { last: number - 1, next, what }
            }
            None if matches!(frame::find(file, id.segment, at, id.group), Ok(Found::End)) => Located::End,
            None => Located::Unfinished,
        };
    }
    match frame::find(file, id.segment, at, id.group) {
        Ok(Found::Record { payload, next, .. }) => whole(file, id, payload, next),
        Ok(Found::Torn | Found::End) => salvage(file, at, id, names, None),
        Err(damage) => salvage(file, at, id, names, Some((damage.offset, damage.what))),
    }
}

/// A group whose frame is as it was written.
fn whole(file: &[u8], id: GroupId, payload: Vec<u8>, end: usize) -> Located {
    let next = end.next_multiple_of(BLOCK);
    match Prelude::decode(&payload) {
        Some(prelude) if prelude.id == id && prelude.bytes == payload.len() => {
            let padding = file.get(end..next).unwrap_or_default();
            let wrong = padding.iter().position(|byte| *byte != 0);
            let note = wrong.map(|at| ((end + at) as u64, "the zeros behind a group are damaged".to_owned()));
            Located::Group { prelude, payload, next, note, mended: None }
        }
        _ => match group::unknown_version(&payload) {
            Some(version) => Located::Unknown(version),
            None => Located::Lost { last: id.group, next, what: "the group makes no sense".to_owned() },
        },
    }
}

/// A group whose frame is damaged (`damage` says where), or whose write was not finished (none).
fn salvage(file: &[u8], at: usize, id: GroupId, names: &mut Names, damage: Option<(u64, String)>) -> Located {
    let rest = &file[at..];
    let preludes = frame::unchecked_payload(rest, id.group, PRELUDES);
    if let Some(prelude) = Prelude::decode(&preludes).filter(|prelude| prelude.id == id) {
        let payload = frame::unchecked_payload(rest, id.group, prelude.bytes);
        let next = at + frame::extent(prelude.bytes).next_multiple_of(BLOCK);
        if damage.is_some() {
            return Located::Group { prelude, payload, next, note: damage, mended: None };
        }
        // If all records of the last write are there, they count.
        let is_whole = |(_, _, part): &(u32, usize, Part)| matches!(part, Part::Whole { .. });
        if group::parts(&prelude, &payload, names).iter().all(is_whole) {
            let mended = Some(frame::encode(id.segment, id.group, payload.clone()));
            return Located::Group { prelude, payload, next, note: None, mended };
        }
    }
    let Some((_, what)) = damage else { return Located::Unfinished };
    let head = frame::head(rest).filter(|head| head.file_number == id.segment && head.number == id.group);
    if let Some(head) = head {
        let next = at + frame::extent(head.payload_bytes).next_multiple_of(BLOCK);
        return Located::Lost { last: id.group, next, what };
    }
    match following(file, at, id) {
        Some((next, number)) => Located::Lost { last: number - 1, next, what },
        None => Located::LostEnd(what),
    }
}

/// The next place behind `at` that has the header of a later group than `id` in it, and the group's number.
fn following(file: &[u8], at: usize, id: GroupId) -> Option<(usize, u64)> {
    (at + BLOCK..file.len()).step_by(BLOCK).find_map(|next| {
        let head = frame::head(&file[next..])?;
        (head.file_number == id.segment && head.number > id.group).then_some((next, head.number))
    })
}
