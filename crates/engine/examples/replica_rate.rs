//! What a row costs in the store of a replica: applied and flushed, read, filled, and beside it the least that any such store
//! does.
//!
//! `cargo run --release -p partage-engine --example replica_rate [FOLDER [FLUSH_KIB [ascending]]]`
//!
//! One thread; processor time of that thread, as the kernel counts it. The floor is an insertion into a `BTreeMap` and one file
//! of sorted rows without checksums, index or filter.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that measures and says what it has measured"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use partage_core::base::id::Epoch;
use partage_engine::replica::limits::FLUSH_BYTES;
use partage_engine::replica::{Change, Engine, Options, Row, Snapshot, Store, TreeEngine, TreeStore};
use partage_service::table::replication::LogPosition;

const ROWS: u64 = 1_000_000;
const STORES: u64 = 64;
const GROUP: u64 = 16;
const READS: u64 = 200_000;
const CACHE_BYTES: u64 = 256 << 20;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let flush_kib = arguments.next().map(|kib| kib.to_string_lossy().parse::<usize>().unwrap());
    let key =
        if arguments.next().is_some_and(|word| word == "ascending") { ascending_key } else { random_key };
    let disk = tempfile::tempdir_in(folder).unwrap();
    floor(&disk.path().join("floor"), key);
    let both = [FLUSH_BYTES, FLUSH_BYTES / 4];
    for flush_bytes in flush_kib.map_or(both.to_vec(), |kib| vec![kib << 10]) {
        println!("\nflush at {} KiB", flush_bytes >> 10);
        stores(&disk.path().join(flush_bytes.to_string()), flush_bytes, key);
    }
}

/// Makes a key of a number.
type Key = fn(u64) -> [u8; 16];

fn ascending_key(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

/// A key that looks random, from its number.
fn random_key(number: u64) -> [u8; 16] {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let (high, low) = (mix(number + 1), mix(number ^ 0x5555_5555_5555_5555));
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

fn value(number: u64) -> [u8; 100] {
    let mut value = [b'.'; 100];
    value[..8].copy_from_slice(&number.to_be_bytes());
    value
}

/// The store of a row: rows of a group go to one store.
fn store_of(number: u64) -> usize {
    (number / GROUP % STORES) as usize
}

/// Processor time of this thread, in nanoseconds.
fn processor() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

fn measure<T>(what: &str, count: u64, work: impl FnOnce() -> T) -> T {
    let (begin, clock) = (processor(), Instant::now());
    let done = work();
    let (cpu, wall) = (processor() - begin, clock.elapsed().as_nanos() as u64);
    let each = |nanoseconds: u64| nanoseconds as f64 / count as f64 / 1_000.0;
    println!("{what:<44} {:>8.3} µs CPU {:>8.3} µs wall", each(cpu), each(wall));
    done
}

fn floor(folder: &Path, key: Key) {
    fs::create_dir_all(folder).unwrap();
    let mut maps: Vec<BTreeMap<[u8; 16], Vec<u8>>> = (0..STORES).map(|_| BTreeMap::new()).collect();
    measure("floor: map and sorted file", ROWS, || {
        for number in 0..ROWS {
            maps[store_of(number)].insert(key(number), value(number).to_vec());
        }
        for (number, map) in maps.iter().enumerate() {
            let mut file = BufWriter::new(File::create(folder.join(number.to_string())).unwrap());
            for (key, value) in map {
                file.write_all(key).unwrap();
                file.write_all(value).unwrap();
            }
            file.into_inner().unwrap().sync_all().unwrap();
        }
    });
    let mut found = 0;
    measure("floor: get from the map", READS, || {
        for read in 0..READS {
            let number = read * 7_919 % ROWS;
            found += maps[store_of(number)].get(&key(number)).map_or(0, Vec::len);
        }
    });
    assert_eq!(found as u64, READS * 100);
}

fn flush(store: &TreeStore) {
    store.flush().unwrap();
    while store.compact().unwrap() {}
}

fn stores(folder: &Path, flush_bytes: usize, key: Key) {
    let engine = TreeEngine::new(Options { cache_bytes: CACHE_BYTES, ..Options::default() });
    let open = || -> Vec<TreeStore> {
        (0..STORES).map(|store| engine.open(&folder.join(store.to_string())).unwrap()).collect()
    };
    let stores = measure("open a new store", STORES, open);
    measure("apply, flush and compact a row", ROWS, || {
        for group in 0..ROWS / GROUP {
            let numbers = group * GROUP..(group + 1) * GROUP;
            let rows: Vec<([u8; 16], [u8; 100])> =
                numbers.map(|number| (key(number), value(number))).collect();
            let changes: Vec<Change<'_>> =
                rows.iter().map(|(key, value)| Change { key, value: Some(value) }).collect();
            let store = &stores[store_of(group * GROUP)];
            let before = store.applied();
            let after = LogPosition { epoch: Epoch(1), index: before.index + 1 };
            store.apply(before, after, &changes).unwrap();
            if store.unflushed_bytes() >= flush_bytes {
                flush(store);
            }
        }
        stores.iter().for_each(flush);
    });
    drop(stores);
    let stores = measure("open a stored one", STORES, open);
    for what in ["get a row, first from the disk", "get a row, from cached blocks"] {
        measure(what, READS, || {
            for read in 0..READS {
                let number = read * 7_919 % ROWS;
                assert!(stores[store_of(number)].get(&key(number)).unwrap().is_some());
            }
        });
    }
    measure("get a key that is not there", READS, || {
        for read in 0..READS {
            let number = read * 7_919 % ROWS;
            assert!(stores[store_of(number)].get(&key(number + ROWS)).unwrap().is_none());
        }
    });
    transfer(&engine, folder, &stores);
    let disk: u64 = stores.iter().map(|store| store.size().disk_bytes).sum();
    println!("on the disk: {} bytes a row of 116", disk / ROWS);
    drop(stores);
    measure("remove a store", STORES, || {
        (0..STORES).for_each(|store| engine.remove(&folder.join(store.to_string())).unwrap());
    });
}

/// Exports all rows, and fills other stores with them.
fn transfer(engine: &TreeEngine, folder: &Path, stores: &[TreeStore]) {
    let mut chunks: Vec<(Vec<Row>, bool)> = Vec::new();
    let snapshots: Vec<_> = stores.iter().map(|store| store.snapshot().unwrap()).collect();
    measure("export a row", ROWS, || {
        for snapshot in &snapshots {
            let mut from = None;
            loop {
                let chunk = snapshot.export(from.as_deref(), None, FLUSH_BYTES).unwrap();
                chunks.push((chunk.rows, chunk.next.is_none()));
                from = chunk.next;
                if from.is_none() {
                    break;
                }
            }
        }
    });
    let position = LogPosition { epoch: Epoch(1), index: 1 };
    let mut number = 0;
    measure("fill a row", ROWS, || {
        let open = |number: u64| engine.open(&folder.join(format!("filled {number}"))).unwrap();
        let mut target = open(number);
        for (rows, is_last) in &chunks {
            target.fill(position, rows, *is_last).unwrap();
            if *is_last && number + 1 < STORES {
                number += 1;
                target = open(number);
            }
        }
    });
}
