//! Stored forms of what shuffles keep: one file for each form.
//!
//! | form | what it is |
//! |---|---|
//! | `batch` | a batch, as the store has it |
//! | `plan` | the plan of a sealed shuffle, and bounds |
//! | `decision` | decisions of a slot, as the log has them |
//! | `options` | what a shuffle was started with |
//!
//! Numbers are big-endian, counts and lengths have four bytes. What is decoded must be used up to its last byte. A form that
//! is not known decodes to nothing: the checksum of the frame around it has shown before that the bytes are as they were written.
//! Of batches parts are read without that; these have checksums of their own.
//!
//! Each form of a batch and of decisions begins with its version: [`batch::VERSION`] and [`VERSION`]. What another version of
//! this program has written ([`batch::other_version`], [`is_later`]) is no damage, and nothing of it may be removed.

pub(crate) mod batch;
pub(crate) mod decision;
mod options;
pub(crate) mod plan;

use bytes::{Buf, BufMut};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::{AttemptKey, BufferId, Bytes, PoolSlot, TaskId, Writer};

/// The version of the forms of decisions, and of the indexes of an object store.
pub(crate) const VERSION: u8 = 1;

/// Whether decisions are in the form of a later version.
pub(crate) fn is_later(form: &[u8]) -> bool {
    form.first().is_some_and(|version| *version > VERSION)
}

const BUFFER: u8 = 1;
const DIVISION: u8 = 2;
const OBJECTS: u8 = 3;

/// A count or a length. What is encoded lies in memory, and limits keep it far below 4 GiB.
pub(crate) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
}

pub(crate) fn count(from: &mut &[u8]) -> Option<usize> {
    from.try_get_u32().ok().map(|count| count as usize)
}

pub(crate) fn u8(from: &mut &[u8]) -> Option<u8> {
    from.try_get_u8().ok()
}

pub(crate) fn u16(from: &mut &[u8]) -> Option<u16> {
    from.try_get_u16().ok()
}

pub(crate) fn u32(from: &mut &[u8]) -> Option<u32> {
    from.try_get_u32().ok()
}

pub(crate) fn u64(from: &mut &[u8]) -> Option<u64> {
    from.try_get_u64().ok()
}

pub(crate) fn u128(from: &mut &[u8]) -> Option<u128> {
    from.try_get_u128().ok()
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.put_slice(bytes);
}

pub(crate) fn bytes(from: &mut &[u8]) -> Option<Bytes> {
    let length = count(from)?;
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken.into())
}

pub(crate) fn put_buffer(out: &mut Vec<u8>, buffer: &BufferId) {
    put_bytes(out, buffer.node.as_str().as_bytes());
    out.put_u64(buffer.incarnation.0);
}

pub(crate) fn buffer(from: &mut &[u8]) -> Option<BufferId> {
    let name = bytes(from)?;
    let node = NodeId::new(std::str::from_utf8(&name).ok()?).ok()?;
    Some(BufferId { node, incarnation: Incarnation(u64(from)?) })
}

pub(crate) fn put_writer(out: &mut Vec<u8>, writer: &Writer) {
    match writer {
        Writer::Buffer(buffer) => {
            out.put_u8(BUFFER);
            put_buffer(out, buffer);
        }
        Writer::Division(task, buffer) => {
            out.put_u8(DIVISION);
            out.put_u64(task.epoch.0);
            out.put_u64(task.number);
            put_buffer(out, buffer);
        }
        Writer::Objects(buffer) => {
            out.put_u8(OBJECTS);
            put_buffer(out, buffer);
        }
    }
}

pub(crate) fn writer(from: &mut &[u8]) -> Option<Writer> {
    match u8(from)? {
        BUFFER => Some(Writer::Buffer(buffer(from)?)),
        DIVISION => {
            let task = TaskId { epoch: Epoch(u64(from)?), number: u64(from)? };
            Some(Writer::Division(task, buffer(from)?))
        }
        OBJECTS => Some(Writer::Objects(buffer(from)?)),
        _ => None,
    }
}

pub(crate) fn put_attempt(out: &mut Vec<u8>, attempt: &AttemptKey) {
    put_buffer(out, &attempt.buffer);
    out.put_u64(attempt.number);
}

pub(crate) fn attempt(from: &mut &[u8]) -> Option<AttemptKey> {
    Some(AttemptKey { buffer: buffer(from)?, number: u64(from)? })
}

pub(crate) fn slot(from: &mut &[u8]) -> Option<PoolSlot> {
    u32(from).map(PoolSlot)
}

/// A map or a list: so many items, each by `item`.
pub(crate) fn items<T, C: Default + Extend<T>>(
    from: &mut &[u8],
    mut item: impl FnMut(&mut &[u8]) -> Option<T>,
) -> Option<C> {
    let mut all = C::default();
    for _ in 0..count(from)? {
        all.extend([item(from)?]);
    }
    Some(all)
}
