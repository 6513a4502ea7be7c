//! An attempt of an input partition as a stream of batches.
//!
//! ```text
//!  descriptor, schema ─► accepted? ─► attempt is open ─► batches ─► some rows at a time ─► frames ─► buffer
//!  end mark, end of the stream ─► the attempt is whole ─► one PutResult, and the end of the call
//! ```
//!
//! The end of a stream says nothing: a client of gRPC ends it in order when its program fails half-way, or forgets it. So the
//! last message is a mark, which counts the rows.
//!
//! All is done where the answer is polled: when a client goes away, the attempt is dropped, and one that is dropped before its
//! end is never read. The next message is read when the buffer has the records of the one before: so a full buffer holds the
//! client back.

use crate::combine::HeldRows;
use crate::decode::Decoding;
use crate::descriptor::PutPath;
use crate::ipc::Unpacked;
use crate::kind::Kind;
use crate::limits::{BATCH_ROWS, FLUSH, FRAME_BYTES, UNPACKED_BYTES};
use crate::memory::{Held, HeldDictionaries};
use crate::service::ShuffleFlights;
use crate::status;
use arrow_array::RecordBatch;
use arrow_flight::decode::DecodedPayload;
use arrow_flight::{FlightData, PutResult};
use futures::StreamExt;
use futures::stream::{self, Stream};
use partage_service::shuffle::record::Record;
use partage_shuffle::network::LocalAttempt;
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use tokio::time::Instant;
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
    let (mut decoding, mut dictionaries) = (Decoding::new(), flights.memory().dictionaries());
    let (mut open, mut told) = (None::<RowWriter>, None);
    let mut messages = stream::iter([Ok(first)]).chain(messages);
    while let Some(message) = messages.next().await {
        let message = message.map_err(|why| status::broken(&why))?;
        if told.is_some() {
            return Err(status::malformed("messages come behind the end mark: write it last"));
        }
        if message.data_header.is_empty() {
            told = end_mark(&message)?;
            continue;
        }
        // It is given back when the buffer has the rows.
        let _held = room(&flights, &message, &mut dictionaries).await?;
        match decoding.decode(message)? {
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
    let (records, bytes) = rows.end(told).await?;
    let attempt = format!("{:032x}", path.attempt.0);
    let told = json!({ "records": records, "bytes": bytes, "attempt": attempt });
    Ok(PutResult { app_metadata: told.to_string().into() })
}

/// The last message of a stream, which has no rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndMark {
    records: u64,
}

/// The rows that the end mark counts; none: the message says nothing.
fn end_mark(message: &FlightData) -> Result<Option<u64>, Status> {
    if message.app_metadata.is_empty() {
        return Ok(None);
    }
    let mark: Result<EndMark, _> = serde_json::from_slice(&message.app_metadata);
    let mark = mark.map_err(|why| {
        status::malformed(format!("metadata without rows is no end mark, as {{\"records\": 5}} is: {why}"))
    })?;
    Ok(Some(mark.records))
}

/// Waits for the memory that a message takes when it is unpacked.
async fn room(
    flights: &ShuffleFlights,
    message: &FlightData,
    dictionaries: &mut HeldDictionaries,
) -> Result<Held, Status> {
    let taken = Unpacked::of(message)
        .map_err(|why| status::malformed(format!("a message is no rows of Arrow: {why}")))?;
    let most = UNPACKED_BYTES >> 20;
    if taken.bytes > UNPACKED_BYTES {
        let why = format!(
            "a message is {} bytes when it is unpacked, and {most} MiB are the most: write batches of fewer rows",
            taken.bytes
        );
        return Err(status::malformed(why));
    }
    if taken.is_dictionary {
        dictionaries.take(taken.bytes).await?;
    }
    let wire = (message.data_header.len() + message.data_body.len()) as u64;
    Ok(flights.memory().message(wire.max(taken.bytes)).await)
}

/// The rows of an attempt, on their way to frames.
struct RowWriter {
    attempt: LocalAttempt,
    kind: Arc<Kind>,
    /// Rows that wait for others of their keys, if these become one.
    held: Option<HeldRows>,
    /// Records of all rows so far, and their keys and values in bytes.
    taken: (u64, u64),
    frame: Vec<Record>,
    /// What they take in memory.
    frame_bytes: u64,
    /// When the buffer has got a frame last.
    flushed: Instant,
}

/// Why an attempt whose mark counts other rows than came is not whole; none: it is.
fn not_whole(told: Option<u64>, came: u64) -> Option<Refusal> {
    let why = match told {
        Some(told) if told == came => return None,
        Some(told) => format!("the end mark counts {told} rows, and {came} came: write the attempt again"),
        None => format!(
            "the stream has ended behind {came} rows without an end mark, so some may lack: write the attempt again, and send \
             the metadata {{\"records\": …}}, with its rows, behind the last batch"
        ),
    };
    Some(Refusal::new(RefusalWord::CountDiffers, Again::Attempt, why))
}

impl RowWriter {
    fn of(attempt: LocalAttempt, kind: Arc<Kind>) -> RowWriter {
        let (held, taken, flushed) = (kind.held_rows(), (0, 0), Instant::now());
        RowWriter { attempt, kind, held, taken, frame: Vec::new(), frame_bytes: 0, flushed }
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), Status> {
        let rows = batch.num_rows();
        if rows > BATCH_ROWS {
            let why = format!("a batch has {rows} rows, and {BATCH_ROWS} are the most: write several");
            return Err(status::malformed(why));
        }
        let mut at = 0;
        while at < rows {
            let records = self.kind.some_records(batch, at)?;
            at += records.len();
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
        // The buffer gives an attempt up that is silent for long: one that comes little by little is not.
        if self.flushed.elapsed() >= FLUSH {
            self.flush_held().await?;
            self.flush().await?;
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
        if self.frame.is_empty() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.frame);
        self.frame_bytes = 0;
        self.attempt.put(frame.into()).await.map_err(status::refused)?;
        self.flushed = Instant::now();
        Ok(())
    }

    /// The attempt is whole if so many rows came as were told.
    async fn end(mut self, told: Option<u64>) -> Result<(u64, u64), Status> {
        if let Some(refusal) = not_whole(told, self.taken.0) {
            return Err(status::refused(refusal));
        }
        self.flush_held().await?;
        self.flush().await?;
        self.attempt.end().await.map_err(status::refused)?;
        Ok(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(metadata: &'static str) -> FlightData {
        FlightData { app_metadata: metadata.into(), ..FlightData::default() }
    }

    #[test]
    fn an_attempt_is_whole_if_its_mark_counts_its_rows() {
        assert_eq!(not_whole(Some(7), 7), None);
        for told in [None, Some(0), Some(8)] {
            let refusal = not_whole(told, 7).unwrap();
            assert_eq!((refusal.word, refusal.again), (RefusalWord::CountDiffers, Again::Attempt));
        }
    }

    #[test]
    fn metadata_alone_is_the_end_mark() {
        assert_eq!(end_mark(&mark(r#"{"records": 7}"#)).unwrap(), Some(7));
        assert_eq!(end_mark(&mark("")).unwrap(), None);
        for bad in ["7", "{}", r#"{"records": -1}"#, r#"{"records": 7, "more": 1}"#, "mine"] {
            assert!(end_mark(&mark(bad)).is_err(), "{bad}");
        }
    }
}
