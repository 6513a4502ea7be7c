//! Records of equal keys that become one, on their way in and out.
//!
//! ```text
//!  rows of an attempt ─► held, by key, until they are as much as a frame ─► frames       within one attempt
//!  records of a read, in the order of their keys ─► one for each key ─► batches          over the attempts that are read
//! ```
//!
//! Raw records are combined by the buffer when they come. Rows are here: a buffer knows nothing of columns.

use crate::error::RowsError;
use crate::kind::Kind;
use crate::rows::{Numbers, Rows};
use crate::status;
use arrow_array::RecordBatch;
use partage_service::shuffle::Bytes;
use partage_service::shuffle::combine::{Combine, Total};
use partage_service::shuffle::record::Record;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use tonic::Status;

/// What the number of a column takes in memory, in bytes.
const NUMBER_BYTES: u64 = 32;

/// The rows of one attempt that wait for others of their keys.
pub(crate) struct HeldRows {
    rows: Rows,
    held: BTreeMap<Bytes, Numbers>,
    /// Rows to which the next ones of their keys could not be added, as the sum would not fit.
    full: Vec<(Bytes, Numbers)>,
    memory: u64,
}

/// What a row takes in memory besides its key and numbers, in bytes: its place in the map.
const AROUND_ROW: u64 = 64;

impl HeldRows {
    pub(crate) fn new(rows: Rows) -> HeldRows {
        HeldRows { rows, held: BTreeMap::new(), full: Vec::new(), memory: 0 }
    }

    /// What they take in memory, in bytes, about.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    pub(crate) fn take(&mut self, records: Vec<Record>) -> Result<(), RowsError> {
        let values: Vec<&[u8]> = records.iter().map(|record| &record.value[..]).collect();
        let numbers = self.rows.numbers(&values)?;
        for (record, numbers) in records.into_iter().zip(numbers) {
            let numbers = self.rows.begun(numbers);
            let memory = record.key.len() as u64 + AROUND_ROW + NUMBER_BYTES * numbers.len() as u64;
            match self.held.entry(record.key) {
                Entry::Vacant(place) => {
                    place.insert(numbers);
                    self.memory += memory;
                }
                Entry::Occupied(mut place) => {
                    let sum = self.rows.added(place.get(), &numbers);
                    if self.rows.fit(&sum) {
                        place.insert(sum);
                    } else {
                        let before = place.insert(numbers);
                        self.full.push((place.key().clone(), before));
                        self.memory += memory;
                    }
                }
            }
        }
        Ok(())
    }

    /// All of them, as records. None is held any more.
    pub(crate) fn records(&mut self) -> Result<Vec<Record>, RowsError> {
        self.memory = 0;
        let all = std::mem::take(&mut self.full).into_iter().chain(std::mem::take(&mut self.held));
        let (keys, numbers): (Vec<Bytes>, Vec<Numbers>) = all.unzip();
        let values = self.rows.values(&numbers)?;
        Ok(keys.into_iter().zip(values).map(|(key, value)| Record { key, value }).collect())
    }
}

/// What the records of one key give together.
enum Sum {
    Raw(Total),
    Row(Numbers),
}

/// The records of a read, in the order of their keys, that become one for each key.
pub(crate) struct CombinedRead {
    kind: Arc<Kind>,
    /// The last key that came, of which more may come.
    last: Option<(Vec<u8>, Sum)>,
    done: Vec<(Vec<u8>, Sum)>,
}

/// What a shuffle that combines has.
enum By<'a> {
    Raw(Combine),
    Rows(&'a Rows),
}

fn by(kind: &Kind) -> Option<By<'_>> {
    match kind {
        Kind::Raw(_, how) => how.map(By::Raw),
        Kind::Rows(rows, _) => Some(By::Rows(rows)).filter(|_| rows.combines()),
    }
}

impl CombinedRead {
    /// A read of a shuffle that combines.
    pub(crate) fn new(kind: Arc<Kind>) -> Result<CombinedRead, Status> {
        if by(&kind).is_none() {
            return Err(status::malformed(
                "the shuffle was started without `combine`: read its rows as they are, without `combine`",
            ));
        }
        Ok(CombinedRead { kind, last: None, done: Vec::new() })
    }

    pub(crate) fn take(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<(), Status> {
        let kind = Arc::clone(&self.kind);
        match by(&kind) {
            Some(By::Raw(how)) => {
                for (key, value) in pairs {
                    match &mut self.last {
                        Some((last, Sum::Raw(total))) if last.as_slice() == *key => {
                            total.add(value).map_err(status::not_combined)?;
                        }
                        _ => {
                            let total = Total::new(how, value).map_err(status::not_combined)?;
                            self.next(key, Sum::Raw(total));
                        }
                    }
                }
            }
            Some(By::Rows(rows)) => {
                let values: Vec<&[u8]> = pairs.iter().map(|pair| pair.1).collect();
                let numbers = rows.numbers(&values).map_err(status::not_combined)?;
                for ((key, _), numbers) in pairs.iter().zip(numbers) {
                    match &mut self.last {
                        Some((last, Sum::Row(sum))) if last.as_slice() == *key => {
                            *sum = rows.added(sum, &numbers);
                        }
                        _ => self.next(key, Sum::Row(numbers)),
                    }
                }
            }
            None => {}
        }
        Ok(())
    }

    fn next(&mut self, key: &[u8], sum: Sum) {
        self.done.extend(self.last.replace((key.to_vec(), sum)));
    }

    /// Ends the read: no record of the last key comes any more, so its row is done.
    pub(crate) fn close(&mut self) {
        self.done.extend(self.last.take());
    }

    /// The rows of the keys that are done; none: none is.
    pub(crate) fn batch(&mut self) -> Result<Option<RecordBatch>, Status> {
        if self.done.is_empty() {
            return Ok(None);
        }
        let (mut keys, mut raw, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for (key, sum) in std::mem::take(&mut self.done) {
            keys.push(key);
            match sum {
                Sum::Raw(total) => {
                    raw.push(Bytes::from(total.value().map_err(status::not_combined)?));
                }
                Sum::Row(sum) => numbers.push(sum),
            }
        }
        let values = match &*self.kind {
            Kind::Raw(..) => raw,
            Kind::Rows(rows, _) => rows.values(&numbers).map_err(status::not_combined)?,
        };
        let pairs: Vec<(&[u8], &[u8])> =
            keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
        self.kind.batch(&pairs).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};
    use partage_service::shuffle::{ColumnCombine, CombinedColumn, RecordKind, SortColumn};

    fn batch(keys: &[i64], numbers: &[i64]) -> RecordBatch {
        let column = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        RecordBatch::try_from_iter([("key", column(keys)), ("number", column(numbers))]).unwrap()
    }

    fn rows(by: ColumnCombine) -> Rows {
        let order = [SortColumn { column: 0, descends: false, nulls_first: false }];
        let combine = [CombinedColumn { column: 1, by }];
        Rows::combining(batch(&[], &[]).schema_ref(), &order, &combine).unwrap()
    }

    fn columns(batch: &RecordBatch) -> (Vec<i64>, Vec<i64>) {
        let column = |at: usize| batch.column(at).as_primitive::<Int64Type>().values().to_vec();
        (column(0), column(1))
    }

    fn pair<'a>(key: &'a [u8], value: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        (key, value)
    }

    /// What a read gives of what two attempts have written.
    fn read(by: ColumnCombine, attempts: [&RecordBatch; 2]) -> Result<RecordBatch, Status> {
        let rows = rows(by);
        let kind = Arc::new(Kind::of(&RecordKind::Arrow(rows.kind()), None).unwrap());
        let mut records = Vec::new();
        for attempt in attempts {
            let mut held = HeldRows::new(rows.clone());
            held.take(rows.records(attempt).unwrap()).unwrap();
            assert_eq!(held.memory() > 0, attempt.num_rows() > 0);
            records.extend(held.records().unwrap());
            assert_eq!(held.memory(), 0);
        }
        records.sort();
        let mut read = CombinedRead::new(kind).unwrap();
        for record in &records {
            read.take(&[pair(&record.key, &record.value)])?;
        }
        read.close();
        read.batch().map(Option::unwrap)
    }

    #[test]
    fn rows_of_a_key_are_one_within_an_attempt_and_one_when_they_are_read() {
        let one = batch(&[7, 3, 7, 7], &[1, 10, 2, -4]);
        let mut held = HeldRows::new(rows(ColumnCombine::Sum));
        held.take(rows(ColumnCombine::Sum).records(&one).unwrap()).unwrap();
        assert_eq!(held.records().unwrap().len(), 2);
        assert_eq!(held.records().unwrap(), []);
        let two = batch(&[3], &[5]);
        for (by, numbers) in [
            (ColumnCombine::Sum, vec![15, -1]),
            (ColumnCombine::Min, vec![5, -4]),
            (ColumnCombine::Max, vec![10, 2]),
            (ColumnCombine::Count, vec![2, 3]),
        ] {
            assert_eq!(columns(&read(by, [&one, &two]).unwrap()), (vec![3, 7], numbers), "{by:?}");
        }
    }

    #[test]
    fn a_sum_that_does_not_fit_waits_for_what_comes() {
        let large = batch(&[1, 1, 1], &[i64::MAX, 5, -9]);
        let nothing = batch(&[], &[]);
        let fits = read(ColumnCombine::Sum, [&large, &nothing]).unwrap();
        assert_eq!(columns(&fits), (vec![1], vec![i64::MAX - 4]));
        let more = batch(&[1], &[9]);
        let refused = read(ColumnCombine::Sum, [&large, &more]).unwrap_err();
        assert!(refused.message().contains("column \"number\" does not fit"), "{refused}");
    }

    #[test]
    fn raw_records_are_combined_when_they_are_read() {
        let kind = Arc::new(Kind::of(&RecordKind::Raw, Some(Combine::SumI64)).unwrap());
        let mut read = CombinedRead::new(Arc::clone(&kind)).unwrap();
        let [one, two] = [1_i64.to_le_bytes(), 2_i64.to_le_bytes()];
        read.take(&[pair(b"a", &one), pair(b"a", &two)]).unwrap();
        assert!(read.batch().unwrap().is_none(), "more of the key may come");
        read.take(&[pair(b"a", &two), pair(b"b", &one)]).unwrap();
        let first = kind.some_records(&read.batch().unwrap().unwrap(), 0).unwrap();
        assert_eq!((first.len(), &first[0].value[..]), (1, &5_i64.to_le_bytes()[..]));
        assert!(read.take(&[pair(b"c", b"text")]).is_err());
        let plain = Arc::new(Kind::of(&RecordKind::Raw, None).unwrap());
        assert!(CombinedRead::new(plain).is_err());
    }
}
