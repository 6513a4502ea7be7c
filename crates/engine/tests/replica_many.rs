//! Many stores of one engine: the files that they keep open, and their memory. No other test runs in this process.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may stop at the first surprise, and say what they measured"
)]

use std::fs;

use partage_engine::replica::{Engine, Options, Store, TreeEngine};

#[path = "replica/harness.rs"]
#[allow(dead_code, unused_macros, unused_imports, reason = "the cases of the suite need more of it")]
mod harness;

use harness::{get, set, temporary};

/// Files that this process has open, and its memory in bytes.
fn used() -> (usize, usize) {
    let files = fs::read_dir("/proc/self/fd").unwrap().count();
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    (files, pages * 4_096)
}

fn key(store: usize, row: usize) -> Vec<u8> {
    format!("{store}/{row}").into_bytes()
}

fn with_many(stores: usize, runs: usize, rows: usize, open_files: usize) {
    let disk = temporary();
    let engine = TreeEngine::new(Options { cache_bytes: 16 << 20, open_files, ..Options::default() });
    let folder = |store: usize| disk.path().join(store.to_string());
    let begin = used();
    let say = |what: &str| {
        let (files, bytes) = used();
        println!(
            "{what}: {} files, {} KiB",
            files.saturating_sub(begin.0),
            bytes.saturating_sub(begin.1) >> 10
        );
    };
    let opened: Vec<_> = (0..stores).map(|store| engine.open(&folder(store)).unwrap()).collect();
    say("open and empty");
    for run in 0..runs {
        for (number, store) in opened.iter().enumerate() {
            for row in 0..rows {
                set(store, &key(number, row), format!("{run}").as_bytes());
            }
            store.flush().unwrap();
        }
    }
    say("flushed");
    for (number, store) in opened.iter().enumerate() {
        assert_eq!(get(store, &key(number, number % rows)), Some(format!("{}", runs - 1).into_bytes()));
    }
    say("read");
    assert!(used().0 <= begin.0 + open_files + 50, "{:?}", used());
    drop(opened);
    say("closed");
    assert_eq!(used().0, begin.0, "a closed store has no open file");
    let opened: Vec<_> = (0..stores).map(|store| engine.open(&folder(store)).unwrap()).collect();
    say("open again");
    for (number, store) in opened.iter().enumerate() {
        assert_eq!(get(store, &key(number, number % rows)), Some(format!("{}", runs - 1).into_bytes()));
    }
    say("read again");
    assert!(used().0 <= begin.0 + open_files + 50, "{:?}", used());
}

#[test]
fn two_hundred_stores_keep_few_files_open() {
    with_many(200, 3, 20, 64);
}

#[test]
#[ignore = "opens 2,000 stores, and says with --nocapture what they take: ./test long"]
fn two_thousand_stores() {
    with_many(2_000, 4, 100, 1_024);
}
