//! The places that scans have come to.
//!
//! A cursor of Redis is a number, and a place in a table is a key. So the listener keeps places, of all clients together, and
//! gives each a number that follows from it: a client may go on over another connection, and two scans at one place share it. The
//! number has 53 bits, since some clients keep numbers as floats. The places used longest ago make way for new ones; a number
//! that is not known any more is an error and never a wrong page.

use crate::limits;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The places of a listener.
#[derive(Debug, Default)]
pub struct Cursors(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// By number: when it was used last, in which table, and where.
    by_number: BTreeMap<u64, (u64, String, Vec<u8>)>,
    by_use: BTreeMap<u64, u64>,
}

impl Cursors {
    /// The number of a place.
    pub fn add(&self, table: &str, token: &[u8]) -> u64 {
        /// Floats have so many bits.
        const BITS: u32 = 53;
        let mut number =
            xxh3_64_with_seed(token, xxh3_64_with_seed(table.as_bytes(), 0)) >> (u64::BITS - BITS);
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            number = number.max(1);
            match places.by_number.get(&number) {
                Some((_, of, at)) if of != table || at != token => number += 1,
                _ => break,
            }
        }
        places.next += 1;
        let used = places.next;
        let place = (used, table.to_owned(), token.to_owned());
        if let Some((former, ..)) = places.by_number.insert(number, place) {
            places.by_use.remove(&former);
        }
        places.by_use.insert(used, number);
        if places.by_number.len() > limits::CURSORS
            && let Some((_, oldest)) = places.by_use.pop_first()
        {
            places.by_number.remove(&oldest);
        }
        number
    }

    /// The place of a number, in that table.
    pub fn find(&self, table: &str, number: u64) -> Option<Vec<u8>> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.by_number.get(&number).filter(|(_, of, _)| of == table).map(|(_, _, token)| token.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_number_in_its_table_until_it_makes_way() {
        let cursors = Cursors::default();
        let first = cursors.add("a", b"k");
        assert_eq!(cursors.add("a", b"k"), first);
        assert_eq!(cursors.find("a", first).as_deref(), Some(&b"k"[..]));
        assert_eq!((cursors.find("b", first), cursors.find("a", first + 1)), (None, None));
        assert!(first > 0 && first < 1 << 53);
        let last = (0..limits::CURSORS).map(|n| cursors.add("a", &n.to_be_bytes())).last().unwrap();
        assert!(cursors.find("a", first).is_none() && cursors.find("a", last).is_some());
        assert_eq!(cursors.0.lock().unwrap().by_use.len(), limits::CURSORS);
    }
}
