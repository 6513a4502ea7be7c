//! The messages of one stream as rows, one message at a time: so who reads a stream knows what a message takes before it is
//! unpacked, and sees the messages that have no rows.

use crate::status;
use arrow_flight::FlightData;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use futures::channel::mpsc::{Sender, channel};
use futures::{FutureExt, StreamExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tonic::Status;

/// The schema and the dictionaries of a stream, by which its messages become rows.
pub(crate) struct Decoding {
    decoder: FlightDataDecoder,
    /// To the decoder, which takes each message before the next one comes.
    messages: Sender<Result<FlightData, FlightError>>,
}

impl Decoding {
    pub(crate) fn new() -> Decoding {
        let (messages, taken) = channel(1);
        Decoding { decoder: FlightDataDecoder::new(taken), messages }
    }

    /// What a message says; a dictionary says nothing by itself.
    pub(crate) fn decode(&mut self, message: FlightData) -> Result<DecodedPayload, Status> {
        self.messages.try_send(Ok(message)).map_err(|why| Status::internal(why.to_string()))?;
        // The library panics where counts of a message make no sense.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.next().now_or_never()));
        match decoded {
            Ok(Some(Some(decoded))) => decoded.map(|decoded| decoded.payload).map_err(not_decoded),
            // The decoder waits for the message behind a dictionary.
            Ok(_) => Ok(DecodedPayload::None),
            Err(_) => Err(status::malformed("a message is no rows of Arrow: what it counts is not in it")),
        }
    }
}

fn not_decoded(why: FlightError) -> Status {
    match why {
        FlightError::Tonic(why) => status::broken(&why),
        why => status::malformed(format!("a message is no rows of Arrow: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::types::Int8Type;
    use arrow_array::{ArrayRef, DictionaryArray, RecordBatch};
    use arrow_flight::encode::{DictionaryHandling, FlightDataEncoderBuilder};
    use futures::{TryStreamExt, stream};
    use std::sync::Arc;

    async fn messages(rows: RecordBatch) -> Vec<FlightData> {
        let encoder = FlightDataEncoderBuilder::new().with_dictionary_handling(DictionaryHandling::Resend);
        encoder.build(stream::iter([Ok(rows)])).try_collect().await.unwrap()
    }

    fn rows() -> RecordBatch {
        let texts: DictionaryArray<Int8Type> = ["a", "b", "a"].into_iter().collect();
        RecordBatch::try_from_iter([("texts", Arc::new(texts) as ArrayRef)]).unwrap()
    }

    #[tokio::test]
    async fn a_message_says_one_thing_and_a_dictionary_nothing() {
        let (written, mut decoding, mut said) = (messages(rows()).await, Decoding::new(), Vec::new());
        for message in written {
            said.push(decoding.decode(message).unwrap());
        }
        let [DecodedPayload::Schema(_), DecodedPayload::None, DecodedPayload::RecordBatch(batch)] = &said[..]
        else {
            panic!("{said:?}");
        };
        assert_eq!((batch.num_rows(), batch.column(0)), (3, rows().column(0)));
    }

    #[tokio::test]
    async fn a_message_by_which_the_library_panics_is_refused() {
        let (mut written, mut decoding) = (messages(rows()).await, Decoding::new());
        decoding.decode(written.remove(0)).unwrap();
        // Its buffers lie where no byte is.
        let cut = FlightData { data_body: bytes::Bytes::new(), ..written.remove(0) };
        let refused = decoding.decode(cut).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    }
}
