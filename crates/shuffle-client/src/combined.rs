//! One read of a shuffle that combines records: each key once.
//!
//! Nodes combine records of equal keys only as far as they meet within one attempt. So a key may have several records, which come
//! one after the other; here they become one.

use crate::error::Error;
use crate::reading::Reading;
use crate::{Combine, NoNumber};
use partage_service::shuffle::combine::Total;
use partage_shuffle_wire::records::PackedRecords;

/// The records of a read, in order, in pieces, of each key one. Its value has 8 bytes, the least significant one first.
#[derive(Debug)]
pub struct CombinedReading {
    reading: Reading,
    runs: Runs,
    is_over: bool,
}

/// The last key that came, of which more may come, and what came before it.
#[derive(Debug)]
struct Runs {
    how: Combine,
    last: Option<(Vec<u8>, Total)>,
    done: Vec<(Vec<u8>, [u8; 8])>,
}

impl CombinedReading {
    pub(crate) fn new(reading: Reading, how: Combine) -> CombinedReading {
        CombinedReading { reading, runs: Runs { how, last: None, done: Vec::new() }, is_over: false }
    }

    /// The next records; none: all were given out. If the call is dropped before it is done, the next one goes on behind what was
    /// given out.
    ///
    /// # Errors
    /// The read has failed, at as many nodes and as often as the settings allow; a value is no number, or what the records of a
    /// key give together is too large.
    pub async fn next(&mut self) -> Result<Option<PackedRecords>, Error> {
        while !self.is_over {
            let taken = match self.reading.next().await {
                Ok(Some(records)) => records.iter().try_for_each(|(key, value)| self.runs.take(key, value)),
                Ok(None) => {
                    self.is_over = true;
                    self.runs.close()
                }
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.is_over = true;
                return Err(error);
            }
            if !self.runs.done.is_empty() {
                let done = std::mem::take(&mut self.runs.done);
                return Ok(Some(PackedRecords::pack(done.iter().map(|(key, value)| (&key[..], &value[..])))));
            }
        }
        Ok(None)
    }
}

impl Runs {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let no_number = |why: NoNumber| Error::NoNumber { key: shown(key), why };
        match &mut self.last {
            Some((last, total)) if last.as_slice() == key => total.add(value).map_err(no_number),
            _ => {
                self.close()?;
                self.last = Some((key.to_vec(), Total::new(self.how, value).map_err(no_number)?));
                Ok(())
            }
        }
    }

    /// No more comes of the last key.
    fn close(&mut self) -> Result<(), Error> {
        let Some((key, total)) = self.last.take() else { return Ok(()) };
        let value = total.value().map_err(|why| Error::TotalTooLarge { key: shown(&key), why })?;
        self.done.push((key, value));
        Ok(())
    }
}

/// The front of a key, for people.
fn shown(key: &[u8]) -> String {
    key.get(..key.len().min(100)).unwrap_or_default().escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(how: Combine, records: &[(&[u8], i64)]) -> Result<Vec<(Vec<u8>, i64)>, Error> {
        let mut runs = Runs { how, last: None, done: Vec::new() };
        records.iter().try_for_each(|(key, value)| runs.take(key, &value.to_le_bytes()))?;
        runs.close()?;
        Ok(runs.done.into_iter().map(|(key, value)| (key, i64::from_le_bytes(value))).collect())
    }

    #[test]
    fn each_key_comes_once_with_all_of_its_records() {
        let records: [(&[u8], i64); 5] = [(b"", 1), (b"", 2), (b"a", -4), (b"b", i64::MAX), (b"b", -1)];
        let sums = [(b"".to_vec(), 3), (b"a".to_vec(), -4), (b"b".to_vec(), i64::MAX - 1)];
        assert_eq!(runs(Combine::SumI64, &records).unwrap(), sums);
        let least = [(b"".to_vec(), 1), (b"a".to_vec(), -4), (b"b".to_vec(), -1)];
        assert_eq!(runs(Combine::MinI64, &records).unwrap(), least);
        assert_eq!(runs(Combine::SumI64, &[]).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_combined_is_named_by_its_key() {
        let records: [(&[u8], i64); 2] = [(b"k\n", i64::MIN), (b"k\n", -1)];
        let large = runs(Combine::SumI64, &records).unwrap_err();
        assert!(matches!(&large, Error::TotalTooLarge { key, .. } if key == "k\\n"), "{large}");
        let mut other = Runs { how: Combine::Count, last: None, done: Vec::new() };
        let none = other.take(b"k", b"text").unwrap_err();
        assert!(matches!(&none, Error::NoNumber { why: NoNumber { bytes: 4, .. }, .. }), "{none}");
        assert!(!none.runs_again() && none.to_string().contains("8 bytes"));
    }
}
