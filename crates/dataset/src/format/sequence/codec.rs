//! What SequenceFiles are compressed with.

use std::io::{self, Read};

use zstd::stream::raw::{InBuffer, Operation, OutBuffer};

use super::super::error::Reason;
use super::framed;

/// A compression, whatever class it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// zlib (RFC 1950): Hadoop's default.
    Deflate,
    /// gzip (RFC 1952).
    Gzip,
    /// bzip2, which has no RFC.
    Bzip2,
    /// Snappy in Hadoop's frame.
    Snappy,
    /// LZ4 in Hadoop's frame.
    Lz4,
    /// Zstandard (RFC 8878).
    Zstd,
}

const CLASSES: [(&str, Codec); 7] = [
    ("org.apache.hadoop.io.compress.DefaultCodec", Codec::Deflate),
    ("org.apache.hadoop.io.compress.DeflateCodec", Codec::Deflate),
    ("org.apache.hadoop.io.compress.GzipCodec", Codec::Gzip),
    ("org.apache.hadoop.io.compress.BZip2Codec", Codec::Bzip2),
    ("org.apache.hadoop.io.compress.SnappyCodec", Codec::Snappy),
    ("org.apache.hadoop.io.compress.Lz4Codec", Codec::Lz4),
    ("org.apache.hadoop.io.compress.ZStandardCodec", Codec::Zstd),
];

impl Codec {
    /// The codec of a Java class, by the name of the class.
    pub fn of_class(class: &str) -> Option<Codec> {
        CLASSES.iter().find(|(name, _)| *name == class).map(|(_, codec)| *codec)
    }

    pub fn decoder(self, most_bytes: usize) -> Decoder {
        Decoder { codec: self, zstd: None, window_log: window_log(most_bytes) }
    }
}

/// Uncompresses one thing after the other.
pub struct Decoder {
    codec: Codec,
    /// Kept, since making one takes longer than a short value.
    zstd: Option<zstd::stream::raw::Decoder<'static>>,
    window_log: u32,
}

/// The longest window of zstd within that much memory, of those that its own tools write without being told to.
pub fn window_log(most_bytes: usize) -> u32 {
    most_bytes.max(1).next_power_of_two().ilog2().clamp(20, 27)
}

/// Why something was not uncompressed.
#[derive(Debug)]
pub enum Undecodable {
    /// The uncompressed bytes would be more than the reader holds.
    TooLong,
    /// It is not what its codec writes.
    Damaged(String),
}

impl Undecodable {
    /// The compressed bytes end too soon.
    pub fn cut_off() -> Undecodable {
        Undecodable::Damaged("compressed bytes that end too soon".to_owned())
    }

    /// The reason of an error about `what`.
    pub fn reason(self, what: &'static str, too_long: impl FnOnce() -> Reason) -> Reason {
        match self {
            Undecodable::TooLong => too_long(),
            Undecodable::Damaged(how) => Reason::Damaged { what, how },
        }
    }
}

impl From<io::Error> for Undecodable {
    fn from(error: io::Error) -> Undecodable {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Undecodable::cut_off(),
            _ => Undecodable::Damaged(format!("does not uncompress: {error}")),
        }
    }
}

impl Decoder {
    /// Appends the uncompressed bytes, as long as all together are within the limit.
    pub fn decode(&mut self, compressed: &[u8], into: &mut Vec<u8>, limit: usize) -> Result<(), Undecodable> {
        match self.codec {
            Codec::Deflate => {
                let mut stream = flate2::bufread::ZlibDecoder::new(compressed);
                drain(&mut stream, into, limit)?;
                match stream.into_inner() {
                    [] => Ok(()),
                    rest => Err(Undecodable::Damaged(format!("{} bytes after its end", rest.len()))),
                }
            }
            Codec::Gzip => drain(flate2::bufread::MultiGzDecoder::new(compressed), into, limit),
            Codec::Bzip2 => drain(bzip2::bufread::MultiBzDecoder::new(compressed), into, limit),
            Codec::Snappy => framed::decode(compressed, into, limit, snappy),
            Codec::Lz4 => framed::decode(compressed, into, limit, lz4),
            Codec::Zstd => self.zstd(compressed, into, limit),
        }
    }

    fn zstd(&mut self, compressed: &[u8], into: &mut Vec<u8>, limit: usize) -> Result<(), Undecodable> {
        let decoder = match &mut self.zstd {
            Some(decoder) => decoder,
            none => {
                let decoder = none.insert(zstd::stream::raw::Decoder::new()?);
                decoder.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(self.window_log))?;
                decoder
            }
        };
        decoder.reinit()?;
        let mut input = InBuffer::around(compressed);
        loop {
            let before = into.len();
            into.resize((before + STEP_BYTES).min(limit + 1), 0);
            let mut output = OutBuffer::around(&mut into[before..]);
            let frame = decoder.run(&mut input, &mut output);
            let (written, is_full) = (output.pos(), output.pos() == output.capacity());
            into.truncate(before + written);
            if into.len() > limit {
                return Err(Undecodable::TooLong);
            }
            let is_frame_whole = frame? == 0;
            match input.pos() == compressed.len() {
                true if is_frame_whole => return Ok(()),
                true if !is_full => return Err(Undecodable::cut_off()),
                _ => {}
            }
        }
    }
}

/// The uncompressed grows by so much at a time.
const STEP_BYTES: usize = 64 << 10;

fn drain(stream: impl Read, into: &mut Vec<u8>, limit: usize) -> Result<(), Undecodable> {
    stream.take((limit - into.len()) as u64 + 1).read_to_end(into)?;
    if into.len() > limit { Err(Undecodable::TooLong) } else { Ok(()) }
}

fn snappy(chunk: &[u8], into: &mut Vec<u8>, most: usize) -> Result<(), Undecodable> {
    let damaged = |error: snap::Error| Undecodable::Damaged(format!("does not uncompress: {error}"));
    let length = snap::raw::decompress_len(chunk).map_err(damaged)?;
    // Three bytes stand for no more than 64.
    if length > most.min(22 * chunk.len() + 64) {
        return Err(Undecodable::Damaged(format!("a chunk of {length} bytes where {most} are left at most")));
    }
    let before = into.len();
    into.resize(before + length, 0);
    snap::raw::Decoder::new().decompress(chunk, &mut into[before..]).map_err(damaged)?;
    Ok(())
}

fn lz4(chunk: &[u8], into: &mut Vec<u8>, most: usize) -> Result<(), Undecodable> {
    // A byte stands for no more than 255.
    let most = most.min(255 * (chunk.len() + 1));
    let before = into.len();
    into.resize(before + most, 0);
    let count = lz4_flex::block::decompress_into(chunk, &mut into[before..])
        .map_err(|error| Undecodable::Damaged(format!("does not uncompress: {error}")))?;
    into.truncate(before + count);
    Ok(())
}
