//! One read, of a partition or of an interval of keys: records as they come, from another node when one fails.
//!
//! The order of a sealed shuffle is the same at every node and on every read. So a read that is begun again at another node skips
//! as many records as it has given out, and goes on.
//!
//! The node that is asked first for a partition names the node that has most of it, if that is another one: there the records are
//! sent once, and not twice. The client goes there if it knows the node, and it has not failed a moment ago.

use crate::ShuffleId;
use crate::error::Error;
use crate::nodes::{Connection, Nodes, last_words};
use crate::retry::Retry;
use crate::settings::Settings;
use partage_core::base::name::NodeId;
use partage_shuffle_wire::client::{Answer, Call, Request};
use partage_shuffle_wire::records::PackedRecords;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A client that reads for long says so often that it is there: well below the time after which a node lets a silent one go, and
/// below the shortest time after which a shuffle expires, 10 s.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(3);

/// What one node sends.
#[derive(Debug)]
struct Stream {
    connection: Connection,
    /// The number of the call that reads.
    call: u64,
    /// Records that were given out before.
    skipped: u64,
    said: Instant,
}

/// The records of a read, in order, in pieces.
#[derive(Debug)]
pub struct Reading {
    nodes: Arc<Nodes>,
    shuffle: ShuffleId,
    request: Request,
    retry: Retry,
    stream: Option<Stream>,
    /// Records that were given out so far.
    records: u64,
    bytes: u64,
    is_over: bool,
}

impl Reading {
    pub(crate) fn new(
        nodes: &Arc<Nodes>,
        settings: &Settings,
        shuffle: ShuffleId,
        request: Request,
    ) -> Reading {
        Reading {
            nodes: Arc::clone(nodes),
            shuffle,
            request,
            retry: Retry::new(settings),
            stream: None,
            records: 0,
            bytes: 0,
            is_over: false,
        }
    }

    /// Records that were given out so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Their keys and values, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next records; none: all were given out, and they are as many as the node says. While it is not called, little is read
    /// ahead, and the node waits. If the call is dropped before it is done, the next one goes on behind what was given out.
    ///
    /// # Errors
    /// The read has failed, at as many nodes and as often as the settings allow.
    pub async fn next(&mut self) -> Result<Option<PackedRecords>, Error> {
        while !self.is_over {
            match self.piece().await {
                Ok(Some(records)) => {
                    self.retry.answered();
                    self.records += records.count();
                    self.bytes += records.content_bytes();
                    return Ok(Some(records));
                }
                Ok(None) => self.is_over = true,
                Err(error) => {
                    if let Err(error) = self.retry.rest(error).await {
                        self.is_over = true;
                        return Err(error);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Asks a node for all of it.
    async fn begin(&self, mut connection: Connection) -> Result<Stream, Error> {
        loop {
            let number = connection.next_call();
            let call = Call { number, shuffle: self.shuffle, what: self.request.clone() };
            let Err(why) = connection.calls.send(&call).await else {
                return Ok(Stream { connection, call: number, skipped: 0, said: Instant::now() });
            };
            let why = last_words(&mut connection.answers, why).await;
            connection = self.nodes.in_place_of(connection.at, connection.is_kept, why).await?;
        }
    }

    /// The next piece of a stream. A stream that fails, or is not waited for, is dropped.
    async fn piece(&mut self) -> Result<Option<PackedRecords>, Error> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.begin(self.nodes.connect().await?).await?,
        };
        loop {
            self.say_alive(&mut stream).await?;
            let at = stream.connection.at;
            let call = match stream.connection.answers.next().await {
                Ok(call) => call,
                Err(why) => {
                    let another = self.nodes.in_place_of(at, stream.connection.is_kept, why).await?;
                    stream = self.begin(another).await?;
                    continue;
                }
            };
            stream.connection.is_kept = false;
            if call.number != stream.call {
                continue;
            }
            match call.what {
                Answer::Read(records) => {
                    let left = self.records - stream.skipped;
                    if records.count() <= left {
                        stream.skipped += records.count();
                        continue;
                    }
                    stream.skipped = self.records;
                    let new = behind(records, left);
                    // These are given out now.
                    stream.skipped += new.count();
                    self.stream = Some(stream);
                    return Ok(Some(new));
                }
                Answer::ReadAt(node) if self.takes_choice() => stream = self.begin_at(stream, &node).await?,
                Answer::ReadEnd(records, bytes) => {
                    self.nodes.give_back(stream.connection);
                    return self.end(at, records, bytes).map(|()| None);
                }
                Answer::Refused(refusal) => {
                    self.nodes.give_back(stream.connection);
                    return Err(Error::Refused { node: self.nodes.address(at), refusal });
                }
                _ => return Err(Error::Unexpected { node: self.nodes.address(at), asked: "a read" }),
            }
        }
    }

    /// From now on the partition is read at the node that is asked. False: it was not asked for another one.
    fn takes_choice(&mut self) -> bool {
        let Request::ReadPartitionNear(i, n, by) = self.request else { return false };
        self.request = Request::ReadPartition(i, n, by);
        true
    }

    /// Reads at this node, or, if the client does not know where it is, at the one that has named it.
    async fn begin_at(&self, asked: Stream, node: &NodeId) -> Result<Stream, Error> {
        let connection = match self.nodes.place_of(node) {
            Some(at) => {
                self.nodes.give_back(asked.connection);
                self.nodes.connect_near(at).await?
            }
            None => asked.connection,
        };
        self.begin(connection).await
    }

    async fn say_alive(&self, stream: &mut Stream) -> Result<(), Error> {
        let now = Instant::now();
        if now.saturating_duration_since(stream.said) < KEEP_ALIVE_EVERY {
            return Ok(());
        }
        stream.said = now;
        let number = stream.connection.next_call();
        let call = Call { number, shuffle: self.shuffle, what: Request::KeepAlive };
        let at = stream.connection.at;
        stream.connection.calls.send(&call).await.map_err(|why| self.nodes.lost(at, why))
    }

    /// Whether what was given out is what the node says.
    fn end(&self, at: usize, records: u64, bytes: u64) -> Result<(), Error> {
        if (records, bytes) == (self.records, self.bytes) {
            return Ok(());
        }
        Err(Error::Differs {
            node: self.nodes.address(at),
            found: self.records,
            found_bytes: self.bytes,
            expected: records,
            expected_bytes: bytes,
        })
    }
}

/// The records behind the first ones, of which there are more.
fn behind(records: PackedRecords, first: u64) -> PackedRecords {
    match usize::try_from(first) {
        Ok(0) | Err(_) => records,
        Ok(first) => PackedRecords::pack(records.iter().skip(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_out_is_left_out() {
        let all = [(&b"a"[..], &b"1"[..]), (b"b", b"2"), (b"c", b"3")];
        let packed = PackedRecords::pack(all);
        assert_eq!(behind(packed.clone(), 0), packed);
        assert_eq!(behind(packed, 2), PackedRecords::pack(all[2..].iter().copied()));
    }
}
