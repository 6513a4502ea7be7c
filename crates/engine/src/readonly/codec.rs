//! Compressing and decompressing, and the dictionary that both share.
//!
//! The dictionary is trained on what the values have in common and stored in the file once; every value is then compressed
//! with it. What does not get shorter is kept as it is.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::form::Compression;
use crate::limits::{
    DECODERS, DICTIONARY_BYTES, DICTIONARY_PART, LEAST_DICTIONARY_BYTES, LEAST_SAMPLES, SAMPLE_BYTES,
    SAMPLE_VALUE_BYTES,
};

/// How one value or block is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    Plain = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Coding {
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Coding> {
        [Coding::Plain, Coding::Lz4, Coding::Zstd].into_iter().find(|c| *c as u8 == byte)
    }
}

/// Beginnings of values, evenly from all that were added, in bounded memory: when it is full, every second one goes,
/// and from then on half as many are taken.
#[derive(Debug)]
pub struct Samples {
    kept: Vec<Vec<u8>>,
    bytes: usize,
    seen: u64,
    seen_bytes: u64,
    every: u64,
}

impl Samples {
    pub fn new() -> Samples {
        Samples { kept: Vec::new(), bytes: 0, seen: 0, seen_bytes: 0, every: 1 }
    }

    pub fn offer(&mut self, value: &[u8]) {
        let turn = self.seen.is_multiple_of(self.every);
        self.seen += 1;
        self.seen_bytes += value.len() as u64;
        if !turn || value.is_empty() {
            return;
        }
        let sample = value.get(..SAMPLE_VALUE_BYTES).unwrap_or(value);
        self.bytes += sample.len() + size_of::<Vec<u8>>();
        self.kept.push(sample.to_vec());
        if self.bytes > SAMPLE_BYTES {
            self.every *= 2;
            let mut number = 0_u64;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.bytes = self.kept.iter().map(|s| s.len() + size_of::<Vec<u8>>()).sum();
        }
    }

    /// The dictionary, or nothing when the values are too few or have nothing in common.
    pub fn train(&self) -> Vec<u8> {
        let bytes = (self.seen_bytes / DICTIONARY_PART).min(DICTIONARY_BYTES);
        if self.kept.len() < LEAST_SAMPLES || bytes < LEAST_DICTIONARY_BYTES {
            return Vec::new();
        }
        zstd::dict::from_samples(&self.kept, bytes as usize).unwrap_or_default()
    }
}

/// Compresses values one by one.
pub enum Encoder {
    Plain,
    Lz4,
    Zstd(Box<Compressor<'static>>),
}

impl Encoder {
    pub fn new(compression: Compression, dictionary: &[u8]) -> std::io::Result<Encoder> {
        Ok(match compression {
            Compression::None => Encoder::Plain,
            Compression::Lz4 => Encoder::Lz4,
            Compression::Zstd { level } => {
                let mut compressor = Compressor::with_dictionary(level, dictionary)?;
                // The file says both: the length beside the value, the dictionary once.
                compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
                compressor.set_parameter(CParameter::DictIdFlag(false))?;
                Encoder::Zstd(Box::new(compressor))
            }
        })
    }

    pub fn encode<'a>(&mut self, raw: &'a [u8]) -> std::io::Result<(Coding, Cow<'a, [u8]>)> {
        let (coding, shorter) = match self {
            Encoder::Plain => return Ok((Coding::Plain, Cow::Borrowed(raw))),
            Encoder::Lz4 => (Coding::Lz4, lz4_flex::block::compress(raw)),
            Encoder::Zstd(compressor) => (Coding::Zstd, compressor.compress(raw)?),
        };
        if shorter.len() < raw.len() {
            return Ok((coding, Cow::Owned(shorter)));
        }
        Ok((Coding::Plain, Cow::Borrowed(raw)))
    }
}

/// Decompresses, from many threads at a time.
pub struct Decoder {
    dictionary: Vec<u8>,
    idle: Mutex<Vec<Decompressor<'static>>>,
}

impl Decoder {
    pub fn new(dictionary: Vec<u8>) -> Decoder {
        Decoder { dictionary, idle: Mutex::new(Vec::new()) }
    }

    /// The bytes, of which there must be exactly `length`; `None` when they do not decompress to that. The caller has
    /// checked `length` against a limit.
    #[inline]
    pub fn decode<'a>(&self, coding: Coding, stored: &'a [u8], length: usize) -> Option<Cow<'a, [u8]>> {
        let raw = match coding {
            Coding::Plain => Cow::Borrowed(stored),
            Coding::Lz4 => {
                let mut raw = vec![0; length];
                let written = lz4_flex::block::decompress_into(stored, &mut raw).ok()?;
                raw.truncate(written);
                Cow::Owned(raw)
            }
            Coding::Zstd => Cow::Owned(self.zstd(stored, length)?),
        };
        (raw.len() == length).then_some(raw)
    }

    fn zstd(&self, stored: &[u8], length: usize) -> Option<Vec<u8>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut decompressor = match idle {
            Some(decompressor) => decompressor,
            None => Decompressor::with_dictionary(&self.dictionary).ok()?,
        };
        let raw = decompressor.decompress(stored, length).ok();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < DECODERS {
            idle.push(decompressor);
        }
        raw
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("dictionary_bytes", &self.dictionary.len()).finish_non_exhaustive()
    }
}
