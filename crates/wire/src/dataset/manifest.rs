//! The manifest beside the store files of a dataset version: what they are, so that no reader has to open them to know.
//!
//! The same file lies in a node's local store and in a version that `partage dataset build` made. It is JSON, for
//! people, with a checksum over its content, since a number that is wrong by one bit would send every key to the wrong
//! file:
//!
//! ```text
//! {"crc32c": 123, "manifest": {"format": 1, "dataset": ..., "version": ..., "partitioner": ..., "partitions": ...,
//!                              "source": ..., "files": [...]}}
//! ```
//!
//! The checksum is that of the manifest as it is written here: without blanks, fields in this order.

use partage_service::dataset::{DatasetName, Partitioner, VersionName};
use serde::{Deserialize, Serialize};

/// Its name. Files that begin with `_` are no data.
pub const MANIFEST: &str = "_manifest.json";

/// Longest manifest that is read: a hundred bytes for each of a hundred thousand files.
pub const MANIFEST_BYTES: u64 = 16 << 20;

/// The format that is written, and the latest that is read.
const FORMAT: u32 = 1;

/// What a folder of store files is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The dataset whose keys and values are in the files.
    pub dataset: DatasetName,
    /// The version of the dataset that is in the files.
    pub version: VersionName,
    /// Which file a key is in.
    pub partitioner: Partitioner,
    /// How many partitions the whole version has.
    pub partitions: u32,
    /// Digest of the files of the source that it was made of, as in `Layout` of `core`. Another digest is another version of
    /// this name.
    pub source: u64,
    /// The store files that are complete and known byte for byte; none in a node's local store.
    pub files: Vec<StoredPartition>,
}

/// A store file, as it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredPartition {
    /// The number of the partition, from 0.
    pub partition: u32,
    /// Length of the file.
    pub bytes: u64,
    /// CRC32C of the whole file.
    pub crc32c: u32,
    /// How many keys are in the file, each counted once.
    pub keys: u64,
}

/// Why a manifest was not read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is no JSON, or does not have the fields of a manifest.
    #[error("not a manifest of store files: {0}; build them again")]
    Malformed(String),
    /// Written by a later version.
    #[error(
        "format {format}, of which this version knows up to {FORMAT}; update, or build with this version"
    )]
    Later {
        /// The format that the file says it has.
        format: u64,
    },
    /// It is not what was written.
    #[error("does not match its checksum: damaged, or edited by hand; build the store files again")]
    Checksum,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    crc32c: u32,
    manifest: Form,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    format: u32,
    dataset: String,
    version: String,
    partitioner: String,
    partitions: u32,
    /// In 16 hex digits: JSON's readers round large numbers.
    source: String,
    files: Vec<StoredPartition>,
}

impl Manifest {
    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        let form = Form {
            format: FORMAT,
            dataset: self.dataset.to_string(),
            version: self.version.to_string(),
            partitioner: self.partitioner.to_string(),
            partitions: self.partitions,
            source: format!("{:016x}", self.source),
            files: self.files.clone(),
        };
        let sealed = Sealed { crc32c: checksum(&form), manifest: form };
        let mut text = serde_json::to_vec(&sealed).expect("a struct of texts and numbers is always JSON");
        text.push(b'\n');
        text
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`ManifestError`], also when a single bit is another.
    pub fn decode(text: &[u8]) -> Result<Manifest, ManifestError> {
        let malformed = |error: &dyn std::fmt::Display| ManifestError::Malformed(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(text).map_err(|error| malformed(&error))?;
        // A later format may have other fields; that it is later is the better thing to say.
        let format = value["manifest"]["format"].as_u64();
        if let Some(format) = format.filter(|format| *format > u64::from(FORMAT)) {
            return Err(ManifestError::Later { format });
        }
        let sealed: Sealed = serde_json::from_value(value).map_err(|error| malformed(&error))?;
        if checksum(&sealed.manifest) != sealed.crc32c {
            return Err(ManifestError::Checksum);
        }
        let form = sealed.manifest;
        Ok(Manifest {
            dataset: DatasetName::new(&form.dataset).map_err(|error| malformed(&error))?,
            version: VersionName::new(&form.version).map_err(|error| malformed(&error))?,
            partitioner: form.partitioner.parse().map_err(|error| malformed(&error))?,
            partitions: form.partitions,
            source: u64::from_str_radix(&form.source, 16).map_err(|error| malformed(&error))?,
            files: form.files,
        })
    }
}

fn checksum(form: &Form) -> u32 {
    crc32c::crc32c(&serde_json::to_vec(form).expect("a struct of texts and numbers is always JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            dataset: DatasetName::new("packages").unwrap(),
            version: VersionName::new("2024-02-29").unwrap(),
            partitioner: Partitioner::HadoopBytes,
            partitions: 3,
            source: 0x0123_4567_89ab_cdef,
            files: vec![StoredPartition { partition: 2, bytes: 1 << 40, crc32c: u32::MAX, keys: 7 }],
        }
    }

    #[test]
    fn it_comes_back_and_is_written_so() {
        let text = manifest().encode();
        assert_eq!(Manifest::decode(&text).unwrap(), manifest());
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\"crc32c\":1809041377,\"manifest\":{\"format\":1,\"dataset\":\"packages\",\"version\":\"2024-02-29\",\
             \"partitioner\":\"hadoop-bytes\",\"partitions\":3,\"source\":\"0123456789abcdef\",\"files\":[{\"partition\":2,\
             \"bytes\":1099511627776,\"crc32c\":4294967295,\"keys\":7}]}}\n"
        );
    }

    #[test]
    fn d8_every_flipped_bit_and_every_cut_is_found() {
        let text = manifest().encode();
        for bit in 0..8 * text.len() {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // One that stands between two things, a blank for a line end, changes nothing.
            if let Ok(read) = Manifest::decode(&damaged) {
                assert_eq!(read, manifest(), "bit {bit}");
            }
        }
        for length in 0..text.len() - 1 {
            assert!(Manifest::decode(&text[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let later = br#"{"crc32c":1,"manifest":{"format":2,"new":true}}"#;
        assert!(matches!(Manifest::decode(later), Err(ManifestError::Later { format: 2 })));
        assert!(matches!(Manifest::decode(b"{}"), Err(ManifestError::Malformed(_))));
    }
}
