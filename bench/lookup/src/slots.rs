//! Hash slots and hash ranges.

use crate::measure::{self, Cost};
use comfy_table::Table;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::lookup::{HashIndex, SlotTable};
use partage_core::keyspace::sharding::presplit;

const SLOTS: u32 = 16_384;
const LOOKUPS: usize = 1 << 16;

pub fn run() -> Table {
    let mut table = measure::table(&["table", "given", "ns", "ns, chained", "MB", "allocations"]);
    let mut row = |name: &str, given: &str, cost: Cost, bytes: usize| {
        table.add_row([
            name.to_owned(),
            given.to_owned(),
            format!("{:.1}", cost.free),
            format!("{:.1}", cost.chained),
            format!("{:.2}", bytes as f64 / 1e6),
            cost.allocations.to_string(),
        ]);
    };
    let hashes: Vec<u64> = measure::random(3, LOOKUPS).collect();
    let owners = measure::random(4, SLOTS as usize).map(|n| n as u32 % 1_000).collect();
    let Ok(slots) = SlotTable::build(owners) else { panic!("16,384 slots are few") };
    let bytes = slots.memory_bytes();
    let numbers: Vec<u32> = hashes.iter().map(|hash| *hash as u32 % SLOTS).collect();
    let by_slot = measure::cost(&numbers, |slot| slots.find(*slot).unwrap_or(0) as usize);
    row("16,384 slots", "slot", by_slot, bytes);
    row("16,384 slots", "hash", measure::cost(&hashes, |hash| slots.find_hash(*hash) as usize), bytes);
    let keys: Vec<[u8; 16]> =
        hashes.iter().map(|n| (u128::from(*n) * u128::from(!*n)).to_be_bytes()).collect();
    for hash in [HashFunction::Xxh3_64, HashFunction::Crc16] {
        let find = |key: &[u8; 16]| slots.find(hash.slot(key, SLOTS)).unwrap_or(0) as usize;
        row("16,384 slots", &format!("16-byte key, {hash}"), measure::cost(&keys, find), bytes);
    }
    for ranges in [1_000, 1_000_000] {
        let Ok(bounds) = presplit::even_hashes(ranges) else { panic!("{ranges} ranges are few") };
        let begins: Vec<u64> = bounds.iter().map(|range| range.first).collect();
        let Ok(index) = HashIndex::build(&begins) else { panic!("even ranges are sorted") };
        assert!(hashes.iter().all(|hash| bounds[index.find(*hash)].contains(*hash)));
        let cost = measure::cost(&hashes, |hash| index.find(*hash));
        row(&format!("{ranges} hash ranges"), "point", cost, index.memory_bytes());
    }
    table
}
