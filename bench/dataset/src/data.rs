//! The keys and values that all servers get: 16 bytes and 100 bytes, or those of an index of packages.

use flate2::read::GzDecoder;
use partage_service::dataset::partition::Partitioner;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Error, Result, Write};
use std::path::Path;

/// Partitions of a version, each with one store file.
pub const PARTITIONS: u32 = 8;

/// Length of a made key.
pub const KEY_BYTES: usize = 16;
/// Length of a made value.
pub const VALUE_BYTES: usize = 100;
/// The first bytes of a made value name its version.
pub const NAME_BYTES: usize = 4;

/// Keys with their values, each known by its number.
#[derive(Debug, Clone)]
pub enum Data {
    /// So many keys and values that are made from their numbers.
    Made(u64),
    /// The packages of an index that was read from a file.
    Index(Vec<(Vec<u8>, Vec<u8>)>),
}

/// What takes a key and its value.
pub type Take<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

impl Data {
    /// Reads a gzipped file of JSON objects, a line each; the key is the field `package`, the value the line.
    pub fn read(path: &Path) -> Result<Data> {
        let no_key = |line: &str| {
            let line: String = line.chars().take(80).collect();
            Error::other(format!("{}: no field \"package\" at the beginning of {line:?}", path.display()))
        };
        let lines = BufReader::new(GzDecoder::new(File::open(path)?)).lines();
        let entry = |line: Result<String>| {
            let line = line?;
            let rest = line.strip_prefix("{\"package\":\"").ok_or_else(|| no_key(&line))?;
            let key = rest.split('"').next().unwrap_or_default();
            Ok((key.as_bytes().to_vec(), line.into_bytes()))
        };
        lines.map(entry).collect::<Result<_>>().map(Data::Index)
    }

    /// The number of keys.
    pub fn len(&self) -> u64 {
        match self {
            Data::Made(keys) => *keys,
            Data::Index(entries) => entries.len() as u64,
        }
    }

    /// Whether all keys and all values are of the same length.
    pub fn is_alike(&self) -> bool {
        matches!(self, Data::Made(_))
    }

    /// Calls with each key and value, as they are in a version.
    pub fn each(&self, version: u32, take: Take<'_>) -> Result<()> {
        match self {
            Data::Made(keys) => (0..*keys).try_for_each(|number| take(&key(number), &value(number, version))),
            Data::Index(entries) => entries.iter().try_for_each(|(key, value)| take(key, value)),
        }
    }

    /// Appends the key of a number.
    pub fn put_key(&self, out: &mut Vec<u8>, number: u64) {
        match self {
            Data::Made(_) => out.extend_from_slice(&key(number)),
            Data::Index(entries) => out.extend_from_slice(&entries[number as usize].0),
        }
    }

    /// Length of the key of a number.
    pub fn key_bytes(&self, number: u64) -> usize {
        match self {
            Data::Made(_) => KEY_BYTES,
            Data::Index(entries) => entries[number as usize].0.len(),
        }
    }

    /// Writes the files of a batch job, as Sequins reads them: SequenceFiles of BytesWritable, uncompressed. The folder has
    /// its name when all is there. Returns their length.
    pub fn sequence_files(&self, folder: &Path, version: u32) -> Result<u64> {
        let unfinished = folder.with_file_name("_unfinished");
        std::fs::create_dir_all(&unfinished)?;
        let mut files = Vec::new();
        for partition in 0..PARTITIONS {
            let file = File::create(unfinished.join(format!("part-{partition:05}")))?;
            let mut file = BufWriter::with_capacity(1 << 18, file);
            file.write_all(&sequence_head())?;
            files.push(file);
        }
        self.each(version, &mut |key, value| {
            let partition = Partitioner::JavaBytes.partition(key, PARTITIONS);
            let file = &mut files[partition as usize];
            let lengths = [key.len() + value.len() + 8, key.len() + 4, key.len(), value.len()];
            let [record, written, key_bytes, value_bytes] =
                lengths.map(|length| (length as u32).to_be_bytes());
            for part in [&record[..], &written, &key_bytes, key, &value_bytes, value] {
                file.write_all(part)?;
            }
            Ok(())
        })?;
        files.iter_mut().try_for_each(Write::flush)?;
        std::fs::rename(unfinished, folder)?;
        folder_bytes(folder)
    }
}

/// The length of all files in a folder.
pub fn folder_bytes(folder: &Path) -> Result<u64> {
    std::fs::read_dir(folder)?.try_fold(0, |sum, entry| Ok(sum + entry?.metadata()?.len()))
}

/// The name of a version.
pub fn version_name(version: u32) -> String {
    format!("v{version:03}")
}

/// The key of a number: sixteen hexadecimal digits, spread evenly.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [0; KEY_BYTES];
    for (at, digit) in key.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(mixed >> (60 - 4 * at)) as usize & 15];
    }
    key
}

/// Its value: the name of the version, and letters and digits that tell the key.
pub fn value(number: u64, version: u32) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..NAME_BYTES].copy_from_slice(version_name(version % 1_000).as_bytes());
    let mut state = number ^ 0x2545_f491_4f6c_dd1d;
    for letter in &mut value[NAME_BYTES..] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *letter = b"abcdefghijklmnopqrstuvwxyz012345"[(state >> 40) as usize & 31];
    }
    value
}

/// Version 6, two class names, no compression, no metadata, a mark of 16 bytes.
fn sequence_head() -> Vec<u8> {
    let class = b"org.apache.hadoop.io.BytesWritable";
    let mut head = b"SEQ\x06".to_vec();
    for _ in 0..2 {
        head.push(class.len() as u8);
        head.extend_from_slice(class);
    }
    head.extend_from_slice(&[0, 0]);
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(b"0123456789abcdef");
    head
}
