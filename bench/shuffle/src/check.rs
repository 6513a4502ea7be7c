//! Whether what came out of a shuffle is what went in, in order.
//!
//! *What* is told by a [`Tally`]: the number of records, their bytes, and the sum, without carry beyond 128 bits, of a hash of
//! each record of 128 bits. It does not depend on the order, so parts are tallied where they are made and where they are read,
//! and added. A record that is lost, doubled or changed changes it. *Order* is told by a [`Checker`], for each stretch that must
//! be in order.

use std::cmp::Ordering;
use std::ops::AddAssign;
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of the number of a record, which stands behind its key.
const NUMBER_BYTES: usize = 8;

/// Records, whatever their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// The number of records.
    pub records: u64,
    /// The bytes of all records together.
    pub bytes: u64,
    /// The sum of their hashes.
    pub sum: u128,
}

impl Tally {
    /// Adds one record to the sums.
    pub fn add(&mut self, record: &[u8]) {
        self.records += 1;
        self.bytes += record.len() as u64;
        self.sum = self.sum.wrapping_add(xxh3_128(record));
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// What must hold for two records that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The key does not descend.
    Keys,
    /// And of equal keys the number, which stands behind the key, ascends: as when each input partition has one stretch of
    /// numbers.
    Stable,
}

/// Two records are in the wrong order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The place of the second one, from 0.
    pub at: u64,
    /// Whether their keys are equal.
    pub are_equal: bool,
}

impl std::fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.are_equal {
            "has the key of the one before, and a lower number"
        } else {
            "has a lower key than the one before"
        };
        write!(f, "record {} {what}", self.at)
    }
}

impl std::error::Error for OutOfOrder {}

/// Looks at records of a fixed length in the order in which they come.
#[derive(Debug, Clone)]
pub struct Checker {
    key: usize,
    order: Order,
    last: Vec<u8>,
    tally: Tally,
}

impl Checker {
    /// Checks records whose keys have so many bytes.
    pub fn new(key: usize, order: Order) -> Checker {
        Checker { key, order, last: Vec::new(), tally: Tally::default() }
    }

    /// Checks the next record, and adds it to the tally.
    ///
    /// # Errors
    /// The record should come before the last one.
    pub fn take(&mut self, record: &[u8]) -> Result<(), OutOfOrder> {
        let compared = match self.order {
            Order::Keys => self.key,
            Order::Stable => self.key + NUMBER_BYTES,
        };
        let place = &record[..compared.min(record.len())];
        if self.tally.records > 0 {
            let are_equal = place[..self.key.min(place.len())] == self.last[..self.key.min(self.last.len())];
            let is_wrong = match place.cmp(&self.last) {
                Ordering::Less => true,
                Ordering::Equal => self.order == Order::Stable,
                Ordering::Greater => false,
            };
            if is_wrong {
                return Err(OutOfOrder { at: self.tally.records, are_equal });
            }
        }
        self.last.clear();
        self.last.extend_from_slice(place);
        self.tally.add(record);
        Ok(())
    }

    /// What came so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Generator, Input, Shape};

    fn records() -> Vec<[u8; 100]> {
        let generator = Generator::new(Input::Sorted, Shape::USUAL, 1_000, 1).unwrap();
        let record = |number| {
            let mut record = [0; 100];
            generator.write(number, &mut record);
            record
        };
        (0..1_000).map(record).collect()
    }

    fn tally(records: &[[u8; 100]]) -> Tally {
        let mut tally = Tally::default();
        records.iter().for_each(|record| tally.add(record));
        tally
    }

    #[test]
    fn the_order_does_not_matter_and_everything_else_does() {
        let all = records();
        let mut turned = all.clone();
        turned.reverse();
        assert_eq!(tally(&all), tally(&turned));
        let mut parts = tally(&all[..300]);
        parts += tally(&all[300..]);
        assert_eq!(parts, tally(&all));
        let spoilt = |change: &dyn Fn(&mut Vec<[u8; 100]>)| {
            let mut all = all.clone();
            change(&mut all);
            tally(&all)
        };
        let doubled_for_another = spoilt(&|all| all[5] = all[6]);
        assert_eq!(doubled_for_another.records, 1_000);
        for (what, spoilt) in [
            ("lost", spoilt(&|all| all.truncate(999))),
            ("doubled", spoilt(&|all| all.push(all[3]))),
            ("one for another", doubled_for_another),
            ("changed", spoilt(&|all| all[7][99] ^= 1)),
            ("two changed", spoilt(&|all| all[1..3].iter_mut().for_each(|record| record[99] ^= 1))),
        ] {
            assert_ne!(spoilt, tally(&all), "{what}");
        }
    }

    #[test]
    fn what_is_out_of_order_is_named() {
        let check = |records: &[[u8; 100]], order| {
            let mut checker = Checker::new(10, order);
            records.iter().try_for_each(|record| checker.take(record)).map(|()| checker.tally())
        };
        let mut all = records();
        assert_eq!(check(&all, Order::Stable), Ok(tally(&all)));
        all.swap(500, 501);
        assert_eq!(check(&all, Order::Keys), Err(OutOfOrder { at: 501, are_equal: false }));
        let mut equal = records();
        equal.iter_mut().for_each(|record| record[..10].fill(7));
        assert!(check(&equal, Order::Stable).is_ok());
        equal.swap(1, 2);
        assert!(check(&equal, Order::Keys).is_ok());
        assert_eq!(check(&equal, Order::Stable), Err(OutOfOrder { at: 2, are_equal: true }));
        let twice = vec![equal[0], equal[0]];
        assert_eq!(
            check(&twice, Order::Stable),
            Err(OutOfOrder { at: 1, are_equal: true }),
            "a record comes once"
        );
    }
}
