//! Records one by one, uncompressed or with each value compressed by itself.

use super::super::Record;
use super::super::error::{Failure, Reason};
use super::super::input::Input;
use super::codec::Decoder;
use super::header::{Header, SYNC_ESCAPE};

/// What is kept from one record to the next.
pub struct Plain {
    decoder: Option<Decoder>,
    value: Vec<u8>,
    most_bytes: usize,
}

const RECORD: &str = "a record";

impl Plain {
    /// Before the first record.
    pub fn new(decoder: Option<Decoder>, most_bytes: usize) -> Plain {
        Plain { decoder, value: Vec::new(), most_bytes }
    }

    /// The next record; none at the end of the file.
    pub fn next<'a>(
        &'a mut self,
        input: &'a mut Input,
        header: &Header,
    ) -> Result<Option<Record<'a>>, Failure> {
        let Some((at, length, key_length)) = lengths(input, header, self.most_bytes)? else {
            return Ok(None);
        };
        let record = input.next_bytes(length, RECORD)?;
        let (key, value) = record.split_at(key_length);
        let value = match &mut self.decoder {
            None => value,
            Some(decoder) => {
                self.value.clear();
                let most = self.most_bytes;
                let uncompressed = decoder.decode(value, &mut self.value, most);
                uncompressed.map_err(|how| {
                    let reason = how.reason("a value", || Reason::record_too_long(most as u64 + 1, most));
                    Failure::at(at, reason)
                })?;
                &self.value
            }
        };
        let failed = |reason| Failure::at(at, reason);
        let key = header.key.unwrap(key).map_err(failed)?;
        Ok(Some((key, header.value.unwrap(value).map_err(failed)?)))
    }
}

/// Where the next record is, how long it is, and how long its key.
fn lengths(input: &mut Input, header: &Header, most: usize) -> Result<Option<(u64, usize, usize)>, Failure> {
    let mut at = input.at();
    // Nearly always all is well and there; whatever is not is looked at below, step by step.
    if let Some(&[a, b, c, d, e, f, g, h]) = input.at_hand() {
        let lengths = [[a, b, c, d], [e, f, g, h]].map(|four| usize::try_from(i32::from_be_bytes(four)));
        if let [Ok(length), Ok(key_length)] = lengths
            && key_length <= length
            && length <= most
        {
            input.next_bytes(8, RECORD)?;
            return Ok(Some((at, length, key_length)));
        }
    }
    if input.is_at_end()? {
        return Ok(None);
    }
    let mut length = i32::from_be_bytes(input.array(RECORD)?);
    if length == SYNC_ESCAPE {
        if input.array("a sync marker")? != header.sync {
            return Err(Failure::at(at, Reason::Sync));
        }
        at = input.at();
        // A file may end with one.
        if input.is_at_end()? {
            return Ok(None);
        }
        length = i32::from_be_bytes(input.array(RECORD)?);
    }
    let damaged = |how| Failure::at(at, Reason::Damaged { what: RECORD, how });
    let length = usize::try_from(length).map_err(|_| damaged(format!("a length of {length}")))?;
    if length > most {
        return Err(Failure::at(at, Reason::record_too_long(length as u64, most)));
    }
    let key_length = i32::from_be_bytes(input.array(RECORD)?);
    match usize::try_from(key_length) {
        Ok(key_length) if key_length <= length => Ok(Some((at, length, key_length))),
        _ => Err(damaged(format!("a key of {key_length} bytes in a record of {length}"))),
    }
}
