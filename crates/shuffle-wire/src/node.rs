//! What nodes say to each other: core's messages to and from frames, and how a connection begins and ends.
//!
//! A shuffle that a message is about stands in the header of its frame, and in the body only where a key has it; both must be the
//! same.

use crate::client::Refusal;
use crate::form::{Cursor, Form, choices, fields};
use crate::frame::{Frame, Kind};
use crate::malformed::{FrameError, Malformed};
use bytes::Bytes;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::message::{AskOrder, Message};
use partage_service::shuffle::record::{Batch, BatchKey, Body};
use partage_service::shuffle::{PoolSlot, ShuffleId};
use std::sync::Arc;

/// A node of a pool, and which process of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The name of the node, the same at each of its starts.
    pub node: NodeId,
    /// Counts the starts of the node; a later process has a higher one.
    pub incarnation: Incarnation,
}

/// What the end that connects is: the first frame of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// A node, that sends to another one, by its name: a node that took over an address refuses it.
    Node(Peer, NodeId),
    /// A client: it takes any node.
    Client,
}

/// What is said about a connection itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// What the end that connects sends first.
    Hello(Hello),
    /// The node that was reached, and which start of it: the answer to a hello.
    Welcome(Peer),
    /// Why the connection ends.
    Goodbye(Refusal),
    /// Asks the other end for a pong, so that silence shows that it is gone.
    Ping,
    /// The answer to a ping, at once.
    Pong,
}

fields! {
    Peer, "a node", { node: NodeId, incarnation: Incarnation };
}
choices! {
    Hello, "kind of connection", { 1 => Node(from, to), 2 => Client };
}

impl Control {
    /// As a frame.
    ///
    /// # Errors
    /// A sentence is too long for one.
    pub fn frame(&self) -> Result<Frame, FrameError> {
        let mut body = Vec::new();
        let kind = match self {
            Control::Hello(hello) => put(Kind::Hello, hello, &mut body),
            Control::Welcome(peer) => put(Kind::Welcome, peer, &mut body),
            Control::Goodbye(why) => put(Kind::Goodbye, why, &mut body),
            Control::Ping => Kind::Ping,
            Control::Pong => Kind::Pong,
        };
        Frame::new(kind, None, body)
    }

    /// Reads what a frame says about its connection.
    ///
    /// # Errors
    /// It is of another kind, or malformed.
    pub fn of(frame: &Frame) -> Result<Control, FrameError> {
        read(frame, |kind, from| {
            let control = match kind {
                Kind::Hello => Control::Hello(Form::take(from)?),
                Kind::Welcome => Control::Welcome(Form::take(from)?),
                Kind::Goodbye => Control::Goodbye(Form::take(from)?),
                Kind::Ping => Control::Ping,
                Kind::Pong => Control::Pong,
                other => return Err(Malformed::Unexpected(other)),
            };
            is_of(frame, None)?;
            Ok(control)
        })
    }
}

fn put(kind: Kind, value: &impl Form, body: &mut Vec<u8>) -> Kind {
    value.put(body);
    kind
}

/// Reads all of a body.
pub(crate) fn read<T>(
    frame: &Frame,
    take: impl FnOnce(Kind, &mut Cursor<'_>) -> Result<T, Malformed>,
) -> Result<T, FrameError> {
    let mut from = Cursor::new(frame.body());
    let read = take(frame.kind(), &mut from).and_then(|value| from.end().map(|()| value));
    read.map_err(|why| FrameError::Body(frame.kind(), why))
}

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A batch, whose records lie in the frame that is here too: it can be stored, or passed on, as it is.
    Batch(Batch, Frame),
    /// A message that carries no records.
    Message(Message),
}

impl Received {
    /// Reads a frame from a node. The records of a batch are not copied.
    ///
    /// # Errors
    /// It is of another kind, or malformed.
    pub fn of(frame: &Frame) -> Result<Received, FrameError> {
        if frame.kind() != Kind::Batch {
            return message(frame).map(Received::Message);
        }
        let batch = read(frame, |_, from| {
            let batch = Batch::take(from)?;
            is_of(frame, Some(batch.key.stream.shuffle))?;
            Ok(batch)
        });
        Ok(Received::Batch(batch?, frame.clone()))
    }

    /// Core's form.
    pub fn message(self) -> Message {
        match self {
            Received::Batch(batch, _) => Message::Batch(Arc::new(batch)),
            Received::Message(message) => message,
        }
    }
}

/// A frame of a batch whose bytes are as [`frame`] writes them: nothing is copied. Its checksum is computed here; for
/// one that lay on a disk there is [`stored_batch_frame`].
///
/// # Errors
/// It is too long for a frame.
pub fn batch_frame(shuffle: ShuffleId, batch: Bytes) -> Result<Frame, FrameError> {
    Frame::new(Kind::Batch, Some(shuffle), batch)
}

/// The same for a batch as it lies on a disk, with the checksum with which it came there: that of its frame ([`Frame::sum`]).
///
/// # Errors
/// It is too long for a frame.
pub fn stored_batch_frame(shuffle: ShuffleId, batch: Bytes, sum: u32) -> Result<Frame, FrameError> {
    Frame::stored(Kind::Batch, Some(shuffle), batch, sum)
}

/// A message as a frame: once, for all nodes that it goes to.
///
/// # Errors
/// It is too long for a frame.
pub fn frame(message: &Message) -> Result<Frame, FrameError> {
    let mut body = match message {
        // What stands around records is little; a vector that has to grow copies them again.
        Message::Batch(batch) => Vec::with_capacity(batch_room(batch)),
        _ => Vec::new(),
    };
    let out = &mut body;
    let kind = match message {
        Message::Batch(batch) => put(Kind::Batch, batch, out),
        Message::Stored(key) => put(Kind::Stored, key, out),
        Message::Refused(key, how) => put(Kind::BatchRefused, &(key.clone(), *how), out),
        Message::AskStored(key, order) => {
            put(Kind::AskStored, &(key.clone(), *order == AskOrder::Ahead), out)
        }
        Message::NotStored(key, why) => put(Kind::NotStored, &(key.clone(), *why), out),
        Message::Inventory { slot, round, asks, has } => {
            (*slot, *round, *asks).put(out);
            put(Kind::Inventory, has, out)
        }
        Message::Fetch(keys) => put(Kind::Fetch, keys, out),
        Message::Append(append) => put(Kind::Append, append, out),
        Message::Appended(slot, epoch, upto) => put(Kind::Appended, &(*slot, *epoch, *upto), out),
        Message::NotAppended(slot, epoch, why) => put(Kind::NotAppended, &(*slot, *epoch, *why), out),
        Message::Ask(_) => Kind::Ask,
        Message::Word(_, word) => put(Kind::Word, word, out),
        Message::Dropped(_) => Kind::Dropped,
        Message::MakeRoom(_, slot) => put(Kind::MakeRoom, slot, out),
        Message::AskMarks(_, after) => put(Kind::AskMarks, after, out),
        Message::Marks { after, marks, has_more, .. } => {
            (after.clone(), *has_more).put(out);
            put(Kind::Marks, marks, out)
        }
        Message::Sample(_, node, incarnation, sketch) => {
            (node.clone(), *incarnation).put(out);
            put(Kind::Sample, sketch, out)
        }
        Message::Divide(division) => put(Kind::Divide, division, out),
        Message::Divided(_, task, by, last) => {
            (*task, by.clone()).put(out);
            put(Kind::Divided, last, out)
        }
        Message::Count(epoch, plan, slot) => {
            (*epoch, *slot).put(out);
            put(Kind::Count, plan, out)
        }
        Message::Counted(_, epoch, slot, counts) => {
            (*epoch, *slot).put(out);
            put(Kind::Counted, counts, out)
        }
        Message::Lacks(_, slot) => put(Kind::ReplicaLacks, slot, out),
    };
    Frame::new(kind, shuffle_of(message), body)
}

/// About the bytes of a batch: short lengths of each record, and some for each segment.
fn batch_room(batch: &Batch) -> usize {
    let Body::Records(tagged) = &batch.body else { return 0 };
    let segments = tagged.values().flatten();
    let around: usize = segments.map(|segment| 64 + segment.records.bytes().len()).sum();
    256 + around
}

/// The shuffle that a message is about; none: it is about a slot.
pub fn shuffle_of(message: &Message) -> Option<ShuffleId> {
    match message {
        Message::Batch(batch) => Some(batch.key.stream.shuffle),
        Message::Stored(key)
        | Message::Refused(key, _)
        | Message::AskStored(key, _)
        | Message::NotStored(key, _) => Some(key.stream.shuffle),
        Message::Ask(shuffle)
        | Message::Word(shuffle, _)
        | Message::Dropped(shuffle)
        | Message::MakeRoom(shuffle, _)
        | Message::Lacks(shuffle, _)
        | Message::AskMarks(shuffle, _)
        | Message::Marks { shuffle, .. }
        | Message::Sample(shuffle, ..)
        | Message::Divided(shuffle, ..)
        | Message::Counted(shuffle, ..) => Some(*shuffle),
        Message::Divide(division) => Some(division.shuffle),
        Message::Count(_, plan, _) => Some(plan.shuffle),
        Message::Inventory { .. }
        | Message::Fetch(_)
        | Message::Append(_)
        | Message::Appended(..)
        | Message::NotAppended(..) => None,
    }
}

fn is_of(frame: &Frame, shuffle: Option<ShuffleId>) -> Result<(), Malformed> {
    if frame.shuffle() == shuffle { Ok(()) } else { Err(Malformed::OtherShuffle) }
}

/// The message of a frame.
fn message(frame: &Frame) -> Result<Message, FrameError> {
    read(frame, |kind, from| {
        let message = take(kind, frame.shuffle(), from)?;
        is_of(frame, shuffle_of(&message))?;
        Ok(message)
    })
}

fn take(kind: Kind, shuffle: Option<ShuffleId>, from: &mut Cursor<'_>) -> Result<Message, Malformed> {
    let shuffle = shuffle.ok_or(Malformed::NoShuffle);
    Ok(match kind {
        Kind::Stored => Message::Stored(Form::take(from)?),
        Kind::BatchRefused => Message::Refused(Form::take(from)?, Form::take(from)?),
        Kind::AskStored => {
            let (key, is_ahead): (BatchKey, bool) = Form::take(from)?;
            Message::AskStored(key, if is_ahead { AskOrder::Ahead } else { AskOrder::Behind })
        }
        Kind::NotStored => Message::NotStored(Form::take(from)?, Form::take(from)?),
        Kind::Inventory => {
            let (slot, round, asks) = Form::take(from)?;
            Message::Inventory { slot, round, asks, has: Form::take(from)? }
        }
        Kind::Fetch => Message::Fetch(Form::take(from)?),
        Kind::Append => Message::Append(Form::take(from)?),
        Kind::Appended => Message::Appended(Form::take(from)?, Form::take(from)?, Form::take(from)?),
        Kind::NotAppended => Message::NotAppended(Form::take(from)?, Form::take(from)?, Form::take(from)?),
        Kind::Ask => Message::Ask(shuffle?),
        Kind::Word => Message::Word(shuffle?, Form::take(from)?),
        Kind::Dropped => Message::Dropped(shuffle?),
        Kind::MakeRoom => Message::MakeRoom(shuffle?, Form::take(from)?),
        Kind::ReplicaLacks => Message::Lacks(shuffle?, Form::take(from)?),
        Kind::AskMarks => Message::AskMarks(shuffle?, Form::take(from)?),
        Kind::Marks => {
            let (after, has_more) = Form::take(from)?;
            Message::Marks { shuffle: shuffle?, after, marks: Form::take(from)?, has_more }
        }
        Kind::Sample => Message::Sample(shuffle?, Form::take(from)?, Form::take(from)?, Form::take(from)?),
        Kind::Divide => Message::Divide(Form::take(from)?),
        Kind::Divided => Message::Divided(shuffle?, Form::take(from)?, Form::take(from)?, Form::take(from)?),
        Kind::Count => {
            let (epoch, slot): (Epoch, PoolSlot) = Form::take(from)?;
            Message::Count(epoch, Form::take(from)?, slot)
        }
        Kind::Counted => Message::Counted(shuffle?, Form::take(from)?, Form::take(from)?, Form::take(from)?),
        other => return Err(Malformed::Unexpected(other)),
    })
}
