//! The keys and values that all servers get: 16 bytes and 100 bytes.

use std::io::Write;
use std::path::Path;

/// Partitions and files.
pub const PARTITIONS: u32 = 8;

/// The key of a number: sixteen hexadecimal digits, spread evenly.
pub fn key(number: u64) -> [u8; 16] {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [0; 16];
    for (at, digit) in key.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(mixed >> (60 - 4 * at)) as usize & 15];
    }
    key
}

/// Its value: a hundred letters and digits.
pub fn value(number: u64) -> [u8; 100] {
    let mut value = [0; 100];
    let mut state = number ^ 0x2545_f491_4f6c_dd1d;
    for letter in &mut value {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *letter = b"abcdefghijklmnopqrstuvwxyz012345"[(state >> 40) as usize & 31];
    }
    value
}

/// Numbers in no order.
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    /// Another one below `keys`.
    pub fn below(&mut self, keys: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(keys)) >> 64) as u64
    }
}

/// Writes the files of a batch job, as Sequins reads them: SequenceFiles of BytesWritable, uncompressed.
pub fn sequence_files(folder: &Path, keys: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for partition in 0..PARTITIONS {
        let file = std::fs::File::create(folder.join(format!("part-{partition:05}")))?;
        let mut file = std::io::BufWriter::new(file);
        file.write_all(&sequence_head())?;
        files.push(file);
    }
    for number in 0..keys {
        let (key, value) = (key(number), value(number));
        let partition = partage_core::dataset::partition::Partitioner::JavaBytes.partition(&key, PARTITIONS);
        let file = &mut files[partition as usize];
        file.write_all(&(key.len() as u32 + value.len() as u32 + 8).to_be_bytes())?;
        for bytes in [&key[..], &value[..]] {
            let length = bytes.len() as u32;
            if bytes.len() == key.len() {
                file.write_all(&(length + 4).to_be_bytes())?;
            }
            file.write_all(&length.to_be_bytes())?;
            file.write_all(bytes)?;
        }
    }
    files.iter_mut().try_for_each(Write::flush)
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
