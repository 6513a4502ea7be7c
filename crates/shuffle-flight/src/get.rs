//! Records as a stream of batches. The next ones are read when the client has taken those before: one that takes nothing holds
//! its own stream back, and no other.

use crate::combine::CombinedRead;
use crate::kind::Kind;
use crate::memory::Held;
use crate::status;
use crate::ticket::Compression;
use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::IpcWriteOptions;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_shuffle::network::LocalReading;
use std::sync::Arc;
use tonic::Status;

async fn next(reading: &mut LocalReading, kind: &Kind) -> Result<Option<RecordBatch>, Status> {
    let Some(records) = reading.next().await.map_err(status::refused)? else { return Ok(None) };
    let pairs: Vec<(&[u8], &[u8])> = records.iter().collect();
    kind.batch(&pairs).map(Some)
}

/// The next rows, of each key one.
async fn next_combined(
    reading: &mut LocalReading,
    combined: &mut CombinedRead,
) -> Result<Option<RecordBatch>, Status> {
    loop {
        let records = reading.next().await.map_err(status::refused)?;
        let is_over = records.is_none();
        match records {
            Some(records) => combined.take(&records.iter().collect::<Vec<_>>())?,
            None => combined.close(),
        }
        let batch = combined.batch()?;
        if batch.is_some() || is_over {
            return Ok(batch);
        }
    }
}

/// The messages of a read: the schema, and batches of about a mebibyte. The memory of the read is in use until its end.
pub(crate) fn stream(
    (reading, held): (LocalReading, Held),
    kind: Arc<Kind>,
    (combine, compression): (bool, Option<Compression>),
) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
    let codec = compression.map(|compression| match compression {
        Compression::Lz4 => CompressionType::LZ4_FRAME,
        Compression::Zstd => CompressionType::ZSTD,
    });
    let options = IpcWriteOptions::default().try_with_compression(codec);
    let options = options.map_err(|why| Status::internal(why.to_string()))?;
    let encoder =
        FlightDataEncoderBuilder::new().with_schema(Arc::clone(kind.schema())).with_options(options);
    let combined = if combine { Some(CombinedRead::new(Arc::clone(&kind))?) } else { None };
    let batches =
        stream::try_unfold((reading, kind, combined), |(mut reading, kind, mut combined)| async move {
            let batch = match &mut combined {
                Some(combined) => next_combined(&mut reading, combined).await,
                None => next(&mut reading, &kind).await,
            };
            let batch = batch.map_err(FlightError::from)?;
            Ok::<_, FlightError>(batch.map(|batch| (batch, (reading, kind, combined))))
        });
    let messages = encoder.build(batches).map(move |message| {
        let _in_use = &held;
        message.map_err(Status::from)
    });
    Ok(messages.boxed())
}
