//! What a ticket says: which records of which shuffle, whole, so that each node of the pool takes it. Tickets are JSON, which a
//! client may also write itself.

use crate::status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_service::shuffle::{Bytes, ShuffleId};
use partage_shuffle::network::LocalRead;
use partage_shuffle_client::shuffle_id;
use partage_shuffle_wire::client::CutBy;
use serde::{Deserialize, Serialize};
use tonic::Status;

/// How messages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compression {
    Lz4,
    Zstd,
}

/// Where partitions are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cut {
    #[default]
    Records,
    Bytes,
    Keys,
}

impl Cut {
    pub(crate) fn by(self) -> CutBy {
        match self {
            Cut::Records => CutBy::Records,
            Cut::Bytes => CutBy::Bytes,
            Cut::Keys => CutBy::Keys,
        }
    }
}

/// A ticket, as JSON has it: of a partition of several, or of the keys from the first, included, to the end, excluded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TicketForm {
    /// The handle of the shuffle, or its number.
    pub(crate) shuffle: String,
    /// The partition, numbered from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<u64>,
    /// How many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<u64>,
    /// Where they are cut.
    #[serde(default, skip_serializing_if = "is_by_records")]
    pub(crate) cut: Cut,
    /// Whether each key has one row, of a shuffle that combines.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) combine: bool,
    /// Keys as bytes, in base64; none: from the first key, or to the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compression: Option<Compression>,
}

/// A key that is in two partitions would have a row in both.
pub(crate) const COMBINED_CUT: &str =
    "partitions of rows that are combined are cut between keys: give `cut` as \"keys\"";

fn is_by_records(cut: &Cut) -> bool {
    *cut == Cut::Records
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// What a ticket is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadTicket {
    pub(crate) shuffle: ShuffleId,
    pub(crate) what: LocalRead,
    pub(crate) combine: bool,
    pub(crate) compression: Option<Compression>,
}

/// A key of its text.
pub(crate) fn key(text: &str) -> Result<Bytes, Status> {
    let decoded = STANDARD.decode(text);
    decoded.map(Bytes::from).map_err(|why| status::malformed(format!("a key is no base64: {why}")))
}

/// The text of a key.
pub(crate) fn key_text(key: &[u8]) -> String {
    STANDARD.encode(key)
}

/// A shuffle of its handle or number.
pub(crate) fn shuffle(text: &str) -> Result<ShuffleId, Status> {
    let why = |_| {
        let shown: String = text.chars().take(100).collect();
        status::malformed(format!(
            "{shown:?} is no shuffle: give the handle that `start` has answered, or its number"
        ))
    };
    shuffle_id(text).map_err(why)
}

impl TicketForm {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the bytes of a ticket.
    pub(crate) fn read(bytes: &[u8]) -> Result<ReadTicket, Status> {
        let form: TicketForm = serde_json::from_slice(bytes).map_err(|why| {
            status::malformed(format!("the ticket is none ({why}): take one of the endpoints of a flight"))
        })?;
        let what = match (form.partition, form.of) {
            (Some(i), Some(n)) if form.first_key.is_none() && form.end_key.is_none() => {
                if i >= n {
                    return Err(status::no_partition(format!("there is no partition {i} of {n}")));
                }
                if form.combine && form.cut != Cut::Keys {
                    return Err(status::malformed(COMBINED_CUT));
                }
                LocalRead::Partition(i, n, form.cut.by())
            }
            (None, None) => {
                let first = form.first_key.as_deref().map(key).transpose()?.unwrap_or_default();
                LocalRead::Keys(first, form.end_key.as_deref().map(key).transpose()?)
            }
            _ => {
                let why = "the ticket is none: it has `partition` and `of`, or `first_key` and `end_key`";
                return Err(status::malformed(why));
            }
        };
        let (combine, compression) = (form.combine, form.compression);
        Ok(ReadTicket { shuffle: shuffle(&form.shuffle)?, what, combine, compression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn tickets_are_read_as_they_are_written() {
        let id = format!("{:032x}", 77);
        let partition =
            TicketForm { shuffle: id.clone(), partition: Some(1), of: Some(7), ..TicketForm::default() };
        let text = format!(r#"{{"shuffle":"{id}","partition":1,"of":7}}"#);
        assert_eq!(String::from_utf8(partition.bytes()).unwrap(), text);
        let read = TicketForm::read(text.as_bytes()).unwrap();
        assert_eq!(read.shuffle, ShuffleId(77));
        assert_eq!((read.what, read.compression), (LocalRead::Partition(1, 7, CutBy::Records), None));
        let keys = TicketForm {
            shuffle: id,
            first_key: Some(key_text(b"\xffa")),
            compression: Some(Compression::Lz4),
            ..TicketForm::default()
        };
        let read = TicketForm::read(&keys.bytes()).unwrap();
        assert_eq!(read.what, LocalRead::Keys(b"\xffa".as_slice().into(), None));
        assert_eq!((read.combine, read.compression), (false, Some(Compression::Lz4)));
        let combined = TicketForm { combine: true, ..keys };
        assert!(TicketForm::read(&combined.bytes()).unwrap().combine);
    }

    #[test]
    fn what_is_no_ticket_is_refused() {
        let id = "0".repeat(32);
        let bad = [
            String::new(),
            "7".to_owned(),
            r#"{"shuffle":"7","partition":0,"of":1}"#.to_owned(),
            format!(r#"{{"shuffle":"{id}","partition":0}}"#),
            format!(r#"{{"shuffle":"{id}","partition":0,"of":0}}"#),
            format!(r#"{{"shuffle":"{id}","partition":3,"of":3}}"#),
            format!(r#"{{"shuffle":"{id}","partition":0,"of":1,"first_key":""}}"#),
            format!(r#"{{"shuffle":"{id}","first_key":"?"}}"#),
            format!(r#"{{"shuffle":"{id}","partition":0,"of":1,"cut":"rows"}}"#),
            format!(r#"{{"shuffle":"{id}","more":0}}"#),
            format!(r#"{{"shuffle":"{id}","partition":0,"of":1,"combine":true}}"#),
        ];
        for text in bad {
            let why = TicketForm::read(text.as_bytes()).unwrap_err();
            assert_eq!(why.code(), Code::InvalidArgument, "{text}: {why}");
        }
    }
}
