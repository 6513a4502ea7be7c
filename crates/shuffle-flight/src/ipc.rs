//! What messages of Arrow IPC claim to become, before anything of them is unpacked: the decoder reserves what a length says.

use arrow_flight::FlightData;
use arrow_ipc::{Message, RecordBatch, root_as_message};

/// The bytes in front of a message of a stream.
const CONTINUES: [u8; 4] = [0xff; 4];

/// The buffers of a message: those of rows, or of a dictionary.
fn batch<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    let of_dictionary = || message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    message.header_as_record_batch().or_else(of_dictionary)
}

/// Bytes that the compressed buffers of a message have when they are unpacked; 0 of one that cannot be read, which the decoder
/// refuses.
pub(crate) fn unpacked_bytes(data: &FlightData) -> u64 {
    let Ok(message) = root_as_message(&data.data_header) else { return 0 };
    let Some(batch) = batch(&message).filter(|batch| batch.compression().is_some()) else { return 0 };
    let Some(buffers) = batch.buffers() else { return 0 };
    let length = |(offset, length): (i64, i64)| {
        let at = usize::try_from(offset).ok().filter(|_| length >= 8)?;
        let prefix = data.data_body.get(at..at.checked_add(8)?)?;
        // −1 says that the buffer is not compressed.
        u64::try_from(i64::from_le_bytes(prefix.try_into().ok()?)).ok()
    };
    let lengths = buffers.iter().filter_map(|buffer| length((buffer.offset(), buffer.length())));
    lengths.fold(0, u64::saturating_add)
}

/// Whether these are messages of a stream, each with as many bytes as it says, and none compressed.
pub(crate) fn is_plain(mut stream: &[u8]) -> bool {
    while let Some((head, rest)) = stream.split_first_chunk::<8>() {
        let [a, b, c, d, length @ ..] = *head;
        let Ok(length) = usize::try_from(i32::from_le_bytes(length)) else { return false };
        if [a, b, c, d] != CONTINUES {
            return false;
        }
        if length == 0 {
            return true;
        }
        let Some(Ok(message)) = rest.get(..length).map(root_as_message) else { return false };
        let is_compressed = batch(&message).is_some_and(|batch| batch.compression().is_some());
        let after = usize::try_from(message.bodyLength()).ok().and_then(|body| length.checked_add(body));
        match after.and_then(|after| rest.get(after..)) {
            Some(next) if !is_compressed => stream = next,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Int64Array, RecordBatch as Rows};
    use arrow_flight::encode::FlightDataEncoderBuilder;
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
    use futures::{TryStreamExt, stream};
    use std::sync::Arc;

    fn rows() -> Rows {
        Rows::try_from_iter([("a", Arc::new(Int64Array::from(vec![7; 1_000])) as _)]).unwrap()
    }

    fn options() -> IpcWriteOptions {
        IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap()
    }

    #[tokio::test]
    async fn what_a_compressed_message_becomes_is_known_before_it_is_unpacked() {
        let encoder = FlightDataEncoderBuilder::new().with_options(options());
        let messages: Vec<FlightData> =
            encoder.build(stream::iter([Ok(self::rows())])).try_collect().await.unwrap();
        let [schema, rows] = &messages[..] else { panic!("{} messages", messages.len()) };
        assert_eq!(unpacked_bytes(schema), 0);
        // The values, and perhaps a bit for each.
        assert!((8_000..8_200).contains(&unpacked_bytes(rows)), "{}", unpacked_bytes(rows));
        assert!(rows.data_body.len() < 1_000, "it is compressed");
    }

    #[test]
    fn streams_that_claim_more_than_they_have_are_no_streams() {
        let written = |options: IpcWriteOptions| {
            let rows = rows();
            let mut writer =
                StreamWriter::try_new_with_options(Vec::new(), rows.schema_ref(), options).unwrap();
            writer.write(&rows).unwrap();
            writer.into_inner().unwrap()
        };
        let plain = written(IpcWriteOptions::default());
        assert!(is_plain(&plain));
        assert!(!is_plain(&plain[..plain.len() / 2]));
        assert!(!is_plain(&plain[4..]));
        assert!(!is_plain(&written(options())));
        assert!(is_plain(b""), "the reader says that there is nothing");
    }
}
