//! One attempt of an input partition, over a connection that it has alone until its end.
//!
//! ```text
//!  write, write, … ─► a frame is full ─► sent: waits while the node reads nothing     ┐ one task
//!  Opened, Taken, Whole, Refused ◄──────────────────────────────────────────────────── ┘ another one
//! ```
//!
//! A frame that was sent is forgotten: when its attempt fails, the attempt is run again from its beginning.

use crate::error::Error;
use crate::nodes::{Connection, LAST_WORDS, Nodes};
use crate::settings::Settings;
use crate::shuffle::Shuffle;
use crate::{AttemptId, ShuffleId, Terms};
use partage_core::limits::{SHUFFLE_KEY_BYTES, SHUFFLE_RECORD_BYTES};
use partage_shuffle_wire::client::{Answer, Call, Refusal, RefusalWord, Request};
use partage_shuffle_wire::records::{PackedRecords, put_record};
use partage_shuffle_wire::transport::{Address, ClientAnswers, ClientCalls, Closed};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Bytes of the first frames of an attempt.
const FIRST_FRAME_BYTES: usize = 256 << 10;

/// What an attempt has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The id under which it was written: one of the winners, or of the losers, of its partition.
    pub attempt: AttemptId,
    /// How many records it has, those of [`Attempt::put`] among them.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
}

/// How an attempt has ended, as its node says.
#[derive(Debug, Clone)]
enum Over {
    Whole,
    Refused(Refusal),
    Closed(Closed),
    Unexpected,
}

/// Ends the task that listens with the attempt, and with it the connection.
#[derive(Debug)]
struct Listening(JoinHandle<Option<ClientAnswers>>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The connection of an attempt, and what its node has said on it.
#[derive(Debug)]
struct Link {
    at: usize,
    /// The number of the call of the attempt.
    call: u64,
    calls: ClientCalls,
    over: watch::Receiver<Option<Over>>,
    /// The last frame that the node says it has taken, 0 before the first one. None: it has said nothing.
    taken: watch::Receiver<Option<u64>>,
    listening: Listening,
    /// The connection was kept from an earlier call, and is not known to be there still.
    is_kept: bool,
}

impl Link {
    fn new(Connection { at, calls, answers, last_call, is_kept }: Connection) -> Link {
        let call = last_call + 1;
        let (sender, over) = watch::channel(None);
        let (told, taken) = watch::channel(None);
        let listening = Listening(tokio::spawn(listen(call, answers, told, sender)));
        Link { at, call, calls, over, taken, listening, is_kept }
    }
}

/// An attempt that is written. One that is dropped before its end is never read.
#[derive(Debug)]
pub struct Attempt {
    nodes: Arc<Nodes>,
    link: Link,
    shuffle: ShuffleId,
    terms: Terms,
    partition: u32,
    id: AttemptId,
    frame_bytes: usize,
    /// Records that are not sent yet, and how many.
    filled: Vec<u8>,
    filled_records: u64,
    frames: u64,
    records: u64,
    bytes: u64,
}

/// Bytes of the next frame of an attempt that has sent so many: an eighth of that, so a short attempt takes little memory, and a
/// long one has long frames nearly from its begin.
fn frame_bytes(most: usize, sent: u64) -> usize {
    let grown = usize::try_from(sent / 8).unwrap_or(usize::MAX);
    grown.max(FIRST_FRAME_BYTES).min(most)
}

impl Attempt {
    pub(crate) async fn open(
        nodes: &Arc<Nodes>,
        settings: &Settings,
        shuffle: &Shuffle,
        partition: u32,
    ) -> Result<Attempt, Error> {
        let link = Link::new(nodes.connect_to_write().await?);
        let mut attempt = Attempt {
            nodes: Arc::clone(nodes),
            link,
            shuffle: shuffle.id,
            terms: shuffle.terms,
            partition,
            id: draw_id(),
            frame_bytes: settings.frame_bytes.max(1),
            filled: Vec::new(),
            filled_records: 0,
            frames: 0,
            records: 0,
            bytes: 0,
        };
        if let Err(over) = attempt.tell(Request::Open(partition, attempt.id, shuffle.terms)).await {
            attempt.open_again(over).await?;
        }
        Ok(attempt)
    }

    /// Opens the attempt on another connection, if the first one was kept and has ended before its node said anything. The node
    /// may have heard of the attempt, so it gets another id.
    async fn open_again(&mut self, over: Over) -> Result<(), Error> {
        let why = match over {
            Over::Closed(why) => why,
            other => return Err(self.failed(other)),
        };
        let connection = self.nodes.in_place_of(self.link.at, self.link.is_kept, why).await?;
        (self.link, self.id) = (Link::new(connection), draw_id());
        let open = Request::Open(self.partition, self.id, self.terms);
        self.tell(open).await.map_err(|over| self.failed(over))
    }

    /// Waits for the first word of the node, if the connection was kept. Nothing but the opening was sent before, which is all
    /// that is lost when that connection has ended.
    async fn settle(&mut self) -> Result<(), Error> {
        if !self.link.is_kept {
            return Ok(());
        }
        let Link { taken, over: outcome, .. } = &mut self.link;
        let said = async { taken.wait_for(Option::is_some).await.is_ok() };
        let ended = tokio::select! {
            biased;
            is_open = said => if is_open { None } else { Some(over(outcome).await) },
            ended = over(outcome) => Some(ended),
        };
        if let Some(closed @ Over::Closed(_)) = ended {
            self.open_again(closed).await?;
        }
        // What else the node has said, the call finds.
        self.link.is_kept = false;
        Ok(())
    }

    /// Its id: no other attempt has it. It stays the same from the first frame on, or from the end of an attempt without any.
    pub fn id(&self) -> AttemptId {
        self.id
    }

    /// The number of the input partition that it writes.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The node to which it is written.
    pub fn node(&self) -> Address {
        self.nodes.address(self.link.at)
    }

    /// Records that were written so far.
    pub fn records(&self) -> u64 {
        self.records + self.filled_records
    }

    /// Writes a record behind those before. It waits while the node has no room.
    ///
    /// # Errors
    /// The record is too large, or the attempt has failed; [`Error::again`] says whether to run it again.
    pub async fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let bytes = key.len().saturating_add(value.len());
        if key.len() > SHUFFLE_KEY_BYTES || bytes > SHUFFLE_RECORD_BYTES {
            return Err(Error::TooLarge { key: key.len(), value: value.len() });
        }
        let frame_bytes = frame_bytes(self.frame_bytes, self.bytes);
        if !self.filled.is_empty() && self.filled.len() + bytes > frame_bytes {
            self.flush().await?;
        }
        put_record(key, value, &mut self.filled);
        self.filled_records += 1;
        if self.filled.len() >= frame_bytes { self.flush().await } else { Ok(()) }
    }

    /// Writes records that are packed already, as a frame of their own, behind those before. Some 256 KiB are a good size, and
    /// 1 MiB for an attempt of many MiB.
    ///
    /// # Errors
    /// The attempt has failed; [`Error::again`] says whether to run it again.
    pub async fn put(&mut self, records: PackedRecords) -> Result<(), Error> {
        self.flush().await?;
        self.send(records).await
    }

    /// Sends what is written and waits for more to fill a frame.
    ///
    /// # Errors
    /// The attempt has failed; [`Error::again`] says whether to run it again.
    pub async fn flush(&mut self) -> Result<(), Error> {
        if self.filled_records == 0 {
            return Ok(());
        }
        // The next frame will be about as long.
        let next = Vec::with_capacity(frame_bytes(self.frame_bytes, self.bytes + self.filled.len() as u64));
        let filled = std::mem::replace(&mut self.filled, next);
        let count = std::mem::take(&mut self.filled_records);
        let records = PackedRecords::new(count, filled.into()).map_err(|why| Error::NoRecords(why.into()))?;
        self.send(records).await
    }

    /// Sends what is written, and returns when the node has taken all of it into its memory. Nothing of it need be stored then:
    /// only [`Attempt::end`] says that.
    ///
    /// # Errors
    /// The attempt has failed; [`Error::again`] says whether to run it again.
    pub async fn taken(&mut self) -> Result<(), Error> {
        self.flush().await?;
        let frames = self.frames;
        let Link { taken, over: outcome, .. } = &mut self.link;
        let all = async { frames == 0 || taken.wait_for(|number| *number >= Some(frames)).await.is_ok() };
        let ended = tokio::select! {
            biased;
            is_taken = all => if is_taken { return Ok(()) } else { over(outcome).await },
            ended = over(outcome) => ended,
        };
        Err(self.failed(ended))
    }

    /// Ends the attempt, and returns when it is stored on as many nodes as the pool says.
    ///
    /// # Errors
    /// The attempt has failed; [`Error::again`] says whether to run it again.
    pub async fn end(mut self) -> Result<Written, Error> {
        self.flush().await?;
        self.call(Request::End(self.records, self.bytes)).await?;
        match over(&mut self.link.over).await {
            Over::Whole => {
                self.give_back().await;
                Ok(Written { attempt: self.id, records: self.records, bytes: self.bytes })
            }
            other => Err(self.failed(other)),
        }
    }

    /// Nothing more comes on the connection for this attempt: it is kept for other calls.
    async fn give_back(&mut self) {
        let Link { at, call: last_call, calls, listening, .. } = &mut self.link;
        if let Ok(Some(answers)) = (&mut listening.0).await {
            let (at, calls, last_call) = (*at, calls.clone(), *last_call);
            self.nodes.give_back(Connection { at, calls, answers, last_call, is_kept: false });
        }
    }

    /// Gives the attempt up: it never was. To drop it does the same, a little later.
    pub async fn abort(mut self) {
        // A node that is gone has given it up.
        let _ = self.tell(Request::Abort).await;
    }

    async fn send(&mut self, records: PackedRecords) -> Result<(), Error> {
        let (count, bytes) = (records.count(), records.content_bytes());
        if count == 0 {
            return Ok(());
        }
        self.frames += 1;
        self.call(Request::Records(self.frames, records)).await?;
        self.records += count;
        self.bytes += bytes;
        Ok(())
    }

    /// Sends a call of an attempt that is open.
    async fn call(&mut self, what: Request) -> Result<(), Error> {
        self.settle().await?;
        let is_end = matches!(what, Request::End(..));
        match self.tell(what).await {
            Err(Over::Whole) if is_end => Ok(()),
            told => told.map_err(|over| self.failed(over)),
        }
    }

    /// Sends a call, and waits until the node takes it, or the attempt is over. What was sent of it is then of no use any more.
    async fn tell(&mut self, what: Request) -> Result<(), Over> {
        let Link { call: number, calls, over: outcome, .. } = &mut self.link;
        let call = Call { number: *number, shuffle: self.shuffle, what };
        tokio::select! {
            biased;
            ended = over(outcome) => Err(ended),
            sent = calls.send(&call) => match sent {
                Ok(()) => Ok(()),
                // The node may have said why: the task that listens hears it.
                Err(why) => Err(timeout(LAST_WORDS, over(outcome)).await.unwrap_or(Over::Closed(why))),
            },
        }
    }

    fn failed(&self, over: Over) -> Error {
        let node = self.node();
        match over {
            Over::Refused(refusal) => {
                if refusal.word == RefusalWord::StoresOnly {
                    self.nodes.stores_only(self.link.at);
                }
                Error::Refused { node, refusal }
            }
            Over::Closed(why) => self.nodes.lost(self.link.at, why),
            Over::Whole | Over::Unexpected => Error::Unexpected { node, asked: "an attempt" },
        }
    }
}

fn draw_id() -> AttemptId {
    AttemptId(u128::from_be_bytes(partage_random::bytes()))
}

/// How the attempt ends.
async fn over(outcome: &mut watch::Receiver<Option<Over>>) -> Over {
    match outcome.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Over::Unexpected),
        // The task that listens has ended without a word: the runtime ends.
        Err(_) => Over::Closed(Closed::Broken),
    }
}

/// Listens to the answers to a call, so that the node never waits for the client to take them. If the attempt is whole, the
/// connection is of further use.
async fn listen(
    number: u64,
    mut answers: ClientAnswers,
    taken: watch::Sender<Option<u64>>,
    outcome: watch::Sender<Option<Over>>,
) -> Option<ClientAnswers> {
    let over = loop {
        match answers.next().await {
            Ok(call) if call.number != number => {}
            Ok(call) => match call.what {
                Answer::Opened => drop(taken.send_replace(Some(0))),
                Answer::Taken(frame) => drop(taken.send_replace(Some(frame))),
                Answer::Whole => break Over::Whole,
                Answer::Refused(refusal) => break Over::Refused(refusal),
                _ => break Over::Unexpected,
            },
            Err(why) => break Over::Closed(why),
        }
    };
    let is_whole = matches!(over, Over::Whole);
    // Nobody may wait for it any more.
    let _ = outcome.send(Some(over));
    is_whole.then_some(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_grow_with_what_was_sent_and_are_never_longer_than_the_settings_say() {
        let frames = |most: usize, sent: u64| {
            let (mut frames, mut left) = (Vec::new(), sent);
            while left > 0 {
                let next = frame_bytes(most, sent - left).min(usize::try_from(left).unwrap());
                frames.push(next);
                left -= next as u64;
            }
            frames
        };
        let most = Settings::default().frame_bytes;
        assert_eq!(frames(most, 1 << 20), [FIRST_FRAME_BYTES; 4]);
        let long = frames(most, 64 << 20);
        assert!(long.is_sorted() || long.split_last().is_some_and(|(_, rest)| rest.is_sorted()));
        assert_eq!((long[0], long[long.len() - 2]), (FIRST_FRAME_BYTES, most));
        // With one length for all it is 64 in the best case.
        assert!(long.len() < 85, "{}", long.len());
        assert!(frames(200, 10_000).iter().all(|frame| *frame <= 200));
        assert_eq!(frame_bytes(most, u64::MAX), most);
    }
}
