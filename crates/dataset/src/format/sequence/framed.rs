//! The frame that Hadoop's `BlockCompressorStream` puts around snappy and lz4, which know no stream themselves.
//!
//! ```text
//! length uncompressed u32,  then until it is reached:  length compressed u32, compressed
//! ```
//! and again, to the end of the bytes.

use super::codec::Undecodable;

/// Uncompresses chunk after chunk; `chunk` appends one that may grow by so many bytes and no more.
pub fn decode(
    mut compressed: &[u8],
    into: &mut Vec<u8>,
    limit: usize,
    mut chunk: impl FnMut(&[u8], &mut Vec<u8>, usize) -> Result<(), Undecodable>,
) -> Result<(), Undecodable> {
    while !compressed.is_empty() {
        let promised = length(&mut compressed)?;
        if promised == 0 {
            // So Hadoop ends a stream in which nothing was; it does not look at what follows either.
            return Ok(());
        }
        if promised > limit.saturating_sub(into.len()) {
            return Err(Undecodable::TooLong);
        }
        let end = into.len() + promised;
        while into.len() < end {
            let count = length(&mut compressed)?;
            let (bytes, rest) = compressed.split_at_checked(count).ok_or_else(Undecodable::cut_off)?;
            compressed = rest;
            let most = end - into.len();
            chunk(bytes, into, most)?;
        }
    }
    Ok(())
}

fn length(compressed: &mut &[u8]) -> Result<usize, Undecodable> {
    let (length, rest) = compressed.split_first_chunk().ok_or_else(Undecodable::cut_off)?;
    *compressed = rest;
    usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Undecodable::TooLong)
}
