//! A server with its disk.

use partage_core::base::id::TransactionId;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_service::metadata::Head;
use partage_service::metadata::server::Server;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub enum DiskWrite {
    Begin(u64, Arc<ShardMap>),
    Append(u64, TransactionId, Arc<MapDiff>),
    Drop(TransactionId, TransactionId),
    Remove(TransactionId),
    Rewrite(TransactionId, Arc<ShardMap>, Vec<Arc<MapDiff>>),
}

pub type Books = BTreeMap<TransactionId, (Arc<ShardMap>, Vec<Arc<MapDiff>>)>;

/// A server with its disk. What is queued is lost in a crash, or not, in order.
#[derive(Debug, Default)]
pub struct Machine {
    pub server: Option<Server>,
    pub life: u64,
    pub books: Books,
    pub queue: VecDeque<DiskWrite>,
}

impl Machine {
    /// Whether its disk could bring forth the map of the head.
    pub fn has(&self, head: &Head) -> bool {
        self.books.values().any(|(map, operations)| {
            let mut at = head.at;
            while at != map.generation() {
                match operations.iter().find(|diff| diff.to == at) {
                    Some(diff) => at = diff.from,
                    None => return false,
                }
            }
            true
        })
    }

    pub fn write(&mut self, write: DiskWrite) -> Option<u64> {
        match write {
            DiskWrite::Begin(number, map) => {
                self.books.insert(map.generation().transaction, (map, vec![]));
                return Some(number);
            }
            DiskWrite::Append(number, book, diff) => {
                if let Some((_, operations)) = self.books.get_mut(&book) {
                    operations.push(diff);
                }
                return Some(number);
            }
            DiskWrite::Drop(book, gone) => {
                if let Some((_, operations)) = self.books.get_mut(&book) {
                    operations.retain(|diff| diff.to.transaction != gone);
                }
            }
            DiskWrite::Remove(book) => drop(self.books.remove(&book)),
            DiskWrite::Rewrite(book, map, operations) => {
                if self.books.contains_key(&book) {
                    self.books.insert(book, (map, operations));
                }
            }
        }
        None
    }
}
