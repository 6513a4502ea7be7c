//! What a descriptor names: an attempt that is written, or a flight that is read.
//!
//! | descriptor | of |
//! |---|---|
//! | path `[handle, partition]`, `[handle, partition, attempt]` | DoPut |
//! | path `[shuffle]`, `[shuffle, n]`, `[shuffle, n, cut]` | GetFlightInfo, GetSchema |
//! | command `{"shuffle", "partitions", "cut", "combine", "compression"}` | the same |
//! | command `{"shuffle", "first", "end", "combine", "compression"}` | the records of an interval of keys |

use crate::status;
use crate::ticket::{COMBINED_CUT, Compression, Cut, shuffle};
use arrow_flight::FlightDescriptor;
use arrow_flight::flight_descriptor::DescriptorType;
use partage_service::shuffle::{AttemptId, ShuffleId};
use partage_shuffle_client::Shuffle;
use serde::Deserialize;
use tonic::Status;

/// An attempt that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PutPath {
    pub(crate) shuffle: Shuffle,
    pub(crate) partition: u32,
    pub(crate) attempt: AttemptId,
}

/// A flight, as JSON has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlightForm {
    /// The handle of the shuffle, or its number.
    pub(crate) shuffle: String,
    pub(crate) partitions: Option<u64>,
    pub(crate) cut: Option<Cut>,
    /// Ends of an interval of keys: each a row, as a stream of Arrow IPC in base64.
    pub(crate) first: Option<String>,
    pub(crate) end: Option<String>,
    /// The same as bytes, in base64.
    pub(crate) first_key: Option<String>,
    pub(crate) end_key: Option<String>,
    /// Whether each key has one row, of a shuffle that combines.
    #[serde(default)]
    pub(crate) combine: bool,
    pub(crate) compression: Option<Compression>,
}

impl FlightForm {
    pub(crate) fn has_keys(&self) -> bool {
        [&self.first, &self.end, &self.first_key, &self.end_key].iter().any(|end| end.is_some())
    }

    /// Reads a descriptor; the shuffle is the one that it names.
    pub(crate) fn of(descriptor: &FlightDescriptor) -> Result<(FlightForm, ShuffleId), Status> {
        let form: FlightForm = match descriptor.r#type() {
            DescriptorType::Cmd => serde_json::from_slice(&descriptor.cmd)
                .map_err(|why| status::malformed(format!("the command of the descriptor is none: {why}")))?,
            DescriptorType::Path => FlightForm::of_path(&descriptor.path)?,
            DescriptorType::Unknown => {
                return Err(status::malformed("the descriptor has neither a path nor a command"));
            }
        };
        let shuffle = shuffle(&form.shuffle)?;
        if form.has_keys() && (form.partitions.is_some() || form.cut.is_some()) {
            return Err(status::malformed("the descriptor names partitions and keys: name one of both"));
        }
        if form.combine && form.cut.is_some_and(|cut| cut != Cut::Keys) {
            return Err(status::malformed(COMBINED_CUT));
        }
        Ok((form, shuffle))
    }

    fn of_path(path: &[String]) -> Result<FlightForm, Status> {
        let (shuffle, partitions, cut) = match path {
            [shuffle] => (shuffle, None, None),
            [shuffle, partitions] => (shuffle, Some(partitions), None),
            [shuffle, partitions, cut] => (shuffle, Some(partitions), Some(cut)),
            _ => {
                let why =
                    "the path of a flight is the shuffle, how many partitions it has, and where they are cut";
                return Err(status::malformed(why));
            }
        };
        let count = |text: &String| {
            let why = |_| status::malformed(format!("{text:?} is no number of partitions"));
            text.parse::<u64>().map_err(why)
        };
        let cut = match cut.map(String::as_str) {
            None => None,
            Some("records") => Some(Cut::Records),
            Some("bytes") => Some(Cut::Bytes),
            Some("keys") => Some(Cut::Keys),
            Some(other) => {
                let why = format!("partitions are cut at records, bytes or keys, and not at {other:?}");
                return Err(status::malformed(why));
            }
        };
        let partitions = partitions.map(count).transpose()?;
        Ok(FlightForm { shuffle: shuffle.clone(), partitions, cut, ..FlightForm::default() })
    }
}

/// An attempt's id: 32 hexadecimal digits, with or without hyphens, as UUIDs are.
fn attempt_id(text: &str) -> Result<AttemptId, Status> {
    let digits: String = text.chars().filter(|digit| *digit != '-').collect();
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_id);
    let why = || {
        status::malformed(
            "an attempt is a UUID, or 32 hexadecimal digits: give one that was never used, or none",
        )
    };
    number.map(AttemptId).ok_or_else(why)
}

impl PutPath {
    pub(crate) fn of(descriptor: Option<&FlightDescriptor>) -> Result<PutPath, Status> {
        let path = descriptor.map(|descriptor| &descriptor.path[..]).unwrap_or_default();
        let (handle, partition, attempt) = match path {
            [handle, partition] => (handle, partition, None),
            [handle, partition, attempt] => (handle, partition, Some(attempt)),
            _ => {
                let why = "the path of an attempt is the handle of the shuffle, the input partition, and the id of the attempt";
                return Err(status::malformed(why));
            }
        };
        let shuffle = handle.parse::<Shuffle>().map_err(|_| {
            let shown: String = handle.chars().take(100).collect();
            status::malformed(format!("{shown:?} is no handle: give the one that `start` has answered"))
        })?;
        let why = |_| {
            status::no_partition(format!(
                "{partition:?} is no input partition: they are numbers from 0 to {}",
                u32::MAX
            ))
        };
        let partition = partition.parse().map_err(why)?;
        let attempt = match attempt {
            Some(text) => attempt_id(text)?,
            None => AttemptId(u128::from_be_bytes(partage_random::bytes())),
        };
        Ok(PutPath { shuffle, partition, attempt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn path(parts: &[&str]) -> FlightDescriptor {
        FlightDescriptor::new_path(parts.iter().map(|part| (*part).to_owned()).collect())
    }

    #[test]
    fn an_attempt_has_the_id_that_its_path_says_or_a_new_one() {
        let handle = format!("{:032x}-30-48", 7);
        let uuid = "6f1c2b8e-0f0a-4b57-9d3b-0123456789ab";
        let named = PutPath::of(Some(&path(&[&handle, "3", uuid]))).unwrap();
        assert_eq!((named.shuffle.id, named.partition), (ShuffleId(7), 3));
        assert_eq!(named.attempt, AttemptId(0x6f1c_2b8e_0f0a_4b57_9d3b_0123_4567_89ab));
        let new = || PutPath::of(Some(&path(&[&handle, "3"]))).unwrap().attempt;
        assert_ne!(new(), new());
        let number = "0".repeat(32);
        let bad: [&[&str]; 7] = [
            &[],
            &[&handle],
            &[&number, "3"],
            &[&handle, "-1"],
            &[&handle, "4294967296"],
            &[&handle, "3", "first"],
            &[&handle, "3", uuid, ""],
        ];
        for parts in bad {
            let why = PutPath::of(Some(&path(parts))).unwrap_err();
            assert_eq!(why.code(), Code::InvalidArgument, "{parts:?}: {why}");
        }
        assert!(PutPath::of(None).is_err());
    }

    #[test]
    fn a_flight_is_named_by_a_path_or_a_command() {
        let id = format!("{:032x}", 7);
        let (form, shuffle) = FlightForm::of(&path(&[&id, "16", "keys"])).unwrap();
        assert_eq!((shuffle, form.partitions, form.cut), (ShuffleId(7), Some(16), Some(Cut::Keys)));
        let command = format!(r#"{{"shuffle":"{id}","partitions":16,"cut":"keys"}}"#);
        assert_eq!(FlightForm::of(&FlightDescriptor::new_cmd(command)).unwrap().0, form);
        assert_eq!(FlightForm::of(&path(&[&id])).unwrap().0.partitions, None);
        let both = format!(r#"{{"shuffle":"{id}","partitions":1,"first_key":""}}"#);
        let bad = [
            path(&[]),
            path(&["7"]),
            path(&[&id, "many"]),
            path(&[&id, "1", "rows"]),
            path(&[&id, "1", "keys", ""]),
            FlightDescriptor::new_cmd("7"),
            FlightDescriptor::new_cmd(both),
            FlightDescriptor::new_cmd(format!(r#"{{"shuffle":"{id}","combine":true,"cut":"bytes"}}"#)),
            FlightDescriptor::default(),
        ];
        for descriptor in bad {
            assert_eq!(
                FlightForm::of(&descriptor).unwrap_err().code(),
                Code::InvalidArgument,
                "{descriptor:?}"
            );
        }
    }
}
