//! What messages of Arrow IPC claim to become, before anything of them is unpacked: the decoder reserves what a length says, and
//! panics where a buffer lies beyond the end of its message.

use arrow_flight::FlightData;
use arrow_ipc::{Buffer, Message, RecordBatch, root_as_message};
use std::ops::Range;

/// The bytes in front of a message of a stream.
const CONTINUES: [u8; 4] = [0xff; 4];

/// The buffers of a message: those of rows, or of a dictionary.
fn batch<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    let of_dictionary = || message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data());
    message.header_as_record_batch().or_else(of_dictionary)
}

/// Where a buffer of rows lies in the body of its message; none: it lies beyond it, by which the decoder would panic.
fn place(buffer: &Buffer, body: usize) -> Option<Range<usize>> {
    let at = usize::try_from(buffer.offset()).ok()?;
    let end = at.checked_add(usize::try_from(buffer.length()).ok()?)?;
    (end <= body).then_some(at..end)
}

/// What a buffer of some bytes takes when it is unpacked; none: it says no length.
fn unpacked(bytes: &[u8], is_compressed: bool) -> Option<u64> {
    if bytes.is_empty() || !is_compressed {
        return Some(bytes.len() as u64);
    }
    match i64::from_le_bytes(*bytes.first_chunk::<8>()?) {
        // It is not compressed.
        -1 => Some(bytes.len() as u64),
        length => u64::try_from(length).ok(),
    }
}

/// What a message takes when its buffers are unpacked, each by itself: several may lie in the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) bytes: u64,
    /// It is a dictionary, which stays for the messages behind it.
    pub(crate) is_dictionary: bool,
}

impl Unpacked {
    /// What a message takes. An error: its buffers are not in it. One that cannot be read takes nothing: the decoder refuses it.
    pub(crate) fn of(data: &FlightData) -> Result<Unpacked, &'static str> {
        let none = Unpacked { bytes: 0, is_dictionary: false };
        let Ok(message) = root_as_message(&data.data_header) else { return Ok(none) };
        let is_dictionary = message.header_as_dictionary_batch().is_some();
        let Some(batch) = batch(&message) else { return Ok(none) };
        let (is_compressed, mut bytes) = (batch.compression().is_some(), 0_u64);
        for buffer in batch.buffers().into_iter().flatten() {
            let place = place(buffer, data.data_body.len()).and_then(|place| data.data_body.get(place));
            let buffer = place.ok_or("a buffer of it lies beyond its end")?;
            let length = unpacked(buffer, is_compressed).ok_or("a compressed buffer says no length")?;
            bytes = bytes.saturating_add(length);
        }
        Ok(Unpacked { bytes, is_dictionary })
    }
}

/// Whether these are messages of a stream, each with as many bytes as it and its buffers say, and none compressed.
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
        let Ok(body) = usize::try_from(message.bodyLength()) else { return false };
        let is_taken = |batch: RecordBatch<'_>| {
            let mut buffers = batch.buffers().into_iter().flatten();
            batch.compression().is_none() && buffers.all(|buffer| place(buffer, body).is_some())
        };
        match length.checked_add(body).and_then(|after| rest.get(after..)) {
            Some(next) if batch(&message).is_none_or(is_taken) => stream = next,
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
        assert_eq!(Unpacked::of(schema).unwrap().bytes, 0);
        // The values, and perhaps a bit for each.
        let taken = Unpacked::of(rows).unwrap();
        assert!((8_000..8_200).contains(&taken.bytes) && !taken.is_dictionary, "{taken:?}");
        assert!(rows.data_body.len() < 1_000, "it is compressed");
        // Its buffers do not lie in it, or begin with no length.
        for cut in [0, rows.data_body.len() / 2] {
            let data_body = rows.data_body.slice(..cut);
            assert!(Unpacked::of(&FlightData { data_body, ..rows.clone() }).is_err(), "{cut}");
        }
    }

    #[tokio::test]
    async fn buffers_that_are_not_compressed_count_too() {
        let encoder = FlightDataEncoderBuilder::new();
        let messages: Vec<FlightData> =
            encoder.build(stream::iter([Ok(self::rows())])).try_collect().await.unwrap();
        let taken = Unpacked::of(&messages[1]).unwrap();
        assert!((8_000..8_200).contains(&taken.bytes), "{taken:?}");
        assert!(messages[1].data_body.len() >= 8_000);
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
