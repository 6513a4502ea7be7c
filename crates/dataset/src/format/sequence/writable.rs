//! How the classes of keys and values write their bytes.

use super::super::error::Reason;
use super::number;

/// What is known of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writable {
    /// `BytesWritable`: a length of four bytes, and the bytes.
    Bytes,
    /// `Text`: a length of variable size, and the bytes.
    Text,
    /// Anything else is taken as it is.
    Raw,
}

impl Writable {
    /// The type of a Java class, by the name of the class.
    pub fn of_class(class: &str) -> Writable {
        match class {
            "org.apache.hadoop.io.BytesWritable" => Writable::Bytes,
            "org.apache.hadoop.io.Text" => Writable::Text,
            _ => Writable::Raw,
        }
    }

    /// The bytes in what the class wrote.
    pub fn unwrap(self, written: &[u8]) -> Result<&[u8], Reason> {
        let (length, bytes) = match self {
            Writable::Raw => return Ok(written),
            Writable::Bytes => {
                let (length, bytes) = written.split_first_chunk().ok_or_else(|| self.damaged(written))?;
                (i32::from_be_bytes(*length).into(), bytes)
            }
            Writable::Text => {
                let (length, size) = number::read(written).ok_or_else(|| self.damaged(written))?;
                (length, &written[size..])
            }
        };
        if usize::try_from(length) == Ok(bytes.len()) { Ok(bytes) } else { Err(self.damaged(written)) }
    }

    fn damaged(self, written: &[u8]) -> Reason {
        let what = match self {
            Writable::Bytes => "a BytesWritable",
            Writable::Text => "a Text",
            Writable::Raw => "a record",
        };
        Reason::Damaged { what, how: format!("its length is not that of its {} bytes", written.len()) }
    }
}
