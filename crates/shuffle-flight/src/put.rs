//! An attempt of an input partition as a stream of batches.
//!
//! ```text
//!  descriptor, schema ─► accepted? ─► attempt is open ─► batches ─► some rows at a time ─► frames ─► buffer
//!  end of the stream ─► the attempt is whole ─► one PutResult, and the end of the call
//! ```
//!
//! All is done where the answer is polled: when a client goes away, the attempt is dropped, and one that is dropped before its
//! end is never read. The next message is read when the buffer has the records of the one before: so a full buffer holds the
//! client back.

use crate::combine::HeldRows;
use crate::descriptor::PutPath;
use crate::ipc::unpacked_bytes;
use crate::kind::Kind;
use crate::limits::{BATCH_ROWS, FIRST_ROWS, FRAME_BYTES, MOST_ROWS, UNPACKED_BYTES};
use crate::service::ShuffleFlights;
use crate::status;
use arrow_array::RecordBatch;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::{FlightData, PutResult};
use futures::stream::{self, Stream};
use futures::{StreamExt, TryStreamExt, future};
use partage_service::shuffle::record::Record;
use partage_shuffle::network::LocalAttempt;
use serde_json::json;
use std::sync::Arc;
use tonic::Status;

/// Writes the attempt that a stream is, to its end.
pub(crate) async fn put<S>(flights: ShuffleFlights, mut messages: S) -> Result<PutResult, Status>
where
    S: Stream<Item = Result<FlightData, Status>> + Send + Unpin + 'static,
{
    let Some(first) = messages.next().await else {
        return Err(status::malformed("the stream has no message: the first one has the descriptor"));
    };
    let first = first.map_err(|why| status::broken(&why))?;
    let path = PutPath::of(first.flight_descriptor.as_ref())?;
    let node = flights.node().await?;
    let kind = flights.kind(&node, path.shuffle.id).await?;
    let mut decoder = FlightDataDecoder::new(checked(stream::iter([Ok(first)]).chain(messages)));
    let mut open: Option<RowWriter> = None;
    while let Some(decoded) = decoder.next().await {
        match decoded.map_err(not_decoded)?.payload {
            DecodedPayload::None => {}
            DecodedPayload::Schema(_) if open.is_some() => {
                return Err(status::malformed("the stream has two schemas: write one attempt for each"));
            }
            DecodedPayload::Schema(schema) => {
                kind.accepts(&schema)?;
                let shuffle = (path.shuffle.id, path.shuffle.terms);
                let attempt = node.open(shuffle, path.partition, path.attempt).await;
                open = Some(RowWriter::of(attempt.map_err(status::refused)?, Arc::clone(&kind)));
            }
            DecodedPayload::RecordBatch(batch) => match &mut open {
                Some(rows) => rows.write(&batch).await?,
                None => return Err(status::malformed("rows come before their schema: send it first")),
            },
        }
    }
    let Some(rows) = open else { return Err(status::malformed("the stream has no schema")) };
    let (records, bytes) = rows.end().await?;
    let attempt = format!("{:032x}", path.attempt.0);
    let told = json!({ "records": records, "bytes": bytes, "attempt": attempt });
    Ok(PutResult { app_metadata: told.to_string().into() })
}

/// Messages that the decoder takes. What has no header has metadata of the client alone, which says nothing here.
fn checked<S>(messages: S) -> impl Stream<Item = Result<FlightData, FlightError>> + Send + 'static
where
    S: Stream<Item = Result<FlightData, Status>> + Send + 'static,
{
    let with_header = messages.try_filter(|message| future::ready(!message.data_header.is_empty()));
    let sized = with_header.and_then(|message| {
        let bytes = unpacked_bytes(&message);
        future::ready(if bytes <= UNPACKED_BYTES {
            Ok(message)
        } else {
            let most = UNPACKED_BYTES >> 20;
            Err(status::malformed(format!("a message is {bytes} bytes when it is unpacked, and {most} MiB are the most: write batches of fewer rows")))
        })
    });
    sized.map_err(FlightError::from)
}

fn not_decoded(why: FlightError) -> Status {
    match why {
        FlightError::Tonic(why) => status::broken(&why),
        why => status::malformed(format!("a message is no rows of Arrow: {why}")),
    }
}

/// The rows of an attempt, on their way to frames.
struct RowWriter {
    attempt: LocalAttempt,
    kind: Arc<Kind>,
    /// Rows that wait for others of their keys, if these become one.
    held: Option<HeldRows>,
    /// Records of all rows so far, and their keys and values in bytes.
    taken: (u64, u64),
    /// Rows that become records at once.
    at_once: usize,
    frame: Vec<Record>,
    /// What they take in memory.
    frame_bytes: u64,
}

/// How many rows to take next, when so many took so many bytes of memory.
fn next_rows(at_once: usize, taken: usize, bytes: u64) -> usize {
    if bytes > FRAME_BYTES {
        let fewer = taken as u64 * FRAME_BYTES / bytes;
        usize::try_from(fewer).unwrap_or(usize::MAX).max(1)
    } else if bytes < FRAME_BYTES / 2 {
        (2 * at_once).min(MOST_ROWS)
    } else {
        at_once
    }
}

impl RowWriter {
    fn of(attempt: LocalAttempt, kind: Arc<Kind>) -> RowWriter {
        let (held, taken) = (kind.held_rows(), (0, 0));
        RowWriter { attempt, kind, held, taken, at_once: FIRST_ROWS, frame: Vec::new(), frame_bytes: 0 }
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), Status> {
        let rows = batch.num_rows();
        if rows > BATCH_ROWS {
            let why = format!("a batch has {rows} rows, and {BATCH_ROWS} are the most: write several");
            return Err(status::malformed(why));
        }
        let mut at = 0;
        while at < rows {
            let count = self.at_once.min(rows - at);
            let records = self.kind.records(&batch.slice(at, count))?;
            let bytes = records.iter().map(Record::memory).sum();
            self.at_once = next_rows(self.at_once, count, bytes);
            at += count;
            let size: u64 = records.iter().map(Record::bytes).sum();
            self.taken = (self.taken.0 + records.len() as u64, self.taken.1 + size);
            let Some(held) = &mut self.held else {
                for record in records {
                    self.push(record).await?;
                }
                continue;
            };
            held.take(records).map_err(status::differs)?;
            if held.memory() > FRAME_BYTES {
                self.flush_held().await?;
            }
        }
        Ok(())
    }

    async fn push(&mut self, record: Record) -> Result<(), Status> {
        let bytes = record.memory();
        if !self.frame.is_empty() && self.frame_bytes + bytes > FRAME_BYTES {
            self.flush().await?;
        }
        self.frame.push(record);
        self.frame_bytes += bytes;
        Ok(())
    }

    async fn flush_held(&mut self) -> Result<(), Status> {
        let Some(held) = &mut self.held else { return Ok(()) };
        let records = held.records().map_err(status::differs)?;
        for record in records {
            self.push(record).await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Status> {
        let frame = std::mem::take(&mut self.frame);
        self.frame_bytes = 0;
        self.attempt.put(frame).await.map_err(status::refused)
    }

    async fn end(mut self) -> Result<(u64, u64), Status> {
        self.flush_held().await?;
        if !self.frame.is_empty() {
            self.flush().await?;
        }
        self.attempt.end().await.map_err(status::refused)?;
        Ok(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_rows_are_taken_as_their_size_allows() {
        assert_eq!(next_rows(64, 64, 100), 128);
        assert_eq!(next_rows(MOST_ROWS, MOST_ROWS, 100), MOST_ROWS);
        assert_eq!(next_rows(64, 64, FRAME_BYTES - 1), 64);
        assert_eq!(next_rows(64, 64, 4 * FRAME_BYTES), 16);
        assert_eq!(next_rows(64, 10, 1_000 * FRAME_BYTES), 1);
    }
}
