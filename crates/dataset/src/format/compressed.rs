//! Text that may be compressed as a whole: what its first bytes say it is.

use std::io::Read;

use super::error::{Failure, Reason};
use super::input::Input;
use super::recognise::{COMPRESSED, Content};
use super::sequence::codec::window_log;

/// The text of a file, uncompressed as it is read.
pub struct Text {
    pub stream: Box<dyn Read + Send>,
    /// The compression that the text comes out of, for errors.
    pub source: &'static str,
}

/// The text of a file. A file that is named as compressed and is not, is refused; one that is compressed and not
/// named so, is read.
pub fn text(file: &str, content: Content, mut input: Input, most_bytes: usize) -> Result<Text, Failure> {
    let named = COMPRESSED.iter().find(|(ending, ..)| file.ends_with(ending));
    if let Some((ending, of, compression)) = named
        && *of != content
        && !input.is_at_end()?
    {
        return Err(Failure::at_start(Reason::Misnamed { ending, compression }));
    }
    let (stream, source): (Box<dyn Read + Send>, _) = match content {
        Content::Gzip => (Box::new(flate2::read::MultiGzDecoder::new(input)), "the gzip stream"),
        Content::Zstd => {
            let source = "the zstd stream";
            let failed = |error| Failure::at_start(Reason::uncompressing(source, error));
            let mut stream = zstd::stream::read::Decoder::new(input).map_err(failed)?;
            stream.window_log_max(window_log(most_bytes)).map_err(failed)?;
            (Box::new(stream), source)
        }
        Content::SequenceFile | Content::Parquet | Content::Other => (Box::new(input), "the text"),
    };
    Ok(Text { stream, source })
}
